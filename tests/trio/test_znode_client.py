"""The client of tools, where answers of ZooKeeper are lost: what it asks again, and what it never does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence

import pytest
import trio

from waltz_core.base.edge import ZkCreate, ZkDelete, ZkDone, ZkError, ZkEvent, ZkFailed, ZkGet, ZkRequest, ZkSet
from waltz_trio.zk.client import READ_ATTEMPTS, OutcomeUnknownError, ZnodeClient, open_znode_client
from waltz_trio.zk.embedded import EmbeddedSession, EmbeddedZnodes, open_embedded_znodes


@pytest.fixture
async def znodes() -> AsyncIterator[EmbeddedZnodes]:
    async with open_embedded_znodes() as store:
        yield store


class Network:
    """Stands between a client and its store: what is asked arrives, and answers to some kinds of requests do not."""

    def __init__(self, client: ZnodeClient, *lost: type[ZkRequest], times: int = 1) -> None:
        assert isinstance(client.store, EmbeddedSession)
        self.asked: list[ZkRequest] = []
        self._session, self._deliver = client.store, client.deliver
        self._lost, self._times = lost, times
        self._tickets: set[int] = set()
        client.store, self._session.deliver = self, self.deliver

    def submit(self, requests: Iterable[ZkRequest]) -> None:
        for request in requests:
            self.asked.append(request)
            if isinstance(request, self._lost) and self._times:
                self._times -= 1
                self._tickets.add(request.ticket)
            self._session.submit([request])

    def deliver(self, events: Sequence[ZkEvent]) -> None:
        for event in events:
            if isinstance(event, (ZkDone, ZkFailed)) and event.ticket in self._tickets:
                self._deliver([ZkFailed(event.ticket, ZkError.OUTCOME_UNKNOWN)])
            else:
                self._deliver([event])


async def test_a_write_whose_answer_was_lost_is_told_as_such_and_not_made_again(znodes: EmbeddedZnodes) -> None:
    """The second time it would be another one, or be refused because of the first."""
    async with open_znode_client(znodes) as client:
        await client.create("/a")
        network = Network(client, ZkCreate, ZkSet, ZkDelete, times=3)
        with pytest.raises(OutcomeUnknownError, match="/a/s_"):
            await client.create("/a/s_", sequential=True)
        with pytest.raises(OutcomeUnknownError):
            await client.set("/a", b"new", -1)
        with pytest.raises(OutcomeUnknownError):
            await client.delete("/a/s_0000000000")
        assert [type(request) for request in network.asked] == [ZkCreate, ZkSet, ZkDelete]
        assert (await client.get("/a"))[0] == b"new"
        assert await client.children("/a") == ()


@pytest.mark.parametrize("lost", [READ_ATTEMPTS - 1, READ_ATTEMPTS])
async def test_a_read_whose_answer_was_lost_is_asked_again_a_few_times(znodes: EmbeddedZnodes, lost: int) -> None:
    async with open_znode_client(znodes) as client:
        await client.create("/a", b"1")
        network = Network(client, ZkGet, times=lost)
        if lost < READ_ATTEMPTS:
            assert (await client.get("/a"))[0] == b"1"
        else:
            with pytest.raises(OutcomeUnknownError, match="/a"):
                await client.get("/a")
        assert len(network.asked) == READ_ATTEMPTS


async def test_a_lock_whose_creation_was_not_answered_is_held_and_let_go(znodes: EmbeddedZnodes) -> None:
    with trio.fail_after(20):
        async with open_znode_client(znodes) as client, open_znode_client(znodes) as other:
            Network(client, ZkCreate)
            async with client.lock("/lock", on_wait=lambda stat: pytest.fail("it waits for itself")):
                stat = await other.exists("/lock")
                assert stat is not None
                assert stat.ephemeral_owner == client.session_id
            assert await other.exists("/lock") is None


async def test_who_waits_for_a_lock_looks_again_once_his_watch_may_be_lost(znodes: EmbeddedZnodes) -> None:
    """It was let go while the connection was broken: nothing else would tell him."""
    waits = trio.Event()

    async def wait(client: ZnodeClient) -> None:
        async with client.lock("/lock", on_wait=lambda stat: waits.set()):
            pass

    with trio.fail_after(20):
        async with (
            open_znode_client(znodes) as holder,
            open_znode_client(znodes) as waiter,
            trio.open_nursery() as nursery,
        ):
            assert isinstance(waiter.store, EmbeddedSession)
            async with holder.lock("/lock"):
                nursery.start_soon(wait, waiter)
                await waits.wait()
                znodes.interrupt(waiter.store)
                await trio.testing.wait_all_tasks_blocked()
            znodes.resume(waiter.store)


async def test_a_lock_that_is_somebody_else_s_by_now_is_left_to_him(znodes: EmbeddedZnodes) -> None:
    """An operator deleted it, or the session of who held it had ended."""
    async with open_znode_client(znodes) as client, open_znode_client(znodes) as other:
        async with client.lock("/lock"):
            await other.delete("/lock")
            await other.create("/lock", ephemeral=True)
        stat = await client.exists("/lock")
        assert stat is not None
        assert stat.ephemeral_owner == other.session_id

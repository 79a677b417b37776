"""The bridge to a real ZooKeeper: the common suite, and what only a real connection can do."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio

from tests.processes.zookeeper import ZooKeeperServer, free_port
from tests.trio.znode_store_suite import PATIENCE, OpenStore, Peer, ZnodeStoreSuite, connected_peer
from waltz_core.base.edge import ZkChildren, ZkCreate, ZkDone, ZkError, ZkFailed, ZkGet, ZkSet, ZkState, ZkStateChanged
from waltz_core.base.errors import ConfigError
from waltz_trio.base.znodes import Deliver, ZnodeStore
from waltz_trio.zk.bridge import ZooKeeperBridge, open_zookeeper
from waltz_trio.zk.client import UnavailableError, open_znode_client
from waltz_trio.zk.store import connect_string, open_znode_store

pytestmark = pytest.mark.processes


@pytest.fixture
def open_store(zookeeper: ZooKeeperServer) -> OpenStore:
    hosts = zookeeper.fresh_chroot()

    @asynccontextmanager
    async def open_it(deliver: Deliver) -> AsyncIterator[ZnodeStore]:
        async with open_znode_store(hosts, deliver, session_timeout_ms=10_000) as store:
            yield store

    return open_it


class TestBridge(ZnodeStoreSuite):
    """The common suite."""


async def test_it_refuses_requests_until_it_is_connected() -> None:
    peer = Peer()
    async with open_zookeeper(f"127.0.0.1:{free_port()}", peer.deliver, session_timeout_ms=5_000) as store:
        peer.store = store
        assert await peer.ask(lambda t: ZkGet(t, "/")) is ZkError.UNAVAILABLE


async def test_a_connect_string_that_cannot_be_read_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"zookeeper\.connectString"):
        async with open_zookeeper("host:port", lambda events: None):
            pass


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a:1,b:2", "a:1,b:2"),
        ("a:1,", "a:1"),
        (" , a:1 ,, [::1]:2,\tb_c , /chroot/of/mine", "a:1,[::1]:2,b_c/chroot/of/mine"),
        ("a:", "a:"),
    ],
)
def test_a_connect_string_is_read_as_by_the_client_of_the_original(text: str, hosts: str) -> None:
    assert connect_string(text) == hosts


@pytest.mark.parametrize("text", ["", ",", " , /chroot", "/chroot", "a:1;b:1", "a:1 b:1", "'a:1'", "a:1:2", "zk://a:1"])
def test_a_connect_string_without_a_host_or_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected host:port,host:port") as caught:
        connect_string(text)
    assert repr(text) in str(caught.value)


async def test_blanks_and_empty_entries_of_a_connect_string_are_passed_over(zookeeper: ZooKeeperServer) -> None:
    hosts, _, chroot = zookeeper.fresh_chroot().partition("/")
    async with open_znode_client(f" ,{hosts} , ,/{chroot}") as client:
        assert await client.children("/") == ()


async def test_a_tool_says_which_address_was_not_reached() -> None:
    hosts = f"127.0.0.1:{free_port()}"
    with pytest.raises(UnavailableError, match=f"{hosts} was not reached within 0.3 s"):
        async with open_znode_client(hosts, connect_timeout_ms=300):
            pass


async def test_what_is_not_reached_is_logged_once_and_not_with_every_attempt() -> None:
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("waltz.zookeeper.kazoo")
    before = logger.level
    logger.setLevel(logging.WARNING)
    logger.addHandler(handler)
    try:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        async with listener, open_zookeeper(f"127.0.0.1:{port}", lambda events: None):
            with trio.fail_after(PATIENCE):
                for _ in range(6):  # two rounds of attempts
                    await (await listener.accept()).aclose()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    assert told, "kazoo says nothing any more"
    assert len(told) == len(set(told)), told


async def test_a_restarted_server_resumes_the_session_and_forgets_the_watches(
    own_zookeeper: ZooKeeperServer,
) -> None:
    peer = Peer()
    async with open_zookeeper(own_zookeeper.hosts, peer.deliver, session_timeout_ms=20_000) as store:
        peer.store = store
        session = await peer.connected()
        await peer.done(lambda t: ZkCreate(t, "/mine", b"", ephemeral=True))
        await peer.done(lambda t: ZkGet(t, "/mine", watch=True))
        peer.heard.clear()
        await trio.to_thread.run_sync(own_zookeeper.kill)
        await peer.until(lambda event: event == ZkStateChanged(ZkState.SUSPENDED))
        assert await peer.ask(lambda t: ZkGet(t, "/mine")) is ZkError.UNAVAILABLE
        await trio.to_thread.run_sync(own_zookeeper.start)
        await peer.until(lambda event: event == ZkStateChanged(ZkState.CONNECTED, session))
        found = await peer.done(lambda t: ZkGet(t, "/mine"))
        assert found.stat is not None
        assert found.stat.ephemeral_owner == session
        assert peer.changes() == []


@pytest.mark.slow
async def test_a_connection_that_is_accepted_and_never_answered_does_not_cost_the_session(
    own_zookeeper: ZooKeeperServer,
) -> None:
    peer = Peer()
    async with open_zookeeper(own_zookeeper.hosts, peer.deliver, session_timeout_ms=9_000) as store:
        peer.store = store
        session = await peer.connected()
        await trio.to_thread.run_sync(own_zookeeper.kill)
        with trio.socket.socket() as mute:
            mute.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEADDR, 1)
            await mute.bind(("127.0.0.1", own_zookeeper.port))
            mute.listen(1)
            with trio.fail_after(PATIENCE):
                first, _ = await mute.accept()
                second, _ = await mute.accept()
        with first, second:
            assert ZkStateChanged(ZkState.PRESUMED_LOST) not in peer.heard
            peer.heard.clear()
            await trio.to_thread.run_sync(own_zookeeper.start)
            await peer.until(lambda event: event == ZkStateChanged(ZkState.CONNECTED, session))


async def test_an_expired_session_is_told_and_a_new_one_follows(zookeeper: ZooKeeperServer) -> None:
    peer = Peer()
    hosts = zookeeper.fresh_chroot()
    async with open_zookeeper(hosts, peer.deliver, session_timeout_ms=10_000) as store:
        peer.store = store
        session = await peer.connected()
        await peer.done(lambda t: ZkCreate(t, "/mine", b"", ephemeral=True))
        number, password = store._client.client_id
        assert number == session
        peer.heard.clear()
        await trio.to_thread.run_sync(zookeeper.end_session, number, password)
        expired = await peer.until(lambda event: event == ZkStateChanged(ZkState.EXPIRED))
        # Until then the two fought for the session, and it may have come back more than once.
        del peer.heard[: peer.heard.index(expired)]
        assert await peer.connected_again() != session
        assert await peer.ask(lambda t: ZkGet(t, "/mine")) is ZkError.NO_NODE


async def test_a_silent_server_makes_outcomes_unknown_and_then_the_session_presumed_lost(
    own_zookeeper: ZooKeeperServer,
) -> None:
    peer = Peer()
    async with open_zookeeper(own_zookeeper.hosts, peer.deliver, session_timeout_ms=1_500) as store:
        peer.store = store
        await peer.connected()
        await peer.done(lambda t: ZkCreate(t, "/a", b""))
        own_zookeeper.pause()
        try:
            assert await peer.ask(lambda t: ZkSet(t, "/a", b"1", 0)) is ZkError.OUTCOME_UNKNOWN
            await peer.until(lambda event: event == ZkStateChanged(ZkState.SUSPENDED))
            await peer.until(lambda event: event == ZkStateChanged(ZkState.PRESUMED_LOST))
            states = [event.state for event in peer.heard if isinstance(event, ZkStateChanged)]
            assert states == [ZkState.CONNECTED, ZkState.SUSPENDED, ZkState.PRESUMED_LOST]
        finally:
            own_zookeeper.resume()
        peer.heard.clear()
        await peer.connected_again()
        peer.heard.clear()
        own_zookeeper.pause()  # again, before anything was asked
        try:
            await peer.until(lambda event: event == ZkStateChanged(ZkState.PRESUMED_LOST))
        finally:
            own_zookeeper.resume()


async def test_the_loop_stays_free_while_thousands_of_requests_wait_for_a_silent_server(
    own_zookeeper: ZooKeeperServer,
) -> None:
    peer = Peer()
    async with open_zookeeper(own_zookeeper.hosts, peer.deliver, session_timeout_ms=3_000) as store:
        peer.store = store
        await peer.connected()
        own_zookeeper.pause()
        try:
            store.submit([ZkChildren(number, "/") for number in range(1, 12_001)])
            await peer.until(lambda event: isinstance(event, ZkFailed) and event.ticket == 1)
            await peer.until(lambda event: isinstance(event, ZkFailed) and event.ticket == 10_000)
        finally:
            own_zookeeper.resume()
        answered = [event.ticket for event in peer.heard if isinstance(event, (ZkDone, ZkFailed))]
        assert sorted(answered) == list(range(1, 12_001))


class Withheld:
    """A way to a ZooKeeper on which the answers to requests can be withheld, and nothing else."""

    def __init__(self, hosts: str) -> None:
        self._host, _, self._port = hosts.partition(":")
        self.withholding = False
        self.answers: list[bytes] = []  # withheld
        self._news = trio.Event()
        self._client: trio.SocketStream | None = None

    async def pass_on(self, client: trio.SocketStream) -> None:
        self._client = client
        server = await trio.open_tcp_stream(self._host, int(self._port))
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with client, server, trio.open_nursery() as nursery:
                nursery.start_soon(self._answers, server)
                async for data in client:
                    await server.send_all(data)
                nursery.cancel_scope.cancel()

    async def _answers(self, server: trio.SocketStream) -> None:
        buffer, greeted = b"", False
        assert self._client is not None
        async for data in server:
            buffer += data
            while len(buffer) >= 4 and len(buffer) >= 4 + int.from_bytes(buffer[:4]):
                end = 4 + int.from_bytes(buffer[:4])
                frame, buffer = buffer[:end], buffer[end:]
                number = int.from_bytes(frame[4:8], signed=True)  # below 0: a ping, a watch
                if self.withholding and greeted and number > 0:
                    self.answers.append(frame)
                    self._news.set()
                else:
                    await self._client.send_all(frame)
                greeted = True

    async def withheld(self) -> None:
        """An answer is there."""
        with trio.fail_after(PATIENCE):
            while not self.answers:
                await self._news.wait()
                self._news = trio.Event()

    async def let_go(self) -> None:
        assert self._client is not None
        self.withholding, answers = False, self.answers
        self.answers = []
        for frame in answers:
            await self._client.send_all(frame)


@pytest.fixture
async def withheld(zookeeper: ZooKeeperServer) -> AsyncIterator[tuple[Withheld, Peer, Peer]]:
    """Such a way, a session that goes it, and one beside it."""
    hosts, _, chroot = zookeeper.fresh_chroot().partition("/")
    way, peer, other = Withheld(hosts), Peer(), Peer()
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, way.pass_on, [listener])
        near = f"127.0.0.1:{listener.socket.getsockname()[1]}/{chroot}"
        async with (
            open_zookeeper(near, peer.deliver, session_timeout_ms=2_000) as store,
            open_zookeeper(f"{hosts}/{chroot}", other.deliver) as beside,
        ):
            peer.store, other.store = store, beside
            await peer.connected()
            await other.connected()
            yield way, peer, other
        nursery.cancel_scope.cancel()


async def test_a_request_whose_answer_does_not_come_in_time_is_unknown_once_and_its_late_answer_no_news(
    withheld: tuple[Withheld, Peer, Peer],
) -> None:
    way, peer, _ = withheld
    await peer.done(lambda t: ZkCreate(t, "/a", b""))
    way.withholding = True
    assert await peer.ask(lambda t: ZkSet(t, "/a", b"1", 0)) is ZkError.OUTCOME_UNKNOWN
    await way.withheld()
    await way.let_go()
    assert (await peer.done(lambda t: ZkGet(t, "/a"))).data == b"1"
    assert [event.ticket for event in peer.heard if isinstance(event, (ZkDone, ZkFailed))] == [1, 2, 3]


async def test_a_node_that_appears_between_two_looks_is_read_and_watched(
    withheld: tuple[Withheld, Peer, Peer],
) -> None:
    way, peer, other = withheld
    assert peer.store is not None
    way.withholding = True
    ticket = peer.ticket()
    peer.store.submit([ZkGet(ticket, "/late", watch=True)])
    await way.withheld()  # that it is missing
    await other.done(lambda t: ZkCreate(t, "/late", b"1"))
    await way.let_go()
    answer = await peer.until(lambda event: isinstance(event, (ZkDone, ZkFailed)))
    assert isinstance(answer, ZkDone)
    assert (answer.ticket, answer.data) == (ticket, b"1")
    await other.done(lambda t: ZkSet(t, "/late", b"2", 0))
    await peer.changed("/late")


async def test_a_request_with_an_impossible_path_is_refused(open_store: OpenStore) -> None:
    async with connected_peer(open_store) as peer:
        assert await peer.ask(lambda t: ZkGet(t, "/a/../b")) is ZkError.REFUSED
        assert isinstance(peer.store, ZooKeeperBridge)

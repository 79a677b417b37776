"""What every znode store must do; run against the embedded one and against a real ZooKeeper."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio

from waltz_core.base.edge import (
    ZkChanged,
    ZkChildren,
    ZkCreate,
    ZkDelete,
    ZkDone,
    ZkError,
    ZkEvent,
    ZkFailed,
    ZkGet,
    ZkMulti,
    ZkRequest,
    ZkSet,
    ZkState,
    ZkStateChanged,
)
from waltz_trio.base.znodes import Deliver, ZnodeStore

PATIENCE = 20.0
OpenStore = Callable[[Deliver], AbstractAsyncContextManager[ZnodeStore]]


class Peer:
    """One session under test: everything it heard, and a way to wait for more."""

    def __init__(self) -> None:
        self.heard: list[ZkEvent] = []
        self._news = trio.Event()
        self.store: ZnodeStore | None = None
        self._ticket = 0

    def deliver(self, events: Sequence[ZkEvent]) -> None:
        self.heard.extend(events)
        self._news.set()
        self._news = trio.Event()

    async def until(self, wanted: Callable[[ZkEvent], bool]) -> ZkEvent:
        """The first event that was wanted."""
        with trio.fail_after(PATIENCE):
            while True:
                for event in self.heard:
                    if wanted(event):
                        return event
                await self._news.wait()

    async def connected(self) -> int:
        event = await self.until(lambda event: isinstance(event, ZkStateChanged))
        assert isinstance(event, ZkStateChanged)
        assert event.state is ZkState.CONNECTED
        assert event.session_id != 0
        return event.session_id

    async def connected_again(self) -> int:
        """The session after the next one that connects."""
        event = await self.until(lambda event: isinstance(event, ZkStateChanged) and event.state is ZkState.CONNECTED)
        assert isinstance(event, ZkStateChanged)
        return event.session_id

    def ticket(self) -> int:
        self._ticket += 1
        return self._ticket

    async def ask(self, make: Callable[[int], ZkRequest]) -> ZkDone | ZkError:
        """Submit one request and return its answer."""
        assert self.store is not None
        ticket = self.ticket()
        self.store.submit([make(ticket)])
        answer = await self.until(lambda event: isinstance(event, (ZkDone, ZkFailed)) and event.ticket == ticket)
        assert isinstance(answer, (ZkDone, ZkFailed))
        return answer if isinstance(answer, ZkDone) else answer.error

    async def done(self, make: Callable[[int], ZkRequest]) -> ZkDone:
        answer = await self.ask(make)
        assert isinstance(answer, ZkDone)
        return answer

    def changes(self) -> list[str]:
        return [event.path for event in self.heard if isinstance(event, ZkChanged)]

    async def changed(self, path: str) -> None:
        await self.until(lambda event: event == ZkChanged(path))


@asynccontextmanager
async def connected_peer(open_store: OpenStore) -> AsyncIterator[Peer]:
    peer = Peer()
    async with open_store(peer.deliver) as store:
        peer.store = store
        await peer.connected()
        yield peer


class ZnodeStoreSuite:
    """Subclasses provide the fixture `open_store`."""

    async def test_a_node_keeps_its_data_and_counts_its_versions(self, open_store: OpenStore) -> None:
        async with connected_peer(open_store) as peer:
            assert (await peer.done(lambda t: ZkCreate(t, "/a", b"one"))).path == "/a"
            done = await peer.done(lambda t: ZkSet(t, "/a", b"two", 0))
            assert done.stat is not None
            assert done.stat.version == 1
            found = await peer.done(lambda t: ZkGet(t, "/a"))
            assert found.data == b"two"
            assert found.stat is not None
            assert (found.stat.version, found.stat.cversion, found.stat.ephemeral_owner) == (1, 0, 0)

    async def test_null_data_is_not_empty_data(self, open_store: OpenStore) -> None:
        async with connected_peer(open_store) as peer:
            await peer.done(lambda t: ZkCreate(t, "/null", None))
            await peer.done(lambda t: ZkCreate(t, "/empty", b""))
            multi = (ZkCreate(0, "/null2", None), ZkSet(0, "/empty", None, 0))
            await peer.done(lambda t: ZkMulti(t, multi))
            assert (await peer.done(lambda t: ZkGet(t, "/null"))).data is None
            assert (await peer.done(lambda t: ZkGet(t, "/null2"))).data is None
            assert (await peer.done(lambda t: ZkGet(t, "/empty"))).data is None
            await peer.done(lambda t: ZkSet(t, "/empty", b"", 1))
            assert (await peer.done(lambda t: ZkGet(t, "/empty"))).data == b""
            await peer.done(lambda t: ZkSet(t, "/empty", None, 2))
            assert (await peer.done(lambda t: ZkGet(t, "/empty"))).data is None

    @pytest.mark.parametrize(
        ("make", "error"),
        [
            (lambda t: ZkGet(t, "/missing"), ZkError.NO_NODE),
            (lambda t: ZkGet(t, "/missing", watch=True), ZkError.NO_NODE),
            (lambda t: ZkChildren(t, "/missing"), ZkError.NO_NODE),
            (lambda t: ZkSet(t, "/missing", b"", -1), ZkError.NO_NODE),
            (lambda t: ZkDelete(t, "/missing"), ZkError.NO_NODE),
            (lambda t: ZkCreate(t, "/missing/child", b""), ZkError.NO_NODE),
            (lambda t: ZkCreate(t, "/here", b""), ZkError.NODE_EXISTS),
            (lambda t: ZkSet(t, "/here", b"", 7), ZkError.BAD_VERSION),
            (lambda t: ZkDelete(t, "/here/child", 7), ZkError.BAD_VERSION),
            (lambda t: ZkDelete(t, "/here"), ZkError.NOT_EMPTY),
            (lambda t: ZkCreate(t, "/here/mine/below", b""), ZkError.REFUSED),
        ],
    )
    async def test_what_cannot_be_done_says_why(
        self, open_store: OpenStore, make: Callable[[int], ZkRequest], error: ZkError
    ) -> None:
        async with connected_peer(open_store) as peer:
            await peer.done(lambda t: ZkCreate(t, "/here", b""))
            await peer.done(lambda t: ZkCreate(t, "/here/child", b""))
            await peer.done(lambda t: ZkCreate(t, "/here/mine", b"", ephemeral=True))
            assert await peer.ask(make) is error

    async def test_children_are_listed_and_their_coming_and_going_is_counted(self, open_store: OpenStore) -> None:
        async with connected_peer(open_store) as peer:
            await peer.done(lambda t: ZkCreate(t, "/p", None))
            for name in ("c", "a", "b"):
                await peer.done(lambda t, name=name: ZkCreate(t, f"/p/{name}", b""))  # type: ignore[misc]
            await peer.done(lambda t: ZkDelete(t, "/p/b"))
            found = await peer.done(lambda t: ZkChildren(t, "/p"))
            assert found.children == ("a", "c")
            assert found.stat is not None
            assert (found.stat.version, found.stat.cversion) == (0, 4)

    async def test_sequences_count_creations_and_skip_none_after_deletions(self, open_store: OpenStore) -> None:
        async with connected_peer(open_store) as peer:
            await peer.done(lambda t: ZkCreate(t, "/q", None))
            first = await peer.done(lambda t: ZkCreate(t, "/q/s_", b"", ephemeral=True, sequential=True))
            assert first.path == "/q/s_0000000000"
            await peer.done(lambda t: ZkDelete(t, first.path))
            second = await peer.done(lambda t: ZkCreate(t, "/q/s_", b"", ephemeral=True, sequential=True))
            assert second.path == "/q/s_0000000001"

    async def test_an_ephemeral_node_names_its_session_and_ends_with_it(self, open_store: OpenStore) -> None:
        async with connected_peer(open_store) as watcher:
            await watcher.done(lambda t: ZkCreate(t, "/servers", None))
            async with connected_peer(open_store) as peer:
                await peer.done(lambda t: ZkCreate(t, "/servers/me", b"", ephemeral=True))
                found = await watcher.done(lambda t: ZkGet(t, "/servers/me", watch=True))
                await watcher.done(lambda t: ZkChildren(t, "/servers", watch=True))
                assert found.stat is not None
                assert found.stat.ephemeral_owner == await peer.connected()
            await watcher.changed("/servers")
            await watcher.changed("/servers/me")
            assert await watcher.ask(lambda t: ZkGet(t, "/servers/me")) is ZkError.NO_NODE
            left = await watcher.done(lambda t: ZkChildren(t, "/servers"))
            assert left.stat is not None
            assert left.stat.cversion == 2

    async def test_a_watch_fires_once(self, open_store: OpenStore) -> None:
        async with connected_peer(open_store) as peer:
            await peer.done(lambda t: ZkCreate(t, "/w", b"0"))
            await peer.done(lambda t: ZkGet(t, "/w", watch=True))
            await peer.done(lambda t: ZkSet(t, "/w", b"1", 0))
            await peer.done(lambda t: ZkSet(t, "/w", b"2", 1))
            await peer.changed("/w")
            await peer.done(lambda t: ZkGet(t, "/w"))
            assert peer.changes() == ["/w"]

    async def test_a_watch_armed_twice_still_fires_once(self, open_store: OpenStore) -> None:
        async with connected_peer(open_store) as peer:
            await peer.done(lambda t: ZkCreate(t, "/w", b"0"))
            await peer.done(lambda t: ZkGet(t, "/w", watch=True))
            await peer.done(lambda t: ZkGet(t, "/w", watch=True))
            await peer.done(lambda t: ZkSet(t, "/w", b"1", 0))
            await peer.done(lambda t: ZkGet(t, "/w"))
            assert peer.changes() == ["/w"]

    async def test_a_watch_on_a_missing_node_tells_its_creation(self, open_store: OpenStore) -> None:
        async with connected_peer(open_store) as peer:
            assert await peer.ask(lambda t: ZkGet(t, "/later", watch=True)) is ZkError.NO_NODE
            async with connected_peer(open_store) as other:
                await other.done(lambda t: ZkCreate(t, "/later", b""))
            await peer.changed("/later")

    async def test_the_news_of_a_change_comes_before_the_changed_data(self, open_store: OpenStore) -> None:
        async with connected_peer(open_store) as peer, connected_peer(open_store) as other:
            await peer.done(lambda t: ZkCreate(t, "/n", b"0"))
            for number in range(20):
                await peer.done(lambda t: ZkGet(t, "/n", watch=True))
                value = b"%d" % (number + 1)
                await other.done(lambda t, v=value, n=number: ZkSet(t, "/n", v, n))  # type: ignore[misc]
                while (await peer.done(lambda t: ZkGet(t, "/n"))).data != value:
                    pass
                assert peer.changes() == ["/n"] * (number + 1)

    async def test_several_writes_are_all_or_none(self, open_store: OpenStore) -> None:
        async with connected_peer(open_store) as peer:
            await peer.done(lambda t: ZkCreate(t, "/m", b"0"))
            good = (ZkSet(0, "/m", b"1", 0), ZkCreate(0, "/m/c", b"c"), ZkCreate(0, "/m/d", b"d"), ZkDelete(0, "/m/d"))
            await peer.done(lambda t: ZkMulti(t, good))
            bad = (ZkSet(0, "/m", b"2", 1), ZkDelete(0, "/m/c"), ZkCreate(0, "/m/e", b""), ZkSet(0, "/m", b"3", 99))
            assert await peer.ask(lambda t: ZkMulti(t, bad)) is ZkError.BAD_VERSION
            found = await peer.done(lambda t: ZkChildren(t, "/m"))
            assert found.children == ("c",)
            assert found.stat is not None
            assert (found.stat.version, found.stat.cversion) == (1, 3)
            assert (await peer.done(lambda t: ZkGet(t, "/m"))).data == b"1"

    async def test_answers_come_in_the_order_of_the_requests(self, open_store: OpenStore) -> None:
        async with connected_peer(open_store) as peer:
            assert peer.store is not None
            count = 600  # more than may be under way at once
            peer.store.submit([ZkCreate(1000 + number, f"/k{number}", b"") for number in range(count)])
            await peer.until(lambda event: isinstance(event, ZkDone) and event.ticket == 1000 + count - 1)
            tickets = [event.ticket for event in peer.heard if isinstance(event, ZkDone)]
            assert tickets == list(range(1000, 1000 + count))

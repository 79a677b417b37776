"""The embedded znode store: the common suite, and what only a file can show."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.trio.znode_store_suite import OpenStore, Peer, ZnodeStoreSuite, connected_peer
from waltz_core.base.edge import ZkChildren, ZkCreate, ZkError, ZkGet, ZkSet, ZkState, ZkStateChanged
from waltz_core.base.errors import ConfigError, CorruptionError
from waltz_core.zookeeper.znode_tree import StoredTree
from waltz_trio.base.znodes import Deliver, ZnodeStore
from waltz_trio.zk.client import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    UnavailableError,
    open_znode_client,
)
from waltz_trio.zk.embedded import EmbeddedSession, EmbeddedZnodes, open_embedded_znodes, read_znodes
from waltz_trio.zk.store import open_znode_store


@pytest.fixture
async def znodes() -> AsyncIterator[EmbeddedZnodes]:
    async with open_embedded_znodes() as store:
        yield store


@pytest.fixture
def open_store(znodes: EmbeddedZnodes) -> OpenStore:
    return opener(znodes)


def opener(znodes: EmbeddedZnodes) -> OpenStore:
    @asynccontextmanager
    async def open_it(deliver: Deliver) -> AsyncIterator[ZnodeStore]:
        async with open_znode_store(znodes, deliver, session_timeout_ms=5_000) as store:
            yield store

    return open_it


class TestEmbeddedZnodes(ZnodeStoreSuite):
    """The common suite."""


async def test_nodes_survive_a_restart_and_ephemeral_ones_do_not(tmp_path: Path) -> None:
    async with open_embedded_znodes(tmp_path / "znodes") as znodes, connected_peer(opener(znodes)) as peer:
        await peer.done(lambda t: ZkCreate(t, "/a", None))
        await peer.done(lambda t: ZkCreate(t, "/a/b", b"data"))
        await peer.done(lambda t: ZkSet(t, "/a/b", b"more", 0))
        await peer.done(lambda t: ZkCreate(t, "/a/s_", b"", ephemeral=True, sequential=True))
    async with open_embedded_znodes(tmp_path / "znodes") as znodes, connected_peer(opener(znodes)) as peer:
        found = await peer.done(lambda t: ZkGet(t, "/a/b"))
        assert found.data == b"more"
        assert found.stat is not None
        assert found.stat.version == 1
        listed = await peer.done(lambda t: ZkChildren(t, "/a"))
        assert listed.children == ("b",)
        assert listed.stat is not None
        assert listed.stat.cversion == 3
        assert (await peer.done(lambda t: ZkGet(t, "/a"))).data is None
        fresh = await peer.done(lambda t: ZkCreate(t, "/a/s_", b"", ephemeral=True, sequential=True))
        assert fresh.path == "/a/s_0000000002"


async def test_what_was_answered_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "znodes"
    async with open_embedded_znodes(path) as znodes, connected_peer(opener(znodes)) as peer:
        await peer.done(lambda t: ZkCreate(t, "/a", b"\x00\xff"))
        stored = read_znodes(path)  # as another process would find it after kill -9
        assert isinstance(stored, StoredTree)
        assert [(node.path, node.data) for node in stored.znodes] == [("/", None), ("/a", b"\x00\xff")]


@pytest.mark.parametrize("at", [0, 10, 20, 60, -3])
async def test_a_damaged_file_is_refused_and_kept(tmp_path: Path, at: int) -> None:
    path = tmp_path / "znodes"
    async with open_embedded_znodes(path) as znodes, connected_peer(opener(znodes)) as peer:
        await peer.done(lambda t: ZkCreate(t, "/a", b"data"))
    damaged = bytearray(path.read_bytes())
    damaged[at] ^= 0x81
    path.write_bytes(damaged)
    with pytest.raises(CorruptionError):
        async with open_embedded_znodes(path):
            pass
    assert path.read_bytes() == damaged


async def test_a_file_has_one_user(tmp_path: Path) -> None:
    async with open_embedded_znodes(tmp_path / "znodes"):
        with pytest.raises(ConfigError, match="in use"):
            async with open_embedded_znodes(tmp_path / "znodes"):
                pass


async def test_an_interrupted_session_keeps_its_ephemerals_and_loses_its_watches(znodes: EmbeddedZnodes) -> None:
    peer = Peer()
    with znodes.session(peer.deliver) as session:
        peer.store = session
        number = await peer.connected()
        await peer.done(lambda t: ZkCreate(t, "/mine", b"", ephemeral=True))
        await peer.done(lambda t: ZkGet(t, "/mine", watch=True))
        peer.heard.clear()
        znodes.interrupt(session)
        await peer.until(lambda event: event == ZkStateChanged(ZkState.SUSPENDED))
        assert await peer.ask(lambda t: ZkGet(t, "/mine")) is ZkError.UNAVAILABLE
        znodes.resume(session)
        await peer.until(lambda event: event == ZkStateChanged(ZkState.CONNECTED, number))
        await peer.done(lambda t: ZkSet(t, "/mine", b"1", 0))
        assert peer.changes() == []


async def test_an_expired_session_loses_its_ephemerals_and_gets_a_new_number(znodes: EmbeddedZnodes) -> None:
    peer = Peer()
    with znodes.session(peer.deliver) as session:
        peer.store = session
        number = await peer.connected()
        await peer.done(lambda t: ZkCreate(t, "/mine", b"", ephemeral=True))
        peer.heard.clear()
        znodes.expire(session)
        await peer.until(lambda event: event == ZkStateChanged(ZkState.EXPIRED))
        assert await peer.connected_again() != number
        assert await peer.ask(lambda t: ZkGet(t, "/mine")) is ZkError.NO_NODE


async def test_an_abandoned_session_leaves_its_ephemerals_for_the_session_time_out(
    znodes: EmbeddedZnodes, autojump_clock: trio.testing.MockClock
) -> None:
    peer = Peer()
    session: EmbeddedSession
    with znodes.session(peer.deliver, session_timeout_ms=6_000) as session:
        peer.store = session
        await peer.connected()
        await peer.done(lambda t: ZkCreate(t, "/mine", b"", ephemeral=True))
        session.abandon()
        session.submit([ZkCreate(99, "/late", None)])  # what is killed asks nothing more
    before = trio.current_time()
    async with connected_peer(opener(znodes)) as watcher:
        assert await watcher.ask(lambda t: ZkGet(t, "/late")) is ZkError.NO_NODE
        assert (await watcher.done(lambda t: ZkGet(t, "/mine", watch=True))).data == b""
        await watcher.changed("/mine")
        assert await watcher.ask(lambda t: ZkGet(t, "/mine")) is ZkError.NO_NODE
    assert trio.current_time() - before == pytest.approx(6)  # of the mock clock


async def test_the_tool_client_raises_what_went_wrong(znodes: EmbeddedZnodes) -> None:
    async with open_znode_client(znodes) as client:
        assert await client.create("/a", b"1") == "/a"
        assert await client.get("/a") == (b"1", await client.exists("/a"))
        assert await client.exists("/b") is None
        with pytest.raises(NodeExistsError):
            await client.create("/a")
        with pytest.raises(NoNodeError, match="/b"):
            await client.get("/b")
        with pytest.raises(BadVersionError):
            await client.set("/a", b"", 5)
        await client.multi([ZkCreate(0, "/a/b", None), ZkSet(0, "/a", b"2", 0)])
        assert await client.children("/a") == ("b",)
        assert await client.walk("/a") == ["/a", "/a/b"]
        with pytest.raises(NotEmptyError):
            await client.delete("/a")
        await client.delete("/a/b")
        await client.delete("/a", 1)


async def test_a_lock_is_held_by_one_at_a_time(znodes: EmbeddedZnodes) -> None:
    order: list[str] = []
    waits: list[int] = []

    async def use(name: str, held: trio.Event, release: trio.Event) -> None:
        async with (
            open_znode_client(znodes) as client,
            client.lock("/lock", on_wait=lambda stat: waits.append(stat.ephemeral_owner)),
        ):
            order.append(name)
            held.set()
            await release.wait()
            order.append(name)

    first_held, first_release, second_held, second_release = (trio.Event() for _ in range(4))
    second_release.set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(use, "first", first_held, first_release)
        await first_held.wait()
        nursery.start_soon(use, "second", second_held, second_release)
        await trio.testing.wait_all_tasks_blocked()
        assert order == ["first"]
        first_release.set()
    assert order == ["first", "first", "second", "second"]
    assert len(waits) == 1


async def test_a_tool_gives_up_when_the_store_does_not_answer(
    znodes: EmbeddedZnodes, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_znode_client(znodes, connect_timeout_ms=2_000) as client:
        assert isinstance(client.store, EmbeddedSession)
        znodes.interrupt(client.store)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(UnavailableError, match="not reached within 2 s"):
            await client.get("/a")

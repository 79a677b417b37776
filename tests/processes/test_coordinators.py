"""Coordinators of several processes around one store: a real ZooKeeper, and the embedded one."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from tests.processes.zookeeper import ZooKeeperServer
from waltz_core.base.contract import Tickets
from waltz_core.base.edge import ZkChildren, ZkCreate, ZkDelete, ZkGet, ZkMulti, ZkSet
from waltz_core.base.ids import Endpoint
from waltz_core.cluster.coordinator import Coordinator
from waltz_core.cluster.notifications import (
    EndpointsChanged,
    Left,
    ManagedServer,
    Owned,
    OwnershipConfirmed,
    OwnershipDoubtful,
)
from waltz_core.zookeeper.paths import cluster_paths
from waltz_trio.base.background import background_nursery
from waltz_trio.base.pump import Pump, now_ms
from waltz_trio.base.znodes import ZnodeStore
from waltz_trio.zk.admin import create_cluster, read_cluster
from waltz_trio.zk.client import open_znode_client
from waltz_trio.zk.embedded import EmbeddedZnodes, open_embedded_znodes
from waltz_trio.zk.store import open_znode_store

pytestmark = pytest.mark.processes

PATHS = cluster_paths("/waltz")
REQUESTS = (ZkGet, ZkChildren, ZkCreate, ZkSet, ZkDelete, ZkMulti)
T = TypeVar("T")


class Process:
    """One coordinator on its own session."""

    def __init__(self, manages: ManagedServer | None) -> None:
        self.machine = Coordinator(
            PATHS.root,
            tickets=Tickets(),
            rng=random.Random(1),
            manages=manages,
            allocate_client_id=manages is None,
        )
        self.pump: Pump[Any, Any] = Pump(self.machine, self.perform)
        self.store: ZnodeStore | None = None
        self.told: list[Any] = []
        self._news = trio.Event()

    def perform(self, out: list[Any]) -> None:
        assert self.store is not None
        self.store.submit([item for item in out if isinstance(item, REQUESTS)])
        self.told += [item for item in out if not isinstance(item, REQUESTS)]
        self._news.set()
        self._news = trio.Event()

    async def until(self, kind: type[T], wanted: Callable[[T], bool] = lambda found: True) -> T:
        """Wait until the last of a kind is as wanted."""
        with trio.fail_after(60):
            while True:
                found = [item for item in self.told if isinstance(item, kind)]
                if found and wanted(found[-1]):
                    return found[-1]
                await self._news.wait()

    async def owns(self, count: int) -> None:
        await self.until(Owned, lambda found: len(found.partitions) == count)

    async def leave(self) -> None:
        out: list[Any] = []
        self.machine.leave(now_ms(), out)
        self.perform(out)
        await self.until(Left)


@asynccontextmanager
async def running(
    where: str | EmbeddedZnodes, port: int | None = None, timeout_ms: int = 20_000
) -> AsyncIterator[Process]:
    process = Process(None if port is None else ManagedServer(Endpoint("host", port)))
    async with (
        background_nursery() as nursery,
        open_znode_store(where, process.pump.post_all, session_timeout_ms=timeout_ms) as store,
    ):
        process.store = store
        nursery.start_soon(process.pump.run)
        yield process


@pytest.fixture(params=["zookeeper", "embedded"])
async def where(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str | EmbeddedZnodes]:
    if request.param == "zookeeper":
        hosts: str = request.getfixturevalue("zookeeper").fresh_chroot()
        await make_cluster(hosts)
        yield hosts
    else:
        async with open_embedded_znodes(tmp_path / "znodes") as znodes:
            await make_cluster(znodes)
            yield znodes


async def make_cluster(where: str | EmbeddedZnodes) -> None:
    async with open_znode_client(where) as zk:
        await create_cluster(zk, PATHS, "test", 6)


async def test_servers_come_and_go_and_a_client_sees_it(where: str | EmbeddedZnodes) -> None:
    async with running(where) as client, AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(running(where, port)) for port in (1, 2, 3)]
        for server in servers:
            await server.owns(2)
        await client.until(EndpointsChanged, lambda found: len(found.endpoints) == 3)
        await servers[0].leave()
        for server in servers[1:]:
            await server.owns(3)
        found = await client.until(EndpointsChanged, lambda found: len(found.endpoints) == 2)
        partitions = sorted(partition for _, owned in found.endpoints for partition, _ in owned)
        assert partitions == list(range(6))
        async with open_znode_client(where) as zk:
            dump = await read_cluster(zk, PATHS)
            left = sorted(server.machine.server_id or 0 for server in servers[1:])
            assert [server.server_id for server in dump.servers] == left
            assert dump.assignment.cversion == dump.assignment_cversion == 4


async def test_a_restarted_zookeeper_leaves_everything_as_it_was(own_zookeeper: ZooKeeperServer) -> None:
    await make_cluster(own_zookeeper.hosts)
    async with running(own_zookeeper.hosts, 1) as first, running(own_zookeeper.hosts, 2) as second:
        for server in (first, second):
            await server.owns(3)
        await trio.to_thread.run_sync(own_zookeeper.kill)
        await trio.to_thread.run_sync(own_zookeeper.start)
        async with running(own_zookeeper.hosts, 3) as third:
            for server in (first, second, third):
                await server.owns(2)


async def test_a_server_cut_off_for_longer_than_its_session_doubts_and_comes_back(
    own_zookeeper: ZooKeeperServer,
) -> None:
    await make_cluster(own_zookeeper.hosts)
    async with running(own_zookeeper.hosts, 1, timeout_ms=1_500) as server:
        await server.owns(6)
        own_zookeeper.pause()
        try:
            await server.until(OwnershipDoubtful)
        finally:
            own_zookeeper.resume()
        await server.until(OwnershipConfirmed)
        assert server.machine.server_id == 1
        await server.owns(6)

"""One storage directory in the hands of our node, then of the original's, then of ours again."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from tests.interop.cluster import Kind, MixedCluster
from tests.interop.scenarios import Outcome, Scene
from tests.witness.log import read_replica
from waltz_core.base.ids import Endpoint, make_req_id
from waltz_core.base.log import Record
from waltz_core.wire import admin_messages as admin
from waltz_core.zookeeper.paths import cluster_paths
from waltz_trio.config.config import Config, tls_settings
from waltz_trio.net.tls import ClientTls
from waltz_trio.ports.admin import RefusedError, open_admin
from waltz_trio.ports.storage import StoragePort, open_storage_port
from waltz_trio.zk.admin import read_store_params
from waltz_trio.zk.client import open_znode_client

OURS, JAVA = Kind.OURS, Kind.JAVA
NODE = "storage-0"
_SEGMENT = 20_000  # bytes: several segments, each with checkpoints of its index
_BATCH = 50


class Node:
    """The one storage node, whoever runs it, and what its log must hold."""

    def __init__(self, cluster: MixedCluster) -> None:
        self.cluster = cluster
        self.expected: list[Record] = []
        ports = cluster.addresses[NODE]
        self._data = Endpoint("127.0.0.1", ports["storage.port"])
        self._admin = Endpoint("127.0.0.1", ports["storage.admin.port"])
        self._tls = ClientTls(tls_settings(Config({}), "ssl."), lambda text: None)

    def hand_over(self, kind: Kind, *, kill: bool) -> None:
        """The other program opens the directory, after an orderly end or after `kill -9`."""
        if kill:
            self.cluster.children[NODE].kill()
        else:
            self.cluster.stop(NODE)
        self.cluster.assign(NODE, kind)
        self.cluster.start(NODE)

    def run(self, session_id: int, work: Callable[[StoragePort], Awaitable[None]]) -> None:
        """Do something as a server of one store session does."""

        async def connected() -> None:
            async with self._open(session_id) as port:
                await work(port)

        trio.run(connected)

    @asynccontextmanager
    async def _open(self, session_id: int) -> AsyncIterator[StoragePort]:
        key = await self._key()
        with trio.fail_after(60):
            async with open_storage_port(self._data, self._tls, key=key, num_partitions=1) as port:
                port.session_id, port.partition_id = session_id, 0
                yield port

    async def _key(self) -> bytes:
        async with open_znode_client(self.cluster.zookeeper, session_timeout_ms=6000) as client:
            return (await read_store_params(client, cluster_paths("/cluster"))).key

    async def append(self, port: StoragePort, count: int, label: str) -> None:
        """Continue the log by records that say where they come from."""
        for first in range(len(self.expected), len(self.expected) + count, _BATCH):
            records = tuple(_record(number, label) for number in range(first, first + _BATCH))
            await port.append(records)
            self.expected += records

    async def truncate(self, port: StoragePort, last: int) -> None:
        """Cut the log behind a transaction."""
        assert await port.truncate(last) == last
        del self.expected[last + 1 :]

    async def check(self, port: StoragePort) -> None:
        """The node knows the whole log, byte by byte, and so does the disk."""
        assert await port.max_transaction_id() == len(self.expected) - 1
        async with open_admin(self._admin, self._tls, key=await self._key(), num_partitions=1) as client:
            answer = await client.call(lambda seq: admin.RecordListRequest(seq, 0, 0, len(self.expected) + 1))
        assert isinstance(answer, admin.RecordListResponse)
        assert list(answer.records) == self.expected

    def check_files(self) -> None:
        """The same by a reader of the files that knows nothing of either program."""
        entries = read_replica(self.cluster.directory / NODE, 0)
        found = [(entry.transaction_id, entry.req_id, entry.header, entry.data) for entry in entries]
        assert found == [(one.transaction_id, one.req_id, one.header, one.data) for one in self.expected]


def _record(number: int, label: str) -> Record:
    data = f"{label} {number} ".encode() * (1 + number % 5)
    return Record(number, make_req_id(7, 1, 0, number), number % 3, data, _signed(zlib.crc32(data)))


def _signed(checksum: int) -> int:
    return checksum - (1 << 32) if checksum >> 31 else checksum


def there_and_back(scene: Scene) -> Outcome:
    """Ours → 0.13.2, which truncates, → ours: every record is there, older sessions stay shut out."""
    appended = sum(_there_and_back(scene, kill=kill) for kill in (False, True))
    return Outcome(appended, "4 hand-overs in order and 4 after kill -9")


def _there_and_back(scene: Scene, *, kill: bool) -> int:
    settings = {"zookeeper.sessionTimeout": 6000, "storage.segment.size.threshold": _SEGMENT}
    with scene.cluster(storage=(OURS,), server=(), settings=settings) as cluster:
        node = Node(cluster)
        node.run(0, partial(_first, node))
        node.hand_over(JAVA, kill=kill)
        node.run(1, partial(_truncated, node))
        node.hand_over(OURS, kill=kill)
        node.run(3, partial(_again, node))
        node.check_files()
        node.hand_over(OURS, kill=kill)
        node.run(2, _shut_out)
        node.run(3, node.check)
        node.hand_over(JAVA, kill=kill)
        node.run(3, node.check)
        return len(node.expected)


async def _first(node: Node, port: StoragePort) -> None:
    await port.truncate(-1)
    await port.set_low_water_mark(-1)
    await node.append(port, 1500, "ours")
    await port.set_low_water_mark(1499)
    await node.append(port, 100, "ours, not marked")
    await node.check(port)


async def _truncated(node: Node, port: StoragePort) -> None:
    await node.check(port)
    await node.truncate(port, 1519)
    await port.set_low_water_mark(1519)
    await node.append(port, 500, "theirs")
    await node.truncate(port, 1799)
    await node.append(port, 50, "theirs, after a second truncation")
    await node.check(port)


async def _again(node: Node, port: StoragePort) -> None:
    await node.check(port)
    await node.truncate(port, 1830)
    await port.set_low_water_mark(1830)
    await node.append(port, 200, "ours again")
    await node.check(port)


async def _shut_out(port: StoragePort) -> None:
    with pytest.raises(RefusedError):
        await port.max_transaction_id()

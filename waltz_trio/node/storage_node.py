"""The storage process: data directory, ports, the machine, HTTP, metrics. Protocol and rules live in the core."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import attrs
import trio

from waltz_core.base.edge import Level, Port
from waltz_core.base.errors import ClusterError, ConfigError
from waltz_core.storage.effects import (
    DiskBatch,
    DiskEvent,
    DiskList,
    DiskRead,
    DiskSpace,
    StorageFailed,
    StorageReady,
    StorageStopped,
)
from waltz_core.storage.node import StorageNode
from waltz_core.storage.replica import State
from waltz_core.zookeeper.paths import cluster_paths
from waltz_trio.config.config import Config
from waltz_trio.net.driver import NodeDriver
from waltz_trio.net.listener import bind
from waltz_trio.net.tls import ServerTls
from waltz_trio.node.process import Kind, NodeProcess
from waltz_trio.node.settings import NodeSettings
from waltz_trio.node.storage_settings import StorageSettings, storage_settings
from waltz_trio.storage.disk import Disk
from waltz_trio.storage.files import Files
from waltz_trio.zk.admin import read_store_params
from waltz_trio.zk.client import open_znode_client
from waltz_trio.zk.embedded import EmbeddedZnodes

GROUP = "waltz-storage"
_ROOM_EVERY = 2.0  # seconds between looks at the room left on the disk
_SHOWN_MAX = 20  # requests that wait for the disk, in one line


class StorageProcess(NodeProcess):
    """One storage node: a data directory, a port for servers, a port for administration."""

    KIND = Kind("storage.", GROUP)

    def __init__(self, config: Config, znodes: EmbeddedZnodes | None = None, *, name: str = "") -> None:
        """As of every process."""
        super().__init__(config, znodes, name=name)
        self.port: int | None = None  # as bound
        self.admin_port: int | None = None
        self.disk: Disk | None = None
        self._settings: StorageSettings | None = None
        self._files: Files | None = None
        self._machine: StorageNode | None = None
        self._killed = False
        self._ready = trio.Event()
        self._shown: frozenset[int] = frozenset()
        self._gauges: dict[str, object] = {}

    # ---- start and end ---------------------------------------------------------------------------

    def _parse(self, local: str) -> NodeSettings:
        self._settings = storage_settings(self.config, self._warn, local)
        return self._settings.node

    @property
    def _parsed(self) -> StorageSettings:
        assert self._settings is not None
        return self._settings

    async def _make_machine(self) -> StorageNode:
        settings = self._parsed
        key, count = await self._cluster(settings.node)
        files = self._files = Files(settings.directory, open_files_max=settings.open_files_max(count))
        self.disk = Disk(files, self._post_all, self._end)
        size, _ = files.room()
        self._machine = StorageNode(
            attrs.evolve(
                settings.machine,
                key=key,
                partition_count=count,
                shown_directory=str(files.directory),
                reserve_bytes=settings.reserve_bytes(size),
            )
        )
        self.report(Level.INFO, f"opening {files.directory}: cluster {UUID(bytes=key)}, {count} partitions")
        return self._machine

    async def _cluster(self, node: NodeSettings) -> tuple[bytes, int]:
        """Cluster key and number of partitions, from ZooKeeper."""
        try:
            async with open_znode_client(
                self._zookeeper(), session_timeout_ms=node.session_timeout_ms, security=node.security
            ) as client:
                params = await read_store_params(client, cluster_paths(node.root))
        except ClusterError as error:
            raise ConfigError(f"the cluster cannot be read from ZooKeeper: {error}") from error
        return params.key, params.num_partitions

    def _plugins(self) -> Mapping[type, Callable[[Any], None]]:
        return {
            DiskBatch: self._offer,
            DiskRead: self._perform,
            DiskList: self._perform,
            StorageReady: lambda effect: self._ready.set(),
            StorageFailed: self._on_failed,
            StorageStopped: lambda effect: self._end(""),
        }

    def _background(self) -> Iterable[Callable[[], Awaitable[object]]]:
        return (self._watch_room,)

    @asynccontextmanager
    async def _serving(self, driver: NodeDriver, tls: ServerTls, nursery: trio.Nursery) -> AsyncIterator[None]:
        """Open the ports once the directory is open; a directory that cannot be used ends the process instead."""
        async with trio.open_nursery() as waiting:

            async def until(event: trio.Event) -> None:
                await event.wait()
                waiting.cancel_scope.cancel()

            waiting.start_soon(until, self._ready)
            waiting.start_soon(until, driver.ended)
        if not driver.ended.is_set():
            self._listen(driver, tls)
            self._start_http(nursery, self._parsed.node)
        elif driver.end_reason:
            raise ConfigError(f"{self._parsed.directory}: {driver.end_reason}")
        yield

    def _listen(self, driver: NodeDriver, tls: ServerTls) -> None:
        settings = self._parsed
        host = settings.node.host
        data = bind(host, settings.port, "storage.port")
        self.port = data.getsockname()[1]
        driver.serve(Port.STORAGE, data, tls)
        admin = bind(host, settings.admin_port, "storage.admin.port")
        self.admin_port = admin.getsockname()[1]
        driver.serve(Port.ADMIN, admin, tls)
        self.report(Level.INFO, f"serving on {host}:{self.port}, administration on {host}:{self.admin_port}")

    def cancel(self) -> None:
        """End without waiting for the machine; what it asked the disk to do is still done."""
        awaited = [] if self._machine is None else self._machine.awaited()
        if awaited:
            shown = ", ".join(awaited[:_SHOWN_MAX])
            self.report(Level.WARNING, f"the disk has not done yet what {len(awaited)} requests wait for: {shown}")
        super().cancel()

    def _instance(self) -> str:
        return f"{self._parsed.node.host}:{self.port or self._parsed.port}"

    def _abandon(self) -> None:
        self._killed = True
        if self.disk is not None:
            self.disk.abandon()

    async def _let_go(self) -> None:
        disk, self.disk = self.disk, None
        if disk is None:
            return
        with trio.CancelScope(shield=True):
            if self._killed:
                await disk.wait_abandoned()
            else:
                await disk.close()

    async def _watch_room(self) -> None:
        files = self._files
        assert files is not None
        while True:
            assert self._driver is not None
            try:
                _, free = await trio.to_thread.run_sync(files.room)
            except OSError as error:
                self.report(Level.WARNING, f"{files.directory}: the room left is not known: {error.strerror}")
            else:
                self._driver.post(DiskSpace(free))
            await trio.sleep(_ROOM_EVERY)

    # ---- effects ---------------------------------------------------------------------------------

    def _perform(self, effect: DiskRead | DiskList) -> None:
        if self.disk is not None:
            self.disk.perform(effect)

    def _offer(self, effect: DiskBatch) -> None:
        if self.disk is not None:
            self.disk.offer(effect)

    def _afterwards(self) -> Callable[[], None]:
        return self._settle

    def _settle(self) -> None:
        if self.disk is not None:
            self.disk.settle()

    def _on_failed(self, effect: StorageFailed) -> None:
        self._end(effect.reason)

    def _post_all(self, events: Sequence[DiskEvent]) -> None:
        assert self._driver is not None
        self._driver.deliver(events)

    # ---- health and metrics ----------------------------------------------------------------------

    def health(self) -> tuple[bool, dict[str, object]]:
        """Healthy while every assigned partition is in service; the original's is always true."""
        machine = self._machine
        healthy = machine is not None and machine.healthy
        partitions = (
            {}
            if machine is None
            else {
                str(partition_id): state.value if state is State.OPEN else f"{state.value}: {reason}"
                for partition_id, state, reason in machine.conditions()
            }
        )
        message = '{"storage":"true"}' if healthy else '{"storage":"false"}'
        found = {"healthy": healthy, "message": message, "partitions": partitions}
        return healthy, {"storage-health-check": found}

    def _register(self) -> None:
        """Metrics of the process; those of partitions come and go with their assignment."""
        shown = "waltz-storage-num-partitions", "waltz-storage-partition-ids", "waltz-version-id"
        for name in (*shown, "scrub-pass-count", "no-room"):
            self._register_gauge(f"{GROUP}.{name}")
        gauge = self.registry.gauge
        gauge(f"{GROUP}.sync-count", lambda: self.disk.statistics.syncs if self.disk else 0)
        gauge(f"{GROUP}.sync-time-ms", lambda: round(self.disk.statistics.sync_ms, 3) if self.disk else 0)
        gauge(f"{GROUP}.write-count", lambda: self.disk.statistics.batches if self.disk else 0)
        gauge(f"{GROUP}.write-group-count", lambda: self.disk.statistics.groups if self.disk else 0)
        gauge(f"{GROUP}.write-in-place-count", lambda: self.disk.statistics.in_place if self.disk else 0)
        self.registry.on_read(self._refresh)

    def _register_gauge(self, name: str) -> None:
        self.registry.gauge(name, lambda: self._gauges.get(name))

    def _refresh(self) -> None:
        """Before each reading: take the machine's figures."""
        machine = self._machine
        if machine is None:
            return
        self._gauges = machine.gauges()
        assigned = frozenset(partition_id for partition_id, _, _ in machine.conditions())
        for gone in self._shown - assigned:
            self.registry.remove(f"{GROUP}.partition-{gone}.")
        groups = {f"{GROUP}.partition-{new}" for new in assigned - self._shown}
        for name in self._gauges:
            if name.rpartition(".")[0] in groups:
                self._register_gauge(name)
        self._shown = assigned
        for name, count in machine.counters().items():
            if name.endswith(".append"):
                self.registry.meter(name).mark_to(count)
            else:
                self.registry.counter(name).set(count)

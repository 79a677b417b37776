"""The storage process: disk, ports, the machine, HTTP, metrics. Rules live in the core."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import trio

from waltz_core.cluster.paths import cluster_paths
from waltz_core.edge import Level, Port
from waltz_core.ids import Endpoint
from waltz_core.storage.config import StorageConfig
from waltz_core.storage.effects import (
    DiskBatch,
    DiskEvent,
    DiskList,
    DiskRead,
    Stop,
    StorageFailed,
    StorageReady,
    StorageStopped,
)
from waltz_core.storage.node import StorageNode
from waltz_trio.cluster_admin import read_store_params
from waltz_trio.config import Config, net_limits, tls_settings
from waltz_trio.graphite import report_to_graphite
from waltz_trio.http import HttpServer, endpoints, version
from waltz_trio.log import reporter, warn_once
from waltz_trio.metrics import Registry
from waltz_trio.net.listener import bind, canonical_host, local_host
from waltz_trio.net.tls import server_context
from waltz_trio.process import NodeDriver
from waltz_trio.pump import now_ms
from waltz_trio.storage.disk import Disk
from waltz_trio.storage.files import Files
from waltz_trio.zk.background import background_nursery
from waltz_trio.zk.client import open_znode_client
from waltz_trio.zk.embedded import EmbeddedZnodes

_REFRESH = 5.0  # seconds between readings of the machine's counters, the tick of the moving rates


class StorageProcess:
    """One storage node. `run` opens the data directory, binds its ports, and returns when the machine has ended.

    `shutdown` asks for an orderly end; `kill` ends as `kill -9` would.
    """

    def __init__(self, config: Config, znodes: EmbeddedZnodes | None = None, *, name: str = "storage") -> None:
        self.name = name
        self.config = config
        self.report = reporter(name)
        self.registry = Registry(trio.current_time)
        self.endpoint: Endpoint | None = None  # by which the cluster knows it, once bound
        self.machine: StorageNode | None = None
        self.disk: Disk | None = None
        self.http_port: int | None = None
        self._znodes = znodes
        self._driver: NodeDriver | None = None
        self._scope = trio.CancelScope()
        self._ready = trio.Event()
        self._shown: frozenset[str] = frozenset()

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> str:
        """Serve until the end; returns why the machine could not go on (empty after an orderly end).

        Raises:
            ConfigError: a key is missing, a file unreadable, a port or the directory taken.
        """
        config = self.config
        reason = ""
        with self._scope:
            warn = warn_once(self.report)
            config.warn_unknown(warn)
            context = server_context(tls_settings(config, "storage.ssl."))
            host = config.text_or_none("storage.host") or local_host()
            directory = Path(config.text("storage.directory"))
            data_port = bind(host, config.number("storage.port"), "storage.port")
            admin_port = bind(host, config.number("storage.admin.port"), "storage.admin.port")
            self.endpoint = config.endpoint_or_none("storage.advertisedEndpoint") or Endpoint(
                canonical_host(), data_port.getsockname()[1]
            )
            try:
                machine = self.machine = StorageNode(await self._storage_config(directory))
                disk = self.disk = Disk(Files(directory), self._on_disk)
            except BaseException:
                data_port.close()
                admin_port.close()
                raise
            driver = self._driver = self._make_driver(machine, disk)
            try:
                async with background_nursery() as nursery:
                    await nursery.start(driver.run)
                    await self._opened()
                    if not driver.ended.is_set():
                        driver.serve(Port.STORAGE, data_port, context)
                        driver.serve(Port.ADMIN, admin_port, context)
                        self.report(Level.INFO, f"serving {directory} on {host}:{data_port.getsockname()[1]}")
                        self._start_http(nursery, host)
                        nursery.start_soon(self._keep_rates)
                        nursery.start_soon(report_to_graphite, config, "storage.graphite.", self.registry, self.report)
                        task_status.started()
                        await driver.ended.wait()
                    reason = driver.end_reason
                    await driver.stop()
            finally:
                data_port.close()
                admin_port.close()
                if not driver.killed:
                    with trio.CancelScope(shield=True):
                        await disk.close()
        return reason

    def shutdown(self) -> None:
        """Ask for an orderly end: what is written lazily is written, then everything is closed."""
        if self._driver is not None:
            self._driver.post(Stop())

    def kill(self) -> None:
        """End as `kill -9` would: sockets are reset, nothing is written, synced or told."""
        if self._driver is not None:
            self._driver.kill()
        if self.disk is not None:
            self.disk.abandon()
        self._scope.cancel()

    def cancel(self) -> None:
        """End without waiting for the machine."""
        self._scope.cancel()

    def health(self) -> tuple[bool, dict[str, object]]:
        """Whether the data directory is open and every assigned partition in service."""
        machine = self.machine
        healthy = machine is not None and machine.healthy
        partitions = {}
        if machine is not None:
            partitions = {str(p): {"state": state.value, "reason": why} for p, state, why in machine.conditions()}
        message = '{"storage":"%s"}' % ("true" if healthy else "false")  # Java: JSON inside a string
        found = {"healthy": healthy, "message": message, "partitions": partitions}
        return healthy, {"storage-health-check": found}

    # ---- start -----------------------------------------------------------------------------------

    async def _storage_config(self, directory: Path) -> StorageConfig:
        """Cluster key and number of partitions come from ZooKeeper, once."""
        config = self.config
        paths = cluster_paths(config.text("cluster.root").rstrip("/"))
        async with open_znode_client(
            self._znodes or config.text("zookeeper.connectString"),
            session_timeout_ms=config.number("zookeeper.sessionTimeout"),
        ) as zk:
            store = await read_store_params(zk, paths)
        return StorageConfig(
            store.key,
            store.num_partitions,
            segment_size_threshold=config.number("storage.segment.size.threshold"),
            shown_directory=str(directory),
            wall_clock_offset_ms=int(time.time() * 1000) - now_ms(),
            frame_size_max=config.number_or_none("network.frameSizeMax") or 1 << 30,
            version=version() or "unknown",
        )

    def _make_driver(self, machine: StorageNode, disk: Disk) -> NodeDriver:
        driver = NodeDriver(
            machine,
            name=self.name,
            report=self.report,
            limits=net_limits(self.config),
            recorded_batches=self.config.number("debug.flightRecorder"),
            plugins={
                DiskBatch: disk.perform,
                DiskRead: disk.perform,
                DiskList: disk.perform,
                StorageReady: lambda effect: self._ready.set(),
                StorageFailed: lambda effect: driver.end(effect.reason),
                StorageStopped: lambda effect: driver.end(),
            },
        )
        return driver

    async def _opened(self) -> None:
        """Wait until the data directory is open, or cannot be."""
        assert self._driver is not None
        async with trio.open_nursery() as nursery:

            async def until(event: trio.Event) -> None:
                await event.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(until, self._ready)
            nursery.start_soon(until, self._driver.ended)

    def _start_http(self, nursery: trio.Nursery, host: str) -> None:
        self.registry.on_read(self._refresh)
        port = self.config.number_or_none("storage.jetty.port")
        if port is None:
            return
        http = HttpServer(endpoints("waltz-storage", self.registry, self.health))
        where = self.config.text_or_none("storage.jetty.host") or host
        self.http_port = http.listen(where, port, "storage.jetty.port")
        nursery.start_soon(http.run)

    async def _keep_rates(self) -> None:
        while True:
            await trio.sleep(_REFRESH)
            self.registry.refresh()

    def _on_disk(self, events: Sequence[DiskEvent]) -> None:
        assert self._driver is not None
        self._driver.post_all(events)

    # ---- metrics ---------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """The machine's gauges and counters under the original's names; those of partitions come and go."""
        assert self.machine is not None
        assert self.disk is not None
        gauges = {
            **self.machine.gauges(),
            "waltz-storage.disk-syncs": self.disk.statistics.syncs,
            "waltz-storage.disk-groups": self.disk.statistics.groups,
        }
        for name in self._shown - gauges.keys():
            self.registry.remove(name)
        for name in gauges.keys() - self._shown:
            self.registry.gauge(name, partial(self._gauge, name))
        self._shown = frozenset(gauges)
        for name, count in self.machine.counters().items():
            self.registry.counter(name).count = count

    def _gauge(self, name: str) -> object:
        assert self.machine is not None
        assert self.disk is not None
        if name == "waltz-storage.disk-syncs":
            return self.disk.statistics.syncs
        if name == "waltz-storage.disk-groups":
            return self.disk.statistics.groups
        return self.machine.gauges().get(name)

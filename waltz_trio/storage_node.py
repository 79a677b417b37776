"""The storage process: data directory, ports, the machine, HTTP, metrics. Protocol and rules live in the core."""

from __future__ import annotations

import resource
import ssl
from pathlib import Path
from typing import Any
from uuid import UUID

import trio

from waltz_core.access.roles import Roles
from waltz_core.base.edge import Level, Port, Shutdown, WallClock
from waltz_core.base.errors import ClusterError, ConfigError
from waltz_core.storage.config import StorageConfig
from waltz_core.storage.effects import (
    DiskBatch,
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
from waltz_trio.cluster_admin import read_store_params
from waltz_trio.config import Config, net_limits, tls_settings
from waltz_trio.graphite import report_to_graphite
from waltz_trio.http import HttpServer, endpoints, version
from waltz_trio.log import reporter, warn_once
from waltz_trio.metrics import Registry
from waltz_trio.net.listener import bind, local_host
from waltz_trio.net.tls import ClientTls, server_context
from waltz_trio.process import NodeDriver, places_of
from waltz_trio.pump import wall_offset_ms
from waltz_trio.role_file import access_warning, certificates_asked, roles_of
from waltz_trio.storage.disk import Disk
from waltz_trio.storage.files import Files
from waltz_trio.zk.background import background_nursery
from waltz_trio.zk.client import open_znode_client
from waltz_trio.zk.embedded import EmbeddedZnodes
from waltz_trio.zk.security import zookeeper_security

GROUP = "waltz-storage"
_ROOM_EVERY = 2.0  # seconds between looks at the room left on the disk
_SHOWN_MAX = 20  # requests that wait for the disk, in one line
_REFRESH = 5.0  # seconds between readings of the machine's counters, the tick of the moving rates


class StorageProcess:
    """One storage node. `run` reads the cluster's key, opens the directory, serves, and returns at the end.

    `shutdown` asks for an orderly end; `kill` ends as `kill -9` would.
    """

    def __init__(self, config: Config, znodes: EmbeddedZnodes | None = None, *, name: str = "storage") -> None:
        """Prepare; nothing is read or bound before `run`.

        Args:
            config: see docs/configuration.md.
            znodes: a store inside this process instead of the ZooKeeper that the configuration names.
            name: of the log lines.
        """
        self.name = name
        self.config = config
        self.report = reporter(name)
        self.registry = Registry(trio.current_time)
        self.port: int | None = None  # as bound
        self.admin_port: int | None = None
        self.http_port: int | None = None
        self.disk: Disk | None = None
        self._znodes = znodes
        self._driver: NodeDriver | None = None
        self._machine: StorageNode | None = None
        self._scope = trio.CancelScope()
        self._killed = False
        self._ready = trio.Event()
        self._shown: frozenset[int] = frozenset()
        self._gauges: dict[str, object] = {}

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> str:
        """Serve until the end; returns why the machine could not go on (empty after an orderly end).

        Raises:
            ConfigError: a key is missing, a file unreadable, a port taken, the directory in use or absent.
        """
        reason = ""
        with self._scope:
            context, client_tls, roles = self._check()
            key, count = await self._cluster()
            try:
                files = Files(Path(self.config.text("storage.directory")), open_files_max=self._open_files_max(count))
                async with background_nursery() as nursery:
                    driver = await self._start(nursery, files, key, count, client_tls, roles)
                    await self._listen(nursery, driver, context, task_status)
                    await driver.ended.wait()
                    reason = driver.end_reason
                    await driver.stop()
            finally:
                await self._let_go()
        return reason

    def shutdown(self) -> None:
        """Ask for an orderly end: write what is lazily written, then let go of everything."""
        if self._driver is not None:
            self._driver.post(Shutdown())

    def kill(self) -> None:
        """End as `kill -9` would: sockets are reset, nothing is flushed, synced or told."""
        self._killed = True
        if self._driver is not None:
            self._driver.kill()
        if self.disk is not None:
            self.disk.abandon()
        self._scope.cancel()

    def cancel(self) -> None:
        """End without waiting for the machine; what it asked the disk to do is still done."""
        awaited = [] if self._machine is None else self._machine.awaited()
        if awaited:
            shown = ", ".join(awaited[:_SHOWN_MAX])
            self.report(Level.WARNING, f"the disk has not done yet what {len(awaited)} requests wait for: {shown}")
        self._scope.cancel()

    async def _let_go(self) -> None:
        disk, self.disk = self.disk, None
        if disk is None:
            return
        with trio.CancelScope(shield=True):
            if self._killed:
                await disk.wait_abandoned()
            else:
                await disk.close()

    # ---- start -----------------------------------------------------------------------------------

    def _check(self) -> tuple[ssl.SSLContext, ClientTls, Roles]:
        """What can be found wrong with the configuration before anything is touched."""
        config = self.config
        config.warn_unknown(warn_once(self.report))
        for key in ("storage.port", "storage.admin.port"):
            config.number(key)
        config.text("storage.directory")
        tls = tls_settings(config, "storage.ssl.")
        # It dials others for repairs.
        context, client_tls, roles = server_context(tls), ClientTls(tls, warn_once(self.report)), roles_of(config, tls)
        if self._znodes is None and (warning := access_warning(tls, roles)):  # a cluster in one process is for trying
            self.report(Level.WARNING, warning)
        return context, client_tls, roles

    def _open_files_max(self, partition_count: int) -> int:
        """Segments kept open per partition, two files each, and its side files; within what a process may open."""
        capacity = self.config.number("storage.segment.cache.capacity")
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(16, min(partition_count * (2 * (capacity + 1) + 3), soft // 2))

    async def _cluster(self) -> tuple[bytes, int]:
        """Cluster key and number of partitions, from ZooKeeper."""
        where = self._znodes or self.config.text("zookeeper.connectString")
        timeout = self.config.number("zookeeper.sessionTimeout")
        paths = cluster_paths(self.config.text("cluster.root").rstrip("/"))
        try:
            async with open_znode_client(
                where, session_timeout_ms=timeout, security=zookeeper_security(self.config)
            ) as client:
                params = await read_store_params(client, paths)
        except ClusterError as error:
            raise ConfigError(f"the cluster cannot be read from ZooKeeper: {error}") from error
        return params.key, params.num_partitions

    async def _start(
        self, nursery: trio.Nursery, files: Files, key: bytes, count: int, client_tls: ClientTls, roles: Roles
    ) -> NodeDriver:
        config = self.config
        offset = wall_offset_ms()
        machine = StorageNode(
            StorageConfig(
                key=key,
                partition_count=count,
                segment_size_threshold=config.number("storage.segment.size.threshold"),
                shown_directory=str(files.directory),
                wall_clock_offset_ms=offset,
                frame_size_max=config.number_or_none("network.frameSizeMax") or 1 << 30,
                version=version() or "unknown",
                scrub_bytes_per_s=config.number("storage.scrub.rate"),
                scrub_pause_ms=config.number("storage.scrub.pause"),
                reserve_bytes=self._reserve(files),
                roles=roles,
                certificates_asked=certificates_asked(tls_settings(config, "storage.ssl.")),
                greeting_ms=config.number("network.handshakeTimeout"),
                places=places_of(config),
                gathered_max=config.number_or_none("network.gatheredMax") or 2 << 30,
                queue_bytes_max=config.number("storage.queueBytesMax"),
                parked_bytes_max=config.number("storage.parkedBytesMax"),
            )
        )
        driver = NodeDriver(
            machine,
            name=self.name,
            client_tls=client_tls,
            roles=roles,
            report=self.report,
            limits=net_limits(config),
            recorded_batches=config.number("debug.flightRecorder"),
            plugins={
                DiskBatch: self._perform,
                DiskRead: self._perform,
                DiskList: self._perform,
                StorageReady: lambda effect: self._ready.set(),
                StorageFailed: self._on_failed,
                StorageStopped: lambda effect: self._end(""),
            },
        )
        self._machine, self._driver = machine, driver
        self.disk = Disk(files, driver.post_all, self._end)
        self._register()
        await nursery.start(driver.run)
        nursery.start_soon(self._keep_rates)
        nursery.start_soon(self._watch_room, files)
        nursery.start_soon(report_to_graphite, config, "storage.graphite.", self.registry, self.report)
        self.report(Level.INFO, f"opening {files.directory}: cluster {UUID(bytes=key)}, {count} partitions")
        return driver

    async def _listen(
        self, nursery: trio.Nursery, driver: NodeDriver, context: ssl.SSLContext, task_status: Any
    ) -> None:
        """Open the ports once the directory is open; a directory that cannot be used ends the process instead."""
        async with trio.open_nursery() as waiting:

            async def until(event: trio.Event) -> None:
                await event.wait()
                waiting.cancel_scope.cancel()

            waiting.start_soon(until, self._ready)
            waiting.start_soon(until, driver.ended)
        if driver.ended.is_set():
            if driver.end_reason:
                raise ConfigError(f"{self.config.text('storage.directory')}: {driver.end_reason}")
            task_status.started()
            return
        config = self.config
        host = config.text_or_none("storage.host") or local_host()
        for port, key in ((Port.STORAGE, "storage.port"), (Port.ADMIN, "storage.admin.port")):
            sock = bind(host, config.number(key), key)
            number = sock.getsockname()[1]
            if port is Port.STORAGE:
                self.port = number
            else:
                self.admin_port = number
            driver.serve(port, sock, context)
        self.report(Level.INFO, f"serving on {host}:{self.port}, administration on {host}:{self.admin_port}")
        self._start_http(nursery, host)
        task_status.started()

    def _start_http(self, nursery: trio.Nursery, host: str) -> None:
        port = self.config.number_or_none("storage.jetty.port")
        if port is None:
            self.report(Level.WARNING, "no HTTP endpoints: storage.jetty.port is not set")
            return
        http = HttpServer(endpoints("waltz-storage", self.registry, self.health), self.report)
        where = self.config.text_or_none("storage.jetty.host") or host
        self.http_port = http.listen(where, port, "storage.jetty.port")
        nursery.start_soon(http.run)

    async def _keep_rates(self) -> None:
        while True:
            await trio.sleep(_REFRESH)
            await self.registry.keep_up()
            assert self._driver is not None
            self._driver.post(WallClock(wall_offset_ms()))

    def _reserve(self, files: Files) -> int:
        """Bytes that appends leave free."""
        wanted = self.config.number_or_none("storage.reserve")
        if wanted is not None:
            return wanted
        size, _ = files.room()
        return min(self.config.number("storage.segment.size.threshold"), size // 50)

    async def _watch_room(self, files: Files) -> None:
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

    def _perform(self, effect: DiskBatch | DiskRead | DiskList) -> None:
        if self.disk is not None:
            self.disk.perform(effect)

    def _on_failed(self, effect: StorageFailed) -> None:
        self._end(effect.reason)

    def _end(self, reason: str) -> None:
        assert self._driver is not None
        self._driver.end(reason)

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

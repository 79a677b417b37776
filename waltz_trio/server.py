"""The server process: ports, the machine, ZooKeeper, HTTP, metrics. Protocol and policy live in the core."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import trio

from waltz_core.access.roles import NO_ROLES, Roles
from waltz_core.base.edge import Level, Port, Shutdown, WallClock, ZkEvent, ZkState, ZkStateChanged
from waltz_core.base.errors import ConfigError
from waltz_core.base.ids import Endpoint
from waltz_core.server.config import ServerConfig
from waltz_core.server.journal import JournalEvent, JournalWrite
from waltz_core.server.journal_format import Mode
from waltz_core.server.node import ServerNode
from waltz_core.server.snapshot import PartitionSnapshot, ServerSnapshot
from waltz_trio.config import Config, net_limits, tls_settings
from waltz_trio.graphite import report_to_graphite
from waltz_trio.http import HttpServer, endpoints, version
from waltz_trio.journal import JournalFiles
from waltz_trio.log import reporter, warn_once
from waltz_trio.metrics import Registry
from waltz_trio.net.listener import bind, canonical_host, local_host
from waltz_trio.net.tls import ClientTls, server_context
from waltz_trio.process import NodeDriver, places_of
from waltz_trio.pump import now_ms, wall_offset_ms
from waltz_trio.role_file import access_warning, certificates_asked, roles_of
from waltz_trio.zk.background import background_nursery
from waltz_trio.zk.embedded import EmbeddedSession, EmbeddedZnodes
from waltz_trio.zk.security import zookeeper_security
from waltz_trio.zk.store import ZnodeStore, open_znode_store

GROUP = "waltz-server"
_SILENCE_TOLD_EVERY = 60.0  # seconds
_RECENT_MS = 1_000  # so old may be what /health and /metrics show: a snapshot costs time of the machine
_METRICS = 18  # of a partition, about
_REFRESH = 5.0  # seconds between readings of the machine's counters, the tick of the moving rates


def server_config(config: Config, endpoint: Endpoint, roles: Roles = NO_ROLES, asked: bool = False) -> ServerConfig:
    """What the machine reads of a configuration.

    Raises:
        ConfigError: a key is missing, or `server.realtimeThreshold` is not above `server.minFetchSize`.
    """
    fetch, threshold = config.number("server.minFetchSize"), config.number("server.realtimeThreshold")
    if threshold <= fetch:
        raise ConfigError(f"server.realtimeThreshold ({threshold}) must be greater than server.minFetchSize ({fetch})")
    frame_size_max = config.number_or_none("network.frameSizeMax")
    return ServerConfig(
        root=config.text("cluster.root").rstrip("/"),
        endpoint=endpoint,
        frame_size_max=frame_size_max or 64 << 20,
        storage_frame_size_max=frame_size_max or 1 << 30,
        lock_table_size=config.number("server.optimisticLockTableSize"),
        exact_locks=config.number("server.exactLocks"),
        archive=config.text_or_none("server.archive") or "",
        min_fetch_size=fetch,
        feed_cache_bytes=config.number("server.feedCacheSize"),
        data_cache_bytes=config.number("server.transactionDataCacheSize"),
        batch_count_max=config.number("storage.maxBatchSize"),
        payload_size_max=config.number("server.payloadSizeMax"),
        locks_max=config.number("server.locksMax"),
        retry_min_ms=config.number("storage.initialRetryInterval"),
        retry_max_ms=config.number("storage.maxRetryInterval"),
        checkpoint_interval=config.number("storage.checkpointInterval"),
        answer_timeout_ms=config.number("storage.answerTimeout"),
        journal=Mode[config.text("server.journal.mode").upper()],
        roles=roles,
        certificates_asked=asked,
        greeting_ms=config.number("network.handshakeTimeout"),
        places=places_of(config),
        gathered_max=config.number_or_none("network.gatheredMax") or 256 << 20,
        unsent_max=config.number("network.unsentMax"),
        queue_count_max=config.number("server.queueCountMax"),
        reads_count_max=config.number("server.readCountMax"),
    )


class ServerProcess:
    """One server. `run` binds its ports, serves, and returns when the machine has ended.

    `shutdown` asks for an orderly end; `kill` ends as `kill -9` would.
    """

    def __init__(self, config: Config, znodes: EmbeddedZnodes | None = None, *, name: str = "server") -> None:
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
        self.endpoint: Endpoint | None = None  # as registered, once bound
        self.http_port: int | None = None
        self._znodes = znodes
        self._session: ZnodeStore | None = None
        self._driver: NodeDriver | None = None
        self._machine: ServerNode | None = None
        self._journal: JournalFiles | None = None
        self._scope = trio.CancelScope()
        self._snapshot: ServerSnapshot | None = None
        self._snapshot_at = -1
        self._seen: ServerSnapshot | None = None
        self._read: ServerSnapshot | None = None  # what the metrics show
        self._partitions_read: dict[int, PartitionSnapshot] = {}
        self._zk_connected = False
        self._zk_lost_at = 0.0

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> str:
        """Serve until the end; returns why the machine could not go on (empty after an orderly end).

        Raises:
            ConfigError: a key is missing, a file unreadable, a port taken.
        """
        reason = ""
        with self._scope:
            async with background_nursery() as nursery:
                driver = await self._start(nursery)
                async with open_znode_store(
                    self._znodes or self.config.text("zookeeper.connectString"),
                    self._on_zk_events,
                    session_timeout_ms=self.config.number("zookeeper.sessionTimeout"),
                    security=zookeeper_security(self.config),
                ) as store:
                    driver.znodes = self._session = store
                    task_status.started()
                    await driver.ended.wait()
                    reason = driver.end_reason
                    await driver.stop()
                    if self._journal is not None:
                        await self._journal.close()
                        self._journal = None
        if self._journal is not None:
            self._journal.abandon()
        return reason

    def shutdown(self) -> None:
        """Ask for an orderly end: leave the cluster, then let go of everything."""
        if self._driver is not None:
            self._driver.post(Shutdown())

    def kill(self) -> None:
        """End as `kill -9` would: sockets are reset, nothing is flushed or told."""
        if self._driver is not None:
            self._driver.kill()
        if self._journal is not None:
            self._journal.abandon()
        if isinstance(self._session, EmbeddedSession):
            self._session.abandon()
        self._scope.cancel()

    def cancel(self) -> None:
        """End without waiting for the machine."""
        self._scope.cancel()

    def snapshot(self) -> ServerSnapshot | None:
        """The machine's state; None before it runs."""
        if self._machine is None:
            return None
        now = now_ms()
        if now != self._snapshot_at:
            self._snapshot, self._snapshot_at = self._machine.snapshot(now), now
        return self._snapshot

    def recent(self) -> ServerSnapshot | None:
        """The machine's state of less than a second ago: what may be asked for by whoever reaches the HTTP port."""
        if self._snapshot is None or now_ms() - self._snapshot_at >= _RECENT_MS:
            return self.snapshot()
        return self._snapshot

    # ---- start -----------------------------------------------------------------------------------

    async def _start(self, nursery: trio.Nursery) -> NodeDriver:
        config = self.config
        warn = warn_once(self.report)
        config.warn_unknown(warn)
        tls = tls_settings(config, "server.ssl.")
        context, client_tls = server_context(tls), ClientTls(tls, warn)
        roles = roles_of(config, tls)
        if self._znodes is None and (warning := access_warning(tls, roles)):  # a cluster in one process is for trying
            warn(warning)
        host = config.text_or_none("server.host") or local_host()
        sock = bind(host, config.number("server.port"), "server.port")
        self.endpoint = config.endpoint_or_none("server.advertisedEndpoint") or Endpoint(
            canonical_host(), sock.getsockname()[1]
        )
        try:
            machine = ServerNode(server_config(config, self.endpoint, roles, certificates_asked(tls)), random.Random())
            self._journal = self._open_journal(self.endpoint)
        except BaseException:
            sock.close()
            raise
        driver = NodeDriver(
            machine,
            name=self.name,
            client_tls=client_tls,
            roles=roles,
            plugins={JournalWrite: self._journal.perform} if self._journal is not None else None,
            report=self.report,
            limits=net_limits(config),
            recorded_batches=config.number("debug.flightRecorder"),
        )
        self._machine, self._driver = machine, driver
        driver.post(WallClock(wall_offset_ms()))
        self._zk_lost_at = trio.current_time()
        self._register()
        await nursery.start(driver.run)
        driver.serve(Port.CLIENT, sock, context)
        self.report(Level.INFO, f"serving clients on {host}:{sock.getsockname()[1]} as {self.endpoint}")
        self._start_http(nursery, host)
        nursery.start_soon(self._keep_rates)
        nursery.start_soon(self._tell_silence)
        nursery.start_soon(report_to_graphite, config, "server.graphite.", self.registry, self.report)
        return driver

    def _open_journal(self, endpoint: Endpoint) -> JournalFiles | None:
        """The files of the decision journal, if one is wanted."""
        mode = Mode[self.config.text("server.journal.mode").upper()]
        directory = self.config.text_or_none("server.journal.directory")
        if mode is Mode.OFF:
            return None
        if directory is None:
            raise ConfigError(f"server.journal.mode is {mode.name.lower()}, but server.journal.directory is not set")
        size_max = self.config.number("server.journal.maxBytes")
        return JournalFiles(
            Path(directory), mode, size_max, endpoint, self._on_journal_events, self.report, self._on_journal_broken
        )

    def _on_journal_broken(self, reason: str) -> None:
        if self._driver is not None:
            self._driver.end(reason)

    def _on_journal_events(self, events: Sequence[JournalEvent]) -> None:
        if self._driver is not None:
            self._driver.post_all(events)

    def _start_http(self, nursery: trio.Nursery, host: str) -> None:
        port = self.config.number_or_none("server.jetty.port")
        if port is None:
            self.report(Level.WARNING, "no HTTP endpoints: server.jetty.port is not set")
            return
        http = HttpServer(endpoints("waltz-server", self.registry, self.health), self.report)
        where = self.config.text_or_none("server.jetty.host") or host
        self.http_port = http.listen(where, port, "server.jetty.port")
        nursery.start_soon(http.run)

    async def _keep_rates(self) -> None:
        while True:
            await trio.sleep(_REFRESH)
            await self.registry.keep_up()
            assert self._driver is not None
            self._driver.post(WallClock(wall_offset_ms()))

    async def _tell_silence(self) -> None:
        """Say that ZooKeeper does not answer, which looks like nothing at all from outside."""
        patience = self.config.seconds("zookeeper.connectTimeout")
        told_at: float | None = None
        while True:
            await trio.sleep(patience)
            now = trio.current_time()
            if self._zk_connected:
                told_at = None
            elif now - self._zk_lost_at >= patience and (told_at is None or now - told_at >= _SILENCE_TOLD_EVERY):
                told_at = now
                where = "inside this process" if self._znodes else self.config.text("zookeeper.connectString")
                self.report(Level.WARNING, f"no connection to ZooKeeper {where} for {now - self._zk_lost_at:.0f} s")

    def _on_zk_events(self, events: Sequence[ZkEvent]) -> None:
        for event in events:
            if type(event) is ZkStateChanged:
                connected = event.state is ZkState.CONNECTED
                if self._zk_connected and not connected:
                    self._zk_lost_at = trio.current_time()
                self._zk_connected = connected
        assert self._driver is not None
        self._driver.post_all(events)

    # ---- health and metrics ----------------------------------------------------------------------

    def health(self) -> tuple[bool, dict[str, object]]:
        """The original's health check: ZooKeeper not away for long, and every partition usable."""
        snapshot = self.recent()
        patience = 2 * self.config.seconds("zookeeper.sessionTimeout")
        zookeeper = self._zk_connected or trio.current_time() - self._zk_lost_at < patience
        partitions = {str(p.partition_id): p.healthy for p in snapshot.partitions} if snapshot else {}
        healthy = zookeeper and all(partitions.values())
        reasons = {str(p.partition_id): p.reason for p in snapshot.partitions if not p.healthy} if snapshot else {}
        nodes = snapshot.storage_nodes if snapshot else ()
        reached = {node: trouble or state for node, state, trouble in nodes}
        found = {
            "healthy": healthy,
            "zookeeper": zookeeper,
            "partitions": partitions,
            "reasons": reasons,
            "storageNodes": reached,
        }
        return healthy, {"server-health-check": found}

    def _register(self) -> None:
        """Metrics of the process; those of partitions come and go with them."""

        def gauge(name: str, read: Callable[[ServerSnapshot], object]) -> None:
            def value() -> object:
                assert self._read is not None, "not started"
                return read(self._read)

            self.registry.gauge(f"{GROUP}.{name}", value)

        gauge("is-closed", lambda found: self._driver is None or self._driver.ended.is_set())
        gauge("cluster-name", lambda found: found.cluster_name)
        gauge("server-id", lambda found: found.server_id)
        gauge("endpoint", lambda found: str(found.endpoint))
        gauge("waltz-server-num-partitions", lambda found: len(found.partitions))
        gauge("replica-info", lambda found: {str(partition): list(nodes) for partition, nodes in found.replicas})
        gauge("waltz-version-id", lambda found: version() or "unknown")
        gauge("connections", lambda found: found.connections)
        gauge("storage-nodes", lambda found: {node: state for node, state, _ in found.storage_nodes})
        gauge("zookeeper", lambda found: found.zookeeper)
        lags = f"{GROUP}.client-lag"
        self.registry.gauge(lags, lambda: _by_client(self._read) if self._read else None, label="client")
        self.registry.meter(f"{GROUP}.feed-cache-miss")
        self.registry.meter(f"{GROUP}.transaction-cache-miss")
        self._shown: frozenset[int] = frozenset()
        self.registry.on_read(self._look)
        self.registry.on_absorb(self._absorb)

    def _look(self) -> None:
        self._seen = self.recent()
        self.registry.expected = _METRICS * len(self._seen.partitions) if self._seen is not None else 0

    def _absorb(self) -> None:
        """Move what was seen into the metrics; runs in any thread."""
        snapshot = self._seen
        if snapshot is None or snapshot is self._read:
            return
        self._read = snapshot
        self._partitions_read = {partition.partition_id: partition for partition in snapshot.partitions}
        self.registry.meter(f"{GROUP}.feed-cache-miss").mark_to(snapshot.feed_cache_misses)
        self.registry.meter(f"{GROUP}.transaction-cache-miss").mark_to(snapshot.data_cache_misses)
        owned = frozenset(p.partition_id for p in snapshot.partitions)
        for gone in self._shown - owned:
            self.registry.remove(f"{GROUP}.partition-{gone}.")
        for new in owned - self._shown:
            self._register_partition(new)
        self._shown = owned
        for partition in snapshot.partitions:
            group = f"{GROUP}.partition-{partition.partition_id}"
            for name, count in partition.counters:
                self.registry.meter(f"{group}.{name}").mark_to(count)
            self.registry.timer(f"{group}.response-latency").update_to(partition.response_times)

    def _register_partition(self, partition_id: int) -> None:
        def gauge(name: str, read: Callable[[PartitionSnapshot], object], label: str = "") -> None:
            def value() -> object:
                found = self._partitions_read.get(partition_id)
                return read(found) if found is not None else None

            self.registry.gauge(f"{GROUP}.partition-{partition_id}.{name}", value, label=label)

        gauge("pending-append", lambda found: found.pending)
        gauge("append-queue-size", lambda found: found.queued)
        gauge("is-closed", lambda found: False)
        gauge("generation", lambda found: found.generation)
        gauge("high-water-mark", lambda found: found.high_water_mark)
        gauge("real-time-feeds", lambda found: found.live_feeds)
        gauge("catchup-feeds", lambda found: found.lagging_feeds)
        gauge("total-real-time-feed-context-added", lambda found: found.live_feeds_added)
        gauge("total-real-time-feed-context-removed", lambda found: found.live_feeds_added - found.live_feeds)
        gauge("total-catchup-feed-context-added", lambda found: found.lagging_feeds_added)
        gauge("total-catchup-feed-context-removed", lambda found: found.lagging_feeds_added - found.lagging_feeds)
        gauge("phase", lambda found: found.phase)
        gauge("reason", lambda found: found.reason)
        gauge("healthy", lambda found: found.healthy)
        gauge("replica-lag", _by_replica, "replica")


def _by_client(snapshot: ServerSnapshot) -> dict[str, int]:
    return {str(client): lag for client, lag in snapshot.client_lags}


def _by_replica(partition: PartitionSnapshot) -> dict[str, int]:
    """Committed transactions that each replica is not known to hold."""
    mark = max(partition.high_water_mark, -1)
    return {replica: max(0, mark - acked) for replica, _, _, acked in partition.links}

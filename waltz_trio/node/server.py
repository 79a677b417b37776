"""The server process: ports, the machine, ZooKeeper, HTTP, metrics. Protocol and policy live in the core."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from socket import socket
from typing import Any

import attrs
import trio

from waltz_core.access.web import Door
from waltz_core.base.edge import Level, Port, ZkEvent, ZkState, ZkStateChanged
from waltz_core.base.ids import Endpoint
from waltz_core.server.archive_calls import ArchiveEvent
from waltz_core.server.journal import JournalEvent, JournalWrite
from waltz_core.server.journal_format import Mode
from waltz_core.server.node import ServerNode
from waltz_core.server.snapshot import PartitionSnapshot, ServerSnapshot
from waltz_trio.base.pump import now_ms
from waltz_trio.base.version import version
from waltz_trio.base.znodes import ZnodeStore
from waltz_trio.config.config import Config
from waltz_trio.console.pages import Pages
from waltz_trio.net.driver import NodeDriver
from waltz_trio.net.http import Handler, HttpServer
from waltz_trio.net.listener import bind, canonical_host
from waltz_trio.net.tls import ServerTls
from waltz_trio.node.archive_agent import ARCHIVE_EFFECTS, ArchiveAgent
from waltz_trio.node.console import PORT_KEY, door_of, server_console
from waltz_trio.node.journal import JournalFiles
from waltz_trio.node.process import Kind, NodeProcess
from waltz_trio.node.server_settings import ServerSettings, server_settings
from waltz_trio.node.settings import NodeSettings
from waltz_trio.zk.embedded import EmbeddedSession, EmbeddedZnodes
from waltz_trio.zk.store import open_znode_store

GROUP = "waltz-server"
_REPORT_EVERY = 60.0  # seconds between lines about a silent ZooKeeper
_RECENT_MS = 1_000  # so old may be what /health and /metrics show: a snapshot costs time of the machine
_METRICS = 18  # of a partition, about


class ServerProcess(NodeProcess):
    """One server: a client port, a session with ZooKeeper, a decision journal if one is wanted."""

    KIND = Kind("server.", GROUP)

    def __init__(self, config: Config, znodes: EmbeddedZnodes | None = None, *, name: str = "") -> None:
        """As of every process."""
        super().__init__(config, znodes, name=name)
        self.endpoint: Endpoint | None = None  # as registered, once bound
        self.console_port: int | None = None  # where it is served over TLS
        self._settings: ServerSettings | None = None
        self._socket: socket | None = None  # bound, and not served yet
        self._session: ZnodeStore | None = None
        self._machine: ServerNode | None = None
        self._journal: JournalFiles | None = None
        self.archive: ArchiveAgent | None = None  # the process that keeps the archive, if one is configured
        self._snapshot: ServerSnapshot | None = None
        self._snapshot_at = -1
        self._seen: ServerSnapshot | None = None
        self._read: ServerSnapshot | None = None  # what the metrics show
        self._partitions_read: dict[int, PartitionSnapshot] = {}
        self._zk_connected = False
        self._zk_lost_at = 0.0

    def snapshot(self) -> ServerSnapshot | None:
        """The machine's state; None before it runs."""
        if self._machine is None:
            return None
        now = now_ms()
        if now != self._snapshot_at:
            self._snapshot, self._snapshot_at = self._machine.snapshot(now), now
        return self._snapshot

    def recent(self) -> ServerSnapshot | None:
        """The machine's state of less than a second ago: what any peer at the HTTP port may ask for."""
        if self._snapshot is None or now_ms() - self._snapshot_at >= _RECENT_MS:
            return self.snapshot()
        return self._snapshot

    # ---- start -----------------------------------------------------------------------------------

    def _parse(self, local: str) -> NodeSettings:
        self._settings = server_settings(self.config, self._warn, local)
        return self._settings.node

    async def _make_machine(self) -> ServerNode:
        settings = self._parsed
        self._socket = bind(settings.node.host, settings.port, "server.port")
        port = self._socket.getsockname()[1]
        self.endpoint = settings.advertised or Endpoint(await canonical_host(), port)
        self._machine = ServerNode(attrs.evolve(settings.machine, endpoint=self.endpoint), random.Random())
        self._journal = self._open_journal(settings, self.endpoint)
        if settings.machine.archiving is not None:
            self.archive = ArchiveAgent(settings.machine.archiving.where, self._on_answers, self.report)
        self._zk_lost_at = trio.current_time()
        return self._machine

    @property
    def _parsed(self) -> ServerSettings:
        assert self._settings is not None
        return self._settings

    def _open_journal(self, settings: ServerSettings, endpoint: Endpoint) -> JournalFiles | None:
        """The files of the decision journal, if one is wanted."""
        if settings.journal is Mode.OFF:
            return None
        assert settings.journal_directory is not None
        return JournalFiles(
            settings.journal_directory,
            settings.journal,
            settings.journal_bytes_max,
            endpoint,
            self._on_answers,
            self.report,
            self._end,
        )

    def _plugins(self) -> Mapping[type, Callable[[Any], None]]:
        plugins: dict[type, Callable[[Any], None]] = {}
        if self._journal is not None:
            plugins[JournalWrite] = self._journal.perform
        if self.archive is not None:
            plugins |= dict.fromkeys(ARCHIVE_EFFECTS, self.archive.perform)
        return plugins

    def _background(self) -> Iterable[Callable[[], Awaitable[object]]]:
        return (self._report_silence,) if self.archive is None else (self._report_silence, self.archive.run)

    @asynccontextmanager
    async def _serving(self, driver: NodeDriver, tls: ServerTls, nursery: trio.Nursery) -> AsyncIterator[None]:
        node = self._parsed.node
        assert self._socket is not None
        sock, self._socket = self._socket, None
        driver.serve(Port.CLIENT, sock, tls)
        self.report(Level.INFO, f"serving clients on {node.host}:{sock.getsockname()[1]} as {self.endpoint}")
        self._start_http(nursery, node)
        self._start_console(nursery, node)
        async with open_znode_store(
            self._zookeeper(),
            self._on_zk_events,
            session_timeout_ms=node.session_timeout_ms,
            security=node.security,
        ) as store:
            driver.znodes = self._session = store
            yield
            journal, self._journal = self._journal, None
            if journal is not None:
                await journal.close()

    def _pages(self, nursery: trio.Nursery, node: NodeSettings, handler: Handler) -> Handler:
        return self._console(nursery).or_else(handler) if door_of(self.config) is Door.LOOPBACK else handler

    def _start_console(self, nursery: trio.Nursery, node: NodeSettings) -> None:
        """Where certificates are asked for, the console has a port of its own, and needs no other."""
        if door_of(self.config) is not Door.CERTIFICATE:
            return
        secure = HttpServer(self._console(nursery).handle, self.report, ServerTls(node.tls, self.report))
        self.console_port = secure.listen(node.http_host, self.config.number(PORT_KEY), PORT_KEY)
        self.report(Level.INFO, f"console behind certificates on https://{node.http_host}:{self.console_port}/console/")
        nursery.start_soon(secure.run)

    def _console(self, nursery: trio.Nursery) -> Pages:
        journal = self._parsed.journal_directory
        watch, pages = server_console(self.config, self._znodes, lambda: self._roles, journal, self.report)
        nursery.start_soon(watch.run)
        return pages

    def _instance(self) -> str:
        return str(self.endpoint)

    def _abandon(self) -> None:
        if self._journal is not None:
            self._journal.abandon()
        if self.archive is not None:
            self.archive.abandon()
        if isinstance(self._session, EmbeddedSession):
            self._session.abandon()

    async def _let_go(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._journal is not None:
            self._journal.abandon()

    def _on_answers(self, events: Sequence[JournalEvent] | Sequence[ArchiveEvent]) -> None:
        if self._driver is not None:
            self._driver.post_all(events)

    async def _report_silence(self) -> None:
        """Say that ZooKeeper does not answer, which looks like nothing at all from outside."""
        patience = self._parsed.connect_timeout
        reported_at: float | None = None
        while True:
            await trio.sleep(patience)
            now = trio.current_time()
            if self._zk_connected:
                reported_at = None
            elif now - self._zk_lost_at >= patience and (reported_at is None or now - reported_at >= _REPORT_EVERY):
                reported_at = now
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
        """The original's health check: in the cluster, ZooKeeper not away for long, and every partition usable."""
        snapshot = self.recent()
        patience = 2 * self._parsed.session_timeout
        zookeeper = self._zk_connected or trio.current_time() - self._zk_lost_at < patience
        partitions = {str(p.partition_id): p.healthy for p in snapshot.partitions} if snapshot else {}
        joined = snapshot is not None and bool(snapshot.cluster_name) and snapshot.server_id is not None
        healthy = zookeeper and joined and all(partitions.values())
        reasons = {str(p.partition_id): p.reason for p in snapshot.partitions if not p.healthy} if snapshot else {}
        nodes = snapshot.storage_nodes if snapshot else ()
        reached = {node: trouble or state for node, state, trouble in nodes}
        state = {
            "healthy": healthy,
            "zookeeper": zookeeper,
            "partitions": partitions,
            "reasons": reasons,
            "storageNodes": reached,
        }
        if self._parsed.machine.archiving is not None:
            troubles = (
                {str(p.partition_id): p.archive.trouble for p in snapshot.partitions if p.archive} if snapshot else {}
            )
            state["archive"] = {partition: trouble or "well" for partition, trouble in troubles.items()}
        return healthy, {"server-health-check": state}

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
        if self._parsed.machine.archiving is not None:
            gauge("archived-up-to", lambda found: found.archive.end - 1 if found.archive else None)
            gauge("archive-lag", lambda found: found.archive.lag(found.high_water_mark) if found.archive else None)
            gauge("log-start", lambda found: found.archive.log_start if found.archive else None)
            gauge("archive-status", lambda found: found.archive.status if found.archive else None)
            gauge("archive-trouble", lambda found: int(bool(found.archive.trouble)) if found.archive else None)
            gauge("archived-records", lambda found: found.archive.archived if found.archive else None)
            gauge("freed-records", lambda found: found.archive.freed if found.archive else None)


def _by_client(snapshot: ServerSnapshot) -> dict[str, int]:
    return {str(client): lag for client, lag in snapshot.client_lags}


def _by_replica(partition: PartitionSnapshot) -> dict[str, int]:
    """Committed transactions that each replica is not known to hold."""
    mark = max(partition.high_water_mark, -1)
    return {replica: max(0, mark - acked) for replica, _, _, acked in partition.links}

"""The whole server process: which part gets which event, and in which order effects leave.

    events ──▶ ClientPort ──▶ Requests ──▶ PartitionServer ──▶ StoragePort ──▶ storage nodes
                    ▲             └─▶ ServerRequests │
                    └──── replies, feeds ────────────┘
               ClusterPort ──▶ Partitions (opens, closes, hands on generations)
               StoragePort ──▶ PartitionServer (answers, connections)

A step: events, each by the part it is for; requests whose turn it is; alarms that are due; payloads that waited; then
the touched partitions work until nothing moves any more; last, what was gathered for storage nodes and for clients is
sent. All parts put their effects into one outbox, in the order in which they leave. The process keeps nothing that is
durable: logs are on storage nodes, ownership and sessions in ZooKeeper, decisions in the journal's files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

from waltz_core.access.roles import RolesChanged
from waltz_core.base.contract import Handlers, Rng
from waltz_core.base.edge import (
    Accepted,
    Closed,
    Dialed,
    Ended,
    Received,
    Shutdown,
    WallClock,
    Writable,
    ZkChanged,
    ZkDone,
    ZkFailed,
    ZkState,
    ZkStateChanged,
)
from waltz_core.server.archive import Archive
from waltz_core.server.archive_calls import (
    ArchiveData,
    ArchiveEqual,
    ArchiveEvent,
    ArchiveFailed,
    ArchiveHolds,
    ArchiveTaken,
)
from waltz_core.server.awaited import awaited_by
from waltz_core.server.client_port import ClientPort
from waltz_core.server.cluster_port import ClusterPort
from waltz_core.server.config import ServerConfig
from waltz_core.server.context import (
    AlarmKey,
    ArchiveAlarm,
    CacheAlarm,
    ClusterAlarm,
    JournalAsked,
    MetadataAsked,
    NodeContext,
    PartitionAlarm,
    PoolAlarm,
    PortsRead,
    ServerEffect,
    ServerEvent,
    StorageAlarm,
)
from waltz_core.server.journal import JournalEvent, JournalFailed, JournalWritten
from waltz_core.server.partition import PartitionServer
from waltz_core.server.partitions import Partitions
from waltz_core.server.requests import Requests
from waltz_core.server.server_requests import ServerRequests
from waltz_core.server.snapshot import ServerSnapshot, client_lags, snapshot_of
from waltz_core.server.storage_port import StoragePort


class ServerNode:
    """Composition of the server process: which part gets which event, in which order."""

    make_partitions: ClassVar[type[Partitions]] = Partitions
    make_clients: ClassVar[type[ClientPort]] = ClientPort
    make_cluster: ClassVar[type[ClusterPort]] = ClusterPort
    make_requests: ClassVar[type[ServerRequests]] = ServerRequests

    def __init__(self, config: ServerConfig, rng: Rng) -> None:
        self._context = context = NodeContext(config, rng)
        self._config = config
        self._out = context.out
        self._effects = context.out.items
        self._replies = context.clients.items
        self._alarms = context.alarms
        self._pending = context.pending
        self._dialed = context.dialed
        self._partitions = self.make_partitions(context)
        self._clients = self.make_clients(context, self._partitions)
        self._storage = StoragePort(context, self._partitions)
        self._cluster = self.make_cluster(context, self._partitions)
        server = self.make_requests(
            context, self._clients, self._partitions, self._storage, self._cluster, self._snapshot_of_step
        )
        self._requests = Requests(context, self._clients, self._partitions, server)
        self._ended = False
        self._asked: ServerSnapshot | None = None  # what clients that ask in this step are answered from
        self._handlers = Handlers(
            type(self).__name__,
            {
                Received: self._on_received,
                Writable: lambda now, event: self._clients.writable(event),
                Accepted: self._clients.accepted,
                Dialed: self._on_dialed,
                Closed: self._on_closed,
                ZkDone: self._on_zk_answer,
                ZkFailed: self._on_zk_answer,
                ZkChanged: self._on_zk,
                ZkStateChanged: self._on_zk,
                JournalWritten: self._on_journal,
                JournalFailed: self._on_journal,
                **dict.fromkeys(
                    (ArchiveHolds, ArchiveTaken, ArchiveEqual, ArchiveData, ArchiveFailed), self._on_archive
                ),
                Shutdown: lambda now, event: self._cluster.leave(now),
                WallClock: self._on_wall_clock,
                RolesChanged: self._clients.roles_changed,
            },
        )

    # ---- machine -----------------------------------------------------------------------------

    def step(self, now: int, events: Sequence[ServerEvent], out: list[ServerEffect]) -> None:
        """Handle a batch of events; see `waltz_core.base.contract`."""
        self._asked, clients = None, self._clients
        for event in events:
            self._handlers[type(event)](now, event)
        for conn, batch in clients.turns(now):
            self._requests.dispatch(now, conn, batch)
        for key in self._alarms.due(now):
            self._on_alarm(now, key)
        if self._cluster.ended is not None and not self._ended:
            self._end(now, self._cluster.ended)
        if self._replies:
            clients.deliver()
        if clients.backlogged:
            clients.send_backlogs()
        self._settle(now)
        clients.flush(now)
        if self._effects:
            self._out.drain(out)

    def deadline(self) -> int | None:
        """When the next step is due without events."""
        return self._alarms.next()

    def _on_alarm(self, now: int, key: AlarmKey) -> None:
        match key:
            case PartitionAlarm():
                self._partitions.due(now, key)
            case ClusterAlarm():
                self._cluster.due(now, key)
            case PoolAlarm() | StorageAlarm():
                self._storage.due(now, key)
            case ArchiveAlarm():
                assert self._context.archive is not None
                self._context.archive.due(now)
            case CacheAlarm():
                raise AssertionError(f"a server has no cache on a disk: {key}")
            case _:
                self._clients.due(now, key)

    def _settle(self, now: int) -> None:
        """Let touched partitions work until nothing moves any more, then send to the storage nodes."""
        archive = self._context.archive
        while work := self._partitions.take():
            for partition in work:
                self._work(now, partition)
            if archive is not None and archive.ready:
                self._archive_turns(archive)
        if archive is not None:
            self._alarms.set(ArchiveAlarm.ANSWER, archive.deadline())
        if self._storage.used:
            self._storage.flush()
        self._clients.hold_back()

    def _archive_turns(self, archive: Archive) -> None:
        ready, archive.ready = archive.ready, []
        for partition_id in ready:
            self._partitions.touch(partition_id)

    def _work(self, now: int, partition: PartitionServer) -> None:
        partition.flush(now)
        if self._replies:
            self._clients.deliver()
        if partition.storage.items:
            self._storage.perform(now, partition, partition.storage.take())
        self._partitions.worked(partition)

    # ---- for people and metrics --------------------------------------------------------------

    @property
    def partitions(self) -> Mapping[int, PartitionServer]:
        """Those that are served."""
        return self._partitions.served

    @property
    def waiting(self) -> int:
        """Requests without an answer, those included that were received and not looked at."""
        return self._context.waiting.total + self._clients.in_turns

    def snapshot(self, now: int) -> ServerSnapshot:
        """State for metrics, health and people."""
        cluster = self._context.cluster
        partitions, awaited, nothing = (
            self._partitions.ordered(),
            awaited_by(self._pending, self._storage.repairs_asked()),
            Counter[str](),
        )
        return ServerSnapshot(
            cluster.joined.cluster_name if cluster.joined else "",
            self._cluster.server_id,
            self._config.endpoint,
            len(self._clients),
            tuple(snapshot_of(now, one, awaited.get(one.partition_id, nothing)) for one in partitions),
            tuple((p, cluster.storages_of(p)) for p in range(cluster.num_partitions)) if cluster.replicas else (),
            tuple((pool.replica, pool.state.value, pool.trouble) for pool in self._storage.pools()),
            self._context.data_cache.misses,
            self._partitions.feed_cache_misses,
            cluster.zookeeper,
            self._config.access_level,
            client_lags(list(self._clients), (one.feeds.feed for one in partitions)),
            tuple(awaited.get(-1, Counter()).items()),
            tuple((pool.replica, kind) for pool in self._storage.pools() if (kind := pool.trouble_kind) is not None),
        )

    def _snapshot_of_step(self, now: int) -> ServerSnapshot:
        """The same for all that ask in one step: it tells of every partition."""
        if self._asked is None:
            self._asked = self.snapshot(now)
        return self._asked

    # ---- events ------------------------------------------------------------------------------

    def _on_dialed(self, now: int, event: Dialed) -> None:
        owner = self._dialed.get(event.conn)
        if owner is not None:
            owner.dialed(now, event)

    def _on_received(self, now: int, event: Received) -> None:
        if event.conn < 0:
            owner = self._dialed.get(event.conn)
            if owner is not None:
                owner.received(now, event)
            if self._replies:
                self._clients.deliver()
            return
        arrived = self._clients.received(now, event)
        if arrived is not None:
            self._requests.dispatch(now, *arrived)
            self._clients.handled(arrived[0])

    def _on_closed(self, now: int, event: Closed) -> None:
        if event.conn < 0:
            owner = self._dialed.pop(event.conn, None)
            if owner is not None:
                owner.closed(now, event)
            self._clients.deliver()
        else:
            self._clients.closed(now, event)
            self._cluster.gone(event.conn)

    def _on_zk_answer(self, now: int, event: ZkDone | ZkFailed) -> None:
        match self._pending.take(event.ticket):
            case PortsRead() as asked:
                self._storage.ports_read(event, asked)
            case MetadataAsked(partition_id, step):
                partition = self._partitions.get(partition_id)
                if partition is not None:
                    partition.zk_answered(now, event, step)
                    self._partitions.touch(partition_id)
            case what:
                self._cluster.answered(now, event, what)
        self._clients.deliver()

    def _on_zk(self, now: int, event: ZkChanged | ZkStateChanged) -> None:
        self._cluster.handle(now, (event,))
        if isinstance(event, ZkStateChanged) and event.state is ZkState.CONNECTED:
            self._partitions.zookeeper_back(now)
        self._clients.deliver()

    def _on_journal(self, now: int, event: JournalEvent) -> None:
        asked = self._pending.take(event.ticket)
        partition = self._partitions.get(asked.partition_id) if isinstance(asked, JournalAsked) else None
        if partition is not None:
            partition.journal_answered(now, event)
            self._partitions.touch(partition.partition_id)

    def _on_archive(self, now: int, event: ArchiveEvent) -> None:
        archive = self._context.archive
        answered = archive.answered(now, event) if archive is not None else None
        partition = self._partitions.get(answered[0]) if answered is not None else None
        if answered is not None and partition is not None:
            partition.archive_answered(now, event, answered[1])
            self._partitions.touch(partition.partition_id)

    def _on_wall_clock(self, now: int, event: WallClock) -> None:
        self._context.journals.wall_offset = event.offset_ms

    # ---- the end -----------------------------------------------------------------------------

    def _end(self, now: int, reason: str) -> None:
        self._ended = True
        self._partitions.own(now, ())
        self._clients.close_all(reason or "the server ends")
        self._out.put(Ended(reason))

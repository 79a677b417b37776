"""The port to storage nodes: one pool per node, shared by all partitions, and the repairs that this server starts.

What a partition asks of a node goes to its pool; what a pool has to say (a *note*: the connection stands, it ended, an
answer) goes to the partitions that want that node. A request that cannot be sent fails with a note, too, which the
partition hears after the work that asked for it, never in the middle. Bytes for a node gather during a step and leave
as one `Send`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from waltz_core.base.edge import Closed, Dialed, Level, Received, Report, ZkDone, ZkFailed
from waltz_core.base.errors import ConfigError
from waltz_core.base.ids import ReqId
from waltz_core.base.outbox import Outbox
from waltz_core.server.connectivity import CHECK, ConnectivityChecks
from waltz_core.server.context import (
    NodeContext,
    PoolAlarm,
    PortsRead,
    RepairWanted,
    ReplicaAsked,
    Reply,
    StorageAlarm,
    StorageWork,
)
from waltz_core.server.partition import PartitionServer
from waltz_core.server.partitions import Partitions
from waltz_core.server.repairs import Repairs
from waltz_core.store.calls import (
    LinkDown,
    LinkUnwanted,
    LinkUp,
    LinkWanted,
    StorageAnswer,
    StorageAppend,
    StorageCall,
    StorageFailed,
    StorageNews,
)
from waltz_core.store.pool import PoolNote, StoragePool


class StoragePort:
    """All connections to storage nodes."""

    def __init__(self, context: NodeContext, partitions: Partitions) -> None:
        self._context = context
        self._config = context.config
        self._out = context.out
        self._notes: Outbox[PoolNote] = Outbox()
        self._noted = self._notes.items
        self._alarms = context.alarms
        self._partitions = partitions
        self._pools: dict[str, StoragePool] = {}
        self._pool_of: dict[int, StoragePool] = {}  # dialed conn → pool
        self.used: dict[str, StoragePool] = {}  # pools to which something happened in this step
        self._checks = ConnectivityChecks()
        self._repairs = Repairs(
            self._config.root, context.cluster, context.out, context.pending, context.alarms, context.new_conn
        )

    def pools(self) -> list[StoragePool]:
        """All of them, by name."""
        return [pool for _, pool in sorted(self._pools.items())]

    def repairs_asked(self) -> Iterator[tuple[int, str]]:
        """Partition and replica of each repair that a storage node has yet to answer."""
        return self._repairs.asked()

    # ---- connections -------------------------------------------------------------------------

    def dialed(self, now: int, event: Dialed) -> None:
        """A connection stands."""
        pool = self._pool_of[event.conn]
        pool.dialed(now)
        self._touch(pool)

    def received(self, now: int, event: Received) -> None:
        """Bytes from a storage node."""
        pool = self._pool_of[event.conn]
        if pool.received(now, event.data):
            self.used[pool.replica] = pool
        if self._noted:
            self._on_notes(now)

    def closed(self, now: int, event: Closed) -> None:
        """A connection has ended, or could not be made."""
        pool = self._pool_of.pop(event.conn)
        pool.closed(now, event.reason, untrusted=event.untrusted)
        self._touch(pool)
        self._on_notes(now)
        self._checked(pool.replica, False)

    def due(self, now: int, alarm: PoolAlarm | StorageAlarm) -> None:
        """An alarm of this port rang."""
        match alarm:
            case PoolAlarm(replica):
                pool = self._pools[replica]
                pool.rings_at = None
                pool.step(now)
                self._touch(pool)
            case StorageAlarm.REPAIRS:
                self._repairs.due(now, self._partitions.has_replica)

    def ports_read(self, event: ZkDone | ZkFailed, asked: PortsRead) -> None:
        """ZooKeeper has answered a repair."""
        self._repairs.ports_read(event, asked)

    def _touch(self, pool: StoragePool) -> None:
        """Something happened to a pool, which may have dialed."""
        self.used[pool.replica] = pool
        if pool.conn is not None:
            self._pool_of[pool.conn] = pool

    def flush(self) -> None:
        """Send what was gathered in this step; say when each pool wants the next one."""
        used, self.used = self.used, {}
        for replica, pool in self._pools.items():
            if replica in used:
                pool.flush()
                if pool.may_ring_late:
                    pool.rings_at = pool.deadline()
                    self._alarms.set(PoolAlarm(replica), pool.rings_at)

    # ---- partitions --------------------------------------------------------------------------

    def perform(self, now: int, partition: PartitionServer, effects: Iterable[StorageWork]) -> None:
        """Do what a partition asks for; what comes of it at once is for the partitions to hear now."""
        used, pools = self.used, self._pools
        for effect in effects:
            match effect:
                case StorageAppend(replica):
                    pool = used[replica] = pools[replica]
                    pool.append(now, effect)
                case StorageCall(replica):
                    self._use(replica).call(now, effect)
                case LinkWanted(replica):
                    self._want(now, replica, partition)
                case LinkUnwanted(replica):
                    if replica in self._pools:
                        self._use(replica).unwant(partition.partition_id)
                case RepairWanted(replica):
                    self._repairs.wanted(now, partition.partition_id, replica)
        if self._noted:
            self._on_notes(now)

    def _use(self, replica: str) -> StoragePool:
        pool = self.used[replica] = self._pools[replica]
        return pool

    def _want(self, now: int, replica: str, partition: PartitionServer) -> None:
        pool = self._pool(replica)
        if pool is None:
            return
        if pool.want(partition.partition_id):
            partition.link_up(now, LinkUp(replica, pool.codec))
            self._partitions.touch(partition.partition_id)
        self._touch(pool)

    def _pool(self, replica: str) -> StoragePool | None:
        pool, joined, config = self._pools.get(replica), self._context.cluster.joined, self._config
        if pool is not None or joined is None:
            return pool
        try:
            pool = StoragePool(
                replica,
                self._out,
                self._notes,
                key=joined.cluster_key,
                num_partitions=joined.num_partitions,
                new_conn=partial(self._context.new_conn, self),
                rng=self._context.rng,
                frame_size_max=config.storage_frame_size_max,
                answer_timeout_ms=config.answer_timeout_ms,
                retry_min_ms=config.retry_min_ms,
                retry_max_ms=config.retry_max_ms,
                versions=config.storage_versions,
            )
        except ConfigError as error:
            self._out.put(Report(Level.ERROR, str(error)))
            return None
        self._pools[replica] = pool
        return pool

    def _on_notes(self, now: int) -> None:
        partitions, pending = self._partitions, self._context.pending
        served = partitions.served
        for note in self._notes.take():
            match note:
                case StorageAnswer() | StorageFailed():
                    asked = pending.take(note.ticket)
                    partition = served.get(asked.partition_id) if type(asked) is ReplicaAsked else None
                    if partition is not None and partition.storage_answered(now, note):
                        partitions.touch(partition.partition_id)
                case StorageNews():
                    partition = served.get(note.message.partition_id)
                    if partition is not None:
                        partition.storage_news(now, note)
                        partitions.touch(partition.partition_id)
                case LinkUp() | LinkDown():
                    self._on_link(now, note)

    def _on_link(self, now: int, note: LinkUp | LinkDown) -> None:
        for partition_id in self._pools[note.replica].wanted_by():
            partition = self._partitions.get(partition_id)
            if partition is None:
                continue
            if isinstance(note, LinkDown):
                partition.link_down(now, note)
            else:
                partition.link_up(now, note)
            self._partitions.touch(partition_id)
        if isinstance(note, LinkUp):
            self._checked(note.replica, True)

    # ---- checks ------------------------------------------------------------------------------

    def checks_of(self, conn: int) -> int:
        """Unanswered checks of a connection."""
        return self._checks.waiting(conn)

    def check(self, now: int, conn: int, req_id: ReqId) -> None:
        """A client asks which storage nodes this server reaches; it is answered when all are known."""
        replicas = self._context.cluster.replicas
        nodes = [storage for storage, _ in replicas.replicas] if replicas is not None else []
        known: dict[str, bool] = {}
        for storage in nodes:
            pool = self._pool(storage)
            ready = pool is not None and pool.want(CHECK)
            if pool is not None:
                self._touch(pool)
            if ready or pool is None or pool.waiting:
                known[storage] = ready
        self._checks.ask(conn, req_id, nodes)
        for storage, reached in known.items():
            self._checked(storage, reached)
        self._checked("", False)

    def _checked(self, storage: str, reached: bool) -> None:
        for conn_id, answer in self._checks.tried(storage, reached):
            self._context.clients.put(Reply(conn_id, answer))
        if storage in self._pools:
            self._use(storage).unwant(CHECK)

"""The partitions that this server owns: opened and closed as the assignment says, and which of them have work.

A partition is *touched* when something happened to it; the process lets touched partitions work until nothing moves
any more, once per step. A partition that is let go works once more, to say good-bye, and is then forgotten with all
that was asked for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from waltz_core.server.context import Awaited, NodeContext, PartitionAlarm, PartitionAsked
from waltz_core.server.partition import PartitionServer
from waltz_core.server.peer import Peer

_QUEUE_PARTS = 4  # a partition may queue this many payload limits before its clients are held back


class Partitions:
    """Partition id → the machine that serves it."""

    make_partition: ClassVar[type[PartitionServer]] = PartitionServer

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._limits = context.config.queue_count_max, context.config.payload_size_max * _QUEUE_PARTS
        self.served: dict[int, PartitionServer] = {}
        self.undecided: dict[int, None] = {}  # those where appends wait for their verdict
        self.crowded: dict[int, PartitionServer] = {}  # those where too many do
        self._closing: list[PartitionServer] = []
        self._touched: dict[int, None] = {}
        self._doubtful = False
        self._misses_of_gone = 0  # of the feed caches of partitions that we do not serve any more

    def get(self, partition_id: int) -> PartitionServer | None:
        """The partition, if it is here."""
        return self.served.get(partition_id)

    def ordered(self) -> list[PartitionServer]:
        """All of them, by id."""
        return [partition for _, partition in sorted(self.served.items())]

    @property
    def feed_cache_misses(self) -> int:
        """Reads of feeds that had to ask a replica, so far."""
        return self._misses_of_gone + sum(partition.feeds.cache_misses for partition in self.served.values())

    # ---- what is assigned --------------------------------------------------------------------

    def own(self, now: int, owned: tuple[tuple[int, int], ...]) -> None:
        """Open what is new, close what is gone, hand on generations."""
        for partition_id in set(self.served) - {p for p, _ in owned}:
            partition = self.served.pop(partition_id)
            self._misses_of_gone += partition.feeds.cache_misses
            self.crowded.pop(partition_id, None)
            self.undecided.pop(partition_id, None)
            partition.close(now)
            self._forget(partition_id)
            self._closing.append(partition)
        for partition_id, generation in owned:
            partition = self.served.get(partition_id) or self._open(now, partition_id)
            partition.set_generation(now, generation)
            self.touch(partition_id)
        share = self._context.config.feed_cache_bytes // max(1, len(self.served))
        for partition in self.served.values():
            partition.feeds.limit(share)

    def _open(self, now: int, partition_id: int) -> PartitionServer:
        context = self._context
        partition = self.make_partition(partition_id, context)
        context.data_cache.forget(partition_id)  # somebody else may have owned it since we last did
        self.served[partition_id] = partition
        partition.set_doubtful(self._doubtful)
        if context.cluster.replicas is not None:
            partition.set_replicas(now, context.cluster.storages_of(partition_id))
        return partition

    def _forget(self, partition_id: int) -> None:
        """Answers for a partition that is let go are nobody's, also if it comes back."""

        def of_it(what: Awaited) -> bool:
            return isinstance(what, PartitionAsked) and what.partition_id == partition_id

        self._context.pending.forget(of_it)
        if self._context.archive is not None:
            self._context.archive.gone(partition_id)

    def replicas_changed(self, now: int) -> None:
        """Other storage nodes are to hold the partitions, perhaps."""
        for partition_id, partition in self.served.items():
            partition.set_replicas(now, self._context.cluster.storages_of(partition_id))
            self.touch(partition_id)

    def zookeeper_back(self, now: int) -> None:
        """ZooKeeper answers again, which some may wait for."""
        for partition_id, partition in self.served.items():
            partition.zookeeper_back(now)
            self.touch(partition_id)

    def doubt(self, doubtful: bool) -> None:
        """Whether another server may own them all by now."""
        self._doubtful = doubtful
        for partition_id, partition in self.served.items():
            partition.set_doubtful(doubtful)
            self.touch(partition_id)

    def has_replica(self, partition_id: int, replica: str) -> bool:
        """Whether a partition is served here and a storage node is to hold it."""
        return partition_id in self.served and replica in self._context.cluster.storages_of(partition_id)

    # ---- connections of clients --------------------------------------------------------------

    def gone(self, peer: Peer, partition_ids: Iterable[int]) -> None:
        """A connection that asked something of these partitions has ended."""
        for partition_id in partition_ids:
            partition = self.served.get(partition_id)
            if partition is not None:
                partition.gone(peer)
                self.touch(partition_id)  # others may wait for the room that it leaves

    def writable(self, conn: int, partition_ids: Iterable[int], writable: bool) -> None:
        """The same stopped or started taking data."""
        for partition_id in partition_ids:
            partition = self.served.get(partition_id)
            if partition is not None:
                partition.writable(conn, writable)
                if writable:
                    self.touch(partition_id)

    def greedy(self, client_id: int) -> bool:
        """Whether a client has more than its fair part of what waits in a crowded partition."""
        count_max, bytes_max = self._limits
        return any(one.commits.greedy(client_id, count_max, bytes_max) for one in self.crowded.values())

    def hinders(self, client_id: int) -> bool:
        """Whether a client has too much in a crowded partition beside others that have little."""
        return any(one.commits.hinders(client_id) for one in self.crowded.values())

    # ---- work --------------------------------------------------------------------------------

    def touch(self, partition_id: int) -> None:
        """Something happened to a partition."""
        self._touched[partition_id] = None

    def take(self) -> list[PartitionServer]:
        """Those that have work, and those that are let go, once each."""
        if not self._touched and not self._closing:
            return []
        work, self._closing = self._closing, []
        touched, self._touched = self._touched, {}
        work += [self.served[partition_id] for partition_id in touched if partition_id in self.served]
        return work

    def due(self, now: int, alarm: PartitionAlarm) -> None:
        """A partition's alarm rang."""
        partition = self.served.get(alarm.partition_id)
        if partition is not None:
            partition.due(now, alarm.due)
            self.touch(alarm.partition_id)

    def worked(self, partition: PartitionServer) -> None:
        """A partition has worked: whether something waits in it, or too much."""
        partition_id, appender = partition.partition_id, partition.commits.appender
        queue = appender.queue
        if appender.busy and partition_id in self.served:
            self.undecided[partition_id] = None
        elif partition_id in self.undecided:
            del self.undecided[partition_id]
        count_max, bytes_max = self._limits
        if (queue.queued > count_max or queue.queued_bytes > bytes_max) and partition_id in self.served:
            self.crowded[partition_id] = partition
        elif partition_id in self.crowded:
            del self.crowded[partition_id]

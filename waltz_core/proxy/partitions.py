"""The partitions of a proxy: all of the cluster, and which of them have work.

Theory of operation:

* **It stands in for a server's partitions** behind the same client port, so it answers the same calls. But a proxy owns
  nothing: what its root says of owners, replicas and doubts changes nothing here, as upstream decides.
* **Work is named, not looked for.** Events touch a partition, and a step works on those that were touched: one with
  thousands of idle partitions costs nothing for them.
* **Crowded partitions** are those in which more appends wait for upstream than may. They are the only ones where a
  client can be held back: the greedy, who has more than its fair part, and the one that hinders others.
"""

from __future__ import annotations

from collections.abc import Iterable

from waltz_core.base.outbox import Outbox
from waltz_core.proxy.cache import CacheEffect, CacheIndex
from waltz_core.proxy.fresh import Fresh
from waltz_core.proxy.partition import ProxyPartition
from waltz_core.server.context import NodeContext
from waltz_core.server.peer import Peer

_QUEUE_PARTS = 4  # a partition may queue this many payload limits before its clients are held back


class ProxyPartitions:
    """Partition id → what stands for it here. What the root of the proxy says of owners changes nothing."""

    def __init__(self, context: NodeContext, cache_bytes: int) -> None:
        self._context = context
        self.kept = CacheIndex(cache_bytes)  # on the disk
        self.disk: Outbox[CacheEffect] = Outbox()  # what it is to do, in the order of the index, which says where
        self.fresh = Fresh()
        self.served: dict[int, ProxyPartition] = {}
        self.crowded: dict[int, ProxyPartition] = {}  # those where too many appends wait for upstream
        self.undecided: dict[int, ProxyPartition] = {}  # those where appends may await their verdict upstream
        self._touched: dict[int, None] = {}

    def get(self, partition_id: int) -> ProxyPartition | None:
        """The partition, if the cluster has it."""
        return self.served.get(partition_id)

    def open(self, count: int) -> None:
        """The cluster has so many."""
        shared = self._context, self.fresh, self.kept, self.disk
        self.served = {number: ProxyPartition(number, *shared) for number in range(count)}
        for partition in self.served.values():
            partition.feeds.limit(self._context.config.feed_cache_bytes // max(1, count))

    # ---- what the root of the proxy says -------------------------------------------------------

    def own(self, now: int, owned: tuple[tuple[int, int], ...]) -> None:
        """It says what we have written there."""

    def replicas_changed(self, now: int) -> None:
        """There are none."""

    def doubt(self, doubtful: bool) -> None:
        """Nobody else commits anything because of what stands there."""

    # ---- connections of clients ----------------------------------------------------------------

    def gone(self, peer: Peer, partition_ids: Iterable[int]) -> None:
        """A connection that asked something of these partitions has ended."""
        for partition_id in partition_ids:
            self.served[partition_id].gone(peer)

    def writable(self, conn: int, partition_ids: Iterable[int], writable: bool) -> None:
        """The same stopped or started taking data."""
        for partition_id in partition_ids:
            self.served[partition_id].writable(conn, writable)
            if writable:
                self.touch(partition_id)

    def greedy(self, client_id: int) -> bool:
        """Whether a client has more than its fair part of what waits in a crowded partition."""
        return any(partition.carriage.greedy(client_id, *self._limits()) for partition in self.crowded.values())

    def hinders(self, client_id: int) -> bool:
        """Whether a client has too much in a crowded partition beside others that have little."""
        return any(partition.carriage.hinders(client_id) for partition in self.crowded.values())

    def _limits(self) -> tuple[int, int]:
        config = self._context.config
        return config.queue_count_max, config.payload_size_max * _QUEUE_PARTS

    # ---- work ----------------------------------------------------------------------------------

    def touch(self, partition_id: int) -> None:
        """Something happened to a partition."""
        self._touched[partition_id] = None

    def touch_waiting(self) -> None:
        """A connection upstream can take more."""
        for partition in self.served.values():
            if partition.carriage.waits:
                self.touch(partition.partition_id)

    def take(self) -> list[ProxyPartition]:
        """Those that have work."""
        touched, self._touched = self._touched, {}
        return [self.served[partition_id] for partition_id in touched if partition_id in self.served]

    def worked(self, partition: ProxyPartition) -> None:
        """A partition has worked: whether too much waits in it, and whether anything awaits its verdict."""
        if partition.busy:
            self.undecided[partition.partition_id] = partition
        else:
            self.undecided.pop(partition.partition_id, None)
        if partition.carriage.crowded(*self._limits()):
            self.crowded[partition.partition_id] = partition
        else:
            self.crowded.pop(partition.partition_id, None)

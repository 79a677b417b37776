"""The client inside a proxy: it follows the feeds of all partitions, and carries what others append and read.

    proxy ── appends, flushes ──► CarrierPartition ──► server      one connection, so appends, flushes, the feed and
      ▲                                                  │         refusals keep their order
      ├── Deliver, Carried, in that order ◄──────────────┤
      └── RecordsCarried ◄── RecordReads ◄───────────────┘         over the other connection, with its questions

It mounts under an id of its own that outlives the process, and numbers its connections on from those of the process
before (`ClientSettings.first_connection`). So its mount shuts out every append that an earlier connection of the proxy
still has under way, wherever its bytes are: they are dropped at the server, and what is in its queue is decided before
the mount is answered.
"""

from __future__ import annotations

from typing import ClassVar

from waltz_core.base.contract import earliest
from waltz_core.base.ids import ReqId
from waltz_core.client.calls import Carried, GenerationRaised, Phase
from waltz_core.client.context import ClientContext
from waltz_core.client.link import Link
from waltz_core.client.node import ClientNode
from waltz_core.client.partition import ClientPartition
from waltz_core.client.partitions import Partitions
from waltz_core.client.patience import Patience
from waltz_core.wire.client_messages import (
    AppendRefused,
    AppendRequest,
    ErrorCode,
    ErrorResponse,
    FlushRequest,
    FlushResponse,
    LockFailure,
    MountResponse,
    NamedAppendRequest,
)


class CarrierPatience(Patience):
    """A flush that was carried is owed an answer, as an own append is."""

    __slots__ = ("flushed_at",)

    flushed_at: int | None  # since when an answer is owed, while mounted; None: nothing is. Each mount begins anew

    def ends_at(self) -> int | None:
        """When an answer is so late that something must be wrong."""
        mounted = self._standing.phase is Phase.MOUNTED
        flush = self.flushed_at + self._settings.silence_ms if mounted and self.flushed_at is not None else None
        return earliest(super().ends_at(), flush)


class CarrierPartition(ClientPartition):
    """One partition: its feed is the proxy's, and so are the answers to what it carries."""

    make_patience: ClassVar[type[Patience]] = CarrierPatience

    __slots__ = ("_out",)

    def __init__(self, partition: int, context: ClientContext) -> None:
        super().__init__(partition, context)
        self._out = context.out
        self._flushes.flushed_at = None

    @property
    def _flushes(self) -> CarrierPatience:
        assert isinstance(self._patience, CarrierPatience)
        return self._patience

    @property
    def way(self) -> Link | None:
        """The connection, while it carries."""
        standing = self._standing
        if standing.phase is not Phase.MOUNTED or standing.link is None or not standing.link.writable:
            return None
        return standing.link

    def barrier(self, now: int) -> ReqId | None:
        """Ask behind everything that was carried; the answer comes with this id. None while nothing can be sent."""
        link = self.way
        if link is None:
            return None
        req_id = self._standing.next_req_id()
        link.send(FlushRequest(req_id))
        if self._flushes.flushed_at is None:
            self._flushes.flushed_at = now
        return req_id

    def place(self, now: int, link: Link | None, generation: int) -> None:
        """The partition lives on this connection from now on, or on none, under this generation."""
        if generation > self._standing.generation:
            self._out.put(GenerationRaised(self.partition, generation))
        super().place(now, link, generation)

    def on_lock_failure(self, now: int, message: LockFailure) -> None:
        """An append of somebody was refused because of its locks."""
        self._out.put(Carried(self.partition, message))

    def on_refused(self, now: int, message: AppendRefused) -> None:
        """An append of somebody was refused, perhaps because our mount is not known any more."""
        super().on_refused(now, message)
        self._out.put(Carried(self.partition, message))

    def on_flush_response(self, now: int, message: FlushResponse) -> None:
        """Everything before a flush is decided."""
        self._flushes.flushed_at = None
        self._out.put(Carried(self.partition, message))

    def on_mount_response(self, now: int, response: MountResponse) -> None:
        """The server has brought us up to its mark, or cannot; nothing is owed for what was flushed before."""
        self._flushes.flushed_at = None
        super().on_mount_response(now, response)

    def on_not_allowed(self, now: int, req_id: ReqId, text: str) -> None:
        """Our role does not include a request: our own mount, or the append of somebody."""
        if not self._mounting.not_allowed(now, req_id):
            self._out.put(Carried(self.partition, ErrorResponse(req_id, ErrorCode.NOT_ALLOWED, text)))


class CarrierPartitions(Partitions):
    """All partitions of the cluster."""

    make_partition: ClassVar[type[ClientPartition]] = CarrierPartition


class Upstream(ClientNode):
    """The client of a proxy; calls and effects as of every client, and what it carries."""

    make_partitions: ClassVar[type[Partitions]] = CarrierPartitions

    def carrier(self, partition_id: int) -> CarrierPartition | None:
        """A partition, if it is open."""
        partition = self.partitions.get(partition_id)
        assert partition is None or isinstance(partition, CarrierPartition)
        return partition

    def read(self, now: int, partition_id: int, token: int, first: int, count: int) -> None:
        """Read records; `RecordsCarried` answers."""
        self._partitions.reads_of(now, partition_id).records.read(now, token, first, count)

    def barrier(self, now: int, partition_id: int) -> ReqId | None:
        """Ask behind everything that was carried for a partition; None while that cannot be sent."""
        partition = self.carrier(partition_id)
        if partition is None:
            return None
        self._context.touch(partition)
        return partition.barrier(now)

    def carry(self, partition_id: int, append: AppendRequest | NamedAppendRequest) -> bool:
        """Send an append of somebody; False while that cannot be sent."""
        partition = self.carrier(partition_id)
        way = None if partition is None else partition.way
        if way is None:
            return False
        way.send(append)
        return True

    def ask_mark(self, now: int, partition_id: int, number: int) -> None:
        """Ask for the committed mark; `MarkRead` answers with this number as its token."""
        self._partitions.reads_of(now, partition_id).marks.read(now, number)

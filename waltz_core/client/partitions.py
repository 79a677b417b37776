"""What is open: partitions, and readers, each on the connection to its server.

A partition lives on the STREAM connection of its server, a reader on the RPC connection. When the map of the cluster
changes they are placed anew. An answer that comes over another connection is of a life before, and nobody's: so who
lives on a connection is asked of the partition itself, and nothing is kept here that could disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from waltz_core.client.calls import OwedRead, PartitionStatus, Phase
from waltz_core.client.context import ClientContext
from waltz_core.client.link import Kind, Link
from waltz_core.client.partition import ClientPartition
from waltz_core.client.reads import PartitionReads
from waltz_core.client.router import ClientRouter


class Partitions:
    """The partitions that this client uses or has used."""

    make_partition: ClassVar[type[ClientPartition]] = ClientPartition
    make_reads: ClassVar[type[PartitionReads]] = PartitionReads

    def __init__(self, context: ClientContext, router: ClientRouter) -> None:
        self._context = context
        self._touch = context.touch
        self._router = router
        self._open: dict[int, ClientPartition] = {}
        self._by_key: dict[bytes, ClientPartition] = {}  # bytes 8..12 of a request id → partition
        self._reads: dict[int, PartitionReads] = {}

    # ---- for others to see -------------------------------------------------------------------

    @property
    def opened(self) -> Mapping[int, ClientPartition]:
        """Those that were opened, closed ones included."""
        return self._open

    def on_link(self, key: bytes, link: Link) -> ClientPartition | None:
        """Whom a message is for, by bytes 8..12 of its request id, if it lives on the connection of the message."""
        partition = self._by_key.get(key)
        return partition if partition is not None and partition.link is link else None

    def reads_on_link(self, number: int, link: Link) -> PartitionReads | None:
        """Likewise the reader of a partition."""
        reads = self._reads.get(number)
        return reads if reads is not None and reads.link is link else None

    def reads_known(self, number: int) -> PartitionReads | None:
        """The reader of a partition, if somebody has read there."""
        return self._reads.get(number)

    def owed(self, now: int) -> Iterator[OwedRead]:
        """Every read that a server was asked for and has not answered."""
        for reads in self._reads.values():
            yield from reads.owed(now)

    def status(self, now: int, number: int) -> PartitionStatus:
        """A snapshot of one partition, open or not."""
        reads, partition = self._reads.get(number), self._open.get(number)
        owed_ms = 0 if reads is None else max((read.since_ms for read in reads.owed(now)), default=0)
        if partition is None:
            return PartitionStatus(number, Phase.CLOSED, 0, self._router.owners.get(number), -1, -1, -1, 0, 0, owed_ms)
        return partition.status(now, owed_ms)

    # ---- opening -----------------------------------------------------------------------------

    def open(self, now: int, number: int, mark: int | None, *, deliver: bool, feed: int = 0) -> ClientPartition:
        """An open partition; `deliver`, whether its feed is to be delivered from `mark` on."""
        partition = self._open.get(number)
        if partition is None:
            partition = self._open[number] = self.make_partition(number, self._context)
            self._by_key[number.to_bytes(4, "big", signed=True)] = partition
        self._touch(partition)
        if partition.phase is Phase.CLOSED:
            partition.open(now, mark, deliver=deliver, feed=feed)
            self._place(now, partition)
            self.seek_tail(now, partition)
        elif deliver:
            partition.open(now, mark, deliver=True, feed=feed)
        return partition

    def seek_tail(self, now: int, partition: ClientPartition) -> None:
        """Ask for the mark of the server, if a partition needs it to begin."""
        if partition.wants_tail:
            self.reads_of(now, partition.partition).marks.read_tail(now)

    def reads_of(self, now: int, number: int) -> PartitionReads:
        """The reader of a partition."""
        reads = self._reads.get(number)
        if reads is None:
            reads = self._reads[number] = self.make_reads(number, self._context)
            self._place_reads(now, reads)
        self._touch(reads)
        return reads

    def close(self, now: int) -> None:
        """Give every partition up."""
        for partition in self._open.values():
            partition.close(now)

    # ---- where they live ---------------------------------------------------------------------

    def place(self, now: int) -> None:
        """The map of the cluster changed: everything goes to where it is served."""
        for partition in self._open.values():
            self._place(now, partition)
        for reads in self._reads.values():
            self._place_reads(now, reads)

    def _place(self, now: int, partition: ClientPartition) -> None:
        number = partition.partition
        if partition.phase is Phase.CLOSED:
            return
        generation = self._router.generations.get(number, -1)
        partition.place(now, self._router.link_of(number, Kind.STREAM), generation)
        self._touch(partition)
        # Both connections stand before they are needed: the first payload is not to wait for a handshake.
        self._router.link_of(number, Kind.RPC)
        self._router.dials_wanted = True

    def _place_reads(self, now: int, reads: PartitionReads) -> None:
        generation = self._router.generations.get(reads.partition, -1)
        reads.place(now, self._router.link_of(reads.partition, Kind.RPC), generation)
        self._touch(reads)
        self._router.dials_wanted = True

    # ---- their connections -------------------------------------------------------------------

    def link_ready(self, now: int, link: Link) -> None:
        """A connection can be used."""
        if link.kind is Kind.STREAM:
            for partition in self._on(link):
                partition.on_link_ready(now)
                self._touch(partition)
            return
        for reads in self._reads_on(link):
            reads.on_link_ready(now)
            self._touch(reads)

    def link_lost(self, now: int, link: Link) -> None:
        """A connection is gone."""
        if link.kind is Kind.STREAM:
            for partition in self._on(link):
                partition.on_link_lost(now)
                self._touch(partition)
            return
        for reads in self._reads_on(link):
            reads.on_link_lost()
            self._touch(reads)

    def link_writable(self, now: int, link: Link) -> None:
        """A connection takes more bytes."""
        for partition in self._on(link):
            partition.on_writable(now)
            self._touch(partition)

    def _on(self, link: Link) -> list[ClientPartition]:
        return [partition for partition in self._open.values() if partition.link is link]

    def _reads_on(self, link: Link) -> list[PartitionReads]:
        return [reads for reads in self._reads.values() if reads.link is link]

"""The newest records of one partition, shared by all readers of a gateway that follow its end.

    feed of the cluster ──▶ │ begin … ▒▒▒▒▒▒▒▒ … end │ ──▶ reader, reader, reader: each at a mark of its own
                            └── falls out here ──▶ a reader that stands there is behind, and reads for itself

One feed fills the window for all of them, however many they are. It is asked for more only while some reader stands at
the end and waits: the fastest one sets the pace, and no reader ever holds another one up. What the others have not
taken yet stays in the window until there is no room for it. Then they read what they lack over feeds of their own, and
join again where the window begins. So what a gateway holds is bounded by the window and one batch, not by its readers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from waltz_core.base.record import record
from waltz_core.gateway.replies import Record

SLICE_BYTES: Final = 1 << 16
"""What a reader takes at once, beside the last record of it."""
_OVERHEAD = 100  # bytes of a record beside its payload, about
_COMPACT = 256  # records that have fallen out before their places are given up


@record
class Slice:
    """What a reader takes, and its mark then, which is beyond the last record where markers follow it."""

    records: Sequence[Record]
    mark: int


class Window:
    """One partition's, from the mark at which its feed begins."""

    __slots__ = ("_bytes", "_bytes_max", "_first", "_ids", "_readers", "_records", "_waiting", "begin", "end")

    def __init__(self, begin: int, bytes_max: int) -> None:
        self.begin = begin  # records up to here are not in it
        self.end = begin  # those up to here have come
        self._bytes_max = bytes_max
        self._bytes = 0
        self._ids: list[int] = []
        self._records: list[Record] = []
        self._first = 0  # place of the oldest one that is still in it
        self._readers = 0
        self._waiting = 0

    @property
    def readers(self) -> int:
        """How many have joined."""
        return self._readers

    @property
    def size(self) -> int:
        """Bytes, about."""
        return self._bytes

    @property
    def wanted(self) -> bool:
        """Somebody stands at the end and waits for more."""
        return self._waiting > 0

    # ---- readers -------------------------------------------------------------------------------

    def holds(self, mark: int) -> bool:
        """Whether a reader at this mark lacks nothing that has fallen out."""
        return mark >= self.begin

    def join(self) -> None:
        """One reader more."""
        self._readers += 1

    def leave(self) -> None:
        """One reader less; one that waits stops waiting first."""
        self._readers -= 1

    def take(self, mark: int) -> Slice | None:
        """What comes behind the mark of a reader, nothing if it stands at the end; None: it has fallen behind."""
        if not self.holds(mark):
            return None
        if mark >= self.end:
            return Slice((), mark)
        at = last = bisect_right(self._ids, mark, self._first)
        size = 0
        while last < len(self._records) and size < SLICE_BYTES:
            size += len(self._records[last].data)
            last += 1
        return Slice(self._records[at:last], self.end if last == len(self._records) else self._ids[last - 1])

    def wait(self) -> None:
        """A reader has nothing to take: more is wanted, until something arrives or it gives up."""
        self._waiting += 1

    def waited(self) -> None:
        """A reader has stopped waiting."""
        self._waiting -= 1

    # ---- the feed --------------------------------------------------------------------------------

    def arrived(self, records: Sequence[Record], end: int) -> None:
        """The feed came on, up to an id; not every id has a record that is sent."""
        oldest = len(self._records)
        for each in records:
            self._ids.append(each.transaction_id)
            self._records.append(each)
            self._bytes += len(each.data) + _OVERHEAD
        self.end = end
        while self._bytes > self._bytes_max and self._first < oldest:
            gone = self._records[self._first]
            self.begin = gone.transaction_id
            self._bytes -= len(gone.data) + _OVERHEAD
            self._first += 1
        if self._first >= _COMPACT:
            del self._ids[: self._first]
            del self._records[: self._first]
            self._first = 0

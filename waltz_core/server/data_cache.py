"""Payloads of the newest transactions, shared by all partitions of a server, as the runs of records that they came in.

A run is kept as its bytes, which replicas have been sent or have sent anyway: transactions become no objects here, and
whoever reads a range is given a piece of those bytes. What was added first goes first, a run as a whole; one that has
grown since its turn came last has another turn, as its end is new.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

from waltz_core.base.log import RECORD_OVERHEAD
from waltz_core.wire.records import NO_RECORDS, RecordRun
from waltz_core.wire.storage_codec import HasRecord, encode_records

_OVERHEAD = 100  # bytes a transaction costs here besides its payload, once somebody has read of its run
_SMALL = 16_384  # runs go together up to so many bytes, or one append at a time would leave as many runs


class _Run:
    """Consecutive transactions of one partition, from `first` up to `end`."""

    __slots__ = ("_added", "end", "first", "grown", "partition_id", "size")

    def __init__(self, partition_id: int, first: int, records: RecordRun, size: int) -> None:
        self.partition_id = partition_id
        self.first = first
        self.end = first + len(records)
        self.size = size  # bytes, with what the transactions cost besides
        self.grown = False  # since it was put among the newest
        self._added = [records]

    def extend(self, records: RecordRun, size: int) -> None:
        """Those that follow."""
        self._added.append(records)
        self.end += len(records)
        self.size += size
        self.grown = True

    @property
    def records(self) -> RecordRun:
        if len(self._added) > 1:
            self._added = [RecordRun.joined(self._added)]
        return self._added[0]


class _Shelf:
    """The runs of one partition by their ids; they do not overlap."""

    __slots__ = ("firsts", "runs")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.runs: list[_Run] = []

    def place(self, transaction_id: int) -> int:
        """Of the last run that begins at or before this id; -1: there is none."""
        return bisect_right(self.firsts, transaction_id) - 1

    def put(self, run: _Run) -> None:
        at = self.place(run.first) + 1
        self.firsts.insert(at, run.first)
        self.runs.insert(at, run)

    def remove(self, run: _Run) -> None:
        at = self.place(run.first)
        del self.firsts[at], self.runs[at]

    def gaps(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Where from `first` up to `end` there is nothing."""
        at = max(self.place(first), 0)
        while first < end and at < len(self.runs):
            run = self.runs[at]
            if first < run.first:
                yield first, min(end, run.first)
            first = max(first, run.end)
            at += 1
        if first < end:
            yield first, end


_NOTHING = _Shelf()


def _run_of(first: int, transactions: Sequence[HasRecord]) -> RecordRun:
    """The records of transactions, from id `first` on."""
    if isinstance(transactions, RecordRun):
        return transactions
    return RecordRun.uncut(encode_records(first, transactions), len(transactions))


class DataCache:
    """What was added first goes first, except what has grown since; bounded by bytes."""

    __slots__ = ("_by_age", "_bytes", "_bytes_max", "_shelves", "misses")

    def __init__(self, bytes_max: int) -> None:
        self._shelves: dict[int, _Shelf] = {}  # by partition; none is empty
        self._by_age: deque[_Run] = deque()  # as they were added, or had another turn
        self._bytes = 0
        self._bytes_max = bytes_max
        self.misses = 0

    def add(self, partition_id: int, first: int, transactions: Sequence[HasRecord]) -> None:
        """Remember payloads of ids `first`, …; one larger than a quarter of the cache is not kept (as 0.13.2)."""
        if not transactions:
            return
        records = _run_of(first, transactions)
        shelf, size, limit = self._shelves.get(partition_id, _NOTHING), records.size(_OVERHEAD), self._bytes_max // 4
        newest = shelf.runs[-1] if shelf.runs else None
        if (newest is not None and first < newest.end) or size > limit:
            for begin, end in list(shelf.gaps(first, first + len(records))):
                for at, piece in records[begin - first : end - first].pieces(limit, _OVERHEAD):
                    self._put(_Run(partition_id, begin + at, piece, piece.size(_OVERHEAD)))
        elif newest is not None and newest.end == first and newest.size + size <= min(_SMALL, limit):
            newest.extend(records, size)
            self._bytes += size
        else:
            self._put(_Run(partition_id, first, records, size))
        self._evict()

    def _put(self, run: _Run) -> None:
        self._shelves.setdefault(run.partition_id, _Shelf()).put(run)
        self._by_age.append(run)
        self._bytes += run.size

    def _evict(self) -> None:
        while self._bytes > self._bytes_max:
            run = self._by_age.popleft()
            if run.grown:
                run.grown = False
                self._by_age.append(run)
                continue
            self._bytes -= run.size
            shelf = self._shelves[run.partition_id]
            shelf.remove(run)
            if not shelf.runs:
                del self._shelves[run.partition_id]

    def get(self, partition_id: int, transaction_id: int) -> tuple[bytes, int] | None:
        """Payload and checksum, None on a miss."""
        payload = self.peek(partition_id, transaction_id)
        self.misses += payload is None
        return payload

    def peek(self, partition_id: int, transaction_id: int) -> tuple[bytes, int] | None:
        """The same, where a miss has been counted already."""
        shelf = self._shelves.get(partition_id, _NOTHING)
        at = shelf.place(transaction_id)
        if at < 0 or shelf.runs[at].end <= transaction_id:
            return None
        run = shelf.runs[at]
        return run.records.payload(transaction_id - run.first)

    def run(self, partition_id: int, first: int, count_max: int, size_max: int) -> RecordRun:
        """Records from `first` on, up to the first that is not here; one may exceed `size_max` bytes, more may not."""
        parts: list[RecordRun] = []
        shelf, end, size = self._shelves.get(partition_id, _NOTHING), first + count_max, 0
        for run in islice(shelf.runs, max(shelf.place(first), 0), None):
            if not run.first <= first < min(run.end, end) or size > size_max:
                break
            part = run.records[first - run.first : end - run.first]
            parts.append(part)
            size += part.size(RECORD_OVERHEAD)
            first += len(part)
        found = RecordRun.joined(parts) if parts else NO_RECORDS
        return found[: found.fitting(size_max, RECORD_OVERHEAD)]

    def forget(self, partition_id: int) -> None:
        """Drop everything of a partition: somebody else may have written it meanwhile."""
        shelf = self._shelves.pop(partition_id, None)
        if shelf is not None:
            self._bytes -= sum(run.size for run in shelf.runs)
            self._by_age = deque(run for run in self._by_age if run.partition_id != partition_id)

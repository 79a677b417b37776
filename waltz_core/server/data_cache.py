"""Payloads of the newest transactions, shared by all partitions of a server.

Transactions come and go in runs: a run is put into the table of its partition at once, and leaves it at once, but for
the run at the border of what may be kept, which leaves one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import takewhile

from waltz_core.base.log import RECORD_OVERHEAD
from waltz_core.server.append_queue import payload_bytes
from waltz_core.wire.records import RecordRun, cut_records
from waltz_core.wire.storage_codec import HasRecord, encode_records

_OVERHEAD = 360  # bytes a cached entry costs besides its payload


class _Run:
    """Ids from `first` up to `end` of one partition, which were added together."""

    __slots__ = ("end", "first", "partition_id", "size")

    def __init__(self, partition_id: int, first: int, end: int, size: int) -> None:
        self.partition_id = partition_id
        self.first = first
        self.end = end
        self.size = size  # bytes, with what the entries cost


class DataCache:
    """What was added first goes first; bounded by bytes."""

    __slots__ = ("_bytes", "_bytes_max", "_entries", "_newest", "_runs", "misses")

    def __init__(self, bytes_max: int) -> None:
        self._entries: dict[int, dict[int, HasRecord]] = {}  # by partition and id
        self._newest: dict[int, int] = {}  # partition → the highest id that was ever added
        self._runs: deque[_Run] = deque()  # in the order of adding; together they are the entries
        self._bytes = 0
        self._bytes_max = bytes_max
        self.misses = 0

    def add(self, partition_id: int, first: int, transactions: Sequence[HasRecord]) -> None:
        """Remember payloads of ids `first`, …; one larger than a quarter of the cache is not kept (as 0.13.2)."""
        size = payload_bytes(transactions, 0, len(transactions)) + _OVERHEAD * len(transactions)
        if first > self._newest.get(partition_id, -1) and size <= self._bytes_max // 4:
            self._put(partition_id, first, transactions, size)
        else:
            self._add_each(partition_id, first, transactions)
        self._evict()

    def _add_each(self, partition_id: int, first: int, transactions: Sequence[HasRecord]) -> None:
        """Some may be here already, or be too large."""
        limit = self._bytes_max // 4
        entries = self._entries.get(partition_id, {})
        for transaction_id, transaction in enumerate(transactions, start=first):
            size = len(transaction.data) + _OVERHEAD
            if size <= limit and transaction_id not in entries:
                self._put(partition_id, transaction_id, (transaction,), size)
                entries = self._entries[partition_id]

    def _put(self, partition_id: int, first: int, transactions: Sequence[HasRecord], size: int) -> None:
        if not transactions:
            return
        end = first + len(transactions)
        self._entries.setdefault(partition_id, {}).update(zip(range(first, end), transactions, strict=True))
        self._newest[partition_id] = max(end - 1, self._newest.get(partition_id, -1))
        self._runs.append(_Run(partition_id, first, end, size))
        self._bytes += size

    def _evict(self) -> None:
        while (surplus := self._bytes - self._bytes_max) > 0:
            run = self._runs[0]
            entries = self._entries[run.partition_id]
            if run.size <= surplus or run.first + 1 == run.end:
                self._runs.popleft()
                self._bytes -= run.size
                for transaction_id in range(run.first, run.end):
                    del entries[transaction_id]
                continue
            size = len(entries.pop(run.first).data) + _OVERHEAD
            run.first += 1
            run.size -= size
            self._bytes -= size

    def get(self, partition_id: int, transaction_id: int) -> tuple[bytes, int] | None:
        """Payload and checksum, None on a miss."""
        payload = self.peek(partition_id, transaction_id)
        self.misses += payload is None
        return payload

    def peek(self, partition_id: int, transaction_id: int) -> tuple[bytes, int] | None:
        """The same, where a miss has been counted already."""
        transaction = self._entries.get(partition_id, {}).get(transaction_id)
        return None if transaction is None else (transaction.data, transaction.checksum)

    def run(self, partition_id: int, first: int, count_max: int, size_max: int) -> RecordRun:
        """Records from `first` on, up to the first that is not here; one may exceed `size_max` bytes, more may not."""
        entries = self._entries.get(partition_id, {})
        cached: list[HasRecord] = []
        if first in entries:
            ids = range(first, first + count_max)
            try:
                cached = list(map(entries.__getitem__, ids))
            except KeyError:  # the newest are here, and the oldest may be gone: seldom
                cached = [entries[at] for at in takewhile(entries.__contains__, ids)]
        encoded = encode_records(first, cached)
        run = RecordRun(encoded, cut_records(encoded, 0, len(encoded), len(cached)))
        return run[: run.fitting(size_max, RECORD_OVERHEAD)]

    def forget(self, partition_id: int) -> None:
        """Drop everything of a partition: somebody else may have written it meanwhile."""
        self._newest.pop(partition_id, None)
        if self._entries.pop(partition_id, None) is not None:
            self._bytes -= sum(run.size for run in self._runs if run.partition_id == partition_id)
            self._runs = deque(run for run in self._runs if run.partition_id != partition_id)

"""Payloads of the newest transactions, shared by all partitions of a server."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from waltz_core.base.log import Record
from waltz_core.server.appender import RECORD_OVERHEAD
from waltz_core.wire.storage_codec import HasRecord

_OVERHEAD = 360  # bytes a cached entry costs besides its payload


class DataCache:
    """Least recently added or used payloads go first; bounded by bytes."""

    __slots__ = ("_bytes", "_bytes_max", "_entries", "misses")

    def __init__(self, bytes_max: int) -> None:
        self._entries: OrderedDict[tuple[int, int], HasRecord] = OrderedDict()
        self._bytes = 0
        self._bytes_max = bytes_max
        self.misses = 0

    def add(self, partition_id: int, first: int, transactions: Iterable[HasRecord]) -> None:
        """Remember payloads of ids `first`, …; one larger than a quarter of the cache is not kept (as 0.13.2)."""
        entries, limit = self._entries, self._bytes_max // 4
        for transaction_id, found in enumerate(transactions, start=first):
            size = len(found.data) + _OVERHEAD
            if size <= limit:
                key = (partition_id, transaction_id)
                if key not in entries:
                    self._bytes += size
                    entries[key] = found
        while self._bytes > self._bytes_max:
            _, found = entries.popitem(last=False)
            self._bytes -= len(found.data) + _OVERHEAD

    def get(self, partition_id: int, transaction_id: int) -> tuple[bytes, int] | None:
        """Payload and checksum, None on a miss."""
        found = self.peek(partition_id, transaction_id)
        self.misses += found is None
        return found

    def peek(self, partition_id: int, transaction_id: int) -> tuple[bytes, int] | None:
        """The same, where a miss has been counted already."""
        found = self._entries.get((partition_id, transaction_id))
        return None if found is None else (found.data, found.checksum)

    def run(self, partition_id: int, first: int, count_max: int, size_max: int) -> tuple[Record, ...]:
        """Records from `first` on, up to the first that is not here; one may exceed `size_max` bytes, more may not."""
        entries, size = self._entries, 0
        records: list[Record] = []
        for transaction_id in range(first, first + count_max):
            found = entries.get((partition_id, transaction_id))
            if found is None:
                break
            size += RECORD_OVERHEAD + len(found.data)
            if records and size > size_max:
                break
            records.append(Record(transaction_id, found.req_id, found.header, found.data, found.checksum))
        return tuple(records)

    def forget(self, partition_id: int) -> None:
        """Drop everything of a partition: somebody else may have written it meanwhile."""
        for key in [key for key in self._entries if key[0] == partition_id]:
            self._bytes -= len(self._entries.pop(key).data) + _OVERHEAD

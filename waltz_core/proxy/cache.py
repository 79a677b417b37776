"""What a proxy keeps on its disk: runs of records, for as long as the process lives.

    file 7 │ entry │ entry │ …        entries are appended to the newest file; when there is too much, the oldest file
    file 8 │ entry │ …                goes as a whole, with every entry in it

The index is in memory: a process begins with nothing and takes nothing over from the one before, so records that a
cluster has lost since, by a restore, cannot come back from here. Nothing is synced. An entry says whose records it
holds and carries a checksum over all of it; one that does not read as it was written is dropped and fetched upstream.
The disk works in the order of the requests, so a read finds what was written before. One that is slower than what is
read upstream is not given more than `UNWRITTEN_MAX` ahead: the rest is not kept. A disk that fails, or that answers
nothing for `SILENCE_MS`, ends the cache, and nothing else.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import Final, TypeAlias

from waltz_core.base.checksum import crc32
from waltz_core.base.errors import ProtocolError
from waltz_core.base.log import Record
from waltz_core.base.record import record
from waltz_core.wire.records import RecordRun, cut_records
from waltz_core.wire.storage_codec import encode_records

_HEAD = Struct(">4sIiqi")  # magic, checksum of what follows, partition, first id, records
_MAGIC = b"WPC1"
_CHECKED_FROM = 8
FILES: Final = 16
"""Into how many files the room is divided: so much goes at once."""
UNWRITTEN_MAX: Final = 8 << 20
"""Bytes that wait for the disk, in memory."""
SILENCE_MS: Final = 5_000
"""A disk that owes answers and gives none for so long is given up. Who reads what is on it waits meanwhile."""


@record
class Place:
    """Where an entry stands."""

    file: int
    offset: int
    size: int
    first: int
    count: int


@record
class CacheWrite:
    """Append to a file, which is made for its first entry."""

    file: int
    data: bytes


@record
class CacheRead:
    """Read an entry; `CacheData` answers."""

    partition_id: int
    token: int
    place: Place


@record
class CacheDrop:
    """Delete a file."""

    file: int


@record
class CacheData:
    """What stands there; None: it cannot be read."""

    partition_id: int
    token: int
    data: bytes | None


@record
class CacheWritten:
    """The disk is done with so many bytes of what it was to append."""

    size: int


@record
class CacheFailed:
    """The disk takes nothing more."""

    reason: str


CacheEffect: TypeAlias = CacheWrite | CacheRead | CacheDrop


class CacheIndex:
    """Which records are in which entry, and how much room is left."""

    __slots__ = ("_bytes", "_bytes_max", "_entries", "_file_size", "_files", "_next_file", "_unread", "_unwritten")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max  # 0: nothing is kept
        self._bytes = 0
        self._entries: dict[int, list[tuple[int, int, Place]]] = {}  # partition → (first id, file, place), sorted
        self._files: deque[tuple[int, int]] = deque()  # number, size; the newest is the last
        self._next_file = 0
        self._unwritten = 0  # bytes
        self._unread = 0  # entries that the disk was asked for

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return self._bytes

    @property
    def closed(self) -> bool:
        """Nothing is kept."""
        return not self._bytes_max

    @property
    def owed(self) -> bool:
        """The disk has not done yet all that it was asked to."""
        return bool(self._unwritten or self._unread)

    def add(self, partition_id: int, first: int, records: Sequence[Record]) -> list[CacheEffect]:
        """Keep a run of records: what the disk is to do."""
        data = encode_entry(partition_id, first, records)
        if not records or len(data) > self._bytes_max // FILES:
            return []
        if self._unwritten and self._unwritten + len(data) > UNWRITTEN_MAX:
            return []
        effects: list[CacheEffect] = []
        if not self._files or self._files[-1][1] + len(data) > self._bytes_max // FILES:
            self._files.append((self._next_file, 0))
            self._next_file += 1
        while len(self._files) > FILES:
            effects.append(self._drop_oldest())
        number, offset = self._files.pop()
        self._files.append((number, offset + len(data)))
        self._bytes += len(data)
        self._unwritten += len(data)
        place = Place(number, offset, len(data), first, len(records))
        insort(self._entries.setdefault(partition_id, []), (first, number, place), key=lambda entry: entry[:2])
        effects.append(CacheWrite(number, data))
        return effects

    def _drop_oldest(self) -> CacheDrop:
        number, size = self._files.popleft()
        self._bytes -= size
        for partition_id, entries in self._entries.items():
            self._entries[partition_id] = [entry for entry in entries if entry[1] != number]
        return CacheDrop(number)

    def find(self, partition_id: int, transaction_id: int) -> Place | None:
        """An entry with this record, if there is one."""
        entries = self._entries.get(partition_id, [])
        at = bisect_right(entries, transaction_id, key=lambda entry: entry[0])
        if not at:
            return None
        place = entries[at - 1][2]
        return place if transaction_id < place.first + place.count else None

    def read(self, partition_id: int, token: int, place: Place) -> CacheRead:
        """Ask the disk for an entry."""
        self._unread += 1
        return CacheRead(partition_id, token, place)

    def was_read(self) -> None:
        """It has answered, with the entry or without."""
        self._unread = max(0, self._unread - 1)

    def was_written(self, size: int) -> None:
        """It is done with so many bytes."""
        self._unwritten = max(0, self._unwritten - size)

    def forget(self, partition_id: int, place: Place) -> None:
        """An entry is not what was written."""
        entries = self._entries.get(partition_id, [])
        self._entries[partition_id] = [entry for entry in entries if entry[2] != place]

    def close(self) -> None:
        """Keep nothing any more, and expect no answer."""
        self._bytes_max = self._bytes = self._unwritten = self._unread = 0
        self._entries.clear()
        self._files.clear()


def encode_entry(partition_id: int, first: int, records: Sequence[Record]) -> bytes:
    """An entry as it is written."""
    body = records.encoded if isinstance(records, RecordRun) else encode_records(first, records)
    data = bytearray(_HEAD.pack(_MAGIC, 0, partition_id, first, len(records)) + body)
    data[4:8] = crc32(memoryview(data)[_CHECKED_FROM:]).to_bytes(4, "big")
    return bytes(data)


def decode_entry(data: bytes, partition_id: int, place: Place) -> RecordRun | None:
    """The records of an entry; None if it is not, in every byte, the one that was written there."""
    if len(data) != place.size:  # else there is a whole head in it
        return None
    magic, checksum, partition, first, count = _HEAD.unpack_from(data)
    expected = _MAGIC, partition_id, place.first, place.count
    if (magic, partition, first, count) != expected or crc32(memoryview(data)[_CHECKED_FROM:]) != checksum:
        return None
    try:
        run = RecordRun(data[_HEAD.size :], cut_records(data, _HEAD.size, len(data), count))
    except ProtocolError:
        return None
    return run if run.sound(first) == count else None

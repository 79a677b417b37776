"""Runs of records on the wire: one value each, whose records become objects only when somebody asks for one.

Records travel alike between clients, servers and storage nodes, so a run that is only passed on is passed on as its
bytes: a server that answers a range neither takes records apart nor puts them together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import overload

from waltz_core.base.checksum import crc32
from waltz_core.base.errors import ProtocolError
from waltz_core.base.log import Record
from waltz_core.base.twins import twin
from waltz_core.wire.encoded_run import EncodedRun
from waltz_core.wire.headers import HEADER_SIZE, HeaderRun
from waltz_core.wire.primitives import RECORD_SIZE_MIN, Field, Negative, read_count, read_records, short, write_record

_COUNT = Struct(">i")
_PLACE = Struct(">28xi").unpack_from  # of a record: how long its data is
_ID = Struct(">q").unpack_from
_CHECKSUM = Struct(">I").unpack_from
_SIGNED = Struct(">i").unpack_from
_START_SIZE = 32  # bytes of a record before its data
_END_SIZE = 4  # and behind it


@twin
def cut_records(buffer: bytes, at: int, end: int, count: int) -> list[int]:
    """Where each of the `count` records from `at` on begins, and where the last one ends, counted from `at`.

    Raises:
        ProtocolError: a record ends behind `end`, or its data is null.
    """
    begin, starts = at, [0]
    for _ in range(count):
        if end - at < RECORD_SIZE_MIN:
            raise short(at, end, RECORD_SIZE_MIN)
        (size,) = _PLACE(buffer, at)
        if size < 0:
            raise ProtocolError("data of a record is null")
        at += _START_SIZE
        if end - at - size < _END_SIZE:
            raise short(at, end, size + _END_SIZE)
        at += size + _END_SIZE
        starts.append(at - begin)
    return starts


@twin
def data_of(buffer: bytes, starts: list[int], count: int) -> list[bytes]:
    """The data of the first `count` records, or of all if they are fewer."""
    return [buffer[start + _START_SIZE : end - _END_SIZE] for start, end in pairwise(starts[: count + 1])]


@twin
def cut_headers(encoded: bytes, starts: list[int]) -> bytes:
    """All but the data and its length and checksum, of every record."""
    return b"".join([encoded[start : start + HEADER_SIZE] for start in starts[:-1]])


@twin
def sound_count(buffer: bytes, starts: list[int], first: int) -> int:
    """How many records, from the first on, have the ids `first`, `first + 1`, … and the checksum of their data."""
    for number in range(len(starts) - 1):
        at, end = starts[number], starts[number + 1] - _END_SIZE
        if _ID(buffer, at)[0] != first + number or crc32(buffer[at + _START_SIZE : end]) != _CHECKSUM(buffer, end)[0]:
            return number
    return len(starts) - 1


class RecordRun(EncodedRun[Record]):
    """Records, encoded.

    Args:
        encoded: the records, and nothing else.
        starts: what `cut_records` says of them.
    """

    __slots__ = ("_count", "_places")

    def __init__(self, encoded: bytes, starts: list[int]) -> None:
        self.encoded = encoded
        self._count = len(starts) - 1
        self._places: list[int] | None = starts

    @classmethod
    def uncut(cls, encoded: bytes, count: int) -> RecordRun:
        """So many records, cut when somebody asks for one of them: a run that is only passed on never is."""
        run = cls(encoded, [0])
        run._count = count
        run._places = None
        return run

    @property
    def _starts(self) -> list[int]:
        if self._places is None:
            self._places = cut_records(self.encoded, 0, len(self.encoded), self._count)
        return self._places

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> Record: ...

    @overload
    def __getitem__(self, at: slice) -> RecordRun: ...

    def __getitem__(self, at: int | slice) -> Record | RecordRun:
        if isinstance(at, slice):
            first, end, step = at.indices(self._count)
            assert step == 1, "a run has no gaps"
            return self if (first, end) == (0, self._count) else self._part(first, max(first, end))
        number, starts = range(self._count)[at], self._starts
        return read_records(self.encoded, starts[number], starts[number + 1], 1)[0][0]

    @classmethod
    def joined(cls, runs: Sequence[RecordRun]) -> RecordRun:
        """Runs that follow one another, as one."""
        if len(runs) == 1:
            return runs[0]
        return cls.uncut(b"".join([run.encoded for run in runs]), sum(map(len, runs)))

    def _part(self, first: int, end: int) -> RecordRun:
        starts = self._starts
        return RecordRun.uncut(self.encoded[starts[first] : starts[end]], end - first)

    def __iter__(self) -> Iterator[Record]:
        return iter(read_records(self.encoded, 0, len(self.encoded), len(self))[0])

    def sound(self, first: int) -> int:
        """How many, from the first on, have the ids `first`, `first + 1`, … and the checksum of their data."""
        return sound_count(self.encoded, self._starts, first)

    def headers(self) -> HeaderRun:
        """All but the data, which is not looked at."""
        return HeaderRun(cut_headers(self.encoded, self._starts))

    def payload(self, number: int) -> tuple[bytes, int]:
        """The data of one, and its checksum."""
        start, end = self._starts[number], self._starts[number + 1] - _END_SIZE
        return self.encoded[start + _START_SIZE : end], _SIGNED(self.encoded, end)[0]

    def payloads(self, count: int) -> list[bytes]:
        """The data of the first `count`."""
        return data_of(self.encoded, self._starts, count)

    def size(self, overhead: int) -> int:
        """Bytes of data, each counted with `overhead` beside its own."""
        return len(self.encoded) + (overhead - RECORD_SIZE_MIN) * len(self)

    def fitting(self, size_max: int, overhead: int) -> int:
        """How many fit into `size_max` bytes, each counted with `overhead` beside its data; the first always does."""
        beside = overhead - RECORD_SIZE_MIN
        if not self or self.size(overhead) <= size_max:
            return len(self)
        ends = (end + beside * number for number, end in enumerate(self._starts[1:], start=1))
        return max(1, sum(size <= size_max for size in ends))

    def pieces(self, size_max: int, overhead: int) -> Iterator[tuple[int, RecordRun]]:
        """In pieces of at most `size_max` bytes, counted so, each with the place of its first record.

        A larger record is in none of them.
        """
        starts, beside = self._starts, overhead - RECORD_SIZE_MIN
        first = size = 0
        for number, (start, end) in enumerate(pairwise(starts)):
            own = end - start + beside
            if size + own > size_max:
                if first < number:
                    yield first, self[first:number]
                first, size = (number, 0) if own <= size_max else (number + 1, -own)
            size += own
        if first < len(self):
            yield first, self[first:]


NO_RECORDS = RecordRun(b"", [0])


def headers_of(records: Sequence[Record] | HeaderRun) -> HeaderRun:
    """The headers of records, if they are not headers already."""
    return records.headers() if isinstance(records, RecordRun) else HeaderRun.of(records)


def record_list(negative: Negative) -> Field[Sequence[Record]]:
    """An int32 count and that many records, read as a run. Checksums are not verified, as in `read_records`."""

    def read(buffer: bytes, at: int, end: int) -> tuple[RecordRun, int]:
        count, at = read_count(buffer, at, end, RECORD_SIZE_MIN, negative)
        starts = cut_records(buffer, at, end, count)
        stop = at + starts[-1]
        return RecordRun(buffer[at:stop], starts), stop

    def write(out: bytearray, records: Sequence[Record]) -> None:
        out += _COUNT.pack(len(records))
        if isinstance(records, RecordRun):
            out += records.encoded
            return
        for record in records:
            write_record(out, record)

    return Field(read, write, 4)

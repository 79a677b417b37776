"""Runs of record headers on the wire: one value each, as runs of records are (`records.py`).

A header has a fixed size, so a run is its bytes and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Protocol, overload

from waltz_core.base.ids import ReqId
from waltz_core.base.log import RecordHeader
from waltz_core.base.twins import twin
from waltz_core.wire.encoded_run import EncodedRun
from waltz_core.wire.primitives import RECORD_HEADER_LAYOUT, Field, Negative, read_count

_ID = Struct(">q20x")
HEADER_SIZE = RECORD_HEADER_LAYOUT.size


class HasHeader(Protocol):
    """What the feed shows of a transaction besides its id."""

    @property
    def req_id(self) -> ReqId: ...

    @property
    def header(self) -> int: ...


class HasRecordHeader(HasHeader, Protocol):
    """A record or its header."""

    @property
    def transaction_id(self) -> int: ...


@twin
def dense_ids(encoded: bytes, first: int) -> bool:
    """Whether the ids of encoded headers are `first`, `first + 1`, …"""
    ids = [one for (one,) in _ID.iter_unpack(encoded)]
    return ids == list(range(first, first + len(ids)))


class HeaderRun(EncodedRun[RecordHeader]):
    """Headers of records, encoded."""

    __slots__ = ()

    def __init__(self, encoded: bytes) -> None:
        assert len(encoded) % HEADER_SIZE == 0
        self.encoded = encoded

    @classmethod
    def of(cls, records: Iterable[HasRecordHeader]) -> HeaderRun:
        """The headers of records."""
        if isinstance(records, HeaderRun):
            return records
        return cls(b"".join([RECORD_HEADER_LAYOUT.pack(one.transaction_id, one.req_id, one.header) for one in records]))

    def __len__(self) -> int:
        return len(self.encoded) // HEADER_SIZE

    @overload
    def __getitem__(self, at: int) -> RecordHeader: ...

    @overload
    def __getitem__(self, at: slice) -> HeaderRun: ...

    def __getitem__(self, at: int | slice) -> RecordHeader | HeaderRun:
        if isinstance(at, slice):
            first, end, step = at.indices(len(self))
            assert step == 1, "a run has no gaps"
            return HeaderRun(self.encoded[first * HEADER_SIZE : max(first, end) * HEADER_SIZE])
        return RecordHeader(*RECORD_HEADER_LAYOUT.unpack_from(self.encoded, range(len(self))[at] * HEADER_SIZE))

    def __iter__(self) -> Iterator[RecordHeader]:
        for transaction_id, req_id, header in RECORD_HEADER_LAYOUT.iter_unpack(self.encoded):
            yield RecordHeader(transaction_id, req_id, header)

    def dense(self, first: int) -> bool:
        """Whether their ids are `first`, `first + 1`, …"""
        return dense_ids(self.encoded, first)


def header_list(negative: Negative) -> Field[Sequence[RecordHeader]]:
    """An int32 count and that many headers, read as a run."""

    def read(buffer: bytes, at: int, end: int) -> tuple[HeaderRun, int]:
        count, at = read_count(buffer, at, end, HEADER_SIZE, negative)
        stop = at + count * HEADER_SIZE
        return HeaderRun(buffer[at:stop]), stop

    def write(out: bytearray, headers: Sequence[RecordHeader]) -> None:
        out += len(headers).to_bytes(4)
        out += HeaderRun.of(headers).encoded

    return Field(read, write, 4)

"""Every record of a segment, good or bad, from its bytes alone: for tools that look and change nothing. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from waltz_core.base.log import Record
from waltz_core.base.record import record
from waltz_core.storage.record_codec import RECORD_SIZE_MIN, check_record, decode_run
from waltz_core.storage.segment import HEADER_SIZE, may_be_torn, resync


@record
class Row:
    """One transaction of a segment."""

    transaction_id: int
    place: int | None  # offset of an intact record, None if it is damaged
    size: int  # of the record, 0 if it is damaged
    indexed: int | None  # offset that the index gives, None if it has no such entry

    @property
    def index_right(self) -> bool:
        """The index leads to the record."""
        return self.place is not None and self.indexed == self.place


@record
class Tail:
    """Bytes behind the last record that can be made out: a torn write, or one under way."""

    next_id: int
    place: int
    size: int


def walk(data: bytes, first_id: int, entries: array[int]) -> Iterator[Row | Tail]:
    """The records of a data file in order; at the end a `Tail` if a write that was cut short is left.

    Args:
        data: the whole file, header included.
        first_id: of the segment.
        entries: of its index, as many as there are.
    """
    at, number = HEADER_SIZE, 0
    while at < len(data):
        size = check_record(data, at, first_id + number)
        if size > 0:
            yield Row(first_id + number, at, size, _entry(entries, number))
            at += size
            number += 1
            continue
        follower = _next(data, at, first_id, number, entries)
        if follower is None:
            if may_be_torn(data[at:], at, first_id + number):
                yield Tail(first_id + number, at, len(data) - at)
            else:
                yield Row(first_id + number, None, 0, _entry(entries, number))
            return
        at, following = follower
        while number < following - first_id:
            yield Row(first_id + number, None, 0, _entry(entries, number))
            number += 1


def _entry(entries: array[int], number: int) -> int | None:
    return entries[number] if number < len(entries) else None


def _next(data: bytes, at: int, first_id: int, number: int, entries: array[int]) -> tuple[int, int] | None:
    """Place and id of the next intact record behind a bad one: where the index says, else by searching."""
    for later in range(number + 1, len(entries)):
        place = entries[later]
        if at < place <= len(data) - RECORD_SIZE_MIN and check_record(data, place, first_id + later) > 0:
            return place, first_id + later
    return resync(data, at, first_id + number)


def record_at(data: bytes, row: Row) -> Record:
    """The intact record of a row."""
    assert row.place is not None
    (found,), _ = decode_run(data[row.place : row.place + row.size], row.transaction_id, 1)
    return found

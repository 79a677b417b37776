"""Walking over the records of a data file, on disk."""

from __future__ import annotations

from waltz_core.storage.procedure import Procedure, ReadSpan, read
from waltz_core.storage.record_codec import RECORD_SIZE_MIN, announced_size, check_record
from waltz_core.storage.segment import HEADER_SIZE, scan

CHUNK = 1 << 20  # bytes read at once


def place_in_file(at: int, size: int) -> bool:
    """Whether a record can begin at an offset of a file of this size."""
    return HEADER_SIZE <= at <= size - RECORD_SIZE_MIN


def record_span(path: str, at: int, size: int) -> ReadSpan:
    """What is read of a record first: most are no longer."""
    return ReadSpan(path, at, min(size - at, 4096))


def check_in_file(path: str, at: int, transaction_id: int, size: int) -> Procedure[int]:
    """Size of the record at an offset of a file if it is intact and has this id, else -1."""
    if not place_in_file(at, size):
        return -1
    span = record_span(path, at, size)
    data = yield from read(span.path, span.offset, span.length)
    if len(data) >= RECORD_SIZE_MIN:
        announced = announced_size(data, 0)
        if len(data) < announced <= size - at:
            data = yield from read(path, at, announced)
    return check_record(data, 0, transaction_id)


def scan_file(path: str, first_id: int, start: int, size: int, offsets: list[int]) -> Procedure[tuple[int, int]]:
    """Walk over intact records of a file from offset `start` on.

    Returns:
        The offset at which the walk ended, and the id expected there.
    """
    at, next_id, length = start, first_id, CHUNK
    while at < size:
        data = yield from read(path, at, min(length, size - at))
        walked, reached = scan(data, 0, next_id, offsets, at)
        at += walked
        if reached > next_id:
            next_id, length = reached, CHUNK
            continue
        announced = announced_size(data, 0) if len(data) >= RECORD_SIZE_MIN else -1
        if len(data) < announced <= size - at and length < announced:
            length = announced  # one record longer than a chunk
            continue
        break
    return at, next_id

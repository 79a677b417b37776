"""Walking over the records of a data file, on disk."""

from __future__ import annotations

from waltz_core.storage.effects import FaultKind
from waltz_core.storage.procedure import DiskError, Procedure, ReadSpan, read
from waltz_core.storage.record_codec import HEAD_SIZE, RECORD_SIZE_MIN, announced_size, check_record
from waltz_core.storage.segment import HEADER_SIZE, SECTOR, scan

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


# ---- where a sector may be bad -------------------------------------------------------------------


def passable(fault: DiskError) -> bool:
    """Whether a failed read can be one bad sector."""
    return fault.kind is FaultKind.IO


def read_readable(path: str, at: int, length: int) -> Procedure[bytes | None]:
    """As `read`; None if a sector of it cannot be read.

    Raises:
        DiskError: the file is gone.
    """
    try:
        return (yield from read(path, at, length))
    except DiskError as fault:
        if not passable(fault):
            raise
    return None


def check_readable(path: str, at: int, transaction_id: int, size: int) -> Procedure[int]:
    """As `check_in_file`; a record that cannot be read is not intact, whatever stands behind one that can.

    Raises:
        DiskError: the file is gone.
    """
    try:
        return (yield from check_in_file(path, at, transaction_id, size))
    except DiskError as fault:
        if not passable(fault):
            raise
    try:  # no byte behind the record
        head = yield from read(path, at, HEAD_SIZE)
        announced = announced_size(head, 0) if len(head) == HEAD_SIZE else -1
        if not RECORD_SIZE_MIN <= announced <= size - at:
            return -1
        return check_record((yield from read(path, at, announced)), 0, transaction_id)
    except DiskError as fault:
        if not passable(fault):
            raise
    return -1


def scan_readable(
    path: str, first_id: int, start: int, size: int, offsets: list[int]
) -> Procedure[tuple[int, int, bool]]:
    """As `scan_file`; also ends at a record that cannot be read, and tells so.

    Raises:
        DiskError: the file is gone.
    """
    before = len(offsets)
    try:
        at, next_id = yield from scan_file(path, first_id, start, size, offsets)
    except DiskError as fault:
        if not passable(fault):
            raise
    else:
        return at, next_id, False
    at, next_id = start, first_id + len(offsets) - before
    if len(offsets) > before:  # the last one again: where it ends is not known here
        at, next_id = offsets.pop(), next_id - 1
    while (record_size := (yield from check_readable(path, at, next_id, size))) > 0:
        offsets.append(at)
        at += record_size
        next_id += 1
    return at, next_id, True


def read_around_holes(path: str, at: int, length: int, holes: list[range]) -> Procedure[bytes]:
    """As `read`, with zeros for sectors that cannot be read, whose bytes are entered in `holes`.

    Raises:
        DiskError: the file is gone.
    """
    whole = yield from read_readable(path, at, length)
    if whole is not None:
        return whole
    pieces: list[bytes] = []
    end = at + length
    while at < end:
        border = min(end, at - at % SECTOR + SECTOR)
        piece = yield from read_readable(path, at, border - at)
        if piece is None:
            piece = bytes(border - at)
            begin = holes.pop().start if holes and holes[-1].stop == at else at
            holes.append(range(begin, border))
        pieces.append(piece)
        at = border
    return b"".join(pieces)

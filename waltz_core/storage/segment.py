"""The header that data and index files share, file names, and scanning bytes for records. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from waltz_core.base.checksum import crc32
from waltz_core.base.record import record
from waltz_core.storage.record_codec import HEAD_SIZE, RECORD_SIZE_MIN, announced_size, check_record

HEADER_SIZE = 128
_HEADER = Struct(">iq16siq")
_ID = Struct(">q")
SECTOR = 512  # what a disk writes whole or not at all
_PIECE_MIN = 8  # zero bytes that are no accident
_RESYNC_IDS = 64  # how many following ids are looked for behind a bad record
_RESYNC_PLACES = 32  # how many places with the bytes of such an id are tried


@record
class SegmentHeader:
    """First 40 bytes of a data or index file; 88 zero bytes follow."""

    created_ms: int  # since 1970
    key: bytes  # cluster key, 16 bytes
    partition_id: int
    first_id: int
    version: int = 0


def encode_header(header: SegmentHeader) -> bytes:
    """The 128 bytes at the start of a file."""
    return _HEADER.pack(header.version, header.created_ms, header.key, header.partition_id, header.first_id).ljust(
        HEADER_SIZE, b"\0"
    )


def decode_header(data: bytes) -> SegmentHeader | None:
    """None if there are fewer than 128 bytes."""
    if len(data) < HEADER_SIZE:
        return None
    version, created_ms, key, partition_id, first_id = _HEADER.unpack_from(data)
    return SegmentHeader(created_ms, key, partition_id, first_id, version)


def data_name(first_id: int) -> str:
    """Name of the data file whose first record is `first_id`."""
    return f"{first_id:019d}.seg"


def index_name(data: str) -> str:
    """Name of the index of a data file."""
    # Java: Partition.open replaces every ".seg" of the name.
    return data.replace(".seg", ".idx")


def id_of_name(name: str) -> int | None:
    """The first id a file name stands for, None if it is not one we would write."""
    stem = name[:-4]
    return int(stem) if len(stem) == 19 and stem.isascii() and stem.isdigit() else None


def scan(buffer: bytes, at: int, next_id: int, offsets: list[int], base: int) -> tuple[int, int]:
    """Walk over intact records with consecutive ids.

    Args:
        at: where the first one starts in `buffer`.
        offsets: receives the place of each in the file, whose byte `base` is the first of `buffer`.

    Returns:
        Where the walk ended in `buffer`, and the id expected there.
    """
    while (size := check_record(buffer, at, next_id)) > 0:
        offsets.append(base + at)
        at += size
        next_id += 1
    return at, next_id


def resync(buffer: bytes, at: int, bad_id: int) -> tuple[int, int] | None:
    """Find the next intact record behind a bad one.

    The bad record's own length is tried first; then the bytes of the following ids are looked for, and
    what stands there must check out as a record with that id.

    Returns:
        Its place in `buffer` and its id, None if there is none.
    """
    if len(buffer) - at >= RECORD_SIZE_MIN:
        size = announced_size(buffer, at)
        if size > 0 and check_record(buffer, at + size, bad_id + 1) > 0:
            return at + size, bad_id + 1
    for candidate in range(bad_id + 1, bad_id + 1 + _RESYNC_IDS):
        wanted, place = _ID.pack(candidate), at
        for _ in range(_RESYNC_PLACES):
            place = buffer.find(wanted, place + 1)
            if place < 0:
                break
            if check_record(buffer, place, candidate) > 0:
                return place, candidate
    return None


def may_be_torn(buffer: bytes, base: int, bad_id: int) -> bool:
    """Whether a bad record behind which nothing intact follows can be a write that a power failure cut short.

    Then its end is not there, or a disk sector of it reads as zero. Otherwise it was whole once, perhaps acknowledged,
    and has rotted since.

    Args:
        buffer: everything from the record to the end of the file.
        base: where that begins in the file.
        bad_id: the id that belongs there.
    """
    if len(buffer) < RECORD_SIZE_MIN:
        return True
    expected, end = _ID.pack(bad_id), HEAD_SIZE
    if buffer.startswith(expected):
        end = announced_size(buffer, 0)
        if end > len(buffer):
            return not _matches_but_for_length(buffer)
    known_zeros = len(expected) - len(expected.lstrip(b"\0"))  # a sector with no more of it lacks nothing
    return any(border > known_zeros and not any(buffer[start:border]) for start, border in _pieces(end, base))


def _matches_but_for_length(buffer: bytes) -> bool:
    """Whether the bytes that are there are one record, of a length other than it says."""
    length = (len(buffer) - RECORD_SIZE_MIN).to_bytes(4)
    return crc32(buffer[:28] + length + buffer[32:-4]) == int.from_bytes(buffer[-4:])


def holds_lost_sector(buffer: bytes, end: int, base: int) -> bool:
    """Whether a disk sector that overlaps the first `end` bytes of `buffer` reads as if it was never written.

    A write that was cut short by a power failure leaves sectors behind that read as zero up to their
    border; rot does not. `base` is the place of `buffer` in the file.
    """
    pieces = (buffer[start:border] for start, border in _pieces(end, base))
    return any(len(piece) >= _PIECE_MIN and not any(piece) for piece in pieces)


def _pieces(end: int, base: int) -> Iterator[tuple[int, int]]:
    """From the start or a border of sectors to the next border, as far as the first `end` bytes reach."""
    start = 0
    while start < end:
        border = start + SECTOR - (base + start) % SECTOR
        yield start, border
        start = border

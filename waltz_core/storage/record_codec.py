"""Records as they stand in a data file: 40 bytes around the data, a checksum over everything before it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import Struct

from waltz_core.base.checksum import crc32
from waltz_core.base.ids import ReqId
from waltz_core.base.log import Record

HEAD_SIZE = 36  # id, request id, header, data length, data checksum
RECORD_SIZE_MIN = 40  # and the record checksum behind the data

_HEAD = Struct(">q16siii")
_CHECKSUM = Struct(">I")
_LENGTH = Struct(">i")


def encode_run(
    records: Sequence[Record], start: int, offset: int, threshold: int, parts: list[bytes], offsets: array[int]
) -> tuple[int, int]:
    """Encode records until the segment is longer than `threshold` or none is left.

    Args:
        start: first record to take.
        offset: where it goes in the data file; its offset and those of its successors are appended to `offsets`.
        parts: receives the bytes, in order.

    Returns:
        How many records of `records` are done, and the offset behind the last one.
    """
    head_of, checksum_of, add, place = _HEAD.pack, _CHECKSUM.pack, parts.append, offsets.append
    for at in range(start, len(records)):
        one = records[at]
        data = one.data
        body = head_of(one.transaction_id, one.req_id, one.header, len(data), one.checksum) + data
        add(body)
        add(checksum_of(crc32(body)))
        place(offset)
        offset += len(body) + 4
        if offset > threshold:
            return at + 1, offset
    return len(records), offset


def encode_record(record: Record) -> bytes:
    """One record as it stands in a data file."""
    parts: list[bytes] = []
    encode_run((record,), 0, 0, 0, parts, array("Q"))
    return b"".join(parts)


def check_record(buffer: bytes, at: int, transaction_id: int) -> int:
    """Size of the record at `at` if it is whole, has this id and the right checksum, else -1.

    The length is compared with the bytes at hand before it is used.
    """
    left = len(buffer) - at
    if left < RECORD_SIZE_MIN:
        return -1
    found, _, _, length, _ = _HEAD.unpack_from(buffer, at)
    if found != transaction_id or not 0 <= length <= left - RECORD_SIZE_MIN:
        return -1
    end = at + HEAD_SIZE + length
    if crc32(buffer[at:end]) != _CHECKSUM.unpack_from(buffer, end)[0]:
        return -1
    return RECORD_SIZE_MIN + int(length)


def announced_size(buffer: bytes, at: int) -> int:
    """Size that the length field of a record at `at` gives it, -1 if it is impossible.

    The buffer must hold the record's first 36 bytes.
    """
    (length,) = _LENGTH.unpack_from(buffer, at + 28)
    return RECORD_SIZE_MIN + int(length) if length >= 0 else -1


def decode_run(buffer: bytes, first: int, count: int) -> tuple[list[Record], int]:
    """Read up to `count` records that stand back to back from the start of `buffer`, verifying each.

    Returns:
        The records up to the first that is not whole and intact, and the offset behind them.
    """
    records: list[Record] = []
    at, size, head = 0, len(buffer), _HEAD.unpack_from
    for transaction_id in range(first, first + count):
        if size - at < RECORD_SIZE_MIN:
            break
        found, req_id, header, length, checksum = head(buffer, at)
        end = at + HEAD_SIZE + length
        if found != transaction_id or length < 0 or end + 4 > size:
            break
        if crc32(buffer[at:end]) != _CHECKSUM.unpack_from(buffer, end)[0]:
            break
        records.append(Record(transaction_id, ReqId(req_id), header, buffer[at + HEAD_SIZE : end], checksum))
        at = end + 4
    return records, at

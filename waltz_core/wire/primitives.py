"""Field codecs: integers, strings, arrays and the small structures that messages are built of.

All integers are big-endian two's complement. Every reader takes (buffer, at, end), never looks behind
`end`, and returns the value with the place behind it; a count from the wire is compared with the bytes
that are left before anything is allocated.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from waltz_core.base.checksum import crc32
from waltz_core.base.errors import ChecksumError, ProtocolError
from waltz_core.base.ids import ReqId
from waltz_core.base.log import Record, RecordHeader, SessionInfo

T = TypeVar("T")
K = TypeVar("K")

_INT8 = Struct(">b")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_FLOAT64 = Struct(">d")
_KEY = Struct(">16s")
RECORD_HEADER_LAYOUT = Struct(">q16si")  # transaction id, request id, header
_RECORD_START = Struct(">q16sii")  # up to the length of the data
_SESSION_INFO = Struct(">qqq")
_MINUS_ONE = _INT32.pack(-1)

RECORD_SIZE_MIN = 36  # a wire record without data

_INT_ARRAYS = tuple(Struct(f">{n}i") for n in range(33))  # locks per append are few; larger ones compile on demand


class Field(NamedTuple, Generic[T]):
    """How one kind of value is read and written."""

    read: Callable[[bytes, int, int], tuple[T, int]]
    write: Callable[[bytearray, T], None]
    size_min: int  # bytes of the smallest value; bounds the counts of lists


def short(at: int, end: int, size: int) -> ProtocolError:
    """The error for a body that ends too early."""
    return ProtocolError(f"corrupted message: {size} more bytes needed, {end - at} left")


def checksum_of(data: bytes) -> int:
    """CRC-32 of `data` as a signed 32-bit integer, the form on the wire and on disk."""
    return (crc32(data) ^ 0x80000000) - 0x80000000


def verify(data: bytes, checksum: int) -> None:
    """Raise ChecksumError unless `checksum` is that of `data`."""
    actual = checksum_of(data)
    if actual != checksum:
        raise ChecksumError(f"checksum error: {checksum} announced, {len(data)} bytes of data have {actual}")


# ---- values of one size ----------------------------------------------------------------------


def _fixed(struct: Struct) -> Field[Any]:
    unpack, pack, size = struct.unpack_from, struct.pack, struct.size

    def read(buffer: bytes, at: int, end: int) -> tuple[Any, int]:
        if end - at < size:
            raise short(at, end, size)
        return unpack(buffer, at)[0], at + size

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return Field(read, write, size)


INT8: Field[int] = _fixed(_INT8)
INT16: Field[int] = _fixed(_INT16)
INT32: Field[int] = _fixed(_INT32)
INT64: Field[int] = _fixed(_INT64)
FLOAT64: Field[float] = _fixed(_FLOAT64)
REQ_ID: Field[ReqId] = _fixed(_KEY)


def _read_bool(buffer: bytes, at: int, end: int) -> tuple[bool, int]:
    if end - at < 1:
        raise short(at, end, 1)
    return buffer[at] == 1, at + 1  # Java: only 1 is true


def _write_bool(out: bytearray, value: bool) -> None:
    out.append(1 if value else 0)


BOOL = Field(_read_bool, _write_bool, 1)

# ---- bytes and text --------------------------------------------------------------------------


def read_bytes(buffer: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    """An int32 count and that many bytes; any negative count is null."""
    if end - at < 4:
        raise short(at, end, 4)
    size = _INT32.unpack_from(buffer, at)[0]
    at += 4
    if size < 0:
        return None, at
    if end - at < size:
        raise short(at, end, size)
    return buffer[at : at + size], at + size


def write_bytes(out: bytearray, value: bytes | None) -> None:
    """The inverse of `read_bytes`; null has count -1."""
    if value is None:
        out += _MINUS_ONE
    else:
        out += _INT32.pack(len(value))
        out += value


def _read_data(buffer: bytes, at: int, end: int) -> tuple[bytes, int]:
    data, at = read_bytes(buffer, at, end)
    if data is None:
        raise ProtocolError("data is null")
    return data, at


DATA = Field(_read_data, write_bytes, 4)
"""Bytes that must not be null."""

_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def decode_text(data: bytes) -> str:
    """UTF-8 with U+FFFD for what is not; as many replacements as the Java decoder makes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        # Java: an encoded surrogate is one malformed sequence; to CPython each of its bytes is one.
        return _SURROGATE.sub(b"\xff", data).decode("utf-8", "replace")


def encode_text(text: str) -> bytes:
    """UTF-8; a lone surrogate becomes `?`."""
    return text.encode("utf-8", "replace")


def read_string(buffer: bytes, at: int, end: int) -> tuple[str | None, int]:
    """Bytes holding UTF-8, or null."""
    data, at = read_bytes(buffer, at, end)
    return None if data is None else decode_text(data), at


def write_string(out: bytearray, value: str | None) -> None:
    """The inverse of `read_string`."""
    write_bytes(out, None if value is None else encode_text(value))


STRING = Field(read_string, write_string, 4)


def _read_text(buffer: bytes, at: int, end: int) -> tuple[str, int]:
    text, at = read_string(buffer, at, end)
    if text is None:
        raise ProtocolError("text is null")
    return text, at


TEXT = Field(_read_text, write_string, 4)
"""A string that must not be null."""

# ---- arrays, lists, maps ---------------------------------------------------------------------


class Negative(enum.Enum):
    """What a negative count means; it differs from message to message."""

    REFUSED = "refused"
    EMPTY = "empty"


def read_count(
    buffer: bytes, at: int, end: int, size_min: int, negative: Negative = Negative.REFUSED
) -> tuple[int, int]:
    """A count of items of at least `size_min` bytes each, never more than the bytes left can hold."""
    if end - at < 4:
        raise short(at, end, 4)
    count = _INT32.unpack_from(buffer, at)[0]
    at += 4
    if count < 0:
        if negative is Negative.EMPTY:
            return 0, at
        raise ProtocolError(f"negative count {count}")
    if count * size_min > end - at:
        raise short(at, end, count * size_min)
    return count, at


def int_array(buffer: bytes, at: int, count: int) -> tuple[int, ...]:
    """`count` int32 at `at`; that they are there has been checked."""
    struct = _INT_ARRAYS[count] if count < len(_INT_ARRAYS) else Struct(f">{count}i")
    return struct.unpack_from(buffer, at)


def read_ints(buffer: bytes, at: int, end: int) -> tuple[tuple[int, ...] | None, int]:
    """An int32 count and that many int32; any negative count is null."""
    if end - at < 4:
        raise short(at, end, 4)
    count = _INT32.unpack_from(buffer, at)[0]
    at += 4
    if count < 0:
        return None, at
    if end - at < 4 * count:
        raise short(at, end, 4 * count)
    return int_array(buffer, at, count), at + 4 * count


def write_ints(out: bytearray, value: tuple[int, ...] | None) -> None:
    """The inverse of `read_ints`; null has count -1."""
    if value is None:
        out += _MINUS_ONE
    else:
        count = len(value)
        out += _INT32.pack(count)
        out += (_INT_ARRAYS[count] if count < len(_INT_ARRAYS) else Struct(f">{count}i")).pack(*value)


INTS = Field(read_ints, write_ints, 4)


def _read_int_list(buffer: bytes, at: int, end: int) -> tuple[tuple[int, ...], int]:
    count, at = read_count(buffer, at, end, 4)
    return int_array(buffer, at, count), at + 4 * count


INT_LIST = Field(_read_int_list, write_ints, 4)
"""Like INTS, but a negative count is an error."""


def list_of(item: Field[T], negative: Negative = Negative.REFUSED) -> Field[tuple[T, ...]]:
    """An int32 count and that many items."""
    read_item, write_item, size_min = item

    def read(buffer: bytes, at: int, end: int) -> tuple[tuple[T, ...], int]:
        count, at = read_count(buffer, at, end, size_min, negative)
        values: list[T] = []
        for _ in range(count):
            value, at = read_item(buffer, at, end)
            values.append(value)
        return tuple(values), at

    def write(out: bytearray, values: tuple[T, ...]) -> None:
        out += _INT32.pack(len(values))
        for value in values:
            write_item(out, value)

    return Field(read, write, 4)


def flags_by(key: Field[K]) -> Field[tuple[tuple[K, bool], ...]]:
    """A map to booleans: a negative count is an empty map, of equal keys the last wins, any order."""
    read_key, write_key, size_min = key

    def read(buffer: bytes, at: int, end: int) -> tuple[tuple[tuple[K, bool], ...], int]:
        count, at = read_count(buffer, at, end, size_min + 1, Negative.EMPTY)
        flags: dict[K, bool] = {}
        for _ in range(count):
            name, at = read_key(buffer, at, end)
            flags[name], at = _read_bool(buffer, at, end)
        return tuple(flags.items()), at

    def write(out: bytearray, value: tuple[tuple[K, bool], ...]) -> None:
        out += _INT32.pack(len(value))
        for name, flag in value:
            write_key(out, name)
            _write_bool(out, flag)

    return Field(read, write, 4)


def pair(first: Field[K], second: Field[T]) -> Field[tuple[K, T]]:
    """Two values, one after the other."""

    def read(buffer: bytes, at: int, end: int) -> tuple[tuple[K, T], int]:
        left, at = first.read(buffer, at, end)
        right, at = second.read(buffer, at, end)
        return (left, right), at

    def write(out: bytearray, value: tuple[K, T]) -> None:
        first.write(out, value[0])
        second.write(out, value[1])

    return Field(read, write, first.size_min + second.size_min)


def optional(field: Field[T]) -> Field[T | None]:
    """A boolean, then the value if it is true."""
    read_value, write_value, _ = field

    def read(buffer: bytes, at: int, end: int) -> tuple[T | None, int]:
        present, at = _read_bool(buffer, at, end)
        return read_value(buffer, at, end) if present else (None, at)

    def write(out: bytearray, value: T | None) -> None:
        _write_bool(out, value is not None)
        if value is not None:
            write_value(out, value)

    return Field(read, write, 1)


# ---- structures ------------------------------------------------------------------------------


def _read_uuid(buffer: bytes, at: int, end: int) -> tuple[UUID, int]:
    if end - at < 16:
        raise short(at, end, 16)
    return UUID(bytes=buffer[at : at + 16]), at + 16


def _write_uuid(out: bytearray, value: UUID) -> None:
    out += value.bytes


UUID_KEY = Field(_read_uuid, _write_uuid, 16)


def _read_record_header(buffer: bytes, at: int, end: int) -> tuple[RecordHeader, int]:
    if end - at < 28:
        raise short(at, end, 28)
    transaction_id, req_id, header = RECORD_HEADER_LAYOUT.unpack_from(buffer, at)
    return RecordHeader(transaction_id, req_id, header), at + 28


def _write_record_header(out: bytearray, value: RecordHeader) -> None:
    out += RECORD_HEADER_LAYOUT.pack(value.transaction_id, value.req_id, value.header)


RECORD_HEADER = Field(_read_record_header, _write_record_header, 28)


def _read_record(buffer: bytes, at: int, end: int) -> tuple[Record, int]:
    records, at = read_records(buffer, at, end, 1)
    return records[0], at


def read_records(buffer: bytes, at: int, end: int, count: int) -> tuple[tuple[Record, ...], int]:
    """`count` records. Checksums are not verified here: a storage node must be able to pass on what it holds.

    Raises:
        ProtocolError: a record ends behind `end`, or its data is null.
    """
    records: list[Record] = []
    append, start, int32 = records.append, _RECORD_START.unpack_from, _INT32.unpack_from
    for _ in range(count):
        if end - at < RECORD_SIZE_MIN:
            raise short(at, end, RECORD_SIZE_MIN)
        transaction_id, req_id, header, size = start(buffer, at)
        at += 32
        stop = at + size
        if size < 0:
            raise ProtocolError("data of a record is null")
        if end - stop < 4:
            raise short(at, end, size + 4)
        append(Record(transaction_id, req_id, header, buffer[at:stop], int32(buffer, stop)[0]))
        at = stop + 4
    return tuple(records), at


def write_record(out: bytearray, record: Record) -> None:
    """The inverse of `read_records` for one record."""
    data = record.data
    out += _RECORD_START.pack(record.transaction_id, record.req_id, record.header, len(data))
    out += data
    out += _INT32.pack(record.checksum)


RECORD = Field(_read_record, write_record, RECORD_SIZE_MIN)


def _read_session_info(buffer: bytes, at: int, end: int) -> tuple[SessionInfo, int]:
    if end - at < 24:
        raise short(at, end, 24)
    return SessionInfo(*_SESSION_INFO.unpack_from(buffer, at)), at + 24


def _write_session_info(out: bytearray, value: SessionInfo) -> None:
    out += _SESSION_INFO.pack(value.session_id, value.low_water_mark, value.local_low_water_mark)


SESSION_INFO = Field(_read_session_info, _write_session_info, 24)


def structure(make: Callable[..., T], fields: Mapping[str, Field[Any]]) -> Field[T]:
    """A record whose attributes are written one after the other, in the order of `fields`."""
    reads = tuple(field.read for field in fields.values())
    writes = tuple((name, field.write) for name, field in fields.items())

    def read(buffer: bytes, at: int, end: int) -> tuple[T, int]:
        values = []
        for read_value in reads:
            value, at = read_value(buffer, at, end)
            values.append(value)
        return make(*values), at

    def write(out: bytearray, value: T) -> None:
        for name, write_value in writes:
            write_value(out, getattr(value, name))

    return Field(read, write, sum(field.size_min for field in fields.values()))

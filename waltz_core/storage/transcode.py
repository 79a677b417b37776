"""Records straight from the wire to the form they have on disk, and back, without an object for each in between.

On the wire the data checksum stands behind the data, on disk before it, with a checksum of the whole record
behind: everything else is moved, not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, TypeAlias

from waltz_core.base.checksum import crc32
from waltz_core.base.record import record
from waltz_core.base.twins import twin
from waltz_core.storage.record_codec import HEAD_SIZE, RECORD_SIZE_MIN, encode_record
from waltz_core.wire.primitives import BOOL, read_count, short
from waltz_core.wire.primitives import RECORD_SIZE_MIN as WIRE_SIZE_MIN
from waltz_core.wire.storage_codec import MAGIC, V0, V1
from waltz_core.wire.storage_messages import AppendRequest, StorageMessage
from waltz_core.wire.table import Codec, Table, WireProtocol

_COMMON = Struct(">xqqi")  # session, sequence, partition
_ID_AND_LENGTH = Struct(">q20xi")  # of a record; request id and header between them are not looked at
_ID = Struct(">q")
_CHECKSUM = Struct(">I")
_WIRE_HEAD = 32  # id, request id, header, length
_APPEND = 6


@record
class AppendRun:
    """An append whose ids follow one another; `parts` are its records as they stand on disk."""

    session_id: int
    seq_num: int
    partition_id: int
    first: int
    parts: Sequence[bytes]
    size: int  # of the parts together
    used_by_offline_recovery: bool


StoredAppend: TypeAlias = AppendRun | AppendRequest
"""What the node's port hands on: a run, or, where the ids have gaps or there is no record, the plain message."""


Incoming: TypeAlias = StorageMessage | AppendRun
"""What a node gets on its storage port."""


def run_of(append: StoredAppend) -> AppendRun | None:
    """`append` as a run; None if its ids do not follow one another."""
    if isinstance(append, AppendRun):
        return append
    records = append.records
    if any(one.transaction_id != records[0].transaction_id + at for at, one in enumerate(records)):
        return None
    parts = [encode_record(one) for one in records]
    first = records[0].transaction_id if records else -1
    return AppendRun(
        append.session_id,
        append.seq_num,
        append.partition_id,
        first,
        parts,
        sum(map(len, parts)),
        append.used_by_offline_recovery,
    )


def size_of(message: Incoming) -> int:
    """Bytes of the records that a request brings, 0 of any but an append."""
    if type(message) is AppendRun:
        return message.size
    if type(message) is AppendRequest:
        return sum(RECORD_SIZE_MIN + len(one.data) for one in message.records)
    return 0


def _decode_append(buffer: bytes, start: int, end: int) -> tuple[StoredAppend, int]:
    if end - start < 26:
        raise short(start, end, 26)
    session_id, seq_num, partition_id = _COMMON.unpack_from(buffer, start)
    count, at = read_count(buffer, start + 21, end, WIRE_SIZE_MIN)
    transcoded = transcode_records(buffer, at, end, count)
    if transcoded is None:
        return _V0_DECODE(buffer, start, end)  # which says what is wrong, if it is not only that ids have gaps
    first = _ID.unpack_from(buffer, at)[0] if count else -1
    parts, at = transcoded
    size = at - start - 25 + (HEAD_SIZE + 4 - WIRE_SIZE_MIN) * count
    offline, at = BOOL.read(buffer, at, end)
    return AppendRun(session_id, seq_num, partition_id, first, parts, size, offline), at


@twin
def transcode_records(buffer: bytes, at: int, end: int, count: int) -> tuple[list[bytes], int] | None:
    """`count` records from the wire, which begin at `at`, as they stand on disk, and the place behind them.

    None if they are not whole, or their ids do not follow one another.
    """
    unpack, checksum_of = _ID_AND_LENGTH.unpack_from, _CHECKSUM.pack
    parts: list[bytes] = []
    add = parts.append
    following = None
    for _ in range(count):
        if end - at < WIRE_SIZE_MIN:
            return None
        transaction_id, length = unpack(buffer, at)
        if following is not None and transaction_id != following:
            return None
        following = transaction_id + 1
        data = at + _WIRE_HEAD
        stop = data + length
        if length < 0 or end - stop < 4:
            return None
        body = buffer[at:data] + buffer[stop : stop + 4] + buffer[data:stop]
        add(body + checksum_of(crc32(body)))
        at = stop + 4
    return parts, at


@twin
def transcode_disk(buffer: bytes, first: int, count: int) -> tuple[bytes, list[int]]:
    """Up to `count` records that stand on disk back to back from the start of `buffer`, as they are on the wire.

    Each is verified; the first that is not whole and intact, or has not the next id, ends them.

    Returns:
        The records, where each of them begins in that, and where the last one ends.
    """
    parts: list[bytes] = []
    starts, at, size, unpack = [0], 0, len(buffer), _ID_AND_LENGTH.unpack_from
    for expected in range(first, first + count):
        if size - at < RECORD_SIZE_MIN:
            break
        transaction_id, length = unpack(buffer, at)
        data = at + HEAD_SIZE
        end = data + length
        if transaction_id != expected or length < 0 or end + 4 > size:
            break
        if crc32(buffer[at:end]) != _CHECKSUM.unpack_from(buffer, end)[0]:
            break
        parts += buffer[at : at + _WIRE_HEAD], buffer[data:end], buffer[at + _WIRE_HEAD : data]
        starts.append(starts[-1] + WIRE_SIZE_MIN + length)
        at = end + 4
    return b"".join(parts), starts


_V0_DECODE: Final = V0.codecs[_APPEND].decode
_TRANSCODING: Codec[StoredAppend] = Codec(_APPEND, AppendRun, lambda message, out: None, _decode_append)


def _storing(table: Table[StorageMessage]) -> Table[Incoming]:
    return Table([*table.plus(_TRANSCODING).codecs.values()])


STORING_PROTOCOL: WireProtocol[Incoming] = WireProtocol("storage", MAGIC, {0: _storing(V0), 1: _storing(V1)})
"""The storage protocol as a node speaks it: appends arrive as `StoredAppend`."""

assert RECORD_SIZE_MIN == WIRE_SIZE_MIN + 4

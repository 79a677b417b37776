"""How messages between clients and servers are coded, one table per version.

V1 adds read locks and storage connectivity, V2 append locks and partition assignments, V3 tells the
state of a partition instead of a boolean, V4 adds health.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any

from waltz_core.errors import ProtocolError
from waltz_core.ids import ReqId
from waltz_core.wire.client_messages import (
    AddPreferredPartitionRequest,
    AddPreferredPartitionResponse,
    AppendRequest,
    CheckStorageConnectivityRequest,
    CheckStorageConnectivityResponse,
    ClientMessage,
    FeedData,
    FeedRequest,
    FeedSuspended,
    FlushRequest,
    FlushResponse,
    HighWaterMarkRequest,
    HighWaterMarkResponse,
    LockFailure,
    MountRequest,
    MountResponse,
    PartitionState,
    RemovePreferredPartitionRequest,
    RemovePreferredPartitionResponse,
    ServerPartitionsAssignmentRequest,
    ServerPartitionsAssignmentResponse,
    ServerPartitionsHealthStatRequest,
    ServerPartitionsHealthStatResponse,
    TransactionDataRequest,
    TransactionDataResponse,
)
from waltz_core.wire.frame import HEADER
from waltz_core.wire.primitives import (
    BOOL,
    BYTES,
    INT32,
    INT_LIST,
    REQ_ID,
    STRING,
    flags_by,
    read_bytes,
    read_ints,
    read_string,
    short,
    verify,
    write_bytes,
    write_ints,
    write_string,
)
from waltz_core.wire.table import Codec, Table, WireProtocol, fixed, layout

MAGIC = 0x4C

# ---- mount -----------------------------------------------------------------------------------


def _encode_ready(message: MountResponse, out: bytearray) -> None:
    out += _READY.pack(1, message.req_id, 1 if message.partition_state == PartitionState.READY else 0)


def _decode_ready(buffer: bytes, start: int, end: int) -> tuple[MountResponse, int]:
    if end - start < 18:
        raise short(start, end, 18)
    _, req_id, ready = _READY.unpack_from(buffer, start)
    # The boolean is 1 when the state is 0, and CLIENT_AHEAD cannot be told from NOT_READY.
    return MountResponse(req_id, PartitionState.READY if ready == 1 else PartitionState.NOT_READY), start + 18


_READY = Struct(">B16sB")

# ---- append ----------------------------------------------------------------------------------

_APPEND_START = Struct(">x16sq")
_APPEND_END = Struct(">ii")  # header, length of the data
_APPEND_WITHOUT_LOCKS = Struct(">x16sqiiiii")  # mark, three counts, header, length of the data
_APPEND_HEAD = Struct(">B16sq")
_APPEND_HEAD_WITHOUT_LOCKS = Struct(">B16sqiiiii")
_CHECKSUM = Struct(">i")
_NO_LOCKS: tuple[int, ...] = ()


def _decode_append(arrays: int) -> Callable[[bytes, int, int], tuple[AppendRequest, int]]:
    def decode(buffer: bytes, start: int, end: int) -> tuple[AppendRequest, int]:
        if end - start < 25:
            raise short(start, end, 25)
        req_id, mark = _APPEND_START.unpack_from(buffer, start)
        at = start + 25
        locks: list[tuple[int, ...] | None] = [_NO_LOCKS, _NO_LOCKS, _NO_LOCKS]
        for kind in range(arrays):
            locks[kind], at = read_ints(buffer, at, end)
        header, at = INT32.read(buffer, at, end)
        data, at = read_bytes(buffer, at, end)
        if data is None:
            raise ProtocolError("data of an append is null")
        checksum, at = INT32.read(buffer, at, end)
        verify(data, checksum)
        return AppendRequest(req_id, mark, locks[0], locks[1], locks[2], header, data, checksum), at

    return decode


_decode_append_2_any = _decode_append(3)


def _decode_append_2(buffer: bytes, start: int, end: int) -> tuple[AppendRequest, int]:
    """The common case, no locks at all, with one unpacking."""
    if end - start >= 49:
        req_id, mark, writes, reads, appends, header, size = _APPEND_WITHOUT_LOCKS.unpack_from(buffer, start)
        if writes == 0 and reads == 0 and appends == 0 and 0 <= size <= end - start - 49:
            at = start + 45 + size
            data = buffer[start + 45 : at]
            (checksum,) = _CHECKSUM.unpack_from(buffer, at)
            verify(data, checksum)
            return AppendRequest(req_id, mark, _NO_LOCKS, _NO_LOCKS, _NO_LOCKS, header, data, checksum), at + 4
    return _decode_append_2_any(buffer, start, end)


def _encode_append_0(message: AppendRequest, out: bytearray) -> None:
    if message.read_locks:
        raise ProtocolError("read locks need codec 1: the peer must be upgraded")
    _encode_append_with(message, out, (message.write_locks,))


def _encode_append_1(message: AppendRequest, out: bytearray) -> None:
    _encode_append_with(message, out, (message.write_locks, message.read_locks))


def _encode_append_with(message: AppendRequest, out: bytearray, locks: tuple[tuple[int, ...] | None, ...]) -> None:
    if message.append_locks:
        raise ProtocolError("append locks need codec 2: the peer must be upgraded")
    _append_body(message, out, locks)


def _append_body(message: AppendRequest, out: bytearray, locks: tuple[tuple[int, ...] | None, ...]) -> None:
    out += _APPEND_HEAD.pack(2, message.req_id, message.client_mark)
    for array in locks:
        write_ints(out, array)
    data = message.data
    out += _APPEND_END.pack(message.header, len(data))
    out += data
    out += _CHECKSUM.pack(message.checksum)


def _encode_append_2(message: AppendRequest, out: bytearray) -> None:
    locks = message.write_locks, message.read_locks, message.append_locks
    if locks != (_NO_LOCKS, _NO_LOCKS, _NO_LOCKS):
        _append_body(message, out, locks)
        return
    data = message.data
    out += _APPEND_HEAD_WITHOUT_LOCKS.pack(2, message.req_id, message.client_mark, 0, 0, 0, message.header, len(data))
    out += data
    out += _CHECKSUM.pack(message.checksum)


# ---- transaction data ------------------------------------------------------------------------

_DATA_HEAD = Struct(">B16sqB")


def _encode_data(message: TransactionDataResponse, out: bytearray) -> None:
    out += _DATA_HEAD.pack(7, message.req_id, message.transaction_id, 1 if message.success else 0)
    if message.success:
        write_bytes(out, message.data)
        out += _CHECKSUM.pack(message.checksum)
    else:
        write_string(out, message.error)


def _decode_data(buffer: bytes, start: int, end: int) -> tuple[TransactionDataResponse, int]:
    if end - start < 26:
        raise short(start, end, 26)
    _, req_id, transaction_id, flag = _DATA_HEAD.unpack_from(buffer, start)
    at = start + 26
    if flag != 1:
        error, at = read_string(buffer, at, end)
        return TransactionDataResponse(req_id, transaction_id, False, error=error), at
    data, at = BYTES.read(buffer, at, end)
    if data is None:
        raise ProtocolError("data of a transaction is null")
    checksum, at = INT32.read(buffer, at, end)
    verify(data, checksum)
    return TransactionDataResponse(req_id, transaction_id, True, data, checksum), at


# ---- tables ----------------------------------------------------------------------------------

V0: Table[ClientMessage] = Table(
    (
        fixed(0, MountRequest, "16sqq"),
        Codec(1, MountResponse, _encode_ready, _decode_ready),
        Codec(2, AppendRequest, _encode_append_0, _decode_append(1)),
        fixed(3, FeedRequest, "16sq"),
        fixed(4, FeedData, "16sqi"),
        fixed(5, FeedSuspended, "16s"),
        fixed(6, TransactionDataRequest, "16sq"),
        Codec(7, TransactionDataResponse, _encode_data, _decode_data),
        fixed(8, FlushRequest, "16s"),
        fixed(9, FlushResponse, "16sq"),
        fixed(10, LockFailure, "16sq"),
        fixed(11, HighWaterMarkRequest, "16s"),
        fixed(12, HighWaterMarkResponse, "16sq"),
    )
)
V1 = V0.plus(
    Codec(2, AppendRequest, _encode_append_1, _decode_append(2)),
    fixed(13, CheckStorageConnectivityRequest, "16s"),
    layout(14, CheckStorageConnectivityResponse, REQ_ID, flags_by(STRING)),
)
V2 = V1.plus(
    Codec(2, AppendRequest, _encode_append_2, _decode_append_2),
    fixed(15, ServerPartitionsAssignmentRequest, "16s"),
    layout(16, ServerPartitionsAssignmentResponse, REQ_ID, INT_LIST),
    layout(17, AddPreferredPartitionRequest, REQ_ID, INT_LIST),
    layout(18, AddPreferredPartitionResponse, REQ_ID, BOOL),
    layout(19, RemovePreferredPartitionRequest, REQ_ID, INT_LIST),
    layout(20, RemovePreferredPartitionResponse, REQ_ID, BOOL),
)
V3 = V2.plus(fixed(1, MountResponse, "16si"))
V4 = V3.plus(
    fixed(21, ServerPartitionsHealthStatRequest, "16s"),
    layout(22, ServerPartitionsHealthStatResponse, REQ_ID, flags_by(INT32)),
)
V5 = V4

VERSIONS = range(6)
"""What our servers and clients offer."""

LEGACY_VERSIONS = range(5)
"""What 0.13.2 offers."""

CLIENT_PROTOCOL: WireProtocol[ClientMessage] = WireProtocol("client", MAGIC, {0: V0, 1: V1, 2: V2, 3: V3, 4: V4, 5: V5})

# ---- feed ------------------------------------------------------------------------------------

_FEED = Struct(">8s16sqi")


def encode_feed(version: int, records: Iterable[tuple[int, ReqId, int]], out: bytearray) -> None:
    """Append a FeedData frame for every (transaction id, request id, header) to `out`.

    The frames are the same for every subscriber of the same version: encode once, append many times.
    """
    head = HEADER.pack(MAGIC, version, 29) + b"\x04"
    pack = _FEED.pack
    out += b"".join([pack(head, req_id, transaction_id, header) for transaction_id, req_id, header in records])


def needed_version(message: Any) -> int:
    """The lowest version that can carry `message`."""
    if isinstance(message, AppendRequest):
        return 2 if message.append_locks else 1 if message.read_locks else 0
    return next(version for version, table in CLIENT_PROTOCOL.tables.items() if type(message) in table.encoders)

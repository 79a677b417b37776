"""How messages between clients and servers are coded, one table per version.

V1 adds read locks and storage connectivity, V2 append locks and partition assignments, V3 sends the
state of a partition instead of a boolean, V4 adds health. V5 is ours, laid down in docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TypeAlias

from waltz_core.base.checksum import crc32
from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import Endpoint
from waltz_core.wire import runs
from waltz_core.wire.client_messages import (
    AddPreferredPartitionRequest,
    AddPreferredPartitionResponse,
    AppendRefused,
    AppendRequest,
    CheckStorageConnectivityRequest,
    CheckStorageConnectivityResponse,
    ClientMessage,
    ClusterInfoRequest,
    ClusterInfoResponse,
    ErrorResponse,
    FeedData,
    FeedRequest,
    FeedSuspended,
    FeedWindowRequest,
    FlushRequest,
    FlushResponse,
    HighWaterMarkRequest,
    HighWaterMarkResponse,
    LockFailure,
    LogStartRequest,
    LogStartResponse,
    MountRequest,
    MountResponse,
    NamedAppendRequest,
    PartitionState,
    PartitionStatus,
    PartitionStatusRequest,
    PartitionStatusResponse,
    RecordHeaderRangeResponse,
    RecordRangeRequest,
    RecordRangeResponse,
    RemovePreferredPartitionRequest,
    RemovePreferredPartitionResponse,
    ServerEntry,
    ServerPartitionsAssignmentRequest,
    ServerPartitionsAssignmentResponse,
    ServerPartitionsHealthStatRequest,
    ServerPartitionsHealthStatResponse,
    SetLogStartRequest,
    StatisticsRequest,
    StatisticsResponse,
    StorageNodesRequest,
    StorageNodesResponse,
    StorageNodeStatus,
    TransactionDataRequest,
    TransactionDataResponse,
)
from waltz_core.wire.headers import header_list
from waltz_core.wire.named_append import decode_named_append, encode_named_append
from waltz_core.wire.primitives import (
    BOOL,
    INT8,
    INT32,
    INT64,
    INT_LIST,
    REQ_ID,
    STRING,
    TEXT,
    UUID_KEY,
    Negative,
    flags_by,
    int_array,
    list_of,
    pair,
    read_string,
    short,
    structure,
    verify,
    write_ints,
    write_string,
)
from waltz_core.wire.records import record_list
from waltz_core.wire.shared import STATISTICS
from waltz_core.wire.table import Codec, Table, WireProtocol, fixed, layout

MAGIC = 0x4C

# ---- mount -----------------------------------------------------------------------------------


def _encode_ready(message: MountResponse, out: bytearray) -> None:
    out += _READY.pack(1, message.req_id, 1 if message.partition_state == PartitionState.READY else 0)


def _decode_ready(buffer: bytes, start: int, end: int) -> tuple[MountResponse, int]:
    if end - start < 18:
        raise short(start, end, 18)
    _, req_id, ready = _READY.unpack_from(buffer, start)
    # The boolean is 1 when the state is 0, and CLIENT_AHEAD looks like NOT_READY.
    return MountResponse(req_id, PartitionState.READY if ready == 1 else PartitionState.NOT_READY), start + 18


_READY = Struct(">B16sB")

# ---- append ----------------------------------------------------------------------------------

_APPEND_START = Struct(">x16sq")
_APPEND_HEAD = Struct(">B16sq")
_APPEND_END = Struct(">ii")  # header, length of the data
_INT = Struct(">i")
_NO_LOCKS: tuple[int, ...] = ()

_Locks: TypeAlias = tuple[tuple[int, ...] | None, ...]


def _decode_append(arrays: int) -> Callable[[bytes, int, int], tuple[AppendRequest, int]]:
    """A decoder for `arrays` lock arrays; what a codec does not carry is empty."""
    missing: _Locks = (_NO_LOCKS,) * (3 - arrays)

    def decode(buffer: bytes, start: int, end: int) -> tuple[AppendRequest, int]:
        if end - start < 25:
            raise short(start, end, 25)
        int32 = _INT.unpack_from
        req_id, mark = _APPEND_START.unpack_from(buffer, start)
        at = start + 25
        locks: list[tuple[int, ...] | None] = []
        for _ in range(arrays):
            if end - at < 4:
                raise short(at, end, 4)
            count = int32(buffer, at)[0]
            at += 4
            if count > 0:
                if end - at < 4 * count:
                    raise short(at, end, 4 * count)
                locks.append(int_array(buffer, at, count))
                at += 4 * count
            else:
                locks.append(None if count else _NO_LOCKS)
        if end - at < 8:
            raise short(at, end, 8)
        header, size = _APPEND_END.unpack_from(buffer, at)
        at += 8
        stop = at + size
        if size < 0:
            raise ProtocolError("data of an append is null")
        if end - stop < 4:
            raise short(at, end, size + 4)
        data = buffer[at:stop]
        checksum = int32(buffer, stop)[0]
        verify(data, checksum)
        locks += missing
        return AppendRequest(req_id, mark, locks[0], locks[1], locks[2], header, data, checksum), stop + 4

    return decode


_decode_append_2_any = _decode_append(3)
_APPEND_WITHOUT_LOCKS = Struct(">x16sqiiiii")  # mark, three counts, header, length of the data
_FEW = 4
_APPEND_WRITES = tuple(Struct(f">{writes}iiiii") for writes in range(_FEW))  # write locks, then as above


def _decode_append_2(buffer: bytes, start: int, end: int) -> tuple[AppendRequest, int]:
    """The common cases, no locks at all or a few write locks only, with one or two unpackings."""
    left = end - start - 49
    if left >= 0:
        req_id, mark, writes, reads, appends, header, size = _APPEND_WITHOUT_LOCKS.unpack_from(buffer, start)
        locks = _NO_LOCKS
        at = start + 45
        if 0 < writes < _FEW and left >= 4 * writes:
            *locks, reads, appends, header, size = _APPEND_WRITES[writes].unpack_from(buffer, start + 29)
            locks = tuple(locks)
            at += 4 * writes
            left -= 4 * writes
            writes = 0
        if writes == 0 and reads == 0 and appends == 0 and 0 <= size <= left:
            stop = at + size
            data = buffer[at:stop]
            checksum = _INT.unpack_from(buffer, stop)[0]
            if (crc32(data) ^ 0x80000000) - 0x80000000 != checksum:
                verify(data, checksum)
            return AppendRequest(req_id, mark, locks, _NO_LOCKS, _NO_LOCKS, header, data, checksum), stop + 4
    return _decode_append_2_any(buffer, start, end)


def _encode_append_0(message: AppendRequest, out: bytearray) -> None:
    if message.read_locks:
        raise ProtocolError("read locks need codec 1: the peer must be upgraded")
    if message.append_locks:
        raise ProtocolError("append locks need codec 2: the peer must be upgraded")
    _append_body(message, out, (message.write_locks,))


def _encode_append_1(message: AppendRequest, out: bytearray) -> None:
    if message.append_locks:
        raise ProtocolError("append locks need codec 2: the peer must be upgraded")
    _append_body(message, out, (message.write_locks, message.read_locks))


def _append_body(message: AppendRequest, out: bytearray, locks: _Locks) -> None:
    out += _APPEND_HEAD.pack(2, message.req_id, message.client_mark)
    for array in locks:
        write_ints(out, array)
    data = message.data
    out += _APPEND_END.pack(message.header, len(data))
    out += data
    out += _INT.pack(message.checksum)


_APPEND_HEADS = {
    (writes, reads, appends): Struct(f">B16sqi{writes}ii{reads}ii{appends}iii")
    for writes in range(_FEW)
    for reads in range(_FEW)
    for appends in range(_FEW)
}


def _encode_append_2(message: AppendRequest, out: bytearray) -> None:
    """With few locks, everything before the data in one packing."""
    writes, reads, appends = message.write_locks, message.read_locks, message.append_locks
    if writes is not None and reads is not None and appends is not None:
        head = _APPEND_HEADS.get((len(writes), len(reads), len(appends)))
        if head is not None:
            data = message.data
            out += head.pack(
                2,
                message.req_id,
                message.client_mark,
                len(writes),
                *writes,
                len(reads),
                *reads,
                len(appends),
                *appends,
                message.header,
                len(data),
            )
            out += data
            out += _INT.pack(message.checksum)
            return
    _append_body(message, out, (writes, reads, appends))


# ---- transaction data ------------------------------------------------------------------------

_DATA_HEAD = Struct(">B16sqB")
_DATA_FOUND = Struct(">B16sqBi")  # ... and the length of the data


def _encode_data(message: TransactionDataResponse, out: bytearray) -> None:
    if message.success:
        data = message.data
        out += _DATA_FOUND.pack(7, message.req_id, message.transaction_id, 1, len(data))
        out += data
        out += _INT.pack(message.checksum)
    else:
        out += _DATA_HEAD.pack(7, message.req_id, message.transaction_id, 0)
        write_string(out, message.error)


def _decode_data(buffer: bytes, start: int, end: int) -> tuple[TransactionDataResponse, int]:
    if end - start < 30:  # either form has a length behind the flag
        raise short(start, end, 30)
    _, req_id, transaction_id, flag, size = _DATA_FOUND.unpack_from(buffer, start)
    if flag != 1:
        error, at = read_string(buffer, start + 26, end)
        return TransactionDataResponse(req_id, transaction_id, False, b"", 0, error), at
    at = start + 30
    stop = at + size
    if size < 0:
        raise ProtocolError("data of a transaction is null")
    if end - stop < 4:
        raise short(at, end, size + 4)
    data = buffer[at:stop]
    checksum = _INT.unpack_from(buffer, stop)[0]
    verify(data, checksum)
    return TransactionDataResponse(req_id, transaction_id, True, data, checksum, None), stop + 4


# ---- codec 5 ---------------------------------------------------------------------------------

_SERVERS = list_of(
    structure(
        ServerEntry,
        {"endpoint": structure(Endpoint, {"host": TEXT, "port": INT32}), "partitions": list_of(pair(INT32, INT32))},
    )
)
_PARTITION_STATUS = structure(
    PartitionStatus,
    {
        "partition_id": INT32,
        "generation": INT32,
        "state": INT8,
        "since_ms": INT64,
        "session_id": INT64,
        "high_water_mark": INT64,
        "reason": STRING,
    },
)
_STORAGE_NODE = structure(StorageNodeStatus, {"storage": TEXT, "usable": BOOL, "reason": STRING})


# ---- tables ----------------------------------------------------------------------------------

V0: Table[ClientMessage] = Table(
    (
        fixed(0, MountRequest, "16sqq"),
        Codec(1, MountResponse, _encode_ready, _decode_ready),
        Codec(2, AppendRequest, _encode_append_0, _decode_append(1)),
        fixed(3, FeedRequest, "16sq"),
        fixed(4, FeedData, "16sqi")._replace(decode_run=runs.feed(FeedData)),
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
    Codec(
        2,
        AppendRequest,
        _encode_append_2,
        _decode_append_2,
        runs.appends(AppendRequest, _decode_append_2, named=False),
    ),
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
V5 = V4.plus(
    layout(32, ClusterInfoRequest, REQ_ID, BOOL, BOOL, INT64),
    layout(33, ClusterInfoResponse, REQ_ID, INT64, TEXT, UUID_KEY, INT32, INT32, INT64, _SERVERS),
    Codec(
        34,
        NamedAppendRequest,
        encode_named_append,
        decode_named_append,
        runs.appends(NamedAppendRequest, decode_named_append, named=True),
    ),
    layout(35, AppendRefused, REQ_ID, INT8, INT64, INT8, INT64, INT8, INT32, INT32, STRING),
    layout(36, RecordRangeRequest, REQ_ID, INT64, INT64, INT32, INT32, BOOL),
    layout(37, RecordRangeResponse, REQ_ID, INT64, INT64, record_list(Negative.REFUSED)),
    layout(38, RecordHeaderRangeResponse, REQ_ID, INT64, INT64, header_list(Negative.REFUSED)),
    fixed(39, LogStartRequest, "16s"),
    fixed(40, LogStartResponse, "16sqq"),
    fixed(41, SetLogStartRequest, "16sq"),
    layout(42, StatisticsRequest, REQ_ID, INT32, list_of(TEXT)),
    layout(43, StatisticsResponse, REQ_ID, INT64, STATISTICS),
    fixed(44, PartitionStatusRequest, "16s"),
    layout(45, PartitionStatusResponse, REQ_ID, list_of(_PARTITION_STATUS)),
    layout(46, ErrorResponse, REQ_ID, INT32, STRING),
    fixed(47, StorageNodesRequest, "16s"),
    layout(48, StorageNodesResponse, REQ_ID, list_of(_STORAGE_NODE)),
    fixed(49, FeedWindowRequest, "16sqi"),
)

VERSIONS = range(6)
"""What our servers and clients offer."""

EXTENDED = 5
"""The version since which everything can be answered by an error, and servers tell what they can; 0.13.2 ends at 4."""

CLIENT_PROTOCOL: WireProtocol[ClientMessage] = WireProtocol("client", MAGIC, {0: V0, 1: V1, 2: V2, 3: V3, 4: V4, 5: V5})

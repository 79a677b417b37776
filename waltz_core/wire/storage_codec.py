"""How messages between servers and storage nodes are coded; V1 is ours, laid down in docs/protocol.md."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Protocol

from waltz_core.base.ids import ReqId
from waltz_core.base.twins import twin
from waltz_core.wire.headers import header_list
from waltz_core.wire.primitives import (
    BOOL,
    INT8,
    INT32,
    INT64,
    RECORD,
    RECORD_HEADER,
    RECORD_SIZE_MIN,
    SESSION_INFO,
    STRING,
    TEXT,
    UUID_KEY,
    Negative,
    list_of,
    optional,
    read_count,
    read_records,
    short,
    write_record,
)
from waltz_core.wire.records import RecordRun, record_list
from waltz_core.wire.shared import STACK, STATISTICS, SUSPECTS
from waltz_core.wire.storage_messages import (
    AppendRequest,
    BeginAnewRequest,
    FailureResponse,
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    LogStartRequest,
    LogStartResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    OpenRequest,
    RecordHeaderListRequest,
    RecordHeaderListResponse,
    RecordHeaderRequest,
    RecordHeaderResponse,
    RecordListRequest,
    RecordListResponse,
    RecordRangeRequest,
    RecordRequest,
    RecordResponse,
    SetLogStartRequest,
    SetLowWaterMarkRequest,
    StatisticsRequest,
    StatisticsResponse,
    StorageMessage,
    SuccessResponse,
    SuspectReport,
    TruncateRequest,
)
from waltz_core.wire.table import Codec, Table, WireProtocol, fixed, layout

MAGIC = 0x53

_COMMON = (INT64, INT64, INT32)

# ---- open ------------------------------------------------------------------------------------

_OPEN_COMMON = Struct(">Bqqi").pack(1, -1, -1, -1)


def _encode_open(message: OpenRequest, out: bytearray) -> None:
    out += _OPEN_COMMON
    UUID_KEY.write(out, message.key)
    INT32.write(out, message.num_partitions)


def _decode_open(buffer: bytes, start: int, end: int) -> tuple[OpenRequest, int]:
    # Java: session, sequence and partition on the wire are ignored, answers carry -1.
    key, at = UUID_KEY.read(buffer, start + 21, end)
    num_partitions, at = INT32.read(buffer, at, end)
    return OpenRequest(-1, -1, -1, key, num_partitions), at


# ---- append ----------------------------------------------------------------------------------

_APPEND = Struct(">Bqqii")  # type, session, sequence, partition, count
_APPEND_FRAME = Struct(">BhiBqqii")
_RECORD_START = Struct(">q16sii")
_INT = Struct(">i")


def _encode_append(message: AppendRequest, out: bytearray) -> None:
    records = message.records
    out += _APPEND.pack(6, message.session_id, message.seq_num, message.partition_id, len(records))
    if isinstance(records, RecordRun):
        out += records.encoded
    else:
        for record in records:
            write_record(out, record)
    out.append(1 if message.used_by_offline_recovery else 0)


def _decode_append(buffer: bytes, start: int, end: int) -> tuple[AppendRequest, int]:
    if end - start < 26:
        raise short(start, end, 26)
    _, session_id, seq_num, partition_id, _ = _APPEND.unpack_from(buffer, start)
    count, at = read_count(buffer, start + 21, end, RECORD_SIZE_MIN)
    records, at = read_records(buffer, at, end, count)
    offline, at = BOOL.read(buffer, at, end)
    return AppendRequest(session_id, seq_num, partition_id, records, offline), at


class HasRecord(Protocol):
    """What becomes a record once it has an id."""

    @property
    def req_id(self) -> ReqId: ...

    @property
    def header(self) -> int: ...

    @property
    def data(self) -> bytes: ...

    @property
    def checksum(self) -> int: ...


@twin
def encode_records(first: int, appends: Sequence[HasRecord]) -> bytes:
    """The records `first`, `first + 1`, … of an append.

    Encoded once per batch, whose bytes then go to every replica.
    """
    start, int32 = _RECORD_START.pack, _INT.pack
    parts: list[bytes] = []
    for transaction_id, append in enumerate(appends, start=first):
        data = append.data
        parts += (start(transaction_id, append.req_id, append.header, len(data)), data, int32(append.checksum))
    return b"".join(parts)


def append_around(
    session_id: int, seq_num: int, partition_id: int, count: int, size: int, offline: bool, *, version: int
) -> tuple[bytes, bytes]:
    """What stands before and behind the records in the frame of one AppendRequest.

    Args:
        count: of records.
        size: bytes of them, encoded.
        version: the negotiated one of that connection.
    """
    head = _APPEND_FRAME.pack(MAGIC, version, 26 + size, 6, session_id, seq_num, partition_id, count)
    return head, b"\x01" if offline else b"\x00"


# ---- tables ----------------------------------------------------------------------------------

V0: Table[StorageMessage] = Table(
    (
        Codec(1, OpenRequest, _encode_open, _decode_open),
        layout(2, LastSessionInfoRequest, *_COMMON, BOOL),
        layout(3, LastSessionInfoResponse, *_COMMON, SESSION_INFO),
        layout(4, SetLowWaterMarkRequest, *_COMMON, INT64, BOOL),
        layout(5, TruncateRequest, *_COMMON, INT64, BOOL),
        Codec(6, AppendRequest, _encode_append, _decode_append),
        fixed(7, SuccessResponse, "qqi"),
        layout(8, FailureResponse, *_COMMON, STRING, STACK),
        fixed(9, RecordHeaderRequest, "qqiq"),
        layout(10, RecordHeaderResponse, *_COMMON, optional(RECORD_HEADER)),
        fixed(11, RecordRequest, "qqiq"),
        layout(12, RecordResponse, *_COMMON, optional(RECORD)),
        layout(13, MaxTransactionIdRequest, *_COMMON, BOOL),
        fixed(14, MaxTransactionIdResponse, "qqiq"),
        fixed(15, RecordHeaderListRequest, "qqiqi"),
        layout(16, RecordHeaderListResponse, *_COMMON, header_list(Negative.EMPTY)),
        fixed(17, RecordListRequest, "qqiqi"),
        layout(18, RecordListResponse, *_COMMON, record_list(Negative.EMPTY)),
    )
)
V1 = V0.plus(
    layout(3, LastSessionInfoResponse, *_COMMON, SESSION_INFO, INT64, INT8, SUSPECTS, STRING),
    layout(8, FailureResponse, *_COMMON, STRING, STACK, INT32, INT64),
    layout(32, StatisticsRequest, *_COMMON, list_of(TEXT)),
    layout(33, StatisticsResponse, *_COMMON, INT64, STATISTICS),
    fixed(34, RecordRangeRequest, "qqiqqii"),
    fixed(35, LogStartRequest, "qqi"),
    fixed(36, LogStartResponse, "qqiqq"),
    fixed(37, SetLogStartRequest, "qqiq"),
    layout(38, SuspectReport, *_COMMON, INT8, SUSPECTS, STRING),
    fixed(39, BeginAnewRequest, "qqiq"),
)

VERSIONS = range(2)
"""What our servers and storage nodes offer."""

STORAGE_PROTOCOL: WireProtocol[StorageMessage] = WireProtocol("storage", MAGIC, {0: V0, 1: V1})

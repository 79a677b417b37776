"""How messages between tools and the admin port of storage nodes are coded; V1 is ours, see docs/protocol.md."""

from __future__ import annotations

from struct import Struct

from waltz_core.wire.admin_messages import (
    AcceptLimboRequest,
    AdminFailureResponse,
    AdminMessage,
    AdminOpenRequest,
    AdminSuccessResponse,
    AssignedPartitionStatusRequest,
    AssignedPartitionStatusResponse,
    DigestRequest,
    DigestResponse,
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    LogStartRequest,
    LogStartResponse,
    MetricsRequest,
    MetricsResponse,
    NodeInfoRequest,
    NodeInfoResponse,
    PartitionAssignmentRequest,
    PartitionAvailableRequest,
    RecordListRequest,
    RecordListResponse,
    RecordRangeRequest,
    RepairedRange,
    RepairRequest,
    RepairResponse,
    ReplicaStateRequest,
    ReplicaStateResponse,
    SegmentInfo,
    SegmentListRequest,
    SegmentListResponse,
    SegmentReadRequest,
    SegmentReadResponse,
    SetLogStartRequest,
    StatisticsRequest,
    StatisticsResponse,
)
from waltz_core.wire.primitives import (
    BOOL,
    DATA,
    INT8,
    INT32,
    INT64,
    INTS,
    SESSION_INFO,
    STRING,
    TEXT,
    UUID_KEY,
    Negative,
    flags_by,
    list_of,
    structure,
)
from waltz_core.wire.records import record_list
from waltz_core.wire.shared import ENDPOINTS, ID_RANGES, STACK, STATISTICS, SUSPECTS
from waltz_core.wire.table import Codec, Table, WireProtocol, fixed, layout

MAGIC = 0x41

_OPEN_COMMON = Struct(">Bq").pack(3, -1)


def _encode_open(message: AdminOpenRequest, out: bytearray) -> None:
    out += _OPEN_COMMON
    UUID_KEY.write(out, message.key)
    INT32.write(out, message.num_partitions)


def _decode_open(buffer: bytes, start: int, end: int) -> tuple[AdminOpenRequest, int]:
    # Java: the sequence number on the wire is ignored, the answer carries -1.
    key, at = UUID_KEY.read(buffer, start + 9, end)
    num_partitions, at = INT32.read(buffer, at, end)
    return AdminOpenRequest(-1, key, num_partitions), at


_REPAIRED = list_of(structure(RepairedRange, {"first_id": INT64, "last_id": INT64, "outcome": INT8}))
_SEGMENTS = list_of(
    structure(SegmentInfo, {"first_id": INT64, "last_id": INT64, "size": INT64, "creation_ms": INT64, "sealed": BOOL})
)

V0: Table[AdminMessage] = Table(
    (
        fixed(1, AdminSuccessResponse, "q"),
        layout(2, AdminFailureResponse, INT64, STRING, STACK),
        Codec(3, AdminOpenRequest, _encode_open, _decode_open),
        layout(4, PartitionAvailableRequest, INT64, INTS, BOOL),
        layout(6, PartitionAssignmentRequest, INT64, INTS, BOOL, BOOL),
        fixed(7, RecordListRequest, "qiqi"),
        layout(8, RecordListResponse, INT64, INT32, record_list(Negative.EMPTY)),
        fixed(9, LastSessionInfoRequest, "qi"),
        layout(10, LastSessionInfoResponse, INT64, INT32, SESSION_INFO),
        fixed(11, MetricsRequest, "q"),
        layout(12, MetricsResponse, INT64, STRING),
        fixed(13, AssignedPartitionStatusRequest, "q"),
        layout(14, AssignedPartitionStatusResponse, INT64, flags_by(INT32)),
    )
)
V1 = V0.plus(
    layout(2, AdminFailureResponse, INT64, STRING, STACK, INT32, INT64),
    fixed(32, NodeInfoRequest, "q"),
    layout(33, NodeInfoResponse, INT64, UUID_KEY, INT32, INT64, TEXT),
    fixed(34, LogStartRequest, "qi"),
    fixed(35, LogStartResponse, "qiqq"),
    fixed(36, SetLogStartRequest, "qiq"),
    fixed(37, ReplicaStateRequest, "qi"),
    layout(38, ReplicaStateResponse, INT64, INT32, SESSION_INFO, INT64, INT64, INT64, INT64, INT8, SUSPECTS, STRING),
    layout(39, RepairRequest, INT64, INT32, ENDPOINTS, ID_RANGES),
    layout(40, RepairResponse, INT64, INT32, _REPAIRED, STRING),
    fixed(41, AcceptLimboRequest, "qiq"),
    fixed(42, SegmentListRequest, "qi"),
    layout(43, SegmentListResponse, INT64, INT32, _SEGMENTS),
    fixed(44, SegmentReadRequest, "qiqqi"),
    layout(45, SegmentReadResponse, INT64, INT32, INT64, INT64, DATA, INT32),
    fixed(46, RecordRangeRequest, "qiqqii"),
    layout(47, StatisticsRequest, INT64, INT32, list_of(TEXT)),
    layout(48, StatisticsResponse, INT64, INT64, STATISTICS),
    fixed(49, DigestRequest, "qiqq"),
    layout(50, DigestResponse, INT64, INT32, INT64, INT64, DATA),
)

VERSIONS = range(2)
"""What our tools, servers and storage nodes offer."""

ADMIN_PROTOCOL: WireProtocol[AdminMessage] = WireProtocol("admin", MAGIC, {0: V0, 1: V1})

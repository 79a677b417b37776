"""How messages between tools and the admin port of storage nodes are coded."""

from __future__ import annotations

from struct import Struct

from waltz_core.wire.admin_messages import (
    AdminFailureResponse,
    AdminMessage,
    AdminOpenRequest,
    AdminSuccessResponse,
    AssignedPartitionStatusRequest,
    AssignedPartitionStatusResponse,
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    MetricsRequest,
    MetricsResponse,
    PartitionAssignmentRequest,
    PartitionAvailableRequest,
    RecordListRequest,
    RecordListResponse,
)
from waltz_core.wire.primitives import (
    BOOL,
    INT32,
    INT64,
    INTS,
    SESSION_INFO,
    STRING,
    UUID_KEY,
    Negative,
    flags_by,
    record_list,
)
from waltz_core.wire.storage_codec import STACK
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
V1 = V0

VERSIONS = range(2)
"""What our tools, servers and storage nodes offer."""

LEGACY_VERSIONS = range(1)
"""What 0.13.2 offers."""

ADMIN_PROTOCOL: WireProtocol[AdminMessage] = WireProtocol("admin", MAGIC, {0: V0, 1: V1})

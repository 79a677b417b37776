"""Messages between tools and the admin port of storage nodes. Records only; bytes: `admin_codec`.

Every message starts with a sequence number, which answers echo.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeAlias
from uuid import UUID

from waltz_core.base.ids import Endpoint
from waltz_core.base.log import Record, SessionInfo
from waltz_core.base.record import record
from waltz_core.wire.shared import IdRange, StackFrame, Statistic, SuspectRange


@record
class AdminSuccessResponse:
    """Done."""

    seq_num: int


@record
class AdminFailureResponse:
    """Not done, and why. Only 0.13.2 sends a stack; we send none."""

    seq_num: int
    message: str | None
    stack: tuple[StackFrame, ...] = ()
    code: int = 0  # FailureCode; codec 1
    detail: int = -1  # see FailureCode; codec 1


@record
class AdminOpenRequest:
    """Check that both sides belong to the same cluster; the sequence number is -1."""

    seq_num: int
    key: UUID
    num_partitions: int


@record
class PartitionAvailableRequest:
    """Allow (`toggled`) or forbid reads and writes of partitions."""

    seq_num: int
    partition_ids: tuple[int, ...] | None
    toggled: bool


@record
class PartitionAssignmentRequest:
    """Assign (`toggled`) or unassign partitions."""

    seq_num: int
    partition_ids: tuple[int, ...] | None
    toggled: bool
    delete_storage_files: bool


@record
class RecordListRequest:
    """Ask for records from `transaction_id` upward, without a session."""

    seq_num: int
    partition_id: int
    transaction_id: int
    max_num_records: int


@record
class RecordListResponse:
    """Ends before the first id that is not in the log."""

    seq_num: int
    partition_id: int
    records: Sequence[Record]


@record
class LastSessionInfoRequest:
    """Ask what the last `SetLowWaterMarkRequest` persisted."""

    seq_num: int
    partition_id: int


@record
class LastSessionInfoResponse:
    """Session and marks of a replica."""

    seq_num: int
    partition_id: int
    last_session_info: SessionInfo


@record
class MetricsRequest:
    """Ask for the metrics of the process."""

    seq_num: int


@record
class MetricsResponse:
    """All metrics as JSON."""

    seq_num: int
    metrics_json: str | None


@record
class AssignedPartitionStatusRequest:
    """Ask which partitions are assigned."""

    seq_num: int


@record
class AssignedPartitionStatusResponse:
    """Assigned partitions and whether each is available."""

    seq_num: int
    partition_status: tuple[tuple[int, bool], ...]


# ---- since codec 1 ---------------------------------------------------------------------------


class AdminCapability(enum.IntFlag):
    """What a storage node can do beyond codec 0; a request without its bit is answered with a failure."""

    LOG_START = 1
    SET_LOG_START = 2
    REPLICA_STATE = 4
    REPAIR = 8
    ACCEPT_LIMBO = 16
    SEGMENTS = 32
    RECORD_RANGE = 64
    STATISTICS = 128
    DIGEST = 256


@record
class NodeInfoRequest:
    """Ask what kind of node this is."""

    seq_num: int


@record
class NodeInfoResponse:
    """The cluster it belongs to and what it can do."""

    seq_num: int
    key: UUID
    num_partitions: int
    capabilities: int  # AdminCapability
    software: str  # name and version, for people


@record
class LogStartRequest:
    """Ask for the ends of a log."""

    seq_num: int
    partition_id: int


@record
class LogStartResponse:
    """The first id that can be read, and the last (log_start - 1 when there is none)."""

    seq_num: int
    partition_id: int
    log_start: int
    max_transaction_id: int


@record
class SetLogStartRequest:
    """Give up everything below `log_start`; answered by AdminSuccessResponse."""

    seq_num: int
    partition_id: int
    log_start: int


@record
class ReplicaStateRequest:
    """Ask how far a replica trusts its own log."""

    seq_num: int
    partition_id: int


@record
class ReplicaStateResponse:
    """Session, marks and what is suspect."""

    seq_num: int
    partition_id: int
    last_session_info: SessionInfo
    fence: int  # highest session ever answered, persisted
    durable_mark: int  # highest id known to be synced; -1 for none
    log_start: int
    max_transaction_id: int
    condition: int  # Condition
    suspects: tuple[SuspectRange, ...]
    reason: str | None  # for people, unless the condition is SOUND


@record
class RepairRequest:
    """Fetch suspect records from the admin ports of other nodes; no range means all that is suspect."""

    seq_num: int
    partition_id: int
    sources: tuple[Endpoint, ...]
    ranges: tuple[IdRange, ...]


class RepairOutcome(enum.IntEnum):
    """What became of one range."""

    REPAIRED = 0  # rewritten in place, synced and read again
    SOURCES_DISAGREE = 1  # waits for an operator
    NO_SOURCE = 2  # no holder answered
    WRITE_FAILED = 3
    NOT_SUSPECT = 4  # nothing was done


@record
class RepairedRange:
    """One range and its outcome."""

    first_id: int
    last_id: int
    outcome: int  # RepairOutcome


@record
class RepairResponse:
    """Sent when the repair has ended."""

    seq_num: int
    partition_id: int
    ranges: tuple[RepairedRange, ...]
    message: str | None


@record
class AcceptLimboRequest:
    """An operator gives up what the replica may have lost: the log counts as complete up to `max_transaction_id`."""

    seq_num: int
    partition_id: int
    max_transaction_id: int  # must be that of the replica, so that an operator confirms only what was shown


@record
class SegmentListRequest:
    """Ask for the files of a log."""

    seq_num: int
    partition_id: int


@record
class SegmentInfo:
    """One segment file."""

    first_id: int
    last_id: int  # first_id - 1 when it is empty
    size: int  # bytes, header included, up to the end of the last durable record
    creation_ms: int
    sealed: bool


@record
class SegmentListResponse:
    """Segments in the order of their first ids."""

    seq_num: int
    partition_id: int
    segments: tuple[SegmentInfo, ...]


@record
class SegmentReadRequest:
    """Ask for bytes of a segment file as they are on disk."""

    seq_num: int
    partition_id: int
    first_id: int  # names the segment
    offset: int
    size: int


@record
class SegmentReadResponse:
    """At most `size` bytes, fewer at the durable end."""

    seq_num: int
    partition_id: int
    first_id: int
    offset: int
    data: bytes
    checksum: int  # CRC-32 of `data`, as a signed int32


@record
class RecordRangeRequest:
    """Ask for records; answered by RecordListResponse, cut by number and by bytes."""

    seq_num: int
    partition_id: int
    first_id: int
    last_id: int  # inclusive
    count_max: int
    size_max: int  # bytes of encoded records; at least one record is returned


@record
class StatisticsRequest:
    """Ask for figures whose names start with one of `prefixes` (none = all)."""

    seq_num: int
    partition_id: int  # -1: of all partitions and of the process
    prefixes: tuple[str, ...]


@record
class StatisticsResponse:
    """Figures of the node."""

    seq_num: int
    time_ms: int  # clock of the node, since 1970
    statistics: tuple[Statistic, ...]


@record
class DigestRequest:
    """Ask for a digest of records, to compare replicas without copying them."""

    seq_num: int
    partition_id: int
    first_id: int
    last_id: int  # inclusive; the whole range must be in the log


@record
class DigestResponse:
    """SHA-256 over the bytes of the records as on disk, one after the other."""

    seq_num: int
    partition_id: int
    first_id: int
    last_id: int
    digest: bytes


AdminMessage: TypeAlias = (
    AdminSuccessResponse
    | AdminFailureResponse
    | AdminOpenRequest
    | PartitionAvailableRequest
    | PartitionAssignmentRequest
    | RecordListRequest
    | RecordListResponse
    | LastSessionInfoRequest
    | LastSessionInfoResponse
    | MetricsRequest
    | MetricsResponse
    | AssignedPartitionStatusRequest
    | AssignedPartitionStatusResponse
    | NodeInfoRequest
    | NodeInfoResponse
    | LogStartRequest
    | LogStartResponse
    | SetLogStartRequest
    | ReplicaStateRequest
    | ReplicaStateResponse
    | RepairRequest
    | RepairResponse
    | AcceptLimboRequest
    | SegmentListRequest
    | SegmentListResponse
    | SegmentReadRequest
    | SegmentReadResponse
    | RecordRangeRequest
    | StatisticsRequest
    | StatisticsResponse
    | DigestRequest
    | DigestResponse
)

"""Messages between tools and the admin port of storage nodes. Records only; bytes: `admin_codec`.

Every message starts with a sequence number, which answers echo.
"""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

from waltz_core.log import Record, SessionInfo
from waltz_core.record import record
from waltz_core.wire.storage_messages import StackFrame


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
    records: tuple[Record, ...]


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
)

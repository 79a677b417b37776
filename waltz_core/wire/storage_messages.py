"""Messages between servers and the storage port of storage nodes. Records only; bytes: `storage_codec`.

Every message starts with session id, sequence number and partition id; answers echo all three.
"""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

from waltz_core.log import Record, RecordHeader, SessionInfo
from waltz_core.record import record


@record
class StackFrame:
    """One line of a Java stack trace, as 0.13.2 attaches them to failures."""

    class_name: str
    method: str
    file: str | None
    line: int


@record
class OpenRequest:
    """Check that both sides belong to the same cluster; session, sequence and partition are -1."""

    session_id: int
    seq_num: int
    partition_id: int
    key: UUID
    num_partitions: int


@record
class LastSessionInfoRequest:
    """Ask what the last `SetLowWaterMarkRequest` persisted."""

    session_id: int
    seq_num: int
    partition_id: int
    used_by_offline_recovery: bool


@record
class LastSessionInfoResponse:
    """Session and marks of a replica; -1, -1, -1 when it is fresh."""

    session_id: int
    seq_num: int
    partition_id: int
    last_session_info: SessionInfo


@record
class SetLowWaterMarkRequest:
    """Persist a mark and the session that sets it."""

    session_id: int
    seq_num: int
    partition_id: int
    low_water_mark: int
    used_by_offline_recovery: bool


@record
class TruncateRequest:
    """Drop everything behind `transaction_id`, the last one kept."""

    session_id: int
    seq_num: int
    partition_id: int
    transaction_id: int
    used_by_offline_recovery: bool


@record
class AppendRequest:
    """Continue the log with `records`; answered when they are durable."""

    session_id: int
    seq_num: int
    partition_id: int
    records: tuple[Record, ...]
    used_by_offline_recovery: bool


@record
class SuccessResponse:
    """Done."""

    session_id: int
    seq_num: int
    partition_id: int


@record
class FailureResponse:
    """Not done, and why. Only 0.13.2 sends a stack; we send none."""

    session_id: int
    seq_num: int
    partition_id: int
    message: str | None
    stack: tuple[StackFrame, ...] = ()


@record
class RecordHeaderRequest:
    """Ask for one record without its data."""

    session_id: int
    seq_num: int
    partition_id: int
    transaction_id: int


@record
class RecordHeaderResponse:
    """None when the id is not in the log."""

    session_id: int
    seq_num: int
    partition_id: int
    record_header: RecordHeader | None


@record
class RecordRequest:
    """Ask for one record."""

    session_id: int
    seq_num: int
    partition_id: int
    transaction_id: int


@record
class RecordResponse:
    """None when the id is not in the log."""

    session_id: int
    seq_num: int
    partition_id: int
    record: Record | None


@record
class MaxTransactionIdRequest:
    """Ask for the id of the last record."""

    session_id: int
    seq_num: int
    partition_id: int
    used_by_offline_recovery: bool


@record
class MaxTransactionIdResponse:
    """-1 when the log is empty. Also the answer to `TruncateRequest`."""

    session_id: int
    seq_num: int
    partition_id: int
    transaction_id: int


@record
class RecordHeaderListRequest:
    """Ask for records without data, from `transaction_id` upward."""

    session_id: int
    seq_num: int
    partition_id: int
    transaction_id: int
    max_num_records: int


@record
class RecordHeaderListResponse:
    """Ends before the first id that is not in the log."""

    session_id: int
    seq_num: int
    partition_id: int
    record_headers: tuple[RecordHeader, ...]


@record
class RecordListRequest:
    """Ask for records from `transaction_id` upward."""

    session_id: int
    seq_num: int
    partition_id: int
    transaction_id: int
    max_num_records: int


@record
class RecordListResponse:
    """Ends before the first id that is not in the log."""

    session_id: int
    seq_num: int
    partition_id: int
    records: tuple[Record, ...]


StorageMessage: TypeAlias = (
    OpenRequest
    | LastSessionInfoRequest
    | LastSessionInfoResponse
    | SetLowWaterMarkRequest
    | TruncateRequest
    | AppendRequest
    | SuccessResponse
    | FailureResponse
    | RecordHeaderRequest
    | RecordHeaderResponse
    | RecordRequest
    | RecordResponse
    | MaxTransactionIdRequest
    | MaxTransactionIdResponse
    | RecordHeaderListRequest
    | RecordHeaderListResponse
    | RecordListRequest
    | RecordListResponse
)

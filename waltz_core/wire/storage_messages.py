"""Messages between servers and the storage port of storage nodes. Records only; bytes: `storage_codec`.

Every message starts with session id, sequence number and partition id; answers echo all three.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeAlias
from uuid import UUID

from waltz_core.base.log import Record, RecordHeader, SessionInfo
from waltz_core.base.record import record
from waltz_core.wire.shared import StackFrame, Statistic, SuspectRange


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
    """Session and marks of a replica; -1, -1, -1 when it is fresh. Codec 1 adds what follows them."""

    session_id: int
    seq_num: int
    partition_id: int
    last_session_info: SessionInfo
    fence: int = -1  # highest session ever answered, persisted; not below that of the session info
    condition: int = 0  # Condition
    suspects: tuple[SuspectRange, ...] = ()
    reason: str | None = None  # for people, unless the condition is SOUND


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
    records: Sequence[Record]
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
    code: int = 0  # FailureCode; codec 1
    detail: int = -1  # see FailureCode; codec 1


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
    record_headers: Sequence[RecordHeader]


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
    records: Sequence[Record]


# ---- since codec 1 ---------------------------------------------------------------------------


@record
class StatisticsRequest:
    """Ask for figures whose names start with one of `prefixes` (none = all)."""

    session_id: int
    seq_num: int
    partition_id: int  # -1: of all partitions and of the process
    prefixes: tuple[str, ...]


@record
class StatisticsResponse:
    """Figures, such as the time of the last syncs."""

    session_id: int
    seq_num: int
    partition_id: int
    time_ms: int  # clock of the node, since 1970
    statistics: tuple[Statistic, ...]


@record
class RecordRangeRequest:
    """Ask for records; answered by RecordListResponse, cut by number and by bytes."""

    session_id: int
    seq_num: int
    partition_id: int
    first_id: int
    last_id: int  # inclusive
    count_max: int
    size_max: int  # bytes of encoded records; at least one record is returned


@record
class LogStartRequest:
    """Ask for the ends of the log."""

    session_id: int
    seq_num: int
    partition_id: int


@record
class LogStartResponse:
    """The first id that can be read, and the last (log_start - 1 when there is none)."""

    session_id: int
    seq_num: int
    partition_id: int
    log_start: int
    max_transaction_id: int


class StorageCapability(enum.IntFlag):
    """What a storage node can do for servers beyond codec 1; its figure `capabilities` announces it."""

    BEGIN_ANEW = 1


CAPABILITIES = "capabilities"
"""The figure of the process that announces them: one that older nodes do not have."""


@record
class SetLogStartRequest:
    """Give up everything below `log_start`. Answered by SuccessResponse."""

    session_id: int
    seq_num: int
    partition_id: int
    log_start: int


@record
class BeginAnewRequest:
    """Give up the whole log, which ends before `log_start - 1`, and begin there. Answered by SuccessResponse."""

    session_id: int
    seq_num: int
    partition_id: int
    log_start: int


@record
class SuspectReport:
    """Sent by a node without being asked (sequence number -1) when its condition changes in a session."""

    session_id: int
    seq_num: int
    partition_id: int
    condition: int  # Condition
    suspects: tuple[SuspectRange, ...]
    reason: str | None


def capabilities_of(answer: StatisticsResponse) -> StorageCapability:
    """What a node announces; bits that we do not know are ignored."""
    announced = sum(int(figure.value) for figure in answer.statistics if figure.name == CAPABILITIES)
    return StorageCapability(announced & sum(StorageCapability))


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
    | StatisticsRequest
    | StatisticsResponse
    | RecordRangeRequest
    | LogStartRequest
    | LogStartResponse
    | SetLogStartRequest
    | SuspectReport
    | BeginAnewRequest
)

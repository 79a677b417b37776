"""What a replica does for the requests of the storage port, and how it answers them.

    Lane ── a request ──▶ let in? (`permission.py`) ── no ──▶ FailureResponse, with its code
                             └─ yes, older sessions are fenced off ──▶ a procedure over ReplicaFiles ──▶ the answer

Each request gets exactly one answer, after what it asked for is durable; an error of the disk is an answer, too.
Appends do not come this way but together, through `Appends`. Everything this file needs to know is in `ReplicaFiles`;
of its own it has counters only.
"""

from __future__ import annotations

from typing import TypeAlias

from waltz_core.base.errors import StorageError
from waltz_core.storage.answers import fail, succeed
from waltz_core.storage.appends import Appends
from waltz_core.storage.lane import Lane
from waltz_core.storage.log_start import begin_anew, raise_start
from waltz_core.storage.permission import enter
from waltz_core.storage.procedure import DiskError, Procedure
from waltz_core.storage.refusals import SE, Refusal, io_refusal
from waltz_core.storage.replica_files import ReplicaFiles
from waltz_core.storage.transcode import Incoming
from waltz_core.storage.truncation import set_low_water_mark, truncate
from waltz_core.storage.verified_reads import VerifiedReads, range_span
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.shared import FailureCode

ReadRequest: TypeAlias = (
    wire.RecordRequest
    | wire.RecordHeaderRequest
    | wire.RecordListRequest
    | wire.RecordHeaderListRequest
    | wire.RecordRangeRequest
)
_READS = (
    wire.RecordRequest,
    wire.RecordHeaderRequest,
    wire.RecordListRequest,
    wire.RecordHeaderListRequest,
    wire.RecordRangeRequest,
)
_SINGLE = (wire.RecordRequest, wire.RecordHeaderRequest)

_COUNTERS: dict[type, str] = {
    wire.LastSessionInfoRequest: "last-session-info-request",
    wire.SetLowWaterMarkRequest: "set-low-water-mark-request",
    wire.TruncateRequest: "truncate-request",
    wire.RecordHeaderRequest: "record-header-request",
    wire.RecordRequest: "record-request",
    wire.MaxTransactionIdRequest: "max-transaction-request",
    wire.RecordHeaderListRequest: "record-header-list-request",
    wire.RecordListRequest: "record-list-request",
    wire.RecordRangeRequest: "record-list-request",
}

# Java: the number in `unknown message type`.
_TYPE_CODES: dict[type, int] = {
    wire.LastSessionInfoResponse: 3,
    wire.SuccessResponse: 7,
    wire.FailureResponse: 8,
    wire.RecordHeaderResponse: 10,
    wire.RecordResponse: 12,
    wire.MaxTransactionIdResponse: 14,
    wire.RecordHeaderListResponse: 16,
    wire.RecordListResponse: 18,
}


class Serving:
    """Requests of one replica, one at a time, but for reads of what is durable."""

    __slots__ = ("_appends", "_context", "_files", "_lane", "_reads", "counters")

    def __init__(self, files: ReplicaFiles, lane: Lane, reads: VerifiedReads, appends: Appends) -> None:
        self._files = files
        self._lane = lane
        self._reads = reads
        self._appends = appends
        self._context = files.context
        self.counters: dict[str, int] = dict.fromkeys(_COUNTERS.values(), 0)

    def serve(self, conn: int, message: Incoming) -> Procedure[None]:
        """Carry out a request and answer it exactly once, even if something fails."""
        try:
            yield from self._serve(conn, message)
        except DiskError as fault:
            fail(self._context, conn, message, io_refusal(fault))
        except StorageError as error:
            fail(self._context, conn, message, error)

    def _serve(self, conn: int, message: Incoming) -> Procedure[None]:
        files = self._files
        match message:
            case wire.RecordRequest() | wire.RecordHeaderRequest():
                yield from self._serve_read(conn, message)
            case wire.RecordListRequest() | wire.RecordHeaderListRequest() | wire.RecordRangeRequest():
                yield from self._serve_read(conn, message)
            case wire.LastSessionInfoRequest():
                yield from self._enter(message, state_matters=False)
                self._report_session(conn, message)
            case wire.MaxTransactionIdRequest():
                yield from self._enter(message)
                self._answer_id(conn, message, files.max_id)
            case wire.SetLowWaterMarkRequest():
                yield from self._enter(message)
                yield from set_low_water_mark(files, message)
                succeed(self._context, conn, message)
            case wire.TruncateRequest():
                yield from self._enter(message)
                self._answer_id(conn, message, (yield from truncate(files, self._reads, message.transaction_id)))
            case wire.LogStartRequest():
                yield from enter(files, message, False)
                ids = message.session_id, message.seq_num, self._files.partition_id
                self._context.reply(conn, wire.LogStartResponse(*ids, files.log_start, files.max_id))
            case wire.SetLogStartRequest():
                yield from enter(files, message, False)
                yield from raise_start(files, message.log_start)
                succeed(self._context, conn, message)
            case wire.BeginAnewRequest():
                yield from enter(files, message, False)
                yield from begin_anew(files, message.log_start)
                succeed(self._context, conn, message)
            case _:
                yield from enter(files, message, False)
                raise _not_served(message)

    def _enter(
        self,
        message: (
            wire.LastSessionInfoRequest
            | wire.MaxTransactionIdRequest
            | wire.SetLowWaterMarkRequest
            | wire.TruncateRequest
        ),
        *,
        state_matters: bool = True,
    ) -> Procedure[None]:
        """Let in, and count, what a tool may send as well while the partition is offline."""
        yield from enter(self._files, message, message.used_by_offline_recovery, state_matters=state_matters)
        self.counters[_COUNTERS[type(message)]] += 1

    def _report_session(self, conn: int, message: wire.LastSessionInfoRequest) -> None:
        """The first answer of a session: what is persisted, and how far this replica trusts its log."""
        files, ids = self._files, (message.session_id, message.seq_num, self._files.partition_id)
        files.listen(conn, message.session_id)
        self._context.reply(
            conn,
            wire.LastSessionInfoResponse(
                *ids, files.session_info(), files.fence, files.condition(), files.suspects(), files.reason or None
            ),
        )

    def _answer_id(self, conn: int, message: Incoming, transaction_id: int) -> None:
        ids = message.session_id, message.seq_num, self._files.partition_id
        self._context.reply(conn, wire.MaxTransactionIdResponse(*ids, transaction_id))

    # ---- reads -----------------------------------------------------------------------------------

    def at_once(self, message: Incoming) -> bool:
        """Whether a read may run beside the lane: it needs no new fence and touches durable records only."""
        if not isinstance(message, _READS):
            return False
        lane = self._lane
        if lane.closed or message.session_id > self._files.fence:
            return False
        first, count, _ = _span(message)
        return first + count - 1 <= self._files.max_id or not (lane.busy or lane.jobs)

    def _serve_read(self, conn: int, message: ReadRequest) -> Procedure[None]:
        yield from enter(self._files, message, False, state_matters=False)
        self.counters[_COUNTERS[type(message)]] += 1
        records = yield from self._reads.read(*_span(message))
        reply, ids = self._context.reply, (message.session_id, message.seq_num, self._files.partition_id)
        match message:
            case wire.RecordRequest():
                reply(conn, wire.RecordResponse(*ids, records[0] if records else None))
            case wire.RecordHeaderRequest():
                reply(conn, wire.RecordHeaderResponse(*ids, records.headers()[0] if records else None))
            case wire.RecordListRequest() | wire.RecordRangeRequest():
                reply(conn, wire.RecordListResponse(*ids, records))
            case wire.RecordHeaderListRequest():
                reply(conn, wire.RecordHeaderListResponse(*ids, records.headers()))


def _not_served(message: Incoming) -> StorageError:
    number = _TYPE_CODES.get(type(message))
    if number is None:
        text = f"{SE}{type(message).__name__} is not implemented by this storage node"
        return Refusal(text, FailureCode.NOT_IMPLEMENTED)
    return StorageError(f"java.lang.IllegalStateException: unknown message type: {number}")


def _span(message: ReadRequest) -> tuple[int, int, int]:
    """First id, number of records, and their bytes at most, 0 = no limit of the message."""
    if isinstance(message, wire.RecordRangeRequest):
        return range_span(message)
    return message.transaction_id, 1 if isinstance(message, _SINGLE) else message.max_num_records, 0

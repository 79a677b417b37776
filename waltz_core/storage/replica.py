"""One partition on a storage node: fences by session, keeps order, acknowledges only what is durable.

Requests go through a lane, one piece of disk work at a time; appends that wait there are written and
synced together. Reads of what is durable do not wait in the lane.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import TypeAlias

from waltz_core.base.edge import Level
from waltz_core.base.errors import StorageError
from waltz_core.base.log import Record, RecordHeader
from waltz_core.storage import index as index_file
from waltz_core.storage import legacy, mending, segment_reads, side
from waltz_core.storage.config import Shared
from waltz_core.storage.control import ControlEntry
from waltz_core.storage.custody import DROP, AdminDone, Custody, State
from waltz_core.storage.effects import Cut, FaultKind, Operation, SyncFile
from waltz_core.storage.legacy import io_text
from waltz_core.storage.log_files import AppendPlan, LogFiles, Segment, plan_append, remove_operations
from waltz_core.storage.procedure import DiskError, Procedure, write
from waltz_core.storage.reading import locate, read_range
from waltz_core.storage.record_codec import encode_record, record_size
from waltz_core.storage.refusals import (
    CU,
    SE,
    SESSION_LEAP_MAX,
    Refusal,
    fenced,
    implausible,
    not_assigned,
    out_of_order,
)
from waltz_core.storage.segment import HEADER_SIZE
from waltz_core.storage.side import Belongs
from waltz_core.storage.transcode import AppendRun, Incoming, StoredAppend, run_of, size_of
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.shared import FailureCode

__all__ = ["DROP", "AdminDone", "State", "StorageReplica"]

MARK_EVERY_MS = 1000  # how far the durable mark may lag behind

Reading: TypeAlias = (
    wire.RecordRequest
    | wire.RecordHeaderRequest
    | wire.RecordListRequest
    | wire.RecordHeaderListRequest
    | wire.RecordRangeRequest
)
AdminReading: TypeAlias = (
    admin.RecordListRequest
    | admin.RecordRangeRequest
    | admin.DigestRequest
    | admin.SegmentListRequest
    | admin.SegmentReadRequest
)
_READS = (
    wire.RecordRequest,
    wire.RecordHeaderRequest,
    wire.RecordListRequest,
    wire.RecordHeaderListRequest,
    wire.RecordRangeRequest,
)
_EXCLUSIVE = (wire.TruncateRequest, wire.SetLogStartRequest)  # files go: no read may be under way
_ONE = (wire.RecordRequest, wire.RecordHeaderRequest)

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


class _Job:
    """Something that waits in the lane. Wire requests carry `conn` and `message`, the others `work`."""

    __slots__ = ("conn", "exclusive", "message", "refuse", "work")

    def __init__(
        self,
        conn: int = 0,
        message: Incoming | None = None,
        work: Callable[[], Procedure[None]] | None = None,
        exclusive: bool = False,
        refuse: AdminDone | None = None,
    ) -> None:
        self.conn = conn
        self.message = message
        self.work = work
        self.exclusive = exclusive  # runs only while no read is under way
        self.refuse = refuse  # who is told if an administrative change fails


class StorageReplica(Custody):
    """One partition, assigned to this node or not: its lane and what it answers."""

    def __init__(
        self, partition_id: int, entry: ControlEntry, shared: Shared, control_problem: str | None = None
    ) -> None:
        super().__init__(partition_id, entry, shared, control_problem)
        own = "append", "append-batches", "repaired-records", "scrubbed-records", "scrub-passes"
        self.counters: dict[str, int] = dict.fromkeys([*own, *_COUNTERS.values()], 0)
        self._lane: deque[_Job] = deque()
        self._lane_bytes = 0  # of the appends in it
        self._exclusive_waiting = 0  # jobs in the lane beside which no read may run
        self._busy = False  # a job of the lane is under way
        self._exclusive = False  # and no read may run beside it
        self._pumping = False  # jobs that end at once must not pile up on the stack
        self._reads = 0  # reads under way beside the lane
        self._rolling = False  # a write that begins a segment is under way
        self._busy_mark = False  # the durable mark is being written

    @property
    def queue_count(self) -> int:
        """Requests that wait."""
        return len(self._lane)

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is under way."""
        return not (self._busy or self._lane or self._reads or self._busy_mark)

    # ---- requests --------------------------------------------------------------------------------

    def submit(self, conn: int, message: Incoming, out: list[object]) -> None:
        """A request of the storage port; `pump` must be called afterwards, once per step."""
        if message.session_id > self._seen and self.state is not State.UNASSIGNED:
            self._seen = message.session_id
        if self.state is State.UNASSIGNED and not self._lane and not self._busy:
            self._fail(conn, message, not_assigned(self.partition_id))
            return
        if len(self._lane) >= self._shared.config.queue_count_max:
            text = f"{SE}partition {self.partition_id}: too many requests are waiting"
            self._fail(conn, message, Refusal(text, FailureCode.OVERLOADED))
            return
        size = size_of(message)
        limit = self._shared.config.queue_bytes_max
        if size and self._lane_bytes and self._lane_bytes + size > limit:
            text = f"{SE}partition {self.partition_id}: appends of {self._lane_bytes} bytes are waiting, of {limit}"
            self._fail(conn, message, Refusal(f"{text} (storage.queueBytesMax)", FailureCode.OVERLOADED))
            return
        self._lane_bytes += size
        if isinstance(message, _READS) and self._reads_at_once(message):
            self._reads += 1
            self._shared.runner.start(
                self._answered(conn, message, self._serve_read(conn, message)), self._read_done, out
            )
            return
        self._queue(_Job(conn, message, exclusive=type(message) in _EXCLUSIVE))

    def read_for_admin(self, conn: int, request: AdminReading, out: list[object]) -> None:
        """A read of the admin port: no session, no availability."""
        job = _Job(work=lambda: self._admin_read(conn, request))
        if self._lane_is_closed():
            self._queue(job)
            return
        self._reads += 1
        assert job.work is not None
        self._shared.runner.start(job.work(), self._read_done, out)

    def open(self, done: AdminDone) -> None:
        """Open the files of a partition that the control file says is assigned; `pump` follows."""
        self.state = State.OPENING
        self._queue(_Job(work=lambda: self._open_assigned(done), exclusive=True, refuse=done))

    def assign(self, done: AdminDone) -> None:
        """Take the partition on; `pump` follows."""
        self._queue(_Job(work=lambda: self._assign(done), exclusive=True, refuse=done))

    def unassign(self, delete: bool, done: AdminDone) -> None:
        """Give the partition up and, if asked to, delete its files; `pump` follows."""
        self._queue(_Job(work=lambda: self._unassign(delete, done), exclusive=True, refuse=done))

    def set_available(self, available: bool, done: AdminDone) -> None:
        """Allow or forbid reads and writes; `pump` follows."""
        self._queue(_Job(work=lambda: self._set_available(available, done), refuse=done))

    # ---- scrubbing -------------------------------------------------------------------------------

    @property
    def can_scrub(self) -> bool:
        """In service, with verified reads."""
        return self.state is State.OPEN and self._rules.reads_verified

    def scrub(
        self, first: int, count: int, size_max: int, done: Callable[[int, int, int], None], out: list[object]
    ) -> bool:
        """Verify records from `first` on; then `done(now, next id, bytes read)`. False: not now."""
        if self._lane_is_closed():
            return False
        self._reads += 1
        first = max(first, self.log_start)
        self._shared.runner.start(self._scrub(first, count, size_max, done), self._read_done, out)
        return True

    def _scrub(self, first: int, count: int, size_max: int, done: Callable[[int, int, int], None]) -> Procedure[None]:
        try:
            records, damaged = yield from self._read_or_blame(self._files, first, count, size_max)
        except DiskError as fault:
            text = f"partition {self.partition_id}: transaction {first} cannot be read: {fault}"
            self._outbox.report(Level.ERROR, text)
            records, damaged = [], first
        if damaged is not None:
            self._note_fault(damaged)
        next_id = max(first, first + len(records) - 1 if damaged is None else damaged) + 1
        self.counters["scrubbed-records"] += next_id - first
        done(self._shared.now, next_id, max(sum(map(record_size, records)), 4096))

    # ---- repair ----------------------------------------------------------------------------------

    def survey(self, done: Callable[[list[tuple[int, int]]], None]) -> None:
        """Find out which records are damaged; `pump` follows, here and below."""
        self._queue(_Job(work=lambda: self._survey(done), exclusive=True))

    def mend(self, records: Sequence[Record], last: int, done: Callable[[int, str], None]) -> None:
        """Write good records over damaged ones that end with `last`; tells how many stand, and what is wrong."""
        self._queue(_Job(work=lambda: self._mend(records, last, done), exclusive=True))

    def mended(self, done: Callable[[], None]) -> None:
        """All that could be mended was: note what is left, and open again if out of service."""
        self._queue(_Job(work=lambda: self._mended(done), exclusive=True))

    def accept_limbo(self, max_id: int, done: AdminDone) -> None:
        """An operator's word that the log counts as complete up to `max_id`; `pump` follows."""
        self._queue(_Job(work=lambda: self._accept_limbo(max_id, done), exclusive=True, refuse=done))

    def set_log_start(self, first_id: int, done: AdminDone) -> None:
        """Raise the log start at an operator's word; `pump` follows."""
        self._queue(_Job(work=lambda: self._set_log_start(first_id, done), exclusive=True, refuse=done))

    def _set_log_start(self, first_id: int, done: AdminDone) -> Procedure[None]:
        if self.state is not State.OPEN:
            raise self.out_of_service()
        yield from self._raise_start(first_id, anew=False)
        done(None)

    def _survey(self, done: Callable[[list[tuple[int, int]]], None]) -> Procedure[None]:
        try:
            if self.state is State.LIMBO:
                notes = yield from mending.mend_headers(self._ground, self.log, self._shared.wall_ms)
                for note in notes:
                    self._outbox.report(Level.WARNING, f"partition {self.partition_id}: {note}")
                if notes:
                    yield from self._open_again()
            elif self.state is State.STOPPED:
                yield from self._open_again()
            elif self.state is State.OPEN:
                yield from self._widen_faults()
        except DiskError as fault:
            self._stop(fault)
        serving = self.log is not None and self.state in (State.OPEN, State.LIMBO)
        done(side.ranges_of(self.faults) if serving else [])

    def _widen_faults(self) -> Procedure[None]:
        """Look at the neighbours of what is damaged: rot seldom comes alone, and a run is mended as a whole."""
        for fault in sorted(self.faults):
            if (yield from mending.is_intact(self._files, fault)):
                self.faults.discard(fault)  # it could not be read for a while only
        for fault in sorted(self.faults):
            for step in (-1, 1):
                near = fault + step
                while self.log_start <= near <= self.max_id and near not in self.faults:
                    if (yield from mending.is_intact(self._files, near)):
                        break
                    self.faults.add(near)
                    near += step

    def _mend(self, records: Sequence[Record], last: int, done: Callable[[int, str], None]) -> Procedure[None]:
        count, problem = 0, self.reason
        try:
            if self.state in (State.OPEN, State.LIMBO):
                count, problem = yield from mending.mend_run(
                    self._ground, self._files, records, last, self._shared.wall_ms
                )
        except DiskError as fault:
            problem = str(fault)
            if fault.kind is not FaultKind.FULL:
                self._stop(fault)
        self.faults.difference_update(one.transaction_id for one in records[:count])
        self.counters["repaired-records"] += count
        if count:
            ids = f"{records[0].transaction_id}..{records[count - 1].transaction_id}"
            self._outbox.report(Level.WARNING, f"partition {self.partition_id}: transactions {ids} repaired")
        done(count, problem)

    def _mended(self, done: Callable[[], None]) -> Procedure[None]:
        try:
            if self.state is State.LIMBO:
                yield from self._open_again()
            elif self.state is State.OPEN:
                yield from self._write_faults()
        except DiskError:
            pass  # the partition has stopped and said so
        self._tell()
        done()

    def _accept_limbo(self, max_id: int, done: AdminDone) -> Procedure[None]:
        yield from self._accept_loss(max_id)
        self._tell()
        done(None)

    # ---- the lane --------------------------------------------------------------------------------

    def _queue(self, job: _Job) -> None:
        self._lane.append(job)
        self._exclusive_waiting += job.exclusive

    def _take(self) -> _Job:
        """The job at the head of the lane, which it leaves."""
        job = self._lane.popleft()
        if job.message is not None:
            self._lane_bytes -= size_of(job.message)
        return job

    def pump(self, out: list[object]) -> None:
        """Start whatever can be started."""
        if self._pumping:
            return
        self._pumping = True
        try:
            self._start_jobs(out)
        finally:
            self._pumping = False

    def _start_jobs(self, out: list[object]) -> None:
        while self._lane and not self._busy:
            head = self._lane[0]
            if self._rules.append_atomic and type(head.message) in (AppendRun, wire.AppendRequest):
                self._launch_appends(out)
                continue
            if head.exclusive and (self._reads or self._busy_mark):
                return
            self._take()
            self._exclusive_waiting -= head.exclusive
            self._busy, self._exclusive = True, head.exclusive
            self._shared.runner.start(self._job(head), self._job_done, out)

    def _job_done(self, out: list[object]) -> None:
        self._busy = self._exclusive = self._rolling = False
        self.pump(out)

    def _read_done(self, out: list[object]) -> None:
        self._reads -= 1
        self.pump(out)

    def _mark_done(self, out: list[object]) -> None:
        self._busy_mark = False
        self.pump(out)

    def _lane_is_closed(self) -> bool:
        """Files may change under a read: it has to wait in the lane."""
        return self._exclusive or self._exclusive_waiting > 0

    def _job(self, job: _Job) -> Procedure[None]:
        if job.message is not None:
            yield from self._answered(job.conn, job.message, self._serve(job.conn, job.message))
            return
        assert job.work is not None
        try:
            yield from job.work()
        except DiskError as fault:
            if job.refuse is not None:
                job.refuse(io_text(fault))
        except StorageError as error:
            if job.refuse is not None:
                job.refuse(str(error))

    def _answered(self, conn: int, message: Incoming, work: Procedure[None]) -> Procedure[None]:
        """Turn every failure of `work` into exactly one failure answer."""
        try:
            yield from work
        except DiskError as fault:
            self._fail(conn, message, _io_refusal(fault))
        except StorageError as error:
            self._fail(conn, message, error)

    def _fail(self, conn: int, message: Incoming, why: StorageError) -> None:
        code, detail = (why.code, why.detail) if isinstance(why, Refusal) else (FailureCode.OTHER, -1)
        self._outbox.reply(
            conn,
            wire.FailureResponse(
                message.session_id, message.seq_num, message.partition_id, str(why), code=code, detail=detail
            ),
        )

    # ---- serving ---------------------------------------------------------------------------------

    def _serve(self, conn: int, message: Incoming) -> Procedure[None]:
        match message:
            case wire.RecordRequest() | wire.RecordHeaderRequest():
                yield from self._serve_read(conn, message)
            case wire.RecordListRequest() | wire.RecordHeaderListRequest():
                yield from self._serve_read(conn, message)
            case wire.AppendRequest():  # with the rules off only
                yield from self._enter(message, message.used_by_offline_recovery)
                self._count("append")
                yield from legacy.append(self._ground, self._files, message.records, self._shared.wall_ms)
                self._succeed(conn, message)
            case wire.LastSessionInfoRequest():
                yield from self._enter(message, message.used_by_offline_recovery, reporting=True)
                self._count(_COUNTERS[type(message)])
                self._report_session(conn, message)
            case wire.MaxTransactionIdRequest():
                yield from self._enter(message, message.used_by_offline_recovery)
                self._count(_COUNTERS[type(message)])
                self._answer_id(conn, message, self.max_id)
            case wire.SetLowWaterMarkRequest():
                yield from self._enter(message, message.used_by_offline_recovery)
                self._count(_COUNTERS[type(message)])
                yield from self._set_low_water_mark(message)
                self._succeed(conn, message)
            case wire.TruncateRequest():
                yield from self._enter(message, message.used_by_offline_recovery)
                self._count(_COUNTERS[type(message)])
                self._answer_id(conn, message, (yield from self._truncate(message.transaction_id)))
            case wire.LogStartRequest():
                yield from self._enter(message, False)
                ids = message.session_id, message.seq_num, self.partition_id
                self._outbox.reply(conn, wire.LogStartResponse(*ids, self.log_start, self.max_id))
            case wire.SetLogStartRequest():
                yield from self._enter(message, False)
                yield from self._raise_start(message.log_start, anew=True)
                self._succeed(conn, message)
            case _:
                yield from self._enter(message, False)
                number = _TYPE_CODES.get(type(message))
                if number is None:
                    text = f"{SE}{type(message).__name__} is not implemented by this storage node"
                    raise Refusal(text, FailureCode.NOT_IMPLEMENTED)
                raise StorageError(f"java.lang.IllegalStateException: unknown message type: {number}")

    def _report_session(self, conn: int, message: wire.LastSessionInfoRequest) -> None:
        """The first answer of a session: what is persisted, and how far this replica trusts its log."""
        ids = message.session_id, message.seq_num, self.partition_id
        if not self._rules.fence_persisted:
            self._outbox.reply(conn, wire.LastSessionInfoResponse(*ids, self.session_info()))
            return
        self._listener, self._told = (conn, message.session_id), None
        self._outbox.reply(
            conn,
            wire.LastSessionInfoResponse(
                *ids, self.session_info(), self.fence, self.condition(), self.suspects(), self.reason or None
            ),
        )

    def _answer_id(self, conn: int, message: Incoming, transaction_id: int) -> None:
        self._outbox.reply(
            conn,
            wire.MaxTransactionIdResponse(message.session_id, message.seq_num, self.partition_id, transaction_id),
        )

    def _succeed(self, conn: int, message: Incoming) -> None:
        self._outbox.reply(conn, wire.SuccessResponse(message.session_id, message.seq_num, self.partition_id))

    def _count(self, name: str) -> None:
        self.counters[name] += 1

    # ---- permission ------------------------------------------------------------------------------

    def _refusal(self, message: Incoming, offline: bool, state_matters: bool = True) -> StorageError | None:
        """Why a request is not served; a session above the fence is no reason."""
        current = self.entry.current
        if self.state is State.UNASSIGNED:
            return not_assigned(self.partition_id)
        if not current.assigned:
            text = f"{SE}partition {self.partition_id} is not assigned to storage node."
            return Refusal(text, FailureCode.NOT_ASSIGNED)
        if self.state is not State.OPEN and state_matters:
            return self.out_of_service()
        if offline:
            if current.available:
                return Refusal(f"{SE}cannot run offline recovery while partition is online", FailureCode.UNAVAILABLE)
            if message.session_id != current.session_id:
                return Refusal(
                    f"{SE}partition last session id has changed to {current.session_id}, "
                    f"but request context contains {message.session_id}",
                    FailureCode.FENCED,
                    current.session_id,
                )
            return None
        if not current.available:
            return Refusal(
                f"{SE}read and write for partition={self.partition_id} have been disabled on storage node",
                FailureCode.UNAVAILABLE,
            )
        highest = max(self.fence, current.session_id)
        if message.session_id > highest + SESSION_LEAP_MAX and self._rules.sessions_plausible:
            return implausible(highest, message.session_id)
        # With the fence in memory only, a session counts from its arrival, so none can be above it here.
        if message.session_id < self.fence:
            return fenced(self.fence, message.session_id)
        return None

    def _enter(
        self, message: Incoming, offline: bool, reading: bool = False, reporting: bool = False
    ) -> Procedure[None]:
        """Let a request in, fencing off older sessions first.

        Raises:
            StorageError: it is not let in.
        """
        refusal = self._refusal(message, offline, not (reading or reporting))
        if refusal is not None:
            raise refusal
        if not offline and message.session_id > self.fence:
            yield from self._raise_fence(message.session_id)

    # ---- appends ---------------------------------------------------------------------------------

    def _launch_appends(self, out: list[object]) -> None:
        """Write all appends that wait at the head of the lane at once."""
        accepted: list[tuple[int, AppendRun]] = []
        parts: list[bytes] = []
        next_id = self.max_id + 1
        size = 0
        lane = self._lane
        while lane and size < self._shared.config.write_bytes_max:
            message = lane[0].message
            if not isinstance(message, AppendRun | wire.AppendRequest):
                break
            conn = lane[0].conn
            refusal = self._refusal(message, message.used_by_offline_recovery)
            if refusal is not None:
                self._take()
                self._fail(conn, message, refusal)
                continue
            if message.session_id > self.fence and not message.used_by_offline_recovery:
                if not accepted:
                    self._busy = True
                    self._shared.runner.start(self._fence_for(conn, message), self._job_done, out)
                    return
                break
            self._take()
            self.counters["append"] += 1
            if self._shared.no_room:
                self._fail(conn, message, Refusal(f"{SE}{self._shared.no_room}", FailureCode.OVERLOADED))
                continue
            run = run_of(message)
            if run is None or (run.parts and run.first != next_id):
                self._fail(conn, message, out_of_order(next_id - 1))
                continue
            accepted.append((conn, run))
            parts += run.parts
            next_id += len(run.parts)
            size += run.size
        if not parts:
            for conn, message in accepted:
                self._succeed(conn, message)
            return
        self._busy = True
        plan = plan_append(self._ground, self._files, parts, self._shared.wall_ms, self._on_roll)
        self._rolling = bool(plan.created)
        self._shared.runner.start(self._append(plan, accepted), self._job_done, out)

    def _fence_for(self, conn: int, message: StoredAppend) -> Procedure[None]:
        """Raise the fence for an append at the head of the lane, which is looked at again afterwards."""
        try:
            yield from self._raise_fence(message.session_id)
        except DiskError as fault:
            self._take()
            self._fail(conn, message, _io_refusal(fault))

    def _append(self, plan: AppendPlan, accepted: list[tuple[int, AppendRun]]) -> Procedure[None]:
        try:
            yield tuple(plan.operations)
        except DiskError as fault:
            yield from self._retreat(plan, fault)
            for conn, message in accepted:
                self._fail(conn, message, _io_refusal(fault))
            return
        plan.commit()
        self.counters["append-batches"] += 1
        for conn, message in accepted:
            self._succeed(conn, message)
        if plan.created:
            self._plan_mark(self._shared.now)  # the old segment is durable, whatever the mark says of it
        elif self.partition_id not in self._shared.due and self._rules.torn_not_corrupt:
            self._plan_mark(self._shared.now + MARK_EVERY_MS)

    def _on_roll(self, segment: Segment) -> tuple[Operation, ...]:
        """The durable mark must name the segment that is written to, or it does not count at the next opening."""
        if not self._rules.torn_not_corrupt:
            return ()
        belongs = self._belongs()
        named = Belongs(belongs.sequence, belongs.session_id, segment.first_id)
        return self._sides.create_missing() + self._sides.mark_operations(segment.first_id - 1, named)

    def _retreat(self, plan: AppendPlan, fault: DiskError) -> Procedure[None]:
        """Undo a write of which any part may have happened, so that nothing unsynced is ever believed.

        On a full disk the partition goes on with what it had; after any other failure it stops.
        """
        try:
            yield from write(*plan.retreat(self._ground.directory))
        except DiskError as second:
            self._stop(second)
            return
        if fault.kind is not FaultKind.FULL:
            self._stop(fault)

    # ---- marks and truncation --------------------------------------------------------------------

    def _set_low_water_mark(self, message: wire.SetLowWaterMarkRequest) -> Procedure[None]:
        mark, highest, current = message.low_water_mark, self.max_id, self.entry.current
        if highest > mark:
            raise StorageError(f"{SE}low-water mark is lower than the max transaction id")
        if message.session_id < current.session_id:
            raise Refusal(
                f"{CU}session id has changed to {current.session_id}, "
                f"but low watermark request contains session id {message.session_id}",
                FailureCode.FENCED,
                current.session_id,
            )
        if mark < current.low_water_mark:
            raise Refusal(
                f"{SE}unable to set low watermark to value {mark} "
                f"because it's less than current low watermark {current.low_water_mark}",
                FailureCode.BELOW_MARK,
                current.low_water_mark,
            )
        if highest < current.local_low_water_mark:
            raise Refusal(
                f"{SE}unable to set local low watermark to value {highest} "
                f"because it's less than current local low watermark {current.local_low_water_mark}",
                FailureCode.BELOW_MARK,
                current.local_low_water_mark,
            )
        last = self._files.last
        yield from self._write(SyncFile(last.index_path), SyncFile(last.data_path))
        yield from self._update_control(message.session_id, mark, highest, current.flags)

    def write_mark(self, out: list[object]) -> None:
        """The durable mark is due."""
        self._plan_mark(None)
        if self.state is not State.OPEN or self._lane_is_closed():
            return  # whatever runs alone writes the mark itself
        if self._busy_mark or self._rolling:
            self._plan_mark(self._shared.now + MARK_EVERY_MS)  # two writes must not contradict each other
            return
        self._busy_mark = True
        self._shared.runner.start(self._write_mark(), self._mark_done, out)

    def _write_mark(self) -> Procedure[None]:
        """Write the durable mark: everything up to the end of the log as it is known now is on disk."""
        try:
            yield from self._write_side(
                *self._sides.create_missing(), *self._sides.mark_operations(self.max_id, self._belongs())
            )
        except DiskError:
            return  # reported where the partition stopped; a full disk only leaves the mark behind

    def _truncate(self, last_kept: int) -> Procedure[int]:
        """Keep ids up to `last_kept`; the highest id afterwards.

        Raises:
            StorageError: nothing was cut.
        """
        log = self._files
        if last_kept >= log.max_id:
            return log.max_id
        if not self._rules.torn_not_corrupt:
            yield from legacy.truncate(self._ground, log, last_kept)
            return last_kept
        floor = self._truncation_floor(log.max_id)
        if last_kept < floor:
            text = f"{SE}truncation to {last_kept} refused: nothing up to the low-water mark, {floor}, may be cut"
            raise Refusal(text, FailureCode.BELOW_MARK, floor)
        kept = [segment for segment in log.segments if segment.first_id <= last_kept + 1]
        last = kept[-1] if kept else log.segments[0]
        place = yield from self._cut_place(log, last, last_kept)
        belongs = self._belongs()
        lowered = Belongs(belongs.sequence, belongs.session_id, last.first_id)
        # The mark first: otherwise a crash in between would make the cut look like a loss.
        yield from self._write(*self._sides.create_missing(), *self._sides.mark_operations(last_kept, lowered))
        while log.last is not last:
            # Newest first, each durably gone before the next: a crash leaves a shorter log, never a hole.
            gone = log.last
            yield from self._write(*remove_operations(self._ground.directory, gone.index_path, gone.data_path))
            log.drop_last()
        yield from self._write(
            Cut(last.data_path, place),
            SyncFile(last.data_path),
            Cut(last.index_path, index_file.entry_place(last_kept + 1 - last.index_first)),
            SyncFile(last.index_path),
        )
        last.shrink(last_kept + 1, place)
        self.faults = {fault for fault in self.faults if fault <= last_kept}
        self._plan_mark(None)
        return log.max_id

    def _truncation_floor(self, max_id: int) -> int:
        """Up to where nothing may be cut.

        A replica that was marked while it lagged, and has not got beyond its mark, may lose what was copied to it
        since: the mark was decided without it, it never voted with what it got, and a server of 0.13.2 begins the copy
        anew when it was interrupted before the metadata named the replica.
        """
        current = self.entry.current
        if not self._rules.truncation_floor:
            return -1
        mark = current.low_water_mark if max_id > current.low_water_mark else current.local_low_water_mark
        return max(mark, self.log_start - 1)

    def _cut_place(self, log: LogFiles, segment: Segment, last_kept: int) -> Procedure[int]:
        """Offset behind the last record kept, verified: a wrong index must not decide where to cut."""
        if last_kept < segment.first_id:
            return HEADER_SIZE
        place = yield from locate(log, segment, last_kept)
        if place is None:
            self._note_fault(last_kept)  # or nobody would ever repair it
            text = f"{SE}truncation to {last_kept} refused: that transaction is damaged here"
            raise Refusal(text, FailureCode.CORRUPT, last_kept)
        return sum(place)

    # ---- reads -----------------------------------------------------------------------------------

    def _reads_at_once(self, message: Reading) -> bool:
        """Whether a read may run beside the lane: it needs no new fence and touches durable records only."""
        if not self._rules.reads_verified or not self._rules.fence_persisted or self._lane_is_closed():
            return False
        if message.session_id > self.fence:
            return False
        first, count, _ = _span(message)
        return first + count - 1 <= self.max_id or not (self._busy or self._lane)

    def _serve_read(self, conn: int, message: Reading) -> Procedure[None]:
        yield from self._enter(message, False, reading=True)
        self._count(_COUNTERS[type(message)])
        records = yield from self._read(*_span(message))
        ids = message.session_id, message.seq_num, self.partition_id
        match message:
            case wire.RecordRequest():
                self._outbox.reply(conn, wire.RecordResponse(*ids, records[0] if records else None))
            case wire.RecordHeaderRequest():
                header = _header(records[0]) if records else None
                self._outbox.reply(conn, wire.RecordHeaderResponse(*ids, header))
            case wire.RecordListRequest() | wire.RecordRangeRequest():
                self._outbox.reply(conn, wire.RecordListResponse(*ids, tuple(records)))
            case wire.RecordHeaderListRequest():
                self._outbox.reply(conn, wire.RecordHeaderListResponse(*ids, tuple(map(_header, records))))

    def _read(self, first: int, count: int, size_max: int = 0) -> Procedure[list[Record]]:
        """Records from `first` upward; fewer than `count` at the end of the log or before a damaged one.

        Args:
            size_max: bytes, besides the limit of this node; 0 = no other.

        Raises:
            StorageError: the first of them is damaged.
        """
        log = self._files
        if 0 <= first < self.log_start:
            text = f"{SE}transaction {first} is below the log start of partition {self.partition_id}, {self.log_start}"
            raise Refusal(text, FailureCode.BEFORE_START, self.log_start)
        if not self._rules.reads_verified:
            return (yield from self._read_unverified(log, first, count))
        limit = self._shared.config.read_size_max
        if size_max > 0:
            limit = min(limit, size_max)
        records, damaged = yield from self._read_or_blame(log, first, count, limit)
        if damaged is None and not records and count > 0 and first in self.faults:
            damaged = first  # known once, behind the end of what is left
        if damaged is not None:
            self._note_fault(damaged)
            if not records:
                text = f"{SE}transaction {damaged} of partition {self.partition_id} is damaged on this storage node"
                raise Refusal(text, FailureCode.CORRUPT, damaged)
        return records

    def _read_or_blame(
        self, log: LogFiles, first: int, count: int, size_max: int
    ) -> Procedure[tuple[list[Record], int | None]]:
        """As `read_range`; where the disk cannot read, the record that stands there is reported.

        Raises:
            DiskError: the first one cannot be read.
        """
        try:
            return (yield from read_range(log, first, count, size_max))
        except DiskError:
            pass
        try:  # one by one, to find out which it is
            return (yield from read_range(log, first, 1, 1))
        except DiskError:
            self._note_fault(first)
            raise

    def _read_unverified(self, log: LogFiles, first: int, count: int) -> Procedure[list[Record]]:
        records: list[Record] = []
        for transaction_id in range(first, first + max(0, count)):
            one = yield from legacy.read_one(log, transaction_id)
            if one is None:
                break
            records.append(one)
        return records

    def _note_fault(self, transaction_id: int) -> None:
        if transaction_id in self.faults:
            return
        self.faults.add(transaction_id)
        self._outbox.report(
            Level.ERROR, f"partition {self.partition_id}: transaction {transaction_id} is damaged on this storage node"
        )
        self._queue(_Job(work=self._write_faults))
        self._tell()

    def _write_faults(self) -> Procedure[None]:
        yield from self._write_side(
            *self._sides.create_missing(), *self._sides.faults_operations(self.faults, self._belongs())
        )

    def _admin_read(self, conn: int, request: AdminReading) -> Procedure[None]:
        try:
            if self.state is State.UNASSIGNED:
                raise not_assigned(self.partition_id)
            answer = yield from self._admin_answer(request)
        except StorageError as error:
            why = _io_refusal(error) if isinstance(error, DiskError) else error
            code, detail = (why.code, why.detail) if isinstance(why, Refusal) else (FailureCode.OTHER, -1)
            answer = admin.AdminFailureResponse(request.seq_num, str(why), code=code, detail=detail)
        self._outbox.reply(conn, answer)

    def _admin_answer(self, request: AdminReading) -> Procedure[admin.AdminMessage]:
        match request:
            case admin.SegmentListRequest():
                return (yield from segment_reads.list_segments(self._files, request))
            case admin.SegmentReadRequest():
                size_max = self._shared.config.read_size_max
                return (yield from segment_reads.read_segment(self._files, request, size_max))
            case admin.DigestRequest():
                return (yield from self._digest(request))
            case admin.RecordRangeRequest():
                records = yield from self._read(*_range_span(request))
            case _:
                records = yield from self._read(request.transaction_id, request.max_num_records)
        return admin.RecordListResponse(request.seq_num, request.partition_id, tuple(records))

    def _digest(self, request: admin.DigestRequest) -> Procedure[admin.DigestResponse]:
        first, last = request.first_id, request.last_id
        if not self.log_start <= first <= last <= self.max_id:
            text = f"{SE}partition {self.partition_id} holds {self.log_start} to {self.max_id}, not {first} to {last}"
            raise Refusal(text, FailureCode.OTHER)
        records = yield from self._read(first, last - first + 1)
        digest = sha256()
        for one in records:
            digest.update(encode_record(one))
        last = records[-1].transaction_id
        return admin.DigestResponse(request.seq_num, self.partition_id, first, last, digest.digest())


def _span(message: Reading) -> tuple[int, int, int]:
    """First id, number of records, and their bytes at most, 0 = no limit of the message."""
    if isinstance(message, wire.RecordRangeRequest):
        return _range_span(message)
    return message.transaction_id, 1 if isinstance(message, _ONE) else message.max_num_records, 0


def _range_span(message: wire.RecordRangeRequest | admin.RecordRangeRequest) -> tuple[int, int, int]:
    count = max(0, message.last_id - message.first_id + 1)
    return message.first_id, min(count, message.count_max) if message.count_max > 0 else count, message.size_max


def _io_refusal(fault: DiskError) -> Refusal:
    return Refusal(io_text(fault), FailureCode.IO)


def _header(one: Record) -> RecordHeader:
    return RecordHeader(one.transaction_id, one.req_id, one.header)

"""One partition on a storage node: fences by session, keeps order, acknowledges only what is durable.

Requests go through a lane, one piece of disk work at a time; appends that wait there are written and
synced together. Reads of what is durable do not wait in the lane.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from waltz_core.edge import Level
from waltz_core.errors import CorruptionError, FencedError, NotAssignedError, StorageError
from waltz_core.log import Record, RecordHeader, SessionInfo
from waltz_core.storage import control as ctl
from waltz_core.storage import index as index_file
from waltz_core.storage import legacy, side
from waltz_core.storage.config import Shared
from waltz_core.storage.control import ASSIGNED, AVAILABLE, ControlEntry
from waltz_core.storage.effects import (
    Cut,
    FaultKind,
    MakeDirectory,
    Operation,
    SyncDirectory,
    SyncFile,
    Unlink,
    WriteAt,
)
from waltz_core.storage.legacy import io_text
from waltz_core.storage.log_files import AppendPlan, Ground, LogFiles, Segment, plan_append
from waltz_core.storage.opening import Opened, Opening
from waltz_core.storage.procedure import DiskError, Procedure, list_names, write
from waltz_core.storage.reading import locate, read_range
from waltz_core.storage.segment import HEADER_SIZE
from waltz_core.storage.side import Belongs
from waltz_core.storage.sides import SideFiles
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire

BATCH_BYTES_MAX = 16 << 20  # of one write; what a power failure can tear is bounded by it
MARK_EVERY_MS = 1000  # how far the durable mark may lag behind

SE = legacy.SE
CU = "com.wepay.waltz.storage.exception.ConcurrentUpdateException: "


class State(enum.Enum):
    """Condition of a partition on this node."""

    UNASSIGNED = "unassigned"  # not ours; files may lie there
    OPENING = "opening"  # files are being examined
    OPEN = "open"
    LIMBO = "limbo"  # files contradict themselves: nothing but intact records is given out
    STOPPED = "stopped"  # the disk failed: as limbo, until opened again


DROP = "the connection is dropped"  # an outcome of administrative requests of 0.13.2: no answer at all

AdminDone: TypeAlias = Callable[[str | None], None]
"""Called when an administrative change is durable (None) or was refused (why)."""

Reading: TypeAlias = (
    wire.RecordRequest | wire.RecordHeaderRequest | wire.RecordListRequest | wire.RecordHeaderListRequest
)
_READS = (wire.RecordRequest, wire.RecordHeaderRequest, wire.RecordListRequest, wire.RecordHeaderListRequest)
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
        message: wire.StorageMessage | None = None,
        work: Callable[[], Procedure[None]] | None = None,
        exclusive: bool = False,
        refuse: AdminDone | None = None,
    ) -> None:
        self.conn = conn
        self.message = message
        self.work = work
        self.exclusive = exclusive  # runs only while no read is under way
        self.refuse = refuse  # who is told if an administrative change fails


class StorageReplica:
    """One partition, assigned to this node or not.

    States: UNASSIGNED → OPENING → OPEN | LIMBO; OPEN → STOPPED when the disk fails; all → UNASSIGNED when
    unassigned; LIMBO, STOPPED → OPENING when assigned again.
    """

    __slots__ = (
        "_busy",
        "_busy_mark",
        "_control_problem",
        "_exclusive",
        "_fence",
        "_ground",
        "_lane",
        "_outbox",
        "_pumping",
        "_reads",
        "_rules",
        "_seen",
        "_shared",
        "_sides",
        "counters",
        "entry",
        "faults",
        "log",
        "partition_id",
        "reason",
        "state",
    )

    def __init__(
        self, partition_id: int, entry: ControlEntry, shared: Shared, control_problem: str | None = None
    ) -> None:
        config = shared.config
        self.partition_id = partition_id
        self.entry = entry
        self.state = State.UNASSIGNED
        self.reason = ""  # why LIMBO or STOPPED
        self.log: LogFiles | None = None
        self.faults: set[int] = set()  # ids whose records are damaged
        self.counters: dict[str, int] = dict.fromkeys(["append", "append-batches", *_COUNTERS.values()], 0)
        self._shared = shared
        self._rules = shared.rules
        self._outbox = shared.outbox
        self._control_problem = control_problem
        self._ground = Ground(
            str(partition_id), partition_id, config.key, config.segment_size_threshold, config.shown_directory
        )
        self._sides = SideFiles(self._ground.directory)
        self._fence = entry.current.session_id  # highest session answered
        self._seen = self._fence  # highest session that arrived: what 0.13.2 compares with
        self._lane: deque[_Job] = deque()
        self._busy = False  # a job of the lane is under way
        self._pumping = False  # jobs that end at once must not pile up on the stack
        self._exclusive = False  # and no read may run beside it
        self._reads = 0  # reads under way beside the lane
        self._busy_mark = False  # the durable mark is being written

    # ---- what others see -------------------------------------------------------------------------

    @property
    def max_id(self) -> int:
        """Id of the last durable record, -1 if there is none."""
        return -1 if self.log is None else self.log.max_id

    @property
    def fence(self) -> int:
        """Highest session answered."""
        return self._fence if self._rules.fence_persisted else self._seen

    @property
    def queue_count(self) -> int:
        """Requests that wait."""
        return len(self._lane)

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is under way."""
        return not (self._busy or self._lane or self._reads or self._busy_mark)

    def session_info(self) -> SessionInfo:
        """What the last `SetLowWaterMark` persisted."""
        current = self.entry.current
        return SessionInfo(current.session_id, current.low_water_mark, current.local_low_water_mark)

    # ---- requests --------------------------------------------------------------------------------

    def submit(self, conn: int, message: wire.StorageMessage, out: list[object]) -> None:
        """A request of the storage port; `pump` must be called afterwards, once per step."""
        if message.session_id > self._seen and self.state is not State.UNASSIGNED:
            self._seen = message.session_id
        if self.state is State.UNASSIGNED and not self._lane and not self._busy:
            self._fail(conn, message, f"java.lang.Exception: Partition:{message.partition_id} is not assigned.")
            return
        if len(self._lane) >= self._shared.config.queue_count_max:
            self._fail(conn, message, f"{SE}partition {self.partition_id}: too many requests are waiting")
            return
        if isinstance(message, _READS) and self._reads_at_once(message):
            self._reads += 1
            self._shared.runner.start(
                self._answered(conn, message, self._serve_read(conn, message)), self._read_done, out
            )
            return
        self._lane.append(_Job(conn, message, exclusive=type(message) is wire.TruncateRequest))

    def read_for_admin(self, conn: int, request: admin.RecordListRequest, out: list[object]) -> None:
        """A read of the admin port: no session, no availability."""
        job = _Job(work=lambda: self._admin_list(conn, request))
        if self._lane_is_closed():
            self._lane.append(job)
            return
        self._reads += 1
        assert job.work is not None
        self._shared.runner.start(job.work(), self._read_done, out)

    def open(self, done: AdminDone) -> None:
        """Open the files of a partition that the control file says is assigned; `pump` follows."""
        self.state = State.OPENING
        self._lane.append(_Job(work=lambda: self._open_assigned(done), exclusive=True, refuse=done))

    def assign(self, done: AdminDone) -> None:
        """Take the partition on; `pump` follows."""
        self._lane.append(_Job(work=lambda: self._assign(done), exclusive=True, refuse=done))

    def unassign(self, delete: bool, done: AdminDone) -> None:
        """Give the partition up and, if asked to, delete its files; `pump` follows."""
        self._lane.append(_Job(work=lambda: self._unassign(delete, done), exclusive=True, refuse=done))

    def set_available(self, available: bool, done: AdminDone) -> None:
        """Allow or forbid reads and writes; `pump` follows."""
        self._lane.append(_Job(work=lambda: self._set_available(available, done), refuse=done))

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
            if type(head.message) is wire.AppendRequest and self._rules.append_atomic:
                self._launch_appends(out)
                continue
            if head.exclusive and (self._reads or self._busy_mark):
                return
            self._lane.popleft()
            self._busy, self._exclusive = True, head.exclusive
            self._shared.runner.start(self._job(head), self._job_done, out)

    def write_mark(self, out: list[object]) -> None:
        """The durable mark is due."""
        self._plan_mark(None)
        if self._busy_mark or self._lane_is_closed() or self.state is not State.OPEN:
            return
        self._busy_mark = True
        self._shared.runner.start(self._write_mark(), self._mark_done, out)

    # ---- the lane --------------------------------------------------------------------------------

    def _job_done(self, out: list[object]) -> None:
        self._busy = self._exclusive = False
        self.pump(out)

    def _read_done(self, out: list[object]) -> None:
        self._reads -= 1
        self.pump(out)

    def _mark_done(self, out: list[object]) -> None:
        self._busy_mark = False
        self.pump(out)

    def _lane_is_closed(self) -> bool:
        """Files may change under a read: it has to wait in the lane."""
        return self._exclusive or any(job.exclusive for job in self._lane)

    def _job(self, job: _Job) -> Procedure[None]:
        if job.message is not None:
            yield from self._answered(job.conn, job.message, self._serve(job.conn, job.message))
            return
        assert job.work is not None
        try:
            yield from job.work()
        except DiskError as fault:
            self._stop(fault)
            if job.refuse is not None:
                job.refuse(io_text(fault))
        except StorageError as error:
            if job.refuse is not None:
                job.refuse(str(error))

    def _answered(self, conn: int, message: wire.StorageMessage, work: Procedure[None]) -> Procedure[None]:
        """Turn every failure of `work` into exactly one failure answer."""
        try:
            yield from work
        except DiskError as fault:
            self._fail(conn, message, io_text(fault))
        except StorageError as error:
            self._fail(conn, message, str(error))

    def _fail(self, conn: int, message: wire.StorageMessage, text: str) -> None:
        self._outbox.reply(conn, wire.FailureResponse(message.session_id, message.seq_num, message.partition_id, text))

    # ---- serving ---------------------------------------------------------------------------------

    def _serve(self, conn: int, message: wire.StorageMessage) -> Procedure[None]:
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
                yield from self._enter(message, message.used_by_offline_recovery)
                self._count(_COUNTERS[type(message)])
                self._outbox.reply(
                    conn,
                    wire.LastSessionInfoResponse(
                        message.session_id, message.seq_num, self.partition_id, self.session_info()
                    ),
                )
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
            case _:
                yield from self._enter(message, False)
                code = _TYPE_CODES.get(type(message), -1)
                raise StorageError(f"java.lang.IllegalStateException: unknown message type: {code}")

    def _answer_id(self, conn: int, message: wire.StorageMessage, transaction_id: int) -> None:
        self._outbox.reply(
            conn,
            wire.MaxTransactionIdResponse(message.session_id, message.seq_num, self.partition_id, transaction_id),
        )

    def _succeed(self, conn: int, message: wire.StorageMessage) -> None:
        self._outbox.reply(conn, wire.SuccessResponse(message.session_id, message.seq_num, self.partition_id))

    def _count(self, name: str) -> None:
        self.counters[name] += 1

    @property
    def _files(self) -> LogFiles:
        if self.log is None:
            raise StorageError(f"{SE}partition {self.partition_id} is out of service: {self.reason}")
        return self.log

    # ---- permission ------------------------------------------------------------------------------

    def _refusal(self, message: wire.StorageMessage, offline: bool, reading: bool = False) -> StorageError | None:
        """Why a request is not served; a session above the fence is no reason."""
        current = self.entry.current
        if self.state is State.UNASSIGNED:
            return NotAssignedError(f"java.lang.Exception: Partition:{self.partition_id} is not assigned.")
        if not current.assigned:
            return NotAssignedError(f"{SE}partition {self.partition_id} is not assigned to storage node.")
        if self.log is None or (self.state is not State.OPEN and not reading):
            return StorageError(f"{SE}partition {self.partition_id} is out of service: {self.reason}")
        if offline:
            if current.available:
                return StorageError(f"{SE}cannot run offline recovery while partition is online")
            if message.session_id != current.session_id:
                return FencedError(
                    f"{SE}partition last session id has changed to {current.session_id}, "
                    f"but request context contains {message.session_id}"
                )
            return None
        if not current.available:
            return StorageError(
                f"{SE}read and write for partition={self.partition_id} have been disabled on storage node"
            )
        # With the fence in memory only, a session counts from its arrival, so none can be above it here.
        if message.session_id < self.fence:
            return FencedError(
                f"{CU}session id has changed to {self.fence}, but request context contains {message.session_id}"
            )
        return None

    def _enter(self, message: wire.StorageMessage, offline: bool, reading: bool = False) -> Procedure[None]:
        """Let a request in, fencing off older sessions first.

        Raises:
            StorageError: it is not let in.
        """
        refusal = self._refusal(message, offline, reading)
        if refusal is not None:
            raise refusal
        if not offline and message.session_id > self.fence:
            yield from self._raise_fence(message.session_id)

    def _raise_fence(self, session_id: int) -> Procedure[None]:
        """Shut out all older sessions, durably: they stay out after a restart."""
        yield from self._write(
            *self._sides.create_missing(),
            *self._sides.fence_operations(session_id, self.entry.current, self._belongs()),
        )
        self._fence = session_id

    def _belongs(self) -> Belongs:
        current = self.entry.current
        last = 0 if self.log is None else self.log.last.first_id
        return Belongs(current.sequence, current.session_id, last)

    def _write(self, *operations: Operation) -> Procedure[None]:
        """Write something whose failure leaves the state of the files unknown: the partition stops."""
        try:
            yield from write(*operations)
        except DiskError as fault:
            if fault.kind is not FaultKind.FULL:
                self._stop(fault)
            raise

    def _stop(self, fault: DiskError) -> None:
        if self.state in (State.OPEN, State.OPENING):
            self.state = State.STOPPED
            self.reason = f"the disk failed: {fault}; assign the partition again to reopen it"
            self._outbox.report(Level.ERROR, f"partition {self.partition_id} stopped: {fault}")

    # ---- appends ---------------------------------------------------------------------------------

    def _launch_appends(self, out: list[object]) -> None:
        """Write all appends that wait at the head of the lane at once."""
        accepted: list[tuple[int, wire.AppendRequest]] = []
        records: list[Record] = []
        next_id = self.max_id + 1
        size = 0
        lane = self._lane
        while lane and size < BATCH_BYTES_MAX:
            message = lane[0].message
            if type(message) is not wire.AppendRequest:
                break
            conn = lane[0].conn
            refusal = self._refusal(message, message.used_by_offline_recovery)
            if refusal is not None:
                lane.popleft()
                self._fail(conn, message, str(refusal))
                continue
            if message.session_id > self.fence and not message.used_by_offline_recovery:
                if not accepted:
                    self._busy = True
                    self._shared.runner.start(self._fence_for(conn, message), self._job_done, out)
                    return
                break
            lane.popleft()
            self.counters["append"] += 1
            following = _following_id(message.records, next_id)
            if following is None:
                self._fail(conn, message, f"{SE}transaction out of order")
                continue
            accepted.append((conn, message))
            if message.records:
                records += message.records
                next_id = following
                size += sum([len(one.data) for one in message.records])
        if not records:
            for conn, message in accepted:
                self._succeed(conn, message)
            return
        self._busy = True
        plan = plan_append(self._ground, self._files, records, self._shared.wall_ms)
        self._shared.runner.start(self._append(plan, accepted), self._job_done, out)

    def _fence_for(self, conn: int, message: wire.AppendRequest) -> Procedure[None]:
        """Raise the fence for an append at the head of the lane, which is looked at again afterwards."""
        try:
            yield from self._raise_fence(message.session_id)
        except DiskError as fault:
            self._lane.popleft()
            self._fail(conn, message, io_text(fault))

    def _append(self, plan: AppendPlan, accepted: list[tuple[int, wire.AppendRequest]]) -> Procedure[None]:
        try:
            yield tuple(plan.operations)
        except DiskError as fault:
            yield from self._retreat(plan, fault)
            for conn, message in accepted:
                self._fail(conn, message, io_text(fault))
            return
        plan.commit()
        self.counters["append-batches"] += 1
        for conn, message in accepted:
            self._succeed(conn, message)
        if plan.created:
            self._plan_mark(self._shared.now)
        elif self.partition_id not in self._shared.due and self._rules.torn_not_corrupt:
            self._plan_mark(self._shared.now + MARK_EVERY_MS)

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
            raise FencedError(
                f"{CU}session id has changed to {current.session_id}, "
                f"but low watermark request contains session id {message.session_id}"
            )
        if mark < current.low_water_mark:
            raise StorageError(
                f"{SE}unable to set low watermark to value {mark} "
                f"because it's less than current low watermark {current.low_water_mark}"
            )
        if highest < current.local_low_water_mark:
            raise StorageError(
                f"{SE}unable to set local low watermark to value {highest} "
                f"because it's less than current local low watermark {current.local_low_water_mark}"
            )
        last = self._files.last
        yield from self._write(SyncFile(last.index_path), SyncFile(last.data_path))
        yield from self._update_control(message.session_id, mark, highest, current.flags)

    def _update_control(self, session_id: int, mark: int, local_mark: int, flags: int) -> Procedure[None]:
        """Write the control struct, then the side files that name it."""
        struct = self.entry.plan(session_id, mark, local_mark, flags)
        yield from self._write(WriteAt(ctl.NAME, self.entry.place(), ctl.encode_struct(struct)), SyncFile(ctl.NAME))
        self.entry.adopt(struct)
        if self.log is not None and self.state is State.OPEN:
            yield from self._refresh_sides()

    def _refresh_sides(self) -> Procedure[None]:
        """Bring the side files up to the present control struct, last segment and end of the log."""
        belongs, operations = self._belongs(), list[Operation]()
        if self._rules.fence_persisted or self._rules.torn_not_corrupt:
            operations += self._sides.create_missing()
        if self._rules.torn_not_corrupt:
            operations += self._sides.mark_operations(self.max_id, belongs)
        if self._rules.fence_persisted:
            self._fence = max(self._fence, self.entry.current.session_id)
            operations += self._sides.fence_operations(self._fence, self.entry.current, belongs)
        if operations:
            yield from self._write(*operations)
            self._plan_mark(None)

    def _plan_mark(self, due_ms: int | None) -> None:
        if due_ms is None:
            self._shared.due.pop(self.partition_id, None)
        else:
            self._shared.due[self.partition_id] = due_ms

    def _write_mark(self) -> Procedure[None]:
        """Write the durable mark: everything up to the end of the log as it is known now is on disk."""
        try:
            yield from self._write(
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
        floor = self.entry.current.low_water_mark if self._rules.truncation_floor else -1
        if last_kept < floor:
            raise StorageError(
                f"{SE}truncation to {last_kept} refused: the low-water mark is {floor}, nothing below it may be cut"
            )
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
            yield from self._write(
                Unlink(gone.index_path), Unlink(gone.data_path), SyncDirectory(self._ground.directory)
            )
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

    def _cut_place(self, log: LogFiles, segment: Segment, last_kept: int) -> Procedure[int]:
        """Offset behind the last record kept, verified: a wrong index must not decide where to cut."""
        if last_kept < segment.first_id:
            return HEADER_SIZE
        place = yield from locate(log, segment, last_kept)
        if place is None:
            raise StorageError(f"{SE}truncation to {last_kept} refused: that transaction is damaged here")
        return sum(place)

    # ---- reads -----------------------------------------------------------------------------------

    def _reads_at_once(self, message: Reading) -> bool:
        """Whether a read may run beside the lane: it needs no new fence and touches durable records only."""
        if not self._rules.reads_verified or not self._rules.fence_persisted or self._lane_is_closed():
            return False
        if message.session_id > self.fence:
            return False
        count = 1 if isinstance(message, _ONE) else message.max_num_records
        return message.transaction_id + count - 1 <= self.max_id or not (self._busy or self._lane)

    def _serve_read(self, conn: int, message: Reading) -> Procedure[None]:
        yield from self._enter(message, False, reading=True)
        self._count(_COUNTERS[type(message)])
        first, count = message.transaction_id, 1 if isinstance(message, _ONE) else message.max_num_records
        records = yield from self._read(first, count)
        ids = message.session_id, message.seq_num, self.partition_id
        match message:
            case wire.RecordRequest():
                self._outbox.reply(conn, wire.RecordResponse(*ids, records[0] if records else None))
            case wire.RecordHeaderRequest():
                header = _header(records[0]) if records else None
                self._outbox.reply(conn, wire.RecordHeaderResponse(*ids, header))
            case wire.RecordListRequest():
                self._outbox.reply(conn, wire.RecordListResponse(*ids, tuple(records)))
            case wire.RecordHeaderListRequest():
                self._outbox.reply(conn, wire.RecordHeaderListResponse(*ids, tuple(map(_header, records))))

    def _read(self, first: int, count: int) -> Procedure[list[Record]]:
        """Records from `first` upward; fewer than `count` at the end of the log or before a damaged one.

        Raises:
            StorageError: the first of them is damaged.
        """
        log = self._files
        if not self._rules.reads_verified:
            return (yield from self._read_unverified(log, first, count))
        records, damaged = yield from read_range(log, first, count, self._shared.config.read_size_max)
        if damaged is not None:
            self._note_fault(damaged)
            if not records:
                raise CorruptionError(
                    f"{SE}transaction {damaged} of partition {self.partition_id} is damaged on this storage node"
                )
        return records

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
        self._lane.append(_Job(work=self._write_faults))

    def _write_faults(self) -> Procedure[None]:
        yield from self._write(
            *self._sides.create_missing(), *self._sides.faults_operations(self.faults, self._belongs())
        )

    def _admin_list(self, conn: int, request: admin.RecordListRequest) -> Procedure[None]:
        try:
            if self.state is State.UNASSIGNED:
                raise NotAssignedError(f"java.lang.Exception: Partition:{self.partition_id} is not assigned.")
            records = yield from self._read(request.transaction_id, request.max_num_records)
        except DiskError as fault:
            self._outbox.reply(conn, admin.AdminFailureResponse(request.seq_num, io_text(fault)))
        except StorageError as error:
            self._outbox.reply(conn, admin.AdminFailureResponse(request.seq_num, str(error)))
        else:
            self._outbox.reply(conn, admin.RecordListResponse(request.seq_num, request.partition_id, tuple(records)))

    # ---- opening, assignment ---------------------------------------------------------------------

    def open_as_java(self) -> Procedure[None]:
        """Open at process start with the rules off.

        Raises:
            JavaError: 0.13.2 would not start.
            DiskError: a file cannot be read or written.
        """
        self.log = yield from legacy.open_partition(self._ground, self.entry, self._shared.wall_ms)
        self._seen = self.entry.current.session_id
        self.state = State.OPEN

    def _open_assigned(self, done: AdminDone) -> Procedure[None]:
        try:
            opened = yield from self._open_files(assigned=True)
        except DiskError as fault:
            opened = Opened()
            opened.blame(f"the disk failed while opening: {fault}")
        except CorruptionError as error:
            opened = Opened()
            opened.blame(str(error))
        yield from self._adopt(opened)
        done(None if self._rules.partitions_isolated else opened.problem)

    def _open_files(self, assigned: bool) -> Procedure[Opened]:
        found = yield from list_names(self._ground.directory)
        yield from self._sides.load(found)
        if self._rules.fence_persisted:
            yield from self._restore_control()
            self._fence = max(self._sides.fence.session_id, self.entry.current.session_id)
        if self._control_problem is not None:
            opened = Opened()
            opened.blame(self._control_problem)
            return opened
        current = self.entry.current

        def mark_beside(last_segment: int) -> int | None:
            return self._sides.mark_beside(Belongs(current.sequence, current.session_id, last_segment))

        opening = Opening(
            self._ground,
            self.entry,
            mark_beside,
            found,
            self._rules,
            assigned=assigned,
            created_ms=self._shared.wall_ms,
        )
        return (yield from opening.run())

    def _restore_control(self) -> Procedure[None]:
        """Take the control struct's third copy if the control file has lost the newest state."""
        copy = self._sides.fence.struct
        if copy is None:
            return
        if self._control_problem is None and not ctl.newer(copy.sequence, self.entry.current.sequence):
            return
        yield from self._write(WriteAt(ctl.NAME, self.entry.place(), ctl.encode_struct(copy)), SyncFile(ctl.NAME))
        self.entry.adopt(copy)
        self._control_problem = None
        self._outbox.report(
            Level.WARNING,
            f"partition {self.partition_id}: {ctl.NAME} had lost its newest state "
            f"(sequence {copy.sequence}, session {copy.session_id}); restored from {side.FENCE}",
        )

    def _adopt(self, opened: Opened) -> Procedure[None]:
        """Make what was found the state."""
        self.log = opened.log
        self.faults = set(opened.faults)
        for note in opened.notes:
            self._outbox.report(Level.WARNING, f"partition {self.partition_id}: {note}")
        if opened.problem is not None:
            self.state, self.reason = State.LIMBO, opened.problem
            self._outbox.report(
                Level.ERROR,
                f"partition {self.partition_id} is in limbo: {opened.problem}; its files are left as they are, "
                "it takes part in nothing until it is repaired",
            )
            return
        self.state, self.reason = State.OPEN, ""
        yield from self._recheck_faults()
        if not self._sides_are_current():
            yield from self._refresh_sides()

    def _sides_are_current(self) -> bool:
        belongs = self._belongs()
        slot = self._sides.slots[side.FENCE]
        return (
            slot is not None
            and slot.belongs == belongs
            and self._sides.fence == side.Fence(self._fence, self.entry.current)
            and self._sides.mark_beside(belongs) == self.max_id
        )

    def _recheck_faults(self) -> Procedure[None]:
        """Read again what was damaged: the partition may have been repaired by other means."""
        for first, last in self._sides.remembered:
            for transaction_id in range(max(0, first), min(last, self.max_id, first + 1000) + 1):
                records, damaged = yield from read_range(self._files, transaction_id, 1, 1)
                if damaged is not None and not records:
                    self.faults.add(transaction_id)

    def _assign(self, done: AdminDone) -> Procedure[None]:
        if self.state is not State.OPEN:
            if not self._rules.torn_not_corrupt:
                yield from self.open_as_java()
            else:
                yield from self._reopen()
        current = self.entry.current
        yield from self._update_control(
            current.session_id, current.low_water_mark, current.local_low_water_mark, current.flags | ASSIGNED
        )
        done(None)

    def _reopen(self) -> Procedure[None]:
        """Open for an assignment: a partition not yet ours stays so if its files are damaged."""
        was = self.state
        self.state = State.OPENING
        try:
            yield from self._write(MakeDirectory(self._ground.directory), SyncDirectory(""))
            opened = yield from self._open_files(assigned=was is not State.UNASSIGNED)
            if opened.problem is None or was is not State.UNASSIGNED:
                yield from self._adopt(opened)
        except StorageError:
            self.state = was
            raise
        if opened.problem is not None:
            self.state = was if was is State.UNASSIGNED else State.LIMBO
            raise CorruptionError(f"{SE}partition {self.partition_id} cannot be opened: {opened.problem}")

    def _unassign(self, delete: bool, done: AdminDone) -> Procedure[None]:
        if self.state is State.UNASSIGNED:
            if self._rules.unassigned_refused:
                raise NotAssignedError(f"java.lang.Exception: Partition:{self.partition_id} is not assigned.")
            yield from self._reset_control()
            done(DROP)
            return
        if self._rules.fence_persisted and self.log is not None:
            # From here on the copy of the control struct must not come back; the fence stays as long as the files.
            yield from self._write(
                *self._sides.create_missing(), *self._sides.fence_operations(self._fence, None, self._belongs())
            )
        yield from self._reset_control()
        segments = [] if self.log is None else self.log.segments
        self.state, self.reason, self.log, self._control_problem = State.UNASSIGNED, "", None, None
        self._seen = -1
        self._plan_mark(None)
        self.faults.clear()
        if delete:
            yield from self._delete_files(segments)
        done(None)

    def _reset_control(self) -> Procedure[None]:
        (place, data), (place2, data2) = self.entry.reset_writes()
        between = (SyncFile(ctl.NAME),) if self._rules.partitions_isolated else ()
        yield from self._write(
            WriteAt(ctl.NAME, place, data), *between, WriteAt(ctl.NAME, place2, data2), SyncFile(ctl.NAME)
        )
        self.entry.adopt_reset()

    def _delete_files(self, segments: list[Segment]) -> Procedure[None]:
        directory = self._ground.directory
        if not self._rules.partitions_isolated:
            paths = [path for one in segments for path in (one.data_path, one.index_path)]
            yield from self._write(*map(Unlink, paths))
            return
        found = yield from list_names(directory)
        # The index of a segment first, the newest segment first: what a crash leaves is a shorter log.
        names = sorted((one.name for one in found if one.name.endswith((".seg", ".idx"))), reverse=True)
        names.sort(key=lambda name: (name[:-4], name.endswith(".idx")), reverse=True)
        self._fence = -1
        yield from self._write(
            *(Unlink(f"{directory}/{name}") for name in names),
            *self._sides.remove_operations(),
            SyncDirectory(directory),
        )

    def _set_available(self, available: bool, done: AdminDone) -> Procedure[None]:
        if self._control_problem is not None:
            raise CorruptionError(f"{SE}partition {self.partition_id}: {self._control_problem}")
        current = self.entry.current
        flags = current.flags | AVAILABLE if available else current.flags & ~AVAILABLE
        yield from self._update_control(current.session_id, current.low_water_mark, current.local_low_water_mark, flags)
        done(None)


def _following_id(records: tuple[Record, ...], next_id: int) -> int | None:
    """The id behind `records` if they continue the log without a gap, else None."""
    for one in records:
        if one.transaction_id != next_id:
            return None
        next_id += 1
    return next_id


def _header(one: Record) -> RecordHeader:
    return RecordHeader(one.transaction_id, one.req_id, one.header)

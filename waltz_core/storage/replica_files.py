"""What one replica has on disk, as far as this process knows it, and the writes that every change of it is made of.

States of a replica:

    UNASSIGNED ──assign──► OPENING ──► OPEN ──disk fails──► STOPPED
                              │ ▲                             │
                     damaged  │ └── assign, repair, restart ──┤
                              ▼                               │
                            LIMBO ────────────────────────────┘        any ──unassign──► UNASSIGNED

Who owns what: the control struct (`entry`: flags, marks, the session that set them), the log (`log`), the damaged
ids (`faults`) and the side files (`durable`) are read by all parts and changed only by procedures over this class:
`replica_opening`, `assignment`, `appends`, `truncation`, `log_start`, `acceptance`, `replica_repair`. All of them
run in the lane of the replica, one at a time; only the fence's readers and verified reads run beside.

What is durable when:

* a fence, before its session gets the first answer; a raised fence is never lowered while the files stand;
* a control struct, before the change is answered. The side files name its sequence number, so they are written
  behind it. A crash in between makes them look foreign: the mark is then ignored, and the fence kept if higher;
* the durable mark trails the log by up to a second, and is lowered *before* a truncation cuts.

A write that fails leaves files with unknown contents. After it the replica stops, and only opening
it anew, which reads everything again, brings it back. The exceptions are appends (which are undone) and side files
on a full disk (which say a little less than is true).
"""

from __future__ import annotations

import enum
from typing import Protocol

from waltz_core.base.edge import Level
from waltz_core.base.log import SessionInfo
from waltz_core.storage import control as ctl
from waltz_core.storage import side
from waltz_core.storage.context import NodeContext
from waltz_core.storage.control import ControlEntry
from waltz_core.storage.durable_state import NAMES, DurableState
from waltz_core.storage.effects import FaultKind, Operation, SyncFile, WriteAt
from waltz_core.storage.log_files import LogFiles, LogPlace
from waltz_core.storage.notes import MarkDue
from waltz_core.storage.procedure import DiskError, Procedure, write
from waltz_core.storage.refusals import SE, Refusal
from waltz_core.storage.side import Belongs
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.shared import Cause, Condition, FailureCode, SuspectRange


class State(enum.Enum):
    """Condition of a partition on this node."""

    UNASSIGNED = "unassigned"  # not ours; files may lie there
    OPENING = "opening"  # files are being examined
    OPEN = "open"
    LIMBO = "limbo"  # files contradict themselves: nothing but intact records is given out
    STOPPED = "stopped"  # the disk failed: as limbo, until opened again


class Write(Protocol):
    """A way of writing, which decides what follows if it fails."""

    def __call__(self, *operations: Operation) -> Procedure[None]:
        """Carry out operations in order."""


class ReplicaFiles:
    """One replica, assigned to this node or not."""

    def __init__(
        self, partition_id: int, entry: ControlEntry, context: NodeContext, control_problem: str | None
    ) -> None:
        config = context.config
        self.partition_id = partition_id
        self.entry = entry
        self.context = context
        self.state = State.UNASSIGNED
        self.reason = ""  # why LIMBO or STOPPED
        self.log: LogFiles | None = None
        self.faults: set[int] = set()  # ids whose records are damaged
        self.control_problem = control_problem  # why the control struct does not count
        self.where = LogPlace(
            str(partition_id), partition_id, config.key, config.segment_size_threshold, config.shown_directory
        )
        self.durable = DurableState(self.where.directory)
        self.raised_fence = entry.current.session_id  # highest session answered
        self._mark_alarm = MarkDue(partition_id)
        self._listener: tuple[int, int] | None = None  # connection and session of the last session info
        self._reported: wire.SuspectReport | None = None  # what that server knows

    # ---- views -----------------------------------------------------------------------------------

    @property
    def max_id(self) -> int:
        """Id of the last durable record, -1 if there is none."""
        return -1 if self.log is None else self.log.segments[-1].next_id - 1

    @property
    def log_start(self) -> int:
        """The smallest id that is kept; 0 unless an operator raised it."""
        return self.durable.start.first_id

    @property
    def usable_end(self) -> int:
        """Up to where the log has neither holes nor damaged records: what an operator can accept as all there is."""
        if self.log is None:
            return -1
        following = min(self.log.segments[0].first_id, self.log_start)
        for segment in self.log.segments:
            if segment.first_id != following:
                break
            following = segment.next_id
        wanted = (fault for fault in self.faults if self.log_start <= fault < following)
        return min(wanted, default=following) - 1

    @property
    def fence(self) -> int:
        """Highest session answered."""
        return self.raised_fence

    def session_info(self) -> SessionInfo:
        """What the last `SetLowWaterMark` persisted."""
        current = self.entry.current
        return SessionInfo(current.session_id, current.low_water_mark, current.local_low_water_mark)

    def condition(self) -> Condition:
        """How far this replica trusts its log."""
        if self.state is State.LIMBO:
            return Condition.LIMBO
        if self.state is State.STOPPED:
            return Condition.STOPPED
        return Condition.SUSPECT if self.faults else Condition.SOUND

    def suspects(self) -> tuple[SuspectRange, ...]:
        """Records that are refused."""
        return tuple(
            SuspectRange(a, b, Cause.MISSING if a > self.max_id else Cause.CHECKSUM)
            for a, b in side.ranges_of(self.faults)[: side.RANGES_MAX]
        )

    def admin_state(self, seq_num: int) -> admin.ReplicaStateResponse:
        """Everything this replica knows of itself."""
        return admin.ReplicaStateResponse(
            seq_num,
            self.partition_id,
            self.session_info(),
            self.fence,
            self.max_id,
            self.log_start,
            self.usable_end if self.state is State.LIMBO else self.max_id,
            self.condition(),
            self.suspects(),
            self.reason or None,
        )

    def out_of_service(self) -> Refusal:
        """What LIMBO and STOPPED answer."""
        code = FailureCode.IO if self.state is State.STOPPED else FailureCode.LIMBO
        return Refusal(f"{SE}partition {self.partition_id} is out of service: {self.reason}", code, self.max_id)

    @property
    def opened_log(self) -> LogFiles:
        """The log.

        Raises:
            Refusal: it was never opened, or its files are gone.
        """
        if self.log is None:
            raise self.out_of_service()
        return self.log

    # ---- the server whose session this is --------------------------------------------------------

    def listen(self, conn: int, session_id: int) -> None:
        """A session has got its first answer; from now on it gets every change of our condition."""
        self._listener, self._reported = (conn, session_id), None

    def tell_server(self) -> None:
        """Report our condition to the server whose session this is, which must know before it runs into it."""
        if self._listener is None:
            return
        conn, session_id = self._listener
        condition, suspects = self.condition(), self.suspects()
        report = wire.SuspectReport(session_id, -1, self.partition_id, condition, suspects, self.reason or None)
        if report != self._reported:
            self._reported = report
            self.context.reply(conn, report)

    def report(self, level: Level, text: str) -> None:
        """A line for the operator about this partition."""
        self.context.report(level, f"partition {self.partition_id}: {text}")

    # ---- writing ---------------------------------------------------------------------------------

    def write(self, *operations: Operation) -> Procedure[None]:
        """Write something whose failure leaves the state of the files unknown: the partition stops."""
        try:
            yield from write(*operations)
        except DiskError as fault:
            self.stop(fault)
            raise

    def write_side(self, *operations: Operation) -> Procedure[None]:
        """Write side files: on a full disk that may fail, and all goes on with what they said before."""
        try:
            yield from write(*operations)
        except DiskError as fault:
            if fault.kind is not FaultKind.FULL:
                self.stop(fault)
            raise

    def stop(self, fault: DiskError) -> None:
        """The disk failed, so nothing is known of what it holds; until the partition is opened again."""
        if self.state in (State.OPEN, State.OPENING):
            self.state = State.STOPPED
            self.reason = (
                f"the disk failed: {fault}; once it works again, reopen the partition with "
                "`waltz storage add-partition`, or restart this node"
            )
            self.context.report(Level.ERROR, f"partition {self.partition_id} stopped: {self.reason}")
            self.tell_server()

    def belongs(self, last_segment: int | None = None) -> Belongs:
        """What side files are written beside: the present control struct, and the last segment or another one."""
        current = self.entry.current
        if last_segment is None:
            last_segment = 0 if self.log is None else self.log.last.first_id
        return Belongs(current.sequence, current.session_id, last_segment)

    def mark_operations(self, mark: int, last_segment: int | None = None) -> tuple[Operation, ...]:
        """Write the durable mark of a replica in service, whose side files are there."""
        return self.durable.mark_operations(mark, self.belongs(last_segment))

    def create_sides(self, write: Write, names: tuple[str, ...] = NAMES) -> Procedure[None]:
        """Make the side files that are missing, by `write` or `write_side`, before anything is written into them."""
        missing = self.durable.missing(names)
        if missing:
            yield from write(*self.durable.create_operations(missing))
            self.durable.created(missing)

    def raise_fence(self, session_id: int) -> Procedure[None]:
        """Shut out all older sessions, durably: they stay out after a restart."""
        yield from self.create_sides(self.write_side, (side.FENCE,))
        yield from self.write_side(*self.durable.fence_operations(session_id, self.entry.current, self.belongs()))
        self.raised_fence = session_id

    def write_faults(self) -> Procedure[None]:
        """Write which records are damaged."""
        yield from self.create_sides(self.write_side, (side.FAULTS,))
        yield from self.write_side(*self.durable.faults_operations(self.faults, self.belongs()))

    def write_control(self, *writes: tuple[int, bytes]) -> Procedure[None]:
        """Write structs, given with their places, into the control file, each durable before the next."""
        self.entry.uncertain = True
        for place, data in writes:
            yield from self.write(WriteAt(ctl.NAME, place, data), SyncFile(ctl.NAME))
        self.entry.uncertain = False

    def settle_control(self) -> Procedure[None]:
        """Write over what a failed write may have left: it was answered as failed, and must not come back later."""
        if self.entry.uncertain and self.control_problem is None:
            yield from self.write_control(*self.entry.present_writes())

    def update_control(self, session_id: int, mark: int, local_mark: int, flags: int) -> Procedure[None]:
        """Write the control struct, then the side files that name it."""
        old, struct = self.entry.current, self.entry.plan(session_id, mark, local_mark, flags)
        yield from self.write_control((self.entry.place(), ctl.encode_struct(struct)))
        self.entry.adopt(struct)
        if self.log is not None and self.state is State.OPEN:
            yield from self.refresh_sides()
        elif self.state in (State.LIMBO, State.STOPPED):
            # The mark that holds it there must not look like one that 0.13.2 left behind.
            yield from self.write(*self.durable.moved_mark_operations(old, struct))

    def refresh_sides(self) -> Procedure[None]:
        """Bring the side files up to the present control struct, last segment and end of the log."""
        self.raised_fence = max(self.raised_fence, self.entry.current.session_id)
        yield from self.create_sides(self.write)
        yield from self.write(
            *self.durable.mark_operations(self.max_id, self.belongs()),
            *self.durable.fence_operations(self.raised_fence, self.entry.current, self.belongs()),
        )
        self.plan_mark(None)

    # ---- the durable mark ------------------------------------------------------------------------

    @property
    def mark_planned(self) -> bool:
        """The durable mark lags, and is going to be written."""
        return self.context.alarms.at(self._mark_alarm) is not None

    def plan_mark(self, due_ms: int | None) -> None:
        """When to write the durable mark next; None = it says all there is to say."""
        self.context.alarms.set(self._mark_alarm, due_ms)

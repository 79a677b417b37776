"""The files of one partition on a storage node: opening, assignment, control struct and side files."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TypeAlias

from waltz_core.base.edge import Level
from waltz_core.base.errors import CorruptionError, StorageError
from waltz_core.base.log import SessionInfo
from waltz_core.storage import control as ctl
from waltz_core.storage import legacy, side
from waltz_core.storage.config import Shared
from waltz_core.storage.control import ASSIGNED, AVAILABLE, ControlEntry
from waltz_core.storage.effects import (
    Create,
    Cut,
    FaultKind,
    MakeDirectory,
    Operation,
    SyncDirectory,
    SyncFile,
    Unlink,
    WriteAt,
)
from waltz_core.storage.log_files import Ground, LogFiles, Segment, create_operations, remove_operations, segment_of
from waltz_core.storage.opening import CHUNK, Opened, Opening
from waltz_core.storage.procedure import DiskError, Procedure, list_names, read, write
from waltz_core.storage.reading import end_of, read_range
from waltz_core.storage.refusals import SE, Refusal, not_assigned
from waltz_core.storage.segment import HEADER_SIZE, index_name
from waltz_core.storage.side import Belongs, LogStart
from waltz_core.storage.sides import SideFiles
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


DROP = "the connection is dropped"  # an outcome of administrative requests of 0.13.2: no answer at all

AdminDone: TypeAlias = Callable[[str | None], None]
"""Called when an administrative change is durable (None) or was refused (why)."""


class Custody:
    """What a node keeps of one partition, and every change to it but those of the log.

    States: UNASSIGNED → OPENING → OPEN | LIMBO; OPEN → STOPPED when the disk fails; all → UNASSIGNED when
    unassigned; LIMBO, STOPPED → OPENING when assigned again.
    """

    def __init__(self, partition_id: int, entry: ControlEntry, shared: Shared, control_problem: str | None) -> None:
        config = shared.config
        self.partition_id = partition_id
        self.entry = entry
        self.state = State.UNASSIGNED
        self.reason = ""  # why LIMBO or STOPPED
        self.log: LogFiles | None = None
        self.faults: set[int] = set()  # ids whose records are damaged
        self._shared = shared
        self._rules = shared.rules
        self._outbox = shared.outbox
        self._control_problem = control_problem
        self._ground = Ground(
            str(partition_id), partition_id, config.key, config.segment_size_threshold, config.shown_directory
        )
        self._sides = SideFiles(self._ground.directory)
        self._fence = entry.current.session_id  # highest session answered
        self._listener: tuple[int, int] | None = None  # connection and session of the last session info
        self._told: wire.SuspectReport | None = None  # what it was told last
        self._seen = self._fence  # highest session that arrived: what 0.13.2 compares with

    # ---- what others see -------------------------------------------------------------------------

    @property
    def max_id(self) -> int:
        """Id of the last durable record, -1 if there is none."""
        return -1 if self.log is None else self.log.max_id

    @property
    def log_start(self) -> int:
        """The smallest id that is kept; 0 unless somebody raised it."""
        return self._sides.start.first_id

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
        return self._fence if self._rules.fence_persisted else self._seen

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
    def _files(self) -> LogFiles:
        if self.log is None:
            raise self.out_of_service()
        return self.log

    # ---- writing ---------------------------------------------------------------------------------

    def _write(self, *operations: Operation) -> Procedure[None]:
        """Write something whose failure leaves the state of the files unknown: the partition stops."""
        try:
            yield from write(*operations)
        except DiskError as fault:
            self._stop(fault)
            raise

    def _write_side(self, *operations: Operation) -> Procedure[None]:
        """Write side files: on a full disk that may fail, and all goes on with what they said before."""
        try:
            yield from write(*operations)
        except DiskError as fault:
            if fault.kind is not FaultKind.FULL:
                self._stop(fault)
            raise

    def _stop(self, fault: DiskError) -> None:
        if self.state in (State.OPEN, State.OPENING):
            self.state = State.STOPPED
            self.reason = (
                f"the disk failed: {fault}; once it works again, reopen the partition with "
                "`waltz storage add-partition`, or restart this node"
            )
            self._outbox.report(Level.ERROR, f"partition {self.partition_id} stopped: {self.reason}")
            self._tell()

    def _tell(self) -> None:
        """Report our condition to the server whose session this is, which has to know before it runs into it."""
        if self._listener is not None:
            conn, session_id = self._listener
            condition, suspects = self.condition(), self.suspects()
            report = wire.SuspectReport(session_id, -1, self.partition_id, condition, suspects, self.reason or None)
            if report != self._told:
                self._told = report
                self._outbox.reply(conn, report)

    def _belongs(self) -> Belongs:
        current = self.entry.current
        last = 0 if self.log is None else self.log.last.first_id
        return Belongs(current.sequence, current.session_id, last)

    def _raise_fence(self, session_id: int) -> Procedure[None]:
        """Shut out all older sessions, durably: they stay out after a restart."""
        yield from self._write_side(
            *self._sides.create_missing(),
            *self._sides.fence_operations(session_id, self.entry.current, self._belongs()),
        )
        self._fence = session_id

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

    # ---- opening ---------------------------------------------------------------------------------

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
        problem: str | None = None
        try:
            opened = yield from self._opened_or_blamed()
            yield from self._adopt(opened)
            problem = opened.problem
        except DiskError as fault:
            # The disk failed, which says nothing about the files: no limbo, but opened again later.
            self._stop(fault)
            problem = str(fault)
        done(None if self._rules.partitions_isolated else problem)

    def _opened_or_blamed(self) -> Procedure[Opened]:
        """Open the files of an assigned partition.

        Raises:
            DiskError: the disk failed.
        """
        try:
            return (yield from self._open_files(assigned=True))
        except CorruptionError as error:
            opened = Opened()
            opened.blame(str(error))
            return opened

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
        if self.log_start and not assigned and not any(one.name.endswith(".seg") for one in found):
            yield from self._sides.forget_start()
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
            start=self._sides.start,
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
                f"it takes part in nothing until it is repaired. {self._next_command()}",
            )
            return
        self.state, self.reason = State.OPEN, ""
        yield from self._recheck_faults()
        if not self._sides_are_current():
            yield from self._refresh_sides()

    def _next_command(self) -> str:
        """What an operator can do about a partition in limbo."""
        here = f"-s THIS_NODE:ADMIN_PORT -p {self.partition_id}"
        if self.log is None:
            return (
                f"Replace the copy: `waltz storage remove-partition {here} --delete-storage-files`, then "
                f"`waltz storage add-partition {here}`"
            )
        return f"A server of ours repairs it by itself; by hand: `waltz storage repair {here}`"

    def _sides_are_current(self) -> bool:
        """Whether the side files say already what they would be made to say; of the fence only its content counts."""
        return (
            self._sides.fence == side.Fence(self._fence, self.entry.current)
            and self._sides.mark_beside(self._belongs()) == self.max_id
        )

    def _recheck_faults(self) -> Procedure[None]:
        """Read again what was damaged: the partition may have been repaired by other means."""
        for first, last in self._sides.remembered:
            for transaction_id in range(max(self.log_start, first), min(last, self.max_id, first + 1000) + 1):
                records, damaged = yield from read_range(self._files, transaction_id, 1, 1)
                if damaged is not None and not records:
                    self.faults.add(transaction_id)

    # ---- the log start ---------------------------------------------------------------------------

    def _raise_start(self, first_id: int, *, anew: bool) -> Procedure[None]:
        """Give up everything below an id, durably: first the decision, then the files, the oldest first.

        Args:
            anew: the id may lie behind the end of the log, which then begins there with nothing in it.

        Raises:
            Refusal: records that may not be committed, or that others may need, would be given up.
        """
        log, allowed = self._files, self.entry.current.local_low_water_mark + 1
        if first_id <= self.log_start:
            return
        if first_id > log.max_id + 1 and anew:
            yield from self._begin_anew(log, first_id)
            return
        if first_id > min(allowed, log.max_id + 1):
            text = (
                f"{SE}partition {self.partition_id}: the log start can be raised up to {allowed}, where the present "
                f"store session began, not to {first_id}; a later session allows more: ask the server, which begins one"
            )
            raise Refusal(text, FailureCode.BELOW_MARK, allowed)
        yield from self._write_start(LogStart(first_id, anew=False))
        while len(log.segments) > 1 and log.segments[1].first_id <= first_id:
            gone = log.segments[0]
            yield from self._write(*remove_operations(self._ground.directory, gone.index_path, gone.data_path))
            log.drop_first()
        self.faults = {fault for fault in self.faults if fault >= first_id}

    def _begin_anew(self, log: LogFiles, first_id: int) -> Procedure[None]:
        """The other replicas begin behind our end: so do we."""
        yield from self._write_start(LogStart(first_id, anew=True))
        segment = segment_of(self._ground, first_id)
        yield from self._write(*create_operations(self._ground, segment, self._shared.wall_ms))
        log.add(segment)
        while log.segments[0] is not segment:
            gone = log.segments[0]
            yield from self._write(*remove_operations(self._ground.directory, gone.index_path, gone.data_path))
            log.drop_first()
        self.faults.clear()
        yield from self._refresh_sides()
        yield from self._write_start(LogStart(first_id, anew=False))

    def _write_start(self, start: LogStart) -> Procedure[None]:
        yield from self._write(*self._sides.start_operations(start, self._belongs()))
        self._sides.start = start

    # ---- an operator's word ----------------------------------------------------------------------

    def _accept_loss(self, max_id: int) -> Procedure[None]:
        """Let the log end at `max_id`, where damage begins; what stands behind is put aside, not deleted.

        Raises:
            StorageError: not in limbo, or not what the operator saw.
        """
        if self.state is not State.LIMBO or self.log is None:
            problem = "its data files are gone; assign it anew" if self.log is None else "it is not in limbo"
            raise Refusal(f"{SE}partition {self.partition_id}: {problem}", FailureCode.OTHER)
        if max_id != self.usable_end:
            text = f"{SE}partition {self.partition_id}: its log is good up to {self.usable_end}, not {max_id}"
            raise Refusal(text, FailureCode.OUT_OF_ORDER, self.usable_end)
        log, lost = self.log, max(self.max_id, *self.faults, max_id) if self.faults else self.max_id
        kept = [segment for segment in log.segments if segment.first_id <= max_id + 1]
        if not kept:
            text = f"{SE}partition {self.partition_id}: nothing of its log can be kept; unassign it with its files"
            raise Refusal(f"{text} and assign it anew", FailureCode.OTHER)
        last = kept[-1]
        self._outbox.report(
            Level.WARNING,
            f"partition {self.partition_id}: an operator accepted that its log ends at {max_id}; given up: "
            f"{'what was lost' if lost <= max_id else f'transactions {max_id + 1}..{lost}'}",
        )
        while log.last is not last:
            gone = log.last
            yield from self._put_aside(gone, 0)
            yield from self._write(*remove_operations(self._ground.directory, gone.index_path, gone.data_path))
            log.drop_last()
        place = HEADER_SIZE if max_id < last.first_id else (yield from end_of(last, max_id))
        if place is None:
            raise Refusal(f"{SE}transaction {max_id} of partition {self.partition_id} is damaged", FailureCode.CORRUPT)
        yield from self._put_aside(last, place)
        current = self.entry.current
        # It may have lost what it acknowledged, so it must have no say in where the log ends: without its session it
        # is like a replica restored from an old backup. Sessions that were answered stay shut out, by the fence.
        yield from self._write(
            *self._sides.create_missing(), *self._sides.fence_operations(self._fence, current, self._belongs())
        )
        # No session could ever mark this log again if its marks stayed above it: they do not fall by themselves.
        marks = min(current.low_water_mark, max_id), min(current.local_low_water_mark, max_id)
        yield from self._update_control(-1, *marks, current.flags)
        belongs = self._belongs()
        lowered = Belongs(belongs.sequence, belongs.session_id, last.first_id)
        yield from self._write(*self._sides.mark_operations(max_id, lowered))
        yield from self._write(
            Cut(last.data_path, place),
            SyncFile(last.data_path),
            Unlink(last.index_path),  # it may be damaged or missing, too; opening makes it from the data
            SyncDirectory(self._ground.directory),
        )
        self.faults.clear()
        yield from self._write(*self._sides.faults_operations(self.faults, lowered))
        yield from self._open_again()
        if self.reason:
            raise self.out_of_service()

    def _put_aside(self, segment: Segment, start: int) -> Procedure[None]:
        """Copy the end of a data file beside it: bytes that somebody may still make something of."""
        copy = f"{segment.data_path}.given-up"
        yield from self._write(Create(copy))
        at = start
        while piece := (yield from read(segment.data_path, at, CHUNK)):
            yield from self._write(WriteAt(copy, at - start, piece))
            at += len(piece)
        yield from self._write(SyncFile(copy), SyncDirectory(self._ground.directory))

    # ---- assignment ------------------------------------------------------------------------------

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

    def _open_again(self) -> Procedure[None]:
        """Look at the files of an assigned partition once more.

        Raises:
            DiskError: the disk failed; the partition has stopped.
        """
        self.state, self.reason = State.OPENING, ""
        try:
            opened = yield from self._opened_or_blamed()
            yield from self._adopt(opened)
        except DiskError as fault:
            self._stop(fault)
            raise

    def _reopen(self) -> Procedure[None]:
        """Open for an assignment: a partition not yet ours stays so if its files are damaged."""
        was = self.state
        self.state = State.OPENING
        try:
            yield from self._write(MakeDirectory(self._ground.directory), SyncDirectory(""))
            opened = yield from self._open_files(assigned=was is not State.UNASSIGNED)
            if opened.problem is None or was is not State.UNASSIGNED:
                yield from self._adopt(opened)
        except DiskError as fault:
            if was is State.UNASSIGNED:
                self.state = was
            else:
                self._stop(fault)
            raise
        except StorageError:
            self.state = was
            raise
        if opened.problem is not None:
            self.state = was if was is State.UNASSIGNED else State.LIMBO
            raise CorruptionError(f"{SE}partition {self.partition_id} cannot be opened: {opened.problem}")

    def _unassign(self, delete: bool, done: AdminDone) -> Procedure[None]:
        if self.state is State.UNASSIGNED:
            if self._rules.unassigned_refused:
                raise not_assigned(self.partition_id)
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
        names = {one.name for one in found if not one.is_directory}
        indexes = [name for name in names if name.endswith(".idx") and name.replace(".idx", ".seg") not in names]
        yield from self._write(*(Unlink(f"{directory}/{name}") for name in sorted(indexes)), SyncDirectory(directory))
        for name in sorted((one for one in names if one.endswith(".seg")), reverse=True):
            # Newest first: what a crash leaves is a shorter log.
            data_path = f"{directory}/{name}"
            yield from self._write(*remove_operations(directory, index_name(data_path), data_path))
        yield from self._write(*self._sides.remove_operations(), SyncDirectory(directory))
        self._fence = -1

    def _set_available(self, available: bool, done: AdminDone) -> Procedure[None]:
        if self._control_problem is not None:
            raise CorruptionError(f"{SE}partition {self.partition_id}: {self._control_problem}")
        current = self.entry.current
        flags = current.flags | AVAILABLE if available else current.flags & ~AVAILABLE
        yield from self._update_control(current.session_id, current.low_water_mark, current.local_low_water_mark, flags)
        done(None)

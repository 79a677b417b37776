"""One partition on a storage node: fences by session, keeps order, acknowledges only what is durable.

    storage port ─┐                                      ┌─ Appends        one write for all appends that wait
    admin port  ──┼─► StorageReplica ─► Lane ─► one job ─┼─ VerifiedReads  records, digests, segments
    repairs     ──┘         │                            └─ procedures     opening, assignment, truncation, repair…
                            └─ reads of what is durable run beside the lane
                     all of them over ReplicaFiles, the one place that knows what is on disk

A request waits in the lane, is let in (`permission.py`), done and answered; each gets exactly one answer, after what
it asked for is durable. What the node must know (a change has ended, a survey is done) leaves as a note.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from waltz_core.base.errors import StorageError
from waltz_core.base.log import Record, SessionInfo
from waltz_core.storage.acceptance import accept_loss
from waltz_core.storage.answers import fail
from waltz_core.storage.appends import MARK_EVERY_MS, Appends
from waltz_core.storage.assignment import assign, set_available, unassign
from waltz_core.storage.context import NodeContext
from waltz_core.storage.control import ControlEntry
from waltz_core.storage.lane import (
    APPENDS,
    EXCLUSIVE,
    AcceptLoss,
    AdminRead,
    AdminReading,
    Assign,
    Change,
    ChangeJob,
    Job,
    Lane,
    Mend,
    OpenFiles,
    RaiseStart,
    RecordFaults,
    RecordRepair,
    Request,
    SetAvailable,
    Survey,
    Unassign,
)
from waltz_core.storage.log_start import raise_start
from waltz_core.storage.notes import ChangeEnded, Mended, Opened, RepairRecorded, Surveyed
from waltz_core.storage.procedure import DiskError, Procedure
from waltz_core.storage.refusals import SE, Refusal, io_text, not_assigned
from waltz_core.storage.replica_files import ReplicaFiles, State
from waltz_core.storage.replica_opening import open_assigned
from waltz_core.storage.replica_repair import mend, record_repair, survey
from waltz_core.storage.serving import Serving
from waltz_core.storage.transcode import AppendRun, Incoming, size_of
from waltz_core.storage.verified_reads import VerifiedReads
from waltz_core.wire.shared import FailureCode

__all__ = ["State", "StorageReplica"]


class StorageReplica:
    """One partition, assigned to this node or not: its lane and what it answers."""

    make_files: ClassVar[type[ReplicaFiles]] = ReplicaFiles
    make_reads: ClassVar[type[VerifiedReads]] = VerifiedReads
    make_serving: ClassVar[type[Serving]] = Serving

    def __init__(
        self, partition_id: int, entry: ControlEntry, context: NodeContext, control_problem: str | None = None
    ) -> None:
        self.partition_id = partition_id
        self.files = self.make_files(partition_id, entry, context, control_problem)
        self.lane = Lane()
        self._context = context
        self._appends = Appends(self.files, self.lane)
        self._reads = self.make_reads(self.files, self.lane)
        self._serving = self.make_serving(self.files, self.lane, self._reads, self._appends)
        self._counters = dict.fromkeys(("repaired-records", "scrubbed-records", "scrub-passes"), 0)
        self._pumping = False  # jobs that end at once must not pile up on the stack

    # ---- views -----------------------------------------------------------------------------------

    @property
    def entry(self) -> ControlEntry:
        """Its entry in the control file."""
        return self.files.entry

    @property
    def state(self) -> State:
        """Whether it is in service."""
        return self.files.state

    @property
    def reason(self) -> str:
        """Why it is not."""
        return self.files.reason

    @property
    def faults(self) -> set[int]:
        """Ids of damaged records."""
        return self.files.faults

    @property
    def max_id(self) -> int:
        """Id of the last durable record, -1 if there is none."""
        return self.files.max_id

    @property
    def log_start(self) -> int:
        """The smallest id that is kept."""
        return self.files.log_start

    @property
    def fence(self) -> int:
        """Highest session answered."""
        return self.files.fence

    @property
    def counters(self) -> dict[str, int]:
        """What was done, by the names of the metrics."""
        appends = self._appends
        counted = {"append": appends.count, "append-batches": appends.batch_count}
        return {**counted, **self._counters, **self._serving.counters}

    def session_info(self) -> SessionInfo:
        """What the last `SetLowWaterMark` persisted."""
        return self.files.session_info()

    # ---- what is asked of it ---------------------------------------------------------------------

    def submit(self, conn: int, message: Incoming) -> None:
        """A request of the storage port."""
        files, lane, context = self.files, self.lane, self._context
        context.touched[self.partition_id] = None
        if files.state is State.UNASSIGNED and not lane.jobs and not lane.busy:
            fail(context, conn, message, not_assigned(self.partition_id))
            return
        if len(lane.jobs) >= context.config.queue_count_max:
            text = f"{SE}partition {self.partition_id}: too many requests are waiting"
            fail(context, conn, message, Refusal(text, FailureCode.OVERLOADED))
            return
        size = message.size if type(message) is AppendRun else size_of(message)
        limit = context.config.queue_bytes_max
        if size and lane.bytes_waiting and lane.bytes_waiting + size > limit:
            text = f"{SE}partition {self.partition_id}: appends of {lane.bytes_waiting} bytes are waiting, of {limit}"
            why = Refusal(f"{text} (storage.queueBytesMax)", FailureCode.OVERLOADED)
            fail(context, conn, message, why)
            return
        if not size and self._serving.at_once(message):
            self._start_beside(self._serving.serve(conn, message), "read")
            return
        lane.add(Request(conn, message, size, type(message) in EXCLUSIVE))

    def read_for_admin(self, conn: int, request: AdminReading) -> None:
        """A read of the admin port: no session, no availability."""
        if self.lane.closed:
            self._queue(AdminRead(conn, request))
        else:
            self._context.touched[self.partition_id] = None
            self._start_beside(self._admin_read(conn, request), "read of the admin port")

    def open(self) -> None:
        """Open the files of a partition that the control file says is assigned; answered by `Opened`."""
        self.files.state = State.OPENING
        self._queue(OpenFiles())

    def change(self, ticket: int, change: Change) -> None:
        """A change that an operator asked for; answered by `ChangeEnded`."""
        self._queue(ChangeJob(ticket, change))

    def survey(self) -> None:
        """Find out which records are damaged; answered by `Surveyed`."""
        self._queue(Survey())

    def mend(self, records: Sequence[Record], last: int) -> None:
        """Write good records over damaged ones that end with `last`; answered by `Mended`."""
        self._queue(Mend(records, last))

    def record_repair(self) -> None:
        """All that could be mended was; answered by `RepairRecorded`."""
        self._queue(RecordRepair())

    def _queue(self, job: Job) -> None:
        self.lane.add(job)
        self._context.touched[self.partition_id] = None

    # ---- scrubbing -------------------------------------------------------------------------------

    @property
    def can_scrub(self) -> bool:
        """In service."""
        return self.files.state is State.OPEN

    def scrub(self, first: int, count: int, size_max: int) -> bool:
        """Verify records from `first` on; answered by `Scrubbed`. False: not now."""
        if self.lane.closed:
            return False
        self._start_beside(self._scrub(max(first, self.log_start), count, size_max), "scrub")
        return True

    def scrub_passed(self) -> None:
        """Every record was verified once more."""
        self._counters["scrub-passes"] += 1

    def _scrub(self, first: int, count: int, size_max: int) -> Procedure[None]:
        verified = yield from self._reads.scrub(first, count, size_max)
        self._counters["scrubbed-records"] += verified

    # ---- the durable mark ------------------------------------------------------------------------

    def write_mark(self, *, for_good: bool = True) -> None:
        """The durable mark is due.

        Args:
            for_good: on a full disk it is tried again, for as long as that takes.
        """
        files, lane = self.files, self.lane
        files.plan_mark(None)
        if files.state is not State.OPEN:
            return  # opening it again writes the mark
        if lane.closed or lane.marking or lane.rolling:
            # Two writes must not contradict each other. What runs alone may or may not write the mark itself.
            files.plan_mark(self._context.now + MARK_EVERY_MS)
            return
        lane.marking = True
        self._context.runner.start(self._write_mark(for_good), self.partition_id, "durable mark")

    def _write_mark(self, for_good: bool) -> Procedure[None]:
        """Write the durable mark: everything up to the end of the log as it is known now is on disk."""
        files = self.files
        try:
            yield from files.write_side(*files.mark_operations(files.max_id))
        except DiskError:  # reported where the partition stopped; a full disk only leaves the mark behind
            if for_good and files.state is State.OPEN:
                # It may name a segment that was taken back, and would not count at the next opening.
                files.plan_mark(self._context.now + MARK_EVERY_MS)
        self.lane.marking = False
        self.pump()

    # ---- the lane --------------------------------------------------------------------------------

    def pump(self) -> None:
        """Start all jobs that can start."""
        if self._pumping:
            return
        lane = self.lane
        self._pumping = True
        try:
            while lane.jobs and not lane.busy:
                if self._batches(lane.jobs[0]):
                    work = self._appends.next()
                    if work is not None:
                        lane.busy = True
                        self._context.runner.start(self._alone(work), self.partition_id, "append")
                    continue
                job = lane.begin()
                if job is None:
                    return
                self._context.runner.start(self._alone(self._perform(job)), self.partition_id, _purpose(job))
        finally:
            self._pumping = False

    def _batches(self, job: Job) -> bool:
        """Whether it is written together with its like that wait behind it."""
        return type(job) is Request and type(job.message) in APPENDS

    def _alone(self, work: Procedure[None]) -> Procedure[None]:
        yield from work
        lane = self.lane
        lane.end()
        if lane.jobs:
            self.pump()

    def _start_beside(self, work: Procedure[None], purpose: str) -> None:
        self.lane.reads += 1
        self._context.runner.start(self._beside(work), self.partition_id, purpose)

    def _beside(self, work: Procedure[None]) -> Procedure[None]:
        yield from work
        self.lane.reads -= 1
        self.pump()

    def _perform(self, job: Job) -> Procedure[None]:
        notes, files = self._context.notes, self.files
        match job:
            case Request(conn=conn, message=message):
                yield from self._serving.serve(conn, message)
            case AdminRead(conn, request):
                yield from self._admin_read(conn, request)
            case ChangeJob(ticket, change):
                refusal = yield from self._refusal_of(self._change(change))
                notes.put(ChangeEnded(ticket, refusal))
            case OpenFiles():
                problem = yield from self._refusal_of(open_assigned(files))
                notes.put(Opened(self.partition_id, problem))
            case Survey():
                ranges = yield from survey(files)
                notes.put(Surveyed(self.partition_id, ranges))
            case Mend(records, last):
                count, problem_left = yield from mend(files, records, last)
                self._counters["repaired-records"] += count
                notes.put(Mended(self.partition_id, count, problem_left))
            case RecordRepair():
                yield from record_repair(files)
                notes.put(RepairRecorded(self.partition_id))
            case RecordFaults():
                with suppress(DiskError):  # the next read of the record finds the damage again
                    yield from files.write_faults()

    def _refusal_of(self, work: Procedure[str | None]) -> Procedure[str | None]:
        """What `work` gives, or why it could not be done."""
        try:
            return (yield from work)
        except DiskError as fault:
            return io_text(fault)
        except StorageError as error:
            return str(error)

    def _change(self, change: Change) -> Procedure[str | None]:
        files = self.files
        match change:
            case Assign():
                yield from assign(files)
            case Unassign(delete):
                yield from unassign(files, delete)
            case SetAvailable(available):
                yield from set_available(files, available)
            case RaiseStart(first_id):
                if files.state is not State.OPEN:
                    raise files.out_of_service()
                yield from raise_start(files, first_id)
            case AcceptLoss(max_id):
                yield from accept_loss(files, max_id)
                files.tell_server()
        return None

    def _admin_read(self, conn: int, request: AdminReading) -> Procedure[None]:
        answer = yield from self._reads.admin_answer(request)
        self._context.reply(conn, answer)


def _purpose(job: Job) -> str:
    """What a job is, for people."""
    match job:
        case Request(message=message):
            return type(message).__name__
        case ChangeJob(_, change):
            return type(change).__name__
        case _:
            return type(job).__name__

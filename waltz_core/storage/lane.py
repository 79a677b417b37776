"""The lane of a replica: its jobs in order, one piece of disk work at a time.

    queued ──head of the lane, nothing under way──► under way ──its procedure ends──► gone

Appends that wait at the head are written together (`appends.py`); everything else runs alone. Two things run
beside the lane: reads of what is durable, and the lazy write of the durable mark. An *exclusive* job (one that
removes, cuts or rewrites files) waits until nothing runs beside it, and lets nothing begin beside it from the
moment it waits: otherwise a stream of reads could keep it out without end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import ClassVar, TypeAlias

from waltz_core.base.log import Record
from waltz_core.base.record import record
from waltz_core.storage.transcode import AppendRun, Incoming
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire

AdminReading: TypeAlias = (
    admin.RecordListRequest
    | admin.RecordRangeRequest
    | admin.DigestRequest
    | admin.SegmentListRequest
    | admin.SegmentReadRequest
)

APPENDS = (AppendRun, wire.AppendRequest)
EXCLUSIVE = (wire.TruncateRequest, wire.SetLogStartRequest, wire.BeginAnewRequest)  # files go: no read may be under way

# ---- changes that an operator asks for -------------------------------------------------------


@record
class Assign:
    """Take the partition on."""


@record
class Unassign:
    """Give the partition up."""

    delete: bool  # its files, too


@record
class SetAvailable:
    """Allow or forbid reads and writes."""

    available: bool


@record
class AcceptLoss:
    """The log counts as complete up to an id."""

    max_id: int


@record
class RaiseStart:
    """Give up everything below an id."""

    first_id: int


Change: TypeAlias = Assign | Unassign | SetAvailable | AcceptLoss | RaiseStart

# ---- jobs ------------------------------------------------------------------------------------


@record
class Request:
    """A message of the storage port."""

    conn: int
    message: Incoming
    size: int  # of its records
    exclusive: bool


@record
class AdminRead:
    """A read of the admin port, which needs no session."""

    exclusive: ClassVar[bool] = False
    conn: int
    request: AdminReading


@record
class ChangeJob:
    """A change that an operator asked for; answered by `ChangeEnded` with the same ticket."""

    ticket: int
    change: Change

    @property
    def exclusive(self) -> bool:
        """Nothing may run beside it."""
        return type(self.change) is not SetAvailable


@record
class OpenFiles:
    """Open a partition that the control file says is ours; answered by `Opened`."""

    exclusive: ClassVar[bool] = True


@record
class Survey:
    """Find out which records are damaged; answered by `Surveyed`."""

    exclusive: ClassVar[bool] = True


@record
class Mend:
    """Write good records over damaged ones that end with `last`; answered by `Mended`."""

    exclusive: ClassVar[bool] = True
    records: Sequence[Record]
    last: int


@record
class RecordRepair:
    """All that could be mended was: note what is left; answered by `RepairRecorded`."""

    exclusive: ClassVar[bool] = True


@record
class RecordFaults:
    """Write down which records are damaged; nothing waits for it."""

    exclusive: ClassVar[bool] = False


Job: TypeAlias = Request | AdminRead | ChangeJob | OpenFiles | Survey | Mend | RecordRepair | RecordFaults


class Lane:
    """Jobs that wait, the one under way, and what runs beside it."""

    __slots__ = ("_exclusive_waiting", "alone", "busy", "bytes_waiting", "jobs", "marking", "reads", "rolling")

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()  # that wait
        self._exclusive_waiting = 0
        self.bytes_waiting = 0  # of appends
        self.busy = False  # a job is under way
        self.alone = False  # and it is exclusive
        self.rolling = False  # or a write that begins a segment
        self.reads = 0  # under way beside the lane
        self.marking = False  # the durable mark is being written beside the lane

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is under way."""
        return not (self.busy or self.jobs or self.reads or self.marking)

    @property
    def closed(self) -> bool:
        """Whether files may change under a read that began now beside the lane: then it waits in the lane."""
        return self.alone or self._exclusive_waiting > 0

    def add(self, job: Job) -> None:
        """Put a job behind all others."""
        self.jobs.append(job)
        self._exclusive_waiting += job.exclusive
        if type(job) is Request:
            self.bytes_waiting += job.size

    def take(self) -> Job:
        """The job at the head, which leaves the lane."""
        job = self.jobs.popleft()
        self._exclusive_waiting -= job.exclusive
        if type(job) is Request:
            self.bytes_waiting -= job.size
        return job

    def begin(self) -> Job | None:
        """Take the job at the head, which is under way from now on; None if it has to wait."""
        exclusive = self.jobs[0].exclusive
        if exclusive and (self.reads or self.marking):
            return None
        self.busy, self.alone = True, exclusive
        return self.take()

    def end(self) -> None:
        """The job under way has ended."""
        self.busy = self.alone = self.rolling = False

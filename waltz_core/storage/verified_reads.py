"""Reading a replica's log for others: every record is verified, and one that is damaged is remembered and refused.

    read ──▶ below the log start ──▶ refused
      └────▶ intact records ──▶ up to a limit, or to the first damaged one ──▶ answered
      └────▶ the first one is damaged, or in a bad sector ──▶ a fault is noted ──▶ refused (CORRUPT): the reader
             asks another replica

Servers, repairs, tools and the scrub all read here, so whoever meets damage first makes it known. A fault becomes
durable through `ReplicaFiles`, is reported to servers, and ends when a repair has put a good record in its place.
"""

from __future__ import annotations

from hashlib import sha256

from waltz_core.base.edge import Level
from waltz_core.base.errors import StorageError
from waltz_core.storage import segment_reads
from waltz_core.storage.lane import AdminReading, Lane, RecordFaults
from waltz_core.storage.log_files import LogFiles
from waltz_core.storage.notes import Scrubbed
from waltz_core.storage.procedure import DiskError, Procedure
from waltz_core.storage.reading import read_range
from waltz_core.storage.record_codec import RECORD_SIZE_MIN, encode_record
from waltz_core.storage.refusals import SE, Refusal, io_refusal, io_text, not_assigned
from waltz_core.storage.replica_files import ReplicaFiles, State
from waltz_core.storage.scanning import passable
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.records import NO_RECORDS, RecordRun
from waltz_core.wire.shared import FailureCode

_SCRUB_SIZE_MIN = 4096  # bytes that a piece counts for at least, or a log of nothing would be scrubbed without pause


class VerifiedReads:
    """Of one replica."""

    __slots__ = ("_context", "_files", "_lane")

    def __init__(self, files: ReplicaFiles, lane: Lane) -> None:
        self._files = files
        self._lane = lane
        self._context = files.context

    def read(self, first: int, count: int, size_max: int = 0) -> Procedure[RecordRun]:
        """Records from `first` upward; fewer than `count` at the end of the log or before a damaged one.

        Args:
            first: id.
            count: of records at most.
            size_max: bytes, besides the limit of this node; 0 = no other.

        Raises:
            StorageError: the first of them is damaged, or the disk cannot read it.
        """
        files = self._files
        log = files.opened_log
        if 0 <= first < files.log_start:
            where = f"the log start of partition {files.partition_id}, {files.log_start}"
            raise Refusal(f"{SE}transaction {first} is below {where}", FailureCode.BEFORE_START, files.log_start)
        limit = self._context.config.read_size_max
        if size_max > 0:
            limit = min(limit, size_max)
        try:
            records, damaged = yield from self._read_or_blame(log, first, count, limit)
        except DiskError as fault:
            if not passable(fault):
                raise
            raise Refusal(io_text(fault), FailureCode.CORRUPT, first) from fault
        if damaged is None and not records and count > 0 and first in files.faults:
            damaged = first  # known once, behind the end of what is left
        if damaged is not None:
            self.note_fault(damaged)
            if not records:
                text = f"{SE}transaction {damaged} of partition {files.partition_id} is damaged on this storage node"
                raise Refusal(text, FailureCode.CORRUPT, damaged)
        return records

    def _read_or_blame(
        self, log: LogFiles, first: int, count: int, size_max: int
    ) -> Procedure[tuple[RecordRun, int | None]]:
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
            self.note_fault(first)
            raise

    def note_fault(self, transaction_id: int) -> None:
        """A record is damaged: remember it, say so, and let the server know, which may start a repair."""
        files = self._files
        if transaction_id in files.faults:
            return
        files.faults.add(transaction_id)
        files.report(Level.ERROR, f"transaction {transaction_id} is damaged on this storage node")
        self._lane.add(RecordFaults())
        files.tell_server()

    def scrub(self, first: int, count: int, size_max: int) -> Procedure[int]:
        """Verify records from `first` on without a request; how many. Answered by `Scrubbed`."""
        files = self._files
        try:
            records, damaged = yield from self._read_or_blame(files.opened_log, first, count, size_max)
        except DiskError as fault:
            files.report(Level.ERROR, f"transaction {first} cannot be read: {fault}")
            records, damaged = NO_RECORDS, first
        if damaged is not None:
            self.note_fault(damaged)
        next_id = max(first, first + len(records) - 1 if damaged is None else damaged) + 1
        self._context.notes.put(Scrubbed(next_id, max(records.size(RECORD_SIZE_MIN), _SCRUB_SIZE_MIN)))
        return next_id - first

    # ---- the admin port --------------------------------------------------------------------------

    def admin_answer(self, request: AdminReading) -> Procedure[admin.AdminMessage]:
        """What a tool, or a node that repairs, gets: no session, no availability."""
        try:
            if self._files.state is State.UNASSIGNED:
                raise not_assigned(self._files.partition_id)
            return (yield from self._admin_answer(request))
        except StorageError as error:
            why = io_refusal(error) if isinstance(error, DiskError) else error
            code, detail = (why.code, why.detail) if isinstance(why, Refusal) else (FailureCode.OTHER, -1)
            return admin.AdminFailureResponse(request.seq_num, str(why), code=code, detail=detail)

    def _admin_answer(self, request: AdminReading) -> Procedure[admin.AdminMessage]:
        match request:
            case admin.SegmentListRequest():
                return (yield from segment_reads.list_segments(self._files.opened_log, request))
            case admin.SegmentReadRequest():
                size_max = self._context.config.read_size_max
                return (yield from segment_reads.read_segment(self._files.opened_log, request, size_max))
            case admin.DigestRequest():
                return (yield from self._digest(request))
            case admin.RecordRangeRequest():
                records = yield from self.read(*range_span(request))
            case _:
                records = yield from self.read(request.transaction_id, request.max_num_records)
        return admin.RecordListResponse(request.seq_num, request.partition_id, records)

    def _digest(self, request: admin.DigestRequest) -> Procedure[admin.DigestResponse]:
        files, first, last = self._files, request.first_id, request.last_id
        if not files.log_start <= first <= last <= files.max_id:
            text = f"partition {files.partition_id} holds {files.log_start} to {files.max_id}, not {first} to {last}"
            raise Refusal(f"{SE}{text}", FailureCode.OTHER)
        records = yield from self.read(first, last - first + 1)
        digest = sha256()
        for record in records:
            digest.update(encode_record(record))
        last = records[-1].transaction_id
        return admin.DigestResponse(request.seq_num, files.partition_id, first, last, digest.digest())


def range_span(message: wire.RecordRangeRequest | admin.RecordRangeRequest) -> tuple[int, int, int]:
    """First id, number of records, and their bytes at most, 0 = no limit of the message."""
    count = max(0, message.last_id - message.first_id + 1)
    return message.first_id, min(count, message.count_max) if message.count_max > 0 else count, message.size_max

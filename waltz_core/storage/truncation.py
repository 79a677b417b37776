"""Where a session begins on a replica: cutting what the cluster did not decide, and the low-water mark.

    truncate              the mark is lowered first ──▶ whole segments go, newest first ──▶ the last one is cut
    set the low-water mark    data and index are synced ──▶ session and marks in the control struct

In this order a crash leaves at worst a log that is still too long, which the next session cuts again; it never leaves a
hole, nor a cut that looks like a loss. What is committed is not cut: `_floor` says up to where that is known here.
"""

from __future__ import annotations

from waltz_core.base.errors import StorageError
from waltz_core.storage import index as index_file
from waltz_core.storage.effects import Cut, SyncFile
from waltz_core.storage.log_files import LogFiles, Segment, remove_operations
from waltz_core.storage.procedure import Procedure
from waltz_core.storage.reading import locate
from waltz_core.storage.refusals import CU, SE, Refusal
from waltz_core.storage.replica_files import ReplicaFiles
from waltz_core.storage.segment import HEADER_SIZE
from waltz_core.storage.verified_reads import VerifiedReads
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.shared import FailureCode


def set_low_water_mark(files: ReplicaFiles, message: wire.SetLowWaterMarkRequest) -> Procedure[None]:
    """Everything up to the end of the log is committed: a session begins behind it.

    Raises:
        StorageError: the mark contradicts what this replica has.
    """
    mark, highest, current = message.low_water_mark, files.max_id, files.entry.current
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
    last = files.opened_log.last
    yield from files.write(SyncFile(last.index_path), SyncFile(last.data_path))
    yield from files.update_control(message.session_id, mark, highest, current.flags)


def truncate(files: ReplicaFiles, reads: VerifiedReads, last_kept: int) -> Procedure[int]:
    """Keep ids up to `last_kept`; the highest id afterwards.

    Raises:
        StorageError: nothing was cut.
    """
    log = files.opened_log
    if last_kept >= log.max_id:
        return log.max_id
    floor = _floor(files, log.max_id)
    if last_kept < floor:
        text = f"{SE}truncation to {last_kept} refused: nothing up to the low-water mark, {floor}, may be cut"
        raise Refusal(text, FailureCode.BELOW_MARK, floor)
    kept = [segment for segment in log.segments if segment.first_id <= last_kept + 1]
    last = kept[-1] if kept else log.segments[0]
    place = yield from _cut_place(reads, log, last, last_kept)
    # The mark first: otherwise a crash in between would make the cut look like a loss.
    yield from files.write(*files.mark_operations(last_kept, last.first_id))
    while log.last is not last:
        # Newest first, each durably gone before the next: a crash leaves a shorter log, never a hole.
        gone = log.last
        yield from files.write(*remove_operations(files.where.directory, gone.index_path, gone.data_path))
        log.drop_last()
    yield from files.write(
        Cut(last.data_path, place),
        SyncFile(last.data_path),
        Cut(last.index_path, index_file.entry_place(last_kept + 1 - last.index_first)),
        SyncFile(last.index_path),
    )
    last.shrink(last_kept + 1, place)
    files.faults = {fault for fault in files.faults if fault <= last_kept}
    files.plan_mark(None)
    return log.max_id


def _floor(files: ReplicaFiles, max_id: int) -> int:
    """Up to where nothing may be cut.

    A replica that was marked while it lagged, and has not got beyond its mark, may lose what was copied to it
    since: the mark was decided without it, it never voted with what it got, and a server of 0.13.2 begins the copy
    anew when it was interrupted before the metadata named the replica.
    """
    current = files.entry.current
    mark = current.low_water_mark if max_id > current.low_water_mark else current.local_low_water_mark
    return max(mark, files.log_start - 1)


def _cut_place(reads: VerifiedReads, log: LogFiles, segment: Segment, last_kept: int) -> Procedure[int]:
    """Offset behind the last record kept, verified: a wrong index must not decide where to cut."""
    if last_kept < segment.first_id:
        return HEADER_SIZE
    place = yield from locate(log, segment, last_kept)
    if place is None:
        reads.note_fault(last_kept)  # or it would never be repaired
        text = f"{SE}truncation to {last_kept} refused: that transaction is damaged here"
        raise Refusal(text, FailureCode.CORRUPT, last_kept)
    return sum(place)

"""An operator's word that the log of a replica in limbo counts as complete up to an id.

It is the last resort where no other replica has the records. What stands behind the id is put aside, never deleted.
The replica forgets the session that marked it, so that it has no say in where the log ends: it may have lost what
it acknowledged, and is treated like one restored from an old backup.
"""

from __future__ import annotations

from waltz_core.base.edge import Level
from waltz_core.storage.effects import Create, Cut, SyncDirectory, SyncFile, Unlink, WriteAt
from waltz_core.storage.log_files import LogFiles, Segment, remove_operations
from waltz_core.storage.procedure import Procedure, read
from waltz_core.storage.reading import end_of
from waltz_core.storage.refusals import SE, Refusal
from waltz_core.storage.replica_files import ReplicaFiles, State
from waltz_core.storage.replica_opening import open_again
from waltz_core.storage.scanning import CHUNK
from waltz_core.storage.segment import HEADER_SIZE
from waltz_core.wire.shared import FailureCode


def accept_loss(files: ReplicaFiles, max_id: int) -> Procedure[None]:
    """Let the log end at `max_id`, where damage begins.

    Raises:
        StorageError: the replica is not in limbo, or not in the state that the operator saw.
    """
    log, last = _kept(files, max_id)
    lost = max(files.max_id, *files.faults, max_id) if files.faults else files.max_id
    files.report(
        Level.WARNING,
        f"an operator accepted that its log ends at {max_id}; given up: "
        f"{'what was lost' if lost <= max_id else f'transactions {max_id + 1}..{lost}'}",
    )
    while log.last is not last:
        gone = log.last
        yield from _put_aside(files, gone, 0)
        yield from files.write(*remove_operations(files.where.directory, gone.index_path, gone.data_path))
        log.drop_last()
    place = HEADER_SIZE if max_id < last.first_id else (yield from end_of(log, last, max_id))
    if place is None:
        raise Refusal(f"{SE}transaction {max_id} of partition {files.partition_id} is damaged", FailureCode.CORRUPT)
    yield from _put_aside(files, last, place)
    current = files.entry.current
    # It may have lost what it acknowledged, so it must have no say in where the log ends: without its session it
    # is like a replica restored from an old backup. Sessions that were answered stay shut out, by the fence.
    yield from files.create_sides(files.write)
    yield from files.write(*files.durable.fence_operations(files.raised_fence, current, files.belongs()))
    # No session could ever mark this log again if its marks stayed above it: they do not fall by themselves.
    marks = min(current.low_water_mark, max_id), min(current.local_low_water_mark, max_id)
    yield from files.update_control(-1, *marks, current.flags)
    lowered = files.belongs(last.first_id)
    yield from files.write(*files.durable.mark_operations(max_id, lowered))
    yield from files.write(
        Cut(last.data_path, place),
        SyncFile(last.data_path),
        Unlink(last.index_path),  # it may be damaged or missing, too; opening makes it from the data
        SyncDirectory(files.where.directory),
    )
    files.faults.clear()
    yield from files.write(*files.durable.faults_operations(files.faults, lowered))
    yield from open_again(files)
    if files.reason:
        raise files.out_of_service()


def _kept(files: ReplicaFiles, max_id: int) -> tuple[LogFiles, Segment]:
    """The log, and the last segment that keeps anything.

    Raises:
        Refusal: there is nothing to accept, or something else.
    """
    if files.state is not State.LIMBO or files.log is None:
        problem = "its data files are gone; assign it anew" if files.log is None else "it is not in limbo"
        raise Refusal(f"{SE}partition {files.partition_id}: {problem}", FailureCode.OTHER)
    if max_id != files.usable_end:
        text = f"{SE}partition {files.partition_id}: its log is good up to {files.usable_end}, not {max_id}"
        raise Refusal(text, FailureCode.OUT_OF_ORDER, files.usable_end)
    kept = [segment for segment in files.log.segments if segment.first_id <= max_id + 1]
    if not kept:
        text = f"{SE}partition {files.partition_id}: nothing of its log can be kept; unassign it with its files"
        raise Refusal(f"{text} and assign it anew", FailureCode.OTHER)
    return files.log, kept[-1]


def _put_aside(files: ReplicaFiles, segment: Segment, start: int) -> Procedure[None]:
    """Copy the end of a data file beside it: an operator may still be able to use the bytes."""
    copy = f"{segment.data_path}.given-up"
    yield from files.write(Create(copy))
    at = start
    while piece := (yield from read(segment.data_path, at, CHUNK)):
        yield from files.write(WriteAt(copy, at - start, piece))
        at += len(piece)
    yield from files.write(SyncFile(copy), SyncDirectory(files.where.directory))

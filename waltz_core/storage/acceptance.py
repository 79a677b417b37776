"""An operator's word that the log of a replica in limbo counts as complete up to an id.

It is the last resort where no other replica has the records. What stands behind the id is put aside, never deleted:
all of it is durable in copies before anything goes, with zeros for what the disk cannot read.
The replica forgets the session that marked it, so that it has no say in where the log ends: it may have lost what
it acknowledged, and is treated like one restored from an old backup.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from waltz_core.base.edge import Level
from waltz_core.storage.effects import Create, Cut, SyncDirectory, SyncFile, Unlink, WriteAt
from waltz_core.storage.log_files import LogFiles, Segment, create_operations, remove_operations
from waltz_core.storage.mending import mend_headers
from waltz_core.storage.procedure import DiskError, Procedure, list_names, write
from waltz_core.storage.reading import locate
from waltz_core.storage.refusals import SE, Refusal
from waltz_core.storage.replica_files import ReplicaFiles, State
from waltz_core.storage.replica_opening import open_again
from waltz_core.storage.scanning import CHUNK, read_around_holes, read_readable
from waltz_core.storage.segment import HEADER_SIZE, decode_header
from waltz_core.storage.segment_opening import wrong_field
from waltz_core.wire.shared import FailureCode

_HOLES_SHOWN = 20  # of a file, in one line


def accept_loss(files: ReplicaFiles, max_id: int) -> Procedure[None]:
    """Let the log end at `max_id`, where damage begins.

    Raises:
        StorageError: the replica is not in limbo, or not in the state that the operator saw.
        DiskError: the disk failed; where it could not take the copies, nothing of the log has gone.
    """
    log, last = _kept(files, max_id)
    place = yield from _end_of(files, log, last, max_id)
    lost = max(files.max_id, *files.faults, max_id) if files.faults else files.max_id
    files.report(
        Level.WARNING,
        f"an operator accepted that its log ends at {max_id}; given up: "
        f"{'what was lost' if lost <= max_id else f'transactions {max_id + 1}..{lost}'}",
    )
    created_ms = files.context.wall_ms
    for note in (yield from mend_headers(files.where, log, created_ms)):  # else it would stay in limbo for them
        files.report(Level.WARNING, note)
    anew = place == HEADER_SIZE and not (yield from _has_header(files, last))
    kept = log.segments.index(last)
    yield from _put_aside(files, {last: 0 if anew else place, **dict.fromkeys(log.segments[kept + 1 :], 0)})
    while log.last is not last:
        gone = log.last
        yield from files.write(*remove_operations(files.where.directory, gone.index_path, gone.data_path))
        log.drop_last()
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
    cut = (
        Cut(last.data_path, place),
        SyncFile(last.data_path),
        Unlink(last.index_path),  # it may be damaged or missing, too; opening makes it from the data
        SyncDirectory(files.where.directory),
    )
    yield from files.write(*(create_operations(files.where, last, created_ms) if anew else cut))
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


def _end_of(files: ReplicaFiles, log: LogFiles, last: Segment, max_id: int) -> Procedure[int]:
    """Offset behind the last record kept, verified.

    Raises:
        Refusal: it is damaged.
    """
    if max_id < last.first_id:
        return HEADER_SIZE
    place = yield from locate(log, last, max_id)
    if place is None:
        raise Refusal(f"{SE}transaction {max_id} of partition {files.partition_id} is damaged", FailureCode.CORRUPT)
    return sum(place)


def _has_header(files: ReplicaFiles, segment: Segment) -> Procedure[bool]:
    """Whether the header of a data file is right."""
    data = yield from read_readable(segment.data_path, 0, HEADER_SIZE)
    return data is not None and wrong_field(decode_header(data), len(data), files.where, segment.first_id) is None


def _put_aside(files: ReplicaFiles, starts: Mapping[Segment, int]) -> Procedure[None]:
    """Copy the ends of data files beside them, durably: an operator may still be able to use the bytes.

    Raises:
        DiskError: nothing is put aside.
    """
    sizes = {entry.name: entry.size for entry in (yield from list_names(files.where.directory))}
    copies: list[str] = []
    try:
        for segment, start in starts.items():
            size = sizes.get(segment.data_path.rpartition("/")[2], 0)
            if start < size:  # else it was cut by an acceptance that a crash ended, which has made its copy
                copies.append(_copy_name(segment.data_path, sizes))
                yield from _copy(files, segment.data_path, copies[-1], start, size)
        yield from files.write(SyncDirectory(files.where.directory))
    except DiskError:
        with suppress(DiskError):  # a disk that is full needs the room
            yield from write(*map(Unlink, copies), SyncDirectory(files.where.directory))
        raise


def _copy_name(data_path: str, present: Mapping[str, int]) -> str:
    """One that is not there yet: what was put aside before stays."""
    copy, number = f"{data_path}.given-up", 1
    while copy.rpartition("/")[2] in present:
        number += 1
        copy = f"{data_path}.{number}.given-up"
    return copy


def _copy(files: ReplicaFiles, data_path: str, copy: str, start: int, size: int) -> Procedure[None]:
    """Copy a file of `size` bytes from an offset on, and tell what of it cannot be read."""
    holes: list[range] = []
    yield from files.write(Create(copy))
    for at in range(start, size, CHUNK):
        piece = yield from read_around_holes(data_path, at, min(CHUNK, size - at), holes)
        yield from files.write(WriteAt(copy, at - start, piece))
    yield from files.write(SyncFile(copy))
    if holes:
        shown = ", ".join(f"{hole.start}..{hole.stop - 1}" for hole in holes[:_HOLES_SHOWN])
        more = ", …" if len(holes) > _HOLES_SHOWN else ""
        where = f"bytes {shown}{more} of {data_path} cannot be read"
        files.report(Level.WARNING, f"{where}; zeros stand for them in {copy}, which begins at {start}")

"""The log start of a replica: the smallest id that it keeps. It only ever rises.

The decision is durable before the first file goes. A crash in between leaves files below the start, which opening
removes: whoever asks for them is refused from the decision on.
"""

from __future__ import annotations

from waltz_core.storage.log_files import LogFiles, create_operations, remove_operations, segment_of
from waltz_core.storage.procedure import Procedure
from waltz_core.storage.refusals import SE, Refusal
from waltz_core.storage.replica_files import ReplicaFiles
from waltz_core.storage.side import LogStart
from waltz_core.wire.shared import FailureCode


def raise_start(files: ReplicaFiles, first_id: int, *, anew: bool) -> Procedure[None]:
    """Give up everything below an id, durably: first the decision, then the files, the oldest first.

    Args:
        files: of the replica.
        first_id: the smallest id that is kept.
        anew: the id may lie behind the end of the log, which then begins there with nothing in it.

    Raises:
        Refusal: records that may not be committed, or that others may need, would be given up.
    """
    log, allowed = files.opened_log, files.entry.current.local_low_water_mark + 1
    if first_id <= files.log_start:
        return
    if first_id > log.max_id + 1 and anew:
        yield from _begin_anew(files, log, first_id)
        return
    if first_id > min(allowed, log.max_id + 1):
        text = (
            f"{SE}partition {files.partition_id}: the log start can be raised up to {allowed}, where the present "
            f"store session began, not to {first_id}; a later session allows more: ask the server, which begins one"
        )
        raise Refusal(text, FailureCode.BELOW_MARK, allowed)
    yield from _write_start(files, LogStart(first_id, anew=False))
    while len(log.segments) > 1 and log.segments[1].first_id <= first_id:
        yield from _remove_first(files, log)
    files.faults = {fault for fault in files.faults if fault >= first_id}


def _begin_anew(files: ReplicaFiles, log: LogFiles, first_id: int) -> Procedure[None]:
    """The other replicas begin behind our end: so do we."""
    yield from _write_start(files, LogStart(first_id, anew=True))
    segment = segment_of(files.where, first_id)
    yield from files.write(*create_operations(files.where, segment, files.context.wall_ms))
    log.add(segment)
    while log.segments[0] is not segment:
        yield from _remove_first(files, log)
    files.faults.clear()
    yield from files.refresh_sides()
    yield from _write_start(files, LogStart(first_id, anew=False))


def _remove_first(files: ReplicaFiles, log: LogFiles) -> Procedure[None]:
    gone = log.segments[0]
    yield from files.write(*remove_operations(files.where.directory, gone.index_path, gone.data_path))
    log.drop_first()


def _write_start(files: ReplicaFiles, start: LogStart) -> Procedure[None]:
    yield from files.write(*files.durable.start_operations(start, files.belongs()))
    files.durable.start = start

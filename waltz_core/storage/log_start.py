"""The log start of a replica: the smallest id that it keeps. It only ever rises.

The decision is durable before the first file goes. A crash in between leaves files below the start, which opening
removes: requests for them are refused from the decision on.
"""

from __future__ import annotations

from waltz_core.storage import side
from waltz_core.storage.log_files import LogFiles, create_operations, remove_operations, segment_of
from waltz_core.storage.procedure import Procedure
from waltz_core.storage.refusals import SE, Refusal
from waltz_core.storage.replica_files import ReplicaFiles
from waltz_core.storage.side import LogStart
from waltz_core.wire.shared import FailureCode


def raise_start(files: ReplicaFiles, first_id: int) -> Procedure[None]:
    """Free everything below an id, durably: first the decision, then the files, the oldest first.

    Args:
        files: of the replica.
        first_id: the smallest id that is kept.

    Raises:
        Refusal: it would free records that may not be committed, or that others may need.
    """
    log, allowed = files.opened_log, files.entry.current.local_low_water_mark + 1
    if first_id <= files.log_start:
        return
    if first_id > min(allowed, log.max_id + 1):
        text = (
            f"{SE}partition {files.partition_id}: the log start can be raised up to {allowed}, where the present "
            f"store session began, not to {first_id}; a later session allows more: ask the server, which begins one"
        )
        raise Refusal(text, FailureCode.BELOW_MARK, allowed)
    if log.max_id < first_id and log.max_id in files.faults:
        # Nothing is kept, and the last record is damaged: the next start could not tell where this log ended.
        yield from _begin_at(files, log, first_id)
        return
    yield from _write_start(files, LogStart(first_id, anew=False))
    while len(log.segments) > 1 and log.segments[1].first_id <= first_id:
        yield from _remove_first(files, log)
    files.faults = {fault for fault in files.faults if fault >= first_id}


def begin_anew(files: ReplicaFiles, first_id: int) -> Procedure[None]:
    """Drop the whole log and begin at an id behind its end, where the other replicas begin.

    Only a server that has seen where those begin may ask for it. Raising the start is another request, so that a
    lagging replica can never be emptied by mistake.

    Raises:
        Refusal: the log is long enough to be continued instead.
    """
    log = files.opened_log
    if first_id <= files.log_start:
        return
    if first_id <= log.max_id + 1:
        text = f"{SE}partition {files.partition_id}: the log ends at {log.max_id}, it cannot begin anew at {first_id}"
        raise Refusal(text, FailureCode.OUT_OF_ORDER, log.max_id)
    yield from _begin_at(files, log, first_id)


def _begin_at(files: ReplicaFiles, log: LogFiles, first_id: int) -> Procedure[None]:
    """Go on in a new file, and remove all others."""
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
    yield from files.create_sides(files.write, (side.START,))
    yield from files.write(*files.durable.start_operations(start, files.belongs()))
    files.durable.start = start

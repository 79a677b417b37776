"""What a replica does for its own repair: find out what is damaged, write good records over it, open again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from waltz_core.base.edge import Level
from waltz_core.base.log import Record
from waltz_core.storage import mending, side
from waltz_core.storage.effects import FaultKind
from waltz_core.storage.evidence import MISSING_MAX
from waltz_core.storage.notes import Range
from waltz_core.storage.procedure import DiskError, Procedure
from waltz_core.storage.replica_files import ReplicaFiles, State
from waltz_core.storage.replica_opening import open_again


def survey(files: ReplicaFiles) -> Procedure[tuple[Range, ...]]:
    """Which records are damaged; what only looked damaged, or can be mended from what is here, is no longer."""
    try:
        if files.state is State.LIMBO:
            notes = yield from mending.mend_headers(files.where, files.log, files.context.wall_ms)
            for note in notes:
                files.report(Level.WARNING, note)
            if notes:
                yield from open_again(files)
        elif files.state is State.STOPPED:
            yield from open_again(files)
        elif files.state is State.OPEN:
            yield from _widen_faults(files)
    except DiskError as fault:
        files.stop(fault)
    serving = files.log is not None and files.state in (State.OPEN, State.LIMBO)
    return tuple(side.ranges_of(files.faults)) if serving else ()


def _widen_faults(files: ReplicaFiles) -> Procedure[None]:
    """Look at the neighbours of what is damaged: rot seldom comes alone, and a run is mended as a whole."""
    log = files.opened_log
    for fault in sorted(files.faults):
        if (yield from mending.is_intact(log, fault)):
            files.faults.discard(fault)  # it could not be read for a while only
    for fault in sorted(files.faults):
        for step in (-1, 1):
            near = fault + step
            while files.log_start <= near <= files.max_id and near not in files.faults:
                if (yield from mending.is_intact(log, near)):
                    break
                files.faults.add(near)
                near += step


def mend(files: ReplicaFiles, records: Sequence[Record], last: int) -> Procedure[tuple[int, str]]:
    """Write good records over damaged ones that end with `last`; how many stand, and what is wrong with the next."""
    count, problem = 0, files.reason
    try:
        if files.log is not None and files.state in (State.OPEN, State.LIMBO):
            created_ms = files.context.wall_ms
            count, problem = yield from mending.mend_run(files.where, files.log, records, last, created_ms)
    except DiskError as fault:
        problem = str(fault)
        if fault.kind is not FaultKind.FULL:
            files.stop(fault)
    files.faults.difference_update(record.transaction_id for record in records[:count])
    if count:
        ids = f"{records[0].transaction_id}..{records[count - 1].transaction_id}"
        files.report(Level.WARNING, f"transactions {ids} repaired")
    return count, problem


def _still_missing(files: ReplicaFiles) -> list[int]:
    """The next records that no data file has, though a later one goes on behind them."""
    missing: list[int] = []
    for segment, following in pairwise([] if files.log is None else files.log.segments):
        missing += range(segment.next_id, min(following.first_id, segment.next_id + MISSING_MAX))
    return missing


def record_repair(files: ReplicaFiles) -> Procedure[None]:
    """All that could be mended was: note what is left, and open again if out of service."""
    try:
        if files.state is State.LIMBO and not files.faults and (missing := _still_missing(files)):
            # All was mended that was told of a gap: the next round goes on there. To open the files for each round
            # would read all that is mended once more.
            files.faults.update(missing)
        elif files.state is State.LIMBO:
            yield from open_again(files)
        elif files.state is State.OPEN:
            yield from files.write_faults()
    except DiskError:
        pass  # the partition has stopped and said so
    files.tell_server()

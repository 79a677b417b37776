"""Opening a replica: at the start of the process, for an assignment, after a repair.

Side files are read first: they say how far the log must reach (`opening.py` judges the log by it), and they hold a
third copy of the control struct for the case that the control file has lost the newest one.
"""

from __future__ import annotations

from waltz_core.base.edge import Level
from waltz_core.base.errors import CorruptionError, StorageError
from waltz_core.storage import control as ctl
from waltz_core.storage import side
from waltz_core.storage.effects import MakeDirectory, SyncDirectory
from waltz_core.storage.evidence import Opened
from waltz_core.storage.opening import Opening
from waltz_core.storage.procedure import DiskError, Procedure, list_names
from waltz_core.storage.reading import read_range
from waltz_core.storage.refusals import SE
from waltz_core.storage.replica_files import ReplicaFiles, State

_RECHECKED_MAX = 1000  # records of one remembered range that are read again


def open_assigned(files: ReplicaFiles) -> Procedure[None]:
    """Open a partition that the control file says is assigned; if anything is wrong, it alone is out of service."""
    try:
        opened = yield from _opened_or_blamed(files)
        yield from _adopt(files, opened)
    except DiskError as fault:
        # The disk failed, which says nothing about the files: no limbo, but opened again later.
        files.stop(fault)


def open_again(files: ReplicaFiles) -> Procedure[None]:
    """Look at the files of an assigned partition once more.

    Raises:
        DiskError: the disk failed; the partition has stopped.
    """
    files.state, files.reason = State.OPENING, ""
    try:
        opened = yield from _opened_or_blamed(files)
        yield from _adopt(files, opened)
    except DiskError as fault:
        files.stop(fault)
        raise


def open_for_assignment(files: ReplicaFiles) -> Procedure[None]:
    """Open, or make, the files of a partition that is being assigned: one not yet ours stays so if they are damaged.

    Raises:
        CorruptionError: they are.
        DiskError: the disk failed.
    """
    was = files.state
    files.state = State.OPENING
    try:
        yield from files.write(MakeDirectory(files.where.directory), SyncDirectory(""))
        opened = yield from _open_files(files, assigned=was is not State.UNASSIGNED)
        if opened.problem is None or was is not State.UNASSIGNED:
            yield from _adopt(files, opened)
    except DiskError as fault:
        if was is State.UNASSIGNED:
            files.state = was
        else:
            files.stop(fault)
        raise
    except StorageError:
        files.state = was
        raise
    if opened.problem is not None:
        files.state = was if was is State.UNASSIGNED else State.LIMBO
        raise CorruptionError(f"{SE}partition {files.partition_id} cannot be opened: {opened.problem}")


def _opened_or_blamed(files: ReplicaFiles) -> Procedure[Opened]:
    """Open the files of an assigned partition.

    Raises:
        DiskError: the disk failed.
    """
    try:
        return (yield from _open_files(files, assigned=True))
    except CorruptionError as error:
        opened = Opened()
        opened.blame(str(error))
        return opened


def _open_files(files: ReplicaFiles, assigned: bool) -> Procedure[Opened]:
    present = yield from list_names(files.where.directory)
    yield from files.durable.load(present)
    yield from files.settle_control()
    yield from _restore_control(files)
    files.raised_fence = max(files.durable.fence.session_id, files.entry.current.session_id)
    if files.control_problem is not None:
        opened = Opened()
        opened.blame(files.control_problem)
        return opened
    if files.log_start and not assigned and not any(one.name.endswith(".seg") for one in present):
        yield from files.durable.forget_start()
    opening = Opening(
        files.where,
        files.entry,
        files.durable.marked_end(files.entry.current),
        present,
        assigned=assigned,
        created_ms=files.context.wall_ms,
        start=files.durable.start,
    )
    return (yield from opening.run())


def _restore_control(files: ReplicaFiles) -> Procedure[None]:
    """Take the control struct's third copy if the control file has lost the newest state."""
    entry = files.entry
    copy = side.newer_copy(entry.current if files.control_problem is None else None, files.durable.fence)
    if copy is None:
        return
    yield from files.write_control((entry.place(), ctl.encode_struct(copy)))
    entry.adopt(copy)
    files.control_problem = None
    files.report(
        Level.WARNING,
        f"{ctl.NAME} had lost its newest state (sequence {copy.sequence}, session {copy.session_id}); restored from "
        f"{side.FENCE}",
    )


def _adopt(files: ReplicaFiles, opened: Opened) -> Procedure[None]:
    """Make the result of an opening the state."""
    files.log = opened.log
    files.faults = set(opened.faults)
    for note in opened.notes:
        files.report(Level.WARNING, note)
    if opened.problem is not None:
        files.state, files.reason = State.LIMBO, opened.problem
        files.context.report(
            Level.ERROR,
            f"partition {files.partition_id} is in limbo: {opened.problem}; its files are left as they are, "
            f"it takes part in nothing until it is repaired. {_next_command(files)}",
        )
        return
    files.state, files.reason = State.OPEN, ""
    yield from _recheck_faults(files)
    if not _sides_are_current(files):
        yield from files.refresh_sides()


def _next_command(files: ReplicaFiles) -> str:
    """What an operator can do about a partition in limbo."""
    here = f"-s THIS_NODE:ADMIN_PORT -p {files.partition_id}"
    if files.log is None:
        return (
            f"Replace the copy: `waltz storage remove-partition {here} --delete-storage-files`, then "
            f"`waltz storage add-partition {here}`"
        )
    return f"A server of ours repairs it by itself; by hand: `waltz storage repair {here}`"


def _sides_are_current(files: ReplicaFiles) -> bool:
    """Whether the side files say already what they would be made to say; of the fence only its content counts."""
    return (
        files.durable.fence == side.Fence(files.raised_fence, files.entry.current)
        and files.durable.mark_beside(files.belongs()) == files.max_id
    )


def _recheck_faults(files: ReplicaFiles) -> Procedure[None]:
    """Read again what was damaged: the partition may have been repaired by other means."""
    for first, last in files.durable.remembered:
        for transaction_id in range(max(files.log_start, first), min(last, files.max_id, first + _RECHECKED_MAX) + 1):
            try:
                records, damaged = yield from read_range(files.opened_log, transaction_id, 1, 1)
            except DiskError:  # as it was found: one sector that cannot be read is one damaged record
                files.faults.add(transaction_id)
                continue
            if damaged is not None and not records:
                files.faults.add(transaction_id)

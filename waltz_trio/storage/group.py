"""What a disk does with effects, free of threads: the order of calls for a group of batches, and the answers.

The driver (`disk.py`) carries these steps out with its threads on a real data directory, the simulator carries out the
same ones on a disk that loses power between them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias

from waltz_core.base.record import record
from waltz_core.storage.effects import (
    DiskBatch,
    DiskBytes,
    DiskDone,
    DiskEvent,
    DiskFailed,
    DiskList,
    DiskListing,
    DiskRead,
    FaultKind,
    Operation,
    SyncDirectory,
    SyncFile,
)
from waltz_trio.base.log import described
from waltz_trio.storage.files import Files, kind_of

Failures: TypeAlias = dict[SyncFile, Exception]
Sync: TypeAlias = SyncFile | SyncDirectory


@record
class SyncEach:
    """Make files durable, in any order or at once; answered by `Failures`."""

    files: tuple[SyncFile, ...]


@record
class SyncWhole:
    """Make everything on the file system durable, these files among it; answered by its error or None."""

    files: tuple[SyncFile, ...]


Step: TypeAlias = Operation | SyncEach | SyncWhole
"""What is to be done next; an operation is answered by its error or None."""


def carry_out(
    group: Sequence[DiskBatch], whole: Callable[[Sequence[SyncFile]], bool]
) -> Generator[Step, Any, list[DiskEvent]]:
    """Write all batches of a group, then sync every file they end with, each once; returns what became of each batch.

    An error of any type is the answer to its batch: the thread that carries the steps out serves every partition.

    Args:
        whole: whether one sync of their file system makes these files durable.
    """
    failures: dict[int, tuple[str, Exception]] = {}  # by ticket: where, and why
    wanted: dict[Sync, list[int]] = {}
    for batch in group:
        body, syncs = _trailing_syncs(batch.operations)
        for operation in body:
            error = yield operation
            if error is not None:
                failures[batch.ticket] = operation.path, error
                break
        else:
            for sync in syncs:
                wanted.setdefault(sync, []).append(batch.ticket)
    unsynced = yield from _sync_all(list(wanted), whole)
    for sync, why in unsynced.items():
        for ticket in wanted[sync]:
            failures.setdefault(ticket, (sync.path, why))
    return [
        failed(batch.ticket, *failures[batch.ticket]) if batch.ticket in failures else DiskDone(batch.ticket)
        for batch in group
    ]


def _sync_all(
    wanted: list[Sync], whole: Callable[[Sequence[SyncFile]], bool]
) -> Generator[Step, Any, dict[Sync, Exception]]:
    """Make files durable, all at once, then directories.

    The order is no promise, as a system may write names and contents when it likes: what must be durable before
    something else is written has its sync between them, in its batch.
    """
    unsynced: dict[Sync, Exception] = {}
    files = tuple([sync for sync in wanted if type(sync) is SyncFile])
    # The error of a whole sync may be another process's: each file is then asked for itself.
    if files and (len(files) == 1 or not whole(files) or (yield SyncWhole(files)) is not None):
        unsynced.update((yield SyncEach(files)))
    for sync in wanted:
        if type(sync) is SyncDirectory:
            error = yield sync
            if error is not None:
                unsynced[sync] = error
    return unsynced


def _trailing_syncs(operations: tuple[Operation, ...]) -> tuple[tuple[Operation, ...], list[Sync]]:
    """What must be carried out in place, and the syncs at the end that may wait for those of other batches."""
    syncs: list[Sync] = []
    for one in reversed(operations):
        if type(one) is SyncFile or type(one) is SyncDirectory:
            syncs.append(one)
        else:
            break
    syncs.reverse()
    return operations[: len(operations) - len(syncs)], syncs


def look(files: Files, effect: DiskRead | DiskList) -> DiskEvent:
    """Read or list."""
    try:
        if isinstance(effect, DiskRead):
            return DiskBytes(effect.ticket, files.read(effect.path, effect.offset, effect.length))
        return DiskListing(effect.ticket, files.entries(effect.path))
    except Exception as error:
        return failed(effect.ticket, effect.path, error)


def failed(ticket: int, path: str, error: Exception) -> DiskFailed:
    """The answer to an effect that ended by an error; `path` is that of the file or directory, in the node's own."""
    if isinstance(error, OSError):
        where = path if path not in ("", ".") else "the data directory"
        return DiskFailed(ticket, kind_of(error), f"{error.strerror or error}: {where}")
    return DiskFailed(ticket, FaultKind.IO, f"an error in this process: {described(error)}")

"""A data directory on a simulated disk: the driver's own files (`waltz_trio/storage/files.py`) over it, and faults.

Carries out the effects of `waltz_core.storage.effects` by the driver's own steps (`waltz_trio/storage/group.py`); what
is simulated is the disk alone: what a crash loses, tears or keeps, full disks, failing syncs.
"""

from __future__ import annotations

import copy
import errno
import random
from collections.abc import Callable, Iterable

from waltz_core.storage.effects import (
    DiskBatch,
    DiskEffect,
    DiskEvent,
    DiskList,
    DiskRead,
    FaultKind,
    Operation,
    SyncFile,
    WriteAt,
)
from waltz_testing.simulation.contents import SECTOR, Sectors
from waltz_testing.simulation.mount import ROOT, Mount
from waltz_testing.simulation.volume import Volume, lose_some, lose_unsynced
from waltz_trio.storage.files import Files
from waltz_trio.storage.group import Failures, Step, SyncEach, SyncWhole, carry_out, failed, look

__all__ = ["SECTOR", "SimDisk", "drive"]

_ERRORS = {FaultKind.FULL: errno.ENOSPC, FaultKind.MISSING: errno.ENOENT, FaultKind.IO: errno.EIO}


class SimDisk:
    """One data directory.

    Attributes:
        fault: called with every operation, read and listing before it is carried out; what it returns, if
            anything, is why that one fails. A failed sync keeps a random part and forgets the rest, as
            operating systems do.
        mount: the calls that the driver makes.
        open_files_max: descriptors that the driver keeps.
        any_order: whether files that are synced at once are synced in a random order.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self.rng = rng or random.Random(0)
        self.fault: Callable[[Operation | DiskRead | DiskList], FaultKind | None] | None = None
        self.open_files_max = 512
        self.any_order = False
        self.volume = Volume(Sectors)
        self.mount = Mount(self.volume)
        self._files: Files | None = None

    @property
    def capacity(self) -> int | None:
        """Bytes of all files together, None for a disk that is never full."""
        return self.mount.capacity

    @capacity.setter
    def capacity(self, size: int | None) -> None:
        self.mount.capacity = size

    # ---- effects ---------------------------------------------------------------------------------

    def open(self) -> Files:
        """The directory as the driver has it open."""
        if self._files is None:
            self._files = Files(ROOT, open_files_max=self.open_files_max, system=self.mount)
        return self._files

    def end_process(self) -> None:
        """The process that had the directory open is gone."""
        self._files = None
        self.mount.forget()

    def perform(self, effect: DiskEffect) -> DiskEvent:
        """Carry out one effect completely."""
        if isinstance(effect, DiskBatch):
            steps, answer = carry_out([effect], lambda files: False), None
            while True:
                try:
                    answer = self.answer(steps.send(answer))
                except StopIteration as end:
                    [event] = end.value
                    assert isinstance(event, DiskEvent)
                    return event
        return self.look(effect)

    def look(self, effect: DiskRead | DiskList) -> DiskEvent:
        """Read or list."""
        kind = None if self.fault is None else self.fault(effect)
        if kind is not None:
            return failed(effect.ticket, effect.path, _error(kind))
        return look(self.open(), effect)

    def answer(self, step: Step) -> Failures | Exception | None:
        """Carry out one step of the driver."""
        if type(step) is SyncEach:
            several = self.any_order and len(step.files) > 1
            ordered = self.rng.sample(step.files, len(step.files)) if several else step.files
            outcomes = {sync: self.answer(sync) for sync in ordered}
            return {sync: outcome for sync, outcome in outcomes.items() if isinstance(outcome, Exception)}
        try:
            if type(step) is SyncWhole:
                self._sync_whole(step)
            else:
                self.apply(step)  # type: ignore[arg-type]  # what is left is an operation
        except OSError as error:
            return error
        return None

    def apply(self, operation: Operation) -> None:
        """Carry out one operation of a batch.

        Raises:
            OSError: it failed; part of it may have happened.
        """
        if self.fault is not None or type(operation) is SyncFile:
            self._fail(operation)
        (self._files or self.open()).apply(operation)

    def _fail(self, operation: Operation) -> None:
        kind = None if self.fault is None else self.fault(operation)
        file = self.volume.files.get(operation.path)
        error = None if kind is None else _error(kind)
        if file is not None and isinstance(operation, SyncFile):
            error, file.untold = error or file.untold, None
            if error is not None:
                file.fail_sync(self.rng)
        elif error is not None and file is not None and isinstance(operation, WriteAt) and operation.data:
            file.write(operation.offset, operation.data[: self.rng.randrange(len(operation.data))])
        if error is not None:
            raise error

    def _sync_whole(self, step: SyncWhole) -> None:
        """It says that something failed; the file that lost something by that says so when it is asked itself.

        Raises:
            OSError: something was not made durable.
        """
        failed = None
        for sync in step.files:
            kind = None if self.fault is None else self.fault(sync)
            if kind is not None:
                failed = _error(kind)
                file = self.volume.files.get(sync.path)
                if file is not None:
                    file.fail_sync(self.rng)
                    file.untold = failed
        if failed is not None:
            raise failed
        self.open().sync_whole()

    # ---- what happens to disks -------------------------------------------------------------------

    def crash(self, rng: random.Random | None = None) -> None:
        """Power failure: what was not synced survives in parts, sector by sector and name by name."""
        self.end_process()
        lose_some(self.volume, rng or self.rng)

    def lose_unsynced(self) -> None:
        """Power failure that leaves exactly what was synced."""
        self.end_process()
        lose_unsynced(self.volume)

    def flip(self, path: str, offset: int, mask: int = 0xFF) -> None:
        """A byte rots."""
        file = self.volume.files[path]
        file.volatile[offset] ^= mask
        if offset < len(file.durable):
            file.durable[offset] ^= mask

    # ---- for tests -------------------------------------------------------------------------------

    def clone(self) -> SimDisk:
        """An independent disk with the same content."""
        twin = SimDisk(copy.deepcopy(self.rng))
        twin.volume = copy.deepcopy(self.volume)
        twin.mount = Mount(twin.volume)
        twin.mount.capacity = self.mount.capacity
        return twin

    def put(self, path: str, data: bytes) -> None:
        """A file that is there, durably."""
        self.end_process()
        self.volume.put(path, Sectors(data))

    def make_directory(self, path: str) -> None:
        """A directory that is there, durably."""
        self.volume.put_directory(path)

    def remove(self, path: str) -> None:
        """A file is gone, durably."""
        self.end_process()
        self.volume.remove(path)

    def remove_directory(self, path: str) -> None:
        """A directory is gone, durably, with all that was in it."""
        for name in [name for name in self.volume.files if name.startswith(f"{path}/")]:
            self.remove(name)
        self.volume.directories.discard(path)
        self.volume.durable_directories.discard(path)

    def content(self, path: str) -> bytes:
        """A file as the process sees it."""
        return bytes(self.volume.files[path].volatile)

    def files(self) -> dict[str, bytes]:
        """All files as the process sees them."""
        return {name: bytes(file.volatile) for name, file in sorted(self.volume.files.items())}

    def durable_names(self, directory: str | None = None, suffix: str = "") -> list[str]:
        """Files whose names survive a power failure; of one directory, with one kind of names, if asked to."""
        known, names = self.volume.durable_directories, self.volume.durable_files
        if directory is None:
            return [n for n in names if n.endswith(suffix) and n.rpartition("/")[0] in known]
        if directory not in known:
            return []
        prefix = f"{directory}/"
        found = [n for n in names if n.startswith(prefix) and n.endswith(suffix)]
        return [n for n in found if n.rfind("/") < len(prefix)]

    def durable(self, path: str) -> bytearray | None:
        """What of a file is certain to survive a power failure; None if it need not be there at all."""
        file = self.volume.durable_files.get(path)
        known = path.rpartition("/")[0] in self.volume.durable_directories
        return file.durable if file is not None and known else None

    def directories(self) -> set[str]:
        """All directories as the process sees them."""
        return self.volume.directories - {""}


def _error(kind: FaultKind) -> OSError:
    return OSError(_ERRORS[kind], kind.value)


def drive(
    machine: object, disk: SimDisk, events: Iterable[object] = (), now: int = 0, limit: int = 100_000
) -> list[object]:
    """Step a storage machine until the disk owes it nothing; everything it emitted except disk effects."""
    waiting: list[object] = list(events)
    emitted: list[object] = []
    for _ in range(limit):
        out: list[object] = []
        machine.step(now, waiting, out)  # type: ignore[attr-defined]
        waiting = []
        for effect in out:
            if isinstance(effect, DiskBatch | DiskRead | DiskList):
                waiting.append(disk.perform(effect))
            else:
                emitted.append(effect)
        if not waiting:
            return emitted
    raise AssertionError("the machine does not come to rest")

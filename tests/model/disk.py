"""A disk with volatile and durable bytes: what a crash loses, tears or keeps, full disks, failing syncs.

Carries out the effects of `waltz_core.storage.effects`. Nothing here knows what the files mean.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable

from waltz_core.storage.effects import (
    Create,
    Cut,
    DiskBatch,
    DiskBytes,
    DiskDone,
    DiskEffect,
    DiskEvent,
    DiskFailed,
    DiskList,
    DiskListing,
    DiskRead,
    FaultKind,
    FileEntry,
    MakeDirectory,
    Operation,
    SyncDirectory,
    SyncFile,
    Unlink,
    WriteAt,
)

SECTOR = 512


class SimDiskError(Exception):
    """One operation failed."""

    def __init__(self, kind: FaultKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class _File:
    """Content as the process sees it, content that a power failure leaves, and which bytes wait to be written."""

    __slots__ = ("dirty", "durable", "sizes", "volatile")

    def __init__(self) -> None:
        self.volatile = bytearray()
        self.durable = bytearray()
        self.dirty: list[tuple[int, int]] = []  # byte ranges changed since the last sync
        self.sizes: list[int] = []  # sizes passed through since the last sync, the durable one first

    def note_size(self) -> None:
        if not self.sizes:
            self.sizes.append(len(self.durable))
        self.sizes.append(len(self.volatile))

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        if end > len(self.volatile):
            start = len(self.volatile)
            self.volatile.extend(bytes(end - start))
            self.note_size()
            offset_dirty = min(start, offset)
        else:
            offset_dirty = offset
        self.volatile[offset:end] = data
        self.dirty.append((offset_dirty, end))

    def cut(self, size: int) -> None:
        if size < len(self.volatile):
            del self.volatile[size:]
            self.note_size()
            self.dirty.append((size, size))

    def sync(self) -> None:
        """Everything that waits becomes durable."""
        self._resize_durable(len(self.volatile))
        for start, end in self.dirty:
            self.durable[start:end] = self.volatile[start:end]
        self._resize_durable(len(self.volatile))
        self.forget()

    def forget(self) -> None:
        """Nothing waits to be written any more, whether it was written or not."""
        self.dirty.clear()
        self.sizes.clear()

    def persist_some(self, rng: random.Random) -> None:
        """Each waiting sector reaches the disk or not, independently; so does the size."""
        if not self.dirty:
            return
        size = len(self.durable)
        if self.sizes:
            low, high = min(self.sizes), max(self.sizes)
            size = rng.choice([*self.sizes, rng.randint(low, high)])
        sectors = sorted({at for start, end in self.dirty for at in range(start // SECTOR, -(-end // SECTOR))})
        self._resize_durable(size)
        for sector in sectors:
            if rng.random() < 0.5:
                start, end = sector * SECTOR, min((sector + 1) * SECTOR, size, len(self.volatile))
                if start < end:
                    self.durable[start:end] = self.volatile[start:end]

    def _resize_durable(self, size: int) -> None:
        if size < len(self.durable):
            del self.durable[size:]
        else:
            self.durable.extend(bytes(size - len(self.durable)))


class SimDisk:
    """One data directory.

    Attributes:
        fault: called with every operation, read and listing before it is carried out; what it returns, if
            anything, is why that one fails. A failed sync keeps a random part and forgets the rest, as
            operating systems do.
        capacity: bytes of all files together, None for a disk that is never full.
    """

    def __init__(self, rng: random.Random | None = None, capacity: int | None = None) -> None:
        self.rng = rng or random.Random(0)
        self.capacity = capacity
        self.fault: Callable[[Operation | DiskRead | DiskList], FaultKind | None] | None = None
        self.syncs = 0
        self._files: dict[str, _File] = {}  # as the process sees them
        self._directories: set[str] = {""}
        self._durable_files: dict[str, _File] = {}  # names that survive a power failure
        self._loose: dict[str, None] = {}  # names that came or went since their directory was synced
        self._durable_directories: set[str] = {""}

    # ---- effects ---------------------------------------------------------------------------------

    def perform(self, effect: DiskEffect) -> DiskEvent:
        """Carry out one effect completely."""
        try:
            match effect:
                case DiskBatch(ticket, operations):
                    for operation in operations:
                        self.apply(operation)
                    return DiskDone(ticket)
                case DiskRead(ticket, path, offset, length):
                    self._fail(effect)
                    file = self._file(path)
                    return DiskBytes(ticket, bytes(file.volatile[offset : offset + length]))
                case DiskList(ticket, path):
                    self._fail(effect)
                    return DiskListing(ticket, self._entries(path))
        except SimDiskError as error:
            return DiskFailed(effect.ticket, error.kind, str(error))

    def apply(self, operation: Operation) -> None:
        """Carry out one operation of a batch.

        Raises:
            SimDiskError: it failed; part of it may have happened.
        """
        self._fail(operation)
        match operation:
            case Create(path):
                self._need_directory(path)
                if path in self._files:
                    self._files[path].cut(0)
                else:
                    self._files[path] = _File()
                    self._loose[path] = None
            case WriteAt(path, offset, data):
                self._write(self._file(path), offset, data)
            case Cut(path, size):
                self._file(path).cut(size)
            case Unlink(path):
                self._files.pop(path, None)
                self._loose[path] = None
            case MakeDirectory(path):
                self._directories.add(path)
            case SyncFile(path):
                self._file(path).sync()
                self.syncs += 1
            case SyncDirectory(path):
                self._sync_directory(path)
                self.syncs += 1

    def _fail(self, effect: Operation | DiskRead | DiskList) -> None:
        kind = None if self.fault is None else self.fault(effect)
        if kind is None:
            return
        if isinstance(effect, SyncFile) and effect.path in self._files:
            file = self._files[effect.path]
            file.persist_some(self.rng)
            file.forget()
        elif isinstance(effect, WriteAt) and effect.path in self._files and effect.data:
            cut = self.rng.randrange(len(effect.data))
            self._files[effect.path].write(effect.offset, effect.data[:cut])
        raise SimDiskError(kind, kind.value)

    def _write(self, file: _File, offset: int, data: bytes) -> None:
        if self.capacity is not None:
            growth = max(0, offset + len(data) - len(file.volatile))
            free = self.capacity - sum(len(one.volatile) for one in self._files.values())
            if growth > free:
                fits = len(data) - (growth - max(0, free))
                if fits > 0:
                    file.write(offset, data[:fits])
                raise SimDiskError(FaultKind.FULL, FaultKind.FULL.value)
        file.write(offset, data)

    def _file(self, path: str) -> _File:
        if path not in self._files:
            raise SimDiskError(FaultKind.MISSING, f"no such file: {path}")
        return self._files[path]

    def _need_directory(self, path: str) -> None:
        directory = path.rpartition("/")[0]
        if directory not in self._directories:
            raise SimDiskError(FaultKind.MISSING, f"no such directory: {directory}")

    def _entries(self, path: str) -> tuple[FileEntry, ...]:
        if path not in self._directories:
            raise SimDiskError(FaultKind.MISSING, f"no such directory: {path}")
        entries = [
            FileEntry(name.rpartition("/")[2], len(file.volatile))
            for name, file in self._files.items()
            if name.rpartition("/")[0] == path
        ]
        entries += [
            FileEntry(name.rpartition("/")[2], 0, True)
            for name in self._directories
            if name and name.rpartition("/")[0] == path
        ]
        return tuple(sorted(entries, key=lambda entry: entry.name))

    def _sync_directory(self, path: str) -> None:
        if path not in self._directories:
            raise SimDiskError(FaultKind.MISSING, f"no such directory: {path}")
        for name in self._names_in(path):
            self._sync_name(name)
        for name in self._directories:
            if name and name.rpartition("/")[0] == path:
                self._durable_directories.add(name)

    def _names_in(self, path: str) -> list[str]:
        return sorted(name for name in self._loose if name.rpartition("/")[0] == path)

    def _sync_name(self, name: str) -> None:
        self._loose.pop(name, None)
        if name in self._files:
            self._durable_files[name] = self._files[name]
        else:
            self._durable_files.pop(name, None)

    # ---- what happens to disks -------------------------------------------------------------------

    def crash(self, rng: random.Random | None = None) -> None:
        """Power failure: what was not synced survives in parts, sector by sector and name by name."""
        rng = rng or self.rng
        for name in sorted(self._directories - self._durable_directories):
            parent = name.rpartition("/")[0]
            if parent in self._durable_directories and rng.random() < 0.5:
                self._durable_directories.add(name)
        for name in sorted(self._loose):
            if self._files.get(name) is not self._durable_files.get(name) and rng.random() < 0.5:
                self._sync_name(name)
        for file in {id(one): one for one in self._durable_files.values()}.values():
            file.persist_some(rng)
        self._restart()

    def lose_unsynced(self) -> None:
        """Power failure that leaves exactly what was synced."""
        self._restart()

    def _restart(self) -> None:
        self._directories = set(self._durable_directories)
        self._durable_files = {
            name: file
            for name, file in self._durable_files.items()
            if name.rpartition("/")[0] in self._durable_directories
        }
        for file in self._durable_files.values():
            file.volatile = bytearray(file.durable)
            file.forget()
        self._files = dict(self._durable_files)
        self._loose = {}

    def flip(self, path: str, offset: int, mask: int = 0xFF) -> None:
        """A byte rots."""
        file = self._files[path]
        file.volatile[offset] ^= mask
        if offset < len(file.durable):
            file.durable[offset] ^= mask

    # ---- for tests -------------------------------------------------------------------------------

    def clone(self) -> SimDisk:
        """An independent disk with the same content."""
        fault, self.fault = self.fault, None
        twin = copy.deepcopy(self)
        self.fault = fault
        return twin

    def put(self, path: str, data: bytes) -> None:
        """A file that is there, durably."""
        directory = path.rpartition("/")[0]
        self.make_directory(directory)
        file = self._files[path] = self._durable_files[path] = _File()
        self._loose.pop(path, None)
        file.volatile = bytearray(data)
        file.durable = bytearray(data)

    def make_directory(self, path: str) -> None:
        """A directory that is there, durably."""
        self._directories.add(path)
        self._durable_directories.add(path)

    def remove(self, path: str) -> None:
        """A file is gone, durably."""
        self._files.pop(path, None)
        self._durable_files.pop(path, None)
        self._loose.pop(path, None)

    def content(self, path: str) -> bytes:
        """A file as the process sees it."""
        return bytes(self._files[path].volatile)

    def files(self) -> dict[str, bytes]:
        """All files as the process sees them."""
        return {name: bytes(file.volatile) for name, file in sorted(self._files.items())}

    def durable_names(self, directory: str | None = None, suffix: str = "") -> list[str]:
        """Files whose names survive a power failure; of one directory, with one kind of names, if asked to."""
        known = self._durable_directories
        if directory is None:
            return [n for n in self._durable_files if n.endswith(suffix) and n.rpartition("/")[0] in known]
        if directory not in known:
            return []
        prefix = f"{directory}/"
        found = [n for n in self._durable_files if n.startswith(prefix) and n.endswith(suffix)]
        return [n for n in found if n.rfind("/") < len(prefix)]

    def durable(self, path: str) -> bytearray | None:
        """What of a file is certain to survive a power failure; None if it need not be there at all."""
        file = self._durable_files.get(path)
        return None if file is None or path.rpartition("/")[0] not in self._durable_directories else file.durable

    def directories(self) -> set[str]:
        """All directories as the process sees them."""
        return self._directories - {""}


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

"""A disk in the simulated world: answers after a while, in the order of submission."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.model.world import SimNode, World
from waltz_core.storage.effects import (
    Create,
    Cut,
    DiskBatch,
    DiskBytes,
    DiskDone,
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


class WorldDisk:
    """Files of one node; they outlive its process."""

    def __init__(self, world: World, node: SimNode) -> None:
        self.world = world
        self.node = node
        self.files: dict[str, bytearray] = {}
        self.directories: set[str] = {""}
        self.latency = (0, 3)
        self._ready_at = 0

    def plugins(self) -> dict[type, Callable[[Any], None]]:
        """Effects this disk carries out."""
        return {DiskBatch: self._batch, DiskRead: self._read, DiskList: self._list}

    def crash(self) -> None:
        """Everything carried out is kept."""

    def _after(self, action: Callable[[], Any]) -> None:
        node_epoch = self.node.machine
        due = max(self._ready_at, self.world.now + self.world.disk_rng.randint(*self.latency))
        self._ready_at = due

        def act() -> None:
            if self.node.machine is node_epoch:
                self.node.post(action())

        self.world.at(due, act)

    def _batch(self, batch: DiskBatch) -> None:
        def act() -> DiskDone | DiskFailed:
            for operation in batch.operations:
                if not self._carry_out(operation):
                    return DiskFailed(batch.ticket, FaultKind.MISSING, f"{operation.path}: no such file")
            return DiskDone(batch.ticket)

        self._after(act)

    def _carry_out(self, operation: Operation) -> bool:
        match operation:
            case Create(path):
                self.files[path] = bytearray()
            case MakeDirectory(path):
                self.directories.add(path)
            case Unlink(path):
                self.files.pop(path, None)
            case WriteAt(path, offset, data):
                if path not in self.files:
                    return False
                file = self.files[path]
                if len(file) < offset:
                    file += bytes(offset - len(file))
                file[offset : offset + len(data)] = data
            case Cut(path, size):
                if path not in self.files:
                    return False
                del self.files[path][size:]
            case SyncFile(path):
                return path in self.files
            case SyncDirectory(path):
                return path in self.directories
        return True

    def _read(self, read: DiskRead) -> None:
        def act() -> DiskBytes | DiskFailed:
            file = self.files.get(read.path)
            if file is None:
                return DiskFailed(read.ticket, FaultKind.MISSING, f"{read.path}: no such file")
            return DiskBytes(read.ticket, bytes(file[read.offset : read.offset + read.length]))

        self._after(act)

    def _list(self, request: DiskList) -> None:
        def act() -> DiskListing | DiskFailed:
            if request.path not in self.directories:
                return DiskFailed(request.ticket, FaultKind.MISSING, f"{request.path}: no such directory")
            prefix = f"{request.path}/" if request.path else ""
            names = {
                path[len(prefix) :]: FileEntry(path[len(prefix) :], len(data))
                for path, data in self.files.items()
                if path.startswith(prefix) and "/" not in path[len(prefix) :]
            }
            names |= {
                path[len(prefix) :]: FileEntry(path[len(prefix) :], 0, True)
                for path in self.directories
                if path.startswith(prefix) and path != request.path and "/" not in path[len(prefix) :]
            }
            return DiskListing(request.ticket, tuple(names[name] for name in sorted(names)))

        self._after(act)

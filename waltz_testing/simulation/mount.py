"""The calls of `waltz_trio.base.durable` on a simulated disk, for one process: descriptors and lock end with it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Generic, TypeVar

from waltz_core.storage.effects import FileEntry
from waltz_testing.simulation.contents import Content
from waltz_testing.simulation.volume import Volume, parent_of
from waltz_trio.base import durable

ROOT = Path()  # the data directory
C = TypeVar("C", bound=Content)


class PowerCut(BaseException):
    """The process ends within a call, before it does anything."""


class Mount(Generic[C]):
    """A `waltz_trio.base.durable.FileSystem`.

    Attributes:
        on_call: called for every call that changed something, with its name, the path, and the offset of a write.
        calls_left: calls that are still carried out, before the process ends; None for all.
        capacity: bytes of all files together, None for a disk that is never full.
        short: where the sizes of short writes are drawn, None for whole writes.
        write_through: everything is durable at once, for processes that do not sync all they should.
        syncs_whole: whether the whole file system can be synced by one call.
    """

    def __init__(self, volume: Volume[C]) -> None:
        self.volume = volume
        self.on_call: Callable[[str, str, int], None] | None = None
        self.calls_left: int | None = None
        self.capacity: int | None = None
        self.short: Random | None = None
        self.write_through = False
        self.syncs_whole = False
        self.syncs = 0
        self._open: dict[int, tuple[C | None, str]] = {}
        self._next = 3
        self._locked: dict[int, str] = {}

    def forget(self) -> None:
        """The process has ended: nothing is open or locked any more."""
        self._open.clear()
        self._locked.clear()

    # ---- the port --------------------------------------------------------------------------------

    def open_file(self, path: Path, flags: int, mode: int = durable.OWNER_ONLY) -> int:
        name = _name(path)
        if flags & os.O_DIRECTORY:
            self.volume.names_in(name)
            return self._descriptor(None, name)
        if flags & os.O_EXCL and name in self.volume.files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if flags & os.O_TRUNC or (flags & os.O_CREAT and name not in self.volume.files):
            self._before()
            file = self.volume.create(name)
            self._did("open_file", name)
        else:
            file = self.volume.file(name)
        return self._descriptor(file, name)

    def open_locked(self, path: Path, size: int) -> int:
        if _name(path) in self._locked.values():
            raise BlockingIOError(errno.EAGAIN, "locked")
        fd = self.open_file(path, os.O_RDWR | os.O_CREAT)
        self._locked[fd] = _name(path)
        return fd

    def close(self, fd: int) -> None:
        self._locked.pop(fd, None)
        del self._open[fd]

    def write_at(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        self._before()
        file, name = self._opened(fd)
        size = len(data)
        if self.short is not None and size > 1 and self.short.random() < 0.02:
            size = self.short.randrange(1, size)
        if self.capacity is not None:
            size = min(size, self._room(file, offset))
            if size <= 0 < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file.write(offset, data if size == len(data) else data[:size])
        self._did("write_at", name, offset)
        return size

    def truncate(self, fd: int, size: int) -> None:
        self._before()
        file, name = self._opened(fd)
        file.resize(size)
        self._did("truncate", name)

    def sync_data(self, fd: int) -> None:
        self._before()
        file, name = self._opened(fd)
        file.sync()
        self.syncs += 1
        self._did("sync_data", name)

    def sync_directory(self, path: Path) -> None:
        self._before()
        self.volume.sync_names(_name(path))
        self.syncs += 1
        self._did("sync_directory", _name(path))

    def sync_file_system(self, directory: Path, call: Callable[[], None]) -> None:
        self._before()
        self.volume.sync_all()
        self.syncs += 1
        self._did("sync_file_system", _name(directory))

    def make_directory(self, path: Path, mode: int = durable.OWNER_ONLY_DIRECTORY) -> None:
        self._before()
        self.volume.make_directory(_name(path))
        self._did("make_directory", _name(path))

    def unlink(self, path: Path) -> None:
        self.volume.file(_name(path))
        self._before()
        self.volume.unlink(_name(path))
        self._did("unlink", _name(path))

    def read_at(self, fd: int, length: int, offset: int) -> bytes:
        if self.short is not None and length > 1 and self.short.random() < 0.02:
            length = self.short.randrange(1, length)
        return self._opened(fd)[0].read(offset, length)

    def size_of(self, fd: int) -> int:
        return self._opened(fd)[0].size

    def device_of(self, fd: int) -> int:
        return 1

    def entries(self, directory: Path) -> list[FileEntry]:
        files, directories = self.volume.names_in(_name(directory))
        found = [FileEntry(name.rpartition("/")[2], self.volume.files[name].size) for name in files]
        return found + [FileEntry(name.rpartition("/")[2], 0, True) for name in directories]

    def whole_sync_of(self, fd: int) -> Callable[[], None] | None:
        return (lambda: None) if self.syncs_whole else None

    # ---- behind it -------------------------------------------------------------------------------

    def _descriptor(self, file: C | None, name: str) -> int:
        self._next += 1
        self._open[self._next] = file, name
        return self._next

    def _opened(self, fd: int) -> tuple[C, str]:
        file, name = self._open[fd]
        assert file is not None, f"{name} is a directory"
        return file, name

    def _room(self, file: C, offset: int) -> int:
        """Bytes that may be written there."""
        assert self.capacity is not None
        free = self.capacity - sum(one.size for one in self.volume.files.values())
        return max(0, file.size - offset) + max(0, free)

    def _before(self) -> None:
        if self.calls_left is not None:
            if self.calls_left <= 0:
                raise PowerCut
            self.calls_left -= 1

    def _did(self, call: str, name: str, offset: int = -1) -> None:
        if self.on_call is not None:
            self.on_call(call, name, offset)
        if self.write_through and not call.startswith("sync"):
            file = self.volume.files.get(name)
            if file is not None:
                file.sync()
                self._did("sync_data", name)
            self.volume.sync_names(parent_of(name))
            self._did("sync_directory", parent_of(name))


def _name(path: Path) -> str:
    name = str(path)
    return "" if name == "." else name

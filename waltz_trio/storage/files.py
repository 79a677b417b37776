"""A data directory on a real file system: its lock, open files, and one operation at a time. Blocking."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from waltz_core.base.errors import ConfigError, CorruptionError
from waltz_core.storage import control
from waltz_core.storage.directory import check_new
from waltz_core.storage.effects import (
    Create,
    Cut,
    FaultKind,
    FileEntry,
    MakeDirectory,
    Operation,
    SyncDirectory,
    SyncFile,
    Unlink,
    WriteAt,
)
from waltz_trio.base import durable
from waltz_trio.base.durable import FileSystem

OPEN_FILES_MAX = 512  # file descriptors kept, of all partitions together
_LOCKED_BYTES = 128  # Java: ControlFile locks the header


class _Open:
    """An open file and how many are using it just now."""

    __slots__ = ("device", "fd", "gone", "users")

    def __init__(self, fd: int, device: int) -> None:
        self.fd = fd
        self.device = device
        self.users = 0
        self.gone = False  # to be closed by its last user


class Files:
    """Carries out operations; `close` releases the lock. Thread-safe as far as reads beside one writer go."""

    def __init__(self, directory: Path, *, open_files_max: int = OPEN_FILES_MAX, system: FileSystem = durable) -> None:
        """Lock the directory.

        Args:
            system: where it is; simulated in tests.

        Raises:
            ConfigError: it is absent, or in use by another process.
        """
        self.directory = directory
        self._system = system
        self._open: OrderedDict[str, _Open] = OrderedDict()  # least recently used first
        self._open_max = open_files_max
        self._told: set[str] = set()  # files that were made or synced here: no error of another process is untold
        self._mutex = threading.Lock()
        # The control file is worked on through the descriptor that holds the lock, never closed before the end.
        self._control = self._opened(_lock(directory, system))
        # Opened before anything is written: what it reports are the errors since.
        self._root = self._opened(system.open_file(directory, os.O_RDONLY | os.O_DIRECTORY))
        self._sync_whole = system.whole_sync_of(self._root.fd)

    def apply(self, operation: Operation) -> None:
        """Carry out one operation.

        Raises:
            OSError: it failed; part of it may have happened.
        """
        path = operation.path
        match operation:
            case WriteAt(offset=offset, data=data):
                file = self._use(path)
                try:
                    self._write(file.fd, data, offset)
                finally:
                    self._done(file)
            case SyncFile():
                file = self._use(path)
                try:
                    self._system.sync_data(file.fd)
                    self._told.add(path)
                finally:
                    self._done(file)
            case Create() if path == control.NAME:
                self._system.truncate(self._control.fd, 0)
            case Create():
                self._forget(path)
                self._system.close(self._system.open_file(self.directory / path, os.O_RDWR | os.O_CREAT | os.O_TRUNC))
                self._told.add(path)
            case Cut(size=size):
                file = self._use(path)
                try:
                    if self._system.size_of(file.fd) > size:
                        self._system.truncate(file.fd, size)
                finally:
                    self._done(file)
            case Unlink():
                self._forget(path)
                with contextlib.suppress(FileNotFoundError):
                    self._system.unlink(self.directory / path)
                self._told.discard(path)
            case MakeDirectory():
                self._system.make_directory(self.directory / path)
            case SyncDirectory():
                self._system.sync_directory(self.directory / path)

    def covers(self, wanted: Sequence[SyncFile]) -> bool:
        """Whether `sync_whole` makes these files durable: it can be relied on here, and they are on its file system.

        The first sync of a file that was there before is its own. That would report an error of earlier writes, which
        `sync_whole` may have reported to a process that has ended, and reports once.
        """
        if self._sync_whole is None:
            return False
        with self._mutex:
            found = [self._control if sync.path == control.NAME else self._open.get(sync.path) for sync in wanted]
            told = self._told.issuperset(sync.path for sync in wanted)
        return told and all(file is not None and file.device == self._root.device for file in found)

    def sync_whole(self) -> None:
        """Make everything durable that any process wrote to the file system before this call.

        Raises:
            OSError: something was not, perhaps nothing of ours.
        """
        assert self._sync_whole is not None
        self._system.sync_file_system(self.directory, self._sync_whole)

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Bytes of a file, fewer at its end.

        Raises:
            OSError: it is missing or cannot be read.
        """
        file = self._use(path)
        try:
            data = self._system.read_at(file.fd, length, offset)
            if len(data) == length or not data:
                return data
            parts = [data]  # the kernel may give less than there is
            got = len(data)
            while got < length and (data := self._system.read_at(file.fd, length - got, offset + got)):
                parts.append(data)
                got += len(data)
            return b"".join(parts)
        finally:
            self._done(file)

    def room(self) -> tuple[int, int]:
        """Bytes of the file system, and how many of them are left for us.

        Raises:
            OSError: it does not say.
        """
        found = os.statvfs(self.directory)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def entries(self, path: str) -> tuple[FileEntry, ...]:
        """Content of a directory, by name.

        Raises:
            OSError: it is missing or cannot be read.
        """
        return tuple(sorted(self._system.entries(self.directory / path), key=lambda entry: entry.name))

    def close(self) -> None:
        """Close every file and release the lock; syncs nothing."""
        with self._mutex:
            for file in self._open.values():
                if file.users:
                    file.gone = True
                else:
                    self._system.close(file.fd)
            self._open.clear()
            if not self._control.gone:
                self._control.gone = True
                self._system.close(self._control.fd)
                self._system.close(self._root.fd)

    def _write(self, fd: int, data: bytes, offset: int) -> None:
        """Write everything at an offset; the operating system may take it in parts."""
        written = self._system.write_at(fd, data, offset)
        while written < len(data):
            written += self._system.write_at(fd, memoryview(data)[written:], offset + written)

    def _opened(self, fd: int) -> _Open:
        return _Open(fd, self._system.device_of(fd))

    def _use(self, path: str) -> _Open:
        """An open file, not closed by others before `_done`."""
        if path == control.NAME:
            return self._control
        with self._mutex:
            file = self._open.get(path)
            if file is None:
                fd = self._system.open_file(self.directory / path, os.O_RDWR)
                file = self._open[path] = self._opened(fd)
                self._shrink()
            else:
                self._open.move_to_end(path)
            file.users += 1
            return file

    def _done(self, file: _Open) -> None:
        if file is not self._control:
            with self._mutex:
                file.users -= 1
                if file.gone and not file.users:
                    self._system.close(file.fd)

    def _shrink(self) -> None:
        while len(self._open) > self._open_max:
            _, one = self._open.popitem(last=False)
            self._retire(one)

    def _forget(self, path: str) -> None:
        with self._mutex:
            one = self._open.pop(path, None)
            if one is not None:
                self._retire(one)

    def _retire(self, file: _Open) -> None:
        if file.users:
            file.gone = True
        else:
            self._system.close(file.fd)


def _lock(directory: Path, system: FileSystem) -> int:
    """Take the lock that 0.13.2 takes too: a POSIX record lock on the header of the control file.

    The control file is made, empty, if it is absent; but not beside directories of partitions.
    """
    path = directory / control.NAME
    try:
        entries = system.entries(directory)
        if all(one.name != control.NAME for one in entries):
            check_new(entries)
    except OSError as error:
        raise ConfigError(f"storage.directory: {directory}: {error.strerror}") from error
    except CorruptionError as error:
        raise ConfigError(f"{directory}: {error}") from error
    try:
        return system.open_locked(path, _LOCKED_BYTES)
    except BlockingIOError as error:
        raise ConfigError(
            f"failed to acquire the lock on {path}: another storage process uses this directory"
        ) from error
    except OSError as error:
        raise ConfigError(f"storage.directory: cannot open and lock {path}: {error.strerror}") from error


def kind_of(error: OSError) -> FaultKind:
    """What an error of the operating system means to the machine."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return FaultKind.FULL
    if error.errno == errno.ENOENT:
        return FaultKind.MISSING
    return FaultKind.IO

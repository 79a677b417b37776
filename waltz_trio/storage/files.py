"""A data directory on a real file system: its lock, open files, and one operation at a time. Blocking."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
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
from waltz_trio import durable
from waltz_trio.storage.syncfs import whole_sync_of

OPEN_FILES_MAX = 512  # file descriptors kept, of all partitions together
_LOCKED_BYTES = 128  # Java: ControlFile locks the header
_IN_USE: set[tuple[int, int]] = set()  # control files locked by this process, which record locks do not exclude


class _Open:
    """An open file and how many are using it just now."""

    __slots__ = ("device", "fd", "gone", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.device = os.fstat(fd).st_dev
        self.users = 0
        self.gone = False  # to be closed by its last user


class Files:
    """Carries out operations; `close` releases the lock. Thread-safe as far as reads beside one writer go."""

    def __init__(self, directory: Path, *, open_files_max: int = OPEN_FILES_MAX) -> None:
        """Lock the directory.

        Raises:
            ConfigError: it is absent, or in use by another process.
        """
        self.directory = directory
        self._open: OrderedDict[str, _Open] = OrderedDict()  # least recently used first
        self._open_max = open_files_max
        self._mutex = threading.Lock()
        fd, self._identity = _lock(directory)
        # Closing any descriptor of a file gives up every record lock that the process has on it, so the
        # control file is worked on through the descriptor that holds the lock, which is never closed before the end.
        self._control = _Open(fd)
        # Opened before anything is written: what it reports are the errors since.
        self._root = _Open(durable.open_file(directory, os.O_RDONLY | os.O_DIRECTORY))
        self._sync_whole = whole_sync_of(self._root.fd)

    def apply(self, operation: Operation) -> None:
        """Carry out one operation.

        Raises:
            OSError: it failed; part of it may have happened.
        """
        path = operation.path
        match operation:
            case WriteAt(offset=offset, data=data):
                with self._file(path) as fd:
                    durable.write_all_at(fd, data, offset)
            case SyncFile():
                with self._file(path) as fd:
                    durable.sync_data(fd)
            case Create() if path == control.NAME:
                durable.truncate(self._control.fd, 0)
            case Create():
                self._forget(path)
                durable.close(durable.open_file(self.directory / path, os.O_RDWR | os.O_CREAT | os.O_TRUNC))
            case Cut(size=size):
                with self._file(path) as fd:
                    if os.fstat(fd).st_size > size:
                        durable.truncate(fd, size)
            case Unlink():
                self._forget(path)
                with contextlib.suppress(FileNotFoundError):
                    durable.unlink(self.directory / path)
            case MakeDirectory():
                durable.make_directory(self.directory / path)
            case SyncDirectory():
                durable.sync_directory(self.directory / path)

    @property
    def syncs_whole(self) -> bool:
        """Whether `sync_whole` can be relied on here."""
        return self._sync_whole is not None

    def covered(self, path: str) -> bool:
        """Whether `sync_whole` makes a file durable: it is open, and on the file system of the directory.

        A file whose descriptor was closed meanwhile is synced for itself: an error of its writes would be told there.
        """
        with self._mutex:
            file = self._control if path == control.NAME else self._open.get(path)
            return file is not None and file.device == self._root.device

    def sync_whole(self) -> None:
        """Make everything durable that was written to the file system before this call, by anybody.

        Raises:
            OSError: something was not, perhaps nothing of ours.
        """
        assert self._sync_whole is not None
        durable.sync_file_system(self.directory, self._sync_whole)

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Bytes of a file, fewer at its end.

        Raises:
            OSError: it is missing or cannot be read.
        """
        with self._file(path) as fd:
            data = os.pread(fd, length, offset)
            if len(data) == length or not data:
                return data
            parts = [data]  # the kernel may give less than there is
            got = len(data)
            while got < length and (data := os.pread(fd, length - got, offset + got)):
                parts.append(data)
                got += len(data)
            return b"".join(parts)

    def room(self) -> tuple[int, int]:
        """Bytes of the file system, and how many of them are left for us.

        Raises:
            OSError: it does not tell.
        """
        found = os.statvfs(self.directory)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def entries(self, path: str) -> tuple[FileEntry, ...]:
        """Content of a directory, by name.

        Raises:
            OSError: it is missing or cannot be read.
        """
        found = []
        with os.scandir(self.directory / path) as names:
            for one in names:
                is_directory = one.is_dir()
                found.append(FileEntry(one.name, 0 if is_directory else one.stat().st_size, is_directory))
        return tuple(sorted(found, key=lambda entry: entry.name))

    def close(self) -> None:
        """Close every file and release the lock; syncs nothing."""
        with self._mutex:
            for one in self._open.values():
                if one.users:
                    one.gone = True
                else:
                    durable.close(one.fd)
            self._open.clear()
            if not self._control.gone:
                self._control.gone = True
                durable.close(self._control.fd)
                durable.close(self._root.fd)
                _IN_USE.discard(self._identity)

    @contextlib.contextmanager
    def _file(self, path: str) -> Iterator[int]:
        """An open descriptor, not closed by others while it is used."""
        if path == control.NAME:
            yield self._control.fd
            return
        with self._mutex:
            one = self._open.get(path)
            if one is None:
                one = self._open[path] = _Open(durable.open_file(self.directory / path, os.O_RDWR))
                self._shrink()
            else:
                self._open.move_to_end(path)
            one.users += 1
        try:
            yield one.fd
        finally:
            with self._mutex:
                one.users -= 1
                if one.gone and not one.users:
                    durable.close(one.fd)

    def _shrink(self) -> None:
        while len(self._open) > self._open_max:
            _, one = self._open.popitem(last=False)
            self._retire(one)

    def _forget(self, path: str) -> None:
        with self._mutex:
            one = self._open.pop(path, None)
            if one is not None:
                self._retire(one)

    @staticmethod
    def _retire(one: _Open) -> None:
        if one.users:
            one.gone = True
        else:
            durable.close(one.fd)


def _lock(directory: Path) -> tuple[int, tuple[int, int]]:
    """Take the lock that 0.13.2 takes too: a POSIX record lock on the header of the control file.

    The control file is made, empty, if it is absent; but not beside directories of partitions.
    """
    path = directory / control.NAME
    if not path.exists():
        try:
            entries = [FileEntry(one.name, 0, one.is_dir()) for one in directory.iterdir()]
            check_new(entries)
        except OSError as error:
            raise ConfigError(f"storage.directory: {directory}: {error.strerror}") from error
        except CorruptionError as error:
            raise ConfigError(f"{directory}: {error}") from error
    try:
        fd = durable.open_file(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise ConfigError(f"storage.directory: cannot open {path}: {error.strerror}") from error
    held = f"failed to acquire the lock on {path}: another storage process uses this directory"
    status = os.fstat(fd)
    identity = status.st_dev, status.st_ino
    if identity in _IN_USE:
        # Closing `fd` would give up the lock of the other user in this process; leaking it does no harm.
        raise ConfigError(held)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCKED_BYTES, 0, os.SEEK_SET)
    except OSError as error:
        durable.close(fd)
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise ConfigError(f"cannot lock {path}: {error.strerror}") from error
        raise ConfigError(held) from error
    _IN_USE.add(identity)
    return fd, identity


def kind_of(error: OSError) -> FaultKind:
    """What an error of the operating system means to the machine."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return FaultKind.FULL
    if error.errno == errno.ENOENT:
        return FaultKind.MISSING
    return FaultKind.IO

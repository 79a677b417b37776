"""The calls by which this process makes bytes durable: the one port between drivers and the file system.

Drivers of storage, journal, znodes and archives call these functions and no others of `os` (a test reads their source).
So tests can record what a driver really asked of the operating system, replay it on a disk that loses power after
every call, and leave out each sync in turn (`tests/driver_crashes`).

What each promises is what Linux promises: a sync of a file makes its data and size durable, not its name; a sync of a
directory makes the names in it durable, not the files.

A data directory (`waltz_trio/storage/files.py`) reaches them as a `FileSystem`, which this module is, so that whole
simulated clusters run the same driver on simulated disks; for that it reads through the port too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from waltz_core.storage.effects import FileEntry
from waltz_trio.base import syncfs

OWNER_ONLY = 0o600  # files hold what applications wrote
OWNER_ONLY_DIRECTORY = 0o700
_FRESH = ".new"  # behind the name of a file until it is whole
_LOCKED: dict[int, tuple[int, int]] = {}  # files locked by this process, which record locks do not exclude


class FileSystem(Protocol):
    """What a data directory asks of the operating system."""

    def open_file(self, path: Path, flags: int, mode: int = OWNER_ONLY) -> int: ...
    def open_locked(self, path: Path, size: int) -> int: ...
    def close(self, fd: int) -> None: ...
    def write_at(self, fd: int, data: bytes | memoryview, offset: int) -> int: ...
    def truncate(self, fd: int, size: int) -> None: ...
    def sync_data(self, fd: int) -> None: ...
    def sync_directory(self, path: Path) -> None: ...
    def sync_file_system(self, directory: Path, call: Callable[[], None]) -> None: ...
    def make_directory(self, path: Path, mode: int = OWNER_ONLY_DIRECTORY) -> None: ...
    def unlink(self, path: Path) -> None: ...
    def read_at(self, fd: int, length: int, offset: int) -> bytes: ...
    def size_of(self, fd: int) -> int: ...
    def device_of(self, fd: int) -> int: ...
    def entries(self, directory: Path) -> list[FileEntry]: ...
    def whole_sync_of(self, fd: int) -> Callable[[], None] | None: ...


def open_file(path: Path, flags: int, mode: int = OWNER_ONLY) -> int:
    """A descriptor that children do not inherit."""
    return os.open(path, flags | os.O_CLOEXEC, mode)


def open_locked(path: Path, size: int) -> int:
    """A descriptor of a file, made if it is absent, with a record lock on its first bytes, as Java takes it.

    Closing any descriptor of a file gives up every record lock that the process has on it, so the file must be worked
    on through this one alone.

    Raises:
        BlockingIOError: another user has the lock, in this process or elsewhere.
    """
    fd = open_file(path, os.O_RDWR | os.O_CREAT)
    status = os.fstat(fd)
    identity = status.st_dev, status.st_ino
    if identity in _LOCKED.values():
        # Closing `fd` would give up the lock of the other user in this process; leaking it does no harm.
        raise BlockingIOError(errno.EAGAIN, "locked in this process")
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, size, 0, os.SEEK_SET)
    except OSError as error:
        close(fd)
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise BlockingIOError(error.errno, error.strerror) from error
        raise
    _LOCKED[fd] = identity
    return fd


def close(fd: int) -> None:
    """Close a descriptor, and give up its lock; makes nothing durable."""
    _LOCKED.pop(fd, None)
    os.close(fd)


def write(fd: int, data: bytes | memoryview) -> int:
    """Write at the descriptor's place; returns how many bytes were taken."""
    return os.write(fd, data)


def write_at(fd: int, data: bytes | memoryview, offset: int) -> int:
    """Write at an offset; returns how many bytes were taken."""
    return os.pwrite(fd, data, offset)


def truncate(fd: int, size: int) -> None:
    """Cut a file, or lengthen it by zeros."""
    os.ftruncate(fd, size)


def sync_data(fd: int) -> None:
    """Make data and size of a file durable."""
    os.fdatasync(fd)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file_system(directory: Path, call: Callable[[], None]) -> None:
    """Make everything durable that any process wrote to the file system of a directory.

    Args:
        call: what `whole_sync_of` gave for it.

    Raises:
        OSError: something was not.
    """
    call()


def make_directory(path: Path, mode: int = OWNER_ONLY_DIRECTORY) -> None:
    """Make one directory, unless it is there."""
    path.mkdir(mode, exist_ok=True)


def rename(source: Path, target: Path) -> None:
    """Give a file another name, in place of what had it."""
    os.replace(source, target)


def link(source: Path, target: Path) -> None:
    """Give a file one more name.

    Raises:
        FileExistsError: something has it.
    """
    os.link(source, target)


def unlink(path: Path) -> None:
    """Take a name away."""
    os.unlink(path)


# ---- what is there -------------------------------------------------------------------------------


def read_at(fd: int, length: int, offset: int) -> bytes:
    """Bytes of a file; the kernel may give fewer than there are."""
    return os.pread(fd, length, offset)


def size_of(fd: int) -> int:
    """Bytes of a file."""
    return os.fstat(fd).st_size


def device_of(fd: int) -> int:
    """Which file system a file is on."""
    return os.fstat(fd).st_dev


def entries(directory: Path) -> list[FileEntry]:
    """Content of a directory, in no order, without what is removed meanwhile."""
    present = []
    with os.scandir(directory) as names:
        for each in names:
            with contextlib.suppress(FileNotFoundError):
                size = 0 if each.is_dir() else each.stat().st_size
                present.append(FileEntry(each.name, size, each.is_dir()))
    return present


def whole_sync_of(fd: int) -> Callable[[], None] | None:
    """A call that makes everything durable that is on the file system of a directory; None where none is reliable."""
    return syncfs.whole_sync_of(fd)


# ---- made of these -------------------------------------------------------------------------------


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write everything at the descriptor's place."""
    rest = memoryview(data)
    while rest:
        rest = rest[write(fd, rest) :]


def replace_file(path: Path, data: bytes, mode: int = OWNER_ONLY) -> None:
    """Make a file hold exactly `data`, durably and as a whole: after a power failure it is the old one or the new one.

    A new file beside it is written and synced, takes the name, and the name is synced.
    """
    fresh = path.with_name(path.name + _FRESH)
    with contextlib.suppress(FileNotFoundError):
        unlink(fresh)  # of a process that was cut short
    fd = open_file(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        write_all(fd, data)
        sync_data(fd)
    finally:
        close(fd)
    rename(fresh, path)
    sync_directory(path.parent)


def reason_of(error: Exception) -> str:
    """What went wrong, for people: of the system's errors the file and the reason, without their number."""
    if not isinstance(error, OSError) or error.strerror is None or error.filename is None:
        return str(error)
    name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else str(error.filename)
    return f"{name.removesuffix(_FRESH)}: {error.strerror}"


def make_directories(path: Path, mode: int = OWNER_ONLY_DIRECTORY) -> None:
    """Make a directory and those above it, durably, as far as they are missing."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        make_directory(one, mode)
        sync_directory(one.parent)

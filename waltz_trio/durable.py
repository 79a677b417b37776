"""The calls by which this process makes bytes durable: the one port between drivers and the file system.

Drivers of storage, journal, znodes and archives call these functions and no others of `os` (a test reads their source).
So tests can record what a driver really asked of the operating system, replay it on a disk that loses power after
every call, and leave out each sync in turn (`tests/driver_crashes`).

What each promises is what Linux promises: a sync of a file makes its data and size durable, not its name; a sync of a
directory makes the names in it durable, not what they stand for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

OWNER_ONLY = 0o600  # files hold what applications wrote
OWNER_ONLY_DIRECTORY = 0o700


def open_file(path: Path, flags: int, mode: int = OWNER_ONLY) -> int:
    """A descriptor that children do not inherit."""
    return os.open(path, flags | os.O_CLOEXEC, mode)


def close(fd: int) -> None:
    """Close a descriptor; makes nothing durable."""
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
    """Make everything durable that was written to the file system of a directory, by anybody.

    Args:
        call: `syncfs`, where it can be relied on (`waltz_trio/storage/syncfs.py`).

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


# ---- made of these -------------------------------------------------------------------------------


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write everything at the descriptor's place."""
    rest = memoryview(data)
    while rest:
        rest = rest[write(fd, rest) :]


def write_all_at(fd: int, data: bytes, offset: int) -> None:
    """Write everything at an offset."""
    written = write_at(fd, data, offset)
    while written < len(data):
        written += write_at(fd, memoryview(data)[written:], offset + written)


def replace_file(path: Path, data: bytes, mode: int = OWNER_ONLY) -> None:
    """Make a file hold exactly `data`, durably and as a whole: after a power failure it is the old one or the new one.

    A new file beside it is written and synced, takes the name, and the name is synced.
    """
    fresh = path.with_name(path.name + ".new")
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


def make_directories(path: Path, mode: int = OWNER_ONLY_DIRECTORY) -> None:
    """Make a directory and those above it, durably, as far as they are missing."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        make_directory(one, mode)
        sync_directory(one.parent)

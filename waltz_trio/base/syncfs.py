"""The system call that makes a whole file system durable, where it can be relied on."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

_EXT4 = 0xEF53
_KERNEL_MIN = 5, 8  # before, syncfs did not report writes that had failed


def whole_sync_of(directory: int) -> Callable[[], None] | None:
    """A call that makes everything on a directory's file system durable; None where that cannot be relied on.

    Only ext4 on Linux 5.8 and later: there it commits the journal, flushes the device and reports failed writes. Other
    file systems may do less (FUSE asks nobody), or have not been looked at.
    """
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        syncfs = libc.syncfs
        release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    except (OSError, AttributeError, ValueError):
        return None
    if os.uname().sysname != "Linux" or release < _KERNEL_MIN or _file_system(libc, directory) != _EXT4:
        return None

    def call() -> None:
        if syncfs(directory) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))

    return call


def _file_system(libc: ctypes.CDLL, directory: int) -> int:
    """The magic number of a file system, -1 if unknown."""
    buffer = ctypes.create_string_buffer(256)  # struct statfs, whose first word it is
    if libc.fstatfs(directory, buffer) != 0:
        return -1
    return int(ctypes.c_long.from_buffer(buffer).value)

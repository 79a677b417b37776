"""Effects of a storage node on its disk, and the answers.

Paths are relative to the data directory, with `/` between parts; "" is the data directory itself.

Contract of every driver (real or simulated):

* Batches are carried out in the order they were submitted, their operations in the order given.
* `DiskDone` means that every operation of the batch was carried out, and that everything its
  `SyncFile` and `SyncDirectory` operations name is durable. Only then.
* The syncs at the *end* of a batch may be put off until the batches behind it have been written, so that
  one sync serves several batches (group commit). A sync with another kind of operation behind it may not.
* `DiskFailed` for a batch means that any part of it may have happened and none of it is known durable.
  Batches behind it are carried out all the same: the machine never has two batches of one file under way.
* Reads may overtake and overlap batches. A machine never reads bytes that a batch under way may change.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

from waltz_core.base.edge import ConnEffect, Reading, Report
from waltz_core.base.record import record
from waltz_core.base.tracing import Traced

# ---- operations of a batch -------------------------------------------------------------------


@record
class Create:
    """Make an empty file; one that exists is emptied."""

    path: str


@record
class WriteAt:
    """Write bytes at an offset, extending the file as needed; the file must exist."""

    path: str
    offset: int
    data: bytes


@record
class Cut:
    """Shorten a file to `size` bytes; a shorter one stays as it is."""

    path: str
    size: int


@record
class Unlink:
    """Remove a file; one that is absent is no error."""

    path: str


@record
class MakeDirectory:
    """Make a directory; one that exists is no error."""

    path: str


@record
class SyncFile:
    """Make content and size of a file durable."""

    path: str


@record
class SyncDirectory:
    """Make the names in a directory durable."""

    path: str


Operation: TypeAlias = Create | WriteAt | Cut | Unlink | MakeDirectory | SyncFile | SyncDirectory

# ---- effects ---------------------------------------------------------------------------------


@record
class DiskBatch:
    """Carry out operations; answered by `DiskDone` or `DiskFailed`."""

    ticket: int
    operations: tuple[Operation, ...]


@record
class DiskRead:
    """Read up to `length` bytes; answered by `DiskBytes` (fewer at the end of the file) or `DiskFailed`."""

    ticket: int
    path: str
    offset: int
    length: int


@record
class DiskList:
    """List a directory; answered by `DiskListing` or `DiskFailed`."""

    ticket: int
    path: str


@record
class StorageReady:
    """The data directory is open: the process may accept connections."""


@record
class StorageFailed:
    """The data directory cannot be used; the process must end with this text."""

    reason: str


@record
class StorageStopped:
    """Everything is on disk after `Stop`; the process may end."""


DiskEffect: TypeAlias = DiskBatch | DiskRead | DiskList
StorageEffect: TypeAlias = (
    ConnEffect | Reading | Report | DiskEffect | StorageReady | StorageFailed | StorageStopped | Traced
)
"""Everything that a storage process wants done."""

# ---- events ----------------------------------------------------------------------------------


class FaultKind(enum.Enum):
    """Kinds of disk failures."""

    FULL = "no space left"  # the only kind after which a partition may continue
    MISSING = "no such file"
    IO = "input/output error"


@record
class DiskDone:
    """A batch was carried out; what it synced is durable."""

    ticket: int


@record
class DiskFailed:
    """A batch, read or listing failed."""

    ticket: int
    kind: FaultKind
    reason: str


@record
class DiskBytes:
    """Answer to `DiskRead`."""

    ticket: int
    data: bytes


@record
class DiskSpace:
    """Room that the file system has left for us; the driver reports it now and then, unasked."""

    free_bytes: int


@record
class FileEntry:
    """One name in a directory; `size` is 0 for a directory."""

    name: str
    size: int
    is_directory: bool = False


@record
class DiskListing:
    """Answer to `DiskList`, sorted by name."""

    ticket: int
    entries: tuple[FileEntry, ...]


@record
class Stop:
    """The process is asked to end: write what is lazily written, then `StorageStopped`."""


DiskEvent: TypeAlias = DiskDone | DiskFailed | DiskBytes | DiskListing

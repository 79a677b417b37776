"""When a lone batch is written and synced by the thread of the event loop itself (docs/adr/0020-syncing-in-place.md).

Handing a batch to the writer thread and its answer back costs two wake-ups of threads, which take longer than the sync
of a fast disk. Meanwhile, however, the event loop stands still: nothing is received, so nothing can share the sync, and
a slow disk would hold up everything else. So it does that only for a small batch that is alone, on a disk that has
been idle for as long as a sync takes, as long as syncs are short.
"""

from __future__ import annotations

from waltz_core.storage.effects import DiskBatch, SyncFile, WriteAt

LONGEST = 0.002  # seconds that other requests may wait for the event loop
_BYTES_MAX = 1 << 12  # of a batch: whoever appends more at a time gains by receiving meanwhile
_FADES = 0.9  # what is left of the slowest sync with each one behind it
_NEWEST = 0.25  # weight of the newest time


class InPlace:
    """What syncs took lately, and since when the disk has been idle. For one thread; times in seconds."""

    __slots__ = ("_idle_since", "_slowest", "_usual")

    def __init__(self) -> None:
        self._slowest = LONGEST  # of the last ones: the first one is not done in place
        self._usual = 0.0
        self._idle_since = 0.0

    def took(self, seconds: float, now: float) -> None:
        """A group was written and synced; the disk is idle."""
        self._slowest = max(seconds, self._slowest * _FADES)
        self._usual += _NEWEST * (seconds - self._usual)
        self._idle_since = now

    def allows(self, now: float) -> bool:
        """Whether a batch that comes now, and is alone, may be carried out in place."""
        return self._slowest < LONGEST and now - self._idle_since >= self._usual


def simple(batch: DiskBatch) -> bool:
    """Whether a batch is a small write and one sync: what an append is, unless it begins a segment."""
    size = syncs = 0
    for operation in batch.operations:
        if type(operation) is WriteAt:
            size += len(operation.data)
        elif type(operation) is SyncFile:
            syncs += 1
        else:
            return False
    return size <= _BYTES_MAX and syncs == 1

"""When a lone batch is written and synced by the thread of the event loop itself (docs/adr/0020-syncing-in-place.md).

Handing a batch to the writer thread and its answer back costs two wake-ups of threads, and the two then take the
interpreter's lock from each other: that is more than the sync of a fast disk. Meanwhile, however, the event loop stands
still, so it does that only for a batch that is alone, not large, and as long as syncs are short.
"""

from __future__ import annotations

from waltz_core.storage.effects import DiskBatch, SyncFile, WriteAt

LONGEST = 0.005  # seconds that other requests may wait for the event loop
USUAL = 0.002  # seconds of a sync at the mean: a loop that stands still most of the time serves nobody else
_BYTES_MAX = 1 << 19  # of a batch: copying more takes as long as a sync
_FADES = 0.9  # what is left of the slowest sync with each one behind it, and of the mean before it


class InPlace:
    """What syncs took lately. For one thread; times in seconds."""

    __slots__ = ("_mean", "_slowest")

    def __init__(self) -> None:
        self._slowest = LONGEST  # of the last ones: the first one is not done in place
        self._mean = 0.0

    def took(self, seconds: float) -> None:
        """A group was written and synced."""
        self._slowest = max(seconds, self._slowest * _FADES)
        self._mean = _FADES * self._mean + (1 - _FADES) * seconds

    def allows(self) -> bool:
        """Whether a batch that is alone may be carried out in place."""
        return self._slowest < LONGEST and self._mean < USUAL


def simple(batch: DiskBatch) -> bool:
    """Whether a batch is a write that is not large and one sync: what an append is, unless it begins a segment."""
    size = syncs = 0
    for operation in batch.operations:
        if type(operation) is WriteAt:
            size += len(operation.data)
        elif type(operation) is SyncFile:
            syncs += 1
        else:
            return False
    return size <= _BYTES_MAX and syncs == 1

"""Reads every record again and again, slowly, so that rot is found while other replicas can still mend it.

waiting ──`ScrubDue`──► a piece is being read ──`Scrubbed`──► waiting, as long as the rate demands
"""

from __future__ import annotations

from collections.abc import Sequence

from waltz_core.storage.context import NodeContext
from waltz_core.storage.notes import Scrubbed, ScrubDue
from waltz_core.storage.replica import StorageReplica

CHUNK_BYTES = 256 << 10  # read at once
CHUNK_COUNT = 2000
_LATER_MS = 1000  # a partition that is busy is looked at again after so long
_DUE = ScrubDue()


class Scrub:
    """Goes through all partitions in turn, one piece at a time, no faster than the configured rate."""

    __slots__ = ("_at", "_context", "_next_id", "passes")

    def __init__(self, context: NodeContext) -> None:
        self.passes = 0  # over all partitions
        self._context = context
        self._at = 0  # partition
        self._next_id = 0

    def begin(self) -> None:
        """The directory is open."""
        if self._context.config.scrub_bytes_per_s > 0:
            self._wait(self._context.config.scrub_first_ms)

    def run(self, replicas: Sequence[StorageReplica]) -> None:
        """The next piece is due."""
        while self._at < len(replicas):
            replica = replicas[self._at]
            if not replica.can_scrub or self._next_id > replica.max_id:
                if self._next_id and self._next_id > replica.max_id:
                    replica.scrub_passed()
                self._at, self._next_id = self._at + 1, 0
                continue
            if not replica.scrub(self._next_id, CHUNK_COUNT, CHUNK_BYTES):
                self._wait(_LATER_MS)
            return
        self._at = self._next_id = 0
        self.passes += 1
        self._wait(self._context.config.scrub_pause_ms)

    def on_scrubbed(self, note: Scrubbed) -> None:
        """A piece was read."""
        self._next_id = note.next_id
        self._wait(max(1, note.size * 1000 // self._context.config.scrub_bytes_per_s))

    def _wait(self, pause_ms: int) -> None:
        self._context.alarms.set(_DUE, self._context.now + pause_ms)

"""Reads every record again and again, slowly, so that rot is found while other replicas can still mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waltz_core.storage.config import StorageConfig
    from waltz_core.storage.replica import StorageReplica

CHUNK_BYTES = 256 << 10  # read at once
CHUNK_COUNT = 2000
_LATER_MS = 1000  # a partition that is busy is looked at again after so long


class Scrub:
    """Goes through all partitions in turn, one piece at a time, no faster than the configured rate."""

    __slots__ = ("_at", "_config", "_due", "_next_id", "_under_way", "passes")

    def __init__(self, config: StorageConfig) -> None:
        self.passes = 0  # over all partitions
        self._config = config
        self._due: int | None = None  # ms; None before the start, or while a piece is being read
        self._at = 0  # partition
        self._next_id = 0
        self._under_way = False

    def deadline(self) -> int | None:
        """When the next piece is due."""
        return self._due

    def begin(self, now: int) -> None:
        """The directory is open."""
        if self._config.scrub_bytes_per_s > 0 and self._due is None and not self._under_way:
            self._due = now + self._config.scrub_first_ms

    def run(self, now: int, replicas: Sequence[StorageReplica], out: list[object]) -> None:
        """Read the next piece if it is due."""
        if self._due is None or now < self._due:
            return
        while self._at < len(replicas):
            replica = replicas[self._at]
            if not replica.can_scrub or self._next_id > replica.max_id:
                if self._next_id and self._next_id > replica.max_id:
                    replica.counters["scrub-passes"] += 1
                self._at, self._next_id = self._at + 1, 0
                continue
            self._due, self._under_way = None, True
            started = replica.scrub(self._next_id, CHUNK_COUNT, CHUNK_BYTES, self._done, out)
            if not started:
                self._due, self._under_way = now + _LATER_MS, False
            return
        self._at = self._next_id = 0
        self.passes += 1
        self._due = now + self._config.scrub_pause_ms

    def _done(self, now: int, next_id: int, size: int) -> None:
        self._under_way = False
        self._next_id = next_id
        self._due = now + max(1, size * 1000 // self._config.scrub_bytes_per_s)

"""When the replica states of a store session are written to ZooKeeper again after a write that did not succeed."""

from __future__ import annotations

from waltz_core.base.contract import Rng
from waltz_core.base.edge import ZkError

_NO_CONNECTION = (ZkError.UNAVAILABLE, ZkError.OUTCOME_UNKNOWN, ZkError.EXPIRED)
"""The process reports these by itself, once for all partitions."""


class StatesWrite:
    """Pauses between attempts, growing up to a limit; and what was reported of them.

    An attempt is a look at what stands there, followed by a write. Only a write that succeeds ends the trouble: where
    reads succeed and writes are refused, the pauses go on growing.
    """

    __slots__ = ("_max_ms", "_min_ms", "_pause_ms", "_rng", "again_at", "trouble")

    def __init__(self, min_ms: int, max_ms: int, rng: Rng) -> None:
        self.again_at: int | None = None  # when to look again
        self.trouble = ""  # why the last attempt failed, as reported
        self._min_ms = min_ms
        self._max_ms = max_ms
        self._rng = rng
        self._pause_ms = 0

    def failed(self, now: int, error: ZkError) -> str:
        """An attempt came to nothing; returns what is new about it for people, empty if nothing is."""
        self._pause_ms = min(max(self._min_ms, self._pause_ms * 2), self._max_ms)
        self.again_at = now + self._pause_ms // 2 + self._rng.randrange(self._pause_ms // 2 + 1)
        if error in _NO_CONNECTION or error.value == self.trouble:
            return ""
        self.trouble = error.value
        return error.value

    def due(self, now: int) -> bool:
        """Whether it is time to look; asked once for each pause."""
        if self.again_at is None or now < self.again_at:
            return False
        self.again_at = None
        return True

    def succeeded(self) -> bool:
        """The states are in ZooKeeper; returns whether a trouble that was reported is over."""
        told = bool(self.trouble)
        self.forget()
        return told

    def forget(self) -> None:
        """The session is over."""
        self.again_at = None
        self.trouble = ""
        self._pause_ms = 0

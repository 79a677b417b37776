"""One znode that a server reads and writes until it has what it wants: the loop that all such writes are.

    read ──▶ write on the version that was read ──▶ done
      ▲        │ the version is another one: somebody else was first
      ├────────┘
      └── pause ◀── any other failure, of either

What is read and what is written is the owner's, which gets here the answer to one question: read again now, or when the
alarm rings? A write whose outcome is unknown counts as a failure: the next read shows what became of it. People hear of
a failure once per reason, and once that it is over (`base/attempts.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from waltz_core.base.attempts import Attempts
from waltz_core.base.edge import Level, Report, ZkError
from waltz_core.base.outbox import Emits


class ZnodeAttempts:
    """Failures of requests about one znode, and the pause after each.

    Args:
        attempts: its pauses and reasons.
        ring: sets the alarm that ends a pause.
        failing, works: for people, what is not done, and what is done again.
    """

    __slots__ = ("_attempts", "_failing", "_out", "_ring", "_works")

    def __init__(
        self, attempts: Attempts, out: Emits[Report], ring: Callable[[int | None], None], *, failing: str, works: str
    ) -> None:
        self._attempts = attempts
        self._out = out
        self._ring = ring
        self._failing = failing
        self._works = works

    def lost(self, now: int, error: ZkError) -> bool:
        """A request was not done; whether somebody else was first, so that reading again needs no pause."""
        if error is ZkError.BAD_VERSION:
            return True
        self.failed(now, error.value, quiet=error.away)
        return False

    def failed(self, now: int, reason: str, *, quiet: bool = False) -> bool:
        """Pause; whether people hear of it."""
        self._ring(self._attempts.pause(now))
        worth_a_line = self._attempts.failed(reason, quiet=quiet)
        if worth_a_line:
            self._out.put(Report(Level.WARNING, f"{self._failing}: {reason}; tried again"))
        return worth_a_line

    def succeeded(self) -> bool:
        """It is done; whether people hear of it, as they had heard of a failure."""
        worth_a_line = self._attempts.succeeded()
        if worth_a_line:
            self._out.put(Report(Level.INFO, self._works))
        return worth_a_line

    def give_up(self) -> None:
        """Nobody wants it any more."""
        self._attempts.succeeded()
        self._ring(None)

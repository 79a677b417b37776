"""Something that fails and is tried again: when, and what people hear of it.

    failed ──▶ pause ──▶ tried again ──▶ failed ──▶ twice the pause, up to a limit ──▶ …
                              └──▶ succeeded: the next pause is the shortest one, and nothing is wrong

Half of each pause is left to chance: what failed together, as everything does that needs one machine, must not come
back together. The log has one line per change of the reason, not one per attempt, and one when it is over; the last
reason stays where it can be asked for. Whether an attempt is worth a line at all is for the owner to say: what another
part of the process reports already is `quiet`.

Connections (`wire/dialer.py`), store sessions and the writes to ZooKeeper all fail in this way.
"""

from __future__ import annotations

from waltz_core.base.contract import Rng


class Pauses:
    """How long to wait before the next attempt."""

    __slots__ = ("_max_ms", "_min_ms", "_pause_ms", "_rng")

    def __init__(self, min_ms: int, max_ms: int, rng: Rng) -> None:
        self._min_ms = min_ms
        self._max_ms = max_ms
        self._rng = rng
        self._pause_ms = 0

    def pause(self, now: int) -> int:
        """When to try again."""
        self._pause_ms = min(max(self._min_ms, 2 * self._pause_ms), self._max_ms)
        return now + self._pause_ms // 2 + self._rng.randrange(self._pause_ms // 2 + 1)

    def hurry(self) -> None:
        """What stood in the way may be gone: the next pause is short."""
        self._pause_ms = 0


class Reasons:
    """Which reason of failures people know."""

    __slots__ = ("_reported",)

    def __init__(self) -> None:
        self._reported = ""

    def failed(self, reason: str, *, quiet: bool = False) -> bool:
        """Whether a failure is worth a line: it has another reason than was reported."""
        if quiet or reason == self._reported:
            return False
        self._reported = reason
        return True

    def succeeded(self) -> bool:
        """It works; whether that is worth a line: a trouble that was reported is over."""
        reported, self._reported = bool(self._reported), ""
        return reported


class Attempts(Pauses):
    """Pauses between attempts, and what people know of their failures."""

    __slots__ = ("_reasons",)

    def __init__(self, min_ms: int, max_ms: int, rng: Rng) -> None:
        super().__init__(min_ms, max_ms, rng)
        self._reasons = Reasons()

    def failed(self, reason: str, *, quiet: bool = False) -> bool:
        """Whether a failure is worth a line: it has another reason than was reported."""
        return self._reasons.failed(reason, quiet=quiet)

    def succeeded(self) -> bool:
        """It works: the next pause is a short one. Whether that is worth a line."""
        self.hurry()
        return self._reasons.succeeded()

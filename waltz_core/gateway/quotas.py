"""What callers may have under way: appends in all and per caller, and their bytes.

An append counts until its outcome is known, also when its caller has long gone: it is what the gateway holds of it that
is bounded, not who still waits. A caller with too much of its own under way gets 429; if the gateway is full, 503.
Of the bytes a caller with several appends under way may hold as many as he leaves free: nobody fills the gateway.
"""

from __future__ import annotations

from waltz_core.base.record import record
from waltz_core.gateway.problems import Outcome, Problem


@record
class Limits:
    """Of one gateway; sizes in bytes."""

    appends_max: int = 1000
    appends_per_caller: int = 100
    bytes_max: int = 64 << 20


class Quotas:
    """Counts what is under way."""

    __slots__ = ("_by_caller", "_bytes_of", "_limits", "appends", "size")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_caller: dict[str, int] = {}
        self._bytes_of: dict[str, int] = {}  # of the same callers
        self.appends = 0
        self.size = 0

    def take(self, who: str, size: int) -> Problem | None:
        """Count an append, or say why it must wait; what was taken is given back."""
        limits = self._limits
        if self._by_caller.get(who, 0) >= limits.appends_per_caller:
            return Problem(
                429,
                "too-many-appends",
                f"{limits.appends_per_caller} appends of this caller are under way already",
                Outcome.REFUSED,
                retry_after=1,
            )
        if self.appends >= limits.appends_max or (self.appends and self.size + size > limits.bytes_max):
            return Problem(503, "full", "the gateway has as much under way as it may", Outcome.REFUSED, retry_after=1)
        free, mine = limits.bytes_max - self.size - size, self._bytes_of.get(who, 0)
        if mine and mine + size > free:
            return Problem(
                429,
                "too-many-appends",
                f"appends of this caller under way hold {mine} bytes already, as many as may be beside others",
                Outcome.REFUSED,
                retry_after=1,
            )
        self._by_caller[who] = self._by_caller.get(who, 0) + 1
        self._bytes_of[who] = mine + size
        self.appends += 1
        self.size += size
        return None

    def give_back(self, who: str, size: int) -> None:
        """An append has its outcome."""
        self.appends -= 1
        self.size -= size
        self._by_caller[who] -= 1
        self._bytes_of[who] -= size
        if not self._by_caller[who]:
            del self._by_caller[who], self._bytes_of[who]

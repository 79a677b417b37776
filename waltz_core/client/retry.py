"""How an application tries again: pauses and limits, as a value."""

from __future__ import annotations

import math
from numbers import Real
from typing import Protocol

from waltz_core.base.record import record


class Chance(Protocol):
    """The randomness that a driver injects: what a pause uses of `random.Random`."""

    def random(self) -> float:
        """From 0 up to, but not including, 1."""


NEVER = 10**12
"""Seconds that nobody waits for: a longer time is cut, or none at all, and each fits a clock."""

_BOUNDS = (
    ("attempts", 1, math.inf),
    ("base", 0, math.inf),
    ("factor", 1, 1000),
    ("cap", 0, math.inf),
    ("jitter", 0, 1),
    ("give_up_after", 0, math.inf),
)


@record
class Retry:
    """How a submit tries again after losses and database errors; conflicts wait for the feed instead.

    Times in seconds. `delay` is pure: the generator is passed in.
    """

    attempts: float = math.inf  # tries at most: appends sent, conflicts included, and states that could not be read
    base: float = 0.01  # first pause
    factor: float = 2.0
    cap: float = 5.0  # longest pause
    jitter: float = 0.5  # share of a pause that is left to chance
    give_up_after: float = math.inf  # no attempt starts later than this after the first

    def __attrs_post_init__(self) -> None:
        """See that all of them are limits: one that cannot be compared would end everybody's submits, not its own.

        Raises:
            TypeError: one is no number.
            ValueError: one is outside its bounds.
        """
        for name, least, most in _BOUNDS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(
                    f"Retry: {name} is a number, found {value!r} ({type(value).__name__}); leave it out for no limit"
                )
            if not least <= float(value) <= most:
                bounds = f"at least {least}" if most == math.inf else f"from {least} to {most}"
                raise ValueError(f"Retry: {name} is {bounds}, not {value!r}")
        if self.base == self.cap == math.inf:
            raise ValueError("Retry: base and cap are both infinite, so that no pause would end")

    def delay(self, attempt: int, rng: Chance) -> float:
        """The pause before attempt number `attempt` + 1."""
        whole = min(self.cap, self.base * self.factor ** min(attempt - 1, 64), NEVER)
        return whole * (1 - self.jitter * rng.random())


VIEW_RETRY = Retry(base=0.01, cap=5.0)
"""Pauses before the view is tried again; it is tried for ever."""


class ViewTries:
    """The tries of one reading of a view: when there is another, and how many seconds before it; None = there is none.

    Attributes:
        count: tries that are to be repeated.
    """

    __slots__ = ("_rng", "count")

    def __init__(self, rng: Chance) -> None:
        self._rng = rng
        self.count = 0

    def failed(self, *, transient: bool) -> float | None:
        """The view gave an error, of a kind that passes or not."""
        return self._again() if transient else None

    def shown(self, mark: int, wanted: int) -> float | None:
        """The view showed a state with `mark`, where at least `wanted` has been applied.

        A database may answer from a copy of itself that lags: such a state is no answer, however often it comes.
        """
        return self._again() if mark < wanted else None

    def _again(self) -> float:
        self.count += 1
        return VIEW_RETRY.delay(self.count, self._rng)

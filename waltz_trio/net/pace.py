"""How many requests a port answers in a second, whoever asks; how often it looks at what comes in drops."""

from __future__ import annotations

import trio

_FIRST_PAUSE = 0.001
_LONGEST_PAUSE = 0.25


class Drops:
    """The pauses of who waits for the rest of something small: bytes gather meanwhile, and wake nobody one by one.

    What comes in one piece meets no pause, and what comes in two a millisecond; all together are shorter than what it
    took so far. Peers that send a byte at a time on many connections else keep a process busy.
    """

    def __init__(self) -> None:
        self._pause = _FIRST_PAUSE

    async def gather(self) -> None:
        """Let some more arrive."""
        await trio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)


class Pace:
    """A token bucket: turns are given in the order in which they were asked for, a burst of them at once."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._left = float(burst)
        self._at = 0.0
        self._line = trio.Lock()  # who waits for a turn, first come, first served

    async def turn(self) -> bool:
        """Wait until it is one's turn; whether that took time."""
        waited = self._line.locked()
        if not waited:
            self._refill()
            if self._left >= 1:  # without the line, in which even who need not wait lets others run and seem to wait
                self._left -= 1
                return False
        async with self._line:
            self._refill()
            if self._left < 1:
                waited = True
                await trio.sleep((1 - self._left) / self._rate)
                # What fractions add up to may be a hair less than a whole turn, for which no clock moves on.
                self._left, self._at = 1.0, trio.current_time()
            self._left -= 1
        return waited

    def _refill(self) -> None:
        now = trio.current_time()
        self._left = min(float(self._burst), self._left + (now - self._at) * self._rate)
        self._at = now

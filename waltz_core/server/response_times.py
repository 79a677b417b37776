"""How long appends take from the lock check to the commit."""

from __future__ import annotations

from collections import deque

_EXACT = 100  # ms, below which all digits are kept


class ResponseTimes:
    """Counts transactions by the milliseconds they took, exactly up to 100 ms, with two digits above.

    What a later session's recovery commits is not counted.
    """

    __slots__ = ("_launched", "counts")

    def __init__(self) -> None:
        self._launched: deque[tuple[int, int]] = deque()  # last id of a batch in flight, and when it was launched
        self.counts: dict[int, int] = {}  # milliseconds → transactions

    def launched(self, now: int, last: int) -> None:
        """A batch that ends with the id `last` goes out."""
        self._launched.append((last, now))

    def committed(self, now: int, last: int, count: int) -> None:
        """The oldest batch, or a first part of it that ends with `last`, is committed."""
        if not self._launched:
            return
        end, at = self._launched[0]
        if last >= end:
            self._launched.popleft()
        took = now - at
        if took >= _EXACT:
            took = _two_digits(took)
        self.counts[took] = self.counts.get(took, 0) + count

    def forget(self) -> None:
        """The session ended: what is in flight is not judged by it."""
        self._launched.clear()


def _two_digits(milliseconds: int) -> int:
    step = 1
    while milliseconds // step >= _EXACT:
        step *= 10
    return milliseconds // step * step

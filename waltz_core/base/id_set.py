"""Sets of ids, as ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class IdSet:
    """Ids, most of them consecutive: what is done to a range costs the same whether it has one id or a thousand.

    The methods are those of `set`, with a range of step 1 where a set takes any ids.
    """

    __slots__ = ("_count", "_starts", "_stops")

    def __init__(self) -> None:
        self._count = 0
        self._starts: list[int] = []  # of ranges that neither overlap nor touch, ascending
        self._stops: list[int] = []

    def __len__(self) -> int:
        return self._count

    def __contains__(self, one: int) -> bool:
        at = bisect_right(self._starts, one) - 1
        return at >= 0 and one < self._stops[at]

    def ranges(self) -> Iterator[range]:
        """The ids, ascending, consecutive ones together."""
        yield from map(range, self._starts, self._stops)

    def issuperset(self, ids: range) -> bool:
        """All of them are in it."""
        at = bisect_right(self._starts, ids.start) - 1
        return not ids or (at >= 0 and ids.stop <= self._stops[at])

    def isdisjoint(self, ids: range) -> bool:
        """None of them is in it."""
        at = bisect_right(self._stops, ids.start)
        return not ids or at == len(self._starts) or ids.stop <= self._starts[at]

    def update(self, ids: range) -> None:
        """Add them."""
        if not ids:
            return
        first, end = bisect_left(self._stops, ids.start), bisect_right(self._starts, ids.stop)
        if first < end:  # overlaps or touches these
            ids = range(min(ids.start, self._starts[first]), max(ids.stop, self._stops[end - 1]))
        self._replace(first, end, (ids,))

    def difference_update(self, ids: range) -> None:
        """Remove those of them that are in it."""
        first, end = bisect_right(self._stops, ids.start), bisect_left(self._starts, ids.stop)
        if not ids or first >= end:
            return
        before, behind = range(self._starts[first], ids.start), range(ids.stop, self._stops[end - 1])
        self._replace(first, end, [each for each in (before, behind) if each])

    def discard(self, one: int) -> None:
        """Remove this one, if it is in it."""
        self.difference_update(range(one, one + 1))

    def clear(self) -> None:
        """Remove all."""
        self._replace(0, len(self._starts), ())

    def _replace(self, first: int, end: int, by: tuple[range, ...] | list[range]) -> None:
        self._count += sum(map(len, by)) - sum(self._stops[first:end]) + sum(self._starts[first:end])
        self._starts[first:end] = [each.start for each in by]
        self._stops[first:end] = [each.stop for each in by]

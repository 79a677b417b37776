"""Which locks appends are refused for most, in bounded memory.

The space-saving algorithm: a table of fixed size, and a key that has no place takes over the smallest count with its
place. A key with more than 1/size of all refusals is always in the table; counts may be too high, never too low.
"""

from __future__ import annotations

_PLACES = 64


class HotLocks:
    """Counts refusals by lock hash."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def refused(self, lock_hash: int) -> None:
        """An append was refused for this lock."""
        counts = self._counts
        if lock_hash in counts:
            counts[lock_hash] += 1
        elif len(counts) < _PLACES:
            counts[lock_hash] = 1
        else:
            coldest = min(counts, key=counts.__getitem__)
            counts[lock_hash] = counts.pop(coldest) + 1

    def hottest(self, count: int) -> tuple[tuple[int, int], ...]:
        """(lock hash, refusals), the most refused first."""
        return tuple(sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))[:count])

"""Payloads that a feed reads ahead of its loop, kept in the pieces in which they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class ReadAhead:
    """Payloads of the ids from `next` up to `end`: here, passed over (None), or on their way.

    Each id is asked for once, so the pieces do not overlap. A piece is known by the id of its first payload.
    """

    __slots__ = ("_at", "_current", "_missing", "_pieces", "end", "next")

    def __init__(self) -> None:
        self.next = self.end = 0
        self._current: Sequence[bytes | None] = ()  # the piece that has the payload of `next`, from `_at` on
        self._at = 0
        self._pieces: dict[int, Sequence[bytes | None]] = {}
        self._missing: dict[int, int] = {}  # first id of what is on its way → id behind the last one

    @property
    def room_taken(self) -> int:
        """Payloads here, passed over, or on their way."""
        return self.end - self.next

    @property
    def ready(self) -> bool:
        """What there is of the payload of `next` is here."""
        return self._at < len(self._current)

    def begin(self, first: int) -> None:
        """The feed begins with this id; nothing was asked for yet."""
        self.next = self.end = first

    def ask(self, count: int) -> range:
        """The next `count` ids are being asked for."""
        ids = range(self.end, self.end + count)
        self._missing[ids.start] = self.end = ids.stop
        return ids

    def pass_over(self, count: int) -> None:
        """The payloads of the next `count` ids are not wanted."""
        self._pieces[self.end] = (None,) * count
        self.end += count
        self._turn()

    def arrived(self, first: int, payloads: Sequence[bytes]) -> None:
        """Payloads of `first` and the ids behind it are here; those that nobody asked for here are dropped."""
        missing, stop = self._missing, first + len(payloads)
        awaited = missing.get(first, first)
        if awaited >= stop:
            self._keep(first, stop, awaited, payloads)
        else:
            for begin, end in [each for each in missing.items() if each[0] < stop and first < each[1]]:
                low, high = max(begin, first), min(end, stop)
                if begin < low:
                    missing[begin] = low
                self._keep(low, high, end, payloads[low - first : high - first])
        self._turn()

    def _keep(self, first: int, stop: int, awaited: int, payloads: Sequence[bytes]) -> None:
        """A piece from `first` on is here, and what is from `stop` to `awaited` is still on its way."""
        self._missing.pop(first, None)
        if stop < awaited:
            self._missing[stop] = awaited
        if payloads:
            self._pieces[first] = payloads

    def _turn(self) -> None:
        if self._at == len(self._current):
            self._current, self._at = self._pieces.pop(self.next, ()), 0

    def peek(self, count: int) -> Sequence[bytes | None]:
        """Payloads of `next` and some ids behind it that are here, at most `count`; of passed over ones, None."""
        current, at = self._current, self._at
        return current if not at and len(current) <= count else current[at : at + count]

    def take(self, count: int) -> None:
        """As many of the payloads that `peek` has shown are handed out."""
        self._at += count
        self.next += count
        self._turn()

    def missing(self) -> Iterator[int]:
        """The ids whose payloads are on their way."""
        for first, end in self._missing.items():
            yield from range(first, end)

    def waits_for(self, transaction_id: int) -> bool:
        """The payload of this id is on its way."""
        return any(first <= transaction_id < end for first, end in self._missing.items())

"""Which of many machines is due first, at the cost of those that something happened to.

Each of them says itself when it is due; it is asked again only when it was touched, or when its turn seems to have
come. That is right as long as the time of one that nothing happens to moves later only: a connection on which something
arrived is known to live for longer, and so is whoever waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from waltz_core.base.alarms import Alarms

T = TypeVar("T", bound=Hashable)


class Dues(Generic[T]):
    """The times of machines, by what they say of themselves."""

    __slots__ = ("_alarms", "_of", "_touched")

    def __init__(self, of: Callable[[T], int | None]) -> None:
        self._of = of
        self._alarms: Alarms[T] = Alarms()
        self._touched: dict[T, None] = {}

    def touch(self, machine: T) -> None:
        """Its time may be an earlier one now."""
        self._touched[machine] = None

    def next(self) -> int | None:
        """The first time, exactly."""
        if self._touched:
            for machine in self._touched:
                self._alarms.set(machine, self._of(machine))
            self._touched.clear()
        while (first := self._alarms.first()) is not None:
            at = self._of(first)
            if at == self._alarms.at(first):
                return at
            self._alarms.set(first, at)
        return None

    def due(self, now: int) -> list[T]:
        """Those whose time has come; they count as touched."""
        machines: list[T] = []
        while (at := self.next()) is not None and at <= now:
            first = self._alarms.first()
            assert first is not None
            self._alarms.set(first, None)
            machines.append(first)
        for machine in machines:
            self.touch(machine)
        return machines

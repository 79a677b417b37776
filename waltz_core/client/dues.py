"""Which of many machines is due first, at the cost of those that something happened to.

Each of them says itself when it is due; it is asked again only when it was touched, or when its turn seems to have
come. That is right as long as the time of one that nothing happens to moves later only: a connection on which something
arrived is known to live for longer, and so is whoever waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

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


class Timed(Hashable, Protocol):
    """What a client has many of: connections, partitions, readers."""

    def deadline(self) -> int | None:
        """When it has something to do."""

    def hurry_at(self) -> int | None:
        """When others are to be asked who serves a partition; None: what is known will do."""


class Schedule:
    """When a client must be stepped, and since when it should ask others for the map of the cluster."""

    __slots__ = ("_dues", "_hurries", "_touched")

    def __init__(self) -> None:
        self._dues: Dues[Timed] = Dues(lambda machine: machine.deadline())
        self._hurries: Dues[Timed] = Dues(lambda machine: machine.hurry_at())
        self._touched: dict[Timed, None] = {}  # since they were asked last

    def touch(self, machine: Timed) -> None:
        """Something happened to it: it may be due earlier now."""
        self._touched[machine] = None

    def next(self) -> int | None:
        """When the first of them is due."""
        self._settle()
        return self._dues.next()

    def due(self, now: int) -> list[Timed]:
        """Those that are due."""
        self._settle()
        return self._dues.due(now)

    def hurry_at(self) -> int | None:
        """When the first of them wants others to be asked."""
        self._settle()
        return self._hurries.next()

    def _settle(self) -> None:
        for machine in self._touched:
            self._dues.touch(machine)
            self._hurries.touch(machine)
        self._touched.clear()

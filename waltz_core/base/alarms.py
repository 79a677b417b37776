"""When a process must be stepped although nothing arrives: one heap of due times.

A machine has one alarm per purpose, sets it, moves it and cancels it; the process asks for the next due
time and hands out what is due, by `match` on the key. Setting and moving cost the logarithm of the number
of alarms, looking costs nothing, so thousands of idle connections and partitions are free.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)

_SURPLUS = 64  # entries that may be out of date before they are cleared away, beyond as many as are set


class SetsAlarms(Protocol[K_contra]):
    """The setting half, as a machine inside a process has it."""

    def set(self, key: K_contra, at: int | None, /) -> None:
        """Ring at `at` (milliseconds) instead of when it was to ring before; None cancels."""


class Alarms(Generic[K]):
    """Due times by key; each key has one at most."""

    __slots__ = ("_at", "_count", "_heap")

    def __init__(self) -> None:
        self._at: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []  # due, order of setting, key; some are out of date
        self._count = 0

    def __len__(self) -> int:
        return len(self._at)

    def at(self, key: K) -> int | None:
        """When this one is due."""
        return self._at.get(key)

    def set(self, key: K, at: int | None, /) -> None:
        """Ring at `at` (milliseconds) instead of when it was to ring before; None cancels."""
        if at == self._at.get(key):
            return
        if at is None:
            del self._at[key]
            return
        self._at[key] = at
        self._count += 1
        heappush(self._heap, (at, self._count, key))
        if len(self._heap) > 2 * len(self._at) + _SURPLUS:
            self._heap = [entry for entry in self._heap if self._at.get(entry[2]) == entry[0]]
            heapify(self._heap)

    def next(self) -> int | None:
        """The first due time; None if nothing is set."""
        heap, set_at = self._heap, self._at
        # As many entries as keys: none is out of date, and none need be looked up.
        while len(heap) > len(set_at) and set_at.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: int) -> list[K]:
        """Keys that are due and so no longer set: the longest overdue first, equal times in the order of setting."""
        keys: list[K] = []
        heap = self._heap
        if not heap or heap[0][0] > now:  # nothing is due, also of what is out of date
            return keys
        while (at := self.next()) is not None and at <= now:
            key = heappop(self._heap)[2]
            del self._at[key]
            keys.append(key)
        return keys

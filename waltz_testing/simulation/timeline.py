"""The time of a simulated world: one heap of calls, random streams, and a fingerprint of all that happens.

Time is an integer of milliseconds. Each kind of chance has its own random stream, so that changing one does not
reshuffle the others.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random


class Timeline:
    """The clock and the heap; everything that happens is a call scheduled here."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 0
        self.net_rng = Random(f"{seed}/net")
        self.disk_rng = Random(f"{seed}/disk")
        self.zk_rng = Random(f"{seed}/zk")
        self.load_rng = Random(f"{seed}/load")
        self.fault_rng = Random(f"{seed}/fault")
        self.log: list[str] = []
        self.verbose = False
        self.outside = False  # something was handed to a task outside this heap
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def at(self, time: int, action: Callable[[], None]) -> None:
        """Do `action` at `time`; actions of one moment keep their order."""
        self._order = order = self._order + 1
        now = self.now
        heappush(self._heap, (time if time > now else now, order, action))

    def after(self, delay: int, action: Callable[[], None]) -> None:
        """Do `action` in `delay` ms."""
        self.at(self.now + delay, action)

    def run(self, until: int) -> None:
        """Let time pass up to `until`."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, action = heappop(heap)
            action()
        self.now = max(self.now, until)

    def run_to_outside(self, until: float) -> int | None:
        """Let time pass up to `until`, or to the end of the first millisecond that hands something outside.

        Returns:
            The time then; None if nothing would ever happen.
        """
        heap, self.outside = self._heap, False
        while heap and heap[0][0] <= until and not (self.outside and heap[0][0] > self.now):
            self.now, _, action = heappop(heap)
            action()
        if not self.outside:
            if until == math.inf:
                return None
            self.now = max(self.now, int(until))
        return self.now

    def run_while(self, condition: Callable[[], bool], limit: int, every: int = 0) -> bool:
        """Let time pass while `condition` holds, at most `limit` ms; returns whether it ended by itself.

        The condition is looked at before each event, or only every so many ms.
        """
        end = self.now + limit
        heap = self._heap
        while condition():
            if every and self.now < end:
                self.run(min(self.now + every, end))
                continue
            if not heap or heap[0][0] > end:
                self.now = end
                return False
            self.now, _, action = heappop(heap)
            action()
        return True

    def trace(self, text: str) -> None:
        """One line of what happened; all lines make the digest."""
        line = f"{self.now:>8} {text}"
        self._digest.update(line.encode())
        if self.verbose:
            self.log.append(line)

    def digest(self) -> str:
        """Fingerprint of everything traced so far."""
        return self._digest.hexdigest()

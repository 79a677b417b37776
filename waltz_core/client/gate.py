"""First come, first served among the submits of one process that met one of the same locks.

Without it, every submit that waits for a lock decides again as soon as the lock's last holder is applied, one of them
wins, and all others have decided for nothing. Whoever joins enters the queue of each of its locks in one step, so the
queues agree on the order of any two, and nobody waits in a circle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Gate(Generic[T]):
    """A queue per lock hash; whoever is at the head of all of its queues may pass."""

    __slots__ = ("_hashes", "_queues", "waiting")

    def __init__(self) -> None:
        self._queues: dict[int, deque[T]] = {}
        self._hashes: dict[T, tuple[int, ...]] = {}
        self.waiting: set[T] = set()  # members that are not at the head everywhere

    def join(self, member: T, hashes: Iterable[int]) -> bool:
        """Queue for every hash; True if the member may pass at once."""
        self._hashes[member] = wanted = tuple(sorted(set(hashes)))
        for value in wanted:
            self._queues.setdefault(value, deque()).append(member)
        if self._may_pass(member):
            return True
        self.waiting.add(member)
        return False

    def holds(self, member: T, hashes: Iterable[int]) -> bool:
        """The member has passed, for each of these hashes at least."""
        return member not in self.waiting and set(hashes) <= set(self._hashes.get(member, ()))

    def leave(self, member: T) -> list[T]:
        """Leave every queue, from wherever in it; returns those who may pass now, in the order of their locks."""
        freed: list[T] = []
        self.waiting.discard(member)
        for value in self._hashes.pop(member, ()):
            queue = self._queues[value]
            was_head = queue[0] is member
            queue.remove(member)
            if not queue:
                del self._queues[value]
            elif was_head and queue[0] in self.waiting and self._may_pass(queue[0]):
                self.waiting.remove(queue[0])
                freed.append(queue[0])
        return freed

    def __len__(self) -> int:
        """How many locks somebody holds or waits for."""
        return len(self._queues)

    def _may_pass(self, member: T) -> bool:
        return all(self._queues[value][0] is member for value in self._hashes[member])

"""First come, first served among the submits of one process that want the same lock.

Without it, every submit that waits for a lock decides again as soon as the lock's last holder is applied, one of them
wins, and all others have decided for nothing. Whoever joins enters the queue of each of its locks in one step, so a
member only ever waits for members that joined before it: nobody waits in a circle.

Two members go together where the server would refuse neither for the sake of the other: both only read the lock, or
both only take it. Such neighbours in a queue form a *run*. Whoever comes joins the last run or begins another one
behind it, so a stream of readers passes no writer that waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")

DEPENDS = 1  # refused if somebody took the lock: read
TAKES = 2  # those who depend on it are refused afterwards: append
BOTH = DEPENDS | TAKES  # write

NO_MODES: Mapping[int, int] = {}
"""Of an append without locks."""


def modes_of(write: Iterable[int], read: Iterable[int] = (), append: Iterable[int] = ()) -> Mapping[int, int]:
    """How an append uses each lock, by hash."""
    modes = dict.fromkeys(write, BOTH)
    for value in read:
        modes[value] = modes.get(value, 0) | DEPENDS
    for value in append:
        modes[value] = modes.get(value, 0) | TAKES
    return modes


def joint(held: Mapping[int, int], modes: Mapping[int, int]) -> Mapping[int, int]:
    """Everything of both."""
    if not held or held == modes:
        return modes  # nearly always
    return {value: held.get(value, 0) | modes.get(value, 0) for value in (*held, *modes)}


class _Run(Generic[T]):
    """Members of one queue that may pass together; one alone where it both takes and depends."""

    __slots__ = ("members", "mode")

    def __init__(self, mode: int, member: T) -> None:
        self.mode = mode
        self.members: dict[T, None] = {member: None}


class Gate(Generic[T]):
    """A queue of runs per lock hash; whoever is in the first run of all of its queues may pass.

    A lock that a single member wants has no queue yet, but only that member: most locks are never wanted by two.
    """

    __slots__ = ("_alone", "_modes", "_queues", "waiting")

    def __init__(self) -> None:
        self._alone: dict[int, T] = {}  # lock → its only member; such a lock has no queue
        self._queues: dict[int, deque[_Run[T]]] = {}
        self._modes: dict[T, Mapping[int, int]] = {}
        self.waiting: set[T] = set()  # members that are not in the first run everywhere

    def join(self, member: T, modes: Mapping[int, int]) -> bool:
        """Queue for every lock; True if the member may pass at once."""
        assert member not in self._modes
        self._modes[member] = modes
        passes = True
        for value, mode in modes.items():
            queue = self._queue_behind(value) if value in self._alone else self._queues.get(value)
            if queue is None:
                self._alone[value] = member
            elif queue[-1].mode == mode != BOTH:
                queue[-1].members[member] = None
                passes = passes and len(queue) == 1
            else:
                queue.append(_Run(mode, member))
                passes = False
        if not passes:
            self.waiting.add(member)
        return passes

    def modes(self, member: T) -> Mapping[int, int]:
        """What the member has joined for; nothing if it has not."""
        return self._modes.get(member, NO_MODES)

    def leave(self, member: T) -> list[T]:
        """Leave every queue, from wherever in it; returns those who may pass now, in the order of their locks."""
        freed: list[T] = []
        modes = self._modes.pop(member, None)
        if modes is None:
            return freed
        self.waiting.discard(member)
        for value in modes:
            if value in self._alone:
                del self._alone[value]
                continue
            queue = self._queues[value]
            run = queue[0]
            first = member in run.members  # nearly always: who was sent
            if not first:
                run = next(run for run in queue if member in run.members)
            del run.members[member]
            if run.members:
                continue
            if not first:
                queue.remove(run)
            else:
                queue.popleft()
                if not queue:
                    del self._queues[value]
                elif self.waiting:
                    freed += self._let_pass(queue[0])
        return freed

    def _queue_behind(self, value: int) -> deque[_Run[T]]:
        """The only member of a lock gets company."""
        member = self._alone.pop(value)
        queue = self._queues[value] = deque((_Run(self._modes[member][value], member),))
        return queue

    def _let_pass(self, run: _Run[T]) -> list[T]:
        passing = [member for member in run.members if member in self.waiting and self._may_pass(member)]
        self.waiting.difference_update(passing)
        return passing

    def __len__(self) -> int:
        """How many locks somebody holds or waits for."""
        return len(self._alone) + len(self._queues)

    def _may_pass(self, member: T) -> bool:
        modes = self._modes[member]
        if len(modes) == 1:
            return True  # the run that is first now is its only one
        return all(value in self._alone or member in self._queues[value][0].members for value in modes)

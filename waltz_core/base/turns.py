"""Fairness between clients: whose waiting work comes next, and who holds more than a fair part of what is scarce.

Both count by owner (the name in a client's certificate, else its address) and, within an owner, by connection: a
peer gains nothing by opening more connections.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class _Queue(Generic[T]):
    """What waits for one connection."""

    __slots__ = ("conn", "deficit", "items", "owner")

    def __init__(self, conn: int, owner: _Owner[T]) -> None:
        self.conn = conn
        self.owner = owner
        self.items: deque[tuple[int, T]] = deque()  # cost, work
        self.deficit = 0  # cost it may still use in its present turn


class _Owner(Generic[T]):
    __slots__ = ("aside", "deficit", "name", "queues", "ring")

    def __init__(self, name: str) -> None:
        self.name = name
        self.aside = False  # it has no turns for now
        self.deficit = 0
        self.queues = 0  # connections known
        self.ring: deque[_Queue[T]] = deque()  # those that have work and are not blocked; the first has its turn


class Turns(Generic[T]):
    """Work that waits, first in first out for each connection, handed out in deficit round robin.

    Owners take turns, and within the turn of an owner its connections do. A turn lasts until work of `quantum` cost
    was handed out, so that a thousand requests of one peer delay those of another by one turn at most. Work of a
    blocked connection stays where it is. An owner can be put aside when its turn has come, and has none until it is
    recalled, or nothing of it waits any more: so a turn costs the same however many are aside.
    """

    __slots__ = ("_aside", "_blocked", "_owners", "_quantum", "_queues", "_ring", "size")

    def __init__(self, quantum: int) -> None:
        assert quantum > 0
        self._quantum = quantum
        self._blocked: set[int] = set()
        self._queues: dict[int, _Queue[T]] = {}
        self._owners: dict[str, _Owner[T]] = {}
        self._ring: deque[_Owner[T]] = deque()
        self._aside: deque[_Owner[T]] = deque()
        self.size = 0  # how much waits, blocked or not

    def __len__(self) -> int:
        """How much waits, blocked or not."""
        return self.size

    @property
    def ready(self) -> bool:
        """Whether `take` would return something."""
        return bool(self._ring)

    def waits(self, conn: int) -> bool:
        """Whether anything waits for a connection."""
        queue = self._queues.get(conn)
        return queue is not None and bool(queue.items)

    def waiting(self) -> list[int]:
        """Connections for which something waits, blocked or not."""
        return [conn for conn, queue in self._queues.items() if queue.items]

    def first(self, conn: int) -> T | None:
        """What waits longest for a connection."""
        queue = self._queues.get(conn)
        return queue.items[0][1] if queue is not None and queue.items else None

    def put(self, conn: int, owner: str, cost: int, work: T) -> None:
        """Work arrives, behind what waits for the same connection."""
        queue = self._queue(conn, owner)
        self._adding(queue)
        queue.items.append((cost, work))

    def put_back(self, conn: int, owner: str, cost: int, work: T) -> None:
        """Work that was taken could not be done: it comes first when the connection has its next turn."""
        queue = self._queue(conn, owner)
        self._adding(queue)
        queue.items.appendleft((cost, work))

    def put_aside(self, rests: Callable[[str], bool]) -> None:
        """Put owners aside that rest, up to the first that does not: it has the next turn."""
        while self._ring and rests(self._ring[0].name):
            owner = self._ring.popleft()
            owner.aside = True
            self._aside.append(owner)

    def recall(self, name: str) -> None:
        """An owner that was put aside has turns again."""
        owner = self._owners.get(name)
        if owner is not None and owner.aside:
            self._aside.remove(owner)
            owner.aside = False
            self._ring.append(owner)

    def take(self, rests: Callable[[str], bool] | None = None) -> tuple[int, T] | None:
        """The next work and its connection; None when all that waits is blocked or aside.

        Whoever rests when his turn has come is put aside.
        """
        ring = self._ring
        while ring:
            if rests is not None:
                self.put_aside(rests)
            taken = self._turn(ring)
            if taken is not None:
                return taken
        return None

    def take_aside(self) -> tuple[int, T] | None:
        """The next work of those who were put aside, who take turns, too."""
        while self._aside:
            taken = self._turn(self._aside)
            if taken is not None:
                return taken
        return None

    def _turn(self, ring: deque[_Owner[T]]) -> tuple[int, T] | None:
        """What the first owner of a ring may do now; None: nothing, and another one is first."""
        if not ring:
            return None
        owner = ring[0]
        queue = owner.ring[0]
        cost = queue.items[0][0]
        if queue.deficit < cost:
            queue.deficit += self._quantum
            owner.ring.rotate(-1)
            return None
        if owner.deficit < cost:
            owner.deficit += self._quantum
            ring.rotate(-1)
            return None
        work = queue.items.popleft()[1]
        self.size -= 1
        queue.deficit -= cost
        owner.deficit -= cost
        if not queue.items:
            self._leave(queue)
        return queue.conn, work

    def take_first(self, conn: int) -> T:
        """What waits longest for a connection, out of turn and for nothing."""
        queue = self._queues[conn]
        work = queue.items.popleft()[1]
        self.size -= 1
        if not queue.items and conn not in self._blocked:
            self._leave(queue)
        return work

    def block(self, conn: int, blocked: bool) -> None:
        """A connection takes no more answers, or does again."""
        if blocked == (conn in self._blocked):
            return
        (self._blocked.add if blocked else self._blocked.discard)(conn)
        queue = self._queues.get(conn)
        if queue is not None and queue.items:
            (self._leave if blocked else self._enter)(queue)

    def clear(self) -> list[tuple[int, T]]:
        """Drop everything; what it was, each with its connection."""
        dropped = [(conn, work) for conn, queue in self._queues.items() for _, work in queue.items]
        for conn in list(self._queues):
            self.drop(conn)
        return dropped

    def remove(self, conn: int, work: T) -> None:
        """Work that may wait for a connection is not to be done any more."""
        queue = self._queues.get(conn)
        for at, (_, waiting) in enumerate(queue.items if queue is not None else ()):
            if queue is not None and waiting is work:
                del queue.items[at]
                self.size -= 1
                if not queue.items and conn not in self._blocked:
                    self._leave(queue)
                return

    def drop(self, conn: int) -> None:
        """A connection is gone, and its work with it."""
        if conn in self._queues:
            self._forget(self._queues.pop(conn))
        self._blocked.discard(conn)

    def _forget(self, queue: _Queue[T]) -> None:
        self.size -= len(queue.items)
        if queue.items and queue.conn not in self._blocked:
            self._leave(queue)
        queue.owner.queues -= 1
        if not queue.owner.queues:
            del self._owners[queue.owner.name]

    def _queue(self, conn: int, name: str) -> _Queue[T]:
        queue = self._queues.get(conn)
        if queue is None:
            owner = self._owners.get(name)
            if owner is None:
                owner = self._owners[name] = _Owner(name)
            owner.queues += 1
            queue = self._queues[conn] = _Queue(conn, owner)
        return queue

    def _adding(self, queue: _Queue[T]) -> None:
        self.size += 1
        if not queue.items and queue.conn not in self._blocked:
            self._enter(queue)

    def _enter(self, queue: _Queue[T]) -> None:
        owner = queue.owner
        if not owner.ring:
            self._ring.append(owner)
        owner.ring.append(queue)

    def _leave(self, queue: _Queue[T]) -> None:
        """Whoever has nothing to do saves no turns for later."""
        owner = queue.owner
        queue.deficit = 0
        owner.ring.remove(queue)
        if not owner.ring:
            owner.deficit = 0
            (self._aside if owner.aside else self._ring).remove(owner)
            owner.aside = False


class Allowance:
    """Cost that may be spent: so much more with every millisecond, saved up to a limit; a debt is paid first."""

    __slots__ = ("_at", "_most", "_rate", "left")

    def __init__(self, rate: int, most: int) -> None:
        self._rate = rate
        self._most = most
        self._at = 0
        self.left = most

    def refill(self, now: int) -> None:
        """Add what the time since the last call is worth."""
        if now > self._at:
            left, most = self.left + self._rate * (now - self._at), self._most
            self.left = left if left < most else most
            self._at = now

    def some(self, now: int) -> int:
        """When something may be spent."""
        return now if self.left > 0 else now - (self.left - 1) // self._rate

    def full(self, now: int) -> int:
        """When nothing more can be saved."""
        return now + -((self.left - self._most) // self._rate)


class Shares:
    """How much of a scarce thing each connection holds: places in a queue, bytes.

    Nothing is refused. When more is held than there should be, `greedy` names those who hold more than their fair
    part of the limit, and only they must wait.
    """

    __slots__ = ("_conns", "_held", "_owner_of", "_parts", "total")

    def __init__(self) -> None:
        # Plain numbers: with little to do, each request is the only one of its connection, which comes and goes.
        self._parts: dict[int, int] = {}  # connection → what it holds
        self._owner_of: dict[int, str] = {}  # the same connections
        self._held: dict[str, int] = {}  # owner → what its connections hold
        self._conns: dict[str, int] = {}  # owner → how many they are
        self.total = 0

    def __iter__(self) -> Iterator[int]:
        """Connections that hold something."""
        return iter(self._parts)

    def part(self, conn: int) -> int:
        """How much a connection holds."""
        return self._parts.get(conn, 0)

    def of_owner(self, owner: str) -> int:
        """How much the connections of an owner hold."""
        return self._held.get(owner, 0)

    def add(self, conn: int, owner: str, amount: int) -> None:
        """A connection takes more."""
        if conn in self._parts:
            self._parts[conn] += amount
            self._held[self._owner_of[conn]] += amount
        else:
            self._parts[conn] = amount
            self._owner_of[conn] = owner
            if owner in self._held:
                self._held[owner] += amount
                self._conns[owner] += 1
            else:
                self._held[owner] = amount
                self._conns[owner] = 1
        self.total += amount

    def free(self, conn: int, amount: int) -> None:
        """A connection gives some back; one that was dropped has nothing left to give."""
        if conn not in self._parts:
            return
        left, owner = self._parts[conn] - amount, self._owner_of[conn]
        assert left >= 0, (conn, amount, left)
        self._held[owner] -= amount
        self.total -= amount
        if left:
            self._parts[conn] = left
            return
        del self._parts[conn], self._owner_of[conn]
        self._conns[owner] -= 1
        if not self._conns[owner]:
            del self._conns[owner], self._held[owner]

    def drop(self, conn: int) -> None:
        """A connection is gone, and holds nothing any more."""
        self.free(conn, self.part(conn))

    def greedy(self, conn: int, limit: int) -> bool:
        """Whether more than `limit` is held, and this connection holds more than its fair part of that."""
        if self.total <= limit or conn not in self._parts:
            return False
        owner, fair = self._owner_of[conn], limit // len(self._held)
        return self._held[owner] > fair and self._parts[conn] > fair // self._conns[owner]

    def fair(self, conn: int, owner: str, limit: int) -> int:
        """The fair part of a limit for a connection, which may hold nothing yet."""
        known = owner in self._held
        conns = self._conns[owner] + (conn not in self._parts) if known else 1
        return limit // (len(self._held) + (not known)) // conns

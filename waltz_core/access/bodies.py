"""What a port holds of the bodies that callers send: so much together, and of one caller as much as he leaves free.

Whoever sends large bodies, or lets many drip in, so leaves room for the others: one caller may hold a half, two a third
each, and so on. A caller with one body under way may have all the room that there is, as nobody's body is larger.
"""

from __future__ import annotations

from waltz_core.base.turns import Shares


class Bodies:
    """Bytes of all bodies that a port holds."""

    __slots__ = ("_held", "_size_max")

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._held = Shares()

    def of(self, conn: int, owner: str) -> Held:
        """What a connection holds, for a caller."""
        return Held(self, conn, owner)

    def take(self, conn: int, owner: str, size: int) -> bool:
        """Count bytes before they are kept; False if there is no room for them."""
        held, free = self._held, self._size_max - self._held.total - size
        others = held.of_owner(owner) - held.part(conn)
        if free < 0 or (others and held.of_owner(owner) + size > free):
            return False
        held.add(conn, owner, size)
        return True

    def give_back(self, conn: int, size: int) -> None:
        """They are kept no longer."""
        self._held.free(conn, size)


class Held:
    """What one connection holds."""

    __slots__ = ("_bodies", "_conn", "_owner", "_size")

    def __init__(self, bodies: Bodies, conn: int, owner: str) -> None:
        self._bodies = bodies
        self._conn = conn
        self._owner = owner
        self._size = 0

    def take(self, size: int) -> bool:
        """Count bytes before they are kept; False if there is no room for them."""
        if not self._bodies.take(self._conn, self._owner, size):
            return False
        self._size += size
        return True

    def give_back(self) -> None:
        """All of it is kept no longer."""
        size, self._size = self._size, 0
        if size:
            self._bodies.give_back(self._conn, size)

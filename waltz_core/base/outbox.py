"""Where effects are put: one outbox for a whole process, handed down to the machines inside it.

A machine inside another one is built with what it may put, and no more: a storage pool takes an
`Emits[ConnEffect]`, and the process, whose outbox holds every kind, hands down that outbox itself. So an
effect is put once, in the order in which it leaves, and no list is copied into another one.

What a machine reports to the one above it (a *note*: a session has opened) goes through an outbox too, which
the one above owns and empties when its own state allows, never in the middle of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

E = TypeVar("E")
E_contra = TypeVar("E_contra", contravariant=True)


class Emits(Protocol[E_contra]):
    """The putting half of an outbox."""

    @property
    def put(self) -> Callable[[E_contra], None]:
        """Add one; it leaves after everything that was put before it."""

    @property
    def put_all(self) -> Callable[[Iterable[E_contra]], None]:
        """Add several, in order."""


class Outbox(Generic[E]):
    """Effects in the order in which they leave."""

    __slots__ = ("_items", "items", "put", "put_all")

    def __init__(self) -> None:
        self._items: list[E] = []
        self.items: Sequence[E] = self._items  # always the same list: to look whether there is anything, without a call
        # The methods of the list itself: an effect costs no call of ours.
        self.put: Callable[[E], None] = self._items.append
        self.put_all: Callable[[Iterable[E]], None] = self._items.extend

    def __len__(self) -> int:
        return len(self._items)

    def drain(self, out: list[E]) -> None:
        """Hand everything over, once per step of the process."""
        out += self._items
        del self._items[:]  # slices, not methods: it is done for every vote

    def take(self) -> list[E]:
        """Everything so far; what is put while the caller looks at it comes with the next call."""
        items = self._items[:]
        del self._items[:]
        return items

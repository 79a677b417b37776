"""What a process waits for: ticket → a record that says what for.

An effect that wants an answer (a request to ZooKeeper, a call to a storage node, a batch for the disk)
carries a ticket. Beside it stands, in one table of the process, a record that says who asked and why; the
answer is handed to that machine together with the record, which dispatches it by `match`. Nothing else
remembers a ticket. So what is awaited can be listed, bounded and printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from waltz_core.base.contract import Tickets

W = TypeVar("W")
W_contra = TypeVar("W_contra", contravariant=True)


class Awaits(Protocol[W_contra]):
    """The asking half of the table, as a machine inside a process has it."""

    def ask(self, what: W_contra, /) -> int:
        """A new ticket, whose answer comes back with `what`."""


class Pending(Generic[W]):
    """Answers that are awaited, in the order in which they were asked for."""

    __slots__ = ("_tickets", "_waiting")

    def __init__(self, tickets: Tickets) -> None:
        self._tickets = tickets
        self._waiting: dict[int, W] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[W]:
        """What is awaited, oldest first."""
        return iter(self._waiting.values())

    def ask(self, what: W, /) -> int:
        """A new ticket, whose answer comes back with `what`."""
        ticket = self._tickets.take()
        self._waiting[ticket] = what
        return ticket

    def take(self, ticket: int) -> W | None:
        """What an answer is for; None if nothing waits for it any more."""
        return self._waiting.pop(ticket, None)

    def forget(self, unwanted: Callable[[W], bool]) -> list[W]:
        """Stop waiting for some; their answers, if they come, are ignored."""
        gone = [ticket for ticket, what in self._waiting.items() if unwanted(what)]
        return [self._waiting.pop(ticket) for ticket in gone]

"""The contract of every state machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableSequence, Sequence
from typing import Any, Protocol, TypeVar

E_contra = TypeVar("E_contra", contravariant=True)
F = TypeVar("F")


class Machine(Protocol[E_contra, F]):
    """State that changes only in `step`; events in, effects out, time and randomness injected."""

    def step(self, now: int, events: Sequence[E_contra], out: list[F]) -> None:
        """Handle `events` in order and append effects to `out`; `now` is in milliseconds."""

    def deadline(self) -> int | None:
        """When the driver must call `step(now, [], out)` at the latest, in milliseconds."""


class Rng(Protocol):
    """The randomness that a driver injects: what the machines use of `random.Random`."""

    def randrange(self, stop: int, /) -> int:
        """From 0 to `stop` - 1."""

    def randint(self, a: int, b: int, /) -> int:
        """From `a` to `b`."""

    def shuffle(self, x: MutableSequence[Any], /) -> None:
        """In place."""


class Handlers(dict[type, Callable[[int, Any], None]]):
    """What a machine does with each type of event; for another one it says which there are."""

    def __init__(self, machine: str, handlers: Mapping[type, Callable[[int, Any], None]]) -> None:
        super().__init__(handlers)
        self._machine = machine

    def __missing__(self, kind: type) -> Callable[[int, Any], None]:
        raise unknown_event(self._machine, kind, self)


def unknown_event(machine: str, kind: type, known: Iterable[type]) -> TypeError:
    """What to raise where a driver hands in what is no event of a machine.

    Only a driver can do that, never a peer: to pass over it would leave whoever waits for it waiting forever.
    """
    names = ", ".join(sorted(each.__name__ for each in known))
    return TypeError(
        f"{machine}.step expects events of these classes, found {kind.__module__}.{kind.__qualname__}: {names}"
    )


class Tickets:
    """Numbers that tie an effect to its completion event; one source per process."""

    __slots__ = ("_last",)

    def __init__(self, last: int = 0) -> None:
        self._last = last

    def take(self) -> int:
        """The next number."""
        self._last += 1
        return self._last


def earliest(*deadlines: int | None) -> int | None:
    """The first of several deadlines, None when there is none."""
    first: int | None = None
    for deadline in deadlines:
        if deadline is not None and (first is None or deadline < first):
            first = deadline
    return first

"""What a machine still holds: every collection and every count of work in it, found by walking its attributes.

Nothing here knows how a machine is built: a queue, a table of what is awaited or a sum of bytes that is added to one
tomorrow is seen the same day, if its name says what it is.
"""

from __future__ import annotations

import enum
import re
from collections import deque
from collections.abc import Collection, Iterator
from types import FunctionType, MethodType
from typing import Any

_LONG = 100

_NUMBERS = re.compile(r"(queued|waiting|parked|backlog|gathered|pending|flying|flight|unwritten|total)(_bytes)?$")
"""Of numbers only sums say how much work there is; others are times, ordinals and limits."""

_MISSING = object()

_slots: dict[type[Any], tuple[str, ...]] = {}

_PLAIN = (int, float, str, bytes, bool, type(None), enum.Enum, FunctionType, MethodType, type)


def debts(machine: Any) -> Iterator[tuple[str, int]]:
    """`Class.attribute` and how much is in it, for all that is not empty; the same name may come more than once."""
    for name, value in _walk(machine):
        yield from _debt(name, value)


def per_connection(machine: Any, names: frozenset[str]) -> Iterator[tuple[str, set[int]]]:
    """The keys of some collections, by `Class.attribute`."""
    for name, value in _walk(machine):
        if name in names and isinstance(value, (dict, set)):
            yield name, set(value)


def _walk(machine: Any) -> Iterator[tuple[str, Any]]:
    """Every attribute of every object of the core that is reached from a machine."""
    seen: set[int] = set()
    waiting: list[Any] = [machine]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, _PLAIN):
            continue
        seen.add(id(thing))
        if isinstance(thing, dict):
            waiting += [] if _plain(thing.values()) else thing.values()
        elif isinstance(thing, (list, tuple, set, frozenset, deque)):
            waiting += [] if _plain(thing) else thing
        elif type(thing).__module__.startswith("waltz_core."):
            for name, value in _attributes(thing):
                yield f"{type(thing).__name__}.{name}", value
                waiting.append(value)


def _plain(values: Collection[Any]) -> bool:
    """Whether there is nothing to walk in a long collection, as its first member tells."""
    return len(values) > _LONG and isinstance(next(iter(values)), _PLAIN)


def _debt(name: str, value: Any) -> Iterator[tuple[str, int]]:
    if isinstance(value, (list, dict, set, deque, bytearray)):
        if len(value):
            yield name, len(value)
    elif isinstance(value, int) and not isinstance(value, (bool, enum.Enum)) and value and _NUMBERS.search(name):
        yield name, value


def _attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    for name in (*getattr(thing, "__dict__", ()), *_slots_of(type(thing))):
        value = getattr(thing, name, _MISSING)
        if value is not _MISSING and not name.startswith("__"):
            yield name, value


def _slots_of(kind: type[Any]) -> tuple[str, ...]:
    """The attributes that a class and those above it keep in slots; found once."""
    if kind not in _slots:
        names: dict[str, None] = {}
        for one in kind.__mro__:
            slots = one.__dict__.get("__slots__", ())
            names |= dict.fromkeys((slots,) if isinstance(slots, str) else slots)
        _slots[kind] = tuple(names)
    return _slots[kind]

"""Reads a vector line and remembers which fields were looked at."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Fields(dict[str, Any]):
    """A JSON object; `unread()` lists the fields nobody asked for, nested ones as dotted paths."""

    def __init__(self, source: dict[str, Any]) -> None:
        super().__init__(source)
        self._read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self._read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._read.add(key)
        return super().get(key, default)

    def ignore(self, *keys: str) -> None:
        """Name fields that carry no expectation (descriptions, times)."""
        self._read.update(keys)

    def all(self) -> dict[str, Any]:
        """Everything as plain dicts; counts as reading all of it."""
        self._read.update(self)
        return {key: plain(value) for key, value in self.items()}

    def unread(self, prefix: str = "") -> list[str]:
        missing: list[str] = []
        for key, value in self.items():
            if key not in self._read:
                missing.append(prefix + key)
            else:
                missing.extend(_unread(value, f"{prefix}{key}."))
        return missing


def _unread(value: Any, prefix: str) -> list[str]:
    if isinstance(value, Fields):
        return value.unread(prefix)
    if isinstance(value, list):
        return [name for at, item in enumerate(value) for name in _unread(item, f"{prefix}{at}.")]
    return []


def plain(value: Any) -> Any:
    """`value` as plain dicts and lists, every field counted as read."""
    if isinstance(value, Fields):
        return value.all()
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def parse(text: str) -> Fields:
    """One JSON object whose nested objects are `Fields` too."""
    value = json.loads(text, object_hook=Fields)
    assert isinstance(value, Fields)
    return value


def lines(path: Path) -> Iterator[tuple[str, Fields]]:
    """(name, object) for every line of a JSON-lines file."""
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            yield f"{path.name}:{number}", parse(text)


class Unit(NamedTuple):
    """One thing to check: a line, a scenario, a probe, a session, a tree or a directory.

    `run` raises AssertionError where ours differs, and returns the names of the rules because
    of which it was checked twice (the twin of 0.13.2 against the record, ours against what the rule says).
    """

    name: str
    fields: list[Fields]
    run: Callable[[], frozenset[str]]

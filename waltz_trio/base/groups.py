"""What a writing thread takes from its queue at a time: everything there, so that one sync covers it."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


def groups(queue: SimpleQueue[T | None]) -> Iterator[list[T]]:
    """Everything queued, again and again, waiting for the first of each group; ends at None."""
    item = queue.get()
    while item is not None:
        group = [item]
        while not queue.empty():
            item = queue.get()
            if item is None:
                break
            group.append(item)
        yield group
        item = queue.get() if item is not None else None

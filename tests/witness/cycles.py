"""Is there any serial order that explains what clients saw? Lists that are read and appended to tell.

The check of Elle for list-append histories: the order of the elements of a list is the order of the transactions
that wrote it, and what a transaction read tells which of them came before it and which after. With "returned
before the other was invoked" these make a graph; a cycle in it is an anomaly, whatever the log says.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Generic, TypeVar

import attrs

Element = Hashable
Key = TypeVar("Key", bound=Hashable)


@attrs.frozen
class ListTransaction(Generic[Key]):
    """One transaction as its client saw it; it appends itself, by name, to some lists, or to none."""

    name: Element
    invoked: int
    returned: int | None  # None: no outcome was told
    failed: bool  # it was told not to have happened
    appended: Sequence[Key]
    read: Mapping[Key, Sequence[Element]]


def check_lists(transactions: Iterable[ListTransaction[Key]], final: Mapping[Key, Sequence[Element]]) -> int:
    """Judge a history; returns how many transactions took part in it.

    Args:
        transactions: everything that was ever tried.
        final: the lists as they stood in the end.

    Raises:
        AssertionError: no serial order that respects real time explains what was read; the text names a cycle.
    """
    known = {one.name: one for one in transactions}
    for key, elements in final.items():
        assert len(set(elements)) == len(elements), f"list {key} has an element twice: {elements}"
        for element in elements:
            assert element in known, f"{element} is in list {key} and nobody appended it"
            assert not known[element].failed, f"{element} was told to have failed and is in list {key}"
            assert key in known[element].appended, f"{element} is in list {key}, which it did not append to"
    took_part = [one for one in known.values() if _took_part(one, final)]
    edges: dict[Element, list[tuple[Element, str]]] = {}
    for key, elements in final.items():
        for before, after in pairwise(elements):
            edges.setdefault(before, []).append((after, f"wrote {key} before"))
    for one in took_part:
        _add_reads(one, final, edges)
    _add_real_time(took_part, edges)
    cycle = _find_cycle(edges)
    assert not cycle, f"no serial order: {' '.join(cycle)}"
    return len(took_part)


def _took_part(one: ListTransaction[Key], final: Mapping[Key, Sequence[Element]]) -> bool:
    if not one.appended and one.read:
        return one.returned is not None and not one.failed
    found = [one.name in final.get(key, ()) for key in one.appended]
    assert all(found) or not any(found), f"{one.name} happened in part: {list(zip(one.appended, found, strict=True))}"
    lost = one.returned is not None and not one.failed and not all(found)
    assert not lost, f"{one.name} was acknowledged and is in none of {list(one.appended)}"
    return bool(found) and all(found)


def _add_reads(
    one: ListTransaction[Key], final: Mapping[Key, Sequence[Element]], edges: dict[Element, list[tuple[Element, str]]]
) -> None:
    for key, seen in one.read.items():
        elements = final.get(key, ())
        assert list(elements[: len(seen)]) == list(seen), f"{one.name} read {seen} from list {key}, which is {elements}"
        if seen:
            edges.setdefault(seen[-1], []).append((one.name, f"wrote {key}, read by"))
        if len(seen) < len(elements) and elements[len(seen)] != one.name:
            edges.setdefault(one.name, []).append((elements[len(seen)], f"read {key} before it was written by"))


def _add_real_time(took_part: Sequence[ListTransaction[Any]], edges: dict[Element, list[tuple[Element, str]]]) -> None:
    """Through a chain of moments, so that there are no more edges than events."""
    events = [(one.invoked, 0, one.name) for one in took_part]
    events += [(one.returned, 1, one.name) for one in took_part if one.returned is not None]
    last: Element | None = None
    for at, returned, name in sorted(events, key=lambda event: event[:2]):
        if not returned:
            if last is not None:
                edges.setdefault(last, []).append((name, "was invoked"))
            continue
        moment = ("moment", at, name)
        edges.setdefault(name, []).append((moment, "returned; then"))
        if last is not None:
            edges.setdefault(last, []).append((moment, ""))
        last = moment


def _find_cycle(edges: Mapping[Element, Sequence[tuple[Element, str]]]) -> list[str]:
    done: set[Element] = set()
    for start in edges:
        if start in done:
            continue
        path: list[tuple[Element, str]] = [(start, "")]
        on_path = {start}
        stack = [iter(edges.get(start, ()))]
        while stack:
            step = next(stack[-1], None)
            if step is None:
                stack.pop()
                node, _ = path.pop()
                on_path.discard(node)
                done.add(node)
                continue
            node, why = step
            if node in on_path:
                at = next(number for number, (other, _) in enumerate(path) if other == node)
                told = [f"{why} {_shown(node)}".strip() for node, why in [*path[at + 1 :], (node, why)]]
                return [_shown(path[at][0]), *told]
            if node not in done:
                path.append((node, why))
                on_path.add(node)
                stack.append(iter(edges.get(node, ())))
    return []


def _shown(node: Element) -> str:
    return "later" if isinstance(node, tuple) and node and node[0] == "moment" else str(node)

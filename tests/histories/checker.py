"""Whether a history of registers is linearizable, and one of list-append strictly serializable.

Registers: each key by itself, as a history is linearizable if and only if that of each object is (Herlihy and Wing);
the search of Wing and Gong with the memory of Lowe: a set of operations that took effect, and the value after them, is
looked at once. Lists: `tests.witness.cycles`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from tests.histories.history import NEVER, Operation, registers
from tests.witness.cycles import ListTransaction, check_lists


class AnomalyError(AssertionError):
    """A history that no correct log gives."""


def check(operations: Sequence[Operation], final: Mapping[int, Sequence[int]] | None = None) -> int:
    """Judge a history; returns how many operations took part.

    Args:
        operations: all of a run.
        final: the lists as they stood in the end; None = as the longest read of each shows them, and what no read
            shows is not judged.

    Raises:
        AnomalyError: what the clients saw cannot be.
    """
    for key, of_key in registers(operations).items():
        stuck = linearize(of_key)
        if stuck is not None:
            raise AnomalyError(f"register {key} is not linearizable: nothing explains\n  {_shown(stuck, of_key)}")
    try:
        check_lists(*lists(operations, final))
    except AssertionError as error:
        raise AnomalyError(f"lists are not strictly serializable: {error}") from error
    return len(operations)


def linearize(operations: Iterable[Operation]) -> Operation | None:
    """None if some order explains all answers; else the operation at which the longest attempt failed."""
    wanted = [one for one in operations if one.known or one.kind != "read"]
    wanted.sort(key=lambda one: one.call)
    needed = sum(1 << at for at, one in enumerate(wanted) if one.known)
    seen: set[tuple[int, Any]] = set()
    waiting: list[tuple[int, Any, int]] = [(0, None, 0)]  # done, value, the first that is not done
    farthest: tuple[int, Operation | None] = (-1, None)
    while waiting:
        done, value, first = waiting.pop()
        if done & needed == needed:
            return None
        while done >> first & 1:
            first += 1
        # Whatever was called after another one returned that has not taken effect must wait for that one.
        limit, blocked = NEVER, None
        nexts: list[tuple[int, Any, int]] = []
        for at in range(first, len(wanted)):
            one = wanted[at]
            if one.call > limit:
                break
            if done >> at & 1:
                continue
            if one.known and one.back < limit:
                limit, blocked = one.back, one
            possible, after = _apply(one, value)
            if possible and (done | 1 << at, after) not in seen:
                seen.add((done | 1 << at, after))
                nexts.append((done | 1 << at, after, first))
        waiting += reversed(nexts)
        if not nexts and done.bit_count() > farthest[0]:
            farthest = done.bit_count(), blocked
    return farthest[1] or (wanted[0] if wanted else None)


def _apply(one: Operation, value: Any) -> tuple[bool, Any]:
    """Whether an operation can have answered as it did on a value, and the value then."""
    if one.kind == "read":
        return one.result == value, value
    if one.kind == "write":
        return True, one.argument
    old, new = one.argument
    if not one.known:
        return old == value, new
    return one.result == (old == value), new if one.result else value


def lists(
    operations: Iterable[Operation], final: Mapping[int, Sequence[int]] | None = None
) -> tuple[list[ListTransaction[Hashable]], dict[Hashable, list[Hashable]]]:
    """Transactions as `check_lists` takes them, named by what they append, and the lists in the end."""
    transactions: list[ListTransaction[Hashable]] = []
    longest: dict[Hashable, list[Hashable]] = {key: list(elements) for key, elements in (final or {}).items()}
    for at, one in enumerate(operations):
        if one.kind != "txn":
            continue
        appended = {key: element for what, key, element in one.argument if what == "append"}
        read = {key: element for what, key, element in one.result or () if what == "r"}
        if final is None:
            for key, elements in read.items():
                longest[key] = max(longest.get(key, []), elements, key=len)
        (name,) = set(appended.values()) or {f"the reader {at}"}
        back = one.back if one.known else None
        transactions.append(ListTransaction(name, one.call, back, False, list(appended), read))
    if final is None:
        shown = {element for elements in longest.values() for element in elements}
        transactions = [
            one if not one.appended or one.name in shown else attrs.evolve(one, appended=[], read={})
            for one in transactions
        ]
    return transactions, longest


def _shown(stuck: Operation, operations: Sequence[Operation]) -> str:
    near = [one for one in operations if one.call <= stuck.back and one.back >= stuck.call]
    return "\n  ".join(map(str, [stuck, "beside", *near[-12:]]))

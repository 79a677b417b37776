"""The gate: who may pass together does, everybody else in the order of joining."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from waltz_core.client.gate import BOTH, DEPENDS, TAKES, Gate, modes_of


def join(gate: Gate[str], member: str, *hashes: int) -> bool:
    return gate.join(member, modes_of(hashes))


def test_how_locks_are_used() -> None:
    assert modes_of((1, 2, 1), (2, 3), (3, 4)) == {1: BOTH, 2: BOTH, 3: BOTH, 4: TAKES}
    assert modes_of((), (1,)) == {1: DEPENDS}


def test_one_writer_passes_per_lock_first_come_first_served() -> None:
    gate: Gate[str] = Gate()
    passed = [join(gate, "a", 1), join(gate, "b", 2, 1, 1), join(gate, "c", 2), join(gate, "d", 3)]
    assert passed == [True, False, False, True]
    assert gate.waiting == {"b", "c"}
    assert gate.leave("a") == ["b"]
    assert gate.leave("b") == ["c"]
    assert gate.leave("c") == gate.leave("d") == []
    assert len(gate) == 0


def test_leaving_from_the_middle_of_a_queue_leaves_nothing_behind() -> None:
    gate: Gate[str] = Gate()
    join(gate, "a", 1)
    join(gate, "b", 0, 1)
    join(gate, "c", 0)
    assert gate.leave("b") == ["c"], "its other queue is free"
    assert gate.leave("a") == []
    assert gate.leave("c") == []
    assert (len(gate), gate.waiting) == (0, set())
    assert gate.leave("never there") == []


def test_what_a_member_has_joined_for() -> None:
    gate: Gate[str] = Gate()
    join(gate, "a", 1, 2)
    assert gate.modes("a") == {1: BOTH, 2: BOTH}
    assert gate.modes("never there") == {}


def test_readers_pass_together_and_none_passes_a_writer_that_waits() -> None:
    gate: Gate[str] = Gate()
    assert gate.join("reader", {1: DEPENDS})
    assert gate.join("another", {1: DEPENDS})
    assert not gate.join("writer", {1: BOTH})
    assert not gate.join("late", {1: DEPENDS})
    assert not gate.join("too late", {1: DEPENDS})
    assert gate.leave("reader") == []
    assert gate.leave("another") == ["writer"]
    assert gate.leave("writer") == ["late", "too late"]


def test_takers_pass_together_but_not_with_readers() -> None:
    gate: Gate[str] = Gate()
    assert gate.join("taker", {1: TAKES})
    assert gate.join("another", {1: TAKES, 2: DEPENDS})
    assert not gate.join("reader", {1: DEPENDS})
    assert gate.leave("taker") == []
    assert gate.leave("another") == ["reader"]


_MODES = st.dictionaries(st.integers(0, 4), st.sampled_from((DEPENDS, TAKES, BOTH)), min_size=1)


@given(st.lists(st.tuples(st.integers(0, 9), _MODES), max_size=40))
def test_nobody_waits_in_a_circle(steps: list[tuple[int, dict[int, int]]]) -> None:
    """However members join and leave, somebody can pass, nobody passes who would be in the way, all get through."""
    gate: Gate[int] = Gate()
    inside: dict[int, dict[int, int]] = {}  # in the order of joining
    passing: set[int] = set()
    for member, modes in steps:
        if member in inside:
            del inside[member]
            passing.discard(member)
            passing.update(gate.leave(member))
        else:
            inside[member] = modes
            if gate.join(member, modes):
                passing.add(member)
        for each, other in itertools.combinations(passing, 2):
            for lock in inside[each].keys() & inside[other].keys():
                assert inside[each][lock] == inside[other][lock] != BOTH
        assert not inside or next(iter(inside)) in passing, "who came first"
        assert gate.waiting == inside.keys() - passing
    while inside:
        leaver = min(passing)
        passing.remove(leaver)
        del inside[leaver]
        passing.update(gate.leave(leaver))
    assert (len(gate), passing) == (0, set())

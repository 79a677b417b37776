"""The gate: one passes per lock, in the order of joining."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waltz_core.client.gate import Gate


def test_one_passes_per_lock_first_come_first_served() -> None:
    gate: Gate[str] = Gate()
    assert [gate.join(name, hashes) for name, hashes in (("a", [1]), ("b", [2, 1, 1]), ("c", [2]), ("d", [3]))] == [
        True,
        False,
        False,
        True,
    ]
    assert gate.waiting == {"b", "c"}
    assert gate.leave("a") == ["b"]
    assert gate.leave("b") == ["c"]
    assert gate.leave("c") == gate.leave("d") == []
    assert len(gate) == 0


def test_leaving_from_the_middle_of_a_queue_leaves_nothing_behind() -> None:
    gate: Gate[str] = Gate()
    gate.join("a", [1])
    gate.join("b", [0, 1])
    gate.join("c", [0])
    assert gate.leave("b") == ["c"], "its other queue is free"
    assert gate.leave("a") == []
    assert gate.leave("c") == []
    assert (len(gate), gate.waiting) == (0, set())
    assert gate.leave("never there") == []


def test_what_a_member_holds() -> None:
    gate: Gate[str] = Gate()
    gate.join("a", [1, 2])
    gate.join("b", [2])
    assert gate.holds("a", [2])
    assert not gate.holds("a", [2, 3])
    assert not gate.holds("b", [2])


@given(st.lists(st.tuples(st.integers(0, 9), st.frozensets(st.integers(0, 4), min_size=1)), max_size=40))
def test_nobody_waits_in_a_circle(steps: list[tuple[int, frozenset[int]]]) -> None:
    """However members join and leave, somebody can pass, two who pass share no lock, and all get through."""
    gate: Gate[int] = Gate()
    inside: dict[int, frozenset[int]] = {}
    passing: set[int] = set()
    for member, hashes in steps:
        if member in inside:
            del inside[member]
            passing.discard(member)
            passing.update(gate.leave(member))
        else:
            inside[member] = hashes
            if gate.join(member, hashes):
                passing.add(member)
        locks = [value for each in passing for value in inside[each]]
        assert len(locks) == len(set(locks))
        assert bool(passing) == bool(inside)
        assert gate.waiting == inside.keys() - passing
    while inside:
        leaver = min(passing)
        passing.remove(leaver)
        del inside[leaver]
        passing.update(gate.leave(leaver))
    assert (len(gate), passing) == (0, set())

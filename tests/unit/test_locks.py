"""The lock table against a table of exact locks."""

from __future__ import annotations

from collections import deque

import hypothesis.strategies as st
from hypothesis import given

from waltz_core.locks import Lock, LockTable
from waltz_core.rules import LEGACY, SAFE, SafetyRules

HASHES = st.lists(st.integers(-50, 50), max_size=3)


def test_the_name_may_be_empty_and_the_id_negative() -> None:
    assert Lock("", 0).wire() == 0
    assert Lock("z", -(2**63)).wire() == -2147483526


def test_nothing_is_held_when_one_lock_is_taken() -> None:
    for rules in (SAFE, LEGACY):
        table = LockTable(1000, 3, -1, rules=rules)
        assert table.begin([1], [], [])
        before = table.held_slots()

        assert not table.begin([2], [1], [3])

        assert table.held_slots() == before
        assert table.active == 1


def test_appends_in_flight_hold_each_other_up_only_by_the_very_same_lock() -> None:
    for rules, waits in ((SAFE, False), (LEGACY, True)):
        table = LockTable(1, 3, -1, rules=rules)  # one slot: everything shares it
        assert table.begin([1], [], [])
        assert table.begin([2], [], []) is not waits


def test_append_locks_do_not_wait_for_each_other_and_are_waited_for() -> None:
    table = LockTable(1000, 3, -1)
    assert table.begin([], [], [1])
    assert table.begin([2], [], [1, 1])
    for write, read in ([[1], []], [[], [1]]):
        assert not table.begin(write, read, [])

    table.commit([], [1], 0)
    table.end([], [1])
    assert not table.begin([], [1], [])
    table.commit([2], [1, 1], 1)
    table.end([2], [1, 1])

    assert table.begin([], [1], [])
    assert table.estimate([], [1]) == 1
    assert table.held_slots() == []


@given(st.integers(-(2**31), 2**31 - 1), st.sampled_from([1, 7, 30_000]), st.integers(1, 4))
def test_a_commit_raises_exactly_the_slots_of_its_locks(lock_hash: int, size: int, probes: int) -> None:
    table = LockTable(size, probes, -1)
    table.commit([lock_hash], [], 5)
    raised = [slot for slot, mark in enumerate(table.marks()) if mark == 5]
    assert raised == sorted(set(table.slots(lock_hash)))
    assert table.estimate([lock_hash], []) == table.estimate([], [lock_hash]) == 5


@given(
    st.lists(st.tuples(HASHES, HASHES, HASHES, st.booleans()), max_size=60),
    st.sampled_from([1, 5, 97, 30_000]),
    st.sampled_from([SAFE, LEGACY]),
)
def test_an_estimate_is_never_below_the_last_commit(
    requests: list[tuple[list[int], list[int], list[int], bool]], size: int, rules: SafetyRules
) -> None:
    """Whatever shares a slot, a conflict is never missed."""
    table = LockTable(size, 3, -1, rules=rules)
    exact: dict[int, int] = {}
    mark = -1
    for write, read, append, commits in requests:
        assert table.begin(write, read, append)
        assert table.estimate(write, read) >= max((exact.get(h, -1) for h in (*write, *read)), default=-1)
        if commits:
            mark += 1
            table.commit(write, append, mark)
            exact.update(dict.fromkeys((*write, *append), mark))
        table.end(write, append)
    assert table.active == 0
    assert not table.held_slots()
    assert max(table.marks()) <= mark


@given(
    st.lists(st.tuples(HASHES, HASHES, HASHES, st.booleans()), max_size=60),
    st.sampled_from([1, 5, 97]),
    st.integers(1, 10),
    st.sampled_from([SAFE, LEGACY]),
)
def test_with_several_in_flight_no_conflict_is_missed(
    requests: list[tuple[list[int], list[int], list[int], bool]], size: int, flight_max: int, rules: SafetyRules
) -> None:
    """What begins is decided for good: nothing that was in flight then can take one of its locks later."""
    table = LockTable(size, 3, -1, rules=rules)
    exact: dict[int, int] = {}
    flight: deque[tuple[list[int], list[int], list[int], bool]] = deque()
    mark = -1

    def land() -> None:
        nonlocal mark
        write, _, append, commits = flight.popleft()
        if commits:
            mark += 1
            table.commit(write, append, mark)
            exact.update(dict.fromkeys((*write, *append), mark))
        table.end(write, append)

    for request in requests:
        write, read, append, _ = request
        while not table.begin(write, read, append):
            land()
        wanted = {*write, *read}
        assert not any(wanted & {*earlier[0], *earlier[2]} for earlier in flight)
        assert table.estimate(write, read) >= max((exact.get(h, -1) for h in wanted), default=-1)
        flight.append(request)
        if len(flight) > flight_max:
            land()
    while flight:
        land()
    assert table.active == 0
    assert not table.held_slots()

"""The lock table against a table of exact locks."""

from __future__ import annotations

import tracemalloc

import hypothesis.strategies as st
from hypothesis import given

from waltz_core.base.lock import Lock
from waltz_core.locks.table import LockTable

HASHES = st.lists(st.integers(-50, 50), max_size=3)


def test_the_name_may_be_empty_and_the_id_negative() -> None:
    assert Lock("", 0).wire() == 0
    assert Lock("z", -(2**63)).wire() == -2147483526


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
)
def test_an_estimate_is_never_below_the_last_commit(
    requests: list[tuple[list[int], list[int], list[int], bool]], size: int
) -> None:
    """Whatever shares a slot, a conflict is never missed."""
    table = LockTable(size, 3, -1)
    exact: dict[int, int] = {}
    mark = -1
    for write, read, append, commits in requests:
        assert table.estimate(write, read) >= max((exact.get(h, -1) for h in (*write, *read)), default=-1)
        if commits:
            mark += 1
            table.commit(write, append, mark)
            exact.update(dict.fromkeys((*write, *append), mark))
    assert max(table.marks()) <= mark


def test_a_table_that_nobody_needs_takes_no_memory() -> None:
    """Of a server's thousand partitions most may be idle."""
    tracemalloc.start()
    try:
        tables = [LockTable(30_000, 3, 7) for _ in range(10)]
        idle = tracemalloc.get_traced_memory()[0]
        assert tables[0].estimate([1], []) == 7
        used = tracemalloc.get_traced_memory()[0] - idle
    finally:
        tracemalloc.stop()
    assert idle < 10_000 < 240_000 <= used
    tables[0].commit([1], [], 9)
    tables[0].reset(11)
    assert tables[0].estimate([1], []) == 11

"""Who took a lock last, against a list of everything."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from waltz_core.locks.exact import ExactLocks

# Their bytes overlap: 0x00010000 is found across the border of two zeros and a one.
HASHES = (0, 1, 0x00010000, 0x01000000, 0x0100, -1, 7)


@given(
    st.lists(st.tuples(st.sampled_from(HASHES), st.integers(0, 2)), max_size=60),
    st.sampled_from(HASHES),
    st.integers(-2, 60),
    st.integers(-1, 60),
    st.integers(1, 4),
)
def test_the_newest_taker_in_a_range_is_found(
    takings: list[tuple[int, int]], lock: int, above: int, upper: int, repeat: int
) -> None:
    exact = ExactLocks(10**6, -1)
    log: list[tuple[int, int]] = []
    transaction_id = 0
    for lock_hash, step in takings:
        transaction_id += step
        log.append((lock_hash, transaction_id))
        exact.took([lock_hash] * repeat, [transaction_id] * repeat)
    expected = max((one for lock_hash, one in log if lock_hash == lock and above < one <= upper), default=-1)
    assert exact.newest(lock, above, upper) == expected


def test_what_exceeds_its_memory_is_forgotten_in_order_and_said() -> None:
    exact = ExactLocks(10_000, -1)
    exact.allowance.left = 1 << 30
    for at in range(0, 100_000, 100):
        exact.took([one % 5000 for one in range(at, at + 100)], list(range(at, at + 100)))
    assert 100_000 - 3 * 10_000 < exact.floor <= 100_000 - 10_000
    for lock in (0, 17, 4999):
        assert exact.newest(lock, exact.floor, 100_000) == 95_000 + lock
        assert exact.newest(lock, exact.floor, 95_000 + lock - 1) == 90_000 + lock
    assert exact.newest(5000, -1, 100_000) == -1
    known = [exact.newest(one % 5000, one - 1, one) == one for one in range(exact.floor - 100, 100_000)]
    assert known == [False] * 101 + [True] * (99_999 - exact.floor), "what is behind the floor is known, nothing else"


def test_what_is_remembered_is_bounded_however_many_locks_a_batch_takes() -> None:
    """Blocks were counted: of batches with very many locks it was a hundred times what was configured."""
    exact = ExactLocks(10_000, -1)
    for transaction_id in range(20):
        exact.took(range(50_000), [transaction_id] * 50_000)
    assert exact.floor == 18
    assert exact.newest(7, 18, 19) == 19
    assert sum(len(block.ids) for block in exact._blocks) == 50_000


def test_searches_stop_when_their_time_is_used_up_and_have_a_sixth_of_what_follows() -> None:
    """A search through all of a million takings costs more than a millisecond, and 2,000 came in one step."""
    exact = ExactLocks(1_000_000, -1)
    for at in range(0, 1_000_000, 4_000):
        exact.took(range(at, at + 4_000), range(at, at + 4_000))
    assert [exact.newest(-1, -1, 1_000_000) for _ in range(50)] == [-1] + [None] * 49
    assert exact.allowance.left <= 0
    exact.allowance.refill(1)
    assert exact.newest(999_999, -1, 1_000_000) == 999_999, "which the newest block knows"
    exact.allowance.refill(1_000)
    known = [exact.newest(999_999, -1, 1_000_000) for _ in range(1_000)]
    assert (known.count(999_999), known.count(None)) == (167, 833)


def test_places_that_only_look_like_a_lock_cost_what_it_takes_to_look_at_them() -> None:
    """Their bytes are those of 256 once they are shifted: a block of them takes a hundred times as long."""
    exact = ExactLocks(1_000_000, -1)
    exact.took([1] * 4_096, range(4_096))
    before = exact.allowance.left
    assert exact.newest(256, -1, 5_000) == -1
    assert before - exact.allowance.left > 1_000

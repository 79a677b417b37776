"""Majorities, and the decision on where a log ends."""

from __future__ import annotations

import itertools

import pytest

from waltz_core.base.quorum import decide, majority


@pytest.mark.parametrize(("n", "votes"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4)])
def test_two_majorities_always_meet(n: int, votes: int) -> None:
    """Twice a majority is more than everybody."""
    assert majority(n) == votes
    assert 2 * majority(n) > n


@pytest.mark.parametrize(
    ("marks", "lowest", "absent", "last", "decision"),
    [
        # (last session's size; marks; lowest voter) as in the worked examples of the reference
        ([12, 12], 12, 1, 3, 12),
        ([13, 11], 11, 1, 3, None),
        ([13, 11, 11], 11, 0, 3, 11),
        ([12, 8], 12, 1, 3, None),
        ([15, 15, 11], 11, 2, 5, None),
        ([15, 15, 11, 11], 11, 1, 5, None),
        ([15, 11, 11, 11], 11, 1, 5, 11),
        ([15, 14, 13], 13, 2, 5, None),
        ([5], 5, 1, 2, None),
        ([5], 5, 0, 1, 5),
        ([], 0, 3, 3, None),
    ],
)
def test_worked_examples(marks: list[int], lowest: int, absent: int, last: int, decision: int | None) -> None:
    """What may win, and what absent replicas still keep open."""
    assert decide(marks, lowest=lowest, absent=absent, quorum=majority(last)) == decision


def test_a_mark_below_the_smallest_voter_never_wins() -> None:
    """Two lagging replicas do not outvote a good one."""
    assert decide([9, 3, 3], lowest=9, absent=0, quorum=2) is None


@pytest.mark.parametrize("n", range(1, 6))
def test_no_committed_transaction_is_ever_given_up(n: int) -> None:
    """Against brute force: whatever the absent replicas hold, what a quorum holds is not above the decision.

    And a decision is made whenever nobody is absent and a quorum reaches the lowest mark that may win.
    """
    quorum, top = majority(n), 3
    for marks in itertools.product(range(-1, top + 1), repeat=n):
        for present in range(1, n + 1):
            seen = marks[:present]
            decision = decide(seen, lowest=min(seen), absent=n - present, quorum=quorum)
            # The absent may hold anything: the worst is that they hold everything.
            worst = sorted([*seen, *[top] * (n - present)], reverse=True)[quorum - 1]
            if decision is not None:
                assert decision >= worst
                assert sum(mark >= decision for mark in seen) >= quorum
            if present == n:
                assert decision == sorted(seen, reverse=True)[quorum - 1]


@pytest.mark.parametrize("n", range(1, 6))
def test_a_decision_does_not_depend_on_who_comes_first(n: int) -> None:
    """The order of marks is of no meaning."""
    for marks in itertools.product(range(3), repeat=n):
        for absent in range(2):
            expected = decide(sorted(marks), lowest=min(marks), absent=absent, quorum=majority(n + absent))
            assert decide(marks, lowest=min(marks), absent=absent, quorum=majority(n + absent)) == expected

"""What is known to have taken a lock, and when that is forgotten."""

from __future__ import annotations

import pytest

from waltz_core.client import taken
from waltz_core.client.gate import BOTH, DEPENDS, TAKES
from waltz_core.client.taken import TakenLocks


def test_the_last_transaction_that_took_a_lock_counts_for_those_who_depend_on_it() -> None:
    locks = TakenLocks()
    locks.add(5, {1: BOTH, 2: TAKES, 3: DEPENDS})
    locks.add(4, {1: BOTH, 4: TAKES})
    assert [locks.last({lock: DEPENDS}) for lock in range(5)] == [-1, 5, 5, -1, 4]
    assert locks.last({1: TAKES}) == -1
    assert locks.last({2: BOTH, 4: DEPENDS}) == 5
    locks.seen(4)
    assert locks.last({4: DEPENDS}) == 4, "behind 5, which became known before"
    locks.seen(5)
    assert len(locks) == 0


def test_nothing_is_kept_of_an_append_that_takes_nothing() -> None:
    locks = TakenLocks()
    locks.add(5, {1: DEPENDS})
    assert len(locks) == 0


def test_a_newer_transaction_is_not_forgotten_with_an_older_one() -> None:
    locks = TakenLocks()
    locks.add(4, {1: BOTH})
    locks.add(5, {1: BOTH})
    locks.seen(4)
    assert locks.last({1: BOTH}) == 5


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taken, "_KEPT", 3)
    locks = TakenLocks()
    for transaction_id in range(10):
        locks.add(transaction_id, {transaction_id: BOTH})
    assert [locks.last({lock: BOTH}) for lock in range(10)] == [-1] * 7 + [7, 8, 9]

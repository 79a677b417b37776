"""Which transactions are traced is a matter of their ids alone."""

from __future__ import annotations

from waltz_core.base.tracing import traced


def test_the_newest_transaction_that_is_traced_is_named() -> None:
    assert traced(100, 0, 1) == 0
    assert traced(100, 1, 99) == -1
    assert traced(100, 1, 100) == 100
    assert traced(100, 150, 300) == 400
    assert traced(1, 7, 3) == 9


def test_nothing_is_traced_where_none_is_wanted() -> None:
    assert traced(0, 0, 1000) == -1


def test_a_batch_that_is_split_or_joined_on_its_way_names_the_same_transactions() -> None:
    whole = {traced(10, first, 10) for first in range(0, 100, 10)}
    parts = {traced(10, first, 5) for first in range(0, 100, 5)} - {-1}
    assert whole == parts == set(range(0, 100, 10))

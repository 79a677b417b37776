"""Milliseconds from the lock check to the commit, by transaction."""

from __future__ import annotations

from waltz_core.server.response_times import ResponseTimes


def test_a_batch_counts_with_all_its_transactions_even_when_it_commits_in_parts() -> None:
    times = ResponseTimes()
    times.launched(1000, 9)
    times.launched(1002, 14)
    times.committed(1003, 4, 5)
    times.committed(1005, 9, 5)
    times.committed(1005, 14, 5)
    assert times.counts == {3: 10, 5: 5}


def test_long_times_keep_two_digits() -> None:
    times = ResponseTimes()
    for last, took in enumerate([99, 100, 1234, 98765]):
        times.launched(0, last)
        times.committed(took, last, 1)
    assert times.counts == {99: 1, 100: 1, 1200: 1, 98000: 1}


def test_what_the_next_session_commits_does_not_count() -> None:
    times = ResponseTimes()
    times.launched(0, 3)
    times.forget()
    times.committed(60_000, 3, 4)
    assert times.counts == {}

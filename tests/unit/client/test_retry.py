"""When a reading of a view is tried again, and after which pause."""

from __future__ import annotations

from random import Random

from waltz_core.client.retry import VIEW_RETRY, ViewTries


class _Middle(Random):
    def random(self) -> float:
        return 0.5


def test_an_error_that_passes_is_followed_by_pauses_that_double_up_to_a_limit_and_never_end() -> None:
    tries = ViewTries(_Middle())
    pauses = [tries.failed(transient=True) for _ in range(200)]
    assert pauses[:4] == [0.0075, 0.015, 0.03, 0.06]
    assert set(pauses[10:]) == {VIEW_RETRY.cap * 0.75}
    assert tries.count == 200


def test_an_error_that_does_not_pass_is_final() -> None:
    tries = ViewTries(_Middle())
    assert tries.failed(transient=True) is not None
    assert tries.failed(transient=False) is None
    assert tries.count == 1


def test_a_state_older_than_what_was_applied_is_read_again_until_it_is_not() -> None:
    tries = ViewTries(_Middle())
    assert [tries.shown(mark, 7) for mark in (5, 6)] == [0.0075, 0.015]
    assert tries.shown(7, 7) is None
    assert tries.shown(9, 7) is None
    assert ViewTries(_Middle()).shown(-1, -1) is None

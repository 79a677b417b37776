"""Pauses between attempts: growing, with jitter, up to a limit; and one line for people per change of the reason."""

from __future__ import annotations

import random

from waltz_core.base.attempts import Attempts


def test_pauses_grow_up_to_the_limit_and_begin_anew_after_a_success() -> None:
    attempts = Attempts(100, 1_000, random.Random(1))
    for least, most in ((50, 100), (100, 200), (200, 400), (400, 800), (500, 1_000), (500, 1_000)):
        attempts.failed("refused")
        assert least <= attempts.pause(5_000) - 5_000 <= most
    assert attempts.succeeded()
    assert 50 <= attempts.pause(0) <= 100


def test_what_failed_together_does_not_come_back_together() -> None:
    pauses = {Attempts(1_000, 8_000, random.Random(seed)).pause(0) for seed in range(50)}
    assert len(pauses) > 30
    assert min(pauses) < 600 < 900 < max(pauses)


def test_what_may_be_mended_is_tried_soon_and_its_reason_stays_known() -> None:
    attempts = Attempts(100, 1_000, random.Random(1))
    assert attempts.failed("refused")
    for _ in range(5):
        attempts.pause(0)
    attempts.hurry()
    assert attempts.pause(0) <= 100
    assert not attempts.failed("refused")


def test_no_pause_is_longer_than_the_limit_though_the_first_one_should_be() -> None:
    attempts = Attempts(5_000, 1_000, random.Random(1))
    assert all(500 <= attempts.pause(0) <= 1_000 for _ in range(5))


def test_each_reason_is_told_once_in_a_row_and_what_others_report_never() -> None:
    attempts = Attempts(100, 1_000, random.Random(1))
    tries = [("refused", False), ("refused", False), ("no connection", True), ("no node", False), ("refused", False)]
    assert [attempts.failed(reason, quiet=quiet) for reason, quiet in tries] == [True, False, False, True, True]
    assert attempts.succeeded()
    assert not attempts.failed("no connection", quiet=True)
    assert not attempts.succeeded(), "nothing was reported that could be over"

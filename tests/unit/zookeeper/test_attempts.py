"""Reading and writing a znode until it succeeds: when again, and what people hear."""

from __future__ import annotations

import random

import pytest

from waltz_core.base.attempts import Attempts
from waltz_core.base.edge import Level, Report, ZkError
from waltz_core.base.outbox import Outbox
from waltz_core.zookeeper.attempts import ZnodeAttempts

FAILING, WORKS = "it is not written", "it is written again"


class Bench:
    """The loop, its alarm and what it reports."""

    def __init__(self) -> None:
        self.out: Outbox[Report] = Outbox()
        self.alarm: int | None = None
        attempts = Attempts(100, 1_000, random.Random(1))
        self.attempts = ZnodeAttempts(attempts, self.out, self.ring, failing=FAILING, works=WORKS)

    def ring(self, at: int | None) -> None:
        self.alarm = at


def test_who_was_second_reads_again_at_once_and_nobody_hears_of_it() -> None:
    bench = Bench()
    assert bench.attempts.lost(5_000, ZkError.BAD_VERSION)
    assert (bench.alarm, bench.out.take()) == (None, [])


def test_any_other_failure_pauses_longer_each_time_and_is_reported_once() -> None:
    bench = Bench()
    for least, most in ((50, 100), (100, 200), (200, 400)):
        assert not bench.attempts.lost(5_000, ZkError.NO_NODE)
        assert bench.alarm is not None
        assert least <= bench.alarm - 5_000 <= most
    assert bench.out.take() == [Report(Level.WARNING, f"{FAILING}: {ZkError.NO_NODE.value}; tried again")]
    assert bench.attempts.succeeded()
    assert bench.out.take() == [Report(Level.INFO, WORKS)]
    bench.attempts.failed(5_000, "no number")
    assert bench.alarm is not None
    assert bench.alarm <= 5_100, "pauses begin anew"


@pytest.mark.parametrize("error", [error for error in ZkError if error.away])
def test_that_zookeeper_is_away_is_for_others_to_report(error: ZkError) -> None:
    bench = Bench()
    assert not bench.attempts.lost(5_000, error)
    assert not bench.attempts.succeeded()
    assert bench.out.take() == []


def test_who_gives_up_hears_no_alarm_and_reports_nothing() -> None:
    bench = Bench()
    bench.attempts.failed(5_000, "no number")
    bench.out.take()
    bench.attempts.give_up()
    assert bench.alarm is None
    assert (bench.attempts.succeeded(), bench.out.take()) == (False, [])

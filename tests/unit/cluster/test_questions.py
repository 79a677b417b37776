"""Questions to ZooKeeper: what is awaited, and the pauses after failures."""

from __future__ import annotations

import random

from waltz_core.base.contract import Tickets
from waltz_core.cluster.questions import (
    REQUEST_TIMEOUT_MS,
    RETRY_FIRST_MS,
    RETRY_MAX_MS,
    ListServers,
    Questions,
    ReadServers,
)


def questions() -> Questions:
    return Questions(Tickets(), random.Random(1))


def pause(asked: Questions, now: int = 0) -> int:
    """How long nothing is asked after one more failure."""
    asked.failed(now)
    assert asked.retry_at is not None
    return asked.retry_at - now


def test_pauses_grow_with_each_failure_until_one_succeeds() -> None:
    asked = questions()
    pauses = [pause(asked) for _ in range(20)]
    assert RETRY_FIRST_MS // 2 <= pauses[0] <= RETRY_FIRST_MS
    assert RETRY_MAX_MS // 2 <= pauses[-1] <= RETRY_MAX_MS
    asked.succeeded()
    assert pause(asked) <= RETRY_FIRST_MS


def test_a_session_that_is_back_is_asked_at_once() -> None:
    asked = questions()
    for _ in range(20):
        asked.failed(0)
    asked.connected(True)
    assert not asked.pausing(0)
    assert pause(asked) <= RETRY_FIRST_MS


def test_what_was_asked_before_the_session_changed_is_awaited_no_more() -> None:
    for connected in (False, True):
        asked = questions()
        ticket = asked.ask(0, ReadServers())
        asked.connected(connected)
        assert (asked.take(ticket), len(asked)) == (None, 0)


def test_a_pause_ends_at_its_time() -> None:
    asked = questions()
    end = pause(asked)
    assert (asked.pausing(end - 1), asked.pausing(end), asked.retry_at) == (True, False, None)


def test_what_is_overdue_is_awaited_no_more() -> None:
    asked = questions()
    first, second = asked.ask(0, ReadServers()), asked.ask(1, ListServers())
    assert asked.due == REQUEST_TIMEOUT_MS
    assert not asked.overdue(REQUEST_TIMEOUT_MS - 1)
    assert asked.overdue(REQUEST_TIMEOUT_MS)
    assert (asked.take(first), asked.take(second), len(asked)) == (None, ListServers(), 0)

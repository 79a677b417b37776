"""How much of its feed a partition asks for, and what the application gets of it: the whole outbox of every event."""

from __future__ import annotations

from tests.unit.client.bench import NOW, PartitionBench
from tests.unit.client.desk import foreign, submit
from waltz_core.base.ids import ReqId
from waltz_core.client.calls import Deliver
from waltz_core.client.settings import ClientSettings
from waltz_core.wire.client_messages import FeedData, FeedRequest, FeedWindowRequest

SMALL = ClientSettings(feed_buffer_max=10)


def mounted(*, windows: bool, deliver: bool = True) -> PartitionBench:
    """A partition whose application can hold ten transactions."""
    bench = PartitionBench(SMALL, deliver=deliver)
    bench.mount().windows = windows
    return bench


def feed(bench: PartitionBench, count: int) -> list[FeedData]:
    """The next transactions of others arrive."""
    before = bench.delivery.seen
    run = [foreign(before + 1 + at) for at in range(count)]
    bench.appends.fed(run)
    if bench.delivery.active:
        bench.delivery.hand_on(run, before)
        bench.window.moved(NOW)
    return run


def session(bench: PartitionBench) -> ReqId:
    assert bench.standing.session is not None
    return bench.standing.session


def test_a_window_asks_for_what_there_is_room_for() -> None:
    bench = mounted(windows=True)
    run = feed(bench, 3)
    bench.window.ask()
    assert bench.work() == ([Deliver(0, run)], [FeedWindowRequest(session(bench), 2, 7)])


def test_a_server_without_windows_is_asked_without_a_count() -> None:
    bench = mounted(windows=False)
    run = feed(bench, 3)
    bench.window.ask()
    assert bench.work() == ([Deliver(0, run)], [FeedRequest(session(bench), 2)])


def test_a_used_up_window_is_followed_by_the_next_one_only_when_half_of_the_room_is_free() -> None:
    bench = mounted(windows=True)
    bench.window.ask()
    feed(bench, 10)
    bench.work()
    bench.window.suspended()
    assert bench.work() == ([], [])
    assert bench.window.parked
    bench.window.consumed(NOW, 3)
    assert bench.work() == ([], []), "four are free"
    bench.window.consumed(NOW, 4)
    assert bench.work() == ([], [FeedWindowRequest(session(bench), 9, 5)])
    assert not bench.window.parked
    assert bench.window.behind, "less was asked for than there may be: an append needs a mount first"


def test_the_last_of_several_windows_is_the_one_that_counts() -> None:
    bench = mounted(windows=False)
    bench.window.ask()
    bench.window.ask()
    bench.work()
    bench.window.suspended()
    assert bench.work() == ([], [])
    bench.window.suspended()
    assert bench.work() == ([], [FeedRequest(session(bench), -1)])


def test_what_does_not_fit_is_dropped_and_asked_for_when_the_feed_is_quiet() -> None:
    bench = mounted(windows=False)
    run = feed(bench, 12)
    assert bench.work() == ([Deliver(0, run[:10])], [])
    assert (bench.delivery.gap, bench.delivery.delivered, bench.delivery.seen) == (True, 9, 11)
    bench.window.consumed(NOW, 9)
    assert bench.window.resume_at == NOW + 100
    feed(bench, 1)
    assert bench.work() == ([], []), "what follows a gap is not delivered"
    bench.window.due(NOW + 99)
    assert bench.work() == ([], [])
    bench.window.due(NOW + 100)
    assert bench.work() == ([], [FeedRequest(session(bench), 9)])
    assert not bench.delivery.gap


def test_a_verdict_needs_the_feed_even_where_the_application_has_no_room() -> None:
    bench = mounted(windows=False)
    bench.window.ask()
    feed(bench, 10)
    bench.appends.enqueue(submit("x"))
    bench.work()
    bench.window.suspended()
    assert bench.work() == ([], [FeedRequest(session(bench), 9)])
    assert not bench.window.parked


def test_a_feed_that_is_closed_goes_on_for_verdicts() -> None:
    bench = mounted(windows=True)
    bench.window.ask()
    feed(bench, 10)
    bench.window.suspended()
    bench.work()
    bench.window.stop()
    assert bench.work() == ([], [FeedRequest(session(bench), 9)])
    feed(bench, 30)
    assert bench.work() == ([], [])
    assert bench.delivery.seen == 39


def test_an_application_that_is_behind_is_brought_up_in_order_and_gets_nothing_twice() -> None:
    bench = mounted(windows=True)
    bench.delivery.begin(5)
    bench.delivery.move(2)
    bench.window.ask()
    assert bench.work() == ([], [FeedWindowRequest(session(bench), 2, 10)])
    again = [foreign(number) for number in range(1, 8)]
    before = bench.delivery.seen
    bench.appends.fed(again)
    bench.delivery.hand_on(again, before)
    assert bench.work() == ([Deliver(0, again[2:])], [])
    assert (bench.delivery.seen, bench.delivery.delivered) == (7, 7)


def test_only_what_was_delivered_can_be_consumed_and_only_once() -> None:
    bench = mounted(windows=True)
    feed(bench, 4)
    assert [bench.delivery.consume(mark) for mark in (4, 3, 3, 1)] == [False, True, False, False]
    assert bench.delivery.room == 10

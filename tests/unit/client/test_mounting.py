"""When a partition is mounted, and what comes of it: the whole outbox of every event."""

from __future__ import annotations

import pytest

from tests.unit.client.bench import NOW, PartitionBench, req
from tests.unit.client.desk import submit
from waltz_core.base.edge import Level, Report
from waltz_core.base.errors import ProtocolError
from waltz_core.client.calls import Failed, Phase, Reason, StatusChanged
from waltz_core.wire.client_messages import (
    FeedRequest,
    FeedWindowRequest,
    FlushRequest,
    MountRequest,
    MountResponse,
    PartitionState,
)


def status(phase: Phase, text: str = "") -> StatusChanged:
    return StatusChanged(0, phase, text)


def answer(bench: PartitionBench, state: int, sequence: int = 1) -> bool:
    return bench.mounting.answered(NOW, MountResponse(req(sequence), state))


def mounting(bench: PartitionBench) -> None:
    bench.mounting.place(NOW, bench.connect(), 1)
    assert bench.work() == ([status(Phase.MOUNTING)], [MountRequest(req(1), -1, 0)])


def test_a_partition_is_mounted_when_it_comes_to_a_connection() -> None:
    bench = PartitionBench()
    mounting(bench)
    assert answer(bench, PartitionState.READY)
    assert bench.work() == ([status(Phase.MOUNTED)], [FeedRequest(req(1), -1)])


def test_it_is_mounted_once_while_neither_its_place_nor_its_generation_changes() -> None:
    bench = PartitionBench()
    mounting(bench)
    bench.mounting.place(NOW, bench.standing.link, 1)
    assert bench.work() == ([], [])
    bench.mounting.place(NOW, bench.standing.link, 0)
    assert bench.work() == ([], [])
    bench.mounting.place(NOW, bench.standing.link, 2)
    assert bench.work() == ([], [MountRequest(req(2, 2), -1, 0)])


def test_a_generation_means_nothing_before_the_first_mount() -> None:
    bench = PartitionBench()
    bench.mounting.place(NOW, None, 1)
    bench.mounting.place(NOW, None, 2)
    assert bench.work() == ([], [])
    assert bench.standing.generation == 2


def test_a_server_that_is_not_ready_is_asked_again_after_a_pause() -> None:
    bench = PartitionBench()
    mounting(bench)
    assert not answer(bench, PartitionState.NOT_READY)
    assert bench.work() == ([status(Phase.NOT_READY)], [])
    assert bench.mounting.retry_at == NOW + 500
    bench.mounting.due(NOW + 499)
    assert bench.work() == ([], [])
    bench.mounting.due(NOW + 500)
    assert bench.work() == ([status(Phase.MOUNTING)], [MountRequest(req(2), -1, 0)])
    assert not answer(bench, PartitionState.READY)
    assert bench.work() == ([], []), "the answer to the first mount comes too late"


def test_a_lost_connection_ends_the_pause_and_waits_for_another_one() -> None:
    bench = PartitionBench()
    mounting(bench)
    answer(bench, PartitionState.NOT_READY)
    bench.work()
    bench.mounting.link_lost(NOW)
    assert bench.work() == ([status(Phase.WAITING)], [])
    bench.mounting.due(NOW + 10_000)
    assert bench.work() == ([], [])


def test_a_client_ahead_of_the_log_is_told_and_its_appends_end() -> None:
    bench = PartitionBench()
    bench.appends.enqueue(submit("x"))
    mounting(bench)
    answer(bench, PartitionState.CLIENT_AHEAD)
    text = "partition 0: this client is at -1, ahead of the log at a:1; "
    text += "is this the right cluster, or was the log restored?"
    told = [status(Phase.CLIENT_AHEAD), Report(Level.ERROR, text), Failed(0, "x", Reason.CLIENT_AHEAD)]
    assert bench.work() == (told, [])
    bench.appends.enqueue(submit("y"))
    assert bench.work() == ([Failed(0, "y", Reason.CLIENT_AHEAD)], [])


def test_a_state_that_does_not_exist_is_no_answer_of_a_server() -> None:
    bench = PartitionBench()
    mounting(bench)
    with pytest.raises(ProtocolError, match="unknown partition state 3"):
        answer(bench, 3)
    assert bench.work() == ([], [])


def test_a_log_that_begins_later_ends_the_appends_until_a_feed_is_opened_behind_it() -> None:
    bench = PartitionBench()
    bench.appends.enqueue(submit("x"))
    mounting(bench)
    bench.mounting.before_start(NOW, req(9), "begins at 5")
    assert bench.work() == ([], []), "that is about another mount"
    bench.mounting.before_start(NOW, req(1), "begins at 5")
    told = [
        status(Phase.BEFORE_START, "begins at 5"),
        Report(Level.ERROR, "partition 0: begins at 5"),
        Failed(0, "x", Reason.BEFORE_START),
    ]
    assert bench.work() == (told, [])


def test_who_only_appends_begins_anew_at_the_tail_of_a_log_that_begins_later() -> None:
    bench = PartitionBench()
    bench.delivery.active = False
    mounting(bench)
    bench.mounting.before_start(NOW, req(1), "begins at 5")
    told = [
        status(Phase.BEFORE_START, "begins at 5"),
        Report(Level.ERROR, "partition 0: begins at 5"),
        status(Phase.TAIL),
    ]
    assert bench.work() == (told, [])


def test_a_feed_that_was_mounted_ends_where_the_log_begins_later_too() -> None:
    bench = PartitionBench()
    mounting(bench)
    answer(bench, PartitionState.READY)
    bench.work()
    bench.mounting.before_start(NOW, req(1), "begins at 5")  # to the request for the feed, under the id of its mount
    told = [status(Phase.BEFORE_START, "begins at 5"), Report(Level.ERROR, "partition 0: begins at 5")]
    assert bench.work() == (told, [])


def test_a_role_that_may_not_mount_tries_again_after_a_pause() -> None:
    bench = PartitionBench()
    mounting(bench)
    assert not bench.mounting.not_allowed(NOW, req(2)), "that is no mount"
    assert bench.mounting.not_allowed(NOW, req(1))
    assert bench.work() == ([status(Phase.NOT_READY)], [])
    assert bench.mounting.retry_at == NOW + 500


def test_appends_without_an_outcome_are_judged_by_a_flush_before_the_feed_goes_on() -> None:
    bench = PartitionBench()
    link = bench.mount()
    bench.appends.send(NOW, submit("x"), link)
    bench.work()
    bench.mounting.lost_unnoticed(NOW)
    assert bench.work() == ([status(Phase.MOUNTING)], [MountRequest(req(3), -1, 0)])
    assert answer(bench, PartitionState.READY, 3)
    assert bench.work() == ([status(Phase.MOUNTED)], [FlushRequest(req(2)), FeedRequest(req(3), -1)])


def test_a_mount_that_was_cut_short_is_followed_by_another_one_while_an_append_waits() -> None:
    bench = PartitionBench()
    mounting(bench)
    assert bench.standing.link is not None
    bench.standing.link.windows = True
    bench.appends.enqueue(submit("x"))
    bench.window.suspended()
    assert not answer(bench, PartitionState.READY)
    assert bench.work() == ([], [MountRequest(req(2), -1, 0)])
    assert answer(bench, PartitionState.READY, 2)
    assert bench.work() == ([status(Phase.MOUNTED)], [FeedWindowRequest(req(2), -1, 100_000)])


def test_a_closed_partition_lives_on_no_connection() -> None:
    bench = PartitionBench()
    mounting(bench)
    bench.appends.enqueue(submit("x"))
    bench.mounting.close(NOW)
    assert bench.work() == ([Failed(0, "x", Reason.CLOSED), status(Phase.CLOSED)], [])
    assert bench.standing.link is None
    bench.mounting.mount(NOW)
    assert bench.work() == ([], [])

"""Appends from their queue to their verdict: the whole outbox of every event."""

from __future__ import annotations

import pytest

from tests.unit.client.bench import NOW, PartitionBench, req
from tests.unit.client.desk import foreign, submit
from waltz_core.base.ids import req_sequence
from waltz_core.client.calls import Committed, Failed, Flushed, Phase, Reason
from waltz_core.wire.client_messages import (
    AppendRefused,
    AppendRequest,
    FeedData,
    FlushRequest,
    FlushResponse,
    LockFailure,
    NamedAppendRequest,
    Refusal,
)


def sequences(messages: list[object]) -> list[int]:
    return [req_sequence(message.req_id) for message in messages]  # type: ignore[attr-defined]


def sent(count: int = 1) -> PartitionBench:
    """A mounted partition with appends 1, 2, … under way, whose request ids are 2, 3, …"""
    bench = PartitionBench()
    link = bench.mount()
    for number in range(1, count + 1):
        bench.appends.send(NOW, submit(number), link)
    effects, messages = bench.work()
    assert effects == []
    assert sequences(messages) == list(range(2, count + 2))
    return bench


def committed(bench: PartitionBench, *ids: int) -> list[FeedData]:
    first = bench.delivery.seen + 1
    return [FeedData(req(number), first + at, 0) for at, number in enumerate(ids)]


def test_an_append_carries_what_was_seen_unless_it_says_what_it_is_based_on() -> None:
    bench = PartitionBench()
    link = bench.mount()
    bench.delivery.seen = 8
    bench.appends.send(NOW, submit("x"), link)
    bench.appends.send(NOW, submit("y", mark=3), link)
    effects, messages = bench.work()
    assert effects == []
    assert [(type(message), message.client_mark) for message in messages] == [(AppendRequest, 8), (AppendRequest, 3)]


def test_a_run_goes_to_a_server_that_explains_in_one_piece_with_the_same_request_ids() -> None:
    bench = PartitionBench()
    link = bench.mount()
    link.explains = True
    bench.appends.send_run(NOW, [submit(number) for number in range(4)], 1, 4, link)
    bench.appends.send(NOW, submit("y"), link)
    effects, messages = bench.work()
    assert effects == []
    assert {type(message) for message in messages} == {NamedAppendRequest}
    assert sequences(messages) == [2, 3, 4, 5]
    bench.appends.fed(committed(bench, 2, 3, 4, 5))
    assert bench.work() == ([Committed(0, [(1, 0), (2, 1), (3, 2), ("y", 3)])], [])
    assert bench.delivery.seen == 3


def test_what_is_queued_leaves_in_order_as_far_as_the_connection_takes_it() -> None:
    bench = PartitionBench()
    bench.appends.enqueue(submit("x"))
    bench.appends.enqueue(submit("y"))
    assert bench.work() == ([], [])
    assert (bench.appends.queued, bench.appends.judged) == (2, False)
    link = bench.mount()
    link.writable = False
    bench.appends.send_queued(NOW, link)
    assert bench.work() == ([], [])
    link.writable = True
    bench.appends.send_queued(NOW, link)
    effects, messages = bench.work()
    assert effects == []
    assert [message.data for message in messages] == [b"'x'", b"'y'"]
    assert bench.appends.queued == 0


@pytest.mark.parametrize("phase", [Phase.CLIENT_AHEAD, Phase.BEFORE_START])
def test_an_append_to_a_log_that_cannot_be_followed_fails_at_once(phase: Phase) -> None:
    bench = PartitionBench()
    bench.standing.phase = phase
    bench.appends.enqueue(submit("x"))
    assert bench.work() == ([Failed(0, "x", Reason[phase.name])], [])


def test_a_refused_lock_is_believed_when_the_blocking_transaction_has_been_seen() -> None:
    bench = sent()
    bench.appends.lock_failure(NOW, LockFailure(req(2), 0))
    assert bench.work() == ([], [])
    assert bench.appends.unanswered_since() == NOW
    bench.appends.fed([foreign(0)])
    bench.appends.moved(NOW)
    assert bench.work() == ([Failed(0, 1, Reason.LOCK, 0)], [])
    assert bench.appends.unanswered_since() is None


def test_other_refusals_are_believed_at_once() -> None:
    bench = sent(2)
    bench.appends.refused(NOW, AppendRefused(req(2), Refusal.TOO_LARGE, -1, 0, -1, 0, -1, 0, "too large"))
    bench.appends.not_allowed(req(3), "read only")
    told = [Failed(0, 1, Reason.REFUSED, text="too large"), Failed(0, 2, Reason.REFUSED, text="read only")]
    assert bench.work() == (told, [])


def test_one_request_answers_every_flush_that_waits_for_no_later_append() -> None:
    bench = sent(2)
    bench.appends.flush(NOW, "f")
    bench.appends.flush(NOW, "g")
    assert bench.work() == ([], [FlushRequest(req(3))])
    bench.appends.flush_answered(NOW, FlushResponse(req(3), -1))
    bench.appends.answer_flushes()
    told = [Failed(0, 1, Reason.FLUSHED), Failed(0, 2, Reason.FLUSHED), Flushed(0, "f"), Flushed(0, "g")]
    assert bench.work() == (told, [])


def test_a_flush_behind_queued_appends_is_asked_for_when_they_have_left() -> None:
    bench = PartitionBench()
    bench.appends.enqueue(submit("x"))
    bench.appends.flush(NOW, "f")
    link = bench.mount()
    assert bench.work() == ([], [])
    bench.appends.send_queued(NOW, link)
    effects, messages = bench.work()
    assert effects == []
    assert [type(message) for message in messages] == [AppendRequest, FlushRequest]


def test_a_flush_with_nothing_to_wait_for_is_answered_at_once() -> None:
    bench = PartitionBench()
    bench.appends.flush(NOW, "f")
    assert bench.work() == ([Flushed(0, "f")], [])


def test_an_old_append_is_asked_about_and_a_loss_without_a_word_is_noticed_once() -> None:
    bench = sent()
    assert bench.appends.nudge_at() == NOW + 5_000
    bench.appends.due(NOW + 4_999)
    assert bench.work() == ([], [])
    bench.appends.due(NOW + 5_000)
    assert bench.work() == ([], [FlushRequest(req(2))])
    assert not bench.appends.lost_unnoticed()
    bench.appends.flush_answered(NOW, FlushResponse(req(2), -1))
    assert bench.work() == ([Failed(0, 1, Reason.FLUSHED)], [])
    assert bench.appends.lost_unnoticed()
    assert not bench.appends.lost_unnoticed()


def test_a_mount_forgets_what_was_asked_before_it() -> None:
    bench = sent()
    bench.appends.flush(NOW, "f")
    bench.appends.due(NOW + 5_000)
    bench.work()
    bench.appends.link_lost()
    bench.appends.remounted()
    bench.appends.flush_answered(NOW, FlushResponse(req(2), -1))
    assert bench.work() == ([], []), "the answer is of the connection before"
    bench.appends.mounted(NOW)
    assert bench.work() == ([], [FlushRequest(req(2))])


def test_giving_up_ends_what_was_sent_then_what_was_queued_then_the_flushes() -> None:
    bench = sent()
    bench.appends.enqueue(submit("x"))
    bench.appends.flush(NOW, "f")
    bench.appends.give_up(Reason.CLOSED)
    told = [Failed(0, 1, Reason.CLOSED), Failed(0, "x", Reason.CLOSED), Flushed(0, "f")]
    assert bench.work() == (told, [])
    assert bench.appends.judged

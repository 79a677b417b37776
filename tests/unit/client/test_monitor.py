"""The verdict on every append."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from waltz_core.base.ids import ReqId, make_req_id
from waltz_core.client.calls import Committed, Failed, Reason
from waltz_core.client.monitor import TransactionMonitor
from waltz_core.client.own_payloads import OwnPayloads, OwnRoom
from waltz_core.wire.client_messages import FeedData


def req(number: int, client: int = 7) -> ReqId:
    return make_req_id(client, 1, 0, number)


class Told(list[Any]):
    """All that a monitor has told so far."""

    put = list.append
    put_all = list.extend


def sent(*numbers: int) -> tuple[TransactionMonitor, Told]:
    """A monitor with attempts 1, 2, …, and what it tells; their tokens are their numbers."""
    told = Told()
    monitor = TransactionMonitor(0, told, OwnPayloads(OwnRoom(0)))
    for number in numbers:
        monitor.register(number * 10, number, req(number), number)
    return monitor, told


def feed(first: int, *requests: ReqId) -> list[FeedData]:
    return [FeedData(request, first + at, 0) for at, request in enumerate(requests)]


def failed(token: int, reason: Reason, blocking_id: int = -1) -> Failed:
    return Failed(0, token, reason, blocking_id)


def test_an_own_transaction_in_the_feed_is_committed() -> None:
    monitor, out = sent(1, 2)
    assert monitor.on_feed(feed(0, req(1), req(2)), -1) == 1
    assert out == [Committed(0, [(1, 0), (2, 1)])]
    assert monitor.unresolved == 0


def test_what_was_sent_before_a_committed_append_and_not_seen_is_lost() -> None:
    monitor, out = sent(1, 2, 3)
    monitor.on_feed(feed(0, req(3)), -1)
    assert out == [failed(1, Reason.OVERTAKEN), failed(2, Reason.OVERTAKEN), Committed(0, [(3, 0)])]


def test_foreign_transactions_decide_nothing() -> None:
    monitor, out = sent(1)
    assert monitor.on_feed(feed(0, req(1, client=8), req(1, client=9)), -1) == 1
    assert out == []
    assert monitor.unresolved == 1


@pytest.mark.parametrize("ids", [[5], [1, 0], [0, 0, 2], [-3, 0, 7]])
def test_ids_other_than_the_next_one_are_passed_over(ids: list[int]) -> None:
    monitor, out = sent(1)
    run = [FeedData(req(8, client=9), number, 0) for number in ids]
    assert monitor.on_feed(run, -1) == (0 if 0 in ids else -1)
    assert monitor.on_feed([FeedData(req(1), 99, 0)], 0) == 0
    assert out == []


def test_a_lock_failure_waits_until_the_blocking_transaction_was_seen() -> None:
    monitor, out = sent(1, 2)
    monitor.on_lock_failure(req(1), 1, -1)
    assert out == []
    assert monitor.holding
    monitor.on_feed(feed(0, req(1, client=9)), -1)
    assert out == []
    monitor.on_feed(feed(1, req(2, client=9)), 0)
    assert out == [failed(1, Reason.LOCK, 1)]
    assert monitor.unresolved == 1
    assert not monitor.holding


def test_a_refused_attempt_is_not_called_overtaken_by_an_append_in_the_same_piece_of_the_feed() -> None:
    monitor, out = sent(1, 2, 3)
    monitor.on_lock_failure(req(1), 0, -1)
    monitor.on_feed(feed(0, req(1, client=9), req(3)), -1)
    assert out == [failed(1, Reason.LOCK, 0), failed(2, Reason.OVERTAKEN), Committed(0, [(3, 1)])]


def test_a_lock_failure_of_the_past_is_believed_at_once() -> None:
    monitor, out = sent(1)
    monitor.on_lock_failure(req(1), 4, 4)
    assert out == [failed(1, Reason.LOCK, 4)]


def test_lock_failures_are_released_by_their_blocking_id_not_by_arrival() -> None:
    monitor, out = sent(1, 2, 3)
    monitor.on_lock_failure(req(1), 2, -1)
    monitor.on_lock_failure(req(2), 0, -1)
    monitor.on_lock_failure(req(3), 1, -1)
    for number in range(3):
        monitor.on_feed(feed(number, req(number, client=9)), number - 1)
    assert [effect.token for effect in out] == [2, 3, 1]


def test_an_attempt_that_failed_stays_failed_and_is_not_told_twice() -> None:
    monitor, out = sent(1, 2)
    monitor.on_lock_failure(req(1), -1, -1)
    out.clear()
    monitor.on_lock_failure(req(1), -1, -1)
    monitor.on_feed(feed(0, req(2)), -1)
    assert out == [Committed(0, [(2, 0)])]


def test_a_lock_failure_for_an_attempt_that_was_judged_meanwhile_is_dropped() -> None:
    monitor, out = sent(1, 2)
    monitor.on_lock_failure(req(1), 5, -1)
    monitor.on_feed(feed(0, req(2)), -1)
    out.clear()
    monitor.on_feed(feed(1, *[req(n, client=9) for n in range(5)]), 0)
    assert out == []
    monitor.on_lock_failure(req(99), 0, 5)
    assert out == []
    assert not monitor.holding


def test_a_flush_answer_fails_what_it_covers_once_its_mark_was_seen() -> None:
    monitor, out = sent(1, 2)
    assert monitor.begin_flush() == req(2)
    monitor.register(30, 3, req(3), 3)
    monitor.on_flush_response(req(2), 1, -1)
    assert out == []
    monitor.on_feed(feed(0, req(1), req(9, client=9)), -1)
    assert out == [Committed(0, [(1, 0)]), failed(2, Reason.FLUSHED)]
    assert monitor.unresolved == 1
    assert monitor.lost == 1


def test_flush_answers_are_believed_in_the_order_of_arrival() -> None:
    monitor, out = sent(1)
    monitor.begin_flush()
    monitor.on_flush_response(req(1), 3, -1)
    monitor.register(0, 2, req(2), 2)
    monitor.begin_flush()
    monitor.on_flush_response(req(2), 0, -1)
    monitor.on_feed(feed(0, req(5, client=9)), -1)
    assert out == []
    monitor.on_feed(feed(1, *[req(n, client=9) for n in range(3)]), 0)
    assert out == [failed(1, Reason.FLUSHED), failed(2, Reason.FLUSHED)]


def test_a_second_answer_to_the_same_flush_that_says_less_is_not_kept() -> None:
    monitor, out = sent(1)
    for mark in (1, 5, 0):
        monitor.begin_flush()
        monitor.on_flush_response(req(1), mark, -1)
    monitor.on_feed(feed(0, req(5, client=9), req(6, client=9)), -1)
    assert out == [failed(1, Reason.FLUSHED)]
    assert not monitor.holding


@pytest.mark.parametrize("mark", [-2, -(2**63)])
def test_a_store_that_is_not_open_decides_nothing(mark: int) -> None:
    monitor, out = sent(1)
    monitor.begin_flush()
    monitor.on_flush_response(req(1), mark, 0)
    assert out == []
    assert monitor.unresolved == 1


def test_an_answer_that_nobody_asked_for_decides_nothing() -> None:
    monitor, out = sent(1)
    monitor.on_flush_response(req(1), -1, 0)
    monitor.begin_flush()
    monitor.on_link_lost()
    monitor.on_flush_response(req(1), -1, 0)
    assert out == []


def test_nothing_unresolved_needs_no_flush() -> None:
    assert sent()[0].begin_flush() is None
    monitor, _ = sent(1)
    monitor.on_feed(feed(0, req(1)), -1)
    assert monitor.begin_flush() is None


def test_a_refusal_with_a_reason_is_told_with_it() -> None:
    monitor, out = sent(1, 2)
    monitor.on_refused(req(1), Reason.REFUSED, "too large")
    monitor.on_refused(req(1), Reason.REFUSED, "too large")
    assert out == [Failed(0, 1, Reason.REFUSED, text="too large")]
    oldest = monitor.oldest()
    assert oldest is not None
    assert oldest[2] == 2


def test_giving_up_ends_everything_without_a_verdict() -> None:
    monitor, out = sent(1, 2)
    monitor.on_lock_failure(req(1), 8, -1)
    monitor.give_up(Reason.CLOSED)
    assert out == [failed(1, Reason.CLOSED), failed(2, Reason.CLOSED)]
    assert (monitor.unresolved, monitor.holding, monitor.oldest()) == (0, False, None)
    assert not Reason.CLOSED.certain
    assert not Reason.CLIENT_AHEAD.certain
    assert Reason.LOCK.certain


def test_a_flush_passes_over_what_was_judged_before() -> None:
    monitor, out = sent(1, 2, 3)
    monitor.on_lock_failure(req(2), -1, -1)
    monitor.begin_flush()
    monitor.on_flush_response(req(3), -1, -1)
    assert out == [failed(2, Reason.LOCK, -1), failed(1, Reason.FLUSHED), failed(3, Reason.FLUSHED)]


# ---- against a reference -----------------------------------------------------------------------


class Reference:
    """The rules once more, slowly: a list of attempts and lists of answers that wait."""

    def __init__(self) -> None:
        self.attempts: list[dict[str, Any]] = []
        self.locks: list[tuple[int, int]] = []
        self.flushes: list[tuple[int, int]] = []
        self.seen = -1

    def settle(self, number: int, outcome: Any) -> None:
        attempt = next(a for a in self.attempts if a["number"] == number)
        attempt.setdefault("outcome", outcome)

    def on_feed(self, number: int | None) -> None:
        self.seen += 1
        if number is not None and not any(a["number"] == number and "outcome" in a for a in self.attempts):
            for blocking, refused in self.locks:
                if blocking <= self.seen and refused != number:
                    self.settle(refused, Reason.LOCK)  # known to be refused, not overtaken
            for attempt in self.attempts:
                if attempt["number"] == number:
                    attempt["outcome"] = self.seen
                    break
                attempt.setdefault("outcome", Reason.OVERTAKEN)

    def release(self) -> None:
        for blocking, number in sorted(self.locks):
            if blocking <= self.seen:
                self.settle(number, Reason.LOCK)
        self.locks = [entry for entry in self.locks if entry[0] > self.seen]
        while self.flushes and self.flushes[0][0] <= self.seen:
            _, last = self.flushes.pop(0)
            for attempt in self.attempts:
                if attempt["number"] <= last:
                    attempt.setdefault("outcome", Reason.FLUSHED)
        if all("outcome" in attempt for attempt in self.attempts):
            self.locks, self.flushes = [], []  # they have nothing to judge, and must not hold up later answers


ACTIONS = st.one_of(
    st.tuples(st.just("send")),
    st.tuples(st.just("own"), st.integers(1, 12)),
    st.tuples(st.just("foreign"), st.integers(1, 3)),
    st.tuples(st.just("lock"), st.integers(1, 12), st.integers(-1, 8)),
    st.tuples(st.just("flush"), st.integers(0, 6)),
)


@settings(max_examples=300, deadline=None)
@example([("send",), ("flush", 2), ("own", 1), ("send",), ("flush", 0)])
@given(st.lists(ACTIONS, max_size=40))
def test_it_judges_as_the_reference_does(actions: list[Any]) -> None:  # noqa: C901 - one case per action
    reference, out = Reference(), Told()
    monitor = TransactionMonitor(0, out, OwnPayloads(OwnRoom(0)))
    in_log: set[int] = set()
    mark = -1
    for action in actions:
        match action:
            case ("send",):
                number = len(reference.attempts) + 1
                reference.attempts.append({"number": number})
                monitor.register(0, number, req(number), number)
            case ("own", number) if number <= len(reference.attempts) and number not in in_log:
                in_log.add(number)
                reference.on_feed(number)
                reference.release()
                mark = monitor.on_feed(feed(mark + 1, req(number)), mark)
            case ("foreign", count):
                mark = monitor.on_feed(feed(mark + 1, *[req(n, client=9) for n in range(count)]), mark)
                for _ in range(count):
                    reference.on_feed(None)
                reference.release()  # once for the whole piece: of two answers that it brings, the locks say more
            case ("lock", number, blocking) if number <= len(reference.attempts):
                if "outcome" not in reference.attempts[number - 1]:
                    reference.locks.append((blocking, number))
                    reference.release()
                monitor.on_lock_failure(req(number), blocking, mark)
            case ("flush", ahead):
                asked = monitor.begin_flush()
                open_ = [a["number"] for a in reference.attempts if "outcome" not in a]
                assert (asked is None) == (not open_)
                if asked is not None:
                    last = len(reference.attempts)
                    waiting = reference.flushes
                    if not waiting or waiting[-1][1] < last or mark + ahead < waiting[-1][0]:
                        waiting.append((mark + ahead, last))
                    reference.release()
                    monitor.on_flush_response(asked, mark + ahead, mark)
    found: dict[Any, Any] = {}
    for effect in out:
        pairs = effect.outcomes if isinstance(effect, Committed) else [(effect.token, effect.reason)]
        for token, outcome in pairs:
            assert token not in found
            found[token] = outcome
    expected = {a["number"]: a["outcome"] for a in reference.attempts if "outcome" in a}
    assert found == expected
    assert monitor.unresolved == len(reference.attempts) - len(expected)


def test_a_refusal_waits_for_nothing_once_its_append_is_judged_otherwise() -> None:
    """The transaction it blames came to nothing with its session: its id is not seen until somebody commits again."""
    monitor, out = sent(1)
    monitor.on_lock_failure(req(1), 63, 58)
    assert monitor.holding
    assert monitor.begin_flush() == req(1)
    monitor.on_flush_response(req(1), 58, 58)
    assert out == [failed(1, Reason.FLUSHED)]
    assert not monitor.holding


def test_an_answer_to_a_flush_waits_for_nothing_once_its_appends_are_judged() -> None:
    monitor, _ = sent(1)
    assert monitor.begin_flush() == req(1)
    monitor.on_flush_response(req(1), 91, 90)
    assert monitor.holding
    monitor.on_refused(req(1), Reason.NOT_NOW, "the partition is closed")
    assert not monitor.holding
    monitor.begin_flush()
    monitor.on_flush_response(req(1), 95, 90)
    assert not monitor.holding

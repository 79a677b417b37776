"""The submits of one partition: slots, gate, limits, and what a decline is worth."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from waltz_core.client.calls import Failed, Reason
from waltz_core.client.keys import KeyEntry
from waltz_core.client.retry import Retry
from waltz_core.client.submit_calls import (
    AppendJudged,
    AppendsCommitted,
    AskMark,
    Decide,
    Decided,
    DecisionDeclined,
    Effect,
    Event,
    GaveUp,
    KeyFound,
    KeyReused,
    MarkAnswered,
    MarkReached,
    MarkWanted,
    NoMark,
    OutcomeUnknown,
    Send,
    StateUnreadable,
    SubmitBegun,
    SubmitDone,
    Unavailable,
    Verdict,
    ViewApplied,
    ViewPaused,
    Withdrawn,
    judge,
)
from waltz_core.client.submitter import Submitter

EXACT = Retry(jitter=0.0)


class Desk:
    """A machine and its clock."""

    def __init__(self, applied: int = -1, slots: int = 5) -> None:
        self.machine = Submitter(applied, slots, random.Random(1))
        self.now = 0

    def tell(self, *events: Event) -> list[Effect]:
        out: list[Effect] = []
        self.machine.step(self.now, events, out)
        return out

    def at(self, now: int) -> list[Effect]:
        self.now = now
        return self.tell()

    def begin(self, token: str, **options: Any) -> list[Effect]:
        return self.tell(SubmitBegun(token, options.pop("retry", EXACT), **options))

    def decided(self, token: str, *write: int, mark: int | None = None, **others: tuple[int, ...]) -> list[Effect]:
        return self.tell(Decided(token, self.machine.applied_mark if mark is None else mark, write, **others))

    def send(self, token: str, *write: int, mark: int | None = None, **others: tuple[int, ...]) -> None:
        assert self.decided(token, *write, mark=mark, **others) == [Send(token)]

    def judge(self, token: str, verdict: Verdict, transaction_id: int = -1) -> list[Effect]:
        return self.tell(AppendJudged(token, verdict, transaction_id))

    def empty(self) -> bool:
        machine = self.machine
        return (machine.waiting, machine.in_flight, machine.queued, machine.gated, machine.deadline()) == (
            0,
            0,
            0,
            0,
            None,
        )


# ---- the straight way ------------------------------------------------------------------------------


def test_a_submit_decides_sends_and_commits() -> None:
    desk = Desk()
    assert desk.begin("a") == [Decide("a")]
    desk.send("a")
    assert desk.judge("a", Verdict.COMMITTED, 7) == [SubmitDone("a", 7, 1, 0)]
    assert desk.empty()


def test_appends_that_committed_together_are_done_each_with_its_own_transaction() -> None:
    desk = Desk()
    for token in "abcd":
        desk.begin(token, until_applied=token == "c")
        desk.send(token)
    desk.tell(Withdrawn("b"))
    outcomes: list[tuple[object, int]] = [("a", 7), ("b", 8), ("nobody", 9), ("c", 10), ("d", 11)]
    assert desk.tell(AppendsCommitted(outcomes)) == [SubmitDone("a", 7, 1, 0), SubmitDone("d", 11, 1, 0)]
    assert desk.machine.committed_mark == 11
    assert desk.machine.in_flight == 0
    assert desk.tell(ViewApplied(10)) == [SubmitDone("c", 10, 1, 0)]
    assert desk.empty()


def test_until_applied_waits_for_the_view() -> None:
    desk = Desk()
    for token in "ab":
        desk.begin(token, until_applied=True)
        desk.send(token)
    assert desk.judge("a", Verdict.COMMITTED, 7) == []
    assert desk.machine.in_flight == 1, "the slot is free for others"
    assert desk.tell(ViewApplied(6)) == []
    assert desk.tell(ViewApplied(8)) == [SubmitDone("a", 7, 1, 0)]
    assert desk.judge("b", Verdict.COMMITTED, 8) == [SubmitDone("b", 8, 1, 0)]
    assert desk.empty()


def test_slots_are_given_in_the_order_of_coming() -> None:
    desk = Desk(slots=1)
    assert desk.tell(*(SubmitBegun(token, EXACT) for token in "abc")) == [Decide("a")]
    assert (desk.machine.in_flight, desk.machine.queued) == (1, 2)
    desk.send("a")
    assert desk.tell(Withdrawn("b")) == []
    assert desk.judge("a", Verdict.COMMITTED, 0) == [SubmitDone("a", 0, 1, 0), Decide("c")]
    assert desk.tell(Withdrawn("c")) == []
    assert desk.empty()


def test_an_append_keeps_its_slot_when_its_caller_has_left() -> None:
    desk = Desk(slots=1)
    desk.begin("a")
    desk.send("a")
    assert desk.tell(Withdrawn("a")) == []
    assert desk.begin("b") == []
    assert desk.judge("a", Verdict.CONFLICT, 3) == [Decide("b")]
    desk.tell(Withdrawn("b"))
    assert desk.empty()


def test_an_outcome_that_nobody_knows_ends_the_submit() -> None:
    desk = Desk()
    desk.begin("a")
    desk.send("a")
    assert desk.judge("a", Verdict.UNKNOWN) == [OutcomeUnknown("a")]
    assert desk.empty()


# ---- again and again -------------------------------------------------------------------------------


def test_a_conflict_waits_for_what_blocked_it() -> None:
    desk = Desk()
    desk.begin("a")
    desk.send("a")
    assert desk.judge("a", Verdict.CONFLICT, 3) == []
    assert desk.tell(ViewApplied(2)) == []
    assert desk.tell(ViewApplied(3)) == [Decide("a")]
    desk.send("a")
    assert desk.judge("a", Verdict.CONFLICT, 3) == [Decide("a")], "applied already"
    desk.send("a")
    assert desk.judge("a", Verdict.COMMITTED, 4) == [SubmitDone("a", 4, 3, 2)]
    assert desk.empty()


def test_a_loss_gives_the_place_at_a_lock_to_others() -> None:
    desk = Desk(applied=9)
    for token in "ab":
        desk.begin(token)
    desk.send("a", 1)
    assert desk.decided("b", 1) == []
    assert desk.judge("a", Verdict.LOST) == [Decide("b")]
    desk.send("b", 1)
    assert desk.at(10) == [Decide("a")]
    assert desk.decided("a", 1) == [], "behind b now"
    assert desk.judge("b", Verdict.COMMITTED, 10) == [SubmitDone("b", 10, 1, 0)]
    assert desk.tell(ViewApplied(10)) == [Decide("a")]
    desk.tell(Withdrawn("a"))
    assert desk.empty()


@pytest.mark.parametrize("retry", [Retry(give_up_after=1.7e308), Retry(base=1.7e308, cap=math.inf, jitter=0)])
def test_times_that_no_clock_holds_are_limits_and_pauses_without_an_end(retry: Retry) -> None:
    desk = Desk()
    desk.begin("a", retry=retry)
    desk.send("a")
    assert desk.judge("a", Verdict.LOST) == []
    assert desk.machine.deadline() is not None
    assert desk.machine.waiting == 1


def test_a_loss_is_repeated_after_a_pause() -> None:
    desk = Desk()
    desk.begin("a")
    desk.send("a")
    assert desk.judge("a", Verdict.LOST) == []
    assert desk.machine.deadline() == 10
    assert desk.at(9) == []
    assert desk.at(10) == [Decide("a")]
    desk.send("a")
    desk.judge("a", Verdict.LOST)
    assert desk.machine.deadline() == 30, "pauses grow"
    assert desk.at(30) == [Decide("a")]
    desk.send("a")
    assert desk.judge("a", Verdict.COMMITTED, 0) == [SubmitDone("a", 0, 3, 0)]


# ---- locks that are known to be taken ------------------------------------------------------------------


def test_what_was_just_committed_is_applied_before_its_lock_is_sent_again() -> None:
    """As when a caller submits again for the same account: the server would refuse it."""
    desk = Desk(applied=9)
    desk.begin("a")
    desk.send("a", 1)
    assert desk.judge("a", Verdict.COMMITTED, 12) == [SubmitDone("a", 12, 1, 0)]
    for token in "bc":
        desk.begin(token)
    assert desk.decided("b", 1) == []
    assert desk.machine.in_flight == 1, "it waits without a slot"
    desk.send("c", 2)
    assert desk.judge("c", Verdict.COMMITTED, 13) == [SubmitDone("c", 13, 1, 0)]
    assert desk.tell(ViewApplied(11)) == []
    assert desk.tell(ViewApplied(12)) == [Decide("b")]
    desk.send("b", 1)
    assert desk.judge("b", Verdict.COMMITTED, 14) == [SubmitDone("b", 14, 1, 0)]
    assert desk.empty()


def commit_again_and_again(desk: Desk, times: int, *locks: int, first: int) -> int:
    """Submits in a row for the same locks, each begun before the view has its last one; gives the last mark."""
    for mark in range(first, first + times):
        decided = desk.begin("again") == [Decide("again")] and desk.decided("again", *locks) == [Send("again")]
        if not decided:
            assert desk.tell(ViewApplied(mark - 1)) == [Decide("again")]
            desk.send("again", *locks)
        assert desk.judge("again", Verdict.COMMITTED, mark) == [SubmitDone("again", mark, 1, 0)]
    return first + times - 1


def test_who_would_mostly_decide_in_vain_is_held_until_the_view_has_what_is_committed() -> None:
    desk = Desk()
    mark = commit_again_and_again(desk, 9, 1, first=0)
    assert desk.begin("a") == desk.begin("b") == []
    assert (desk.machine.in_flight, desk.machine.queued) == (0, 2)
    assert desk.tell(Withdrawn("b")) == []
    assert desk.tell(ViewApplied(mark - 1)) == []
    assert desk.tell(ViewApplied(mark)) == [Decide("a")]
    assert desk.begin("c") == [Decide("c")], "the view has everything"
    desk.send("a", 1)
    desk.send("c", 2)
    for token, transaction_id in (("a", mark + 1), ("c", mark + 2)):
        assert desk.judge(token, Verdict.COMMITTED, transaction_id) == [SubmitDone(token, transaction_id, 1, 0)]
    assert desk.empty()


def test_nobody_is_held_where_submits_have_nothing_to_do_with_each_other() -> None:
    desk = Desk()
    mark = commit_again_and_again(desk, 9, 1, first=0)
    for lock in range(10, 14):  # held, and in vain
        mark += 1
        assert desk.begin("other") in ([], [Decide("other")])
        desk.tell(ViewApplied(mark - 1))
        desk.send("other", lock)
        desk.judge("other", Verdict.COMMITTED, mark)
    assert desk.machine.committed_mark > desk.machine.applied_mark
    assert desk.begin("a") == [Decide("a")]
    desk.tell(Withdrawn("a"))
    assert desk.empty()


def test_who_is_held_gives_up_in_time_and_learns_of_a_pause() -> None:
    desk = Desk()
    commit_again_and_again(desk, 9, 1, first=0)
    assert desk.begin("a", retry=Retry(give_up_after=0.5)) == desk.begin("b") == []
    assert desk.at(499) == []
    assert desk.at(500) == [GaveUp("a", 0)]
    assert desk.tell(ViewPaused()) == [Unavailable("b")]
    assert desk.empty()


def test_who_only_takes_a_lock_depends_on_nobody() -> None:
    desk = Desk(applied=9)
    for token in "abcr":
        desk.begin(token)
    desk.send("a", append=(1,))
    desk.send("b", append=(1,))
    assert desk.judge("a", Verdict.COMMITTED, 10) == [SubmitDone("a", 10, 1, 0)]
    desk.send("c", append=(1,))
    assert desk.decided("r", read=(1,)) == []
    assert desk.judge("b", Verdict.COMMITTED, 11) == [SubmitDone("b", 11, 1, 0)]
    assert desk.judge("c", Verdict.COMMITTED, 12) == [SubmitDone("c", 12, 1, 0)]
    assert desk.tell(ViewApplied(11)) == []
    assert desk.tell(ViewApplied(12)) == [Decide("r")], "all of them have taken it"
    desk.tell(Withdrawn("r"))
    assert desk.empty()


def test_a_reader_of_a_lock_waits_for_who_took_it_and_for_no_reader() -> None:
    desk = Desk(applied=9)
    for token in "abcw":
        desk.begin(token)
    desk.send("a", 5, read=(1,))
    desk.send("b", 6, read=(1,))
    assert desk.decided("w", 1) == []
    assert desk.decided("c", 7, read=(1,)) == [], "readers pass no writer that waits"
    assert desk.judge("a", Verdict.COMMITTED, 10) == [SubmitDone("a", 10, 1, 0)]
    assert desk.judge("b", Verdict.COMMITTED, 11) == [SubmitDone("b", 11, 1, 0), Decide("w")], "they took nothing of it"
    desk.send("w", 1)
    assert desk.judge("w", Verdict.COMMITTED, 12) == [SubmitDone("w", 12, 1, 0)]
    assert desk.tell(ViewApplied(12)) == [Decide("c")]
    desk.send("c", 7, read=(1,))
    desk.judge("c", Verdict.COMMITTED, 13)
    assert desk.empty()


def test_submits_of_one_lock_go_one_after_the_other_each_behind_the_last_in_the_view() -> None:
    desk = Desk(applied=9)
    for token in "abcd":
        desk.begin(token)
    desk.send("a", 1)
    for token in "bcd":
        assert desk.decided(token, 1) == []
    assert (desk.machine.gated, desk.machine.in_flight) == (3, 1)
    assert desk.judge("a", Verdict.COMMITTED, 10) == [SubmitDone("a", 10, 1, 0)]
    assert desk.tell(ViewApplied(10)) == [Decide("b")], "handed to one"
    desk.send("b", 1)
    assert desk.judge("b", Verdict.CONFLICT, 12) == [], "somebody else was there; it stays the first"
    assert desk.tell(ViewApplied(12)) == [Decide("b")]
    assert desk.tell(DecisionDeclined("b", 12)) == [AskMark(), Decide("c")], "nobody waits for its question"
    desk.send("c", 1)
    assert desk.tell(Withdrawn("c")) == []
    assert desk.machine.gated == 1, "what was sent keeps its place until the outcome"
    assert desk.judge("c", Verdict.COMMITTED, 13) == []
    assert desk.tell(ViewApplied(13)) == [Decide("d")]
    desk.send("d", 1)
    desk.judge("d", Verdict.COMMITTED, 14)
    assert desk.tell(MarkAnswered(12)) == [SubmitDone("b", None, 1, 1)]
    assert desk.empty()


def test_who_decides_for_other_locks_keeps_its_first_place_and_queues_for_both() -> None:
    desk = Desk(applied=9)
    for token in "abc":
        desk.begin(token)
    desk.send("a", 1)
    desk.send("b", 2)
    assert desk.decided("c", 1) == []
    assert desk.judge("a", Verdict.LOST) == [Decide("c")]
    assert desk.decided("c", 2) == []
    assert desk.judge("b", Verdict.UNKNOWN) == [OutcomeUnknown("b"), Decide("c")]
    desk.send("c")
    assert desk.at(10) == [Decide("a")]
    assert desk.decided("a", 1) == []
    assert desk.judge("c", Verdict.CONFLICT, 3) == [Decide("c")]
    desk.send("c", 2)
    assert desk.judge("c", Verdict.COMMITTED, 11) == [SubmitDone("c", 11, 2, 1), Decide("a")]
    desk.tell(Withdrawn("a"))
    assert desk.empty()


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_snapshot_without_what_the_view_has_applied_is_taken_again(attempts: int) -> None:
    """At once, as the view may have moved since `decide` began; a database that lags gets a pause."""
    desk = Desk(applied=9)
    for token in "ab":
        desk.begin(token, retry=Retry(attempts=attempts, jitter=0.0))
    desk.send("a", 1)
    desk.judge("a", Verdict.COMMITTED, 11)
    desk.tell(ViewApplied(11))
    assert desk.decided("b", 1, mark=9) == [Decide("b")]
    answer = desk.decided("b", 1, mark=10)
    if attempts == 1:
        assert answer == [GaveUp("b", 1)]
    else:
        assert answer == []
        assert desk.at(10) == [Decide("b")]
        desk.send("b", 1, mark=11)
        assert desk.judge("b", Verdict.COMMITTED, 12) == [SubmitDone("b", 12, 1, 0)]
    assert desk.empty()


# ---- limits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", ["conflict", "loss", "view"])
def test_the_number_of_tries_is_a_limit_whatever_fails(failure: str) -> None:
    desk = Desk(applied=99)
    desk.begin("a", retry=Retry(attempts=3, jitter=0.0))
    answers: list[Effect] = []
    for tries in range(1, 4):
        if failure == "view":
            answers = desk.tell(StateUnreadable("a"))
        else:
            desk.send("a")
            answers = desk.judge("a", Verdict.CONFLICT if failure == "conflict" else Verdict.LOST, 0)
        if tries < 3:
            answers = answers or desk.at(desk.machine.deadline() or 0)
            assert answers == [Decide("a")]
    assert answers == [GaveUp("a", 3)]
    assert desk.empty()


def test_what_would_be_refused_again_is_not_tried_again() -> None:
    desk = Desk(applied=99)
    desk.begin("a")
    desk.send("a")
    assert desk.judge("a", Verdict.REFUSED) == [GaveUp("a", 1)]
    assert desk.empty()


@pytest.mark.parametrize(
    ("reason", "verdict"),
    [
        (Reason.REFUSED, Verdict.REFUSED),
        (Reason.NOT_NOW, Verdict.LOST),
        (Reason.OTHER, Verdict.LOST),
        (Reason.FLUSHED, Verdict.LOST),
        (Reason.OVERTAKEN, Verdict.LOST),
        (Reason.LOCK, Verdict.CONFLICT),
        (Reason.CLOSED, Verdict.UNKNOWN),
        (Reason.CLIENT_AHEAD, Verdict.UNKNOWN),
        (Reason.BEFORE_START, Verdict.UNKNOWN),
    ],
)
def test_only_a_refusal_for_good_ends_a_submit(reason: Reason, verdict: Verdict) -> None:
    assert judge("a", Failed(0, "a", reason)).verdict is verdict


def test_time_is_a_limit_while_the_view_is_down() -> None:
    desk = Desk()
    desk.begin("a", retry=Retry(give_up_after=1.0, jitter=0.0))
    tries = 0
    while True:
        tries += 1
        assert desk.tell(StateUnreadable("a")) == []
        at = desk.machine.deadline()
        assert at is not None
        assert at <= 1000
        answer = desk.at(at)
        if answer != [Decide("a")]:
            break
    assert (answer, desk.now) == ([GaveUp("a", tries)], 1000)
    assert desk.empty()


@pytest.mark.parametrize("place", ["view", "gate", "slot", "pause", "mark", "behind"])
def test_time_is_a_limit_in_every_wait_before_another_attempt(place: str) -> None:
    desk = Desk(slots=1)
    if place == "gate":
        desk.machine.in_flight_max = 2
        desk.begin("first")
        desk.send("first", 1)
    desk.begin("a", retry=Retry(give_up_after=1.0, jitter=0.0, base=5.0))
    if place in ("view", "slot"):
        desk.send("a")
    match place:
        case "view":
            assert desk.judge("a", Verdict.CONFLICT, 5) == []
        case "gate":
            assert desk.decided("a", 1) == []
            assert desk.machine.gated == 1
        case "slot":
            desk.judge("a", Verdict.CONFLICT, 5)
            assert desk.begin("other") == [Decide("other")]
            assert desk.tell(ViewApplied(5)) == []
            assert desk.machine.queued == 1
        case "pause":
            desk.tell(StateUnreadable("a"))
        case "mark":
            assert desk.tell(DecisionDeclined("a", 5)) == [AskMark()]
        case _:
            desk.tell(DecisionDeclined("a", 5))
            assert desk.tell(MarkAnswered(6)) == []
    assert desk.machine.deadline() == 1000
    tries = 0 if place in ("mark", "behind", "gate") else 1
    assert desk.at(1000) == [GaveUp("a", tries, gated=place == "gate")]
    assert desk.machine.queued == 0


def test_no_limit_ends_the_wait_for_an_outcome_or_for_the_view_afterwards() -> None:
    desk = Desk()
    desk.begin("a", retry=Retry(give_up_after=1.0), until_applied=True)
    desk.send("a")
    assert desk.machine.deadline() is None
    desk.now = 5000
    assert desk.judge("a", Verdict.COMMITTED, 3) == []
    assert desk.machine.deadline() is None
    assert desk.tell(ViewApplied(3)) == [SubmitDone("a", 3, 1, 0)]


def test_time_runs_from_the_first_attempt() -> None:
    desk = Desk(slots=1)
    desk.begin("a")
    desk.begin("b", retry=Retry(give_up_after=0.0))
    assert desk.at(5000) == []
    assert desk.tell(Withdrawn("a")) == [Decide("b")]
    desk.send("b")
    assert desk.judge("b", Verdict.LOST) == [GaveUp("b", 1)]


def test_who_allows_one_attempt_gets_its_decline_confirmed() -> None:
    desk = Desk(applied=5)
    desk.begin("a", retry=Retry(attempts=1, give_up_after=0.0))
    assert desk.tell(DecisionDeclined("a", 5)) == [AskMark()]
    assert desk.tell(MarkAnswered(5)) == [SubmitDone("a", None, 0, 0)]


# ---- declines ----------------------------------------------------------------------------------------


def test_a_decline_on_everything_that_was_committed_is_right() -> None:
    desk = Desk(applied=5)
    desk.begin("a")
    assert desk.tell(DecisionDeclined("a", 5)) == [AskMark()]
    assert desk.machine.in_flight == 0, "asking takes no slot"
    assert desk.tell(MarkAnswered(5)) == [SubmitDone("a", None, 0, 0)]
    assert desk.empty()


def test_a_decline_on_an_older_state_is_decided_again() -> None:
    desk = Desk(applied=5)
    desk.begin("a")
    desk.tell(DecisionDeclined("a", 5))
    assert desk.tell(MarkAnswered(7)) == []
    assert desk.tell(ViewApplied(6)) == []
    assert desk.tell(ViewApplied(7)) == [Decide("a")]
    desk.send("a")
    assert desk.judge("a", Verdict.COMMITTED, 8) == [SubmitDone("a", 8, 1, 0)]


def test_one_answer_serves_every_later_decline_of_the_call() -> None:
    desk = Desk(applied=5)
    desk.begin("a")
    desk.tell(DecisionDeclined("a", 5), MarkAnswered(7))
    assert desk.tell(ViewApplied(7)) == [Decide("a")]
    assert desk.tell(DecisionDeclined("a", 7)) == [SubmitDone("a", None, 0, 0)]
    assert desk.empty()


def test_a_snapshot_of_a_lagging_database_is_read_again_later() -> None:
    """The view of this process has applied it, but what `decide` saw was older still."""
    desk = Desk(applied=5)
    desk.begin("a")
    desk.tell(DecisionDeclined("a", 3))
    assert desk.tell(MarkAnswered(5)) == [Decide("a")]
    assert desk.tell(DecisionDeclined("a", 4)) == []
    assert desk.at(10) == [Decide("a")]
    assert desk.tell(DecisionDeclined("a", 5)) == [SubmitDone("a", None, 0, 0)]


def test_a_decline_may_be_taken_as_it_is() -> None:
    desk = Desk(applied=5)
    desk.begin("a", confirm=False)
    assert desk.tell(DecisionDeclined("a", 5)) == [SubmitDone("a", None, 0, 0)]


def test_a_question_under_way_answers_nobody_who_came_after_it() -> None:
    desk = Desk(applied=5)
    for token in "abc":
        desk.begin(token)
    assert desk.tell(DecisionDeclined("a", 5)) == [AskMark()]
    assert desk.tell(DecisionDeclined("b", 5), DecisionDeclined("c", 5)) == []
    assert desk.tell(MarkAnswered(5)) == [AskMark(), SubmitDone("a", None, 0, 0)]
    assert desk.tell(Withdrawn("b")) == []
    assert desk.tell(MarkAnswered(6)) == []
    assert desk.tell(ViewApplied(6)) == [Decide("c")]
    assert desk.machine.committed_mark == 6


# ---- locks that are expected -----------------------------------------------------------------------------


def test_who_expects_a_lock_decides_once_behind_those_before_it() -> None:
    desk = Desk(applied=9)
    assert desk.begin("a", expects=(1,)) == [Decide("a")]
    assert desk.begin("b", expects=(1,)) == desk.begin("c", expects=(1,)) == []
    assert (desk.machine.gated, desk.machine.in_flight) == (2, 1)
    desk.send("a", 1)
    assert desk.judge("a", Verdict.COMMITTED, 10) == [SubmitDone("a", 10, 1, 0)]
    assert desk.tell(ViewApplied(9)) == [], "the view has not got what took the lock"
    assert desk.tell(ViewApplied(10)) == [Decide("b")]
    desk.send("b", 1)
    assert desk.judge("b", Verdict.COMMITTED, 11) == [SubmitDone("b", 11, 1, 0)]
    assert desk.begin("d", expects=(1,)) == []
    assert desk.tell(ViewApplied(11)) == [Decide("c")]
    desk.send("c", 1)
    assert desk.judge("c", Verdict.COMMITTED, 12) == [SubmitDone("c", 12, 1, 0)]
    assert desk.tell(ViewApplied(12)) == [Decide("d")]
    desk.send("d", 1)
    desk.judge("d", Verdict.COMMITTED, 13)
    assert desk.begin("e", expects=(1,)) == [], "alone at the lock, but the view is behind"
    assert desk.tell(ViewApplied(13)) == [Decide("e")]
    desk.tell(Withdrawn("e"))
    assert desk.empty()


def test_who_expected_other_locks_than_it_wants_lets_them_go_and_queues_for_its_own() -> None:
    desk = Desk(applied=9)
    desk.begin("wrong", expects=(1,))
    assert desk.begin("right", expects=(1,)) == []
    desk.begin("first")
    desk.send("first", 2)
    assert desk.decided("wrong", 2) == [Decide("right")], "handed on before it has an outcome, or its turn"
    desk.send("right", 1)
    assert desk.judge("first", Verdict.COMMITTED, 10) == [SubmitDone("first", 10, 1, 0)]
    assert desk.tell(ViewApplied(10)) == [Decide("wrong")]
    assert desk.decided("wrong", 1, 2) == [], "what it decided on before is kept: behind who has the other"
    assert desk.judge("right", Verdict.COMMITTED, 11) == [SubmitDone("right", 11, 1, 0)]
    assert desk.tell(ViewApplied(11)) == [Decide("wrong")]
    desk.send("wrong", 1, 2)
    assert desk.judge("wrong", Verdict.COMMITTED, 12) == [SubmitDone("wrong", 12, 1, 0)]
    assert desk.empty()


def test_who_expected_more_than_it_wants_is_sent_at_once() -> None:
    desk = Desk(applied=9)
    desk.begin("a", expects=(1, 2))
    desk.send("a", read=(1,))
    assert desk.begin("b", expects=(2,)) == []
    assert desk.judge("a", Verdict.COMMITTED, 10) == [SubmitDone("a", 10, 1, 0), Decide("b")], "it did not take it"
    assert desk.tell(DecisionDeclined("b", 9)) == [AskMark()]
    desk.tell(MarkAnswered(9))
    assert desk.empty()


def test_an_expectation_is_no_lock_the_log_still_refuses_what_others_took() -> None:
    desk = Desk(applied=9)
    desk.begin("a", expects=(1,))
    desk.send("a", 1)
    assert desk.judge("a", Verdict.CONFLICT, 12) == []
    assert desk.begin("b", expects=(1,)) == []
    assert desk.tell(ViewApplied(12)) == [Decide("a")]
    desk.send("a", 1)
    assert desk.judge("a", Verdict.COMMITTED, 13) == [SubmitDone("a", 13, 2, 1)]
    assert desk.tell(ViewApplied(13)) == [Decide("b")]
    desk.tell(Withdrawn("b"))
    assert desk.empty()


def test_who_waits_for_what_it_expects_gives_up_in_time_leaves_and_learns_of_a_pause() -> None:
    desk = Desk(applied=9)
    desk.begin("a", expects=(1,))
    desk.send("a", 1)
    for token, retry in (("gives up", Retry(give_up_after=0.5)), ("leaves", EXACT), ("waits", EXACT)):
        assert desk.begin(token, retry=retry, expects=(1,)) == []
    assert desk.tell(Withdrawn("leaves")) == []
    assert desk.at(499) == []
    assert desk.at(500) == [GaveUp("gives up", 0, gated=True)]
    assert desk.tell(ViewPaused()) == [Unavailable("waits")]
    assert desk.begin("late", expects=(1,)) == [Unavailable("late")]
    desk.judge("a", Verdict.COMMITTED, 10)
    assert desk.empty()


def test_submits_that_expect_their_locks_hold_nobody_up_who_does_not() -> None:
    """They would be decided in vain, were they decided at once; of the others that says nothing."""
    desk = Desk()
    for mark in range(20):
        desk.begin("again", expects=(1,))
        desk.tell(ViewApplied(mark - 1))
        desk.send("again", 1)
        desk.judge("again", Verdict.COMMITTED, mark)
    assert desk.machine.committed_mark > desk.machine.applied_mark
    assert desk.begin("a") == [Decide("a")]
    desk.tell(Withdrawn("a"))
    assert desk.empty()


# ---- idempotency keys ----------------------------------------------------------------------------------

KEYED = b"request"


def test_a_key_that_was_found_is_the_outcome() -> None:
    desk = Desk(applied=9)
    assert desk.begin("a", request_hash=KEYED) == [Decide("a")]
    assert desk.tell(KeyFound("a", KeyEntry(4, KEYED))) == [SubmitDone("a", 4, 0, 0)]
    assert desk.empty()


def test_a_key_of_another_request_is_an_error() -> None:
    desk = Desk(applied=9)
    desk.begin("a", request_hash=KEYED)
    assert desk.tell(KeyFound("a", KeyEntry(4, b"another"))) == [KeyReused("a", 4)]
    assert desk.empty()


def test_who_loses_the_lock_of_a_key_finds_the_winner() -> None:
    desk = Desk(applied=3)
    for token in "ab":
        desk.begin(token, request_hash=KEYED)
        desk.send(token)  # in two processes, as neither knows of the other's lock
    assert desk.judge("a", Verdict.COMMITTED, 4) == [SubmitDone("a", 4, 1, 0)]
    assert desk.judge("b", Verdict.CONFLICT, 4) == []
    assert desk.tell(ViewApplied(4)) == [Decide("b")]
    assert desk.tell(KeyFound("b", KeyEntry(4, KEYED))) == [SubmitDone("b", 4, 1, 1)]
    assert desk.empty()


def test_a_key_found_in_a_database_that_is_ahead_waits_for_this_view() -> None:
    """Another process has applied it; until="applied" speaks of the marks that this application shows."""
    desk = Desk(applied=3)
    desk.begin("a", request_hash=KEYED, until_applied=True)
    assert desk.tell(KeyFound("a", KeyEntry(5, KEYED))) == []
    assert desk.machine.in_flight == 0
    assert desk.tell(ViewApplied(5)) == [SubmitDone("a", 5, 0, 0)]
    assert desk.empty()


def test_a_key_that_was_found_frees_its_slot() -> None:
    desk = Desk(slots=1)
    desk.begin("a", request_hash=KEYED)
    desk.begin("b")
    assert desk.tell(KeyFound("a", KeyEntry(0, KEYED))) == [SubmitDone("a", 0, 0, 0), Decide("b")]


def test_a_submit_with_a_key_never_takes_a_decline_as_it_is() -> None:
    with pytest.raises(AssertionError, match="says nothing about a key"):
        Desk().begin("a", confirm=False, request_hash=KEYED)


# ---- waiting for the view ------------------------------------------------------------------------------


def test_a_mark_is_waited_for() -> None:
    desk = Desk(applied=3)
    assert desk.tell(MarkWanted("now", 3)) == [MarkReached("now", 3)]
    assert desk.tell(MarkWanted("five", 5), MarkWanted("six", 6), MarkWanted("gone", 5)) == []
    desk.tell(Withdrawn("gone"))
    assert desk.tell(ViewApplied(5)) == [MarkReached("five", 5)]
    assert desk.tell(ViewApplied(4), ViewApplied(6)) == [MarkReached("six", 6)]
    assert desk.empty()


def test_everything_that_is_committed_by_now_is_waited_for() -> None:
    desk = Desk(applied=3)
    assert desk.tell(MarkWanted("a", None)) == [AskMark()]
    assert desk.tell(MarkAnswered(3)) == [MarkReached("a", 3)]
    assert desk.tell(MarkWanted("b", None)) == [AskMark()]
    assert desk.tell(MarkAnswered(4)) == []
    assert desk.tell(ViewApplied(4)) == [MarkReached("b", 4)]
    assert desk.empty()


def test_a_mark_that_is_refused_ends_those_who_waited_for_it() -> None:
    desk = Desk(applied=3)
    desk.begin("declines")
    assert desk.tell(DecisionDeclined("declines", 3)) == [AskMark()]
    assert desk.tell(MarkWanted("reads", None)) == []
    assert desk.tell(MarkAnswered(None)) == [AskMark(), NoMark("declines")]
    assert desk.tell(MarkAnswered(None)) == [NoMark("reads")]
    assert desk.empty()
    assert desk.tell(MarkWanted("again", None)) == [AskMark()]
    assert desk.tell(MarkAnswered(3)) == [MarkReached("again", 3)]


# ---- a paused partition ----------------------------------------------------------------------------------


def test_a_pause_ends_everybody_who_waits_and_keeps_outcomes() -> None:
    desk = Desk(applied=3, slots=4)
    for token in ("sent", "gated", "blocked", "deciding"):
        desk.begin(token)
    for token in ("sent", "blocked"):
        desk.send(token, len(token))
    assert desk.decided("gated", len("blocked")) == []
    desk.judge("blocked", Verdict.CONFLICT, 4)
    desk.tell(MarkWanted("mark", 9), MarkWanted("asking", None))
    ended = desk.tell(ViewPaused())
    assert sorted(str(effect.token) for effect in ended if isinstance(effect, Unavailable)) == [
        "asking",
        "blocked",
        "gated",
        "mark",
    ]
    assert desk.judge("sent", Verdict.COMMITTED, 5) == [SubmitDone("sent", 5, 1, 0)]
    assert desk.tell(DecisionDeclined("deciding", 3)) == [Unavailable("deciding")]
    assert desk.begin("late") == [Unavailable("late")]
    assert desk.tell(MarkWanted("late", None), MarkWanted("far", 9)) == [Unavailable("late"), Unavailable("far")]
    assert desk.tell(MarkWanted("there", 3)) == [MarkReached("there", 3)]
    desk.tell(MarkAnswered(9))
    assert desk.empty()


def test_a_conflict_on_a_paused_partition_cannot_be_decided_again() -> None:
    desk = Desk()
    desk.begin("a")
    desk.send("a")
    desk.tell(ViewPaused())
    assert desk.judge("a", Verdict.CONFLICT, 4) == [Unavailable("a")]
    assert desk.empty()


# ---- at random -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_everybody_gets_one_answer_and_nothing_is_left(seed: int) -> None:
    """Slots are never exceeded; a decline counts on a state that holds what was committed when its call began."""
    World(random.Random(seed)).run()


class World:
    """A log that grows, a view that follows, callers that come and leave, and a server that answers late."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.desk = Desk(slots=rng.randint(1, 4))
        self.desk.machine._vain.count = rng.choice((0, 16))  # whether submits are held at first
        self.guesses = random.Random(rng.random())
        self.expecting = rng.choice((0.0, 0.5, 1.0))  # how many submits say what they expect to want
        self.log = -1
        self.deciding: list[str] = []
        self.sent: list[str] = []
        self.decided: dict[str, tuple[int, list[tuple[int, ...]]]] = {}  # mark, and write, read and append locks
        self.known: list[tuple[int, int]] = []  # transactions of this process, and locks that they took
        self.snapshot = -1  # the newest that an append was decided on
        self.asked: list[int] = []  # the committed mark when the server came to answer
        self.began_at: dict[str, int] = {}
        self.declined_at: dict[str, int] = {}
        self.unconfirmed: set[str] = set()

    def run(self) -> None:
        for number in range(150):
            self._one(f"{number}")
        self.rng = random.Random(0)
        for _ in range(4000):
            if not self.desk.machine.waiting:
                break
            self.desk.now = max(self.desk.now, self.desk.machine.deadline() or 0)
            self._go_on()
        assert self.began_at.keys() == set()
        assert self.desk.empty()

    def _one(self, name: str) -> None:
        rng, desk = self.rng, self.desk
        kind = rng.randrange(10)
        if kind < 3:
            self.began_at[name] = self.log
            retry = Retry(
                attempts=rng.choice([1, 3, float("inf")]), give_up_after=rng.choice([0.0, 0.05, float("inf")])
            )
            if rng.random() < 0.2:
                self.unconfirmed.add(name)
            begun = SubmitBegun(
                name, retry, name not in self.unconfirmed, until_applied=rng.random() < 0.3, expects=self._guess()
            )
            self._take(desk.tell(begun))
        elif kind == 3:
            self.began_at[name] = self.log
            self._take(desk.tell(MarkWanted(name, rng.choice([None, self.log, self.log + 1]))))
        elif kind == 4 and self.began_at:
            leaver = rng.choice(sorted(self.began_at))
            del self.began_at[leaver]
            if leaver in self.deciding:
                self.deciding.remove(leaver)
            self._take(desk.tell(Withdrawn(leaver)))
        else:
            self._go_on()

    def _guess(self) -> tuple[int, ...]:
        """Locks that a submit expects to want: it will want any others, or these."""
        if self.guesses.random() >= self.expecting:
            return ()
        return tuple(self.guesses.sample(range(4), self.guesses.randint(1, 3)))

    def _go_on(self) -> None:
        rng, desk = self.rng, self.desk
        desk.now += rng.randrange(5)
        choice = rng.randrange(5)
        if choice == 0 and self.deciding:
            name = self.deciding.pop(rng.randrange(len(self.deciding)))
            what = rng.randrange(3)
            if what == 0:
                self.declined_at[name] = rng.randint(desk.machine.applied_mark // 2, desk.machine.applied_mark)
                self._take(desk.tell(DecisionDeclined(name, self.declined_at[name])))
            elif what == 1:
                self._take(desk.tell(StateUnreadable(name)))
            else:
                self.snapshot = mark = rng.randint(self.snapshot, desk.machine.applied_mark)
                locks = [tuple(rng.sample(range(4), rng.choice((0, 0, 1, 2)))) for _ in range(3)]
                self.decided[name] = mark, locks
                self._take(desk.tell(Decided(name, mark, *locks)))
        elif choice == 1 and self.sent:
            name = self.sent.pop(rng.randrange(len(self.sent)))
            verdict = rng.choice(list(Verdict))
            if verdict is Verdict.COMMITTED:
                self.log += 1
            if verdict is Verdict.COMMITTED:
                self.known += [(self.log, lock) for lock in self._taken_by(name)]
            self._take(desk.tell(AppendJudged(name, verdict, max(0, self.log))))
        elif choice == 2 and self.asked:
            self._take(desk.tell(MarkAnswered(rng.randint(self.asked.pop(0), self.log))))
        elif choice == 3:
            self.log += rng.randrange(2)
            self._take(desk.tell())
        else:
            self._take(desk.tell(ViewApplied(min(self.log, desk.machine.applied_mark + rng.randrange(3)))))

    def _taken_by(self, name: str) -> set[int]:
        write, _, append = self.decided[name][1]
        return {*write, *append}

    def _check_sent(self, name: str) -> None:
        """The server would not refuse it for what this process knows."""
        mark, (write, read, _) = self.decided[name]
        for other in self.sent:
            assert self._taken_by(other).isdisjoint((*write, *read)), "handed to two"
        for transaction_id, lock in self.known:
            assert transaction_id <= mark or lock not in (*write, *read), "refused for certain"

    def _take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case AskMark():
                    self.asked.append(self.log)
                case Decide(token):
                    self.deciding.append(str(token))
                case Send(token):
                    self._check_sent(str(token))
                    self.sent.append(str(token))
                case SubmitDone(token, None, _, _):
                    began = self.began_at.pop(str(token))
                    assert self.declined_at[str(token)] >= began or token in self.unconfirmed
                case _:
                    del self.began_at[str(effect.token)]
        assert self.desk.machine.in_flight == len(self.deciding) + len(self.sent) <= self.desk.machine.in_flight_max

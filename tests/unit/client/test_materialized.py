"""A submitter and an applier in one step: the mark goes from one to the other, and one deadline stands for both."""

from __future__ import annotations

import random

import pytest

from waltz_core.client.applier import Applied, ApplyFailed, BatchArrived, Commit, Poisoned, TakeNext, ViewDown
from waltz_core.client.materialized import APPLY_ATTEMPTS, Effect, Event, MaterializedPartition
from waltz_core.client.retry import Retry
from waltz_core.client.submit_calls import Decide, MarkReached, MarkWanted, SubmitBegun, Unavailable, ViewPaused


class Desk:
    """A machine and its clock."""

    def __init__(self, *, pauses: bool = False) -> None:
        retry = Retry(base=0.01, jitter=0.0)
        self.machine = MaterializedPartition(-1, 5, random.Random(1), retry, pauses=pauses)
        self.now = 0

    def tell(self, *events: Event) -> list[Effect]:
        out: list[Effect] = []
        self.machine.step(self.now, events, out)
        return out

    def wake(self) -> list[Effect]:
        at = self.machine.deadline()
        assert at is not None
        self.now = at
        return self.tell()


def test_who_waits_for_a_mark_hears_of_it_in_the_step_in_which_the_view_has_it() -> None:
    desk = Desk()
    assert desk.tell(MarkWanted("reader", 3)) == []
    assert desk.tell(BatchArrived(0, 3)) == [Commit(3)]
    assert desk.tell(Applied(3)) == [TakeNext(), MarkReached("reader", 3)]


def test_what_the_view_has_applied_is_heard_before_a_call_of_the_same_step() -> None:
    desk = Desk()
    desk.tell(BatchArrived(0, 3))
    assert desk.tell(MarkWanted("reader", 3), Applied(3)) == [TakeNext(), MarkReached("reader", 3)]


def test_submits_go_on_while_the_view_pauses_and_both_wake_by_one_deadline() -> None:
    desk = Desk()
    desk.tell(BatchArrived(0, 0))
    assert desk.tell(ViewDown()) == []
    assert desk.tell(SubmitBegun("submit", Retry(give_up_after=0.005))) == [Decide("submit")]
    assert desk.machine.deadline() == 10
    assert desk.wake() == [Commit(0)]
    assert desk.machine.deadline() is None


def test_a_deadline_of_the_submitter_alone_leaves_the_view_as_it_is() -> None:
    desk = Desk()
    desk.machine.submitter.in_flight_max = 1
    desk.tell(SubmitBegun("first", Retry()))
    desk.tell(SubmitBegun("second", Retry()), BatchArrived(0, 0))
    assert desk.machine.deadline() is None
    assert desk.tell() == []


@pytest.mark.parametrize("pauses", [False, True])
def test_a_transaction_that_cannot_be_applied_pauses_the_partition_where_it_shall(pauses: bool) -> None:
    desk = Desk(pauses=pauses)
    desk.tell(MarkWanted("reader", 5), MarkWanted("another", 1), BatchArrived(0, 5))
    for _ in range(APPLY_ATTEMPTS - 1):
        assert desk.tell(ApplyFailed(2)) == []
        assert desk.wake() == [Commit(5)]
    assert desk.tell(ApplyFailed(2)) == [Commit(1)]
    said = desk.tell(Applied(1), SubmitBegun("late", Retry()))
    if pauses:
        assert said == [Poisoned(2), MarkReached("another", 1), Unavailable("reader"), Unavailable("late")]
    else:
        assert said == [Poisoned(2), MarkReached("another", 1), Decide("late")]
        assert desk.tell(ViewPaused()) == [Unavailable("reader")], "the block has ended"

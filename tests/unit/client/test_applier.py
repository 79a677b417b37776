"""Batches, repeats and poison: what becomes of the feed of one partition in a view."""

from __future__ import annotations

import random

import pytest

from waltz_core.client.applier import (
    Advanced,
    Applied,
    Applier,
    ApplyFailed,
    BatchArrived,
    Commit,
    Effect,
    Event,
    Poisoned,
    TakeNext,
    ViewDown,
)
from waltz_core.client.retry import Retry


class Desk:
    """A machine and its clock."""

    def __init__(self, attempts: int = 3) -> None:
        self.machine = Applier(Retry(base=0.01, jitter=0.0, cap=0.05), attempts, random.Random(1))
        self.now = 0

    def tell(self, *events: Event) -> list[Effect]:
        out: list[Effect] = []
        self.machine.step(self.now, events, out)
        return out

    def wake(self) -> list[Effect]:
        at = self.machine.deadline()
        assert at is not None
        self.now = at - 1
        assert self.tell() == []
        self.now = at
        return self.tell()


def test_batches_are_committed_one_after_the_other() -> None:
    desk = Desk()
    assert desk.tell(BatchArrived(0, 4)) == [Commit(4)]
    assert desk.tell(Applied(4)) == [Advanced(4), TakeNext()]
    assert desk.tell(BatchArrived(5, 5)) == [Commit(5)]
    assert desk.tell(Applied(9)) == [Advanced(9), TakeNext()], "another process was faster"
    with pytest.raises(AssertionError, match="one batch at a time"):
        desk.tell(BatchArrived(10, 10), BatchArrived(11, 11))


def test_a_view_that_is_down_is_tried_again_for_ever_with_the_whole_batch() -> None:
    desk = Desk()
    desk.tell(BatchArrived(0, 4))
    waited = []
    for _ in range(6):
        before = desk.now
        assert desk.tell(ViewDown()) == []
        assert desk.wake() == [Commit(4)]
        waited.append(desk.now - before)
    assert waited == [10, 20, 40, 50, 50, 50]
    assert desk.tell(Applied(4)) == [Advanced(4), TakeNext()]
    assert desk.machine.deadline() is None
    desk.tell(BatchArrived(5, 5))
    desk.tell(ViewDown())
    assert desk.machine.deadline() == desk.now + 10, "another batch begins with short pauses"


def test_a_transaction_that_fails_may_be_right_the_next_time() -> None:
    desk = Desk()
    desk.tell(BatchArrived(0, 4))
    for _ in range(2):
        assert desk.tell(ApplyFailed(3)) == []
        assert desk.wake() == [Commit(4)]
    assert desk.tell(Applied(4)) == [Advanced(4), TakeNext()]


def test_everything_before_poison_is_kept_and_the_partition_ends_there() -> None:
    desk = Desk(attempts=2)
    desk.tell(BatchArrived(0, 4))
    desk.tell(ApplyFailed(3))
    desk.wake()
    assert desk.tell(ApplyFailed(3)) == [Commit(2)]
    assert desk.tell(ViewDown()) == []
    assert desk.wake() == [Commit(2)]
    assert desk.tell(Applied(2)) == [Advanced(2), Poisoned(3)]
    assert desk.machine.deadline() is None
    with pytest.raises(AssertionError):
        desk.tell(BatchArrived(3, 4))


def test_poison_at_the_head_of_a_batch_has_nothing_before_it() -> None:
    desk = Desk(attempts=1)
    desk.tell(BatchArrived(3, 4))
    assert desk.tell(ApplyFailed(3)) == [Poisoned(3)]


def test_what_comes_before_poison_may_be_poison_itself() -> None:
    desk = Desk(attempts=1)
    desk.tell(BatchArrived(0, 4))
    assert desk.tell(ApplyFailed(3)) == [Commit(2)]
    assert desk.tell(ApplyFailed(1)) == [Commit(0)]
    assert desk.tell(Applied(0)) == [Advanced(0), Poisoned(1)]


def test_what_is_poison_here_may_be_applied_by_another_process() -> None:
    desk = Desk(attempts=1)
    desk.tell(BatchArrived(0, 4))
    desk.tell(ApplyFailed(3))
    assert desk.tell(Applied(3)) == [Advanced(3), Commit(4)], "the rest of the batch must not be passed over"
    assert desk.tell(Applied(4)) == [Advanced(4), TakeNext()]
    desk.tell(BatchArrived(5, 7))
    desk.tell(ApplyFailed(6))
    assert desk.tell(Applied(7)) == [Advanced(7), TakeNext()]

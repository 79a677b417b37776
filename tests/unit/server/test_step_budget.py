"""How much of what clients ask one step of a server handles."""

from __future__ import annotations

from waltz_core.base.ids import ReqId
from waltz_core.server.step_budget import StepBudget
from waltz_core.wire import client_messages as messages

REQ = ReqId(bytes(16))
FLUSH = messages.FlushRequest(REQ)  # 5
APPEND = messages.AppendRequest(REQ, 0, (), (), (), 0, b"", 0)
STATUS = messages.PartitionStatusRequest(REQ)  # 5, and 6 a partition


class Served:
    """Partitions that are served, and whether appends wait for their verdict."""

    def __init__(self, count: int = 2, *, undecided: bool = False) -> None:
        self.served = dict.fromkeys(range(count))
        self.undecided = undecided


def budget(count: int = 2, *, undecided: bool = False) -> StepBudget:
    return over(Served(count, undecided=undecided))


def over(served: Served) -> StepBudget:
    return StepBudget(served)  # type: ignore[arg-type]  # of partitions it needs these two


def test_a_request_about_several_partitions_costs_by_their_number() -> None:
    """Those that it names; of one that names none, all that are served."""
    assert [budget(count).cost(STATUS) for count in (0, 2, 100)] == [5, 17, 605]
    one, three = messages.AddPreferredPartitionRequest(REQ, (7,)), messages.AddPreferredPartitionRequest(REQ, (7, 8, 7))
    assert [budget(count).cost(one) for count in (0, 100)] == [6, 6]
    assert budget().cost(three) == 8
    assert budget().cost(messages.RemovePreferredPartitionRequest(REQ, (0,) * 100_000)) == 100_005


def test_figures_cost_what_it_takes_to_make_and_encode_them() -> None:
    """Some fifty microseconds for each partition whose figures are asked for; they counted as four."""
    every, other = messages.StatisticsRequest(REQ, -1, ()), messages.StatisticsRequest(REQ, 7, ("append-",))
    assert [budget(count).cost(every) for count in (1, 100)] == [85, 8_005]
    assert [budget(count).cost(other) for count in (1, 100)] == [85, 85]
    assert not budget(4).at_once(0, [every, every])


def test_small_batches_are_handled_at_once_until_the_step_has_its_measure() -> None:
    step = budget()
    assert not step.at_once(0, [FLUSH] * 101)
    assert [step.at_once(0, [FLUSH] * 100) for _ in range(3)] == [True, True, False]
    assert step.turns(0) == 0
    step.end(0)
    assert step.turns(0) == 1000  # of the next step


def test_appends_count_for_nothing() -> None:
    step = budget(undecided=True)
    assert all(step.at_once(0, [APPEND] * 1000) for _ in range(100))
    assert step.turns(0) == 200


def test_a_request_that_cost_more_than_was_left_is_paid_for_by_the_next_steps() -> None:
    step = budget()
    assert step.turns(0) == 1000
    step.end(-1500)
    for left in (0, 500, 1000):
        assert step.turns(0) == left
        step.end(left)


def test_while_appends_wait_the_time_that_passes_bounds_the_rest_and_for_a_while_after() -> None:
    served = Served(undecided=True)
    step = over(served)
    assert step.turns(0) == 200
    step.end(0)
    assert (step.turns(0), step.next_turns(0)) == (0, 4)
    assert step.turns(1) == 50
    step.end(0)
    served.undecided = False
    assert (step.turns(2), step.next_turns(2)) == (50, 5)
    step.end(50)
    assert step.turns(51) == 1000
    assert step.next_turns(51) == 51


def test_what_one_request_costs_holds_up_the_turns_of_others_for_a_tenth_of_a_second_at_most() -> None:
    """Figures of 512 partitions cost a second and a half of turns: a monitor would leave the others none."""
    step = budget(512, undecided=True)
    cost = step.cost(messages.StatisticsRequest(REQ, -1, ()))
    left = step.turns(0)
    step.end(left - cost)
    handled, now = 0, 0
    while handled <= 0:
        now += 1
        for _ in range(5):  # steps come by the thousand while appends do
            handled = step.turns(now)
            step.end(handled)
    assert now == 101

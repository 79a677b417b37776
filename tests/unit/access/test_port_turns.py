"""Whose work a port does next: owners by turns, a measure in each round, and so many requests a second."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from waltz_core.access.port_turns import PIECE, REQUEST, STREAM, PortTurns, cost_of, cost_of_records

if TYPE_CHECKING:
    from _typeshed import TraceFunction

PLENTY = 1e9


def port(rate: float = PLENTY, burst: int = 1_000_000) -> PortTurns:
    turns = PortTurns(rate, burst)
    turns.round(0.0)
    return turns


def ask(turns: PortTurns, conn: int, owner: str, cost: int = REQUEST) -> None:
    turns.ask(conn, owner, cost, request=True)


def order(turns: PortTurns, rounds: int) -> list[list[int]]:
    return [[conn for conn, _ in turns.round(0.0)] for _ in range(rounds)]


def test_alone_work_is_done_at_once_up_to_the_measure_of_a_round() -> None:
    turns = port()
    assert [turns.at_once(0.0, 0, "a", REQUEST, request=True) for _ in range(3)] == [True, True, False]
    turns.round(0.0)
    assert turns.at_once(0.0, 0, "a", REQUEST, request=True)


def test_nobody_overtakes_who_waits() -> None:
    turns = port()
    ask(turns, 1, "a")
    assert not turns.at_once(0.0, 0, "b", PIECE, request=False)


def test_a_caller_waits_for_a_turn_of_each_other_and_not_for_all_their_connections() -> None:
    turns = port()
    for conn in range(100):
        ask(turns, conn, "flood")
    for conn in range(100, 200):
        ask(turns, conn, "127.0.0.1")
    ask(turns, 1_000, "honest")
    done = [conn for round_ in order(turns, 3) for conn in round_]
    assert done.index(1_000) <= 2


def test_who_sends_what_costs_much_has_fewer_turns() -> None:
    turns = port()
    for conn in range(10):
        ask(turns, conn, "heavy", 10 * REQUEST)
    for conn in range(100, 200):
        ask(turns, conn, "light")
    done = [conn for round_ in order(turns, 100) for conn in round_]
    light = [sum(conn >= 100 for conn in done[: done.index(heavy)]) for heavy in range(3)]
    assert light == pytest.approx([10, 20, 30], abs=2)


def test_a_round_does_one_thing_that_costs_more_than_its_measure() -> None:
    turns = port()
    for conn in range(5):
        ask(turns, conn, str(conn), 100 * REQUEST)
    rounds = order(turns, 12)
    assert max(map(len, rounds)) == 1
    assert sum(map(len, rounds)) == 5, "what was done above the measure costs the next round, and not a hundred"


def test_a_connection_counts_for_whoever_it_belongs_to_now() -> None:
    """Its first request came from an address, its next one from a caller."""
    turns = port()
    ask(turns, 1, "127.0.0.1")
    assert order(turns, 1) == [[1]]
    for conn in range(2, 50):
        ask(turns, conn, "127.0.0.1")
    ask(turns, 1, "honest")
    assert 1 in [conn for round_ in order(turns, 2) for conn in round_]


def done_in(turns: PortTurns, owner: str, seconds: float, cost: int = REQUEST) -> int:
    """What an owner gets done of what waits for a turn all the time, in microseconds."""
    now, done = 0.0, 0
    while now < seconds:
        if not len(turns):
            turns.ask(1, owner, cost, request=False)
        done += cost * len(turns.round(now))
        now = max(turns.due(now) or 0.0, now + 1e-6 * cost)
    return done


def test_while_another_waits_for_an_answer_an_owner_has_a_quarter_of_the_time() -> None:
    turns = port()
    turns.begin("honest")
    assert done_in(turns, "flood", 1.0) == pytest.approx(250_000, rel=0.1)


def test_an_owner_has_all_the_time_while_nobody_else_waits() -> None:
    turns = port()
    turns.begin("flood")
    turns.begin("honest")
    turns.begin("honest")
    turns.end("honest")
    turns.end("honest")
    assert done_in(turns, "flood", 1.0) == pytest.approx(1_000_000, rel=0.05)


def test_who_rests_is_overtaken_and_keeps_nobody_waiting() -> None:
    turns = port()
    turns.begin("honest")
    ask(turns, 1, "flood", 20 * REQUEST)
    assert order(turns, 1) == [[1]]
    ask(turns, 1, "flood")
    assert order(turns, 20) == [[]] * 20
    assert turns.at_once(0.0, 0, "honest", REQUEST, request=True)
    ask(turns, 2, "honest")
    assert [2] in order(turns, 2)
    turns.round(0.0)
    rested = turns.due(0.0)
    assert rested is not None
    assert rested == pytest.approx(4 * 20 * REQUEST / 1e6 - 0.01)
    assert [conn for conn, _ in turns.round(rested + 1e-9)] == [1]


def test_nobody_rests_for_longer_than_another_waits() -> None:
    turns = port()
    turns.begin("honest")
    ask(turns, 1, "flood", 20 * REQUEST)
    assert order(turns, 1) == [[1]]
    ask(turns, 1, "flood")
    turns.end("honest")
    assert [1] in order(turns, 3)


def test_a_few_requests_that_come_together_are_no_more_than_their_part() -> None:
    turns = port()
    turns.begin("other")
    for conn in range(4):
        ask(turns, conn, "honest")
    assert sum(map(len, order(turns, 4))) == 4


def test_what_came_from_an_address_counts_for_whom_it_was_admitted_as() -> None:
    """Whoever calls over a new connection each time keeps nobody behind his address waiting."""
    turns = port()
    turns.begin("other")
    for conn in range(100):
        ask(turns, conn, "127.0.0.1")
        assert [conn] in order(turns, 2)
        turns.admitted(0.0, conn, "127.0.0.1", "caller")
    assert not turns.at_once(0.0, 0, "caller", REQUEST, request=True)
    turns.round(0.0)
    assert turns.at_once(0.0, 0, "127.0.0.1", REQUEST, request=True)


def test_a_request_costs_its_caller_all_that_came_of_it_before_he_was_known() -> None:
    """His address has it back, whatever it was; what came when nobody waited cost nobody a rest."""
    turns = port()
    turns.came(1)
    ask(turns, 1, "127.0.0.1", 100 * REQUEST)
    assert order(turns, 1) == [[1]]
    turns.begin("other")
    ask(turns, 1, "127.0.0.1", 10 * REQUEST)
    assert [1] in order(turns, 200)
    turns.ask(1, "127.0.0.1", 10 * PIECE, request=False)
    assert order(turns, 3) == [[], [], []], "the address rests"
    turns.admitted(0.0, 1, "127.0.0.1", "caller")
    assert [1] in order(turns, 3)
    ask(turns, 2, "caller")
    assert order(turns, 20) == [[]] * 20
    assert turns.due(0.0) == pytest.approx(4 * 10 * REQUEST / 1e6 - 0.01)


def test_what_came_after_he_was_known_is_not_moved_with_the_next_request() -> None:
    turns = port()
    turns.begin("other")
    ask(turns, 1, "a")
    order(turns, 2)
    turns.admitted(0.0, 1, "127.0.0.1", "a")
    turns.ask(1, "a", 20 * REQUEST, request=False)
    order(turns, 20)
    turns.admitted(0.0, 1, "a", "b")
    ask(turns, 2, "a")
    ask(turns, 3, "b")
    assert [conn for round_ in order(turns, 30) for conn in round_] == [3]


def test_who_rests_has_the_time_that_nobody_takes_by_turns_and_for_nothing() -> None:
    turns = port()
    turns.begin("honest")
    for conn, owner in ((1, "a"), (2, "a"), (3, "b"), (4, "b")):
        ask(turns, conn, owner, 20 * REQUEST)
    assert [conn for round_ in order(turns, 200) for conn in round_] == [1, 3]
    rested = turns.due(0.0)
    assert turns.resting
    assert [conn for conn, _ in turns.idle(0.0)] == [2]
    assert turns.idle(0.0) == [], "the measure of this round is used up"
    order(turns, 20)
    assert [conn for conn, _ in turns.idle(0.0)] == [4]
    order(turns, 20)
    assert not turns.resting
    assert turns.idle(0.0) == []
    ask(turns, 1, "a")
    assert turns.due(0.0) == rested


def test_who_is_idle_for_too_many_requests_gives_no_turn() -> None:
    turns = port(rate=100.0, burst=1)
    turns.begin("honest")
    ask(turns, 1, "a", 20 * REQUEST)
    assert [1] in order(turns, 20)
    ask(turns, 1, "a")
    order(turns, 20)
    assert not turns.resting
    assert turns.idle(0.0) == []
    assert turns.round(0.011) == []
    assert turns.resting
    assert turns.idle(0.011) == [(1, True)]


def test_who_alone_has_something_under_way_does_not_rest() -> None:
    """He begins to when another one has, and ends when that one has his answer."""
    turns = port()
    turns.begin("other")
    ask(turns, 1, "a", 20 * REQUEST)
    order(turns, 20)
    ask(turns, 1, "a")
    assert order(turns, 20) == [[]] * 20
    turns.begin("a")
    assert order(turns, 20) == [[]] * 20
    turns.end("other")
    assert [1] in order(turns, 2)


def test_a_rest_that_was_for_somebody_else_ends_sooner() -> None:
    turns = port()
    turns.begin("other")
    for conn in (1, 2):
        turns.came(conn)
        turns.ask(conn, "127.0.0.1", 10 * REQUEST, request=False)
        now = turns.due(0.0) or 0.0
        assert [conn] in [[conn for conn, _ in turns.round(now)] for _ in range(20)]
    turns.ask(3, "127.0.0.1", PIECE, request=False)
    later = turns.due(now)
    turns.admitted(now, 2, "127.0.0.1", "caller")
    sooner = [turns.due(now) for _ in range(20)][-1]
    assert later is not None
    assert sooner is not None
    assert sooner < later
    assert [conn for conn, _ in turns.round(later)] == [3]


def work_beside(resting: int) -> int:
    """Lines that run for twenty turns of two callers each, beside so many that rest with something waiting."""
    turns = port()
    turns.begin("other")
    for conn in range(resting):
        ask(turns, conn, str(conn), 20 * REQUEST)
    while turns.due(0.0) == 0.0:
        turns.round(0.0)
    for conn in range(resting):
        ask(turns, conn, str(conn))
    turns.round(0.0)
    lines = 0

    def trace(frame: FrameType, event: str, arg: object) -> TraceFunction:
        nonlocal lines
        lines += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for at in range(20):
            now = at / 1e6
            turns.at_once(now, 1_000_000, "light", PIECE, request=True)
            turns.begin("light")
            turns.ask(1_000_001, "other", PIECE, request=True)
            turns.round(now)
            turns.due(now)
            turns.end("light")
    finally:
        sys.settrace(before)
    assert len(turns) == resting
    return lines


def test_a_turn_costs_the_same_however_many_rest() -> None:
    few, many = work_beside(4), work_beside(400)
    assert 500 < many < 1.1 * few


def test_rests_that_have_ended_are_forgotten() -> None:
    """Whoever calls from many addresses leaves nothing behind."""
    turns = port()
    turns.begin("other")
    for at in range(10_000):
        turns.at_once(float(at), at, str(at), 20 * REQUEST, request=True)
        turns.gone(at)
        for _ in range(20):
            turns.round(float(at))
    assert sum(len(held) for held in (turns._rests, turns._recalls, turns._ends, turns._unclaimed)) < 100


def test_who_is_gone_has_no_turn() -> None:
    turns = port()
    ask(turns, 1, "a")
    ask(turns, 2, "a")
    turns.drop(1)
    assert order(turns, 2) == [[2], []]
    assert turns.due(0.0) is None


def test_a_port_answers_so_many_requests_a_second_and_says_who_waited_for_that() -> None:
    turns = port(rate=10.0, burst=2)
    for conn in range(4):
        ask(turns, conn, "a")
    assert turns.round(0.0) == [(0, False), (1, False)]
    assert turns.round(0.0) == []
    due = turns.due(0.0)
    assert due == pytest.approx(0.1)
    ask(turns, 4, "a")
    assert turns.round(0.1) == [(2, True)]
    assert turns.round(0.2) == [(3, True)]
    assert turns.round(0.3) == [(4, True)]
    assert turns.round(10.0) == []
    ask(turns, 5, "a")
    assert turns.round(10.0) == [(5, False)]


def test_what_is_no_request_of_its_own_counts_for_none() -> None:
    turns = port(rate=10.0, burst=1)
    for _ in range(5):
        turns.ask(1, "a", PIECE, request=False)
        assert turns.round(0.0) == [(1, False)]


def test_the_text_of_a_body_costs_by_its_bytes() -> None:
    assert cost_of(0) == 0
    assert cost_of(4 << 20) > 100 * REQUEST


def test_records_cost_what_opens_their_feed_and_by_their_bytes() -> None:
    assert cost_of_records(0) == STREAM
    assert cost_of_records(1 << 20) > 10 * cost_of(1 << 20)


@pytest.mark.parametrize("ahead", [True, False])
def test_who_sends_ahead_of_his_answers_while_he_rests_is_told_apart_from_who_waits(ahead: bool) -> None:
    turns = port()
    turns.begin("honest")
    now, told = 0.0, list[bool]()
    for _ in range(40):
        if not turns.at_once(now, 1, "flood", REQUEST, request=True):
            turns.ask(1, "flood", REQUEST, request=True, ahead=ahead)
            while not (given := turns.round(now)):
                now += 0.001
            told += [delayed for _, delayed in given]
    assert (sum(told) > 10) if ahead else not any(told)

"""Whose work a port does next: owners by turns, a measure in each round, and so many requests a second."""

from __future__ import annotations

import pytest

from waltz_core.access.port_turns import PIECE, REQUEST, STREAM, PortTurns, cost_of, cost_of_records

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
    assert [turns.at_once(0.0, "a", REQUEST, request=True) for _ in range(3)] == [True, True, False]
    turns.round(0.0)
    assert turns.at_once(0.0, "a", REQUEST, request=True)


def test_nobody_overtakes_who_waits() -> None:
    turns = port()
    ask(turns, 1, "a")
    assert not turns.at_once(0.0, "b", PIECE, request=False)


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
    assert turns.at_once(0.0, "honest", REQUEST, request=True)
    ask(turns, 2, "honest")
    assert [2] in order(turns, 2)
    turns.round(0.0)
    rested = turns.due(0.0)
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
        turns.admitted(0.0, "127.0.0.1", "caller")
    assert not turns.at_once(0.0, "caller", REQUEST, request=True)
    turns.round(0.0)
    assert turns.at_once(0.0, "127.0.0.1", REQUEST, request=True)


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

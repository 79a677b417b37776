"""Fairness between clients: turns and shares."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waltz_core.base.turns import Allowance, Shares, Turns


def taken(turns: Turns[str], count: int) -> str:
    """Owners of the next pieces of work."""
    found = [turns.take() for _ in range(count)]
    return "".join(item[1] for item in found if item is not None)


def test_a_long_queue_delays_a_short_one_by_one_turn() -> None:
    turns: Turns[str] = Turns(quantum=2)
    for _ in range(1000):
        turns.put(1, "a", 1, "a")
    turns.put(2, "b", 1, "b")
    assert "b" in taken(turns, 5)


def test_owners_share_alike_however_many_connections_they_have() -> None:
    turns: Turns[str] = Turns(quantum=4)
    for conn in range(100):
        for _ in range(50):
            turns.put(conn, "a", 1, "a")
    for _ in range(50):
        turns.put(100, "b", 1, "b")
    assert abs(taken(turns, 60).count("b") - 30) <= 4


def test_connections_of_one_owner_share_alike() -> None:
    turns: Turns[str] = Turns(quantum=4)
    for _ in range(100):
        turns.put(1, "a", 1, "1")
        turns.put(2, "a", 1, "2")
    assert abs(taken(turns, 80).count("1") - 40) <= 4


def test_dear_work_takes_more_of_a_turn() -> None:
    turns: Turns[str] = Turns(quantum=10)
    for _ in range(200):
        turns.put(1, "a", 10, "a")
        turns.put(2, "b", 1, "b")
    first = taken(turns, 110)
    assert first.count("b") >= 9 * first.count("a") - 10


def test_work_that_costs_more_than_a_turn_is_done_too() -> None:
    turns: Turns[str] = Turns(quantum=1)
    turns.put(1, "a", 1000, "a")
    assert turns.take() == (1, "a")


def test_work_that_is_removed_leaves_the_other_work_in_its_order() -> None:
    turns: Turns[str] = Turns(quantum=1)
    for conn, owner, work in ((1, "a", "1"), (1, "a", "2"), (2, "a", "3"), (3, "b", "4")):
        turns.put(conn, owner, 1, work)
    turns.block(2, True)
    for conn, work in ((1, "1"), (2, "3"), (3, "4"), (3, "4"), (4, "5")):
        turns.remove(conn, work)
    assert (len(turns), turns.ready) == (1, True)
    turns.block(2, False)
    turns.put(3, "b", 1, "6")
    assert sorted(taken(turns, 2)) == ["2", "6"]
    assert (turns.take(), len(turns), turns.ready) == (None, 0, False)


def test_who_had_nothing_to_do_has_saved_no_turn() -> None:
    turns: Turns[str] = Turns(quantum=4)
    turns.put(1, "a", 1, "a")
    assert taken(turns, 1) == "a"  # a quarter of its turn
    for _ in range(4):
        turns.put(2, "b", 1, "b")
    for _ in range(4):
        turns.put(1, "a", 1, "a")
    assert taken(turns, 8) == "bbbbaaaa"


def test_blocked_connections_keep_their_work_and_their_order() -> None:
    turns: Turns[str] = Turns(quantum=1)
    for work in "xyz":
        turns.put(1, "a", 1, work)
    assert turns.take() == (1, "x")
    turns.block(1, True)
    turns.put(1, "a", 1, "w")
    assert not turns.ready
    assert turns.take() is None
    assert len(turns) == 3
    turns.put_back(1, "a", 1, "x")
    turns.block(1, False)
    assert taken(turns, 9) == "xyzw"


def test_a_connection_takes_its_work_along() -> None:
    turns: Turns[str] = Turns(quantum=1)
    for conn in (1, 2):
        turns.put(conn, "a", 1, str(conn))
    turns.block(2, True)
    turns.drop(1)
    turns.drop(2)
    turns.drop(3)
    assert (len(turns), turns.ready, turns.waits(1)) == (0, False, False)
    turns.put(1, "b", 1, "1")
    assert taken(turns, 1) == "1"


def test_what_waits_longest_can_be_taken_out_of_turn() -> None:
    turns: Turns[str] = Turns(quantum=1)
    turns.put(1, "a", 1, "x")
    turns.put(2, "a", 5, "y")
    turns.put(2, "a", 5, "z")
    turns.block(2, True)
    assert (turns.waiting(), turns.first(2), turns.first(3)) == ([1, 2], "y", None)
    assert [turns.take_first(1), turns.take_first(2), turns.take_first(2)] == ["x", "y", "z"]
    assert (turns.waiting(), turns.first(2), len(turns), turns.ready) == ([], None, 0, False)
    turns.block(2, False)
    assert turns.take() is None


@given(st.lists(st.tuples(st.sampled_from(["put", "take", "block", "open", "drop"]), st.integers(0, 5)), max_size=200))
def test_nothing_is_lost_doubled_or_reordered(steps: list[tuple[str, int]]) -> None:
    turns: Turns[tuple[int, int]] = Turns(quantum=3)
    waiting: dict[int, list[int]] = {conn: [] for conn in range(6)}
    blocked: set[int] = set()
    for number, (what, conn) in enumerate(steps):
        if what == "put":
            turns.put(conn, f"owner{conn // 2}", 1 + number % 7, (conn, number))
            waiting[conn].append(number)
        elif what == "take":
            found = turns.take()
            assert (found is not None) == any(waiting[one] for one in waiting if one not in blocked)
            if found is not None:
                assert waiting[found[0]].pop(0) == found[1][1]
                assert found[0] == found[1][0]
        elif what == "drop":
            turns.drop(conn)
            waiting[conn].clear()
            blocked.discard(conn)
        else:
            turns.block(conn, what == "block")
            (blocked.add if what == "block" else blocked.discard)(conn)
        assert len(turns) == sum(map(len, waiting.values()))


def test_only_those_with_more_than_their_part_are_greedy() -> None:
    shares = Shares()
    shares.add(1, "a", 90)
    shares.add(2, "b", 10)
    assert not shares.greedy(1, 100)
    shares.add(2, "b", 1)
    assert (shares.greedy(1, 100), shares.greedy(2, 100)) == (True, False)
    assert not shares.greedy(3, 100)


def test_many_connections_hold_one_part() -> None:
    shares = Shares()
    for conn in range(10):
        shares.add(conn, "a", 9)
    shares.add(10, "b", 20)
    assert all(shares.greedy(conn, 100) for conn in range(10))
    assert not shares.greedy(10, 100)


def test_what_is_given_back_counts_no_more() -> None:
    shares = Shares()
    shares.add(1, "a", 60)
    shares.add(2, "b", 60)
    shares.drop(2)
    shares.free(2, 60)
    assert (shares.total, shares.greedy(1, 100)) == (60, False)
    shares.free(1, 60)
    shares.add(3, "c", 101)
    assert shares.greedy(3, 100)


def test_an_owner_holds_what_its_connections_hold() -> None:
    shares = Shares()
    shares.add(1, "a", 60)
    shares.add(2, "a", 5)
    shares.add(3, "b", 1)
    assert [shares.of_owner(owner) for owner in "abc"] == [65, 1, 0]
    shares.free(1, 20)
    shares.drop(2)
    shares.drop(3)
    assert [shares.of_owner(owner) for owner in "abc"] == [40, 0, 0]


@given(st.dictionaries(st.integers(0, 20), st.integers(1, 50), min_size=1), st.integers(0, 300))
def test_somebody_is_greedy_whenever_there_is_too_much(parts: dict[int, int], limit: int) -> None:
    shares = Shares()
    for conn, amount in parts.items():
        shares.add(conn, f"owner{conn % 3}", amount)
    assert any(shares.greedy(conn, limit) for conn in parts) == (sum(parts.values()) > limit)


def test_an_allowance_grows_with_time_up_to_its_limit() -> None:
    allowance = Allowance(rate=5, most=20)
    allowance.left -= 20
    allowance.refill(3)
    assert (allowance.left, allowance.full(3)) == (15, 4)
    allowance.refill(3)
    assert allowance.left == 15
    allowance.refill(100)
    assert (allowance.left, allowance.full(100)) == (20, 100)


def test_what_was_overspent_is_paid_first() -> None:
    allowance = Allowance(rate=5, most=20)
    allowance.left -= 51
    assert allowance.full(0) == 11
    allowance.refill(6)
    assert allowance.left == -1
    allowance.refill(11)
    assert allowance.left == 20


def test_the_fair_part_of_a_newcomer_is_that_of_one_more() -> None:
    shares = Shares()
    assert shares.fair(1, "a", 100) == 100
    shares.add(1, "a", 60)
    assert [shares.fair(*one, 100) for one in ((1, "a"), (2, "a"), (2, "b"))] == [100, 50, 50]
    shares.add(2, "a", 5)
    shares.add(3, "b", 5)
    assert [shares.fair(*one, 100) for one in ((1, "a"), (3, "b"), (4, "b"), (4, "c"))] == [25, 50, 25, 33]
    assert ([*shares], shares.part(1), shares.part(9)) == ([1, 2, 3], 60, 0)

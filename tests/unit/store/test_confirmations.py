"""Rounds of a session: a quorum of answers to what left after a question came."""

from __future__ import annotations

import random

import pytest

from waltz_core.store.confirmations import Confirmations


def test_a_round_is_confirmed_by_a_quorum_of_answers() -> None:
    rounds = Confirmations(2)
    assert rounds.want() == 1
    for replica in "abc":
        assert rounds.must_ask(replica, 0)
        rounds.ask(replica)
        assert not rounds.must_ask(replica, 0)
    rounds.answered("a")
    assert rounds.confirmed == 0
    rounds.answered("b")
    assert rounds.confirmed == 1


def test_an_answer_confirms_only_the_round_in_which_its_request_left() -> None:
    rounds = Confirmations(2)
    rounds.want()
    rounds.ask("a")
    rounds.ask("b")
    rounds.want()
    rounds.answered("a")
    rounds.answered("b")
    assert rounds.confirmed == 1
    assert rounds.must_ask("a", 0)
    assert rounds.must_ask("b", 0)


def test_the_vote_of_an_append_counts_from_the_round_in_which_it_left() -> None:
    rounds = Confirmations(2)
    assert rounds.want() == 1
    assert not rounds.must_ask("a", appended=1)
    assert rounds.must_ask("b", appended=0)
    rounds.heard("a", 0)
    rounds.heard("b", 0)
    assert rounds.confirmed == 0
    rounds.heard("a", 1)
    rounds.heard("b", 1)
    assert rounds.confirmed == 1


def test_nobody_is_asked_for_what_is_confirmed() -> None:
    rounds = Confirmations(2)
    assert not rounds.must_ask("a", 0)
    rounds.want()
    for replica in "ab":
        rounds.ask(replica)
        rounds.answered(replica)
    assert not rounds.must_ask("c", 0)


def test_a_replica_that_does_not_answer_holds_nobody_up() -> None:
    rounds = Confirmations(2)
    rounds.want()
    for replica in "abc":
        rounds.ask(replica)
    for number in (1, 2, 3):
        rounds.answered("a")
        rounds.answered("b")
        assert rounds.confirmed == number
        assert rounds.want() == number + 1
        assert [replica for replica in "abc" if rounds.must_ask(replica, 0)] == ["a", "b"]
        rounds.ask("a")
        rounds.ask("b")
    rounds.answered("c")
    assert rounds.must_ask("c", 0)


@pytest.mark.parametrize("seed", range(50))
def test_a_round_is_confirmed_if_and_only_if_a_quorum_answered_what_left_in_it_or_later(seed: int) -> None:
    rng = random.Random(seed)
    replicas = "abcde"[: rng.choice((1, 2, 3, 5))]
    quorum = len(replicas) // 2 + 1
    rounds = Confirmations(quorum)
    asked: dict[str, int] = {}
    heard = dict.fromkeys(replicas, 0)
    for _ in range(200):
        replica = rng.choice(replicas)
        match rng.randrange(4):
            case 0:
                rounds.want()
            case 1 if replica not in asked:
                rounds.ask(replica)
                asked[replica] = rounds.wanted
            case 2 if replica in asked:
                heard[replica] = max(heard[replica], asked.pop(replica))
                rounds.answered(replica)
            case 3:
                sent_in = rng.randint(0, rounds.wanted)
                heard[replica] = max(heard[replica], sent_in)
                rounds.heard(replica, sent_in)
        assert rounds.confirmed == sorted(heard.values(), reverse=True)[quorum - 1]

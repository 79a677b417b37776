"""An append of a gateway: one commit at most for each key, whatever happens to its attempts, and exact outcomes."""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_core.base.lock import Lock
from waltz_core.gateway.keyed import (
    ATTEMPTS_MAX,
    AppendMachine,
    AskMark,
    Begun,
    Carrier,
    Committed,
    Done,
    Effect,
    Event,
    Key,
    LookUp,
    Lost,
    MarkAnswered,
    Refused,
    Searched,
    Send,
    carrier,
    parse_key,
)
from waltz_core.gateway.problems import Outcome, Problem

KEY = Key("4:order-1", 4)


def machine(key: Key | None = KEY, mark: int | None = None, *, window: int = 1000) -> AppendMachine:
    return AppendMachine(key, mark, locked=mark is not None, window=window)


@pytest.mark.parametrize("text", ["0:a", "-1:x", "41:order-4711", "999999999999999999:A.b_c~d-e", "1:" + "x" * 128])
def test_a_key_names_its_mark(text: str) -> None:
    assert parse_key(text) == Key(text, int(text.partition(":")[0]))


@pytest.mark.parametrize(
    "text", ["", "a", "1:", ":a", "-2:a", "1:a b", '1:a"', "1:ä", "1" * 19 + ":a", "1:" + "x" * 129]
)
def test_other_texts_are_no_keys(text: str) -> None:
    assert parse_key(text) is None


def test_what_carries_a_key_says_so_in_its_member() -> None:
    payload = b'{"k":"4:order-1","n":1}'

    def of(data: bytes, header: int = 7) -> Carrier | None:
        return carrier(KEY, "k", payload, 7, 9, data, header)

    assert of(payload) == Carrier(9, same=True)
    assert of(payload, header=8) == Carrier(9, same=False)
    assert of(b'{"n":2,"k":"4:order-1"}') == Carrier(9, same=False)
    for other in (b'{"k":"4:order-10"}', b'{"n":"4:order-1"}', b'"4:order-1"', b"4:order-1", b'{"k":"4:order-1"', b""):
        assert of(other) is None


def test_an_append_without_key_and_locks_is_sent_and_sent_again_where_it_was_lost() -> None:
    it = machine(None)
    assert it.step(Begun(-1)) == Send(None)
    assert it.step(Lost("why")) == Send(None)
    assert it.step(Committed(3)) == Done(3, repeated=False)


def test_it_is_not_sent_for_ever() -> None:
    it = machine(None)
    effects = [it.step(Begun(-1))] + [it.step(Lost("the server went away")) for _ in range(ATTEMPTS_MAX)]
    assert effects[:-1] == [Send(None)] * ATTEMPTS_MAX
    last = effects[-1]
    assert isinstance(last, Problem)
    assert (last.code, last.outcome, last.retry_after) == ("not-committed", Outcome.REFUSED, 1)


def test_locks_of_the_caller_are_based_on_his_mark_and_a_conflict_is_final() -> None:
    it = machine(None, 6)
    assert it.step(Begun(6)) == Send(6)
    problem = it.step(Refused(8, Lock("account", 7)))
    assert isinstance(problem, Problem)
    assert (problem.status, problem.code, problem.outcome) == (409, "lock-conflict", Outcome.REFUSED)
    assert "account/7" in problem.detail
    assert problem.more == (("blockingId", 8),)


def test_a_mark_that_is_not_known_to_be_committed_is_asked_for() -> None:
    it = machine(None, 6)
    assert it.step(Begun(5)) == AskMark()
    assert it.step(MarkAnswered(6)) == Send(6)


@pytest.mark.parametrize("key", [None, KEY])
def test_a_mark_that_the_log_had_before_it_was_restored_is_ahead(key: Key | None) -> None:
    it = machine(key, 6)
    effect = it.step(Begun(9))
    if effect == LookUp(5, 6):
        effect = it.step(Searched(None))
    assert effect == Send(6)
    assert it.step(Lost("its mark is beyond the end of the log")) == AskMark()
    problem = it.step(MarkAnswered(2))
    assert isinstance(problem, Problem)
    assert (problem.code, problem.outcome, problem.more) == ("mark-ahead", Outcome.REFUSED, (("mark", 2),))


def test_what_a_server_refuses_for_good_is_not_sent_again() -> None:
    it = machine(None)
    assert it.step(Begun(-1)) == Send(None)
    problem = it.step(Lost("the payload has 2000 bytes, 1000 are allowed", for_good=True))
    assert isinstance(problem, Problem)
    assert (problem.status, problem.code, problem.outcome) == (422, "append-refused", Outcome.REFUSED)
    assert "1000 are allowed" in problem.detail


def test_with_a_mark_it_is_not_sent_for_ever_either() -> None:
    it = machine(None, 6)
    assert it.step(Begun(6)) == Send(6)
    for _ in range(ATTEMPTS_MAX - 1):
        assert it.step(Lost("the server went away")) == AskMark()
        assert it.step(MarkAnswered(6)) == Send(6)
    assert it.step(Lost("the server went away")) == AskMark()
    problem = it.step(MarkAnswered(6))
    assert isinstance(problem, Problem)
    assert (problem.code, problem.outcome) == ("not-committed", Outcome.REFUSED)
    assert "the server went away" in problem.detail


@pytest.mark.parametrize("key", [None, KEY])
def test_a_mark_ahead_of_the_log_would_switch_locks_off(key: Key | None) -> None:
    it = machine(key, 6)
    assert it.step(Begun(-1)) == AskMark()
    problem = it.step(MarkAnswered(5))
    assert isinstance(problem, Problem)
    assert (problem.code, problem.outcome, problem.more) == ("mark-ahead", Outcome.REFUSED, (("mark", 5),))


def test_a_key_of_now_needs_no_search() -> None:
    it = machine()
    assert it.step(Begun(4)) == Send(4)
    assert it.step(Committed(5)) == Done(5, repeated=False)


def test_a_repeat_finds_the_transaction_that_carries_its_key() -> None:
    it = machine()
    assert it.step(Begun(9)) == Send(4)
    assert it.step(Refused(5)) == AskMark()
    assert it.step(MarkAnswered(9)) == LookUp(5, 9)
    assert it.step(Searched(Carrier(5, same=True))) == Done(5, repeated=True)


def test_another_request_with_the_key_is_told_which_transaction_has_it() -> None:
    it = machine()
    it.step(Begun(9))
    it.step(Refused(5))
    it.step(MarkAnswered(9))
    problem = it.step(Searched(Carrier(5, same=False)))
    assert isinstance(problem, Problem)
    assert (problem.code, problem.more) == ("key-reused", (("id", 5),))


def test_a_refusal_by_chance_is_tried_again_from_where_the_search_ended() -> None:
    it = machine()
    it.step(Begun(9))
    it.step(Refused(8))
    assert it.step(MarkAnswered(7)) == LookUp(5, 8), "the log may have grown since the mark was told"
    assert it.step(Searched(None)) == Send(8)
    assert it.step(Refused(9)) == AskMark()
    assert it.step(MarkAnswered(12)) == LookUp(9, 12), "what was searched is not searched again"
    assert it.step(Searched(None)) == Send(12)


def test_with_locks_of_the_caller_a_refusal_is_his_to_decide_on() -> None:
    it = machine(KEY, 4)
    it.step(Begun(9))
    it.step(Refused(8))
    it.step(MarkAnswered(9))
    problem = it.step(Searched(None))
    assert isinstance(problem, Problem)
    assert problem.code == "lock-conflict"


def test_a_decision_on_a_later_state_is_sent_when_the_log_up_to_it_was_searched() -> None:
    it = machine(KEY, 8)
    assert it.step(Begun(9)) == LookUp(5, 8)
    assert it.step(Searched(None)) == Send(8)


def test_a_decision_on_a_state_before_the_key_is_based_on_that_state() -> None:
    """Based on the mark of the key, the caller's locks would be off between the two."""
    it = machine(KEY, 2)
    assert it.step(Begun(9)) == Send(2)
    assert it.step(Refused(4, Lock("account", 7))) == AskMark()
    problem = it.step(MarkAnswered(4))
    assert isinstance(problem, Problem)
    assert (problem.code, problem.more) == ("lock-conflict", (("blockingId", 4),))


def test_a_repeat_of_a_decision_on_a_state_before_its_key_is_found() -> None:
    it = machine(KEY, 2)
    assert it.step(Begun(9)) == Send(2)
    assert it.step(Refused(6, Lock("account", 7))) == AskMark()
    assert it.step(MarkAnswered(9)) == LookUp(5, 9)
    assert it.step(Searched(Carrier(6, same=True))) == Done(6, repeated=True)


def test_the_mark_of_a_key_is_held_against_the_log_also_where_the_decision_has_an_older_one() -> None:
    it = machine(KEY, 2)
    assert it.step(Begun(3)) == AskMark()
    problem = it.step(MarkAnswered(3))
    assert isinstance(problem, Problem)
    assert (problem.code, problem.more) == ("mark-ahead", (("mark", 3),))
    assert "mark 4 is not committed yet" in problem.detail
    it = machine(KEY, 2)
    assert it.step(Begun(4)) == Send(2)
    assert it.step(Lost("the log was restored")) == AskMark()
    problem = it.step(MarkAnswered(3))
    assert isinstance(problem, Problem)
    assert problem.code == "mark-ahead"


def test_a_key_too_old_to_search_behind_it_is_not_guessed_about() -> None:
    it = machine(window=10)
    assert it.step(Begun(100)) == Send(4)
    assert it.step(Refused(99)) == AskMark()
    problem = it.step(MarkAnswered(100))
    assert isinstance(problem, Problem)
    assert (problem.code, problem.outcome) == ("key-too-old", Outcome.UNKNOWN)


def test_a_refusal_by_what_was_searched_already_searches_nothing() -> None:
    it = machine()
    it.step(Begun(4))
    it.step(Refused(4))
    assert it.step(MarkAnswered(4)) == Send(4)


# ---- many attempts at once -----------------------------------------------------------------------------


@attrs.define
class Attempt:
    machine: AppendMachine
    effect: Effect
    mark: int | None  # that its locks are based on
    waits: bool = False  # for the server's verdict
    gone: bool = False  # its gateway, or who asked, heard no more


class World:
    """A log, a table of locks with one slot, and attempts of one key that run as they like."""

    def __init__(self, rng: random.Random, *, locked: bool) -> None:
        self.rng = rng
        self.locked = locked
        self.log: list[bool] = [False] * rng.randrange(4)  # whether a transaction carries the key
        self.key = Key(f"{len(self.log) - 1}:x", len(self.log) - 1)
        self.floor = -1
        self.slot = rng.randint(-1, self.mark)
        self.attempts: list[Attempt] = []
        self.flights: list[tuple[Attempt, int | None]] = []

    @property
    def mark(self) -> int:
        return len(self.log) - 1

    def begin(self) -> None:
        mark = self.rng.randint(-1, self.mark) if self.locked else None
        made = AppendMachine(self.key, mark, locked=self.locked, window=10_000)
        self.attempts.append(Attempt(made, made.step(Begun(self.rng.choice((-1, self.mark)))), mark))

    def others_write(self) -> None:
        self.log.append(False)
        if self.rng.random() < 0.5:
            self.slot = self.mark  # another lock in the same slot

    def table_is_made_anew(self) -> None:
        self.floor = self.mark

    def goes_on(self) -> None:
        waiting = [one for one in self.attempts if not (one.waits or one.gone)]
        if waiting:
            attempt = self.rng.choice(waiting)
            match attempt.effect:
                case AskMark():
                    self.tell(attempt, MarkAnswered(self.mark))
                case LookUp(first, last):
                    assert first <= last <= self.mark
                    carriers = [at for at in range(first, last + 1) if self.log[at]]
                    self.tell(attempt, Searched(Carrier(carriers[0], same=True) if carriers else None))
                case Send(based_on):
                    attempt.waits = True
                    self.flights.append((attempt, based_on))

    def server_decides(self) -> None:
        if not self.flights:
            return
        attempt, based_on = self.flights.pop(self.rng.randrange(len(self.flights)))
        attempt.waits = False
        blocking = max(self.slot, self.floor)
        assert based_on is not None
        if self.rng.random() < 0.2:
            self.tell(attempt, Lost("a server ended"))
        elif blocking > based_on:
            self.tell(attempt, Refused(blocking))
        else:
            assert attempt.mark is None or blocking <= attempt.mark, "its locks were off behind its mark"
            self.log.append(True)
            self.slot = self.mark
            self.tell(attempt, Committed(self.mark))

    def somebody_goes_away(self) -> None:
        if self.attempts:
            self.rng.choice(self.attempts).gone = True

    def tell(self, attempt: Attempt, event: Event) -> None:
        if not attempt.gone:
            attempt.effect = attempt.machine.step(event)
            match attempt.effect:
                case Done(transaction_id):
                    assert self.log[transaction_id]
                    attempt.gone = True
                case Problem(outcome=outcome):
                    assert outcome is Outcome.REFUSED
                    attempt.gone = True


@given(seed=st.integers(0, 1 << 32), locked=st.booleans())
def test_of_all_attempts_of_a_key_one_commits_at_most(seed: int, locked: bool) -> None:
    world = World(random.Random(seed), locked=locked)
    steps: list[Callable[[], None]] = [
        world.begin, world.others_write, world.table_is_made_anew, world.somebody_goes_away,
        *[world.goes_on] * 4, *[world.server_decides] * 4,
    ]  # fmt: skip
    world.begin()
    for _ in range(80):
        world.rng.choice(steps)()
        assert sum(world.log) <= 1

"""Every arrival there can be, by enumeration: the facts are few."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import attrs
import pytest

from waltz_core.base.ids import ReplicaId
from waltz_core.base.log import SessionInfo
from waltz_core.store import arrivals
from waltz_core.store.arrivals import (
    COUNTED,
    OUTSIDE,
    TABLE,
    UNPROVEN,
    VOTER,
    Arrival,
    Case,
    Keep,
    Standing,
    arrival,
    settled,
)
from waltz_core.zookeeper.partition_metadata import is_unknown, last_session
from waltz_core.zookeeper.znodes import UNRESOLVED, ReplicaState

A, B = "a:1", "b:1"
States = dict[str, ReplicaState]


def state(replica: str, session: int, mark: int) -> ReplicaState:
    return ReplicaState(ReplicaId(0, replica), session, mark)


def everything() -> Iterator[tuple[States, SessionInfo, bool]]:
    """States of two replicas with sessions around 5, closing marks and own marks around 1."""
    entries = [None, *itertools.product((-1, 2, 5), (UNRESOLVED, -1, 0, 1))]
    others = [None, (1, UNRESOLVED), (5, UNRESOLVED), (7, 3)]
    for entry, other in itertools.product(entries, others):
        states = {name: state(name, *value) for name, value in ((A, entry), (B, other)) if value is not None}
        for session, own, probed in itertools.product(range(-1, 9), range(-1, 3), (False, True)):
            yield states, SessionInfo(session, own, own), probed


def judge(states: States, info: SessionInfo, probed: bool = True) -> Arrival:
    return arrival(states, A, info, probed=probed)


@pytest.mark.parametrize(
    ("entry", "session", "own", "expected"),
    [
        # The last session is 5; B took part in it.
        (None, -1, -1, Arrival(Case.NEW, OUTSIDE, Keep.OWN, -1)),
        (None, 4, 3, Arrival(Case.NEW, OUTSIDE, Keep.OWN, 3)),
        ((5, UNRESOLVED), 4, 3, Arrival(Case.SET_BACK, OUTSIDE, Keep.OWN, 3)),
        ((5, UNRESOLVED), 5, 3, Arrival(Case.TOOK_PART, VOTER, Keep.ALL)),
        ((5, UNRESOLVED), 6, 3, Arrival(Case.TOOK_PART_MARKED_SINCE, VOTER, Keep.OWN, 3)),
        ((3, 7), 2, 3, Arrival(Case.SET_BACK_AND_CLOSED, UNPROVEN, Keep.LOWER, 3)),
        ((3, 7), 2, 9, Arrival(Case.SET_BACK_AND_CLOSED, UNPROVEN, Keep.LOWER, 7)),
        ((3, 7), 3, 3, Arrival(Case.CLOSED, COUNTED, Keep.CLOSING, 7)),
        ((3, 7), 4, 3, Arrival(Case.MARKED_BELOW, COUNTED, Keep.LOWER, 3)),
        ((3, 7), 4, 7, Arrival(Case.MARKED_BELOW, COUNTED, Keep.LOWER, 7)),
        ((3, 7), 4, 8, Arrival(Case.MARKED_ABOVE, UNPROVEN, Keep.OWN, 8)),
        ((3, 7), 5, 3, Arrival(Case.MARKED_BY_LAST, COUNTED, Keep.OWN, 3)),
        ((3, 7), 6, 3, Arrival(Case.MARKED_SINCE, VOTER, Keep.OWN, 3)),
        ((-1, 7), -1, -1, Arrival(Case.NEVER_NAMED, UNPROVEN, Keep.CLOSING, 7)),
        ((-1, 7), 4, 3, Arrival(Case.NEVER_NAMED_BELOW, UNPROVEN, Keep.LOWER, 3)),
    ],
)
def test_the_cases_one_by_one(entry: tuple[int, int] | None, session: int, own: int, expected: Arrival) -> None:
    states = {B: state(B, 5, UNRESOLVED)}
    if entry is not None:
        states[A] = state(A, *entry)
    assert judge(states, SessionInfo(session, own, own)) == expected


def test_without_states_a_replica_with_a_mark_waits_for_an_operator() -> None:
    assert judge({}, SessionInfo(-1, -1, -1)) == Arrival(Case.NO_STATES, VOTER, Keep.ALL)
    # Also one that a first recovery marked before it was aborted: the session it reports is no evidence.
    assert judge({}, SessionInfo(0, -1, -1)).case is Case.NO_STATES
    assert judge({}, SessionInfo(3, 0, 0)) == Arrival(Case.RECORDS_WITHOUT_STATES, VOTER, Keep.HELD)


def test_whatever_arrives_is_a_case_of_the_table_and_each_case_arrives() -> None:
    cases = set()
    for states, info, probed in everything():
        judged = judge(states, info, probed)
        cases.add(judged.case)
        assert (judged.keep, judged.standing) == TABLE[judged.case]
        assert (judged.keep_until is None) == (judged.keep in (Keep.ALL, Keep.HELD))
    assert cases == set(Case) == set(TABLE)


def test_what_must_hold_of_every_arrival() -> None:
    for states, info, probed in everything():
        judged, entry = judge(states, info, probed), states.get(A)
        own = info.low_water_mark
        took_part = entry is not None and entry.closing_mark == UNRESOLVED and info.session_id >= entry.session_id
        if judged.case is Case.UNKNOWN_SESSION:
            assert not probed
            assert is_unknown(states, A, info.session_id)
            continue
        if took_part:  # S6: what it acknowledged in the last session may be committed, and is not cut unasked
            assert judged.standing == VOTER
            assert judged.keep is Keep.ALL or info.session_id > last_session({A: entry} if entry else {})
        if judged.standing.may_vote and judged.keep_until is not None:  # decided when it was marked
            assert judged.keep_until == own
        if judged.standing.counted and states and not took_part:
            assert entry is not None  # nobody supports a mark whom the states do not name
        if entry is not None and info.session_id < entry.session_id:  # set back, or wiped
            assert not judged.standing.vouched
            assert judged.keep_until is not None
            assert judged.keep_until <= own
        if judged.keep_until is not None and judged.keep_until > own:  # only what the states say was good
            assert judged.case in (Case.CLOSED, Case.NEVER_NAMED)


@pytest.mark.parametrize(
    ("standing", "mark", "local", "start", "expected"),
    [
        (VOTER, 5, 5, 0, VOTER),
        (VOTER, 4, 4, 0, COUNTED),  # below its own mark of 5: no vote
        (VOTER, 5, 6, 0, attrs.evolve(VOTER, counted=False)),  # it once held 6: it may have lost what it acknowledged
        (VOTER, 4, 6, 0, OUTSIDE_BUT_WHOLE := Standing(counted=False, vouched=True, may_vote=False)),
        (COUNTED, 4, 6, 0, COUNTED),  # it was cut, and is no evidence of the last session anyway
        (UNPROVEN, 4, 4, 0, UNPROVEN),
        (UNPROVEN, 4, 4, 5, COUNTED),  # nothing of it is left to compare
        (OUTSIDE, 4, 4, 5, OUTSIDE_BUT_WHOLE),
    ],
)
def test_the_end_of_its_log_completes_the_standing(
    standing: Standing, mark: int, local: int, start: int, expected: Standing
) -> None:
    assert settled(standing, SessionInfo(5, 5, local), start, mark) == expected


def test_the_table_in_the_docstring_is_the_table_of_the_code() -> None:
    words = {
        "its end": Keep.ALL,
        "own mark": Keep.OWN,
        "closing mark": Keep.CLOSING,
        "the lower mark": Keep.LOWER,
        "held for an operator": Keep.HELD,
    }
    standings = {"VOTER": VOTER, "COUNTED": COUNTED, "UNPROVEN": UNPROVEN, "OUTSIDE": OUTSIDE}
    rows = re.findall(r"^\| ([A-Z_]+) \|.*\| ([a-z ]+) \| ([A-Z]+) \|$", arrivals.__doc__ or "", re.MULTILINE)
    written = {Case[name]: (words[keep], standings[standing]) for name, keep, standing in rows}
    assert written == {case: row for case, row in TABLE.items() if case is not Case.UNKNOWN_SESSION}

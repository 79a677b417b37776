"""Conditions under faults by seed: no name is claimed twice, no course is overbooked, whoever meets whom."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

import waltz_dcb.store
from waltz_core.base.lock import Lock
from waltz_dcb import AppendCondition, Event, Query, QueryItem, memory_view, sqlite_view
from waltz_dcb.locks import locks_taken
from waltz_dcb.store import Finder, Proposal, find
from waltz_testing import Simulated, SimulationError, Submit, simulate
from waltz_trio import Append

SEATS = 3
COURSES, STUDENTS = ("c1", "c2"), ("s1", "s2", "s3", "s4", "s5")


def course_of(course: str) -> Query:
    return Query(QueryItem(["Subscribed", "Left"], [f"course:{course}"]))


def taken(state: Finder, course: str, after: int = -1) -> int:
    found = find(state, course_of(course), after, None, False)
    return sum(1 if each.event.type == "Subscribed" else -1 for each in found)


def claim(state: Finder, name: str) -> Append | None:
    """Once, whoever asks."""
    query = Query(QueryItem(tags=[f"name:{name}"]))
    return Proposal(Event("Claimed", b"", [f"name:{name}"]), AppendCondition(query)).decide(state)


def subscribe(state: Finder, course: str, student: str) -> Append | None:
    """Read, decide, and append if nothing has happened to the course since."""
    if taken(state, course) >= SEATS:
        return None
    head = [each.position for each in find(state, Query.all(), -1, 1, True)]
    condition = AppendCondition(course_of(course), head[0] if head else None)
    event = Event("Subscribed", b"", [f"course:{course}", f"student:{student}"])
    return Proposal(event, condition).decide(state)


def leave(state: Finder, course: str, student: str) -> Append | None:
    if taken(state, course) == 0:
        return None
    return Proposal(Event("Left", b"", [f"course:{course}", f"student:{student}"])).decide(state)


def workload(rng: Random) -> Submit:
    kind = rng.random()
    if kind < 0.3:
        return Submit(claim, rng.choice(("ann", "bob", "cid")))
    return Submit(subscribe if kind < 0.9 else leave, rng.choice(COURSES), rng.choice(STUDENTS))


def no_course_is_overbooked(state: Finder) -> bool:
    return all(taken(state, course) <= SEATS for course in COURSES)


def no_name_is_claimed_twice(state: Finder) -> bool:
    claims = [sorted(each.event.tags) for each in find(state, Query(QueryItem(["Claimed"])), -1, None, False)]
    return all(claims.count(tags) == 1 for tags in claims)


def observe(state: Finder) -> list[str]:
    events = [each.event for each in find(state, Query.all(), -1, None, False)]
    return [f"{event.type} {'+'.join(sorted(event.tags))}" for event in events]


INVARIANTS = (no_course_is_overbooked, no_name_is_claimed_twice)


def database(directory: Path) -> object:
    return sqlite_view(directory / "events.db")


@pytest.mark.parametrize("view", [lambda directory: memory_view(), database], ids=["memory", "sqlite"])
def test_conditions_hold_under_faults(view: object) -> None:
    summary = simulate(Simulated(view, INVARIANTS, observe), workload, seeds=range(10), calls=25)  # type: ignore[arg-type]
    assert summary.counts["committed"] > 30
    assert summary.counts["declined"] > 20
    assert summary.counts["conflicts"] > 5
    assert summary.counts["faults"] > 3


def test_without_the_locks_of_the_condition_the_simulation_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(query: Query, count_of: object) -> list[Lock]:
        return []

    monkeypatch.setattr(waltz_dcb.store, "locks_looked_at", none)
    application = Simulated(lambda directory: memory_view(), INVARIANTS, observe)
    with pytest.raises(SimulationError, match=r"no_course_is_overbooked|no_name_is_claimed_twice"):
        simulate(application, workload, seeds=range(20))


def test_a_lock_on_the_wrong_tag_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event takes the lock of its first tag alone."""

    def first(events: tuple[Event, ...]) -> list[Lock]:
        return locks_taken([Event(event.type, b"", sorted(event.tags)[1:]) for event in events])

    monkeypatch.setattr(waltz_dcb.store, "locks_taken", first)
    application = Simulated(lambda directory: memory_view(), INVARIANTS, observe)
    with pytest.raises(SimulationError, match=r"no_course_is_overbooked|no_name_is_claimed_twice"):
        simulate(application, workload, seeds=range(20))

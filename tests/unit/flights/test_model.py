"""Decisions about departures, in any order, and the tables they make."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Sequence

import attrs
import pytest

import waltz_trio as waltz
from examples.flights import model, source, truth
from examples.flights.source import Flight
from waltz_core.base.ids import ReqId

SLICE = 1_500


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.executescript(model.SCHEMA)
    yield connection
    connection.close()


def append_of(db: sqlite3.Connection, flight: Flight) -> waltz.Append:
    append = model.enter(db.cursor(), flight)
    assert append is not None
    return append


def apply(db: sqlite3.Connection, append: waltz.Append) -> None:
    data = append.codec.dumps(append.value)
    model.apply(waltz.Transaction(0, 0, append.header, ReqId(bytes(16)), data), db.cursor())


def enter(db: sqlite3.Connection, flights: Sequence[Flight]) -> None:
    for flight in flights:
        apply(db, append_of(db, flight))


def verdicts(db: sqlite3.Connection) -> list[str]:
    return [row[0] for row in db.execute("SELECT verdict FROM departures ORDER BY departs")]


def flight(departs: int, lands: int, aircraft: str = "N1", *, cancelled: bool = False) -> Flight:
    return Flight(0, "UA", departs, 20130101, aircraft, "EWR", "ORD", 700, departs, lands, 3, cancelled)


def test_an_aircraft_must_have_landed_and_come_back() -> None:
    assert model.verdict(None, None, 0) == "fits"
    assert model.verdict(100, 200, 199) == "busy"
    assert model.verdict(100, 200, 200) == "away"
    assert model.verdict(100, 200, 299) == "away"
    assert model.verdict(100, 200, 300) == "fits"


def test_a_flight_entered_late_changes_what_is_said_of_the_next(db: sqlite3.Connection) -> None:
    enter(db, [flight(100, 150), flight(300, 350), flight(250, 340)])
    assert verdicts(db) == ["fits", "fits", "busy"]
    assert db.execute("SELECT departures, busy, away, airport, free_at FROM aircraft").fetchone() == (
        3, 1, 0, "ORD", 350,
    )  # fmt: skip


@pytest.mark.parametrize("cancelled", [False, True])
def test_an_entry_is_made_once(db: sqlite3.Connection, cancelled: bool) -> None:
    one = flight(100, 150, cancelled=cancelled)
    enter(db, [one, flight(300, 400)])
    assert model.enter(db.cursor(), one) is None


def test_the_lock_is_the_aircraft_and_without_one_the_flight_of_the_day(db: sqlite3.Connection) -> None:
    assert list(append_of(db, flight(1, 2, "N14228")).write) == [("aircraft", int("N14228", 36))]
    cancelled = flight(1, 2, "", cancelled=True)
    assert list(append_of(db, cancelled).write) == [("flight", model.lock(cancelled)[1])]
    assert model.lock(cancelled) != model.lock(attrs.evolve(cancelled, date=20130102))
    assert model.enter(db.cursor(), flight(1, 2), False).write == []  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", range(3))
def test_the_tables_are_those_of_the_file_whatever_the_order(db: sqlite3.Connection, seed: int) -> None:
    rng = random.Random(seed)
    flights = sorted(source.flights(SLICE), key=lambda flight: flight.row + rng.random() * 500)
    enter(db, flights)
    expected = truth.compute(SLICE)
    assert truth.differences(db, expected) == []
    assert truth.digest(db) == truth.digest(expected)
    expected.close()


def test_two_decisions_on_the_same_state_lose_one_of_them(db: sqlite3.Connection) -> None:
    """What the lock is for."""
    first, second = append_of(db, flight(100, 150)), append_of(db, flight(300, 350))
    apply(db, first)
    apply(db, second)
    assert db.execute("SELECT departures FROM aircraft").fetchone() == (1,)


def test_a_difference_is_told(db: sqlite3.Connection) -> None:
    enter(db, list(source.flights(50)))
    db.execute("UPDATE aircraft SET miles = miles + 1 WHERE tail = 'N14228'")
    expected = truth.compute(50)
    found = truth.differences(db, expected)
    assert len(found) == 1
    assert found[0].startswith("aircraft: 1 rows are not there as they should be; expected ('N14228'")
    assert truth.digest(db) != truth.digest(expected)
    expected.close()


def test_departures_are_dealt_in_turn() -> None:
    whole = [flight.row for flight in source.flights(10)]
    assert whole == list(range(10))
    assert [[flight.row for flight in source.flights(10, share, 3)] for share in range(3)] == [
        [0, 3, 6, 9],
        [1, 4, 7],
        [2, 5, 8],
    ]


def test_times_are_minutes_of_utc() -> None:
    first = next(source.flights(1))
    assert (first.departs, first.lands, first.late, first.date) == (10 * 60 + 17, 10 * 60 + 17 + 227, 2, 20130101)


def test_the_whole_file_is_there() -> None:
    rows = cancelled = unnamed = 0
    for flight in source.flights():
        rows += 1
        cancelled += flight.cancelled
        unnamed += not flight.aircraft
        assert flight.aircraft or flight.cancelled
    assert (rows, cancelled, unnamed) == (source.ROWS, 8_255, 2_512)

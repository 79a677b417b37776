"""What an entry of the log says, how it is decided from a dispatcher's database, and how it is applied to it.

An aircraft is in one place at a time. Its row says where the last departure brought it and when it is free.
A departure *fits* if the aircraft has landed and had the time to come back (which takes as long as the way
out; flights to New York are not in the file). If it has not landed, the aircraft is *busy*; if it cannot be
back yet, it is *away*: 316 departures of 2013 cannot have been flown as the file says.

An entry carries the new row of its aircraft, computed from the row that its dispatcher saw. That is right
only if nobody else entered a flight of that aircraft in between, which is what the write lock is for. Apply
puts the row in place without looking: without the lock, one of two entries would be lost without a sound.
"""

from __future__ import annotations

import sqlite3
from typing import Any

import waltz_trio as waltz
from examples.flights.source import Flight

DEPARTURE, CANCELLATION = 1, 2  # headers

TABLES = ("aircraft", "departures", "cancellations", "airports", "delays")

SCHEMA = """
CREATE TABLE IF NOT EXISTS aircraft (
    tail TEXT PRIMARY KEY,
    departures INTEGER NOT NULL, cancellations INTEGER NOT NULL,
    miles INTEGER NOT NULL, late INTEGER NOT NULL,      -- sums
    busy INTEGER NOT NULL, away INTEGER NOT NULL,       -- departures that do not fit
    departed INTEGER, free_at INTEGER, airport TEXT     -- of the latest departure
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS departures (
    tail TEXT, departs INTEGER, lands INTEGER NOT NULL, origin TEXT NOT NULL, destination TEXT NOT NULL,
    verdict TEXT NOT NULL,
    PRIMARY KEY (tail, departs)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cancellations (
    carrier TEXT, number INTEGER, date INTEGER, origin TEXT NOT NULL, tail TEXT NOT NULL,
    PRIMARY KEY (carrier, number, date)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS airports (
    code TEXT PRIMARY KEY,
    departures INTEGER NOT NULL, arrivals INTEGER NOT NULL, cancellations INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS delays (
    carrier TEXT, month INTEGER,
    departures INTEGER NOT NULL, cancellations INTEGER NOT NULL, minutes INTEGER NOT NULL, worst INTEGER NOT NULL,
    PRIMARY KEY (carrier, month)
) WITHOUT ROWID;
"""

_JSON: waltz.Json[Any] = waltz.Json()

_READ_AIRCRAFT = """
SELECT departures, cancellations, miles, late, busy, away, departed, free_at, airport FROM aircraft WHERE tail = ?"""
_READ_BEFORE = "SELECT departs, lands FROM departures WHERE tail = ? AND departs < ? ORDER BY departs DESC LIMIT 1"
_READ_AFTER = "SELECT departs, verdict FROM departures WHERE tail = ? AND departs > ? ORDER BY departs LIMIT 1"
_READ_DEPARTURE = "SELECT 1 FROM departures WHERE tail = ? AND departs = ?"
_READ_CANCELLATION = "SELECT 1 FROM cancellations WHERE carrier = ? AND number = ? AND date = ?"

_WRITE_AIRCRAFT = "INSERT OR REPLACE INTO aircraft VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_WRITE_DEPARTURE = "INSERT OR REPLACE INTO departures VALUES (?, ?, ?, ?, ?, ?)"
_WRITE_CANCELLATION = "INSERT OR REPLACE INTO cancellations VALUES (?, ?, ?, ?, ?)"
_WRITE_VERDICT = "UPDATE departures SET verdict = ? WHERE tail = ? AND departs = ?"
_ADD_AIRPORT = """
INSERT INTO airports VALUES (?1, ?2, ?3, ?4) ON CONFLICT (code) DO UPDATE SET
    departures = departures + ?2, arrivals = arrivals + ?3, cancellations = cancellations + ?4"""
_ADD_DELAY = """
INSERT INTO delays VALUES (?1, ?2, ?3, ?4, ?5, ?5) ON CONFLICT (carrier, month) DO UPDATE SET
    departures = departures + ?3, cancellations = cancellations + ?4, minutes = minutes + ?5, worst = max(worst, ?5)"""

_NEW = (0, 0, 0, 0, 0, 0, None, None, None)


def verdict(departed: int | None, free_at: int | None, departs: int) -> str:
    """Whether an aircraft can depart: `departed` and `free_at` tell of its departure before, if there is one."""
    if departed is None or free_at is None:
        return "fits"
    if departs < free_at:
        return "busy"
    return "fits" if departs >= free_at + (free_at - departed) else "away"


# ---- who may not decide at the same time -------------------------------------------------------------


def lock(flight: Flight) -> tuple[str, int]:
    """The lock of an entry: the aircraft; where none is known, the flight of that day."""
    if flight.aircraft:
        return "aircraft", int(flight.aircraft, 36)
    return "flight", (int(flight.carrier, 36) * 10_000 + flight.number) * 100_000_000 + flight.date


def partition_key(flight: Flight) -> int:
    """What decides on the partition: all entries of an aircraft must be in one."""
    return lock(flight)[1]


# ---- decide --------------------------------------------------------------------------------------------


def enter(db: sqlite3.Cursor, flight: Flight, locked: bool = True) -> waltz.Append | None:
    """The entry of a flight, given what `db` knows; None if it is there already."""
    value = _cancel(db, flight) if flight.cancelled else _depart(db, flight)
    if value is None:
        return None
    header = CANCELLATION if flight.cancelled else DEPARTURE
    return waltz.Append(value, _JSON, header, write=[lock(flight)] if locked else [])


def _depart(db: sqlite3.Cursor, flight: Flight) -> list[Any] | None:
    tail, departs = flight.aircraft, flight.departs
    departures, cancellations, miles, late, busy, away, departed, free_at, airport = _aircraft(db, tail)
    changed = None
    if departed is None or departs > departed:
        found = verdict(departed, free_at, departs)
        departed, free_at, airport = departs, flight.lands, flight.destination
    else:
        # Another dispatcher was faster with a later flight of this aircraft: this one goes between two.
        if db.execute(_READ_DEPARTURE, (tail, departs)).fetchone():
            return None
        before_departs, before_lands = db.execute(_READ_BEFORE, (tail, departs)).fetchone() or (None, None)
        found = verdict(before_departs, before_lands, departs)
        next_departs, next_verdict = db.execute(_READ_AFTER, (tail, departs)).fetchone()
        changed = [next_departs, verdict(departs, flight.lands, next_departs)]
        busy += (changed[1] == "busy") - (next_verdict == "busy")
        away += (changed[1] == "away") - (next_verdict == "away")
    row = [
        departures + 1,
        cancellations,
        miles + flight.miles,
        late + flight.late,
        busy + (found == "busy"),
        away + (found == "away"),
        departed,
        free_at,
        airport,
    ]
    what = [tail, departs, flight.lands, flight.origin, flight.destination, found]
    return [what, row, changed, flight.carrier, _month(flight), flight.late]


def _cancel(db: sqlite3.Cursor, flight: Flight) -> list[Any] | None:
    if db.execute(_READ_CANCELLATION, (flight.carrier, flight.number, flight.date)).fetchone():
        return None
    row = None
    if flight.aircraft:
        departures, cancellations, *rest = _aircraft(db, flight.aircraft)
        row = [departures, cancellations + 1, *rest]
    what = [flight.carrier, flight.number, flight.date, flight.origin, flight.aircraft]
    return [what, row, _month(flight)]


def _aircraft(db: sqlite3.Cursor, tail: str) -> Any:
    return db.execute(_READ_AIRCRAFT, (tail,)).fetchone() or _NEW


def _month(flight: Flight) -> int:
    return flight.date // 100 % 100


# ---- apply ---------------------------------------------------------------------------------------------


def apply(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
    """Write one entry into the tables."""
    if txn.header == CANCELLATION:
        what, row, month = txn.load(_JSON)
        carrier, _, _, origin, tail = what
        db.execute(_WRITE_CANCELLATION, what)
        db.execute(_ADD_AIRPORT, (origin, 0, 0, 1))
        db.execute(_ADD_DELAY, (carrier, month, 0, 1, 0))
    else:
        what, row, changed, carrier, month, late = txn.load(_JSON)
        tail, _, _, origin, destination, _ = what
        db.execute(_WRITE_DEPARTURE, what)
        if changed is not None:
            db.execute(_WRITE_VERDICT, (changed[1], tail, changed[0]))
        db.execute(_ADD_AIRPORT, (origin, 1, 0, 0))
        db.execute(_ADD_AIRPORT, (destination, 0, 1, 0))
        db.execute(_ADD_DELAY, (carrier, month, 1, 0, late))
    if row is not None:
        db.execute(_WRITE_AIRCRAFT, (tail, *row))

"""The tables computed straight from the file with SQL, without a log, locks or decisions; and a comparison."""

from __future__ import annotations

import csv
import hashlib
import sqlite3

from examples.flights.model import SCHEMA, TABLES
from examples.flights.source import lines

_ROWS_AT_ONCE = 10_000
_SHOWN = 3  # differences of a table that are shown

_LOAD = """
CREATE TABLE flights (
    year, month, day, dep_time, sched_dep_time, dep_delay, arr_time, sched_arr_time, arr_delay, carrier, flight,
    tailnum, origin, dest, air_time, distance, hour, minute, time_hour)
"""

_COMPUTE = """
CREATE TABLE times AS SELECT
    tailnum, origin, dest, carrier,
    CAST(flight AS INTEGER) AS number, CAST(month AS INTEGER) AS month,
    year * 10000 + month * 100 + day AS date,
    dep_delay IS NULL AS cancelled,
    CAST(distance AS INTEGER) AS miles, CAST(dep_delay AS INTEGER) AS late,
    (strftime('%s', time_hour) - strftime('%s', '2013-01-01')) / 60 + minute + dep_delay AS departs,
    COALESCE(CAST(air_time AS INTEGER), distance / 7) AS minutes
FROM flights;

CREATE TABLE pairs AS SELECT *,
    departs + minutes AS lands,
    LAG(departs) OVER w AS before, LAG(departs + minutes) OVER w AS before_lands
FROM times WHERE NOT cancelled WINDOW w AS (PARTITION BY tailnum ORDER BY departs);

INSERT INTO departures SELECT tailnum, departs, lands, origin, dest,
    CASE WHEN before IS NULL THEN 'fits'
         WHEN departs < before_lands THEN 'busy'
         WHEN departs < 2 * before_lands - before THEN 'away'
         ELSE 'fits' END
FROM pairs;

INSERT INTO cancellations SELECT carrier, number, date, origin, COALESCE(tailnum, '') FROM times WHERE cancelled;

INSERT INTO aircraft
SELECT t.tailnum, SUM(NOT cancelled), SUM(cancelled), SUM(miles * (NOT cancelled)), SUM(COALESCE(late, 0)),
    (SELECT COUNT(*) FROM departures d WHERE d.tail = t.tailnum AND verdict = 'busy'),
    (SELECT COUNT(*) FROM departures d WHERE d.tail = t.tailnum AND verdict = 'away'),
    (SELECT MAX(departs) FROM departures d WHERE d.tail = t.tailnum),
    (SELECT lands FROM departures d WHERE d.tail = t.tailnum ORDER BY departs DESC LIMIT 1),
    (SELECT destination FROM departures d WHERE d.tail = t.tailnum ORDER BY departs DESC LIMIT 1)
FROM times t WHERE tailnum IS NOT NULL GROUP BY tailnum;

INSERT INTO airports
SELECT code, SUM(departed), SUM(arrived), SUM(cancelled) FROM (
    SELECT origin AS code, NOT cancelled AS departed, 0 AS arrived, cancelled FROM times
    UNION ALL SELECT dest, 0, 1, 0 FROM times WHERE NOT cancelled)
GROUP BY code;

INSERT INTO delays
SELECT carrier, month, SUM(NOT cancelled), SUM(cancelled), SUM(COALESCE(late, 0)), MAX(COALESCE(late, 0))
FROM times GROUP BY carrier, month;
"""


def compute(limit: int | None = None) -> sqlite3.Connection:
    """An in-memory database with the tables as the first `limit` rows of the file make them."""
    db = sqlite3.connect(":memory:")
    db.executescript(SCHEMA)
    db.execute(_LOAD)
    rows = ([None if cell == "NA" else cell for cell in row] for row in csv.reader(lines(limit)))
    db.executemany(f"INSERT INTO flights VALUES ({', '.join('?' * 19)})", rows)
    db.executescript(_COMPUTE)
    return db


def differences(db: sqlite3.Connection, truth: sqlite3.Connection) -> list[str]:
    """What is wrong in the tables of `db`, in words; empty if nothing is."""
    found = []
    for table in TABLES:
        ours, theirs = (set(each.execute(f"SELECT * FROM {table}")) for each in (db, truth))
        missing, surplus = sorted(theirs - ours, key=repr), sorted(ours - theirs, key=repr)
        if missing or surplus:
            examples = [f"expected {row}" for row in missing[:_SHOWN]] + [f"found {row}" for row in surplus[:_SHOWN]]
            found.append(f"{table}: {len(missing)} rows are not there as they should be; " + "; ".join(examples))
    return found


def digest(db: sqlite3.Connection | sqlite3.Cursor) -> str:
    """A text that is equal for equal tables."""
    sums = hashlib.sha256()
    for table in TABLES:
        rows = db.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3")
        while some := rows.fetchmany(_ROWS_AT_ONCE):
            sums.update(repr(some).encode())
    return sums.hexdigest()

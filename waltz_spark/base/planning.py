"""Ranges of ids, offsets, limits, splits: pure functions, without files or sockets."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias
from uuid import UUID

import attrs

from waltz_core.base.ids import Endpoint
from waltz_core.base.record import record
from waltz_spark.base.errors import OptionError, WentBackError, WrongClusterError
from waltz_trio.net.tls import TlsSettings

FORMAT = 1
_NO_KEY = str(UUID(int=0))  # of an offset whose reader was not shown the cluster key
EARLIEST, LATEST = -2, -1
NOT_READ = -1
"""In an offset: the partition was not wanted so far."""

Vector: TypeAlias = tuple[int, ...]
"""The next id to read of each partition, in the order of their ids."""


# ---- where records are -----------------------------------------------------------------------


@record
class FilePlace:
    """A segment file."""

    path: str
    key: bytes


@record
class ArchivePlace:
    """A Parquet file of an archive; ids half-open."""

    root: str  # of the archive, path or URI
    path: str  # below it
    first_id: int
    end_id: int
    file_size: int = -1  # of the file, as the manifest says; -1: it is not in the manifest yet
    raw_size: int = -1  # bytes of the records, likewise


@record
class StoragePlace:
    """The admin port of a storage node."""

    endpoint: Endpoint
    tls: TlsSettings
    key: bytes
    partition_count: int
    session_id: int  # a replica that took part in it holds what was committed; another is read to its own mark


@record
class ServerPlace:
    """The port of a server, or the whole cluster by what `open_client` takes."""

    endpoint: Endpoint
    tls: TlsSettings
    client: str | tuple[tuple[str, object], ...]  # URL, or configuration as pairs


Place = FilePlace | ArchivePlace | StoragePlace | ServerPlace


def is_remote(place: Place) -> bool:
    """Whether it is a process that serves records, and may not answer."""
    return isinstance(place, StoragePlace | ServerPlace)


def is_local(place: Place) -> bool:
    """Whether it is a file of this machine: one that cannot be read is damaged, and not silent."""
    return isinstance(place, FilePlace) or (isinstance(place, ArchivePlace) and "://" not in place.root)


@record
class Range:
    """Ids `start .. end - 1` of a partition and where they are, best place first."""

    partition: int
    start: int
    end: int
    size: int  # bytes, or an estimate
    places: tuple[Place, ...]

    @property
    def count(self) -> int:
        """Records."""
        return self.end - self.start


def clip(whole: Range, start: int, end: int) -> Range | None:
    """The part of a range within `start .. end - 1`; its size in proportion."""
    low, high = max(whole.start, start), min(whole.end, end)
    if low >= high:
        return None
    if (low, high) == (whole.start, whole.end):
        return whole
    return attrs.evolve(whole, start=low, end=high, size=max(1, whole.size * (high - low) // whole.count))


# ---- splits ----------------------------------------------------------------------------------


def split(ranges: Iterable[Range], size_max: int, count_max: int | None = None) -> list[Range]:
    """Cut ranges into pieces of about `size_max` bytes and at most `count_max` records. Depends on nothing else."""
    parts: list[Range] = []
    for whole in ranges:
        pieces = max(1, -(-whole.size // max(1, size_max)))
        if count_max is not None:
            pieces = max(pieces, -(-whole.count // count_max))
        pieces = min(pieces, whole.count)
        borders = [whole.start + whole.count * at // pieces for at in range(pieces + 1)]
        for low, high in itertools.pairwise(borders):
            piece = clip(whole, low, high)
            assert piece is not None
            parts.append(piece)
    return parts


def pack(ranges: Sequence[Range], size_max: int, tasks_min: int = 1) -> list[tuple[Range, ...]]:
    """Put neighbours together until a task has `size_max` bytes, but make at least `tasks_min` tasks of them."""
    total = sum(part.size for part in ranges)
    goal = min(size_max, max(1, total // max(1, tasks_min)))
    tasks: list[list[Range]] = []
    filled = goal
    for part in ranges:
        if filled + part.size // 2 >= goal:  # less than half of it would still fit
            tasks.append([])
            filled = 0
        tasks[-1].append(part)
        filled += part.size
    return [tuple(task) for task in tasks]


def plan(
    ranges: Sequence[Range],
    *,
    target_size: int,
    count_max: int | None = None,
    tasks_min: int = 1,
    pack_small: bool = True,
) -> list[tuple[Range, ...]]:
    """Tasks for ranges: large ones cut, small ones put together."""
    total = sum(one.size for one in ranges)
    target = max(1, min(target_size, -(-total // max(1, tasks_min))))
    pieces = split(ranges, target, count_max)
    if not pack_small or count_max is not None:
        return [(piece,) for piece in pieces]
    return pack(pieces, target, tasks_min)


# ---- offsets ---------------------------------------------------------------------------------


def offset_of(key: bytes, ends: Vector) -> dict[str, Any]:
    """A stream offset. Spark compares offsets as text: always every partition, always in the order of ids."""
    return {"waltz": FORMAT, "c": str(UUID(bytes=key)), "next": {str(at): end for at, end in enumerate(ends)}}


def symbolic_offset(starting: str) -> dict[str, Any]:
    """The offset before the first one. Spark keeps it nowhere and asks twice, so it must not depend on the log.

    Raises:
        OptionError: it is no offset; whether the log has its partitions is seen later.
    """
    word = starting.strip()
    if word in ("earliest", "latest"):
        return {"waltz": FORMAT, "init": word}
    _numbers(word, None, "startingOffsets")
    return {"waltz": FORMAT, "init": json.loads(word)}


def is_symbolic(offset: Mapping[str, Any]) -> bool:
    """Whether an offset is still symbolic, such as `earliest`."""
    return "init" in offset


def symbol_of(offset: Mapping[str, Any]) -> str:
    """The argument of `symbolic_offset`."""
    init = offset["init"]
    return init if isinstance(init, str) else json.dumps(init)


def ends_of(offset: Mapping[str, Any], key: bytes, count: int) -> Vector:
    """The ids of an offset.

    Raises:
        OptionError: it is malformed, or has other partitions.
        WrongClusterError: it was made by reading another cluster.
    """
    if offset.get("waltz") != FORMAT or "next" not in offset:
        raise OptionError(f"the checkpoint holds an offset that this version cannot read: {json.dumps(offset)}")
    if offset["c"] not in (str(UUID(bytes=key)), _NO_KEY) and any(key):
        raise WrongClusterError("the source", offset["c"], str(UUID(bytes=key)))
    if set(offset["next"]) != {str(at) for at in range(count)}:
        raise OptionError(f"the checkpoint holds {len(offset['next'])} partitions, the log has {count}")
    return tuple(int(offset["next"][str(at)]) for at in range(count))


def resolve(text: str, earliest: Vector, latest: Vector, default: int, *, what: str = "startingOffsets") -> Vector:
    """`earliest`, `latest`, or a JSON object of next ids, in which -1 is latest and -2 earliest.

    Raises:
        OptionError: it is something else, or names a partition that does not exist.
    """
    words = {"earliest": EARLIEST, "latest": LATEST}
    word = text.strip()
    everywhere = dict.fromkeys(range(len(latest)), words.get(word, default))
    chosen = everywhere if word in words else _numbers(word, len(latest), what)
    ids = []
    for at in range(len(latest)):
        value = chosen.get(at, default)
        ids.append({EARLIEST: earliest[at], LATEST: latest[at]}.get(value, value))
    return tuple(ids)


def _numbers(text: str, count: int | None, what: str) -> dict[int, int]:
    problem = OptionError(f'{what}: expected earliest, latest or JSON such as {{"0": 15, "1": -1}}, found {text!r}')
    try:
        values = json.loads(text)
    except ValueError:
        raise problem from None
    if not isinstance(values, dict):
        raise problem
    numbers: dict[int, int] = {}
    for name, value in values.items():
        if not name.isdecimal() or type(value) is not int or value < EARLIEST:
            raise problem
        if count is not None and int(name) >= count:
            raise OptionError(f"{what}: there is no partition {name}, the log has {count}")
        numbers[int(name)] = value
    return numbers


# ---- limits ----------------------------------------------------------------------------------


def check_not_back(start: Vector, ends: Vector) -> None:
    """Raises:
    WentBackError: a log ends before where it was read up to.
    """
    for partition, (read, end) in enumerate(zip(start, ends, strict=True)):
        if end < read:
            raise WentBackError(partition, read, end)


def advance(start: Vector, ends: Vector, count_max: int | None) -> Vector:
    """How far to go from `start` towards `ends` with at most `count_max` records in all.

    Each partition gets a share in proportion to its lag, at least one record if the limit allows;
    otherwise those that lag most come first. Never beyond `ends`, never below `start`.
    """
    lags = [end - read for read, end in zip(start, ends, strict=True)]
    total = sum(lags)
    if count_max is None or total <= count_max:
        return ends
    shares = [lag * count_max // total for lag in lags]
    left = count_max - sum(shares)
    # The remainder of rounding goes first to partitions that would get nothing.
    order = sorted(range(len(lags)), key=lambda at: (shares[at] > 0, -lags[at], at))
    for at in order:
        if left and shares[at] < lags[at]:
            shares[at] += 1
            left -= 1
    starved = [at for at in range(len(lags)) if lags[at] and not shares[at]]
    for at in starved:
        rich = max(range(len(lags)), key=lambda one: shares[one])
        if shares[rich] < 2:
            break
        shares[rich] -= 1
        shares[at] = 1
    return tuple(read + share for read, share in zip(start, shares, strict=True))

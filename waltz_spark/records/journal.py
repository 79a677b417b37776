"""Decision journals as tables: the files of several servers, checked and turned into columns a file at a time.

The bytes are laid down in docs/formats.md. The next file says how much of a file counts; only the last file of a
partition may end in the middle of an entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waltz_core.base.errors import CorruptionError
from waltz_core.base.lock import Conflict, LockKind
from waltz_core.base.record import record
from waltz_core.server.journal_format import (
    APPENDED,
    DECISION_SIZE,
    OVERHEAD,
    SIZE_MAX,
    SUFFIX,
    Decision,
    Kind,
    Started,
    decode_entries,
    entry_end,
    sound_size,
)
from waltz_core.wire.client_messages import Refusal
from waltz_core.wire.lock_names import unpack_names
from waltz_spark.base.errors import JournalError
from waltz_spark.base.objects import open_store
from waltz_spark.records import crc

_HEAD_READ = 64 << 10  # more than the first entry of a file
_SIZE = Struct(">i").unpack_from
_FILE_MAX = 1 << 40  # bytes of one journal file, which servers bound by `server.journal.maxBytes`
_GROUP = 1 << 16  # entries whose checksums are compared at once

FIXED = np.dtype(
    [
        ("session_id", ">i8"),
        ("transaction_id", ">i8"),
        ("client_id", ">i4"),
        ("generation", ">i4"),
        ("partition", ">i4"),
        ("seq", ">i4"),
        ("header", ">i4"),
        ("client_mark", ">i8"),
        ("lock_mark", ">i8"),
        ("verdict", "i1"),
        ("conflict", "i1"),
        ("blocking_id", ">i8"),
        ("lock_kind", "i1"),
        ("lock_index", ">i4"),
        ("received_us", ">i8"),
        ("decided_us", ">i8"),
        ("length", ">i4"),
        ("writes", ">i4"),
        ("reads", ">i4"),
        ("appends", ">i4"),
    ]
)
_RANGE = np.dtype([("session_id", ">i8"), ("first", ">i8"), ("last", ">i8"), ("time_us", ">i8")])
assert FIXED.itemsize == DECISION_SIZE

_TIME = pa.timestamp("us", tz="UTC")
_LOCKS = pa.list_(pa.int32())
_NAMES = pa.list_(pa.struct([("name", pa.string()), ("id", pa.int64())]))
SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("transaction_id", pa.int64()),  # null unless appended
        ("session_id", pa.int64()),
        ("client_id", pa.int32()),
        ("generation", pa.int32()),
        ("seq", pa.int32()),
        ("header", pa.int32()),
        ("client_mark", pa.int64()),
        ("lock_mark", pa.int64()),
        ("verdict", pa.string()),  # appended, lock, generation, ...
        ("conflict", pa.string()),  # true, false, unknown; null unless a lock was refused
        ("blocking_id", pa.int64()),
        ("lock_kind", pa.string()),
        ("lock_index", pa.int32()),
        ("received", _TIME),
        ("decided", _TIME),
        ("committed", _TIME),  # null if the journal does not say
        ("length", pa.int32()),
        ("write_locks", _LOCKS),
        ("read_locks", _LOCKS),
        ("append_locks", _LOCKS),
        ("lock_names", _NAMES),  # of write, read and append locks; null if the client sent none
        ("server", pa.string()),
    ]
)
DDL = (
    "partition int, transaction_id bigint, session_id bigint, client_id int, generation int, seq int, header int, "
    "client_mark bigint, lock_mark bigint, verdict string, conflict string, blocking_id bigint, lock_kind string, "
    "lock_index int, received timestamp, decided timestamp, committed timestamp, length int, write_locks array<int>, "
    "read_locks array<int>, append_locks array<int>, lock_names array<struct<name: string, id: bigint>>, server string"
)


@record
class JournalFile:
    """A file of one partition of one server."""

    place: str  # directory or URI of the server's journal
    partition: int
    number: int
    counts: int  # bytes of it that count; -1: it is the last, and may be torn

    @property
    def name(self) -> str:
        """Below the place."""
        return f"{self.partition}/{self.number:019d}{SUFFIX}"

    @property
    def path(self) -> str:
        """For messages."""
        return f"{self.place.rstrip('/')}/{self.name}"


def find_journals(places: Sequence[str], key: bytes | None = None) -> list[JournalFile]:
    """The files of servers' journals, in order; of one cluster.

    Args:
        places: directories, or URIs that fsspec knows.
        key: of the cluster that they must be of; None = that of the first file.

    Raises:
        JournalError: no journal is there, a file is missing between others, or one is of another cluster.
    """
    journals: list[JournalFile] = []
    for place in places:
        store = open_store(place, read_only=True)
        partitions = sorted(int(name) for name in store.names("") if name.isdigit())
        before = len(journals)
        for partition in partitions:
            names = [name for name in store.names(str(partition)) if name.endswith(SUFFIX)]
            numbers = sorted(int(name.removesuffix(SUFFIX)) for name in names)
            files = [JournalFile(place, partition, number, -1) for number in numbers]
            for at, journal in enumerate(files):
                with store.open_input(journal.name) as file:
                    started = _started(journal, file.read(_HEAD_READ))
                if started is None:  # the server was killed while it began the file, which is empty
                    continue
                if key is None:
                    key = started.key
                if started.key != key:
                    raise JournalError(journal.path, 0, "it is of another cluster")
                if at and numbers[at - 1] != journal.number - 1:
                    raise JournalError(journal.path, 0, f"file {journal.number - 1} before it is missing")
                if at:
                    files[at - 1] = attrs.evolve(files[at - 1], counts=max(0, started.previous_size))
            journals += files
        if len(journals) == before:
            raise JournalError(place, 0, "no journal is there: expected folders with the number of a partition")
    return journals


def _started(file: JournalFile, data: bytes) -> Started | None:
    end = entry_end(data, 0)
    if end < 0:
        if len(data) < _HEAD_READ and sound_size(data) == (0, True):
            return None
        raise JournalError(file.path, 0, "the entry is damaged")
    first = next((entry for _, entry in decode_entries(data[:end], file.path)), None)
    if not isinstance(first, Started) or first.partition_id != file.partition or first.number != file.number:
        raise JournalError(file.path, 0, "it does not begin as this file of this partition must")
    return first


# ---- one file --------------------------------------------------------------------------------


class Entries:
    """The entries of a file, checked.

    Raises:
        JournalError: an entry is damaged or missing, with file and offset.
    """

    def __init__(self, file: JournalFile) -> None:
        self.file = file
        data = open_store(file.place, read_only=True).read(file.name, size_max=_FILE_MAX)
        if file.counts > len(data):
            raise JournalError(file.path, len(data), f"it ends here, but had {file.counts} bytes")
        if file.counts >= 0:
            data = data[: file.counts]
        self._data = data
        self._buffer = np.frombuffer(data, np.uint8)
        self._starts, self._ends = self._walk()
        kinds = self._buffer[self._starts + 2] if len(self._starts) else np.zeros(0, np.uint8)
        self._decisions = np.flatnonzero(kinds == Kind.DECISION)
        self.fixed = self._gather(self._decisions, FIXED)
        self.ranges = self._gather(np.flatnonzero(kinds == Kind.COMMITTED), _RANGE)
        self.gaps = int(np.sum(self._gather(np.flatnonzero(kinds == Kind.GAP), np.dtype(">i8")).astype(np.int64)))
        self._check_sizes()

    def _walk(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        starts, at, data = [], 0, self._data
        last = len(data) - OVERHEAD
        while at <= last:
            size = _SIZE(data, at + 4)[0]
            if not 0 <= size <= SIZE_MAX or at + size > last:
                break
            starts.append(at)
            at += size + OVERHEAD
        bounds = np.array([*starts, at], np.int64)
        bad = self._first_bad(bounds)
        if bad is None and at == len(data):
            return bounds[:-1], bounds[1:]
        at = at if bad is None else int(bounds[bad])
        if self.file.counts < 0 and sound_size(data) == (at, True):
            kept = bounds[bounds <= at]
            return kept[:-1], kept[1:]
        raise JournalError(self.file.path, at, "the entry is damaged or cut short")

    def _first_bad(self, bounds: npt.NDArray[np.int64]) -> int | None:
        """Position of the first entry without marker or with a wrong checksum."""
        for low in range(0, len(bounds) - 1, _GROUP):
            part = bounds[low : low + _GROUP + 1]
            base = int(part[0])
            piece = self._buffer[base : int(part[-1])]
            marked = (self._buffer[part[:-1]] == ord("W")) & (self._buffer[part[:-1] + 1] == ord("J"))
            if marked.all() and crc.own_match(piece, part[1:] - base):
                continue
            for at, (start, end) in enumerate(pairwise(part)):
                if entry_end(self._data, int(start)) != end:
                    return low + at
        return None

    def _gather(self, which: npt.NDArray[np.intp], dtype: Any) -> Any:
        """The fixed part of the bodies of some entries."""
        starts = self._starts[which] + 8
        if len(starts) == 0:
            return np.zeros(0, dtype)
        if np.any(self._ends[which] - starts - 4 < dtype.itemsize):
            raise JournalError(self.file.path, int(starts[0]) - 8, "the entry has no proper content")
        windows = np.ndarray(
            (len(self._buffer) - dtype.itemsize + 1,), f"V{dtype.itemsize}", self._buffer, strides=(1,)
        )
        return windows[starts].view(dtype)

    def _check_sizes(self) -> None:
        counts = np.stack([self.fixed[name].astype(np.int64) for name in ("writes", "reads", "appends")])
        rooms = self._ends[self._decisions] - self._starts[self._decisions] - OVERHEAD - DECISION_SIZE
        wrong = (counts < 0).any(axis=0) | (4 * counts.sum(axis=0) > rooms)
        if wrong.any():
            at = int(self._starts[self._decisions[int(np.argmax(wrong))]])
            raise JournalError(self.file.path, at, "the entry has no proper content")
        self._counts = counts
        self._named = np.flatnonzero(rooms > 4 * counts.sum(axis=0))

    def locks(self, kind: LockKind) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """How many locks of a kind each decision has, and their hashes one after the other."""
        count = self._counts[kind]
        first = self._starts[self._decisions] + 8 + DECISION_SIZE + 4 * self._counts[:kind].sum(axis=0)
        total = int(count.sum())
        if not total:
            return count, np.zeros(0, np.int32)
        within = np.arange(total) - np.repeat(np.cumsum(count) - count, count)
        windows = np.ndarray((len(self._buffer) - 3,), "V4", self._buffer, strides=(1,))
        return count, windows[np.repeat(first, count) + 4 * within].view(">i4").astype(np.int32)

    def names(self) -> list[list[tuple[str, int] | None] | None]:
        """Names of the locks of each decision, None where no lock has one."""
        names: list[list[tuple[str, int] | None] | None] = [None] * len(self._decisions)
        totals = self._counts.sum(axis=0)
        for at in self._named:
            number, count = int(self._decisions[at]), int(totals[at])
            start = int(self._starts[number]) + 8 + DECISION_SIZE + 4 * count
            try:
                names[at] = unpack_names(self._data[start : int(self._ends[number]) - 4], count)
            except ValueError as error:
                raise JournalError(self.file.path, int(self._starts[number]), str(error)) from error
        return names

    @property
    def server(self) -> str:
        """Endpoint of the server that wrote the file; empty if nothing was written."""
        end = entry_end(self._data, 0)
        for _, entry in decode_entries(self._data[: max(end, 0)], self.file.path):
            if isinstance(entry, Started):
                return entry.endpoint
        return ""

    def decisions(self) -> Iterator[Decision]:
        """Every decision as a record; slow."""
        try:
            for _, entry in decode_entries(self._data[: int(self._ends[-1]) if len(self._ends) else 0], self.file.path):
                if isinstance(entry, Decision):
                    yield entry
        except CorruptionError as error:
            raise JournalError(self.file.path, 0, str(error)) from error


def decisions(places: Sequence[str]) -> Iterator[tuple[int, Decision]]:
    """Partition and decision of everything in these journals, by server, partition and age.

    Raises:
        JournalError: see `find_journals`; or an entry is damaged.
    """
    for file in find_journals(places):
        for one in Entries(file).decisions():
            yield file.partition, one


# ---- as Arrow --------------------------------------------------------------------------------

_VERDICTS = {APPENDED: "appended", **{one.value: one.name.lower() for one in Refusal if one is not Refusal.OTHER}}
_CONFLICTS = {one.value: one.name.lower() for one in Conflict}
_KINDS = {one.value: one.name.lower() for one in LockKind if one is not LockKind.NONE}


def read_table(file: JournalFile, following: JournalFile | None = None) -> Any:
    """The decisions of a file as an Arrow record batch of `SCHEMA`.

    Args:
        following: the file behind it, which may hold its last commits.
    """
    entries = Entries(file)
    fixed, count = entries.fixed, len(entries.fixed)
    appended = fixed["verdict"] == APPENDED
    refused = fixed["verdict"] == Refusal.LOCK
    ranges = [entries.ranges] + ([Entries(following).ranges] if following is not None else [])
    committed = _commit_times(fixed, np.concatenate(ranges))

    def plain(name: str, kind: Any) -> Any:
        return pa.array(fixed[name].astype(kind))

    def spoken(name: str, words: dict[int, str], mask: Any) -> Any:
        values = fixed[name].tolist()
        return pa.array(
            [words.get(value, "other") if shown else None for value, shown in zip(values, mask, strict=True)]
        )

    def lists(kind: LockKind) -> Any:
        counts, hashes = entries.locks(kind)
        borders = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(borders), pa.array(hashes))

    def times(name: str) -> Any:
        return pa.array(fixed[name].astype(np.int64)).cast(_TIME)

    everything = np.ones(count, bool)
    arrays = [
        pa.array(np.full(count, file.partition, np.int32)),
        pa.array(fixed["transaction_id"].astype(np.int64), mask=~appended),
        plain("session_id", np.int64),
        plain("client_id", np.int32),
        plain("generation", np.int32),
        plain("seq", np.int32),
        plain("header", np.int32),
        plain("client_mark", np.int64),
        plain("lock_mark", np.int64),
        spoken("verdict", _VERDICTS, everything),
        spoken("conflict", _CONFLICTS, refused),
        pa.array(fixed["blocking_id"].astype(np.int64), mask=fixed["blocking_id"] < 0),
        spoken("lock_kind", _KINDS, fixed["lock_kind"] >= 0),
        pa.array(fixed["lock_index"].astype(np.int32), mask=fixed["lock_index"] < 0),
        times("received_us"),
        times("decided_us"),
        pa.array(committed, mask=committed < 0).cast(_TIME),
        plain("length", np.int32),
        lists(LockKind.WRITE),
        lists(LockKind.READ),
        lists(LockKind.APPEND),
        pa.array(_as_structs(entries.names()), _NAMES),
        pa.array([entries.server] * count, pa.string()),
    ]
    arrays = [array.cast(field.type) for array, field in zip(arrays, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _as_structs(names: list[list[tuple[str, int] | None] | None]) -> list[list[dict[str, object] | None] | None]:
    return [
        None if one is None else [None if name is None else {"name": name[0], "id": name[1]} for name in one]
        for one in names
    ]


def _commit_times(fixed: Any, ranges: Any) -> npt.NDArray[np.int64]:
    """When each decision was committed in its own session, -1 if unknown."""
    times = np.full(len(fixed), -1, np.int64)
    if not len(ranges):
        return times
    order = np.lexsort([ranges["first"], ranges["session_id"]])
    ordered = ranges[order]
    for session_id in np.unique(ordered["session_id"]):
        own = ordered[ordered["session_id"] == session_id]
        mine = np.flatnonzero((fixed["session_id"] == session_id) & (fixed["transaction_id"] >= 0))
        ids = fixed["transaction_id"][mine].astype(np.int64)
        place = np.searchsorted(own["first"].astype(np.int64), ids, "right") - 1
        inside = (place >= 0) & (ids <= own["last"].astype(np.int64)[np.maximum(place, 0)])
        times[mine[inside]] = own["time_us"].astype(np.int64)[place[inside]]
    return times

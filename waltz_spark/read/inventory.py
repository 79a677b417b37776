"""What a driver knows about a log: its bounds, and the places of each range.

Archive, directories and cluster are merged, in this order, into ranges without overlap and without gaps.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from uuid import UUID

from waltz_core.base.record import record
from waltz_spark.base.errors import DataLossError, OptionError, WrongClusterError
from waltz_spark.base.objects import open_store
from waltz_spark.base.planning import EARLIEST, LATEST, FilePlace, Place, Range, Vector, resolve
from waltz_spark.read.cluster import Cluster, Marks
from waltz_spark.read.options import Options, wanted_partitions
from waltz_spark.records.directories import Replica, SegmentSpan, read_directory
from waltz_spark.records.manifest import ArchiveState
from waltz_spark.records.manifest import Reader as Manifest

_RECORD_SIZE = 200  # bytes, where nothing says how many
_START_KEPT = 10.0  # seconds


@record
class Look:
    """The log at one moment."""

    earliest: Vector
    ends: Vector  # ids behind the last readable ones
    marks: Marks | None  # of the cluster, if there is one
    replicas: tuple[Replica, ...]
    archive: ArchiveState | None


class Inventory:
    """Reads the state of all places that the options name.

    Raises:
        OptionError: the options do not fit together.
        WrongClusterError: they name places of different clusters.
        UnreachableError: a place cannot be read.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.cluster = Cluster(options) if options.url or options.zookeeper else None
        self._found_key = b""  # in files, where no cluster is named
        self.partition_count = self.cluster.partition_count if self.cluster else 0
        self._manifest = Manifest(open_store(options.archive)) if options.archive else None
        self._starts: dict[int, tuple[float, int]] = {}  # when asked, and where the log of the cluster begins
        if self.cluster is None:
            self._adopt_key()
        self.partitions = wanted_partitions(options.partitions, self.partition_count, "the log")

    @property
    def key(self) -> bytes:
        """The cluster key; errors as `Cluster.key`."""
        return self.cluster.key if self.cluster is not None else self._found_key

    @property
    def shown_key(self) -> bytes:
        """The cluster key; zero if the server does not show it to our certificate."""
        return self.cluster.shown_key if self.cluster is not None else self._found_key

    def _adopt_key(self) -> None:
        keys: list[tuple[str, bytes, int]] = []
        for directory in self.options.directory:
            replica = read_directory(directory, trust=self.options.trust, partitions=())
            keys.append((directory, replica.key, replica.partition_count))
        if self._manifest is not None:
            state = self._manifest.read()
            keys.append((str(self.options.archive), state.key, state.partition_count))
        self._found_key = keys[0][1]
        self.partition_count = max(count for _, _, count in keys)
        for place, key, _ in keys:
            if key != self.key:
                raise WrongClusterError(place, str(UUID(bytes=self.key)), str(UUID(bytes=key)))

    def close(self) -> None:
        """Drop connections."""
        if self.cluster is not None:
            self.cluster.close()

    def look(self, *, patient: bool = True) -> Look:
        """The log as it is now.

        Args:
            patient: wait for servers that do not answer, as long as the options allow.
        """
        options = self.options
        marks = self.cluster.marks(self.partitions, patient=patient) if self.cluster else None
        replicas = []
        for directory in options.directory:
            live = None if marks is None else dict(enumerate(zip(marks.sessions, marks.ends, strict=True)))
            replicas.append(
                read_directory(directory, trust=options.trust, partitions=self.partitions, key=self.key, live=live)
            )
        archive = self._manifest.read() if self._manifest is not None else None
        if archive is not None and archive.key != self.key:
            raise WrongClusterError(str(options.archive), str(UUID(bytes=self.key)), str(UUID(bytes=archive.key)))
        earliest, ends = [], []
        for partition in range(self.partition_count):
            low, high = _bounds(partition, replicas, archive)
            if marks is not None and partition in self.partitions:
                high = marks.ends[partition]
                if options.via != "files":
                    begins = self._log_start(partition, patient=patient)
                    low = begins if low is None else min(low, begins)
            low = low or 0
            wanted = partition in self.partitions
            earliest.append(low if wanted else 0)
            ends.append(max(low, high) if wanted else 0)
        return Look(tuple(earliest), tuple(ends), marks, tuple(replicas), archive)

    def _log_start(self, partition: int, *, patient: bool) -> int:
        """Where the log of the cluster begins; it seldom changes, so it is cached."""
        assert self.cluster is not None
        known = self._starts.get(partition)
        if known is None or time.monotonic() - known[0] > _START_KEPT:
            start = self.cluster.log_start(partition, patient=patient)
            known = self._starts[partition] = time.monotonic(), start
        return known[1]

    # ---- ranges ----------------------------------------------------------------------------------

    def ranges(self, look: Look, start: Vector, ends: Vector) -> list[Range]:
        """The places of the ids of all wanted partitions; each range is in one file, or at the same nodes.

        Raises:
            DataLossError: some are in no place.
        """
        ranges: list[Range] = []
        for partition in self.partitions:
            at, end = start[partition], ends[partition]
            while at < end:
                part = self._next(look, partition, at, end)
                ranges.append(part)
                at = part.end
        return ranges

    def _next(self, look: Look, partition: int, at: int, end: int) -> Range:
        if look.archive is not None:
            file = look.archive.file_at(partition, at)
            if file is not None:
                place, key = file.place(look.archive.root), look.archive.key
                spans = list(_spans(look, partition, at))
                # Each place holds all of the range: where the archive cannot be read, another one does for the whole.
                stop = min([end, file.end_id, *(limit for _, limit, _ in spans)])
                size = file.raw_size * (stop - at) // (file.end_id - file.first_id)
                others = tuple(FilePlace(span.path, key) for span, _, _ in spans)
                return Range(partition, at, stop, max(1, size), (place, *others))
        live: tuple[Place, ...] = ()
        if self.cluster is not None and look.marks is not None:
            live = self.cluster.places(partition, look.marks.sessions[partition], self.options.via)
        spans = list(_spans(look, partition, at)) if self.options.via in ("auto", "files") else []
        if spans:
            first, limit, _ = spans[0]
            if self.options.verify == "quorum":  # each range ends where one of its holders ends
                limit = min(limit for _, limit, _ in spans)
            stop = min(end, limit)
            average = max(first.size, 1) / max(1, first.end_id - first.first_id)
            files = tuple(FilePlace(span.path, self.shown_key) for span, limit, _ in spans if limit >= stop)
            return Range(partition, at, stop, max(1, int(average * (stop - at))), (*files, *live))
        if live:
            stop = min([end, *(low for low in _starts(look, partition) if low > at)])
            return Range(partition, at, stop, _RECORD_SIZE * (stop - at), live)
        known = [replica.path for replica in look.replicas] + ([look.archive.root] if look.archive else [])
        raise DataLossError(partition, at, end, ", ".join(known), "no directory and no archive holds them")


def batch_bounds(options: Options, look: Look) -> tuple[Vector, Vector]:
    """First and last ids of a batch read.

    Raises:
        DataLossError: it starts before the log does.
        OptionError: it starts or ends behind the log.
    """
    what = "cut" if options.cut is not None else "endingOffsets"
    ending = options.cut if options.cut is not None else options.ending_offsets
    ends = resolve(ending, look.earliest, look.ends, LATEST, what=what)
    start = resolve(options.starting_offsets, look.earliest, look.ends, EARLIEST)
    wanted = range(len(ends)) if options.partitions is None else options.partitions
    for at in wanted:
        if ends[at] > look.ends[at]:
            raise OptionError(f"{what}: partition {at} ends at id {look.ends[at] - 1}, {ends[at]} asks for more")
    check_start(start, look, wanted)
    ends = tuple(end if at in wanted else 0 for at, end in enumerate(ends))
    return start, ends


def check_believed(look: Look) -> None:
    """An error instead of an empty table, where a young log stands in files that are not known to be committed.

    Raises:
        OptionError: directories hold records, and no named place says that any is committed.
    """
    if look.marks is not None or look.archive is not None or any(look.ends):
        return
    parts = [part for replica in look.replicas for part in replica.partitions]
    count = sum(max(0, part.whole_end - part.safe_end) for part in parts)
    if count:
        places = ", ".join(replica.path for replica in look.replicas)
        raise OptionError(
            f"{places}: {count:,} records are in the files, and of none is it known that it is committed, because the "
            "store session that wrote them is the first one: name the running cluster too (url or zookeeper), or read "
            "what is whole (trust=files)"
        )


def check_start(start: Vector, look: Look, wanted: Iterable[int]) -> None:
    """See that reading starts within the log, or right behind it.

    Raises:
        DataLossError: a partition begins above that id.
        OptionError: it ends below.
    """
    for at in wanted:
        if start[at] < look.earliest[at]:
            raise DataLossError(at, start[at], look.earliest[at], "the log", "it does not go back to there any more")
        if start[at] > look.ends[at]:
            raise OptionError(f"startingOffsets: partition {at} ends at id {look.ends[at] - 1}, not at {start[at]}")


@record
class ReadingPlan:
    """The plan of a batch."""

    partitions: tuple[int, ...]
    look: Look
    start: Vector
    ends: Vector
    ranges: tuple[Range, ...]


def plan_reading(options: Options) -> ReadingPlan:
    """Plan a read of the places that the options name; errors as `Inventory`, `batch_bounds` and `Inventory.ranges`."""
    inventory = Inventory(options)
    try:
        look = inventory.look()
        start, ends = batch_bounds(options, look)
        return ReadingPlan(inventory.partitions, look, start, ends, tuple(inventory.ranges(look, start, ends)))
    finally:
        inventory.close()


def _bounds(partition: int, replicas: list[Replica], archive: ArchiveState | None) -> tuple[int | None, int]:
    """First id and end of a partition in the files and the archive."""
    lows: list[int] = []
    highs: list[int] = []
    for replica in replicas:
        files = replica.find(partition)
        if files is not None and files.segments:
            lows.append(files.start)
            highs.append(files.safe_end)
    archived = archive.files_of(partition) if archive else ()
    if archived:
        lows.append(archived[0].first_id)
        highs.append(archived[-1].end_id)
    return min(lows, default=None), max(highs, default=0)


def _spans(look: Look, partition: int, at: int) -> Iterator[tuple[SegmentSpan, int, str]]:
    """Segments that hold id `at`, how far each can be read, its directory; the one that reaches farthest first."""
    spans = []
    for replica in look.replicas:
        files = replica.find(partition)
        if files is None:
            continue
        found = bisect_right(files.segments, at, key=lambda span: span.first_id) - 1
        if found >= 0 and at < (limit := min(files.segments[found].end_id, files.safe_end)):
            spans.append((files.segments[found], limit, replica.path))
    spans.sort(key=lambda span: -span[1])
    # Replicas that reach equally far take turns, so that all disks work.
    best = [span for span in spans if span[1] == spans[0][1]]
    turn = (partition + (best[0][0].first_id if best else 0)) % max(1, len(best))
    yield from best[turn:] + best[:turn] + spans[len(best) :]


def _starts(look: Look, partition: int) -> Iterator[int]:
    for replica in look.replicas:
        files = replica.find(partition)
        if files is not None and files.segments:
            yield files.start

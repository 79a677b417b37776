"""What an audit or a verification compares: each copy of the log by itself, and how far each is trusted.

A copy is a storage directory, or what one node of a running cluster holds. They are never merged here: gaps of one
copy are not filled from another, so that every verdict can name what it covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import attrs

from waltz_core.base.record import record
from waltz_spark.base.errors import PipelineError, WrongClusterError
from waltz_spark.base.planning import FilePlace, Place, Range, ServerPlace, StoragePlace, Vector
from waltz_spark.read.cluster import Cluster
from waltz_spark.read.options import Options, wanted_partitions
from waltz_spark.records.directories import PartitionFiles, Replica, read_directory

_RECORD_SIZE = 200  # bytes, where nothing says how many


@record
class Part:
    """One partition of one copy: half-open ids."""

    partition: int
    start: int
    end: int  # it is trusted up to here
    ranges: tuple[Range, ...]
    behind: int = 0  # whole records behind `end`, not known to be committed


@record
class Source:
    """One copy of the log."""

    name: str
    parts: tuple[Part, ...]

    def part(self, partition: int) -> Part | None:
        """Its files of a partition; None if there are none."""
        return next((part for part in self.parts if part.partition == partition), None)

    def ranges(self, partition: int) -> tuple[Range, ...]:
        """Where the records of a partition stand."""
        part = self.part(partition)
        return part.ranges if part is not None else ()


@record
class Sources:
    """Every named copy, and what is known about the log as a whole."""

    sources: tuple[Source, ...]
    problems: tuple[tuple[str, str], ...]  # copies that cannot be read, and why
    key: bytes | None  # of the cluster; None if no copy names it
    partition_count: int
    partitions: tuple[int, ...]  # those that are wanted
    ends: Vector | None = None  # committed, as the servers say; None without a running cluster
    starts: Vector | None = None  # where the log begins, as the servers say

    @property
    def live(self) -> bool:
        """Whether a running cluster says what is committed."""
        return self.ends is not None

    @property
    def replicas(self) -> tuple[Source, ...]:
        """The copies that are replicas or backups; a server's answers come from any one of them."""
        return tuple(source for source in self.sources if not any(map(_is_served, source.parts)))


def _is_served(part: Part) -> bool:
    return any(isinstance(place, ServerPlace) for one in part.ranges for place in one.places)


def read_sources(directories: Sequence[str], trust: str = "control", live: Options | None = None) -> Sources:
    """Look at every directory, and at every node of a running cluster that the options name.

    Args:
        trust: how far directories are trusted where no cluster says what is committed.
        live: options with `url` or `zookeeper`; other places in them are ignored.

    Raises:
        UnreachableError: the running cluster does not answer.
        OptionError: the options of the cluster cannot be used.
    """
    if live is None:
        return _of_directories(directories, trust)
    cluster = Cluster(live)
    try:
        return _of_cluster(cluster, live, directories, trust)
    finally:
        cluster.close()


# ---- directories -----------------------------------------------------------------------------


def _of_directories(directories: Sequence[str], trust: str) -> Sources:
    replicas, problems = _replicas(directories, trust, None, None)
    key = replicas[0].key if replicas else None
    count = max((one.partition_count for one in replicas), default=0)
    sources = tuple(Source(one.path, tuple(_file_part(part, one.key) for part in one.partitions)) for one in replicas)
    return Sources(sources, problems, key, count, tuple(range(count)))


def _replicas(
    directories: Sequence[str], trust: str, key: bytes | None, live: dict[int, tuple[int, int]] | None
) -> tuple[list[Replica], tuple[tuple[str, str], ...]]:
    replicas: list[Replica] = []
    problems = []
    for directory in directories:
        try:
            replicas.append(read_directory(directory, trust=trust, key=key, live=live))
        except PipelineError as error:
            problems.append((directory, str(error)))
        else:
            key = replicas[-1].key
    return replicas, tuple(problems)


def _file_part(files: PartitionFiles, key: bytes) -> Part:
    end = min(files.safe_end, files.whole_end) if files.segments else files.safe_end
    ranges = []
    for span in files.segments:
        stop = min(span.end_id, files.safe_end)
        if stop > span.first_id:
            average = max(span.size, 1) / max(1, span.end_id - span.first_id)
            size = max(1, int(average * (stop - span.first_id)))
            ranges.append(Range(files.partition, span.first_id, stop, size, (FilePlace(span.path, key),)))
    # A mark above what the files hold: reading up to it is what shows the loss.
    if ranges and files.safe_end > end:
        ranges[-1] = attrs.evolve(ranges[-1], end=files.safe_end)
        end = files.safe_end
    return Part(files.partition, files.start, end, tuple(ranges), max(0, files.whole_end - files.safe_end))


# ---- a running cluster -----------------------------------------------------------------------


def _of_cluster(cluster: Cluster, options: Options, directories: Sequence[str], trust: str) -> Sources:
    count = cluster.partition_count
    wanted = wanted_partitions(options.partitions, count, "the cluster")
    marks = cluster.marks(wanted)
    starts = tuple(cluster.log_start(one) if one in wanted else 0 for one in range(count))
    by_name: dict[str, list[Part]] = {}
    for partition in wanted:
        start, end = starts[partition], marks.ends[partition]
        for name, place in _copies(cluster, partition, marks.sessions[partition], options.via):
            size = max(1, _RECORD_SIZE * (end - start))
            ranges = (Range(partition, start, end, size, (place,)),) if start < end else ()
            by_name.setdefault(name, []).append(Part(partition, start, end, ranges))
    live = dict(enumerate(zip(marks.sessions, marks.ends, strict=True)))
    replicas, problems = _replicas(directories, trust, cluster.key if directories else None, live)
    sources = [
        Source(one.path, tuple(_file_part(part, one.key) for part in one.partitions if part.partition in wanted))
        for one in replicas
    ]
    sources += [Source(name, tuple(parts)) for name, parts in sorted(by_name.items())]
    key = cluster.shown_key if any(cluster.shown_key) else None
    return Sources(tuple(sources), problems, key, count, wanted, marks.ends, starts)


def _copies(cluster: Cluster, partition: int, session_id: int, via: str) -> list[tuple[str, Place]]:
    """Every replica by itself, or what the server returns where no admin ports are known."""
    places = cluster.places(partition, session_id, "auto" if via == "files" else via)
    nodes: list[tuple[str, Place]] = [
        (f"storage node {place.endpoint}", place) for place in places if isinstance(place, StoragePlace)
    ]
    servers: list[tuple[str, Place]] = [
        (f"server {place.endpoint}", place) for place in places if isinstance(place, ServerPlace)
    ]
    return nodes or servers


def check_key(name: str, expected: bytes, sources: Sources) -> None:
    """Raises WrongClusterError: the copies are of another cluster than `name`."""
    if sources.key is not None and sources.key != expected:
        raise WrongClusterError(name, str(UUID(bytes=sources.key)), str(UUID(bytes=expected)))

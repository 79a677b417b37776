"""Archiving a log: Parquet files written by executors, digests of the records, commits to the manifest.

A file is read back before it counts: its records, decoded from what was written, must have the digest taken from the
source. Nothing is ever deleted here.
"""

from __future__ import annotations

import hashlib
import os
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from waltz_core.base.record import record
from waltz_spark.base.errors import ArchiveError, PipelineError, UnreachableError
from waltz_spark.base.objects import Store, open_store
from waltz_spark.base.planning import ArchivePlace, FilePlace, Range, clip, is_local
from waltz_spark.base.runners import OnProgress, Runner
from waltz_spark.read.inventory import Inventory, Look
from waltz_spark.read.options import Options, check_number
from waltz_spark.read.reading import Patience, read_blocks
from waltz_spark.read.sources import Source, check_key, read_sources
from waltz_spark.records import manifest
from waltz_spark.records.archived import STORED, archived_blocks
from waltz_spark.records.blocks import Block
from waltz_spark.records.columns import TYPES, Shape
from waltz_spark.records.manifest import ArchivedFile, ArchivedSegment, ArchiveState
from waltz_spark.records.segments import SegmentFile
from waltz_trio.base import durable

RANGE_COUNT = 1_000_000
_GROUP_ROWS = 131_072
_GROUP_SIZE = 64 << 20  # bytes of payload, so that few large records do not fill the memory
_WAVE = 4  # tasks per slot between two commits
_SHAPE = Shape(columns=STORED, verify="bytes")  # that payloads match their own checksums follows from the digest
_SCHEMA = pa.schema([pa.field(name, TYPES[name], nullable=False) for name in STORED])
_DELTA = {name: "DELTA_BINARY_PACKED" for name in STORED if name not in ("data", "checksum")}
_ATTEMPTS = 5


@record
class FileTask:
    """One file to write."""

    root: str
    partition: int
    first_id: int
    end_id: int
    ranges: tuple[Range, ...]
    patience: Patience

    @property
    def path(self) -> str:
        """Below the root."""
        return manifest.file_path(self.partition, self.first_id, self.end_id)


@record
class Written:
    """What an executor says of a file."""

    task: FileTask
    raw_size: int
    sha256: str
    file_size: int
    file_crc32: int


@record
class Plan:
    """What a run would do."""

    state: ArchiveState
    tasks: tuple[FileTask, ...]
    segments: tuple[ArchivedSegment, ...]
    about: dict[str, Any]

    @property
    def record_count(self) -> int:
        """Records of all tasks."""
        return sum(task.end_id - task.first_id for task in self.tasks)


@record
class ArchiveReport:
    """What a run did."""

    record_count: int
    raw_size: int
    file_size: int
    file_count: int
    commit_count: int
    seconds: float
    state: ArchiveState


# ---- planning --------------------------------------------------------------------------------


def plan_archive(
    options: Options, root: str, *, range_count: int = RANGE_COUNT, partial: bool = True, keep_last: int = 0
) -> Plan:
    """Look at log and archive.

    Args:
        options: the source; its ends are what is committed now.
        root: of the archive, path or URI; need not exist.
        range_count: ids per file of a new archive; files end at its multiples, so that reruns agree.
        partial: also write the records behind the last multiple.
        keep_last: so many ids at the end of each partition stay out.

    Raises:
        OptionError: `range_count` is below 1, or `keep_last` below 0.
        ArchiveError: the archive is of another cluster, or ahead of the log.
        PipelineError: the log cannot be read.
    """
    check_number("range_count", range_count, 1)
    check_number("keep_last", keep_last, 0)
    store = open_store(root)
    inventory = Inventory(options)
    try:
        look = inventory.look()
        state = manifest.load(store) or ArchiveState(
            store.root, inventory.key, inventory.partition_count, range_count, 0, (), ()
        )
        if (state.key, state.partition_count) != (inventory.key, inventory.partition_count):
            raise ArchiveError(f"{root} is the archive of another cluster")
        tasks: list[FileTask] = []
        ends = tuple(max(0, end - keep_last) for end in look.ends)
        if not partial:
            ends = tuple(end // state.range_count * state.range_count for end in ends)
        archived = tuple(state.end(at) for at in range(state.partition_count))
        starts = tuple(low if end is None else end for low, end in zip(look.earliest, archived, strict=True))
        for partition in inventory.partitions:
            check_not_ahead(state, partition, look.ends[partition])
        patience = Patience(options.request_timeout_ms / 1000, options.retries)
        ranges = inventory.ranges(look, starts, ends)
        for partition in inventory.partitions:
            own = [one for one in ranges if one.partition == partition]
            tasks += _file_tasks(store.root, partition, own, state.range_count, patience)
        segments = _segments(look, tasks)
        cut = {str(at): end for at, end in enumerate(ends)}
        places = [*options.directory, options.url or options.zookeeper or ""]
        about = {"source": [one for one in places if one], "cut": cut, "software": software()}
        return Plan(state, tuple(tasks), segments, about)
    finally:
        inventory.close()


def check_not_ahead(state: ArchiveState, partition: int, available: int) -> None:
    """See that an archive holds nothing that the log does not have.

    Raises:
        ArchiveError: it goes on behind the id `available`, where the log ends.
    """
    end = state.end(partition)
    if end is not None and end > available:
        raise ArchiveError(
            f"{state.root}: partition {partition} is archived up to id {end - 1}, the log ends at {available - 1}"
        )


def _file_tasks(
    root: str, partition: int, ranges: Sequence[Range], range_count: int, patience: Patience
) -> list[FileTask]:
    tasks: list[FileTask] = []
    if not ranges:
        return tasks
    at, end = ranges[0].start, ranges[-1].end
    while at < end:
        stop = min(end, (at // range_count + 1) * range_count)
        own = tuple(part for one in ranges if (part := clip(one, at, stop)) is not None)
        tasks.append(FileTask(root, partition, at, stop, own, patience))
        at = stop
    return tasks


def _segments(look: Look, tasks: Sequence[FileTask]) -> tuple[ArchivedSegment, ...]:
    """The segments that the tasks read, if they read files: a restored log gets the same ones."""
    segments: dict[tuple[int, int], ArchivedSegment] = {}
    for task in tasks:
        for span in task.ranges:
            place = span.places[0]
            if isinstance(place, FilePlace):
                with SegmentFile(place.path, task.partition, place.key) as segment:
                    segments[task.partition, segment.first_id] = ArchivedSegment(
                        task.partition, segment.first_id, segment.header.created_ms
                    )
    return tuple(segments[at] for at in sorted(segments))


def software() -> dict[str, str]:
    """The releases that made a file, for the manifest."""
    from waltz_trio.base.version import version

    return {"waltz": version() or "", "pyarrow": pa.__version__}


# ---- writing a file (in an executor) ---------------------------------------------------------


def write_file(task: FileTask) -> Written:
    """Write one file, read it back, publish it. Safe to run twice, even at the same time.

    Raises:
        PipelineError: the source cannot be read, or what was written is not what was read.
    """
    store = open_store(task.root)
    scratch = store.scratch(task.path)
    try:
        writer = FileWriter(scratch)
        try:
            for part in task.ranges:
                for block in read_blocks(part, _SHAPE, task.patience):
                    writer.add(block)
        finally:
            writer.close()
        return publish(task, store, scratch, writer)
    except ArchiveError:
        _explain(task)
        raise
    finally:
        if os.path.exists(scratch):
            durable.unlink(Path(scratch))


class FileWriter:
    """A Parquet file in the making, with the digest of its records as they stand in the log."""

    def __init__(self, path: str) -> None:
        self.raw_size = 0
        self._digest = hashlib.sha256()
        self._held: list[Any] = []
        self._rows = self._size = 0  # of what is held
        # A writer that cannot write its footer keeps a file open that it has opened itself, and with it the blocks.
        self._file = pa.OSFile(path, "wb")
        self._writer = pq.ParquetWriter(
            self._file,
            _SCHEMA,
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            column_encoding={**_DELTA, "data": "DELTA_LENGTH_BYTE_ARRAY", "checksum": "PLAIN"},
            write_statistics=["transaction_id"],
            write_page_checksum=True,
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the records so far."""
        return self._digest.hexdigest()

    def add(self, block: Block) -> None:
        """The next records."""
        data = block.data
        self._digest.update(data)
        self.raw_size += len(data)
        self._held.append(block.batch(_SHAPE).cast(_SCHEMA))
        self._rows, self._size = self._rows + block.count, self._size + len(data)
        if self._rows >= _GROUP_ROWS or self._size >= _GROUP_SIZE:
            self._write_group()

    def _write_group(self) -> None:
        if self._held:
            held, rows = self._held, self._rows
            self._held, self._rows, self._size = [], 0, 0
            self._writer.write_table(pa.Table.from_batches(held), row_group_size=rows)

    def close(self) -> None:
        """Write what is left; after an error the file is closed, and what is in it is of no use."""
        try:
            try:
                self._write_group()
            finally:
                self._writer.close()
        finally:
            self._writer.is_open = False  # it would try again when it is collected
            self._file.close()


def publish(task: FileTask, store: Store, scratch: str, writer: FileWriter) -> Written:
    """Read a complete scratch file back and give it its name.

    Raises:
        ArchiveError: what was written is not what was read, or the name is taken by other records.
        UnreachableError: the store cannot be written.
    """
    digest = writer.digest
    _check_written(task, os.path.dirname(scratch) or ".", os.path.basename(scratch), digest)
    file_size, file_crc32 = _local_size_and_crc(scratch)
    if not store.publish(scratch, task.path):
        # An earlier attempt, or another archiver, was first: its file must hold the same records.
        _check_written(task, task.root, task.path, digest)
        file_size, file_crc32 = store.size_and_crc(task.path)
    return Written(task, writer.raw_size, digest, file_size, file_crc32)


def _explain(task: FileTask) -> None:
    """Say what is wrong with the source, if that is why the digests differ.

    Raises:
        RecordDamagedError: a payload does not match its checksum, though the record matches its own.
    """
    for one in task.ranges:
        for _ in read_blocks(one, attrs.evolve(_SHAPE, verify="record"), task.patience):
            pass


def _check_written(task: FileTask, root: str, path: str, expected: str) -> None:
    digest = digest_of(ArchivePlace(root, path, task.first_id, task.end_id), task.partition)
    if digest != expected:
        raise ArchiveError(
            f"{root}/{path}: its records have digest {digest}, those of the source {expected}; "
            "either the file is damaged or two sources disagree"
        )


def digest_of(place: ArchivePlace, partition: int) -> str:
    """SHA-256 over the records of a file as they stand on disk; raises what reading raises."""
    return _digests_of(place, partition, place.first_id)[0]


def _digests_of(place: ArchivePlace, partition: int, start: int) -> tuple[str, str]:
    """As `digest_of`, and that of the records from id `start` on."""
    whole, part = hashlib.sha256(), hashlib.sha256()
    unverified = attrs.evolve(_SHAPE, verify="none")  # the digest covers what the checksums cover
    for block in archived_blocks(place, partition, place.first_id, place.end_id, unverified):
        whole.update(block.data)
        if place.first_id < start < block.end_id:
            low = int(block.offsets[max(0, start - block.first_id)])
            part.update(block.buffer.data[low : int(block.offsets[-1])])
    return whole.hexdigest(), (part if start > place.first_id else whole).hexdigest()


def _local_size_and_crc(path: str) -> tuple[int, int]:
    store = open_store(os.path.dirname(path) or ".")
    return store.size_and_crc(os.path.basename(path))


# ---- a run -----------------------------------------------------------------------------------


def run_archive(plan: Plan, runner: Runner, on_progress: OnProgress | None = None) -> ArchiveReport:
    """Carry out a plan, committing every few files: what is done stays done.

    Raises:
        ArchiveError: another archiver works at the same time, with other results.
        PipelineError: the log cannot be read.
    """
    begin = time.monotonic()
    store, state = open_store(plan.state.root), plan.state
    wave = max(1, runner.width * _WAVE)
    done = raw_size = file_size = commits = 0
    for at in range(0, len(plan.tasks), wave):
        written = runner.run(write_file, plan.tasks[at : at + wave])
        for group in _alike(written):
            state = commit_written(store, state, group, plan.segments, plan.about)
            commits += 1
        done += sum(one.task.end_id - one.task.first_id for one in written)
        raw_size += sum(one.raw_size for one in written)
        file_size += sum(one.file_size for one in written)
        if on_progress is not None:
            on_progress(done, plan.record_count)
    if not plan.tasks and not state.commits:
        state = manifest.commit(store, state, (), (), plan.about) or manifest.read_archive(store.root)
    return ArchiveReport(done, raw_size, file_size, len(plan.tasks), commits, time.monotonic() - begin, state)


def _alike(written: Sequence[Written]) -> Iterator[list[Written]]:
    """Cut before a file that was read from segments where the one before it in the partition was not, or vice versa.

    Of a commit that names segments all files of the partition count as read from segments.
    """
    group: list[Written] = []
    kinds: dict[int, bool] = {}
    for file in written:
        kind = any(isinstance(span.places[0], FilePlace) for span in file.task.ranges)
        if kinds.setdefault(file.task.partition, kind) != kind:
            yield group
            group, kinds = [], {file.task.partition: kind}
        group.append(file)
    if group:
        yield group


def _read_from(tasks: Sequence[FileTask], segments: Sequence[ArchivedSegment]) -> list[ArchivedSegment]:
    """The segments that tasks read; each range of files is in one of them."""
    own: dict[tuple[int, int], ArchivedSegment] = {}
    for partition in {task.partition for task in tasks}:
        borders = sorted((one for one in segments if one.partition == partition), key=lambda one: one.first_id)
        spans = [span for task in tasks if task.partition == partition for span in task.ranges]
        for span in spans:
            at = bisect_right(borders, span.start, key=lambda one: one.first_id) - 1
            if at >= 0 and isinstance(span.places[0], FilePlace):
                own[partition, borders[at].first_id] = borders[at]
    return [own[at] for at in sorted(own)]


def commit_written(
    store: Store,
    state: ArchiveState,
    written: Sequence[Written],
    segments: Sequence[ArchivedSegment],
    about: dict[str, Any],
) -> ArchiveState:
    """Add files to the manifest, behind those that others add at the same time.

    Raises:
        ArchiveError: they do not continue what is there, or others commit all the time.
        UnreachableError: the store cannot be written.
    """
    for _ in range(_ATTEMPTS):
        files, tasks = list[ArchivedFile](), list[FileTask]()
        links = {file.task.partition: state.last_link(file.task.partition) for file in written}
        for file in written:
            task = file.task
            if _is_there(state, file):
                continue
            tasks.append(task)
            link = manifest.next_link(links[task.partition], task.first_id, task.end_id, file.sha256)
            links[task.partition] = link
            files.append(
                ArchivedFile(
                    task.partition,
                    task.first_id,
                    task.end_id,
                    task.path,
                    file.raw_size,
                    file.sha256,
                    link,
                    file.file_size,
                    file.file_crc32,
                )
            )
        if not files:
            return state
        after = manifest.commit(store, state, files, _read_from(tasks, segments), about)
        if after is not None:
            return after
        state = manifest.read_archive(store.root)
    raise ArchiveError(f"{store.root}: others commit all the time; gave up after {_ATTEMPTS} attempts")


def _is_there(state: ArchiveState, written: Written) -> bool:
    """Whether another archiver has committed this very file already."""
    file = state.file_at(written.task.partition, written.task.first_id)
    if file is None or (file.first_id, file.end_id) != (written.task.first_id, written.task.end_id):
        return False
    if file.sha256 != written.sha256:
        raise ArchiveError(f"{state.root}/{file.path}: another archiver found other records in the same ids")
    return True


# ---- verification ----------------------------------------------------------------------------


@record
class Check:
    """One file to verify, and replicas to compare it with."""

    root: str
    file: ArchivedFile
    replicas: tuple[tuple[str, tuple[Range, ...]], ...]  # name of the copy, and where in it the ids stand
    start: int = 0  # ids below are in no replica any more, so that only those from here on are compared

    @property
    def first_id(self) -> int:
        """The first id that is compared."""
        return max(self.start, self.file.first_id)


@record
class Verdict:
    """What became of it; no problem means that everything was equal."""

    file: ArchivedFile
    compared: int  # replicas with the same digest
    problems: tuple[str, ...]
    unread: tuple[str, ...] = ()  # replicas, or the store of the archive, that did not answer
    read: bool = True  # the file itself was read


def verify_file(check: Check) -> Verdict:
    """Size and CRC-32 of the file, digest of the records in it, digests of the same ids in replicas."""
    file, problems, unread, compared = check.file, list[str](), list[str](), 0
    try:
        expected = _verify_own(check, problems)
    except UnreachableError as error:
        return Verdict(file, 0, tuple(problems), (f"{file.path}: {error}",), read=False)
    for directory, ranges in check.replicas:
        try:
            replica = hashlib.sha256()
            for part in ranges:
                for block in read_blocks(part, attrs.evolve(_SHAPE, verify="none"), Patience(attempts=1)):
                    replica.update(block.data)
            if replica.hexdigest() == expected:
                compared += 1
            else:
                problems.append(
                    f"{directory}: partition {file.partition}, ids {check.first_id} to {file.end_id - 1}: "
                    f"digest {replica.hexdigest()}, the archive has {expected}"
                )
        except UnreachableError as error:
            local = all(isinstance(place, FilePlace) for part in ranges for place in part.places)
            (problems if local else unread).append(f"{directory}: {error}")
        except PipelineError as error:
            problems.append(f"{directory}: {error}")
    return Verdict(file, compared, tuple(problems), tuple(unread))


def _verify_own(check: Check, problems: list[str]) -> str:
    """Verify the file itself; the digest that replicas must have: of a part of it, what was read as that part.

    Raises:
        UnreachableError: the store does not answer, which says nothing of the file. One that is not there is a problem.
    """
    file, part = check.file, "none: it could not be read"
    try:
        contents = open_store(check.root).size_and_crc(file.path, size_max=file.file_size)
        if contents != (file.file_size, file.file_crc32):
            problems.append(
                f"{file.path}: {contents[0]} bytes with CRC-32 {contents[1]:08x}, "
                f"the manifest says {file.file_size} with {file.file_crc32:08x}"
            )
        digest, part = _digests_of(file.place(check.root), file.partition, check.first_id)
        if digest != file.sha256:
            problems.append(f"{file.path}: digest {digest}, the manifest says {file.sha256}")
    except PipelineError as error:
        missing = is_local(file.place(check.root)) or isinstance(error.__cause__, FileNotFoundError)
        if isinstance(error, UnreachableError) and not missing:
            raise
        problems.append(f"{file.path}: {error}")
    return file.sha256 if check.first_id == file.first_id else part


def plan_verification(
    root: str, directories: Sequence[str] = (), *, trust: str = "control", live: Options | None = None
) -> list[Check]:
    """Checks of all files; reading the manifest checks the hash chain.

    Args:
        directories: replicas to compare with, as far as they hold the ids.
        live: options that name a running cluster, whose replicas are compared with too.

    Raises:
        ArchiveError: the manifest is broken.
        PipelineError: a directory cannot be read, or the cluster does not answer.
    """
    state = manifest.read_archive(root)
    sources = read_sources(directories, trust, live)
    for _, problem in sources.problems:
        raise ArchiveError(problem)
    check_key(root, state.key, sources)
    return checks_of(state, sources.sources)


def checks_of(state: ArchiveState, sources: Sequence[Source]) -> list[Check]:
    """A check of every file, with each copy of the log that holds all its ids."""
    checks = []
    for file in state.files:
        replicas = []
        for source in sources:
            part = source.part(file.partition)
            if part is None or part.start > file.first_id or file.end_id > part.end:
                continue
            own = tuple(piece for one in part.ranges if (piece := clip(one, file.first_id, file.end_id)) is not None)
            replicas.append((source.name, own))
        checks.append(Check(state.root, file, tuple(replicas)))
    return checks


def run_verification(checks: Sequence[Check], runner: Runner, on_progress: OnProgress | None = None) -> list[Verdict]:
    """Verify files, a few at a time."""
    verdicts: list[Verdict] = []
    total = sum(check.file.end_id - check.file.first_id for check in checks)
    wave = max(1, runner.width * _WAVE)
    for at in range(0, len(checks), wave):
        verdicts += runner.run(verify_file, checks[at : at + wave])
        if on_progress is not None:
            on_progress(sum(verdict.file.end_id - verdict.file.first_id for verdict in verdicts), total)
    return verdicts

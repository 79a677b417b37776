"""Reading a whole log to check it: every record there, dense and sound, and how much there is."""

from __future__ import annotations

import time
from collections.abc import Sequence

from waltz_core.base.record import record
from waltz_spark.audit.coverage import FAILED, PASSED, UNPROVEN, Coverage, worst
from waltz_spark.base import planning
from waltz_spark.base.errors import PipelineError, UnreachableError
from waltz_spark.base.planning import Range, is_local, is_remote
from waltz_spark.base.runners import OnProgress, Runner
from waltz_spark.read.inventory import Look, plan_reading
from waltz_spark.read.options import Options
from waltz_spark.read.reading import Patience, read_blocks
from waltz_spark.records.columns import Shape

_WAVE = 4


@record
class ScanTask:
    """Ranges to read in one go."""

    ranges: tuple[Range, ...]
    verify: str
    patience: Patience


@record
class Read:
    """What became of one range."""

    partition: int
    start: int
    end: int
    count: int
    size: int  # bytes of records
    problem: str | None
    unread: bool = False  # the problem is that nobody answered


@record
class PartitionScan:
    """One partition."""

    partition: int
    start: int
    end: int
    count: int
    size: int
    left_out: int  # records in files behind what is known to be committed
    held: bool  # a place that was named holds the partition
    problems: tuple[str, ...]
    unread: tuple[str, ...] = ()  # why some of it could not be read, which proves nothing

    @property
    def verdict(self) -> str:
        """`passed`: all that is known of the partition was read, and is sound."""
        missed = self.left_out or self.unread or not self.held
        return FAILED if self.problems else UNPROVEN if missed else PASSED


@record
class ScanReport:
    """The log."""

    partitions: tuple[PartitionScan, ...]
    sources: tuple[str, ...]
    live: bool  # a running cluster said what is committed
    seconds: float

    @property
    def left_out(self) -> int:
        """Records of directories behind what is known to be committed."""
        return sum(one.left_out for one in self.partitions)

    @property
    def coverage(self) -> Coverage:
        """What was read, of what is known to be there."""
        ranges = tuple((one.partition, one.start, one.start + one.count) for one in self.partitions if one.count)
        count = sum(one.count for one in self.partitions)
        known = sum(max(one.end - one.start, one.count) + one.left_out for one in self.partitions)
        whole = sum(one.held and not one.left_out and one.count == one.end - one.start for one in self.partitions)
        if not known and not self.live:
            whole = 0  # nothing was there to look at
        return Coverage(whole, max(1, len(self.partitions)), count, known, ranges, self.sources)

    @property
    def verdict(self) -> str:
        """`passed` only if everything that is known to be there was read."""
        own = PASSED if self.coverage.whole else UNPROVEN
        return worst([*(one.verdict for one in self.partitions), own])

    @property
    def sound(self) -> bool:
        """Every record that is known to be there was read and matches its checksum."""
        return self.verdict == PASSED


def is_unread(error: PipelineError, ranges: Sequence[Range]) -> bool:
    """A node or store that does not answer, or lags, proves nothing; a file that is gone, or ends early, is damage."""
    places = [place for span in ranges for place in span.places]
    gone = isinstance(error.__cause__, FileNotFoundError) and not any(map(is_remote, places))
    return isinstance(error, UnreachableError) and not gone and not all(map(is_local, places))


def scan_ranges(task: ScanTask) -> list[Read]:
    """Read ranges; a problem ends its range, not the task. Runs in an executor."""
    shape = Shape(verify=task.verify)
    reads = []
    for part in task.ranges:
        count, size, unread = 0, 0, False
        problem = None
        try:
            for block in read_blocks(part, shape, task.patience):
                count += block.count
                size += len(block.data)
        except PipelineError as error:
            problem, unread = str(error), is_unread(error, (part,))
        reads.append(Read(part.partition, part.start, part.end, count, size, problem, unread))
    return reads


def scan(options: Options, runner: Runner, on_progress: OnProgress | None = None) -> ScanReport:
    """Read all that the options name.

    Raises:
        PipelineError: it cannot even be planned; what goes wrong later is in the report.
    """
    begin = time.monotonic()
    reading = plan_reading(options)
    plans = planning.plan(
        reading.ranges, target_size=options.target_split_bytes, tasks_min=runner.width, pack_small=options.pack_small
    )
    patience = Patience(options.request_timeout_ms / 1000, options.retries)
    tasks = [ScanTask(plan, options.verify, patience) for plan in plans]
    total, done = sum(one.count for one in reading.ranges), 0
    reads: list[Read] = []
    wave = max(1, runner.width * _WAVE)
    for at in range(0, len(tasks), wave):
        for found in runner.run(scan_ranges, tasks[at : at + wave]):
            reads += found
            done += sum(one.end - one.start for one in found)
        if on_progress is not None:
            on_progress(done, total)
    partitions = []
    for partition in reading.partitions:
        own = [one for one in reads if one.partition == partition]
        problems = tuple(one.problem for one in own if one.problem is not None and not one.unread)
        unread = tuple(one.problem for one in own if one.problem is not None and one.unread)
        size = sum(one.size for one in own)
        count = sum(one.count for one in own)
        start, end = reading.start[partition], reading.ends[partition]
        left_out = 0 if reading.look.marks is not None else left_out_of(reading.look, partition)
        held = _held(reading.look, partition)
        partitions.append(PartitionScan(partition, start, end, count, size, left_out, held, problems, unread))
    live = reading.look.marks is not None
    return ScanReport(tuple(partitions), _sources(options), live, time.monotonic() - begin)


def left_out_of(look: Look, partition: int) -> int:
    """Records that stand in files behind what is known to be committed; an archive may go on behind all files."""
    files = [files for replica in look.replicas if (files := replica.find(partition)) is not None]
    return max((0, *(one.whole_end - max(one.safe_end, look.ends[partition]) for one in files)))


def _held(look: Look, partition: int) -> bool:
    archived = look.archive is not None and bool(look.archive.files_of(partition))
    return look.marks is not None or archived or any(one.find(partition) is not None for one in look.replicas)


def _sources(options: Options) -> tuple[str, ...]:
    places = (*options.directory, options.archive, options.url, options.zookeeper)
    return tuple(place for place in places if place)

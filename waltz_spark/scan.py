"""Reading a whole log for its own sake: is every record there, dense and sound, and how much is it."""

from __future__ import annotations

import time

from waltz_core.record import record
from waltz_spark import planning
from waltz_spark.archive import OnProgress
from waltz_spark.columns import Shape
from waltz_spark.errors import PipelineError
from waltz_spark.inventory import Look, plan_reading
from waltz_spark.options import Options
from waltz_spark.planning import Range
from waltz_spark.reading import Patience, read_blocks
from waltz_spark.runners import Runner

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


@record
class PartitionScan:
    """One partition."""

    partition: int
    start: int
    end: int
    count: int
    size: int
    problems: tuple[str, ...]


@record
class ScanReport:
    """The log."""

    partitions: tuple[PartitionScan, ...]
    seconds: float
    left_out: int  # records of directories behind what is known to be committed

    @property
    def sound(self) -> bool:
        """Every record is there and matches its checksum."""
        return not any(one.problems for one in self.partitions)


def scan_ranges(task: ScanTask) -> list[Read]:
    """Read ranges; a problem ends its range, not the task. Runs in an executor."""
    shape = Shape(verify=task.verify)
    found = []
    for one in task.ranges:
        count = size = 0
        problem = None
        try:
            for block in read_blocks(one, shape, task.patience):
                count += block.count
                size += len(block.data)
        except PipelineError as error:
            problem = str(error)
        found.append(Read(one.partition, one.start, one.end, count, size, problem))
    return found


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
        problems = tuple(one.problem for one in own if one.problem is not None)
        size = sum(one.size for one in own)
        count = sum(one.count for one in own)
        start, end = reading.start[partition], reading.ends[partition]
        partitions.append(PartitionScan(partition, start, end, count, size, problems))
    return ScanReport(tuple(partitions), time.monotonic() - begin, _left_out(reading.look))


def _left_out(look: Look) -> int:
    behind: dict[int, int] = {}
    for replica in look.replicas:
        for one in replica.partitions:
            surplus = one.whole_end - max(one.safe_end, look.ends[one.partition])
            behind[one.partition] = max(behind.get(one.partition, 0), surplus)
    return sum(behind.values())

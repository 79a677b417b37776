"""The load of a log: number and sizes of records, clients, compression, growth.

A record holds no time. Growth comes from the creation times of segments, and is no finer than they are.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from waltz_core.base.record import record
from waltz_core.storage.segment import HEADER_SIZE, decode_header
from waltz_spark.base import planning
from waltz_spark.base.errors import OptionError
from waltz_spark.base.planning import Range
from waltz_spark.base.runners import OnProgress, Runner
from waltz_spark.read.inventory import Look, plan_reading
from waltz_spark.read.options import Options
from waltz_spark.read.reading import Patience, read_blocks
from waltz_spark.records.columns import Shape
from waltz_spark.records.directories import PartitionFiles

SIZE_CLASSES = 33
"""Payload sizes are counted by their number of binary digits: class 0 is 0 bytes, class c is 2^(c-1) to 2^c - 1."""

_WAVE = 4
_SAMPLE = 4 << 20  # bytes of records per task that are compressed
_KEPT = 1_000  # clients and headers per task; beyond it the rarest are added up as others


@record
class LoadTask:
    """Ranges to measure in one go."""

    ranges: tuple[Range, ...]
    verify: str
    patience: Patience


@record
class Measured:
    """What one range carries."""

    partition: int
    count: int
    size: int  # bytes of records
    size_classes: tuple[int, ...]  # records per class of payload size
    largest: int  # bytes of data
    clients: tuple[tuple[int, int], ...]  # client id, records
    headers: tuple[tuple[int, int], ...]
    others: int  # records of clients that are not listed
    sample: int  # bytes of records that were compressed
    compressed: int


@record
class PartitionLoad:
    """One partition."""

    partition: int
    count: int
    size: int


@record
class Growth:
    """A segment began, with so many bytes in front of it."""

    partition: int
    at_ms: int  # since 1970
    count: int
    size: int


@record
class LoadReport:
    """The log."""

    partitions: tuple[PartitionLoad, ...]
    size_classes: tuple[int, ...]
    largest: int
    clients: tuple[tuple[int, int], ...]  # the busiest first
    headers: tuple[tuple[int, int], ...]
    others: int
    sample: int
    compressed: int
    archived: tuple[int, int] | None  # bytes of records in the archive, and of its files
    growth: tuple[Growth, ...]  # by partition, then time
    seconds: float

    @property
    def count(self) -> int:
        """Records."""
        return sum(one.count for one in self.partitions)

    @property
    def size(self) -> int:
        """Bytes of records."""
        return sum(one.size for one in self.partitions)


def measure_ranges(task: LoadTask) -> list[Measured]:
    """Read and count; runs in an executor.

    Raises:
        PipelineError: a record is missing or damaged.
    """
    codec = pa.Codec("zstd")
    shape = Shape(verify=task.verify)
    measured = []
    for part in task.ranges:
        classes = np.zeros(SIZE_CLASSES, np.int64)
        clients: Counter[int] = Counter()
        headers: Counter[int] = Counter()
        count = size = largest = sample = compressed = 0
        for block in read_blocks(part, shape, task.patience):
            lengths = block.heads["length"].astype(np.int64)
            _, digits = np.frexp(lengths)  # the exponent of 2 above a whole number: its binary digits
            classes += np.bincount(digits, minlength=SIZE_CLASSES)[:SIZE_CLASSES]
            for counter, name in ((clients, "client_id"), (headers, "header")):
                values, counts = np.unique(block.heads[name].astype(np.int32), return_counts=True)
                counter.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
            count += block.count
            size += len(block.data)
            largest = max(largest, int(lengths.max()))
            if sample < _SAMPLE:
                sample += len(block.data)
                compressed += len(codec.compress(block.data))
        kept = clients.most_common(_KEPT)
        others = count - sum(number for _, number in kept)
        measured.append(
            Measured(
                part.partition,
                count,
                size,
                tuple(classes.tolist()),
                largest,
                tuple(kept),
                tuple(headers.most_common(_KEPT)),
                others,
                sample,
                compressed,
            )
        )
    return measured


def measure(options: Options, runner: Runner, on_progress: OnProgress | None = None) -> LoadReport:
    """Measure all that the options name.

    Raises:
        PipelineError: it cannot be planned, or a record is missing or damaged.
    """
    begin = time.monotonic()
    reading = plan_reading(options)
    if not reading.ranges:
        raise OptionError("there is no record to report of: the log is empty, or the options leave everything out")
    patience = Patience(options.request_timeout_ms / 1000, options.retries)
    plans = planning.plan(reading.ranges, target_size=options.target_split_bytes, tasks_min=runner.width)
    tasks = [LoadTask(plan, options.verify, patience) for plan in plans]
    total = sum(one.count for one in reading.ranges)
    parts: list[Measured] = []
    wave = max(1, runner.width * _WAVE)
    for at in range(0, len(tasks), wave):
        for found in runner.run(measure_ranges, tasks[at : at + wave]):
            parts += found
        if on_progress is not None:
            on_progress(sum(one.count for one in parts), total)
    return _together(parts, reading.look, reading.partitions, time.monotonic() - begin)


def _together(parts: Sequence[Measured], look: Look, partitions: Sequence[int], seconds: float) -> LoadReport:
    clients: Counter[int] = Counter()
    headers: Counter[int] = Counter()
    classes = np.zeros(SIZE_CLASSES, np.int64)
    for part in parts:
        clients.update(dict(part.clients))
        headers.update(dict(part.headers))
        classes += np.array(part.size_classes)
    archived = None
    if look.archive is not None:
        files = [file for file in look.archive.files if file.partition in partitions]
        archived = sum(file.raw_size for file in files), sum(file.file_size for file in files)
    return LoadReport(
        tuple(
            PartitionLoad(
                partition,
                sum(part.count for part in parts if part.partition == partition),
                sum(part.size for part in parts if part.partition == partition),
            )
            for partition in partitions
        ),
        tuple(classes.tolist()),
        max(part.largest for part in parts),
        tuple(clients.most_common()),
        tuple(headers.most_common()),
        sum(part.others for part in parts),
        sum(part.sample for part in parts),
        sum(part.compressed for part in parts),
        archived,
        tuple(_growth(look)),
        seconds,
    )


def _growth(look: Look) -> list[Growth]:
    """Of each partition from the replica that reaches farthest back, as far as files are there."""
    best: dict[int, PartitionFiles] = {}
    for replica in look.replicas:
        for files in replica.partitions:
            known = best.get(files.partition)
            if files.segments and (known is None or files.start < known.start):
                best[files.partition] = files
    growth = []
    for partition in sorted(best):
        size = 0
        for span in best[partition].segments:
            with open(span.path, "rb") as file:
                header = decode_header(file.read(HEADER_SIZE))
            if header is not None:
                growth.append(Growth(partition, header.created_ms, span.first_id, size))
            size += span.size
    return growth

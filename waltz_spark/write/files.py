"""Rows from files into a log: Parquet, JSON lines or CSV, read here with pyarrow or by Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any
from uuid import uuid4

from waltz_core.base.record import record
from waltz_spark.base.errors import OptionError
from waltz_spark.base.runners import OnProgress, OnSpark, Runner
from waltz_spark.write.arranging import together
from waltz_spark.write.jobs import finish_job, plan_job
from waltz_spark.write.sink_options import rows_of_batch
from waltz_spark.write.writing import Job, TaskResult, Written, write_batches
from waltz_trio.client.values import key_partition

KINDS = {"parquet": (".parquet",), "json": (".json", ".jsonl", ".ndjson"), "csv": (".csv",)}
_BATCH_ROWS = 8192
_NUMBERS = {"partition": "int", "header": "int", "client_high_water_mark": "bigint"}


@record
class SinkReport:
    """What became of the rows."""

    partitions: tuple[Written, ...]
    appended: int
    found_before: int  # rows that an earlier attempt had written
    rejected: int
    finished_before: bool  # nothing was left to do
    seconds: float


@record
class FilesTask:
    """One task: the rows of some partitions, out of all files."""

    paths: tuple[str, ...]
    kind: str
    job: Job
    task: int
    tasks: int  # partition P belongs to task P % tasks


def kind_of(paths: Sequence[str]) -> str:
    """The kind of file that names end with.

    Raises:
        OptionError: none, or several.
    """
    kinds = {kind for path in paths for kind, endings in KINDS.items() if PurePosixPath(path).suffix.lower() in endings}
    if len(kinds) != 1:
        raise OptionError(f"of what kind are {', '.join(paths)}? say parquet, json or csv")
    return kinds.pop()


def sink_files(
    paths: Sequence[str],
    values: Mapping[str, str],
    runner: Runner,
    kind: str | None = None,
    on_progress: OnProgress | None = None,
) -> SinkReport:
    """Write the rows of files, with the options of the sink.

    Args:
        paths: files, or one directory.
        values: options of the sink.
        kind: parquet, json (one object a line) or csv (with a header line); by default, as the names say.
        on_progress: called with rows done and rows in all (Parquet only, else those done), where one process does all.

    Raises:
        PipelineError: see `write_batches`; what is in the log stays there.
    """
    begin = time.monotonic()
    kind = kind or kind_of(paths)
    results: list[TaskResult]
    if isinstance(runner, OnSpark):
        frame = _frame(runner.session, paths, kind)
        job, finished = plan_job(values, frame.columns)
        results = [] if finished else _on_spark(frame, job)
    else:
        table = _dataset(paths, kind)
        job, finished = plan_job(values, table.schema.names)
        count = min(runner.width, len(job.marks))
        tasks = [FilesTask(tuple(paths), kind, job, at, count) for at in range(count)]
        if finished:
            results = []
        elif count == 1:
            results = [_write(tasks[0], on_progress)]
        else:
            results = runner.run(_write, tasks)
    if not finished:
        finish_job(job, results)
    partitions = tuple(sorted((one for found in results for one in found.partitions), key=lambda one: one.partition))
    return SinkReport(
        partitions,
        sum(one.appended for one in partitions),
        sum(one.found_before for one in partitions),
        sum(one.rejected for one in partitions),
        finished,
        time.monotonic() - begin,
    )


# ---- here ------------------------------------------------------------------------------------


def _dataset(paths: Sequence[str], kind: str) -> Any:
    import pyarrow as pa
    from pyarrow import csv, dataset

    form: Any = kind
    if kind == "csv":
        types = {"data": pa.string(), "key": pa.string()}  # never mind that they look like numbers
        form = dataset.CsvFileFormat(convert_options=csv.ConvertOptions(column_types=types))
    try:
        return dataset.dataset(paths[0] if len(paths) == 1 else list(paths), format=form)
    except (OSError, pa.ArrowException) as error:
        raise OptionError(f"{', '.join(paths)}: cannot be read as {kind}: {error}") from error


def _write(task: FilesTask, on_progress: OnProgress | None = None) -> TaskResult:
    table, done = _dataset(task.paths, task.kind), 0
    total = table.count_rows() if on_progress is not None and task.kind == "parquet" else 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if on_progress is not None:
            on_progress(done, max(done, total))

    return write_batches(_rows(table, task), task.job, task.task, uuid4().hex, advance)


def _rows(table: Any, task: FilesTask) -> Iterator[Any]:
    import pyarrow as pa

    try:
        for batch in table.to_batches(batch_size=_BATCH_ROWS):
            if task.tasks > 1:
                found = rows_of_batch(batch)
                count = len(task.job.marks)
                partitions = found.get("partition") or [key_partition(key, count) for key in found.get("key", ())]
                batch = batch.filter(pa.array([one % task.tasks == task.task for one in partitions], pa.bool_()))
            if batch.num_rows:
                yield batch
    except (OSError, pa.ArrowException) as error:
        raise OptionError(f"{', '.join(task.paths)}: {error}") from error


# ---- on Spark --------------------------------------------------------------------------------


def _frame(spark: Any, paths: Sequence[str], kind: str) -> Any:
    reader = spark.read.format(kind)
    if kind == "csv":
        reader = reader.option("header", "true")
    frame = reader.load(list(paths))
    if kind == "csv":  # everything is text there
        for name, type_name in _NUMBERS.items():
            if name in frame.columns:
                frame = frame.withColumn(name, frame[name].cast(type_name))
    return frame


def _on_spark(frame: Any, job: Job) -> list[TaskResult]:
    import pickle

    def perform(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        result = write_batches(batches, job, context.partitionId() if context is not None else 0, uuid4().hex)
        yield pa.RecordBatch.from_pydict({"result": [pickle.dumps(result)]})

    rows = together(frame, len(job.marks)).mapInArrow(perform, "result binary").collect()
    return [pickle.loads(row["result"]) for row in rows]

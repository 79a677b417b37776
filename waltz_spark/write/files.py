"""Rows from files into a log: Parquet, JSON lines or CSV, read here with pyarrow or by Spark."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import PurePosixPath
from typing import Any
from uuid import uuid4

from waltz_core.base.record import record
from waltz_spark.base.errors import DifferentRowsError, OptionError, PipelineError
from waltz_spark.base.runners import OnProgress, OnSpark, Runner
from waltz_spark.write.arranging import together
from waltz_spark.write.jobs import finish_job, plan_job
from waltz_spark.write.sink_options import rows_of_batch
from waltz_spark.write.sink_state import SinkState
from waltz_spark.write.tables import Table, batches_of, check_alike, open_table, row_count
from waltz_spark.write.writing import Job, TaskResult, Written, write_batches
from waltz_trio.client.values import key_partition

KINDS = {"parquet": (".parquet",), "json": (".json", ".jsonl", ".ndjson"), "csv": (".csv",)}
_FILES_SHOWN = 5
_SPARK_OPTIONS = {
    "parquet": {"mergeSchema": "true"},
    "json": {"mode": "FAILFAST"},
    "csv": {"header": "true", "multiLine": "true", "escape": '"', "mode": "FAILFAST", "enforceSchema": "false"},
}
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

    table: Table
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
    if isinstance(runner, OnSpark):
        frame = _frame(runner.session, paths, kind)
        job, finished = plan_job(values, frame.columns)
        source = _source(paths, job)
        results = [] if finished else _on_spark(frame, job)
    else:
        table = open_table(paths, kind)
        job, finished = plan_job(values, table.schema.names)
        source = _source(paths, job)
        results = [] if finished else _here(table, job, runner, on_progress)
    if finished:
        _check_source(job, source)
    else:
        finish_job(job, results, source)
    partitions = tuple(sorted((one for found in results for one in found.partitions), key=lambda one: one.partition))
    return SinkReport(
        partitions,
        sum(one.appended for one in partitions),
        sum(one.found_before for one in partitions),
        sum(one.rejected for one in partitions),
        finished,
        time.monotonic() - begin,
    )


# ---- which rows ------------------------------------------------------------------------------


def _source(paths: Sequence[str], job: Job) -> dict[str, Any] | None:
    """What tells this call from others with the same checkpoint; None without one."""
    if not job.kept:
        return None
    return {"mode": job.options.mode, "files": [_file(name) for path in paths for name in _names(path)]}


def _names(path: str) -> list[str]:
    """The files of a local directory that are read; the path itself if it is none."""
    local = path.removeprefix("file://")
    if not os.path.isdir(local):
        return [path]
    files = []
    for folder, folders, names in os.walk(local):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        files += [os.path.join(folder, name) for name in names if not name.startswith((".", "_"))]
    return sorted(files)


def _file(path: str) -> dict[str, Any]:
    """Name, size and checksum, since it may be moved between two calls; of a file elsewhere, where it is."""
    local, size, checksum = path.removeprefix("file://"), 0, 0
    try:
        with open(local, "rb") as file:
            while chunk := file.read(1 << 20):
                size, checksum = size + len(chunk), zlib.crc32(chunk, checksum)
    except OSError:
        return {"name": path}
    return {"name": os.path.basename(local), "size": size, "crc32": checksum}


def _check_source(job: Job, source: Mapping[str, Any] | None) -> None:
    """Raises OptionError: the job that is finished wrote other files, or in another mode."""
    assert job.options.checkpoint_location is not None
    noted = SinkState(job.options.checkpoint_location).source(job.batch)
    if noted is None or source is None:  # an earlier version finished it
        return
    if noted["mode"] == source["mode"] and sorted(map(_shown, noted["files"])) == sorted(map(_shown, source["files"])):
        return
    raise OptionError(
        f"{job.options.checkpoint_location}: the call that is finished there had mode {_described(noted)}; this one "
        f"has mode {_described(source)}: rows of other files need a checkpoint of their own"
    )


def _shown(file: Mapping[str, Any]) -> str:
    if "size" not in file:
        return str(file["name"])
    return f"{file['name']} ({file['size']:,} bytes, CRC-32 {file['crc32']:08x})"


def _described(source: Mapping[str, Any]) -> str:
    files = list(map(_shown, source["files"]))
    more = f" and {len(files) - _FILES_SHOWN} more" if len(files) > _FILES_SHOWN else ""
    return f"{source['mode']} and the files {', '.join(files[:_FILES_SHOWN])}{more}"


# ---- here ------------------------------------------------------------------------------------


def _here(table: Table, job: Job, runner: Runner, on_progress: OnProgress | None) -> list[TaskResult]:
    count = min(runner.width, len(job.marks))
    tasks = [FilesTask(table, job, at, count) for at in range(count)]
    return [_write(tasks[0], on_progress)] if count == 1 else runner.run(_write, tasks)


def _write(task: FilesTask, on_progress: OnProgress | None = None) -> TaskResult:
    done, total = 0, row_count(task.table) if on_progress is not None else 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if on_progress is not None:
            on_progress(done, max(done, total))

    return write_batches(_rows(task), task.job, task.task, uuid4().hex, advance)


def _rows(task: FilesTask) -> Iterator[Any]:
    import pyarrow as pa

    for batch in batches_of(task.table):
        if task.tasks > 1:
            found = rows_of_batch(batch)
            count = len(task.job.marks)
            partitions = found.get("partition") or [key_partition(key, count) for key in found.get("key", ())]
            batch = batch.filter(pa.array([one % task.tasks == task.task for one in partitions], pa.bool_()))
        if batch.num_rows:
            yield batch


# ---- on Spark --------------------------------------------------------------------------------


def _frame(spark: Any, paths: Sequence[str], kind: str) -> Any:
    """The rows as they are read here, too."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    reader = spark.read.format(kind).options(**_SPARK_OPTIONS[kind])
    if kind != "csv":
        return reader.load(list(paths))
    frames = [reader.load(path) for path in paths]  # together, the header of the first would count for all
    check_alike([(path, frame.columns) for path, frame in zip(paths, frames, strict=True)])
    frame = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
    for name in frame.columns:  # everything is text there, and an empty field is null
        if name in _NUMBERS:
            frame = frame.withColumn(name, frame[name].cast(_NUMBERS[name]))
        elif name in ("data", "key"):
            frame = frame.withColumn(name, F.coalesce(frame[name], F.lit("")))
    return frame


def _on_spark(frame: Any, job: Job) -> list[TaskResult]:
    import pickle

    def perform(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        result: TaskResult | PipelineError
        try:
            result = write_batches(batches, job, task, uuid4().hex)
        except (OptionError, DifferentRowsError) as error:
            result = error  # another attempt would end in the same way
        yield pa.RecordBatch.from_pydict({"result": [pickle.dumps(result)]})

    rows = together(frame, len(job.marks)).mapInArrow(perform, "result binary").collect()
    results: list[TaskResult] = []
    for row in rows:
        result = pickle.loads(row["result"])
        if isinstance(result, PipelineError):
            raise result
        results.append(result)
    return results

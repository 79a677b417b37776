"""The sink `waltz` of Spark: exactly once into the log, over retries, speculation, zombies and restarts.

Thin: what is appended is decided in `epochs`, carried out in `writing`, begun and finished in `jobs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from uuid import uuid4

from pyspark import TaskContext

from waltz_spark.base.errors import OptionError
from waltz_spark.spark.api import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
    need_streams,
)
from waltz_spark.spark.refusals import in_one_line
from waltz_spark.write.arranging import ARRANGED
from waltz_spark.write.jobs import check_stream, checked_options, finish_job, plan_job, publish_again, stream_job
from waltz_spark.write.sink_options import SinkOptions
from waltz_spark.write.writing import Job, TaskResult, write_batches

_BATCH_PROPERTY = "streaming.sql.batchId"


class Message(WriterCommitMessage):  # type: ignore[misc]  # pyspark is not looked into
    """What a task reports to the driver; without a result, its batch was finished before."""

    def __init__(self, result: TaskResult | None) -> None:
        self.result = result


def check_arranged(options: SinkOptions, schema: Any) -> None:
    """Refuse, before a row is written, what two tasks with rows of one partition would find out in the middle.

    Raises:
        OptionError: nothing says that the rows of a partition come from one task.
    """
    if options.mode == "at-least-once" or options.arranged:
        return
    if not any(field.name == "partition" and field.metadata.get(ARRANGED) for field in schema.fields):
        raise OptionError(
            "the rows of a partition must come from one task: write waltz_spark.arrange(frame), or say "
            "arranged=true where they do already"
        )


def batch_writer(values: Mapping[str, str], schema: Any, overwrite: bool) -> BatchWriter:
    """The writer of `df.write`; called on the driver. Errors as `plan_job` and `check_arranged`."""
    check_arranged(checked_options(values, schema.names, overwrite=overwrite), schema)
    job, finished = plan_job(values, schema.names, overwrite=overwrite)
    return BatchWriter(job, finished=finished)


def stream_writer(values: Mapping[str, str], schema: Any, overwrite: bool) -> StreamWriter:
    """The writer of `df.writeStream`; called on the driver, for every batch and every commit.

    Errors as `plan_job` and `check_arranged`.
    """
    need_streams(reading=False)
    options = checked_options(values, schema.names, overwrite=overwrite)
    check_arranged(options, schema)
    if options.batch_id is not None:
        raise OptionError("batchId is for batch writes; a stream numbers its batches itself")
    if options.checkpoint_location is None:
        raise OptionError("a stream into a log needs checkpointLocation")
    check_stream(options)
    return StreamWriter(options)


def _perform(job: Job, iterator: Iterator[Any]) -> Message:
    context = TaskContext.get()
    task = context.partitionId() if context is not None else 0
    return Message(write_batches(iterator, job, task, uuid4().hex))


def _results(messages: Iterable[Any]) -> list[TaskResult]:
    return [message.result for message in messages if message is not None and message.result is not None]


class BatchWriter(DataSourceArrowWriter):  # type: ignore[misc]  # pyspark is not looked into
    """One job. With `batchId`, a job that is started again finds what it has done."""

    def __init__(self, job: Job, *, finished: bool) -> None:
        self.job = job
        self.finished = finished

    @in_one_line
    def write(self, iterator: Iterator[Any]) -> Message:
        """The rows of one task; runs in an executor."""
        return Message(None) if self.finished else _perform(self.job, iterator)

    @in_one_line
    def commit(self, messages: list[Any]) -> None:
        """All tasks are done."""
        finish_job(self.job, _results(messages))

    def abort(self, messages: list[Any]) -> None:
        """Nothing: what is in the log stays there. With `batchId`, the same job again completes it."""


class StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]  # pyspark is not looked into
    """All batches of a query: Spark gives its number to the tasks."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    @in_one_line
    def write(self, iterator: Iterator[Any]) -> Message:
        """The rows of one task; runs in an executor."""
        context = TaskContext.get()
        batch = None if context is None else context.getLocalProperty(_BATCH_PROPERTY)
        if batch is None:
            raise OptionError(
                f"Spark does not tell the number of the batch ({_BATCH_PROPERTY}); use foreachBatch with the "
                "options batchId and checkpointLocation"
            )
        job = stream_job(self.options, int(batch))
        return Message(None) if job is None else _perform(job, iterator)

    @in_one_line
    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """All tasks of the batch are done; Spark notes that later, and until then may ask for it again."""
        job = stream_job(self.options, batchId)
        if job is not None:
            finish_job(job, _results(messages))
        else:
            publish_again(self.options, batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing: the next attempt at the batch completes it."""

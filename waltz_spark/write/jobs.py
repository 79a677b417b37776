"""A batch of a sink as the driver sees it: where it begins, and what is noted when all of its tasks are done.

A task tells the last id of each partition that it wrote to. The other partitions are looked at here: rows that an
earlier attempt put into one of them are a mistake to be told, and the next batch begins behind what is there now, so
that no sink has to read, one day, what the storage nodes gave up long ago.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import trio

import waltz_trio as waltz
from waltz_core.base.log import PROBE_MARK
from waltz_spark.base.errors import LogStartError, OptionError, WentBackError
from waltz_spark.read.cluster import shown_key
from waltz_spark.write.epochs import Attempt
from waltz_spark.write.sink_options import SinkOptions, check_columns, parse_sink_options
from waltz_spark.write.sink_state import SinkState, publish
from waltz_spark.write.writing import (
    Job,
    TaskResult,
    answered_marks,
    cluster_marks,
    connect_and,
    mark_within,
    write_none,
)

_PAUSE = 0.1  # seconds before a question that was lost is asked again

_checked: set[tuple[str, str, str]] = set()  # folder, sink, and cluster as the options name it


def plan_job(values: Mapping[str, str], names: Iterable[str], *, overwrite: bool = False) -> tuple[Job, bool]:
    """What all tasks of a job that is not a stream share, and whether it was finished before.

    Args:
        values: options as the user gave them.
        names: columns of the rows.

    Raises:
        OptionError: the options or the columns cannot be used.
        WrongClusterError: the checkpoint is of another cluster.
        WentBackError: the log ends before what earlier batches wrote.
        UnreachableError: the cluster does not answer.
    """
    options = checked_options(values, names, overwrite=overwrite)
    cluster, marks = cluster_marks(options)
    if options.batch_id is None:
        return Job(options, uuid4().hex, 0, marks), False
    state = _state(options)
    state.begin(cluster, marks, shown_key(options, _timeout(options)))
    _check_marks(state, marks)
    start, finished, latest = state.start(), state.finished(options.batch_id), state.latest()
    if not finished and latest > options.batch_id:
        raise OptionError(f"batchId {options.batch_id}: batch {latest} is finished already; numbers have to grow")
    return Job(options, start.sink, options.batch_id, state.base(options.batch_id), start.cluster, True), finished


def check_stream(options: SinkOptions) -> None:
    """Begin the sink of a stream, or see that its checkpoint is of this cluster: once in a process.

    Errors as those of `plan_job`.
    """
    state = _state(options)
    if not state.begun():
        cluster, marks = cluster_marks(options)
        state.begin(cluster, marks, shown_key(options, _timeout(options)))
    place = state.root, state.start().sink, options.url or f"{options.zookeeper}{options.cluster_root}"
    if place in _checked:
        return
    cluster, found = answered_marks(options)
    state.check(cluster, len(found), shown_key(options, _timeout(options)))
    _check_marks(state, found)
    _checked.add(place)


def stream_job(options: SinkOptions, batch: int) -> Job | None:
    """What all tasks of a batch of a stream share; None if it is finished."""
    state = _state(options)
    if state.finished(batch):
        return None
    start = state.start()
    return Job(options, start.sink, batch, state.base(batch), start.cluster, True)


def finish_job(job: Job, results: Sequence[TaskResult], source: Mapping[str, Any] | None = None) -> None:
    """Every task of the job is done: note that, and put rejected rows into their place for users.

    Args:
        source: what the rows were made of, to be noted with the batch.

    Raises:
        DifferentRowsError: an earlier attempt wrote rows to a partition that has none now.
        FencedError: a later batch, or another attempt, has taken over.
        UnreachableError: the cluster does not answer.
    """
    options, rejects = job.options, rejects_of(job.sink, job.batch, results)
    if not job.kept:
        _ends(job, results)
        if options.rejects is not None:
            publish(options.rejects, rejects)
        return
    state = _state(options)
    if not state.finished(job.batch):
        state.finish(job.batch, _ends(job, results), rejects, source)
    state.publish_rejects(job.batch, options.rejects)


def publish_again(options: SinkOptions, batch: int) -> None:
    """Put rejected rows of a finished batch of a stream into their place for users, if they are not there."""
    _state(options).publish_rejects(batch, options.rejects)


def checked_options(values: Mapping[str, str], names: Iterable[str], *, overwrite: bool) -> SinkOptions:
    """Options that fit the columns; raises OptionError."""
    options = parse_sink_options(values)
    if overwrite:
        raise OptionError('a log is only ever appended to: use mode("append"), or outputMode("append")')
    check_columns(names, options)
    return options


def last_ids(results: Iterable[TaskResult]) -> dict[int, int]:
    """By partition, a transaction behind which the job has written nothing."""
    return {one.partition: one.last_id for result in results for one in result.partitions}


def rejects_of(sink: str, batch: int, results: Iterable[TaskResult]) -> dict[str, bytes]:
    """Files of rejected rows, by name."""
    return {
        f"{sink}-{batch}-{result.task:05}.parquet": result.rejects for result in results if result.rejects is not None
    }


# ---- inside ----------------------------------------------------------------------------------


def _state(options: SinkOptions) -> SinkState:
    assert options.checkpoint_location is not None
    return SinkState(options.checkpoint_location)


def _timeout(options: SinkOptions) -> float:
    return options.request_timeout_ms / 1000


def _check_marks(state: SinkState, marks: Sequence[int | None]) -> None:
    """Raises WentBackError: the log ends before what finished batches wrote."""
    for partition, (written, mark) in enumerate(zip(state.base(state.latest() + 1), marks, strict=True)):
        if mark is not None and written > mark:
            raise WentBackError(partition, written + 1, mark + 1)


def _ends(job: Job, results: Sequence[TaskResult]) -> dict[int, int]:
    """By partition, a transaction behind which nothing of the batch is, and nothing of earlier ones."""
    ends = last_ids(results)
    others = [partition for partition in range(len(job.marks)) if partition not in ends]
    if others and (job.kept or job.options.mode != "at-least-once"):
        ends.update(connect_and(job.options, partial(_ends_without_rows, job, others)))
    return ends


async def _ends_without_rows(job: Job, partitions: Iterable[int], client: waltz.Client) -> dict[int, int]:
    """The same of partitions to which no task wrote; without those that do not answer now."""
    ends: dict[int, int] = {}
    attempt = Attempt(job.sink, job.batch, f"the end, {uuid4().hex}", 0)

    async def look(partition: int) -> None:
        end = await _end_without_rows(client, job, partition, attempt)
        if end is not None:
            ends[partition] = end

    async with trio.open_nursery() as nursery:
        for partition in partitions:
            nursery.start_soon(look, partition)
    return ends


async def _end_without_rows(client: waltz.Client, job: Job, partition: int, attempt: Attempt) -> int | None:
    """None: nobody can tell now. The batch is done all the same: its rows are in other partitions."""
    base, timeout = job.marks[partition], _timeout(job.options)
    mark = await mark_within(client, partition, timeout)
    if mark is None or mark <= base or job.options.mode == "at-least-once":
        return mark
    taken: int | None = None
    with trio.move_on_after(timeout):
        taken = await _last_taken(client, partition, attempt)
    if taken is None:
        return None
    if taken <= base:
        return mark  # no attempt at this batch has begun here
    try:
        return max(mark, await write_none(client, job, partition, attempt))
    except LogStartError:
        return mark  # what could be read is gone


async def _last_taken(client: waltz.Client, partition: int, attempt: Attempt) -> int:
    """The last transaction that took the lock of the sink, or one behind it; -1 where this client may not write."""
    probe = waltz.Append(b"", read=[attempt.lock])
    while True:
        try:
            await client.append(partition, probe, based_on=PROBE_MARK)
        except waltz.LockConflictError as error:
            return error.blocking_id
        except waltz.NotCommittedError as error:
            if error.refused:
                return -1
        await trio.sleep(_PAUSE)

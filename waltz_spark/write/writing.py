"""Carries out the effects of the epoch protocol with the public client. Blocks: one call per task.

A task has one client, hence one client id, by which later attempts know its rows. Nothing of Trio is alive
outside of `write_batches`, and the rows are drawn from their source in a thread: it may wait for other executors.
"""

from __future__ import annotations

import io
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias

import trio

import waltz_trio as waltz
from waltz_core.base.ids import req_client
from waltz_core.base.log import MARKER_HEADER
from waltz_core.base.record import record
from waltz_spark.base.errors import (
    DifferentRowsError,
    FencedError,
    LogStartError,
    OptionError,
    UnreachableError,
    WrongClusterError,
)
from waltz_spark.read.cluster import client_config
from waltz_spark.write.epochs import (
    Append,
    AppendRun,
    Attempt,
    Different,
    Done,
    Effect,
    EpochWriter,
    Fenced,
    Locks,
    ResendingWriter,
    Row,
    Scan,
    Seen,
)
from waltz_spark.write.sink_options import SinkOptions, rows_of_batch
from waltz_trio.base.background import first_of

_CHUNK = 512  # rows handed over at a time
_FETCHES = 64  # payloads read at a time
_PAUSE = 0.1  # seconds before appends that were lost are sent again

Writer: TypeAlias = EpochWriter | ResendingWriter
OnRows: TypeAlias = Callable[[int], None]


@record
class Job:
    """What all tasks of a batch share."""

    options: SinkOptions
    sink: str
    batch: int
    marks: tuple[int, ...]  # by partition: every earlier batch is up to it, nothing of this one
    cluster: str = ""  # its name, if `kept`
    kept: bool = False  # a checkpoint tells which batches are finished


@record
class Written:
    """What became of one partition."""

    partition: int
    last_id: int  # nothing of the batch is behind it
    appended: int
    found_before: int  # rows that an earlier attempt had written
    markers: int
    rejected: int


@record
class TaskResult:
    """What became of a task; rejected rows are a Parquet file."""

    task: int
    partitions: tuple[Written, ...]
    rejects: bytes | None


def connect_and(options: SinkOptions, work: Callable[[waltz.Client], Any]) -> Any:
    """`await work(client)`, from a program without Trio.

    Raises:
        UnreachableError: the cluster does not answer.
        WaltzError: as `work`.
    """

    async def run() -> Any:
        with trio.move_on_after(options.patience) as connecting:
            async with waltz.open_client(_config(options)) as client:
                connecting.deadline = float("inf")
                return await work(client)
        raise UnreachableError(f"{options.url or options.zookeeper}: no answer within {options.patience:g} s")

    return _run(run)


def cluster_marks(options: SinkOptions) -> tuple[str, tuple[int, ...]]:
    """Name of the cluster and committed marks of all its partitions."""

    async def look(client: waltz.Client) -> tuple[str, tuple[int, ...]]:
        marks = []
        for partition in range(client.num_partitions):
            mark = await mark_within(client, partition, options.patience)
            if mark is None:
                raise UnreachableError(f"partition {partition}: no server tells its mark within {options.patience:g} s")
            marks.append(mark)
        return client.cluster, tuple(marks)

    found: tuple[str, tuple[int, ...]] = connect_and(options, look)
    return found


def answered_marks(options: SinkOptions) -> tuple[str, tuple[int | None, ...]]:
    """As `cluster_marks`; None for a partition of which no server tells its mark in time."""

    async def look(client: waltz.Client) -> tuple[str, tuple[int | None, ...]]:
        marks: list[int | None] = [None] * client.num_partitions

        async def ask(partition: int) -> None:
            marks[partition] = await mark_within(client, partition, options.request_timeout_ms / 1000)

        async with trio.open_nursery() as nursery:
            for partition in range(client.num_partitions):
                nursery.start_soon(ask, partition)
        return client.cluster, tuple(marks)

    found: tuple[str, tuple[int | None, ...]] = connect_and(options, look)
    return found


async def mark_within(client: waltz.Client, partition: int, patience: float) -> int | None:
    """The committed mark; None if no server tells it within so many seconds."""
    with trio.move_on_after(patience):
        return await client.committed_mark(partition)
    return None


def write_batches(
    batches: Iterator[Any], job: Job, task: int, attempt: str, on_rows: OnRows | None = None
) -> TaskResult:
    """Write Arrow record batches; returns when every row is in the log or rejected.

    Args:
        task: place of this task among those of the batch.
        attempt: differs in every attempt.
        on_rows: called with the number of further rows handed to the cluster, in the thread of the caller.

    Raises:
        FencedError: another attempt of this task, or one of its partitions, has taken over.
        DifferentRowsError: an earlier attempt wrote rows that are not there any more.
        OptionError: a row cannot be written.
        UnreachableError: the cluster does not answer.
    """

    async def work(client: waltz.Client) -> TaskResult:
        return await _Task(client, job, task, attempt, on_rows).run(batches)

    result: TaskResult = connect_and(job.options, work)
    return result


def _config(options: SinkOptions) -> Any:
    config = client_config(options)
    return config if isinstance(config, str) else dict(config)


def _run(work: Callable[[], Any]) -> Any:
    """`trio.run`; raises one exception where Trio has groups of one, in the words of this package."""
    failure: BaseException
    try:
        return trio.run(work)
    except BaseException as error:
        failure = first_of(error)
    if isinstance(failure, waltz.ConfigError):
        raise OptionError(str(failure)) from failure
    if isinstance(failure, waltz.ClientError):
        raise UnreachableError(str(failure)) from failure
    raise failure


class _Task:
    """One attempt of one task."""

    def __init__(self, client: waltz.Client, job: Job, task: int, attempt: str, on_rows: OnRows | None) -> None:
        self._client = client
        self._job = job
        self._task = task
        self._attempt = Attempt(job.sink, job.batch, attempt, task)
        self._on_rows = on_rows
        self._rejects = _Rejects()
        self._written: list[Written] = []

    async def run(self, batches: Iterator[Any]) -> TaskResult:
        """Distribute the rows to one writer per partition."""
        if self._job.kept and self._job.cluster != self._client.cluster:
            raise WrongClusterError("the checkpoint", self._client.cluster, self._job.cluster)
        if len(self._job.marks) != self._client.num_partitions:
            raise OptionError(
                f"the cluster has {self._client.num_partitions} partitions, {len(self._job.marks)} when the job began"
            )
        inputs: dict[int, trio.MemorySendChannel[list[Row]]] = {}
        async with trio.open_nursery() as nursery:
            number = 0
            while (batch := await trio.to_thread.run_sync(next, batches, None)) is not None:
                for partition, rows in self._rows(batch, number):
                    if partition not in inputs:
                        inputs[partition], source = trio.open_memory_channel[list[Row]](0)
                        nursery.start_soon(self._write, partition, source)
                    for at in range(0, len(rows), _CHUNK):
                        await inputs[partition].send(rows[at : at + _CHUNK])
                number += batch.num_rows
                if self._on_rows is not None:
                    self._on_rows(batch.num_rows)
            for target in inputs.values():
                target.close()
        written = tuple(sorted(self._written, key=lambda one: one.partition))
        return TaskResult(self._task, written, self._rejects.file())

    def _rows(self, batch: Any, number: int) -> Iterator[tuple[int, list[Row]]]:
        """Rows of a batch by partition."""
        client, cut = self._client, self._job.options.cut or {}
        columns = rows_of_batch(batch)
        partitions = columns.get("partition") or [client.partition_of(key) for key in columns.get("key", ())]
        given = columns.get("client_high_water_mark")
        by_partition: dict[int, list[Row]] = {}
        for at, partition in enumerate(partitions):
            if not 0 <= partition < client.num_partitions:
                raise OptionError(f"partition {partition}: this cluster has 0 to {client.num_partitions - 1}")
            if columns["header"][at] == MARKER_HEADER:
                raise OptionError(
                    f"row {number + at} of its task, counted from 0, has the header {MARKER_HEADER}, which is that of "
                    "the markers of a sink, not of rows: leave such rows out, as they are no application's "
                    f"(header <> {MARKER_HEADER})"
                )
            row = Row(
                columns["header"][at] or 0,
                columns["data"][at],
                _locks(columns["write_locks"][at]),
                _locks(columns["read_locks"][at]),
                _locks(columns["append_locks"][at]),
                given[at] if given is not None else cut.get(partition, 0) - 1,
                number + at,
            )
            by_partition.setdefault(partition, []).append(row)
        yield from by_partition.items()

    async def _write(self, partition: int, source: trio.MemoryReceiveChannel[list[Row]]) -> None:
        options = self._job.options
        writer: Writer
        if options.mode == "at-least-once":
            writer = ResendingWriter(options.max_in_flight)
        else:
            writer = EpochWriter(self._attempt, self._job.marks[partition], options.max_in_flight)
        done = await _Partition(self._client, partition, writer, options.patience, self._rejects).run(source)
        rejected = self._rejects.count(partition)
        self._written.append(
            Written(partition, done.last_id, writer.appended, writer.found_before, writer.markers, rejected)
        )


async def write_none(client: waltz.Client, job: Job, partition: int, attempt: Attempt) -> int:
    """Write a batch that has no rows in this partition; returns a transaction behind which nothing of it will be.

    Raises:
        DifferentRowsError: an earlier attempt wrote rows here.
        FencedError: a later batch, or another attempt, has taken over.
        LogStartError: the log begins behind where it has to be read.
        UnreachableError: the cluster does not answer.
    """
    rows, source = trio.open_memory_channel[list[Row]](0)
    rows.close()
    writer = EpochWriter(attempt, job.marks[partition])
    done = await _Partition(client, partition, writer, job.options.patience, _Rejects()).run(source)
    return done.last_id


class _Partition:
    """Carries out the effects of one writer."""

    def __init__(
        self, client: waltz.Client, partition: int, writer: Writer, patience: float, rejects: _Rejects
    ) -> None:
        self._client = client
        self._partition = partition
        self._writer = writer
        self._patience = patience
        self._rejects = rejects
        self._out: list[Effect] = []
        self._sent: deque[tuple[int, waltz.Pending | waltz.PendingMany]] = deque()  # token of the first, its outcome
        self._progressed = time.monotonic()  # when a row was appended; waits for rows and scans do not count
        self._scope = trio.CancelScope()

    async def run(self, source: trio.MemoryReceiveChannel[list[Row]]) -> Done:
        """Run until there are no more rows and each has its verdict."""
        with trio.CancelScope() as self._scope:
            try:
                return await self._run(source)
            except waltz.BeforeStartError as error:
                raise LogStartError(self._partition, error.text) from error
        status = self._client.status(self._partition)
        raise UnreachableError(
            f"partition {self._partition}: no progress within {self._patience:g} s: "
            f"{status.phase.value} ({status.server or 'no server is known'})"
        )

    async def _run(self, source: trio.MemoryReceiveChannel[list[Row]]) -> Done:
        writer = self._writer
        writer.start(self._out)
        while True:
            while self._out:
                done = await self._perform()
                if done is not None:
                    return done
            if writer.rejected:
                self._rejects.add(self._partition, writer.rejected)
                writer.rejected.clear()
            if not writer.wants_rows:
                await self._judge()
                continue
            begin = time.monotonic()
            try:
                rows, last = await source.receive(), False
            except trio.EndOfChannel:
                rows, last = [], True
            self._progressed += time.monotonic() - begin
            writer.offer(rows, self._out, last=last)

    async def _perform(self) -> Done | None:
        effects, self._out = self._out, []
        for effect in effects:
            match effect:
                case AppendRun():
                    await self._append_run(effect)
                case Append():
                    await self._append(effect)
                case Scan(after=after, upto=upto):
                    await self._scan(after, upto)
                case Done():
                    if self._writer.rejected:
                        self._rejects.add(self._partition, self._writer.rejected)
                    return effect
                case Fenced(by=by):
                    raise FencedError(self._partition, by.task, by.batch, by.attempt)
                case Different(count=count):
                    raise DifferentRowsError(self._partition, count)
        return None

    async def _append(self, effect: Append) -> None:
        append = waltz.Append(
            effect.data, header=effect.header, write=effect.write, read=effect.read, append=effect.add
        )
        self._sent.append((effect.token, await self._send(partial(self._client.send, self._partition, append), effect)))

    async def _append_run(self, run: AppendRun) -> None:
        read = run.read
        appends = [waltz.Append(row.data, header=row.header, read=read) for row in run.rows]
        self._sent.append((run.first, await self._send(partial(self._client.send_many, self._partition, appends), run)))

    async def _send(self, send: Callable[..., Any], effect: Append | AppendRun) -> Any:
        try:
            return await self._within(partial(send, based_on=effect.mark))
        except ValueError as error:
            raise OptionError(f"partition {self._partition}: a row cannot be written: {error}") from error

    async def _judge(self) -> None:
        token, pending = self._sent.popleft()
        if isinstance(pending, waltz.PendingMany):
            await self._judge_run(token, pending)
            return
        try:
            receipt = await (pending.outcome() if pending.done else self._within(pending.outcome))
        except (waltz.LockConflictError, waltz.NotCommittedError) as error:
            self._check_refusal(token, error)
            await self._pause([error])
            self._failed(token, error)
        else:
            if self._writer.row_of(token) is not None or not self._writer.markers:  # more markers are no progress
                self._progressed = time.monotonic()
            self._writer.committed(token, receipt.transaction_id, self._out)

    async def _judge_run(self, first: int, pending: waltz.PendingMany) -> None:
        outcomes = await (pending.outcomes() if pending.done else self._within(pending.outcomes))
        if outcomes.committed:
            self._progressed = time.monotonic()
        for place, error in outcomes.errors.items():
            self._check_refusal(first + place, error)
        await self._pause(outcomes.errors.values())
        verdicts: list[tuple[int, Any]] = [(place, (first_id, count)) for place, first_id, count in outcomes.runs()]
        verdicts += outcomes.errors.items()
        for place, verdict in sorted(verdicts, key=lambda item: item[0]):  # in the order of their sending
            if isinstance(verdict, tuple):
                transaction_id, count = verdict
                self._writer.committed_run(first + place, transaction_id, count, self._out)
            else:
                self._failed(first + place, verdict)

    def _check_refusal(self, token: int, error: waltz.ClientError) -> None:
        """Raises OptionError: the server would refuse this append every time."""
        if not isinstance(error, waltz.NotCommittedError) or not error.refused:
            return
        row = self._writer.row_of(token)
        if row is None:
            raise OptionError(f"partition {self._partition}: nothing can be appended: {error.reason}") from error
        locks = len(row.write) + len(row.read) + len(row.add)
        raise OptionError(
            f"partition {self._partition}: row {row.number} of its task, counted from 0, with {len(row.data):,} bytes "
            f"and {locks:,} locks, cannot be written: {error.reason}"
        ) from error

    async def _pause(self, errors: Iterable[waltz.ClientError]) -> None:
        """Rows that were lost are sent again, unless for too long nothing has come of that; not all at once."""
        lost = next((error for error in errors if not isinstance(error, waltz.LockConflictError)), None)
        if lost is None:
            return
        if time.monotonic() - self._progressed > self._patience:
            raise UnreachableError(str(lost)) from lost
        if not self._sent:
            await trio.sleep(_PAUSE)

    def _failed(self, token: int, error: waltz.ClientError) -> None:
        if isinstance(error, waltz.LockConflictError):
            self._writer.refused(token, error.blocking_id, self._out)
        else:
            self._writer.lost(token, self._out)

    async def _scan(self, after: int, upto: int | None) -> None:
        if upto is None:
            upto = await self._within(partial(self._client.committed_mark, self._partition))
        writer, wanted = self._writer, list[waltz.Transaction]()
        begin = time.monotonic()
        if upto > after:
            async with self._client.feed(self._partition, after=after, prefetch=0) as feed:
                feed.markers = True
                while True:
                    txn = await self._within(feed.__anext__)
                    if writer.wants(txn.header, req_client(txn.req_id)):
                        wanted.append(txn)
                    # A marker says which client's rows belong to the batch, so it must be known before what follows it.
                    last = txn.id >= upto
                    if wanted and (last or txn.header == MARKER_HEADER or len(wanted) == _FETCHES):
                        writer.saw(await self._fetch(wanted))
                        wanted.clear()
                    if last:
                        break
        self._progressed += time.monotonic() - begin
        writer.scanned(upto, self._out)

    async def _fetch(self, wanted: list[waltz.Transaction]) -> list[Seen]:
        async def read_all() -> None:
            async with trio.open_nursery() as nursery:
                for txn in wanted:
                    nursery.start_soon(txn.fetch)

        await self._within(read_all)
        return [Seen(txn.id, req_client(txn.req_id), txn.header, txn.load()) for txn in wanted]

    async def _within(self, work: Callable[[], Any]) -> Any:
        """`await work()`, within the time-out. All waits of a run share one scope, since there is a wait per row."""
        self._scope.deadline = trio.current_time() + self._patience
        try:
            return await work()
        finally:
            self._scope.deadline = math.inf


class _Rejects:
    """Rejected rows of a task."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._counts: dict[int, int] = {}

    def add(self, partition: int, rejected: list[tuple[Row, int]]) -> None:
        for row, blocking_id in rejected:
            self._rows.append(
                {
                    "partition": partition,
                    "data": row.data,
                    "header": row.header,
                    "write_locks": _structs(row.write),
                    "read_locks": _structs(row.read),
                    "append_locks": _structs(row.add),
                    "client_high_water_mark": row.cut,
                    "blocking_transaction_id": blocking_id,
                }
            )
        self._counts[partition] = self._counts.get(partition, 0) + len(rejected)

    def count(self, partition: int) -> int:
        return self._counts.get(partition, 0)

    def file(self) -> bytes | None:
        """A Parquet file, None if there is nothing to report."""
        if not self._rows:
            return None
        import pyarrow as pa
        import pyarrow.parquet as pq

        locks = pa.list_(pa.struct([("name", pa.string()), ("id", pa.int64())]))
        schema = pa.schema(
            [
                ("partition", pa.int32()),
                ("data", pa.binary()),
                ("header", pa.int32()),
                ("write_locks", locks),
                ("read_locks", locks),
                ("append_locks", locks),
                ("client_high_water_mark", pa.int64()),
                ("blocking_transaction_id", pa.int64()),
            ]
        )
        target = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(self._rows, schema), target, compression="zstd")
        return target.getvalue()


def _locks(found: list[dict[str, Any]] | None) -> Locks:
    return tuple([(one["name"], one["id"]) for one in found]) if found else ()


def _structs(locks: Locks) -> list[dict[str, Any]]:
    return [{"name": name, "id": number} for name, number in locks]

"""Writing into a running cluster, without Spark: what a task does, and what becomes of its rows."""

from __future__ import annotations

import io
import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio

import waltz_trio as waltz
from waltz_spark.base.errors import (
    DifferentRowsError,
    FencedError,
    LogStartError,
    OptionError,
    UnreachableError,
    WentBackError,
    WrongClusterError,
)
from waltz_spark.base.objects import LocalStore
from waltz_spark.read.cluster import Cluster
from waltz_spark.read.options import parse_options
from waltz_spark.write import jobs, writing
from waltz_spark.write.jobs import check_stream, finish_job, plan_job, stream_job
from waltz_spark.write.sink_options import check_columns, parse_sink_options
from waltz_spark.write.sink_state import SinkState
from waltz_spark.write.writing import Job, TaskResult, Written, cluster_marks, write_batches
from waltz_trio.client.many import Outcomes
from waltz_trio.node.embedded import EmbeddedCluster, embedded_cluster

T = TypeVar("T")


async def outside(work: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(work)


LOCKS = pa.list_(pa.struct([("name", pa.string()), ("id", pa.int64())]))
TYPES = {
    "partition": pa.int32(),
    "data": pa.binary(),
    "header": pa.int32(),
    "write_locks": LOCKS,
    "append_locks": LOCKS,
}


def table(rows: list[dict[str, Any]]) -> Iterator[Any]:
    schema = pa.schema([(name, TYPES.get(name, pa.int64())) for name in rows[0]])
    yield from pa.Table.from_pylist(rows, schema).to_batches(max_chunksize=40)


def numbered(count: int, partitions: int = 2) -> list[dict[str, Any]]:
    return [{"partition": at % partitions, "data": b"%d" % at, "header": at % 3} for at in range(count)]


async def read_all(cluster: EmbeddedCluster, partition: int) -> list[tuple[bytes, int]]:
    """What an application sees."""
    async with waltz.open_client(cluster.url) as client:
        mark = await client.committed_mark(partition)
        found = []
        if mark >= 0:
            async with client.feed(partition, after=-1) as feed:
                feed.markers = True
                async for txn in feed:
                    if txn.header > -1000:
                        found.append((txn.load(), txn.header))
                    if txn.id == mark:
                        break
        return found


def contents(rows: list[dict[str, Any]], partition: int) -> Counter[tuple[bytes, int]]:
    return Counter((row["data"], row["header"]) for row in rows if row["partition"] == partition)


def job_of(cluster: EmbeddedCluster, **options: str) -> Job:
    values = parse_sink_options({"url": cluster.url, "requestTimeoutMs": "10000", **options})
    _, marks = cluster_marks(values)
    return Job(values, "sink", 0, marks)


def rejected(result: TaskResult) -> list[dict[str, Any]]:
    assert result.rejects is not None
    found: list[dict[str, Any]] = pq.read_table(io.BytesIO(result.rejects)).to_pylist()
    return found


async def test_rows_are_written_once_however_often_the_task_is_repeated(tmp_path: Path) -> None:
    async with embedded_cluster(tmp_path, partitions=3, storage_nodes=1) as cluster:
        rows = numbered(150)
        job = await outside(lambda: job_of(cluster))
        first = await outside(lambda: write_batches(table(rows), job, 0, "a"))
        assert first.partitions == (Written(0, 75, 75, 0, 1, 0), Written(1, 75, 75, 0, 1, 0))
        again = await outside(lambda: write_batches(table(rows), job, 0, "b"))
        assert [(one.appended, one.found_before) for one in again.partitions] == [(0, 75), (0, 75)]
        for partition in range(3):
            assert Counter(await read_all(cluster, partition)) == contents(rows, partition)
        later = attrs.evolve(job, batch=1, marks=tuple([one.last_id for one in again.partitions] + [-1]))
        await outside(lambda: write_batches(table(rows), later, 0, "c"))
        assert Counter(await read_all(cluster, 0)) == contents(rows + rows, 0)


async def test_an_attempt_that_was_given_up_is_fenced_when_it_goes_on(tmp_path: Path) -> None:
    async with embedded_cluster(tmp_path, partitions=2, storage_nodes=1) as cluster:
        rows = numbered(200)
        job = await outside(lambda: job_of(cluster))
        halfway, go_on = threading.Event(), threading.Event()

        def slowly() -> Iterator[Any]:
            for at, batch in enumerate(table(rows)):
                if at == 3:
                    halfway.set()
                    go_on.wait(60)
                yield batch

        failures: list[BaseException] = []

        def zombie() -> None:
            try:
                write_batches(slowly(), job, 0, "zombie")
            except Exception as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, zombie)
            await outside(lambda: halfway.wait(60))
            result = await outside(lambda: write_batches(table(rows), job, 0, "heir"))
            go_on.set()
        assert [type(error) for error in failures] == [FencedError]
        assert "attempt heir" in str(failures[0])
        assert sum(one.found_before for one in result.partitions) > 0
        for partition in range(2):
            assert Counter(await read_all(cluster, partition)) == contents(rows, partition)


async def test_servers_and_storage_nodes_may_die_meanwhile(tmp_path: Path) -> None:
    async with embedded_cluster(tmp_path, partitions=2, storage_nodes=3, servers=2) as cluster:
        rows = numbered(1200)
        job = await outside(lambda: job_of(cluster))
        reached, go_on = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]

        def slowly() -> Iterator[Any]:
            for at, batch in enumerate(table(rows)):
                if at in (8, 16):
                    reached[at // 16].set()
                    go_on[at // 16].wait(60)
                yield batch

        results: list[TaskResult] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, lambda: results.append(write_batches(slowly(), job, 0, "a")))
            for at, kill in enumerate((cluster.kill_storage, cluster.kill_server)):
                await outside(lambda at=at: reached[at].wait(60))  # type: ignore[misc]
                await kill(1)
                go_on[at].set()
        assert sum(one.appended + one.found_before for one in results[0].partitions) == len(rows)
        for partition in range(2):
            assert Counter(await read_all(cluster, partition)) == contents(rows, partition)


async def test_rows_in_conflict_with_a_live_client_are_rejected_one_by_one(tmp_path: Path) -> None:
    async with embedded_cluster(tmp_path, partitions=1, storage_nodes=1) as cluster:
        async with waltz.open_client(cluster.url) as client:
            await client.append(0, waltz.Append(b"old", write=[("account", 3)]), based_on=-1)
            taken = await client.append(0, waltz.Append(b"live", write=[("account", 7)]), based_on=0)
        rows = [
            {"partition": 0, "data": b"%d" % at, "write_locks": [{"name": "account", "id": at}]} for at in range(10)
        ]
        more = {"mode": "conditional", "rejects": str(tmp_path / "rejects"), "cut": '{"0": 1}'}
        job = await outside(lambda: job_of(cluster, **more))
        result = await outside(lambda: write_batches(table(rows), job, 0, "a"))
        (row,) = rejected(result)
        assert (row["data"], row["client_high_water_mark"], row["blocking_transaction_id"]) == (b"7", 0, taken)
        assert row["write_locks"] == [{"name": "account", "id": 7}]
        assert result.partitions[0].rejected == 1
        again = await outside(lambda: write_batches(table(rows), job, 0, "b"))
        assert (again.partitions[0].found_before, again.partitions[0].rejected) == (9, 1)
        written = [data for data, _ in await read_all(cluster, 0)]
        assert sorted(written) == sorted([b"old", b"live", *(b"%d" % at for at in range(10) if at != 7)])


async def test_a_mark_of_each_row_is_what_its_locks_are_checked_against(tmp_path: Path) -> None:
    async with embedded_cluster(tmp_path, partitions=1, storage_nodes=1) as cluster:
        async with waltz.open_client(cluster.url) as client:
            taken = await client.append(0, waltz.Append(b"live", write=[("account", 7)]), based_on=-1)
        lock = [{"name": "account", "id": 7}]
        rows = [
            {"partition": 0, "data": b"%d" % mark, "write_locks": lock, "client_high_water_mark": mark}
            for mark in (taken - 1, taken)
        ]
        job = await outside(lambda: job_of(cluster, mode="conditional", rejects=str(tmp_path / "rejects")))
        result = await outside(lambda: write_batches(table(rows), job, 0, "a"))
        assert [row["data"] for row in rejected(result)] == [b"%d" % (taken - 1)]


async def test_a_row_may_have_no_header_and_no_locks_beside_others_that_have(tmp_path: Path) -> None:
    """A null is what a data frame has there."""
    async with embedded_cluster(tmp_path, partitions=1, storage_nodes=1) as cluster:
        rows: list[dict[str, Any]] = [
            {"partition": 0, "data": b"bare", "header": None, "write_locks": None},
            {"partition": 0, "data": b"full", "header": 7, "write_locks": [{"name": "account", "id": 1}]},
        ]
        more = {"mode": "conditional", "rejects": str(tmp_path / "rejects"), "cut": '{"0": 0}'}
        job = await outside(lambda: job_of(cluster, **more))
        result = await outside(lambda: write_batches(table(rows), job, 0, "a"))
        assert result.rejects is None
        assert sorted(await read_all(cluster, 0)) == [(b"bare", 0), (b"full", 7)]


async def test_at_least_once_writes_without_a_marker(tmp_path: Path) -> None:
    async with embedded_cluster(tmp_path, partitions=2, storage_nodes=1) as cluster:
        rows = numbered(60)
        job = await outside(lambda: job_of(cluster, mode="at-least-once"))
        result = await outside(lambda: write_batches(table(rows), job, 0, "a"))
        assert [(one.last_id, one.markers) for one in result.partitions] == [(29, 0), (29, 0)]
        for partition in range(2):
            assert Counter(await read_all(cluster, partition)) == contents(rows, partition)


class Lost:
    """An append that is lost."""

    done = True

    async def outcome(self) -> waltz.Receipt:
        raise waltz.NotCommittedError(0, "lost")


async def test_what_is_lost_before_anything_is_in_the_log_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[waltz.Append] = []
    send = waltz.Client.send

    async def lossy(client: waltz.Client, partition: int, append: waltz.Append, **based_on: int | None) -> Any:
        if len(lost) < 2:
            lost.append(append)
            return Lost()
        return await send(client, partition, append, **based_on)

    monkeypatch.setattr(waltz.Client, "send", lossy)
    async with embedded_cluster(tmp_path, partitions=1, storage_nodes=1) as cluster:
        job = await outside(lambda: job_of(cluster))
        rows = numbered(10, 1)
        result = await outside(lambda: write_batches(table(rows), job, 0, "a"))
        assert [(one.appended, one.markers) for one in result.partitions] == [(10, 1)]
        assert Counter(await read_all(cluster, 0)) == contents(rows, 0)


async def test_rows_that_cannot_be_written_are_explained(tmp_path: Path) -> None:
    async with embedded_cluster(tmp_path, partitions=2, storage_nodes=1) as cluster:
        job = await outside(lambda: job_of(cluster))
        for rows, problem in (
            ([{"partition": 2, "data": b""}], "partition 2: this cluster has 0 to 1"),
            (
                [{"partition": 0, "data": b"", "header": at and -1464620122} for at in range(2)],
                r"row 1 of its task, counted from 0, has the header -1464620122, .*\(header <> -1464620122\)",
            ),
            ([{"partition": 0, "data": None}], "column data has no value in 1 rows"),
            ([{"partition": 0, "data": b"x" * (17 << 20)}], "partition 0: a row cannot be written: payload of"),
        ):
            with pytest.raises(OptionError, match=problem):
                await outside(lambda rows=rows: write_batches(table(rows), job, 0, "a"))  # type: ignore[misc]
        await outside(lambda: write_batches(table([{"partition": 0, "data": b"now"}]), job, 0, "b"))
        with pytest.raises(DifferentRowsError, match="wrote 1 rows that are not among the rows of this one"):
            await outside(lambda: write_batches(table([{"partition": 0, "data": b"later"}]), job, 0, "c"))


@pytest.mark.parametrize("mode", ["append", "at-least-once"])
@pytest.mark.parametrize("locks", [False, True])
async def test_a_row_that_the_server_refuses_for_good_ends_the_task_at_once(
    tmp_path: Path, mode: str, locks: bool
) -> None:
    """The limits of the server are lower than those of the client; the log does not fill with markers."""
    settings = {"server.payloadSizeMax": 1 << 20, "server.locksMax": 5}
    taken = [{"name": "account", "id": at} for at in range(9)] if locks else None
    row = {"partition": 0, "data": b"x" if locks else b"x" * (2 << 20), "append_locks": taken}
    limit = "server.locksMax" if locks else "server.payloadSizeMax"
    async with embedded_cluster(tmp_path, partitions=1, storage_nodes=1, settings=settings) as cluster:
        job = await outside(lambda: job_of(cluster, mode=mode, requestTimeoutMs="5000", retries="1"))
        rows: list[dict[str, Any]] = [{"partition": 0, "data": b"fine", "append_locks": None}, row]
        with pytest.raises(OptionError, match=rf"partition 0: row 1 of its task.* cannot be written: .*{limit}"):
            await outside(lambda: write_batches(table(rows), job, 0, "a"))
        async with waltz.open_client(cluster.url) as client:
            assert await client.committed_mark(0) <= 1, "one marker and the other row"


class LostRows(waltz.PendingMany):
    """Appends of one call, all of them lost."""

    def __init__(self, count: int) -> None:
        super().__init__(0)
        self.errors = {at: waltz.NotCommittedError(0, "lost") for at in range(count)}

    async def outcomes(self) -> Outcomes:
        return Outcomes(0, [None] * len(self.errors), {}, dict(self.errors))


async def test_markers_are_no_progress_where_no_row_gets_into_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []

    async def lossy(client: waltz.Client, partition: int, appends: list[waltz.Append], **_: object) -> LostRows:
        sent.append(len(appends))
        if len(sent) == 60:
            raise AssertionError("it goes on for ever")
        return LostRows(len(appends))

    monkeypatch.setattr(waltz.Client, "send_many", lossy)
    async with embedded_cluster(tmp_path, partitions=1, storage_nodes=1) as cluster:
        job = await outside(lambda: job_of(cluster, requestTimeoutMs="2000", retries="1"))
        with pytest.raises(UnreachableError, match="lost"):
            await outside(lambda: write_batches(table(numbered(3, 1)), job, 0, "a"))


async def test_the_wait_for_rows_counts_for_no_time_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream may pause for longer than the patience; what is lost right behind that is sent again."""
    paused: list[bool] = []
    send_many = waltz.Client.send_many

    async def lossy(client: waltz.Client, partition: int, appends: list[waltz.Append], **based_on: Any) -> Any:
        if paused:
            paused.clear()
            return LostRows(len(appends))
        return await send_many(client, partition, appends, **based_on)

    def slowly() -> Iterator[Any]:
        yield from table(numbered(1, 1))
        time.sleep(2.5)
        paused.append(True)
        yield from table(numbered(1, 1))

    monkeypatch.setattr(waltz.Client, "send_many", lossy)
    async with embedded_cluster(tmp_path, partitions=1, storage_nodes=1) as cluster:
        job = await outside(lambda: job_of(cluster, requestTimeoutMs="2000", retries="1", maxInFlight="1"))
        result = await outside(lambda: write_batches(slowly(), job, 0, "a"))
        assert [(one.appended, one.markers) for one in result.partitions] == [(2, 2)]


async def test_a_cluster_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    async with embedded_cluster(tmp_path, partitions=1, storage_nodes=1) as cluster:
        job = await outside(lambda: job_of(cluster, requestTimeoutMs="300", retries="1"))
        await cluster.kill_storage(0)
        with pytest.raises(UnreachableError, match=r"(partition 0: no progress|no answer) within 0\.3 s"):
            await outside(lambda: write_batches(table(numbered(1)), job, 0, "a"))


# ---- options and state


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "say where to write to"),
        ({"url": "waltz://h:1", "modus": "append"}, "unknown option modus; did you mean mode?"),
        ({"url": "waltz://h:1", "mode": "exactly"}, "expected one of append, conditional, at-least-once"),
        ({"url": "waltz://h:1", "mode": "conditional"}, "needs rejects"),
        ({"url": "waltz://h:1", "cut": "{}"}, "are for mode=conditional"),
        ({"url": "waltz://h:1", "mode": "conditional", "rejects": "/r", "cut": "5"}, "expected next ids such as"),
        ({"url": "waltz://h:1", "batchId": "1"}, "batchId needs checkpointLocation"),
        ({"url": "waltz://h:1", "zookeeper": "h:2"}, "both name a cluster"),
    ],
)
def test_options_that_cannot_be_meant_are_explained(options: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        parse_sink_options(options)


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (
            ["partition", "data", "readlocks"],
            "there is no column readlocks in a row of a log; did you mean read_locks?",
        ),
        (["partition"], "rows need the column data"),
        (["data"], "one of the columns partition"),
        (["partition", "key", "data"], "one of the columns partition"),
        (["key", "data", "write_locks"], "locks are checked with mode=conditional only"),
    ],
)
def test_columns_that_cannot_be_meant_are_explained(names: list[str], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        check_columns(names, parse_sink_options({"url": "waltz://h:1"}))


def test_the_state_tells_where_each_batch_begins(tmp_path: Path) -> None:
    state = SinkState(f"file:{tmp_path}")
    assert not state.begun()
    start = state.begin("bank", (3, -1))
    assert SinkState(str(tmp_path)).begin("bank", (9, 9)) == start, "only the first call counts"
    assert state.base(0) == (3, -1)
    state.finish(0, {1: 5}, {})
    assert (state.finished(0), state.finished(1), state.base(0), state.base(1)) == (True, False, (3, -1), (3, 5))
    state.finish(0, {1: 99}, {})
    assert state.base(1) == (3, 5)
    state.finish(2, {0: 8}, {"one.parquet": b"rows"})
    target = tmp_path / "rejects"
    for _ in range(2):
        state.publish_rejects(2, str(target))
    assert (target / "one.parquet").read_bytes() == b"rows"
    assert state.base(7) == (8, 5)
    with pytest.raises(WrongClusterError, match="belongs to cluster bank, not to other"):
        state.begin("other", (3, -1))


def test_the_state_forgets_what_is_long_done(tmp_path: Path) -> None:
    state = SinkState(str(tmp_path), kept=3)
    state.begin("bank", (-1,))
    assert state.latest() == -1
    for batch in range(8):
        state.finish(batch, {0: batch}, {"old.parquet": b"rows"} if batch == 1 else {})
        state.publish_rejects(batch, None)
    kept = sorted(int(path.stem) for path in (tmp_path / "waltz-sink" / "batches").iterdir())
    assert kept == [5, 6, 7]
    assert list((tmp_path / "waltz-sink" / "rejects").iterdir()) == []
    assert (state.latest(), state.base(8)) == (7, (7,))


async def test_batches_are_numbered_upward(tmp_path: Path) -> None:
    async with embedded_cluster(tmp_path / "c", partitions=1, storage_nodes=1) as cluster:
        values = {"url": cluster.url, "checkpointLocation": str(tmp_path / "done")}
        job, finished = await outside(lambda: plan_job({**values, "batchId": "4"}, ["partition", "data"]))
        assert not finished
        await outside(lambda: finish_job(job, []))
        assert (await outside(lambda: plan_job({**values, "batchId": "4"}, ["partition", "data"])))[1]
        with pytest.raises(OptionError, match="batchId 3: batch 4 is finished already; numbers have to grow"):
            await outside(lambda: plan_job({**values, "batchId": "3"}, ["partition", "data"]))


# ---- the end of a batch, and the beginning of a sink ----------------------------------------------


def plan(cluster: EmbeddedCluster, checkpoint: Path, batch: int = 0) -> Job:
    values = {"url": cluster.url, "checkpointLocation": str(checkpoint), "batchId": str(batch)}
    job, finished = plan_job(values, ["partition", "data"])
    assert not finished
    return job


def row(partition: int, data: bytes) -> Iterator[Any]:
    return table([{"partition": partition, "data": data}])


@pytest.mark.parametrize("kept", [True, False])
async def test_a_row_that_moved_to_another_partition_is_told_when_the_batch_ends(tmp_path: Path, kept: bool) -> None:
    async with embedded_cluster(tmp_path / "c", partitions=3, storage_nodes=1) as cluster:
        job = await outside(lambda: plan(cluster, tmp_path / "done") if kept else job_of(cluster))
        await outside(lambda: write_batches(row(0, b"a"), job, 0, "killed before the batch was finished"))
        result = await outside(lambda: write_batches(row(1, b"a"), job, 0, "b"))
        with pytest.raises(DifferentRowsError, match="partition 0: an earlier attempt at this batch wrote 1 rows"):
            await outside(lambda: finish_job(job, [result]))
        if kept:
            assert not SinkState(str(tmp_path / "done")).finished(0)


async def test_a_batch_ends_behind_what_others_appended_to_partitions_without_rows(tmp_path: Path) -> None:
    """Nor does it take a marker there, where no attempt of the sink can have been."""
    async with (
        embedded_cluster(tmp_path / "c", partitions=3, storage_nodes=1) as cluster,
        waltz.open_client(cluster.url) as client,
    ):
        job = await outside(lambda: plan(cluster, tmp_path / "done"))
        for at in range(5):
            await client.append(1, waltz.Append(b"%d" % at, write=[("account", at)]), based_on=-1)
        result = await outside(lambda: write_batches(row(0, b"a"), job, 0, "a"))
        await outside(lambda: finish_job(job, [result]))
        assert SinkState(str(tmp_path / "done")).base(1) == (1, 4, -1)
        assert [await client.committed_mark(partition) for partition in range(3)] == [1, 4, -1]


async def test_an_attempt_that_wrote_no_row_is_fenced_when_the_batch_ends(tmp_path: Path) -> None:
    """Its marker is in the log, and its row may still be on its way."""
    async with embedded_cluster(tmp_path / "c", partitions=2, storage_nodes=1) as cluster:
        job = await outside(lambda: plan(cluster, tmp_path / "done"))
        marked, go_on = threading.Event(), threading.Event()
        send_many = waltz.Client.send_many

        async def late(client: waltz.Client, *arguments: Any, **based_on: Any) -> Any:
            if arguments[0] == 0:
                marked.set()
                await trio.to_thread.run_sync(go_on.wait, 60)
            return await send_many(client, *arguments, **based_on)

        failures: list[BaseException] = []

        def zombie() -> None:
            try:
                write_batches(row(0, b"a"), job, 0, "zombie")
            except Exception as error:
                failures.append(error)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(waltz.Client, "send_many", late)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, zombie)
                await outside(lambda: marked.wait(60))
                result = await outside(lambda: write_batches(row(1, b"a"), job, 0, "heir"))
                await outside(lambda: finish_job(job, [result]))
                go_on.set()
        assert [type(error) for error in failures] == [FencedError]
        assert await read_all(cluster, 0) == []
        assert SinkState(str(tmp_path / "done")).base(1) == (1, 1)


async def test_the_end_of_a_batch_waits_for_no_partition_without_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with embedded_cluster(tmp_path / "c", partitions=2, storage_nodes=1) as cluster:
        values = {"url": cluster.url, "checkpointLocation": str(tmp_path / "done"), "requestTimeoutMs": "700"}
        job, _ = await outside(lambda: plan_job({**values, "batchId": "0"}, ["partition", "data"]))
        result = await outside(lambda: write_batches(row(0, b"a"), job, 0, "a"))
        mark = waltz.Client.committed_mark

        async def half(client: waltz.Client, partition: int) -> int:
            if partition:
                await trio.sleep_forever()
            return await mark(client, partition)

        monkeypatch.setattr(waltz.Client, "committed_mark", half)
        await outside(lambda: finish_job(job, [result]))
        assert SinkState(str(tmp_path / "done")).base(1) == (1, -1)


async def test_a_sink_outlives_what_the_storage_nodes_give_up(tmp_path: Path) -> None:
    """Its batches have rows in one partition; of the other one, others' records are archived and freed."""
    async with embedded_cluster(tmp_path / "c", partitions=2, storage_nodes=1) as cluster:
        first = await outside(lambda: plan(cluster, tmp_path / "done"))
        async with waltz.open_client(cluster.url) as client:
            for _ in range(9):
                await client.append(1, waltz.Append(b"of another"))
        result = await outside(lambda: write_batches(row(0, b"a"), first, 0, "a"))
        await outside(lambda: finish_job(first, [result]))
        tls = cluster.directory / "tls"
        certificate = {"ssl.certificate": str(tls / "node.pem"), "ssl.key": str(tls / "node.key")}

        def free() -> int:
            with closing(Cluster(parse_options({"url": cluster.url, **certificate}))) as asked:
                return asked.raise_log_start(1, 5, 30)

        assert await outside(free) == 5
        second = await outside(lambda: plan(cluster, tmp_path / "done", 1))
        result = await outside(lambda: write_batches(row(1, b"b"), second, 0, "a"))
        assert result.partitions[0].appended == 1
        late = attrs.evolve(second, batch=2, marks=first.marks)  # as of a checkpoint of an earlier version
        with pytest.raises(LogStartError, match=r"partition 1: whether an earlier attempt .*the log begins at 5"):
            await outside(lambda: write_batches(row(1, b"c"), late, 0, "a"))
        await outside(lambda: finish_job(late, []))
        assert SinkState(str(tmp_path / "done")).base(3)[1] > 9


async def test_a_stream_finds_out_that_its_checkpoint_is_of_another_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same name, and with as many partitions: a cluster that was made anew."""
    checkpoint = str(tmp_path / "done")
    monkeypatch.setattr(jobs, "_checked", set())

    def options(url: str) -> Any:
        return parse_sink_options({"url": url, "checkpointLocation": checkpoint})

    async with embedded_cluster(tmp_path / "one", partitions=1, storage_nodes=1) as cluster:
        found = options(cluster.url)
        await outside(lambda: check_stream(found))
        job = await outside(lambda: stream_job(found, 0))
        assert job is not None
        result = await outside(lambda: write_batches(row(0, b"a"), job, 0, "a"))
        await outside(lambda: finish_job(job, [result]))
        monkeypatch.setattr(jobs, "_checked", set())
        await outside(lambda: check_stream(found))
    async with embedded_cluster(tmp_path / "two", partitions=1, storage_nodes=1) as cluster:
        with pytest.raises(WrongClusterError, match="waltz dev with another key, not to waltz dev"):
            await outside(lambda: check_stream(options(cluster.url)))
        start = tmp_path / "done" / "waltz-sink" / "start.json"
        content = json.loads(start.read_text())
        assert str(cluster.key) not in start.read_text()
        del content["key"]  # as an earlier version wrote it
        start.write_text(json.dumps(content))
        with pytest.raises(WentBackError, match="partition 0: was read up to id 1, but the log now ends at -1"):
            await outside(lambda: check_stream(options(cluster.url)))
        later = await outside(lambda: stream_job(options(cluster.url), 1))
        assert later is not None
        other = attrs.evolve(later, cluster="another name")
        with pytest.raises(WrongClusterError, match="belongs to cluster another name, not to waltz dev"):
            await outside(lambda: write_batches(row(0, b"b"), other, 0, "a"))


# ---- how much work it is --------------------------------------------------------------------------


def test_finished_batches_are_asked_for_once_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = SinkState(str(tmp_path))
    state.begin("bank", (-1,))
    for batch in range(5):
        state.finish(batch, {0: batch}, {})
    asked: list[str] = []
    find, names = LocalStore.find, LocalStore.names

    def asked_for(store: LocalStore, name: str, *size: int) -> bytes | None:
        asked.append(name)
        return find(store, name, *size)

    def asked_about(store: LocalStore, folder: str) -> list[str]:
        asked.append(folder)
        return names(store, folder)

    monkeypatch.setattr(LocalStore, "find", asked_for)
    monkeypatch.setattr(LocalStore, "names", asked_about)
    for _ in range(7):  # as the tasks of batch 5 do, each with an object of its own
        task = SinkState(str(tmp_path))
        assert (task.start().marks, task.finished(4), task.base(5)) == ((-1,), True, (4,))
    assert Counter(asked) == {"start.json": 7, f"batches/{4:019d}.json": 1}


def test_a_checkpoint_that_was_removed_and_begun_again_is_another_sink(tmp_path: Path) -> None:
    state = SinkState(str(tmp_path))
    state.begin("bank", (-1,))
    state.finish(0, {0: 9}, {})
    assert SinkState(str(tmp_path)).finished(0)
    shutil.rmtree(tmp_path / "waltz-sink")
    again = SinkState(str(tmp_path))
    again.begin("bank", (20,))
    assert (again.finished(0), again.base(0)) == (False, (20,))


async def test_waiting_for_rows_shares_one_scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: Counter[str] = Counter()

    class Counting:
        """Trio, as `writing` sees it."""

        def __getattr__(self, name: str) -> Any:
            made.update([name])
            return getattr(trio, name)

    counts = []
    async with embedded_cluster(tmp_path, partitions=1, storage_nodes=1) as cluster:
        for count in (10, 1000):
            job = await outside(lambda: job_of(cluster))
            monkeypatch.setattr(writing, "trio", Counting())
            made.clear()
            await outside(partial(write_batches, table(numbered(count, 1)), job, 0, "a"))
            counts.append(made["CancelScope"] + made["move_on_after"])
            monkeypatch.undo()
    assert counts[0] == counts[1], "scopes do not grow with the rows"

"""The sink in a real Spark session, into a cluster of its own: exactly once, batch and stream."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import waltz_trio as waltz
from tests.processes.cluster import poll
from tests.spark.conftest import ROOT
from tests.spark.logs import make_log, random_payloads
from tests.spark.running import PARTITIONS, Log
from waltz_spark.base.errors import FencedError
from waltz_spark.write.arranging import arrange
from waltz_spark.write.sink_options import parse_sink_options
from waltz_spark.write.sink_state import SinkState
from waltz_spark.write.writing import Job, write_batches

pytestmark = pytest.mark.filterwarnings("ignore")

KILLS = int(os.environ.get("WALTZ_SINK_KILLS", "1"))


def frame(spark: Any, count: int, tasks: int = 3) -> Any:
    rows = spark.range(0, count, 1, tasks)
    return rows.selectExpr(f"cast(id % {PARTITIONS} as int) partition", "cast(cast(id as string) as binary) data")


def expected(count: int) -> Counter[tuple[int, bytes]]:
    return Counter((at % PARTITIONS, b"%d" % at) for at in range(count))


def write(rows: Any, url: str, **options: object) -> None:
    rows.write.format("waltz").options(url=url, **options).mode("append").save()


def test_a_frame_is_appended_once(spark: Any, log: Log) -> None:
    write(arrange(frame(spark, 300)), log.url)
    assert log.rows() == expected(300)


def test_rows_go_to_the_partition_of_their_key(spark: Any, log: Log) -> None:
    keys = spark.range(0, 40, 1, 4).selectExpr("concat('key ', id) key", "concat('key ', id) data")
    write(arrange(keys, url=log.url), log.url)

    async def place(client: waltz.Client) -> Counter[tuple[int, bytes]]:
        return Counter((client.partition_of(f"key {at}"), f"key {at}".encode()) for at in range(40))

    assert log.rows() == log._with_client(place)


def test_a_job_of_a_batch_number_is_done_once(spark: Any, log: Log, tmp_path: Path) -> None:
    for _ in range(2):
        write(arrange(frame(spark, 50)), log.url, checkpointLocation=str(tmp_path), batchId=0)
    assert log.rows() == expected(50)
    write(arrange(frame(spark, 50)), log.url, checkpointLocation=str(tmp_path), batchId=1)
    assert log.rows() == expected(50) + expected(50)


def test_a_worker_killed_in_the_middle_of_its_rows_is_replaced(spark: Any, log: Log, tmp_path: Path) -> None:
    flag = str(tmp_path / "flag")

    def deadly(batches: Iterator[Any]) -> Iterator[Any]:
        for at, batch in enumerate(batches):
            yield batch
            if at == 2 and not os.path.exists(flag):
                with open(flag, "w") as file:
                    file.write(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGKILL)

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    try:
        rows = arrange(frame(spark, 6000))
        write(rows.mapInArrow(deadly, rows.schema), log.url)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert Path(flag).exists()
    assert log.rows() == expected(6000)


def test_rows_in_conflict_with_a_live_client_are_in_the_rejects(spark: Any, log: Log, tmp_path: Path) -> None:
    marks = log.marks
    taken = log.append(0, waltz.Append(b"live", write=[("account", 4)]), marks[0])
    rows = frame(spark, 12).selectExpr(
        "*", "array(named_struct('name', 'account', 'id', cast(cast(data as string) as bigint))) write_locks"
    )
    cut = ", ".join(f'"{partition}": {mark + 1}' for partition, mark in enumerate(marks))
    more = {"mode": "conditional", "rejects": str(tmp_path / "rejects"), "cut": f"{{{cut}}}"}
    write(arrange(rows), log.url, **more)
    refused = spark.read.parquet(str(tmp_path / "rejects")).collect()
    assert [(row.data, row.blocking_transaction_id) for row in refused] == [(b"4", taken)]
    assert log.rows() == expected(12) - Counter({(0, b"4"): 1}) + Counter({(0, b"live"): 1})


def test_two_tasks_with_rows_of_one_partition_are_told_what_to_do(spark: Any, log: Log) -> None:
    rows = spark.range(0, 200, 1, 2).selectExpr("0 partition", "cast(cast(id as string) as binary) data")

    def slow(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for at in range(0, batch.num_rows, 10):
                time.sleep(0.05)
                yield batch.slice(at, 10)

    with pytest.raises(Exception, match=r"bring the rows of a partition together: waltz_spark\.arrange"):
        write(rows.mapInArrow(slow, rows.schema), log.url, arranged="true")
    assert max(log.rows().values()) == 1


def test_options_are_checked_before_anything_is_written(spark: Any, log: Log) -> None:
    with pytest.raises(Exception, match="unknown option mod; did you mean mode"):
        write(frame(spark, 5), log.url, mod="append")
    with pytest.raises(Exception, match="there is no column dat in a row of a log; did you mean data"):
        write(frame(spark, 5).withColumnRenamed("data", "dat"), log.url)
    with pytest.raises(Exception, match="only ever appended to"):
        frame(spark, 5).write.format("waltz").options(url=log.url).mode("overwrite").save()
    assert not log.rows()


# ---- streams


def stream(spark: Any, directory: Path, url: str, checkpoint: Path, **options: object) -> Any:
    """Copies a log, all of its partitions into the same ones of another."""
    source = spark.readStream.format("waltz").options(directory=str(directory), **options).load()
    rows = arrange(source.select("partition", "data"))
    writer = rows.writeStream.format("waltz").options(url=url, checkpointLocation=str(checkpoint))
    return writer.trigger(availableNow=True).start()


def contents(payloads: list[list[bytes]]) -> Counter[tuple[int, bytes]]:
    return Counter((partition, data) for partition, found in enumerate(payloads) for data in found)


def forget_last(folder: Path) -> None:
    """As if the driver had been killed before it wrote the newest file."""
    last = max(path for path in folder.iterdir() if not path.name.startswith("."))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


@pytest.mark.slow
def test_a_stream_is_written_exactly_once_over_restarts(spark: Any, log: Log, tmp_path: Path) -> None:
    payloads = [random_payloads(300), random_payloads(150, seed=1)]
    make_log(tmp_path / "log", payloads)
    checkpoint = tmp_path / "checkpoint"
    stream(spark, tmp_path / "log", log.url, checkpoint, maxTransactionsPerTrigger=250).awaitTermination()
    assert log.rows() == contents(payloads)
    batches = checkpoint / "waltz-sink" / "batches"
    assert len(list(batches.iterdir())) >= 2
    # Neither Spark nor the sink noted the last batch: it is written again, and every row is found.
    forget_last(checkpoint / "commits")
    forget_last(batches)
    stream(spark, tmp_path / "log", log.url, checkpoint).awaitTermination()
    assert log.rows() == contents(payloads)
    # Spark did not note it, the sink did; there is more to write behind it.
    forget_last(checkpoint / "commits")
    payloads[0] += random_payloads(80, seed=2)
    make_log(tmp_path / "log", payloads)
    stream(spark, tmp_path / "log", log.url, checkpoint).awaitTermination()
    assert log.rows() == contents(payloads)
    # A worker of the first batch wakes up.
    start = SinkState(str(checkpoint)).start()
    job = Job(parse_sink_options({"url": log.url}), start.sink, 0, start.marks)
    late = pa.RecordBatch.from_pydict({"partition": pa.array([0], pa.int32()), "data": [b"from another life"]})
    with pytest.raises(FencedError):
        write_batches(iter([late]), job, 0, "zombie")
    assert log.rows() == contents(payloads)


@pytest.mark.slow
def test_a_driver_killed_with_all_its_workers_writes_each_row_once(spark: Any, log: Log, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    rng = random.Random(seed)
    payloads = [random_payloads(3000), random_payloads(1000, seed=1)]
    make_log(tmp_path / "log", payloads)
    done = tmp_path / "checkpoint" / "waltz-sink" / "batches"
    command = [sys.executable, "-m", "tests.spark.driver", str(tmp_path / "log"), str(tmp_path), "200", log.url]
    killed = 0
    for _ in range(KILLS):
        before = len(list(done.glob("*"))) if done.exists() else 0
        wanted = before + rng.randrange(1, 5)
        with (tmp_path / "output").open("wb") as output:
            driver = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=output, stderr=output)
            try:
                poll(
                    "some batches",
                    lambda wanted=wanted: done.exists() and len(list(done.glob("*"))) >= wanted,  # type: ignore[misc]
                    patience=240,
                )
                time.sleep(rng.random())  # to be somewhere within a batch
                killed += driver.poll() is None
            finally:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
    assert killed, (tmp_path / "output").read_text()
    stream(spark, tmp_path / "log", log.url, tmp_path / "checkpoint").awaitTermination()
    found = log.rows()
    assert found == contents(payloads), seed

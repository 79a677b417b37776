"""What only a real Spark session can show: registration, pushdown on and off, streams, restarts, killed workers."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.processes.cluster import poll
from tests.spark.conftest import ROOT
from tests.spark.logs import make_log, random_payloads
from waltz_spark.archive.archive import plan_archive, plan_verification, run_archive, run_verification
from waltz_spark.archive.restore import restore
from waltz_spark.base.errors import UnreachableError
from waltz_spark.base.runners import OnSpark
from waltz_spark.read.options import parse_options

pytestmark = pytest.mark.filterwarnings("ignore")

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
COUNTS = (3000, 0, 1700)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("log")
    make_log(directory, [random_payloads(count, seed=at) for at, count in enumerate(COUNTS)], threshold=40_000)
    return str(directory)


def read(spark: Any, log: str, **options: object) -> Any:
    return spark.read.format("waltz").options(directory=log, batchRows=500, **options).load()


def ids(frame: Any) -> list[tuple[int, int]]:
    return [
        tuple(row)
        for row in frame.select("partition", "transaction_id").orderBy("partition", "transaction_id").collect()
    ]


def all_ids(*counts: int) -> list[tuple[int, int]]:
    return [(partition, at) for partition, count in enumerate(counts) for at in range(count)]


def test_the_format_is_found_without_registration_and_reads_the_whole_log(spark: Any, log: str) -> None:
    frame = read(spark, log, minPartitions=4)
    assert ids(frame) == all_ids(*COUNTS)
    row = frame.selectExpr("bool_and(crc32(data) = (checksum & 4294967295))", "bool_and(length = length(data))").first()
    assert tuple(row) == (True, True)


def test_a_view_can_be_made_in_sql(spark: Any, log: str) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW ledger USING waltz OPTIONS (directory '{log}', columns 'partition,header')"
    )
    assert spark.sql("SELECT count(*) FROM ledger WHERE partition = 2").first()[0] == COUNTS[2]


@pytest.mark.parametrize("on", ["true", "false"])
def test_filters_give_the_same_rows_whether_they_are_pushed_or_not(spark: Any, log: str, on: str) -> None:
    spark.conf.set(PUSHDOWN, on)
    try:
        frame = read(spark, log).where("partition = 2 AND transaction_id BETWEEN 40 AND 90 AND header = 1")
        assert ids(frame) == [(2, at) for at in range(40, 91) if at % 5 - 2 == 1]
    finally:
        spark.conf.set(PUSHDOWN, "true")


def test_a_consumer_may_stop_early(spark: Any, log: str) -> None:
    assert len(read(spark, log).limit(3).collect()) == 3
    assert read(spark, log).count() == sum(COUNTS)


def test_an_unknown_option_is_refused_with_the_nearest_one(spark: Any, log: str) -> None:
    with pytest.raises(Exception, match="unknown option batchrow; did you mean batchRows"):
        spark.read.format("waltz").options(directory=log, batchRow=5).load()


def test_damage_fails_the_job_with_partition_id_and_file(spark: Any, tmp_path: Path) -> None:
    make_log(tmp_path, [[b"x" * 30] * 80])
    path = tmp_path / "0" / "0000000000000000000.seg"
    data = bytearray(path.read_bytes())
    data[128 + 70 * 33 + 50] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        Exception, match=rf"partition 0, transaction \d+, {path}: the checksum of the record does not match"
    ):
        read(spark, str(tmp_path)).count()


def test_a_killed_worker_is_replaced_and_no_row_is_lost_or_doubled(spark: Any, tmp_path: Path) -> None:
    payloads = random_payloads(2000)
    payloads[1500] = f"deadly={tmp_path / 'flag'}".encode()
    make_log(tmp_path / "log", [payloads])
    frame = read(spark, str(tmp_path / "log"), codec="tests.spark.deadly:KillOnce")
    assert ids(frame) == all_ids(2000)
    assert (tmp_path / "flag").exists()


# ---- streams


def stream(spark: Any, log: str, target: Path, **options: object) -> Any:
    source = spark.readStream.format("waltz").options(directory=log, **options).load()
    writer = source.writeStream.format("parquet").option("checkpointLocation", str(target / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(target / "table"))
    query.awaitTermination()
    return query


@pytest.mark.slow
def test_a_stream_is_stored_exactly_once_over_restarts(spark: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    make_log(log, [random_payloads(500), random_payloads(200)])
    query = stream(spark, str(log), tmp_path, maxTransactionsPerTrigger=300)
    batches = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    assert batches == [300, 300, 100]
    make_log(log, [random_payloads(650), random_payloads(200)])
    stream(spark, str(log), tmp_path)
    assert ids(spark.read.parquet(str(tmp_path / "table"))) == all_ids(650, 200)


def test_a_stream_that_starts_at_the_end_gets_what_comes_later(spark: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    make_log(log, [random_payloads(50)])
    stream(spark, str(log), tmp_path, startingOffsets="latest")
    make_log(log, [random_payloads(60)])
    stream(spark, str(log), tmp_path, startingOffsets="latest")
    assert ids(spark.read.parquet(str(tmp_path / "table"))) == [(0, at) for at in range(50, 60)]


def test_a_log_that_went_back_stops_the_query(spark: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    make_log(log, [random_payloads(50)])
    stream(spark, str(log), tmp_path)
    make_log(log, [random_payloads(40)])
    with pytest.raises(Exception, match="was read up to id 49, but the log now ends at 39"):
        stream(spark, str(log), tmp_path)


def test_a_reader_is_planned_again_for_every_query_and_leaves_nothing_open(spark: Any, log: str) -> None:
    frame = read(spark, log, partitions="2", cut='{"2": 10}')
    assert [frame.count() for _ in range(3)] == [10, 10, 10]


@pytest.mark.slow
def test_executors_archive_verify_and_restore(spark: Any, log: str, tmp_path: Path) -> None:
    root, again, runner = str(tmp_path / "archive"), tmp_path / "again", OnSpark(spark)
    seen: list[tuple[int, int]] = []
    options = parse_options({"directory": log})
    run_archive(plan_archive(options, root, range_count=1000), runner, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (4700, 4700)
    verdicts = run_verification(plan_verification(root, [log]), runner)
    assert [(verdict.compared, verdict.problems) for verdict in verdicts] == [(1, ())] * 5
    restore(root, again, runner)
    for partition in ("0", "2"):
        for path in (Path(log) / partition).iterdir():
            assert (again / partition / path.name).read_bytes() == path.read_bytes()
    table = spark.read.parquet(f"{root}/data")
    assert ids(table) == all_ids(*COUNTS)
    assert ids(spark.read.format("waltz").option("archive", root).load()) == all_ids(*COUNTS)


def test_a_failure_in_an_executor_arrives_as_it_was(spark: Any, tmp_path: Path) -> None:
    make_log(tmp_path / "log", [random_payloads(100)])
    plan = plan_archive(parse_options({"directory": str(tmp_path / "log")}), str(tmp_path / "archive"))
    (tmp_path / "log" / "0" / "0000000000000000000.seg").unlink()
    with pytest.raises(UnreachableError, match="No such file"):
        run_archive(plan, OnSpark(spark))


@pytest.mark.slow
def test_a_driver_killed_with_all_its_workers_loses_and_doubles_nothing(spark: Any, tmp_path: Path) -> None:
    rng = random.Random()
    log, commits = tmp_path / "log", tmp_path / "checkpoint" / "commits"
    make_log(log, [random_payloads(3000), random_payloads(1000)])
    batches = rng.randrange(2, 6)
    command = [sys.executable, "-m", "tests.spark.driver", str(log), str(tmp_path), "200"]
    with (tmp_path / "output").open("wb") as output:
        driver = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=output, stderr=output)
        try:
            poll(
                "some batches", lambda: commits.exists() and len(list(commits.glob("[0-9]*"))) >= batches, patience=240
            )
            time.sleep(rng.random() / 5)  # to be somewhere within a batch
            assert driver.poll() is None, (tmp_path / "output").read_text()
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    before = len(list(commits.glob("[0-9]*")))
    assert before < 20
    stream(spark, str(log), tmp_path)
    assert ids(spark.read.parquet(str(tmp_path / "table"))) == all_ids(3000, 1000)

"""`waltz spark sink`: files into a running cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import waltz_trio as waltz
from tests.spark.running import PARTITIONS, Log
from waltz_spark.base.runners import Here, OnSpark
from waltz_spark.write.files import sink_files
from waltz_trio.cli.main import main


def numbered(count: int) -> Counter[tuple[int, bytes]]:
    return Counter((at % PARTITIONS, b"%d" % at) for at in range(count))


def parquet(path: Path, count: int, first: int = 0) -> Path:
    rows = [{"partition": at % PARTITIONS, "data": b"%d" % at} for at in range(first, first + count)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_rows_of_parquet_files_are_appended_once(log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(parquet(tmp_path / "a.parquet", 60)), str(parquet(tmp_path / "b.parquet", 40, first=60))]
    call = ["spark", "sink", *paths, "--url", log.url, "--checkpoint", str(tmp_path / "done")]
    assert main(call) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:3]] == [["0", "50", "0", "0"], ["1", "50", "0", "0"]]
    assert lines[3].startswith("100 rows appended, 0 found from an earlier call, 0 rejected; ")
    assert log.rows() == numbered(100)
    assert main([*call, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["finished_before"]
    next((tmp_path / "done" / "waltz-sink" / "batches").iterdir()).unlink()  # as if it had been killed near its end
    # In a process of its own: this one remembers what has finished.
    again = [sys.executable, "-m", "waltz_trio.cli.main", *call, "--json"]
    report = json.loads(subprocess.run(again, capture_output=True, check=True, timeout=120).stdout)
    assert (report["appended"], report["found"]) == (0, 100)
    assert log.rows() == numbered(100)


def test_a_directory_is_read_by_several_processes(log: Log, tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    parquet(folder / "a.parquet", 30)
    report = sink_files([str(folder)], {"url": log.url}, Here(2), "parquet")
    assert [(one.partition, one.appended) for one in report.partitions] == [(0, 15), (1, 15)]
    assert log.rows() == numbered(30)


def test_rows_of_json_and_csv_files(log: Log, tmp_path: Path) -> None:
    lines = [{"key": f"k{at}", "data": f"{at}", "header": at} for at in range(20)]
    (tmp_path / "rows.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "rows.csv").write_text("partition,data\n" + "".join(f"{at % 2},{at}\n" for at in range(20)))
    assert main(["spark", "sink", str(tmp_path / "rows.json"), "--url", log.url, "--quiet"]) == 0

    async def place(client: waltz.Client) -> Counter[tuple[int, bytes]]:
        return Counter((client.partition_of(f"k{at}"), b"%d" % at) for at in range(20))

    by_key = log._with_client(place)
    assert log.rows() == by_key
    assert main(["spark", "sink", str(tmp_path / "rows.csv"), "--url", log.url]) == 0
    assert log.rows() == by_key + numbered(20)


def test_rejected_rows_have_a_status_of_their_own(log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.append(1, waltz.Append(b"live", write=[("account", 5)]), log.marks[1])
    rows = [{"partition": 1, "data": f"{at}", "write_locks": [{"name": "account", "id": at}]} for at in (4, 5)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cut = json.dumps({str(partition): mark + 1 for partition, mark in enumerate(log.marks)})
    rejects = tmp_path / "rejects"
    call = ["spark", "sink", str(tmp_path / "rows.jsonl"), "--url", log.url, "--mode", "conditional", "--cut", cut]
    assert main([*call, "--rejects", str(rejects)]) == 3
    assert "1 rows appended, 0 found from an earlier call, 1 rejected" in capsys.readouterr().out
    assert [row["data"] for row in pq.read_table(rejects).to_pylist()] == [b"5"]
    assert log.rows() == Counter({(1, b"4"): 1, (1, b"live"): 1})
    assert main(call) == 1
    assert "mode=conditional needs rejects" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["rows.txt"], "of what kind are rows.txt? say parquet, json or csv"),
        (["absent.parquet"], "absent.parquet: cannot be read as parquet"),
        (["{good}", "-o", "requestTimeout=5"], "unknown option requestTimeout; did you mean requestTimeoutMs?"),
        (["{bad}"], "there is no column text in a row of a log"),
    ],
)
def test_a_call_that_cannot_be_meant_is_explained(
    arguments: list[str], problem: str, log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = parquet(tmp_path / "good.parquet", 3)
    bad = tmp_path / "bad.csv"
    bad.write_text("partition,text\n0,x\n")
    filled = [one.format(good=good, bad=bad) for one in arguments]
    assert main(["spark", "sink", *filled, "--url", log.url]) == 1
    assert problem in capsys.readouterr().err
    assert not log.rows()


@pytest.mark.filterwarnings("ignore")
def test_executors_do_the_same(spark: Any, log: Log, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("key,data,header\n" + "".join(f"{at},{at},{at}\n" for at in range(20)))
    values = {"url": log.url, "checkpointLocation": str(tmp_path / "done"), "batchId": "0"}
    report = sink_files([str(tmp_path / "rows.csv")], values, OnSpark(spark))
    assert (report.appended, report.rejected) == (20, 0)

    async def place(client: waltz.Client) -> Counter[tuple[int, bytes]]:
        return Counter((client.partition_of(str(at)), b"%d" % at) for at in range(20))

    assert log.rows() == log._with_client(place)
    assert sink_files([str(tmp_path / "rows.csv")], values, OnSpark(spark)).finished_before

"""`waltz spark sink`: files into a running cluster."""

from __future__ import annotations

import csv
import json
import re
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
from waltz_spark.base.errors import OptionError
from waltz_spark.base.runners import Here, OnSpark
from waltz_spark.write import tables
from waltz_spark.write.files import sink_files
from waltz_trio.cli.main import main

LOCKS = pa.list_(pa.struct([("name", pa.string()), ("id", pa.int64())]))


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


def sink(*arguments: object) -> int:
    return main(["spark", "sink", *map(str, arguments), "--quiet"])


def test_a_checkpoint_is_of_the_files_that_were_written(
    log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monday, tuesday = parquet(tmp_path / "monday.parquet", 6), parquet(tmp_path / "tuesday.parquet", 4, first=6)
    target = ["--url", log.url, "--checkpoint", tmp_path / "done"]
    assert sink(monday, *target) == 0
    for others in ([tuesday], [monday, tuesday]):
        assert sink(*others, *target) == 1
        told = capsys.readouterr().err
        assert re.search(r"had mode append and the files monday.parquet \(.* this one has .*tuesday.parquet \(", told)
    assert sink(monday, *target, "--mode", "at-least-once") == 1
    assert "this one has mode at-least-once" in capsys.readouterr().err
    parquet(monday, 7)
    assert sink(monday, *target) == 1
    parquet(monday, 6)
    (tmp_path / "moved").mkdir()
    moved = monday.rename(tmp_path / "moved" / "monday.parquet")
    assert sink(moved, *target) == 0
    assert sink(tmp_path / "moved", *target, "--format", "parquet") == 0
    assert log.rows() == numbered(6)
    (path,) = (tmp_path / "done" / "waltz-sink" / "batches").iterdir()
    content = json.loads(path.read_text())
    del content["source"]  # as an earlier version wrote it
    path.write_text(json.dumps(content))
    command = [sys.executable, "-m", "waltz_trio.cli.main", "spark", "sink", str(tuesday), *map(str, target)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=120)
    assert b"an earlier call did all of it" in done.stdout


def locked(at: int, account: int | None) -> dict[str, Any]:
    row: dict[str, Any] = {"partition": 1, "data": f"{at}", "header": at}
    if account is not None:
        row["write_locks"] = [{"name": "account", "id": account}]
    return row


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_a_column_of_the_second_file_alone_is_written_too(
    kind: str, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_BLOCK", 5000)
    log.append(1, waltz.Append(b"live", write=[("account", 5)]), log.marks[1])
    plain, with_locks = [locked(1, None)], [locked(at, at) for at in (4, 5)]
    if kind == "json":  # and of a late row, too
        (tmp_path / "a.json").write_text(json.dumps(plain[0]) + "\n")
        late = [*plain * 40_000, *with_locks]
        (tmp_path / "b.json").write_text("\n".join(map(json.dumps, late)))
        written = {(1, b"1"): 40_001}
    else:
        pq.write_table(pa.Table.from_pylist(plain), tmp_path / "a.parquet")
        pq.write_table(pa.Table.from_pylist(with_locks), tmp_path / "b.parquet")
        written = {(1, b"1"): 1}
    cut = json.dumps({str(partition): mark + 1 for partition, mark in enumerate(log.marks)})
    more = ["--mode", "conditional", "--cut", cut, "--rejects", tmp_path / "rejects"]
    assert sink(tmp_path / f"a.{kind}", tmp_path / f"b.{kind}", "--url", log.url, *more) == 3
    assert [row["data"] for row in pq.read_table(tmp_path / "rejects").to_pylist()] == [b"5"]
    assert log.rows() == Counter({**written, (1, b"4"): 1, (1, b"live"): 1})


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"a.csv": "partition,data\n0,x\n", "b.csv": "key,data\n0,x\n"}, r"b.csv lacks the column partition, which "),
        ({"a.json": '{"partition": 0, "data": 7}'}, r"a.json, in the lines from 1 on: .*data"),
        ({"a.json": '{"partition": 0, "data": "x"}\n' * 99 + '{"dat": 1}'}, "no column dat .*did you mean data"),
        ({"a.json": '{"partition": 0, "data": "x", "append_locks": ["account"]}'}, r"a.json, .*append_locks"),
        ({"a.csv": "partition,data,append_locks\n0,x,account\n"}, "column append_locks: expected array.* found string"),
        ({"a.csv": "partition,data\nnowhere,x\n"}, "a.csv: .*nowhere"),
        ({"a.json": '{"key": 1, "data": "x"}', "b.json": '{"key": "1", "data": "x"}'}, "of different types"),
    ],
)
def test_files_that_do_not_go_together_or_cannot_be_rows_are_explained(
    files: dict[str, str], problem: str, log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert sink(*(tmp_path / name for name in files), "--url", log.url) == 1
    told = capsys.readouterr().err
    assert re.search(problem, told), told
    assert not log.rows()


@pytest.mark.parametrize(
    ("column", "values", "problem"),
    [
        ("data", pa.array([5]), "column data: expected binary or string, found int64"),
        ("data", pa.array([{"a": 1}]), "column data: expected binary or string, found struct"),
        ("data", pa.array([5], pa.timestamp("s")), "column data: expected binary or string, found timestamp"),
        ("key", pa.array([5], pa.timestamp("s")), "column key: expected string or bigint, found timestamp"),
        ("header", pa.array([1 << 40]), "column header: expected int, found int64: .* not in range"),
        ("append_locks", pa.array([["account"]]), r"column append_locks: expected array.*, found list<.*string>"),
        ("append_locks", pa.array([[{"name": "account", "id": None}]], LOCKS), "a lock has no name or no id"),
        ("append_locks", pa.array([[None]], LOCKS), "a lock has no name or no id"),
    ],
)
def test_values_of_types_that_no_row_has_are_explained(
    column: str, values: Any, problem: str, log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {"partition": pa.array([0]), "data": pa.array(["x"]), column: values}
    if column == "key":
        del columns["partition"]
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    assert sink(tmp_path / "rows.parquet", "--url", log.url) == 1
    told = capsys.readouterr().err
    assert re.search(problem, told), told
    assert not log.rows()


def test_text_that_looks_like_a_date_or_a_number_is_text(log: Log, tmp_path: Path) -> None:
    days = ["2024-01-01", "2024-01-02"]
    (tmp_path / "rows.json").write_text("".join(json.dumps({"key": day, "data": day}) + "\n" for day in days))
    assert sink(tmp_path / "rows.json", "--url", log.url) == 0

    async def place(client: waltz.Client) -> Counter[tuple[int, bytes]]:
        return Counter((client.partition_of(day), day.encode()) for day in days)

    assert log.rows() == log._with_client(place)


FIELDS = ['with "quotes"', "", "two\nlines", "a\\backslash", 'a\\"both', "007", "2024-01-01", " blanks ", "NULL", "a,b"]


def fields(path: Path) -> Path:
    with path.open("w", newline="") as file:
        rows = csv.writer(file, quoting=csv.QUOTE_ALL)
        rows.writerow(["data", "partition"])
        rows.writerows([[field, "0"] for field in FIELDS])
        file.write(",0\n")  # and an empty field without quotes
    return path


def test_fields_of_csv_are_written_as_they_are(log: Log, tmp_path: Path) -> None:
    assert sink(fields(tmp_path / "rows.csv"), "--url", log.url) == 0
    assert log.rows() == Counter((0, field.encode()) for field in [*FIELDS, ""])


@pytest.mark.filterwarnings("ignore")
def test_executors_write_the_same_fields_of_csv(spark: Any, log: Log, tmp_path: Path) -> None:
    sink_files([str(fields(tmp_path / "rows.csv"))], {"url": log.url}, OnSpark(spark))
    assert log.rows() == Counter((0, field.encode()) for field in [*FIELDS, ""])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_executors_take_the_columns_of_all_files(kind: str, spark: Any, log: Log, tmp_path: Path) -> None:
    if kind == "csv":
        (tmp_path / "a.csv").write_text("partition,data\n0,1\n")
        (tmp_path / "b.csv").write_text("header,data,partition\n7,2,1\n")
    else:
        pq.write_table(pa.Table.from_pylist([{"partition": 0, "data": "1"}]), tmp_path / "a.parquet")
        pq.write_table(pa.Table.from_pylist([{"header": 7, "data": "2", "partition": 1}]), tmp_path / "b.parquet")
    sink_files([str(tmp_path / f"{name}.{kind}") for name in "ab"], {"url": log.url}, OnSpark(spark))
    assert log.rows() == Counter({(0, b"1"): 1, (1, b"2"): 1})
    (tmp_path / "bad.json").write_text('{"partition": 0, "data": 7}\n')
    with pytest.raises(OptionError, match="column data: expected binary or string, found int64"):
        sink_files([str(tmp_path / "bad.json")], {"url": log.url}, OnSpark(spark))


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

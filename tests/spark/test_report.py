"""The report of a log: counts that are those of the records, a page that needs nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.spark.logs import CREATED_MS, make_log, random_payloads
from waltz_core.base.ids import req_client
from waltz_spark.audit.load import measure
from waltz_spark.audit.report import load_page, size_class
from waltz_spark.base.errors import OptionError, RecordDamagedError
from waltz_spark.base.runners import Here, OnSpark
from waltz_spark.read.options import parse_options
from waltz_trio.cli.main import main as waltz


def test_counts_are_those_of_the_records(tmp_path: Path) -> None:
    payloads = [[b"", b"x", b"xy", b"x" * 1000], random_payloads(500, seed=3)]
    logs = make_log(tmp_path, payloads, threshold=4000)

    load = measure(parse_options({"directory": str(tmp_path)}), Here())

    assert [one.count for one in load.partitions] == [4, 500]
    assert load.size == sum(40 + len(one.data) for log in logs for one in log)
    assert load.largest == 1000
    lengths = [len(one.data) for log in logs for one in log]
    assert {at: count for at, count in enumerate(load.size_classes) if count} == {
        digits: sum(length.bit_length() == digits for length in lengths)
        for digits in {length.bit_length() for length in lengths}
    }
    clients = [req_client(one.req_id) for log in logs for one in log]
    assert dict(load.clients) == {client: clients.count(client) for client in set(clients)}
    headers = [one.header for log in logs for one in log]
    assert dict(load.headers) == {header: headers.count(header) for header in set(headers)}
    assert load.others == 0
    assert 0 < load.compressed < load.sample == load.size


def test_growth_follows_the_segments(tmp_path: Path) -> None:
    make_log(tmp_path, [[b"x" * 100] * 100], threshold=4000)
    growth = measure(parse_options({"directory": str(tmp_path)}), Here()).growth
    assert len(growth) > 2
    assert growth[0].size == growth[0].count == 0
    assert all(one.at_ms == CREATED_MS for one in growth)
    assert all(one.size == 140 * one.count for one in growth)


def test_spark_counts_the_same(spark: Any, tmp_path: Path) -> None:
    make_log(tmp_path, [random_payloads(300, seed=one) for one in range(3)], threshold=3000)
    options = parse_options({"directory": str(tmp_path)})
    here, there = measure(options, Here()), measure(options, OnSpark(spark, 2))
    assert (here.partitions, here.size_classes, dict(here.clients)) == (
        there.partitions,
        there.size_classes,
        dict(there.clients),
    )


def test_the_page_is_whole_and_needs_nothing_from_outside(tmp_path: Path) -> None:
    make_log(tmp_path, [random_payloads(50), random_payloads(70)], threshold=2000)
    load = measure(parse_options({"directory": str(tmp_path)}), Here())
    page = load_page(load, ["<a place>"])
    assert "&lt;a place&gt;" in page
    assert "120 records" in page
    for outside in ("http://localhost", "src=", "<script", "@import"):
        assert outside not in page
    pictures = page.split("<figure>")[1:]
    assert len(pictures) == 3
    for one in pictures:
        ElementTree.fromstring(one[: one.index("</svg>") + 6])


def test_the_command_shows_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_log(tmp_path / "log", [random_payloads(50)])
    page = tmp_path / "report.html"
    assert waltz(["spark", "report", "--directory", str(tmp_path / "log"), "--html", str(page), "--jobs", "1"]) == 0
    text = capsys.readouterr().out
    assert "50 records" in text
    assert str(page) in text
    assert page.read_text().startswith("<!doctype html>")
    assert waltz(["spark", "report", "--directory", str(tmp_path / "log"), "--json", "--jobs", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 50


def test_an_empty_log_is_no_report(tmp_path: Path) -> None:
    make_log(tmp_path, [[]])
    with pytest.raises(OptionError, match="no record to report of"):
        measure(parse_options({"directory": str(tmp_path)}), Here())


def test_a_damaged_record_stops_it(tmp_path: Path) -> None:
    make_log(tmp_path, [random_payloads(50)])
    path = next((tmp_path / "0").glob("*.seg"))
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    with pytest.raises(RecordDamagedError):
        measure(parse_options({"directory": str(tmp_path)}), Here())


def test_size_classes_meet_without_a_gap() -> None:
    assert [size_class(at) for at in (0, 1, 2, 3, 11)] == ["0", "1", "2 – 3", "4 – 7", "1K – 2K"]

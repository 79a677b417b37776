"""What is refused is refused while a query is planned, in one line, before a row is written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import ROOT
from tests.spark.logs import make_log, write_control
from tests.spark.running import PARTITIONS, Log
from tests.spark.test_sink import frame, write
from waltz_spark.read.options import parse_options
from waltz_spark.spark.refusals import in_one_line
from waltz_spark.spark.source import BatchReader
from waltz_spark.write.arranging import arrange

pytestmark = pytest.mark.filterwarnings("ignore")


def refusal(work: Any) -> str:
    """What Spark says, without its own code in front and behind."""
    with pytest.raises(Exception) as found:
        work()
    (line,) = str(found.value).replace("\n SQLSTATE: 38000", "").strip().splitlines()
    return line


def test_a_misspelt_option_is_one_line(spark: Any, tmp_path: Path) -> None:
    read = spark.read.format("waltz")
    for work in (
        lambda: read.option("directry", "x").load(),
        lambda: spark.readStream.format("waltz").option("directry", "x").load(),
        lambda: spark.sql("CREATE TEMPORARY VIEW v USING waltz OPTIONS (directry 'x')"),
    ):
        assert refusal(work).endswith("OptionError: unknown option directry; did you mean directory?")
    line = refusal(lambda: spark.read.format("waltz").option("directory", str(tmp_path / "no")).load().count())
    assert line.endswith(f"UnreachableError: {tmp_path / 'no'}: No such file or directory")


def test_a_misspelt_option_of_the_sink_is_one_line(spark: Any, log: Log) -> None:
    rows = arrange(frame(spark, 10))
    line = refusal(lambda: rows.write.format("waltz").option("ulr", log.url).mode("append").save())
    assert line.endswith("OptionError: unknown option ulr; did you mean url?")


@pytest.mark.slow
def test_rows_that_are_not_arranged_are_refused_before_any_is_written(spark: Any, log: Log) -> None:
    line = refusal(lambda: write(frame(spark, 60), log.url))
    assert "OptionError: the rows of a partition must come from one task: write waltz_spark.arrange" in line
    assert log.rows().total() == 0
    write(frame(spark, 60).repartition("partition"), log.url, arranged="true")
    assert log.rows().total() == 60
    write(frame(spark, 30), log.url, mode="at-least-once")
    assert log.rows().total() == 90


def test_a_stream_that_is_not_arranged_writes_nothing(spark: Any, log: Log, tmp_path: Path) -> None:
    make_log(tmp_path / "log", [[b"x"] * 5 for _ in range(PARTITIONS)])
    source = spark.readStream.format("waltz").option("directory", str(tmp_path / "log")).load()
    writer = source.select("partition", "data").writeStream.format("waltz").option("url", log.url)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    with pytest.raises(Exception, match="must come from one task"):
        query.awaitTermination()
    assert log.rows().total() == 0


def test_a_young_log_is_no_empty_table(tmp_path: Path) -> None:
    make_log(tmp_path / "log", [[b"x"] * 7, [b"y"]])
    write_control(tmp_path / "log", [0, 0])
    with pytest.raises(Exception, match=r"8 records are in the files, and of none .*: name the running cluster"):
        BatchReader(parse_options({"directory": str(tmp_path / "log")})).partitions()
    reader = BatchReader(parse_options({"directory": str(tmp_path / "log"), "trust": "files"}))
    assert sum(one.count for task in reader.partitions() for one in task.ranges) == 8


def test_the_users_own_process_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    with pytest.raises(Exception, match="unknown option"):
        in_one_line(parse_options)({"directry": "x"})
    assert "SPARK_HIDE_TRACEBACK" not in os.environ


@pytest.mark.parametrize("installed", ["editable", "folder"])
def test_the_workers_of_spark_find_the_format_however_it_is_installed(tmp_path: Path, installed: str) -> None:
    code = f"""
import importlib.util, os, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        place = {str(ROOT)!r} + "/" + name
        if name.startswith(("waltz_", "pyspark_waltz")) and os.path.isdir(place):
            return importlib.util.spec_from_file_location(
                name, place + "/__init__.py", submodule_search_locations=[place])
if {installed!r} == "editable":
    sys.meta_path.insert(0, Finder)
else:
    sys.path.insert(0, {str(ROOT)!r})
    os.environ["PYTHONPATH"] = {str(ROOT)!r}
class Builder:
    def config(self, name, value):
        return self
from waltz_spark.spark.session import configure
configure(Builder())
print(os.environ.get("PYTHONPATH", ""))
"""
    others = [place for place in sys.path if place and not (Path(place) / "pyspark_waltz").is_dir()]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path += {others!r}\n" + code]
        if installed == "editable"
        else [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert done.stdout.strip() == str(ROOT), done.stderr

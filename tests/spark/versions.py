"""What works with which PySpark: each version in an environment of its own.

    python -m tests.spark.versions [--keep DIRECTORY] [VERSION ...]

Without versions: 4.0, 4.1 and 4.2. The environments hold PySpark alone and take everything else from this one. Exit
status 1 if a version does not do what docs/pipeline.md says of it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("4.0", "4.1", "4.2")
PATIENCE = 600  # seconds for one version


def main(argv: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.versions", description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="where environments are kept for the next call")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.inside:
        return inside()
    failed = []
    with tempfile.TemporaryDirectory() as scratch:
        for version in arguments.versions or VERSIONS:
            python = environment((arguments.keep or Path(scratch)) / f"pyspark-{version}", version)
            call = [str(python), "-m", "tests.spark.versions", "--inside"]
            names = {name: value for name, value in os.environ.items() if name != "PYTHONDEVMODE"}
            done = subprocess.run(call, cwd=ROOT, env={**names, "PYTHONPATH": str(ROOT)}, timeout=PATIENCE, check=False)
            print(f"PySpark {version}: {'as the page says' if done.returncode == 0 else 'FAILED'}", flush=True)
            failed += [version] if done.returncode else []
    return 1 if failed else 0


def environment(folder: Path, version: str) -> Path:
    """The Python of an environment with this PySpark in front of what is installed here."""
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", f"pyspark=={version}.*"], check=True)
        site = subprocess.run(
            [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        (Path(site) / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
        (folder / "complete").touch()
    return python


# ---- in the environment --------------------------------------------------------------------------


def inside() -> int:
    """Read, write and stream with the PySpark of this environment."""
    import pyspark
    from pyspark.sql import SparkSession

    from tests.spark.logs import make_log, random_payloads
    from tests.spark.running import Log, running_cluster
    from waltz_spark.spark.session import configure

    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    builder = configure(SparkSession.builder.master("local[2]"))
    for name, value in {**settings, "spark.sql.shuffle.partitions": "2"}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        make_log(scratch / "log", [random_payloads(500), random_payloads(40)])
        source = {"directory": str(scratch / "log")}
        frame = spark.read.format("waltz").options(**source).load()
        assert frame.count() == 540, "batches are read"
        assert frame.where("partition = 1 and transaction_id >= 30").count() == 10, "filters"
        with running_cluster(scratch / "cluster") as url:
            log = Log(url)
            _write(spark, url, log)
            _stream(spark, source, url, log, scratch, version)
    spark.stop()
    return 0


def _write(spark: Any, url: str, log: Any) -> None:
    from waltz_spark.write.arranging import arrange

    rows = spark.range(60).selectExpr("cast(id % 2 as int) partition", "cast(id as string) data")
    arrange(rows).write.format("waltz").option("url", url).mode("append").save()
    assert log.rows().total() == 60, "batches are written"


def _stream(spark: Any, source: dict[str, str], url: str, log: Any, scratch: Path, version: tuple[int, ...]) -> None:
    from waltz_spark.write.arranging import arrange

    def read() -> None:
        stream = spark.readStream.format("waltz").options(**source).load()
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(scratch / "read"))
        writer.trigger(availableNow=True).start(str(scratch / "table")).awaitTermination()
        assert spark.read.parquet(str(scratch / "table")).count() == 540

    def write() -> None:
        (scratch / "in").mkdir()
        (scratch / "in" / "rows.txt").write_text("one\ntwo\n")
        rows = spark.readStream.text(str(scratch / "in")).selectExpr("1 partition", "value data")
        writer = arrange(rows).writeStream.format("waltz").option("url", url)
        writer = writer.option("checkpointLocation", str(scratch / "write"))
        writer.trigger(availableNow=True).start().awaitTermination()
        assert log.rows().total() == 62

    _does(read, version >= (4, 2), "reading a stream needs PySpark 4.2")
    _does(write, version >= (4, 1), "writing a stream needs PySpark 4.1")


def _does(work: Callable[[], None], works: bool, refusal: str) -> None:
    if works:
        work()
        return
    with pytest.raises(Exception, match=refusal):
        work()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

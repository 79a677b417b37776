"""Spark Connect and a declarative pipeline, with the format `waltz`, each in processes of its own.

python -m tests.spark.pipelines [--json PATH]; exit status 1 if something is wrong, 3 if a package is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.spark.conftest import ROOT
from tests.spark.logs import make_log
from tests.spark.running import Log, running_cluster
from waltz_trio.demo import bank

EXAMPLE = ROOT / "examples" / "pipeline"
NEEDED = ("grpc", "grpc_status", "zstandard")
BALANCES = {0: 50, 1: 50, 10: 35, 11: 35}


def bank_log(directory: Path) -> None:
    """Two partitions with five transactions each."""
    orders = (("deposit", 0, 100, 0), ("transfer", 0, 30, 10), ("withdrawal", 0, 20, 0), ("deposit", 10, 5, 0))
    payloads = [
        [
            bank.ENTRIES.dumps(bank.Entry(bank.Order(action, account + base, amount, to + base)))
            for action, account, amount, to in orders
        ]
        for base in (0, 1)
    ]
    make_log(directory, payloads)


def on_connect(log: str, url: str) -> dict[str, Any]:
    """What a Connect session of its own reads, streams and writes."""
    from pyspark.sql import SparkSession

    from waltz_spark.read.views import balances
    from waltz_spark.spark.session import configure
    from waltz_spark.write.arranging import arrange

    builder = configure(SparkSession.builder.remote("local[2]"))
    spark = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    frame = spark.read.format("waltz").option("directory", log).load()
    found: dict[str, Any] = {"kind": type(spark).__module__, "balances": dict(map(tuple, balances(frame).collect()))}
    arrange(frame.select("partition", "data")).write.format("waltz").option("url", url).mode("append").save()
    stream = balances(spark.readStream.format("waltz").option("directory", log).load()).writeStream
    stream = stream.outputMode("complete").format("memory").queryName("b").trigger(availableNow=True)
    stream.start().awaitTermination()
    found["streamed"] = dict(map(tuple, spark.table("b").collect()))
    spark.stop()
    return found


def check_connect(log: Path) -> list[str]:
    """Problems."""
    with tempfile.TemporaryDirectory() as directory, running_cluster(Path(directory)) as url:
        written = Log(url)
        code = "import json, sys, tests.spark.pipelines as p; print(json.dumps(p.on_connect(*sys.argv[1:])))"
        done = run([sys.executable, "-c", code, str(log), url], log.parent)
        if done.returncode:
            return [(done.stdout + done.stderr)[-3000:]]
        found = json.loads(done.stdout.splitlines()[-1])
        expected = {str(account): balance for account, balance in BALANCES.items()}
        problems = [f"{what}: {found[what]}" for what in ("balances", "streamed") if found[what] != expected]
        if ".connect." not in found["kind"]:
            problems.append(f"a session of {found['kind']} is none of Connect")
        count = written.rows().total()
        return problems + ([] if count == 8 else [f"{count} rows were written instead of 8"])


def check_pipeline(log: Path) -> list[str]:
    """Problems; the pipeline is run twice, the second time there is nothing new. A run finds the tables of the last
    one in a catalog that is kept, here that of Hive in the current folder."""
    home = log.parent / "pipeline"
    shutil.copytree(EXAMPLE, home)
    spec = home / "spark-pipeline.yml"
    text = spec.read_text().replace("/data/lake/bank", str(home / "storage")).replace("/data/waltz/storage-0", str(log))
    spec.write_text(text)
    for _ in range(2):
        command = [str(Path(sys.executable).with_name("spark-pipelines")), "run", "--spec", str(spec)]
        done = run([*command, "--conf", "spark.sql.catalogImplementation=hive"], home)
        if done.returncode:
            return [(done.stdout + done.stderr)[-3000:]]
        rows = pq.read_table(home / "spark-warehouse" / "balances").to_pylist()
        found = {row["account"]: row["balance"] for row in rows}
        if found != BALANCES:
            return [f"balances of the pipeline: {found}"]
    return []


def run(command: list[str], where: Path) -> subprocess.CompletedProcess[str]:
    """In a folder, with this interpreter for Spark's workers."""
    scripts = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": f"{scripts}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)


def main() -> int:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"missing: {', '.join(missing)}; pip install '.[connect]'", file=sys.stderr)
        return 3
    found: dict[str, Any] = {"problems": []}
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        bank_log(log)
        for name, check in (("connect", check_connect), ("pipeline", check_pipeline)):
            begin = time.monotonic()
            problems = check(log)
            found["problems"] += problems
            found[f"{name}_s"] = round(time.monotonic() - begin, 1)
            print(f"{name}: {'; '.join(problems) or 'fine'}, {found[f'{name}_s']} s")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found))
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""One Spark session for all tests that need one; most do not."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.running import Log, running_cluster
from tests.spark.s3 import bucket

__all__ = ["bucket"]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local session: two slots, four attempts per task, a small heap, no UI, loopback only."""
    from pyspark.sql import SparkSession

    from waltz_spark.spark.session import configure

    home = tmp_path_factory.mktemp("spark")
    before = dict(os.environ)
    os.environ["PYTHONPATH"] = str(ROOT)  # Spark looks for pyspark_* modules in folders, not in editable installations
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.pop("PYTHONDEVMODE", None)  # of Spark's own workers
    builder = configure(SparkSession.builder.master("local[2,4]").appName("waltz tests"))
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(home),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={home} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One cluster for all tests that write into one; each looks at what was added since it began."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture
def log(url: str) -> Log:
    """The log of that cluster, from here on."""
    return Log(url)

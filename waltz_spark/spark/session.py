"""Settings of a Spark session that the source profits from."""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import sys
from typing import Any

_MODULE = "pyspark_waltz"

SETTINGS = {
    "spark.sql.python.filterPushdown.enabled": "true",  # off by default: filters would not reach the log
    "spark.python.unix.domain.socket.enabled": "true",  # saves 40 ms per Python task
    "spark.pyspark.python": sys.executable,  # workers would otherwise run the first python3 of PATH
    "spark.pyspark.driver.python": sys.executable,
}


def configure(builder: Any) -> Any:
    """Put the settings into a `SparkSession.builder`; returns it."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _show_formats()
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    return builder


def _show_formats() -> None:
    """Spark looks for modules `pyspark_*` in folders; an editable installation keeps them where only imports look."""
    if any(module.name == _MODULE for module in pkgutil.iter_modules()):
        return
    found = importlib.util.find_spec(_MODULE)
    if found is not None and found.submodule_search_locations:
        folder = os.path.dirname(os.path.abspath(next(iter(found.submodule_search_locations))))
        # The workers of Spark take it from here: the JVM is started by this process.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), folder)))


def register(spark: Any) -> None:
    """Make the format `waltz` known to a session where `pyspark_waltz` is not on the path of the driver."""
    from waltz_spark.spark.source import WaltzDataSource

    spark.dataSource.register(WaltzDataSource)

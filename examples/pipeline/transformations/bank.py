"""Raw transactions, the money they moved, and what every account holds."""

from __future__ import annotations

from typing import Any

from pyspark import pipelines as dp
from pyspark.sql import SparkSession, functions

import waltz_spark

spark = SparkSession.active()


@dp.table
def ledger() -> Any:
    """Every transaction, as it is in the log; each run adds what is new."""
    source, place = spark.conf.get("waltz.source"), spark.conf.get("waltz.place")
    return spark.readStream.format("waltz").option(source, place).load()


@dp.table
def flows() -> Any:
    """What each transaction moved."""
    return waltz_spark.flows(spark.readStream.table("ledger"))


@dp.materialized_view
def balances() -> Any:
    """Balance of every account."""
    return spark.read.table("flows").groupBy("account").agg(functions.sum("amount").alias("balance"))

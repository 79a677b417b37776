"""Grouping the rows of each partition in one task, as the sink needs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from waltz_spark.base.errors import OptionError
from waltz_spark.write.sink_options import parse_sink_options
from waltz_spark.write.writing import cluster_marks

ARRANGED = "waltz.arranged"
"""Metadata of the column `partition` of a frame that `arrange` made."""


def arrange(frame: Any, options: Mapping[str, str] | None = None, **more: str) -> Any:
    """A frame with all rows of one partition of the log in one task, as the sink needs them.

    A column `key` becomes the column `partition` by the rule of `Client.partition_of`. The options are those
    of the sink: the cluster is asked how many partitions it has.
    """
    if "partition" in frame.columns:
        return together(frame, 0)
    if "key" not in frame.columns:
        raise OptionError("rows need one of the columns partition (int) and key (string or bigint)")
    _, marks = cluster_marks(parse_sink_options({**(options or {}), **more}))
    return together(frame, len(marks))


def together(frame: Any, partition_count: int) -> Any:
    """As `arrange`, with a known number of partitions."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    if "partition" not in frame.columns:
        kind = dict(frame.dtypes)["key"]
        if kind not in ("string", "tinyint", "smallint", "int", "bigint"):
            raise OptionError(f"column key: expected string or bigint, found {kind}")
        is_text = kind == "string"
        number = F.crc32(F.encode("key", "utf-8")) if is_text else F.col("key")
        frame = frame.withColumn("partition", F.pmod(number, F.lit(partition_count)).cast("int")).drop("key")
    return frame.withMetadata("partition", {ARRANGED: True}).repartition("partition")

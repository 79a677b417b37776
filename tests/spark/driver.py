"""A driver of its own, to be killed: streams a log into Parquet, or into another log, until nothing is new.

python -m tests.spark.driver LOG TARGET LIMIT [URL]
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from waltz_spark.spark.session import configure
from waltz_spark.write.arranging import arrange


def main(log: str, target: Path, limit: int, url: str | None) -> None:
    builder = configure(SparkSession.builder.master("local[2]").appName("to be killed"))
    settings = {
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(target / "local"),
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    source = spark.readStream.format("waltz").options(directory=log, maxTransactionsPerTrigger=limit).load()
    if url is None:
        writer = source.writeStream.format("parquet").option("path", str(target / "table"))
    else:
        writer = arrange(source.select("partition", "data")).writeStream.format("waltz").option("url", url)
    writer = writer.option("checkpointLocation", str(target / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None)

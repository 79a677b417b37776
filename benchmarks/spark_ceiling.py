"""A data source that does nothing but hand the same Arrow batch to Spark again and again: the ceiling of any source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from waltz_spark.records.columns import Shape, arrow_schema, spark_ddl

ROWS = 16_384


class CeilingSource(DataSource):  # type: ignore[misc]  # pyspark is not looked into
    """Options `rows`, `size` (bytes of payload) and `tasks`."""

    @classmethod
    def name(cls) -> str:
        return "waltz-ceiling"

    def schema(self) -> str:
        return spark_ddl(Shape())

    def reader(self, schema: Any) -> CeilingReader:
        return CeilingReader(*(int(self.options[name]) for name in ("rows", "size", "tasks")))


class CeilingReader(DataSourceReader):  # type: ignore[misc]
    """Yields batches built beforehand."""

    def __init__(self, rows: int, size: int, tasks: int) -> None:
        self.rows, self.size, self.tasks = rows, size, tasks

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.rows // self.tasks) for _ in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        count = max(1, min(ROWS, (4 << 20) // (self.size + 40)))
        schema = arrow_schema(Shape())
        arrays: list[Any] = []
        for field in schema:
            if field.type == pa.binary():
                arrays.append(pa.array([bytes(self.size)] * count, pa.binary()))
            else:
                arrays.append(pa.array(np.arange(count), field.type))
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        left = int(partition.value)
        while left > 0:
            yield batch.slice(0, min(left, count))
            left -= count

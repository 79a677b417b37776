"""What PySpark offers to data sources written in Python, from 4.0 on: what a version lacks is None or a stand-in here.

| since | |
|---|---|
| 4.0 | batch reading and writing of Arrow batches |
| 4.1 | filters that a source takes over, streams written as Arrow batches |
| 4.2 | streams that learn where a batch starts and how large it may be |
"""

from __future__ import annotations

from typing import Any

import pyspark

from waltz_spark.base.errors import OptionError

try:
    from pyspark.sql import datasource
except ImportError:  # before 4.0
    raise ImportError(
        f"the formats of waltz need PySpark 4.0 or later, {pyspark.__version__} is installed: "
        "pip install 'pyspark>=4.2,<5'"
    ) from None


class _Missing:
    """Stands for a class that this version lacks: nothing is an instance of it."""


def _class(module: Any, name: str) -> Any:
    return getattr(module, name, None) or type(name, (_Missing,), {})


DataSource: Any = datasource.DataSource
DataSourceReader: Any = datasource.DataSourceReader
DataSourceStreamReader: Any = datasource.DataSourceStreamReader
DataSourceArrowWriter: Any = datasource.DataSourceArrowWriter
InputPartition: Any = datasource.InputPartition
WriterCommitMessage: Any = datasource.WriterCommitMessage

# ---- since 4.1 -------------------------------------------------------------------------------

PUSH_FILTERS: Any = getattr(DataSourceReader, "pushFilters", None)
EqualNullSafe: Any = _class(datasource, "EqualNullSafe")
EqualTo: Any = _class(datasource, "EqualTo")
Filter: Any = _class(datasource, "Filter")
GreaterThan: Any = _class(datasource, "GreaterThan")
GreaterThanOrEqual: Any = _class(datasource, "GreaterThanOrEqual")
In: Any = _class(datasource, "In")
IsNotNull: Any = _class(datasource, "IsNotNull")
LessThan: Any = _class(datasource, "LessThan")
LessThanOrEqual: Any = _class(datasource, "LessThanOrEqual")
WRITES_STREAMS = hasattr(datasource, "DataSourceStreamArrowWriter")
DataSourceStreamArrowWriter: Any = _class(datasource, "DataSourceStreamArrowWriter")

# ---- since 4.2 -------------------------------------------------------------------------------

try:
    from pyspark.sql.streaming import datasource as _limits
except ImportError:
    _limits = None
READS_STREAMS = _limits is not None and hasattr(_limits, "ReadLimit")
ReadAllAvailable: Any = _class(_limits, "ReadAllAvailable")
ReadLimit: Any = _class(_limits, "ReadLimit")
ReadMaxRows: Any = _class(_limits, "ReadMaxRows")
SupportsTriggerAvailableNow: Any = _class(_limits, "SupportsTriggerAvailableNow")


def need_streams(*, reading: bool) -> None:
    """Raises OptionError: this version of PySpark cannot do it, and what would."""
    if READS_STREAMS if reading else WRITES_STREAMS:
        return
    what, version = ("reading a stream", "4.2") if reading else ("writing a stream", "4.1")
    raise OptionError(f"{what} needs PySpark {version} or later, this is {pyspark.__version__}: read or write batches")

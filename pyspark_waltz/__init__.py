"""Lets Spark find the format `waltz` by itself: it looks for modules named `pyspark_*` with a `DefaultSource`.

All such modules are imported at once, and one that fails hides every other: so this one imports nothing else.
"""

from __future__ import annotations

from waltz_spark.spark.source import WaltzDataSource


class DefaultSource(WaltzDataSource):
    """The format `waltz`."""

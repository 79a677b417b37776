"""Lets Spark find the format `waltz.journal` by itself; see `pyspark_waltz`."""

from __future__ import annotations

from waltz_spark.spark.journal_source import JournalDataSource


class DefaultSource(JournalDataSource):
    """The format `waltz.journal`."""

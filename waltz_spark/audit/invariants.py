"""Invariants of the owner of a log, in SQL: a query that returns the violations.

The query sees the log as the table `log`, with the columns of the source, and `flows`: what the transactions of
the bank of the demonstration moved (see `waltz_spark.read.views.flows`). Every row of its result is a violation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from waltz_core.base.record import record
from waltz_spark.audit.audit import Finding
from waltz_spark.audit.coverage import FAILED, PASSED
from waltz_spark.base.errors import OptionError
from waltz_spark.read.inventory import plan_reading
from waltz_spark.read.options import parse_options

_SHOWN = 20  # violations


@record
class Invariant:
    """A query whose result must be empty."""

    name: str
    query: str


def read_invariant(path: Path) -> Invariant:
    """A file of one query; its name, without the suffix, is that of the invariant.

    Raises:
        OptionError: it cannot be read, or is empty.
    """
    try:
        query = path.read_text(encoding="utf-8").strip().removesuffix(";")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"invariant {path}: {error}") from error
    if not query:
        raise OptionError(f"invariant {path}: expected a query, the file is empty")
    return Invariant(path.stem, query)


def judge(spark: Any, options: dict[str, str], invariants: Sequence[Invariant]) -> list[Finding]:
    """Run every query over the log that the options of the source name.

    Raises:
        OptionError: a query is none that Spark understands.
        PipelineError: the log cannot be read.
    """
    from pyspark.errors import AnalysisException, ParseException

    from waltz_spark.read.views import flows
    from waltz_spark.spark.session import register

    reading = plan_reading(parse_options(options))
    count = sum(part.count for part in reading.ranges)
    register(spark)
    # The same cut for all of them: the log may grow meanwhile.
    cut = json.dumps({str(partition): reading.ends[partition] for partition in reading.partitions})
    log = spark.read.format("waltz").options(**options, cut=cut).load()
    log.createOrReplaceTempView("log")
    flows(log).createOrReplaceTempView("flows")
    findings = []
    for invariant in invariants:
        try:
            violations = spark.sql(invariant.query)
            rows = violations.limit(_SHOWN + 1).collect()
        except (AnalysisException, ParseException) as error:
            raise OptionError(f"invariant {invariant.name}: {str(error).splitlines()[0]}") from error
        texts = [", ".join(f"{name} {value}" for name, value in row.asDict().items()) for row in rows[:_SHOWN]]
        more = ["and more"] if len(rows) > _SHOWN else []
        status = FAILED if rows else PASSED
        findings.append(
            Finding(f"invariant {invariant.name}", -1, status, count, "the whole log", "; ".join(texts + more))
        )
    return findings

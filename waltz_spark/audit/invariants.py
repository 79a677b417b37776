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
from waltz_spark.audit.coverage import FAILED, PASSED, UNPROVEN, span_text
from waltz_spark.audit.scan import left_out_of
from waltz_spark.base.errors import OptionError
from waltz_spark.read.inventory import ReadingPlan, plan_reading
from waltz_spark.read.options import parse_options

_SHOWN = 20  # violations
_SPANS = 8  # partitions in the scope of a finding
_BOUNDS = ("startingoffsets", "endingoffsets", "cut")


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
    register(spark)
    # The same cut for all of them: the log may grow meanwhile, or give up what is old.
    frozen = {name: value for name, value in options.items() if name.lower() not in _BOUNDS}
    for name, ids in (("startingOffsets", reading.start), ("cut", reading.ends)):
        frozen[name] = json.dumps({str(partition): ids[partition] for partition in reading.partitions})
    log = spark.read.format("waltz").options(**frozen).load()
    log.createOrReplaceTempView("log")
    flows(log).createOrReplaceTempView("flows")
    count, scope, whole = _looked_at(reading)
    findings = []
    for invariant in invariants:
        try:
            violations = spark.sql(invariant.query)
            rows = violations.limit(_SHOWN + 1).collect()
        except (AnalysisException, ParseException) as error:
            raise OptionError(f"invariant {invariant.name}: {str(error).splitlines()[0]}") from error
        texts = [", ".join(f"{name} {value}" for name, value in row.asDict().items()) for row in rows[:_SHOWN]]
        more = ["and more"] if len(rows) > _SHOWN else []
        status = FAILED if rows else PASSED if whole else UNPROVEN
        findings.append(Finding(f"invariant {invariant.name}", -1, status, count, scope, "; ".join(texts + more)))
    return findings


def _looked_at(reading: ReadingPlan) -> tuple[int, str, bool]:
    """How many records a query sees, which, and whether that is all that is known to be there, and anything."""
    look = reading.look
    count = sum(part.count for part in reading.ranges)
    known = sum(look.ends) - sum(look.earliest)
    if look.marks is None:
        known += sum(left_out_of(look, partition) for partition in reading.partitions)
    every = len(reading.partitions) == len(look.ends)
    if every and count == known and count:
        return count, "the whole log", True
    if not count:
        return 0, "no record: there was nothing to look at", False
    spans = [
        f"partition {at}: {span_text([(reading.start[at], reading.ends[at])])}"
        for at in reading.partitions
        if reading.start[at] < reading.ends[at]
    ]
    more = [f"{len(spans) - _SPANS} more"] if len(spans) > _SPANS else []
    of = f"of {known:,} records" if every else f"of those of {len(reading.partitions)} of {len(look.ends)} partitions"
    return count, f"{count:,} {of}: {', '.join(spans[:_SPANS] + more)}", False

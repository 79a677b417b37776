"""Metrics as text for scrapers: Prometheus 0.0.4 and OpenMetrics 1.0.0, under the same names.

| metric | becomes |
|---|---|
| gauge | a gauge; of an object whose keys have a label, a sample for each |
| counter, meter | a counter, `NAME_total` |
| timer | a summary `NAME_seconds` and a histogram `NAME_histogram_seconds` |

The quantiles of the summary lean to the last five minutes. Its sum and count, and all of the histogram, are exact and
of everything since the start, so they can be added up over partitions and processes.

`group.partition-N.name` becomes `group_name{partition="N"}`.
"""

from __future__ import annotations

import enum
import functools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Protocol

import attrs

NO_LABELS: Mapping[str, str] = {}
_PARTITION = re.compile(r"\.partition-(\d+)(?=\.)")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Form(enum.Enum):
    """A text form, by its content type."""

    PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@attrs.define
class Family:
    """Samples of one name and type: suffix, labels, value."""

    name: str
    kind: str
    samples: list[tuple[str, Mapping[str, str], float]] = attrs.field(factory=list)


class Samples(Protocol):
    """What takes the metrics of a registry."""

    def gauge(self, name: str, value: float, more: Mapping[str, str] = ...) -> None:
        """A value that goes up and down."""

    def counter(self, name: str, count: int) -> None:
        """A number that only grows."""

    def summary(self, name: str, quantiles: Mapping[float, float], total: float, count: int) -> None:
        """Recent quantiles, in seconds, with the sum and count of everything."""

    def histogram(self, name: str, buckets: Mapping[float, int], total: float) -> None:
        """How many took at most so many seconds, by upper bound; the last bound is infinite."""


class Families:
    """The families of one text, each made when its first sample comes."""

    def __init__(self) -> None:
        self._families: dict[tuple[str, str], Family] = {}

    def gauge(self, name: str, value: float, more: Mapping[str, str] = NO_LABELS) -> None:
        """A value that goes up and down."""
        metric, labels = named(name, "")
        self._family(metric, "gauge").samples.append(("", {**labels, **more}, value))

    def counter(self, name: str, count: int) -> None:
        """A number that only grows."""
        metric, labels = named(name, "")
        self._family(metric, "counter").samples.append(("_total", labels, count))

    def summary(self, name: str, quantiles: Mapping[float, float], total: float, count: int) -> None:
        """Recent quantiles, in seconds, with the sum and count of everything."""
        metric, labels = named(name, "_seconds")
        samples = self._family(metric, "summary").samples
        samples += [("", {**labels, "quantile": repr(quantile)}, value) for quantile, value in quantiles.items()]
        samples += [("_sum", labels, total), ("_count", labels, count)]

    def histogram(self, name: str, buckets: Mapping[float, int], total: float) -> None:
        """How many took at most so many seconds, by upper bound; the last bound is infinite."""
        metric, labels = named(name, "_histogram_seconds")
        samples = self._family(metric, "histogram").samples
        samples += [("_bucket", {**labels, "le": _number(bound)}, count) for bound, count in buckets.items()]
        samples += [("_sum", labels, total), ("_count", labels, buckets[math.inf])]

    def text(self, form: Form) -> str:
        """The whole, in one form."""
        lines = [line for _, family in sorted(self._families.items()) for line in _lines(family, form)]
        return "\n".join([*lines, *(["# EOF"] if form is Form.OPENMETRICS else [])]) + "\n"

    def _family(self, name: str, kind: str) -> Family:
        family = self._families.get((name, kind))
        if family is None:
            family = self._families[name, kind] = Family(name, kind)
        return family


def _lines(family: Family, form: Form) -> Iterator[str]:
    # The older form types what it reads, suffix and all; OpenMetrics the family.
    suffix = "_total" if family.kind == "counter" and form is Form.PROMETHEUS else ""
    yield f"# TYPE {family.name}{suffix} {family.kind}"
    if form is Form.OPENMETRICS and family.name.endswith("_seconds"):
        yield f"# UNIT {family.name} seconds"
    for suffix, labels, value in family.samples:
        yield f"{family.name}{suffix}{_labels(labels)} {_number(value)}"


@functools.lru_cache(maxsize=100_000)
def named(name: str, suffix: str) -> tuple[str, Mapping[str, str]]:
    """What a metric of the registry is called here, and its labels."""
    labels = {}
    partition = _PARTITION.search(name)
    if partition is not None:
        labels["partition"] = partition[1]
        name = name[: partition.start()] + name[partition.end() :]
    group, _, last = name.rpartition(".")
    # The original repeats the group in some names (`waltz-server.waltz-server-num-partitions`).
    last = last.removeprefix(group + "-") if group else last
    text = re.sub(r"[^A-Za-z0-9_]", "_", f"{group}_{last}" if group else last)
    return text + suffix, labels


def _number(value: float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return repr(value)


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in labels.items()) + "}"

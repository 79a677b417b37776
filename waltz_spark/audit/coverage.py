"""How much of a log a verdict speaks of: ids that were looked at, of those that are known to be there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from waltz_core.base.record import record

PASSED, FAILED, UNPROVEN = "passed", "failed", "unproven"

EXIT_STATUS = {PASSED: 0, FAILED: 1, UNPROVEN: 3}
"""Of a command whose verdict this is; 2 is a call that cannot be parsed."""


@record
class Coverage:
    """What a verdict looked at, of what is known."""

    partitions: int  # partitions whose known records were all looked at
    partition_count: int
    records: int
    known: int  # records that are known to be there, committed or perhaps committed
    ranges: tuple[tuple[int, int, int], ...]  # partition and half-open ids that were looked at
    sources: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Everything that is known was looked at, and that was something or is known to be nothing."""
        return self.records == self.known and self.partitions == self.partition_count

    @property
    def percent(self) -> float:
        """Rounded down: 100 means all, not nearly all. Nothing known is nothing shown."""
        if self.known == 0:
            return 100.0 if self.whole else 0.0
        return int(10_000 * self.records / self.known) / 100

    def __str__(self) -> str:
        noun = "source" if len(self.sources) == 1 else "sources"
        return (
            f"{self.records:,} of {self.known:,} records ({self.percent:g} %), {self.partitions} of "
            f"{self.partition_count} partitions, {len(self.sources)} {noun}: {', '.join(self.sources) or 'none'}"
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**attrs.asdict(self), "percent": self.percent, "whole": self.whole}


def worst(statuses: Iterable[str]) -> str:
    """One verdict of many: a failure above all, then what was not looked at."""
    found = set(statuses)
    return FAILED if FAILED in found else UNPROVEN if UNPROVEN in found else PASSED


def union(spans: Iterable[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Half-open spans within `start .. end - 1` as the fewest that do not touch."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted((max(low, start), min(high, end)) for low, high in spans):
        if low >= high:
            continue
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return merged


def size_of(spans: Sequence[tuple[int, int]]) -> int:
    """Ids in spans that do not overlap."""
    return sum(high - low for low, high in spans)


def span_text(spans: Sequence[tuple[int, int]]) -> str:
    """`ids 0 to 99, 200 to 299`."""
    return "ids " + ", ".join(f"{low} to {high - 1}" for low, high in spans) if spans else "no id"

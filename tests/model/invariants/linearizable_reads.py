"""A read of the committed mark is never of the past."""

from __future__ import annotations

from typing import Any

from tests.model.invariants.base import Invariant


class LinearizableReads(Invariant):
    """It covers what any client had been acknowledged, or had read, before it began, and only what is committed."""

    def on_read(self, client: Any, partition: int, floor: int, mark: int) -> None:
        self.require(
            mark >= floor,
            f"{client.name} read the mark {mark} of partition {partition} when {floor} was known to be committed",
        )
        end = len(self.observer.logs[partition]) - 1
        self.require(mark <= end, f"{client.name} read the mark {mark} of partition {partition}, which ends at {end}")

"""Neither closing marks nor cuts go below a committed id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.model.invariants.base import Invariant
from waltz_core.zookeeper.znodes import UNRESOLVED, PartitionMetadata


class Truncation(Invariant):
    """A closing mark is at or above everything committed before; no replica cuts below its low-water mark."""

    def on_metadata(self, partition: int, before: PartitionMetadata | None, after: PartitionMetadata) -> None:
        known = {} if before is None else {state.replica_id: state for state in before.replica_states}
        end = len(self.observer.logs[partition]) - 1
        for state in after.replica_states:
            old = known.get(state.replica_id)
            if state.closing_mark != UNRESOLVED and old is not None and old.closing_mark == UNRESOLVED:
                self.require(
                    state.closing_mark >= end,
                    f"{state.replica_id} is closed at {state.closing_mark}, committed is {end}",
                )

    def on_gone(self, storage: Any, partition: int, ids: Sequence[int]) -> None:
        if storage.node.name in self.observer.lossy or not storage.node.alive or partition not in storage.holds:
            return
        machine = storage.node.machine
        if partition < len(machine.replicas):
            floor = machine.replicas[partition].entry.current.local_low_water_mark
            self.require(min(ids) > floor, f"{storage.node.name} cut {partition}/{min(ids)}, its floor is {floor}")

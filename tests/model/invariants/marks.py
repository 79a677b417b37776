"""No mark, session or generation ever falls."""

from __future__ import annotations

from typing import Any

from tests.model.invariants.base import Invariant
from waltz_core.zookeeper.znodes import PartitionMetadata


class Marks(Invariant):
    """In ZooKeeper, in the control files, and in each server process."""

    def __init__(self, observer: Any) -> None:
        super().__init__(observer)
        self._control: dict[tuple[str, int], tuple[int, int, int]] = {}
        self._served: dict[tuple[str, int, int], int] = {}

    def on_metadata(self, partition: int, before: PartitionMetadata | None, after: PartitionMetadata) -> None:
        if before is None:
            return
        self.require(
            after.session_id >= before.session_id and after.generation >= before.generation,
            f"the metadata of partition {partition} fell from {before} to {after}",
        )

    def on_storage(self, storage: Any) -> None:
        name = storage.node.name
        for replica in storage.node.machine.replicas:
            current = replica.entry.current
            now = (current.session_id, current.low_water_mark, current.local_low_water_mark)
            key = (name, replica.partition_id)
            before = self._control.get(key)
            if now == before:
                continue
            if replica.partition_id not in storage.holds:
                self._control.pop(key, None)  # given up: its files may be deleted
                continue
            self._control[key] = now
            if before is not None and name not in self.observer.lossy:
                self.require(
                    all(new >= old for new, old in zip(now, before, strict=True)),
                    f"session and marks of {name}, partition {replica.partition_id} fell from {before} to {now}",
                )

    def on_server(self, server: Any, epoch: int, partition: int, mark: int) -> None:
        key = (server.name, epoch, partition)
        before = self._served.get(key)
        if mark != before:
            self.require(
                before is None or mark > before or mark == -(2**63),
                f"the commit mark of {server.name} fell from {before} to {mark} in partition {partition}",
            )
            self._served[key] = mark

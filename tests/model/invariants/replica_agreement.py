"""Replicas agree on everything that they know to be committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.model.invariants.base import Invariant


class ReplicaAgreement(Invariant):
    """Up to the local low-water mark a disk holds nothing but committed records; in the end all hold the same."""

    def __init__(self, observer: Any) -> None:
        super().__init__(observer)
        self._checked: dict[tuple[str, int], int] = {}

    def on_storage(self, storage: Any) -> None:
        name = storage.node.name
        for replica in storage.node.machine.replicas:
            mark = replica.entry.current.local_low_water_mark
            key = (name, replica.partition_id)
            if mark > self._checked.get(key, -1):
                self._check(name, replica.partition_id, self._checked.get(key, -1) + 1, mark)
                self._checked[key] = mark

    def on_gone(self, storage: Any, partition: int, ids: Sequence[int]) -> None:
        key = (storage.node.name, partition)
        self._checked[key] = min(self._checked.get(key, -1), min(ids) - 1)

    def _check(self, name: str, partition: int, first: int, last: int) -> None:
        log, held = self.observer.logs[partition], self.observer.durable[name].records[partition]
        for one in range(first, last + 1):
            body = held.get(one)
            if body is not None and one < len(log):
                self.require(body == log[one], f"{name} holds another record than the log at {partition}/{one}")

    def at_end(self) -> None:
        for storage in self.observer.cluster.storages:
            for partition in storage.holds:
                self._equal(storage.node.name, partition)

    def _equal(self, name: str, partition: int) -> None:
        log, held = self.observer.logs[partition], self.observer.durable[name].records[partition]
        for one, body in enumerate(log):
            found = held.get(one)
            if found is None and name in self.observer.lossy:
                continue  # a damaged record that nobody repaired
            self.require(found == body, f"{name} does not hold the committed record {partition}/{one} in the end")
        self.require(max(held, default=-1) < len(log), f"{name} holds more than the log of partition {partition}")

"""Ids are dense from 0, or from where the log begins since."""

from __future__ import annotations

from typing import Any

from tests.model.durable import split
from tests.model.invariants.base import Invariant


class DenseIds(Invariant):
    """The committed log has every id exactly once, and each record stands at its own id."""

    def on_commit(self, partition: int, transaction_id: int, body: bytes, server: Any, session: Any) -> None:
        self.require(bool(body), f"{server.name} committed {partition}/{transaction_id}, which is on no disk")
        found = split(body)[0]
        self.require(found == transaction_id, f"the record at {partition}/{transaction_id} says it is {found}")

    def at_end(self) -> None:
        for name, log in self.observer.durable.items():
            for partition, records in enumerate(log.records):
                ids = sorted(records)
                if name not in self.observer.lossy:
                    first = ids[0] if ids and ids[0] <= self.observer.archived[partition] else 0
                    dense = ids == list(range(first, first + len(ids)))
                    self.require(dense, f"{name} has holes in partition {partition}")

"""Nothing is acknowledged before it is durable."""

from __future__ import annotations

from typing import Any

from tests.model.invariants.base import Invariant
from waltz_core.storage.replica import State


class CommitsDurable(Invariant):
    """When a commit mark reaches an id, a quorum of disks would keep the record through a power failure.

    And no storage node counts a record as its own that it could still lose.
    """

    def on_commit(self, partition: int, transaction_id: int, body: bytes, server: Any, session: Any) -> None:
        copies = self.observer.copies(partition, transaction_id, body)
        replicas = 0 if session is None else len(session.links())
        needed = max(self.observer.quorum, replicas // 2 + 1) - len(self.observer.lossy)
        self.require(
            copies >= needed,
            f"{server.name} committed {partition}/{transaction_id} with {copies} durable copies",
        )

    def on_storage(self, storage: Any) -> None:
        if storage.node.name in self.observer.lossy:
            return
        durable = self.observer.durable[storage.node.name].records
        for replica in storage.node.machine.replicas:
            highest = replica.max_id
            cutting = replica.lane.alone
            if highest >= self.observer.archived[replica.partition_id] and replica.state is State.OPEN and not cutting:
                self.require(
                    highest in durable[replica.partition_id],
                    f"{storage.node.name} says it holds {replica.partition_id}/{highest}, which is not durable",
                )

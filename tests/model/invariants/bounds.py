"""Everything is bounded: queues, windows, connections."""

from __future__ import annotations

from tests.model.invariants.base import Invariant

CONNECTIONS_MAX = 60
INBOX_MAX = 5_000


class Bounds(Invariant):
    """Looked at once a second."""

    def on_second(self) -> None:
        for name, node in self.observer.world.nodes.items():
            if not node.alive or node.frozen:
                continue
            self.require(len(node.conns) <= CONNECTIONS_MAX, f"{name} has {len(node.conns)} connections")
            self.require(len(node._inbox) <= INBOX_MAX, f"{name} has {len(node._inbox)} events waiting")
        for storage in self.observer.cluster.storages:
            if storage.node.alive:
                for replica in storage.node.machine.replicas:
                    self.require(
                        len(replica.lane.jobs) <= storage.node.machine.config.queue_count_max,
                        f"{storage.node.name}: {len(replica.lane.jobs)} requests wait",
                    )

"""A proxy in its own root in ZooKeeper: the one server there, which owns every partition, as upstream counts them.

Clients of 0.13.2 look for partitions and generations there, and find what the upstream cluster says, at the address of
the proxy. The generations must be those of the cluster: they stand in the request ids of appends, which travel on
unchanged. Before the cluster was heard, those of the process before hold on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from waltz_core.base.contract import Rng
from waltz_core.base.ids import Endpoint
from waltz_core.cluster.coordinator import Coordinator
from waltz_core.cluster.notifications import CoordinatorEffect, ManagedServer
from waltz_core.cluster.published import Published
from waltz_core.cluster.registration import Registration, View
from waltz_core.server.cluster_port import ClusterPort
from waltz_core.wire.client_messages import Capability
from waltz_core.zookeeper.paths import ClusterPaths
from waltz_core.zookeeper.znodes import PartitionAssignment, ServerPartitions


class ProxyRegistration(Registration):
    """The descriptor as of every server; the assignment is the one it is given."""

    __slots__ = ("generations",)

    def __init__(self, paths: ClusterPaths, manages: ManagedServer, published: Published, rng: Rng) -> None:
        super().__init__(paths, manages, published, rng)
        self.generations: Mapping[int, int] = {}

    def _assignment(self, view: View, out: list[CoordinatorEffect]) -> PartitionAssignment | None:
        if view.assignment is None:
            return None
        before = {partition: of for server in view.assignment.servers for partition, of in server.partitions}
        owned = {**before, **self.generations}
        owned = {partition: max(of, before.get(partition, of)) for partition, of in owned.items()}
        partitions = ServerPartitions(view.server_id, tuple(sorted(owned.items())))
        wanted = PartitionAssignment(view.stat.cversion, view.num_partitions, (partitions,))
        return None if wanted == view.assignment else wanted


class ProxyCoordinator(Coordinator):
    """Reads and writes the root of the proxy."""

    make_registration: ClassVar[type[Registration]] = ProxyRegistration

    def publish(self, now: int, generations: Mapping[int, int], out: list[CoordinatorEffect]) -> None:
        """The generations of all partitions, from now on."""
        assert isinstance(self._registration, ProxyRegistration)
        self._registration.generations = dict(generations)
        self._dirty = True
        self._advance(now, out)


class ProxyClusterPort(ClusterPort):
    """The port to the root of the proxy."""

    make_coordinator: ClassVar[type[Coordinator]] = ProxyCoordinator
    capabilities: ClassVar[Capability] = (
        Capability.CLUSTER_INFO
        | Capability.CLUSTER_CHANGES
        | Capability.CLIENT_IDS
        | Capability.NAMED_APPENDS
        | Capability.CONFLICT_CLASSES
        | Capability.RECORD_RANGES
        | Capability.LOG_START
        | Capability.PARTITION_STATUS
        | Capability.FEED_WINDOWS
    )

    def publish(self, now: int, generations: Mapping[int, int]) -> None:
        """The generations of all partitions, from now on."""
        assert isinstance(self._coordinator, ProxyCoordinator)
        effects: list[CoordinatorEffect] = []
        self._coordinator.publish(now, generations, effects)
        self._on_effects(now, effects)

    def _watch(self, servers: tuple[tuple[str, Endpoint], ...]) -> None:
        """Dial nobody: another proxy here is one too many, and nothing of it is taken over.

        And all connections that a proxy dials are those of its client machine, which numbers them.
        """

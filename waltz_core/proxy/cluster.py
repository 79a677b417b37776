"""A proxy in its own root in ZooKeeper: the one server there, which owns every partition, as upstream counts them.

Clients of 0.13.2 look for partitions and generations there, and find what the upstream cluster says, at the address of
the proxy. The generations must be those of the cluster: they stand in the request ids of appends, which travel on
unchanged. Before the cluster was heard, those of the process before hold on.

Two processes in one root would each give all partitions to themselves, again and again. The one that was started last
counts, as it does for the servers upstream (`ProxyState.epoch`), so each says in its descriptor how many were started
up to it, and the other one ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final

from waltz_core.base.contract import Rng
from waltz_core.base.edge import ZkCreate, ZkDelete, ZkEvent, ZkSet, ZkStateChanged
from waltz_core.base.ids import Endpoint
from waltz_core.cluster.coordinator import Coordinator
from waltz_core.cluster.notifications import ClusterFailed, CoordinatorEffect, ManagedServer
from waltz_core.cluster.published import Published
from waltz_core.cluster.registration import OUR_MARK, Registration, View
from waltz_core.proxy.partitions import ProxyPartitions
from waltz_core.server.cluster_port import ClusterPort
from waltz_core.server.context import NodeContext
from waltz_core.wire.client_messages import Capability
from waltz_core.zookeeper.paths import ClusterPaths
from waltz_core.zookeeper.znodes import PartitionAssignment, ServerDescriptor, ServerPartitions

_EPOCH_BYTES: Final = 4


class ProxyRegistration(Registration):
    """The descriptor as of every server; the assignment is the one it is given."""

    __slots__ = ("alone", "epoch", "generations")

    def __init__(self, paths: ClusterPaths, manages: ManagedServer, published: Published, rng: Rng) -> None:
        super().__init__(paths, manages, published, rng)
        self.generations: Mapping[int, int] = {}
        self.epoch = 0
        self.alone = False  # nobody else was registered when ZooKeeper was read last

    def writes(self, view: View, out: list[CoordinatorEffect]) -> list[ZkCreate | ZkSet | ZkDelete]:
        """The same, and nothing once a process was started in this root after ours, which has no place there then."""
        self.alone = bool(view.own) and not view.others
        for other in view.others.values():
            if _epoch_of(other) > self.epoch:
                there = f"{self._paths.root}, at {other.endpoint}"
                reason = f"another proxy was started in {there}: one at a time, each in a root of its own"
                out.append(ClusterFailed(reason))
                return []
        return super().writes(view, out)

    def _mark(self) -> bytes:
        return self.extension + self.epoch.to_bytes(_EPOCH_BYTES)

    def _assignment(self, view: View, out: list[CoordinatorEffect]) -> PartitionAssignment | None:
        if view.assignment is None:
            return None
        before = {partition: of for server in view.assignment.servers for partition, of in server.partitions}
        owned = {**before, **self.generations}
        owned = {partition: max(of, before.get(partition, of)) for partition, of in owned.items()}
        partitions = ServerPartitions(view.server_id, tuple(sorted(owned.items())))
        wanted = PartitionAssignment(view.stat.cversion, view.num_partitions, (partitions,))
        return None if wanted == view.assignment else wanted


def _epoch_of(descriptor: ServerDescriptor) -> int:
    """Which start wrote this descriptor; 0 where it does not say."""
    mark = descriptor.extension.removeprefix(OUR_MARK)
    return int.from_bytes(mark) if len(mark) == _EPOCH_BYTES else 0


class ProxyCoordinator(Coordinator):
    """Reads and writes the root of the proxy."""

    make_registration: ClassVar[type[Registration]] = ProxyRegistration

    @property
    def proxy(self) -> ProxyRegistration:
        """What stands in the root for this process."""
        assert isinstance(self._registration, ProxyRegistration)
        return self._registration

    def publish(self, now: int, generations: Mapping[int, int], out: list[CoordinatorEffect]) -> None:
        """The generations of all partitions, from now on."""
        self.proxy.generations = dict(generations)
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

    def __init__(self, context: NodeContext, partitions: ProxyPartitions, epoch: int) -> None:
        super().__init__(context, partitions)
        self._fresh = partitions.fresh
        self._root.proxy.epoch = epoch

    @property
    def _root(self) -> ProxyCoordinator:
        assert isinstance(self._coordinator, ProxyCoordinator)
        return self._coordinator

    def publish(self, now: int, generations: Mapping[int, int]) -> None:
        """The generations of all partitions, from now on."""
        effects: list[CoordinatorEffect] = []
        self._root.publish(now, generations, effects)
        self._on_effects(now, effects)

    def handle(self, now: int, events: Sequence[ZkEvent]) -> None:
        """As of every process; while ZooKeeper is away, another proxy may come unseen."""
        if any(isinstance(event, ZkStateChanged) for event in events):
            self._root.proxy.alone = False
        super().handle(now, events)

    def _on_effects(self, now: int, effects: Iterable[CoordinatorEffect]) -> None:
        super()._on_effects(now, effects)
        self._fresh.seen(alone=self._root.proxy.alone)

    def _watch(self, servers: tuple[tuple[str, Endpoint], ...]) -> None:
        """Dial nobody: another proxy here is one too many, and nothing of it is taken over.

        And all connections that a proxy dials are those of its client machine, which numbers them.
        """

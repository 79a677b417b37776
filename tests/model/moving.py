"""An operator who adds storage nodes, empties and replaces them, by the plans of the command line, while all runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.model.cluster import KEY, ROOT, SimStorage
from waltz_core.base.errors import ClusterError
from waltz_core.base.ids import Endpoint
from waltz_core.operations import moves
from waltz_core.operations.view import ClusterView, ReplicaView, ServerView, StorageView
from waltz_core.zookeeper.paths import cluster_paths
from waltz_core.zookeeper.znodes import EMPTY_ASSIGNMENT, PartitionMetadata, ServerDescriptor, decode_partition_metadata

if TYPE_CHECKING:
    from tests.model.run import Run

Plan = Callable[[ClusterView], tuple[moves.Step, ...]]


class Moving:
    """Goes through one plan at a time, step by step; each look makes the plan anew, as a command given again does.

    Attributes:
        plan: what is under way, None if nothing is.
    """

    def __init__(self, run: Run, order: Callable[..., Any]) -> None:
        self.plan: Plan | None = None
        self._run = run
        self._new_order = order
        self._order: Any = None  # at the admin port of a storage node, under way
        self._delete = False

    def begin(self, plan: Plan, *, delete: bool) -> bool:
        """Take a plan on; False if it is refused as the command would refuse it.

        Args:
            delete: whether the files that are left behind on a node are deleted.
        """
        assert self.plan is None
        try:
            plan(self.view())
        except ClusterError:
            return False
        self.plan, self._delete = plan, delete
        return True

    def look(self) -> None:
        """Do the next step if it can be done."""
        if self.plan is None:
            return
        if self._order is not None and not self._order.done and not self._order.failed:
            return
        self._order = None
        view = self.view()
        try:
            steps = self.plan(view)
        except ClusterError:
            return  # somebody does not answer: the command is given again
        if not steps:
            self.plan = None
            self._run.world.trace("operator: nothing is left to move")
            return
        match steps[0]:
            case moves.AwaitLevel():
                return  # not reached, or it would not be in the plan
            case moves.AwaitWithout(storage, partition_id):
                if moves.is_without(view, partition_id, storage):
                    self._do(steps[1])
            case step:
                self._do(step)

    def _do(self, step: moves.Step) -> None:
        cluster = self._run.cluster
        match step:
            case moves.AwaitLevel() | moves.AwaitWithout():
                raise AssertionError(step)
            case moves.Take(storage, partition_id):
                self._order = self._new_order(self._named(storage), [partition_id])
            case moves.Release(storage, partition_id):
                self._order = self._new_order(self._named(storage), [partition_id], holds=False, delete=self._delete)
            case _:
                cluster.change_store(moves.change_of(step)(cluster.maps, cluster.partitions))
        self._run.observer.counts["steps of moves"] += 1
        self._run.world.trace(f"operator: {moves.describe(step)}")

    def _named(self, name: str) -> SimStorage:
        return next(one for one in self._run.cluster.storages if str(one.data_endpoint) == name)

    # ---- looking ---------------------------------------------------------------------------------

    def view(self) -> ClusterView:
        """What the tools see."""
        cluster = self._run.cluster
        return ClusterView(
            ROOT,
            "simulated",
            KEY,
            cluster.partitions,
            EMPTY_ASSIGNMENT,
            0,
            (),
            cluster.maps,
            tuple(self._metadata(partition) for partition in range(cluster.partitions)),
            tuple(self._server(number) for number in range(len(cluster.servers))),
            tuple(map(self._storage, cluster.storages)),
        )

    def _metadata(self, partition: int) -> PartitionMetadata | None:
        data = self._run.world.zookeeper.read(cluster_paths(ROOT).partition(partition))
        return decode_partition_metadata(data) if data else None

    def _server(self, number: int) -> ServerView:
        node = self._run.cluster.servers[number]
        answers = node.alive and not node.frozen
        found = node.machine.partitions.items() if answers else ()
        health = {partition_id: not partition.trouble(node.clock) for partition_id, partition in found}
        return ServerView(ServerDescriptor(number, Endpoint(node.name, 6000)), health=health if answers else None)

    @staticmethod
    def _storage(storage: SimStorage) -> StorageView:
        name, admin = str(storage.data_endpoint), str(storage.admin_endpoint)
        if not storage.ready or storage.node.frozen:
            return StorageView(name, admin, admin_problem="it does not answer")
        assigned = [one.partition_id for one in storage.node.machine.replicas if one.entry.current.assigned]
        return StorageView(name, admin, replicas={one: ReplicaView(one, True) for one in assigned})

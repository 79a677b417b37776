"""Defects of the original's use of ZooKeeper that a rule removes; others are shown with the coordinator's own tests."""

from __future__ import annotations

import pytest

from tests.model.cluster import ROOT, SimCluster
from tests.twin_0132.cluster import Coordinator0132, IncompleteAssignmentError, assign_0132
from tests.unit.cluster.coordinators import PATHS, World
from waltz_core.base.edge import ZkRequest, ZkSet
from waltz_core.cluster.assignment import Member, assign
from waltz_core.cluster.coordinator import Coordinator
from waltz_core.zookeeper import znodes
from waltz_core.zookeeper.paths import cluster_paths
from waltz_core.zookeeper.znodes import EMPTY_ASSIGNMENT
from waltz_testing.simulation.world_zookeeper import Caller

both = pytest.mark.parametrize("on", [False, True], ids=["0.13.2", "ours"])


@both
def test_a_preferred_partition_leaves_no_partition_without_a_server(on: bool) -> None:
    """zk-D1: two servers, three partitions, one claim."""
    members = [Member(1), Member(2, (2,))]
    try:
        made = (assign if on else assign_0132)(EMPTY_ASSIGNMENT, 3, members, 1)
    except IncompleteAssignmentError:
        assert not on
    else:
        assert on
        assert sorted(partition for server in made.servers for partition, _ in server.partitions) == [0, 1, 2]


@both
def test_one_server_that_cannot_be_read_keeps_nobody_from_joining(on: bool) -> None:
    """zk-D4."""
    world = World()
    kind = Coordinator if on else Coordinator0132
    first = world.server(kind=kind)
    world.put(f"{PATHS.servers}/stray", None)
    world.settle()
    world.server(kind=kind)
    world.settle()
    assert (len(first.owned) < 4) is on


def test_an_assignment_that_somebody_wrote_meanwhile_is_not_written_over() -> None:
    """zookeeper 13, two coordinators: generations never fall, whoever was faster."""
    cluster = SimCluster(13)
    zookeeper, path = cluster.world.zookeeper, cluster_paths(ROOT).servers
    others: list[int] = []
    ask = zookeeper.request

    def between(node: Caller, request: ZkRequest) -> None:
        if not others and isinstance(request, ZkSet) and request.path == path:
            others.append(7)
            theirs = znodes.PartitionAssignment(0, 1, (znodes.ServerPartitions(99, ((0, 7),)),))
            zookeeper.write([ZkSet(0, path, znodes.encode_partition_assignment(theirs), -1)])
        ask(node, request)

    zookeeper.request = between  # type: ignore[method-assign]  # somebody else is faster
    cluster.start()
    cluster.until_open()
    (found,) = znodes.decode_partition_assignment(zookeeper.read(path) or b"").servers
    assert others
    assert found.partitions == ((0, 8),)

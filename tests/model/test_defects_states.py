"""Replica states that cannot be written to ZooKeeper: said once, tried again with growing pauses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model.cluster import SimCluster
from tests.model.test_server import PATHS, session_of
from waltz_core.base.edge import ZkError, ZkFailed, ZkGet, ZkRequest, ZkSet
from waltz_core.zookeeper import znodes
from waltz_testing.simulation.world_zookeeper import Caller


@pytest.mark.parametrize("error", [ZkError.NO_NODE, ZkError.REFUSED])
def test_states_that_are_refused_are_not_asked_about_ten_times_a_second(error: ZkError) -> None:
    """Before, every 100 ms for ever, and nobody was told."""
    cluster = SimCluster(14)
    world = cluster.world
    ask = world.zookeeper.request
    seen: list[Any] = []
    refusing = [True]

    def between(node: Caller, request: ZkRequest) -> None:
        if isinstance(request, (ZkSet, ZkGet)) and request.path == PATHS.partition(0):
            seen.append(request)
            states = isinstance(request, ZkSet) and znodes.decode_partition_metadata(request.data or b"").replica_states
            gone = error is ZkError.NO_NODE and len(seen) > 3
            if refusing[0] and (states or gone):
                node.post_later(1, ZkFailed(request.ticket, error))
                return
        ask(node, request)

    world.zookeeper.request = between  # type: ignore[method-assign]  # an access list, or a znode that is gone
    cluster.start()
    world.run(world.now + 60_000)
    count = len(seen)
    world.run(world.now + 240_000)

    assert len(seen) - count < 60  # one look and one write every 10 to 20 s
    reports = [report.text for _, report in cluster.servers[0].reports]
    assert sum(f"states of its replicas cannot be written: {error.value}" in text for text in reports) == 1
    (partition,) = cluster.servers[0].machine.snapshot(world.now).partitions
    assert error.value in partition.reason

    refusing[0] = False
    cluster.until_open()
    assert len(session_of(cluster).replica_states) == 3
    assert any(
        "states of its replicas are in ZooKeeper again" in report.text for _, report in cluster.servers[0].reports
    )

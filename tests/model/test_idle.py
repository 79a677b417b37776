"""What a cluster with nothing to do costs: a step of any process, and how often one is made, whatever it holds."""

from __future__ import annotations

import gc
import sys
from types import FrameType

from tests.model.cluster import SimCluster
from waltz_testing.simulation.world import SimNode

MINUTE = 60_000


def calls_of_an_empty_step(node: SimNode) -> int:
    """Functions of the core that run when a step has nothing to do, and the next one is asked for."""
    machine, now = node.machine, node.world.now
    assert (due := machine.deadline()) is None or due > now
    count = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call" and "waltz_core" in frame.f_code.co_filename

    gc.collect()
    gc.disable()  # a collection closes generators of the core that others left suspended, which would be counted
    sys.setprofile(called)
    try:
        machine.step(now, [], [])
        machine.deadline()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def idle_costs(partitions: int) -> tuple[list[int], int]:
    """Calls in an empty step of each process of an idle cluster, and the steps of all of them in a minute."""
    cluster = SimCluster(1, partitions=partitions, storage_nodes=1)
    cluster.start()
    cluster.until_open()
    world = cluster.world
    world.run(world.now + MINUTE)  # what belongs to the beginning is over
    steps = 0

    def on_step(node: SimNode, events: object, out: object) -> None:
        nonlocal steps
        steps += 1

    world.on_step = on_step
    world.run(world.now + MINUTE)
    nodes = [*cluster.servers, *(storage.node for storage in cluster.storages)]
    return [calls_of_an_empty_step(node) for node in nodes], steps


def test_idle_partitions_cost_a_process_nothing() -> None:
    few, steps_of_few = idle_costs(3)
    many, steps_of_many = idle_costs(500)
    assert many == few
    assert max(steps_of_few, steps_of_many) < 12, "only sessions with ZooKeeper are kept alive"

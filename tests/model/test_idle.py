"""What a cluster with nothing to do costs: a step of any process, and how often one is made, whatever it holds."""

from __future__ import annotations

import gc
import sys
from types import FrameType

import attrs
import pytest

from tests.model.app import App
from tests.model.cluster import SimCluster
from tests.model.observer import Observer
from tests.model.test_phases import HABITS
from waltz_core.access.admission import Places
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


@pytest.mark.parametrize("by_server", [False, True])
def test_hours_without_anything_to_do_end_no_connection(by_server: bool) -> None:
    """Whoever keeps a connection to another process says something before that takes it for forgotten."""
    places = Places(unproven_ms=MINUTE // 2, idle_ms=30 * MINUTE)  # as configurations have it
    options = {"places": places}
    cluster = SimCluster(1, servers=3, partitions=6, server_options=options, storage_options=options)
    cluster.start()
    cluster.until_open()
    App(Observer(cluster), 0, attrs.evolve(HABITS, by_server=by_server)).start()  # reads no payload, so has no request
    world = cluster.world
    world.run(world.now + MINUTE // 4)
    nodes = [*cluster.servers, *(storage.node for storage in cluster.storages)]
    connections = sum(len(node.conns) for node in nodes)
    ended: list[tuple[str, object]] = []
    world.on_rare = lambda node, effect: ended.append((node.name, effect))
    world.run(world.now + 180 * MINUTE)
    assert ended == []
    assert sum(len(node.conns) for node in nodes) == connections > 12

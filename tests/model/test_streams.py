"""Whole processes: streams cut into pieces of any size, and events that belong to nothing they know."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tests.model.test_scenarios import calm, loaded
from waltz_core.base.edge import Closed, Dialed, Received, Writable, ZkChanged, ZkDone, ZkError, ZkFailed
from waltz_testing.simulation.world import SimNode

STRAYS: tuple[Callable[[Random], Any], ...] = (
    lambda rng: Received(rng.choice((-1, 1)) * 1_000_000, rng.randbytes(30)),
    lambda rng: Closed(rng.choice((-1, 1)) * 1_000_000, "gone"),
    lambda rng: Writable(rng.choice((-1, 1)) * 1_000_000, rng.random() < 0.5),
    lambda rng: Dialed(-1_000_000),
    lambda rng: ZkDone(10**9),
    lambda rng: ZkFailed(10**9, rng.choice(list(ZkError))),
    lambda rng: ZkChanged(rng.choice(("/", "/waltz", "/waltz/nobody", "/waltz/store/partitions/0"))),
)


@pytest.mark.parametrize("piece", [1, 2, 7, 64])
def test_pieces_of_any_size_make_the_same_log(piece: int) -> None:
    """One byte at a time is as good as everything at once, for every process and protocol."""
    run = loaded(calm(500), commits=1)
    run.world.network.piece = piece
    run.world.network.latency = (0, 0)
    assert run.world.run_while(lambda: run.observer.counts["commits"] < 120, 60_000, every=5)
    run.world.network.piece = 0
    run.settle()


@pytest.mark.parametrize("seed", [600, 620, 640])
def test_events_that_belong_to_nothing_change_nothing(seed: int) -> None:
    """Bytes of a connection given up just now, answers to requests of a former life."""
    run = loaded(calm(seed), commits=1)
    rng = Random(seed)

    def disturb() -> None:
        nodes: list[SimNode] = [node for node in run.world.nodes.values() if node.alive and not node.frozen]
        node = rng.choice(nodes)
        strays = STRAYS if node.uses_zookeeper else STRAYS[:3]
        node.post(rng.choice(strays)(rng))
        if run.faults.on:
            run.world.after(rng.randrange(20), disturb)

    disturb()
    run.world.run(run.world.now + 15_000)
    run.settle()

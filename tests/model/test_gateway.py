"""Gateways by seed: one commit at most for each key, and what callers are told is true."""

from __future__ import annotations

from collections import Counter

from tests.model.gateway_world import GatewayWorld


def test_of_all_attempts_of_a_key_one_commits_whatever_dies() -> None:
    counts: Counter[str] = Counter()
    for seed in range(40):
        world = GatewayWorld(seed)
        try:
            world.run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        counts.update(world.counts)
    for name, least in (("committed", 400), ("repeated", 40), ("lock-conflict", 20), ("unknown", 20), ("faults", 60)):
        assert counts[name] >= least, counts


def test_a_seed_does_the_same_every_time() -> None:
    def run() -> tuple[object, ...]:
        world = GatewayWorld(7)
        world.run()
        return world.cluster.world.now, world.cluster.world.digest(), world.counts

    assert run() == run()

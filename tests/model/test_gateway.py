"""Gateways by seed: one commit at most for each key, what callers are told is true, and feeds have no gap."""

from __future__ import annotations

from collections import Counter

from tests.model.gateway_feeds import LEFT_BEHIND, RESUMED
from tests.model.gateway_world import GatewayWorld


def test_of_all_attempts_of_a_key_one_commits_and_feeds_lack_and_repeat_nothing_whatever_dies() -> None:
    counts: Counter[str] = Counter()
    marks: Counter[str] = Counter()
    for seed in range(30):
        world = GatewayWorld(seed)
        try:
            world.run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        counts.update(world.counts)
        marks.update(world.marks)
    for name, least in (("committed", 400), ("repeated", 40), ("lock-conflict", 20), ("unknown", 20), ("faults", 60)):
        assert counts[name] >= least, counts
    assert min(marks[RESUMED], marks[LEFT_BEHIND]) >= 10, marks


def test_a_seed_does_the_same_every_time() -> None:
    def run() -> tuple[object, ...]:
        world = GatewayWorld(7)
        world.run()
        return world.cluster.world.now, world.cluster.world.digest(), world.counts

    assert run() == run()

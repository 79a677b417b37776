"""The application layer by seed: every outcome is true, and nothing is applied twice or forgotten."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.model.application_world import ApplicationWorld


@pytest.mark.parametrize("seed", range(100))
def test_what_an_application_is_told_is_true_whatever_happens(seed: int) -> None:
    ApplicationWorld(seed).run()


def test_a_seed_does_the_same_every_time() -> None:
    def run() -> tuple[object, ...]:
        world = ApplicationWorld(7)
        world.run()
        return world.now, world.log, world.counts, [str(call.outcome) for call in world.calls if call.outcome == "left"]

    assert run() == run()


def test_the_seeds_reach_what_they_are_for() -> None:
    counts: Counter[str] = Counter()
    for seed in range(100):
        world = ApplicationWorld(seed)
        world.run()
        counts.update(world.counts)
    for name in ("applied", "submitted", "declined", "keyed", "keyed again", "keys found", "KeyReused", "GaveUp"):
        assert counts[name] > 50, name
    for name in ("between two steps", "in a commit", "behind a commit", "view regressed"):
        assert counts[f"crashes: {name}"] > 5, name

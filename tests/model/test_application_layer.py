"""The application layer by seed: every outcome is true, and nothing is applied twice or forgotten."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.model.application_world import ApplicationWorld
from tests.model.whole_application import play_seed


@pytest.mark.parametrize("seed", range(100))
def test_what_an_application_is_told_is_true_whatever_happens(seed: int) -> None:
    ApplicationWorld(seed).run()


def test_a_database_that_is_put_back_while_nothing_is_written_is_noticed_at_the_next_commit() -> None:
    ApplicationWorld(1795387667119).run()


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
    assert counts["Unavailable"] > 50
    assert counts["refused"] > 20
    assert counts["runs of outcomes"] > 50
    assert min(counts["right expectations"], counts["wrong expectations"]) > 50
    for name in ("between two steps", "in a commit", "behind a commit", "view regressed", "cannot apply", "paused"):
        assert counts[f"crashes: {name}"] > 5, name


def test_the_same_holds_of_the_whole_client_on_a_whole_cluster() -> None:
    counts: Counter[str] = Counter()
    for seed in range(40):
        played = play_seed(seed)
        assert played.failure is None, (seed, "\n".join(played.lines))
        counts.update(played.counts)
    for name, least in (("committed", 200), ("conflicts", 50), ("faults", 40), ("gave up", 10), ("declined", 3)):
        assert counts[name] >= least, counts

"""Real channels, pumps, listeners and dialers on sockets in memory that fail in every way, by seed.

`python -m tests.driver_nets --seeds A..B` runs more of them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.driver_nets.life import ENDINGS, Life, live

_SEEDS = range(1, 61)
_SHORT = 13  # the seed of the life that is ended at each step
_EVERY = 5  # of its steps, in a run of the tests; the command tries each


def test_whatever_befalls_a_connection_is_its_own() -> None:
    outcomes = [live(seed) for seed in _SEEDS]
    assert sum(one.connections for one in outcomes) > 400
    assert sum(one.broken for one in outcomes) > 50
    assert sum(one.bytes for one in outcomes) > 20_000_000


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_driver_that_is_ended_at_any_step_leaves_nothing_behind(victim: int, ending: str) -> None:
    steps = live(_SHORT, partial(Life, short=True)).steps
    assert steps > 100
    for at in range(1 + victim, steps, _EVERY):
        live(_SHORT, partial(Life, short=True, end_at=at, ending=ending, victim=victim))


def test_a_seed_is_the_same_life_again() -> None:
    def lines(seed: int) -> list[Any]:
        outcome = live(seed)
        return [outcome.connections, outcome.bytes, outcome.steps, outcome.trace]

    for seed in (3, 4, 5):
        assert lines(seed) == lines(seed)

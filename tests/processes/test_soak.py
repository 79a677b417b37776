"""What a soak calls growth, and a short one."""

from __future__ import annotations

import random

from tests.soak.__main__ import judge
from tests.soak.life import Plan
from tests.soak.samples import CLUSTER, Sample
from tests.soak.slopes import slopes

HOUR = 3600.0
PLAN = Plan(2 * HOUR)


def memory(leak: float, *, kept: float = 0.0, lives: int = 4, hours: float = 2.0, noise: float = 2.0) -> list[Sample]:
    """A process of 60 MiB that grows by `leak` an hour in each life, and keeps `kept` an hour across restarts."""
    chance = random.Random(1)
    found = []
    for number in range(int(hours * HOUR / 10)):
        at = number * 10.0
        length = hours * HOUR / lives
        life, age = int(at // length) + 1, at % length
        value = 60 + kept * at / HOUR + leak * age / HOUR + chance.gauss(0, noise) - 20 * (age < 100)
        found.append(Sample(at, age, "server-0", life, {"memory_mib": value}))
    return found


def growing(samples: list[Sample]) -> set[str]:
    return {one.kind for one in slopes(samples, warm_up=PLAN.warm_up, block=PLAN.block) if one.grows}


def test_memory_that_goes_up_and_down_and_warms_up_is_flat() -> None:
    assert growing(memory(0)) == set()
    assert growing(memory(4)) == set(), "below the allowance"


def test_a_leak_is_seen_although_each_restart_gives_the_memory_back() -> None:
    assert growing(memory(25)) == {"within lives"}


def test_what_a_restart_does_not_give_back_is_seen_although_each_life_is_short() -> None:
    assert growing(memory(0, kept=25, lives=16)) == {"over the run"}


def test_noise_as_large_as_a_leak_shows_nothing() -> None:
    assert growing(memory(10, noise=200.0)) == set()


def test_a_run_of_which_too_little_was_seen_does_not_pass() -> None:
    seen = slopes(memory(0, hours=0.2, lives=1), warm_up=PLAN.warm_up, block=PLAN.block)
    assert judge(seen, ["server-0", "storage-0"]) == [
        "server-0: too little was seen to judge",
        "storage-0: too little was seen to judge",
    ]
    assert judge(slopes(memory(0), warm_up=PLAN.warm_up, block=PLAN.block), ["server-0"]) == []


def test_latency_that_creeps_is_seen() -> None:
    creeping = [Sample(at, at, CLUSTER, 1, {"p50_ms": 8 + at / 100}) for at in map(float, range(0, 7200, 10))]
    (problem,) = judge(slopes(creeping, warm_up=PLAN.warm_up, block=PLAN.block), [CLUSTER])
    assert problem.startswith("cluster p50_ms over the run: GROWS, +36.00")

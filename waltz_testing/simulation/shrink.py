"""Makes a plan that fails smaller, as long as it fails for the same reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from waltz_testing.simulation.plan import Plan, Step
from waltz_testing.simulation.play import Played

RUNS_MAX = 400


def shrink(failed: Played, run: Callable[[Plan], Played]) -> Played:
    """The smallest run found that fails as `failed` does.

    Steps are left out, in halves, quarters and so on down to one by one; members and pauses are made fewer and shorter.
    """
    assert failed.failure is not None
    best, left = failed, RUNS_MAX
    improved = True
    while improved and left > 0:
        improved = False
        for candidate in _smaller(best.plan):
            left -= 1
            played = run(candidate)
            if played.failure is not None and played.failure.name == failed.failure.name:
                best, improved = played, True
                break
            if left <= 0:
                break
    return best


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Plans that are simpler, the boldest first."""
    size = len(plan.steps) // 2
    while size:
        for start in range(0, len(plan.steps), size):
            yield attrs.evolve(plan, steps=plan.steps[:start] + plan.steps[start + size :])
        size //= 2
    if plan.members > 1:
        yield attrs.evolve(plan, members=plan.members - 1)
    steps = _hurried(plan.steps)
    if steps != plan.steps:
        yield attrs.evolve(plan, steps=steps)


def _hurried(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Without long pauses."""
    hurried, at, before = [], 0, 0
    for step in steps:
        at, before = at + min(step.at_ms - before, 10), step.at_ms
        hurried.append(attrs.evolve(step, at_ms=at))
    return tuple(hurried)

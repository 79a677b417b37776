"""`simulate`: an application on a simulated cluster, with faults by seed, in virtual time.

`docs/howto/seeds.md` shows how.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from random import Random

import attrs
import trio

from waltz_testing.simulation.plan import FAULTS, Plan, Submit, check_faults, draw_plan
from waltz_testing.simulation.play import Played, Simulated, check_submit, play
from waltz_testing.simulation.shrink import shrink
from waltz_trio.client.arguments import at_least_1, whole
from waltz_trio.client.shown import shown


class SimulationError(AssertionError):
    """A run went wrong.

    Attributes:
        played: the smallest run that was found to go wrong so; `played.plan` is what to `play` to see it again.
        seed: of the run that went wrong first.
    """

    def __init__(self, played: Played, seed: int | None, runs: int) -> None:
        assert played.failure is not None
        plan, lines = played.plan, "\n".join(played.lines)
        again = "" if seed is None else f"seed {seed} fails; again by simulate(..., seeds=[{seed}]). "
        smaller = f"The smallest of {runs} variants" if runs > 1 else "The run"
        super().__init__(
            f"{played.failure.name}: {played.failure.text}\n{again}{smaller} has {plan.calls} calls, "
            f"{len(plan.steps) - plan.calls} faults and {plan.members} members:\n\n{lines}\n"
        )
        self.played = played
        self.seed = seed


@attrs.frozen
class Summary:
    """What the runs of `simulate` have done. A count of 0 where you expect some means that it was not tested."""

    runs: int
    simulated_s: float
    counts: dict[str, int]  # calls that committed, declined, gave up or stayed unknown; conflicts, applied, faults

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        return f"{self.runs} runs, {self.simulated_s:.0f} simulated seconds: {counts}"


def simulate(
    application: Simulated,
    workload: Callable[[Random], Submit],
    *,
    seeds: Iterable[int] = range(100),
    calls: int = 40,
    partitions: int = 1,
    faults: Collection[str] = FAULTS,
) -> Summary:
    """Run an application by seeds: two servers, three storage nodes, one to three members with a view each.

    A run that goes wrong is made as small as possible, and shown step by step. For plain tests: it runs Trio itself.

    Args:
        application: the view, and what must hold.
        workload: given a generator of random numbers, one call of `submit`. It must draw from nothing else.
        seeds: one run each; the same seed is the same run.
        calls: of `workload` in each run.
        partitions: of the cluster.
        faults: kinds that may strike; () = none.

    Returns:
        What was done in all runs.

    Raises:
        SimulationError: an invariant does not hold; `apply` or `decide` raises; a call never ends; views differ. Its
            text is the transcript of the smallest run that goes wrong so.
        ValueError: an unknown kind of fault, no seeds, or a partition that there is not.
        TypeError: the workload gives something else than a `Submit`.
        RuntimeError: Trio runs already.
    """
    _check_application(application)
    if not callable(workload):
        raise TypeError(f"expected a workload, a function of a random.Random, found {shown(workload)}")
    if isinstance(seeds, str | bytes) or not isinstance(seeds, Iterable):
        raise TypeError(f"seeds: expected whole numbers, such as range(100), found {shown(seeds)}")
    at_least_1(calls, "calls")
    at_least_1(partitions, "partitions")
    check_faults(faults)
    if trio.lowlevel.in_trio_run():
        raise RuntimeError("simulate runs Trio itself: call it from a plain test, not from an async function of Trio")
    total: Counter[str] = Counter()
    runs, simulated_ms = 0, 0
    for seed in seeds:
        whole(seed, "a seed")
        plan = draw_plan(
            seed, lambda rng: check_submit(workload(rng), partitions), calls=calls, partitions=partitions, faults=faults
        )
        played = play(application, plan)
        if played.failure is not None:
            _explain(application, played, seed)
        total.update(played.counts)
        runs += 1
        simulated_ms += played.simulated_ms
    if not runs:
        raise ValueError("seeds is empty: nothing would be tried; write seeds=range(100)")
    return Summary(runs, simulated_ms / 1000, dict(total))


def _check_application(application: object) -> None:
    if not isinstance(application, Simulated):
        raise TypeError(f"expected an application to simulate, found {shown(application)}; write Simulated(view=...)")


def check_plan(application: Simulated, plan: Plan) -> Played:
    """Run one plan, such as hypothesis draws them (`waltz_testing.strategies.plans`), which makes it smaller itself.

    Raises:
        SimulationError: as `simulate`.
    """
    _check_application(application)
    if not isinstance(plan, Plan):
        raise TypeError(f"expected a Plan, such as plans() of waltz_testing.strategies draws, found {shown(plan)}")
    played = play(application, plan)
    if played.failure is not None:
        raise SimulationError(played, None, 1)
    return played


def _explain(application: Simulated, failed: Played, seed: int) -> None:
    again = play(application, failed.plan)
    if (again.failure, again.lines) != (failed.failure, failed.lines):
        assert failed.failure is not None
        differs = next((pair for pair in zip(failed.lines, again.lines, strict=False) if pair[0] != pair[1]), ("", ""))
        raise SimulationError(
            attrs.evolve(
                failed,
                lines=[
                    *failed.lines,
                    "",
                    "The second run of this seed differs: the application looks at something else than its state and",
                    "its arguments, such as a clock, random numbers, or the order of a set. First:",
                    *differs,
                ],
            ),
            seed,
            1,
        )
    runs = 0

    def counted(plan: Plan) -> Played:
        nonlocal runs
        runs += 1
        return play(application, plan)

    raise SimulationError(shrink(failed, counted), seed, runs)

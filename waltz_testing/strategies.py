"""Plans of simulated runs as strategies of hypothesis, which makes a failing one smaller itself. Needs `hypothesis`."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import strategies as st

from waltz_testing.simulation.plan import FAULTS, Fault, Plan, Step, Submit, check_faults
from waltz_trio.client.arguments import at_least_1
from waltz_trio.client.shown import shown

_FOR_MS_MAX = 8_000


def plans(
    submits: st.SearchStrategy[Submit],
    *,
    steps_max: int = 20,
    members_max: int = 3,
    partitions: int = 1,
    faults: Collection[str] = FAULTS,
) -> st.SearchStrategy[Plan]:
    """Runs of an application for `check_plan`.

    Args:
        submits: the calls, such as `st.builds(Submit, st.just(withdraw), st.integers(1, 100))`.
        steps_max: calls and faults, at most.
        members_max: processes with a view each, at most.
        partitions: of the cluster.
        faults: kinds that may strike; () = none.
    """
    if not isinstance(submits, st.SearchStrategy):
        raise TypeError(f"expected a strategy of calls, found {shown(submits)}; write st.builds(Submit, ...)")
    at_least_1(members_max, "members_max")
    at_least_1(partitions, "partitions")
    check_faults(faults)
    what: st.SearchStrategy[Submit | Fault] = submits
    if faults:
        struck = st.builds(Fault, st.sampled_from(sorted(faults)), st.integers(0, _FOR_MS_MAX), st.integers(0, 5))
        what = st.one_of(submits, submits, struck)
    # Pauses rather than moments: what is left stays together when hypothesis takes a step out.
    step = st.tuples(st.sampled_from((0, 1, 10, 200)), what, st.integers(0, members_max - 1))
    return st.builds(_plan, st.integers(0, 2**16), st.lists(step, max_size=steps_max), st.just(partitions))


def _plan(seed: int, drawn: list[tuple[int, Submit | Fault, int]], partitions: int) -> Plan:
    steps, at = [], 0
    for pause, what, member in drawn:
        at += pause
        steps.append(Step(at, what, member))
    members = 1 + max((step.member for step in steps), default=0)
    return Plan(seed, tuple(steps), members, partitions=partitions)

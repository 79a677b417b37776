"""What is to happen in one run, as plain data: calls and faults, each at its moment."""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from typing import Any

import attrs

from waltz_trio import Key, Retry

FAULTS = (
    "kill member",
    "kill server",
    "kill storage node",
    "cut off",
    "pause",
    "break connections",
    "lose ZooKeeper",
    "slow network",
    "lock view",
)
"""What may go wrong. Each ends by itself; one storage node at most is down at a time."""


def check_faults(faults: Collection[str]) -> None:
    """See that each fault is one of `FAULTS`.

    Raises:
        ValueError: another one.
        TypeError: one text, whose characters would be taken for faults.
    """
    if isinstance(faults, str):
        raise TypeError(f"faults are a collection of texts, found {faults!r}; write faults=[{faults!r}]")
    unknown = sorted(set(faults) - set(FAULTS))
    if unknown:
        raise ValueError(f"unknown fault {unknown[0]!r}; known: {', '.join(FAULTS)}")


_TOGETHER = 0.6  # share of the calls that begin within a few milliseconds of the one before


@attrs.frozen(init=False)
class Submit:
    """A call of `Application.submit`: `Submit(decide, *args, partition=0, key=None, ...)`."""

    decide: Callable[..., Any]
    args: tuple[Any, ...]
    partition: int
    key: str | Key | None
    until: str
    retry: Retry

    def __init__(
        self,
        decide: Callable[..., Any],
        *args: Any,
        partition: int = 0,
        key: str | Key | None = None,
        until: str = "committed",
        retry: Retry = Retry(),  # noqa: B008 - a value
    ) -> None:
        self.__attrs_init__(decide, args, partition, key, until, retry)

    def __str__(self) -> str:
        name = getattr(self.decide, "__name__", repr(self.decide))
        parts = [*map(repr, self.args), *([] if self.key is None else [f"key={self.key!r}"])]
        return f"{name}({', '.join(parts)})"


@attrs.frozen
class Fault:
    """Something goes wrong, and is right again after a while."""

    kind: str  # one of FAULTS
    for_ms: int
    whom: int = 0  # which member, server or storage node, where it strikes one

    def __str__(self) -> str:
        return f"{self.kind} {self.whom} for {self.for_ms} ms"


@attrs.frozen
class Step:
    """One thing that happens."""

    at_ms: int  # after every member is up
    what: Submit | Fault
    member: int = 0  # who calls


@attrs.frozen
class Plan:
    """One run."""

    seed: int  # of everything that is left to chance: how long messages travel, which task runs first
    steps: tuple[Step, ...]
    members: int = 2  # processes with a view each
    servers: int = 2
    partitions: int = 1

    @property
    def calls(self) -> int:
        """How many of the steps are calls."""
        return sum(isinstance(step.what, Submit) for step in self.steps)


def draw_plan(
    seed: int, workload: Callable[[Random], Submit], *, calls: int, partitions: int, faults: Collection[str]
) -> Plan:
    """The plan of a seed: calls, often several at once, and a few kinds of faults, or none."""
    rng = Random(f"{seed}/plan")
    members, steps, at = rng.choice((1, 2, 2, 3)), [], 0
    for _ in range(calls):
        at += rng.randrange(3) if rng.random() < _TOGETHER else rng.randrange(200)
        steps.append(Step(at, workload(rng), rng.randrange(members)))
    kinds = rng.sample(sorted(faults), min(len(faults), rng.choice((0, 1, 2, 3))))
    for kind in kinds:
        for _ in range(rng.randint(1, 3)):
            fault = Fault(kind, rng.choice((20, 300, 2_000, 8_000)), rng.randrange(6))
            steps.append(Step(rng.randrange(at + 1), fault))
    return Plan(seed, tuple(sorted(steps, key=lambda step: step.at_ms)), members, 2, partitions)

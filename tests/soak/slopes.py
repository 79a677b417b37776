"""Whether figures of a long run grow.

Two lines are fitted to each figure of a process: one *within lives*, with one slope for all its lives and a level of
each life's own, shows what leaks as long as a process runs; one *over the run* shows what a restart does not give back.
A storage node that takes or leaves the place of another begins a new life there, and is compared over the run with what
it was in the same place. Samples are averaged over blocks of some minutes first, since samples next to each other say
nearly the same. A slope is a failure if it is above its allowance by more than three standard errors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf, sqrt

import attrs

from tests.soak.samples import CLUSTER, Sample

ALLOWED: Mapping[str, float] = {  # an hour
    "memory_mib": 8.0,
    "descriptors": 2.0,
    "threads": 1.0,
    "disk_mib": 8.0,
    "p50_ms": 4.0,
    "cpu_us_per_commit": 400.0,
}
WITHIN = ("memory_mib", "descriptors", "threads")
OVER = (*WITHIN, "disk_mib")
OF_CLUSTER = ("p50_ms", "cpu_us_per_commit")
_ERRORS = 3.0
_REPLICA_MIB = 0.05  # the disk of a storage node that holds none is smaller
_BLOCKS_MIN = 6  # fewer show nothing

Point = tuple[int, float, float]  # group, seconds, value


@attrs.frozen
class Slope:
    """A line through the blocks of one figure."""

    name: str  # of the process
    figure: str
    kind: str  # "within lives" or "over the run"
    blocks: int
    per_hour: float
    error: float
    level: float  # the mean
    allowed: float

    @property
    def judged(self) -> bool:
        """Enough was seen to judge it."""
        return self.blocks >= _BLOCKS_MIN and self.error < inf

    @property
    def grows(self) -> bool:
        """Above what is allowed, beyond chance."""
        return self.judged and self.per_hour - _ERRORS * self.error > self.allowed

    def __str__(self) -> str:
        verdict = "GROWS" if self.grows else "flat" if self.judged else "too little was seen"
        numbers = f"{self.per_hour:+.2f} ± {self.error:.2f} an hour (allowed {self.allowed:g}), mean {self.level:.1f}"
        return f"{self.name} {self.figure} {self.kind}: {verdict}, {numbers}, {self.blocks} blocks"


def slopes(samples: Sequence[Sample], *, warm_up: float, block: float) -> list[Slope]:
    """All slopes of a run.

    Args:
        samples: in any order.
        warm_up: seconds at the begin of each life that are left out.
        block: seconds that are averaged.
    """
    by_name: dict[str, list[Sample]] = defaultdict(list)
    for sample in sorted(samples, key=lambda one: one.at):
        by_name[sample.name].append(sample)
    found = []
    for name, of_name in sorted(by_name.items()):
        lives = [life for life in _lives(of_name) if life[-1].at - life[0].at > warm_up]
        warm = [(number, one) for number, life in enumerate(lives) for one in life if one.at - life[0].at >= warm_up]
        for figure in OF_CLUSTER if name == CLUSTER else OVER:
            points = [(number, one.at, one.values[figure]) for number, one in warm if figure in one.values]
            if points and figure in WITHIN:
                found.append(fit(name, figure, "within lives", blocks(points, block)))
            if points:
                alike = [(int(_spare(one)), one.at, one.values[figure]) for _, one in warm if figure in one.values]
                found.append(fit(name, figure, "over the run", blocks(alike, block)))
    return found


def _lives(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Cut where the process was started again, or took another place."""
    found: list[list[Sample]] = []
    for sample in samples:
        if not found or (found[-1][-1].life, _spare(found[-1][-1])) != (sample.life, _spare(sample)):
            found.append([])
        found[-1].append(sample)
    return found


def _spare(sample: Sample) -> bool:
    """A storage node without a replica."""
    return sample.values.get("disk_mib", 1.0) < _REPLICA_MIB


def blocks(points: Iterable[Point], size: float) -> list[Point]:
    """Means over blocks of `size` seconds of one group each; a block is left out that is less than half covered."""
    gathered: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for group, at, value in points:
        gathered[group, int(at // size)].append((at, value))
    full = max((len(one) for one in gathered.values()), default=0)
    return [
        (group, sum(at for at, _ in one) / len(one), sum(value for _, value in one) / len(one))
        for (group, _), one in gathered.items()
        if 2 * len(one) >= full
    ]


def fit(name: str, figure: str, kind: str, points: Sequence[Point]) -> Slope:
    """Least squares with one slope, and a level of each group's own."""
    groups: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for group, at, value in points:
        groups[group].append((at / 3600, value))
    centred = []
    for of_group in groups.values():
        if len(of_group) < 2:
            continue  # a level of its own explains it whole
        at_mean = sum(at for at, _ in of_group) / len(of_group)
        mean = sum(value for _, value in of_group) / len(of_group)
        centred += [(at - at_mean, value - mean) for at, value in of_group]
    used = sum(len(one) >= 2 for one in groups.values())
    level = sum(value for _, _, value in points) / len(points) if points else 0.0
    spread = sum(at * at for at, _ in centred)
    free = len(centred) - used - 1
    if free < 1 or not spread:
        return Slope(name, figure, kind, len(centred), 0.0, inf, level, ALLOWED[figure])
    slope = sum(at * value for at, value in centred) / spread
    rest = sum((value - slope * at) ** 2 for at, value in centred)
    return Slope(name, figure, kind, len(centred), slope, sqrt(rest / free / spread), level, ALLOWED[figure])

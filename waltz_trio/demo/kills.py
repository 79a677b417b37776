"""When to kill what: drawn from a seed before the demonstration begins."""

from __future__ import annotations

import random

from waltz_core.base.record import record

CLUSTER = "cluster"
AT_LEAST = 5  # fewer prove little

_FIRST, _LAST = 0.08, 0.86  # share of the time at which kills begin and end
_DOWN = 0.2, 1.4  # seconds until a restart
_TOGETHER = 0.2  # share of kills that hit two at once


@record
class Strike:
    """What is killed at one moment, and for how long it is gone."""

    at: float  # seconds from the start
    targets: tuple[str, ...]  # "server 0", "storage 2", "client 1", or the whole "cluster"
    down: float


def plan(seconds: float, kills: int, servers: int, storages: int, clients: int, seed: int) -> list[Strike]:
    """At least `kills` kills of nodes; one of the whole cluster and one of a client are among the strikes."""
    rng = random.Random(seed)
    nodes = [f"server {index}" for index in range(servers)] + [f"storage {index}" for index in range(storages)]
    targets: list[tuple[str, ...]] = [(CLUSTER,), (rng.choice(nodes[:servers]),), (rng.choice(nodes[servers:]),)]
    while sum(map(len, targets)) < kills:
        targets.append(tuple(sorted(rng.sample(nodes, 2 if rng.random() < _TOGETHER else 1))))
    rest = targets[1:]
    rest.append((f"client {rng.randrange(clients)}",))
    rng.shuffle(rest)
    rest.insert(len(rest) // 2, (CLUSTER,))
    step = (_LAST - _FIRST) * seconds / len(rest)
    return [
        Strike(_FIRST * seconds + step * (index + rng.random() * 0.6), chosen, rng.uniform(*_DOWN))
        for index, chosen in enumerate(rest)
    ]

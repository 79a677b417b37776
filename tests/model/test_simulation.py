"""Whole clusters under faults: seeds that must pass, the same seed twice, and a checker that is awake."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.model.determinism import traces
from tests.model.faults import MEMBERSHIP
from tests.model.run import COMMITS_MIN, RUN_MS, draw_plan, run_seed
from waltz_core.locks.table import LockTable
from waltz_core.server.append_queue import Barrier
from waltz_core.server.appender import Appender
from waltz_testing.simulation.contents import Sectors
from waltz_testing.simulation.mount import Mount
from waltz_testing.simulation.volume import Volume

HERE = Path(__file__).parent
KEPT = [
    (int(number), not how)  # a seed means what it meant when it was kept: before limits were drawn, or since
    for line in (HERE / "seeds.txt").read_text().splitlines()
    if line and not line.startswith("#")
    for number, _, how in [line.partition(" ")]
]
FIXED = list(range(1000, 1008))
FRESH = [Random(time.time_ns()).randrange(10**6, 10**9) for _ in range(2)]
"""Other runs every time: what they find is a seed to keep."""


@pytest.mark.parametrize(("seed", "limits"), [*KEPT, *((seed, True) for seed in FIXED)])
def test_a_cluster_keeps_its_promises_under_faults(seed: int, limits: bool) -> None:
    result = run_seed(seed, limits=limits)
    assert not result.failure
    assert result.commits >= COMMITS_MIN
    assert result.simulated_ms >= RUN_MS


def test_so_does_one_whose_operator_adds_empties_and_replaces_storage_nodes_meanwhile() -> None:
    seeds = [seed for seed in range(3000, 3030) if draw_plan(seed).spares][:4]
    results = [run_seed(seed) for seed in seeds]
    assert [result.failure for result in results] == [""] * 4
    assert sum(result.counts.get("steps of moves", 0) for result in results) >= 20
    assert len({kind for result in results for kind in result.faults} & set(MEMBERSHIP)) >= 3


def test_so_does_one_with_seeds_that_nobody_has_seen() -> None:
    for seed in FRESH:
        assert not run_seed(seed).failure, f"python -m tests.model.fuzz --seed {seed}"


def test_a_plan_has_what_a_run_must_have() -> None:
    plans = [draw_plan(seed) for seed in range(200)]
    assert all(plan.storages >= 3 and plan.servers >= 2 and len(plan.habits) >= 2 for plan in plans)
    assert all(plan.kinds for plan in plans)


def test_the_same_seed_gives_the_same_trace_whatever_the_order_of_sets_is(tmp_path: Path) -> None:
    (one, other), failed = traces(range(1001, 1004), tmp_path)
    assert not failed
    assert len(one) == 3
    assert one == other


def test_a_simulated_disk_lists_its_directories_in_the_same_order_in_each_process() -> None:
    volume = Volume(Sectors)
    names = [f"journal/{number}" for number in range(20)]
    for name in ["journal", *reversed(names)]:
        volume.make_directory(name)
    assert volume.names_in("journal") == ([], sorted(names))


# ---- a checker that is awake: something is broken on purpose, and must be found ----------------


def _blind_locks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LockTable, "estimate", lambda self, write, read: -1)


def _lying_disks(patch: pytest.MonkeyPatch) -> None:
    """Syncs of data files are said to be done and are not."""
    sync_data = Mount.sync_data

    def skip(self: Mount[Any], fd: int) -> None:
        if not self._opened(fd)[1].endswith(".seg"):
            sync_data(self, fd)

    patch.setattr(Mount, "sync_data", skip)


def _double_apply(patch: pytest.MonkeyPatch) -> None:
    """What the next session finds committed is queued once more."""
    resolved = Appender.resolved

    def again(self: Appender, mark: int, out: list[Any], now: int = 0) -> None:
        flying = [item for item in self._flying if not isinstance(item, Barrier)]
        appends = [(item.takes[0].run.sender, list(item.appends)) for item in flying]
        resolved(self, mark, out, now)
        for sender, requests in appends:
            self.enqueue(sender, requests)

    patch.setattr(Appender, "resolved", again)


def _one_vote(patch: pytest.MonkeyPatch) -> None:
    """One replica is enough to commit."""
    opened = Appender.opened
    patch.setattr(Appender, "opened", lambda self, quorum, replicas: opened(self, 1, replicas))


@pytest.mark.parametrize(
    ("break_it", "found_by"),
    [
        (_blind_locks, ("LockSoundness",)),
        (_lying_disks, ("CommitsDurable",)),
        (_double_apply, ("Outcomes",)),
        (_one_vote, ("CommitsDurable", "CommittedStays", "Truncation")),
    ],
)
def test_a_bug_put_in_on_purpose_is_found(
    break_it: Callable[[pytest.MonkeyPatch], None], found_by: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    for seed in range(2000, 2020):
        failure = run_seed(seed).failure
        if failure:
            break
    assert failure.startswith(tuple(f"InvariantError: {name}" for name in found_by)), failure

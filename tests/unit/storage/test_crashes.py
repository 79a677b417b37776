"""Random lives with crashes, failing disks and rot; the machinery is in `fuzz`."""

from __future__ import annotations

import pytest

from tests.unit.storage.fuzz import run


@pytest.mark.parametrize("seed", range(6))
def test_nothing_acknowledged_is_lost_in_a_crash(seed: int) -> None:
    assert run(seed).appends


@pytest.mark.parametrize("seed", range(6))
def test_nothing_acknowledged_is_lost_on_a_failing_disk(seed: int) -> None:
    run(seed, faults=True)


@pytest.mark.parametrize("seed", range(6))
def test_nothing_rotten_is_served_and_nothing_is_cut_for_it(seed: int) -> None:
    run(seed, rot=True)

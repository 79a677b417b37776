"""Short forms of the long runs: any seed must pass."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.processes import failover, torture


@pytest.mark.slow
def test_random_faults_of_processes_and_network_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "torture.json"
    seed = str(time.time_ns() % 1_000_000)
    assert torture.main(["--seconds", "12", "--seed", seed, "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert found["committed"] > 0
    assert sum(found["faults"].values()) > 0


@pytest.mark.slow
def test_a_partition_moves_when_its_owner_is_killed_paused_or_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "failover.json"
    options = ["--trials", "3", "--session-timeout", "2000", "--json", str(path)]
    assert failover.main([*options, "--kinds", "killed", "paused", "cut off"]) == 0
    kinds = json.loads(path.read_text())["kinds"]
    assert set(kinds) == {"killed", "paused", "cut off"}
    assert all(kind["trials"] == 1 for kind in kinds.values())

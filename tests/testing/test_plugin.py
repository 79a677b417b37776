"""The fixtures for pytest, used as somebody else's tests use them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.processes.cluster import ROOT

TESTS = """
import threading

import pytest

import waltz_sync


def test_plain(waltz_cluster):
    with waltz_sync.open_client(waltz_cluster.url) as client:
        assert client.append(0, waltz_sync.Append(b"x"), timeout=60) == 0
        assert client.num_partitions == waltz_cluster.partitions == 4


@pytest.mark.waltz(partitions=2, servers=2)
def test_marked_and_fresh(waltz_cluster):
    with waltz_sync.open_client(waltz_cluster.url) as client:
        assert client.num_partitions == 2
        assert client.append(0, waltz_sync.Append(b"x"), timeout=60) == 0
        waltz_cluster.kill_server(0)
        waltz_cluster.kill_storage(0)
        assert client.append(1, waltz_sync.Append(b"y"), timeout=60) == 0
        waltz_cluster.restart_storage(0)
        waltz_cluster.restart_server(0)
        waltz_cluster.wait_ready()


@pytest.mark.parametrize("turn", [0, 1])
def test_shared(waltz_session_cluster, turn):
    with waltz_sync.open_client(waltz_session_cluster.url) as client:
        assert client.append(0, waltz_sync.Append(b"x"), timeout=60) == turn


def test_nothing_is_left_of_a_tests_own_cluster():
    assert [thread.name for thread in threading.enumerate()].count("waltz cluster") == 1, "that of the session"
"""


def test_fixtures_give_clusters_of_a_test_and_of_the_session(tmp_path: Path) -> None:
    (tmp_path / "test_bank.py").write_text(textwrap.dedent(TESTS))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "--strict-markers", "-p", "waltz_testing.plugin", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_a_cluster_that_cannot_start_says_why(tmp_path: Path) -> None:
    loaded = "{name.partition('.')[0] for name in sys.modules}"
    program = f"import sys, waltz_testing.plugin; print(sorted({loaded} & {{'waltz_core', 'waltz_trio', 'trio'}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

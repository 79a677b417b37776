"""The fixtures for pytest, used as somebody else's tests use them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.processes.cluster import ROOT
from waltz_core.base.errors import WaltzError
from waltz_testing import EmbeddedCluster, running_cluster

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


def run_in(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder with the plugin."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, "-p", "waltz_testing.plugin", "."],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_fixtures_give_clusters_of_a_test_and_of_the_session(tmp_path: Path) -> None:
    (tmp_path / "test_bank.py").write_text(textwrap.dedent(TESTS))
    done = run_in(tmp_path, "-W", "error", "--strict-markers")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_a_cluster_that_cannot_start_says_why(tmp_path: Path) -> None:
    loaded = "{name.partition('.')[0] for name in sys.modules}"
    program = f"import sys, waltz_testing.plugin; print(sorted({loaded} & {{'waltz_core', 'waltz_trio', 'trio'}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


WRONG = """
import pytest


@pytest.mark.waltz(2)
def test_without_a_name(waltz_cluster): ...


@pytest.mark.waltz(partition=2)
def test_of_another_name(waltz_cluster): ...


@pytest.mark.waltz(partitions=2)
def test_of_the_session(waltz_session_cluster): ...
"""


def test_a_marker_that_would_have_no_effect_is_refused(tmp_path: Path) -> None:
    """A number without a name was passed over, and so was a marker beside the cluster of the session."""
    (tmp_path / "test_wrong.py").write_text(WRONG)
    done = run_in(tmp_path, "--tb=line")
    assert "3 errors" in done.stdout, done.stdout + done.stderr
    takes = "@pytest.mark.waltz takes partitions=, storage_nodes=, servers=, settings=, found "
    assert f"{takes}2\n" in done.stdout
    assert f"{takes}partition\n" in done.stdout
    assert "test_of_the_session: @pytest.mark.waltz is for waltz_cluster; waltz_session_cluster is one" in done.stdout


def test_a_cluster_that_has_ended_says_so_and_why() -> None:
    with running_cluster(partitions=1) as cluster:
        cluster.stop()
        with pytest.raises(RuntimeError, match="this cluster has ended: it was stopped"):
            cluster.kill_server()
    failing = running_cluster(partitions=1)
    cluster = failing.__enter__()
    cluster.tell(fail_storage, cluster.cluster)
    cluster._thread.join()
    with pytest.raises(RuntimeError, match="this cluster has ended: storage-0 cannot continue"):
        cluster.restart_storage()
    with pytest.raises(WaltzError, match="storage-0 cannot continue"):
        failing.__exit__(None, None, None)


async def fail_storage(cluster: EmbeddedCluster) -> None:
    process = cluster.storage(0)
    assert process is not None
    process.cancel()

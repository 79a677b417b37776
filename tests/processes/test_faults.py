"""A real cluster under load, with processes killed, paused and restarted; afterwards the log bears witness."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.processes.cluster import PATIENCE, Cluster, poll, running_cluster
from tests.processes.load import Load, summary
from tests.processes.zookeeper import ZooKeeperServer, running_zookeeper
from tests.witness.log import Verdict

pytestmark = pytest.mark.processes

COMMITS = 200  # between two events


def finish(load: Load, commits: int) -> Verdict:
    """End the load; at least `commits` transactions were acknowledged."""
    verdict = load.finish()
    print(summary(verdict))
    assert verdict.committed >= commits
    return verdict


def loaded(cluster: Cluster, **options: Any) -> Load:
    """Two clients that have begun to write to every partition."""
    load = Load(cluster, **options)
    load.start()
    for partition in range(cluster.partitions):
        cluster.wait_commits(COMMITS, partition)
    return load


@pytest.mark.slow
def test_two_clients_share_a_log_through_submit_and_send(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    options = {"partitions": 2, "servers": 2, "tools_as_processes": True}
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), **options) as cluster:
        load = loaded(cluster, accounts=6)
        owners = cluster.owners()
        verdict = finish(load, 2 * COMMITS)
        for partition, mark in cluster.committed().items():
            group = f"waltz-server.partition-{partition}"
            found = cluster.get(owners[partition], "/metrics")
            assert found["meters"][f"{group}.successful-append"]["count"] == mark + 1
            latency = found["timers"][f"{group}.response-latency"]
            assert latency["count"] == mark + 1
            assert 0 < latency["max"] < PATIENCE
        for name in (*cluster.server_names, *cluster.storage_names):
            cluster.children[name].stop()

    assert set(owners.values()) == set(cluster.server_names), "each server has its share"
    assert verdict.failed["decided again"] > 0, "the clients never got in each other's way"
    assert verdict.unknown_in_log == verdict.unknown_lost == 0, "nothing failed, so nothing may be unknown"
    assert verdict.in_cycle_check > 5, "hardly anybody used the lists"


def test_without_a_trust_store_peers_are_accepted_with_one_warning(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), tls=False) as cluster:
        load = loaded(cluster)
        cluster.children["storage-0"].kill()
        cluster.start("storage-0")
        cluster.wait_commits(COMMITS)
        finish(load, 2 * COMMITS)

        assert cluster.children["server-0"].text().count("peers are not verified") == 1


@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_storage_nodes_are_killed_in_turn(tmp_path: Path, zookeeper: ZooKeeperServer, count: int) -> None:
    with running_cluster(tmp_path, zookeeper.fresh_chroot()) as cluster:
        load = loaded(cluster)
        for name in cluster.storage_names[:count]:
            cluster.children[name].kill()
            cluster.wait_commits(COMMITS)
            cluster.start(name)
            cluster.wait_commits(COMMITS)
        finish(load, 2 * count * COMMITS)


@pytest.mark.slow
def test_the_server_that_owns_a_partition_is_killed(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), servers=2) as cluster:
        load = loaded(cluster)
        for _ in range(2):
            owner = cluster.owners()[0]
            cluster.children[owner].kill()
            cluster.wait_commits(COMMITS)
            assert cluster.owners()[0] != owner
            cluster.start(owner)
            cluster.wait_commits(COMMITS)
        verdict = finish(load, 5 * COMMITS)

    assert verdict.generations[0] >= 2


@pytest.mark.slow
def test_a_client_is_killed(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    with running_cluster(tmp_path, zookeeper.fresh_chroot()) as cluster:
        load = loaded(cluster)
        for name in load.names:
            cluster.children[name].kill()
            cluster.wait_commits(COMMITS)
            load.start(name)
            cluster.wait_commits(COMMITS)
        verdict = finish(load, 5 * COMMITS)

    assert verdict.unknown_in_log + verdict.unknown_lost > 0, "a client was killed with appends in flight"


@pytest.mark.slow
def test_a_paused_owner_wakes_up_and_commits_nothing(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), servers=2) as cluster:
        load = loaded(cluster)
        zombie = cluster.owners()[0]
        cluster.children[zombie].pause()
        cluster.wait_commits(COMMITS)
        heir = cluster.owners()[0]
        assert heir != zombie
        cluster.children[zombie].resume()
        cluster.wait_commits(COMMITS)
        poll("the zombie has joined the cluster again", lambda: (cluster.health(zombie) or {}).get("healthy"))
        assert cluster.owners()[0] == heir
        finish(load, 3 * COMMITS)


@pytest.mark.slow
def test_a_paused_storage_node_holds_nobody_up(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), settings={"storage.answerTimeout": 3000}) as cluster:
        load = loaded(cluster)
        cluster.children["storage-1"].pause()
        cluster.wait_commits(3 * COMMITS)
        cluster.children["storage-1"].resume()
        cluster.wait_commits(COMMITS)
        finish(load, 5 * COMMITS)


@pytest.mark.slow
def test_everything_is_killed_at_once_and_comes_back_from_its_disks(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), partitions=2, servers=2) as cluster:
        load = loaded(cluster)
        everyone = (*load.names, *cluster.server_names, *cluster.storage_names)
        for name in everyone:
            cluster.children[name].interrupt(signal.SIGKILL)
        for name in everyone:
            cluster.children[name].wait()
        cluster.start(*cluster.storage_names, *cluster.server_names)
        cluster.wait_healthy()
        load.start()
        for partition in range(cluster.partitions):
            cluster.wait_commits(COMMITS, partition)
        finish(load, 4 * COMMITS)


@pytest.mark.slow
def test_zookeeper_is_killed_and_restarted(tmp_path: Path) -> None:
    with running_zookeeper() as zookeeper, running_cluster(tmp_path, zookeeper.fresh_chroot(), servers=2) as cluster:
        load = loaded(cluster)
        zookeeper.kill()
        zookeeper.start()
        cluster.wait_healthy()
        cluster.wait_commits(COMMITS)
        # The cluster must really be in ZooKeeper's hands again, not live on what it knew before.
        owner = cluster.owners()[0]
        cluster.children[owner].kill()
        cluster.wait_commits(COMMITS)
        cluster.start(owner)
        finish(load, 3 * COMMITS)


@pytest.mark.slow
def test_a_rolling_restart_loses_nothing(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), servers=2) as cluster:
        load = loaded(cluster)
        for name in (*cluster.storage_names, *cluster.server_names):
            cluster.children[name].stop()
            cluster.start(name)
            cluster.wait_healthy()
            cluster.wait_commits(COMMITS)
        finish(load, 6 * COMMITS)

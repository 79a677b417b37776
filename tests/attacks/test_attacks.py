"""The quick form: every attack on every port for a moment. Nothing is timed: conditions come true, or they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.field import LIMITS, PORTS, attack, descriptors, result
from tests.attacks.peers import ATTACKS, WIDTH
from tests.processes.cluster import Cluster, poll, running_cluster
from tests.processes.load import Load
from tests.processes.zookeeper import ZooKeeperServer

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_nobody_notices_a_hostile_peer(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    options = {"storage_nodes": 1, "tls": False, "settings": LIMITS}
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), **options) as cluster:
        load = Load(cluster)
        load.start()
        cluster.wait_commits(20)
        for port in PORTS:
            withstood(cluster, port)
        load.finish()
        for process in ("server-0", "storage-0"):
            text = cluster.children[process].text()
            assert "an error in this process" not in text
            assert "WARNING" in text
            assert "127.0.0.1" in text, "a line names the peer"


def withstood(cluster: Cluster, port: str) -> None:
    """Every attack on one port at once: commits go on, and afterwards nothing is left of it."""
    process = PORTS[port][0]
    before = descriptors(cluster, process)
    hostile = [attack(cluster, name, port, 2) for name in ATTACKS]
    cluster.wait_commits(20)
    for one in hostile:
        assert result(one)["connections"] > 0
    cluster.wait_commits(20)
    assert cluster.children[process].running
    # Some descriptors come and go with the load; a leak would be hundreds.
    poll(f"{process} lets go of descriptors", lambda: descriptors(cluster, process) < before + WIDTH // 10)
    assert cluster.get(process, "/ping") == "pong\n"

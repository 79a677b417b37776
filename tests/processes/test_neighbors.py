"""A server that is killed, without a network between that could hide it: the others do not wait for ZooKeeper."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.cluster import poll, running_cluster
from tests.processes.load import Load
from tests.processes.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("tls", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["certificates", "none"])
def test_the_partitions_of_a_server_that_was_killed_are_served_on_while_its_session_lives(
    tmp_path: Path, zookeeper: ZooKeeperServer, tls: bool
) -> None:
    settings = {"zookeeper.sessionTimeout": 40_000}
    with running_cluster(
        tmp_path, zookeeper.fresh_chroot(), partitions=2, servers=2, tls=tls, settings=settings
    ) as cluster:
        load = Load(cluster)
        load.start()
        for partition in range(2):
            cluster.wait_commits(20, partition)
        poll("both servers own something", lambda: len(set(cluster.owners().values())) == 2)
        cluster.children["server-0"].kill()
        poll("the other server owns all", lambda: cluster.owners() == {0: "server-1", 1: "server-1"})
        for partition in range(2):
            cluster.wait_commits(20, partition)
        assert (
            f"server {cluster.advertised['server-0']} has ended: nobody listens there"
            in cluster.children["server-1"].text()
        )
        cluster.start("server-0")
        poll("both servers own something", lambda: len(set(cluster.owners().values())) == 2)
        load.finish()

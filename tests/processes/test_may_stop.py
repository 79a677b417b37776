"""`waltz may-stop` on a real cluster: its answers, and what comes of acting on them while clients write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes.cluster import Cluster, running_cluster
from tests.processes.load import Load
from tests.processes.zookeeper import ZooKeeperServer
from waltz_trio.cli.main import main

pytestmark = pytest.mark.processes

COMMITS = 50
WAIT = "120"  # seconds; far more than needed, for machines that are busy


@pytest.mark.slow
def test_a_rolling_restart_by_its_answers_loses_nothing(
    tmp_path: Path, zookeeper: ZooKeeperServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), partitions=2, servers=2) as cluster:

        def ask(*words: str) -> tuple[int, str, str]:
            capsys.readouterr()
            status = main(["may-stop", "-c", str(cluster.tools_file), *words])
            output = capsys.readouterr()
            return status, output.out, output.err

        load = Load(cluster)
        load.start()
        progress(cluster)
        where = cluster.advertised
        for name in (*cluster.storage_names, *cluster.server_names):
            status, text, _ = ask(where[name], "--wait", WAIT)
            assert status == 0, text
            cluster.children[name].stop()
            progress(cluster)
            if name == "storage-0":
                status, text, _ = ask(where["storage-1"], "--json")
                answer = json.loads(text)
                assert (status, answer["may_stop"]) == (1, False)
                assert "1 of 3 replicas would be left, 2 are needed" in answer["reasons"][0]
                assert ask(where[name], "--wait", WAIT)[0] == 0  # it is down: nothing more is taken away
            if name == "server-0":
                status, text, _ = ask(where["server-1"])
                assert status == 1
                assert "no server is left that could take it over" in text
            cluster.start(name)
        assert load.finish().committed > 5 * COMMITS

        status, text, _ = ask("127.0.0.1")
        assert status == 1
        assert "nothing could be committed" in text
        assert ask(where["storage-0"], where["storage-1"])[0] == 1
        cluster.children["server-0"].pause()  # registered, and nobody knows what it would do
        status, text, _ = ask(where["server-1"], "--timeout", "2")
        assert status in (1, 3), text
        cluster.children["server-0"].resume()
        cluster.wait_healthy()


def progress(cluster: Cluster) -> None:
    """Both partitions go on."""
    for partition in range(cluster.partitions):
        cluster.wait_commits(COMMITS, partition)


def test_what_cannot_be_determined_is_neither_yes_nor_no(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "tools.yml"
    config.write_text("zookeeper.connectString: 127.0.0.1:1\nzookeeper.connectTimeout: 500\ncluster.root: /x\n")
    assert main(["may-stop", "-c", str(config), "s:1"]) == 3
    assert capsys.readouterr().err.startswith("Error: ")
    assert main(["may-stop", "-c", "missing.yml", "s:1"]) == 3
    for wrong in ([], ["-c", str(config)], ["-c", str(config), "s:1", "--wiat", "3"]):
        assert main(["may-stop", *wrong]) == 2

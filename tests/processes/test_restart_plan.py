"""`waltz restart-plan` on five processes under load: everything is restarted, nothing that was acknowledged is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.cluster import poll, running_cluster
from tests.processes.load import Load
from tests.processes.restarter import Restarter
from tests.processes.zookeeper import ZooKeeperServer, free_port
from waltz_trio.cli.main import main

pytestmark = pytest.mark.processes


@pytest.mark.slow
def test_five_nodes_are_restarted_under_load_and_a_walk_that_failed_goes_on(
    tmp_path: Path, zookeeper: ZooKeeperServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), partitions=2, servers=2) as cluster:
        state = tmp_path / "plan.json"

        def walk(*words: str) -> tuple[int, str, str]:
            capsys.readouterr()
            status = main(["restart-plan", "-c", str(cluster.tools_file), "--state", str(state), *words])
            output = capsys.readouterr()
            return status, output.out, output.err

        status, text, _ = walk()
        assert status == 10
        assert f"next: {cluster.advertised['storage-0']} may be stopped now" in text
        assert "one more failure stops commits" in text

        load = Load(cluster)
        load.start()
        cluster.wait_commits(50)
        with Restarter(cluster).running() as restarter:
            restarter.fail_at = "storage-2"
            status, text, problems = walk("--exec", restarter.command, "--wait", "120")
            assert status == 1
            assert f"status 7 for {cluster.advertised['storage-2']}" in problems
            assert restarter.restarted == ["storage-0", "storage-1"]
            kept = [step["progress"] for step in json.loads(state.read_text())["steps"]]
            assert kept == ["done", "done", "begun", "open", "open"]

            status, text, _ = walk("--exec", restarter.command, "--wait", "120")
            assert (status, text.splitlines()[-1]) == (0, "all 5 nodes are restarted and back")
            assert sorted(restarter.restarted) == sorted(cluster.children.keys() - set(load.names))
            assert restarter.restarted[:3] == ["storage-0", "storage-1", "storage-2"]
            assert load.finish().committed > 100
            assert walk()[0] == 0
            status, _, problems = walk("--exec", restarter.command, "--wait", "120")
            assert (status, len(restarter.restarted)) == (1, 5), "a walk that was finished before restarts nobody"
            assert "was finished before: nothing was restarted now" in problems
            cluster.judge()  # while they run


def test_what_cannot_be_determined_is_status_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where nothing could be asked; status 1 is a command of --exec that failed."""
    config = tmp_path / "tools.yml"
    config.write_text(
        f"zookeeper.connectString: 127.0.0.1:{free_port()}\nzookeeper.connectTimeout: 500\ncluster.root: /env/test\n"
    )
    for words in ((), ("--exec", "true"), ("--exec", "true", "--json")):
        assert main(["restart-plan", "-c", str(config), "--state", str(tmp_path / "plan.json"), *words]) == 3
        output = capsys.readouterr()
        assert (output.out, output.err.startswith("Error: ")) == ("", True)


@pytest.mark.slow
def test_by_hand_it_says_what_may_be_done_and_what_is_waited_for(
    tmp_path: Path, zookeeper: ZooKeeperServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), partitions=1, servers=1) as cluster:
        state = tmp_path / "plan.json"
        words = ["restart-plan", "-c", str(cluster.tools_file), "--state", str(state), "-t", "3"]
        first, second = cluster.advertised["storage-0"], cluster.advertised["storage-1"]
        lost, told = tmp_path / "no" / "plan.json", capsys.readouterr
        assert main([*words[:3], "--state", str(lost)]) == 3
        assert told().err == f"Error: {lost}: No such file or directory\n"
        assert main([*words, "--done", "storage-0:1"]) == 3
        assert "'storage-0:1' is no node of this plan; its nodes are" in told().err
        assert not state.exists()
        assert main([*words, "--exec", " "]) == 2
        assert "--exec is empty" in told().err
        assert main([*words, "--only", first, "--exec", "true", "--wait", "1"]) == 11
        assert f"storage {first} is the same process as before" in told().err
        state.unlink()
        programs = [*words, "--only", first, "--wait", "1", "--json", "--exec"]
        for command, status, move, reason in (
            ("echo hello", 11, "wait", "is the same process as before"),
            ("echo hello; exit 7", 1, "failed", f"the command ended with status 7 for {first}"),
        ):
            answer = subprocess.run(
                [sys.executable, "-m", "waltz_trio.cli.main", *programs, command], capture_output=True, text=True
            )
            row = json.loads(answer.stdout)
            assert (answer.returncode, row["move"], row["node"]) == (status, move, first)
            assert reason in row["reasons"][0]
            assert f"1/1 storage {first}\nhello\n" in answer.stderr
            state.unlink()
        assert main([*words, "--only", f"{first},{second}"]) == 10
        cluster.children["storage-0"].stop()
        assert main([*words, "--done", first]) == 11
        assert f"{first} does not answer yet" in capsys.readouterr().out
        cluster.start("storage-0")
        capsys.readouterr()
        poll("the node is back", lambda: main(words) == 10)
        capsys.readouterr()
        assert main([*words, "--done", second, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["move"] == "finished"
        assert main([*words, "--only", first]) == 3
        assert "holds a plan already" in capsys.readouterr().err
        state.write_text("{}")
        assert main(words) == 3
        assert "is no plan of this command" in capsys.readouterr().err

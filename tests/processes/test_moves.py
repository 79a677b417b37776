"""Partitions move between storage nodes while clients write; nothing is lost and nobody is asked twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes.cluster import Cluster, running_cluster
from tests.processes.load import Load
from tests.processes.zookeeper import ZooKeeperServer
from waltz_core.base.errors import ClusterError
from waltz_core.operations import moves
from waltz_trio.cli import moves as cli_moves
from waltz_trio.cli.main import main
from waltz_trio.cli.options import Arguments, CommandError

pytestmark = pytest.mark.processes

COMMITS = 100


def new_node(cluster: Cluster, name: str) -> tuple[str, str]:
    """Start one more storage node, unknown to ZooKeeper; its data and admin ports."""
    cluster.add_storage(name)
    return cluster.advertised[name], str(cluster.addresses[name]["storage.admin.port"])


@pytest.mark.slow
def test_nodes_are_replaced_added_and_drained_under_load(
    tmp_path: Path, zookeeper: ZooKeeperServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), partitions=2) as cluster:
        config = ("-c", str(cluster.tools_file))

        def storage(*words: str) -> str:
            capsys.readouterr()
            status = main(["storage", *words, *config])
            output = capsys.readouterr()
            assert status == 0, output.err
            return output.out

        load = Load(cluster)
        load.start()
        for partition in range(2):
            cluster.wait_commits(COMMITS, partition)

        # A node that lives is replaced: the new one is level before the old one goes.
        where, admin = new_node(cluster, "storage-3")
        old = cluster.advertised["storage-0"]
        replace = ("replace-node", "--from", old, "--to", where, "-a", admin)
        plan = json.loads(storage(*replace, "--dry-run", "--json"))
        assert plan[0] == f"enter storage node {where}, admin port {admin}, group 0, into ZooKeeper"
        assert plan[-1] == f"take storage node {old} out of ZooKeeper"
        assert len(plan) == 2 + 6 * 2
        assert main(["storage", *replace, *config]) == 1, "it takes a node away, which needs a word"
        interrupt_at("[2/", signal.SIGTERM, "storage", *replace, "--yes", *config)
        interrupt_at("[2/", signal.SIGINT, "storage", *replace, "--yes", *config)
        left = json.loads(storage(*replace, "--yes", "--json"))
        assert 0 < len(left) <= len(plan)
        assert left[-1] == plan[-1]
        capsys.readouterr()
        assert main(["storage", *replace, "--yes", *config]) == 0
        again = capsys.readouterr()
        assert again.out == "nothing is left to do\n"
        assert f"{old} is not in ZooKeeper: it was replaced before, or has another name" in again.err
        assert json.loads(storage(*replace, "--yes", "--json")) == []
        cluster.children["storage-0"].stop()
        cluster.storage_names = ["storage-1", "storage-2", "storage-3"]
        both(cluster)

        # A node that is dead is replaced in one change; what is left is a quorum meanwhile.
        cluster.children["storage-1"].kill()
        where, admin = new_node(cluster, "storage-4")
        old = cluster.advertised["storage-1"]
        assert storage("replace-node", "--from", old, "--to", where, "-a", admin, "--yes").endswith("done\n")
        cluster.storage_names = ["storage-2", "storage-3", "storage-4"]
        both(cluster)

        # A fourth node joins a group, one partition moves, the rest is drained.
        where, admin = new_node(cluster, "storage-5")
        assert storage("add-node", "-s", where, "-a", admin, "-g", "2").endswith("done\n")
        old = cluster.advertised["storage-2"]
        move = ("move-partition", "--from", old, "--to", where, "-p", "1", "--yes")
        assert storage(*move).endswith("done\n")
        assert storage(*move) == "nothing is left to do\n"
        assert storage("drain", "-s", old, "--yes").endswith("done\n")
        both(cluster)
        cluster.storage_names = ["storage-3", "storage-4", "storage-5"]
        assert load.finish().committed > 4 * COMMITS

        assert main(["doctor", *config]) == 0
        capsys.readouterr()
        other = cluster.advertised["storage-3"]
        alias = other.replace("127.0.0.1", "localhost")
        port = str(cluster.addresses["storage-3"]["storage.admin.port"])
        for words, problem in (
            (("move-partition", "--from", where, "--to", where, "-p", "0"), "both source and target"),
            (("move-partition", "--from", where, "--to", "h:1", "-p", "0"), "is not known; known are"),
            (("move-partition", "--from", where, "--to", other, "-p", "0"), "of the same group"),
            (("drain", "-s", other), "has nowhere to go"),
            (("add-node", "-s", "127.0.0.1:1", "-a", "1", "-g", "1"), "is no storage node of this cluster"),
            (("add-node", "-s", alias, "-a", port, "-g", "1"), f"{other} and {alias} are one storage node"),
            (("replace-node", "--from", other, "--to", alias, "-a", port, "--yes"), "are one storage node"),
        ):
            assert main(["storage", *words, *config]) == 1
            assert problem in capsys.readouterr().err


def interrupt_at(step: str, number: signal.Signals, *words: str) -> None:
    """Interrupt a command at one of its steps: it ends in order, and says how to go on."""
    command = [sys.executable, "-m", "waltz_trio.cli.main", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(line.startswith(step) for line in process.stdout)
        process.send_signal(number)
        told = process.communicate(timeout=60)[1]
        assert process.returncode == 128 + number, told
        assert f"Interrupted by {number.name}\nWhat was done stays done; the same command again goes on" in told


def both(cluster: Cluster) -> None:
    """Both partitions go on."""
    for partition in range(cluster.partitions):
        cluster.wait_commits(COMMITS, partition)


async def test_a_replica_that_cannot_be_done_without_any_more_is_not_taken_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An hour may pass between the plan and its last steps; another node has died meanwhile."""
    looks = iter(("at first", "later"))
    done: list[moves.Step] = []
    away = moves.Unassign("s0:7000", 0)

    async def look(tool: object, *, certificates: bool) -> str:
        return next(looks)

    async def do(tool: object, step: moves.Step, patience: int, *, delete: bool) -> None:
        done.append(step)

    def plan(view: Any) -> tuple[moves.Step, ...]:
        if view != "at first":
            raise ClusterError("partition 0 cannot do without s0:7000 now")
        return moves.Take("s9:7000", 0), away

    monkeypatch.setattr(cli_moves, "gather", look)
    monkeypatch.setattr(cli_moves, "_audited", do)
    tool: Any = None
    with pytest.raises(CommandError, match="is not to be on s0:7000 any more: partition 0 cannot do without s0:7000"):
        await cli_moves._carry_out(plan, tool, Arguments({"yes": ""}))
    assert done == [moves.Take("s9:7000", 0)]
    capsys.readouterr()

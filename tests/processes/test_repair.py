"""Damage on the disks of real storage nodes: repaired without anybody's doing, or by an operator's word."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from attrs import evolve

from tests.processes.cluster import Cluster, poll, running_cluster
from tests.processes.load import Load
from tests.processes.zookeeper import ZooKeeperServer
from waltz_core.base.ids import parse_endpoint
from waltz_core.wire.admin_messages import StatisticsRequest
from waltz_core.wire.shared import AWAITED
from waltz_core.zookeeper.znodes import PartitionMetadata, decode_partition_metadata, encode_partition_metadata
from waltz_trio.cli import mend
from waltz_trio.cli.main import main
from waltz_trio.cli.tool import tool_of
from waltz_trio.cli.zookeeper import open_cluster
from waltz_trio.config.config import Config

pytestmark = pytest.mark.processes

COMMITS = 100
LOG = "0000000000000000000.seg"


def log_file(cluster: Cluster, name: str) -> Path:
    return cluster.directory / name / "0" / LOG


def records_of(cluster: Cluster, name: str) -> bytes:
    """The data file without its header, which tells when it was made."""
    return log_file(cluster, name).read_bytes()[128:]


def filled(cluster: Cluster, load: Load | None = None) -> Load:
    """Some transactions, on all replicas alike."""
    load = load or Load(cluster)
    load.start()
    cluster.wait_commits(COMMITS)
    load.finish()
    poll("replicas are level", lambda: len({records_of(cluster, name) for name in cluster.storage_names}) == 1)
    return load


def damage_end(cluster: Cluster, *names: str) -> None:
    """Stop nodes in order, so that their durable marks are written, and spoil the last bytes of their logs."""
    for name in names:
        cluster.children[name].stop()
    for name in names:
        data = bytearray(log_file(cluster, name).read_bytes())
        data[-1] ^= 1
        log_file(cluster, name).write_bytes(data)


def admin_of(cluster: Cluster, name: str) -> str:
    return f"127.0.0.1:{cluster.addresses[name]['storage.admin.port']}"


def state_of(cluster: Cluster, name: str) -> str | None:
    metrics = cluster.get(name, "/metrics")
    state: str | None = metrics and metrics["gauges"].get("waltz-storage.partition-0.state", {}).get("value")
    return state


def tool(cluster: Cluster, *words: str) -> str:
    return cluster.tool("storage", *words, "-c", str(cluster.tools_file))


@pytest.mark.slow
def test_a_damaged_log_is_repaired_from_the_other_replicas_by_itself(
    tmp_path: Path,
    zookeeper: ZooKeeperServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with running_cluster(tmp_path, zookeeper.fresh_chroot()) as cluster:
        load = filled(cluster)
        damage_end(cluster, "storage-0")
        cluster.start("storage-0")
        cluster.wait_up("storage-0")
        poll("storage-0 is repaired", lambda: state_of(cluster, "storage-0") == "open")
        assert records_of(cluster, "storage-0") == records_of(cluster, "storage-1")
        text = cluster.children["storage-0"].text()
        assert "is in limbo" in text
        assert "repaired" in text
        admin = admin_of(cluster, "storage-0")
        assert "nothing is known to be damaged" in tool(cluster, "repair", "-s", admin, "-p", "0")
        monkeypatch.setattr(mend, "_REPAIR_MAX", 0.0)
        assert main(["storage", "repair", "-s", admin, "-p", "0", "-c", str(cluster.tools_file)]) == 1
        late = f"Failed to repair partition 0 of {admin}. \nno answer within 0 s. The storage node goes on with it"
        assert late in capsys.readouterr().err
        words = ("storage", "unsafe-recover", "-p", "0", "-a", "-y", "-c", str(cluster.tools_file))
        assert "nothing is to be given up: session" in cluster.attempt(*words).stdout
        filled(cluster, load)


def awaited(cluster: Cluster, admin: str) -> str:
    """What the node waits for in partition 0."""

    async def ask() -> str:
        config = Config.load(cluster.tools_file)
        async with open_cluster(config) as (zk, paths):
            tool = await tool_of(config, zk, paths)
            async with tool.admin(parse_endpoint(admin)) as client:
                return str(await client.call(lambda seq: StatisticsRequest(seq, 0, (AWAITED,))))

    return trio.run(ask)


def interrupted_repair(cluster: Cluster, admin: str) -> None:
    """A repair of storage-0 waits for its sources, and whoever asked for it waits no more; the node ends it alone."""
    words = ("storage", "repair", "-s", admin, "-p", "0", "-c", str(cluster.tools_file))
    node = cluster.children["storage-0"]
    before = node.text().count("ranges repaired")
    for source in ("storage-1", "storage-2"):
        cluster.children[source].pause()
    tool = cluster.child("repair", "-m", "waltz_trio.cli.main", *words)
    tool.start()
    poll("it is under way", lambda: "repair from other storage nodes" in awaited(cluster, admin))
    tool.interrupt()
    assert tool.wait() == 143
    told = "The storage node goes on with it; the same command again says what is still damaged"
    assert tool.text().endswith(f"Interrupted by SIGTERM\n{told}\n")
    for source in ("storage-1", "storage-2"):
        cluster.children[source].resume()
    poll("it has ended", lambda: node.text().count("ranges repaired") > before)


@pytest.mark.slow
def test_what_is_damaged_everywhere_waits_for_an_operator_who_accepts_the_loss(
    tmp_path: Path, zookeeper: ZooKeeperServer
) -> None:
    with running_cluster(tmp_path, zookeeper.fresh_chroot()) as cluster:
        filled(cluster)
        cluster.children["server-0"].stop()
        before = {name: log_file(cluster, name).read_bytes() for name in cluster.storage_names}
        damage_end(cluster, *cluster.storage_names)
        cluster.start(*cluster.storage_names, "server-0")
        for name in cluster.storage_names:
            cluster.wait_up(name)
            poll(f"{name} is in limbo", lambda name=name: state_of(cluster, name) == "limbo")  # type: ignore[misc]
        admins = {name: admin_of(cluster, name) for name in cluster.storage_names}
        done = cluster.attempt("storage", "repair", "-s", admins["storage-0"], "-p", "0", "-c", str(cluster.tools_file))
        assert done.returncode == 1
        interrupted_repair(cluster, admins["storage-0"])
        done = cluster.attempt(
            "storage", "accept-limbo", "-s", admins["storage-0"], "-p", "0", "-c", str(cluster.tools_file)
        )
        assert done.returncode == 1
        assert "give --yes" in done.stdout
        for admin in admins.values():
            printed = tool(cluster, "accept-limbo", "-s", admin, "-p", "0", "-y")
            assert "given up on this node: every transaction after" in printed
            assert "recorded in /cluster/operator/decision-" in printed
        # Nobody is left who knows for certain where the log ended.
        poll("recovery waits", lambda: "does not count" in cluster.children["server-0"].text())
        printed = tool(cluster, "unsafe-recover", "-p", "0", "--accept-data-loss", "-y")
        assert "will be the log: it ends at transaction" in printed
        cluster.wait_healthy()
        for name in cluster.storage_names:
            aside = log_file(cluster, name).with_name(f"{LOG}.given-up").read_bytes()
            assert before[name][:-1].endswith(aside[:-1])
        cluster.wait_up("storage-0")


@pytest.mark.slow
def test_what_only_lost_nodes_hold_is_given_up_by_an_operator(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    with running_cluster(tmp_path, zookeeper.fresh_chroot()) as cluster:
        load = filled(cluster)
        # A server would open a session with the second one once the first is gone, and then need nobody's word.
        cluster.children["server-0"].stop()
        for name in ("storage-1", "storage-2"):
            cluster.children[name].kill()
            shutil.rmtree(cluster.directory / name)
            (cluster.directory / name).mkdir()
        cluster.start("storage-1", "storage-2", "server-0")
        for name in ("storage-1", "storage-2"):
            cluster.wait_up(name)
        tool(cluster, "sync-partitions")
        poll("recovery waits", lambda: "recovery waits" in cluster.children["server-0"].text())
        words = ("storage", "unsafe-recover", "-p", "0", "-y", "-c", str(cluster.tools_file))
        assert "--accept-data-loss" in cluster.attempt(*words).stdout
        printed = tool(cluster, "unsafe-recover", "-p", "0", "--accept-data-loss", "-y")
        assert "will be the log: it ends at transaction" in printed
        cluster.wait_healthy()
        filled(cluster, load)
        assert records_of(cluster, "storage-1") == records_of(cluster, "storage-0")


def change_metadata(cluster: Cluster, change: Callable[[PartitionMetadata], PartitionMetadata] | None) -> None:
    """Set the metadata of partition 0 back, or remove it, while no server runs."""

    async def work() -> None:
        async with open_cluster(Config.load(cluster.tools_file)) as (zk, paths):
            data, stat = await zk.get(paths.partition(0))
            if change is None:
                await zk.delete(paths.partition(0), stat.version)
            else:
                metadata = change(decode_partition_metadata(data or b""))
                await zk.set(paths.partition(0), encode_partition_metadata(metadata), stat.version)

    cluster.children["server-0"].stop()
    trio.run(work)
    cluster.start("server-0")


@pytest.mark.slow
def test_metadata_that_is_gone_or_set_back_is_confirmed_by_an_operator(
    tmp_path: Path, zookeeper: ZooKeeperServer
) -> None:
    with running_cluster(tmp_path, zookeeper.fresh_chroot()) as cluster:
        load = filled(cluster)
        before = records_of(cluster, "storage-0")
        change_metadata(cluster, None)
        poll("recovery waits", lambda: "recovery waits" in cluster.children["server-0"].text())
        assert "names no replicas" in tool(cluster, "confirm-metadata", "-p", "0", "-y")
        cluster.wait_healthy()
        assert records_of(cluster, "storage-0") == before
        filled(cluster, load)
        words = ("storage", "confirm-metadata", "-p", "0", "-y", "-c", str(cluster.tools_file))
        assert "nothing to confirm" in cluster.attempt(*words).stdout

        change_metadata(cluster, lambda one: evolve(one, session_id=0))
        why = "was ZooKeeper restored from an older state?"
        poll("the server stops", lambda: why in cluster.children["server-0"].text())
        tool(cluster, "confirm-metadata", "-p", "0", "-y")
        cluster.wait_healthy()
        filled(cluster, load)


@pytest.mark.slow
def test_a_zookeeper_that_lost_everything_is_restored_from_a_backup(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), servers=2) as cluster:
        load = filled(cluster)
        config = ("-c", str(cluster.tools_file))
        backup = tmp_path / "backup.json"
        backup.write_text(cluster.tool("zookeeper", "list", "--json", *config))
        # The partition goes on after the backup, at another server and in another session.
        (owner,) = cluster.owners().values()
        cluster.children[owner].kill()
        cluster.start(owner)
        filled(cluster, load)
        before = records_of(cluster, "storage-0")

        def restore() -> subprocess.CompletedProcess[str]:
            return cluster.attempt("zookeeper", "restore", *config, "-i", str(backup), "-y")

        assert "nothing is missing" in restore().stdout
        cluster.write_znode("/cluster", b"?")
        found = restore()
        assert found.returncode != 0
        assert "servers are running" in found.stdout
        for name in cluster.server_names:
            cluster.children[name].stop()
        cluster.tool("zookeeper", "delete", "-n", "x", "-f", *config)
        found = restore()
        assert (found.returncode, found.stdout.count("it is created")) == (0, 11)
        cluster.start(*cluster.server_names)

        why = "was ZooKeeper restored from an older state?"
        poll("the doctor sees it", lambda: why in cluster.attempt("doctor", *config).stdout)
        tool(cluster, "confirm-metadata", "-p", "0", "-y")
        cluster.wait_healthy()
        assert records_of(cluster, "storage-0") == before
        filled(cluster, load)


def test_below_the_reserve_nothing_is_appended_and_all_else_is_served(
    tmp_path: Path, zookeeper: ZooKeeperServer
) -> None:
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), settings={"storage.reserve": 1 << 60}) as cluster:
        for name in cluster.storage_names:
            poll("it is said", lambda name=name: "no room for appends" in cluster.children[name].text())  # type: ignore[misc]
        ports = cluster.addresses["storage-0"]
        words = ("-s", admin_of(cluster, "storage-0"), "-sp", str(ports["storage.port"]), "-p", "0")
        assert tool(cluster, "max-transaction-id", *words) == "Max Transaction ID: -1\n"
        metrics = cluster.get("storage-0", "/metrics")
        assert metrics["gauges"]["waltz-storage.partition-0.state"]["value"] == "open"

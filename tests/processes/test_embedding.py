"""The storage node of the page embedding.md: one thread over the core's machine, as a replica of a real cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio

import waltz_trio as waltz
from tests.docs.blocks import blocks_of
from tests.processes.cluster import Cluster, poll, running_cluster
from tests.processes.zookeeper import ZooKeeperServer
from tests.witness.log import read_replica
from waltz_core.zookeeper.paths import cluster_paths
from waltz_trio.cli.zookeeper import open_cluster
from waltz_trio.config.config import Config
from waltz_trio.zk.admin import read_store_params

PAGE = "docs/howto/embedding.md"
LINES_MAX = 150

pytestmark = pytest.mark.processes


def program(part: str) -> str:
    (text,) = [block.text for block in blocks_of(PAGE) if f"class {part}" in block.text]
    return text


@pytest.mark.parametrize("part", ["BlockingClient", "BlockingNode"])
def test_a_driver_of_its_own_is_short(part: str) -> None:
    assert len(program(part).splitlines()) <= LINES_MAX
    assert "trio." not in program(part).replace("waltz_trio.", "")


async def cluster_key(cluster: Cluster) -> bytes:
    async with open_cluster(Config.load(cluster.tools_file)) as (zk, _):
        return (await read_store_params(zk, cluster_paths("/cluster"))).key


@pytest.mark.slow
def test_the_node_of_the_page_is_a_full_replica(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    with running_cluster(tmp_path, zookeeper.fresh_chroot()) as cluster:
        node = cluster.children["storage-2"]
        node.stop()
        (tmp_path / "node.py").write_text(program("BlockingNode"))
        ports = cluster.addresses["storage-2"]
        node.command = [sys.executable, str(tmp_path / "node.py"), str(tmp_path / "storage-2")]
        node.command += [trio.run(cluster_key, cluster).hex(), "1", str(ports["storage.port"])]
        assert cluster.tls is not None
        node.command += [str(ports["storage.admin.port"]), str(cluster.tls.directory / "storage.pem")]
        node.start()
        cluster.children["storage-0"].stop()  # every commit needs the node of the page now
        trio.run(append_many, cluster, 0, 50)
        node.kill()
        node.start()
        trio.run(append_many, cluster, 50, 50)
        cluster.children["storage-0"].start()
        cluster.wait_healthy()
        disk = tmp_path / "storage-0"
        poll("the replica that was away has caught up", lambda: len(read_replica(disk, 0)) == 100)
    assert len(read_replica(tmp_path / "storage-2", 0)) == 100


async def append_many(cluster: Cluster, first: int, count: int) -> None:
    with trio.fail_after(120):
        async with waltz.open_client(cluster.client_file) as client:
            appends = [waltz.Append(b"entry %d" % number) for number in range(first, first + count)]
            receipts = await client.append_many(0, appends)
    assert [int(receipt) for receipt in receipts if isinstance(receipt, waltz.Receipt)] == [
        *range(first, first + count)
    ]

"""A cluster from exactly what `waltz certificates` wrote: certificates on every connection, and roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml

import waltz_trio as waltz
from tests.processes.cluster import Cluster
from tests.processes.zookeeper import ZooKeeperServer
from waltz_core.base.errors import WaltzError
from waltz_trio.cli.main import main

pytestmark = pytest.mark.processes

HOSTS = "localhost,127.0.0.1"


class Certified(Cluster):
    """Each configuration holds the keys that were written for its process."""

    keys_folder: Path

    def write_file(self, name: str, keys: Mapping[str, object]) -> Path:
        written = yaml.safe_load((self.keys_folder / f"{name}.keys.yml").read_text())
        return super().write_file(name, {**keys, **written})


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: ZooKeeperServer) -> Iterator[Certified]:
    folder = tmp_path / "certificates"
    nodes = [word for number in range(3) for word in ("--storage", f"storage-{number}={HOSTS}")]
    others = ("--server", f"server-0={HOSTS}", "--admin", "tools", "--client", "client", "--reader", "reader")
    assert main(["certificates", "make", str(folder), *nodes, *others]) == 0
    Certified.keys_folder = folder
    made = Certified(tmp_path / "cluster", zookeeper.fresh_chroot(), partitions=1, tls=False)
    try:
        made.set_up()
        yield made
    finally:
        made.end()


def test_a_cluster_runs_on_what_was_written_and_lets_each_do_its_part(cluster: Certified) -> None:
    reader = cluster.write_file("reader", {})

    async def append(path: Path) -> Any:
        with trio.fail_after(60):
            async with waltz.open_client(path) as client:
                return await client.append(0, waltz.Append(b"one", waltz.Raw()))

    async def read() -> Any:
        with trio.fail_after(60):
            async with waltz.open_client(reader) as client:
                return await client.committed_mark(0)

    assert trio.run(append, cluster.client_file) == 0
    assert trio.run(read) == 0
    with pytest.raises(WaltzError, match="may not append to partition 0"):
        trio.run(append, reader)
    assert cluster.tool("doctor", "-c", str(cluster.tools_file)).startswith("nothing is wrong")
    told = {name: child.text() for name, child in cluster.children.items()}
    assert "refused: certificate 'reader'" in told["server-0"]
    for name, text in told.items():
        assert "no roles are set" not in text, name
        assert "not asked for certificates" not in text, name
        assert "not verified" not in text, name

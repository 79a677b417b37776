"""What servers and storage nodes have in common as processes."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path

import pytest
import trio

from waltz_core.base.edge import Level
from waltz_core.base.errors import ConfigError
from waltz_core.zookeeper.paths import cluster_paths
from waltz_trio.config.config import Config
from waltz_trio.net.certificates import issue, make_ca
from waltz_trio.node.process import NodeProcess
from waltz_trio.node.proxy import ProxyProcess
from waltz_trio.node.server import ServerProcess
from waltz_trio.node.storage_node import StorageProcess
from waltz_trio.zk.admin import create_cluster
from waltz_trio.zk.client import open_znode_client
from waltz_trio.zk.embedded import open_embedded_znodes

SERVER = {
    "cluster.root": "/test",
    "zookeeper.connectString": "127.0.0.1:1",
    "zookeeper.sessionTimeout": 3000,
    "server.host": "127.0.0.1",
}
STORAGE = {
    "cluster.root": "/test",
    "zookeeper.connectString": "127.0.0.1:1",
    "zookeeper.sessionTimeout": 3000,
    "storage.host": "127.0.0.1",
    "storage.port": 0,
    "storage.admin.port": 0,
}


async def problem(process: NodeProcess) -> str:
    with pytest.raises(ConfigError) as refused:
        await process.run()
    return str(refused.value)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"server.realtimeThreshold": 5, "server.minFetchSize": 9}, "realtimeThreshold"),
        ({"server.journal.mode": "sync"}, "server.journal.directory is not set"),
        ({"cluster.root": None}, "cluster.root"),
    ],
)
async def test_a_server_reads_its_whole_configuration_before_it_binds_a_port(
    values: dict[str, object], expected: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = {**SERVER, "server.port": taken.getsockname()[1]}
        assert "server.port" in await problem(ServerProcess(Config(config)))
        wrong = {key: value for key, value in {**config, **values}.items() if value is not None}
        assert expected in await problem(ServerProcess(Config(wrong)))


@pytest.mark.parametrize("key", ["storage.port", "storage.admin.port", "cluster.root"])
async def test_a_storage_node_reads_its_whole_configuration_before_it_asks_zookeeper(key: str, tmp_path: Path) -> None:
    """Nor does it touch its directory."""
    directory = tmp_path / "data"
    config = {**STORAGE, "storage.directory": str(directory)}
    del config[key]
    assert f"parameter not found: {key}" in await problem(StorageProcess(Config(config)))
    assert not directory.exists()


@pytest.mark.parametrize(
    ("kind", "values", "prefix"),
    [
        (ServerProcess, {**SERVER, "server.port": 0}, "server."),
        (StorageProcess, STORAGE, "storage."),
        (ProxyProcess, {**SERVER, "cluster.root": "/own", "server.port": 0, "proxy.upstream.root": "/test"}, "server."),
    ],
)
async def test_an_expired_certificate_is_said_at_start(
    kind: type[NodeProcess], values: dict[str, object], prefix: str, nursery: trio.Nursery, tmp_path: Path
) -> None:
    pair = issue(make_ca("test"), "old", ["127.0.0.1"], timedelta(minutes=-30))
    path = tmp_path / "old.pem"
    path.write_bytes(pair.key + b"\n" + pair.certificate)
    own = {f"{prefix}ssl.certificate": str(path), "storage.directory": str(tmp_path)}
    async with open_embedded_znodes() as store, open_znode_client(store) as client:
        await create_cluster(client, cluster_paths("/test"), "test", 2)
        process = kind(Config({**values, **own}), store)
        said: list[tuple[Level, str]] = []
        process.report = lambda level, text: said.append((level, text))
        await nursery.start(process.run)
        expired = [level for level, text in said if f"{prefix}ssl.certificate" in text and "has expired on" in text]
        assert expired == [Level.WARNING]
        process.cancel()

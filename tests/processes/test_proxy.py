"""`waltz proxy run` as its page says it, on a real cluster and ZooKeeper; clients find it as they find servers."""

from __future__ import annotations

import json
import os
import resource
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import yaml

import waltz_trio as waltz
from tests.docs.blocks import blocks_of
from tests.processes.cluster import Child, Cluster, poll, running_cluster
from tests.processes.zookeeper import ZooKeeperServer
from waltz_trio.cli.main import main

pytestmark = pytest.mark.processes

PAGE = "docs/operations/proxy.md"


def files_of_page(cluster: Cluster, zookeeper: str) -> tuple[Path, list[str]]:
    """The files and the command of the page, with the places of this machine in them."""
    proxy_block, command, client_block = (block for block in blocks_of(PAGE) if block.language in ("yaml", "sh"))
    proxy, client = yaml.safe_load(proxy_block.text), yaml.safe_load(client_block.text)
    assert cluster.tls is not None
    cluster.tls.issue("proxy")
    for keys in (proxy, client):
        for key, value in keys.items():
            if str(value).startswith("zookeeper."):
                keys[key] = zookeeper
            elif str(value).startswith("/etc/waltz/"):
                keys[key] = str(cluster.tls.directory / Path(value).name)
    ports = {key: cluster.ports.take() for key in ("server.port", "server.jetty.port")}
    cluster.addresses["proxy"] = ports
    proxy |= {"server.host": "127.0.0.1", "server.advertisedEndpoint": f"127.0.0.1:{ports['server.port']}", **ports}
    path = cluster.directory / "proxy.yml"
    path.write_text(yaml.safe_dump(proxy))
    client_path = cluster.directory / "region-client.yml"
    client_path.write_text(yaml.safe_dump({**client, "client.connectTimeout": 60_000}))
    words = shlex.split(command.text)
    assert words[0] == "waltz"
    assert words[-1] == "proxy.yml"
    return client_path, [*words[1:-1], str(path)]


def test_the_page_starts_a_proxy_that_clients_find_in_its_own_root(
    tmp_path: Path, zookeeper: ZooKeeperServer, capsys: pytest.CaptureFixture[str]
) -> None:
    where = zookeeper.fresh_chroot()
    trusting = {"server.trustProxies": True}  # the page tells when
    with running_cluster(tmp_path, where, partitions=2, storage_nodes=1, settings=trusting) as cluster:
        client_file, words = files_of_page(cluster, where)
        cluster.child("proxy", "-m", "waltz_trio.cli.main", *words)
        cluster.start("proxy")
        poll("the proxy is healthy", lambda: bool(health(cluster).get("healthy")))
        assert set(health(cluster)["partitions"]) == {"0", "1"}
        tools_file = tmp_path / "region-tools.yml"
        root = yaml.safe_load(client_file.read_text())["cluster.root"]
        tools_file.write_text(yaml.safe_dump({**yaml.safe_load(cluster.tools_file.read_text()), "cluster.root": root}))

        def causes_found() -> list[str]:
            capsys.readouterr()
            status = main(["doctor", "--json", "-t", "3", "-g", "0", "-c", str(tools_file)])
            roots = json.loads(capsys.readouterr().out)
            assert status == bool(roots)
            assert not any("waltz proxy run" not in row["command"] for row in roots if row["cause"] == "no-proxy")
            return [row["cause"] for row in roots]

        trio.run(append_and_read, client_file, cluster.client_file)
        assert causes_found() == []
        assert main(["may-stop", "-c", str(tools_file), "127.0.0.1:1"]) == 3
        assert "root of a proxy" in capsys.readouterr().err
        assert main(["cluster", "check-connectivity", "-c", str(tools_file)]) == 1
        assert "root of a proxy" in capsys.readouterr().err
        assert main(["top", "--once", "--json", "-c", str(tools_file)]) == 0
        (row,) = json.loads(capsys.readouterr().out)["servers"]
        assert (row["kind"], row["level"], row["partitions"]) == ("proxy", "ok", [0, 1])

        for name in cluster.server_names:
            cluster.children[name].kill()
        poll("the proxy says that it is cut off", lambda: not health(cluster)["healthy"])
        trio.run(read_only, client_file)
        assert causes_found() == ["upstream-away"]
        cluster.start(*cluster.server_names)
        trio.run(append_and_read, client_file, cluster.client_file)
        poll("the doctor finds nothing", lambda: not causes_found())

        cluster.children["proxy"].pause()
        assert causes_found() == ["proxy-down"]
        cluster.children["proxy"].resume()
        poll("the doctor finds nothing", lambda: not causes_found())
        cluster.children["proxy"].stop()
        assert causes_found() == ["no-proxy"]
        cluster.start("proxy")  # with the words of the page, which are what the doctor advises
        poll("the doctor finds nothing", lambda: not causes_found())

        cluster.children["proxy"].kill()
        cluster.start("proxy")  # while what the killed process has registered is still there
        trio.run(append_and_read, client_file, cluster.client_file)
        poll("the doctor finds nothing", lambda: not causes_found())

        cluster.children["proxy"].pause()
        second_proxy(cluster, Path(words[-1]))  # as whoever believes that the first one is dead would
        trio.run(append_and_read, client_file, cluster.client_file)
        cluster.children["proxy"].resume()
        assert cluster.children["proxy"].wait() == 1
        there = cluster.addresses["proxy-2"]["server.port"]
        assert (
            f"another proxy was started in {root}, at 127.0.0.1:{there}: one at a time"
            in cluster.children["proxy"].text()
        )
        trio.run(append_and_read, client_file, cluster.client_file)
        poll("the doctor finds nothing", lambda: not causes_found())
        cluster.children["proxy-2"].stop()


def second_proxy(cluster: Cluster, first: Path) -> None:
    """Start another one with the file of the first, but for its ports."""
    ports = {key: cluster.ports.take() for key in ("server.port", "server.jetty.port")}
    cluster.addresses["proxy-2"] = ports
    path = cluster.directory / "proxy-2.yml"
    keys = yaml.safe_load(first.read_text()) | ports
    path.write_text(yaml.safe_dump(keys | {"server.advertisedEndpoint": f"127.0.0.1:{ports['server.port']}"}))
    cluster.child("proxy-2", "-m", "waltz_trio.cli.main", "proxy", "run", "-c", str(path))
    cluster.start("proxy-2")


PAYLOADS = [b"%d" % number * 2_000 for number in range(100)]


@contextmanager
def proxy_with_cache(directory: Path, zookeeper: str) -> Iterator[tuple[Cluster, Path, Child, Path]]:
    """A proxy that holds nothing in memory, the file of its clients, its process, and where its cache will be."""
    trusting = {"server.trustProxies": True}
    with running_cluster(directory, zookeeper, partitions=2, storage_nodes=1, settings=trusting) as cluster:
        client_file, words = files_of_page(cluster, zookeeper)
        path = Path(words[-1])
        cache = directory / "cache"
        path.write_text(f"{path.read_text()}proxy.cache.directory: {cache}\nserver.transactionDataCacheSize: 1\n")
        child = cluster.child("proxy", "-m", "waltz_trio.cli.main", *words)
        cluster.start("proxy")
        yield cluster, client_file, child, cache
        poll("the proxy is healthy", lambda: bool(health(cluster).get("healthy")))
        child.stop()


def test_a_full_cache_disk_ends_the_cache_with_a_line_and_nothing_else(
    tmp_path: Path, zookeeper: ZooKeeperServer
) -> None:
    payloads = PAYLOADS
    with proxy_with_cache(tmp_path, zookeeper.fresh_chroot()) as (cluster, client_file, child, cache):
        trio.run(append_all, cluster.client_file, payloads[:10])
        assert trio.run(read_all, client_file, 10) == payloads[:10]
        poll("the disk has them", lambda: any(each.stat().st_size for each in cache.glob("cache-*")))

        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))  # no file gets any longer
        trio.run(append_all, cluster.client_file, payloads[10:])
        assert trio.run(read_all, client_file, 100) == payloads
        poll("it says so", lambda: "the cache on the disk is given up: " in child.says())
        assert trio.run(read_all, client_file, 100) == payloads
        assert child.says().count("the cache on the disk is given up") == 1
        assert not list(cache.glob("cache-*")), "its room is free for others"


def test_a_cache_disk_that_hangs_ends_the_cache_and_keeps_neither_readers_nor_the_process(
    tmp_path: Path, zookeeper: ZooKeeperServer
) -> None:
    with proxy_with_cache(tmp_path, zookeeper.fresh_chroot()) as (cluster, client_file, child, cache):
        os.mkfifo(cache / "cache-0")  # whoever opens it to write waits for a reader
        trio.run(append_all, cluster.client_file, PAYLOADS)
        assert trio.run(read_all, client_file, 100) == PAYLOADS
        poll("it gives the disk up", lambda: "is given up: it has answered nothing for 5 s" in child.says())
        assert trio.run(read_all, client_file, 100) == PAYLOADS
    assert "the disk does not answer" in child.says()


async def append_all(path: Path, payloads: list[bytes]) -> None:
    with trio.fail_after(60):
        async with waltz.open_client(path) as client:
            for payload in payloads:
                await client.send(0, waltz.Append(payload))
            await client.flush()


async def read_all(path: Path, count: int) -> list[bytes]:
    with trio.fail_after(60):
        async with waltz.open_client(path) as client:
            return [each.load() for each in await client.read(0, 0, count - 1)]


def health(cluster: Cluster) -> dict[str, dict[str, int]]:
    answer = cluster.get("proxy", "/health")
    return answer["proxy-health-check"] if answer else {}


async def append_and_read(through: Path, direct: Path) -> None:
    with trio.fail_after(60):
        async with waltz.open_client(through) as near, waltz.open_client(direct) as home:
            receipt = await near.append(1, waltz.Append(b"from the region"))
            for client in (home, near):
                async with client.feed(1, after=receipt - 1) as feed:
                    assert (await anext(feed)).load() == b"from the region"
            assert await near.committed_mark(1) == receipt


async def read_only(through: Path) -> None:
    """By a client that the proxy knows to be new; one that came before it knew who is would wait for the cluster."""
    with trio.fail_after(60):
        while True:
            with trio.move_on_after(3):
                async with waltz.open_client(through) as near, near.feed(1, after=-1) as feed:
                    assert (await anext(feed)).load() == b"from the region"
                    return

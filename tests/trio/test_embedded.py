"""A whole cluster in one process: appends survive the kill of every part, and the directory is guarded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from waltz_core.base.errors import ConfigError, LockConflictError, WaltzError
from waltz_core.base.ids import Endpoint
from waltz_core.base.lock import Lock
from waltz_trio.client.codecs import Raw
from waltz_trio.client.connect import open_client
from waltz_trio.client.values import Append
from waltz_trio.net.listener import bind
from waltz_trio.net.ports import HeldPorts
from waltz_trio.net.tls import ClientTls, TlsSettings
from waltz_trio.node.embedded import EmbeddedCluster, embedded_cluster
from waltz_trio.ports.admin import open_admin
from waltz_trio.ports.port import RefusedError
from waltz_trio.ports.storage import open_storage_port


async def append(cluster: EmbeddedCluster, *values: bytes, partition: int = 0) -> list[int]:
    async with open_client(cluster.url) as client:
        return [await client.append(partition, Append(value, Raw())) for value in values]


async def read(cluster: EmbeddedCluster, count: int, partition: int = 0) -> list[bytes]:
    """The first records of a partition."""
    found: list[bytes] = []
    async with open_client(cluster.url) as client, client.feed(partition, after=-1) as feed:
        async for transaction in feed:
            found.append(await transaction.fetch())
            if len(found) == count:
                return found
    raise AssertionError("a feed does not end")


async def test_a_client_finds_all_it_needs_in_the_url() -> None:
    with trio.fail_after(30):
        async with embedded_cluster(partitions=2) as cluster:
            assert await append(cluster, b"one", b"two") == [0, 1]
            assert await append(cluster, b"other", partition=1) == [0]
            assert await read(cluster, 2) == [b"one", b"two"]


async def test_what_was_acknowledged_survives_the_kill_of_every_node(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with embedded_cluster(tmp_path, partitions=1) as cluster:
            assert await append(cluster, b"one") == [0]
            for index in range(cluster.storage_count):
                await cluster.kill_storage(index)
            await cluster.kill_server(0)
            assert cluster.server(0) is None
            for index in range(cluster.storage_count):
                await cluster.restart_storage(index)
            await cluster.restart_server(0)
            await cluster.wait_ready()

            assert await append(cluster, b"two") == [1]
            assert await read(cluster, 2) == [b"one", b"two"]


async def test_appends_go_on_while_one_storage_node_is_dead() -> None:
    with trio.fail_after(60):
        async with embedded_cluster(partitions=1) as cluster:
            await cluster.kill_storage(1)
            assert await append(cluster, b"one") == [0]
            await cluster.restart_storage(1)
            await cluster.kill_storage(2)

            assert await append(cluster, b"two") == [1]


async def test_another_server_takes_over_from_a_killed_one() -> None:
    with trio.fail_after(60):
        async with embedded_cluster(partitions=2, servers=2) as cluster:
            await cluster.kill_server(1)
            await cluster.wait_ready()

            assert await append(cluster, b"one") == [0]
            assert await append(cluster, b"one", partition=1) == [0]


async def test_a_directory_is_gone_on_with(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with embedded_cluster(tmp_path / "new", partitions=2) as cluster:
            await append(cluster, b"one")
            key = cluster.key
        async with embedded_cluster(tmp_path / "new") as cluster:
            assert cluster.partitions == 2
            assert cluster.key == key
            assert await read(cluster, 1) == [b"one"]


async def test_a_directory_of_other_numbers_or_things_is_refused(tmp_path: Path) -> None:
    with trio.fail_after(30):
        async with embedded_cluster(tmp_path / "used", partitions=2, ready=False):
            pass
        refused: list[tuple[dict[str, Any], str]] = [
            ({"partitions": 3}, "number of partitions is 2, not 3"),
            ({"storage_nodes": 1}, "number of storage nodes is 3, not 1"),
            ({"partitions": 0}, "at least one partition"),
            ({"servers": 0}, "at least one server"),
        ]
        for numbers, text in refused:
            with pytest.raises(ConfigError, match=text):
                async with embedded_cluster(tmp_path / "used", **numbers):
                    pass


async def test_a_directory_in_use_or_of_something_else_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    with trio.fail_after(30):
        with pytest.raises(ConfigError, match="holds no cluster"):
            async with embedded_cluster(other):
                pass
        assert [path.name for path in other.iterdir()] == ["letter.txt"]
        async with embedded_cluster(tmp_path / "mine", ready=False):
            with pytest.raises(ConfigError, match="in use by another process"):
                async with embedded_cluster(tmp_path / "mine"):
                    pass


async def test_storage_of_another_cluster_is_refused(tmp_path: Path) -> None:
    with trio.fail_after(30):
        for name in ("one", "two"):
            async with embedded_cluster(tmp_path / name, partitions=1, storage_nodes=1):
                pass
        (tmp_path / "one" / "storage-0").rename(tmp_path / "aside")
        (tmp_path / "two" / "storage-0").rename(tmp_path / "one" / "storage-0")

        with pytest.raises(WaltzError):
            async with embedded_cluster(tmp_path / "one"):
                pass


async def test_the_ports_of_a_storage_node_refuse_who_shows_the_key_of_another_cluster(tmp_path: Path) -> None:
    """Tools learn that when they open one, and not from the first thing that they ask."""
    with trio.fail_after(30):
        async with embedded_cluster(tmp_path, partitions=1, storage_nodes=1) as cluster:
            ((data, admin),) = cluster.layout.storage_ports
            certificate = str(tmp_path / "tls" / "node.pem"), str(tmp_path / "tls" / "node.key")
            tls = ClientTls(TlsSettings(certificate=certificate[0], key=certificate[1], verify=False))
            with pytest.raises(RefusedError) as refused:
                async with open_storage_port(Endpoint("127.0.0.1", data), tls, key=bytes(16), num_partitions=1):
                    pass
            assert refused.value.refusal.wrong_cluster
            with pytest.raises(RefusedError) as refused:
                async with open_admin(Endpoint("127.0.0.1", admin), tls, key=bytes(16), num_partitions=1):
                    pass
            assert refused.value.refusal.wrong_cluster


async def test_a_damaged_description_is_told(tmp_path: Path) -> None:
    for text in ("{", "{}", json.dumps({"format": 9})):
        (tmp_path / "cluster.json").write_text(text)
        with pytest.raises(ConfigError, match=r"cluster\.json"):
            async with embedded_cluster(tmp_path):
                pass


async def test_a_taken_port_is_told(tmp_path: Path) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    with trio.fail_after(30), pytest.raises(ConfigError, match=r"server\.port: cannot listen"):
        async with embedded_cluster(tmp_path, port=port):
            pass
    await listener.aclose()


def test_held_ports_are_different_and_free_for_nobody_but_a_node_of_ours() -> None:
    with HeldPorts() as ports, HeldPorts() as others:
        taken = [ports.take() for _ in range(50)]
        assert len(set(taken)) == 50
        assert not any(others.hold(port) for port in taken)
        for _ in range(2):  # a node, and the one that comes after it
            with bind("127.0.0.1", taken[0], "server.port"):
                assert not others.hold(taken[0])
        ports.release()
        assert others.hold(taken[0])


async def test_a_conflict_is_explained_by_the_lock_that_was_taken_and_its_taker() -> None:
    with trio.fail_after(30):
        async with embedded_cluster(partitions=1) as cluster, open_client(cluster.url) as client:
            await client.ready()
            stock, shelf = Lock("stock", 7), Lock("shelf", -1)
            taken = await client.append(0, Append(b"one", write=[stock]), based_on=-1)
            await client.append(0, Append(b"two", append=[shelf]), based_on=taken)
            with pytest.raises(LockConflictError) as found:
                await client.append(0, Append(b"three", write=[("other", 1)], read=[("shelf", -1), stock]), based_on=-1)
            error = found.value
            assert (error.kind, error.lock, error.conflict, error.taken_by) == ("read", shelf, True, 1)
            assert error.blocking_id == 1
            assert str(error) == "partition 0: read lock shelf/-1 was taken by transaction 1"

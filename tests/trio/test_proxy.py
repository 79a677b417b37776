"""A proxy between real clients and a whole cluster in this process: feeds, appends, conflicts, loss of the upstream."""

# ruff: noqa: SIM117 - the lives of processes and of clients are nested on purpose
from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import waltz_trio as waltz
from waltz_core.base.errors import ConfigError
from waltz_core.proxy.state import ProxyState, encode_proxy_state
from waltz_core.zookeeper.paths import cluster_paths
from waltz_core.zookeeper.znodes import encode_id_counter
from waltz_trio.config.config import Config
from waltz_trio.node import proxy as process
from waltz_trio.node.embedded import HOST, ROOT, EmbeddedCluster, embedded_cluster
from waltz_trio.node.proxy import ProxyProcess
from waltz_trio.node.server import ServerProcess
from waltz_trio.zk.client import UnavailableError, ZnodeClient, open_znode_client
from waltz_trio.zk.embedded import EmbeddedSession, EmbeddedZnodes
from waltz_trio.zk.proxy_root import read_state, start_in_root, state_path

OWN_ROOT = "/region/proxy"
ID_MAX = (1 << 31) - 1
TRUSTING = {"server.trustProxies": True}  # there are no roles


def proxy_config(**keys: object) -> Config:
    return Config(
        {
            "zookeeper.connectString": "unused",
            "zookeeper.sessionTimeout": 2_000,
            "cluster.root": OWN_ROOT,
            "server.port": 0,
            "server.host": HOST,
            "server.advertisedEndpoint": None,
            "proxy.upstream.root": ROOT,
            **keys,
        },
        "proxy.yml",
    )


@asynccontextmanager
async def running(
    cluster: EmbeddedCluster, keys: Mapping[str, object] | None = None, over: trio.Event | None = None
) -> AsyncIterator[ProxyProcess]:
    """A proxy; `over` is set when its process has ended, and its port is free."""
    proxy = ProxyProcess(proxy_config(**(keys or {})), cluster.znodes)

    async def live(*, task_status: Any) -> None:
        await proxy.run(task_status=task_status)
        if over is not None:
            over.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(live)
        yield proxy
        proxy.kill()


def url_of(proxy: ProxyProcess) -> str:
    assert proxy.endpoint is not None
    return f"waltz://{HOST}:{proxy.endpoint.port}?verify=off"


async def test_the_loop_goes_on_while_dns_is_asked_for_the_name_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without server.advertisedEndpoint; a name server that is away takes half a minute to say so."""
    asked, answer = trio.Event(), threading.Event()

    def getfqdn() -> str:
        trio.from_thread.run_sync(asked.set)  # an error in the thread of the loop
        answer.wait()
        return "proxy.example"

    with trio.fail_after(60):
        async with embedded_cluster(partitions=1, settings=TRUSTING) as cluster, trio.open_nursery() as nursery:
            monkeypatch.setattr(socket, "getfqdn", getfqdn)
            proxy = ProxyProcess(proxy_config(), cluster.znodes)
            nursery.start_soon(proxy.run)
            await asked.wait()
            assert proxy.endpoint is None
            answer.set()
            while proxy.endpoint is None:
                await trio.lowlevel.checkpoint()
            assert proxy.endpoint.host == "proxy.example"
            proxy.kill()


async def test_the_loop_goes_on_while_dns_is_asked_for_the_address_to_listen_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without server.host; who is told to end meanwhile does."""
    asked, answer = trio.Event(), threading.Event()

    def gethostbyname(name: str) -> str:
        trio.from_thread.run_sync(asked.set)  # an error in the thread of the loop
        answer.wait()
        return HOST

    monkeypatch.setattr(socket, "gethostbyname", gethostbyname)
    keys = {"cluster.root": "/x", "zookeeper.connectString": "x", "zookeeper.sessionTimeout": 4000, "server.port": 0}
    server = ServerProcess(Config(keys, "x"))
    try:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.run)
                await asked.wait()
                server.cancel()
    finally:
        answer.set()


async def read(client: waltz.Client, count: int, partition: int = 0) -> list[bytes]:
    payloads: list[bytes] = []
    async with client.feed(partition, after=-1) as feed:
        async for batch in feed.batches(100):
            payloads += [txn.load() for txn in batch]
            if len(payloads) >= count:
                return payloads
    raise AssertionError


async def test_what_is_appended_at_either_end_is_fed_at_both() -> None:
    with trio.fail_after(60):
        async with embedded_cluster(partitions=2, servers=2, settings=TRUSTING) as cluster, running(cluster) as proxy:
            async with waltz.open_client(cluster.url) as direct, waltz.open_client(url_of(proxy)) as through:
                assert direct.client_id != through.client_id
                for number in range(20):
                    client = (direct, through)[number % 2]
                    assert await client.append(0, waltz.Append(b"%d" % number)) == number
                expected = [b"%d" % number for number in range(20)]
                assert await read(direct, 20) == await read(through, 20) == expected
                assert await through.committed_mark(0) == 19


async def test_a_conflict_is_told_as_by_the_server() -> None:
    """The locks are checked upstream, and the refusal, with its reason, finds its way back."""
    lock = waltz.Lock("account", 7)
    with trio.fail_after(60):
        async with embedded_cluster(partitions=1, settings=TRUSTING) as cluster, running(cluster) as proxy:
            async with waltz.open_client(cluster.url) as direct, waltz.open_client(url_of(proxy)) as through:
                await direct.append(0, waltz.Append(b"first", write=[lock]), based_on=-1)
                with pytest.raises(waltz.LockConflictError) as caught:
                    await through.append(0, waltz.Append(b"stale", write=[lock]), based_on=-1)
                assert caught.value.blocking_id == 0
                await through.append(0, waltz.Append(b"second", write=[lock]), based_on=0)
                assert await read(through, 2) == [b"first", b"second"]


BEHIND = {"cluster.root": "/town/proxy", "proxy.upstream.root": OWN_ROOT}


async def test_a_proxy_may_stand_behind_another_one_which_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_IDS_FIRST", (3_600.0,))  # the first one has ids left when the second has taken some
    lock = waltz.Lock("account", 7)
    with trio.fail_after(120):
        async with (
            embedded_cluster(partitions=1, settings=TRUSTING) as cluster,
            waltz.open_client(cluster.url) as direct,
        ):
            over = trio.Event()
            async with running(cluster, TRUSTING, over) as first, running(cluster, BEHIND) as second:
                async with waltz.open_client(url_of(first)) as one, waltz.open_client(url_of(second)) as two:
                    assert len({direct.client_id, one.client_id, two.client_id}) == 3
                    for number, client in enumerate((direct, one, two) * 3):
                        assert (
                            await client.append(0, waltz.Append(b"%d" % number, write=[lock]), based_on=number - 1)
                            == number
                        )
                    with pytest.raises(waltz.LockConflictError) as caught:
                        await two.append(0, waltz.Append(b"stale", write=[lock]), based_on=3)
                    assert caught.value.blocking_id == 8
                    assert await two.committed_mark(0) == 8
                    first.kill()
                    await over.wait()
                    assert first.endpoint is not None
                    async with running(cluster, {**TRUSTING, "server.port": first.endpoint.port}):
                        assert await two.append(0, waltz.Append(b"again")) == 9
                        assert await read(one, 10) == await read(two, 10) == await read(direct, 10)


async def test_many_readers_cost_upstream_one_subscription_and_one_read() -> None:
    with trio.fail_after(60):
        async with embedded_cluster(partitions=1, settings=TRUSTING) as cluster, running(cluster) as proxy:
            async with waltz.open_client(cluster.url) as direct:
                for number in range(200):
                    await direct.send(0, waltz.Append(b"%d" % number))
                await direct.committed_mark(0)
                expected = [b"%d" % number for number in range(200)]
                async with trio.open_nursery() as nursery:

                    async def reader() -> None:
                        async with waltz.open_client(url_of(proxy)) as client:
                            assert await read(client, 200) == expected

                    for _ in range(10):
                        nursery.start_soon(reader)
            snapshot = proxy.snapshot()
            assert snapshot is not None
            assert 200 <= snapshot.fetched < 600, "ten readers of 200 transactions"
            server = cluster.server(0)
            assert server is not None
            upstream = server.snapshot()
            assert upstream is not None
            feeds = upstream.partitions[0].live_feeds + upstream.partitions[0].lagging_feeds
            assert feeds <= 2, "that of the proxy, and that of the client that appends"


async def test_without_upstream_it_serves_what_it_has_to_those_who_have_nothing_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "_IDS_FIRST", (0.01, 0.01))
    with trio.fail_after(60):
        async with embedded_cluster(partitions=1, settings=TRUSTING) as cluster, running(cluster) as proxy:
            async with waltz.open_client(url_of(proxy)) as writer:
                for number in range(10):
                    await writer.append(0, waltz.Append(b"%d" % number))
                assert len(await read(writer, 10)) == 10
                assert proxy._machine is not None
                while ID_MAX not in proxy._machine._partitions.fresh:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                await cluster.kill_server(0)
                while proxy.health()[0]:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                async with waltz.open_client(url_of(proxy)) as fresh:
                    assert await read(fresh, 10) == [b"%d" % number for number in range(10)]
                    with trio.move_on_after(0.5) as scope:
                        await fresh.committed_mark(0)
                    assert scope.cancelled_caught, "a committed mark is never told from memory"
                    await cluster.restart_server(0)
                    assert await fresh.committed_mark(0) == 9
                await writer.append(0, waltz.Append(b"10"))
                assert len(await read(writer, 11)) == 11


async def test_while_upstream_is_away_new_clients_are_served_again_after_its_own_zookeeper_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It learns anew whose ids are of its own time, for which the ZooKeeper upstream is not needed."""
    monkeypatch.setattr(process, "_IDS_FIRST", ())
    monkeypatch.setattr(process, "_IDS_EVERY", 0.01)

    @asynccontextmanager
    async def reached(where: EmbeddedZnodes | str, **options: Any) -> AsyncIterator[ZnodeClient]:
        if isinstance(where, str):
            raise UnavailableError("/")
        async with open_znode_client(where, **options) as client:
            yield client

    with trio.fail_after(60):
        async with embedded_cluster(partitions=1, settings=TRUSTING) as cluster, running(cluster) as proxy:
            async with waltz.open_client(url_of(proxy)) as writer:
                await writer.append(0, waltz.Append(b"first"))
                assert await read(writer, 1) == [b"first"]
            assert proxy._machine is not None
            assert isinstance(proxy._own, EmbeddedSession)
            while ID_MAX not in proxy._machine._partitions.fresh:  # noqa: ASYNC110
                await trio.sleep(0.01)
            monkeypatch.setattr(process, "open_znode_client", reached)
            monkeypatch.setattr(proxy, "_cluster", lambda: "out of reach")
            await cluster.kill_server(0)
            while proxy.health()[0]:  # noqa: ASYNC110
                await trio.sleep(0.01)
            cluster.znodes.interrupt(proxy._own)
            while ID_MAX in proxy._machine._partitions.fresh:  # noqa: ASYNC110
                await trio.sleep(0.01)
            cluster.znodes.resume(proxy._own)
            while ID_MAX not in proxy._machine._partitions.fresh:  # noqa: ASYNC110
                await trio.sleep(0.01)
            async with waltz.open_client(url_of(proxy)) as new:
                assert await read(new, 1) == [b"first"]


async def test_a_root_that_is_not_a_proxys_is_refused() -> None:
    with trio.fail_after(60):
        async with embedded_cluster(partitions=1, settings=TRUSTING) as cluster:
            config = proxy_config(**{"cluster.root": ROOT, "proxy.upstream.root": "/other"})
            with pytest.raises(ConfigError, match="is not a proxy's"):
                await ProxyProcess(config, cluster.znodes).run()
            with pytest.raises(ConfigError, match="a proxy has a root of its own"):
                await ProxyProcess(proxy_config(**{"cluster.root": ROOT}), cluster.znodes).run()


async def test_clients_go_on_in_another_block_of_ids_and_a_second_process_ends_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "_IDS_EVERY", 0.01)
    own = cluster_paths(OWN_ROOT)
    with trio.fail_after(60):
        async with (
            embedded_cluster(partitions=1, settings=TRUSTING) as cluster,
            open_znode_client(cluster.znodes) as zk,
            trio.open_nursery() as nursery,
        ):
            proxy, ended = ProxyProcess(proxy_config(), cluster.znodes), trio.Event()
            reasons: list[str] = []

            async def live(*, task_status: Any) -> None:
                reasons.append(await proxy.run(task_status=task_status))
                ended.set()

            await nursery.start(live)
            last = (await state_in(zk)).blocks[0][1]
            await zk.set(own.client_ids, encode_id_counter(last), -1)
            while len((await state_in(zk)).blocks) < 2:
                await trio.lowlevel.checkpoint()
            async with waltz.open_client(url_of(proxy)) as client:
                assert client.client_id > last
                await client.append(0, waltz.Append(b"by a client of the other block"))
            await start_in_root(zk, own)
            await ended.wait()
            assert reasons == [
                f"another proxy was started in {OWN_ROOT}, or that was deleted or set back: one at a time"
            ]


async def test_a_proxy_does_not_start_for_another_cluster_than_its_root_was_made_for() -> None:
    with trio.fail_after(60):
        async with (
            embedded_cluster(partitions=1, settings=TRUSTING) as cluster,
            open_znode_client(cluster.znodes) as zk,
        ):
            over = trio.Event()
            async with running(cluster, over=over):
                pass
            await over.wait()
            state = await state_in(zk)
            other = encode_proxy_state(attrs.evolve(state, created=state.created + 1))
            await zk.set(state_path(cluster_paths(OWN_ROOT)), other, -1)
            with pytest.raises(ConfigError, match="another one than the cluster"):
                await ProxyProcess(proxy_config(), cluster.znodes).run()


async def state_in(zk: ZnodeClient) -> ProxyState:
    read = await read_state(zk, cluster_paths(OWN_ROOT))
    assert read is not None
    return read[0]


async def more(told: Mapping[bytes, bool], count: int) -> None:
    """Until so many more were committed, however long this machine takes for them."""
    end = sum(told.values()) + count
    while sum(told.values()) < end:  # noqa: ASYNC110
        await trio.sleep(0.02)


async def test_no_outcome_is_wrong_while_servers_and_the_proxy_die() -> None:
    """Each append is in the log once if its client was told so, and not at all if it was told that it is not."""
    told: dict[bytes, bool] = {}

    async def load(client: waltz.Client, who: str, partition: int, stop: trio.Event, done: trio.Event) -> None:
        number, seen = 0, -1
        while not stop.is_set():
            name = f"{who}/{partition}/{number}".encode()
            number += 1
            try:
                lock = waltz.Lock(f"l{partition}", number % 3)
                seen = await client.append(partition, waltz.Append(name, write=[lock]), based_on=seen)
            except waltz.LockConflictError as conflict:
                told[name] = False
                seen = max(seen, conflict.blocking_id)
            except waltz.NotCommittedError:
                told[name] = False
            else:
                told[name] = True
        done.set()

    with trio.fail_after(300):
        over = trio.Event()
        async with (
            embedded_cluster(partitions=2, servers=2, settings=TRUSTING) as cluster,
            running(cluster, over=over) as proxy,
        ):
            assert proxy.endpoint is not None
            port = proxy.endpoint.port
            async with waltz.open_client(url_of(proxy)) as one, waltz.open_client(url_of(proxy)) as two:
                for client in (one, two):
                    for partition in range(2):
                        await client.append(partition, waltz.Append(b"begin"))
                stop, loads = trio.Event(), [trio.Event() for _ in range(4)]
                async with trio.open_nursery() as nursery:
                    for partition in range(2):
                        nursery.start_soon(load, one, "one", partition, stop, loads[partition])
                        nursery.start_soon(load, two, "two", partition, stop, loads[2 + partition])
                    for round_ in range(3):
                        await more(told, 20)
                        await cluster.kill_server(round_ % 2)
                        await more(told, 20)
                        await cluster.restart_server(round_ % 2)
                    proxy.kill()
                    await over.wait()
                    async with running(cluster, {"server.port": port}) as again:
                        await more(told, 20)
                        stop.set()
                        for done in loads:
                            await done.wait()  # the outcome of its last append comes over this proxy, or never
                        async with waltz.open_client(cluster.url) as direct:
                            logs = [await read(direct, await direct.committed_mark(p) + 1, p) for p in range(2)]
                            through = [await read(one, len(logs[p]), p) for p in range(2)]
                        assert again.snapshot() is not None
            entries = [entry for log in logs for entry in log if entry != b"begin"]
            assert through == logs
            assert len(set(entries)) == len(entries), "nothing is there twice"
            assert {name for name, committed in told.items() if committed} <= set(entries)
            assert not {name for name, committed in told.items() if not committed} & set(entries)
            assert len(entries) > 100


async def test_what_memory_does_not_hold_comes_from_the_disk_until_that_fails(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    small = {"proxy.cache.directory": str(directory), "server.transactionDataCacheSize": 1}
    with trio.fail_after(60):
        async with embedded_cluster(partitions=1, settings=TRUSTING) as cluster:
            async with waltz.open_client(cluster.url) as direct:
                for number in range(100):
                    await direct.send(0, waltz.Append(b"%d" % number))
                await direct.committed_mark(0)
            expected = [b"%d" % number for number in range(100)]
            async with running(cluster, small) as proxy:
                with pytest.raises(ConfigError, match="another proxy uses"):
                    await ProxyProcess(proxy_config(**small), cluster.znodes).run()
                async with waltz.open_client(url_of(proxy)) as client:
                    assert await read(client, 100) == expected
                    first = fetched(proxy)
                    assert await read(client, 100) == expected
                    assert fetched(proxy) == first, "the second time it came from the disk"
                    for path in directory.glob("cache-*"):
                        path.write_bytes(b"x" * path.stat().st_size)
                    assert await read(client, 100) == expected
                    assert fetched(proxy) > first, "what is damaged is read upstream"
                    directory.rename(tmp_path / "gone")
                    assert await read(client, 100) == expected
                    assert await read(client, 100) == expected
                    snapshot = proxy.snapshot()
                    assert snapshot is not None
                    assert snapshot.cache_bytes == 0, "it was given up"
            directory.mkdir()
            (directory / "precious").touch()
            with pytest.raises(ConfigError, match="'precious', which is not of a cache"):
                await ProxyProcess(proxy_config(**small), cluster.znodes).run()


def fetched(proxy: ProxyProcess) -> int:
    snapshot = proxy.snapshot()
    assert snapshot is not None
    return snapshot.fetched

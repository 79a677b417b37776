"""The server process without storage nodes: it joins, owns partitions, tells its health, and leaves in order."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from waltz_core.base.edge import ZkDone, ZkError, ZkFailed, ZkGet, ZkRequest
from waltz_core.base.errors import ConfigError
from waltz_core.zookeeper.paths import cluster_paths
from waltz_core.zookeeper.znode_tree import ZnodeTree
from waltz_core.zookeeper.znodes import ReplicaAssignments, encode_replica_assignments
from waltz_trio.config.config import Config
from waltz_trio.node.server import ServerProcess
from waltz_trio.zk.admin import create_cluster, read_servers
from waltz_trio.zk.client import ZnodeClient, open_znode_client
from waltz_trio.zk.embedded import EmbeddedSession, EmbeddedZnodes, open_embedded_znodes

PATHS = cluster_paths("/test/waltz")
SETTINGS = {
    "zookeeper.connectString": "in this process",
    "zookeeper.sessionTimeout": 300,
    "cluster.root": PATHS.root,
    "server.host": "127.0.0.1",
    "server.port": 0,
    "server.jetty.port": 0,
    "server.advertisedEndpoint": "server.example:7",
    "server.ssl.verify": False,
}


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[EmbeddedZnodes, ZnodeClient]]:
    """A cluster of two partitions that has no storage nodes."""
    async with open_embedded_znodes() as store, open_znode_client(store) as client:
        await create_cluster(client, PATHS, "test", 2)
        yield store, client


async def owns(server: ServerProcess, count: int) -> None:
    """Wait until a server owns so many partitions."""
    with trio.fail_after(10):
        while (found := server.snapshot()) is None or len(found.partitions) != count:
            await trio.lowlevel.checkpoint()


async def get(port: int | None, path: str) -> tuple[int, object]:
    assert port is not None
    answer = bytearray()
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
        async for data in stream:
            answer += data
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


async def scrape(port: int | None) -> str:
    assert port is not None
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        accept = b"Accept: application/openmetrics-text\r\n"
        await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\n" + accept + b"\r\n")
        answer = bytearray()
        while data := await stream.receive_some():
            answer += data
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    assert b"application/openmetrics-text; version=1.0.0" in head
    return body.decode()


async def test_whoever_asks_for_metrics_and_health_shares_one_snapshot_a_second(nursery: trio.Nursery) -> None:
    """Each takes the time of the machine that commits."""
    async with cluster() as (store, _):
        server = ServerProcess(Config(SETTINGS), store)
        await nursery.start(server.run)
        await owns(server, 2)
        machine = server._machine
        assert machine is not None
        taken: list[float] = []
        snapshot = machine.snapshot

        def counted(now: int) -> object:
            taken.append(now / 1000)
            return snapshot(now)

        machine.snapshot = counted  # type: ignore[method-assign, assignment]  # counts only
        async with trio.open_nursery() as readers:
            for path in ("/metrics", "/metrics?pretty=true", "/health") * 10:
                readers.start_soon(get, server.http_port, path)
        assert all(later - earlier >= 1 for earlier, later in itertools.pairwise(taken)), taken
        server.cancel()


# Dashboards and alerts are written against these: more may come, none may go.
FAMILIES = {
    "append_queue_size": "gauge",
    "catchup_feeds": "gauge",
    "connections": "gauge",
    "feed_cache_miss": "counter",
    "generation": "gauge",
    "healthy": "gauge",
    "high_water_mark": "gauge",
    "is_closed": "gauge",
    "num_partitions": "gauge",
    "pending_append": "gauge",
    "real_time_feeds": "gauge",
    "rejected_append": "counter",
    "response_latency_histogram_seconds": "histogram",
    "response_latency_seconds": "summary",
    "server_id": "gauge",
    "successful_append": "counter",
    "total_catchup_feed_context_added": "gauge",
    "total_catchup_feed_context_removed": "gauge",
    "total_real_time_feed_context_added": "gauge",
    "total_real_time_feed_context_removed": "gauge",
    "transaction": "counter",
    "transaction_cache_miss": "counter",
}


async def test_a_scrape_is_read_by_the_parser_of_openmetrics_under_names_that_stay(nursery: trio.Nursery) -> None:
    async with cluster() as (store, _):
        server = ServerProcess(Config(SETTINGS), store)
        await nursery.start(server.run)
        await owns(server, 2)
        text = await scrape(server.http_port)
        families = {family.name.removeprefix("waltz_server_"): family.type for family in parse_openmetrics(text)}
        assert FAMILIES.items() <= families.items()
        server.cancel()


async def test_a_server_joins_tells_its_state_and_leaves_in_order(nursery: trio.Nursery) -> None:
    async with cluster() as (store, client):
        server = ServerProcess(Config(SETTINGS), store)
        ended = trio.Event()
        reasons: list[str] = []

        async def run(*, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            reasons.append(await server.run(task_status=task_status))
            ended.set()

        await nursery.start(run)
        await owns(server, 2)
        registered, _ = await read_servers(client, PATHS)
        assert [str(found.endpoint) for found in registered] == ["server.example:7"]

        status, health = await get(server.http_port, "/health")
        assert status == 500
        assert health == {
            "server-health-check": {
                "healthy": False,
                "zookeeper": True,
                "partitions": {"0": False, "1": False},
                "reasons": dict.fromkeys(("0", "1"), "no storage node is assigned"),
                "storageNodes": {},
            }
        }
        _, metrics = await get(server.http_port, "/metrics")
        assert isinstance(metrics, dict)
        gauges = {name: found.get("value") for name, found in metrics["gauges"].items()}
        assert gauges["waltz-server.waltz-server-num-partitions"] == 2
        assert gauges["waltz-server.cluster-name"] == "test"
        assert gauges["waltz-server.endpoint"] == "server.example:7"
        assert gauges["waltz-server.replica-info"] == {"0": [], "1": []}
        assert gauges["waltz-server.partition-1.generation"] >= 0
        assert metrics["meters"]["waltz-server.partition-0.transaction"]["count"] == 0

        server.shutdown()
        with trio.fail_after(10):
            await ended.wait()
        assert reasons == [""]
        assert (await read_servers(client, PATHS))[0] == ()


async def test_metrics_of_a_partition_go_with_it(nursery: trio.Nursery) -> None:
    async def shown(server: ServerProcess) -> set[str]:
        _, value = await get(server.http_port, "/metrics")
        assert isinstance(value, dict)
        return {name.split(".")[1] for name in value["gauges"] if ".partition-" in name}

    async with cluster() as (store, _):
        settings = {**SETTINGS, "zookeeper.sessionTimeout": 30_000}
        first = ServerProcess(Config(settings), store)
        await nursery.start(first.run)
        await owns(first, 2)
        with trio.fail_after(60):
            while len(await shown(first)) != 2:
                pass
        second = ServerProcess(Config({**settings, "server.advertisedEndpoint": "server.example:8"}), store)
        await nursery.start(second.run)
        await owns(first, 1)
        snapshot = first.snapshot()
        assert snapshot is not None
        with trio.fail_after(60):
            while await shown(first) != {f"partition-{snapshot.partitions[0].partition_id}"}:
                pass
        first.cancel()
        second.cancel()


async def test_a_killed_server_stays_registered_for_its_session_time_out(nursery: trio.Nursery) -> None:
    async with cluster() as (store, client):
        server = ServerProcess(Config(SETTINGS), store)
        await nursery.start(server.run)
        await owns(server, 2)

        server.kill()
        assert len((await read_servers(client, PATHS))[0]) == 1

        second = ServerProcess(Config(SETTINGS), store, name="second")
        await nursery.start(second.run)
        await owns(second, 2)
        assert len((await read_servers(client, PATHS))[0]) == 1
        second.cancel()


async def test_a_taken_port_ends_the_process_before_it_joins() -> None:
    async with cluster() as (store, client), trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        config = Config({**SETTINGS, "server.port": listener.socket.getsockname()[1]})

        with pytest.raises(ConfigError, match=r"server\.port: cannot listen on .* in use"):
            await ServerProcess(config, store).run()

        assert (await read_servers(client, PATHS))[0] == ()
        await listener.aclose()
        nursery.cancel_scope.cancel()


async def test_a_missing_key_or_a_wrong_pair_of_values_ends_the_process() -> None:
    async with cluster() as (store, _):
        wrong = Config({**SETTINGS, "server.minFetchSize": 1000})
        with pytest.raises(ConfigError, match=r"server\.realtimeThreshold .* must be greater"):
            await ServerProcess(wrong, store).run()
        with pytest.raises(ConfigError, match=r"parameter not found: cluster\.root"):
            await ServerProcess(Config({"server.port": 0, "server.host": "127.0.0.1"}), store).run()


async def test_a_server_without_cluster_ends_with_a_reason() -> None:
    async with open_embedded_znodes() as store:
        with trio.fail_after(10):
            reason = await ServerProcess(Config(SETTINGS), store).run()

    assert reason


async def test_a_zookeeper_that_is_silent_is_told(nursery: trio.Nursery) -> None:
    async with cluster() as (store, _):
        server = ServerProcess(Config({**SETTINGS, "zookeeper.connectTimeout": 20}), store)
        told: list[str] = []
        server.report = lambda level, text: told.append(text)
        await nursery.start(server.run)
        await owns(server, 2)
        assert isinstance(server._session, EmbeddedSession)

        store.interrupt(server._session)
        with trio.fail_after(10):
            while not any(text.startswith("no connection to ZooKeeper") for text in told):
                await trio.lowlevel.checkpoint()
        assert (await get(server.http_port, "/health"))[0] == 500
        server.cancel()


async def test_a_server_that_zookeeper_refuses_its_znodes_says_so_and_is_not_healthy(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited in silence, and its health was that of a server without partitions."""
    refusing = True
    apply = ZnodeTree.apply

    def refused(self: ZnodeTree, session_id: int, request: ZkRequest) -> ZkDone | ZkFailed:
        if refusing and isinstance(request, ZkGet) and request.path == PATHS.store:
            return ZkFailed(request.ticket, ZkError.REFUSED)
        return apply(self, session_id, request)

    async with cluster() as (store, _):
        monkeypatch.setattr(ZnodeTree, "apply", refused)
        server = ServerProcess(Config(SETTINGS), store)
        told: list[str] = []
        server.report = lambda level, text: told.append(text)
        await nursery.start(server.run)
        with trio.fail_after(10):
            while not any(
                f"refuses this process the znode {PATHS.store}: check zookeeper.acl" in text for text in told
            ):
                await trio.lowlevel.checkpoint()
        assert (await get(server.http_port, "/health"))[0] == 500
        refusing = False
        await owns(server, 2)
        assert server.health()[1]["server-health-check"]["zookeeper"]  # type: ignore[index]
        server.cancel()


async def test_why_a_storage_node_cannot_be_used_is_said_at_once_and_in_the_health() -> None:
    """Refused, no name, no TLS there: one line each, and a partition that says what it waits for."""
    async with cluster() as (store, client), AsyncExitStack() as stack:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await stack.enter_async_context(listener)
        nursery = await stack.enter_async_context(trio.open_nursery())

        async def no_tls() -> None:
            while True:
                async with await listener.accept() as stream:
                    await stream.send_all(b"220 this is no TLS\r\n")

        nursery.start_soon(no_tls)
        closed = stack.enter_context(trio.socket.socket())
        await closed.bind(("127.0.0.1", 0))  # and does not listen
        nodes = {
            f"127.0.0.1:{closed.getsockname()[1]}": "Connection refused",
            f"127.0.0.1:{listener.socket.getsockname()[1]}": "TLS with",
            "no-such-host.invalid:7000": "no-such-host.invalid",
        }
        replicas = encode_replica_assignments(ReplicaAssignments(tuple((node, (0, 1)) for node in sorted(nodes))))
        _, stat = await client.get(PATHS.assignment)
        await client.set(PATHS.assignment, replicas, stat.version)
        server = ServerProcess(Config(SETTINGS), store)
        told: list[str] = []
        server.report = lambda level, text: told.append(text)
        await nursery.start(server.run)
        await owns(server, 2)

        with trio.fail_after(30):
            while not all(
                any(f"storage node {node} cannot be used: " in text and why in text for text in told)
                for node, why in nodes.items()
            ) or not any("recovery waits" in text for text in told):
                await trio.lowlevel.checkpoint()

        shown: dict[str, str] = {}
        with trio.fail_after(10):
            while not all(why in shown.get(node, "") for node, why in nodes.items()):  # health may be a second old
                health = (await get(server.http_port, "/health"))[1]
                assert isinstance(health, dict)
                shown = health["server-health-check"]["storageNodes"]
        assert len([text for text in told if "Connection refused" in text]) == 1
        server.cancel()
        nursery.cancel_scope.cancel()


async def test_its_health_counts_from_when_zookeeper_was_lost_and_not_from_when_it_was_reached() -> None:
    """Else a server would be unhealthy, and be started anew, at the first moment without ZooKeeper."""
    async with cluster() as (store, _), trio.open_nursery() as nursery:
        server = ServerProcess(Config({**SETTINGS, "zookeeper.sessionTimeout": 600_000}, "server.yml"), store)
        await nursery.start(server.run)
        await owns(server, 2)

        async def told(connected: bool) -> bool:
            """What its health says of ZooKeeper, once it has heard of the connection."""
            with trio.fail_after(10):
                while server._zk_connected != connected:
                    await trio.lowlevel.checkpoint()
            health = server.health()[1]["server-health-check"]
            assert isinstance(health, dict)
            return bool(health["zookeeper"])

        assert isinstance(server._session, EmbeddedSession)
        server._zk_lost_at = -math.inf  # it has been connected for ever
        store.interrupt(server._session)
        assert await told(False)
        server._zk_lost_at = -math.inf  # and has been away since
        assert not await told(False)
        store.resume(server._session)
        assert await told(True)
        server.cancel()
        nursery.cancel_scope.cancel()

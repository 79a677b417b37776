"""Readers of a gateway that share one feed, its certificates, and what it says of itself."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio

import waltz_trio as waltz
from tests.trio.small_cluster import small_cluster
from tests.trio.test_gateway import AT, PATIENCE, Desk, Events, cluster, desk, gateway
from waltz_core.base.ids import Endpoint
from waltz_core.base.log import MARKER_HEADER
from waltz_core.gateway import calls
from waltz_core.gateway.calls import Form
from waltz_core.gateway.door import token_hash
from waltz_core.gateway.quotas import Limits, Quotas
from waltz_core.gateway.replies import Record, event_texts
from waltz_core.gateway.topics import Place, Topic
from waltz_trio.gateway.clusters import Cluster
from waltz_trio.gateway.fanout import Texts
from waltz_trio.gateway.vitals import GROUP, Vitals
from waltz_trio.net.certificates import issue, make_ca
from waltz_trio.net.endpoints import endpoints
from waltz_trio.net.http import HttpServer
from waltz_trio.net.key_pair import KeyPair
from waltz_trio.net.ports import HeldPorts
from waltz_trio.node.embedded import EmbeddedCluster
from waltz_trio.ports.health import health_of
from waltz_trio.ports.port import PortError

__all__ = ["cluster", "desk"]


def feeds_at(cluster: EmbeddedCluster) -> int:
    """Feeds of partition 0 at the cluster."""
    server = cluster.server(0)
    assert server is not None
    snapshot = server.snapshot()
    assert snapshot is not None
    (partition,) = (each for each in snapshot.partitions if each.partition_id == 0)
    return partition.live_feeds + partition.lagging_feeds


def figure(desk: Desk, name: str) -> object:
    return figure_of(desk.gateway.vitals, name)


def figure_of(vitals: Vitals, name: str) -> object:
    value = vitals.registry.read()["gauges"]
    assert isinstance(value, dict)
    return value[f"{GROUP}.{name}"]["value"]


async def until(desk: Desk, name: str, wanted: object) -> None:
    with trio.fail_after(PATIENCE):
        while figure(desk, name) != wanted:
            await trio.lowlevel.checkpoint()


async def ids_of(events: Events, count: int) -> list[int]:
    return [json.loads(await events.next())["id"] for _ in range(count)]


async def test_readers_at_the_end_share_one_feed_of_the_cluster(cluster: EmbeddedCluster, desk: Desk) -> None:
    for _ in range(3):
        assert (await desk.append({"text": "a"})).status == 201
    begins = (-1, -1, 0, 1, *["tail"] * 12)
    async with AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(desk.events(f"{AT}/feed?after={after}")) for after in begins]
        await until(desk, "readers-of-shared-feeds", len(readers))
        assert figure(desk, "shared-feeds") == 1
        assert figure(desk, "readers-with-own-feeds") == 0
        for _ in range(5):
            assert (await desk.append({"text": "b"})).status == 201
        for reader, after in zip(readers, begins, strict=True):
            first = after + 1 if isinstance(after, int) else 3
            assert await ids_of(reader, 8 - first) == list(range(first, 8))
        assert feeds_at(cluster) <= 6, "the shared one, that of the client that appends, those of four that are kept"
    await until(desk, "readers-of-shared-feeds", 0)
    assert figure(desk, "window-bytes") == 0


async def test_readers_that_share_a_feed_get_payloads_in_the_form_that_each_asked_for(desk: Desk) -> None:
    async with AsyncExitStack() as stack:
        readers = {
            form: await stack.enter_async_context(desk.events(f"{AT}/feed?after=tail&payload={form}"))
            for form in ("json", "text", "base64")
        }
        await until(desk, "readers-of-shared-feeds", len(readers))
        assert (await desk.append({"text": "7"})).status == 201
        said = {form: json.loads(await reader.next()) for form, reader in readers.items()}
    payloads = {"json": 7, "text": "7", "base64": "Nw=="}
    assert said == {form: {"id": 0, "header": 0, form: payload} for form, payload in payloads.items()}


def test_records_of_a_restored_log_are_not_sent_as_those_that_it_lost() -> None:
    """They have the same ids; what was written is kept for readers of the very same records."""
    texts = Texts()
    lost, ours = ([Record(7, 0, b"%d" % number), Record(8, 0, b"same")] for number in range(2))
    written = 0

    def text_of(records: list[Record]) -> bytes:
        def write() -> bytes:
            nonlocal written
            written += 1
            return event_texts(records, Form.TEXT)

        return texts.of(records, Form.TEXT, write)

    for _ in range(2):
        assert text_of(list(lost)) == event_texts(lost, Form.TEXT)
    for _ in range(2):
        assert text_of(list(ours)) == event_texts(ours, Form.TEXT)
    assert written == 2


async def test_markers_of_a_pipeline_are_given_to_no_caller(cluster: EmbeddedCluster, desk: Desk) -> None:
    """Neither at the end of the log, nor behind it, nor in a range."""
    async with (
        gateway(cluster.url) as other,
        waltz.open_client(cluster.url) as client,
        desk.events(f"{AT}/feed?after=tail") as at_the_end,
    ):
        await until(desk, "readers-of-shared-feeds", 1)
        for header in (MARKER_HEADER, 0, MARKER_HEADER, MARKER_HEADER, 0):
            await client.append(0, waltz.Append(b"x", header=header))
        assert await ids_of(at_the_end, 2) == [1, 4]
        async with other.events(f"{AT}/feed?after=-1") as behind:
            assert await ids_of(behind, 2) == [1, 4]
        records = (await other.ask(f"{AT}/records?first=0")).json()["records"]
        assert [each["id"] for each in records] == [1, 4]


async def test_a_shared_feed_ends_with_its_last_reader(cluster: EmbeddedCluster, desk: Desk) -> None:
    """The next one has the client that it had."""
    clients = desk.gateway._clusters[cluster.url]
    for _ in range(3):
        async with desk.events(f"{AT}/feed?after=tail"):
            await until(desk, "readers-of-shared-feeds", 1)
        with trio.fail_after(PATIENCE):
            while any(held.partitions for held in clients._readers):
                await trio.lowlevel.checkpoint()
    assert len(clients._readers) == 1


async def test_a_reader_that_does_not_read_holds_nobody_up_and_reads_on_for_himself(cluster: EmbeddedCluster) -> None:
    """What he has not taken is more than window and buffers hold, and he misses none of it."""
    count, size = 60, 200_000
    keys = {"windowSize": 100_000, "bodySizeMax": 1 << 20, "prefetch": 2}
    async with (
        gateway(cluster.url, **keys) as desk,
        desk.events(f"{AT}/feed?after=tail") as slow,
        desk.events(f"{AT}/feed?after=tail") as quick,
    ):
        await until(desk, "readers-of-shared-feeds", 2)
        most = 0
        async with waltz.open_client(cluster.url) as client:
            for number in range(count):
                await client.append(0, waltz.Append(b"x" * size))
                assert await ids_of(quick, 1) == [number], "nobody waits for the one who does not read"
                held = figure(desk, "window-bytes")
                assert isinstance(held, int)
                most = max(most, held)
        assert most <= 100_000 + 2 * (size + 100)
        assert await ids_of(slow, count) == list(range(count))
        await until(desk, "readers-with-own-feeds", 0)
        assert (await desk.append({"text": "y"})).status == 201
        assert await ids_of(slow, 1) == await ids_of(quick, 1) == [count]


async def test_a_shared_feed_goes_on_when_its_server_is_another_one(cluster: EmbeddedCluster, desk: Desk) -> None:
    async with desk.events(f"{AT}/feed?after=tail") as one, desk.events(f"{AT}/feed?after=tail") as other:
        await until(desk, "readers-of-shared-feeds", 2)
        await cluster.kill_server(0)
        await cluster.restart_server(0)
        with trio.fail_after(PATIENCE):
            while (await desk.append({"text": "a"})).status != 201:
                pass
        first = await ids_of(one, 1)
        assert first == await ids_of(other, 1)


# ---- certificates ----------------------------------------------------------------------------------------


def pem(directory: Path, name: str, pair: KeyPair) -> str:
    path = directory / f"{name}.pem"
    path.write_bytes(pair.key + b"\n" + pair.certificate)
    return str(path)


async def over_tls(port: int, context: ssl.SSLContext, path: str, more: str = "") -> tuple[int, bytes]:
    with trio.fail_after(PATIENCE):
        opened = await trio.open_ssl_over_tcp_stream("localhost", port, ssl_context=context, https_compatible=True)
        async with opened as stream:
            await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}Connection: close\r\n\r\n".encode())
            answer = b""
            while piece := await stream.receive_some():
                answer += piece
    if not answer:
        raise trio.BrokenResourceError("ended without an answer")
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.mark.parametrize("tokens", [False, True])
async def test_callers_are_known_by_their_certificates(cluster: EmbeddedCluster, tmp_path: Path, tokens: bool) -> None:
    authority, stranger = make_ca("ours"), make_ca("theirs")
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.certificate)
    rules: list[dict[str, object]] = [{"certificate": "report-*", "read": ["pay"]}]
    if tokens:
        rules.append({"tokenSha256": token_hash("secret"), "name": "shop", "read": ["audit"]})
    keys = {"ssl.certificate": pem(tmp_path, "gateway", issue(authority, "gateway", ["localhost"])), "ssl.ca": str(ca)}

    def context(name: str = "", of: KeyPair = authority) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(ca))
        if name:
            made.load_cert_chain(pem(tmp_path, name, issue(of, name, [])))
        return made

    async with gateway(cluster.url, **keys, access=rules) as desk:
        status, body = await over_tls(desk.port, context("report-7"), "/topics")
        assert (status, [topic["topic"] for topic in json.loads(body)["topics"]]) == (200, ["pay"])
        assert (await over_tls(desk.port, context("report-7"), "/topics/audit"))[0] == 404
        assert (await over_tls(desk.port, context("other"), "/topics"))[0] in (401, 403)
        with pytest.raises((trio.BrokenResourceError, ssl.SSLError)):
            await over_tls(desk.port, context("report-7", stranger), "/topics")
        if tokens:
            bearer = "Authorization: Bearer secret\r\n"
            status, body = await over_tls(desk.port, context(), "/topics", bearer)
            assert (status, [topic["topic"] for topic in json.loads(body)["topics"]]) == (200, ["audit"])
            assert (await over_tls(desk.port, context(), "/topics"))[0] == 401
        else:
            with pytest.raises((trio.BrokenResourceError, ssl.SSLError)):
                await over_tls(desk.port, context(), "/topics")


# ---- what it says of itself ------------------------------------------------------------------------------


async def test_health_names_the_cluster_that_does_not_answer(cluster: EmbeddedCluster, desk: Desk) -> None:
    vitals = desk.gateway.vitals
    assert not vitals.health()[0], "nothing was heard yet"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(vitals.run)
        with trio.fail_after(PATIENCE):
            while not vitals.health()[0]:
                await trio.lowlevel.checkpoint()
            server = HttpServer(endpoints(GROUP, vitals.registry, vitals.health), lambda level, text: None)
            port = server.listen("127.0.0.1", 0, "gateway.healthPort")
            nursery.start_soon(server.run)
            said = await health_of(Endpoint("127.0.0.1", port))
            assert said["gateway-health-check"]["healthy"] is True
            await cluster.kill_server(0)
            while vitals.health()[0]:
                await trio.lowlevel.checkpoint()
            said = await health_of(Endpoint("127.0.0.1", port))
        assert said["gateway-health-check"]["healthy"] is False
        assert list(said["gateway-health-check"]["reasons"]) == [cluster.url]
        nursery.cancel_scope.cancel()


async def test_a_topic_with_partitions_that_there_are_not_is_named_and_the_others_are_served(
    cluster: EmbeddedCluster,
) -> None:
    topics = [
        {"name": "far", "cluster": cluster.url, "partitions": "3-99"},
        {"name": "one", "cluster": cluster.url, "partitions": "100"},
    ]
    wrong = f"gateway.topics names partitions that the cluster {cluster.url} does not have (%s): it has 3, 0 to 2"
    expected = {"topic far": wrong % "97 from 3 to 99", "topic one": wrong % "100"}
    async with gateway(cluster.url, topics) as desk, trio.open_nursery() as nursery:
        vitals = desk.gateway.vitals
        nursery.start_soon(vitals.run)
        with trio.fail_after(PATIENCE):
            while len(vitals.health()[1]["gateway-health-check"]["reasons"]) != 2:  # type: ignore[index]
                await trio.lowlevel.checkpoint()
        assert vitals.health() == (
            False,
            {"gateway-health-check": {"healthy": False, "clusters": {cluster.url: True}, "reasons": expected}},
        )
        async with AsyncExitStack() as stack:  # each feed has a client of its own, and each client is looked at
            for _ in range(3):
                await stack.enter_async_context(desk.gateway._clusters[cluster.url].reader(0))
        assert desk.complaints == [f"{topic}: {reason}" for topic, reason in expected.items()]
        assert (await desk.append({"text": "x"})).status == 201
        assert (await desk.ask("/topics/far/partitions/0/mark")).status == 502
        nursery.cancel_scope.cancel()


async def test_a_gateway_none_of_whose_partitions_there_are_says_so_of_its_topics(cluster: EmbeddedCluster) -> None:
    topic = Topic("far", cluster.url, (7, 5))
    async with trio.open_nursery() as nursery:
        one = Cluster(cluster.url, nursery, lambda level, text: None, topics=[topic])
        vitals = Vitals({cluster.url: (one, 5)}, lambda: (), Quotas(Limits()))
        nursery.start_soon(vitals.run)
        with trio.fail_after(PATIENCE):
            while not one.wrong or figure_of(vitals, "clusters-away") != 0:
                await trio.lowlevel.checkpoint()
        assert not vitals.health()[0]
        assert one.wrong["far"].endswith("does not have (2 from 5 to 7): it has 3, 0 to 2")
        nursery.cancel_scope.cancel()


async def test_a_client_that_ends_by_an_error_of_its_own_is_the_trouble_of_one_cluster() -> None:
    """The gateway goes on: others are served beside it."""

    @asynccontextmanager
    async def open_one(source: str) -> AsyncIterator[waltz.Client]:
        raise LookupError(source)
        yield

    async with trio.open_nursery() as nursery:
        clusters = {"one": (Cluster("one", nursery, lambda level, text: None, open_one), 0)}
        vitals = Vitals(clusters, lambda: (), Quotas(Limits()))
        before = vitals.health()
        nursery.start_soon(vitals.run)
        with trio.fail_after(PATIENCE):
            while vitals.health() == before:
                await trio.lowlevel.checkpoint()
        well, said = vitals.health()
        assert not well
        assert said["gateway-health-check"] == {
            "healthy": False,
            "clusters": {"one": False},
            "reasons": {"one": "LookupError('one')"},
        }
        nursery.cancel_scope.cancel()


async def test_what_is_no_health_is_said(cluster: EmbeddedCluster) -> None:
    with HeldPorts() as ports, pytest.raises(PortError, match=r"127\.0\.0\.1"):
        await health_of(Endpoint("127.0.0.1", ports.take()))
    server = cluster.server(0)
    assert server is not None
    assert server.endpoint is not None
    with trio.fail_after(PATIENCE), pytest.raises(PortError):
        await health_of(Endpoint("127.0.0.1", server.endpoint.port))


# ---- behind ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranges", [True, False])
async def test_ranges_and_who_is_behind_take_no_more_of_a_long_log_than_they_read(ranges: bool) -> None:
    """A feed would bring the headers of all that follows; only of a server that knows no ranges there is one."""
    async with small_cluster(window=7) as made:
        made.view.names = ranges
        made.commit(0, [b"%d" % number for number in range(600)])
        wanted = [{"id": at, "header": 0, "text": str(at)} for at in range(300, 340)]
        async with gateway(made.url) as desk:
            answers: list[list[dict[str, object]]] = []

            async def ask() -> None:
                answer = await desk.ask(f"{AT}/records?first=300&count=40&payload=text")
                answers.append(answer.json()["records"])

            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(ask)
            assert answers == [wanted] * 3
            async with desk.events(f"{AT}/feed?after=299&payload=text") as reader:
                assert [json.loads(await reader.next()) for _ in wanted] == wanted
            sent = made.nodes[0].server.sent
            assert (sent == 0) if ranges else (sent > 40)
            assert len(made.nodes[0].conns) <= 2 or not ranges, "one client appends and asks for marks, one for ranges"


@pytest.mark.parametrize("mark_comes", [False, True])
async def test_a_range_that_does_not_come_in_time_is_answered_so(mark_comes: bool) -> None:
    async with small_cluster() as made:
        made.commit(0, [b"a"])
        async with gateway(made.url, requestTimeout=300) as desk:
            assert (await desk.ask(f"{AT}/records?first=0&count=1")).status == 200
            cluster = desk.gateway._clusters[next(iter(desk.gateway._clusters))]
            if mark_comes:  # and the records do not

                async def mark(partition: int) -> int:
                    return 0

                cluster.committed_mark = mark  # type: ignore[method-assign]
            made.nodes[0].deaf = True
            with trio.fail_after(PATIENCE):
                answer = await desk.ask(f"{AT}/records?first=0&count=1")
    assert answer.status == 504
    assert answer.json()["code"] == "too-slow"


async def test_a_caller_reads_a_few_ranges_at_a_time_and_keeps_nobody_from_his() -> None:
    async with small_cluster() as made:
        made.commit(0, [b"a"])
        async with gateway(made.url) as desk, trio.open_nursery() as nursery:
            cluster = desk.gateway._clusters[next(iter(desk.gateway._clusters))]
            under_way, go_on = 0, trio.Event()
            records = cluster.records

            async def slowly(partition: int, first: int, last: int) -> list[waltz.Transaction]:
                nonlocal under_way
                under_way += 1
                await go_on.wait()
                return await records(partition, first, last)

            cluster.records = slowly  # type: ignore[method-assign]
            topic = desk.gateway._topics.topic("pay")
            assert topic is not None
            call = calls.ReadRecords(Place(topic, 0, 0), 0, 1, calls.Form.TEXT)
            for _ in range(20):
                nursery.start_soon(desk.gateway._records, "one", call)
            await trio.testing.wait_all_tasks_blocked(0.1)
            assert under_way == 8
            nursery.start_soon(desk.gateway._records, "another", call)
            await trio.testing.wait_all_tasks_blocked(0.1)
            assert under_way == 9
            go_on.set()
            with trio.fail_after(PATIENCE):
                while desk.gateway._readers:
                    await trio.testing.wait_all_tasks_blocked(0.01)
            assert under_way == 21


async def test_a_key_is_looked_for_without_a_feed(cluster: EmbeddedCluster, desk: Desk) -> None:
    for number in range(3):
        assert (await desk.append({"json": {"n": number}, "key": f"-1:k{number}"})).status == 201
    async with gateway(cluster.url) as other:
        again = await other.append({"json": {"n": 1}, "key": "-1:k1"})
        assert (again.status, again.json()["id"], again.json()["repeated"]) == (200, 1, True)
        assert feeds_at(cluster) <= 2, "those of the clients that append"

"""Reading a running cluster: marks from servers, records from storage nodes, directories or servers."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import attrs
import pytest
import trio
from pyspark.sql.streaming.datasource import ReadAllAvailable

import waltz_trio as waltz
from waltz_core.base.ids import Endpoint, parse_endpoint
from waltz_core.base.log import MARKER_HEADER
from waltz_spark.archive.archive import plan_archive, run_archive, verify_file
from waltz_spark.archive.freeing import Freed, plan_free, run_free
from waltz_spark.base.errors import ArchiveError, SourceRefusedError, UnreachableError, WrongClusterError
from waltz_spark.base.planning import Range, ServerPlace, StoragePlace
from waltz_spark.base.runners import Here
from waltz_spark.read import cluster as cluster_module
from waltz_spark.read import reading
from waltz_spark.read.cluster import Cluster
from waltz_spark.read.history import follow
from waltz_spark.read.inventory import Inventory
from waltz_spark.read.options import parse_options
from waltz_spark.read.ports import AdminPort
from waltz_spark.read.reading import Patience, drop_connections, feed_blocks, read_batches
from waltz_spark.spark.source import BatchReader, StreamReader
from waltz_trio.cli.main import main
from waltz_trio.node.embedded import EmbeddedCluster, embedded_cluster
from waltz_trio.zk.client import UnavailableError, ZnodeError, ZnodeRefusedError

T = TypeVar("T")
COUNT = 130


@pytest.fixture(autouse=True)
def _no_connection_is_left() -> Iterator[None]:
    yield
    drop_connections()


async def append(cluster: EmbeddedCluster, counts: tuple[int, ...], start: int = 0) -> None:
    async with waltz.open_client(cluster.url) as client:
        for partition, count in enumerate(counts):
            for at in range(start, start + count):
                await client.send(partition, waltz.Append(f"{partition}:{at}".encode(), header=at % 3))
        await client.flush()


async def outside(work: Callable[[], T]) -> T:
    """The readers block: they run in a thread while the cluster runs here."""
    return await trio.to_thread.run_sync(work)


def admin_endpoints(cluster: EmbeddedCluster) -> str:
    return ",".join(f"127.0.0.1:{admin}" for _, admin in cluster.layout.storage_ports)


def options_of(cluster: EmbeddedCluster, **more: str) -> Any:
    tls = cluster.directory / "tls"  # storage nodes want a certificate of their cluster
    values = {"ssl.certificate": str(tls / "node.pem"), "ssl.key": str(tls / "node.key")}
    values |= {"url": cluster.url, "requestTimeoutMs": "5000", "origin": "true", "verify": "record"}
    return parse_options(values | more)


def read(reader: BatchReader | StreamReader, tasks: list[Any]) -> list[dict[str, Any]]:
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


def summary(rows: list[dict[str, Any]]) -> list[tuple[int, int, bytes, int]]:
    return [(row["partition"], row["transaction_id"], row["data"], row["header"]) for row in rows]


def expected(*counts: int) -> list[tuple[int, int, bytes, int]]:
    return [(p, at, f"{p}:{at}".encode(), at % 3) for p, count in enumerate(counts) for at in range(count)]


async def test_all_channels_give_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(reading, "feed_blocks")  # for servers of 0.13.2: ours are asked for ranges
    async with embedded_cluster(tmp_path / "c", partitions=2, storage_nodes=3) as cluster:
        await append(cluster, (COUNT, 40))
        ends = admin_endpoints(cluster)
        directories = ",".join(str(tmp_path / "c" / f"storage-{at}") for at in range(3))
        ways = {
            "storage": {"via": "storage", "adminEndpoints": ends},
            "server": {"via": "server"},
            "file": {"via": "files", "directory": directories},
        }
        rows: dict[str, list[dict[str, Any]]] = {}
        for name, more in ways.items():
            reader = BatchReader(options_of(cluster, **more))
            rows[name] = await outside(lambda reader=reader: read(reader, reader.partitions()))  # type: ignore[misc]
            assert {row.pop("_origin") for row in rows[name]} == {name}
            assert summary(rows[name]) == expected(COUNT, 40)
        for one, other in itertools.combinations(rows, 2):
            assert rows[one] == rows[other]


async def test_a_storage_node_is_read_from_any_record_to_any_other(tmp_path: Path) -> None:
    settings = {"storage.segment.size.threshold": 700}
    async with embedded_cluster(tmp_path / "c", partitions=1, storage_nodes=1, settings=settings) as cluster:
        await append(cluster, (COUNT,))
        options = options_of(cluster, via="storage", adminEndpoints=admin_endpoints(cluster), batchRows="9")
        reader = BatchReader(options)
        task = (await outside(reader.partitions))[0]
        whole = task.ranges[0]

        def part(start: int, end: int, **more: Any) -> list[int]:
            found = attrs.evolve(whole, start=start, end=end)
            batches = read_batches(found, attrs.evolve(options.shape(), **more), Patience(5))
            return [one for batch in batches for one in batch.column("transaction_id").to_pylist()]

        for start, end in ((0, 1), (0, COUNT), (COUNT - 1, COUNT), (17, 18), (16, 60), (99, 120)):
            for more in ({}, {"size_max": 60}, {"rows_max": 1}):
                assert await outside(lambda s=start, e=end, m=more: part(s, e, **m)) == list(range(start, end))  # type: ignore[misc]
        # A node that gives out no bytes, as one of 0.13.2, is asked for lists of records.
        for port in reading._pool.values():
            assert isinstance(port, AdminPort)
            port.capabilities = 0
        assert await outside(lambda: part(3, 77)) == list(range(3, 77))


async def test_what_is_archived_is_freed_and_read_from_the_archive(tmp_path: Path) -> None:
    settings = {"storage.segment.size.threshold": 700, "server.archive": "the vault"}
    async with embedded_cluster(tmp_path / "c", partitions=1, storage_nodes=3, settings=settings) as cluster:
        await append(cluster, (COUNT,))
        options = options_of(cluster, via="storage", adminEndpoints=admin_endpoints(cluster))
        vault = str(tmp_path / "vault")
        plan = await outside(lambda: plan_archive(options, vault, range_count=50))
        await outside(lambda: run_archive(plan, Here()))
        for kept, end in ((COUNT - 100, 100), (COUNT - 99, 50)):
            freed = await outside(partial(plan_free, options, vault, keep_local=kept))
            assert freed.partitions == (Freed(0, 0, end),), "the newest stay, to the last one that is asked for"
        wanted = await outside(lambda: plan_free(options, vault, keep_local=20))
        assert (wanted.partitions, wanted.quorums) == ((Freed(0, 0, 100),), (2, 2))
        assert await outside(lambda: run_free(wanted, Here())) == wanted.partitions
        assert (await outside(lambda: plan_free(options, vault, keep_local=20))).partitions == ()
        left = [path.name for path in (tmp_path / "c" / "storage-0" / "0").glob("*.seg")]
        assert min(left) > f"{70:019d}"

        def ids(**more: str) -> list[tuple[int, str]]:
            reader = BatchReader(options_of(cluster, adminEndpoints=admin_endpoints(cluster), **more))
            return [(row["transaction_id"], row["_origin"]) for row in read(reader, reader.partitions())]

        assert [one for one, _ in await outside(ids)] == list(range(100, COUNT))
        joined = await outside(lambda: ids(archive=vault))
        assert [one for one, _ in joined] == list(range(COUNT))
        assert {origin for one, origin in joined if one < 100} == {"archive"}
        await append(cluster, (5,), start=COUNT)
        assert [one for one, _ in await outside(lambda: ids(archive=vault))] == list(range(COUNT + 5))
        async with waltz.open_client(cluster.url) as client:
            with pytest.raises(waltz.BeforeStartError, match=r"begins at 100; .* archive the vault"):
                async with client.feed(0, after=-1) as feed:
                    await feed.__anext__()
            async with aclosing(follow(client, 0, archive=vault, after=7)) as history:
                seen = [(one.id, one.load(), one.header) async for _, one in azip(range(8, COUNT + 5), history)]
        assert seen == [(at, f"0:{at}".encode(), at % 3) for at in range(8, COUNT + 5)]


async def test_of_a_file_of_which_the_cluster_has_a_part_that_part_is_compared(tmp_path: Path) -> None:
    async with embedded_cluster(tmp_path / "c", partitions=1, storage_nodes=3) as cluster:
        await append(cluster, (COUNT,))
        options = options_of(cluster, via="storage", adminEndpoints=admin_endpoints(cluster))
        vault = str(tmp_path / "vault")
        plan = await outside(lambda: plan_archive(options, vault, range_count=50))
        await outside(lambda: run_archive(plan, Here()))
        live = await outside(lambda: Cluster(options))
        assert await outside(lambda: live.raise_log_start(0, 30, 60)) == 30
        live.close()
        wanted = await outside(lambda: plan_free(options, vault, keep_local=COUNT - 50))
        assert (wanted.partitions, wanted.quorums) == ((Freed(0, 30, 50),), (2,))
        (check,) = wanted.checks
        verdict = await outside(lambda: verify_file(check))
        assert (verdict.compared, verdict.problems, verdict.unread) == (3, (), ())
        other = attrs.evolve(check, start=31)
        assert (await outside(lambda: verify_file(other))).compared == 0, "the replicas are asked for one record more"
        assert await outside(lambda: run_free(wanted, Here())) == wanted.partitions


async def azip(numbers: range, items: AsyncIterator[T]) -> AsyncIterator[tuple[int, T]]:
    """As many items as there are numbers."""
    for number in numbers:
        yield number, await anext(items)


@pytest.mark.slow
async def test_nothing_is_freed_that_a_quorum_of_replicas_does_not_confirm(tmp_path: Path) -> None:
    async with embedded_cluster(tmp_path / "c", partitions=1, storage_nodes=3) as cluster:
        await append(cluster, (COUNT,))
        options = options_of(cluster, via="storage", adminEndpoints=admin_endpoints(cluster))
        vault = tmp_path / "vault"
        plan = await outside(lambda: plan_archive(options, str(vault), range_count=50))
        await outside(lambda: run_archive(plan, Here()))
        wanted = await outside(lambda: plan_free(options, str(vault)))
        (file, *_) = sorted(vault.rglob("*.parquet"))
        good = file.read_bytes()
        file.write_bytes(good[:300] + bytes([good[300] ^ 1]) + good[301:])
        with pytest.raises(ArchiveError, match="before anything is freed"):
            await outside(lambda: run_free(wanted, Here()))
        file.write_bytes(good)
        await cluster.kill_storage(2)
        with pytest.raises(ArchiveError, match="equal on 2 replicas, 2 are needed before anything is freed: 127"):
            await outside(lambda: run_free(attrs.evolve(wanted, options=options), Here()))
        assert (await outside(lambda: plan_free(options, str(vault)))).partitions == wanted.partitions


async def test_the_replicas_that_are_named_are_no_majority_of_those_that_there_are(tmp_path: Path) -> None:
    async with embedded_cluster(tmp_path / "c", partitions=2, storage_nodes=3) as cluster:
        await append(cluster, (COUNT, 5))
        first, second, third = admin_endpoints(cluster).split(",")
        vault = str(tmp_path / "vault")
        every = options_of(cluster, via="storage", adminEndpoints=f"{first},{second},{third}")
        plan = await outside(lambda: plan_archive(every, vault, range_count=50))
        await outside(lambda: run_archive(plan, Here()))
        again = first.replace("127.0.0.1", "localhost")
        for named in (first, f"{first},{first}", f"{first},127.0.0.1:1", f"{first},{again}", f"{again},{first}"):
            options = options_of(cluster, adminEndpoints=named)
            with pytest.raises(
                ArchiveError, match=r"partition 0: 1 of its 3 replicas can be compared .* and 2 are needed"
            ):
                await outside(lambda options=options: plan_free(options, vault))  # type: ignore[misc]
        named = f"{second},{again},{third},{first}"
        found = await outside(lambda: plan_free(options_of(cluster, adminEndpoints=named), vault))
        assert [[name for name, _ in check.replicas] for check in found.checks][-1] == [again, third, second]
        found = await outside(lambda: plan_free(options_of(cluster, adminEndpoints=f"{second},{third}"), vault))
        assert found.quorums == (2,) * len(found.checks)
        assert [one.partition for one in found.partitions] == [0, 1]


async def test_two_nodes_at_one_address_are_two_and_one_under_two_names_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with embedded_cluster(tmp_path / "c", partitions=1, storage_nodes=2) as cluster:
        first, second = map(parse_endpoint, admin_endpoints(cluster).split(","))
        again = Endpoint("localhost", first.port)
        live = await outside(lambda: Cluster(options_of(cluster)))
        assert await outside(lambda: live._one_name_each([first, again, second])) == {
            first: first,
            again: first,
            second: second,
        }
        started = itertools.count(1)
        monkeypatch.setattr(AdminPort, "started_ms", lambda port: next(started))
        assert await outside(lambda: live._one_name_each([again, first])) == {first: first, again: again}
        monkeypatch.setattr(AdminPort, "started_ms", lambda port: 0)
        assert await outside(lambda: live._one_name_each([again, first])) == {first: again, again: again}, "of 0.13.2"
        live.close()


def test_a_node_that_zookeeper_knows_by_two_names_is_one_replica_of_those_that_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("127.0.0.1:7", "localhost:7", "127.0.0.2:7")
    places, count = seen_in_zookeeper(monkeypatch, names)
    assert (places, count) == (["127.0.0.1:8", "127.0.0.2:8"], 3), "two of three are a majority"


def test_a_name_in_zookeeper_that_cannot_be_read_stops_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.13.2 writes such names; each reader ended by it, though nothing is assigned there."""
    for names in (("127.0.0.1:7",), ("127.0.0.1:7", "127.0.0.1:70000")):
        places, count = seen_in_zookeeper(monkeypatch, names, (*names, "127.0.0.1:70000", "nowhere"))
        assert (places, count) == (["127.0.0.1:8"], len(names))


def seen_in_zookeeper(
    monkeypatch: pytest.MonkeyPatch, replicas: tuple[str, ...], known: tuple[str, ...] = ()
) -> tuple[list[str], int]:
    """Where the replicas of a partition are read, and how many it has, by what stands in ZooKeeper."""
    dump = SimpleNamespace(
        store=SimpleNamespace(key=bytes(range(16)), num_partitions=1),
        servers=(),
        assignment=SimpleNamespace(servers=()),
        maps=SimpleNamespace(
            connections=SimpleNamespace(connections=tuple((name, 8) for name in known or replicas)),
            replicas=SimpleNamespace(storages_of=lambda partition: replicas),
        ),
        partitions=(None,),
    )

    @asynccontextmanager
    async def client(*_: object, **__: object) -> AsyncIterator[None]:
        yield

    async def read_dump(*_: object) -> Any:
        return dump

    monkeypatch.setattr(cluster_module, "open_znode_client", client)
    monkeypatch.setattr(cluster_module, "read_cluster", read_dump)
    live = Cluster(parse_options({"zookeeper": "127.0.0.1:1", "clusterRoot": "/w"}))
    places = [str(place.endpoint) for place in live.places(0, 3, "storage") if isinstance(place, StoragePlace)]
    return places, live.replica_count(0)


async def test_a_stream_follows_a_running_cluster(tmp_path: Path) -> None:
    async with embedded_cluster(tmp_path / "c", partitions=2, storage_nodes=1) as cluster:
        await append(cluster, (5, 3))
        stream = StreamReader(options_of(cluster, adminEndpoints=admin_endpoints(cluster), pollIntervalMs="1"))

        def batch(start: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
            end = stream.latestOffset(start, ReadAllAvailable())
            return end, read(stream, stream.partitions(start, end))

        start, rows = await outside(lambda: batch(stream.initialOffset()))
        assert rows == []
        start, rows = await outside(lambda: batch(start))
        assert summary(rows) == expected(5, 3)
        await append(cluster, (2, 0), start=5)
        start, rows = await outside(lambda: batch(start))
        assert summary(rows) == expected(7, 0)[5:]
        assert start["next"] == {"0": 7, "1": 3}
        stream.stop()


async def test_partitions_that_a_cluster_does_not_have_are_named_and_nothing_is_audited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with embedded_cluster(tmp_path / "c", partitions=2, storage_nodes=1) as cluster:
        await append(cluster, (5, 3))
        source = ["--url", cluster.url, "--jobs", "1", "-o", "partitions=1-2"]
        vault = str(tmp_path / "vault")
        assert await outside(lambda: main(["spark", "archive", *source[:4], "--to", vault])) == 0
        for command in (["audit", "--no-journal"], ["verify", vault], ["scan"], ["report"]):
            assert await outside(partial(main, ["spark", *command, *source])) == 1
            assert "partitions: there is no 2: the " in capsys.readouterr().err
        # Without a running cluster all of what is named is looked at, whatever is chosen.
        assert main(["spark", "verify", vault, *source[2:]]) == 2
        assert "name the running cluster too" in capsys.readouterr().err


async def test_a_dead_storage_node_is_replaced_by_another(tmp_path: Path) -> None:
    async with embedded_cluster(tmp_path / "c", partitions=1, storage_nodes=3) as cluster:
        await append(cluster, (COUNT,))
        reader = BatchReader(options_of(cluster, via="storage", adminEndpoints=admin_endpoints(cluster)))
        tasks = await outside(reader.partitions)
        place = tasks[0].ranges[0].places[0]
        assert isinstance(place, StoragePlace)
        dead = place.endpoint.port
        await cluster.kill_storage([admin for _, admin in cluster.layout.storage_ports].index(dead))
        assert summary(await outside(lambda: read(reader, tasks))) == expected(COUNT)


async def test_a_replica_that_missed_the_session_is_believed_up_to_its_own_mark(tmp_path: Path) -> None:
    async with embedded_cluster(tmp_path / "c", partitions=1, storage_nodes=1) as cluster:
        await append(cluster, (COUNT,))

        def plan() -> tuple[Range, StoragePlace]:
            inventory = Inventory(options_of(cluster, via="storage", adminEndpoints=admin_endpoints(cluster)))
            look = inventory.look()
            (found,) = inventory.ranges(look, look.earliest, look.ends)
            inventory.close()
            place = found.places[0]
            assert isinstance(place, StoragePlace)
            return found, place

        found, place = await outside(plan)
        later = attrs.evolve(found, places=(attrs.evolve(place, session_id=place.session_id + 1),))
        shape = options_of(cluster).shape()
        assert len(await outside(lambda: list(read_batches(found, shape, Patience())))) >= 1
        with pytest.raises(UnreachableError, match="has nothing from id 0 on"):
            await outside(lambda: list(read_batches(later, shape, Patience(0.5, 1))))


async def test_a_server_that_is_not_there_is_an_error_in_time(tmp_path: Path) -> None:
    async with embedded_cluster(tmp_path / "c", partitions=1, storage_nodes=1) as cluster:
        await append(cluster, (1,))
        options = options_of(cluster)
        (found,) = (task.ranges[0] for task in await outside(BatchReader(options).partitions))
        (place,) = found.places
        assert isinstance(place, ServerPlace)
        nowhere = attrs.evolve(found, places=(attrs.evolve(place, endpoint=Endpoint("127.0.0.1", 1)),))
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
            await outside(lambda: list(read_batches(nowhere, options.shape(), Patience(1.0, 1))))


async def test_a_stream_outlives_killed_servers_and_storage_nodes(tmp_path: Path) -> None:
    async with embedded_cluster(tmp_path / "c", partitions=2, storage_nodes=3, servers=2) as cluster:
        options = options_of(cluster, adminEndpoints=admin_endpoints(cluster), pollIntervalMs="1")
        stream = StreamReader(attrs.evolve(options, url=cluster.url_of(0), request_timeout_ms=20_000))
        rows: list[dict[str, Any]] = []

        def batch(start: dict[str, Any]) -> dict[str, Any]:
            end = stream.latestOffset(start, ReadAllAvailable())
            rows.extend(read(stream, stream.partitions(start, end)))
            return end

        start = await outside(lambda: batch(stream.initialOffset()))
        for at, kill in enumerate((None, cluster.kill_storage, cluster.kill_server)):
            if kill is not None:
                await kill(1)
            await append(cluster, (20, 20), start=20 * at)
            while len(rows) < 40 * (at + 1):
                start = await outside(lambda start=start: batch(start))  # type: ignore[misc]
        rows.sort(key=lambda row: (row["partition"], row["transaction_id"]))
        assert summary(rows) == expected(60, 60)
        stream.stop()


class Away(Cluster):
    """A cluster of one partition that has answered, and whose servers, or ZooKeeper, are away for some seconds."""

    def __init__(self, away: float, options: Any) -> None:
        self.now, self.pauses = 0.0, list[float]()
        self._away = 0.0
        super().__init__(options)
        self._away = away

    def _read_map(self) -> Any:
        self.partition_count = 1
        if self.now < self._away:
            raise UnreachableError("ZooKeeper is away")
        return cluster_module._Map((Endpoint("127.0.0.1", 1),), ((),), (-1,))

    def _port(self, server: Endpoint) -> Any:
        if self.now < self._away:
            raise UnreachableError("the server is away")
        return SimpleNamespace(version=5, partitions=lambda: {0: (3, 41)}, log_start=lambda _: 7, close=lambda: None)

    def sleep(self, pause: float) -> None:
        self.pauses.append(pause)
        self.now += pause


@pytest.mark.parametrize(("away", "ends"), [(0.0, True), (14.0, True), (16.0, False)])
def test_a_plan_is_made_once_those_who_were_away_for_a_while_are_back(
    monkeypatch: pytest.MonkeyPatch, away: float, ends: bool
) -> None:
    """A fail-over takes longer than two questions one after the other."""
    options = parse_options({"url": "waltz://127.0.0.1:1", "requestTimeoutMs": "5000", "retries": "3"})
    for ask in (lambda one: one.marks([0]).ends, lambda one: (one.log_start(0),)):
        cluster = Away(away, options)
        clock = SimpleNamespace(monotonic=lambda cluster=cluster: cluster.now, sleep=cluster.sleep)
        monkeypatch.setattr(cluster_module, "time", clock)
        if ends:
            assert ask(cluster) in ((42,), (7,))
        else:
            with pytest.raises(UnreachableError, match="is away"):
                ask(cluster)
            assert cluster.now <= 15.0
        assert len(cluster.pauses) < 20
        cluster = Away(away, options)
        clock = SimpleNamespace(monotonic=lambda cluster=cluster: cluster.now, sleep=cluster.sleep)
        monkeypatch.setattr(cluster_module, "time", clock)
        if away:
            with pytest.raises(UnreachableError):
                cluster.marks([0], patient=False)
            assert sum(cluster.pauses) == 0, "a stream has something to go on with"


@pytest.mark.parametrize("failure", [UnavailableError("/w"), ZnodeRefusedError("/w")])
def test_a_zookeeper_that_does_not_answer_is_a_place_that_does_not(
    monkeypatch: pytest.MonkeyPatch, failure: ZnodeError
) -> None:
    @asynccontextmanager
    async def gone(*_: object, **__: object) -> AsyncIterator[None]:
        raise failure
        yield

    monkeypatch.setattr(cluster_module, "open_znode_client", gone)
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1/w: ZooKeeper: ") as caught:
        Cluster(parse_options({"zookeeper": "127.0.0.1:1", "clusterRoot": "/w"}))
    assert isinstance(caught.value, SourceRefusedError) == isinstance(failure, ZnodeRefusedError)


async def test_a_storage_node_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async with (
        embedded_cluster(tmp_path / "c", partitions=1, storage_nodes=1) as one,
        embedded_cluster(tmp_path / "d", partitions=1, storage_nodes=1) as other,
    ):
        tls = other.directory / "tls"
        more = {"ssl.certificate": str(tls / "node.pem"), "ssl.key": str(tls / "node.key"), "ssl.verify": "false"}
        options = options_of(one, adminEndpoints=admin_endpoints(other), **more)
        with pytest.raises(WrongClusterError, match="belongs to cluster another"):
            await outside(BatchReader(options).partitions)


async def test_a_server_without_range_reads_is_read_transaction_by_transaction(tmp_path: Path) -> None:
    async with embedded_cluster(tmp_path / "c", partitions=1, storage_nodes=1) as cluster:
        await append(cluster, (COUNT,))
        async with waltz.open_client(cluster.url) as client:
            await client.send(0, waltz.Append(b"a marker of some sink", header=MARKER_HEADER))
        options = options_of(cluster, via="server")
        (found,) = (task.ranges[0] for task in await outside(BatchReader(options).partitions))
        (place,) = found.places
        assert isinstance(place, ServerPlace)

        def both() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
            (block,) = feed_blocks(place, found, 0, Patience())
            block.check("record")
            (batch,) = read_batches(found, options.shape(), Patience())
            return block.batch(options.shape()).to_pylist(), batch.to_pylist()

        by_feed, by_range = await outside(both)
        assert by_feed == by_range
        assert len(by_feed) == COUNT + 1, "markers are records as others"

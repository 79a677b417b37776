"""What servers and storage nodes have in common as processes."""

from __future__ import annotations

import gc
import itertools
import re
import resource
import signal
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import attrs
import pytest
import trio
import trio.testing

import waltz_trio.node.process
import waltz_trio.node.storage_node
from waltz_core.base.edge import Level
from waltz_core.base.errors import ConfigError
from waltz_core.base.ids import Endpoint
from waltz_core.zookeeper.paths import cluster_paths
from waltz_trio.client.connect import open_client
from waltz_trio.client.values import Append
from waltz_trio.config.config import Config
from waltz_trio.net.certificates import issue, make_ca
from waltz_trio.net.listener import bind
from waltz_trio.net.ports import HeldPorts
from waltz_trio.net.tls import ClientTls, TlsSettings
from waltz_trio.node.embedded import embedded_cluster
from waltz_trio.node.main import run_until_signal
from waltz_trio.node.process import NodeProcess
from waltz_trio.node.proxy import ProxyProcess
from waltz_trio.node.server import ServerProcess
from waltz_trio.node.server_settings import server_settings
from waltz_trio.node.storage_node import StorageProcess
from waltz_trio.node.storage_settings import storage_settings
from waltz_trio.ports.admin import open_admin
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
        ({"server.realtimeThreshold": 9, "server.minFetchSize": 9}, "realtimeThreshold"),
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


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            {"server.journal.mode": "sync", "server.journal.directory": "j"},
            "server.journal.mode: a proxy decides nothing",
        ),
        ({"archive.location": "a"}, "archive.location: a proxy archives nothing"),
    ],
)
async def test_a_proxy_takes_no_keys_of_what_servers_alone_do(keys: dict[str, object], expected: str) -> None:
    config = {**SERVER, "cluster.root": "/own", "server.port": 0, "proxy.upstream.root": "/test", **keys}
    assert expected in await problem(ProxyProcess(Config(config)))


async def test_a_server_that_cannot_start_gives_its_port_back(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with HeldPorts() as ports:
        port = ports.take()
        journal = {"server.journal.mode": "async", "server.journal.directory": str(tmp_path / "file")}
        process = ServerProcess(Config({**SERVER, "server.port": port, **journal}))
        assert "server.journal.directory" in await problem(process)
        bind("127.0.0.1", port, "port").close()


async def test_a_server_that_cannot_start_lets_its_journal_go(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        journal = {"server.journal.mode": "async", "server.journal.directory": str(tmp_path)}
        config = {**SERVER, "server.port": 0, "server.jetty.port": taken.getsockname()[1], **journal}
        for _ in range(2):
            assert "server.jetty.port: cannot listen" in await problem(ServerProcess(Config(config)))


async def test_a_process_that_is_ended_without_waiting_gives_its_directory_back(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    config = Config({**STORAGE, "storage.directory": str(tmp_path / "data")})
    async with open_embedded_znodes() as store, open_znode_client(store) as client:
        await create_cluster(client, cluster_paths("/test"), "test", 2)
        for _ in range(2):
            process = StorageProcess(config, store)
            async with trio.open_nursery() as running:
                await running.start(process.run)
                process.cancel()


async def test_the_http_port_is_open_where_the_process_listens_unless_it_is_said() -> None:
    config = {**SERVER, "server.port": 0}
    settings = server_settings(Config(config), lambda text: None).node
    assert (settings.host, settings.http_host) == ("127.0.0.1", "127.0.0.1")
    settings = server_settings(Config({**config, "server.jetty.host": "::1"}), lambda text: None).node
    assert (settings.host, settings.http_host) == ("127.0.0.1", "::1")


async def test_the_root_of_a_cluster_may_be_written_with_a_slash_behind_it() -> None:
    settings = server_settings(Config({**SERVER, "server.port": 0, "cluster.root": "/test/"}), lambda text: None)
    assert settings.node.root == settings.machine.root == "/test"


@pytest.mark.usefixtures("system")
async def test_of_the_connections_that_are_accepted_an_eighth_is_for_who_comes_and_goes() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    places = server_settings(Config({**SERVER, "server.port": 0}), lambda text: None).node.places
    assert (places.count_max, places.reserved, places.per_address_max) == (128 - 16, 14, 56)


async def test_where_an_archive_is_does_not_depend_on_who_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = {**SERVER, "server.port": 0, "archive.location": "archive"}
    policy = server_settings(Config(config), lambda text: None).machine.archiving
    assert policy is not None
    assert policy.where == str(tmp_path / "archive")


@pytest.mark.parametrize("where", ["s3:/vault", "file:/archive", "gs:/x"])
async def test_an_archive_at_what_only_looks_like_a_uri_is_refused(where: str) -> None:
    """It was a folder of that name in the directory in which the server happened to be started."""
    config = Config({**SERVER, "server.port": 0, "archive.location": where})
    with pytest.raises(ConfigError, match=f"archive.location: expected a path or a URI .* found '{where}'"):
        server_settings(config, lambda text: None)


async def test_a_proxy_that_has_not_started_is_not_healthy() -> None:
    assert not ProxyProcess(Config({**SERVER, "cluster.root": "/own"})).health()[0]


async def test_client_ids_that_cannot_be_read_end_no_proxy(nursery: trio.Nursery) -> None:
    told = trio.Event()

    def report(level: Level, text: str) -> None:
        if level is Level.DEBUG and text.startswith("client ids: "):
            told.set()

    config = {**SERVER, "cluster.root": "/own", "server.port": 0, "proxy.upstream.root": "/test"}
    async with open_embedded_znodes() as store, open_znode_client(store) as client:
        await create_cluster(client, cluster_paths("/test"), "test", 2)
        process = ProxyProcess(Config(config), store)
        process.report = report
        await nursery.start(process.run)
        await client.delete(cluster_paths("/own").client_ids)
        with trio.fail_after(60):
            await told.wait()
        assert process.snapshot() is not None
        process.cancel()


async def test_appends_leave_a_segment_free_or_a_part_of_a_small_disk_unless_it_is_said() -> None:
    config = {**STORAGE, "storage.directory": "data", "storage.segment.size.threshold": 1 << 20}
    settings = storage_settings(Config(config), lambda text: None)
    assert settings.reserve_bytes(1 << 40) == 1 << 20
    assert settings.reserve_bytes(1_000_000) == 20_000
    assert storage_settings(Config({**config, "storage.reserve": 7}), lambda text: None).reserve_bytes(1 << 40) == 7


@pytest.mark.usefixtures("system")
async def test_segments_take_half_of_the_descriptors_at_most() -> None:
    config = {**STORAGE, "storage.directory": "data", "storage.segment.cache.capacity": 4}
    settings = storage_settings(Config(config), lambda text: None)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    assert settings.open_files_max(1) == 16
    assert settings.open_files_max(2) == 2 * (2 * 5 + 3)
    assert settings.open_files_max(1000) == 100


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (StorageProcess, STORAGE),
        (ProxyProcess, {**SERVER, "cluster.root": "/own", "server.port": 0, "proxy.upstream.root": "/test"}),
    ],
)
async def test_a_process_that_is_to_end_while_it_waits_for_zookeeper_does_not_wait_on(
    kind: type[NodeProcess], values: dict[str, object], tmp_path: Path
) -> None:
    reasons: list[str] = []
    process = kind(Config({**values, "storage.directory": str(tmp_path)}))

    async def run() -> None:
        reasons.append(await process.run())

    async with trio.open_nursery() as running:
        running.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()
        process.shutdown()
    assert reasons == [""]  # without it, ZooKeeper was not reached


async def test_a_storage_node_without_its_cluster_says_which_it_cannot_read(tmp_path: Path) -> None:
    async with open_embedded_znodes() as store:
        process = StorageProcess(Config({**STORAGE, "storage.directory": str(tmp_path)}), store)
        told = await problem(process)
    assert told.startswith("the cluster cannot be read from ZooKeeper: ")
    assert "/test" in told


async def test_a_storage_node_whose_directory_is_of_another_cluster_names_it_and_serves_nothing(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    config = Config({**STORAGE, "storage.directory": str(tmp_path)})
    for first in (True, False):
        async with open_embedded_znodes() as store, open_znode_client(store) as client:
            await create_cluster(client, cluster_paths("/test"), "test", 2)
            process = StorageProcess(config, store)
            if first:
                async with trio.open_nursery() as running:
                    await running.start(process.run)
                    process.cancel()
            else:
                assert (await problem(process)).startswith(f"{tmp_path}: ")
                assert process.port is None


async def test_a_disk_whose_room_is_not_known_ends_no_storage_node(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waltz_trio.node.storage_node, "_ROOM_EVERY", 0.01)
    directory = tmp_path / "data"
    directory.mkdir()
    told = trio.Event()
    again = trio.Event()

    def report(level: Level, text: str) -> None:
        if text == f"{directory}: the room left is not known: No such file or directory":
            assert level is Level.WARNING
            (again if told.is_set() else told).set()

    async with open_embedded_znodes() as store, open_znode_client(store) as client:
        await create_cluster(client, cluster_paths("/test"), "test", 2)
        process = StorageProcess(Config({**STORAGE, "storage.directory": str(directory)}), store)
        process.report = report
        await nursery.start(process.run)
        directory.rename(tmp_path / "elsewhere")
        with trio.fail_after(60):
            await told.wait()
            await again.wait()
        process.cancel()


@pytest.fixture
def rules(tmp_path: Path) -> dict[str, object]:
    """Keys of a process with a file of roles."""
    ca = make_ca("test")
    pair = issue(ca, "node", ["127.0.0.1"])
    (tmp_path / "node.pem").write_bytes(pair.key + b"\n" + pair.certificate)
    (tmp_path / "ca.pem").write_bytes(ca.certificate)
    (tmp_path / "roles.yml").write_text("[{certificate: node, role: server}]")
    return {
        **SERVER,
        "server.port": 0,
        "server.ssl.certificate": str(tmp_path / "node.pem"),
        "server.ssl.ca": str(tmp_path / "ca.pem"),
        "security.roles": str(tmp_path / "roles.yml"),
    }


async def test_roles_that_have_changed_are_in_force_and_those_that_cannot_be_used_are_told(
    nursery: trio.Nursery, tmp_path: Path, rules: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waltz_trio.node.process, "_REFRESH", 0.01)
    said: list[tuple[Level, str]] = []

    async def told(words: str) -> Level:
        with trio.fail_after(60):
            while not any(words in text for _, text in said):
                await trio.lowlevel.checkpoint()
        [level] = [level for level, text in said if words in text]
        return level

    async with open_embedded_znodes() as store, open_znode_client(store) as client:
        await create_cluster(client, cluster_paths("/test"), "test", 2)
        process = ServerProcess(Config(rules), store)
        process.report = lambda level, text: said.append((level, text))
        await nursery.start(process.run)

        (tmp_path / "roles.yml").write_text("no rules")
        assert await told("the changed roles cannot be used, the rules read before hold") is Level.WARNING
        (tmp_path / "roles.yml").write_text("[{certificate: node, role: !!bool server}]")
        assert await told("tag:yaml.org,2002:bool") is Level.WARNING
        (tmp_path / "roles.yml").write_text("[{certificate: node, role: server}, {certificate: new, role: admin}]")
        assert await told("the roles have changed") is Level.INFO

        def unreadable(path: str) -> NoReturn:
            raise ConfigError("for a moment")

        with monkeypatch.context() as patch:
            patch.setattr(waltz_trio.node.process, "read_roles", unreadable)
            (tmp_path / "roles.yml").write_text("[{certificate: node, role: server}]")
            await told("for a moment")
            await trio.sleep(0.1)
        said.clear()
        assert await told("the roles have changed") is Level.INFO
        assert not any("for a moment" in text for _, text in said)
        process.cancel()


class Role:
    """A process as `run_until_signal` knows it."""

    def __init__(self, *, obeys: bool = True, reason: str = "") -> None:
        self.said: list[tuple[Level, str]] = []
        self.report = lambda level, text: self.said.append((level, text))
        self.running, self.asked = trio.Event(), trio.Event()
        self._obeys, self._reason, self._ended = obeys, reason, trio.Event()

    async def run(self) -> str:
        self.running.set()
        await self._ended.wait()
        return self._reason

    def shutdown(self) -> None:
        self.asked.set()
        if self._obeys:
            self._ended.set()

    def cancel(self) -> None:
        self._ended.set()


@pytest.fixture
def system() -> Iterator[None]:
    """The process of the tests is afterwards what it was: its limits, and how it collects garbage."""
    limits, thresholds = resource.getrlimit(resource.RLIMIT_NOFILE), gc.get_threshold()
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize(("reason", "status"), [("", 0), ("the directory is damaged", 1)])
async def test_a_process_that_cannot_continue_says_why_and_fails(reason: str, status: int) -> None:
    role = Role(reason=reason)
    role.shutdown()

    assert await run_until_signal(role) == status

    told = [(Level.ERROR, f"the process cannot continue: {reason}")] if reason else []
    assert role.said == told


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_asks_for_an_orderly_end_and_a_second_one_does_not_wait_for_it(
    nursery: trio.Nursery, number: signal.Signals, autojump_clock: trio.testing.MockClock
) -> None:
    for obeys in (True, False):
        role = Role(obeys=obeys)
        async with trio.open_nursery() as running:
            running.start_soon(run_until_signal, role)
            await role.running.wait()
            await trio.testing.wait_all_tasks_blocked()
            signal.raise_signal(number)
            await role.asked.wait()
            if not obeys:
                signal.raise_signal(number)
        assert role.said == [(Level.INFO, f"{number.name}: ending")]


@pytest.mark.usefixtures("system")
async def test_a_terminal_that_ends_twice_asks_once_for_an_orderly_end(autojump_clock: trio.testing.MockClock) -> None:
    """The shell and the terminal itself both say so."""
    role = Role(obeys=False)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests run under `nohup`
    async with trio.open_nursery() as running:
        running.start_soon(run_until_signal, role)
        await role.running.wait()
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(2):
            signal.raise_signal(signal.SIGHUP)
            await role.asked.wait()
            await trio.testing.wait_all_tasks_blocked()
    signal.signal(signal.SIGHUP, before)
    assert [text for _, text in role.said] == ["SIGHUP: ending", "not ended in order after 10 s"]


@pytest.mark.usefixtures("system")
async def test_a_process_that_does_not_end_in_order_is_ended(autojump_clock: trio.testing.MockClock) -> None:
    role = Role(obeys=False)
    with trio.fail_after(60):
        async with trio.open_nursery() as running:
            running.start_soon(run_until_signal, role)
            await role.running.wait()
            await trio.testing.wait_all_tasks_blocked()
            signal.raise_signal(signal.SIGTERM)
    assert role.said[1:] == [(Level.WARNING, "not ended in order after 10 s")]


@pytest.mark.usefixtures("system")
async def test_a_process_may_open_as_many_files_as_it_may_allow_itself() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard))
    role = Role()
    role.shutdown()

    await run_until_signal(role)

    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


async def test_a_zookeeper_that_stays_silent_is_reported_once_a_minute(
    autojump_clock: trio.testing.MockClock,
) -> None:
    told: list[float] = []

    def report(level: Level, text: str) -> None:
        if text.startswith("no connection to ZooKeeper 127.0.0.1:1 for "):
            assert level is Level.WARNING
            told.append(trio.current_time())

    process = ServerProcess(Config({**SERVER, "server.port": 0, "zookeeper.connectTimeout": 7000}))
    process.report = report
    process._parse("127.0.0.1")
    process._zk_lost_at = trio.current_time()
    with trio.move_on_after(600):
        await process._report_silence()
    every = [later - earlier for earlier, later in itertools.pairwise(told)]
    assert len(every) >= 8
    assert all(60 <= seconds <= 68 for seconds in every)  # every 7 s somebody looks whether it is time


async def test_what_the_disk_of_an_ended_storage_node_has_not_done_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    async with embedded_cluster(tmp_path, partitions=1) as cluster, open_client(cluster.url) as client:
        node = cluster.storage(2)
        assert node is not None
        assert node.disk is not None
        assert node._machine is not None
        node.report = lambda level, text: told.append(text)
        node.disk.offer = lambda batch: None  # type: ignore[method-assign]  # a disk that takes its time
        await client.append(0, Append(b"on the other two"))
        with trio.fail_after(60):
            while not node._machine.awaited():
                await trio.testing.wait_all_tasks_blocked()
        cluster._options = attrs.evolve(cluster._options, patience=0.1)
        await cluster.stop_storage(2)
    assert told == ["the disk has not done yet what 1 requests wait for: append of partition 0"]


async def test_the_metrics_of_a_partition_end_when_it_is_taken_from_the_storage_node(tmp_path: Path) -> None:
    async with embedded_cluster(tmp_path, partitions=2, storage_nodes=1) as cluster:
        node = cluster.storage(0)
        assert node is not None
        assert node.admin_port is not None
        tls = TlsSettings(certificate=f"{tmp_path}/tls/node.pem", key=f"{tmp_path}/tls/node.key", verify=False)
        at = Endpoint("127.0.0.1", node.admin_port)
        shown: list[set[str]] = []
        async with open_admin(at, ClientTls(tls), key=cluster.key, num_partitions=2) as admin:
            for taken in ([], [1], []):
                await admin.unassign(taken)
                text = await node.registry.reading(node.registry.json)
                shown.append(set(re.findall(r"\.(partition-\d+)\.", text)))
    assert shown == [{"partition-0", "partition-1"}, {"partition-0"}, {"partition-0"}]

"""Certificates, roles, ZooKeeper behind a login, floods: who is not meant to gets nothing, and disturbs nobody."""

from __future__ import annotations

import contextlib
import re
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

import waltz_trio as waltz
from tests.processes.cluster import Cluster, Tls, poll, running_cluster, tail
from tests.processes.zookeeper import missing, running_zookeeper
from waltz_core.base.errors import WaltzError
from waltz_core.base.ids import Endpoint, make_req_id
from waltz_core.base.record import record
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import client_messages as wire
from waltz_core.wire.connection import ADMIN_PROTOCOL, CLIENT_PROTOCOL, STORAGE_PROTOCOL, Connection
from waltz_core.wire.port_session import Refusal
from waltz_spark.base.errors import OptionError
from waltz_spark.read.cluster import Cluster as Map
from waltz_spark.read.options import parse_options
from waltz_trio.cli.zookeeper import open_cluster
from waltz_trio.config.config import Config
from waltz_trio.net.tls import ClientTls, TlsSettings
from waltz_trio.ports.admin import open_admin
from waltz_trio.ports.port import RefusedError
from waltz_trio.ports.server import open_server_port
from waltz_trio.ports.storage import open_storage_port
from waltz_trio.zk.admin import read_store_params
from waltz_trio.zk.client import ZnodeError, ZnodeRefusedError, open_znode_client
from waltz_trio.zk.security import ZkSasl, ZkSecurity, ZkTls

pytestmark = pytest.mark.processes

USER, PASSWORD = "waltz", "a secret"
ROLES: list[dict[str, object]] = [
    {"certificate": "server", "role": "server"},
    {"certificate": "storage", "role": "storage"},
    {"certificate": "tools", "role": "admin"},
    {"certificate": "client", "role": "client", "write": "all"},
    {"certificate": "write?", "role": "client", "read": "all", "write": 0},
    {"certificate": "reader", "role": "client"},
]
PORTS: dict[str, Any] = {
    "server.port": CLIENT_PROTOCOL,
    "storage.port": STORAGE_PROTOCOL,
    "storage.admin.port": ADMIN_PROTOCOL,
}
RSS_GROWTH_MAX = 200 << 20  # bytes that a flood may add to a process; what it asks for is many times that


class TlsFront:
    """TLS in front of ZooKeeper's plain port; who shows no certificate of the authority is not let in."""

    def __init__(self, tls: Tls, certificate: Path, target: int) -> None:
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tls.ca))
        self._context.load_cert_chain(certificate)
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        """Both directions in one thread: an SSL socket may not be used by two at once."""
        with contextlib.suppress(OSError, ValueError), sock:
            sock.settimeout(10)
            with (
                self._context.wrap_socket(sock, server_side=True) as near,
                socket.create_connection(("127.0.0.1", self._target)) as far,
            ):
                while True:
                    ready = [near] if near.pending() else select.select([near, far], [], [])[0]
                    for source in ready:
                        data = source.recv(65536)
                        if not data:
                            return
                        (far if source is near else near).sendall(data)

    def close(self) -> None:
        self._listener.close()


@record
class Guarded:
    """A ZooKeeper with a login, behind TLS."""

    plain: str  # its connect string, past TLS
    hosts: str  # and through it
    security: ZkSecurity  # what lets one in
    settings: tuple[tuple[str, str], ...]  # the same as keys of a configuration


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A ZooKeeper for one cluster."""
    problem = missing()
    if problem is not None:
        pytest.fail(problem)
    directory = tmp_path_factory.mktemp("guarded")
    (directory / "password").write_text(PASSWORD + "\n")
    tls = Tls(directory)
    ca, certificate = str(tls.ca), str(tls.issue("waltz"))
    with running_zookeeper(users={USER: PASSWORD}) as server:
        front = TlsFront(tls, tls.issue("zookeeper"), server.port)
        plain = server.fresh_chroot()
        yield Guarded(
            plain,
            f"127.0.0.1:{front.port}/{plain.partition('/')[2]}",
            ZkSecurity(ZkTls(ca, certificate), ZkSasl("DIGEST-MD5", "zookeeper", USER, PASSWORD)),
            (
                ("zookeeper.ssl.ca", ca),
                ("zookeeper.ssl.certificate", certificate),
                ("zookeeper.sasl.mechanism", "digest-md5"),
                ("zookeeper.sasl.username", USER),
                ("zookeeper.sasl.passwordFile", str(directory / "password")),
                ("zookeeper.acl.create", "creator"),
            ),
        )
        front.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, guarded: Guarded) -> Iterator[Cluster]:
    """Three storage nodes and a server with roles."""
    directory = tmp_path_factory.mktemp("cluster")
    roles = directory / "roles.yml"
    roles.write_text(yaml.safe_dump(ROLES))
    settings = {
        "security.roles": str(roles),
        "network.handshakeTimeout": 2000,
        "network.unsentMax": "32 MiB",
        "network.gatheredMax": "32 MiB",
        "network.frameSizeMax": "24 MiB",
        **dict(guarded.settings),
    }
    with running_cluster(directory, guarded.hosts, partitions=2, settings=settings) as made:
        assert made.tls is not None
        for name in ("writer", "reader", "nobody"):
            made.tls.issue(name)
        yield made


@pytest.fixture(autouse=True)
def undisturbed(cluster: Cluster) -> Iterator[None]:
    """After each test: the same processes, healthy, without a traceback."""
    yield
    for name in (*cluster.server_names, *cluster.storage_names):
        assert cluster.children[name].running, f"{name} ended with status {cluster.children[name].status}"
    cluster.wait_healthy()
    cluster.assert_calm()


def shown(cluster: Cluster, name: str) -> ClientTls:
    """A dialing side that shows a certificate of the cluster's authority."""
    assert cluster.tls is not None
    path = str(cluster.tls.directory / f"{name}.pem")
    return ClientTls(TlsSettings(certificate=path, ca=str(cluster.tls.ca)))


def at(cluster: Cluster, name: str, key: str) -> Endpoint:
    return Endpoint("127.0.0.1", cluster.addresses[name][key])


def key_of(cluster: Cluster) -> bytes:
    async def read() -> bytes:
        async with open_cluster(Config.load(cluster.tools_file)) as (zk, paths):
            return (await read_store_params(zk, paths)).key

    return trio.run(read)


def client_file(cluster: Cluster, name: str) -> str:
    """A client's configuration with another certificate."""
    assert cluster.tls is not None
    path = cluster.directory / f"client-{name}.yml"
    keys = yaml.safe_load(cluster.client_file.read_text())
    keys["client.ssl.certificate"] = str(cluster.tls.directory / f"{name}.pem")
    path.write_text(yaml.safe_dump(keys))
    return str(path)


def told(cluster: Cluster, name: str, pattern: str) -> None:
    """Wait until a process has written a line that matches."""
    child = cluster.children[name]
    try:
        poll(f"{name} says {pattern}", lambda: re.search(pattern, child.text()) is not None, 20)
    except TimeoutError:
        raise AssertionError(f"{name} does not say {pattern}:\n{tail(child.text())}") from None


# ---- roles ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "server_port", "data_port", "admin_port", "changes"),
    [
        ("server", True, True, True, False),
        ("storage", True, False, True, False),
        ("tools", True, True, True, True),
        ("client", True, False, False, False),
        ("reader", True, False, False, False),
        ("nobody", False, False, False, False),
    ],
)
def test_each_port_serves_its_roles_and_refuses_the_others_with_a_reason(
    cluster: Cluster, name: str, server_port: bool, data_port: bool, admin_port: bool, changes: bool
) -> None:
    key, tls = key_of(cluster), shown(cluster, name)
    admin_at = at(cluster, "storage-0", "storage.admin.port")

    async def look_at_server() -> None:
        async with open_server_port(at(cluster, "server-0", "server.port"), tls) as port:
            answer = await port.ask(wire.PartitionStatusRequest(make_req_id(-1, 0, -1, 1)))
            if isinstance(answer, wire.ErrorResponse):
                raise RefusedError(Refusal(answer.message or "", answer.code, -1))

    async def open_data() -> None:
        async with open_storage_port(at(cluster, "storage-0", "storage.port"), tls, key=key, num_partitions=2):
            pass

    async def read_records() -> None:
        async with open_admin(admin_at, tls, key=key, num_partitions=2) as client:
            await client.call(lambda seq: admin.RecordListRequest(seq, 0, 0, 1))

    async def change() -> None:
        async with open_admin(admin_at, tls, key=key, num_partitions=2) as client:
            await client.set_available([1], True)

    for allowed, attempt in (
        (server_port, look_at_server),
        (data_port, open_data),
        (admin_port, read_records),
        (changes, change),
    ):
        if allowed:
            trio.run(attempt)
        else:
            with pytest.raises(RefusedError, match=f"certificate '{name}' at .* may not "):
                trio.run(attempt)


async def test_a_client_appends_within_its_partitions_only_and_is_told_so(cluster: Cluster) -> None:
    async with waltz.open_client(client_file(cluster, "writer")) as client:
        first = await client.append(0, waltz.Append(b"mine"))
        with pytest.raises(waltz.NotCommittedError, match=r"'writer' at .* may not append to partition 1"):
            await client.append(1, waltz.Append(b"not mine"))
        assert await client.append(0, waltz.Append(b"mine again")) == first + 1
    told(cluster, "server-0", "refused: certificate 'writer' at .* may not append to partition 1")


async def test_a_reader_reads_and_does_not_append(cluster: Cluster) -> None:
    async with waltz.open_client(client_file(cluster, "reader")) as client:
        assert await client.committed_mark(1) >= -1
        with pytest.raises(waltz.NotCommittedError, match=r"'reader' at .* may not append"):
            await client.append(0, waltz.Append(b"x"))


async def test_the_submits_of_a_reader_end_with_the_reason(cluster: Cluster) -> None:
    """They were repeated without a word, for ever."""
    view: waltz.DictView[dict[int, int]] = waltz.DictView(lambda txn, state: None)
    async with waltz.open_client(client_file(cluster, "reader")) as client, client.materialize(view) as application:
        with trio.fail_after(60):
            with pytest.raises(waltz.RetriesExhaustedError, match=r"'reader' at .* may not append") as caught:
                await application.submit(lambda state: waltz.Append(b"x"), partition=0)
            (error,) = await application.submit_many(lambda state: waltz.Append(b"x"), [()], partition=0)
    assert caught.value.attempts == 1
    assert isinstance(caught.value.__cause__, waltz.NotCommittedError)
    assert caught.value.__cause__.refused
    assert isinstance(error, waltz.RetriesExhaustedError)


@pytest.mark.parametrize(
    "words", ["performance test-producers -s 20 -p 1 -t 1 -i 0", "client validate -tpc 1 -nc 1 -i 0 -ap 1 -t 50"]
)
def test_tools_say_why_they_may_not_append(cluster: Cluster, words: str) -> None:
    done = cluster.attempt(*words.split(), "-c", str(client_file(cluster, "reader")))
    assert done.returncode == 1
    assert "certificate 'reader' at " in done.stdout
    assert "may not append to partition 0" in done.stdout


async def appended(writer: waltz.Client) -> None:
    """Once; what went out over the connection that was just being closed is not in the log, and is sent again."""
    while True:
        with contextlib.suppress(waltz.NotCommittedError):
            await writer.append(0, waltz.Append(b"waits until it is let in again"))
            return


async def test_roles_change_while_the_cluster_runs(cluster: Cluster) -> None:
    """A certificate that must not be used any more is shut out at once, and those of others notice nothing."""
    path = cluster.directory / "roles.yml"
    before = path.read_text()

    async def said(pattern: str) -> None:
        await trio.to_thread.run_sync(told, cluster, "server-0", pattern)

    try:
        async with (
            waltz.open_client(client_file(cluster, "reader")) as reader,
            waltz.open_client(client_file(cluster, "writer")) as writer,
            trio.open_nursery() as nursery,
        ):
            first = await writer.append(0, waltz.Append(b"before"))
            path.write_text("- {certificate: reader, role: nobody}")
            await said("changed roles cannot be used.*role` must be one of")
            path.write_text(yaml.safe_dump([rule for rule in ROLES if rule["certificate"] != "write?"]))
            await said(r"roles have changed: certificate 'writer' .* \(no role\) now")
            nursery.start_soon(appended, writer)
            await said(r"refused: certificate 'writer' at .* \(no role\) may not")
            assert await reader.committed_mark(0) == first
            path.write_text(before)
        async with waltz.open_client(client_file(cluster, "reader")) as reader:
            assert await reader.committed_mark(0) == first + 1
    finally:
        path.write_text(before)
    assert not re.search("the roles have changed: certificate 'reader'", cluster.children["server-0"].text())


def test_preferred_partitions_are_for_admins(cluster: Cluster) -> None:
    assert cluster.tls is not None
    server = ("-s", str(at(cluster, "server-0", "server.port")), "-p", "1")
    keys = yaml.safe_load(cluster.tools_file.read_text())
    path = cluster.directory / "reader-tools.yml"
    path.write_text(yaml.safe_dump({**keys, "ssl.certificate": str(cluster.tls.directory / "reader.pem")}))

    refused = cluster.attempt("server", "add-preferred-partition", "-c", str(path), *server)
    cluster.tool("server", "add-preferred-partition", "-c", str(cluster.tools_file), *server)
    cluster.tool("server", "remove-preferred-partition", "-c", str(cluster.tools_file), *server)

    assert refused.returncode == 1
    told(cluster, "server-0", r"audit: certificate 'tools' at .* \(admin\): prefer partitions 1: done")
    told(cluster, "server-0", r"refused: certificate 'reader' at .* may not ask for a change")
    told(cluster, "server-0", r"audit: .* do not prefer partitions 1: done")


@pytest.mark.parametrize(
    ("process", "key"),
    [("server-0", "server.port"), ("storage-0", "storage.port"), ("storage-0", "storage.admin.port")],
)
def test_a_certificate_of_another_authority_opens_no_port(
    cluster: Cluster, tmp_path: Path, process: str, key: str
) -> None:
    assert cluster.tls is not None
    stranger = Tls(tmp_path)
    for name in ("server", "storage", "tools", "client"):
        context = ssl.create_default_context(cafile=str(cluster.tls.ca))
        context.check_hostname = False
        context.load_cert_chain(stranger.directory / f"{name}.pem")
        sock = socket.create_connection(("127.0.0.1", cluster.addresses[process][key]), timeout=20)
        with sock, contextlib.suppress(ConnectionError, ssl.SSLError), context.wrap_socket(sock) as connection:
            assert not connection.recv(100), "a greeting"  # TLS 1.3: the refusal comes behind our handshake
    told(cluster, process, "TLS handshake failed.*certificate")


def test_a_storage_node_with_a_wrong_certificate_is_not_used_and_cannot_read_from_another(cluster: Cluster) -> None:
    """`storage-2` comes back with the certificate of a client; the other pair is that of a repair."""
    assert cluster.tls is not None
    path = cluster.directory / "storage-2.yml"
    keys = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**keys, "storage.ssl.certificate": str(cluster.tls.directory / "reader.pem")}))
    child = cluster.children["storage-2"]
    child.stop()
    cluster.start("storage-2")
    target, source = (
        f"127.0.0.1:{cluster.addresses[name]['storage.admin.port']}" for name in ("storage-2", "storage-0")
    )
    cluster.attempt("storage", "repair", "-c", str(cluster.tools_file), "-s", target, "-p", "0", "-f", source)
    told(cluster, "storage-0", "certificate 'reader' at .* may not use the admin port")
    told(cluster, "storage-2", r"audit: certificate 'tools' at .* \(admin\): repair partition 0")
    told(cluster, "server-0", r"certificate 'reader' at .* \(client\) may not be a storage node")
    path.write_text(yaml.safe_dump(keys))
    child.stop()
    cluster.start("storage-2")


def test_what_tools_and_nodes_change_leaves_one_line_each(cluster: Cluster) -> None:
    storage = ("-s", "127.0.0.1:19", "-a", "19", "-g", "7")
    added = cluster.tool("zookeeper", "add-storage-node", "-c", str(cluster.tools_file), *storage)
    again = cluster.attempt("zookeeper", "add-storage-node", "-c", str(cluster.tools_file), *storage)
    removed = cluster.tool("zookeeper", "remove-storage-node", "-c", str(cluster.tools_file), *storage[:2])

    what = r"audit: \S+@\S+: add-storage-node --storage 127.0.0.1:19 --storage-admin-port 19 --group 7 at /cluster: "
    assert re.search(what + "done", added)
    assert re.search(what + "failed: ", again.stdout)
    assert re.search("audit: .*: remove-storage-node --storage 127.0.0.1:19 at /cluster: done", removed)
    told(cluster, "storage-0", r"audit: certificate 'tools' at .* \(admin\): assign partitions 0, 1: done")


# ---- ZooKeeper -----------------------------------------------------------------------------------


def test_who_is_not_logged_in_neither_reads_nor_changes_the_cluster(cluster: Cluster, guarded: Guarded) -> None:
    hosts = guarded.plain
    client = KazooClient(hosts=hosts, timeout=10)
    client.start(timeout=10)
    try:
        for path in ("/cluster", "/cluster/store", "/cluster/store/partition/0", "/cluster/store/assignment"):
            with pytest.raises(NoAuthError):
                client.get(path)
            with pytest.raises(NoAuthError):
                client.set(path, b"")
        with pytest.raises(NoAuthError):
            client.create("/cluster/x", b"")
    finally:
        client.stop()
        client.close()


async def test_a_wrong_password_ends_a_tool_with_an_error(cluster: Cluster, guarded: Guarded) -> None:
    hosts = guarded.plain
    security = ZkSecurity(sasl=ZkSasl("DIGEST-MD5", "zookeeper", USER, "wrong"))
    with pytest.raises(WaltzError):
        async with open_znode_client(hosts, connect_timeout_ms=3000, security=security):
            pass


def test_the_pipeline_finds_the_cluster_with_the_same_keys(cluster: Cluster, guarded: Guarded, tmp_path: Path) -> None:
    tls = cluster.tls
    assert tls is not None
    file = tmp_path / "zookeeper.yml"
    file.write_text(yaml.safe_dump(dict(guarded.settings)))
    options = {"zookeeper": guarded.hosts, "clusterRoot": "/cluster", "requestTimeoutMs": "3000"}
    options |= {"ssl.ca": str(tls.ca), "ssl.certificate": str(tls.directory / "tools.pem")}
    found = Map(parse_options({**options, "zookeeperConfig": str(file)}))
    assert found.partition_count == 2
    assert len(found.places(0, -1, "storage")) == 3
    with pytest.raises(WaltzError):
        Map(parse_options(options))
    file.write_text("zookeeper.sasl.mechanism: digest-md5")
    with pytest.raises(OptionError, match=r"zookeeperConfig: .*username"):
        Map(parse_options({**options, "zookeeperConfig": str(file)}))


async def test_digest_authentication_and_grants_by_name(cluster: Cluster, guarded: Guarded) -> None:
    hosts = guarded.plain
    owner = ZkSecurity(auth=("digest", "me:secret"), acl="creator-read")
    async with open_znode_client(hosts, security=owner) as zk:
        await zk.create("/mine", b"1")
    async with open_znode_client(hosts) as zk:
        data, _ = await zk.get("/mine")
        assert data == b"1"
        with pytest.raises(ZnodeRefusedError):
            await zk.set("/mine", b"2", -1)
    granted = ZkSecurity(acl="world:anyone:r,world:anyone:d")
    async with open_znode_client(hosts, security=granted) as zk:
        await zk.create("/read-only", b"1")
        with pytest.raises(ZnodeError):
            await zk.set("/read-only", b"2", -1)


async def test_without_a_certificate_zookeeper_behind_tls_is_not_reached(cluster: Cluster, guarded: Guarded) -> None:
    assert guarded.security.tls is not None
    async with open_znode_client(guarded.hosts, security=guarded.security):
        pass
    for security in (ZkSecurity(), ZkSecurity(tls=ZkTls(guarded.security.tls.ca))):
        with pytest.raises(WaltzError):
            async with open_znode_client(guarded.hosts, connect_timeout_ms=1500, security=security):
                pass


# ---- floods --------------------------------------------------------------------------------------


def rss(cluster: Cluster, name: str) -> int:
    """Resident bytes of a process."""
    text = Path(f"/proc/{cluster.children[name].pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) << 10


class Writer:
    """A client in a thread of its own that appends one transaction after the other; no append may fail."""

    def __init__(self, cluster: Cluster) -> None:
        self.count = 0
        self._file = str(cluster.client_file)
        self._ending = False

    async def _append(self) -> None:
        async with waltz.open_client(self._file) as client:
            while not self._ending:
                await client.append(0, waltz.Append(b"undisturbed"))
                self.count += 1

    def more(self) -> None:
        """Wait until it has got on."""
        begin = self.count
        poll("an undisturbed client gets on", lambda: self.count >= begin + 20)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(trio.run, self._append)
            try:
                self.more()
                yield
                self.more()
            finally:
                self._ending = True
                done.result(30)


def under_load(cluster: Cluster, disturb: Callable[[Writer], None]) -> None:
    """Disturb a cluster whose client goes on writing; no process may grow much."""
    names = ("server-0", "storage-0")
    writer = Writer(cluster)
    with writer.running():
        before = {name: rss(cluster, name) for name in names}
        disturb(writer)
        for name in names:
            grown = rss(cluster, name) - before[name]
            assert grown < RSS_GROWTH_MAX, f"{name} grew by {grown >> 20} MiB"


def greeted(cluster: Cluster, process: str, key: str, name: str) -> tuple[ssl.SSLSocket, Connection[Any]]:
    """A TLS connection on which both sides have greeted."""
    assert cluster.tls is not None
    context = ssl.create_default_context(cafile=str(cluster.tls.ca))
    context.check_hostname = False
    context.load_cert_chain(cluster.tls.directory / f"{name}.pem")
    sock = socket.create_connection(("127.0.0.1", cluster.addresses[process][key]), timeout=20)
    connection = context.wrap_socket(sock)
    protocol = PORTS[key]
    peer: Connection[Any] = Connection(protocol, "test", protocol.tables.keys())
    connection.sendall(peer.hello())
    while peer.version is None:
        peer.receive(connection.recv(65536), [])
    return connection, peer


def ends(connection: ssl.SSLSocket) -> bool:
    """Whether the peer closes the connection, sooner or later."""
    connection.settimeout(20)
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while connection.recv(65536):
            pass
    return True


def test_connections_that_say_nothing_or_garbage_keep_nobody_out(cluster: Cluster) -> None:
    def disturb(writer: Writer) -> None:
        with ExitStack() as stack:
            for process in ("server-0", "storage-0"):
                for port in cluster.addresses[process].values():
                    for number in range(150):  # more than the HTTP endpoints take at once
                        sock = socket.create_connection(("127.0.0.1", port), timeout=20)
                        stack.callback(sock.close)
                        if number % 3 == 0:
                            with contextlib.suppress(OSError):
                                sock.sendall(bytes(range(256)) * 40)
            writer.more()
            for process in ("server-0", "storage-0"):
                assert cluster.get(process, "/ping") == "pong\n"

    under_load(cluster, disturb)


@pytest.mark.parametrize("key", PORTS)
def test_unfinished_frames_and_strangers_are_bounded(cluster: Cluster, key: str) -> None:
    process = "server-0" if key == "server.port" else "storage-0"
    name = "client" if key == "server.port" else "tools"

    def disturb(writer: Writer) -> None:
        with ExitStack() as stack:
            victims = []
            for _ in range(8):
                connection, peer = greeted(cluster, process, key, name)
                stack.callback(connection.close)
                victims.append(connection)
                assert peer.version is not None
                with contextlib.suppress(OSError):
                    connection.sendall(struct.pack(">Bhi", PORTS[key].magic, peer.version, 24 << 20) + bytes(20 << 20))
            if key == "server.port":
                told(cluster, process, r"unfinished frames hold \d+ bytes")
            else:  # none of them has shown the cluster key
                assert all(ends(connection) for connection in victims)

    under_load(cluster, disturb)


@pytest.mark.parametrize("key", ["storage.port", "storage.admin.port"])
def test_a_stranger_that_greets_and_says_no_more_is_dropped(cluster: Cluster, key: str) -> None:
    connection, _ = greeted(cluster, "storage-0", key, "tools")
    with connection:
        assert ends(connection)
    told(cluster, "storage-0", "the cluster key was not shown within 2 s")


def payload_size(cluster: Cluster, transaction_id: int) -> int:
    """Of a transaction of partition 1, as a reader gets it."""
    connection, peer = greeted(cluster, "server-0", "server.port", "reader")
    with connection:
        out = bytearray()
        peer.encode(wire.TransactionDataRequest(make_req_id(8, 1, 1, 0), transaction_id), out)
        connection.sendall(out)
        answers: list[Any] = []
        while not answers:
            peer.receive(connection.recv(65536), answers)
    return len(answers[0].data)


async def test_a_client_that_asks_for_much_and_reads_nothing_costs_little(cluster: Cluster) -> None:
    async with waltz.open_client(str(cluster.client_file)) as client:
        transaction_id = await client.append(1, waltz.Append(bytes(200_000)))
    assert (await trio.to_thread.run_sync(payload_size, cluster, transaction_id)) == 200_000

    def disturb(writer: Writer) -> None:
        connection, peer = greeted(cluster, "server-0", "server.port", "client")
        with connection:
            out = bytearray()
            for number in range(10_000):  # 2 GB of answers
                peer.encode(wire.TransactionDataRequest(make_req_id(9, 1, 1, number), transaction_id), out)
            connection.settimeout(2)
            with contextlib.suppress(OSError):
                connection.sendall(out)
            writer.more()

    await trio.to_thread.run_sync(under_load, cluster, disturb)

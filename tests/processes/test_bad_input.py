"""Wrong configurations, strangers and nonsense: a clear answer, an exit status, and nobody else is disturbed."""

from __future__ import annotations

import contextlib
import http.client
import io
import logging
import os
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import waltz_trio as waltz
from tests.processes.cluster import Child, Cluster, Tls, poll, running_cluster, tail
from tests.processes.load import Load
from tests.processes.zookeeper import ZooKeeperServer
from waltz_core.wire.connection import ADMIN_PROTOCOL, CLIENT_PROTOCOL, STORAGE_PROTOCOL, Connection
from waltz_trio.cli.main import main
from waltz_trio.net.ports import HeldPorts

pytestmark = pytest.mark.processes

GARBAGE = bytes(range(256)) * 64
PROTOCOLS: dict[str, Any] = {
    "server.port": CLIENT_PROTOCOL,
    "storage.port": STORAGE_PROTOCOL,
    "storage.admin.port": ADMIN_PROTOCOL,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperServer) -> Iterator[Cluster]:
    """A cluster that must still serve after each of these tests."""
    directory = tmp_path_factory.mktemp("cluster")
    with running_cluster(directory, zookeeper.fresh_chroot()) as made:
        yield made


@pytest.fixture(autouse=True)
def undisturbed(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test with the shared cluster: the same processes, healthy, without a traceback."""
    yield
    if "cluster" in request.fixturenames:
        made: Cluster = request.getfixturevalue("cluster")
        for name in (*made.server_names, *made.storage_names):
            assert made.children[name].running, f"{name} ended with status {made.children[name].status}"
        made.wait_healthy()
        made.assert_calm()


def changed(cluster: Cluster, name: str, **changes: object) -> Path:
    """The configuration of a process with keys changed (`__` stands for a dot, None takes a key away)."""
    keys = yaml.safe_load((cluster.directory / f"{name}.yml").read_text())
    for key, value in changes.items():
        keys.pop(key.replace("__", "."), None)
        if value is not None:
            keys[key.replace("__", ".")] = value
    path = cluster.directory / "changed.yml"
    path.write_text(yaml.safe_dump(keys))
    return path


def moved(cluster: Cluster, ports: HeldPorts, name: str, **changes: object) -> Path:
    """As `changed`, with ports that are free, so that nothing but the changes is wrong."""
    taken = {key.replace(".", "__"): ports.take() for key in cluster.addresses[name]}
    kind = name.partition("-")[0]
    taken[f"{kind}__advertisedEndpoint"] = None  # type: ignore[assignment]
    return changed(cluster, name, **{**taken, **changes})


@pytest.fixture
def ports() -> Iterator[HeldPorts]:
    """Free ports."""
    made = HeldPorts()
    yield made
    made.release()


def refused(cluster: Cluster, *arguments: str) -> str:
    """What a command says that must end with a status other than 0, and not with a traceback.

    It runs in this process, which has loaded it: to start another one takes longer than all that the command does.
    """
    printed, log = io.StringIO(), logging.getLogger()
    handlers = log.handlers[:]
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            status = main(arguments)
    finally:
        log.handlers[:] = handlers
    text = printed.getvalue()
    assert status > 0, f"status {status}: {text}"
    assert "Traceback" not in text, text
    assert text.strip()
    return text


def told(child: Child, pattern: str, start: int = 0) -> None:
    """Wait until a process writes what is expected, after the first `start` characters.

    Raises:
        AssertionError: it does not; with its last words.
    """
    try:
        poll(pattern, lambda: re.search(pattern, child.text()[start:]))
    except TimeoutError:
        raise AssertionError(f"{child.name} does not write {pattern!r}:\n{tail(child.text())}") from None


# ---- configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("server-0", "server.port"),
        pytest.param("server-0", "zookeeper.connectString", marks=pytest.mark.slow),
        pytest.param("server-0", "zookeeper.sessionTimeout", marks=pytest.mark.slow),
        pytest.param("server-0", "cluster.root", marks=pytest.mark.slow),
        pytest.param("storage-0", "storage.port", marks=pytest.mark.slow),
        pytest.param("storage-0", "storage.admin.port", marks=pytest.mark.slow),
        ("storage-0", "storage.directory"),
        pytest.param("storage-0", "zookeeper.connectString", marks=pytest.mark.slow),
        pytest.param("storage-0", "cluster.root", marks=pytest.mark.slow),
    ],
)
def test_a_missing_key_is_named(cluster: Cluster, ports: HeldPorts, name: str, key: str) -> None:
    path = moved(cluster, ports, name, **{key.replace(".", "__"): None})

    done = cluster.attempt(name.partition("-")[0], "run", str(path))
    assert done.returncode > 0
    assert f"parameter not found: {key}" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"server__port": "many"}, "server.port: expected a whole number, found 'many'"),
        ({"server__port": 70000}, "server.port: 70000 is no port number"),
        ({"server__jetty__port": 4000, "server__port": 4000}, "value '4000' is already taken"),
        ({"server__realtimeThreshold": 10}, r"server.realtimeThreshold \(10\) must be greater"),
        ({"server__ssl__ca": "/does/not/exist.pem"}, "server.ssl.ca: cannot read /does/not/exist.pem"),
        ({"server__ssl__ca": None}, "server.ssl.verify is true but no trust store is set"),
        ({"server__host": "203.0.113.1"}, "server.port: cannot listen on 203.0.113.1"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(
    cluster: Cluster, ports: HeldPorts, changes: dict[str, object], complaint: str
) -> None:
    path = moved(cluster, ports, "server-0", **changes)

    assert re.search(complaint, refused(cluster, "server", "run", str(path)))


def test_a_misspelt_key_is_told_with_the_right_one(cluster: Cluster, ports: HeldPorts) -> None:
    path = moved(cluster, ports, "server-0", zookeeper__sessionTimeout=None, zookeeper__sesionTimeout=4000)

    text = refused(cluster, "server", "run", str(path))

    assert "parameter not found: zookeeper.sessionTimeout" in text
    assert "unknown key zookeeper.sesionTimeout; did you mean zookeeper.sessionTimeout?" in text


def test_a_file_that_cannot_be_read_is_named(cluster: Cluster, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    broken.write_text("a: [1,\n")
    lonely = tmp_path / "list.yml"
    lonely.write_text("- a\n")

    for kind in ("server", "storage"):
        assert "cannot read /does/not/exist.yml: No such file" in refused(cluster, kind, "run", "/does/not/exist.yml")
        assert "broken.yml is no valid YAML" in refused(cluster, kind, "run", str(broken))
        assert "list.yml: expected a mapping" in refused(cluster, kind, "run", str(lonely))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("server-0", "server.port"),
        pytest.param("server-0", "server.jetty.port", marks=pytest.mark.slow),
        pytest.param("storage-0", "storage.port", marks=pytest.mark.slow),
        ("storage-0", "storage.admin.port"),
        pytest.param("storage-0", "storage.jetty.port", marks=pytest.mark.slow),
    ],
)
def test_a_port_in_use_is_named(cluster: Cluster, ports: HeldPorts, tmp_path: Path, name: str, key: str) -> None:
    taken = cluster.addresses[name][key]
    changes: dict[str, object] = {key.replace(".", "__"): taken}
    kind = name.partition("-")[0]
    if kind == "storage":
        changes["storage__directory"] = str(tmp_path)
    text = refused(cluster, kind, "run", str(moved(cluster, ports, name, **changes)))

    assert f"{key}: cannot listen on 127.0.0.1:{taken}: Address already in use" in text


# ---- the wrong cluster ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other_root(cluster: Cluster) -> str:
    """Root of a second cluster in the same ZooKeeper, with the same storage node, as after a mistake."""
    root = "/other"
    config = ("-c", str(other_file(cluster, "tools")))
    node = f"127.0.0.1:{cluster.addresses['storage-0']['storage.port']}"
    admin = str(cluster.addresses["storage-0"]["storage.admin.port"])
    cluster.tool("zookeeper", "create", *config, "-n", "other", "-p", "1")
    cluster.tool("zookeeper", "add-storage-node", *config, "-s", node, "-a", admin, "-g", "0")
    cluster.tool("zookeeper", "auto-assign", *config, "-g", "0")
    return root


def other_file(cluster: Cluster, name: str) -> Path:
    """A configuration that names the other cluster."""
    path = changed(cluster, name, cluster__root="/other")
    return path.rename(path.with_name(f"other-{name}.yml"))


def test_a_directory_of_another_cluster_is_refused(cluster: Cluster, ports: HeldPorts, other_root: str) -> None:
    copy = cluster.directory / "copy"
    copy.mkdir()
    shutil.copy(cluster.directory / "storage-0" / "waltz-storage.ctl", copy)
    before = (copy / "waltz-storage.ctl").read_bytes()
    keys = [
        cluster.tool("zookeeper", "show-cluster-key", "-c", str(path)).strip()
        for path in (cluster.tools_file, other_file(cluster, "tools"))
    ]
    path = moved(cluster, ports, "storage-0", cluster__root=other_root, storage__directory=str(copy))

    text = refused(cluster, "storage", "run", str(path))

    assert str(copy) in text
    assert all(key in text for key in keys), f"both keys, expected and found, must be named: {text}"
    assert (copy / "waltz-storage.ctl").read_bytes() == before


def test_a_directory_in_use_is_refused(cluster: Cluster, ports: HeldPorts) -> None:
    text = refused(cluster, "storage", "run", str(moved(cluster, ports, "storage-0")))

    assert str(cluster.directory / "storage-0") in text


def test_a_directory_that_does_not_exist_is_refused(cluster: Cluster, ports: HeldPorts) -> None:
    path = moved(cluster, ports, "storage-0", storage__directory="/does/not/exist")

    assert "/does/not/exist" in refused(cluster, "storage", "run", str(path))


def test_a_tool_of_another_cluster_is_refused_by_a_storage_node(cluster: Cluster, other_root: str) -> None:
    admin = f"127.0.0.1:{cluster.addresses['storage-0']['storage.admin.port']}"
    config = str(other_file(cluster, "tools"))

    text = refused(cluster, "storage", "add-partition", "-c", config, "-s", admin, "-p", "0")

    assert "key" in text.lower()


def test_a_server_of_another_cluster_is_refused_by_a_storage_node(
    cluster: Cluster, ports: HeldPorts, other_root: str
) -> None:
    child = cluster.child("stranger", "-m", "waltz_trio.cli.main", "server", "run")
    child.command.append(str(moved(cluster, ports, "server-0", cluster__root=other_root)))
    child.start()

    told(child, "(?i)key")
    child.stop()


def test_a_root_without_a_cluster_is_named(cluster: Cluster, ports: HeldPorts, tmp_path: Path) -> None:
    path = moved(cluster, ports, "storage-0", cluster__root="/nowhere", storage__directory=str(tmp_path))
    assert "/nowhere" in refused(cluster, "storage", "run", str(path))

    path = changed(cluster, "tools", cluster__root="/nowhere")
    assert "/nowhere" in refused(cluster, "zookeeper", "list", "-c", str(path))

    path = moved(cluster, ports, "server-0", cluster__root="/nowhere")
    assert "/nowhere" in refused(cluster, "server", "run", str(path))


# ---- ZooKeeper and TLS ---------------------------------------------------------------------------


@pytest.mark.slow
def test_an_unreachable_zookeeper_is_named(cluster: Cluster, ports: HeldPorts, tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{ports.take()}"
    wrong = {"zookeeper__connectString": nobody, "zookeeper__connectTimeout": 500, "zookeeper__sessionTimeout": 1000}

    text = refused(cluster, "zookeeper", "list", "-c", str(changed(cluster, "tools", **wrong)))
    assert nobody in text

    path = moved(cluster, ports, "storage-0", storage__directory=str(tmp_path), **wrong)
    assert nobody in refused(cluster, "storage", "run", str(path))

    path = moved(cluster, ports, "server-0", **wrong)
    child = cluster.child("lonely", "-m", "waltz_trio.cli.main", "server", "run", str(path))
    child.start()
    told(child, re.escape(nobody))
    child.stop()  # a server waits for ZooKeeper: it may only be restarting


async def test_a_server_that_nothing_vouches_for_is_refused_by_a_client(cluster: Cluster, tmp_path: Path) -> None:
    stranger = Tls(tmp_path)
    keys = yaml.safe_load(cluster.client_file.read_text()) | {"client.ssl.ca": str(stranger.ca)}
    path = tmp_path / "client.yml"
    path.write_text(yaml.safe_dump(keys))
    child = reader(cluster, "distrustful", path)
    child.start()

    told(child, "(?i)certificate.*(refused|verif)")
    child.end()


def test_a_client_that_nothing_vouches_for_is_refused_by_the_server(cluster: Cluster, tmp_path: Path) -> None:
    stranger = Tls(tmp_path)
    keys = yaml.safe_load(cluster.client_file.read_text())
    keys["client.ssl.certificate"] = str(stranger.directory / "client.pem")
    path = tmp_path / "client.yml"
    path.write_text(yaml.safe_dump(keys))
    child = reader(cluster, "untrusted", path)
    child.start()

    server = cluster.children["server-0"]
    told(server, "(?i)handshake failed.*certificate")
    told(child, "(?i)tls|certificate|alert")
    child.end()


def reader(cluster: Cluster, name: str, client_file: Path) -> Child:
    """A process that asks for the mark of partition 0, for ever if it must."""
    code = (
        "import sys, trio, waltz_trio as waltz; from waltz_trio.base import log; log.set_up()\n"
        "async def main():\n"
        "    async with waltz.open_client(sys.argv[1]) as client: print(await client.committed_mark(0))\n"
        "trio.run(main)"
    )
    return cluster.child(name, "-c", code, str(client_file))


# ---- nonsense on the ports -----------------------------------------------------------------------


def each_port(cluster: Cluster) -> list[tuple[str, str, int]]:
    """(process, key, port) of every listener of one server and one storage node."""
    return [(name, key, port) for name in ("server-0", "storage-0") for key, port in cluster.addresses[name].items()]


def read_to_end(connection: socket.socket) -> bytes:
    """What a peer sends until it closes or resets; it must do one of them."""
    connection.settimeout(20)
    found = b""
    try:
        while piece := connection.recv(65536):
            found += piece
    except (ConnectionResetError, ssl.SSLError, BrokenPipeError):
        pass
    return found


def tls_connection(cluster: Cluster, port: int, name: str) -> ssl.SSLSocket:
    """A TLS connection with a certificate that the peer accepts, and about which it has complained of nothing yet.

    A second complaint of one kind about one certificate is a line at the end of the minute only.
    """
    assert cluster.tls is not None
    assert name not in cluster.tls.names
    context = ssl.create_default_context(cafile=str(cluster.tls.ca))
    context.check_hostname = False
    context.load_cert_chain(cluster.tls.issue(name))
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=20))


def with_load(cluster: Cluster, disturb: Callable[[], None]) -> None:
    """Disturb a cluster whose two clients go on writing without noticing anything."""
    load = Load(cluster, submitters=1, window=5)
    load.start()
    cluster.wait_commits(50)
    disturb()
    cluster.wait_commits(50)
    for name in load.names:
        cluster.children[name].stop()
        assert "lost" not in cluster.children[name].text()


def test_garbage_on_any_port_disturbs_nobody(cluster: Cluster) -> None:
    def disturb() -> None:
        for _, _, port in each_port(cluster):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
                try:
                    connection.sendall(GARBAGE)
                    connection.shutdown(socket.SHUT_WR)
                except OSError:
                    pass
                read_to_end(connection)

    with_load(cluster, disturb)
    for name in ("server-0", "storage-0"):
        assert "TLS handshake failed" in cluster.children[name].text()


@pytest.mark.parametrize("key", PROTOCOLS)
def test_garbage_behind_a_good_handshake_closes_that_connection_with_a_reason(cluster: Cluster, key: str) -> None:
    name, port = next((name, port) for name, found, port in each_port(cluster) if found == key)
    log = cluster.children[name]
    before = len(log.text())

    with tls_connection(cluster, port, f"garbage at {key}") as connection:
        connection.sendall(GARBAGE)
        read_to_end(connection)

    told(log, "(?i)greeting|magic|hello", before)


@pytest.mark.parametrize("key", PROTOCOLS)
def test_a_frame_beyond_the_limit_is_refused_before_it_is_read(cluster: Cluster, key: str) -> None:
    name, port = next((name, port) for name, found, port in each_port(cluster) if found == key)
    log = cluster.children[name]
    before = len(log.text())
    protocol = PROTOCOLS[key]
    peer: Connection[Any] = Connection(protocol, "test", protocol.tables.keys())

    with tls_connection(cluster, port, f"a large frame at {key}") as connection:
        connection.sendall(peer.hello())
        while peer.version is None:
            peer.receive(connection.recv(65536), [])
        connection.sendall(struct.pack(">BHi", protocol.magic, peer.version, (1 << 31) - 1))
        read_to_end(connection)

    told(log, r"network\.frameSizeMax", before)


def test_the_partitions_of_a_storage_node_are_not_listed_as_those_of_a_server(cluster: Cluster) -> None:
    port = cluster.addresses["storage-0"]["storage.jetty.port"]
    said = refused(cluster, "server", "list", "-s", f"127.0.0.1:{port}")
    assert "has no figures of a server: is it the port of a storage node?" in said


def test_http_nonsense_is_answered(cluster: Cluster) -> None:
    for name in ("server-0", "storage-0"):
        kind = name.partition("-")[0]
        connection = http.client.HTTPConnection("127.0.0.1", cluster.addresses[name][f"{kind}.jetty.port"], timeout=20)
        connection.request("GET", "/nothing")
        assert connection.getresponse().status == 404
        connection.close()


# ---- clients that are wrong ----------------------------------------------------------------------


async def test_a_client_ahead_of_the_log_is_told_so(cluster: Cluster) -> None:
    async with waltz.open_client(str(cluster.client_file)) as client:
        mark = await client.committed_mark(0)
        with pytest.raises(waltz.ClientAheadError, match="right cluster") as caught:
            await read_on(client, mark + 1000)
        assert caught.value.client_mark == mark + 1000


async def read_on(client: waltz.Client, after: int) -> None:
    """Read partition 0 behind a mark, for ever."""
    async with client.feed(0, after=after) as feed:
        async for _ in feed:
            pass


async def test_a_payload_beyond_the_limit_is_refused_with_the_key(cluster: Cluster) -> None:
    async with waltz.open_client(str(cluster.client_file)) as client:
        with pytest.raises(ValueError, match=r"server\.payloadSizeMax"):
            await client.append(0, waltz.Append(bytes((16 << 20) + 1)))


async def test_a_partition_that_does_not_exist_is_refused(cluster: Cluster) -> None:
    async with waltz.open_client(str(cluster.client_file)) as client:
        with pytest.raises(waltz.PartitionNotFoundError, match="partition 7: this cluster has 0 to 0"):
            await client.append(7, waltz.Append(b""))


async def test_a_misspelt_key_in_a_mapping_is_an_error(cluster: Cluster) -> None:
    keys = yaml.safe_load(cluster.client_file.read_text()) | {"client.ssl.sertificate": "x"}
    with pytest.raises(waltz.ConfigError, match=r"did you mean client\.ssl\.certificate"):
        async with waltz.open_client(keys):
            pass


def test_a_missing_key_names_the_file_that_lacks_it(cluster: Cluster, tmp_path: Path) -> None:
    """As where a client is given the file of the tools, which need no session time-out."""
    keys = yaml.safe_load(cluster.tools_file.read_text())
    path = tmp_path / "tools.yml"
    path.write_text(yaml.safe_dump({key: keys[key] for key in ("zookeeper.connectString", "cluster.root")}))
    text = refused(cluster, "client", "high-water-mark", "-p", "0", "-c", str(path))
    assert f"parameter not found: zookeeper.sessionTimeout (in {path})" in text


def test_a_directory_that_cannot_be_made_is_named(cluster: Cluster) -> None:
    text = refused(cluster, "dev", "--directory", "/proc/waltz", "--port", "0")
    assert "/proc/waltz" in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize("command", [["--help"], ["zookeeper", "list", "-c", "TOOLS"]])
def test_an_output_that_nobody_reads_to_its_end_ends_in_silence(cluster: Cluster, command: list[str]) -> None:
    words = [str(cluster.tools_file) if word == "TOOLS" else word for word in command]
    reading, writing = os.pipe()
    os.close(reading)  # as after `| head -0`
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "waltz_trio.cli.main", *words],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=environment,
        timeout=60,
        check=False,
        text=True,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")

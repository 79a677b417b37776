"""Strangers at every port of real processes: no certificate, no manners, and nobody else may notice."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.cluster import Cluster, poll, running_cluster
from tests.processes.load import Load
from tests.processes.zookeeper import ZooKeeperServer
from tests.trio.test_dev import append, dev
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection

pytestmark = pytest.mark.processes

COUNT = 600  # more than handshakes may be under way
PORTS = [
    ("server-0", "server.port"),
    ("server-0", "server.jetty.port"),
    ("storage-0", "storage.port"),
    ("storage-0", "storage.admin.port"),
    ("storage-0", "storage.jetty.port"),
]
DROPPED = [
    "too many connections without a TLS handshake: the oldest are dropped",
    "too many HTTP connections: those that wait longest are dropped",
]


@contextlib.contextmanager
def burst(port: int, count: int = COUNT) -> Iterator[list[socket.socket]]:
    """Connections that say nothing, as quickly as they can be made."""
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(count):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
            sockets.append(one)
        yield sockets


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


@pytest.mark.slow
def test_bursts_at_every_port_end_no_process(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), storage_nodes=1) as cluster:
        load = Load(cluster)
        load.start()
        for name, key in PORTS:
            attack(cluster, name, cluster.addresses[name][key])
        load.finish()
        for name in ("server-0", "storage-0"):
            for dropped in DROPPED:
                assert dropped in cluster.children[name].says()


def ended(peers: list[socket.socket]) -> int:
    """How many of these connections the other side has ended."""
    count = 0
    for peer in peers:
        try:
            count += not peer.recv(1)
        except BlockingIOError:
            pass
        except OSError:
            count += 1
    return count


def attack(cluster: Cluster, name: str, port: int) -> None:
    """Silence until the process drops some of them; then resets. Each time the cluster goes on.

    The process stands still while they connect, so that it meets all of them in one turn, however quick it is.
    """
    child = cluster.children[name]
    child.pause()
    with burst(port) as peers:
        child.resume()
        cluster.wait_commits(20)
        poll(f"{name} drops silent connections", lambda: ended(peers) >= 1)
        for peer in peers[::2]:
            reset(peer)
        cluster.wait_commits(20)
    assert child.running
    assert cluster.get(name, "/ping") is not None


def test_a_burst_ends_no_development_cluster(tmp_path: Path) -> None:
    with dev(tmp_path, "--partitions", "1") as (process, url):
        port = int(url.removeprefix("waltz://127.0.0.1:").partition("?")[0])
        with burst(port) as peers:
            assert append(url, b"one") == 0
            for peer in peers:
                reset(peer)
        assert append(url, b"two") == 1
        assert process.poll() is None


@contextlib.contextmanager
def greeted(port: int, count: int) -> Iterator[None]:
    """Connections that finish TLS, greet, and say no more; those that cannot are skipped."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            sock = stack.enter_context(socket.socket())
            sock.settimeout(20)
            sock.connect(("127.0.0.1", port))
            with contextlib.suppress(OSError):
                tls = stack.enter_context(context.wrap_socket(sock))
                tls.sendall(Connection(CLIENT_PROTOCOL, "idle", range(6)).hello())
        yield


@pytest.mark.slow
def test_idle_connections_exhaust_no_descriptors(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), storage_nodes=1, tls=False) as cluster:
        server = cluster.children["server-0"]
        server.stop()
        server.command = ["prlimit", "--nofile=128:128", *server.command]
        cluster.start("server-0")
        cluster.wait_healthy()
        with greeted(cluster.addresses["server-0"]["server.port"], 126):
            load = Load(cluster)  # connects now, and reads payloads over more connections
            load.start()
            cluster.wait_commits(50)
            assert cluster.get("server-0", "/ping") is not None
            load.finish()
        assert server.running
        assert "asked for nothing" in server.says() or "the limit for one address" in server.says()

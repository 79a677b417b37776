"""A real ZooKeeper for tests and benchmarks: one process, loopback, a free port, always ended.

The class path comes from WALTZ_ZOOKEEPER_CLASSPATH, Debian's package `zookeeper`, or pyspark's jars.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from waltz_trio.net.ports import HeldPorts

READY_TIMEOUT = 30.0
_PYSPARK_JARS = ("zookeeper-", "zookeeper-jute-", "slf4j-api-", "metrics-core-", "snappy-java-")
_numbers = itertools.count(1)


def class_path() -> str | None:
    """Where ZooKeeper's classes are; None when it is not installed."""
    given = os.environ.get("WALTZ_ZOOKEEPER_CLASSPATH")
    if given:
        return given
    debian = Path("/usr/share/java/zookeeper.jar")
    if debian.exists():
        return str(debian)
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        return None
    jars = Path(spark.origin).parent / "jars"
    # All five: without snappy the port answers and nothing is served.
    found = [next(iter(sorted(jars.glob(f"{name}[0-9]*.jar"))), None) for name in _PYSPARK_JARS]
    return None if None in found else ":".join(map(str, found))


def missing() -> str | None:
    """What is missing to run ZooKeeper, None if nothing."""
    if shutil.which("java") is None:
        return "no `java` on PATH; install a Java runtime (Debian: default-jre-headless)"
    if class_path() is None:
        return "no ZooKeeper; install it (Debian: zookeeper) or set WALTZ_ZOOKEEPER_CLASSPATH"
    return None


def free_port() -> int:
    """A port that nobody uses now."""
    with HeldPorts() as ports:
        return ports.take()


class ZooKeeperServer:
    """One server on 127.0.0.1; `hosts` is its connect string."""

    def __init__(
        self, directory: Path, *, session_timeout_min_ms: int = 1000, users: Mapping[str, str] | None = None
    ) -> None:
        """Prepare; `users` may log in by SASL (DIGEST-MD5), names and passwords."""
        self.directory = directory
        self._users = dict(users or {})
        self.port = free_port()
        self.hosts = f"127.0.0.1:{self.port}"
        self._min = session_timeout_min_ms
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it serves.

        Raises:
            RuntimeError: it ended, or did not serve in time; its last words are in the message.
        """
        path = class_path()
        assert path is not None, missing()
        config = self.directory / "zoo.cfg"
        settings = {
            "tickTime": 500,
            "minSessionTimeout": self._min,
            "maxSessionTimeout": 60000,
            "dataDir": self.directory / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            "maxClientCnxns": 0,
        }
        if self._users:
            settings["authProvider.1"] = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m"]
        if self._users:
            login = self.directory / "jaas.conf"
            users = "".join(f' user_{name}="{password}"' for name, password in self._users.items())
            login.write_text(f"Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required{users}; }};\n")
            command += [f"-Djava.security.auth.login.config={login}"]
        command += ["-Dzookeeper.forceSync=no", "-Dzookeeper.admin.enableServer=false", "-cp", path]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + READY_TIMEOUT
        while "Mode:" not in self.command("srvr"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                last = (self.directory / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"ZooKeeper does not serve at {self.hosts}: {last}")
            time.sleep(0.02)

    def command(self, word: str) -> str:
        """Answer to a four-letter command; empty if there is none."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(word.encode())
                pieces = []
                while piece := connection.recv(65536):
                    pieces.append(piece)
        except OSError:
            return ""
        return b"".join(pieces).decode(errors="replace")

    def stop(self) -> None:
        """End it in order; harmless when it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once; `start` continues on the same data."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(how)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """Make it silent."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def fresh_chroot(self) -> str:
        """A connect string whose root is empty: isolates one test from the others."""
        name = f"/t{next(_numbers)}-{os.getpid()}"
        client = KazooClient(hosts=self.hosts, timeout=10)
        client.start(timeout=10)
        try:
            client.create(name, b"")
        finally:
            client.stop()
            client.close()
        return self.hosts + name

    def end_session(self, session_id: int, password: bytes) -> None:
        """Expire somebody's session by taking it over and closing it.

        Its owner reconnects at once and may have it back before it is closed, so this goes on until it is gone.
        """
        deadline = time.monotonic() + READY_TIMEOUT
        found: int | None = session_id
        while found == session_id:
            if time.monotonic() > deadline:
                raise TimeoutError(f"session {session_id:#x} could not be ended within {READY_TIMEOUT:.0f} s")
            client = KazooClient(hosts=self.hosts, timeout=10, client_id=(session_id, password))
            try:
                client.start(timeout=10)
                found = client.client_id[0]
            except KazooTimeoutError:
                continue
            finally:
                client.stop()
                client.close()


@contextmanager
def running_zookeeper(
    directory: Path | None = None, users: Mapping[str, str] | None = None
) -> Iterator[ZooKeeperServer]:
    """A server that serves; ended at the end, its files removed unless `directory` was given."""
    with tempfile.TemporaryDirectory(prefix="waltz-zookeeper-") as scratch:
        server = ZooKeeperServer(Path(scratch) if directory is None else directory, users=users)
        try:
            server.start()
            yield server
        finally:
            server.stop()

"""A cluster of real processes on this machine, set up and treated as an operator would: files, commands, signals."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import io
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import trio
import yaml

from tests.processes.clocks import Clocks
from tests.processes.proxy import FaultProxy
from tests.witness.log import check_disks, read_replica, read_start
from waltz_trio.cli.main import main as waltz_main
from waltz_trio.cli.zookeeper import open_cluster
from waltz_trio.config.config import Config
from waltz_trio.net.certificates import issue, make_ca
from waltz_trio.net.ports import HeldPorts
from waltz_trio.net.tls import local_names
from waltz_trio.zk.client import NoNodeError

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0  # seconds until a condition that never comes true fails the test
_PAUSE = 0.05  # seconds between two looks at a condition
_YEARS = datetime.timedelta(days=3650)
_LOG_LINES = 40  # of each process, shown when a test fails
DEVELOPMENT = ("-X", "dev")  # frozen value classes, complaints about leaks: how tests run everything


def poll(what: str, condition: Callable[[], T | None], patience: float = PATIENCE) -> T:
    """The first result of `condition` that is neither None nor False.

    Raises:
        TimeoutError: it did not come; the message says what was waited for.
    """
    end = time.monotonic() + patience
    while True:
        found = condition()
        if found is not None and found is not False:
            return found
        if time.monotonic() > end:
            raise TimeoutError(f"waited {patience:.0f} s for: {what}")
        time.sleep(_PAUSE)


class Child:
    """One process: started, stopped, paused, killed and started again under one name, its output kept in one file."""

    def __init__(self, name: str, command: Sequence[str], directory: Path) -> None:
        self.name = name
        self.command = list(command)
        self.log = directory / f"{name}.log"
        self.environment: dict[str, str] = {}  # on top of ours, from the next start on
        self.starts = 0
        self.paused = False
        self._said_before = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns at once."""
        assert not self.running, f"{self.name} runs already"
        self.starts += 1
        self._said_before = len(self.text())
        with self.log.open("ab") as log:
            # The kernel kills it should this process die without a chance to clean up.
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.environment},
            )

    @property
    def running(self) -> bool:
        """It has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    def has(self, pid: int) -> bool:
        """Whether this is its process id now."""
        return self._process is not None and self._process.pid == pid

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.poll()

    def kill(self) -> None:
        """`kill -9`, and wait for the end."""
        self._signal(signal.SIGKILL)
        self.wait()

    def pause(self) -> None:
        """SIGSTOP: it falls silent, its connections stand."""
        self._signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)
        self.paused = False

    def interrupt(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ask it to end; returns at once."""
        self._signal(how)

    def wait(self, patience: float = PATIENCE) -> int:
        """Wait for its end; returns the exit status.

        Raises:
            TimeoutError: it goes on.
        """
        assert self._process is not None
        try:
            return self._process.wait(patience)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} did not end in {patience:.0f} s") from None
        finally:
            self.paused = False

    def stop(self) -> None:
        """SIGTERM, and it must end in order.

        Raises:
            AssertionError: another exit status than 0.
        """
        self.interrupt()
        status = self.wait()
        assert status == 0, f"{self.name} ended with status {status} after SIGTERM"

    def end(self) -> None:
        """End it whatever its state."""
        if self.running:
            self.kill()

    def text(self) -> str:
        """Everything it has written so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def says(self) -> str:
        """What it has written since it was started last."""
        return self.text()[self._said_before :]

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


class Tls:
    """An authority of this cluster's own, and the certificates that it has signed."""

    def __init__(self, directory: Path, lifetime: datetime.timedelta = _YEARS) -> None:
        self.directory = directory
        self.lifetime = lifetime
        directory.mkdir(parents=True, exist_ok=True)
        self.authority = make_ca("test cluster")
        self.ca = directory / "ca.pem"
        self.ca.write_bytes(self.authority.certificate)
        self.names: set[str] = set()  # of certificates
        for role in ("server", "storage", "client", "tools"):
            self.issue(role)

    def renew(self) -> None:
        """A new certificate for each name, in the file of the old one."""
        for name in sorted(self.names):
            self.issue(name)

    def shown(self, port: int) -> bytes:
        """The certificate (DER) that whoever listens on `port` shows now."""
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self.path("tools"))
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as tls,
        ):
            return tls.getpeercert(binary_form=True) or b""

    def path(self, name: str) -> Path:
        """The file of a certificate and its key."""
        return self.directory / f"{name}.pem"

    def issue(self, name: str, lifetime: datetime.timedelta | None = None) -> Path:
        """A certificate of this name with its key, in one file."""
        pair = issue(self.authority, name, local_names(), lifetime or self.lifetime)
        self.names.add(name)
        path = self.path(name)
        path.with_suffix(".new").write_bytes(pair.key + b"\n" + pair.certificate)
        path.with_suffix(".new").replace(path)
        return path

    def keys(self, prefix: str, role: str) -> dict[str, object]:
        """The TLS group of a configuration: certificate shown, peers verified."""
        return {
            prefix + "certificate": str(self.path(role)),
            prefix + "ca": str(self.ca),
            prefix + "verify": True,
        }


class Cluster:
    """Storage nodes `storage-0`…, servers `server-0`…, and whatever clients a test starts.

    Args:
        directory: for configurations, data, logs; on a real file system where durability matters.
        zookeeper: connect string, with a chroot of its own.
        partitions: how many.
        tls: False = no TLS key at all in any file, as a cluster of 0.13.2 is usually run.
        lifetime: of each certificate.
        own_certificates: a certificate for each server and storage node; else one for all of a kind.
        settings: further keys for every configuration file.
        flags: of the Python interpreter.
        tools_as_processes: run the commands that set it up as processes, not in this one, where they are quicker.
        proxied: put a network that can fail (`proxy`) between all of them, ZooKeeper included.
        clocks: give each process a wall clock of its own, which can jump.
    """

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        *,
        partitions: int = 1,
        storage_nodes: int = 3,
        servers: int = 1,
        tls: bool = True,
        lifetime: datetime.timedelta = _YEARS,
        own_certificates: bool = False,
        settings: Mapping[str, object] | None = None,
        flags: Sequence[str] = DEVELOPMENT,
        tools_as_processes: bool = False,
        proxied: bool = False,
        clocks: bool = False,
    ) -> None:
        self.directory = directory
        self.clocks = Clocks(directory / "clocks") if clocks else None
        self._closing = contextlib.ExitStack()
        self.proxy = self._closing.enter_context(FaultProxy(self._name_of).running()) if proxied else None
        self.partitions = partitions
        self.tls = Tls(directory / "tls", lifetime) if tls else None
        self.ports = HeldPorts()
        self.flags = tuple(flags)
        self._own_certificates = own_certificates
        self._tools_as_processes = tools_as_processes
        self.children: dict[str, Child] = {}
        self.addresses: dict[str, dict[str, int]] = {}  # process name → ports by key
        self.advertised: dict[str, str] = {}  # process name → where others find it
        self.marks: dict[tuple[str, int, int], int] = {}  # (server, its start, partition) → highest mark it told
        self._shared: dict[str, object] = {
            "zookeeper.connectString": self._through_proxy(zookeeper),
            "zookeeper.sessionTimeout": 4000,
            "cluster.root": "/cluster",
            "client.connectTimeout": 60_000,  # machines that run tests are busy
            **(settings or {}),
        }
        self.storage_names = [f"storage-{number}" for number in range(storage_nodes)]
        self.server_names = [f"server-{number}" for number in range(servers)]
        for name in self.storage_names:
            self._describe_storage(name)
        for name in self.server_names:
            self._describe_server(name)
        self.tools_file = self.write_file("tools", {"zookeeper.sessionTimeout": 30000, **self._tls("ssl.", "tools")})
        self.client_file = self.write_file("client", self._tls("client.ssl.", "client"))

    # ---- files and commands ----------------------------------------------------------------------

    def write_file(self, name: str, keys: Mapping[str, object]) -> Path:
        """A YAML file of the keys shared by all and `keys`, which win."""
        path = self.directory / f"{name}.yml"
        path.write_text(yaml.safe_dump({**self._shared, **keys}))
        return path

    def child(self, name: str, *arguments: str) -> Child:
        """A process that runs `python ARGUMENTS`, not started yet; it ends with the cluster."""
        made = Child(name, [sys.executable, *self.flags, *arguments], self.directory)
        if self.clocks is not None:
            made.environment = self.clocks.environment(name)
        self.children[name] = made
        return made

    def tool(self, *arguments: str) -> str:
        """Run `waltz ARGUMENTS` to its end, which must be a good one; returns what it printed.

        Raises:
            AssertionError: the exit status is another than 0.
        """
        if self._tools_as_processes:
            done = self.attempt(*arguments)
            status, text = done.returncode, done.stdout
        else:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                status = waltz_main(arguments)
            text = printed.getvalue()
        assert status == 0, f"waltz {' '.join(arguments)}: status {status}\n{text}"
        return text

    def write_znode(self, path: str, data: bytes | None) -> bytes:
        """Write something else to a znode, or delete it (None); returns what it held."""

        async def work() -> bytes:
            async with open_cluster(Config.load(self.tools_file)) as (zk, _):
                held = b""
                try:
                    held = (await zk.get(path))[0] or b""
                except NoNodeError:
                    await zk.create(path, data)
                else:
                    await (zk.delete(path) if data is None else zk.set(path, data, -1))
                return held

        return trio.run(work)

    def read_znode(self, path: str) -> bytes:
        """What a znode holds."""

        async def work() -> bytes:
            async with open_cluster(Config.load(self.tools_file)) as (zk, _):
                held, _ = await zk.get(path)
                return held or b""

        return trio.run(work)

    def attempt(self, *arguments: str, patience: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """Run `waltz ARGUMENTS` to its end, whatever it comes to."""
        return subprocess.run(
            [sys.executable, *self.flags, "-m", "waltz_trio.cli.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            text=True,
            timeout=patience,
            check=False,
        )

    def _tls(self, prefix: str, role: str, name: str | None = None) -> dict[str, object]:
        if self.tls is None:
            return {}
        if name is None or not self._own_certificates:
            return self.tls.keys(prefix, role)
        self.tls.issue(name)
        return self.tls.keys(prefix, name)

    def _describe_storage(self, name: str) -> None:
        data = self.directory / name
        data.mkdir(parents=True)
        ports = {key: self.ports.take() for key in ("storage.port", "storage.admin.port", "storage.jetty.port")}
        self.addresses[name] = ports
        keys = {"storage.host": "127.0.0.1", "storage.directory": str(data), **ports}
        keys["storage.advertisedEndpoint"] = self._advertise(name, ports["storage.port"])
        path = self.write_file(name, {**keys, **self._tls("storage.ssl.", "storage", name)})
        self.child(name, "-m", "waltz_trio.cli.main", "storage", "run", str(path))

    def _describe_server(self, name: str) -> None:
        ports = {key: self.ports.take() for key in ("server.port", "server.jetty.port")}
        self.addresses[name] = ports
        keys = {"server.host": "127.0.0.1", **ports}
        keys["server.advertisedEndpoint"] = self._advertise(name, ports["server.port"])
        if "server.journal.mode" in self._shared:
            keys["server.journal.directory"] = str(self.journal_of(name))
        path = self.write_file(name, {**keys, **self._tls("server.ssl.", "server", name)})
        self.child(name, "-m", "waltz_trio.cli.main", "server", "run", str(path))

    def journal_of(self, name: str) -> Path:
        """Where a server keeps its decision journal, if it does."""
        return self.directory / f"journal-{name}"

    def _advertise(self, name: str, port: int) -> str:
        reached = port if self.proxy is None else self.proxy.route(name, port)
        self.advertised[name] = f"127.0.0.1:{reached}"
        return self.advertised[name]

    def _through_proxy(self, zookeeper: str) -> str:
        if self.proxy is None:
            return zookeeper
        address, slash, chroot = zookeeper.partition("/")
        return f"127.0.0.1:{self.proxy.route('zookeeper', int(address.rpartition(':')[2]))}{slash}{chroot}"

    def _name_of(self, pid: int) -> str | None:
        return next((name for name, child in list(self.children.items()) if child.has(pid)), None)

    # ---- life ------------------------------------------------------------------------------------

    def set_up(self) -> None:
        """From nothing to serving, by the commands an operator uses, in their order."""
        config = ("-c", str(self.tools_file))
        everything = ",".join(map(str, range(self.partitions)))
        self.tool("zookeeper", "create", *config, "-n", "test cluster", "-p", str(self.partitions))
        for group, name in enumerate(self.storage_names):
            ports = self.addresses[name]
            node = ("-s", self.advertised[name])
            admin = ("-a", str(ports["storage.admin.port"]))
            self.tool("zookeeper", "add-storage-node", *config, *node, *admin, "-g", str(group))
            if group == 0:
                self.tool("zookeeper", "auto-assign", *config, "-g", str(group))
            else:
                self.tool("zookeeper", "assign-partition", *config, *node, "-p", everything)
        self.start(*self.storage_names)
        for name in self.storage_names:
            admin = ("-s", f"127.0.0.1:{self.addresses[name]['storage.admin.port']}")
            self.tool("storage", "add-partition", *config, *admin, "-p", everything)
        self.start(*self.server_names)
        self.wait_healthy()

    def add_storage(self, name: str) -> None:
        """Start one more storage node, unknown to ZooKeeper."""
        self._describe_storage(name)
        self.start(name)

    def start(self, *names: str) -> None:
        """Start processes and wait until each answers."""
        for name in names:
            self.children[name].start()
        for name in names:
            self.wait_up(name)

    def wait_up(self, name: str) -> None:
        """Wait until a storage node or server answers its health endpoint (healthy or not)."""
        child = self.children[name]

        def answers() -> bool:
            assert child.running, f"{name} ended with status {child.status}:\n{tail(child.text())}"
            return self.get(name, "/ping") is not None

        poll(f"{name} answers", answers)

    def wait_healthy(self, patience: float = PATIENCE) -> None:
        """Wait until every running server is healthy and every partition has exactly one owner."""

        def healthy() -> bool:
            owned = self.owners()
            return sorted(owned) == list(range(self.partitions)) and all(
                (self.health(name) or {}).get("healthy") for name in self._answering()
            )

        poll("every partition is served", healthy, patience)

    def end(self) -> None:
        """End every process, whatever its state."""
        for child in self.children.values():
            child.end()
        self.ports.release()
        self._closing.close()

    # ---- looking ---------------------------------------------------------------------------------

    def get(self, name: str, path: str) -> Any:
        """JSON (or text) that a process answers over HTTP, None if it does not answer."""
        ports = self.addresses[name]
        port = ports.get("server.jetty.port") or ports["storage.jetty.port"]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", path)
            body = connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return json.loads(body) if body.startswith("{") else body

    def health(self, server: str) -> dict[str, Any] | None:
        """A server's health object, None if it does not answer."""
        found = self.get(server, "/health")
        return found["server-health-check"] if found else None

    def gauges(self, server: str) -> dict[str, Any]:
        """A server's gauges by full name, empty if it does not answer; its marks must not have fallen."""
        found = self.get(server, "/metrics")
        if not found:
            return {}
        gauges = {name: value.get("value") for name, value in found["gauges"].items()}
        for partition in range(self.partitions):
            mark = gauges.get(f"waltz-server.partition-{partition}.high-water-mark")
            if mark is not None and mark >= -1:  # below: not recovered yet
                key = server, self.children[server].starts, partition
                last = self.marks.get(key, -1)
                assert mark >= last, f"the mark of {server}, partition {partition}, fell from {last} to {mark}"
                self.marks[key] = mark
        return gauges

    def owners(self) -> dict[int, str]:
        """Partition → the server that serves it now; of two that both claim it, the one of the newer generation."""
        return {partition: name for partition, (_, name, _) in self._served().items()}

    def committed(self) -> dict[int, int]:
        """Partition → committed mark, as its owner tells it; partitions without an owner are left out."""
        return {partition: mark for partition, (_, _, mark) in self._served().items()}

    def _served(self) -> dict[int, tuple[int, str, int]]:
        """Partition → generation, server and committed mark."""
        best: dict[int, tuple[int, str, int]] = {}
        for name in self._answering():
            gauges = self.gauges(name)
            for partition in range(self.partitions):
                group = f"waltz-server.partition-{partition}"
                if gauges.get(f"{group}.healthy"):
                    found = gauges[f"{group}.generation"], name, gauges[f"{group}.high-water-mark"]
                    best[partition] = max(best.get(partition, found), found)
        return best

    def wait_commits(self, count: int, partition: int = 0, patience: float = PATIENCE) -> None:
        """Wait until `count` more transactions than now are committed in a partition."""
        begin = poll(f"partition {partition} is served", lambda: self.committed().get(partition), patience)
        poll(
            f"{count} more commits in partition {partition}",
            lambda: self.committed().get(partition, -1) >= begin + count,
            patience,
        )

    def _answering(self) -> list[str]:
        return [name for name in self.server_names if self.children[name].running and not self.children[name].paused]

    # ---- judging ---------------------------------------------------------------------------------

    def assert_calm(self) -> None:
        """No process wrote a traceback, and those that run are meant to."""
        for child in self.children.values():
            text = child.text()
            assert "Traceback" not in text, f"{child.name} wrote a traceback:\n{tail(text, 200)}"

    def judge(self) -> None:
        """The log is its own witness: look at the disks, whatever the test was about.

        Raises:
            AssertionError: what servers say is committed is not on a majority of the disks that hold the partition.
        """
        marks = self.committed()
        disks = {
            partition: [
                self.directory / name
                for name in self.storage_names
                if (self.directory / name / str(partition)).is_dir()
            ]
            for partition in marks
        }
        logs = {partition: [read_replica(disk, partition) for disk in found] for partition, found in disks.items()}
        starts = {partition: [read_start(disk, partition) for disk in found] for partition, found in disks.items()}
        check_disks(logs, marks, {}, starts)

    def story(self) -> str:
        """The last lines of every process, for a failure message."""
        parts = []
        for child in self.children.values():
            state = "running" if child.running else f"status {child.status}" if child.starts else "never started"
            parts.append(f"---- {child.name} ({state}, started {child.starts} times)\n{tail(child.text())}")
        return "\n".join(parts)


def tail(text: str, lines: int = _LOG_LINES) -> str:
    """The last lines of a text."""
    return "\n".join(text.splitlines()[-lines:])


@contextmanager
def running_cluster(directory: Path, zookeeper: str, **options: Any) -> Iterator[Cluster]:
    """A cluster that serves; every process ends with the block, and a failure shows what each wrote last."""
    assert shutil.which("setpriv"), "setpriv is missing (Debian: util-linux)"
    cluster = Cluster(directory, zookeeper, **options)
    try:
        cluster.set_up()
        yield cluster
        cluster.assert_calm()
        cluster.judge()
    except BaseException as error:
        error.add_note(cluster.story())
        raise
    finally:
        cluster.end()

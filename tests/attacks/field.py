"""What is attacked: a cluster of processes, with certificates and roles or without, or one `waltz dev`."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import attrs
import yaml

from tests.attacks.honest import acknowledged, last_id, missing
from tests.attacks.peers import WIDTH, Target
from tests.processes.cluster import ROOT, Child, Cluster, poll
from tests.witness.log import read_replica
from waltz_core.gateway.door import token_hash
from waltz_trio.cli.main import main
from waltz_trio.net.ports import HeldPorts

LIMITS: dict[str, object] = {
    # So that places are free again soon.
    "network.handshakeTimeout": 2000,
    "network.requestTimeout": 3000,
    # Any load fills the caches; full from the beginning on, they do not hide what an attack leaves behind.
    "server.transactionDataCacheSize": 2 << 20,
    "server.feedCacheSize": 1 << 20,
}
DEV_CACHES = 48 << 20  # bytes that the caches of a `waltz dev` take as they fill
OPEN, GUARDED, DEV, GATEWAY, PROXY = "open", "guarded", "dev", "gateway", "proxy"
FIELDS = (OPEN, GUARDED, DEV, GATEWAY, PROXY)
ATTACKERS = ("writer", "reader", "stranger")  # names of certificates that attack, where there are any
CALLERS = ("writer",)  # those whose tokens do, at a gateway
_HOSTS = "localhost,127.0.0.1"
_PARTITION = 0


@attrs.frozen
class Port:
    """One port."""

    name: str
    process: str
    number: int
    protocol: str


class Processes(Protocol):
    """What a field stands on."""

    children: dict[str, Child]


class Field:
    """The attacked processes, and the honest client beside the attack."""

    def __init__(
        self, directory: Path, processes: Processes, ports: list[Port], client: str, disks: list[Path]
    ) -> None:
        self.directory = directory
        self.ports = ports
        self.certificates: dict[str, Path] = {}  # by name, those that attack
        self.honest_certificates: Mapping[str, Path] = {}  # by protocol
        self.tokens: Mapping[str, str] = {}  # by name, of callers of a gateway
        self.key = ""  # of the cluster
        self.client_ids = 4_000_000, 5_000_000  # of who attacks, and of the honest peer in its place
        self.caches = 0  # bytes that a process may take for caches which any load fills
        self.patience = 3.0  # seconds with a connection that asks for nothing, as in `LIMITS`
        self.processes = processes
        self._disks = disks
        self._journal = directory / "honest.journal"
        self.honest = self._client("honest", client, str(_PARTITION))

    def _client(self, module: str, *arguments: str) -> Child:
        words = ["-m", f"tests.attacks.{module}", *arguments, str(self._journal)]
        return Child("honest", [sys.executable, *words], self.directory)

    def append_to(self, client: Path) -> None:
        """The honest client reaches the cluster with this configuration."""
        self.honest = self._client("honest", str(client), str(_PARTITION))

    def call_gateway(self, port: int, tokens: Mapping[str, str]) -> None:
        """The honest client is a caller of a gateway, and so are those who attack with a token."""
        self.tokens = tokens
        self.honest = self._client("honest_caller", str(port), tokens["honest"])

    # ---- processes -------------------------------------------------------------------------------

    @property
    def children(self) -> dict[str, Child]:
        """All processes, by name."""
        return self.processes.children

    def text(self, process: str) -> str:
        """What it has logged."""
        return self.children[process].text()

    def descriptors(self, process: str) -> int:
        """Open files and sockets of a process."""
        return len(os.listdir(f"/proc/{self.children[process].pid}/fd"))

    def memory(self, process: str) -> int:
        """Resident bytes of a process."""
        status = Path(f"/proc/{self.children[process].pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def cpu(self, process: str) -> float:
        """Seconds of processor time that a process has taken."""
        stat = Path(f"/proc/{self.children[process].pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    # ---- the honest client -----------------------------------------------------------------------

    def commits(self) -> int:
        """Appends of the honest client that were acknowledged."""
        return acknowledged(self._journal)

    def last(self) -> int:
        """The highest transaction id that it was told of."""
        return last_id(self._journal)

    def wait_commits(self, count: int) -> None:
        """Until so many more are."""
        begin = self.commits()
        poll(f"{count} more acknowledged appends", lambda: self.commits() >= begin + count)

    def judge(self) -> None:
        """End the honest client, and look for everything that it was promised.

        Raises:
            AssertionError: something is not on a majority of the disks, or a process complains of itself.
        """
        self.honest.interrupt()
        assert self.honest.wait() == 0, f"the honest client ended:\n{self.honest.text()[-3_000:]}"
        need = len(self._disks) // 2 + 1

        def lost() -> list[str]:
            copies = Counter(
                (entry.transaction_id, entry.data) for disk in self._disks for entry in read_replica(disk, _PARTITION)
            )
            return missing(self._journal, (one for one, count in copies.items() if count >= need))

        assert not lost(), lost()[:10]
        for child in self.children.values():
            assert child.running, f"{child.name} ended with status {child.status}"
            text = child.text()
            assert "an error in this process" not in text, f"{child.name} complains of itself"
            assert "Traceback" not in text, f"{child.name} wrote a traceback:\n{text[text.index('Traceback') :][:3000]}"

    # ---- others ----------------------------------------------------------------------------------

    def target(self, port: Port, attack: str, message: str, certificate: str, seconds: float) -> Target:
        """What an attacker is given: the key of the cluster only where certificates guard it."""
        guarded = bool(self.certificates)
        return Target(
            attack,
            port.protocol,
            port.number,
            seconds,
            message=message,
            certificate=str(self.certificates[certificate]) if certificate in self.certificates else "",
            token=self.tokens.get(certificate, ""),
            key=self.key if guarded else "",
            client_id=self.client_ids[0],
            victim=1 if guarded else 3_999_999,
        )

    def neighbour(self, target: Target, *, held: int, rate: float, cpu: float, limited: bool) -> dict[str, Any]:
        """What an honest peer as heavy as an attacker is given."""
        certificate = str(self.honest_certificates.get(target.protocol, ""))
        honest = attrs.evolve(target, attack="", certificate=certificate, key=self.key, client_id=self.client_ids[1])
        honest = attrs.evolve(honest, token=self.tokens.get("neighbour", ""))
        return {"target": attrs.asdict(honest), "held": held, "rate": rate, "cpu": cpu, "limited": limited}


@contextmanager
def running(module: str, given: Mapping[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """A peer as a process of its own, once it has begun; it ends by itself."""
    command = [sys.executable, "-m", f"tests.attacks.{module}", json.dumps(given)]
    peer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert peer.stdout is not None
    assert peer.stdout.readline() == "begun\n", f"{module} failed"
    try:
        yield peer
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            peer.wait(60)
        if peer.poll() is None:
            peer.kill()
            peer.wait()
        peer.stdout.close()


def result(peer: subprocess.Popen[str]) -> dict[str, Any]:
    """What a peer did, once it has ended."""
    assert peer.stdout is not None
    text = peer.stdout.read()
    assert peer.wait(60) == 0, "the peer failed"
    done: dict[str, Any] = json.loads(text)
    return done


# ---- fields ----------------------------------------------------------------------------------


class _Guarded(Cluster):
    """Every configuration holds the keys that `waltz certificates make` wrote for its process."""

    folder: Path

    def write_file(self, name: str, keys: Mapping[str, object]) -> Path:
        written = yaml.safe_load((self.folder / f"{name}.keys.yml").read_text())
        return super().write_file(name, {**keys, **written})


def _certificates(folder: Path, storage_nodes: int) -> None:
    """One for each process and each attacker; no rule matches the stranger's."""
    nodes = [word for number in range(storage_nodes) for word in ("--storage", f"storage-{number}={_HOSTS}")]
    clients = [word for name in ("client", "writer", "stranger") for word in ("--client", name)]
    words = [*nodes, "--server", f"server-0={_HOSTS}", "--admin", "tools", "--reader", "reader", *clients]
    assert main(["certificates", "make", str(folder), *words]) == 0
    roles = folder / "roles.yml"
    roles.write_text("".join(line for line in roles.read_text().splitlines(True) if "stranger" not in line))


@contextmanager
def _cluster(
    directory: Path,
    zookeeper: str,
    storage_nodes: int,
    *,
    guarded: bool,
    settings: Mapping[str, object] = LIMITS,
) -> Iterator[Field]:
    options: dict[str, Any] = {"storage_nodes": storage_nodes, "tls": False, "settings": settings, "flags": ()}
    kind: type[Cluster] = Cluster
    folder = directory / "certificates"
    if guarded:
        _certificates(folder, storage_nodes)
        kind = type("Guarded", (_Guarded,), {"folder": folder})
    cluster = kind(directory / "cluster", zookeeper, **options)
    try:
        cluster.directory.mkdir(exist_ok=True)
        cluster.set_up()
        server, storage = cluster.addresses["server-0"], cluster.addresses["storage-0"]
        ports = [
            Port("client", "server-0", server["server.port"], "client"),
            Port("storage", "storage-0", storage["storage.port"], "storage"),
            Port("admin", "storage-0", storage["storage.admin.port"], "admin"),
            Port("server http", "server-0", server["server.jetty.port"], "http"),
            Port("storage http", "storage-0", storage["storage.jetty.port"], "http"),
        ]
        disks = [cluster.directory / name for name in cluster.storage_names]
        field = Field(directory, cluster, ports, str(cluster.client_file), disks)
        field.key = _key(cluster)
        if guarded:
            field.ports = ports[:3]  # certificates and roles do not guard the HTTP ports
            field.certificates = {name: folder / f"{name}.pem" for name in ATTACKERS}
            tools = folder / "tools.pem"
            field.honest_certificates = {"client": folder / "client.pem", "storage": tools, "admin": tools}
        yield field
    except BaseException as error:
        error.add_note(cluster.story())
        raise
    finally:
        cluster.end()


@contextmanager
def _proxy(directory: Path, zookeeper: str, storage_nodes: int) -> Iterator[Field]:
    """A read proxy before a cluster that trusts it; the honest client goes through it, too."""
    settings = {**LIMITS, "server.trustProxies": True}
    with _cluster(directory, zookeeper, storage_nodes, guarded=False, settings=settings) as field:
        assert isinstance(field.processes, Cluster)
        cluster = field.processes
        ports = {key: cluster.ports.take() for key in ("server.port", "server.jetty.port")}
        number = ports["server.port"]
        region = {"cluster.root": "/proxy"}
        keys = {"server.host": "127.0.0.1", "server.advertisedEndpoint": f"127.0.0.1:{number}", **ports, **region}
        path = cluster.write_file("proxy", {**keys, "proxy.upstream.root": "/cluster"})
        cluster.child("proxy", "-m", "waltz_trio.cli.main", "proxy", "run", "-c", str(path)).start()
        field.ports = [
            Port("proxy", "proxy", number, "client"),
            Port("proxy http", "proxy", ports["server.jetty.port"], "http"),
        ]
        poll("the proxy is healthy", lambda: _healthy(ports["server.jetty.port"]))
        field.client_ids = 40_000, 50_000  # of those that the proxy has taken for its clients, and gave to nobody yet
        field.append_to(cluster.write_file("region-client", region))
        yield field


def _healthy(port: int) -> bool:
    """Whether a process that may only be about to listen says that all is well."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection), contextlib.suppress(OSError):
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    return False


def _key(cluster: Cluster) -> str:
    """The key of the cluster, as the operator's tool shows it."""
    text = cluster.tool("zookeeper", "show-cluster-key", "-c", str(cluster.tools_file))
    found = re.search(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text)
    assert found is not None, text
    return found.group()


@contextmanager
def _gateway(directory: Path) -> Iterator[Field]:
    """A gateway before a `waltz dev`; whoever calls it shows a token."""
    dev = _Dev(directory)
    tokens = {name: f"token-of-{name}" for name in ("honest", "neighbour", *CALLERS)}
    held = HeldPorts()
    number, health = held.take(), held.take()
    rule = {"read": ["pay"], "append": ["pay"]}
    try:
        url = dev.begin()
        configuration = {
            "gateway.port": number,
            "gateway.healthPort": health,
            "gateway.connectionsMax": WIDTH // 2,
            # What it may hold of callers, small, so that the memory which an attack leaves is not hidden in it.
            "gateway.bytesMax": 16 << 20,
            "gateway.feedsPerCaller": 20,
            "gateway.topics": [{"name": "pay", "cluster": url, "partitions": 0}],
            "gateway.access": [
                {"tokenSha256": token_hash(token), "name": name, **rule} for name, token in tokens.items()
            ],
        }
        path = directory / "gateway.yml"
        path.write_text(yaml.safe_dump(configuration))
        command = [sys.executable, "-m", "waltz_trio.cli.main", "gateway", "run", "-c", str(path)]
        child = dev.children["gateway"] = Child("gateway", command, directory)
        child.start()
        poll("the gateway prints its address", lambda: "http://127.0.0.1" in child.text() or None)
        attacked = [Port("gateway", "gateway", number, "gateway"), Port("gateway http", "gateway", health, "http")]
        field = Field(directory, dev, attacked, "", [directory / "data" / f"storage-{at}" for at in range(3)])
        field.call_gateway(number, tokens)
        yield field
    finally:
        dev.end()
        held.release()


class _Dev:
    def __init__(self, directory: Path) -> None:
        words = ["dev", "--port", "0", "--partitions", "1", "--directory", str(directory / "data")]
        command = [sys.executable, "-m", "waltz_trio.cli.main", *words]
        self.child = Child("dev", command, directory)
        self.children = {"dev": self.child}

    def begin(self) -> str:
        """Start it; returns its address."""
        self.child.start()
        found = poll(
            "`waltz dev` prints its address",
            lambda: re.search(r"waltz://127.0.0.1:\d+\S*(?=\n)", self.child.text()),
        )
        return found.group()

    def end(self) -> None:
        """End it, and what stands before it."""
        for child in self.children.values():
            child.end()


@contextmanager
def _dev(directory: Path) -> Iterator[Field]:
    dev = _Dev(directory)
    try:
        url = dev.begin()
        console = poll("and that of its console", lambda: re.search(r"http://localhost:(\d+)", dev.child.text()))
        ports = [
            Port("dev", "dev", int(url.partition("?")[0].rpartition(":")[2]), "client"),
            Port("dev http", "dev", int(console.group(1)), "http"),
        ]
        field = Field(directory, dev, ports, url, [directory / "data" / f"storage-{at}" for at in range(3)])
        field.caches = DEV_CACHES
        field.patience = 30.0  # it has the limits of a configuration that says nothing
        yield field
    finally:
        dev.end()


@contextmanager
def field_of(name: str, directory: Path, zookeeper: str, *, storage_nodes: int = 3) -> Iterator[Field]:
    """A field that serves, its honest client under way; judged when the block has ended well."""
    directory.mkdir(parents=True, exist_ok=True)
    kinds: dict[str, Callable[[], AbstractContextManager[Field]]] = {
        OPEN: lambda: _cluster(directory, zookeeper, storage_nodes, guarded=False),
        GUARDED: lambda: _cluster(directory, zookeeper, storage_nodes, guarded=True),
        PROXY: lambda: _proxy(directory, zookeeper, storage_nodes),
        DEV: lambda: _dev(directory),
        GATEWAY: lambda: _gateway(directory),
    }
    made = kinds[name]()
    with made as field:
        try:
            field.honest.start()
            field.wait_commits(50)
            yield field
            field.judge()
        finally:
            field.honest.end()

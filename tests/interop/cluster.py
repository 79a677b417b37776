"""A cluster whose processes are ours or the original's, each replaceable by the other kind on the same files."""

from __future__ import annotations

import contextlib
import enum
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.interop.installation import DRIVER, SERVER, STORAGE, TOOLS, Installation
from tests.interop.stores import Stores
from tests.processes.cluster import ROOT, Cluster, poll, tail
from waltz_core.zookeeper.znodes import decode_server_descriptor

PATIENCE = 600.0  # seconds; a Java machine that starts slows everything down

# Store sessions and segments end often, so that both kinds begin and end them side by side.
SETTINGS = {
    "zookeeper.sessionTimeout": 6000,
    "client.connectTimeout": 60_000,
    "storage.checkpointInterval": 300,
    "storage.segment.size.threshold": 200_000,
}


class Kind(enum.Enum):
    """Whose program a process runs."""

    OURS = "ours"
    JAVA = "0.13.2"

    @property
    def other(self) -> Kind:
        """The other kind."""
        return Kind.JAVA if self is Kind.OURS else Kind.OURS


class MixedCluster(Cluster):
    """A cluster of both kinds. Every process has one configuration file, read unchanged by either program.

    Args:
        directory: as `Cluster`.
        zookeeper: as `Cluster`.
        installation: of the original.
        storage: kinds of `storage-0`…
        server: kinds of `server-0`…
        running: how many of the servers `set_up` starts, the first ones; None = all.
        tools: whose tools `tool` runs, and thereby `set_up`.
        stores: every process shows a key and trusts only those of the others, all in the original's key stores.
        certificates: a folder of `waltz certificates` with the key stores of every process, and roles.
        options: of `Cluster`.
    """

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        installation: Installation,
        *,
        storage: tuple[Kind, ...],
        server: tuple[Kind, ...],
        running: int | None = None,
        tools: Kind = Kind.OURS,
        stores: bool = False,
        certificates: Path | None = None,
        **options: Any,
    ) -> None:
        self.stores = Stores(directory / "stores") if stores else None
        self.certificates = certificates
        self.tools = tools
        self.installation = installation
        self.zookeeper = zookeeper
        options.setdefault("tls", False)  # no key in any file: as the original is usually run
        options.setdefault("settings", SETTINGS)
        super().__init__(directory, zookeeper, storage_nodes=len(storage), servers=len(server), **options)
        self._commands = {name: child.command for name, child in self.children.items()}
        self.kinds: dict[str, Kind] = {}
        self._running = len(server) if running is None else running
        names = (*self.storage_names, *self.server_names)
        for name, kind in zip(names, (*storage, *server), strict=True):
            self.assign(name, kind)

    def assign(self, name: str, kind: Kind) -> None:
        """From its next start a process runs the program of `kind`."""
        self.kinds[name] = kind
        main, heap = (STORAGE, "256m") if name in self.storage_names else (SERVER, "512m")
        path = str(self.directory / f"{name}.yml")
        command = self._commands[name] if kind is Kind.OURS else self.installation.command(main, path, heap=heap)
        self.children[name].command = list(command)

    def only_owner(self) -> str:
        """The server that serves every partition; between two store sessions there is none for a moment."""
        owners = poll("one server serves", lambda: set(self.owners().values()) or None)
        (owner,) = owners
        return owner

    def set_up(self) -> None:
        """As `Cluster.set_up`, with the first servers only."""
        everyone = self.server_names
        self.server_names = everyone[: self._running]
        super().set_up()
        self.server_names = everyone

    def tool(self, *arguments: str) -> str:
        """As `Cluster.tool`, of the kind given."""
        return super().tool(*arguments) if self.tools is Kind.OURS else self.java_tool(*arguments)

    def wait_up(self, name: str) -> None:
        """As `Cluster.wait_up`; on a busy machine the original may need long."""
        child = self.children[name]

        def answers() -> bool:
            assert child.running, f"{name} ended with status {child.status}:\n{tail(child.text())}"
            return self.get(name, "/ping") is not None

        poll(f"{name} answers", answers, PATIENCE)

    def wait_healthy(self, patience: float = PATIENCE) -> None:
        """As `Cluster.wait_healthy`; at once where no server runs."""
        if self._answering():
            super().wait_healthy(patience)

    def wait_commits(self, count: int, partition: int = 0, patience: float = PATIENCE) -> None:
        """As `Cluster.wait_commits`."""
        super().wait_commits(count, partition, patience)

    def _answering(self) -> list[str]:
        return [name for name in super()._answering() if self.children[name].starts]

    def gauges(self, server: str) -> dict[str, Any]:
        """As `Cluster.gauges`; the original shows the health of partitions in another place, and too early."""
        found = super().gauges(server)
        if found and self.kinds[server] is Kind.JAVA:
            for number, healthy in (self.health(server) or {}).get("partitions", {}).items():
                group = f"waltz-server.partition-{number}"
                recovered = found.get(f"{group}.high-water-mark", -2) >= -1
                found[f"{group}.healthy"] = healthy and recovered and f"{group}.generation" in found
        return found

    def _tls(self, prefix: str, role: str, name: str | None = None) -> dict[str, object]:
        return super()._tls(prefix, role, name) if self.stores is None else self.stores.keys(prefix, role)

    def write_file(self, name: str, keys: Mapping[str, object]) -> Path:
        """As `Cluster.write_file`."""
        if self.certificates is None:
            return super().write_file(name, keys)
        stores = yaml.safe_load((self.certificates / f"{name}.java.yml").read_text())
        rules = {"security.roles": str(self.certificates / "roles.yml")} if name in self.addresses else {}
        return super().write_file(name, {**keys, **stores, **rules})

    def add_proxy(self, name: str) -> Path:
        """Start `waltz proxy run` with a root of its own; returns the configuration of its clients, of either kind."""
        root = {"cluster.root": f"/region/{name}"}
        ports = {key: self.ports.take() for key in ("server.port", "server.jetty.port")}
        self.addresses[name] = ports
        advertised = self._advertise(name, ports["server.port"])
        keys = {"server.host": "127.0.0.1", "server.advertisedEndpoint": advertised, **ports}
        keys |= {**root, "proxy.upstream.root": "/cluster", **self._tls("client.ssl.", "client")}
        path = self.write_file(name, {**keys, **self._tls("server.ssl.", "server", name)})
        self.child(name, "-m", "waltz_trio.cli.main", "proxy", "run", "-c", str(path))
        self.start(name)
        return self.write_file(f"{name}-client", {**root, **self._tls("client.ssl.", "client")})

    # ---- life ------------------------------------------------------------------------------------

    def stop(self, name: str) -> None:
        """End a process as an operator does; returns when it is gone, from ZooKeeper too if it is a server.

        The original has no signal handler: it ends at once, and its registration with its ZooKeeper session.
        A successor on the same address must wait for that (zk-D9).
        """
        child = self.children[name]
        if self.kinds[name] is Kind.OURS:
            child.stop()
        else:
            child.interrupt(signal.SIGTERM)
            child.wait()
        if name in self.server_names:
            self.wait_unregistered(name)

    def replace(self, name: str, kind: Kind) -> None:
        """Stop a process and start the program of `kind` on its configuration, ports and directory."""
        self.stop(name)
        self.assign(name, kind)
        self.start(name)
        self.wait_healthy()

    def wait_unregistered(self, server: str) -> None:
        """Wait until ZooKeeper no longer shows a server."""
        port = self.addresses[server]["server.port"]
        with self._kazoo() as zk:
            poll(f"{server} is gone from ZooKeeper", lambda: port not in self._registered(zk).values())

    def registered(self) -> dict[int, str]:
        """Server id → name, of the servers that ZooKeeper shows; the lowest id is the coordinator."""
        names = {self.addresses[name]["server.port"]: name for name in self.server_names}
        with self._kazoo() as zk:
            return {server_id: names[port] for server_id, port in self._registered(zk).items()}

    def _registered(self, zk: KazooClient) -> dict[int, int]:
        found: dict[int, int] = {}
        for child in zk.get_children("/cluster/serverDescriptors"):
            with contextlib.suppress(NoNodeError):  # it has gone since
                data, _ = zk.get(f"/cluster/serverDescriptors/{child}")
                descriptor = decode_server_descriptor(data)
                found[descriptor.server_id] = descriptor.endpoint.port
        return found

    @contextmanager
    def _kazoo(self) -> Iterator[KazooClient]:
        client = KazooClient(hosts=self.zookeeper, timeout=10)
        client.start(timeout=10)
        try:
            yield client
        finally:
            client.stop()
            client.close()

    # ---- the original's programs -----------------------------------------------------------------

    def java_tool(self, noun: str, *arguments: str, status: int = 0) -> str:
        """Run a tool of the original to its end; returns what it wrote to both streams.

        Raises:
            AssertionError: the exit status is another than `status`.
        """
        return self._java(TOOLS[noun], *arguments, status=status)

    def drive(self, *arguments: str, config: Path | None = None) -> str:
        """Run our driver of the original's client to its end; returns its lines."""
        return self._java(DRIVER, arguments[0], "--config", str(config or self.client_file), *arguments[1:], status=0)

    def _java(self, main: str, *arguments: str, status: int) -> str:
        command = self.installation.command(main, *arguments)
        done = subprocess.run(
            ["setpriv", "--pdeathsig", "KILL", *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=ROOT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        text = f"{main} {' '.join(arguments)}: status {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.returncode == status, text
        return done.stdout

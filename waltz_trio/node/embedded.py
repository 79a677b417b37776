"""A whole cluster in this process: real sockets, real TLS, real files, a znode store instead of ZooKeeper.

For development (`waltz dev`), tests and demonstrations. Single nodes can be killed and restarted; a kill
resets the node's sockets, cancels its tasks without any flush, close or sync, and drops all its memory, so
that a restart has its files alone to go by.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import trio

from waltz_core.base.errors import ConfigError, WaltzError
from waltz_core.base.ids import Endpoint
from waltz_core.base.record import record
from waltz_core.zookeeper.paths import cluster_paths
from waltz_core.zookeeper.store_metadata import StoreChange, full_store
from waltz_trio.base import durable
from waltz_trio.base.background import background_nursery
from waltz_trio.base.log import reporter
from waltz_trio.config.config import Config
from waltz_trio.net.certificates import host_names, issue, make_ca
from waltz_trio.net.channel import NetLimits
from waltz_trio.net.driver import descriptors
from waltz_trio.net.key_pair import KeyPair
from waltz_trio.net.ports import HeldPorts
from waltz_trio.net.tls import ClientTls, TlsSettings, local_names
from waltz_trio.node.process import NodeProcess
from waltz_trio.node.server import ServerProcess
from waltz_trio.node.storage_node import StorageProcess
from waltz_trio.ports.admin import PortError, open_admin
from waltz_trio.zk.admin import change_store, create_cluster, read_store_params
from waltz_trio.zk.client import ZnodeClient, open_znode_client
from waltz_trio.zk.embedded import EmbeddedZnodes, open_embedded_znodes

HOST = "127.0.0.1"
ROOT = "/waltz"
DEFAULT_PARTITIONS = 4
_FORMAT = 1
_DESCRIPTION = "cluster.json"
_SESSION_TIMEOUT_MS = 2_000  # waited for only where no other server saw one end; nobody competes for the processor
_POLL = 0.01  # seconds between looks at the machines while waiting for them

P = TypeVar("P", bound=NodeProcess)


@record
class Layout:
    """What a directory was made for; kept in `cluster.json`."""

    partitions: int
    storage_ports: tuple[tuple[int, int], ...]  # (data, admin) of each storage node: they stand in znodes
    complete: bool  # every replica was assigned

    @property
    def storages(self) -> tuple[str, ...]:
        """Connect strings of the storage nodes."""
        return tuple(f"{HOST}:{port}" for port, _ in self.storage_ports)


class _Slot(Generic[P]):
    """A place for one process, which may be dead."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process: P | None = None
        self.over = trio.Event()  # the process that was here last has ended
        self.expected = False  # its end is no surprise
        self.over.set()


def _slot(slots: Sequence[_Slot[P]], index: object, what: str) -> _Slot[P]:
    """A node of the cluster by its number.

    Raises:
        TypeError: no whole number.
        ValueError: there is none of that number.
    """
    if isinstance(index, bool) or not isinstance(index, int):
        raise TypeError(f"the number of a {what} is a whole number, found {index!r} ({type(index).__name__})")
    if not 0 <= index < len(slots):
        raise ValueError(f"there is no {what} {index}: this cluster has 0 to {len(slots) - 1}")
    return slots[index]


class EmbeddedCluster:
    """A running cluster. Made by `embedded_cluster`."""

    def __init__(
        self, directory: Path, layout: Layout, znodes: EmbeddedZnodes, nursery: trio.Nursery, options: _Options
    ) -> None:
        self.directory = directory
        self.layout = layout
        self.znodes = znodes
        self.key = bytes(16)  # of the cluster, once started
        self.partitions = layout.partitions
        self.report = reporter("cluster")
        self._nursery = nursery
        self._options = options
        self._server_ports = [options.port] + [0] * (options.servers - 1)
        self._servers: list[_Slot[ServerProcess]] = [_Slot(f"server-{i}") for i in range(options.servers)]
        self._storages: list[_Slot[StorageProcess]] = [_Slot(f"storage-{i}") for i in range(len(layout.storage_ports))]

    @property
    def url(self) -> str:
        """The address of the first server, with the authority's file; that is all `open_client` needs."""
        return self.url_of(0)

    def url_of(self, server: int) -> str:
        """The address of one server; its port stays the same over restarts."""
        return f"waltz://{self._options.host}:{self._server_ports[server]}?ca={quote(str(self._tls('ca.pem')))}"

    @property
    def server_count(self) -> int:
        """Servers, dead ones included."""
        return len(self._servers)

    @property
    def storage_count(self) -> int:
        """Storage nodes, dead ones included."""
        return len(self._storages)

    def server(self, index: int) -> ServerProcess | None:
        """A running server; None while it is dead."""
        return self._servers[index].process

    def storage(self, index: int) -> StorageProcess | None:
        """A running storage node; None while it is dead."""
        return self._storages[index].process

    # ---- killing and restarting ------------------------------------------------------------------

    async def kill_server(self, index: int) -> None:
        """End a server as `kill -9` would; the others notice at once, and take its partitions over."""
        await self._kill(_slot(self._servers, index, "server"))

    async def stop_server(self, index: int) -> None:
        """End a server in order."""
        await self._stop(_slot(self._servers, index, "server"))

    async def restart_server(self, index: int) -> None:
        """Start a server that was killed or stopped, on the same port."""
        slot = _slot(self._servers, index, "server")
        await self._launch(slot, ServerProcess(self._server_config(index), self.znodes, name=slot.name))

    async def kill_storage(self, index: int) -> None:
        """End a storage node as `kill -9` would: what it did not sync may be lost."""
        await self._kill(_slot(self._storages, index, "storage node"))

    async def stop_storage(self, index: int) -> None:
        """End a storage node in order."""
        await self._stop(_slot(self._storages, index, "storage node"))

    async def restart_storage(self, index: int) -> None:
        """Start a storage node that was killed or stopped, from its files."""
        slot = _slot(self._storages, index, "storage node")
        await self._launch(slot, StorageProcess(self._storage_config(index), self.znodes, name=slot.name))

    async def _launch(self, slot: _Slot[P], process: P) -> None:
        if slot.process is not None:
            raise ValueError(f"{slot.name} runs already: kill it or stop it before it is restarted")
        slot.expected, slot.over = False, trio.Event()
        slot.process = process
        await self._nursery.start(self._keep, slot, process)

    async def _keep(self, slot: _Slot[P], process: P, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        try:
            reason = await process.run(task_status=task_status)
        finally:
            slot.process = None
            slot.over.set()
        if not slot.expected:
            raise WaltzError(f"{slot.name} cannot continue: {reason or 'it ended by itself'}")

    async def _kill(self, slot: _Slot[P]) -> None:
        if slot.process is not None:
            slot.expected = True
            slot.process.kill()
        await slot.over.wait()

    async def _stop(self, slot: _Slot[P]) -> None:
        if slot.process is not None:
            slot.expected = True
            slot.process.shutdown()
            with trio.move_on_after(self._options.patience):
                await slot.over.wait()
            if slot.process is not None:
                slot.process.cancel()
        await slot.over.wait()

    # ---- start and end ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Start every node; create the cluster where the directory is new.

        Raises:
            ConfigError: a port is taken, or a file cannot be used.
        """
        async with open_znode_client(self.znodes) as client:
            await self._create(client)
        for index in range(len(self._storages)):
            await self.restart_storage(index)
        if not self.layout.complete:
            await self._assign()
            self.layout = _with_complete(self.layout)
            write_layout(self.directory, self.layout)
        for index in range(len(self._servers)):
            await self.restart_server(index)

    async def stop(self) -> None:
        """End every node in order: servers first."""
        async with trio.open_nursery() as nursery:
            for server in self._servers:
                nursery.start_soon(self._stop, server)
        async with trio.open_nursery() as nursery:
            for storage in self._storages:
                nursery.start_soon(self._stop, storage)

    async def wait_ready(self) -> None:
        """Wait until every partition can be appended to."""
        while not self.ready():  # noqa: ASYNC110  # machines have no listeners; they are looked at
            await trio.sleep(_POLL)

    def ready(self) -> bool:
        """Every partition is owned by a running server with a usable store session."""
        healthy: set[int] = set()
        for slot in self._servers:
            snapshot = slot.process.snapshot() if slot.process is not None else None
            if snapshot is not None:
                healthy.update(p.partition_id for p in snapshot.partitions if p.healthy)
        return len(healthy) == self.partitions

    async def _create(self, client: ZnodeClient) -> None:
        """The znodes of the cluster, unless they are there; a crash in the middle is made up for."""
        layout, paths = self.layout, cluster_paths(ROOT)
        if await client.exists(paths.root) is None:
            await create_cluster(client, paths, "waltz dev", layout.partitions)
        store = await read_store_params(client, paths)
        if store.num_partitions != layout.partitions:
            raise ConfigError(f"{self.directory}: {_DESCRIPTION} and the znodes are of different clusters")
        self.key = store.key
        if not layout.complete:
            groups = [(storage, group) for group, storage in enumerate(layout.storages)]
            admin_ports = [
                (storage, admin) for storage, (_, admin) in zip(layout.storages, layout.storage_ports, strict=True)
            ]
            maps = full_store(layout.partitions, groups, admin_ports)
            await change_store(
                client, paths, lambda before, count: StoreChange(maps, ("group", "assignment", "connection"))
            )

    async def _assign(self) -> None:
        """Tell every storage node its partitions, as an administrator does with a real cluster."""
        tls = ClientTls(TlsSettings(**self._own_tls(), ca=str(self._tls("ca.pem"))))
        wanted = set(range(self.partitions))
        for _, admin_port in self.layout.storage_ports:
            endpoint = Endpoint(HOST, admin_port)
            try:
                async with open_admin(endpoint, tls, key=self.key, num_partitions=self.partitions) as admin:
                    await admin.assign(sorted(wanted - set(await admin.assigned())))
            except PortError as error:
                raise ConfigError(f"a storage node does not answer: {error}") from error

    # ---- configuration ---------------------------------------------------------------------------

    def _tls(self, name: str) -> Path:
        return self.directory / "tls" / name

    def _own_tls(self) -> dict[str, Any]:
        return {"certificate": str(self._tls("node.pem")), "key": str(self._tls("node.key"))}

    def _config(self, name: str, values: Mapping[str, object]) -> Config:
        nodes = len(self.layout.storage_ports) + self._options.servers
        share = min(NetLimits().connections_max, max(8, descriptors() // 2 // nodes))
        shared: dict[str, object] = {
            "zookeeper.connectString": "in this process",
            "zookeeper.sessionTimeout": _SESSION_TIMEOUT_MS,
            "cluster.root": ROOT,
            # All nodes share the descriptors of this process, and all peers connect from one address.
            "network.connectionsMax": share,
            "network.connectionsPerAddressMax": share,
        }
        return Config({**shared, **values, **self._options.settings}, name)

    def _server_config(self, index: int) -> Config:
        tls = {f"server.ssl.{key}": value for key, value in self._own_tls().items()}
        port = self._server_ports[index] = self._server_ports[index] or self._options.ports.take()
        values = {
            **tls,
            "server.ssl.ca": str(self._tls("ca.pem")),
            "server.ssl.requireClientCertificate": False,  # clients get the authority, no more
            "server.host": self._options.host,
            "server.advertisedEndpoint": f"{self._options.host}:{port}",
            "server.port": port,
            "server.jetty.port": 0,
        }
        return self._config(f"server-{index}", values)

    def _storage_config(self, index: int) -> Config:
        tls = {f"storage.ssl.{key}": value for key, value in self._own_tls().items()}
        port, admin_port = self.layout.storage_ports[index]
        values = {
            **tls,
            "storage.ssl.ca": str(self._tls("ca.pem")),
            "storage.host": HOST,
            "storage.advertisedEndpoint": f"{HOST}:{port}",
            "storage.port": port,
            "storage.admin.port": admin_port,
            "storage.jetty.port": 0,
            "storage.directory": str(self.directory / f"storage-{index}"),
        }
        return self._config(f"storage-{index}", values)


@record
class _Options:
    """How to run what the directory holds."""

    servers: int
    port: int
    settings: dict[str, object]
    patience: float
    host: str  # of servers; storage nodes stay on this machine
    ports: HeldPorts


@asynccontextmanager
async def embedded_cluster(
    directory: str | os.PathLike[str] | None = None,
    *,
    partitions: int | None = None,
    storage_nodes: int | None = None,
    servers: int = 1,
    port: int = 0,
    host: str = HOST,
    settings: Mapping[str, object] | None = None,
    ready: bool = True,
) -> AsyncIterator[EmbeddedCluster]:
    """A cluster in this process, running inside the block.

    Args:
        directory: where it keeps its data; a directory that holds a cluster continues it. None = a
            temporary one that is removed at the end.
        partitions: of a new cluster (4); must be the number of an old one.
        storage_nodes: of a new cluster (3); must be the number of an old one. Each holds every partition.
        servers: how many to run.
        port: of the first server; 0 = a free one.
        host: name or address that servers listen at and clients reach them by; by default, this machine alone does.
        settings: further configuration keys for every node.
        ready: wait until every partition can be appended to.

    Raises:
        ConfigError: the directory holds something else, or a cluster with other numbers; a port is taken.
    """
    _check_count("server", "servers", servers)
    _check_count("partition", "partitions", partitions)
    _check_count("storage node", "storage_nodes", storage_nodes)
    if not isinstance(directory, str | os.PathLike | None):
        raise TypeError(f"directory: expected the path of a folder, or None, found {directory!r}")
    if not isinstance(settings, Mapping | None):
        raise TypeError(f"settings: expected a mapping of configuration keys, found {settings!r}")
    if host in ("", "0.0.0.0", "::"):
        raise ConfigError(f"host: name one address at which clients reach this machine, not {host!r}")
    async with contextlib.AsyncExitStack() as stack:
        if directory is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="waltz-dev-"))
        ports = stack.enter_context(HeldPorts())
        path, layout = open_directory(directory, partitions, storage_nodes, ports)
        make_certificates(path / "tls", host)
        znodes = await stack.enter_async_context(open_embedded_znodes(path / "znodes"))
        nursery = await stack.enter_async_context(background_nursery())
        options = _Options(servers, port, dict(settings or {}), 5.0, host, ports)
        cluster = EmbeddedCluster(path, layout, znodes, nursery, options)
        await cluster.start()
        if ready:
            await cluster.wait_ready()
        try:
            yield cluster
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(4 * options.patience):
                await cluster.stop()


def _check_count(name: str, argument: str, count: object) -> None:
    """See that it is a number of nodes or partitions, or left to a default."""
    if count is None and argument != "servers":
        return
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"{argument} is a whole number, found {count!r} ({type(count).__name__}); write {argument}=3")
    if count < 1:
        raise ConfigError(f"a cluster needs at least one {name}, found {argument}={count}")


# ---- the directory ---------------------------------------------------------------------------


def open_directory(
    directory: str | os.PathLike[str], partitions: int | None, storage_nodes: int | None, ports: HeldPorts
) -> tuple[Path, Layout]:
    """The absolute path of a directory and its layout; a new or empty one is made ready for a new cluster.

    The ports of its storage nodes are held in `ports`.

    Raises:
        ConfigError: it holds something else, or a cluster with other numbers.
    """
    path = Path(directory).absolute()
    for name, number in (("partition", partitions), ("storage node", storage_nodes)):
        if number is not None and number < 1:
            raise ConfigError(f"a cluster needs at least one {name}")
    description = path / _DESCRIPTION
    if description.exists():
        layout = read_layout(path)
        for name, asked, actual in (
            ("partitions", partitions, layout.partitions),
            ("storage nodes", storage_nodes, len(layout.storage_ports)),
        ):
            if asked is not None and asked != actual:
                raise ConfigError(f"{path} holds a cluster whose number of {name} is {actual}, not {asked}")
        for pair in layout.storage_ports:
            for port in pair:
                ports.hold(port)  # one that is taken is reported by the node that cannot listen there
    else:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"{path} exists and holds no cluster ({_DESCRIPTION} is missing)")
        durable.make_directories(path)
        count = 3 if storage_nodes is None else storage_nodes
        layout = Layout(
            partitions or DEFAULT_PARTITIONS, tuple((ports.take(), ports.take()) for _ in range(count)), False
        )
        write_layout(path, layout)
    for index in range(len(layout.storage_ports)):
        durable.make_directory(path / f"storage-{index}")
    durable.sync_directory(path)  # before anything in them is acknowledged
    return path, layout


def read_layout(path: Path) -> Layout:
    """Read `cluster.json`.

    Raises:
        ConfigError: it is damaged, or of a later version.
    """
    try:
        description = json.loads((path / _DESCRIPTION).read_text())
        if description["format"] != _FORMAT:
            raise ConfigError(
                f"{path}: {_DESCRIPTION} has format {description['format']}, this program knows {_FORMAT}"
            )
        ports = tuple((int(data), int(admin)) for data, admin in description["storagePorts"])
        return Layout(int(description["partitions"]), ports, bool(description["complete"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: {_DESCRIPTION} cannot be read: {error!r}") from error


def write_layout(path: Path, layout: Layout) -> None:
    """Replace `cluster.json` durably."""
    content = {
        "format": _FORMAT,
        "partitions": layout.partitions,
        "storagePorts": layout.storage_ports,
        "complete": layout.complete,
    }
    durable.replace_file(path / _DESCRIPTION, json.dumps(content, indent=2).encode())


def _with_complete(layout: Layout) -> Layout:
    return Layout(layout.partitions, layout.storage_ports, True)


def make_certificates(directory: Path, host: str = HOST) -> None:
    """An authority of the cluster and one certificate for all its nodes, unless they are there for this host."""
    durable.make_directories(directory)
    node_file = directory / "node.pem"
    if node_file.exists() and (host == HOST or host in host_names(node_file.read_bytes())):
        return
    ca_files = directory / "ca.pem", directory / "ca.key"
    if not ca_files[0].exists():
        ca = make_ca("Waltz development cluster")
        durable.replace_file(ca_files[1], ca.key)
        durable.replace_file(ca_files[0], ca.certificate)
    ca = KeyPair(ca_files[0].read_bytes(), ca_files[1].read_bytes())
    node = issue(ca, "waltz node", tuple(dict.fromkeys((*local_names(), host))))
    # The certificate says that the key is there: it comes last.
    durable.replace_file(directory / "node.key", node.key)
    durable.replace_file(node_file, node.certificate)

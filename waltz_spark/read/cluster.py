"""A live cluster as a reader sees it: committed marks, store sessions, where replicas are."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar
from urllib.parse import urlencode
from uuid import UUID

import attrs
import trio

from waltz_core.base.errors import ConfigError, WaltzError
from waltz_core.base.ids import Endpoint, parse_endpoint
from waltz_core.base.record import record
from waltz_core.wire.client_codec import EXTENDED
from waltz_core.wire.client_messages import ClusterInfoResponse
from waltz_core.zookeeper.paths import cluster_paths
from waltz_spark.base.errors import OptionError, PipelineError, SourceRefusedError, UnreachableError
from waltz_spark.base.planning import Place, ServerPlace, StoragePlace
from waltz_spark.read.options import Options
from waltz_spark.read.ports import AdminPort, ClientPort
from waltz_trio.client.connect import parse_url
from waltz_trio.config.config import Config
from waltz_trio.net.tls import ClientTls, TlsSettings
from waltz_trio.zk.admin import ClusterDump, read_cluster, read_store_params
from waltz_trio.zk.client import NoNodeError, ZnodeError, ZnodeRefusedError, open_znode_client
from waltz_trio.zk.security import ZkSecurity, zookeeper_security

_SESSION_TIMEOUT_MS = 30_000
_PAUSE, _PAUSE_MAX = 0.25, 2.0  # seconds before servers are asked again; doubled each time
_OWN_KEYS = ("zookeeper.connectString", "zookeeper.sessionTimeout")
_UNKNOWN_SESSION = 1 << 62  # a session without replicas, so that each is read to its own mark only

T = TypeVar("T")


@record
class Marks:
    """The latest answers of the servers, by partition."""

    ends: tuple[int, ...]  # id behind the last committed one
    sessions: tuple[int, ...]  # store session of that answer


@record
class _Map:
    """Servers and storage nodes by partition."""

    servers: tuple[Endpoint | None, ...]  # by partition; None where no server owns it
    nodes: tuple[tuple[Endpoint, ...], ...]  # admin ports of the replicas, by partition
    sessions: tuple[int, ...]  # as in ZooKeeper; -1 where only the server knows it
    replica_counts: tuple[int, ...] | None = None  # by partition; None where only the server knows them


class Connection(Protocol):
    """The options that name a running cluster."""

    @property
    def url(self) -> str | None: ...
    @property
    def zookeeper(self) -> str | None: ...
    @property
    def cluster_root(self) -> str | None: ...
    @property
    def zookeeper_config(self) -> str | None: ...
    @property
    def ssl_ca(self) -> str | None: ...
    @property
    def ssl_certificate(self) -> str | None: ...
    @property
    def ssl_key(self) -> str | None: ...
    @property
    def ssl_verify(self) -> bool | None: ...


def _tls_of(options: Connection) -> TlsSettings:
    tls = attrs.evolve(
        parse_url(options.url)[1] if options.url else TlsSettings(pin_loopback=True),
        prefix="ssl.",
        certificate=options.ssl_certificate,  # storage nodes may ask for one
        key=options.ssl_key,
    )
    if options.ssl_ca is not None:
        tls = attrs.evolve(tls, ca=options.ssl_ca)
    if options.ssl_verify is not None:
        tls = attrs.evolve(tls, verify=options.ssl_verify)
    return tls


def _zookeeper_keys(options: Connection) -> dict[str, object]:
    """The keys of the `zookeeperConfig` file for connections to ZooKeeper, without its address.

    Raises:
        OptionError: it cannot be used.
    """
    if options.zookeeper_config is None:
        return {}
    try:
        keys = Config.load(options.zookeeper_config).under("zookeeper.")
    except ConfigError as error:
        raise OptionError(f"zookeeperConfig: {error}") from error
    return {key: value for key, value in keys.items() if key not in _OWN_KEYS}


def _security(options: Connection) -> ZkSecurity:
    try:
        return zookeeper_security(Config(_zookeeper_keys(options), "zookeeperConfig"))
    except ConfigError as error:
        raise OptionError(f"zookeeperConfig: {error}") from error


def shown_key(options: Connection, timeout: float) -> UUID | None:
    """The key of a running cluster; None if nobody shows it to us, or answers within so many seconds."""
    try:
        return _key_from_server(options, timeout) if options.url else _key_from_zookeeper(options, timeout)
    except OptionError:
        raise
    except WaltzError:
        return None


def _key_from_server(options: Connection, timeout: float) -> UUID | None:
    assert options.url is not None
    with ClientPort(parse_url(options.url)[0], ClientTls(_tls_of(options)), timeout) as port:
        key = port.cluster().key
    return key if key.int else None


def _key_from_zookeeper(options: Connection, timeout: float) -> UUID | None:
    assert options.zookeeper is not None
    assert options.cluster_root is not None
    where, paths, security = options.zookeeper, cluster_paths(options.cluster_root), _security(options)

    async def read() -> bytes:
        async with open_znode_client(where, connect_timeout_ms=round(1000 * timeout), security=security) as client:
            return (await read_store_params(client, paths)).key

    return UUID(bytes=trio.run(read))


def client_config(options: Connection) -> str | tuple[tuple[str, object], ...]:
    """The argument of `open_client`: an address, or keys of a configuration with their values."""
    tls = _tls_of(options)
    if options.url:
        endpoint, _ = parse_url(options.url)
        query = {"ca": tls.ca} if tls.ca is not None else {}
        if tls.verify is False:
            query["verify"] = "off"
        return f"waltz://{endpoint}" + (f"?{urlencode(query)}" if query else "")
    pairs: list[tuple[str, object]] = [
        *_zookeeper_keys(options).items(),
        ("zookeeper.connectString", options.zookeeper),
        ("zookeeper.sessionTimeout", _SESSION_TIMEOUT_MS),
        ("cluster.root", options.cluster_root),
    ]
    for name, value in (("ca", tls.ca), ("certificate", tls.certificate), ("key", tls.key), ("verify", tls.verify)):
        if value is not None:
            pairs.append((f"client.ssl.{name}", value))
    return tuple(pairs)


def addresses_of(endpoint: Endpoint) -> frozenset[str]:
    """Addresses of a host; none if its name does not resolve."""
    try:
        answers = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return frozenset()
    return frozenset(str(address[0]) for *_, address in answers)


def _admin_endpoints(connections: Iterable[tuple[str, int]]) -> Iterator[tuple[str, Endpoint]]:
    """Names of storage nodes and where they are asked; nothing is at a name that cannot be read, as of 0.13.2."""
    for storage, port in sorted(connections):
        with contextlib.suppress(ConfigError):
            yield storage, Endpoint(parse_endpoint(storage).host, port)


class Cluster:
    """Asks servers for marks; reads the map again when one of them does not answer.

    The first map is asked for once, so that a wrong address is an error at once. Whoever has answered may be away for a
    time, as in a fail-over: for as long as the options say.

    Raises:
        UnreachableError: no answer.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._timeout = options.request_timeout_ms / 1000
        self._limit = self._timeout * options.retries
        self.tls = _tls_of(options)
        self._client_tls = ClientTls(self.tls)
        self.shown_key = bytes(16)  # zero: a server does not show it to a client's certificate
        self.partition_count = 0
        self._others: tuple[Endpoint, ...] = ()  # servers that the last answer named
        self._held: dict[
            Endpoint, dict[int, bool]
        ] = {}  # the partitions that nodes hold, and whether they are available
        self.silent: dict[Endpoint, str] = {}  # nodes of `adminEndpoints` that did not answer last, and why
        self._addresses: dict[Endpoint, frozenset[str]] = {}  # of nodes whose names were resolved
        self._map = self._read_map()
        self._ports: dict[Endpoint, ClientPort] = {}

    @property
    def key(self) -> bytes:
        """The cluster key.

        Raises:
            OptionError: the server did not show it.
        """
        if not any(self.shown_key):
            raise OptionError(
                "the server does not show its cluster key to this certificate: storage nodes cannot be asked without "
                "it, and nothing tells whether archives and directories are of this cluster; use a certificate with "
                "the role storage or admin"
            )
        return self.shown_key

    def close(self) -> None:
        """Drop all connections."""
        for port in self._ports.values():
            port.close()
        self._ports.clear()

    # ---- the map ---------------------------------------------------------------------------------

    def _read_map(self) -> _Map:
        return self._map_from_server() if self._options.url else self._map_from_zookeeper()

    def _map_from_server(self) -> _Map:
        cluster = self._ask_cluster()
        self.shown_key, self.partition_count = cluster.key.bytes, cluster.num_partitions
        servers: dict[int, Endpoint] = {}
        for entry in cluster.servers:
            servers.update((partition, entry.endpoint) for partition, _ in entry.partitions)
        count = range(self.partition_count)
        return _Map(
            tuple(servers.get(partition) for partition in count), self._given_nodes(), (-1,) * self.partition_count
        )

    def _ask_cluster(self) -> ClusterInfoResponse:
        """Ask the server of the URL; if it is gone, the other servers that it named."""
        assert self._options.url is not None
        first: UnreachableError | None = None
        for endpoint in (parse_url(self._options.url)[0], *self._others):
            try:
                with ClientPort(endpoint, self._client_tls, self._timeout) as port:
                    cluster = port.cluster()
            except UnreachableError as error:
                first = first or error
                continue
            self._others = tuple(entry.endpoint for entry in cluster.servers)
            return cluster
        assert first is not None
        raise first

    def _map_from_zookeeper(self) -> _Map:
        options = self._options
        assert options.zookeeper is not None
        assert options.cluster_root is not None
        where, root = options.zookeeper, options.cluster_root

        security = _security(options)

        async def read() -> ClusterDump:
            async with open_znode_client(
                where, connect_timeout_ms=options.request_timeout_ms, security=security
            ) as client:
                return await read_cluster(client, cluster_paths(root))

        try:
            dump = trio.run(read)
        except ZnodeError as error:
            kind = SourceRefusedError if isinstance(error, NoNodeError | ZnodeRefusedError) else UnreachableError
            raise kind(f"{where}{root}: {error}") from error
        self.shown_key, self.partition_count = dump.store.key, dump.store.num_partitions
        endpoints = {server.server_id: server.endpoint for server in dump.servers}
        servers: dict[int, Endpoint] = {}
        for entry in dump.assignment.servers:
            if entry.server_id in endpoints:
                servers.update((partition, endpoints[entry.server_id]) for partition, _ in entry.partitions)
        nodes = self._given_nodes()
        if not self._options.admin_endpoints:
            known = dict(_admin_endpoints(dump.maps.connections.connections))
            named = self._one_name_each(known.values())
            nodes = tuple(
                tuple(
                    dict.fromkeys(
                        named[known[storage]]
                        for storage in dump.maps.replicas.storages_of(partition)
                        if storage in known
                    )
                )
                for partition in range(self.partition_count)
            )
        sessions = tuple(-1 if metadata is None else metadata.session_id for metadata in dump.partitions)
        counts = tuple(len(dump.maps.replicas.storages_of(partition)) for partition in range(self.partition_count))
        return _Map(tuple(servers.get(partition) for partition in range(self.partition_count)), nodes, sessions, counts)

    def _given_nodes(self) -> tuple[tuple[Endpoint, ...], ...]:
        """Nodes of the option `adminEndpoints`, which are asked for their partitions."""
        nodes: list[list[Endpoint]] = [[] for _ in range(self.partition_count)]
        self.silent.clear()
        given = tuple(dict.fromkeys(map(parse_endpoint, self._options.admin_endpoints)))
        for endpoint in given:
            try:
                with AdminPort(endpoint, self._client_tls, self.key, self.partition_count, self._timeout) as port:
                    self._held[endpoint] = port.assigned()
            except UnreachableError as error:
                self.silent[endpoint] = str(error)  # it may come back; until then its last answer counts
        held = [endpoint for endpoint in given if endpoint in self._held]
        named = self._one_name_each(sorted(held, key=lambda endpoint: endpoint in self.silent))
        for endpoint in held:
            if named[endpoint] != endpoint:
                del self._held[endpoint]  # counted by its other name
                continue
            for partition, available in self._held[endpoint].items():
                if available and partition < self.partition_count:
                    nodes[partition].append(endpoint)
        return tuple(map(tuple, nodes))

    def _one_name_each(self, endpoints: Iterable[Endpoint]) -> dict[Endpoint, Endpoint]:
        """For every name of a storage node the first one of that node, which is one replica, and no two.

        One node is at the same port of a common address, unless two processes answer there.
        """
        named: dict[Endpoint, Endpoint] = {}
        for endpoint in endpoints:
            if endpoint not in self._addresses and (addresses := addresses_of(endpoint)):
                self._addresses[endpoint] = addresses
            own = self._addresses.get(endpoint, frozenset())
            others = [one for one in set(named.values()) if one.port == endpoint.port]
            same = [one for one in others if own & self._addresses.get(one, frozenset())]
            named[endpoint] = next((one for one in same if not self._are_two(one, endpoint)), endpoint)
        return named

    def _are_two(self, *endpoints: Endpoint) -> bool:
        """Whether the processes that answer say that they are different ones."""
        started: set[int] = set()
        for endpoint in endpoints:
            with (
                contextlib.suppress(PipelineError),
                AdminPort(endpoint, self._client_tls, self.key, self.partition_count, self._timeout) as port,
            ):
                started.update([time_ms] if (time_ms := port.started_ms()) else [])
        return len(started) > 1

    # ---- marks -----------------------------------------------------------------------------------

    def marks(self, partitions: Iterable[int], *, patient: bool = True) -> Marks:
        """Committed marks of some partitions, 0 for the others.

        Args:
            patient: wait for servers that do not answer, as long as the options allow.

        Raises:
            UnreachableError: a partition is not served, or its server does not answer.
        """
        wanted = tuple(partitions)
        return self._ask(lambda: self._ask_marks(wanted), self._limit if patient else 0.0)

    def _ask(self, ask: Callable[[], T], limit: float) -> T:
        """Ask again while nobody answers, by a map that is read again: once at once, then with pauses.

        Raises:
            SourceRefusedError: to ask again would not help.
            UnreachableError: it did not come within `limit` seconds.
        """
        due, pause, asked = time.monotonic() + limit, 0.0, 0
        while True:
            try:
                if asked:
                    self._map = self._read_map()
                return ask()
            except SourceRefusedError:
                raise
            except UnreachableError:
                self.close()
                if asked and time.monotonic() >= due:
                    raise
            time.sleep(max(0.0, min(pause, due - time.monotonic())))
            pause = min(_PAUSE_MAX, 2 * pause or _PAUSE)
            asked += 1

    def _ask_marks(self, partitions: tuple[int, ...]) -> Marks:
        ends, sessions = [0] * self.partition_count, [_UNKNOWN_SESSION] * self.partition_count
        by_server: dict[Endpoint, list[int]] = {}
        for partition in partitions:
            server = self._map.servers[partition]
            if server is None:
                raise UnreachableError(f"partition {partition}: no server serves it now")
            by_server.setdefault(server, []).append(partition)
        for server, owned in by_server.items():
            port = self._port(server)
            if port.version >= EXTENDED:
                said = port.partitions()
            else:
                said = {one: (self._map.sessions[one], port.mark(one)) for one in owned}
            for partition in owned:
                if partition not in said:
                    raise UnreachableError(f"partition {partition} is not open on {server} yet")
                session_id, mark = said[partition]
                ends[partition] = mark + 1
                sessions[partition] = session_id if session_id >= 0 else _UNKNOWN_SESSION
        return Marks(tuple(ends), tuple(sessions))

    # ---- the log start ---------------------------------------------------------------------------

    def log_start(self, partition: int, *, patient: bool = True) -> int:
        """The smallest id that the cluster still has; arguments and errors as `marks`."""
        return self._ask(lambda: self._port_of(partition).log_start(partition), self._limit if patient else 0.0)

    def raise_log_start(self, partition: int, start: int, patience: float) -> int:
        """Free what is below `start`, trying again for so many seconds while the cluster is not ready for it.

        Raises:
            SourceRefusedError: a replica is on a node of 0.13.2, for example.
            UnreachableError: it did not come in time.
        """
        return self._ask(lambda: self._port_of(partition).raise_log_start(partition, start), patience)

    def _port_of(self, partition: int) -> ClientPort:
        server = self._map.servers[partition]
        if server is None:
            raise UnreachableError(f"partition {partition}: no server serves it now")
        return self._port(server)

    def _port(self, server: Endpoint) -> ClientPort:
        if server not in self._ports:
            self._ports[server] = ClientPort(server, self._client_tls, self._timeout)
        return self._ports[server]

    def replica_count(self, partition: int) -> int:
        """How many replicas a partition has; where only its server can be asked, how many it has at most.

        Raises:
            OptionError: nothing tells.
            UnreachableError: the server does not answer.
        """
        if self._map.replica_counts is not None:
            return self._map.replica_counts[partition]
        count = self._port_of(partition).storage_node_count()
        if not count:
            raise OptionError(
                f"partition {partition}: its server does not say how many storage nodes it has: name the cluster by "
                "its ZooKeeper instead of url"
            )
        # The server tells of the nodes of all its partitions. Those that hold others, but not this one, do not count.
        server = self._map.servers[partition]
        own = {at for at, owner in enumerate(self._map.servers) if owner == server}
        others = sum(bool(own & held.keys()) and partition not in held for held in self._held.values())
        holders = sum(partition in held for held in self._held.values())
        return max(count - others, holders)

    # ---- places ----------------------------------------------------------------------------------

    def places(self, partition: int, session_id: int, via: str) -> tuple[Place, ...]:
        """Places that serve records of a partition; replicas first, in an order that depends on the partition."""
        places: list[Place] = []
        nodes = self._map.nodes[partition]
        if via in ("auto", "storage", "files"):
            turned = nodes[partition % len(nodes) :] + nodes[: partition % len(nodes)] if nodes else ()
            places += [StoragePlace(node, self.tls, self.key, self.partition_count, session_id) for node in turned]
        server = self._map.servers[partition]
        if via in ("auto", "server") and server is not None:
            places.append(ServerPlace(server, self.tls, client_config(self._options)))
        return tuple(places)

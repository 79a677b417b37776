"""Asks all processes: a `ClusterView` from ZooKeeper and all ports, at once and with a time limit for each node."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import attrs
import trio

from waltz_core.base.errors import ConfigError, WaltzError
from waltz_core.base.ids import Endpoint, parse_endpoint
from waltz_core.operations.doors import GatewayView
from waltz_core.operations.findings import Finding
from waltz_core.operations.view import CertificateView, ClusterView, ReplicaView, ServerView, StorageView
from waltz_core.wire import admin_messages as admin
from waltz_core.wire.client_codec import EXTENDED
from waltz_core.wire.client_messages import ErrorCode
from waltz_core.wire.shared import AGE, AWAITED, STARTED, UNUSABLE, Condition, Statistic, Trouble, name_of
from waltz_core.zookeeper.znodes import ServerDescriptor
from waltz_trio.net.dialer import DialError, dial_stream
from waltz_trio.net.tls import ClientTls
from waltz_trio.ports.admin import AdminClient, RefusedError
from waltz_trio.ports.health import health_of
from waltz_trio.ports.port import PortError
from waltz_trio.ports.server import ServerPort
from waltz_trio.ports.tool import Tool
from waltz_trio.zk.admin import ClusterDamagedError, ClusterMissingError, read_cluster
from waltz_trio.zk.client import UnavailableError
from waltz_trio.zk.proxy_root import proxy_of

NODE_MAX = 10.0  # seconds that one node may take for all its answers

_STATES: Mapping[int, str] = {
    Condition.SOUND: "open",
    Condition.SUSPECT: "open",
    Condition.LIMBO: "limbo",
    Condition.STOPPED: "stopped",
}
_FIGURES = (  # of a server, names of statistics that begin so
    "access-level",
    AWAITED,
    "connections",
    "client-lag.",
    "hot-lock.",
    "rejected-append",
    "successful-append",
    "append-queue-size",
    "pending-append",
    "real-time-feeds",
    "catchup-feeds",
    "response-within-ms.",
    "response-count",
    "archive",
    "log-start",
    AGE,
)


UNSEEN = (ClusterMissingError, UnavailableError)
"""Why there may be no view at all; `unseen` explains each."""


def unseen(error: Exception) -> Finding:
    """What is wrong where `gather` gives no view."""
    match error:
        case ClusterDamagedError():
            command = (
                "stop the servers; waltz zookeeper restore -c CONFIG -i FILE, FILE being what `waltz zookeeper list "
                "--json` printed while all was well; or restore ZooKeeper from a backup of its own"
            )
            return Finding("damaged-cluster", str(error), command)
        case ClusterMissingError():
            command = (
                "check cluster.root; a new cluster is made by: waltz zookeeper create -c CONFIG -n NAME -p PARTITIONS; "
                "one that was lost comes back by: waltz zookeeper restore -c CONFIG -i FILE"
            )
            return Finding("no-cluster", str(error), command)
    command = "check that ZooKeeper runs at zookeeper.connectString: echo ruok | nc HOST PORT"
    return Finding("zookeeper-down", str(error), command)


async def gather(tool: Tool, node_max: float = NODE_MAX, *, certificates: bool = True) -> ClusterView:
    """Everything about the cluster.

    Args:
        tool: of the command.
        node_max: seconds that each node may take; what it did not answer until then is missing.
        certificates: look at those of all ports too, by connections of their own.

    Raises:
        ClusterMissingError: there is no cluster, or half of one.
        ZnodeError: ZooKeeper did not answer.
    """
    dump = await read_cluster(tool.zk, tool.paths)
    proxy = await proxy_of(tool.zk, tool.paths)
    maps = dump.maps
    ports = dict(maps.connections.connections)
    names = sorted({*dict(maps.replicas.replicas), *dict(maps.groups.groups), *ports})
    servers: dict[int, ServerView] = {}
    storages: dict[str, StorageView] = {}
    shown: list[CertificateView] = []
    seen: list[GatewayView] = []

    async def ask_server(number: int, descriptor: ServerDescriptor) -> None:
        servers[number] = await _server(tool, descriptor, node_max)

    async def ask_storage(name: str) -> None:
        storages[name] = await _storage(tool, name, ports.get(name), node_max)

    async with trio.open_nursery() as nursery:
        for number, descriptor in enumerate(dump.servers):
            nursery.start_soon(ask_server, number, descriptor)
            if certificates:
                nursery.start_soon(_certificate, tool, descriptor.endpoint, shown, node_max)
        for address in tool.gateways:
            nursery.start_soon(_gateway, address, seen, node_max)
        for name in names:
            nursery.start_soon(ask_storage, name)
            endpoint = _endpoint(name)
            if certificates and endpoint is not None:
                nursery.start_soon(_certificate, tool, endpoint, shown, node_max)
    return ClusterView(
        root=tool.paths.root,
        name=dump.params.name,
        key=dump.store.key,
        num_partitions=dump.store.num_partitions,
        assignment=dump.assignment,
        assignment_cversion=dump.assignment_cversion,
        undecodable=dump.undecodable,
        maps=maps,
        partitions=dump.partitions,
        servers=tuple(servers[number] for number in sorted(servers)),
        storages=tuple(storages[name] for name in names),
        unreadable=dump.unreadable,
        certificates=tuple(sorted(shown, key=lambda found: found.port)),
        gateways=tuple(sorted(seen, key=lambda gateway: gateway.address)),
        proxy_of=None if proxy is None else proxy.name,
        now_ms=_now(),
    )


def _now() -> int:
    return time.time_ns() // 1_000_000


def _endpoint(name: str) -> Endpoint | None:
    try:
        return parse_endpoint(name)
    except ConfigError:
        return None


async def _limited(kind: str, node_max: float, ask: Callable[[AsyncExitStack], Any]) -> str:
    """Run the questions to one node of a kind; why they ended early, empty if they did not.

    Whatever an answer is, it is wrong with that node, and the look at all others goes on.
    """
    try:
        async with AsyncExitStack() as stack:
            with trio.fail_after(node_max):
                await ask(stack)
    except trio.TooSlowError:
        return f"no answer within {node_max:.0f} s"
    except (WaltzError, OSError) as error:
        return str(error)
    except Exception as error:
        return f"it answers what no {kind} answers: {error!r}"
    return ""


async def _server(tool: Tool, descriptor: ServerDescriptor, node_max: float) -> ServerView:
    known: dict[str, Any] = {}

    async def ask(stack: AsyncExitStack) -> None:
        port = await stack.enter_async_context(tool.server(descriptor.endpoint))
        known["partitions"] = await port.partitions()
        if port.version >= EXTENDED:
            key = await port.cluster_key()
            known["key"] = key if any(key) else None  # zero: this certificate is of a client, who is not shown it
            known["status"] = await port.status()
            before = _now()
            answer = await port.statistics(*_FIGURES)
            if answer is not None:
                known["clock_ms"] = answer.time_ms - (before + _now()) // 2
                known["figures"] = figures = _figures(answer.statistics)
                known["access_level"] = _access_level(figures)
        known["health"] = await port.health()
        await _ask_for_nodes(port, known)

    problem = await _limited("server", node_max, ask)
    return ServerView(descriptor, problem, **known)


async def _ask_for_nodes(port: ServerPort, known: dict[str, Any]) -> None:
    """Which storage nodes a server reaches, and why not."""

    async def ask() -> None:
        if port.version >= EXTENDED:
            known["unusable"] = unusable = await _unusable(port)
            known["troubles"] = await _troubles(port) if unusable else {}

    # Where a node is silent the server may not answer the next question in time: what it knows by now counts then.
    await ask()
    known["connectivity"] = await port.storage_connectivity()
    await ask()  # it has tried nodes that it does not need, and knows their troubles


async def _unusable(port: ServerPort) -> Mapping[str, str]:
    """Why the server cannot use storage nodes; empty if it runs an older version of ours, which does not say."""
    try:
        return await port.storage_nodes()
    except RefusedError as error:
        if error.code == ErrorCode.NOT_IMPLEMENTED:
            return {}
        raise


async def _troubles(port: ServerPort) -> Mapping[str, Trouble]:
    """What kind of trouble each of them is; empty if it runs an older version of ours."""
    answer = await port.statistics(UNUSABLE)
    figures = () if answer is None else answer.statistics
    kinds = {kind.value: kind for kind in Trouble}
    return {each.name.removeprefix(UNUSABLE): kinds[int(each.value)] for each in figures if each.value in kinds}


async def _storage(tool: Tool, name: str, admin_port: int | None, node_max: float) -> StorageView:
    endpoint = _endpoint(name)
    if endpoint is None:
        return StorageView(name, data_problem=f"{name!r} is no host:port", admin_problem="it is not known")
    known: dict[str, Any] = {}

    @contextmanager
    def noting() -> Iterator[None]:
        """What kept a port from being used, where it is more than silence."""
        try:
            yield
        except RefusedError as error:
            known["foreign_key"] = known.get("foreign_key", False) or error.refusal.wrong_cluster
            raise
        except PortError as error:
            known["untrusted"] = known.get("untrusted", False) or error.untrusted
            raise

    async def ask_data(stack: AsyncExitStack) -> None:
        with noting():
            await stack.enter_async_context(tool.data(endpoint))

    async def ask_admin(stack: AsyncExitStack) -> None:
        assert admin_port is not None
        with noting():
            client = await stack.enter_async_context(tool.admin(Endpoint(endpoint.host, admin_port)))
        await _ask_node(client, known)

    problems = {"data": "", "admin": "its admin port is not in ZooKeeper"}

    async def ask(port: str, questions: Callable[[AsyncExitStack], Any]) -> None:
        problems[port] = await _limited("storage node", node_max, questions)

    async def resolve() -> None:
        known["addresses"] = await addresses_of(endpoint, node_max)

    async with trio.open_nursery() as nursery:  # the time is for all of it
        nursery.start_soon(resolve)
        nursery.start_soon(ask, "data", ask_data)
        if admin_port is not None:
            nursery.start_soon(ask, "admin", ask_admin)
    where = f"{endpoint.host}:{admin_port}" if admin_port is not None else ""
    return StorageView(name, where, problems["data"], problems["admin"], **known)


async def addresses_of(endpoint: Endpoint, seconds: float = NODE_MAX) -> frozenset[str]:
    """Addresses of a host; none if its name does not resolve in time."""
    with trio.move_on_after(seconds):
        try:
            answers = await trio.socket.getaddrinfo(endpoint.host, endpoint.port, type=trio.socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return frozenset()
        return frozenset(str(address[0]) for *_, address in answers)
    return frozenset()


async def _ask_node(client: AdminClient, known: dict[str, Any]) -> None:
    assigned = await client.assigned()
    replicas: dict[int, ReplicaView] = {}
    figures: Mapping[tuple[str, int], float] = {}
    if client.version:
        before = _now()
        wanted = ("disk-", "access-level", STARTED, AWAITED)
        statistics = await client.expect(lambda seq: admin.StatisticsRequest(seq, -1, wanted), admin.StatisticsResponse)
        known["clock_ms"] = statistics.time_ms - (before + _now()) // 2
        known["figures"] = figures = _figures(statistics.statistics)
        known["access_level"] = _access_level(figures)
        known["process"] = str(int(figures.get((STARTED, -1), 0)) or "")
        if ("disk-free-bytes", -1) in figures:
            known["disk_free"] = int(figures["disk-free-bytes", -1])
            known["disk_reserve"] = int(figures.get(("disk-reserve-bytes", -1), 0))
    for partition_id, available in sorted(assigned.items()):
        replicas[partition_id] = await _replica(client, partition_id, available)
    known["replicas"] = replicas


def _figures(statistics: Iterable[Statistic]) -> dict[tuple[str, int], float]:
    """By name and partition; what is no number is none."""
    return {(each.name, each.partition_id): each.value for each in statistics if math.isfinite(each.value)}


def _access_level(figures: Mapping[tuple[str, int], float]) -> int | None:
    level = figures.get(("access-level", -1))
    return None if level is None else int(level)


async def _replica(client: AdminClient, partition_id: int, available: bool) -> ReplicaView:
    if client.version:
        state = await client.expect(
            lambda seq: admin.ReplicaStateRequest(seq, partition_id), admin.ReplicaStateResponse
        )
        info = state.last_session_info
        return ReplicaView(
            partition_id,
            available,
            info.session_id,
            info.low_water_mark,
            info.local_low_water_mark,
            state.max_transaction_id,
            _STATES.get(state.condition) or name_of(Condition, state.condition),
            state.reason or "",
            tuple((suspect.first_id, suspect.last_id) for suspect in state.suspects),
        )
    answer = await client.expect(
        lambda seq: admin.LastSessionInfoRequest(seq, partition_id), admin.LastSessionInfoResponse
    )
    info = answer.last_session_info
    marks = info.low_water_mark, info.local_low_water_mark
    return ReplicaView(partition_id, available, info.session_id, *marks)


async def _gateway(address: str, seen: list[GatewayView], node_max: float) -> None:
    away: dict[str, str] = {}
    topics: dict[str, str] = {}

    async def ask(stack: AsyncExitStack) -> None:
        answer = (await health_of(parse_endpoint(address))).get("gateway-health-check")
        reasons, clusters = (
            (answer.get("reasons"), answer.get("clusters")) if isinstance(answer, dict) else (None, None)
        )
        if not isinstance(reasons, dict):
            raise PortError(f"{address} is not the health of a gateway: expected the port gateway.healthPort")
        for what, reason in reasons.items():
            of_topic = isinstance(clusters, dict) and what not in clusters
            (topics if of_topic else away)[str(what)] = str(reason)

    seen.append(GatewayView(address, await _limited("gateway", node_max, ask), away, topics))


async def _certificate(tool: Tool, endpoint: Endpoint, certificates: list[CertificateView], node_max: float) -> None:
    """The certificate of a port, trusted or not; a port that shows none is reported elsewhere."""
    settings = attrs.evolve(tool.tls.settings, verify=False)
    with trio.move_on_after(node_max):
        try:
            stream = await dial_stream(endpoint, ClientTls(settings), tool.limits)
        except (DialError, WaltzError):
            return
        der = stream.getpeercert(binary_form=True)
        await trio.aclose_forcefully(stream)
        if not isinstance(der, bytes):
            return
        from cryptography import x509  # a server loads this file when it starts, and seldom looks at a certificate

        try:
            certificate = x509.load_der_x509_certificate(der)
            ends = int(certificate.not_valid_after_utc.timestamp() * 1000)
            subject = certificate.subject.rfc4514_string()
        except (ValueError, x509.InvalidVersion):  # OpenSSL shows what this library does not read
            return
        certificates.append(CertificateView(str(endpoint), subject, ends))

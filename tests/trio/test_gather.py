"""What `gather` learns of storage nodes from servers: by a second look, and from older versions of ours."""

from __future__ import annotations

import json
import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import attrs
import pytest
import trio
import trio.testing

from waltz_core.base.edge import Accepted, Closed, Level, Port, Received, Send
from waltz_core.base.ids import Endpoint
from waltz_core.base.log import SessionInfo
from waltz_core.operations.findings import Finding
from waltz_core.operations.page import Console
from waltz_core.operations.view import ServerView, StorageView
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import client_messages as messages
from waltz_core.wire.admin_codec import VERSIONS as ADMIN_VERSIONS
from waltz_core.wire.client_codec import VERSIONS
from waltz_core.wire.connection import ADMIN_PROTOCOL, CLIENT_PROTOCOL, Connection
from waltz_core.wire.shared import STARTED, AccessLevel, Statistic, Trouble
from waltz_core.zookeeper.paths import cluster_paths
from waltz_core.zookeeper.store_metadata import add_storage_node
from waltz_core.zookeeper.znodes import ServerDescriptor, encode_server_descriptor
from waltz_trio.base.log import surprises
from waltz_trio.base.pump import wall_offset_ms
from waltz_trio.cli import doctor
from waltz_trio.cli.options import Arguments
from waltz_trio.console.watch import EVERY, LOOK, Watch
from waltz_trio.net.certificates import issue, make_ca
from waltz_trio.net.channel import NetLimits
from waltz_trio.net.driver import NodeDriver
from waltz_trio.net.listener import bind
from waltz_trio.net.ports import HeldPorts
from waltz_trio.net.tls import ClientTls, ServerTls, TlsSettings
from waltz_trio.node import process
from waltz_trio.node.embedded import ROOT, embedded_cluster
from waltz_trio.ports.gather import NODE_MAX, gather
from waltz_trio.ports.port import PortError, RefusedError
from waltz_trio.ports.server import ServerPort, open_server_port
from waltz_trio.ports.tool import Tool
from waltz_trio.zk.admin import change_store, create_cluster, read_store_params
from waltz_trio.zk.client import ZnodeClient, open_znode_client
from waltz_trio.zk.embedded import open_embedded_znodes

STORAGE = "storage:7000"
PATHS = cluster_paths(ROOT)


async def look(zk: ZnodeClient, settings: TlsSettings, node_max: float = NODE_MAX) -> ServerView:
    """At the one server of a cluster."""
    tool = Tool(zk, PATHS, await read_store_params(zk, PATHS), ClientTls(settings), NetLimits())
    (server,) = (await gather(tool, node_max, certificates=False)).servers
    return server


async def test_the_look_that_has_a_server_try_a_spare_node_says_why_it_cannot_use_it(tmp_path: Path) -> None:
    """A server tries a node that it does not need when it is asked what it reaches, and then knows the trouble."""
    with trio.fail_after(60), HeldPorts() as ports:
        spare = f"127.0.0.1:{ports.take()}"  # nobody listens there
        async with embedded_cluster(tmp_path, partitions=1, storage_nodes=1) as cluster:
            tls = TlsSettings(certificate=f"{tmp_path}/tls/node.pem", key=f"{tmp_path}/tls/node.key", verify=False)
            async with open_znode_client(cluster.znodes) as zk:
                assert (await look(zk, tls)).unusable == {}
                await change_store(zk, PATHS, lambda maps, _: add_storage_node(maps, spare, 0, 1))
                server = await look(zk, tls)
                while spare not in (server.connectivity or {}):  # it has not heard of the node yet
                    server = await look(zk, tls)
                assert server.problem == ""
                assert server.connectivity is not None
                assert not server.connectivity[spare]
                assert "refused" in server.unusable[spare]
                assert server.troubles == {spare: Trouble.NETWORK}


async def test_what_a_storage_node_says_of_itself_is_kept(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with embedded_cluster(tmp_path, partitions=2, storage_nodes=1) as cluster:
            settings = TlsSettings(certificate=f"{tmp_path}/tls/node.pem", key=f"{tmp_path}/tls/node.key", verify=False)
            async with open_znode_client(cluster.znodes) as zk:
                tool = Tool(zk, PATHS, await read_store_params(zk, PATHS), ClientTls(settings), NetLimits())
                (node,) = (await gather(tool, certificates=False)).storages
    assert (node.data_problem, node.admin_problem, node.foreign_key, node.untrusted) == ("", "", False, False)
    assert node.access_level == AccessLevel.CERTIFICATES
    assert node.process
    assert node.clock_ms is not None
    assert node.disk_free == node.figures["disk-free-bytes", -1]
    assert node.disk_reserve == node.figures["disk-reserve-bytes", -1]
    assert node.replicas is not None
    assert sorted(node.replicas) == [0, 1]
    assert all(replica.available and replica.state == "open" for replica in node.replicas.values())


async def test_the_doctor_fills_the_configuration_of_its_call_into_what_it_advises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with trio.fail_after(60), HeldPorts() as ports:
        gone, gone_admin = ports.take(), ports.take()  # nobody listens there
        settings = TlsSettings(certificate=f"{tmp_path}/tls/node.pem", key=f"{tmp_path}/tls/node.key", verify=False)
        async with (
            embedded_cluster(tmp_path, partitions=1, storage_nodes=1) as cluster,
            open_znode_client(cluster.znodes) as zk,
        ):
            await change_store(zk, PATHS, lambda maps, _: add_storage_node(maps, f"127.0.0.1:{gone}", 0, gone_admin))
            tool = Tool(zk, PATHS, await read_store_params(zk, PATHS), ClientTls(settings), NetLimits())
            given = {"cli-config-path": "my tools.yml", "timeout": "5", "grace": "0"}
            assert await doctor._examine(tool, Arguments(given)) == 1
            text, beside = capsys.readouterr()
            assert await doctor._examine(tool, Arguments({**given, "json": ""})) == 1
            rows = json.loads(capsys.readouterr().out)
    advised = f"waltz storage replace-node -c 'my tools.yml' --from 127.0.0.1:{gone}"
    assert advised in text
    assert "looking again" not in beside  # there is no time for it
    assert [advised in row["command"] for row in rows if row["cause"] == "storage-down"] == [True]


async def test_a_clock_that_is_set_while_a_process_runs_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_REFRESH", 0.01)
    settings = TlsSettings(certificate=f"{tmp_path}/tls/node.pem", key=f"{tmp_path}/tls/node.key", verify=False)
    day = 86_400_000
    with trio.fail_after(60):
        async with (
            embedded_cluster(tmp_path, partitions=1, storage_nodes=1) as cluster,
            open_znode_client(cluster.znodes) as zk,
        ):
            tool = Tool(zk, PATHS, await read_store_params(zk, PATHS), ClientTls(settings), NetLimits())
            monkeypatch.setattr(process, "wall_offset_ms", lambda: wall_offset_ms() + day)
            clocks: list[int | None] = [0]
            while any(clock is None or clock < day / 2 for clock in clocks):
                view = await gather(tool, certificates=False)
                clocks = [server.clock_ms for server in view.servers] + [node.clock_ms for node in view.storages]
    assert len(clocks) == 2


@pytest.mark.parametrize(("partitions", "more"), [(3, None), (4, 1), (1000, 997)])
def test_the_doctor_counts_the_consequences_that_it_does_not_print(
    partitions: int, more: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    follows = tuple(Finding("no-quorum", f"partition {number}", "") for number in range(partitions))
    doctor._print(
        [Finding("storage-down", "node", "start it", follows=follows)],
        Arguments({"cli-config-path": "tools.yml"}),
        None,
    )
    text = capsys.readouterr().out
    assert text.count("· no-quorum: partition ") == min(partitions, 3)
    assert text.count("more; --json lists them all") == (more is not None)
    assert more is None or f"· no-quorum: {more} more; --json lists them all" in text
    assert f"1 finding, {partitions} follow from them" in text


async def test_a_certificate_that_is_shown_and_cannot_be_read_ends_no_look(tmp_path: Path) -> None:
    """OpenSSL shows one of an X.509 version that there is not, or with a date that there is not."""
    pair = issue(make_ca("ours"), "storage", ["localhost"])
    der = ssl.PEM_cert_to_DER_cert(pair.certificate.decode().partition("-----END CERTIFICATE-----")[0] + _PEM_END)
    version, month = der.index(b"\xa0\x03\x02\x01\x02") + 4, der.index(b"\x17\x0d") + 4
    strange = (
        der[:version] + b"\x05" + der[version + 1 :],
        der[:month] + b"13" + der[month + 2 :],
    )
    async with (
        embedded_cluster(tmp_path, partitions=1, storage_nodes=1) as cluster,
        open_znode_client(cluster.znodes) as zk,
        trio.open_nursery() as nursery,
    ):
        settings = TlsSettings(certificate=f"{tmp_path}/tls/node.pem", key=f"{tmp_path}/tls/node.key", verify=False)
        for number, certificate in enumerate(strange):
            file = tmp_path / "strange.pem"
            file.write_bytes(pair.key + b"\n" + ssl.DER_cert_to_PEM_cert(certificate).encode())
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(file)
            port = await nursery.start(_show, context)
            await change_store(zk, PATHS, lambda maps, _: add_storage_node(maps, f"127.0.0.1:{port}", number, port))  # noqa: B023 - at once
        tool = Tool(zk, PATHS, await read_store_params(zk, PATHS), ClientTls(settings), NetLimits())
        with trio.fail_after(60):
            view = await gather(tool, 2)
        assert len(view.storages) == 3
        assert len(view.certificates) == 2, "of the server and of the storage node that are there"
        nursery.cancel_scope.cancel()


_PEM_END = "-----END CERTIFICATE-----\n"


async def _show(context: ssl.SSLContext, task_status: trio.TaskStatus[int]) -> None:
    """Show a certificate to whoever comes, and say nothing."""

    async def serve(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await trio.SSLStream(stream, context, server_side=True).receive_some(1)
            await trio.sleep_forever()

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    task_status.started(listener.socket.getsockname()[1])
    await trio.serve_listeners(serve, [listener])


class Elder:
    """A machine that answers as an older server of ours, which sends no figures.

    Its answer about storage nodes that it cannot use is `nodes`, or an error of `code`. If a storage node is `silent`,
    it has none to what it reaches. It speaks the codecs of `versions`.
    """

    def __init__(
        self,
        code: int,
        nodes: tuple[messages.StorageNodeStatus, ...] | None,
        *,
        silent: bool = False,
        versions: range = VERSIONS,
    ) -> None:
        self._code = code
        self._nodes = nodes
        self._silent = silent
        self._versions = versions
        self._conns: dict[int, Connection[messages.ClientMessage]] = {}

    def deadline(self) -> int | None:
        return None

    def step(self, now: int, events: Sequence[object], out: list[object]) -> None:
        for event in events:
            match event:
                case Accepted(conn=conn):
                    self._conns[conn] = Connection(CLIENT_PROTOCOL, "elder", self._versions)
                    out.append(Send(conn, self._conns[conn].hello()))
                case Received(conn=conn, data=data):
                    requests: list[messages.ClientMessage] = []
                    self._conns[conn].receive(data, requests)
                    answers = bytearray()
                    for request in requests:
                        if not (self._silent and isinstance(request, messages.CheckStorageConnectivityRequest)):
                            self._conns[conn].encode(self._answer(request), answers)
                    out.append(Send(conn, bytes(answers)))
                case Closed(conn=conn):
                    del self._conns[conn]

    def _answer(self, request: messages.ClientMessage) -> messages.ClientMessage:
        match request:
            case messages.ServerPartitionsAssignmentRequest(req_id):
                return messages.ServerPartitionsAssignmentResponse(req_id, (0,))
            case messages.ServerPartitionsHealthStatRequest(req_id):
                return messages.ServerPartitionsHealthStatResponse(req_id, ((0, True),))
            case messages.CheckStorageConnectivityRequest(req_id):
                return messages.CheckStorageConnectivityResponse(req_id, ((STORAGE, False),))
            case messages.AddPreferredPartitionRequest(req_id):
                return messages.AddPreferredPartitionResponse(req_id, True)
            case messages.RemovePreferredPartitionRequest(req_id):
                return messages.RemovePreferredPartitionResponse(req_id, True)
            case messages.PartitionStatusRequest(req_id):
                return messages.PartitionStatusResponse(req_id, ())
            case messages.ClusterInfoRequest(req_id):
                return messages.ClusterInfoResponse(req_id, 0, "test", UUID(int=1), 1, -1, 0, ())
            case messages.StorageNodesRequest(req_id) if self._nodes is not None:
                return messages.StorageNodesResponse(req_id, self._nodes)
        return messages.ErrorResponse(request.req_id, self._code, "not something this server does")


@asynccontextmanager
async def listening(elder: Elder, nursery: trio.Nursery) -> AsyncIterator[Endpoint]:
    sock = bind("127.0.0.1", 0, "test")
    driver = NodeDriver(elder, name="elder")
    await nursery.start(driver.run)
    driver.serve(Port.CLIENT, sock, ServerTls(TlsSettings()))
    yield Endpoint("127.0.0.1", sock.getsockname()[1])


async def look_at_elder(elder: Elder, nursery: trio.Nursery, node_max: float = NODE_MAX) -> ServerView:
    """The view of a cluster that has one server, and nothing else."""
    with trio.fail_after(30):
        async with open_embedded_znodes() as znodes, open_znode_client(znodes) as zk:
            await create_cluster(zk, PATHS, "test", 1)
            async with listening(elder, nursery) as endpoint:
                await zk.create(f"{PATHS.servers}/1", encode_server_descriptor(ServerDescriptor(1, endpoint)))
                return await look(zk, TlsSettings(verify=False), node_max)


NOT_IMPLEMENTED, NOT_ALLOWED = messages.ErrorCode.NOT_IMPLEMENTED, messages.ErrorCode.NOT_ALLOWED


@pytest.mark.parametrize(
    ("code", "nodes", "problem", "connectivity", "unusable"),
    [
        (NOT_IMPLEMENTED, None, "", {STORAGE: False}, {}),
        (
            NOT_IMPLEMENTED,
            (messages.StorageNodeStatus(STORAGE, False, "gone"),),
            "",
            {STORAGE: False},
            {STORAGE: "gone"},
        ),
        (NOT_ALLOWED, None, "not something this server does", None, {}),
    ],
    ids=["says nothing of nodes", "says why and not of what kind", "refuses"],
)
async def test_a_server_of_ours_that_does_not_say_what_it_cannot_use_is_asked_all_else(
    code: messages.ErrorCode,
    nodes: tuple[messages.StorageNodeStatus, ...] | None,
    problem: str,
    connectivity: dict[str, bool] | None,
    unusable: dict[str, str],
    nursery: trio.Nursery,
) -> None:
    server = await look_at_elder(Elder(code, nodes), nursery)
    assert (server.problem, server.connectivity) == (problem, connectivity)
    assert (server.partitions, server.health) == ((0,), {0: True})  # what it had said before is kept
    assert (server.unusable, server.troubles) == (unusable, {})


async def test_what_a_server_knows_of_a_silent_node_counts_where_it_waits_for_that_node_longer_than_it_is_waited_for(
    nursery: trio.Nursery,
) -> None:
    nodes = (messages.StorageNodeStatus(STORAGE, False, "no answer for 4 s"),)
    server = await look_at_elder(Elder(NOT_IMPLEMENTED, nodes, silent=True), nursery, 2)
    assert (server.problem, server.connectivity) == ("no answer within 2 s", None)
    assert server.unusable == {STORAGE: "no answer for 4 s"}


async def test_a_server_of_0_13_2_is_asked_what_it_knows(nursery: trio.Nursery) -> None:
    server = await look_at_elder(Elder(NOT_IMPLEMENTED, None, versions=range(5)), nursery)
    assert (server.problem, server.connectivity) == ("", {STORAGE: False})
    assert (server.partitions, server.health) == ((0,), {0: True})
    assert (server.unusable, server.troubles, server.status) == ({}, {}, None)


ASKED: tuple[tuple[str, int, Callable[[ServerPort], Awaitable[object]]], ...] = (
    ("CheckStorageConnectivity", 1, ServerPort.storage_connectivity),
    ("ServerPartitionsAssignment", 2, ServerPort.partitions),
    ("AddPreferredPartition", 2, lambda port: port.add_preferred([0])),
    ("RemovePreferredPartition", 2, lambda port: port.remove_preferred([0])),
    ("ServerPartitionsHealthStat", 4, ServerPort.health),
    ("PartitionStatus", 5, ServerPort.status),
    ("StorageNodes", 5, ServerPort.storage_nodes),
    ("ClusterInfo", 5, ServerPort.cluster_key),
    ("Statistics", 5, ServerPort.statistics),
    ("RecordRange", 5, lambda port: port.records(0, 0, 0, 1000)),
    ("LogStart", 5, lambda port: port.log_ends(0)),
)


@pytest.mark.parametrize(("name", "needs", "ask"), ASKED, ids=[name for name, _, _ in ASKED])
async def test_a_tool_asks_a_server_for_nothing_that_its_codec_has_no_words_for(
    name: str, needs: int, ask: Callable[[ServerPort], Awaitable[object]], nursery: trio.Nursery
) -> None:
    tls = ClientTls(TlsSettings(verify=False))
    for versions in (range(needs), range(needs + 1)):
        elder = Elder(NOT_IMPLEMENTED, (), versions=versions)
        with trio.fail_after(30):
            async with listening(elder, nursery) as endpoint, open_server_port(endpoint, tls) as port:
                if needs not in versions:
                    refused = f"{endpoint} speaks codec {needs - 1}; {name} needs {needs}"
                    with pytest.raises(PortError, match=refused):
                        await ask(port)
                else:
                    with suppress(RefusedError):
                        await ask(port)


OddAnswers: TypeAlias = Mapping[type, Callable[[int], admin.AdminMessage]]


class OddNode:
    """A machine that answers at the admin port of a storage node, with the answers of a test for some requests."""

    def __init__(self, answers: OddAnswers) -> None:
        self._answers: dict[type, Callable[[int], admin.AdminMessage]] = {
            admin.AdminOpenRequest: admin.AdminSuccessResponse,
            admin.AssignedPartitionStatusRequest: lambda seq: admin.AssignedPartitionStatusResponse(seq, ((0, True),)),
            admin.StatisticsRequest: lambda seq: admin.StatisticsResponse(seq, 0, ()),
            **answers,
        }
        self._conns: dict[int, Connection[admin.AdminMessage]] = {}

    def deadline(self) -> int | None:
        return None

    def step(self, now: int, events: Sequence[object], out: list[object]) -> None:
        for event in events:
            match event:
                case Accepted(conn=conn):
                    self._conns[conn] = Connection(ADMIN_PROTOCOL, "odd", ADMIN_VERSIONS)
                    out.append(Send(conn, self._conns[conn].hello()))
                case Received(conn=conn, data=data):
                    requests: list[admin.AdminMessage] = []
                    self._conns[conn].receive(data, requests)
                    answers = bytearray()
                    for request in requests:
                        self._conns[conn].encode(self._answers[type(request)](request.seq_num), answers)
                    out.append(Send(conn, bytes(answers)))


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ({admin.AssignedPartitionStatusRequest: admin.AdminSuccessResponse}, "unexpected answer AdminSuccessResponse"),
        ({admin.StatisticsRequest: admin.AdminSuccessResponse}, "unexpected answer AdminSuccessResponse"),
        (
            {
                admin.StatisticsRequest: lambda seq: admin.StatisticsResponse(
                    seq, 0, (Statistic("disk-free-bytes", 10**9, 5.0), Statistic("", -(10**9), -math.inf))
                ),
                admin.ReplicaStateRequest: lambda seq: admin.AdminSuccessResponse(seq),
            },
            "unexpected answer AdminSuccessResponse",
        ),
    ],
    ids=["another answer", "another answer later", "another answer at last"],
)
async def test_a_node_with_odd_answers_ends_no_look(nursery: trio.Nursery, answers: OddAnswers, problem: str) -> None:
    assert problem in (await _look_at(answers, nursery)).admin_problem


async def test_a_condition_that_is_not_known_yet_is_no_sound_one(nursery: trio.Nursery) -> None:
    """Of a later version, perhaps: the node is seen, and nothing counts on its replica."""
    state = admin.ReplicaStateResponse(0, 0, SessionInfo(1, -1, -1), 1, -1, 0, 9, 77, (), None)
    node = await _look_at({admin.ReplicaStateRequest: lambda seq: attrs.evolve(state, seq_num=seq)}, nursery)
    assert node.admin_problem == ""
    (replica,) = (node.replicas or {}).values()
    assert (replica.state, replica.has_whole(0, 0)) == ("unknown (77)", False)


async def test_figures_that_are_none_are_left_out(nursery: trio.Nursery) -> None:
    figures = (
        Statistic("access-level", -1, math.nan),
        Statistic(STARTED, -1, math.inf),
        Statistic("disk-reserve-bytes", -1, math.nan),
        Statistic("disk-free-bytes", -1, 5.0),
    )
    answers: OddAnswers = {
        admin.AssignedPartitionStatusRequest: lambda seq: admin.AssignedPartitionStatusResponse(seq, ()),
        admin.StatisticsRequest: lambda seq: admin.StatisticsResponse(seq, 0, figures),
    }
    node = await _look_at(answers, nursery)
    assert (node.admin_problem, node.access_level, node.disk_free) == ("", None, 5)


async def _look_at(answers: OddAnswers, nursery: trio.Nursery) -> StorageView:
    driver = NodeDriver(OddNode(answers), name="odd")
    await nursery.start(driver.run)
    sock = bind("127.0.0.1", 0, "storage.admin.port")
    port = int(sock.getsockname()[1])
    driver.serve(Port.ADMIN, sock, ServerTls(TlsSettings()))
    with trio.fail_after(30):
        async with open_embedded_znodes() as znodes, open_znode_client(znodes) as zk:
            await create_cluster(zk, PATHS, "test", 1)
            await change_store(zk, PATHS, lambda maps, _: add_storage_node(maps, "127.0.0.1:1", 0, port))
            tool = Tool(
                zk, PATHS, await read_store_params(zk, PATHS), ClientTls(TlsSettings(verify=False)), NetLimits()
            )
            view = await gather(tool, certificates=False)
    Console(ROOT).look(view, 1_000)
    [node] = view.storages
    return node


async def test_a_mistake_of_the_console_is_shown_in_it_and_ends_no_server(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[Tool]:
        raise RuntimeError("nobody thought of this")
        yield

    watch = Watch(broken, Console(ROOT))
    nursery.start_soon(watch.run)
    with watch.viewing():
        page = json.loads(await watch.after(0))
        await watch.after(watch.number)  # it looks again

    assert "nobody thought of this" in json.dumps(page)


async def test_nobody_looks_on_where_a_look_fails_and_no_viewer_is_left(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    looks, said = 0, list[tuple[Level, str]]()

    @asynccontextmanager
    async def broken() -> AsyncIterator[Tool]:
        nonlocal looks
        looks += 1
        raise RuntimeError("nobody thought of this")
        yield

    watch = Watch(broken, Console(ROOT), surprises(lambda level, text: said.append((level, text)), LOOK))
    nursery.start_soon(watch.run)
    with watch.viewing():
        await watch.after(0)
        await trio.sleep(10)
    await trio.sleep(2 * EVERY)
    before = looks
    await trio.sleep(60)
    assert looks == before > 5
    assert watch.page is None
    [(level, text)] = said
    assert level is Level.ERROR
    assert text.startswith(f"{LOOK} ended by an error in this process: RuntimeError('nobody thought of this') (")
    assert "test_gather.py:" in text

    with watch.viewing():
        await watch.after(watch.number)
    assert looks > before


class _Hanging(trio.abc.HostnameResolver):
    """A name service that answers nobody."""

    async def getaddrinfo(self, *arguments: Any, **options: Any) -> Any:
        await trio.sleep_forever()

    async def getnameinfo(self, *arguments: Any, **options: Any) -> Any:
        await trio.sleep_forever()


async def test_a_name_that_does_not_resolve_takes_the_time_of_its_node_and_no_more() -> None:
    async with open_embedded_znodes() as znodes, open_znode_client(znodes) as zk:
        await create_cluster(zk, PATHS, "test", 1)
        await change_store(zk, PATHS, lambda maps, _: add_storage_node(maps, STORAGE, 0, 7001))
        tool = Tool(zk, PATHS, await read_store_params(zk, PATHS), ClientTls(TlsSettings(verify=False)), NetLimits())
        trio.socket.set_custom_hostname_resolver(_Hanging())
        with trio.fail_after(1.5):
            view = await gather(tool, 1.0, certificates=False)
    [node] = view.storages
    assert (node.addresses, node.data_problem, node.admin_problem) == (frozenset(), *2 * ("no answer within 1 s",))

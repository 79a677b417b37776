"""What a peer does with its socket is the business of its own connection: bursts, resets at every state, surprises."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from http import HTTPStatus
from itertools import pairwise
from typing import cast

import pytest
import trio
import trio.testing

import waltz_trio.net.http
import waltz_trio.net.pace
from tests.driver_nets.network import Faults, SimNetwork, SimSocket
from tests.trio.test_net import LIMITS, Side, client_side, raw_tls, server_side
from waltz_core.access.bodies import Bodies
from waltz_core.access.port_turns import PIECE, REQUEST, STREAM
from waltz_core.base.edge import Accepted, Closed, Dial, Dialed, Level, Port, Report, Send
from waltz_core.base.ids import Endpoint
from waltz_trio.net.channel import Channel, NetLimits, TlsPipe
from waltz_trio.net.http import HttpLimits, HttpServer, Pay, Request, Response, Stream, _Connection, refusal, text
from waltz_trio.net.pace import Turns, Work
from waltz_trio.net.tls import ClientTls, ServerTls, TlsSettings

_RESET = struct.pack("ii", 1, 0)


@contextlib.contextmanager
def burst(endpoint: Endpoint, count: int) -> Iterator[list[socket.socket]]:
    """Connections, made without letting the process run in between."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.setblocking(False)
            one.connect_ex((endpoint.host, endpoint.port))
        yield sockets


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    peer.close()


async def serves(nursery: trio.Nursery, server: Side, endpoint: Endpoint, data: bytes = b"hello") -> None:
    """An honest client is served."""
    client = await client_side(nursery, endpoint)
    await client.machine.until(client.machine.is_told)
    assert client.machine.count(Dialed), client.machine.events
    client.do(Send(-1, data))
    await server.machine.until(lambda: data in server.machine.received())


async def test_a_burst_that_says_nothing_ends_no_process(nursery: trio.Nursery) -> None:
    limits = NetLimits(linger=0.1, handshake_timeout=60, handshakes_max=20)
    server, endpoint = await server_side(nursery, limits=limits)

    with burst(endpoint, 300):
        await serves(nursery, server, endpoint)

    assert any("without a TLS handshake" in line for line in server.reports)


async def test_resets_while_the_process_drains_end_nobody_else(nursery: trio.Nursery) -> None:
    server, endpoint = await server_side(nursery)
    peers = [await trio.to_thread.run_sync(raw_tls, endpoint) for _ in range(30)]
    await server.machine.until(lambda: server.machine.count(Accepted) == len(peers))
    conns = [event.conn for event in server.machine.events if type(event) is Accepted]

    for peer in peers:
        reset(peer)
    for conn in conns:  # in one step each, so that some drains are begun for sockets whose reader has ended
        server.do(Send(conn, b"x" * 20_000_000))
    await server.machine.until(lambda: server.machine.count(Closed) == len(peers))

    await serves(nursery, server, endpoint)


async def test_a_drain_that_begins_behind_the_end_of_its_socket_waits_for_nothing(nursery: trio.Nursery) -> None:
    server, endpoint = await server_side(nursery)
    for _ in range(2):  # the first one left its mark on descriptor -1, the second met it
        before = server.machine.count(Accepted)
        with await trio.to_thread.run_sync(raw_tls, endpoint):
            await server.machine.until(partial(came, server, before))
            conn = [event.conn for event in server.machine.events if type(event) is Accepted][-1]
            channel = server.driver._channels[conn]
            channel.send(b"x" * 20_000_000)
            channel.flush()
            channel._pipe.close()
            await server.machine.until(partial(went, server, conn))

    await serves(nursery, server, endpoint)


def came(side: Side, before: int) -> bool:
    """One more connection than before."""
    return side.machine.count(Accepted) > before


def went(side: Side, conn: int) -> bool:
    return any(event.conn == conn for event in closed(side))


def closed(side: Side) -> list[Closed]:
    return [event for event in side.machine.events if type(event) is Closed]


async def test_what_nobody_expected_ends_one_connection_and_names_its_peer(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, endpoint = await server_side(nursery)
    real = Channel._decrypt

    def surprise(self: Channel, taken: memoryview) -> tuple[bytes, bool, memoryview]:
        data, ended, rest = real(self, taken)
        if data == b"trigger":
            raise RuntimeError("nobody thought of this")
        return data, ended, rest

    monkeypatch.setattr(Channel, "_decrypt", surprise)
    bad = await client_side(nursery, endpoint)
    await bad.machine.first(Dialed)
    bad.do(Send(-1, b"trigger"))
    ended = await server.machine.first(Closed)
    await bad.machine.first(Closed)

    assert "nobody thought of this" in ended.reason
    [line] = [line for line in server.reports if "nobody thought of this" in line]
    assert line.startswith("127.0.0.1:")
    assert "RuntimeError" in line
    await serves(nursery, server, endpoint)
    assert len(closed(server)) == 1


async def test_what_breaks_the_protocol_again_and_again_is_counted_in_the_log(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    side = Side()
    await nursery.start(side.driver.run)
    for port in range(40):
        side.do(Report(Level.WARNING, f"connection of 127.0.0.1:{port} closed: bad frame", f"127.0.0.1:{port}"))
    side.do(Report(Level.WARNING, "partition 0 is not served"))
    side.do(Report(Level.WARNING, "partition 0 is not served"))
    await trio.sleep(200)
    assert side.reports == [
        "connection of 127.0.0.1:0 closed: bad frame",
        "partition 0 is not served",
        "partition 0 is not served",
        "connection of 127.0.0.1:39 closed: bad frame (39 like this within 60 s)",
    ]


async def test_a_surprise_in_the_handshake_is_reported_and_frees_its_place(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, endpoint = await server_side(nursery, limits=NetLimits(linger=0.1, connections_max=1))
    real = TlsPipe.handshake
    surprises = iter([True])

    async def surprise(self: TlsPipe) -> None:
        if next(surprises, False):
            raise RuntimeError("nobody thought of this")
        await real(self)

    monkeypatch.setattr(TlsPipe, "handshake", surprise)
    with socket.create_connection((endpoint.host, endpoint.port)) as peer:
        assert await trio.to_thread.run_sync(lambda: peer.recv(1)) == b""
        monkeypatch.undo()
        await serves(nursery, server, endpoint)

    assert [line for line in server.reports if "127.0.0.1" in line and "nobody thought of this" in line]


async def test_a_surprise_in_a_dial_is_reported_and_its_machine_dials_again(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def surprise(self: TlsPipe) -> None:
        raise RuntimeError("nobody thought of this")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        endpoint = Endpoint("127.0.0.1", listening.getsockname()[1])
        monkeypatch.setattr(TlsPipe, "handshake", surprise)
        client = await client_side(nursery, endpoint)
        closed = await client.machine.first(Closed)
        monkeypatch.undo()

    assert closed.conn == -1
    assert f"cannot connect to {endpoint}: RuntimeError" in closed.reason
    assert [line for line in client.reports if str(endpoint) in line and "nobody thought of this" in line]


@pytest.mark.parametrize("host", ["x" * 70 + ".example", "a..b", "\x00", ".example"])
async def test_a_host_name_that_cannot_be_one_is_a_refused_dial(nursery: trio.Nursery, host: str) -> None:
    client = Side(LIMITS, ClientTls(TlsSettings(verify=False)))
    await nursery.start(client.driver.run)

    client.do(Dial(-1, Endpoint(host, 9), Port.CLIENT))

    assert "cannot connect to" in (await client.machine.first(Closed)).reason


@pytest.mark.parametrize("stage", ["silent", "half a hello", "after the hello", "after the handshake"])
async def test_resets_at_every_state_of_a_connection(nursery: trio.Nursery, stage: str) -> None:
    server, endpoint = await server_side(nursery)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing)
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    hello = outgoing.read()

    def attack() -> None:
        for _ in range(20):
            if stage == "after the handshake":
                reset(raw_tls(endpoint))
                continue
            peer = socket.create_connection((endpoint.host, endpoint.port))
            if stage == "half a hello":
                peer.sendall(hello[: len(hello) // 2])
            elif stage == "after the hello":
                peer.sendall(hello)
                peer.recv(1)
            reset(peer)

    await trio.to_thread.run_sync(attack)

    await serves(nursery, server, endpoint)


# ---- HTTP ------------------------------------------------------------------------------------


async def http_server(nursery: trio.Nursery, reports: list[str]) -> Endpoint:
    def handle(request: Request) -> Response:
        if request.path == "/surprise":
            raise RuntimeError("nobody thought of this")
        return text("pong\n")

    server = HttpServer(handle, report=lambda level, line: reports.append(line))
    port = server.listen("127.0.0.1", 0, "server.jetty.port")
    nursery.start_soon(server.run)
    return Endpoint("127.0.0.1", port)


async def ask(endpoint: Endpoint, path: str) -> bytes:
    answer = bytearray()
    async with await trio.open_tcp_stream(endpoint.host, endpoint.port) as stream:
        await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
        async for data in stream:
            answer += data
    return bytes(answer)


class Office:
    """A port that takes bodies, whose callers say in a header who they are; in which order it looks at them."""

    def __init__(self, nursery: trio.Nursery, stack: contextlib.AsyncExitStack) -> None:
        self.seen: list[str] = []
        self._stack = stack
        limits = HttpLimits(1_000, 10, 1e6, 10_000, body_max=1 << 20, bodies_max=64 << 20)
        server = HttpServer(self._handle, limits=limits, admit=self._admit)
        self.port = server.listen("127.0.0.1", 0, "gateway.port")
        nursery.start_soon(server.run)

    def _admit(self, request: Request) -> Response | str:
        who = request.headers["who"]
        if who != "stranger":
            return who
        self.seen.append(who)
        return refusal(HTTPStatus.UNAUTHORIZED)

    async def _handle(self, request: Request) -> Response:
        self.seen.append(request.headers["who"])
        return text("done")

    async def connected(self, who: str) -> trio.SocketStream:
        """A connection that was answered once."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        await self._stack.enter_async_context(stream)
        self.send(stream, who)
        await stream.receive_some()
        self.seen.clear()
        return stream

    def send(self, stream: trio.SocketStream, who: str, body: bytes = b"") -> None:
        """A request, without letting the server run in between."""
        head = f"POST /x HTTP/1.1\r\nHost: h\r\nWho: {who}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        assert os.write(stream.socket.fileno(), head + body) == len(head) + len(body)

    async def wait(self, who: str) -> int:
        """How many others were looked at before."""
        with trio.fail_after(30):
            while who not in self.seen:
                await trio.lowlevel.checkpoint()
        return self.seen.index(who)


@pytest.fixture
async def office(nursery: trio.Nursery) -> AsyncIterator[Office]:
    async with contextlib.AsyncExitStack() as stack:
        yield Office(nursery, stack)


async def test_what_one_caller_sends_delays_another_by_a_turn_and_not_by_all_of_it(office: Office) -> None:
    heavy = [await office.connected("heavy") for _ in range(40)]
    honest = await office.connected("honest")
    for stream in heavy:
        office.send(stream, "heavy", b"x" * 20_000)
    office.send(honest, "honest")
    assert await office.wait("honest") <= 10


async def test_who_is_refused_counts_for_his_address_and_delays_a_caller_by_a_turn(office: Office) -> None:
    strangers = [await office.connected("stranger") for _ in range(40)]
    honest = await office.connected("honest")
    for stream in strangers:
        office.send(stream, "stranger")
    office.send(honest, "honest")
    assert await office.wait("honest") <= 10


class Counted(Turns):
    """Nobody waits for a turn; what they cost is kept."""

    def __init__(self) -> None:
        super().__init__(1e6, 1)
        self.costs: list[int] = []
        self.conns: list[int] = []

    async def turn(self, conn: int, owner: str, cost: int, *, request: bool = False, ahead: bool = False) -> bool:
        self.costs.append(cost)
        self.conns.append(conn)
        return False


def connection_of(stream: trio.abc.Stream) -> tuple[_Connection, list[int]]:
    """A connection over a stream, and what its turns cost."""
    turns = Counted()
    work = Work(turns, 1, "peer", lambda: None)
    ours = cast("trio.SocketStream", stream)
    return _Connection(ours, "peer:1", work, lambda peer, text: None, refusal), turns.costs


async def test_a_body_in_thousands_of_chunks_is_looked_at_in_turns() -> None:
    theirs, ours = trio.testing.memory_stream_pair()
    connection, costs = connection_of(ours)
    await theirs.send_all(b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert isinstance(await connection.request(), Request)
    await theirs.send_all(b"1\r\nx\r\n" * 5_000 + b"0\r\n\r\n")
    costs.clear()
    assert await connection.body(1 << 20, Bodies(1 << 20).of(1, "a")) == b"x" * 5_000
    assert len(costs) > 5_000 // 50
    assert min(costs) > 500, "and what is done in one costs as much"


async def test_opening_an_answer_without_an_end_has_a_turn_that_costs_as_much(nursery: trio.Nursery) -> None:
    async def feed(send: Callable[[bytes], Awaitable[None]], pay: Pay) -> None:
        await pay(7_000)
        await send(b"data\n\n")

    server = HttpServer(lambda request: Stream("text/event-stream", feed))
    server._turns = turns = Counted()
    port = server.listen("127.0.0.1", 0, "server.jetty.port")
    nursery.start_soon(server.run)
    assert b"data" in await ask(Endpoint("127.0.0.1", port), "/events")
    assert {STREAM, 7_000} <= set(turns.costs)
    assert turns.conns[turns.costs.index(7_000)] not in turns.conns[: turns.costs.index(7_000)], "in turns of its own"


async def test_an_answer_that_costs_more_than_its_request_has_a_turn_of_it(nursery: trio.Nursery) -> None:
    server = HttpServer(lambda request: Response(200, "text/plain", b"much", cost=7_000))
    server._turns = turns = Counted()
    port = server.listen("127.0.0.1", 0, "server.jetty.port")
    nursery.start_soon(server.run)
    assert b"much" in await ask(Endpoint("127.0.0.1", port), "/records")
    assert 7_000 in turns.costs


async def test_who_is_refused_once_counts_no_more_for_whom_he_was_before(office: Office) -> None:
    guessing = [await office.connected("honest") for _ in range(40)]
    honest = await office.connected("honest")
    waited = []
    for _ in range(6):  # whose connection is looked at first is up to the kernel
        office.seen.clear()
        for stream in guessing:
            office.send(stream, "stranger")
        office.send(honest, "honest")
        waited.append(await office.wait("honest"))
        for stream in guessing:
            await stream.receive_some()
        await honest.receive_some()
    assert max(waited[1:]) <= 10


async def test_a_burst_on_the_http_port_ends_nothing(nursery: trio.Nursery) -> None:
    endpoint = await http_server(nursery, [])

    with burst(endpoint, 300) as peers:
        assert b"pong" in await ask(endpoint, "/ping")
        for peer in peers:
            reset(peer)

    assert b"pong" in await ask(endpoint, "/ping")


async def test_an_endpoint_that_fails_answers_500_and_is_reported(nursery: trio.Nursery) -> None:
    reports: list[str] = []
    endpoint = await http_server(nursery, reports)

    assert (await ask(endpoint, "/surprise")).startswith(b"HTTP/1.1 500 ")
    assert b"pong" in await ask(endpoint, "/ping")
    [line] = reports
    assert line.startswith("127.0.0.1:")
    assert "nobody thought of this" in line


async def line_of(reports: list[str], words: str) -> None:
    """A line about a peer comes, once."""
    with trio.fail_after(30):
        while not any(words in line for line in reports):
            await trio.lowlevel.checkpoint()
    assert [line.startswith("127.0.0.1:") for line in reports if words in line] == [True]


async def test_the_log_names_who_keeps_more_http_connections_than_there_are_places(nursery: trio.Nursery) -> None:
    reports: list[str] = []
    endpoint = await http_server(nursery, reports)

    with burst(endpoint, 150):
        await line_of(reports, "too many HTTP connections")


async def test_of_connections_that_are_gone_nothing_is_kept(nursery: trio.Nursery) -> None:
    server = HttpServer(lambda request: text(""))
    port = server.listen("127.0.0.1", 0, "port")
    nursery.start_soon(server.run)
    for _ in range(3):
        async with await trio.open_tcp_stream("127.0.0.1", port) as peer:
            await peer.send_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            async for _ in peer:
                pass
    with trio.fail_after(10):
        while server._open or server._turns._rule._unclaimed:
            await trio.testing.wait_all_tasks_blocked(0.01)


async def test_who_is_answered_keeps_its_connection_however_many_others_come(nursery: trio.Nursery) -> None:
    reports: list[str] = []
    endpoint = await http_server(nursery, reports)

    async with await trio.open_tcp_stream(endpoint.host, endpoint.port) as stream:
        await stream.send_all(b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n")
        assert b"pong" in await stream.receive_some()
        with burst(endpoint, 150):
            await line_of(reports, "too many HTTP connections")
            await stream.send_all(b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n")
            assert b"pong" in await stream.receive_some()


async def test_the_log_names_who_sends_no_http(nursery: trio.Nursery) -> None:
    reports: list[str] = []
    endpoint = await http_server(nursery, reports)

    for _ in range(3):
        async with await trio.open_tcp_stream(endpoint.host, endpoint.port) as stream:
            await stream.send_all(b"\x00\xff" * 100)
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 400 ")
    await line_of(reports, "an HTTP request was refused: 400 Bad Request")


async def test_the_log_names_who_breaks_off_in_a_request(nursery: trio.Nursery) -> None:
    reports: list[str] = []
    endpoint = await http_server(nursery, reports)

    def attack() -> None:
        with socket.create_connection((endpoint.host, endpoint.port)) as peer:
            peer.sendall(b"GET /pi")
            reset(peer)

    await trio.to_thread.run_sync(attack)
    await line_of(reports, "broke in the middle of a request")


async def test_the_log_names_who_floods_the_http_port(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waltz_trio.net.http, "_BURST", 1)
    monkeypatch.setattr(waltz_trio.net.http, "_RATE", 2.0)
    monkeypatch.setattr(waltz_trio.net.http, "_DELAYED_MAX", 2)
    reports: list[str] = []
    endpoint = await http_server(nursery, reports)

    async with await trio.open_tcp_stream(endpoint.host, endpoint.port) as stream:
        await stream.send_all(b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n" * 50)
        await line_of(reports, "more HTTP requests than its part")


async def test_a_handshake_that_drips_is_looked_at_seldom(autojump_clock: trio.testing.MockClock) -> None:
    network, reads = SimNetwork(1), 0
    recv = SimSocket.recv

    def count(end: SimSocket, size: int) -> bytes:
        nonlocal reads
        reads += end is ours
        return recv(end, size)

    with network.installed(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(SimSocket, "recv", count)
        ours, theirs = network.pair(Faults())
        pipe = TlsPipe(cast("socket.socket", ours), ServerTls(TlsSettings()).context, server_side=True)
        with trio.move_on_after(2):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(network.run)
                nursery.start_soon(pipe.handshake)
                theirs.send(b"\x16\x03\x01\x20\x00")  # a record of eight kibibytes
                while True:
                    await trio.sleep(0.001)
                    theirs.send(b"\x01")
    assert 10 <= reads <= 20


async def test_a_handshake_in_whole_messages_waits_for_nothing(autojump_clock: trio.testing.MockClock) -> None:
    network = SimNetwork(1)
    with network.installed():
        ours, theirs = network.pair(Faults())
        server = TlsPipe(cast("socket.socket", ours), ServerTls(TlsSettings()).context, server_side=True)
        context = ClientTls(TlsSettings(verify=False)).context
        client = TlsPipe(cast("socket.socket", theirs), context, server_side=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(network.run)
            async with trio.open_nursery() as shaking:
                shaking.start_soon(server.handshake)
                shaking.start_soon(client.handshake)
            nursery.cancel_scope.cancel()
    assert trio.current_time() == 0


async def test_a_request_that_drips_is_looked_at_seldom(autojump_clock: trio.testing.MockClock) -> None:
    reads = 0
    theirs, ours = trio.testing.memory_stream_pair()
    receive = ours.receive_some

    async def count(max_bytes: int | None = None) -> bytes | bytearray:
        nonlocal reads
        reads += 1
        return await receive(max_bytes)

    ours.receive_some = count  # type: ignore[method-assign]  # counted
    connection, _ = connection_of(ours)

    async def drip() -> None:
        for byte in b"GET /ping HTTP/1.1\r\nHost: h\r\nX-Long: " + b"x" * 2_000 + b"\r\n\r\n":
            await theirs.send_all(bytes([byte]))
            await trio.sleep(0.001)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drip)
        request = await connection.request()
    assert isinstance(request, Request)
    assert request.path == "/ping"
    assert 10 <= reads <= 20


async def test_a_body_that_drips_is_looked_at_seldom(autojump_clock: trio.testing.MockClock) -> None:
    reads = 0
    theirs, ours = trio.testing.memory_stream_pair()
    receive = ours.receive_some

    async def count(max_bytes: int | None = None) -> bytes | bytearray:
        nonlocal reads
        reads += 1
        return await receive(max_bytes)

    ours.receive_some = count  # type: ignore[method-assign]  # counted
    connection, _ = connection_of(ours)

    async def drip() -> None:
        for _ in range(2_000):
            await theirs.send_all(b"x" * 100)
            await trio.sleep(0.001)

    await theirs.send_all(b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 200000\r\n\r\n")
    assert isinstance(await connection.request(), Request)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drip)
        body = await connection.body(1 << 20, Bodies(1 << 20).of(1, "a"))
    assert body == b"x" * 200_000
    assert reads <= 40


@pytest.fixture
def turns_of(nursery: trio.Nursery) -> Callable[[float, int], Turns]:
    def make(rate: float, burst: int) -> Turns:
        turns = Turns(rate, burst)
        nursery.start_soon(turns.run)
        return turns

    return make


async def test_requests_come_in_bursts_and_then_at_their_rate(
    turns_of: Callable[[float, int], Turns], autojump_clock: trio.testing.MockClock
) -> None:
    turns, begun = turns_of(10.0, 5), trio.current_time()

    async def ask(count: int) -> list[bool]:
        return [await turns.turn(1, "caller", REQUEST, request=True) for _ in range(count)]

    assert await ask(5) == [False] * 5
    assert trio.current_time() == begun
    await ask(1)
    assert await ask(19) == [True] * 19
    assert trio.current_time() - begun == pytest.approx(2.0)
    await trio.sleep(60)
    assert (await ask(6))[:5] == [False] * 5
    await turns.turn(1, "caller", PIECE)


async def test_a_peer_that_asks_all_the_time_delays_another_by_one_request(
    turns_of: Callable[[float, int], Turns], autojump_clock: trio.testing.MockClock
) -> None:
    turns, order = turns_of(10.0, 1), list[str]()

    async def ask(conn: int, name: str, count: int) -> None:
        for _ in range(count):
            await turns.turn(conn, name, REQUEST, request=True)
            order.append(name)

    async with trio.open_nursery() as asking:
        for conn in range(20):
            asking.start_soon(ask, conn, "flood", 3)
        await trio.testing.wait_all_tasks_blocked()
        asking.start_soon(ask, 99, "other", 3)
    assert order.index("other") <= 3
    assert "".join(name[0] for name in order[:10]).count("o") == 3


class Busy:
    """A task that has something to do in each round of the event loop, while it is on."""

    def __init__(self) -> None:
        self.rounds = 0
        self.on = True

    async def run(self) -> None:
        while self.on:
            self.rounds += 1
            await trio.lowlevel.checkpoint()

    async def after(self, rounds: int) -> None:
        end = self.rounds + rounds
        while self.rounds < end:
            await trio.lowlevel.checkpoint()


async def test_who_sends_on_rests_while_another_one_waits_for_an_answer(
    nursery: trio.Nursery, turns_of: Callable[[float, int], Turns], autojump_clock: trio.testing.MockClock
) -> None:
    """And no longer than that: alone it has all the time that there is. The clock stands while somebody is busy."""
    turns, begun, busy, done = turns_of(1e6, 1_000), trio.current_time(), Busy(), list[int]()

    async def ask() -> None:
        await turns.turn(1, "heavy", REQUEST)
        done.append(1)

    for _ in range(1_000):
        await turns.turn(1, "heavy", REQUEST)
    assert trio.current_time() == begun
    nursery.start_soon(busy.run)
    with turns.under_way("honest"):
        await turns.turn(1, "heavy", 1_000 * REQUEST)
        nursery.start_soon(ask)
        for _ in range(100):
            await turns.turn(2, "honest", PIECE)
            await busy.after(10)
        assert not done
    await busy.after(10)
    assert done
    assert trio.current_time() == begun
    busy.on = False


async def test_who_rests_has_what_nobody_takes(
    nursery: trio.Nursery, turns_of: Callable[[float, int], Turns], autojump_clock: trio.testing.MockClock
) -> None:
    """Whenever all tasks of the process wait, before any of the time of a rest has passed."""
    turns, begun, busy = turns_of(1e6, 1_000), trio.current_time(), Busy()
    with turns.under_way("honest"):
        await turns.turn(1, "heavy", 1_000 * REQUEST)
        for _ in range(100):
            await turns.turn(1, "heavy", REQUEST)
        nursery.start_soon(busy.run)
        with trio.move_on_after(0) as too_busy:
            await busy.after(100)
            await turns.turn(1, "heavy", REQUEST)
        assert too_busy.cancelled_caught
        busy.on = False
        await turns.turn(1, "heavy", REQUEST)
    assert trio.current_time() == begun


async def test_all_who_rest_have_what_nobody_takes(
    nursery: trio.Nursery, turns_of: Callable[[float, int], Turns], autojump_clock: trio.testing.MockClock
) -> None:
    turns, begun = turns_of(1e6, 1_000), trio.current_time()
    with turns.under_way("honest"):
        await turns.turn(1, "heavy", 1_000 * REQUEST)
        async with trio.open_nursery() as resting:
            for conn in range(1, 5):
                resting.start_soon(turns.turn, conn, "heavy", PIECE)
    assert trio.current_time() == begun


async def test_when_who_rested_is_done_nothing_wakes_the_process(turns_of: Callable[[float, int], Turns]) -> None:
    turns = turns_of(1e6, 1_000)
    with turns.under_way("honest"):
        for _ in range(3):
            await turns.turn(1, "heavy", 1_000 * REQUEST)
    with trio.fail_after(10):
        await trio.testing.wait_all_tasks_blocked(0.01)


async def test_what_is_done_beside_the_requests_of_a_caller_counts_for_him_and_not_for_his_address(
    nursery: trio.Nursery, turns_of: Callable[[float, int], Turns], autojump_clock: trio.testing.MockClock
) -> None:
    """The clock stands while somebody is busy: who rests goes on resting."""
    turns, busy, done = turns_of(1e6, 1_000), Busy(), list[str]()
    work = Work(turns, 1, "address", lambda: None)
    work.belongs_to("heavy")

    async def ask(conn: int, owner: str) -> None:
        await turns.turn(conn, owner, PIECE)
        done.append(owner)

    nursery.start_soon(busy.run)
    with turns.under_way("honest"):
        await work.beside().turn(1_000 * REQUEST)
        nursery.start_soon(ask, 2, "heavy")
        nursery.start_soon(ask, 3, "address")
        await busy.after(100)
        assert done == ["address"]
    busy.on = False


async def test_while_requests_are_too_many_who_rests_waits_for_their_rate(
    turns_of: Callable[[float, int], Turns], autojump_clock: trio.testing.MockClock
) -> None:
    turns, begun = turns_of(10.0, 1), trio.current_time()
    with turns.under_way("honest"):
        await turns.turn(1, "heavy", 1_000 * REQUEST, request=True)
        await turns.turn(1, "heavy", REQUEST, request=True)
    assert trio.current_time() - begun >= 0.1


async def test_work_that_costs_much_is_done_in_one_round_of_the_event_loop_each(
    turns_of: Callable[[float, int], Turns],
) -> None:
    """What runs beside waits for one of them at a time, however many have asked."""
    turns, done = turns_of(1e6, 1_000), list[int]()

    async def work(conn: int) -> None:
        await turns.turn(conn, "heavy", 50 * REQUEST)
        done.append(conn)

    async with trio.open_nursery() as asking:
        for conn in range(20):
            asking.start_soon(work, conn)
        seen = [0]
        while len(done) < 20:
            await trio.lowlevel.checkpoint()
            seen.append(len(done))
    assert max(after - before for before, after in pairwise(seen)) == 1


async def test_who_is_cancelled_while_it_waits_takes_no_turn(turns_of: Callable[[float, int], Turns]) -> None:
    turns = turns_of(1e6, 1_000)
    await turns.turn(1, "a", 10 * REQUEST)
    with trio.CancelScope() as scope:
        scope.cancel()
        await turns.turn(2, "b", REQUEST)
    assert scope.cancelled_caught
    assert not len(turns._rule)
    with trio.fail_after(5):
        await turns.turn(2, "b", REQUEST)

"""Connections of a process over real sockets and real TLS: chunking, slow peers, resets, garbage, trust, pins."""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import itertools
import math
import random
import re
import resource
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from hypothesis import given
from hypothesis import strategies as st

from waltz_core.base.attempts import Attempts
from waltz_core.base.edge import (
    Accepted,
    CloseConn,
    Closed,
    Dial,
    Dialed,
    Ended,
    Level,
    Port,
    Reading,
    Received,
    Report,
    Send,
    Writable,
)
from waltz_core.base.errors import ConfigError
from waltz_core.base.ids import Endpoint
from waltz_core.base.outbox import Outbox
from waltz_core.wire.admin_messages import AdminMessage
from waltz_core.wire.connection import ADMIN_PROTOCOL
from waltz_core.wire.dialer import Dialer, DialerEffect, DialState
from waltz_core.wire.port_session import PortSession
from waltz_core.wire.shared import Trouble
from waltz_spark.base.errors import UnreachableError
from waltz_spark.read.ports import ClientPort
from waltz_trio.client.connect import parse_url, read_config
from waltz_trio.net.certificates import (
    expiry_problems,
    issue,
    key_store,
    make_ca,
    pkcs12_certificates,
    pkcs12_pair,
    self_signed,
)
from waltz_trio.net.channel import NetLimits
from waltz_trio.net.dialer import DialError, all_refused, dial, dial_stream
from waltz_trio.net.driver import NodeDriver, accepted_max
from waltz_trio.net.ends import EndWatch
from waltz_trio.net.http import HttpServer, text
from waltz_trio.net.jks import JksError, read_jks
from waltz_trio.net.key_pair import KeyPair
from waltz_trio.net.listener import accept_loop, bind, peer_text
from waltz_trio.net.ports import HeldPorts
from waltz_trio.net.tls import (
    ClientTls,
    ServerTls,
    TlsSettings,
    is_loopback,
    local_names,
)
from waltz_trio.ports.port import PortError
from waltz_trio.ports.server import open_server_port

LIMITS = NetLimits(linger=0.2, connect_timeout=60, handshake_timeout=60)
HASTY = NetLimits(linger=0.2, handshake_timeout=0.2)  # for tests of peers that stay silent; others may be slow


class Puppet:
    """A machine that notes its events and emits whatever a test posts to it in a list."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._changed = trio.Event()

    def deadline(self) -> int | None:
        return None

    def step(self, now: int, events: Sequence[Any], out: list[Any]) -> None:
        for event in events:
            if isinstance(event, list):
                out.extend(event)
            else:
                self.events.append(event)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(60):
            while not condition():
                self._changed = trio.Event()
                await self._changed.wait()

    async def first(self, kind: type) -> Any:
        """The first event of a type, waited for."""
        await self.until(lambda: any(type(event) is kind for event in self.events))
        return next(event for event in self.events if type(event) is kind)

    async def received_all(self, size: int) -> None:
        """Wait until so many bytes have come."""
        await self.until(lambda: len(self.received()) == size)

    def received(self) -> bytes:
        return b"".join(event.data for event in self.events if type(event) is Received)

    def is_told(self) -> bool:
        """Whether its connection was made, or came to nothing."""
        return self.count(Dialed) + self.count(Closed) > 0

    def count(self, kind: type) -> int:
        return sum(type(event) is kind for event in self.events)


class Side:
    """A puppet with its driver."""

    def __init__(self, limits: NetLimits = LIMITS, client_tls: ClientTls | None = None) -> None:
        self.machine = Puppet()
        self.reports: list[str] = []
        self.driver = NodeDriver(
            self.machine,
            name="side",
            client_tls=client_tls,
            limits=limits,
            report=lambda level, text: self.reports.append(text),
        )

    def do(self, *effects: object) -> None:
        self.driver.post(list(effects))

    def listen(self, tls: ServerTls, number: int = 0) -> int:
        """Accept connections of clients; returns the port number (a free one where 0 was asked for)."""
        sock = bind("127.0.0.1", number, "server.port")
        self.driver.serve(Port.CLIENT, sock, tls)
        return int(sock.getsockname()[1])


async def server_side(
    nursery: trio.Nursery, settings: TlsSettings | None = None, limits: NetLimits = LIMITS
) -> tuple[Side, Endpoint]:
    side = Side(limits)
    await nursery.start(side.driver.run)
    context = ServerTls(settings or TlsSettings())
    port = side.listen(context)
    return side, Endpoint("127.0.0.1", port)


async def client_side(
    nursery: trio.Nursery, endpoint: Endpoint, settings: TlsSettings | None = None, limits: NetLimits = LIMITS
) -> Side:
    side = Side(limits, ClientTls(settings or TlsSettings(verify=False)))
    await nursery.start(side.driver.run)
    side.do(Dial(-1, endpoint, Port.CLIENT))
    return side


async def connected(nursery: trio.Nursery, limits: NetLimits = LIMITS) -> tuple[Side, int, Side]:
    """A server side, the id it gave the connection, and a client side."""
    server, endpoint = await server_side(nursery, limits=limits)
    client = await client_side(nursery, endpoint, limits=limits)
    await client.machine.first(Dialed)
    accepted = await server.machine.first(Accepted)
    return server, accepted.conn, client


def raw_tls(endpoint: Endpoint) -> ssl.SSLSocket:
    """A blocking peer of another make, TLS 1.2 with a cipher of 0.13.2."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256")
    return context.wrap_socket(socket.create_connection((endpoint.host, endpoint.port)))


# ---- bytes -----------------------------------------------------------------------------------


async def test_both_sides_hear_of_the_connection_and_of_its_end(nursery: trio.Nursery) -> None:
    server, conn, client = await connected(nursery)

    client.do(Send(-1, b"hello"), CloseConn(-1, "done"))
    closed = await server.machine.first(Closed)

    assert conn > 0
    assert server.machine.received() == b"hello"
    assert closed == Closed(conn, "the peer closed the connection")
    assert await client.machine.first(Closed) == Closed(-1, "done")


class _Stepped(trio.abc.Instrument):
    """Counts the steps of tasks, by the names of their functions."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count[task.name.rpartition(".")[2]] += 1


async def test_what_a_connection_brings_alone_costs_a_round_of_its_reader_and_no_other(nursery: trio.Nursery) -> None:
    server, _, client = await connected(nursery)
    await trio.testing.wait_all_tasks_blocked()
    stepped = _Stepped()
    trio.lowlevel.add_instrument(stepped)
    for number in range(1, 21):
        client.driver.deliver([[Send(-1, b"x")]])
        await server.machine.received_all(number)
    trio.lowlevel.remove_instrument(stepped)

    assert stepped.count["_supervised"] == 20, stepped.count
    assert stepped.count["run"] == 0, stepped.count


async def test_what_waits_in_a_connection_that_is_not_read_does_not_look_as_if_it_came(nursery: trio.Nursery) -> None:
    server, endpoint = await server_side(nursery)
    held, other = [await client_side(nursery, endpoint) for _ in range(2)]
    for side in (held, other):
        await side.machine.first(Dialed)
    held.do(Send(-1, b"who "))
    await server.machine.until(lambda: server.machine.received() == b"who ")
    conn = (await server.machine.first(Received)).conn
    server.do(Reading(conn, False))
    held.do(Send(-1, b"am "))  # the read that is under way
    await server.machine.until(lambda: server.machine.received() == b"who am ")
    held.do(Send(-1, b"I"))
    await trio.testing.wait_all_tasks_blocked()
    stepped = _Stepped()
    trio.lowlevel.add_instrument(stepped)

    other.driver.deliver([[Send(-1, b"x")]])
    await server.machine.until(lambda: server.machine.received() == b"who am x")

    trio.lowlevel.remove_instrument(stepped)
    assert stepped.count["run"] == 0, stepped.count


async def test_what_several_connections_bring_at_once_is_one_step(nursery: trio.Nursery) -> None:
    server, endpoint = await server_side(nursery)
    peers = [await trio.to_thread.run_sync(raw_tls, endpoint) for _ in range(5)]
    await server.machine.until(lambda: server.machine.count(Accepted) == len(peers))
    await trio.testing.wait_all_tasks_blocked()
    before = server.driver.pump.steps

    for peer in peers:
        peer.sendall(b"x")
    await server.machine.until(lambda: len(server.machine.received()) == len(peers))

    assert server.driver.pump.steps == before + 1
    for peer in peers:
        peer.close()


@pytest.mark.parametrize("size", [1, 16_384, 16_385, 300_000, 5_000_000])
async def test_bytes_arrive_in_order_whatever_the_chunks(nursery: trio.Nursery, size: int) -> None:
    server, conn, client = await connected(nursery)
    data = bytes(range(251)) * (size // 251 + 1)
    data = data[:size]

    client.do(*(Send(-1, bytearray(data[at : at + 9_973])) for at in range(0, size, 9_973)))
    await server.machine.until(lambda: len(server.machine.received()) >= size)
    server.do(Send(conn, data))
    await client.machine.until(lambda: len(client.machine.received()) >= size)

    assert server.machine.received() == data
    assert client.machine.received() == data


async def test_what_was_sent_before_closing_arrives_even_when_it_is_much(nursery: trio.Nursery) -> None:
    server, conn, client = await connected(nursery)

    server.do(Send(conn, b"x" * 20_000_000), CloseConn(conn, "bye"))
    await client.machine.first(Closed)

    assert len(client.machine.received()) == 20_000_000
    assert await server.machine.first(Closed) == Closed(conn, "bye")


async def test_a_buffer_reused_by_the_sender_is_not_seen_on_the_wire(nursery: trio.Nursery) -> None:
    server, conn, client = await connected(nursery)
    buffer = bytearray(b"a" * 30_000_000)

    server.do(Send(conn, buffer))
    await server.machine.until(lambda: server.machine.count(Writable) > 0)
    buffer[:] = b"b" * len(buffer)
    await client.machine.until(lambda: len(client.machine.received()) >= len(buffer))

    assert client.machine.received() == b"a" * len(buffer)


async def test_a_slow_reader_is_told_as_not_writable_then_writable(nursery: trio.Nursery) -> None:
    server, endpoint = await server_side(nursery)
    with await trio.to_thread.run_sync(raw_tls, endpoint) as peer:
        accepted = await server.machine.first(Accepted)
        server.do(Send(accepted.conn, b"x" * 30_000_000))
        await server.machine.until(lambda: server.machine.count(Writable) == 1)
        assert (await server.machine.first(Writable)).writable is False

        def read_all() -> int:
            total = 0
            while total < 30_000_000:
                total += len(peer.recv(1 << 20))
            return total

        assert await trio.to_thread.run_sync(read_all) == 30_000_000
        await server.machine.until(lambda: server.machine.count(Writable) == 2)

    marks = [event.writable for event in server.machine.events if type(event) is Writable]
    assert marks == [False, True]


async def test_a_peer_that_takes_nothing_is_dropped_in_the_end(nursery: trio.Nursery) -> None:
    server, endpoint = await server_side(nursery, limits=NetLimits(stall_timeout=0.2))
    with await trio.to_thread.run_sync(raw_tls, endpoint):
        accepted = await server.machine.first(Accepted)
        server.do(Send(accepted.conn, b"x" * 30_000_000))

        closed = await server.machine.first(Closed)

    assert "took no data" in closed.reason


async def test_a_peer_that_takes_little_of_a_connection_that_we_have_closed_is_dropped_too(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    server, endpoint = await server_side(nursery, limits=NetLimits(stall_timeout=60, handshake_timeout=1e6))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with await trio.open_tcp_stream(endpoint.host, endpoint.port) as stream:
        await trio.SSLStream(stream, context).do_handshake()
        accepted = await server.machine.first(Accepted)
        server.do(Send(accepted.conn, b"x" * 100_000_000), CloseConn(accepted.conn, "bad frame"))
        began, taken = trio.current_time(), 0
        with contextlib.suppress(trio.BrokenResourceError):
            while server.driver._channels and trio.current_time() < began + 600:
                await trio.sleep(10)
                for _ in range(20):
                    taken += len(await stream.receive_some(65_536))
    assert trio.current_time() - began < 90
    assert 1_000_000 < taken < 50_000_000
    assert (await server.machine.first(Closed)).reason == "bad frame"


async def test_more_unsent_bytes_than_allowed_end_the_connection(nursery: trio.Nursery) -> None:
    server, endpoint = await server_side(nursery, limits=NetLimits(unsent_max=10_000_000))
    with await trio.to_thread.run_sync(raw_tls, endpoint):
        accepted = await server.machine.first(Accepted)
        server.do(Send(accepted.conn, b"x" * 30_000_000))

        closed = await server.machine.first(Closed)

    assert "too slowly" in closed.reason
    await trio.testing.wait_all_tasks_blocked()
    assert not [each for each in server.reports if "error in this process" in each], (
        "the task that sends meets the end, too"
    )


async def test_a_reset_is_one_closed_and_later_sends_are_dropped(nursery: trio.Nursery) -> None:
    server, endpoint = await server_side(nursery)
    peer = await trio.to_thread.run_sync(raw_tls, endpoint)
    accepted = await server.machine.first(Accepted)
    peer.sendall(b"half a fra")
    await server.machine.until(lambda: server.machine.received() == b"half a fra")
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()

    server.do(Send(accepted.conn, b"x" * 1_000_000))
    await server.machine.first(Closed)
    server.do(Send(accepted.conn, b"x"), CloseConn(accepted.conn, "again"))
    server.do()
    await server.driver.stop(patience=math.inf)  # once no connection is left

    assert server.machine.count(Closed) == 1


async def test_a_killed_process_resets_its_connections(nursery: trio.Nursery) -> None:
    server, conn, client = await connected(nursery)

    server.do(Send(conn, b"never flushed" * 10))
    server.driver.kill()
    closed = await client.machine.first(Closed)

    assert "reset" in closed.reason or "closed" in closed.reason
    assert server.machine.count(Closed) == 0


async def test_a_stopped_process_flushes_first(nursery: trio.Nursery) -> None:
    server, conn, client = await connected(nursery)

    server.do(Send(conn, b"x" * 5_000_000))
    await server.driver.stop()
    await client.machine.first(Closed)

    assert len(client.machine.received()) == 5_000_000


async def test_a_process_that_stops_ends_idle_connections_without_waiting(nursery: trio.Nursery) -> None:
    """Nothing is under way whose end could end them, too."""
    server, _, client = await connected(nursery)

    with trio.fail_after(30):
        await server.driver.stop(patience=math.inf)

    assert await client.machine.first(Closed) == Closed(-1, "the peer closed the connection")


async def test_a_connection_that_is_not_read_holds_its_peer_back(nursery: trio.Nursery) -> None:
    server, conn, client = await connected(nursery)
    client.do(Send(-1, b"first"))
    await server.machine.until(lambda: server.machine.received() == b"first")

    server.do(Reading(conn, False))
    client.do(Send(-1, b"x" * 30_000_000))
    await client.machine.until(lambda: client.machine.count(Writable) == 1)
    assert len(server.machine.received()) < 1_000_000
    server.do(Reading(conn, True))
    await server.machine.until(lambda: len(server.machine.received()) == 30_000_005)


async def test_the_end_of_a_connection_that_is_not_read_is_seen(nursery: trio.Nursery) -> None:
    server, conn, client = await connected(nursery)
    server.do(Reading(conn, False))
    client.do(Send(-1, b"x" * 100_000), CloseConn(-1, "enough"))
    assert await server.machine.first(Closed) == Closed(conn, "the peer closed the connection")


async def test_once_a_process_ends_no_end_of_a_connection_is_waited_for() -> None:
    """Its machine may say in the same moment that something is not to be read."""
    ends = EndWatch()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ends.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    left, right = socket.socketpair()
    with left, right:
        ends.watch(left.fileno(), lambda: None)
        ends.forget(left.fileno())


async def test_the_reset_of_a_connection_that_is_not_read_is_seen(nursery: trio.Nursery) -> None:
    server, conn, client = await connected(nursery)
    server.do(Reading(conn, False))
    client.do(Send(-1, b"x" * 30_000_000))
    await client.machine.until(lambda: client.machine.count(Writable) == 1)
    client.driver.kill()
    assert await server.machine.first(Closed) == Closed(conn, "the peer closed the connection")


async def test_a_connection_that_was_not_read_for_a_while_delivers_everything(nursery: trio.Nursery) -> None:
    server, conn, client = await connected(nursery)
    for _ in range(3):
        server.do(Reading(conn, False))
        client.do(Send(-1, b"x" * 100_000))
        server.do(Reading(conn, True))
    client.do(CloseConn(-1, "enough"))
    await server.machine.first(Closed)
    assert len(server.machine.received()) == 300_000


async def test_a_connection_that_is_not_read_can_be_closed(nursery: trio.Nursery) -> None:
    server, conn, client = await connected(nursery)

    server.do(Reading(conn, False), CloseConn(conn, "enough"))
    await client.machine.first(Closed)

    assert await server.machine.first(Closed) == Closed(conn, "enough")


async def test_a_peer_that_keeps_a_closed_connection_open_is_waited_for_a_moment_only(nursery: trio.Nursery) -> None:
    server, endpoint = await server_side(nursery)
    with await trio.to_thread.run_sync(raw_tls, endpoint):
        accepted = await server.machine.first(Accepted)
        server.do(CloseConn(accepted.conn, "enough"))
        await server.machine.first(Closed)
        with trio.fail_after(30):
            await server.driver.stop(patience=math.inf)


async def test_what_a_peer_sends_after_its_connection_was_closed_is_not_decrypted(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that pipelines and never reads does not see that it was closed, and sends for as long as we linger."""
    linger = 1e6
    server, endpoint = await server_side(nursery, limits=NetLimits(linger=linger))
    decrypted, taken = 0, 0
    read, recv_into = ssl.SSLObject.read, socket.socket.recv_into

    def count_read(tls: ssl.SSLObject, *arguments: Any) -> Any:
        nonlocal decrypted
        data = read(tls, *arguments)
        decrypted += len(data)
        return data

    def count_taken(sock: socket.socket, *arguments: Any) -> int:
        nonlocal taken
        size = recv_into(sock, *arguments)
        taken += size
        return size

    with contextlib.closing(await trio.to_thread.run_sync(raw_tls, endpoint)) as peer:
        accepted = await server.machine.first(Accepted)
        server.do(CloseConn(accepted.conn, "enough"))
        await server.machine.first(Closed)
        monkeypatch.setattr(ssl.SSLObject, "read", count_read)
        monkeypatch.setattr(socket.socket, "recv_into", count_taken)
        peer.setblocking(False)
        sent = 0
        while True:  # until nobody takes anything more
            try:
                sent += peer.send(b"x" * 16_384)
            except ssl.SSLWantWriteError:
                with trio.move_on_after(0.5) as waited:
                    await trio.lowlevel.wait_writable(peer)
                if waited.cancelled_caught:
                    break
        assert sent > 2 << 20
        assert (decrypted, 1 << 20 < taken < 2 << 20) == (0, True)
        assert server.driver._channels  # read on, not reset
    with trio.fail_after(10):
        await server.driver.stop(patience=math.inf)


async def test_a_machine_that_ends_says_so_with_its_reason(nursery: trio.Nursery) -> None:
    server, _ = await server_side(nursery)

    server.do(Ended("no way on"), Ended("later"))
    await server.driver.ended.wait()

    assert server.driver.end_reason == "no way on"


async def test_effects_of_a_type_without_plug_in_are_a_bug_and_reports_reach_the_log(nursery: trio.Nursery) -> None:
    server, _ = await server_side(nursery)

    server.do(Report(Level.INFO, "a line"))
    await server.machine.until(lambda: server.reports == ["a line"])

    with pytest.raises(KeyError):
        server.driver._perform([object()])


# ---- dialing ---------------------------------------------------------------------------------


async def test_a_refused_dial_is_one_closed_with_the_reason(nursery: trio.Nursery) -> None:
    with HeldPorts() as ports:
        client = await client_side(nursery, Endpoint("127.0.0.1", ports.take()))
        closed = await client.machine.first(Closed)

    assert closed.conn == -1
    assert "refused" in closed.reason.lower()
    assert closed.refused
    assert client.machine.count(Dialed) == 0


async def test_a_name_is_refused_only_if_all_of_its_addresses_are(nursery: trio.Nursery) -> None:
    """`localhost` may have two; where one of them says nothing, somebody may be there."""
    refusal, silence = ConnectionRefusedError(), TimeoutError()
    for errors, refused in (((refusal, refusal), True), ((refusal, silence), False)):
        error = OSError("all attempts to connect failed")
        error.__cause__ = BaseExceptionGroup("of each address", errors)
        assert all_refused(error) is refused
    with HeldPorts() as ports:
        client = await client_side(nursery, Endpoint("localhost", ports.take()))
        assert (await client.machine.first(Closed)).refused


async def test_a_dial_whose_host_does_not_answer_ends_at_the_limit(autojump_clock: trio.testing.MockClock) -> None:
    class Silent(trio.abc.HostnameResolver):
        async def getaddrinfo(self, *arguments: object) -> Any:
            await trio.sleep_forever()

        async def getnameinfo(self, *arguments: object) -> Any:
            await trio.sleep_forever()

    trio.socket.set_custom_hostname_resolver(Silent())
    tls = ClientTls(TlsSettings(verify=False))
    began = trio.current_time()
    for dialed in (dial, dial_stream):
        with pytest.raises(DialError, match="did not answer") as ended:
            await dialed(Endpoint("silent.example", 7), tls, NetLimits(connect_timeout=5))
        assert not ended.value.untrusted
    assert trio.current_time() - began == 10


async def test_a_dial_to_something_that_is_silent_ends_at_the_handshake_limit(nursery: trio.Nursery) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = await client_side(nursery, Endpoint("127.0.0.1", silent.getsockname()[1]), limits=HASTY)

        closed = await client.machine.first(Closed)

    assert "did not finish the TLS handshake" in closed.reason
    assert not closed.untrusted, "nobody refused a certificate"
    assert not closed.refused, "somebody listens there"


async def test_a_dial_that_is_reset_within_the_handshake_tells_nothing_of_trust(nursery: trio.Nursery) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = await client_side(nursery, Endpoint("127.0.0.1", server.getsockname()[1]))
        accepted, _ = await trio.to_thread.run_sync(server.accept)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()

        closed = await client.machine.first(Closed)

    assert "reset" in closed.reason.lower()
    assert not closed.untrusted


async def test_a_dial_answered_by_something_else_than_tls_is_untrusted(nursery: trio.Nursery) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = await client_side(nursery, Endpoint("127.0.0.1", server.getsockname()[1]))
        accepted, _ = await trio.to_thread.run_sync(server.accept)
        with accepted:
            accepted.sendall(b"220 this is no TLS\r\n")
            closed = await client.machine.first(Closed)

    assert closed.reason.startswith("TLS with")
    assert closed.untrusted


async def test_a_dial_closed_before_it_stands_is_one_closed(nursery: trio.Nursery) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = await client_side(nursery, Endpoint("127.0.0.1", silent.getsockname()[1]))
        client.do(CloseConn(-1, "changed my mind"))

        assert await client.machine.first(Closed) == Closed(-1, "changed my mind")


# ---- listening -------------------------------------------------------------------------------


async def test_a_taken_port_is_a_config_error_that_names_the_key(nursery: trio.Nursery) -> None:
    _, endpoint = await server_side(nursery)

    with pytest.raises(ConfigError, match=r"storage\.port: cannot listen on 127\.0\.0\.1:.*in use"):
        bind(endpoint.host, endpoint.port, "storage.port")


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100, b"\x16\x03\x01\xff\xff" + b"\x00" * 70_000, b"L\x00\x04" * 9]
)
async def test_garbage_on_a_port_is_dropped_and_told_once(nursery: trio.Nursery, garbage: bytes) -> None:
    server, endpoint = await server_side(nursery)

    for _ in range(3):
        async with await trio.open_tcp_stream(endpoint.host, endpoint.port) as stream:
            with trio.fail_after(5):
                try:
                    await stream.send_all(garbage)
                    while await stream.receive_some(1000):
                        pass
                except trio.BrokenResourceError:
                    pass

    assert server.machine.events == []
    assert len(server.reports) == 1
    client = await client_side(nursery, endpoint)  # and the port still works
    await client.machine.first(Dialed)


async def test_a_silent_peer_is_dropped_after_the_handshake_limit(nursery: trio.Nursery) -> None:
    _, endpoint = await server_side(nursery, limits=HASTY)

    async with await trio.open_tcp_stream(endpoint.host, endpoint.port) as stream:
        with trio.fail_after(60):
            assert await stream.receive_some(1000) == b""


async def test_connections_above_the_limit_are_closed_at_once(nursery: trio.Nursery) -> None:
    server, endpoint = await server_side(nursery, limits=NetLimits(connections_max=1, linger=0.1))
    first = await client_side(nursery, endpoint)
    await first.machine.first(Dialed)

    second = await client_side(nursery, endpoint)
    await second.machine.first(Closed)
    assert "the limit" in server.reports[0]

    first.do(CloseConn(-1, "room"))
    await server.machine.first(Closed)
    await first.machine.first(Closed)
    with trio.fail_after(5):
        while True:  # one counts until its socket is closed
            again = (await client_side(nursery, endpoint)).machine
            await again.until(again.is_told)
            if again.count(Dialed):
                break


def test_connections_take_half_of_the_descriptors_at_most() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        assert accepted_max(NetLimits()) == 100
        assert accepted_max(NetLimits(connections_max=7)) == 7
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("limits", [{"connections_max": 5}, {"handshakes_max": 5}])
async def test_connections_that_never_shake_hands_keep_nobody_out(
    nursery: trio.Nursery, limits: dict[str, int]
) -> None:
    server, endpoint = await server_side(nursery, limits=NetLimits(linger=0.1, handshake_timeout=60, **limits))
    standing = await client_side(nursery, endpoint)
    await standing.machine.first(Dialed)

    async with contextlib.AsyncExitStack() as stack:
        silent = [await trio.open_tcp_stream(endpoint.host, endpoint.port) for _ in range(20)]
        for stream in silent:
            stack.push_async_callback(trio.aclose_forcefully, stream)
        newcomer = await client_side(nursery, endpoint)
        await newcomer.machine.first(Dialed)
        with trio.fail_after(5):
            with contextlib.suppress(trio.BrokenResourceError):
                assert await silent[0].receive_some(1) == b""  # the oldest went first
        standing.do(Send(-1, b"still here"))
        await server.machine.until(lambda: server.machine.received() == b"still here")
    assert any("without a TLS handshake" in text for text in server.reports)


async def test_a_peer_with_tls_1_2_and_the_ciphers_of_the_original_is_served(nursery: trio.Nursery) -> None:
    server, endpoint = await server_side(nursery)

    with await trio.to_thread.run_sync(raw_tls, endpoint) as peer:
        assert peer.version() == "TLSv1.2"
        peer.sendall(b"hello")
        await server.machine.until(lambda: server.machine.received() == b"hello")


async def test_the_goodbye_of_a_peer_ends_its_connection_though_its_socket_stays_open(nursery: trio.Nursery) -> None:
    """It may wait for our end before it closes: then nobody would ever close."""
    server, endpoint = await server_side(nursery)
    with await trio.to_thread.run_sync(raw_tls, endpoint) as peer:
        peer.sendall(b"hello")
        peer.setblocking(False)
        with pytest.raises(ssl.SSLWantReadError):
            peer.unwrap()
        assert (await server.machine.first(Closed)).reason == "the peer closed the connection"
        assert server.machine.received() == b"hello"


# ---- trust -----------------------------------------------------------------------------------


def written(directory: Path, name: str, pair: KeyPair) -> tuple[str, str]:
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    certificate.write_bytes(pair.certificate)
    key.write_bytes(pair.key)
    return str(certificate), str(key)


def signed(directory: Path, ca: KeyPair, name: str, hosts: Sequence[str] = ()) -> TlsSettings:
    """Settings with a certificate signed by `ca`, which is trusted."""
    certificate, key = written(directory, name, issue(ca, name, hosts or local_names()))
    trusted, _ = written(directory, f"{name}-ca", ca)
    return TlsSettings(certificate=certificate, key=key, ca=trusted)


async def test_with_a_trust_store_on_both_sides_the_peer_has_a_role(nursery: trio.Nursery, tmp_path: Path) -> None:
    ca = make_ca("test authority")
    server, endpoint = await server_side(nursery, signed(tmp_path, ca, "server"))

    client = await client_side(nursery, endpoint, signed(tmp_path, ca, "client"))
    await client.machine.first(Dialed)

    assert (await server.machine.first(Accepted)).names[0] == "client"


def _with_a_name_that_is_no_text(directory: Path, ca: KeyPair) -> TlsSettings:
    """Settings with a certificate that an authority has signed without looking at its DNS name."""
    authority = x509.load_pem_x509_certificate(ca.certificate)
    authority_key = serialization.load_pem_private_key(ca.key, None)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.UnrecognizedExtension(x509.ObjectIdentifier("2.5.29.17"), b"\x30\x05\x82\x03a\xff\xfe")
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "odd")]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(name, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    paths = written(directory, "odd", KeyPair(certificate.public_bytes(serialization.Encoding.PEM), secret))
    trusted, _ = written(directory, "odd-ca", ca)
    return TlsSettings(certificate=paths[0], key=paths[1], ca=trusted)


async def test_a_certificate_with_a_name_that_is_no_text_is_a_failed_handshake(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    ca = make_ca("test authority")
    odd = _with_a_name_that_is_no_text(tmp_path, ca)
    server, endpoint = await server_side(nursery, signed(tmp_path, ca, "server"))
    client = await client_side(nursery, endpoint, attrs.evolve(odd, verify=False))
    await client.machine.first(Closed)

    [line] = server.reports
    assert "TLS handshake failed: its certificate cannot be read" in line
    assert (server.machine.events, server.driver._channels, server.driver._accepted) == ([], {}, 0)

    _, port = await server_side(nursery, odd)
    dialing = await client_side(nursery, port, signed(tmp_path, ca, "client"))
    closed = await dialing.machine.first(Closed)
    assert closed.untrusted
    assert "its certificate cannot be read" in closed.reason

    said: list[str] = []
    pages = HttpServer(lambda _: text(""), lambda _, line: said.append(line), ServerTls(signed(tmp_path, ca, "server")))
    number = pages.listen("127.0.0.1", 0, "port")
    nursery.start_soon(pages.run)
    reader = await client_side(nursery, Endpoint("127.0.0.1", number), attrs.evolve(odd, verify=False))
    await reader.machine.first(Closed)
    assert [line.partition(": ")[2] for line in said] == [line.partition(": ")[2] for line in server.reports]


async def test_a_client_without_certificate_of_the_authority_is_refused(nursery: trio.Nursery, tmp_path: Path) -> None:
    ca = make_ca("test authority")
    server, endpoint = await server_side(nursery, signed(tmp_path, ca, "server"))

    client = await client_side(nursery, endpoint)  # shows a self-signed one
    closed = await client.machine.first(Closed)

    assert "alert" in closed.reason  # that is how it learns why
    assert closed.untrusted
    assert server.machine.events == []
    assert "certificate" in server.reports[0]


async def test_where_no_certificates_are_required_a_client_needs_none(nursery: trio.Nursery, tmp_path: Path) -> None:
    settings = attrs.evolve(signed(tmp_path, make_ca("test authority"), "server"), require_client=False)
    server, endpoint = await server_side(nursery, settings)

    client = await client_side(nursery, endpoint)
    await client.machine.first(Dialed)

    assert (await server.machine.first(Accepted)).names == ()


async def test_a_server_of_another_authority_is_refused(nursery: trio.Nursery, tmp_path: Path) -> None:
    _, endpoint = await server_side(nursery)
    settings = signed(tmp_path, make_ca("another"), "client")

    client = await client_side(nursery, endpoint, settings)
    closed = await client.machine.first(Closed)

    assert "refused" in closed.reason
    assert client.machine.count(Dialed) == 0


async def test_host_names_are_compared_only_where_asked(nursery: trio.Nursery, tmp_path: Path) -> None:
    ca = make_ca("test authority")
    settings = signed(tmp_path, ca, "server", ["elsewhere.example"])
    _, endpoint = await server_side(nursery, TlsSettings(certificate=settings.certificate, key=settings.key))

    lax = await client_side(nursery, endpoint, TlsSettings(ca=settings.ca))
    await lax.machine.first(Dialed)
    strict = await client_side(nursery, endpoint, TlsSettings(ca=settings.ca, verify_host=True))
    closed = await strict.machine.first(Closed)

    assert "127.0.0.1" in closed.reason


@pytest.mark.parametrize(
    ("address", "mapping", "strict"),
    [
        ("", {}, True),
        ("&verify=on", {"client.ssl.verifyHost": True}, True),
        ("&verify=ca", {"client.ssl.verifyHost": False}, False),
    ],
)
async def test_addresses_and_mappings_compare_host_names_unless_only_the_authority_counts(
    nursery: trio.Nursery, tmp_path: Path, address: str, mapping: dict[str, object], strict: bool
) -> None:
    settings = signed(tmp_path, make_ca("test authority"), "server", ["elsewhere.example"])
    _, endpoint = await server_side(nursery, TlsSettings(certificate=settings.certificate, key=settings.key))
    keys = {"zookeeper.connectString": "h:1", "zookeeper.sessionTimeout": 4000, "cluster.root": "/r"}

    for tls in (
        ClientTls(parse_url(f"waltz://{endpoint}?ca={settings.ca}{address}")[1]),
        read_config({**keys, "client.ssl.ca": settings.ca, **mapping}).tls,
    ):
        client = Side(LIMITS, tls)
        await nursery.start(client.driver.run)
        client.do(Dial(-1, endpoint, Port.CLIENT))
        if strict:
            reason = (await client.machine.first(Closed)).reason
            assert "not valid for '127.0.0.1'; connect by a name that it holds" in reason
            assert "verify=ca" in reason
        else:
            await client.machine.first(Dialed)


async def test_on_loopback_the_first_certificate_is_pinned(nursery: trio.Nursery, tmp_path: Path) -> None:
    pinning = ClientTls(TlsSettings(pin_loopback=True))
    client = Side(LIMITS, pinning)
    await nursery.start(client.driver.run)
    server, endpoint = await server_side(nursery)
    client.do(Dial(-1, endpoint, Port.CLIENT))
    await client.machine.first(Dialed)
    client.do(CloseConn(-1, "next"))
    await server.driver.stop()

    impostor = Side()
    await nursery.start(impostor.driver.run)
    impostor.listen(ServerTls(TlsSettings()), endpoint.port)
    client.do(Dial(-2, endpoint, Port.CLIENT))
    await client.machine.until(lambda: client.machine.count(Closed) == 2)

    assert "another certificate" in client.machine.events[-1].reason
    assert client.machine.count(Dialed) == 1


async def test_a_tool_pins_what_it_met_first_too(nursery: trio.Nursery) -> None:
    pinning = ClientTls(TlsSettings(pin_loopback=True))
    server, endpoint = await server_side(nursery)
    await trio.aclose_forcefully(await dial_stream(endpoint, pinning, LIMITS))
    await server.driver.stop()

    impostor = Side()
    await nursery.start(impostor.driver.run)
    impostor.listen(ServerTls(TlsSettings()), endpoint.port)
    with pytest.raises(DialError, match="another certificate") as refused:
        await trio.aclose_forcefully(await dial_stream(endpoint, pinning, LIMITS))
    assert refused.value.untrusted


def test_pinning_is_for_loopback_only() -> None:
    pinning = ClientTls(TlsSettings(pin_loopback=True))

    assert "verify=off" in (pinning.check(Endpoint("db.example", 1), b"certificate") or "")
    assert pinning.check(Endpoint("127.0.0.1", 1), b"certificate") is None
    assert [is_loopback(host) for host in ("localhost", "::1", "127.8.8.8", "10.0.0.1", "example")] == [
        *(True, True, True),
        *(False, False),
    ]


def test_without_trust_store_the_lack_of_verification_is_told_unless_chosen() -> None:
    told: list[str] = []

    ClientTls(TlsSettings(prefix="server.ssl."), told.append)
    ClientTls(TlsSettings(verify=False), told.append)

    assert len(told) == 1
    assert "server.ssl.ca" in told[0]


def test_verification_without_a_trust_store_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"client\.ssl\.verify"):
        ClientTls(TlsSettings(prefix="client.ssl.", verify=True))
    with pytest.raises(ConfigError, match=r"server\.ssl\.verify"):
        ServerTls(TlsSettings(prefix="server.ssl.", verify=True))


def test_pkcs12_stores_are_read(tmp_path: Path) -> None:
    pair = self_signed("p12")
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    key = serialization.load_pem_private_key(pair.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    keys, trust = tmp_path / "k.jks", tmp_path / "t.p12"  # the name says nothing, the content does
    secret = serialization.BestAvailableEncryption(b"changeit")
    keys.write_bytes(pkcs12.serialize_key_and_certificates(b"x", key, certificate, None, secret))
    trust.write_bytes(pkcs12.serialize_java_truststore([pkcs12.PKCS12Certificate(certificate, b"ca")], secret))

    ServerTls(stores(keys, trust))
    with pytest.raises(ConfigError, match="cannot be opened"):
        ServerTls(TlsSettings(key_store=str(keys), key_store_password="wrong"))


# Made by keytool of Java 17: one EC key with a self-signed certificate, and that certificate as trusted.
def test_what_a_pkcs12_store_holds_above_a_certificate_is_shown_with_it() -> None:
    """Peers may trust the authority at the top alone."""
    ca = make_ca("test authority")
    pair = issue(ca, "node", local_names())

    read = pkcs12_pair(key_store("node", pair, ca.certificate, "secret"), "secret", "keyStore.location")

    assert x509.load_pem_x509_certificates(read.certificate) == [
        x509.load_pem_x509_certificate(each.certificate) for each in (pair, ca)
    ]


def test_every_certificate_of_a_pkcs12_store_is_trusted() -> None:
    ca = make_ca("test authority")
    pair = issue(ca, "node", local_names())

    trusted = pkcs12_certificates(key_store("node", pair, ca.certificate, "secret"), "secret", "trustStore.location")

    assert set(x509.load_pem_x509_certificates(trusted)) == {
        x509.load_pem_x509_certificate(each.certificate) for each in (pair, ca)
    }


JKS_KEYS = """
/u3+7QAAAAIAAAABAAAAAQAFd2FsdHoAAAGh/wAGEgAAAH8wfTAOBgorBgEEASoCEQEBBQAEa6PDQ7R97caLVWo2MmsDiGs/GZCZ9m6yQbF+
uUqYmOcDXn3rM+eNYWfS0WznEd/UWA5nF2NItgZprq0S3blrEEKEDtLabXg73TSSxXlmyNYn9eg9AkC38ugrHC5nZTua+ahJLL5q4ZKrFh4Y
AAAAAQAFWC41MDkAAAE+MIIBOjCB4KADAgECAgkApA6bXeoVMJUwCgYIKoZIzj0EAwIwEDEOMAwGA1UEAxMFd2FsdHowIBcNMjYxMTIxMTY0
NTUzWhgPMjEyNjEwMjgxNjQ1NTNaMBAxDjAMBgNVBAMTBXdhbHR6MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEC1yIlndfRpIfiBRyjqjk
VfapBGN7MsqNqEhwKZ7bsMAbxVI350pMolOf0ErIH/+/7p916L4vHHzDSr+YxxtkdqMhMB8wHQYDVR0OBBYEFID81frFoxEAOOuvlMpYT69N
qmqIMAoGCCqGSM49BAMCA0kAMEYCIQDoDK1/kF/wHGbSNISykDkeKxD698+7RcgxKArWvVMatAIhAK5U9XJ03caQgYc1J3LDMLXa3q+0ocDe
8U7ujqwpKKtn5238p/QX7tklgwL9vAZlcD/55y0=
"""
JKS_TRUST = """
/u3+7QAAAAIAAAABAAAAAgACY2EAAAGh/wAJsgAFWC41MDkAAAE+MIIBOjCB4KADAgECAgkApA6bXeoVMJUwCgYIKoZIzj0EAwIwEDEOMAwG
A1UEAxMFd2FsdHowIBcNMjYxMTIxMTY0NTUzWhgPMjEyNjEwMjgxNjQ1NTNaMBAxDjAMBgNVBAMTBXdhbHR6MFkwEwYHKoZIzj0CAQYIKoZI
zj0DAQcDQgAEC1yIlndfRpIfiBRyjqjkVfapBGN7MsqNqEhwKZ7bsMAbxVI350pMolOf0ErIH/+/7p916L4vHHzDSr+YxxtkdqMhMB8wHQYD
VR0OBBYEFID81frFoxEAOOuvlMpYT69NqmqIMAoGCCqGSM49BAMCA0kAMEYCIQDoDK1/kF/wHGbSNISykDkeKxD698+7RcgxKArWvVMatAIh
AK5U9XJ03caQgYc1J3LDMLXa3q+0ocDe8U7ujqwpKKtnp/Tfs7DC3I8tZgBMcCijiVqoeDQ=
"""


def stores(keys: Path, trust: Path, password: str = "changeit") -> TlsSettings:
    return TlsSettings(
        key_store=str(keys), key_store_password=password, trust_store=str(trust), trust_store_password=password
    )


async def test_jks_stores_are_read_and_their_single_certificates_trusted(nursery: trio.Nursery, tmp_path: Path) -> None:
    keys, trust = tmp_path / "keys", tmp_path / "trust"
    keys.write_bytes(base64.b64decode(JKS_KEYS))
    trust.write_bytes(base64.b64decode(JKS_TRUST))
    server, endpoint = await server_side(nursery, stores(keys, trust))

    client = await client_side(nursery, endpoint, stores(keys, trust))
    await client.machine.first(Dialed)

    assert (await server.machine.first(Accepted)).names[0] == "waltz"
    with pytest.raises(ConfigError, match=r"keyStore\.location: the password is wrong"):
        ServerTls(stores(keys, trust, "wrong"))
    ServerTls(TlsSettings(trust_store=str(trust)))  # without a password certificates can be read


def hidden(key: bytes, password: str) -> bytes:
    """A private key as Sun's protector keeps it."""
    secret, block = password.encode("utf-16-be"), b"s" * 20
    body = block
    for at in range(0, len(key), 20):
        block = hashlib.sha1(secret + block).digest()
        body += bytes(a ^ b for a, b in zip(key[at : at + 20], block, strict=False))
    body += hashlib.sha1(secret + key).digest()
    whole = bytes.fromhex("300e060a2b060104012a021101010500") + b"\x04\x81%c" % len(body) + body
    return b"\x30\x82" + struct.pack(">H", len(whole)) + whole


@pytest.mark.parametrize("version", [1, 2])
def test_a_key_of_a_jks_store_may_have_a_password_of_its_own(tmp_path: Path, version: int) -> None:
    [entry] = read_jks(base64.b64decode(JKS_KEYS), "changeit").keys
    body, [certificate] = hidden(entry.key, "own"), entry.chain
    kind = struct.pack(">H5s", 5, b"X.509") if version == 2 else b""
    store = bytes.fromhex("feedfeed") + struct.pack(">IIIH5sQ", version, 1, 1, 5, b"waltz", 0)
    store += struct.pack(">I", len(body)) + body + struct.pack(">I", 1)
    store += kind + struct.pack(">I", len(certificate)) + certificate
    digest = hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + store).digest()
    path = tmp_path / "keys.jks"
    path.write_bytes(store + digest)

    def settings(key_password: str | None) -> TlsSettings:
        return TlsSettings(key_store=str(path), key_store_password="changeit", key_password=key_password)

    assert ServerTls(settings("own")).context is not None
    for wrong in (None, "changeit"):
        with pytest.raises(ConfigError, match=r"keyStore\.location: the password of a private key is wrong"):
            ServerTls(settings(wrong))


@given(st.data())
def test_a_damaged_jks_store_is_told_as_such(data: st.DataObject) -> None:
    whole = bytearray(base64.b64decode(JKS_KEYS))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    end = data.draw(st.integers(0, len(whole)))

    with pytest.raises(JksError):
        read_jks(bytes(whole), "changeit")
    with contextlib.suppress(JksError):
        read_jks(bytes(whole[:end]), None, "changeit")


def test_other_stores_are_refused_with_what_to_do(tmp_path: Path) -> None:
    old, text = tmp_path / "old.jks", tmp_path / "text"
    old.write_bytes(bytes.fromhex("cececece00000002"))
    text.write_text("hello")

    with pytest.raises(
        ConfigError, match=r"keytool -importkeystore -srckeystore .*old\.jks .* -destkeystore .*old\.p12"
    ):
        ServerTls(TlsSettings(key_store=str(old)))
    with pytest.raises(ConfigError, match="neither a PEM file nor"):
        ServerTls(TlsSettings(key_store=str(text)))
    with pytest.raises(ConfigError, match="cannot read"):
        ServerTls(TlsSettings(ca=str(tmp_path / "absent.pem")))


def test_a_key_that_does_not_fit_is_a_config_error(tmp_path: Path) -> None:
    certificate, _ = written(tmp_path, "one", self_signed("one"))
    _, key = written(tmp_path, "two", self_signed("two"))

    with pytest.raises(ConfigError, match="do not fit"):
        ServerTls(TlsSettings(certificate=certificate, key=key))


@pytest.mark.parametrize("form", [serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL])
def test_an_encrypted_key_without_its_password_is_a_config_error_and_nobody_is_asked(
    tmp_path: Path, form: serialization.PrivateFormat
) -> None:
    """OpenSSL would ask at the terminal, and the process wait."""
    pair = self_signed("one")
    certificate, key = written(tmp_path, "one", pair)
    secret = serialization.BestAvailableEncryption(b"secret")
    plain = serialization.load_pem_private_key(pair.key, None)
    Path(key).write_bytes(plain.private_bytes(serialization.Encoding.PEM, form, secret))

    with pytest.raises(ConfigError, match="the private key is encrypted, and its password is not set"):
        ServerTls(TlsSettings(certificate=certificate, key=key))
    assert ServerTls(TlsSettings(certificate=certificate, key=key, key_password="secret")).context is not None


def test_a_peer_is_named_as_it_would_be_written_in_an_address() -> None:
    assert peer_text(("127.0.0.1", 7)) == "127.0.0.1:7"
    assert peer_text(("fe80::1", 7, 0, 2)) == "[fe80::1]:7"


def test_a_key_that_needs_no_password_is_used_though_one_is_set(tmp_path: Path) -> None:
    certificate, key = written(tmp_path, "one", self_signed("one"))

    assert ServerTls(TlsSettings(certificate=certificate, key=key, key_password="secret")).context is not None


# ---- wrong ports and old certificates --------------------------------------------------------


async def test_a_tool_on_the_http_port_is_told_so(nursery: trio.Nursery) -> None:
    server = HttpServer(lambda request: text("pong"))
    endpoint = Endpoint("127.0.0.1", server.listen("127.0.0.1", 0, "server.jetty.port"))
    nursery.start_soon(server.run)

    tls = ClientTls(TlsSettings(verify=False))
    with pytest.raises(DialError, match=rf"{endpoint} is an HTTP port.*name the node's own port instead"):
        await dial_stream(endpoint, tls, NetLimits(handshake_timeout=60))
    with pytest.raises(UnreachableError, match=rf"{endpoint} answers without TLS: is it an HTTP port\?"):
        await trio.to_thread.run_sync(ClientPort, endpoint, tls, 60)  # that of the pipeline


async def test_a_silent_port_is_no_http_port(nursery: trio.Nursery) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = Endpoint("127.0.0.1", silent.getsockname()[1])
        with pytest.raises(DialError, match="did not answer in time"):
            await dial_stream(endpoint, ClientTls(TlsSettings(verify=False)), NetLimits(handshake_timeout=0.1))


async def test_a_port_of_ours_that_nobody_vouches_for_is_no_http_port(nursery: trio.Nursery, tmp_path: Path) -> None:
    _, endpoint = await server_side(nursery)
    settings = signed(tmp_path, make_ca("another"), "client")
    with pytest.raises(DialError, match=r"the certificate of .* is refused: self-signed"):
        await dial_stream(endpoint, ClientTls(settings), LIMITS)


async def test_a_tool_that_cannot_connect_says_so_in_the_words_that_scripts_match() -> None:
    with socket.socket() as kept:  # bound, so that nobody else listens there
        kept.bind(("127.0.0.1", 0))
        endpoint = Endpoint("127.0.0.1", kept.getsockname()[1])
        with pytest.raises(DialError, match=f"^failed to connect: {endpoint}: Connection refused$"):
            await dial_stream(endpoint, ClientTls(TlsSettings(verify=False)), LIMITS)


async def test_a_tool_says_which_kind_of_port_it_expected(nursery: trio.Nursery) -> None:
    stranger, endpoint = await server_side(nursery)

    async def greet() -> None:
        conn = (await stranger.machine.first(Accepted)).conn
        stranger.do(Send(conn, b"220 mail.example.org ready" + bytes(100)))

    nursery.start_soon(greet)
    with pytest.raises(PortError, match=f"{endpoint} does not answer as a server port does"):
        async with open_server_port(endpoint, ClientTls(TlsSettings(verify=False))):
            pass


@pytest.mark.parametrize("port", [-1, 65536, 99999])
def test_a_port_that_is_none_is_not_bound_by_its_last_bits(port: int) -> None:
    with pytest.raises(ConfigError, match=f"^--port: expected a port from 0 to 65535, found {port}$"):
        bind("127.0.0.1", port, "--port").close()


@pytest.mark.parametrize("host", ["a..b", "x" * 70 + ".example"])
def test_a_host_that_can_be_no_name_is_not_bound(host: str) -> None:
    with pytest.raises(ConfigError, match=f"^--host: cannot listen on {host}:0: .* can be no name of a host"):
        bind(host, 0, "--host").close()


async def test_http_at_a_port_of_ours_gets_an_answer_that_says_so(nursery: trio.Nursery) -> None:
    _, endpoint = await server_side(nursery)
    answer = bytearray()
    async with await trio.open_tcp_stream(endpoint.host, endpoint.port) as stream:
        await stream.send_all(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
        with contextlib.suppress(trio.BrokenResourceError):
            async for data in stream:
                answer += data
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"HTTP is at server.jetty.port" in answer


class Persistent(Puppet):
    """A machine that wants a connection: dials, and counts how often."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__()
        self.out: Outbox[DialerEffect] = Outbox()
        self.dials = 0
        self.dialer: Dialer[AdminMessage] = Dialer(
            endpoint,
            Port.CLIENT,
            self.out,
            self._new_conn,
            lambda: PortSession[AdminMessage](ADMIN_PROTOCOL, "dialer", {1}),
            name="node A",
            kind="an admin port",
            greeting_ms=60_000,
            again=Attempts(1, 20, random.Random(1)),
        )

    def _new_conn(self) -> int:
        self.dials += 1
        return -self.dials

    def deadline(self) -> int | None:
        return self.dialer.deadline()

    def step(self, now: int, events: Sequence[Any], out: list[Any]) -> None:
        for event in events:
            match event:
                case Dialed():
                    self.dialer.dialed(now)
                case Closed(reason=reason, untrusted=untrusted):
                    self.dialer.closed(now, reason, untrusted=untrusted)
                case Received(data=data):
                    self.dialer.received(data)
        self.dialer.want()
        self.dialer.due(now)
        self.dialer.flush()
        self.out.drain(out)
        self._changed.set()


async def test_a_peer_refused_for_its_certificate_is_dialed_on_and_on_and_used_once_it_has_another_one(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    ca = make_ca("test authority")
    trusted, _ = written(tmp_path, "ca", ca)

    def context(name: str, lifetime: timedelta) -> ServerTls:
        certificate, key = written(tmp_path, name, issue(ca, "node", local_names(), lifetime))
        return ServerTls(TlsSettings(certificate=certificate, key=key))

    peer = Side()
    await nursery.start(peer.driver.run)
    port = peer.listen(context("old", timedelta(minutes=-30)))
    machine = Persistent(Endpoint("127.0.0.1", port))
    lines: list[str] = []
    client = ClientTls(TlsSettings(ca=trusted))
    driver = NodeDriver(
        machine, name="dialer", client_tls=client, limits=LIMITS, report=lambda level, text: lines.append(text)
    )
    await nursery.start(driver.run)
    driver.post("begin")

    await machine.until(lambda: machine.dials >= 20)
    [line] = lines
    assert line.startswith(f"node A cannot be used: the certificate of 127.0.0.1:{port} is refused: ")
    assert "certificate has expired" in line
    assert (machine.dialer.trouble in line, machine.dialer.trouble_kind) == (True, Trouble.TRUST)

    peer.driver.stop_listening()
    peer.listen(context("new", timedelta(days=30)), port)
    await peer.machine.first(Accepted)
    await machine.until(lambda: machine.dialer.state is DialState.GREETING)


@pytest.mark.parametrize(
    ("lifetime", "expected"),
    [
        (
            timedelta(minutes=-30),
            r"x\.certificate: certificate 'CN=node' has expired on .* UTC: .* replace its file",
        ),
        (timedelta(days=13), r"x\.certificate: certificate 'CN=node' expires on .* in 12 days"),
        (timedelta(days=15), None),
    ],
)
def test_certificates_at_their_end_are_said_at_start(tmp_path: Path, lifetime: timedelta, expected: str | None) -> None:
    ca = make_ca("test authority")
    certificate, key = written(tmp_path, "node", issue(ca, "node", local_names(), lifetime))
    trusted, _ = written(tmp_path, "ca", ca)
    said: list[str] = []

    ClientTls(TlsSettings(prefix="x.", certificate=certificate, key=key, ca=trusted), said.append)

    if expected is None:
        assert said == []
    else:
        [line] = said
        assert re.fullmatch(expected, line.split(": replace")[0] if "expires" in line else line)


def test_a_certificate_is_told_from_one_that_is_not_valid_yet() -> None:
    """The clock of the machine that made it was ahead, or this one's is behind."""
    pem = issue(make_ca("test authority"), "node", ()).certificate
    now = datetime.now(UTC)

    assert expiry_problems(pem, "x", now) == []
    [line] = expiry_problems(pem, "x", now - timedelta(hours=2))
    assert line.startswith("x: certificate 'CN=node' is not valid before ")


def test_a_certificate_ends_with_its_authority() -> None:
    authority = issue(make_ca("above"), "test authority", (), timedelta(days=3))
    ends = [
        x509.load_pem_x509_certificate(pair.certificate).not_valid_after_utc
        for pair in (authority, issue(authority, "node", ()))
    ]
    assert abs(ends[0] - ends[1]) <= timedelta(seconds=1)


def test_an_authority_at_its_end_is_said_at_start(tmp_path: Path) -> None:
    trusted, _ = written(tmp_path, "ca", issue(make_ca("above"), "test authority", (), timedelta(days=3)))
    said: list[str] = []

    ClientTls(TlsSettings(prefix="x.", ca=trusted), said.append)

    [line] = said
    assert line.startswith("x.ca: certificate 'CN=test authority' expires on ")


async def test_peers_that_say_nothing_are_probed_for_a_minute_and_a_half_from_both_ends(nursery: trio.Nursery) -> None:
    """Neither end of a connection on which nothing is sent waits for ever for a host that lost its power."""

    def probed_s(sock: socket.socket) -> int:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        idle, every, count = (sock.getsockopt(socket.IPPROTO_TCP, name) for name in names)
        return idle + every * count

    _, endpoint = await server_side(nursery)
    pipe = await dial(endpoint, ClientTls(TlsSettings(verify=False)), LIMITS)
    assert probed_s(pipe.sock) == 90
    pipe.close()
    accepted: list[socket.socket] = []
    listening = bind("127.0.0.1", 0, "test.port")
    nursery.start_soon(accept_loop, listening, lambda sock, peer: accepted.append(sock))
    with socket.create_connection(listening.getsockname()):
        with trio.fail_after(10):
            while not accepted:
                await trio.lowlevel.checkpoint()
        assert probed_s(accepted[0]) == 90
        accepted[0].close()


async def test_a_process_without_descriptors_says_why_it_accepts_nobody(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, endpoint = await server_side(nursery)
    accept = socket.socket.accept

    def exhausted(sock: socket.socket) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch, socket.create_connection((endpoint.host, endpoint.port)):
        patch.setattr(socket.socket, "accept", exhausted)
        await trio.sleep(0.5)
        patch.setattr(socket.socket, "accept", accept)
        [line] = server.reports
    assert line.startswith("no connection can be accepted: Too many open files (the limit of this process is ")
    assert "LimitNOFILE" in line


async def test_a_burst_of_connections_is_accepted_a_few_at_a_time_between_the_turns_of_others() -> None:
    """A step of the machine, or an answer that is under way, waits for those who are at work, not for the burst."""
    listening = bind("127.0.0.1", 0, "test.port")
    accepted: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(socket.create_connection(listening.getsockname()))
        counts = [0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept_loop, listening, lambda sock, peer: accepted.append(stack.enter_context(sock)))
            with trio.fail_after(60):
                while len(accepted) < 50:
                    await trio.lowlevel.checkpoint()
                    counts.append(len(accepted))
            nursery.cancel_scope.cancel()
    # Of two rounds, the loop may be last in the first one and first in the second.
    assert max(after - before for before, after in itertools.pairwise(counts)) <= 2 * 4

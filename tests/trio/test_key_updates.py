"""Peers that send TLS messages without end, which bring nothing: how much is done for them before they are left."""

from __future__ import annotations

import contextlib
import random
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.key_updates import CIPHER, UpdateRecords
from tests.trio.test_net import Side, server_side
from waltz_core.base.edge import Accepted, Closed
from waltz_core.base.ids import Endpoint
from waltz_trio.net.channel import TlsPipe
from waltz_trio.net.http import HttpLimits, HttpServer, text
from waltz_trio.net.overhead import EXCESS, SLICE, Begun
from waltz_trio.net.tls import ServerTls, TlsSettings


class Updater:
    """A client over TLS 1.3 that makes its records itself, from the secret that OpenSSL logs."""

    def __init__(self, stream: trio.SocketStream, log: Path) -> None:
        self._stream = stream
        self._log = log
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.keylog_filename = str(log)
        self._tls = trio.SSLStream(stream, context)
        self._records: UpdateRecords

    async def connect(self) -> None:
        await self._tls.do_handshake()
        name, *_ = self._tls.cipher() or ("",)
        assert name == CIPHER
        self._records = UpdateRecords(self._log)

    def updates(self, count: int, *, answered: bool) -> bytes:
        """So many KeyUpdates, each behind the one before."""
        return self._records.updates(count, answered=answered)

    def words(self, data: bytes) -> bytes:
        """A record that says something."""
        return self._records.words(data)

    async def send(self, data: bytes) -> None:
        """Send records; the other side may end the connection meanwhile."""
        with contextlib.suppress(trio.BrokenResourceError):
            await self._stream.send_all(data)


@asynccontextmanager
async def _updater(endpoint: Endpoint, log: Path) -> AsyncIterator[Updater]:
    async with await trio.open_tcp_stream(endpoint.host, endpoint.port) as stream:
        peer = Updater(stream, log)
        await peer.connect()
        yield peer


@asynccontextmanager
async def _connected(nursery: trio.Nursery, tmp_path: Path) -> AsyncIterator[tuple[Side, TlsPipe, Updater]]:
    server, endpoint = await server_side(nursery)
    async with _updater(endpoint, tmp_path / "keys") as peer:
        await server.machine.first(Accepted)
        [channel] = server.driver._channels.values()
        yield server, channel._pipe, peer


class _Spy(trio.abc.Instrument):
    """What is between a socket and TLS, with how much TLS gets in each round of the event loop."""

    def __init__(self, incoming: ssl.MemoryBIO) -> None:
        self._incoming = incoming
        self._rounds = 0
        self.given: dict[int, int] = {}

    @property
    def pending(self) -> int:
        return self._incoming.pending

    def write(self, data: memoryview) -> int:
        self.given[self._rounds] = self.given.get(self._rounds, 0) + len(data)
        return self._incoming.write(data)

    def before_io_wait(self, timeout: float) -> None:
        self._rounds += 1


async def test_a_peer_whose_key_updates_want_answers_is_left_after_a_few_and_named(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    async with _connected(nursery, tmp_path) as (server, pipe, peer):
        pipe.incoming = spy = _Spy(pipe.incoming)  # type: ignore[assignment]

        await peer.send(peer.updates(3_000, answered=True))

        assert (await server.machine.first(Closed)).reason == EXCESS
        assert sum(spy.given.values()) <= SLICE
        assert [line.partition(": ")[2] for line in server.reports] == [f"the connection was ended: {EXCESS}"]


async def test_answers_to_key_updates_are_bounded_where_the_peer_takes_nothing(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    async with _connected(nursery, tmp_path) as (server, pipe, peer):
        [channel] = server.driver._channels.values()
        channel._draining = True  # as while the socket takes nothing

        for _ in range(3):
            await peer.send(peer.updates(60, answered=True))
            await trio.testing.wait_all_tasks_blocked()

        assert (await server.machine.first(Closed)).reason == EXCESS
        assert pipe.outgoing.pending < 8_192


async def test_a_peer_whose_key_updates_want_no_answer_stops_nobody_and_is_left(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    async with _connected(nursery, tmp_path) as (server, pipe, peer):
        pipe.incoming = spy = _Spy(pipe.incoming)  # type: ignore[assignment]
        trio.lowlevel.add_instrument(spy)

        await peer.send(peer.updates(6_000, answered=False))

        assert (await server.machine.first(Closed)).reason == EXCESS
        assert max(spy.given.values()) <= 2 * SLICE
        assert sum(spy.given.values()) <= 5 * SLICE


async def test_words_between_key_updates_arrive_in_their_order(nursery: trio.Nursery, tmp_path: Path) -> None:
    async with _connected(nursery, tmp_path) as (server, pipe, peer):
        pipe.incoming = spy = _Spy(pipe.incoming)  # type: ignore[assignment]
        trio.lowlevel.add_instrument(spy)
        texts = [b"%04d." % number for number in range(2_000)]

        await peer.send(b"".join(peer.words(word) + peer.updates(1, answered=False) for word in texts))
        await server.machine.received_all(5 * 2_000)

        assert server.machine.received() == b"".join(texts)
        assert max(spy.given.values()) <= 2 * SLICE
        assert (server.machine.count(Closed), server.reports) == (0, [])


async def test_a_few_words_between_very_many_key_updates_do_not_explain_them(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    async with _connected(nursery, tmp_path) as (server, _, peer):
        for _ in range(10):
            await peer.send(peer.words(bytes(2_048)) + peer.updates(1_700, answered=False))
            await trio.testing.wait_all_tasks_blocked(0.01)

        assert (await server.machine.first(Closed)).reason == EXCESS
        assert len(server.machine.received()) < 4 * 2_048


class _PaidServer:
    """An HTTP port with TLS; what its connections cost altogether."""

    def __init__(self, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cost = 0
        self.said: list[str] = []
        limits = HttpLimits(
            connections_max=10, streams_max=1, rate=1e6, burst=1_000, body_max=1 << 20, bodies_max=1 << 20
        )
        server = HttpServer(
            lambda request: text("pong"),
            lambda level, line: self.said.append(line),
            ServerTls(TlsSettings()),
            limits=limits,
        )
        turn = server._turns.turn

        async def counted(conn: int, owner: str, cost: int, *, request: bool = False, ahead: bool = False) -> bool:
            self.cost += cost
            return await turn(conn, owner, cost, request=request, ahead=ahead)

        monkeypatch.setattr(server._turns, "turn", counted)
        self.endpoint = Endpoint("127.0.0.1", server.listen("127.0.0.1", 0, "port"))
        nursery.start_soon(server.run)


_GET = b"GET / HTTP/1.1\r\nHost: h\r\nPadding: " + b"x" * 2_000 + b"\r\n\r\n"


async def test_key_updates_at_an_http_port_cost_their_sender_turns(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = _PaidServer(nursery, monkeypatch)
    async with _updater(server.endpoint, tmp_path / "keys") as peer:
        await peer.send(peer.words(_GET))
        assert (await peer._tls.receive_some()).startswith(b"HTTP/1.1 200 ")
        asked, server.cost = server.cost, 0

        await peer.send(peer.updates(1_000, answered=False) + peer.words(_GET))
        assert (await peer._tls.receive_some()).startswith(b"HTTP/1.1 200 ")

    assert asked < 10_000
    assert server.cost > 27 * 600


async def test_requests_between_very_many_key_updates_do_not_explain_them(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = _PaidServer(nursery, monkeypatch)
    async with _updater(server.endpoint, tmp_path / "keys") as peer:
        with trio.fail_after(30), contextlib.suppress(trio.BrokenResourceError):
            for _ in range(10):
                await peer.send(peer.updates(1_700, answered=False) + peer.words(_GET))
                if not await peer._tls.receive_some():
                    break
    [line] = server.said
    assert line.partition(": ")[2] == EXCESS


async def test_a_body_whose_records_arrive_in_parts_costs_what_its_bytes_do(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, size = _PaidServer(nursery, monkeypatch), 16_384
    body = bytes(12 * size)
    async with _updater(server.endpoint, tmp_path / "keys") as peer:
        await peer.send(peer.words(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body)))
        records = b"".join(peer.words(body[at : at + size]) for at in range(0, len(body), size))
        for at in range(0, len(records), 10_000):
            await peer.send(records[at : at + 10_000])
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert (await peer._tls.receive_some()).startswith(b"HTTP/1.1 200 ")

    assert server.cost < 10_000
    assert server.said == []


@pytest.mark.parametrize("seed", range(20))
def test_what_has_come_of_a_record_is_told_wherever_the_bytes_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    records = [
        struct.pack(">BHH", 23, 0x0303, size) + rng.randbytes(size)
        for size in (rng.choice((1, 22, 300, 16_406)) for _ in range(50))
    ]
    data = b"".join(records)
    ends = [0]
    for record in records:
        ends.append(ends[-1] + len(record))
    begun, at = Begun(), 0
    while at < len(data):
        piece = data[at : at + rng.choice((1, 2, 4, 5, 6, 100, SLICE))]
        begun.took(piece)
        at += len(piece)
        assert begun.size == at - max(end for end in ends if end <= at)


async def test_key_updates_at_an_http_port_with_tls_end_the_connection(nursery: trio.Nursery, tmp_path: Path) -> None:
    said: list[str] = []
    server = HttpServer(lambda request: text("pong"), lambda level, line: said.append(line), ServerTls(TlsSettings()))
    port = server.listen("127.0.0.1", 0, "port")
    nursery.start_soon(server.run)
    async with _updater(Endpoint("127.0.0.1", port), tmp_path / "keys") as peer:
        await peer.send(peer.updates(100, answered=False) + peer.words(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"))
        answer = await peer._tls.receive_some()
        assert answer.startswith(b"HTTP/1.1 200 ")
        await peer.send(peer.updates(6_000, answered=False))

        with trio.fail_after(30), contextlib.suppress(trio.BrokenResourceError):
            while await peer._tls.receive_some():
                pass
    [line] = said
    assert line.partition(": ")[2] == EXCESS


@pytest.mark.parametrize("size", [1, 40, 1_000, 16_384])
async def test_records_of_any_size_are_no_excess(nursery: trio.Nursery, tmp_path: Path, size: int) -> None:
    async with _connected(nursery, tmp_path) as (server, _, peer):
        count = 400_000 // (size + 22)
        data = bytes(range(251)) * 70

        await peer.send(b"".join(peer.words(data[:size]) for _ in range(count)))
        await server.machine.received_all(count * size)

        assert server.machine.received() == data[:size] * count
        assert (server.machine.count(Closed), server.reports) == (0, [])

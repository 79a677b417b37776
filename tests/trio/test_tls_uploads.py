"""What comes over TLS at an HTTP port: what is there is read at once, whatever the records are, and drops are not."""

from __future__ import annotations

import ssl
from typing import cast

import pytest
import trio
import trio.testing

from tests.trio.test_hostile_peers import Counted
from waltz_core.access.bodies import Bodies
from waltz_trio.net.http import Request, Response, _Connection, refusal
from waltz_trio.net.overhead import SLICE
from waltz_trio.net.pace import Work
from waltz_trio.net.secured import SecuredStream
from waltz_trio.net.tls import ServerTls, TlsSettings

_SIZE = 1 << 20


class _Upload:
    """A client that sends a request, over a connection whose bytes are there as soon as they are sent."""

    def __init__(self) -> None:
        self.raw, ours = trio.testing.memory_stream_pair()
        self._receive = ours.receive_some
        self.reads = self.size = 0  # of what the server takes from its socket
        self._more = trio.Event()
        ours.receive_some = self._counted  # type: ignore[method-assign]  # counted
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_ciphers("ECDHE+AESGCM")  # so that its first message is a short one
        self.client = trio.SSLStream(self.raw, context, https_compatible=True)
        self._work = Work(Counted(), 1, "peer", lambda: None)
        plain = cast("trio.SocketStream", ours)
        self._stream = SecuredStream(plain, ServerTls(TlsSettings()).context, lambda line: None, self._work.turn)
        self._server: _Connection

    async def _counted(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._receive(max_bytes)
        self.reads += 1
        self.size += len(data)
        self._more.set()
        return data

    async def took(self, size: int) -> None:
        """The server has taken so many bytes from its socket."""
        while self.size < size:
            self._more = trio.Event()
            await self._more.wait()

    async def handshake(self) -> None:
        """The server's part."""
        await self._stream.handshake()

    async def begin(self, framing: str) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.handshake)
            nursery.start_soon(self.client.do_handshake)
        self._server = _Connection(self._stream, "peer:1", self._work, lambda peer, line: None, refusal)
        await self.client.send_all(f"POST /x HTTP/1.1\r\nHost: h\r\n{framing}\r\n\r\n".encode())
        assert isinstance(await self._server.request(), Request)
        self.reads = self.size = 0

    async def body(self) -> bytes | Response:
        """What has come of it, in the end."""
        return await self._server.body(_SIZE, Bodies(2 * _SIZE).of(1, "a"))


@pytest.fixture
def upload(autojump_clock: trio.testing.MockClock) -> _Upload:
    return _Upload()


@pytest.mark.parametrize("record", [100, 1_300, 4_096, 8_192, 16_384])
async def test_a_body_that_is_there_is_read_without_a_pause(
    upload: _Upload, autojump_clock: trio.testing.MockClock, record: int
) -> None:
    body = bytes(range(256)) * (_SIZE // 256 // (16 if record == 100 else 1))
    await upload.begin(f"Content-Length: {len(body)}")
    for at in range(0, len(body), record):
        await upload.client.send_all(body[at : at + record])
    begun = trio.current_time()
    assert await upload.body() == body
    assert trio.current_time() == begun


async def test_chunks_that_are_there_are_read_without_a_pause(
    upload: _Upload, autojump_clock: trio.testing.MockClock
) -> None:
    """Their heads come in records of their own."""
    await upload.begin("Transfer-Encoding: chunked")
    for _ in range(200):
        for piece in (b"400\r\n", b"x" * 1_024, b"\r\n"):
            await upload.client.send_all(piece)
    await upload.client.send_all(b"0\r\n\r\n")
    begun = trio.current_time()
    assert await upload.body() == b"x" * 1_024 * 200
    assert trio.current_time() == begun


async def test_a_sender_that_fills_its_window_does_not_wait_long(
    upload: _Upload, autojump_clock: trio.testing.MockClock
) -> None:
    """The reading catches up with it all the time: a record of 16 KiB has a few bytes more than are read at once."""
    window = 65_536
    await upload.begin(f"Content-Length: {_SIZE}")
    begun = trio.current_time()

    async def send() -> None:
        for at in range(0, _SIZE, window):
            await upload.client.send_all(bytes(window))
            await upload.took((at + window) // 16_384 * 16_406)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        body = await upload.body()
    assert body == bytes(_SIZE)
    assert trio.current_time() - begun < 1


@pytest.mark.parametrize("records", [1, 2])
async def test_a_body_that_drips_over_tls_is_looked_at_seldom(
    upload: _Upload, autojump_clock: trio.testing.MockClock, records: int
) -> None:
    await upload.begin("Content-Length: 200000")

    async def drip() -> None:
        for _ in range(2_000):
            for _ in range(records):
                await upload.client.send_all(b"x" * (100 // records))
            await trio.sleep(0.001)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drip)
        body = await upload.body()
    assert body == b"x" * 200_000
    assert upload.reads <= 30 + upload.size // SLICE


async def test_a_record_that_drips_is_looked_at_seldom(upload: _Upload, autojump_clock: trio.testing.MockClock) -> None:
    """Nothing of it can be handed out before it is whole."""
    await upload.begin("Content-Length: 2000")
    upload.client.transport_stream = (held := trio.testing.memory_stream_pair())[0]
    await upload.client.send_all(b"x" * 2_000)
    record = await held[1].receive_some()

    async def drip() -> None:
        for byte in bytes(record):
            await upload.raw.send_all(bytes([byte]))
            await trio.sleep(0.001)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drip)
        body = await upload.body()
    assert body == b"x" * 2_000
    assert upload.reads <= 20


async def test_a_handshake_over_tls_that_drips_is_looked_at_seldom(
    upload: _Upload, autojump_clock: trio.testing.MockClock
) -> None:
    with trio.move_on_after(2):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(upload.handshake)
            await upload.raw.send_all(b"\x16\x03\x01\x20\x00")  # a record of eight kibibytes
            while True:
                await trio.sleep(0.001)
                await upload.raw.send_all(b"\x01")
    assert 10 <= upload.reads <= 20


async def test_a_handshake_over_tls_in_whole_messages_waits_for_nothing(
    upload: _Upload, autojump_clock: trio.testing.MockClock
) -> None:
    """However short they are."""
    begun = trio.current_time()
    await upload.begin("Content-Length: 1")
    assert trio.current_time() == begun

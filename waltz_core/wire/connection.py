"""One side of one connection: greeting, frames and codecs, from bytes to messages and back.

Theory of operation:

* **States.** GREETING (`version` is None) until the peer's greeting is complete, then OPEN with the highest codec that
  both offer, BROKEN for good after the first error: behind a frame that is wrong nobody knows where the next begins.
* **Both sides greet first**, without waiting. So what we want to send waits for the peer's greeting, as its codec
  decides how messages are encoded, and empty frames (keep-alives) may stand before it.
* **Bytes are held in one of two places.** The start of an unfinished frame is in the gatherer, which copies it once
  however many pieces it comes in. Whole frames that `receive` was not allowed to decode (`count_max`) stay in `_left`
  as they came; their owner limits what a connection may ask for in a step, and takes them up again without new data.
* **A row of appends is one message.** `runs` decode as many adjacent frames as they can into columns; what is beyond
  them, or too large, goes the way of a single frame.
* **Size is refused before it is gathered**: a length beyond the limit ends the connection at its header.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container
from typing import Any, Generic, TypeVar

from waltz_core.base.errors import HandshakeError, ProtocolError
from waltz_core.wire.admin_codec import ADMIN_PROTOCOL
from waltz_core.wire.client_codec import CLIENT_PROTOCOL
from waltz_core.wire.frame import (
    FRAME_SIZE_MAX_STORAGE,
    HEADER,
    HEADER_SIZE,
    HELLO_MAGIC,
    HELLO_SIZE_MAX,
    HELLO_VERSION,
    LENGTH,
    LENGTH_AT,
    Gatherer,
    frame,
    refused,
)
from waltz_core.wire.hello import Hello, decode_hello, encode_hello, negotiate
from waltz_core.wire.storage_codec import STORAGE_PROTOCOL
from waltz_core.wire.table import Table, WireProtocol

__all__ = ["ADMIN_PROTOCOL", "CLIENT_PROTOCOL", "STORAGE_PROTOCOL", "Connection"]

M = TypeVar("M")

UNLIMITED = -1  # messages decoded by one call


class SurplusError(ProtocolError):
    """A frame goes on behind its message, which is sound as far as it goes, and is not handed on."""

    def __init__(self, message: Any, surplus: int) -> None:
        super().__init__(f"corrupted message: {surplus} surplus bytes after {type(message).__name__}")
        self.message = message


class Connection(Generic[M]):
    """Turns received bytes into messages and messages into bytes; does no I/O and keeps no clock.

    Both sides send `hello()` first, without waiting for the other. Nothing else may be encoded before
    the greeting of the peer arrived, that is, while `version` is None.

    Args:
        protocol: CLIENT_PROTOCOL, STORAGE_PROTOCOL or ADMIN_PROTOCOL.
        hello_text: what our greeting says, for people.
        versions: what we offer; each must have a table in `protocol`.
        frame_size_max: largest body that we accept.
    """

    __slots__ = (
        "_count_max",
        "_error",
        "_frame_size_max",
        "_gatherer",
        "_head",
        "_hello",
        "_left",
        "_left_at",
        "_look",
        "_look_above",
        "_protocol",
        "_run_limit",
        "_table",
        "_versions",
        "peer_hello",
        "version",
    )

    def __init__(
        self,
        protocol: WireProtocol[M],
        hello_text: str,
        versions: Collection[int],
        frame_size_max: int = FRAME_SIZE_MAX_STORAGE,
    ) -> None:
        assert all(version in protocol.tables for version in versions)
        self.version: int | None = None  # negotiated
        self.peer_hello: Hello | None = None
        self._protocol = protocol
        self._hello = Hello(tuple(sorted(versions)), hello_text)
        self._versions = frozenset(versions)
        self._frame_size_max = frame_size_max
        self._gatherer = Gatherer()
        self._left = b""  # bytes whose frames from `_left_at` on have not been decoded
        self._left_at = 0
        self._count_max = UNLIMITED
        self._look: Callable[[bytes, int, int], M | None] = lambda buffer, start, end: None
        self._look_above = self._run_limit = frame_size_max
        self._error: str | None = None
        self._table: Table[M] = Table(())
        self._head = b""

    def hello(self) -> bytes:
        """Our greeting: the first bytes to send, on both sides."""
        return encode_hello(self._hello)

    def keep_alive(self) -> bytes:
        """An empty frame. Only clients send it, and only a peer of client codec 4 or above surely knows it."""
        if self.version is None:
            return frame(HELLO_MAGIC, HELLO_VERSION)
        return frame(self._protocol.magic, self.version)

    @property
    def gathered(self) -> int:
        """Bytes held back because their frame is not complete, or has not been decoded."""
        return self._gatherer.kept + len(self._left) - self._left_at

    @property
    def undecoded(self) -> int:
        """Bytes held back because `receive` was limited; it goes on with them, also without new data."""
        return len(self._left) - self._left_at

    def undecoded_count(self, most: int, apart: Container[type] = ()) -> int:
        """How many frames were held back, those of some types apart; no more than `most` frames are looked at."""
        buffer, at, count, codecs = self._left, self._left_at, 0, self._table.codecs
        for _ in range(most):
            if at + HEADER_SIZE > len(buffer):
                break
            length = HEADER.unpack_from(buffer, at)[2]
            start = at + HEADER_SIZE
            if not 0 < length <= len(buffer) - start:
                if length:
                    break  # unfinished, or none that will be accepted
            else:
                codec = codecs.get(buffer[start])
                count += codec is None or codec.cls not in apart
            at = start + length
        return count

    @property
    def head(self) -> bytes:
        """Header of our frames, without a length."""
        return self._head

    def look_at(self, above: int, look: Callable[[bytes, int, int], M | None]) -> None:
        """Show bodies of more than `above` bytes to `look` first; what it returns stands for the body, undecoded."""
        self._look_above, self._look = above, look
        self._run_limit = min(above, self._frame_size_max)

    def forget(self) -> None:
        """Let go of an unfinished frame: the connection is going to be closed."""
        self._error = self._error or "closed"
        self._clear()

    def _clear(self) -> None:
        self._gatherer.clear()
        self._left, self._left_at = b"", 0

    # ---- receiving

    def receive(self, data: bytes | bytearray | memoryview, out: list[M], count_max: int = UNLIMITED) -> None:
        """Append every message that `data` completes to `out`, but not many more than `count_max`.

        What is behind them stays as it is until the next call. A row of appends, which is decoded as one, counts 1.

        Raises:
            ProtocolError: bytes that no correct peer sends. The messages of the frames before them are in
                `out`; the connection must be closed, and raises for everything it is given later.
        """
        if self._error is not None:
            raise ProtocolError(f"the connection is broken: {self._error}")
        self._count_max = count_max
        at = 0
        buffer: bytes | None
        if self._left:
            buffer, at = self._left, self._left_at
            if data:
                buffer, at = b"".join((memoryview(buffer)[at:], data)), 0
            self._left, self._left_at = b"", 0
        else:
            buffer = self._gatherer.add(data) if self._gatherer.kept else bytes(data)
        if buffer is None:
            return
        try:
            if self.version is None:
                at = self._greet(buffer)
            if self.version is not None:
                self._messages(buffer, at, self.version, out)
        except ProtocolError as error:
            self._error = str(error)
            self._clear()
            raise

    def _messages(self, buffer: bytes, at: int, version: int, out: list[M]) -> None:
        magic, limit = self._protocol.magic, self._frame_size_max
        unpack, append, decoders, runs = HEADER.unpack_from, out.append, self._table.decoders, self._table.runs
        size, run_limit = len(buffer), self._run_limit
        left = self._count_max
        while size - at >= HEADER_SIZE:
            if not left:
                self._left, self._left_at = buffer, at
                return
            left -= 1
            head = unpack(buffer, at)
            found_magic, found_version, length = head
            if found_magic != magic or found_version != version or not 0 <= length <= limit:
                raise refused(head, magic, version, limit)
            start = at + HEADER_SIZE
            end = start + length
            if end > size:
                self._gatherer.keep(buffer, at, HEADER_SIZE + length)
                return
            if length:
                type_id = buffer[start]
                run = runs[type_id]
                if run is not None and (stop := run(buffer, at, run_limit, out)) > at:
                    at = stop
                    continue
                if length > self._look_above and (seen := self._look(buffer, start, end)) is not None:
                    append(seen)
                    at = end
                    continue
                message, stop = decoders[type_id](buffer, start, end)
                if stop != end:
                    raise SurplusError(message, end - stop)
                append(message)
            at = end
        if at < size:
            self._gatherer.keep(buffer, at, HEADER_SIZE)

    def _greet(self, buffer: bytes) -> int:
        """Look for the greeting of the peer; the place behind it, or of what must be kept."""
        at, limit = 0, min(HELLO_SIZE_MAX, self._frame_size_max)
        while len(buffer) - at >= HEADER_SIZE:
            head: tuple[int, int, int] = HEADER.unpack_from(buffer, at)
            if head[0] != HELLO_MAGIC or head[1] != HELLO_VERSION or not 0 <= head[2] <= limit:
                raise HandshakeError(f"greeting: {refused(head, HELLO_MAGIC, HELLO_VERSION, limit)}")
            start = at + HEADER_SIZE
            end = start + head[2]
            if end > len(buffer):
                self._gatherer.keep(buffer, at, HEADER_SIZE + head[2])
                return at
            if head[2]:
                self._open(buffer, start, end)
                return end
            at = end  # a keep-alive before the greeting
        self._gatherer.keep(buffer, at, HEADER_SIZE)
        return at

    def _open(self, buffer: bytes, start: int, end: int) -> None:
        hello, stop = decode_hello(buffer, start, end)
        if stop != end:
            raise HandshakeError(f"corrupted greeting: {end - stop} surplus bytes")
        self.peer_hello = hello
        version = negotiate(self._versions, hello.versions)
        self._table = self._protocol.tables[version]
        self._head = HEADER.pack(self._protocol.magic, version, 0)
        self.version = version

    # ---- sending

    def encode(self, message: M, out: bytearray) -> None:
        """Append the frame of `message` to `out`.

        Raises:
            ProtocolError: the negotiated version cannot carry it; `out` is as before.
        """
        assert self.version is not None, "nothing but hello() may be sent before the peer's greeting arrived"
        encode = self._table.encoders.get(type(message))
        if encode is None:
            raise ProtocolError(
                f"{type(message).__name__} does not exist in {self._protocol.name} codec {self.version}"
            )
        at = len(out)
        out += self._head
        try:
            encode(message, out)
        except ProtocolError:
            del out[at:]
            raise
        LENGTH.pack_into(out, at + LENGTH_AT, len(out) - at - HEADER_SIZE)

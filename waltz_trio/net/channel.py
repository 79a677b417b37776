"""One TLS connection over a non-blocking socket: bytes in become events, bytes out leave in one send per batch.

TLS runs on memory buffers beside the socket rather than through `trio.SSLStream`: a step's output is
encrypted and handed to the kernel synchronously, so a message costs no task switch on its way out.
"""

from __future__ import annotations

import contextlib
import enum
import math
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio
from trio.lowlevel import notify_closing, wait_readable, wait_writable

from waltz_core.base.edge import Closed, Received, Writable
from waltz_core.base.record import record
from waltz_core.wire.frame import LARGE
from waltz_trio.base.forks import keep_from_child
from waltz_trio.net.arrivals import Arrivals
from waltz_trio.net.ends import EndWatch
from waltz_trio.net.overhead import ANSWERS_MAX, EXCESS, SLICE, Overhead
from waltz_trio.net.pace import Drops

_RECORD = 16384  # plaintext of one TLS record: a read of this size never leaves a remainder inside OpenSSL
_SLICE = 262144  # plaintext encrypted at a time, bounds the copy when a peer is slow
_POOR = 3 * SLICE // 2  # bytes that bring nothing before others have their turn; a record that is not whole has fewer
_SURPLUS = 1 << 20  # bytes of a peer that are taken, and thrown away, after its connection was closed by us
_NO_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"This is a port of Waltz, which speaks no HTTP. HTTP is at server.jetty.port or storage.jetty.port.\n"
)
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends a reset


@record
class NetLimits:
    """Bounds on connections; sizes in bytes, times in seconds."""

    read_size: int = 262144
    high_mark: int = 1 << 20  # unsent bytes above which `Writable(False)` is posted
    low_mark: int = 1 << 18  # unsent bytes below which `Writable(True)` is posted
    unsent_max: int = 1 << 29  # a connection with more is dropped
    stall_timeout: float = 120.0  # a peer that takes nothing for this long is dropped
    handshake_timeout: float = 10.0
    connect_timeout: float = 10.0
    linger: float = 1.0  # after our end: how long to wait for the peer's
    connections_max: int = 10_000  # accepted, per process
    handshakes_max: int = 500  # accepted and not through TLS; the oldest goes when there are more


class ChannelOwner(Protocol):
    """What a channel needs of its process."""

    limits: NetLimits
    ends: EndWatch
    arrivals: Arrivals
    scratch: bytearray
    killed: bool
    touched: list[Channel]  # those that want `flush` at the end of this step

    def post(self, event: Writable | Closed) -> None:
        """Deliver an event to the machine."""

    def deliver(self, events: tuple[Received]) -> None:
        """Deliver what a socket brought to the machine, which may step before this returns."""

    async def wait_room(self) -> None:
        """Wait until the machine can take more."""

    def spawn(self, task: Callable[[], Awaitable[object]], peer: str) -> None:
        """Run a task of the connection with `peer`, as long as the process at most."""

    def surprised(self, peer: str, error: Exception) -> None:
        """Report an unexpected error, which has ended the connection with `peer`."""

    def complain(self, peer: str, text: str) -> None:
        """Say what is wrong with `peer`, in the log."""


class TlsPipe:
    """A socket with the TLS state of its connection."""

    __slots__ = ("incoming", "outgoing", "sock", "tls")

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, *, server_side: bool, host_name: str | None = None
    ) -> None:
        self.sock = sock
        keep_from_child(sock)
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=server_side, server_hostname=host_name)

    async def handshake(self) -> None:
        """Complete the TLS handshake.

        Raises:
            OSError: the connection broke (`ssl.SSLError`, which is one, if the peer is refused or speaks no TLS).
            trio.ClosedResourceError: the socket was closed meanwhile.
        """
        drops, data = Drops(), b""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                if data and not self.outgoing.pending:  # what came is no whole message
                    await drops.gather()
                await self._send_pending()
                await self.readable()
                try:
                    data = self.sock.recv(_RECORD)
                except BlockingIOError:
                    continue
                if data:
                    self.incoming.write(data)
                else:
                    self.incoming.write_eof()
            except ssl.SSLError as error:
                answer = self.outgoing.read()  # the alert says why
                if error.reason == "HTTP_REQUEST":
                    answer = _NO_HTTP
                with contextlib.suppress(OSError):
                    self.sock.send(answer)
                raise
            else:
                await self._send_pending()
                return

    async def _send_pending(self) -> None:
        data = self.outgoing.read()
        while data:
            try:
                data = data[self.sock.send(data) :]
            except BlockingIOError:
                await self.writable()

    # Trio keeps a task that waited for descriptor -1 registered under it for ever, and the next to wait for
    # -1 gets a BusyResourceError: what is waited for comes from `descriptor`, which is never that of a closed socket.

    async def readable(self) -> None:
        """Wait until the socket has bytes, or its end, to read.

        Raises:
            trio.ClosedResourceError: it is closed, or was closed meanwhile.
        """
        await wait_readable(self.descriptor())

    async def writable(self) -> None:
        """Wait until the socket takes bytes; errors as `readable`."""
        await wait_writable(self.descriptor())

    def descriptor(self) -> int:
        """What to wait for; errors as `readable`."""
        number = self.sock.fileno()
        if number < 0:
            raise trio.ClosedResourceError("the socket was closed")
        return number

    def close(self, *, reset: bool = False) -> None:
        """Close the socket, with a reset instead of an orderly end if asked."""
        if self.sock.fileno() < 0:
            return
        if reset:
            with contextlib.suppress(OSError):
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        notify_closing(self.sock.fileno())
        self.sock.close()


class _State(enum.Enum):
    OPEN = enum.auto()
    CLOSING = enum.auto()  # asked to close: what is buffered goes out first
    ENDED = enum.auto()  # `Closed` was posted; the socket may linger


class Channel:
    """One standing connection. `send` and `close` fill buffers; `flush` does the work once per step.

    OPEN → CLOSING (`close`) → ENDED; OPEN → ENDED when the connection breaks or the peer ends it.
    """

    __slots__ = (
        "_chunks",
        "_cipher",
        "_deadline",
        "_draining",
        "_overhead",
        "_owner",
        "_paused",
        "_pipe",
        "_plain",
        "_reason",
        "_resume",
        "_scope",
        "_state",
        "_touched",
        "_unsent",
        "_untrusted",
        "conn",
        "peer",
    )

    def __init__(self, conn: int, pipe: TlsPipe, peer: str, owner: ChannelOwner) -> None:
        self.conn = conn
        self.peer = peer
        self._pipe = pipe
        self._owner = owner
        self._chunks: list[bytes | bytearray] = []  # plaintext not looked at yet
        self._plain = memoryview(b"")  # plaintext being encrypted
        self._cipher = memoryview(b"")  # encrypted, not taken by the kernel
        self._unsent = 0  # bytes in the three above, before encryption
        self._state = _State.OPEN
        self._reason = ""
        self._untrusted = False
        self._touched = False
        self._deadline = math.inf  # of what is left to send, once we close
        self._draining = False
        self._overhead = Overhead()
        self._paused = False
        self._resume: trio.Event | None = None  # set while reading is held back
        self._scope = trio.CancelScope()

    # ---- out -------------------------------------------------------------------------------------

    def send(self, data: bytes | bytearray) -> None:
        """Append to the out-buffer; dropped silently when the connection is ending."""
        if data and self._state is _State.OPEN:
            self._chunks.append(data)
            self._unsent += len(data)
            self._touch()

    def close(self, reason: str) -> None:
        """End the connection once the out-buffer is empty."""
        if self._state is _State.OPEN:
            self._state = _State.CLOSING
            self._reason = reason
            # Nobody counts it any more: a peer that takes a byte now and then must not keep it.
            self._deadline = trio.current_time() + self._owner.limits.stall_timeout
            self.read(True)
            self._touch()

    def _touch(self) -> None:
        if not self._touched:
            self._touched = True
            self._owner.touched.append(self)

    def flush(self) -> None:
        """Hand the out-buffer to the kernel as far as it takes it; a task does the rest.

        An unexpected error ends this connection only: the step that flushes serves all of them.
        """
        self._touched = False
        try:
            if self._draining:
                self._keep()
                self._mark()
            elif self._push():
                if self._paused or self._state is not _State.OPEN:
                    self._sent_all()
            else:
                self._keep()
                self._mark()
                self._drain_later()
        except Exception as error:
            self._fail(_unexpected(error))
            self._owner.surprised(self.peer, error)

    def _push(self) -> bool:
        """Send until everything is gone (True) or the kernel's buffer is full (False)."""
        pipe = self._pipe
        try:
            while True:
                if self._cipher:
                    self._cipher = self._cipher[pipe.sock.send(self._cipher) :]
                    continue
                if not self._plain and not self._chunks:
                    self._unsent = 0
                    return True
                self._encrypt()
                self._cipher = memoryview(pipe.outgoing.read())
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            # The reader meets the same error, after what the peer sent before, and reports it.
            self._drop()
            return True

    def _encrypt(self) -> None:
        """Encrypt one slice, which goes out together."""
        size = 0
        while size < _SLICE:
            if not self._plain:
                if not self._chunks:
                    return
                self._plain = self._next_plain()
            taken = self._pipe.tls.write(self._plain[: _SLICE - size])
            self._plain = self._plain[taken:]
            self._unsent -= taken
            size += taken

    def _next_plain(self) -> memoryview:
        """The chunk that comes next: small ones together, a large one by itself, as to join it would be a copy."""
        chunks, count = self._chunks, 1
        total = len(chunks)
        if total > 1 and len(chunks[0]) < LARGE:
            while count < total and len(chunks[count]) < LARGE:
                count += 1
        if count == total:
            self._chunks = []
        else:
            chunks, self._chunks = chunks[:count], chunks[count:]
        return memoryview(chunks[0] if count == 1 else b"".join(chunks))

    def _keep(self) -> None:
        """Take a copy of what cannot go out now, where the sender might reuse its buffer."""
        self._chunks = [chunk if type(chunk) is bytes else bytes(chunk) for chunk in self._chunks]
        if self._plain and type(self._plain.obj) is not bytes:
            self._plain = memoryview(bytes(self._plain))

    def _mark(self) -> None:
        limits = self._owner.limits
        if self._unsent > limits.unsent_max:
            self._fail(f"the peer takes data too slowly: {self._unsent} bytes wait for it")
        elif not self._paused and self._unsent > limits.high_mark and self._state is _State.OPEN:
            self._paused = True
            self._owner.post(Writable(self.conn, False))

    def _sent_all(self) -> None:
        if self._paused and self._state is _State.OPEN:
            self._paused = False
            self._owner.post(Writable(self.conn, True))
        if self._state is _State.CLOSING:
            self._say_goodbye()

    def _drain_later(self) -> None:
        self._draining = True
        self._owner.spawn(self._drain, self.peer)

    async def _drain(self) -> None:
        """Finish a flush that the kernel could not take at once."""
        limits = self._owner.limits
        try:
            while True:
                deadline = min(trio.current_time() + limits.stall_timeout, self._deadline)
                with trio.CancelScope(deadline=deadline) as patience:
                    await self._pipe.writable()
                if patience.cancelled_caught:
                    closing = self._state is _State.CLOSING
                    text = self._reason if closing else f"the peer took no data for {limits.stall_timeout:.0f} s"
                    self._fail(text)
                    return
                if self._push():
                    break
                if self._paused and self._unsent <= limits.low_mark and self._state is _State.OPEN:
                    self._paused = False
                    self._owner.post(Writable(self.conn, True))
        except (trio.ClosedResourceError, OSError):
            self._drop()  # the reader meets the same end and reports it
            return
        except Exception as error:
            self._fail(_unexpected(error))
            raise
        finally:
            self._draining = False
        self._sent_all()

    # ---- in --------------------------------------------------------------------------------------

    def read(self, wanted: bool) -> None:
        """Stop or resume taking bytes from the socket; one read that is under way still delivers.

        The peer's end is seen although nothing is read; what it sent before is then lost, as with a reset.
        """
        descriptor = self._pipe.sock.fileno()
        if not wanted and self._resume is None:
            self._resume = trio.Event()
            self._owner.arrivals.forget(descriptor)
            if descriptor >= 0 and self._state is _State.OPEN:
                self._owner.ends.watch(descriptor, self._gone)
        elif wanted and self._resume is not None:
            self._owner.ends.forget(descriptor)
            self._resume.set()
            self._resume = None
            if self._state is _State.OPEN:
                self._owner.arrivals.watch(descriptor)

    def _gone(self) -> None:
        self._fail("the peer closed the connection")

    async def run(self) -> None:
        """Read until the connection ends; the machine hears `Closed` exactly once."""
        reason = "connection cancelled"
        try:
            with self._scope:
                if self._state is _State.OPEN:
                    self._owner.arrivals.watch(self._pipe.sock.fileno())
                reason = await self._read()
        except OSError as error:
            reason = f"connection broke: {error.strerror or error}"
            # The peer's alert, for one. An end without one is that of its process, not of its trust.
            self._untrusted = isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError)
        except trio.ClosedResourceError:
            reason = "the connection was closed"
        except Exception as error:
            reason = _unexpected(error)
            raise
        finally:
            # Unflushed data goes with the socket: the peer must not take a broken-off stream for an end.
            self._end(self._reason or reason)
            self._drop()
            self.read(True)
            self._pipe.close(reset=self._owner.killed)

    async def _read(self) -> str:
        pipe, owner, conn = self._pipe, self._owner, self.conn
        sock, incoming = pipe.sock, pipe.incoming
        scratch = owner.scratch
        view = memoryview(scratch)
        rest = view[:0]  # taken from the socket, not given to TLS yet
        surplus = 0
        while True:
            if rest or incoming.pending:
                data, ended, rest = self._decrypt(rest)
                if data and self._state is _State.OPEN:
                    owner.deliver((Received(conn, data),))
                    await owner.wait_room()
                if ended:
                    return "the peer closed the connection"
            while self._resume is not None and self._state is _State.OPEN:
                await self._resume.wait()
            if rest and self._state is _State.OPEN:
                await trio.lowlevel.checkpoint()
                continue
            rest = view[:0]
            if surplus > _SURPLUS:
                await self._wait_for_end()
            await wait_readable(pipe.descriptor())  # as `readable`, without a frame that every read goes through
            try:
                size = sock.recv_into(scratch)
            except BlockingIOError:
                continue
            if not size:
                return "the peer closed the connection"
            if self._state is _State.OPEN:
                rest = view[:size]
            else:
                # Nobody will hear it. A peer that goes on sending must not keep us decrypting what it says.
                surplus += size

    async def _wait_for_end(self) -> None:
        """Take nothing more of a connection that we have closed, until its peer is gone or the scope ends."""
        descriptor = self._pipe.sock.fileno()
        self._owner.ends.watch(descriptor, self._scope.cancel)
        try:
            await trio.sleep_forever()
        finally:
            self._owner.ends.forget(descriptor)

    def _decrypt(self, data: memoryview) -> tuple[bytes, bool, memoryview]:
        """What the records received so far hold, whether the peer said goodbye, and what is left for the next round.

        OpenSSL works through all it has got until it finds a byte for us. So it gets a slice at a time, and no more in
        this round once what it got has brought little; the scratch is everybody's, so that what is left is a copy.
        """
        incoming, overhead, outgoing = self._pipe.incoming, self._overhead, self._pipe.outgoing
        chunks: list[bytes] = []
        ended, poor = False, 0
        while True:
            if incoming.pending:
                given, ended = self._decrypt_slice(chunks)
                poor -= given
                if overhead.excessive or outgoing.pending > ANSWERS_MAX:
                    self._owner.complain(self.peer, f"the connection was ended: {EXCESS}")
                    self._fail(EXCESS)
                    return b"", False, data[:0]
            if ended or not data or poor > _POOR:
                break
            piece, data = data[:SLICE], data[SLICE:]
            incoming.write(piece)
            overhead.took(len(piece))
            poor += len(piece)
        if outgoing.pending and not self._draining and not self._cipher:
            self._touch_now()  # TLS answered by itself (key update)
        return (chunks[0] if len(chunks) == 1 else b"".join(chunks)), ended, memoryview(bytes(data))

    def _decrypt_slice(self, chunks: list[bytes]) -> tuple[int, bool]:
        """Append what the bytes that TLS has got hold; how much that is, and whether the peer said goodbye."""
        read, incoming = self._pipe.tls.read, self._pipe.incoming
        given = records = 0
        ended = False
        try:
            while incoming.pending:
                chunk = read(_RECORD)
                if not chunk:
                    ended = True
                    break
                chunks.append(chunk)
                given += len(chunk)
                records += 1
        except ssl.SSLWantReadError:
            pass
        self._overhead.gave(given, records)
        return given, ended

    def _touch_now(self) -> None:
        self._cipher = memoryview(self._pipe.outgoing.read())
        if not self._push():
            self._drain_later()

    # ---- end -------------------------------------------------------------------------------------

    def _say_goodbye(self) -> None:
        """Our end in order; the reader waits a little for the peer's, or a reset could destroy what we sent."""
        pipe = self._pipe
        with contextlib.suppress(ssl.SSLError, OSError):
            pipe.tls.unwrap()
        with contextlib.suppress(OSError):
            pipe.sock.send(pipe.outgoing.read())
            pipe.sock.shutdown(socket.SHUT_WR)
        self._end(self._reason)
        self._scope.deadline = trio.current_time() + self._owner.limits.linger

    def _fail(self, reason: str) -> None:
        self._drop()
        self._end(reason)
        self._scope.cancel()

    def _drop(self) -> None:
        self._chunks.clear()
        self._plain = self._cipher = memoryview(b"")
        self._unsent = 0

    def _end(self, reason: str) -> None:
        if self._state is not _State.ENDED:
            self._state = _State.ENDED
            self._reason = reason
            self._owner.arrivals.forget(self._pipe.sock.fileno())
            self._owner.post(Closed(self.conn, reason, self._untrusted))


def _unexpected(error: Exception) -> str:
    """Why a connection ends after an unexpected error."""
    return f"an error in this process: {error!r}"

"""The WebSockets of a gateway: appends of one partition in, their outcomes and its feed out. wsproto frames.

Appends of a socket are carried out one after the other: the next message is read when the last one has its answer. So
they commit in their order, and who sends faster than the cluster takes waits at his own end of the connection. Records
are sent as the peer takes them; who takes nothing for too long is disconnected.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import trio
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import AcceptConnection, CloseConnection, Event, Message, Ping, Request, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from waltz_core.access.bodies import Held
from waltz_core.access.port_turns import PART, PARTS, PIECE, cost_of
from waltz_trio.net.http import Pay
from waltz_trio.net.pace import Work

PROTOCOL = "waltz"
_PATIENCE = 30.0  # seconds for a message to arrive or to leave, once it has begun
_BLOCK = 1 << 16
_BROKEN = "what it sends is no WebSocket"

Put = Callable[[str], Awaitable[None]]


class _GoneError(Exception):
    """The conversation is over; the peer gets the reason."""

    def __init__(self, code: CloseReason, reason: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Socket:
    """One WebSocket, from its handshake to its end."""

    def __init__(
        self,
        headers: Mapping[str, str],
        path: str,
        *,
        size_max: int,
        answer: Callable[[str], Awaitable[str]],
        feed: Callable[[Put, Pay], Awaitable[None]] | None,
    ) -> None:
        """Prepare.

        Args:
            headers: of its request, by names in lower case.
            path: of its request.
            size_max: bytes of a message.
            answer: gives the answer to a message.
            feed: puts messages of its own, until it is cancelled, and pays for their work.
        """
        self._ws = WSConnection(ConnectionType.SERVER)
        self._headers = [(name.encode(), text.encode("latin-1")) for name, text in headers.items()]
        self._path = path
        self._size_max = size_max
        self._answer = answer
        self._feed = feed
        self._line = trio.Lock()  # who sends

    async def serve(self, stream: trio.abc.Stream, trailing: bytes, held: Held, work: Work) -> str:
        """Talk until one side ends; what was wrong with the peer, in no words of its own, or nothing."""
        self._stream = stream
        try:
            self._ws.initiate_upgrade_connection(self._headers, self._path)
            (asked,) = self._ws.events()
            assert isinstance(asked, Request)
        except (RemoteProtocolError, LocalProtocolError):
            await self._write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            return "no handshake of a WebSocket"
        wrong = ""
        protocol = PROTOCOL if PROTOCOL in asked.subprotocols else None
        await self._write(self._ws.send(AcceptConnection(subprotocol=protocol)))
        async with trio.open_nursery() as nursery:
            if self._feed is not None:
                nursery.start_soon(self._feed, self.put, work.beside().turn)
            try:
                wrong = await self._listen(trailing, held, work)
            except _GoneError as gone:
                wrong = gone.reason
                await self._say(CloseConnection(gone.code, gone.reason))
            except RemoteProtocolError as error:
                wrong = _BROKEN
                await self._say(error.event_hint or CloseConnection(CloseReason.PROTOCOL_ERROR))
            nursery.cancel_scope.cancel()
        return wrong

    async def put(self, text: str) -> None:
        """Send a message."""
        await self._say(TextMessage(text))

    async def ping(self) -> None:
        """Send a sign of life."""
        await self._say(Ping())

    async def _say(self, event: Event) -> None:
        async with self._line:
            try:
                data = self._ws.send(event)
            except LocalProtocolError:  # it is closed
                return
            await self._write(data)

    async def _write(self, data: bytes) -> None:
        with trio.fail_after(_PATIENCE):
            await self._stream.send_all(data)

    async def _listen(self, data: bytes, held: Held, work: Work) -> str:
        """Answer whole messages until the peer ends; what was wrong with it, or nothing.

        What has come of a message is counted until it has its answer.
        """
        pieces: list[str] = []
        size = 0
        try:
            while True:
                await work.turn(PIECE + cost_of(len(data)))
                self._ws.receive_data(data)
                for number, event in enumerate(self._ws.events(), 1):
                    if not number % PARTS:
                        await work.turn(PARTS * PART)
                    match event:
                        case TextMessage(data=text):
                            size += self._counted(text, size, held)
                            pieces.append(text)
                            if event.message_finished:
                                with work.under_way():
                                    text = await self._answer("".join(pieces))
                                await self.put(text)
                                held.give_back()
                                pieces, size = [], 0
                        case Message():
                            raise _GoneError(CloseReason.UNSUPPORTED_DATA, "messages are text")
                        case Ping():
                            await self._say(event.response())
                        case CloseConnection():
                            # For wsproto, who sends what cannot be parsed wants to end; the state tells them apart.
                            broken = self._ws.state is ConnectionState.OPEN
                            await self._say(event.response())
                            return _BROKEN if broken else ""
                data = await self._more(begun=bool(pieces))
                if not data:
                    return ""
        finally:
            held.give_back()

    def _counted(self, text: str, size: int, held: Held) -> int:
        """Bytes of a piece of a message of which `size` bytes are here."""
        count = len(text.encode())
        if size + count > self._size_max:
            raise _GoneError(CloseReason.MESSAGE_TOO_BIG, f"at most {self._size_max} bytes")
        if not held.take(count):
            raise _GoneError(CloseReason.TRY_AGAIN_LATER, "the gateway holds as much as it may")
        return count

    async def _more(self, *, begun: bool) -> bytes:
        if not begun:
            return bytes(await self._stream.receive_some(_BLOCK))
        with trio.fail_after(_PATIENCE):
            return bytes(await self._stream.receive_some(_BLOCK))

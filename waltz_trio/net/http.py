"""The HTTP port of a process, independent of its pages.

h11 parses and frames. Here are the limits that keep a small port usable for all: the size of a request's
head, the time that a request may take to arrive and its answer to leave, the number of connections, of requests in a
second, and of answers that never end (server-sent events). The log names who does not keep to them. GET and HEAD only:
no request changes anything, and one with a body ends its connection. A gateway has larger limits, and takes bodies of
callers that its `admit` has let in: all bodies that are held at a time are counted. What comes is parsed in turns of
callers (`waltz_core.access.port_turns`); of addresses, as long as nobody knows who calls.
"""

from __future__ import annotations

import functools
import html
import itertools
import json
import ssl
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from socket import socket
from typing import TypeAlias, cast
from urllib.parse import parse_qs, unquote, urlsplit

import attrs
import h11
import trio

from waltz_core.access.admission import owner_of
from waltz_core.access.bodies import Bodies, Held
from waltz_core.access.port_turns import CONNECTION, HANDSHAKE, PART, PARTS, PIECE, REQUEST, STREAM, cost_of
from waltz_core.access.room import Room
from waltz_core.base.edge import Level, Report
from waltz_core.base.record import record
from waltz_trio.base.background import first_of
from waltz_trio.net.complaints import Complaints
from waltz_trio.net.listener import accept_loop, bind
from waltz_trio.net.pace import Drops, Turns, Work
from waltz_trio.net.secured import SecuredStream
from waltz_trio.net.tls import ServerTls, names_of

_HEAD_MAX = 16_384  # bytes of request line and headers
_IDLE = 30.0  # seconds for a request to arrive and its answer to leave
_CONNECTIONS_MAX = 100
_RATE = 100.0  # requests a second, of all connections together: some hundredths of the process's time
_BURST = 200  # of a browser that loads pages
_DELAYED_MAX = 20  # requests of one address that had to wait for the rate: worth a line in the log
_ADDRESSES_MAX = 1000  # whose delays are counted
_STREAMS_MAX = 32  # further connections, which receive events
_NOT_ITS_PART = frozenset({401, 403, 421, 429})  # answers to who asks for what it may not, or for too much
_LINGER_BYTES = 1 << 18  # read and thrown away behind a refusal, so that a reset does not overtake it
_LINGER = 2.0  # seconds of that
_BLOCK = 4096  # bytes read at once
_NEWCOMERS = 0  # in the place of a connection, where one is taken on
_BODY_BLOCK = 1 << 16  # of a body
_FIELDS_MAX = 20  # of a query


@record
class Request:
    """A parsed request: what the endpoints look at."""

    method: str
    path: str  # decoded, without the query
    query: dict[str, list[str]]
    headers: dict[str, str]  # names in lower case
    peer: str = ""  # host:port
    names: tuple[str, ...] | None = None  # in the peer's certificate; None: not over TLS
    body: bytes = b""

    @property
    def pretty(self) -> bool:
        """`?pretty=true` was asked for."""
        return self.query.get("pretty", [""])[-1].lower() == "true"


@record
class Response:
    """Status, type and body of an answer."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    cost: int = 0  # of making it, above that of any request; its caller rests for it as for what he sends


Send: TypeAlias = Callable[[bytes], Awaitable[None]]
Pay: TypeAlias = Callable[[int], Awaitable[None]]
"""Waits for a turn that costs so much: of whom the connection belongs to, for what is done beside his requests."""


@record
class Stream:
    """An answer without an end: `feed` sends pieces until it returns or the reader goes away, and pays for the work."""

    content_type: str
    feed: Callable[[Send, Pay], Awaitable[None]]
    headers: tuple[tuple[str, str], ...] = ()
    owner: str = ""  # caller that the reader counts for, where a port limits readers


@record
class Upgrade:
    """The connection switches to another protocol, which `serve` speaks.

    `serve` gets the stream, the bytes read behind the request, the count of what the caller sends, and the turns that
    his work has. It returns what was wrong with the peer, empty if nothing was.
    """

    serve: Callable[[trio.abc.Stream, bytes, Held, Work], Awaitable[str]]
    owner: str = ""  # as of a stream


Answer: TypeAlias = Response | Stream | Upgrade
Handler: TypeAlias = Callable[[Request], Answer | Awaitable[Answer]]


Admit: TypeAlias = Callable[[Request], Response | str]
"""Looks at a request whose body has not been read yet: whose it is, empty for his address; an answer sends it away."""


@record
class HttpLimits:
    """What a port takes on; sizes in bytes."""

    connections_max: int
    streams_max: int  # further connections, which receive events
    rate: float  # requests a second, of all connections together
    burst: int
    body_max: int = 0  # of one request; 0 = none, and GET and HEAD alone
    bodies_max: int = 0  # of all requests that are read or answered at a time
    streams_per_owner: int = 0  # of the streams; 0 = all of them


def _small() -> HttpLimits:
    return HttpLimits(_CONNECTIONS_MAX, _STREAMS_MAX, _RATE, _BURST)


class _BadRequestError(Exception):
    """A request that is refused before any handler sees it; the status says what is wrong."""

    def __init__(self, status: HTTPStatus, why: str = "") -> None:
        super().__init__(why or status.phrase)
        self.status = status


def text(body: str, *, status: int = 200, content_type: str = "text/plain; charset=utf-8") -> Response:
    """An answer in text."""
    return Response(status, content_type, body.encode())


def json_text(value: object, *, status: int = 200, pretty: bool = False) -> Response:
    """An answer in JSON."""
    separators = None if pretty else (",", ":")
    body = json.dumps(value, indent=2 if pretty else None, separators=separators, default=str)
    return Response(status, "application/json", body.encode())


class HttpServer:
    """Serves one handler on one address.

    Lifetime: `listen`, then `await nursery.start(server.run)`; cancel to end.
    """

    def __init__(
        self,
        handler: Handler,
        report: Callable[[Level, str], None] | None = None,
        tls: ServerTls | None = None,
        *,
        limits: HttpLimits | None = None,
        admit: Admit | None = None,
        refuse: Callable[[HTTPStatus, str], Response] | None = None,
    ) -> None:
        """Prepare to serve; nothing is bound before `listen`.

        Args:
            handler: answers each request.
            report: gets unexpected errors, for the log.
            tls: without it, plain HTTP.
            limits: what it takes on; the default is for small ports, which only tell.
            admit: who may send a body.
            refuse: makes the answers that say why there is no other; the default makes pages.
        """
        self._limits = limits or _small()
        self._admit = admit or (lambda request: "")
        self._refuse = refuse or refusal
        self._bodies = Bodies(self._limits.bodies_max)
        self._handler = handler
        self._report = report or (lambda level, text: None)
        self._complaints = Complaints(self._report)
        self._complain = self._complaints.put
        self._tls = tls
        self._turns = Turns(self._limits.rate, self._limits.burst)
        self._numbers = itertools.count(_NEWCOMERS + 1)  # of connections
        self._delays: dict[str, int] = {}  # address → requests of it that had to wait
        self._open: dict[socket, tuple[trio.CancelScope, str]] = {}  # connections, but those that receive events
        self._room: Room[socket] = Room()  # which of them goes if there are too many
        self._streams: dict[str, int] = {}  # owner → further ones, which receive events
        self._sock: socket | None = None

    def listen(self, host: str, port: int, key: str) -> int:
        """Bind; returns the port number.

        Raises:
            ConfigError: the address is taken; the message names `key`.
        """
        self._sock = bind(host, port, key)
        return int(self._sock.getsockname()[1])

    async def run(self) -> None:
        """Serve until cancelled."""
        assert self._sock is not None, "listen first"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._complaints.run)
            nursery.start_soon(self._turns.run)
            await self._accept(self._sock)
            nursery.cancel_scope.cancel()

    async def _accept(self, listening: socket) -> None:
        async with trio.open_nursery() as nursery:

            def accepted(sock: socket, peer: str) -> None:
                if len(self._open) >= self._limits.connections_max:
                    # Connections that say nothing must not keep out those who ask.
                    longest, whose = self._open.pop(self._room.yields())
                    longest.cancel()
                    self._complain(whose, "too many HTTP connections: those that wait longest are dropped")
                scope = trio.CancelScope()
                self._open[sock] = scope, peer
                self._room.came(sock)
                nursery.start_soon(self._serve, sock, scope, peer)

            turn = functools.partial(self._turns.turn, _NEWCOMERS, "", CONNECTION)
            await accept_loop(listening, accepted, turn, self._complain)

    async def _serve(self, sock: socket, scope: trio.CancelScope, peer: str) -> None:
        try:
            work = Work(self._turns, next(self._numbers), owner_of(peer), lambda: self._delayed(peer))
            with scope, sock, work:  # closed even where the stream never came to be
                async with await self._secured(sock, work, peer) as stream:
                    connection = _Connection(stream, peer, work, self._complain, self._refuse)
                    await self._requests(connection, sock)
        except Exception as error:  # one reader's failure ends one connection
            self._ended(peer, first_of(error))
        finally:
            self._leave(sock)

    def _leave(self, sock: socket) -> tuple[trio.CancelScope, str] | None:
        self._room.gone(sock)
        return self._open.pop(sock, None)

    def _ended(self, peer: str, error: BaseException) -> None:
        if isinstance(error, trio.TooSlowError):
            self._complain(peer, f"too slow: the HTTP connection ended after {_IDLE:.0f} s without progress")
        elif isinstance(error, ssl.SSLError):
            self._complain(peer, f"TLS handshake failed: {error}")
        elif not isinstance(error, trio.BrokenResourceError | trio.ClosedResourceError | OSError):
            # A reader that goes away is no event.
            text = f"{peer}: the HTTP connection ended by an error in this process: {error!r}"
            self._complaints.take(Report(Level.ERROR, text, peer))

    async def _secured(self, sock: socket, work: Work, peer: str) -> trio.SocketStream | SecuredStream:
        plain = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        if self._tls is None:
            return plain
        secure = SecuredStream(plain, self._tls.context, lambda text: self._complain(peer, text), work.turn)
        with trio.fail_after(_IDLE):
            await work.turn(HANDSHAKE)
            await secure.handshake()
        return secure

    async def _requests(self, connection: _Connection, sock: socket) -> None:
        while connection.ready:
            request = await connection.request()
            if request is None:
                return
            answer = request if isinstance(request, Response) else await self._answer(connection, request)
            if isinstance(answer, Response):
                if answer.status in _NOT_ITS_PART:
                    connection.complain(HTTPStatus(answer.status))
                if answer.cost:
                    await connection.work.turn(answer.cost)
                await connection.send(answer, close=answer is request)
                if answer is not request and answer.status not in _NOT_ITS_PART:
                    self._room.answered(sock)
                continue
            place = self._leave(sock)  # it waits for us, not we for it: it does not make room for others
            self._streams[answer.owner] = self._streams.get(answer.owner, 0) + 1
            try:
                await connection.work.turn(STREAM)
                if isinstance(answer, Upgrade):
                    await connection.upgrade(answer, self._bodies.of(connection.work.conn, connection.work.owner))
                    return
                await connection.stream(answer)
            finally:
                self._streams[answer.owner] -= 1
                if not self._streams[answer.owner]:
                    del self._streams[answer.owner]
                if place is not None:
                    self._open[sock] = place
                    self._room.came(sock)
        await connection.linger()

    def _delayed(self, peer: str) -> None:
        """A request had to wait: who makes many of those has a line in the log."""
        host = owner_of(peer)
        if len(self._delays) >= _ADDRESSES_MAX:
            self._delays.clear()
        self._delays[host] = self._delays.get(host, 0) + 1
        if self._delays[host] % _DELAYED_MAX == 0:
            self._complain(peer, "it makes more HTTP requests than its part: they wait")

    async def _answer(self, connection: _Connection, request: Request) -> Answer:
        if not self._limits.body_max:
            if request.method not in ("GET", "HEAD"):
                return self._refuse(
                    HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD: no request changes anything here"
                )
            return await self._handled(request, connection.work)
        entered = self._admitted(request)
        if isinstance(entered, Response):
            connection.work.belongs_to("")
            return entered
        connection.work.belongs_to(entered)
        held = self._bodies.of(connection.work.conn, connection.work.owner)
        try:
            body = await connection.body(self._limits.body_max, held)
            if isinstance(body, Response):
                return body
            return await self._handled(attrs.evolve(request, body=body), connection.work)
        finally:
            held.give_back()

    def _admitted(self, request: Request) -> Response | str:
        try:
            return self._admit(request)
        except Exception as error:
            return self._failed(request, error)

    async def _handled(self, request: Request, work: Work) -> Answer:
        try:
            answer = self._handler(request)
            if not isinstance(answer, Response | Stream | Upgrade):
                with work.under_way():
                    answer = await answer
        except Exception as error:
            return self._failed(request, error)
        return answer if isinstance(answer, Response) else self._place_for(answer)

    def _place_for(self, answer: Stream | Upgrade) -> Answer:
        """The stream, or why there is no place for one more."""
        limits = self._limits
        if limits.streams_per_owner and self._streams.get(answer.owner, 0) >= limits.streams_per_owner:
            why = f"{limits.streams_per_owner} readers of this caller receive events already"
            return self._refuse(HTTPStatus.TOO_MANY_REQUESTS, why)
        if sum(self._streams.values()) >= limits.streams_max:
            return self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"{limits.streams_max} readers receive events already")
        return answer

    def _failed(self, request: Request, error: Exception) -> Response:
        self._report(Level.ERROR, f"{request.peer}: {request.path} cannot be answered: {error!r}")
        return self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "")


class _Connection:
    """One connection: h11's states, and the bytes in and out."""

    def __init__(
        self,
        stream: trio.SocketStream | SecuredStream,
        peer: str,
        work: Work,
        complain: Callable[[str, str], None],
        refuse: Callable[[HTTPStatus, str], Response],
    ) -> None:
        self.peer = peer
        self.work = work
        self._refuse = refuse
        self._stream = stream
        self._complain = complain
        # Trio's stream answers as the object that it wraps.
        self._names = names_of(cast(ssl.SSLObject, stream.tls)) if isinstance(stream, SecuredStream) else None
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_MAX)
        self._head_only = False  # the answer is to a HEAD
        self._length: int | None = None  # of the body that its head announces

    @property
    def ready(self) -> bool:
        """Whether it may carry one more request."""
        return self._http.our_state is h11.IDLE

    async def request(self) -> Request | Response | None:
        """The next request, the refusal of one that is not acceptable, or None at the end of the stream."""
        self._head_only = False
        with trio.move_on_after(_IDLE):
            try:
                event = await self._head()
                return self._parsed(event) if isinstance(event, h11.Request) else None
            except _BadRequestError as error:
                return self._refused(error.status, str(error))
            except h11.RemoteProtocolError as error:
                return self._refused(HTTPStatus(error.error_status_hint), str(error))
            except trio.BrokenResourceError:
                if self._http.trailing_data[0]:
                    self._complain(self.peer, "the HTTP connection broke in the middle of a request")
                raise
        if self._http.trailing_data[0]:  # part of a head
            return self._refused(HTTPStatus.REQUEST_TIMEOUT, f"the request did not arrive within {_IDLE:.0f} s")
        return None

    def _refused(self, status: HTTPStatus, why: str) -> Response:
        self.complain(status)
        return self._refuse(status, why)

    def complain(self, status: HTTPStatus) -> None:
        """Name the peer in the log. What it sent may be part of why; the log gets the status alone."""
        self._complain(self.peer, f"an HTTP request was refused: {status.value} {status.phrase}")

    async def body(self, size_max: int, held: Held) -> bytes | Response:
        """The body of the request that came last, or the refusal of one that is not acceptable.

        Args:
            size_max: bytes that are accepted.
            held: counts each piece before it is kept.
        """
        try:
            with trio.fail_after(_IDLE):
                return await self._read_body(size_max, held)
        except _BadRequestError as error:
            return self._refused(error.status, str(error))
        except h11.RemoteProtocolError as error:
            return self._refused(HTTPStatus(error.error_status_hint), str(error))
        except trio.TooSlowError:
            return self._refused(HTTPStatus.REQUEST_TIMEOUT, f"the request did not arrive within {_IDLE:.0f} s")

    async def _read_body(self, size_max: int, held: Held) -> bytes:
        if self._length is not None and self._length > size_max:
            raise _BadRequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {size_max} bytes are accepted")
        if self._http.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[], reason="Continue"))
        pieces: list[bytes] = []
        size = 0
        drops = Drops()
        while True:
            if len(pieces) % PARTS == PARTS - 1:
                await self.work.turn(PARTS * PART)
            event = await self._event(_BODY_BLOCK, drops=drops)
            if isinstance(event, h11.EndOfMessage):
                return b"".join(pieces)
            assert isinstance(event, h11.Data), event
            size += len(event.data)
            if size > size_max:
                raise _BadRequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {size_max} bytes are accepted")
            if not held.take(len(event.data)):
                text = "this port holds as many bodies as it may, of this caller or of all"
                raise _BadRequestError(HTTPStatus.SERVICE_UNAVAILABLE, text)
            pieces.append(bytes(event.data))

    async def _head(self) -> object:
        """What comes next where a request should: it is one, also if it cannot be parsed."""
        if not self._http.trailing_data[0]:
            return await self._event(cost=REQUEST, request=True)
        await self.work.turn(REQUEST, request=True, ahead=True)  # it came with the one before
        return await self._event()

    async def _event(
        self, size: int = _BLOCK, cost: int = PIECE, *, request: bool = False, drops: Drops | None = None
    ) -> object:
        drops, began = drops or Drops(), False
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if isinstance(self._stream, SecuredStream):  # which alone knows whether there is more already
                data = bytes(await self._stream.receive_some(size, drops))
            else:
                data = await drops.read(self._stream, size, began=began)
            if data:
                await self.work.turn((PIECE if began else cost) + cost_of(len(data)), request=request and not began)
            self._http.receive_data(data)
            began = True

    def _parsed(self, event: h11.Request) -> Request:
        self._head_only = event.method == b"HEAD"  # of a refusal, too: h11 sends no body then
        if event.http_version not in (b"1.0", b"1.1"):
            raise _BadRequestError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "this port speaks HTTP/1.1")
        # h11 measures what is incomplete between two reads only.
        if len(event.target) + sum(len(name) + len(value) + 4 for name, value in event.headers) > _HEAD_MAX:
            raise _BadRequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head of the request is too long")
        method, target = event.method.decode("ascii"), event.target.decode("ascii")
        if not target.startswith(("/", "http://", "https://")):
            raise _BadRequestError(HTTPStatus.BAD_REQUEST, "the target of a request is a path, such as /health")
        try:
            parts = urlsplit(target)
            query = parse_qs(parts.query, max_num_fields=_FIELDS_MAX)
        except ValueError as error:
            raise _BadRequestError(HTTPStatus.BAD_REQUEST, str(error)) from None
        path = unquote(parts.path)
        if not path.isprintable():
            raise _BadRequestError(HTTPStatus.BAD_REQUEST, "control characters in the path")
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}
        length = headers.get("content-length", "")
        self._length = int(length) if length.isdigit() else None
        return Request(method, path, query, headers, self.peer, self._names)

    async def send(self, response: Response, *, close: bool = False) -> None:
        """Send a whole answer; `close` ends the connection with it."""
        if self._http.their_state is h11.SEND_BODY:
            # Nobody reads a body; what came of it would be taken for the next request.
            close = close or not self._at_end()
        length = ("Content-Length", str(len(response.body)))
        ends = (("Connection", "close"),) if close else ()
        head = h11.Response(
            status_code=response.status,
            reason=HTTPStatus(response.status).phrase,
            headers=[("Content-Type", response.content_type), length, *_headers(response.headers), *ends],
        )
        data = self._http.send(head) or b""
        if not self._head_only:
            data += self._http.send(h11.Data(data=response.body)) or b""
        data += self._http.send(h11.EndOfMessage()) or b""
        with trio.fail_after(_IDLE):
            await self._stream.send_all(data)
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()

    def _at_end(self) -> bool:
        """Whether the request has no body, or all of one that is not looked at has come."""
        try:
            return isinstance(self._http.next_event(), h11.EndOfMessage)
        except h11.RemoteProtocolError as error:
            self.complain(HTTPStatus(error.error_status_hint))
            return False

    async def upgrade(self, answer: Upgrade, held: Held) -> None:
        """Hand the connection over, with what was read behind the request."""
        wrong = await answer.serve(self._stream, self._http.trailing_data[0], held, self.work)
        if wrong:
            self._complain(self.peer, f"the WebSocket was ended: {wrong}")

    async def stream(self, answer: Stream) -> None:
        """Send an answer piece by piece, until it or the reader ends."""
        ends = ("Connection", "close")
        head = h11.Response(
            status_code=200,
            reason="OK",
            headers=[("Content-Type", answer.content_type), *_headers(answer.headers), ends],
        )
        await self._send(head)
        if self._head_only:
            return
        async with trio.open_nursery() as nursery:

            async def feed() -> None:
                await answer.feed(lambda piece: self._send(h11.Data(data=piece)), self.work.beside().turn)
                await self._send(h11.EndOfMessage())
                nursery.cancel_scope.cancel()

            nursery.start_soon(feed)
            # A reader has nothing more to say: the first that comes from it is its end.
            await self._stream.receive_some(_BLOCK)
            nursery.cancel_scope.cancel()

    async def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            with trio.fail_after(_IDLE):
                await self._stream.send_all(data)

    async def linger(self) -> None:
        """End our side and read what is under way: closing before would reset, and the answer could be lost."""
        with trio.move_on_after(_LINGER):
            if isinstance(self._stream, trio.SocketStream):
                await self._stream.send_eof()
            left = _LINGER_BYTES
            while left > 0:
                data = await self._stream.receive_some(_BODY_BLOCK)
                if not data:
                    return
                await self.work.turn(PIECE)
                left -= len(data)


def _headers(more: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Of every answer; what a handler says of caching stands."""
    headers = [("X-Content-Type-Options", "nosniff"), *more]
    if not any(name.lower() == "cache-control" for name, _ in more):
        headers.append(("Cache-Control", "must-revalidate,no-cache,no-store"))
    return tuple(headers)


def refusal(status: HTTPStatus, why: str = "") -> Response:
    """An answer that says why there is no other."""
    said = html.escape(why or status.phrase)
    page = f"<html><head><title>{status.value} {status.phrase}</title></head><body>{said}</body></html>\n"
    allow = (("Allow", "GET, HEAD"),) if status is HTTPStatus.METHOD_NOT_ALLOWED else ()
    return Response(status.value, "text/html;charset=utf-8", page.encode(), allow)

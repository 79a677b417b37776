"""The HTTP endpoints of a process: /ping, /buildinfo, /health, /metrics, /metrics/prometheus.

A small HTTP/1.1 server: GET and HEAD, no bodies, no TLS, as the original's jetty port. Everything is
bounded: request head, number of connections, time.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from socket import socket
from urllib.parse import parse_qs, unquote, urlsplit

import trio

from waltz_core.base.edge import Level
from waltz_core.base.record import record
from waltz_trio.metrics import Registry
from waltz_trio.net.listener import accept_loop, bind

_HEAD_MAX = 16_384  # bytes of request line and headers
_IDLE = 30.0  # seconds a connection may think
_CONNECTIONS_MAX = 100
_TLS_HANDSHAKE = 0x16  # first byte of a client that takes this for a port of Waltz
_VERSION_PREFIX = "HTTP/1."


@record
class Request:
    """A parsed request: what the endpoints look at."""

    method: str
    path: str  # decoded, without the query
    query: dict[str, list[str]]
    headers: dict[str, str]  # names in lower case

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


Handler = Callable[[Request], Response | Awaitable[Response]]


class BadRequestError(Exception):
    """A request head that is no HTTP; the status says what is wrong."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


def text(body: str, *, status: int = 200, content_type: str = "text/plain; charset=utf-8") -> Response:
    """An answer in text."""
    return Response(status, content_type, body.encode())


def json_text(value: object, *, status: int = 200, pretty: bool = False) -> Response:
    """An answer in JSON."""
    separators = None if pretty else (",", ":")
    body = json.dumps(value, indent=2 if pretty else None, separators=separators, default=str)
    return Response(status, "application/json", body.encode())


def endpoints(service: str, registry: Registry, health: Callable[[], tuple[bool, Mapping[str, object]]]) -> Handler:
    """The original's endpoints.

    Args:
        service: name told by /buildinfo.
        registry: what /metrics shows.
        health: whether the process is healthy, and the object /health shows.
    """

    async def json(pretty: bool) -> Response:
        found = await registry.text(f"json {pretty}", lambda: registry.json(pretty=pretty))
        return Response(200, "application/json", found.encode())

    async def prometheus() -> Response:
        found = await registry.text("prometheus", registry.prometheus)
        return text(found, content_type="text/plain; version=0.0.4; charset=utf-8")

    def handle(request: Request) -> Response | Awaitable[Response]:
        match request.path.rstrip("/") or "/":
            case "/ping":
                return text("pong\n", content_type="text/plain")
            case "/buildinfo":
                return json_text({"service_name": service, "version": version()}, pretty=request.pretty)
            case "/health":
                healthy, value = health()
                return json_text(value, status=200 if healthy else 500, pretty=request.pretty)
            case "/metrics" if not _wants_prometheus(request.headers.get("accept", "")):
                return json(request.pretty)
            case "/metrics" | "/metrics/prometheus":
                return prometheus()
        return _error(HTTPStatus.NOT_FOUND)

    return handle


def version() -> str | None:
    """Version of the installed package, None outside one."""
    from importlib import metadata  # a tenth of a second to load

    try:
        return metadata.version("waltz-log")
    except metadata.PackageNotFoundError:
        return None


def _wants_prometheus(accept: str) -> bool:
    """Whether text or OpenMetrics is asked for before JSON."""
    best: tuple[float, str] = (0.0, "")
    for part in accept.split(","):
        kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    weight = float(parameter[2:])
                except ValueError:
                    weight = 0.0
        if kind in ("text/plain", "application/openmetrics-text", "application/json") and weight > best[0]:
            best = weight, kind
    return best[1] in ("text/plain", "application/openmetrics-text")


class HttpServer:
    """Serves one handler on one address.

    Lifetime: `listen`, then `await nursery.start(server.run)`; cancel to end.
    """

    def __init__(self, handler: Handler, report: Callable[[Level, str], None] | None = None) -> None:
        """Serve `handler`; `report` gets what nobody expected, for the log."""
        self._handler = handler
        self._report = report or (lambda level, text: None)
        self._open: dict[object, trio.CancelScope] = {}  # the one that has been waiting longest first
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

            def accepted(sock: socket, peer: str) -> None:
                if len(self._open) >= _CONNECTIONS_MAX:
                    # Connections that say nothing must not keep out those who ask.
                    self._open.pop(next(iter(self._open))).cancel()
                scope = self._open[sock] = trio.CancelScope()
                nursery.start_soon(self._serve, sock, scope, peer)

            await accept_loop(self._sock, accepted)

    async def _serve(self, sock: socket, scope: trio.CancelScope, peer: str) -> None:
        try:
            with scope, sock:  # closed even where the stream never came to be
                async with trio.SocketStream(trio.socket.from_stdlib_socket(sock)) as stream:
                    await self._requests(stream, peer)
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass  # a reader that goes away is no event
        except Exception as error:  # one reader's failure ends one connection
            self._report(Level.ERROR, f"{peer}: the HTTP connection ended by an error in this process: {error!r}")
        finally:
            self._open.pop(sock, None)

    async def _requests(self, stream: trio.SocketStream, peer: str) -> None:
        buffer = bytearray()
        while True:
            with trio.move_on_after(_IDLE):
                try:
                    head = await _read_head(stream, buffer)
                    if head is None:
                        return
                    request, keep = _parse(head)
                    response = await self._answer(request, peer)
                except BadRequestError as error:
                    response, keep, request = _error(error.status), False, None
                await stream.send_all(
                    _encode(response, keep, head_only=request is not None and request.method == "HEAD")
                )
                if keep:
                    continue
                await stream.send_eof()
            return

    async def _answer(self, request: Request, peer: str) -> Response:
        if request.method not in ("GET", "HEAD"):
            return _error(HTTPStatus.METHOD_NOT_ALLOWED)
        try:
            found = self._handler(request)
            return found if isinstance(found, Response) else await found
        except Exception as error:
            self._report(Level.ERROR, f"{peer}: {request.path} cannot be answered: {error!r}")
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR)


async def _read_head(stream: trio.SocketStream, buffer: bytearray) -> bytes | None:
    """The next request head without its blank line; None at the end of the stream."""
    while True:
        end = buffer.find(b"\r\n\r\n")
        if end >= 0:
            head = bytes(buffer[:end])
            del buffer[: end + 4]
            return head
        if len(buffer) > _HEAD_MAX:
            raise BadRequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        data = await stream.receive_some(4096)
        if not data:
            return None
        buffer += data
        if buffer[0] == _TLS_HANDSHAKE:  # no blank line would ever end this
            raise BadRequestError(HTTPStatus.BAD_REQUEST)


def _parse(head: bytes) -> tuple[Request, bool]:
    """The request, and whether the connection may stay."""
    lines = head.lstrip(b"\r\n").decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith(_VERSION_PREFIX) or not parts[1].startswith(("/", "http://")):
        raise BadRequestError(HTTPStatus.BAD_REQUEST)
    headers = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise BadRequestError(HTTPStatus.BAD_REQUEST)
        headers[name.lower()] = value.strip()
    try:
        target = urlsplit(parts[1])
        query = parse_qs(target.query)
    except ValueError:
        raise BadRequestError(HTTPStatus.BAD_REQUEST) from None
    # A body would be read as the next request: such a connection ends with its answer.
    body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
    wish = headers.get("connection", "").lower()
    keep = not body and (wish == "keep-alive" if parts[2] == "HTTP/1.0" else wish != "close")
    return Request(parts[0], unquote(target.path), query, headers), keep


def _error(status: HTTPStatus) -> Response:
    page = f"<html><head><title>{status.value} {status.phrase}</title></head><body>{status.phrase}</body></html>\n"
    allow = (("Allow", "GET, HEAD"),) if status is HTTPStatus.METHOD_NOT_ALLOWED else ()
    return Response(status.value, "text/html;charset=utf-8", page.encode(), allow)


def _encode(response: Response, keep: bool, *, head_only: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        "Cache-Control: must-revalidate,no-cache,no-store",
        *(f"{name}: {value}" for name, value in response.headers),
        f"Connection: {'keep-alive' if keep else 'close'}",
    ]
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    return head if head_only else head + response.body

"""One connection to a port of a node, one request after the other: for tools. Nodes talk to each other in the core."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import trio

from waltz_core.base.errors import ProtocolError, StorageError
from waltz_core.base.ids import Endpoint
from waltz_core.wire.connection import Connection
from waltz_trio.net.channel import NetLimits
from waltz_trio.net.dialer import DialError, dial_stream
from waltz_trio.net.tls import ClientTls

_READ = 65536

M = TypeVar("M")


class PortError(StorageError):
    """The node cannot be reached, or the connection broke before the answer."""


class RefusedError(StorageError):
    """The node answered with a failure; the text is the node's."""

    def __init__(self, message: str, code: int = 0, detail: int = -1) -> None:
        super().__init__(message)
        self.code = code
        self.detail = detail


class Port(Generic[M]):
    """Messages to and from one port; `kind` names it in errors."""

    def __init__(
        self, endpoint: Endpoint, stream: trio.SSLStream[trio.SocketStream], connection: Connection[M], kind: str
    ) -> None:
        self.endpoint = endpoint
        self._stream = stream
        self._connection = connection
        self._kind = kind
        self._answers: list[M] = []

    @property
    def version(self) -> int:
        """Codec agreed on."""
        assert self._connection.version is not None
        return self._connection.version

    async def agree(self) -> None:
        """Agree on a codec.

        Raises:
            PortError: the connection broke, or the peer speaks something else.
        """
        await self._send_all(self._connection.hello())
        while self._connection.version is None:
            await self._receive()

    async def send(self, message: M) -> None:
        """Send one message; errors as `agree`."""
        out = bytearray()
        self._connection.encode(message, out)
        await self._send_all(bytes(out))

    async def next(self) -> M:
        """The next message of the node; errors as `agree`."""
        while not self._answers:
            await self._receive()
        return self._answers.pop(0)

    async def ask(self, message: M) -> M:
        """Send a request and wait for the next message; errors as `agree`."""
        await self.send(message)
        return await self.next()

    async def _send_all(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise PortError(f"{self.endpoint}: the connection broke") from error

    async def _receive(self) -> None:
        try:
            data = await self._stream.receive_some(_READ)
            if not data:
                raise PortError(f"{self.endpoint} closed the connection")
            self._connection.receive(data, self._answers)
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError) as error:
            raise PortError(f"{self.endpoint}: the connection broke") from error
        except ProtocolError as error:
            raise PortError(f"{self.endpoint} does not answer as a {self._kind} port does: {error}") from error


@asynccontextmanager
async def dialed(
    endpoint: Endpoint, tls: ClientTls, limits: NetLimits
) -> AsyncIterator[trio.SSLStream[trio.SocketStream]]:
    """A TLS stream to a port, closed at once at the end.

    Raises:
        PortError: the node cannot be reached.
    """
    try:
        stream = await dial_stream(endpoint, tls, limits)
    except DialError as error:
        raise PortError(str(error)) from error
    try:
        yield stream
    finally:
        await trio.aclose_forcefully(stream)

"""One connection to a port of a node, one request after the other: for tools. Nodes talk to each other in the core."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import trio

from waltz_core.base.errors import ProtocolError, StorageError
from waltz_core.base.ids import Endpoint
from waltz_core.wire.port_session import PortSession, PortState, Refusal, refusal_of
from waltz_trio.net.channel import NetLimits
from waltz_trio.net.dialer import DialError, dial_stream
from waltz_trio.net.tls import ClientTls

_READ = 65536

M = TypeVar("M")


class PortError(StorageError):
    """The node cannot be reached, or the connection broke before the answer."""

    def __init__(self, text: str, *, untrusted: bool = False) -> None:
        super().__init__(text)
        self.untrusted = untrusted  # it is there, and TLS with it failed


class RefusedError(StorageError):
    """The node answered with a failure; the text is the node's."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.code = refusal.code
        self.detail = refusal.detail


class ToolPort(Generic[M]):
    """Messages to and from one port; `kind` names it in errors."""

    def __init__(
        self, endpoint: Endpoint, stream: trio.SSLStream[trio.SocketStream], session: PortSession[M], kind: str
    ) -> None:
        self.endpoint = endpoint
        self._stream = stream
        self._session = session
        self._kind = kind

    @property
    def version(self) -> int:
        """Codec agreed on."""
        return self._session.version

    async def open(self) -> None:
        """Agree on a codec, and show that we belong to the cluster where the port asks for that.

        Raises:
            PortError: the connection broke, or the peer speaks something else.
            RefusedError: the node belongs to another cluster, or does not let us in.
        """
        await self._send_all(self._session.hello())
        while self._session.state in (PortState.GREETING, PortState.OPENING):
            await self._receive()
        if self._session.refusal is not None:
            raise RefusedError(self._session.refusal)

    async def send(self, message: M) -> None:
        """Send one message; errors as `open`."""
        await self._send_all(self._session.encode(message))

    async def next(self) -> M:
        """The next message of the node; errors as `open`."""
        while (answer := self._session.answer()) is None:
            await self._receive()
        return answer

    async def granted(self, message: M) -> M:
        """Send a request and wait for the answer; errors as `open`."""
        answer = await self.ask(message)
        refusal = refusal_of(answer)
        if refusal is not None:
            raise RefusedError(refusal)
        return answer

    async def ask(self, message: M) -> M:
        """Send a request and wait for the next message; errors as `open`."""
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
            reply = self._session.receive(data)
            if reply:
                await self._stream.send_all(reply)
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
        raise PortError(str(error), untrusted=error.untrusted) from error
    try:
        yield stream
    finally:
        await trio.aclose_forcefully(stream)

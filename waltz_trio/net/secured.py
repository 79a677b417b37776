"""TLS over a Trio stream for a port whose peers are strangers: reads are bounded, and so is what TLS itself says."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import trio

from waltz_trio.net.overhead import EXCESS, SLICE, Overhead


class SecuredStream(trio.abc.Stream):
    """A connection that was accepted, over TLS; `handshake` comes first."""

    def __init__(self, plain: trio.SocketStream, context: ssl.SSLContext, complain: Callable[[str], None]) -> None:
        """`complain` hears why the connection is ended, where that is the peer's fault."""
        self._raw = _Bounded(plain, complain)
        self.tls = trio.SSLStream(self._raw, context, server_side=True, https_compatible=True)

    async def handshake(self) -> None:
        """Complete the TLS handshake."""
        await self.tls.do_handshake()
        self._raw.overhead = Overhead()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As of any stream."""
        await self.tls.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """As of any stream."""
        await self.tls.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As of any stream."""
        data = await self.tls.receive_some(max_bytes)
        if self._raw.overhead is not None:
            self._raw.overhead.gave(len(data))
        return data

    async def aclose(self) -> None:
        """As of any stream."""
        await self.tls.aclose()


class _Bounded(trio.abc.Stream):
    """What TLS reads from: a slice at a time, until it has read too much that brought nothing."""

    def __init__(self, plain: trio.SocketStream, complain: Callable[[str], None]) -> None:
        self._plain = plain
        self._complain = complain
        self.overhead: Overhead | None = None  # from the handshake on, which has limits of its own

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._plain.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._plain.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self.overhead is not None and self.overhead.excessive:
            self._complain(EXCESS)
            raise trio.BrokenResourceError(EXCESS)
        data = await self._plain.receive_some(SLICE)
        if self.overhead is not None:
            self.overhead.took(len(data))
        return data

    async def aclose(self) -> None:
        await self._plain.aclose()

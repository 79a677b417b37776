"""TLS over a Trio stream for a port whose peers are strangers: reads are bounded, and so is what TLS itself says.

That takes time in which nobody else runs, so that it waits for turns, as what is said does. TLS hands out a record at a
time, however much has come; so pauses for drops are made here, where it is known whether the socket is to be read.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from waltz_trio.net.overhead import EXCESS, SLICE, Begun, Overhead
from waltz_trio.net.pace import Drops

_COST: Final = 1  # microseconds for each byte that brought nothing
_SHAKING: Final = 1_024  # bytes at a time until the handshake is complete: what comes right behind it is not counted


class SecuredStream(trio.abc.Stream):
    """A connection that was accepted, over TLS; `handshake` comes first."""

    def __init__(
        self,
        plain: trio.SocketStream,
        context: ssl.SSLContext,
        complain: Callable[[str], None],
        pay: Callable[[int], Awaitable[None]],
    ) -> None:
        """Wrap a connection.

        Args:
            plain: without TLS.
            context: of the accepting side.
            complain: hears why the connection is ended, where that is the peer's fault.
            pay: waits for a turn that costs so many microseconds; called by who reads, and by nobody else.
        """
        self._raw = _Bounded(plain, complain, pay)
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

    async def receive_some(self, max_bytes: int | None = None, drops: Drops | None = None) -> bytes | bytearray:
        """As of any stream; `drops` are those of what is read by this, the default of one record."""
        self._raw.drops = drops or Drops()
        data = await self.tls.receive_some(max_bytes)
        if self._raw.overhead is not None:
            self._raw.overhead.gave(len(data), 1)
        return data

    async def aclose(self) -> None:
        """As of any stream."""
        await self.tls.aclose()


class _Bounded(trio.abc.Stream):
    """What TLS reads from: a slice at a time, until it has read too much that brought nothing."""

    def __init__(
        self, plain: trio.SocketStream, complain: Callable[[str], None], pay: Callable[[int], Awaitable[None]]
    ) -> None:
        self._plain = plain
        self._complain = complain
        self._pay = pay
        self._begun = Begun()
        self._paid = 0  # of the bytes that brought nothing
        self.overhead: Overhead | None = None  # from the handshake on, which has limits of its own
        self.drops = Drops()  # of what is read now

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self.overhead is None:
            self.drops = Drops()  # what came was no drop, but a whole message of the handshake: it is answered
        await self._plain.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._plain.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        overhead = self.overhead
        if overhead is not None:
            await self._pay_for(overhead)
            if overhead.excessive:
                self._complain(EXCESS)
                raise trio.BrokenResourceError(EXCESS)
        data = await self.drops.read(self._plain, _SHAKING if overhead is None else SLICE)
        self._begun.took(data)
        if overhead is not None:
            overhead.took(len(data))
        return data

    async def _pay_for(self, overhead: Overhead) -> None:
        """TLS wants more: all records that are whole have been looked at, and what they held was handed out."""
        barren = max(0, overhead.barren - self._begun.size)
        if barren > self._paid:
            await self._pay(_COST * (barren - self._paid))
        self._paid = barren

    async def aclose(self) -> None:
        await self._plain.aclose()

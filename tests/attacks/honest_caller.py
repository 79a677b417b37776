"""The honest client beside an attack on a gateway: `python -m tests.attacks.honest_caller PORT TOKEN JOURNAL`.

As `tests.attacks.honest`, by plain HTTP: a few connections, each of which appends, waits for the answer, and appends
again. A connection that breaks, or an append that was put off, is tried again under the next number: its outcome is
unknown, so nothing was promised.
"""

from __future__ import annotations

import io
import itertools
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import trio

from tests.attacks.web import append

_CONNECTIONS = 4
_PAUSE = 0.01  # seconds before a connection is made again


class Caller:
    """One program that uses a gateway."""

    def __init__(self, port: int, token: str, journal: io.FileIO) -> None:
        self.stopped = False
        self._port = port
        self._token = token
        self._journal = journal
        self._numbers: Iterator[int] = itertools.count()

    async def watch(self, signals: AsyncIterator[int]) -> None:
        """Stop at the first signal."""
        async for _ in signals:
            self.stopped = True

    async def run(self) -> None:
        """Append over one connection at a time until stopped."""
        while not self.stopped:
            try:
                async with await trio.open_tcp_stream("127.0.0.1", self._port) as stream:
                    await self._append(stream)
            except (OSError, trio.BrokenResourceError):
                await trio.sleep(_PAUSE)

    async def _append(self, stream: trio.SocketStream) -> None:
        held = b""
        while not self.stopped:
            number = next(self._numbers)
            await stream.send_all(append(f"honest {number}", self._token))
            while b"\r\n\r\n" not in held:
                held += await _more(stream)
            top, _, held = held.partition(b"\r\n\r\n")
            fields = dict(line.lower().split(b": ", 1) for line in top.split(b"\r\n")[1:])
            size = int(fields[b"content-length"])
            while len(held) < size:
                held += await _more(stream)
            body, held = held[:size], held[size:]
            if top.split()[1] == b"201":
                self._journal.write(b"%011d %011d\n" % (json.loads(body)["id"], number))
            if fields.get(b"connection") == b"close":
                return


async def _more(stream: trio.SocketStream) -> bytes:
    data = bytes(await stream.receive_some())
    if not data:
        raise ConnectionResetError
    return data


async def main(port: int, token: str, journal: Path) -> None:
    """Call until a signal comes."""
    with journal.open("ab", buffering=0) as file, trio.open_signal_receiver(signal.SIGTERM) as signals:
        caller = Caller(port, token, file)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(caller.watch, signals)
            async with trio.open_nursery() as calls:
                for _ in range(_CONNECTIONS):
                    calls.start_soon(caller.run)
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))

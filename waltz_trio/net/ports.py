"""Ports of this machine for nodes that name none: free ones, held until the nodes are gone for good."""

from __future__ import annotations

import contextlib
import random
import socket
from types import TracebackType

_HOST = "127.0.0.1"
_RANGE = 20_000, 32_000
_TRIES = 10_000


class HeldPorts(contextlib.AbstractContextManager["HeldPorts"]):
    """Ports of 127.0.0.1 that nobody else is given as long as the block runs, whether or not a node listens there.

    They lie below the range from which the system takes the local ports of connections: a process that dials a dead
    node on a port of that range may get it as its own local port, be connected to itself, and keep the node from
    coming back. A port is held by a bound socket that does not listen. As SO_REUSEADDR is set on it, whoever sets
    that too, as our nodes do, may listen there, again and again; whoever looks for a free port is refused it.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def take(self) -> int:
        """One more port that is free.

        Raises:
            OSError: none was found.
        """
        for _ in range(_TRIES):
            port = random.SystemRandom().randrange(*_RANGE)
            if self.hold(port):
                return port
        first, end = _RANGE
        raise OSError(f"{_HOST}: {_TRIES} ports tried from {first} to {end - 1}, all taken: end what listens there")

    def hold(self, port: int) -> bool:
        """Keep this port, if nobody has it."""
        sock = socket.socket()
        try:
            sock.bind((_HOST, port))
        except OSError:
            sock.close()
            return False
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not before: two who look would share it
        self._sockets.append(sock)
        return True

    def release(self) -> None:
        """Give all of them back."""
        while self._sockets:
            self._sockets.pop().close()

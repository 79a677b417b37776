"""What a hostile peer does, as a process of its own: `python -m tests.attacks.peers ATTACK PROTOCOL PORT SECONDS`.

None of them has a certificate or knows the cluster key. Each goes on until its time is up, whatever the other side
does, and prints the connections that it made and the processor time that it took.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from waltz_core.wire.connection import ADMIN_PROTOCOL, CLIENT_PROTOCOL, STORAGE_PROTOCOL, Connection
from waltz_core.wire.table import WireProtocol

WIDTH = 300  # connections that an attack holds at once
_RESET = struct.pack("ii", 1, 0)
_PROTOCOLS: dict[str, WireProtocol[Any]] = {
    "client": CLIENT_PROTOCOL,
    "storage": STORAGE_PROTOCOL,
    "admin": ADMIN_PROTOCOL,
}


class Attacker:
    """One peer and its connections."""

    def __init__(self, protocol: str, port: int, end: float) -> None:
        self.protocol: WireProtocol[Any] | None = _PROTOCOLS.get(protocol)  # None: HTTP, without TLS
        self.port = port
        self.end = end
        self.made = 0
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE

    @property
    def on(self) -> bool:
        """Time is left."""
        return time.monotonic() < self.end

    def connect(self) -> socket.socket:
        """A TCP connection."""
        self.made += 1
        made = socket.socket()
        made.settimeout(2)
        with contextlib.suppress(OSError):
            made.connect(("127.0.0.1", self.port))
        return made

    def secure(self) -> socket.socket:
        """A connection whose handshake is done, as far as the other side lets it; plain for HTTP."""
        made = self.connect()
        if self.protocol is not None:
            with contextlib.suppress(OSError):
                return self._context.wrap_socket(made)
        return made

    def greeted(self) -> socket.socket:
        """A connection that both sides have greeted on."""
        made = self.secure()
        send(made, self.hello())
        return made

    def hello(self) -> bytes:
        """Our greeting."""
        if self.protocol is None:
            return b"GET /ping HTTP/1.1\r\n"  # a head that never ends
        return Connection(self.protocol, "attack", sorted(self.protocol.tables)).hello()

    def client_hello(self) -> bytes:
        """The first bytes of a TLS handshake."""
        outgoing = ssl.MemoryBIO()
        tls = self._context.wrap_bio(ssl.MemoryBIO(), outgoing)
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        return outgoing.read()

    def hold(self, make: Callable[[], socket.socket]) -> None:
        """Keep `WIDTH` connections, the newest ones."""
        held: list[socket.socket] = []
        while self.on:
            held.append(make())
            if len(held) > WIDTH:
                held.pop(0).close()
        for one in held:
            one.close()


def send(sock: socket.socket, data: bytes) -> None:
    """As far as the other side takes it."""
    with contextlib.suppress(OSError):
        sock.sendall(data)


def reset(sock: socket.socket) -> None:
    """End with a reset."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()


def silence(attacker: Attacker) -> None:
    """Connections that say nothing."""
    attacker.hold(attacker.connect)


def idleness(attacker: Attacker) -> None:
    """Connections that greet and ask for nothing."""
    attacker.hold(attacker.greeted)


def resets(attacker: Attacker) -> None:
    """Resets at each state of a connection."""
    hello = attacker.client_hello()
    stages: list[Callable[[], socket.socket]] = [attacker.connect, attacker.secure, attacker.greeted]
    while attacker.on:
        for make in stages:
            reset(make())
        for part in (hello[:20], hello):
            one = attacker.connect()
            send(one, part)
            reset(one)


def drip(attacker: Attacker) -> None:
    """Many handshakes, one byte at a time each."""
    hello = attacker.client_hello() if attacker.protocol is not None else attacker.hello() * 100
    dripping = [attacker.connect() for _ in range(100)]
    at = 0
    while attacker.on:
        for one in dripping:
            send(one, hello[at % len(hello) :][:1])
        at += 1
    for one in dripping:
        one.close()


def half_open(attacker: Attacker) -> None:
    """Connections whose sending half is closed, and that read nothing."""

    def make() -> socket.socket:
        made = attacker.greeted()
        with contextlib.suppress(OSError):
            made.shutdown(socket.SHUT_WR)
        return made

    attacker.hold(make)


def extremes(attacker: Attacker) -> None:
    """Frames of every extreme length and version, and types that nobody knows."""
    magic = attacker.protocol.magic if attacker.protocol is not None else ord("G")
    frames = [
        struct.pack(">Bhi", magic, version, size) + b"\xff" * 64
        for version in (-1, 0, 1, 5, 32767)
        for size in (-(2**31), -1, 0, 1, 2**31 - 1)
    ]
    while attacker.on:
        for frame in frames:
            with contextlib.closing(attacker.greeted()) as one:
                send(one, frame)


ATTACKS: dict[str, Callable[[Attacker], None]] = {
    attack.__name__: attack for attack in (silence, idleness, resets, drip, half_open, extremes)
}


def main(arguments: list[str]) -> None:
    """Attack, and say what it took."""
    name, protocol, port, seconds = arguments
    attacker = Attacker(protocol, int(port), time.monotonic() + float(seconds))
    begin = time.process_time()
    ATTACKS[name](attacker)
    print(json.dumps({"connections": attacker.made, "cpu": time.process_time() - begin}))


if __name__ == "__main__":
    main(sys.argv[1:])

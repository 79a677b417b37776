"""What a hostile peer does, as a process of its own: `python -m tests.attacks.peers TARGET`, a `Target` as JSON.

Without a certificate, or with one that was made for it; with or without the cluster key. Each goes on until its time is
up, whatever the other side does, and prints the connections that it made and held, and the processor time that it took.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import socket
import ssl
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import attrs

from tests.attacks import web
from tests.attacks.messages import (
    KEY,
    PROTOCOLS,
    Identity,
    encoded,
    extreme_frames,
    greeting,
    liars,
    message_types,
    newest,
    opening,
    ordinary,
)
from tests.key_updates import UpdateRecords
from waltz_core.base.errors import ProtocolError
from waltz_core.wire.connection import Connection
from waltz_core.wire.frame import HEADER
from waltz_core.wire.table import WireProtocol

WIDTH = 300  # connections that an attack holds at once
_RESET = struct.pack("ii", 1, 0)
_PIPELINES = 4  # connections of a flood
_CHUNK = 1 << 16  # bytes written at once


@attrs.frozen
class Target:
    """Whom to attack, how, and as whom."""

    attack: str
    protocol: str  # client, storage, admin, http, or gateway
    port: int
    seconds: float
    message: str = ""  # type of the messages of a flood
    certificate: str = ""  # file of the certificate and its key
    token: str = ""  # that it shows to a gateway
    key: str = ""  # of the cluster, where it is known
    partitions: int = 1
    victim: int = 1  # a client id of somebody else
    client_id: int = 4_000_000
    seed: int = 0


class Attacker:
    """One peer and its connections."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.protocol: WireProtocol[Any] | None = PROTOCOLS.get(target.protocol)  # None: HTTP, without TLS
        self.port = target.port
        self.end = time.monotonic() + target.seconds
        self.made = 0
        self.held = 0  # at once, at most
        self.rng = random.Random(target.seed)
        key = UUID(target.key) if target.key else KEY
        self.who = Identity(client_id=target.client_id, partitions=target.partitions, key=key)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        if target.certificate:
            self._context.load_cert_chain(target.certificate)

    @property
    def on(self) -> bool:
        """Time is left."""
        return time.monotonic() < self.end

    def log_keys(self, file: Path) -> None:
        """From now on, write the secrets of connections to a file; their cipher is that of `UpdateRecords`."""
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.keylog_filename = str(file)

    def connect(self) -> socket.socket:
        """A TCP connection."""
        self.made += 1
        made = socket.socket()
        made.settimeout(2)
        with contextlib.suppress(OSError):
            made.connect(("127.0.0.1", self.port))
        return made

    def secure(self) -> socket.socket:
        """A connection whose handshake is done, plain for HTTP; closed where the other side does not let it."""
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
        return greeting(self.target.protocol, sorted(self.protocol.tables))

    def client_hello(self) -> bytes:
        """The first bytes of a TLS handshake."""
        outgoing = ssl.MemoryBIO()
        tls = self._context.wrap_bio(ssl.MemoryBIO(), outgoing)
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        return outgoing.read()

    def hold(self, make: Callable[[], socket.socket], *, replaces: bool = True) -> None:
        """Keep `WIDTH` connections, the newest ones, or those that were made first until the end."""
        held: list[socket.socket] = []
        while self.on:
            if len(held) == WIDTH and not replaces:
                time.sleep(0.05)
                continue
            held.append(make())
            if len(held) > WIDTH:
                held.pop(0).close()
            self.held = max(self.held, len(held))
        for one in held:
            one.close()

    def frames(self, version: int, who: Identity, name: str = "") -> bytes:
        """The ordinary messages of one version in a row, or that of one type."""
        assert self.protocol is not None
        codecs = [codec for one, codec in message_types(self.target.protocol) if one == version]
        wanted = [codec for codec in codecs if not name or codec.cls.__name__ == name]
        made = [encoded(self.protocol, version, ordinary(codec, who)) for codec in wanted]
        return b"".join(frame for frame in made if frame is not None)

    def opened(self, version: int, who: Identity) -> bytes:
        """Greeting and first requests, for a connection of this version."""
        assert self.protocol is not None
        made = [encoded(self.protocol, version, message) for message in opening(self.target.protocol, who)]
        return greeting(self.target.protocol, [version]) + b"".join(frame for frame in made if frame is not None)


class Pipeline:
    """One connection that is written to as fast as it takes, and made again when it ends."""

    def __init__(self, attacker: Attacker, first: bytes, repeated: bytes, *, reads: bool) -> None:
        self._attacker = attacker
        self._first = first
        self._repeated = repeated * max(1, _CHUNK // len(repeated))
        self._reads = reads
        self._sock: socket.socket | None = None
        self._unsent = b""

    def pump(self) -> bool:
        """Write and read what goes without waiting; whether anything went."""
        if self._sock is None:
            self._sock = self._attacker.secure()
            self._unsent = self._first
        moved = False
        try:
            self._sock.setblocking(False)
            moved = self._read() if self._reads else False
            sent = self._sock.send(self._unsent or self._repeated)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            return moved
        except OSError:
            self.close()
            return True
        self._unsent = (self._unsent or self._repeated)[sent:]
        return True

    def _read(self) -> bool:
        assert self._sock is not None
        try:
            data = self._sock.recv(1 << 18)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            return False
        if not data:
            raise ConnectionResetError
        return True

    def close(self) -> None:
        """End it."""
        if self._sock is not None:
            self._sock.close()
        self._sock = None


def run_pipelines(attacker: Attacker, pipelines: list[Pipeline]) -> None:
    """Keep all of them going until the time is up."""
    attacker.held = len(pipelines)
    while attacker.on:
        moved = [one.pump() for one in pipelines]
        if not any(moved):
            time.sleep(0.002)
    for one in pipelines:
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
    """Connections that greet, ask for nothing, and stay."""
    attacker.hold(attacker.greeted, replaces=False)


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


def flood(attacker: Attacker) -> None:
    """One type of message, pipelined; the answers are read."""
    attacker_pipelines(attacker, _PIPELINES, reads=True)


def unread(attacker: Attacker) -> None:
    """Messages of every type, or of one, pipelined over connections that never read."""
    attacker_pipelines(attacker, 10 * _PIPELINES, reads=False)


def attacker_pipelines(attacker: Attacker, count: int, *, reads: bool) -> None:
    """Pipelines of what the target names."""
    target, who = attacker.target, attacker.who
    if attacker.protocol is None:
        names = [target.message] if target.message else flooded(target.protocol)
        if target.protocol == "gateway":
            requests = b"".join(web.request(name, target.token) for name in names)
        else:
            requests = b"".join(f"GET {name} HTTP/1.1\r\nHost: attack\r\n\r\n".encode() for name in names)
        run_pipelines(attacker, [Pipeline(attacker, requests, requests, reads=reads) for _ in range(count)])
        return
    version = max(attacker.protocol.tables)
    pipelines = []
    for number in range(count):
        who = attrs.evolve(attacker.who, client_id=attacker.who.client_id + number)
        frames = attacker.frames(version, who, target.message)
        pipelines.append(Pipeline(attacker, attacker.opened(version, who), frames, reads=reads))
    run_pipelines(attacker, pipelines)


def fields(attacker: Attacker) -> None:
    """Every field of every message type of every version at each of its extremes."""
    while attacker.on:
        for first, frames in _extreme_runs(attacker):
            if not attacker.on:
                return
            with contextlib.closing(attacker.secure()) as one:
                send(one, first + frames)


def _extreme_runs(attacker: Attacker) -> Iterator[tuple[bytes, bytes]]:
    """What begins a connection, and what follows: frames that the other side decodes, the last perhaps apart."""
    if attacker.protocol is None:
        for head in web.extremes(attacker.target.protocol, attacker.target.token):
            yield b"", head
        return
    name = attacker.target.protocol
    types = message_types(name)
    attacker.rng.shuffle(types)
    for version, codec in types:
        frames = extreme_frames(name, version, codec, attacker.who)
        good = [frame for frame in frames if _decodes(name, version, frame)]
        bad = [frame for frame in frames if frame not in good]
        first = attacker.opened(version, attacker.who)
        last = attacker.rng.sample(bad, min(3, len(bad))) or [b""]
        for at, end in enumerate(last):
            yield first, b"".join(good[at :: len(last)]) + end


def _decodes(name: str, version: int, frame: bytes) -> bool:
    connection: Connection[Any] = Connection(PROTOCOLS[name], "attack", {version})
    got: list[Any] = []
    connection.receive(greeting(name, [version]), got)
    try:
        connection.receive(frame, got)
    except ProtocolError:
        return False
    return bool(got)


def bodies(attacker: Attacker) -> None:
    """Large bodies, all under way at once, a little at a time each."""
    size = 4 << 20
    first = web.head("POST", f"{web.AT}/append", attacker.target.token, f"Content-Length: {size}")
    under_way: list[socket.socket] = []
    while attacker.on:
        for one in under_way:
            one.setblocking(False)
            send(one, b"x" * 4_096)
        if len(under_way) < WIDTH:
            made = attacker.connect()
            send(made, first)
            under_way.append(made)
        attacker.held = len(under_way)
    for one in under_way:
        one.close()


def readers(attacker: Attacker) -> None:
    """Feeds of everything, as events and over WebSockets, that nobody reads."""
    heads = itertools.cycle((web.reader_head(attacker.target.token), web.socket_head(attacker.target.token)))

    def make() -> socket.socket:
        made = attacker.connect()
        send(made, next(heads))
        return made

    attacker.hold(make)


def halves(attacker: Attacker) -> None:
    """A frame of each type is cut somewhere, and the connection reset, half closed, or kept."""
    kept: list[socket.socket] = []
    ends: list[Callable[[socket.socket], None]] = [reset, _half_close(kept), kept.append]
    for (first, frame), end in zip(itertools.cycle(_whole_frames(attacker)), itertools.cycle(ends), strict=False):
        if not attacker.on:
            break
        one = attacker.secure()
        send(one, first + frame[: attacker.rng.randrange(1, len(frame))])
        end(one)
        while len(kept) > WIDTH:
            kept.pop(0).close()
        attacker.held = max(attacker.held, len(kept))
    for one in kept:
        one.close()


def _half_close(kept: list[socket.socket]) -> Callable[[socket.socket], None]:
    def end(one: socket.socket) -> None:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_WR)
        kept.append(one)

    return end


def _whole_frames(attacker: Attacker) -> list[tuple[bytes, bytes]]:
    if attacker.protocol is None:
        return [(b"", head) for head in web.extremes(attacker.target.protocol, attacker.target.token)]
    types = message_types(attacker.target.protocol)
    attacker.rng.shuffle(types)
    frames = []
    for version, codec in types:
        frame = encoded(attacker.protocol, version, ordinary(codec, attacker.who))
        assert frame is not None
        # One that announces much more than will ever come, and one that says what it is.
        announced = HEADER.pack(attacker.protocol.magic, version, 60 << 20) + frame[HEADER.size :] + bytes(1 << 16)
        frames += [(attacker.opened(version, attacker.who), one) for one in (frame, announced)]
    return frames


def lies(attacker: Attacker) -> None:
    """Everything is asked under client ids, request ids, sequence numbers, sessions and keys that are not its own."""
    if attacker.protocol is None:
        fields(attacker)
        return
    claimed = {"client_id": attacker.target.victim}
    for who, version in itertools.cycle(itertools.product(liars(attacker.who, claimed), attacker.protocol.tables)):
        if not attacker.on:
            return
        frames = [encoded(attacker.protocol, version, ordinary(codec, who)) for codec in _requests(attacker, version)]
        for opened_as in (attacker.who, who):
            with contextlib.closing(attacker.secure()) as one:
                first = attacker.opened(version, opened_as)
                send(one, first + b"".join(frame for frame in frames if frame is not None))


def updates(attacker: Attacker) -> None:
    """TLS messages without end that bring nothing, and that ask for answers which it does not read."""
    assert attacker.protocol is not None
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "keys"
        attacker.log_keys(log)
        while attacker.on:
            with contextlib.closing(attacker.secure()) as one:
                if isinstance(one, ssl.SSLSocket):
                    records = UpdateRecords(log)
                    with contextlib.suppress(OSError):
                        while attacker.on:  # past TLS, which would wrap them
                            socket.socket.sendall(one, records.updates(500, answered=True))
                else:
                    time.sleep(0.01)


def _requests(attacker: Attacker, version: int) -> list[Any]:
    """What a port does not take for a breach of the protocol: all but answers."""
    codecs = [codec for one, codec in message_types(attacker.target.protocol) if one == version]
    return [codec for codec in codecs if codec.cls.__name__.endswith("Request")]


CONNECTING: dict[str, Callable[[Attacker], None]] = {
    attack.__name__: attack for attack in (silence, idleness, resets, drip, half_open, extremes)
}
SAYING: dict[str, Callable[[Attacker], None]] = {
    attack.__name__: attack for attack in (flood, unread, fields, halves, lies)
}
WRAPPED: dict[str, Callable[[Attacker], None]] = {attack.__name__: attack for attack in (updates,)}
"""On top, where TLS is."""
CALLING: dict[str, Callable[[Attacker], None]] = {attack.__name__: attack for attack in (bodies, readers)}
"""On top, at a gateway."""
ATTACKS = {**CONNECTING, **SAYING, **WRAPPED, **CALLING}


def saying(protocol: str) -> list[str]:
    """The attacks of those who say something, on such a port."""
    return [*SAYING, *(WRAPPED if protocol in PROTOCOLS else ()), *(CALLING if protocol == "gateway" else ())]


def flooded(protocol: str) -> list[str]:
    """What a port may be flooded with: every message type of its newest codec, or requests of the HTTP ports."""
    if protocol in PROTOCOLS:
        return list(newest(protocol))
    return list(web.GATEWAY_REQUESTS if protocol == "gateway" else web.SMALL_PATHS)


def main(arguments: list[str]) -> None:
    """Attack, and say what it took."""
    target = Target(**json.loads(arguments[0]))
    print("begun", flush=True)
    attacker = Attacker(target)
    begin = time.process_time()
    ATTACKS[target.attack](attacker)
    cpu = time.process_time() - begin
    print(json.dumps({"connections": attacker.made, "held": attacker.held, "cpu": cpu}))


if __name__ == "__main__":
    main(sys.argv[1:])

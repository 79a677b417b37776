"""An honest peer as heavy as an attacker: `python -m tests.attacks.neighbour NEIGHBOUR`, a `Neighbour` as JSON.

It makes and holds as many connections, and takes as much processor time: both share the cores with what is attacked.
Beside attacks that connect it takes no more of it; beside those that pipeline requests it asks all the time too, a few
requests at a time on each connection, for what the port is there for, and reads the answers. Asking takes little time;
the rest it computes. Beside it an honest client has the rate that an attack is judged by.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs

from tests.attacks import web
from tests.attacks.messages import newest, ordinary
from tests.attacks.peers import Attacker, Target
from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import ReqId, make_req_id
from waltz_core.wire import admin_messages, client_messages, storage_messages
from waltz_core.wire.connection import Connection
from waltz_core.wire.primitives import checksum_of

_WINDOW = 10  # requests before their answers are read
_DATA = b"neighbour" * 10
_ACTIVE = 8  # connections that ask; others are held
_MADE = 50  # connections that are made before it asks again
_BEHIND = 0.02  # seconds of processor time that are left to asking


@attrs.frozen
class Neighbour:
    """How heavy it is."""

    target: Target
    held: int  # connections at once
    rate: float  # connections made a second
    cpu: float  # processor time a second
    limited: bool  # it takes no more than that; else it asks as fast as it is answered


class _Asker:
    """One connection that asks and reads."""

    def __init__(self, attacker: Attacker, number: int) -> None:
        self._attacker = attacker
        self._protocol = attacker.protocol
        self._numbers = itertools.count(1)
        self._who = attrs.evolve(attacker.who, client_id=attacker.who.client_id + number)
        self.sock: socket.socket = attacker.secure()
        self._connection: Connection[Any] | None = None
        self._generation = 0
        self._mark = -1  # highest id it was sent
        self._waiting: set[ReqId] = set()  # its appends that have not come back
        self.ready = False
        with contextlib.suppress(OSError, ProtocolError):
            self.sock.settimeout(2)
            self._greet()
            self.ready = True

    def _greet(self) -> None:
        if self._protocol is None:
            return
        version = max(self._protocol.tables)
        self._connection = Connection(self._protocol, "neighbour", [version])
        self.sock.sendall(self._connection.hello())
        while self._connection.version is None:
            self._receive()
        name = self._attacker.target.protocol
        if name == "client":
            self._ask([client_messages.ClusterInfoRequest(self._who.req_id, False, False)])
            (info,) = self._answers(1, client_messages.ClusterInfoResponse)
            self._generation = dict(held for server in info.servers for held in server.partitions)[self._who.partition]
            self._ask([client_messages.HighWaterMarkRequest(self._req_id())])
            (mark,) = self._answers(1, client_messages.HighWaterMarkResponse)
            req_id = self._req_id()
            self._mark = mark.high_water_mark
            self._ask([client_messages.MountRequest(req_id, self._mark, 1)])
            self._answers(1, client_messages.MountResponse)
            self._ask([client_messages.FeedRequest(req_id, self._mark)])
        else:
            opening = next(codec for one, codec in newest(name).items() if one.endswith("OpenRequest"))
            self._ask([ordinary(opening, self._who)])
            self._receive()

    def _req_id(self) -> ReqId:
        return make_req_id(self._who.client_id, self._generation, self._who.partition, next(self._numbers))

    def _ask(self, messages: list[Any]) -> None:
        assert self._connection is not None
        data = bytearray()
        for message in messages:
            self._connection.encode(message, data)
        self.sock.sendall(data)

    def _receive(self) -> list[Any]:
        assert self._connection is not None
        got: list[Any] = []
        data = self.sock.recv(1 << 16)
        if not data or not self._attacker.on:
            raise ConnectionResetError
        self._connection.receive(data, got)
        return got

    def _answers(self, count: int, kind: type[Any]) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            found += [one for one in self._receive() if type(one) is kind]
        return found

    def ask(self) -> None:
        """Some requests."""
        match self._attacker.target.protocol:
            case "client":
                self._waiting = {self._req_id() for _ in range(_WINDOW)}
                checksum = checksum_of(_DATA)
                one = client_messages.AppendRequest(self._who.req_id, -1, (), (), (), 0, _DATA, checksum)
                self._ask([attrs.evolve(one, req_id=req_id) for req_id in sorted(self._waiting)])
            case "storage":
                self._ask([storage_messages.StatisticsRequest(1, at, 0, ("replica",)) for at in range(_WINDOW)])
            case "admin":
                self._ask([admin_messages.RecordListRequest(at, 0, 0, 100) for at in range(_WINDOW)])
            case "gateway":
                self.sock.sendall(web.append("neighbour", self._attacker.target.token))
            case _:
                self.sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: neighbour\r\nConnection: close\r\n\r\n")

    def collect(self) -> None:
        """Their answers."""
        match self._attacker.target.protocol:
            case "client":
                self._collect_feed()
            case "storage":
                self._answers(_WINDOW, storage_messages.StatisticsResponse)
            case "admin":
                self._answers(_WINDOW, admin_messages.RecordListResponse)
            case "gateway":
                self._collect_answer()
            case _:
                while self.sock.recv(1 << 16):
                    pass
                raise ConnectionResetError  # as it was asked to end

    def _collect_answer(self) -> None:
        """A whole answer; its body is one line."""
        held = b""
        while not held.partition(b"\r\n\r\n")[2].endswith(b"\n"):
            data = self.sock.recv(1 << 16)
            if not data or not self._attacker.on:
                raise ConnectionResetError
            held += data

    def _collect_feed(self) -> None:
        """Until the appends come back."""
        while self._waiting:
            for message in self._receive():
                if type(message) is client_messages.FeedData:
                    self._mark = message.transaction_id
                    self._waiting.discard(message.req_id)
                elif type(message) is client_messages.FeedSuspended:
                    self._ask([client_messages.FeedRequest(message.req_id, self._mark)])


def _goes_on(asker: _Asker, action: Callable[[], None]) -> bool:
    if not asker.ready:
        asker.sock.close()
        return False
    try:
        action()
    except (OSError, ProtocolError):
        asker.sock.close()
        return False
    return True


class _Processor:
    """The processor time of this process, and how much of it an attacker took by now."""

    def __init__(self, cpu: float) -> None:
        self._cpu = cpu
        self._begin, self._begin_cpu = time.monotonic(), time.process_time()

    @property
    def passed(self) -> float:
        """Seconds."""
        return time.monotonic() - self._begin

    @property
    def taken(self) -> float:
        """Processor time."""
        return time.process_time() - self._begin_cpu

    @property
    def left(self) -> float:
        """How much more an attacker had taken."""
        return self._cpu * self.passed - self.taken

    def use_up(self, attacker: Attacker) -> None:
        """Compute for what asking leaves, beside it: hashing lets go of the interpreter."""
        block = bytes(1 << 16)
        while attacker.on:
            if self.left > _BEHIND:
                hashlib.sha256(block)
            else:
                time.sleep(0.001)


def run(neighbour: Neighbour) -> None:
    """Until the time is up, with its share of the processor."""
    print("begun", flush=True)
    attacker = Attacker(neighbour.target)
    processor = _Processor(neighbour.cpu)
    computing = threading.Thread(target=processor.use_up, args=(attacker,))
    computing.start()
    numbers = itertools.count()
    askers: list[_Asker] = []
    held: deque[socket.socket] = deque()
    while attacker.on:
        if neighbour.limited and processor.left < 0:
            time.sleep(0.005)
            continue
        if len(askers) < min(_ACTIVE, max(1, neighbour.held)):
            askers.append(_Asker(attacker, next(numbers)))
        due = min(int(neighbour.rate * processor.passed) - attacker.made, _MADE)
        for _ in range(due if attacker.on else 0):
            held.append(attacker.greeted())
            if len(held) + len(askers) > neighbour.held:
                held.popleft().close()
        askers = [asker for asker in askers if _goes_on(asker, asker.ask)]
        askers = [asker for asker in askers if _goes_on(asker, asker.collect)]
    computing.join()
    print(json.dumps({"connections": attacker.made, "cpu": processor.taken}))


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    run(Neighbour(Target(**given.pop("target")), **given))

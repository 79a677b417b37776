"""A server process as a whole: events in, everything that leaves it."""

from __future__ import annotations

import random
import sys
from types import FrameType
from typing import Any

from waltz_core.base.edge import (
    Accepted,
    CloseConn,
    Closed,
    Port,
    Received,
    Report,
    Send,
    Writable,
    ZkDone,
    ZkGet,
    ZkState,
    ZkStateChanged,
)
from waltz_core.base.ids import Endpoint, make_req_id
from waltz_core.server.config import ServerConfig
from waltz_core.server.node import ServerNode
from waltz_core.wire import client_messages as messages
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection


class Bench:
    """A server that nobody has assigned anything, and clients by number."""

    def __init__(self, **settings: Any) -> None:
        self.now = 0
        self.node = ServerNode(ServerConfig("/root", Endpoint("here", 1), **settings), random.Random(1))
        self.clients: dict[int, Connection[messages.ClientMessage]] = {}

    def step(self, *events: Any) -> list[Any]:
        out: list[Any] = []
        self.node.step(self.now, events, out)
        return out

    def accept(self, conn: int) -> list[Any]:
        """Connects and greets; returns what the server does, its hello apart."""
        client = self.clients[conn] = Connection(CLIENT_PROTOCOL, "test", {5})
        (hello,) = self.step(Accepted(conn, Port.CLIENT, f"10.0.0.{conn % 200}:{conn}"))
        client.receive(hello.data, [])
        return self.step(Received(conn, client.hello()))

    def ask(self, conn: int, *asked: messages.ClientMessage) -> list[Any]:
        data = bytearray()
        for message in asked:
            self.clients[conn].encode(message, data)
        return self.step(Received(conn, bytes(data)))

    def answers(self, out: list[Any], conn: int) -> list[messages.ClientMessage]:
        found: list[messages.ClientMessage] = []
        for effect in out:
            if isinstance(effect, Send) and effect.conn == conn:
                self.clients[conn].receive(bytes(effect.data), found)
        return found


def lines_of_an_empty_step(bench: Bench) -> int:
    """How many lines of the core run when a step has nothing to do."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    bench.step()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        bench.node.step(bench.now, (), [])
    finally:
        sys.settrace(before)
    return count


def test_an_idle_connection_costs_a_step_nothing() -> None:
    bench = Bench()
    alone = lines_of_an_empty_step(bench)
    for conn in range(1, 301):
        bench.accept(conn)
    assert lines_of_an_empty_step(bench) == alone


def test_answers_of_one_step_leave_as_one_piece_and_only_where_something_was_asked() -> None:
    bench = Bench()
    for conn in (1, 2, 3):
        bench.accept(conn)
    mounts = [messages.MountRequest(make_req_id(7, 1, partition, 1), -1, 0) for partition in (0, 1)]
    out = bench.ask(2, *mounts)
    assert [type(effect) for effect in out] == [Send]
    not_ready = messages.PartitionState.NOT_READY
    assert bench.answers(out, 2) == [messages.MountResponse(mount.req_id, not_ready) for mount in mounts]


def test_a_breach_of_the_protocol_is_answered_by_what_came_before_and_then_the_end() -> None:
    bench = Bench()
    bench.accept(1)
    mount = messages.MountRequest(make_req_id(7, 1, 0, 1), -1, 0)
    data = bytearray()
    bench.clients[1].encode(mount, data)
    out = bench.step(Received(1, bytes(data) + b"\x00\x00\x00\x0a" + b"\xff" * 10))
    assert [type(effect) for effect in out] == [Send, Report, CloseConn]
    assert bench.answers(out, 1) == [messages.MountResponse(mount.req_id, messages.PartitionState.NOT_READY)]
    assert bench.ask(1, mount) == []  # nothing of it is looked at any more
    assert bench.step(Closed(1, "closed")) == []
    assert bench.node.waiting == 0


def test_whoever_does_not_greet_is_dropped_when_it_is_time() -> None:
    bench = Bench(greeting_ms=5_000)
    bench.step(Accepted(1, Port.CLIENT, "10.0.0.1:1"))
    bench.now = 1_000
    bench.accept(2)
    assert bench.node.deadline() == 5_000
    bench.now = 5_000
    assert [(type(effect), getattr(effect, "conn", 0)) for effect in bench.step()] == [(Report, 0), (CloseConn, 1)]
    assert bench.node.deadline() is None


def test_many_requests_wait_for_their_turn_and_reading_stops_meanwhile() -> None:
    bench = Bench()
    bench.accept(1)
    mounts = [messages.MountRequest(make_req_id(7, 1, 0, number), -1, 0) for number in range(500)]
    out = bench.ask(1, *mounts)
    answered = len(bench.answers(out, 1))
    assert 0 < answered < 500
    assert [effect.wanted for effect in out if not isinstance(effect, Send)] == [False]
    while bench.node.deadline() == bench.now:
        out = bench.step()
        answered += len(bench.answers(out, 1))
    assert answered == 500
    assert [effect.wanted for effect in out if not isinstance(effect, Send)] == [True]


def test_a_connection_that_takes_no_data_is_read_from_again_when_it_does() -> None:
    bench = Bench()
    bench.accept(1)
    assert [effect.wanted for effect in bench.step(Writable(1, False))] == [False]
    assert [effect.wanted for effect in bench.step(Writable(1, True))] == [True]


def test_what_zookeeper_answers_finds_who_asked() -> None:
    bench = Bench()
    bench.accept(1)
    reads = bench.step(ZkStateChanged(ZkState.CONNECTED, 1))
    assert reads
    assert all(isinstance(effect, ZkGet) for effect in reads)
    # An answer that nobody waits for changes nothing.
    before = bench.node.deadline()
    assert bench.step(ZkDone(10_000)) == []
    assert bench.node.deadline() == before

"""The watch over other servers: what it dials and asks, when it says that a server is gone, and when it does not."""

from __future__ import annotations

import random
from itertools import count
from uuid import UUID

import pytest

from waltz_core.base.edge import CloseConn, Closed, Dial, Port, Report, Send
from waltz_core.base.ids import Endpoint, make_req_id
from waltz_core.base.outbox import Outbox
from waltz_core.server.neighbors import PAUSE_MAX_MS, PAUSE_MIN_MS, Neighbors
from waltz_core.wire.client_messages import ClientMessage, ClusterInfoRequest, ClusterInfoResponse
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection
from waltz_core.wire.dialer import DialerEffect

A, B = Endpoint("a", 1), Endpoint("b", 2)
QUESTION = ClusterInfoRequest(make_req_id(-1, 0, 0, 0), client_id_wanted=False, subscribe=False)
ANSWER = ClusterInfoResponse(QUESTION.req_id, -1, "c", UUID(int=7), 1, -1, 0, ())
NEXT_STEP = (
    "its end would be noticed only when its ZooKeeper session times out: if it runs, open its client port to the other "
    "servers (firewall, certificates)"
)


class Watch:
    """Neighbors, and the other end of each of their connections."""

    def __init__(self) -> None:
        numbers = count(1)
        self.out: Outbox[DialerEffect] = Outbox()
        self.neighbors = Neighbors(self.out, lambda: -next(numbers), random.Random(1))
        self.peers: dict[int, Connection[ClientMessage]] = {}

    def dialed(self) -> int:
        """The one connection that was asked for."""
        (effect,) = self.out.take()
        assert isinstance(effect, Dial)
        assert effect.port is Port.CLIENT
        return effect.conn

    def let_in(self, conn: int) -> None:
        """The server greets, is asked, and answers."""
        self.neighbors.dialed(0, conn)
        peer: Connection[ClientMessage] = Connection(CLIENT_PROTOCOL, "server", (5,))
        self.neighbors.received(conn, peer.hello())
        asked: list[ClientMessage] = []
        for effect in self.out.take():
            assert isinstance(effect, Send)
            peer.receive(effect.data, asked)
        assert asked == [QUESTION]
        self.peers[conn] = peer

    def answer(self, conn: int) -> None:
        data = bytearray()
        self.peers[conn].encode(ANSWER, data)
        self.neighbors.received(conn, bytes(data))

    def again(self, now: int) -> int:
        """The pause is over: dialed again."""
        self.neighbors.due(now)
        return self.dialed()


def test_a_server_that_was_seen_and_refuses_is_gone() -> None:
    watch = Watch()
    watch.neighbors.changed((("s_1", A),))
    first = watch.dialed()
    watch.let_in(first)
    watch.answer(first)
    assert watch.out.take() == []
    assert watch.neighbors.closed(1_000, Closed(first, "peer crashed")) is None
    due = watch.neighbors.deadline()
    assert due is not None
    assert 0 <= due - 1_000 <= PAUSE_MIN_MS
    second = watch.again(due)
    assert watch.out.take() == []
    assert watch.neighbors.closed(due, Closed(second, "cannot connect", refused=True)) == "s_1"
    (line,) = watch.out.take()
    assert isinstance(line, Report)
    assert line.text == (
        "server a:1 has ended: nobody listens there; its descriptor s_1 is deleted, and its partitions go to other "
        "servers; start it again"
    )
    assert watch.neighbors.deadline() is None


@pytest.mark.parametrize(
    "end", [Closed(-2, "did not answer"), Closed(-2, "TLS", untrusted=True), Closed(-2, "ended by the peer")]
)
def test_silence_and_distrust_say_nothing(end: Closed) -> None:
    watch = Watch()
    watch.neighbors.changed((("s_1", A),))
    watch.let_in(watch.dialed())
    watch.neighbors.closed(0, Closed(-1, "connection broke"))
    assert watch.again(PAUSE_MIN_MS) == -2
    assert watch.neighbors.closed(100, end) is None
    assert watch.neighbors.deadline() is not None, "it is dialed again"


def test_who_never_let_us_in_is_not_gone_when_it_refuses() -> None:
    watch = Watch()
    watch.neighbors.changed((("s_1", A),))
    now = 0
    lines = []
    for _ in range(20):
        (effect,) = watch.out.take()
        assert isinstance(effect, Dial)
        assert watch.neighbors.closed(now, Closed(effect.conn, "cannot connect", refused=True)) is None
        lines += watch.out.take()
        due = watch.neighbors.deadline()
        assert due is not None
        assert due - now <= PAUSE_MAX_MS
        watch.neighbors.due(due)
        now = due
    (line,) = lines
    assert isinstance(line, Report)
    assert line.text == f"cannot watch server a:1: cannot connect; {NEXT_STEP}"


def test_a_descriptor_that_is_new_has_to_be_seen_anew() -> None:
    watch = Watch()
    watch.neighbors.changed((("s_1", A),))
    first = watch.dialed()
    watch.let_in(first)
    watch.neighbors.changed((("s_2", A),))
    close, dial = watch.out.take()
    assert close == CloseConn(first, "it has left the cluster")
    assert isinstance(dial, Dial)
    assert watch.neighbors.closed(0, Closed(first, "it has left the cluster")) is None
    assert watch.neighbors.closed(0, Closed(dial.conn, "cannot connect", refused=True)) is None


def test_a_server_that_left_is_not_said_to_be_gone() -> None:
    watch = Watch()
    watch.neighbors.changed((("s_1", A), ("s_2", B)))
    first, second = (effect.conn for effect in watch.out.take() if isinstance(effect, Dial))
    watch.let_in(first)
    watch.let_in(second)
    watch.neighbors.closed(0, Closed(first, "ended by the peer"))
    conn = watch.again(PAUSE_MIN_MS)
    watch.neighbors.changed((("s_2", B),))
    assert watch.out.take() == [CloseConn(conn, "it has left the cluster")]
    assert watch.neighbors.closed(0, Closed(conn, "cannot connect", refused=True)) is None
    watch.answer(second)
    assert watch.out.take() == []


def test_who_greets_and_then_ends_the_connection_is_dialed_more_and_more_rarely() -> None:
    watch = Watch()
    watch.neighbors.changed((("s_1", A),))
    conn, now = watch.dialed(), 0
    pauses: list[int] = []
    lines: list[str] = []
    for _ in range(12):
        watch.let_in(conn)
        assert watch.neighbors.closed(now, Closed(conn, "may not ask")) is None
        due = watch.neighbors.deadline()
        assert due is not None
        pauses.append(due - now)
        now = due
        watch.neighbors.due(now)
        (conn,) = (effect.conn for effect in watch.out.items if isinstance(effect, Dial))
        lines += [effect.text for effect in watch.out.take() if isinstance(effect, Report)]
    assert pauses[-1] >= PAUSE_MAX_MS / 2
    assert lines == [f"cannot watch server a:1: may not ask; {NEXT_STEP}"]
    watch.let_in(conn)
    watch.answer(conn)
    (line,) = watch.out.take()
    assert isinstance(line, Report)
    assert line.text == "server a:1 is watched again"
    watch.neighbors.closed(now, Closed(conn, "restarts"))
    due = watch.neighbors.deadline()
    assert due is not None
    assert due - now <= PAUSE_MIN_MS, "it had answered"
    assert watch.out.take() == [], "one failure is no trouble of the watch"

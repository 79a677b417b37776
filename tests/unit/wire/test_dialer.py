"""Who dials a port: every effect of a connection's life, the pauses between two, and what people hear."""

from __future__ import annotations

import random
from itertools import count
from uuid import UUID

import pytest

from waltz_core.base.attempts import Attempts
from waltz_core.base.edge import CloseConn, Dial, Level, Port, Report, Send
from waltz_core.base.ids import Endpoint
from waltz_core.base.outbox import Outbox
from waltz_core.wire import admin_messages as admin
from waltz_core.wire.admin_codec import VERSIONS
from waltz_core.wire.connection import ADMIN_PROTOCOL, Connection
from waltz_core.wire.dialer import Dialer, DialerEffect, DialState
from waltz_core.wire.frame import LARGE
from waltz_core.wire.hello import Hello, encode_hello
from waltz_core.wire.port_session import PortSession
from waltz_core.wire.shared import Trouble

HERE = Endpoint("node", 7)
OPENING = admin.AdminOpenRequest(-1, UUID(int=7), 3)
GRANTED = admin.AdminSuccessResponse(-1)
QUESTION = admin.MetricsRequest(0)
ANSWER = admin.MetricsResponse(0, "{}")
GREETING_MS = 5_000


class Bench:
    """A dialer, and the other end of its present connection."""

    def __init__(self, again: bool = True) -> None:
        numbers = count(1)
        self.out: Outbox[DialerEffect] = Outbox()
        self.dialer: Dialer[admin.AdminMessage] = Dialer(
            HERE,
            Port.ADMIN,
            self.out,
            lambda: -next(numbers),
            lambda: PortSession[admin.AdminMessage](ADMIN_PROTOCOL, "dialer", VERSIONS, OPENING),
            name="node A",
            kind="an admin port",
            greeting_ms=GREETING_MS,
            again=Attempts(100, 1_000, random.Random(1)) if again else None,
        )
        self.peer: Connection[admin.AdminMessage] = Connection(ADMIN_PROTOCOL, "node", VERSIONS)
        self.hello = PortSession[admin.AdminMessage](ADMIN_PROTOCOL, "dialer", VERSIONS, OPENING).hello()

    def take(self) -> list[DialerEffect]:
        self.dialer.flush()
        return self.out.take()

    def say(self, *messages: admin.AdminMessage, behind: bytes = b"") -> list[admin.AdminMessage]:
        data = bytearray()
        for message in messages:
            self.peer.encode(message, data)
        return self.dialer.received(bytes(data) + behind)

    def greeted(self) -> Bench:
        self.dialer.want()
        self.dialer.dialed(0)
        self.peer.receive(self.hello, [])
        assert self.dialer.received(self.peer.hello()) == []
        return self

    def ready(self) -> Bench:
        self.greeted()
        assert self.say(GRANTED) == []
        assert self.dialer.state is DialState.READY
        self.take()
        return self

    def framed(self, message: admin.AdminMessage) -> bytes:
        data = bytearray()
        self.peer.encode(message, data)
        return bytes(data)


def unusable(reason: str) -> Report:
    return Report(Level.WARNING, f"node A cannot be used: {reason}")


def test_a_connection_from_the_dial_to_the_first_answer() -> None:
    bench = Bench()
    dialer = bench.dialer
    assert (bench.take(), dialer.deadline()) == ([], None)
    dialer.want()
    dialer.want()
    assert (bench.take(), dialer.conn) == ([Dial(-1, HERE, Port.ADMIN)], -1)
    dialer.dialed(10)
    assert (bench.take(), dialer.deadline()) == ([Send(-1, bench.hello)], 10 + GREETING_MS)
    bench.peer.receive(bench.hello, [])
    assert dialer.received(bench.peer.hello()) == []
    assert bench.take() == [Send(-1, bench.framed(OPENING))]
    assert (dialer.state, dialer.codec) == (DialState.GREETING, 0)
    assert bench.say(GRANTED) == []
    assert (bench.take(), dialer.state, dialer.codec, dialer.deadline()) == ([], DialState.READY, 1, None)
    dialer.send(QUESTION)
    dialer.send(QUESTION)
    assert bench.take() == [Send(-1, bench.framed(QUESTION) * 2)]
    assert bench.say(ANSWER, ANSWER) == [ANSWER, ANSWER]


def test_large_pieces_are_handed_over_as_they_are_in_their_order() -> None:
    bench = Bench().ready()
    large, larger, small = bytes(LARGE), bytes(LARGE + 1), bytes(LARGE - 1)
    bench.dialer.send(QUESTION)
    bench.dialer.pass_on(b"head", large, b"tail")
    bench.dialer.pass_on(larger, small)
    bench.dialer.send(QUESTION)
    sent = bench.take()
    question = bench.framed(QUESTION)
    assert sent == [Send(-1, data) for data in (question + b"head", large, b"tail", larger, small + question)]
    passed_on = [each.data for each in sent[1::2] if isinstance(each, Send)]
    assert list(map(id, passed_on)) == [id(large), id(larger)]


def test_what_a_step_gathered_leaves_before_the_connection_is_closed_and_nothing_is_taken_any_more() -> None:
    bench = Bench().ready()
    bench.dialer.send(QUESTION)
    bench.dialer.give_up("it did not answer")
    bench.dialer.give_up("for another reason")
    assert bench.take() == [
        unusable("it did not answer"),
        Send(-1, bench.framed(QUESTION)),
        CloseConn(-1, "it did not answer"),
    ]
    assert bench.say(ANSWER) == []
    assert (bench.dialer.state, bench.dialer.deadline()) == (DialState.CLOSING, None)
    bench.dialer.closed(100, "closed by us")
    assert (bench.dialer.state, bench.dialer.trouble) == (DialState.WAITING, "it did not answer")
    assert bench.take() == []


def test_a_pause_ends_with_a_dial_if_it_is_wanted_and_in_idleness_if_not() -> None:
    bench = Bench()
    bench.dialer.want()
    bench.dialer.closed(0, "refused")
    assert bench.take() == [Dial(-1, HERE, Port.ADMIN), unusable("refused")]
    due = bench.dialer.deadline()
    assert due is not None
    bench.dialer.due(due - 1)
    bench.dialer.want()
    assert (bench.take(), bench.dialer.state) == ([], DialState.WAITING)
    bench.dialer.due(due)
    assert bench.take() == [Dial(-2, HERE, Port.ADMIN)]
    bench.dialer.closed(due, "refused")
    bench.dialer.wanted = False
    bench.dialer.due(due + 1_000)
    assert (bench.take(), bench.dialer.state, bench.dialer.deadline()) == ([], DialState.IDLE, None)
    bench.dialer.want()
    assert bench.take() == [Dial(-3, HERE, Port.ADMIN)]


def test_a_refused_certificate_is_dialed_again_within_the_limit_like_everything_else_with_one_line_per_change() -> None:
    bench = Bench()
    expired = "the certificate of node:7 is refused: certificate has expired"
    now, lines = 0, []
    bench.dialer.want()
    for reason in [expired] * 40 + ["Connection refused"] * 40 + [expired] * 40:
        bench.dialer.closed(now, reason)
        assert bench.dialer.trouble == reason
        due = bench.dialer.deadline()
        assert due is not None
        assert 0 < due - now <= 1_000
        now = due
        bench.dialer.due(now)
        lines += [effect for effect in bench.take() if isinstance(effect, Report)]
        assert bench.dialer.state is DialState.DIALING
    assert lines == [unusable(expired), unusable("Connection refused"), unusable(expired)]
    bench.greeted()
    bench.say(GRANTED)
    assert Report(Level.INFO, "node A can be used again") in bench.take()
    assert bench.dialer.trouble == ""


def test_what_was_gathered_for_a_connection_ends_with_it() -> None:
    bench = Bench().ready()
    bench.dialer.send(QUESTION)
    bench.dialer.closed(0, "reset")
    due = bench.dialer.deadline()
    assert due is not None
    bench.dialer.due(due)
    assert bench.take() == [unusable("reset"), Dial(-2, HERE, Port.ADMIN)]


def test_a_peer_that_is_silent_is_given_up() -> None:
    bench = Bench()
    bench.dialer.want()
    bench.dialer.dialed(0)
    bench.take()
    bench.dialer.due(GREETING_MS - 1)
    assert bench.take() == []
    bench.dialer.due(GREETING_MS)
    silent = f"it did not greet within {GREETING_MS} ms"
    assert bench.take() == [unusable(silent), CloseConn(-1, silent)]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (admin.AdminFailureResponse(-1, "another cluster's key"), "it refused to open: another cluster's key"),
        (ANSWER, "it refused to open: unexpected answer MetricsResponse"),
    ],
)
def test_a_peer_that_does_not_let_us_in_is_given_up_and_says_why(answer: admin.AdminMessage, why: str) -> None:
    bench = Bench().greeted()
    bench.take()
    assert bench.say(answer, ANSWER) == []
    assert bench.take() == [unusable(why), CloseConn(-1, why)]
    assert bench.dialer.trouble_kind is Trouble.REFUSAL


def test_answers_before_a_breach_of_the_protocol_count() -> None:
    bench = Bench().ready()
    assert bench.say(ANSWER, behind=b"\xff" * 16) == [ANSWER]
    report, close = bench.take()
    assert isinstance(report, Report)
    assert "node A cannot be used: it sent what an admin port never sends: " in report.text
    assert isinstance(close, CloseConn)
    assert bench.dialer.trouble_kind is Trouble.PROTOCOL


def test_a_peer_of_another_version_is_named_so() -> None:
    bench = Bench()
    bench.dialer.want()
    bench.dialer.dialed(0)
    bench.dialer.received(encode_hello(Hello((7,), "node")))
    assert "it does not greet as an admin port does: no version in common" in bench.dialer.trouble
    assert bench.dialer.trouble_kind is Trouble.VERSION


def test_trouble_is_of_the_network_or_of_trust_and_over_when_the_peer_lets_us_in() -> None:
    bench = Bench()
    bench.dialer.want()
    assert bench.dialer.trouble_kind is None
    for untrusted, kind in ((False, Trouble.NETWORK), (True, Trouble.TRUST)):
        bench.dialer.closed(0, "refused", untrusted=untrusted)
        assert bench.dialer.trouble_kind is kind
    assert Bench().ready().dialer.trouble_kind is None


def test_a_connection_that_is_dialed_once_ends_and_is_never_reported() -> None:
    bench = Bench(again=False)
    bench.dialer.want()
    bench.dialer.closed(0, "refused")
    assert bench.take() == [Dial(-1, HERE, Port.ADMIN)]
    assert (bench.dialer.state, bench.dialer.over, bench.dialer.trouble) == (DialState.ENDED, True, "refused")
    bench.dialer.want()
    bench.dialer.give_up("no more")
    assert (bench.take(), bench.dialer.deadline()) == ([], None)


def test_a_dial_that_is_given_up_is_closed_though_it_may_stand_in_the_same_moment() -> None:
    bench = Bench(again=False)
    bench.dialer.want()
    bench.take()
    bench.dialer.give_up("the repair has ended")
    assert bench.dialer.over
    bench.dialer.dialed(0)
    assert bench.take() == [CloseConn(-1, "the repair has ended")]


def test_a_peer_that_nobody_wants_any_more_is_not_reported() -> None:
    bench = Bench().ready()
    bench.dialer.wanted = False
    bench.dialer.closed(0, "the peer closed the connection")
    assert (bench.take(), bench.dialer.trouble) == ([], "the peer closed the connection")

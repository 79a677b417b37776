"""A tool's end of a connection: greeting, opening, answers, refusals; the node's end is a `Connection`."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tests import versions_0132
from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import make_req_id
from waltz_core.wire import admin_messages as admin
from waltz_core.wire.admin_codec import VERSIONS
from waltz_core.wire.client_codec import VERSIONS as CLIENT_VERSIONS
from waltz_core.wire.client_messages import ErrorCode, ErrorResponse
from waltz_core.wire.connection import ADMIN_PROTOCOL, CLIENT_PROTOCOL, Connection
from waltz_core.wire.port_session import PortSession, PortState, Refusal, refusal_of
from waltz_core.wire.shared import FailureCode
from waltz_core.wire.storage_messages import FailureResponse, SuccessResponse

OPENING = admin.AdminOpenRequest(-1, UUID(int=7), 3)
GRANTED = admin.AdminSuccessResponse(-1)
JAVA_TEXT = "com.wepay.StorageException: Provided cluster key is inconsistent with key in control file."


class Node:
    """The other end."""

    def __init__(self, session: PortSession[admin.AdminMessage], versions: Any = VERSIONS) -> None:
        self.session = session
        self.connection: Connection[admin.AdminMessage] = Connection(ADMIN_PROTOCOL, "node", versions)
        self.asked: list[admin.AdminMessage] = []

    def greet(self) -> None:
        self.connection.receive(self.session.hello(), self.asked)
        self.take(self.session.receive(self.connection.hello()))

    def take(self, data: bytes) -> None:
        self.connection.receive(data, self.asked)

    def say(self, *messages: admin.AdminMessage) -> None:
        out = bytearray()
        for message in messages:
            self.connection.encode(message, out)
        assert self.session.receive(out) == b""


def opening() -> PortSession[admin.AdminMessage]:
    return PortSession(ADMIN_PROTOCOL, "tool", VERSIONS, OPENING)


def test_the_opening_follows_the_greeting_and_requests_the_grant() -> None:
    session = opening()
    node = Node(session)
    assert session.state is PortState.GREETING
    node.greet()
    assert (session.state, session.version, node.asked) == (PortState.OPENING, 1, [OPENING])
    assert session.answer() is None
    node.say(GRANTED)
    assert (session.state, session.refusal, session.answer()) == (PortState.READY, None, None)
    request = admin.MetricsRequest(0)
    node.take(session.encode(request))
    assert node.asked == [OPENING, request]


def test_answers_are_given_out_once_each_in_their_order() -> None:
    session = opening()
    node = Node(session)
    node.greet()
    first, second = admin.MetricsResponse(0, "{}"), admin.MetricsResponse(1, "{}")
    node.say(GRANTED, first, second)
    assert [session.answer(), session.answer(), session.answer()] == [first, second, None]


@pytest.mark.parametrize("versions", [VERSIONS, versions_0132.ADMIN])
@pytest.mark.parametrize("key_is_wrong", [True, False])
def test_a_wrong_key_is_known_by_its_code_and_where_there_is_none_by_the_text(
    versions: Any, key_is_wrong: bool
) -> None:
    session = opening()
    node = Node(session, versions)
    node.greet()
    code = FailureCode.WRONG_CLUSTER if key_is_wrong else FailureCode.OVERLOADED
    old = session.version == 0
    text = (JAVA_TEXT if key_is_wrong else "busy") if old else "no"
    node.say(admin.AdminFailureResponse(-1, text, (), code))
    assert session.state is PortState.REFUSED
    assert session.refusal == Refusal(text, 0 if old else code, -1, key_is_wrong)
    assert session.answer() is None


def test_a_code_decides_whatever_the_text_says() -> None:
    refusal = refusal_of(FailureResponse(1, 2, 3, JAVA_TEXT, (), FailureCode.FENCED, 9))
    assert refusal == Refusal(JAVA_TEXT, FailureCode.FENCED, 9, False)


def test_every_port_refuses_in_one_form() -> None:
    error = ErrorResponse(make_req_id(1, 0, 0, 0), ErrorCode.NOT_READY, "wait")
    assert refusal_of(error) == Refusal("wait", ErrorCode.NOT_READY, -1)
    assert refusal_of(admin.AdminFailureResponse(0, None, ())) == Refusal("refused without a reason", 0, -1)
    assert refusal_of(SuccessResponse(1, 2, 3)) is refusal_of(GRANTED) is None


def test_a_port_without_an_opening_is_ready_when_a_codec_is_agreed_on() -> None:
    session = PortSession(CLIENT_PROTOCOL, "tool", CLIENT_VERSIONS)
    assert session.receive(Connection(CLIENT_PROTOCOL, "server", CLIENT_VERSIONS).hello()) == b""
    assert session.state is PortState.READY


def test_what_is_no_greeting_is_refused() -> None:
    with pytest.raises(ProtocolError):
        opening().receive(b"HTTP/1.1 400 Bad Request\r\n")

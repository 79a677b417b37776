"""What a server is told to prefer outlives it."""

from __future__ import annotations

from waltz_core.base.contract import Tickets
from waltz_core.base.edge import ZkCreate, ZkDone, ZkError, ZkFailed, ZkGet, ZkRequest, ZkSet
from waltz_core.base.ids import Endpoint
from waltz_core.server.preferences import Preferences


def fresh() -> Preferences:
    return Preferences("/root", Endpoint("h", 7), Tickets())


def only(found: Preferences) -> ZkRequest:
    (request,) = found.requests()
    return request


def test_what_was_kept_is_read_once() -> None:
    found = fresh()
    found.read()
    request = only(found)
    assert isinstance(request, ZkGet)
    assert request.path == "/root/preferred/h:7"
    assert not found.answered(0, ZkDone(request.ticket + 1))
    assert found.answered(0, ZkDone(request.ticket, data=b"3,1"))
    assert found.take() == (3, 1)
    assert found.take() is None
    found.read()
    assert found.requests() == []


def test_nothing_kept_and_rubbish_are_nothing() -> None:
    for answer in (ZkFailed, ZkDone):
        found = fresh()
        found.read()
        ticket = only(found).ticket
        found.answered(0, ZkFailed(ticket, ZkError.NO_NODE) if answer is ZkFailed else ZkDone(ticket, data=b"\xff?"))
        assert not found.take()
        assert found.deadline() is None


def test_a_change_is_set_or_created_and_the_newest_wins() -> None:
    found = fresh()
    found.keep((1,))
    first = only(found)
    assert isinstance(first, ZkSet)
    found.keep((1, 2))
    found.answered(0, ZkFailed(first.ticket, ZkError.NO_NODE))
    parent, node = found.requests()
    assert isinstance(parent, ZkCreate)
    assert isinstance(node, ZkCreate)
    assert (parent.path, node.path, node.data) == ("/root/preferred", "/root/preferred/h:7", b"1")
    assert not found.answered(0, ZkDone(parent.ticket))
    found.answered(0, ZkDone(node.ticket))
    last = only(found)
    assert isinstance(last, ZkSet)
    assert last.data == b"1,2"
    found.answered(0, ZkDone(last.ticket))
    assert found.requests() == []


def test_what_fails_is_tried_again_later() -> None:
    found = fresh()
    found.read()
    found.answered(5, ZkFailed(only(found).ticket, ZkError.UNAVAILABLE))
    assert found.deadline() == 1_005
    found.read()
    assert found.requests() == []
    found.due()
    found.answered(6, ZkDone(only(found).ticket, data=b""))
    assert found.take() == ()

    found.keep((9,))
    found.answered(10, ZkFailed(only(found).ticket, ZkError.NO_NODE))
    _, node = found.requests()
    found.answered(10, ZkFailed(node.ticket, ZkError.NO_NODE))
    assert found.deadline() == 1_010
    found.due()
    found.answered(10, ZkFailed(only(found).ticket, ZkError.OUTCOME_UNKNOWN))
    found.keep((8,))
    again = only(found)
    assert isinstance(again, ZkSet)
    assert again.data == b"8"


def test_a_change_before_anything_was_read_counts_more_than_what_was_kept() -> None:
    found = fresh()
    found.read()
    ticket = only(found).ticket
    found.keep((4,))
    found.answered(0, ZkDone(ticket, data=b"1"))
    assert found.take() is None
    assert isinstance(only(found), ZkSet)

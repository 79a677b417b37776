"""Clients that ask which storage nodes a server reaches."""

from __future__ import annotations

from waltz_core.base.ids import make_req_id
from waltz_core.server.connectivity import ConnectivityChecks
from waltz_core.wire.client_messages import CheckStorageConnectivityResponse

ONE, TWO = make_req_id(7, 0, -1, 1), make_req_id(8, 0, -1, 1)


def test_a_check_is_answered_when_all_its_nodes_are_known() -> None:
    checks = ConnectivityChecks()
    checks.ask(4, ONE, ("a", "b"))
    assert checks.tried("b", True) == []
    checks.ask(5, TWO, ("a",))
    assert checks.tried("a", False) == [
        (4, CheckStorageConnectivityResponse(ONE, (("a", False), ("b", True)))),
        (5, CheckStorageConnectivityResponse(TWO, (("a", False),))),
    ]
    assert checks.tried("a", True) == []


def test_unanswered_checks_count_for_who_asked() -> None:
    checks = ConnectivityChecks()
    checks.ask(4, ONE, ("a",))
    checks.ask(4, ONE, ("b",))
    checks.ask(5, TWO, ("b",))
    assert [checks.waiting(conn) for conn in (4, 5, 6)] == [2, 1, 0]
    checks.tried("b", True)
    assert [checks.waiting(conn) for conn in (4, 5, 6)] == [1, 0, 0]

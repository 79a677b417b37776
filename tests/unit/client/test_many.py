"""Appends of one call: the machine does with them, to the byte, what it does with as many single ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from tests.unit.client.desk import Desk, foreign, own, submit
from waltz_core.base.edge import Writable
from waltz_core.base.lock import Conflict, LockKind
from waltz_core.base.outbox import Emits
from waltz_core.client.calls import (
    CloseClient,
    Committed,
    Deliver,
    Effect,
    Failed,
    Flush,
    Flushed,
    Reason,
    Submit,
    SubmitMany,
)
from waltz_core.client.columns import Columns, RowLocks
from waltz_core.client.link import Kind
from waltz_core.client.membership import MembershipNote, NullMembership, Servers
from waltz_core.wire.client_messages import (
    AppendRefused,
    Capability,
    ClusterInfoResponse,
    FlushRequest,
    FlushResponse,
    NamedAppendRequest,
    Refusal,
)

TOKENS = range(11, 15)


def singles(partition: int = 0) -> list[Submit]:
    """Four appends, the second of which has a lock and a mark of its own."""
    return [
        submit(token, partition=partition, mark=5 if token == 12 else 3, lock=token if token == 12 else None)
        for token in TOKENS
    ]


def together(partition: int = 0) -> list[SubmitMany]:
    columns = Columns()
    for one in singles(partition):
        locks = RowLocks(5, one.write_locks, (), (), b"")
        columns.add(*((one.header, one.data, locks) if one.write_locks else (one.header, one.data)))
    return [SubmitMany(partition, TOKENS, 3, columns)]


def explained() -> Desk:
    """A mounted partition at a server that explains refusals."""
    desk = Desk()
    desk.mounted()
    request = desk.capability_requests[Kind.STREAM][-1]
    desk.send(ClusterInfoResponse(request.req_id, 0, "c", UUID(int=1), 2, -1, Capability.NAMED_APPENDS, ()))
    return desk


def plain() -> Desk:
    """A mounted partition at a server of 0.13.2."""
    desk = Desk(versions=(4,))
    desk.mounted()
    return desk


def not_open() -> Desk:
    return Desk()


def not_writable() -> Desk:
    desk = explained()
    desk.step(Writable(desk.conn(), False))
    return desk


def closed() -> Desk:
    desk = explained()
    desk.step(CloseClient())
    return desk


class Silent(NullMembership):
    """A cluster that does not answer."""

    def start(self, now: int, servers: Servers, out: Emits[Effect], notes: Emits[MembershipNote]) -> None:
        """Say nothing."""


@pytest.mark.parametrize("standing", [explained, plain, not_open, not_writable, closed])
@pytest.mark.parametrize("partition", [0, 1, 9])
def test_many_at_once_are_what_as_many_single_ones_are(standing: Callable[[], Desk], partition: int) -> None:
    seen = []
    for make in (singles, together):
        desk = standing()
        calls: list[Any] = make(partition)
        told = desk.step(*calls, Flush(partition, "flush"))
        if standing is not_writable:
            told += desk.step(Writable(desk.conn(), True))
        desk.connect()
        told += desk.wait(10_000)
        told += desk.step(CloseClient())
        seen.append((told, desk.sent))
    assert seen[0] == seen[1]
    assert seen[0][0]


def test_they_leave_as_one_run_and_each_has_a_verdict_of_its_own() -> None:
    desk = explained()
    desk.step(*together(), submit("behind"))
    requests = desk.take()
    assert [type(request) for request in requests] == [NamedAppendRequest] * 5
    assert [request.client_mark for request in requests] == [3, 5, 3, 3, -1]
    assert [request.write_locks for request in requests] == [(), (12,), (), (), ()]
    refused = AppendRefused(requests[1].req_id, Refusal.LOCK, 1, Conflict.TRUE, 1, LockKind.WRITE, 0, 12, None)
    told = desk.send(refused, own(requests[0], 0), foreign(1), own(requests[2], 2))
    assert [(one.token, one.reason) for one in told if isinstance(one, Failed)] == [(12, Reason.LOCK)]
    assert [one.outcomes for one in told if isinstance(one, Committed)] == [[(11, 0), (13, 2)]]
    desk.step(Flush(0, "flush"))
    (flush,) = desk.take()
    assert isinstance(flush, FlushRequest)
    assert flush.req_id == requests[4].req_id
    told = desk.send(own(requests[4], 3), FlushResponse(flush.req_id, 3))
    assert [one for one in told if not isinstance(one, Deliver)] == [
        Failed(0, 14, Reason.OVERTAKEN),
        Committed(0, [("behind", 3)]),
        Flushed(0, "flush"),
    ]


def test_a_client_that_is_closed_before_it_joined_fails_them_all() -> None:
    desk = Desk(Silent())
    assert desk.step(*together()) == []
    assert desk.step(CloseClient()) == [Failed(0, token, Reason.CLOSED) for token in TOKENS]

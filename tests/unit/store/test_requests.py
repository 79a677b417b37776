"""What the requests of a store session ask for."""

from __future__ import annotations

import pytest

from waltz_core.base.contract import Tickets
from waltz_core.base.outbox import Outbox
from waltz_core.store.calls import StorageCall, StorageEffect
from waltz_core.store.replica_link import ReplicaLink
from waltz_core.store.requests import CatchUpRead, Requests
from waltz_core.wire.storage_messages import RecordListRequest


@pytest.mark.parametrize(("codec", "asked"), [(0, 20), (1, 1000)])
def test_a_node_of_0_13_2_is_not_asked_for_more_records_than_one_answer_may_hold(codec: int, asked: int) -> None:
    """It bounds no answer by its bytes: a thousand large records ended the connection, and every session on it."""
    link = ReplicaLink("s0:1")
    link.codec = codec
    out: Outbox[StorageEffect] = Outbox()
    requests = Requests(0, 7, {"s0:1": link}, Tickets(), out)
    requests.read_records("s0:1", CatchUpRead("s0:1", "s1:1", 5), 5, 1000)
    (call,) = out.items
    assert isinstance(call, StorageCall)
    assert call.message == RecordListRequest(7, 0, 0, 5, asked)

"""Where the log of a partition begins, for its clients."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from waltz_core.base.edge import CloseConn
from waltz_core.base.ids import Endpoint, make_req_id
from waltz_core.server.config import ServerConfig
from waltz_core.server.context import NodeContext, Reply
from waltz_core.server.log_start import LogBeginning, LogStart
from waltz_core.server.ownership import Ownership
from waltz_core.wire.client_messages import ErrorCode, ErrorResponse, LogStartResponse

REQ = make_req_id(7, 3, 0, 1)


@pytest.mark.parametrize(
    ("present", "archived", "mark", "refused"),
    [
        (0, None, -1, False),
        (0, None, -(2**63), False),  # 0.13.2 lets clients say so: they want everything
        (5, None, 4, False),
        (5, None, 3, True),
        (5, 3, 2, False),
        (5, 3, 1, True),
        (5, 9, 3, True),
    ],
)
def test_a_feed_may_begin_where_something_can_be_read(
    present: int, archived: int | None, mark: int, refused: bool
) -> None:
    context = NodeContext(ServerConfig("/root", Endpoint("here", 1)), random.Random(1))
    beginning = LogBeginning("the archive", context, 0)
    beginning.present, beginning.archived = present, archived
    assert beginning.refuses(9, REQ, mark, 5) is refused
    replies = context.clients.take()
    assert len(replies) == refused
    for one in replies:
        assert isinstance(one, Reply)
        assert one.message.code == ErrorCode.BEFORE_START  # type: ignore[union-attr]


def test_a_client_of_0132_is_closed_as_its_codec_has_no_error() -> None:
    context = NodeContext(ServerConfig("/root", Endpoint("here", 1)), random.Random(1))
    beginning = LogBeginning("", context, 0)
    beginning.present = 5
    assert beginning.refuses(9, REQ, 3, 4)
    (closed,) = context.clients.take()
    assert isinstance(closed, CloseConn)
    assert closed.reason.startswith("partition 0: ")


class Owned:
    """A partition whose store session is open and raises its log start whenever it is asked to."""

    partition_id = 0
    open = True

    def __init__(self) -> None:
        self.session = self
        self.log_start = self
        self.raised: list[int] = []

    def problem(self, start: int) -> None:
        """None is in the way."""

    def raise_to(self, start: int) -> None:
        self.raised.append(start)


@pytest.mark.parametrize("rises", [True, False])
def test_who_asks_for_a_log_start_is_answered_once(rises: bool) -> None:
    context = NodeContext(ServerConfig("/root", Endpoint("here", 1)), random.Random(1))
    owned: Any = Owned()
    log_start = LogStart("", context, cast(Ownership, owned))
    assert not log_start.ask(9, REQ, 5, 20)
    assert (owned.raised, context.clients.take()) == ([5], [])
    if rises:
        log_start.rises(5)
    log_start.answer(20, "the session ended")
    answer = LogStartResponse(REQ, 5, 20) if rises else ErrorResponse(REQ, ErrorCode.NOT_READY, "the session ended")
    assert context.clients.take() == [Reply(9, answer)]
    log_start.answer(21, "the next one too")
    assert context.clients.take() == []

"""Where the log of a partition begins, for its clients."""

from __future__ import annotations

import random

import pytest

from waltz_core.base.edge import CloseConn
from waltz_core.base.ids import Endpoint, make_req_id
from waltz_core.server.config import ServerConfig
from waltz_core.server.context import NodeContext, Reply
from waltz_core.server.log_start import LogBeginning
from waltz_core.wire.client_messages import ErrorCode

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

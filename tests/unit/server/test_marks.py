"""Questions for the committed mark on the server: who is answered, and when."""

from __future__ import annotations

from waltz_core.base.ids import make_req_id
from waltz_core.base.turns import Shares
from waltz_core.server.marks import PATIENCE_MS, MarkReads
from waltz_core.wire.client_messages import ErrorCode, ErrorResponse, HighWaterMarkResponse

A, B, C = (make_req_id(7, 1, 0, number) for number in (1, 2, 3))


def refused(conn: int, req_id: bytes) -> tuple[int, ErrorResponse]:
    return conn, ErrorResponse(req_id, ErrorCode.NOT_READY, "why")  # type: ignore[arg-type]


def test_a_question_is_answered_with_its_round() -> None:
    held = Shares()
    marks = MarkReads(held)
    marks.ask(0, 1, "", A, 5)
    marks.ask(0, 2, "", B, 4)
    assert marks.unasked
    marks.begin(1)
    assert not marks.unasked
    marks.ask(0, 1, "", C, 5)
    assert marks.confirmed(0, 9) == []
    assert marks.confirmed(1, 9) == [(1, HighWaterMarkResponse(A, 9)), (2, HighWaterMarkResponse(B, 9))]
    assert held.total == 1
    marks.begin(3)
    assert marks.confirmed(4, 10) == [(1, HighWaterMarkResponse(C, 10))]
    assert (held.total, marks.deadline()) == (0, None)


def test_codec_5_is_refused_after_a_while_and_older_codecs_wait() -> None:
    held = Shares()
    marks = MarkReads(held)
    marks.ask(0, 1, "", A, 4)
    assert marks.deadline() is None
    marks.ask(10, 2, "", B, 5)
    marks.begin(1)
    marks.ask(20, 3, "", C, 5)
    assert marks.deadline() == 10 + PATIENCE_MS
    assert marks.overdue(9 + PATIENCE_MS, "why") == []
    assert marks.overdue(10 + PATIENCE_MS, "why") == [refused(2, B)]
    assert marks.deadline() == 20 + PATIENCE_MS
    assert marks.overdue(20 + PATIENCE_MS, "why") == [refused(3, C)]
    assert (held.total, marks.deadline()) == (1, None)
    assert marks.confirmed(1, 9) == [(1, HighWaterMarkResponse(A, 9))]


def test_a_session_that_ends_confirms_nothing_and_the_next_is_asked_in_order() -> None:
    held = Shares()
    marks = MarkReads(held)
    marks.ask(0, 1, "", A, 4)
    marks.begin(7)
    marks.ask(0, 2, "", B, 4)
    marks.begin(8)
    marks.ask(0, 3, "", C, 4)
    marks.session_ended()
    assert marks.confirmed(9, 5) == []
    assert marks.unasked
    marks.begin(1)
    assert marks.confirmed(1, 6) == [
        (conn, HighWaterMarkResponse(req_id, 6)) for conn, req_id in ((1, A), (2, B), (3, C))
    ]


def test_a_closed_partition_refuses_who_understands_it_and_forgets_the_others() -> None:
    held = Shares()
    marks = MarkReads(held)
    marks.ask(0, 1, "", A, 4)
    marks.ask(0, 2, "", B, 5)
    marks.begin(1)
    marks.ask(0, 3, "", C, 5)
    assert marks.close("why") == [refused(2, B), refused(3, C)]
    assert (held.total, marks.deadline()) == (0, None)


def test_nobody_answers_a_connection_that_is_gone() -> None:
    held = Shares()
    marks = MarkReads(held)
    marks.gone(1)
    marks.ask(0, 1, "", A, 5)
    marks.begin(1)
    marks.ask(0, 1, "", B, 5)
    marks.ask(5, 2, "", C, 5)
    marks.gone(1)
    held.drop(1)
    assert (held.total, marks.deadline()) == (1, 5 + PATIENCE_MS)
    marks.begin(2)
    assert marks.confirmed(2, 0) == [(2, HighWaterMarkResponse(C, 0))]

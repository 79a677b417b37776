"""The client machine: connections, reads, calls in the wrong moment, closing."""

from __future__ import annotations

import random
import sys
from types import FrameType

import pytest

from tests.fixed_membership import FixedMembership
from tests.twin_0132.client import ClientNode0132
from tests.unit.client.desk import A, B, Desk, failures, foreign, submit
from waltz_core.base.edge import Closed, Dialed, Level, Received, Report, Writable, ZkState, ZkStateChanged
from waltz_core.base.ids import make_req_id, req_sequence
from waltz_core.base.outbox import Emits
from waltz_core.client.calls import (
    CloseClient,
    ClusterLost,
    Consumed,
    Effect,
    Failed,
    Fetch,
    Fetched,
    Flush,
    Flushed,
    Forget,
    ForgetMark,
    Joined,
    MarkRead,
    Open,
    Phase,
    ReadMark,
    Reason,
    StopFeed,
)
from waltz_core.client.link import Kind
from waltz_core.client.membership import MapChanged, MembershipNote, NullMembership, Servers, Unusable
from waltz_core.client.node import ClientEvent, ClientNode
from waltz_core.client.settings import ClientSettings
from waltz_core.wire.client_messages import (
    ErrorCode,
    ErrorResponse,
    FeedSuspended,
    HighWaterMarkRequest,
    HighWaterMarkResponse,
    LockFailure,
    MountRequest,
    MountResponse,
    PartitionState,
    TransactionDataRequest,
    TransactionDataResponse,
)
from waltz_core.wire.primitives import checksum_of

RPC = Kind.RPC


def data(request: TransactionDataRequest, payload: bytes) -> TransactionDataResponse:
    return TransactionDataResponse(request.req_id, request.transaction_id, True, payload, checksum_of(payload))


def error(request: TransactionDataRequest, text: str | None = "not now") -> TransactionDataResponse:
    return TransactionDataResponse(request.req_id, request.transaction_id, False, error=text)


# ---- connections -------------------------------------------------------------------------------


def test_two_connections_lead_to_a_server_that_is_needed() -> None:
    desk = Desk()
    assert desk.dials == []
    desk.step(Open(0, -1, True))
    assert sorted(desk.conns.values(), key=str) == sorted([(A, Kind.STREAM), (A, RPC)], key=str)
    assert all(dial.conn < 0 for dial in desk.dials)


def test_nothing_is_sent_before_the_server_has_greeted() -> None:
    desk = Desk()
    desk.step(Open(0, -1, True))
    desk.connect(greet=False)
    assert desk.take() == []
    assert desk.node.connected == 0


def test_a_server_that_does_not_greet_is_given_up() -> None:
    desk = Desk()
    desk.step(Open(0, -1, True))
    desk.connect(greet=False)
    desk.wait(9_999)
    assert not desk.closed
    desk.wait(1)
    assert len(desk.closed) == 2
    desk.wait(100)
    assert len(desk.dials) == 2


def test_a_peer_without_a_common_version_is_dropped_and_tried_again_with_growing_pauses() -> None:
    desk = Desk(versions=(4,))
    desk.step(Open(0, -1, True))
    pauses: list[int] = []
    for _ in range(12):
        conn = desk.dials.pop(0).conn
        desk.dials.clear()
        desk.step(Dialed(conn), Received(conn, b"\x48\x00\x00\x00\x00\x00\x0a\x00\x00\x00\x01\x00\x09\x00\x00\x00\x00"))
        start = desk.now
        while not desk.dials:
            due = desk.node.deadline()
            assert due is not None
            desk.now = due
            desk.step()
        pauses.append(desk.now - start)
    assert pauses[0] < 50
    assert pauses[-1] >= 1_000
    assert max(pauses) <= 2_000


def test_a_connection_that_worked_for_a_while_is_dialed_again_at_once() -> None:
    desk = Desk()
    desk.mounted()
    for _ in range(5):
        desk.wait(10_000)
        desk.cut()
        desk.wait(50)
        assert desk.dials
        desk.connect()
        desk.take()


@pytest.mark.parametrize("dialed", [True, False])
def test_0_13_2_dials_at_once_or_after_a_second(dialed: bool) -> None:
    desk = Desk(node=ClientNode0132)
    desk.step(Open(0, -1, True))
    first, _ = desk.dials
    desk.dials.clear()
    if dialed:
        desk.step(Dialed(first.conn))
    desk.step(Closed(first.conn, "cut"))
    assert bool(desk.dials) == dialed
    desk.wait(1_000)
    assert len(desk.dials) == 1


def test_an_idle_connection_writes_a_keep_alive_after_ten_minutes() -> None:
    desk = Desk()
    desk.mounted()
    conn = desk.conn()
    size_before = desk.codecs[conn].gathered
    desk.wait(600_000)
    assert desk.take() == []
    assert desk.codecs[conn].gathered == size_before
    link = next(link for link in desk.node._connections._router.links() if link.conn == conn)
    assert link.last_write == 1_000 + 600_000


def test_no_keep_alive_is_sent_to_peers_that_may_not_know_it() -> None:
    desk = Desk(versions=(3,))
    desk.mounted()
    desk.wait(700_000)
    assert all(link.last_write == 1_000 for link in desk.node._connections._router.links())


def test_garbage_costs_the_connection_but_not_what_came_before_it() -> None:
    desk = Desk()
    desk.mounted()
    good = bytearray()
    desk.codecs[desk.conn()].encode(foreign(0), good)
    desk.step(Received(desk.conn(), bytes(good) + b"garbage garbage"))
    assert desk.node.status(0, desk.now).seen_mark == 0
    assert len(desk.closed) == 1
    assert desk.node.status(0, desk.now).phase is Phase.WAITING


def test_events_of_connections_that_are_gone_are_ignored() -> None:
    desk = Desk()
    desk.mounted()
    desk.step(Dialed(-99), Received(-99, b"x"), Closed(-99, ""), Writable(-99, True))
    assert not desk.closed


def test_messages_for_partitions_that_are_not_ours_are_ignored() -> None:
    desk = Desk()
    desk.mounted()
    stranger = make_req_id(7, 1, 55, 1)
    told = desk.send(
        foreign(0, 55),
        LockFailure(stranger, 1),
        HighWaterMarkResponse(stranger, 1),
        TransactionDataResponse(stranger, 0, False, error=""),
        FeedSuspended(stranger),
        MountRequest(stranger, 0, 0),
        MountRequest(make_req_id(7, 1, 0, 1), 0, 0),
    )
    assert told == []
    assert not desk.closed


def test_a_server_that_leaves_takes_its_partitions_with_it_and_its_number_is_remembered() -> None:
    desk = Desk()
    desk.mounted()
    desk.change([])
    desk.step()
    assert desk.node.status(0, desk.now).server is None
    assert desk.node.connected == 0
    desk.change([(A, [(0, 2), (1, 2)])])
    desk.step()
    desk.connect()
    (mount,) = desk.take()
    assert mount.seq_num == 1


def test_a_partition_that_vanishes_from_the_map_stays_where_it_was() -> None:
    desk = Desk()
    desk.mounted()
    desk.change([(A, []), (B, [])])
    desk.step()
    assert desk.node.status(0, desk.now).server == A
    assert desk.take() == []


def test_of_two_claims_the_newer_one_holds() -> None:
    desk = Desk()
    desk.change([(A, [(0, 5)]), (B, [(0, 3)])])
    assert desk.node.status(0, desk.now).server == A
    desk.change([(A, [(0, 5)]), (B, [(0, 6)])])
    assert desk.node.status(0, desk.now).server == B


# ---- payloads ------------------------------------------------------------------------------------


def test_payloads_are_read_many_at_a_time_and_each_once() -> None:
    desk = Desk()
    desk.step(Fetch(0, (3, 4)), Fetch(0, (4, 5)))
    desk.connect()
    requests = desk.take(RPC)
    assert [request.transaction_id for request in requests] == [3, 4, 5]
    assert [req_sequence(request.req_id) for request in requests] == [1, 2, 3]
    told = desk.send(data(requests[2], b"five"), data(requests[0], b"three"), kind=RPC)
    assert told == [Fetched(0, [(5, (b"five",)), (3, (b"three",))])]
    assert desk.send(data(requests[2], b"five"), kind=RPC) == []


def test_a_limit_bounds_what_is_on_its_way() -> None:
    desk = Desk(settings=ClientSettings(fetch_in_flight_max=2))
    desk.step(Fetch(0, (0, 1, 2, 3, 4)))
    desk.connect()
    first, second = desk.take(RPC)
    desk.send(data(first, b""), kind=RPC)
    (third,) = desk.take(RPC)
    desk.send(data(second, b""), data(third, b""), kind=RPC)
    assert [request.transaction_id for request in desk.take(RPC)] == [3, 4]


def test_a_read_that_fails_is_repeated_after_growing_pauses_and_reported() -> None:
    desk = Desk()
    desk.step(Fetch(0, (3,)))
    desk.connect()
    for attempt, pause in enumerate((10, 20, 40, 80, 160, 320), start=1):
        (request,) = desk.take(RPC)
        assert req_sequence(request.req_id) == attempt
        told = desk.send(error(request, None if attempt == 6 else "not now"), kind=RPC)
        desk.wait(pause - 1)
        assert desk.take(RPC) == []
        desk.wait(1)
    assert [type(effect) for effect in told] == [Report]
    assert "no reason given" in told[0].text
    (request,) = desk.take(RPC)
    desk.send(ErrorResponse(request.req_id, ErrorCode.CORRUPT, "asked as a range, it might say more"), kind=RPC)
    (request,) = desk.take(RPC)
    assert desk.send(data(request, b"at last"), kind=RPC) == [Fetched(0, [(3, (b"at last",))])]


def test_reads_on_a_broken_connection_are_asked_for_again_on_the_next() -> None:
    desk = Desk()
    desk.step(Fetch(0, (3, 4)))
    desk.connect()
    first, _ = desk.take(RPC)
    desk.send(data(first, b""), kind=RPC)
    desk.cut(RPC)
    desk.step(Fetch(0, (5,)))
    desk.wait(3_000)
    desk.connect()
    assert [request.transaction_id for request in desk.take(RPC)] == [4, 5]


def test_a_read_that_is_never_answered_costs_a_silent_servers_connection() -> None:
    desk = Desk()
    desk.mounted()
    desk.step(Fetch(0, (3,)))
    desk.wait(29_999)
    assert not desk.closed
    desk.wait(1)
    assert len(desk.closed) == 1


def test_a_read_that_is_never_answered_costs_the_connection_although_the_server_answers_other_reads() -> None:
    desk = Desk()
    desk.step(Fetch(0, (3,)))
    desk.connect()
    desk.take(RPC)
    for number in range(120):
        assert not desk.closed, number
        desk.step(Fetch(1, (number,)))
        (other,) = desk.take(RPC)
        desk.send(data(other, b""), kind=RPC)
        desk.wait(1_000)
    assert len(desk.closed) == 1
    desk.wait(3_000)
    desk.connect()
    assert [request.transaction_id for request in desk.take(RPC)] == [3]


def test_a_payload_with_a_wrong_checksum_costs_the_connection_and_is_read_again() -> None:
    desk = Desk()
    desk.step(Fetch(0, (3,)))
    desk.connect()
    (request,) = desk.take(RPC)
    desk.send(TransactionDataResponse(request.req_id, 3, True, b"x", 1), kind=RPC)
    assert len(desk.closed) == 1
    desk.wait(3_000)
    desk.connect()
    assert [r.transaction_id for r in desk.take(RPC)] == [3]


def test_forgotten_reads_are_not_repeated() -> None:
    desk = Desk()
    desk.step(Fetch(0, (3, 4)))
    desk.connect()
    three, four = desk.take(RPC)
    desk.send(error(three), kind=RPC)
    desk.step(Forget(0, (3, 4)), Forget(1, (9,)))
    desk.wait(1_000)
    assert desk.send(data(four, b""), kind=RPC) == []
    assert desk.take(RPC) == []


def test_a_read_that_was_forgotten_before_it_left_never_leaves() -> None:
    desk = Desk()
    desk.step(Fetch(0, (3, 4)), Forget(0, (3,)))
    desk.connect()
    assert [request.transaction_id for request in desk.take(RPC)] == [4]


def test_reads_go_where_the_partition_went() -> None:
    desk = Desk()
    desk.step(Fetch(0, (3,)))
    desk.connect()
    desk.take(RPC)
    desk.change([(A, []), (B, [(0, 2)])])
    desk.step()
    desk.connect()
    (request,) = desk.take(RPC, B)
    assert desk.send(data(request, b"x"), kind=RPC) == [], "the old server is not listened to"
    assert desk.send(data(request, b"x"), kind=RPC, server=B) == [Fetched(0, [(3, (b"x",))])]


def test_read_sequence_numbers_wrap() -> None:
    desk = Desk()
    desk.step(Fetch(0, (3,)))
    desk.connect()
    desk.take(RPC)
    desk.node._partitions.reads_of(desk.now, 0)._link.sequence = (1 << 31) - 1
    desk.step(Fetch(0, (4,)))
    assert req_sequence(desk.take(RPC)[0].req_id) == -(1 << 31)


# ---- marks ---------------------------------------------------------------------------------------


def test_calls_that_begin_before_the_question_leaves_share_it() -> None:
    desk = Desk()
    desk.step(ReadMark(0, "a"), ReadMark(0, "b"))
    desk.connect()
    (question,) = desk.take(RPC)
    assert desk.send(HighWaterMarkResponse(question.req_id, 12), kind=RPC) == [MarkRead(0, 12, ("a", "b"))]
    assert desk.send(HighWaterMarkResponse(question.req_id, 12), kind=RPC) == []


def test_a_call_is_answered_only_by_a_question_that_left_after_it_began() -> None:
    desk = Desk()
    desk.connect()
    desk.step(ReadMark(0, "before"))
    desk.connect()
    (first,) = desk.take(RPC)
    desk.step(ReadMark(0, "meanwhile"))
    desk.step(ReadMark(0, "meanwhile too"))
    assert desk.take(RPC) == []
    assert desk.send(HighWaterMarkResponse(first.req_id, 12), kind=RPC) == [MarkRead(0, 12, ("before",))]
    (second,) = desk.take(RPC)
    assert desk.send(HighWaterMarkResponse(first.req_id, 12), kind=RPC) == []
    told = desk.send(HighWaterMarkResponse(second.req_id, 13), kind=RPC)
    assert told == [MarkRead(0, 13, ("meanwhile", "meanwhile too"))]
    assert desk.take(RPC) == []


def test_a_repeated_question_answers_every_call_before_it_and_the_first_only_its_own() -> None:
    desk = Desk()
    desk.step(ReadMark(0, "a"))
    desk.connect()
    desk.step(ReadMark(0, "b"))
    desk.wait(1_000)
    first, repeated = desk.take(RPC)
    desk.step(ReadMark(0, "c"))
    assert desk.send(HighWaterMarkResponse(first.req_id, 5), kind=RPC) == [MarkRead(0, 5, ("a",))]
    assert desk.take(RPC) == []
    assert desk.send(HighWaterMarkResponse(repeated.req_id, 6), kind=RPC) == [MarkRead(0, 6, ("b",))]
    (last,) = desk.take(RPC)
    assert desk.send(HighWaterMarkResponse(last.req_id, 7), kind=RPC) == [MarkRead(0, 7, ("c",))]


def test_a_call_that_has_left_is_not_answered_and_the_last_one_takes_the_question_along() -> None:
    desk = Desk()
    desk.step(ReadMark(0, "a"), ReadMark(0, "b"))
    desk.connect()
    (first,) = desk.take(RPC)
    desk.step(ForgetMark(0, "a"), ForgetMark(1, "never asked"))
    assert desk.send(HighWaterMarkResponse(first.req_id, 12), kind=RPC) == [MarkRead(0, 12, ("b",))]
    desk.step(ReadMark(0, "c"))
    (second,) = desk.take(RPC)
    desk.step(ForgetMark(0, "c"))
    desk.wait(10_000)
    assert desk.take(RPC) == [], "nobody waits, so nothing is asked again"
    desk.step(ReadMark(0, "d"))
    (third,) = desk.take(RPC)
    assert desk.send(HighWaterMarkResponse(second.req_id, 12), kind=RPC) == []
    assert desk.send(HighWaterMarkResponse(third.req_id, 13), kind=RPC) == [MarkRead(0, 13, ("d",))]


def test_a_question_lost_with_its_connection_is_asked_again_for_every_call() -> None:
    desk = Desk()
    desk.step(ReadMark(0, "a"))
    desk.connect()
    desk.step(ReadMark(0, "b"))
    desk.take(RPC)
    desk.cut(RPC)
    desk.wait(3_000)
    desk.connect()
    question = desk.take(RPC)[-1]
    assert desk.send(HighWaterMarkResponse(question.req_id, 5), kind=RPC) == [MarkRead(0, 5, ("a", "b"))]


def test_questions_for_the_mark_are_told_apart_across_the_wrap_of_request_ids() -> None:
    desk = Desk()
    desk.step(ReadMark(0, "a"))
    desk.node._partitions.reads_of(desk.now, 0)._link.sequence = (1 << 31) - 1
    desk.connect()
    (first,) = desk.take(RPC)
    assert req_sequence(first.req_id) == -(1 << 31)
    never_asked = first.req_id[:-1] + b"\x01"
    assert desk.send(HighWaterMarkResponse(never_asked, 9), kind=RPC) == []
    assert desk.send(HighWaterMarkResponse(first.req_id, 5), kind=RPC) == [MarkRead(0, 5, ("a",))]


def test_a_feed_at_the_tail_begins_at_a_mark_asked_for_after_it_was_opened() -> None:
    desk = Desk()
    desk.step(ReadMark(0, "a"))
    desk.connect()
    (first,) = desk.take(RPC)
    desk.step(Open(0, None, True))
    desk.connect()
    assert desk.send(HighWaterMarkResponse(first.req_id, 5), kind=RPC) == [MarkRead(0, 5, ("a",))]
    assert desk.node.status(0, desk.now).phase is Phase.TAIL
    (second,) = desk.take(RPC)
    desk.send(HighWaterMarkResponse(second.req_id, 6), kind=RPC)
    assert desk.node.status(0, desk.now).seen_mark == 6


def test_an_unanswered_question_for_the_mark_is_repeated() -> None:
    desk = Desk()
    desk.step(ReadMark(0, "m"))
    desk.connect()
    desk.wait(1_000)
    assert [type(request) for request in desk.take(RPC)] == [HighWaterMarkRequest] * 2


def test_0_13_2_asks_for_the_mark_once() -> None:
    desk = Desk(node=ClientNode0132)
    desk.step(ReadMark(0, "m"))
    desk.connect()
    desk.wait(10_000)
    assert len(desk.take(RPC)) == 1


def test_a_partition_that_is_not_open_yet_is_asked_again() -> None:
    desk = Desk()
    desk.step(Open(0, None, True))
    desk.connect()
    (request,) = desk.take(RPC)
    assert desk.send(HighWaterMarkResponse(request.req_id, -(2**63)), kind=RPC) == []
    desk.step(ReadMark(0, "m"))
    desk.wait(500)
    (request,) = desk.take(RPC)
    desk.send(HighWaterMarkResponse(request.req_id, -1), kind=RPC)
    assert desk.node.status(0, desk.now).phase is Phase.MOUNTING


@pytest.mark.parametrize("code", [ErrorCode.NOT_READY, ErrorCode.NOT_SERVED, ErrorCode.OVERLOADED])
def test_a_server_without_a_quorum_is_asked_again_after_a_pause(code: ErrorCode) -> None:
    desk = Desk()
    desk.step(ReadMark(0, "a"))
    desk.connect()
    (question,) = desk.take(RPC)
    assert desk.send(ErrorResponse(question.req_id, code, "no quorum"), kind=RPC) == []
    desk.step(ReadMark(0, "b"))
    assert desk.take(RPC) == []
    desk.wait(desk.settings.not_ready_ms)
    assert desk.send(ErrorResponse(question.req_id, code, "late"), kind=RPC) == []
    (again,) = desk.take(RPC)
    assert desk.send(HighWaterMarkResponse(again.req_id, 3), kind=RPC) == [MarkRead(0, 3, ("a", "b"))]


def test_a_mark_that_is_refused_is_refused_to_those_who_asked_before_the_question() -> None:
    desk = Desk()
    desk.step(Open(0, None, False), ReadMark(0, "a"))
    desk.connect()
    (first,) = desk.take(RPC)
    desk.step(ReadMark(0, "b"))
    refusal = ErrorResponse(first.req_id, ErrorCode.NOT_ALLOWED, "may not read")
    told = desk.send(refusal, refusal, kind=RPC)
    text = "a:1 refuses: may not read"
    assert told == [MarkRead(0, -1, ("a",), refusal), Report(Level.WARNING, text)]
    desk.step(ReadMark(0, "c"))
    assert desk.take(RPC) == [], "it would say the same"
    desk.wait(desk.settings.not_ready_ms)
    (again,) = desk.take(RPC)
    refusal = ErrorResponse(again.req_id, ErrorCode.NOT_ALLOWED, "may not read")
    assert desk.send(refusal, kind=RPC) == [MarkRead(0, -1, ("b", "c"), refusal)]
    desk.wait(desk.settings.not_ready_ms)
    (tail,) = desk.take(RPC)
    desk.send(HighWaterMarkResponse(tail.req_id, 3), kind=RPC)
    assert [type(message) for message in desk.take()] == [MountRequest], "which has not given up"


def test_nobody_is_asked_for_a_mark_once_all_who_wanted_it_were_refused() -> None:
    desk = Desk()
    desk.step(ReadMark(0, "a"))
    desk.connect()
    (question,) = desk.take(RPC)
    desk.send(ErrorResponse(question.req_id, ErrorCode.NOT_ALLOWED, None), kind=RPC)
    desk.wait(60_000)
    assert [message for message in desk.take(RPC) if isinstance(message, HighWaterMarkRequest)] == []
    desk.step(ReadMark(0, "b"))
    (question,) = [message for message in desk.take(RPC) if isinstance(message, HighWaterMarkRequest)]
    assert desk.send(HighWaterMarkResponse(question.req_id, 3), kind=RPC) == [MarkRead(0, 3, ("b",))]


def test_a_mark_does_not_move_a_partition_that_has_begun() -> None:
    desk = Desk()
    desk.mounted(mark=3)
    desk.step(ReadMark(0, "m"))
    (request,) = desk.take(RPC)
    desk.send(HighWaterMarkResponse(request.req_id, 50), kind=RPC)
    desk.node.partitions[0].on_tail(desk.now, 50)
    assert desk.node.status(0, desk.now).seen_mark == 3


# ---- calls in the wrong moment -------------------------------------------------------------------


class Late(NullMembership):
    """A cluster that does not answer before the test says so."""

    def start(self, now: int, servers: Servers, out: Emits[Effect], notes: Emits[MembershipNote]) -> None:
        self.notes = notes


def test_calls_before_the_cluster_answered_are_carried_out_then() -> None:
    late = Late()
    desk = Desk(late)
    early: list[ClientEvent] = [
        Open(0, 4, True), submit("x"), Flush(0, "f"), StopFeed(1), ReadMark(1, "m"), Fetch(1, (2,)), Forget(1, (3,)),
        Consumed(0, 1), ZkStateChanged(ZkState.CONNECTED, 1),
    ]  # fmt: skip
    desk.step(*early)
    assert desk.dials == []
    late.notes.put(Joined("late", 9, 2))
    late.notes.put(MapChanged([(A, [(0, 1), (1, 1)])]))
    desk.step()
    assert desk.told[0] == Joined("late", 9, 2)
    desk.connect()
    assert [mount.client_mark for mount in desk.take()] == [4]
    assert len(desk.take(RPC)) == 2


def test_partitions_that_do_not_exist_are_refused() -> None:
    desk = Desk()
    told = desk.step(submit("x", partition=2), Open(2, 0, True), ReadMark(-1, "m"), Fetch(5, (0,)), Flush(9, "f"))
    assert [(f.token, f.reason) for f in told if isinstance(f, Failed)] == [("x", Reason.REFUSED)]
    assert Flushed(9, "f") in told
    assert [told_of.text for told_of in told if isinstance(told_of, Report)] == [
        "Open of partition 2 is passed over: the cluster has 2 partitions, from 0 on",
        "ReadMark of partition -1 is passed over: the cluster has 2 partitions, from 0 on",
        "Fetch of partition 5 is passed over: the cluster has 2 partitions, from 0 on",
    ]
    assert desk.dials == []
    assert desk.wait(100_000) == []


def test_a_flush_of_a_partition_that_was_never_used_is_answered_at_once() -> None:
    desk = Desk()
    assert desk.step(Flush(0, "f")) == [Flushed(0, "f")]
    assert desk.dials == []


def test_a_cluster_that_cannot_be_used_is_told() -> None:
    late = Late()
    desk = Desk(late)
    late.notes.put(Unusable("wrong"))
    desk.step()
    assert desk.told[-1] == ClusterLost("wrong")


# ---- closing -------------------------------------------------------------------------------------


def test_closing_ends_every_append_and_every_connection() -> None:
    desk = Desk()
    desk.mounted()
    desk.step(submit("sent"))
    desk.step(Writable(desk.conn(), False), submit("queued"), Flush(0, "f"), Fetch(0, (1,)))
    told = desk.step(CloseClient())
    assert failures(told) == [("sent", Reason.CLOSED), ("queued", Reason.CLOSED)]
    assert Flushed(0, "f") in told
    assert len(desk.closed) == 2
    assert desk.node.deadline() is None
    desk.wait(100_000)
    assert desk.dials == []


def test_after_closing_appends_fail_and_everything_else_is_ignored() -> None:
    desk = Desk()
    desk.mounted()
    desk.step(CloseClient(), CloseClient())
    told = desk.step(
        submit("late"), submit("nowhere", partition=9), Open(1, 0, True), Flush(0, "f"), Fetch(0, (1,)),
        ReadMark(0, "m"), Forget(0, (1,)), StopFeed(0), ZkStateChanged(ZkState.CLOSED),
    )  # fmt: skip
    assert failures(told) == [("late", Reason.CLOSED), ("nowhere", Reason.CLOSED)]
    assert desk.dials == []


def test_closing_before_the_cluster_answered_ends_the_early_appends() -> None:
    desk = Desk(Late())
    desk.step(submit("early"), Open(0, 1, True))
    told = desk.step(CloseClient())
    assert failures(told) == [("early", Reason.CLOSED)]
    assert failures(desk.step(submit("late"))) == [("late", Reason.CLOSED)]


def test_a_busy_machine_still_meets_its_deadlines() -> None:
    desk = Desk()
    desk.mounted()
    desk.submit("x")
    desk.take()
    for _ in range(60):
        desk.now += 100
        desk.step(Consumed(0, -1))
    assert desk.take(), "the nudge left although events never ceased"


def test_the_machine_wants_to_be_started() -> None:
    node = ClientNode(Late(), ClientSettings(), random.Random(1))
    assert node.deadline() == 0


def test_a_closed_partition_is_not_moved() -> None:
    desk = Desk()
    desk.mounted()
    desk.step(StopFeed(0))
    desk.change([(B, [(0, 2)])])
    desk.step()
    desk.wait(10_000)
    assert desk.dials == []


def test_reads_of_other_servers_are_not_disturbed_by_a_cut() -> None:
    desk = Desk()
    desk.change([(A, [(0, 1)]), (B, [(1, 1)])])
    desk.step(Fetch(0, (1,)), Fetch(1, (1,)))
    desk.connect()
    desk.take(RPC, A)
    desk.take(RPC, B)
    desk.cut(RPC, A)
    desk.wait(3_000)
    desk.connect()
    assert len(desk.take(RPC, A)) == 1
    assert desk.take(RPC, B) == []


def test_opening_an_open_partition_without_a_feed_changes_nothing() -> None:
    desk = Desk()
    desk.mounted(mark=3)
    assert desk.step(Open(0, 9, False)) == []
    desk.node.partitions[0].open(desk.now, 9, deliver=False)
    assert desk.step() == []
    assert desk.take() == []


def test_answers_are_taken_in_before_the_next_requests_leave() -> None:
    desk = Desk(settings=ClientSettings(fetch_in_flight_max=4))
    desk.step(Fetch(0, tuple(range(0, 16, 2))))
    desk.connect()
    requests = desk.take(RPC)
    assert len(requests) == 4
    desk.send(data(requests[0], b""), kind=RPC)
    assert desk.take(RPC) == [], "requests leave in bundles"
    desk.send(data(requests[1], b""), kind=RPC)
    assert len(desk.take(RPC)) == 2


def test_why_a_server_cannot_be_reached_is_told_once_until_it_can_be() -> None:
    desk = Desk()
    desk.step(Open(0, -1, True))
    for reason in ("refused", "refused", "not trusted", "not trusted"):
        dials, desk.dials = desk.dials, []
        desk.step(*(Closed(dial.conn, reason) for dial in dials))
        desk.wait(30_000)
    desk.connect()
    desk.cut()
    reports = [effect.text for effect in desk.told if isinstance(effect, Report)]

    told = [text for text in reports if text.startswith("no connection")]
    assert told == [f"no connection to a:1: {reason}" for reason in ("refused", "not trusted", "cut")]


# ---- cost --------------------------------------------------------------------------------------


def _calls(partitions: int) -> int:
    """Python functions that one step calls which concerns one partition out of so many, all of them mounted."""
    desk = Desk(FixedMembership(7, partitions, ((A, tuple((number, 1) for number in range(partitions))),)))
    desk.step(*(Open(number, -1, True) for number in range(partitions)))
    desk.connect()
    mounts = [sent for sent in desk.take() if isinstance(sent, MountRequest)]
    desk.send(*(MountResponse(mount.req_id, PartitionState.READY) for mount in mounts))
    assert desk.node.status(partitions - 1, desk.now).phase is Phase.MOUNTED
    desk.wait(1)
    count = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(called)
    try:
        desk.node.step(desk.now, [Consumed(0, -1)], [])
        desk.node.deadline()
    finally:
        sys.setprofile(None)
    return count


def test_idle_partitions_cost_nothing_per_step() -> None:
    assert _calls(300) == _calls(3)

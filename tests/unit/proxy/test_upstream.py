"""The client inside a proxy: what it carries, what it is told, and how it reads."""

from __future__ import annotations

from typing import Any

from tests.unit.client.desk import A, B, Desk
from tests.unit.proxy.desk import append
from waltz_core.base.edge import CloseConn
from waltz_core.base.ids import ReqId, make_req_id
from waltz_core.base.lock import Conflict, LockKind
from waltz_core.base.log import Record
from waltz_core.client.calls import Carried, GenerationRaised, MarkRead, Open, Phase, RecordsCarried
from waltz_core.client.link import Kind
from waltz_core.client.settings import ClientSettings
from waltz_core.proxy.upstream import Upstream
from waltz_core.wire.client_messages import (
    AppendRefused,
    ClientCapability,
    ErrorCode,
    ErrorResponse,
    FlushRequest,
    FlushResponse,
    HighWaterMarkRequest,
    HighWaterMarkResponse,
    LockFailure,
    MountRequest,
    MountResponse,
    PartitionState,
    RecordRangeRequest,
    RecordRangeResponse,
    Refusal,
)
from waltz_core.wire.primitives import checksum_of

RPC = Kind.RPC
FIRST = 5 << 32


def upstream_desk() -> tuple[Desk, Upstream]:
    desk = Desk(settings=ClientSettings(carries_others=True, first_connection=FIRST), node=Upstream)
    assert isinstance(desk.node, Upstream)
    return desk, desk.node


def mounted() -> tuple[Desk, Upstream, ReqId]:
    desk, node = upstream_desk()
    session = desk.mounted()
    desk.take()
    return desk, node, session


def carried(told: list[Any]) -> list[Any]:
    return [effect.message for effect in told if isinstance(effect, Carried)]


def records_of(told: list[Any]) -> list[RecordsCarried]:
    return [effect for effect in told if isinstance(effect, RecordsCarried)]


def records(first: int, count: int, *, damaged: bool = False) -> tuple[Record, ...]:
    return tuple(Record(first + at, ReqId(bytes(16)), 0, b"x", checksum_of(b"x") ^ damaged) for at in range(count))


def test_its_connections_are_numbered_on_and_it_says_that_it_carries_others() -> None:
    desk, node = upstream_desk()
    node.step(desk.now, [], [])
    desk.step(*_open())
    desk.connect()
    (mount,) = [message for message in desk.take() if isinstance(message, MountRequest)]
    assert mount.seq_num == FIRST
    capabilities = desk.capability_requests[Kind.STREAM][0].capabilities
    assert capabilities == ClientCapability.FEED_WINDOWS | ClientCapability.CARRIES_OTHERS
    desk.cut()
    desk.wait(5_000)
    desk.connect()
    (mount,) = [message for message in desk.take() if isinstance(message, MountRequest)]
    assert mount.seq_num == FIRST + 1


def _open() -> list[Any]:
    return [Open(0, -1, True)]


def test_nothing_is_carried_but_over_a_mount() -> None:
    desk, node = upstream_desk()
    assert not node.carry(0, append(8, 1))
    assert node.barrier(desk.now, 0) is None
    desk.step(*_open())
    assert not node.carry(0, append(8, 1))
    assert node.barrier(desk.now, 0) is None
    desk.connect()
    assert not node.carry(0, append(8, 1))
    (mount,) = [message for message in desk.take() if isinstance(message, MountRequest)]
    desk.send(MountResponse(mount.req_id, PartitionState.READY))
    desk.take()
    assert node.carry(0, append(8, 1))
    flush = node.barrier(desk.now, 0)
    assert flush is not None
    desk.step()
    assert desk.take() == [append(8, 1), FlushRequest(flush)]
    desk.cut()
    assert not node.carry(0, append(8, 1))


def test_answers_to_others_are_told_in_the_order_of_the_feed() -> None:
    desk, _, _ = mounted()
    failure = LockFailure(make_req_id(8, 1, 0, 1), 3)
    refused = AppendRefused(make_req_id(8, 1, 0, 2), Refusal.LOCK, 3, Conflict.TRUE, 3, LockKind.WRITE, 0, 77, None)
    flushed = FlushResponse(make_req_id(7, 1, 0, 9), 3)
    not_allowed = ErrorResponse(make_req_id(8, 1, 0, 3), ErrorCode.NOT_ALLOWED, "no")
    assert carried(desk.send(failure, refused, flushed, not_allowed)) == [failure, refused, flushed, not_allowed]


def test_a_mount_that_the_server_forgot_is_made_anew() -> None:
    desk, _, _ = mounted()
    refused = AppendRefused(
        make_req_id(8, 1, 0, 2), Refusal.NOT_MOUNTED, -1, Conflict.UNKNOWN, -1, LockKind.NONE, -1, 0, None
    )
    assert carried(desk.send(refused)) == [refused]
    assert [type(message) for message in desk.take()] == [MountRequest]


def test_another_generation_is_told_once() -> None:
    desk, _, _ = mounted()
    told = desk.change(((A, ((0, 2), (1, 1))),))
    assert [effect for effect in told if isinstance(effect, GenerationRaised)] == [GenerationRaised(0, 2)]
    assert [type(message) for message in desk.take()] == [MountRequest]
    told = desk.change(((A, ((1, 1),)), (B, ((0, 2),))))
    assert not [effect for effect in told if isinstance(effect, GenerationRaised)]


def test_a_server_that_owes_a_flush_for_long_is_given_up() -> None:
    desk, node, _ = mounted()
    assert node.barrier(desk.now, 0) is not None
    desk.wait(29_000)
    assert desk.closed == []
    desk.wait(2_000)
    assert [type(effect) for effect in desk.closed] == [CloseConn]


def test_a_flush_that_was_answered_is_owed_no_more() -> None:
    desk, node, _ = mounted()
    flush = node.barrier(desk.now, 0)
    assert flush is not None
    desk.send(FlushResponse(flush, -1))
    desk.wait(60_000)
    assert desk.closed == []
    carrier = node.carrier(0)
    assert carrier is not None
    assert carrier.phase is Phase.MOUNTED


def test_a_flush_is_owed_no_more_when_its_connection_is_gone() -> None:
    """What follows owes what was asked of it, from when that was."""
    desk, node, _ = mounted()
    assert node.barrier(desk.now, 0) is not None
    desk.wait(20_000)
    desk.cut()
    desk.wait(5_000)
    desk.connect()
    (mount,) = [message for message in desk.take() if isinstance(message, MountRequest)]
    desk.send(MountResponse(mount.req_id, PartitionState.READY))
    assert node.barrier(desk.now, 0) is not None
    desk.wait(20_000)
    assert not [message for message in desk.take() if isinstance(message, MountRequest)], "it is believed"
    desk.wait(20_000)
    assert [type(effect) for effect in desk.closed] == [CloseConn]


def test_records_are_read_as_ranges_and_told_whole() -> None:
    desk, node, _ = mounted()
    node.read(desk.now, 0, 33, 5, 3)
    desk.step()
    (request,) = desk.take(RPC)
    assert request == RecordRangeRequest(request.req_id, 5, 7, 3, 0, False)
    told = desk.send(RecordRangeResponse(request.req_id, 2, 9, records(5, 2)), kind=RPC)
    assert records_of(told) == [RecordsCarried(0, 33, records(5, 2), 2)]
    again = desk.send(RecordRangeResponse(request.req_id, 2, 9, records(5, 2)), kind=RPC)
    assert records_of(again) == [], "an answer that nobody waits for"


def test_a_read_outlives_its_connection() -> None:
    desk, node, _ = mounted()
    node.read(desk.now, 0, 33, 5, 3)
    desk.step()
    desk.take(RPC)
    desk.cut(RPC)
    desk.wait(5_000)
    desk.connect()
    (request,) = [message for message in desk.take(RPC) if isinstance(message, RecordRangeRequest)]
    assert (request.first_id, request.last_id) == (5, 7)


def test_a_read_that_cannot_be_answered_yet_is_asked_again_after_a_pause() -> None:
    desk, node, _ = mounted()
    node.read(desk.now, 0, 33, 5, 3)
    desk.step()
    (request,) = desk.take(RPC)
    told = desk.send(ErrorResponse(request.req_id, ErrorCode.NOT_READY, "later"), kind=RPC)
    assert records_of(told) == []
    assert desk.take(RPC) == []
    desk.wait(1_000)
    (request,) = desk.take(RPC)
    told = desk.send(RecordRangeResponse(request.req_id, 0, 4, ()), kind=RPC)  # it does not know them yet
    assert records_of(told) == []
    desk.wait(1_000)
    (request,) = desk.take(RPC)
    lost = ErrorResponse(request.req_id, ErrorCode.CORRUPT, "lost")
    told = desk.send(lost, kind=RPC)
    assert records_of(told) == [RecordsCarried(0, 33, None, -1, lost)]
    desk.wait(5_000)
    assert desk.take(RPC) == []


def test_a_read_of_nothing_tells_where_the_log_begins() -> None:
    desk, node, _ = mounted()
    node.read(desk.now, 0, 0, 10, 0)
    desk.step()
    (request,) = desk.take(RPC)
    told = desk.send(RecordRangeResponse(request.req_id, 7, 9, ()), kind=RPC)
    assert records_of(told) == [RecordsCarried(0, 0, (), 7)]


def test_damaged_records_end_the_connection_and_are_read_again() -> None:
    desk, node, _ = mounted()
    node.read(desk.now, 0, 33, 5, 3)
    desk.step()
    (request,) = desk.take(RPC)
    told = desk.send(RecordRangeResponse(request.req_id, 0, 9, records(5, 3, damaged=True)), kind=RPC)
    assert records_of(told) == []
    assert [type(effect) for effect in desk.closed] == [CloseConn]
    desk.wait(5_000)
    desk.connect()
    assert [message.first_id for message in desk.take(RPC) if isinstance(message, RecordRangeRequest)] == [5]


def test_the_mark_is_asked_over_the_connection_for_reads() -> None:
    desk, node, _ = mounted()
    node.ask_mark(desk.now, 0, 4)
    desk.step()
    (request,) = desk.take(RPC)
    assert isinstance(request, HighWaterMarkRequest)
    told = desk.send(HighWaterMarkResponse(request.req_id, 12), kind=RPC)
    assert [effect for effect in told if isinstance(effect, MarkRead)] == [MarkRead(0, 12, (4,))]
    desk.send(ErrorResponse(request.req_id, ErrorCode.NOT_READY, "later"), kind=RPC)

"""What a client has sent itself, its feeds do not read at a server."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from tests.payloads import numbered
from tests.unit.client.desk import A, B, Desk, foreign, own, submit
from waltz_core.base.edge import Closed
from waltz_core.base.ids import make_req_id
from waltz_core.client.calls import CloseClient, Consumed, Failed, Fetch, Fetched, Open, Reason, StopFeed, SubmitMany
from waltz_core.client.columns import Columns
from waltz_core.client.link import Kind
from waltz_core.client.own_payloads import OwnPayloads, OwnRoom
from waltz_core.client.settings import ClientSettings
from waltz_core.wire.client_messages import (
    AppendRequest,
    FeedData,
    FlushRequest,
    FlushResponse,
    LockFailure,
    MountRequest,
    MountResponse,
    NamedAppendRequest,
    PartitionState,
    RecordRangeRequest,
    TransactionDataRequest,
)

SIZE = 10_000
ENTRY = 256  # beside the bytes of a payload


SETTINGS = ClientSettings(own_payloads_size_max=SIZE)


def reading(settings: ClientSettings = SETTINGS) -> Desk:
    """A feed of partition 0 whose payloads are asked for; transaction 0 is of somebody else, and was asked for."""
    desk = Desk(settings=settings)
    desk.mounted()
    desk.send(foreign(0))
    fetched(desk, 0)
    desk.take(Kind.RPC)
    return desk


def appended(desk: Desk, *tokens: object) -> list[Any]:
    """Append with each token, whose text is the payload; the requests."""
    desk.step(*map(submit, tokens))
    return [each for each in desk.take() if isinstance(each, AppendRequest | NamedAppendRequest)]


def fetched(desk: Desk, *ids: int) -> dict[int, bytes]:
    """What is there at once when these are asked for."""
    told = desk.step(Fetch(0, ids))
    return dict(each for effect in told if isinstance(effect, Fetched) for each in numbered(effect.payloads))


def asked(desk: Desk) -> list[int]:
    """What a server was asked for since the last look."""
    ids: list[int] = []
    for each in desk.take(Kind.RPC):
        if isinstance(each, RecordRangeRequest):
            ids += range(each.first_id, each.last_id + 1)
        elif isinstance(each, TransactionDataRequest):
            ids.append(each.transaction_id)
    return ids


def room(desk: Desk) -> int:
    """Bytes that are left for own payloads."""
    return desk.node._context.own.room.left


def test_own_payloads_come_from_memory_and_others_from_a_server() -> None:
    desk = reading()
    first, second, third = appended(desk, "a", "b", "c")
    assert room(desk) == SIZE - 3 * (3 + ENTRY)
    desk.send(own(first, 1), foreign(2), own(second, 3), own(third, 4))
    assert fetched(desk, 1, 2, 3, 4) == {1: b"'a'", 3: b"'b'", 4: b"'c'"}
    assert asked(desk) == [2]
    assert room(desk) == SIZE


def test_they_come_in_pieces_of_ids_in_a_row() -> None:
    desk = reading()
    first, second, third = appended(desk, "a", "b", "c")
    desk.send(own(first, 1), foreign(2), own(second, 3), own(third, 4))
    assert Fetched(0, [(1, [b"'a'"]), (3, [b"'b'", b"'c'"])]) in desk.step(Fetch(0, range(1, 5)))


def test_a_payload_is_given_out_once_and_then_read() -> None:
    desk = reading()
    (request,) = appended(desk, "a")
    desk.send(own(request, 1))
    assert fetched(desk, 1) == {1: b"'a'"}
    assert fetched(desk, 1) == {}
    assert asked(desk) == [1]


def test_rows_of_one_call_are_kept_too() -> None:
    desk = reading()
    columns = Columns()
    for payload in (b"x", b"y"):
        columns.add(0, payload)
    desk.step(SubmitMany(0, range(2), None, columns))
    first, second = desk.take()
    desk.send(own(first, 1), own(second, 2))
    assert fetched(desk, 1, 2) == {1: b"x", 2: b"y"}
    assert asked(desk) == []


def test_a_verdict_alone_gives_out_nothing() -> None:
    """Two appends are lost, or refused, and somebody else's transactions get the ids that they might have had."""
    desk = reading()
    lost, refused, last = appended(desk, "a", "b", "c")
    desk.send(LockFailure(refused.req_id, 0))
    desk.send(foreign(1), foreign(2), own(last, 3))
    reasons = [each.reason for each in desk.told if isinstance(each, Failed)]
    assert reasons == [Reason.LOCK, Reason.OVERTAKEN]
    assert lost.req_id < last.req_id
    assert fetched(desk, 1, 2, 3) == {3: b"'c'"}
    assert asked(desk) == [1, 2]
    assert room(desk) == SIZE


def test_an_append_that_a_flush_proves_lost_gives_its_room_back() -> None:
    desk = reading()
    appended(desk, "a")
    desk.wait(desk.settings.nudge_ms)
    (flush,) = [each for each in desk.take() if isinstance(each, FlushRequest)]
    desk.send(FlushResponse(flush.req_id, 0))
    assert [each.reason for each in desk.told if isinstance(each, Failed)] == [Reason.FLUSHED]
    assert room(desk) == SIZE


def test_no_more_bytes_are_kept_than_there_is_room_for() -> None:
    desk = reading()
    tokens = ["a", "z" * SIZE, "b"]
    requests = appended(desk, *tokens)
    assert room(desk) == SIZE - 2 * (3 + ENTRY)
    desk.send(*(own(request, number) for number, request in enumerate(requests, start=1)))
    assert fetched(desk, 1, 2, 3) == {1: b"'a'", 3: b"'b'"}
    assert asked(desk) == [2]
    assert room(desk) == SIZE


def test_the_room_is_that_of_all_partitions_together() -> None:
    desk = reading()
    desk.mounted(1)
    desk.step(Fetch(1, (0,)))
    desk.step(submit("q" * (SIZE - ENTRY - 2), partition=1))
    assert room(desk) == 0
    (request,) = [each for each in appended(desk, "a") if each.data == b"'a'"]
    desk.send(own(request, 1))
    assert fetched(desk, 1) == {}


def test_nothing_is_kept_beside_a_feed_whose_payloads_nobody_asks_for() -> None:
    desk = Desk(settings=ClientSettings(own_payloads_size_max=SIZE))
    desk.mounted()
    appended(desk, "a")
    assert room(desk) == SIZE


def test_nothing_is_kept_without_a_feed() -> None:
    desk = reading()
    desk.step(StopFeed(0))
    fetched(desk, 0)
    appended(desk, "a")
    assert room(desk) == SIZE


def test_nothing_is_kept_of_what_a_server_of_0132_takes() -> None:
    """It takes the request ids of others from anybody: whose bytes a transaction has, it must be asked itself."""
    desk = Desk(settings=ClientSettings(own_payloads_size_max=SIZE), versions=range(5))
    desk.mounted()
    desk.send(foreign(0))
    fetched(desk, 0)
    (request,) = appended(desk, "a")
    assert room(desk) == SIZE
    desk.send(own(request, 1))
    assert fetched(desk, 1) == {}


def test_what_was_not_delivered_is_not_kept() -> None:
    """The buffer of the application is full: it comes again, when there is room."""
    desk = reading(attrs.evolve(SETTINGS, feed_buffer_max=1))
    (request,) = appended(desk, "a")
    desk.send(own(request, 1))
    assert room(desk) == SIZE


@pytest.mark.parametrize("end", [Consumed(0, 1), StopFeed(0), Open(0, 0, True), CloseClient()])
def test_what_is_never_asked_for_ends_with_its_use(end: Any) -> None:
    desk = reading()
    committed, _ = appended(desk, "a", "b")
    desk.send(own(committed, 1))
    desk.step(end)
    keeps_second = isinstance(end, Consumed)  # another feed is another mount
    assert room(desk) == SIZE - keeps_second * (3 + ENTRY)
    assert fetched(desk, 1) == {}


def test_an_append_that_outlives_its_mount_is_read_at_a_server() -> None:
    """The partition may have been at a server of 0.13.2, where somebody else's transaction got its request id."""
    desk = reading()
    (request,) = appended(desk, "a")
    desk.change(((B, ((0, 2), (1, 2))),))
    desk.step(Closed(desk.conn(), "cut"))
    desk.connect()
    mount = [each for each in desk.take(server=B) if isinstance(each, MountRequest)][-1]
    (later,) = [submit("b")]
    desk.send(foreign(1), own(request, 2), MountResponse(mount.req_id, PartitionState.READY), server=B)
    desk.step(later)
    (second,) = [each for each in desk.take(server=B) if isinstance(each, AppendRequest | NamedAppendRequest)]
    assert second.req_id[4:8] != request.req_id[4:8], "another generation"
    desk.send(own(second, 3), server=B)
    assert fetched(desk, 1, 2, 3) == {3: b"'b'"}
    assert room(desk) == SIZE


def test_what_is_consumed_is_let_go_without_a_look_at_what_is_kept_behind_it() -> None:
    own_room = OwnRoom(1 << 20)
    payloads, ids = OwnPayloads(own_room), [make_req_id(1, 0, 0, number) for number in range(500)]
    payloads.sending(ids, [b"x"] * 500)
    payloads.fed([FeedData(req_id, number, 0) for number, req_id in enumerate(ids)], -1, 499)
    assert payloads.count == 500
    looks = Mark.looks = 0
    for number in range(500):
        payloads.consumed(Mark(number))
        assert payloads.count == 499 - number
        assert Mark.looks - looks <= 2
        looks = Mark.looks
    assert own_room.left == 1 << 20


class Mark(int):
    """Counts how often it is compared."""

    looks = 0

    def __ge__(self, other: object) -> bool:
        Mark.looks += 1
        return int(self) >= int(other)  # type: ignore[call-overload,no-any-return]


def test_a_number_of_another_generation_is_another_append() -> None:
    """Only the whole request id tells whose transaction it is."""
    desk = reading()
    (request,) = appended(desk, "a")
    other = request.req_id[:4] + (77).to_bytes(4, "big") + request.req_id[8:]
    desk.send(own(request, 1).__class__(other, 1, 0))
    assert fetched(desk, 1) == {}
    assert asked(desk) == [1]


def test_what_is_on_its_way_from_a_server_is_not_waited_for() -> None:
    """Somebody has asked for the transaction before the feed had it."""
    desk = reading()
    (request,) = appended(desk, "a")
    assert fetched(desk, 1) == {}
    desk.send(own(request, 1))
    assert fetched(desk, 1) == {1: b"'a'"}
    assert A in desk.conns[desk.conn(Kind.RPC)]

"""Payloads of consecutive transactions are asked for as one range where the server knows codec 5."""

from __future__ import annotations

import zlib

import pytest

from tests.payloads import numbered
from tests.unit.client.desk import A, Desk
from waltz_core.base.edge import CloseConn
from waltz_core.base.ids import ReqId
from waltz_core.base.log import Record
from waltz_core.client.calls import Fetch, Fetched, Forget, Unfetchable
from waltz_core.client.link import Kind
from waltz_core.client.settings import ClientSettings
from waltz_core.wire.client_messages import (
    ErrorCode,
    ErrorResponse,
    RecordRangeRequest,
    RecordRangeResponse,
    TransactionDataRequest,
    TransactionDataResponse,
)

RPC = Kind.RPC


def payload(transaction_id: int) -> bytes:
    return b"payload %d" % transaction_id


def signed_crc(data: bytes) -> int:
    found = zlib.crc32(data)
    return found - (1 << 32) if found >= 1 << 31 else found


def answer(request: RecordRangeRequest, ids: range, *, damaged: bool = False) -> RecordRangeResponse:
    records = tuple(Record(one, ReqId(bytes(16)), 0, payload(one), signed_crc(payload(one)) ^ damaged) for one in ids)
    return RecordRangeResponse(request.req_id, 0, 10_000, records)


def asked(desk: Desk) -> list[range]:
    """What was asked for since the last look, singles as ranges of one."""
    return [
        range(one.first_id, one.last_id + 1)
        if isinstance(one, RecordRangeRequest)
        else range(one.transaction_id, one.transaction_id + 1)
        for one in desk.take(RPC)
    ]


def fetched(desk: Desk) -> list[int]:
    """Ids whose payload arrived, in order, once each."""
    found = [one for effect in desk.told if isinstance(effect, Fetched) for one in numbered(effect.payloads)]
    assert all(data == payload(one) for one, data in found)
    return [one for one, _ in found]


def reading(ids: list[int], settings: ClientSettings | None = None) -> Desk:
    desk = Desk(settings=settings)
    desk.step(Fetch(0, tuple(ids)))
    desk.connect()
    return desk


def test_a_run_of_ids_is_one_request_and_its_answer_is_every_payload() -> None:
    desk = reading([*range(10, 30), 40, 41, 50])
    (run, *singles) = desk.take(RPC)
    assert (run.first_id, run.last_id, run.count_max, run.headers_only) == (10, 29, 20, False)
    assert [one.transaction_id for one in singles] == [40, 41, 50], "short runs go one by one"
    desk.send(answer(run, range(10, 30)), kind=RPC)
    assert fetched(desk) == [*range(10, 30)]
    assert desk.take(RPC) == []


def test_requests_under_way_are_bounded_in_transactions() -> None:
    desk = reading([*range(2_000)], ClientSettings(fetch_in_flight_max=1_100))
    first, second = requests = desk.take(RPC)
    assert [range(one.first_id, one.last_id + 1) for one in requests] == [range(1_024), range(1_024, 1_100)]
    desk.send(answer(second, range(1_024, 1_100)), kind=RPC)
    assert asked(desk) == [range(1_100, 1_176)]
    desk.send(answer(first, range(1_024)), kind=RPC)
    assert asked(desk) == [range(1_176, 2_000)]


def test_no_more_is_asked_for_than_an_answer_holds_if_payloads_are_as_large_as_the_last_ones() -> None:
    desk = reading([*range(5_000)])
    first, second = desk.take(RPC)
    assert [range(one.first_id, one.last_id + 1) for one in (first, second)] == [range(1_024), range(1_024, 2_048)]
    for request, size, expected in (
        (first, (1 << 18) - 40, [range(1, 5), range(5, 9)]),
        (second, 2 * (1 << 20), [range(1_025, 1_029)]),
    ):
        data = bytes(size)
        record = Record(request.first_id, ReqId(bytes(16)), 0, data, signed_crc(data))
        desk.send(RecordRangeResponse(request.req_id, 0, 10_000, (record,)), kind=RPC)
        assert asked(desk)[: len(expected)] == expected


def test_each_request_that_is_owed_is_listed_with_its_time() -> None:
    """Ranges and single ones; what is asked anew counts from then on."""
    desk = reading([1, 3, *range(10, 20)])
    owed = [(read.first_id, read.count, read.since_ms) for read in desk.node.owed(desk.now + 700)]
    assert sorted(owed) == [(1, 1, 700), (3, 1, 700), (10, 10, 700)]
    assert {(read.partition, read.server, read.what) for read in desk.node.owed(desk.now)} == {(0, A, "payloads")}
    (request,) = [one for one in desk.take(RPC) if isinstance(one, RecordRangeRequest)]
    desk.wait(500)
    desk.send(answer(request, range(10, 14)), kind=RPC)
    owed = [(read.first_id, read.count, read.since_ms) for read in desk.node.owed(desk.now)]
    assert sorted(owed) == [(1, 1, 500), (3, 1, 500), (14, 6, 0)]
    assert desk.node.status(0, desk.now).owed_ms == 500
    desk.cut(RPC)
    assert desk.node.owed(desk.now) == ()


def test_what_an_answer_leaves_out_is_asked_for_next() -> None:
    desk = reading([*range(20)])
    (run,) = desk.take(RPC)
    desk.send(answer(run, range(7)), kind=RPC)
    assert asked(desk) == [range(7, 20)]
    assert fetched(desk) == [*range(7)]


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_IMPLEMENTED, ErrorCode.CORRUPT, ErrorCode.NOT_READY, ErrorCode.BEFORE_START]
)
def test_a_range_that_is_refused_is_asked_for_one_by_one(code: ErrorCode) -> None:
    desk = reading([*range(6)])
    (run,) = desk.take(RPC)
    desk.send(ErrorResponse(run.req_id, code, "no"), kind=RPC)
    singles = desk.take(RPC)
    assert [type(one) for one in singles] == [TransactionDataRequest] * 6
    assert [one.transaction_id for one in singles] == [*range(6)]


def lost(desk: Desk, *, singles: bool = True) -> list[range]:
    """The log begins later: ranges are refused, and payloads alone cannot be read; what was asked for."""
    asked_for = []
    for request in desk.take(RPC):
        if isinstance(request, RecordRangeRequest):
            asked_for.append(range(request.first_id, request.last_id + 1))
            desk.send(ErrorResponse(request.req_id, ErrorCode.BEFORE_START, "begins at 500"), kind=RPC)
        elif singles:
            asked_for.append(range(request.transaction_id, request.transaction_id + 1))
            failed = TransactionDataResponse(request.req_id, request.transaction_id, False, error="gone")
            desk.send(failed, kind=RPC)
    return asked_for


def unfetchable(desk: Desk) -> list[int]:
    told = [effect for effect in desk.told if isinstance(effect, Unfetchable)]
    assert {effect.text for effect in told} <= {"begins at 500"}
    return [effect.transaction_id for effect in told]


def test_what_was_given_up_is_no_longer_asked_for_once_both_ways_of_reading_it_have_failed() -> None:
    desk = reading([*range(6)])
    assert lost(desk) == [range(6)]
    assert unfetchable(desk) == [], "it may be read alone, from a cache"
    assert lost(desk) == [range(one, one + 1) for one in range(6)]
    assert unfetchable(desk) == [0]
    desk.wait(10)
    assert lost(desk) == [range(1, 6)]
    assert lost(desk) == [range(2, 6)], "at once: each of these was read alone before"
    while desk.sent.get((A, RPC)):
        lost(desk)
    desk.wait(10_000)
    lost(desk)
    desk.wait(10_000)
    while desk.sent.get((A, RPC)):
        lost(desk)
        desk.wait(10_000)
    assert unfetchable(desk) == [*range(6)]


def test_of_few_payloads_that_cannot_be_read_the_server_is_asked_why() -> None:
    desk = reading([3, 4, 9])
    desk.wait(10_000)
    for _ in range(20):
        lost(desk)
        desk.wait(10_000)
    assert sorted(unfetchable(desk)) == [3, 4, 9]
    assert desk.take(RPC) == []


def test_a_payload_that_is_read_alone_was_not_given_up() -> None:
    desk = reading([*range(4)])
    lost(desk)
    for request in desk.take(RPC):
        one = request.transaction_id
        desk.send(TransactionDataResponse(request.req_id, one, True, payload(one), signed_crc(payload(one))), kind=RPC)
    assert fetched(desk) == [*range(4)]
    assert unfetchable(desk) == []
    desk.step(Fetch(0, (0,)))
    lost(desk)
    assert unfetchable(desk) == []


def test_nobody_hears_of_a_payload_that_was_given_up_and_is_not_wanted_any_more() -> None:
    desk = reading([*range(4)])
    lost(desk)
    desk.step(Forget(0, (0,)))
    lost(desk)
    assert unfetchable(desk) == []
    desk.wait(10)
    desk.step(Forget(0, range(4)))
    lost(desk)
    assert unfetchable(desk) == []


def test_a_range_that_is_refused_once_the_partition_has_a_new_generation_is_asked_for_one_by_one() -> None:
    desk = reading([*range(6)])
    (run,) = desk.take(RPC)
    desk.change(((A, ((0, 2), (1, 1))),))
    assert desk.take(RPC) == []
    desk.send(ErrorResponse(run.req_id, ErrorCode.NOT_READY, "it opens"), kind=RPC)
    assert [one.transaction_id for one in desk.take(RPC)] == [*range(6)]


def test_an_empty_answer_is_not_asked_for_again_and_again() -> None:
    desk = reading([*range(6)])
    (run,) = desk.take(RPC)
    desk.send(answer(run, range(0)), kind=RPC)
    assert [type(one) for one in desk.take(RPC)] == [TransactionDataRequest] * 6


def test_records_that_were_not_asked_for_are_dropped() -> None:
    desk = reading([*range(6)])
    (run,) = desk.take(RPC)
    desk.send(answer(run, range(3, 40)), kind=RPC)
    assert fetched(desk) == []
    desk = reading([*range(6)])
    (run,) = desk.take(RPC)
    desk.send(answer(run, range(40)), kind=RPC)
    assert fetched(desk) == [*range(6)]


def test_data_that_does_not_match_its_checksum_ends_the_connection() -> None:
    desk = reading([*range(6)])
    (run,) = desk.take(RPC)
    desk.send(answer(run, range(6), damaged=True), kind=RPC)
    assert [type(one) for one in desk.closed] == [CloseConn]
    assert fetched(desk) == []
    desk.cut(RPC, A)
    desk.wait(3_000)
    desk.connect()
    assert asked(desk) == [range(6)]


def test_a_cut_connection_loses_no_id_of_a_range() -> None:
    desk = reading([*range(300)])
    desk.take(RPC)
    desk.cut(RPC, A)
    desk.wait(3_000)
    desk.connect()
    ids = [one for run in asked(desk) for one in run]
    assert ids == [*range(300)]


def test_what_nobody_wants_any_more_is_left_out_of_what_comes_next() -> None:
    desk = reading([*range(1_000)], ClientSettings(fetch_in_flight_max=100))
    (run,) = desk.take(RPC)
    desk.step(Forget(0, tuple(range(50, 600))))
    desk.send(answer(run, range(100)), kind=RPC)
    assert fetched(desk) == [*range(50)]
    assert asked(desk) == [range(600, 700)]


def test_a_run_ends_before_what_nobody_wants_and_another_begins_behind_it() -> None:
    desk = reading([*range(1_000)], ClientSettings(fetch_in_flight_max=100))
    (run,) = desk.take(RPC)
    desk.step(Forget(0, tuple(range(120, 130))))
    desk.send(answer(run, range(100)), kind=RPC)
    assert asked(desk) == [range(100, 120), range(130, 210)]


def test_a_server_of_0_13_2_is_asked_one_by_one() -> None:
    desk = Desk(versions=(0, 1, 2, 3, 4))
    desk.step(Fetch(0, tuple(range(6))))
    desk.connect()
    assert [type(one) for one in desk.take(RPC)] == [TransactionDataRequest] * 6


def test_payloads_that_came_before_a_damaged_one_are_delivered() -> None:
    """Before, they were taken for delivered, and whoever waited for them waited for ever."""
    desk = reading([*range(4), *range(10, 14)])
    first, second = desk.take(RPC)
    desk.send(answer(first, range(4)), answer(second, range(10, 14), damaged=True), kind=RPC)
    assert fetched(desk) == [0, 1, 2, 3]
    desk.wait(3_000)
    desk.connect()
    assert asked(desk) == [range(10, 14)]

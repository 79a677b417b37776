"""Whole records that an application or a proxy reads by ranges."""

from __future__ import annotations

import zlib
from typing import Any

from tests.unit.client.desk import A, Desk
from waltz_core.base.edge import CloseConn
from waltz_core.base.ids import ReqId
from waltz_core.base.log import Record
from waltz_core.client.calls import CloseClient, ForgetRecords, ReadRecords, RecordsCarried
from waltz_core.client.link import Kind
from waltz_core.wire.client_messages import (
    ErrorCode,
    ErrorResponse,
    RecordRangeRequest,
    RecordRangeResponse,
)

RPC = Kind.RPC


def record(transaction_id: int, *, damaged: bool = False) -> Record:
    checksum = zlib.crc32(b"x")
    return Record(transaction_id, ReqId(bytes(16)), 5, b"x", (checksum - (checksum & 1 << 31) * 2) ^ damaged)


def reading(**options: Any) -> Desk:
    """A client that has asked for records 10 to 14, as "a"."""
    desk = Desk(**options)
    desk.step(ReadRecords(0, "a", 10, 5))
    desk.connect()
    return desk


def question(desk: Desk) -> RecordRangeRequest:
    (asked,) = desk.take(RPC)
    assert isinstance(asked, RecordRangeRequest)
    return asked


def test_a_read_is_answered_once_perhaps_with_fewer() -> None:
    desk = reading()
    asked = question(desk)
    assert (asked.first_id, asked.last_id, asked.count_max, asked.headers_only) == (10, 14, 5, False)
    records = (record(10), record(11))
    response = RecordRangeResponse(asked.req_id, 3, 40, records)
    assert desk.send(response, kind=RPC) == [RecordsCarried(0, "a", records, 3)]
    assert desk.send(response, kind=RPC) == []


def test_what_is_refused_for_good_ends_the_read_with_the_reason() -> None:
    desk = reading()
    error = ErrorResponse(question(desk).req_id, ErrorCode.BEFORE_START, "begins at 12")
    assert desk.send(error, kind=RPC) == [RecordsCarried(0, "a", None, -1, error)]
    assert desk.wait(60_000) == []
    assert desk.take(RPC) == []


def test_a_read_that_is_refused_once_the_partition_has_a_new_generation_is_asked_again() -> None:
    desk = reading()
    asked = question(desk)
    desk.change(((A, ((0, 2), (1, 1))),))
    assert desk.send(ErrorResponse(asked.req_id, ErrorCode.NOT_READY, "it opens"), kind=RPC) == []
    desk.wait(1_000)
    assert (question(desk).first_id, desk.closed) == (10, [])


def test_a_server_that_cannot_answer_yet_is_asked_again_and_so_is_the_next_connection() -> None:
    desk = reading()
    desk.send(ErrorResponse(question(desk).req_id, ErrorCode.NOT_READY, "later"), kind=RPC)
    desk.wait(1_000)
    desk.send(RecordRangeResponse(question(desk).req_id, 0, 9, ()), kind=RPC)  # it does not know them yet
    desk.wait(1_000)
    assert question(desk).first_id == 10
    desk.cut(RPC)
    desk.wait(5_000)
    desk.connect()
    asked = question(desk)
    assert desk.send(RecordRangeResponse(asked.req_id, 0, 40, (record(10),)), kind=RPC)


def test_damaged_records_end_the_connection_and_not_the_read() -> None:
    desk = reading()
    told = desk.send(RecordRangeResponse(question(desk).req_id, 0, 40, (record(10, damaged=True),)), kind=RPC)
    assert not [each for each in told if isinstance(each, RecordsCarried)]
    assert any(isinstance(each, CloseConn) for each in desk.closed)
    desk.cut(RPC)
    desk.wait(5_000)
    desk.connect()
    assert question(desk).first_id == 10


def test_who_has_left_is_not_asked_for_and_not_told() -> None:
    desk = reading()
    desk.step(ReadRecords(0, "b", 20, 1))
    first, second = desk.take(RPC)
    desk.step(ForgetRecords(0, "a"), ForgetRecords(1, "never asked"))
    assert desk.send(RecordRangeResponse(first.req_id, 0, 40, (record(10),)), kind=RPC) == []
    records = (record(20),)
    told = desk.send(RecordRangeResponse(second.req_id, 0, 40, records), kind=RPC)
    assert told == [RecordsCarried(0, "b", records, 0)]
    desk.step(ReadRecords(0, "c", 30, 1), ForgetRecords(0, "c"))
    desk.take(RPC)
    desk.cut(RPC)
    desk.wait(5_000)
    desk.connect()
    assert desk.take(RPC) == []


def test_a_server_whose_codec_has_no_ranges_refuses_without_a_word() -> None:
    desk = reading(versions=(0, 1, 2, 3, 4))
    assert desk.take(RPC) == []
    assert RecordsCarried(0, "a", None, -1) in desk.told


def test_nothing_is_read_after_the_end() -> None:
    desk = Desk()
    desk.connect()
    desk.step(CloseClient())
    desk.step(ReadRecords(0, "a", 0, 1), ForgetRecords(0, "a"))
    assert desk.take(RPC) == []


def test_a_server_that_answers_one_read_after_the_other_owes_since_the_last() -> None:
    desk = reading()
    first = question(desk)
    desk.step(ReadRecords(0, "b", 20, 1))
    desk.take(RPC)
    desk.wait(1_000)
    desk.send(RecordRangeResponse(first.req_id, 0, 40, (record(10),)), kind=RPC)
    assert desk.node._partitions.reads_of(desk.now, 0).records.owed_since() == desk.now


def test_each_read_that_is_owed_is_listed_with_its_time() -> None:
    """One that stalls is seen beside others that are answered; nothing of it once its connection is lost."""
    desk = reading()
    first = question(desk)
    desk.wait(1_000)
    desk.step(ReadRecords(0, "b", 20, 1))
    second = question(desk)
    desk.send(RecordRangeResponse(second.req_id, 0, 40, (record(20),)), kind=RPC)
    desk.wait(500)
    owed = desk.node.owed(desk.now)
    assert [(read.what, read.first_id, read.count, read.since_ms) for read in owed] == [("records", 10, 5, 1_500)]
    assert owed[0].heard_ms <= 500
    assert desk.node.status(0, desk.now).owed_ms == 1_500
    desk.send(RecordRangeResponse(first.req_id, 0, 40, (record(10),)), kind=RPC)
    assert desk.node.owed(desk.now) == ()
    assert desk.node.status(0, desk.now).owed_ms == 0

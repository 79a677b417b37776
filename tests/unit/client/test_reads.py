"""Payloads and marks of one partition: the whole outbox of every event."""

from __future__ import annotations

from tests.unit.client.bench import NOW, Bench, req
from waltz_core.base.edge import Level, Report
from waltz_core.base.log import Record
from waltz_core.client.alarms import Due
from waltz_core.client.calls import Fetched
from waltz_core.client.link import Kind
from waltz_core.client.mark_reads import MarkAnswer
from waltz_core.client.reads import PartitionReads
from waltz_core.wire.client_messages import (
    ErrorCode,
    ErrorResponse,
    HighWaterMarkRequest,
    HighWaterMarkResponse,
    RecordRangeRequest,
    RecordRangeResponse,
    TransactionDataRequest,
    TransactionDataResponse,
)
from waltz_core.wire.primitives import checksum_of


class ReadsBench(Bench):
    """The reader of partition 0, on a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = PartitionReads(0, self.context)
        self.link = self.connect(Kind.RPC)
        self.reads.place(NOW, self.link, 1)
        assert self.work() == ([], [])


def data(request: TransactionDataRequest, *, success: bool = True) -> TransactionDataResponse:
    error = None if success else "not now"
    return TransactionDataResponse(
        request.req_id, request.transaction_id, success, b"p" if success else b"", checksum_of(b"p"), error
    )


def test_what_is_wanted_twice_is_asked_for_once_and_delivered_together() -> None:
    bench = ReadsBench()
    payloads = bench.reads.payloads
    payloads.fetch(NOW, (3, 9))
    payloads.fetch(NOW, (9, 3))
    effects, requests = bench.work()
    assert (effects, requests) == ([], [TransactionDataRequest(req(1), 3), TransactionDataRequest(req(2), 9)])
    payloads.data_answered(NOW, data(requests[1]))
    payloads.data_answered(NOW, data(requests[0]))
    assert bench.work() == ([], [])
    payloads.deliver()
    payloads.deliver()
    assert bench.work() == ([Fetched(0, [(9, (b"p",)), (3, (b"p",))])], [])


def test_a_row_of_ids_goes_as_one_range_and_what_is_left_out_is_asked_for_again() -> None:
    bench = ReadsBench()
    payloads = bench.reads.payloads
    payloads.fetch(NOW, range(10, 16))
    assert bench.work() == ([], [RecordRangeRequest(req(1), 10, 15, 6, 0, False)])
    records = tuple(Record(number, req(99), 0, b"d", checksum_of(b"d")) for number in (10, 11))
    payloads.range_answered(NOW, RecordRangeResponse(req(1), 0, 15, records))
    payloads.deliver()
    told = [Fetched(0, [(10, [b"d", b"d"])])]
    assert bench.work() == (told, [RecordRangeRequest(req(2), 12, 15, 4, 0, False)])


def test_a_range_that_is_refused_goes_one_by_one() -> None:
    bench = ReadsBench()
    bench.reads.payloads.fetch(NOW, range(4))
    bench.work()
    no_such = ErrorResponse(req(2), ErrorCode.NOT_READY, "later")
    assert not bench.reads.on_refused(NOW, no_such), "no request with this number"
    assert bench.work() == ([], [])
    bench.reads.place(NOW, bench.link, 2)
    assert bench.reads.on_refused(NOW, ErrorResponse(req(1), ErrorCode.CORRUPT, "lost")), "of the generation before"
    singles = [TransactionDataRequest(req(2 + number, 2), number) for number in range(4)]
    assert bench.work() == ([], singles)


def test_a_payload_that_cannot_be_read_is_asked_for_after_growing_pauses_and_reported_once() -> None:
    bench = ReadsBench()
    payloads, now = bench.reads.payloads, NOW
    payloads.fetch(now, (3,))
    pauses: list[int] = []
    reports = []
    for _ in range(8):
        effects, (request,) = bench.work()
        reports += effects
        if len(pauses) >= 6:  # of a range the server says why
            assert request == RecordRangeRequest(request.req_id, 3, 3, 1, 0, False)
            assert bench.reads.on_refused(now, ErrorResponse(request.req_id, ErrorCode.CORRUPT, "lost"))
            _, (request,) = bench.work()
        payloads.data_answered(now, data(request, success=False))
        due = payloads.again_at
        assert due is not None
        pauses.append(due - now)
        now = due
        payloads.due(now)
    text = "partition 0: the payload of transaction 3 cannot be read: not now; still trying"
    assert reports == [Report(Level.WARNING, text)]
    assert pauses == [10, 20, 40, 80, 160, 320, 640, 1280]


def test_a_cut_connection_is_asked_first_for_what_was_under_way() -> None:
    bench = ReadsBench()
    bench.reads.payloads.fetch(NOW, (7, 3))
    bench.reads.marks.read(NOW, "m")
    bench.work()
    bench.reads.on_link_lost()
    bench.reads.on_link_ready(NOW)
    again = [HighWaterMarkRequest(req(4)), TransactionDataRequest(req(5), 3), TransactionDataRequest(req(6), 7)]
    assert bench.work() == ([], again)


def test_a_mark_answers_calls_that_were_made_before_its_question_left() -> None:
    bench = ReadsBench()
    marks = bench.reads.marks
    marks.read_tail(NOW)
    marks.read(NOW, "late")
    assert bench.work() == ([], [HighWaterMarkRequest(req(1))])
    assert marks.answered(NOW, HighWaterMarkResponse(req(1), 5)) == MarkAnswer(tail=True)
    assert bench.work() == ([], [HighWaterMarkRequest(req(2))])
    assert marks.answered(NOW, HighWaterMarkResponse(req(2), 6)) == MarkAnswer(tokens=("late",))
    assert bench.work() == ([], [])
    assert marks.again_at is None


def test_a_server_that_is_still_opening_is_asked_again_after_a_pause() -> None:
    bench = ReadsBench()
    marks = bench.reads.marks
    marks.read(NOW, "m")
    bench.work()
    assert marks.answered(NOW, HighWaterMarkResponse(req(1), -(2**63))) == MarkAnswer()
    assert marks.again_at == NOW + 500
    marks.due(NOW + 500)
    assert bench.work() == ([], [HighWaterMarkRequest(req(2))])


def test_a_server_that_owes_a_payload_is_suspected_then_given_up() -> None:
    bench = ReadsBench()
    bench.reads.set_alarms(NOW)
    assert bench.context.alarms.next() is None
    bench.reads.payloads.fetch(NOW, (3,))
    bench.reads.set_alarms(NOW)
    assert bench.context.alarms.due(NOW + 60_000) == [(bench.reads, Due.HURRY), (bench.reads, Due.SILENCE)]
    assert bench.reads.hurry_at() == NOW + 3_000
    assert not bench.reads.due(NOW + 29_999, Due.SILENCE)
    assert bench.reads.due(NOW + 30_000, Due.SILENCE)


def test_a_server_that_owes_a_mark_is_suspected_and_only_asked_again() -> None:
    bench = ReadsBench()
    bench.reads.marks.read(NOW, "m")
    bench.work()
    assert bench.reads.hurry_at() == NOW + 3_000
    assert not any(bench.reads.due(NOW + 60_000, due) for due in Due)
    assert bench.work() == ([], [HighWaterMarkRequest(req(2))])

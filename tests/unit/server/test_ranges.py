"""Ranges of records: from the cache where it has them, in turns of the connections, a bounded piece a step."""

from __future__ import annotations

from waltz_core.base.contract import Tickets
from waltz_core.base.ids import make_req_id
from waltz_core.base.log import RECORD_OVERHEAD, Record
from waltz_core.base.turns import Shares
from waltz_core.server.data_cache import DataCache
from waltz_core.server.ranges import COUNT_MAX, SIZE_MAX, Answer, RangeReads
from waltz_core.store.session_notes import ReadFailed, RecordsRead
from waltz_core.wire.client_messages import ErrorCode, ErrorResponse, RecordRangeRequest, RecordRangeResponse


def records(ids: range, partition: int = 3) -> tuple[Record, ...]:
    return tuple(Record(one, make_req_id(1, 1, partition, one), 0, b"%d" % one, 7) for one in ids)


class Desk:
    def __init__(self, cached: range, mark: int) -> None:
        self.held = Shares()
        self.cache = DataCache(1 << 20)
        self.cache.add(3, cached.start, records(cached))
        self.ranges = RangeReads(3, self.cache, Tickets(), self.held)
        self.mark = mark
        self.reads: list[tuple[int, int, int]] = []  # token, first, count

    def ask(
        self, conn: int, first: int, last: int, *, headers: bool = False, size_max: int = 0, count_max: int = 0
    ) -> None:
        request = RecordRangeRequest(make_req_id(conn, 1, 3, first), first, last, count_max, size_max, headers)
        assert self.ranges.ask(conn, f"owner {conn}", request, self.mark) is None

    def at_once(self, first: int, last: int) -> Answer:
        request = RecordRangeRequest(make_req_id(1, 1, 3, 1), first, last, 0, 0, False)
        answer = self.ranges.ask(1, "owner 1", request, self.mark)
        assert answer is not None
        assert self.rests()
        return answer

    def rests(self) -> bool:
        return (self.held.total, self.ranges.waiting, self.ranges.ready) == (0, 0, False)

    def launch(self) -> list[Answer]:
        return self.ranges.launch(self.mark, lambda token, first, count, _: self.reads.append((token, first, count)))


def ids(answer: Answer) -> list[int]:
    assert isinstance(answer[1], RecordRangeResponse)
    return [one.transaction_id for one in answer[1].records]


def test_what_the_cache_holds_is_answered_without_a_read() -> None:
    desk = Desk(range(50, 100), mark=99)
    desk.ask(1, 60, 69)
    desk.ask(1, 95, 200)
    desk.ask(1, 98, 99, size_max=1)
    assert [ids(one) for one in desk.launch()] == [[*range(60, 70)], [*range(95, 100)], [98]]
    assert (desk.reads, desk.held.total, desk.ranges.waiting) == ([], 0, 0)


def test_what_it_lacks_is_read_and_does_not_go_into_it() -> None:
    desk = Desk(range(50, 100), mark=99)
    desk.ask(1, 40, 60)
    desk.ask(1, 50, 60, headers=True)
    assert desk.launch() == []
    assert [read[1:] for read in desk.reads] == [(40, 21), (50, 11)]
    assert desk.cache.misses == 21, "payloads that had to be read"
    answer = desk.ranges.done(RecordsRead(desk.reads[0][0], records(range(40, 61))), desk.mark)
    assert answer is not None
    assert ids(answer) == [*range(40, 61)]
    assert desk.cache.get(3, 40) is None


def test_one_step_gives_out_a_bounded_number_and_the_rest_is_wanted_at_once() -> None:
    desk = Desk(range(600), mark=599)
    for _ in range(10):
        desk.ask(1, 0, 599)
    assert len(desk.launch()) == 2
    assert desk.ranges.ready
    while desk.ranges.ready:
        assert 0 < len(desk.launch()) <= 2
    assert desk.ranges.waiting == 0


def test_connections_take_turns_at_the_cache_too() -> None:
    desk = Desk(range(600), mark=599)
    for _ in range(50):
        desk.ask(1, 0, 599)
    desk.ask(2, 0, 9)
    first = desk.launch() + desk.launch()
    assert 2 in [conn for conn, _ in first], "a flood delays others by a turn or two"


def refused(answer: Answer | None) -> tuple[int, ErrorCode, str]:
    assert answer is not None
    assert isinstance(answer[1], ErrorResponse)
    return answer[0], ErrorCode(answer[1].code), answer[1].message or ""


def test_what_needs_no_read_is_answered_at_once() -> None:
    desk = Desk(range(0), mark=99)
    desk.ranges.log_start = desk.ranges.floor = 20
    desk.ranges.where_before = "s3://old"
    assert refused(desk.at_once(-1, 5)) == (1, ErrorCode.INVALID, "expected a first id of 0 or more, found -1")
    where = "transaction 19 was given up here: the log begins at 20; what is before it stands in the archive s3://old"
    assert refused(desk.at_once(19, 30)) == (1, ErrorCode.BEFORE_START, where)
    for first, last in ((100, 200), (50, 49)):
        answer = desk.at_once(first, last)
        assert ids(answer) == []
        assert isinstance(answer[1], RecordRangeResponse)
        assert (answer[1].log_start, answer[1].high_water_mark) == (20, 99)
    desk.ask(1, 20, 20)
    desk.ask(1, 99, 99)
    desk.launch()
    assert [read[1:] for read in desk.reads] == [(20, 1), (99, 1)]


def test_what_is_given_up_while_it_waits_is_told_so_and_is_not_called_damaged() -> None:
    desk = Desk(range(0), mark=99)
    desk.ask(1, 5, 9)
    desk.launch()
    desk.ask(2, 6, 9)
    desk.ask(3, 20, 30)
    desk.ranges.log_start = desk.ranges.floor = 20
    (waited,) = desk.launch()
    text = "was given up here: the log begins at 20"
    assert refused(waited) == (2, ErrorCode.BEFORE_START, f"transaction 6 {text}")
    assert [read[1:] for read in desk.reads] == [(5, 5), (20, 11)]
    failed = desk.ranges.failed(ReadFailed(desk.reads[0][0], "no replica that holds it is connected"), final=True)
    assert refused(failed) == (1, ErrorCode.BEFORE_START, f"transaction 5 {text}")
    assert desk.held.total == 1


def test_a_read_that_fails_is_the_answer_only_if_no_later_session_can_do_better() -> None:
    desk = Desk(range(0), mark=99)
    desk.ask(1, 5, 9)
    desk.launch()
    assert desk.ranges.failed(ReadFailed(desk.reads[0][0], "the session ended"), final=False) is None
    assert desk.held.total == 1
    desk.launch()
    assert [read[1:] for read in desk.reads] == [(5, 5), (5, 5)]
    failed = desk.ranges.failed(ReadFailed(desk.reads[1][0], "all copies are damaged"), final=True)
    assert refused(failed) == (1, ErrorCode.CORRUPT, "all copies are damaged")
    desk.ask(1, 5, 9)
    desk.launch()
    away = ReadFailed(desk.reads[2][0], "the archive is away", for_now=True)
    assert refused(desk.ranges.failed(away, final=True)) == (1, ErrorCode.NOT_READY, "the archive is away")
    assert desk.rests()


def test_so_many_reads_are_under_way_and_those_for_connections_that_have_gone_count() -> None:
    desk = Desk(range(0), mark=99)
    for first in range(20):
        desk.ask(1, first, first)
    desk.launch()
    assert len(desk.reads) == 8
    desk.ranges.gone(1)
    desk.held.drop(1)  # as the port does, of all that the connection held
    desk.ask(2, 50, 50)
    assert desk.launch() == []
    assert (len(desk.reads), desk.ranges.ready, desk.ranges.waiting) == (8, False, 9)
    token, first, _ = desk.reads[0]
    assert desk.ranges.done(RecordsRead(token, records(range(first, first + 1))), desk.mark) is None
    assert desk.ranges.failed(ReadFailed(desk.reads[1][0], "the session ended"), final=False) is None
    desk.launch()
    assert [read[1:] for read in desk.reads[8:]] == [(50, 1)]
    answer = desk.ranges.done(RecordsRead(desk.reads[8][0], records(range(50, 51))), desk.mark)
    assert answer is not None
    assert (answer[0], ids(answer), desk.held.total) == (2, [50], 0)


def test_a_partition_that_goes_tells_whoever_waits() -> None:
    desk = Desk(range(0), mark=99)
    for first in range(10):
        desk.ask(1, first, first)
    desk.launch()
    told = [(conn, error.code) for conn, error in desk.ranges.close() if isinstance(error, ErrorResponse)]
    assert told == [(1, ErrorCode.NOT_SERVED)] * 10
    assert desk.held.total == 0
    for token, first, _ in desk.reads:
        assert desk.ranges.done(RecordsRead(token, records(range(first, first + 1))), desk.mark) is None
    assert desk.rests()


def test_nothing_is_read_for_a_connection_that_takes_no_data() -> None:
    desk = Desk(range(0), mark=99)
    desk.ranges.writable(1, False)
    desk.ask(1, 1, 1)
    assert not desk.ranges.ready
    desk.ask(2, 2, 2)
    desk.launch()
    desk.ranges.writable(1, True)
    desk.launch()
    assert [read[1:] for read in desk.reads] == [(2, 1), (1, 1)]


def test_an_answer_holds_no_more_than_it_may_and_at_least_a_record() -> None:
    desk = Desk(range(0), mark=4 * COUNT_MAX)
    for count_max in (0, 7, 2 * COUNT_MAX):
        desk.ask(1, 0, 3 * COUNT_MAX, count_max=count_max)
    desk.launch()
    assert [count for _, _, count in desk.reads] == [COUNT_MAX, 7, COUNT_MAX]
    large = tuple(Record(each, make_req_id(1, 1, 3, each), 0, bytes(SIZE_MAX // 2), 7) for each in range(5))
    for size_max, held in ((0, 1), (10, 1), (SIZE_MAX, 1), (2 * SIZE_MAX, 1)):
        desk.reads.clear()
        desk.ask(2, 0, 4, size_max=size_max)
        desk.launch()
        answer = desk.ranges.done(RecordsRead(desk.reads[0][0], large), desk.mark)
        assert answer is not None
        assert len(ids(answer)) == held, size_max
    for size_max, held in ((3 * (RECORD_OVERHEAD + 1), 3), (3 * (RECORD_OVERHEAD + 1) - 1, 2)):
        desk.reads.clear()
        desk.ask(2, 0, 4, size_max=size_max)
        desk.launch()
        answer = desk.ranges.done(RecordsRead(desk.reads[0][0], records(range(5))), desk.mark)
        assert answer is not None
        assert len(ids(answer)) == held, size_max

"""Ranges of records: from the cache where it has them, in turns of the connections, a bounded piece a step."""

from __future__ import annotations

from waltz_core.base.contract import Tickets
from waltz_core.base.ids import make_req_id
from waltz_core.base.log import Record
from waltz_core.base.turns import Shares
from waltz_core.server.data_cache import DataCache
from waltz_core.server.ranges import Answer, RangeReads
from waltz_core.store.session_notes import RecordsRead
from waltz_core.wire.client_messages import RecordRangeRequest, RecordRangeResponse


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

    def ask(self, conn: int, first: int, last: int, *, headers: bool = False, size_max: int = 0) -> None:
        request = RecordRangeRequest(make_req_id(conn, 1, 3, first), first, last, 0, size_max, headers)
        assert self.ranges.ask(conn, f"owner {conn}", request, self.mark) is None

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

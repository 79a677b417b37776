"""Payloads that clients ask for: one read for all who ask, in turns, and nothing kept for who has gone."""

from __future__ import annotations

from waltz_core.base.contract import Tickets
from waltz_core.base.ids import make_req_id
from waltz_core.base.log import Record
from waltz_core.base.turns import Shares
from waltz_core.server.data_cache import DataCache
from waltz_core.server.fetches import Answer, DataFetches
from waltz_core.store.session_notes import ReadFailed, RecordsRead

MARK = 99


def records(ids: range) -> tuple[Record, ...]:
    return tuple(Record(each, make_req_id(1, 1, 3, each), 0, b"%d" % each, 7) for each in ids)


class Desk:
    def __init__(self) -> None:
        self.held = Shares()
        self.cache = DataCache(1 << 20)
        self.fetches = DataFetches(3, self.cache, Tickets(), self.held)
        self.reads: list[tuple[int, int, int]] = []  # token, first, count

    def ask(self, conn: int, *ids: int) -> None:
        for each in ids:
            assert self.fetches.ask(conn, f"owner {conn}", make_req_id(conn, 1, 3, each), each) is None

    def launch(self) -> list[Answer]:
        return self.fetches.launch(MARK, lambda token, first, count: self.reads.append((token, first, count)))

    def rests(self) -> bool:
        return not self.fetches.waiting and not self.held.total


def answered(answers: list[Answer]) -> list[tuple[int, int, bool]]:
    return [(conn, answer.transaction_id, answer.success) for conn, answer in answers]


def test_what_the_cache_holds_is_answered_at_once() -> None:
    desk = Desk()
    desk.cache.add(3, 5, records(range(5, 6)))
    answer = desk.fetches.ask(1, "owner", make_req_id(1, 1, 3, 5), 5)
    assert answer is not None
    assert (answer.success, answer.data) == (True, b"5")
    assert desk.rests()


def test_adjacent_ids_are_one_read_which_answers_everybody_and_fills_the_cache() -> None:
    desk = Desk()
    desk.ask(1, 10, 11, 20)
    desk.ask(2, 11)
    assert desk.launch() == []
    assert [read[1:] for read in desk.reads] == [(10, 2), (20, 1)]
    answers = desk.fetches.records(RecordsRead(desk.reads[0][0], records(range(10, 12))))
    assert answered(answers) == [(1, 10, True), (1, 11, True), (2, 11, True)]
    assert desk.cache.get(3, 11) is not None
    assert desk.fetches.waiting == 1


def test_what_a_read_did_not_bring_is_read_again_and_so_is_all_after_a_session() -> None:
    desk = Desk()
    desk.ask(1, 10, 11)
    desk.launch()
    assert answered(desk.fetches.records(RecordsRead(desk.reads[0][0], records(range(10, 11))))) == [(1, 10, True)]
    desk.launch()
    assert desk.fetches.failed(ReadFailed(desk.reads[1][0], "the session ended"), final=False) == []
    desk.launch()
    assert [read[1:] for read in desk.reads] == [(10, 2), (11, 1), (11, 1)]
    answers = desk.fetches.failed(ReadFailed(desk.reads[2][0], "no replica has it"), final=True)
    assert [(conn, answer.error) for conn, answer in answers] == [(1, "no replica has it")]
    assert desk.rests()


def test_a_record_that_nobody_can_read_costs_nobody_those_behind_it() -> None:
    """Both are asked for in one read, which fails at the damaged record."""
    desk = Desk()
    desk.ask(1, 7)
    desk.ask(2, 8, 9)
    desk.launch()
    answers = desk.fetches.failed(ReadFailed(desk.reads[0][0], "damaged"), final=True)
    assert [(conn, answer.transaction_id, answer.error) for conn, answer in answers] == [(1, 7, "damaged")]
    desk.launch()
    assert [read[1:] for read in desk.reads] == [(7, 3), (8, 2)]
    assert answered(desk.fetches.records(RecordsRead(desk.reads[1][0], records(range(8, 10))))) == [
        (2, 8, True),
        (2, 9, True),
    ]
    assert desk.rests()


def test_a_record_that_is_away_for_now_costs_nobody_those_behind_it() -> None:
    """Clients ask for what was refused at the same time again, so those behind it were never delivered."""
    desk = Desk()
    desk.ask(1, *range(10, 20))
    desk.launch()
    answers = desk.fetches.failed(ReadFailed(desk.reads[0][0], "one replica is off", for_now=True), final=True)
    assert answered(answers) == [(1, 10, False)]
    desk.launch()
    assert [read[1:] for read in desk.reads] == [(10, 10), (11, 9)]


def test_where_all_is_away_it_is_refused_to_all_who_asked_in_one_read() -> None:
    """The last of 256 waited for as many reads of an archive that hung: for hours."""
    desk = Desk()
    desk.ask(1, 7)
    desk.ask(2, 8, 9)
    desk.launch()
    answers = desk.fetches.failed(ReadFailed(desk.reads[0][0], "away", for_now=True, whole=True), final=True)
    assert [(conn, answer.transaction_id, answer.error) for conn, answer in answers] == [
        (1, 7, "away"),
        (2, 8, "away"),
        (2, 9, "away"),
    ]
    assert len(desk.reads) == 1
    assert desk.rests()


def test_an_id_outside_the_log_is_refused_without_a_read() -> None:
    desk = Desk()
    desk.ask(1, MARK + 1)
    assert answered(desk.launch()) == [(1, MARK + 1, False)]
    assert desk.reads == []
    assert desk.rests()


def test_nothing_waits_for_a_connection_that_has_gone() -> None:
    desk = Desk()
    desk.ask(1, *range(30))
    desk.ask(2, 7)
    desk.launch()
    desk.ask(1, *range(40, 60))
    desk.fetches.gone(1)
    desk.held.drop(1)  # as the port does, of all that the connection held
    assert (desk.fetches.waiting, desk.held.total) == (1, 1)
    assert answered(desk.fetches.records(RecordsRead(desk.reads[0][0], records(range(30))))) == [(2, 7, True)]
    assert desk.rests()


def test_a_partition_that_goes_tells_whoever_waits() -> None:
    """It may come back to the same server: who was told nothing would wait for the answer over a sound connection."""
    desk = Desk()
    desk.ask(1, 1, 2)
    desk.launch()
    desk.ask(2, 3)
    assert sorted(answered(desk.fetches.close())) == [(1, 1, False), (1, 2, False), (2, 3, False)]
    assert desk.rests()
    assert desk.fetches.close() == []


def test_nothing_is_read_for_a_connection_that_takes_no_data() -> None:
    desk = Desk()
    desk.fetches.writable(1, False)
    desk.ask(1, 1)
    desk.ask(2, 2)
    desk.launch()
    assert [read[1:] for read in desk.reads] == [(2, 1)]
    desk.fetches.writable(1, True)
    desk.launch()
    assert [read[1:] for read in desk.reads] == [(2, 1), (1, 1)]

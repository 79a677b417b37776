"""What a partition writes to its decision journal, what waits for it, and what becomes of failures."""

from __future__ import annotations

from tests.lock_names import pack_names
from waltz_core.base.contract import Tickets
from waltz_core.base.edge import Level, Report
from waltz_core.base.ids import make_req_id
from waltz_core.base.lock import Conflict, LockKind
from waltz_core.base.outbox import Outbox
from waltz_core.locks.exact import Explanation
from waltz_core.server.append_queue import Run, Sender
from waltz_core.server.appender import Flight, Refused
from waltz_core.server.journal import Journal, JournalFailed, Journals, JournalWrite, JournalWritten
from waltz_core.server.journal_format import (
    CommittedRange,
    Decision,
    Entry,
    Gap,
    Mode,
    SessionOpened,
    decode_entries,
)
from waltz_core.store.replica_link import Batch
from waltz_core.wire.client_messages import AppendRequest, NamedAppendRequest, Refusal

NAMES = pack_names([("stock", 9)])


def append(sequence: int, size: int = 1) -> NamedAppendRequest:
    return NamedAppendRequest(make_req_id(7, 1, 0, sequence), 4, (9,), (), (), 3, bytes(size), 0, NAMES)


class Desk:
    """A journal and the disk under it."""

    def __init__(self, mode: Mode) -> None:
        common = Journals(mode, unwritten_max=10_000)
        common.wall_offset = 1_000
        self.outbox: Outbox[JournalWrite | Report] = Outbox()
        journal = common.of(0, Tickets(), self.outbox)
        assert journal is not None
        self.journal: Journal = journal
        self.now = 0
        self.next_id = 5
        self.reports: list[Report] = []

    def launch(self, count: int = 1) -> bool:
        flight = Flight(self.next_id)
        for at in range(count):
            flight.appends.append(append(self.next_id + at))
            flight.put(Run(Sender(1, 7), flight.appends[-1:], self.now), 1, 0)
            flight.marks[self.next_id + at] = 2
        batch = Batch(self.next_id, count, b"")
        self.next_id += count
        return self.journal.launched(self.now, 77, batch, flight)

    def flush(self) -> list[JournalWrite]:
        self.journal.flush(self.now)
        out = self.outbox.take()
        writes = [effect for effect in out if isinstance(effect, JournalWrite)]
        assert len(writes) == len(out)
        return writes

    def write(self) -> JournalWrite:
        (write,) = self.flush()
        return write

    def answer(self, write: JournalWrite, failure: str = "") -> None:
        event = JournalFailed(write.ticket, failure) if failure else JournalWritten(write.ticket)
        self.journal.answered(self.now, event)
        self.reports += [effect for effect in self.outbox.take() if isinstance(effect, Report)]

    def ready(self) -> list[int]:
        return [batch.first for batch in self.journal.ready()]


def entries(write: JournalWrite) -> list[Entry]:
    return [entry for _, entry in decode_entries(write.data, "")]


def test_no_journal_costs_nothing() -> None:
    assert Journals(Mode.OFF).of(0, Tickets(), Outbox()) is None


def test_everything_of_a_step_is_one_write() -> None:
    desk = Desk(Mode.SYNC)
    desk.journal.session_opened(0, 77, 1, 4)
    desk.launch(2)
    desk.now = 3
    why = Explanation(LockKind.WRITE, 0, 9, Conflict.TRUE, 5)
    desk.journal.lock_refused(3, 77, Refused(1, append(50), 5, why, 2))
    plain = AppendRequest(make_req_id(7, 1, 0, 51), -1, (), (), (), 0, b"", 0)
    desk.journal.refused(3, 77, [plain], Refusal.GENERATION)
    desk.journal.committed(3, 77, 5, 6)
    write = desk.write()
    opened, first, second, refused, other, committed = entries(write)
    assert write.sync
    assert opened == SessionOpened(77, 1, 4, 1_000_000)
    assert isinstance(first, Decision)
    assert isinstance(second, Decision)
    assert (first.transaction_id, second.transaction_id, first.lock_mark, first.verdict) == (5, 6, 2, 0)
    assert (first.write_locks, first.names, first.size) == ((9,), NAMES, 1)
    assert (first.received_us, first.decided_us) == (1_000_000, 1_000_000)
    assert isinstance(refused, Decision)
    assert (refused.transaction_id, refused.verdict, refused.lock_mark, refused.blocking_id) == (-1, 1, 5, 5)
    assert (refused.received_us, refused.decided_us) == (1_002_000, 1_003_000)
    assert isinstance(other, Decision)
    assert (other.verdict, other.req_id) == (Refusal.GENERATION, plain.req_id)
    assert committed == CommittedRange(77, 5, 6, 1_003_000)
    assert desk.flush() == []


def test_in_sync_nothing_leaves_before_its_decision_and_all_earlier_ones_are_on_disk() -> None:
    desk = Desk(Mode.SYNC)
    assert not desk.launch()
    first = desk.write()
    assert not desk.launch()
    second = desk.write()
    desk.answer(second)
    assert desk.ready() == []
    desk.answer(first)
    assert desk.ready() == [5, 6]
    assert desk.journal.written == 2


def test_in_async_everything_leaves_at_once() -> None:
    desk = Desk(Mode.ASYNC)
    assert desk.launch()
    write = desk.write()
    assert not write.sync
    desk.answer(write)
    assert (desk.journal.written, desk.ready()) == (1, [])


def test_what_a_session_has_not_sent_is_forgotten_with_it_and_its_decisions_stay() -> None:
    desk = Desk(Mode.SYNC)
    desk.launch()
    first = desk.write()
    desk.launch()
    desk.journal.session_ended()
    second = desk.write()
    desk.answer(first)
    desk.answer(second)
    assert desk.ready() == []
    assert desk.journal.written == 2


def test_in_sync_a_full_disk_stops_appends_says_why_and_is_tried_again_in_order() -> None:
    desk = Desk(Mode.SYNC)
    desk.launch()
    first = desk.write()
    desk.launch()
    second = desk.write()
    desk.answer(first, "no space")
    desk.answer(second)
    assert desk.journal.blocked
    assert desk.journal.refusal == "the decision journal cannot be written: no space"
    assert [report.level for report in desk.reports] == [Level.ERROR]
    assert desk.ready() == []
    assert desk.flush() == []
    desk.now = due = desk.journal.deadline() or 0
    assert due == 1_000
    again = desk.write()
    assert again.data == first.data
    desk.answer(again)
    assert not desk.journal.blocked
    assert desk.ready() == [5, 6]
    assert [report.level for report in desk.reports] == [Level.ERROR, Level.INFO]
    assert desk.journal.dropped == 0


def test_in_sync_refusals_while_the_disk_is_full_are_counted_and_leave_a_gap() -> None:
    desk = Desk(Mode.SYNC)
    desk.launch()
    desk.answer(desk.write(), "no space")
    desk.journal.refused(0, 77, [append(60), append(61)], Refusal.GENERATION)
    desk.now = 1_000
    desk.answer(desk.write())
    desk.journal.committed(desk.now, 77, 5, 5)
    gap, committed = entries(desk.write())
    assert gap == Gap(2, 1_000_000, 1_000_000, "no space")
    assert isinstance(committed, CommittedRange)
    assert desk.journal.dropped == 2


def test_in_sync_too_much_on_its_way_holds_appends_back_without_a_word() -> None:
    desk = Desk(Mode.SYNC)
    sent = []
    while not desk.journal.blocked:
        desk.launch(20)
        sent.append(desk.write())
    assert sum(len(write.data) for write in sent) > 10_000
    assert desk.journal.refusal == ""
    for write in sent:
        desk.answer(write)
    desk.ready()
    assert not desk.journal.blocked


def test_in_async_a_failed_write_is_a_counted_gap_also_when_the_gap_cannot_be_written() -> None:
    desk = Desk(Mode.ASYNC)
    desk.launch(3)
    desk.answer(desk.write(), "no space")
    desk.now = 500
    desk.launch(2)
    desk.answer(desk.write(), "no space")
    desk.now = 900
    desk.launch(1)
    write = desk.write()
    gap, decision = entries(write)
    assert gap == Gap(5, 1_000_000, 1_500_000, "no space")
    assert isinstance(decision, Decision)
    assert [report.level for report in desk.reports] == [Level.ERROR]
    desk.answer(write)
    assert (desk.journal.written, desk.journal.dropped) == (1, 5)
    assert not desk.journal.blocked


def test_in_async_each_decision_that_is_lost_is_counted_once() -> None:
    """Also where a gap could not be written, and another one had begun behind it."""
    desk = Desk(Mode.ASYNC)
    desk.launch(3)
    desk.answer(desk.write(), "no space")
    desk.launch(2)
    with_gap = desk.write()
    desk.launch(1)
    desk.answer(desk.write(), "no space")
    desk.answer(with_gap, "no space")
    assert desk.journal.dropped == 6
    desk.launch(1)
    gap, _ = entries(desk.write())
    assert isinstance(gap, Gap)
    assert gap.count == 6


def test_in_async_a_disk_that_is_too_slow_costs_decisions_and_no_memory() -> None:
    desk = Desk(Mode.ASYNC)
    sent: list[JournalWrite] = []
    while desk.journal.dropped == 0:
        desk.launch(20)
        sent += desk.flush()
    assert desk.journal.dropped == 20
    for write in sent:
        desk.answer(write)
    desk.launch(1)
    gap, _ = entries(desk.write())
    assert isinstance(gap, Gap)
    assert (gap.count, gap.reason) == (20, "the disk is too slow")


def test_in_sync_what_nothing_waits_for_is_forgotten_once_written_also_without_a_session() -> None:
    """A partition that is not open refuses appends for as long as it takes; nobody asks what is ready meanwhile."""
    desk = Desk(Mode.SYNC)
    for sequence in range(300):
        desk.journal.refused(0, -1, [append(sequence)], Refusal.GENERATION)
        desk.answer(desk.write())
    assert not desk.journal.blocked
    assert desk.journal.waiting == 0


def test_in_sync_what_an_ended_session_left_is_forgotten_once_written() -> None:
    desk = Desk(Mode.SYNC)
    desk.launch()
    first = desk.write()
    desk.launch()
    second = desk.write()
    desk.answer(second)  # before the first: its batch must wait
    assert desk.journal.waiting == 2
    desk.journal.session_ended()
    assert desk.journal.waiting == 1
    desk.answer(first)
    assert desk.journal.waiting == 0
    assert desk.journal.written == 2

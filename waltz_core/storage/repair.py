"""Repair of a partition: damaged records are fetched from the admin ports of other nodes and written in place.

A record counts if it comes from a node that verified it against its own checksum, or if two nodes agree on every
byte of it; and only from a node whose log is known to equal ours up to that record.

    sources are dialed, and say what session they hold
      └──► survey ──nothing damaged──────────────────────────► record what is left ──► ended
             ▲   └──► for each damaged range: fetch from all sources ──► choose ──► mend
             └────────────── something was mended ──────────────────────────────────┘

It continues as long as a round mends something: records behind a damaged one may come to light only once that one is
whole. A source that does not answer in time is dropped; all the others are waited for, since two that agree count.

The repair owns its connections and what it has learned; the replica owns the files, does one piece of work at a time in
its lane, and answers with notes. A crash in between loses nothing: each mended run is synced and read again before it
counts, and nothing intact is ever overwritten.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Protocol, TypeAlias

from waltz_core.base.alarms import SetsAlarms
from waltz_core.base.edge import Closed
from waltz_core.base.log import Record, SessionInfo
from waltz_core.base.record import record
from waltz_core.storage.notes import AnswersDue, Mended, Range, RepairNote, RepairRecorded, Surveyed
from waltz_core.wire import admin_messages as admin
from waltz_core.wire.admin_link import AdminLink
from waltz_core.wire.admin_messages import RepairedRange, RepairOutcome
from waltz_core.wire.dialer import DialState
from waltz_core.wire.shared import IdRange

ANSWER_MS = 10_000  # a source that leaves a request unanswered for so long is dropped
_FETCH_COUNT = 500  # records asked for at once; nodes of ours cut their answers by bytes
_FETCH_COUNT_JAVA = 20  # the same of 0.13.2, which does not; as many as its own recovery asks for
_ROUNDS_MAX = 10_000  # surveys of one repair; each must have mended something
_RANGES_MAX = 1000  # in the answer


class Mendable(Protocol):
    """The replica, as far as a repair is concerned; each of the last three is answered by a `RepairNote`."""

    def session_info(self) -> SessionInfo:
        """Its persisted session and marks."""

    def survey(self) -> None:
        """Give the ranges of damaged records."""

    def mend(self, records: Sequence[Record], last: int) -> None:
        """Write records over damaged ones up to `last`."""

    def record_repair(self) -> None:
        """What could be mended was: open again if out of service."""


class _Source:
    __slots__ = ("answer", "info", "link", "waits_for")

    def __init__(self, link: AdminLink) -> None:
        self.link = link
        self.info: SessionInfo | None = None
        self.waits_for: int | None = None  # sequence number
        self.answer: Sequence[Record] = ()

    @property
    def gone(self) -> bool:
        return self.link.over

    @property
    def settled(self) -> bool:
        """Nothing is expected of it."""
        return self.gone or (self.info is not None and self.waits_for is None)


@record
class _Survey:
    """Which records are damaged?"""


@record
class _Fetch:
    """Ask all sources for records."""

    first: int
    count: int


@record
class _Mend:
    """Write good records over damaged ones."""

    records: Sequence[Record]
    last: int


@record
class _Record:
    """All that could be mended was."""


_Work: TypeAlias = _Survey | _Fetch | _Mend | _Record


@record
class RepairResult:
    """How a repair ended."""

    ranges: tuple[RepairedRange, ...]
    problem: str  # why not all of it could be repaired; empty if it could


class Repair:
    """One repair of one partition. The owner hands in connection events and notes, and calls `run` once per step."""

    def __init__(
        self,
        partition_id: int,
        replica: Mendable,
        links: Sequence[AdminLink],
        wanted: Sequence[IdRange],
        alarms: SetsAlarms[AnswersDue],
        now: int,
    ) -> None:
        self.partition_id = partition_id
        self.result: RepairResult | None = None  # once it has ended
        self._replica = replica
        self._sources = [_Source(link) for link in links]
        self._wanted = [(one.first_id, one.last_id) for one in wanted]
        self._alarms = alarms
        self._alarm = AnswersDue(partition_id)
        self._outcomes: dict[int, int] = {}  # first id → index in `_ranges`, of what was reported
        self._ranges: list[RepairedRange] = []
        self._message = ""
        self._work = self._procedure()
        self._fetching: _Fetch | None = None
        self._answers: list[Any] = []  # for the procedure, at most one
        self._started = False
        alarms.set(self._alarm, now + ANSWER_MS)

    def conns(self) -> list[int]:
        """Connections of this repair."""
        return [source.link.conn for source in self._sources if source.link.conn is not None]

    # ---- events ----------------------------------------------------------------------------------

    def dialed(self, now: int, conn: int) -> None:
        """A source is reached."""
        self._source(conn).link.dialed(now)

    def received(self, conn: int, data: bytes) -> None:
        """Bytes from a source."""
        source = self._source(conn)
        was_ready = source.link.state is DialState.READY
        for answer in source.link.received(data):
            self._on_answer(source, answer)
        if not was_ready and source.link.state is DialState.READY:
            source.waits_for = source.link.next_seq()
            source.link.ask(admin.LastSessionInfoRequest(source.waits_for, self.partition_id))

    def closed(self, now: int, event: Closed) -> None:
        """A source is gone."""
        self._source(event.conn).link.closed(now, event.reason)

    def _source(self, conn: int) -> _Source:
        return next(source for source in self._sources if source.link.conn == conn)

    def _on_answer(self, source: _Source, answer: admin.AdminMessage) -> None:
        if answer.seq_num != source.waits_for:
            return
        source.waits_for = None
        match answer:
            case admin.LastSessionInfoResponse(last_session_info=info):
                source.info = info
            case admin.RecordListResponse(records=records):
                source.answer = records
            case admin.AdminFailureResponse(message=message) if source.info is None:
                # Not a replica of the partition, or not any more: it is no source.
                source.info = SessionInfo(-1, -1, -1)
                self._message = self._message or f"{source.link.endpoint}: {message}"
            case _:
                source.answer = ()

    def overdue(self) -> None:
        """Sources that have not answered by now are given up."""
        for source in self._sources:
            if not source.settled:
                source.link.give_up(f"it did not answer within {ANSWER_MS} ms")

    def on_note(self, note: RepairNote) -> None:
        """The replica has done what it was asked."""
        match note:
            case Surveyed(_, ranges):
                self._answers.append(ranges)
            case Mended(_, count, problem):
                self._answers.append((count, problem))
            case RepairRecorded():
                self._answers.append(None)

    # ---- once per step ---------------------------------------------------------------------------

    def run(self, now: int) -> None:
        """Go on as far as possible."""
        while self.result is None:
            if not all(source.settled for source in self._sources):
                return  # all answers of a fetch are awaited: two that agree count
            if self._fetching is not None:
                self._fetching = None
                self._answers.append([(source, source.answer) for source in self._sources if not source.gone])
            self._alarms.set(self._alarm, None)
            if not self._started:
                self._started = True
                self._answers.append(None)
            if not self._answers:
                return
            try:
                work = self._work.send(self._answers.pop())
            except StopIteration:
                self.result = self._end()
                return
            self._perform(now, work)

    def _perform(self, now: int, work: _Work) -> None:
        match work:
            case _Survey():
                self._replica.survey()
            case _Fetch(first, count):
                self._fetching = work
                self._alarms.set(self._alarm, now + ANSWER_MS)
                for source in self._sources:
                    source.answer = ()
                    if not source.gone:
                        source.waits_for = source.link.next_seq()
                        request = admin.RecordListRequest(source.waits_for, self.partition_id, first, count)
                        source.link.ask(request)
            case _Mend(records, last):
                self._replica.mend(records, last)
            case _Record():
                self._replica.record_repair()

    def _end(self) -> RepairResult:
        for source in self._sources:
            if source.link.trouble:
                self._message = self._message or f"{source.link.endpoint}: {source.link.trouble}"
            source.link.give_up("the repair has ended")
        # Of what was tried again only the last outcome counts.
        ranges = tuple(sorted(self._ranges, key=lambda one: (one.first_id, one.outcome)))[:_RANGES_MAX]
        repaired = all(one.outcome in (RepairOutcome.REPAIRED, RepairOutcome.NOT_SUSPECT) for one in ranges)
        return RepairResult(ranges, "" if repaired else self._message or "no node that was asked has it")

    # ---- the procedure ---------------------------------------------------------------------------

    def _procedure(self) -> Generator[_Work, Any, None]:
        repaired: set[int] = set()
        for _ in range(_ROUNDS_MAX):
            failed: list[RepairedRange] = []
            damaged = yield _Survey()
            gaps = self._chosen(damaged)
            progress = False
            for first, last in gaps:
                at = first
                while at <= last:
                    answers = yield _Fetch(at, min(self._fetch_count, last - at + 1))
                    records, outcome = self._choose(answers, at, last)
                    count = 0
                    if records and not repaired.isdisjoint(one.transaction_id for one in records):
                        # Written before and damaged again: this disk does not keep what it is given.
                        outcome = RepairOutcome.WRITE_FAILED
                        self._message = self._message or f"transaction {at} does not stay as it was written"
                    elif records:
                        count, problem = yield _Mend(tuple(records), last)
                        if count < len(records):
                            outcome = RepairOutcome.WRITE_FAILED
                            self._message = self._message or problem
                    if count:
                        progress = True
                        repaired.update(range(at, at + count))
                        self._ranges.append(RepairedRange(at, at + count - 1, RepairOutcome.REPAIRED))
                        at += count
                    if outcome is not RepairOutcome.REPAIRED:
                        failed.append(RepairedRange(at, last, outcome))
                        break
            yield _Record()
            if not progress or not gaps:
                self._ranges += failed
                self._ranges += self._not_suspect(repaired, damaged)
                return

    @property
    def _fetch_count(self) -> int:
        ours = all(source.link.codec for source in self._sources if not source.gone)
        return _FETCH_COUNT if ours else _FETCH_COUNT_JAVA

    def _chosen(self, gaps: Sequence[Range]) -> list[Range]:
        """The damaged ranges to repair. Those that precede a wanted one come with it: without them
        its place is not known."""
        if not self._wanted:
            return list(gaps)
        return [gap for gap in gaps if any(gap[0] <= last and first <= gap[1] for first, last in self._wanted)]

    def _not_suspect(self, repaired: set[int], gaps: Sequence[Range]) -> list[RepairedRange]:
        return [
            RepairedRange(first, last, RepairOutcome.NOT_SUSPECT)
            for first, last in self._wanted
            if not any(a <= last and first <= b for a, b in gaps) and not any(first <= one <= last for one in repaired)
        ]

    def _choose(
        self, answers: Sequence[tuple[_Source, tuple[Record, ...]]], first: int, last: int
    ) -> tuple[list[Record], RepairOutcome]:
        """Records from `first` on, as far as they can be believed, and why there are no more."""
        own = self._replica.session_info()
        by_source = [
            (
                source,
                {
                    record.transaction_id: record
                    for record in records
                    if admissible(own, source.info, record.transaction_id)
                },
            )
            for source, records in answers
            if source.info is not None
        ]
        chosen: list[Record] = []
        asked = min(last, first + self._fetch_count - 1)
        for transaction_id in range(first, asked + 1):
            vouched, plain = [], []
            for source, known in by_source:
                record = known.get(transaction_id)
                if record is not None and source.link.codec:
                    vouched.append(record)
                elif record is not None:
                    plain.append(record)
            outcome = verdict(vouched, plain)
            if isinstance(outcome, RepairOutcome):
                # Behind the end of a short answer nothing is known yet: ask again from there on.
                return chosen, outcome if not chosen else RepairOutcome.REPAIRED
            chosen.append(outcome)
        return chosen, RepairOutcome.REPAIRED


def verdict(vouched: Sequence[Record], plain: Sequence[Record]) -> Record | RepairOutcome:
    """The record to be taken out of what several nodes gave, or why none is."""
    if vouched:
        agreed = all(one == vouched[0] for one in vouched)
        return vouched[0] if agreed else RepairOutcome.SOURCES_DISAGREE
    twice = [one for at, one in enumerate(plain) if one in plain[:at]]
    if twice:
        return twice[0] if all(one == twice[0] for one in twice) else RepairOutcome.SOURCES_DISAGREE
    return RepairOutcome.SOURCES_DISAGREE if len(plain) > 1 else RepairOutcome.NO_SOURCE


def admissible(own: SessionInfo, source: SessionInfo | None, transaction_id: int) -> bool:
    """Whether a record of `source` is certain to be that of our log.

    Two replicas that were marked by the same store session got everything behind the mark from one server. Below
    a low-water mark the log is decided. A replica of a later session holds the decided log up to its own mark, which
    is ours wherever ours is going to be kept: what was not decided so is cut from ours before it takes part again. One
    of an earlier session counts only where both are decided. Anything else may never have been committed.
    """
    if source is None:
        return False
    if source.session_id == own.session_id:
        return own.session_id >= 0
    if source.session_id > own.session_id:
        return transaction_id <= max(own.low_water_mark, source.low_water_mark)
    return transaction_id <= min(own.low_water_mark, source.local_low_water_mark)

"""Repair of a partition: damaged records are fetched from the admin ports of other nodes and written in place.

A record is taken if a node that verified it against its own checksum gives it, or if two nodes agree on every
byte of it; and only from a node whose log, as far as that record goes, is known to be the same as ours.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeAlias

from waltz_core.base.log import Record, SessionInfo
from waltz_core.base.record import record
from waltz_core.store.admin_link import AdminLink, AdminLinkState, LinkEffect
from waltz_core.wire import admin_messages as admin
from waltz_core.wire.admin_messages import RepairedRange, RepairOutcome
from waltz_core.wire.shared import IdRange

ANSWER_MS = 10_000  # a source that leaves a request unanswered for so long is given up
_FETCH_COUNT = 500  # records asked for at once; nodes of ours cut their answers by bytes
_FETCH_COUNT_JAVA = 20  # the same of 0.13.2, which does not; as many as its own recovery asks for
_ROUNDS_MAX = 10_000  # surveys of one repair; each must have mended something
_RANGES_MAX = 1000  # in the answer

Range: TypeAlias = tuple[int, int]


class Mendable(Protocol):
    """The replica, as far as a repair is concerned; callbacks come within a later step, or at once."""

    def session_info(self) -> SessionInfo:
        """What it persisted last."""

    def survey(self, done: Callable[[list[Range]], None]) -> None:
        """Give the ranges of damaged records."""

    def mend(self, records: Sequence[Record], last: int, done: Callable[[int, str], None]) -> None:
        """Write records over damaged ones up to `last`; how many stand now, and what is wrong with the next one."""

    def mended(self, done: Callable[[], None]) -> None:
        """What could be mended was: open again if out of service."""


class _Source:
    __slots__ = ("answer", "info", "link", "waits_for")

    def __init__(self, link: AdminLink) -> None:
        self.link = link
        self.info: SessionInfo | None = None
        self.waits_for: int | None = None  # sequence number
        self.answer: tuple[Record, ...] = ()

    @property
    def gone(self) -> bool:
        return self.link.state is AdminLinkState.ENDED

    @property
    def settled(self) -> bool:
        """Nothing is expected of it."""
        return self.gone or (self.info is not None and self.waits_for is None)


@record
class _Survey:
    pass


@record
class _Fetch:
    first: int
    count: int


@record
class _Mend:
    records: tuple[Record, ...]
    last: int


@record
class _Mended:
    pass


_Work: TypeAlias = _Survey | _Fetch | _Mend | _Mended


class Repair:
    """One repair of one partition. The owner hands in connection events and calls `run` once per step."""

    def __init__(
        self,
        partition_id: int,
        replica: Mendable,
        links: Sequence[AdminLink],
        wanted: Sequence[IdRange],
        deadline: int,
        done: Callable[[tuple[RepairedRange, ...], str], None],
    ) -> None:
        self.partition_id = partition_id
        self.ended = False
        self._replica = replica
        self._sources = [_Source(link) for link in links]
        self._wanted = [(one.first_id, one.last_id) for one in wanted]
        self._due: int | None = deadline
        self._done = done
        self._outcomes: dict[int, int] = {}  # first id → index in `_ranges`, of what was reported
        self._ranges: list[RepairedRange] = []
        self._message = ""
        self._work = self._procedure()
        self._fetching: _Fetch | None = None
        self._answers: list[Any] = []  # for the procedure, at most one
        self._started = False

    def deadline(self) -> int | None:
        """When sources that do not answer are given up."""
        return self._due

    def conns(self) -> list[int]:
        """Connections of this repair."""
        return [source.link.conn for source in self._sources]

    # ---- events ----------------------------------------------------------------------------------

    def dialed(self, conn: int, out: list[LinkEffect]) -> None:
        """A source is reached."""
        self._source(conn).link.dialed(out)

    def received(self, conn: int, data: bytes, out: list[LinkEffect]) -> None:
        """Bytes from a source."""
        source = self._source(conn)
        was_ready = source.link.state is AdminLinkState.READY
        for answer in source.link.received(data, out):
            self._on_answer(source, answer)
        if not was_ready and source.link.state is AdminLinkState.READY:
            source.waits_for = source.link.next_seq()
            source.link.ask(admin.LastSessionInfoRequest(source.waits_for, self.partition_id), out)

    def closed(self, conn: int, reason: str) -> None:
        """A source is gone."""
        self._source(conn).link.closed(reason)

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

    # ---- once per step ---------------------------------------------------------------------------

    def run(self, now: int, out: list[LinkEffect]) -> bool:
        """Go on as far as possible; tells whether the replica was asked for something."""
        asked = False
        if self._due is not None and now >= self._due:
            for source in self._sources:
                if not source.settled:
                    source.link.end(f"{source.link.endpoint} did not answer within {ANSWER_MS} ms", out)
        while not self.ended:
            if not all(source.settled for source in self._sources):
                return asked  # all answers of a fetch are awaited: two that agree count
            if self._fetching is not None:
                self._fetching = None
                self._answers.append([(source, source.answer) for source in self._sources if not source.gone])
            self._due = None
            if not self._started:
                self._started = True
                self._answers.append(None)
            if not self._answers:
                return asked
            try:
                work = self._work.send(self._answers.pop())
            except StopIteration:
                self._end(out)
                return asked
            self._perform(now, work, out)
            asked = asked or not isinstance(work, _Fetch)
        return asked

    def _perform(self, now: int, work: _Work, out: list[LinkEffect]) -> None:
        match work:
            case _Survey():
                self._replica.survey(self._answers.append)
            case _Fetch(first, count):
                self._fetching = work
                self._due = now + ANSWER_MS
                for source in self._sources:
                    source.answer = ()
                    if not source.gone:
                        source.waits_for = source.link.next_seq()
                        request = admin.RecordListRequest(source.waits_for, self.partition_id, first, count)
                        source.link.ask(request, out)
            case _Mend(records, last):
                self._replica.mend(records, last, lambda count, problem: self._answers.append((count, problem)))
            case _Mended():
                self._replica.mended(lambda: self._answers.append(None))

    def _end(self, out: list[LinkEffect]) -> None:
        self.ended = True
        for source in self._sources:
            if source.link.trouble:
                self._message = self._message or source.link.trouble
            source.link.end("the repair has ended", out)
        # Of what was tried again only the last outcome counts.
        ranges = tuple(sorted(self._ranges, key=lambda one: (one.first_id, one.outcome)))[:_RANGES_MAX]
        repaired = all(one.outcome in (RepairOutcome.REPAIRED, RepairOutcome.NOT_SUSPECT) for one in ranges)
        self._done(ranges, "" if repaired else self._message or "no node that was asked has it")

    # ---- the procedure ---------------------------------------------------------------------------

    def _procedure(self) -> Generator[_Work, Any, None]:
        repaired: set[int] = set()
        for _ in range(_ROUNDS_MAX):
            failed: list[RepairedRange] = []
            found = yield _Survey()
            gaps = self._chosen(found)
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
            yield _Mended()
            if not progress or not gaps:
                self._ranges += failed
                self._ranges += self._not_suspect(repaired, found)
                return

    @property
    def _fetch_count(self) -> int:
        ours = all(source.link.version for source in self._sources if not source.gone)
        return _FETCH_COUNT if ours else _FETCH_COUNT_JAVA

    def _chosen(self, gaps: Sequence[Range]) -> list[Range]:
        """The damaged ranges that are to be repaired. Those that precede a wanted one come with it: without them
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
            (source, {one.transaction_id: one for one in records if admissible(own, source.info, one.transaction_id)})
            for source, records in answers
            if source.info is not None
        ]
        chosen: list[Record] = []
        asked = min(last, first + self._fetch_count - 1)
        for transaction_id in range(first, asked + 1):
            vouched, plain = [], []
            for source, known in by_source:
                one = known.get(transaction_id)
                if one is not None and source.link.version:
                    vouched.append(one)
                elif one is not None:
                    plain.append(one)
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

"""Reads over the rpc connection of one partition: payloads and the committed mark."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable

from waltz_core.base.contract import earliest
from waltz_core.base.edge import Level, Report
from waltz_core.base.ids import ReqId, make_req_id, req_sequence
from waltz_core.base.record import record
from waltz_core.base.rules import SafetyRules
from waltz_core.client.calls import Effect, Fetched
from waltz_core.client.link import Link
from waltz_core.client.settings import ClientSettings
from waltz_core.wire.client_messages import (
    HighWaterMarkRequest,
    HighWaterMarkResponse,
    RecordRangeRequest,
    RecordRangeResponse,
    TransactionDataRequest,
    TransactionDataResponse,
)
from waltz_core.wire.primitives import verify

_RANGES_VERSION = 5  # codec that knows ranges of records
_RANGE_MIN = 4  # shorter runs of ids go one by one: the server may have some of them at hand, and others not
_RANGE_MAX = 256  # ids in one request: two are under way at a time
_COMPLAIN_AT = 6  # failures of one read before a person is told; by then it has waited for half a second


_TAIL = object()
"""The caller that is the partition itself."""


@record
class MarkAnswer:
    """Whom a mark answers."""

    tail: bool = False  # the partition, which is to begin there
    tokens: tuple[object, ...] = ()  # calls of the application, by what it calls them


class PartitionReads:
    """Asks for payloads, many at a time and each once, and for the committed mark; never gives up.

    A read is waiting → in flight → answered; a failed one waits for its pause, one whose connection is
    cut is asked again on the next. Requests need no mount.

    Consecutive ids go as one range where the server knows codec 5. An answer may hold fewer records; the rest is
    asked for again. What a server does not give out as a range is asked for one by one, whose rules then hold.

    A mark says what was committed when the server read its question. A call must see every append that was
    acknowledged before the call, so only a question that leaves after the call may answer it. While one question
    is in flight, calls gather and share the next one: at most one is in flight, however many call.
    """

    __slots__ = (
        "_client_id",
        "_failures",
        "_in_flight",
        "_link",
        "_mark_at",
        "_mark_calls",
        "_mark_owed_at",
        "_mark_question",
        "_paused",
        "_progress_at",
        "_ranges",
        "_rules",
        "_sequence",
        "_settings",
        "_single",
        "_waiting",
        "_wanted",
        "generation",
        "partition",
    )

    def __init__(self, partition: int, client_id: int, settings: ClientSettings, rules: SafetyRules) -> None:
        self.partition = partition
        self.generation = -1
        self._client_id, self._settings, self._rules = client_id, settings, rules
        self._link: Link | None = None
        self._sequence = 0
        self._wanted: set[int] = set()
        self._waiting: deque[int] = deque()
        self._in_flight: set[int] = set()
        self._ranges: dict[int, range] = {}  # sequence number of a request → its ids
        self._single: set[int] = set()  # ids that no range gave us
        self._paused: list[tuple[int, int]] = []  # heap of (when, transaction id)
        self._failures: dict[int, int] = {}
        self._progress_at = 0  # when a read was sent while none was under way, or answered
        self._mark_calls: deque[tuple[int, object]] = deque()  # (first request id that may answer, token)
        self._mark_question: int | None = None  # sequence number of the question in flight
        self._mark_owed_at = 0  # when the question in flight was asked first
        self._mark_at: int | None = None  # ask for the mark (again)

    @property
    def link(self) -> Link | None:
        """The rpc connection it uses."""
        return self._link

    def attach(self, link: Link | None, now: int) -> None:
        """Use another connection from now on, or none."""
        if link is not self._link:
            self.on_link_lost()
            self._link = link
            self.on_link_ready(now)

    def on_link_ready(self, now: int) -> None:
        """The connection can be used: ask for everything that is wanted."""
        if self._mark_calls:
            self._ask_mark(now)
        self._send(now)

    def on_link_lost(self) -> None:
        """No answer comes over the old connection any more."""
        self._waiting.extendleft(sorted(self._in_flight, reverse=True))
        self._in_flight.clear()
        self._ranges.clear()
        self._mark_question = None
        self._mark_at = None

    def fetch(self, transaction_ids: Iterable[int], now: int) -> None:
        """Read payloads; ids that are wanted already are not asked for twice."""
        for transaction_id in transaction_ids:
            if transaction_id not in self._wanted:
                self._wanted.add(transaction_id)
                self._waiting.append(transaction_id)
        self._send(now)

    def forget(self, transaction_ids: Iterable[int]) -> None:
        """Nobody waits for these any longer; answers on their way are dropped."""
        self._wanted.difference_update(transaction_ids)

    def read_tail(self, now: int) -> None:
        """Ask for the committed mark so that the partition can begin there."""
        self.read_mark(_TAIL, now)

    def read_mark(self, token: object, now: int) -> None:
        """Ask for the committed mark; calls that come while a question is in flight share the next one."""
        self._mark_calls.append((_following(self._sequence), token))
        if self._mark_question is None and self._mark_at is None:
            self._ask_mark(now)

    def forget_mark(self, token: object) -> None:
        """A call has left; without any other, nothing is asked again."""
        calls = self._mark_calls
        self._mark_calls = deque(call for call in calls if call[1] is not token)
        if calls and not self._mark_calls:
            self._mark_question = self._mark_at = None

    def on_data(self, response: TransactionDataResponse, now: int, payloads: list[tuple[int, bytes]]) -> str | None:
        """Take an answer; returns the server's error when it has failed often enough to tell a person."""
        transaction_id = response.transaction_id
        self._in_flight.discard(transaction_id)
        self._progress_at = now
        if self._single:
            self._single.discard(transaction_id)
        if transaction_id not in self._wanted:
            self._send(now)
            return None
        if response.success:
            self._wanted.remove(transaction_id)
            self._failures.pop(transaction_id, None)
            payloads.append((transaction_id, response.data))
            if len(self._in_flight) * 2 <= self._settings.fetch_in_flight_max:
                self._send(now)
            return None
        failures = self._failures.get(transaction_id, 0)
        self._failures[transaction_id] = failures + 1
        pause = min(self._settings.fetch_cap_ms, self._settings.fetch_base_ms << min(failures, 16))
        heapq.heappush(self._paused, (now + pause, transaction_id))
        return (response.error or "no reason given") if failures + 1 == _COMPLAIN_AT else None

    def on_range(self, response: RecordRangeResponse, now: int, payloads: list[tuple[int, bytes]]) -> None:
        """Take the answer to a range; ids that it leaves out are asked for again.

        Raises:
            ProtocolError: data that does not match its checksum.
        """
        sequence = req_sequence(response.req_id)
        ids = self._ranges.get(sequence)
        if ids is None:
            return
        sound = []  # nothing is changed before all of it is known to be what was sent
        for transaction_id, read in zip(ids, response.records, strict=False):
            if read.transaction_id != transaction_id:
                break  # not what was asked for
            verify(read.data, read.checksum)
            sound.append((transaction_id, read.data))
        del self._ranges[sequence]
        self._progress_at = now
        self._in_flight.difference_update(ids)
        wanted = self._wanted
        payloads += [each for each in sound if each[0] in wanted]
        wanted.difference_update(ids[: len(sound)])
        if not sound:
            self._single.update(ids)  # or the same would be asked again at once
        self._waiting.extendleft(reversed(ids[len(sound) :]))
        self._send(now)

    def on_range_refused(self, req_id: ReqId, now: int) -> bool:
        """A range cannot be read as a whole: its ids are asked for one by one. False if it is no range of ours."""
        sequence = req_sequence(req_id)
        ids = self._ranges.get(sequence)
        if ids is None or req_id != make_req_id(self._client_id, self.generation, self.partition, sequence):
            return False
        del self._ranges[sequence]
        self._in_flight.difference_update(ids)
        self._single.update(ids)
        self._waiting.extendleft(reversed(ids))
        self._send(now)
        return True

    def on_mark(self, response: HighWaterMarkResponse, now: int) -> MarkAnswer:
        """Take the server's mark; returns the calls that it answers.

        A partition that is still opening is asked again. So is the server when calls came after the question.
        """
        sequence, calls = req_sequence(response.req_id), self._mark_calls
        if not _reached(self._sequence, sequence):
            return MarkAnswer()  # no question of ours
        if sequence == self._mark_question:
            self._mark_question = self._mark_at = None
        if response.high_water_mark < -1:
            if calls and self._mark_question is None:
                self._mark_at = now + self._settings.not_ready_ms
            return MarkAnswer()
        answered = []
        while calls and _reached(sequence, calls[0][0]):
            answered.append(calls.popleft()[1])
        if not calls:
            self._mark_question = self._mark_at = None
        elif self._mark_question is None:
            self._ask_mark(now)
        tokens = tuple(token for token in answered if token is not _TAIL)
        return MarkAnswer(len(tokens) < len(answered), tokens)

    def on_mark_refused(self, req_id: ReqId, now: int) -> bool:
        """The server cannot say what is committed, for want of a quorum: ask again after a pause."""
        question = self._mark_question
        if question is None or req_id != make_req_id(self._client_id, self.generation, self.partition, question):
            return False
        self._mark_question = None
        self._mark_at = now + self._settings.not_ready_ms
        return True

    def deadline(self) -> int | None:
        """When `due` has something to do."""
        return earliest(self._mark_at, self._paused[0][0] if self._paused else None, self._silent_at())

    def due(self, now: int, out: list[Effect]) -> bool:
        """Repeat what has waited long enough; True when the connection is to be given up as dead."""
        if self._mark_at is not None and now >= self._mark_at:
            self._ask_mark(now)
        while self._paused and self._paused[0][0] <= now:
            _, transaction_id = heapq.heappop(self._paused)
            if transaction_id in self._wanted:
                self._waiting.append(transaction_id)
            else:
                self._failures.pop(transaction_id, None)
        self._send(now)
        silent = self._silent_at()
        return silent is not None and now >= silent

    def suspect_at(self) -> int | None:
        """When a server that owes an answer has been silent for so long that another may serve this partition."""
        reading = self._progress_at if self._in_flight else None
        owed_since = earliest(reading, None if self._mark_question is None else self._mark_owed_at)
        if owed_since is None or self._link is None or not self._rules.silent_peer_dropped:
            return None
        return max(owed_since, self._link.last_read) + self._settings.suspect_ms

    def _silent_at(self) -> int | None:
        """When the server has owed an answer for so long that it must be gone."""
        if not self._in_flight or self._link is None or not self._rules.silent_peer_dropped:
            return None
        return max(self._progress_at, self._link.last_read) + self._settings.silence_ms

    def _ask_mark(self, now: int) -> None:
        self._mark_at = None
        if self._link is None or not self._link.ready:
            return
        if self._rules.mark_asked_again:
            self._mark_at = now + self._settings.mark_retry_ms
        if self._mark_question is None:
            self._mark_owed_at = now
        self._link.send(HighWaterMarkRequest(self._next_req_id()))
        self._mark_question = self._sequence

    def _send(self, now: int) -> None:
        link, waiting, in_flight = self._link, self._waiting, self._in_flight
        if link is None or not link.ready:
            return
        room = self._settings.fetch_in_flight_max - len(in_flight)
        if not in_flight:
            self._progress_at = now
        ranges = link.version >= _RANGES_VERSION
        while waiting and room > 0:
            first = waiting.popleft()
            if first not in self._wanted or first in in_flight:
                self._single.discard(first)
                continue
            ids = self._run(first, min(room, _RANGE_MAX)) if ranges else range(first, first + 1)
            in_flight.update(ids)
            room -= len(ids)
            if len(ids) >= _RANGE_MIN:
                request = RecordRangeRequest(self._next_req_id(), ids.start, ids.stop - 1, len(ids), 0, False)
                self._ranges[self._sequence] = ids
                link.send(request)
                continue
            for transaction_id in ids:
                link.send(TransactionDataRequest(self._next_req_id(), transaction_id))

    def _run(self, first: int, count_max: int) -> range:
        """The ids from `first` on that are wanted and wait right behind it, taken from the queue."""
        waiting, wanted, in_flight, single = self._waiting, self._wanted, self._in_flight, self._single
        stop = first + 1
        if first not in single:
            end = first + count_max
            while waiting and stop < end and waiting[0] == stop and stop in wanted:
                if stop in in_flight or stop in single:
                    break
                waiting.popleft()
                stop += 1
        return range(first, stop)

    def _next_req_id(self) -> ReqId:
        self._sequence = _following(self._sequence)
        return make_req_id(self._client_id, self.generation, self.partition, self._sequence)


def _following(sequence: int) -> int:
    """The next sequence number; they are signed 32-bit integers that wrap."""
    return sequence + 1 if sequence + 1 < 1 << 31 else -(1 << 31)


def _reached(sequence: int, first: int) -> bool:
    """`sequence` is `first` or a later one, across a wrap too."""
    return (sequence - first) % (1 << 32) < 1 << 31


def complaint(partition: int, transaction_id: int, text: str) -> Report:
    """What a person is told about a payload that keeps failing."""
    return Report(
        Level.WARNING,
        f"partition {partition}: the payload of transaction {transaction_id} cannot be read: {text}; still trying",
    )


def deliver(partition: int, payloads: list[tuple[int, bytes]], out: list[Effect]) -> None:
    """Hand payloads on, if any."""
    if payloads:
        out.append(Fetched(partition, payloads))

"""Ranges of committed records for bulk readers, read from replicas; codec 5.

    ask ──▶ nothing to read, below the log start, or invalid ──▶ answered at once
     └────▶ queue, in turns ──▶ in the cache ──▶ answered
                ▲       └─────▶ a read ──▶ records ──▶ answered, cut to size: the reader asks for the rest
                └── the session ended ──┘└─ no replica has a sound copy ──▶ ErrorResponse

What a request costs in its connection's turn is what it reads, so a reader of whole logs and one of single records
share alike. A read for a connection that has gone counts until it is answered: it is under way all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeAlias, cast

from waltz_core.base.contract import Tickets
from waltz_core.base.ids import ReqId
from waltz_core.base.log import RECORD_OVERHEAD, Record
from waltz_core.base.turns import Shares, Turns
from waltz_core.server.data_cache import DataCache
from waltz_core.server.refusals import NOT_SERVED
from waltz_core.store.session_notes import HeadersRead, ReadFailed, RecordsRead
from waltz_core.wire.client_messages import (
    ErrorCode,
    ErrorResponse,
    RecordHeaderRangeResponse,
    RecordRangeRequest,
    RecordRangeResponse,
)
from waltz_core.wire.headers import HeaderRun
from waltz_core.wire.records import RecordRun, headers_of

COUNT_MAX = 1_024  # records in one answer: what a client asks for at a time
SIZE_MAX = 1 << 20  # bytes of records in one answer; one larger record goes alone
_READS_MAX = 8  # reads under way; others wait their turn
_CACHED_MAX = 1_000  # records given out from the cache in one step, about: a millisecond, which everybody else waits
_REQUEST_COST = 20  # of each request in its connection's turn, besides its records: what a seek costs

Answer: TypeAlias = tuple[int, RecordRangeResponse | RecordHeaderRangeResponse | ErrorResponse]
"""A connection and the message for it."""

_Asked: TypeAlias = tuple[int, str, RecordRangeRequest]
"""A connection, its owner, and its request."""

Read: TypeAlias = Callable[[int, int, int, bool], None]
"""Starts a read of records: token, first id, count, headers only."""


class RangeReads:
    """Requests of one partition, read in turns of the connections and answered as replicas answer.

    What is in the cache is answered from there; what is read for a range does not go into it, where whoever reads
    a whole log would drive out the newest payloads. `held` counts what waits for each connection, in all
    partitions together.
    """

    __slots__ = (
        "_cache",
        "_held",
        "_partition_id",
        "_queue",
        "_reads",
        "_tickets",
        "floor",
        "log_start",
        "where_before",
    )

    def __init__(self, partition_id: int, cache: DataCache, tickets: Tickets, held: Shares) -> None:
        self._partition_id = partition_id
        self._cache = cache
        self._tickets = tickets
        self._held = held
        self._queue: Turns[_Asked] = Turns(COUNT_MAX)
        self._reads: dict[int, _Asked | None] = {}  # token → who asked for what; None: nobody who is still there
        self.log_start = 0
        self.floor = 0  # the smallest id that can be read: lower where an archive is read through
        self.where_before = ""  # where to find what is below it, for people

    @property
    def waiting(self) -> int:
        """Requests without an answer."""
        return len(self._queue) + len(self._reads)

    def ask(self, conn: int, owner: str, request: RecordRangeRequest, mark: int) -> Answer | None:
        """A client asks; the answer if there is nothing to read, else it comes later."""
        if request.first_id < 0:
            text = f"expected a first id of 0 or more, found {request.first_id}"
            return conn, ErrorResponse(request.req_id, ErrorCode.INVALID, text)
        if request.first_id < self.floor:
            return self._given_up(conn, request)
        if request.first_id > min(request.last_id, mark):
            return conn, self._reply(request, mark, ())
        self._queue.put(conn, owner, _cost(request, mark), (conn, owner, request))
        self._held.add(conn, owner, 1)
        return None

    @property
    def ready(self) -> bool:
        """Whether `launch` would do something."""
        return self._queue.ready and len(self._reads) < _READS_MAX

    def launch(self, mark: int, read: Read) -> list[Answer]:
        """Start reads for those that wait and whose turn it is; returns the answers that need none."""
        answers: list[Answer] = []
        left = _CACHED_MAX
        while left > 0 and len(self._reads) < _READS_MAX and (taken := self._queue.take()) is not None:
            conn, asked = taken
            request = asked[2]
            if request.first_id < self.floor:  # the log start has risen while it waited
                self._held.free(conn, 1)
                answers.append(self._given_up(conn, request))
                continue
            count = _count(request, mark)
            if not request.headers_only:
                cached = self._cache.run(self._partition_id, request.first_id, count, _size_max(request))
                if cached:
                    self._held.free(conn, 1)
                    answers.append((conn, self._reply(request, mark, cached)))
                    left -= len(cached)
                    continue
                self._cache.misses += count
            token = self._tickets.take()
            self._reads[token] = asked
            read(token, request.first_id, count, request.headers_only)
        return answers

    def done(self, note: RecordsRead | HeadersRead, mark: int) -> Answer | None:
        """A read was answered; None if nobody waits for it any more."""
        asked = self._reads.pop(note.token)
        if asked is None:
            return None
        conn, _, request = asked
        self._held.free(conn, 1)
        if isinstance(note, HeadersRead):
            return conn, self._reply(request, mark, note.headers)
        return conn, self._reply(request, mark, _fitting(note.records, _size_max(request)))

    def failed(self, note: ReadFailed, *, final: bool) -> Answer | None:
        """No replica could answer; unless that is `final`, it is tried again in the next session."""
        asked = self._reads.pop(note.token)
        if asked is None:
            return None
        conn, owner, request = asked
        if not final:
            self._queue.put_back(conn, owner, _REQUEST_COST, asked)
            return None
        self._held.free(conn, 1)
        if request.first_id < self.floor:  # the log start has risen while it was read
            return self._given_up(conn, request)
        code = ErrorCode.NOT_READY if note.for_now else ErrorCode.CORRUPT
        return conn, ErrorResponse(request.req_id, code, note.reason)

    def gone(self, conn: int) -> None:
        """A connection ended: nobody waits for its answers."""
        self._queue.drop(conn)
        for token, asked in self._reads.items():
            if asked is not None and asked[0] == conn:
                self._reads[token] = None  # it still counts against the reads under way

    def close(self) -> list[Answer]:
        """The partition goes: whoever waits hears so, as one that asks later does. It may come back to this server."""
        waiting = [asked for _, asked in self._queue.clear()]
        for token, asked in self._reads.items():
            if asked is not None:
                waiting.append(asked)
                self._reads[token] = None
        for conn, _, _ in waiting:
            self._held.free(conn, 1)
        return [(conn, ErrorResponse(request.req_id, ErrorCode.NOT_SERVED, NOT_SERVED)) for conn, _, request in waiting]

    def writable(self, conn: int, writable: bool) -> None:
        """Nothing is read for a connection that does not take what it was sent."""
        self._queue.block(conn, not writable)

    def _given_up(self, conn: int, request: RecordRangeRequest) -> Answer:
        return conn, before_start(request.req_id, request.first_id, self.floor, self.where_before)

    def _reply(
        self, request: RecordRangeRequest, mark: int, records: Sequence[Record] | HeaderRun
    ) -> RecordRangeResponse | RecordHeaderRangeResponse:
        if request.headers_only:
            headers = headers_of(records)
            return RecordHeaderRangeResponse(request.req_id, self.log_start, mark, headers)
        # A read of headers is never answered by records, nor the other way round.
        return RecordRangeResponse(request.req_id, self.log_start, mark, cast("Sequence[Record]", records))


def _fitting(records: Sequence[Record], size_max: int) -> Sequence[Record]:
    """As many as an answer may hold; one larger record goes alone."""
    if isinstance(records, RecordRun):
        return records[: records.fitting(size_max, RECORD_OVERHEAD)]
    sizes = accumulate(RECORD_OVERHEAD + len(each.data) for each in records)
    return records[: max(1, sum(size <= size_max for size in sizes))]


def _count(request: RecordRangeRequest, mark: int) -> int:
    limit = min(request.count_max, COUNT_MAX) if request.count_max > 0 else COUNT_MAX
    return min(limit, min(request.last_id, mark) - request.first_id + 1)


def _size_max(request: RecordRangeRequest) -> int:
    return min(request.size_max, SIZE_MAX) if request.size_max > 0 else SIZE_MAX


def _cost(request: RecordRangeRequest, mark: int) -> int:
    return _REQUEST_COST + _count(request, mark)


def before_start(req_id: ReqId, wanted: int, log_start: int, where: str) -> ErrorResponse:
    """The answer to a request for records that were given up."""
    text = f"transaction {wanted} was given up here: the log begins at {log_start}"
    if where:
        text += f"; what is before it stands in the archive {where}"
    return ErrorResponse(req_id, ErrorCode.BEFORE_START, text)

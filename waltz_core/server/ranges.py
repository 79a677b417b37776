"""Ranges of committed records for bulk readers, read from replicas; codec 5."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from waltz_core.ids import ReqId
from waltz_core.log import Record, RecordHeader
from waltz_core.machine import Tickets
from waltz_core.server.appender import RECORD_OVERHEAD
from waltz_core.store.session import HeadersRead, ReadFailed, RecordsRead
from waltz_core.wire.client_messages import (
    ErrorCode,
    ErrorResponse,
    RecordHeaderRangeResponse,
    RecordRangeRequest,
    RecordRangeResponse,
)

COUNT_MAX = 1_000  # records in one answer
SIZE_MAX = 1 << 20  # bytes of records in one answer; one larger record goes alone
_READS_MAX = 8  # reads under way; others wait their turn

Answer: TypeAlias = tuple[int, RecordRangeResponse | RecordHeaderRangeResponse | ErrorResponse]
"""A connection and what it is told."""

Read: TypeAlias = Callable[[int, int, int, bool], None]
"""Starts a read of records: token, first id, count, headers only."""


class RangeReads:
    """Requests of one partition, answered in the order in which replicas answer."""

    __slots__ = ("_queue", "_reads", "_tickets", "log_start", "where_before")

    def __init__(self, tickets: Tickets) -> None:
        self._tickets = tickets
        self._queue: deque[tuple[int, RecordRangeRequest]] = deque()
        self._reads: dict[int, tuple[int, RecordRangeRequest]] = {}  # token → who asked for what
        self.log_start = 0
        self.where_before = ""  # where to find what is below it, for people

    @property
    def waiting(self) -> int:
        """Requests without an answer."""
        return len(self._queue) + len(self._reads)

    def ask(self, conn: int, request: RecordRangeRequest, mark: int) -> Answer | None:
        """A client asks; the answer if there is nothing to read, else it comes later."""
        if request.first_id < 0:
            text = f"expected a first id of 0 or more, found {request.first_id}"
            return conn, ErrorResponse(request.req_id, ErrorCode.INVALID, text)
        if request.first_id < self.log_start:
            return conn, before_start(request.req_id, request.first_id, self.log_start, self.where_before)
        if request.first_id > min(request.last_id, mark):
            return conn, self._reply(request, mark, ())
        self._queue.append((conn, request))
        return None

    def launch(self, mark: int, read: Read) -> None:
        """Start reads for those that wait."""
        while self._queue and len(self._reads) < _READS_MAX:
            conn, request = self._queue.popleft()
            token = self._tickets.take()
            self._reads[token] = conn, request
            limit = min(request.count_max, COUNT_MAX) if request.count_max > 0 else COUNT_MAX
            count = min(limit, min(request.last_id, mark) - request.first_id + 1)
            read(token, request.first_id, count, request.headers_only)

    def done(self, note: RecordsRead | HeadersRead, mark: int) -> Answer | None:
        """A read was answered; None if it is not one of ours."""
        found = self._reads.pop(note.token, None)
        if found is None:
            return None
        conn, request = found
        if isinstance(note, HeadersRead):
            return conn, self._reply(request, mark, note.headers)
        size_max = min(request.size_max, SIZE_MAX) if request.size_max > 0 else SIZE_MAX
        size, count = 0, 0
        for one in note.records:
            size += RECORD_OVERHEAD + len(one.data)
            if count and size > size_max:
                break
            count += 1
        return conn, self._reply(request, mark, note.records[:count])

    def failed(self, note: ReadFailed, *, final: bool) -> list[Answer] | None:
        """No replica could answer; unless that is `final`, it is tried again in the next session. None: not ours."""
        found = self._reads.pop(note.token, None)
        if found is None:
            return None
        conn, request = found
        if not final:
            self._queue.appendleft(found)
            return []
        return [(conn, ErrorResponse(request.req_id, ErrorCode.CORRUPT, note.reason))]

    def gone(self, conn: int) -> None:
        """A connection ended: nobody waits for its answers."""
        self._queue = deque(found for found in self._queue if found[0] != conn)

    def _reply(
        self, request: RecordRangeRequest, mark: int, found: tuple[Record, ...] | tuple[RecordHeader, ...]
    ) -> RecordRangeResponse | RecordHeaderRangeResponse:
        if request.headers_only:
            headers = tuple(RecordHeader(one.transaction_id, one.req_id, one.header) for one in found)
            return RecordHeaderRangeResponse(request.req_id, self.log_start, mark, headers)
        records = tuple(one for one in found if isinstance(one, Record))
        return RecordRangeResponse(request.req_id, self.log_start, mark, records)


def before_start(req_id: ReqId, wanted: int, log_start: int, where: str) -> ErrorResponse:
    """What is told to whoever asks for records that were given up."""
    text = f"transaction {wanted} was given up here: the log begins at {log_start}"
    if where:
        text += f"; what is before it stands in the archive {where}"
    return ErrorResponse(req_id, ErrorCode.BEFORE_START, text)

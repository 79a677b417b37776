"""Whole records of one partition: read by ranges until they come, or the server says that it cannot.

A read is answered once, perhaps with fewer records than it asked for, never with none that are committed: a server that
does not know them yet, or is not ready, is asked again after a pause. What a server refuses for good (the records were
given up, they are damaged, our role does not include it) ends the read. A server whose codec has no ranges refuses
without an answer of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from waltz_core.base.ids import ReqId, req_sequence
from waltz_core.base.log import Record
from waltz_core.client.calls import RecordsCarried
from waltz_core.client.context import ClientContext
from waltz_core.client.payload_reads import RANGES_VERSION, sound_records
from waltz_core.client.read_link import ReadLink
from waltz_core.wire.client_messages import ErrorResponse, RecordRangeRequest, RecordRangeResponse

_PAUSE_MS = 500  # before a read is tried again that the server cannot answer yet

_Read = tuple[object, int, int]
"""Token, first id, count."""


class RecordReads:
    """Who waits for which records of one partition."""

    __slots__ = ("_again_at", "_asked", "_link", "_out", "_partition", "_progress_at", "_unsent")

    def __init__(self, partition: int, context: ClientContext, link: ReadLink) -> None:
        self._partition = partition
        self._link = link
        self._out = context.out
        self._unsent: deque[_Read] = deque()
        self._asked: dict[int, tuple[_Read, int]] = {}  # by the number of the request, and since when
        self._again_at: int | None = None
        self._progress_at = 0  # when a read was sent while none was under way, or answered

    def read(self, now: int, token: object, first: int, count: int) -> None:
        """Ask for records; `RecordsCarried` answers, perhaps with fewer. None: just where the log begins."""
        self._unsent.append((token, first, count))
        self.send(now)

    def forget(self, token: object) -> None:
        """Nobody waits for a read any longer; an answer on its way is dropped."""
        self._unsent = deque(read for read in self._unsent if read[0] is not token)
        self._asked = {number: asked for number, asked in self._asked.items() if asked[0][0] is not token}

    def send(self, now: int) -> None:
        """Ask for what was not asked for yet."""
        link = self._link.usable
        if link is None or (self._again_at is not None and now < self._again_at):
            return
        self._again_at = None
        if not self._asked:
            self._progress_at = now
        while self._unsent:
            read = self._unsent.popleft()
            if link.version < RANGES_VERSION:
                self._out.put(RecordsCarried(self._partition, read[0], None, -1))
                continue
            number = self._link.take()
            self._asked[number] = read, now
            last = read[1] + read[2] - 1
            link.send(RecordRangeRequest(self._link.req_id(number), read[1], last, read[2], 0, False))

    def link_lost(self) -> None:
        """No answer comes over the old connection any more: everything is asked again."""
        self._unsent.extendleft(read for read, _ in reversed(self._asked.values()))
        self._asked.clear()

    def answered(self, now: int, response: RecordRangeResponse) -> bool:
        """Hand records on; False if the read is none of ours.

        Raises:
            ProtocolError: data that does not match its checksum; the connection is to be given up.
        """
        number = req_sequence(response.req_id)
        asked = self._asked.get(number)
        if asked is None:
            return False
        read = token, first, count = asked[0]
        records: Sequence[Record] = response.records[:count]
        sound = sound_records(records, first)  # nothing is changed before all of it is known to be what was sent
        del self._asked[number]
        self._progress_at = now
        if sound or not count:
            self._out.put(RecordsCarried(self._partition, token, records[:sound], response.log_start))
        else:
            self._put_back(now, read)  # it is committed, and this server does not know it yet
        return True

    def refused(self, now: int, req_id: ReqId, error: ErrorResponse | None) -> bool:
        """The server cannot answer a read, or not yet (without an error); False if it is none of ours."""
        asked = self._asked.pop(req_sequence(req_id), None) if self._link.is_ours(req_id) else None
        if asked is None:
            return False
        read = asked[0]
        self._progress_at = now
        if error is None:
            self._put_back(now, read)
        else:
            self._out.put(RecordsCarried(self._partition, read[0], None, -1, error))
        return True

    def _put_back(self, now: int, read: _Read) -> None:
        self._unsent.append(read)
        self._again_at = now + _PAUSE_MS

    @property
    def again_at(self) -> int | None:
        """When a pause ends."""
        return self._again_at if self._unsent else None

    def due(self, now: int) -> None:
        """End a pause, if it is time."""
        if self._again_at is not None and now >= self._again_at:
            self.send(now)

    def owed_since(self) -> int | None:
        """Since when the server owes an answer."""
        return self._progress_at if self._asked else None

    def owed(self) -> Iterator[tuple[range, int]]:
        """What the server owes, each request by itself: the ids, and when it was asked for them."""
        return ((range(first, first + count), asked_at) for (_, first, count), asked_at in self._asked.values())

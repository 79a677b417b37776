"""Payloads of one partition, many at a time and each once; reading never gives up what there is.

```
 wanted ──► waiting ──► in flight ──► arrived ──► delivered, with all that one read of the connection brought
               ▲            │
               └── paused ◄─┴── failed; or the connection was cut, and it goes to the front of the queue
```

Requests need no mount. Consecutive ids go as one range where the server knows codec 5. An answer may hold fewer
records; the rest is asked for again. What a server does not give out as a range is asked for one by one (*single*),
whose rules then hold.

There is one end of reading: what was *given up*, as the log begins behind it. Of a range the server says so for its
first id; of a single payload it only says that it cannot be read. So an id is given up once both ways have failed, and
a single one that has failed often is asked for as a range, too.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from waltz_core.base.edge import Level, Report
from waltz_core.base.id_set import IdSet
from waltz_core.base.ids import req_sequence
from waltz_core.base.log import RECORD_OVERHEAD, Record
from waltz_core.base.pending import Pending
from waltz_core.client.calls import Fetched, Unfetchable
from waltz_core.client.context import ClientContext
from waltz_core.client.read_link import ReadLink
from waltz_core.wire.client_messages import (
    ErrorCode,
    ErrorResponse,
    RecordRangeRequest,
    RecordRangeResponse,
    TransactionDataRequest,
    TransactionDataResponse,
)
from waltz_core.wire.primitives import verify
from waltz_core.wire.records import RecordRun

RANGES_VERSION = 5  # codec that knows ranges of records
_RANGE_MIN = 4  # shorter runs of ids go one by one: the server may have some of them at hand, and others not
_RANGE_MAX = 1_024  # ids in one request; two are under way at a time, as `fetch_in_flight_max` says
_ANSWER_SIZE = 1 << 20  # bytes of records in one answer: what goes beyond them is read by the server for nothing
_SINGLES_MAX = 512  # reads of one payload each that are under way at a time
_COMPLAIN_AT = 6  # failures of one read before a person is warned; by then it has waited for half a second


class PayloadReads:
    """Which payloads of one partition somebody wants, and where each of them is."""

    __slots__ = (
        "_arrived",
        "_before_start",
        "_failures",
        "_in_flight",
        "_link",
        "_out",
        "_own",
        "_partition",
        "_paused",
        "_progress_at",
        "_range_size",
        "_ranges",
        "_settings",
        "_single",
        "_singles",
        "_waiting",
        "_wanted",
    )

    def __init__(self, partition: int, context: ClientContext, link: ReadLink) -> None:
        self._partition = partition
        self._settings = context.settings
        self._out = context.out
        self._own = context.own.of(partition)
        self._link = link
        self._wanted = IdSet()
        self._waiting: deque[range] = deque()  # none is empty
        self._in_flight = IdSet()
        self._ranges: Pending[tuple[range, int]] = Pending(link)  # the ids of each request for a range, and since when
        self._range_size = _RANGE_MAX  # ids whose payloads fit into one answer, if they are as large as the last ones
        self._singles: dict[int, int] = {}  # id of each request for a single one → since when
        self._single: set[int] = set()  # ids that no range gave us
        self._paused: list[tuple[int, int]] = []  # heap of (when, transaction id)
        self._failures: dict[int, int] = {}
        self._before_start: dict[int, str] = {}  # ids that are being asked for singly, and why no range gave them
        self._arrived: list[tuple[int, Sequence[bytes]]] = []  # (first id, payloads), to be delivered together
        self._progress_at = 0  # when a read was sent while none was under way, or answered

    # ---- what is wanted ----------------------------------------------------------------------

    def fetch(self, now: int, transaction_ids: Sequence[int]) -> None:
        """Read payloads; ids that are wanted already are not asked for twice, own transactions not at all."""
        transaction_ids = self.from_memory(transaction_ids)
        if not transaction_ids:
            return
        wanted = self._wanted
        if isinstance(transaction_ids, range) and transaction_ids.step == 1 and wanted.isdisjoint(transaction_ids):
            fresh = [transaction_ids] if transaction_ids else []
        else:
            fresh = _ranges(dict.fromkeys(each for each in transaction_ids if each not in wanted))
        for ids in fresh:
            wanted.update(ids)
        self._waiting += fresh
        self.send(now)

    def from_memory(self, transaction_ids: Sequence[int]) -> Sequence[int]:
        """Deliver those that this client has sent itself and still has; which are to be read."""
        pieces, left = self._own.take(transaction_ids)
        for first, payloads in pieces:
            self._wanted.difference_update(range(first, first + len(payloads)))
            self._arrived.append((first, payloads))
        self.deliver()
        return left

    def forget(self, transaction_ids: Iterable[int]) -> None:
        """Nobody waits for these any longer; answers on their way are dropped."""
        for ids in _ranges(transaction_ids):
            self._wanted.difference_update(ids)

    def link_lost(self) -> None:
        """No answer comes over the old connection any more."""
        self._waiting.extendleft(reversed(list(self._in_flight.ranges())))
        self._in_flight.clear()
        self._singles.clear()
        self._before_start.clear()
        self._ranges.forget(lambda asked: True)

    # ---- answers -----------------------------------------------------------------------------

    def data_answered(self, now: int, response: TransactionDataResponse) -> None:
        """Take an answer; one that has failed often is reported."""
        transaction_id = response.transaction_id
        self._in_flight.discard(transaction_id)
        self._singles.pop(transaction_id, None)
        self._progress_at = now
        if self._single:
            self._single.discard(transaction_id)
        before_start = self._before_start.pop(transaction_id, None) if self._before_start else None
        if transaction_id not in self._wanted:
            self.send(now)
        elif response.success:
            self._wanted.discard(transaction_id)
            self._failures.pop(transaction_id, None)
            self._arrived.append((transaction_id, (response.data,)))
            if len(self._in_flight) * 2 <= self._settings.fetch_in_flight_max:
                self.send(now)
        elif before_start is not None:
            self._give_up(transaction_id, before_start)
            self.send(now)
        else:
            self._pause(now, transaction_id, response.error or "no reason given")

    def _pause(self, now: int, transaction_id: int, error: str) -> None:
        failures = self._failures.get(transaction_id, 0)
        self._failures[transaction_id] = failures + 1
        pause = min(self._settings.fetch_cap_ms, self._settings.fetch_base_ms << min(failures, 16))
        heapq.heappush(self._paused, (now + pause, transaction_id))
        if failures + 1 == _COMPLAIN_AT:
            what = f"partition {self._partition}: the payload of transaction {transaction_id}"
            self._out.put(Report(Level.WARNING, f"{what} cannot be read: {error}; still trying"))

    def range_answered(self, now: int, response: RecordRangeResponse) -> None:
        """Take the answer to a range, if it is one of ours; ids that it leaves out are asked for again.

        Raises:
            ProtocolError: data that does not match its checksum; the connection is to be given up.
        """
        asked = self._ranges.take(req_sequence(response.req_id))
        if asked is None:
            return
        ids = asked[0]
        records = response.records[: len(ids)]
        count = sound_records(records, ids.start)  # nothing is changed before all of it is known to be what was sent
        self._progress_at = now
        self._in_flight.difference_update(ids)
        read, wanted = ids[:count], self._wanted
        data = _payloads(records, count)
        if not wanted.issuperset(read):
            self._arrived += [(each, (data[each - read.start],)) for each in read if each in wanted]
        elif read:
            self._arrived.append((read.start, data))
        wanted.difference_update(read)
        if self._failures:
            for each in read:
                self._failures.pop(each, None)
        if read:
            self._range_size = _ANSWER_SIZE * count // (sum(map(len, data)) + RECORD_OVERHEAD * count)
        else:
            self._single.update(ids)  # or the same would be asked again at once
        if count < len(ids):
            self._waiting.appendleft(ids[count:])
        self.send(now)

    def range_refused(self, now: int, error: ErrorResponse) -> bool:
        """A range cannot be read as a whole: its ids are asked for one by one. False if it is no range of ours."""
        asked = self._ranges.take(req_sequence(error.req_id)) if self._link.is_ours(error.req_id) else None
        if asked is None:
            return False
        ids = asked[0]
        self._in_flight.difference_update(ids)
        if error.code == ErrorCode.BEFORE_START and ids.start in self._failures:
            self._give_up(ids.start, _text(error))
            ids = ids[1:]
        else:
            if error.code == ErrorCode.BEFORE_START:
                self._before_start[ids.start] = _text(error)
            self._single.update(ids)
        if ids:
            self._waiting.appendleft(ids)
        self.send(now)
        return True

    def _give_up(self, transaction_id: int, text: str) -> None:
        """The log begins behind it: neither a range nor a read of it alone gives it out."""
        self._failures.pop(transaction_id, None)
        if transaction_id in self._wanted:
            self._wanted.discard(transaction_id)
            self._out.put(Unfetchable(self._partition, transaction_id, text))

    def deliver(self) -> None:
        """Hand on what has arrived, if anything."""
        if self._arrived:
            self._out.put(Fetched(self._partition, self._arrived))
            self._arrived = []

    # ---- requests ----------------------------------------------------------------------------

    def send(self, now: int) -> None:
        """Ask for what waits, as far as there may be more in flight."""
        link, waiting, in_flight = self._link.usable, self._waiting, self._in_flight
        if link is None:
            return
        room = self._settings.fetch_in_flight_max - len(in_flight)
        if not in_flight:
            self._progress_at = now
        ranges = link.version >= RANGES_VERSION
        if not ranges:
            room = min(room, _SINGLES_MAX - len(in_flight))
        size = min(max(self._range_size, _RANGE_MIN), _RANGE_MAX) if ranges else 1
        while waiting and room > 0:
            ids = self._run(min(room, size))
            if not ids:
                continue
            in_flight.update(ids)
            room -= len(ids)
            often = ranges and self._failures.get(ids.start, 0) >= _COMPLAIN_AT and ids.start not in self._single
            if often or len(ids) >= _RANGE_MIN:
                req_id = self._link.req_id(self._ranges.ask((ids, now)))
                link.send(RecordRangeRequest(req_id, ids.start, ids.stop - 1, len(ids), 0, False))
                continue
            for transaction_id in ids:
                self._singles[transaction_id] = now
                link.send(TransactionDataRequest(self._link.req_id(self._link.take()), transaction_id))

    def _run(self, count_max: int) -> range:
        """The ids to ask for next, consecutive, at most `count_max`, taken from the queue; none if the first is moot.

        What waits in pieces goes together where one piece continues the other.
        """
        waiting, single = self._waiting, self._single
        first = waiting[0].start
        if self._moot(first):
            self._take(1)
            single.discard(first)
            return range(0)
        if first in single:
            return self._take(1)
        stop = first
        while waiting and waiting[0].start == stop and stop < first + count_max:
            ids = waiting[0][: first + count_max - stop]
            usual = not single or single.isdisjoint(ids)
            if not (usual and self._wanted.issuperset(ids) and self._in_flight.isdisjoint(ids)):
                usable = sum(1 for _ in takewhile(lambda each: not self._moot(each) and each not in single, ids))
                stop += len(self._take(usable)) if usable else 0
                break
            stop += len(self._take(len(ids)))
        return range(first, stop)

    def _moot(self, transaction_id: int) -> bool:
        """Nobody wants it any longer, or it is under way."""
        return transaction_id not in self._wanted or transaction_id in self._in_flight

    def _take(self, count: int) -> range:
        """The first `count` ids of the piece that waits first."""
        ids = self._waiting.popleft()
        if count < len(ids):
            self._waiting.appendleft(ids[count:])
        return ids[:count]

    # ---- time --------------------------------------------------------------------------------

    @property
    def again_at(self) -> int | None:
        """When a pause ends."""
        return self._paused[0][0] if self._paused else None

    def due(self, now: int) -> None:
        """End pauses, if it is time."""
        while self._paused and self._paused[0][0] <= now:
            _, transaction_id = heapq.heappop(self._paused)
            if transaction_id in self._wanted:
                self._waiting.append(range(transaction_id, transaction_id + 1))
            else:
                self._failures.pop(transaction_id, None)
        self.send(now)

    def owed_since(self) -> int | None:
        """Since when the server owes an answer."""
        return self._progress_at if self._in_flight else None

    def owed(self) -> Iterator[tuple[range, int]]:
        """What the server owes, each request by itself: the ids, and when it was asked for them."""
        yield from self._ranges
        for transaction_id, asked_at in self._singles.items():
            yield range(transaction_id, transaction_id + 1), asked_at


def _ranges(ids: Iterable[int]) -> list[range]:
    """The same ids in the same order, consecutive ones together."""
    made: list[range] = []
    for transaction_id in ids:
        if made and made[-1].stop == transaction_id:
            made[-1] = range(made[-1].start, transaction_id + 1)
        else:
            made.append(range(transaction_id, transaction_id + 1))
    return made


def _text(error: ErrorResponse) -> str:
    return error.message or "the log begins later"


def _payloads(records: Sequence[Record], count: int) -> list[bytes]:
    """The data of the first `count`."""
    if isinstance(records, RecordRun):
        return records.payloads(count)
    return [each.data for each in records[:count]]


def sound_records(records: Sequence[Record], first: int) -> int:
    """How many of the records continue the ids from `first` on.

    Raises:
        ChecksumError: data of one of them does not match its checksum.
    """
    count = records.sound(first) if isinstance(records, RecordRun) else 0
    while count < len(records) and records[count].transaction_id == first + count:
        verify(records[count].data, records[count].checksum)
        count += 1
    return count

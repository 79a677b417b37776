"""What a partition of a proxy is read from: the upstream server, each record once for all who ask at the same time.

    read ──▶ in memory? ── no ──▶ covered by a fetch under way? ── yes ──▶ waits for it ──▶ answered, or read again
                                       └── no ──▶ fetch ──▶ the disk, if it is there ── damaged ──┐
                                                    └─────▶ the server ──▶ memory, disk ◀─────────┘

A round of questions for the committed mark goes upstream as one question that leaves after the round began. It counts
as confirmed once our own mark has reached the answer: what is reported then is a committed mark, and no older one.
"""

from __future__ import annotations

from collections.abc import Sequence

from waltz_core.base.contract import Tickets
from waltz_core.base.log import Record
from waltz_core.base.outbox import Emits, Outbox
from waltz_core.base.record import record
from waltz_core.client.calls import RecordsCarried
from waltz_core.proxy.cache import CacheData, CacheEffect, CacheIndex, Place, decode_entry
from waltz_core.server.data_cache import DataCache
from waltz_core.store.session import SessionState
from waltz_core.store.session_notes import HeadersRead, ReadFailed, RecordsRead
from waltz_core.wire.records import headers_of

_CACHED_SIZE_MAX = 1 << 20  # bytes that one read gets from the cache, as from a server

ReadNote = HeadersRead | RecordsRead | ReadFailed


@record
class FetchWanted:
    """Read records upstream; `UpstreamSource.fetched` gets the answer under this token."""

    token: int
    first: int
    count: int


@record
class _Waiter:
    token: int
    first: int
    count: int
    headers_only: bool


@record
class _Fetch:
    first: int
    count: int
    waiters: list[_Waiter]
    place: Place | None = None  # on the disk


@record
class MarkWanted:
    """Ask upstream for the committed mark; `UpstreamSource.marked` gets the answer to this round."""

    number: int


class UpstreamSource:
    """Reads and rounds of one partition; both sides of `waltz_core.server.source`."""

    def __init__(
        self,
        partition_id: int,
        cache: DataCache,
        kept: CacheIndex,
        tickets: Tickets,
        wanted: Emits[FetchWanted | MarkWanted],
        disk: Emits[CacheEffect],
        notes: Outbox[ReadNote],
    ) -> None:
        self.partition_id = partition_id
        self.known = False  # where the log ends was heard
        self.reason = "the upstream server has not answered yet"
        self._cache = cache
        self._kept = kept  # on the disk, by all partitions
        self._tickets = tickets
        self._wanted = wanted
        self._disk = disk  # of all partitions, too: an entry stands where the index had it put
        self._notes = notes
        self._fetches: dict[int, _Fetch] = {}
        self._round = 0
        self._confirmed = 0
        self._marks: list[tuple[int, int]] = []  # (mark, round) of answers that we have not reached

    # ---- as a source ---------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """What is known can be given out, with or without the server."""
        return self.known

    @property
    def session(self) -> UpstreamSource | None:
        """Itself."""
        return self if self.known else None

    @property
    def state(self) -> SessionState:
        """It never ends."""
        return SessionState.OPEN

    def call_off(self, token: int) -> bool:
        """A read is under way at once."""
        return False

    # ---- marks ---------------------------------------------------------------------------------

    @property
    def confirmed(self) -> int:
        """The last round that may be answered with our mark."""
        return self._confirmed

    def confirm(self) -> int:
        """Begin a round."""
        self._round += 1
        self._wanted.put(MarkWanted(self._round))
        return self._round

    def marked(self, number: int, mark: int) -> None:
        """The server has confirmed a mark for a round, and so for all before it."""
        self._marks.append((mark, number))

    def reached(self, mark: int) -> None:
        """Our own mark."""
        if self._marks:
            self._confirmed = max([self._confirmed, *(number for wanted, number in self._marks if wanted <= mark)])
            self._marks = [waiting for waiting in self._marks if waiting[0] > mark]

    # ---- reads ---------------------------------------------------------------------------------

    def read_records(self, now: int, token: int, first: int, count: int) -> None:
        """Read records from `first` on."""
        self._read(_Waiter(token, first, count, headers_only=False))

    def read_headers(self, now: int, token: int, first: int, count: int) -> None:
        """Read record headers from `first` on: with the records, as who follows the feed wants them next."""
        self._read(_Waiter(token, first, count, headers_only=True))

    def _read(self, waiter: _Waiter) -> None:
        cached = self._cache.run(self.partition_id, waiter.first, waiter.count, _CACHED_SIZE_MAX)
        if cached:
            self._answer(waiter, cached)
            return
        for fetch in self._fetches.values():
            if fetch.first <= waiter.first < fetch.first + fetch.count:
                fetch.waiters.append(waiter)
                return
        self._fetch(waiter)

    def _fetch(self, waiter: _Waiter) -> None:
        token = self._tickets.take()
        place = self._kept.find(self.partition_id, waiter.first)
        if place is not None:
            self._fetches[token] = _Fetch(place.first, place.count, [waiter], place)
            self._disk.put(self._kept.read(self.partition_id, token, place))
            return
        self._fetches[token] = _Fetch(waiter.first, waiter.count, [waiter])
        self._wanted.put(FetchWanted(token, waiter.first, waiter.count))

    def fetched(self, answer: RecordsCarried) -> None:
        """The server has answered a fetch."""
        assert isinstance(answer.token, int)
        fetch = self._fetches.pop(answer.token, None)
        if fetch is None:
            return
        if answer.records is None:
            text = "the upstream server cannot read it"
            for waiter in fetch.waiters:
                self._notes.put(ReadFailed(waiter.token, f"transaction {waiter.first} cannot be read: {text}"))
            return
        self._disk.put_all(self._kept.add(self.partition_id, fetch.first, answer.records))
        self._arrived(fetch, answer.records)

    def _arrived(self, fetch: _Fetch, records: Sequence[Record]) -> None:
        self._cache.add(self.partition_id, fetch.first, records)
        for waiter in fetch.waiters:
            at = waiter.first - fetch.first
            if at < len(records):
                self._answer(waiter, records[at : at + waiter.count])
            else:
                self._read(waiter)

    def cached(self, answer: CacheData) -> None:
        """The disk has answered a fetch: with what was written, or it is fetched upstream."""
        self._kept.was_read()
        fetch = self._fetches.pop(answer.token, None)
        if fetch is None or fetch.place is None:
            return
        records = None if answer.data is None else decode_entry(answer.data, self.partition_id, fetch.place)
        if records is None:
            self._kept.forget(self.partition_id, fetch.place)
            for waiter in fetch.waiters:
                self._read(waiter)
        else:
            self._arrived(fetch, records)

    def disk_lost(self) -> bool:
        """The disk is given up: what it was asked for is read upstream; whether there is any."""
        lost = [token for token, fetch in self._fetches.items() if fetch.place is not None]
        for fetch in [self._fetches.pop(token) for token in lost]:
            for waiter in fetch.waiters:
                self._read(waiter)
        return bool(lost)

    def _answer(self, waiter: _Waiter, records: Sequence[Record]) -> None:
        if waiter.headers_only:
            headers = headers_of(records)
            self._notes.put(HeadersRead(waiter.token, headers))
        else:
            self._notes.put(RecordsRead(waiter.token, records))

"""Reads of one partition that are not feeds: payloads, ranges of records, the committed mark.

Payloads and ranges come from the cache or are read from a replica through the store session; the mark is confirmed by
a quorum before it is given out, or before a mount from ahead of it is refused (`MarkReads`). What cannot be read while
no session is open waits for the next one; what
one replica cannot read the session asks of another. Nothing is read for a connection that takes no data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from waltz_core.base.contract import earliest
from waltz_core.base.ids import ReqId
from waltz_core.base.pending import Pending
from waltz_core.server.archiving import Archiving
from waltz_core.server.config import PartitionConfig
from waltz_core.server.context import BulkRead, FeedRead, NodeContext, ReadFor, Reply, TicketsFor
from waltz_core.server.feeds import Feeds, Mount
from waltz_core.server.fetches import DataFetches
from waltz_core.server.marks import MarkReads
from waltz_core.server.peer import Peer
from waltz_core.server.ranges import RangeReads
from waltz_core.server.source import ReadSession, Source
from waltz_core.store.session import SessionState
from waltz_core.store.session_notes import HeadersRead, ReadFailed, RecordsRead
from waltz_core.wire import client_messages as messages


class Reads:
    """Who waits for what is read, and the reads under way, those of feeds included."""

    make_fetches: ClassVar[type[DataFetches]] = DataFetches

    def __init__(
        self,
        partition_id: int,
        config: PartitionConfig,
        context: NodeContext,
        ownership: Source,
        reading: Pending[ReadFor],
        feeds: Feeds,
        archiving: Archiving | None = None,
    ) -> None:
        self._archiving = archiving
        self._clients = context.clients
        self._ownership = ownership
        self._reading = reading
        self._feeds = feeds
        held, cache = context.waiting, context.data_cache
        self._fetches = self.make_fetches(partition_id, cache, TicketsFor(reading, BulkRead.PAYLOADS), held)
        self._ranges = RangeReads(partition_id, cache, TicketsFor(reading, BulkRead.RANGE), held)
        self._ranges.where_before = config.archive
        self._marks = MarkReads(held)

    @property
    def waiting(self) -> int:
        """Requests that wait for a read, or for its answer."""
        return self._fetches.waiting + self._ranges.waiting

    # ---- what clients ask --------------------------------------------------------------------

    def data_asked(self, peer: Peer, message: messages.TransactionDataRequest) -> None:
        """A client asks for a payload."""
        answer = self._fetches.ask(peer.conn, peer.owner, message.req_id, message.transaction_id)
        if answer is not None:
            self._clients.put(Reply(peer.conn, answer))

    def range_asked(self, peer: Peer, request: messages.RecordRangeRequest, mark: int) -> None:
        """A client asks for a range of records; no mount is needed."""
        answer = self._ranges.ask(peer.conn, peer.owner, request, mark)
        if answer is not None:
            self._clients.put(Reply(*answer))

    def mark_asked(self, now: int, peer: Peer, req_id: ReqId, mark: int) -> None:
        """Somebody asks for the committed mark; before the first session it is a number that is no mark, at once."""
        if self._ownership.known:
            self._marks.ask(now, peer.conn, peer.owner, req_id, peer.version)
        else:
            self._clients.put(Reply(peer.conn, messages.HighWaterMarkResponse(req_id, mark)))

    # ---- reads of replicas -------------------------------------------------------------------

    def launch(self, now: int, mark: int) -> None:
        """While a session is open: start reads of what was asked for and is not cached; confirm marks."""
        session = self._ownership.session
        if not self._ownership.open or session is None:
            return
        # Most steps have no read to start: they must not pay for those that have.
        if self._fetches.waiting or self._ranges.ready:
            self._launch_reads(now, mark, session)
        # Launching appends may have ended it, for a checkpoint.
        if (self._marks.wait or self._feeds.is_ahead) and session.state is SessionState.OPEN:
            self._confirm_marks(now, mark, session)

    def _confirm_marks(self, now: int, mark: int, session: ReadSession) -> None:
        for answer in self._marks.confirmed(session.confirmed, mark):
            if isinstance(answer, Mount):
                self._feeds.confirmed(answer, mark)
            else:
                self._clients.put(Reply(*answer))
        for mount in self._feeds.take_ahead():
            self._marks.ask_for_mount(now, mount)
        if self._marks.unasked:
            self._marks.begin(session.confirm())

    def _launch_reads(self, now: int, mark: int, session: ReadSession) -> None:
        def read(token: int, first: int, count: int) -> None:
            session.read_records(now, token, first, count)

        def read_range(token: int, first: int, count: int, headers_only: bool) -> None:
            if headers_only:
                session.read_headers(now, token, first, count)
            else:
                session.read_records(now, token, first, count)

        self._answer(self._fetches.launch(mark, read))
        self._answer(self._ranges.launch(mark, read_range))

    def answered(self, now: int, note: HeadersRead | RecordsRead | ReadFailed, mark: int) -> None:
        """A replica has answered a read, or none could."""
        match self._reading.take(note.token):
            case FeedRead(first):
                if isinstance(note, HeadersRead):
                    self._feeds.headers_read(note, first)
                else:
                    self._feeds.read_failed(now, first)
            case BulkRead.PAYLOADS if isinstance(note, RecordsRead):
                self._answer(self._fetches.records(note))
            case BulkRead.PAYLOADS if isinstance(note, ReadFailed):
                self._answer(self._fetches.failed(note, final=self._final))
            case BulkRead.ARCHIVE if self._archiving is not None and not isinstance(note, HeadersRead):
                self._archiving.read(now, note, final=self._final)
            case BulkRead.RANGE:
                answer = (
                    self._ranges.failed(note, final=self._final)
                    if isinstance(note, ReadFailed)
                    else self._ranges.done(note, mark)
                )
                if answer is not None:
                    self._clients.put(Reply(*answer))

    @property
    def _final(self) -> bool:
        """A read that fails in an open session fails for good; else the next session tries again."""
        session = self._ownership.session
        return session is not None and session.state is SessionState.OPEN

    def _answer(self, answers: Sequence[tuple[int, messages.ClientMessage]]) -> None:
        self._clients.put_all(Reply(conn, message) for conn, message in answers)

    # ---- time, sessions and connections ------------------------------------------------------

    def overdue(self, now: int) -> None:
        """Those who waited long enough for a confirmed mark."""
        late = self._marks.overdue(now, self._ownership.reason or "no quorum of storage nodes confirms it")
        if late:
            self._answer(late)

    def deadline(self, now: int) -> int | None:
        """When somebody has waited long enough, or the cache has more to give."""
        at_once = self._ownership.open and (self._ranges.ready or self._feeds.is_ahead)
        return earliest(self._marks.deadline(), now if at_once else None)

    def log_begins(self, start: int, floor: int) -> None:
        """The log begins at `start`; what is below `floor` is not given out any more."""
        self._ranges.log_start, self._ranges.floor = start, floor

    def session_ended(self) -> None:
        """No round of it confirms a mark any more."""
        self._marks.session_ended()

    def writable(self, conn: int, writable: bool) -> None:
        """A connection stopped or started taking data."""
        self._ranges.writable(conn, writable)
        self._fetches.writable(conn, writable)

    def gone(self, peer: Peer) -> None:
        """A connection ended: nobody waits for its answers."""
        self._ranges.gone(peer.conn)
        self._fetches.gone(peer.conn)
        self._marks.gone(peer.conn)

    def close(self) -> None:
        """The partition goes."""
        self._answer(self._fetches.close())
        self._clients.put_all(Reply(*answer) for answer in self._ranges.close())
        self._answer(self._marks.close("the partition is closed"))

"""Mounts, flushes and feeds of one partition: who hears of its transactions, and from where on.

A mount or a flush waits behind a *barrier* in the queue of appends: it is answered when everything that was queued
before it is decided. A mount that lags is first brought up to the mark; its answer is the end of that feed. A feed
request begins a feed behind the client's mark; while no store session is open it is held. A mount from ahead of the log
is answered once it is confirmed that this is the log (`Reads`).

This file owns the barriers and the held requests; `Feed` owns the subscriptions, `FeedCache` the newest frames.
"""

from __future__ import annotations

from collections.abc import Iterable

from waltz_core.base.edge import CloseConn
from waltz_core.base.ids import ReqId
from waltz_core.base.pending import Pending
from waltz_core.base.record import record
from waltz_core.server.config import PartitionConfig
from waltz_core.server.context import FeedRead, NodeContext, ReadFor, Reply
from waltz_core.server.feed import Feed, FeedEffect, ReadHeaders
from waltz_core.server.feed_cache import FeedCache, encode_frames, frames_of
from waltz_core.server.peer import Peer
from waltz_core.server.source import Beginning, Source
from waltz_core.store.session_notes import HeadersRead
from waltz_core.wire import client_messages as messages
from waltz_core.wire.client_codec import EXTENDED
from waltz_core.wire.headers import HasHeader

FeedMessage = messages.FeedRequest | messages.FeedWindowRequest


@record
class Mount:
    """Answered when everything before it is decided, and its client has been brought up to the mark."""

    conn: int
    owner: str
    req_id: ReqId
    client_mark: int
    version: int
    feed_windows: bool


@record
class Flush:
    """Answered when everything before it is decided."""

    conn: int
    req_id: ReqId


class Feeds:
    """Who waits behind which barrier, whose feed request is held, and the feed itself."""

    def __init__(
        self,
        partition_id: int,
        config: PartitionConfig,
        context: NodeContext,
        ownership: Source,
        log_start: Beginning,
        reading: Pending[ReadFor],
    ) -> None:
        self._partition_id = partition_id
        self._config = config
        self._clients = context.clients
        self._waiting = context.waiting
        self._ownership = ownership
        self._log_start = log_start
        self._reading = reading
        self._cache = FeedCache(config.feed_cache_bytes)
        self.feed = Feed(self._cache)
        self._barriers: dict[int, list[Mount | Flush]] = {}  # token → who waits for it
        self._held: list[tuple[Peer, FeedMessage]] = []
        self._reads: dict[int, int] = {}  # first id of a read for the feed → its token
        self._ahead: list[Mount] = []  # mounts from ahead of the log, not asked about yet

    @property
    def cache_misses(self) -> int:
        """Reads of the feed that had to ask a replica."""
        return self._cache.misses

    def limit(self, bytes_max: int) -> None:
        """This partition's share of the feed cache."""
        self._cache.limit(bytes_max)

    # ---- mounts and flushes ------------------------------------------------------------------

    def wait(self, peer: Peer, token: int, barrier: Mount | Flush) -> None:
        """A mount or a flush is answered when its barrier is passed."""
        self._barriers.setdefault(token, []).append(barrier)
        self._waiting.add(peer.conn, peer.owner, 1)

    def passed(self, token: int, mark: int) -> None:
        """Everything before a barrier is decided; the log is committed up to `mark`."""
        for barrier in self._barriers.pop(token):
            self._waiting.free(barrier.conn, 1)
            if isinstance(barrier, Flush):
                self._clients.put(Reply(barrier.conn, messages.FlushResponse(barrier.req_id, mark)))
            else:
                self._mounted(barrier, mark)

    def _mounted(self, mount: Mount, mark: int) -> None:
        if self._log_start.refuses(mount.conn, mount.req_id, mount.client_mark, mount.version):
            return
        if mount.feed_windows:
            self.feed.replace(mount.conn)
        gap = mark - mount.client_mark
        if gap < 0:
            self._ahead.append(mount)
            return
        response = messages.MountResponse(mount.req_id, messages.PartitionState.READY)
        if gap > 0:
            cut = mount.feed_windows and gap > self._config.mount_count_max
            budget = self._config.mount_count_max if cut else gap
            self._subscribe(mount.conn, mount.owner, mount.req_id, mount.client_mark, budget, response, cut=cut)
        else:
            self._clients.put(Reply(mount.conn, response))

    @property
    def is_ahead(self) -> bool:
        """Somebody mounts from ahead of the log; whether it is the log is to be confirmed."""
        return bool(self._ahead)

    def take_ahead(self) -> list[Mount]:
        """Those who do, for `confirmed`."""
        ahead, self._ahead = self._ahead, []
        return ahead

    def confirmed(self, mount: Mount, mark: int) -> None:
        """The log was committed up to `mark` after a mount had come from ahead of it."""
        if mark < mount.client_mark:
            response = messages.MountResponse(mount.req_id, messages.PartitionState.CLIENT_AHEAD)
            self._clients.put(Reply(mount.conn, response))
        else:
            self._mounted(mount, mark)

    # ---- feeds -------------------------------------------------------------------------------

    def asked(self, peer: Peer, message: FeedMessage, mark: int) -> None:
        """A client that may asks for a feed."""
        if not self._ownership.open:
            self._held.append((peer, message))
            self._waiting.add(peer.conn, peer.owner, 1)
            return
        where = f"partition {self._partition_id}"
        gap = mark - message.client_mark
        if self._log_start.refuses(peer.conn, message.req_id, message.client_mark, peer.version):
            return
        if gap < 0:
            text = f"{where}: feed asked behind {message.client_mark}, the log ends at {mark}"
            self._clients.put(CloseConn(peer.conn, text))
            return
        budget = max(gap, self._config.min_fetch_size)
        if type(message) is messages.FeedWindowRequest:
            budget = message.count
            if budget < 1:
                text = f"{where}: feed asked for {budget} transactions, expected at least 1"
                self._clients.put(CloseConn(peer.conn, text))
                return
        elif peer.version >= EXTENDED:
            budget = max(gap, self._config.feed_count_min)
        if peer.version >= EXTENDED:
            self.feed.replace(peer.conn)  # 0.13.2 asks for one at a time, and counts on each
        closing = messages.FeedSuspended(message.req_id)
        self._subscribe(peer.conn, peer.owner, message.req_id, message.client_mark, budget, closing)

    def _subscribe(
        self,
        conn: int,
        owner: str,
        req_id: ReqId,
        client_mark: int,
        budget: int,
        closing: messages.MountResponse | messages.FeedSuspended,
        *,
        cut: bool = False,
    ) -> None:
        # Java serves ids from client_mark + 1 on, which exist only from 0.
        self.feed.subscribe(conn, req_id, max(client_mark, -1), budget, closing, owner, cut=cut)

    def grown(self, now: int, first: int, transactions: Iterable[HasHeader]) -> None:
        """Transactions are committed: every live subscription gets their headers."""
        effects: list[FeedEffect] = []
        self.feed.committed(first, encode_frames(first, transactions), effects)
        self._perform(now, effects)

    def serve(self, now: int, *, busy: bool) -> None:
        """Give subscriptions that lag their turns, once per step; fewer while appends wait for their verdict."""
        if self.feed.unneeded:
            self._call_off_reads()
        effects: list[FeedEffect] = []
        self.feed.serve(now, effects, busy=busy)
        if effects:
            self._perform(now, effects)

    def _perform(self, now: int, effects: list[FeedEffect]) -> None:
        session = self._ownership.session
        for effect in effects:
            if not isinstance(effect, ReadHeaders):
                self._clients.put(effect)
            elif self._ownership.open and session is not None:
                token = self._reads[effect.first] = self._reading.ask(FeedRead(effect.first))
                session.read_headers(now, token, effect.first, effect.count)
            else:
                self.feed.read_failed(now, effect.first)

    def headers_read(self, note: HeadersRead, first: int) -> None:
        """A replica has answered."""
        del self._reads[first]
        self.feed.headers(first, frames_of(note.headers))

    def read_failed(self, now: int, first: int) -> None:
        """None could."""
        del self._reads[first]
        self.feed.read_failed(now, first)

    def _call_off_reads(self) -> None:
        """Those that nobody waits for any more, as far as they have not begun."""
        for first in self.feed.needless():
            if self._ownership.call_off(self._reads[first]):
                self._reading.take(self._reads.pop(first))
                self.feed.called_off(first)

    # ---- sessions and connections ------------------------------------------------------------

    def restart(self, mark: int, *, forget: bool = False) -> None:
        """The log resolved at `mark`, perhaps with transactions that we have not seen."""
        if forget:
            self._cache.clear()
        self.feed.restart(mark)

    def opened(self, mark: int) -> None:
        """A store session is open: requests that were held may be answered."""
        held, self._held = self._held, []
        for peer, request in held:
            self._waiting.free(peer.conn, 1)
            self.asked(peer, request, mark)

    def log_begins(self, start: int) -> None:
        """What is below is not given out any more."""
        for conn in self.feed.below(start):
            why = f"partition {self._partition_id}: its feed is below the log start, {start}"
            self._clients.put(CloseConn(conn, why))

    def gone(self, peer: Peer) -> None:
        """A connection ended: nobody waits for its answers."""
        self.feed.gone(peer.conn)
        self._call_off_reads()
        for waiting in self._barriers.values():
            waiting[:] = [barrier for barrier in waiting if barrier.conn != peer.conn]
        self._held = [held for held in self._held if held[0].conn != peer.conn]
        self._ahead = [mount for mount in self._ahead if mount.conn != peer.conn]

    def close(self) -> None:
        """The partition goes: whoever waits here is let go.

        Mounts are answered: a client of 0.13.2 sends the next one only after an answer, a cut, or a change of the
        server, and if the partition comes back here it may see none of them. All else a client asks anew once it
        has mounted.
        """
        barriers = [barrier for waiting in self._barriers.values() for barrier in waiting]
        for barrier in barriers:
            self._waiting.free(barrier.conn, 1)
        for mount in [*self._ahead, *(barrier for barrier in barriers if isinstance(barrier, Mount))]:
            response = messages.MountResponse(mount.req_id, messages.PartitionState.NOT_READY)
            self._clients.put(Reply(mount.conn, response))
        for peer, _ in self._held:
            self._waiting.free(peer.conn, 1)
        self._barriers = {token: [] for token in self._barriers}
        self._held = []
        self._ahead = []

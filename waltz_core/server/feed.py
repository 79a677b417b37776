"""Streams committed transactions to mounted clients: live ones at the mark, lagging ones in slices.

```
               at the mark, connection writable
 LAGGING ─────────────────────────────────────────► LIVE
  ▲ │  ▲ ◄──────────────────────────────────────────┘  at a commit, when the connection takes no more
  │ │  └── answered, or failed ── READING                    headers that the cache has no longer, from a replica
  │ ├──── turn, not cached ────────►┘
  │ └──── turn, not cached, and so many reads are under way ──► STALLED ──── one has ended, turn ────► as LAGGING
  └ subscribed                         any state ──► ENDED   budget used up, replaced, connection gone
```

A commit is encoded once: every LIVE subscription gets the same bytes, in the same step. A LAGGING one gets a slice per
turn, so that those that are far behind share the time that is left, and none of them delays the live ones. While
appends are being committed, turns cost from an allowance. One read of a replica serves all that wait for the
same first id. So many are under way and no more, and those who wait for one to end take turns, too; a read for which
nobody waits any more counts until it is answered, unless it can be called off (`needless`, `called_off`).

A subscription owns its position and its budget; the mark is moved by commits alone, and nothing above it is ever sent.
Nothing here is durable: after a lost connection the client mounts again at the mark that it has.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

from waltz_core.base.ids import ReqId
from waltz_core.base.record import record
from waltz_core.base.turns import Allowance, Turns
from waltz_core.server.feed_cache import FRAME_SIZE, FeedCache, to_block_end
from waltz_core.wire.client_messages import FeedSuspended, MountResponse

_SLICE = 4096  # frames one lagging subscription gets per turn
_TURNS_PER_STEP = 16  # bounds the time of one step
_TURNS_BUSY = 3  # while appends wait for their verdict, which takes several steps, and shortly after
_BUSY_MS = 50  # after appends were last seen to wait: their client's next ones are on their way
# In such times a turn is paid for by what it costs, in units of a tenth of a microsecond, which a frame takes from the
# cache to the socket: a sixth of the time is for those who lag, however many of them ask, and how often.
_BUSY_COST = 1_600  # a millisecond
_BUSY_COST_MAX = 2 * _SLICE  # saved
_HEADER_COST = 40  # of each that is read from a replica: most of it there, where appends wait for it, too
_READS_MAX = 8  # reads under way
_RETRY_MS = 100
_FEEDS_MAX = 4  # of one connection; a client uses one at a time, and a mount beside it


@record
class SendFrames:
    """Feed frames under codec version 0, for one connection; the sender patches the version."""

    conn: int
    frames: bytes


@record
class SendReply:
    """A message to one connection, in order with its feed frames."""

    conn: int
    message: MountResponse | FeedSuspended


@record
class ReadHeaders:
    """Read record headers from a replica; answered by `headers` or `read_failed`."""

    first: int
    count: int


FeedEffect: TypeAlias = SendFrames | SendReply | ReadHeaders


class _State(enum.Enum):
    LIVE = "at the mark"
    LAGGING = "waits for its turn, and until its connection takes more"
    READING = "waits for headers from a replica"
    STALLED = "waits for one of the reads under way to end, to begin its own"
    ENDED = "used up, replaced, or without a connection"


class _Subscription:
    __slots__ = ("closing", "conn", "cut", "owner", "position", "remaining", "state")

    def __init__(
        self,
        conn: int,
        owner: str,
        position: int,
        remaining: int,
        closing: MountResponse | FeedSuspended,
        *,
        cut: bool,
    ) -> None:
        self.conn = conn
        self.owner = owner  # of the connection
        self.position = position  # last id sent
        self.remaining = remaining  # ids left in its budget
        self.closing = closing  # goes out behind the last one
        self.cut = cut  # a mount that ends before the mark: FeedSuspended comes first
        self.state = _State.LAGGING


class Feed:
    """All subscriptions of one partition.

    A subscription gets ids `position + 1 …` without gaps until its budget is used up, then its closing
    message; several may exist on one connection. It ends early with its connection, or when it is replaced.
    Those that lag get slices in turns (`waltz_core.base.turns`).
    """

    __slots__ = (
        "_allowance",
        "_blocked",
        "_busy_until",
        "_cache",
        "_lagging",
        "_live",
        "_of",
        "_positions",
        "_reads",
        "_replaced",
        "_retry_at",
        "_stalled",
        "lagging_added",
        "live_added",
        "mark",
        "served",
        "unneeded",
    )

    def __init__(self, cache: FeedCache) -> None:
        self._cache = cache
        self.mark = -1  # highest id that may be sent
        self._of: dict[int, list[_Subscription]] = {}  # conn → its subscriptions, the oldest first
        self._positions: dict[int, int] = {}  # conn → highest id it was sent, or said that it has
        self._live: dict[_Subscription, None] = {}
        self._lagging: Turns[_Subscription] = Turns(1)
        self._stalled: Turns[_Subscription] = Turns(1)
        self._reads: dict[int, dict[_Subscription, None]] = {}  # first id of a read under way → who waits
        self.unneeded: dict[int, None] = {}  # those that nobody waits for, since the last look
        self._blocked: set[int] = set()  # connections that take no more
        self._replaced: list[SendReply] = []
        self._retry_at: int | None = None
        self._busy_until = 0
        self._allowance = Allowance(_BUSY_COST, _BUSY_COST_MAX)
        self.served = 0  # transactions sent
        self.live_added = 0  # subscriptions that came to be live, so far; one counts again each time
        self.lagging_added = 0

    def restart(self, mark: int) -> None:
        """The log resolved at `mark`, possibly with transactions that we have not seen."""
        self.mark = mark
        self.lagging_added += len(self._live)
        for subscription in self._live:
            self._lag(subscription)
        self._live.clear()

    def subscribe(
        self,
        conn: int,
        req_id: ReqId,
        client_mark: int,
        budget: int,
        closing: MountResponse | FeedSuspended,
        owner: str = "",
        *,
        cut: bool = False,
    ) -> None:
        """Start a feed behind `client_mark` for `budget` transactions.

        The oldest of a connection that has too many ends without a word: its client has asked for others since.
        """
        assert budget > 0
        assert client_mark <= self.mark
        subscription = _Subscription(conn, owner, client_mark, budget, closing, cut=cut)
        self._positions[conn] = max(client_mark, self._positions.get(conn, client_mark))
        others = self._of.setdefault(conn, [])
        others.append(subscription)
        self._place(subscription)
        if len(others) > _FEEDS_MAX:
            self._end_oldest(conn, others)
        self.lagging_added += subscription.state is not _State.LIVE

    def _end_oldest(self, conn: int, subscriptions: list[_Subscription]) -> None:
        """Make room for the newest: the oldest feed ends with its closing message, as the client counts its windows.

        Only where all of them are mounts does the oldest mount end, without a word: the client has mounted again since.
        """
        feeds = (one for one in subscriptions[:-1] if type(one.closing) is FeedSuspended)
        oldest = next(feeds, subscriptions[0])
        self._end(oldest)
        if type(oldest.closing) is FeedSuspended:
            self._replaced.append(SendReply(conn, oldest.closing))

    def replace(self, conn: int) -> None:
        """End the feeds that a connection asked for, with their closing messages; a mount under way goes on.

        A client that drops what it has no room for asks again and again, and would get every transaction
        once for each of its feeds.
        """
        for subscription in [s for s in self._of.get(conn, ()) if type(s.closing) is FeedSuspended]:
            self._end(subscription)
            self._replaced.append(SendReply(conn, subscription.closing))

    def below(self, start: int) -> set[int]:
        """Connections that wait for transactions before `start`."""
        return {conn for conn, found in self._of.items() if any(one.position + 1 < start for one in found)}

    def _end(self, subscription: _Subscription) -> None:
        state, subscription.state = subscription.state, _State.ENDED
        if state is _State.READING:
            first = subscription.position + 1
            del self._reads[first][subscription]
            if not self._reads[first]:
                self.unneeded[first] = None
        elif state is not _State.LIVE:
            (self._lagging if state is _State.LAGGING else self._stalled).remove(subscription.conn, subscription)
        self._live.pop(subscription, None)
        found = self._of[subscription.conn]
        found.remove(subscription)
        if not found:
            del self._of[subscription.conn]

    def committed(self, first: int, frames: bytes, out: list[FeedEffect]) -> None:
        """Transactions from `first` on were committed; every live subscription gets the same bytes."""
        assert first == self.mark + 1, (first, self.mark)
        count = len(frames) // FRAME_SIZE
        self._cache.add(first, frames)
        self.mark += count
        ended: list[_Subscription] = []
        for subscription in self._live:
            if subscription.conn in self._blocked:
                ended.append(subscription)
                self.lagging_added += 1
                self._lag(subscription)
            elif self._send(subscription, frames, out):
                ended.append(subscription)
        for subscription in ended:
            del self._live[subscription]
            if not subscription.remaining:
                self._end(subscription)

    def headers(self, first: int, frames: bytes) -> None:
        """A read was answered; an answer without frames is tried again."""
        if frames:
            self._cache.add(first, frames)
        self._answered(first)

    def read_failed(self, now: int, first: int) -> None:
        """A read found no replica that could answer."""
        if self._reads[first]:
            self._retry_at = now + _RETRY_MS
        self._answered(first)

    def _answered(self, first: int) -> None:
        for subscription in self._reads.pop(first):
            self._lag(subscription)

    def needless(self) -> list[int]:
        """First ids of reads that nobody waits for any more, once each; `called_off` if no answer will come."""
        needless, self.unneeded = self.unneeded, {}
        return [first for first in needless if not self._reads.get(first, True)]

    def called_off(self, first: int) -> None:
        """A read that nobody waits for is not under way any more."""
        assert not self._reads[first]
        del self._reads[first]

    def writable(self, conn: int, writable: bool) -> None:
        """A connection stopped or started taking data."""
        (self._blocked.discard if writable else self._blocked.add)(conn)
        self._lagging.block(conn, not writable)
        self._stalled.block(conn, not writable)

    def gone(self, conn: int) -> None:
        """A connection ended, and its subscriptions with it."""
        for subscription in list(self._of.get(conn, ())):
            self._end(subscription)
        self._positions.pop(conn, None)
        self._blocked.discard(conn)
        self._lagging.drop(conn)
        self._stalled.drop(conn)

    def serve(self, now: int, out: list[FeedEffect], *, busy: bool = False) -> None:
        """Give lagging subscriptions their turns; call once per step."""
        if self._replaced:
            out += self._replaced
            self._replaced = []
        if self._retry_at is not None:
            if now < self._retry_at:
                return
            self._retry_at = None
        if busy:
            self._busy_until = now + _BUSY_MS
        tight = now < self._busy_until
        if tight:
            self._allowance.refill(now)
        if not self._lagging.size and not self._stalled.size:
            return
        waiting = self._lagging.size + min(self._stalled.size, _READS_MAX - len(self._reads))
        for _ in range(min(_TURNS_BUSY if tight else _TURNS_PER_STEP, waiting)):
            if tight and self._allowance.left <= 0:
                return
            taken = (self._stalled if self._may_read else self._lagging).take()
            if taken is None:
                return
            cost = self._turn(taken[1], out)
            self._allowance.left -= cost if tight else 0

    @property
    def _may_read(self) -> bool:
        """Whether one that is stalled may go on."""
        return self._stalled.ready and len(self._reads) < _READS_MAX

    def deadline(self, now: int) -> int | None:
        """Now if somebody waits for a turn."""
        if not self._lagging.size and not self._stalled.size:
            return None
        if not self._lagging.ready and not self._may_read:
            return None
        if self._retry_at is not None:
            return self._retry_at
        return self._allowance.some(now) if now < self._busy_until else now

    def lag(self) -> tuple[int, int]:
        """Numbers of live subscriptions and of others."""
        return len(self._live), sum(map(len, self._of.values())) - len(self._live)

    def behind(self) -> list[tuple[int, int]]:
        """Connections that were not sent everything, and how many transactions each has yet to get."""
        mark = self.mark
        return [(conn, mark - position) for conn, position in self._positions.items() if position < mark]

    def _turn(self, subscription: _Subscription, out: list[FeedEffect]) -> int:
        """Give one its turn; what that cost."""
        first = subscription.position + 1
        if first > self.mark:
            self._place(subscription)
            return 1
        room = min(_SLICE, subscription.remaining, self.mark - subscription.position)
        frames = self._cache.get(first, room)
        if not frames:
            return self._read(first, subscription, out)
        if self._send(subscription, frames, out):
            self._end(subscription)
        else:
            self._place(subscription)
        return len(frames) // FRAME_SIZE

    def _read(self, first: int, subscription: _Subscription, out: list[FeedEffect]) -> int:
        waiting = self._reads.get(first)
        if waiting is None and len(self._reads) >= _READS_MAX:
            subscription.state = _State.STALLED
            self._stalled.put(subscription.conn, subscription.owner, 1, subscription)
            return 1
        subscription.state = _State.READING
        if waiting is not None:
            waiting[subscription] = None
            return 1
        self._reads[first] = {subscription: None}
        count = min(to_block_end(first), self.mark - first + 1)
        out.append(ReadHeaders(first, count))
        return _HEADER_COST * count

    def _place(self, subscription: _Subscription) -> None:
        if subscription.position == self.mark and subscription.conn not in self._blocked:
            subscription.state = _State.LIVE
            self.live_added += 1
            self._live[subscription] = None
        else:
            self._lag(subscription)

    def _lag(self, subscription: _Subscription) -> None:
        subscription.state = _State.LAGGING
        self._lagging.put(subscription.conn, subscription.owner, 1, subscription)

    def _send(self, subscription: _Subscription, frames: bytes, out: list[FeedEffect]) -> bool:
        """Send what the budget allows; True when that was all of it."""
        count = len(frames) // FRAME_SIZE
        if count > subscription.remaining:
            count = subscription.remaining
            frames = frames[: count * FRAME_SIZE]
        out.append(SendFrames(subscription.conn, frames))
        subscription.position += count
        subscription.remaining -= count
        if subscription.position > self._positions[subscription.conn]:
            self._positions[subscription.conn] = subscription.position
        self.served += count
        if subscription.remaining:
            return False
        if subscription.cut:
            out.append(SendReply(subscription.conn, FeedSuspended(subscription.closing.req_id)))
        out.append(SendReply(subscription.conn, subscription.closing))
        return True

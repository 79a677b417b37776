"""What a partition of a proxy carries upstream for others: which append comes next, and how much is under way.

    put ──▶ turns of clients ──▶ carried ──▶ decided: a flush that left behind it was answered, and the feed is there
              ▲ blocked: too much under way                  │
              └──────────────────────────────────────────────┘

The server upstream sees one client, the proxy, and serves what that sends in the order in which it came. So clients
take their turns here, by the rules of a server (`waltz_core/server/append_queue`): the appends of one that waits for
each of its own do not stand behind all that others have sent ahead. While such a client is about, what the others have
under way is bounded to a window; all together it always is, to several, for who mounts waits for that. How much it is,
is known by flushes: one leaves as soon as enough is under way, and what was carried before it is decided when it is
answered.

A barrier is passed on, with the next flush, when everything that it stands behind was carried.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol, TypeAlias

from waltz_core.base.contract import earliest
from waltz_core.base.ids import ReqId, req_client
from waltz_core.base.record import record
from waltz_core.proxy.under_way import UnderWay
from waltz_core.server.append_queue import AppendQueue, Barrier, Run, Sender, cost_of, payload_bytes, sender_of
from waltz_core.server.light import LEAST
from waltz_core.server.peer import Peer
from waltz_core.wire import client_messages as messages

_HEARTBEAT_MS = 2_000  # between flushes that nobody asked for: they tell how old what we hold is
_WINDOWS = 40  # that may be under way at most: a tenth of a second or two of what a server commits

Append: TypeAlias = messages.AppendRequest | messages.NamedAppendRequest


class Way(Protocol):
    """What is needed of the client machine upstream."""

    def carry(self, partition_id: int, append: Append, /) -> bool:
        """Send an append of somebody; False while that cannot be sent."""

    def barrier(self, now: int, partition_id: int, /) -> ReqId | None:
        """Ask behind everything that was carried for a partition; None while that cannot be sent."""


@record
class Flushed:
    """One flush upstream, and whom it answers."""

    left_at: int
    round: int  # of what was carried before it
    tokens: tuple[int, ...]


class Carriage:
    """Appends and barriers of one partition."""

    __slots__ = (
        "_answered",
        "_asked",
        "_asked_at",
        "_conns",
        "_costs",
        "_flights",
        "_gathering",
        "_last_token",
        "_partition_id",
        "_queue",
        "_under_way",
        "_window",
        "heard_at",
        "open",
    )

    def __init__(self, partition_id: int, turn: int, window: int, pace: int) -> None:
        self._partition_id = partition_id
        self._window = window
        self._queue = AppendQueue(turn, window, pace)
        self._under_way = UnderWay()
        self._conns: dict[int, bool] = {}  # that append → whether some went over the present upstream connection
        self._costs: dict[int, int] = {}  # client → cost of what was carried for it since the last flush
        self._flights: deque[tuple[int, dict[int, int]]] = deque()  # the same of rounds that are not decided
        self._last_token = 0
        self._gathering: list[int] = []  # tokens of those who wait for the next flush
        self._asked: dict[ReqId, Flushed] = {}
        self._answered: list[tuple[int, Flushed]] = []  # with the mark that we must reach first
        self._asked_at: int | None = None  # when the last flush left; None: none did over this mount
        self.open = False  # the upstream connection is mounted
        self.heard_at: int | None = None  # when the last flush left that was answered; None: none was yet

    # ---- for others to see -------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Something is to be sent upstream."""
        return bool(self._queue or self._gathering or self._costs)

    @property
    def queued(self) -> int:
        """Appends and barriers that wait here."""
        return self._queue.queued

    @property
    def under_way(self) -> int:
        """Clients that may have an append under way."""
        return len(self._under_way)

    def has_under_way(self, client_id: int) -> bool:
        """Whether a client may have an append under way, here or upstream."""
        return client_id in self._under_way

    def conn_of(self, client_id: int) -> int | None:
        """The connection that refusals of a client's appends go to; None: nobody is to hear of them any more."""
        return self._under_way.conn_of(client_id)

    def crowded(self, count_max: int, bytes_max: int) -> bool:
        """Whether more appends, or bytes of them, wait than should."""
        return self._queue.held.total > count_max or self._queue.bytes_held.total > bytes_max

    def greedy(self, client_id: int, count_max: int, bytes_max: int) -> bool:
        """Whether a client has more of these than its fair part."""
        return self._queue.held.greedy(client_id, count_max) or self._queue.bytes_held.greedy(client_id, bytes_max)

    def hinders(self, client_id: int) -> bool:
        """Whether others, who have few appends under way, would have to wait for those of a client."""
        return self._queue.hinders(client_id)

    # ---- clients -----------------------------------------------------------------------------

    def put(self, now: int, peer: Peer, requests: list[Append]) -> None:
        """Appends of one connection, in order; the list is ours from here on."""
        sender = sender_of(peer)
        self._conns.setdefault(peer.conn, False)
        for client_id, count in _clients(sender, requests):
            self._under_way.taken(client_id, peer.conn, count)
        self._queue.put(now, sender, requests)

    def token(self) -> int:
        """One for a barrier that nothing has to be waited for."""
        self._last_token += 1
        return self._last_token

    def barrier(self, peer: Peer) -> int:
        """The token of a barrier behind everything of a client that is here; `reached` gives it back."""
        token = self.token()
        standing = self._queue.barrier(token, sender_of(peer))
        if standing is not None:
            return standing
        self._gathering.append(token)
        return token

    def gone(self, conn: int) -> None:
        """A connection ended; what came over it may still commit."""
        self._conns.pop(conn, None)
        self._under_way.gone(conn)

    # ---- upstream ------------------------------------------------------------------------------

    def mounted(self, is_open: bool) -> None:
        """The mount upstream has changed: flushes under way get no answer, so what waits for them asks again."""
        self.open = is_open
        self._asked_at = None
        for flush in self._asked.values():
            self._gathering += flush.tokens
        self._asked.clear()
        self._flights.clear()
        self._costs.clear()
        self._queue.nothing_flies()

    def lost(self) -> list[int]:
        """The upstream connection was lost; the connections whose appends it has carried."""
        carried = [conn for conn, was_carried in self._conns.items() if was_carried]
        self._conns |= dict.fromkeys(carried, False)
        return carried

    def answered(self, answer: messages.FlushResponse) -> None:
        """The server has decided everything before a flush."""
        flush = self._asked.pop(answer.req_id, None)
        if flush is not None:
            self.heard_at = flush.left_at
            self._answered.append((answer.transaction_id, flush))

    def reached(self, now: int, mark: int) -> list[int]:
        """Our own mark; the tokens of those who waited for it."""
        tokens: list[int] = []
        waiting, self._answered = self._answered, []
        for wanted, flush in waiting:
            if wanted > mark:
                self._answered.append((wanted, flush))
                continue
            tokens += flush.tokens
            self._under_way.decided(flush.round)
            while self._flights and self._flights[0][0] <= flush.round:
                self._queue.landed(self._flights.popleft()[1].items(), now)
        return tokens

    def send(self, now: int, upstream: Way) -> None:
        """Appends in the order of their turns, then one flush for all who wait behind what was carried."""
        if not self.open:
            return
        flight_max = self._window * _WINDOWS
        while self._queue.flying < flight_max and (item := self._queue.take(now)) is not None:
            if isinstance(item, Barrier):
                self._gathering.append(item.token)
            elif not self._carry(upstream, item):
                break
        self._gathering += [barrier.token for barrier in self._queue.free_barriers()]
        if self._gathering or self._much_flies() or self._is_due(now):
            self._flush(now, upstream)

    def _much_flies(self) -> bool:
        """So much that clients may have to wait until it is known what has become of it."""
        much = min(self._window, LEAST) // 2
        return bool(self._costs) and not self._asked and self._queue.flying > much

    def _is_due(self, now: int) -> bool:
        due = self._flush_due()
        return due is not None and due <= now

    def _flush(self, now: int, upstream: Way) -> None:
        req_id = upstream.barrier(now, self._partition_id)
        self._asked_at = now
        if req_id is not None:
            gathered, self._gathering = tuple(self._gathering), []
            flush = self._asked[req_id] = Flushed(now, self._under_way.flushed(), gathered)
            if self._costs:
                self._flights.append((flush.round, self._costs))
                self._costs = {}

    def _carry(self, upstream: Way, run: Run) -> bool:
        """Send a run; False if the rest of it must wait."""
        begin, end, sender = run.at, len(run.appends), run.sender
        at = begin
        while at < end and upstream.carry(self._partition_id, run.appends[at]):
            at += 1
        if at > begin:
            cost = cost_of(at - begin, payload_bytes(run.appends, begin, at))
            for client_id, count in _clients(sender, run.appends[begin:at]):
                self._under_way.carried(client_id, count)
            if sender.conn in self._conns:
                self._conns[sender.conn] = True
            self._costs[sender.client_id] = self._costs.get(sender.client_id, 0) + cost
            self._queue.used(run, at)
            self._queue.launched(sender, cost)
        if at < end:
            self._queue.put_back(run)
        return at == end

    def deadline(self, now: int) -> int | None:
        """When something is to be sent, or a flush, though nothing comes before."""
        return earliest(self._flush_due(), self._queue.due(now) if self.open else None)

    def _flush_due(self) -> int | None:
        """When a flush is sent though nobody asked; at once over a new mount, and never while one is under way."""
        if not self.open or self._asked:
            return None
        return 0 if self._asked_at is None else self._asked_at + _HEARTBEAT_MS


def _clients(sender: Sender, requests: list[Append]) -> list[tuple[int, int]]:
    """Whose appends they are, and how many of each in a row."""
    if not sender.carries_others:
        return [(sender.client_id, len(requests))]
    return [(req_client(request.req_id), 1) for request in requests]

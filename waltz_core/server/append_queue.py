"""Which of the appends that wait in a partition comes next.

    enqueue ──▶ turns (one queue for each client) ──▶ a batch ──▶ in flight ──▶ decided
                  ▲ blocked: too much in flight                      │
    head ◀────────┴───────── the session ended: returned ◀───────────┘

Clients take turns (`Turns`): owners first, then the clients of an owner. Appends of one client stay in the order in
which they came, over whichever connections they came, since clients conclude from the fate of one append that those
before it are decided. What must not lose its place comes before all turns, in the *head*: what was in flight when a
session ended, and the rest of what did not fit into a batch.

Turns alone are not enough: storage nodes and feeds serve what is in flight in order. A client that keeps few appends
in flight and waits for each would wait for everything that others have sent ahead. So while such a *light* client is
active, the others together have at most `window` in flight, each its fair share, and keep to a pace (`light`). Heavy
clients among themselves need neither: long flights make large batches, and they all wait alike.

Each limit of a partition guards something else. The cost of an append is 1, and 1 more for each KiB of its payload and
for ten locks (in flight, locks cost nothing: they have been checked).

    limit         guards                     per whom           unit                   held by      past the limit
    turn          the order of appends       owner, then its    cost taken in a row    Turns        others come first
                                             clients
    window        the wait of light clients  client: its fair   cost in flight         _regulate    waits here until
                  behind what is in flight   part of the whole                                      some is decided
    pace          the time of server, nodes  all heavy clients  cost launched in 1 ms  LightClients waits here until a
                  and light clients          together                                               turn is saved up
    queueCountMax memory                     client: its fair   appends, and bytes of  ClientPort   its connections are
                                             part of the whole  payloads, that wait                 not read from

Turn and queueCountMax always hold, window and pace only beside a light client. None of them refuses anything: an append
past a limit waits here, or, in the last row, at its client. What is refused (too large, too many locks, of another
generation) never comes here; see `waltz_core/server/intake`.

A barrier stands behind everything of its client, and behind everything that came over connections that carry
appends of other clients, which may be the same client's. It says nothing of the rest of the queue: clients do not
know what others have sent, unless it was committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from waltz_core.base.record import record
from waltz_core.base.turns import Shares, Turns
from waltz_core.base.twins import twin
from waltz_core.server.light import LEAST, LightClients
from waltz_core.server.peer import Peer
from waltz_core.wire.client_messages import AppendRequest, NamedAppendRequest
from waltz_core.wire.storage_codec import HasRecord

Append: TypeAlias = AppendRequest | NamedAppendRequest
"""Both have the same attributes; the second gets the reason for the refusal."""

TURN = 100  # cost of a turn, and appends of a piece that is handed out as a whole
WINDOW = 250  # cost in flight, of those who are not light, while somebody is: a hundredth of a second or two
PACE = 10  # cost a millisecond that those who are not light have launched beside one, a turn at a time
_COST_BYTES = 1 << 10  # of payloads that cost as much as one append
_COST_LOCKS = 10  # locks that do
_FEW = 8  # appends of a frame's size or more, of which the locks are counted


@twin
def payload_bytes(requests: Sequence[HasRecord], first: int, end: int) -> int:
    """Bytes of the payloads of `requests[first:end]`."""
    return sum([len(request.data) for request in requests[first:end]])


def locks_of(requests: Sequence[Append]) -> int:
    """How many locks a few appends have; many that came in one piece are small, and so are their locks."""
    count = 0
    if len(requests) <= _FEW:
        for request in requests:
            if request.write_locks or request.read_locks or request.append_locks:
                for locks in (request.write_locks, request.read_locks, request.append_locks):
                    count += len(locks or ())
    return count


@record
class Sender:
    """Whose appends they are."""

    conn: int
    client_id: int
    owner: str = ""  # of the connection: who shares with whom
    carries_others: bool = False  # appends of other clients come over it too


def sender_of(peer: Peer) -> Sender:
    """Of what comes over a connection that has mounted."""
    assert peer.client_id is not None
    return Sender(peer.conn, peer.client_id, peer.owner, peer.carries_others)


class Run:
    """Appends of one client that came together; those before `at` are decided."""

    __slots__ = ("appends", "at", "cost", "received", "sender")

    def __init__(self, sender: Sender, appends: list[Append], received: int) -> None:
        self.sender = sender
        self.appends = appends
        self.received = received
        self.cost = 0  # of a turn
        self.at = 0


@record
class Take:
    """Appends of a run that are in one batch, next to each other."""

    run: Run
    count: int
    cost: int


def cost_of(count: int, size: int) -> int:
    """Of appends with so many bytes."""
    return count + size // _COST_BYTES


class Barrier:
    """Passed when every append that it stands behind has its verdict."""

    __slots__ = ("places", "token")

    def __init__(self, token: int, places: int = 1) -> None:
        self.token = token
        self.places = places  # queues of clients in which it stands


class AppendQueue:
    """Appends and barriers that wait for the lock check."""

    __slots__ = (
        "_carriers",
        "_flying",
        "_head",
        "_last",
        "_light",
        "_now",
        "_over",
        "_turn",
        "_turns",
        "_window",
        "bytes_held",
        "held",
        "queued",
        "queued_bytes",
    )

    def __init__(self, turn: int = TURN, window: int = WINDOW, pace: int = PACE) -> None:
        self._turn = turn
        self._window = window
        self._head: deque[Run | Barrier] = deque()
        self._turns: Turns[Run | Barrier] = Turns(turn)  # by client id
        self._last: dict[int, Barrier] = {}  # client id → the barrier behind which nothing of it waits
        self._carriers: dict[int, None] = {}  # clients of which something waits that may be of others
        self._flying = Shares()  # cost in flight, by client id
        self._over: dict[int, None] = {}  # clients whose turn must wait
        self._light = LightClients(pace, turn, self._under_way)
        self._now = 0
        self.held = Shares()  # appends that wait, by client id
        self.bytes_held = Shares()  # their payloads
        self.queued = 0  # appends and barriers
        self.queued_bytes = 0  # bytes of payloads

    def __bool__(self) -> bool:
        return bool(self.queued)

    # ---- in --------------------------------------------------------------------------------------

    def put(self, now: int, sender: Sender, requests: list[Append]) -> None:
        """Appends of one connection, in order; the list is ours from here on."""
        self._now = now
        client = sender.client_id
        pieces = [requests]
        if len(requests) > self._turn:
            pieces = [requests[at : at + self._turn] for at in range(0, len(requests), self._turn)]
        cost = 0
        for piece in pieces:
            run = Run(sender, piece, now)
            size = self._hold(run)
            run.cost = cost_of(len(piece), size) + locks_of(piece) // _COST_LOCKS
            cost += run.cost
            self._turns.put(client, sender.owner, run.cost, run)
        if self._last:
            self._last.pop(client, None)
        if sender.carries_others:
            self._carriers[client] = None
        if self.held.total + self._flying.total > self._window:
            self._look_for_light(now, sender, cost)
        self._regulate(client)

    def _hold(self, run: Run) -> int:
        """Count what waits by who sent it; the bytes of its payloads."""
        sender, count = run.sender, len(run.appends)
        size = payload_bytes(run.appends, 0, count)
        self.held.add(sender.client_id, sender.owner, count)
        self.bytes_held.add(sender.client_id, sender.owner, size)
        self.queued += count
        self.queued_bytes += size
        return size

    def _look_for_light(self, now: int, sender: Sender, cost: int) -> None:
        """Whether somebody has little that waits or is in flight, beside others that have much."""
        held, flying, client, owner = self.held, self._flying, sender.client_id, sender.owner
        waiting = cost_of(held.part(client), self.bytes_held.part(client))
        mine = max(waiting, cost) + flying.part(client)  # with the locks of what has come now
        fair = min(held.fair(client, owner, self._window), flying.fair(client, owner, self._window))
        if self._light.sent(now, client, little=mine <= max(fair, LEAST)):
            for heavy in flying:
                self._regulate(heavy)

    def barrier(self, token: int, sender: Sender) -> int | None:
        """A barrier behind what was received so far; its token, or that of one that stands there and serves both.

        None if nothing waits that it must stand behind.
        """
        places = self._places_of(sender)
        if not places:
            if not self._head:
                return None
            last = self._head[-1]
            if isinstance(last, Barrier):
                return last.token
            self.put_barrier(Barrier(token))
            return token
        standing = self._last.get(places[0])
        if standing is not None and all(self._last.get(client) is standing for client in places):
            return standing.token
        barrier = Barrier(token, len(places))
        for client in places:
            self._turns.put(client, sender.owner, 0, barrier)
            self._last[client] = barrier
        self.queued += 1
        return token

    def put_barrier(self, barrier: Barrier) -> None:
        """One that stands behind the head and before all turns."""
        self._head.append(barrier)
        self.queued += 1

    def _places_of(self, sender: Sender) -> list[int]:
        """Clients of which something waits that a barrier must stand behind."""
        if sender.carries_others:
            return self._turns.waiting()
        return [client for client in {sender.client_id: None} | self._carriers if self._turns.waits(client)]

    # ---- out -------------------------------------------------------------------------------------

    def take(self, now: int) -> Run | Barrier | None:
        """What comes next; None if nothing may."""
        self._now = now
        if self._head:
            return self._taken(self._head.popleft())
        if self._over and (self._light.refreshed(now) or not self._light.any(now)):
            for client in list(self._over):
                self._regulate(client)
        while (turn := self._turns.take()) is not None:
            client, item = turn
            if isinstance(item, Run):
                if self._light.others_wait(now, client) and self._light.launched(now, item.cost):
                    for other in self._turns.waiting():
                        self._regulate(other)
                self._left(client)
                return item
            self._left(client)
            item.places -= 1
            if not item.places:
                return self._taken(item)
        return None

    def _taken(self, item: Run | Barrier) -> Run | Barrier:
        if isinstance(item, Barrier):
            self.queued -= 1
        return item

    def _left(self, client: int) -> None:
        """Something has left the queue of a client."""
        if not self._turns.waits(client):
            self._turns.drop(client)
            if self._last:
                self._last.pop(client, None)
            if self._carriers:
                self._carriers.pop(client, None)

    def put_back(self, run: Run) -> None:
        """The rest of a run comes before everything else."""
        self._head.appendleft(run)

    def used(self, run: Run, end: int) -> None:
        """The appends of a run before `end` have left the queue."""
        client, count, size = run.sender.client_id, end - run.at, payload_bytes(run.appends, run.at, end)
        self.queued -= count
        self.queued_bytes -= size
        self.held.free(client, count)
        self.bytes_held.free(client, size)
        run.at = end

    def free_barriers(self) -> Iterator[Barrier]:
        """Barriers that stand behind nothing; to be used up."""
        while self._head and isinstance(barrier := self._head[0], Barrier):
            self._head.popleft()
            self.queued -= 1
            yield barrier
        if self._head:
            return
        for client in self._turns.waiting():
            while isinstance(first := self._turns.first(client), Barrier):
                self._turns.take_first(client)
                self._left(client)
                first.places -= 1
                if not first.places:
                    self.queued -= 1
                    yield first

    def take_all(self) -> list[Run | Barrier]:
        """Everything, in an order in which it may stand in the head."""
        self._light.forget()
        self._let_all()
        items = []
        while (item := self.take(self._now)) is not None:
            if isinstance(item, Run):
                rest = item.appends[item.at :]
                self.used(item, len(item.appends))
                item.appends, item.at = rest, 0
            items.append(item)
        assert not self.queued
        return items

    def set_head(self, items: Iterable[Run | Barrier]) -> None:
        """These come before everything else, in this order."""
        items = list(items)
        self._head.extendleft(reversed(items))
        for item in items:
            if isinstance(item, Run):
                self._hold(item)
            else:
                self.queued += 1

    # ---- in flight -------------------------------------------------------------------------------

    def launched(self, sender: Sender, cost: int) -> None:
        """Appends are in flight."""
        self._flying.add(sender.client_id, sender.owner, cost)
        self._regulate(sender.client_id)

    @property
    def flying(self) -> int:
        """Cost of what is in flight."""
        return self._flying.total

    def landed(self, costs: Iterable[tuple[int, int]], now: int) -> None:
        """Appends are not in flight any more, by client and cost: some who had too much there may go on."""
        free, lights = self._flying.free, self._light.any(now)
        for client, cost in costs:
            free(client, cost)
            if lights:
                self._light.landed(now, client)
        if self._over:
            for client in list(self._over):
                self._regulate(client)

    def _under_way(self, client: int) -> int:
        """What a client waits for."""
        return self.held.part(client) + self._flying.part(client)

    def hinders(self, client: int) -> bool:
        """Whether the appends of a client wait so that those of a light one need not wait for all of them."""
        return client in self._over

    def due(self, now: int) -> int | None:
        """When something may be taken that has to wait now; what could be taken already waits for something else."""
        due = self._light.due(now) if self._over else None
        return due if due is not None and due > now else None

    def nothing_flies(self) -> None:
        """The session ended."""
        self._flying = Shares()
        self._let_all()

    def _regulate(self, client: int) -> None:
        waits = self._light.others_wait(self._now, client)
        over = waits and (self._light.spent or self._flying.greedy(client, self._window))
        if over:
            self._over[client] = None
        elif client in self._over:
            del self._over[client]
        else:
            return
        self._turns.block(client, over)

    def _let_all(self) -> None:
        for client in self._over:
            self._turns.block(client, False)
        self._over.clear()

"""Whose work is done next at a port where everybody may connect, and how much before others run.

    something came over a connection ──▶ ask ──▶ turns of owners ──▶ round: a measure of it ──▶ is parsed, and handled

A port works between the other work of its process: what it reads in one round of the event loop, everybody waits for
in each of the several rounds that an answer takes. So each round does a measure of it, and owners take turns in that
(`waltz_core/base/turns`): whoever keeps many connections at work, or sends what costs much, delays others by a turn of
each owner, not by all that he has sent. A connection belongs to the caller that it was last admitted as; until then,
and once it is refused, to its address. What is refused has cost its owner as much as what is answered.

Turns say who is next. Who waits for an answer from elsewhere asks for no turn meanwhile, and all idle time would go to
whoever sends on; the answer then finds the process at work, in each of its rounds. So while a request of another owner
is under way, an owner has a quarter of the time: what it does above that, it rests for. A few requests that come
together are no more than their part. When nothing at all is to be done in this process, nobody takes the time that a
rest keeps free: who rests has it then, one piece of work at a time, and for nothing. What comes next waits for one such
piece, and not in each of its rounds: while those go on, the process is not idle.

Who begins to rest is put aside when his turn comes, and recalled when his rest ends. So what a turn costs does not grow
with those who rest, who may be as many as there are addresses.

Who sends requests ahead of the answers that he has to wait for, while he rests, asks for more than his part, and the
port may say so. Who waits for his answers may rest as well, and has done nothing wrong.

Costs are about microseconds of the process's time. Requests are counted besides: a port answers so many in a second.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from waltz_core.base.turns import Turns

REQUEST: Final = 500
"""Of a request with little in it, from its head to its answer."""
PIECE: Final = 50
"""Of a further piece of one."""
CONNECTION: Final = 250
"""Of taking one on."""
HANDSHAKE: Final = 1_500
"""Of TLS."""
STREAM: Final = 3_000
"""Of an answer without an end: what feeds it is opened."""
PARTS: Final = 32
"""Chunks of a body, or frames of a message, that are looked at in one turn: a peer may send thousands of one byte."""
PART: Final = 20
"""Of each of those."""
_BYTES: Final = 64  # of text, which are parsed in a microsecond
_BYTES_READ: Final = 4  # of the text of records, which are read from a cluster and written in one
_MEASURE = 1_000  # of a round
_TURN = 500
_PART = 4  # of the time: so much passes for each piece of work of an owner, as long as others wait for answers
_AHEAD = 0.01  # seconds that it may be ahead of that
_SECOND = 1_000_000  # of cost
_FEW = 64  # rests that are kept though they may have ended
_HAIR = 1e-6  # what fractions add up to may be so much less than a whole request, for which no clock moves on


def cost_of(size: int) -> int:
    """Of parsing so many bytes."""
    return size // _BYTES


def cost_of_records(size: int) -> int:
    """Of reading records whose text has so many bytes, from their request to the answer."""
    return STREAM + size // _BYTES_READ


def cost_of_feeding(size: int) -> int:
    """Of records that a feed for one reader brings, from the cluster to their text, which has so many bytes."""
    return PIECE + size // _BYTES_READ


class PortTurns:
    """What waits at one port; at most one piece of work of each connection."""

    __slots__ = (
        "_burst",
        "_delayed",
        "_ends",
        "_left",
        "_many",
        "_now",
        "_rate",
        "_recalls",
        "_rests",
        "_short",
        "_tokens",
        "_turns",
        "_unclaimed",
        "_under_way",
    )

    def __init__(self, rate: float, burst: int) -> None:
        self._turns: Turns[tuple[str, int, bool]] = Turns(_TURN)  # whose, what it costs, whether it is a request
        self._under_way: dict[str, int] = {}  # owner → requests that wait for their answers
        self._rests: dict[str, float] = {}  # owner → until when it has done its part; also some that have ended
        self._many = _FEW  # of those: it is time to look which have ended
        self._recalls: dict[str, float] = {}  # owner → when it is recalled
        self._ends: list[tuple[float, str]] = []  # the same as a heap; also some that were brought forward
        self._unclaimed: dict[int, float] = {}  # connection → rest for its request, as long as nobody is admitted
        self._left = _MEASURE  # of this round
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._now = 0.0
        self._short = False  # more requests came than are answered in a second
        self._delayed: set[int] = set()  # connections whose request waits for that, or came ahead of a rest

    def __len__(self) -> int:
        """How much waits."""
        return len(self._turns)

    @property
    def resting(self) -> bool:
        """Whether all that waits does so because its owner rests: `idle` would give a turn."""
        return bool(self._turns) and not self._turns.ready and self._may()

    def begin(self, owner: str) -> None:
        """A request is under way: what answers it does not lie in these turns."""
        self._under_way[owner] = self._under_way.get(owner, 0) + 1
        self._recall_only()

    def end(self, owner: str) -> None:
        """It has its answer, or is given up."""
        self._under_way[owner] -= 1
        if not self._under_way[owner]:
            del self._under_way[owner]
            self._recall_only()

    def came(self, conn: int) -> None:
        """A new connection: its first request costs what taking the connection on does, too."""
        self._unclaimed[conn] = 0.0

    def admitted(self, now: float, conn: int, before: str, owner: str) -> None:
        """The request of a connection is an owner's, and no longer of whom it counted for before: so is its rest."""
        rest = self._unclaimed.pop(conn, 0.0)
        if not rest or before == owner:
            return
        if before in self._rests:
            self._rests[before] -= rest
            self._turns.recall(before)
        self._rests_for(now, owner, rest)

    def at_once(self, now: float, conn: int, owner: str, cost: int, *, request: bool) -> bool:
        """Whether work can be done without a turn: nobody waits, and the measure of this round is not used up.

        Who waits because he rests is overtaken.
        """
        self._look(now)
        self._turns.put_aside(self._lies_down)
        waits = self._turns.ready or (bool(self._turns) and not self._under_way)
        if waits or self._rested(owner) > now or self._left <= 0 or not self._may():
            return False
        self._done(conn, owner, cost, request=request)
        return True

    def ask(self, conn: int, owner: str, cost: int, *, request: bool, ahead: bool = False) -> None:
        """Work waits for its turn.

        Args:
            conn: whose connection has one piece of work at a time.
            owner: whose turn it is.
            cost: of the work.
            request: it is a new one.
            ahead: it came before the answer to the one before; the turn says so if its owner rests now.
        """
        self._turns.put(conn, owner, cost, (owner, cost, request))
        if self._short or (ahead and self._rested(owner) > self._now):
            self._delayed.add(conn)

    def drop(self, conn: int) -> None:
        """The work of a connection is given up."""
        self._turns.drop(conn)
        self._delayed.discard(conn)

    def gone(self, conn: int) -> None:
        """A connection is gone, and its work with it."""
        self.drop(conn)
        self._unclaimed.pop(conn, None)

    def round(self, now: float) -> list[tuple[int, bool]]:
        """The event loop has gone round: whose turn it is now, and whether it had to wait for too many requests.

        What was done above the measure is paid for by the next round, and no more than that.
        """
        self._look(now)
        self._left = min(_MEASURE, max(self._left, -_MEASURE) + _MEASURE)
        turns: list[tuple[int, bool]] = []
        while self._left > 0 and self._turns:
            if not self._may():
                self._run_short()
                return turns
            taken = self._turns.take(self._lies_down)
            if taken is None and not self._under_way:
                taken = self._turns.take_aside()  # nobody waits for an answer any more
            if taken is None:
                return turns
            conn, (owner, cost, request) = taken
            self._done(conn, owner, cost, request=request)
            turns.append(self._turn(conn))
        self._short = self._short and bool(self._turns)
        return turns

    def idle(self, now: float) -> list[tuple[int, bool]]:
        """Nothing is to be done in this process: the turn of somebody who rests, as of a round."""
        self._look(now)
        taken = self._turns.take_aside() if self._left > 0 and self._may() else None
        if taken is None:
            return []
        conn, (_, cost, request) = taken
        self._left -= cost
        self._tokens -= request
        return [self._turn(conn)]

    def due(self, now: float) -> float | None:
        """When the next round is worth it: at once if something waits or was done, later while there is too much.

        Later, too, if all who wait rest; None: nothing waits.
        """
        self._look(now)
        if self._short and not self._may():
            return now + (1 - self._tokens) / self._rate
        self._turns.put_aside(self._lies_down)
        if self._left < _MEASURE or self._turns.ready:
            return now
        if not self._turns:
            return None
        return self._ends[0][0] if self._under_way else now

    def _look(self, now: float) -> None:
        """Time has passed: some have rested enough."""
        self._tokens = min(float(self._burst), self._tokens + (now - self._now) * self._rate)
        self._now = now
        while self._ends and self._ends[0][0] <= now:
            at, owner = heappop(self._ends)
            if self._recalls.get(owner) == at:
                del self._recalls[owner]
                self._turns.recall(owner)

    def _may(self) -> bool:
        """Whether a request may be answered now, of so many in a second."""
        return self._tokens >= 1 - _HAIR

    def _turn(self, conn: int) -> tuple[int, bool]:
        self._turns.drop(conn)  # whose it is may have changed when it asks again
        delayed = conn in self._delayed
        self._delayed.discard(conn)
        return conn, delayed

    def _done(self, conn: int, owner: str, cost: int, *, request: bool) -> None:
        self._left -= cost
        self._tokens -= request
        if request:
            self._unclaimed.setdefault(conn, 0.0)
        if self._others(owner):
            rest = _PART * cost / _SECOND
            self._rests_for(self._now, owner, rest)
            if conn in self._unclaimed:
                self._unclaimed[conn] += rest

    # ---- rests -----------------------------------------------------------------------------------

    def _rests_for(self, now: float, owner: str, rest: float) -> None:
        self._rests[owner] = max(now, self._rests.get(owner, now)) + rest
        if len(self._rests) > self._many:
            self._rests = {owner: until for owner, until in self._rests.items() if until > now}
            self._many = _FEW + 2 * len(self._rests)

    def _others(self, owner: str) -> bool:
        """Whether somebody else has something under way."""
        return len(self._under_way) > (owner in self._under_way)

    def _rested(self, owner: str) -> float:
        """Until when an owner has no turn, as things are."""
        return self._rests.get(owner, 0.0) - _AHEAD if self._others(owner) else 0.0

    def _lies_down(self, owner: str) -> bool:
        """Whether an owner has no turn now; then it is recalled when it has."""
        until = self._rested(owner)
        if until <= self._now:
            return False
        known = self._recalls.get(owner)
        if known is None or until < known:
            self._recalls[owner] = until
            heappush(self._ends, (until, owner))
        return True

    def _recall_only(self) -> None:
        """Who alone has something under way does not rest."""
        if len(self._under_way) == 1:
            self._turns.recall(next(iter(self._under_way)))

    def _run_short(self) -> None:
        if not self._short:
            self._short = True
            self._delayed.update(self._turns.waiting())

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
together are no more than their part.

Costs are about microseconds of the process's time. Requests are counted besides: a port answers so many in a second.
"""

from __future__ import annotations

from collections.abc import Container
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
_HAIR = 1e-6  # what fractions add up to may be so much less than a whole request, for which no clock moves on


def cost_of(size: int) -> int:
    """Of parsing so many bytes."""
    return size // _BYTES


def cost_of_records(size: int) -> int:
    """Of reading records whose text has so many bytes, from their request to the answer."""
    return STREAM + size // _BYTES_READ


class PortTurns:
    """What waits at one port; at most one piece of work of each connection."""

    __slots__ = ("_at", "_burst", "_delayed", "_left", "_rate", "_rests", "_short", "_tokens", "_turns", "_under_way")

    def __init__(self, rate: float, burst: int) -> None:
        self._turns: Turns[tuple[str, int, bool]] = Turns(_TURN)  # whose, what it costs, whether it is a request
        self._under_way: dict[str, int] = {}  # owner → requests that wait for their answers
        self._rests: dict[
            str, float
        ] = {}  # owner → until when it has done its part, as long as others wait for answers
        self._left = _MEASURE  # of this round
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._at = 0.0
        self._short = False  # more requests came than are answered in a second
        self._delayed: set[int] = set()  # connections whose request had to wait for that

    def __len__(self) -> int:
        """How much waits."""
        return len(self._turns)

    def begin(self, owner: str) -> None:
        """A request is under way: what answers it does not lie in these turns."""
        self._under_way[owner] = self._under_way.get(owner, 0) + 1

    def end(self, owner: str) -> None:
        """It has its answer, or is given up."""
        self._under_way[owner] -= 1
        if not self._under_way[owner]:
            del self._under_way[owner]

    def admitted(self, now: float, address: str, owner: str) -> None:
        """A request that came from an address is an owner's: so is what it took of the time."""
        if address in self._rests:
            self._rests[address] -= _PART * REQUEST / _SECOND
        self._count(now, owner, REQUEST)

    def at_once(self, now: float, owner: str, cost: int, *, request: bool) -> bool:
        """Whether work can be done without a turn: nobody waits, and the measure of this round is not used up.

        Who waits because he rests is overtaken.
        """
        resting = self._resting(now)
        waits = owner in resting or any(other not in resting for other in self._turns.owners())
        if waits or self._left <= 0 or not self._may(now):
            return False
        self._done(now, owner, cost, request=request)
        return True

    def ask(self, conn: int, owner: str, cost: int, *, request: bool) -> None:
        """Work waits for its turn."""
        self._turns.put(conn, owner, cost, (owner, cost, request))
        if self._short:
            self._delayed.add(conn)

    def drop(self, conn: int) -> None:
        """A connection is gone, and its work with it."""
        self._turns.drop(conn)
        self._delayed.discard(conn)

    def round(self, now: float) -> list[tuple[int, bool]]:
        """The event loop has gone round: whose turn it is now, and whether it had to wait for too many requests.

        What was done above the measure is paid for by the next round, and no more than that.
        """
        self._left = min(_MEASURE, max(self._left, -_MEASURE) + _MEASURE)
        turns: list[tuple[int, bool]] = []
        while self._left > 0 and self._turns:
            if not self._may(now):
                self._run_short()
                return turns
            taken = self._turns.take(self._resting(now))
            if taken is None:
                return turns
            conn, (owner, cost, request) = taken
            self._turns.drop(conn)  # whose it is may have changed when it asks again
            self._done(now, owner, cost, request=request)
            turns.append((conn, conn in self._delayed))
            self._delayed.discard(conn)
        self._short = self._short and bool(self._turns)
        return turns

    def due(self, now: float) -> float | None:
        """When the next round is worth it: at once if something waits or was done, later while there is too much.

        Later, too, if all who wait rest; None: nothing waits.
        """
        if self._short and not self._may(now):
            return now + (1 - self._tokens) / self._rate
        if self._left < _MEASURE:
            return now
        resting = self._resting(now)
        owners = self._turns.owners()
        return min((self._rests[owner] - _AHEAD if owner in resting else now for owner in owners), default=None)

    def _may(self, now: float) -> bool:
        """Whether a request may be answered now, of so many in a second."""
        self._tokens = min(float(self._burst), self._tokens + (now - self._at) * self._rate)
        self._at = now
        return self._tokens >= 1 - _HAIR

    def _done(self, now: float, owner: str, cost: int, *, request: bool) -> None:
        self._left -= cost
        self._tokens -= request
        self._count(now, owner, cost)

    def _count(self, now: float, owner: str, cost: int) -> None:
        if self._others(owner):
            self._rests[owner] = max(now, self._rests.get(owner, now)) + _PART * cost / _SECOND

    def _others(self, owner: str) -> bool:
        """Whether somebody else has something under way."""
        return len(self._under_way) > (owner in self._under_way)

    def _resting(self, now: float) -> Container[str]:
        self._rests = {owner: until for owner, until in self._rests.items() if until > now}
        return {owner for owner, until in self._rests.items() if until > now + _AHEAD and self._others(owner)}

    def _run_short(self) -> None:
        if not self._short:
            self._short = True
            self._delayed.update(self._turns.waiting())

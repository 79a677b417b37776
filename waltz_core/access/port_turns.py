"""Whose work is done next at a port where everybody may connect, and how much before others run.

    something came over a connection ──▶ ask ──▶ turns of owners ──▶ round: a measure of it ──▶ is parsed, and handled

A port works between the other work of its process: what it reads in one round of the event loop, everybody waits for
in each of the several rounds that an answer takes. So each round does a measure of it, and owners take turns in that
(`waltz_core/base/turns`): whoever keeps many connections at work, or sends what costs much, delays others by a turn of
each owner, not by all that he has sent. A connection belongs to the caller that it was last admitted as; until then,
and once it is refused, to its address. What is refused has cost its owner as much as what is answered.

Costs are about microseconds of the process's time. Requests are counted besides: a port answers so many in a second.
"""

from __future__ import annotations

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
PARTS: Final = 32
"""Chunks of a body, or frames of a message, that are looked at in one turn: a peer may send thousands of one byte."""
_BYTES: Final = 64  # of text, which are parsed in a microsecond
_MEASURE = 1_000  # of a round
_TURN = 500
_HAIR = 1e-6  # what fractions add up to may be so much less than a whole request, for which no clock moves on


def cost_of(size: int) -> int:
    """Of parsing so many bytes."""
    return size // _BYTES


class PortTurns:
    """What waits at one port; at most one piece of work of each connection."""

    __slots__ = ("_at", "_burst", "_delayed", "_left", "_rate", "_short", "_tokens", "_turns")

    def __init__(self, rate: float, burst: int) -> None:
        self._turns: Turns[tuple[int, bool]] = Turns(_TURN)  # what it costs, and whether it is a request
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

    def at_once(self, now: float, cost: int, *, request: bool) -> bool:
        """Whether work can be done without a turn: nobody waits, and the measure of this round is not used up."""
        if self._turns or self._left <= 0 or not self._may(now):
            return False
        self._done(cost, request=request)
        return True

    def ask(self, conn: int, owner: str, cost: int, *, request: bool) -> None:
        """Work waits for its turn."""
        self._turns.put(conn, owner, cost, (cost, request))
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
            taken = self._turns.take()
            assert taken is not None
            conn, (cost, request) = taken
            self._turns.drop(conn)  # whose it is may have changed when it asks again
            self._done(cost, request=request)
            turns.append((conn, conn in self._delayed))
            self._delayed.discard(conn)
        self._short = self._short and bool(self._turns)
        return turns

    def due(self, now: float) -> float | None:
        """When the next round is worth it: at once if something waits or was done, later while there is too much.

        None: nothing waits.
        """
        if self._short and not self._may(now):
            return now + (1 - self._tokens) / self._rate
        return now if self._turns or self._left < _MEASURE else None

    def _may(self, now: float) -> bool:
        """Whether a request may be answered now, of so many in a second."""
        self._tokens = min(float(self._burst), self._tokens + (now - self._at) * self._rate)
        self._at = now
        return self._tokens >= 1 - _HAIR

    def _done(self, cost: int, *, request: bool) -> None:
        self._left -= cost
        self._tokens -= request

    def _run_short(self) -> None:
        if not self._short:
            self._short = True
            self._delayed.update(self._turns.waiting())

"""Which clients keep few appends under way, and how much of others' may go beside them.

    few under way ──put──▶ LIGHT ──much under way, or nothing under way for a while──▶ others

A light client waits for each append before it sends the next ones. All that is committed meanwhile is between it and
them: storage nodes and feeds serve the log in order, and every mounted client is sent all of it. So beside a light
client the others have no more than a *pace*: a burst, and the next one when it has been saved up. What time they would
take without it is the time of the server, of the storage nodes, and of the light client itself.

It stays light for as long as it waits: what holds it up for seconds, such as a disk, must not let the others send ahead
by the hundred thousand, all of which it would have to be sent before it hears of its own.

A client that had much under way is not light as soon as that has been decided: it is between two bursts of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from waltz_core.base.turns import Allowance

LIGHT_MS = 1_000  # after appends of a light client, and what became of them: it may be about to send more
HEAVY_MS = 1_000  # after a client was seen to have much under way
LEAST = 50  # cost under way of a client that is light however many there are


class Recent:
    """Clients of which something was seen within so many milliseconds."""

    __slots__ = ("_ms", "_until", "clients")

    def __init__(self, ms: int) -> None:
        self._ms = ms
        self._until: dict[int, int] = {}  # the oldest first
        self.clients: Collection[int] = self._until  # always the same: to look whether there are any, without a call

    def saw(self, now: int, client: int) -> None:
        """Something of a client."""
        self._until.pop(client, None)
        self._until[client] = now + self._ms

    def forget(self, client: int) -> None:
        """It does not count any more."""
        self._until.pop(client, None)

    def holds(self, now: int, client: int) -> bool:
        """Whether it counts."""
        return self._until.get(client, now) > now

    def ended(self, now: int) -> list[int]:
        """Those that do not count any more, once."""
        ended: list[int] = []
        for client, until in self._until.items():
            if until > now:
                break
            ended.append(client)
        for client in ended:
            del self._until[client]
        return ended

    def until(self) -> int | None:
        """When the last one stops to count; None if none does."""
        return next(reversed(self._until.values())) if self._until else None


class LightClients:
    """Who is light, and what the others may have launched at this moment."""

    __slots__ = ("_heavy", "_lights", "_pace", "_saved_at", "_under_way", "spent")

    def __init__(self, pace: int, burst: int, under_way: Callable[[int], int]) -> None:
        self._under_way = under_way  # what a client has sent that is not decided
        self._lights = Recent(LIGHT_MS)
        self._heavy = Recent(HEAVY_MS)
        self._pace = Allowance(pace, burst)
        self._saved_at = 0
        self.spent = False  # the others wait until they have saved up a burst

    def sent(self, now: int, client: int, *, little: bool) -> bool:
        """A client has little under way, or much; whether it is the first light one."""
        if not little:
            self._heavy.saw(now, client)
            self._lights.forget(client)
        elif not self._heavy.holds(now, client):
            first = self._until(now) is None
            self._lights.saw(now, client)
            return first
        return False

    def landed(self, now: int, client: int) -> None:
        """Something of a client is decided; what it sends next comes when it has heard of that."""
        if self._lights.holds(now, client):
            self._lights.saw(now, client)

    def _until(self, now: int) -> int | None:
        """When nobody will be light any more, if nothing comes; None if nobody is."""
        for client in self._lights.ended(now):
            if self._under_way(client):
                self._lights.saw(now, client)
        return self._lights.until()

    def forget(self) -> None:
        """Nobody is light."""
        self._lights = Recent(LIGHT_MS)
        self.spent = False

    def any(self, now: int) -> bool:
        """Whether somebody is light."""
        return bool(self._lights.clients) and self._until(now) is not None

    def others_wait(self, now: int, client: int) -> bool:
        """Whether somebody is light, and this client is not."""
        return bool(self._lights.clients) and self._until(now) is not None and not self._lights.holds(now, client)

    def launched(self, now: int, cost: int) -> bool:
        """Work of somebody who is not light is launched beside light ones; whether that was all for now."""
        self._pace.refill(now)
        self._pace.left -= cost
        self._saved_at = self._pace.full(now)
        self.spent = self._pace.left <= 0
        return self.spent

    def due(self, now: int) -> int | None:
        """When the others need not wait any more for what they have used up; None if they do not."""
        if not self.spent:
            return None
        until = self._until(now)
        return now if until is None else min(until, self._saved_at)

    def refreshed(self, now: int) -> bool:
        """Whether those who had used up their burst have another one now."""
        due = self.due(now)
        if due is None or now < due:
            return False
        self.spent = False
        return True

"""Who may keep a connection to a process, and for how long: places, quotas by address, and idleness. Pure rules.

A connection begins *unproven*. It is proven once it has asked for something (client ports) or has shown the cluster key
(ports of storage nodes). An unproven connection ends after `unproven_ms`, and earlier where its place is needed for
somebody else: it costs a peer nothing, so a newcomer must never be refused in favour of it. A proven one keeps its
place as long as bytes come from it; clients of 0.13.2 and ours send a keep-alive when they have written nothing for
600 s, so `idle_ms` must be well above that. Where no place is left, one that has been silent for half of `idle_ms`
yields too, the one that has been silent longest: its peer is gone, or keeps to no protocol.

Members of the cluster (certificates with the role of a server, a storage node or an operator) are under no quota, and
`reserved` places are theirs alone, so that clients cannot keep servers from their storage nodes.
"""

from __future__ import annotations

import heapq

import attrs

from waltz_core.base.contract import earliest
from waltz_core.base.record import record


@record
class Places:
    """Limits on the connections of one process; 0 = none."""

    count_max: int = 0  # connections
    reserved: int = 0  # of those, for members only
    per_address_max: int = 0  # connections from one address, members apart
    unproven_ms: int = 0  # an unproven connection ends after this time
    idle_ms: int = 0  # a proven one after this time without a byte

    def for_members(self, known: bool) -> Places:
        """Without roles no peer is known as a member, and a reserve would stay empty."""
        return self if known else attrs.evolve(self, reserved=0)


UNLIMITED = Places()


@record
class Eviction:
    """A connection that must end, and why."""

    conn: int
    reason: str
    quiet: bool = False  # the log has had the like of it from the same address less than a minute ago


_REPORT_EVERY_MS = 60_000
_REPORTED_MAX = 1000  # addresses remembered


class Admission:
    """The connections that one process has accepted."""

    __slots__ = ("_address", "_counts", "_heard", "_members", "_places", "_reported", "_silences", "_unproven")

    def __init__(self, places: Places = UNLIMITED) -> None:
        assert not places.count_max or places.reserved < places.count_max
        self._places = places
        self._address: dict[int, str] = {}  # of every connection
        self._members: set[int] = set()
        self._counts: dict[str, int] = {}  # address → connections of it that are no members
        self._unproven: dict[int, int] = {}  # conn → when it came, the oldest first
        self._heard: dict[int, int] = {}  # proven conn → when its last byte came, the most silent first
        self._reported: dict[str, int] = {}  # address → when the log last had an eviction of it
        self._silences: list[tuple[int, int]] = []  # heap of (when to look, conn)

    def accepted(self, now: int, conn: int, address: str, *, member: bool = False) -> list[Eviction]:
        """Take note of a new connection; what must end for it, which may be itself."""
        evicted = [] if member else self._make_room_at(now, address)
        if evicted is None:
            count = self._counts[address]
            text = f"{count} connections from {address} are open, the limit for one address"
            return [self._eviction(now, conn, address, text)]
        places = self._places
        limit = places.count_max if member else places.count_max - places.reserved
        if places.count_max and len(self._address) >= limit:
            oldest = next((one for one in self._unproven if member or one not in self._members), None)
            why = "it has asked for nothing, and its place is needed"
            if oldest is None:
                oldest, why = self._silent(now), "it has been silent, and its place is needed"
            if oldest is None:
                text = f"{len(self._address)} connections are open, the limit"
                return [*evicted, self._eviction(now, conn, address, text)]
            evicted.append(self._evict(now, oldest, why))
        self._address[conn] = address
        self._unproven[conn] = now
        if member:
            self._members.add(conn)
        else:
            self._counts[address] = self._counts.get(address, 0) + 1
        return evicted

    def _evict(self, now: int, conn: int, reason: str) -> Eviction:
        address = self._address[conn]
        self.gone(conn)
        return self._eviction(now, conn, address, reason)

    def _eviction(self, now: int, conn: int, address: str, reason: str) -> Eviction:
        return Eviction(conn, reason, quiet=not self.worth_a_line(now, address))

    def worth_a_line(self, now: int, address: str, what: str = "") -> bool:
        """Whether the log may have a line of what an address does: it had none of that less than a minute ago."""
        address += what
        last = self._reported.get(address)
        if last is not None and now - last < _REPORT_EVERY_MS:
            return False
        if len(self._reported) >= _REPORTED_MAX:
            self._reported.clear()
        self._reported[address] = now
        return True

    def _make_room_at(self, now: int, address: str) -> list[Eviction] | None:
        """One more connection from an address: what it gives up for that; None where it has nothing to give."""
        limit = self._places.per_address_max
        if not limit or self._counts.get(address, 0) < limit:
            return []
        text = f"{limit} connections from {address} are open, the limit for one address"
        for conn in self._unproven:
            if self._address[conn] == address and conn not in self._members:
                return [self._evict(now, conn, text)]
        silent = self._silent(now, address)
        return None if silent is None else [self._evict(now, silent, f"{text}, and it has been silent")]

    def _silent(self, now: int, address: str | None = None) -> int | None:
        """The proven connection, of an address or of all, that has been silent longest, if that is very long."""
        since = now - self._places.idle_ms // 2
        for conn, heard in self._heard.items():
            if heard > since or not self._places.idle_ms:
                break
            if conn not in self._members and address in (None, self._address[conn]):
                return conn
        return None

    def heard(self, now: int, conn: int) -> None:
        """Bytes came, be they only a keep-alive."""
        if self._heard.pop(conn, None) is not None:
            self._heard[conn] = now

    def proven(self, now: int, conn: int) -> None:
        """A connection has asked for something, or has shown that it knows the cluster."""
        if self._unproven.pop(conn, None) is not None:
            self._heard[conn] = now
            if self._places.idle_ms:
                heapq.heappush(self._silences, (now + self._places.idle_ms, conn))

    def gone(self, conn: int) -> None:
        """A connection has ended, or is about to; may be said twice."""
        address = self._address.pop(conn, None)
        if address is None:
            return
        self._unproven.pop(conn, None)
        self._heard.pop(conn, None)
        if conn in self._members:
            self._members.remove(conn)
            return
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]

    def deadline(self) -> int | None:
        """When `due` has something to do, or to look at, ms."""
        oldest = next(iter(self._unproven.values()), None) if self._places.unproven_ms else None
        return earliest(
            None if oldest is None else oldest + self._places.unproven_ms,
            self._silences[0][0] if self._silences else None,
        )

    def due(self, now: int) -> list[Eviction]:
        """Connections that have said nothing for too long."""
        places = self._places
        evicted = []
        while places.unproven_ms and self._unproven:
            conn, came = next(iter(self._unproven.items()))
            if now < came + places.unproven_ms:
                break
            evicted.append(self._evict(now, conn, f"it has asked for nothing within {places.unproven_ms / 1000:g} s"))
        while self._silences and self._silences[0][0] <= now:
            _, conn = heapq.heappop(self._silences)
            heard = self._heard.get(conn)
            if heard is None:
                continue
            if now >= heard + places.idle_ms:
                evicted.append(self._evict(now, conn, f"not a byte from it for {places.idle_ms / 1000:g} s"))
            else:
                heapq.heappush(self._silences, (heard + places.idle_ms, conn))
        return evicted


def host_of(peer: str) -> str:
    """The address without the port."""
    return peer.rpartition(":")[0] or peer

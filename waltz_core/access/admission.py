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

import ipaddress
from typing import NamedTuple

import attrs

from waltz_core.access.web import host_of
from waltz_core.base.alarms import SetsAlarms
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


class Silence(NamedTuple):
    """Time to look at a connection: it may have been silent for too long."""

    conn: int


class Admission:
    """The connections that one process has accepted.

    Each has one alarm. Bytes that arrive do not move it: when it rings it is set again, to when the connection will
    have been silent for too long. So bytes cost nothing here, and a connection a look in `idle_ms`.
    """

    __slots__ = ("_address", "_alarms", "_counts", "_heard", "_members", "_places", "_unproven")

    def __init__(self, alarms: SetsAlarms[Silence], places: Places = UNLIMITED) -> None:
        assert not places.count_max or places.reserved < places.count_max
        self._places = places
        self._alarms = alarms
        self._address: dict[int, str] = {}  # of every connection
        self._members: set[int] = set()
        self._counts: dict[str, int] = {}  # address → connections of it that are no members
        self._unproven: dict[int, int] = {}  # conn → when it came, the oldest first
        self._heard: dict[int, int] = {}  # proven conn → when its last byte came, the most silent first

    def accepted(self, now: int, conn: int, address: str, *, member: bool = False) -> list[Eviction]:
        """Take note of a new connection; what must end for it, which may be itself."""
        evicted = [] if member else self._make_room_at(now, address)
        if evicted is None:
            count = self._counts[address]
            text = f"{count} connections from {address} are open, the limit for one address"
            return [Eviction(conn, text)]
        places = self._places
        limit = places.count_max if member else places.count_max - places.reserved
        if places.count_max and len(self._address) >= limit:
            oldest = next((one for one in self._unproven if member or one not in self._members), None)
            why = "it has asked for nothing, and its place is needed"
            if oldest is None:
                oldest, why = self._silent(now), "it has been silent, and its place is needed"
            if oldest is None:
                text = f"{len(self._address)} connections are open, the limit"
                return [*evicted, Eviction(conn, text)]
            evicted.append(self._evict(oldest, why))
        self._address[conn] = address
        self._unproven[conn] = now
        self._look(conn, now, places.unproven_ms)
        if member:
            self._members.add(conn)
        else:
            self._counts[address] = self._counts.get(address, 0) + 1
        return evicted

    def _evict(self, conn: int, reason: str) -> Eviction:
        self.gone(conn)
        return Eviction(conn, reason)

    def _make_room_at(self, now: int, address: str) -> list[Eviction] | None:
        """One more connection from an address: what it gives up for that; None where it has nothing to give."""
        limit = self._places.per_address_max
        if not limit or self._counts.get(address, 0) < limit:
            return []
        text = f"{limit} connections from {address} are open, the limit for one address"
        for conn in self._unproven:
            if self._address[conn] == address and conn not in self._members:
                return [self._evict(conn, text)]
        silent = self._silent(now, address)
        return None if silent is None else [self._evict(silent, f"{text}, and it has been silent")]

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
        if conn in self._unproven:
            del self._unproven[conn]
            self._heard[conn] = now
            self._look(conn, now, self._places.idle_ms)

    def gone(self, conn: int) -> None:
        """A connection has ended, or is about to; may be said twice."""
        address = self._address.pop(conn, None)
        if address is None:
            return
        self._alarms.set(Silence(conn), None)
        self._unproven.pop(conn, None)
        self._heard.pop(conn, None)
        if conn in self._members:
            self._members.remove(conn)
            return
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]

    def due(self, now: int, conn: int) -> Eviction | None:
        """The alarm of a connection rang: whether it has been silent for too long."""
        places = self._places
        if conn in self._unproven:
            return self._evict(conn, f"it has asked for nothing within {places.unproven_ms / 1000:g} s")
        heard = self._heard.get(conn)
        if heard is None:
            return None
        if now >= heard + places.idle_ms:
            return self._evict(conn, f"not a byte from it for {places.idle_ms / 1000:g} s")
        self._look(conn, heard, places.idle_ms)
        return None

    def _look(self, conn: int, since: int, after_ms: int) -> None:
        """Look at a connection when it has been silent for so long; 0: never."""
        self._alarms.set(Silence(conn), since + after_ms if after_ms else None)


_NETWORK = 64  # bits: of the rest of an IPv6 address, a single host may choose


def owner_of(peer: str) -> str:
    """Whom a peer without a certificate counts for: its address without the port; of IPv6, the network of that.

    An IPv4 address that is written as one of IPv6 is the same peer. On one link there are no others to choose from.
    """
    host = host_of(peer)
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_link_local:
        return host
    return str(ipaddress.IPv6Network((int(address), _NETWORK), strict=False))

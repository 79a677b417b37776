"""A cluster that is known and does not change by itself, for clients on the bench."""

from __future__ import annotations

from waltz_core.base.outbox import Emits
from waltz_core.client.calls import Effect, Joined
from waltz_core.client.membership import MapChanged, MembershipNote, NullMembership, Servers
from waltz_core.client.router import EndpointMap


class FixedMembership(NullMembership):
    """Says everything at once."""

    def __init__(self, client_id: int, partition_count: int, endpoints: EndpointMap) -> None:
        self._client_id, self._partition_count, self._endpoints = client_id, partition_count, endpoints

    def start(self, now: int, servers: Servers, out: Emits[Effect], notes: Emits[MembershipNote]) -> None:
        """Answer at once."""
        self._notes = notes
        notes.put(Joined("fixed", self._client_id, self._partition_count))
        notes.put(MapChanged(self._endpoints))

    def change(self, endpoints: EndpointMap) -> None:
        """Say that the map is another one; heard by the next step."""
        self._notes.put(MapChanged(endpoints))

"""A cluster that is known and does not change by itself, for clients on the bench."""

from __future__ import annotations

from waltz_core.client.calls import Effect
from waltz_core.client.membership import NullMembership
from waltz_core.client.node import ClientNode
from waltz_core.client.router import EndpointMap


class FixedMembership(NullMembership):
    """Says everything at once."""

    def __init__(self, client_id: int, partition_count: int, endpoints: EndpointMap) -> None:
        self._client_id, self._partition_count, self._endpoints = client_id, partition_count, endpoints

    def start(self, node: ClientNode, now: int, out: list[Effect]) -> None:
        """Answer at once."""
        node.joined("fixed", self._client_id, self._partition_count, now, out)
        node.endpoints_changed(self._endpoints, now, out)

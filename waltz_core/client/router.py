"""Where partitions are served, and the connections that lead there.

    map of the cluster ──▶ owner of a partition ──▶ a link to that server: STREAM for mounts, appends and feeds,
         │                                          RPC for payloads, marks and cluster information
         └── a server is gone ──▶ its links end, and keep their numbers

The map comes from `membership.py`, `connections.py` dials the links, and `Partitions` knows which partition uses which
connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from waltz_core.base.ids import Endpoint
from waltz_core.client.context import ClientContext
from waltz_core.client.link import ConnectionState, Kind, Link

EndpointMap = Sequence[tuple[Endpoint, Sequence[tuple[int, int]]]]
"""Live servers, each with (partition id, generation) of what it serves."""


class ClientRouter:
    """The map of the cluster as this client knows it, and two connections for each server that it needs.

    A partition that vanishes from the map stays where it was while that server lives; a server that
    vanishes takes its partitions with it. Connections of a vanished server keep their numbers: should it
    come back, its next connection must have a higher one.
    """

    make_link: ClassVar[type[Link]] = Link

    __slots__ = ("_context", "_filled", "_links", "dials_wanted", "generations", "owners", "servers")

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self.servers: tuple[Endpoint, ...] = ()
        self.owners: dict[int, Endpoint] = {}
        self.generations: dict[int, int] = {}
        self._links: dict[tuple[Endpoint, Kind], Link] = {}
        self._filled: list[Link] = []
        self.dials_wanted = False  # a connection may be needed that does not stand

    def set_endpoints(self, endpoints: EndpointMap) -> list[Link]:
        """Take a newer map; returns the links of servers that are gone, to be ended by the caller."""
        self.servers = tuple(endpoint for endpoint, _ in endpoints)
        alive = set(self.servers)
        self.owners = {partition: owner for partition, owner in self.owners.items() if owner in alive}
        claimed: dict[int, int] = {}
        for endpoint, owned in endpoints:
            for partition, generation in owned:
                # Two claims can only come from a map read while it changed: the newer one holds.
                if generation >= claimed.get(partition, generation):
                    claimed[partition] = generation
                    self.owners[partition] = endpoint
                self.generations[partition] = max(generation, self.generations.get(partition, -1))
        return [link for link in self._links.values() if link.endpoint not in alive]

    def link_of(self, partition: int, kind: Kind) -> Link | None:
        """The connection to the server of a partition, created or revived on demand."""
        owner = self.owners.get(partition)
        return None if owner is None else self.link_to(owner, kind)

    def link_to(self, endpoint: Endpoint, kind: Kind) -> Link:
        """The connection to a server."""
        link = self._links.get((endpoint, kind))
        if link is None:
            link = self._links[endpoint, kind] = self._make(endpoint, kind)
        link.revive()
        return link

    def _make(self, endpoint: Endpoint, kind: Kind) -> Link:
        context = self._context
        return self.make_link(
            endpoint, kind, context.settings, context.rng, context.versions, context.out, self._filled
        )

    def links(self) -> Iterable[Link]:
        """Every connection there ever was a need for."""
        return self._links.values()

    def wanted(self) -> Iterator[Link]:
        """Connections that are not given up."""
        return (link for link in self._links.values() if link.state is not ConnectionState.ENDED)

    def filled(self) -> list[Link]:
        """Connections that have something to send, the oldest first; asked once per step."""
        links = list(self._filled)
        if len(links) > 1:
            links.sort(key=lambda link: -link.conn)
        self._filled.clear()
        return links

"""How a client learns who it is and where partitions are served.

Two ways: ZooKeeper, as 0.13.2 does, or any one of our servers, which knows the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from waltz_core.client.calls import Effect
from waltz_core.cluster.coordinator import ClusterFailed, Coordinator, CoordinatorEffect, EndpointsChanged
from waltz_core.cluster.coordinator import Joined as CoordinatorJoined
from waltz_core.edge import Report, ZkCreate, ZkDelete, ZkGet, ZkMulti, ZkSet
from waltz_core.edge import ZkChildren as ZkChildren
from waltz_core.machine import Tickets

if TYPE_CHECKING:
    from random import Random  # noqa: TID251 - a type only

    from waltz_core.client.link import Link
    from waltz_core.client.node import ClientNode
    from waltz_core.client.router import EndpointMap
    from waltz_core.edge import ZkEvent
    from waltz_core.wire.client_messages import ClientMessage

_ZK_REQUESTS = (ZkGet, ZkChildren, ZkCreate, ZkSet, ZkDelete, ZkMulti)


class Membership(Protocol):
    """A view of the cluster; a child of the node, which it tells what it learns."""

    def start(self, node: ClientNode, now: int, out: list[Effect]) -> None:
        """Begin to look."""

    def deadline(self) -> int | None:
        """When `due` has something to do."""

    def due(self, now: int, out: list[Effect]) -> None:
        """Act on passed deadlines."""

    def on_zk(self, event: ZkEvent, now: int, out: list[Effect]) -> None:
        """ZooKeeper answered or changed."""

    def on_link_ready(self, link: Link, now: int, out: list[Effect]) -> None:
        """An rpc connection can be used."""

    def on_link_lost(self, link: Link, now: int, out: list[Effect]) -> None:
        """An rpc connection is gone."""

    def on_message(self, message: ClientMessage, link: Link, now: int, out: list[Effect]) -> bool:
        """Take a message if it is about the cluster; True when it was."""

    def close(self, now: int, out: list[Effect]) -> None:
        """Look no longer."""


class Deaf:
    """What no view needs to hear; the base of those that need only a part."""

    def deadline(self) -> int | None:
        """Nothing is due."""
        return None

    def due(self, now: int, out: list[Effect]) -> None:
        """Nothing is due."""

    def on_zk(self, event: ZkEvent, now: int, out: list[Effect]) -> None:
        """No ZooKeeper here."""

    def on_link_ready(self, link: Link, now: int, out: list[Effect]) -> None:
        """No server is asked."""

    def on_link_lost(self, link: Link, now: int, out: list[Effect]) -> None:
        """No server is asked."""

    def on_message(self, message: ClientMessage, link: Link, now: int, out: list[Effect]) -> bool:
        """No server is asked."""
        return False

    def close(self, now: int, out: list[Effect]) -> None:
        """Nothing to end."""


class FixedMembership(Deaf):
    """A cluster that is known and does not change by itself; for tests and one-server tools."""

    def __init__(self, client_id: int, partition_count: int, endpoints: EndpointMap) -> None:
        self._client_id, self._partition_count, self._endpoints = client_id, partition_count, endpoints

    def start(self, node: ClientNode, now: int, out: list[Effect]) -> None:
        """Tell everything at once."""
        node.joined("fixed", self._client_id, self._partition_count, now, out)
        node.endpoints_changed(self._endpoints, now, out)


class ZkMembership(Deaf):
    """The view through ZooKeeper: parameters, a client id from the counter, and live servers."""

    def __init__(self, root: str, tickets: Tickets, rng: Random) -> None:
        self._coordinator = Coordinator(root, tickets=tickets, rng=rng, allocate_client_id=True)
        self._node: ClientNode | None = None

    def start(self, node: ClientNode, now: int, out: list[Effect]) -> None:
        """Wait for the session: it is told by an event."""
        self._node = node

    def deadline(self) -> int | None:
        """As the coordinator says."""
        return self._coordinator.deadline()

    def due(self, now: int, out: list[Effect]) -> None:
        """Let the coordinator read again."""
        due = self._coordinator.deadline()
        if due is not None and now >= due:
            self._step(now, [], out)

    def on_zk(self, event: ZkEvent, now: int, out: list[Effect]) -> None:
        """Let the coordinator look at it."""
        self._step(now, [event], out)

    def close(self, now: int, out: list[Effect]) -> None:
        """An observer leaves no trace."""
        self._coordinator.leave(now, [])

    def _step(self, now: int, events: list[ZkEvent], out: list[Effect]) -> None:
        assert self._node is not None
        found: list[CoordinatorEffect] = []
        self._coordinator.step(now, events, found)
        for effect in found:
            if isinstance(effect, (*_ZK_REQUESTS, Report)):
                out.append(effect)
            elif isinstance(effect, CoordinatorJoined):
                assert effect.client_id is not None
                self._node.joined(effect.cluster_name, effect.client_id, effect.num_partitions, now, out)
            elif isinstance(effect, EndpointsChanged):
                self._node.endpoints_changed(effect.endpoints, now, out)
            elif isinstance(effect, ClusterFailed):
                self._node.cluster_lost(effect.reason, out)

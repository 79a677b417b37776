"""A machine that has nothing to do owes nothing: nothing in flight, queued, parked, or awaited."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.model.debts import debts, per_connection
from tests.model.invariants.base import Invariant

if TYPE_CHECKING:
    from waltz_testing.simulation.world import SimNode

_WORK = re.compile(
    r"queue$|queued|wait|pend|park|backlog|fly|flight|(^|_)sent|ask|parts$|unwritten|held|barrier|inbox|lane|writes$|batch"
    r"|gather|calls|untold|crowded|arrived|paused|buffer|unconfirmed|resumable|droppable|explained|order$|closing|out$|notes$"
)
"""What names of collections and counts say that they hold work: also those that are added tomorrow."""

OF_CONNECTIONS = frozenset(
    {
        "Admission._address",
        "Admission._heard",
        "Admission._unproven",
        "Connections._conns",
        "Feed._of",
        "Feed._positions",
        "ClientPort._conns",
        "NodeContext.dialed",
        "StoragePort._pool_of",
        "Neighbors._of_conn",
        "Repairs._links",
        "ClusterPort._subscribers",
        "Peers._peers",
        "Turns._queues",
    }
)
"""Of these, those whose keys are connections: each of one that is there."""

_LEGACY_CLIENT = frozenset({"MarkReads._calls"})
"""What a client of 0.13.2 may wait for for ever (client-C7)."""

_BROKEN_OFF = frozenset({"ClientConn.gathered", "ClientPort._gathered", "Peer.gathered", "Peers._gathered"})
"""Bytes of a frame that a hostile peer broke off: they stay as long as its connection, whose end may get lost."""


class Quiet(Invariant):
    """Looked at a few times while nothing happens: a debt that is there every time is one that nobody pays."""

    def debts(self) -> set[str]:
        """All debts of all processes now."""
        return {f"{node.name}: {name}" for node in self._machines() for name in self._debts_of(node)}

    def _machines(self) -> list[SimNode]:
        cluster = self.observer.cluster
        nodes = [
            *cluster.servers,
            *(one.node for one in cluster.storages),
            *(one.node for one in self.observer.clients),
        ]
        return [node for node in nodes if node.alive and node.machine is not None]

    def _debts_of(self, node: SimNode) -> list[str]:
        legacy = any(one.node is node and one.habits.legacy for one in self.observer.clients)
        excused = _LEGACY_CLIENT if legacy else frozenset[str]()
        if any(name.startswith("hostile") for name in self.observer.counts):
            excused |= _BROKEN_OFF
        found = [name for name, _ in debts(node.machine) if name not in excused and _is_work(name)]
        for name, connections in per_connection(node.machine, OF_CONNECTIONS):
            if not connections <= node.conns.keys():
                found.append(f"{name} of connections that are gone")
        return found

    def on_quiet(self, seen: list[set[str]]) -> None:
        """Nothing happened between the looks in `seen`."""
        debts_left = set.intersection(*seen) if seen else set()
        self.require(
            not debts_left,
            f"nothing is to do, and there are left: {sorted(debts_left)} (see tests/model/invariants/quiet.py)",
        )


def _is_work(name: str) -> bool:
    owner, _, attribute = name.partition(".")
    return _WORK.search(attribute) is not None and not owner.endswith(("Config", "Settings"))

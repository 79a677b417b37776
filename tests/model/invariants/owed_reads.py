"""No read stays owed while the server that owes it serves the partition and talks to the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.model.invariants.base import Invariant
from waltz_core.base.contract import earliest

if TYPE_CHECKING:
    from tests.model.observer import Observer

_OWED_MS = 20_000
"""A client asks again over another connection after 24 s or more: that is a net, and no way to live."""
_HEARD_MS = 10_000


class OwedReads(Invariant):
    """A payload or a record that was asked for comes, or is refused, without a new connection."""

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._since: dict[tuple[str, int], tuple[Any, int]] = {}  # of whom it could be had, and since when

    def on_second(self) -> None:
        servers = {server.name: server for server in self.observer.cluster.servers}
        for app in self.observer.clients:
            if not app.node.alive or app.habits.legacy:
                continue
            for partition, reads in app.node.machine._partitions._reads.items():
                owed = earliest(reads.payloads.owed_since(), reads.records.owed_since())
                server = servers.get(reads.link.endpoint.host) if reads.link is not None else None
                if owed is None or server is None or not self._could_answer(app, server, partition, reads.link):
                    self._since.pop((app.name, partition), None)
                    continue
                link, began = self._since.setdefault((app.name, partition), (reads.link, app.node.clock))
                if link is not reads.link:
                    self._since[app.name, partition] = reads.link, app.node.clock
                    continue
                waited = app.node.clock - max(owed, began)
                self.require(
                    waited < _OWED_MS,
                    f"{server.name} serves partition {partition}, and has owed {app.name} a read for {waited} ms",
                )

    def _could_answer(self, app: Any, server: Any, partition: int, link: Any) -> bool:
        served = server.alive and server.machine.partitions.get(partition)
        return bool(
            served and not served.trouble(server.clock) and link.ready and app.node.clock - link.last_read < _HEARD_MS
        )

"""No read stays owed while the server that owes it serves the partition and talks to the client.

Each by itself, as the client lists them: others that are answered meanwhile change nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.model.invariants.base import Invariant

if TYPE_CHECKING:
    from tests.model.observer import Observer
    from waltz_core.client.calls import OwedRead

_OWED_MS = 20_000
"""A client asks again over another connection after 24 s or more: that is a net, and no way to live."""
_HEARD_MS = 10_000


class OwedReads(Invariant):
    """A payload or a record that was asked for comes, or is refused, without a new connection."""

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._since: dict[tuple[str, str, int], int] = {}  # client, server, partition → since when it could be answered

    def on_second(self) -> None:
        servers = {server.name: server for server in self.observer.cluster.servers}
        since = {}
        for app in self.observer.clients:
            if not app.node.alive or app.habits.legacy:
                continue
            for read in app.node.machine.owed(app.node.clock):
                server = read.server.host
                if not _could_answer(servers.get(server), read):
                    continue
                place = app.name, server, read.partition
                since[place] = self._since.get(place, app.node.clock)
                waited = min(read.since_ms, app.node.clock - since[place])
                self.require(
                    waited < _OWED_MS,
                    f"{server} serves partition {read.partition}, and has owed {app.name} {read.count} {read.what} "
                    f"from {read.first_id} on for {waited} ms",
                )
        self._since = since


def _could_answer(server: Any, read: OwedRead) -> bool:
    """It serves the partition, and talks to the client."""
    served = server is not None and server.alive and server.machine.partitions.get(read.partition)
    return bool(served and not served.trouble(server.clock) and read.heard_ms < _HEARD_MS)

"""The cluster as this client knows it: what its membership says, carried out.

```
 ZooKeeper, or a server ──► Membership ── notes ──► ClusterPort ──► ApplicationPort   Joined: calls that waited
                                                         └───────► Connections       the map: servers that left
                                                         └───────► Partitions        the map: everything is placed anew
```

The notes are emptied after every event that reaches the membership, and never in the middle of its work: what they
cause may end the very connection over which it learned them. A cluster that has not answered within the patience of
`client.connectTimeout` ends the client.
"""

from __future__ import annotations

from waltz_core.base.edge import ZkEvent
from waltz_core.base.ids import Endpoint
from waltz_core.base.outbox import Outbox
from waltz_core.client.alarms import ClusterDue
from waltz_core.client.application_port import ApplicationPort
from waltz_core.client.calls import ClusterLost, Joined
from waltz_core.client.connections import SILENT, Connections
from waltz_core.client.context import ClientContext
from waltz_core.client.link import Kind, Link
from waltz_core.client.membership import MapChanged, Membership, MembershipNote
from waltz_core.client.partitions import Partitions
from waltz_core.client.router import ClientRouter
from waltz_core.wire.client_messages import ClientMessage


class ClusterPort:
    """Starts the membership, feeds it events, and hears what it says."""

    def __init__(
        self,
        context: ClientContext,
        membership: Membership,
        router: ClientRouter,
        partitions: Partitions,
        connections: Connections,
        application: ApplicationPort,
    ) -> None:
        self._context = context
        self._out = context.out
        self._membership = membership
        self._router = router
        self._partitions = partitions
        self._connections = connections
        self._application = application
        self._notes: Outbox[MembershipNote] = Outbox()
        self._noted = self._notes.items
        self._rings_at: int | None = None  # when the alarm of the membership does

    # ---- for the membership ------------------------------------------------------------------

    def link_to(self, endpoint: Endpoint) -> Link:
        """The rpc connection to a server, dialed on demand."""
        self._router.dials_wanted = True
        return self._router.link_to(endpoint, Kind.RPC)

    @property
    def doubted(self) -> bool:
        """Others are to be asked who serves what.

        That is so while an open partition has no server that takes it; and when a server that owes an answer has been
        silent for long, as it may be cut off.
        """
        return bool(self._context.doubts)

    def confirm_doubts(self, now: int) -> bool:
        """The same, after everyone who doubts was asked again."""
        return self._context.doubts.confirmed(now)

    def give_up(self, now: int, link: Link) -> None:
        """Close a connection whose server owes an answer and is silent; its loss is reported."""
        self._connections.drop(now, link, SILENT)

    # ---- events ------------------------------------------------------------------------------

    def start(self, now: int) -> None:
        """Begin to look for the cluster."""
        if self._context.settings.connect_ms is not None:
            self._context.alarms.set(ClusterDue.CONNECT, now + self._context.settings.connect_ms)
        self._membership.start(now, self, self._out, self._notes)
        self.hear(now)

    def on_zk(self, now: int, event: ZkEvent) -> None:
        """ZooKeeper answered or changed."""
        if not self._context.closed:
            self._membership.on_zk(now, event)
            self.hear(now)

    def on_message(self, now: int, message: ClientMessage, link: Link) -> bool:
        """Take a message if it is about the cluster; True when it was."""
        taken = self._membership.on_message(now, message, link)
        self.hear(now)
        return taken

    def asks(self, link: Link) -> bool:
        """Whether the view of the cluster is asked over this connection."""
        return self._membership.keeps(link)

    def set_alarm(self) -> None:
        """At the end of a step: the membership may be due earlier now."""
        at = self._membership.deadline()
        if at != self._rings_at:
            self._rings_at = at
            self._context.alarms.set(ClusterDue.MEMBERSHIP, at)

    def due(self, now: int, due: ClusterDue) -> None:
        """An alarm rang."""
        if due is ClusterDue.CONNECT:
            patience = f"{(self._context.settings.connect_ms or 0) / 1000:g} s (client.connectTimeout)"
            self._out.put(ClusterLost(f"no cluster answered within {patience}: {self._membership.trouble()}"))
        else:
            self._rings_at = None
            self._membership.due(now)
            self.hear(now)

    def close(self, now: int) -> None:
        """Look no longer."""
        self._membership.close(now)

    # ---- what the membership says ------------------------------------------------------------

    def hear(self, now: int) -> None:
        """Carry out what the membership has said."""
        while self._noted:
            for note in self._notes.take():
                self._on_note(now, note)

    def _on_note(self, now: int, note: MembershipNote) -> None:
        if isinstance(note, Joined):
            self._context.alarms.set(ClusterDue.CONNECT, None)
            self._context.client_id, self._context.partition_count = note.client_id, note.partition_count
            self._out.put(note)
            self._application.joined(now)
        elif isinstance(note, MapChanged):
            self._connections.set_endpoints(now, note.endpoints)
            self._partitions.place(now)
        else:
            self._out.put(ClusterLost(note.reason))

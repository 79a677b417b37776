"""The machine of a client process: which part gets which event, and in which order effects leave.

```
 calls ───► ApplicationPort ──► ClientPartition   mounts, follows the feed, appends, judges     one per open partition
                   └──────────► PartitionReads    payloads and the committed mark               one per partition read
 bytes ───► ServerPort ───────► both of them, on the connection over which the bytes came
 ends of connections ─► Connections ─► Link       dialed, greeted, kept alive; ClientRouter      two for each server
 ZooKeeper ─► ClusterPort ────► Membership        who we are and what the cluster looks like: ZooKeeper, or a server
```

The membership says what servers there are; `Partitions` puts every partition and every reader on the link to its
server, again whenever the map changes. An answer that comes over another link is of a life before, and nobody's.
Nothing here is durable: what a partition has seen and what it still owes its callers is rebuilt by mounting at the mark
that the application gives.

A step: events, in order; then what is due; then connections are dialed and tended, and everything that was gathered for
servers is sent. A step costs what it concerns: what something happened to is *touched*, and sets its alarms at the end
(`client/alarms.py`); links that have bytes to send say so themselves. All parts put their effects into one outbox, in
the order in which they leave.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, TypeAlias

from waltz_core.base.contract import Handlers, Rng
from waltz_core.base.edge import (
    Closed,
    Dialed,
    Received,
    Writable,
    ZkChanged,
    ZkDone,
    ZkEvent,
    ZkFailed,
    ZkStateChanged,
)
from waltz_core.client.alarms import AlarmKey, ClusterDue, Due
from waltz_core.client.application_port import ApplicationPort
from waltz_core.client.calls import Call, CloseClient, Effect, OwedRead, PartitionStatus, Submit
from waltz_core.client.cluster_port import ClusterPort
from waltz_core.client.connections import SILENT, Connections
from waltz_core.client.context import ClientContext
from waltz_core.client.link import Kind, Link
from waltz_core.client.membership import Membership
from waltz_core.client.partition import ClientPartition
from waltz_core.client.partitions import Partitions
from waltz_core.client.router import ClientRouter
from waltz_core.client.server_port import ServerPort
from waltz_core.client.settings import ClientSettings
from waltz_core.wire.client_codec import VERSIONS

ClientEvent: TypeAlias = Dialed | Received | Writable | Closed | ZkEvent | Call

_DUE_EVERY_MS = 20  # how late a deadline may be noticed while events never cease


class ClientNode:
    """One client: everything above decrypted bytes."""

    make_router: ClassVar[type[ClientRouter]] = ClientRouter
    make_partitions: ClassVar[type[Partitions]] = Partitions

    def __init__(
        self,
        membership: Membership,
        settings: ClientSettings,
        rng: Rng,
        *,
        versions: Collection[int] = VERSIONS,
    ) -> None:
        self._context = context = ClientContext(settings, rng, versions)
        self._out = context.out
        self._alarms = context.alarms
        router = self.make_router(context)
        self._partitions = self.make_partitions(context, router)
        self._connections = Connections(context, router, membership, self._partitions)
        self._application = ApplicationPort(context, self._partitions)
        self._cluster = ClusterPort(context, membership, router, self._partitions, self._connections, self._application)
        self._servers = ServerPort(context, self._connections, self._partitions, self._cluster)
        self._started = False
        self._due_at = 0
        self._handlers = Handlers(
            type(self).__name__,
            {
                Dialed: self._connections.dialed,
                Received: self._servers.received,
                Writable: self._connections.writable,
                Closed: self._connections.closed,
                ZkDone: self._cluster.on_zk,
                ZkFailed: self._cluster.on_zk,
                ZkChanged: self._cluster.on_zk,
                ZkStateChanged: self._cluster.on_zk,
                CloseClient: self._on_close_client,
                **self._application.handlers,
            },
        )

    # ---- machine -----------------------------------------------------------------------------

    def step(self, now: int, events: Sequence[ClientEvent], out: list[Effect]) -> None:
        """Handle events in order; send what they caused at the end."""
        if not self._started:
            self._started = True
            self._cluster.start(now)
        handlers = self._handlers
        at, count = 0, len(events)
        while at < count:
            event = events[at]
            if type(event) is Submit:
                at = self._application.submits(now, events, at)
            else:
                handlers[type(event)](now, event)
                at += 1
        if not events or now >= self._due_at:
            self._due(now)
        self._cluster.hear(now)
        self._connections.finish(now)
        self._set_alarms(now)
        self._out.drain(out)

    def deadline(self) -> int | None:
        """When `step` must be called at the latest."""
        if not self._started:
            return 0
        if self._context.closed:
            return None
        return self._alarms.next()

    def _due(self, now: int) -> None:
        self._due_at = now + _DUE_EVERY_MS
        if self._context.closed:
            return
        self._set_alarms(now)  # what the events of this step changed may be due already
        for key in self._alarms.due(now):
            self._on_alarm(now, key)

    def _on_alarm(self, now: int, key: AlarmKey) -> None:
        if isinstance(key, ClusterDue):
            self._cluster.due(now, key)
        elif isinstance(key, Link):
            self._connections.due(key)
        else:
            machine = key.machine
            if machine.due(now, key.due) and machine.link is not None:
                self._connections.drop(now, machine.link, SILENT)
            self._context.touch(machine)
            if key.due is Due.HURRY:
                machine.set_alarms(now)
                self._cluster.due(now, ClusterDue.MEMBERSHIP)

    def _set_alarms(self, now: int) -> None:
        context = self._context
        if context.touched:
            for machine in context.touched:
                if isinstance(machine, Link):
                    self._alarms.set(machine, machine.deadline())
                else:
                    machine.set_alarms(now)
            context.touched.clear()
        self._cluster.set_alarm()

    # ---- for people and drivers --------------------------------------------------------------

    @property
    def partitions(self) -> Mapping[int, ClientPartition]:
        """Those that were opened, closed ones included."""
        return self._partitions.opened

    @property
    def client_id(self) -> int:
        """Of this client; 0 before the cluster has answered."""
        return self._context.client_id

    def status(self, partition: int, now: int) -> PartitionStatus:
        """A snapshot of one partition, open or not."""
        return self._partitions.status(now, partition)

    def owed(self, now: int) -> tuple[OwedRead, ...]:
        """Every read that a server was asked for and has not answered."""
        return tuple(self._partitions.owed(now))

    def link_kind(self, conn: int) -> Kind | None:
        """What a connection that is dialed or stands is for; None for any other."""
        link = self._connections.get(conn)
        return None if link is None else link.kind

    @property
    def connected(self) -> int:
        """Connections that can be used."""
        return self._connections.usable

    # ---- the end -----------------------------------------------------------------------------

    def _on_close_client(self, now: int, call: CloseClient) -> None:
        if not self._context.closed:
            self._context.closed = True
            self._application.close()
            self._partitions.close(now)
            self._cluster.close(now)
            self._connections.close(now)

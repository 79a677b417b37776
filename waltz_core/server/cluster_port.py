"""The port to ZooKeeper: the view of the cluster, what this server prefers, and client ids.

Answers find their way by the table of what is awaited; what is not in it is the coordinator's, which keeps its own.
What the coordinator says is written into `ClusterState`, where every part reads it, and handed on to the partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import ClassVar, Protocol, TypeAlias
from uuid import UUID

from waltz_core.access.roles import Access
from waltz_core.base.edge import (
    Closed,
    Dialed,
    Level,
    Received,
    Report,
    ZkDone,
    ZkEvent,
    ZkFailed,
    ZkStateChanged,
)
from waltz_core.base.ids import Endpoint, ReqId
from waltz_core.cluster.coordinator import Coordinator
from waltz_core.cluster.notifications import (
    ClusterFailed,
    CoordinatorEffect,
    EndpointsChanged,
    Joined,
    Left,
    ManagedServer,
    NeighborsChanged,
    Owned,
    OwnershipConfirmed,
    OwnershipDoubtful,
    PreferencesRegistered,
    ReplicasChanged,
)
from waltz_core.server.client_ids import ClientIds
from waltz_core.server.context import Awaited, ClusterAlarm, IdStep, NodeContext, PreferenceStep, Reply
from waltz_core.server.neighbors import Neighbors
from waltz_core.server.peer import Peer
from waltz_core.server.preferences import Preferences
from waltz_core.wire import client_messages as messages

NO_KEY = bytes(16)
"""What a client is shown for the cluster key where roles are set: it has no use for it."""

CAPABILITIES = (
    messages.Capability.CLUSTER_INFO
    | messages.Capability.CLUSTER_CHANGES
    | messages.Capability.CLIENT_IDS
    | messages.Capability.NAMED_APPENDS
    | messages.Capability.CONFLICT_CLASSES
    | messages.Capability.RECORD_RANGES
    | messages.Capability.LOG_START
    | messages.Capability.SET_LOG_START
    | messages.Capability.STATISTICS
    | messages.Capability.PARTITION_STATUS
    | messages.Capability.STORAGE_NODES
    | messages.Capability.FEED_WINDOWS
)
"""What this server does of codec 5."""

PreferenceAnswer: TypeAlias = messages.AddPreferredPartitionResponse | messages.RemovePreferredPartitionResponse


class OwnedPartitions(Protocol):
    """Who opens and closes partitions as the cluster says."""

    def own(self, now: int, owned: tuple[tuple[int, int], ...]) -> None:
        """Partitions that this process owns from now on, with their generations."""

    def replicas_changed(self, now: int) -> None:
        """Other storage nodes are to hold the partitions, perhaps."""

    def doubt(self, doubtful: bool) -> None:
        """Whether another server may own them all by now."""


class ClusterPort:
    """What this process knows of its cluster, and has to say there."""

    capabilities: ClassVar[messages.Capability] = CAPABILITIES
    make_coordinator: ClassVar[type[Coordinator]] = Coordinator
    make_preferences: ClassVar[type[Preferences]] = Preferences

    def __init__(self, context: NodeContext, partitions: OwnedPartitions) -> None:
        config = context.config
        self._out = context.out
        self._alarms = context.alarms
        self._replies = context.clients
        self._journals = context.journals
        self._state = context.cluster
        self._partitions = partitions
        self._coordinator = self.make_coordinator(
            config.root,
            tickets=context.tickets,
            rng=context.rng,
            manages=ManagedServer(config.endpoint, config.preferred_partitions),
        )
        self._client_ids = ClientIds(config.root, context.out, context.pending, context.alarms, context.rng)
        self._preferences = self.make_preferences(
            config.root, config.endpoint, context.out, context.pending, context.alarms, context.rng
        )
        self._neighbors = Neighbors(context.out, partial(context.new_conn, self), context.rng)
        self._preferred = dict.fromkeys(config.preferred_partitions)
        self._preferences_registered = True  # what was asked for last is in ZooKeeper
        self._preferring: list[tuple[int, PreferenceAnswer]] = []  # answers that wait for that
        self._subscribers: dict[int, tuple[ReqId, Access]] = {}  # conn → its request for cluster information
        self._id_wanted: dict[int, Access] = {}  # connections that wait for a client id
        self.ended: str | None = None  # why this process must end; empty if it was asked to
        self._alarms.set(ClusterAlarm.COORDINATOR, self._coordinator.deadline())

    @property
    def server_id(self) -> int | None:
        """Of this server, once it has joined."""
        return self._coordinator.server_id

    @property
    def preferred(self) -> dict[int, None]:
        """Partitions that this server prefers, in order."""
        return self._preferred

    # ---- ZooKeeper ---------------------------------------------------------------------------

    def due(self, now: int, alarm: ClusterAlarm) -> None:
        """An alarm of this port rang."""
        match alarm:
            case ClusterAlarm.COORDINATOR:
                self.handle(now, ())
            case ClusterAlarm.CLIENT_IDS:
                self._client_ids.due()
            case ClusterAlarm.PREFERENCES:
                self._preferences.due()
            case ClusterAlarm.NEIGHBORS:
                self._neighbors.due(now)
                self._set_alarm()

    def answered(self, now: int, event: ZkDone | ZkFailed, what: Awaited | None) -> None:
        """ZooKeeper has answered a request, which was not for a partition or a repair."""
        match what:
            case IdStep() as step:
                self._on_id(now, event, step)
            case PreferenceStep() as step:
                self._preferences.answered(now, event, step)
                self._on_kept(now)
                self._answer_preferring()
            case _:
                self.handle(now, (event,))

    def _on_id(self, now: int, event: ZkDone | ZkFailed, step: IdStep) -> None:
        self._client_ids.answered(now, event, step)
        for conn_id, req_id, client_id in self._client_ids.take():
            self._tell(conn_id, req_id, self._id_wanted.pop(conn_id), client_id)

    def handle(self, now: int, events: Sequence[ZkEvent]) -> None:
        """What else ZooKeeper says, or nothing: the coordinator's alarm rang."""
        for event in events:
            if isinstance(event, ZkStateChanged):
                self._state.zookeeper = event.state.value
        effects: list[CoordinatorEffect] = []
        self._coordinator.step(now, events, effects)
        self._on_effects(now, effects)

    def leave(self, now: int) -> None:
        """This process is asked to end."""
        effects: list[CoordinatorEffect] = []
        self._coordinator.leave(now, effects)
        self._on_effects(now, effects)

    # ---- other servers -----------------------------------------------------------------------

    def dialed(self, now: int, event: Dialed) -> None:
        """A connection to another server stands."""
        self._neighbors.dialed(now, event.conn)
        self._set_alarm()

    def received(self, now: int, event: Received) -> None:
        """Bytes from another server."""
        self._neighbors.received(event.conn, event.data)
        self._set_alarm()

    def closed(self, now: int, event: Closed) -> None:
        """A connection to another server has ended, or could not be made: that server may be gone."""
        name = self._neighbors.closed(now, event)
        if name is not None:
            effects: list[CoordinatorEffect] = []
            self._coordinator.gone(now, name, effects)
            self._on_effects(now, effects)
        self._set_alarm()

    def _watch(self, servers: tuple[tuple[str, Endpoint], ...]) -> None:
        """The other servers are these now: the end of each is noticed by a connection to it."""
        self._neighbors.changed(servers)
        self._set_alarm()

    def _set_alarm(self) -> None:
        self._alarms.set(ClusterAlarm.NEIGHBORS, self._neighbors.deadline())

    # ---- what the coordinator says -----------------------------------------------------------

    def _on_effects(self, now: int, effects: Iterable[CoordinatorEffect]) -> None:
        for effect in effects:
            match effect:
                case Joined():
                    self._state.joined = effect
                    self._journals.key = effect.cluster_key
                    self._preferences.read()
                case Owned(partitions):
                    self._partitions.own(now, partitions)
                case ReplicasChanged(assignments):
                    self._state.replicas = assignments
                    self._partitions.replicas_changed(now)
                case NeighborsChanged(servers):
                    self._watch(servers)
                case PreferencesRegistered():
                    self._preferences_registered = True
                    self._answer_preferring()
                case EndpointsChanged():
                    self._state.endpoints = effect
                    for conn_id, (req_id, access) in self._subscribers.items():
                        self._tell(conn_id, req_id, access, -1)
                case OwnershipDoubtful() | OwnershipConfirmed():
                    self._partitions.doubt(isinstance(effect, OwnershipDoubtful))
                case ClusterFailed(reason):
                    self.ended = reason
                case Left():
                    self.ended = ""
                case _:
                    self._out.put(effect)
        self._alarms.set(ClusterAlarm.COORDINATOR, self._coordinator.deadline())

    # ---- what clients ask about the cluster --------------------------------------------------

    def gone(self, conn: int) -> None:
        """A connection has ended: nothing is owed to it."""
        self._subscribers.pop(conn, None)
        self._id_wanted.pop(conn, None)
        self._client_ids.gone(conn)
        self._preferring = [waiting for waiting in self._preferring if waiting[0] != conn]

    def info(self, conn: int, access: Access, request: messages.ClusterInfoRequest) -> None:
        """A client asks for the cluster, perhaps for a client id, perhaps for every change from now on."""
        if request.subscribe:
            self._subscribers[conn] = request.req_id, access
        else:
            self._subscribers.pop(conn, None)
        if self._state.joined is None:
            code, text = messages.ErrorCode.NOT_READY, "this server has not joined its cluster yet"
            self._replies.put(Reply(conn, messages.ErrorResponse(request.req_id, code, text)))
        elif request.client_id_wanted and self._client_ids.waits(conn):
            code, text = messages.ErrorCode.OVERLOADED, "this connection waits for a client id already"
            self._replies.put(Reply(conn, messages.ErrorResponse(request.req_id, code, text)))
        elif request.client_id_wanted:
            self._id_wanted[conn] = access
            self._client_ids.ask(conn, request.req_id)
        else:
            self._tell(conn, request.req_id, access, -1)

    def _tell(self, conn: int, req_id: ReqId, access: Access, client_id: int) -> None:
        joined, endpoints = self._state.joined, self._state.endpoints
        assert joined is not None
        key = joined.cluster_key if access.sees_cluster_key else NO_KEY
        servers = endpoints.endpoints if endpoints is not None else ()
        answer = messages.ClusterInfoResponse(
            req_id,
            endpoints.revision if endpoints is not None else -1,
            joined.cluster_name,
            UUID(bytes=key),
            joined.num_partitions,
            client_id,
            self.capabilities,
            tuple(messages.ServerEntry(endpoint, partitions) for endpoint, partitions in servers),
        )
        self._replies.put(Reply(conn, answer))

    # ---- preferred partitions ----------------------------------------------------------------

    def prefer(self, now: int, wanted: dict[int, None], asks: Peer) -> bool:
        """Change the preferred partitions; False, with a report, when that would stop the cluster."""
        problem = self._coordinator.preference_problem(tuple(wanted))
        if problem is not None:
            text = f"preferred partitions refused: {problem}"
            self._out.put(Report(Level.WARNING, f"{asks.who}: {text}", asks.address, asks.owner))
            return False
        self._preferences.keep(tuple(wanted))
        self._set_preferred(now, wanted)
        return True

    def preferring(self, conn: int) -> int:
        """How many changes of preferences a connection waits for."""
        return sum(waiting == conn for waiting, _ in self._preferring)

    def answer_preference(self, conn: int, answer: PreferenceAnswer) -> None:
        """Answer a refusal at once, and a change once ZooKeeper has it, as 0.13.2 does."""
        if answer.result:
            self._preferring.append((conn, answer))
            self._answer_preferring()
        else:
            self._replies.put(Reply(conn, answer))

    def _answer_preferring(self) -> None:
        if self._preferences_registered and self._preferences.kept:
            waiting, self._preferring = self._preferring, []
            self._replies.put_all(Reply(*one) for one in waiting)

    def _set_preferred(self, now: int, wanted: dict[int, None]) -> None:
        self._preferred = wanted
        self._preferences_registered = False
        effects: list[CoordinatorEffect] = []
        self._coordinator.set_preferred(now, tuple(wanted), effects)
        self._on_effects(now, effects)

    def _on_kept(self, now: int) -> None:
        """What this server was asked to prefer before it was started last, as far as it still makes sense."""
        kept = self._preferences.take()
        count = self._state.num_partitions
        wanted = {**self._preferred, **dict.fromkeys(one for one in kept or () if 0 <= one < count)}
        if wanted == self._preferred:
            return
        problem = self._coordinator.preference_problem(tuple(wanted))
        if problem is not None:
            self._out.put(Report(Level.WARNING, f"preferred partitions not taken up again: {problem}"))
            return
        self._out.put(Report(Level.INFO, f"prefers partitions {', '.join(map(str, wanted))}, as before"))
        self._set_preferred(now, wanted)

"""The machine of a proxy: a server for its clients, and one client of the cluster upstream.

    clients ──▶ ClientPort ──▶ ProxyRequests ──▶ ProxyPartition ──▶ Upstream ──▶ servers of the cluster
                    ▲                └─▶ ProxyAnswers  │  ▲             │
                    └───────── replies, feeds ─────────┘  └── feed ─────┘
    its own root in ZooKeeper ◀── ProxyClusterPort             Upstream ◀── the ZooKeeper of the cluster

    STARTING ── the client machine has joined the cluster ──▶ PARTITIONS ── per partition: mark and log start are
    known ──▶ its feed is opened there ──▶ served ── (the upstream connection comes and goes) ──▶ …

Who connects is greeted, decoded, held back and limited by the port of a server; feeds, windows, ranges and payloads are
the ones of a server too. What a partition of a proxy does otherwise, and why that is right, stands in `partition.py`.
Events of connections belong to the side that opened them: dialed ones have negative numbers. Events of the ZooKeeper
of the cluster come as `FromUpstream`, requests to it leave as `ToUpstream`.

It ends when what it has given out cannot be what the cluster says: another cluster answers at its address, the log
there is shorter than here, or begins behind the end of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import attrs

from waltz_core.access.roles import RolesChanged
from waltz_core.base.contract import Handlers, Rng, Tickets, earliest
from waltz_core.base.edge import (
    Accepted,
    Closed,
    Dialed,
    Ended,
    Level,
    Received,
    Report,
    Shutdown,
    WallClock,
    Writable,
    ZkChanged,
    ZkChildren,
    ZkCreate,
    ZkDelete,
    ZkDone,
    ZkEvent,
    ZkFailed,
    ZkGet,
    ZkMulti,
    ZkRequest,
    ZkSet,
    ZkStateChanged,
)
from waltz_core.base.record import record
from waltz_core.client.calls import (
    Carried,
    ClusterLost,
    Committed,
    Consumed,
    Deliver,
    Effect,
    Failed,
    Fetched,
    Flushed,
    GenerationRaised,
    Joined,
    MarkRead,
    Open,
    Phase,
    ReadMark,
    RecordsCarried,
    StatusChanged,
    Unfetchable,
)
from waltz_core.client.membership import ZkMembership
from waltz_core.client.node import ClientEvent
from waltz_core.client.settings import ClientSettings
from waltz_core.proxy.cache import SILENCE_MS, CacheData, CacheEffect, CacheFailed, CacheWritten
from waltz_core.proxy.cluster import ProxyClusterPort
from waltz_core.proxy.partition import FLOOR, PROBE, ProxyPartition
from waltz_core.proxy.partitions import ProxyPartitions
from waltz_core.proxy.requests import ProxyAnswers, ProxyRequests
from waltz_core.proxy.snapshot import ProxySnapshot, snapshot_of
from waltz_core.proxy.state import ProxyState
from waltz_core.proxy.upstream import Upstream
from waltz_core.server.client_port import ClientPort
from waltz_core.server.config import ServerConfig
from waltz_core.server.context import (
    AlarmKey,
    ArchiveAlarm,
    CacheAlarm,
    ClusterAlarm,
    NodeContext,
    PartitionAlarm,
    PoolAlarm,
    ServerEffect,
    StorageAlarm,
)
from waltz_core.server.snapshot import client_lags

_BEGIN = 0  # the question for the mark at which a feed begins; rounds have higher numbers
_CODEC = frozenset({5})  # upstream: ranges of records, and the word that we carry others
_LOST = {
    Phase.CLIENT_AHEAD: "the log upstream is shorter than what was given out here: was the cluster restored?",
    Phase.BEFORE_START: "the log upstream begins behind the end of what is here: start this proxy anew",
}


@record
class FromUpstream:
    """What the ZooKeeper of the cluster says."""

    event: ZkEvent


@record
class ToUpstream:
    """A request to it."""

    request: ZkRequest


@record
class BlocksTaken:
    """The blocks of client ids, of which there is a new one."""

    blocks: tuple[tuple[int, int], ...]


@record
class IdsRead:
    """Up to here client ids were given out, by a reading that began when the one before was posted, or later."""

    given: int


@record
class ProxyConfig:
    """What a proxy needs to know: what a server does, and where the cluster is."""

    server: ServerConfig
    upstream_root: str
    upstream_where: str  # connect string, for people
    upstream: ClientSettings
    cache_bytes: int = 0  # on the disk; 0: nothing is kept there


ProxyEvent: TypeAlias = (
    Accepted
    | Dialed
    | Received
    | Writable
    | Closed
    | ZkEvent
    | FromUpstream
    | BlocksTaken
    | IdsRead
    | CacheData
    | CacheWritten
    | CacheFailed
    | Shutdown
    | WallClock
    | RolesChanged
)
ProxyEffect: TypeAlias = ServerEffect | ToUpstream | CacheEffect


class ProxyNode:
    """Composition of the proxy: which part gets which event, in which order."""

    def __init__(self, config: ProxyConfig, state: ProxyState, rng: Rng) -> None:
        self._context = context = NodeContext(config.server, rng)
        self._state = state
        self._out = context.out
        self._alarms = context.alarms
        self._pending = context.pending
        self._partitions = ProxyPartitions(context, config.cache_bytes)
        self._clients = ClientPort(context, self._partitions)
        self._cluster = ProxyClusterPort(context, self._partitions, state.epoch)
        answers = ProxyAnswers(context, self._clients, self._partitions, self._cluster, self._snapshot_of_step)
        self._requests = ProxyRequests(context, self._clients, self._partitions, answers, self._is_known)
        settings = attrs.evolve(config.upstream, carries_others=True, first_connection=state.first_connection)
        membership = ZkMembership(config.upstream_root, Tickets(), rng, config.upstream_where, client_id=state.identity)
        self._client = Upstream(membership, settings, rng, versions=_CODEC)
        self._for_client: list[ClientEvent] = []  # events of this step for the client machine
        self._generations: dict[int, int] = {}
        self._published = True  # they are in our root, or on their way
        self._ended = False
        self._fetched = 0
        self._asked: ProxySnapshot | None = None  # what tools that ask in this step are answered from
        self._partitions.open(state.num_partitions)
        self._handlers = Handlers(
            type(self).__name__,
            {
                Received: self._on_received,
                Writable: self._on_writable,
                Accepted: self._clients.accepted,
                Dialed: lambda now, event: self._for_client.append(event),
                Closed: self._on_closed,
                ZkDone: self._on_zk_answer,
                ZkFailed: self._on_zk_answer,
                ZkChanged: self._on_zk,
                ZkStateChanged: self._on_zk,
                FromUpstream: lambda now, event: self._for_client.append(event.event),
                BlocksTaken: self._on_blocks,
                IdsRead: lambda now, event: self._partitions.fresh.given(event.given),
                CacheData: self._on_cached,
                CacheWritten: self._on_cache_written,
                CacheFailed: lambda now, event: self._give_up_cache(event.reason),
                Shutdown: lambda now, event: self._cluster.leave(now),
                WallClock: self._on_wall_clock,
                RolesChanged: self._clients.roles_changed,
            },
        )

    # ---- machine -----------------------------------------------------------------------------

    def step(self, now: int, events: Sequence[ProxyEvent], out: list[ProxyEffect]) -> None:
        """Handle a batch of events; see `waltz_core.base.contract`."""
        leaving: list[ProxyEffect] = []
        self._asked = None
        for event in events:
            self._handlers[type(event)](now, event)
        for conn, batch in self._clients.turns(now):
            self._requests.dispatch(now, conn, batch)
        for key in self._alarms.due(now):
            self._on_alarm(now, key)
        if self._cluster.ended is not None:
            self._end(self._cluster.ended)
        self._clients.deliver()
        self._clients.send_backlogs()
        self._settle(now, leaving)
        self._watch_disk(now)
        if not self._published:
            self._published = True
            self._cluster.publish(now, self._generations)
        self._clients.hold_back()
        self._clients.flush(now)
        effects: list[ServerEffect] = []
        self._out.drain(effects)
        out += effects
        out += leaving

    def deadline(self) -> int | None:
        """When the next step is due without events."""
        return earliest(self._alarms.next(), self._client.deadline())

    def _settle(self, now: int, leaving: list[ProxyEffect]) -> None:
        """Let the client machine and the touched partitions work until nothing moves any more.

        What the client machine is told because of its own effects concerns a partition that they have touched. Only the
        questions of `_on_joined` do not: they wait for the map of servers, which ZooKeeper tells in a later event.
        """
        self._step_client(now, leaving)
        while work := self._partitions.take():
            for partition in work:
                partition.flush(now, self._client)
                self._clients.deliver()
                self._partitions.worked(partition)
            leaving += self._partitions.disk.take()
            self._step_client(now, leaving)

    def _step_client(self, now: int, leaving: list[ProxyEffect]) -> None:
        events, self._for_client = self._for_client, []
        effects: list[Effect] = []
        self._client.step(now, events, effects)
        for effect in effects:
            self._on_effect(now, effect, leaving)
        self._clients.deliver()

    def _on_effect(self, now: int, effect: Effect, leaving: list[ProxyEffect]) -> None:
        match effect:
            case Deliver(number, run):
                self._touched(number).delivered(now, effect)
                self._for_client.append(Consumed(number, run[-1].transaction_id))
            case Carried(number):
                self._touched(number).carried(now, effect)
            case RecordsCarried(number):
                self._on_records(now, effect)
            case StatusChanged(number, phase):
                self._touched(number).phase_changed(phase)
                if phase in _LOST:
                    self._end(f"partition {number}: {_LOST[phase]}")
            case MarkRead(number):
                self._on_mark(now, self._touched(number), effect)
            case GenerationRaised(number, generation):
                self._touched(number).generation = self._generations[number] = generation
                self._published = False
            case Joined():
                self._on_joined(effect)
            case ClusterLost(reason):
                self._end(reason)
            case ZkGet() | ZkChildren() | ZkCreate() | ZkSet() | ZkDelete() | ZkMulti():
                leaving.append(ToUpstream(effect))
            case Committed() | Failed() | Flushed() | Fetched() | Unfetchable():
                raise AssertionError(f"nobody asked for {effect}")
            case _:
                self._out.put(effect)

    def _on_alarm(self, now: int, key: AlarmKey) -> None:
        match key:
            case PartitionAlarm(number):
                self._partitions.touch(number)
            case ClusterAlarm():
                self._cluster.due(now, key)
            case CacheAlarm():
                self._give_up_cache(f"it has answered nothing for {SILENCE_MS // 1000} s")
            case PoolAlarm() | StorageAlarm() | ArchiveAlarm():
                raise AssertionError(f"a proxy has neither storage nodes nor an archive: {key}")
            case _:
                self._clients.due(now, key)

    # ---- upstream ------------------------------------------------------------------------------

    def _touched(self, number: int) -> ProxyPartition:
        self._partitions.touch(number)
        return self._partitions.served[number]

    def _on_joined(self, joined: Joined) -> None:
        """The cluster answers: it must be the one that our root is for."""
        expected = self._state.name, self._state.num_partitions
        present = joined.cluster, joined.partition_count
        if present != expected:
            wanted, there = ("{!r} with {} partitions".format(*pair) for pair in (expected, present))
            self._end(f"this root is a proxy's of cluster {wanted}, but upstream is {there}: give it a root of its own")
            return
        self._for_client += [ReadMark(number, _BEGIN) for number in self._partitions.served]

    def _on_mark(self, now: int, partition: ProxyPartition, answer: MarkRead) -> None:
        mark, rounds = answer.mark, [token for token in answer.tokens if isinstance(token, int)]
        if answer.error is not None:  # an operator is told of it; it is asked again after a pause
            self._for_client += [ReadMark(answer.partition, token) for token in answer.tokens]
        elif partition.source.known:
            partition.marked(max(rounds), mark)
        else:
            # A mark of which all is given up below says nothing: where the log begins comes with the first read.
            partition.begins_behind = mark
            self._client.read(now, partition.partition_id, FLOOR, 0, 0)

    def _on_records(self, now: int, answer: RecordsCarried) -> None:
        partition = self._touched(answer.partition)
        self._fetched += len(answer.records or ())
        if partition.source.known:
            partition.fetched(answer)
        elif answer.records is None and answer.token == FLOOR:
            self._client.read(now, partition.partition_id, PROBE, partition.begins_behind + 1, 0)
        elif answer.records is None:
            self._for_client.append(ReadMark(answer.partition, _BEGIN))
        else:
            partition.begin(now, answer.log_start, whole=answer.token == FLOOR)
            self._for_client.append(Open(answer.partition, partition.mark, deliver=True))

    # ---- events ------------------------------------------------------------------------------

    def _is_known(self, client_id: int) -> bool:
        return self._state.includes(client_id)

    def _on_received(self, now: int, event: Received) -> None:
        if event.conn < 0:
            self._for_client.append(event)
            return
        arrived = self._clients.received(now, event)
        if arrived is not None:
            self._requests.dispatch(now, *arrived)
            self._clients.handled(arrived[0])

    def _on_writable(self, now: int, event: Writable) -> None:
        if event.conn < 0:
            self._for_client.append(event)
            self._partitions.touch_waiting()
        else:
            self._clients.writable(event)

    def _on_closed(self, now: int, event: Closed) -> None:
        if event.conn < 0:
            self._for_client.append(event)
        else:
            self._clients.closed(now, event)
            self._cluster.gone(event.conn)

    def _on_zk_answer(self, now: int, event: ZkDone | ZkFailed) -> None:
        self._cluster.answered(now, event, self._pending.take(event.ticket))
        self._clients.deliver()

    def _on_zk(self, now: int, event: ZkChanged | ZkStateChanged) -> None:
        self._cluster.handle(now, (event,))
        self._clients.deliver()

    def _on_wall_clock(self, now: int, event: WallClock) -> None:
        self._context.journals.wall_offset = event.offset_ms

    def _on_blocks(self, now: int, event: BlocksTaken) -> None:
        self._state = attrs.evolve(self._state, blocks=event.blocks)

    # ---- the disk ----------------------------------------------------------------------------

    def _on_cached(self, now: int, event: CacheData) -> None:
        self._touched(event.partition_id).source.cached(event)
        self._alarms.set(CacheAlarm.ANSWER, None)

    def _on_cache_written(self, now: int, event: CacheWritten) -> None:
        self._partitions.kept.was_written(event.size)
        self._alarms.set(CacheAlarm.ANSWER, None)

    def _watch_disk(self, now: int) -> None:
        """Begin to wait for the next answer of the disk, if it owes one and nobody waits yet."""
        if self._partitions.kept.owed and self._alarms.at(CacheAlarm.ANSWER) is None:
            self._alarms.set(CacheAlarm.ANSWER, now + SILENCE_MS)

    def _give_up_cache(self, reason: str) -> None:
        if self._partitions.kept.closed:
            return  # it failed, or answered nothing, before
        self._partitions.kept.close()
        self._alarms.set(CacheAlarm.ANSWER, None)
        for number, partition in self._partitions.served.items():
            if partition.source.disk_lost():
                self._partitions.touch(number)
        text = f"the cache on the disk is given up: {reason}; what it held is read upstream again"
        self._out.put(Report(Level.WARNING, text))

    # ---- for people and metrics --------------------------------------------------------------

    @property
    def partitions(self) -> Mapping[int, ProxyPartition]:
        """All of the cluster."""
        return self._partitions.served

    def snapshot(self, now: int) -> ProxySnapshot:
        """State for metrics, health and people."""
        config = self._context.config
        return ProxySnapshot(
            config.endpoint,
            len(self._clients),
            self._client.connected,
            tuple(snapshot_of(now, partition) for partition in self._partitions.served.values()),
            self._context.cluster.zookeeper,
            self._context.data_cache.misses,
            self._fetched,
            self._partitions.kept.size,
            config.access_level,
            client_lags(list(self._clients), (each.feeds.feed for each in self._partitions.served.values())),
        )

    def _snapshot_of_step(self, now: int) -> ProxySnapshot:
        """The same for all that ask in one step: it tells of every partition."""
        if self._asked is None:
            self._asked = self.snapshot(now)
        return self._asked

    # ---- the end -----------------------------------------------------------------------------

    def _end(self, reason: str) -> None:
        if not self._ended:
            self._ended = True
            self._clients.close_all(reason or "the proxy ends")
            self._out.put(Ended(reason))

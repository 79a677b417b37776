"""The whole server process: connections, the cluster's view, storage nodes, partitions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from waltz_core.access.admission import Admission, Eviction, host_of
from waltz_core.access.roles import Access, access_level
from waltz_core.base.contract import Rng, Tickets, earliest
from waltz_core.base.edge import (
    Accepted,
    CloseConn,
    Closed,
    ConnEffect,
    ConnEvent,
    Dial,
    Dialed,
    Ended,
    Level,
    Reading,
    Received,
    Report,
    Send,
    Shutdown,
    WallClock,
    Writable,
    ZkChanged,
    ZkCreate,
    ZkDone,
    ZkEvent,
    ZkFailed,
    ZkGet,
    ZkRequest,
    ZkSet,
    ZkStateChanged,
)
from waltz_core.base.errors import ConfigError, ProtocolError
from waltz_core.base.ids import ReqId, req_client, req_partition
from waltz_core.base.rules import SAFE, SafetyRules
from waltz_core.cluster.coordinator import (
    ClusterFailed,
    Coordinator,
    CoordinatorEffect,
    EndpointsChanged,
    Joined,
    Left,
    ManagedServer,
    Owned,
    OwnershipConfirmed,
    OwnershipDoubtful,
    PreferencesRegistered,
    ReplicasChanged,
)
from waltz_core.server.appender import RECORD_OVERHEAD
from waltz_core.server.claims import Claims
from waltz_core.server.client_ids import ClientIds
from waltz_core.server.config import ServerConfig
from waltz_core.server.connectivity import CHECK, ConnectivityChecks
from waltz_core.server.data_cache import DataCache
from waltz_core.server.feed import SendFrames, SendReply
from waltz_core.server.feed_cache import with_version
from waltz_core.server.journal import JournalEvent, JournalFailed, Journals, JournalWrite, JournalWritten
from waltz_core.server.partition import NOT_OPEN_MARK, PartitionEffect, PartitionServer, Peer, RepairWanted, Reply
from waltz_core.server.preferences import Preferences
from waltz_core.server.refusals import refusal
from waltz_core.server.repairs import RepairEffect, Repairs
from waltz_core.server.snapshot import ServerSnapshot, snapshot_of, statistics_of, status_of
from waltz_core.server.turns import Shares, Turns
from waltz_core.store.calls import (
    LinkDown,
    LinkUnwanted,
    LinkUp,
    LinkWanted,
    StorageAnswer,
    StorageAppend,
    StorageCall,
    StorageFailed,
    StorageNews,
)
from waltz_core.store.pool import PoolEffect, PoolNote, StoragePool
from waltz_core.wire import client_messages as messages
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection
from waltz_core.wire.lock_count import oversized

if TYPE_CHECKING:
    from waltz_core.zookeeper.znodes import ReplicaAssignments

HELLO_TEXT = "Waltz Server"
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

_PreferenceAnswer: TypeAlias = messages.AddPreferredPartitionResponse | messages.RemovePreferredPartitionResponse
_Bulk: TypeAlias = messages.TransactionDataResponse | messages.RecordRangeResponse | messages.RecordHeaderRangeResponse
_BULK = (messages.TransactionDataResponse, messages.RecordRangeResponse, messages.RecordHeaderRangeResponse)
_CHECKS_MAX = 100  # checks of storage nodes, or changes of preferences, that one connection may wait for
_REFUSALS_TOLD = 20  # different ones of one connection
_EXTENDED = 5  # codec since which every request can be answered by an error

_APPENDS = frozenset({messages.AppendRequest, messages.NamedAppendRequest})
_REQUEST_COST = 5  # of handling one request, where an append, which comes in runs, counts 1
_TURN_COST = 500  # of what one connection may have handled at once; more waits for its turn
_STEP_COST = 1_000  # of such turns in one step: one or two milliseconds, which everybody else waits
_QUEUE_PARTS = 4  # a partition may queue this many payload limits before its clients are held back


def _bulk_size(message: _Bulk) -> int:
    """Bytes, about, of what a client asked for."""
    match message:
        case messages.TransactionDataResponse(data=data):
            return len(data)
        case messages.RecordRangeResponse(records=records):
            return sum(RECORD_OVERHEAD + len(one.data) for one in records)
        case messages.RecordHeaderRangeResponse(record_headers=headers):
            return RECORD_OVERHEAD * len(headers)


class _ClientConn(Peer):
    __slots__ = (
        "access",
        "address",
        "backlog",
        "backlog_bytes",
        "certificate",
        "closing",
        "connection",
        "gathered",
        "held",
        "out",
        "partitions",
        "refused",
        "writable",
    )

    def __init__(self, event: Accepted, access: Access, connection: Connection[messages.ClientMessage]):
        self.certificate = event.names[0] if event.names else ""  # the name in it
        owner = self.certificate or event.peer.rpartition(":")[0]
        super().__init__(event.conn, owner, access.who, carries_others=access.carries_others)
        self.address = event.peer
        self.access = access
        self.connection = connection
        self.out = bytearray()
        self.closing = False
        self.held = False  # reading is off
        self.writable = True  # it takes what is sent to it
        self.gathered = 0  # bytes of its unfinished frame
        self.backlog: deque[_Bulk] = deque()  # payloads for when it takes them
        self.backlog_bytes = 0
        self.partitions: set[int] = set()  # those it asked something of
        self.refused: set[str] = set()  # what it was refused, so that each is told once


ServerEvent: TypeAlias = ConnEvent | ZkEvent | Shutdown | WallClock | JournalEvent
ServerEffect: TypeAlias = ConnEffect | ZkRequest | Report | Ended | Reading | JournalWrite


class ServerNode:
    """Composition of the server process (ruling R9): who gets which event, and in which order effects leave."""

    def __init__(self, config: ServerConfig, rng: Rng, rules: SafetyRules = SAFE) -> None:
        self._config = config
        self._rng = rng
        self._rules = rules
        self._tickets = Tickets()
        self._coordinator = Coordinator(
            config.root,
            tickets=self._tickets,
            rng=rng,
            manages=ManagedServer(config.endpoint, config.preferred_partitions),
            rules=rules,
        )
        self._client_ids = ClientIds(config.root, self._tickets)
        self._claims = Claims()
        self._preferred = dict.fromkeys(config.preferred_partitions)
        self._preferences = Preferences(config.root, config.endpoint, self._tickets, rules)
        self._preferences_registered = True  # what was asked for last is in ZooKeeper
        self._preferring: list[tuple[int, _PreferenceAnswer]] = []  # answers that wait for that
        self._data_cache = DataCache(config.data_cache_bytes)
        self._journals = Journals(config.journal, config.journal_unwritten_max)
        self._wall_offset = 0  # ms since 1970 minus our clock
        self._misses_of_gone = 0  # of the feed caches of partitions that we do not serve any more
        self._conns: dict[int, _ClientConn] = {}
        self._strangers: deque[tuple[int, int]] = deque()  # until when each new connection must have greeted
        self._admission = Admission(config.places.for_members(config.roles.rules is not None))
        self._gathered = 0  # bytes of unfinished frames of clients
        self._backlogged: dict[int, _ClientConn] = {}
        self._inbox: Turns[messages.ClientMessage] = Turns(_TURN_COST)  # requests of those who send many at once
        self._waiting = Shares()  # requests without an answer, by connection
        self._crowded: dict[int, PartitionServer] = {}  # partitions where too many appends wait
        self._restless: dict[int, _ClientConn] = {}  # connections that are held back, or may have to be
        self._now = 0  # of the last step
        self._partitions: dict[int, PartitionServer] = {}
        self._closing: list[PartitionServer] = []
        self._pools: dict[str, StoragePool] = {}
        self._pool_of: dict[int, StoragePool] = {}  # dialed conn → pool
        self._owner: dict[int, PartitionServer] = {}  # ticket → partition
        self._deadlines: dict[int, int] = {}  # partition → when it wants a step
        self._touched: dict[int, None] = {}
        self._joined: Joined | None = None
        self._owned: tuple[tuple[int, int], ...] = ()
        self._endpoints: EndpointsChanged | None = None
        self._replicas: ReplicaAssignments | None = None
        self._subscribers: dict[int, ReqId] = {}  # conn → its request for cluster information
        self._checks = ConnectivityChecks()
        self._repairs = Repairs(config.root, self._tickets, self._new_conn)
        self._last_conn = 0
        self._doubtful = False
        self._zk_state = "not connected"
        self._ended = False
        self._out: list[ServerEffect] = []
        self._frames: dict[tuple[int, int], tuple[bytes, bytes]] = {}  # id and version → frames, and under the version
        self._handlers: dict[type, Callable[[int, Any], None]] = {
            Received: self._on_received,
            Writable: self._on_writable,
            Accepted: self._on_accepted,
            Dialed: self._on_dialed,
            Closed: self._on_closed,
            ZkDone: self._on_zk,
            ZkFailed: self._on_zk,
            ZkChanged: self._on_zk,
            ZkStateChanged: self._on_zk,
            JournalWritten: self._on_journal,
            JournalFailed: self._on_journal,
            Shutdown: self._on_shutdown,
            WallClock: self._on_wall_clock,
        }

    # ---- machine -----------------------------------------------------------------------------

    def step(self, now: int, events: Sequence[ServerEvent], out: list[ServerEffect]) -> None:
        """Handle a batch of events; see `waltz_core.base.contract`."""
        for event in events:
            self._handlers[type(event)](now, event)
        self._now = now
        if self._inbox.ready:
            self._serve_inbox(now)
        self._tick(now)
        if self._backlogged:
            self._send_backlogs()
        self._out += self._client_ids.requests()
        self._out += self._preferences.requests()
        self._settle(now)
        for conn in self._conns.values():
            if conn.out:
                self._out.append(Send(conn.conn, bytes(conn.out)))
                conn.out.clear()
        self._frames.clear()
        out += self._out
        self._out.clear()

    def deadline(self) -> int | None:
        """When the next step is due without events."""
        return earliest(
            self._coordinator.deadline(),
            self._client_ids.deadline(),
            self._preferences.deadline(),
            self._strangers[0][0] if self._strangers else None,
            self._now if self._inbox.ready else None,
            self._admission.deadline(),
            self._now if any(conn.writable for conn in self._backlogged.values()) else None,
            self._repairs.deadline(),
            *self._deadlines.values(),
            *(pool.deadline() for pool in self._pools.values()),
        )

    @property
    def waiting(self) -> int:
        """Requests without an answer, those included that were received and not looked at."""
        return self._waiting.total + len(self._inbox)

    @property
    def reads(self) -> int:
        """Requests that wait for a read, or for its answer."""
        return sum(partition.reads for partition in self._partitions.values())

    def snapshot(self, now: int) -> ServerSnapshot:
        """State for metrics, health and people."""
        return ServerSnapshot(
            self._joined.cluster_name if self._joined else "",
            self._coordinator.server_id,
            self._config.endpoint,
            len(self._conns),
            tuple(snapshot_of(now, partition) for _, partition in sorted(self._partitions.items())),
            self._replica_map(),
            tuple((pool.replica, pool.state.value, pool.trouble) for _, pool in sorted(self._pools.items())),
            self._data_cache.misses,
            self._misses_of_gone + sum(partition.feed_cache_misses for partition in self._partitions.values()),
            self._zk_state,
            access_level(self._config.roles, certificates_asked=self._config.certificates_asked),
            self._client_lags(),
        )

    def _client_lags(self) -> tuple[tuple[int, int], ...]:
        """Of each client, the lag of the partition where it is furthest behind."""
        mounted = (conn for conn in self._conns.values() if conn.net_sequence is not None)
        lags = {conn.client_id: 0 for conn in mounted if conn.client_id is not None}
        for partition in self._partitions.values():
            for conn_id, lag in partition.behind():
                conn = self._conns.get(conn_id)
                if conn is not None and lag > lags.get(conn.client_id or 0, lag):
                    lags[conn.client_id or 0] = lag
        return tuple(lags.items())

    def _replica_map(self) -> tuple[tuple[int, tuple[str, ...]], ...]:
        if self._joined is None or self._replicas is None:
            return ()
        return tuple((p, self._replicas.storages_of(p)) for p in range(self._joined.num_partitions))

    def _tick(self, now: int) -> None:
        """What is due."""
        due = self._coordinator.deadline()
        if due is not None and now >= due:
            self._coordinate(now, ())
        if self._strangers:
            self._drop_strangers(now)
        self._evict(self._admission.due(now))
        due = self._preferences.deadline()
        if due is not None and now >= due:
            self._preferences.due()
        due = self._client_ids.deadline()
        if due is not None and now >= due:
            self._client_ids.due()
        due = self._repairs.deadline()
        if due is not None and now >= due:
            self._repair(lambda out: self._repairs.due(now, self._serves, out))
        for partition_id, due in self._deadlines.items():
            if now >= due:
                self._touched[partition_id] = None
        for pool in self._pools.values():
            due = pool.deadline()
            if due is not None and now >= due:
                effects: list[PoolEffect] = []
                pool.step(now, effects)
                self._on_pool_effects(pool, effects)

    def _settle(self, now: int) -> None:
        """Let touched partitions work until nothing moves any more, then send to the storage nodes."""
        while self._touched or self._closing:
            touched, self._touched = self._touched, {}
            closing, self._closing = self._closing, []
            for partition in closing:
                self._flush(now, partition)
            for partition_id in touched:
                found = self._partitions.get(partition_id)
                if found is None:
                    self._deadlines.pop(partition_id, None)
                    continue
                self._flush(now, found)
                self._note_crowd(found)
                due = found.deadline(now)
                if due is None:
                    self._deadlines.pop(partition_id, None)
                else:
                    self._deadlines[partition_id] = due
        effects: list[PoolEffect] = []
        for pool in self._pools.values():
            pool.flush(effects)
        self._out += effects
        self._hold_back()

    def _note_crowd(self, partition: PartitionServer) -> None:
        """Remember whether too much waits in a partition."""
        config = self._config
        if partition.crowded(config.queue_count_max, config.payload_size_max * _QUEUE_PARTS):
            self._crowded[partition.partition_id] = partition
        else:
            self._crowded.pop(partition.partition_id, None)

    def _hold_back(self) -> None:
        """Stop reading from clients that ask more than their part, or do not read; and resume."""
        everybody = bool(self._crowded) or self._waiting.total > self._config.reads_count_max
        for conn in list((self._conns if everybody else self._restless).values()):
            held = self._to_hold(conn)
            if conn.held != held:
                conn.held = held
                self._out.append(Reading(conn.conn, not held))
            if held:
                self._restless[conn.conn] = conn
            else:
                self._restless.pop(conn.conn, None)

    def _to_hold(self, conn: _ClientConn) -> bool:
        config = self._config
        if not conn.writable or conn.backlog or self._inbox.waits(conn.conn):
            return True
        if self._waiting.greedy(conn.conn, config.reads_count_max):
            return True
        bytes_max = config.payload_size_max * _QUEUE_PARTS
        return any(one.greedy(conn.conn, config.queue_count_max, bytes_max) for one in self._crowded.values())

    def _flush(self, now: int, partition: PartitionServer) -> None:
        effects: list[PartitionEffect] = []
        partition.flush(now, effects)
        notes: list[PoolNote] = []
        for effect in effects:
            if isinstance(effect, SendFrames):
                self._send_frames(effect)
            elif isinstance(effect, StorageAppend):
                self._owner[effect.ticket] = partition
                self._pools[effect.replica].append(now, effect, notes)
            elif isinstance(effect, (Reply, SendReply)):
                self._reply(effect.conn, effect.message)
            else:
                self._on_partition_effect(now, partition, effect, notes)
        self._on_pool_notes(now, notes)

    def _on_partition_effect(
        self, now: int, partition: PartitionServer, effect: PartitionEffect, notes: list[PoolNote]
    ) -> None:
        match effect:
            case StorageCall(replica, ticket):
                self._owner[ticket] = partition
                self._pools[replica].call(now, effect, notes)
            case LinkWanted(replica):
                self._want(now, replica, partition)
            case LinkUnwanted(replica):
                if replica in self._pools:
                    self._pools[replica].unwant(partition.partition_id)
            case RepairWanted(replica):
                self._repair(lambda out: self._repairs.wanted(now, partition.partition_id, replica, out))
            case CloseConn(conn, reason):
                self._close(conn, reason)
            case Report():
                self._out.append(effect)
            case ZkGet() | ZkCreate() | ZkSet() | JournalWrite():
                self._owner[effect.ticket] = partition
                self._out.append(effect)
            case _:
                raise AssertionError(f"an effect that no partition has: {effect}")

    # ---- connections of clients --------------------------------------------------------------

    def _on_accepted(self, now: int, event: Accepted) -> None:
        connection = Connection(
            CLIENT_PROTOCOL, HELLO_TEXT, self._config.versions, self._config.frame_size_max, rules=self._rules
        )
        access = self._config.roles.access(event.names, event.peer)
        self._conns[event.conn] = _ClientConn(event, access, connection)
        if self._config.greeting_ms:
            self._strangers.append((now + self._config.greeting_ms, event.conn))
        self._out.append(Send(event.conn, connection.hello()))
        self._evict(self._admission.accepted(now, event.conn, host_of(event.peer), member=access.member))

    def _on_received(self, now: int, event: Received) -> None:
        pool = self._pool_of.get(event.conn)
        if pool is not None:
            effects: list[PoolEffect] = []
            notes: list[PoolNote] = []
            pool.received(now, event.data, effects, notes)
            self._on_pool_effects(pool, effects)
            self._on_pool_notes(now, notes)
            return
        if event.conn < 0 and self._repairs.owns(event.conn):
            self._repair(lambda out: self._repairs.received(event.conn, event.data, out))
            return
        conn = self._conns.get(event.conn)
        if conn is None or conn.closing:
            return
        batch: list[messages.ClientMessage] = []
        error = ""
        try:
            conn.connection.receive(event.data, batch)
        except ProtocolError as found:
            error = str(found)
        if not conn.version and conn.connection.version is not None:
            self._on_greeted(conn, conn.connection.version)
        self._admission.heard(now, conn.conn)
        if batch:
            self._admission.proven(now, conn.conn)
        few = len(batch) * _REQUEST_COST <= _TURN_COST or _APPENDS.issuperset(map(type, batch))
        if few and conn.writable and not self._inbox.waits(conn.conn):
            self._dispatch(now, conn, batch)
        else:
            self._put_in_turn(conn, batch)
        if error:
            self._close(conn.conn, error)
        self._count_gathered(conn)

    def _on_greeted(self, conn: _ClientConn, version: int) -> None:
        conn.version = version
        locks_max = self._config.locks_max
        # What comes of it is no message of the protocol, but goes the way of one.
        conn.connection.look_at(4 * locks_max, oversized(locks_max, version))  # type: ignore[arg-type]

    def _put_in_turn(self, conn: _ClientConn, batch: list[messages.ClientMessage]) -> None:
        """Many requests of one connection do not delay what others ask; nothing more is read until they are handled."""
        for message in batch:
            self._inbox.put(conn.conn, conn.owner, 1 if type(message) in _APPENDS else _REQUEST_COST, message)
        self._restless[conn.conn] = conn

    def _serve_inbox(self, now: int) -> None:
        """Handle some of what waits for its turn."""
        left = _STEP_COST
        run: list[messages.ClientMessage] = []
        last: _ClientConn | None = None
        while left > 0 and (taken := self._inbox.take()) is not None:
            conn, message = self._conns[taken[0]], taken[1]
            if conn is not last:
                if last is not None:
                    self._dispatch(now, last, run)
                run, last = [], conn
            run.append(message)
            left -= 1 if type(message) in _APPENDS else _REQUEST_COST
        if last is not None:
            self._dispatch(now, last, run)

    def _count_gathered(self, conn: _ClientConn) -> None:
        """Bound what the unfinished frames of all clients hold together."""
        found = 0 if conn.closing else conn.connection.gathered
        self._gathered += found - conn.gathered
        conn.gathered = found
        while self._gathered > max(self._config.gathered_max, self._config.frame_size_max):
            most = max(self._conns.values(), key=lambda one: one.gathered)
            text = f"unfinished frames hold {self._gathered} bytes, and this connection most of them"
            self._close(most.conn, text)

    def _drop_strangers(self, now: int) -> None:
        """Clients greet at once; others may not keep their connections."""
        while self._strangers:
            due, conn_id = self._strangers[0]
            conn = self._conns.get(conn_id)
            if conn is not None and conn.connection.version is None and not conn.closing:
                if now < due:
                    return
                self._close(conn_id, f"no greeting within {self._config.greeting_ms / 1000:g} s")
            self._strangers.popleft()

    def _evict(self, evictions: Iterable[Eviction]) -> None:
        for one in evictions:
            self._close(one.conn, one.reason, quiet=one.quiet)

    def _dispatch(self, now: int, conn: _ClientConn, batch: list[messages.ClientMessage]) -> None:
        """Hand messages on, runs for one partition at once."""
        if conn.client_id is None and batch:
            conn.client_id = req_client(batch[0].req_id)
        run: list[messages.ClientMessage] = []
        run_key = b""
        for message in batch:
            if conn.closing:
                return
            key = message.req_id[8:12]  # the partition id, undecoded: it is the same for whole runs
            kind = type(message)
            if kind in _NODE_MESSAGES:
                self._deliver(now, conn, run)
                run = []
                if conn.access.unrestricted or self._allowed(conn, message):
                    self._on_node_message(now, conn, message)
                continue
            if key != run_key:
                self._deliver(now, conn, run)
                run = []
                run_key = key
            if conn.net_sequence is None and kind is messages.MountRequest:
                self._deliver(now, conn, run)
                run = []
                if not self._claim(conn, message):
                    continue
            run.append(message)
        self._deliver(now, conn, run)

    def _deliver(self, now: int, conn: _ClientConn, run: list[messages.ClientMessage]) -> None:
        if not run or conn.closing:
            return
        if not conn.access.unrestricted:
            run = [message for message in run if self._allowed(conn, message)]
            if not run or conn.closing:
                return
        partition_id = req_partition(run[0].req_id)
        partition = self._partitions.get(partition_id)
        if partition is not None:
            conn.partitions.add(partition_id)
            partition.received(now, conn, run)
            self._touched[partition_id] = None
            return
        for message in run:
            match message:
                case messages.MountRequest(req_id):
                    state = messages.PartitionState.NOT_READY
                    self._reply(conn.conn, messages.MountResponse(req_id, state))
                case messages.TransactionDataRequest(req_id, transaction_id):
                    # Java: the text of its exception, which clients show but do not parse.
                    error = "partition not ready"
                    self._reply(
                        conn.conn,
                        messages.TransactionDataResponse(req_id, transaction_id, False, error=error),
                    )
                case messages.NamedAppendRequest(req_id):
                    self._reply(conn.conn, refusal(req_id, messages.Refusal.NOT_SERVED))
                case _:
                    pass  # Java: no answer on a partition that is not here (traps 5 and 17 of the protocol page)

    def _claim(self, conn: _ClientConn, message: messages.ClientMessage) -> bool:
        """The first mount of a connection: whether it may speak for its client id; if not, it is told so."""
        assert isinstance(message, messages.MountRequest)
        if conn.closing or not (conn.access.unrestricted or self._allowed(conn, message)):
            return False
        assert conn.client_id is not None
        if self._rules.client_ids_claimed and not conn.carries_others:
            owner = self._claims.mount(conn.client_id, conn.conn, conn.certificate)
            if owner is not None:
                problem = f"{conn.who} may not mount with client id {conn.client_id}"
                known = f"{problem}: it is in use by {owner!r}" if owner else f"{problem}: it is in use"
                self._refuse(conn, message, f"{problem}, which is another client's", known)
                return False
        conn.net_sequence = message.seq_num
        return True

    def _allowed(self, conn: _ClientConn, message: messages.ClientMessage) -> bool:
        """Whether the role of a client includes a request; if not, it is told so."""
        problem = None if conn.closing else conn.access.client_problem(message, req_partition(message.req_id))
        if problem is not None:
            self._refuse(conn, message, problem, problem)
        return problem is None and not conn.closing

    def _refuse(self, conn: _ClientConn, message: messages.ClientMessage, problem: str, log_text: str) -> None:
        """A client asked for what is not its to ask: answer where its codec can say so, close it where not."""
        req_id = message.req_id
        answer: messages.ClientMessage
        match message:
            case messages.TransactionDataRequest():
                answer = messages.TransactionDataResponse(req_id, message.transaction_id, False, error=problem)
            case messages.AddPreferredPartitionRequest():
                answer = messages.AddPreferredPartitionResponse(req_id, False)
            case messages.RemovePreferredPartitionRequest():
                answer = messages.RemovePreferredPartitionResponse(req_id, False)
            case messages.NamedAppendRequest():
                answer = refusal(req_id, messages.Refusal.NOT_ALLOWED, problem)
            case _ if conn.version >= _EXTENDED:
                answer = messages.ErrorResponse(req_id, messages.ErrorCode.NOT_ALLOWED, problem)
            case _:
                self._close(conn.conn, log_text)
                return
        if problem not in conn.refused and len(conn.refused) < _REFUSALS_TOLD:
            conn.refused.add(problem)
            self._out.append(Report(Level.WARNING, f"refused: {log_text}"))
        self._reply(conn.conn, answer)

    def _on_writable(self, now: int, event: Writable) -> None:
        conn = self._conns.get(event.conn)
        if conn is None:
            return
        conn.writable = event.writable
        self._restless[conn.conn] = conn
        self._inbox.block(conn.conn, not event.writable)
        for partition_id in conn.partitions:
            partition = self._partitions.get(partition_id)
            if partition is not None:
                partition.writable(event.conn, event.writable)
                if event.writable:
                    self._touched[partition_id] = None

    def _on_closed(self, now: int, event: Closed) -> None:
        pool = self._pool_of.pop(event.conn, None)
        if pool is not None:
            effects: list[PoolEffect] = []
            notes: list[PoolNote] = []
            pool.closed(now, event.reason, effects, notes)
            self._on_pool_effects(pool, effects)
            self._on_pool_notes(now, notes)
            self._checked(pool.replica, False)
            return
        if self._repairs.owns(event.conn):
            self._repair(lambda out: self._repairs.closed(event.conn, event.reason, out))
            return
        conn = self._conns.pop(event.conn, None)
        if conn is None:
            return
        self._admission.gone(event.conn)
        self._gathered -= conn.gathered
        self._restless.pop(conn.conn, None)
        self._subscribers.pop(event.conn, None)
        self._preferring = [waiting for waiting in self._preferring if waiting[0] != event.conn]
        if conn.client_id is not None:
            self._claims.gone(conn.client_id, conn.conn)
        self._forget_work(conn)

    def _forget_work(self, conn: _ClientConn) -> None:
        """Nobody waits any more for what a connection asked."""
        self._backlogged.pop(conn.conn, None)
        self._inbox.drop(conn.conn)
        for partition_id in conn.partitions:
            partition = self._partitions.get(partition_id)
            if partition is not None:
                partition.gone(conn)
        self._waiting.drop(conn.conn)

    def _reply(self, conn_id: int, message: messages.ClientMessage) -> None:
        conn = self._conns.get(conn_id)
        if conn is None or conn.closing:
            return
        if len(conn.out) > self._config.out_bytes_max or conn.backlog:
            if isinstance(message, _BULK):
                self._put_off(conn, message)
                return
            if len(conn.out) > 2 * self._config.out_bytes_max:
                self._close(conn_id, "it asks for more at once than can be sent")
                return
        try:
            conn.connection.encode(message, conn.out)
        except ProtocolError as error:
            self._close(conn_id, str(error))

    def _put_off(self, conn: _ClientConn, message: _Bulk) -> None:
        """Keep an answer with a payload until the client has taken what was sent before."""
        conn.backlog.append(message)
        conn.backlog_bytes += _bulk_size(message)
        self._backlogged[conn.conn] = conn
        self._restless[conn.conn] = conn
        if conn.backlog_bytes > self._config.unsent_max:
            self._close(conn.conn, f"it takes data too slowly: {conn.backlog_bytes} bytes of payloads wait for it")

    def _send_backlogs(self) -> None:
        for conn in list(self._backlogged.values()):
            while conn.backlog and conn.writable and len(conn.out) <= self._config.out_bytes_max and not conn.closing:
                message = conn.backlog.popleft()
                conn.backlog_bytes -= _bulk_size(message)
                try:
                    conn.connection.encode(message, conn.out)
                except ProtocolError as error:
                    self._close(conn.conn, str(error))
            if not conn.backlog:
                self._backlogged.pop(conn.conn, None)

    def _send_frames(self, effect: SendFrames) -> None:
        conn = self._conns.get(effect.conn)
        if conn is None or conn.closing:
            return
        key = id(effect.frames), conn.version
        found = self._frames.get(key)
        if found is None:
            # The frames are kept too: an id may come back once its object is gone.
            found = self._frames[key] = effect.frames, with_version(effect.frames, conn.version)
        conn.out += found[1]

    def _close(self, conn_id: int, reason: str, *, quiet: bool = False) -> None:
        conn = self._conns.get(conn_id)
        if conn is None or conn.closing:
            return
        conn.closing = True
        self._admission.gone(conn_id)
        conn.connection.forget()
        conn.backlog.clear()
        self._forget_work(conn)
        self._gathered -= conn.gathered
        conn.gathered = 0
        if conn.out:
            self._out.append(Send(conn_id, bytes(conn.out)))
            conn.out.clear()
        if not quiet:
            self._out.append(Report(Level.WARNING, f"connection of {conn.address} closed: {reason}"))
        self._out.append(CloseConn(conn_id, reason))

    # ---- messages for the server itself ------------------------------------------------------

    def _on_node_message(self, now: int, conn: _ClientConn, message: messages.ClientMessage) -> None:
        match message:
            case messages.CheckStorageConnectivityRequest(req_id):
                self._on_check(now, conn, req_id)
            case messages.ServerPartitionsAssignmentRequest(req_id):
                answer = messages.ServerPartitionsAssignmentResponse(req_id, tuple(sorted(self._partitions)))
                self._reply(conn.conn, answer)
            case messages.ServerPartitionsHealthStatRequest(req_id):
                health = tuple((p, not partition.trouble(now)) for p, partition in sorted(self._partitions.items()))
                self._reply(conn.conn, messages.ServerPartitionsHealthStatResponse(req_id, health))
            case messages.AddPreferredPartitionRequest(req_id, partitions):
                wanted = {**self._preferred, **dict.fromkeys(partitions)}
                done = self._prefer(now, conn, partitions, wanted)
                self._audit(conn, "prefer", partitions, done)
                self._answer_preference(conn.conn, messages.AddPreferredPartitionResponse(req_id, done))
            case messages.RemovePreferredPartitionRequest(req_id, partitions):
                wanted = {p: None for p in self._preferred if p not in partitions}
                done = self._prefer(now, conn, partitions, wanted)
                self._audit(conn, "do not prefer", partitions, done)
                self._answer_preference(conn.conn, messages.RemovePreferredPartitionResponse(req_id, done))
            case messages.ClusterInfoRequest():
                self._on_cluster_info(conn, message)
            case _:
                self._on_extended(now, conn, message)

    def _on_extended(self, now: int, conn: _ClientConn, message: messages.ClientMessage) -> None:
        """Requests of codec 5 besides the bootstrap; `CAPABILITIES` says which are answered."""
        partition = self._partitions.get(req_partition(message.req_id))
        match message:
            case messages.LogStartRequest() | messages.SetLogStartRequest() | messages.RecordRangeRequest():
                self._on_reader(conn, message, partition)
            case messages.StatisticsRequest(req_id, partition_id, prefixes):
                found = statistics_of(self.snapshot(now), partition_id, prefixes)
                self._reply(conn.conn, messages.StatisticsResponse(req_id, now + self._wall_offset, found))
            case messages.PartitionStatusRequest(req_id):
                states = tuple(status_of(now, found) for _, found in sorted(self._partitions.items()))
                self._reply(conn.conn, messages.PartitionStatusResponse(req_id, states))
            case messages.StorageNodesRequest(req_id):
                pools = (pool for _, pool in sorted(self._pools.items()))
                nodes = tuple(
                    messages.StorageNodeStatus(pool.replica, pool.usable, pool.trouble or None) for pool in pools
                )
                self._reply(conn.conn, messages.StorageNodesResponse(req_id, nodes))
            case _:
                text = f"{type(message).__name__} is not something this server does"
                self._reply(conn.conn, messages.ErrorResponse(message.req_id, messages.ErrorCode.NOT_IMPLEMENTED, text))

    def _on_reader(
        self,
        conn: _ClientConn,
        message: messages.LogStartRequest | messages.SetLogStartRequest | messages.RecordRangeRequest,
        partition: PartitionServer | None,
    ) -> None:
        """Bulk readers ask one partition, which must be here and open."""
        if partition is None or partition.high_water_mark == NOT_OPEN_MARK:
            code, text = messages.ErrorCode.NOT_READY, "the partition has not been opened yet"
            if partition is None:
                code, text = messages.ErrorCode.NOT_SERVED, "the partition is not on this server"
            if isinstance(message, messages.SetLogStartRequest):
                what = f"raise the log start of partition {req_partition(message.req_id)} to {message.log_start}"
                self._out.append(Report(Level.INFO, f"audit: {conn.access.who}: {what}: refused: {text}"))
            self._reply(conn.conn, messages.ErrorResponse(message.req_id, code, text))
        elif isinstance(message, messages.LogStartRequest):
            ends = partition.log_start, partition.high_water_mark
            self._reply(conn.conn, messages.LogStartResponse(message.req_id, *ends))
        elif isinstance(message, messages.SetLogStartRequest):
            who = f"audit: {conn.access.who}: raise the log start of partition {partition.partition_id}"
            self._out.append(Report(Level.INFO, f"{who} to {message.log_start}"))
            partition.on_set_log_start(conn.conn, message.req_id, message.log_start)
            self._touched[partition.partition_id] = None
        else:
            conn.partitions.add(partition.partition_id)
            partition.on_range(conn, message)
            self._touched[partition.partition_id] = None

    def _audit(self, conn: _ClientConn, what: str, partitions: Sequence[int], done: bool) -> None:
        """One line for every change that somebody asked for."""
        shown = ", ".join(map(str, partitions[:20])) + (" ..." if len(partitions) > 20 else "")
        outcome = "done" if done else "refused"
        self._out.append(Report(Level.INFO, f"audit: {conn.access.who}: {what} partitions {shown}: {outcome}"))

    def _prefer(self, now: int, conn: _ClientConn, partitions: Sequence[int], wanted: dict[int, None]) -> bool:
        """Change the preferred partitions; False when the request makes no sense."""
        count = self._joined.num_partitions if self._joined else 0
        if not partitions or max(partitions) >= count or (min(partitions) < 0 and self._rules.preferences_checked):
            if not partitions and not self._rules.preferences_checked:
                self._close(conn.conn, "empty list of preferred partitions")  # Java: an exception in the handler
            return False
        problem = self._coordinator.preference_problem(tuple(wanted))
        if problem is not None:
            self._out.append(Report(Level.WARNING, f"preferred partitions refused: {problem}"))
            return False
        self._preferences.keep(tuple(wanted))
        self._set_preferred(now, wanted)
        return True

    def _answer_preference(self, conn_id: int, answer: _PreferenceAnswer) -> None:
        """A refusal at once; what is done, once ZooKeeper has it, as 0.13.2 does."""
        if answer.result:
            if sum(waiting == conn_id for waiting, _ in self._preferring) >= _CHECKS_MAX:
                self._close(conn_id, f"more than {_CHECKS_MAX} changes of preferred partitions at once")
                return
            self._preferring.append((conn_id, answer))
            self._answer_preferring()
        else:
            self._reply(conn_id, answer)

    def _answer_preferring(self) -> None:
        if self._preferences_registered and self._preferences.kept:
            waiting, self._preferring = self._preferring, []
            for conn_id, answer in waiting:
                self._reply(conn_id, answer)

    def _set_preferred(self, now: int, wanted: dict[int, None]) -> None:
        self._preferred = wanted
        self._preferences_registered = False
        effects: list[CoordinatorEffect] = []
        self._coordinator.set_preferred(now, tuple(wanted), effects)
        self._on_coordinator_effects(now, effects)

    def _on_kept_preferences(self, now: int) -> None:
        """What this server was told to prefer before it was started last, as far as it still makes sense."""
        kept = self._preferences.take()
        count = self._joined.num_partitions if self._joined else 0
        wanted = {**self._preferred, **dict.fromkeys(one for one in kept or () if 0 <= one < count)}
        if wanted == self._preferred:
            return
        problem = self._coordinator.preference_problem(tuple(wanted))
        if problem is not None:
            self._out.append(Report(Level.WARNING, f"preferred partitions not taken up again: {problem}"))
            return
        self._out.append(Report(Level.INFO, f"prefers partitions {', '.join(map(str, wanted))}, as before"))
        self._set_preferred(now, wanted)

    def _on_check(self, now: int, conn: _ClientConn, req_id: ReqId) -> None:
        nodes = [storage for storage, _ in self._replicas.replicas] if self._replicas else []
        if self._checks.waiting(conn.conn) >= _CHECKS_MAX:
            self._close(conn.conn, f"more than {_CHECKS_MAX} checks of storage nodes at once")
            return
        known: dict[str, bool] = {}
        for storage in nodes:
            pool = self._pool(storage)
            effects: list[PoolEffect] = []
            ready = pool is not None and pool.want(now, CHECK, effects)
            if pool is not None:
                self._on_pool_effects(pool, effects)
            if ready or pool is None or pool.waiting:
                known[storage] = ready
        self._checks.ask(conn.conn, req_id, nodes)
        for storage, reached in known.items():
            self._checked(storage, reached)
        self._checked("", False)

    def _checked(self, storage: str, reached: bool) -> None:
        for conn_id, answer in self._checks.found(storage, reached):
            self._reply(conn_id, answer)
        if storage in self._pools:
            self._pools[storage].unwant(CHECK)

    def _on_cluster_info(self, conn: _ClientConn, request: messages.ClusterInfoRequest) -> None:
        conn.feed_windows = bool(request.capabilities & messages.ClientCapability.FEED_WINDOWS)
        if request.subscribe:
            self._subscribers[conn.conn] = request.req_id
        else:
            self._subscribers.pop(conn.conn, None)
        if self._joined is None:
            code, text = messages.ErrorCode.NOT_READY, "this server has not joined its cluster yet"
            self._reply(conn.conn, messages.ErrorResponse(request.req_id, code, text))
        elif request.client_id_wanted and self._client_ids.waits(conn.conn):
            code, text = messages.ErrorCode.OVERLOADED, "this connection waits for a client id already"
            self._reply(conn.conn, messages.ErrorResponse(request.req_id, code, text))
        elif request.client_id_wanted:
            self._client_ids.ask(conn.conn, request.req_id)
        else:
            self._tell_cluster(conn.conn, request.req_id, -1)

    def _tell_cluster(self, conn_id: int, req_id: ReqId, client_id: int) -> None:
        joined, endpoints, conn = self._joined, self._endpoints, self._conns.get(conn_id)
        assert joined is not None
        if conn is None:
            return
        key = joined.cluster_key if conn.access.sees_cluster_key else NO_KEY
        servers = endpoints.endpoints if endpoints is not None else ()
        self._reply(
            conn_id,
            messages.ClusterInfoResponse(
                req_id,
                endpoints.revision if endpoints is not None else -1,
                joined.cluster_name,
                UUID(bytes=key),
                joined.num_partitions,
                client_id,
                CAPABILITIES,
                tuple(messages.ServerEntry(endpoint, partitions) for endpoint, partitions in servers),
            ),
        )

    # ---- storage nodes -----------------------------------------------------------------------

    def _pool(self, storage: str) -> StoragePool | None:
        pool = self._pools.get(storage)
        if pool is None:
            if self._joined is None:
                return None
            try:
                pool = StoragePool(
                    storage,
                    key=self._joined.cluster_key,
                    num_partitions=self._joined.num_partitions,
                    new_conn=self._new_conn,
                    rng=self._rng,
                    frame_size_max=self._config.storage_frame_size_max,
                    answer_timeout_ms=self._config.answer_timeout_ms,
                    retry_min_ms=self._config.retry_min_ms,
                    retry_max_ms=self._config.retry_max_ms,
                    versions=self._config.storage_versions,
                )
            except ConfigError as error:
                self._out.append(Report(Level.ERROR, str(error)))
                return None
            self._pools[storage] = pool
        return pool

    def _want(self, now: int, storage: str, partition: PartitionServer) -> None:
        pool = self._pool(storage)
        if pool is None:
            return
        effects: list[PoolEffect] = []
        if pool.want(now, partition.partition_id, effects):
            partition.link_up(now, LinkUp(storage, pool.codec))
            self._touched[partition.partition_id] = None
        self._on_pool_effects(pool, effects)

    def _new_conn(self) -> int:
        self._last_conn -= 1
        return self._last_conn

    def _on_dialed(self, now: int, event: Dialed) -> None:
        if self._repairs.owns(event.conn):
            self._repair(lambda out: self._repairs.dialed(event.conn, out))
        elif event.conn in self._pool_of:
            effects: list[PoolEffect] = []
            self._pool_of[event.conn].dialed(now, effects)
            self._out += effects

    def _serves(self, partition_id: int, replica: str) -> bool:
        if partition_id not in self._partitions or self._replicas is None:
            return False
        return replica in self._replicas.storages_of(partition_id)

    def _repair(self, work: Callable[[list[RepairEffect]], object]) -> None:
        effects: list[RepairEffect] = []
        work(effects)
        self._out += effects

    def _on_pool_effects(self, pool: StoragePool, effects: Iterable[PoolEffect]) -> None:
        for effect in effects:
            if type(effect) is Dial:
                self._pool_of[effect.conn] = pool
            self._out.append(effect)

    def _on_pool_notes(self, now: int, notes: Iterable[PoolNote]) -> None:
        for note in notes:
            if isinstance(note, (StorageAnswer, StorageFailed)):
                partition = self._owner.pop(note.ticket, None)
                if partition is None:
                    continue
                if isinstance(note, StorageAnswer):
                    partition.storage_answer(now, note)
                else:
                    partition.storage_failed(now, note)
                self._touched[partition.partition_id] = None
                continue
            if isinstance(note, StorageNews):
                partition = self._partitions.get(note.message.partition_id)
                if partition is not None:
                    partition.storage_news(now, note)
                    self._touched[partition.partition_id] = None
                continue
            for partition_id in self._pools[note.replica].wanted_by():
                partition = self._partitions.get(partition_id)
                if partition is None:
                    continue
                if isinstance(note, LinkDown):
                    partition.link_down(now, note)
                else:
                    partition.link_up(now, note)
                self._touched[partition_id] = None
            if isinstance(note, LinkUp):
                self._checked(note.replica, True)

    # ---- the cluster -------------------------------------------------------------------------

    def _on_zk(self, now: int, event: ZkEvent) -> None:
        if isinstance(event, (ZkDone, ZkFailed)):
            partition = self._owner.pop(event.ticket, None)
            if partition is not None:
                if isinstance(event, ZkDone):
                    partition.zk_done(now, event)
                else:
                    partition.zk_failed(now, event)
                self._touched[partition.partition_id] = None
                return
            replicas = self._replicas
            repaired: list[RepairEffect] = []
            if self._repairs.zk_answered(
                event, self._joined, lambda one: replicas.storages_of(one) if replicas is not None else (), repaired
            ):
                self._out += repaired
                return
            if self._preferences.answered(now, event):
                self._on_kept_preferences(now)
                self._answer_preferring()
                return
            if self._client_ids.answered(now, event):
                for conn_id, req_id, client_id in self._client_ids.take():
                    self._tell_cluster(conn_id, req_id, client_id)
                return
        if isinstance(event, ZkStateChanged):
            self._zk_state = event.state.value
        self._coordinate(now, (event,))

    def _coordinate(self, now: int, events: Sequence[ZkEvent]) -> None:
        effects: list[CoordinatorEffect] = []
        self._coordinator.step(now, events, effects)
        self._on_coordinator_effects(now, effects)

    def _on_coordinator_effects(self, now: int, effects: Iterable[CoordinatorEffect]) -> None:
        for effect in effects:
            match effect:
                case Joined():
                    self._joined = effect
                    self._journals.key = effect.cluster_key
                    self._preferences.read()
                case Owned(partitions):
                    self._own(now, partitions)
                case ReplicasChanged(assignments):
                    self._on_replicas(now, assignments)
                case PreferencesRegistered():
                    self._preferences_registered = True
                    self._answer_preferring()
                case EndpointsChanged():
                    self._endpoints = effect
                    for conn_id, req_id in self._subscribers.items():
                        self._tell_cluster(conn_id, req_id, -1)
                case OwnershipDoubtful() | OwnershipConfirmed():
                    self._doubt(isinstance(effect, OwnershipDoubtful))
                case ClusterFailed(reason):
                    self._end(now, reason)
                case Left():
                    self._end(now, "")
                case _:
                    self._out.append(effect)

    def _on_replicas(self, now: int, assignments: ReplicaAssignments) -> None:
        self._replicas = assignments
        for partition_id, partition in self._partitions.items():
            partition.set_replicas(now, assignments.storages_of(partition_id))
            self._touched[partition_id] = None

    def _doubt(self, doubtful: bool) -> None:
        self._doubtful = doubtful
        for partition_id, partition in self._partitions.items():
            partition.set_doubtful(doubtful)
            self._touched[partition_id] = None

    def _own(self, now: int, owned: tuple[tuple[int, int], ...]) -> None:
        """Open what is new, close what is gone, hand on generations."""
        self._owned = owned
        for partition_id in set(self._partitions) - {p for p, _ in owned}:
            partition = self._partitions.pop(partition_id)
            self._misses_of_gone += partition.feed_cache_misses
            self._crowded.pop(partition_id, None)
            partition.close(now)
            self._closing.append(partition)
        for partition_id, generation in owned:
            partition = self._partitions.get(partition_id) or self._open(now, partition_id)
            partition.set_generation(now, generation)
            self._touched[partition_id] = None
        share = self._config.feed_cache_bytes // max(1, len(self._partitions))
        for partition in self._partitions.values():
            partition.set_feed_cache(share)

    def _open(self, now: int, partition_id: int) -> PartitionServer:
        config = self._config
        partition = PartitionServer(
            partition_id,
            config.partition(partition_id),
            tickets=self._tickets,
            data_cache=self._data_cache,
            rng=self._rng,
            journals=self._journals,
            held=self._waiting,
            rules=self._rules,
        )
        self._data_cache.forget(partition_id)  # somebody else may have owned it since we last did
        self._partitions[partition_id] = partition
        partition.set_doubtful(self._doubtful)
        if self._replicas is not None:
            partition.set_replicas(now, self._replicas.storages_of(partition_id))
        return partition

    # ---- the end -----------------------------------------------------------------------------

    def _on_wall_clock(self, now: int, event: WallClock) -> None:
        self._wall_offset = self._journals.wall_offset = event.offset_ms

    def _on_journal(self, now: int, event: JournalEvent) -> None:
        partition = self._owner.pop(event.ticket, None)
        if partition is not None:
            partition.journal_answered(now, event)
            self._touched[partition.partition_id] = None

    def _on_shutdown(self, now: int, event: Shutdown) -> None:
        effects: list[CoordinatorEffect] = []
        self._coordinator.leave(now, effects)
        self._on_coordinator_effects(now, effects)

    def _end(self, now: int, reason: str) -> None:
        if self._ended:
            return
        self._ended = True
        self._own(now, ())
        for conn_id in list(self._conns):
            self._close(conn_id, reason or "the server ends")
        self._out.append(Ended(reason))


_NODE_MESSAGES = frozenset(
    {
        messages.CheckStorageConnectivityRequest,
        messages.ServerPartitionsAssignmentRequest,
        messages.ServerPartitionsHealthStatRequest,
        messages.AddPreferredPartitionRequest,
        messages.RemovePreferredPartitionRequest,
        messages.ClusterInfoRequest,
        messages.RecordRangeRequest,
        messages.LogStartRequest,
        messages.SetLogStartRequest,
        messages.StatisticsRequest,
        messages.PartitionStatusRequest,
        messages.StorageNodesRequest,
    }
)

"""A whole storage process: connections, the control file, routing to partitions, administration."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias
from uuid import UUID

import attrs

from waltz_core.access.admission import Admission, Eviction, host_of
from waltz_core.access.roles import access_level
from waltz_core.base.contract import Tickets, earliest
from waltz_core.base.edge import (
    Accepted,
    CloseConn,
    Closed,
    Dialed,
    Level,
    Port,
    Reading,
    Received,
    Report,
    Send,
    Shutdown,
    WallClock,
    Writable,
)
from waltz_core.base.errors import CorruptionError, ProtocolError
from waltz_core.base.rules import SAFE, SafetyRules
from waltz_core.storage import control as ctl
from waltz_core.storage import metrics
from waltz_core.storage.config import Shared, StorageConfig
from waltz_core.storage.control import ControlDamage, ControlEntry, ControlStruct
from waltz_core.storage.directory import open_control
from waltz_core.storage.effects import (
    DiskBytes,
    DiskDone,
    DiskEvent,
    DiskFailed,
    DiskListing,
    DiskSpace,
    Stop,
    StorageFailed,
    StorageReady,
    StorageStopped,
)
from waltz_core.storage.legacy import JavaError, io_text
from waltz_core.storage.procedure import DiskError, Procedure, Runner
from waltz_core.storage.refusals import SE, Refusal, not_assigned
from waltz_core.storage.repair import ANSWER_MS, Repair
from waltz_core.storage.replica import DROP, AdminDone, AdminReading, State, StorageReplica
from waltz_core.storage.reports import Outbox
from waltz_core.storage.scrub import Scrub
from waltz_core.storage.transcode import STORING_PROTOCOL, Incoming
from waltz_core.store.admin_link import AdminLink, LinkEffect
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.connection import ADMIN_PROTOCOL, STORAGE_PROTOCOL, Connection
from waltz_core.wire.shared import Condition, FailureCode, Statistic

STORAGE_HELLO = "Waltz Storage Server"
ADMIN_HELLO = "Waltz Storage Admin Server"
CAPABILITIES = (
    admin.AdminCapability.LOG_START
    | admin.AdminCapability.SET_LOG_START
    | admin.AdminCapability.REPLICA_STATE
    | admin.AdminCapability.REPAIR
    | admin.AdminCapability.ACCEPT_LIMBO
    | admin.AdminCapability.SEGMENTS
    | admin.AdminCapability.RECORD_RANGE
    | admin.AdminCapability.STATISTICS
    | admin.AdminCapability.DIGEST
)
SOURCES_MAX = 16  # of one repair
UNOPENED_MAX = 65536  # bytes of an unfinished frame of a peer that has not shown the cluster key

Message: TypeAlias = Incoming | admin.AdminMessage
Circumstance: TypeAlias = DiskSpace | WallClock | Stop | Shutdown
Event: TypeAlias = Accepted | Dialed | Received | Writable | Closed | DiskEvent | Circumstance


class _Peer:
    """One connection of a server or a tool."""

    __slots__ = (
        "access",
        "busy",
        "closing",
        "conn",
        "connection",
        "gathered",
        "held",
        "is_admin",
        "name",
        "opened",
        "parked",
        "parked_bytes",
        "writable",
    )

    def __init__(self, event: Accepted, config: StorageConfig, rules: SafetyRules) -> None:
        self.conn = event.conn
        self.name = event.peer
        self.is_admin = event.port is Port.ADMIN
        self.access = config.roles.access(event.names, event.peer)
        codecs = config.codecs if rules.fence_persisted else (0,)
        self.connection: Connection[wire.StorageMessage] | Connection[Incoming] | Connection[admin.AdminMessage]
        if self.is_admin:
            self.connection = Connection(ADMIN_PROTOCOL, ADMIN_HELLO, codecs, config.frame_size_max, rules=rules)
        elif rules.append_atomic:
            self.connection = Connection(STORING_PROTOCOL, STORAGE_HELLO, codecs, config.frame_size_max, rules=rules)
        else:  # appends record by record, as 0.13.2
            self.connection = Connection(STORAGE_PROTOCOL, STORAGE_HELLO, codecs, config.frame_size_max, rules=rules)
        self.opened = False  # the cluster key was checked
        self.gathered = 0  # bytes of its unfinished frame
        self.writable = True
        self.busy = False  # an administrative change of this peer is under way
        self.closing = False
        self.held = False  # no bytes are taken from it for the time being
        self.parked: deque[Message] = deque()
        self.parked_bytes = 0  # that came with them, at most; counted anew once there are none


class _Change:
    """An administrative request on its way through a list of partitions."""

    __slots__ = ("apply", "assigned_only", "left", "seq_num", "what", "whole")

    def __init__(
        self,
        seq_num: int,
        what: str,
        apply: Callable[[StorageReplica, AdminDone], None],
        *,
        assigned_only: bool = False,
        whole: bool = False,
    ) -> None:
        self.seq_num = seq_num
        self.what = what  # for the audit
        self.apply = apply
        self.assigned_only = assigned_only  # makes no sense for a partition that is not assigned
        self.whole = whole  # 0.13.2 looks at all ids before it changes anything
        self.left: deque[int] = deque()


class StorageNode:
    """The machine of a storage process.

    The first step opens the data directory, whose lock the driver holds; `StorageReady` or `StorageFailed`
    says how that ended. Connections may be accepted after `StorageReady`.
    """

    def __init__(self, config: StorageConfig, rules: SafetyRules = SAFE) -> None:
        assert len(config.key) == 16
        assert config.partition_count >= 0
        self.config = config
        self.rules = rules
        self.replicas: list[StorageReplica] = []
        self._outbox = Outbox()
        self._runner = Runner(Tickets())
        self._shared = Shared(config, rules, self._runner, self._outbox)
        self._peers: dict[int, _Peer] = {}
        self._strangers: deque[tuple[int, int]] = deque()  # until when each new connection must show the cluster key
        # Servers may have nothing to say for days: who has shown the cluster key is never idle too long.
        places = config.places.for_members(config.roles.rules is not None)
        self._admission = Admission(attrs.evolve(places, idle_ms=0))
        self._gathered = 0  # bytes of unfinished frames
        self._touched: dict[int, StorageReplica] = {}  # partitions whose lanes were added to
        self._resumable: list[_Peer] = []  # peers whose change is done
        self._droppable: list[_Peer] = []  # peers that 0.13.2 would drop
        self._started = False
        self._ready = False
        self._failed = False
        self._ending: StorageFailed | None = None  # the directory cannot be used
        self._started_all = False  # the control file is read, every partition on its way
        self._stopping = False
        self._stopped = False
        self._opening = 0
        self._repairs: dict[int, Repair] = {}  # by partition
        self._repair_of: dict[int, Repair] = {}  # by connection dialed
        self._last_dialed = 0
        self._scrub = Scrub(config)

        self._admin_handlers: dict[type, Callable[[_Peer, Any, list[object]], None]] = {
            admin.PartitionAvailableRequest: self._on_available,
            admin.PartitionAssignmentRequest: self._on_assignment,
            admin.RecordListRequest: self._on_reading,
            admin.RecordRangeRequest: self._on_reading,
            admin.DigestRequest: self._on_reading,
            admin.SegmentListRequest: self._on_reading,
            admin.SegmentReadRequest: self._on_reading,
            admin.LastSessionInfoRequest: self._on_session_info,
            admin.MetricsRequest: self._on_metrics,
            admin.AssignedPartitionStatusRequest: self._on_status,
            admin.NodeInfoRequest: self._on_node_info,
            admin.ReplicaStateRequest: self._on_replica_state,
            admin.RepairRequest: self._on_repair,
            admin.AcceptLimboRequest: self._on_accept_limbo,
            admin.LogStartRequest: self._on_log_start,
            admin.SetLogStartRequest: self._on_set_log_start,
            admin.StatisticsRequest: self._on_statistics,
        }

    # ---- machine ---------------------------------------------------------------------------------

    def deadline(self) -> int | None:
        """Milliseconds; the first step is due at once."""
        if not self._started:
            return 0
        mark = min(self._shared.due.values(), default=None)
        scrub = None if self._stopping else self._scrub.deadline()
        due = mark if scrub is None else scrub if mark is None else min(mark, scrub)
        due = earliest(due, self._admission.deadline())
        if self._strangers:
            due = earliest(due, self._strangers[0][0])
        if self._repairs:
            due = earliest(due, *(repair.deadline() for repair in self._repairs.values()))
        return due

    def step(self, now: int, events: Sequence[Event], out: list[object]) -> None:
        """Handle events; effects of the edge and of `storage.effects` are appended to `out`."""
        self._shared.now = now
        if not self._started:
            self._started = True
            self._runner.start(self._start(), self._start_done, out)
        for event in events:
            self._on_event(event, out)
        if self._strangers:
            self._drop_strangers(now, out)
        self._evict(self._admission.due(now), out)
        self._settle(out)
        due = [partition_id for partition_id, at in self._shared.due.items() if at <= now or self._stopping]
        for partition_id in due:
            self.replicas[partition_id].write_mark(out)
        if not self._stopping and self._ready:
            self._scrub.run(now, self.replicas, out)
        self._flush(out)
        if self._stopping and not self._stopped and self._idle():
            self._stopped = True
            out.append(StorageStopped())

    def _settle(self, out: list[object]) -> None:
        """Start what the events made possible, until nothing more follows from it."""
        while True:
            if self._repairs:
                self._run_repairs(out)
            if not (self._touched or self._resumable or self._droppable):
                break
            touched, self._touched = self._touched, {}
            for replica in touched.values():
                replica.pump(out)
            resumable, self._resumable = self._resumable, []
            for peer in resumable:
                self._resume(peer, out)
            droppable, self._droppable = self._droppable, []
            for peer in droppable:
                self._drop(peer, "an administrative request that cannot be carried out", out)
        if self._ending is not None and not self._failed:
            self._failed = True
            out.append(self._ending)
        elif self._started_all and self._opening == 0 and not self._ready and not self._failed:
            self._ready = True
            self._scrub.begin(self._shared.now)
            out.append(StorageReady())

    def _on_event(self, event: Event, out: list[object]) -> None:
        match event:
            case Received(conn=conn, data=data):
                self._on_received(conn, data, out)
            case DiskDone() | DiskFailed() | DiskBytes() | DiskListing():
                self._runner.on_event(event, out)
            case Dialed(conn=conn):
                if conn in self._repair_of:
                    self._repair_of[conn].dialed(conn, out)  # type: ignore[arg-type]  # effects of the edge
            case Accepted():
                self._on_accepted(event, out)
            case Writable(conn=conn, writable=writable):
                if conn in self._peers:
                    self._peers[conn].writable = writable
                    self._resume(self._peers[conn], out)
            case Closed(conn=conn):
                gone = self._peers.pop(conn, None)
                self._admission.gone(conn)
                if gone is not None:
                    self._gathered -= gone.gathered
                if conn in self._repair_of:
                    self._repair_of.pop(conn).closed(conn, event.reason)
            case _:
                self._on_circumstance(event)

    def _on_circumstance(self, event: Circumstance) -> None:
        match event:
            case DiskSpace(free_bytes=free):
                self._on_space(free)
            case WallClock(offset_ms=offset):
                self._shared.wall_offset_ms = offset
            case Stop() | Shutdown():
                self._stopping = True

    def _on_space(self, free: int) -> None:
        """Below the reserve appends are refused, so that marks, fences and repairs find room to the end."""
        self._shared.free_bytes = free
        reserve, was = self.config.reserve_bytes, self._shared.no_room
        if free < reserve:
            self._shared.no_room = f"no room for appends: {free} bytes are free, {reserve} are kept in reserve"
            if not was:
                self._outbox.report(Level.ERROR, f"{self._shared.no_room}; reads are served, appends again with more")
        elif was and free >= reserve + reserve // 10:  # a little more, not to flutter
            self._shared.no_room = ""
            self._outbox.report(Level.INFO, f"room for appends again: {free} bytes are free")

    def _idle(self) -> bool:
        return self._runner.idle and not self._shared.due and all(replica.idle for replica in self.replicas)

    def _flush(self, out: list[object]) -> None:
        """Encode what was answered in this step, one `Send` per connection."""
        if self._outbox.reports:
            out.extend(self._outbox.reports)
            self._outbox.reports = []
        if not self._outbox.replies:
            return
        replies, self._outbox.replies = self._outbox.replies, []
        buffers: dict[int, bytearray] = {}
        for conn, message in replies:
            peer = self._peers.get(conn)
            if peer is None or peer.closing:
                continue
            buffer = buffers.get(conn)
            if buffer is None:
                buffer = buffers[conn] = bytearray()
            if type(message) is wire.LastSessionInfoResponse and not peer.connection.version:
                message = _for_codec_0(message)
            elif type(message) is wire.SuspectReport and not peer.connection.version:
                continue  # 0.13.2 knows no such message
            peer.connection.encode(message, buffer)  # type: ignore[arg-type]  # answers go where the request came from
        out.extend(Send(conn, buffer) for conn, buffer in buffers.items())

    # ---- views -----------------------------------------------------------------------------------

    @property
    def healthy(self) -> bool:
        """The data directory is open and every assigned partition is in service."""
        return (
            self._ready
            and not self._failed
            and all(replica.state is State.OPEN for replica in self.replicas if replica.entry.current.assigned)
        )

    def gauges(self) -> dict[str, object]:
        """Full gauge names and values, as the tools read them."""
        found = metrics.gauges(self.replicas, self.config.version)
        found["waltz-storage.scrub-pass-count"] = self._scrub.passes
        found["waltz-storage.no-room"] = self._shared.no_room
        return found

    def counters(self) -> dict[str, int]:
        """Full counter names and counts."""
        return metrics.counters(self.replicas)

    def conditions(self) -> Iterator[tuple[int, State, str]]:
        """Partition, state and reason of every assigned partition."""
        for replica in self.replicas:
            if replica.entry.current.assigned:
                yield replica.partition_id, replica.state, replica.reason

    # ---- opening the directory -------------------------------------------------------------------

    def _start_done(self, out: list[object]) -> None:
        self._started_all = self._ending is None
        self._touched.update({replica.partition_id: replica for replica in self.replicas})

    def _fail(self, reason: str, *chain: str) -> None:
        if self._ending is None:
            self._ending = StorageFailed(reason, chain or (f"{SE}{reason}",))

    def _start(self) -> Procedure[None]:
        try:
            body = yield from open_control(self.config, self.rules, self._shared.wall_ms)
            self._make_replicas(body)
            for replica in self.replicas:
                if not replica.entry.current.assigned:
                    continue
                if self.rules.torn_not_corrupt:
                    self._open(replica)
                else:
                    yield from replica.open_as_java()
        except JavaError as error:
            self._fail(str(error), *error.chain)
        except DiskError as fault:
            self._fail(f"the data directory cannot be read: {fault}", io_text(fault))
        except CorruptionError as error:
            self._fail(str(error))

    def _open(self, replica: StorageReplica) -> None:
        self._opening += 1

        def opened(problem: str | None) -> None:
            self._opening -= 1
            if problem is not None:
                self._fail(f"partition {replica.partition_id}: {problem}")

        replica.open(opened)

    def _make_replicas(self, body: bytes) -> None:
        for partition_id in range(self.config.partition_count):
            entry = ctl.decode_entry(body, partition_id, self.rules.sequence_wraps)
            problem = None
            if isinstance(entry, ControlDamage):
                if not self.rules.partitions_isolated:
                    raise JavaError(f"{SE}{entry.value}")
                place = ctl.struct_place(partition_id, 0)
                problem = (
                    f"{ctl.NAME}: neither state of partition {partition_id}, at offset {place}, counts: expected one "
                    f"that is newer and has a valid checksum, found none ({entry.value})"
                )
                lost = ControlStruct(-1, -1, -1, ctl.ASSIGNED | ctl.AVAILABLE, -1)
                entry = ControlEntry(partition_id, 0, lost, -1)
            self.replicas.append(StorageReplica(partition_id, entry, self._shared, problem))

    # ---- connections -----------------------------------------------------------------------------

    def _on_accepted(self, event: Accepted, out: list[object]) -> None:
        peer = _Peer(event, self.config, self.rules)
        self._peers[event.conn] = peer
        now = self._shared.now
        if self.config.greeting_ms:
            self._strangers.append((now + self.config.greeting_ms, event.conn))
        out.append(Send(event.conn, peer.connection.hello()))
        self._evict(self._admission.accepted(now, event.conn, host_of(event.peer), member=peer.access.member), out)

    def _evict(self, evictions: Iterable[Eviction], out: list[object]) -> None:
        for one in evictions:
            self._drop(self._peers[one.conn], one.reason, out, quiet=one.quiet)

    def _on_received(self, conn: int, data: bytes, out: list[object]) -> None:
        if conn in self._repair_of:
            self._repair_of[conn].received(conn, data, out)  # type: ignore[arg-type]  # effects of the edge
            return
        peer = self._peers.get(conn)
        if peer is None or peer.closing:
            return
        messages: list[Message] = []
        failure: str | None = None
        size = peer.connection.gathered + len(data)
        try:
            peer.connection.receive(data, messages)  # type: ignore[arg-type]  # each protocol has its own messages
        except ProtocolError as error:
            failure = str(error)
        if peer.parked or not peer.writable or peer.busy:
            peer.parked.extend(messages)
        else:
            self._serve(peer, messages, out)
        if peer.parked:
            self._hold(peer, size - peer.connection.gathered, out)
        if failure is not None:
            self._drop(peer, failure, out)
        self._count_gathered(peer, out)

    def _hold(self, peer: _Peer, size: int, out: list[object]) -> None:
        """Requests that took `size` bytes were parked, or some of them: read no more where that is too much."""
        peer.parked_bytes += size
        much = len(peer.parked) > self.config.parked_count_max or peer.parked_bytes > self.config.parked_bytes_max
        if much and not peer.held:
            peer.held = True
            out.append(Reading(peer.conn, False))

    def _count_gathered(self, peer: _Peer, out: list[object]) -> None:
        """Bound what unfinished frames hold: of strangers each, of all together."""
        found = 0 if peer.closing else peer.connection.gathered
        self._gathered += found - peer.gathered
        peer.gathered = found
        if found > UNOPENED_MAX and not peer.opened and self.rules.open_required:
            self._drop(peer, f"a frame of more than {UNOPENED_MAX} bytes before the cluster key was shown", out)
        while self._gathered > max(self.config.gathered_max, self.config.frame_size_max):
            most = max(self._peers.values(), key=lambda one: one.gathered)
            self._drop(most, f"unfinished frames hold {self._gathered} bytes, and this connection most of them", out)

    def _drop_strangers(self, now: int, out: list[object]) -> None:
        """Whoever knows the cluster shows it at once; others may not keep their connections."""
        while self._strangers:
            due, conn = self._strangers[0]
            peer = self._peers.get(conn)
            if peer is not None and not peer.opened and not peer.closing:
                if now < due:
                    return
                self._drop(peer, f"the cluster key was not shown within {self.config.greeting_ms / 1000:g} s", out)
            self._strangers.popleft()

    def _serve(self, peer: _Peer, messages: Sequence[Message], out: list[object]) -> None:
        for at, message in enumerate(messages):
            if peer.closing:
                return
            if peer.busy:
                peer.parked.extend(messages[at:])
                return
            if peer.is_admin:
                self._on_admin(peer, message, out)  # type: ignore[arg-type]  # its protocol decodes nothing else
            else:
                self._on_storage(peer, message, out)  # type: ignore[arg-type]

    def _resume(self, peer: _Peer, out: list[object]) -> None:
        """Go on with what a peer sent while it could not be served."""
        if peer.parked and peer.writable and not peer.busy:
            messages, peer.parked = list(peer.parked), deque()
            self._serve(peer, messages, out)
        if not peer.parked:
            peer.parked_bytes = 0
        if peer.held and not peer.parked and not peer.closing:
            peer.held = False
            out.append(Reading(peer.conn, True))

    def _drop(self, peer: _Peer, reason: str, out: list[object], *, quiet: bool = False) -> None:
        if peer.closing:
            return
        self._flush(out)
        peer.closing = True
        self._admission.gone(peer.conn)
        peer.connection.forget()
        peer.parked.clear()
        peer.parked_bytes = 0
        self._gathered -= peer.gathered
        peer.gathered = 0
        out.append(CloseConn(peer.conn, reason))
        if not quiet:
            out.append(Report(Level.WARNING, f"connection of {peer.name} closed: {reason}"))

    # ---- storage port ----------------------------------------------------------------------------

    def _on_storage(self, peer: _Peer, message: Incoming, out: list[object]) -> None:
        if type(message) is wire.OpenRequest:
            problem = peer.access.storage_problem()
            if problem is not None:
                self._outbox.reply(peer.conn, wire.FailureResponse(-1, -1, -1, f"{SE}{problem}"))
                self._drop(peer, problem, out)
                return
            refusal = self._open_refusal(message.key, message.num_partitions)
            if refusal is None:
                self._opened(peer)
                self._outbox.reply(peer.conn, wire.SuccessResponse(-1, -1, -1))
            else:
                code = FailureCode.WRONG_CLUSTER
                self._outbox.reply(peer.conn, wire.FailureResponse(-1, -1, -1, refusal, code=code))
            return
        partition_id = message.partition_id
        if self.rules.open_required and not peer.opened:
            why = Refusal(f"{SE}the connection was not opened: send OpenRequest first", FailureCode.WRONG_CLUSTER)
        elif type(message) is wire.StatisticsRequest:
            common = message.session_id, message.seq_num, partition_id
            found = self._statistics(message)
            self._outbox.reply(peer.conn, wire.StatisticsResponse(*common, self._shared.wall_ms, found))
            return
        elif 0 <= partition_id < len(self.replicas):
            replica = self.replicas[partition_id]
            replica.submit(peer.conn, message, out)
            self._touched[partition_id] = replica
            return
        else:
            why = not_assigned(partition_id)
        ids = message.session_id, message.seq_num, partition_id
        self._outbox.reply(peer.conn, wire.FailureResponse(*ids, str(why), code=why.code, detail=why.detail))

    def _opened(self, peer: _Peer) -> None:
        peer.opened = True
        self._admission.proven(self._shared.now, peer.conn)

    def _open_refusal(self, key: UUID, partition_count: int) -> str | None:
        if key.bytes != self.config.key:
            return f"{SE}Provided cluster key is inconsistent with key in control file."
        if partition_count != self.config.partition_count:
            return (
                f"{SE}Provided number of partitions is inconsistent with "
                "the total number of partitions in control file."
            )
        return None

    # ---- admin port ------------------------------------------------------------------------------

    def _on_admin(self, peer: _Peer, message: admin.AdminMessage, out: list[object]) -> None:
        if isinstance(message, admin.AdminOpenRequest):
            problem = peer.access.admin_port_problem()
            if problem is not None:
                self._refuse(peer, -1, Refusal(f"{SE}{problem}"))
                self._drop(peer, problem, out)
                return
            refusal = self._open_refusal(message.key, message.num_partitions)
            if refusal is None:
                self._opened(peer)
            if refusal is None:
                self._outbox.reply(peer.conn, admin.AdminSuccessResponse(-1))
            else:
                self._refuse(peer, -1, Refusal(refusal, FailureCode.WRONG_CLUSTER))
            return
        if self.rules.open_required and not peer.opened:
            text = f"{SE}the connection was not opened: send AdminOpenRequest first"
            self._refuse(peer, message.seq_num, Refusal(text, FailureCode.WRONG_CLUSTER))
            return
        handler = self._admin_handlers.get(type(message))
        problem = peer.access.admin_problem(message)
        if problem is not None:
            self._outbox.report(Level.WARNING, f"audit: refused: {problem}")
            self._refuse(peer, message.seq_num, Refusal(f"{SE}{problem}"))
        elif handler is not None:
            handler(peer, message, out)
        else:
            self._drop(peer, f"{type(message).__name__} is not a request", out)

    def _on_available(self, peer: _Peer, message: admin.PartitionAvailableRequest, out: list[object]) -> None:
        def apply(replica: StorageReplica, done: AdminDone) -> None:
            replica.set_available(message.toggled, done)

        what = f"{'allow' if message.toggled else 'forbid'} reads and writes of {_shown(message.partition_ids)}"
        self._change(peer, message.partition_ids, _Change(message.seq_num, what, apply, whole=True))

    def _on_assignment(self, peer: _Peer, message: admin.PartitionAssignmentRequest, out: list[object]) -> None:
        def apply(replica: StorageReplica, done: AdminDone) -> None:
            if message.toggled:
                replica.assign(done)
            else:
                replica.unassign(message.delete_storage_files, done)

        what = f"{'assign' if message.toggled else 'unassign'} {_shown(message.partition_ids)}"
        if message.delete_storage_files and not message.toggled:
            what += " and delete the files"
        change = _Change(message.seq_num, what, apply, assigned_only=not message.toggled)
        self._change(peer, message.partition_ids, change)

    def _on_reading(self, peer: _Peer, message: AdminReading, out: list[object]) -> None:
        replica = self._replica_for_admin(peer, message.seq_num, message.partition_id)
        if replica is not None:
            replica.read_for_admin(peer.conn, message, out)
            self._touched[message.partition_id] = replica

    def _on_session_info(self, peer: _Peer, message: admin.LastSessionInfoRequest, out: list[object]) -> None:
        replica = self._replica_for_admin(peer, message.seq_num, message.partition_id)
        if replica is not None:
            info = replica.session_info()
            self._outbox.reply(peer.conn, admin.LastSessionInfoResponse(message.seq_num, message.partition_id, info))

    def _on_metrics(self, peer: _Peer, message: admin.MetricsRequest, out: list[object]) -> None:
        text = metrics.as_json(self.replicas, self.config.version)
        self._outbox.reply(peer.conn, admin.MetricsResponse(message.seq_num, text))

    def _on_status(self, peer: _Peer, message: admin.AssignedPartitionStatusRequest, out: list[object]) -> None:
        self._outbox.reply(peer.conn, admin.AssignedPartitionStatusResponse(message.seq_num, self._status()))

    def _on_node_info(self, peer: _Peer, message: admin.NodeInfoRequest, out: list[object]) -> None:
        key, count = UUID(bytes=self.config.key), self.config.partition_count
        software = f"waltz-log {self.config.version}"
        self._outbox.reply(peer.conn, admin.NodeInfoResponse(message.seq_num, key, count, CAPABILITIES, software))

    def _on_replica_state(self, peer: _Peer, message: admin.ReplicaStateRequest, out: list[object]) -> None:
        replica = self._replica_for_admin(peer, message.seq_num, message.partition_id)
        if replica is not None:
            self._outbox.reply(peer.conn, replica.admin_state(message.seq_num))

    # ---- repair ----------------------------------------------------------------------------------

    def _on_repair(self, peer: _Peer, message: admin.RepairRequest, out: list[object]) -> None:
        partition_id = message.partition_id
        what = f"repair partition {partition_id}"
        replica = self._replica_for_change(peer, message.seq_num, partition_id, what)
        if replica is None:
            return
        if partition_id in self._repairs:
            text = f"{SE}partition {partition_id} is being repaired already"
            self._audit(peer, what, f"refused: {text}")
            self._refuse(peer, message.seq_num, Refusal(text, FailureCode.OVERLOADED))
            return
        effects: list[LinkEffect] = []
        links = []
        for endpoint in dict.fromkeys(message.sources[:SOURCES_MAX]):
            self._last_dialed -= 1
            key, count = self.config.key, self.config.partition_count
            links.append(AdminLink(self._last_dialed, endpoint, key, count, effects))

        def done(ranges: tuple[admin.RepairedRange, ...], problem: str) -> None:
            good = sum(one.outcome == admin.RepairOutcome.REPAIRED for one in ranges)
            self._audit(peer, what, f"{good} of {len(ranges)} ranges repaired")
            if problem:
                self._outbox.report(Level.WARNING, f"partition {partition_id}: not all could be repaired: {problem}")
            self._outbox.reply(peer.conn, admin.RepairResponse(message.seq_num, partition_id, ranges, problem or None))

        due = self._shared.now + ANSWER_MS
        repair = Repair(partition_id, replica, links, message.ranges, due, done)
        self._repairs[partition_id] = repair
        self._repair_of.update(dict.fromkeys(repair.conns(), repair))
        out.extend(effects)

    def _run_repairs(self, out: list[object]) -> None:
        for partition_id, repair in list(self._repairs.items()):
            if repair.run(self._shared.now, out):  # type: ignore[arg-type]  # effects of the edge
                self._touched[partition_id] = self.replicas[partition_id]
            if repair.ended:
                del self._repairs[partition_id]

    def _on_statistics(self, peer: _Peer, message: admin.StatisticsRequest, out: list[object]) -> None:
        found = self._statistics(message)
        self._outbox.reply(peer.conn, admin.StatisticsResponse(message.seq_num, self._shared.wall_ms, found))

    def _statistics(self, message: admin.StatisticsRequest | wire.StatisticsRequest) -> tuple[Statistic, ...]:
        shared = self._shared
        space = None if shared.free_bytes is None else (shared.free_bytes, self.config.reserve_bytes)
        level = access_level(self.config.roles, certificates_asked=self.config.certificates_asked)
        return metrics.statistics_of(self.replicas, space, message.partition_id, message.prefixes, level)

    def _on_accept_limbo(self, peer: _Peer, message: admin.AcceptLimboRequest, out: list[object]) -> None:
        what = f"accept the limbo of partition {message.partition_id} up to {message.max_transaction_id}"
        replica = self._replica_for_change(peer, message.seq_num, message.partition_id, what)
        if replica is not None:
            replica.accept_limbo(message.max_transaction_id, self._when_changed(peer, message.seq_num, what))
            self._touched[message.partition_id] = replica

    def _on_log_start(self, peer: _Peer, message: admin.LogStartRequest, out: list[object]) -> None:
        replica = self._replica_for_admin(peer, message.seq_num, message.partition_id)
        if replica is not None:
            ends = replica.log_start, replica.max_id
            self._outbox.reply(peer.conn, admin.LogStartResponse(message.seq_num, message.partition_id, *ends))

    def _on_set_log_start(self, peer: _Peer, message: admin.SetLogStartRequest, out: list[object]) -> None:
        what = f"raise the log start of partition {message.partition_id} to {message.log_start}"
        replica = self._replica_for_change(peer, message.seq_num, message.partition_id, what)
        if replica is not None:
            replica.set_log_start(message.log_start, self._when_changed(peer, message.seq_num, what))
            self._touched[message.partition_id] = replica

    def _when_changed(self, peer: _Peer, seq_num: int, what: str) -> AdminDone:
        """Nothing else of this peer is done until then; it is answered and noted."""
        peer.busy = True

        def done(refusal: str | None) -> None:
            answer: admin.AdminMessage = admin.AdminSuccessResponse(seq_num)
            if refusal is not None:
                answer = admin.AdminFailureResponse(seq_num, refusal)
            self._change_done(peer, what, answer)

        return done

    def _audit(self, peer: _Peer, what: str, outcome: str) -> None:
        """One line for every change that somebody asked for."""
        self._outbox.report(Level.INFO, f"audit: {peer.access.who}: {what}: {outcome}")

    def _refuse(self, peer: _Peer, seq_num: int, why: Refusal) -> None:
        self._outbox.reply(peer.conn, admin.AdminFailureResponse(seq_num, str(why), code=why.code, detail=why.detail))

    def _status(self) -> tuple[tuple[int, bool], ...]:
        """Assigned partitions, and whether each is available and in service."""
        return tuple(
            (replica.partition_id, replica.entry.current.available and replica.state is State.OPEN)
            for replica in self.replicas
            if replica.entry.current.assigned
        )

    def _replica_for_change(self, peer: _Peer, seq_num: int, partition_id: int, what: str) -> StorageReplica | None:
        """As `_replica_for_admin`; a change that is refused has its line in the audit too."""
        replica = self._replica_for_admin(peer, seq_num, partition_id)
        if replica is None:
            self._audit(peer, what, f"refused: {not_assigned(partition_id)}")
        return replica

    def _replica_for_admin(self, peer: _Peer, seq_num: int, partition_id: int) -> StorageReplica | None:
        if 0 <= partition_id < len(self.replicas):
            replica = self.replicas[partition_id]
            if replica.state is not State.UNASSIGNED:
                return replica
        self._refuse(peer, seq_num, not_assigned(partition_id))
        return None

    def _change(self, peer: _Peer, partition_ids: tuple[int, ...] | None, change: _Change) -> None:
        """Apply a change to partitions one after the other; one answer for all."""
        if self.rules.unassigned_refused:
            refusal = self._change_refusal(partition_ids, change)
            if refusal is not None:
                self._audit(peer, change.what, f"refused: {refusal}")
                self._refuse(peer, change.seq_num, refusal)
                return
        elif partition_ids is None or (change.whole and self._outside(partition_ids) is not None):
            self._droppable.append(peer)
            return
        assert partition_ids is not None
        # A partition that is named twice cannot be given up twice; half of the change would be done, and refused.
        change.left.extend(dict.fromkeys(partition_ids) if self.rules.unassigned_refused else partition_ids)
        peer.busy = True
        self._change_next(peer, change)

    def _outside(self, partition_ids: Sequence[int]) -> int | None:
        return next((one for one in partition_ids if not 0 <= one < len(self.replicas)), None)

    def _change_refusal(self, partition_ids: tuple[int, ...] | None, change: _Change) -> Refusal | None:
        """Why nothing at all is changed."""
        if partition_ids is None:
            return Refusal(f"{SE}the list of partitions is null")
        outside = self._outside(partition_ids)
        if outside is not None:
            text = f"{SE}partition {outside} does not exist: the cluster has {len(self.replicas)} partitions, from 0"
            return Refusal(text, FailureCode.NOT_ASSIGNED)
        for one in partition_ids:
            if change.assigned_only and self.replicas[one].state is State.UNASSIGNED:
                return not_assigned(one)
        return None

    def _change_next(self, peer: _Peer, change: _Change) -> None:
        if not change.left:
            self._change_done(peer, change.what, admin.AdminSuccessResponse(change.seq_num))
            return
        partition_id = change.left.popleft()
        if not 0 <= partition_id < len(self.replicas):
            self._droppable.append(peer)
            return

        def done(refusal: str | None) -> None:
            if refusal is None:
                self._change_next(peer, change)
            elif refusal is DROP:
                self._droppable.append(peer)
            else:
                self._change_done(peer, change.what, admin.AdminFailureResponse(change.seq_num, refusal))

        replica = self.replicas[partition_id]
        change.apply(replica, done)
        self._touched[partition_id] = replica

    def _change_done(self, peer: _Peer, what: str, answer: admin.AdminMessage) -> None:
        self._audit(
            peer, what, f"failed: {answer.message}" if isinstance(answer, admin.AdminFailureResponse) else "done"
        )
        self._outbox.reply(peer.conn, answer)
        peer.busy = False
        self._resumable.append(peer)


def _shown(partition_ids: tuple[int, ...] | None) -> str:
    """Partitions for people, not too many."""
    ids = partition_ids or ()
    return f"partitions {', '.join(map(str, ids[:20]))}" + (f" and {len(ids) - 20} more" if len(ids) > 20 else "")


def _for_codec_0(answer: wire.LastSessionInfoResponse) -> wire.StorageMessage:
    """A server of 0.13.2 cannot be told of limbo: it is refused, and so counts this replica as absent."""
    if answer.condition not in (Condition.LIMBO, Condition.STOPPED):
        return answer
    text = f"{SE}partition {answer.partition_id} is out of service: {answer.reason}"
    return wire.FailureResponse(answer.session_id, answer.seq_num, answer.partition_id, text)

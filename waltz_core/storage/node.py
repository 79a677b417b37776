"""A whole storage process: distributes the events of a step to its machines.

    StorageNode
    ├── Peers                connections of both ports (peers.py)
    │   ├── StoragePort      what servers ask for
    │   └── AdminPort        what tools ask for
    │       └── AdminChanges changes of partitions, audited
    ├── Repairs ── Repair    one for each partition that is being repaired (repair.py), over AdminLinks
    ├── Scrub                reads everything again, slowly
    └── StorageReplica       one for each partition (replica.py), over ReplicaFiles
    all with one NodeContext: outbox of effects, answers, notes, alarms, the runner of disk procedures

States:

    new ──first step──► opening ──every partition examined──► ready ──Stop──► stopping ──nothing under way──► stopped
                           └──the directory cannot be used──► failed

A step hands every event to the machine it concerns, then *settles*: it starts what the events made possible, until
nothing more follows. Then alarms ring, answers are encoded, and all effects leave in the order in which they were put.

A damaged partition does not end the process: the others are as good as before, and the damaged one can be
repaired only through this process. A directory of another node or cluster ends it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar, TypeAlias, get_args

from waltz_core.access.admission import Silence
from waltz_core.access.roles import RolesChanged
from waltz_core.base.contract import unknown_event
from waltz_core.base.edge import (
    Accepted,
    Closed,
    Dialed,
    Level,
    Received,
    Shutdown,
    WallClock,
    Writable,
)
from waltz_core.base.errors import CorruptionError
from waltz_core.storage import control as ctl
from waltz_core.storage import metrics
from waltz_core.storage.admin_changes import AdminChanges
from waltz_core.storage.admin_port import AdminPort
from waltz_core.storage.config import StorageConfig
from waltz_core.storage.context import NodeContext
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
    StorageEffect,
    StorageFailed,
    StorageReady,
    StorageStopped,
)
from waltz_core.storage.notes import (
    Alarm,
    AnswersDue,
    ChangeEnded,
    GreetingDue,
    MarkDue,
    Mended,
    Opened,
    RepairRecorded,
    Scrubbed,
    ScrubDue,
    Surveyed,
)
from waltz_core.storage.peers import Peers
from waltz_core.storage.procedure import DiskError, Procedure
from waltz_core.storage.repairs import Repairs
from waltz_core.storage.replica import State, StorageReplica
from waltz_core.storage.scrub import Scrub
from waltz_core.storage.storage_port import StoragePort

Circumstance: TypeAlias = DiskSpace | WallClock | RolesChanged | Stop | Shutdown
Event: TypeAlias = Accepted | Dialed | Received | Writable | Closed | DiskEvent | Circumstance


class StorageNode:
    """The machine of a storage process.

    The first step opens the data directory, whose lock the driver holds; `StorageReady` or `StorageFailed`
    reports the result. Connections may be accepted after `StorageReady`.
    """

    make_peers: ClassVar[type[Peers]] = Peers
    make_changes: ClassVar[type[AdminChanges]] = AdminChanges
    make_replica: ClassVar[type[StorageReplica]] = StorageReplica

    def __init__(self, config: StorageConfig) -> None:
        assert len(config.key) == 16
        assert config.partition_count >= 0
        self.config = config
        self.replicas: list[StorageReplica] = []
        context = self._context = NodeContext(config)
        self._changes = self.make_changes(context, self.replicas)
        self._repairs = Repairs(context, self.replicas, self._changes)
        self._peers = self.make_peers(
            context,
            StoragePort(context, self.replicas, self._awaited),
            AdminPort(context, self.replicas, self._changes, self._repairs, self._awaited),
        )
        self._scrub = Scrub(context)
        self._started = False
        self._started_all = False  # the control file is read, every partition on its way
        self._opening = 0  # partitions
        self._ready = False
        self._ending: StorageFailed | None = None  # the directory cannot be used
        self._failed = False
        self._stopping = False
        self._stopped = False

    # ---- machine ---------------------------------------------------------------------------------

    def deadline(self) -> int | None:
        """Milliseconds; the first step is due at once."""
        if not self._started:
            return 0
        return self._context.alarms.next()

    def step(self, now: int, events: Sequence[Event], out: list[StorageEffect]) -> None:
        """Handle events; effects are appended to `out`."""
        context = self._context
        context.now = now
        if not self._started:
            self._started = True
            context.started_ms = context.wall_ms
            context.runner.start(self._start(), -1, "opening of the directory")
        for event in events:
            self._on_event(event)
        self._settle()
        at = context.alarms.next()
        if (at is not None and at <= now) or self._stopping:
            for alarm in context.alarms.due(now):
                self._on_alarm(alarm)
            if self._stopping:
                self._write_marks()
            self._settle()
        if context.replies.items:
            self._peers.flush()
        if self._stopping and not self._stopped and self._idle():
            self._stopped = True
            context.effects.put(StorageStopped())
        context.effects.drain(out)

    def _settle(self) -> None:
        """Start what the events made possible, until nothing more follows from it."""
        context, changes, repairs = self._context, self._changes, self._repairs
        while True:
            if repairs.under_way:
                repairs.run()
            if not (context.touched or changes.freed):
                break
            touched, context.touched = context.touched, {}
            for partition_id in touched:
                self.replicas[partition_id].pump()
            freed, changes.freed = changes.freed, []
            for conn in freed:
                self._peers.freed(conn)
            if context.notes.items:
                self._on_notes()
        if self._ending is not None and not self._failed:
            self._failed = True
            context.effects.put(self._ending)
        elif self._started_all and self._opening == 0 and not self._ready and not self._failed:
            self._ready = True
            self._scrub.begin()
            context.effects.put(StorageReady())

    def _on_event(self, event: Event) -> None:
        match event:
            case Received(conn=conn, data=data):
                # Only connections that we dialed are of repairs, and have negative ids.
                if conn >= 0 or not self._repairs.received(conn, data):
                    self._peers.received(conn, data)
            case DiskDone() | DiskFailed() | DiskBytes() | DiskListing():
                self._context.runner.on_event(event)
                if self._context.notes.items:
                    self._on_notes()
            case Dialed(conn=conn):
                self._repairs.dialed(conn)
            case Accepted():
                self._peers.accepted(event)
            case Writable(conn=conn, writable=writable):
                self._peers.writable(conn, writable)
            case Closed(conn=conn):
                self._peers.closed(conn)
                self._repairs.closed(event)
            case _:
                self._on_circumstance(event)

    def _on_circumstance(self, event: Circumstance) -> None:
        match event:
            case DiskSpace(free_bytes=free):
                self._on_space(free)
            case WallClock(offset_ms=offset):
                self._context.wall_offset_ms = offset
            case RolesChanged(roles=roles):
                self._peers.roles_changed(roles)
            case Stop() | Shutdown():
                self._stopping = True
                self._peers.stop()
                self._context.alarms.set(ScrubDue(), None)
            case _:
                raise unknown_event("StorageNode", type(event), get_args(Event))

    def _on_space(self, free: int) -> None:
        """Below the reserve appends are refused, so that marks, fences and repairs find room to the end."""
        context, reserve = self._context, self.config.reserve_bytes
        context.free_bytes = free
        was = context.no_room
        if free < reserve:
            context.no_room = f"no room for appends: {free} bytes are free, {reserve} are kept in reserve"
            if not was:
                context.report(Level.ERROR, f"{context.no_room}; reads are served, appends again with more")
        elif was and free >= reserve + reserve // 10:  # a little more, not to flutter
            context.no_room = ""
            context.report(Level.INFO, f"room for appends again: {free} bytes are free")

    def _on_notes(self) -> None:
        for note in self._context.notes.take():
            match note:
                case Opened(partition_id, problem):
                    self._opening -= 1
                    if problem is not None:
                        self._fail(f"partition {partition_id}: {problem}")
                case ChangeEnded():
                    self._changes.on_ended(note)
                case Scrubbed():
                    self._on_scrubbed(note)
                case Surveyed() | Mended() | RepairRecorded():
                    self._repairs.on_note(note)

    def _on_scrubbed(self, note: Scrubbed) -> None:
        self._scrub.on_scrubbed(note)
        if self._stopping:
            self._context.alarms.set(ScrubDue(), None)

    def _on_alarm(self, alarm: Alarm) -> None:
        match alarm:
            case MarkDue(partition_id):
                self.replicas[partition_id].write_mark()
            case ScrubDue():
                self._scrub.run(self.replicas)
            case GreetingDue(conn):
                self._peers.greeting_due(conn)
            case Silence(conn):
                self._peers.silence_due(conn)
            case AnswersDue(partition_id):
                self._repairs.answers_due(partition_id)

    # ---- the end ---------------------------------------------------------------------------------

    def _write_marks(self) -> None:
        """Write lazy state now, so that the next start has less to check; a full disk does not keep us from ending."""
        for replica in self.replicas:
            if replica.files.mark_planned:
                replica.write_mark(for_good=False)

    def _idle(self) -> bool:
        return self._context.runner.idle and all(
            replica.lane.idle and not replica.files.mark_planned for replica in self.replicas
        )

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
        gauges = metrics.gauges(self.replicas, self.config.version)
        gauges["waltz-storage.scrub-pass-count"] = self._scrub.passes
        gauges["waltz-storage.no-room"] = self._context.no_room
        return gauges

    def counters(self) -> dict[str, int]:
        """Full counter names and counts."""
        return metrics.counters(self.replicas)

    def conditions(self) -> Iterator[tuple[int, State, str]]:
        """Partition, state and reason of every assigned partition."""
        for replica in self.replicas:
            if replica.entry.current.assigned:
                yield replica.partition_id, replica.state, replica.reason

    def awaited(self) -> list[str]:
        """What waits for the disk, for other nodes or for its turn, longest first; tools get the same as statistics."""
        return [
            purpose if partition_id < 0 else f"{purpose} of partition {partition_id}"
            for partition_id, purpose in self._awaited().elements()
        ]

    def _awaited(self) -> Counter[tuple[int, str]]:
        """How often what waits, by partition (-1: the directory)."""
        waits = Counter((each.partition_id, each.purpose) for each in self._context.runner.awaited())
        waits.update(self._repairs.awaited())
        waits.update(self._changes.awaited())
        return waits

    # ---- opening the directory -------------------------------------------------------------------

    def _fail(self, reason: str) -> None:
        if self._ending is None:
            self._ending = StorageFailed(reason)

    def _start(self) -> Procedure[None]:
        try:
            body = yield from open_control(self.config, self._context.wall_ms)
            self._make_replicas(body)
            for replica in self.replicas:
                if replica.entry.current.assigned:
                    self._opening += 1
                    replica.open()
        except DiskError as fault:
            self._fail(f"the data directory cannot be read: {fault}")
        except CorruptionError as error:
            self._fail(str(error))
        self._started_all = self._ending is None

    def _make_replicas(self, body: bytes) -> None:
        for partition_id in range(self.config.partition_count):
            entry = ctl.decode_entry(body, partition_id)
            problem = None
            if isinstance(entry, ControlDamage):
                place = ctl.struct_place(partition_id, 0)
                problem = (
                    f"{ctl.NAME}: neither state of partition {partition_id}, at offset {place}, counts: expected one "
                    f"that is newer and has a valid checksum, found none ({entry.value})"
                )
                lost = ControlStruct(-1, -1, -1, ctl.ASSIGNED | ctl.AVAILABLE, -1)
                entry = ControlEntry(partition_id, 0, lost, -1)
            self.replicas.append(self.make_replica(partition_id, entry, self._context, problem))

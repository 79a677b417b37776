"""How a partition comes to an open store session: its assignment, its metadata in ZooKeeper, and when to try again.

    IDLE ── generation and replicas known ──▶ READING ── metadata ──▶ ANNOUNCING ── written ──▶ RECOVERING ──▶ OPEN
                                               ▲  │  ▲                   │                          │            │
                              no such node ────┘  │  └── it has changed ─┘                          │            │
                              (CREATING)          ▼                                                 ▼            ▼
                                               WAITING ◀── another owner, rewound metadata, ── session ended ◀───┘
                                                  │        ZooKeeper fails                    (READING at once after a
                                                  └── after a pause, or a node is back ──▶ READING     checkpoint)

CLOSED is final, from anywhere: the partition is not ours any more.

What is durable, and when: the announcement (our generation, the next session id) is in ZooKeeper before a session is
made, by a write on the version that was read; from then on every older session is out. Of two servers that believe
they own the partition, one announces last, and the other's next write fails. The states of the replicas are written
by the running session on the version of its announcement. Nothing else of this is kept: a server that restarts reads.

`foreign` says whether somebody else may have written to the log since our last open session. It is decided when the
metadata is read, from what *we* wrote there last: where nobody wrote in between, what was in flight may be settled by
the log; else nothing in flight is believed. It holds until a session is open, however many attempts that takes: our own
announcements hide whose the one before was.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from waltz_core.base.attempts import Attempts
from waltz_core.base.edge import Level, Report, ZkCreate, ZkDone, ZkError, ZkFailed, ZkGet, ZkSet
from waltz_core.base.errors import ProtocolError
from waltz_core.base.outbox import Emits, Outbox
from waltz_core.server.config import PartitionConfig
from waltz_core.server.context import (
    MetadataAsked,
    MetadataStep,
    NodeContext,
    PartitionAlarms,
    PartitionDue,
    ReplicaAsked,
    TicketsFor,
)
from waltz_core.store.calls import LinkUnwanted, StorageEffect
from waltz_core.store.session import StoreSession
from waltz_core.store.session_notes import SessionNote
from waltz_core.zookeeper.attempts import ZnodeAttempts
from waltz_core.zookeeper.znodes import (
    EMPTY_METADATA,
    PartitionMetadata,
    decode_partition_metadata,
    encode_partition_metadata,
)

_LOOK_MS = 2_000  # while recovery is stuck, so often the metadata is looked at for an operator's word
_SHORT_LIFE_MS = 1_000  # a session that lived shorter counts as a failure for the back-off


class OwnershipPhase(enum.Enum):
    """Where the partition is on its way to an open store session."""

    IDLE = "waits for its assignment"
    READING = "reads the metadata"
    CREATING = "creates the metadata"
    ANNOUNCING = "announces a store session"
    RECOVERING = "recovers"
    OPEN = "serves"
    WAITING = "waits before the next try"
    CLOSED = "closed"


class Ownership:
    """The right to append to a partition: announced in ZooKeeper, exercised by one store session at a time.

    It makes the session, closes it when the assignment changes, and hears of its end. Others use `session` as long
    as it is there.
    """

    make_session: ClassVar[type[StoreSession]] = StoreSession

    __slots__ = (
        "_alarms",
        "_announced",
        "_attempted",
        "_config",
        "_fence_seen",
        "_looking",
        "_metadata",
        "_notes",
        "_open_generation",
        "_opened_at",
        "_out",
        "_path",
        "_pending",
        "_session_attempts",
        "_states_attempts",
        "_storage",
        "foreign",
        "generation",
        "open",
        "partition_id",
        "phase",
        "reason",
        "replicas",
        "session",
        "since",
        "tickets",
    )

    def __init__(
        self,
        partition_id: int,
        config: PartitionConfig,
        context: NodeContext,
        storage: Emits[StorageEffect],
        notes: Outbox[SessionNote],
    ) -> None:
        self.partition_id = partition_id
        self.phase = OwnershipPhase.IDLE
        self.open = False  # a store session is open, or was until this step
        self.reason = ""  # of the present phase, for people
        self.since = 0
        self.generation = -1
        self.replicas: tuple[str, ...] = ()
        self.session: StoreSession | None = None
        self.foreign = False  # somebody else may have written since
        self.tickets = TicketsFor(context.pending, ReplicaAsked(partition_id))  # of the session
        self._config = config
        self._path = config.metadata_path
        self._out = context.out
        self._pending = context.pending
        self._alarms = PartitionAlarms(partition_id, context.alarms)  # also the session's
        self._storage = storage
        self._notes = notes
        self._announced: tuple[int, int] | None = None  # generation and id of our last session
        self._open_generation: int | None = None  # of our last session that was open; None before the first
        self._fence_seen = -1  # highest session that a replica says it answered
        self._attempted: set[tuple[int, int]] = set()  # announced, perhaps
        self._metadata: PartitionMetadata = EMPTY_METADATA
        self._session_attempts = Attempts(config.retry_min_ms, config.retry_max_ms, context.rng)
        self._states_attempts = ZnodeAttempts(
            Attempts(config.retry_min_ms, config.retry_max_ms, context.rng),
            context.out,
            partial(self._alarms.set, PartitionDue.STATES),
            failing=f"partition {partition_id}: {self._unwritten}",
            works=f"partition {partition_id}: the states of its replicas are in ZooKeeper again",
        )
        self._looking = False  # an answer to a look is awaited
        self._opened_at = 0

    @property
    def _unwritten(self) -> str:
        return f"ZooKeeper, {self._path}: the states of its replicas cannot be written"

    @property
    def known(self) -> bool:
        """Whether a store session has been open in this object."""
        return self._open_generation is not None

    @property
    def session_id(self) -> int:
        """Of the present store session, -1 without one."""
        return self.session.session_id if self.session is not None else -1

    def call_off(self, token: int) -> bool:
        """A read of the session is under way at a replica at once, which answers it."""
        return False

    @property
    def stuck(self) -> str:
        """Why recovery waits, empty if it does not."""
        return self.session.stuck if self.session is not None else ""

    # ---- the assignment ----------------------------------------------------------------------

    def set_generation(self, now: int, generation: int) -> None:
        """The assignment names this server with `generation`; it only grows."""
        if generation <= self.generation:
            return
        self.generation = generation
        if self.session is not None:
            self.session.close(now, f"generation {generation} replaces {self.session.generation}")
        elif self.phase in (OwnershipPhase.IDLE, OwnershipPhase.WAITING):
            self._begin(now)

    def set_replicas(self, now: int, replicas: Sequence[str]) -> None:
        """Storage nodes that are to hold this partition."""
        wanted = tuple(sorted(replicas))
        if wanted == self.replicas:
            return
        self._storage.put_all(LinkUnwanted(replica) for replica in self.replicas if replica not in wanted)
        self.replicas = wanted
        if self.session is not None:
            self.session.close(now, "the assignment of replicas changed")
        elif self.phase in (OwnershipPhase.IDLE, OwnershipPhase.WAITING):
            self._begin(now)

    def hasten(self, now: int) -> None:
        """A storage node, or ZooKeeper, can be reached: what was waited for may be over, and with it the back-off."""
        if self.phase is OwnershipPhase.WAITING:
            self._session_attempts.hurry()
            self._begin(now)

    def close(self, now: int) -> None:
        """The partition is not ours any more."""
        if self.session is not None:
            self.session.close(now, "the partition is closed")
        self._storage.put_all(LinkUnwanted(replica) for replica in self.replicas)
        self._alarms.set(PartitionDue.RETRY, None)  # a pause that is under way must not end with a read
        self._alarms.set(PartitionDue.LOOK, None)
        self._states_over()
        self._enter(now, OwnershipPhase.CLOSED, "")

    def _enter(self, now: int, phase: OwnershipPhase, reason: str) -> None:
        self.phase = phase
        self.open = phase is OwnershipPhase.OPEN
        self.reason = reason
        self.since = now

    def _report(self, level: Level, text: str) -> None:
        self._out.put(Report(level, f"partition {self.partition_id}: {text}"))

    # ---- time --------------------------------------------------------------------------------

    def retry_due(self, now: int) -> None:
        """The pause before the next try is over."""
        self._begin(now)

    def states_due(self) -> None:
        """The states of the replicas were not written: look again at what stands there."""
        if self.session is not None:
            self._read_again()

    def look_due(self, now: int) -> None:
        """Recovery is stuck: see whether an operator has changed the metadata."""
        self._alarms.set(PartitionDue.LOOK, now + _LOOK_MS)
        if self.session is not None and not self._looking:
            self._looking = True
            self._out.put(ZkGet(self._ask(MetadataStep.LOOK), self._path))

    def _retry(self, now: int, reason: str, *, quiet: bool = False) -> None:
        """Try again after a back-off."""
        self._alarms.set(PartitionDue.RETRY, self._session_attempts.pause(now))
        if self._session_attempts.failed(reason, quiet=quiet):
            self._report(Level.WARNING, reason)
        self._enter(now, OwnershipPhase.WAITING, reason)

    # ---- ZooKeeper ---------------------------------------------------------------------------

    def _ask(self, step: MetadataStep) -> int:
        return self._pending.ask(MetadataAsked(self.partition_id, step))

    def _begin(self, now: int) -> None:
        """Read the metadata, the first step to a store session."""
        self._alarms.set(PartitionDue.RETRY, None)
        if self.generation < 0 or not self.replicas:
            self._enter(now, OwnershipPhase.IDLE, "no storage node is assigned" if self.generation >= 0 else "")
            return
        self._enter(now, OwnershipPhase.READING, "")
        self._out.put(ZkGet(self._ask(MetadataStep.READ), self._path))

    def answered(self, now: int, event: ZkDone | ZkFailed, step: MetadataStep) -> None:
        """ZooKeeper has answered."""
        if step is MetadataStep.LOOK:
            self._looking = False
        if self.phase is OwnershipPhase.CLOSED:
            return
        if isinstance(event, ZkDone):
            self._on_done(now, event, step)
        else:
            self._on_failed(now, event.error, step)

    def _on_done(self, now: int, event: ZkDone, step: MetadataStep) -> None:
        match step:
            case MetadataStep.CREATE:
                self._begin(now)
            case MetadataStep.LOOK:
                self._on_looked(now, event.data or b"")
            case MetadataStep.READ | MetadataStep.READ_AGAIN:
                self._on_read(now, event, step)
            case MetadataStep.ANNOUNCE:
                assert event.stat is not None
                self._open_session(now, event.stat.version)
            case MetadataStep.WRITE_STATES:
                assert event.stat is not None
                self._on_states_written(event.stat.version)

    def _on_failed(self, now: int, error: ZkError, step: MetadataStep) -> None:
        match step, error:
            case MetadataStep.READ, ZkError.NO_NODE:
                self._enter(now, OwnershipPhase.CREATING, "")
                ticket = self._ask(MetadataStep.CREATE)
                self._out.put(ZkCreate(ticket, self._path, encode_partition_metadata(EMPTY_METADATA)))
            case MetadataStep.CREATE, ZkError.NODE_EXISTS:
                self._begin(now)  # server-D30: somebody else was first
            case MetadataStep.LOOK, _:
                pass  # again soon
            case ((MetadataStep.WRITE_STATES | MetadataStep.READ_AGAIN), _):
                self._on_states_failed(now, error)
            case MetadataStep.ANNOUNCE, ZkError.BAD_VERSION:
                self._begin(now)
            case _:
                self._retry(now, f"ZooKeeper, {self._path}: {error.value}", quiet=error.away)

    def _on_read(self, now: int, event: ZkDone, step: MetadataStep) -> None:
        assert event.stat is not None
        try:
            metadata = decode_partition_metadata(event.data or b"")
        except ProtocolError as error:
            self._retry(now, f"{self._path} is not a partition's metadata: {error}")
            return
        if step is MetadataStep.READ_AGAIN:
            if self.session is not None:
                self.session.cas_lost(metadata, event.stat.version)
        elif self.phase is OwnershipPhase.READING:
            self._announce(now, metadata, event.stat.version)

    def _on_looked(self, now: int, data: bytes) -> None:
        """While recovery waits, an operator may have written what it waits for; a session of his own says so."""
        try:
            metadata = decode_partition_metadata(data)
        except ProtocolError:
            return
        if self.session is None:
            return
        # Until it has decided, a session writes no states: others than it began with are somebody else's.
        repaired = not self.session.decided and metadata.replica_states != self._metadata.replica_states
        if repaired or metadata.session_id != self.session.session_id:
            self.session.close(now, f"the metadata in ZooKeeper is of session {metadata.session_id} now")

    def _announce(self, now: int, metadata: PartitionMetadata, version: int) -> None:
        """Write generation and the next session id: from here on older sessions are out."""
        if metadata.generation > self.generation:
            self._retry(
                now,
                f"generation {metadata.generation} stands in ZooKeeper, ours is {self.generation}: "
                "another server owns the partition",
            )
            return
        if metadata.session_id < self._fence_seen:
            self._retry(
                now,
                f"ZooKeeper says that the last store session was {metadata.session_id}, but a replica answered "
                f"session {self._fence_seen}: was ZooKeeper restored from an older state? The partition waits "
                "until its metadata is repaired",
            )
            return
        # Ours if nobody wrote since our last session, no matter what became of announcements in between.
        stored = metadata.generation, metadata.session_id
        # Under another generation somebody else may have had the partition; metadata that was set back would hide it.
        again = self._open_generation not in (None, self.generation)
        other = stored != self._announced and stored not in self._attempted
        self.foreign = self.foreign or again or other
        session_id = metadata.session_id + 1
        if session_id >= 1 << 63:
            self._retry(now, f"ZooKeeper says that the last store session was {metadata.session_id}: none follows it")
            return
        self._metadata = PartitionMetadata(self.generation, session_id, metadata.replica_states)
        self._attempted.add((self.generation, session_id))
        self._enter(now, OwnershipPhase.ANNOUNCING, "")
        ticket = self._ask(MetadataStep.ANNOUNCE)
        self._out.put(ZkSet(ticket, self._path, encode_partition_metadata(self._metadata), version))

    # ---- the session -------------------------------------------------------------------------

    def _open_session(self, now: int, version: int) -> None:
        metadata = self._metadata
        self._announced = metadata.generation, metadata.session_id
        self._attempted.clear()
        if metadata.generation != self.generation or not self.replicas:
            self._begin(now)
            return
        self._enter(now, OwnershipPhase.RECOVERING, "")
        self.session = self.make_session(
            self.partition_id,
            metadata.session_id,
            metadata.generation,
            metadata,
            version,
            self.replicas,
            tickets=self.tickets,
            out=self._storage,
            notes=self._notes,
            alarms=self._alarms,
            config=self._config.session,
        )
        self.session.start()

    def opened(self, now: int) -> None:
        """The session is open, and what was in flight is settled."""
        self._open_generation = self.generation
        self.foreign = False
        self._opened_at = now
        self._enter(now, OwnershipPhase.OPEN, "")

    def not_to_be_opened(self, now: int, reason: str) -> None:
        """The log that the session resolved cannot be served: it ends, and the next attempt waits."""
        assert self.session is not None
        self._opened_at = now
        self.session.close(now, reason)

    def stuck_changed(self, now: int, reason: str) -> None:
        """Recovery waits, or continues."""
        self.reason = reason
        self._alarms.set(PartitionDue.LOOK, now + _LOOK_MS if reason else None)
        level = Level.WARNING if reason else Level.INFO
        self._report(level, f"recovery waits: {reason}" if reason else "recovery continues")

    def ended(self, now: int, reason: str, *, recovered: bool, fence: int | None, planned: bool) -> None:
        """The session is over; the next one begins at once after a long life, or when its end was `planned`."""
        if fence is not None:
            self._fence_seen = max(self._fence_seen, fence)
        self.session = None
        self._alarms.set(PartitionDue.LOOK, None)
        self._states_over()
        if self.phase is OwnershipPhase.CLOSED:
            return
        self._report(Level.INFO if planned else Level.WARNING, f"store session ended: {reason}")
        if recovered and (planned or now - self._opened_at >= _SHORT_LIFE_MS):
            self._session_attempts.succeeded()
            self._begin(now)
        else:
            self._retry(now, reason, quiet=True)

    # ---- the states of the replicas ----------------------------------------------------------

    def write_states(self, metadata: PartitionMetadata, version: int) -> None:
        """The session wants the states of its replicas written."""
        ticket = self._ask(MetadataStep.WRITE_STATES)
        self._out.put(ZkSet(ticket, self._path, encode_partition_metadata(metadata), version))

    def _read_again(self) -> None:
        self._out.put(ZkGet(self._ask(MetadataStep.READ_AGAIN), self._path))

    def _on_states_written(self, version: int) -> None:
        if self.session is None:
            return
        if self._states_attempts.succeeded():
            self.reason = ""
        self.session.cas_done(version)

    def _on_states_failed(self, now: int, error: ZkError) -> None:
        """Not written, or nobody knows: look at what stands there, but not all the time."""
        if self._states_attempts.lost(now, error):
            self._read_again()
        elif not error.away:
            self.reason = f"{self._unwritten}: {error.value}"

    def _states_over(self) -> None:
        """No answer about states is of use to another session."""
        self._states_attempts.give_up()
        of_session = (MetadataStep.WRITE_STATES, MetadataStep.READ_AGAIN)
        awaited = [MetadataAsked(self.partition_id, step) for step in of_session]
        self._pending.forget(lambda what: what in awaited)

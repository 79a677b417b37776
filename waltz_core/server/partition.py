"""One served partition: the parts of it, and what happens in a step.

    clients ──▶ Intake ──▶ Commits ──▶ store session ──▶ storage nodes
                              │ ▲            │
                              ▼ └── votes ───┤
    clients ◀──── Feeds ◀── committed        │
    clients ◀──── Reads ◀──── records ───────┘        Ownership makes the session, by way of ZooKeeper

- `Ownership`: assignment, metadata in ZooKeeper, phases, the store session's beginning and end;
- `Intake`, `Commits`: appends, from their arrival to their verdict;
- `Feeds`: mounts, flushes, feeds; `Reads`: payloads, ranges, marks; `LogStart`: where the log begins;
- `Archiving`, `ArchivedReads`: what goes to the archive when, and reads through it, where one is configured.

Methods are events; `flush` is the work, once per step or more often while something moves. Without an open store
session appends, mounts and flushes wait in the queue, in order, and reads wait for the next one. This file holds no
data but which connection speaks for which client: it hands events on, and takes the notes of the session apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from waltz_core.base.contract import earliest
from waltz_core.base.edge import CloseConn, Level, Report, ZkDone, ZkFailed
from waltz_core.base.ids import ReqId, req_generation
from waltz_core.base.outbox import Outbox
from waltz_core.base.pending import Pending
from waltz_core.server.append_queue import Append
from waltz_core.server.archive import Archive, ReadAsked
from waltz_core.server.archive_calls import ArchiveEvent
from waltz_core.server.archived_reads import ArchivedReads
from waltz_core.server.archiving import Archiving
from waltz_core.server.commits import Commits
from waltz_core.server.context import (
    BulkRead,
    MetadataStep,
    NodeContext,
    PartitionAlarm,
    PartitionDue,
    ReadFor,
    RepairWanted,
    StorageWork,
    TicketsFor,
)
from waltz_core.server.feeds import Feeds, Flush, Mount
from waltz_core.server.intake import Intake
from waltz_core.server.journal import JournalEvent
from waltz_core.server.log_start import LogStart
from waltz_core.server.members import Members
from waltz_core.server.ownership import Ownership, OwnershipPhase
from waltz_core.server.peer import Peer
from waltz_core.server.reads import Reads
from waltz_core.server.source import Source
from waltz_core.server.step_budget import APPENDS
from waltz_core.store import recovery_events as rec
from waltz_core.store.calls import LinkDown, LinkUp, StorageAnswer, StorageFailed, StorageNews
from waltz_core.store.session import SessionAlarm, StoreSession, TakeIn
from waltz_core.store.session_notes import (
    HeadersRead,
    LogStartRaised,
    ReadFailed,
    RecordsRead,
    ReplicaJoined,
    ReplicaLags,
    ReplicaRefused,
    ReplicaSuspect,
    SessionEnded,
    SessionNote,
    SessionOpened,
    SourcePutAside,
    Stuck,
    Voted,
)
from waltz_core.wire import client_messages as messages
from waltz_core.wire.lock_count import OversizedAppend
from waltz_core.wire.runs import end_of_run
from waltz_core.wire.shared import LOST_DATA

NOT_OPEN_MARK = -(2**63)
"""High-water mark reported before the first store session (Java: commitHighWaterMark)."""
_WITH_SESSION = (OwnershipPhase.RECOVERING, OwnershipPhase.OPEN)
_TAKE_IN_AGAIN_MS = 1_000  # while ZooKeeper is away, a session that waits to end looks so often whether it is back


class PartitionServer:
    """A partition that this server owns.

    What it asks of storage nodes gathers in `storage`, which the storage port takes after `flush`.
    """

    make_ownership: ClassVar[type[Ownership]] = Ownership
    make_feeds: ClassVar[type[Feeds]] = Feeds
    make_reads: ClassVar[type[Reads]] = Reads
    make_commits: ClassVar[type[Commits]] = Commits

    def __init__(self, partition_id: int, context: NodeContext) -> None:
        config = context.config.partition(partition_id)
        self.partition_id = partition_id
        self.storage: Outbox[StorageWork] = Outbox()
        self._out = context.out
        self._clients = context.clients
        self._alarms = context.alarms
        self._cluster = context.cluster
        self._notes: Outbox[SessionNote] = Outbox()
        self._members = Members()
        reading: Pending[ReadFor] = Pending(context.tickets)  # reads of the session under way
        self.ownership = self.make_ownership(partition_id, config, context, self.storage, self._notes)
        self._log_start = LogStart(config.archive, context, self.ownership)
        self.archiving: Archiving | None = None
        self._through: ArchivedReads | None = None  # reads below the log start, where there is an archive
        source: Source = self.ownership
        if context.archive is not None:
            source = self._with_archive(context, context.archive, reading)
        self.feeds = self.make_feeds(partition_id, config, context, source, self._log_start, reading)
        self.reads = self.make_reads(partition_id, config, context, source, reading, self.feeds, self.archiving)
        self.commits = self.make_commits(partition_id, config, context, self.ownership, self.feeds)
        self._intake = Intake(partition_id, config, context, self.ownership, self.commits)
        self._alarm = PartitionAlarm(partition_id, PartitionDue.WORK)
        self._rings_at: int | None = None  # when it does

    def _with_archive(self, context: NodeContext, archive: Archive, reading: Pending[ReadFor]) -> Source:
        self._log_start.archived = 0  # it serves everything, until it says otherwise
        tickets = TicketsFor(reading, BulkRead.ARCHIVE)
        self.archiving = Archiving(
            self.partition_id, archive, self._log_start, context.cluster, tickets, context.out, context.rng
        )
        self._through = ArchivedReads(self.ownership, self._log_start, archive, context.out, context.rng)
        return self._through

    # ---- for others to see -------------------------------------------------------------------

    @property
    def phase(self) -> OwnershipPhase:
        """Where it is on its way to an open store session."""
        return self.ownership.phase

    @property
    def generation(self) -> int:
        """Under which it is assigned to this server."""
        return self.ownership.generation

    @property
    def session(self) -> StoreSession | None:
        """The present store session."""
        return self.ownership.session

    @property
    def high_water_mark(self) -> int:
        """Highest committed id, `NOT_OPEN_MARK` before the first store session."""
        return self.commits.mark if self.ownership.known else NOT_OPEN_MARK

    @property
    def log_start(self) -> int:
        """The smallest id that can be read."""
        return self._log_start.present

    @property
    def archive_unreadable(self) -> str:
        """Why reads below the log start wait; empty if they need not."""
        return self._through.trouble if self._through is not None else ""

    def trouble(self, now: int) -> str:
        """Why appends cannot be committed now, or are not; empty if all is well."""
        ownership = self.ownership
        if not ownership.open:
            return ownership.stuck or ownership.reason or ownership.phase.value
        return self.commits.trouble(now)

    # ---- the assignment ----------------------------------------------------------------------

    def set_generation(self, now: int, generation: int) -> None:
        """The assignment names this server with `generation`; it only grows."""
        self.ownership.set_generation(now, generation)

    def set_replicas(self, now: int, replicas: Sequence[str]) -> None:
        """Storage nodes that are to hold this partition."""
        self.ownership.set_replicas(now, replicas)

    def set_doubtful(self, doubtful: bool) -> None:
        """Whether somebody else may own the partition by now: then nothing is launched."""
        self.commits.doubtful = doubtful

    def close(self, now: int) -> None:
        """The partition is not ours any more."""
        self.ownership.close(now)
        self.commits.close(now)
        self.feeds.close()
        self.reads.close()
        self._alarms.set(self._alarm, None)

    # ---- storage nodes, ZooKeeper, the journal -----------------------------------------------

    def link_up(self, now: int, event: LinkUp) -> None:
        """A connection to a storage node stands."""
        if self.session is not None:
            self.session.link_up(now, event)
        else:
            self.ownership.hasten(now)

    def zookeeper_back(self, now: int) -> None:
        """ZooKeeper answers again."""
        if self.session is None:
            self.ownership.hasten(now)

    def link_down(self, now: int, event: LinkDown) -> None:
        """A connection to a storage node ended."""
        if self.session is not None:
            self.session.link_down(now, event)

    def storage_answered(self, now: int, event: StorageAnswer | StorageFailed) -> bool:
        """A storage request was answered, or never will be; returns if `flush` must follow.

        Answers to an ended session are void.
        """
        session = self.ownership.session
        if session is None:
            return False
        match event:
            case StorageAnswer():
                return session.answered(now, event)
        session.failed(now, event)
        return True

    def storage_news(self, now: int, event: StorageNews) -> None:
        """A storage node says something about its replica."""
        if self.session is not None:
            self.session.news(event)

    def zk_answered(self, now: int, event: ZkDone | ZkFailed, step: MetadataStep) -> None:
        """ZooKeeper has answered."""
        self.ownership.answered(now, event, step)

    def journal_answered(self, now: int, event: JournalEvent) -> None:
        """A write to the journal ended."""
        self.commits.journal_answered(now, event)

    def archive_answered(self, now: int, event: ArchiveEvent, read: ReadAsked | None) -> None:
        """The archive has answered the policy, or a read."""
        if self.archiving is None or self._through is None:
            return
        if read is not None:
            self._through.answered(now, read, event)
            return
        floor = self._log_start.floor
        self.archiving.answered(now, event, self.session if self.ownership.open else None)
        if self._log_start.floor != floor:
            self._tell_beginning()

    # ---- clients -----------------------------------------------------------------------------

    def writable(self, conn: int, writable: bool) -> None:
        """A connection stopped or started taking data."""
        self.feeds.feed.writable(conn, writable)
        self.reads.writable(conn, writable)

    def gone(self, peer: Peer) -> None:
        """A connection ended: only its appends are of use to anybody yet."""
        if peer.client_id is not None:
            self._members.gone(peer.client_id, peer.conn)
        self._intake.gone(peer.conn)
        self.feeds.gone(peer)
        self.reads.gone(peer)

    def received(self, now: int, peer: Peer, batch: Sequence[messages.ClientMessage]) -> None:
        """Messages of one connection for this partition, in order."""
        at, count = 0, len(batch)
        while at < count:
            message = batch[at]
            if type(message) not in APPENDS:
                self._on_message(now, peer, message)
                at += 1
                continue
            end = end_of_run(batch, at, type(message))
            appends: list[Append] = batch[at:end]  # type: ignore[assignment]  # of their class, all of them
            self._intake.appends(now, peer, appends, mounted=self._members.speaks(peer))
            at = end

    def _on_message(self, now: int, peer: Peer, message: messages.ClientMessage | OversizedAppend) -> None:
        match message:
            case messages.MountRequest():
                self._on_mount(peer, message)
            case messages.FeedRequest() | messages.FeedWindowRequest():
                if self._members.speaks(peer):
                    self.feeds.asked(peer, message, self.commits.mark)
            case messages.FlushRequest(req_id):
                self.feeds.wait(peer, self.commits.barrier(peer), Flush(peer.conn, req_id))
            case messages.HighWaterMarkRequest(req_id):
                self.reads.mark_asked(now, peer, req_id, self.high_water_mark)
            case messages.TransactionDataRequest():
                self.reads.data_asked(peer, message)
            case OversizedAppend():
                self._intake.oversized(peer, message)
            case _:
                # Java: a response sent to a server is an unchecked exception in the handler.
                text = f"{type(message).__name__} is not a message for a server's partition"
                self._clients.put(CloseConn(peer.conn, text))

    def _on_mount(self, peer: Peer, message: messages.MountRequest) -> None:
        assert peer.client_id is not None
        assert peer.net_sequence is not None
        req_id, mark = message.req_id, message.client_mark
        if self._members.mount(peer.client_id, peer.conn, req_generation(req_id), peer.net_sequence):
            mount = Mount(peer.conn, peer.owner, req_id, mark, peer.version, peer.feed_windows)
            self.feeds.wait(peer, self.commits.barrier(peer), mount)

    def range_asked(self, peer: Peer, request: messages.RecordRangeRequest) -> None:
        """A client asks for a range of records; no mount is needed."""
        self.reads.range_asked(peer, request, self.commits.mark)

    def log_start_asked(self, conn: int, req_id: ReqId, start: int) -> None:
        """Somebody gives up what is below an id."""
        if self._log_start.ask(conn, req_id, start, self.commits.mark):
            self.commits.draining = True

    # ---- the session's notes -----------------------------------------------------------------

    def _on_note(self, now: int, note: SessionNote) -> None:
        match note:
            case Voted(replica, mark):
                self.commits.appender.voted(replica, mark)
            case HeadersRead() | RecordsRead() | ReadFailed():
                self._read(now, note)
            case ReplicaJoined(replica, acked):
                self.commits.joined(replica, acked)
            case SessionOpened():
                self._on_opened(now, note)
            case SessionEnded():
                self._on_ended(now, note)
            case ReplicaRefused() | ReplicaLags() | SourcePutAside():
                self._out.put(self._report_replica(note))
            case ReplicaSuspect(replica):
                self.storage.put(RepairWanted(replica))
            case Stuck(reason):
                self.ownership.stuck_changed(now, reason)
            case LogStartRaised(start):
                self._on_raised(now, start)
            case rec.CasMetadata(metadata, expected_version):
                self.ownership.write_states(metadata, expected_version)

    def _report_replica(self, note: ReplicaRefused | ReplicaLags | SourcePutAside) -> Report:
        where = f"partition {self.partition_id}: replica"
        match note:
            case ReplicaRefused(replica, reason):
                return Report(Level.ERROR, f"{where} {replica} stays out: {reason}")
            case ReplicaLags(replica, reason):
                mend = "repair one of them; until then the replica stays out, and they are asked again"
                return Report(Level.ERROR, f"{where} {replica} cannot be brought level: {reason}; {mend}")
            case SourcePutAside(source, transaction_id, reason):
                text = f"cannot give out transaction {transaction_id}, another replica is asked: {reason}"
                return Report(Level.WARNING, f"{where} {source} {text}")

    def _on_opened(self, now: int, note: SessionOpened) -> None:
        ownership, commits, mark = self.ownership, self.commits, note.mark
        session = ownership.session
        assert session is not None
        if ownership.known and mark < commits.mark:
            ownership.not_to_be_opened(
                now,
                f"the replicas resolved the log at {mark}, but transactions up to {commits.mark} "
                f"were committed: {LOST_DATA}; restore them, or restart this server if an operator has given "
                "those up (unsafe-recover); the partition is not served meanwhile",
            )
            return
        if not ownership.known:
            commits.restart(now, mark)
        elif not ownership.foreign:
            commits.resolved(now, mark)
        else:
            commits.gap(now, mark)
        commits.opened(now, note)
        ownership.opened(now)
        self._log_begins(session.log_start.present)
        self.feeds.opened(mark)
        text = f"store session {session.session_id} open at {mark}, generation {ownership.generation}"
        where = f"partition {self.partition_id}"
        self._out.put(Report(Level.INFO, f"{where}: {text}, replicas {', '.join(note.replicas)}"))

    def _on_ended(self, now: int, note: SessionEnded) -> None:
        self.reads.session_ended()
        if self.archiving is not None:
            self.archiving.session_ended()
        self._log_start.answer(self.commits.mark, f"the store session ended: {note.reason}")
        planned = self.commits.session_ended(recovered=note.recovered)
        self.ownership.ended(now, note.reason, recovered=note.recovered, fence=note.fence, planned=planned)

    def _log_begins(self, start: int) -> None:
        if self._log_start.rises(start):
            self._tell_beginning()

    def _on_raised(self, now: int, start: int) -> None:
        before = self._log_start.present
        self._log_begins(start)
        if self.archiving is not None:
            self.archiving.raised(now, before)
        self._log_start.answer(self.commits.mark)

    def _tell_beginning(self) -> None:
        self.reads.log_begins(self._log_start.present, self._log_start.floor)
        self.feeds.log_begins(self._log_start.floor)

    def _read(self, now: int, note: HeadersRead | RecordsRead | ReadFailed) -> None:
        """A replica has answered a read: for feeds, for clients, or for the archive."""
        read = note if self._through is None else self._through.from_session(now, note)
        if read is not None:
            self.reads.answered(now, read, self.commits.mark)

    def _archive(self, now: int) -> None:
        """Hand out what the archive has answered; begin what is due there."""
        if self._through is None or self.archiving is None:
            return
        self._through.due(now)
        for note in self._through.notes.take():
            self.reads.answered(now, note, self.commits.mark)
        if self.session is not None and self.ownership.open:
            self.archiving.work(now, self.commits.mark, self.session)

    # ---- work --------------------------------------------------------------------------------

    def due(self, now: int, due: PartitionDue | SessionAlarm) -> None:
        """An alarm of the partition, or of its store session, rang; `flush` follows."""
        match due:
            case PartitionDue.RETRY:
                self.ownership.retry_due(now)
            case PartitionDue.STATES:
                self.ownership.states_due()
            case PartitionDue.LOOK:
                self.ownership.look_due(now)
            case PartitionDue.WORK:
                self._rings_at = None  # whoever wants to work looks at the time
            case TakeIn() if self._cluster.zookeeper_away:
                # The next session begins with ZooKeeper; until that is back, this one is better than none.
                self._alarms.set(PartitionAlarm(self.partition_id, due), now + _TAKE_IN_AGAIN_MS)
            case _:
                if self.session is not None:
                    self.session.due(due)

    def flush(self, now: int) -> None:
        """Everything that is done once per batch of events."""
        commits, appender = self.commits, self.commits.appender
        self._run_session(now)
        if self._through is not None:
            self._archive(now)
        if self.ownership.open:
            commits.launch(now)
            self.reads.launch(now, appender.commit_mark)
        self.reads.overdue(now)
        self.feeds.serve(now, busy=appender.busy)
        self._run_session(now)
        commits.note_progress(now)
        self._check()
        if commits.journal is not None:
            commits.journal.flush(now)
        self._set_alarm(now)

    def _run_session(self, now: int) -> None:
        ownership, noted = self.ownership, self._notes.items
        while (session := ownership.session) is not None:
            session.flush(now)
            if not noted:
                return
            for note in self._notes.take():
                self._on_note(now, note)
            self.commits.advance(now)

    def _set_alarm(self, now: int) -> None:
        if self.ownership.phase is OwnershipPhase.CLOSED:
            return
        archive = None if self._through is None else self._archive_deadline(now)
        due = earliest(self.commits.due(now), self.feeds.feed.deadline(now), self.reads.deadline(now), archive)
        if due != self._rings_at:
            self._rings_at = due
            self._alarms.set(self._alarm, due)

    def _archive_deadline(self, now: int) -> int | None:
        if self._through is None or self.archiving is None:
            return None
        due = self.archiving.deadline(now, self.commits.mark) if self.ownership.open else None
        return earliest(due, self._through.deadline())

    def _check(self) -> None:
        """Invariants that only our own bugs could break."""
        ownership = self.ownership
        assert (ownership.session is not None) == (ownership.phase in _WITH_SESSION), ownership.phase
        assert not ownership.open or self.feeds.feed.mark == self.commits.appender.commit_mark

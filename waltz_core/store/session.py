"""A store session: the exclusive right of a server to append to one partition, as long as no replica is lost.

```
             a quorum is level and named in ZooKeeper
RECOVERING ───────────────────────────────────────────► OPEN
    │                                                     │
    │ a replica of the decision failed, a later session   │ a replica that follows the log is lost, a later
    │ has been there, the metadata was set back           │ session has been there, the partition closes it
    └──────────────────────► ENDED ◄──────────────────────┘
```

A session is created after its id has been written to the partition's metadata, which fences off every older session
there; greeting a replica fences them off on that replica. Recovery then decides where the log ends and brings replicas
level. Only when ZooKeeper names a quorum of them is the session open and may append. An open session ends with the
first replica that it loses, even if a quorum is left: the next session begins with metadata that say which replicas
hold everything, so the log never depends on what a replica remembers that was away.

Who does what, and owns the data of it:

- `Requests`: what is awaited, and what leaves for the storage nodes;
- `Greetings`: replicas that arrive, or are back; → `Recovery`: the end of the log, level replicas, the states;
- `Followers`: the tail of the log, what each replica is sent, its votes, catching up; confirmed rounds;
- `SessionReads` with `ReadRoutes`: reads of the partition;
- `LogStart`: where the log begins;
- `ReplicaLink`: the position of one replica, moved by whoever has the replica in hand.

The session itself keeps its state, dispatches answers, and decides what the loss of a replica means. It holds nothing
durable: what must survive is on the replicas (votes, marks, fences) and in ZooKeeper (states). Events for recovery are
gathered and handed over once per step, so that recovery sees everything that has arrived.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from waltz_core.base.alarms import SetsAlarms
from waltz_core.base.contract import Tickets
from waltz_core.base.outbox import Emits, Outbox
from waltz_core.base.quorum import majority
from waltz_core.base.record import record
from waltz_core.store import recovery_events as rec
from waltz_core.store.calls import (
    LinkDown,
    LinkUp,
    StorageAnswer,
    StorageEffect,
    StorageFailed,
    StorageMessage,
    StorageNews,
)
from waltz_core.store.copies import SourcesAside, sound_part
from waltz_core.store.followers import AskSourcesAgain, Followers, SessionConfig
from waltz_core.store.greetings import GreetAgain, Greetings
from waltz_core.store.log_start import LogStart
from waltz_core.store.reads import SessionReads
from waltz_core.store.recovery import Recovery
from waltz_core.store.replica_link import Batch, LinkState, ReplicaLink
from waltz_core.store.requests import (
    Awaited,
    BeginningQuestion,
    CatchUpRead,
    EndQuestion,
    FenceCheck,
    Greeting,
    LogStartQuestion,
    Marking,
    NewBeginning,
    PartitionRead,
    RecoveryRead,
    RecoveryWrite,
    Refusal,
    Replication,
    Requests,
    StartRaise,
    replica_of,
)
from waltz_core.store.routes import ReadRoutes
from waltz_core.store.session_notes import (
    ReplicaJoined,
    ReplicaLags,
    ReplicaRefused,
    ReplicaSuspect,
    SessionEnded,
    SessionNote,
    SessionOpened,
    Stuck,
)
from waltz_core.wire import storage_messages as messages
from waltz_core.wire.shared import Condition

if TYPE_CHECKING:
    from waltz_core.zookeeper.znodes import PartitionMetadata


class SessionState(enum.Enum):
    """RECOVERING → OPEN → ENDED, or RECOVERING → ENDED."""

    RECOVERING = "recovering"
    OPEN = "open"
    ENDED = "ended"


@record
class RecoveryDue:
    """Recovery reports that it waits, or asks a source again."""


@record
class TakeIn:
    """A replica that was lost is back for so long that a new session is worth its price."""


_TAKE_IN = TakeIn()
_RECOVERY_DUE = RecoveryDue()

SessionAlarm: TypeAlias = GreetAgain | TakeIn | AskSourcesAgain | RecoveryDue


class StoreSession:
    """One store session of one partition.

    The parent hands down the outboxes: `out` for requests to storage nodes, `notes` for itself, which it empties
    after `flush`, and the heap that holds the session's alarms while it lives. It gives the session link events, the
    answers to its tickets and the alarms that ring.
    """

    make_recovery: ClassVar[type[Recovery]] = Recovery

    __slots__ = (
        "_alarms",
        "_aside",
        "_config",
        "_events",
        "_followers",
        "_greetings",
        "_happened",
        "_links",
        "_notes",
        "_quorum",
        "_reads",
        "_recovery",
        "_routes",
        "_take_in_at",
        "generation",
        "log_start",
        "low_water_mark",
        "requests",
        "session_id",
        "state",
        "stuck",
    )

    def __init__(
        self,
        partition_id: int,
        session_id: int,
        generation: int,
        metadata: PartitionMetadata,
        metadata_version: int,
        replicas: Sequence[str],
        *,
        tickets: Tickets,
        out: Emits[StorageEffect],
        notes: Outbox[SessionNote],
        alarms: SetsAlarms[SessionAlarm],
        config: SessionConfig,
    ) -> None:
        assert replicas
        self.session_id = session_id
        self.generation = generation
        self.state = SessionState.RECOVERING
        self.low_water_mark = -1
        self.stuck = ""
        self._config = config
        self._quorum = majority(len(replicas))
        self._notes = notes
        self._events: Outbox[rec.Event] = Outbox()
        self._happened = self._events.items
        self._alarms = alarms
        self._take_in_at: int | None = None  # as the alarm is set
        self._links = {replica: ReplicaLink(replica) for replica in replicas}
        self._routes = ReadRoutes()
        self._aside = SourcesAside(notes)
        self.requests = Requests(partition_id, session_id, self._links, tickets, out)
        self._greetings = Greetings(self.requests, self._events, notes, self._alarms)
        self._reads = SessionReads(self._links, self._routes, self.requests, notes)
        self.log_start = LogStart(self._quorum, self._links, self.requests, self._events, notes)
        self._followers: Followers | None = None  # while it is open
        self._recovery = self.make_recovery(
            partition_id,
            session_id,
            generation,
            metadata,
            metadata_version,
            tuple(replicas),
            copy_count_max=config.copy_count_max,
        )

    # ---- connections -------------------------------------------------------------------------

    def start(self) -> None:
        """Ask for a connection to every replica."""
        for replica in self._links:
            self.requests.connect(replica)
        self._events.put(rec.Tick())  # waiting begins now, also where no replica ever arrives

    def link_up(self, now: int, event: LinkUp) -> None:
        """A connection stands: greet the replica, which fences every older session there."""
        link = self._links.get(event.replica)
        if link is not None and self.state is not SessionState.ENDED:
            self._greetings.link_up(now, link, event.codec)
            self._set_take_in()

    def link_down(self, now: int, event: LinkDown) -> None:
        """A connection ended."""
        link = self._links.get(event.replica)
        if link is None:
            return
        if link.state is not LinkState.DIALING:
            self._lose(now, link, event.reason)
        self._greetings.link_down(link)  # behind it: a replica whose connection is gone is worth no new session yet
        self._set_take_in()

    def news(self, event: StorageNews) -> None:
        """A replica discovered damage, or was repaired."""
        report = event.message
        if self.state is SessionState.ENDED or report.session_id != self.session_id:
            return
        if report.condition != Condition.SOUND and event.replica in self._links:
            self._notes.put(ReplicaSuspect(event.replica))

    # ---- metadata ----------------------------------------------------------------------------

    def cas_done(self, version: int) -> None:
        """The replica states are in ZooKeeper."""
        self._events.put(rec.CasDone(version))

    def cas_lost(self, metadata: PartitionMetadata, version: int) -> None:
        """The metadata changed under us, or the outcome was unknown: this is what stands there now."""
        self._events.put(rec.CasLost(metadata, version))

    # ---- the log -----------------------------------------------------------------------------

    @property
    def decided(self) -> bool:
        """Whether recovery knows where the log ends."""
        return self._recovery.resolved is not None

    @property
    def _open_followers(self) -> Followers:
        assert self.state is SessionState.OPEN
        assert self._followers is not None
        return self._followers

    def replicate(self, batch: Batch) -> None:
        """Send a batch to every replica that follows the log."""
        self._open_followers.replicate(batch)

    def confirm(self) -> int:
        """Begin a round: it is confirmed once a quorum has answered what is sent from now on."""
        return self._open_followers.confirm()

    @property
    def confirmed(self) -> int:
        """The newest round that is: when it began, no later session had committed anything."""
        return 0 if self._followers is None else self._followers.confirmed

    def committed(self, mark: int) -> None:
        """The quorum holds everything up to `mark`."""
        if self._followers is not None:
            self._followers.committed(mark)

    def read_headers(self, now: int, token: int, first: int, count: int) -> None:
        """Read record headers of committed transactions from some replica."""
        self._read(now, PartitionRead(token, first, count, with_data=False))

    def read_records(self, now: int, token: int, first: int, count: int) -> None:
        """Read records of committed transactions from some replica."""
        self._read(now, PartitionRead(token, first, count, with_data=True))

    def _read(self, now: int, read: PartitionRead) -> None:
        if self.state is SessionState.OPEN:
            self._reads.ask(now, read)
        else:
            self._reads.give_up(read)

    def close(self, now: int, reason: str) -> None:
        """End the session: a checkpoint, a new generation, other replicas, or the partition goes."""
        self._end(reason)

    # ---- once per step -----------------------------------------------------------------------

    def flush(self, now: int) -> None:
        """Run recovery on what happened and feed the replicas."""
        while self._happened and self.state is not SessionState.ENDED:
            effects: list[rec.Effect] = []
            self._recovery.step(now, self._events.take(), effects)
            self._alarms.set(_RECOVERY_DUE, self._recovery.deadline())
            for effect in effects:
                self._perform(effect)
        if self.state is SessionState.OPEN:
            assert self._followers is not None
            self._followers.feed(now)
        if self.state is not SessionState.ENDED:
            if self._aside.new:
                self._aside.report(lambda replica: self._links[replica].state is LinkState.LOST)
            if self._greetings.back or self._take_in_at is not None:
                self._set_take_in()

    def due(self, alarm: SessionAlarm) -> None:
        """An alarm rang; `flush` follows."""
        if self.state is SessionState.ENDED:
            return  # one that rang before it in the same step has ended the session
        match alarm:
            case GreetAgain(replica):
                self._greetings.greet(self._links[replica])
            case AskSourcesAgain(replica):
                self._open_followers.ask_sources_again(replica)
            case TakeIn():
                self._take_in_at = None
                self._end(f"{', '.join(self._greetings.lost)} can be taken in again")
            case RecoveryDue():
                pass  # as every step of it
        self._events.put(rec.Tick())

    def _set_take_in(self) -> None:
        """A new session helps once this one is open, or waits for something that may not come by itself."""
        wanted = self.state is SessionState.OPEN or (self.state is SessionState.RECOVERING and self.stuck)
        at = self._greetings.rejoin_at if wanted else None
        if at != self._take_in_at:
            self._take_in_at = at
            self._alarms.set(_TAKE_IN, at)

    def _cancel_alarms(self) -> None:
        self._set_take_in()
        self._alarms.set(_RECOVERY_DUE, None)
        for replica in self._links:
            self._alarms.set(GreetAgain(replica), None)
            self._alarms.set(AskSourcesAgain(replica), None)

    # ---- for people --------------------------------------------------------------------------

    def links(self) -> tuple[tuple[str, str, int, int], ...]:
        """(replica, state, next id to send, highest durable id) of every replica."""
        return tuple((link.replica, link.state.value, link.next, link.acked) for link in self._links.values())

    # ---- answers -----------------------------------------------------------------------------

    def answered(self, now: int, event: StorageAnswer) -> bool:
        """An answer came, which is nobody's if the session does not wait for it; returns if `flush` must follow."""
        what = self.requests.take(event.ticket)
        if what is None:
            return False
        if type(what) is Replication and type(event.message) is not messages.FailureResponse:
            return self._open_followers.voted(self._links[what.replica])
        if isinstance(event.message, messages.FailureResponse):
            codec = self._links[replica_of(what)].codec
            self._on_failure(now, what, Refusal.of(event.message, codec))
        else:
            self._on_answer(now, what, event.message)
        return True

    def failed(self, now: int, event: StorageFailed) -> None:
        """A request got no answer."""
        what = self.requests.take(event.ticket)
        if what is not None:
            self._on_failure(now, what, Refusal(event.reason))

    def _on_answer(self, now: int, what: Awaited, answer: StorageMessage) -> None:
        match what:
            case PartitionRead():
                self._reads.answered(now, what, answer)
            case FenceCheck(replica):
                self._open_followers.checked(replica)
            case RecoveryRead() | CatchUpRead():
                self._on_copied(now, what, answer)
            case RecoveryWrite(target, count):
                self._events.put(rec.RecordsWritten(target, count))
            case Greeting(replica):
                assert isinstance(answer, messages.LastSessionInfoResponse)
                self._greetings.answered(now, self._links[replica], answer)
            case LogStartQuestion(replica, report):
                assert isinstance(answer, messages.LogStartResponse)
                self._greetings.log_start_known(self._links[replica], report, answer.log_start)
            case EndQuestion(replica):
                assert isinstance(answer, messages.MaxTransactionIdResponse)
                self._events.put(rec.MaxKnown(replica, answer.transaction_id))
            case Marking(replica):
                self._events.put(rec.Marked(replica))
            case BeginningQuestion() | NewBeginning():
                self._on_beginning(what, answer)
            case StartRaise(replica):
                self.log_start.raised(replica)

    def _on_beginning(self, what: BeginningQuestion | NewBeginning, answer: StorageMessage) -> None:
        """Ask in the way that the node understands; then its replica begins where the others do."""
        match what:
            case BeginningQuestion():
                self.requests.begin_anew(what, answer)
            case NewBeginning(replica, start):
                self._links[replica].start = start
                self._events.put(rec.BegunAnew(replica, start))

    def _on_failure(self, now: int, what: Awaited, refusal: Refusal) -> None:
        match what:
            case Greeting(replica):
                self._greetings.refused(now, self._links[replica], refusal)
            case LogStartQuestion(replica, report):
                self._greetings.log_start_unknown(self._links[replica], report)
            case PartitionRead() if refusal.fence is not None:
                # We were succeeded. It is read in our next session, if there is one: nothing is wrong with the record.
                self._lose(now, self._links[replica_of(what)], refusal.reason)
                self._reads.give_up(what)
            case PartitionRead():
                # Java: one read error ends the session (server-D27); another replica can answer as well.
                self._reads.refused(now, what, damaged=refusal.damaged)
            case RecoveryRead() | CatchUpRead():
                self._on_not_copied(now, what, refusal)
            case _:
                self._lose(now, self._links[replica_of(what)], refusal.reason)

    def _on_copied(self, now: int, read: RecoveryRead | CatchUpRead, answer: StorageMessage) -> None:
        """Use what stands before a damaged record, if anything does."""
        assert isinstance(answer, messages.RecordListResponse)
        records = sound_part(answer.records, read.first)
        if answer.records and not records:
            self._on_not_copied(now, read, Refusal(f"record {read.first} does not match its checksum"))
        elif isinstance(read, CatchUpRead):
            self._open_followers.copied(read, records)
        else:
            self._events.put(rec.RecordsRead(read.source, read.target, records))

    def _on_not_copied(self, now: int, read: RecoveryRead | CatchUpRead, refusal: Refusal) -> None:
        """A damaged record costs neither its replica nor the session: it is read elsewhere, or not compared."""
        if refusal.fence is not None:
            self._lose(now, self._links[read.source], refusal.reason)
            return
        if read.source != read.target:
            self._aside.add(read.source, read.first, refusal.reason)
        if isinstance(read, CatchUpRead):
            self._open_followers.denied(read)
        else:
            self._events.put(rec.RecordsDenied(read.source, read.target, read.first))

    # ---- recovery's effects ------------------------------------------------------------------

    def _perform(self, effect: rec.Effect) -> None:
        match effect:
            case rec.CasMetadata():
                self._notes.put(effect)
            case rec.ReplicaReady(replica, next_id):
                self._links[replica].follow(next_id)
                if self.state is SessionState.OPEN:
                    self._routes.add(replica)
                    self._notes.put(ReplicaJoined(replica, next_id - 1))
            case rec.SessionRecovered(mark):
                self._open(mark)
            case rec.RecoveryFailed(reason, fence):
                self._end(reason, fence)
            case rec.ReplicaRefused(replica, reason):
                self._notes.put(ReplicaRefused(replica, reason))
            case rec.CopyBlocked(replica, reason):
                self._notes.put(ReplicaLags(replica, reason))
            case rec.RecoveryStuck(reason):
                self.stuck = reason
                self._notes.put(Stuck(reason))
            case rec.RecoveryUnstuck():
                self.stuck = ""
                self._notes.put(Stuck(""))
            case _:
                self.requests.for_recovery(effect)

    def _open(self, mark: int) -> None:
        self.state = SessionState.OPEN
        self.low_water_mark = mark
        self.log_start.opened(mark)
        self._followers = Followers(
            mark,
            self._quorum,
            self._links,
            self._routes,
            self.requests,
            self._notes,
            self._alarms,
            self._config,
        )
        ready = tuple(link.replica for link in self._links.values() if link.state is LinkState.FOLLOWING)
        for replica in ready:
            self._routes.add(replica)
        self._notes.put(SessionOpened(mark, self._quorum, ready))

    # ---- the end -----------------------------------------------------------------------------

    def _lose(self, now: int, link: ReplicaLink, reason: str) -> None:
        """A replica failed: during its recovery that is for Recovery to judge, later it ends the session."""
        if link.state is LinkState.LOST or self.state is SessionState.ENDED:
            return
        following = link.state is LinkState.FOLLOWING
        link.state = LinkState.LOST
        self._routes.remove(link.replica)
        if following:
            self._end(f"replica {link.replica} lost: {reason}")
        else:
            self._greetings.failed(now, link)
            self._set_take_in()
            self._events.put(rec.ReplicaFailed(link.replica, reason))

    def _end(self, reason: str, fence: int | None = None) -> None:
        if self.state is SessionState.ENDED:
            return
        recovered = self.state is SessionState.OPEN
        self.state = SessionState.ENDED
        self.log_start.closed()
        self._cancel_alarms()
        for what in self.requests.forget():
            if isinstance(what, PartitionRead):
                self._reads.give_up(what)
        self._notes.put(SessionEnded(reason, recovered, fence))

"""One store session: recovery, the links to its replicas, reads; ends when any replica is lost."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

from waltz_core.base.contract import Tickets, earliest
from waltz_core.base.log import Record, RecordHeader
from waltz_core.base.record import record
from waltz_core.base.rules import SAFE, SafetyRules
from waltz_core.store import recovery as rec
from waltz_core.store.calls import (
    LinkDown,
    LinkUp,
    LinkWanted,
    StorageAnswer,
    StorageAppend,
    StorageCall,
    StorageEffect,
    StorageFailed,
    StorageMessage,
    StorageNews,
)
from waltz_core.store.confirmations import Confirmations
from waltz_core.store.quorum import majority
from waltz_core.store.recovery import Recovery
from waltz_core.store.replica_link import Batch, LinkState, ReplicaLink, Tail
from waltz_core.store.routes import ReadRoutes
from waltz_core.wire import storage_messages as messages
from waltz_core.wire.shared import Condition

if TYPE_CHECKING:
    from waltz_core.zookeeper.znodes import PartitionMetadata

_GREET_AGAIN_MS = 1000
_REJOIN_MS = 10_000  # a replica that lost its chance in this session is back for so long before a new one begins
_NO_ID = -1  # no log holds it
_FAILED_MS = 60_000  # the same for one that failed and stayed connected
_ASK_AGAIN_MS = 10_000  # after so long a source that could not give out a record is asked for it again

# The text of 0.13.2 (storage-protocol.md §6) and ours: the only failure whose number matters to us.
_FENCED = re.compile(r"session id has changed to (-?\d+)")


@record
class SessionConfig:
    """Limits of a store session."""

    link_flight_bytes_max: int = 8 << 20  # appends sent to one replica and not answered
    tail_bytes_max: int = 16 << 20  # batches kept for replicas that are slower than the quorum
    copy_count_max: int = 1000  # records per step of a catch-up


# ---- what a session tells its partition --------------------------------------------------------


@record
class SessionOpened:
    """Recovery is over: the log ends at `mark`, `replicas` hold all of it."""

    mark: int
    quorum: int
    replicas: tuple[str, ...]


@record
class ReplicaJoined:
    """A late replica holds everything up to `acked` and votes from now on."""

    replica: str
    acked: int


@record
class Voted:
    """A replica made everything up to `mark` durable."""

    replica: str
    mark: int


@record
class SessionEnded:
    """The session is over; `recovered` tells whether it had been open."""

    reason: str
    recovered: bool
    fence: int | None = None  # a replica answered this later session


@record
class ReplicaRefused:
    """A replica stays out of this session; a person should look at it."""

    replica: str
    reason: str


@record
class ReplicaLags:
    """No other replica can give out what this one needs next; it is tried again."""

    replica: str
    reason: str


@record
class SourcePutAside:
    """A replica could not give out a record that another one needs: a third one is asked."""

    source: str
    transaction_id: int
    reason: str


@record
class ReplicaSuspect:
    """A replica knows of damage in its log, or is out of service because of it: it wants a repair."""

    replica: str


@record
class Stuck:
    """Recovery waits visibly; empty when it goes on."""

    reason: str


@record
class LogStartRaised:
    """A quorum has given up, durably, what is below."""

    log_start: int


class LogStartProblem(enum.Enum):
    """Why the log start cannot be raised."""

    NOT_READY = enum.auto()  # later it may be
    NOT_POSSIBLE = enum.auto()  # as long as a replica is where it is


@record
class HeadersRead:
    """Answer to `read_headers`; shorter than asked where a replica holds less."""

    token: int
    headers: tuple[RecordHeader, ...]


@record
class RecordsRead:
    """Answer to `read_records`, checksums verified."""

    token: int
    records: tuple[Record, ...]


@record
class ReadFailed:
    """No replica could answer a read."""

    token: int
    reason: str


SessionNote: TypeAlias = (
    SessionOpened
    | ReplicaJoined
    | Voted
    | SessionEnded
    | ReplicaRefused
    | ReplicaLags
    | SourcePutAside
    | ReplicaSuspect
    | Stuck
    | LogStartRaised
    | HeadersRead
    | RecordsRead
    | ReadFailed
    | rec.CasMetadata
)


class SessionState(enum.Enum):
    """RECOVERING → OPEN → ENDED, or RECOVERING → ENDED."""

    RECOVERING = "recovering"
    OPEN = "open"
    ENDED = "ended"


class _Read:
    __slots__ = ("asked_at", "count", "first", "replica", "token", "tried", "with_data")

    def __init__(self, token: int, first: int, count: int, with_data: bool) -> None:
        self.token = token
        self.first = first
        self.count = count
        self.with_data = with_data
        self.replica = ""
        self.tried: set[str] = set()
        self.asked_at = 0


_OnAnswer: TypeAlias = Callable[[int, StorageMessage], None]
_OnFailure: TypeAlias = Callable[[int, str], None]


class StoreSession:
    """The exclusive right of this server to append to one partition, as long as no replica is lost.

    The parent gives it link events and answers of its tickets; notes for the parent are appended to
    `notes`, storage effects to `out`.
    """

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
        config: SessionConfig,
        rules: SafetyRules = SAFE,
    ) -> None:
        assert replicas
        self.session_id = session_id
        self.generation = generation
        self.state = SessionState.RECOVERING
        self.low_water_mark = -1
        self.stuck = ""
        self._partition_id = partition_id
        self._quorum = majority(len(replicas))
        self._tickets = tickets
        self._config = config
        self._links = {replica: ReplicaLink(replica) for replica in replicas}
        self._confirmations = Confirmations(self._quorum)
        self._routes = ReadRoutes()
        self._recovery = Recovery(
            partition_id,
            session_id,
            generation,
            metadata,
            metadata_version,
            tuple(replicas),
            copy_count_max=config.copy_count_max,
            rules=rules,
        )
        self._tail: Tail | None = None
        self._commit_mark = -1
        self._waiting: dict[int, tuple[_OnAnswer, _OnFailure]] = {}
        self._out: list[StorageEffect] = []
        self._notes: list[SessionNote] = []
        self._events: list[rec.Event] = []
        self._out_of_service: dict[str, str] = {}  # replicas that are in limbo or have stopped, and what they say
        self._greet_at: dict[str, int] = {}  # replicas that refused to greet, and when to try again
        self._rejoin_at: dict[str, int] = {}  # replicas that are back, and when a new session is worth it
        self._untold: list[tuple[str, int, str]] = []  # the same of this step, not reported yet
        self._aside: dict[tuple[str, int], str] = {}  # (replica, id) of what could not be read, and why
        self._ask_again_at: dict[str, int] = {}  # replicas that no source is left for, and when to try all again
        self._raising: int | None = None  # the log start that replicas are being told
        self._raised: set[str] = set()  # and those that have it on disk

    # ---- connections -------------------------------------------------------------------------

    def start(self) -> None:
        """Ask for a connection to every replica."""
        for replica in self._links:
            self._out.append(LinkWanted(replica))
        self._events.append(rec.Tick())  # waiting begins now, also where no replica ever arrives

    def link_up(self, now: int, event: LinkUp) -> None:
        """A connection stands: greet the replica, which fences every older session there."""
        link = self._links.get(event.replica)
        if link is None or self.state is SessionState.ENDED:
            return
        if link.state is LinkState.LOST:
            # It never rejoins its session (recovery.md I2); without another one it would stay out for ever.
            self._rejoin_at[link.replica] = now + _REJOIN_MS
        if link.state is not LinkState.DIALING:
            return
        link.movable = event.codec >= 1
        self._greet(link)

    def _greet(self, link: ReplicaLink) -> None:
        link.state = LinkState.GREETING
        self._greet_at.pop(link.replica, None)
        ticket = self._tickets.take()
        self._waiting[ticket] = (
            lambda now, answer: self._on_session_info(now, link, answer),
            lambda now, reason: self._on_greeting_refused(now, link, reason),
        )
        request = messages.LastSessionInfoRequest(self.session_id, 0, self._partition_id, False)
        self._out.append(StorageCall(link.replica, ticket, request))

    def _on_greeting_refused(self, now: int, link: ReplicaLink, reason: str) -> None:
        """Fenced by a later session, or the partition is not available there (yet)."""
        link.state = LinkState.DIALING
        fence = _FENCED.search(reason)
        if fence is not None and int(fence[1]) > self.session_id:
            self._events.append(rec.ReplicaFenced(link.replica, int(fence[1])))
        elif self.state is not SessionState.ENDED:
            self._greet_at[link.replica] = now + _GREET_AGAIN_MS

    def link_down(self, now: int, event: LinkDown) -> None:
        """A connection ended."""
        link = self._links.get(event.replica)
        if link is None:
            return
        self._greet_at.pop(link.replica, None)
        self._rejoin_at.pop(link.replica, None)
        if link.state is not LinkState.DIALING:
            self._lose(now, link, event.reason)

    def answered(self, now: int, event: StorageAnswer) -> bool:
        """An answer came; False if the ticket is not of this session."""
        waiting = self._waiting.pop(event.ticket, None)
        if waiting is None:
            return False
        if isinstance(event.message, messages.FailureResponse):
            waiting[1](now, event.message.message or "failed without a reason")
        else:
            waiting[0](now, event.message)
        return True

    def failed(self, now: int, event: StorageFailed) -> bool:
        """A request got no answer; False if the ticket is not of this session."""
        waiting = self._waiting.pop(event.ticket, None)
        if waiting is None:
            return False
        waiting[1](now, event.reason)
        return True

    def news(self, event: StorageNews) -> None:
        """A replica found damage, or was rid of it."""
        found = event.message
        if self.state is SessionState.ENDED or found.session_id != self.session_id:
            return
        if found.condition != Condition.SOUND and event.replica in self._links:
            self._notes.append(ReplicaSuspect(event.replica))

    # ---- metadata ----------------------------------------------------------------------------

    def cas_done(self, version: int) -> None:
        """The replica states are in ZooKeeper."""
        self._events.append(rec.CasDone(version))

    def cas_lost(self, metadata: PartitionMetadata, version: int) -> None:
        """The metadata changed under us, or the outcome was unknown: this is what stands there now."""
        self._events.append(rec.CasLost(metadata, version))

    # ---- the log -----------------------------------------------------------------------------

    @property
    def decided(self) -> bool:
        """Whether recovery knows where the log ends."""
        return self._recovery.resolved is not None

    def replicate(self, batch: Batch) -> None:
        """Send a batch to every replica that follows the log."""
        assert self.state is SessionState.OPEN
        assert self._tail is not None
        self._tail.add(batch, self._commit_mark)

    def confirm(self) -> int:
        """Begin a round: it is confirmed once a quorum has answered what is sent from now on."""
        assert self.state is SessionState.OPEN
        return self._confirmations.want()

    @property
    def confirmed(self) -> int:
        """The newest round that is: when it began, no later session had committed anything."""
        return self._confirmations.confirmed

    def committed(self, mark: int) -> None:
        """The quorum holds everything up to `mark`."""
        self._commit_mark = mark

    def read_headers(self, now: int, token: int, first: int, count: int) -> None:
        """Read record headers of committed transactions from some replica."""
        self._read(now, _Read(token, first, count, with_data=False))

    def read_records(self, now: int, token: int, first: int, count: int) -> None:
        """Read records of committed transactions from some replica."""
        self._read(now, _Read(token, first, count, with_data=True))

    def close(self, now: int, reason: str) -> None:
        """End the session: a checkpoint, a new generation, other replicas, or the partition goes."""
        self._end(now, reason)

    def flush(self, now: int, out: list[StorageEffect], notes: list[SessionNote]) -> None:
        """Run recovery on what happened, feed the replicas, hand over effects and notes."""
        while self._events and self.state is not SessionState.ENDED:
            events, self._events = self._events, []
            effects: list[rec.Effect] = []
            self._recovery.step(now, events, effects)
            for effect in effects:
                self._perform(now, effect)
        if self.state is SessionState.OPEN:
            for link in self._links.values():
                if link.state is LinkState.FOLLOWING:
                    self._follow(now, link)
                    if self._confirmations.must_ask(link.replica, link.last_round):
                        self._ask_whether_ours(link)
            self._release()
        if self.state is not SessionState.ENDED:
            self._tell_put_aside()
        out += self._out
        notes += self._notes
        self._out.clear()
        self._notes.clear()

    def _tell_put_aside(self) -> None:
        """Report what could not be read, unless its replica was lost in the same step."""
        untold, self._untold = self._untold, []
        for source, transaction_id, reason in untold:
            key = source, transaction_id
            if self._links[source].state is LinkState.LOST or self._aside.get(key) == reason:
                continue
            self._aside[key] = reason
            self._notes.append(SourcePutAside(source, transaction_id, reason))

    def deadline(self) -> int | None:
        """When recovery, or a replica that refused to greet or is back, wants a step."""
        if self.state is SessionState.ENDED:
            return None
        return earliest(
            self._recovery.deadline(), *self._greet_at.values(), *self._rejoins(), *self._ask_again_at.values()
        )

    def _rejoins(self) -> Iterable[int]:
        wanted = self.state is SessionState.OPEN or (self.state is SessionState.RECOVERING and self.stuck)
        return self._rejoin_at.values() if wanted else ()

    def due(self, now: int) -> None:
        """A deadline passed."""
        for replica in [replica for replica, due in self._greet_at.items() if now >= due]:
            self._greet(self._links[replica])
        if any(now >= due for due in self._rejoins()):
            self._end(now, f"{', '.join(sorted(self._rejoin_at))} can be taken in again")
            return
        for replica in [replica for replica, due in self._ask_again_at.items() if now >= due]:
            del self._ask_again_at[replica]
            self._links[replica].denied.clear()
        self._events.append(rec.Tick())

    def links(self) -> tuple[tuple[str, str, int, int], ...]:
        """(replica, state, next id to send, highest durable id) of every replica, for people."""
        return tuple((link.replica, link.state.value, link.next, link.acked) for link in self._links.values())

    # ---- answers -----------------------------------------------------------------------------

    def _call(self, replica: str, message: StorageMessage, then: Callable[[int, str, StorageMessage], None]) -> None:
        """Send a request whose failure loses the replica."""
        ticket = self._tickets.take()
        self._waiting[ticket] = (
            lambda now, answer: then(now, replica, answer),
            lambda now, reason: self._lose(now, self._links[replica], reason),
        )
        self._out.append(StorageCall(replica, ticket, message))

    def _on_session_info(self, now: int, link: ReplicaLink, answer: StorageMessage) -> None:
        assert isinstance(answer, messages.LastSessionInfoResponse)
        # Only codec 1 tells these; under codec 0 they keep their defaults.
        fence = answer.fence if answer.fence >= 0 else None
        if answer.condition != Condition.SOUND:
            self._notes.append(ReplicaSuspect(link.replica))
        if answer.condition in (Condition.LIMBO, Condition.STOPPED):
            # Absent, as one that does not answer; it comes in as soon as it is repaired.
            link.state = LinkState.DIALING
            self._greet_at[link.replica] = now + _GREET_AGAIN_MS
            reason = answer.reason or "its log may end too early"
            if self._out_of_service.get(link.replica) != reason:
                self._out_of_service[link.replica] = reason
                self._notes.append(ReplicaRefused(link.replica, reason))
            if fence is not None and fence > self.session_id:
                self._events.append(rec.ReplicaFenced(link.replica, fence))
            return
        link.state = LinkState.RECOVERING
        if link.movable:
            self._ask_start(link, answer, fence)
        else:
            self._events.append(rec.ReplicaUp(link.replica, answer.last_session_info, fence))

    def _ask_start(self, link: ReplicaLink, report: messages.LastSessionInfoResponse, fence: int | None) -> None:
        """Where its log begins is part of what a replica is; one that does not tell keeps all of it."""

        def arrived() -> None:
            up = rec.ReplicaUp(link.replica, report.last_session_info, fence, False, link.start, link.movable)
            self._events.append(up)

        def answered(now: int, answer: StorageMessage) -> None:
            assert isinstance(answer, messages.LogStartResponse)
            link.start = answer.log_start
            arrived()

        def failed(now: int, reason: str) -> None:
            if link.state is LinkState.RECOVERING:
                link.movable = False
                arrived()

        ticket = self._tickets.take()
        self._waiting[ticket] = answered, failed
        request = messages.LogStartRequest(self.session_id, 0, self._partition_id)
        self._out.append(StorageCall(link.replica, ticket, request))

    def _on_max_known(self, now: int, replica: str, answer: StorageMessage) -> None:
        assert isinstance(answer, messages.MaxTransactionIdResponse)
        self._events.append(rec.MaxKnown(replica, answer.transaction_id))

    def _on_marked(self, now: int, replica: str, answer: StorageMessage) -> None:
        self._events.append(rec.Marked(replica))

    # ---- recovery's effects ------------------------------------------------------------------

    def _perform(self, now: int, effect: rec.Effect) -> None:
        match effect:
            case rec.CasMetadata():
                self._notes.append(effect)
            case rec.ReplicaReady(replica, next_id):
                self._links[replica].follow(next_id)
                if self.state is SessionState.OPEN:
                    self._routes.add(replica)
                    self._notes.append(ReplicaJoined(replica, next_id - 1))
            case rec.SessionRecovered(mark):
                self._open(mark)
            case rec.RecoveryFailed(reason, fence):
                self._end(now, reason, fence)
            case rec.ReplicaRefused(replica, reason):
                self._notes.append(ReplicaRefused(replica, reason))
            case rec.CopyBlocked(replica, reason):
                self._notes.append(ReplicaLags(replica, reason))
            case rec.RecoveryStuck(reason):
                self.stuck = reason
                self._notes.append(Stuck(reason))
            case rec.RecoveryUnstuck():
                self.stuck = ""
                self._notes.append(Stuck(""))
            case _:
                self._ask(effect)

    def _ask(
        self,
        effect: rec.AskMax | rec.Truncate | rec.SetLowWaterMark | rec.SetLogStart | rec.ReadRecords | rec.WriteRecords,
    ) -> None:
        session, partition = self.session_id, self._partition_id
        match effect:
            case rec.AskMax(replica):
                self._call(replica, messages.MaxTransactionIdRequest(session, 0, partition, False), self._on_max_known)
            case rec.Truncate(replica, transaction_id):
                self._call(
                    replica, messages.TruncateRequest(session, 0, partition, transaction_id, False), self._on_max_known
                )
            case rec.SetLowWaterMark(replica, mark):
                self._call(
                    replica, messages.SetLowWaterMarkRequest(session, 0, partition, mark, False), self._on_marked
                )
            case rec.SetLogStart(replica, start):
                self._begin_anew(self._links[replica], start)
            case rec.ReadRecords(source, target, first, count):
                self._copy_read(source, target, first, count)
            case rec.WriteRecords(target, records):
                self._copy_write(target, records)

    def _open(self, mark: int) -> None:
        self.state = SessionState.OPEN
        self.low_water_mark = self._commit_mark = mark
        self._tail = Tail(mark + 1, self._config.tail_bytes_max)
        ready = tuple(link.replica for link in self._links.values() if link.state is LinkState.FOLLOWING)
        for replica in ready:
            self._routes.add(replica)
        self._notes.append(SessionOpened(mark, self._quorum, ready))

    # ---- the log start -----------------------------------------------------------------------

    @property
    def log_start(self) -> int:
        """The smallest id that may be read: what any replica has given up is given up."""
        return max(link.start for link in self._links.values())

    def log_start_problem(self, start: int) -> tuple[LogStartProblem, str] | None:
        """Why the log start cannot be raised to `start` now; None if it can."""
        if self.state is not SessionState.OPEN or self._raising is not None:
            return LogStartProblem.NOT_READY, "the partition is opening, or its log start is being raised"
        for link in self._links.values():
            if link.state is not LinkState.FOLLOWING:
                return (
                    LogStartProblem.NOT_READY,
                    f"replica {link.replica} is {link.state.value}: it needs all of the log",
                )
            if not link.movable:
                why = f"replica {link.replica} is on a node of 0.13.2, which would wait for what was given up"
                return LogStartProblem.NOT_POSSIBLE, why
        if start > self.low_water_mark + 1:
            why = f"it can be raised up to {self.low_water_mark + 1}, where the present store session began"
            return LogStartProblem.NOT_READY, why
        return None

    def raise_log_start(self, start: int) -> None:
        """Tell all replicas; `LogStartRaised` follows once a quorum has it on disk, or the session ends."""
        assert self.log_start_problem(start) is None
        self._raising, self._raised = start, set()
        for link in self._links.values():
            self._call(
                link.replica,
                messages.SetLogStartRequest(self.session_id, 0, self._partition_id, start),
                self._on_raised,
            )

    def _on_raised(self, now: int, replica: str, answer: StorageMessage) -> None:
        if self._raising is None:
            return
        start = self._raising
        self._links[replica].start = max(self._links[replica].start, start)
        self._raised.add(replica)
        if len(self._raised) == self._quorum:
            self._events.append(rec.LogStartRaised(start))
            self._notes.append(LogStartRaised(start))
        if len(self._raised) == len(self._links):
            self._raising = None

    def _begin_anew(self, link: ReplicaLink, start: int) -> None:
        def answered(now: int, replica: str, answer: StorageMessage) -> None:
            link.start = start
            self._events.append(rec.LogStartSet(replica, start))

        request = messages.SetLogStartRequest(self.session_id, 0, self._partition_id, start)
        self._call(link.replica, request, answered)

    # ---- copying during recovery -------------------------------------------------------------

    def _copy_read(self, source: str, target: str, first: int, count: int) -> None:
        def denied() -> None:
            self._events.append(rec.RecordsDenied(source, target, first))

        def read(records: tuple[Record, ...]) -> None:
            self._events.append(rec.RecordsRead(source, target, records))

        self._read_copy(source, target, first, count, read, denied)

    def _read_copy(
        self,
        source: str,
        target: str,
        first: int,
        count: int,
        read: Callable[[tuple[Record, ...]], None],
        denied: Callable[[], None],
    ) -> None:
        """Read records of one replica for another one.

        A damaged record costs neither its replica nor the session: what stands before it is used, and `denied`
        lets the rest be read elsewhere. A replica that cannot read its *own* record for a comparison is lost.
        """

        def failed(now: int, reason: str) -> None:
            if source == target or _FENCED.search(reason):
                self._lose(now, self._links[source], reason)
                return
            self._untold.append((source, first, reason))
            denied()

        def answered(now: int, answer: StorageMessage) -> None:
            assert isinstance(answer, messages.RecordListResponse)
            records = _sound_part(answer.records, first)
            if answer.records and not records:
                failed(now, f"record {first} does not match its checksum")
            else:
                read(records)

        ticket = self._tickets.take()
        self._waiting[ticket] = answered, failed
        request = messages.RecordListRequest(self.session_id, 0, self._partition_id, first, count)
        self._out.append(StorageCall(source, ticket, request))

    def _copy_write(self, target: str, records: tuple[Record, ...]) -> None:
        def answered(now: int, replica: str, answer: StorageMessage) -> None:
            self._events.append(rec.RecordsWritten(target, len(records)))

        self._call(target, messages.AppendRequest(self.session_id, 0, self._partition_id, records, False), answered)

    # ---- following the log -------------------------------------------------------------------

    def _follow(self, now: int, link: ReplicaLink) -> None:
        """Send a replica what it lacks: from the tail, or copied from another replica."""
        tail = self._tail
        assert tail is not None
        while link.next < tail.end and link.flight_bytes < self._config.link_flight_bytes_max:
            batch = tail.at(link.next)
            if batch is None:
                if not link.copying and link.next <= self._commit_mark:
                    self._catch_up(now, link)
                return
            ticket = self._tickets.take()
            self._expect_appended(ticket, link)
            self._out.append(StorageAppend(link.replica, ticket, self.session_id, self._partition_id, batch))
            link.sent(batch.last, len(batch.encoded), self._confirmations.wanted)

    def _expect_appended(self, ticket: int, link: ReplicaLink) -> None:
        self._waiting[ticket] = (
            lambda now, answer: self._on_appended(link),
            lambda now, reason: self._lose(now, link, reason),
        )

    def _on_appended(self, link: ReplicaLink) -> None:
        if link.state is LinkState.FOLLOWING:
            self._confirmations.heard(link.replica, link.answered())
            self._notes.append(Voted(link.replica, link.acked))

    def _ask_whether_ours(self, link: ReplicaLink) -> None:
        """Make a replica check our session id: by a request that reads nothing and that 0.13.2 knows, too.

        Ours answer it beside the writes, 0.13.2 after those that came before. A refusal ends the session, as that
        of an append does.
        """

        def answered(now: int, replica: str, answer: StorageMessage) -> None:
            self._confirmations.answered(replica)

        self._confirmations.ask(link.replica)
        nothing = messages.RecordHeaderRequest(self.session_id, 0, self._partition_id, _NO_ID)
        self._call(link.replica, nothing, answered)

    def _catch_up(self, now: int, link: ReplicaLink) -> None:
        """Copy committed records that the tail does not hold any more from another replica."""
        link.copying = True
        first, count = link.next, min(self._config.copy_count_max, self._commit_mark - link.next + 1)
        source = self._routes.choose(
            lambda name: (
                name not in (link.replica, *link.denied) and self._links[name].start <= first <= self._links[name].acked
            )
        )
        if source is None:
            link.copying = False
            if link.denied and link.replica not in self._ask_again_at:
                self._ask_again_at[link.replica] = now + _ASK_AGAIN_MS
                reason = f"transaction {first} cannot be read from {', '.join(sorted(link.denied))}"
                if reason != link.blocked:
                    link.blocked = reason
                    self._notes.append(ReplicaLags(link.replica, reason))
            return

        def read(records: tuple[Record, ...]) -> None:
            link.copying = False
            if records and link.state is LinkState.FOLLOWING and link.next == first:
                link.denied.clear()  # they may well have the next one
                self._send_copied(link, records)

        def denied() -> None:
            link.copying = False
            link.denied.add(source)

        self._read_copy(source, link.replica, first, count, read, denied)

    def _send_copied(self, link: ReplicaLink, records: tuple[Record, ...]) -> None:
        ticket = self._tickets.take()
        self._expect_appended(ticket, link)
        self._out.append(
            StorageCall(
                link.replica,
                ticket,
                messages.AppendRequest(self.session_id, 0, self._partition_id, records, False),
            )
        )
        size = sum(len(item.data) + 40 for item in records)
        link.sent(records[-1].transaction_id, size, self._confirmations.wanted)

    def _release(self) -> None:
        """Batches that every following replica was sent need not be kept."""
        assert self._tail is not None
        below = min(
            (link.next for link in self._links.values() if link.state is LinkState.FOLLOWING), default=self._tail.end
        )
        self._tail.release(min(below, self._commit_mark + 1))

    # ---- reads -------------------------------------------------------------------------------

    def _read(self, now: int, read: _Read) -> None:
        replica = self._routes.choose(
            lambda name: name not in read.tried and self._links[name].start <= read.first <= self._links[name].acked
        )
        if replica is None or self.state is not SessionState.OPEN:
            tried = ", ".join(sorted(read.tried)) or "no replica that holds it is connected"
            self._notes.append(ReadFailed(read.token, f"transaction {read.first} cannot be read ({tried})"))
            return
        read.tried.add(replica)
        read.replica = replica
        read.asked_at = now
        ticket = self._tickets.take()
        self._waiting[ticket] = (
            lambda now, answer: self._on_read(now, read, answer),
            # Java: one read error ends the session (server-D27); another replica can answer as well.
            lambda now, reason: self._read(now, read),
        )
        request = messages.RecordListRequest if read.with_data else messages.RecordHeaderListRequest
        self._out.append(
            StorageCall(replica, ticket, request(self.session_id, 0, self._partition_id, read.first, read.count))
        )

    def _on_read(self, now: int, read: _Read, answer: StorageMessage) -> None:
        self._routes.measured(read.replica, now - read.asked_at)
        if isinstance(answer, messages.RecordHeaderListResponse):
            headers = answer.record_headers[: read.count]
            if headers and all(h.transaction_id == read.first + at for at, h in enumerate(headers)):
                self._notes.append(HeadersRead(read.token, headers))
                return
        elif isinstance(answer, messages.RecordListResponse):
            records = answer.records[: read.count]
            if records and _sound(records, read.first):
                self._notes.append(RecordsRead(read.token, records))
                return
        self._read(now, read)

    # ---- the end -----------------------------------------------------------------------------

    def _lose(self, now: int, link: ReplicaLink, reason: str) -> None:
        """A replica failed: during its recovery that is for Recovery to judge, later it ends the session."""
        if link.state is LinkState.LOST or self.state is SessionState.ENDED:
            return
        following = link.state is LinkState.FOLLOWING
        link.state = LinkState.LOST
        self._routes.remove(link.replica)
        if following:
            self._end(now, f"replica {link.replica} lost: {reason}")
        else:
            self._rejoin_at[link.replica] = now + _FAILED_MS
            self._events.append(rec.ReplicaFailed(link.replica, reason))

    def _end(self, now: int, reason: str, fence: int | None = None) -> None:
        if self.state is SessionState.ENDED:
            return
        recovered = self.state is SessionState.OPEN
        self.state = SessionState.ENDED
        waiting, self._waiting = self._waiting, {}
        for _, failed in waiting.values():
            failed(now, reason)  # reads report their failure, everything else is over
        self._notes.append(SessionEnded(reason, recovered, fence))


def _sound_part(records: tuple[Record, ...], first: int) -> tuple[Record, ...]:
    """Those up to which ids continue from `first` and payloads match their checksums."""
    for at, item in enumerate(records):
        if item.transaction_id != first + at or crc32(item.data) != item.checksum & 0xFFFFFFFF:
            return records[:at]
    return records


def _sound(records: tuple[Record, ...], first: int) -> bool:
    """Whether ids continue from `first` and every payload matches its checksum."""
    return len(_sound_part(records, first)) == len(records)

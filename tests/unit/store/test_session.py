"""A store session by itself: events in, everything that leaves it asserted."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import attrs
import pytest

from waltz_core.base.alarms import Alarms
from waltz_core.base.contract import Tickets
from waltz_core.base.ids import ReplicaId, make_req_id
from waltz_core.base.log import Record, RecordHeader, SessionInfo
from waltz_core.base.outbox import Outbox
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
from waltz_core.store.followers import AskSourcesAgain, SessionConfig
from waltz_core.store.greetings import GreetAgain
from waltz_core.store.recovery_events import CasMetadata
from waltz_core.store.replica_link import Batch, LinkState
from waltz_core.store.requests import FenceCheck, PartitionRead, Refusal, Replication, described
from waltz_core.store.session import SessionAlarm, SessionState, StoreSession
from waltz_core.store.session_notes import (
    HeadersRead,
    LogStartProblem,
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
from waltz_core.wire import storage_messages as messages
from waltz_core.wire.headers import HeaderRun
from waltz_core.wire.shared import Condition, FailureCode, Statistic
from waltz_core.zookeeper.znodes import UNRESOLVED, PartitionMetadata, ReplicaState

PARTITION, SESSION, GENERATION = 3, 8, 2
A, B, C = "a:1", "b:1", "c:1"
REQ = make_req_id(1, GENERATION, PARTITION, 0)
COMMON = (SESSION, 0, PARTITION)


def record_at(transaction_id: int, data: bytes = b"x") -> Record:
    return Record(transaction_id, REQ, 0, data, crc32(data))


def states(*marks: tuple[str, int, int]) -> PartitionMetadata:
    return PartitionMetadata(
        GENERATION,
        SESSION,
        tuple(ReplicaState(ReplicaId(PARTITION, replica), session, mark) for replica, session, mark in marks),
    )


class Desk:
    """The parent of a session of three replicas, which all took part in session 7 up to transaction 9."""

    def __init__(self, config: SessionConfig | None = None, metadata: PartitionMetadata | None = None) -> None:
        self.out: Outbox[StorageEffect] = Outbox()
        self.notes: Outbox[SessionNote] = Outbox()
        self.alarms: Alarms[SessionAlarm] = Alarms()
        self.now = 0
        metadata = metadata or states(*((replica, 7, UNRESOLVED) for replica in (A, B, C)))
        self.session = StoreSession(
            PARTITION,
            SESSION,
            GENERATION,
            metadata,
            4,
            (A, B, C),
            tickets=Tickets(),
            out=self.out,
            notes=self.notes,
            alarms=self.alarms,
            config=config or SessionConfig(),
        )
        self.session.start()
        assert self.flush() == ([LinkWanted(A), LinkWanted(B), LinkWanted(C)], [])

    def flush(self) -> tuple[list[StorageEffect], list[SessionNote]]:
        self.session.flush(self.now)
        return self.out.take(), self.notes.take()

    def ring(self) -> None:
        """Alarms that are due by now."""
        for alarm in self.alarms.due(self.now):
            self.session.due(alarm)

    def up(self, replica: str, codec: int = 0) -> StorageCall:
        """Its connection stands; returns the greeting."""
        self.session.link_up(self.now, LinkUp(replica, codec))
        return self.call(replica, messages.LastSessionInfoRequest(*COMMON, False))

    def call(self, replica: str, message: StorageMessage) -> StorageCall:
        """The one thing that leaves: a request."""
        (effect,), notes = self.flush()
        assert isinstance(effect, StorageCall)
        assert (effect.replica, effect.message, notes) == (replica, message, [])
        return effect

    def tell(
        self, call: StorageCall | StorageAppend, answer: StorageMessage
    ) -> tuple[list[StorageEffect], list[SessionNote]]:
        self.session.answered(self.now, StorageAnswer(call.ticket, answer))
        return self.flush()

    def arrive(self, replica: str, request: StorageMessage | None = None, codec: int = 0) -> None:
        """It is greeted and asked for its end, or cut there; it holds everything up to 9."""
        greeting = self.up(replica, codec)
        (question,), _ = self.tell(greeting, messages.LastSessionInfoResponse(*COMMON, SessionInfo(7, 4, 4)))
        assert isinstance(question, StorageCall)
        if codec:
            assert question.message == messages.LogStartRequest(*COMMON)
            (question,), _ = self.tell(question, messages.LogStartResponse(*COMMON, 0, 9))
            assert isinstance(question, StorageCall)
        assert question.message == (request or messages.MaxTransactionIdRequest(*COMMON, False))
        self.session.answered(self.now, StorageAnswer(question.ticket, messages.MaxTransactionIdResponse(*COMMON, 9)))

    def level(self, *replicas: str, codec: int = 0) -> tuple[list[StorageEffect], list[SessionNote]]:
        """They hold everything up to 9 and are marked; returns what left with the last answer."""
        last: tuple[list[StorageEffect], list[SessionNote]] = [], []
        for replica in replicas:
            self.arrive(replica, codec=codec)
        effects, notes = self.flush()
        assert notes == []
        for effect in effects:
            assert isinstance(effect, StorageCall)
            assert effect.message == messages.SetLowWaterMarkRequest(*COMMON, 9, False)
            last = self.tell(effect, messages.SuccessResponse(*COMMON))
        return last

    def open(self, *replicas: str, codec: int = 0) -> None:
        """A session with these replicas, open at 9."""
        effects, (write,) = self.level(*replicas, codec=codec)
        assert effects == []
        assert isinstance(write, CasMetadata)
        self.session.cas_done(5)
        assert self.flush() == ([], [SessionOpened(9, 2, replicas)])

    def replicate(self, *batches: Batch) -> list[StorageAppend]:
        for batch in batches:
            self.session.replicate(batch)
        effects, notes = self.flush()
        assert notes == []
        appends = [effect for effect in effects if isinstance(effect, StorageAppend)]
        assert len(appends) == len(effects)
        return appends


def success() -> messages.SuccessResponse:
    return messages.SuccessResponse(*COMMON)


def refusal(text: str, code: int = 0, detail: int = -1) -> messages.FailureResponse:
    return messages.FailureResponse(*COMMON, text, (), code, detail)


# ---- greeting ----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [0, 1])
def test_a_later_session_is_known_by_the_words_of_0_13_2_and_by_the_code_of_ours(codec: int) -> None:
    desk = Desk()
    greeting = desk.up(A, codec)
    answer = refusal("session id has changed to 9, but …") if codec == 0 else refusal("no", FailureCode.FENCED, 9)
    effects, (ended,) = desk.tell(greeting, answer)
    assert effects == []
    assert isinstance(ended, SessionEnded)
    assert (ended.recovered, ended.fence) == (False, 9)
    assert desk.session.state is SessionState.ENDED


def test_words_that_a_peer_with_codes_puts_into_an_answer_fence_nobody() -> None:
    desk = Desk()
    effects, notes = desk.tell(desk.up(A, codec=1), refusal("session id has changed to 9", FailureCode.UNAVAILABLE))
    assert (effects, notes) == ([], [])
    assert desk.session.state is SessionState.RECOVERING


def test_a_replica_that_refuses_is_greeted_again() -> None:
    desk = Desk()
    desk.now = 100
    assert desk.tell(desk.up(A), refusal("not available")) == ([], [])
    assert desk.alarms.next() == 1000  # the report that recovery waits comes first
    desk.now = 1100
    desk.ring()
    effects, (stuck,) = desk.flush()
    assert [attrs.evolve(effect, ticket=0) for effect in effects if isinstance(effect, StorageCall)] == [
        StorageCall(A, 0, messages.LastSessionInfoRequest(*COMMON, False))
    ]
    assert isinstance(stuck, Stuck)
    assert desk.session.stuck == stuck.reason
    _, notes = desk.tell(desk.up(B), messages.LastSessionInfoResponse(*COMMON, SessionInfo(7, 4, 4)))
    assert (notes, desk.session.stuck) == ([Stuck("")], "")


def test_a_replica_out_of_service_is_reported_once_and_asked_again() -> None:
    desk = Desk()
    limbo = messages.LastSessionInfoResponse(*COMMON, SessionInfo(7, 4, 4), 7, Condition.LIMBO, (), "short")
    assert desk.tell(desk.up(A, 1), limbo) == ([], [ReplicaSuspect(A), ReplicaRefused(A, "short")])
    desk.now = 1000
    desk.ring()
    (greeting,), _ = desk.flush()
    assert isinstance(greeting, StorageCall)
    assert desk.tell(greeting, limbo) == ([], [ReplicaSuspect(A)])


def test_a_replica_out_of_service_fences_off_an_older_session_all_the_same() -> None:
    desk = Desk()
    limbo = messages.LastSessionInfoResponse(*COMMON, SessionInfo(7, 4, 4), 9, Condition.LIMBO, (), "short")
    _, notes = desk.tell(desk.up(A, 1), limbo)
    assert [(note.recovered, note.fence) for note in notes if isinstance(note, SessionEnded)] == [(False, 9)]


def test_a_replica_that_was_back_in_service_is_reported_anew() -> None:
    desk = Desk()
    limbo = messages.LastSessionInfoResponse(*COMMON, SessionInfo(7, 4, 4), 7, Condition.LIMBO, (), "short")
    desk.tell(desk.up(A), limbo)
    greetings, link = desk.session._greetings, desk.session._links[A]
    greetings.answered(0, link, messages.LastSessionInfoResponse(*COMMON, SessionInfo(7, 4, 4)))
    desk.flush()
    greetings.answered(0, link, limbo)
    assert desk.flush()[1] == [ReplicaSuspect(A), ReplicaRefused(A, "short")]


def test_a_refusal_that_comes_after_the_end_of_its_connection_revives_nobody() -> None:
    desk = Desk()
    desk.up(A)
    desk.session.link_down(0, LinkDown(A, "reset"))
    desk.session._greetings.refused(0, desk.session._links[A], Refusal("not available"))
    assert desk.flush() == ([], [])
    assert desk.session._links[A].state is LinkState.LOST
    desk.now = 2_000
    desk.ring()
    assert not [effect for effect in desk.flush()[0] if isinstance(effect, StorageCall)], "it is not greeted"


def test_a_node_of_ours_is_asked_where_its_log_begins() -> None:
    desk = Desk()
    report = messages.LastSessionInfoResponse(*COMMON, SessionInfo(7, 4, 4), 7)
    (question,), _ = desk.tell(desk.up(A, 1), report)
    assert isinstance(question, StorageCall)
    assert question.message == messages.LogStartRequest(*COMMON)
    (end,), notes = desk.tell(question, refusal("no such message"))  # an older one of ours: it keeps all of it
    assert isinstance(end, StorageCall)
    assert (end.message, notes) == (messages.MaxTransactionIdRequest(*COMMON, False), [])


def test_a_connection_that_ends_before_the_greeting_costs_nothing_and_after_it_the_recovery() -> None:
    desk = Desk()
    desk.session.link_down(0, LinkDown(A, "no route"))
    assert desk.flush() == ([], [])
    desk.up(A)
    desk.session.link_down(0, LinkDown(A, "reset"))
    effects, notes = desk.flush()
    assert (effects, notes) == ([], [])  # it had not arrived: nothing depends on it
    desk.arrive(B)
    desk.flush()
    desk.session.link_down(0, LinkDown(B, "reset"))
    assert desk.flush() == ([], [SessionEnded(f"replica {B} failed: reset", False)])


# ---- recovery ------------------------------------------------------------------------------------


def test_a_session_opens_once_zookeeper_names_a_quorum_that_is_level() -> None:
    desk = Desk()
    named = states((A, SESSION, UNRESOLVED), (B, SESSION, UNRESOLVED), (C, 7, 9))
    assert desk.level(A, B) == ([], [CasMetadata(named, 4)])
    assert desk.session.decided
    assert desk.session.state is SessionState.RECOVERING
    desk.session.cas_done(5)
    assert desk.flush() == ([], [SessionOpened(9, 2, (A, B))])
    assert desk.session.low_water_mark == 9
    assert desk.session.links() == ((A, "following", 10, 9), (B, "following", 10, 9), (C, "dialing", 0, -1))


def test_metadata_of_another_session_end_it() -> None:
    desk = Desk()
    desk.level(A, B)
    desk.session.cas_lost(attrs.evolve(states((A, 9, UNRESOLVED)), session_id=9), 6)
    assert desk.flush() == ([], [SessionEnded("session 9 took over from session 8", False)])


def test_a_late_replica_joins_and_is_sent_what_it_lacks() -> None:
    desk = Desk()
    desk.open(A, B)
    batch = Batch(10, 1, b"encoded")
    assert [append.replica for append in desk.replicate(batch)] == [A, B]
    desk.arrive(C, messages.TruncateRequest(*COMMON, 9, False))
    (marking,), _ = desk.flush()
    assert isinstance(marking, StorageCall)
    effects, (write,) = desk.tell(marking, success())
    assert effects == []
    assert isinstance(write, CasMetadata)
    desk.session.cas_done(6)
    (append,), notes = desk.flush()
    assert isinstance(append, StorageAppend)
    assert (append.replica, append.batch, notes) == (C, batch, [ReplicaJoined(C, 9)])
    for token in range(3):
        desk.session.read_records(0, token, 4, 1)
    reads, _ = desk.flush()
    assert {effect.replica for effect in reads if isinstance(effect, StorageCall)} == {A, B, C}, "it is read from, too"


@pytest.mark.parametrize("how", ["refused", "damaged", "no answer"])
def test_a_late_replica_is_copied_to_from_another_source_where_the_first_cannot_give_out_a_record(how: str) -> None:
    desk = Desk()
    desk.open(A, B)
    (question,), _ = desk.tell(desk.up(C), messages.LastSessionInfoResponse(*COMMON, SessionInfo(7, 4, 4)))
    assert isinstance(question, StorageCall)
    (marking,), _ = desk.tell(question, messages.MaxTransactionIdResponse(*COMMON, 7))
    assert isinstance(marking, StorageCall)
    (read,), _ = desk.tell(marking, success())
    assert isinstance(read, StorageCall)
    assert (read.replica, read.message) == (A, messages.RecordListRequest(*COMMON, 8, 2))
    if how == "refused":
        effects, notes = desk.tell(read, refusal("damaged", FailureCode.CORRUPT, 8))
    elif how == "damaged":
        damaged = attrs.evolve(record_at(8), checksum=1)
        effects, notes = desk.tell(read, messages.RecordListResponse(*COMMON, (damaged,)))
    else:
        desk.session.failed(desk.now, StorageFailed(read.ticket, "too late"))
        effects, notes = desk.flush()
    (again,) = effects
    assert isinstance(again, StorageCall)
    assert (again.replica, again.message) == (B, read.message)
    assert [type(note) for note in notes] == [SourcePutAside]
    records = record_at(8), record_at(9)
    (write,), _ = desk.tell(again, messages.RecordListResponse(*COMMON, records))
    assert isinstance(write, StorageCall)
    assert (write.replica, write.message) == (C, messages.AppendRequest(*COMMON, records, False))


@pytest.mark.parametrize("how", ["refused", "damaged", "no answer"])
def test_a_replica_that_nobody_needs_and_that_cannot_read_its_own_record_holds_up_nobody(how: str) -> None:
    """A session that the states do not know marked C at 4 and appended to it alone. It is compared, or could be."""
    desk = Desk(metadata=states((A, 6, UNRESOLVED), (B, 6, UNRESOLVED), (C, 4, -1)))
    for replica, info, end in ((C, (7, 4, 4), 12), (A, (6, 4, 4), 9), (B, (6, 4, 4), 9)):
        (question,), _ = desk.tell(desk.up(replica), messages.LastSessionInfoResponse(*COMMON, SessionInfo(*info)))
        assert isinstance(question, StorageCall)
        desk.session.answered(desk.now, StorageAnswer(question.ticket, messages.MaxTransactionIdResponse(*COMMON, end)))
    effects, _ = desk.flush()
    calls = [effect for effect in effects if isinstance(effect, StorageCall)]
    (read,) = [call for call in calls if call.replica == C]
    assert read.message == messages.RecordListRequest(*COMMON, 9, 1)
    if how == "refused":
        effects, notes = desk.tell(read, refusal("damaged", FailureCode.CORRUPT, 9))
    elif how == "damaged":
        damaged = attrs.evolve(record_at(9), checksum=1)
        effects, notes = desk.tell(read, messages.RecordListResponse(*COMMON, (damaged,)))
    else:
        desk.session.failed(desk.now, StorageFailed(read.ticket, "too late"))
        effects, notes = desk.flush()
    assert notes == []
    assert [effect.message for effect in effects if isinstance(effect, StorageCall)] == [
        messages.TruncateRequest(*COMMON, 4, False)
    ]
    for call in calls:
        if call is not read:
            (marking,), _ = desk.tell(call, messages.MaxTransactionIdResponse(*COMMON, 4))
            assert isinstance(marking, StorageCall)
            _, notes = desk.tell(marking, success())
    (write,) = notes
    assert isinstance(write, CasMetadata)
    desk.session.cas_done(5)
    assert SessionOpened(4, 2, (A, B)) in desk.flush()[1]


# ---- the open session ------------------------------------------------------------------------------


def test_every_answer_to_an_append_is_a_vote_for_the_oldest_in_flight() -> None:
    desk = Desk()
    desk.open(A, B)
    first, second = Batch(10, 2, b"12"), Batch(12, 1, b"3")
    to_a, to_b, *_ = sorted(desk.replicate(first, second), key=lambda append: append.batch.first)
    assert list(desk.session.requests) == [Replication(A), Replication(A), Replication(B), Replication(B)]
    assert desk.tell(to_a, success()) == ([], [Voted(A, 11)])
    assert desk.tell(to_b, success()) == ([], [Voted(B, 11)])
    assert desk.tell(to_b, success()) == ([], [])  # nobody waits for a second answer


def test_a_vote_is_worth_a_step_if_it_commits_or_confirms_or_makes_room() -> None:
    desk = Desk()
    desk.open(A, B)
    session = desk.session

    def voted(append: StorageAppend) -> bool:
        return session.answered(desk.now, StorageAnswer(append.ticket, success()))

    to_a, to_b = desk.replicate(Batch(10, 2, b"12"))
    assert not voted(to_a)  # a quorum of two lacks another
    assert voted(to_b)
    assert desk.flush() == ([], [Voted(A, 11), Voted(B, 11)])  # the first was kept for the second
    session.committed(11)
    to_a, to_b = desk.replicate(Batch(12, 1, b"3"))
    session.committed(12)  # by other votes
    assert not voted(to_a)
    assert desk.flush() == ([], [])
    session.confirm()
    assert voted(to_b)
    assert desk.flush()[1] == [Voted(B, 12)]
    assert not session.answered(desk.now, StorageAnswer(to_a.ticket, success())), "nobody waits for a second answer"


def test_a_vote_that_makes_room_for_what_a_replica_lacks_is_worth_a_step() -> None:
    desk = Desk(SessionConfig(link_flight_bytes_max=1))
    desk.open(A, B)
    _, to_b = desk.replicate(Batch(10, 1, b"12"))
    desk.session.committed(10)
    assert desk.replicate(Batch(11, 1, b"12")) == []
    assert desk.session.answered(desk.now, StorageAnswer(to_b.ticket, success()))
    (append,), notes = desk.flush()
    assert isinstance(append, StorageAppend)
    assert (append.replica, append.batch.first, notes) == (B, 11, [Voted(B, 10)])


@pytest.mark.parametrize("how", ["refused", "unanswered", "disconnected"])
def test_the_first_loss_of_a_replica_ends_an_open_session(how: str) -> None:
    desk = Desk()
    desk.open(A, B)
    (append, _) = desk.replicate(Batch(10, 1, b""))
    desk.session.read_records(0, 77, 3, 1)
    (read,), _ = desk.flush()
    assert isinstance(read, StorageCall)
    if how == "refused":
        desk.session.answered(0, StorageAnswer(append.ticket, refusal("why")))
    elif how == "unanswered":
        desk.session.failed(0, StorageFailed(append.ticket, "why"))
    else:
        desk.session.link_down(0, LinkDown(A, "why"))
    failed = ReadFailed(77, f"transaction 3 cannot be read ({read.replica})", for_now=True)
    assert desk.flush() == ([], [failed, SessionEnded(f"replica {A} lost: why", True)])
    assert desk.alarms.next() is None
    assert list(desk.session.requests) == []


def test_a_replica_that_lags_behind_the_tail_is_copied_to_from_another_one() -> None:
    desk = Desk(SessionConfig(link_flight_bytes_max=1, tail_bytes_max=2, copy_count_max=2))
    desk.open(A, B)
    batches = [Batch(at, 1, b"12") for at in (10, 11, 12)]
    to_a, to_b = desk.replicate(batches[0])
    assert desk.tell(to_a, success()) == ([], [Voted(A, 10)])
    desk.session.committed(10)
    for batch in batches[1:]:
        (to_a,) = desk.replicate(batch)
        assert desk.tell(to_a, success()) == ([], [Voted(A, batch.last)])
        desk.session.committed(batch.last)
    desk.replicate(Batch(13, 1, b"12"))
    (read,), notes = desk.tell(to_b, success())
    assert isinstance(read, StorageCall)
    assert (read.replica, read.message, notes) == (A, messages.RecordListRequest(*COMMON, 11, 2), [Voted(B, 10)])
    assert desk.flush() == ([], []), "one read at a time"
    records = record_at(11), record_at(12)
    (copy,), _ = desk.tell(read, messages.RecordListResponse(*COMMON, records))
    assert isinstance(copy, StorageCall)
    assert (copy.replica, copy.message) == (B, messages.AppendRequest(*COMMON, records, False))
    (append,), notes = desk.tell(copy, success())
    assert isinstance(append, StorageAppend)
    assert (append.replica, append.batch.first, notes) == (B, 13, [Voted(B, 12)])


def read_for_a_replica_that_lags(desk: Desk) -> StorageCall:
    """B needs what the tail does not hold any more, from 11 on; A is asked for it."""
    desk.open(A, B)
    to_a, to_b = desk.replicate(Batch(10, 1, b"12"))
    for at in (11, 12):
        desk.tell(to_a, success())
        desk.session.committed(at - 1)
        (to_a,) = desk.replicate(Batch(at, 1, b"12"))
    desk.tell(to_a, success())
    desk.session.committed(12)
    desk.replicate(Batch(13, 1, b"12"))
    (read,), _ = desk.tell(to_b, success())
    assert isinstance(read, StorageCall)
    return read


def test_a_replica_that_lags_is_copied_to_although_a_source_once_had_nothing_for_it() -> None:
    desk = Desk(SessionConfig(link_flight_bytes_max=1, tail_bytes_max=2))
    read = read_for_a_replica_that_lags(desk)
    (again,), _ = desk.tell(read, messages.RecordListResponse(*COMMON, ()))
    assert isinstance(again, StorageCall)
    assert (again.replica, again.message) == (A, read.message)


def test_a_source_with_a_damaged_record_is_put_aside_and_asked_again_after_a_while() -> None:
    desk = Desk(SessionConfig(link_flight_bytes_max=1, tail_bytes_max=2))
    read = read_for_a_replica_that_lags(desk)
    damaged = attrs.evolve(record_at(11), checksum=1)
    why = "record 11 does not match its checksum"
    lag = ReplicaLags(B, f"transaction 11 cannot be read from {A}")
    # No other replica has it: both are reported, and nothing is asked until the alarm.
    assert desk.tell(read, messages.RecordListResponse(*COMMON, (damaged,))) == ([], [lag, SourcePutAside(A, 11, why)])
    assert desk.alarms.next() == 10_000
    desk.now = 10_000
    desk.ring()
    (again,), notes = desk.flush()
    assert isinstance(again, StorageCall)
    assert (again.replica, again.message, notes) == (A, read.message, [])


def test_no_alarm_of_a_session_outlives_it() -> None:
    # The next session of the partition has the same alarms: it would greet a replica that follows the log already.
    desk = Desk(SessionConfig(link_flight_bytes_max=1, tail_bytes_max=2))
    read = read_for_a_replica_that_lags(desk)
    damaged = attrs.evolve(record_at(11), checksum=1)
    desk.tell(read, messages.RecordListResponse(*COMMON, (damaged,)))
    desk.tell(desk.up(C), refusal("not available"))
    assert desk.alarms.next() == 1_000
    desk.session.close(0, "a new generation")
    assert desk.alarms.next() is None


def test_an_alarm_that_rings_in_the_step_that_ends_the_session_does_nothing() -> None:
    desk = Desk()
    desk.open(A, B)
    desk.session.close(0, "a new generation")
    desk.flush()
    for alarm in (AskSourcesAgain(B), GreetAgain(C)):
        desk.session.due(alarm)
    assert desk.flush() == ([], [])


def test_a_round_is_confirmed_by_votes_or_by_a_request_that_reads_nothing() -> None:
    desk = Desk()
    desk.open(A, B)
    assert desk.session.confirm() == 1
    effects, _ = desk.flush()
    asked = [effect for effect in effects if isinstance(effect, StorageCall)]
    assert [(call.replica, call.message) for call in asked] == [
        (A, messages.RecordHeaderRequest(*COMMON, -1)),
        (B, messages.RecordHeaderRequest(*COMMON, -1)),
    ]
    assert list(desk.session.requests) == [FenceCheck(A), FenceCheck(B)]
    desk.tell(asked[0], messages.RecordHeaderResponse(*COMMON, None))
    assert desk.session.confirmed == 0
    desk.tell(asked[1], messages.RecordHeaderResponse(*COMMON, None))
    assert desk.session.confirmed == 1


# ---- reads -------------------------------------------------------------------------------------------


def test_a_read_that_fails_is_tried_at_the_next_replica() -> None:
    desk = Desk()
    desk.open(A, B)
    desk.session.read_records(0, 5, 4, 2)
    first = desk.call(A, messages.RecordListRequest(*COMMON, 4, 2))
    (second,), notes = desk.tell(first, refusal("damaged"))
    assert isinstance(second, StorageCall)
    assert (second.replica, second.message, notes) == (B, first.message, [])
    records = record_at(4), record_at(5)
    assert desk.tell(second, messages.RecordListResponse(*COMMON, records)) == ([], [RecordsRead(5, records)])


def test_a_read_that_meets_a_later_session_ends_this_one_and_is_tried_in_the_next() -> None:
    """It was answered as damage once all replicas had refused it so."""
    desk = Desk()
    desk.open(A, B)
    desk.session.read_records(0, 5, 4, 2)
    read = desk.call(A, messages.RecordListRequest(*COMMON, 4, 2))
    effects, notes = desk.tell(read, refusal("session id has changed to 9"))
    assert effects == []
    assert notes == [
        SessionEnded(f"replica {A} lost: session id has changed to 9", True),
        ReadFailed(5, f"transaction 4 cannot be read ({A})", for_now=True),
    ]
    assert desk.session.state is SessionState.ENDED, "so that the partition asks for it again"


DAMAGED = refusal("damaged", FailureCode.CORRUPT, 4)
SWITCHED_OFF = refusal("read and write have been disabled", FailureCode.UNAVAILABLE)
WRONG = messages.RecordListResponse(*COMMON, (attrs.evolve(record_at(4), checksum=0),))


@pytest.mark.parametrize(
    ("answers", "for_now"),
    [
        ((SWITCHED_OFF, SWITCHED_OFF), True),
        ((DAMAGED, SWITCHED_OFF), True),
        ((SWITCHED_OFF, WRONG), True),
        ((DAMAGED, DAMAGED), False),
        ((DAMAGED, WRONG), False),
    ],
)
def test_a_read_fails_for_good_only_where_all_who_were_asked_have_a_damaged_record(
    answers: Sequence[messages.StorageMessage], for_now: bool
) -> None:
    """Clients were told of damage while an operator had switched the partition off."""
    desk = Desk()
    desk.open(A, B, codec=1)
    desk.session.read_records(0, 5, 4, 1)
    first = desk.call(A, messages.RecordListRequest(*COMMON, 4, 1))
    (second,), _ = desk.tell(first, answers[0])
    assert isinstance(second, StorageCall)
    failed = ReadFailed(5, f"transaction 4 cannot be read ({A}, {B})", for_now=for_now)
    assert desk.tell(second, answers[1]) == ([], [failed])


SE = "com.wepay.waltz.storage.exception.StorageException: "
UNREADABLE = refusal("java.io.IOException: Input/output error")


@pytest.mark.parametrize(
    ("words", "damaged"),
    [
        (UNREADABLE.message, True),
        ("java.lang.NegativeArraySizeException: -7", True),
        (f"{SE}transaction id mismatch", True),
        (f"{SE}end of file", True),
        (f"{SE}read and write for partition=3 have been disabled on storage node", False),
        ("java.lang.Exception: Partition:3 is not assigned.", False),
        ("failed without a reason", False),
    ],
)
def test_a_node_of_0_13_2_says_in_words_that_it_cannot_read_a_record(words: str, damaged: bool) -> None:
    assert Refusal.of(refusal(words), 0) == Refusal(words, damaged=damaged)
    assert Refusal.of(refusal(words, FailureCode.IO), 1) == Refusal(words)


@pytest.mark.parametrize("sound", [True, False])
def test_of_several_records_that_nodes_of_0_13_2_refuse_the_first_is_asked_for_alone(sound: bool) -> None:
    """They refuse all because of any: the first was called damaged, and those before the damaged one were refused."""
    desk = Desk()
    desk.open(A, B)
    desk.session.read_records(0, 5, 4, 3)
    call = desk.call(A, messages.RecordListRequest(*COMMON, 4, 3))
    asked = []
    for _ in range(3 - sound):
        (effect,), notes = desk.tell(call, UNREADABLE)
        assert isinstance(effect, StorageCall)
        assert notes == []
        asked.append((effect.replica, effect.message))
        call = effect
    alone = messages.RecordListRequest(*COMMON, 4, 1)
    assert asked == [(B, messages.RecordListRequest(*COMMON, 4, 3)), (A, alone), (B, alone)][: len(asked)]
    if sound:
        records = (record_at(4),)
        assert desk.tell(call, messages.RecordListResponse(*COMMON, records)) == ([], [RecordsRead(5, records)])
    else:
        failed = ReadFailed(5, f"transaction 4 cannot be read ({A}, {B})")
        assert desk.tell(call, UNREADABLE) == ([], [failed])


def test_what_stands_before_a_damaged_record_is_handed_over() -> None:
    desk = Desk()
    desk.open(A, B)
    desk.session.read_records(0, 5, 4, 2)
    first = desk.call(A, messages.RecordListRequest(*COMMON, 4, 2))
    records = record_at(4), attrs.evolve(record_at(5), checksum=0)
    assert desk.tell(first, messages.RecordListResponse(*COMMON, records)) == ([], [RecordsRead(5, records[:1])])


def test_headers_out_of_place_are_no_answer() -> None:
    desk = Desk()
    desk.open(A, B)
    desk.session.read_headers(0, 5, 4, 1)
    first = desk.call(A, messages.RecordHeaderListRequest(*COMMON, 4, 1))
    item = record_at(4)
    right = RecordHeader(4, item.req_id, 0)
    wrong = attrs.evolve(right, transaction_id=6)
    (second,), _ = desk.tell(first, messages.RecordHeaderListResponse(*COMMON, (wrong,)))
    assert isinstance(second, StorageCall)
    assert desk.tell(second, messages.RecordHeaderListResponse(*COMMON, (right,))) == (
        [],
        [HeadersRead(5, HeaderRun.of([right]))],
    )


def test_nobody_is_asked_for_what_nobody_holds_or_before_the_session_is_open() -> None:
    desk = Desk()
    desk.session.read_records(0, 5, 4, 2)
    nobody = "no replica that holds it is connected"
    assert desk.flush() == ([], [ReadFailed(5, f"transaction 4 cannot be read ({nobody})", for_now=True, whole=True)])
    desk.open(A, B)
    desk.session.read_records(0, 6, 10, 2)
    failed = ReadFailed(6, f"transaction 10 cannot be read ({nobody})", for_now=True, whole=True)
    assert desk.flush() == ([], [failed])


# ---- the log start, news, and what comes back ---------------------------------------------------------


def test_the_log_start_stays_while_a_replica_is_away_or_is_one_of_0_13_2() -> None:
    desk = Desk()
    ready, why = desk.session.log_start.problem(5) or (None, "")
    assert (ready, why[:24]) == (LogStartProblem.NOT_READY, "the partition is opening")
    desk.open(A, B)
    assert desk.session.log_start.problem(5) == (
        LogStartProblem.NOT_POSSIBLE,
        f"replica {A} is on a node of 0.13.2, which would wait for what was given up",
    )


def test_the_log_start_is_raised_once_a_quorum_has_it_on_disk() -> None:
    desk = Desk()
    marks: list[StorageCall] = []
    for replica in (A, B, C):
        report = messages.LastSessionInfoResponse(*COMMON, SessionInfo(7, 4, 4), 7)
        (start,), _ = desk.tell(desk.up(replica, 1), report)
        assert isinstance(start, StorageCall)
        (end,), _ = desk.tell(start, messages.LogStartResponse(*COMMON, 0, 9))
        assert isinstance(end, StorageCall)
        effects, _ = desk.tell(end, messages.MaxTransactionIdResponse(*COMMON, 9))
        marks += [effect for effect in effects if isinstance(effect, StorageCall)]
    for mark in marks:
        desk.tell(mark, success())
    for version in (5, 6):  # with a quorum of them first, then with the third
        desk.session.cas_done(version)
        desk.flush()
    assert desk.session.log_start.problem(11) == (
        LogStartProblem.NOT_READY,
        "it can be raised up to 10, where the present store session began",
    )
    desk.session.log_start.raise_to(5)
    effects, _ = desk.flush()
    calls = [effect for effect in effects if isinstance(effect, StorageCall)]
    assert [(call.replica, call.message) for call in calls] == [
        (replica, messages.SetLogStartRequest(*COMMON, 5)) for replica in (A, B, C)
    ]
    assert desk.tell(calls[0], success()) == ([], [])
    assert desk.tell(calls[1], success()) == ([], [LogStartRaised(5)])
    assert desk.session.log_start.present == 5
    assert desk.session.log_start.moving
    assert desk.tell(calls[2], success()) == ([], [])
    desk.session.log_start.raise_to(7)  # those that have 5 on disk do not count for 7
    effects, _ = desk.flush()
    calls = [effect for effect in effects if isinstance(effect, StorageCall)]
    assert desk.tell(calls[0], success()) == ([], [])
    assert desk.tell(calls[1], success()) == ([], [LogStartRaised(7)])


def beginning_of_a_lagging_replica(figures: tuple[Statistic, ...]) -> tuple[Desk, StorageCall]:
    """C ends at 9, where the logs of the others begin at 20; its node has answered what it can do."""
    desk, question = Desk(), None
    for replica, start, end in ((A, 20, 25), (B, 20, 25), (C, 0, 9)):
        greeting = desk.up(replica, 1)
        report = messages.LastSessionInfoResponse(*COMMON, SessionInfo(7, 4, 4))
        (where,), _ = desk.tell(greeting, report)
        assert isinstance(where, StorageCall)
        (ask,), _ = desk.tell(where, messages.LogStartResponse(*COMMON, start, end))
        assert isinstance(ask, StorageCall)
        effects, _ = desk.tell(ask, messages.MaxTransactionIdResponse(*COMMON, end))
        calls = [call for call in effects if isinstance(call, StorageCall)]
        question = next((call for call in calls if isinstance(call.message, messages.StatisticsRequest)), None)
    assert question is not None
    assert (question.replica, question.message.partition_id) == (C, -1)
    (begin,), _ = desk.tell(question, messages.StatisticsResponse(SESSION, 0, -1, 0, figures))
    assert isinstance(begin, StorageCall)
    return desk, begin


@pytest.mark.parametrize(
    ("figures", "request_type"),
    [
        ((Statistic(messages.CAPABILITIES, -1, 1.0),), messages.BeginAnewRequest),
        ((Statistic(messages.CAPABILITIES, -1, 255.0),), messages.BeginAnewRequest),
        ((), messages.SetLogStartRequest),
        ((Statistic(messages.CAPABILITIES, -1, 0.0),), messages.SetLogStartRequest),
    ],
)
def test_a_replica_that_ends_before_the_others_begin_is_asked_in_the_way_its_node_understands(
    figures: tuple[Statistic, ...], request_type: type[messages.BeginAnewRequest | messages.SetLogStartRequest]
) -> None:
    desk, begin = beginning_of_a_lagging_replica(figures)
    assert (begin.replica, begin.message) == (C, request_type(*COMMON, 20))
    (copied,), _ = desk.tell(begin, success())
    assert isinstance(copied, StorageCall)
    assert isinstance(copied.message, messages.RecordListRequest)
    assert copied.message.transaction_id == 20


def test_news_of_damage_is_passed_on_for_this_session_only() -> None:
    desk = Desk()
    news = messages.SuspectReport(*COMMON, Condition.SUSPECT, (), "bad")
    desk.session.news(StorageNews(A, news))
    desk.session.news(StorageNews("elsewhere:1", news))
    desk.session.news(StorageNews(A, attrs.evolve(news, session_id=SESSION - 1)))
    assert desk.flush() == ([], [ReplicaSuspect(A)])


def test_a_replica_that_was_lost_and_is_back_is_worth_a_new_session() -> None:
    desk = Desk()
    desk.open(A, B)
    desk.arrive(C, messages.TruncateRequest(*COMMON, 9, False))
    desk.session.link_down(0, LinkDown(C, "reset"))
    assert desk.flush() == ([], [])
    assert desk.alarms.next() is None  # it may never come back
    desk.now = 500
    desk.session.link_up(desk.now, LinkUp(C))
    assert desk.flush() == ([], [])
    assert desk.alarms.next() == 10_500
    desk.now = 10_500
    desk.ring()
    assert desk.flush() == ([], [SessionEnded(f"{C} can be taken in again", True)])


def test_a_replica_that_was_lost_before_the_session_opened_is_worth_a_new_one_too() -> None:
    desk = Desk()
    desk.up(C)
    desk.session.link_down(0, LinkDown(C, "reset"))
    desk.open(A, B)
    assert desk.alarms.next() is None
    desk.session.link_up(0, LinkUp(C))
    desk.flush()
    assert desk.alarms.next() == 10_000


def test_a_replica_that_was_back_before_the_session_opened_is_worth_a_new_one_too() -> None:
    desk = Desk()
    desk.up(C)
    desk.session.link_down(0, LinkDown(C, "reset"))
    desk.session.link_up(0, LinkUp(C))
    desk.flush()
    waited_for = desk.alarms.next()
    assert waited_for != 10_000  # the recovery's own: until it is over, another session would begin where this one did
    desk.open(A, B)
    assert desk.alarms.next() == 10_000


def test_a_replica_that_failed_and_stayed_connected_is_worth_a_new_session_later() -> None:
    desk = Desk()
    desk.open(A, B)
    (cut,), _ = desk.tell(desk.up(C), messages.LastSessionInfoResponse(*COMMON, SessionInfo(7, 4, 4)))
    assert isinstance(cut, StorageCall)
    desk.session.failed(0, StorageFailed(cut.ticket, "too late"))
    assert desk.flush() == ([], [])
    assert desk.alarms.next() == 60_000


def test_a_replica_that_was_back_and_is_gone_again_is_worth_none() -> None:
    desk = Desk()
    desk.open(A, B)
    desk.arrive(C, messages.TruncateRequest(*COMMON, 9, False))
    desk.session.link_down(0, LinkDown(C, "reset"))
    desk.session.link_up(500, LinkUp(C))
    desk.session.link_down(600, LinkDown(C, "reset"))
    assert desk.flush() == ([], [])
    assert desk.alarms.next() is None


def test_an_idle_session_waits_for_nothing() -> None:
    desk = Desk()
    desk.open(A, B)
    assert desk.alarms.next() is None
    assert list(desk.session.requests) == []


def test_a_read_is_owed_by_who_was_asked_last() -> None:
    read = PartitionRead(1, 4, 1, with_data=True, tried=(A, B))
    assert described(read) == f"storage node {B}: records are read"


def test_a_session_that_is_closed_ends_once_and_answers_its_reads() -> None:
    desk = Desk()
    desk.open(A, B)
    desk.session.read_records(0, 5, 4, 2)
    read = desk.call(A, messages.RecordListRequest(*COMMON, 4, 2))
    desk.session.close(0, "a new generation")
    failed = ReadFailed(5, f"transaction 4 cannot be read ({A})", for_now=True)
    assert desk.flush() == ([], [failed, SessionEnded("a new generation", True)])
    assert (desk.session.state, desk.alarms.next()) == (SessionState.ENDED, None)
    desk.session.close(0, "again")
    assert desk.tell(read, messages.RecordListResponse(*COMMON, (record_at(4),))) == ([], [])

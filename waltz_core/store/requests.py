"""What a store session asks of its replicas, and the record that stands beside each question.

A record says what the answer is for: the session keeps it in a table under the ticket of the request and
dispatches the answer by `match`. No failure is handled here: most cost the replica its place in the session,
which is for the session to decide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from waltz_core.base.contract import Tickets
from waltz_core.base.log import Record
from waltz_core.base.outbox import Emits
from waltz_core.base.pending import Pending
from waltz_core.base.record import record
from waltz_core.store import recovery_events as rec
from waltz_core.store.calls import LinkWanted, StorageAppend, StorageCall, StorageEffect, StorageMessage
from waltz_core.store.replica_link import Batch, ReplicaLink
from waltz_core.wire import storage_messages as messages
from waltz_core.wire.shared import FailureCode

_NO_ID = -1  # no log holds it

# Java: records per step of a copy. A node of 0.13.2 puts all that it is asked for into one answer.
UNBOUNDED_COUNT_MAX = 20

# The texts of 0.13.2 (codec 0 has no codes) that matter to us: of another session, and of a record that it cannot read,
# or does not find where it should be.
_FENCED_TEXT = re.compile(r"session id has changed to (-?\d+)")
_DAMAGED_TEXT = re.compile(
    r"java\.(io\.IOException|lang\.NegativeArraySizeException): |.*: (transaction id mismatch|end of file)$"
)


@record
class Refusal:
    """Why a request was not done, or got no answer."""

    reason: str
    fence: int | None = None  # the other session that the replica has answered since
    damaged: bool = False  # what was asked for cannot be read there, or does not match its checksum

    @classmethod
    def of(cls, answer: messages.FailureResponse, codec: int) -> Refusal:
        """As the codec of the connection says it: by a code, or in the words of 0.13.2."""
        reason = answer.message or "failed without a reason"
        if codec >= 1:
            fence = answer.detail if answer.code == FailureCode.FENCED else None
            return cls(reason, fence, damaged=answer.code == FailureCode.CORRUPT)
        words = _FENCED_TEXT.search(reason)
        fence = None if words is None else int(words[1])
        return cls(reason, fence, damaged=_DAMAGED_TEXT.match(reason) is not None)


# ---- what answers are for ----------------------------------------------------------------------


@record
class Greeting:
    """LastSessionInfo: it fences older sessions there, and says what the replica remembers of the last."""

    replica: str


@record
class LogStartQuestion:
    """Where the log of a replica begins, the last thing to know of one that arrives with this `report`."""

    replica: str
    report: messages.LastSessionInfoResponse


@record
class EndQuestion:
    """The highest id of a replica, asked for recovery or answered by a truncation."""

    replica: str


@record
class Marking:
    """Recovery's low-water mark."""

    replica: str


@record
class BeginningQuestion:
    """Recovery wants a replica to begin at `log_start`: what its node understands, older ones of ours do not say."""

    replica: str
    log_start: int


@record
class NewBeginning:
    """Recovery lets a replica that ends before `log_start` begin there."""

    replica: str
    log_start: int


@record
class StartRaise:
    """The log start is raised while the session is open."""

    replica: str


@record
class RecoveryRead:
    """Records that recovery copies or compares; `source == target` for the own record in a comparison."""

    source: str
    target: str
    first: int


@record
class RecoveryWrite:
    """Records that recovery copies."""

    target: str
    count: int


@record
class CatchUpRead:
    """Records of `source` for a replica that follows the log and needs what the tail does not hold any more."""

    source: str
    target: str
    first: int


@record
class Replication:
    """An append; its answer is a vote."""

    replica: str


@record
class FenceCheck:
    """A request that reads nothing: its answer says that no later session has been there."""

    replica: str


@record
class PartitionRead:
    """A read for the partition. One that fails is tried at the next replica."""

    token: int
    first: int
    count: int
    with_data: bool
    tried: tuple[str, ...] = ()  # the last one is asked now
    damaged: int = 0  # so many of them have a damaged record
    asked_at: int = 0


Awaited: TypeAlias = (
    Greeting
    | LogStartQuestion
    | EndQuestion
    | Marking
    | BeginningQuestion
    | NewBeginning
    | StartRaise
    | RecoveryRead
    | RecoveryWrite
    | CatchUpRead
    | Replication
    | FenceCheck
    | PartitionRead
)

_IN_WORDS: dict[type[Awaited], str] = {
    Greeting: "its greeting",
    LogStartQuestion: "where its log begins",
    EndQuestion: "where its log ends",
    Marking: "a low-water mark is set",
    BeginningQuestion: "what it is able to do",
    NewBeginning: "its log begins anew",
    StartRaise: "its log start is raised",
    RecoveryRead: "records for recovery",
    RecoveryWrite: "records of recovery are written",
    CatchUpRead: "records for a replica that lags",
    Replication: "an append is durable",
    FenceCheck: "no later session has been there",
    PartitionRead: "records are read",
}


def replica_of(what: Awaited) -> str:
    """The replica that a request went to."""
    match what:
        case PartitionRead(tried=tried):
            return tried[-1]
        case RecoveryRead(source=source) | CatchUpRead(source=source):
            return source
        case RecoveryWrite(target=target):
            return target
        case _:
            return what.replica


def described(what: Awaited) -> str:
    """For people: who owes an answer, and what for."""
    return f"storage node {replica_of(what)}: {_IN_WORDS[type(what)]}"


RecoveryRequest: TypeAlias = (
    rec.AskMax | rec.Truncate | rec.SetLowWaterMark | rec.BeginAnew | rec.ReadRecords | rec.WriteRecords
)


class Requests:
    """Sends the requests of one store session and remembers what their answers are for."""

    __slots__ = ("_awaited", "_links", "_out", "_partition_id", "session_id", "take")

    def __init__(
        self,
        partition_id: int,
        session_id: int,
        links: Mapping[str, ReplicaLink],
        tickets: Tickets,
        out: Emits[StorageEffect],
    ) -> None:
        self.session_id = session_id
        self._links = links
        self._partition_id = partition_id
        self._awaited: Pending[Awaited] = Pending(tickets)
        # What an answer is for, None if the session does not wait for it: the table's own method.
        self.take: Callable[[int], Awaited | None] = self._awaited.take
        self._out = out

    def __iter__(self) -> Iterator[Awaited]:
        """What is awaited, oldest first."""
        return iter(self._awaited)

    def forget(self) -> list[Awaited]:
        """The session is over: no answer matters any more."""
        return self._awaited.forget(lambda what: True)

    # ---- connections and greeting --------------------------------------------------------------

    def connect(self, replica: str) -> None:
        """Ask for a connection."""
        self._out.put(LinkWanted(replica))

    def greet(self, replica: str) -> None:
        """Fence older sessions and ask what the replica remembers."""
        request = messages.LastSessionInfoRequest(self.session_id, 0, self._partition_id, False)
        self._call(replica, Greeting(replica), request)

    def ask_log_start(self, replica: str, report: messages.LastSessionInfoResponse) -> None:
        """Ask where the log begins."""
        request = messages.LogStartRequest(self.session_id, 0, self._partition_id)
        self._call(replica, LogStartQuestion(replica, report), request)

    # ---- recovery --------------------------------------------------------------------------------

    def for_recovery(self, effect: RecoveryRequest) -> None:
        """What recovery asks of a replica."""
        session, partition = self.session_id, self._partition_id
        match effect:
            case rec.AskMax(replica):
                end = messages.MaxTransactionIdRequest(session, 0, partition, False)
                self._call(replica, EndQuestion(replica), end)
            case rec.Truncate(replica, transaction_id):
                cut = messages.TruncateRequest(session, 0, partition, transaction_id, False)
                self._call(replica, EndQuestion(replica), cut)
            case rec.SetLowWaterMark(replica, mark):
                marking = messages.SetLowWaterMarkRequest(session, 0, partition, mark, False)
                self._call(replica, Marking(replica), marking)
            case rec.BeginAnew(replica, start):
                question = messages.StatisticsRequest(session, 0, -1, (messages.CAPABILITIES,))
                self._call(replica, BeginningQuestion(replica, start), question)
            case rec.ReadRecords(source, target, first, count):
                self.read_records(source, RecoveryRead(source, target, first), first, count)
            case rec.WriteRecords(target, records):
                self.append_records(RecoveryWrite(target, len(records)), target, records)

    def begin_anew(self, asked: BeginningQuestion, answer: StorageMessage) -> None:
        """Let a replica give up all of its log; an older node of ours takes a raise behind its end for that."""
        assert isinstance(answer, messages.StatisticsResponse)
        known = messages.StorageCapability.BEGIN_ANEW in messages.capabilities_of(answer)
        kind = messages.BeginAnewRequest if known else messages.SetLogStartRequest
        request = kind(self.session_id, 0, self._partition_id, asked.log_start)
        self._call(asked.replica, NewBeginning(asked.replica, asked.log_start), request)

    # ---- the open session --------------------------------------------------------------------------

    def raise_log_start(self, replica: str, start: int) -> None:
        """Let a replica give up what is below."""
        request = messages.SetLogStartRequest(self.session_id, 0, self._partition_id, start)
        self._call(replica, StartRaise(replica), request)

    def check_fence(self, replica: str) -> None:
        """Make a replica check our session id: by a request that reads nothing and that 0.13.2 knows, too.

        Ours answer it beside the writes, 0.13.2 after those that came before.
        """
        nothing = messages.RecordHeaderRequest(self.session_id, 0, self._partition_id, _NO_ID)
        self._call(replica, FenceCheck(replica), nothing)

    def replicate(self, what: Replication, batch: Batch) -> None:
        """Send a batch that is encoded already."""
        ticket = self._awaited.ask(what)
        self._out.put(StorageAppend(what.replica, ticket, self.session_id, self._partition_id, batch))

    def append_records(self, what: Replication | RecoveryWrite, replica: str, records: Sequence[Record]) -> None:
        """Send records that were copied."""
        self._call(replica, what, messages.AppendRequest(self.session_id, 0, self._partition_id, records, False))

    def read_records(
        self, replica: str, what: RecoveryRead | CatchUpRead | PartitionRead, first: int, count: int
    ) -> None:
        """Read whole records; fewer may come."""
        if self._links[replica].codec < 1:
            count = min(count, UNBOUNDED_COUNT_MAX)
        self._call(replica, what, messages.RecordListRequest(self.session_id, 0, self._partition_id, first, count))

    def read_headers(self, replica: str, what: PartitionRead) -> None:
        """Read records without their data."""
        self._call(
            replica,
            what,
            messages.RecordHeaderListRequest(self.session_id, 0, self._partition_id, what.first, what.count),
        )

    def _call(self, replica: str, what: Awaited, message: StorageMessage) -> None:
        self._out.put(StorageCall(replica, self._awaited.ask(what), message))

"""What an application asks of the client machine (events) and what it reports back (effects).

A token is any value the caller chooses; it comes back untouched, so that an outcome finds its
waiter without a look-up.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeAlias

from waltz_core.base.edge import ConnEffect, Report, ZkRequest
from waltz_core.base.ids import Endpoint
from waltz_core.base.log import Record
from waltz_core.base.record import record
from waltz_core.client.columns import NO_LOCKS, Columns
from waltz_core.wire.client_messages import AppendRefused, ErrorResponse, FeedData, FlushResponse, LockFailure

# ---- calls: events from the application ----------------------------------------------------------


@record
class Open:
    """Use a partition: mount it, and deliver its feed from `mark` + 1 if `deliver`.

    `mark` None starts at the tail: only what is committed from now on. A partition that is open
    already stays open; `deliver` then starts (or moves) the delivery.
    """

    partition: int
    mark: int | None
    deliver: bool
    feed: int = 0  # with `deliver`: a number for this feed, which comes back with what is said to it


@record
class StopFeed:
    """Stop delivering. The partition is given up if nobody has appended to it."""

    partition: int


@record
class Submit:
    """Append one transaction; the appends of a partition leave in the order of their submits."""

    partition: int
    token: object
    client_mark: int | None  # what the decision was based on; None: as far as the feed was seen
    write_locks: tuple[int, ...]  # their hashes, `waltz_core.base.lock.Lock.wire()`
    read_locks: tuple[int, ...]
    append_locks: tuple[int, ...]
    header: int  # 32 bits, signed
    data: bytes
    checksum: int  # of the data: `waltz_core.wire.primitives.checksum_of`
    names: bytes = b""  # of the locks, packed as `waltz_core.wire.lock_names` does; empty: they are not sent


@record
class SubmitMany:
    """Append many transactions, in order, as if each were submitted for itself."""

    partition: int
    tokens: Sequence[object]  # of each
    client_mark: int | None  # of those that have none; None: as far as the feed was seen
    columns: Columns

    def submits(self) -> list[Submit]:
        """One for each."""
        columns, submits = self.columns, []
        for row, token in enumerate(self.tokens):
            locks = columns.locks.get(row, NO_LOCKS)
            mark = self.client_mark if locks.client_mark is None else locks.client_mark
            submits.append(
                Submit(
                    self.partition,
                    token,
                    mark,
                    locks.write,
                    locks.read,
                    locks.append,
                    columns.headers[row],
                    columns.payloads[row],
                    columns.checksums[row],
                    locks.names,
                )
            )
        return submits


@record
class Consumed:
    """The application is done with the delivered transactions up to `mark`: there is room again."""

    partition: int
    mark: int


@record
class Flush:
    """Answer `Flushed` when every earlier submit of the partition has an outcome."""

    partition: int
    token: object


@record
class ReadMark:
    """Ask for the committed mark; `MarkRead` answers with one that is at least as new as this call."""

    partition: int
    token: object


@record
class Fetch:
    """Read payloads; answered by `Fetched`, in any order. Asking twice costs nothing."""

    partition: int
    transaction_ids: Sequence[int]  # a range costs the least


@record
class Forget:
    """Nobody waits for these payloads any longer."""

    partition: int
    transaction_ids: Sequence[int]


@record
class ForgetMark:
    """Nobody waits for the answer to a `ReadMark` any longer."""

    partition: int
    token: object


@record
class ReadRecords:
    """Read whole records; `RecordsCarried` answers, perhaps with fewer. They are committed, so it waits for them."""

    partition: int
    token: object
    first: int
    count: int


@record
class ForgetRecords:
    """Nobody waits for the answer to a `ReadRecords` any longer."""

    partition: int
    token: object


@record
class CloseClient:
    """Give everything up: unresolved appends end with the reason CLOSED."""


Call: TypeAlias = (
    Open
    | StopFeed
    | Submit
    | SubmitMany
    | Consumed
    | Flush
    | ReadMark
    | Fetch
    | Forget
    | ForgetMark
    | ReadRecords
    | ForgetRecords
    | CloseClient
)
"""Everything that an application may ask."""

# ---- what the application hears -----------------------------------------------------------------


class Reason(enum.Enum):
    """Why an append did not commit, as far as it is known."""

    LOCK = "a lock was taken"  # refused by the server; the blocking transaction has been seen
    OVERTAKEN = "a later append of this client is in the log"
    FLUSHED = "the server answered a flush behind it"
    REFUSED = "the server refused it"  # for good: its size, our role, or a protocol version that cannot carry it
    NOT_NOW = "the server cannot take it now"  # another one may, or the same one a moment later
    OTHER = "the server refused it for a reason of its own"  # such as a mark beyond the end of its log
    CLIENT_AHEAD = "the client is ahead of the log"  # outcome unknown if it was sent
    BEFORE_START = "the log does not go back to where the client is"  # likewise
    CLOSED = "the client was closed"  # outcome unknown

    @property
    def certain(self) -> bool:
        """The append is not in the log and never will be."""
        return self not in (Reason.CLIENT_AHEAD, Reason.BEFORE_START, Reason.CLOSED)


@record
class Joined:
    """The cluster answered: this client has an id."""

    cluster: str
    client_id: int
    partition_count: int


@record
class ClusterLost:
    """This client cannot work with what the cluster says; final."""

    reason: str


@record
class Deliver:
    """Transactions of the feed: dense, in order, following what was delivered before."""

    partition: int
    run: list[FeedData]
    feed: int = 0  # the number of the `Open` that it answers: another feed has another place in the log


@record
class Committed:
    """(token, transaction id) of appends seen in the feed, in the order of the log."""

    partition: int
    outcomes: list[tuple[object, int]]


@record
class Failed:
    """An append that did not commit; `reason.certain` tells whether that is proved."""

    partition: int
    token: object
    reason: Reason
    blocking_id: int = -1  # with LOCK: nothing above it is to blame
    text: str = ""  # with REFUSED, NOT_NOW and OTHER: what the server said
    refusal: AppendRefused | None = None  # with LOCK, from a server that explains itself


@record
class Flushed:
    """Every append before the flush has an outcome."""

    partition: int
    token: object


@record
class MarkRead:
    """Answer to one or more `ReadMark`: the committed mark of the server, -1 when the log is empty."""

    partition: int
    mark: int
    tokens: tuple[object, ...]
    error: ErrorResponse | None = None  # the server refuses to tell it; `mark` means nothing


@record
class Fetched:
    """Payloads that arrived: the id of the first of some, and theirs and those of the ids behind it."""

    partition: int
    payloads: list[tuple[int, Sequence[bytes]]]


@record
class Unfetchable:
    """A payload that was asked for, and that nobody can give out any more: the storage nodes gave it up."""

    partition: int
    transaction_id: int
    text: str  # what the server says of it


class Phase(enum.Enum):
    """Where a partition stands."""

    CLOSED = "not open"
    TAIL = "asking for the committed mark"
    WAITING = "no connection to its server"
    MOUNTING = "mounting"
    NOT_READY = "the server is not ready"
    MOUNTED = "mounted"
    CLIENT_AHEAD = "the client is ahead of the log"
    BEFORE_START = "the log does not go back to where the client is"


@record
class StatusChanged:
    """A partition went to another phase."""

    partition: int
    phase: Phase
    text: str = ""  # what the server says of it
    feed: int = 0  # the number of the feed that was opened last: a reason to end is not one for the next feed


@record
class OwedRead:
    """A read that a server has been asked for over the connection that stands, and has not answered."""

    partition: int
    server: Endpoint
    what: str  # "payloads" or "records"
    first_id: int
    count: int
    since_ms: int  # how long ago it was asked for
    heard_ms: int  # how long ago anything came over that connection


@record
class PartitionStatus:
    """A snapshot of one partition."""

    partition: int
    phase: Phase
    since_ms: int  # how long it has been mounted, or has not been
    server: Endpoint | None
    generation: int
    seen_mark: int  # every transaction up to here has been received and judged
    delivered_mark: int
    in_flight: int  # appends sent and not judged
    queued: int  # appends not sent yet
    owed_ms: int  # for how long its server has owed the read that it owes longest; 0 = none


@record
class Carried:
    """An answer to what a proxy has sent for others, in order with the feed."""

    partition: int
    message: LockFailure | AppendRefused | FlushResponse | ErrorResponse


@record
class RecordsCarried:
    """Records that were asked for, sound and consecutive; None: the server cannot read them."""

    partition: int
    token: object
    records: Sequence[Record] | None
    log_start: int
    error: ErrorResponse | None = None  # why not; None: its codec has no ranges


@record
class GenerationRaised:
    """The partition of a proxy lives under another generation."""

    partition: int
    generation: int


ForApplication: TypeAlias = (
    Joined
    | ClusterLost
    | Deliver
    | Committed
    | Failed
    | Flushed
    | MarkRead
    | Fetched
    | Unfetchable
    | StatusChanged
    | Carried
    | RecordsCarried
    | GenerationRaised
)

Effect: TypeAlias = ConnEffect | ZkRequest | Report | ForApplication
"""Everything the client machine emits."""

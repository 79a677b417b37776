"""What a store session tells the partition that owns it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeAlias

from waltz_core.base.log import Record
from waltz_core.base.record import record
from waltz_core.store.recovery_events import CasMetadata
from waltz_core.wire.headers import HeaderRun


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
    headers: HeaderRun


@record
class RecordsRead:
    """Answer to `read_records`, checksums verified."""

    token: int
    records: Sequence[Record]


@record
class ReadFailed:
    """No replica could answer a read."""

    token: int
    reason: str
    for_now: bool = False  # what could answer it is away, and may be back
    whole: bool = False  # so is what could answer for the records behind it


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
    | CasMetadata
)

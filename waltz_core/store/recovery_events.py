"""What recovery hears and what it asks for: events, effects, and the phases of a replica."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from waltz_core.base.record import record
from waltz_core.zookeeper.znodes import PartitionMetadata

if TYPE_CHECKING:
    from waltz_core.base.log import Record, SessionInfo

# ---- events ------------------------------------------------------------------------------------


@record
class ReplicaUp:
    """A replica answered LastSessionInfo: older sessions are fenced there. Once per session and replica."""

    replica: str
    info: SessionInfo
    fence: int | None = None  # highest session it ever answered; only our storage nodes tell
    limbo: bool = False  # its log may end too early; only our storage nodes know
    log_start: int = 0  # the smallest id it keeps
    movable: bool = False  # its log can be made to begin at another id


@record
class ReplicaFenced:
    """A replica refused LastSessionInfo because it answered a later session."""

    replica: str
    fence: int


@record
class MaxKnown:
    """Answer to `AskMax` or `Truncate`: the highest transaction id of the replica, -1 when empty."""

    replica: str
    transaction_id: int


@record
class Marked:
    """Answer to `SetLowWaterMark`: session and mark are durable on the replica."""

    replica: str


@record
class BegunAnew:
    """Answer to `BeginAnew`: the replica begins there, empty."""

    replica: str
    log_start: int


@record
class LogStartRaised:
    """Replicas gave up what is below, while the session was open."""

    log_start: int


@record
class RecordsRead:
    """Answer to `ReadRecords`, checksums verified; may be shorter than asked, also empty."""

    source: str
    target: str
    records: Sequence[Record]


@record
class RecordsDenied:
    """`source` cannot give out record `first`, the one that `target` needs next; it serves everything else."""

    source: str
    target: str
    first: int


@record
class RecordsWritten:
    """Answer to `WriteRecords`: all of them are durable on the target."""

    target: str
    count: int


@record
class ReplicaFailed:
    """The link to a replica that was up ended, or it refused a call; it does not come back in this session."""

    replica: str
    reason: str


@record
class CasDone:
    """The write asked for with `CasMetadata` is in ZooKeeper, as this version of the znode."""

    version: int


@record
class CasLost:
    """The write was refused or its outcome is unknown: this is what ZooKeeper holds, freshly read."""

    metadata: PartitionMetadata
    version: int


@record
class Tick:
    """Nothing happened; a deadline may be due."""


Event: TypeAlias = (
    ReplicaUp
    | ReplicaFenced
    | MaxKnown
    | Marked
    | BegunAnew
    | LogStartRaised
    | RecordsRead
    | RecordsDenied
    | RecordsWritten
    | ReplicaFailed
    | CasDone
    | CasLost
    | Tick
)

# ---- effects -----------------------------------------------------------------------------------


@record
class AskMax:
    """Ask a replica for its highest transaction id; answered by `MaxKnown`."""

    replica: str


@record
class Truncate:
    """Let a replica drop everything above `transaction_id`; answered by `MaxKnown`."""

    replica: str
    transaction_id: int


@record
class SetLowWaterMark:
    """Let a replica persist this session and `mark`; answered by `Marked`."""

    replica: str
    mark: int


@record
class BeginAnew:
    """Let a replica that ends below `log_start` begin there, as the others do; answered by `BegunAnew`."""

    replica: str
    log_start: int


@record
class ReadRecords:
    """Read up to `count` records from `first` on at `source`; answered by `RecordsRead`.

    Nearly always to be copied to `target`; with `source == target` to compare a record.
    """

    source: str
    target: str
    first: int
    count: int


@record
class WriteRecords:
    """Append records to `target` under this session; answered by `RecordsWritten`."""

    target: str
    records: Sequence[Record]


@record
class CasMetadata:
    """Write the partition's metadata if its znode still has this version; one at a time."""

    metadata: PartitionMetadata
    expected_version: int


@record
class ReplicaReady:
    """A replica is level and named in ZooKeeper: it may be sent appends from `next_id` on, and vote."""

    replica: str
    next_id: int


@record
class ReplicaRefused:
    """A replica stays out of this session, without harm to the others; a person should look at it."""

    replica: str
    reason: str


@record
class CopyBlocked:
    """No source can give out what a replica needs next: it is asked for again from time to time."""

    replica: str
    reason: str


@record
class SessionRecovered:
    """A quorum is ready: the session may open. Once; after the `ReplicaReady` of that quorum."""

    high_water_mark: int


@record
class RecoveryFailed:
    """The session is over, open or not; the next one needs a new session id."""

    reason: str
    fence: int | None = None  # a replica answered this later session; metadata still below it was rewound


@record
class RecoveryStuck:
    """Recovery waits for something that may not come by itself; replaces an earlier reason."""

    reason: str


@record
class RecoveryUnstuck:
    """It goes on."""


Effect: TypeAlias = (
    AskMax
    | Truncate
    | SetLowWaterMark
    | BeginAnew
    | ReadRecords
    | WriteRecords
    | CasMetadata
    | ReplicaReady
    | ReplicaRefused
    | CopyBlocked
    | SessionRecovered
    | RecoveryFailed
    | RecoveryStuck
    | RecoveryUnstuck
)


class ReplicaPhase(enum.Enum):
    """Where a replica is; each but IDLE, HELD and LEVEL waits for exactly one answer of a replica."""

    OFFLINE = "offline"  # not heard of in this session
    HELD = "held"  # waits for an operator, untouched
    ARRIVING = "arriving"  # cut, or asked for its highest id
    IDLE = "awaiting_decision"  # nothing to do at present
    COMPARING = "comparing"  # its last kept record against that of a member
    COPYING = "catching_up"
    STARTING = "beginning_anew"  # what the others hold begins behind its end
    MARKING = "setting_low_water_mark"  # cut at the decided mark, then marked
    LEVEL = "awaiting_quorum"  # holds exactly the decided log; waits for quorum and metadata
    READY = "recovered"  # handed over to the session
    REFUSED = "refused"  # stays out of this session
    FAILED = "failed"

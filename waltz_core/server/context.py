"""What the parts of a server process share, and what they hand one another.

Every part is built with the `NodeContext` and puts effects for the driver into its outbox. What is meant for clients
goes into a second outbox, which the client port empties: never in the middle of another part's work, since an answer
may end its connection, and with it the requests that wait for it in partitions.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from waltz_core.access.admission import Silence
from waltz_core.access.roles import RolesChanged
from waltz_core.base.alarms import Alarms, SetsAlarms
from waltz_core.base.contract import Rng, Tickets
from waltz_core.base.edge import (
    CloseConn,
    Closed,
    ConnEffect,
    ConnEvent,
    Dialed,
    Ended,
    Reading,
    Received,
    Report,
    Shutdown,
    WallClock,
    ZkEvent,
    ZkRequest,
    ZkState,
)
from waltz_core.base.outbox import Outbox
from waltz_core.base.pending import Awaits, Pending
from waltz_core.base.record import record
from waltz_core.base.tracing import Traced
from waltz_core.base.turns import Shares
from waltz_core.server.archive import Archive
from waltz_core.server.archive_calls import ArchiveEffect, ArchiveEvent
from waltz_core.server.data_cache import DataCache
from waltz_core.server.feed import SendFrames, SendReply
from waltz_core.server.journal import JournalEvent, Journals, JournalWrite
from waltz_core.store.calls import StorageEffect
from waltz_core.wire import client_messages as messages

if TYPE_CHECKING:
    from waltz_core.cluster.notifications import EndpointsChanged, Joined
    from waltz_core.server.config import ServerConfig
    from waltz_core.store.session import SessionAlarm
    from waltz_core.zookeeper.znodes import ReplicaAssignments

W = TypeVar("W")

ServerEvent: TypeAlias = ConnEvent | ZkEvent | Shutdown | WallClock | RolesChanged | JournalEvent | ArchiveEvent
ServerEffect: TypeAlias = ConnEffect | ZkRequest | Report | Ended | Reading | JournalWrite | ArchiveEffect | Traced


@record
class Reply:
    """A message to one connection."""

    conn: int
    message: messages.ClientMessage


ClientEffect: TypeAlias = Reply | SendReply | SendFrames | CloseConn


# ---- alarms ----------------------------------------------------------------------------------


class ClusterAlarm(enum.Enum):
    """What the port to ZooKeeper has one of, and when it wants a step."""

    COORDINATOR = "the coordinator"
    CLIENT_IDS = "client ids are asked for again"
    PREFERENCES = "preferred partitions are read or written again"
    NEIGHBORS = "other servers are dialed again"


class ClientAlarm(enum.Enum):
    """The same of the port of clients."""

    GREETINGS = "a connection must have greeted"
    REST = "requests, or payloads, that the last step left for the next"


class StorageAlarm(enum.Enum):
    """The same of the port to storage nodes."""

    REPAIRS = "a repair is given up, or begun again"


class ArchiveAlarm(enum.Enum):
    """The same of the archive."""

    ANSWER = "the archive owes an answer for too long"


class CacheAlarm(enum.Enum):
    """The same of a proxy's cache."""

    ANSWER = "the disk owes an answer for too long"


@record
class PoolAlarm:
    """A storage node is dialed again, or owes an answer."""

    replica: str


class PartitionDue(enum.IntEnum):
    """What a partition wants a step for."""

    RETRY = 0  # the next try for a store session
    STATES = 1  # the states of the replicas are written again
    LOOK = 2  # recovery is stuck: has an operator changed the metadata?
    WORK = 3  # the journal, feeds, or reads


class PartitionAlarm(NamedTuple):
    """A partition, or its store session, wants a step. (A tuple, as it is looked up after all work of a partition.)"""

    partition_id: int
    due: PartitionDue | SessionAlarm


AlarmKey: TypeAlias = (
    ClusterAlarm | ClientAlarm | Silence | StorageAlarm | PoolAlarm | ArchiveAlarm | CacheAlarm | PartitionAlarm
)


class PartitionAlarms:
    """What one partition, and its store session, may set in the heap of the process."""

    __slots__ = ("_alarms", "_partition_id")

    def __init__(self, partition_id: int, alarms: SetsAlarms[PartitionAlarm]) -> None:
        self._partition_id = partition_id
        self._alarms = alarms

    def set(self, due: PartitionDue | SessionAlarm, at: int | None, /) -> None:
        """Ring at `at` (milliseconds) instead of when it was to ring before; None cancels."""
        self._alarms.set(PartitionAlarm(self._partition_id, due), at)


# ---- answers that are awaited ----------------------------------------------------------------


class IdStep(enum.Enum):
    """Of taking a client id."""

    READ = "the counter is read"
    WRITE = "the counter is raised"


class PreferenceStep(enum.Enum):
    """Of keeping the preferred partitions."""

    READ = "what was kept is read"
    WRITE = "the present ones are written"
    CREATE = "the same, into a new node"
    CREATE_PARENT = "the node above is created"


@record
class PortsRead:
    """The admin ports of the storage nodes, for a repair."""

    partition_id: int
    replica: str


class MetadataStep(enum.Enum):
    """Of a partition's way to a store session, and of the session's states."""

    READ = "the metadata is read"
    CREATE = "it is created"
    ANNOUNCE = "a store session is announced"
    WRITE_STATES = "the states of the replicas are written"
    READ_AGAIN = "the metadata is read, as the states could not be written"
    LOOK = "the metadata is looked at, as recovery is stuck"


@record
class MetadataAsked:
    """A partition's metadata in ZooKeeper."""

    partition_id: int
    step: MetadataStep


@record
class ReplicaAsked:
    """A request to a replica; the store session knows which and what for."""

    partition_id: int


@record
class JournalAsked:
    """A write to the journal; the journal knows which."""

    partition_id: int


PartitionAsked: TypeAlias = MetadataAsked | ReplicaAsked | JournalAsked
Awaited: TypeAlias = IdStep | PreferenceStep | PortsRead | PartitionAsked


class TicketsFor(Tickets, Generic[W]):
    """Tickets of a part that keeps a table of its own: in the table above, all of them stand for that part."""

    __slots__ = ("_awaits", "_what")

    def __init__(self, awaits: Awaits[W], what: W) -> None:
        self._awaits = awaits
        self._what = what

    def take(self) -> int:
        """The next one."""
        return self._awaits.ask(self._what)


# ---- reads of a partition, through its store session -----------------------------------------


@record
class FeedRead:
    """Headers for the feed, from `first` on."""

    first: int


class BulkRead(enum.Enum):
    """Records that clients asked for, or the archive wants."""

    PAYLOADS = "single payloads"
    RANGE = "a range"
    ARCHIVE = "a piece of what is archived, or compared with the archive"


ReadFor: TypeAlias = FeedRead | BulkRead


# ---- what a partition asks of storage nodes --------------------------------------------------


@record
class RepairWanted:
    """A replica of the partition is damaged: its node should fetch good records from the others."""

    replica: str


StorageWork: TypeAlias = StorageEffect | RepairWanted


# ---- the process -----------------------------------------------------------------------------


_AWAY = (ZkState.SUSPENDED.value, ZkState.PRESUMED_LOST.value, ZkState.EXPIRED.value)


class ClusterState:
    """What this process knows of its cluster; written by the cluster port, read by everybody."""

    __slots__ = ("_storages", "_turned", "endpoints", "joined", "replicas", "zookeeper")

    def __init__(self) -> None:
        self.joined: Joined | None = None
        self.endpoints: EndpointsChanged | None = None
        self.replicas: ReplicaAssignments | None = None
        self.zookeeper = "not connected"
        self._turned: ReplicaAssignments | None = None  # of which `_storages` is
        self._storages: dict[int, tuple[str, ...]] = {}

    @property
    def zookeeper_away(self) -> bool:
        """It was there and does not answer now."""
        return self.zookeeper in _AWAY

    @property
    def num_partitions(self) -> int:
        """0 before the cluster is joined."""
        return self.joined.num_partitions if self.joined is not None else 0

    def storages_of(self, partition_id: int) -> tuple[str, ...]:
        """Storage nodes that are to hold a partition; none before that is known."""
        if self._turned is not self.replicas:
            self._turned = self.replicas
            self._storages = self.replicas.by_partition() if self.replicas is not None else {}
        return self._storages.get(partition_id, ())


class Dials(Protocol):
    """A part that dials other nodes. It hears of its own connections only."""

    def dialed(self, now: int, event: Dialed) -> None:
        """A connection stands."""

    def received(self, now: int, event: Received) -> None:
        """Bytes from the other node."""

    def closed(self, now: int, event: Closed) -> None:
        """A connection has ended, or could not be made."""


class NodeContext:
    """One for each server process."""

    __slots__ = (
        "_last_dialed",
        "alarms",
        "archive",
        "clients",
        "cluster",
        "config",
        "data_cache",
        "dialed",
        "journals",
        "out",
        "pending",
        "rng",
        "tickets",
        "waiting",
    )

    def __init__(self, config: ServerConfig, rng: Rng) -> None:
        self.config = config
        self.rng = rng
        self.tickets = Tickets()
        self.out: Outbox[ServerEffect] = Outbox()
        self.clients: Outbox[ClientEffect] = Outbox()
        self.pending: Pending[Awaited] = Pending(self.tickets)
        self.alarms: Alarms[AlarmKey] = Alarms()
        self.cluster = ClusterState()
        self.data_cache = DataCache(config.data_cache_bytes)
        self.journals = Journals(config.journal, config.journal_unwritten_max)
        policy = config.archiving
        self.archive = None if policy is None else Archive(policy, self.out, self.tickets)
        self.waiting = Shares()  # requests without an answer, by connection
        self.dialed: dict[int, Dials] = {}  # who dialed each connection, until it has ended
        self._last_dialed = 0

    def new_conn(self, owner: Dials) -> int:
        """The number of a connection that `owner` dials."""
        self._last_dialed -= 1
        self.dialed[self._last_dialed] = owner
        return self._last_dialed

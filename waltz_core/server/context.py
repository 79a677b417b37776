"""What the parts of a server process share, and what they hand one another.

Every part is built with the `NodeContext` and puts effects for the driver into its outbox. What is meant for clients
goes into a second outbox, which the client port empties: never in the middle of another part's work, since an answer
may end its connection, and with it whatever waits for it in partitions.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, TypeAlias

from waltz_core.base.alarms import Alarms
from waltz_core.base.contract import Rng, Tickets
from waltz_core.base.edge import (
    CloseConn,
    ConnEffect,
    ConnEvent,
    Ended,
    Reading,
    Report,
    Shutdown,
    WallClock,
    ZkEvent,
    ZkRequest,
)
from waltz_core.base.outbox import Outbox
from waltz_core.base.pending import Pending
from waltz_core.base.record import record
from waltz_core.base.rules import SafetyRules
from waltz_core.server.data_cache import DataCache
from waltz_core.server.feed import SendFrames, SendReply
from waltz_core.server.journal import JournalEvent, Journals, JournalWrite
from waltz_core.server.turns import Shares
from waltz_core.wire import client_messages as messages

if TYPE_CHECKING:
    from waltz_core.cluster.notifications import EndpointsChanged, Joined
    from waltz_core.server.config import ServerConfig
    from waltz_core.zookeeper.znodes import ReplicaAssignments

ServerEvent: TypeAlias = ConnEvent | ZkEvent | Shutdown | WallClock | JournalEvent
ServerEffect: TypeAlias = ConnEffect | ZkRequest | Report | Ended | Reading | JournalWrite


@record
class Reply:
    """A message to one connection."""

    conn: int
    message: messages.ClientMessage


ClientEffect: TypeAlias = Reply | SendReply | SendFrames | CloseConn


# ---- alarms ----------------------------------------------------------------------------------


class Alarm(enum.Enum):
    """What a server process has one of, and when it wants a step."""

    CLUSTER = "the coordinator"
    CLIENT_IDS = "client ids are asked for again"
    PREFERENCES = "preferred partitions are read or written again"
    REPAIRS = "a repair is given up, or begun again"
    GREETINGS = "a connection must have greeted"
    ADMISSION = "a connection has been silent for too long"
    REST = "requests, or payloads, that the last step left for the next"


@record
class PoolAlarm:
    """A storage node is dialed again, or owes an answer."""

    replica: str


@record
class PartitionAlarm:
    """A partition wants a step."""

    partition_id: int


AlarmKey: TypeAlias = Alarm | PoolAlarm | PartitionAlarm


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


Awaited: TypeAlias = IdStep | PreferenceStep | PortsRead


class ClusterState:
    """What this process knows of its cluster; written by the cluster port, read by everybody."""

    __slots__ = ("endpoints", "joined", "replicas", "zookeeper")

    def __init__(self) -> None:
        self.joined: Joined | None = None
        self.endpoints: EndpointsChanged | None = None
        self.replicas: ReplicaAssignments | None = None
        self.zookeeper = "not connected"

    @property
    def num_partitions(self) -> int:
        """0 before the cluster is joined."""
        return self.joined.num_partitions if self.joined is not None else 0

    def storages_of(self, partition_id: int) -> tuple[str, ...]:
        """Storage nodes that are to hold a partition; none before that is known."""
        return self.replicas.storages_of(partition_id) if self.replicas is not None else ()


class NodeContext:
    """One for each server process."""

    __slots__ = (
        "_last_dialed",
        "alarms",
        "clients",
        "cluster",
        "config",
        "data_cache",
        "journals",
        "out",
        "pending",
        "rng",
        "rules",
        "tickets",
        "waiting",
    )

    def __init__(self, config: ServerConfig, rng: Rng, rules: SafetyRules) -> None:
        self.config = config
        self.rng = rng
        self.rules = rules
        self.tickets = Tickets()
        self.out: Outbox[ServerEffect] = Outbox()
        self.clients: Outbox[ClientEffect] = Outbox()
        self.pending: Pending[Awaited] = Pending(self.tickets)
        self.alarms: Alarms[AlarmKey] = Alarms()
        self.cluster = ClusterState()
        self.data_cache = DataCache(config.data_cache_bytes)
        self.journals = Journals(config.journal, config.journal_unwritten_max)
        self.waiting = Shares()  # requests without an answer, by connection
        self._last_dialed = 0

    def new_conn(self) -> int:
        """The number of a connection that we dial."""
        self._last_dialed -= 1
        return self._last_dialed

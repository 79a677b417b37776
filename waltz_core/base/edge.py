"""Events and effects at the edge of a process: connections, ZooKeeper, reports to people.

Every process (server, storage node, client) is one machine; its driver performs these effects and
delivers these events, in Trio or in the simulator. Disk effects stand in `waltz_core/storage`.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

from waltz_core.base.ids import Endpoint
from waltz_core.base.record import record

# ---- connections -----------------------------------------------------------------------------


class Port(enum.Enum):
    """Which listener accepted a connection."""

    CLIENT = "client"  # server port: clients
    STORAGE = "storage"  # storage port: servers
    ADMIN = "admin"  # storage admin port: tools


@record
class Accepted:
    """A peer connected to us and finished the TLS handshake. Accepted ids are positive."""

    conn: int
    port: Port
    peer: str  # address, for messages to people
    names: tuple[str, ...] = ()  # in the peer's certificate, where one was asked for: common name, then DNS names


@record
class Dialed:
    """A connection asked for by `Dial` stands (TCP and TLS)."""

    conn: int


@record
class Received:
    """Bytes arrived, in order, any chunking."""

    conn: int
    data: bytes


@record
class Writable:
    """The out-buffer of a connection crossed its high mark (False) or drained (True)."""

    conn: int
    writable: bool


@record
class Closed:
    """A connection ended, or a dial failed. Comes exactly once per connection, also after `CloseConn`."""

    conn: int
    reason: str
    untrusted: bool = False  # TLS failed, or one side refused the other's certificate
    refused: bool = False  # a dial: the host answers, and nobody listens there


@record
class Dial:
    """Open a connection. The core chooses `conn`: dialed ids are negative, never reused."""

    conn: int
    endpoint: Endpoint
    port: Port  # what we expect to find there; selects the TLS context


@record
class Send:
    """Append bytes to the out-buffer of a connection; dropped silently if it is gone."""

    conn: int
    data: bytes | bytearray


@record
class CloseConn:
    """Close a connection, after what was sent before has been flushed."""

    conn: int
    reason: str


# ---- ZooKeeper -------------------------------------------------------------------------------


class ZkError(enum.Enum):
    """Why a ZooKeeper request did not succeed."""

    NO_NODE = "no node"
    NODE_EXISTS = "node exists"
    BAD_VERSION = "bad version"
    NOT_EMPTY = "not empty"
    UNAVAILABLE = "not sent: no connection"
    OUTCOME_UNKNOWN = "sent, no answer"
    EXPIRED = "session expired"
    REFUSED = "refused"

    @property
    def away(self) -> bool:
        """ZooKeeper cannot be asked at all: the process reports that by itself, once for all that wait for it."""
        return self in (ZkError.UNAVAILABLE, ZkError.OUTCOME_UNKNOWN, ZkError.EXPIRED)


@record
class ZkStat:
    """What we use of a znode's stat."""

    version: int
    cversion: int
    ephemeral_owner: int = 0
    czxid: int = 0


@record
class ZkGet:
    """Read data and stat; `watch` arms a one-shot data watch (also when the node is absent)."""

    ticket: int
    path: str
    watch: bool = False


@record
class ZkChildren:
    """Read the names of the children and the stat; `watch` arms a one-shot child watch."""

    ticket: int
    path: str
    watch: bool = False


@record
class ZkCreate:
    """Create a node; None is null data, not empty data."""

    ticket: int
    path: str
    data: bytes | None
    ephemeral: bool = False
    sequential: bool = False


@record
class ZkSet:
    """Write data if the version matches; -1 matches every version."""

    ticket: int
    path: str
    data: bytes | None
    version: int


@record
class ZkDelete:
    """Delete a node if the version matches."""

    ticket: int
    path: str
    version: int = -1


@record
class ZkMulti:
    """Several writes, all or none. The tickets inside are ignored."""

    ticket: int
    operations: tuple[ZkCreate | ZkSet | ZkDelete, ...]


ZkRequest: TypeAlias = ZkGet | ZkChildren | ZkCreate | ZkSet | ZkDelete | ZkMulti


@record
class ZkDone:
    """Answer to a request. `data` for ZkGet, `children` for ZkChildren, `path` for ZkCreate."""

    ticket: int
    stat: ZkStat | None = None
    data: bytes | None = None
    children: tuple[str, ...] = ()
    path: str = ""


@record
class ZkFailed:
    """A request that did not succeed."""

    ticket: int
    error: ZkError


@record
class ZkChanged:
    """A one-shot watch fired: the node or its children changed, or the watch was lost."""

    path: str


class ZkState(enum.Enum):
    """Session with ZooKeeper as this process must act on it."""

    CONNECTED = "connected"  # usable; every watch must be armed again
    SUSPENDED = "suspended"  # requests fail, watches are gone, ephemerals may live
    PRESUMED_LOST = "presumed lost"  # suspended longer than the session time-out
    EXPIRED = "expired"  # ephemerals are gone; a new session follows
    CLOSED = "closed"  # final


@record
class ZkStateChanged:
    """The session changed its state; `session_id` names it while CONNECTED (0 otherwise)."""

    state: ZkState
    session_id: int = 0


ZkEvent: TypeAlias = ZkDone | ZkFailed | ZkChanged | ZkStateChanged

# ---- people ----------------------------------------------------------------------------------


class Level(enum.IntEnum):
    """How much a report matters; numbers as in the logging module of the standard library."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


@record
class Report:
    """A line for the operator. One about a peer names it, and lines of its kind are counted, not repeated."""

    level: Level
    text: str
    peer: str = ""  # host:port of whom something is wrong with
    owner: str = ""  # name in its certificate, else its address; where empty, the address


ConnEvent: TypeAlias = Accepted | Dialed | Received | Writable | Closed
ConnEffect: TypeAlias = Dial | Send | CloseConn

# ---- life of the process ---------------------------------------------------------------------


@record
class Shutdown:
    """The process is asked to end: release what it owns, then `Ended`."""


@record
class WallClock:
    """Time since 1970 minus the machine's time, in ms; posted now and then, as clocks are set."""

    offset_ms: int


@record
class Ended:
    """The machine is done; with a reason when it cannot continue (the process then exits with status 1)."""

    reason: str = ""


@record
class Reading:
    """Stop or resume taking bytes from a connection: TCP then holds the peer back."""

    conn: int
    wanted: bool

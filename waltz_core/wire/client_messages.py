"""Messages between clients and servers. Records only; bytes are the business of `client_codec`.

Every message starts with its request id. Type ids and the first version of each stand in `client_codec`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeAlias
from uuid import UUID

from waltz_core.base.ids import Endpoint, ReqId
from waltz_core.base.log import Record, RecordHeader
from waltz_core.base.record import record
from waltz_core.wire.shared import Statistic


class PartitionState(enum.IntEnum):
    """Answers to a mount; a peer may send other numbers, so the field itself is an int."""

    READY = 0
    NOT_READY = 1
    CLIENT_AHEAD = 2  # codecs 0-2 cannot say it: it arrives as NOT_READY


@record
class MountRequest:
    """Attach to a partition at the client's high-water mark."""

    req_id: ReqId
    client_mark: int
    seq_num: int  # of the client's connection to this endpoint; grows with every reconnect


@record
class MountResponse:
    """Answer to a mount; also the end mark of its first feed."""

    req_id: ReqId
    partition_state: int  # PartitionState


@record
class AppendRequest:
    """Append one transaction, unless its locks are newer than the client's mark. There is no response."""

    req_id: ReqId
    client_mark: int
    write_locks: tuple[int, ...] | None  # hashes; None is null, which a server drops silently
    read_locks: tuple[int, ...] | None
    append_locks: tuple[int, ...] | None
    header: int
    data: bytes
    checksum: int  # CRC-32 of `data`, as a signed int32


@record
class FeedRequest:
    """Open a feed; the request id is that of the mount."""

    req_id: ReqId
    client_mark: int


@record
class FeedData:
    """One committed transaction; the request id is that of the append which made it."""

    req_id: ReqId
    transaction_id: int
    header: int


@record
class FeedSuspended:
    """The feed's budget is used up; the client asks again. The request id is that of the mount."""

    req_id: ReqId


@record
class TransactionDataRequest:
    """Ask for the data of one transaction."""

    req_id: ReqId
    transaction_id: int


@record
class TransactionDataResponse:
    """Data with its checksum, or an error text (which may be null)."""

    req_id: ReqId
    transaction_id: int
    success: bool
    data: bytes = b""
    checksum: int = 0
    error: str | None = None


@record
class FlushRequest:
    """Answer when everything received before is resolved."""

    req_id: ReqId


@record
class FlushResponse:
    """The server's high-water mark after a flush."""

    req_id: ReqId
    transaction_id: int


@record
class LockFailure:
    """An append was refused; `transaction_id` is an upper bound of what it conflicts with."""

    req_id: ReqId
    transaction_id: int


@record
class HighWaterMarkRequest:
    """Ask for the highest committed id of a partition."""

    req_id: ReqId


@record
class HighWaterMarkResponse:
    """-1 for an empty partition, -2**63 while it is not open yet."""

    req_id: ReqId
    high_water_mark: int


@record
class CheckStorageConnectivityRequest:
    """Ask whether the server reaches every storage node."""

    req_id: ReqId


@record
class CheckStorageConnectivityResponse:
    """Storage connect strings and whether each was reached."""

    req_id: ReqId
    connectivity: tuple[tuple[str | None, bool], ...]


@record
class ServerPartitionsAssignmentRequest:
    """Ask which partitions are open on the server."""

    req_id: ReqId


@record
class ServerPartitionsAssignmentResponse:
    """Partition ids."""

    req_id: ReqId
    partitions: tuple[int, ...]


@record
class AddPreferredPartitionRequest:
    """Make the server prefer these partitions."""

    req_id: ReqId
    partitions: tuple[int, ...]


@record
class AddPreferredPartitionResponse:
    """Whether it was done."""

    req_id: ReqId
    result: bool


@record
class RemovePreferredPartitionRequest:
    """Undo `AddPreferredPartitionRequest`."""

    req_id: ReqId
    partitions: tuple[int, ...]


@record
class RemovePreferredPartitionResponse:
    """Whether it was done."""

    req_id: ReqId
    result: bool


@record
class ServerPartitionsHealthStatRequest:
    """Ask for the health of the server's partitions."""

    req_id: ReqId


@record
class ServerPartitionsHealthStatResponse:
    """Partition ids and whether each is healthy."""

    req_id: ReqId
    health: tuple[tuple[int, bool], ...]


# ---- since codec 5 ---------------------------------------------------------------------------


class Capability(enum.IntFlag):
    """What a server can do with codec 5; a request without its bit is answered by ErrorResponse NOT_IMPLEMENTED."""

    CLUSTER_INFO = 1
    CLUSTER_CHANGES = 2  # subscription
    CLIENT_IDS = 4
    NAMED_APPENDS = 8
    CONFLICT_CLASSES = 16  # refusals say true or false, not only unknown
    RECORD_RANGES = 32
    LOG_START = 64
    SET_LOG_START = 128
    STATISTICS = 256
    PARTITION_STATUS = 512
    STORAGE_NODES = 1024
    FEED_WINDOWS = 2048  # and mounts are cut short for clients that say that they know it


class ClientCapability(enum.IntFlag):
    """What a client says of itself in its ClusterInfoRequest."""

    FEED_WINDOWS = 1  # it goes on by itself behind a mount that was cut short
    CARRIES_OTHERS = 2  # a proxy: it appends under request ids of others; with roles, the role says so instead


@record
class ClusterInfoRequest:
    """Ask for everything a client otherwise reads from ZooKeeper."""

    req_id: ReqId
    client_id_wanted: bool  # allocate a client id
    subscribe: bool  # send a new answer whenever it changes; the last request on a connection decides
    capabilities: int = 0  # ClientCapability


@record
class ServerEntry:
    """One server and the partitions it serves."""

    endpoint: Endpoint
    partitions: tuple[tuple[int, int], ...]  # (partition id, generation)


@record
class ClusterInfoResponse:
    """Answer to ClusterInfoRequest, and with its request id every later change."""

    req_id: ReqId
    revision: int  # version of the assignment; an answer with a lower one is older
    name: str  # of the cluster
    key: UUID
    num_partitions: int
    client_id: int  # never given out before; -1 when none was asked for, and in changes
    capabilities: int  # Capability
    servers: tuple[ServerEntry, ...]


@record
class NamedAppendRequest:
    """AppendRequest whose locks may have names, and whose refusal carries the reason.

    `names` are packed: see `waltz_core.wire.lock_names`.
    """

    req_id: ReqId
    client_mark: int
    write_locks: tuple[int, ...]  # hashes
    read_locks: tuple[int, ...]
    append_locks: tuple[int, ...]
    header: int
    data: bytes
    checksum: int  # CRC-32 of `data`, as a signed int32
    names: bytes = b""


class Refusal(enum.IntEnum):
    """Why an append is not in the log and never will be; other numbers mean OTHER."""

    OTHER = 0
    LOCK = 1
    GENERATION = 2  # the request id's generation is not that of the partition
    NOT_MOUNTED = 3  # this connection has no mount, or a newer connection replaced it
    NOT_SERVED = 4  # the partition is not on this server
    NOT_READY = 5  # the partition has not finished opening, or is closing
    TOO_LARGE = 6  # the data is larger than server.payloadSizeMax, or there are more locks than server.locksMax
    OVERLOADED = 7
    NOT_ALLOWED = 8  # the client's role does not include writing this partition


@record
class AppendRefused:
    """Answer to a NamedAppendRequest that is not appended. The last five fields matter for LOCK only."""

    req_id: ReqId
    refusal: int  # Refusal
    transaction_id: int  # upper bound of what it conflicts with, as in LockFailure; -1 unless LOCK
    conflict: int  # Conflict
    blocking_id: int  # the newest transaction that holds the lock, if `conflict` is TRUE; else -1
    lock_kind: int  # LockKind
    lock_index: int  # place in that list of the request; -1 unless LOCK
    lock_hash: int
    message: str | None  # for people


@record
class RecordRangeRequest:
    """Ask for committed records of the request id's partition. No mount is needed."""

    req_id: ReqId
    first_id: int
    last_id: int  # inclusive; what is not committed is left out
    count_max: int
    size_max: int  # bytes of encoded records; at least one record is returned
    headers_only: bool


@record
class RecordRangeResponse:
    """Consecutive records from `first_id` on; none when `first_id` is not committed yet."""

    req_id: ReqId
    log_start: int
    high_water_mark: int
    records: Sequence[Record]


@record
class RecordHeaderRangeResponse:
    """The same without data."""

    req_id: ReqId
    log_start: int
    high_water_mark: int
    record_headers: Sequence[RecordHeader]


@record
class LogStartRequest:
    """Ask for the ends of the log of the request id's partition."""

    req_id: ReqId


@record
class LogStartResponse:
    """The first id that can be read, and the last committed one."""

    req_id: ReqId
    log_start: int
    high_water_mark: int


@record
class SetLogStartRequest:
    """Give up everything below `log_start` on all replicas; answered by LogStartResponse."""

    req_id: ReqId
    log_start: int


@record
class StatisticsRequest:
    """Ask for figures whose names start with one of `prefixes` (none = all)."""

    req_id: ReqId
    partition_id: int  # -1: of all partitions and of the process
    prefixes: tuple[str, ...]


@record
class StatisticsResponse:
    """Figures of the server."""

    req_id: ReqId
    time_ms: int  # clock of the server, since 1970
    statistics: tuple[Statistic, ...]


@record
class PartitionStatusRequest:
    """Ask for the state of all partitions of the server."""

    req_id: ReqId


class ServedState(enum.IntEnum):
    """State of a partition on its server."""

    OPENING = 0
    RECOVERING = 1
    READY = 2
    STUCK = 3  # waits for an operator; the reason says for what
    CLOSING = 4


@record
class PartitionStatus:
    """State of one partition, with the reason for people."""

    partition_id: int
    generation: int
    state: int  # ServedState
    since_ms: int  # how long
    session_id: int  # -1 when there is none
    high_water_mark: int  # -2**63 while unknown
    reason: str | None


@record
class PartitionStatusResponse:
    """Partitions that the server serves or is about to."""

    req_id: ReqId
    partitions: tuple[PartitionStatus, ...]


@record
class FeedWindowRequest:
    """FeedRequest for as many transactions as the client has room for."""

    req_id: ReqId
    client_mark: int
    count: int


@record
class StorageNodesRequest:
    """Ask which storage nodes the server uses, and why it cannot use the others."""

    req_id: ReqId


@record
class StorageNodeStatus:
    """One storage node as a server sees it."""

    storage: str  # host:port of its data port, as in ZooKeeper
    usable: bool
    reason: str | None  # why it is not, for people; None if it is, or if nothing went wrong yet


@record
class StorageNodesResponse:
    """Storage nodes that the server has connected to, or tried to."""

    req_id: ReqId
    nodes: tuple[StorageNodeStatus, ...]


class ErrorCode(enum.IntEnum):
    """Why a codec 5 request has no better answer; other numbers mean OTHER."""

    OTHER = 0
    NOT_IMPLEMENTED = 1
    NOT_SERVED = 2  # the partition is not on this server
    NOT_READY = 3  # try again later
    BEFORE_START = 4  # an id below the log start
    CORRUPT = 5  # no replica holds a record that matches its checksum
    INVALID = 6  # a value of the request is out of its range
    NOT_ALLOWED = 7  # the client's role does not include it
    OVERLOADED = 8  # try again later


@record
class ErrorResponse:
    """Answer to a codec 5 request that cannot be fulfilled; the connection stays open."""

    req_id: ReqId
    code: int  # ErrorCode
    message: str | None  # for people


ClientMessage: TypeAlias = (
    MountRequest
    | MountResponse
    | AppendRequest
    | FeedRequest
    | FeedData
    | FeedSuspended
    | TransactionDataRequest
    | TransactionDataResponse
    | FlushRequest
    | FlushResponse
    | LockFailure
    | HighWaterMarkRequest
    | HighWaterMarkResponse
    | CheckStorageConnectivityRequest
    | CheckStorageConnectivityResponse
    | ServerPartitionsAssignmentRequest
    | ServerPartitionsAssignmentResponse
    | AddPreferredPartitionRequest
    | AddPreferredPartitionResponse
    | RemovePreferredPartitionRequest
    | RemovePreferredPartitionResponse
    | ServerPartitionsHealthStatRequest
    | ServerPartitionsHealthStatResponse
    | ClusterInfoRequest
    | ClusterInfoResponse
    | NamedAppendRequest
    | AppendRefused
    | RecordRangeRequest
    | RecordRangeResponse
    | RecordHeaderRangeResponse
    | LogStartRequest
    | LogStartResponse
    | SetLogStartRequest
    | StatisticsRequest
    | StatisticsResponse
    | PartitionStatusRequest
    | PartitionStatusResponse
    | StorageNodesRequest
    | StorageNodesResponse
    | FeedWindowRequest
    | ErrorResponse
)

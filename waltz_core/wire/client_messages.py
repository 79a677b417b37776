"""Messages between clients and servers. Records only; bytes are the business of `client_codec`.

Every message starts with its request id. Type ids and the first version of each stand in `client_codec`.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

from waltz_core.ids import ReqId
from waltz_core.record import record


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
    write_locks: tuple[int, ...] | None  # hashes; None is null, which a server drops without a word
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
)

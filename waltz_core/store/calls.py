"""What a partition asks of the connections to storage nodes, and what comes back."""

from __future__ import annotations

from typing import TypeAlias

from waltz_core.base.record import record
from waltz_core.store.replica_link import Batch
from waltz_core.wire import storage_messages as messages

StorageMessage: TypeAlias = messages.StorageMessage


@record
class LinkWanted:
    """Connect to a storage node for this partition; answered by `LinkUp` whenever it stands."""

    replica: str


@record
class LinkUnwanted:
    """The partition does not need that storage node any more."""

    replica: str


@record
class StorageCall:
    """Send a request to a replica. `message` carries sequence number 0; the pool puts in its own."""

    replica: str
    ticket: int
    message: StorageMessage


@record
class StorageAppend:
    """Send an append of records that are encoded already."""

    replica: str
    ticket: int
    session_id: int
    partition_id: int
    batch: Batch


StorageEffect: TypeAlias = LinkWanted | LinkUnwanted | StorageCall | StorageAppend


@record
class LinkUp:
    """The connection to a storage node stands and was opened with our cluster key."""

    replica: str
    codec: int = 0  # of the storage protocol that both speak


@record
class LinkDown:
    """That connection ended. Requests under way have failed before this comes."""

    replica: str
    reason: str


@record
class StorageAnswer:
    """Answer to a `StorageCall` or `StorageAppend`; a failure answer is a `FailureResponse`."""

    ticket: int
    message: StorageMessage


@record
class StorageFailed:
    """A request got no answer: the connection ended, or the deadline passed."""

    ticket: int
    reason: str


@record
class StorageNews:
    """A storage node says something without being asked."""

    replica: str
    message: messages.SuspectReport

"""Why a storage node refuses: the text of 0.13.2 where it has one, and a code for peers that know codes."""

from __future__ import annotations

from uuid import UUID

from waltz_core.base.errors import StorageError
from waltz_core.storage.config import StorageConfig
from waltz_core.storage.procedure import DiskError
from waltz_core.wire.shared import FailureCode

SE = "com.wepay.waltz.storage.exception.StorageException: "
CU = "com.wepay.waltz.storage.exception.ConcurrentUpdateException: "


SESSION_LEAP_MAX = 1 << 32
"""Sessions are counted one by one: no cluster lives to see a gap of this size, and fences are never lowered."""


class Refusal(StorageError):  # noqa: N818  an answer, not an error of ours
    """Becomes a failure response; `detail` belongs to the code."""

    def __init__(self, text: str, code: FailureCode = FailureCode.OTHER, detail: int = -1) -> None:
        super().__init__(text)
        self.code = code
        self.detail = detail


def not_assigned(partition_id: int) -> Refusal:
    """The partition is not ours, or does not exist."""
    return Refusal(f"java.lang.Exception: Partition:{partition_id} is not assigned.", FailureCode.NOT_ASSIGNED)


def fenced(present: int, session_id: int) -> Refusal:
    """A message of an older store session."""
    text = f"{CU}session id has changed to {present}, but request context contains {session_id}"
    return Refusal(text, FailureCode.FENCED, present)


def implausible(highest: int, session_id: int) -> Refusal:
    """A message of a store session that can hardly exist."""
    text = f"{SE}session id {session_id} is more than {SESSION_LEAP_MAX} above the highest known, {highest}"
    return Refusal(text)


def out_of_order(max_id: int) -> Refusal:
    """An append that does not continue the log."""
    return Refusal(f"{SE}transaction out of order", FailureCode.OUT_OF_ORDER, max_id)


def io_text(fault: DiskError) -> str:
    """A disk error as 0.13.2 words it."""
    return f"java.io.IOException: {fault}"


def io_refusal(fault: DiskError) -> Refusal:
    """The disk failed."""
    return Refusal(io_text(fault), FailureCode.IO)


def wrong_cluster(config: StorageConfig, key: UUID, partition_count: int) -> Refusal | None:
    """A peer that opens a connection must know the cluster."""
    if key.bytes != config.key:
        text = "Provided cluster key is inconsistent with key in control file."
    elif partition_count != config.partition_count:
        text = "Provided number of partitions is inconsistent with the total number of partitions in control file."
    else:
        return None
    return Refusal(f"{SE}{text}", FailureCode.WRONG_CLUSTER)

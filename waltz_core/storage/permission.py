"""Whether a replica serves a request: assigned, in service, available, and of a session that is not fenced off.

A session fences off all older ones with its first message, durably, before it gets an answer. From then on nothing
of an older session is executed here, even if its messages were under way before.
"""

from __future__ import annotations

from waltz_core.base.errors import StorageError
from waltz_core.storage.control import ASSIGNED, AVAILABLE
from waltz_core.storage.procedure import Procedure
from waltz_core.storage.refusals import (
    SE,
    SESSION_LEAP_MAX,
    Refusal,
    fenced,
    implausible,
    not_assigned,
)
from waltz_core.storage.replica_files import ReplicaFiles, State
from waltz_core.storage.transcode import Incoming
from waltz_core.wire.shared import FailureCode


def refusal_of(
    files: ReplicaFiles, message: Incoming, offline: bool, state_matters: bool = True
) -> StorageError | None:
    """Why a request is not served; a session above the fence is no reason."""
    current = files.entry.current
    flags = current.flags
    if files.state is State.UNASSIGNED:
        return not_assigned(files.partition_id)
    if not flags & ASSIGNED:
        text = f"{SE}partition {files.partition_id} is not assigned to storage node."
        return Refusal(text, FailureCode.NOT_ASSIGNED)
    if files.state is not State.OPEN and state_matters:
        return files.out_of_service()
    if offline:
        return _offline_refusal(files, message)
    if not flags & AVAILABLE:
        return Refusal(
            f"{SE}read and write for partition={files.partition_id} have been disabled on storage node",
            FailureCode.UNAVAILABLE,
        )
    fence = files.fence
    if message.session_id == fence:  # as almost always
        return None
    highest = max(fence, current.session_id)
    if message.session_id > highest + SESSION_LEAP_MAX:
        return implausible(highest, message.session_id)
    if message.session_id < fence:
        return fenced(fence, message.session_id)
    return None


def _offline_refusal(files: ReplicaFiles, message: Incoming) -> StorageError | None:
    """Recovery by a tool: only while no server uses the partition, and of the session it saw."""
    current = files.entry.current
    if current.available:
        return Refusal(f"{SE}cannot run offline recovery while partition is online", FailureCode.UNAVAILABLE)
    if message.session_id != current.session_id:
        return Refusal(
            f"{SE}partition last session id has changed to {current.session_id}, "
            f"but request context contains {message.session_id}",
            FailureCode.FENCED,
            current.session_id,
        )
    return None


def enter(files: ReplicaFiles, message: Incoming, offline: bool, *, state_matters: bool = True) -> Procedure[None]:
    """Admit a request, fencing off older sessions first.

    Raises:
        StorageError: it is refused.
    """
    refusal = refusal_of(files, message, offline, state_matters)
    if refusal is not None:
        raise refusal
    if not offline and message.session_id > files.fence:
        yield from files.raise_fence(message.session_id)

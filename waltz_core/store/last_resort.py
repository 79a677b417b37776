"""What an operator may decide where recovery must wait: metadata that takes his word for what nobody can prove.

    confirm_metadata   ZooKeeper forgot, the replicas know ──▶ the last session is named again, nothing is given up
    the unsafe way     replicas are gone for good         ──▶ what only they held is given up

Both make a `Plan`: the new metadata, and a line for each thing that it means, to be shown before anything is written.
No rule here is a machine's. A recovery afterwards begins from the plan as from any other metadata.
"""

from __future__ import annotations

from collections.abc import Sequence

from waltz_core.base.errors import StorageError
from waltz_core.base.ids import ReplicaId
from waltz_core.base.log import SessionInfo
from waltz_core.base.quorum import majority
from waltz_core.base.record import record
from waltz_core.zookeeper.partition_metadata import is_unknown, states_by_storage
from waltz_core.zookeeper.znodes import UNRESOLVED, PartitionMetadata, ReplicaState


@record
class ReplicaReport:
    """What one storage node says of its replica."""

    replica: str
    info: SessionInfo
    fence: int  # highest session it answered, -1 if it cannot tell
    max_id: int
    in_service: bool


@record
class Plan:
    """Metadata to be written, and what it means, a line each."""

    metadata: PartitionMetadata
    lines: tuple[str, ...]


def confirm_metadata(
    partition_id: int, metadata: PartitionMetadata, assigned: Sequence[str], reports: Sequence[ReplicaReport]
) -> Plan:
    """Rebuild metadata that is gone or was set back, from what the replicas know of the last session.

    Nothing is given up: the next recovery waits for a quorum of the replicas named, as always. A session that opened
    had marked a majority before, and brought it to that mark; a newer one that reached fewer, and appended nothing to
    those, came to nothing. To count it as the last would cut those that it did not reach, although they hold
    everything, and may be needed for a majority that does.

    Args:
        assigned: replicas of the partition now.
        reports: whoever answered; others than those assigned are welcome, they may have been replicas before.

    Raises:
        StorageError: nothing is wrong with it, or too few replicas answered to know the last session.
    """
    newest_fence = max((max(one.fence, one.info.session_id) for one in reports), default=-1)
    known = states_by_storage(metadata)
    # The number of a session that was forgotten may have been given out again since; what it appended tells.
    forgotten = any(
        is_unknown(known, one.replica, one.info.session_id) and one.max_id > one.info.low_water_mark for one in reports
    )
    if metadata.replica_states and metadata.session_id >= newest_fence and not forgotten:
        raise StorageError(f"nothing to confirm: the metadata names session {metadata.session_id} and its replicas")
    present = [one for one in reports if one.replica in assigned]
    if len(present) < majority(len(assigned)):
        # Every session that committed anything is known to a majority; a smaller number may all be behind.
        missing = ", ".join(sorted(set(assigned) - {one.replica for one in present}))
        raise StorageError(f"{len(present)} of {len(assigned)} replicas answered, a majority is needed; not: {missing}")
    newest, vain = _last_open(assigned, reports)
    session_id = max(metadata.session_id, newest_fence) + 1
    states = tuple(ReplicaState(ReplicaId(partition_id, one), newest, UNRESOLVED) for one in assigned)
    lines = [f"the metadata in ZooKeeper is of session {metadata.session_id} and names {_named(metadata)}"]
    lines += [_line(one) for one in reports]
    lines += vain
    lines.append(f"session {newest} will count as the last one, with all {len(assigned)} replicas in it")
    return Plan(PartitionMetadata(metadata.generation, session_id, states), tuple(lines))


def _last_open(assigned: Sequence[str], reports: Sequence[ReplicaReport]) -> tuple[int, list[str]]:
    """The last session that can have appended anything, and a line on each one after it that came to nothing.

    A session that opened had a majority that was marked by it and held everything up to that mark.
    """
    needed = majority(len(assigned))
    silent = set(assigned) - {one.replica for one in reports}
    vain: list[str] = []
    newest: tuple[int, list[str]] | None = None  # that marked a majority, and what was in vain before it was seen
    for session_id in sorted({one.info.session_id for one in reports}, reverse=True):
        knowing = [one for one in reports if one.info.session_id >= session_id]
        appended = any(one.max_id > one.info.low_water_mark for one in knowing)
        marked = {one.replica for one in knowing}
        here = marked & set(assigned)
        names = ", ".join(sorted(marked))
        if len(here) >= needed:
            mark = max(one.info.low_water_mark for one in reports if one.info.session_id == session_id)
            level = here & {one.replica for one in knowing if one.max_id >= mark}
            if appended or len(level | silent) >= needed:
                return session_id, vain
            newest = newest or (session_id, list(vain))
            vain.append(f"session {session_id} marked {names}, but ended before a majority held what it had decided")
            continue
        if len(marked | silent) >= needed:
            others = ", ".join(sorted(silent | (marked - here)))
            raise StorageError(
                f"session {session_id} is known to {names}; whether it appended anything, only {others} can tell: "
                "bring them back, or assign them again, first"
            )
        if appended:
            # A replica that knew the session too may have been wiped: what was appended here may be committed.
            return session_id, vain
        vain.append(f"session {session_id} is known to {names} alone and appended nothing there: it came to nothing")
    assert newest is not None, "those who answered are a majority, each marked by the oldest session or a later one"
    return newest


def unsafe_recovery(
    partition_id: int, metadata: PartitionMetadata, assigned: Sequence[str], reports: Sequence[ReplicaReport]
) -> Plan:
    """Let the longest log that can still be reached be the log, even if those that are gone hold more.

    Raises:
        StorageError: the metadata must be confirmed first, no replica of the last session answered, or no recovery
            waits for anybody.
    """
    states = states_by_storage(metadata)
    if not states:
        states = _states_of(partition_id, metadata, assigned, reports)
    here = [one for one in reports if one.in_service and one.replica in states]
    took_part = [
        one
        for one in here
        if states[one.replica].closing_mark == UNRESOLVED and one.info.session_id >= states[one.replica].session_id
    ]
    if _goes_on(metadata, took_part):
        # The server that has it open would go on committing with the others; the next recovery would cut all that.
        raise StorageError(
            f"nothing is to be given up: session {metadata.session_id} was opened, no recovery waits, and "
            f"{len(took_part)} of its {len(states)} replicas are in service, with which any server goes on; if the "
            "partition is not served, see that a server runs, and what `waltz doctor` says"
        )
    candidates = took_part or here
    if not candidates:
        raise StorageError("no replica of the last session is in service: repair one, or accept the loss there, first")
    best = max(candidates, key=lambda one: (_end(one, states), one.info.session_id))
    end, state = _end(best, states), states[best.replica]
    session_id = max([metadata.session_id, *(max(one.fence, one.info.session_id) for one in reports)]) + 1
    last = state.session_id if best in took_part else best.info.session_id
    kept = ReplicaState(ReplicaId(partition_id, best.replica), last, UNRESOLVED)
    lines = [_line(one) for one in reports]
    lines.append(f"the log of {best.replica} will be the log: it ends at transaction {end}")
    seen = {f"{one.replica} holds": one.max_id for one in reports}
    seen |= {f"{one.replica} was marked at": one.info.low_water_mark for one in reports}
    seen |= {f"the metadata closed {name} at": one.closing_mark for name, one in states.items()}
    highest = max(seen.values())
    if highest > end:
        source = next(what for what, mark in seen.items() if mark == highest)
        lines.append(f"given up: transactions {', '.join(map(str, range(end + 1, min(highest, end + 10_000) + 1)))}")
        lines.append(f"({source} {highest})")
    gone = sorted(set(states) - {one.replica for one in here})
    if gone:
        lines.append(f"given up: every transaction after {end} that only {', '.join(gone)} may hold")
    return Plan(PartitionMetadata(metadata.generation, session_id, (kept,)), tuple(lines))


def _goes_on(metadata: PartitionMetadata, took_part: Sequence[ReplicaReport]) -> bool:
    """Whether the last session was opened, nobody has announced another one since, and a quorum of it is there."""
    states = metadata.replica_states
    opened = any((one.closing_mark, one.session_id) == (UNRESOLVED, metadata.session_id) for one in states)
    return opened and len(took_part) >= majority(len(states))


def _states_of(
    partition_id: int, metadata: PartitionMetadata, assigned: Sequence[str], reports: Sequence[ReplicaReport]
) -> dict[str, ReplicaState]:
    """What stands in for metadata that name nobody, where that cannot be confirmed: the newest session that is known.

    A replica that was marked above its end lacks what the others had when that session began.
    """
    try:
        confirm_metadata(partition_id, metadata, assigned, reports)
    except StorageError:
        whole = [one for one in reports if one.max_id >= one.info.low_water_mark]
        newest = max((one.info.session_id for one in whole or reports), default=-1)
        return {one: ReplicaState(ReplicaId(partition_id, one), newest, UNRESOLVED) for one in assigned}
    raise StorageError("the metadata names no replicas: `waltz storage confirm-metadata` comes first")


def _end(report: ReplicaReport, states: dict[str, ReplicaState]) -> int:
    """Up to where the next recovery keeps its log."""
    later = report.info.session_id > states[report.replica].session_id
    return min(report.info.low_water_mark, report.max_id) if later else report.max_id


def _line(report: ReplicaReport) -> str:
    state = "" if report.in_service else ", out of service"
    return (
        f"{report.replica}: session {report.info.session_id}, low-water mark {report.info.low_water_mark}, "
        f"ends at transaction {report.max_id}{state}"
    )


def _named(metadata: PartitionMetadata) -> str:
    return ", ".join(sorted(states_by_storage(metadata))) or "no replicas"

"""What recovery waits for, in words for an operator."""

from __future__ import annotations

from waltz_core.store.decision import supporters
from waltz_core.store.members import Situation
from waltz_core.store.recovery_events import ReplicaPhase


def reason_to_wait(at: Situation) -> str:
    """Empty while an answer is due, and when recovery is over."""
    if at.open or at.failed or any(member.busy for member in at.members.values()):
        return ""
    if at.held:
        return _held(at)
    if at.resolved is not None or not at.states:
        there = (ReplicaPhase.IDLE,) if at.resolved is None else (ReplicaPhase.LEVEL, ReplicaPhase.READY)
        missing = [member for member in at.members.values() if member.phase not in there]
        ready = len(at.members) - len(missing)
        waits = ", ".join(f"{m.replica} ({m.blocked})" if m.blocked else m.replica for m in missing)
        return f"{ready} of {at.quorum} replicas needed are there; waits for {waits}"
    return _undecided(at)


def _held(at: Situation) -> str:
    suspects = at.suspects
    held = suspects or [member for member in at.members.values() if member.phase is ReplicaPhase.HELD]
    names = ", ".join(f"{m.replica} (session {m.info.session_id}, mark {m.own})" for m in held if m.info)
    if suspects:
        return (
            f"the metadata does not name what a session appended to: {names}; was ZooKeeper restored from an "
            "older state? The partition waits until its metadata is repaired, or until an operator confirms "
            "that all replicas that still exist are connected"
        )
    if at.resolved is not None:
        return f"the partition is about to start empty, but there are transactions on {names}: give them up?"
    return (
        f"the metadata names no replica, but there are transactions on {names}; waits for an operator to "
        "confirm that all replicas that still exist are connected: what only others hold would be lost"
    )


def _undecided(at: Situation) -> str:
    present = {m.replica: at.end(m, m.entered) for m in supporters(at) if m.entered is not None}
    absent = ", ".join(_absence(at, replica) for replica in sorted(at.last - present.keys()))
    if not present:
        return f"waits for a replica of the last session: {absent}"
    first = 1 + max(member.own for member in at.members.values() if member.replica in present)
    ends = ", ".join(f"{replica} ends at {mark}" for replica, mark in present.items())
    last = max(present.values())
    if first <= last:
        return f"transactions {first}..{last} may be committed or not, and more may be: {ends}; waits for {absent}"
    return f"later transactions than {last} may be committed: {ends}; waits for {absent}"


def _absence(at: Situation, replica: str) -> str:
    member = at.members.get(replica)
    if member is None:
        return f"{replica} (not assigned any more; `waltz zookeeper assign-partition` assigns it again)"
    if member.phase is ReplicaPhase.OFFLINE:
        return f"{replica} (not connected, or out of service)"
    if member.phase is ReplicaPhase.REFUSED:
        return f"{replica} (stays out)"
    return f"{replica} (its copy is older than it should be, and does not count)"

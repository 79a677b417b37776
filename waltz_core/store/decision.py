"""Where the log ends: decided once, by the marks of the last session's replicas.

A mark is decided when a quorum of the *last* session's replicas holds it and no higher one could still have been
committed with the help of those that are absent (`quorum.decide`). Nothing below the smallest mark that a voter arrived
with can win: what a voter reports, it had acknowledged, and some of it may be committed. Without states there was no
session, and the log is empty, once so many replicas agree that no earlier session can have had a quorum.
"""

from __future__ import annotations

from collections.abc import Iterator

from waltz_core.base.quorum import decide, majority
from waltz_core.store.members import Member, Situation
from waltz_core.zookeeper.partition_metadata import last_session


def supporters(at: Situation) -> Iterator[Member]:
    """Replicas of the last session whose marks count."""
    for member in at.members.values():
        if member.alive and member.counted and member.vouched and member.entered is not None:
            yield member


def try_to_decide(at: Situation) -> None:
    """Set `resolved` if what is known suffices."""
    if at.resolved is not None or at.failed or at.held:
        return
    if not at.states:
        fresh = sum(member.entered is not None for member in at.members.values())
        if fresh >= at.quorum:
            at.resolved = -1
    else:
        at.resolved = _decision(at)
    if at.resolved is not None:
        for member in at.members.values():
            member.avoid.clear()


def _decision(at: Situation) -> int | None:
    present = [(member, at.end(member, member.entered)) for member in supporters(at) if member.entered is not None]
    voters = [at.end(member, member.first_mark) for member in at.members.values() if member.alive and member.voter]
    if not voters:
        return None
    lowest = min(voters)
    # Records up to the mark of a recovery that was aborted are candidates of the last session, and a
    # replica that carries such a mark cannot be brought below it.
    last = last_session(at.states)
    for member, mark in present:
        if member.info is not None and member.info.session_id >= last and mark >= member.own:
            lowest = max(lowest, member.own)
    absent = len(at.last) - len(present)
    return decide((mark for _, mark in present), lowest=lowest, absent=absent, quorum=majority(len(at.last)))

"""Lets replicas in: acts on the judgement of their arrival, and on the answer that completes it.

A replica with records of a session that the states do not know is a *suspect*. A session of ours appends only when the
states name it, so either the states were set back, and what it holds may be committed, or it was a session of 0.13.2
(server-D1), or the records were only copied there by a recovery that was aborted. It is let in when no record of its
own can be both committed and in need of it: too few replicas can hold it, or so many members have it from the same
session that the decision keeps it anyway, or it was decided before. Or when a member turns out to hold the same record
as its last. What a suspect has in common with a member is not cut, needed or not, as it may have been decided; where
they part is looked for by halving (`compare_common`).
"""

from __future__ import annotations

from collections.abc import Sequence

from waltz_core.base.quorum import majority
from waltz_core.store.arrivals import Case, Keep, arrival, settled
from waltz_core.store.levelling import compare_common, enter
from waltz_core.store.members import Member, Probe, Situation
from waltz_core.store.recovery_events import AskMax, Effect, ReplicaPhase, Truncate


def arrive(at: Situation, member: Member, out: list[Effect]) -> None:
    """Let the replica be cut to what is good for certain, or ask what it holds."""
    assert member.info is not None
    member.phase = ReplicaPhase.ARRIVING
    judged = arrival(at.states, member.replica, member.info, probed=member.probe is not Probe.NONE)
    member.stands(judged.standing)
    if judged.case is Case.UNKNOWN_SESSION:
        member.probe = Probe.ASKED
    if judged.keep_until is not None:
        _cut(at, member, judged.keep_until, out)
    elif judged.keep is Keep.HELD:
        # The session it reports is no evidence: a first recovery that was aborted leaves one.
        member.phase = ReplicaPhase.HELD
    else:
        out.append(AskMax(member.replica))


def _cut(at: Situation, member: Member, mark: int, out: list[Effect]) -> None:
    if mark < member.own:
        # Storage nodes refuse to be cut or marked below their mark, so each attempt would end a session.
        reason = f"its log is good up to {mark}, but its low-water mark is {member.own}; its copy must be replaced"
        member.refuse(reason, out)
    else:
        # One that began anew where the others' logs do holds nothing below, and its node cuts nothing there.
        out.append(Truncate(member.replica, max(mark, member.start - 1)))


def arrived(at: Situation, member: Member, mark: int, out: list[Effect], kept: int | None = None) -> None:
    """It was cut, or said what it holds; or need not be cut, as what it holds up to `kept` is known to be good."""
    assert member.info is not None
    if member.probe is Probe.ASKED:
        _probed(at, member, mark, out)
        return
    if member.probe is Probe.SPARE:
        member.mark = mark
        member.phase = ReplicaPhase.IDLE
        return
    if not at.states and mark >= 0:
        member.phase = ReplicaPhase.HELD
        return
    member.mark = member.first_mark = mark
    standing = settled(member.standing, member.info, member.start, mark)
    member.counted, member.vouched, member.voter = standing.counted, standing.vouched, standing.may_vote
    member.clean = not member.voter
    if kept is not None:
        member.mark = kept
        member.vouched = True
    enter(at, member, out)


def _probed(at: Situation, member: Member, mark: int, out: list[Effect]) -> None:
    """It said how far a session that the states do not know has appended to it."""
    if mark > member.own:
        member.probe = Probe.SUSPECT
        member.mark = mark
        member.vouched = False
        member.phase = ReplicaPhase.IDLE
    else:
        member.probe = Probe.CLEAR
        arrive(at, member, out)


def clear_suspects(at: Situation, out: list[Effect]) -> None:
    """Let suspects in if too few replicas can hold what the unknown session appended for it to be committed.

    They are compared before: what a member holds, too, may be committed, and to cut it here and copy it again would
    leave fewer copies meanwhile. The decision does not wait for that.
    """
    entered = [m for m in at.members.values() if m.alive and m.counted and m.entered is not None]
    for member in at.members.values():
        if member.phase is not ReplicaPhase.IDLE or not member.unknown or at.failed or _holds_up(at, member, entered):
            continue
        member.probe = Probe.SPARE
        if not compare_common(at, member, out):
            _shorten_or_clear(at, member, out)


def _holds_up(at: Situation, suspect: Member, entered: Sequence[Member]) -> bool:
    """Whether the decision waits for it, as it may need what the unknown session appended there."""
    if suspect.probe is Probe.SPARE or at.resolved is not None:
        return False
    return any(_needed(at, suspect, entered, mark) for mark in _steps(suspect, entered))


def _shorten_or_clear(at: Situation, member: Member, out: list[Effect]) -> None:
    """Cut from a suspect what nobody else holds: all, or what is behind the records that a member holds, too."""
    if member.common < 0:
        clear(at, member, out)
        return
    # What is left is compared once more, and let in with that.
    mark, member.common = member.common, -1
    member.differs.clear()
    member.phase = ReplicaPhase.ARRIVING
    out.append(Truncate(member.replica, mark))


def _steps(suspect: Member, entered: Sequence[Member]) -> set[int]:
    """Ids that stand for all that the suspect's session may have appended to it: who holds one changes only there.

    What a voter holds up to its own low-water mark was decided before it was marked, and needs nobody.
    """
    decided = max((other.own for other in entered if other.voter), default=-1)
    ids = {_arrived_with(other) for other in entered}
    ids = {suspect.mark} | {mark for mark in ids if suspect.own < mark < suspect.mark}
    return {mark for mark in ids if mark > decided}


def _needed(at: Situation, suspect: Member, entered: Sequence[Member], mark: int) -> bool:
    """Whether the suspect's record of this id may be committed, and lost in a decision without the suspect."""
    without = sum(_without(other, suspect, mark) for other in entered)
    if without > len(at.members) - at.quorum:
        return False
    kept = sum(
        other.voter and other.replica in at.last and _same_session(other, suspect) and other.first_mark >= mark
        for other in entered
    )
    return kept < majority(len(at.last))


def _without(other: Member, suspect: Member, mark: int) -> bool:
    """Whether a replica does not hold the record of this id that the suspect's session appended."""
    assert other.info is not None
    assert suspect.info is not None
    held = _arrived_with(other)
    if other.info.session_id < suspect.info.session_id or held <= other.own:
        return True
    return _same_session(other, suspect) and held < mark


def _arrived_with(other: Member) -> int:
    """The last record that it held when it arrived, also where it is judged by less: it stays a witness of that."""
    return max(other.first_mark, other.proven)


def _same_session(other: Member, suspect: Member) -> bool:
    assert other.info is not None
    assert suspect.info is not None
    return other.info.session_id == suspect.info.session_id


def clear(at: Situation, member: Member, out: list[Effect], kept: int | None = None) -> None:
    """Let a suspect in, with the records up to `kept`, which a member holds too, instead of cutting it."""
    member.probe = Probe.CLEAR
    member.avoid.clear()
    member.differs.clear()
    first = len(out)
    arrive(at, member, out)
    if kept is not None and len(out) > first and isinstance(cut := out[-1], Truncate):
        del out[first:]
        member.proven = kept
        arrived(at, member, cut.transaction_id, out, kept)

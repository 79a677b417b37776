"""What a replica does next while it is idle: it is compared, copied to, cut, marked, until it holds exactly the log.

Before the end is decided a replica follows whoever is ahead by least: so a quorum at a higher mark may come about that
decides it, and nothing is copied twice. Copying raises its mark for the others only when it is through (`entered`).

Once the end is decided, each replica is cut there and marked (session and mark on its disk), then it is level. One that
lags is marked first, and copied to afterwards: then the next recovery keeps what was copied, although the states say
less. Not so a voter: marked while it lags it would not vote again if this recovery is aborted (L1).

Logs are prefixes of one another, so a log whose last record equals a member's is equal up to it. That is what a replica
goes through whose records nobody vouches for, before they count or are built upon.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from waltz_core.store.decision import try_to_decide
from waltz_core.store.members import Member, Situation
from waltz_core.store.recovery_events import (
    BeginAnew,
    CopyBlocked,
    Effect,
    ReadRecords,
    ReplicaPhase,
    SetLowWaterMark,
    Truncate,
    WriteRecords,
)

if TYPE_CHECKING:
    from waltz_core.base.log import Record


def enter(at: Situation, member: Member, out: list[Effect]) -> None:
    """Show its mark to the others, look whether that decides, and follow whoever is ahead."""
    member.phase = ReplicaPhase.IDLE
    if at.resolved is None:
        member.entered = member.mark
        try_to_decide(at)
        if member.vouched and not at.below_own(member):
            _copy(at, member, out)


def advance(at: Situation, member: Member, out: list[Effect]) -> None:
    """The next thing for a replica that is idle."""
    resolved = at.resolved
    if at.failed:
        member.phase = ReplicaPhase.FAILED
    elif at.below_own(member):
        reason = f"its low-water mark {member.own} is above the decided {resolved}; its copy must be replaced"
        member.refuse(reason, out)
    elif not member.vouched:
        _compare(at, member, out)
    elif resolved is None:
        _copy(at, member, out)
    elif not member.marked:
        _mark(at, member, resolved, out)
    elif member.mark < resolved:
        _copy(at, member, out)
    else:
        member.phase = ReplicaPhase.LEVEL
        member.clean = True
        member.entered = member.mark


def _mark(at: Situation, member: Member, resolved: int, out: list[Effect]) -> None:
    if member.mark > resolved:
        member.phase = ReplicaPhase.MARKING
        out.append(Truncate(member.replica, resolved))
    elif member.mark < resolved and _marked_last(at, member):
        _copy(at, member, out)
    else:
        member.phase = ReplicaPhase.MARKING
        out.append(SetLowWaterMark(member.replica, resolved))


def _marked_last(at: Situation, member: Member) -> bool:
    """Whether a replica that lags is copied to before it is marked."""
    assert member.info is not None
    refuses = member.mark < member.info.local_low_water_mark
    return refuses or member.voter


# ---- copying -------------------------------------------------------------------------------------


def _sources(at: Situation, member: Member) -> Iterator[Member]:
    """Replicas that records may be copied to `member` from."""
    for other in at.members.values():
        good = other.counted or other.marked
        aside = other.replica in member.avoid or other.replica in member.denied
        if other is not member and other.alive and good and other.vouched and not aside:
            yield other


def _copy(at: Situation, member: Member, out: list[Effect]) -> None:
    """Follow the replica that is ahead by least; stay idle if nobody is."""
    member.entered = member.mark
    ends = [(at.end(o, o.entered), o) for o in _sources(at, member) if o.entered is not None]
    ahead = [(end, o) for end, o in ends if end > member.mark]
    near = [(entered, o.replica) for entered, o in ahead if o.start <= member.mark + 1]
    if near:
        member.target, name = min(near)
        member.source = at.members[name]
        member.phase = ReplicaPhase.COPYING
        _copy_more(at, member, out)
    elif ahead:
        _begin_anew(member, min(o.start for _, o in ahead), out)
    else:
        _report_blocked(member, member.mark + 1, out)


def _report_blocked(member: Member, transaction_id: int, out: list[Effect]) -> None:
    """Say, once, that nobody gives out what a replica needs; it costs the others nothing."""
    if not member.denied:
        return
    reason = f"transaction {transaction_id} cannot be read from {', '.join(sorted(member.denied))}"
    if reason != member.blocked:
        member.blocked = reason
        out.append(CopyBlocked(member.replica, reason))


def _begin_anew(member: Member, start: int, out: list[Effect]) -> None:
    """What it needs next was given up by the others: committed long ago, and kept elsewhere."""
    if not member.movable:
        reason = f"the log of the others begins at {start}, and a node of 0.13.2 cannot begin there"
        member.refuse(f"{reason}; assign a storage node that can in its place", out)
        return
    member.phase = ReplicaPhase.STARTING
    out.append(BeginAnew(member.replica, start))


def _copy_more(at: Situation, member: Member, out: list[Effect]) -> None:
    source = member.source
    assert source is not None
    if at.resolved is not None:
        member.target = at.resolved
    # Never beyond what the source holds: it may be behind the decided end itself.
    count = min(member.target - member.mark, at.copy_count_max, source.mark - member.mark) if source.alive else 0
    if count > 0:
        _ask(source, member, member.mark + 1, count, out)
    else:
        enter(at, member, out)


def on_denied(member: Member, source: str) -> None:
    """Damage in one record is no reason to do without the replica: another one may have it whole."""
    if member.asked == source and member.phase in (ReplicaPhase.COMPARING, ReplicaPhase.COPYING):
        comparing = member.phase is ReplicaPhase.COMPARING
        member.asked = None
        member.phase = ReplicaPhase.IDLE
        if comparing and member.unknown and source != member.replica:
            member.differs[source] = member.compared  # what both hold before it is not cut for that
        else:
            member.denied.add(source)


def on_read(at: Situation, member: Member, source: str, records: Sequence[Record], out: list[Effect]) -> bool:
    """Records came; returns whether they prove a suspect's, which can be let in now."""
    if member.asked != source or member.phase not in (ReplicaPhase.COMPARING, ReplicaPhase.COPYING):
        return False
    member.asked = None
    if member.phase is ReplicaPhase.COMPARING:
        return _on_compared(at, member, records, out)
    _on_copy_read(at, member, records, out)
    return False


def on_written(at: Situation, member: Member, out: list[Effect]) -> None:
    """A write is durable on the target."""
    if member.phase is ReplicaPhase.COPYING and member.writing is not None:
        member.mark += member.writing
        member.writing = None
        member.denied.clear()  # they may well have the next one
        member.denied_until = None
        member.blocked = ""
        _copy_more(at, member, out)


def _on_copy_read(at: Situation, member: Member, records: Sequence[Record], out: list[Effect]) -> None:
    assert member.source is not None
    # The target may have come down since we asked: nothing above it is wanted any more.
    target = member.target if at.resolved is None else at.resolved
    wanted = tuple(
        itertools.takewhile(
            lambda pair: pair[0] == pair[1].transaction_id <= target, enumerate(records, start=member.mark + 1)
        )
    )
    if wanted:
        member.writing = len(wanted)
        out.append(WriteRecords(member.replica, tuple(item for _, item in wanted)))
        return
    member.phase = ReplicaPhase.IDLE
    if member.source.mark > member.mark and target > member.mark:
        _no_answer(at, member, member.source, member.mark + 1, out)


def _no_answer(at: Situation, member: Member, source: Member, transaction_id: int, out: list[Effect]) -> None:
    """A source lacks what it said it holds: try another one, as long as there will be more of them."""
    if at.resolved is None:
        member.avoid.add(source.replica)
    else:
        member.refuse(f"{source.replica} does not give out record {transaction_id}", out)


# ---- comparing -----------------------------------------------------------------------------------


def compare_common(at: Situation, member: Member, out: list[Effect]) -> bool:
    """Compare a suspect that nobody needs with a member; returns whether there is anything left to compare.

    Logs that are equal in one record are so in all before it, so halving finds the last one that both hold: `common`.
    """
    if member.replica in member.denied:
        return False
    best: tuple[int, Member] | None = None
    for other in _sources(at, member):
        known = max(member.own, member.common, member.start - 1, other.start - 1)
        differs = member.differs.get(other.replica)
        end = min(other.mark, member.mark) if differs is None else (known + differs) // 2
        if other.entered is not None and end > known and (best is None or end > best[0]):
            best = end, other
    if best is None:
        return False
    _begin_comparing(member, best[1], best[0], out)
    return True


def _begin_comparing(member: Member, source: Member, transaction_id: int, out: list[Effect]) -> None:
    """Read a record of its own, then that of a member."""
    member.phase = ReplicaPhase.COMPARING
    member.source = source
    member.compared = transaction_id
    member.kept = None
    _ask(member, member, transaction_id, 1, out)


def _compare(at: Situation, member: Member, out: list[Effect]) -> None:
    """Compare its last record with that of a member, once it can read its own."""
    if member.replica in member.denied:
        _report_blocked(member, member.mark, out)
        return
    ahead = [
        o
        for o in _sources(at, member)
        if o.entered is not None and o.mark >= member.mark and o.replica not in member.differs
    ]
    source = next((o for o in ahead if o.start <= member.mark), None)
    if source is None and ahead and at.resolved is not None:
        member.vouched = True  # all of it is given up: the others begin behind it
        _copy(at, member, out)
    elif source is not None:
        _begin_comparing(member, source, member.mark, out)
    elif not ahead:
        _report_blocked(member, member.mark, out)


def _on_compared(at: Situation, member: Member, records: Sequence[Record], out: list[Effect]) -> bool:
    source = member.source
    assert source is not None
    transaction_id = member.compared
    record = records[0] if records and records[0].transaction_id == transaction_id else None
    member.phase = ReplicaPhase.IDLE
    if member.kept is None:
        if record is None:
            member.refuse(f"it does not give out its own record {transaction_id}", out)
        elif source.alive:
            member.kept = record
            member.phase = ReplicaPhase.COMPARING
            _ask(source, member, transaction_id, 1, out)
    elif member.unknown and record == member.kept:
        member.common = transaction_id
        return transaction_id == member.mark
    elif member.unknown:
        member.differs[source.replica] = transaction_id
    elif record is None:
        _no_answer(at, member, source, transaction_id, out)
    elif record == member.kept:
        member.vouched = True
    elif at.resolved is None:
        member.avoid.add(source.replica)  # an undecided tail may differ; once it is decided we ask again
    else:
        reason = f"its record {transaction_id} is not the one of {source.replica}; its copy must be replaced"
        member.refuse(reason, out)
    return False


def _ask(source: Member, member: Member, first: int, count: int, out: list[Effect]) -> None:
    member.asked = source.replica
    out.append(ReadRecords(source.replica, member.replica, first, count))

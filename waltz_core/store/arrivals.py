"""How a replica is judged when it arrives: what it may keep, and what its log is worth as evidence.

Three things are compared: the *entry* of the replica in the states that ZooKeeper holds (a session, and either
"unresolved", it took part in that session, or a closing mark up to which its log was good when a later session
resolved it), the *last* session of the states, and what the replica itself remembers: the session that marked it last
and its *own* low-water mark. `case_of` names the case, `TABLE` says what follows from it, `arrival` puts both together
and is all there is to it: no state, no effect.

| case | entry | marked by | kept until | standing |
|---|---|---|---|---|
| NO_STATES | no states at all, own mark -1 | | its end | VOTER |
| RECORDS_WITHOUT_STATES | no states at all, own mark ≥ 0 | | held for an operator | VOTER |
| UNKNOWN_SESSION | | a session that the states do not know to have taken it in | probed first, then judged again | |
| NEW | none | | own mark | OUTSIDE |
| SET_BACK | unresolved | an older session | own mark | OUTSIDE |
| SET_BACK_AND_CLOSED | closed | an older session | the lower mark | UNPROVEN |
| CLOSED | closed | that session | closing mark | COUNTED |
| NEVER_NAMED | closed under session -1 | that session: none | closing mark | UNPROVEN |
| MARKED_BELOW | closed, not below its own mark | a session in between | the lower mark | COUNTED |
| NEVER_NAMED_BELOW | the same, under session -1 | a session in between | the lower mark | UNPROVEN |
| MARKED_ABOVE | closed below its own mark | a session in between | own mark | UNPROVEN |
| MARKED_BY_LAST | closed | the last session | own mark | COUNTED |
| MARKED_SINCE | closed | a later session than the last | own mark | VOTER |
| TOOK_PART | unresolved | that session | its end | VOTER |
| TOOK_PART_MARKED_SINCE | unresolved | a later session | own mark | VOTER |

Why so:

- A session that marked a replica and died before its states were written has committed nothing: what lies above that
  mark is nobody's (TOOK_PART_MARKED_SINCE, MARKED_SINCE). Everything below was decided when it was marked.
- A replica that remembers less than ZooKeeper says was set back, or wiped: what it acknowledged may be gone, so it is
  as absent (SET_BACK). If the states had closed it, the log up to the lower mark is at least what they say it was.
- The closing mark of a replica that never took part (session -1) was written for it unseen, so below it may be what an
  earlier membership left there. That is compared, record by record at its end, with a member's before it counts.

After the answer, `settled` completes the standing: a replica that holds less than it once acknowledged counts as absent
and one that ends below its own mark has no vote.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final

from waltz_core.base.log import SessionInfo
from waltz_core.base.record import record
from waltz_core.zookeeper.partition_metadata import is_unknown, last_session
from waltz_core.zookeeper.znodes import UNRESOLVED, ReplicaState


class Case(enum.Enum):
    """What the states and the replica say of each other: see the table above."""

    NO_STATES = enum.auto()
    RECORDS_WITHOUT_STATES = enum.auto()
    UNKNOWN_SESSION = enum.auto()
    NEW = enum.auto()
    SET_BACK = enum.auto()
    SET_BACK_AND_CLOSED = enum.auto()
    CLOSED = enum.auto()
    NEVER_NAMED = enum.auto()
    MARKED_BELOW = enum.auto()
    NEVER_NAMED_BELOW = enum.auto()
    MARKED_ABOVE = enum.auto()
    MARKED_BY_LAST = enum.auto()
    MARKED_SINCE = enum.auto()
    TOOK_PART = enum.auto()
    TOOK_PART_MARKED_SINCE = enum.auto()


class Keep(enum.Enum):
    """Up to where a replica keeps its log."""

    ALL = enum.auto()  # its highest id is asked, and decided upon
    OWN = enum.auto()  # up to its own low-water mark
    CLOSING = enum.auto()  # up to the closing mark
    LOWER = enum.auto()  # up to the lower one of both
    HELD = enum.auto()  # untouched, until an operator decides


@record
class Standing:
    """What a replica's log is worth: see `VOTER` and its neighbours."""

    counted: bool  # it supports marks in the decision; otherwise it is as absent
    vouched: bool  # its records are known to be those of the log
    may_vote: bool  # its end is evidence of what the last session committed


VOTER: Final = Standing(counted=True, vouched=True, may_vote=True)
COUNTED: Final = Standing(counted=True, vouched=True, may_vote=False)
UNPROVEN: Final = Standing(counted=True, vouched=False, may_vote=False)  # COUNTED, once compared
OUTSIDE: Final = Standing(counted=False, vouched=False, may_vote=False)  # never evidence; copied to, once compared


@record
class Arrival:
    """The judgement: `keep_until` is None where the highest id is asked, or the replica is held."""

    case: Case
    standing: Standing
    keep: Keep
    keep_until: int | None = None


TABLE: Final[Mapping[Case, tuple[Keep, Standing]]] = {
    Case.NO_STATES: (Keep.ALL, VOTER),
    Case.RECORDS_WITHOUT_STATES: (Keep.HELD, VOTER),
    Case.UNKNOWN_SESSION: (Keep.ALL, COUNTED),
    Case.NEW: (Keep.OWN, OUTSIDE),
    Case.SET_BACK: (Keep.OWN, OUTSIDE),
    Case.SET_BACK_AND_CLOSED: (Keep.LOWER, UNPROVEN),
    Case.CLOSED: (Keep.CLOSING, COUNTED),
    Case.NEVER_NAMED: (Keep.CLOSING, UNPROVEN),
    Case.MARKED_BELOW: (Keep.LOWER, COUNTED),
    Case.NEVER_NAMED_BELOW: (Keep.LOWER, UNPROVEN),
    Case.MARKED_ABOVE: (Keep.OWN, UNPROVEN),
    Case.MARKED_BY_LAST: (Keep.OWN, COUNTED),
    Case.MARKED_SINCE: (Keep.OWN, VOTER),
    Case.TOOK_PART: (Keep.ALL, VOTER),
    Case.TOOK_PART_MARKED_SINCE: (Keep.OWN, VOTER),
}


def case_of(entry: ReplicaState | None, last: int | None, info: SessionInfo) -> Case:
    """Name the case.

    Args:
        entry: what the states say of the replica.
        last: the last session of the states; None if there are no states.
        info: what the replica remembers.
    """
    if last is None:
        return Case.NO_STATES if info.low_water_mark < 0 else Case.RECORDS_WITHOUT_STATES
    if entry is None:
        return Case.NEW
    took_part = entry.closing_mark == UNRESOLVED
    if info.session_id < entry.session_id:
        return Case.SET_BACK if took_part else Case.SET_BACK_AND_CLOSED
    if took_part:
        return Case.TOOK_PART if info.session_id == entry.session_id else Case.TOOK_PART_MARKED_SINCE
    return _closed_case(entry, last, info)


def _closed_case(entry: ReplicaState, last: int, info: SessionInfo) -> Case:
    """One that took no part in the last session."""
    never_named = entry.session_id < 0
    if info.session_id == entry.session_id:
        return Case.NEVER_NAMED if never_named else Case.CLOSED
    if info.session_id > last:
        return Case.MARKED_SINCE
    if info.session_id == last:
        return Case.MARKED_BY_LAST
    if info.low_water_mark > entry.closing_mark:
        return Case.MARKED_ABOVE
    return Case.NEVER_NAMED_BELOW if never_named else Case.MARKED_BELOW


def arrival(states: Mapping[str, ReplicaState], replica: str, info: SessionInfo, *, probed: bool) -> Arrival:
    """Judge a replica that has answered `info`.

    Args:
        states: of the metadata, by replica.
        probed: whether it is known what an unknown session has appended there.
    """
    if not probed and is_unknown(states, replica, info.session_id):
        keep, standing = TABLE[Case.UNKNOWN_SESSION]
        return Arrival(Case.UNKNOWN_SESSION, standing, keep)
    entry = states.get(replica)
    case = case_of(entry, last_session(states) if states else None, info)
    keep, standing = TABLE[case]
    own, closing = info.low_water_mark, UNRESOLVED if entry is None else entry.closing_mark
    marks = {Keep.OWN: own, Keep.CLOSING: closing, Keep.LOWER: min(own, closing)}
    return Arrival(case, standing, keep, marks.get(keep))


def settled(standing: Standing, info: SessionInfo, start: int, mark: int) -> Standing:
    """The standing of a replica whose log turned out to begin at `start` and to end at `mark`."""
    # It once held more than it does: it may have lost what it acknowledged.
    lost = standing.may_vote and mark < info.local_low_water_mark
    return Standing(
        counted=standing.counted and not lost,
        vouched=standing.vouched or mark < start,  # nothing is left to compare
        may_vote=standing.may_vote and mark >= info.low_water_mark,
    )


def ended(mark: int, info: SessionInfo, others: Iterable[SessionInfo], last: int) -> int:
    """Up to where a replica that holds `mark` can hold the log, by what the newest session marked.

    A session marks replicas once it has decided where the log ends. What others hold above that, from older sessions,
    was not committed. And if it opened, which metadata that were set back do not say, clients were told so.

    Args:
        others: what those remember that arrived and that the states name; of another one nobody knows whose mark it is.
        last: the last session of the states, which says itself what became of older ones.
    """
    newest = max(others, key=lambda other: (other.session_id, other.low_water_mark), default=info)
    if newest.session_id <= max(last, info.session_id):
        return mark
    return min(mark, max(newest.low_water_mark, info.low_water_mark))  # no replica goes below its own mark

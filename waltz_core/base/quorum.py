"""Majority arithmetic, free of any notion of connection or session."""

from __future__ import annotations

from collections.abc import Iterable

from waltz_core.base.record import record


def majority(n: int) -> int:
    """Votes needed among `n` replicas."""
    return n // 2 + 1


@record
class Decision:
    """Outcome of `decide`: a mark, or why there is none."""

    mark: int | None  # the decided end of the log
    blocked: int | None  # the highest mark that absent replicas could still make win


def decide(marks: Iterable[int], *, lowest: int, absent: int, quorum: int) -> Decision:
    """Find the highest mark that a quorum of the last session's replicas holds.

    A replica at a mark supports every lower mark too, since logs are prefixes of one another.

    Args:
        marks: highest ids of the replicas of the last session that are present.
        lowest: no mark below this may win: the smallest that a voter reported.
        absent: replicas of the last session that are not in `marks`; together with a mark's support
            they may have committed it, so nothing below such a mark is decided.
        quorum: of the last session.
    """
    ranked = sorted(marks, reverse=True)
    blocked: int | None = None
    for support, mark in enumerate(ranked, start=1):
        if mark < lowest:
            break
        if support < len(ranked) and ranked[support] == mark:
            continue  # equals count together
        if support >= quorum:
            return Decision(mark if blocked is None else None, blocked)
        if support + absent >= quorum and blocked is None:
            blocked = mark
    return Decision(None, blocked)

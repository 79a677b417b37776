"""Majority arithmetic, free of any notion of connection or session."""

from __future__ import annotations

from collections.abc import Iterable


def majority(n: int) -> int:
    """Votes needed among `n` replicas."""
    return n // 2 + 1


def decide(marks: Iterable[int], *, lowest: int, absent: int, quorum: int) -> int | None:
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
    blocked = False  # absent replicas could still make a higher mark win
    for support, mark in enumerate(ranked, start=1):
        if mark < lowest:
            break
        if support < len(ranked) and ranked[support] == mark:
            continue  # equals count together
        if support >= quorum:
            return None if blocked else mark
        blocked = blocked or support + absent >= quorum
    return None

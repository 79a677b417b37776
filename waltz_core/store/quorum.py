"""Majority arithmetic, free of any notion of connection or session."""

from __future__ import annotations

from collections.abc import Iterable

from waltz_core.base.record import record


def majority(n: int) -> int:
    """Votes needed among `n` replicas."""
    return n // 2 + 1


class Votes:
    """Votes and abstentions of a fixed number of voters on one question.

    Votes are looked at first: a question that has its quorum stays won, whoever abstains later.
    """

    __slots__ = ("_abstentions", "_quorum", "_voters", "_votes")

    def __init__(self, quorum: int, voters: int) -> None:
        self._quorum = quorum
        self._voters = voters
        self._votes = 0
        self._abstentions = 0

    def vote(self) -> None:
        """One voter agrees."""
        self._votes += 1

    def abstain(self) -> None:
        """One voter will never agree."""
        self._abstentions += 1

    @property
    def has_quorum(self) -> bool:
        """Whether enough voters agreed."""
        return self._votes >= self._quorum

    @property
    def has_abstention(self) -> bool:
        """Whether any voter is lost for good."""
        return self._abstentions > 0

    @property
    def outcome(self) -> bool | None:
        """True when won, False when it cannot be won any more, None while it is open."""
        if self.has_quorum:
            return True
        return False if self._abstentions > self._voters - self._quorum else None


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

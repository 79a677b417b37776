"""What a diagnosis is made of: findings, and the order that puts a cause before what follows from it.

A rule names the *subjects* that its finding explains (`about`: a storage node, a partition) and those that would
explain it (`because`). `fold` puts each finding below the first one that explains it, so that one lost quorum is one
finding with its consequences behind it, and not a dozen of equal rank.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from waltz_core.base.record import record

Subject = tuple[str, str]  # kind and name, such as ("storage", "host:port")


@record
class Finding:
    """One thing that is wrong."""

    cause: str  # a fixed word, for programs
    evidence: str
    command: str  # that mends it, or the next step towards that
    about: tuple[Subject, ...] = ()  # what this finding explains
    because: tuple[Subject, ...] = ()  # what would explain it
    settles: bool = False  # it may end by itself within seconds: look again before calling it wrong
    follows: tuple[Finding, ...] = ()  # the consequences, filled in by `fold`

    def rows(self) -> tuple[Finding, ...]:
        """This finding and everything that follows from it, causes first."""
        return (self, *(row for consequence in self.follows for row in consequence.rows()))


def storage(name: str) -> Subject:
    """A storage node."""
    return "storage", name


def server(name: str) -> Subject:
    """A registered server."""
    return "server", name


def partition(partition_id: int) -> Subject:
    """A partition, as its owner sees it."""
    return "partition", str(partition_id)


def replica(partition_id: int, storage_name: str) -> Subject:
    """A partition on one storage node."""
    return "replica", f"{partition_id} {storage_name}"


def unassigned(partition_id: int) -> Subject:
    """That no storage node is assigned a partition."""
    return "unassigned", str(partition_id)


def port(name: str) -> Subject:
    """A port that shows a certificate."""
    return "port", name


SERVERS: Subject = ("servers", "")  # that there are any


def fold(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Each finding below the first of the earlier ones that explains it; equal ones once.

    Args:
        findings: causes before consequences.

    Returns:
        The roots, in their order.
    """
    ordered = tuple(dict.fromkeys(findings))
    explained_by: dict[Subject, int] = {}
    roots: list[int] = []
    below: dict[int, list[int]] = {}
    for number, finding in enumerate(ordered):
        causes = [explained_by[subject] for subject in finding.because if subject in explained_by]
        if causes:
            root = min(causes)
            below[root].append(number)
        else:
            root = number
            roots.append(number)
            below[root] = []
        for subject in finding.about:
            explained_by.setdefault(subject, root)
    return tuple(
        attrs.evolve(ordered[root], follows=tuple(ordered[number] for number in below[root]))
        if below[root]
        else ordered[root]
        for root in roots
    )


def ranges_text(numbers: Iterable[int]) -> str:
    """Whole numbers as people and commands write them: `0-3,7`."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)

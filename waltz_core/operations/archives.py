"""What is wrong with archives that servers keep by policy, by the servers' own account: rules of `waltz doctor`."""

from __future__ import annotations

from collections.abc import Iterator

from waltz_core.operations import findings
from waltz_core.operations.findings import Finding, Subject, ranges_text
from waltz_core.operations.view import ArchiveView, ClusterView, ServerView

FILES_BEHIND = 10  # whole files that wait to be archived: more than a policy that keeps up ever has
_FREES_NOT = "the log start cannot rise"  # how the reason begins where it is replicas that keep anything from going


def archives(view: ClusterView) -> Iterator[Finding]:
    """Of all partitions that servers archive."""
    archiving = [server for server in view.servers if _kept_by(server)]
    for server in archiving:
        yield from _troubles(view, server)
        behind = {number: kept for number, kept in _kept_by(server).items() if kept.files_due >= FILES_BEHIND}
        waiting = sum(kept.lag for kept in behind.values())
        if behind and not any(kept.trouble for kept in behind.values()):
            yield Finding(
                "archive-behind",
                f"server {server.name} does not keep up with archiving partition{'s' * (len(behind) > 1)} "
                f"{ranges_text(behind)}: {waiting:,} records wait, {sum(kept.files_due for kept in behind.values()):,} "
                "whole files",
                "it catches up by itself if fewer records come than it archives; a large log that was never archived "
                "goes faster in bulk, beside it: waltz spark archive -c CONFIG --to LOCATION, with archive.location",
                because=(findings.server(server.name),),
                settles=True,
            )
    for server in view.servers:
        if archiving and server.figures and server.partitions and not _kept_by(server):
            others = ", ".join(other.name for other in archiving)
            yield Finding(
                "archive-not-everywhere",
                f"server {server.name} has no archive, as {others} ha{'ve' if len(archiving) > 1 else 's'}: partitions "
                f"{ranges_text(server.partitions)} are not archived, and nobody reads there from before the log start",
                "put the keys archive.* of the other servers into the configuration of this one, then restart it: "
                "waltz server run CONFIG.yml",
                because=(findings.server(server.name),),
            )


def _troubles(view: ClusterView, server: ServerView) -> Iterator[Finding]:
    """Partitions with the same trouble are one finding."""
    alike: dict[str, list[int]] = {}
    for number, kept in _kept_by(server).items():
        if kept.trouble:
            alike.setdefault(kept.trouble, []).append(number)
    for reason, partitions in alike.items():
        because: tuple[Subject, ...] = findings.server(server.name), *map(findings.partition, partitions)
        if reason.startswith(_FREES_NOT):
            replicas = (name for number in partitions for name in view.replicas_of(number))
            because = *because, *map(findings.storage, dict.fromkeys(replicas))
        yield Finding(
            "archive-trouble",
            f"server {server.name} cannot archive, or read through the archive, partition{'s' * (len(partitions) > 1)} "
            f"{ranges_text(partitions)}: {reason}; appends continue, nothing is freed",
            _way_out(reason),
            because=because,
            settles=True,
        )


def _way_out(reason: str) -> str:
    if reason.startswith(_FREES_NOT):
        return "bring back the replicas that are named; what is archived goes from the storage nodes then"
    if "another" in reason:
        return (
            "archive.location in the configuration of the server names another archive than that of this log: correct "
            "it, or begin a new archive where there is none, then restart the server: waltz server run CONFIG.yml"
        )
    return (
        "check archive.location of the server: whether it is there, may be written, has room, and its credentials; "
        "whether it is whole: waltz spark verify --archive LOCATION; the server resumes by itself"
    )


def uncovered(view: ClusterView) -> Iterator[Finding]:
    """Notices: transactions that are neither on storage nodes nor in the archive."""
    gone: dict[int, list[int]] = {}
    for server in view.servers:
        for number, kept in _kept_by(server).items():
            first = kept.log_start if kept.first is None else min(kept.first, kept.log_start)
            if first > 0 and not kept.trouble:
                gone.setdefault(first, []).append(number)
    for first, partitions in gone.items():
        yield Finding(
            "archive-begins-late",
            f"transactions 0 to {first - 1:,} of partition{'s' * (len(partitions) > 1)} {ranges_text(partitions)} are "
            "neither on the storage nodes nor in the archive: who reads from before gets BeforeStartError",
            "if a copy of the older archive exists, put it in place of archive.location: waltz spark verify --archive "
            "LOCATION tells what it holds",
        )


def _kept_by(server: ServerView) -> dict[int, ArchiveView]:
    """What a server says of the archive of each partition that it owns."""
    views = ((number, server.archive(number)) for number in server.partitions or ())
    return {number: kept for number, kept in views if kept is not None}

"""What is wrong with replicas, by their own account: rules of `waltz doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from waltz_core.base.quorum import majority
from waltz_core.operations import findings
from waltz_core.operations.findings import Finding
from waltz_core.operations.view import ClusterView, ReplicaView, StorageView

LAG_MAX = 100_000  # transactions that a replica may be behind the best one before it is reported
_NOTHING_LEFT = "data files are gone", "neither state of partition"  # in the reasons of a limbo
_SPANS_MAX = 5  # of damaged records, shown


def replicas(view: ClusterView) -> Iterator[Finding]:
    """What each says of itself."""
    for node in view.storages:
        for replica in (node.replicas or {}).values():
            yield from _replica(view, node, replica)


def _replica(view: ClusterView, node: StorageView, replica: ReplicaView) -> Iterator[Finding]:
    name, number = f"partition {replica.partition_id} on storage node {node.name}", replica.partition_id
    here = f"-c CONFIG -s {node.admin} -p {number}"
    about = (findings.replica(number, node.name),)
    if replica.state == "limbo":
        yield Finding(
            "limbo",
            f"{name} is in limbo: {replica.reason}",
            f"waltz storage repair {here}; if that does not mend it: {_last_way_out(view, node, replica, here)}",
            about=about,
        )
    elif replica.state == "stopped":
        yield Finding(
            "disk-error",
            f"{name} has stopped: {replica.reason}",
            f"check disk, room and file system; then waltz storage repair {here}, or restart the node: it fetches what "
            "is missing",
            about=about,
            because=(findings.storage(node.name),),
        )
    elif replica.suspects:
        plural = "s" if replica.damaged > 1 else ""
        yield Finding(
            "damaged-records",
            f"{name} has {replica.damaged} damaged record{plural}: transaction{plural} {_spans(replica.suspects)}",
            _mended_by(view, node, replica, f"waltz storage repair {here}"),
            about=about,
        )
    # Who is in limbo or has stopped serves nothing either, but nobody took it out.
    if not replica.available and replica.state not in ("limbo", "stopped"):
        yield Finding(
            "offline",
            f"{name} was taken out of service",
            f"waltz storage availability {here} -o true",
            about=about,
        )


def _last_way_out(view: ClusterView, node: StorageView, replica: ReplicaView, here: str) -> str:
    """What ends a limbo that no repair does; where nothing is left to accept, `accept-limbo` refuses.

    Not while this may be the best copy that can be reached.
    """
    others = [copy for other, copy in view.copies_of(replica.partition_id) if other is not node]
    sound = sum(copy.state in (None, "open") and copy.available for copy in others)
    if sound < majority(len(view.replicas_of(replica.partition_id))):
        return "first bring the partition's other storage nodes back, as this may be the best copy of it that is left"
    if any(text in replica.reason for text in _NOTHING_LEFT):
        return f"waltz storage remove-partition {here} --delete-storage-files; waltz storage add-partition {here}"
    return f"waltz storage accept-limbo {here}"


def _mended_by(view: ClusterView, node: StorageView, replica: ReplicaView, repair: str) -> str:
    """The repair, and what it needs where no other node has good records for it."""
    others = [copy for other, copy in view.copies_of(replica.partition_id) if other is not node]
    lost = [span for span in replica.suspects if not any(copy.has_whole(*span) for copy in others)]
    if not lost:
        return repair
    return (
        f"no storage node that answers has transactions {_spans(lost)} whole: bring back one that has, or stop one and "
        f"put the partition's files back from its backup; then {repair}"
    )


def _spans(spans: Sequence[tuple[int, int]]) -> str:
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans[:_SPANS_MAX])
    return shown + ", …" * (len(spans) > _SPANS_MAX)


def lags(view: ClusterView) -> Iterator[Finding]:
    """Those that end far before the others, or take no part in the session and are behind."""
    for partition_id in range(view.num_partitions):
        copies = [(node, replica.max_id) for node, replica in view.copies_of(partition_id)]
        best = max((max_id for _, max_id in copies if max_id is not None), default=-1)
        named = view.named_in(partition_id)
        source = next((node.admin for node, max_id in copies if max_id == best), "")
        for node, max_id in copies:
            if max_id is None:
                continue
            outside = node.name in named and not view.is_level(partition_id, node.name)
            behind = best - max_id
            if behind > LAG_MAX or (outside and behind > 0):
                here = f"-s {node.admin} -p {partition_id}"
                yield Finding(
                    "lagging-replica",
                    f"partition {partition_id} on storage node {node.name} ends at {max_id}, {behind:,} behind",
                    f"it catches up by itself; if it does not: waltz storage availability -c CONFIG {here} -o false; "
                    f"waltz storage recover-partition -c CONFIG -s {source} -d {node.admin} "
                    f"-dp {node.name.rpartition(':')[2]} -p {partition_id} -b 1000; "
                    f"waltz storage availability -c CONFIG {here} -o true",
                    because=(findings.storage(node.name), findings.replica(partition_id, node.name)),
                    settles=True,
                )

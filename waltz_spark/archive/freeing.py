"""Freeing archived records: they are verified again, and freed if a quorum of replicas equals the archive."""

from __future__ import annotations

from waltz_core.base.quorum import majority
from waltz_core.base.record import record
from waltz_spark.archive.archive import Check, check_not_ahead, run_verification
from waltz_spark.base.errors import ArchiveError, OptionError
from waltz_spark.base.planning import Place, Range, StoragePlace, clip
from waltz_spark.base.runners import OnProgress, Runner
from waltz_spark.read.cluster import Cluster
from waltz_spark.read.inventory import Inventory
from waltz_spark.read.options import Options, check_number
from waltz_spark.records.manifest import ArchivedFile, ArchiveState, read_archive

_PATIENCE = 60.0  # seconds for a store session in which the log start can be raised


@record
class Freed:
    """What one partition gives up: ids `start .. end - 1`."""

    partition: int
    start: int
    end: int


@record
class FreePlan:
    """What would be freed."""

    options: Options
    state: ArchiveState
    partitions: tuple[Freed, ...]
    checks: tuple[Check, ...]
    quorums: tuple[int, ...]  # replicas that must be equal, by check


def plan_free(options: Options, root: str, *, keep_local: int = 0) -> FreePlan:
    """Plan what a running cluster may free because an archive holds it: whole files of the archive only.

    Args:
        keep_local: so many of the newest ids of each partition stay on the storage nodes.

    Raises:
        OptionError: no running cluster is named, or not where its replicas are, or nothing tells how many there are;
            `keep_local` is below 0.
        ArchiveError: the archive is of another cluster, or ahead of the log, its hash chain is broken, or too few
            replicas can be compared.
        UnreachableError: the cluster does not answer.
    """
    check_number("keep_local", keep_local, 0)
    inventory, state = Inventory(options), read_archive(root)
    try:
        cluster = inventory.cluster
        if cluster is None:
            raise OptionError("freeing needs the running cluster: give url or zookeeper")
        if (state.key, state.partition_count) != (inventory.key, inventory.partition_count):
            raise ArchiveError(f"{root} is the archive of another cluster")
        marks = cluster.marks(inventory.partitions)
        freed: list[Freed] = []
        checks: list[Check] = []
        quorums: list[int] = []
        for partition in inventory.partitions:
            start, limit = cluster.log_start(partition), marks.ends[partition] - keep_local
            check_not_ahead(state, partition, marks.ends[partition])
            files = [one for one in state.files_of(partition) if start < one.end_id <= limit]
            if not files:
                continue
            if files[0].first_id > start:
                ids = f"ids {start} to {files[0].first_id - 1} of partition {partition}"
                raise ArchiveError(f"{root} does not hold {ids}, which the cluster has")
            places = cluster.places(partition, marks.sessions[partition], "storage")
            if not places:
                raise OptionError("freeing compares replicas: give adminEndpoints, or zookeeper instead of url")
            quorums += [_needed(cluster, partition, len(places))] * len(files)
            # Of the first file the cluster may have a part only, which is compared as the others are.
            checks += [Check(state.root, file, _replicas(places, file, start), start) for file in files]
            freed.append(Freed(partition, start, files[-1].end_id))
        return FreePlan(options, state, tuple(freed), tuple(checks), tuple(quorums))
    finally:
        inventory.close()


def _needed(cluster: Cluster, partition: int, named: int) -> int:
    """How many replicas must be equal to the archive: of all that there are, not of those that are named."""
    count = cluster.replica_count(partition)
    needed = majority(count)
    if named < needed:
        silent = "".join(f"; {text}" for text in cluster.silent.values())
        raise ArchiveError(
            f"partition {partition}: {named} of its {count} replicas can be compared with the archive, and "
            f"{needed} are needed before anything is freed: give the admin ports of all storage nodes "
            f"(adminEndpoints), or zookeeper instead of url{silent}"
        )
    return needed


def _replicas(places: tuple[Place, ...], file: ArchivedFile, start: int) -> tuple[tuple[str, tuple[Range, ...]], ...]:
    """Where the ids of a file from `start` on stand in each replica."""
    return tuple(
        (str(place.endpoint), (part,))
        for place in places
        if isinstance(place, StoragePlace)
        and (
            part := clip(Range(file.partition, file.first_id, file.end_id, file.raw_size, (place,)), start, file.end_id)
        )
    )


def run_free(plan: FreePlan, runner: Runner, on_progress: OnProgress | None = None) -> tuple[Freed, ...]:
    """Verify, then raise the log starts; what each partition gave up.

    Raises:
        ArchiveError: a file is damaged, or differs from replicas; nothing was freed.
        SourceRefusedError: a replica is on a node that cannot give up anything.
        UnreachableError: the cluster did not do it in time; some partitions may have.
    """
    verdicts = run_verification(plan.checks, runner, on_progress)
    for verdict, quorum in zip(verdicts, plan.quorums, strict=True):
        if verdict.problems or verdict.unread or verdict.compared < quorum:
            problems = "; ".join((*verdict.problems, *verdict.unread)) or "nothing to compare with"
            raise ArchiveError(
                f"{plan.state.root}/{verdict.file.path}: equal on {verdict.compared} replicas, {quorum} are needed "
                f"before anything is freed: {problems}"
            )
    cluster = Cluster(plan.options)
    try:
        return tuple(
            Freed(one.partition, one.start, cluster.raise_log_start(one.partition, one.end, _PATIENCE))
            for one in plan.partitions
        )
    finally:
        cluster.close()

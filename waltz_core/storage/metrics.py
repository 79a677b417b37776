"""The metrics a storage node tells its tools, with the names and JSON shape of 0.13.2."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from waltz_core.storage.replica import State, StorageReplica
from waltz_core.wire.shared import Statistic

_GROUP = "waltz-storage"


def gauges(replicas: Iterable[StorageReplica], version: str) -> dict[str, object]:
    """Full gauge names and values."""
    assigned = [replica for replica in replicas if replica.entry.current.assigned]
    values: dict[str, object] = {
        f"{_GROUP}.waltz-storage-num-partitions": len(assigned),
        f"{_GROUP}.waltz-storage-partition-ids": [replica.partition_id for replica in assigned],
        f"{_GROUP}.waltz-version-id": version,
    }
    for replica in assigned:
        current = replica.entry.current
        group = f"{_GROUP}.partition-{replica.partition_id}"
        values[f"{group}.session-id"] = current.session_id
        values[f"{group}.low-water-mark"] = current.low_water_mark
        values[f"{group}.local-low-water-mark"] = current.local_low_water_mark
        values[f"{group}.flags"] = current.flags
        values[f"{group}.sequence-number"] = current.sequence
        values[f"{group}.max-transaction-id"] = replica.max_id
        values[f"{group}.process-queue-size"] = replica.queue_count
        values[f"{group}.fence"] = replica.fence
        values[f"{group}.state"] = replica.state.value
        values[f"{group}.reason"] = replica.reason
        values[f"{group}.damaged-transactions"] = len(replica.faults)
    return values


def counters(replicas: Iterable[StorageReplica]) -> dict[str, int]:
    """Full counter names and counts; `append` is a meter in 0.13.2."""
    return {
        f"{_GROUP}.partition-{replica.partition_id}.{name}": count
        for replica in replicas
        if replica.state is not State.UNASSIGNED
        for name, count in replica.counters.items()
    }


def as_json(replicas: list[StorageReplica], version: str) -> str:
    """What `MetricsResponse` carries."""
    counted = counters(replicas)
    meters = {name: {"count": count} for name, count in counted.items() if name.endswith(".append")}
    plain = {name: {"count": count} for name, count in counted.items() if name not in meters}
    known = {name: {"value": value} for name, value in gauges(replicas, version).items()}
    ids = [{"group": name.rpartition(".")[0], "name": name.rpartition(".")[2]} for name in (*known, *counted)]
    tree = {
        "metrics": {**known, **plain, **meters},
        "ids": ids,
        "gauges": known,
        "counters": plain,
        "histograms": {},
        "meters": meters,
        "timers": {},
    }
    return json.dumps(tree, indent=2)


def statistics_of(
    replicas: Iterable[StorageReplica],
    space: tuple[int, int] | None,
    partition_id: int,
    prefixes: Sequence[str],
    access_level: int = 0,
) -> tuple[Statistic, ...]:
    """Figures of one partition (-1: of all and of the process) whose names start with a prefix (none: all).

    Args:
        replicas: of the node.
        space: bytes that are free on the disk, and that appends leave free.
        partition_id: of one partition, or -1.
        prefixes: of names.
        access_level: whom the node serves, an `AccessLevel`.
    """
    wanted = tuple(prefixes) or ("",)
    chosen = [replica for replica in replicas if partition_id in (-1, replica.partition_id)]
    found = [Statistic("access-level", -1, access_level)] if partition_id == -1 else []
    if partition_id == -1 and space is not None:
        found += [Statistic("disk-free-bytes", -1, space[0]), Statistic("disk-reserve-bytes", -1, space[1])]
    for replica in chosen:
        prefix = f"{_GROUP}.partition-{replica.partition_id}."
        values = {**gauges([replica], ""), **counters([replica])}
        for name, value in values.items():
            if name.startswith(prefix) and isinstance(value, int):
                found.append(Statistic(name.removeprefix(prefix), replica.partition_id, value))
    return tuple(statistic for statistic in found if statistic.name.startswith(wanted))

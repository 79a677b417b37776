"""The metrics of a storage node, with the names and JSON shape of 0.13.2."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from waltz_core.access.roles import access_level
from waltz_core.storage.context import NodeContext
from waltz_core.storage.replica import State, StorageReplica
from waltz_core.wire.shared import AWAITED, STARTED, Statistic
from waltz_core.wire.storage_messages import CAPABILITIES, StorageCapability

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
        values[f"{group}.process-queue-size"] = len(replica.lane.jobs)
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


def as_json(replicas: Sequence[StorageReplica], version: str) -> str:
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
    context: NodeContext,
    replicas: Iterable[StorageReplica],
    awaited: Mapping[tuple[int, str], int],
    partition_id: int,
    prefixes: Sequence[str],
) -> tuple[Statistic, ...]:
    """Figures of one partition (-1: of all and of the process) whose names start with a prefix (none: all)."""
    config, wanted = context.config, tuple(prefixes) or ("",)
    statistics = []
    if partition_id == -1:
        level = access_level(config.roles, certificates_asked=config.certificates_asked)
        statistics.append(Statistic("access-level", -1, level))
        statistics.append(Statistic(STARTED, -1, context.started_ms))
        statistics.append(Statistic(CAPABILITIES, -1, sum(StorageCapability)))
        if context.free_bytes is not None:
            statistics.append(Statistic("disk-free-bytes", -1, context.free_bytes))
            statistics.append(Statistic("disk-reserve-bytes", -1, config.reserve_bytes))
    for (of, purpose), count in awaited.items():
        if partition_id in (-1, of):
            statistics.append(Statistic(f"{AWAITED}{purpose}", of, count))
    for replica in replicas:
        if partition_id not in (-1, replica.partition_id):
            continue
        prefix = f"{_GROUP}.partition-{replica.partition_id}."
        values = {**gauges([replica], ""), **counters([replica])}
        for name, value in values.items():
            if name.startswith(prefix) and isinstance(value, int):
                statistics.append(Statistic(name.removeprefix(prefix), replica.partition_id, value))
    return tuple(statistic for statistic in statistics if statistic.name.startswith(wanted))

"""What a server waits for, in words: read from the tables of what is awaited, for `waltz doctor` and the simulator.

A process owes an answer to nobody whose record is not in a table (`base/pending.py`): that of the process, and that of
each store session; repairs have one of their own, by connection. So this needs no book of its own, and cannot differ
from what is really awaited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from waltz_core.server.context import (
    Awaited,
    IdStep,
    JournalAsked,
    MetadataAsked,
    PortsRead,
    PreferenceStep,
    ReplicaAsked,
)
from waltz_core.store.requests import Awaited as Request
from waltz_core.store.requests import described


def awaited_by(pending: Iterable[Awaited], repairs: Iterable[tuple[int, str]] = ()) -> dict[int, Counter[str]]:
    """What is awaited by each partition (-1: by the process), and how often; sessions list their own requests.

    Args:
        pending: the table of the process.
        repairs: partition and replica of each repair that a storage node has yet to answer.
    """
    counts: dict[int, Counter[str]] = {}
    for what in pending:
        match what:
            case IdStep() | PreferenceStep():
                partition_id, text = -1, f"ZooKeeper: {what.value}"
            case MetadataAsked(partition_id, step):
                text = f"ZooKeeper: {step.value}"
            case PortsRead(partition_id, replica):
                text = f"ZooKeeper: the admin port of {replica} is read"
            case JournalAsked(partition_id):
                text = "the disk: the decision journal is written"
            case ReplicaAsked():
                continue
        counts.setdefault(partition_id, Counter())[text] += 1
    for partition_id, replica in repairs:
        counts.setdefault(partition_id, Counter())[f"storage node {replica}: the repair of its copy"] += 1
    return counts


def awaited_of(own: Counter[str], requests: Iterable[Request]) -> tuple[tuple[str, int], ...]:
    """What a partition awaits: its own, and what its store session has asked of replicas."""
    asked = [described(request) for request in requests]
    if asked:
        return tuple((own + Counter(asked)).items())
    return tuple(own.items())  # in a quiet partition counting would cost more than all the rest of its snapshot

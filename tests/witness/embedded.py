"""Watches every cluster that a test runs in this process, and judges its disks when it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.witness.log import check_disks, read_replica, read_start
from waltz_core.client.calls import Committed, Failed, Submit, SubmitMany
from waltz_core.client.node import ClientNode
from waltz_trio.node.embedded import EmbeddedCluster


class EmbeddedWitness:
    """What clients were told, against what the disks hold.

    Attributes:
        off: the test damages disks on purpose.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.off = False
        self.judged = 0
        self._directories: set[Path] = set()
        self._acknowledged: dict[tuple[int, int], bytes] = {}
        self._waiting: dict[tuple[int, int, object], bytes] = {}  # by client
        start, stop, step = EmbeddedCluster.start, EmbeddedCluster.stop, ClientNode.step

        async def started(cluster: EmbeddedCluster) -> None:
            self._directories.add(cluster.directory)
            await start(cluster)

        async def stopped(cluster: EmbeddedCluster) -> None:
            marks = _marks(cluster)
            await stop(cluster)
            if not self.off:
                self._judge(cluster, marks)

        def stepped(node: ClientNode, now: int, events: Any, out: list[Any]) -> None:
            before = len(out)
            step(node, now, events, out)
            for event in events:
                if type(event) is Submit:
                    self._waiting[id(node), event.partition, event.token] = event.data
                elif type(event) is SubmitMany:
                    for token, data in zip(event.tokens, event.columns.payloads, strict=True):
                        self._waiting[id(node), event.partition, token] = data
            for effect in out[before:]:
                self._on_effect(id(node), effect)

        patch.setattr(EmbeddedCluster, "start", started)
        patch.setattr(EmbeddedCluster, "stop", stopped)
        patch.setattr(ClientNode, "step", stepped)

    def _on_effect(self, client: int, effect: object) -> None:
        match effect:
            case Committed(partition, outcomes):
                for token, transaction_id in outcomes:
                    data = self._waiting.pop((client, partition, token))
                    known = self._acknowledged.setdefault((partition, transaction_id), data)
                    assert known == data or len(self._directories) != 1, f"{partition}/{transaction_id} is two things"
            case Failed(token=token, partition=partition):
                self._waiting.pop((client, partition, token), None)

    def _judge(self, cluster: EmbeddedCluster, marks: dict[int, int]) -> None:
        disks = [cluster.directory / f"storage-{number}" for number in range(cluster.storage_count)]
        replicas = {
            partition: [read_replica(disk, partition) for disk in disks] for partition in range(cluster.partitions)
        }
        # With a second cluster in the test, nobody here knows which one acknowledged what.
        starts = {one: [read_start(disk, one) for disk in disks] for one in range(cluster.partitions)}
        check_disks(replicas, marks, self._acknowledged if len(self._directories) == 1 else {}, starts)
        self.judged += 1


def _marks(cluster: EmbeddedCluster) -> dict[int, int]:
    """The highest mark of each partition that a server tells."""
    marks: dict[int, int] = {}
    for number in range(cluster.server_count):
        process = cluster.server(number)
        found = process.snapshot() if process is not None else None
        for one in found.partitions if found is not None else ():
            if one.healthy:
                marks[one.partition_id] = max(one.high_water_mark, marks.get(one.partition_id, -1))
    return marks

"""Views of a healthy cluster of two partitions, three storage nodes and two servers, and changes of them."""

from __future__ import annotations

from typing import Any

import attrs

from waltz_core.base.ids import Endpoint, ReplicaId
from waltz_core.operations.view import CertificateView, ClusterView, ReplicaView, ServerView, StorageView
from waltz_core.wire.client_messages import PartitionStatus, ServedState
from waltz_core.zookeeper.store_metadata import StoreMaps
from waltz_core.zookeeper.znodes import (
    UNRESOLVED,
    ConnectionMetadata,
    GroupDescriptor,
    PartitionAssignment,
    PartitionMetadata,
    ReplicaAssignments,
    ReplicaState,
    ServerDescriptor,
    ServerPartitions,
)

KEY = b"k" * 16
NAMES = tuple(f"s{number}:7000" for number in range(3))
DAY = 86_400_000


def replica(partition_id: int, **change: Any) -> ReplicaView:
    return attrs.evolve(ReplicaView(partition_id, True, 4, 90, 90, 100, "open"), **change)


def storage(name: str, **change: Any) -> StorageView:
    node = StorageView(
        name,
        name.replace("7000", "7001"),
        replicas={0: replica(0), 1: replica(1)},
        disk_free=1 << 40,
        disk_reserve=1 << 30,
        clock_ms=3,
    )
    return attrs.evolve(node, **change)


def server(number: int, *partitions: int, **change: Any) -> ServerView:
    status = tuple(PartitionStatus(p, 2, ServedState.READY, 5, 4, 100, None) for p in partitions)
    view = ServerView(
        ServerDescriptor(number, Endpoint(f"v{number}", 6000)),
        partitions=partitions,
        health=dict.fromkeys(partitions, True),
        connectivity=dict.fromkeys(NAMES, True),
        status=status,
        key=KEY,
        clock_ms=-2,
    )
    return attrs.evolve(view, **change)


def states(partition_id: int, *, late: str = "", session_id: int = 4) -> PartitionMetadata:
    found = [
        ReplicaState(
            ReplicaId(partition_id, name), 3 if name == late else session_id, 50 if name == late else UNRESOLVED
        )
        for name in NAMES
    ]
    return PartitionMetadata(2, session_id, tuple(found))


def cluster(**change: Any) -> ClusterView:
    view = ClusterView(
        root="/root",
        name="test",
        key=KEY,
        num_partitions=2,
        assignment=PartitionAssignment(1, 2, (ServerPartitions(1, ((0, 2),)), ServerPartitions(2, ((1, 2),)))),
        assignment_cversion=1,
        undecodable=(),
        maps=StoreMaps(
            GroupDescriptor(tuple((name, number) for number, name in enumerate(NAMES))),
            ReplicaAssignments(tuple((name, (0, 1)) for name in NAMES)),
            ConnectionMetadata(tuple((name, 7001) for name in NAMES)),
        ),
        partitions=(states(0), states(1)),
        servers=(server(1, 0), server(2, 1)),
        storages=tuple(map(storage, NAMES)),
        certificates=(CertificateView("v1:6000", "CN=v1", 200 * DAY),),
        now_ms=100 * DAY,
    )
    return attrs.evolve(view, **change)


def with_storage(**change: Any) -> ClusterView:
    return cluster(storages=(storage(NAMES[0], **change), *map(storage, NAMES[1:])))


def with_replica(**change: Any) -> ClusterView:
    return with_storage(replicas={0: replica(0, **change), 1: replica(1)})


def with_server(**change: Any) -> ClusterView:
    return cluster(servers=(server(1, 0, **change), server(2, 1)))


def owned(*servers: ServerPartitions) -> ClusterView:
    return cluster(assignment=PartitionAssignment(1, 2, servers))


def assigned(*replicas: tuple[str, tuple[int, ...]]) -> ClusterView:
    view = cluster()
    return attrs.evolve(view, maps=attrs.evolve(view.maps, replicas=ReplicaAssignments(replicas)))

"""Notes of a coordinator to the process that it runs in."""

from __future__ import annotations

from typing import TypeAlias

from waltz_core.base.edge import Report, ZkRequest
from waltz_core.base.ids import Endpoint
from waltz_core.base.record import record
from waltz_core.zookeeper.znodes import ReplicaAssignments


@record
class ManagedServer:
    """The server that this process registers."""

    endpoint: Endpoint
    preferred_partitions: tuple[int, ...] = ()


@record
class Joined:
    """The cluster exists, fits together, and gave us our ids. Comes once; registration follows."""

    cluster_name: str
    num_partitions: int
    cluster_key: bytes  # 16 bytes; empty for an observer
    server_id: int | None
    client_id: int | None


@record
class Owned:
    """Everything our server owns now: (partition id, generation), sorted by partition id."""

    partitions: tuple[tuple[int, int], ...]


@record
class OwnershipDoubtful:
    """Another server may own our partitions by now: stop appending until `OwnershipConfirmed`."""


@record
class OwnershipConfirmed:
    """The last `Owned` was read in a live session and holds."""


@record
class EndpointsChanged:
    """All live servers and what they own, (partition id, generation) sorted by partition id."""

    endpoints: tuple[tuple[Endpoint, tuple[tuple[int, int], ...]], ...]
    revision: int = -1  # data version of the assignment, equal for all who look


@record
class NeighborsChanged:
    """The other servers of our kind, by the names of their descriptors; servers only."""

    servers: tuple[tuple[str, Endpoint], ...]


@record
class PreferencesRegistered:
    """ZooKeeper holds the preferred partitions of the last `set_preferred`, and an assignment that heeds them."""


@record
class ReplicasChanged:
    """The assignment of replicas to storage nodes; servers only."""

    assignments: ReplicaAssignments


@record
class ClusterFailed:
    """This process cannot work with what ZooKeeper holds; final."""

    reason: str


@record
class Left:
    """The descriptor is gone, or will go with the session; final."""


Notification: TypeAlias = (
    Joined
    | Owned
    | OwnershipDoubtful
    | OwnershipConfirmed
    | EndpointsChanged
    | NeighborsChanged
    | PreferencesRegistered
    | ReplicasChanged
    | ClusterFailed
    | Left
    | Report
)
CoordinatorEffect: TypeAlias = ZkRequest | Notification

"""One reading of everything that ZooKeeper holds of a cluster, and what it says; no request, no state beyond a reading.

A reading is one view only if nothing changed while it was taken: the children of `server` are listed before its data is
read, and both carry the same cversion; no child listed had vanished when its descriptor was read.
"""

from __future__ import annotations

import attrs

from waltz_core.base.edge import ZkDone, ZkStat
from waltz_core.base.errors import ClusterError, ProtocolError
from waltz_core.base.ids import Endpoint
from waltz_core.base.record import record
from waltz_core.cluster.notifications import EndpointsChanged
from waltz_core.zookeeper.paths import ClusterPaths
from waltz_core.zookeeper.znodes import (
    PartitionAssignment,
    ServerDescriptor,
    decode_cluster_params,
    decode_server_descriptor,
    decode_store_params,
)


@attrs.define
class Round:
    """One reading; complete when every request was answered."""

    children: ZkDone | None = None  # of the servers' znode
    data: ZkDone | None = None  # of the servers' znode: the assignment of partitions
    replicas: ZkDone | None = None
    descriptors: dict[str, ZkDone] = attrs.Factory(dict)  # by name of the znode
    torn: bool = False  # a child vanished while we read

    def agreed(self) -> tuple[ZkDone, ZkStat] | None:
        """The assignment and its version; None if a process came or went between the reads: they are not one view."""
        assert self.children is not None
        assert self.data is not None
        listed, stat = self.children.stat, self.data.stat
        assert listed is not None
        assert stat is not None
        return None if self.torn or listed.cversion != stat.cversion else (self.data, stat)


@record
class ClusterParameters:
    """The fixed parameters of a cluster."""

    name: str
    num_partitions: int
    key: bytes  # empty where the store's parameters were not read


class UnreadableError(ClusterError):
    """A znode that every cluster has is malformed, which may be mended."""


class ContradictionError(ClusterError):
    """Two znodes contradict each other: the cluster must not be served."""


def parameters_of(paths: ClusterPaths, root: ZkDone, store: ZkDone | None) -> ClusterParameters:
    """Decode them.

    Raises:
        UnreadableError, ContradictionError: see there.
    """
    try:
        cluster = decode_cluster_params(root.data or b"")
    except ProtocolError as problem:
        raise UnreadableError(
            f"znode {paths.root} does not hold cluster parameters: {problem}; was `create` interrupted?"
        ) from problem
    if store is None:
        return ClusterParameters(cluster.name, cluster.num_partitions, b"")
    try:
        storage = decode_store_params(store.data or b"")
    except ProtocolError as problem:
        raise UnreadableError(
            f"znode {paths.store} does not hold store parameters: {problem}; was `create` interrupted?"
        ) from problem
    if storage.num_partitions != cluster.num_partitions:
        raise ContradictionError(
            f"znode {paths.root} says {cluster.num_partitions} partitions, {paths.store} says "
            f"{storage.num_partitions}: they must be equal; this cluster must not be served"
        )
    return ClusterParameters(cluster.name, cluster.num_partitions, storage.key)


def same_cluster(root: str, before: ClusterParameters | None, present: ClusterParameters) -> ClusterParameters:
    """The present parameters.

    Raises:
        ContradictionError: they are not those `before`.
    """
    if before is not None and before != present:
        raise ContradictionError(
            f"the cluster at {root} is another one than at our start ({before.name!r} with "
            f"{before.num_partitions} partitions then, {present.name!r} with {present.num_partitions} now): it was "
            "deleted and created again; restart this process"
        )
    return present


def descriptors_of(reading: Round) -> tuple[dict[str, ServerDescriptor], list[tuple[str, ProtocolError]]]:
    """Descriptors of servers, and what is none of those, each by the name of its znode."""
    descriptors: dict[str, ServerDescriptor] = {}
    problems: list[tuple[str, ProtocolError]] = []
    for name, answer in reading.descriptors.items():
        try:
            descriptors[name] = decode_server_descriptor(answer.data or b"")
        except ProtocolError as problem:
            problems.append((name, problem))
    return descriptors, problems


def own_descriptors(reading: Round, session_id: int) -> dict[str, ZkDone]:
    """Those that our session with ZooKeeper has written."""
    return {
        name: answer
        for name, answer in reading.descriptors.items()
        if answer.stat is not None and answer.stat.ephemeral_owner == session_id
    }


def owners(assignment: PartitionAssignment) -> list[tuple[int, int, int]]:
    """(partition, server, generation) of every partition."""
    return sorted(
        (partition, s.server_id, generation) for s in assignment.servers for partition, generation in s.partitions
    )


def endpoints_of(
    assignment: PartitionAssignment, members: dict[int, ServerDescriptor], revision: int
) -> EndpointsChanged:
    """Two servers with one address (a restart before the old session ended) share an entry (zk-D9)."""
    owned: dict[Endpoint, set[tuple[int, int]]] = {}
    for server_id, descriptor in sorted(members.items()):
        owned.setdefault(descriptor.endpoint, set()).update(assignment.of_server(server_id))
    return EndpointsChanged(tuple((endpoint, tuple(sorted(pairs))) for endpoint, pairs in owned.items()), revision)

"""The admin operations on the store's three maps, as pure functions: before → after, or an error.

A storage node stands in three znodes: its group, its partitions, its admin port. The caller holds the
admin lock, reads the three, and writes what `written` names in one ZooKeeper transaction with the versions
it read.
"""

from __future__ import annotations

from collections.abc import Sequence

from waltz_core.base.errors import ClusterError
from waltz_core.base.record import record
from waltz_core.zookeeper.java_order import filled_table_size, table_order, text_hash
from waltz_core.zookeeper.znodes import ConnectionMetadata, GroupDescriptor, ReplicaAssignments


class StoreOperationError(ClusterError):
    """An admin operation was refused; nothing was changed. The text is that of the original."""


class StoreStateError(StoreOperationError):
    """The stored maps do not allow it."""


class StoreArgumentError(StoreOperationError):
    """The arguments do not fit what is stored."""


@record
class StoreMaps:
    """The three maps; the same storage node may be missing in some of them after an interrupted change."""

    groups: GroupDescriptor
    replicas: ReplicaAssignments
    connections: ConnectionMetadata


@record
class StoreChange:
    """Result of an operation, and which of "group", "assignment", "connection" to write, in order."""

    after: StoreMaps
    written: tuple[str, ...]


EMPTY_STORE = StoreMaps(GroupDescriptor(()), ReplicaAssignments(()), ConnectionMetadata(()))
"""What the creation of a cluster writes."""


def full_store(
    num_partitions: int, groups: Sequence[tuple[str, int]], connections: Sequence[tuple[str, int]]
) -> StoreMaps:
    """A store created with its nodes: every node holds every partition."""
    everything = tuple(range(num_partitions))
    replicas = tuple((storage, everything) for storage, _ in groups)
    return StoreMaps(
        GroupDescriptor(tuple(groups)), ReplicaAssignments(replicas), ConnectionMetadata(tuple(connections))
    )


def add_storage_node(before: StoreMaps, storage: str, group: int, admin_port: int) -> StoreChange:
    """Add a node without partitions; of one that holds partitions and lacks its admin port, complete the entries.

    Such a node could not be mended otherwise: one with partitions is not removed, and the last one of its group does
    not give them up.

    Raises:
        StoreStateError: the node is already in one of the three maps.
    """
    partitions, groups = dict(before.replicas.replicas).get(storage), dict(before.groups.groups)
    if partitions and storage not in dict(before.connections.connections) and groups.get(storage, group) == group:
        ports = (*before.connections.connections, (storage, admin_port))
        after = StoreMaps(
            GroupDescriptor(tuple({**groups, storage: group}.items())), before.replicas, ConnectionMetadata(ports)
        )
        return StoreChange(after, ("group", "connection"))
    if _known(before, storage):
        raise StoreStateError("Storage node already exists.")
    after = StoreMaps(
        GroupDescriptor((*before.groups.groups, (storage, group))),
        ReplicaAssignments((*before.replicas.replicas, (storage, ()))),
        ConnectionMetadata((*before.connections.connections, (storage, admin_port))),
    )
    return StoreChange(after, ("group", "assignment", "connection"))


def set_admin_port(before: StoreMaps, storage: str, admin_port: int) -> StoreChange:
    """Correct the admin port of a node, which ours alone can: 0.13.2 must take the node away and add it again.

    Raises:
        StoreStateError: the node is in none of the maps.
    """
    if not _known(before, storage):
        raise StoreStateError("Storage node does not exist.")
    ports = tuple({**dict(before.connections.connections), storage: admin_port}.items())
    return StoreChange(StoreMaps(before.groups, before.replicas, ConnectionMetadata(ports)), ("connection",))


def remove_storage_node(before: StoreMaps, storage: str) -> StoreChange:
    """Remove a node that holds no partition; repairs a node that is in some of the maps only.

    Raises:
        StoreStateError: the node is in none of the maps, or has partitions.
    """
    if not _known(before, storage):
        raise StoreStateError("Storage node does not exist.")
    if dict(before.replicas.replicas).get(storage):
        raise StoreStateError("Storage node cannot be removed when containing partitions")
    after = StoreMaps(
        GroupDescriptor(tuple(entry for entry in before.groups.groups if entry[0] != storage)),
        ReplicaAssignments(tuple(entry for entry in before.replicas.replicas if entry[0] != storage)),
        ConnectionMetadata(tuple(entry for entry in before.connections.connections if entry[0] != storage)),
    )
    return StoreChange(after, ("assignment", "group", "connection"))


def assign_partitions(before: StoreMaps, num_partitions: int, partitions: Sequence[int], storage: str) -> StoreChange:
    """Give partitions to a node, all or none.

    Raises:
        StoreArgumentError: no partitions, one outside the cluster, an unknown node, or one it has already.
    """
    _require_some(partitions)
    lowest, highest = min(partitions), max(partitions)
    if lowest < 0 or highest >= num_partitions:
        raise StoreArgumentError(f"One or more partition(s) in [{lowest}, {highest}] does not belong to the cluster")
    held = _partitions_of(before, storage)
    for partition_id in sorted(partitions):
        if partition_id in held:
            raise StoreArgumentError(f"Partition {partition_id} already exists in the storage node.")
    return _with_partitions(before, storage, held | set(partitions))


def unassign_partitions(before: StoreMaps, partitions: Sequence[int], storage: str) -> StoreChange:
    """Take partitions from a node, all or none; another node of its group must hold each of them.

    Raises:
        StoreArgumentError: no partitions, a node in no group or without assignment, a partition it does not
            have, or the last copy in its group.
    """
    _require_some(partitions)
    groups = dict(before.groups.groups)
    if storage not in groups:
        raise StoreArgumentError(f"Storage node {storage} is not part of any of the storage groups")
    held = _partitions_of(before, storage)
    for partition_id in partitions:
        if partition_id not in held:
            raise StoreArgumentError(f"Partition {partition_id} does not exist in the storage node.")
    others = {
        partition_id
        for node, node_partitions in before.replicas.replicas
        if node != storage and groups.get(node) == groups[storage]
        for partition_id in node_partitions
    }
    for partition_id in partitions:
        if partition_id not in others:
            raise StoreArgumentError(f"Storage group does not contain full partitions after removing {partition_id}")
    return _with_partitions(before, storage, held - set(partitions))


def replace_replica(before: StoreMaps, num_partitions: int, partition_id: int, source: str, target: str) -> StoreChange:
    """Put one node in the place of another, of the same group, for one partition.

    Raises:
        StoreArgumentError: as `assign_partitions` and `unassign_partitions`.
    """
    both = assign_partitions(before, num_partitions, (partition_id,), target).after
    return unassign_partitions(both, (partition_id,), source)


def auto_assign(before: StoreMaps, num_partitions: int, group: int) -> StoreChange:
    """Deal all partitions round robin to the nodes of a group, in the order in which 0.13.2 takes them.

    Raises:
        StoreStateError: no node in the group, or one of them has partitions.
    """
    members = [storage for storage, found in before.groups.groups if found == group]
    if not members:
        raise StoreStateError("No storage node found in group.")
    replicas = dict(before.replicas.replicas)
    if any(replicas.get(storage) for storage in members):
        raise StoreStateError("Found storage node with assignment in group.")
    ordered = table_order(members, [text_hash(storage) for storage in members], filled_table_size(len(members)))
    # Java: lists are dealt from a queue and taken from where the dealing stopped.
    for position, storage in enumerate(ordered):
        first = (num_partitions + position) % len(ordered)
        replicas[storage] = tuple(range(first, num_partitions, len(ordered)))
    after = StoreMaps(before.groups, ReplicaAssignments(tuple(replicas.items())), before.connections)
    return StoreChange(after, ("assignment",))


def _known(maps: StoreMaps, storage: str) -> bool:
    entries = (*maps.groups.groups, *maps.replicas.replicas, *maps.connections.connections)
    return any(entry[0] == storage for entry in entries)


def _require_some(partitions: Sequence[int]) -> None:
    if not partitions:
        raise StoreArgumentError("Partitions list is empty")


def _partitions_of(maps: StoreMaps, storage: str) -> set[int]:
    replicas = dict(maps.replicas.replicas)
    if storage not in replicas:
        raise StoreArgumentError("Storage node does not exist.")
    return set(replicas[storage])


def _with_partitions(before: StoreMaps, storage: str, partitions: set[int]) -> StoreChange:
    replicas = dict(before.replicas.replicas)
    replicas[storage] = tuple(sorted(partitions))
    after = StoreMaps(before.groups, ReplicaAssignments(tuple(replicas.items())), before.connections)
    return StoreChange(after, ("assignment",))

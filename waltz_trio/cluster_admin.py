"""Making, changing, reading and deleting what a cluster keeps in ZooKeeper.

Each change of the storage maps runs under the ephemeral admin lock, which servers' tools of 0.13.2 respect
too, and is one ZooKeeper transaction with the versions that were read (zk-D13).
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

from waltz_core.cluster import znodes
from waltz_core.cluster.paths import ClusterPaths
from waltz_core.cluster.store_metadata import EMPTY_STORE, StoreChange, StoreMaps
from waltz_core.cluster.znodes import (
    EMPTY_ASSIGNMENT,
    ClusterParams,
    PartitionAssignment,
    PartitionMetadata,
    ServerDescriptor,
    StoreParams,
)
from waltz_core.edge import ZkCreate, ZkDelete, ZkSet, ZkStat
from waltz_core.errors import ClusterError, ProtocolError
from waltz_core.record import record
from waltz_trio.zk.client import NodeExistsError, NoNodeError, NotEmptyError, ZnodeClient

ATTEMPTS = 5


class ClusterExistsError(ClusterError):
    """The root is taken."""


class ClusterMissingError(ClusterError):
    """There is no cluster at the root, or only half of one."""


@record
class ClusterDump:
    """Everything a cluster keeps, as `list` shows it."""

    params: ClusterParams
    servers: tuple[ServerDescriptor, ...]  # sorted by id
    undecodable: tuple[str, ...]  # children of `serverDescriptors` that are no descriptors
    assignment: PartitionAssignment
    assignment_cversion: int  # of the znode: the assignment is in force if it carries this one
    store: StoreParams
    maps: StoreMaps
    partitions: tuple[PartitionMetadata | None, ...]  # by partition id; None where no server opened it yet


async def create_cluster(zk: ZnodeClient, paths: ClusterPaths, name: str, num_partitions: int) -> StoreParams:
    """Create a cluster in one transaction; the versions of its nodes are those that 0.13.2 leaves.

    Raises:
        ClusterExistsError: the root exists.
        ZnodeError: ZooKeeper did not do it.
    """
    if await zk.exists(paths.root) is not None:
        raise ClusterExistsError(f"cluster root [{paths.root}] already exists")
    params = StoreParams(uuid4().bytes, num_partitions)
    operations: list[ZkCreate | ZkSet | ZkDelete] = []
    parents = paths.root.split("/")[1:-1]
    for depth in range(1, len(parents) + 1):
        parent = "/" + "/".join(parents[:depth])
        if await zk.exists(parent) is None:
            operations.append(ZkCreate(0, parent, None))

    def in_two_steps(path: str, data: bytes) -> None:
        """0.13.2 creates these with null data and sets them then: they are at version 1 ever after."""
        operations.extend((ZkCreate(0, path, None), ZkSet(0, path, data, 0)))

    in_two_steps(paths.root, znodes.encode_cluster_params(ClusterParams(name, num_partitions)))
    operations.append(ZkCreate(0, paths.servers, znodes.encode_partition_assignment(EMPTY_ASSIGNMENT)))
    operations.append(ZkCreate(0, paths.ids, None))
    operations.append(ZkCreate(0, paths.client_ids, znodes.encode_id_counter(0)))
    operations.append(ZkCreate(0, paths.server_ids, znodes.encode_id_counter(0)))
    in_two_steps(paths.store, znodes.encode_store_params(params))
    operations.append(ZkCreate(0, paths.partitions, None))
    in_two_steps(paths.groups, znodes.encode_group_descriptor(EMPTY_STORE.groups))
    in_two_steps(paths.assignment, znodes.encode_replica_assignments(EMPTY_STORE.replicas))
    in_two_steps(paths.connections, znodes.encode_connection_metadata(EMPTY_STORE.connections))
    try:
        await zk.multi(operations)
    except NodeExistsError:
        raise ClusterExistsError(f"cluster root [{paths.root}] already exists") from None
    except NoNodeError:
        raise ClusterMissingError(
            f"cannot create {paths.root}: the node above it is missing; does the chroot of the connect string exist?"
        ) from None
    return params


async def read_cluster_params(zk: ZnodeClient, paths: ClusterPaths) -> ClusterParams | None:
    """Cluster parameters; None where the root holds null data, as after an interrupted creation.

    Raises:
        ClusterMissingError: there is no root, or it holds something else.
        ZnodeError: ZooKeeper did not answer.
    """
    try:
        data, _ = await zk.get(paths.root)
    except NoNodeError:
        raise ClusterMissingError(f"cluster root [{paths.root}] does not exist") from None
    if data is None:
        return None
    try:
        return znodes.decode_cluster_params(data)
    except ProtocolError as problem:
        raise ClusterMissingError(f"cluster root [{paths.root}] holds no cluster parameters: {problem}") from None


async def read_store_params(zk: ZnodeClient, paths: ClusterPaths) -> StoreParams:
    """Store parameters, among them the cluster key.

    Raises:
        ClusterMissingError: there are none.
        ZnodeError: ZooKeeper did not answer.
    """
    try:
        data, _ = await zk.get(paths.store)
    except NoNodeError:
        raise ClusterMissingError(f"unable to get store params: znode {paths.store} does not exist") from None
    try:
        return znodes.decode_store_params(data or b"")
    except ProtocolError as problem:
        raise ClusterMissingError(f"unable to get store params: znode {paths.store}: {problem}") from None


async def delete_cluster(zk: ZnodeClient, paths: ClusterPaths) -> None:
    """Delete the root and everything below it, children first.

    Raises:
        ZnodeError: ZooKeeper did not do it; what is left can be deleted by another attempt.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            for path in reversed(await zk.walk(paths.root)):
                try:
                    await zk.delete(path)
                except NoNodeError:
                    continue  # an ephemeral node that went by itself, or another tool at work
            return
        except NoNodeError:
            return
        except NotEmptyError:  # somebody created a node meanwhile
            if attempt == ATTEMPTS:
                raise


@record
class _Versions:
    """Versions of the three maps as they were read."""

    group: int
    assignment: int
    connection: int


async def _read_maps(zk: ZnodeClient, paths: ClusterPaths) -> tuple[StoreMaps, _Versions]:
    try:
        groups, group_stat = await zk.get(paths.groups)
        replicas, assignment_stat = await zk.get(paths.assignment)
        connections, connection_stat = await zk.get(paths.connections)
    except NoNodeError as missing:
        raise ClusterMissingError(f"znode {missing.path} does not exist: was `create` interrupted?") from None
    try:
        maps = StoreMaps(
            znodes.decode_group_descriptor(groups or b""),
            znodes.decode_replica_assignments(replicas or b""),
            znodes.decode_connection_metadata(connections or b""),
        )
    except ProtocolError as problem:
        raise ClusterMissingError(f"below {paths.store}: {problem}; was `create` interrupted?") from None
    return maps, _Versions(group_stat.version, assignment_stat.version, connection_stat.version)


async def change_store(
    zk: ZnodeClient,
    paths: ClusterPaths,
    operation: Callable[[StoreMaps, int], StoreChange],
    on_wait: Callable[[ZkStat], None] | None = None,
) -> StoreMaps:
    """Run an operation of `waltz_core.cluster.store_metadata` under the admin lock; returns the new maps.

    Args:
        operation: Gets the maps and the number of partitions.
        on_wait: Called once if somebody else holds the lock, with the stat of the lock.

    Raises:
        StoreOperationError: the operation refused.
        ClusterMissingError: there is no cluster, or half of one.
        ZnodeError: ZooKeeper did not do it; BadVersionError if somebody changed the maps without the lock.
    """
    params = await read_store_params(zk, paths)
    async with zk.lock(paths.admin_lock, on_wait):
        before, versions = await _read_maps(zk, paths)
        change = operation(before, params.num_partitions)
        writes = {
            "group": ZkSet(0, paths.groups, znodes.encode_group_descriptor(change.after.groups), versions.group),
            "assignment": ZkSet(
                0, paths.assignment, znodes.encode_replica_assignments(change.after.replicas), versions.assignment
            ),
            "connection": ZkSet(
                0, paths.connections, znodes.encode_connection_metadata(change.after.connections), versions.connection
            ),
        }
        await zk.multi([writes[name] for name in change.written])
        return change.after


async def read_servers(zk: ZnodeClient, paths: ClusterPaths) -> tuple[tuple[ServerDescriptor, ...], tuple[str, ...]]:
    """Registered servers sorted by id, and the names of children that are no descriptors.

    Raises:
        ZnodeError: ZooKeeper did not answer, or there is no cluster.
    """
    servers: list[ServerDescriptor] = []
    undecodable: list[str] = []
    for name in await zk.children(paths.servers):
        try:
            data, _ = await zk.get(f"{paths.servers}/{name}")
            servers.append(znodes.decode_server_descriptor(data or b""))
        except NoNodeError:
            continue  # it left between the two reads
        except ProtocolError:
            undecodable.append(name)
    return tuple(sorted(servers, key=lambda found: found.server_id)), tuple(undecodable)


async def read_cluster(zk: ZnodeClient, paths: ClusterPaths) -> ClusterDump:
    """Read everything.

    Raises:
        ClusterMissingError: there is no cluster, or half of one.
        ZnodeError: ZooKeeper did not answer.
    """
    store = await read_store_params(zk, paths)
    params = await read_cluster_params(zk, paths)
    if params is None:
        raise ClusterMissingError(f"cluster root [{paths.root}] holds null: was `create` interrupted?")
    servers, undecodable = await read_servers(zk, paths)
    data, stat = await zk.get(paths.servers)
    maps, _ = await _read_maps(zk, paths)
    try:
        assignment = znodes.decode_partition_assignment(data or b"")
        partitions = tuple([await _read_partition(zk, paths, number) for number in range(store.num_partitions)])
    except ProtocolError as problem:
        raise ClusterMissingError(f"below {paths.root}: {problem}") from None
    return ClusterDump(params, servers, undecodable, assignment, stat.cversion, store, maps, partitions)


async def _read_partition(zk: ZnodeClient, paths: ClusterPaths, partition_id: int) -> PartitionMetadata | None:
    try:
        data, _ = await zk.get(paths.partition(partition_id))
    except NoNodeError:
        return None
    return None if data is None else znodes.decode_partition_metadata(data)

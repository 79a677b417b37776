"""Making, changing, reading and deleting what a cluster keeps in ZooKeeper.

Each change of the storage maps runs under the ephemeral admin lock, which servers' tools of 0.13.2 respect
too, and is one ZooKeeper transaction with the versions that were read (zk-D13).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar
from uuid import uuid4

from waltz_core.base.edge import ZkCreate, ZkDelete, ZkSet, ZkStat
from waltz_core.base.errors import ClusterError, ProtocolError
from waltz_core.base.record import record
from waltz_core.operations.backup import ClusterBackup, Restoration, Znode, cluster_znodes, restoration
from waltz_core.zookeeper import znodes
from waltz_core.zookeeper.paths import ClusterPaths
from waltz_core.zookeeper.store_metadata import EMPTY_STORE, StoreChange, StoreMaps
from waltz_core.zookeeper.znodes import (
    EMPTY_ASSIGNMENT,
    ClusterParams,
    PartitionAssignment,
    PartitionMetadata,
    ServerDescriptor,
    StoreParams,
)
from waltz_trio.zk.client import NodeExistsError, NoNodeError, NotEmptyError, ZnodeClient

ATTEMPTS = 5
T = TypeVar("T")


class ClusterExistsError(ClusterError):
    """The root is taken."""


class ClusterMissingError(ClusterError):
    """There is no cluster at the root, or only half of one."""


class ClusterDamagedError(ClusterMissingError):
    """There is a root, and what it or a znode below it must hold is missing or cannot be read."""


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
    last_client_id: int | None  # handed out; None if unreadable
    last_server_id: int | None
    unreadable: Mapping[str, str]  # znodes that hold something else than they must, and what is wrong with each

    def backup(self) -> ClusterBackup:
        """What `restore` needs."""
        ids = self.last_client_id, self.last_server_id
        return ClusterBackup(self.params, self.store, self.maps, self.assignment, self.partitions, *ids)


async def create_cluster(zk: ZnodeClient, paths: ClusterPaths, name: str, num_partitions: int) -> StoreParams:
    """Create a cluster in one transaction; the versions of its nodes are those that 0.13.2 leaves.

    Raises:
        ClusterExistsError: the root exists.
        ZnodeError: ZooKeeper did not do it.
    """
    if await zk.exists(paths.root) is not None:
        raise ClusterExistsError(f"cluster root [{paths.root}] already exists")
    params = StoreParams(uuid4().bytes, num_partitions)
    operations = await parents_of(zk, paths)
    backup = ClusterBackup(ClusterParams(name, num_partitions), params, EMPTY_STORE, EMPTY_ASSIGNMENT, (), 0, 0)
    for znode in cluster_znodes(backup, paths):
        operations += creation_of(znode)
    try:
        await zk.multi(operations)
    except NodeExistsError:
        raise ClusterExistsError(f"cluster root [{paths.root}] already exists") from None
    except NoNodeError:
        raise ClusterMissingError(
            f"cannot create {paths.root}: the node above it is missing; does the chroot of the connect string exist?"
        ) from None
    return params


def creation_of(znode: Znode) -> list[ZkCreate | ZkSet | ZkDelete]:
    if znode.in_two_steps and znode.data is not None:
        return [ZkCreate(0, znode.path, None), ZkSet(0, znode.path, znode.data, 0)]
    return [ZkCreate(0, znode.path, znode.data)]


async def plan_restoration(
    zk: ZnodeClient, paths: ClusterPaths, backup: ClusterBackup
) -> tuple[Restoration, list[ZkCreate | ZkSet | ZkDelete]]:
    """What is missing or cannot be used, and the one transaction that brings it back.

    Raises:
        ClusterError: another cluster is at that root, or the backup does not know what is needed.
        ZnodeError: ZooKeeper did not answer.
    """
    held: dict[str, bytes | None] = {}
    versions: dict[str, int] = {}
    for znode in cluster_znodes(backup, paths):
        try:
            held[znode.path], stat = await zk.get(znode.path)
            versions[znode.path] = stat.version
        except NoNodeError:
            continue
    plan = restoration(backup, paths, held)
    operations = await parents_of(zk, paths)
    for znode in plan.created:
        operations += creation_of(znode)
    operations += [ZkSet(0, znode.path, znode.data, versions[znode.path]) for znode in plan.written]
    return plan, operations


async def parents_of(zk: ZnodeClient, paths: ClusterPaths) -> list[ZkCreate | ZkSet | ZkDelete]:
    """Create what is missing above the root."""
    parts = paths.root.split("/")[1:-1]
    above = ("/" + "/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
    return [ZkCreate(0, path, None) for path in above if await zk.exists(path) is None]


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
        raise ClusterDamagedError(f"cluster root [{paths.root}] holds no cluster parameters: {problem}") from None


async def read_store_params(zk: ZnodeClient, paths: ClusterPaths) -> StoreParams:
    """Store parameters, among them the cluster key.

    Raises:
        ClusterMissingError: there are none.
        ZnodeError: ZooKeeper did not answer.
    """
    try:
        data, _ = await zk.get(paths.store)
    except NoNodeError:
        kind = ClusterMissingError if await zk.exists(paths.root) is None else ClusterDamagedError
        raise kind(f"unable to get store params: znode {paths.store} does not exist") from None
    try:
        return znodes.decode_store_params(data or b"")
    except ProtocolError as problem:
        raise ClusterDamagedError(f"unable to get store params: znode {paths.store}: {problem}") from None


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
        except NotEmptyError:  # another process created a node meanwhile
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
        raise ClusterDamagedError(f"znode {missing.path} does not exist: was `create` interrupted?") from None
    maps = StoreMaps(
        _decode(paths.groups, groups, znodes.decode_group_descriptor),
        _decode(paths.assignment, replicas, znodes.decode_replica_assignments),
        _decode(paths.connections, connections, znodes.decode_connection_metadata),
    )
    return maps, _Versions(group_stat.version, assignment_stat.version, connection_stat.version)


def _decode(path: str, data: bytes | None, decode: Callable[[bytes], T]) -> T:
    try:
        return decode(data or b"")
    except ProtocolError as problem:
        raise ClusterDamagedError(f"znode {path} cannot be read: {problem}; was `create` interrupted?") from None


async def change_store(
    zk: ZnodeClient,
    paths: ClusterPaths,
    operation: Callable[[StoreMaps, int], StoreChange],
    on_wait: Callable[[ZkStat], None] | None = None,
) -> StoreMaps:
    """Run an operation of `waltz_core.zookeeper.store_metadata` under the admin lock; returns the new maps.

    Args:
        operation: Gets the maps and the number of partitions.
        on_wait: Called once if another process holds the lock, with the stat of the lock.

    Raises:
        StoreOperationError: the operation refused.
        ClusterMissingError: there is no cluster, or half of one.
        ZnodeError: ZooKeeper did not do it; BadVersionError if the maps were changed without the lock.
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
        raise ClusterDamagedError(f"cluster root [{paths.root}] holds null: was `create` interrupted?")
    if params.num_partitions != store.num_partitions:
        raise ClusterDamagedError(
            f"znode {paths.root} says {params.num_partitions} partitions, {paths.store} says {store.num_partitions}: "
            "no server starts on that; `waltz zookeeper restore` writes the right number from a backup"
        )
    maps, _ = await _read_maps(zk, paths)
    unreadable: dict[str, str] = {}

    async def read(path: str, decode: Callable[[bytes], T], instead: T) -> T:
        try:
            data, _ = await zk.get(path)
            return decode(data or b"")
        except NoNodeError:
            unreadable[path] = "it does not exist"
        except ProtocolError as problem:
            unreadable[path] = str(problem)
        return instead

    async def read_partition(partition_id: int) -> PartitionMetadata | None:
        path = paths.partition(partition_id)
        if await zk.exists(path) is None:
            return None
        return await read(path, znodes.decode_partition_metadata, None)

    listed = await zk.exists(paths.servers)
    servers, undecodable = ((), ()) if listed is None else await read_servers(zk, paths)
    return ClusterDump(
        params,
        servers,
        undecodable,
        await read(paths.servers, znodes.decode_partition_assignment, EMPTY_ASSIGNMENT),
        -1 if listed is None else listed.cversion,
        store,
        maps,
        tuple([await read_partition(number) for number in range(store.num_partitions)]),
        await read(paths.client_ids, znodes.decode_id_counter, None),
        await read(paths.server_ids, znodes.decode_id_counter, None),
        unreadable,
    )

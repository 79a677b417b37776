"""The root of a proxy in ZooKeeper: made at its first start, counted up at each, and given more client ids.

The root, with all that clients look for and the proxy's own znode, is made in one transaction, so a root without that
znode is somebody else's. Ids are taken from the cluster's counter before they are written down here: a crash between
the two loses a block, and never gives one out twice.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from uuid import uuid4

import attrs

from waltz_core.base.edge import ZkCreate, ZkDelete, ZkSet
from waltz_core.base.errors import ClusterError, ConfigError, ProtocolError
from waltz_core.operations.backup import ClusterBackup, cluster_znodes
from waltz_core.proxy.state import ProxyState, block_behind, decode_proxy_state, encode_proxy_state
from waltz_core.zookeeper.paths import ClusterPaths
from waltz_core.zookeeper.store_metadata import EMPTY_STORE
from waltz_core.zookeeper.znodes import (
    EMPTY_ASSIGNMENT,
    ClusterParams,
    StoreParams,
    decode_cluster_params,
    decode_id_counter,
    encode_id_counter,
)
from waltz_trio.zk.admin import creation_of, parents_of
from waltz_trio.zk.client import BadVersionError, NodeExistsError, NoNodeError, ZnodeClient


def state_path(paths: ClusterPaths) -> str:
    """The proxy's own znode."""
    return f"{paths.root}/proxy"


async def read_state(zk: ZnodeClient, paths: ClusterPaths) -> tuple[ProxyState, int] | None:
    """What the root says, and its version; None where there is no root.

    Raises:
        ConfigError: the root is not a proxy's.
        ZnodeError: ZooKeeper did not answer.
    """
    try:
        data, stat = await zk.get(state_path(paths))
    except NoNodeError:
        if await zk.exists(paths.root) is None:
            return None
        text = "expected a root of its own, which is made at the first start, or that of this proxy"
        raise ConfigError(f"cluster.root: {paths.root} is there and is not a proxy's; {text}") from None
    try:
        return decode_proxy_state(data or b""), stat.version
    except ProtocolError as error:
        raise ConfigError(f"znode {state_path(paths)}: {error}") from None


async def proxy_of(zk: ZnodeClient, paths: ClusterPaths) -> ProxyState | None:
    """What a proxy keeps in this root; None where it is a cluster's.

    Raises:
        ZnodeError: ZooKeeper did not answer.
    """
    try:
        return await _proxy_there(zk, paths)
    except ProtocolError:
        return None


async def _proxy_there(zk: ZnodeClient, paths: ClusterPaths) -> ProxyState | None:
    """The same; raises ProtocolError where it cannot be read, as that is no cluster either."""
    try:
        data, _ = await zk.get(state_path(paths))
    except NoNodeError:
        return None
    return decode_proxy_state(data or b"")


async def take_block(zk: ZnodeClient, paths: ClusterPaths) -> tuple[int, int]:
    """A block of client ids, from the counter of the cluster, or of another proxy.

    Raises:
        ClusterError: ZooKeeper did not answer, there is no cluster, or it has no ids left.
    """
    while True:
        data, stat = await zk.get(paths.client_ids)
        try:
            # A proxy that takes another block between the two reads sets the counter, so that nothing is written here.
            block = block_behind(decode_id_counter(data or b""), await _proxy_there(zk, paths))
        except ProtocolError as error:
            raise ClusterError(f"znode {paths.client_ids}: {error}") from None
        try:
            await zk.set(paths.client_ids, encode_id_counter(block[1]), stat.version)
        except BadVersionError:
            continue  # a client was first
        return block


async def make_root(zk: ZnodeClient, paths: ClusterPaths, upstream: ZnodeClient, cluster: ClusterPaths) -> None:
    """Make the root for a proxy of a cluster; another process may be first.

    Raises:
        ClusterError: a ZooKeeper did not answer, or there is no cluster.
    """
    try:
        data, stat = await upstream.get(cluster.root)
        params = decode_cluster_params(data or b"")
    except (NoNodeError, ProtocolError) as error:
        raise ClusterError(f"there is no cluster at {cluster.root}: {error}") from None
    first, last = await take_block(upstream, cluster)
    state = ProxyState(first, 0, ((first, last),), params.name, params.num_partitions, stat.czxid)
    store = StoreParams(uuid4().bytes, params.num_partitions)  # nobody opens a storage node with this key
    backup = ClusterBackup(
        ClusterParams(params.name, params.num_partitions), store, EMPTY_STORE, EMPTY_ASSIGNMENT, (), first, 0
    )
    operations: list[ZkCreate | ZkSet | ZkDelete] = await parents_of(zk, paths)
    for znode in cluster_znodes(backup, paths):
        operations += creation_of(znode)
    operations.append(ZkCreate(0, state_path(paths), encode_proxy_state(state)))
    try:
        await zk.multi(operations)
    except NodeExistsError:
        return


async def start_in_root(zk: ZnodeClient, paths: ClusterPaths) -> ProxyState:
    """Count this process; returns its state.

    Raises:
        ConfigError: the root is not a proxy's.
        ClusterError: ZooKeeper did not answer.
    """
    while True:
        read = await read_state(zk, paths)
        if read is None:
            raise ClusterError(f"{paths.root} was deleted")
        state, version = read[0].started(), read[1]
        try:
            await zk.set(state_path(paths), encode_proxy_state(state), version)
        except BadVersionError:
            continue
        return state


async def ids_given(zk: ZnodeClient, paths: ClusterPaths) -> int:
    """The client id up to which ids were given out in this root.

    Raises:
        ClusterError: ZooKeeper did not answer, or there is no counter.
    """
    data, _ = await zk.get(paths.client_ids)
    try:
        return decode_id_counter(data or b"")
    except ProtocolError as error:
        raise ClusterError(f"znode {paths.client_ids}: {error}") from None


async def check_upstream(upstream: ZnodeClient, cluster: ClusterPaths, state: ProxyState) -> None:
    """See that the cluster is the one for which the root was made.

    Raises:
        ConfigError: it is another one.
        ZnodeError: ZooKeeper did not answer, or there is no cluster.
    """
    _, stat = await upstream.get(cluster.root)
    if stat.czxid != state.created:
        text = f"another one than the cluster {state.name!r} for which the root of this proxy was made"
        raise ConfigError(f"the cluster upstream at {cluster.root} is {text}: give this proxy a root of its own")


async def keep_ids(
    zk: ZnodeClient,
    paths: ClusterPaths,
    upstream: Callable[[], AbstractAsyncContextManager[ZnodeClient]],
    cluster: ClusterPaths,
    state: ProxyState,
) -> ProxyState | None:
    """Take another block before the present one is used up; None if the root is not that of this process any more.

    Args:
        upstream: opens a session with the ZooKeeper of the cluster, which may be out of reach; only a block needs it.

    Raises:
        ConfigError: the root is not a proxy's.
        ClusterError: a ZooKeeper did not answer.
    """
    read = await read_state(zk, paths)
    if read is None or read[0].epoch != state.epoch:
        return None
    state, version = read
    data, stat = await zk.get(paths.client_ids)
    if not state.is_short(decode_id_counter(data or b"")):
        return state
    async with upstream() as counted:
        first, last = await take_block(counted, cluster)
        longer = attrs.evolve(state, blocks=(*state.blocks, (first, last)))
        await zk.multi(
            [
                ZkSet(0, state_path(paths), encode_proxy_state(longer), version),
                ZkSet(0, paths.client_ids, encode_id_counter(first - 1), stat.version),
            ]
        )
    return longer

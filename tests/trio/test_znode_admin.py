"""What tools say of a cluster whose znodes hold nothing, as those of a creation that was interrupted may."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from waltz_core.zookeeper.paths import ClusterPaths, cluster_paths
from waltz_trio.zk.admin import ClusterDamagedError, create_cluster, read_cluster
from waltz_trio.zk.client import ZnodeClient, open_znode_client
from waltz_trio.zk.embedded import open_embedded_znodes

PATHS = cluster_paths("/cluster")


@pytest.fixture
async def zk() -> AsyncIterator[ZnodeClient]:
    async with open_embedded_znodes() as znodes, open_znode_client(znodes) as client:
        await create_cluster(client, PATHS, "test", 2)
        yield client


PLACES: Sequence[Callable[[ClusterPaths], str]] = (
    lambda paths: paths.root,
    lambda paths: paths.store,
    lambda paths: paths.groups,
    lambda paths: paths.assignment,
    lambda paths: paths.connections,
)


@pytest.mark.parametrize("place", PLACES)
async def test_a_znode_that_holds_null_is_named(zk: ZnodeClient, place: Callable[[ClusterPaths], str]) -> None:
    await zk.set(place(PATHS), None, -1)

    with pytest.raises(ClusterDamagedError, match=place(PATHS)):
        await read_cluster(zk, PATHS)


async def test_what_a_cluster_can_do_without_is_said_to_be_unreadable(zk: ZnodeClient) -> None:
    await zk.create(f"{PATHS.servers}/1", None)
    await zk.create(PATHS.partition(1), None)
    for path in (PATHS.servers, PATHS.client_ids, PATHS.server_ids):
        await zk.set(path, None, -1)

    cluster = await read_cluster(zk, PATHS)

    assert cluster.undecodable == ("1",)
    assert set(cluster.unreadable) == {PATHS.servers, PATHS.client_ids, PATHS.server_ids, PATHS.partition(1)}
    assert cluster.last_client_id is None
    assert cluster.partitions == (None, None)

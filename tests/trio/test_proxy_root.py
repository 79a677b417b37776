"""The root of a proxy: client ids that nobody else has, processes that are counted, and the cluster it was made for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, nullcontext

import attrs
import pytest
import trio

from waltz_core.base.errors import ClusterError, ConfigError
from waltz_core.proxy.state import BLOCK_SIZE, ProxyState
from waltz_core.zookeeper.paths import cluster_paths
from waltz_core.zookeeper.znodes import decode_id_counter, encode_id_counter
from waltz_trio.zk.admin import create_cluster, delete_cluster
from waltz_trio.zk.client import BadVersionError, ZnodeClient, open_znode_client
from waltz_trio.zk.embedded import EmbeddedZnodes, open_embedded_znodes
from waltz_trio.zk.proxy_root import (
    check_upstream,
    ids_given,
    keep_ids,
    make_root,
    read_state,
    start_in_root,
    state_path,
    take_block,
)

CLUSTER = cluster_paths("/cluster")
OWN = cluster_paths("/region/proxy")
BEHIND = cluster_paths("/town/proxy")


@pytest.fixture
async def znodes() -> AsyncIterator[EmbeddedZnodes]:
    """With a cluster, and a proxy's root beside it."""
    async with open_embedded_znodes() as store, open_znode_client(store) as zk:
        await create_cluster(zk, CLUSTER, "test", 3)
        await make_root(zk, OWN, zk, CLUSTER)
        yield store


@pytest.fixture
async def zk(znodes: EmbeddedZnodes) -> AsyncIterator[ZnodeClient]:
    async with open_znode_client(znodes) as client:
        yield client


async def counter(zk: ZnodeClient, path: str) -> int:
    return decode_id_counter((await zk.get(path))[0] or b"")


async def written(zk: ZnodeClient) -> ProxyState:
    read = await read_state(zk, OWN)
    assert read is not None
    return read[0]


async def test_blocks_that_are_taken_at_once_have_no_id_in_common(znodes: EmbeddedZnodes, zk: ZnodeClient) -> None:
    before = await counter(zk, CLUSTER.client_ids)
    blocks: list[tuple[int, int]] = []

    async def take(client: ZnodeClient) -> None:
        blocks.append(await take_block(client, CLUSTER))

    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(take, await stack.enter_async_context(open_znode_client(znodes)))
    starts = [before + 1 + number * BLOCK_SIZE for number in range(4)]
    assert sorted(blocks) == [(first, first + BLOCK_SIZE - 1) for first in starts]
    assert await counter(zk, CLUSTER.client_ids) == before + 4 * BLOCK_SIZE


async def test_processes_that_start_at_once_are_counted_one_by_one(znodes: EmbeddedZnodes) -> None:
    """What their connections are numbered by: of two with one number, neither shuts out what the other has sent."""
    epochs: list[int] = []

    async def start(client: ZnodeClient) -> None:
        epochs.append((await start_in_root(client, OWN)).epoch)

    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(start, await stack.enter_async_context(open_znode_client(znodes)))
    assert sorted(epochs) == [1, 2, 3, 4]


async def test_a_process_reads_up_to_where_ids_were_given_out(zk: ZnodeClient) -> None:
    first = await start_in_root(zk, OWN)
    assert await ids_given(zk, OWN) == first.identity == first.blocks[0][0]
    await zk.set(OWN.client_ids, encode_id_counter(first.identity + 7), -1)
    assert await ids_given(zk, OWN) == first.identity + 7
    assert await start_in_root(zk, OWN) == attrs.evolve(first, epoch=2)
    await zk.set(OWN.client_ids, b"?", -1)
    with pytest.raises(ClusterError, match="client"):
        await ids_given(zk, OWN)


async def test_another_block_is_taken_before_the_present_one_is_used_up(zk: ZnodeClient) -> None:
    """And clients go on in it, where its ids begin."""
    state = await start_in_root(zk, OWN)
    last = await ids_given(zk, OWN)
    upstream = await counter(zk, CLUSTER.client_ids)
    half = state.blocks[0][1] - BLOCK_SIZE // 2
    await zk.set(OWN.client_ids, encode_id_counter(half), -1)
    assert await keep_ids(zk, OWN, lambda: nullcontext(zk), CLUSTER, state) == state == await written(zk)
    assert await counter(zk, CLUSTER.client_ids) == upstream, "nothing was taken"
    await zk.set(OWN.client_ids, encode_id_counter(half + 1), -1)
    longer = await keep_ids(zk, OWN, lambda: nullcontext(zk), CLUSTER, state)
    block = (upstream + 1, upstream + BLOCK_SIZE)
    assert longer == attrs.evolve(state, blocks=(*state.blocks, block)) == await written(zk)
    assert await counter(zk, OWN.client_ids) == upstream, "the next one is the first of the block"
    assert await counter(zk, CLUSTER.client_ids) == upstream + BLOCK_SIZE
    assert last < half


async def test_a_proxy_behind_another_takes_its_ids_from_the_block_there(zk: ZnodeClient) -> None:
    state = await start_in_root(zk, OWN)
    first, size = await ids_given(zk, OWN) + 1, BLOCK_SIZE // 16
    await make_root(zk, BEHIND, zk, OWN)
    read = await read_state(zk, BEHIND)
    assert read is not None
    assert (read[0].identity, read[0].blocks) == (first, ((first, first + size - 1),))
    assert await counter(zk, OWN.client_ids) == first + size - 1
    await zk.set(OWN.client_ids, encode_id_counter(state.blocks[0][1] - size + 1), -1)
    with pytest.raises(ClusterError, match=f"no {size} client ids are left"):
        await take_block(zk, OWN)
    await keep_ids(zk, OWN, lambda: nullcontext(zk), CLUSTER, state)
    begin = (await written(zk)).blocks[1][0]
    assert await take_block(zk, OWN) == (begin, begin + size - 1)
    await zk.set(state_path(OWN), b"damaged", -1)
    with pytest.raises(ClusterError, match="no state of a proxy"):
        await take_block(zk, OWN)


async def test_who_looks_at_ids_while_another_process_starts_does_not_count_it_away(
    znodes: EmbeddedZnodes, zk: ZnodeClient
) -> None:
    state = await start_in_root(zk, OWN)
    await zk.set(OWN.client_ids, encode_id_counter(state.blocks[0][1]), -1)
    async with open_znode_client(znodes) as other, trio.open_nursery() as nursery:
        nursery.start_soon(start_in_root, other, OWN)  # done after two answers, a block is written with the fifth
        with pytest.raises(BadVersionError):
            await keep_ids(zk, OWN, lambda: nullcontext(zk), CLUSTER, state)
    assert (await written(zk)).epoch == 2
    assert await keep_ids(zk, OWN, lambda: nullcontext(zk), CLUSTER, state) is None, "another process runs"


async def test_a_root_that_was_deleted_is_nobodys(zk: ZnodeClient) -> None:
    state = await start_in_root(zk, OWN)
    await delete_cluster(zk, OWN)
    assert await keep_ids(zk, OWN, lambda: nullcontext(zk), CLUSTER, state) is None
    with pytest.raises(ClusterError, match="was deleted"):
        await start_in_root(zk, OWN)


async def test_a_root_is_for_the_cluster_for_which_it_was_made(zk: ZnodeClient) -> None:
    """One that was made anew counts its clients from the beginning: our blocks are somebody else's there."""
    state = await start_in_root(zk, OWN)
    await check_upstream(zk, CLUSTER, state)
    await delete_cluster(zk, CLUSTER)
    await create_cluster(zk, CLUSTER, "test", 3)
    with pytest.raises(ConfigError, match="another one than the cluster 'test' for which the root of this proxy"):
        await check_upstream(zk, CLUSTER, state)


async def test_who_is_second_to_make_a_root_leaves_it_as_it_is(zk: ZnodeClient) -> None:
    before = await written(zk)
    await make_root(zk, OWN, zk, CLUSTER)
    assert await written(zk) == before
    await make_root(zk, cluster_paths("/region/second"), zk, CLUSTER)
    read = await read_state(zk, cluster_paths("/region/second"))
    assert read is not None
    assert read[0].identity > before.blocks[-1][1], "two proxies have no id in common"


async def test_without_a_cluster_no_root_is_made(zk: ZnodeClient) -> None:
    nowhere, own = cluster_paths("/nowhere"), cluster_paths("/other")
    with pytest.raises(ClusterError, match="there is no cluster at /nowhere"):
        await make_root(zk, own, zk, nowhere)
    assert await read_state(zk, own) is None
    await zk.set(CLUSTER.client_ids, b"?", -1)
    with pytest.raises(ClusterError, match=f"znode {CLUSTER.client_ids}: "):
        await take_block(zk, CLUSTER)


async def test_a_root_of_somebody_else_is_refused_by_what_it_holds(zk: ZnodeClient) -> None:
    with pytest.raises(ConfigError, match="/cluster is there and is not a proxy's"):
        await read_state(zk, CLUSTER)
    await zk.set(f"{OWN.root}/proxy", b"{}", -1)
    with pytest.raises(ConfigError, match="znode /region/proxy/proxy: no state of a proxy"):
        await read_state(zk, OWN)

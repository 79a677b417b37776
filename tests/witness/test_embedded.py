"""Every cluster that runs inside a test is judged when it ends."""

from __future__ import annotations

import pytest
import trio

from tests.witness.embedded import EmbeddedWitness
from waltz_trio.client.connect import open_client
from waltz_trio.client.values import Append
from waltz_trio.node.embedded import EmbeddedCluster, embedded_cluster


async def append(cluster: EmbeddedCluster, data: bytes) -> int:
    async with open_client(cluster.url) as client:
        return await client.append(0, Append(data))


async def test_a_cluster_that_keeps_what_it_acknowledged_passes(cluster_witness: EmbeddedWitness) -> None:
    with trio.fail_after(60):
        async with embedded_cluster(partitions=1, storage_nodes=1) as cluster:
            await append(cluster, b"kept")
    assert cluster_witness.judged == 1


async def test_one_that_holds_other_bytes_than_it_acknowledged_fails(
    cluster_witness: EmbeddedWitness, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = EmbeddedWitness(monkeypatch)
    cluster_witness.off = True

    async def run() -> None:
        async with embedded_cluster(partitions=1, storage_nodes=1) as cluster:
            await append(cluster, b"right")
            other._acknowledged[0, 0] = b"wrong"

    with trio.fail_after(60), pytest.raises(AssertionError, match=r"0/0 was acknowledged, and is on 0 disks"):
        await run()

"""A partition of a server, driven by hand."""

from __future__ import annotations

import random

from waltz_core.base.contract import Tickets
from waltz_core.base.edge import ZkError, ZkFailed, ZkGet
from waltz_core.server.data_cache import DataCache
from waltz_core.server.partition import PartitionConfig, PartitionEffect, PartitionServer, Phase
from waltz_core.store.calls import LinkUp


def flushed(partition: PartitionServer, now: int) -> list[PartitionEffect]:
    out: list[PartitionEffect] = []
    partition.flush(now, out)
    return out


def waiting() -> PartitionServer:
    """ZooKeeper did not answer: the metadata is to be read again later."""
    partition = PartitionServer(
        0, PartitionConfig("/p"), tickets=Tickets(), data_cache=DataCache(0), rng=random.Random(1)
    )
    partition.set_replicas(0, ("s0:1",))
    partition.set_generation(0, 3)
    (read,) = flushed(partition, 0)
    assert isinstance(read, ZkGet)
    partition.zk_failed(0, ZkFailed(read.ticket, ZkError.UNAVAILABLE))
    flushed(partition, 0)
    assert partition.phase is Phase.WAITING
    return partition


def test_after_a_pause_the_metadata_is_read_again() -> None:
    partition = waiting()
    due = partition.deadline(0)
    assert due is not None
    assert [type(effect) for effect in flushed(partition, due)] == [ZkGet]


def test_a_storage_node_that_answers_again_ends_the_back_off() -> None:
    partition = waiting()
    due = partition.deadline(0)
    assert due is not None
    partition.link_up(1, LinkUp("s0:1"))
    assert due > 1
    assert [type(effect) for effect in flushed(partition, 1)] == [ZkGet]


def test_a_partition_that_was_closed_reads_nothing_any_more() -> None:
    """Before, the pause that was under way ended with a read, and the partition came back to life."""
    partition = waiting()
    due = partition.deadline(0)
    assert due is not None
    partition.close(1)
    flushed(partition, 1)
    assert partition.deadline(1) is None
    assert not any(isinstance(effect, ZkGet) for effect in flushed(partition, due))
    assert partition.phase is Phase.CLOSED

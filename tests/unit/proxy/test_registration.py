"""A proxy in its own root: which process counts there, and which generations stand there."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from waltz_core.base.edge import ZkCreate, ZkDelete, ZkDone, ZkSet, ZkStat
from waltz_core.base.ids import Endpoint
from waltz_core.cluster.notifications import ClusterFailed, CoordinatorEffect, ManagedServer
from waltz_core.cluster.published import Published
from waltz_core.cluster.registration import OUR_MARK, View
from waltz_core.proxy.cluster import ProxyRegistration
from waltz_core.zookeeper.paths import cluster_paths
from waltz_core.zookeeper.znodes import (
    PartitionAssignment,
    ServerDescriptor,
    ServerPartitions,
    decode_partition_assignment,
    encode_server_descriptor,
)

PATHS = cluster_paths("/own")
HERE, ELSEWHERE = Endpoint("here", 1), Endpoint("elsewhere", 1)
STAT = ZkStat(4, 9)


def registration(epoch: int) -> ProxyRegistration:
    made = ProxyRegistration(PATHS, ManagedServer(HERE), Published(PATHS), random.Random(1))
    made.epoch = epoch
    return made


def descriptor(server_id: int, endpoint: Endpoint, epoch: int) -> ServerDescriptor:
    return ServerDescriptor(server_id, endpoint, (), OUR_MARK + epoch.to_bytes(4))


def view(
    assignment: PartitionAssignment, *, own: ServerDescriptor | None = None, others: tuple[ServerDescriptor, ...] = ()
) -> View:
    """A reading of three partitions; our server is number 7."""
    written = {} if own is None else {"s7": ZkDone(0, ZkStat(0, 0), encode_server_descriptor(own))}
    members = {one.server_id: one for one in (*others, *(() if own is None else (own,)))}
    named = {f"s{one.server_id}": one for one in others}
    return View(3, 7, min(members, default=7) == 7, members, written, named, assignment, STAT)


def owned(server_id: int, generations: Mapping[int, int], cversion: int = 9) -> PartitionAssignment:
    return PartitionAssignment(cversion, 3, (ServerPartitions(server_id, tuple(sorted(generations.items()))),))


@pytest.mark.parametrize(("theirs", "ends"), [(4, False), (5, False), (6, True)])
def test_a_process_gives_way_to_one_that_was_started_after_it(theirs: int, ends: bool) -> None:
    out: list[CoordinatorEffect] = []
    other = descriptor(3, ELSEWHERE, theirs)
    writes = registration(5).writes(view(owned(3, {}), others=(other,)), out)
    assert [type(effect) for effect in out] == [ClusterFailed] * ends
    assert [type(write) for write in writes] == [ZkCreate] * (not ends)


def test_what_a_process_of_before_left_at_our_address_is_deleted() -> None:
    out: list[CoordinatorEffect] = []
    writes = registration(5).writes(view(owned(3, {}), others=(descriptor(3, HERE, 4),)), out)
    assert (out, [type(write) for write in writes]) == ([], [ZkDelete, ZkCreate])


def test_every_partition_is_ours_at_the_generation_that_was_heard_and_at_none_before_it() -> None:
    proxy, ours = registration(5), descriptor(7, HERE, 5)
    proxy.generations = {0: 6, 1: 2}
    before = owned(3, {0: 5, 1: 4, 2: 1}, cversion=8)
    (write,) = proxy.writes(view(before, own=ours), [])
    assert isinstance(write, ZkSet)
    wanted = owned(7, {0: 6, 1: 4, 2: 1})  # of partition 2 nothing was heard yet, and clients must not be set back in 1
    assert decode_partition_assignment(write.data or b"") == wanted
    assert write.version == STAT.version
    assert proxy.writes(view(wanted, own=ours), []) == []

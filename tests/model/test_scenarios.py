"""Schedules with a name: what safety must win over availability, in whole clusters and in one recovery."""

from __future__ import annotations

import itertools

import pytest

from tests.model.cluster import ROOT
from tests.model.faults import KINDS
from tests.model.recovery_world import PARTITION, AnyRecovery, Storage, World, make_record, state
from tests.model.run import Run
from tests.twin_0132.recovery import Recovery0132
from waltz_core.base.edge import ZkSet
from waltz_core.store.recovery import Recovery
from waltz_core.zookeeper.paths import cluster_paths
from waltz_core.zookeeper.znodes import (
    UNRESOLVED,
    PartitionMetadata,
    decode_partition_metadata,
    encode_partition_metadata,
)
from waltz_testing.simulation.world import SimNode

PATH = cluster_paths(ROOT).partition(0)


def loaded(seed: int, commits: int = 60) -> Run:
    """A cluster of one partition under load, nothing broken, with some commits."""
    run = Run(seed, KINDS, limits=False)
    assert run.plan.partitions == 1
    run.begin()
    assert run.world.run_while(lambda: run.observer.counts["commits"] < commits, 60_000, every=5)
    return run


def owner(run: Run) -> SimNode:
    """The server that has the partition."""
    return next(server for server in run.cluster.servers if server.alive and server.machine.partitions)


def take_over(run: Run) -> None:
    """The owner dies, and the next one commits."""
    owner(run).crash()
    session = run.observer.metadata[0].session_id

    def done() -> bool:
        return run.served() and run.observer.metadata[0].session_id > session

    assert run.world.run_while(lambda: not done(), 60_000)
    commits = run.observer.counts["commits"]
    assert run.world.run_while(lambda: run.observer.counts["commits"] < commits + 20, 60_000)


def calm(first: int) -> int:
    """The first seed whose cluster has one partition and three replicas, all of them ours."""
    for seed in itertools.count(first):
        plan = Run(seed, KINDS, limits=False).plan
        if plan.partitions == 1 and plan.replicas == 3 and not plan.legacy_storages and not plan.preferred:
            return seed
    raise AssertionError


@pytest.mark.parametrize("first", [1, 40, 80])
def test_a_session_that_only_fences_and_dies_cuts_no_committed_record(first: int) -> None:
    """Ruling R1: its fence stays beside the files and never becomes the session that they belong to."""
    run = loaded(calm(first))
    run.operator.pause()
    session = run.observer.metadata[0].session_id
    for server in run.cluster.servers:
        server.crash()
    other = run.cluster.servers[1]
    other.start()

    def fenced() -> int:
        return sum(storage.node.machine.replicas[0].fence > session for storage in run.cluster.replicas)

    assert run.world.run_while(lambda: fenced() < 2, 60_000)
    other.crash()
    marked = [storage.node.machine.replicas[0].entry.current.session_id for storage in run.cluster.replicas]
    for storage in run.cluster.storages:
        storage.crash(power=True)
        storage.start()
    assert run.world.run_while(lambda: not all(storage.ready for storage in run.cluster.storages), 10_000)

    assert fenced() >= 2  # a power failure takes nothing back that was answered
    assert [storage.node.machine.replicas[0].entry.current.session_id for storage in run.cluster.replicas] == marked
    run.operator.resume()
    run.settle()


@pytest.mark.parametrize("first", [1, 40])
def test_an_owner_that_slept_through_a_fence_and_a_restart_appends_nothing(first: int) -> None:
    """storage-10.1: the storage nodes were restarted meanwhile, and still know the later session."""
    run = loaded(calm(first))
    sleeper = owner(run)
    session = run.observer.metadata[0].session_id
    sleeper.freeze()
    for storage in run.cluster.storages:
        storage.crash(power=False)
    assert run.world.run_while(lambda: not run.served() or run.observer.metadata[0].session_id == session, 90_000)
    sleeper.thaw()
    run.settle()


@pytest.mark.parametrize("sessions", [1, 2, 3])
@pytest.mark.parametrize("first", [1, 40, 80])
def test_rewound_metadata_stops_the_partition_with_a_reason_until_it_is_put_right(first: int, sessions: int) -> None:
    """Ruling R6: sessions before the present one are gone from ZooKeeper; replicas know better."""
    run = loaded(calm(first))
    zookeeper, world = run.world.zookeeper, run.world
    old = zookeeper.read(PATH)
    assert old is not None
    for _ in range(sessions):
        take_over(run)
    owner(run).crash()
    right = zookeeper.read(PATH)
    assert right is not None
    commits = run.observer.counts["commits"]
    run.observer.metadata[0] = decode_partition_metadata(old)  # this fall is our doing
    zookeeper.write([ZkSet(0, PATH, old, -1)])

    world.run(world.now + 20_000)

    assert not run.served()
    assert run.observer.counts["commits"] == commits
    reasons = [
        partition.ownership.reason
        for server in run.cluster.servers
        if server.alive
        for partition in server.machine.partitions.values()
    ]
    assert any("metadata" in reason for reason in reasons), reasons

    zookeeper.write([ZkSet(0, PATH, right, -1)])
    run.settle()


@pytest.mark.parametrize("restarts", [1, 2, 3, 4, 5])
def test_no_number_of_restarts_climbs_over_rewound_metadata(restarts: int) -> None:
    """Every attempt raises the session in ZooKeeper by one, up to and beyond those that replicas have answered."""
    run = loaded(calm(1))
    zookeeper, world = run.world.zookeeper, run.world
    old = zookeeper.read(PATH)
    assert old is not None
    take_over(run)
    take_over(run)
    right = zookeeper.read(PATH)
    assert right is not None
    for server in run.cluster.servers:
        server.crash()
    commits = run.observer.counts["commits"]
    run.observer.metadata[0] = decode_partition_metadata(old)
    zookeeper.write([ZkSet(0, PATH, old, -1)])
    for _ in range(restarts):
        world.run(world.now + 12_000)
        for server in run.cluster.servers:
            server.crash()
    world.run(world.now + 12_000)

    assert not run.served()
    assert run.observer.counts["commits"] == commits
    repaired = decode_partition_metadata(right)
    session = max(run.observer.metadata[0].session_id, repaired.session_id)
    generation = run.observer.metadata[0].generation
    repaired = PartitionMetadata(generation, session, repaired.replica_states)
    zookeeper.write([ZkSet(0, PATH, encode_partition_metadata(repaired), -1)])
    run.settle()


# ---- [100, 99] and one replica that is older than the metadata says ---------------------------------


def three(a: int, b: int, c: Storage) -> dict[str, Storage]:
    """Two voters of session 5 that hold so much, and a third replica."""
    records = [make_record(number, 5) for number in range(max(a, b) + 1)]
    return {"a": Storage(5, 90, 90, records[: a + 1]), "b": Storage(5, 90, 90, records[: b + 1]), "c": c}


@pytest.mark.parametrize("order", ["abc", "bac", "cab", "cba", "bca", "ab", "ba"])
def test_two_voters_decide_at_the_higher_mark_whatever_the_third_lost(order: str) -> None:
    """0.13.2 waits for ever if what was set back counts as absent: the lower voter copies first, then both agree."""
    old = Storage(3, 50, 50, [make_record(number, 3) for number in range(51)])
    storages = three(100, 99, old)
    states = tuple(state(replica, 5, UNRESOLVED) for replica in "abc")
    world = World(
        storages,
        PartitionMetadata(1, 6, states),
        lambda metadata, version: Recovery(PARTITION, 6, 1, metadata, version, ("a", "b", "c")),
    )
    for replica in order:
        world.arrive(replica)
        world.settle()
    assert world.recovery.resolved == 100
    assert world.opened
    assert all(storages[replica].max == 100 for replica in "ab")


def test_one_voter_and_one_that_was_set_back_wait() -> None:
    """What the absent voter and the one set back may have committed together is not given up."""
    storages = three(100, 99, Storage(3, 50, 50, []))
    states = tuple(state(replica, 5, UNRESOLVED) for replica in "abc")
    kinds: list[tuple[type[AnyRecovery], int | None]] = [(Recovery, None), (Recovery0132, 99)]
    for kind, resolved in kinds:

        def recover(metadata: PartitionMetadata, version: int, kind: type[AnyRecovery] = kind) -> AnyRecovery:
            return kind(PARTITION, 6, 1, metadata, version, ("a", "b", "c"))

        world = World({"b": storages["b"], "c": Storage(3, 50, 50, [])}, PartitionMetadata(1, 6, states), recover)
        for replica in "bc":
            world.arrive(replica)
            world.settle()
        assert world.recovery.resolved == resolved

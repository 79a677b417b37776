"""A server of 0.13.2 in one cluster with ours: what our storage nodes refuse, and that our server takes over safely.

Each scenario is a schedule in which a rule of 0.13.2 does harm. Where storage nodes can stop it, it runs with nodes
of 0.13.2, which let it through, and with ours, which refuse it (`nodes`); where only a server can, with one of
0.13.2 and with one of ours that comes next (`next`). Ours goes on with everything that was committed, or waits and
says what for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.model.cluster import ROOT, SimCluster
from tests.model.durable import DurableLog, split
from tests.model.test_server import Client
from waltz_core.base.edge import ZkSet
from waltz_core.storage.replica import State
from waltz_core.store.last_resort import ReplicaReport, confirm_metadata
from waltz_core.zookeeper.paths import cluster_paths
from waltz_core.zookeeper.znodes import (
    EMPTY_METADATA,
    UNRESOLVED,
    PartitionMetadata,
    decode_partition_metadata,
    encode_partition_metadata,
)
from waltz_testing.simulation.world import SimNode

PATH = cluster_paths(ROOT).partition(0)


class Mixed:
    """One partition on three storage nodes; a server of 0.13.2 serves it, and another one waits to be started.

    Args:
        nodes: whether the storage nodes are ours.
        heir: whether the server that comes next is.
    """

    def __init__(self, *, nodes: bool = True, heir: bool = True, storage_nodes: int = 3) -> None:
        self.cluster = SimCluster(
            1,
            storage_nodes=storage_nodes,
            servers=2,
            storages_0132=not nodes,
            servers_0132=(0,) if heir else (0, 1),
            server_options={"retry_max_ms": 1_000},
        )
        self.world = self.cluster.world
        self.world.tolerates = lambda text: True
        self.storages = self.cluster.storages
        self.cut: list[int] = []  # ids that went away from some disk
        for storage in self.storages:
            storage.disk.write_through = not nodes  # 0.13.2 does not sync directories
        self.disks = [DurableLog(storage.disk, 1, lambda _, ids: self.cut.extend(ids)) for storage in self.storages]
        self.heir = self.cluster.servers.pop()
        self.server = self.cluster.servers[0]
        self.committed: list[bytes] = []  # request ids that a client was told, by transaction id
        self.cluster.start(3)
        self.cluster.until_open()
        self.meet()

    # ---- acting ----------------------------------------------------------------------------------

    def meet(self) -> None:
        """A client mounts at the server, and reads everything."""
        number = 1 if self.cluster.servers == [self.heir] else 0
        client_id = 7 + self.metadata.generation
        self.client = Client(self.cluster, version=4, server=number, client_id=client_id, certificate="client")
        self.client.generation = self.metadata.generation
        self.client.mount()
        self.client.wait(lambda: len(self.client.feed()) >= len(self.committed))

    def commit(self, count: int) -> None:
        """Append, and wait until the feed has it all."""
        end = len(self.client.feed()) + count
        for _ in range(count):
            self.client.append(b"a transaction")
        self.client.wait(lambda: len(self.client.feed()) >= end)
        self.committed = [item.req_id for item in self.client.feed()]

    def fill(self) -> None:
        """Ten transactions below the low-water mark, five above it."""
        self.commit(10)
        self.restart()
        self.commit(5)

    def restart(self) -> None:
        """The server of 0.13.2 dies and comes again: another session."""
        generation = self.metadata.generation
        self.server.crash()
        self.server.start()
        self.reach(lambda: self.metadata.generation > generation and self.serves(self.server))
        self.meet()

    def insist(self) -> None:
        """The server of 0.13.2 tries, dies, and tries again."""
        for _ in range(4):
            self.server.crash()
            self.server.start()
            self.wait(10_000)

    def take_over(self) -> None:
        """The server goes, the other one comes."""
        self.server.crash()
        self.cluster.servers[:] = [self.heir]
        self.heir.start()

    def append_to(self, number: int) -> None:
        """Append something that reaches one storage node only."""
        pairs = {(self.server.name, one.node.name) for one in self.storages if one is not self.storages[number]}
        self.world.network.cut |= pairs
        self.client.append(b"reaches one")
        self.reach(lambda: len(self.logs[number]) > len(self.committed))

    def perish(self) -> None:
        """The server dies, and what it had under way is lost."""
        self.server.crash()
        for storage in self.storages:
            self.world.network.reset_between(storage.node.name, self.server.name)
        self.world.network.heal()

    def put_metadata(self, metadata: PartitionMetadata) -> None:
        """What an accident or an operator writes into ZooKeeper."""
        self.world.zookeeper.write([ZkSet(0, PATH, encode_partition_metadata(metadata), -1)])

    def damage(self, number: int, transaction_id: int) -> None:
        """A bit of a record flips on one disk: of its request id, which only the record's checksum covers."""
        storage = self.storages[number]
        name = "0/0000000000000000000.seg"
        at = storage.disk.disk.content(name).find(self.disks[number].records[0][transaction_id]) + 8
        storage.disk.disk.flip(name, at, 1)
        storage.disk.changed()
        self.cut.clear()

    def wait(self, ms: int) -> None:
        self.world.run(self.world.now + ms)

    def reach(self, condition: Callable[[], bool]) -> None:
        assert self.world.run_while(lambda: not condition(), 120_000, every=5), self.reason()

    # ---- looking ---------------------------------------------------------------------------------

    @property
    def metadata(self) -> PartitionMetadata:
        return decode_partition_metadata(self.world.zookeeper.read(PATH) or b"")

    @property
    def logs(self) -> list[list[bytes]]:
        """Storage node → request ids on its disk, by transaction id."""
        return [[split(disk.records[0][one])[1] for one in sorted(disk.records[0])] for disk in self.disks]

    def named(self, number: int) -> bool:
        """Whether a replica takes part in the present session."""
        name, metadata = str(self.storages[number].data_endpoint), self.metadata
        states = [one for one in metadata.replica_states if one.replica_id.storage == name]
        return any((one.session_id, one.closing_mark) == (metadata.session_id, UNRESOLVED) for one in states)

    def state_of(self, number: int) -> State:
        """That of the replica on a node."""
        state: State = self.storages[number].node.machine.replicas[0].state
        return state

    def serves(self, server: SimNode) -> bool:
        partition = self._partition(server)
        return partition is not None and not partition.trouble(server.clock)

    def reason(self) -> str:
        """What the server that has the partition says."""
        found = [self._partition(server) for server in self.cluster.servers]
        return "; ".join(partition.ownership.reason for partition in found if partition is not None)

    @staticmethod
    def _partition(server: SimNode) -> Any:
        return server.machine.partitions.get(0) if server.alive else None

    def all_is_well(self) -> None:
        """The heir serves the partition; nothing committed is missing; soon all replicas are equal."""
        self.reach(lambda: self.serves(self.heir))
        before = self.committed
        self.meet()
        self.commit(3)
        assert self.committed[: len(before)] == before
        self.reach(
            lambda: all(log == self.committed for node, log in zip(self.storages, self.logs, strict=True) if node.holds)
        )


nodes = pytest.mark.parametrize("ours", [False, True], ids=["nodes of 0.13.2", "our nodes"])
heirs = pytest.mark.parametrize("ours", [False, True], ids=["another of 0.13.2", "our server"])


@nodes
def test_lost_metadata(ours: bool) -> None:
    """server-D5: the server believes that the log is empty, as soon as its session numbers have come far enough."""
    mixed = Mixed(nodes=ours)
    mixed.fill()
    mixed.server.crash()
    mixed.put_metadata(EMPTY_METADATA)
    mixed.insist()
    assert bool(mixed.cut) is not ours
    if not ours:
        return  # down to nothing
    mixed.take_over()
    mixed.wait(20_000)
    assert not mixed.serves(mixed.heir)
    assert "metadata names no replica, but there are transactions" in mixed.reason()
    plan = confirm_metadata(0, mixed.metadata, [str(one.data_endpoint) for one in mixed.storages], witnesses(mixed))
    mixed.put_metadata(plan.metadata)
    mixed.all_is_well()
    assert not mixed.cut


def witnesses(mixed: Mixed) -> list[ReplicaReport]:
    """What the storage nodes tell an operator."""
    return [one for storage in mixed.storages if (one := storage.witness(0)) is not None]


@nodes
def test_metadata_that_was_set_back(ours: bool) -> None:
    """Ruling R6: it closes a replica below what that one has been marked with since."""
    mixed = Mixed(nodes=ours)
    mixed.commit(10)
    mixed.storages[2].crash(power=False)
    mixed.commit(10)
    old = mixed.metadata
    mixed.storages[2].start()
    mixed.restart()
    mixed.reach(lambda: mixed.named(2))
    mixed.storages[0].crash(power=False)
    mixed.commit(10)
    right = mixed.metadata
    mixed.server.crash()
    mixed.storages[0].start()
    mixed.put_metadata(PartitionMetadata(right.generation, old.session_id, old.replica_states))
    mixed.insist()
    assert any(one < 20 for one in mixed.cut) is not ours
    if not ours:
        return
    mixed.take_over()
    mixed.all_is_well()
    assert all(one >= 20 for one in mixed.cut)


@nodes
def test_a_node_that_lost_the_end_of_its_log(ours: bool) -> None:
    """server-D4, disk-8.3: one that holds a committed transaction is damaged there, the other one is away."""
    mixed = Mixed(nodes=ours)
    mixed.fill()
    mixed.world.network.cut.add((mixed.server.name, "storage0"))
    mixed.commit(1)
    mixed.wait(2_500)
    mixed.perish()
    mixed.storages[2].crash(power=False)
    mixed.storages[1].crash(power=False)
    mixed.damage(1, 15)
    mixed.storages[1].start()
    mixed.insist()
    assert mixed.serves(mixed.server) is not ours
    if not ours:
        return  # resolved at 14: transaction 15 is lost
    assert mixed.state_of(1) is State.LIMBO
    mixed.take_over()
    mixed.wait(20_000)
    assert not mixed.serves(mixed.heir)
    assert "storage1:7000" in mixed.reason()
    mixed.storages[2].start()
    mixed.all_is_well()
    assert mixed.state_of(1) is State.OPEN


@nodes
def test_a_damaged_record_is_not_copied(ours: bool) -> None:
    """disk-8.11: a catch-up from a damaged source would give the damage a good checksum."""
    mixed = Mixed(nodes=ours)
    mixed.fill()
    mixed.storages[2].crash(power=False)
    mixed.commit(10)
    mixed.restart()
    right = mixed.committed
    mixed.damage(0, 20)
    mixed.storages[2].start()
    mixed.wait(20_000)
    assert (mixed.logs[2] == right[: len(mixed.logs[2])]) is ours
    if not ours:
        return
    assert mixed.storages[0].node.machine.replicas[0].faults == {20}
    mixed.take_over()
    mixed.all_is_well()
    assert mixed.committed[: len(right)] == right


@nodes
def test_a_catch_up_that_was_interrupted(ours: bool) -> None:
    """storage-10.5: its node was marked, got a part, and is to be cut to where it stood: that may hold up nobody."""
    mixed = Mixed(nodes=ours)
    mixed.fill()
    mixed.storages[2].crash(power=False)
    mixed.commit(60)
    mixed.restart()
    mixed.storages[2].disk.latency = (20, 20)
    mixed.storages[2].start()
    mixed.reach(lambda: 20 < len(mixed.logs[2]) < 70)
    mixed.storages[2].crash(power=False)
    mixed.storages[2].disk.latency = (0, 2)
    mixed.server.crash()
    mixed.server.start()
    mixed.storages[2].start()
    mixed.reach(lambda: mixed.serves(mixed.server) and mixed.named(2))
    mixed.take_over()
    mixed.all_is_well()


@nodes
def test_a_replica_that_was_levelled_and_not_named(ours: bool) -> None:
    """storage-10.5: the server died before ZooKeeper knew; the next one has the replica cut to where it stood."""
    mixed = Mixed(nodes=ours)
    mixed.fill()
    mixed.storages[2].crash(power=False)
    mixed.commit(30)
    mixed.restart()
    mixed.world.zookeeper.latency = (60_000, 60_000)
    mixed.storages[2].start()
    mixed.reach(lambda: mixed.logs[2] == mixed.committed)
    mixed.wait(1_000)
    assert not mixed.named(2)
    mixed.server.crash()
    mixed.world.zookeeper.latency = (0, 3)
    mixed.storages[1].crash(power=False)
    mixed.server.start()
    mixed.reach(lambda: mixed.serves(mixed.server) and mixed.named(2))
    assert mixed.cut
    mixed.storages[1].start()
    mixed.take_over()
    mixed.all_is_well()


def test_a_server_that_slept_through_everything() -> None:
    """storage-10.1: it wakes up with appends at hand; nodes that were restarted still know the later session."""
    mixed = Mixed()
    mixed.fill()
    sleeper = mixed.server
    sleeper.freeze()
    for _ in range(5):
        mixed.client.append(b"too late")
    for storage in mixed.storages:
        storage.crash(power=False)
        storage.start()
    mixed.cluster.servers[:] = [mixed.heir]
    mixed.heir.start()
    mixed.all_is_well()
    for storage in mixed.storages:
        storage.crash(power=False)
        storage.start()
    sleeper.thaw()
    mixed.wait(20_000)
    mixed.all_is_well()


@heirs
def test_a_session_that_appended_before_its_states_were_written(ours: bool) -> None:
    """server-D1: two replicas end at the same id with different transactions, and the states tell nobody why."""
    mixed = Mixed(heir=ours)
    mixed.fill()
    mixed.append_to(2)
    mixed.perish()
    mixed.storages[2].crash(power=False)
    mixed.server.start()
    generation = mixed.metadata.generation
    mixed.reach(lambda: mixed.metadata.generation > generation)
    mixed.world.zookeeper.latency = (60_000, 60_000)
    mixed.reach(lambda: mixed.serves(mixed.server))
    mixed.meet()
    mixed.append_to(0)
    mixed.perish()
    mixed.storages[1].crash(power=False)
    mixed.world.zookeeper.latency = (0, 3)
    mixed.storages[2].start()
    assert mixed.logs[0][:15] == mixed.logs[2][:15]
    assert mixed.logs[0][15] != mixed.logs[2][15]

    mixed.take_over()
    mixed.wait(20_000)

    assert mixed.serves(mixed.heir) is not ours
    if not ours:
        assert mixed.logs[0][15] != mixed.logs[2][15]  # and both count as committed
        return
    assert "the metadata does not name what a session appended to: storage0:7000" in mixed.reason()
    mixed.storages[1].start()
    mixed.all_is_well()


@heirs
def test_a_node_that_was_taken_out_and_in_again(ours: bool) -> None:
    """server-D2: it left with a transaction of its own, and was away when it was added again."""
    mixed = Mixed(heir=ours, storage_nodes=4)
    mixed.fill()
    mixed.append_to(2)
    mixed.perish()
    mixed.storages[2].crash(power=False)
    mixed.cluster.set_replicas([mixed.storages[number] for number in (0, 1, 3)])
    mixed.server.start()
    mixed.reach(lambda: mixed.serves(mixed.server) and mixed.named(3))
    mixed.meet()
    mixed.commit(5)
    session = mixed.metadata.session_id
    mixed.cluster.set_replicas(mixed.storages[:3])
    mixed.reach(lambda: mixed.metadata.session_id > session and mixed.serves(mixed.server))
    mixed.meet()
    mixed.commit(5)
    right = mixed.committed

    mixed.take_over()
    mixed.reach(lambda: mixed.serves(mixed.heir))
    mixed.storages[2].start()

    if ours:
        mixed.all_is_well()
    else:
        mixed.reach(lambda: mixed.named(2))
        assert mixed.logs[2][:15] == right[:15]
        assert mixed.logs[2][15] != right[15]

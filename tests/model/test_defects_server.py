"""Defects of the original's server, each a schedule: harm with its rule, none with ours."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from tests.model.cluster import SimCluster, SimStorage
from tests.model.test_server import PATHS, Client, opened, session_of
from tests.twin_0132.server import Appender0132
from tests.unit.server.test_appender import append, appender_with, launch, sender
from waltz_core.base.edge import Shutdown, ZkCreate, ZkRequest, ZkSet
from waltz_core.base.ids import make_req_id
from waltz_core.base.log import Record
from waltz_core.server.appender import Appender
from waltz_core.server.data_cache import DataCache
from waltz_core.server.feed import Feed
from waltz_core.server.feed_cache import FeedCache
from waltz_core.wire import client_messages as messages
from waltz_core.zookeeper import znodes
from waltz_testing.simulation.world_zookeeper import Caller

both = pytest.mark.parametrize("on", [False, True], ids=["0.13.2", "ours"])


def healthy(cluster: SimCluster, server: int) -> bool:
    """Whether a server serves every partition it has, and has one."""
    partitions = cluster.servers[server].machine.snapshot(cluster.world.now).partitions
    return bool(partitions) and all(one.healthy for one in partitions)


def owner_of(cluster: SimCluster) -> int:
    """Number of the server that has the partition."""
    return next(n for n, node in enumerate(cluster.servers) if node.machine.snapshot(cluster.world.now).partitions)


class Gap:
    """A server loses its partition, another one commits, and it comes back to the same server."""

    def __init__(self, on: bool) -> None:
        self.cluster = opened(servers=2, seed=3, servers_0132=() if on else (0, 1))
        self.world = self.cluster.world
        self.owner = owner_of(self.cluster)
        self.client = Client(self.cluster, server=self.owner)
        self.client.mount()

    def commit_elsewhere(self, lock: int, *, set_back: bool = False) -> None:
        """The other server takes over, commits one transaction and dies; the first one owns again.

        Args:
            set_back: metadata is set back to the first one's session meanwhile, and repaired later by an operator.
        """
        first = session_of(self.cluster)
        other = 1 - self.owner
        self.world.zookeeper.suspend(self.cluster.servers[self.owner], 12_000)
        assert self.world.run_while(lambda: not healthy(self.cluster, other), 60_000)
        there = Client(self.cluster, server=other, client_id=8)
        there.generation = session_of(self.cluster).generation
        there.mount()
        there.append(b"there", write=(lock,))
        there.wait(there.feed)
        self.cluster.servers[other].crash()
        self.world.network.heal()
        right = session_of(self.cluster)
        generation = right.generation
        if set_back:
            self._write(first)
            self.world.run(self.world.now + 20_000)
            now = session_of(self.cluster)
            assert now.generation > generation, "the first one has not tried yet"
            self._write(
                attrs.evolve(right, generation=now.generation, session_id=max(now.session_id, right.session_id))
            )

        def back() -> bool:
            partitions = self.cluster.servers[self.owner].machine.snapshot(self.world.now).partitions
            return bool(partitions) and partitions[0].healthy and partitions[0].generation > generation

        assert self.world.run_while(lambda: not back(), 120_000)

    def _write(self, metadata: znodes.PartitionMetadata) -> None:
        self.world.zookeeper.write([ZkSet(0, PATHS.partition(0), znodes.encode_partition_metadata(metadata), -1)])


@both
def test_locks_taken_elsewhere_are_known_when_the_partition_comes_back(on: bool) -> None:
    """server-D3: the lock table must know, or a transaction commits that missed another one."""
    gap = Gap(on)
    gap.commit_elsewhere(lock=5)
    again = Client(gap.cluster, server=gap.owner, client_id=9)
    again.generation = session_of(gap.cluster).generation
    again.mount()
    before = len(again.feed())
    again.append(b"stale", write=(5,), mark=-1)
    refused = messages.LockFailure
    again.wait(lambda: len(again.feed()) > before or any(isinstance(m, refused) for m in again.received))
    assert any(isinstance(m, refused) for m in again.received) is on


def told_of_what_reached_nobody(gap: Gap, *, set_back: bool = False) -> list[int]:
    """Under which ids an append comes back that was in flight to no storage node when the partition was lost."""
    gap.world.network.cut |= {(f"server{gap.owner}", storage.node.name) for storage in gap.cluster.storages}
    lost = gap.client.append(b"reached nobody")
    gap.world.run(gap.world.now + 100)
    gap.commit_elsewhere(lock=7, set_back=set_back)
    gap.world.run(gap.world.now + 5_000)
    gap.client.connection.receive(gap.client.peer.take_bytes(), gap.client.received)
    return [one.transaction_id for one in gap.client.feed() if one.req_id == lost]


@both
def test_what_was_in_flight_is_not_taken_for_what_another_server_wrote(on: bool) -> None:
    """server-D3: an append that reached nobody is told as committed under the id of another one."""
    assert told_of_what_reached_nobody(Gap(on)) == ([] if on else [0])


def test_what_was_in_flight_is_not_taken_for_what_metadata_that_was_set_back_hides() -> None:
    """Under a new generation a server believes nothing of its own past; simulator, seed 92000348."""
    assert told_of_what_reached_nobody(Gap(True), set_back=True) == []


@both
def test_one_failed_read_of_a_payload_is_not_for_ever(on: bool) -> None:
    """server-D13: asked for before it exists, a payload is there once it does."""
    cluster = opened(servers_0132=() if on else (0,))
    client = Client(cluster)
    client.mount()
    assert not client.ask(messages.TransactionDataRequest(client.req_id(), 0)).success
    client.append(b"now")
    client.wait(client.feed)
    assert client.ask(messages.TransactionDataRequest(client.req_id(), 0)).success is on


@both
def test_preferred_partitions_that_make_no_sense_are_refused_by_an_answer(on: bool) -> None:
    """server-D26: an empty list costs the connection, a negative id is accepted."""
    cluster = opened(servers_0132=() if on else (0,))
    client = Client(cluster)
    answer = client.ask(messages.AddPreferredPartitionRequest(client.req_id(), (-1,)))
    assert answer.result is not on
    client.send(messages.AddPreferredPartitionRequest(client.req_id(), ()))
    cluster.world.run(cluster.world.now + 1_000)
    assert client.peer.closed is not on


def test_a_recovery_that_cannot_end_does_not_hold_up_the_end_of_the_server() -> None:
    """server-D9."""
    cluster = SimCluster(6)
    cluster.start()
    for storage in cluster.storages[1:]:
        storage.crash()
    cluster.world.run(cluster.world.now + 8_000)
    server = cluster.servers[0]
    assert not healthy(cluster, 0)
    server.on_effect = None
    server.post(Shutdown())
    assert cluster.world.run_while(lambda: server.ended is None, 5_000)


def test_a_storage_node_that_hangs_holds_nobody_up() -> None:
    """server-D10: in operation and during a recovery."""
    cluster = opened()
    client = Client(cluster)
    client.mount()
    cluster.storages[0].node.freeze()
    client.append(b"one")
    client.wait(client.feed, 30_000)
    cluster.storages[0].node.thaw()
    cluster.world.run(cluster.world.now + 15_000)
    cluster.storages[1].node.freeze()
    cluster.servers[0].crash()
    cluster.servers[0].start()
    cluster.until_open()


@pytest.mark.parametrize("appends", [1, 1_500])
def test_appends_that_wait_when_a_session_ends_are_committed_by_the_next(appends: int) -> None:
    """server-D11, server-D12, server-D29: none is dropped, none keeps its locks, whatever ended the session."""
    cluster = opened(server_options={"batch_count_max": 100})
    client = Client(cluster)
    client.mount()
    pairs = {("server0", storage.node.name) for storage in cluster.storages}
    cluster.world.network.cut |= pairs
    sent = [client.append(b"x" * 100, write=(n,)) for n in range(appends)]
    cluster.world.run(cluster.world.now + 300)
    for storage in cluster.storages[:2]:
        storage.crash()
    cluster.world.run(cluster.world.now + 3_000)
    cluster.world.network.heal()
    for storage in cluster.storages[:2]:
        storage.start()
    client.wait(lambda: len(client.feed()) == appends, 120_000)
    assert [one.req_id for one in client.feed()] == sent
    client.append(b"the lock is free", write=(0,), mark=appends - 1)
    client.wait(lambda: len(client.feed()) == appends + 1)


@pytest.mark.parametrize("after_ms", [0, 20, 60, 200])
def test_zookeeper_away_while_the_first_session_is_made_disables_nothing(after_ms: int) -> None:
    """server-D14, recovery L6."""
    cluster = SimCluster(7)
    cluster.start()
    world = cluster.world
    world.run_while(lambda: not cluster.servers[0].machine.snapshot(world.now).partitions, 10_000)
    world.run(world.now + after_ms)
    world.zookeeper.suspend(cluster.servers[0], 1_500)
    cluster.until_open()
    client = Client(cluster)
    client.mount()
    client.append(b"goes on")
    client.wait(client.feed)


def test_mounts_and_flushes_are_answered_when_the_session_they_met_has_failed() -> None:
    """server-D15."""
    cluster = opened()
    client = Client(cluster)
    client.mount()
    cluster.storages[0].crash()
    cluster.storages[1].crash()
    client.append(b"waits")
    flush = client.req_id()
    client.send(messages.FlushRequest(flush))
    other = Client(cluster, client_id=9)
    mount = other.req_id()
    other.send(messages.MountRequest(mount, -1, 0))
    cluster.world.run(cluster.world.now + 5_000)
    cluster.storages[0].start()
    client.wait(lambda: messages.FlushResponse(flush, 0) in client.received, 60_000)
    ready = messages.MountResponse(mount, messages.PartitionState.READY)
    other.wait(lambda: ready in other.received, 60_000)


def test_a_partition_whose_first_recovery_does_not_end_is_not_healthy() -> None:
    """server-D17; and its mark before the first session says that there is none (server-D16)."""
    cluster = SimCluster(8)
    cluster.start()
    for storage in cluster.storages[1:]:
        storage.crash()
    world = cluster.world
    world.run(world.now + 10_000)
    client = Client(cluster)
    assert client.ask(messages.ServerPartitionsHealthStatRequest(client.req_id())).health == ((0, False),)
    assert client.ask(messages.HighWaterMarkRequest(client.req_id())).high_water_mark == -(2**63)
    (status,) = cluster.servers[0].machine.snapshot(world.now).partitions
    assert status.reason


def test_payloads_without_a_byte_are_cached_and_let_go_like_others() -> None:
    """server-D19."""
    cache = DataCache(100_000)
    empty = [Record(n, make_req_id(7, 1, 0, n), 0, b"", 0) for n in range(5)]
    cache.add(0, 0, empty)
    assert [cache.get(0, n) for n in range(5)] == [(b"", 0)] * 5
    cache.forget(0)
    assert [cache.get(0, n) for n in range(5)] == [None] * 5


class Two:
    """Partition 0 has lost its replicas, partition 1 has not."""

    def __init__(self) -> None:
        self.cluster = SimCluster(9, partitions=2, storage_nodes=5)
        self.cluster.start()
        storages = self.cluster.storages
        self.cluster.until_open()
        self.assign(storages[:3], storages[2:])
        self.client = Client(self.cluster)
        self.mounted = [self.client.mount(partition=p) for p in (0, 1)]

    def assign(self, *per_partition: list[SimStorage]) -> None:
        """Partition n gets the n-th list of storage nodes."""
        wanted = [
            (str(storage.data_endpoint), tuple(p for p, nodes in enumerate(per_partition) if storage in nodes))
            for storage in self.cluster.storages
        ]
        replicas = znodes.encode_replica_assignments(znodes.ReplicaAssignments(tuple(wanted)))
        self.cluster.world.zookeeper.write([ZkSet(0, PATHS.assignment, replicas, -1)])
        self.cluster.world.run(self.cluster.world.now + 5_000)

    def fed(self, partition: int) -> list[Any]:
        return [one for one in self.client.feed() if int.from_bytes(one.req_id[8:12]) == partition]


def test_a_partition_that_cannot_commit_does_not_block_another_on_the_same_connection() -> None:
    """server-D20, server-D21."""
    two = Two()
    for storage in two.cluster.storages[:2]:
        storage.crash()
    two.cluster.world.run(two.cluster.world.now + 1_000)
    for _ in range(2_000):
        two.client.append(bytes(100), partition=0)
    two.client.append(b"through", partition=1)
    two.client.wait(lambda: two.fed(1), 2_000)
    assert two.fed(0) == []


def test_a_change_of_one_partitions_replicas_leaves_the_sessions_of_others_alone() -> None:
    """server-D22; the fixes of 2020-03-27 (new sessions on a change) and 2021-02-28 (no stale ones)."""
    two = Two()
    sessions = [session_of(two.cluster, p).session_id for p in (0, 1)]
    two.assign(two.cluster.storages[1:4], two.cluster.storages[2:])
    assert session_of(two.cluster, 0).session_id > sessions[0]
    assert session_of(two.cluster, 1).session_id == sessions[1]
    names = sorted(state.replica_id.storage for state in session_of(two.cluster, 0).replica_states)
    assert names == ["storage1:7000", "storage2:7000", "storage3:7000"]
    two.client.append(b"zero", partition=0)
    two.client.append(b"one", partition=1)
    two.client.wait(lambda: two.fed(0) and two.fed(1))


def test_a_record_that_one_replica_cannot_read_is_read_from_another_in_the_same_session() -> None:
    """server-D27."""
    cluster = opened(server_options={"data_cache_bytes": 0})
    client = Client(cluster)
    client.mount()
    for n in range(20):
        client.append(bytes([n]) * 50)
    client.wait(lambda: len(client.feed()) == 20)
    cluster.world.run(cluster.world.now + 3_000)
    session = session_of(cluster).session_id
    cluster.world.tolerates = lambda text: "transaction 7 is damaged" in text
    for storage in cluster.storages[:2]:
        path = next(name for name in storage.disk.disk.files() if name.endswith(".seg"))
        content = storage.disk.disk.content(path)
        storage.disk.disk.flip(path, content.index(bytes([7]) * 50) + 9)
    for _ in range(6):
        answer = client.ask(messages.TransactionDataRequest(client.req_id(), 7))
        assert (answer.success, answer.data) == (True, bytes([7]) * 50)
    assert session_of(cluster).session_id == session


def test_the_first_to_make_the_metadata_of_a_partition_need_not_be_us() -> None:
    """server-D30: the node is made by somebody else between our look and our try."""
    cluster = SimCluster(10)
    world = cluster.world
    made: list[bool] = []
    ask = world.zookeeper.request

    def first(node: Caller, request: ZkRequest) -> None:
        if not made and isinstance(request, ZkCreate) and request.path == PATHS.partition(0):
            made.append(True)
            data = znodes.encode_partition_metadata(znodes.EMPTY_METADATA)
            world.zookeeper.write([attrs.evolve(request, data=data)])
        ask(node, request)

    world.zookeeper.request = first  # type: ignore[method-assign]  # somebody else is faster
    cluster.start()
    cluster.until_open()
    assert made


def test_a_distance_of_more_than_31_bits_is_not_cut() -> None:
    """server-D25: the budget of a feed is a plain number, whatever the gap."""
    feed = Feed(FeedCache(1_000))
    feed.restart(2**31 + 5)
    req_id = make_req_id(7, 1, 0, 1)
    feed.subscribe(1, req_id, -1, 2**31 + 6, messages.FeedSuspended(req_id))
    effects: list[Any] = []
    feed.serve(0, effects)
    assert [(one.first, one.count > 0) for one in effects] == [(0, True)]


def test_a_session_without_replicas_waits_and_one_with_any_number_opens() -> None:
    """The fix of 2022-01-20: no storage node assigned is a state to wait in, not a deadlock."""
    cluster = opened()
    cluster.set_replicas([])
    cluster.world.run(cluster.world.now + 3_000)
    (partition,) = cluster.servers[0].machine.snapshot(cluster.world.now).partitions
    assert not partition.healthy
    cluster.set_replicas(cluster.storages)
    cluster.until_open()


def test_health_falls_when_a_session_ends_and_cannot_be_replaced() -> None:
    """The fix of 2022-03-30."""
    cluster = opened()
    cluster.storages[0].crash()
    cluster.storages[1].crash()
    assert cluster.world.run_while(lambda: healthy(cluster, 0), 2_000)
    cluster.storages[0].start()
    cluster.until_open()


def test_a_message_of_a_client_that_never_mounted_disturbs_nobody() -> None:
    """The fix of 2022-04-21: an append or a feed before any mount is dropped."""
    cluster = opened()
    stranger = Client(cluster, client_id=9)
    stranger.append(b"not mounted")
    stranger.send(messages.FeedRequest(stranger.req_id(), -1))
    cluster.world.run(cluster.world.now + 1_000)
    assert not stranger.peer.closed
    client = Client(cluster)
    client.mount()
    client.append(b"mounted")
    client.wait(client.feed)
    assert client.ask(messages.TransactionDataRequest(client.req_id(), 0)).data == b"mounted"


def test_the_mark_is_known_as_soon_as_a_restarted_server_has_opened() -> None:
    """The fix of 2021-11-22 (metric of a restarted server): before the first append of its session."""
    cluster = opened()
    client = Client(cluster)
    client.mount()
    client.append(b"x")
    client.wait(client.feed)
    cluster.servers[0].crash()
    cluster.servers[0].start()
    cluster.until_open()
    (partition,) = cluster.servers[0].machine.snapshot(cluster.world.now).partitions
    assert partition.high_water_mark == 0


@both
def test_an_append_that_conflicts_with_one_in_flight_holds_nobody_up(on: bool) -> None:
    """server-5: 0.13.2 lets the whole queue wait for the lock."""
    appender = appender_with(kind=Appender if on else Appender0132)
    appender.enqueue(sender(1), [append(1, write=[5]), append(2, write=[5]), append(3)])
    launch(appender)
    launch(appender)
    assert appender.in_flight == (2 if on else 1)


def test_an_append_of_an_older_generation_is_not_taken() -> None:
    """server-19: its client computed it before the partition went elsewhere and came back."""
    gap = Gap(on=True)
    gap.commit_elsewhere(lock=5)
    late = Client(gap.cluster, server=gap.owner, client_id=9)
    late.mount()
    refused = late.append(b"late")
    late.generation = session_of(gap.cluster).generation
    late.mount(0)
    taken = late.append(b"fresh")
    late.wait(lambda: any(one.req_id == taken for one in late.feed()))
    gap.world.run(gap.world.now + 1_000)
    late.connection.receive(late.peer.take_bytes(), late.received)
    assert not any(one.req_id == refused for one in late.feed())


def test_a_flush_is_answered_with_what_is_committed_and_not_with_what_is_in_flight() -> None:
    """server-4: clients take everything up to that mark for decided."""
    cluster = opened()
    cluster.world.network.latency = (5, 5)
    client = Client(cluster)
    client.mount()
    client.append(b"before")
    flush = client.req_id()
    client.send(messages.FlushRequest(flush))
    cluster.world.run(cluster.world.now + 3)
    client.append(b"behind")
    client.wait(lambda: any(isinstance(one, messages.FlushResponse) for one in client.received))
    assert messages.FlushResponse(flush, 0) in client.received


def test_a_server_announces_no_session_below_the_generation_in_zookeeper() -> None:
    """recovery S8: one generation more is enough; the partition is another server's."""
    cluster = opened()
    found = session_of(cluster)
    newer = znodes.encode_partition_metadata(attrs.evolve(found, generation=found.generation + 1))
    cluster.world.zookeeper.write([ZkSet(0, PATHS.partition(0), newer, -1)])
    cluster.storages[0].crash()
    cluster.world.run(cluster.world.now + 10_000)
    assert not healthy(cluster, 0)
    assert session_of(cluster) == attrs.evolve(found, generation=found.generation + 1)


def test_a_session_that_another_server_announced_first_is_not_written_over() -> None:
    """recovery I9: session ids are won by comparing and setting, from what was read."""
    cluster = SimCluster(11)
    world = cluster.world
    others: list[int] = []
    ask = world.zookeeper.request

    def between(node: Caller, request: ZkRequest) -> None:
        if not others and isinstance(request, ZkSet) and request.path == PATHS.partition(0):
            others.append(5)
            theirs = znodes.PartitionMetadata(1, 5, ())
            world.zookeeper.write([ZkSet(0, request.path, znodes.encode_partition_metadata(theirs), -1)])
        ask(node, request)

    world.zookeeper.request = between  # type: ignore[method-assign]  # somebody else is faster
    cluster.start()
    cluster.until_open()
    assert others
    assert session_of(cluster).session_id == 6


def test_what_a_replica_damaged_is_not_copied_to_another() -> None:
    """storage-10.11: 0.13.2 gives out what it finds, and its server wrote it with a fresh checksum elsewhere."""
    cluster = SimCluster(12, storages_0132=True)
    cluster.start()
    cluster.until_open()
    client = Client(cluster)
    client.mount()
    cluster.storages[2].crash(power=False)
    for n in range(20):
        client.append(bytes([n + 100]) * 50)
    client.wait(lambda: len(client.feed()) == 20)
    cluster.world.run(cluster.world.now + 2_000)
    cluster.world.tolerates = lambda text: True
    for storage in cluster.storages[:2]:
        path = next(name for name in storage.disk.disk.files() if name.endswith(".seg"))
        content = storage.disk.disk.content(path)
        storage.disk.disk.flip(path, content.index(bytes([107]) * 50) + 9)
    cluster.storages[2].start()
    cluster.world.run(cluster.world.now + 40_000)
    files = cluster.storages[2].disk.disk.files()
    log = next(content for name, content in files.items() if name.endswith(".seg"))
    assert bytes([107]) * 9 + bytes([107 ^ 0xFF]) not in log


def test_a_server_serves_no_log_that_ends_before_what_it_has_committed() -> None:
    """server-D4, all replicas set back at once: nobody but the server itself can know."""
    cluster = opened()
    client = Client(cluster)
    client.mount()
    for n in range(5):
        client.append(bytes([n]))
    client.wait(lambda: len(client.feed()) == 5)
    before = [storage.disk.disk.clone() for storage in cluster.storages]
    for n in range(5):
        client.append(bytes([n]))
    client.wait(lambda: len(client.feed()) == 10)
    for storage, disk in zip(cluster.storages, before, strict=True):
        storage.crash(power=False)
        storage.disk.disk = disk
    for storage in cluster.storages:
        storage.start()
    cluster.world.run(cluster.world.now + 20_000)
    (partition,) = cluster.servers[0].machine.snapshot(cluster.world.now).partitions
    assert not partition.healthy
    assert any("replicas lost data" in report.text for _, report in cluster.servers[0].reports)


def test_a_replica_lost_while_it_is_taken_in_is_taken_in_when_it_is_back() -> None:
    """recovery L3, I2: not in the session that it left, but in one that is made for it."""
    cluster = opened(server_options={"batch_count_max": 10})
    world, late = cluster.world, cluster.storages[2]
    client = Client(cluster)
    client.mount()
    late.crash(power=False)
    for n in range(40):
        client.append(bytes(100))
        client.wait(lambda n=n: len(client.feed()) == n + 1)
    session = session_of(cluster).session_id
    late.start()

    def being_taken_in() -> bool:
        (partition,) = cluster.servers[0].machine.snapshot(world.now).partitions
        return any(link[0] == "storage2:7000" and link[1] == "recovering" for link in partition.links)

    assert world.run_while(lambda: not being_taken_in(), 60_000)
    late.crash(power=False)
    late.start()

    def level() -> bool:
        found = session_of(cluster)
        named = [one.replica_id.storage for one in found.replica_states if one.session_id == found.session_id]
        return "storage2:7000" in named and found.session_id > session

    assert world.run_while(lambda: not level(), 60_000)

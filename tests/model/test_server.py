"""A server among storage nodes in the simulated world: what clients see, and what survives."""

from __future__ import annotations

from typing import Any
from uuid import UUID
from zlib import crc32

import pytest

from tests import versions_0132
from tests.model.cluster import KEY, ROOT, RawPeer, SimCluster
from waltz_core.base.edge import Reading, WallClock, ZkDone, ZkGet, ZkSet
from waltz_core.base.ids import Endpoint, ReqId, make_req_id
from waltz_core.server.config import ServerConfig
from waltz_core.server.feed_cache import FRAME_SIZE
from waltz_core.server.snapshot import RESPONSE_BOUNDS
from waltz_core.wire import client_messages as messages
from waltz_core.wire.client_codec import VERSIONS
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection
from waltz_core.wire.shared import AWAITED
from waltz_core.zookeeper import znodes
from waltz_core.zookeeper.paths import cluster_paths

PATHS = cluster_paths(ROOT)


class Client:
    """A hand-driven client on one connection."""

    def __init__(
        self,
        cluster: SimCluster,
        *,
        version: int | None = None,
        client_id: int = 7,
        server: int = 0,
        certificate: str | None = None,
        endpoint: Endpoint | None = None,
    ) -> None:
        self.world = cluster.world
        self.client_id = client_id
        self.sequence = 0
        self.generation = 1
        self.received: list[Any] = []
        if version is None:
            version = max(versions_0132.CLIENT if server in cluster.servers_0132 else VERSIONS)
        self.connection: Connection[messages.ClientMessage] = Connection(CLIENT_PROTOCOL, "hand", {version})
        self.peer: RawPeer = cluster.raw_peer(endpoint or Endpoint(f"server{server}", 6000), certificate)
        assert self.world.run_while(lambda: not self.peer.connected, 10_000)
        self.peer.send(self.connection.hello())
        self.wait(lambda: self.connection.version is not None)

    def req_id(self, partition: int = 0) -> ReqId:
        self.sequence += 1
        return make_req_id(self.client_id, self.generation, partition, self.sequence)

    def send(self, *sent: messages.ClientMessage) -> None:
        data = bytearray()
        for message in sent:
            self.connection.encode(message, data)
        self.peer.send(bytes(data))

    def wait(self, condition: Any, limit: int = 30_000) -> None:
        def done() -> bool:
            self.connection.receive(self.peer.take_bytes(), self.received)
            return bool(condition())

        assert self.world.run_while(lambda: not done(), limit), self.received[-5:]

    def ask(self, message: messages.ClientMessage) -> Any:
        """Send a request and wait for the next message."""
        before = len(self.received)
        self.send(message)
        self.wait(lambda: len(self.received) > before)
        return self.received[-1]

    def mount(self, mark: int = -1, partition: int = 0) -> ReqId:
        req_id = self.req_id(partition)
        self.send(messages.MountRequest(req_id, mark, 0))
        ready = messages.MountResponse(req_id, messages.PartitionState.READY)
        self.wait(lambda: ready in self.received)
        mark = max((m.transaction_id for m in self.feed()), default=mark)
        self.send(messages.FeedRequest(req_id, mark))
        return req_id

    def append(self, data: bytes, *, mark: int = -1, write: tuple[int, ...] = (), partition: int = 0) -> ReqId:
        req_id = self.req_id(partition)
        checksum = crc32(data)
        signed = checksum - (1 << 32) if checksum >> 31 else checksum
        self.send(messages.AppendRequest(req_id, mark, write, (), (), 0, data, signed))
        return req_id

    def feed(self) -> list[messages.FeedData]:
        return [m for m in self.received if isinstance(m, messages.FeedData)]


def opened(**options: Any) -> SimCluster:
    cluster = SimCluster(options.pop("seed", 1), **options)
    cluster.start()
    cluster.until_open()
    return cluster


def session_of(cluster: SimCluster, partition: int = 0) -> znodes.PartitionMetadata:
    tree = cluster.world.zookeeper.tree
    answer = tree.apply(tree.open_session(), ZkGet(0, PATHS.partition(partition)))
    assert isinstance(answer, ZkDone)
    return znodes.decode_partition_metadata(answer.data or b"")


def test_an_append_comes_back_in_the_feed_and_its_data_can_be_read() -> None:
    cluster = opened()
    client = Client(cluster)
    client.mount()
    req_id = client.append(b"hello")
    client.wait(client.feed)
    assert client.feed() == [messages.FeedData(req_id, 0, 0)]
    answer = client.ask(messages.TransactionDataRequest(client.req_id(), 0))
    assert (answer.success, answer.data) == (True, b"hello")


def test_appends_one_after_the_other_move_no_alarm_that_rings_early_enough() -> None:
    cluster = opened()
    client = Client(cluster)
    client.mount()
    server = cluster.servers[0].machine
    moved = []
    for number in range(21):
        client.append(b"next", mark=number - 1)
        client.wait(lambda n=number: len(client.feed()) > n)
        moved.append(server._alarms._count)  # how often one was set
    assert moved[-1] == moved[0]


def test_a_storage_node_that_hangs_is_given_up_in_time_though_its_alarm_rang_early_before() -> None:
    cluster = opened()
    client = Client(cluster)
    client.mount()
    timeout = ServerConfig("", Endpoint("", 1)).answer_timeout_ms
    for number in range(5):  # the alarm was set for the first of them, and rings for nothing
        client.append(b"next", mark=number - 1)
        client.wait(lambda n=number: len(client.feed()) > n)
        cluster.world.run(cluster.world.now + timeout // 3)
    before = session_of(cluster).session_id

    cluster.storages[0].node.freeze()
    client.append(b"not answered by one of three")
    client.wait(lambda: len(client.feed()) > 5)

    assert cluster.world.run_while(lambda: session_of(cluster).session_id == before, timeout + 100)


def test_a_storage_node_that_is_back_is_dialed_at_once_whatever_alarm_an_append_left() -> None:
    cluster = opened()
    client = Client(cluster)
    client.mount()
    client.append(b"leaves an alarm for ten seconds on")
    client.wait(client.feed)

    cluster.storages[0].crash()
    cluster.world.run(cluster.world.now + 500)
    cluster.storages[0].start()

    def connected() -> bool:
        snapshot = cluster.servers[0].machine.snapshot(cluster.world.now)
        return all(state == "usable" for _, state, _ in snapshot.storage_nodes)

    assert not connected()
    assert cluster.world.run_while(lambda: not connected(), 3_000)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_lost_storage_node_costs_nothing_but_a_new_session(victim: int) -> None:
    cluster = opened()
    client = Client(cluster)
    client.mount()
    client.append(b"before")
    client.wait(client.feed)
    before = session_of(cluster).session_id

    cluster.storages[victim].crash()
    client.append(b"after")
    client.wait(lambda: len(client.feed()) == 2)
    assert session_of(cluster).session_id > before

    cluster.storages[victim].start()
    sid = session_of(cluster).session_id

    def rejoined() -> bool:
        states = session_of(cluster).replica_states
        return all(s.session_id == sid and s.closing_mark == znodes.UNRESOLVED for s in states)

    assert cluster.world.run_while(lambda: not rejoined(), 60_000)
    client.append(b"with all three")
    client.wait(lambda: len(client.feed()) == 3)


def test_a_late_replica_copies_what_it_missed_and_can_then_carry_the_log() -> None:
    """Far behind: beyond the tail kept in memory it is copied from another replica."""
    cluster = opened(server_options={"batch_count_max": 50})
    client = Client(cluster)
    client.mount()
    cluster.storages[2].crash()
    for n in range(30):
        for _ in range(50):
            client.append(bytes(100))
        client.wait(lambda n=n: len(client.feed()) == 50 * (n + 1))
    cluster.storages[2].start()
    cluster.world.run(cluster.world.now + 25_000)
    cluster.storages[0].crash()
    client.append(b"last")
    client.wait(lambda: len(client.feed()) == 1501)
    answer = client.ask(messages.TransactionDataRequest(client.req_id(), 0))
    assert answer.success


def test_without_a_quorum_appends_wait_and_then_commit_in_order() -> None:
    cluster = opened()
    client = Client(cluster)
    client.mount()
    cluster.storages[0].crash()
    cluster.storages[1].crash()
    cluster.world.run(cluster.world.now + 2_000)
    sent = [client.append(bytes([n])) for n in range(5)]
    cluster.world.run(cluster.world.now + 5_000)
    assert client.feed() == []
    cluster.storages[0].start()
    client.wait(lambda: len(client.feed()) == 5, 60_000)
    assert [m.req_id for m in client.feed()] == sent


def test_a_checkpoint_opens_a_new_session_under_load() -> None:
    cluster = opened(server_options={"checkpoint_interval": 40})
    before = session_of(cluster).session_id
    client = Client(cluster)
    client.mount()
    for n in range(10):
        for _ in range(20):
            client.append(b"x")
        client.wait(lambda n=n: len(client.feed()) == 20 * (n + 1))
    assert session_of(cluster).session_id >= before + 3
    assert [m.transaction_id for m in client.feed()] == list(range(200))


def test_another_set_of_replicas_is_recovered_to() -> None:
    cluster = SimCluster(2, storage_nodes=4)
    cluster.start()
    cluster.set_replicas(cluster.storages[:3])
    cluster.until_open()
    client = Client(cluster)
    client.mount()
    client.append(b"a")
    client.wait(client.feed)
    cluster.set_replicas(cluster.storages[1:])
    client.append(b"b")
    client.wait(lambda: len(client.feed()) == 2)

    def moved() -> bool:
        states = session_of(cluster).replica_states
        return sorted(s.replica_id.storage for s in states) == [str(s.data_endpoint) for s in cluster.storages[1:]]

    assert cluster.world.run_while(lambda: not moved(), 60_000)


def test_a_partition_that_moved_away_and_back_forgets_what_was_in_flight() -> None:
    """The other server committed meanwhile: the lock table must know (server-D3)."""
    cluster = opened(servers=2, seed=3)
    world = cluster.world
    owner = next(n for n in (0, 1) if cluster.servers[n].machine.snapshot(world.now).partitions)
    other = 1 - owner
    client = Client(cluster, server=owner)
    client.mount()
    world.zookeeper.suspend(cluster.servers[owner], 12_000)

    def moved() -> bool:
        partitions = cluster.servers[other].machine.snapshot(world.now).partitions
        return bool(partitions) and partitions[0].healthy

    assert world.run_while(lambda: not moved(), 60_000)
    elsewhere = Client(cluster, server=other, client_id=8)
    elsewhere.generation = session_of(cluster).generation
    elsewhere.mount()
    elsewhere.append(b"there", write=(5,))
    elsewhere.wait(elsewhere.feed)
    cluster.servers[other].crash()

    def back() -> bool:
        partitions = cluster.servers[owner].machine.snapshot(world.now).partitions
        return bool(partitions) and partitions[0].healthy and partitions[0].generation > elsewhere.generation

    assert world.run_while(lambda: not back(), 60_000)
    again = Client(cluster, server=owner, client_id=9)
    again.generation = session_of(cluster).generation
    again.mount()
    again.append(b"stale", write=(5,), mark=-1)
    again.wait(lambda: any(isinstance(m, messages.LockFailure) for m in again.received))


def test_metadata_restored_from_an_older_state_stops_the_partition() -> None:
    """Ruling R6: replicas have answered a session that ZooKeeper does not know of any more."""
    cluster = opened(server_options={"checkpoint_interval": 5})
    client = Client(cluster)
    client.mount()
    old = session_of(cluster)
    for n in range(40):
        client.append(b"x")
        client.wait(lambda n=n: len(client.feed()) == n + 1)
    assert session_of(cluster).session_id > old.session_id + 3
    cluster.world.zookeeper.write([ZkSet(0, PATHS.partition(0), znodes.encode_partition_metadata(old), -1)])
    cluster.servers[0].crash()
    cluster.servers[0].start()
    cluster.world.run(cluster.world.now + 30_000)
    (partition,) = cluster.servers[0].machine.snapshot(cluster.world.now).partitions
    assert not partition.healthy
    assert partition.reason
    assert session_of(cluster).session_id <= old.session_id + 3, "the session id must not climb past the fence"


def test_a_server_without_storage_connections_says_so() -> None:
    cluster = opened()
    client = Client(cluster)
    cluster.storages[1].crash()
    answer = client.ask(messages.CheckStorageConnectivityRequest(client.req_id()))
    cluster.world.run(cluster.world.now + 1_000)
    answer = client.ask(messages.CheckStorageConnectivityRequest(client.req_id()))
    assert answer.connectivity == (("storage0:7000", True), ("storage1:7000", False), ("storage2:7000", True))


def test_a_server_that_needs_no_storage_node_connects_to_tell_which_it_reaches() -> None:
    cluster = opened(servers=2)
    idle = next(at for at in (0, 1) if not cluster.servers[at].machine.snapshot(cluster.world.now).partitions)
    client = Client(cluster, server=idle)
    cluster.storages[1].crash()
    answer = client.ask(messages.CheckStorageConnectivityRequest(client.req_id()))
    assert answer.connectivity == (("storage0:7000", True), ("storage1:7000", False), ("storage2:7000", True))
    cluster.storages[0].crash()
    cluster.storages[0].start()
    cluster.storages[1].start()
    cluster.world.run(cluster.world.now + 5_000)
    answer = client.ask(messages.StorageNodesRequest(client.req_id()))
    assert [node.usable for node in answer.nodes] == [False, False, True], "nobody needs those that were lost"


def test_codec_5_gives_the_cluster_and_fresh_client_ids() -> None:
    cluster = opened()
    first, second = Client(cluster), Client(cluster)
    one = first.ask(messages.ClusterInfoRequest(first.req_id(), True, True))
    two = second.ask(messages.ClusterInfoRequest(second.req_id(), True, False))
    plain = second.ask(messages.ClusterInfoRequest(second.req_id(), False, False))
    assert (one.name, one.key, one.num_partitions) == ("simulated", UUID(bytes=KEY), 1)
    assert {one.client_id, two.client_id} == {1, 2}
    assert plain.client_id == -1
    assert one.servers == (messages.ServerEntry(Endpoint("server0", 6000), ((0, 1),)),)


def test_subscribers_are_told_of_changes() -> None:
    cluster = SimCluster(4, servers=2, partitions=2)
    cluster.start()
    cluster.servers[1].crash()
    cluster.until_open()
    client = Client(cluster)
    client.ask(messages.ClusterInfoRequest(client.req_id(), False, True))
    cluster.servers[1].start()

    def both() -> bool:
        last = client.received[-1]
        return isinstance(last, messages.ClusterInfoResponse) and [len(s.partitions) for s in last.servers] == [1, 1]

    client.wait(both, 60_000)


def test_codec_5_answers_what_it_does_not_do() -> None:
    cluster = opened()
    client = Client(cluster)
    answer = client.ask(messages.SetLogStartRequest(client.req_id(), 5))
    assert answer.code == messages.ErrorCode.INVALID
    assert client.ask(messages.LogStartRequest(client.req_id())).high_water_mark == -1
    assert client.ask(messages.LogStartRequest(client.req_id(99))).code == messages.ErrorCode.NOT_SERVED
    (status,) = client.ask(messages.PartitionStatusRequest(client.req_id())).partitions
    assert (status.state, status.generation) == (messages.ServedState.READY, 1)


def test_statistics_tell_the_servers_clock_and_count_by_partition() -> None:
    cluster = opened(partitions=2)
    client = Client(cluster)
    client.mount()
    client.append(b"one")
    client.wait(lambda: client.feed())
    cluster.servers[0].post(WallClock(1_000_000))
    answer = client.ask(messages.StatisticsRequest(client.req_id(), 0, ("successful", "response")))
    assert answer.time_ms == pytest.approx(1_000_000 + cluster.world.now, abs=1_000)
    figures = {(figure.name, figure.partition_id): figure.value for figure in answer.statistics}
    assert figures[("successful-append", 0)] == 1
    bounds = {(f"response-within-ms.{bound}", 0) for bound in RESPONSE_BOUNDS}
    assert figures.keys() == {("successful-append", 0), ("response-latency-mean-ms", 0), ("response-count", 0)} | bounds
    assert figures[("response-within-ms.10000", 0)] == figures[("response-count", 0)] == 1
    everything = client.ask(messages.StatisticsRequest(client.req_id(), -1, ()))
    assert {figure.partition_id for figure in everything.statistics} == {-1, 0, 1}


def test_statistics_tell_what_a_partition_waits_for() -> None:
    cluster = opened()
    client = Client(cluster)
    client.mount()
    frozen = cluster.storages[:2]
    for storage in frozen:
        storage.node.freeze()
    for data in (b"one", b"two"):
        client.append(data)
    cluster.world.run(cluster.world.now + 100)
    figures = client.ask(messages.StatisticsRequest(client.req_id(), 0, (AWAITED,))).statistics
    owed = {f"awaited.storage node {storage.node.name}:7000: an append is durable" for storage in frozen}
    assert {figure.name for figure in figures} == owed


def test_ranges_of_records_are_read_without_a_mount_and_cut_by_count_and_size() -> None:
    cluster = opened()
    client = Client(cluster)
    client.mount()
    for number in range(12):
        client.append(b"%d" % number * 100)
    client.wait(lambda: len(client.feed()) == 12)

    def ask(first: int, last: int, count: int = 0, size: int = 0, headers: bool = False) -> Any:
        return client.ask(messages.RecordRangeRequest(client.req_id(), first, last, count, size, headers))

    def ids(answer: Any) -> list[int]:
        found = answer.records if isinstance(answer, messages.RecordRangeResponse) else answer.record_headers
        return [one.transaction_id for one in found]

    answer = ask(2, 5)
    assert (answer.log_start, answer.high_water_mark, ids(answer)) == (0, 11, [2, 3, 4, 5])
    assert answer.records[0].data == b"2" * 100
    assert ids(ask(8, 1_000_000)) == [8, 9, 10, 11]
    assert ids(ask(0, 11, count=3)) == [0, 1, 2]
    assert ids(ask(0, 11, size=300)) == [0, 1]
    assert ids(ask(0, 11, size=1)) == [0]
    assert ids(ask(3, 11, headers=True)) == list(range(3, 12))
    assert ids(ask(12, 20)) == ids(ask(5, 4)) == []
    assert ask(-1, 4).code == messages.ErrorCode.INVALID
    far = client.ask(messages.RecordRangeRequest(client.req_id(99), 0, 1, 0, 0, False))
    assert far.code == messages.ErrorCode.NOT_SERVED


def test_a_range_is_read_from_another_replica_or_in_the_next_session() -> None:
    cluster = opened()
    client = Client(cluster)
    client.mount()
    client.append(b"kept")
    client.wait(lambda: client.feed())
    before = len(client.received)
    client.send(messages.RecordRangeRequest(client.req_id(), 0, 0, 0, 0, False))
    for storage in cluster.storages:
        storage.crash()
    cluster.world.run(cluster.world.now + 2_000)
    for storage in cluster.storages:
        storage.start()
    client.wait(lambda: len(client.received) > before)
    assert [one.data for one in client.received[-1].records] == [b"kept"]


def test_a_partition_that_was_never_open_has_no_marks() -> None:
    cluster = SimCluster(1)
    cluster.start()
    for storage in cluster.storages:
        storage.crash()
    world = cluster.world
    assert world.run_while(lambda: not cluster.servers[0].machine.snapshot(world.now).partitions, 10_000)
    client = Client(cluster)
    assert client.ask(messages.HighWaterMarkRequest(client.req_id())).high_water_mark == -(2**63)
    assert client.ask(messages.LogStartRequest(client.req_id())).code == messages.ErrorCode.NOT_READY
    (status,) = client.ask(messages.PartitionStatusRequest(client.req_id())).partitions
    assert status.state in (messages.ServedState.OPENING, messages.ServedState.RECOVERING)


def test_health_tells_the_truth() -> None:
    cluster = opened()
    client = Client(cluster)
    assert client.ask(messages.ServerPartitionsHealthStatRequest(client.req_id())).health == ((0, True),)
    cluster.storages[0].crash()
    cluster.storages[1].crash()
    cluster.world.run(cluster.world.now + 1_000)
    assert client.ask(messages.ServerPartitionsHealthStatRequest(client.req_id())).health == ((0, False),)


def test_preferred_partitions_move_to_the_server_that_asks() -> None:
    cluster = opened(servers=2, partitions=4)
    client = Client(cluster)
    mine = client.ask(messages.ServerPartitionsAssignmentRequest(client.req_id())).partitions
    wanted = tuple(p for p in range(4) if p not in mine)
    assert client.ask(messages.AddPreferredPartitionRequest(client.req_id(), wanted)).result

    def moved() -> bool:
        return set(wanted) <= set(client.ask(messages.ServerPartitionsAssignmentRequest(client.req_id())).partitions)

    client.wait(moved)
    assert client.ask(messages.RemovePreferredPartitionRequest(client.req_id(), wanted)).result


def test_a_preference_is_answered_when_zookeeper_has_it() -> None:
    """As 0.13.2 answers: descriptor and assignment are written by then, and what survives a restart too."""
    cluster = opened(servers=2, partitions=4)
    client = Client(cluster)
    mine = client.ask(messages.ServerPartitionsAssignmentRequest(client.req_id())).partitions
    wanted = tuple(partition for partition in range(4) if partition not in mine)

    def written() -> tuple[bool, bool, bool]:
        zk, endpoint = cluster.world.zookeeper, Endpoint("server0", 6000)
        nodes = {node.path: node.data or b"" for node in zk.tree.describe()}
        listed = [data for path, data in nodes.items() if path.startswith(f"{PATHS.servers}/")]
        (ours,) = (found for found in map(znodes.decode_server_descriptor, listed) if found.endpoint == endpoint)
        assigned = dict(znodes.decode_partition_assignment(nodes[PATHS.servers]).of_server(ours.server_id))
        kept = nodes.get(f"{ROOT}/preferred/{endpoint}")
        return set(wanted) <= set(ours.preferred_partitions), set(wanted) <= set(assigned), bool(kept)

    assert written() == (False, False, False)
    assert client.ask(messages.AddPreferredPartitionRequest(client.req_id(), wanted)).result
    assert written() == (True, True, True)
    assert client.ask(messages.RemovePreferredPartitionRequest(client.req_id(), wanted)).result
    assert written()[0] is False


def test_only_who_waits_for_too_many_changes_of_preferences_is_closed() -> None:
    cluster = opened()
    hasty, other = Client(cluster), Client(cluster)

    def changes(client: Client, count: int) -> list[messages.ClientMessage]:
        return [messages.AddPreferredPartitionRequest(client.req_id(), (0,)) for _ in range(count)]

    hasty.send(*changes(hasty, 100))
    assert other.ask(*changes(other, 1)).result
    hasty.wait(lambda: len(hasty.received) == 100)
    hasty.send(*changes(hasty, 101))
    assert cluster.world.run_while(lambda: not hasty.peer.closed, 10_000)
    assert other.ask(*changes(other, 1)).result


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "0.13.2"])
def test_preferred_partitions_survive_a_restart_of_the_server(ours: bool) -> None:
    """0.13.2 forgets them (tools-T13)."""
    cluster = opened(servers=2, partitions=4, servers_0132=() if ours else (0, 1))
    client = Client(cluster)
    assert client.ask(messages.AddPreferredPartitionRequest(client.req_id(), (0, 1, 2, 3))).result
    cluster.world.run(cluster.world.now + 2_000)
    cluster.servers[0].crash()
    cluster.world.run(cluster.world.now + 30_000)
    cluster.servers[0].start()
    cluster.world.run(cluster.world.now + 30_000)
    client = Client(cluster)
    mine = client.ask(messages.ServerPartitionsAssignmentRequest(client.req_id())).partitions
    assert (mine == (0, 1, 2, 3)) is ours


def test_a_payload_beyond_the_limit_closes_the_connection_and_names_the_key() -> None:
    cluster = opened(server_options={"payload_size_max": 100})
    client = Client(cluster)
    client.mount()
    client.append(bytes(101))
    assert cluster.world.run_while(lambda: not client.peer.closed, 10_000)
    assert any("server.payloadSizeMax" in report.text for _, report in cluster.servers[0].reports)


def test_clients_are_held_back_while_a_partition_queues_too_much() -> None:
    """Nothing is dropped: reading stops until there is room again."""
    cluster = opened(server_options={"payload_size_max": 1000})
    client = Client(cluster)
    client.mount()
    held: list[bool] = []
    cluster.storages[0].crash()
    cluster.storages[1].crash()
    cluster.world.run(cluster.world.now + 1_000)
    perform = cluster.servers[0]._perform

    def watch(effect: Any) -> None:
        if isinstance(effect, Reading):
            held.append(effect.wanted)
        perform(effect)

    cluster.servers[0]._perform = watch  # type: ignore[method-assign]  # listens only
    for _ in range(20):
        client.append(bytes(500))
        cluster.world.run(cluster.world.now + 20)
    assert held == [False]
    cluster.storages[0].start()
    client.wait(lambda: len(client.feed()) == 20, 60_000)
    assert held[-1] is True


def test_a_slow_reader_is_paused_and_gets_everything_later() -> None:
    from waltz_core.base.edge import Writable

    cluster = opened()
    client = Client(cluster)
    client.mount()
    server = cluster.servers[0]
    conn = max(server.conns)
    server.post(Writable(conn, False))
    cluster.world.run(cluster.world.now + 5)
    for _ in range(10):
        client.append(b"x")
    cluster.world.run(cluster.world.now + 500)
    assert client.feed() == []
    server.post(Writable(conn, True))
    client.wait(lambda: len(client.feed()) == 10)


def test_feeds_lagging_far_behind_are_read_back_from_the_replicas() -> None:
    cluster = opened(server_options={"feed_cache_bytes": 0, "data_cache_bytes": 0})
    writer = Client(cluster)
    writer.mount()
    for n in range(12):
        for _ in range(500):
            writer.append(b"x")
        writer.wait(lambda n=n: len(writer.feed()) == 500 * (n + 1))
    reader = Client(cluster, client_id=8)
    reader.mount()
    reader.wait(lambda: len(reader.feed()) == 6000)
    assert [m.transaction_id for m in reader.feed()] == list(range(6000))
    reader.send(*(messages.TransactionDataRequest(reader.req_id(), tid) for tid in range(600)))

    def answers() -> list[messages.TransactionDataResponse]:
        return [m for m in reader.received if isinstance(m, messages.TransactionDataResponse)]

    reader.wait(lambda: len(answers()) == 600)
    assert all(m.success for m in answers())


def test_an_orderly_end_lets_go_of_the_partitions_at_once() -> None:
    from waltz_core.base.edge import Shutdown

    cluster = opened(servers=2, seed=5)
    world = cluster.world
    owner = next(n for n in (0, 1) if cluster.servers[n].machine.snapshot(world.now).partitions)
    cluster.servers[owner].post(Shutdown())
    started = world.now
    cluster.servers[owner].on_effect = None
    assert world.run_while(lambda: cluster.servers[owner].ended is None, 10_000)
    ended = cluster.servers[owner].ended
    assert ended is not None
    assert ended.reason == ""

    def moved() -> bool:
        partitions = cluster.servers[1 - owner].machine.snapshot(world.now).partitions
        return bool(partitions) and partitions[0].healthy

    assert world.run_while(lambda: not moved(), 10_000)
    assert world.now - started < 2_000


def test_a_cluster_that_is_not_there_ends_the_process_with_a_reason() -> None:
    cluster = SimCluster(1)
    cluster.servers[0].start()
    assert cluster.world.run_while(lambda: cluster.servers[0].ended is None, 10_000)
    assert cluster.servers[0].ended is not None
    assert ROOT in cluster.servers[0].ended.reason


def windowed(cluster: SimCluster) -> Client:
    """A client that says that it knows of feed windows."""
    client = Client(cluster, client_id=8)
    info = client.ask(
        messages.ClusterInfoRequest(client.req_id(), False, False, messages.ClientCapability.FEED_WINDOWS)
    )
    assert info.capabilities & messages.Capability.FEED_WINDOWS
    client.received.clear()
    return client


def logged(cluster: SimCluster, count: int) -> None:
    writer = Client(cluster)
    writer.mount()
    for number in range(count):
        writer.append(b"%d" % number)
    writer.wait(lambda: len(writer.feed()) == count)


def test_a_feed_window_sends_what_the_client_has_room_for_and_no_more() -> None:
    cluster = opened(server_options={"mount_count_max": 4})
    logged(cluster, 30)
    client = windowed(cluster)
    req_id = client.req_id()
    ready, end = messages.MountResponse(req_id, messages.PartitionState.READY), messages.FeedSuspended(req_id)
    client.send(messages.MountRequest(req_id, -1, 0))
    client.wait(lambda: ready in client.received)
    assert [message.transaction_id for message in client.feed()] == [0, 1, 2, 3]
    assert client.received[-2:] == [end, ready]
    client.received.clear()

    client.send(messages.FeedWindowRequest(req_id, 3, 7))
    client.wait(lambda: end in client.received)
    assert [message.transaction_id for message in client.feed()] == list(range(4, 11))
    cluster.world.run(cluster.world.now + 1_000)
    client.wait(lambda: True)
    assert len(client.feed()) == 7
    assert client.received[-1] == end
    client.received.clear()

    client.send(messages.FeedWindowRequest(req_id, 10, 100))
    client.wait(lambda: len(client.feed()) == 19)
    assert end not in client.received, "it stays open at the mark"
    client.send(messages.FeedWindowRequest(req_id, 29, 5))
    client.wait(lambda: end in client.received, 1_000)


def test_a_mount_is_cut_short_only_for_clients_that_go_on_by_themselves() -> None:
    cluster = opened(server_options={"mount_count_max": 4})
    logged(cluster, 10)
    plain = Client(cluster, client_id=9)
    plain.mount()
    assert len(plain.feed()) == 10
    client = windowed(cluster)
    client.send(messages.MountRequest(req_id := client.req_id(), 5, 0))
    client.wait(lambda: messages.MountResponse(req_id, messages.PartitionState.READY) in client.received)
    assert len(client.feed()) == 4
    assert messages.FeedSuspended(req_id) not in client.received, "it reached the mark"


def test_a_client_far_behind_in_every_partition_is_brought_level_in_bounded_pieces() -> None:
    """Its mounts are passed in one step; none of the feeds that they begin may cost the connection."""
    partitions, each, limit = 6, 150, 5_000
    cluster = opened(partitions=partitions, server_options={"out_bytes_max": limit})
    writer = Client(cluster)
    for partition in range(partitions):
        writer.mount(partition=partition)
    for partition in range(partitions):
        for _ in range(each):
            writer.append(b"x", partition=partition)
    writer.wait(lambda: len(writer.feed()) == partitions * each)

    sizes: list[int] = []
    client = windowed(cluster)
    cluster.world.on_send = lambda node, conn, data: sizes.append(len(data)) if conn > 0 else None
    asked = {client.req_id(partition): partition for partition in range(partitions)}
    client.send(*(messages.MountRequest(req_id, -1, partition) for req_id, partition in asked.items()))
    client.wait(lambda: len(client.received) == partitions * (each + 1), 5_000)
    ready = [m for m in client.received if m == messages.MountResponse(m.req_id, messages.PartitionState.READY)]
    assert {message.req_id for message in ready} == set(asked)
    assert len([size for size in sizes if size > limit]) > 1, "the limit is not reached"
    assert max(sizes) < limit + FRAME_SIZE * each + 1_000, "more than one slice of one partition above it"


def test_a_feed_window_of_nothing_costs_the_connection() -> None:
    cluster = opened()
    client = windowed(cluster)
    req_id = client.mount()
    client.send(messages.FeedWindowRequest(req_id, -1, 0))
    client.wait(lambda: client.peer.closed)

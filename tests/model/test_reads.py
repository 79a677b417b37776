"""Reads of the committed mark: never of the past, whoever serves, and never without a quorum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.model.cluster import SimCluster
from tests.model.test_server import Client, opened
from waltz_core.server.marks import PATIENCE_MS
from waltz_core.storage.effects import DiskRead, FaultKind
from waltz_core.wire import client_messages as messages
from waltz_testing.simulation.world import SimNode

nodes = pytest.mark.parametrize("old_nodes", [False, True], ids=["our nodes", "nodes of 0.13.2"])


def two_servers(old_nodes: bool, *, ours: bool = True) -> tuple[SimCluster, SimNode, int]:
    """One partition, two servers; returns the one that serves it, and the number of the other."""
    cluster = opened(servers=2, storages_0132=old_nodes, servers_0132=() if ours else (0, 1))
    number = next(n for n, server in enumerate(cluster.servers) if server.machine.partitions)
    return cluster, cluster.servers[number], 1 - number


def marks(client: Client) -> list[int]:
    """What it was answered."""
    return [one.high_water_mark for one in client.received if isinstance(one, messages.HighWaterMarkResponse)]


def refusals(client: Client) -> list[int]:
    """The codes of the errors that it was answered."""
    return [one.code for one in client.received if isinstance(one, messages.ErrorResponse)]


def commit(client: Client, count: int = 1) -> None:
    """Append, one after the other, and see each in the feed."""
    for _ in range(count):
        seen = len(client.feed())
        client.append(b"a transaction", mark=-1)
        client.wait(lambda seen=seen: len(client.feed()) > seen)


def listen(client: Client, milliseconds: int) -> None:
    """Let time pass, and take what comes."""
    client.world.run(client.world.now + milliseconds)
    client.wait(lambda: True)


def bad_sector(path: str, at: int) -> Callable[[Any], FaultKind | None]:
    """A place of a file that cannot be read."""

    def fault(effect: Any) -> FaultKind | None:
        if not isinstance(effect, DiskRead) or effect.path != path:
            return None
        return FaultKind.IO if effect.offset <= at < effect.offset + effect.length else None

    return fault


def header_requests(cluster: SimCluster) -> list[int]:
    """How many questions each storage node was asked that are no append."""
    return [storage.node.machine.replicas[0].counters["record-header-request"] for storage in cluster.storages]


@nodes
@pytest.mark.parametrize(("on", "version"), [(False, 4), (True, 4), (True, 5)], ids=["0.13.2", "ours-4", "ours-5"])
def test_a_server_deposed_while_it_was_paused_answers_no_mark(old_nodes: bool, version: int, on: bool) -> None:
    """0.13.2 answers what it last knew: an acknowledged append is not in it."""
    cluster, server, successor = two_servers(old_nodes, ours=on)
    reader = Client(cluster, version=version, server=1 - successor)
    server.freeze()
    heir = cluster.servers[successor]
    assert cluster.world.run_while(lambda: not heir.machine.partitions, 60_000)
    assert cluster.world.run_while(lambda: bool(heir.machine.partitions[0].trouble(heir.clock)), 60_000)
    writer = Client(cluster, server=successor, client_id=8)
    writer.generation = heir.machine.partitions[0].generation
    writer.mount()
    commit(writer)
    server.thaw()
    reader.send(messages.HighWaterMarkRequest(reader.req_id()))
    listen(reader, 20_000)
    assert marks(reader) == ([] if on else [-1])
    assert refusals(reader) == ([messages.ErrorCode.NOT_READY] if on and version == 5 else [])


@nodes
@pytest.mark.parametrize(("on", "version"), [(False, 4), (True, 4), (True, 5)], ids=["0.13.2", "ours-4", "ours-5"])
def test_a_server_that_does_not_know_of_its_successor_calls_nobody_ahead_of_the_log(
    old_nodes: bool, version: int, on: bool
) -> None:
    """A client that has heard of its successor's transactions and still asks here: 0.13.2 ends it by that answer."""
    cluster, server, successor = two_servers(old_nodes, ours=on)
    reader = Client(cluster, version=version, server=1 - successor)
    cluster.world.zookeeper.expire(server, 60_000)
    heir = cluster.servers[successor]
    assert cluster.world.run_while(lambda: not heir.machine.partitions, 30_000)
    assert cluster.world.run_while(lambda: bool(heir.machine.partitions[0].trouble(heir.clock)), 10_000)
    assert server.machine.partitions, "it has not noticed"
    reader.send(messages.MountRequest(reader.req_id(), 0, 0))
    listen(reader, 2 * PATIENCE_MS)
    answered = [message for message in reader.received if isinstance(message, messages.MountResponse)]
    expected = messages.PartitionState.NOT_READY if on else messages.PartitionState.CLIENT_AHEAD
    assert [message.partition_state for message in answered] == [expected]


@nodes
def test_without_a_quorum_nobody_gets_a_mark(old_nodes: bool) -> None:
    """Codec 5 is answered NOT_READY after a while; older codecs wait until it can be confirmed."""
    cluster = opened(storages_0132=old_nodes)
    writer = Client(cluster)
    writer.mount()
    commit(writer, 3)
    ours, older = Client(cluster, client_id=8), Client(cluster, client_id=9, version=4)
    for storage in cluster.storages[:2]:
        storage.node.freeze()
    ours.send(messages.HighWaterMarkRequest(ours.req_id()))
    older.send(messages.HighWaterMarkRequest(older.req_id()))
    listen(ours, PATIENCE_MS - 100)
    assert ours.received == []
    listen(ours, 200)
    listen(older, 0)
    assert (marks(ours), refusals(ours), older.received) == ([], [messages.ErrorCode.NOT_READY], [])
    for storage in cluster.storages[:2]:
        storage.node.thaw()
    older.wait(lambda: older.received)
    assert marks(older) == [2]


@nodes
def test_a_record_that_no_disk_can_read_costs_nobody_those_around_it(old_nodes: bool) -> None:
    """All that was asked for with it was refused, again and again."""
    cluster = opened(storages_0132=old_nodes)
    cluster.world.tolerates = lambda text: True  # storage nodes say that the record is damaged
    writer = Client(cluster)
    writer.mount()
    for number in range(10):
        writer.append(b"%d" % number * 9)
        writer.wait(lambda n=number: len(writer.feed()) > n)
    cluster.servers[0].crash()  # with its cache
    cluster.servers[0].start()
    cluster.until_open()
    for storage in cluster.storages:
        disk = storage.disk.disk
        path = next(name for name in disk.files() if name.endswith(".seg"))
        disk.fault = bad_sector(path, disk.content(path).index(b"4" * 9))
    reader = Client(cluster, client_id=8)
    for _ in range(2):
        reader.received.clear()
        reader.send(*(messages.TransactionDataRequest(reader.req_id(), at) for at in range(10)))
        reader.wait(lambda: len(reader.received) == 10)
        assert [one.transaction_id for one in reader.received if not one.success] == [4]
    answer = reader.ask(messages.RecordRangeRequest(reader.req_id(), 4, 9, 0, 0, False))
    assert answer.code == messages.ErrorCode.CORRUPT


@nodes
def test_a_question_outlives_the_session_that_was_to_confirm_it(old_nodes: bool) -> None:
    cluster = opened(storages_0132=old_nodes)
    writer, reader = Client(cluster), Client(cluster, client_id=8, version=4)
    writer.mount()
    commit(writer, 3)
    for storage in cluster.storages[:2]:
        storage.node.freeze()
    reader.send(messages.HighWaterMarkRequest(reader.req_id()))
    listen(reader, 100)
    for storage in cluster.storages[:2]:
        storage.crash(power=False)
    listen(reader, 10_000)
    assert reader.received == []
    for storage in cluster.storages[:2]:
        storage.start()
    reader.wait(lambda: reader.received)
    assert marks(reader) == [2]


@nodes
def test_one_slow_storage_node_delays_no_mark(old_nodes: bool) -> None:
    cluster = opened(storages_0132=old_nodes)
    reader = Client(cluster)
    cluster.storages[2].node.freeze()
    for _ in range(5):
        before = cluster.world.now
        reader.ask(messages.HighWaterMarkRequest(reader.req_id()))
        assert cluster.world.now - before < 100
    assert marks(reader) == [-1] * 5


def test_questions_of_one_moment_share_one_request_to_each_storage_node_and_no_sync() -> None:
    cluster = opened()
    reader = Client(cluster)
    cluster.world.network.piece = 1 << 20
    calls: list[object] = []
    for storage in cluster.storages:
        storage.disk.on_call = lambda *call: calls.append(call)
    asked = header_requests(cluster)
    reader.send(*[messages.HighWaterMarkRequest(reader.req_id()) for _ in range(100)])
    reader.wait(lambda: len(reader.received) == 100)
    listen(reader, 100)
    assert marks(reader) == [-1] * 100
    assert [now - before for now, before in zip(header_requests(cluster), asked, strict=True)] == [1, 1, 1]
    assert calls == []


def test_the_vote_of_an_append_that_leaves_with_the_question_confirms_it() -> None:
    cluster = opened()
    client = Client(cluster)
    client.mount()
    cluster.world.network.piece = 1 << 20
    asked = header_requests(cluster)
    data = bytearray()
    append = messages.AppendRequest(client.req_id(), -1, (), (), (), 0, b"", 0)
    for message in (append, messages.HighWaterMarkRequest(client.req_id())):
        client.connection.encode(message, data)
    client.peer.send(bytes(data))
    client.wait(lambda: marks(client))
    assert marks(client) == [0]
    assert header_requests(cluster) == asked


@nodes
def test_an_append_that_left_before_the_question_confirms_nothing(old_nodes: bool) -> None:
    """Its votes, late, come to a server that has been succeeded since they were given."""
    cluster, server, successor = two_servers(old_nodes)
    client = Client(cluster, server=1 - successor)
    client.mount()
    from_nodes = {(storage.node.name, server.name) for storage in cluster.storages}
    to_nodes = {(server.name, storage.node.name) for storage in cluster.storages}
    cluster.world.network.cut |= from_nodes
    client.append(b"x")
    listen(client, 100)
    cluster.world.zookeeper.expire(server, 60_000)  # it notices late
    heir = cluster.servers[successor]
    assert cluster.world.run_while(lambda: not heir.machine.partitions, 60_000)
    assert cluster.world.run_while(lambda: bool(heir.machine.partitions[0].trouble(heir.clock)), 60_000)
    writer = Client(cluster, server=successor, client_id=8)
    writer.generation = heir.machine.partitions[0].generation
    writer.mount()
    commit(writer)
    cluster.world.network.cut |= to_nodes
    client.send(messages.HighWaterMarkRequest(client.req_id()))
    listen(client, 10)
    cluster.world.network.heal(from_nodes)
    client.wait(lambda: refusals(client))
    assert client.feed() != []  # the votes did come
    assert marks(client) == []


def test_a_partition_that_moves_answers_those_who_still_wait() -> None:
    cluster, server, _ = two_servers(False)
    ours = Client(cluster, server=cluster.servers.index(server))
    older = Client(cluster, server=cluster.servers.index(server), version=4, client_id=8)
    for storage in cluster.storages:
        storage.node.freeze()
    ours.send(messages.HighWaterMarkRequest(ours.req_id()))
    older.send(messages.HighWaterMarkRequest(older.req_id()))
    listen(ours, 100)
    cluster.world.zookeeper.expire(server, 0)
    ours.wait(lambda: ours.received, PATIENCE_MS - 1_000)
    listen(older, 0)
    assert (refusals(ours), older.received) == ([messages.ErrorCode.NOT_READY], [])

"""What one client asks of a server costs the others at most their fair part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.model.test_server import Client, opened
from waltz_core.base.edge import Writable
from waltz_core.wire import client_messages as messages

FLOOD = 4_000


def filled(cluster: Any, count: int = 300) -> Client:
    """A client that wrote something."""
    client = Client(cluster)
    client.mount()
    for _ in range(count):
        client.append(b"x" * 100)
    client.wait(lambda: len(client.feed()) == count)
    return client


def ranges(client: Client, count: int) -> list[messages.ClientMessage]:
    return [messages.RecordRangeRequest(client.req_id(), 0, 299, 0, 0, True) for _ in range(count)]


def data(client: Client, count: int) -> list[messages.ClientMessage]:
    return [messages.TransactionDataRequest(client.req_id(), number % 300) for number in range(count)]


def flushes(client: Client, count: int) -> list[messages.ClientMessage]:
    return [messages.FlushRequest(client.req_id()) for _ in range(count)]


def marks(client: Client, count: int) -> list[messages.ClientMessage]:
    return [messages.HighWaterMarkRequest(client.req_id()) for _ in range(count)]


FLOODS = [ranges, data, flushes, marks]


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_of_requests_does_not_stop_the_appends_of_others(flood: Callable[..., Any]) -> None:
    cluster = opened(server_options={"reads_count_max": 100, "data_cache_bytes": 0})
    writer = filled(cluster)
    flooder = Client(cluster, client_id=8)
    flooder.send(*flood(flooder, FLOOD))
    cluster.world.run(cluster.world.now + 50)
    before = len(writer.feed())
    for _ in range(20):
        writer.append(b"y")
        before += 1
        writer.wait(lambda: len(writer.feed()) == before, 1_000)  # noqa: B023  # called at once


def test_a_flood_of_requests_does_not_stop_the_reads_of_others() -> None:
    cluster = opened(server_options={"reads_count_max": 100, "data_cache_bytes": 0})
    reader = filled(cluster)
    flooder = Client(cluster, client_id=8)
    flooder.send(*ranges(flooder, FLOOD))
    cluster.world.run(cluster.world.now + 50)
    for request in ranges(reader, 5):
        reader.send(request)
        reader.wait(lambda: any(one.req_id == request.req_id for one in reader.received), 1_000)  # noqa: B023


@pytest.mark.parametrize("flood", [ranges, data])
def test_the_requests_of_a_client_that_left_are_dropped(flood: Callable[..., Any]) -> None:
    cluster = opened(server_options={"data_cache_bytes": 0})
    writer = filled(cluster)
    server = cluster.servers[0].machine
    for storage in cluster.storages[:2]:
        storage.crash()
    cluster.world.run(cluster.world.now + 2_000)
    for number in range(20):
        flooder = Client(cluster, client_id=8 + number)
        flooder.send(messages.MountRequest(flooder.req_id(), -1, number), *flood(flooder, 500))
        cluster.world.run(cluster.world.now + 100)
        flooder.peer.close()
    cluster.world.run(cluster.world.now + 1_000)
    assert server.waiting == server.reads == 0
    (partition,) = server.snapshot(cluster.servers[0].clock).partitions
    assert partition.pending <= 1  # the mounts left one barrier
    cluster.storages[0].start()
    writer.append(b"y")
    writer.wait(lambda: len(writer.feed()) == 301, 60_000)


def test_the_end_of_a_connection_that_is_held_back_is_seen() -> None:
    cluster = opened(server_options={"reads_count_max": 100})
    writer = filled(cluster)
    server = cluster.servers[0]
    flooder = Client(cluster, client_id=8)
    conn = max(server.conns)
    for storage in cluster.storages[:2]:
        storage.crash()
    cluster.world.run(cluster.world.now + 2_000)
    flooder.send(*ranges(flooder, FLOOD))
    flooder.send(*ranges(flooder, FLOOD))
    cluster.world.run(cluster.world.now + 500)
    assert server.machine.waiting > 100
    flooder.peer.close()
    cluster.world.run(cluster.world.now + 500)
    assert conn not in server.conns
    assert server.machine.waiting == 0
    assert writer.ask(messages.ServerPartitionsAssignmentRequest(writer.req_id())).partitions == (0,)


def test_nothing_is_read_for_a_connection_that_takes_nothing() -> None:
    cluster = opened()
    filled(cluster)
    server = cluster.servers[0]
    flooder = Client(cluster, client_id=8)
    conn = max(server.conns)
    flooder.send(*ranges(flooder, 50))
    cluster.world.run(cluster.world.now + 1)
    server.post(Writable(conn, False))
    cluster.world.run(cluster.world.now + 1_000)
    before = len(flooder.received)
    flooder.wait(lambda: True)
    assert before <= len(flooder.received) < 50
    server.post(Writable(conn, True))
    flooder.wait(lambda: len(flooder.received) == 50, 5_000)


def test_only_who_sends_too_much_is_held_back() -> None:
    """The partition cannot commit: one client fills its queue, another one can still ask."""
    cluster = opened(server_options={"queue_count_max": 100})
    writer = filled(cluster)
    other = Client(cluster, client_id=8)
    other.mount(299)
    for storage in cluster.storages[:2]:
        storage.crash()
    cluster.world.run(cluster.world.now + 2_000)
    for _ in range(150):
        writer.append(b"y")
        cluster.world.run(cluster.world.now + 1)
    other.append(b"z")
    answer = other.ask(messages.ServerPartitionsAssignmentRequest(other.req_id()))
    assert answer.partitions == (0,)
    writer.send(messages.ServerPartitionsAssignmentRequest(writer.req_id()))
    cluster.world.run(cluster.world.now + 1_000)
    writer.wait(lambda: True)
    assert not any(isinstance(one, messages.ServerPartitionsAssignmentResponse) for one in writer.received)
    cluster.storages[0].start()
    writer.wait(lambda: len(writer.feed()) == 451, 60_000)


def test_a_partition_that_commits_nothing_while_appends_wait_says_so() -> None:
    cluster = opened()
    world, server = cluster.world, cluster.servers[0]
    writer = filled(cluster, 1)
    world.run(world.now + 60_000)
    for storage in cluster.storages[:2]:
        storage.node.freeze()
    writer.append(b"x")
    world.run(world.now + 4_000)
    (partition,) = server.machine.snapshot(server.clock).partitions
    assert (partition.healthy, partition.reason) == (True, "")
    world.run(world.now + 2_000)
    (partition,) = server.machine.snapshot(server.clock).partitions
    assert not partition.healthy
    assert partition.reason.startswith("1 appends wait, and none was decided for ")
    health = writer.ask(messages.ServerPartitionsHealthStatRequest(writer.req_id())).health
    assert health == ((0, False),)
    for storage in cluster.storages[:2]:
        storage.node.thaw()
    writer.wait(lambda: len(writer.feed()) == 2, 60_000)
    world.run(world.now + 100)
    (partition,) = server.machine.snapshot(server.clock).partitions
    assert (partition.healthy, partition.reason) == (True, "")


def test_refusals_are_progress_of_a_partition_whose_appends_wait() -> None:
    cluster = opened()
    world, server = cluster.world, cluster.servers[0]
    writer = Client(cluster)
    writer.mount()
    writer.append(b"x", write=(7,))
    writer.wait(lambda: len(writer.feed()) == 1)
    for storage in cluster.storages[:2]:
        storage.node.freeze()
    writer.append(b"y")
    for _ in range(3):
        world.run(world.now + 2_000)
        writer.append(b"z", write=(7,))
        world.run(world.now + 100)
        (partition,) = server.machine.snapshot(server.clock).partitions
        assert (partition.healthy, partition.reason) == (True, "")


def test_a_client_that_takes_nothing_is_seen_to_lag() -> None:
    cluster = opened()
    writer = filled(cluster, 3)
    reader = Client(cluster, client_id=8)
    conn = max(cluster.servers[0].conns)
    reader.mount()
    server = cluster.servers[0]

    def lags() -> dict[int, int]:
        return dict(server.machine.snapshot(server.clock).client_lags)

    cluster.world.run(cluster.world.now + 100)
    assert lags() == {7: 0, 8: 0}
    server.post(Writable(conn, False))
    for number in range(5):
        writer.append(b"x")
        writer.wait(lambda: len(writer.feed()) == 4 + number)  # noqa: B023  # called at once
    assert lags() == {7: 0, 8: 5}
    server.post(Writable(conn, True))
    reader.wait(lambda: len(reader.feed()) == 8)
    assert lags() == {7: 0, 8: 0}
    reader.peer.close()
    cluster.world.run(cluster.world.now + 100)
    assert lags() == {7: 0}


def test_more_feeds_than_a_client_can_use_end_the_oldest() -> None:
    cluster = opened(versions=frozenset({4}))
    writer = Client(cluster, version=4)
    writer.mount()
    reader = Client(cluster, version=4, client_id=8)
    reader.mount()
    reader.send(*(messages.FeedRequest(reader.req_id(), -1) for _ in range(1_000)))
    cluster.world.run(cluster.world.now + 1_000)
    (partition,) = cluster.servers[0].machine.snapshot(cluster.world.now).partitions
    assert partition.live_feeds + partition.lagging_feeds <= 5
    writer.append(b"x")
    reader.wait(reader.feed)
    cluster.world.run(cluster.world.now + 1_000)
    reader.wait(lambda: True)
    assert len(reader.feed()) <= 4

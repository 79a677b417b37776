"""What one client asks of a server costs the others at most their fair part."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.model.proxied import ENDPOINT, OWN_ROOT, SimProxy
from tests.model.test_server import Client, opened
from waltz_core.base.edge import Writable
from waltz_core.base.ids import Endpoint, make_req_id
from waltz_core.server.feed import Feed, ReadHeaders, SendFrames
from waltz_core.server.feed_cache import FRAME_SIZE, FeedCache
from waltz_core.wire import client_messages as messages
from waltz_core.zookeeper.paths import cluster_paths
from waltz_core.zookeeper.znodes import decode_id_counter

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
    assert server.waiting == 0
    assert [partition.reads.waiting for partition in server.partitions.values()] == [0]
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


@pytest.mark.parametrize("flood", [flushes, marks])
def test_while_appends_wait_few_requests_of_a_flood_are_handled(flood: Callable[..., Any]) -> None:
    """Else each of the steps that an append needs takes as long as hundreds of requests, and the server never rests."""
    cluster = opened()
    world, server = cluster.world, cluster.servers[0]
    writer = filled(cluster, 1)
    flooder = Client(cluster, client_id=8)
    for storage in cluster.storages:
        storage.node.freeze()
    writer.append(b"x")
    world.run(world.now + 50)
    flooder.send(*flood(flooder, FLOOD))
    world.run(world.now + 5)
    unanswered, begun = [handled_of(server.machine)], world.now

    def look(node: Any) -> None:
        if node is server:
            unanswered.append(handled_of(server.machine))

    world.after_step = look
    world.run(world.now + 40)
    handled = [after - before for before, after in pairwise(unanswered)]
    assert sum(handled)
    assert max(handled) <= 40
    assert sum(handled) <= 10 * (world.now - begun) + 40
    for storage in cluster.storages:
        storage.node.thaw()
    world.after_step = None
    writer.wait(lambda: len(writer.feed()) == 2, 60_000)


def handled_of(server: Any) -> int:
    """Requests that were looked at and not answered: all that were, while nothing can be committed or confirmed."""
    return int(server.waiting - server._clients.in_turns)


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_gets_no_more_between_the_appends_of_a_client_that_waits_for_each(flood: Callable[..., Any]) -> None:
    """Its next append is on its way; a server that works for others meanwhile takes the processor from its client."""
    cluster = opened()
    world = cluster.world
    writer = filled(cluster, 1)
    flooder = Client(cluster, client_id=8)
    requests = flood(flooder, 3 * FLOOD)
    flooder.send(*requests)
    begun, count = world.now, 1
    while world.now < begun + 300:
        writer.append(b"y")
        count += 1
        writer.wait(lambda: len(writer.feed()) == count)  # noqa: B023  # called at once
        world.run(world.now + 10)
    flooder.wait(lambda: True)
    answered = len(flooder.received)
    assert 0 < answered < 3 * FLOOD
    # Ten a millisecond of those that cost least.
    assert answered <= 10 * (world.now - begun) + 40


def test_small_batches_in_a_row_are_bounded_too_while_appends_wait() -> None:
    cluster = opened()
    world, server = cluster.world, cluster.servers[0]
    writer = filled(cluster, 1)
    flooders = [Client(cluster, client_id=8 + number) for number in range(5)]
    for storage in cluster.storages:
        storage.node.freeze()
    writer.append(b"x")
    world.run(world.now + 50)
    before, begun = handled_of(server.machine), world.now
    while world.now < begun + 40:
        for flooder in flooders:
            flooder.send(*marks(flooder, 90))
        world.run(world.now + 1)
    assert 500 < handled_of(server.machine) - before <= 60 * (world.now - begun) + 240
    for storage in cluster.storages:
        storage.node.thaw()
    writer.wait(lambda: len(writer.feed()) == 2, 60_000)


def test_what_is_answered_for_every_partition_costs_by_their_number() -> None:
    cluster = opened(partitions=40)
    world, server = cluster.world, cluster.servers[0]
    flooder = Client(cluster, client_id=8)
    steps: list[int] = []

    def look(node: Any) -> None:
        if node is server:
            flooder.wait(lambda: True)
            steps.append(len(flooder.received))

    world.run(world.now + 100)
    flooder.send(*(messages.StatisticsRequest(flooder.req_id(), -1, ()) for _ in range(90)))
    world.after_step = look
    world.run(world.now + 100)
    world.after_step = None
    flooder.wait(lambda: len(flooder.received) == 90)
    # 205 each, of 1,000 in a step; the network may bring what two steps have sent together.
    assert max(after - before for before, after in pairwise(steps)) <= 12


def test_what_waits_alone_is_handled_without_a_pause() -> None:
    cluster = opened()
    flooder = filled(cluster, 1)
    cluster.world.run(cluster.world.now + 100)
    begun = cluster.world.now
    flooder.send(*flushes(flooder, FLOOD))
    flooder.wait(lambda: sum(isinstance(m, messages.FlushResponse) for m in flooder.received) == FLOOD)
    assert cluster.world.now - begun < FLOOD // 50


def test_a_crowd_of_requests_is_worth_a_line_that_names_the_peer() -> None:
    cluster = opened()
    cluster.world.network.piece = 1 << 16  # as a socket gives them
    flooder = Client(cluster, client_id=8, certificate="greedy")
    for _ in range(2):
        flooder.send(*flushes(flooder, FLOOD))
        cluster.world.run(cluster.world.now + 1_000)
    lines = [report.text for _, report in cluster.servers[0].reports if "more than its part" in report.text]
    assert len(lines) == 1
    assert "certificate 'greedy'" in lines[0]


def test_appends_of_an_honest_client_are_no_crowd_of_requests() -> None:
    """A request among them makes a batch wait, and thousands of appends in it; more come undecoded."""
    cluster = opened()
    cluster.world.network.piece = 1 << 18
    client = filled(cluster, 1)
    appends = [messages.AppendRequest(client.req_id(), -1, (), (), (), 0, b"", 0) for _ in range(4_000)]
    for at in range(0, len(appends), 20):
        client.send(*appends[at : at + 20], messages.FlushRequest(client.req_id()))
    client.wait(lambda: len(client.feed()) == len(appends) + 1, 60_000)
    assert not any("more than its part" in report.text for _, report in cluster.servers[0].reports)


def test_a_connection_is_counted_anew_as_soon_as_nothing_of_it_waits() -> None:
    """Not when it sends again: it may never do so, and the count would look like work that nobody does."""
    cluster = opened()
    cluster.world.network.piece = 1 << 16
    flooder = Client(cluster, client_id=8)
    flooder.send(*flushes(flooder, FLOOD))
    cluster.world.run(cluster.world.now + 1_000)
    assert any("more than its part" in report.text for _, report in cluster.servers[0].reports)
    assert {conn.queued for conn in cluster.servers[0].machine._clients._conns.values()} == {0}


def test_who_mounts_again_and_again_is_dropped() -> None:
    """Each mount begins a feed, and buffers hold many thousands of them: they took time long after the peer's end."""
    cluster = opened()
    cluster.world.network.piece = 1 << 16
    flooder = Client(cluster, client_id=8)
    flooder.send(*(messages.MountRequest(flooder.req_id(), -1, 0) for _ in range(FLOOD)))
    cluster.world.run(cluster.world.now + 100)
    assert flooder.peer.closed
    assert not cluster.servers[0].machine.waiting
    assert any("times at once" in report.text for _, report in cluster.servers[0].reports)


def test_feeds_that_lag_get_fewer_turns_while_appends_wait() -> None:
    feed, out = Feed(FeedCache(1 << 20)), list[Any]()
    feed.restart(-1)
    feed.committed(0, bytes(36) * 10, [])
    for conn in range(40):
        feed.subscribe(conn, make_req_id(conn, 1, 0, 1), -1, 10, messages.FeedSuspended(make_req_id(conn, 1, 0, 1)))
    feed.serve(0, out, busy=True)
    few = len([effect for effect in out if isinstance(effect, SendFrames)])
    feed.serve(1_000, out)
    many = len([effect for effect in out if isinstance(effect, SendFrames)]) - few
    assert 0 < few < many


@pytest.mark.parametrize("cached", [True, False])
def test_however_often_feeds_are_asked_for_they_get_a_part_of_the_time_while_appends_wait(cached: bool) -> None:
    """Each request of a flood begins at the start of the log, and asks for all of it."""
    count, milliseconds = 20_000, 500
    feed = Feed(FeedCache(1 << 30 if cached else 1))
    feed.restart(-1)
    feed.committed(0, bytes(FRAME_SIZE) * count, [])
    sent = reads = 0
    for now in range(milliseconds):
        for number in range(10):
            req_id = make_req_id(1, 1, 0, number)
            feed.replace(1)
            feed.subscribe(1, req_id, -1, count, messages.FeedSuspended(req_id))
            out: list[Any] = []
            feed.serve(now, out, busy=True)
            sent += sum(len(effect.frames) // FRAME_SIZE for effect in out if isinstance(effect, SendFrames))
            for effect in out:
                if isinstance(effect, ReadHeaders):
                    reads += effect.count
                    feed.headers(effect.first, bytes(FRAME_SIZE) * effect.count)
        due = feed.deadline(now)
        assert due is not None, "who lags is served"
        assert due > now or feed._allowance.left > 0, "and not by steps that do nothing"
    assert 0 < sent + 40 * reads < 1_600 * milliseconds + 4 * 4_096 + 40_000


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


class Busy(Client):
    """Keeps so many appends under way."""

    def __init__(self, cluster: Any, client_id: int, window: int, endpoint: Endpoint | None = None) -> None:
        super().__init__(cluster, client_id=client_id, endpoint=endpoint)
        self.count = 0  # that came back
        self._mark = -1
        self._window = window
        self._waiting: set[bytes] = set()
        self.mount()
        self._go_on()

    def _go_on(self) -> None:
        if self.peer.closed:
            return
        self.connection.receive(self.peer.take_bytes(), self.received)
        for message in self.received:
            if isinstance(message, messages.FeedData):
                self._mark = message.transaction_id
                self.count += message.req_id in self._waiting
                self._waiting.discard(message.req_id)
            elif isinstance(message, messages.FeedSuspended):
                self.send(messages.FeedRequest(message.req_id, self._mark))
        self.received.clear()
        new = [self.req_id() for _ in range(self._window - len(self._waiting))]
        self._waiting.update(new)
        if new:
            self.send(*(messages.AppendRequest(req_id, -1, (), (), (), 0, b"", 0) for req_id in new))
        self.world.after(1, self._go_on)

    def rate(self, milliseconds: int = 500) -> int:
        """Appends that come back in half a second."""
        before = self.count
        self.world.run(self.world.now + milliseconds)
        return self.count - before


def test_a_flood_of_appends_leaves_a_client_that_waits_for_each_what_an_honest_load_does() -> None:
    rates = []
    for window in (80, 3_000):
        cluster = opened(server_options={"batch_count_max": 100})
        cluster.world.network.piece = 1 << 14  # as a socket gives them
        client = Busy(cluster, 7, 20)
        before = client.rate()
        others = [Busy(cluster, 8 + number, window) for number in range(4)]
        client.rate()
        rates.append(client.rate())
        (partition,) = cluster.servers[0].machine.snapshot(cluster.world.now).partitions
        assert partition.queued > 1_000 or window == 80
        lines = [report.text for _, report in cluster.servers[0].reports if "more than its part" in report.text]
        what = "so many appends that those of others would have to wait for them"
        assert {line.partition(": ")[2] for line in lines} == (set() if window == 80 else {what})
        for other in others:
            other.peer.close()
        client.rate()
        assert client.rate() >= 0.9 * before
        (partition,) = cluster.servers[0].machine.snapshot(cluster.world.now).partitions
        assert partition.queued <= 20
    assert rates[1] >= 0.5 * rates[0] > 0, rates


def test_beside_a_client_that_waits_for_each_append_a_flood_keeps_a_pace() -> None:
    """However many connections it has. All that is committed is sent to every client, and takes everybody's time."""
    cluster = opened(server_options={"batch_count_max": 100})
    cluster.world.network.piece = 1 << 14
    client = Busy(cluster, 7, 20)
    others = [Busy(cluster, 8 + number, 300) for number in range(20)]
    client.rate(200)
    begun, before = cluster.world.now, committed(cluster)
    mine = client.rate()
    passed = cluster.world.now - begun
    theirs = committed(cluster) - before - mine
    assert 5 * passed <= theirs <= 11 * passed + 500
    assert mine > 0
    for other in others:
        other.peer.close()


def committed(cluster: Any) -> int:
    (partition,) = cluster.servers[0].machine.snapshot(cluster.world.now).partitions
    return int(partition.high_water_mark)


def test_clients_that_all_send_much_keep_no_pace() -> None:
    """Also between two bursts, when one of them has little under way for a moment."""
    cluster = opened()
    cluster.world.network.piece = 1 << 14
    clients = [Busy(cluster, 7 + number, 1_500) for number in range(2)]
    clients[0].rate(100)
    before = committed(cluster)
    clients[0].rate(200)
    assert committed(cluster) - before > 4 * 10 * 200
    for client in clients:
        client.peer.close()


class Region:
    """A cluster with a proxy, and clients of that."""

    def __init__(self) -> None:
        options = {"batch_count_max": 100, "proxies_trusted": True}
        self.cluster = opened(server_options=options)
        self.world = self.cluster.world
        self.world.network.piece = 1 << 14  # as a socket gives them
        self.proxy = SimProxy(self.world, 1)
        self.proxy.make_root()
        self.proxy.start()
        self.world.run(self.world.now + 2_000)
        self.partition = self.proxy.node.machine.partitions[0]
        assert self.partition.connected
        self.first_id = decode_id_counter(self.world.zookeeper.read(cluster_paths(OWN_ROOT).client_ids) or b"")

    def busy(self, number: int, window: int) -> Busy:
        return Busy(self.cluster, self.first_id + number, window, ENDPOINT)

    def is_flooded(self) -> bool:
        """Whether many appends wait at the proxy, now or soon: between two batches there are few."""
        return self.world.run_while(lambda: self.partition.carriage.queued <= 1_000, 1_000, every=1)


def test_a_flood_of_appends_leaves_a_client_behind_the_same_proxy_what_an_honest_load_does() -> None:
    """The server sees one client, the proxy: whose turn it is, the proxy has to know."""
    rates = []
    for window in (80, 3_000):
        region = Region()
        client = region.busy(1, 20)
        before = client.rate()
        others = [region.busy(2 + number, window) for number in range(4)]
        client.rate()
        rates.append(client.rate())
        assert window == 80 or region.is_flooded()
        lines = [report.text for _, report in region.proxy.node.reports if "more than its part" in report.text]
        what = "so many appends that those of others would have to wait for them"
        assert {line.partition(": ")[2] for line in lines} == (set() if window == 80 else {what})
        for other in others:
            other.peer.close()
        client.rate()
        assert client.rate() >= 0.9 * before
        client.rate()
        assert region.partition.carriage.queued <= 20
    assert rates[1] >= 0.5 * rates[0] > 0, rates


def test_a_flood_of_appends_does_not_delay_who_mounts_behind_the_same_proxy() -> None:
    """Its barrier stands behind its own appends, of which there are none, and not behind those of others."""
    region = Region()
    for number in range(4):
        region.busy(2 + number, 3_000)
    region.world.run(region.world.now + 1_000)
    assert region.is_flooded()
    newcomer = Client(region.cluster, client_id=region.first_id + 1, endpoint=ENDPOINT)
    request = messages.MountRequest(newcomer.req_id(), region.partition.mark, 0)
    newcomer.send(request)
    answers = lambda: [m for m in newcomer.received if isinstance(m, messages.MountResponse)]  # noqa: E731
    newcomer.wait(answers, 500)


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

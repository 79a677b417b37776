"""The log start of a whole cluster: raised on every replica, kept over sessions, and where new replicas begin."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.model.cluster import SimCluster
from tests.model.test_server import Client, opened, session_of
from waltz_core.wire import client_messages as messages
from waltz_core.zookeeper.znodes import UNRESOLVED
from waltz_testing.simulation.disk import SimDisk

COUNT = 40


def filled(**options: Any) -> tuple[SimCluster, Client]:
    """A cluster with some small segments."""
    cluster = opened(segment_size=400, **options)
    client = Client(cluster)
    client.mount()
    for number in range(COUNT):
        client.append(b"%d" % number * 10)
    client.wait(lambda: len(client.feed()) == COUNT)
    return cluster, client


def raise_to(client: Client, start: int) -> Any:
    """Ask until the session is one in which it can be done."""
    while True:
        answer = ask(client, messages.SetLogStartRequest(client.req_id(), start))
        if isinstance(answer, messages.LogStartResponse) or answer.code != messages.ErrorCode.NOT_READY:
            return answer
        client.world.run(client.world.now + 200)


def ask(client: Client, request: Any) -> Any:
    """The answer, whatever comes besides."""

    def answers() -> list[Any]:
        return [one for one in client.received if getattr(one, "req_id", None) == request.req_id]

    client.send(request)
    client.wait(answers)
    return answers()[-1]


def ids(client: Client, first: int, last: int) -> list[int]:
    answer = ask(client, messages.RecordRangeRequest(client.req_id(), first, last, 0, 0, False))
    return [one.transaction_id for one in answer.records]


def until_level(cluster: SimCluster, start: int, last: int) -> None:
    """Wait until every replica holds exactly that."""

    def wanted() -> bool:
        ends = [(one.log_start, one.max_id) for s in cluster.replicas if s.ready for one in s.node.machine.replicas[:1]]
        return level(cluster) and ends == [(start, last)] * 3

    assert cluster.world.run_while(lambda: not wanted(), 120_000)


def level(cluster: SimCluster, count: int = 3) -> bool:
    """So many replicas take part in the present session."""
    metadata = session_of(cluster)
    states = [one for one in metadata.replica_states if one.session_id == metadata.session_id]
    return sum(one.closing_mark == UNRESOLVED for one in states) >= count


def test_what_is_below_the_log_start_is_gone_on_every_replica_and_refused_by_name() -> None:
    cluster, client = filled(server_options={"archive": "s3://vault/ledger"})
    answer = raise_to(client, 25)
    assert (answer.log_start, answer.high_water_mark) == (25, COUNT - 1)
    until_level(cluster, 25, COUNT - 1)
    for storage in cluster.replicas:
        assert not any(name.endswith(f"{0:019d}.seg") for name in storage.disk.disk.files())
    assert ids(client, 25, 99) == list(range(25, COUNT))
    assert ids(client, 30, 31) == [30, 31]
    for request in (
        messages.RecordRangeRequest(client.req_id(), 24, 30, 0, 0, False),
        messages.MountRequest(client.req_id(), 23, 0),
        messages.FeedRequest(client.req_id(), -1),
    ):
        answer = ask(client, request)
        assert answer.code == messages.ErrorCode.BEFORE_START
        assert "the log begins at 25" in answer.message
        assert "s3://vault/ledger" in answer.message
    assert ask(client, messages.LogStartRequest(client.req_id())).log_start == 25
    fresh = Client(cluster, client_id=8)
    fresh.mount(24)
    assert [one.transaction_id for one in fresh.feed()] == list(range(25, COUNT))


def test_it_is_never_lowered_never_beyond_the_end_and_known_after_a_restart() -> None:
    cluster, client = filled()
    raise_to(client, 25)
    assert raise_to(client, 3).log_start == 25
    for wrong in (-1, COUNT + 1):
        assert raise_to(client, wrong).code == messages.ErrorCode.INVALID
    cluster.servers[0].crash()
    cluster.servers[0].start()
    cluster.until_open()
    again = Client(cluster, client_id=8)
    again.generation = session_of(cluster).generation
    assert ask(again, messages.LogStartRequest(again.req_id())).log_start == 25
    assert raise_to(again, COUNT).log_start == COUNT
    again.mount(COUNT - 1)
    again.append(b"goes on")
    again.wait(lambda: [one.transaction_id for one in again.feed()] == [COUNT])


def test_it_is_not_raised_while_a_replica_is_away_or_on_a_node_that_knows_no_log_start() -> None:
    cluster, client = filled()
    cluster.storages[2].crash()
    answer = ask(client, messages.SetLogStartRequest(client.req_id(), 5))
    assert answer.code == messages.ErrorCode.NOT_READY
    cluster, client = filled(storage_options={"codecs": (0,)})
    # The present session's mark would not allow it either: with a later session only the codec is in the way.
    cluster.servers[0].crash()
    cluster.servers[0].start()
    cluster.until_open()
    client = Client(cluster, client_id=8)
    answer = raise_to(client, 5)
    assert answer.code == messages.ErrorCode.NOT_IMPLEMENTED
    assert "0.13.2" in answer.message


def test_a_replica_that_lost_everything_begins_where_the_others_do() -> None:
    cluster, client = filled()
    raise_to(client, 25)
    lost = cluster.storages[2]
    lost.crash()
    lost.disk.replace(SimDisk(random.Random(1)))
    lost.start()
    assert cluster.world.run_while(lambda: not lost.ready, 10_000)
    cluster.assign(lost, (0,))
    until_level(cluster, 25, COUNT - 1)
    assert ids(client, 25, 99) == list(range(25, COUNT))


def test_a_replica_that_was_away_and_ends_below_begins_anew() -> None:
    cluster, client = filled()
    raise_to(client, 5)
    away = cluster.storages[2]
    away.crash()
    old = away.disk.disk.clone()
    away.start()
    until_level(cluster, 5, COUNT - 1)
    for number in range(20):
        client.append(b"more %d" % number)
    client.wait(lambda: len(client.feed()) == COUNT + 20)
    raise_to(client, COUNT + 10)
    away.crash()
    away.disk.replace(old)  # set back to a backup of before
    away.start()
    until_level(cluster, COUNT + 10, COUNT + 19)


class Swarm:
    """A cluster whose log start is raised while its nodes die: what was committed from there on stays as it was."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster = opened(seed=seed, segment_size=self.rng.choice([150, 400, 2_000]))
        self.world = self.cluster.world
        self.log: list[bytes] = []
        self.start = 0  # acknowledged
        self.asked = 0  # the highest that somebody asked for
        self.clients = 0
        self.raised = 0

    def run(self, steps: int) -> None:
        acts = [self.append, self.append, self.raise_start, self.raise_start, self.storage, self.server, self.wipe]
        for _ in range(steps):
            self.rng.choice(acts)()
            self.world.run(self.world.now + self.rng.choice([0, 5, 300]))
        self.restart()
        self.append()
        assert self.world.run_while(lambda: not level(self.cluster), 300_000), nodes(self.cluster)
        self.judge()

    def client(self) -> Client:
        self.restart()
        self.clients += 1
        client = Client(self.cluster, client_id=100 + self.clients)
        client.generation = session_of(self.cluster).generation
        return client

    def restart(self) -> None:
        for storage in self.cluster.storages:
            if not storage.node.alive:
                storage.start()
        if not self.cluster.servers[0].alive:
            self.cluster.servers[0].start()
        self.cluster.until_open(300_000)

    def append(self) -> None:
        client, first = self.client(), len(self.log)
        client.mount(first - 1)
        for number in range(self.rng.randrange(1, 12)):
            data = b"%d/%d" % (first + number, self.clients) * self.rng.randrange(1, 9)
            client.append(data, mark=first - 1)
            self.log.append(data)
        client.wait(lambda: len(client.feed()) == len(self.log) - first, 300_000)

    def raise_start(self) -> None:
        client = self.client()
        start = self.rng.randrange(self.start, len(self.log) + 1)
        self.asked = max(self.asked, start)
        request = messages.SetLogStartRequest(client.req_id(), start)
        client.send(request)
        if self.rng.random() < 0.4:
            self.world.run(self.world.now + self.rng.randrange(40))
            self.rng.choice([self.storage, self.server])()
            return
        client.wait(lambda: any(one.req_id == request.req_id for one in client.received), 60_000)
        answer = client.received[-1]
        if isinstance(answer, messages.LogStartResponse):
            assert answer.log_start >= start
            self.start, self.raised = max(self.start, answer.log_start), self.raised + 1

    def storage(self) -> None:
        self.rng.choice(self.cluster.storages).crash(power=self.rng.random() < 0.7)

    def server(self) -> None:
        self.cluster.servers[0].crash()

    def wipe(self) -> None:
        """One loses everything, while the others are well."""
        self.restart()
        if not self.world.run_while(lambda: not level(self.cluster), 300_000):
            raise AssertionError(nodes(self.cluster))
        storage = self.rng.choice(self.cluster.storages)
        before = session_of(self.cluster).session_id
        storage.crash()
        storage.disk.replace(SimDisk(self.rng))
        storage.start()
        assert self.world.run_while(lambda: not storage.ready, 10_000)
        self.cluster.assign(storage, (0,))
        # Two more at the same time would be more than a quorum survives.

        def is_back() -> bool:
            return level(self.cluster) and session_of(self.cluster).session_id > before

        assert self.world.run_while(lambda: not is_back(), 300_000), nodes(self.cluster)

    def judge(self) -> None:
        client = self.client()
        start = ask(client, messages.LogStartRequest(client.req_id())).log_start
        assert self.start <= start <= self.asked
        found: list[bytes] = []
        while start + len(found) < len(self.log):
            first = start + len(found)
            answer = ask(client, messages.RecordRangeRequest(client.req_id(), first, len(self.log), 0, 0, False))
            found += [one.data for one in answer.records]
        assert found == self.log[start:]
        last = len(self.log) - 1
        ends = [last] * len(self.cluster.replicas)
        assert self.world.run_while(lambda: [one[-1] for one in nodes(self.cluster)] != ends, 300_000)
        for storage in self.cluster.replicas:
            replica = storage.node.machine.replicas[0]
            assert replica.log_start <= start
            firsts = [segment.first_id for segment in replica.files.log.segments]
            assert firsts[0] <= replica.log_start
            # A segment that was begun since may begin at the log start itself.
            assert all(first >= replica.log_start for first in firsts[1:])


def nodes(cluster: SimCluster) -> list[tuple[str, str, int, int]]:
    found = [one.node.machine.replicas[0] for one in cluster.replicas if one.ready]
    return [(one.state.value, one.reason, one.log_start, one.max_id) for one in found]


@pytest.mark.parametrize("seed", range(8))
def test_what_is_above_the_log_start_survives_whatever_dies_while_it_is_raised(seed: int) -> None:
    Swarm(seed).run(14)

"""The log start of a whole cluster: raised on every replica, kept over sessions, and where new replicas begin."""

from __future__ import annotations

import random
from typing import Any

from tests.model.cluster import SimCluster
from tests.model.disk import SimDisk
from tests.model.test_server import Client, opened, session_of
from waltz_core.cluster.znodes import UNRESOLVED
from waltz_core.wire import client_messages as messages

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

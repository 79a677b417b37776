"""A server of ours and clients that name their locks: what is appended, and what is told when it is not."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest

from tests.lock_names import pack_names
from tests.model.test_server import Client, opened
from waltz_core.base.lock import Conflict, Lock, LockKind
from waltz_core.wire.client_messages import (
    AppendRefused,
    AppendRequest,
    Capability,
    ClusterInfoRequest,
    LockFailure,
    MountRequest,
    MountResponse,
    NamedAppendRequest,
    PartitionState,
    Refusal,
)

STOCK = Lock("stock", 7)


def named(client: Client, data: bytes, *, mark: int = -1, partition: int = 0, **locks: Any) -> NamedAppendRequest:
    """An append, not sent yet."""
    checksum = crc32(data)
    signed = checksum - (1 << 32) if checksum >> 31 else checksum
    lists = [tuple(locks.get(kind, ())) for kind in ("write", "read", "append")]
    hashes = [tuple(lock.wire() for lock in found) for found in lists]
    names = pack_names([(lock.name, lock.id) for found in lists for lock in found])
    return NamedAppendRequest(client.req_id(partition), mark, hashes[0], hashes[1], hashes[2], 0, data, signed, names)


def refused(client: Client, request: NamedAppendRequest) -> AppendRefused:
    answer = client.ask(request)
    assert isinstance(answer, AppendRefused), answer
    assert answer.req_id == request.req_id
    return answer


def test_the_server_announces_named_appends_and_conflict_classes() -> None:
    client = Client(opened())
    info = client.ask(ClusterInfoRequest(client.req_id(), False, False))
    assert info.capabilities & Capability.NAMED_APPENDS
    assert info.capabilities & Capability.CONFLICT_CLASSES


def test_a_named_append_commits_in_order_with_plain_ones_and_only_the_feed_says_so() -> None:
    client = Client(opened())
    client.mount()
    first = client.append(b"a")
    second = named(client, b"b", write=[STOCK])
    client.send(second)
    third = client.append(b"c")
    client.wait(lambda: len(client.feed()) == 3)
    assert [one.req_id for one in client.feed()] == [first, second.req_id, third]
    assert not [one for one in client.received if isinstance(one, AppendRefused)]


def test_a_lock_is_refused_with_its_place_and_its_taker() -> None:
    client = Client(opened())
    client.mount()
    client.send(named(client, b"a", write=[STOCK]))
    client.wait(client.feed)
    answer = refused(client, named(client, b"b", write=[Lock("stock", 8)], read=[STOCK]))
    assert answer.refusal == Refusal.LOCK
    assert (answer.transaction_id, answer.conflict, answer.blocking_id) == (0, Conflict.TRUE, 0)
    assert (answer.lock_kind, answer.lock_index, answer.lock_hash) == (LockKind.READ, 0, STOCK.wire())


def test_a_plain_append_is_refused_as_before() -> None:
    client = Client(opened())
    client.mount()
    client.send(named(client, b"a", write=[STOCK]))
    client.wait(client.feed)
    plain = client.append(b"b", write=(STOCK.wire(),))
    client.wait(lambda: LockFailure(plain, 0) in client.received)
    assert not [one for one in client.received if isinstance(one, AppendRefused)]


def test_a_table_that_is_too_coarse_is_a_false_conflict() -> None:
    client = Client(opened(server_options={"lock_table_size": 1}))
    client.mount()
    client.send(named(client, b"a", write=[STOCK]))
    client.wait(client.feed)
    answer = refused(client, named(client, b"b", write=[Lock("other", 1)]))
    assert (answer.refusal, answer.conflict, answer.blocking_id) == (Refusal.LOCK, Conflict.FALSE, -1)


def test_every_other_refusal_is_told_and_the_connection_stays() -> None:
    client = Client(opened(server_options={"payload_size_max": 100}))
    reasons = [refused(client, named(client, b"no mount")).refusal]
    client.mount()
    reasons.append(refused(client, named(client, b"nowhere", partition=77)).refusal)
    reasons.append(refused(client, named(client, bytes(101))).refusal)
    client.generation = 9
    reasons.append(refused(client, named(client, b"another generation")).refusal)
    client.generation = 1
    assert reasons == [Refusal.NOT_MOUNTED, Refusal.NOT_SERVED, Refusal.TOO_LARGE, Refusal.GENERATION]
    last = named(client, b"good")
    client.send(last)
    client.wait(client.feed)
    assert [one.req_id for one in client.feed()] == [last.req_id]


def test_too_many_locks_are_refused_undecoded_and_named_in_the_log() -> None:
    cluster = opened(server_options={"locks_max": 100})
    client = Client(cluster)
    client.mount()
    most = named(client, b"most", write=[Lock("stock", item) for item in range(60)], read=[STOCK] * 40)
    client.send(most)
    client.wait(client.feed)
    for write, read in ((101, 0), (60, 41), (0, 5000)):
        answer = refused(client, named(client, b"more", write=[STOCK] * write, read=[STOCK] * read))
        assert answer.refusal == Refusal.TOO_LARGE
        text = f"client 7 with {write + read} locks, more than the 100 of server.locksMax"
        assert text in str(answer)
    reports = [report.text for _, report in cluster.servers[0].reports if "101 locks" in report.text]
    assert len(reports) == 1
    assert "client 7 with 101 locks" in reports[0]


@pytest.mark.parametrize("version", range(5))
def test_too_many_locks_of_an_older_client_end_its_connection(version: int) -> None:
    cluster = opened(server_options={"locks_max": 100}, versions=frozenset({version}))
    client = Client(cluster, version=version)
    client.mount()
    client.append(b"most", write=tuple(range(100)))
    client.wait(client.feed)
    client.append(b"more", write=tuple(range(101)))
    assert cluster.world.run_while(lambda: not client.peer.closed, 10_000)
    reports = [report.text for _, report in cluster.servers[0].reports]
    assert any("client 7 with 101 locks, more than the 100 of server.locksMax" in text for text in reports)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_read_locks_of_an_older_client_count(version: int) -> None:
    cluster = opened(server_options={"locks_max": 100}, versions=frozenset({version}))
    client = Client(cluster, version=version)
    client.mount()
    client.send(AppendRequest(client.req_id(), -1, tuple(range(60)), tuple(range(60, 101)), (), 0, b"", 0))
    assert cluster.world.run_while(lambda: not client.peer.closed, 10_000)
    assert any("with 101 locks" in report.text for _, report in cluster.servers[0].reports)


def test_a_connection_that_a_newer_one_replaced_is_told_that_it_has_no_mount() -> None:
    cluster = opened()
    older, newer = Client(cluster, certificate="orders"), Client(cluster, certificate="orders")
    older.mount()
    newer.sequence = 100
    req_id = newer.req_id()
    newer.send(MountRequest(req_id, -1, 1))
    newer.wait(lambda: MountResponse(req_id, PartitionState.READY) in newer.received)
    assert refused(older, named(older, b"late")).refusal == Refusal.NOT_MOUNTED

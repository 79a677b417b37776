"""Servers that archive by policy, among storage nodes and clients: what is archived, freed, and read through."""

from __future__ import annotations

from typing import Any

import pytest

from tests import versions_0132
from tests.model.cluster import SimCluster
from tests.model.test_log_start import ask
from tests.model.test_server import Client, session_of
from waltz_core.base.edge import Level
from waltz_core.server.archive_calls import ArchiveEqual, ArchivePolicy
from waltz_core.server.archiving import Archiving, Stage
from waltz_core.wire import client_messages as messages

COUNT = 60


def opened(policy: dict[str, Any] | None = None, **options: Any) -> SimCluster:
    fields = {"file_records": 10, "after_ms": 2_000, "keep": 15, "retry_min_ms": 200, "retry_max_ms": 2_000}
    archiving = ArchivePolicy("the vault", **{**fields, **(policy or {})})
    caches = {"data_cache_bytes": 200, "feed_cache_bytes": 200}  # or they would answer
    server_options = {"archiving": archiving, "checkpoint_interval": 20, **caches, **options.pop("server_options", {})}
    cluster = SimCluster(1, segment_size=400, server_options=server_options, **options)
    cluster.start()
    cluster.until_open()
    return cluster


def fill(cluster: SimCluster, count: int = COUNT, partition: int = 0, **options: Any) -> Client:
    client = Client(cluster, **options)
    client.generation = session_of(cluster, partition).generation
    client.mount(partition=partition)
    for number in range(0, count, 5):
        for at in range(number, number + 5):
            client.append(b"%d" % at * 9, partition=partition)
        client.wait(lambda n=number: len(client.feed()) == n + 5, 60_000)
    return client


def start_of(cluster: SimCluster, server: int = 0, partition: int = 0) -> int:
    return int(cluster.servers[server].machine.partitions[partition].log_start)


def archive_of(cluster: SimCluster, partition: int = 0) -> Any:
    partitions = cluster.servers[0].machine.snapshot(cluster.world.now).partitions
    return next(one.archive for one in partitions if one.partition_id == partition)


def restart(cluster: SimCluster) -> None:
    """With it go the caches of the server, which would answer."""
    cluster.servers[0].crash()
    cluster.servers[0].start()
    cluster.until_open()


def until(cluster: SimCluster, condition: Any, limit: int = 120_000) -> None:
    assert cluster.world.run_while(lambda: not condition(), limit, every=10), status(cluster)


def status(cluster: SimCluster) -> Any:
    return [each.snapshot(cluster.world.now).partitions for each in (s.machine for s in cluster.servers if s.alive)]


def freed(cluster: SimCluster, at_least: int) -> None:
    until(cluster, lambda: start_of(cluster) >= at_least)


def archived(cluster: SimCluster, count: int = COUNT) -> None:
    until(cluster, lambda: len(cluster.vault.records[0]) == count)


def test_full_files_are_archived_at_once_the_rest_when_it_is_old_and_all_but_the_newest_are_freed() -> None:
    cluster = opened({"after_ms": 60_000})
    fill(cluster, COUNT + 5)
    archived(cluster, COUNT)
    assert cluster.vault.files[0] == [(at, at + 10) for at in range(0, COUNT, 10)]
    freed(cluster, 40)
    archived(cluster, COUNT + 5)
    assert cluster.vault.files[0][-1] == (COUNT, COUNT + 5)
    assert start_of(cluster) <= COUNT + 5 - 15
    for storage in cluster.replicas:
        assert not any(name.endswith(f"{0:019d}.seg") for name in storage.disk.disk.files())
    (partition,) = cluster.servers[0].machine.snapshot(cluster.world.now).partitions
    assert (partition.archive.end, partition.archive.trouble) == (COUNT + 5, "")
    assert 0 < partition.archive.archived <= COUNT + 5
    assert partition.archive.freed == start_of(cluster)


def test_a_file_that_age_has_cut_short_is_followed_by_one_that_ends_where_a_full_one_would() -> None:
    cluster = opened()
    client = fill(cluster, 5)
    archived(cluster, 5)
    for number in range(5, 20):
        client.append(b"%d" % number * 9)
    archived(cluster, 20)
    assert cluster.vault.files[0] == [(0, 5), (5, 10), (10, 20)]


def test_what_does_not_fill_a_file_is_not_read_and_nothing_is_wrong_meanwhile() -> None:
    cluster = opened({"after_ms": 60_000, "file_records": 6})
    fill(cluster, 5)
    cluster.world.run(cluster.world.now + 10_000)
    assert (archive_of(cluster).trouble, cluster.agents[0].questions) == ("", 1)


def test_a_file_ends_once_it_holds_so_many_bytes() -> None:
    read_size = 200  # bytes that a storage node answers with at a time
    cluster = opened(
        {"file_bytes": 500, "file_records": 60, "after_ms": 60_000}, storage_options={"read_size_max": read_size}
    )
    fill(cluster)
    archived(cluster)
    # A record takes about 60 bytes; a file ends with the piece that makes it large enough.
    assert all(end - first <= 15 for first, end in cluster.vault.files[0]), cluster.vault.files


def test_above_the_mark_at_which_the_store_session_began_nothing_is_freed_and_nothing_is_wrong() -> None:
    cluster = opened({"keep": 0}, server_options={"checkpoint_interval": 10_000})
    fill(cluster)
    archived(cluster)
    asked = cluster.agents[0].questions
    cluster.world.run(cluster.world.now + 10_000)
    assert (archive_of(cluster).trouble, start_of(cluster), cluster.agents[0].questions) == ("", 0, asked)


def test_a_partition_whose_archive_failed_leaves_its_turn_to_others_while_it_pauses() -> None:
    cluster = opened({"files_max": 1, "retry_min_ms": 60_000, "retry_max_ms": 60_000, "after_ms": 500}, partitions=2)
    cluster.vault.damaged.add((0, 5))
    for partition in (0, 1):
        fill(cluster, 30, partition=partition, client_id=10 + partition)
    until(cluster, lambda: archive_of(cluster).trouble != "")
    until(cluster, lambda: start_of(cluster, partition=1) >= 10, 20_000)


def test_nothing_is_freed_where_nothing_is_said_of_it() -> None:
    cluster = opened({"keep": None})
    fill(cluster)
    archived(cluster)
    cluster.world.run(cluster.world.now + 20_000)
    assert start_of(cluster) == 0


def test_what_was_wrong_is_over_once_a_file_is_written_also_where_nothing_is_freed() -> None:
    cluster = opened({"keep": None})
    cluster.agents[0].away = True
    fill(cluster)
    assert archive_of(cluster).trouble == "the archive is away"
    cluster.agents[0].away = False
    archived(cluster)
    until(cluster, lambda: archive_of(cluster).trouble == "", 1_000)


@pytest.mark.parametrize("version", [max(versions_0132.CLIENT), None])
def test_a_client_that_begins_before_the_log_start_is_fed_through_the_archive(version: int | None) -> None:
    cluster = opened()
    fill(cluster)
    freed(cluster, 40)
    restart(cluster)
    reader = Client(cluster, client_id=8, version=version)
    reader.generation = session_of(cluster).generation
    reader.send(messages.MountRequest(reader.req_id(), -1, 0))
    reader.wait(lambda: [one.transaction_id for one in reader.feed()] == list(range(COUNT)), 60_000)
    for wanted in (0, 39, 40, COUNT - 1):
        answer = reader.ask(messages.TransactionDataRequest(reader.req_id(), wanted))
        assert (answer.success, answer.data) == (True, b"%d" % wanted * 9)
    assert cluster.vault.reads >= 40


def read_range(client: Client, first: int, last: int, *, headers_only: bool = False) -> Any:
    return ask(client, messages.RecordRangeRequest(client.req_id(), first, last, 0, 0, headers_only))


def test_a_range_that_begins_before_the_log_start_is_read_through_the_archive_up_to_it() -> None:
    cluster = opened()
    client = fill(cluster)
    freed(cluster, 40)
    ids: list[int] = []
    headers: list[int] = []
    while len(ids) < COUNT:
        answer = read_range(client, len(ids), COUNT - 1)
        assert (answer.log_start, answer.high_water_mark) == (start_of(cluster), COUNT - 1)
        ids += [one.transaction_id for one in answer.records]
    while len(headers) < COUNT:
        answer = read_range(client, len(headers), COUNT - 1, headers_only=True)
        headers += [one.transaction_id for one in answer.record_headers]
    assert ids == headers == list(range(COUNT))


def test_while_the_archive_is_away_nothing_is_freed_appends_go_on_and_readers_below_wait() -> None:
    cluster = opened()
    fill(cluster)
    freed(cluster, 40)
    restart(cluster)
    client = Client(cluster, client_id=9)
    client.generation = session_of(cluster).generation
    client.mount(COUNT - 1)
    start, (agent,) = start_of(cluster), cluster.agents
    agent.away = True
    reader, another = Client(cluster, client_id=8), Client(cluster, client_id=10)
    for each, mark in ((reader, -1), (another, 19)):
        each.generation = session_of(cluster).generation
        each.send(messages.MountRequest(each.req_id(), mark, 0))
    answer = read_range(client, 0, 5)
    assert (answer.code, "the archive is away" in answer.message) == (messages.ErrorCode.NOT_READY, True)
    for number in range(COUNT, 2 * COUNT):
        client.append(b"%d" % number * 9)
    client.wait(lambda: len(client.feed()) == COUNT, 60_000)
    asked = agent.questions
    cluster.world.run(cluster.world.now + 10_000)
    assert reader.feed() == []
    assert start_of(cluster) == start
    (partition,) = cluster.servers[0].machine.snapshot(cluster.world.now).partitions
    assert partition.healthy
    assert partition.archive.trouble == "the archive is away"
    assert "cannot be read from the archive" in cluster.servers[0].machine.partitions[0].archive_unreadable
    assert agent.questions - asked < 40  # pauses of 0.2 to 2 s, in 10 s and what the appends took
    agent.away = False
    for each, first in ((reader, 0), (another, 20)):
        ids = list(range(first, COUNT))
        each.wait(lambda of=each, ids=ids: [one.transaction_id for one in of.feed()] == ids, 60_000)
    freed(cluster, start + 20)
    (partition,) = cluster.servers[0].machine.snapshot(cluster.world.now).partitions
    assert partition.archive.trouble == ""
    assert cluster.servers[0].machine.partitions[0].archive_unreadable == ""


def test_an_archive_that_does_not_answer_is_begun_anew() -> None:
    cluster = opened({"answer_ms": 5_000})
    (agent,) = cluster.agents
    agent.silent = True
    fill(cluster)
    cluster.world.run(cluster.world.now + 12_000)
    assert cluster.vault.records[0] == []
    agent.silent = False
    archived(cluster)
    freed(cluster, 40)


def stage_of(cluster: SimCluster) -> Stage:
    archiving: Archiving | None = cluster.servers[0].machine.partitions[0].archiving
    assert archiving is not None
    return archiving.stage


def end_session(cluster: SimCluster) -> None:
    for storage in cluster.storages:
        storage.crash()
        storage.start()


def test_an_answer_to_what_an_earlier_store_session_asked_is_not_believed() -> None:
    cluster = opened({"keep": 0})
    fill(cluster)
    until(cluster, lambda: stage_of(cluster) is Stage.COMPARE)
    agent, server = cluster.agents[0], cluster.servers[0]
    agent.silent = True
    (question,) = agent.asked
    end_session(cluster)
    until(cluster, lambda: stage_of(cluster) is Stage.LOOK)
    server.post(ArchiveEqual(question))
    cluster.world.run(cluster.world.now + 1_000)
    assert (archive_of(cluster).trouble, stage_of(cluster)) == ("", Stage.LOOK)


def complaints(cluster: SimCluster) -> list[str]:
    """What the log says of archiving that fails."""
    texts = [report.text for _, report in cluster.servers[0].reports if report.level >= Level.WARNING]
    return [text for text in texts if "archiving is retried" in text]


def test_a_read_that_ends_with_its_store_session_is_begun_again_without_a_word() -> None:
    cluster = opened({"keep": 0, "after_ms": 100}, server_options={"checkpoint_interval": 5})
    fill(cluster)  # a store session has five transactions
    archived(cluster)
    assert complaints(cluster) == []
    freed(cluster, 20)


def test_a_read_that_no_replica_answers_in_an_open_session_is_said_once() -> None:
    cluster = opened({"after_ms": 60_000}, server_options={"checkpoint_interval": 10_000})
    cluster.world.tolerates = lambda text: True  # storage nodes say that a record is damaged
    client = fill(cluster, 5)
    for storage in cluster.replicas:
        path = next(name for name in storage.disk.disk.files() if name.endswith(".seg"))
        storage.disk.disk.flip(path, storage.disk.disk.content(path).index(b"3" * 9))
    for number in range(5, 10):
        client.append(b"%d" % number * 9)
    until(cluster, lambda: archive_of(cluster).trouble != "")
    cluster.world.run(cluster.world.now + 20_000)
    (text,) = complaints(cluster)
    assert "transaction 3 cannot be read (storage0:7000, storage1:7000, storage2:7000)" in text
    assert cluster.vault.records[0] == []


def test_an_answer_that_is_lost_archives_nothing_twice() -> None:
    cluster = opened()
    cluster.agents[0].lost_answers = 0.4
    fill(cluster)
    archived(cluster)
    assert [one.transaction_id for one in cluster.vault.records[0]] == list(range(COUNT))


def test_a_damaged_archive_frees_nothing_and_gives_nothing_wrong() -> None:
    cluster = opened({"keep": 0, "after_ms": 500})
    cluster.vault.damaged.add((0, 25))
    client = fill(cluster)
    archived(cluster)
    cluster.world.run(cluster.world.now + 20_000)
    assert start_of(cluster) == 20
    (partition,) = cluster.servers[0].machine.snapshot(cluster.world.now).partitions
    assert partition.archive.trouble == "it holds other records than the log"
    cluster.vault.damaged = {(0, 5)}
    freed(cluster, 30)
    answer = read_range(client, 5, 6)
    assert answer.code == messages.ErrorCode.NOT_READY
    assert "checksum" in answer.message


def test_an_archive_of_another_history_is_not_continued() -> None:
    cluster = opened()
    client = fill(cluster)
    archived(cluster)
    freed(cluster, 40)
    elsewhere = cluster.vault.records[0]
    cluster.vault.records[0] = elsewhere + [elsewhere[-1]] * 100
    restart(cluster)
    until(cluster, lambda: "another history" in status(cluster)[0][0].archive.trouble)
    assert start_of(cluster) >= 40
    cluster.vault.records[0] = elsewhere[:30]
    until(cluster, lambda: "another archive" in status(cluster)[0][0].archive.trouble)
    fresh = Client(cluster, client_id=9)
    answer = read_range(fresh, 0, 5)
    assert answer.code == messages.ErrorCode.BEFORE_START
    assert client.feed()


def test_an_archive_with_a_gap_before_the_log_start_is_another_archive() -> None:
    cluster = opened()
    cluster.vault.begins[0] = 5
    fill(cluster, 20)
    until(cluster, lambda: "another archive" in archive_of(cluster).trouble)
    assert cluster.vault.commits == 0


def test_another_server_goes_on_where_the_last_one_was() -> None:
    cluster = opened(servers=2)
    fill(cluster)
    archived(cluster)
    owner = next(number for number in (0, 1) if 0 in cluster.servers[number].machine.partitions)
    cluster.servers[owner].crash()
    cluster.until_open()
    client = Client(cluster, server=1 - owner, client_id=9)
    client.generation = session_of(cluster).generation
    client.mount(COUNT - 1)
    for number in range(COUNT, 2 * COUNT, 5):
        for at in range(number, number + 5):
            client.append(b"%d" % at * 9)
        client.wait(lambda n=number: len(client.feed()) == n + 5 - COUNT, 60_000)
    archived(cluster, 2 * COUNT)
    assert [one.transaction_id for one in cluster.vault.records[0]] == list(range(2 * COUNT))
    until(cluster, lambda: start_of(cluster, 1 - owner) >= 80)


@pytest.mark.parametrize("seed", range(12))
def test_kills_of_server_and_archive_at_any_step_lose_and_double_nothing(seed: int) -> None:
    import random

    rng = random.Random(seed)
    cluster = opened(servers=1)
    fill(cluster)
    for _ in range(25):
        cluster.world.run(cluster.world.now + rng.randrange(400))
        if rng.random() < 0.6:
            cluster.agents[0].kill()
        else:
            cluster.servers[0].crash()
            cluster.servers[0].start()
            cluster.until_open()
    archived(cluster)
    assert [one.transaction_id for one in cluster.vault.records[0]] == list(range(COUNT))
    reader = Client(cluster, client_id=8)
    reader.generation = session_of(cluster).generation
    reader.send(messages.MountRequest(reader.req_id(), -1, 0))
    reader.wait(lambda: [one.transaction_id for one in reader.feed()] == list(range(COUNT)), 60_000)


def test_a_feed_that_waits_for_a_place_gets_that_of_connections_that_end() -> None:
    """It stood still until something else happened in its partition."""
    cluster = opened(partitions=2)
    for partition in (0, 1):
        fill(cluster, partition=partition, client_id=10 + partition)
        until(cluster, lambda of=partition: start_of(cluster, partition=of) >= 40)
        until(cluster, lambda of=partition: len(cluster.vault.records[of]) == COUNT)
    restart(cluster)
    cluster.world.run(cluster.world.now + 10_000)
    (agent,) = cluster.agents
    agent.silent = True
    other = Client(cluster, client_id=8)
    other.send(*(messages.TransactionDataRequest(other.req_id(0), at) for at in range(0, 16, 2)))
    until(cluster, lambda: len(agent.asked) == 8)
    readers = [Client(cluster, client_id=20 + number) for number in range(9)]
    for number, reader in enumerate(readers):
        reader.generation = session_of(cluster, 1).generation
        reader.send(messages.MountRequest(reader.req_id(1), 3 * number, 0))
        cluster.world.run(cluster.world.now + 100)
    for reader in readers[:8]:
        reader.peer.close()
    cluster.world.run(cluster.world.now + 1_000)
    agent.silent = False
    agent.kill()
    last = readers[8]
    last.wait(lambda: [one.transaction_id for one in last.feed()] == list(range(25, COUNT)), 10_000)


def test_what_is_read_for_a_client_that_takes_nothing_is_bounded() -> None:
    cluster = opened({"reads_max": 2})
    fill(cluster)
    freed(cluster, 40)
    restart(cluster)
    cluster.world.network.high_mark = 300
    reader = Client(cluster, client_id=8)
    reader.generation = session_of(cluster).generation
    mount = messages.MountRequest(reader.req_id(), -1, 0)
    reader.send(mount, *(messages.TransactionDataRequest(reader.req_id(), at % 40) for at in range(400)))
    cluster.world.run(cluster.world.now + 1)
    next(node for name, node in cluster.world.nodes.items() if name.startswith("peer") and node.conns).freeze()
    cluster.world.run(cluster.world.now + 20_000)
    before = cluster.vault.reads
    cluster.world.run(cluster.world.now + 20_000)
    assert cluster.vault.reads == before
    assert before < 200

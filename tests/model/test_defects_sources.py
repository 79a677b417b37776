"""One replica lags and the one it would be copied from is damaged: the third one is asked, and no session ends."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model.cluster import SimCluster, SimStorage
from tests.model.test_server import Client, session_of
from waltz_core.store.calls import StorageCall, StorageEffect
from waltz_core.store.followers import SessionConfig
from waltz_core.wire.storage_messages import RecordListRequest

COUNT = 60


def damage(storage: SimStorage, transaction_id: int) -> None:
    """One byte of a payload of `behind`."""
    path = next(name for name in storage.disk.disk.files() if name.endswith(".seg"))
    content = storage.disk.disk.content(path)
    storage.disk.disk.flip(path, content.index(bytes([100 + transaction_id]) * 50) + 9)


def behind(of_0132: bool, **options: Any) -> tuple[SimCluster, Client]:
    """Storage node 2 is away since before the first of `COUNT` transactions."""
    cluster = SimCluster(12, storages_0132=of_0132, **options)
    cluster.start()
    cluster.until_open()
    client = Client(cluster)
    client.mount()
    cluster.storages[2].crash(power=False)
    for n in range(COUNT):
        client.append(bytes([n + 100]) * 50)
    client.wait(lambda: len(client.feed()) == COUNT)
    cluster.servers[0].crash()  # the next session begins behind them: what is missing has to be copied
    cluster.servers[0].start()
    cluster.until_open()
    client = Client(cluster)
    client.generation = session_of(cluster).generation
    client.mount()
    client.wait(lambda: len(client.feed()) == COUNT)
    cluster.world.tolerates = lambda text: True
    return cluster, client


def ended(cluster: SimCluster) -> int:
    return sum("store session ended" in report.text for _, report in cluster.servers[0].reports)


def level(cluster: SimCluster) -> bool:
    (partition,) = cluster.servers[0].machine.snapshot(cluster.world.now).partitions
    return {link[3] for link in partition.links if link[1] == "following"} == {partition.high_water_mark} and (
        len(partition.links) == sum(link[1] == "following" for link in partition.links)
    )


@pytest.mark.parametrize("of_0132", [True, False], ids=["0.13.2", "ours"])
def test_a_late_replica_is_copied_from_the_third_one(of_0132: bool) -> None:
    """Before, the session ended for ever and ever, always with the same source."""
    cluster, client = behind(of_0132, server_options={"session": SessionConfig(copy_count_max=5)})
    damage(cluster.storages[0], 23)
    damage(cluster.storages[1], 41)  # each of the two sources needs the other one
    before, session = ended(cluster), session_of(cluster).session_id
    cluster.storages[2].start()

    assert cluster.world.run_while(lambda: not level(cluster), 60_000), cluster.servers[0].reports[-5:]

    assert ended(cluster) == before
    assert session_of(cluster).session_id == session
    log = next(content for name, content in cluster.storages[2].disk.disk.files().items() if name.endswith(".seg"))
    assert all(bytes([100 + n]) * 50 in log for n in range(COUNT))
    texts = [report.text for _, report in cluster.servers[0].reports]
    assert sum("storage0:7000 cannot give out transaction 23, another replica is asked" in text for text in texts) == 1
    client.append(b"with all three")
    client.wait(lambda: len(client.feed()) == COUNT + 1)


def test_a_record_that_nobody_gives_out_is_asked_for_again_and_costs_no_session() -> None:
    """The lagging replica stays out, with a reason; once a source is mended it comes in by itself."""
    cluster, client = behind(True)
    for storage in cluster.storages[:2]:
        damage(storage, 23)
    before = ended(cluster)
    cluster.storages[2].start()
    world = cluster.world
    world.run(world.now + 600_000)

    assert ended(cluster) == before
    assert not level(cluster)
    lags = "replica storage2:7000 cannot be brought level: transaction 23 cannot be read from storage0:7000, storage1"
    assert sum(lags in report.text for _, report in cluster.servers[0].reports) == 1
    client.append(b"goes on")
    client.wait(lambda: len(client.feed()) == COUNT + 1)

    _mend(cluster.storages[1], 23)
    assert world.run_while(lambda: not level(cluster), 60_000)
    assert ended(cluster) == before


def _mend(storage: SimStorage, transaction_id: int) -> None:
    path = next(name for name in storage.disk.disk.files() if name.endswith(".seg"))
    content = storage.disk.disk.content(path)
    good = bytes([100 + transaction_id])
    storage.disk.disk.flip(path, content.index(good * 9 + bytes([good[0] ^ 0xFF])) + 9)


def slow_follower(of_0132: bool) -> tuple[SimCluster, Client]:
    """Storage node 2 follows the session, and what it lacks is in memory no more."""
    config = SessionConfig(link_flight_bytes_max=100, tail_bytes_max=500, copy_count_max=5)
    cluster = SimCluster(13, storages_0132=of_0132, server_options={"session": config, "batch_count_max": 1})
    cluster.start()
    cluster.until_open()
    client = Client(cluster)
    client.mount()
    world = cluster.world
    assert world.run_while(lambda: not level(cluster), 60_000)
    world.tolerates = lambda text: True
    cluster.storages[2].disk.latency = (2_000, 2_000)
    for n in range(COUNT):
        client.append(bytes([n + 100]) * 50)
        client.wait(lambda n=n: len(client.feed()) == n + 1)
    return cluster, client


@pytest.mark.parametrize("of_0132", [True, False], ids=["0.13.2", "ours"])
def test_a_follower_that_fell_behind_the_tail_is_copied_from_the_third_one(of_0132: bool) -> None:
    """It lost nothing but time: its disk was slow."""
    cluster, _ = slow_follower(of_0132)
    for n in range(10, 50):
        damage(cluster.storages[n // 30], n)
    before = ended(cluster)
    cluster.storages[2].disk.latency = (0, 2)

    assert cluster.world.run_while(lambda: not level(cluster), 60_000), cluster.servers[0].reports[-5:]
    assert ended(cluster) == before
    assert any("another replica is asked" in report.text for _, report in cluster.servers[0].reports)


def test_a_follower_for_which_no_source_is_left_waits_without_asking_all_the_time() -> None:
    """Each source once in ten seconds, one report, no session lost; then it follows again."""
    cluster, client = slow_follower(True)
    for storage in cluster.storages[:2]:
        damage(storage, 33)
    before = ended(cluster)
    cluster.storages[2].disk.latency = (0, 2)
    outbox = cluster.servers[0].machine.partitions[0].storage
    asked: list[int] = []
    cluster.world.run(cluster.world.now + 5_000)
    put = outbox.put

    def watched(effect: StorageEffect) -> None:
        if isinstance(effect, StorageCall) and isinstance(effect.message, RecordListRequest):
            asked.append(effect.message.transaction_id)
        put(effect)

    outbox.put = watched
    cluster.world.run(cluster.world.now + 100_000)

    assert ended(cluster) == before
    assert set(asked) == {33}
    assert len(asked) in (20, 21)
    lags = "replica storage2:7000 cannot be brought level: transaction 33 cannot be read from storage0:7000, storage1"
    assert sum(lags in report.text for _, report in cluster.servers[0].reports) == 1
    client.append(b"goes on")
    client.wait(lambda: len(client.feed()) == COUNT + 1)
    _mend(cluster.storages[1], 33)
    assert cluster.world.run_while(lambda: not level(cluster), 60_000)

"""Servers that archive by themselves: real processes of the archive, in a directory and on an S3 service."""

from __future__ import annotations

import importlib.util
import resource
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import trio

import waltz_trio as waltz
from tests.spark.s3 import outage
from tests.spark.test_live import append, expected
from tests.trio.test_proxy import TRUSTING, running, url_of
from waltz_spark.archive.archive import plan_verification, run_verification
from waltz_spark.base.runners import Here
from waltz_spark.records.manifest import read_archive
from waltz_trio.node import archive_agent
from waltz_trio.node.embedded import EmbeddedCluster, embedded_cluster

COUNT = 130
POLICY: dict[str, object] = {
    "archive.fileRecords": 40,
    "archive.after": "1 s",
    "archive.keepRecords": 20,
    "storage.segment.size.threshold": 700,
    "storage.checkpointInterval": 30,
}


def settings(vault: Path | str, **more: object) -> dict[str, object]:
    return {**POLICY, "archive.location": str(vault), **{key.replace("_", "."): value for key, value in more.items()}}


async def until(condition: Any, seconds: float = 60) -> None:
    """Look at the cluster until it is as wanted."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - nobody tells when a machine has come so far
            await trio.sleep(0.02)


def archiving(cluster: EmbeddedCluster, partition: int = 0) -> Any:
    """The policy of a partition, at whichever server serves it."""
    for number in range(cluster.server_count):
        process = cluster.server(number)
        machine = process._machine if process is not None else None
        served = machine.partitions.get(partition) if machine is not None else None
        if served is not None:
            return served.archiving
    return None


def log_start(cluster: EmbeddedCluster, partition: int = 0) -> int:
    for number in range(cluster.server_count):
        process = cluster.server(number)
        served = process._machine.partitions.get(partition) if process is not None and process._machine else None
        if served is not None:
            return served.log_start
    return 0


async def records(
    cluster: EmbeddedCluster, count: int, partition: int = 0, url: str = ""
) -> list[tuple[int, int, bytes, int]]:
    """What a new client is fed from the beginning on."""
    rows: list[tuple[int, int, bytes, int]] = []
    with trio.fail_after(60):
        async with waltz.open_client(url or cluster.url) as client, client.feed(partition, after=-1) as feed:
            async for txn in feed:
                rows.append((partition, txn.id, txn.load(), txn.header))
                if len(rows) == count:
                    return rows
    return rows


async def test_a_log_is_archived_and_freed_by_policy_and_a_view_is_built_from_its_beginning(tmp_path: Path) -> None:
    vault = tmp_path / "vault"
    async with embedded_cluster(tmp_path / "c", partitions=1, settings=settings(vault)) as cluster:
        for start in range(0, COUNT, 10):
            await append(cluster, (10,), start)
        await until(lambda: log_start(cluster) >= 80)
        await until(lambda: archiving(cluster).end == COUNT)
        state = read_archive(str(vault))
        assert [(file.first_id, file.end_id) for file in state.files][:3] == [(0, 40), (40, 80), (80, 120)]
        left = [path.name for path in (tmp_path / "c" / "storage-0" / "0").glob("*.seg")]
        assert min(left) > f"{40:019d}"
        assert await records(cluster, COUNT) == expected(COUNT)

        def apply(txn: waltz.Transaction, db: Any) -> None:
            db.execute("INSERT INTO seen VALUES (?, ?)", (txn.id, txn.load()))

        view = waltz.SqliteView(tmp_path / "view.db", apply, schema="CREATE TABLE IF NOT EXISTS seen (id, data)")
        async with waltz.open_client(cluster.url) as client, client.materialize(view, partitions=[0]) as application:
            await application.caught_up(0)
            read = await client.read(0, 0, COUNT)  # from the archive, then from the log
            assert [(each.id, each.load()) for each in read] == [(row[1], row[2]) for row in expected(COUNT)]
        with sqlite3.connect(tmp_path / "view.db") as db:
            assert db.execute("SELECT id, data FROM seen").fetchall() == [(row[1], row[2]) for row in expected(COUNT)]


async def test_kills_of_the_server_and_of_its_archive_lose_and_double_nothing(tmp_path: Path) -> None:
    vault = tmp_path / "vault"
    async with embedded_cluster(tmp_path / "c", partitions=1, settings=settings(vault)) as cluster:
        for round_, start in enumerate(range(0, COUNT, 10)):
            await append(cluster, (10,), start)
            process = cluster.server(0)
            assert process is not None
            assert process.archive is not None
            if round_ % 3 == 0:
                process.archive.abandon()  # kill -9, whatever it is doing
            elif round_ % 3 == 1:
                await cluster.kill_server(0)
                await cluster.restart_server(0)
                await cluster.wait_ready()
        await until(lambda: archiving(cluster) is not None and archiving(cluster).end == COUNT)
        files = read_archive(str(vault)).files
        assert [file.first_id for file in files] == [0, *(file.end_id for file in files[:-1])]
        assert files[-1].end_id == COUNT
        verdicts = run_verification(plan_verification(str(vault)), Here())
        assert [verdict.problems for verdict in verdicts] == [()] * len(files)
        await until(lambda: log_start(cluster) > 0)
        assert await records(cluster, COUNT) == expected(COUNT)


@pytest.mark.filterwarnings("ignore")
async def test_an_archive_on_s3_is_written_compared_and_read_through(tmp_path: Path, bucket: str) -> None:
    vault = f"{bucket}/policy"
    async with embedded_cluster(tmp_path / "c", partitions=1, settings=settings(vault)) as cluster:
        for start in range(0, COUNT, 26):
            await append(cluster, (26,), start)
        await until(lambda: log_start(cluster) >= 40, 120)
        await until(lambda: archiving(cluster).end == COUNT, 120)
        assert await records(cluster, COUNT) == expected(COUNT)
    state = await trio.to_thread.run_sync(read_archive, vault)
    assert state.files[-1].end_id == COUNT


async def test_a_lost_archive_is_told_and_frees_nothing_until_it_is_back(tmp_path: Path) -> None:
    vault, aside = tmp_path / "vault", tmp_path / "aside"
    async with embedded_cluster(tmp_path / "c", partitions=1, settings=settings(vault)) as cluster:
        await append(cluster, (COUNT,))
        start = COUNT - 20  # all that may be freed: nothing moves any more when the archive is lost
        await until(lambda: log_start(cluster) == start and archiving(cluster).end == COUNT)
        vault.rename(aside)
        vault.write_text("no directory")
        await append(cluster, (COUNT,), COUNT)
        await until(lambda: archiving(cluster).trouble)
        process = cluster.server(0)
        assert process is not None

        def told() -> Any:
            well, state = process.health()  # a session may be beginning, and a trouble be tried again
            return well and state["server-health-check"]["archive"]["0"] != "well"  # type: ignore[index]

        await until(told)
        assert log_start(cluster) == start
        vault.unlink()
        aside.rename(vault)
        await until(lambda: archiving(cluster).end == 2 * COUNT and not archiving(cluster).trouble)
        assert len(await records(cluster, 2 * COUNT)) == 2 * COUNT


async def test_readers_behind_a_proxy_read_through_the_archive_also_when_it_was_away(tmp_path: Path) -> None:
    vault, aside = tmp_path / "vault", tmp_path / "aside"
    everything = {**settings(vault), **TRUSTING}
    async with embedded_cluster(tmp_path / "c", partitions=1, settings=everything) as cluster:
        await append(cluster, (COUNT,))
        await until(lambda: log_start(cluster) > 0 and archiving(cluster).end == COUNT)
        async with running(cluster, {"server.transactionDataCacheSize": 1 << 20}) as proxy:
            assert await records(cluster, COUNT, url=url_of(proxy)) == expected(COUNT)
        vault.rename(aside)
        vault.write_text("no directory")
        await cluster.kill_server(0)  # and all that it has in memory
        await cluster.restart_server(0)
        await cluster.wait_ready()
        async with running(cluster) as proxy:
            found: list[tuple[int, int, bytes, int]] = []
            async with trio.open_nursery() as nursery:

                async def read() -> None:
                    found.extend(await records(cluster, COUNT, url=url_of(proxy)))

                nursery.start_soon(read)
                await until(lambda: cluster_trouble(cluster))
                assert not found
                vault.unlink()
                aside.rename(vault)
        assert found == expected(COUNT)


def cluster_trouble(cluster: EmbeddedCluster, partition: int = 0) -> str:
    """Why its owner cannot archive a partition, or read it through the archive."""
    process = cluster.server(0)
    state: Any = process.health()[1] if process is not None else {}
    told = str(state["server-health-check"].get("archive", {}).get(str(partition), "well"))
    return "" if told == "well" else told


async def test_a_full_disk_frees_nothing_and_costs_nothing_until_there_is_room(tmp_path: Path) -> None:
    vault = tmp_path / "vault"
    async with embedded_cluster(tmp_path / "c", partitions=1, settings=settings(vault)) as cluster:
        await append(cluster, (COUNT,))
        await until(lambda: log_start(cluster) > 0 and archiving(cluster).end == COUNT)
        agent = cluster.server(0)
        assert agent is not None
        assert agent.archive is not None
        assert agent.archive._process is not None
        pid = agent.archive._process.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (64, hard))  # no file gets any longer than that
        await append(cluster, (COUNT - 10,), COUNT)
        await until(lambda: cluster_trouble(cluster))
        start = log_start(cluster)
        await append(cluster, (10,), 2 * COUNT - 10)
        assert log_start(cluster) <= max(start, COUNT)  # what was archived before the disk was full may still go
        assert await records(cluster, 2 * COUNT) == expected(2 * COUNT)  # what is there is given out
        assert agent.archive._process.pid == pid
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
        await until(lambda: archiving(cluster).end == 2 * COUNT and not cluster_trouble(cluster))
    verdicts = run_verification(plan_verification(str(vault)), Here())
    assert [verdict.problems for verdict in verdicts] == [()] * len(verdicts)
    assert verdicts[-1].file.end_id == 2 * COUNT


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
async def test_a_bucket_that_is_gone_is_told_and_gone_on_with_when_it_is_back(tmp_path: Path, bucket: str) -> None:
    vault = f"{bucket}/gone"
    async with embedded_cluster(tmp_path / "c", partitions=1, settings=settings(vault)) as cluster:
        await append(cluster, (COUNT,))
        await until(lambda: log_start(cluster) > 0 and archiving(cluster).end == COUNT, 120)
        found = False
        outage.set()
        try:
            await cluster.kill_server(0)
            await cluster.restart_server(0)
            await append(cluster, (COUNT,), COUNT)
            await until(lambda: "there is no bucket vault" in cluster_trouble(cluster), 120)
            start = log_start(cluster)
            with trio.move_on_after(1):
                found = bool(await records(cluster, 1))
            assert not found  # who begins before it waits, and is told nothing wrong
            assert log_start(cluster) == start
        finally:
            outage.clear()
        assert await records(cluster, 2 * COUNT) == expected(2 * COUNT)
        await until(lambda: archiving(cluster).end == 2 * COUNT and not cluster_trouble(cluster), 120)


async def test_a_damaged_file_frees_nothing(tmp_path: Path) -> None:
    vault = tmp_path / "vault"
    kept = settings(vault, archive_keepRecords=10**9)
    async with embedded_cluster(tmp_path / "c", partitions=1, settings=kept) as cluster:
        await append(cluster, (COUNT,))
        await until(lambda: archiving(cluster).end == COUNT)
    damaged = min((vault / "data" / "partition=0").glob("*.parquet"))
    data = bytearray(damaged.read_bytes())
    data[len(data) // 3] ^= 1
    damaged.write_bytes(data)
    async with embedded_cluster(tmp_path / "c", settings=settings(vault)) as cluster:
        await append(cluster, (COUNT,), COUNT)
        await until(lambda: archiving(cluster).trouble)
        assert log_start(cluster) == 0


def test_a_location_whose_packages_are_missing_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "s3fs" else object())
    archive_agent.check_installed("/a/directory")
    with pytest.raises(waltz.ConfigError, match=r"archive.location is s3://vault: .* s3fs.*waltz-log\[s3\]"):
        archive_agent.check_installed("s3://vault")

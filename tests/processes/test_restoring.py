"""Every disk is lost: the commands of the page bring a cluster back from its archive and a backup of ZooKeeper."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trio

import waltz_trio as waltz
from tests.docs.blocks import blocks_of
from tests.processes.cluster import Cluster, poll, running_cluster
from tests.processes.zookeeper import ZooKeeperServer

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PAGE = "docs/operations/restoring.md"
ARCHIVED = 100  # transactions of partition 0, in whole files; partition 1 has none
COMMITTED = 120, 30
SCHEMA = "CREATE TABLE IF NOT EXISTS seen (part INTEGER, number INTEGER)"
COMMANDS = (
    "spark verify",
    "zookeeper restore",
    "spark restore",
    "storage run",
    "storage sync-partitions",
    "storage unsafe-recover",
    "server run",
    "cluster verify",
    "spark verify",
    "doctor -c",
)


def commands_of_the_page() -> list[list[str]]:
    """The commands of the page in their order, without `waltz`."""
    (block,) = [block for block in blocks_of(PAGE) if "waltz spark restore" in block.text]
    lines = [line.partition("#")[0].split() for line in block.text.splitlines()]
    assert [" ".join(line[:3]) for line in lines] == [f"waltz {command}" for command in COMMANDS]
    return [line[1:] for line in lines]


def apply(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
    db.execute("INSERT INTO seen VALUES (?, ?)", (txn.partition, int(txn.load())))


def view_of(path: Path) -> waltz.SqliteView:
    return waltz.SqliteView(path, apply, schema=SCHEMA, name="seen")


async def catch_up(cluster: Cluster, path: Path) -> None:
    """Let a database apply all that is committed."""
    with trio.fail_after(60):
        async with waltz.open_client(cluster.client_file) as client, client.materialize(view_of(path)) as seen:
            await seen.caught_up()


async def append(cluster: Cluster, partition: int, *numbers: int) -> None:
    with trio.fail_after(60):
        async with waltz.open_client(cluster.client_file) as client:
            for number in numbers:
                await client.append(partition, waltz.Append(b"%d" % number))


def seen_in(path: Path) -> Iterator[list[int]]:
    """What a database has of each partition."""
    with closing(sqlite3.connect(path)) as database:
        for partition in range(2):
            rows = database.execute("SELECT number FROM seen WHERE part = ?", (partition,))
            yield sorted(number for (number,) in rows)


def fill(cluster: Cluster, old: Path, new: Path) -> None:
    """Append; `old` is a database of before the archive's end, `new` has applied everything."""
    trio.run(append, cluster, 0, *range(60))
    trio.run(catch_up, cluster, old)
    trio.run(append, cluster, 0, *range(60, COMMITTED[0]))
    trio.run(append, cluster, 1, *range(COMMITTED[1]))
    trio.run(catch_up, cluster, new)
    name = "waltz-server.partition-0.archived-up-to"
    poll("whole files are archived", lambda: cluster.gauges("server-0").get(name) == ARCHIVED - 1)


def lose(cluster: Cluster) -> None:
    """Every disk of the cluster, and what ZooKeeper has of it."""
    for name in (*cluster.server_names, *cluster.storage_names):
        cluster.children[name].kill()
    for name in cluster.storage_names:
        shutil.rmtree(cluster.directory / name)
    cluster.tool("zookeeper", "delete", "-n", "x", "-f", "-c", str(cluster.tools_file))


def bring_back(cluster: Cluster, vault: Path, backup: Path) -> None:
    """Do what the page says."""
    verify, zookeeper, restore, storage_run, sync, recover, server_run, check, compare, doctor = commands_of_the_page()
    words = {"ARCHIVE": str(vault), "FILE": str(backup), "tools.yml": str(cluster.tools_file)}

    def do(command: list[str], *more: str, **own: str) -> None:
        given = [{**words, **own}.get(word, word) for word in command]
        done = cluster.attempt(*given, *more)
        assert done.returncode == 0, f"waltz {' '.join(given)}: status {done.returncode}\n{done.stdout}"

    do(verify)
    do(zookeeper, "--yes")
    for name in cluster.storage_names:
        do(restore, DIRECTORY=str(cluster.directory / name))
    assert (storage_run, server_run) == (["storage", "run", "storage.yml"], ["server", "run", "server.yml"])
    cluster.start(*cluster.storage_names)
    do(sync)
    for partition in range(cluster.partitions):
        do(recover, "--yes", N=str(partition))
    cluster.start(*cluster.server_names)
    cluster.wait_healthy()
    do(check)
    do(compare)
    do(doctor)


def test_a_cluster_that_lost_every_disk_is_brought_back_by_the_commands_of_the_page(
    tmp_path: Path, zookeeper: ZooKeeperServer
) -> None:
    vault, backup = tmp_path / "vault", tmp_path / "backup.json"
    before, ahead, fresh = (tmp_path / f"{name}.db" for name in ("before", "ahead", "fresh"))
    settings = {"archive.location": str(vault), "archive.fileRecords": 50}
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), partitions=2, settings=settings) as cluster:
        fill(cluster, before, ahead)
        backup.write_text(cluster.tool("zookeeper", "list", "-c", str(cluster.tools_file), "--json"))
        lose(cluster)
        bring_back(cluster, vault, backup)

        with pytest.raises(waltz.ClientAheadError, match="was the log restored"):
            trio.run(catch_up, cluster, ahead)
        ahead.unlink()  # as the page says
        trio.run(append, cluster, 0, 1000)
        trio.run(append, cluster, 1, 1001)
        for path in (before, ahead, fresh):
            trio.run(catch_up, cluster, path)
            assert list(seen_in(path)) == [[*range(ARCHIVED), 1000], [1001]]

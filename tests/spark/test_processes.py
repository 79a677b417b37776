"""Real processes and a real ZooKeeper: what it tells of servers and storage nodes, and a node on a restored log."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import yaml

import waltz_trio as waltz
from tests.processes.cluster import Cluster
from tests.processes.zookeeper import missing, running_zookeeper
from waltz_core.server.journal_format import Decision, decode_entries, encode_entry
from waltz_spark.archive.archive import plan_archive, run_archive
from waltz_spark.archive.restore import restore
from waltz_spark.base.planning import ServerPlace, StoragePlace
from waltz_spark.base.runners import Here
from waltz_spark.read.options import parse_options
from waltz_spark.read.reading import drop_connections
from waltz_spark.spark.source import BatchReader
from waltz_trio.cli.main import main

pytestmark = pytest.mark.processes

COUNT = 60
SETTINGS = {"storage.segment.size.threshold": 700}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    problem = missing()
    if problem is not None:
        pytest.fail(problem)
    with running_zookeeper() as zookeeper:
        made = Cluster(tmp_path, zookeeper.fresh_chroot(), partitions=2, storage_nodes=3, servers=1, settings=SETTINGS)
        try:
            made.set_up()
            yield made
        finally:
            made.end()
            drop_connections()


def options_of(cluster: Cluster, **more: str) -> Any:
    keys = yaml.safe_load(cluster.tools_file.read_text())
    values = {name: str(keys[name]).lower() if name == "ssl.verify" else keys[name] for name in keys if "ssl." in name}
    known = {name: values[name] for name in ("ssl.ca", "ssl.certificate", "ssl.key", "ssl.verify") if name in values}
    where = {"zookeeper": keys["zookeeper.connectString"], "clusterRoot": keys["cluster.root"]}
    return parse_options({**where, **known, "origin": "true", "verify": "record", **more})


def append(cluster: Cluster, count: int) -> None:
    async def run() -> None:
        async with waltz.open_client(str(cluster.client_file)) as client:
            for at in range(count):
                await client.send(at % 2, waltz.Append(b"%d" % at))
            await client.flush()

    trio.run(run)


@pytest.mark.slow
def test_zookeeper_tells_where_everything_is_and_a_node_starts_on_a_restored_log(
    cluster: Cluster, tmp_path: Path
) -> None:
    append(cluster, COUNT)
    origins = {}
    for via in ("storage", "server"):
        reader = BatchReader(options_of(cluster, via=via))
        tasks = reader.partitions()
        kind = StoragePlace if via == "storage" else ServerPlace
        assert all(isinstance(place, kind) for task in tasks for one in task.ranges for place in one.places)
        rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
        origins[via] = {row.pop("_origin") for row in rows}
        assert sorted(int(row["data"]) for row in rows) == list(range(COUNT))
    assert origins == {"storage": {"storage"}, "server": {"server"}}
    confirmed = BatchReader(options_of(cluster, via="storage", verify="quorum"))  # by digests from another node
    batches = [batch for task in confirmed.partitions() for batch in confirmed.read(task)]
    assert sum(batch.num_rows for batch in batches) == COUNT

    directory = Path(yaml.safe_load((tmp_path / "storage-1.yml").read_text())["storage.directory"])
    root = str(tmp_path / "archive")
    report = run_archive(plan_archive(options_of(cluster, directory=str(directory)), root), Here())
    assert report.record_count == COUNT
    cluster.children["storage-1"].stop()
    shutil.rmtree(directory)
    restore(root, directory, Here())
    cluster.start("storage-1")
    cluster.children["storage-0"].stop()  # from here on nothing is committed without the restored node
    append(cluster, 10)
    restored = read_files(directory)
    assert restored[: COUNT // 2] == [b"%d" % at for at in range(0, COUNT, 2)]
    cluster.start("storage-0")
    cluster.wait_healthy()
    free_and_lose(cluster, root, COUNT + 10)


def free_and_lose(cluster: Cluster, root: str, count: int) -> None:
    """Free everything, kill one node, wipe another: nothing is missing, with the archive in front of the log."""
    options = options_of(cluster)
    where = ["--zookeeper", options.zookeeper, "--root", options.cluster_root, "--jobs", "1"]
    for name, value in (("ca", options.ssl_ca), ("certificate", options.ssl_certificate), ("key", options.ssl_key)):
        where += ["-o", f"ssl.{name}={value}"] if value else []
    assert main(["spark", "archive", *where, "--to", root, "--free"]) == 1, "nobody was asked"
    assert main(["spark", "archive", *where, "--to", root, "--free", "--yes"]) == 0
    directories = {name: cluster.directory / name for name in cluster.storage_names}
    assert not any(path.name == f"{0:019d}.seg" for path in cluster.directory.glob("storage-*/0/*.seg"))
    cluster.children["storage-2"].kill()
    cluster.start("storage-2")
    cluster.wait_healthy()
    cluster.children["storage-1"].stop()
    shutil.rmtree(directories["storage-1"])
    directories["storage-1"].mkdir()
    cluster.start("storage-1")
    admin = f"127.0.0.1:{cluster.addresses['storage-1']['storage.admin.port']}"
    cluster.tool("storage", "add-partition", "-c", str(cluster.tools_file), "-s", admin, "-p", "0,1")
    cluster.wait_healthy()
    append(cluster, 4)
    reader = BatchReader(options_of(cluster, archive=root))
    rows = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    assert len(rows) == count + 4
    assert {row["_origin"] for row in rows if row["transaction_id"] < count // 2} == {"archive"}

    async def begins() -> bool:
        async with waltz.open_client(str(cluster.client_file)) as client, client.feed(0, after=-1) as feed:
            with pytest.raises(waltz.BeforeStartError):
                await feed.__anext__()
        return True

    assert trio.run(begins)


def read_files(directory: Path) -> list[bytes]:
    """Data of partition 0."""
    reader = BatchReader(parse_options({"directory": str(directory), "trust": "files", "partitions": "0"}))
    return [row["data"] for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


# ---- verdicts over a running cluster ----------------------------------------------------------


@pytest.fixture
def journalled(tmp_path: Path) -> Iterator[Cluster]:
    problem = missing()
    if problem is not None:
        pytest.fail(problem)
    settings = {"server.journal.mode": "sync"}
    with running_zookeeper() as zookeeper:
        made = Cluster(tmp_path, zookeeper.fresh_chroot(), partitions=2, storage_nodes=3, settings=settings)
        try:
            made.set_up()
            yield made
        finally:
            made.end()
            drop_connections()


def move_money(cluster: Cluster, count: int) -> list[int]:
    """Transactions under one lock, each decided at the state after the one before."""

    async def run() -> list[int]:
        async with waltz.open_client(str(cluster.client_file)) as client:
            ids: list[int] = [await client.append(0, waltz.Append(b"open", append=[("account", 1)]))]
            for at in range(count):
                transfer = waltz.Append(b"%d" % at, write=[("account", 1)])
                ids.append(await client.append(0, transfer, based_on=ids[-1]))
            return ids

    return trio.run(run)


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(["spark", *arguments, "--jobs", "1"])
    captured = capsys.readouterr()
    return status, captured.out + captured.err


@pytest.mark.slow
def test_an_audit_of_a_running_cluster_looks_at_all_of_it_and_finds_a_lost_update(
    journalled: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = journalled
    append(cluster, COUNT)
    ids = move_money(cluster, 12)
    total = COUNT + 13
    config = ["-c", str(cluster.tools_file)]
    journal = ["--journal", str(cluster.journal_of("server-0"))]

    status, text = call(capsys, "audit", *config, *journal)
    assert status == 0, text
    assert f"passed: {total} of {total} records (100 %), 2 of 2 partitions, 3 sources: storage node 127.0.0.1:" in text
    assert "ids 0 to 29; 30 of 30 have an entry, 100 %" in text
    status, text = call(capsys, "scan", *config)
    assert status == 0, text
    assert f"sound: {total} of {total} records (100 %), 2 of 2 partitions" in text

    # A directory of the same nodes alone: the log is young, so all of it is behind the local low-water mark.
    directory = str(cluster.directory / "storage-0")
    for command in ("scan", "audit"):
        status, text = call(capsys, command, "--directory", directory)
        assert status == 3, text
        assert f"unproven: 0 of {total} records (0 %), 0 of 2 partitions, 1 source" in text
    # Sound, and every record read: but without a journal nothing tells whether locks were kept.
    status, text = call(capsys, "audit", *config)
    assert status == 3, text
    assert "no decision journal" in text
    status, text = call(capsys, "audit", *config, "--no-journal")
    assert status == 0, text
    assert "; serializability left out; " in text
    status, text = call(capsys, "audit", "--directory", directory, *config, *journal)
    assert status == 0, text
    assert "2 of 2 partitions, 4 sources" in text

    cluster.children["storage-2"].stop()
    status, text = call(capsys, "audit", *config, *journal)
    assert status == 3, text
    assert "FAILED" not in text
    cluster.start("storage-2")
    cluster.wait_healthy()

    with cluster.tools_file.open("a") as file:
        file.write(f"\nserver.journal.directory: {cluster.journal_of('server-0')}\n")
    status, text = call(capsys, "audit", *config)
    assert status == 0, text
    assert "30 of 30 have an entry, 100 %" in text
    planted = plant_lost_update(cluster, ids)
    status, text = call(capsys, "audit", *config)
    assert status == 1, text
    assert f"transaction {int(planted)}, decided at mark" in text
    assert "FAILED" in text


def plant_lost_update(cluster: Cluster, ids: list[int]) -> int:
    """Lower the mark of a decision below the transaction before it, which took the same lock."""
    wanted = ids[7]
    for path in sorted((cluster.journal_of("server-0") / "0").glob("*.journal")):
        for at, entry in decode_entries(path.read_bytes(), str(path)):
            if isinstance(entry, Decision) and entry.transaction_id == wanted:
                data = bytearray(path.read_bytes())
                changed = encode_entry(attrs.evolve(entry, client_mark=ids[5]))
                data[at : at + len(changed)] = changed
                path.write_bytes(data)
                return wanted
    raise AssertionError(f"no decision of transaction {wanted}")


def test_an_archive_is_verified_against_the_replicas_of_a_running_cluster(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append(cluster, COUNT)
    config, archive = ["-c", str(cluster.tools_file)], str(tmp_path / "archive")
    assert call(capsys, "archive", *config, "--to", archive)[0] == 0
    status, text = call(capsys, "verify", "--archive", archive, *config)
    assert status == 0, text
    assert f"{COUNT} of {COUNT} records (100 %) equal to those of a replica" in text
    status, text = call(capsys, "verify", "--archive", archive, "--directory", str(cluster.directory / "storage-0"))
    assert status == 3, text
    assert f"0 of {COUNT} records (0 %) equal to those of a replica\nunproven" in text

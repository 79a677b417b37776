"""`waltz client` and `waltz performance` on a real cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

import waltz_trio as waltz
from tests.processes.cluster import Cluster, running_cluster
from tests.processes.zookeeper import ZooKeeperServer
from waltz_trio.cli.main import main

pytestmark = pytest.mark.processes

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: ZooKeeperServer) -> Iterator[Cluster]:
    with running_cluster(tmp_path, zookeeper.fresh_chroot(), partitions=3, storage_nodes=1) as made:
        yield made


@pytest.fixture
def run(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main([*words, "-c", str(cluster.client_file)])
        output = capsys.readouterr()
        return status, output.out, output.err

    return call


def test_locks_are_validated_and_a_foreign_transaction_fails_it(cluster: Cluster, run: Run) -> None:
    assert run("client", "validate", "-tpc", "15", "-nc", "3", "-i", "1", "-ap", "2") == (0, "", "")
    marks = [run("client", "high-water-mark", "-p", str(partition))[1] for partition in range(3)]
    assert marks[2] == "Partition 2 current high watermark: -1\n"
    shown = run("client", "high-water-mark", "-p", "2", "--json")[1]
    assert json.loads(shown) == {"partition": 2, "high_water_mark": -1}
    assert sum(int(text.rsplit(" ", 1)[1]) + 1 for text in marks) == 45

    assert run("client", "create-producer", "-tpc", "5", "-i", "0", "-ap", "2")[0] == 0
    assert run("client", "create-consumer", "-tpc", "50", "-ap", "2")[0] == 0
    status, _, text = run("client", "create-consumer", "-tpc", "51", "-ap", "2", "-t", "2")
    assert (status, text) == (1, "Error: Transaction validation failed: no transaction for 2 s after 50 of 51\n")

    async def spoil() -> None:
        async with waltz.open_client(cluster.client_file) as client:
            await client.append(2, waltz.Append((5).to_bytes(8)))

    trio.run(spoil)
    status, _, text = run("client", "create-consumer", "-tpc", "51", "-ap", "3")
    assert status == 1
    assert "optimistic locking validation failed: transaction 0 of partition 2 was decided at mark 4" in text


def test_a_second_validation_reads_what_the_first_one_did_not(cluster: Cluster, run: Run) -> None:
    """It read as many transactions as it had appended from the start of the log: those of the first one."""
    validate = ("client", "validate", "-nc", "1", "-i", "0", "-tpc")
    assert run(*validate, "1000")[0] == 0

    async def spoil() -> int:
        async with waltz.open_client(cluster.client_file) as client:
            return (await client.append(0, waltz.Append((5).to_bytes(8)))).transaction_id

    at = trio.run(spoil)
    assert at == 1000
    status, _, text = run(*validate, "5")
    assert status == 1
    assert f"optimistic locking validation failed: transaction {at} of partition 0 was decided at mark 4" in text


def test_consumers_are_timed_with_what_was_appended_for_it(run: Run) -> None:
    """Without -ml the first transactions of the log were read, of whatever size those were."""
    assert run("performance", "test-producers", "-s", "7", "-p", "30", "-t", "1", "-i", "0")[0] == 0
    for words in ((), ("-ml",)):
        status, text, _ = run("performance", "test-consumers", "-s", "100", "-t", "20", *words, "--json")
        assert status == 0
        assert json.loads(text)["megabytes"] == 20 * 100 / (1 << 20)


def test_producers_and_consumers_are_timed(run: Run) -> None:
    status, text, _ = run("performance", "test-producers", "-s", "60", "-p", "20", "-t", "3", "-i", "1")
    assert status == 0
    assert re.match(r"Appended 60 transactions, with total 0\.0034 MB, in \d+\.\d\d secs\nTransaction/sec: ", text)
    assert "Retry/Transaction: 0.0000" in text

    locked = (
        "performance",
        "test-producers",
        "-s",
        "8",
        "-p",
        "10",
        "-t",
        "2",
        "-i",
        "0",
        "-ap",
        "2",
        "-l",
        "1",
        "-ml",
    )
    status, text, _ = run(*locked, "--json")
    found = json.loads(text)
    assert (status, found["transactions"]) == (0, 20)
    assert found["retries_per_transaction"] > 0, "one lock for all, and nobody was refused"

    status, text, _ = run("performance", "test-consumers", "-s", "100", "-t", "150", "-ap", "2", "-ml", "--json")
    found = json.loads(text)
    assert (status, found["transactions"]) == (0, 150)
    assert found["megabytes"] == 150 * 100 / (1 << 20)


def test_numbers_that_make_no_sense_are_refused(run: Run) -> None:
    for words, expected, problem in (
        ("performance test-producers -s 1 -p 1 -t 0 -i 0", 2, "--num-thread must be at least 1, found 0"),
        ("performance test-consumers -s 1 -t 0", 2, "--num-txn must be at least 1, found 0"),
        ("performance test-consumers -s 1 -t 5 -ap 9", 1, "the cluster has 3"),
        ("client validate -tpc 1 -nc 1 -i 0 -ap 4", 1, "the cluster has 3"),
        (
            "performance test-producers -s 20000000 -p 1 -t 1 -i 0",
            1,
            "size is 20000000: payload of 20000000 bytes",
        ),
        ("performance test-consumers -s 20000000 -t 1", 1, "size is 20000000: payload of 20000000 bytes"),
        ("client high-water-mark -p 3", 1, "Failed to get high watermark of partition 3. "),
    ):
        status, _, text = run(*words.split())
        assert status == expected
        assert text.startswith("Error: ")
        assert problem in text

"""Databases, clients and servers killed under a load of submits: each transaction is applied exactly once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

import waltz_trio as waltz
from tests.processes.cluster import Cluster, running_cluster
from tests.processes.zookeeper import ZooKeeperServer
from tests.views.bank import AMOUNT, contents, deposit, open_view
from tests.views.servers import DatabaseServer, MariaServer, PostgresServer
from waltz_trio.node.embedded import EmbeddedCluster, embedded_cluster

_CALLERS = 8
_KILLS = 3
_SERVER = ("server-0",)
_STORAGE = ("storage-0", "storage-1", "storage-2")
Where = tuple[str, Any]


@pytest.fixture(params=["sqlite", "dict", "postgres", "mysql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    if request.param == "sqlite":
        return "sqlite", str(tmp_path / "bank.db")
    if request.param == "dict":
        return "dict", None
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        return "postgres", server.conninfo(server.new_database())
    maria: MariaServer = request.getfixturevalue("maria")
    return "mysql", maria.options(maria.new_database())


@pytest.fixture(scope="module")
def processes(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server and three storage nodes, each a process; the tests that kill them share it, and its log grows."""
    with running_cluster(tmp_path_factory.mktemp("processes"), zookeeper.fresh_chroot(), partitions=2) as cluster:
        yield cluster


async def check(url: str, where: Where, receipts: list[tuple[int, int]]) -> None:
    """The view holds the log, no more and no less; receipts are of different transactions, all of them in it."""
    assert len(receipts) == len(set(receipts))
    async with waltz.open_client(url) as client, client.materialize(open_view(*where), [0, 1]) as bank:
        for partition in (0, 1):
            mark = await client.committed_mark(partition)
            (noted, balance), read_mark = await bank.read(contents, partition, partition=partition, fresh=True)
            assert read_mark == mark
            log: list[tuple[int, Any]] = []
            async with waltz.open_client(url) as reader, reader.feed(partition, after=-1) as feed:
                while len(log) <= mark:
                    txn = await anext(feed)
                    log.append((txn.id, txn.load(AMOUNT)))
            assert noted == log
            assert balance == sum(amount for _, amount in log)
            assert {transaction_id for at, transaction_id in receipts if at == partition} <= set(range(mark + 1))


class Load:
    """Submits under way, in this process."""

    def __init__(self, bank: waltz.Application, count: int) -> None:
        self._bank = bank
        self._count = count
        self._next = 0
        self.receipts: list[tuple[int, int]] = []
        self.more = trio.Event()

    async def call(self) -> None:
        while self._next < self._count:
            number, self._next = self._next, self._next + 1
            receipt = await self._bank.submit(deposit, number, partition=number % 2)
            assert receipt is not None
            self.receipts.append((receipt.partition, receipt.transaction_id))
            self.more.set()

    async def reached(self, count: int) -> None:
        while len(self.receipts) < count:
            self.more = trio.Event()
            await self.more.wait()


@asynccontextmanager
async def load_of(url: str, where: Where, count: int) -> AsyncIterator[Load]:
    """Submits from the beginning to the end of the block; then everything is checked."""
    async with (
        waltz.open_client(url) as client,
        client.materialize(open_view(*where), [0, 1]) as bank,
        trio.open_nursery() as nursery,
    ):
        submits = Load(bank, count)
        for _ in range(_CALLERS):
            nursery.start_soon(submits.call)
        yield submits
    assert len(submits.receipts) == count
    await check(url, where, submits.receipts)


@asynccontextmanager
async def load(where: Where, count: int) -> AsyncIterator[tuple[EmbeddedCluster, Load]]:
    """The same on a cluster of its own."""
    async with embedded_cluster(partitions=2) as cluster, load_of(cluster.url, where, count) as submits:
        yield cluster, submits


async def kill_database(server: DatabaseServer, where: Where, count: int, kills: int) -> None:
    async with load(where, count) as (_, submits):
        for kill in range(1, kills + 1):
            await submits.reached(count * kill // (kills + 1))
            server.kill()
            await trio.to_thread.run_sync(server.start)


async def test_a_killed_postgres_costs_no_transaction_and_doubles_none(postgres: PostgresServer) -> None:
    await kill_database(postgres, ("postgres", postgres.conninfo(postgres.new_database())), 60, 1)


async def test_a_killed_mariadb_costs_no_transaction_and_doubles_none(maria: MariaServer) -> None:
    await kill_database(maria, ("mysql", maria.options(maria.new_database())), 60, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres", "mysql"])
async def test_a_thousand_submits_over_kills_of_the_database(
    kind: str, postgres: PostgresServer, maria: MariaServer
) -> None:
    server: DatabaseServer = postgres if kind == "postgres" else maria
    name = server.new_database()
    where = postgres.conninfo(name) if kind == "postgres" else maria.options(name)
    await kill_database(server, (kind, where), 1000, _KILLS)


@pytest.mark.slow
async def test_a_thousand_submits_over_kills_of_the_server(where: Where) -> None:
    async with load(where, 1000) as (cluster, submits):
        for kill in range(1, _KILLS + 1):
            await submits.reached(1000 * kill // (_KILLS + 1))
            await cluster.kill_server(0)
            await cluster.restart_server(0)


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "killed"), [(_KILLS, _SERVER), (1, (*_SERVER, *_STORAGE))], ids=["server", "all"])
async def test_a_thousand_submits_over_kill_9_of_processes_of_the_cluster(
    processes: Cluster, where: Where, kills: int, killed: tuple[str, ...]
) -> None:
    """The server alone, then everything: what was acknowledged comes back from the disks."""
    starts = {name: processes.children[name].starts for name in killed}
    async with load_of(str(processes.client_file), where, 1000) as submits:
        for kill in range(1, kills + 1):
            await submits.reached(1000 * kill // (kills + 1))
            for name in killed:
                await trio.to_thread.run_sync(processes.children[name].kill)
            for name in killed:
                processes.children[name].start()
    for name, started in starts.items():
        assert processes.children[name].starts == started + kills


@pytest.mark.slow
async def test_a_thousand_submits_over_kills_of_the_client(where: Where) -> None:
    """Whoever is killed does not know what became of his submits; he begins anew, and the view goes on."""
    receipts: list[tuple[int, int]] = []
    async with embedded_cluster(partitions=2) as cluster:

        def life(until: Callable[[int], bool]) -> None:
            arguments = [cluster.url, where[0], json.dumps(where[1]), "1000", str(_CALLERS)]
            with subprocess.Popen(
                [sys.executable, "-m", "tests.views.worker", *arguments], stdout=subprocess.PIPE, text=True
            ) as process:
                assert process.stdout is not None
                for count, line in enumerate(process.stdout, 1):
                    if line == "done\n":
                        break
                    partition, transaction_id = line.split()
                    receipts.append((int(partition), int(transaction_id)))
                    if until(count):
                        process.send_signal(signal.SIGKILL)
                        break
                process.stdout.read()

        for kill in range(1, _KILLS + 1):
            await trio.to_thread.run_sync(life, lambda count, kill=kill: count == 100 * kill)
        await trio.to_thread.run_sync(life, lambda count: False)
        assert len(receipts) >= 1000
        await check(cluster.url, where, receipts)

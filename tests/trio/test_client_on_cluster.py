"""The public client against a whole cluster in this process: real servers, storage nodes, files and kills."""

# ruff: noqa: SIM117 - blocks inside blocks are what is tested
from __future__ import annotations

import time
from pathlib import Path

import trio

import waltz_trio as waltz
from tests.trio.test_application import MOVE, apply_sql, deposit, withdraw_sql
from tests.witness.log import Attempt, Payload, check, read_replica
from waltz_trio.node.embedded import EmbeddedCluster, embedded_cluster

SCHEMA = "CREATE TABLE IF NOT EXISTS balance (account INTEGER PRIMARY KEY, amount INTEGER NOT NULL)"


async def read_log(client: waltz.Client, partition: int) -> list[bytes]:
    """Everything that is committed."""
    mark = await client.committed_mark(partition)
    found: list[bytes] = []
    if mark < 0:
        return found
    async with client.feed(partition, after=-1) as feed:
        async for batch in feed.batches(1000):
            found += [txn.load() for txn in batch]
            if batch.last_id >= mark:
                return found
    raise AssertionError


async def kills(cluster: EmbeddedCluster) -> None:
    """One server and one storage node after the other dies and comes back."""
    for round_ in range(2):
        await trio.sleep(0.3)
        await cluster.kill_server(round_ % 2)
        await trio.sleep(0.3)
        await cluster.restart_server(round_ % 2)
        await cluster.kill_storage(round_)
        await trio.sleep(0.3)
        await cluster.restart_storage(round_)


async def test_no_outcome_is_wrong_while_processes_die(tmp_path: Path) -> None:
    """What two clients were told, what the feed says and what the disks hold is one serial history."""
    attempts: dict[str, Attempt] = {}
    done = trio.Event()

    async def load(client: waltz.Client, who: str, partition: int) -> None:
        flying: list[tuple[str, waltz.Pending]] = []
        while not done.is_set():
            name = f"{who}/{partition}/{len(flying)}"
            payload = Payload(name, -1)
            attempts[name] = Attempt(partition, payload, time.monotonic_ns())
            flying.append((name, await client.send(partition, waltz.Append(payload.dumps()))))
            if len(flying) % 50 == 0:
                await trio.sleep(0.01)
        for name, pending in flying:
            attempt = attempts[name]
            try:
                attempt.transaction_id = await pending.outcome()
            except waltz.NotCommittedError as error:
                attempt.why = error.reason
            # When it returned is not known: outcomes are taken later than they are told.
            attempt.returned = time.monotonic_ns()

    with trio.fail_after(120):
        async with embedded_cluster(tmp_path / "cluster", partitions=2, servers=2) as cluster:
            async with waltz.open_client(cluster.url_of(0)) as one, waltz.open_client(cluster.url_of(1)) as two:
                async with trio.open_nursery() as nursery:
                    for partition in range(2):
                        nursery.start_soon(load, one, "one", partition)
                        nursery.start_soon(load, two, "two", partition)
                    await kills(cluster)
                    done.set()
                logs = {partition: await read_log(two, partition) for partition in range(2)}
            disks = [cluster.directory / f"storage-{index}" for index in range(cluster.storage_count)]
            for partition, log in logs.items():
                while any(len(read_replica(disk, partition)) < len(log) for disk in disks):  # noqa: ASYNC110
                    await trio.sleep(0.1)  # the last to come back is made level
    replicas = {partition: [read_replica(disk, partition) for disk in disks] for partition in logs}
    marks = {partition: len(log) - 1 for partition, log in logs.items()}
    fed = {p: [(at, Payload.loads(data).name) for at, data in enumerate(log)] for p, log in logs.items()}
    verdict = check(replicas, marks, attempts, {"two": fed})
    assert verdict.committed > 200
    assert verdict.unknown_lost == verdict.unknown_in_log == 0
    for partition, entries in fed.items():
        for who in ("one", "two"):
            sent = [int(name.split("/")[2]) for _, name in entries if name.startswith(f"{who}/{partition}/")]
            assert sent == sorted(sent), "appends of one client were reordered"


async def test_money_is_neither_made_nor_lost_while_servers_die(tmp_path: Path) -> None:
    """Two clients share one database file and withdraw from one account; a server dies meanwhile."""
    with trio.fail_after(120):
        async with embedded_cluster(partitions=1, servers=2) as cluster:
            async with waltz.open_client(cluster.url_of(0)) as one, waltz.open_client(cluster.url_of(1)) as two:
                views = [waltz.SqliteView(tmp_path / "bank.db", apply_sql, schema=SCHEMA) for _ in range(2)]
                async with one.materialize(views[0]) as here, two.materialize(views[1]) as there:
                    await here.submit(deposit, 7, 100, partition=0, until="applied")
                    await there.caught_up()
                    receipts = []

                    async def withdraw(bank: waltz.Application) -> None:
                        receipts.append(await bank.submit(withdraw_sql, 7, 9, partition=0))

                    async with trio.open_nursery() as nursery:
                        for _ in range(8):
                            nursery.start_soon(withdraw, here)
                            nursery.start_soon(withdraw, there)
                        await trio.sleep(0.02)
                        await cluster.kill_server(0)
                        await cluster.restart_server(0)
                    assert sum(receipt is not None for receipt in receipts) == 11
                    log = [MOVE.loads(data) for data in await read_log_of(cluster)]
                    assert [sum(m.amount for m in log), len(log)] == [1, 12]
                    await there.caught_up()
                    rows, _ = await there.read(lambda db: db.execute("SELECT * FROM balance").fetchall(), partition=0)
                    assert rows == [(7, 1)]


async def read_log_of(cluster: EmbeddedCluster) -> list[bytes]:
    async with waltz.open_client(cluster.url_of(1)) as reader:
        return await read_log(reader, 0)

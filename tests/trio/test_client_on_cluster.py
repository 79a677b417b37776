"""The public client against a whole cluster in this process: real servers, storage nodes, files and kills."""

# ruff: noqa: SIM117 - blocks inside blocks are what is tested
from __future__ import annotations

from pathlib import Path

import trio

import waltz_trio as waltz
from tests.trio.test_application import MOVE, apply_sql, deposit, withdraw_sql
from waltz_trio.embedded import EmbeddedCluster, embedded_cluster

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


async def test_no_outcome_is_wrong_while_processes_die() -> None:
    """Every append that was told as committed is in the log once, every one told as lost is not."""
    outcomes: dict[bytes, int | None] = {}
    unknown: set[bytes] = set()
    done = trio.Event()

    async def load(client: waltz.Client, partition: int) -> None:
        pendings = []
        number = 0
        while not done.is_set():
            payload = b"%d/%d" % (partition, number)
            pendings.append((payload, await client.send(partition, waltz.Append(payload))))
            number += 1
            if number % 50 == 0:
                await trio.sleep(0.01)
        for payload, pending in pendings:
            try:
                outcomes[payload] = await pending.outcome()
            except waltz.NotCommittedError:
                outcomes[payload] = None
            except waltz.ClientClosedError:
                unknown.add(payload)

    with trio.fail_after(120):
        async with embedded_cluster(partitions=2, servers=2) as cluster:
            async with waltz.open_client(cluster.url) as client:
                async with trio.open_nursery() as nursery:
                    for partition in range(2):
                        nursery.start_soon(load, client, partition)
                    await kills(cluster)
                    done.set()
                logs = {partition: await read_log(client, partition) for partition in range(2)}
    assert not unknown
    committed = {payload: (p, at) for p, log in logs.items() for at, payload in enumerate(log)}
    assert len(committed) == sum(map(len, logs.values())), "committed twice"
    for payload, transaction_id in outcomes.items():
        partition = int(payload.split(b"/")[0])
        assert committed.get(payload) == (None if transaction_id is None else (partition, transaction_id))
    assert sum(found is not None for found in outcomes.values()) > 200
    for log in logs.values():
        numbers = [int(payload.split(b"/")[1]) for payload in log]
        assert numbers == sorted(numbers), "appends of one client were reordered"


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

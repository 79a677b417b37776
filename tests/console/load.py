"""Transfers between accounts, some of which conflict: `python -m tests.console.load CLIENT.yml`, until it is ended."""

from __future__ import annotations

import random
import signal
import sys

import trio

import waltz_trio as waltz

_MOVE = waltz.Json(dict)


async def _move(client: waltz.Client, partition: int, chance: random.Random) -> None:
    while True:
        account = chance.choice((7, chance.randrange(1000)))  # half of them want the same account
        move = {"from": account, "to": chance.randrange(1000), "amount": f"{chance.randrange(1, 50_000) / 100:.2f}"}
        mark = await client.committed_mark(partition)
        await trio.sleep(0.01 * chance.random())
        try:
            await client.append(
                partition, waltz.Append(move, _MOVE, write=[("account", account)], header=1), based_on=mark
            )
        except (waltz.LockConflictError, waltz.NotCommittedError):
            continue


async def _main(path: str) -> None:
    chance = random.Random(16)
    async with waltz.open_client(path) as client, trio.open_nursery() as nursery:
        for partition in range(client.num_partitions):
            for _ in range(2):
                nursery.start_soon(_move, client, partition, chance)
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                nursery.cancel_scope.cancel()
                return


trio.run(_main, sys.argv[1])

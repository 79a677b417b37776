"""What a submit costs: callers in one process, one client, a small server behind a real socket with TLS.

    PYTHONPATH=. python -m benchmarks.submit [--seconds N] [--rounds N] [--callers N ...]

The server is a model that commits at once, in the same process, so that what is left is the client, the view and the
machines. Each caller submits for an account of its own and waits. To compare two versions, run this file with both on
`PYTHONPATH`, by turns: on a shared machine the CPU time says
more than the rate.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import trio

import waltz_trio as waltz
from tests.trio.small_cluster import small_cluster

SCHEMA = "CREATE TABLE IF NOT EXISTS seen (account INTEGER PRIMARY KEY, count INTEGER NOT NULL)"


def apply(txn: waltz.Transaction, state: dict[int, int]) -> None:
    """Count."""
    state[txn.header] = state.get(txn.header, 0) + 1


def apply_sql(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
    """Count."""
    db.execute("INSERT INTO seen VALUES (?, 1) ON CONFLICT (account) DO UPDATE SET count = count + 1", (txn.header,))


def decide(state: Any, account: int) -> waltz.Append:
    """Look at the state, and append."""
    if isinstance(state, sqlite3.Cursor):
        state.execute("SELECT count FROM seen WHERE account = ?", (account,)).fetchone()
    return waltz.Append(b"x" * 100, header=account, write=[("account", account)])


async def measure(view: Any, callers: int, seconds: float) -> tuple[float, float]:
    """Submits a second, and microseconds of CPU for each."""
    done, cpu = 0, 0.0
    async with (
        small_cluster() as cluster,
        waltz.open_client(cluster.url) as client,
        client.materialize(view, [0], max_in_flight=callers) as app,
    ):
        await app.submit(decide, 0, partition=0, until="applied")

        async def call(account: int) -> None:
            nonlocal done
            while True:
                await app.submit(decide, account, partition=0)
                done += 1

        async with trio.open_nursery() as nursery:
            for account in range(callers):
                nursery.start_soon(call, account)
            cpu -= time.process_time()
            await trio.sleep(seconds)
            cpu += time.process_time()
            nursery.cancel_scope.cancel()
    return done / seconds, cpu * 1e6 / done


async def measure_many(view: Any, count: int, seconds: float) -> tuple[float, float]:
    """The same through `submit_many`."""
    done, cpu = 0, 0.0
    async with (
        small_cluster() as cluster,
        waltz.open_client(cluster.url) as client,
        client.materialize(view, [0], max_in_flight=count) as app,
    ):
        began = trio.current_time()
        cpu -= time.process_time()
        while trio.current_time() < began + seconds:
            await app.submit_many(decide, [(each,) for each in range(count)], partition=0)
            done += count
        cpu += time.process_time()
        seconds = trio.current_time() - began
    return done / seconds, cpu * 1e6 / done


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.submit", description=__doc__)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 8, 64, 1000])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        number = 0

        def views() -> list[tuple[str, Any]]:
            nonlocal number
            number += 1
            path = Path(folder) / f"{number}.db"
            return [("dict", waltz.DictView(apply)), ("sqlite", waltz.SqliteView(path, apply_sql, schema=SCHEMA))]

        def one(how: Any, named: tuple[str, Any], count: int) -> tuple[str, float, float]:
            return named[0], *trio.run(how, named[1], count, options.seconds)

        def show(what: str, rounds: list[tuple[str, float, float]]) -> None:
            rate, cpu = median(each[1] for each in rounds), median(each[2] for each in rounds)
            print(f"{rounds[0][0]:>7} {what:>20}: {rate:9,.0f} submits/s, {cpu:6.0f} µs of CPU each")

        for callers in options.callers:
            for at in range(2):
                show(f"{callers} callers", [one(measure, views()[at], callers) for _ in range(options.rounds)])
        if hasattr(waltz.Application, "submit_many"):
            for at in range(2):
                show("submit_many of 1000", [one(measure_many, views()[at], 1000) for _ in range(options.rounds)])


if __name__ == "__main__":
    main()

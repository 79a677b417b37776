"""What a submit costs: callers in one process, one client, a small server behind a real socket with TLS.

    PYTHONPATH=. python -m benchmarks.submit [--seconds N] [--rounds N] [--callers N ...] [--until applied]

The server is a model that commits at once, in the same process, so that what is left is the client, the view and the
machines. Each caller submits for an account of its own and waits. With `--until committed` its view has mostly not
applied its last transaction when it decides the next, so the log refuses it once: attempts say how often. To compare
two versions, run this file with both on `PYTHONPATH`, by turns: on a shared machine the CPU time says more than the
rate.
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


async def measure(view: Any, callers: int, seconds: float, until: Any) -> tuple[float, float, float]:
    """Submits a second, microseconds of CPU for each, and attempts for each."""
    done, attempts, cpu = 0, 0, 0.0
    async with (
        small_cluster() as cluster,
        waltz.open_client(cluster.url) as client,
        client.materialize(view, [0], max_in_flight=callers) as app,
    ):
        await app.submit(decide, 0, partition=0, until="applied")

        async def call(account: int) -> None:
            nonlocal done, attempts
            while True:
                receipt = await app.submit(decide, account, partition=0, until=until)
                assert receipt is not None
                done, attempts = done + 1, attempts + receipt.attempts

        async with trio.open_nursery() as nursery:
            for account in range(callers):
                nursery.start_soon(call, account)
            cpu -= time.process_time()
            await trio.sleep(seconds)
            cpu += time.process_time()
            nursery.cancel_scope.cancel()
    return done / seconds, cpu * 1e6 / max(done, 1), attempts / max(done, 1)


async def measure_many(view: Any, count: int, seconds: float, until: Any) -> tuple[float, float, float]:
    """The same through `submit_many`."""
    done, attempts, cpu = 0, 0, 0.0
    async with (
        small_cluster() as cluster,
        waltz.open_client(cluster.url) as client,
        client.materialize(view, [0], max_in_flight=count) as app,
    ):
        began = trio.current_time()
        cpu -= time.process_time()
        while trio.current_time() < began + seconds:
            receipts = await app.submit_many(decide, [(each,) for each in range(count)], partition=0, until=until)
            done, attempts = done + count, attempts + sum(getattr(each, "attempts", 0) for each in receipts)
        cpu += time.process_time()
        seconds = trio.current_time() - began
    return done / seconds, cpu * 1e6 / done, attempts / done


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.submit", description=__doc__)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 8, 64, 1000])
    parser.add_argument("--until", choices=["committed", "applied"], default="committed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        number = 0

        def views() -> list[tuple[str, Any]]:
            nonlocal number
            number += 1
            path = Path(folder) / f"{number}.db"
            return [("dict", waltz.DictView(apply)), ("sqlite", waltz.SqliteView(path, apply_sql, schema=SCHEMA))]

        def one(how: Any, named: tuple[str, Any], count: int) -> tuple[str, float, float, float]:
            return named[0], *trio.run(how, named[1], count, options.seconds, options.until)

        def show(what: str, rounds: list[tuple[str, float, float, float]]) -> None:
            rate, cpu, tries = (median(values) for values in list(zip(*rounds, strict=True))[1:])
            print(f"{rounds[0][0]:>7} {what:>20}: {rate:9,.0f}/s, {cpu:6.0f} µs of CPU and {tries:.2f} attempts each")

        for callers in options.callers:
            for at in range(2):
                show(f"{callers} callers", [one(measure, views()[at], callers) for _ in range(options.rounds)])
        if hasattr(waltz.Application, "submit_many"):
            for at in range(2):
                show("submit_many of 1000", [one(measure_many, views()[at], 1000) for _ in range(options.rounds)])


if __name__ == "__main__":
    main()

"""What applications feel: the cost of a call through each front, and how fast each view catches up.

python -m benchmarks.client [--count 100000] [--calls 2000] [--views sqlite,dict,postgres,mysql] [--json PATH]

One cluster in a process of its own, on this machine; databases are real servers, PostgreSQL on a socket, MariaDB on
loopback. `apply` inserts one row of three columns for each transaction of 100 bytes. A call is `read` on a view in
memory,
which asks no server, so that it shows what the front costs; `append` waits for a commit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

import waltz_asyncio
import waltz_sync
import waltz_trio
from tests.views.servers import MariaServer, PostgresServer

VIEWS = ("sqlite", "dict", "postgres", "mysql")
_SIZE = 100
_APPENDS_AT_ONCE = 2000
_SCHEMA = "CREATE TABLE IF NOT EXISTS noted (partition_id INTEGER NOT NULL, id INTEGER NOT NULL, data {bytes})"


@contextmanager
def running_dev(directory: Path) -> Iterator[str]:
    """A cluster in a process of its own; gives its address."""
    command = [sys.executable, "-m", "waltz_trio.cli.main", "dev", "--directory", str(directory), "--partitions", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def nothing(txn: waltz_trio.Transaction, state: Any) -> None:
    """An `apply` that costs nothing."""


def look(state: Any) -> None:
    """A `read` that costs nothing."""


async def trio_calls(url: str, count: int) -> dict[str, float]:
    """Microseconds a call."""
    async with (
        waltz_trio.open_client(url) as client,
        client.materialize(waltz_trio.DictView(nothing), [1]) as app,
    ):
        begin = time.perf_counter()
        for _ in range(count):
            await app.read(look, partition=1)
        read = time.perf_counter()
        for _ in range(count // 10):
            await client.append(1, waltz_trio.Append(b"x"))
        return micros(begin, read, time.perf_counter(), count)


async def asyncio_calls(url: str, count: int) -> dict[str, float]:
    """Microseconds a call."""
    async with (
        waltz_asyncio.open_client(url) as client,
        client.materialize(waltz_asyncio.DictView(nothing), [1]) as app,
    ):
        begin = time.perf_counter()
        for _ in range(count):
            await app.read(look, partition=1)
        read = time.perf_counter()
        for _ in range(count // 10):
            await client.append(1, waltz_asyncio.Append(b"x"))
        return micros(begin, read, time.perf_counter(), count)


def sync_calls(url: str, count: int) -> dict[str, float]:
    """Microseconds a call."""
    with waltz_sync.open_client(url) as client, client.materialize(waltz_sync.DictView(nothing), [1]) as app:
        begin = time.perf_counter()
        for _ in range(count):
            app.read(look, partition=1)
        read = time.perf_counter()
        for _ in range(count // 10):
            client.append(1, waltz_sync.Append(b"x"))
        return micros(begin, read, time.perf_counter(), count)


def micros(begin: float, read: float, end: float, count: int) -> dict[str, float]:
    """The figures of one front."""
    return {
        "read_us": round((read - begin) / count * 1e6, 1),
        "append_us": round((end - read) / (count // 10) * 1e6, 1),
    }


async def fill(url: str, count: int) -> None:
    """Append what the views will be behind by."""
    payload = bytes(_SIZE)
    async with waltz_trio.open_client(url) as client:
        for first in range(0, count, _APPENDS_AT_ONCE):
            appends = [waltz_trio.Append(payload) for _ in range(min(_APPENDS_AT_ONCE, count - first))]
            await client.append_many(0, appends)


async def catch_up(url: str, view: waltz_trio.View) -> float:
    """Seconds until a view has applied the log."""
    async with waltz_trio.open_client(url) as client:
        begin = time.perf_counter()
        async with client.materialize(view, [0]):
            return time.perf_counter() - begin


@contextmanager
def opened(kind: str, directory: Path) -> Iterator[waltz_trio.View]:
    """An empty view of a kind."""
    if kind == "dict":
        yield waltz_trio.DictView(lambda txn, state: state.__setitem__(txn.id, txn.load()))
    elif kind == "sqlite":
        schema = _SCHEMA.format(bytes="BLOB")
        yield waltz_trio.SqliteView(directory / "view.db", noting("?"), schema=schema, name="noted")
    elif kind == "postgres":
        postgres = PostgresServer(durable=True)
        try:
            place = postgres.conninfo(postgres.new_database())
            yield waltz_trio.PostgresView(place, noting("%s"), schema=_SCHEMA.format(bytes="BYTEA"), name="noted")
        finally:
            postgres.close()
    else:
        maria = MariaServer(durable=True)
        try:
            where = maria.options(maria.new_database())
            yield waltz_trio.MySqlView(where, noting("%s"), schema=_SCHEMA.format(bytes="BLOB"), name="noted")
        finally:
            maria.close()


def noting(mark: str) -> Callable[[waltz_trio.Transaction, Any], None]:
    """An `apply` of one INSERT."""
    statement = f"INSERT INTO noted VALUES ({mark}, {mark}, {mark})"

    def apply(txn: waltz_trio.Transaction, db: Any) -> None:
        db.execute(statement, (txn.partition, txn.id, txn.load()))

    return apply


def measure(count: int, calls: int, kinds: list[str]) -> dict[str, Any]:
    """All figures."""
    figures: dict[str, Any] = {"count": count, "calls": calls, "fronts": {}, "applied_per_second": {}}
    with tempfile.TemporaryDirectory() as folder, running_dev(Path(folder) / "cluster") as url:
        figures["fronts"] = {
            "waltz_trio": trio.run(trio_calls, url, calls),
            "waltz_asyncio": asyncio.run(asyncio_calls(url, calls)),
            "waltz_sync": sync_calls(url, calls),
        }
        trio.run(fill, url, count)
        for kind in kinds:
            with opened(kind, Path(folder)) as view:
                figures["applied_per_second"][kind] = round(count / trio.run(catch_up, url, view))
    return figures


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="transactions that each view is behind")
    parser.add_argument("--calls", type=int, default=2000, help="calls through each front")
    parser.add_argument("--views", default=",".join(VIEWS), help="which views, separated by commas")
    parser.add_argument("--json", type=Path, help="write the figures as one JSON object")
    options = parser.parse_args()
    kinds = options.views.split(",")
    unknown = [kind for kind in kinds if kind not in VIEWS]
    if unknown or options.count < 1 or options.calls < 10:
        parser.error(f"views are of {', '.join(VIEWS)}; at least 1 transaction and 10 calls")
    figures = measure(options.count, options.calls, kinds)
    text = json.dumps(figures, indent=2)
    if options.json is not None:
        options.json.write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

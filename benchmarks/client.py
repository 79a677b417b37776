"""What applications feel: the cost of a call through each front, and how fast each view catches up.

python -m benchmarks.client [--count N] [--calls N] [--seconds N] [--views sqlite,dict,postgres,mysql] [--json PATH]

One cluster in a process of its own, on this machine; databases are real servers, PostgreSQL on a socket, MariaDB on
loopback. `apply` inserts one row of three columns for each transaction of 100 bytes, `apply_many` the rows of a batch:
by `executemany`, in PostgreSQL by COPY, in memory by `dict.update`. A call is `read` on a view in memory, which asks no
server, so that it shows what the front costs; `append` waits for a commit. `submit` is called by some callers at once
on a view in memory: each for a lock of its own again and again, then all for 100 hot locks, and once more with
`expects`; `cpu_us` is the processor time of the client alone. The event store is asked on each view by eight callers,
first about tags of their own, then all about one, where most lose.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio

import waltz_asyncio
import waltz_dcb
import waltz_sync
import waltz_trio
from benchmarks.command import conclude, parser_of
from tests.views.servers import MariaServer, PostgresServer

VIEWS = ("sqlite", "dict", "postgres", "mysql")
_SIZE = 100
_APPENDS_AT_ONCE = 2000
_DCB_CALLERS = 8
_SUBMITTERS = (8, 1000)
_HOT_LOCKS = 100
_HOT = ("hot_locks", "hot_expected")
_SCHEMA = "CREATE TABLE IF NOT EXISTS noted (partition_id INTEGER NOT NULL, id INTEGER NOT NULL, data {bytes})"


@contextmanager
def running_dev(directory: Path) -> Iterator[str]:
    """A cluster in a process of its own; gives its address."""
    command = [
        sys.executable,
        "-m",
        "waltz_trio.cli.main",
        "dev",
        "--directory",
        str(directory),
        "--partitions",
        "3",
        "--port",
        "0",
    ]
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


async def dcb_appends(url: str, count: int, prefix: str, view: waltz_trio.View) -> dict[str, float]:
    """Appends of an event store a second, each on the condition that its own tag is new; and with one tag for all."""
    figures = {}
    async with waltz_trio.open_client(url) as client, waltz_dcb.open_store(client, 1, view) as store:
        for kind in ("of_their_own", "of_all"):
            begin, share = time.perf_counter(), count // _DCB_CALLERS

            async def append(caller: int, kind: str = kind, share: int = share) -> None:
                for number in range(share):
                    tag = f"{prefix}{kind}:{caller}/{number}" if kind == "of_their_own" else prefix + kind
                    query = waltz_dcb.Query(waltz_dcb.QueryItem(["Noted"], [tag]))
                    seen = -1 if kind == "of_their_own" else (await store.read(query, limit=0)).head
                    condition = waltz_dcb.AppendCondition(query, seen)
                    with contextlib.suppress(waltz_dcb.ConditionFailedError):
                        await store.append(waltz_dcb.Event("Noted", bytes(_SIZE), [tag]), condition)

            async with trio.open_nursery() as nursery:
                for caller in range(_DCB_CALLERS):
                    nursery.start_soon(append, caller)
            figures[f"tags_{kind}"] = round(share * _DCB_CALLERS / (time.perf_counter() - begin), 1)
    return figures


def counted(txn: waltz_trio.Transaction, state: Any) -> None:
    """Count the transactions of each account."""
    state[txn.header] = state.get(txn.header, 0) + 1


def count_up(state: Any, account: int) -> waltz_trio.Append:
    """A decision that depends on its account."""
    return waltz_trio.Append(bytes(_SIZE), header=account, write=[("account", account)], result=state.get(account, 0))


async def submits(url: str, callers: int, locks: int, seconds: float, *, expecting: bool = False) -> dict[str, float]:
    """What `callers` at once get of `submit`; caller n wants lock n modulo `locks`, and says so beforehand or not."""
    latencies: list[float] = []
    conflicts = 0
    async with (
        waltz_trio.open_client(url) as client,
        client.materialize(waltz_trio.DictView(counted), [2], max_in_flight=callers) as app,
    ):
        begin, cpu = time.perf_counter(), time.process_time()

        async def call(account: int) -> None:
            nonlocal conflicts
            while (called := time.perf_counter()) < begin + seconds:
                expects = [("account", account)] if expecting else ()
                receipt = await app.submit(count_up, account, partition=2, expects=expects)
                assert receipt is not None
                latencies.append(time.perf_counter() - called)
                conflicts += receipt.conflicts

        async with trio.open_nursery() as nursery:
            for caller in range(callers):
                nursery.start_soon(call, caller % locks)
        elapsed, cpu = time.perf_counter() - begin, time.process_time() - cpu
    latencies.sort()
    return {
        "per_second": round(len(latencies) / elapsed),
        "conflicts_each": round(conflicts / len(latencies), 2),
        "p50_ms": round(latencies[len(latencies) // 2] * 1e3, 2),
        "p99_ms": round(latencies[len(latencies) * 99 // 100] * 1e3, 2),
        "cpu_us": round(cpu / len(latencies) * 1e6, 1),
    }


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
def place(kind: str, directory: Path) -> Iterator[Any]:
    """Where a view of a kind keeps its state: an empty database of a server that runs for it."""
    if kind == "dict":
        yield None
    elif kind == "sqlite":
        with tempfile.TemporaryDirectory(dir=directory) as folder:
            yield Path(folder) / "view.db"
    elif kind == "postgres":
        postgres = PostgresServer(durable=True)
        try:
            yield postgres.conninfo(postgres.new_database())
        finally:
            postgres.close()
    else:
        maria = MariaServer(durable=True)
        try:
            yield maria.options(maria.new_database())
        finally:
            maria.close()


@contextmanager
def opened(kind: str, directory: Path, together: bool) -> Iterator[waltz_trio.View]:
    """An empty view of a kind, with an `apply_many` or without."""
    with place(kind, directory) as where:
        options: dict[str, Any] = {"apply_many": noting_many(kind) if together else None}
        if kind == "dict":
            yield waltz_trio.DictView(lambda txn, state: state.__setitem__(txn.id, txn.load()), **options)
            return
        options |= {"schema": _SCHEMA.format(bytes="BYTEA" if kind == "postgres" else "BLOB"), "name": "noted"}
        view: dict[str, Callable[..., waltz_trio.View]] = {
            "sqlite": waltz_trio.SqliteView,
            "postgres": waltz_trio.PostgresView,
            "mysql": waltz_trio.MySqlView,
        }
        yield view[kind](where, noting("?" if kind == "sqlite" else "%s"), **options)


@contextmanager
def opened_dcb(kind: str, directory: Path) -> Iterator[waltz_trio.View]:
    """An empty view of the event store."""
    with place(kind, directory) as where:
        if kind == "dict":
            yield waltz_dcb.memory_view()
        else:
            views: dict[str, Callable[[Any], waltz_trio.View]] = {
                "sqlite": waltz_dcb.sqlite_view,
                "postgres": waltz_dcb.postgres_view,
                "mysql": waltz_dcb.mysql_view,
            }
            yield views[kind](where)


def noting(mark: str) -> Callable[[waltz_trio.Transaction, Any], None]:
    """An `apply` of one INSERT."""
    statement = f"INSERT INTO noted VALUES ({mark}, {mark}, {mark})"

    def apply(txn: waltz_trio.Transaction, db: Any) -> None:
        db.execute(statement, (txn.partition, txn.id, txn.load()))

    return apply


def noting_many(kind: str) -> Callable[[Sequence[waltz_trio.Transaction], Any], None]:
    """The same of many transactions."""
    mark = "?" if kind == "sqlite" else "%s"
    statement = f"INSERT INTO noted VALUES ({mark}, {mark}, {mark})"

    def rows(txns: Sequence[waltz_trio.Transaction], db: Any) -> None:
        db.executemany(statement, [(txn.partition, txn.id, txn.load()) for txn in txns])

    def copied(txns: Sequence[waltz_trio.Transaction], db: Any) -> None:
        with db.copy("COPY noted FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["int4", "int4", "bytea"])
            for txn in txns:
                copy.write_row((txn.partition, txn.id, txn.load()))

    def updated(txns: Sequence[waltz_trio.Transaction], state: Any) -> None:
        state.update((txn.id, txn.load()) for txn in txns)

    return {"dict": updated, "postgres": copied}.get(kind, rows)


def measure(count: int, calls: int, seconds: float, kinds: list[str]) -> dict[str, Any]:
    """All figures."""
    figures: dict[str, Any] = {
        "count": count,
        "calls": calls,
        "fronts": {},
        "submit": {name: {} for name in ("locks_of_their_own", *_HOT)},
        "dcb_appends_per_second": {},
        "applied_per_second": {},
    }
    with tempfile.TemporaryDirectory() as folder, running_dev(Path(folder) / "cluster") as url:
        figures["fronts"] = {
            "waltz_trio": trio.run(trio_calls, url, calls),
            "waltz_asyncio": asyncio.run(asyncio_calls(url, calls)),
            "waltz_sync": sync_calls(url, calls),
        }
        for callers in _SUBMITTERS:
            for name, locks in (("locks_of_their_own", callers), *((hot, _HOT_LOCKS) for hot in _HOT)):
                load = partial(submits, expecting=name == _HOT[1])
                figures["submit"][name][f"{callers}_callers"] = trio.run(load, url, callers, locks, seconds)
        for kind in kinds:
            name = "memory" if kind == "dict" else kind
            with opened_dcb(kind, Path(folder)) as view:
                figures["dcb_appends_per_second"][name] = trio.run(dcb_appends, url, calls, f"{name}:", view)
        trio.run(fill, url, count)
        for kind in kinds:
            for name in ("apply", "apply_many"):
                with opened(kind, Path(folder), name == "apply_many") as view:
                    rate = round(count / trio.run(catch_up, url, view))
                figures["applied_per_second"].setdefault(kind, {})[name] = rate
    return figures


def main() -> int:
    """The command line."""
    parser = parser_of("client", __doc__, on_disk=False)
    parser.add_argument("--count", type=int, default=100_000, help="transactions that each view is behind")
    parser.add_argument("--calls", type=int, default=2000, help="calls through each front")
    parser.add_argument("--seconds", type=float, default=5, help="how long each load of submits takes")
    parser.add_argument("--views", default=",".join(VIEWS), help="which views, separated by commas")
    options = parser.parse_args()
    kinds = options.views.split(",")
    unknown = [kind for kind in kinds if kind not in VIEWS]
    if unknown or options.count < 1 or options.calls < 10 or options.seconds <= 0:
        parser.error(f"views are of {', '.join(VIEWS)}; at least 1 transaction, 10 calls, and some seconds")
    return conclude(measure(options.count, options.calls, options.seconds, kinds), options.json)


if __name__ == "__main__":
    sys.exit(main())

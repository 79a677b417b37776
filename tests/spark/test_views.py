"""Views made of history: handed over to a live client at an exact mark, and as frames."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pytest
import trio

import waltz_trio as waltz
from tests.spark.logs import make_log, make_records, write_control, write_segments
from waltz_core.base.log import MARKER_HEADER
from waltz_spark.archive.archive import plan_archive, run_archive
from waltz_spark.base.errors import OptionError
from waltz_spark.base.runners import Here
from waltz_spark.read import views
from waltz_spark.read.history import follow
from waltz_spark.read.options import parse_options
from waltz_spark.read.reading import drop_connections
from waltz_spark.read.views import balances, bootstrap, changes
from waltz_trio.demo import bank
from waltz_trio.node.embedded import EmbeddedCluster, embedded_cluster

T = TypeVar("T")
SEEN = "CREATE TABLE IF NOT EXISTS SEEN (PARTITION_ID INTEGER, ID INTEGER, PRIMARY KEY (PARTITION_ID, ID))"


async def outside(work: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(work)


def apply_seen(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
    """Fails if a transaction is applied twice."""
    bank.apply(txn, db)
    db.execute("INSERT INTO SEEN VALUES (?, ?)", (txn.partition, txn.id))


def view_of(path: Path) -> waltz.SqliteView:
    return waltz.SqliteView(path, apply_seen, schema=f"{bank.SCHEMA};{SEEN}", table=bank.MARK_TABLE)


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def entry(action: str, account: int, amount: int = 0, to: int = 0) -> bytes:
    return bank.ENTRIES.dumps(bank.Entry(bank.Order(action, account, amount, to)))


async def deposits(cluster: EmbeddedCluster, first: int, last: int) -> None:
    """To two of the partitions; the third one stays empty."""
    async with waltz.open_client(cluster.url) as client:
        for at in range(first, last):
            header = MARKER_HEADER if at % 10 == 9 else 0
            await client.send(at % 2, waltz.Append(entry("deposit", at % 7, at), header=header))
        await client.flush()


async def test_a_client_goes_on_exactly_where_history_was_loaded_up_to(tmp_path: Path) -> None:
    async with embedded_cluster(tmp_path / "c", partitions=3, storage_nodes=1) as cluster:
        await deposits(cluster, 0, 120)
        archive = str(tmp_path / "archive")
        old = parse_options({"directory": str(tmp_path / "c" / "storage-0"), "url": cluster.url})
        await outside(lambda: run_archive(plan_archive(old, archive), Here()))
        await deposits(cluster, 120, 200)
        path = tmp_path / "view.db"
        options = parse_options({"archive": archive, "url": cluster.url})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deposits, cluster, 200, 320)  # clients do not wait for us
            made = await outside(lambda: bootstrap(options, view_of(path)))
        assert made.marks[2] == -1
        assert made.count == sum(made.marks.values()) + 3 >= 200
        marks = rows(path, f"SELECT * FROM {bank.MARK_TABLE} ORDER BY 1")
        assert marks == sorted(made.marks.items())
        async with (
            waltz.open_client(cluster.url) as client,
            client.materialize(view_of(path), batch_limit=7) as application,
        ):
            assert application.mark(0) >= made.marks[0]
            await client.append(2, waltz.Append(entry("deposit", 6, 1000)))
            await application.caught_up()
        # A view that followed the log from its start holds the same.
        slow = tmp_path / "slow.db"
        async with waltz.open_client(cluster.url) as client, client.materialize(view_of(slow)) as application:
            await application.caught_up()
        for query in ("SELECT * FROM ACCOUNTS ORDER BY 1", "SELECT * FROM SEEN ORDER BY 1, 2"):
            assert rows(path, query) == rows(slow, query)
        assert len(rows(path, "SELECT * FROM SEEN")) == 320 - 32 + 1
        await outside(drop_connections)


class FreedUpTo:
    """A client of a log that begins at an id and ends behind it with one transaction."""

    def __init__(self, start: int) -> None:
        self._start = start

    @asynccontextmanager
    async def feed(self, partition: int, *, after: int, prefetch: int) -> AsyncIterator[Any]:
        async with aclosing(self._transactions(partition, after)) as transactions:
            yield transactions

    async def _transactions(self, partition: int, after: int) -> AsyncGenerator[waltz.Transaction, None]:
        if after + 1 < self._start:
            raise waltz.BeforeStartError(partition, f"the log begins at {self._start}")
        yield waltz.Transaction(partition, self._start, 0, make_records(partition, [b"x"])[0].req_id, b"live")


@pytest.mark.parametrize("first", [0, 7])
async def test_markers_of_sinks_are_passed_over_in_the_archive_as_in_the_feed(tmp_path: Path, first: int) -> None:
    """From id 7 on, the archive holds nothing but markers: that is no reason to say that it lacks what is asked for."""
    records = make_records(0, [b"%d" % at for at in range(9)])
    headers = [MARKER_HEADER if at in (2, 7, 8) else 5 for at in range(9)]
    changed = [attrs.evolve(one, header=header) for one, header in zip(records, headers, strict=True)]
    write_segments(tmp_path / "log", 0, changed)
    write_control(tmp_path / "log", [9])
    archive = str(tmp_path / "archive")
    run_archive(plan_archive(parse_options({"directory": str(tmp_path / "log")}), archive), Here())
    client: Any = FreedUpTo(9)
    seen = []
    async with aclosing(follow(client, 0, archive=archive, after=first - 1)) as history:
        async for transaction in history:
            seen.append(transaction.id)
            if transaction.id == 9:
                break
    assert seen == [at for at in range(first, 10) if at not in (2, 7, 8)]


def bank_log(directory: Path, partitions: int = 2) -> None:
    payloads = [
        [
            entry("deposit", account, 100),
            entry("transfer", account, 30, to=account + 10),
            entry("withdrawal", account, 20),
            entry("deactivate", account),
            entry("deposit", account + 10, 5),
        ]
        for account in range(partitions)
    ]
    make_log(directory, payloads)


def test_a_cut_of_the_past_can_be_loaded_and_later_completed(tmp_path: Path) -> None:
    bank_log(tmp_path / "log")
    view, path = view_of(tmp_path / "view.db"), tmp_path / "view.db"
    values = {"directory": str(tmp_path / "log")}
    made = bootstrap(parse_options({**values, "cut": '{"0": 2, "1": 0}'}), view)
    assert (made.marks, made.count, made.cut) == ({0: 1, 1: -1}, 2, '{"0": 2, "1": 0}')
    assert rows(path, "SELECT ACCOUNT_ID, BALANCE FROM ACCOUNTS") == [(0, 70), (10, 30)]
    seen: list[tuple[int, int]] = []
    made = bootstrap(parse_options(values), view, lambda done, total: seen.append((done, total)))
    assert (made.marks, made.count, seen[-1]) == ({0: 4, 1: 4}, 8, (10, 10))
    assert rows(path, "SELECT * FROM ACCOUNTS ORDER BY 1") == [
        (0, 50, "N"), (1, 50, "N"), (10, 35, "Y"), (11, 35, "Y")
    ]  # fmt: skip
    with pytest.raises(OptionError, match=r"partition 0 of .* is at 4 already, beyond the cut 1"):
        bootstrap(parse_options({**values, "cut": '{"0": 2, "1": 0}'}), view)


def test_what_cannot_be_applied_leaves_the_view_as_it_was(tmp_path: Path) -> None:
    make_log(tmp_path / "log", [[entry("deposit", 1, 5), b"not an entry"]])
    with pytest.raises(waltz.ApplyError):
        bootstrap(parse_options({"directory": str(tmp_path / "log")}), view_of(tmp_path / "view.db"))
    assert rows(tmp_path / "view.db", "SELECT * FROM ACCOUNTS") == []
    assert rows(tmp_path / "view.db", f"SELECT * FROM {bank.MARK_TABLE}") == []


@pytest.mark.filterwarnings("ignore")
def test_the_changes_of_a_view_are_a_frame(spark: Any, tmp_path: Path) -> None:
    bank_log(tmp_path / "log")
    frame = spark.read.format("waltz").options(directory=str(tmp_path / "log"), batchRows=2).load()
    found = changes(frame, bank.apply, bank.SCHEMA, ["ACCOUNTS"]).where("partition = 1").collect()
    found.sort(key=lambda row: (row.transaction_id, row.change))

    def account(number: int, balance: int, active: str = "Y") -> dict[str, Any]:
        return {"ACCOUNT_ID": number, "BALANCE": balance, "ACTIVE": active}

    def change(transaction_id: int, kind: str, before: Any, after: Any) -> tuple[Any, ...]:
        return transaction_id, kind, before, after

    assert [
        (row.transaction_id, row.change, None if row.before is None else json.loads(row.before), json.loads(row.after))
        for row in found
    ] == [
        change(0, "insert", None, account(1, 100)),
        change(1, "insert", None, account(11, 30)),
        change(1, "update", account(1, 100), account(1, 70)),
        change(2, "update", account(1, 70), account(1, 50)),
        change(3, "update", account(1, 50), account(1, 50, "N")),
        change(4, "update", account(11, 30), account(11, 35)),
    ]


def replayed(schema: str, *statements: str) -> list[tuple[str, str | None, str | None]]:
    """What the statements change, one transaction for each, as `changes` finds it in an executor."""

    def apply(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
        db.execute(txn.load().decode())

    found = views._Replayed(0, apply, schema, ["t"])
    records = make_records(0, [one.encode() for one in statements])
    transactions = [waltz.Transaction(0, at, 0, one.req_id, one.data) for at, one in enumerate(records)]
    return [row[3:] for row in found.apply(transactions)]


def test_rows_that_are_replaced_are_among_the_changes() -> None:
    schema = "CREATE TABLE t (k TEXT PRIMARY KEY, u INTEGER UNIQUE)"

    def row(key: str, number: int) -> str:
        return json.dumps({"k": key, "u": number}, separators=(",", ":"))

    two = "INSERT INTO t VALUES ('a', 1), ('b', 2)"
    begin = [("insert", None, row("a", 1)), ("insert", None, row("b", 2))]
    assert replayed(schema, two, "INSERT OR REPLACE INTO t VALUES ('a', 3)") == [
        *begin,
        ("update", row("a", 1), row("a", 3)),
    ]
    found = replayed(schema, two, "REPLACE INTO t VALUES ('a', 2)")
    assert sorted(found[2:]) == [("delete", row("b", 2), None), ("update", row("a", 1), row("a", 2))]
    assert replayed(schema, two, "REPLACE INTO t VALUES ('c', 2)")[2:] == [
        ("delete", row("b", 2), None),
        ("insert", None, row("c", 2)),
    ]
    assert replayed(schema, two, "UPDATE OR REPLACE t SET u = 2 WHERE k = 'a'")[2:] == [
        ("delete", row("b", 2), None),
        ("update", row("a", 1), row("a", 2)),
    ]


def test_triggers_of_the_schema_that_would_fire_for_replaced_rows_must_be_meant_to() -> None:
    schema = (
        "CREATE TABLE gone (k TEXT); CREATE TABLE t (k TEXT PRIMARY KEY, u INTEGER);"
        "CREATE TRIGGER leaving AFTER DELETE ON t BEGIN INSERT INTO gone VALUES (OLD.k); END;"
    )
    with pytest.raises(
        OptionError, match="a trigger on DELETE, leaving, which does not fire for rows that REPLACE removes"
    ):
        replayed(schema, "INSERT INTO t VALUES ('a', 1)")
    assert len(replayed(f"PRAGMA recursive_triggers = ON; {schema}", "INSERT INTO t VALUES ('a', 1)")) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_balances_are_a_table_that_a_stream_keeps_up_to_date(spark: Any, tmp_path: Path) -> None:
    bank_log(tmp_path / "log")
    expected = [(0, 50), (1, 50), (10, 35), (11, 35)]
    batch = spark.read.format("waltz").options(directory=str(tmp_path / "log")).load()
    assert sorted(map(tuple, balances(batch).collect())) == expected
    stream = spark.readStream.format("waltz").options(directory=str(tmp_path / "log"), maxTransactionsPerTrigger=6)
    writer = balances(stream.load()).writeStream.outputMode("complete").format("memory").queryName("balances")
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()
    assert sorted(map(tuple, spark.table("balances").collect())) == expected

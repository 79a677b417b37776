"""Views built from history: a database up to an exact mark, the changes of each transaction, balances of a bank."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import waltz_trio as waltz
from waltz_core.base.ids import make_req_id
from waltz_core.base.log import MARKER_HEADER
from waltz_core.base.record import record
from waltz_spark.base.errors import OptionError
from waltz_spark.base.runners import OnProgress
from waltz_spark.read.inventory import Inventory, batch_bounds
from waltz_spark.read.options import Options
from waltz_spark.read.reading import Patience, read_batches
from waltz_spark.records.columns import Shape

Apply = Callable[[waltz.Transaction, sqlite3.Cursor], None]

_COLUMNS = ("transaction_id", "client_id", "generation", "seq", "header", "data")


# ---- bootstrap -------------------------------------------------------------------------------


@record
class Bootstrap:
    """A view that was built up to a cut."""

    marks: dict[int, int]  # by partition, the last transaction that is applied; -1 for an empty one
    count: int  # transactions applied
    seconds: float

    @property
    def cut(self) -> str:
        """The same as a value of the option `cut`: next ids."""
        return json.dumps({str(partition): mark + 1 for partition, mark in self.marks.items()})


def bootstrap(options: Options, view: waltz.SqliteView, on_progress: OnProgress | None = None) -> Bootstrap:
    """Build a view up to a frozen cut of the log, data and the marks of all partitions in one SQL transaction.

    A client that opens the database afterwards continues behind the cut, with neither a gap nor a transaction
    applied twice. Transactions that the view has are not read again. The cut is the end of the log as the options
    name it, or their option `cut`.

    Raises:
        PipelineError: the log cannot be read; the database is as it was.
        ApplyError: a transaction cannot be applied; the database is as it was.
        OptionError: the view is beyond the cut.
    """
    begin = time.monotonic()
    inventory = Inventory(options)
    try:
        look = inventory.look()
        _, ends = batch_bounds(options, look)
        patience = Patience(options.request_timeout_ms / 1000, options.retries)
        shape = Shape(_COLUMNS, options.verify)
        cut = {partition: ends[partition] - 1 for partition in inventory.partitions}
        total, done = sum(ends[partition] for partition in inventory.partitions), 0

        def read(partition: int, mark: int) -> Iterator[waltz.Transaction]:
            nonlocal done
            done += mark + 1
            start = tuple(mark + 1 if at == partition else 0 for at in range(len(ends)))
            upto = tuple(end if at == partition else 0 for at, end in enumerate(ends))
            for found in inventory.ranges(look, start, upto):
                for batch in read_batches(found, shape, patience):
                    yield from _transactions(partition, batch)
                    done += batch.num_rows
                    if on_progress is not None:
                        on_progress(done, total)

        try:
            before = view.catch_up(cut, read)
        except ValueError as error:
            raise OptionError(str(error)) from error
    finally:
        inventory.close()
    count = sum(cut[partition] - mark for partition, mark in before.items())
    return Bootstrap(cut, count, time.monotonic() - begin)


def _transactions(partition: int, batch: Any) -> Iterator[waltz.Transaction]:
    """The rows of an Arrow batch as a client would get them."""
    columns = [batch.column(name).to_pylist() for name in _COLUMNS]
    for transaction_id, client_id, generation, seq, header, data in zip(*columns, strict=True):
        req_id = make_req_id(client_id, generation, partition, seq)
        yield waltz.Transaction(partition, transaction_id, header, req_id, data)


# ---- changes ---------------------------------------------------------------------------------

CHANGES = "partition int, transaction_id bigint, table string, change string, before string, after string"


def changes(frame: Any, apply: Apply, schema: str, tables: Sequence[str]) -> Any:
    """What each transaction changed in a view: a frame with a row per row that was inserted, updated or deleted.

    Every partition of the log is replayed on its own, from the beginning, in a database in memory: which suits
    views whose rows depend on one partition each. Columns: `CHANGES`; `before` and `after` are rows as JSON,
    binary columns in hexadecimal. The rows of a transaction have no order. A row that REPLACE puts in the place of one
    with its primary key is updated; rows that it removes because of another key are deleted.

    Args:
        frame: `spark.read.format("waltz")`, from the start of the log, with at least partition, transaction_id,
            client_id, generation, seq, header and data.
        apply: as of a `SqliteView`.
        schema: SQL statements that make the tables.
        tables: names of the tables whose changes are reported.

    Raises:
        OptionError: in the job, if the frame is not the whole log, the schema makes no such table, or has triggers on
            DELETE without saying that they are to fire for replaced rows too.
    """

    def replay(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        replayed: _Replayed | None = None
        for batch in batches:
            rows: list[tuple[Any, ...]] = []
            at = 0
            partitions = batch.column("partition").to_pylist()
            while at < batch.num_rows:
                end = at + 1
                while end < batch.num_rows and partitions[end] == partitions[at]:
                    end += 1
                if replayed is None or replayed.partition != partitions[at]:
                    replayed = _Replayed(partitions[at], apply, schema, tables)
                rows += replayed.apply(_transactions(partitions[at], batch.slice(at, end - at)))
                at = end
            names = [piece.split()[0] for piece in CHANGES.split(", ")]
            types = [pa.int32(), pa.int64(), *[pa.string()] * 4]
            columns = list(zip(*rows, strict=True)) or [()] * len(names)
            arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names)

    ordered = frame.select("partition", *_COLUMNS).repartition("partition")
    return ordered.sortWithinPartitions("partition", "transaction_id").mapInArrow(replay, CHANGES)


class _Replayed:
    """One partition in memory, with triggers that record the changes."""

    def __init__(self, partition: int, apply: Apply, schema: str, tables: Iterable[str]) -> None:
        self.partition = partition
        self._apply = apply
        self._mark = -1
        self._database = sqlite3.connect(":memory:", isolation_level=None)
        self._database.executescript(schema)
        self._see_replaced_rows()
        self._keys: dict[str, tuple[str, ...]] = {}  # columns of the primary key, by table
        self._database.execute("CREATE TEMP TABLE waltz_changes (tab TEXT, change TEXT, before TEXT, after TEXT)")
        for table in tables:
            self._watch(table)

    def _see_replaced_rows(self) -> None:
        """Rows that REPLACE removes fire triggers with a setting only, which must not change what the schema does."""
        (recursive,) = self._database.execute("PRAGMA recursive_triggers").fetchone()
        if recursive:
            return
        for name, sql in self._database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"):
            if re.search(r"\bDELETE\s+ON\b", sql, re.IGNORECASE):
                raise OptionError(
                    f"the schema makes a trigger on DELETE, {name}, which does not fire for rows that REPLACE removes, "
                    "so they would not be seen: put PRAGMA recursive_triggers = ON into the schema, of the view too"
                )
        self._database.execute("PRAGMA recursive_triggers = ON")

    def _watch(self, table: str) -> None:
        known = self._database.execute(f'PRAGMA table_info("{table}")').fetchall()
        columns = [row[1] for row in known]
        if not columns:
            raise OptionError(f"the schema makes no table {table}")
        self._keys[table] = tuple(row[1] for row in known if row[5])

        def row(alias: str) -> str:
            pairs = []
            for name in columns:
                value = f'{alias}."{name}"'
                pairs.append(f"'{name}', CASE typeof({value}) WHEN 'blob' THEN hex({value}) ELSE {value} END")
            return f"json_object({', '.join(pairs)})"

        for change, before, after in (
            ("insert", "NULL", row("NEW")),
            ("update", row("OLD"), row("NEW")),
            ("delete", row("OLD"), "NULL"),
        ):
            self._database.execute(
                f'CREATE TEMP TRIGGER "waltz_{table}_{change}" AFTER {change.upper()} ON main."{table}" '
                f"BEGIN INSERT INTO waltz_changes VALUES ('{table}', '{change}', {before}, {after}); END"
            )

    def apply(self, transactions: Iterable[waltz.Transaction]) -> list[tuple[Any, ...]]:
        """Rows of the result."""
        changes: list[tuple[Any, ...]] = []
        cursor = self._database.cursor()
        for txn in transactions:
            if txn.id != self._mark + 1:
                raise OptionError(
                    f"partition {self.partition}: transaction {txn.id} follows {self._mark}; changes are made of "
                    "whole partitions, from the start of the log"
                )
            self._mark = txn.id
            if txn.header == MARKER_HEADER:
                continue
            self._apply(txn, cursor)
            rows = cursor.execute("SELECT tab, change, before, after FROM waltz_changes").fetchall()
            if rows:
                changes += [(self.partition, txn.id, *row) for row in self._merged(rows)]
                cursor.execute("DELETE FROM waltz_changes")
        return changes

    def _merged(self, rows: Iterable[tuple[str, str, str | None, str | None]]) -> list[tuple[Any, ...]]:
        """With updates in the place of rows that were deleted and at once inserted again under their key."""
        merged: list[tuple[Any, ...]] = []
        for table, change, before, after in rows:
            at = len(merged)
            while change == "insert" and at and merged[at - 1][:2] == (table, "delete"):
                at -= 1
                if self._key_of(table, merged[at][2]) == self._key_of(table, after) is not None:
                    change, before = "update", merged.pop(at)[2]
            merged.append((table, change, before, after))
        return merged

    def _key_of(self, table: str, row: str | None) -> list[Any] | None:
        """The primary key of a row; None if its table has none."""
        values = json.loads(row or "{}")
        return [values.get(name) for name in self._keys[table]] or None


# ---- the bank --------------------------------------------------------------------------------


def flows(frame: Any) -> Any:
    """What the transactions of the bank moved: partition, transaction_id, account, amount (negative: out).

    Args:
        frame: of the format `waltz`, batch or stream, with partition, transaction_id, header and data.
    """
    entries = frame.where(f"header <> {MARKER_HEADER}").selectExpr(
        "partition", "transaction_id", r"str_to_map(decode(data, 'utf-8'), '\t', ':') entry"
    )
    return entries.selectExpr(
        "partition",
        "transaction_id",
        """inline(filter(array(
            named_struct('account', cast(entry['accountId'] as bigint), 'amount', CASE entry['action']
                WHEN 'deposit' THEN cast(entry['amount'] as bigint)
                WHEN 'withdrawal' THEN -cast(entry['amount'] as bigint)
                WHEN 'transfer' THEN -cast(entry['amount'] as bigint) END),
            named_struct('account', cast(entry['toAccountId'] as bigint), 'amount', CASE entry['action']
                WHEN 'transfer' THEN cast(entry['amount'] as bigint) END)
        ), flow -> flow.amount IS NOT NULL))""",
    )


def balances(frame: Any) -> Any:
    """Balance of every account of the bank: account, balance. Of a stream, a table that is kept up to date."""
    from pyspark.sql import functions

    # Not `.sum("amount")`: a Connect session would analyse the frame, which definitions of pipelines may not.
    return flows(frame).groupBy("account").agg(functions.sum("amount").alias("balance"))

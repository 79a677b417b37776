"""One account by partition, in every database: deposits are noted one by one, and added up by `apply`."""

from __future__ import annotations

from typing import Any

import waltz_trio as waltz

AMOUNT = waltz.Json(int)
LOCK = ("account", 1)

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS noted (partition_id INTEGER NOT NULL, id INTEGER NOT NULL, amount INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS balance (partition_id INTEGER NOT NULL PRIMARY KEY, amount INTEGER NOT NULL)",
)
SCHEMA = "; ".join(_SCHEMA)
_ADD = {
    "sqlite": "ON CONFLICT (partition_id) DO UPDATE SET amount = amount + excluded.amount",
    "postgres": "ON CONFLICT (partition_id) DO UPDATE SET amount = balance.amount + excluded.amount",
    "mysql": "ON DUPLICATE KEY UPDATE amount = amount + VALUES(amount)",
}


def open_view(kind: str, where: Any) -> waltz.View:
    """A view of `kind`; `where` is what it takes."""
    if kind == "dict":
        return waltz.DictView(_apply_dict)
    mark = "?" if kind == "sqlite" else "%s"
    note = f"INSERT INTO noted VALUES ({mark}, {mark}, {mark})"
    add = f"INSERT INTO balance VALUES ({mark}, {mark}) {_ADD[kind]}"

    def apply(txn: waltz.Transaction, db: Any) -> None:
        amount = txn.load(AMOUNT)
        db.execute(note, (txn.partition, txn.id, amount))
        db.execute(add, (txn.partition, amount))

    make: Any = {"sqlite": waltz.SqliteView, "postgres": waltz.PostgresView, "mysql": waltz.MySqlView}[kind]
    view: waltz.View = make(where, apply, schema=SCHEMA, name="bank")
    return view


def _apply_dict(txn: waltz.Transaction, state: Any) -> None:
    noted, balance = state.setdefault(txn.partition, [[], 0])
    noted.append((txn.id, txn.load(AMOUNT)))
    state[txn.partition] = [noted, balance + txn.load(AMOUNT)]


def deposit(state: Any, number: int) -> waltz.Append:
    """Every deposit takes a lock that the next one meets, now and then."""
    return waltz.Append(number + 1, AMOUNT, write=[("account", number % 7)])


def contents(state: Any, partition: int) -> tuple[list[tuple[int, int]], int]:
    """Ids and amounts that were noted, in order, and the balance."""
    if not hasattr(state, "execute"):
        noted, balance = state.get(partition, ([], 0))
        return [tuple(each) for each in noted], balance
    state.execute(f"SELECT id, amount FROM noted WHERE partition_id = {partition} ORDER BY id")
    rows = [(row[0], row[1]) for row in state.fetchall()]
    state.execute(f"SELECT amount FROM balance WHERE partition_id = {partition}")
    row = state.fetchone()
    return rows, 0 if row is None else row[0]

"""The bank of all three programs: what a transaction does to the data, and what decides on it."""

from __future__ import annotations

import sqlite3

import attrs

import waltz_trio as waltz

SCHEMA = "CREATE TABLE IF NOT EXISTS balance (account INTEGER PRIMARY KEY, amount INTEGER NOT NULL)"
_ADD = "INSERT INTO balance VALUES (?, ?) ON CONFLICT (account) DO UPDATE SET amount = amount + excluded.amount"


@attrs.frozen
class Transfer:
    """Money from one account to another; account 0 is the outside world."""

    source: int
    target: int
    amount: int
    order: str | None = None  # an idempotency key: the same order is carried out once


TRANSFER = waltz.Json(Transfer)
AMOUNT_MAX = 10**15  # thousands of them fit into a column of the database


def apply(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
    """Carry a transfer out; runs in the transaction that moves the view's mark."""
    transfer = txn.load(TRANSFER)
    db.execute(_ADD, (transfer.source, -transfer.amount))
    db.execute(_ADD, (transfer.target, transfer.amount))


def transfer(db: sqlite3.Cursor, source: int, target: int, amount: int, order: str | None) -> waltz.Append | None:
    """Decide on a transfer: declined if the source has too little. What it lets through, `apply` can apply for ever.

    Raises:
        ValueError: the amount is none that may be transferred.
    """
    if not 0 < amount <= AMOUNT_MAX:
        raise ValueError(f"the amount must be from 1 to {AMOUNT_MAX}")
    if source != 0 and balance(db, source) < amount:
        return None
    return waltz.Append(
        Transfer(source, target, amount, order),
        TRANSFER,
        write=[("account", source)] if source != 0 else [],
        append=[("account", target)],
    )


def balance(db: sqlite3.Cursor, account: int) -> int:
    """What an account holds."""
    row = db.execute("SELECT amount FROM balance WHERE account = ?", (account,)).fetchone()
    return 0 if row is None else int(row[0])


def key_of(txn: waltz.Transaction) -> waltz.Key | None:
    """Where a transfer carries its idempotency key."""
    made = txn.load(TRANSFER)
    return None if made.order is None else waltz.Key(made.order, (made.source, made.target, made.amount, made.order))


def open_view(path: str) -> waltz.SqliteView:
    """The balances, in one file."""
    return waltz.SqliteView(path, apply, schema=SCHEMA, keys=waltz.Keys(key_of))

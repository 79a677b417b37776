"""The bank: what a transaction says, how it is decided from a database, and how it is applied to one.

Payload and tables are those of the demonstration of 0.13.2, so that its programs and ours can share a log:
`key:value` pairs, separated by tabs. `transfer` and `activate`, and the keys that say who appended what on
which grounds, are additions; 0.13.2 ignores them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

import waltz_trio as waltz
from waltz_core.base.record import record

MARK_TABLE = "ACCOUNT_CLIENT_HIGH_WATER_MARK"

SCHEMA = """
CREATE TABLE IF NOT EXISTS ACCOUNTS (
    ACCOUNT_ID INTEGER NOT NULL, BALANCE INTEGER NOT NULL, ACTIVE CHAR(1) NOT NULL,
    PRIMARY KEY (ACCOUNT_ID)
)"""

_READ = "SELECT BALANCE, ACTIVE FROM ACCOUNTS WHERE ACCOUNT_ID = ?"
_ADD = """
INSERT INTO ACCOUNTS (ACCOUNT_ID, BALANCE, ACTIVE) VALUES (?1, ?2, 'Y')
ON CONFLICT (ACCOUNT_ID) DO UPDATE SET BALANCE = BALANCE + ?2"""
_SET_ACTIVE = "UPDATE ACCOUNTS SET ACTIVE = ? WHERE ACCOUNT_ID = ?"

Locks = tuple[tuple[str, int], ...]


@record
class Order:
    """A requested change."""

    action: str  # deposit, withdrawal, transfer, deactivate, activate
    account: int
    amount: int = 0
    to: int = 0  # of a transfer


@record
class Entry:
    """One transaction."""

    order: Order
    client: int = 0  # who appended it, its how-manieth request it was, ...
    request: int = 0  # 0: unknown
    mark: int = -1  # ... the mark of the state it was decided on, ...
    write: Locks = ()  # ... and the locks under which it was appended
    read: Locks = ()


class Entries:
    """Codec of entries."""

    def dumps(self, value: Entry) -> bytes:
        """`action:deposit<tab>accountId:7<tab>amount:30`, in UTF-8."""
        order = value.order
        pairs = [("action", order.action), ("accountId", str(order.account))]
        if order.action in MONEY:
            pairs.append(("amount", str(order.amount)))
        if order.action == "transfer":
            pairs.append(("toAccountId", str(order.to)))
        if value.request:
            pairs += [
                ("client", str(value.client)),
                ("request", str(value.request)),
                ("mark", str(value.mark)),
                ("write", _lock_text(value.write)),
                ("read", _lock_text(value.read)),
            ]
        return "\t".join(f"{key}:{text}" for key, text in pairs).encode()

    def loads(self, data: bytes) -> Entry:
        """The entry; keys in any order, unknown ones are passed over. ValueError if it is not one."""
        pairs = dict(pair.split(":", 1) for pair in data.decode().split("\t"))
        if "action" not in pairs or "accountId" not in pairs:
            raise ValueError(f"expected the keys action and accountId, found {sorted(pairs)}")
        order = Order(
            pairs["action"], int(pairs["accountId"]), int(pairs.get("amount", 0)), int(pairs.get("toAccountId", 0))
        )
        return Entry(
            order,
            int(pairs.get("client", 0)),
            int(pairs.get("request", 0)),
            int(pairs.get("mark", -1)),
            _locks(pairs.get("write", "")),
            _locks(pairs.get("read", "")),
        )


ENTRIES = Entries()

MONEY = ("deposit", "withdrawal", "transfer")


def _lock_text(locks: Iterable[tuple[str, int]]) -> str:
    return ",".join(f"{name}/{number}" for name, number in locks)


def _locks(text: str) -> Locks:
    locks = []
    for lock in text.split(",") if text else ():
        name, _, number = lock.partition("/")
        locks.append((name, int(number)))
    return tuple(locks)


@record
class Account:
    """The row of an account."""

    balance: int
    active: bool


def account(db: sqlite3.Cursor, number: int) -> Account | None:
    """What the database knows of an account."""
    row = db.execute(_READ, (number,)).fetchone()
    return None if row is None else Account(row[0], row[1] == "Y")


# ---- decide --------------------------------------------------------------------------------------------


def refusal(db: sqlite3.Cursor, order: Order) -> str | None:
    """Why an order cannot be carried out, empty where 0.13.2 says nothing; None if it can."""
    source = account(db, order.account)
    if order.action in ("deposit", "transfer"):
        number = order.account if order.action == "deposit" else order.to
        target = source if order.action == "deposit" else account(db, order.to)
        if target is not None and not target.active:
            return f"The account is not active. [accountId={number}]"
    if order.action in ("withdrawal", "transfer"):
        if source is None:
            return ""
        if source.balance < order.amount or not source.active:
            return (
                f"Unable to withdraw. [accountId={order.account} active={'Y' if source.active else 'N'} "
                f"amount={order.amount}]"
            )
    return None


def locks(order: Order) -> tuple[Locks, Locks]:
    """Write and read locks of an order, as 0.13.2 takes them.

    Two withdrawals from one account exclude each other, and a deactivation excludes both. A deposit can only
    help a withdrawal, so it takes none; the price is that it may land behind a deactivation.
    """
    match order.action:
        case "withdrawal":
            return (("withdrawal", order.account),), (("account", order.account),)
        case "transfer":
            return (("withdrawal", order.account),), (("account", order.account), ("account", order.to))
        case "deactivate" | "activate":
            return (("account", order.account),), ()
        case _:
            return (), ()


def strict_locks(order: Order) -> tuple[Locks, Locks]:
    """The same, but nothing is paid into an account that was deactivated meanwhile."""
    if order.action == "deposit":
        return (), (("account", order.account),)
    return locks(order)


def decide(db: sqlite3.Cursor, order: Order, refusals: list[str]) -> waltz.Append | None:
    """The transaction of an order; None if it cannot be carried out, `refusals` then holds just the reason."""
    refusals.clear()
    reason = refusal(db, order)
    if reason is not None:
        refusals.append(reason)
        return None
    write, read = locks(order)
    return waltz.Append(Entry(order), ENTRIES, write=write, read=read)


def decide_with_witness(
    db: sqlite3.Cursor, order: Order, partition: int, client: int, request: int
) -> waltz.Append | None:
    """As `decide`, with strict locks; the payload says who asked, from which mark, under which locks."""
    if refusal(db, order) is not None:
        return None
    write, read = strict_locks(order)
    entry = Entry(order, client, request, stored_mark(db, partition), write, read)
    return waltz.Append(entry, ENTRIES, write=write, read=read)


def stored_mark(db: sqlite3.Cursor, partition: int) -> int:
    """Up to where the database has applied a partition."""
    row = db.execute(f"SELECT HIGH_WATER_MARK FROM {MARK_TABLE} WHERE PARTITION_ID = ?", (partition,)).fetchone()
    return -1 if row is None else int(row[0])


# ---- apply ---------------------------------------------------------------------------------------------


def apply(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
    """Carry out one transaction; actions that are not known are passed over, as in 0.13.2."""
    order = txn.load(ENTRIES).order
    match order.action:
        case "deposit":
            db.execute(_ADD, (order.account, order.amount))
        case "withdrawal":
            db.execute(_ADD, (order.account, -order.amount))
        case "transfer":
            db.execute(_ADD, (order.account, -order.amount))
            db.execute(_ADD, (order.to, order.amount))
        case "deactivate":
            db.execute(_SET_ACTIVE, ("N", order.account))
        case "activate":
            db.execute(_SET_ACTIVE, ("Y", order.account))

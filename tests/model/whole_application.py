"""Applications on the whole simulated cluster, by seed: the product's own client and application in virtual time.

`application_world.py` steps the machines of an application between any two effects; here their drivers run too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import attrs

from waltz_testing import Simulated, Submit
from waltz_testing.simulation.plan import FAULTS, draw_plan
from waltz_testing.simulation.play import Played, play
from waltz_trio import Append, DictView, Json, Key, Keys, SqliteView, Transaction

CALLS = 15
_ON_DISK = 0.1  # share of the seeds whose views are databases
_TOGETHER = 0.4  # share of those whose views are in memory and apply several transactions at once
_NAMES = ("ann", "bob", "cid")
_OPENED = 20


@attrs.frozen
class Transfer:
    """Money from one account to another."""

    source: str
    target: str
    amount: int
    order: str


TRANSFER = Json(Transfer)
Orders = dict[str, tuple[str, str, int]]


def key_of(txn: Transaction) -> Key:
    """Every transfer has a key; its request is the rest."""
    moved = txn.load(TRANSFER)
    return Key(moved.order, (moved.source, moved.target, moved.amount))


def apply(txn: Transaction, orders: list[Transfer]) -> None:
    """The state is everything that happened."""
    orders.append(txn.load(TRANSFER))


def transfer(orders: list[Transfer], source: str, target: str, amount: int, order: str) -> Append | None:
    """A transfer that is covered."""
    if balance(orders, source) < amount:
        return None
    locks = [("account", _NAMES.index(source)), ("account", _NAMES.index(target))]
    return Append(Transfer(source, target, amount, order), TRANSFER, write=locks)


def balance(orders: list[Transfer], name: str) -> int:
    """What an account holds."""
    gained = sum(moved.amount for moved in orders if moved.target == name)
    return _OPENED + gained - sum(moved.amount for moved in orders if moved.source == name)


def nobody_is_overdrawn(orders: list[Transfer]) -> bool:
    """What locks are for."""
    return all(balance(orders, name) >= 0 for name in _NAMES)


def no_order_is_paid_twice(orders: list[Transfer]) -> bool:
    """What keys are for."""
    return len({moved.order for moved in orders}) == len(orders)


def put(txn: Transaction, db: sqlite3.Cursor) -> None:
    """`apply` on a database."""
    db.execute("INSERT INTO transfer VALUES (?, ?, ?, ?)", attrs.astuple(txn.load(TRANSFER)))


def apply_many(txns: Sequence[Transaction], orders: list[Transfer]) -> None:
    """Several at once."""
    orders.extend([txn.load(TRANSFER) for txn in txns])


def put_many(txns: Sequence[Transaction], db: sqlite3.Cursor) -> None:
    """Several at once on a database."""
    db.executemany("INSERT INTO transfer VALUES (?, ?, ?, ?)", [attrs.astuple(txn.load(TRANSFER)) for txn in txns])


def orders_of(db: sqlite3.Cursor) -> list[Transfer]:
    """The state that a database holds."""
    return [Transfer(*row) for row in db.execute("SELECT * FROM transfer ORDER BY rowid").fetchall()]


def transfer_in_database(db: sqlite3.Cursor, *args: object) -> Append | None:
    """`decide` on a database."""
    return transfer(orders_of(db), *args)  # type: ignore[arg-type]  # as drawn


def _holds(invariant: Callable[[list[Transfer]], bool], db: sqlite3.Cursor) -> bool:
    return invariant(orders_of(db))


_SCHEMA = "CREATE TABLE IF NOT EXISTS transfer (source TEXT, target TEXT, amount INTEGER, name TEXT)"
_INVARIANTS = (nobody_is_overdrawn, no_order_is_paid_twice)
IN_MEMORY = Simulated(lambda directory: DictView(apply, [], keys=Keys(key_of)), _INVARIANTS)
TOGETHER = Simulated(lambda directory: DictView(apply, [], apply_many=apply_many, keys=Keys(key_of)), _INVARIANTS)
ON_DISK = Simulated(
    lambda directory: SqliteView(
        directory / "bank.db", put, apply_many=put_many, schema=_SCHEMA, name="bank", version=1, keys=Keys(key_of)
    ),
    [partial(_holds, check) for check in _INVARIANTS],
    orders_of,
)


def play_seed(seed: int) -> Played:
    """One run of the bank, every transfer of it with a key."""
    drawn = Random(f"{seed}/whole").random()
    on_disk = drawn < _ON_DISK
    in_memory = TOGETHER if drawn < _ON_DISK + _TOGETHER else IN_MEMORY
    decide = transfer_in_database if on_disk else transfer

    def workload(rng: Random) -> Submit:
        source, target = rng.sample(_NAMES, 2)
        number = rng.randrange(CALLS)  # some come twice, and then as another request
        amount = 1 + number % 9 if rng.random() < 0.9 else 10
        if rng.random() < 0.9:
            source, target = _NAMES[number % 3], _NAMES[(number + 1) % 3]
        order = f"order-{number}"
        key = Key(order, (source, target, amount))
        return Submit(decide, source, target, amount, order, key=key, until=rng.choice(("committed", "applied")))

    plan = draw_plan(seed, workload, calls=CALLS, partitions=1, faults=FAULTS)
    return play(ON_DISK if on_disk else in_memory, plan)

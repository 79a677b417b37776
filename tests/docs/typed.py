"""Programs for type checkers: a line that ends with `# error` must be refused, and every other one accepted."""

from __future__ import annotations

import re

_SUBMIT = """
import sqlite3
from typing import assert_type

import FRONT as waltz


def apply(txn: waltz.Transaction, db: sqlite3.Cursor) -> None: ...
def withdraw(db: sqlite3.Cursor, account: int, amount: int) -> waltz.Append | None:
    return None
def of_dict(state: dict[int, int], account: int) -> waltz.Append | None:
    return None
def balance(db: sqlite3.Cursor, account: int) -> int:
    return account
def gives_text(db: sqlite3.Cursor, account: int) -> str:
    return "declined"


async def main(client: waltz.Client) -> None:
    async with client.materialize(waltz.SqliteView("bank.db", apply)) as bank:
        assert_type(bank, waltz.Application[sqlite3.Cursor])
        assert_type(await bank.submit(withdraw, 7, 30, partition=0), waltz.Receipt | None)
        await bank.submit(withdraw, 7, "30", partition=0)  # error
        await bank.submit(withdraw, 7, partition=0)  # error
        await bank.submit(withdraw, 7, 30, 1, partition=0)  # error
        await bank.submit(withdraw, 7, 30)  # error
        await bank.submit(of_dict, 7, partition=0)  # error
        await bank.submit(gives_text, 7, partition=0)  # error
        await bank.submit(withdraw, 7, 30, partition=0, until="done")  # error
        await bank.submit(withdraw, 7, 30, partition=0, key=4711)  # error
        await bank.submit_many(withdraw, [(7, 30)], partition=0)
        await bank.submit_many(withdraw, [(7, "30")], partition=0)  # error
        await bank.submit_many(of_dict, [(7,)], partition=0)  # error
        assert_type((await bank.read(balance, 7, partition=0))[0], int)
        await bank.read(balance, "7", partition=0)  # error
"""

_VIEWS = """
import sqlite3
from collections.abc import Callable
from typing import Any, assert_type

import waltz_trio as waltz


def of_sqlite(txn: waltz.Transaction, db: sqlite3.Cursor) -> None: ...
def of_dict(txn: waltz.Transaction, state: dict[int, int]) -> None: ...
def of_set(txn: waltz.Transaction, state: set[int]) -> None: ...
def of_state(state: dict[int, int]) -> None: ...
async def awaited(txn: waltz.Transaction, state: dict[int, int]) -> None: ...
def key_of(txn: waltz.Transaction) -> waltz.Key | None:
    return None
def key_text(txn: waltz.Transaction) -> str:
    return "4711"


class Kept:
    threaded = False

    def load_mark(self, partition: int) -> int:
        return -1

    def read(self, partition: int, decide: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
        return decide(None, *args), -1

    def is_transient(self, error: Exception) -> bool:
        return False

    def close(self) -> None: ...


class Whole(Kept):
    def commit(self, batch: waltz.Batch) -> int:
        return batch.last_id


class Forgets(Kept):
    def commit(self, batch: waltz.Batch) -> None: ...


waltz.SqliteView("bank.db", of_sqlite, keys=waltz.Keys(key_of))
waltz.SqliteView("bank.db", of_dict)  # error
waltz.SqliteView("bank.db", of_state)  # error
waltz.SqliteView("bank.db", of_sqlite, version="2")  # error
waltz.PostgresView("dbname=bank", of_state)  # error
waltz.MySqlView("mysql://root@localhost/bank", of_state)  # error
waltz.Keys(key_text)  # error
assert_type(waltz.DictView(of_dict), waltz.DictView[dict[int, int]])
waltz.DictView(of_dict, {1: 1})
waltz.DictView(of_set, {"one": 1})  # error
waltz.DictView(of_state)  # error
waltz.DictView(awaited)  # error
own: waltz.View = Whole()
wrong: waltz.View = Forgets()  # error
"""

_LOADS = """
from typing import Any, assert_type

import attrs
import waltz_trio as waltz


@attrs.frozen
class Move:
    amount: int


def of(txn: waltz.Transaction) -> None:
    assert_type(txn.load(), bytes)
    assert_type(txn.load(waltz.Utf8()), str)
    assert_type(txn.load(waltz.Json(Move)), Move)
    assert_type(txn.load(waltz.Json(dict[str, int])), dict[str, int])
    assert_type(txn.load(waltz.Codecs({})), Any)
    txn.load(waltz.Json(Move)).account  # error
    txn.load("utf-8")  # error
"""


def _of_threads(text: str) -> str:
    return re.sub(r"\basync |\bawait ", "", text)


CASES = {
    "submit_trio.py": _SUBMIT.replace("FRONT", "waltz_trio"),
    "submit_asyncio.py": _SUBMIT.replace("FRONT", "waltz_asyncio"),
    "submit_sync.py": _of_threads(_SUBMIT.replace("FRONT", "waltz_sync")),
    "views.py": _VIEWS,
    "loads.py": _LOADS,
}


def errors_wanted(text: str) -> list[int]:
    """The lines that must be refused."""
    return [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# error")]

"""What the bank decides and applies, on an in-memory database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

import waltz_trio as waltz
from waltz_core.base.ids import ReqId
from waltz_trio.demo import bank
from waltz_trio.demo.bank import Account, Entry, Order


@pytest.fixture
def db() -> Iterator[sqlite3.Cursor]:
    connection = sqlite3.connect(":memory:")
    connection.executescript(bank.SCHEMA)
    connection.execute(f"CREATE TABLE {bank.MARK_TABLE} (PARTITION_ID INTEGER PRIMARY KEY, HIGH_WATER_MARK BIGINT)")
    yield connection.cursor()
    connection.close()


def applied(db: sqlite3.Cursor, *orders: Order) -> sqlite3.Cursor:
    for number, order in enumerate(orders):
        data = bank.ENTRIES.dumps(Entry(order))
        bank.apply(waltz.Transaction(0, number, 0, ReqId(bytes(16)), data), db)
    return db


def test_the_payload_is_that_of_the_original() -> None:
    assert bank.ENTRIES.dumps(Entry(Order("deposit", 7, 30))) == b"action:deposit\taccountId:7\tamount:30"
    assert bank.ENTRIES.dumps(Entry(Order("deactivate", -7))) == b"action:deactivate\taccountId:-7"


def test_a_payload_is_read_whatever_the_order_of_its_keys() -> None:
    assert bank.ENTRIES.loads(b"amount:30\tcolour:a:b\taccountId:7\taction:withdrawal").order == Order(
        "withdrawal", 7, 30
    )


def test_an_entry_with_a_witness_comes_back_unchanged() -> None:
    order = Order("transfer", 1, 5, 3)
    entry = Entry(order, 2, 17, 99, (("withdrawal", 1),), (("account", 1), ("account", 3)))
    assert bank.ENTRIES.loads(bank.ENTRIES.dumps(entry)) == entry


@pytest.mark.parametrize("data", [b"", b"action:deposit", b"accountId:1", b"action:x\taccountId:one", b"\xff", b"a\tb"])
def test_what_is_no_entry_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        bank.ENTRIES.loads(data)


def test_a_deposit_opens_an_account(db: sqlite3.Cursor) -> None:
    assert bank.account(applied(db, Order("deposit", 1, 30)), 1) == Account(30, True)


def test_a_transfer_moves_money(db: sqlite3.Cursor) -> None:
    applied(db, Order("deposit", 1, 30), Order("transfer", 1, 10, 3))
    assert (bank.account(db, 1), bank.account(db, 3)) == (Account(20, True), Account(10, True))


def test_a_withdrawal_needs_the_money(db: sqlite3.Cursor) -> None:
    applied(db, Order("deposit", 1, 30))
    assert bank.refusal(db, Order("withdrawal", 1, 30)) is None
    assert bank.refusal(db, Order("withdrawal", 1, 31)) == "Unable to withdraw. [accountId=1 active=Y amount=31]"
    assert bank.refusal(db, Order("withdrawal", 2, 0)) == ""


def test_an_inactive_account_gives_and_takes_nothing(db: sqlite3.Cursor) -> None:
    applied(db, Order("deposit", 1, 30), Order("deposit", 2, 30), Order("deactivate", 1))
    assert bank.refusal(db, Order("deposit", 1, 1)) == "The account is not active. [accountId=1]"
    assert bank.refusal(db, Order("transfer", 2, 1, 1)) == "The account is not active. [accountId=1]"
    assert bank.refusal(db, Order("withdrawal", 1, 1)) == "Unable to withdraw. [accountId=1 active=N amount=1]"
    assert bank.refusal(applied(db, Order("activate", 1)), Order("deposit", 1, 1)) is None


def test_actions_that_are_not_known_change_nothing(db: sqlite3.Cursor) -> None:
    assert bank.account(applied(db, Order("rob", 1, 30)), 1) is None


def test_locks_are_those_of_the_original(db: sqlite3.Cursor) -> None:
    applied(db, Order("deposit", 1, 30))
    refusals = ["of an earlier attempt"]
    append = bank.decide(db, Order("withdrawal", 1, 5), refusals)
    assert append is not None
    assert (append.write, append.read, refusals) == ((("withdrawal", 1),), (("account", 1),), [])
    assert bank.locks(Order("deposit", 1, 5)) == ((), ())
    assert bank.locks(Order("deactivate", 1)) == ((("account", 1),), ())


def test_a_witness_tells_mark_and_locks(db: sqlite3.Cursor) -> None:
    db.execute(f"INSERT INTO {bank.MARK_TABLE} VALUES (2, 41)")
    append = bank.decide_with_witness(db, Order("deposit", 1, 5), 2, 3, 4)
    assert append is not None
    assert append.value == Entry(Order("deposit", 1, 5), 3, 4, 41, (), (("account", 1),))
    assert append.read == append.value.read
    assert bank.decide_with_witness(db, Order("withdrawal", 1, 5), 2, 3, 4) is None

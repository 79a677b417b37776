"""Is the result right? Pure checks over what is left behind: the files of the replicas, journals, databases.

The log is its own witness: it claims a serial order, so every promise is checked by going through it once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from waltz_core.base.errors import WaltzError
from waltz_core.base.log import Record
from waltz_core.base.record import record
from waltz_trio.demo import journal
from waltz_trio.demo.bank import ENTRIES, MONEY, Account, Entry
from waltz_trio.demo.journal import Event

_SHOWN = 3  # violations of a promise that are printed

Log = Mapping[int, Sequence[Record]]
"""Partition → its records from 0."""


@record
class Finding:
    """One promise, and what breaks it."""

    promise: str
    detail: str  # what was looked at
    violations: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        """Nothing breaks it."""
        return not self.violations

    def shown(self) -> str:
        """The violations, the first few in full."""
        more = len(self.violations) - _SHOWN
        return "; ".join(self.violations[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


@record
class Database:
    """What a client's database held at the end."""

    client: int
    accounts: Mapping[int, Account]
    marks: Mapping[int, int]


@record
class Kill:
    """Something was killed."""

    time: int  # of the journals' clock
    what: str


# ---- the log ---------------------------------------------------------------------------------------------


def check_replicas(replicas: Mapping[str, Log], marks: Mapping[int, int]) -> Finding:
    """Every replica holds the same records, dense from 0 to the committed mark, byte for byte."""
    wrong = []
    names = sorted(replicas)
    for partition, mark in sorted(marks.items()):
        logs = {name: replicas[name].get(partition, ()) for name in names}
        for name, log in logs.items():
            if len(log) <= mark:
                wrong.append(f"{name} holds {len(log)} records of partition {partition}, {mark + 1} are committed")
            dense = next((at for at, one in enumerate(log) if one.transaction_id != at), None)
            if dense is not None:
                wrong.append(f"{name} has a hole in partition {partition} at {dense}")
        first = logs[names[0]]
        for name in names[1:]:
            unequal = next(
                (
                    at
                    for at, (one, other) in enumerate(zip(first, logs[name], strict=False))
                    if at <= mark and one != other
                ),
                None,
            )
            if unequal is not None:
                wrong.append(f"{names[0]} and {name} differ at transaction {unequal} of partition {partition}")
    count = sum(mark + 1 for mark in marks.values())
    return Finding("equal replicas", f"{len(names)} replicas, {count:,} records each", tuple(wrong))


def entries(log: Log, marks: Mapping[int, int]) -> dict[int, list[Entry]]:
    """The committed transactions of every partition; WaltzError if a record does not belong to the bank."""
    book: dict[int, list[Entry]] = {}
    for partition, mark in marks.items():
        try:
            book[partition] = [ENTRIES.loads(record.data) for record in log.get(partition, ())[: mark + 1]]
        except ValueError as error:
            raise WaltzError(f"partition {partition} holds a record that is not of the bank: {error}") from error
    return book


def check_outcomes(book: Mapping[int, Sequence[Entry]], events: Sequence[Event]) -> list[Finding]:
    """Acknowledged: exactly once, where it was said. Unknown: at most once. Declined, or not asked for: never."""
    places: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for partition, log in book.items():
        for transaction_id, entry in enumerate(log):
            places.setdefault((entry.client, entry.request), []).append((partition, transaction_id))
    asked = [(event.client, event.request) for event in events if event.kind == journal.ASKED]
    settled = {(event.client, event.request): event for event in events if event.kind != journal.ASKED}
    lost, doubled, ghosts = [], [], []
    committed = unknown = unknown_committed = 0
    for key in asked:
        end = settled.get(key)
        at = places.get(key, [])
        name = f"request {key[1]} of client {key[0]}"
        if end is not None and end.kind == journal.COMMITTED:
            committed += 1
            if at != [(end.partition, end.transaction_id)]:
                lost.append(f"{name} was acknowledged as {end.partition}/{end.transaction_id}, the log has it at {at}")
        elif end is not None and end.kind == journal.DECLINED:
            if at:
                ghosts.append(f"{name} was declined, the log has it at {at}")
        else:
            unknown += 1
            unknown_committed += bool(at)
            if len(at) > 1:
                doubled.append(f"{name}, whose outcome is unknown, is in the log {len(at)} times")
    ghosts += [f"nobody asked for request {key[1]} of client {key[0]}" for key in places.keys() - set(asked)]
    return [
        Finding("every acknowledged transaction is in the log once", f"{committed:,} transactions", tuple(lost)),
        Finding(
            "every unknown outcome is in the log at most once",
            f"{unknown:,} outcomes, {unknown_committed:,} of them committed",
            tuple(doubled),
        ),
        Finding("nothing else is in the log", f"{sum(map(len, book.values())):,} transactions", tuple(ghosts)),
    ]


def check_locks(book: Mapping[int, Sequence[Entry]]) -> Finding:
    """Nothing that a transaction depended on was changed between the mark it was decided on and itself."""
    wrong = []
    checked = 0
    for partition, log in sorted(book.items()):
        last: dict[tuple[str, int], int] = {}
        for transaction_id, entry in enumerate(log):
            for lock in (*entry.write, *entry.read):
                checked += 1
                taken = last.get(lock, -1)
                if taken > entry.mark:
                    wrong.append(
                        f"{partition}/{transaction_id} was decided at {entry.mark} and committed, though "
                        f"{taken} took its lock {lock[0]}/{lock[1]}"
                    )
            if entry.mark >= transaction_id:
                wrong.append(f"{partition}/{transaction_id} was decided at {entry.mark}, in its own future")
            last.update(dict.fromkeys(entry.write, transaction_id))
    return Finding("no lock was broken", f"{checked:,} locks", tuple(wrong))


def check_order(events: Iterable[Event]) -> Finding:
    """What was acknowledged before something else was asked for stands before it in the log."""
    wrong = []
    highest: dict[int, int] = {}  # partition → highest id acknowledged so far
    floor: dict[tuple[int, int], int] = {}  # request → the same, when it was asked for
    pairs = 0
    for event in sorted(events, key=lambda event: event.time):
        key = (event.client, event.request)
        if event.kind == journal.ASKED:
            floor[key] = highest.get(event.partition, -1)
        elif event.kind == journal.COMMITTED:
            pairs += 1
            if event.transaction_id <= floor.get(key, -1):
                wrong.append(
                    f"request {event.request} of client {event.client} was committed as "
                    f"{event.partition}/{event.transaction_id}, though {floor[key]} was acknowledged before it was made"
                )
            highest[event.partition] = max(highest.get(event.partition, -1), event.transaction_id)
    return Finding("the log is in the order of time", f"{pairs:,} transactions of all clients", tuple(wrong))


# ---- the money ---------------------------------------------------------------------------------------------


@record
class Ledger:
    """The bank as the log makes it."""

    accounts: dict[int, Account]
    paid_in: int
    paid_out: int
    violations: tuple[str, ...]  # of the rules of the bank, at any moment


def replay(book: Mapping[int, Sequence[Entry]]) -> Ledger:
    """Go through the log with the rules of the bank in hand."""
    accounts: dict[int, Account] = {}
    wrong: list[str] = []
    paid_in = paid_out = 0

    def add(number: int, amount: int, where: str) -> None:
        account = accounts.get(number, Account(0, True))
        if not account.active:
            wrong.append(f"{where} moves money of account {number}, which is not active")
        if account.balance + amount < 0:
            wrong.append(f"{where} overdraws account {number}: {account.balance} {amount:+}")
        accounts[number] = Account(account.balance + amount, account.active)

    for partition, log in sorted(book.items()):
        for transaction_id, entry in enumerate(log):
            order, where = entry.order, f"{partition}/{transaction_id}"
            if order.action in MONEY and order.amount < 0:
                wrong.append(f"{where} moves the amount {order.amount}")
            match order.action:
                case "deposit":
                    paid_in += order.amount
                    add(order.account, order.amount, where)
                case "withdrawal":
                    paid_out += order.amount
                    add(order.account, -order.amount, where)
                case "transfer":
                    add(order.account, -order.amount, where)
                    add(order.to, order.amount, where)
                case "deactivate" | "activate" if order.account in accounts:
                    accounts[order.account] = Account(accounts[order.account].balance, order.action == "activate")
    return Ledger(accounts, paid_in, paid_out, tuple(wrong))


def check_money(ledger: Ledger, databases: Sequence[Database]) -> list[Finding]:
    """No overdraft at any moment; no money made or lost in any database."""
    expected = ledger.paid_in - ledger.paid_out
    wrong = []
    for database in databases:
        total = sum(account.balance for account in database.accounts.values())
        if total != expected:
            wrong.append(f"the accounts of client {database.client} hold {total:,}")
    detail = (
        f"{ledger.paid_in:,} paid in - {ledger.paid_out:,} paid out = {expected:,} in {len(ledger.accounts)} accounts"
    )
    return [
        Finding(
            "no account was ever overdrawn, or used while inactive",
            f"{len(ledger.accounts)} accounts",
            ledger.violations,
        ),
        Finding("money conserved", detail, tuple(wrong)),
    ]


def check_databases(ledger: Ledger, databases: Sequence[Database], marks: Mapping[int, int]) -> Finding:
    """All clients hold the same rows: those that the log makes."""
    wrong = []
    for database in databases:
        differing = sorted(
            number
            for number in ledger.accounts.keys() | database.accounts.keys()
            if ledger.accounts.get(number) != database.accounts.get(number)
        )
        if differing:
            wrong.append(f"client {database.client} has other rows than the log for accounts {differing[:5]}")
        if dict(database.marks) != dict(marks):
            wrong.append(f"client {database.client} has the marks {dict(database.marks)}, expected {dict(marks)}")
    return Finding("equal databases", f"{len(databases)} clients, digest {digest(ledger.accounts)[:12]}", tuple(wrong))


def digest(accounts: Mapping[int, Account]) -> str:
    """A text that is equal for equal accounts."""
    rows = ((number, account.balance, account.active) for number, account in sorted(accounts.items()))
    return hashlib.sha256(repr(list(rows)).encode()).hexdigest()


# ---- the kills ---------------------------------------------------------------------------------------------


def recoveries(kills: Sequence[Kill], events: Iterable[Event], partitions: int) -> list[float | None]:
    """Per kill, the seconds until something that was asked for after it was committed, in the slowest partition.

    None: at least one partition never committed anything asked for after it.
    """
    asked: dict[tuple[int, int], int] = {}
    answered: list[tuple[int, int, int]] = []  # (acknowledged, asked, partition)
    for event in sorted(events, key=lambda event: event.time):
        if event.kind == journal.ASKED:
            asked[(event.client, event.request)] = event.time
        elif event.kind == journal.COMMITTED:
            answered.append((event.time, asked[(event.client, event.request)], event.partition))
    durations: list[float | None] = []
    for kill in kills:
        waiting = set(range(partitions))
        end = None
        for acknowledged, began, partition in answered:
            if began > kill.time and partition in waiting:
                waiting.discard(partition)
                if not waiting:
                    end = (acknowledged - kill.time) / 1e9
                    break
        durations.append(end)
    return durations


def check_kills(kills: Sequence[Kill], times: Sequence[float | None], at_least: int) -> Finding:
    """Enough was killed, the whole cluster among it, and after each kill every partition went on."""
    wrong = []
    if len(kills) < at_least:
        wrong.append(f"{len(kills)} kills, expected at least {at_least}")
    if not any(kill.what == "cluster" for kill in kills):
        wrong.append("the cluster as a whole was never killed")
    wrong += [
        f"nothing was committed in some partition after {kill.what} was killed"
        for kill, time in zip(kills, times, strict=True)
        if time is None
    ]
    known = sorted(time for time in times if time is not None)
    detail = f"{len(kills)} kills"
    if known:
        detail += f"; back after {known[len(known) // 2]:.1f} s (median), {known[-1]:.1f} s (longest)"
    return Finding("recovered from every kill", detail, tuple(wrong))

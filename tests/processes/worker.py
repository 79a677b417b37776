"""A client process of the tests: a bank in SQLite, driven by `submit` and by `send`, that writes down all it is told.

python -m tests.processes.worker JOB.json     ends in order on SIGTERM or when its count is reached
"""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import trio

import waltz_trio as waltz
from tests.witness.log import Journal, Lock, Payload

OPENING_BALANCE = 100
READY = "heeds signals"  # printed when SIGTERM has its meaning
SCHEMA = """
CREATE TABLE IF NOT EXISTS applied (partition_id INTEGER, id INTEGER, name TEXT, PRIMARY KEY (partition_id, id));
CREATE TABLE IF NOT EXISTS balances (partition_id INTEGER, account INTEGER, balance INTEGER,
                                     PRIMARY KEY (partition_id, account));
CREATE TABLE IF NOT EXISTS lists (partition_id INTEGER, list INTEGER, name TEXT);
CREATE INDEX IF NOT EXISTS lists_by_number ON lists (partition_id, list);
"""
LISTS = 6  # in use at a time
LIST_LENGTH = 12  # of a list that is appended to no more


@attrs.frozen
class Job:
    """What one worker does."""

    name: str  # unique for each start: attempts are named after it
    client: str  # configuration file
    database: str
    journal: str
    partitions: int
    seed: int = 0
    submitters: int = 3  # tasks for each partition, each with one submit at a time
    window: int = 20  # appends by `send` in flight, for each partition; 0 = none
    pause: float = 0.0  # seconds before each of these
    submit_pause: float = 0.0  # seconds before each submit of a task
    accounts: int = 20
    count: int = 0  # of appends by each task; 0 = until SIGTERM

    def write(self, path: Path) -> None:
        """As a file for the command line."""
        path.write_text(json.dumps(attrs.asdict(self)))


def apply(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
    """One transaction of the log, in the database; a body that breaks a rule of the bank breaks the client."""
    payload = Payload.loads(txn.load())
    db.execute("INSERT INTO applied VALUES (?, ?, ?)", (txn.partition, txn.id, payload.name))
    if payload.body is None:
        return
    if isinstance(payload.body, dict):
        db.execute("INSERT INTO lists VALUES (?, ?, ?)", (txn.partition, payload.body["appended"], payload.name))
        return
    giver, taker, amount = payload.body
    if giver is not None:
        _add(db, txn.partition, giver, -amount)
        assert balance(db, txn.partition, giver) >= 0, f"{payload.name} overdraws account {giver}"
    if taker is not None:
        _add(db, txn.partition, taker, amount)


def balance(db: sqlite3.Cursor | sqlite3.Connection, partition: int, account: int) -> int:
    """What an account holds."""
    row = db.execute(
        "SELECT balance FROM balances WHERE partition_id = ? AND account = ?", (partition, account)
    ).fetchone()
    return int(row[0]) if row else OPENING_BALANCE


def _add(db: sqlite3.Cursor, partition: int, account: int, amount: int) -> None:
    db.execute(
        "INSERT INTO balances VALUES (?, ?, ?) ON CONFLICT (partition_id, account) DO UPDATE SET balance = balance + ?",
        (partition, account, OPENING_BALANCE + amount, amount),
    )


def _mark(db: sqlite3.Cursor, partition: int) -> int:
    """The mark of the snapshot that a decision reads: what `submit` tells the server."""
    row = db.execute(
        "SELECT HIGH_WATER_MARK FROM CLIENT_HIGH_WATER_MARK WHERE PARTITION_ID = ?", (partition,)
    ).fetchone()
    return int(row[0])


def elements(db: sqlite3.Cursor, partition: int, number: int) -> list[str]:
    """A list as it stands."""
    rows = db.execute("SELECT name FROM lists WHERE partition_id = ? AND list = ? ORDER BY rowid", (partition, number))
    return [name for (name,) in rows]


def _list(number: int) -> Lock:
    return "list", number


def _account(number: int) -> Lock:
    return "account", number


class Worker:
    """The load of one client."""

    def __init__(self, job: Job, client: waltz.Client) -> None:
        self.job = job
        self.client = client
        self.journal = Journal(Path(job.journal))
        self.random = random.Random(job.seed)
        self.told = [-1] * job.partitions  # highest id acknowledged: a mark that sends may be based on
        self.stopped = False
        self._named = 0

    def name(self) -> str:
        """A name for the next attempt."""
        self._named += 1
        return f"{self.job.name}.{self._named}"

    async def run(self) -> None:
        """All tasks, until stopped or done."""
        view: waltz.SqliteView = waltz.SqliteView(self.job.database, apply)
        partitions = range(self.job.partitions)
        async with self.client.materialize(view, partitions) as bank:
            async with trio.open_nursery() as load:
                for partition in partitions:
                    for _ in range(self.job.submitters):
                        load.start_soon(self._submit_all, bank, partition)
                    if self.job.window:
                        load.start_soon(self._send_all, partition)
            for partition in partitions:
                await bank.caught_up(partition)
        self.journal.close()

    async def watch(self, signals: AsyncIterator[int]) -> None:
        """Stop the load at the first signal."""
        async for _ in signals:
            self.stopped = True

    def _goes_on(self, done: int) -> bool:
        return not self.stopped and (not self.job.count or done < self.job.count)

    # ---- submit ----------------------------------------------------------------------------------

    async def _submit_all(self, bank: waltz.Application, partition: int) -> None:
        done = 0
        while self._goes_on(done):
            done += 1
            await trio.sleep(self.job.submit_pause)
            giver, taker = self.random.sample(range(self.job.accounts), 2)
            amount = self.random.randrange(1, 40)
            names: list[str] = []
            decide = self.random.choices((self._transfer, self._deposit, self._extend), (3, 2, 5))[0]
            receipt = await bank.submit(decide, names, partition, giver, taker, amount, partition=partition)
            if receipt is None:
                names.append("")  # declined: the last attempt, if any, was judged before
            for name in names[:-1]:
                self.journal.failed(name, "decided again")
            if receipt is not None:
                self.journal.committed(names[-1], receipt.transaction_id)
                self.told[partition] = max(self.told[partition], receipt.transaction_id)

    def _transfer(
        self, db: sqlite3.Cursor, names: list[str], partition: int, giver: int, taker: int, amount: int
    ) -> waltz.Append | None:
        """Needs both balances to stand still: write locks on both."""
        if balance(db, partition, giver) < amount:
            return None
        locks = (_account(giver), _account(taker))
        return self._attempt(
            names, partition, Payload(self.name(), _mark(db, partition), write=locks, body=(giver, taker, amount))
        )

    def _deposit(
        self, db: sqlite3.Cursor, names: list[str], partition: int, giver: int, taker: int, amount: int
    ) -> waltz.Append | None:
        """Needs `giver` to be no poorer than it looks, and only adds to `taker`: a read lock and an append lock."""
        if balance(db, partition, giver) > OPENING_BALANCE * 3:
            return None
        payload = Payload(
            self.name(),
            _mark(db, partition),
            read=(_account(giver),),
            append=(_account(taker),),
            body=(None, taker, amount % 5),
        )
        return self._attempt(names, partition, payload)

    def _extend(
        self, db: sqlite3.Cursor, names: list[str], partition: int, one: int, other: int, _: int
    ) -> waltz.Append | None:
        """Appends its own name to a list, having read two: a write lock on one, a read lock on the other."""
        row = db.execute("SELECT COALESCE(MAX(list), 0) FROM lists WHERE partition_id = ?", (partition,)).fetchone()
        first = int(row[0]) // LISTS * LISTS
        lists = [first + one % LISTS, first + (one + 1 + other % (LISTS - 1)) % LISTS]
        seen = {number: elements(db, partition, number) for number in lists}
        if len(seen[lists[0]]) >= LIST_LENGTH:
            lists[0] += LISTS
            seen[lists[0]] = elements(db, partition, lists[0])
        payload = Payload(
            self.name(),
            _mark(db, partition),
            write=(_list(lists[0]),),
            read=tuple(_list(number) for number in seen if number != lists[0]),
            body={"appended": lists[0], "read": list(seen.items())},
        )
        return self._attempt(names, partition, payload)

    def _attempt(self, names: list[str], partition: int, payload: Payload) -> waltz.Append:
        names.append(payload.name)
        self.journal.invoked(partition, payload)
        return _append(payload)

    # ---- send ------------------------------------------------------------------------------------

    async def _send_all(self, partition: int) -> None:
        """Appends without locks and with them, many in flight."""
        done = 0
        room = trio.Semaphore(self.job.window)
        async with trio.open_nursery() as outcomes:
            while self._goes_on(done):
                done += 1
                await trio.sleep(self.job.pause)
                await room.acquire()
                outcomes.start_soon(self._send, partition, room)

    async def _send(self, partition: int, room: trio.Semaphore) -> None:
        payload = Payload(self.name(), self.told[partition])
        if self.random.random() < 0.3:
            lock = "stock", self.random.randrange(1000)
            payload = attrs.evolve(payload, write=(lock,), read=(("stock", lock[1] + 1),))
        self.journal.invoked(partition, payload)
        pending = await self.client.send(partition, _append(payload), based_on=payload.mark)
        await self._outcome(partition, payload.name, pending)
        room.release()

    async def _outcome(self, partition: int, name: str, pending: waltz.Pending) -> None:
        try:
            transaction_id = await pending.outcome()
        except waltz.LockConflictError as error:
            self.journal.failed(name, "LockConflictError", error.blocking_id)
        except waltz.NotCommittedError as error:
            self.journal.failed(name, f"NotCommittedError {error.reason}")
        else:
            self.journal.committed(name, int(transaction_id))
            self.told[partition] = max(self.told[partition], transaction_id)


def _append(payload: Payload) -> waltz.Append:
    return waltz.Append(payload.dumps(), write=payload.write, read=payload.read, append=payload.append)


async def main(job: Job) -> None:
    """Open, work, close."""
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        print(READY)
        async with waltz.open_client(job.client) as client, trio.open_nursery() as nursery:
            worker = Worker(job, client)
            nursery.start_soon(worker.watch, signals)
            await worker.run()
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    made = Job(**json.loads(Path(sys.argv[1]).read_text()))
    with sqlite3.connect(made.database) as connection:
        connection.executescript(SCHEMA)
    connection.close()
    # A second SIGTERM, on the way out, would otherwise be delivered again with its default meaning.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    trio.run(main, made)

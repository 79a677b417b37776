"""Calls that are cancelled anywhere on their way, on a real cluster: the client goes on, and tells what was committed.

Where a call is cancelled is a number of turns of the event loop, so that every await of it may be met.
"""

# ruff: noqa: SIM117 - blocks inside blocks are what is tested
from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import waltz_trio as waltz
from waltz_testing import embedded_cluster

NUMBER = waltz.Json(int)
ROUNDS = 120
SCHEMA = "CREATE TABLE IF NOT EXISTS seen (id INTEGER, number INTEGER)"


def note(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
    db.execute("INSERT INTO seen VALUES (?, ?)", (txn.id, txn.load(NUMBER)))


def decide(db: sqlite3.Cursor, number: int) -> waltz.Append:
    return waltz.Append(number, NUMBER, write=[("number", number % 3)])


async def cut(checkpoints: int, call: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Cancel a call after so many turns of the event loop; what it returned, if it was sooner."""
    returned: list[Any] = []
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            returned.append(await call())
            nursery.cancel_scope.cancel()

        nursery.start_soon(run)
        for _ in range(checkpoints):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    return returned


def appends_of(numbers: list[int]) -> list[waltz.Append]:
    return [waltz.Append(number, NUMBER) for number in numbers]


class Told:
    """Numbers that were appended, and what the client said of them."""

    def __init__(self, client: waltz.Client, bank: waltz.Application[sqlite3.Cursor], rng: random.Random) -> None:
        self._client, self._bank, self._rng = client, bank, rng
        self._last = 0
        self.ids: dict[int, int] = {}  # number → transaction
        self.handles: dict[int, waltz.Submission] = {}

    def _numbers(self, count: int) -> list[int]:
        self._last += count
        return list(range(self._last - count + 1, self._last + 1))

    async def submit(self, checkpoints: int) -> None:
        [number] = self._numbers(1)
        handle = self.handles[number] = waltz.Submission()
        call = partial(self._bank.submit, decide, number, partition=0, submission=handle)
        for receipt in await cut(checkpoints, call):
            self.ids[number] = receipt.transaction_id

    async def submit_many(self, checkpoints: int) -> None:
        numbers = self._numbers(20)
        rows = [(number,) for number in numbers]
        for outcomes in await cut(checkpoints, partial(self._bank.submit_many, decide, rows, partition=0)):
            self._note(numbers, outcomes)

    async def append_many(self, checkpoints: int) -> None:
        numbers = self._numbers(20)
        for outcomes in await cut(checkpoints, partial(self._client.append_many, 0, appends_of(numbers))):
            self._note(numbers, outcomes)

    async def send_many(self, checkpoints: int) -> None:
        numbers = self._numbers(20)
        for pending in await cut(checkpoints, partial(self._client.send_many, 0, appends_of(numbers))):
            await cut(checkpoints, pending.outcomes)
            self._note(numbers, await pending.outcomes())

    async def read(self, checkpoints: int) -> None:
        mark = await self._client.committed_mark(0)
        await cut(checkpoints, partial(self._client.read, 0, 0, max(0, mark)))
        await cut(checkpoints, partial(self._bank.read, lambda db: 1, partition=0, fresh=True))

    async def wait(self, checkpoints: int) -> None:
        await cut(checkpoints, self._bank.caught_up)
        await cut(checkpoints, self._client.flush)

    async def feed(self, checkpoints: int) -> None:
        await self._client.append(1, waltz.Append(0, NUMBER))
        await cut(checkpoints, self._feed)

    async def materialize(self, checkpoints: int) -> None:
        await cut(checkpoints, self._materialize)

    def _note(self, numbers: list[int], outcomes: Any) -> None:
        self.ids |= {number: each.transaction_id for number, each in zip(numbers, outcomes, strict=True)}

    async def _feed(self) -> None:
        async with self._client.feed(1, after=-1, prefetch=self._rng.choice([0, 8])) as feed:
            async for txn in feed:
                await txn.fetch()

    async def _materialize(self) -> None:
        view: waltz.DictView[dict[int, int]] = waltz.DictView(lambda txn, state: None)
        async with self._client.materialize(view, [1]) as application:
            await application.submit(lambda state: waltz.Append(0, NUMBER), partition=1)

    async def settle(self) -> None:
        """Ask the handles of what was cancelled."""
        for number, handle in self.handles.items():
            if handle.pending is not None:
                self.ids[number] = (await handle.pending.outcome()).transaction_id


@pytest.mark.parametrize("seed", [1, 2])
async def test_calls_that_are_cancelled_anywhere_leave_a_client_that_works_and_tells_the_truth(
    seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    view = waltz.SqliteView(tmp_path / "view.db", note, schema=SCHEMA)
    async with embedded_cluster(partitions=2) as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(view, [0]) as bank:
            told = Told(client, bank, rng)
            calls = [
                told.submit, told.submit_many, told.append_many, told.send_many,
                told.read, told.wait, told.feed, told.materialize,
            ]  # fmt: skip
            for _ in range(ROUNDS):
                await rng.choice(calls)(rng.choice([0, 1, 2, 3, 5, 8, 13, 30, 100]))
            with trio.fail_after(60):
                await client.flush()
                await told.settle()
                receipt = await bank.submit(decide, 0, partition=0, until="applied")
                assert receipt is not None
                mark = await client.committed_mark(0)
                log = {txn.load(NUMBER): txn.id for txn in await client.read(0, 0, mark)}
                rows = (await bank.read(lambda db: db.execute("SELECT number, id FROM seen").fetchall(), partition=0))[
                    0
                ]
            assert len(log) == mark + 1, "nothing is there twice"
            assert Counter(log.items()) == Counter(rows)
            assert {number: log.get(number) for number in told.ids} == told.ids
            assert not [number for number in told.handles if number not in told.ids and number in log]
            status = bank.status(0)
            assert (status.in_flight, status.waiting, status.gated) == (0, 0, 0)
            assert [(each.in_flight, each.queued) for each in map(client.status, range(2))] == [(0, 0), (0, 0)]

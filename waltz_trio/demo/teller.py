"""One client of the bank demonstration: a process with a database of its own that makes random requests.

It makes requests until it reads `stop`, and brings its database up to date when it reads `finish`. It may
be killed at any time: its journal says what it knew, its database continues from its mark.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

import waltz_trio as waltz
from waltz_trio.base import log
from waltz_trio.demo import bank, journal
from waltz_trio.demo.bank import Order
from waltz_trio.demo.children import obey, tell
from waltz_trio.demo.journal import Journal

_REPORT_EVERY = 0.2  # seconds
_PATIENCE = 1.5  # seconds until a teller turns to the next customer: the outcome is then unknown to him
_AMOUNT_MAX = 100
# Few withdrawals succeed against an empty bank, so what is paid in outweighs what is paid out.
_ACTIONS = (("deposit", 30), ("withdrawal", 22), ("transfer", 45), ("deactivate", 1), ("activate", 2))


def main(argv: Sequence[str]) -> int:
    """Run until `stop`."""
    parser = argparse.ArgumentParser(prog="python -m waltz_trio.demo.teller", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--accounts", type=int, required=True)
    parser.add_argument("--at-once", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    log.set_up("info")
    trio.run(_work, parser.parse_args(argv))
    return 0


def database_path(directory: Path, number: int) -> Path:
    """The database of a client."""
    return directory / f"client-{number}.db"


def journal_path(directory: Path, number: int) -> Path:
    """The journal of a client."""
    return directory / f"client-{number}.journal"


async def _work(options: argparse.Namespace) -> None:
    view = waltz.SqliteView(
        database_path(options.directory, options.number), bank.apply, schema=bank.SCHEMA, table=bank.MARK_TABLE
    )
    book = Journal(journal_path(options.directory, options.number))
    async with (
        waltz.open_client(options.url) as client,
        client.materialize(view, max_in_flight=options.at_once) as application,
        trio.open_nursery() as nursery,
    ):
        teller = Teller(client, application, book, options)
        nursery.start_soon(teller.report_for_ever)
        for _ in range(options.at_once):
            nursery.start_soon(teller.serve)
        await obey(teller.carry_out)
        nursery.cancel_scope.cancel()
    book.close()


class Teller:
    """Makes requests and counts what becomes of them."""

    def __init__(
        self, client: waltz.Client, application: waltz.Application[Any], book: Journal, options: argparse.Namespace
    ) -> None:
        self._client = client
        self._application = application
        self._book = book
        self._number: int = options.number
        self._accounts: int = options.accounts
        self._rng = random.Random(f"{options.seed}/{options.number}/{book.last_request}")
        self._counts: Counter[str] = Counter()
        self._serving = 0
        self._stopped = False
        self._idle = trio.Event()

    async def carry_out(self, order: str) -> None:
        """What the parent says."""
        if order == "stop":
            self._stopped = True
            await self._idle.wait()
            await self._client.flush()  # the outcomes that were not awaited
            tell({"settled": True})
        elif order == "finish":
            await self._application.caught_up()
            self._report()
            tell({"finished": True})
        else:
            raise ValueError(f"{order!r} is no order")

    async def serve(self) -> None:
        """One request after the other."""
        self._serving += 1
        while not self._stopped:
            await self._request()
        self._serving -= 1
        if not self._serving:
            self._idle.set()

    async def _request(self) -> None:
        order = self._order()
        partition = self._client.partition_of(order.account)
        request = self._book.asked(partition)
        kind, transaction_id = journal.UNKNOWN, -1
        with trio.move_on_after(_PATIENCE):
            receipt = await self._application.submit(
                bank.decide_with_witness, order, partition, self._number, request, partition=partition
            )
            if receipt is None:
                kind = journal.DECLINED
            else:
                kind, transaction_id = journal.COMMITTED, receipt.transaction_id
                self._counts["conflicts"] += receipt.conflicts
                self._counts["retries"] += receipt.attempts - 1
        self._book.settled(kind, request, partition, transaction_id)
        self._counts[kind] += 1
        if kind == journal.DECLINED:
            await trio.sleep(0.001)

    def _order(self) -> Order:
        rng = self._rng
        action = rng.choices([name for name, _ in _ACTIONS], [weight for _, weight in _ACTIONS])[0]
        account = rng.randrange(1, self._accounts + 1)
        to = account
        if action == "transfer":
            # A transaction is in one partition, so both accounts are.
            step = self._client.num_partitions
            to = rng.randrange((account - 1) % step + 1, self._accounts + 1, step)
        amount = rng.randrange(1, _AMOUNT_MAX + 1) * (3 if action == "deposit" else 1)
        return Order(action, account, amount, to)

    async def report_for_ever(self) -> None:
        """Tell the parent how it goes."""
        while True:
            self._report()
            await trio.sleep(_REPORT_EVERY)

    def _report(self) -> None:
        partitions = range(self._client.num_partitions)
        states = [self._client.status(partition) for partition in partitions]
        tell(
            {
                "counts": dict(self._counts),
                "serving": self._serving,
                "marks": [self._application.mark(partition) for partition in partitions],
                "seen": [state.seen_mark for state in states],
                "generations": [state.generation for state in states],
                "phases": [state.phase.value for state in states],
                "pending": [state.in_flight + state.queued for state in states],
            }
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

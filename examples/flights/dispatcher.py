"""One dispatcher: a client process with a database of its own that enters its share of the departures."""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import trio

import waltz_trio as waltz
from examples.flights import model, source, truth
from examples.flights.source import Flight
from waltz_trio.base import log
from waltz_trio.demo.children import obey, tell

_REPORT_EVERY = 0.2  # seconds


def main(argv: Sequence[str]) -> int:
    """Enter the share when told to, then tell the digest of the tables; end with the standard input."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights.dispatcher", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--database", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--share", type=int, required=True)
    parser.add_argument("--shares", type=int, required=True)
    parser.add_argument("--at-once", type=int, required=True)
    parser.add_argument("--no-locks", action="store_true")
    log.set_up("warning")
    trio.run(_work, parser.parse_args(argv))
    return 0


async def _work(options: argparse.Namespace) -> None:
    view = waltz.SqliteView(options.database, model.apply, schema=model.SCHEMA)
    flights = source.flights(options.rows, options.share, options.shares)
    async with (
        waltz.open_client(options.url) as client,
        client.materialize(view, max_in_flight=options.at_once) as desk,
        trio.open_nursery() as nursery,
    ):
        dispatcher = Dispatcher(client, desk, flights, not options.no_locks)

        async def carry_out(order: str) -> None:
            if order == "begin":
                nursery.start_soon(dispatcher.enter_all, options.at_once)
                return
            assert order == "finish", order
            await desk.caught_up()
            tell({"caught_up": True})
            with sqlite3.connect(options.database) as db:
                tell({"digest": truth.digest(db)})

        nursery.start_soon(dispatcher.report_for_ever)
        tell({"ready": True})
        await obey(carry_out)
        nursery.cancel_scope.cancel()


class Dispatcher:
    """Enters flights, many at once, and counts."""

    def __init__(
        self, client: waltz.Client, desk: waltz.Application[sqlite3.Cursor], flights: Iterator[Flight], locked: bool
    ) -> None:
        self._client = client
        self._desk = desk
        self._flights = flights
        self._locked = locked
        self._entered = self._conflicts = self._retries = 0

    async def enter_all(self, at_once: int) -> None:
        """Every flight of the share."""
        async with trio.open_nursery() as nursery:
            for _ in range(at_once):
                nursery.start_soon(self._enter_some)
        self._report()
        tell({"entered": True})

    async def _enter_some(self) -> None:
        for flight in self._flights:  # which all tasks share
            partition = self._client.partition_of(model.partition_key(flight))
            receipt = await self._desk.submit(model.enter, flight, self._locked, partition=partition)
            self._entered += 1
            if receipt is not None:
                self._conflicts += receipt.conflicts
                self._retries += receipt.attempts - 1

    async def report_for_ever(self) -> None:
        """Tell the parent how it goes."""
        while True:
            self._report()
            await trio.sleep(_REPORT_EVERY)

    def _report(self) -> None:
        tell({"counts": [self._entered, self._conflicts, self._retries]})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

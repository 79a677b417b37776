"""Enter the 336,776 departures of 2013 from New York as transactions, by several dispatchers at once.

Every dispatcher is a process with a SQLite database of aircraft, airports and delays, kept up to date with
the log; departures are dealt to them in turn, so that the flights of one aircraft meet. Each is decided from
the dispatcher's own database (where is the aircraft, is it free) under a write lock on the aircraft. At the
end all databases are compared with tables computed straight from the file. Without the locks they differ:
try --no-locks.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.flights import truth
from examples.flights.source import ROWS, SourceError, archive
from waltz_trio.base.background import first_of
from waltz_trio.demo.children import Child, ChildError, cancel_on_signal

_TICK = 0.2  # seconds
_LINE_EVERY = 3.0  # seconds between lines where there is no terminal
_MEETING_ROWS = 5_000  # that many departures cannot be entered without two of one aircraft meeting


def main(argv: Sequence[str]) -> int:
    """Returns the exit status: 0 only if all tables are right, and if departures met."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.flights", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=_count, default=ROWS, help=f"departures, from the first of January ({ROWS:,})")
    parser.add_argument("--clients", type=_count, default=3, help="dispatchers (3)")
    parser.add_argument("--partitions", type=_count, default=1, help="partitions of the cluster that is started (1)")
    parser.add_argument("--at-once", type=_count, default=64, help="entries of a dispatcher under way at a time (64)")
    parser.add_argument("--no-locks", action="store_true", help="take no locks, and see the check fail")
    parser.add_argument("--url", help="a running cluster with an empty log, instead of one that is started")
    parser.add_argument(
        "--keep", type=Path, metavar="DIRECTORY", help="keep log and databases there; must be empty or absent"
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the result as one JSON object")
    options = parser.parse_args(argv)
    options.rows = min(options.rows, ROWS)
    console = Console()
    try:
        archive()
        with _directory(options.keep) as directory:
            return trio.run(Run(options, directory, console).run)
    except (ChildError, SourceError) as error:
        console.print(f"flights: {error}", style="bold red", markup=False, highlight=False, soft_wrap=True)
        return 1


@contextmanager
def _directory(kept: Path | None) -> Iterator[Path]:
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="waltz-flights-") as directory:
            yield Path(directory)
        return
    kept.mkdir(parents=True, exist_ok=True)
    if any(kept.iterdir()):
        raise SourceError(f"{kept} is not empty: name another directory, or remove what is in it")
    yield kept


def _count(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


class Run:
    """Starts the processes, shows how it goes, compares."""

    def __init__(self, options: argparse.Namespace, directory: Path, console: Console) -> None:
        self._options = options
        self._directory = directory
        self._console = console
        self._children: list[Child] = []
        self._counts = [[0, 0, 0] for _ in range(options.clients)]
        self._digests: dict[int, str] = {}
        self._ready: set[int] = set()
        self._entered: set[int] = set()
        self._caught_up: set[int] = set()
        self._changed = trio.Event()
        self._url = ""
        self._truth: sqlite3.Connection | None = None

    async def run(self) -> int:
        """The exit status."""
        seconds = 0.0
        heard: list[int] = []
        failure: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel_on_signal, nursery.cancel_scope, heard)
                async with trio.open_nursery() as children:
                    seconds = await self._enter(children)
                    children.cancel_scope.cancel()
                nursery.cancel_scope.cancel()
        except* ChildError as group:
            failure = first_of(group)
        if failure is not None:
            raise failure
        if not seconds:
            self._print("Interrupted.")
            return 128 + (heard[0] if heard else signal.SIGINT)
        return self._conclude(seconds)

    async def _enter(self, nursery: trio.Nursery) -> float:
        """Seconds from the first entry until every database holds all."""
        o = self._options
        cluster = None
        self._url = o.url or ""
        if not self._url:
            cluster = Child("the cluster", self._directory / "cluster.log")
            await cluster.start(
                nursery,
                "waltz_trio.demo.cluster",
                [str(self._directory / "cluster"), "--partitions", str(o.partitions)],
            )
            nursery.start_soon(self._hear_cluster, cluster)
            await self._until(lambda: self._url)
        for share in range(o.clients):
            await self._start_dispatcher(share, nursery)
        await self._until(lambda: len(self._ready) == o.clients)
        for child in self._children:  # all at once, so that they get in each other's way
            await child.order("begin")
        began = time.monotonic()
        with self._bar() as bar:
            nursery.start_soon(self._show, bar, began)
            await self._until(lambda: len(self._entered) == o.clients)
            for child in self._children:
                await child.order("finish")
            await self._until(lambda: len(self._caught_up) == o.clients)
            seconds = time.monotonic() - began
        await self._until(lambda: len(self._digests) == o.clients)
        for child in [*self._children, *([cluster] if cluster else [])]:
            await child.end()
        return seconds

    async def _start_dispatcher(self, share: int, nursery: trio.Nursery) -> None:
        o = self._options
        child = Child(f"dispatcher {share}", self._directory / f"dispatcher-{share}.log")
        arguments = ["--url", self._url, "--database", str(self._database(share)), "--rows", str(o.rows)]
        arguments += ["--share", str(share), "--shares", str(o.clients), "--at-once", str(o.at_once)]
        await child.start(nursery, "examples.flights.dispatcher", [*arguments, *(["--no-locks"] if o.no_locks else [])])
        self._children.append(child)
        nursery.start_soon(self._hear, child, share)

    def _database(self, share: int) -> Path:
        return self._directory / f"dispatcher-{share}.db"

    async def _hear_cluster(self, child: Child) -> None:
        async for report in child.reports():
            self._url = report.get("url", self._url)
            self._notify()
        if await child.wait() != 0:
            raise child.failure("failed")

    async def _hear(self, child: Child, share: int) -> None:
        async for report in child.reports():
            if "counts" in report:
                self._counts[share] = report["counts"]
            elif "ready" in report:
                self._ready.add(share)
                self._notify()
            elif "entered" in report:
                self._entered.add(share)
                self._notify()
            elif "caught_up" in report:
                self._caught_up.add(share)
                self._notify()
            elif "digest" in report:
                self._digests[share] = report["digest"]
                self._notify()
        if await child.wait() != 0 or share not in self._digests:
            raise child.failure("failed")

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _until(self, done: Any) -> None:
        while not done():
            await self._changed.wait()

    # ---- showing ---------------------------------------------------------------------------------

    def _totals(self) -> list[int]:
        return [sum(column) for column in zip(*self._counts, strict=True)]

    def _bar(self) -> Progress:
        return Progress(
            TextColumn("departures"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )

    async def _show(self, bar: Progress, began: float) -> None:
        task = bar.add_task("", total=self._options.rows, text="")
        last_line = began
        while True:
            await trio.sleep(_TICK)
            now = time.monotonic()
            entered, conflicts, retries = self._totals()
            text = f"{entered / (now - began):,.0f} a second, {conflicts:,} conflicts, {retries:,} retries"
            bar.update(task, completed=entered, text=text)
            if not self._console.is_terminal and now - last_line >= _LINE_EVERY:
                last_line = now
                self._print(f"{now - began:6.1f} s  {entered:,} departures, {text}")

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    def _cpu(self) -> float:
        """Seconds of processor time of all processes that were started."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    # ---- comparing -------------------------------------------------------------------------------

    def _conclude(self, seconds: float) -> int:
        o = self._options
        entered, conflicts, retries = self._totals()
        self._print(
            f"{entered:,} departures by {o.clients} dispatchers in {seconds:.1f} s: {entered / seconds:,.0f} a second, "
            f"{conflicts:,} conflicts, {retries:,} retries"
        )
        complaints = []
        began = time.monotonic()
        with truth.compute(o.rows) as expected:
            wanted = truth.digest(expected)
            for share, digest in sorted(self._digests.items()):
                if digest != wanted:
                    with sqlite3.connect(self._database(share)) as db:
                        complaints += [f"dispatcher {share}: {text}" for text in truth.differences(db, expected)]
            busy, away = expected.execute(
                "SELECT SUM(verdict = 'busy'), SUM(verdict = 'away') FROM departures"
            ).fetchone()
        if not conflicts and not o.no_locks and o.clients > 1 and o.rows >= _MEETING_ROWS:
            complaints.append("there was not a single conflict: the locks were not put to the test")
        self._print(f"Compared with the file itself in {time.monotonic() - began:.1f} s.")
        if complaints:
            for complaint in complaints:
                self._print(f"  {complaint}", "red")
            why = " (without locks, as was to be shown)" if o.no_locks else ""
            self._print(f"WRONG: the tables are not what the file says{why}.", "bold red")
        else:
            self._print(
                f"Right: all {o.clients} databases hold the tables that the file gives "
                f"({busy or 0} departures found the aircraft busy, {away or 0} found it away).",
                "bold green",
            )
        if o.json is not None:
            result = {
                "right": not complaints,
                "rows": o.rows,
                "clients": o.clients,
                "locks": not o.no_locks,
                "seconds": round(seconds, 3),
                "tx_per_s": round(entered / seconds, 1),
                "conflicts": conflicts,
                "retries": retries,
                "cpu_s": round(self._cpu(), 2),
                "complaints": complaints,
            }
            o.json.write_text(json.dumps(result, indent=2) + "\n")
        return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`waltz demo run`: a bank on a cluster that is killed piece by piece, and the proof that nothing went wrong."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import signal
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import trio
from rich.console import Console

from waltz_core.base.errors import ConfigError, CorruptionError, WaltzError
from waltz_core.base.record import record
from waltz_trio.base.background import first_of
from waltz_trio.demo import files, journal, proof
from waltz_trio.demo.children import Child, ChildError, cancel_on_signal
from waltz_trio.demo.journal import Event
from waltz_trio.demo.kills import CLUSTER, Strike, plan
from waltz_trio.demo.proof import Database, Finding, Kill
from waltz_trio.demo.show import ClientRow, Progress, Screen, show_findings
from waltz_trio.demo.teller import database_path, journal_path

_TICK = 0.1  # seconds
_RATE_OVER = 3.0  # seconds over which rates are taken
_START_MAX = 30.0  # seconds a process may take to become ready
_GAP = 1.0  # seconds between kills at least
_CALM_AFTER = 2.0  # seconds of work after the last restart at least
_CALM_MAX = 30.0  # seconds until everything that is pending must have ended once nothing is killed any more
_LEVEL_MAX = 20.0  # seconds until replicas must be level then


@record
class Options:
    """What to run."""

    seconds: float
    clients: int
    accounts: int
    kills: int
    partitions: int
    servers: int
    at_once: int  # requests of a client under way at a time
    seed: int
    directory: Path | None
    json: Path | None


def run(options: Options, console: Console) -> int:
    """Run and prove; the exit status is 0 only if everything is proved."""
    if options.directory is not None and options.directory.exists() and any(options.directory.iterdir()):
        raise ConfigError(f"--directory {options.directory} is not empty; the demonstration needs a new one")
    directory = (options.directory or Path(tempfile.mkdtemp(prefix="waltz-demo-"))).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    demo = Demo(options, directory, console)
    status = 1
    try:
        status = trio.run(demo.run)
    except (ChildError, WaltzError) as error:
        console.print(f"The demonstration failed: {error}", style="bold red", markup=False, highlight=False)
    finally:
        if options.directory is None and status != 1:
            shutil.rmtree(directory, ignore_errors=True)
        elif status == 1:
            console.print(f"Everything is kept in {directory}", markup=False, highlight=False, soft_wrap=True)
    return status


class Demo:
    """One run."""

    def __init__(self, options: Options, directory: Path, console: Console) -> None:
        self._options = options
        self._directory = directory
        self._console = console
        self._progress = Progress(options.seconds, [ClientRow() for _ in range(options.clients)])
        self._screen = Screen(console, self._progress)
        self._cluster = _Cluster(options, directory)
        self._tellers = [_Teller(number, options, directory) for number in range(options.clients)]
        self._kills: list[Kill] = []
        self._client_kills = 0
        self._down: dict[str, trio.Lock] = {}  # held from a kill to the restart
        self._generations: dict[int, int] = {}
        self._began = time.monotonic()
        self._last_commit = self._began
        self._load_began: float | None = None
        self._load_time = 0.0
        self._events: list[Event] = []
        self._recoveries: list[float | None] = []

    # ---- the run ---------------------------------------------------------------------------------

    async def run(self) -> int:
        """The exit status."""
        findings: list[Finding] = []
        heard: list[int] = []
        failure: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel_on_signal, nursery.cancel_scope, heard)
                with self._screen:
                    await self._under_fire()
                    findings = await self._prove()
                nursery.cancel_scope.cancel()
        except* (ChildError, WaltzError) as group:
            failure = first_of(group)
        if failure is not None:
            raise failure
        if not findings:
            self._console.print("Interrupted: nothing is proved.")
            return 128 + (heard[0] if heard else signal.SIGINT)
        return self._conclude(findings)

    async def _under_fire(self) -> None:
        """Start everything, kill and restart, let it come to rest, end it."""
        o = self._options
        async with trio.open_nursery() as nursery:
            with _within(_START_MAX, "the cluster did not start"):
                await self._cluster.start(nursery)
            self._progress.nodes = dict.fromkeys(self._cluster.nodes, True)
            self._screen.event(
                f"cluster started: {o.servers} servers, {self._cluster.storages} storage nodes, {o.partitions} "
                f"partitions; {o.clients} clients, a process and a database each"
            )
            with _within(_START_MAX, "the clients did not start"):
                for teller in self._tellers:
                    await self._start_teller(teller, nursery)
                while not all(row.committed for row in self._progress.clients):
                    await trio.sleep(_TICK)
                    self._look()
            self._load_began = self._last_commit = time.monotonic()
            self._progress.phase = "under fire"
            nursery.start_soon(self._look_for_ever)
            strikes = plan(o.seconds, o.kills, o.servers, self._cluster.storages, o.clients, o.seed)
            last = 0.0
            # Nobody else must give orders to a cluster that is dead as a whole.
            for _, group in itertools.groupby(strikes, lambda strike: CLUSTER in strike.targets):
                async with trio.open_nursery() as killers:
                    for strike in group:
                        # Kills that were put off by a slow restart must not all come at once.
                        await self._until(max(strike.at, last + _GAP))
                        last = self._under_fire_for()
                        killers.start_soon(self._strike, strike, nursery)
                last = self._under_fire_for()
            await self._until(max(o.seconds, last + _CALM_AFTER))
            self._load_time = self._under_fire_for()
            await self._come_to_rest()
            nursery.cancel_scope.cancel()

    async def _until(self, elapsed: float) -> None:
        await trio.sleep(max(0.0, elapsed - self._under_fire_for()))

    def _under_fire_for(self) -> float:
        return 0.0 if self._load_began is None else time.monotonic() - self._load_began

    async def _come_to_rest(self) -> None:
        self._progress.phase = "coming to rest"
        with _within(_CALM_MAX, "the cluster did not become ready again"):
            await self._cluster.order("ready")
        for what, answer in (("stop", "settled"), ("finish", "finished")):
            for teller in self._tellers:
                await teller.child.order(what)
            for teller in self._tellers:
                with _within(_CALM_MAX, teller.complaint):
                    await teller.answered(answer)
        self._look()
        for teller in self._tellers:
            await teller.end()
        self._progress.phase = "levelling replicas"
        with trio.move_on_after(_LEVEL_MAX):
            while not await trio.to_thread.run_sync(self._level):  # noqa: ASYNC110  # files do not notify of growth
                await trio.sleep(0.5)
        await self._cluster.end()

    def _level(self) -> bool:
        """Every replica holds every committed record."""
        marks = self._marks()
        return all(
            len(log.get(partition, ())) > mark for log in self._logs().values() for partition, mark in marks.items()
        )

    # ---- killing ---------------------------------------------------------------------------------

    async def _strike(self, strike: Strike, nursery: trio.Nursery) -> None:
        """Kill, wait, restart; a process that is dead already is killed once it is back."""
        async with contextlib.AsyncExitStack() as stack:
            for target in sorted(strike.targets):
                await stack.enter_async_context(self._down.setdefault(target, trio.Lock()))
            await self._kill_and_restart(strike, nursery)

    async def _kill_and_restart(self, strike: Strike, nursery: trio.Nursery) -> None:
        names = " and ".join(strike.targets)
        self._screen.event(f"kill -9 the whole {names}" if strike.targets == (CLUSTER,) else f"kill {names}", "red")
        for target in strike.targets:
            moment = time.monotonic_ns()
            kind, _, number = target.partition(" ")
            if kind == "client":
                self._client_kills += 1
                self._tellers[int(number)].kill()
            else:
                self._kills.append(Kill(moment, target))
                if target == CLUSTER:
                    self._cluster.child.kill()
                    self._progress.nodes.update(dict.fromkeys(self._progress.nodes, False))
                else:
                    await self._cluster.order(f"kill {target}")
                    self._progress.nodes[target] = False
        self._progress.kills = len(self._kills)
        await trio.sleep(strike.down)
        for target in strike.targets:
            kind, _, number = target.partition(" ")
            if kind == "client":
                await self._start_teller(self._tellers[int(number)], nursery)
            elif target == CLUSTER:
                with _within(_START_MAX, "the cluster did not start again on its directory"):
                    await self._cluster.start(nursery)
                self._progress.nodes.update(dict.fromkeys(self._progress.nodes, True))
            else:
                await self._cluster.order(f"restart {target}")
                self._progress.nodes[target] = True
        self._screen.event(f"restarted {names}", "green")

    async def _start_teller(self, teller: _Teller, nursery: trio.Nursery) -> None:
        await teller.start(nursery, self._cluster.url)

    # ---- looking ---------------------------------------------------------------------------------

    async def _look_for_ever(self) -> None:
        while True:
            self._look()
            await trio.sleep(_TICK)

    def _look(self) -> None:
        p = self._progress
        now = time.monotonic()
        p.clock, p.elapsed = now - self._began, self._load_time or self._under_fire_for()
        for teller, row in zip(self._tellers, p.clients, strict=True):
            if teller.fill(row, now):
                self._last_commit = now
            for partition, generation in enumerate(teller.generations):
                known = self._generations.get(partition)
                # Until all servers have started, partitions move to where they belong.
                if known is not None and generation > known and self._load_began is not None:
                    p.failovers += 1
                if known is None or generation > known:
                    self._generations[partition] = generation
        p.outage = 0.0 if self._load_time else now - self._last_commit
        self._screen.tick()

    # ---- proving ---------------------------------------------------------------------------------

    def _logs(self) -> dict[str, dict[int, list[Any]]]:
        return {
            f"storage {index}": files.read_log(self._cluster.directory / f"storage-{index}")
            for index in range(self._cluster.storages)
        }

    def _marks(self) -> dict[int, int]:
        """The committed mark of every partition, as the clients saw it."""
        return {
            partition: max(teller.marks[partition] for teller in self._tellers)
            for partition in range(self._options.partitions)
        }

    async def _prove(self) -> list[Finding]:
        self._progress.phase = "proving"
        self._screen.tick()
        try:
            return await trio.to_thread.run_sync(self._check)
        except CorruptionError as error:
            return [Finding("readable files", str(self._cluster.directory), (str(error),))]

    def _check(self) -> list[Finding]:
        logs, marks = self._logs(), self._marks()
        events = self._events = []
        databases: list[Database] = []
        for teller in self._tellers:
            events += journal.read(journal_path(self._directory, teller.number), teller.number)
            databases.append(files.read_database(database_path(self._directory, teller.number), teller.number))
        book = proof.entries(logs["storage 0"], marks)
        ledger = proof.replay(book)
        self._recoveries = proof.recoveries(self._kills, events, self._options.partitions)
        return [
            proof.check_kills(self._kills, self._recoveries, self._options.kills),
            proof.check_replicas(logs, marks),
            proof.check_databases(ledger, databases, marks),
            *proof.check_money(ledger, databases),
            *proof.check_outcomes(book, events),
            proof.check_locks(book),
            proof.check_order(events),
        ]

    def _conclude(self, findings: Sequence[Finding]) -> int:
        p = self._progress
        good = all(finding.kept for finding in findings)
        c = self._outcomes()
        self._console.print()
        for line in (
            f"{c['committed']:,} transactions in {self._load_time:.0f} s, {c['committed'] / self._load_time:,.0f} a "
            f"second; {p.total('conflicts'):,} conflicts, {p.total('retries'):,} retries, {c['declined']:,} declined, "
            f"{c['unknown']:,} unknown outcomes",
            f"{p.kills} kills of nodes and the cluster, {self._client_kills} of a client, {p.failovers} fail-overs "
            f"(seed {self._options.seed})",
        ):
            self._console.print(line, highlight=False, soft_wrap=True)
        self._console.print()
        show_findings(self._console, findings)
        self._console.print()
        if good:
            self._console.print("Proved: every promise was kept.", style="bold green")
        else:
            self._console.print("NOT proved: a promise was broken.", style="bold red")
        if self._options.json is not None:
            self._write_json(self._options.json, findings, good)
        return 0 if good else 1

    def _outcomes(self) -> Counter[str]:
        """How many requests ended how; those of killed clients included."""
        counts = Counter(event.kind for event in self._events)
        # What a client that was killed had under way is not settled in its journal.
        counts[journal.UNKNOWN] = counts[journal.ASKED] - counts[journal.COMMITTED] - counts[journal.DECLINED]
        return counts

    def _write_json(self, path: Path, findings: Sequence[Finding], good: bool) -> None:
        p = self._progress
        outcomes = self._outcomes()
        result = {
            "proved": good,
            "seconds": round(self._load_time, 3),
            "tx_per_s": round(outcomes["committed"] / self._load_time, 1),
            **{kind: outcomes[kind] for kind in (journal.COMMITTED, journal.DECLINED, journal.UNKNOWN)},
            **{field: p.total(field) for field in ("conflicts", "retries")},
            "kills": [kill.what for kill in self._kills],
            "recovery_s": [None if time is None else round(time, 3) for time in self._recoveries],
            "client_kills": self._client_kills,
            "failovers": p.failovers,
            "seed": self._options.seed,
            "findings": [
                {
                    "promise": finding.promise,
                    "kept": finding.kept,
                    "detail": finding.detail,
                    "violations": list(finding.violations[:20]),
                }
                for finding in findings
            ],
        }
        path.write_text(json.dumps(result, indent=2) + "\n")


# ---- the processes ---------------------------------------------------------------------------------


class _Cluster:
    """The process that runs servers and storage nodes."""

    def __init__(self, options: Options, directory: Path) -> None:
        self.directory = directory / "cluster"
        self.url = ""
        self.storages = 0
        self.nodes: list[str] = []
        self._options = options
        self._log = directory / "cluster.log"
        self._child: Child | None = None
        self._answers: dict[str, trio.Event] = {}

    @property
    def child(self) -> Child:
        """The process, which was started."""
        assert self._child is not None
        return self._child

    async def start(self, nursery: trio.Nursery) -> None:
        """Start, or start again on the same directory and port; returns when clients can connect."""
        o = self._options
        arguments = [str(self.directory), "--partitions", str(o.partitions), "--servers", str(o.servers)]
        if self.url:
            arguments += ["--port", self.url.partition("?")[0].rpartition(":")[2]]
        if self._child is not None:
            await self._child.wait()
        self._child = Child("the cluster", self._log)
        self._answers.clear()
        await self._child.start(nursery, "waltz_trio.demo.cluster", arguments)
        ready = trio.Event()
        nursery.start_soon(self._hear, self._child, ready)
        await ready.wait()

    async def _hear(self, child: Child, ready: trio.Event) -> None:
        async for report in child.reports():
            if "url" in report:
                self.url = report["url"]
                self.storages = report["storages"]
                self.nodes = [f"server {i}" for i in range(report["servers"])]
                self.nodes += [f"storage {i}" for i in range(self.storages)]
                ready.set()
            elif "done" in report:
                self._answers.pop(report["done"]).set()
        status = await child.wait()
        if status != -9 and (status != 0 or not ready.is_set()):
            raise child.failure(f"ended with status {status}")

    async def order(self, text: str) -> None:
        """Have something done; returns when it is."""
        done = self._answers[text] = trio.Event()
        await self.child.order(text)
        await done.wait()

    async def end(self) -> None:
        """End in order."""
        status = await self.child.end()
        if status != 0:
            raise self.child.failure(f"did not end in order, but with status {status}")


class _Teller:
    """A client's processes, one after the other."""

    def __init__(self, number: int, options: Options, directory: Path) -> None:
        self.number = number
        self.marks: list[int] = [-1] * options.partitions
        self.generations: list[int] = []
        self._options = options
        self._directory = directory
        self._child: Child | None = None
        self._killed = False
        self._ending = False
        self._report: dict[str, Any] = {}
        self._earlier: dict[str, int] = {}  # counts of processes that were killed
        self._history: deque[tuple[float, int]] = deque()
        self._answers: dict[str, trio.Event] = {}

    @property
    def child(self) -> Child:
        """The process, which was started."""
        assert self._child is not None
        return self._child

    async def start(self, nursery: trio.Nursery, url: str) -> None:
        """Start, or start again on the same database."""
        o = self._options
        counts = self._report.get("counts", {})
        self._earlier = {name: self._earlier.get(name, 0) + counts.get(name, 0) for name in {*self._earlier, *counts}}
        self._report = {}
        if self._child is not None:
            await self._child.wait()
        self._killed = False
        self._child = Child(f"client {self.number}", self._directory / f"client-{self.number}.log")
        arguments = ["--url", url, "--directory", str(self._directory), "--number", str(self.number)]
        arguments += ["--accounts", str(o.accounts), "--at-once", str(o.at_once), "--seed", str(o.seed)]
        await self._child.start(nursery, "waltz_trio.demo.teller", arguments)
        nursery.start_soon(self._hear, self._child)

    def kill(self) -> None:
        """kill -9."""
        self._killed = True
        self.child.kill()

    async def _hear(self, child: Child) -> None:
        async for report in child.reports():
            if "counts" in report:
                self._report = report
                self.marks = report["marks"]
                self.generations = report["generations"]
            for answer in report:
                self._answers.setdefault(answer, trio.Event()).set()
        status = await child.wait()
        if not self._killed and not self._ending:
            raise child.failure(f"ended with status {status}")

    def complaint(self) -> str:
        """Why one still waits for it."""
        return f"client {self.number} has something pending that does not end: {self._report}"

    async def answered(self, what: str) -> None:
        """Wait until it said so."""
        await self._answers.setdefault(what, trio.Event()).wait()

    async def end(self) -> None:
        """End in order."""
        self._ending = True
        status = await self.child.end()
        if status != 0:
            raise self.child.failure(f"did not end in order, but with status {status}")

    def fill(self, row: ClientRow, now: float) -> bool:
        """Bring its row up to date; returns whether anything was committed since."""
        counts = self._report.get("counts", {})
        before = row.committed
        for name in ("committed", "declined", "unknown", "conflicts", "retries"):
            setattr(row, name, self._earlier.get(name, 0) + counts.get(name, 0))
        row.alive = self.child.running or self._ending
        marks, seen = self._report.get("marks", ()), self._report.get("seen", ())
        row.lag = sum(max(0, newest - applied) for newest, applied in zip(seen, marks, strict=True))
        self._history.append((now, row.committed))
        while now - self._history[0][0] > _RATE_OVER:
            self._history.popleft()
        since, count = self._history[0]
        row.rate = (row.committed - count) / (now - since) if now > since else 0.0
        return row.committed > before


@contextlib.contextmanager
def _within(seconds: float, complaint: str | Callable[[], str]) -> Iterator[None]:
    """A block that must end in time; ChildError names what did not."""
    with trio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        text = complaint if isinstance(complaint, str) else complaint()
        raise ChildError(f"{text} (after {seconds:.0f} s)")

"""How long nothing is committed when the owner of a partition is killed, paused or cut off.

python -m tests.processes.failover [--trials 200] [--kinds KIND ...] [--seed N] [--session-timeout 4000]
    [--json PATH] [--plot PATH]

One ZooKeeper, three servers, three storage nodes, a client that appends every 20 ms. What is paused or cut off is
reached through a proxy; where processes are killed there is none, as it would accept connections in place of the dead,
and their kernel refuses them. The outage of a trial is the longest time between two acknowledged commits around the
fault, until another server has committed. Everything the client was told is checked at the end. Exit status 1 if a
trial does not recover or the check fails; 3 if something needed is absent.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.processes.cluster import Cluster, poll, running_cluster
from tests.processes.load import Load, summary
from tests.processes.zookeeper import missing, running_zookeeper

_RECOVERED = 60.0  # seconds until a trial counts as failed
_CUT = 1.0  # seconds that a server is cut off from its clients: the fault itself, nothing is waited for
_AWAY = 3.0  # seconds that all storage nodes are away
_TURN = 2.0  # seconds that two servers which are killed in turn are both up
_TURNS = 5
_PAUSE = 0.02  # seconds between two appends
_COMMITS = 10  # by the new owner, before the old one comes back
_KILLS = (
    "killed",
    "killed, back at once",
    "one of two, killed in turn",
    "sound, a storage node killed",
    "sound, all storage nodes away",
)
KINDS = (*_KILLS, "paused", "cut off", "cut off from ZooKeeper", "cut off from clients")


class Failover:
    """Trials on one loaded cluster of one partition."""

    def __init__(self, cluster: Cluster, load: Load) -> None:
        self.cluster = cluster
        self.load = load
        (journal,) = load.journals
        self._tail = Tail(journal)
        self._begin = 0
        acts: tuple[Callable[[str], None], ...] = (
            self._lost(lambda name: cluster.children[name].kill(), lambda name: cluster.start(name)),
            self._kill_and_start,
            self._kill_in_turn,
            self._kill_storage,
            self._kill_all_storage,
            self._lost(lambda name: cluster.children[name].pause(), lambda name: cluster.children[name].resume()),
            self._lost(self._cut, self._heal),
            self._lost(self._cut_from_zookeeper, self._heal),
            self._cut_from_clients,
        )
        self.kinds = dict(zip(KINDS, acts, strict=True))
        self._outage = 0.0

    def trial(self, kind: str) -> float:
        """One fault, and its end; returns the outage in seconds."""
        owner = poll("the partition is served", lambda: self.cluster.owners().get(0))
        self._wait_commits()
        self._begin = time.monotonic_ns()
        self.kinds[kind](owner)
        self.cluster.wait_healthy(_RECOVERED)
        poll("every server answers", lambda: all(map(self.cluster.health, self.cluster.server_names)), _RECOVERED)
        return self._outage

    def _measure(self) -> None:
        """Commits go on: so long it has taken."""
        self._wait_commits()
        self._outage = self._tail.outage(self._begin)

    def _lost(self, fault: Callable[[str], None], heal: Callable[[str], None]) -> Callable[[str], None]:
        """The owner is lost until another server has committed."""

        def act(owner: str) -> None:
            fault(owner)
            poll("another server owns the partition", lambda: self.cluster.owners().get(0) not in (None, owner))
            self._measure()
            heal(owner)

        return act

    def _kill_and_start(self, owner: str) -> None:
        self.cluster.children[owner].kill()
        self.cluster.start(owner)
        self._measure()

    def _kill_in_turn(self, owner: str) -> None:
        """Whoever was killed is started again at once, and two seconds after it is up the other one is killed."""
        other, third = (name for name in self.cluster.server_names if name != owner)
        self.cluster.children[third].stop()
        for name in (owner, other) * _TURNS:
            self.cluster.children[name].kill()
            self.cluster.start(name)
            time.sleep(_TURN)
        self._measure()
        self.cluster.start(third)

    def _kill_storage(self, owner: str) -> None:
        name = self.cluster.storage_names[len(owner) % len(self.cluster.storage_names)]
        self.cluster.children[name].kill()
        self._measure()
        self.cluster.start(name)

    def _kill_all_storage(self, owner: str) -> None:
        for name in self.cluster.storage_names:
            self.cluster.children[name].kill()
        time.sleep(_AWAY)
        self.cluster.start(*self.cluster.storage_names)
        self._measure()

    def _cut_from_clients(self, owner: str) -> None:
        """The server stays the owner: it is the client's way that must heal."""
        for client in self.load.names:
            self._cut_pair(owner, client)
        time.sleep(_CUT)
        self._heal(owner)
        self._measure()

    def _wait_commits(self) -> None:
        after = time.monotonic_ns()
        poll("commits go on", lambda: self._tail.since(after) >= _COMMITS, _RECOVERED)

    def _cut(self, name: str) -> None:
        assert self.cluster.proxy is not None
        self.cluster.proxy.cut(name)

    def _cut_from_zookeeper(self, name: str) -> None:
        self._cut_pair(name, "zookeeper")

    def _cut_pair(self, one: str, other: str) -> None:
        assert self.cluster.proxy is not None
        self.cluster.proxy.cut_between(one, other)
        self.cluster.proxy.cut_between(other, one)

    def _heal(self, name: str) -> None:
        assert self.cluster.proxy is not None
        self.cluster.proxy.heal()


class Tail:
    """Times of acknowledged commits, read from a client's journal as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._invoked: dict[str, int] = {}
        self._acknowledged: list[tuple[int, int]] = []  # when it was acknowledged and when invoked, ns

    def _read(self) -> None:
        with self._path.open("rb") as journal:
            journal.seek(self._at)
            data = journal.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            at, what, *rest = json.loads(line)
            if what == "invoked":
                self._invoked[rest[1]] = at
            elif what == "committed":
                self._acknowledged.append((at, self._invoked.pop(rest[0])))
            else:
                self._invoked.pop(rest[0])

    def take(self) -> list[tuple[int, int]]:
        """What was acknowledged since this was called last: when, and when it was invoked, in ns."""
        self._read()
        taken, self._acknowledged = self._acknowledged, []
        return taken

    def since(self, after: int) -> int:
        """How many appends were both invoked and acknowledged after a time in ns."""
        self._read()
        found = 0
        for at, invoked in reversed(self._acknowledged):
            if at < after:
                break
            found += invoked > after
        return found

    def outage(self, begin: int) -> float:
        """Longest time in seconds between two acknowledged commits, the first of them the last one before `begin`."""
        times = [at for at, _ in self._acknowledged]
        first = max(number for number, at in enumerate(times) if at <= begin)
        return max(later - earlier for earlier, later in zip(times[first:], times[first + 1 :], strict=False)) / 1e9


def figures(outages: Sequence[float]) -> dict[str, Any]:
    """Number, median, 90th and 99th percentile and maximum, in seconds."""
    cuts = quantiles(outages, n=100, method="inclusive") if len(outages) > 1 else [outages[0]] * 99
    return {
        "trials": len(outages),
        "min_s": min(outages),
        "p50_s": median(outages),
        "p90_s": cuts[89],
        "p99_s": cuts[98],
        "max_s": max(outages),
        "outages_s": sorted(outages),
    }


def table(found: Mapping[str, Sequence[float]], session_timeout_ms: int) -> Table:
    """For people."""
    shown = Table(title=f"Seconds without a commit; ZooKeeper session time-out {session_timeout_ms / 1000:g} s")
    shown.add_column("the owner was")
    for column in ("trials", "min", "p50", "p90", "p99", "max"):
        shown.add_column(column, justify="right")
    for kind, outages in found.items():
        numbers = figures(outages)
        shown.add_row(
            kind,
            str(numbers["trials"]),
            *(f"{numbers[key]:.2f}" for key in ("min_s", "p50_s", "p90_s", "p99_s", "max_s")),
        )
    return shown


def plot(path: Path, found: Mapping[str, Sequence[float]], session_timeout_ms: int) -> None:
    """Share of trials that committed again within a time."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for kind, outages in found.items():
        ranked = sorted(outages)
        shares = [100 * (number + 1) / len(ranked) for number in range(len(ranked))]
        axes.step([0, *ranked], [0, *shares], where="post", label=f"{kind} ({len(ranked)})")
    axes.axvline(session_timeout_ms / 1000, color="grey", linestyle=":", label="session time-out")
    axes.set(xlabel="seconds without a commit", ylabel="% of trials", ylim=(0, 101), title="Fail-over of a partition")
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="center")
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.processes.failover", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=KINDS, metavar="KIND", help="of faults (default all)"
    )
    parser.add_argument("--session-timeout", type=int, default=4000, help="of ZooKeeper, in ms (default 4000)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="a picture, for example failover.svg")
    options = parser.parse_args(argv)
    problem = missing()
    if options.plot is not None and importlib.util.find_spec("matplotlib") is None:
        problem = "--plot needs matplotlib: pip install -e '.[dev]'"
    if problem is not None:
        print(problem, file=sys.stderr)
        return 3
    console = Console()
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    committed = 0
    kinds = (list(options.kinds) * (options.trials // len(options.kinds) + 1))[: options.trials]
    random.Random(options.seed).shuffle(kinds)
    for proxied in (False, True):
        chosen = [kind for kind in kinds if (kind not in _KILLS) is proxied]
        if not chosen:
            continue
        with (
            tempfile.TemporaryDirectory(prefix="waltz-failover-") as scratch,
            running_zookeeper() as zookeeper,
            running_cluster(
                Path(scratch),
                zookeeper.fresh_chroot(),
                servers=3,
                settings={"zookeeper.sessionTimeout": options.session_timeout},
                flags=(),
                proxied=proxied,
            ) as cluster,
        ):
            load = Load(cluster, clients=1, submitters=0, window=4, pause=_PAUSE)
            load.start()
            failover = Failover(cluster, load)
            for kind in track(chosen, f"seed {options.seed}", console=console):
                found[kind].append(failover.trial(kind))
            verdict = load.finish()
        print(summary(verdict))
        committed += verdict.committed
    found = {kind: outages for kind, outages in found.items() if outages}
    console.print(table(found, options.session_timeout))
    if options.plot is not None:
        plot(options.plot, found, options.session_timeout)
    if options.json is not None:
        result = {
            "trials": options.trials,
            "seed": options.seed,
            "session_timeout_ms": options.session_timeout,
            "kinds": {kind: figures(outages) for kind, outages in found.items()},
            "committed": committed,
        }
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What clients notice of a rolling restart that `waltz restart-plan` walks: the longest pause for each node.

python -m tests.processes.rolling [--rounds N] [--json PATH]

Three storage nodes and two servers under load. Before each round every server is once stopped and started without a
plan: the pause of that is its own hand-over. The bar is 1 s for a storage node, and the longest hand-over and 1 s for a
server. All that clients were told is checked at the end. Exit status 1 if a bar is missed or the check fails; 3 if
something needed is absent.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.processes.cluster import Cluster, poll, running_cluster
from tests.processes.failover import Tail
from tests.processes.load import Load, summary
from tests.processes.restarter import Restarter
from tests.processes.zookeeper import missing, running_zookeeper
from waltz_trio.cli.main import main as waltz_main

_PAUSE = 0.02  # seconds between two appends
_COMMITS = 10  # behind a restart
_BAR = 1.0  # seconds


class Rolling:
    """Restarts of the nodes of one loaded cluster, and the pauses around them."""

    def __init__(self, cluster: Cluster, load: Load) -> None:
        self.cluster = cluster
        self.by_plan: list[tuple[str, float]] = []
        (journal,) = load.journals
        self._tail = Tail(journal)

    def pause(self, act: Callable[[], object]) -> float:
        """Longest time without an acknowledged commit while something is done, in seconds."""
        self.wait_commits()
        begin = time.monotonic_ns()
        act()
        self.wait_commits()
        return self._tail.outage(begin)

    def wait_commits(self) -> None:
        """Wait until commits go on."""
        after = time.monotonic_ns()
        poll("commits go on", lambda: self._tail.since(after) >= _COMMITS)

    def restart(self, name: str) -> None:
        """Stop a process in order, and start it."""
        self.cluster.children[name].stop()
        self.cluster.start(name)
        self.cluster.wait_healthy()

    def hand_overs(self) -> list[float]:
        """The pauses when each server is stopped in order, without a plan."""
        return [self.pause(lambda name=name: self.restart(name)) for name in self.cluster.server_names]  # type: ignore[misc]

    def timed_restart(self, name: str) -> None:
        """Restart a process by the plan."""
        self.by_plan.append((name, self.pause(lambda: self.restart(name))))

    def walk(self, restarter: Restarter, state: Path) -> None:
        """Restart everything by the plan, noting the pause around each node."""
        words = ["restart-plan", "-c", str(self.cluster.tools_file), "--state", str(state), "--wait", "120"]
        status = waltz_main([*words, "--exec", restarter.command])
        assert status == 0, f"restart-plan ended with status {status}"


def missed(hand_overs: Sequence[float], pauses: Sequence[tuple[str, float]]) -> list[str]:
    """What is over its bar."""
    longest = max(hand_overs)
    return [
        f"{name}: {pause:.2f} s without a commit, at most {bar:.2f} s"
        for name, pause in pauses
        if pause > (bar := _BAR + (longest if name.startswith("server") else 0.0))
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.processes.rolling", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    problem = missing()
    if problem is not None:
        print(problem, file=sys.stderr)
        return 3
    hand_overs: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="waltz-rolling-") as scratch,
        running_zookeeper() as zookeeper,
        running_cluster(Path(scratch), zookeeper.fresh_chroot(), servers=2, flags=()) as cluster,
    ):
        load = Load(cluster, clients=1, submitters=0, window=4, pause=_PAUSE)
        load.start()
        rolling = Rolling(cluster, load)
        # What it has started ends with its thread.
        with Restarter(cluster, rolling.timed_restart).running() as restarter:
            for number in range(options.rounds):
                hand_overs += rolling.hand_overs()
                rolling.walk(restarter, Path(scratch) / f"plan-{number}.json")
            verdict = load.finish()
        pauses = rolling.by_plan
    shown = Table(title="Seconds without a commit")
    for column in ("restarted", "times", "median", "longest"):
        shown.add_column(column, justify="left" if column == "restarted" else "right")
    rows = {
        "a server, without a plan": hand_overs,
        "a server, by the plan": [pause for name, pause in pauses if name.startswith("server")],
        "a storage node, by the plan": [pause for name, pause in pauses if name.startswith("storage")],
    }
    for what, seconds in rows.items():
        ranked = sorted(seconds)
        shown.add_row(what, str(len(ranked)), f"{ranked[len(ranked) // 2]:.2f}", f"{ranked[-1]:.2f}")
    Console().print(shown)
    print(summary(verdict))
    problems = missed(hand_overs, pauses)
    print(*problems or ["no acknowledged append is lost; every pause is within its bar"], sep="\n")
    if options.json is not None:
        figures = {"hand_overs_s": hand_overs, "pauses_s": pauses, "committed": verdict.committed, "missed": problems}
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

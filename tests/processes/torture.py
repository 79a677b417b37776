"""Random kills, pauses and restarts of a loaded cluster of real processes, for as long as one likes.

python -m tests.processes.torture [--seconds 60] [--seed N] [--servers 3] [--clients 2] [--partitions 2] [--json PATH]

Ends with the verdict of the checker: exit status 1 if what is left cannot be one serial history, or if the
cluster does not recover once the faults have ended; 3 if something needed is absent.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import attrs

from tests.processes.cluster import Cluster, running_cluster
from tests.processes.load import Load, summary
from tests.processes.zookeeper import ZooKeeperServer, missing, running_zookeeper

_HEAL = 120.0  # seconds within which everything must be served again after the last fault


class Torture:
    """Faults by chance, never more than a minority of the storage nodes and never all servers at once, except by
    a kill of everything."""

    def __init__(self, cluster: Cluster, zookeeper: ZooKeeperServer, load: Load, seed: int) -> None:
        self.cluster = cluster
        self.zookeeper = zookeeper
        self.load = load
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.down: set[str] = set()

    def run(self, seconds: float) -> None:
        """Disturb, with pauses by chance, then heal."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._fault()
            time.sleep(self.random.expovariate(1 / 1.5))
        for name in sorted(self.down):
            self._heal(name)
        self.cluster.wait_healthy(_HEAL)
        for partition in range(self.cluster.partitions):
            self.cluster.wait_commits(50, partition, _HEAL)

    def _fault(self) -> None:
        cluster = self.cluster
        choice = self.random.random()
        if len(self.down) > self.random.randrange(5):
            self._heal(self.random.choice(sorted(self.down)))
        elif choice < 0.03:
            self._everything()
        elif choice < 0.10:
            self.done["kill zookeeper"] += 1
            self.zookeeper.kill()
            time.sleep(self.random.uniform(0, 6))
            self.zookeeper.start()
        else:
            candidates = [*self.load.names]
            for names in (cluster.storage_names, cluster.server_names):
                if sum(name in self.down for name in names) < (len(names) - 1) // 2 + (names is cluster.server_names):
                    candidates += [name for name in names if name not in self.down] * 2
            candidates = [name for name in candidates if name not in self.down]
            if not candidates:
                return
            name = self.random.choice(candidates)
            kind = name.partition("-")[0]
            self.down.add(name)
            how = self.random.choice(("kill", "kill", "pause", "stop"))
            self.done[f"{how} {kind}"] += 1
            child = cluster.children[name]
            if how == "pause":
                child.pause()
            elif how == "stop" and kind != "client":
                child.interrupt()
            else:
                child.kill()

    def _everything(self) -> None:
        self.done["kill everything"] += 1
        names = [*self.load.names, *self.cluster.server_names, *self.cluster.storage_names]
        for name in names:
            if self.cluster.children[name].running:
                self.cluster.children[name].kill()
        self.down.update(names)

    def _heal(self, name: str) -> None:
        self.down.discard(name)
        child = self.cluster.children[name]
        if child.paused:
            child.resume()
            return
        if child.running:  # told to end
            child.wait()
        self.done["restart"] += 1
        if name in self.load.names:
            self.load.start(name)
        else:
            child.start()


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.processes.torture", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--directory", help="keep everything there; default: a temporary one")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    problem = missing()
    if problem is not None:
        print(problem, file=sys.stderr)
        return 3
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="waltz-torture-") as scratch:
        directory = Path(options.directory or scratch)
        directory.mkdir(parents=True, exist_ok=True)
        with (
            running_zookeeper() as zookeeper,
            running_cluster(
                directory, zookeeper.fresh_chroot(), partitions=options.partitions, servers=options.servers
            ) as cluster,
        ):
            load = Load(cluster, options.clients)
            load.start()
            torture = Torture(cluster, zookeeper, load, options.seed)
            torture.run(options.seconds)
            verdict = load.finish()
    print(", ".join(f"{count} × {name}" for name, count in sorted(torture.done.items())))
    print(summary(verdict))
    if options.json is not None:
        found = {"seed": options.seed, "faults": dict(torture.done), **attrs.asdict(verdict)}
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

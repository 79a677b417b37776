"""Random kills, pauses, restarts and broken connections of a loaded cluster of real processes.

python -m tests.processes.torture [--seconds 60 | --transactions 1000000] [--seed N] [--servers 3] [--clients 2]
    [--partitions 2] [--json PATH]

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
from typing import Protocol

import attrs

from tests.processes.cluster import Cluster, running_cluster, tail
from tests.processes.load import Load, summary
from tests.processes.zookeeper import ZooKeeperServer, missing, running_zookeeper

_NETWORK = ("cut off", "silence", "deafen", "reset")
_CLOCK = "set the clock of"
_NO_ZOOKEEPER = "was not reached within"  # the last words of a process that starts while there is none
_SHOWN = 10.0  # seconds between two lines of progress
_HEAL = 120.0  # seconds within which everything must be served again after the last fault


class Restarts(Protocol):
    """The clients, as far as faults concern them."""

    @property
    def names(self) -> list[str]:
        """Of their processes."""

    def start(self, *names: str) -> None:
        """Start some again."""


class Torture:
    """Faults by chance, never more than a minority of the storage nodes and never all servers at once, except by
    a kill of everything.

    Args:
        ways: how one process is disturbed, each as often as it stands there.
        everything: share of the faults that kill everything.
    """

    def __init__(
        self,
        cluster: Cluster,
        zookeeper: ZooKeeperServer,
        load: Restarts,
        seed: int,
        *,
        ways: Sequence[str] = ("kill", "kill", "pause", "stop", *_NETWORK, _CLOCK, _CLOCK),
        everything: float = 0.03,
    ) -> None:
        absent = (*(_NETWORK if cluster.proxy is None else ()), *((_CLOCK,) if cluster.clocks is None else ()))
        self._ways = [way for way in ways if way not in absent]
        self._share_of_everything = everything
        self.cluster = cluster
        self.zookeeper = zookeeper
        self.load = load
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.down: set[str] = set()
        self.stopping: set[str] = set()  # told to end
        self.spared: set[str] = set()  # left alone, unless everything is killed

    def run(self, seconds: float, transactions: int = 0) -> None:
        """Disturb, with pauses by chance, for a time or until so many transactions are committed; then heal."""
        begin = shown = time.monotonic()
        committed: dict[int, int] = {}
        while time.monotonic() < begin + seconds if not transactions else sum(committed.values()) < transactions:
            self._supervise()
            self.fault()
            time.sleep(self.random.expovariate(1 / 1.5))
            for partition, mark in self.cluster.committed().items():
                committed[partition] = max(mark + 1, committed.get(partition, 0))
            if time.monotonic() > shown + _SHOWN:
                shown = time.monotonic()
                faults = self.done.total() - self.done["restart"]
                print(f"{shown - begin:6.0f} s  {sum(committed.values())} committed, {faults} faults", flush=True)
        self.heal()
        for partition in range(self.cluster.partitions):
            self.cluster.wait_commits(50, partition, _HEAL)

    def heal(self) -> None:
        """End all faults, and wait until everything is served."""
        for name in sorted(self.down):
            self._heal(name)
        end = time.monotonic() + _HEAL
        while True:
            self._supervise()
            try:
                return self.cluster.wait_healthy(_HEAL / 10)
            except TimeoutError:
                if time.monotonic() > end:
                    raise

    def _supervise(self) -> bool:
        """Start again, as a supervisor does, who could not begin because ZooKeeper was down or slow; whether any.

        Whoever ends for another reason stays down, and fails the run.
        """
        ended = [
            name
            for name in (*self.cluster.storage_names, *self.cluster.server_names)
            if name not in self.down | self.spared and not self.cluster.children[name].running
        ]
        for name in ended:
            child = self.cluster.children[name]
            said = child.says()
            assert _NO_ZOOKEEPER in said, f"{name} ended with status {child.status}:\n{tail(said)}"
            self.done["restart"] += 1
            child.start()
        return bool(ended)

    def fault(self) -> None:
        """One more fault, or the end of one if several last."""
        cluster = self.cluster
        choice = self.random.random()
        if len(self.down) > self.random.randrange(5):
            self._heal(self.random.choice(sorted(self.down)))
        elif choice < self._share_of_everything:
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
            candidates = [name for name in candidates if name not in self.down | self.spared]
            if not candidates:
                return
            name = self.random.choice(candidates)
            kind = name.partition("-")[0]
            self.down.add(name)
            how = self.random.choice(self._ways)
            self.done[f"{how} {kind}"] += 1
            child = cluster.children[name]
            if how in _NETWORK:
                self._disconnect(name, how)
            elif how == _CLOCK:
                self._set_clock(name)
            elif how == "pause":
                child.pause()
            elif how == "stop" and kind != "client":
                self.stopping.add(name)
                child.interrupt()
            else:
                child.kill()

    def _disconnect(self, name: str, how: str) -> None:
        proxy = self.cluster.proxy
        assert proxy is not None
        if how == "reset":
            proxy.reset(name)
            self.down.discard(name)
        else:
            proxy.cut(name, sends=how != "deafen", receives=how != "silence")

    def _set_clock(self, name: str) -> None:
        """It is off from now on; that is nothing to wait for the end of."""
        assert self.cluster.clocks is not None
        self.cluster.clocks.jump(name, self.random)
        self.down.discard(name)

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
        if self.cluster.proxy is not None:
            self.cluster.proxy.heal(name)
        if child.paused:
            child.resume()
            return
        if child.running and name not in self.stopping:
            return  # it was only cut off
        if child.running:
            child.wait()
        self.stopping.discard(name)
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
    parser.add_argument("--transactions", type=int, default=0, help="go on until so many are committed")
    parser.add_argument("--window", type=int, default=20, help="appends in flight of each client, for each partition")
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
                directory,
                zookeeper.fresh_chroot(),
                partitions=options.partitions,
                servers=options.servers,
                flags=(),
                proxied=True,
            ) as cluster,
        ):
            load = Load(cluster, options.clients, window=options.window)
            load.start()
            torture = Torture(cluster, zookeeper, load, options.seed)
            begin = time.monotonic()
            torture.run(options.seconds, options.transactions)
            lasted = time.monotonic() - begin
            verdict = load.finish()
    print(", ".join(f"{count} × {name}" for name, count in sorted(torture.done.items())))
    print(f"{verdict.committed / lasted:.0f} acknowledged transactions a second, {lasted:.0f} s")
    print(summary(verdict))
    if options.json is not None:
        found = {"seed": options.seed, "seconds": lasted, "faults": dict(torture.done), **attrs.asdict(verdict)}
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

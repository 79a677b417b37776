"""One run: a cluster of processes, clients that write down what they see, and faults."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from tests.histories.worker import FRONTS, VIEWS, Job
from tests.processes.cluster import Child, Cluster, poll, running_cluster
from tests.processes.torture import Torture
from tests.processes.zookeeper import running_zookeeper
from tests.witness.log import read_replica


@attrs.frozen
class Result:
    """The files of a run, and what was done to its processes."""

    files: list[Path]
    faults: dict[str, int]


class Clients:
    """Client processes; what `Torture` needs of a load."""

    def __init__(self, cluster: Cluster, count: int, **options: Any) -> None:
        self.cluster = cluster
        self.names = [f"client-{number}" for number in range(count)]
        self.files: list[Path] = []
        self._options = options
        for name in self.names:
            cluster.child(name)

    def start(self, *names: str) -> None:
        """Start clients, all by default; each time with another front and view."""
        for name in names or self.names:
            number = len(self.files) + 1
            path = self.cluster.directory / f"{name}-{number}.history"
            path.touch()
            self.files.append(path)
            job = Job(
                name=f"{name}-{number}",
                number=number,
                client=str(self.cluster.client_file),
                database=str(self.cluster.directory / f"{name}.db"),
                history=str(path),
                seed=number,
                **{"front": FRONTS[number % 2], "view": VIEWS[number // 2 % 2], **self._options},
            )
            made = path.with_suffix(".json")
            made.write_text(json.dumps(attrs.asdict(job)))
            child = self.cluster.children[name]
            child.command[1 + len(self.cluster.flags) :] = ["-m", "tests.histories.worker", str(made)]
            child.start()

    def finish(self) -> None:
        """End all in order, and write down the lists that are left."""
        children = [self.cluster.children[name] for name in self.names]
        for child in children:
            poll(f"{child.name} heeds signals", partial(_heeds_signals, child))
            child.interrupt()
        for child in children:
            assert child.wait() == 0, f"{child.name} ended with status {child.status}"
        self.files.append(self.cluster.directory / "final.history")
        self.files[-1].write_text(json.dumps({"what": "final", "lists": self._lists()}) + "\n")

    def _lists(self) -> dict[int, list[int]]:
        """As two disks at least hold them."""
        directory = self.cluster.directory
        replicas = [read_replica(directory / name, 0) for name in self.cluster.storage_names]
        held = Counter((entry.transaction_id, entry.data) for replica in replicas for entry in replica)
        found: dict[int, list[int]] = {}
        for (_, data), count in sorted(held.items()):
            kind, key, value = json.loads(data)
            if count > 1 and kind == "list":
                found.setdefault(key, []).append(value)
        return found

    def operations(self) -> int:
        """Answered so far, about."""
        return sum(path.read_bytes().count(b'"ok"') for path in self.files)


def _heeds_signals(child: Child) -> bool:
    return "heeds signals" in child.says()


def record(directory: Path, seed: int, seconds: float, clients: int) -> Result:
    """A run with faults by chance."""
    with (
        running_zookeeper() as zookeeper,
        running_cluster(directory, zookeeper.fresh_chroot(), servers=3, flags=(), proxied=True) as cluster,
    ):
        load = Clients(cluster, clients)
        load.start()
        torture = Torture(cluster, zookeeper, load, seed)
        torture.run(seconds)
        load.finish()
        faults = {name: count for name, count in torture.done.items() if name != "restart"}
    return Result(load.files, faults)


def record_calm(cluster: Cluster, operations: int, clients: int = 2, **options: Any) -> list[Path]:
    """The files of clients that meet no fault, once they were answered so often; `options` of `Job`."""
    load = Clients(cluster, clients, **options)
    load.start()
    poll(f"{operations} operations", lambda: load.operations() >= operations)
    load.finish()
    return load.files

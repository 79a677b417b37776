"""One run: a cluster of processes, clients that write down what they see, and faults."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from tests.histories.worker import FRONTS, VIEWS, Job
from tests.processes.cluster import Child, Cluster, poll, running_cluster
from tests.processes.torture import Torture
from tests.processes.zookeeper import running_zookeeper
from tests.views.servers import MariaServer, PostgresServer
from tests.witness.log import read_replica


@attrs.frozen
class Result:
    """The files of a run, what was done to its processes, and how its clients came."""

    files: list[Path]
    faults: dict[str, int]
    clients: dict[str, int]  # front and view → starts


class Databases:
    """Where the views of clients are kept: files, and a server of each kind that is asked for."""

    def __init__(self, directory: Path, *servers: PostgresServer | MariaServer) -> None:
        self._directory = directory
        self._servers = {"postgres" if isinstance(server, PostgresServer) else "mysql": server for server in servers}
        self._made: dict[tuple[str, str], Any] = {}

    @property
    def views(self) -> list[str]:
        """Kinds of views that can be had."""
        return [view for view in VIEWS if view in ("dict", "sqlite", *self._servers)]

    def of(self, client: str, view: str) -> Any:
        """What a view takes; the same for each start of a client, which goes on where the view was left."""
        key = client, view
        if key not in self._made:
            self._made[key] = self._new(client, view)
        return self._made[key]

    def _new(self, client: str, view: str) -> Any:
        server = self._servers.get(view)
        if server is None:
            return str(self._directory / f"{client}.db")
        database = server.new_database()
        return server.conninfo(database) if isinstance(server, PostgresServer) else server.options(database)


class Clients:
    """Client processes; what `Torture` needs of a load.

    Args:
        first: where in the turns of fronts and views the first one stands.
        options: of each `Job`.
    """

    def __init__(
        self, cluster: Cluster, count: int, databases: Databases | None = None, first: int = 0, **options: Any
    ) -> None:
        self.cluster = cluster
        self.names = [f"client-{number}" for number in range(count)]
        self.files: list[Path] = []
        self.ways: Counter[str] = Counter()  # front and view → starts
        self._databases = databases or Databases(cluster.directory)
        self._first = first
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
            turn, views = self._first + number, self._databases.views
            # Of three fronts, and two or four views: every pair has its turn.
            front, view = FRONTS[turn % len(FRONTS)], views[turn % len(views)]
            job = Job(
                name=f"{name}-{number}",
                number=number,
                client=str(self.cluster.client_file),
                database=self._databases.of(name, view),
                history=str(path),
                seed=number,
                **{"front": front, "view": view, **self._options},
            )
            self.ways[f"{job.front} {job.view}"] += 1
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


def record(
    directory: Path, seed: int, seconds: float, clients: int, servers: Sequence[PostgresServer | MariaServer] = ()
) -> Result:
    """A run with faults by chance; `servers` of databases are for views."""
    with (
        running_zookeeper() as zookeeper,
        running_cluster(directory, zookeeper.fresh_chroot(), servers=3, flags=(), proxied=True, clocks=True) as cluster,
    ):
        load = Clients(cluster, clients, Databases(directory, *servers), first=seed * clients)
        load.start()
        torture = Torture(cluster, zookeeper, load, seed)
        torture.run(seconds)
        load.finish()
        faults = {name: count for name, count in torture.done.items() if name != "restart"}
    return Result(load.files, faults, dict(load.ways))


def record_calm(cluster: Cluster, operations: int, clients: int = 2, **options: Any) -> list[Path]:
    """The files of clients that meet no fault, once they were answered so often; `options` of `Job`."""
    load = Clients(cluster, clients, **options)
    load.start()
    poll(f"{operations} operations", lambda: load.operations() >= operations)
    load.finish()
    return load.files

"""Waltz beside others, most of which keep three copies and sync a majority, in one run, each alone on the machine.

python -m benchmarks.peers [--peers waltz,nats,...] [--seconds 8] [--in-flight 1,64,1000] [--json PATH]

- `waltz`: one server, three storage nodes, TLS; loaded by our client, in one process.
- `original`: the same of Waltz 0.13.2 (`WALTZ_JAVA_CLASSPATH`), once 250,000 appends have warmed it up; loaded
  by the same client.
- `postgres`: a primary and two standbys, one of which must have synced, SERIALIZABLE, one row a commit; loaded by
  pgbench, at most 90 in flight.
- `nats`: JetStream, three servers, `sync_interval: always`; loaded by `nats bench`, in batches of as many as are in
  flight, so its times are those of a whole batch.
- `etcd`: three servers; loaded by its own `tools/benchmark`, which must be on PATH as `etcd-benchmark`.
- `kafka`: three brokers, one partition, `acks=all`, every append synced (`flush.messages=1`), once 250,000 records have
  warmed them up; `kafka-unsynced` leaves syncing to the system, as Kafka does by default. Jars are given by
  `WALTZ_KAFKA_CLASSPATH`; loaded by Kafka's producer (`benchmarks/kafka_peer.py` says how).
- `umadb`: an event store, one server and **one copy**, synced, each append with a condition; loaded by threads of its
  client for Python.

Each peer is started, takes every load, and is ended before the next one starts: idle clusters that stand by take turns
of the processor, which costs those most that have one append in flight. With more rounds than one, the whole sequence
is run again. A peer that is not installed is named and left out; one that was asked for by name must be there. Rates of
one run may be compared with each other, and with nothing else. Processor time is that of servers and storage nodes and
our client, of NATS, etcd, Kafka and UmaDB that of their servers.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import attrs
from rich.console import Console
from rich.table import Table

from benchmarks import append, kafka_peer, raft_peers, umadb_peer
from benchmarks.command import conclude, parser_of
from benchmarks.feed import fill
from benchmarks.measured import cluster_in, ready, scratch
from tests.interop import installation
from tests.interop.cluster import Kind, MixedCluster
from tests.processes.zookeeper import running_zookeeper

WARM = 250_000  # appends until a Java machine has compiled what they need
Measure: TypeAlias = Callable[[int], dict[str, Any]]
"""Figures with so many commits in flight."""


@attrs.frozen
class _Compiling(installation.Installation):
    """The original with the compiler and the collector that its machine chooses by itself."""

    def command(self, main: str, *arguments: str, heap: str = "1g") -> list[str]:
        small = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        return [word for word in super().command(main, *arguments, heap="1g") if word not in small]


def _measured(cluster: Any, options: argparse.Namespace, in_flight: int) -> dict[str, Any]:
    given = ["--size", str(options.size), "--seconds", str(options.seconds), "--warm-up", "2"]
    figures = append.measure(cluster, append.parse([*given, "--in-flight", str(in_flight)]))
    return {key: figures[key] for key in ("in_flight", "tx_per_s", "p50_ms", "p99_ms", "cpu_us_per_tx")}


@contextmanager
def waltz(options: argparse.Namespace) -> Iterator[Measure]:
    """Ours."""
    with cluster_in(options.directory) as cluster:
        yield partial(_measured, cluster, options)


@contextmanager
def original(options: argparse.Namespace) -> Iterator[Measure]:
    """0.13.2."""
    with ExitStack() as stack:
        directory = stack.enter_context(scratch(options.directory))
        made = installation.prepare(directory / "original")
        compiling = _Compiling(made.class_path, made.options, made.directory)
        zookeeper = stack.enter_context(running_zookeeper())
        cluster = MixedCluster(
            directory,
            zookeeper.fresh_chroot(),
            compiling,
            storage=(Kind.JAVA,) * 3,
            server=(Kind.JAVA,),
            settings={},
            flags=(),
        )
        stack.callback(cluster.end)
        cluster.set_up()
        fill(cluster, WARM, options.size)
        yield partial(_measured, cluster, options)


@contextmanager
def postgres(options: argparse.Namespace) -> Iterator[Measure]:
    """PostgreSQL."""
    from benchmarks.postgres_peer import running

    with running() as primary:
        yield lambda in_flight: primary.bench(in_flight, options.size, options.seconds)


@contextmanager
def nats(options: argparse.Namespace) -> Iterator[Measure]:
    """NATS JetStream."""
    with raft_peers.nats(options.directory, options.size, options.seconds) as measure:
        yield measure


@contextmanager
def etcd(options: argparse.Namespace) -> Iterator[Measure]:
    """Etcd."""
    with raft_peers.etcd(options.directory, options.size, options.seconds) as measure:
        yield measure


@contextmanager
def kafka(options: argparse.Namespace, *, synced: bool) -> Iterator[Measure]:
    """Kafka."""
    with kafka_peer.running(options.directory, options.size, options.seconds, WARM, synced=synced) as measure:
        yield measure


@contextmanager
def umadb(options: argparse.Namespace) -> Iterator[Measure]:
    """UmaDB."""
    with umadb_peer.running(options.directory, options.size, options.seconds) as measure:
        yield measure


PEERS: Mapping[str, Callable[[argparse.Namespace], AbstractContextManager[Measure]]] = {
    "waltz": waltz,
    "original": original,
    "postgres": postgres,
    "nats": nats,
    "etcd": etcd,
    "kafka": partial(kafka, synced=True),
    "kafka-unsynced": partial(kafka, synced=False),
    "umadb": umadb,
}
_SHORT = {"kafka-unsynced": "three copies, none synced", "umadb": "one copy, synced"}  # what they do less


def absent(peer: str) -> str | None:
    """Why a peer cannot run here, None if it can."""
    if peer == "original":
        return installation.missing()
    if peer == "postgres":
        if importlib.util.find_spec("psycopg") is None:
            return "no psycopg: pip install -e '.[dev]'"
        if not any(Path("/usr/lib/postgresql").glob("*/bin/pgbench")):
            return "no PostgreSQL with pgbench: install the Debian package postgresql"
    if peer in ("kafka", "kafka-unsynced"):
        return kafka_peer.missing()
    if peer == "umadb":
        return umadb_peer.missing()
    return raft_peers.missing(peer) if peer in raft_peers.TOOLS else None


def run(names: Sequence[str], options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Every load on one peer after the other, of which no two run at a time; as often as there are rounds."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for at in range(options.rounds):
        for name in names:
            with PEERS[name](options) as measure:
                for in_flight in options.in_flight:
                    figures = measure(in_flight) | {"asked": in_flight, "round": at + 1}
                    found[name].append(figures)
                    print(json.dumps({"peer": name, **figures}), flush=True)
    return found


def table(found: dict[str, list[dict[str, Any]]]) -> Table:
    """For people: of each peer and load the best round."""
    shown = Table(title="Commits, three copies, a majority synced; the best round of each")
    shown.caption = "; ".join(f"{name}: {short}" for name, short in _SHORT.items() if name in found)
    for column in ("peer", "in flight", "commits/s", "ms (pgbench: mean)", "ms, p99", "CPU µs a commit"):
        shown.add_column(column, justify="left" if column == "peer" else "right", no_wrap=column == "peer")
    for name, rounds in found.items():
        for asked in dict.fromkeys(figures["asked"] for figures in rounds):
            best = max((each for each in rounds if each["asked"] == asked), key=lambda each: each["tx_per_s"])
            cells = [best.get("p50_ms", best.get("mean_ms")), best.get("p99_ms"), best.get("cpu_us_per_tx")]
            texts = ["" if cell is None else f"{cell:,.2f}" for cell in cells]
            shown.add_row(name, str(best["in_flight"]), f"{best['tx_per_s']:,}", *texts)
    return shown


def numbers(text: str) -> list[int]:
    """Positive numbers, separated by commas."""
    found = [int(part) for part in text.split(",")]
    if min(found) < 1:
        raise ValueError(text)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = parser_of("peers", __doc__)
    parser.add_argument(
        "--peers", help=f"separated by commas, of {', '.join(PEERS)}; default: those that are installed"
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load")
    parser.add_argument("--rounds", type=int, default=1, help="how often the whole sequence of peers")
    parser.add_argument("--in-flight", type=numbers, default=[1, 64, 1000], help="loads, separated by commas")
    parser.add_argument("--size", type=int, default=200, help="bytes of each payload")
    options = parser.parse_args(argv)
    names = options.peers.split(",") if options.peers else list(PEERS)
    if unknown := [name for name in names if name not in PEERS]:
        parser.error(f"--peers: {unknown[0]} is none of {', '.join(PEERS)}")
    if status := ready():
        return status
    reasons = {name: reason for name in names if (reason := absent(name)) is not None}
    for name, reason in reasons.items():
        print(f"{name} is left out: {reason}" if not options.peers else f"{name}: {reason}", file=sys.stderr)
    if reasons and options.peers:
        return 3
    found = run([name for name in names if name not in reasons], options)
    Console().print(table(found))
    return conclude(found, options.json, shown=True)


if __name__ == "__main__":
    sys.exit(main())

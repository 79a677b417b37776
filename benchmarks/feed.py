"""What reading a log costs: a fresh client reads a partition from its start, with payloads and without.

python -m benchmarks.feed [--count 200000] [--again 0] [--rounds 3] [--size 200] [--batch 1000] [--json PATH]

One ZooKeeper (not counted), three storage nodes, one server, a new client process for each reading; TLS with
verification. `--again N` makes the log longer by as much N times and reads it anew: what a transaction costs must not
grow with the length of the log. Processor time is that of each process while the reader reads, per transaction.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.append_client import Job
from benchmarks.children import clients
from benchmarks.command import conclude, parser_of
from benchmarks.measured import cluster_in, cpu_of, ready
from tests.processes.cluster import Cluster

KINDS = {"payloads": 1000, "headers": 0}  # kind → payloads read ahead


def fill(cluster: Cluster, count: int, size: int) -> None:
    """Make the log of partition 0 longer."""
    job = Job(
        client=str(cluster.client_file),
        role="append",
        partitions=1,
        size=size,
        in_flight=min(count, 4000),
        warm_up=0.0,
        count=count,
        batch=1000,
    )
    with clients(cluster, [job]) as (loader,):
        loader.expect("ready")
        loader.begin()
        for event in ("warm", "done", "ended"):
            loader.expect(event)
        loader.finish()


def read(cluster: Cluster, options: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Read the log once, in a process of its own."""
    job = Job(
        client=str(cluster.client_file),
        role="read",
        partitions=1,
        size=options.size,
        batch=options.batch,
        prefetch=KINDS[kind],
    )
    with clients(cluster, [job]) as (reader,):
        reader.expect("ready")
        pids = {name: child.pid for name, child in cluster.children.items()} | {"client": reader.process.pid}
        before = cpu_of(pids)
        reader.begin()
        read = reader.expect("read")
        after = cpu_of(pids)
        reader.finish()
    count = read["count"]
    costs = {name: (after[name] - before[name]) / count * 1e6 for name in pids}
    return {
        "kind": kind,
        "count": count,
        "tx_per_s": round(count / read["seconds"]),
        "cpu_us_per_tx": {name: round(cost, 2) for name, cost in costs.items()}
        | {"all": round(sum(costs.values()), 2)},
    }


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Set up a cluster, fill it, read it."""
    readings = []
    with cluster_in(options.directory) as cluster:
        for _ in range(options.again + 1):
            fill(cluster, options.count, options.size)
            for _ in range(options.rounds):
                for kind in options.kinds.split(","):
                    readings.append(read(cluster, options, kind))
                    print(json.dumps(readings[-1]), flush=True)
    return readings


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = parser_of("feed", __doc__)
    parser.add_argument("--count", type=int, default=200_000, help="transactions that are appended each time")
    parser.add_argument("--again", type=int, default=0, help="how often the log gets longer, and is read again")
    parser.add_argument("--rounds", type=int, default=3, help="readings of each kind at each length")
    parser.add_argument("--kinds", default=",".join(KINDS), help="what is read, separated by commas")
    parser.add_argument("--size", type=int, default=200, help="bytes of each payload")
    parser.add_argument("--batch", type=int, default=1000, help="transactions of one batch; 0 = one by one")
    options = parser.parse_args(argv)
    if status := ready():
        return status
    return conclude(run(options), options.json, shown=True)


if __name__ == "__main__":
    sys.exit(main())

"""Many readers of one partition: how many transactions they are given a second, all together, and what that costs.

python -m benchmarks.readers [--readers 100] [--processes 4] [--count 50000] [--json PATH]

Each reader is a client with connections of its own, and reads the whole log; all begin together. Processor time is
that of all processes for each delivery, ZooKeeper left out.
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
from benchmarks.feed import KINDS, fill
from benchmarks.measured import cluster_in, cpu_of, ready
from tests.processes.cluster import Cluster


def read(cluster: Cluster, options: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Let all readers read the log once."""
    job = Job(
        client=str(cluster.client_file),
        role="read",
        partitions=1,
        size=options.size,
        batch=1000,
        prefetch=KINDS[kind],
        readers=options.readers // options.processes,
    )
    with clients(cluster, [job] * options.processes) as readers:
        for reader in readers:
            reader.expect("ready")
        pids = {name: child.pid for name, child in cluster.children.items()}
        pids |= {reader.name: reader.process.pid for reader in readers}
        before = cpu_of(pids)
        for reader in readers:
            reader.begin()
        told = [reader.expect("read") for reader in readers]
        after = cpu_of(pids)
        for reader in readers:
            reader.finish()
    delivered = sum(each["count"] for each in told)
    spent = {name: after[name] - before[name] for name in pids}
    return {
        "kind": kind,
        "readers": job.readers * options.processes,
        "deliveries": delivered,
        "deliveries_per_s": round(delivered / max(each["seconds"] for each in told)),
        "cpu_us_per_delivery": round(sum(spent.values()) / delivered * 1e6, 2),
        "cpu_us_of_server": round(spent["server-0"] / delivered * 1e6, 2),
    }


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Set up a cluster, fill it, read it."""
    readings = []
    with cluster_in(options.directory) as cluster:
        fill(cluster, options.count, options.size)
        for kind in options.kinds.split(","):
            readings.append(read(cluster, options, kind))
            print(json.dumps(readings[-1]), flush=True)
    return readings


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = parser_of("readers", __doc__)
    parser.add_argument("--readers", type=int, default=100, help="clients that read, in all processes together")
    parser.add_argument("--processes", type=int, default=4, help="processes that share them")
    parser.add_argument("--count", type=int, default=50_000, help="transactions in the log")
    parser.add_argument("--kinds", default=",".join(KINDS), help="what is read, separated by commas")
    parser.add_argument("--size", type=int, default=200, help="bytes of each payload")
    options = parser.parse_args(argv)
    if options.readers % options.processes:
        parser.error(f"--readers {options.readers} cannot be shared equally by {options.processes} --processes")
    if status := ready():
        return status
    return conclude(run(options), options.json, shown=True)


if __name__ == "__main__":
    sys.exit(main())

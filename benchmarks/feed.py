"""What reading a log costs: a fresh client reads a partition from its start, with payloads and without.

python -m benchmarks.feed [--count 200000] [--again 0] [--rounds 3] [--size 200] [--batch 1000] [--json PATH]

One ZooKeeper (not counted), three storage nodes, one server, a new client process for each reading; TLS with
verification. `--again N` makes the log longer by as much N times and reads it anew: what a transaction costs must not
grow with the length of the log. Processor time is that of each process while the reader reads, per transaction.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.append import clients, cpu_seconds, file_system, observed
from benchmarks.append_client import Job
from tests.processes.cluster import Cluster
from tests.processes.zookeeper import missing, running_zookeeper

KINDS = {"payloads": 1000, "headers": 0}  # kind → payloads read ahead


def fill(cluster: Cluster, options: argparse.Namespace) -> None:
    """Make the log longer."""
    job = Job(
        client=str(cluster.client_file),
        role="append",
        partitions=1,
        size=options.size,
        in_flight=4000,
        warm_up=0.0,
        count=options.count,
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
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        reader.begin()
        read = reader.expect("read")
        after = {name: cpu_seconds(pid) for name, pid in pids.items()}
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
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="waltz-bench-", dir=options.directory)))
        if file_system(scratch) in ("tmpfs", "ramfs"):
            print(f"{scratch} is in memory: name a directory on a disk with --directory", file=sys.stderr)
            raise SystemExit(3)
        zookeeper = stack.enter_context(running_zookeeper())
        cluster = Cluster(scratch, zookeeper.fresh_chroot(), partitions=1, flags=())
        for name, child in cluster.children.items():
            child.command[1:1] = observed(name)
        stack.callback(cluster.end)
        try:
            cluster.set_up()
            for _ in range(options.again + 1):
                fill(cluster, options)
                for _ in range(options.rounds):
                    for kind in options.kinds.split(","):
                        readings.append(read(cluster, options, kind))
                        print(json.dumps(readings[-1]), flush=True)
            for name in (*cluster.server_names, *cluster.storage_names):
                cluster.children[name].stop()  # a profile is written at an orderly end
        except BaseException:
            print(cluster.story(), file=sys.stderr)
            raise
    return readings


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.feed", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--count", type=int, default=200_000, help="transactions that are appended each time")
    parser.add_argument("--again", type=int, default=0, help="how often the log gets longer, and is read again")
    parser.add_argument("--rounds", type=int, default=3, help="readings of each kind at each length")
    parser.add_argument("--kinds", default=",".join(KINDS), help="what is read, separated by commas")
    parser.add_argument("--size", type=int, default=200, help="bytes of each payload")
    parser.add_argument("--batch", type=int, default=1000, help="transactions of one batch; 0 = one by one")
    parser.add_argument("--directory", default="/var/tmp", help="where the data goes; not on a tmpfs")
    parser.add_argument("--json", type=Path, help="write the readings as one JSON array")
    options = parser.parse_args(argv)
    problem = missing()
    if problem is not None:
        print(problem, file=sys.stderr)
        return 3
    # A signal ends this process through the blocks that end its children.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    readings = run(options)
    if options.json is not None:
        options.json.write_text(json.dumps(readings, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Appends through real processes: how many a second, how long each takes, what it costs.

python -m benchmarks.append [--size 200] [--in-flight 1000] [--count N | --seconds S] [--json PATH]

One ZooKeeper (not counted), three storage nodes, one server, one client process by default; TLS with
verification; three synced replicas. In flight means unresolved appends through the public `send`; committed
means that the client has the outcome. With --rate, appends leave by a schedule, and one is as old as the moment
that it was due: how long it takes at that load, and what becomes of more than the cluster can take. After a
warm-up it measures; then the log is read back and checked.
Exit status: 1 if a floor given with --at-least or --p50-at-most is missed, 3 if something needed is absent.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.append_client import Job
from benchmarks.children import clients
from benchmarks.command import conclude, parser_of
from benchmarks.measured import cluster_in, cpu_of, file_system, peak_mib, percentile, ready
from tests.processes.cluster import Cluster


def syncs(cluster: Cluster) -> dict[str, int]:
    """How often each storage node has synced a file or a directory, as it tells."""
    found = {}
    for name in cluster.storage_names:
        gauge = (cluster.get(name, "/metrics") or {"gauges": {}})["gauges"].get("waltz-storage.sync-count")
        if gauge is not None:
            found[name] = int(gauge["value"])
    return found


def measure(cluster: Cluster, options: argparse.Namespace) -> dict[str, Any]:
    """Load the cluster and return the figures."""
    share = max(1, options.in_flight // options.clients)
    job = Job(
        client=str(cluster.client_file),
        role="append",
        partitions=options.partitions,
        size=options.size,
        in_flight=share,
        locks=options.locks,
        warm_up=options.warm_up,
        seconds=options.seconds,
        count=options.count // options.clients,
        batch=options.batch,
        rate=options.rate / options.clients,
    )
    with clients(cluster, [job] * options.clients) as loaders:
        for loader in loaders:
            loader.expect("ready")
        for loader in loaders:
            loader.begin()
        for loader in loaders:
            loader.expect("warm")
        pids = {name: child.pid for name, child in cluster.children.items()}
        pids |= {loader.name: loader.process.pid for loader in loaders}
        cpu_before, syncs_before = cpu_of(pids), syncs(cluster)
        done = [loader.expect("done") for loader in loaders]
        cpu_after, syncs_after = cpu_of(pids), syncs(cluster)
        peak = {name: round(peak_mib(pid), 1) for name, pid in pids.items()}
        acknowledged = sum(loader.expect("ended")["acknowledged"] for loader in loaders)
        for loader in loaders:
            loader.finish()
    buckets: Counter[int] = Counter()
    for found in done:
        buckets.update({int(number): count for number, count in found["buckets"].items()})
    committed = sum(found["committed"] for found in done)
    return {
        "tx_per_s": round(sum(found["committed"] / found["seconds"] for found in done)),
        "p50_ms": percentile(buckets, 0.50),
        "p99_ms": percentile(buckets, 0.99),
        "committed": committed,
        "acknowledged": acknowledged,  # warm-up and what was in flight at the end included
        "p999_ms": percentile(buckets, 0.999),
        "refused": sum(found["refused"] for found in done),
        "seconds": round(max(found["seconds"] for found in done), 2),
        "in_flight": share * options.clients,
        "cpu_s": {name: round(cpu_after[name] - cpu_before[name], 2) for name in pids},
        "cpu_us_per_tx": round(sum(cpu_after[n] - cpu_before[n] for n in pids) / max(1, committed) * 1e6, 1),
        "syncs": {name: count - syncs_before.get(name, 0) for name, count in syncs_after.items()},
        "peak_rss_mb": peak,
    }


def read_back(cluster: Cluster, options: argparse.Namespace) -> dict[str, Any]:
    """Read the whole log through a fresh client; ids must be dense, payloads whole."""
    job = Job(
        client=str(cluster.client_file),
        role="read",
        partitions=options.partitions,
        size=options.size,
        batch=1000,
    )
    with clients(cluster, [job]) as (reader,):
        reader.expect("ready")
        reader.begin()
        found = reader.expect("read")
        reader.finish()
    return {"count": found["count"], "seconds": round(found["seconds"], 2)}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Set up a cluster, measure, read back, tear down."""
    with cluster_in(options.directory, partitions=options.partitions, settings=options.set) as cluster:
        kind = file_system(cluster.directory)
        figures = measure(cluster, options)
        back = read_back(cluster, options)
        for name in (*cluster.server_names, *cluster.storage_names):
            figures["peak_rss_mb"][name] = round(peak_mib(cluster.children[name].pid), 1)
    figures |= {"file_system": kind, "read_back": back, "options": describe(options)}
    return figures


def describe(options: argparse.Namespace) -> dict[str, object]:
    """The options that matter for a comparison."""
    names = ("size", "in_flight", "rate", "batch", "partitions", "clients", "locks", "count", "seconds", "set")
    return {name: getattr(options, name) for name in names}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = parser_of("append", __doc__)
    parser.add_argument("--size", type=int, default=200, help="bytes of each payload")
    parser.add_argument("--in-flight", type=int, default=1000, help="unresolved appends, all clients together")
    parser.add_argument("--rate", type=float, default=0, help="appends a second by a schedule, instead of --in-flight")
    parser.add_argument("--batch", type=int, default=0, help="appends of each `send_many`; 0 = `send`, one by one")
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--clients", type=int, default=1, help="client processes")
    parser.add_argument("--locks", type=int, default=0, help="write locks of each append, out of 100,000")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to measure")
    parser.add_argument("--count", type=int, default=0, help="measure until this many are committed instead")
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds before measuring")
    parser.add_argument("--set", type=setting, action="append", default=[], metavar="KEY=VALUE", help="configuration")
    parser.add_argument("--at-least", type=float, default=0, help="transactions a second that must be reached")
    parser.add_argument("--p50-at-most", type=float, default=0, help="ms that the median must not exceed")
    options = parser.parse_args(argv)
    options.set = dict(options.set)
    return options


def setting(text: str) -> tuple[str, str]:
    """One KEY=VALUE."""
    key, _, value = text.partition("=")
    return key, value


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    options = parse(argv)
    if status := ready():
        return status
    begin = time.monotonic()
    figures = run(options)
    back = figures["read_back"]
    print(
        f"{figures['tx_per_s']:,} tx/s, p50 {figures['p50_ms']:.2f} ms, p99 {figures['p99_ms']:.2f} ms, "
        f"{figures['cpu_us_per_tx']} µs of CPU a transaction; read back {back['count']:,} in {back['seconds']:.1f} s "
        f"({time.monotonic() - begin:.0f} s in all)",
        file=sys.stderr,
    )
    failures = []
    if back["count"] != figures["acknowledged"]:
        failures.append(f"read back {back['count']}, acknowledged {figures['acknowledged']}")
    if options.at_least and figures["tx_per_s"] < options.at_least:
        failures.append(f"{figures['tx_per_s']} tx/s, expected at least {options.at_least:.0f}")
    if options.p50_at_most and figures["p50_ms"] > options.p50_at_most:
        failures.append(f"p50 {figures['p50_ms']} ms, expected at most {options.p50_at_most}")
    return conclude(figures, options.json, failures)


if __name__ == "__main__":
    sys.exit(main())

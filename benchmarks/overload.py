"""Twice as many appends as the cluster can take: what it commits of them, and what memory that takes.

python -m benchmarks.overload [--seconds 5] [--clients 4] [--json PATH]

First the peak: as many appends in flight as `--in-flight` says, of all clients together. Then twice the peak by a
schedule, which nobody slows down. What was acknowledged is read back. Exit status: 1 if --at-least is missed, or
something acknowledged is not in the log.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import append
from benchmarks.command import conclude, parser_of
from benchmarks.measured import cluster_in, peak_mib, ready

_TIMES = 2  # the peak


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Both loads on one cluster."""
    common = ["--clients", str(options.clients), "--seconds", str(options.seconds), "--size", str(options.size)]
    common += ["--directory", options.directory, "--warm-up", "2"]
    with cluster_in(options.directory) as cluster:
        peak = append.measure(cluster, append.parse([*common, "--in-flight", str(options.in_flight)]))
        before = {name: child.pid for name, child in cluster.children.items()}
        quiet = {name: round(peak_mib(pid), 1) for name, pid in before.items()}
        offered = _TIMES * peak["tx_per_s"]
        over = append.measure(cluster, append.parse([*common, "--rate", str(offered)]))
        back = append.read_back(cluster, append.parse(common))
    return {
        "peak_tx_per_s": peak["tx_per_s"],
        "offered_tx_per_s": offered,
        "tx_per_s": over["tx_per_s"],
        "share_of_peak": round(over["tx_per_s"] / max(1, peak["tx_per_s"]), 3),
        "peak_rss_mb_at_peak": quiet,
        "peak_rss_mb": over["peak_rss_mb"],
        "acknowledged": peak["acknowledged"] + over["acknowledged"],
        "read_back": back["count"],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = parser_of("overload", __doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to measure each load")
    parser.add_argument("--clients", type=int, default=4, help="client processes")
    parser.add_argument("--in-flight", type=int, default=1000, help="unresolved appends at the peak, of all clients")
    parser.add_argument("--size", type=int, default=200, help="bytes of each payload")
    parser.add_argument("--at-least", type=float, default=0, help="share of the peak that must be committed")
    options = parser.parse_args(argv)
    if status := ready():
        return status
    figures = run(options)
    failures = []
    if figures["read_back"] != figures["acknowledged"]:
        failures.append(f"read back {figures['read_back']}, acknowledged {figures['acknowledged']}")
    if figures["share_of_peak"] < options.at_least:
        failures.append(f"{figures['share_of_peak']} of the peak, expected at least {options.at_least}")
    return conclude(figures, options.json, failures)


if __name__ == "__main__":
    sys.exit(main())

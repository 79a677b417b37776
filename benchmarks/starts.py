"""How long processes take to start and what they cost when nobody asks anything of them.

python -m benchmarks.starts [--segments 2000] [--partitions 200] [--clients 100] [--json PATH]

`storage`: a storage node whose partition has so many segments, from its start until it answers. `server`: a server with
so many partitions, from its start until it serves all of them, that is with the recovery of each. `idle`: the processor
time and memory of that server and of a storage node while nothing happens, first alone, then with clients that are
connected and say nothing. The issue of large clusters: 10,000 segments, 1,000 partitions, 500 clients.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.append_client import Job
from benchmarks.children import clients
from benchmarks.command import conclude, parser_of
from benchmarks.feed import fill
from benchmarks.measured import cluster_in, cpu_of, cpu_seconds, ready, resident_mib
from tests.processes.cluster import Cluster

_PAYLOAD = 200
_PER_SEGMENT = 4  # records; a segment ends with the first record that reaches the threshold
_THRESHOLD = _PER_SEGMENT * 256  # what a record of that payload takes, roughly
_PATIENCE = 600.0  # seconds, on a busy machine
_BUSY = 0.1  # seconds of processor time in a second, of all that are watched
_WATCHED = ("server-0", "storage-0")


def storage(options: argparse.Namespace) -> dict[str, Any]:
    """Fill one partition with small segments, restart a storage node, and the server behind it."""
    settings = {"storage.segment.size.threshold": _THRESHOLD}
    with cluster_in(options.directory, settings=settings) as cluster:
        fill(cluster, _PER_SEGMENT * options.segments, _PAYLOAD)
        folder = cluster.directory / "storage-0" / "0"
        segments = len(list(folder.glob("*.seg")))
        cluster.children["storage-0"].stop()
        begin = time.monotonic()
        cluster.start("storage-0")
        node_s, node_cpu_s = time.monotonic() - begin, cpu_seconds(cluster.children["storage-0"].pid)
        return {
            "segments": segments,
            "node_answers_s": round(node_s, 2),
            "node_cpu_s": round(node_cpu_s, 2),
            "server_serves_s": round(restart(cluster), 2),
            "storage_mib": round(resident_mib(cluster.children["storage-0"].pid), 1),
        }


def restart(cluster: Cluster) -> float:
    """End the server in order and start it again; seconds from then until it serves every partition."""
    cluster.children["server-0"].stop()
    begin = time.monotonic()
    cluster.start("server-0")
    cluster.wait_healthy(_PATIENCE)
    return time.monotonic() - begin


def many_partitions(options: argparse.Namespace) -> dict[str, Any]:
    """Restart the server of many partitions, then leave it alone."""
    with cluster_in(options.directory, partitions=options.partitions) as cluster:
        found: dict[str, Any] = {"partitions": options.partitions, "server_serves_s": round(restart(cluster), 2)}
        found |= {
            "server_cpu_s": round(cpu_seconds(cluster.children["server-0"].pid), 2),
            "idle": idle(cluster, options),
        }
        each = options.clients // options.processes
        job = Job(client=str(cluster.client_file), role="idle", partitions=1, readers=each)
        with clients(cluster, [job] * options.processes) as connected:
            for client in connected:
                client.expect("ready")
                client.begin()
            found |= {"clients": each * options.processes, "idle_with_clients": idle(cluster, options)}
            for client in connected:
                client.begin()
            for client in connected:
                client.finish()
        return found


def idle(cluster: Cluster, options: argparse.Namespace) -> dict[str, Any]:
    """What processes use while nothing happens."""
    pids, started = {name: cluster.children[name].pid for name in _WATCHED}, time.monotonic()
    before, begin = cpu_of(pids), time.monotonic()
    time.sleep(1.0)
    while sum(cpu_of(pids).values()) - sum(before.values()) > _BUSY and time.monotonic() - started < _PATIENCE:
        before, begin = cpu_of(pids), time.monotonic()  # the start left something to do
        time.sleep(1.0)
    time.sleep(options.seconds)
    took = time.monotonic() - begin
    return {
        name: {
            "percent_of_a_core": round((cpu_seconds(pid) - before[name]) / took * 100, 2),
            "resident_mib": round(resident_mib(pid), 1),
        }
        for name, pid in pids.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = parser_of("starts", __doc__)
    parser.add_argument("--segments", type=int, default=2000, help="of the one partition; 0 leaves this part out")
    parser.add_argument("--partitions", type=int, default=200, help="of the server; 0 leaves this part out")
    parser.add_argument("--clients", type=int, default=100, help="connected, and silent")
    parser.add_argument("--processes", type=int, default=2, help="processes that share the clients")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to watch idle processes")
    options = parser.parse_args(argv)
    if status := ready():
        return status
    figures: dict[str, Any] = {}
    for name, wanted, part in (
        ("segments", options.segments, storage),
        ("partitions", options.partitions, many_partitions),
    ):
        if wanted:
            figures[name] = part(options)
            print(json.dumps({name: figures[name]}), flush=True)
    return conclude(figures, options.json, shown=True)


if __name__ == "__main__":
    sys.exit(main())

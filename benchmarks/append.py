"""Appends through real processes: how many a second, how long each takes, what it costs.

python -m benchmarks.append [--size 200] [--in-flight 1000] [--count N | --seconds S] [--json PATH]

One ZooKeeper (not counted), three storage nodes, one server, one client process by default; TLS with
verification; three synced replicas. In flight means unresolved appends through the public `send`; committed
means that the client has the outcome. After a warm-up it measures; then the log is read back and checked.
Exit status: 1 if a floor given with --at-least or --p50-at-most is missed, 3 if something needed is absent.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.append_client import Job
from tests.processes.cluster import ROOT, Cluster
from tests.processes.zookeeper import missing, running_zookeeper

PROFILE = "WALTZ_BENCH_PROFILE"  # directory for profiles of every process; slows everything down
STAMPS = "WALTZ_BENCH_STAMPS"  # directory for when each process did what, for `benchmarks.timeline`
_TICKS = os.sysconf("SC_CLK_TCK")


def file_system(path: Path) -> str:
    """Type of the file system that holds `path`."""
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        if path.resolve().is_relative_to(mount) and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def peak_mib(pid: int) -> float:
    """Largest resident size of a process so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


class Client:
    """A child that runs `benchmarks.append_client`."""

    def __init__(self, name: str, directory: Path, job: Job) -> None:
        self.name = name
        path = directory / f"{name}.json"
        job.write(path)
        self.process = subprocess.Popen(
            [sys.executable, *observed(name), "-m", "benchmarks.append_client", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def expect(self, event: str) -> dict[str, Any]:
        """Its next line, which must be about `event`."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self.process.wait()} before it was {event}")
        found: dict[str, Any] = json.loads(line)
        assert found["event"] == event, f"{self.name}: expected {event}, found {found}"
        return found

    def begin(self) -> None:
        """Let it go."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def finish(self) -> None:
        """It must end by itself, in order."""
        status = self.process.wait(120)
        self.close()
        if status:
            raise SystemExit(f"{self.name} ended with status {status}")

    def close(self) -> None:
        """End it in any state."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


def observed(name: str) -> list[str]:
    """What to put before `-m` so that a process is profiled, or notes when it does what, if that was asked for."""
    for key, module, ending in ((PROFILE, "profiled", "prof"), (STAMPS, "stamped", "json")):
        directory = os.environ.get(key)
        if directory:
            return ["-m", f"benchmarks.{module}", str(Path(directory) / f"{name}.{ending}")]
    return []


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
        cpu_before, syncs_before = {name: cpu_seconds(pid) for name, pid in pids.items()}, syncs(cluster)
        done = [loader.expect("done") for loader in loaders]
        cpu_after, syncs_after = {name: cpu_seconds(pid) for name, pid in pids.items()}, syncs(cluster)
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
        "refused": sum(found["refused"] for found in done),
        "seconds": round(max(found["seconds"] for found in done), 2),
        "in_flight": share * options.clients,
        "cpu_s": {name: round(cpu_after[name] - cpu_before[name], 2) for name in pids},
        "cpu_us_per_tx": round(sum(cpu_after[n] - cpu_before[n] for n in pids) / max(1, committed) * 1e6, 1),
        "syncs": {name: count - syncs_before.get(name, 0) for name, count in syncs_after.items()},
        "peak_rss_mb": peak,
    }


def percentile(buckets: Mapping[int, int], share: float) -> float:
    """In ms, from buckets of 10 µs."""
    left = share * sum(buckets.values())
    for number, count in sorted(buckets.items()):
        left -= count
        if left <= 0:
            return (number + 0.5) / 100
    return 0.0


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


@contextmanager
def clients(cluster: Cluster, jobs: Sequence[Job]) -> Iterator[list[Client]]:
    """One process for each job; none is left at the end."""
    with ExitStack() as stack:
        made = []
        for number, job in enumerate(jobs):
            name = f"client-{number}" if job.role == "append" else "reader"
            made.append(Client(name, cluster.directory, job))
            stack.callback(made[-1].close)
        yield made


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Set up a cluster, measure, read back, tear down."""
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="waltz-bench-", dir=options.directory))
        kind = file_system(Path(scratch))
        if kind in ("tmpfs", "ramfs"):
            print(f"{scratch} is on {kind}: name a directory on a disk with --directory", file=sys.stderr)
            raise SystemExit(3)
        zookeeper = stack.enter_context(running_zookeeper())
        cluster = Cluster(
            Path(scratch), zookeeper.fresh_chroot(), partitions=options.partitions, flags=(), settings=options.set
        )
        for name, child in cluster.children.items():
            child.command[1:1] = observed(name)
        stack.callback(cluster.end)
        try:
            cluster.set_up()
            figures = measure(cluster, options)
            back = read_back(cluster, options)
            for name in (*cluster.server_names, *cluster.storage_names):
                figures["peak_rss_mb"][name] = round(peak_mib(cluster.children[name].pid), 1)
            if observed(""):
                for name in (*cluster.server_names, *cluster.storage_names):
                    cluster.children[name].stop()
        except BaseException:
            print(cluster.story(), file=sys.stderr)
            raise
    figures |= {"file_system": kind, "read_back": back, "options": describe(options)}
    return figures


def describe(options: argparse.Namespace) -> dict[str, object]:
    """The options that matter for a comparison."""
    names = ("size", "in_flight", "batch", "partitions", "clients", "locks", "count", "seconds", "set")
    return {name: getattr(options, name) for name in names}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.append", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--size", type=int, default=200, help="bytes of each payload")
    parser.add_argument("--in-flight", type=int, default=1000, help="unresolved appends, all clients together")
    parser.add_argument("--batch", type=int, default=0, help="appends of each `send_many`; 0 = `send`, one by one")
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--clients", type=int, default=1, help="client processes")
    parser.add_argument("--locks", type=int, default=0, help="write locks of each append, out of 100,000")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to measure")
    parser.add_argument("--count", type=int, default=0, help="measure until this many are committed instead")
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds before measuring")
    parser.add_argument("--directory", default="/var/tmp", help="where the data goes; not on a tmpfs")
    parser.add_argument("--set", type=setting, action="append", default=[], metavar="KEY=VALUE", help="configuration")
    parser.add_argument("--at-least", type=float, default=0, help="transactions a second that must be reached")
    parser.add_argument("--p50-at-most", type=float, default=0, help="ms that the median must not exceed")
    parser.add_argument("--json", type=Path, help="write the figures as one JSON object")
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
    problem = missing()
    if problem is not None:
        print(problem, file=sys.stderr)
        return 3
    # A signal ends this process through the blocks that end its children.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begin = time.monotonic()
    figures = run(options)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))
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
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

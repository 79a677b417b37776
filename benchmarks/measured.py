"""What benchmarks of whole clusters share: a cluster of processes on a disk, and what processes use."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.processes.cluster import Cluster
from tests.processes.zookeeper import missing, running_zookeeper

PROFILE = "WALTZ_BENCH_PROFILE"  # directory for profiles of every process; slows everything down
STAMPS = "WALTZ_BENCH_STAMPS"  # directory for when each process did what, for `benchmarks.timeline`
_TICKS = os.sysconf("SC_CLK_TCK")
_MEMORY = ("tmpfs", "ramfs")


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


def cpu_of(pids: Mapping[str, int]) -> dict[str, float]:
    """`cpu_seconds` of several processes, by name."""
    return {name: cpu_seconds(pid) for name, pid in pids.items()}


def peak_mib(pid: int) -> float:
    """Largest resident size of a process so far."""
    return _status_mib(pid, "VmHWM:")


def resident_mib(pid: int) -> float:
    """Resident size of a process now."""
    return _status_mib(pid, "VmRSS:")


def _status_mib(pid: int, key: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    return 0.0


def observed(name: str) -> list[str]:
    """What to put before `-m` so that a process is profiled, or notes when it does what, if that was asked for."""
    for key, module, ending in ((PROFILE, "profiled", "prof"), (STAMPS, "stamped", "json")):
        directory = os.environ.get(key)
        if directory:
            Path(directory).mkdir(parents=True, exist_ok=True)
            return ["-m", f"benchmarks.{module}", str(Path(directory) / f"{name}.{ending}")]
    return []


def percentile(buckets: Mapping[int, int], share: float) -> float:
    """In ms, from buckets of 10 µs."""
    left = share * sum(buckets.values())
    for number, count in sorted(buckets.items()):
        left -= count
        if left <= 0:
            return (number + 0.5) / 100
    return 0.0


@contextmanager
def scratch(parent: str) -> Iterator[Path]:
    """A directory on a disk, gone with the block.

    Raises:
        SystemExit: `parent` is in memory, where a sync costs nothing.
    """
    with tempfile.TemporaryDirectory(prefix="waltz-bench-", dir=parent) as name:
        if (kind := file_system(Path(name))) in _MEMORY:
            print(f"{name} is on {kind}: name a directory on a disk with --directory", file=sys.stderr)
            raise SystemExit(3)
        yield Path(name)


@contextmanager
def cluster_in(parent: str, **options: Any) -> Iterator[Cluster]:
    """A cluster of processes that serves, with its ZooKeeper; on failure it tells what each process wrote last.

    Args:
        parent: of the directory that it lives in, and that ends with it.
        options: of `Cluster`.
    """
    with scratch(parent) as directory, running_zookeeper() as zookeeper:
        cluster = Cluster(directory, zookeeper.fresh_chroot(), flags=(), **options)
        for name, child in cluster.children.items():
            child.command[1:1] = observed(name)
        try:
            cluster.set_up()
            yield cluster
            if observed(""):  # a profile is written at an orderly end
                for name in (*cluster.server_names, *cluster.storage_names):
                    cluster.children[name].stop()
        except BaseException:
            print(cluster.story(), file=sys.stderr)
            raise
        finally:
            cluster.end()


def ready() -> int:
    """Exit status 3 if something needed is absent, else 0; a signal then ends our children, too."""
    problem = missing()
    if problem is not None:
        print(problem, file=sys.stderr)
        return 3
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return 0

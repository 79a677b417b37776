"""What a process uses of its machine, and how long appends take, looked at again and again while a cluster runs."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from tests.processes.cluster import Child, Cluster
from tests.processes.failover import Tail
from tests.processes.load import Load

CLUSTER = "cluster"  # the name under which figures stand that belong to no single process
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_MIB = 1 << 20


@attrs.frozen
class Sample:
    """One process at one time.

    Attributes:
        at: seconds since the run began.
        age: seconds since this life of the process began.
        life: how often it was started.
        values: figure → value.
    """

    at: float
    age: float
    name: str
    life: int
    values: dict[str, float]

    def line(self) -> str:
        """As a line of a file."""
        return json.dumps(attrs.astuple(self)) + "\n"


def read_samples(path: Path) -> list[Sample]:
    """The lines of a file; the last one may be cut."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [Sample(*json.loads(line)) for line in lines if line.endswith("\n")]


class Sampler:
    """Looks at the processes of a cluster in a thread of its own.

    Args:
        cluster: whose processes are looked at.
        load: whose journals tell the latencies.
        interval: seconds between two looks.
        path: where each sample is written as soon as it is taken.
    """

    def __init__(self, cluster: Cluster, load: Load, interval: float, path: Path) -> None:
        self.samples: list[Sample] = []
        self.commits = 0
        self._cluster = cluster
        self._load = load
        self._interval = interval
        self._path = path
        self._tails: dict[Path, Tail] = {}
        self._lives: dict[str, tuple[int, float]] = {}  # process → process id, and when it was seen first
        self._cpu: dict[str, float] = {}  # process → seconds of CPU of this life, at the last look
        self._begin = time.monotonic()
        self._done = threading.Event()
        self._problem: BaseException | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Look until the block is left.

        Raises:
            RuntimeError: looking failed, and nothing was seen since.
        """
        thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join()
        if self._problem is not None:
            raise RuntimeError("the processes could not be looked at") from self._problem

    def _run(self) -> None:
        try:
            with self._path.open("a", encoding="utf-8", buffering=1) as file:
                while not self._done.wait(self._interval):
                    for sample in self._look():
                        self.samples.append(sample)
                        file.write(sample.line())
        except BaseException as problem:  # it is reported where the block is left
            self._problem = problem

    def _look(self) -> Iterator[Sample]:
        at = time.monotonic() - self._begin
        used = 0.0
        for name, child in list(self._cluster.children.items()):
            with contextlib.suppress(OSError, IndexError):  # it may end while it is looked at
                if child.running:
                    sample, cpu = self._process(name, child, at)
                    used += cpu
                    yield sample
        latencies = sorted((back - call) / 1e6 for tail in self._journals() for back, call in tail.take())
        self.commits += len(latencies)
        if latencies:
            values = {
                "p50_ms": latencies[len(latencies) // 2],
                "p99_ms": latencies[len(latencies) * 99 // 100],
                "commits_per_s": len(latencies) / self._interval,
                "cpu_us_per_commit": used * 1e6 / len(latencies),
            }
            yield Sample(at, at, CLUSTER, 1, values)

    def _process(self, name: str, child: Child, at: float) -> tuple[Sample, float]:
        """A sample, and the CPU it used since the last one."""
        process = Path("/proc") / str(child.pid)
        life, since = child.starts, at
        if self._lives.get(name, (0, 0.0))[0] == child.pid:
            since = self._lives[name][1]
        else:
            self._lives[name] = child.pid, at
            self._cpu[name] = 0.0
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        cpu = (int(fields[11]) + int(fields[12])) / _TICKS
        values = {
            "memory_mib": int((process / "statm").read_text().split()[1]) * _PAGE / _MIB,
            "threads": float(fields[17]),
            "descriptors": float(len(os.listdir(process / "fd"))),
        }
        if name.startswith("storage"):
            values["disk_mib"] = _disk(self._cluster.directory / name) / _MIB
        used, self._cpu[name] = cpu - self._cpu[name], cpu
        return Sample(at, at - since, name, life, values), used

    def _journals(self) -> Iterable[Tail]:
        for path in list(self._load.journals):
            if path not in self._tails:
                self._tails[path] = Tail(path)
        return list(self._tails.values())


def _disk(directory: Path) -> int:
    """Bytes that the files below a directory take of the disk."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(folder, name)).st_blocks * 512
    return total

"""The original's smoke test, its clients and its timetable of restarts, a few times faster, on our processes."""

from __future__ import annotations

import heapq
import signal
import time
from pathlib import Path

import attrs

from tests.interop.cluster import Kind, MixedCluster
from tests.interop.load import MixedLoad
from tests.interop.scenarios import COMMITS, Outcome, Scene
from tests.processes.cluster import Child, poll
from tests.processes.zookeeper import ZooKeeperServer, running_zookeeper

_SPEED = 5
# Seconds up and down, as the original's smoke test has them.
_TIMES = {
    "zookeeper": (80, 5),
    "server-0": (40, 10),
    "server-1": (60, 10),
    "server-2": (100, 10),
    "storage-0": (60, 10),
    "storage-1": (100, 10),
    "storage-2": (120, 10),
}
_LENGTH = 200  # seconds of the original's time: everything is restarted at least once
_ACCOUNTS = 1000  # lock ids


def restarts(scene: Scene) -> Outcome:
    """Two clients of the original, three servers and storage nodes of ours, three partitions; everything is stopped
    and started on its timetable, ZooKeeper too; then all is restarted at once and read again."""
    with running_zookeeper() as zookeeper:
        own = attrs.evolve(scene, zookeeper=zookeeper)
        options = {"partitions": 3, "storage": (Kind.OURS,) * 3, "server": (Kind.OURS,) * 3}
        with own.cluster(**options) as cluster:
            load = MixedLoad(cluster, (Kind.JAVA, Kind.JAVA), accounts=_ACCOUNTS)
            load.start()
            for partition in range(cluster.partitions):
                cluster.wait_commits(COMMITS, partition)
            before = cluster.committed()
            stops = _keep_timetable(cluster, zookeeper)
            cluster.wait_healthy()
            # One that goes back to its preferred server tells nothing for a moment.
            after = poll(
                "every partition tells its mark",
                lambda: marks if len(marks := cluster.committed()) == cluster.partitions else None,
            )
            assert all(after[partition] > before[partition] for partition in before), "every partition went on"
            verdict = load.finish()
            names = (*cluster.server_names, *cluster.storage_names)
            for name in names:
                cluster.stop(name)
            cluster.start(*reversed(names))
            cluster.wait_healthy()
            marks = {partition: length - 1 for partition, length in verdict.log.items()}
            poll("the marks after the restart are the log's", lambda: cluster.committed() == marks)
            load.check_readers(verdict)
    return Outcome(verdict.committed, f"{stops} restarts in {_LENGTH / _SPEED:.0f} s")


def _keep_timetable(cluster: MixedCluster, zookeeper: ZooKeeperServer) -> int:
    """Stop and start everything when its time comes; returns how often something was stopped."""
    begin = time.monotonic()
    due = [(up / _SPEED, name, True) for name, (up, _) in _TIMES.items()]
    heapq.heapify(due)
    stops = 0
    while due:
        at, name, stop = heapq.heappop(due)
        time.sleep(max(0.0, begin + at - time.monotonic()))
        up, down = _TIMES[name]
        if stop:
            stops += 1
            _stop(cluster, zookeeper, name)
        else:
            _start(cluster, zookeeper, name)
        then = time.monotonic() - begin + (down if stop else up) / _SPEED
        if stop or then < _LENGTH / _SPEED:
            heapq.heappush(due, (then, name, not stop))
    return stops


def _stop(cluster: MixedCluster, zookeeper: ZooKeeperServer, name: str) -> None:
    if name == "zookeeper":
        zookeeper.stop()
        return
    child = cluster.children[name]
    poll(f"{name} heeds signals", lambda: _heeds_signals(child))
    child.stop()


def _heeds_signals(child: Child) -> bool:
    """It has a handler of its own: until then SIGTERM ends it as it ends any program."""
    status = Path(f"/proc/{child.pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def _start(cluster: MixedCluster, zookeeper: ZooKeeperServer, name: str) -> None:
    if name == "zookeeper":
        zookeeper.start()
        return
    child = cluster.children[name]
    child.start()
    poll(f"{name} has not ended", lambda: child.running)

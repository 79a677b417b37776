"""The clocks that tests set: the wall clock of a process moves, what it waits by does not."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes.clocks import Clocks
from tests.processes.cluster import running_cluster
from tests.processes.load import Load
from tests.processes.zookeeper import ZooKeeperServer

# Each way of waiting that the product and its libraries use, then both clocks; a line for each line it is given.
_PROGRAM = """
import datetime, queue, select, sys, threading, time
for line in sys.stdin:
    time.sleep(0.01)
    threading.Event().wait(0.01)
    try:
        queue.Queue().get(timeout=0.01)
    except queue.Empty:
        pass
    select.select([], [], [], 0.01)
    select.epoll().poll(0.01)
    print(time.time(), datetime.datetime.now().timestamp(), time.time_ns() / 1e9, time.monotonic(), flush=True)
"""


def test_a_clock_that_is_set_moves_the_wall_clock_of_its_process_and_no_wait(tmp_path: Path) -> None:
    clocks = Clocks(tmp_path / "clocks")
    environment = clocks.environment("here")
    command = [sys.executable, "-c", _PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for ahead in (0, 3600, -7200, 86400 * 400, 60, -60):
            clocks.set("here", ahead)
            begin, begin_monotonic = time.time(), time.monotonic()
            print(file=child.stdin, flush=True)
            *walls, monotonic = map(float, child.stdout.readline().split())
            end, end_monotonic = time.time(), time.monotonic()
            assert all(begin + ahead <= wall <= end + ahead for wall in walls)
            assert begin_monotonic <= monotonic <= end_monotonic
        child.stdin.close()
        assert child.wait() == 0


def test_clocks_jump_both_ways_and_never_behind_the_certificates(tmp_path: Path) -> None:
    clocks = Clocks(tmp_path)
    clocks.environment("here")
    rng = random.Random(1)
    jumps, ahead = [], []
    for _ in range(300):
        jumps.append(clocks.jump("here", rng))
        ahead.append(clocks.ahead("here"))
    assert min(jumps) < -3600 * 8
    assert max(jumps) > 3600 * 8
    assert min(map(abs, jumps)) < 600
    assert min(ahead) >= 0
    assert min(ahead) < 3600


@pytest.mark.slow
def test_clocks_that_jump_stop_no_append_and_no_process(tmp_path: Path, own_zookeeper: ZooKeeperServer) -> None:
    with running_cluster(tmp_path, own_zookeeper.fresh_chroot(), servers=2, clocks=True) as cluster:
        load = Load(cluster, 1)
        load.start()
        rng = random.Random(7)
        assert cluster.clocks is not None
        for _ in range(4):
            for name in (*cluster.storage_names, *cluster.server_names, *load.names):
                cluster.clocks.jump(name, rng)
            cluster.wait_commits(50)
        own_zookeeper.kill()
        own_zookeeper.start()
        for name in cluster.server_names:
            cluster.children[name].kill()
            cluster.children[name].start()
        cluster.wait_healthy()
        cluster.wait_commits(50)
        load.finish()
        cluster.assert_calm()

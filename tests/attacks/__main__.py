"""`python -m tests.attacks [--json FILE] [--seconds N] [ATTACK…]`: every attack on every port, beside an honest load.

For each: commits per second before, during and after; the attacker's processor time; what memory and descriptors the
attacked process is left with. The exit status is 1 if a bar is missed:

* every process is up, and says nothing of an error in itself;
* the honest rate stays above half of what the attacker leaves of the processors, and is back at 90 % within 5 s;
* descriptors are back to where they were, memory has grown by less than 64 MiB;
* nothing acknowledged is missing in the log.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import attrs

from tests.attacks.field import LIMITS, PORTS, attack, descriptors, memory, result
from tests.attacks.peers import ATTACKS, WIDTH
from tests.processes.cluster import Cluster, poll, running_cluster
from tests.processes.load import Load
from tests.processes.zookeeper import running_zookeeper

_AFTER = 5.0  # seconds until the honest rate must be back
_MEMORY = 64 << 20


@attrs.frozen
class Row:
    """What one attack on one port did."""

    port: str
    attack: str
    connections: int
    cpu: float  # seconds of the attacker, per second
    before: float  # commits per second
    during: float
    after: float
    memory: int  # bytes more than before
    descriptors: int  # more than before
    missed: tuple[str, ...]


def applied(load: Load) -> int:
    """Transactions that a client has seen: in its database, since the HTTP ports may be under attack themselves."""
    with closing(sqlite3.connect(load.database(load.names[0]))) as database:
        return int(database.execute("SELECT coalesce(max(rowid), 0) FROM applied").fetchone()[0])


def rate(load: Load, seconds: float) -> float:
    """Commits per second."""
    begin, seen = time.monotonic(), applied(load)
    time.sleep(seconds)
    return (applied(load) - seen) / (time.monotonic() - begin)


def measure(cluster: Cluster, load: Load, name: str, port: str, seconds: float) -> Row:
    """One attack."""
    process = PORTS[port][0]
    size, count = memory(cluster, process), descriptors(cluster, process)
    before = rate(load, seconds)
    hostile = attack(cluster, name, port, seconds + 1)
    during = rate(load, seconds)
    done = result(hostile)
    share = done["cpu"] / (seconds + 1)
    after, end = 0.0, time.monotonic() + _AFTER
    while after < 0.9 * before and time.monotonic() < end:
        after = max(after, rate(load, 1.0))
    missed = []
    if during < 0.5 * before * (1 - share / (os.cpu_count() or 1)):
        missed.append("rate during")
    if after < 0.9 * before:
        missed.append("rate after")
    try:
        poll("descriptors", lambda: descriptors(cluster, process) < count + WIDTH // 10, 15)
    except TimeoutError:
        missed.append("descriptors")
    grown = memory(cluster, process) - size
    if grown > _MEMORY:
        missed.append("memory")
    left = descriptors(cluster, process) - count
    return Row(port, name, done["connections"], share, before, during, after, grown, left, tuple(missed))


def run(directory: Path, names: list[str], seconds: float) -> list[Row]:
    """Every attack; raises `AssertionError` where a process ended, complained, or lost something."""
    rows = []
    options = {"storage_nodes": 3, "tls": False, "settings": LIMITS, "flags": ()}
    with (
        running_zookeeper() as zookeeper,
        running_cluster(directory, zookeeper.fresh_chroot(), **options) as cluster,
    ):
        load = Load(cluster)
        load.start()
        cluster.wait_commits(200)
        print("port          attack      conns   cpu  before  during   after    MiB  fds")
        for port in PORTS:
            for name in names:
                row = measure(cluster, load, name, port, seconds)
                rows.append(row)
                print(
                    f"{row.port:<13} {row.attack:<9} {row.connections:>7} {row.cpu:>5.2f} {row.before:>7.0f} "
                    f"{row.during:>7.0f} {row.after:>7.0f} {row.memory / (1 << 20):>6.1f} {row.descriptors:>4} "
                    f"{', '.join(row.missed)}",
                    flush=True,
                )
        load.finish()
        for child in cluster.children.values():
            assert "an error in this process" not in child.text(), f"{child.name} complains of itself"
    return rows


def main() -> int:
    """Parse, run, report; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement (%(default)s)")
    parser.add_argument("attack", nargs="*", help=f"of {', '.join(ATTACKS)}; all by default")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.attack if name not in ATTACKS]
    if unknown:
        parser.error(f"unknown attack {unknown[0]}; known: {', '.join(ATTACKS)}")
    with tempfile.TemporaryDirectory() as directory:
        rows = run(Path(directory), arguments.attack or list(ATTACKS), arguments.seconds)
    if arguments.json:
        arguments.json.write_text(json.dumps([attrs.asdict(row) for row in rows], indent=1))
    missed = sum(bool(row.missed) for row in rows)
    print(f"{len(rows)} attacks, {missed} missed a bar")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""The corruption matrix: three replicas of four acknowledged records, each copy good or bad, every combination.

Servers and storage nodes are the real machines on the simulated network and disks. A case must *recover* if
every record has a good copy somewhere: all records are served as they were acknowledged, and all three replicas
are whole again, to the byte. Otherwise it must *wait*: what is lost is refused, every node that has it damaged
says so, and no good record is given up. Anything else is *silent*, which is what must never be.

`python -m tests.model.corruption [--json PATH] [--every N]`: exit status 1 unless all cases are as they must be.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.model.cluster import ROOT, SimCluster
from tests.model.test_server import Client
from waltz_core.base.edge import ZkCreate
from waltz_core.storage.replica import State
from waltz_core.wire import client_messages as messages
from waltz_core.zookeeper.paths import cluster_paths

REPLICAS = 3
RECORDS = 4
CASES = 1 << (REPLICAS * RECORDS)
EXPECTED = {"recovered": (2**REPLICAS - 1) ** RECORDS}
EXPECTED["waiting"] = CASES - EXPECTED["recovered"]
DATA = tuple(f"record number {number}".encode() * 3 for number in range(RECORDS))
PATHS = cluster_paths(ROOT)
LOG = "0/0000000000000000000.seg"
TIME_MAX_MS = 90_000  # of the cluster, to recover in
WAITED_MS = 12_000  # of the cluster, in which a case that waits must not have gone on
_SIZE = 40 + len(DATA[0])
_SCRUB: dict[str, Any] = {"scrub_bytes_per_s": 1 << 20, "scrub_first_ms": 200, "scrub_pause_ms": 2000}


class Base:
    """The cluster as it was when its power went off: four records acknowledged, on all three replicas."""

    def __init__(self) -> None:
        cluster = SimCluster(1)
        cluster.start()
        cluster.until_open()
        client = Client(cluster)
        client.mount()
        for data in DATA:
            client.append(data)
        client.wait(lambda: len(client.feed()) == RECORDS)
        cluster.world.run_while(lambda: True, 5000)  # the marks are written
        self.metadata = cluster.world.zookeeper.read(PATHS.partition(0))
        for node in cluster.servers:
            node.crash()
        self.disks = []
        for storage in cluster.storages:
            storage.crash(power=True)
            self.disks.append(storage.disk.disk)
        self.files = [disk.content(LOG) for disk in self.disks]
        assert len({content[128:] for content in self.files}) == 1
        assert len(self.files[0]) == 128 + RECORDS * _SIZE


def bad_copies(case: int) -> list[tuple[int, int]]:
    """Replica and record of every bad copy of a case."""
    return [divmod(bit, RECORDS) for bit in range(REPLICAS * RECORDS) if case >> bit & 1]


def must_recover(case: int) -> bool:
    """Whether every record has a good copy."""
    bad = Counter(record for _, record in bad_copies(case))
    return all(count < REPLICAS for count in bad.values())


class Case:
    """One combination."""

    def __init__(self, base: Base, case: int) -> None:
        self.base = base
        self.bad = bad_copies(case)
        self.lost = {record for record in range(RECORDS) if sum(1 for _, one in self.bad if one == record) == REPLICAS}
        self.cluster = SimCluster(case, storage_options=_SCRUB)
        self.world = self.cluster.world
        self.world.tolerates = lambda text: True  # what is damaged is to be said
        self.cluster._create(self.cluster.storages)
        self.cluster.set_replicas(self.cluster.storages)
        self.world.zookeeper.write([ZkCreate(0, PATHS.partition(0), base.metadata)])
        for storage, disk in zip(self.cluster.storages, base.disks, strict=True):
            storage.disk.replace(disk.clone())
        for replica, record in self.bad:
            # Where in the record depends on the case: its id, its length, its data, its checksums.
            byte = (0, 7, 20, 30, 34, 50, _SIZE - 1)[(case + record) % 7]
            self.cluster.storages[replica].disk.disk.flip(LOG, 128 + record * _SIZE + byte)
        self.damaged = [storage.disk.disk.content(LOG) for storage in self.cluster.storages]

    def run(self) -> str:
        """What became of it."""
        for storage in self.cluster.storages:
            storage.start()
        assert self.world.run_while(lambda: not all(s.ready for s in self.cluster.storages), 60_000)
        self.cluster.servers[0].start()
        if not self.lost:
            if not self.world.run_while(lambda: not self.whole(), TIME_MAX_MS, every=50):
                return "stuck"
            return "recovered" if self.read() == list(DATA) else "silent"
        self.world.run_while(lambda: not self.all_said(), TIME_MAX_MS, every=50)
        self.world.run_while(lambda: True, WAITED_MS, every=1000)
        return "waiting" if self.is_waiting() else "silent"

    def whole(self) -> bool:
        """The partition is served; every replica is in service and holds what it held."""
        return self.served() and all(
            storage.alive_and_open and storage.content == content
            for storage, content in zip(map(_Look, self.cluster.storages), self.base.files, strict=True)
        )

    def served(self) -> bool:
        """Whether the server has the partition open."""
        server = self.cluster.servers[0]
        return any(partition.healthy for partition in server.machine.snapshot(server.clock).partitions)

    def all_said(self) -> bool:
        """Every node knows of every lost record that it cannot give it, or is out of service and says so."""
        return all(self.lost <= look.refused for look in map(_Look, self.cluster.storages))

    def is_waiting(self) -> bool:
        """Nothing wrong is served, what is lost is said by every node, no good record is gone from any disk."""
        if not self.all_said():
            return False
        for storage, damaged in zip(self.cluster.storages, self.damaged, strict=True):
            content = storage.disk.disk.content(LOG)
            for record in range(RECORDS):
                span = slice(128 + record * _SIZE, 128 + (record + 1) * _SIZE)
                if content[span] not in (self.base.files[0][span], damaged[span]):
                    return False
                if damaged[span] == self.base.files[0][span] != content[span]:
                    return False
        found = self.read()
        return all(data in (None, right) for data, right in zip(found, DATA, strict=True)) and all(
            found[record] is None for record in self.lost
        )

    def read(self) -> list[bytes | None]:
        """What a client is given; None where it is given nothing."""
        if not self.served():
            return [None] * RECORDS
        client = Client(self.cluster)
        found: list[bytes | None] = []
        for number in range(RECORDS):
            answer = client.ask(messages.TransactionDataRequest(client.req_id(), number))
            found.append(answer.data if answer.success else None)
        return found


class _Look:
    """One storage node from outside."""

    def __init__(self, storage: Any) -> None:
        self.content = storage.disk.disk.content(LOG)
        replica = storage.node.machine.replicas[0]
        self.alive_and_open = storage.ready and replica.state is State.OPEN and not replica.faults
        # In limbo nothing but intact records is given out, and the reason is told.
        limbo = replica.state is State.LIMBO and bool(replica.reason)
        self.refused = set(range(RECORDS)) if limbo else set(replica.faults)


def run(cases: Sequence[int], report: bool = False) -> dict[str, Any]:
    """Run cases; counts by outcome, and the cases whose outcome is not what it must be."""
    base = Base()
    outcomes: Counter[str] = Counter()
    wrong: list[tuple[int, str]] = []
    begin = time.monotonic()
    for number, case in enumerate(cases):
        try:
            outcome = Case(base, case).run()
        except AssertionError as error:
            outcome = f"failed: {error}"
        outcomes[outcome] += 1
        if outcome != ("recovered" if must_recover(case) else "waiting"):
            wrong.append((case, outcome))
        if report and number % 256 == 255:
            print(f"{number + 1} cases: {dict(outcomes)}", file=sys.stderr, flush=True)
    return {
        "cases": len(cases),
        "recovered": outcomes["recovered"],
        "waiting": outcomes["waiting"],
        "silent": outcomes["silent"],
        "other": len(cases) - outcomes["recovered"] - outcomes["waiting"] - outcomes["silent"],
        "wrong": wrong[:20],
        "wall_s": round(time.monotonic() - begin, 1),
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.model.corruption", description=__doc__)
    parser.add_argument("--json", help="write one object there")
    parser.add_argument("--every", type=int, default=1, help="only every N-th case")
    parser.add_argument("--case", type=int, help="one case")
    options = parser.parse_args()
    cases = range(0, CASES, options.every) if options.case is None else [options.case]
    found = run(cases, report=True)
    if options.every == 1 and options.case is None:
        found["expected"] = EXPECTED
        found["passed"] = not found["wrong"] and all(found[name] == count for name, count in EXPECTED.items())
    else:
        found["passed"] = not found["wrong"]
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=2)
    for name, value in found.items():
        print(f"{name:>10}: {value}")
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())

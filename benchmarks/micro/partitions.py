"""`python -m benchmarks.micro.partitions`: CPU of a server and its storage nodes per append, with many partitions.

A cluster of the simulator; a client made by hand appends a few transactions to every partition at once, waits for all
of them, and does so again. Only the machines' `step` is timed, by the CPU clock of the process: no TLS, no sockets, no
disk. With `--spread 0` everything arrives at once, so each step has as much to do as it can have; with more, messages
are late by up to so many milliseconds of simulated time, as on a loaded machine, and steps have less to do.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import time
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from tests.model.test_server import Client, opened
from waltz_core.base.ids import make_req_id
from waltz_core.wire import client_messages as messages

_DATA = bytes(200)
_CHECKSUM = crc32(_DATA) - (1 << 32 if crc32(_DATA) >> 31 else 0)


class Timed:
    """A machine whose steps are timed."""

    def __init__(self, machine: Any, profile: cProfile.Profile | None) -> None:
        self.machine = machine
        self.spent = 0
        self.steps = 0
        self._profile = profile

    def __getattr__(self, name: str) -> Any:
        return getattr(self.machine, name)

    def step(self, now: int, events: Sequence[Any], out: list[Any]) -> None:
        """As the machine does it."""
        profile = self._profile
        began = time.process_time_ns()
        if profile is not None:
            profile.enable()
        self.machine.step(now, events, out)
        if profile is not None:
            profile.disable()
        self.spent += time.process_time_ns() - began
        self.steps += 1


def measure(
    partitions: int, rounds: int, each: int, spread: int, profiles: dict[str, cProfile.Profile]
) -> dict[str, float]:
    """Microseconds per append, by process."""
    cluster = opened(partitions=partitions)
    client = Client(cluster)
    for partition in range(partitions):
        client.mount(partition=partition)
    cluster.world.network.latency = (1, 1 + spread)
    cluster.world.network.piece = 1 << 20
    for storage in cluster.storages:
        storage.disk.latency = (1, 1)
    nodes = {"server": [cluster.servers[0]], "storage": [storage.node for storage in cluster.storages]}
    timed: dict[str, list[Timed]] = {}
    for kind, some in nodes.items():
        for node in some:
            node.machine = Timed(node.machine, profiles.get(kind))
            timed.setdefault(kind, []).append(node.machine)
    mark = -1
    gc.collect()
    gc.freeze()  # as Waltz's processes do, with their thresholds
    gc.set_threshold(10_000, 10, 10)
    for _ in range(rounds):
        client.received.clear()
        data = bytearray()
        for partition in range(partitions):
            for _ in range(each):
                client.sequence += 1
                req_id = make_req_id(client.client_id, client.generation, partition, client.sequence)
                client.connection.encode(messages.AppendRequest(req_id, mark, (), (), (), 0, _DATA, _CHECKSUM), data)
        client.peer.send(bytes(data))
        client.wait(lambda: len(client.received) >= partitions * each)
        mark += each
    count = partitions * rounds * each
    found: dict[str, float] = {"appends": count}
    for kind, machines in timed.items():
        found[f"{kind}_us"] = round(sum(one.spent for one in machines) / 1_000 / count, 2)
        found[f"{kind}_steps"] = sum(one.steps for one in machines)
    return found


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.micro.partitions", description=__doc__)
    parser.add_argument("--partitions", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--each", type=int, default=2, help="appends to each partition at a time")
    parser.add_argument("--spread", type=int, default=3, help="milliseconds by which a message may be late")
    parser.add_argument("--profile", default="", choices=("", "server", "storage"), help="where the time goes")
    options = parser.parse_args(arguments)
    profiles = {options.profile: cProfile.Profile(time.process_time)} if options.profile else {}
    print(json.dumps(measure(options.partitions, options.rounds, options.each, options.spread, profiles)))
    for profile in profiles.values():
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()

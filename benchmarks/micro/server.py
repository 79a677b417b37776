"""`python -m benchmarks.micro.server`: CPU of a server's machine per append and per step, on a simulated network.

A cluster of the simulator (one server, three storage nodes) gets bursts of appends from one connection; only the
server's `step` is timed, by the CPU clock of the process. `--burst 1` is one append at a time: what steps cost that
have little to do, as with many partitions. `--idle N` adds connections that greet and then say nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

from tests.model.test_server import Client, opened
from waltz_core.base.edge import Accepted, Port, Received
from waltz_core.wire.connection import CLIENT_PROTOCOL, Connection

_STEPS = 2_000  # without an event


class Timed:
    """A server's machine whose steps are timed."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.spent = 0
        self.steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.machine, name)

    def step(self, now: int, events: Sequence[Any], out: list[Any]) -> None:
        """As the machine does it."""
        began = time.process_time_ns()
        self.machine.step(now, events, out)
        self.spent += time.process_time_ns() - began
        self.steps += 1


def measure(bursts: int, burst: int, idle: int, locks: int) -> dict[str, float]:
    """Microseconds per append with its feed, and per step without an event."""
    cluster = opened()
    client = Client(cluster)
    client.mount()
    node = cluster.servers[0]
    hello = Connection[Any](CLIENT_PROTOCOL, "idle", {5}).hello()
    now = node.clock
    for conn in range(1_000_000, 1_000_000 + idle):
        node.machine.step(now, [Accepted(conn, Port.CLIENT, f"10.0.0.1:{conn}"), Received(conn, hello)], [])
    timed = node.machine = Timed(node.machine)
    for first in range(0, bursts * burst, burst):
        for at in range(first, first + burst):
            client.append(bytes(200), mark=first - 1, write=tuple(at * 31 + lock for lock in range(locks)))
        client.wait(lambda wanted=first + burst: len(client.received) > wanted)  # beside the answer to the mount
    count = len(client.feed())
    spent, steps = timed.spent, timed.steps
    began = time.process_time_ns()
    for _ in range(_STEPS):
        timed.machine.step(node.clock, [], [])
    return {
        "us_per_append": round(spent / 1_000 / max(1, count), 3),
        "appends": count,
        "steps": steps,
        "us_per_empty_step": round((time.process_time_ns() - began) / 1_000 / _STEPS, 3),
    }


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.micro.server", description=__doc__)
    parser.add_argument("--bursts", type=int, default=100, help="how many")
    parser.add_argument("--burst", type=int, default=100, help="appends of each")
    parser.add_argument("--idle", type=int, default=0, help="connections that say nothing")
    parser.add_argument("--locks", type=int, default=0, help="write locks of an append")
    options = parser.parse_args(arguments)
    print(json.dumps(measure(options.bursts, options.burst, options.idle, options.locks)))


if __name__ == "__main__":
    main()

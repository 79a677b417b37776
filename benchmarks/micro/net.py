"""Round-trip time and throughput of two pumps over TLS on loopback: the floor under every figure of a cluster.

    python -m benchmarks.micro.net [--size 200] [--batch 100] [--seconds 3]

Both ends run in one process and share its core, so a real client and server do better.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import trio

from waltz_core.base.edge import Closed, Dial, Dialed, Port, Received, Send
from waltz_core.base.ids import Endpoint
from waltz_trio.net.driver import NodeDriver
from waltz_trio.net.listener import bind
from waltz_trio.net.tls import ClientTls, ServerTls, TlsSettings


class Echo:
    """Sends back what comes."""

    def deadline(self) -> int | None:
        return None

    def step(self, now: int, events: Sequence[Any], out: list[Any]) -> None:
        out.extend(Send(event.conn, event.data) for event in events if type(event) is Received)


class Caller:
    """Keeps `in_flight` messages under way and notes each round trip."""

    def __init__(self, endpoint: Endpoint, size: int, in_flight: int) -> None:
        self._endpoint = endpoint
        self._size = size
        self._in_flight = in_flight
        self._pending = 0
        self._sent_at: list[float] = []
        self.done = 0
        self.ending = False
        self.round_trips: list[float] = []

    def deadline(self) -> int | None:
        return None

    def step(self, now: int, events: Sequence[Any], out: list[Any]) -> None:
        for event in events:
            match event:
                case "start":
                    out.append(Dial(-1, self._endpoint, Port.CLIENT))
                case Dialed():
                    self._send(self._in_flight, out)
                case Received(data=data):
                    self._pending += len(data)
                case Closed(reason=reason) if not self.ending:
                    raise AssertionError(reason)
        count, self._pending = divmod(self._pending, self._size)
        if count:
            self.done += count
            at = time.perf_counter()
            self.round_trips.extend(at - sent for sent in self._sent_at[:count])
            del self._sent_at[:count]
            self._send(count, out)

    def _send(self, count: int, out: list[Any]) -> None:
        self._sent_at.extend([time.perf_counter()] * count)
        message = b"x" * self._size
        out.extend(Send(-1, message) for _ in range(count))


async def measure(size: int, in_flight: int, seconds: float) -> dict[str, float]:
    """Messages per second and round trips in milliseconds."""
    async with trio.open_nursery() as nursery:
        server = NodeDriver(Echo(), name="echo")
        await nursery.start(server.run)
        sock = bind("127.0.0.1", 0, "port")
        server.serve(Port.CLIENT, sock, ServerTls(TlsSettings()))
        machine = Caller(Endpoint("127.0.0.1", sock.getsockname()[1]), size, in_flight)
        client = NodeDriver(machine, name="caller", client_tls=ClientTls(TlsSettings(verify=False)))
        await nursery.start(client.run)
        client.post("start")
        await trio.sleep(0.5)
        machine.done, cpu, start = 0, time.process_time(), time.perf_counter()
        machine.round_trips.clear()
        await trio.sleep(seconds)
        took, cpu = time.perf_counter() - start, time.process_time() - cpu
        machine.ending = True
        nursery.cancel_scope.cancel()
    trips = sorted(machine.round_trips)
    return {
        "in_flight": in_flight,
        "messages_per_s": round(machine.done / took),
        "p50_ms": round(statistics.median(trips) * 1000, 3),
        "p99_ms": round(trips[len(trips) * 99 // 100] * 1000, 3),
        "cpu_us_per_message": round(cpu / machine.done * 1e6, 2),
    }


def main() -> None:
    """Print one line of JSON per setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=200, help="bytes of a message")
    parser.add_argument("--batch", type=int, default=100, help="messages in flight in the second run")
    parser.add_argument("--seconds", type=float, default=3.0)
    args = parser.parse_args()
    for in_flight in (1, args.batch, 10 * args.batch):
        print(json.dumps(trio.run(measure, args.size, in_flight, args.seconds)))


if __name__ == "__main__":
    main()

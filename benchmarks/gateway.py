"""What a gateway costs beside a client of the cluster: appends and feeds, by turns, with their ratio.

python -m benchmarks.gateway [--size 200] [--connections 16] [--seconds 5] [--turns 3] [--records 2000] [--json PATH]

`waltz dev` and `waltz gateway run` as processes of their own; the callers are in this one. An append of a connection
waits for its outcome before the next one leaves, through the gateway as well as directly. Feeds read what the turns
have appended, from the start. Then 1, 10 and 100 readers follow the end of the log while `--records` are appended: what
the gateway's processor time comes to for each record and reader. Figures of a machine that does other things are worth
nothing, but their ratio is.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

import waltz_trio as waltz
from benchmarks.command import conclude, parser_of
from benchmarks.measured import cpu_seconds

_AT = "/topics/bench/partitions/0"


@contextmanager
def running(directory: Path, *words: str) -> Iterator[tuple[str, int]]:
    """A command of `waltz`; gives the first line that it prints, and its process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "waltz_trio.cli.main", *words],
        stdout=subprocess.PIPE,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


class Callers:
    """Appends by both ways, each from as many tasks."""

    def __init__(self, client: waltz.Client, port: int, size: int, connections: int) -> None:
        self._client = client
        self._port = port
        self._data = "x" * size
        self._connections = connections

    async def directly(self, latencies: list[float], end: float) -> None:
        """One caller of the cluster."""
        append = waltz.Append(self._data.encode())
        while (begin := time.perf_counter()) < end:
            await self._client.append(0, append)
            latencies.append(time.perf_counter() - begin)

    async def by_gateway(self, latencies: list[float], end: float) -> None:
        """One caller of the gateway, on a connection that it keeps."""
        body = json.dumps({"text": self._data}).encode()
        head = f"POST {_AT}/append HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        async with await trio.open_tcp_stream("127.0.0.1", self._port) as stream:
            while (begin := time.perf_counter()) < end:
                await stream.send_all(request)
                answer = b""
                while not answer.endswith(b"}\n"):
                    answer += await stream.receive_some()
                assert answer.startswith(b"HTTP/1.1 201 "), answer
                latencies.append(time.perf_counter() - begin)

    async def turn(self, way: Callable[[list[float], float], Awaitable[None]], seconds: float) -> dict[str, float]:
        """All callers of one way for a while."""
        latencies: list[float] = []
        begin = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(self._connections):
                nursery.start_soon(way, latencies, begin + seconds)
        latencies.sort()
        return {
            "rate": len(latencies) / (time.perf_counter() - begin),
            "p50_ms": 1000 * statistics.median(latencies),
            "p99_ms": 1000 * latencies[len(latencies) * 99 // 100],
        }

    async def feed_directly(self, last: int) -> float:
        """Records a second of a client's feed."""
        begin = time.perf_counter()
        async with self._client.feed(0, after=-1) as feed:
            async for transaction in feed:
                if transaction.id == last:
                    break
        return (last + 1) / (time.perf_counter() - begin)

    async def feed_by_gateway(self, last: int) -> float:
        """Records a second as server-sent events."""
        begin = time.perf_counter()
        request = f"GET {_AT}/feed?after=-1&payload=text HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        mark = f"id: {last}\n".encode()
        async with await trio.open_tcp_stream("127.0.0.1", self._port) as stream:
            await stream.send_all(request)
            tail = b""
            while mark not in tail:
                piece = await stream.receive_some(1 << 16)
                assert piece, "the feed has ended"
                tail = tail[-len(mark) :] + bytes(piece)
        return (last + 1) / (time.perf_counter() - begin)


_READERS = 1, 10, 100


async def follow(
    client: waltz.Client, port: int, pid: int, readers: int, options: argparse.Namespace
) -> dict[str, float]:
    """Readers at the end of the log, by the gateway, while records are appended directly."""
    last = await client.committed_mark(0) + options.records
    mark = f"id: {last}\n".encode()
    request = f"GET {_AT}/feed?after=tail&payload=text HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    ready, waiting = trio.Event(), readers

    async def read() -> None:
        nonlocal waiting
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(request)
            tail = b""
            while mark not in tail:
                piece = await stream.receive_some(1 << 16)
                assert piece, "the feed has ended"
                if not tail:
                    waiting -= 1
                    if not waiting:
                        ready.set()
                tail = tail[-len(mark) :] + bytes(piece)

    append = waltz.Append(b"x" * options.size)
    async with trio.open_nursery() as nursery:
        for _ in range(readers):
            nursery.start_soon(read)
        await ready.wait()
        cpu, begin = cpu_seconds(pid), time.perf_counter()
        for _ in range(options.records):
            await client.send(0, append)
    seconds, told = time.perf_counter() - begin, readers * options.records
    return {
        "readers": readers,
        "records_per_s": told / seconds,
        "gateway_cpu_us_per_record_and_reader": 1e6 * (cpu_seconds(pid) - cpu) / told,
    }


async def measure(url: str, port: int, pid: int, options: argparse.Namespace) -> dict[str, Any]:
    """All turns, and the medians of their figures."""
    turns: dict[str, list[dict[str, float]]] = {"direct": [], "gateway": []}
    feeds: dict[str, list[float]] = {"direct": [], "gateway": []}
    async with waltz.open_client(url) as client:
        callers = Callers(client, port, options.size, options.connections)
        await callers.turn(callers.directly, 1)
        await callers.turn(callers.by_gateway, 1)
        cpu, count = 0.0, 0.0
        for _ in range(options.turns):
            turns["direct"].append(await callers.turn(callers.directly, options.seconds))
            before, since = cpu_seconds(pid), time.perf_counter()
            turns["gateway"].append(await callers.turn(callers.by_gateway, options.seconds))
            cpu += cpu_seconds(pid) - before
            count += turns["gateway"][-1]["rate"] * (time.perf_counter() - since)
        last = await client.committed_mark(0)
        for _ in range(options.turns):
            feeds["direct"].append(await callers.feed_directly(last))
            feeds["gateway"].append(await callers.feed_by_gateway(last))
        followed = [await follow(client, port, pid, readers, options) for readers in _READERS]
    appends = {
        way: {name: statistics.median(turn[name] for turn in each) for name in each[0]} for way, each in turns.items()
    }
    rates = {way: statistics.median(each) for way, each in feeds.items()}
    return {
        "options": vars(options),
        "load": os.getloadavg()[0],
        "appends": appends,
        "append_ratio": appends["gateway"]["rate"] / appends["direct"]["rate"],
        "gateway_cpu_us_per_append": 1e6 * cpu / count,
        "feed_records": last + 1,
        "feeds": rates,
        "readers": followed,
        "feed_ratio": rates["gateway"] / rates["direct"],
    }


def main() -> int:
    """Start everything, measure, print."""
    parser = parser_of("gateway", __doc__, on_disk=False)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--records", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with running(directory, "dev", "--port", "0", "--partitions", "1") as (url, _):
            topics = [{"name": "bench", "cluster": url, "partitions": 0}]
            (directory / "gateway.yml").write_text(
                json.dumps(
                    {
                        "gateway.port": 0,
                        "gateway.feedsMax": max(_READERS),
                        "gateway.feedsPerCaller": max(_READERS),  # all of one address
                        "gateway.topics": topics,
                    }
                )
            )
            with running(directory, "gateway", "run", "-c", "gateway.yml") as (address, pid):
                result = trio.run(measure, url, int(address.rpartition(":")[2]), pid, options)
    return conclude(result, options.json)


if __name__ == "__main__":
    sys.exit(main())

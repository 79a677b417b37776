"""What the line to the cluster carries while many read one log: through a proxy, and directly.

python -m benchmarks.proxy [--count 2000] [--size 200] [--readers 1,10,100] [--json PATH]

One process holds the cluster, the proxy and all readers, with TLS between them. Counted are the bytes of the protocol
that go over connections to the servers of the cluster, both ways: those of the proxy, and those of the same number of
readers that go there themselves. Every reader reads the whole log with its payloads. No figure depends on how busy the
machine is, but on how the reads of the readers happen to meet.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import trio

import waltz_trio as waltz
from benchmarks.command import conclude, parser_of
from waltz_core.base.edge import Received, Send
from waltz_core.client.node import ClientNode
from waltz_core.proxy.upstream import Upstream
from waltz_trio.config.config import Config
from waltz_trio.node.embedded import HOST, ROOT, EmbeddedCluster, embedded_cluster
from waltz_trio.node.proxy import ProxyProcess

Machine = type[ClientNode]


class Bytes:
    """What client machines of one kind received and sent."""

    def __init__(self, kind: Machine) -> None:
        self.kind = kind
        self.received = self.sent = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count while the block runs."""
        step = ClientNode.step

        def counting(machine: ClientNode, now: int, events: Sequence[Any], out: list[Any]) -> None:
            before = len(out)
            step(machine, now, events, out)
            if type(machine) is self.kind:
                self.received += sum(len(event.data) for event in events if type(event) is Received)
                self.sent += sum(len(effect.data) for effect in out[before:] if type(effect) is Send)

        ClientNode.step = counting  # type: ignore[assignment, method-assign]  # for the time of one measurement
        try:
            yield
        finally:
            ClientNode.step = step  # type: ignore[method-assign]


async def read_all(url: str, readers: int, count: int) -> None:
    """Every reader reads the whole log, once all of them are connected: on a busy machine that takes its time."""
    connecting = trio.CapacityLimiter(4)
    everybody = trio.Event()
    connected = 0

    async def read() -> None:
        nonlocal connected
        async with AsyncExitStack() as stack:
            async with connecting:
                client = await stack.enter_async_context(waltz.open_client(url))
            connected += 1
            if connected == readers:
                everybody.set()
            await everybody.wait()
            async with client.feed(0, after=-1) as feed:
                async for batch in feed.batches(1000):
                    for transaction in batch:
                        transaction.load()
                    if batch.last_id >= count - 1:
                        return

    async with trio.open_nursery() as nursery:
        for _ in range(readers):
            nursery.start_soon(read)


async def through_proxy(cluster: EmbeddedCluster, readers: int, count: int) -> Bytes:
    """A fresh proxy, which knows nothing of the log, and so many readers."""
    keys: dict[str, object] = {
        "zookeeper.connectString": "in this process",
        "zookeeper.sessionTimeout": 2_000,
        "cluster.root": f"/proxy-for-{readers}",
        "server.port": 0,
        "server.host": HOST,
        "proxy.upstream.root": ROOT,
    }
    upstream = Bytes(Upstream)
    proxy = ProxyProcess(Config(keys, "the benchmark"), cluster.znodes)
    async with trio.open_nursery() as nursery:
        with upstream.counted():
            await nursery.start(proxy.run)
            assert proxy.endpoint is not None
            await read_all(f"waltz://{HOST}:{proxy.endpoint.port}?verify=off", readers, count)
        proxy.kill()
    return upstream


async def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One line for each number of readers."""
    lines = []
    async with embedded_cluster(partitions=1) as cluster:
        async with waltz.open_client(cluster.url) as writer:
            payload = bytes(options.size)
            for _ in range(options.count):
                await writer.send(0, waltz.Append(payload))
        for readers in map(int, options.readers.split(",")):
            upstream = await through_proxy(cluster, readers, options.count)
            direct = Bytes(ClientNode)
            with direct.counted():
                await read_all(cluster.url, readers, options.count)
            lines.append(
                {
                    "readers": readers,
                    "upstream_received": upstream.received,
                    "upstream_sent": upstream.sent,
                    "direct_received": direct.received,
                    "direct_sent": direct.sent,
                    "ratio": round((upstream.received + upstream.sent) / (direct.received + direct.sent), 4),
                }
            )
            print(json.dumps(lines[-1]), flush=True)
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = parser_of("proxy", __doc__, on_disk=False)
    parser.add_argument("--count", type=int, default=2_000, help="transactions in the log")
    parser.add_argument("--size", type=int, default=200, help="bytes of each payload")
    parser.add_argument("--readers", default="1,10,100", help="how many at a time, separated by commas")
    options = parser.parse_args(argv)
    return conclude(trio.run(measure, options), options.json, shown=True)


if __name__ == "__main__":
    sys.exit(main())

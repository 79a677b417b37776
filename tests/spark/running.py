"""A cluster that runs in a thread of its own, for tests that block: those with Spark, and those of commands."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

import waltz_trio as waltz
from waltz_trio.node.embedded import embedded_cluster

PARTITIONS = 2


@contextmanager
def running_cluster(directory: Path) -> Iterator[str]:
    """The address of a cluster of `PARTITIONS` partitions."""
    started, found = threading.Event(), list[str]()
    token: list[Any] = []

    async def run() -> None:
        async with embedded_cluster(directory, partitions=PARTITIONS) as cluster:
            stop = trio.Event()
            token.extend((trio.lowlevel.current_trio_token(), stop))
            found.append(cluster.url)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=trio.run, args=(run,))
    thread.start()
    assert started.wait(60)
    try:
        yield found[0]
    finally:
        trio.from_thread.run_sync(token[1].set, trio_token=token[0])
        thread.join()


class Log:
    """What applications see of the log from when this was made."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.marks = self._with_client(self._marks)

    def _with_client(self, work: Callable[[waltz.Client], Any]) -> Any:
        async def run() -> Any:
            async with waltz.open_client(self.url) as client:
                return await work(client)

        return trio.run(run)

    async def _marks(self, client: waltz.Client) -> list[int]:
        return [await client.committed_mark(partition) for partition in range(PARTITIONS)]

    def rows(self) -> Counter[tuple[int, bytes]]:
        async def read(client: waltz.Client) -> Counter[tuple[int, bytes]]:
            found: Counter[tuple[int, bytes]] = Counter()
            for partition, mark in enumerate(await self._marks(client)):
                if mark == self.marks[partition]:
                    continue
                async with client.feed(partition, after=self.marks[partition]) as feed:
                    feed.markers = True
                    async for txn in feed:
                        if txn.header >= 0:
                            found[partition, txn.load()] += 1
                        if txn.id == mark:
                            break
            return found

        rows: Counter[tuple[int, bytes]] = self._with_client(read)
        return rows

    def append(self, partition: int, append: waltz.Append, based_on: int) -> int:
        return int(self._with_client(lambda client: client.append(partition, append, based_on=based_on)))

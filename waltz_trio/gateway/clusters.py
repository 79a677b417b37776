"""The clients of a gateway: for each cluster one that appends and asks, and more as feeds of one partition need them.

Ranges of records need no feed, which would bring the headers of all that lies behind them, too: they are asked for
over one client of those for feeds, so that appends and marks do not wait behind megabytes on a connection.

A client has one feed of a partition at a time, so feeds of the same one need several: the shared one of a gateway, and
those of readers who are behind on a cluster of 0.13.2, which knows no ranges. Clients are opened when they are needed,
and a few that nobody needs are kept. A client that broke is replaced by whoever asks next.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from waltz_core.base.edge import Level
from waltz_core.base.errors import ClientClosedError
from waltz_core.gateway.topics import Topic
from waltz_trio.base.background import only
from waltz_trio.client.client import Client
from waltz_trio.client.connect import open_client
from waltz_trio.client.values import Transaction

_IDLE_KEPT = 4  # clients for feeds that nobody uses; each has three descriptors, and opening one takes milliseconds
_PREFETCH = 16  # payloads that are asked for at a time of a server of 0.13.2
_PIECE_BYTES = 1 << 20  # of what is read of it

OpenClient = Callable[[str], AbstractAsyncContextManager[Client]]


class _Held:
    """One client, opened and closed in a task of its own."""

    def __init__(self) -> None:
        self.client: Client | None = None
        self.error: Exception | None = None
        self.over = False
        self.partitions: set[int] = set()  # of which it has a feed
        self.asked = 0  # ranges that it is asked for
        self._opened = trio.Event()
        self._left = trio.Event()

    async def run(
        self,
        open_one: OpenClient,
        source: str,
        report: Callable[[Level, str], None],
        look: Callable[[Client], None],
    ) -> None:
        """Hold it open until `leave`, or until it breaks; `look` sees it first."""
        try:
            async with open_one(source) as self.client:
                look(self.client)
                self._opened.set()
                await self._left.wait()
        except Exception as error:
            self.error = only(error)
            report(Level.WARNING, f"{source}: {self.error}")
        finally:
            self.over = True
            self._opened.set()

    async def opened(self) -> Client:
        """Wait until it is open; errors as `open_client`."""
        await self._opened.wait()
        if self.over or self.client is None:
            raise self.error or ClientClosedError("the gateway ends")
        return self.client

    def leave(self) -> None:
        """Close it, once nothing of it is under way."""
        self.over = True
        self._left.set()


class Cluster:
    """What a gateway holds of one cluster."""

    def __init__(
        self,
        source: str,
        nursery: trio.Nursery,
        report: Callable[[Level, str], None],
        open_one: OpenClient = open_client,
        topics: Sequence[Topic] = (),
    ) -> None:
        self.wrong: dict[str, str] = {}  # topics that name partitions which it does not have, and how
        self._topics = topics
        self._source = source
        self._open = open_one
        self._nursery = nursery
        self._report = report
        self._main: _Held | None = None
        self._readers: list[_Held] = []
        self._known: dict[int, int] = {}  # partition → a mark that is known to be committed

    async def client(self) -> Client:
        """For appends and marks.

        Raises:
            WaltzError: the cluster does not answer, or its configuration cannot be used.
        """
        if self._main is None or self._main.over:
            self._main = self._new()
        return await self._main.opened()

    def _new(self) -> _Held:
        held = _Held()
        self._nursery.start_soon(held.run, self._open, self._source, self._report, self._look)
        return held

    def _look(self, client: Client) -> None:
        """Compare its partitions with those of the topics; what is wrong is told once, in the log."""
        before, self.wrong = self.wrong, {}
        for topic in self._topics:
            missing = [one for one in topic.partitions if one >= client.num_partitions]
            if not missing:
                continue
            ids = f"{min(missing)}" if len(missing) == 1 else f"{len(missing)} from {min(missing)} to {max(missing)}"
            self.wrong[topic.name] = (
                f"gateway.topics names partitions that the cluster {self._source} does not have ({ids}): it has "
                f"{client.num_partitions}, 0 to {client.num_partitions - 1}"
            )
            if self.wrong[topic.name] != before.get(topic.name):
                self._report(Level.WARNING, f"topic {topic.name}: {self.wrong[topic.name]}")

    @asynccontextmanager
    async def reader(self, partition: int) -> AsyncIterator[Client]:
        """A client that has no feed of a partition; errors as `client`."""
        held = self._reader(lambda held: partition not in held.partitions)
        held.partitions.add(partition)
        try:
            yield await held.opened()
        finally:
            held.partitions.discard(partition)
            self._leave_spare()

    def _reader(self, fits: Callable[[_Held], bool]) -> _Held:
        self._readers = [held for held in self._readers if not held.over]
        held = next((held for held in self._readers if fits(held)), None)
        if held is None:
            held = self._new()
            self._readers.append(held)
        return held

    def _leave_spare(self) -> None:
        idle = [held for held in self._readers if not held.partitions and not held.asked]
        for spare in idle[_IDLE_KEPT:]:
            spare.leave()

    async def piece(self, partition: int, first: int, last: int) -> list[Transaction] | None:
        """The first of some committed transactions: one at least, about a megabyte at most, and markers among them.

        None: the server is of 0.13.2, which knows no ranges. Errors as `client`, and as `Client.read`.
        """
        held = self._reader(lambda held: True)
        held.asked += 1
        try:
            return await (await held.opened())._by_ids.piece(partition, first, last)
        finally:
            held.asked -= 1
            self._leave_spare()

    async def records(self, partition: int, first: int, last: int) -> list[Transaction]:
        """As `piece`, of a server of 0.13.2 too."""
        read = await self.piece(partition, first, last)
        if read is not None:
            return read
        read = []
        async with (
            self.reader(partition) as client,
            client.feed(partition, after=first - 1, prefetch=_PREFETCH) as feed,
        ):
            feed.markers = True
            left = _PIECE_BYTES
            while left > 0 and (not read or read[-1].id < last):
                read.append(await anext(feed))
                left -= len(read[-1].load())
        return read

    async def committed_mark(self, partition: int) -> int:
        """Ask for it; errors as `client`."""
        mark = await (await self.client()).committed_mark(partition)
        self._known[partition] = mark  # a lower one, too: the cluster may have been restored
        return mark

    def known_mark(self, partition: int) -> int:
        """A mark that is known to be committed."""
        return self._known.get(partition, -1)

    def learn(self, partition: int, mark: int) -> None:
        """A transaction is committed."""
        self._known[partition] = max(mark, self.known_mark(partition))

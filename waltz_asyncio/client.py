"""The public client for asyncio, log layer: feeds, appends with exact outcomes, no retries."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from types import TracebackType
from typing import Literal, TypeVar

import waltz_trio as trio_front
from waltz_asyncio.application import Application
from waltz_asyncio.bridge import Awaited, Block, call, check_loop, documented, enter, leave, look, must_be_awaited
from waltz_asyncio.feed import Feed
from waltz_asyncio.pending import Pending, PendingMany
from waltz_core.base.errors import LockConflictError, NotCommittedError
from waltz_core.client.calls import PartitionStatus
from waltz_sync.held import Held
from waltz_sync.portal import Portal
from waltz_trio.client.arguments import APPENDS, listed
from waltz_trio.client.connect import ConfigLike
from waltz_trio.client.instrument import Instrument
from waltz_trio.client.values import Append, Receipt, Tail, Transaction
from waltz_trio.client.views import View

S = TypeVar("S")


class Client:
    """A connection to a cluster. Made by `open_client`; for the tasks of one loop."""

    def __init__(self, portal: Portal, client: trio_front.Client, held: Held[trio_front.Client]) -> None:
        self.cluster = client.cluster
        self.client_id = client.client_id
        self.num_partitions = client.num_partitions
        self._portal = portal
        self._client = client
        self._held = held
        self._awaited = Awaited()
        self._feeds: dict[int, Feed] = {}  # touched by the Trio thread alone

    # ---- reading -----------------------------------------------------------------------------------

    @documented(trio_front.Client.feed)
    def feed(
        self,
        partition: int,
        *,
        after: int | Tail,
        prefetch: int = 64,
        select: Callable[[int], bool] | None = None,
    ) -> FeedBlock:
        manager = look(self._portal, self._client.feed, partition, after=after, prefetch=prefetch, select=select)
        return FeedBlock(self, Held(self._portal, manager, self._held))

    @documented(trio_front.Client.read)
    async def read(self, partition: int, first: int, last: int) -> list[Transaction]:
        return await call(self._portal, self._client.read, partition, first, last)

    @documented(trio_front.Client.committed_mark)
    async def committed_mark(self, partition: int) -> int:
        return await call(self._portal, self._client.committed_mark, partition)

    @documented(trio_front.Client.status)
    def status(self, partition: int) -> PartitionStatus:
        return look(self._portal, self._client.status, partition)

    @documented(trio_front.Client.ready)
    async def ready(self, partitions: Iterable[int] | None = None) -> None:
        await call(self._portal, self._client.ready, partitions)

    # ---- writing -----------------------------------------------------------------------------------

    @must_be_awaited
    @documented(trio_front.Client.append)
    async def append(self, partition: int, append: Append, *, based_on: int | None = None) -> Receipt:
        async def run() -> Receipt:
            self._tell_mark(partition)
            return await self._client.append(partition, append, based_on=based_on)

        return await call(self._portal, run)

    @must_be_awaited
    @documented(trio_front.Client.append_many)
    async def append_many(
        self, partition: int, appends: Iterable[Append | bytes], *, based_on: int | None = None
    ) -> list[Receipt | LockConflictError | NotCommittedError]:
        wanted = listed(appends, APPENDS)  # a generator of them runs in the caller's thread

        async def run() -> list[Receipt | LockConflictError | NotCommittedError]:
            self._tell_mark(partition)
            return await self._client.append_many(partition, wanted, based_on=based_on)

        return await call(self._portal, run)

    @must_be_awaited
    @documented(trio_front.Client.send)
    async def send(self, partition: int, append: Append, *, based_on: int | None = None) -> Pending:
        async def run() -> Pending:
            self._tell_mark(partition)
            return Pending(self._portal, await self._client.send(partition, append, based_on=based_on))

        return await call(self._portal, run)

    @must_be_awaited
    @documented(trio_front.Client.send_many)
    async def send_many(
        self, partition: int, appends: Iterable[Append | bytes], *, based_on: int | None = None
    ) -> PendingMany:
        wanted = listed(appends, APPENDS)  # a generator of them runs in the caller's thread

        async def run() -> PendingMany:
            self._tell_mark(partition)
            return PendingMany(self._portal, await self._client.send_many(partition, wanted, based_on=based_on))

        return await call(self._portal, run)

    @documented(trio_front.Client.flush)
    async def flush(self, partition: int | None = None) -> None:
        await call(self._portal, self._client.flush, partition)

    @documented(trio_front.Client.materialize)
    def materialize(
        self,
        view: View[S],
        partitions: Iterable[int] | None = None,
        *,
        batch_limit: int = 1000,
        max_in_flight: int | None = None,
        on_poison: Literal["stop", "pause"] = "stop",
        catch_up: bool = True,
    ) -> Application[S]:
        app = look(
            self._portal,
            self._client.materialize,
            view,
            partitions,
            batch_limit=batch_limit,
            max_in_flight=max_in_flight,
            on_poison=on_poison,
            catch_up=catch_up,
        )
        return Application(self._portal, app, self._held, self._awaited)

    @documented(trio_front.Client.partition_of)
    def partition_of(self, key: int | str) -> int:
        return self._client.partition_of(key)

    def _tell_mark(self, partition: int) -> None:
        """In the Trio thread: appends that name no mark are based on what the open feed's loop has done."""
        feed = self._feeds.get(partition) if isinstance(partition, Hashable) else None
        if feed is not None:
            feed._tell_mark()


class FeedBlock(Block):
    """A feed, while it is open."""

    _line = "async with client.feed(...) as feed:"

    def __init__(self, client: Client, held: Held[trio_front.Feed]) -> None:
        self._client = client
        self._held = held
        self._feed: Feed | None = None

    async def __aenter__(self) -> Feed:
        portal = self._client._portal
        self._feed = feed = Feed(portal, await enter(self._held, portal))
        portal.post(self._client._feeds.__setitem__, feed.partition, feed)
        return feed

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        portal = self._client._portal
        if portal.forked:
            return
        assert self._feed is not None
        portal.post(self._client._feeds.pop, self._feed.partition, None)
        await leave(self._held, error)


class ClientBlock(Block):
    """A client, while its thread runs."""

    def __init__(self, config: ConfigLike, instrument: Instrument | None) -> None:
        self._config = config
        self._instrument = instrument
        self._portal: Portal | None = None
        self._held: Held[trio_front.Client] | None = None
        self._client: Client | None = None

    async def __aenter__(self) -> Client:
        if self._portal is not None:
            raise RuntimeError("a client is entered once: call `open_client` again")
        check_loop()
        self._portal = portal = Portal()
        portal.start()
        try:
            manager = trio_front.open_client(self._config, instrument=self._instrument)
            self._held = Held(portal, manager, None)
            self._client = client = Client(portal, await enter(self._held, portal), self._held)
            return client
        except BaseException:
            portal.stop()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._portal is not None
        assert self._held is not None
        assert self._client is not None
        if self._portal.forked:
            return  # the parent's client goes on
        try:
            await leave(self._held, error)
        finally:
            self._portal.stop()
        if error is None:
            self._client._awaited.check()


def open_client(config: ConfigLike, *, instrument: Instrument | None = None) -> ClientBlock:
    """Connect to a cluster: `async with open_client("client.yml") as client: ...`.

    Entered when the cluster has answered (`client.connectTimeout`); partitions are mounted when they are used.
    Everything of the client runs in one thread, which ends with the block. Leaving the block normally waits for
    appends under way (`client.closeTimeout`); nothing is left running.

    Args:
        config: path of a YAML file, a mapping of its keys, or `waltz://host:port[?ca=PATH][&verify=on|ca|off]`.
        instrument: gets what the client does, for metrics; called in the client's thread.

    Raises:
        ConfigError: the configuration cannot be used.
        ClientFailedError: the cluster does not answer or cannot be used, or the client broke.
        RuntimeError: asyncio does not run here; on leaving: the `await` before an append was forgotten.
    """
    return ClientBlock(config, instrument)

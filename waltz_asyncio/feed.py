"""Reading a partition from asyncio: the feed, and its batches."""

from __future__ import annotations

import waltz_trio as trio_front
from waltz_asyncio.bridge import call, check_loop, documented
from waltz_sync.feed import CHUNK, Delivery
from waltz_sync.portal import Portal
from waltz_trio.client.blocks import AsyncForOnly
from waltz_trio.client.values import Batch, Transaction


class _Delivered(Transaction):
    """A transaction outside of the Trio thread; its payload is fetched there."""

    __slots__ = ("_portal",)

    def __init__(self, portal: Portal, t: Transaction) -> None:
        super().__init__(t.partition, t.id, t.header, t.req_id, t._data, t._fetch)
        self._portal = portal

    async def fetch(self) -> bytes:
        """The raw payload, read from the server if it is not there yet."""
        if self._data is None:
            self._data = await call(self._portal, super().fetch)
        return self._data


class Feed(AsyncForOnly, Delivery):
    """The transactions of one partition, in order. Made by `Client.feed`; iterate it once at a time.

    `mark` is the last transaction whose loop body has ended.
    """

    _line = "async with client.feed(...) as feed:"

    def __aiter__(self) -> Feed:
        return self

    @documented(trio_front.Feed.__anext__)
    async def __anext__(self) -> Transaction:
        (transaction,) = (await self._next_batch(1, CHUNK)).transactions
        return transaction

    @documented(trio_front.Feed.batches)
    def batches(self, count_max: int) -> Batches:
        self._feed.batches(count_max)  # it checks the number, and reads ahead as far
        return Batches(self, count_max)

    async def _next_batch(self, count_max: int, ask_max: int) -> Batch:
        self._portal.check_own()
        check_loop()
        if self._advance():
            await call(self._portal, self._fill, ask_max)
        return self._hand_out(count_max)

    def _outside(self, transaction: Transaction) -> Transaction:
        return _Delivered(self._portal, transaction)


class Batches(AsyncForOnly):
    """Iterator over the batches of a feed; the mark moves past a batch when its loop body has ended."""

    def __init__(self, feed: Feed, count_max: int) -> None:
        self._feed = feed
        self._count_max = count_max

    def __aiter__(self) -> Batches:
        return self

    @documented(trio_front.Batches.__anext__)
    async def __anext__(self) -> Batch:
        return await self._feed._next_batch(self._count_max, self._count_max)

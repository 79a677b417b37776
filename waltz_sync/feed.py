"""Reading a partition from a thread: the feed, and its batches."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import NoReturn

import waltz_trio as trio_front
from waltz_core.base.errors import ClientClosedError
from waltz_sync.blocks import Block
from waltz_sync.callers import check_timeout
from waltz_sync.held import Held
from waltz_sync.portal import Portal
from waltz_trio.client.shown import shown
from waltz_trio.client.values import Batch, Transaction

CHUNK = 64  # transactions that cross from the Trio thread at once
_LATE = "no further transaction has come; iterate again to go on waiting"


class _Delivered(Transaction):
    """A transaction in a thread; its payload is fetched through the feed, which can wait there."""

    __slots__ = ()
    _line = "feed.fetch(txn)"

    def fetch(self) -> NoReturn:
        raise TypeError(f"this transaction is read in a plain thread; write: {self._line}")


class Delivery:
    """What has crossed from the Trio thread and is not handed out, and the mark behind it; for threads and asyncio."""

    _line = "with client.feed(...) as feed:"

    def __init__(self, portal: Portal, feed: trio_front.Feed) -> None:
        self.partition = feed.partition
        self._portal = portal
        self._feed = feed
        self._mark = feed._mark
        self._ready: deque[Transaction] = deque()  # here, and not handed out
        self._holding: int | None = None  # id in the loop body

    @property
    def markers(self) -> bool:
        """Also hand out what writers of the pipeline append for themselves."""
        return self._feed.markers

    @markers.setter
    def markers(self, value: bool) -> None:
        self._feed.markers = value

    @property
    def mark(self) -> int:
        """The last transaction whose loop body has ended, or where the feed began.

        Raises:
            RuntimeError: the feed begins at the tail and nothing has been handed out yet.
        """
        if self._mark is None:
            raise RuntimeError("a feed at the tail has no mark before its first transaction")
        return self._mark

    def _advance(self) -> bool:
        """The loop body for what was handed out has ended; whether more must be asked for."""
        if not self._feed._open:
            raise self._portal.failure or ClientClosedError(f"the feed is not open; write: {self._line}")
        if self._holding is not None:
            self._mark, self._holding = self._holding, None
        return not self._ready

    async def _fill(self, count_max: int) -> None:
        """In the Trio thread: what comes next is kept, also where the caller was interrupted and has it later."""
        try:
            batch = await self._feed._next_batch(count_max)
        finally:
            if self._feed._mark is not None:
                self._mark = self._feed._mark  # it may have passed over markers
        self._ready.extend(map(self._outside, batch))

    def _outside(self, transaction: Transaction) -> Transaction:
        """As it is handed out: outside of the Trio thread."""
        raise NotImplementedError

    def _hand_out(self, count_max: int) -> Batch:
        ready = self._ready
        handed = tuple(ready.popleft() for _ in range(min(count_max, len(ready))))
        self._holding = handed[-1].id
        return Batch(self.partition, handed)

    def _tell_mark(self) -> None:
        """In the Trio thread: appends based on this feed are based on what its loop has done by now."""
        if self._mark is not None and self._mark != self._feed._mark:
            self._feed._done_with(self._mark)


class Feed(Delivery):
    """The transactions of one partition, in order. Made by `Client.feed`; iterate it once at a time.

    `mark` is the last transaction whose loop body has ended.
    """

    def __init__(self, portal: Portal, feed: trio_front.Feed, timeout: float | None) -> None:
        super().__init__(portal, feed)
        self._timeout = timeout

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Transaction:
        """The next transaction; its payload is there if prefetch is on and `select` wants it.

        Raises:
            TimeoutError: none came within the time-out of the feed; iterating again continues.
            ClientAheadError: the log ends before where the feed began.
            BeforeStartError: the log begins behind where the feed began.
            ClientClosedError: the client or the feed was closed.
            ClientFailedError: the client broke.
        """
        (transaction,) = self._next_batch(1, CHUNK, self._timeout).transactions
        return transaction

    def batches(self, count_max: int, *, timeout: float | None = None) -> Batches:
        """Iterate over batches of 1 to `count_max` transactions: those that have arrived, without waiting for more.

        Args:
            count_max: transactions of a batch at most.
            timeout: seconds to wait for each batch; None = the time-out of the feed.
        """
        check_timeout(timeout)
        self._portal.look(self._feed.batches, count_max)
        return Batches(self, count_max, self._timeout if timeout is None else timeout)

    def fetch(self, txn: Transaction, *, timeout: float | None = None) -> bytes:
        """The raw payload of a transaction, read from the server if it is not there yet."""
        if not isinstance(txn, Transaction):
            raise TypeError(f"expected a transaction of this feed, found {shown(txn)}; write feed.fetch(txn)")
        return self._portal.call(Transaction.fetch, timeout, "the payload has not come; ask again", txn)

    def _next_batch(self, count_max: int, ask_max: int, timeout: float | None) -> Batch:
        self._portal.check()
        if self._advance():
            self._portal.call(self._fill, timeout, _LATE, ask_max)
        return self._hand_out(count_max)

    def _outside(self, transaction: Transaction) -> Transaction:
        t = transaction
        return _Delivered(t.partition, t.id, t.header, t.req_id, t._data, t._fetch)


class Batches:
    """Iterator over the batches of a feed; the mark moves past a batch when its loop body has ended."""

    def __init__(self, feed: Feed, count_max: int, timeout: float | None) -> None:
        self._feed = feed
        self._count_max = count_max
        self._timeout = timeout

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Batch:
        """The next batch; errors as `Feed.__next__`."""
        return self._feed._next_batch(self._count_max, self._count_max, self._timeout)


class FeedBlock(Block[Feed]):
    """A feed, while it is open; meanwhile it is in `feeds`, which the Trio thread alone touches."""

    _line = "with client.feed(...) as feed:"

    def __init__(
        self, portal: Portal, held: Held[trio_front.Feed], feeds: dict[int, Feed], timeout: float | None
    ) -> None:
        self._portal = portal
        self._held = held
        self._feeds = feeds
        self._timeout = timeout
        self._feed: Feed | None = None

    def __enter__(self) -> Feed:
        self._feed = feed = Feed(self._portal, self._held.enter(None, ""), self._timeout)
        self._portal.post(self._feeds.__setitem__, feed.partition, feed)
        return feed

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._portal.forked:
            return
        assert self._feed is not None
        self._portal.post(self._feeds.pop, self._feed.partition, None)
        self._held.leave(error)

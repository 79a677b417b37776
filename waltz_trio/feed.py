"""Reading a partition: the feed, and its batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

import trio

from waltz_core.base.errors import ClientClosedError, ClientError
from waltz_core.base.log import MARKER_HEADER
from waltz_core.client.calls import Consumed
from waltz_core.wire.client_messages import FeedData
from waltz_trio.values import Batch, Tail, Transaction

if TYPE_CHECKING:
    from waltz_trio.client import Client

_CHECKPOINT_EVERY = 64  # transactions; a task switch costs as much as handling one


class Feed:
    """The transactions of one partition, in order. Made by `Client.feed`; iterate it once at a time.

    `mark` is the last transaction whose loop body has ended. Transactions that writers of the pipeline make for
    themselves are passed over, unless `markers` is set.
    """

    def __init__(
        self, client: Client, partition: int, after: int | Tail, prefetch: int, select: Callable[[int], bool] | None
    ) -> None:
        self.partition = partition
        self.markers = False
        self._client = client
        self._after = after
        self._mark: int | None = None if isinstance(after, Tail) else after
        self._prefetch = prefetch
        self._select = select
        self._ready: deque[FeedData] = deque()  # delivered, not handed out
        self._unasked: deque[FeedData] = deque()  # of these, the ones whose payload was not asked for
        self._payloads: dict[int, bytes | None] = {}  # None: asked for, or passed over by `select`
        self._missing: set[int] = set()  # asked for and not there
        self._holding: int | None = None  # id in the loop body
        self._reported = -1
        self._report_every = max(1, client._settings.feed_buffer_max // 4)
        self._handed = 0
        self._wake: trio.Event | None = None
        self._error: ClientError | None = None
        self._open = False

    @property
    def mark(self) -> int:
        """The last transaction whose loop body has ended, or where the feed began.

        Raises:
            RuntimeError: the feed begins at the tail and nothing has been handed out yet.
        """
        if self._mark is None:
            raise RuntimeError("a feed at the tail has no mark before its first transaction")
        return self._mark

    async def __aenter__(self) -> Feed:
        self._client._start_feed(self)
        self._open = True
        await trio.lowlevel.checkpoint_if_cancelled()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._client._stop_feed(self)
        if self._missing:
            self._client._forget(self.partition, self._missing, self)
        if self._wake is not None:
            self._wake.set()

    def __aiter__(self) -> Feed:
        return self

    async def __anext__(self) -> Transaction:
        """The next transaction; its payload is there if prefetch is on and `select` wants it.

        Raises:
            ClientAheadError: the log ends before where the feed began.
            BeforeStartError: the log begins behind where the feed began.
            ClientClosedError: the client was closed.
            ClientFailedError: the client broke.
        """
        self._body_ended()
        await self._arrived()
        transaction = self._hand_out()
        self._holding = transaction.id
        return transaction

    def batches(self, count_max: int) -> Batches:
        """Iterate over batches of 1 to `count_max` transactions: whatever has arrived, without waiting to fill up."""
        if count_max < 1:
            raise ValueError(f"at least 1 transaction a batch, not {count_max}")
        if self._prefetch:
            self._prefetch = max(self._prefetch, count_max)
        return Batches(self, count_max)

    async def _next_batch(self, count_max: int) -> Batch:
        self._body_ended()
        await self._arrived()
        found = [self._hand_out()]
        while len(found) < count_max and self._ready and self._has_payload(self._ready[0].transaction_id):
            if self._at_marker:
                break  # ids of a batch are consecutive
            found.append(self._hand_out())
        self._holding = found[-1].id
        return Batch(self.partition, tuple(found))

    # ---- what the machine delivers -----------------------------------------------------------------

    def _on_run(self, run: list[FeedData]) -> None:
        self._ready.extend(run)
        if self._prefetch:
            self._unasked.extend(run)
            self._ask()
        self._rouse()

    def _on_payload(self, transaction_id: int, data: bytes) -> None:
        if transaction_id in self._missing:
            self._missing.remove(transaction_id)
            self._payloads[transaction_id] = data
            if self._ready and self._ready[0].transaction_id == transaction_id:
                self._rouse()

    def _fail(self, error: ClientError) -> None:
        self._error = error
        self._rouse()

    def _rouse(self) -> None:
        if self._wake is not None:
            self._wake.set()
            self._wake = None

    # ---- inside ------------------------------------------------------------------------------------

    def _body_ended(self) -> None:
        if not self._open:
            raise RuntimeError("the feed is not open: use `async with client.feed(...)`")
        if self._holding is not None:
            self._done_with(self._holding)
            self._holding = None

    def _done_with(self, transaction_id: int) -> None:
        self._mark = transaction_id
        if transaction_id - self._reported >= self._report_every:
            self._reported = transaction_id
            self._client._post(Consumed(self.partition, transaction_id))

    @property
    def _at_marker(self) -> bool:
        return not self.markers and self._ready[0].header == MARKER_HEADER

    async def _arrived(self) -> None:
        """Wait until the next transaction can be handed out."""
        self._handed += 1
        waited = False
        while True:
            while self._ready and self._at_marker and self._has_payload(self._ready[0].transaction_id):
                self._done_with(self._hand_out().id)
            if self._ready and self._has_payload(self._ready[0].transaction_id):
                break
            if not self._ready and self._error is not None:
                raise self._error
            if self._ready and self._error is not None and self._client._closing:
                raise self._error
            if self._wake is None:
                self._wake = trio.Event()
            await self._wake.wait()
            waited = True
            if not self._open:
                raise ClientClosedError("the feed was closed while somebody waited for it")
        if not waited and self._handed % _CHECKPOINT_EVERY == 0:
            await trio.lowlevel.checkpoint()

    def _has_payload(self, transaction_id: int) -> bool:
        return not self._prefetch or (transaction_id in self._payloads and transaction_id not in self._missing)

    def _hand_out(self) -> Transaction:
        found = self._ready.popleft()
        transaction_id = found.transaction_id
        data = self._payloads.pop(transaction_id) if self._prefetch else None
        if self._unasked and len(self._payloads) * 2 <= self._prefetch:
            self._ask()
        return Transaction(
            self.partition, transaction_id, found.header, found.req_id, data, self._client._fetch_payload
        )

    def _ask(self) -> None:
        """Keep up to `prefetch` payloads asked for or waiting."""
        room = self._prefetch - len(self._payloads)
        wanted = []
        while room > 0 and self._unasked:
            found = self._unasked.popleft()
            room -= 1
            self._payloads[found.transaction_id] = None
            if found.header == MARKER_HEADER and not self.markers:
                continue
            if self._select is None or self._select(found.header):
                wanted.append(found.transaction_id)
        if wanted:
            self._missing.update(wanted)
            self._client._ask_payloads(self.partition, wanted, self)


class Batches:
    """Iterator over the batches of a feed; the mark moves past a batch when its loop body has ended."""

    def __init__(self, feed: Feed, count_max: int) -> None:
        self._feed = feed
        self._count_max = count_max

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> Batch:
        """The next batch; errors as `Feed.__anext__`."""
        return await self._feed._next_batch(self._count_max)

"""Reading a partition: the feed, and its batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from types import TracebackType

import trio

from waltz_core.base.errors import ClientClosedError, ClientError
from waltz_core.base.log import MARKER_HEADER
from waltz_core.client.calls import Consumed, Fetch
from waltz_core.client.feed_runs import hand_out
from waltz_core.wire.client_messages import FeedData
from waltz_trio.client.ahead import ReadAhead
from waltz_trio.client.arguments import at_least_1
from waltz_trio.client.blocks import AsyncForOnly
from waltz_trio.client.reads import Reads
from waltz_trio.client.values import Batch, Tail, Transaction

_header_of = attrgetter("header")
_CHECKPOINT_EVERY = 64  # transactions; a task switch costs as much as handling one


class Feed(AsyncForOnly):
    """The transactions of one partition, in order. Made by `Client.feed`; iterate it once at a time.

    `mark` is the last transaction whose loop body has ended. Transactions that writers of the pipeline make for
    themselves are passed over, unless `markers` is set.
    """

    def __init__(
        self, reads: Reads, partition: int, after: int | Tail, prefetch: int, select: Callable[[int], bool] | None
    ) -> None:
        self.partition = partition
        self.markers = False
        self._number = 0  # of this feed among those of the client, once it is entered
        self._reads = reads
        self._after = after
        self._mark: int | None = None if isinstance(after, Tail) else after
        self._prefetch = prefetch
        self._select = select
        self._runs: deque[Sequence[FeedData]] = deque()  # delivered; of the first one, some may be handed out
        self._at = 0  # how many those are
        self._unasked: deque[Sequence[FeedData]] = deque()  # those whose payloads were not asked for, as a whole
        self._ahead = ReadAhead()
        self._holding: int | None = None  # id in the loop body
        self._reported = -1
        self._report_every = max(1, reads.feed_buffer_max // 4)
        self._handed = 0
        self._wake: trio.Event | None = None
        self._waited_for = False
        self._error: Exception | None = None
        self._lost: Exception | None = None  # why a payload that it asked for will never come: those before it are here
        self._broken: Exception | None = None  # what `select` raised: nothing behind it is read
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
        await trio.lowlevel.checkpoint_if_cancelled()  # before it is there: nobody would leave it
        await self._reads.until_free(self.partition)
        self._reads.start_feed(self)
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._reads.stop_feed(self)
        self._reads.forget(self.partition, self._ahead.missing())
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
        (transaction,) = self._hand_out(1)
        self._holding = transaction.id
        return transaction

    def batches(self, count_max: int) -> Batches:
        """Iterate over batches of 1 to `count_max` transactions: what has arrived, without waiting to fill up."""
        count_max = at_least_1(count_max, "count_max")
        if self._prefetch:
            self._prefetch = max(self._prefetch, 2 * count_max)  # the next batch comes while one is worked on
        return Batches(self, count_max)

    async def _next_batch(self, count_max: int) -> Batch:
        self._body_ended()
        await self._arrived()
        transactions = self._hand_out(count_max)
        self._holding = transactions[-1].id
        return Batch(self.partition, tuple(transactions))

    # ---- what the machine delivers -----------------------------------------------------------------

    def _on_run(self, run: Sequence[FeedData]) -> None:
        if self._prefetch:
            if not self._runs and not self._ahead.room_taken:
                self._ahead.begin(run[0].transaction_id)
            self._unasked.append(run)
        self._runs.append(run)
        if self._broken is None:
            self._ask()
        self._rouse()

    def _on_payloads(self, first: int, payloads: Sequence[bytes]) -> None:
        self._ahead.arrived(first, payloads)
        if self._ahead.ready:
            self._rouse()

    def _waits_for(self, transaction_id: int) -> bool:
        return self._ahead.waits_for(transaction_id)

    def _fail(self, error: ClientError) -> None:
        self._error = error
        self._rouse()

    def _on_lost(self, error: ClientError) -> None:
        self._lost = error
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
            self._reads.life.post(Consumed(self.partition, transaction_id))

    async def _arrived(self) -> None:
        """Wait until the next transaction can be handed out."""
        self._handed += 1
        waited = False
        while True:
            self._pass_markers()
            if self._here:
                break
            if self._lost is not None:
                raise self._lost
            if self._broken is not None and not self._ahead.room_taken:
                raise self._broken
            if self._error is not None and (not self._runs or self._reads.life.closing):
                raise self._error
            await self._sleep()
            waited = True
            if not self._open:
                raise ClientClosedError("the feed was closed while somebody waited for it")
        if not waited and self._handed % _CHECKPOINT_EVERY == 0:
            await trio.lowlevel.checkpoint()

    async def _sleep(self) -> None:
        """Wait for something to happen, alone: with two who wait, one moves the mark past what the other still has."""
        if self._waited_for:
            raise RuntimeError(
                "another task waits for this feed already, and the mark could not say which of the two is done: read "
                "it in one task, and hand the transactions on"
            )
        if self._wake is None:
            self._wake = trio.Event()
        self._waited_for = True
        try:
            await self._wake.wait()
        finally:
            self._waited_for = False

    @property
    def _here(self) -> bool:
        """The next transaction is here, with what there is to be of its payload."""
        return bool(self._runs) and (self._ahead.ready or not self._prefetch)

    def _pass_markers(self) -> None:
        while not self.markers and self._here:
            record = self._runs[0][self._at]
            if record.header != MARKER_HEADER:
                break
            self._took(1)
            self._done_with(record.transaction_id)

    def _hand_out(self, count_max: int) -> list[Transaction]:
        """Up to `count_max` that are here; the first is, and it is no marker that must be passed over."""
        handed: list[Transaction] = []
        while self._here and len(handed) < count_max and not self._hand_out_piece(count_max - len(handed), handed):
            pass
        return handed

    def _hand_out_piece(self, count_max: int, handed: list[Transaction]) -> bool:
        """The part that is in one run and in one piece of payloads; whether a marker ends it: ids are consecutive."""
        records = self._runs[0][self._at : self._at + count_max]
        payloads = self._ahead.peek(len(records)) if self._prefetch else (None,) * len(records)
        last = None if self.markers else MARKER_HEADER
        count = hand_out(handed, Transaction, self.partition, records, payloads, self._reads.fetch_payload, last)
        self._took(count)
        return count < len(payloads)

    def _took(self, count: int) -> None:
        """As many were handed out, or passed over."""
        self._at += count
        if self._at == len(self._runs[0]):
            self._runs.popleft()
            self._at = 0
        if self._prefetch:
            self._ahead.take(count)
            if self._unasked and self._ahead.room_taken * 2 <= self._prefetch:
                self._ask()

    def _ask(self) -> None:
        """Keep up to `prefetch` payloads asked for or waiting."""
        wanted: list[range] = []
        try:
            self._take_room(wanted)
        except Exception as error:  # of `select`: it is for whoever reads this feed, not for the whole client
            self._broken = error
            self._unasked.clear()
        if wanted:
            asked = wanted[0] if len(wanted) == 1 else tuple(chain.from_iterable(wanted))
            self._reads.life.post(Fetch(self.partition, asked))

    def _take_room(self, wanted: list[range]) -> None:
        room = self._prefetch - self._ahead.room_taken
        while room > 0 and self._unasked:
            run = self._unasked.popleft()
            if len(run) > room:
                self._unasked.appendleft(run[room:])
                run = run[:room]
            room -= len(run)
            for is_wanted, count in self._parts(run):
                if not is_wanted:
                    self._ahead.pass_over(count)
                    continue
                ids = self._ahead.ask(count)
                if wanted and wanted[-1].stop == ids.start:
                    wanted[-1] = range(wanted[-1].start, ids.stop)
                else:
                    wanted.append(ids)

    def _parts(self, run: Sequence[FeedData]) -> Iterator[tuple[bool, int]]:
        """How many payloads in a row are to be read, or are not; what comes before an error of `select`, too."""
        if self._select is None and (self.markers or MARKER_HEADER not in map(_header_of, run)):
            yield True, len(run)
            return
        wanted, count = False, 0
        for record in run:
            try:
                this = bool(self._wants(record))
            except Exception:
                if count:
                    yield wanted, count
                raise
            if count and this != wanted:
                yield wanted, count
                count = 0
            wanted = this
            count += 1
        yield wanted, count

    def _wants(self, record: FeedData) -> bool:
        """Its payload is to be read."""
        if record.header == MARKER_HEADER and not self.markers:
            return False
        return self._select is None or self._select(record.header)


class Batches(AsyncForOnly):
    """Iterator over the batches of a feed; the mark moves past a batch when its loop body has ended."""

    def __init__(self, feed: Feed, count_max: int) -> None:
        self._feed = feed
        self._count_max = count_max

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> Batch:
        """The next batch; errors as `Feed.__anext__`."""
        return await self._feed._next_batch(self._count_max)

"""One feed of a partition for all readers at its end; each reader that is behind reads for himself.

The window decides which reader is which (`waltz_core/gateway/window.py`). A reader begins behind, joins the window
where that begins, and leaves it when he has fallen behind. The window is made by the first reader that reaches the end
of the log, and ends with the last one. If its feed breaks, all readers in it end with its error.

Who is behind reads one piece after the other, each when he has taken the one before: however long the log is and
however many readers it has, none of them holds more of it. Of servers of 0.13.2, which know no ranges, he has a feed.
What is read for one reader is paid for by him; a shared feed does the same however many there are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence

import trio

from waltz_core.access.port_turns import cost_of_feeding
from waltz_core.base.errors import ClientClosedError
from waltz_core.base.log import MARKER_HEADER
from waltz_core.gateway.replies import Record
from waltz_core.gateway.window import Window
from waltz_trio.base.background import only
from waltz_trio.client.feed import Feed
from waltz_trio.client.values import Transaction
from waltz_trio.gateway.clusters import Cluster
from waltz_trio.net.http import Pay

_ALIVE = 15.0  # seconds between signs of life in a feed that has nothing to say
_TEXT_MAX = 1 << 20
_TEXTS = 4  # slices whose text is kept: readers at the end take the same one

Put = Callable[[Sequence[Record]], Awaitable[int]]
"""Sends records; how many bytes their text has."""
Idle = Callable[[], Awaitable[None]]


class Texts:
    """What was written of the newest slices, once for all who take the same."""

    def __init__(self) -> None:
        self._texts: OrderedDict[tuple[int, int, object], tuple[Sequence[Record], bytes]] = OrderedDict()

    def of(self, records: Sequence[Record], form: object, write: Callable[[], bytes]) -> bytes:
        """The text of records of this partition in some form."""
        key = records[0].transaction_id, records[-1].transaction_id, form
        of, text = self._texts.get(key, ((), b""))
        if of != records:  # a restored log has other records under the ids of lost ones
            text = write()
            if len(text) <= _TEXT_MAX:
                self._texts[key] = records, text
            if len(self._texts) > _TEXTS:
                self._texts.popitem(last=False)
        return text


class _Lead:
    """The feed that fills a window."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.error: Exception | None = None
        self.scope = trio.CancelScope()
        self.changed = trio.Event()  # something arrived, or the feed has ended
        self.wanted = trio.Event()

    def tell(self) -> None:
        """Wake those who wait at the end."""
        self.changed.set()
        self.changed = trio.Event()


class Fanout:
    """One partition of a cluster."""

    def __init__(
        self, cluster: Cluster, partition: int, nursery: trio.Nursery, *, window_bytes: int, prefetch: int
    ) -> None:
        self._cluster = cluster
        self._partition = partition
        self._nursery = nursery
        self._window_bytes = window_bytes
        self._prefetch = prefetch
        self._lead: _Lead | None = None
        self.texts = Texts()
        self.alone = 0  # readers that read for themselves

    @property
    def joined(self) -> int:
        """Readers that share one."""
        return 0 if self._lead is None else self._lead.window.readers

    @property
    def size(self) -> int:
        """Bytes in the window."""
        return 0 if self._lead is None else self._lead.window.size

    async def follow(self, mark: int, put: Put, idle: Idle, pay: Pay) -> None:
        """Hand out everything behind a mark as it is committed, until cancelled; `idle` when there is nothing for long.

        What is read for this reader alone is paid for, before more is read.

        Raises:
            WaltzError: as a feed of a client.
        """
        while True:
            mark = await self._follow_alone(mark, put, idle, pay)
            mark = await self._follow_window(mark, put, idle)

    # ---- behind ----------------------------------------------------------------------------------

    def _may_join(self, mark: int) -> bool:
        if self._lead is None:
            return mark >= self._cluster.known_mark(self._partition)
        return self._lead.window.holds(mark)

    async def _follow_alone(self, mark: int, put: Put, idle: Idle, pay: Pay) -> int:
        if self._may_join(mark):
            return mark
        self.alone += 1
        try:
            mark, ranges = await self._follow_pieces(mark, put, idle, pay)
            return mark if ranges else await self._follow_feed(mark, put, idle, pay)
        finally:
            self.alone -= 1

    async def _follow_pieces(self, mark: int, put: Put, idle: Idle, pay: Pay) -> tuple[int, bool]:
        """Until the reader may join; False: the server knows no ranges."""
        while not self._may_join(mark):
            with trio.move_on_after(_ALIVE) as patience:
                last = min(mark + max(1, self._prefetch), self._known_end())
                piece = await self._cluster.piece(self._partition, mark + 1, last)
            if patience.cancelled_caught:
                await idle()
                continue
            if piece is None:
                return mark, False
            mark = piece[-1].id
            await _hand_out(_records(piece), put, pay)
        return mark, True

    def _known_end(self) -> int:
        """A mark up to which all is committed: behind that of whoever may not join."""
        known = self._cluster.known_mark(self._partition)
        return known if self._lead is None else max(known, self._lead.window.begin)

    async def _follow_feed(self, mark: int, put: Put, idle: Idle, pay: Pay) -> int:
        async with (
            self._cluster.reader(self._partition) as client,
            client.feed(self._partition, after=mark, prefetch=self._prefetch) as feed,
        ):
            batches = _Batches(feed, max(1, self._prefetch // 2))
            while not self._may_join(mark):
                batch = None
                with trio.move_on_after(_ALIVE):
                    batch = await batches.next()
                if batch is None:
                    await idle()
                    continue
                records, mark = batch
                await _hand_out(records, put, pay)
        return mark

    # ---- at the end ------------------------------------------------------------------------------

    async def _follow_window(self, mark: int, put: Put, idle: Idle) -> int:
        lead = self._lead
        if lead is None:
            lead = self._lead = _Lead(Window(mark, self._window_bytes))
            self._nursery.start_soon(self._fill, lead)
        lead.window.join()
        try:
            while True:
                taken = lead.window.take(mark)
                if taken is None:
                    return mark
                if taken.records:
                    await put(taken.records)
                if taken.mark > mark:
                    mark = taken.mark
                elif lead.error is not None:
                    raise lead.error
                elif not await _wait(lead):
                    await idle()
        finally:
            lead.window.leave()
            if not lead.window.readers:
                lead.scope.cancel()
                if self._lead is lead:
                    self._lead = None

    async def _fill(self, lead: _Lead) -> None:
        window = lead.window
        try:
            with lead.scope:
                async with (
                    self._cluster.reader(self._partition) as client,
                    client.feed(self._partition, after=window.begin, prefetch=self._prefetch) as feed,
                ):
                    batches = _Batches(feed, self._prefetch)
                    while True:
                        while not window.wanted:
                            lead.wanted = trio.Event()
                            await lead.wanted.wait()
                        window.arrived(*await batches.next())
                        lead.tell()
        except Exception as error:  # the readers have it
            lead.error = only(error)
        finally:
            lead.error = lead.error or ClientClosedError("the gateway ends")
            if self._lead is lead:
                self._lead = None
            lead.tell()


async def _hand_out(records: Sequence[Record], put: Put, pay: Pay) -> None:
    """What was read for one reader, who pays for it."""
    if records:
        await pay(cost_of_feeding(await put(records)))


async def _wait(lead: _Lead) -> bool:
    """Wait at the end of a window; whether something has changed there."""
    lead.window.wait()
    lead.wanted.set()
    try:
        with trio.move_on_after(_ALIVE):
            await lead.changed.wait()
            return True
        return False
    finally:
        lead.window.waited()


class _Batches:
    """The batches of a feed: the text of each, and up to which transaction it goes."""

    def __init__(self, feed: Feed, count: int) -> None:
        feed.markers = True  # the newest transaction may be one
        self._batches = feed.batches(count)

    async def next(self) -> tuple[list[Record], int]:
        batch = await anext(self._batches)
        return _records(batch), batch.last_id


def _records(transactions: Iterable[Transaction]) -> list[Record]:
    """What readers get of some transactions."""
    return [Record(each.id, each.header, each.load()) for each in transactions if each.header != MARKER_HEADER]

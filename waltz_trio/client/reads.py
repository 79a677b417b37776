"""What one client reads: its feeds, payloads that were asked for, and committed marks; by ids, see `by_ids.py`.

A payload goes to the feed of its partition, which looks for what it asked for, and to everybody who fetches that
transaction (`_slots`). What nobody waits for any more is forgotten by the machine too, unless somebody else does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Protocol

import trio

from waltz_core.base.errors import BeforeStartError, ClientError, FeedBusyError, PartitionUnavailableError
from waltz_core.client.calls import (
    Deliver,
    Fetch,
    Fetched,
    Forget,
    ForgetMark,
    MarkRead,
    Open,
    ReadMark,
    StopFeed,
    Unfetchable,
)
from waltz_core.wire.client_messages import FeedData
from waltz_trio.client.answers import Answers
from waltz_trio.client.instrument import Instrument
from waltz_trio.client.life import Life
from waltz_trio.client.values import Tail


class _Slot:
    """Somebody waits for one payload."""

    def __init__(self) -> None:
        self.event = trio.Event()
        self.data: bytes | None = None
        self.error: ClientError | None = None


class Reader(Protocol):
    """A feed, as what it reads is handed to it. These are not for applications, which hold feeds too."""

    partition: int
    _number: int
    _after: int | Tail
    _mark: int | None

    def _on_run(self, run: Sequence[FeedData]) -> None:
        """Transactions, without payloads."""

    def _on_payloads(self, first: int, payloads: Sequence[bytes]) -> None:
        """Payloads of transactions in a row, which it may have asked for."""

    def _waits_for(self, transaction_id: int) -> bool:
        """Whether it asked for this payload and has not got it."""

    def _fail(self, error: ClientError) -> None:
        """Nothing comes any more."""

    def _on_lost(self, error: ClientError) -> None:
        """A payload that it asked for will never come."""


class Reads:
    """Who reads what of one client."""

    def __init__(self, life: Life, instrument: Instrument | None, feed_buffer_max: int) -> None:
        self.feed_buffer_max = feed_buffer_max
        self.life = life
        self._instrument = instrument
        self._feeds: dict[int, Reader] = {}
        self._numbers = count(1)  # of feeds: what was said to one that was left is not for the next
        self.by_ids: dict[int, trio.Event] = {}  # partition → until a read by ids leaves its feed
        self._slots: dict[tuple[int, int], list[_Slot]] = {}  # (partition, transaction id) → who waits for its payload
        self._marks: Answers[int] = Answers()

    # ---- feeds -----------------------------------------------------------------------------------------

    def start_feed(self, feed: Reader) -> None:
        """A feed is entered: the first run goes to it."""
        self.life.check_open(feed.partition)
        if feed.partition in self._feeds:
            raise FeedBusyError(
                f"partition {feed.partition} has a feed in this client already, of `feed` or `materialize`: leave that "
                "block first, or open another client"
            )
        self._feeds[feed.partition] = feed
        feed._number = next(self._numbers)
        mark = None if isinstance(feed._after, Tail) else feed._after
        self.life.post(Open(feed.partition, mark, True, feed._number))

    async def until_free(self, partition: int) -> None:
        """Wait while a read by ids uses the feed of a partition: nobody but this client's own reads does so unasked."""
        while partition in self.by_ids:
            await self.by_ids[partition].wait()

    def has_feed(self, partition: int) -> bool:
        """Whether this client reads a partition in order."""
        return partition in self._feeds

    def stop_feed(self, feed: Reader) -> None:
        """A feed is left."""
        del self._feeds[feed.partition]
        self.life.post(StopFeed(feed.partition))

    def on_deliver(self, effect: Deliver) -> None:
        """Transactions of a partition, without payloads."""
        feed = self._feed(effect.partition, effect.feed)
        if feed is not None:
            feed._on_run(effect.run)
            if self._instrument is not None:
                self._instrument.delivered(effect.partition, len(effect.run))

    def _feed(self, partition: int, number: int) -> Reader | None:
        """The feed that something was said to, if it has not been left."""
        feed = self._feeds.get(partition)
        return feed if feed is not None and feed._number == number else None

    def on_fetched(self, effect: Fetched) -> None:
        """Payloads that were asked for."""
        partition, slots = effect.partition, self._slots
        feed = self._feeds.get(partition)
        for first, payloads in effect.payloads:
            if feed is not None:
                feed._on_payloads(first, payloads)
            if slots:
                for number, data in enumerate(payloads):
                    for slot in slots.pop((partition, first + number), ()):
                        slot.data = data
                        slot.event.set()

    def on_unfetchable(self, effect: Unfetchable) -> None:
        """A payload was given up: whoever waits for it hears it."""
        partition, transaction_id = effect.partition, effect.transaction_id
        error, feed = BeforeStartError(partition, effect.text), self._feeds.get(partition)
        if feed is not None and feed._waits_for(transaction_id):
            feed._on_lost(error)
        for slot in self._slots.pop((partition, transaction_id), ()):
            slot.error = error
            slot.event.set()

    def forget(self, partition: int, transaction_ids: Iterable[int]) -> None:
        """A feed has ended: what nobody else waits for is not read."""
        gone = tuple(each for each in transaction_ids if (partition, each) not in self._slots)
        if gone:
            self.life.post(Forget(partition, gone))

    def _forget_slot(self, partition: int, transaction_id: int, slot: _Slot) -> None:
        waiting, feed = self._slots.get((partition, transaction_id), []), self._feeds.get(partition)
        if slot in waiting:
            waiting.remove(slot)
            if not waiting:
                del self._slots[partition, transaction_id]
                if feed is None or not feed._waits_for(transaction_id):
                    self.life.post(Forget(partition, (transaction_id,)))

    async def fetch_payload(self, partition: int, transaction_id: int) -> bytes:
        """The payload of a transaction."""
        self.life.check_open(partition)
        slot = _Slot()
        self._slots.setdefault((partition, transaction_id), []).append(slot)
        self.life.post(Fetch(partition, (transaction_id,)))
        try:
            await slot.event.wait()
        finally:
            if slot.data is None and slot.error is None:
                self._forget_slot(partition, transaction_id, slot)
        if slot.error is not None:
            raise slot.error
        self.life.raise_if_ended(unless=slot.data is not None)
        assert slot.data is not None
        return slot.data

    # ---- marks -----------------------------------------------------------------------------------------

    async def committed_mark(self, partition: int) -> int:
        """See `Client.committed_mark`."""
        partition = self.life.check_open(partition)
        answer = self._marks.ask()
        self.life.post(ReadMark(partition, answer))
        try:
            return await answer.wait()
        finally:
            if self._marks.leave(answer):
                self.life.post(ForgetMark(partition, answer))

    def on_mark_read(self, effect: MarkRead) -> None:
        """The answer of a server about its mark."""
        for token in effect.tokens:
            if effect.error is None:
                self._marks.give(token, effect.mark)
            else:
                text = effect.error.message or "the server does not tell its mark"
                self._marks.refuse(token, PartitionUnavailableError(effect.partition, text))

    # ---- and the end ---------------------------------------------------------------------------

    def mark_for(self, partition: int) -> int:
        """What an append with locks is based on where it does not say so: the mark of the open feed."""
        feed = self._feeds.get(partition)
        if feed is None or feed._mark is None:
            raise ValueError(
                "an append with locks needs based_on=MARK: the mark of the state that the decision was based on"
            )
        return feed._mark

    def fail(self, partition: int, number: int, error: ClientError) -> None:
        """A partition will never be mounted: the feed that began it hears it."""
        feed = self._feed(partition, number)
        if feed is not None:
            feed._fail(error)

    def end(self, error: ClientError) -> None:
        """Nothing is read any more: whoever waits hears it."""
        for feed in self._feeds.values():
            feed._fail(error)
        self._marks.fail(error)
        for waiting in self._slots.values():
            for slot in waiting:
                slot.event.set()

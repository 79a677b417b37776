"""The public client, log layer: feeds, appends with exact outcomes, no retries.

What users call is here, with its documentation; what it does is in parts that share one `Life` (`life.py`): `Appends`
has what is under way to servers, `Reads` who waits for something of theirs. The machine's effects go to the part whose
state they change.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from threading import get_ident
from typing import Any, Literal, Protocol, TypeVar

from waltz_core.base.edge import Level
from waltz_core.base.errors import ClientClosedError, LockConflictError, NotCommittedError, WrongProcessError
from waltz_core.client.calls import (
    CloseClient,
    ClusterLost,
    Committed,
    Deliver,
    Failed,
    Fetched,
    Flushed,
    Joined,
    MarkRead,
    PartitionStatus,
    RecordsCarried,
    StatusChanged,
    Unfetchable,
)
from waltz_core.client.membership import Membership
from waltz_core.client.node import ClientNode
from waltz_core.client.settings import ClientSettings
from waltz_trio.client.appends import Appends
from waltz_trio.client.application import Application
from waltz_trio.client.arguments import mark as mark_of
from waltz_trio.client.arguments import whole
from waltz_trio.client.blocks import Block
from waltz_trio.client.by_ids import ReadsByIds
from waltz_trio.client.encoding import ClientLimits
from waltz_trio.client.engine import Engine
from waltz_trio.client.feed import Feed
from waltz_trio.client.instrument import Instrument
from waltz_trio.client.life import Life
from waltz_trio.client.many import PendingMany
from waltz_trio.client.pending import Pending
from waltz_trio.client.reads import Reads
from waltz_trio.client.values import Append, Receipt, Tail, Transaction, key_partition
from waltz_trio.client.views import View, check_plain

S = TypeVar("S")


class ClientDriver(Protocol):
    """What runs the machine of a client: `NodeDriver` on sockets, the simulator in virtual time."""

    @property
    def post(self) -> Callable[[Any], None]:
        """Deliver an event to the machine; returns at once."""

    async def run(self) -> None:
        """Run the machine until cancelled."""

    def finish(self, event: Any) -> None:
        """Post one last event, and step at once."""

    async def stop(self, *, patience: float) -> None:
        """End every connection in order, in `patience` seconds at most."""


class Client:
    """A connection to a cluster. Made by `open_client`; everything is for tasks of one Trio run."""

    def __init__(
        self,
        membership: Membership,
        settings: ClientSettings,
        limits: ClientLimits,
        instrument: Instrument | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.cluster = ""
        self.client_id = 0
        self.num_partitions = 0
        rng = rng or random.Random()
        self._max_in_flight = limits.max_in_flight
        self._node = ClientNode(membership, settings, rng)
        self._life = Life(self._node)
        self._reads = Reads(self._life, instrument, settings.feed_buffer_max)
        self._by_ids = ReadsByIds(self._reads)
        self._appends = Appends(self._life, limits, instrument, self._reads.mark_for)
        self._engine = Engine(self._life, self._reads, self._appends, instrument, rng)

    # ---- reading -----------------------------------------------------------------------------------

    def feed(
        self,
        partition: int,
        *,
        after: int | Tail,
        prefetch: int = 64,
        select: Callable[[int], bool] | None = None,
    ) -> AbstractAsyncContextManager[Feed]:
        """Read a partition: `async with client.feed(3, after=mark) as feed: async for txn in feed: ...`.

        Args:
            partition: which one.
            after: the last transaction that is done with; -1 = from the start, `TAIL` = only what is new.
            prefetch: how many payloads are read ahead; 0 = none, `await txn.fetch()` reads one.
            select: given a header, whether the payload is wanted; the others are not read. What it raises comes out
                of the loop over the feed.

        Raises:
            PartitionNotFoundError: no such partition.
            FeedBusyError: on entering: this client has a feed of this partition already.
        """
        partition = self._life.check_partition(partition)
        if not isinstance(after, Tail):
            after = mark_of(after, "after")
        prefetch = whole(prefetch, "prefetch")
        if prefetch < 0:
            raise ValueError(f"prefetch is at least 0, not {prefetch}")
        if select is not None:
            check_plain(select, "select", "a header", "what it returns would always count as wanted")
        feed = Feed(self._reads, partition, after, prefetch, select)
        return Block("async with client.feed(...) as feed:", feed)

    async def read(self, partition: int, first: int, last: int) -> list[Transaction]:
        """Transactions `first` to `last`, both included, with their payloads; no feed is needed, nor disturbed.

        Those that are not committed yet are left out: all that was acknowledged before this call is there. Servers
        that archive by themselves give out what is below the log start, too. Markers of the pipeline are passed over.

        Args:
            partition: which one.
            first: id of the first, from 0 on.
            last: id of the last. All of them are held in memory: read long logs in pieces, or by a feed.

        Raises:
            BeforeStartError: the log begins behind `first`, and no archive is read through.
            PartitionUnavailableError: the server refuses: no replica has a sound copy, or our role may not read.
            PartitionNotFoundError: no such partition.
            FeedBusyError: the server is of 0.13.2, which has no such reading, and a feed of the partition is open.
        """
        partition = self._life.check_open(partition)
        first, last = whole(first, "first"), mark_of(last, "last")
        if first < 0:
            raise ValueError(f"first: transaction ids begin at 0, not {first}")
        return await self._by_ids.read(partition, first, last)

    async def committed_mark(self, partition: int) -> int:
        """The server's committed mark: -1 for an empty log. Waits until a server can tell.

        It covers every append that was acknowledged, to any client, before this call.

        Raises:
            PartitionUnavailableError: the server refuses: our role may not read.
            PartitionNotFoundError: no such partition.
        """
        return await self._reads.committed_mark(partition)

    def status(self, partition: int) -> PartitionStatus:
        """What a partition is doing right now."""
        return self._life.status(partition)

    async def ready(self, partitions: Iterable[int] | None = None) -> None:
        """Wait until partitions (all by default) are mounted; mounts them if nobody did.

        Raises:
            ClientAheadError: the log ends before where one of them began.
            BeforeStartError: the log begins behind where one of them began.
        """
        await self._life.ready(partitions)

    # ---- writing -----------------------------------------------------------------------------------

    def append(self, partition: int, append: Append, *, based_on: int | None = None) -> Coroutine[Any, Any, Receipt]:
        """Append a transaction and wait for its outcome; no retries.

        Cancelled while it waits, the outcome is unknown to the caller; the append stays under way.

        Args:
            partition: which one.
            append: payload, header, locks.
            based_on: mark of the state that the decision was based on; default is that of the open feed.
                Needed for locks where no feed is open.

        Returns:
            A receipt: the transaction id, and more.

        Raises:
            LockConflictError: a lock was taken behind `based_on`.
            NotCommittedError: lost; it is safe to append again.
            ClientAheadError: the log is behind this client.
            BeforeStartError: history was freed that this client has not seen; the outcome is unknown.
            ClientClosedError, ClientFailedError: the outcome is unknown.
            PartitionNotFoundError: no such partition.
        """
        return self._appends.append(partition, append, based_on)

    def append_many(
        self, partition: int, appends: Iterable[Append | bytes], *, based_on: int | None = None
    ) -> Coroutine[Any, Any, list[Receipt | LockConflictError | NotCommittedError]]:
        """Append many transactions and wait for all of them at once; no retries.

        They commit in their order, each for itself. If one cannot be sent at all, none is sent; of an iterator, which
        is gone through as they are sent, those before it are under way.

        Args:
            partition: which one.
            appends: payloads, headers, locks; bytes are one that has only a payload, and cost less.
            based_on: as of `append`, for all of them.

        Returns:
            For each, in their order: a receipt, or the error that says why it is not in the log.

        Raises:
            ClientAheadError: the log is behind this client.
            BeforeStartError: history was freed that this client has not seen; the outcome of some is unknown.
            ClientClosedError, ClientFailedError: the outcome of some is unknown.
            PartitionNotFoundError: no such partition.
            ValueError, TypeError: one cannot be sent; a note says which, and what was sent.
        """
        return self._appends.append_many(partition, appends, based_on)

    def send(self, partition: int, append: Append, *, based_on: int | None = None) -> Coroutine[Any, Any, Pending]:
        """Queue an append and return; appends of a partition commit in the order of their sends, or not at all.

        Waits only while `client.sendWindow` bytes are under way. Arguments and errors as `append`; the
        outcome is that of the `Pending`.
        """
        return self._appends.send(partition, append, based_on)

    def send_many(
        self, partition: int, appends: Iterable[Append | bytes], *, based_on: int | None = None
    ) -> Coroutine[Any, Any, PendingMany]:
        """Queue many appends and return; as many calls of `send` would, at a fraction of their cost.

        Waits only while `client.sendWindow` bytes are under way. If one cannot be sent at all, none is sent; of an
        iterator, which is gone through as they are sent, those before it are under way.

        Args:
            partition: which one.
            appends: payloads, headers, locks; bytes are one that has only a payload, and cost less.
            based_on: as of `append`, for all of them.

        Returns:
            One waiter for all of them.

        Raises:
            PartitionNotFoundError: no such partition.
            ValueError, TypeError: one cannot be sent; a note says which, and what was sent.
        """
        return self._appends.send_many(partition, appends, based_on)

    async def flush(self, partition: int | None = None) -> None:
        """Wait until every earlier append of this client (to one partition or all) has an outcome."""
        await self._appends.flush(partition)

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
        """Keep a view up to date with partitions (all by default) and submit transactions based on it.

        An async context manager, entered once the view has applied everything that was committed at entry.

        Args:
            view: `SqliteView`, `DictView` or your own.
            partitions: which ones.
            batch_limit: transactions per commit of the view at most.
            max_in_flight: submits of a partition under way at a time (`client.maxConcurrentTransactions`).
            on_poison: what a transaction does that cannot be applied: "stop" ends the block with
                ApplyFailedError, "pause" stops its partition and leaves the others.
            catch_up: False enters at once, with the state that the view has.
        """
        wanted = self._life.wanted(partitions)
        if not wanted or len(set(wanted)) < len(wanted):
            raise ValueError(f"partitions: expected at least one, each named once, found {list(wanted)}")
        limit = self._max_in_flight if max_in_flight is None else max_in_flight
        return Application(self._engine, view, wanted, batch_limit, limit, on_poison, catch_up)

    def partition_of(self, key: int | str) -> int:
        """The partition of a key, for ever the same: an int modulo the count, a text by its CRC-32."""
        return key_partition(key, self.num_partitions)

    # ---- effects and the end ------------------------------------------------------------------------

    def _plugins(self) -> dict[type, Callable[[Any], None]]:
        appends, reads = self._appends, self._reads
        return {
            Committed: appends.on_committed,
            Failed: appends.on_failed,
            Flushed: appends.on_flushed,
            Deliver: reads.on_deliver,
            Fetched: reads.on_fetched,
            Unfetchable: reads.on_unfetchable,
            MarkRead: reads.on_mark_read,
            RecordsCarried: self._by_ids.on_records,
            StatusChanged: self._on_status_changed,
            Joined: self._on_joined,
            ClusterLost: self._life.on_cluster_lost,
        }

    def _on_joined(self, effect: Joined) -> None:
        self.cluster, self.client_id = effect.cluster, effect.client_id
        self.num_partitions = effect.partition_count
        self._life.on_joined(effect)

    def _on_status_changed(self, effect: StatusChanged) -> None:
        error = self._life.on_status_changed(effect)
        if error is not None:
            self._reads.fail(effect.partition, effect.feed, error)

    def _in_child(self) -> None:
        """In a forked child: nothing of this client is for it, and its tasks end if the child runs them at all."""
        self._life.forked = self._life.closing = True
        if self._life.tasks is not None and self._life.thread == get_ident():
            self._life.halt()
            self._life.tasks.fail(WrongProcessError())

    def _end(self, driver: ClientDriver) -> None:
        """Let everybody who waits go; at once, without awaiting anything."""
        self._life.closing = True
        if self._appends.under_way:
            self._life.report(Level.WARNING, f"closed with {self._appends.under_way} appends whose outcome is unknown")
        failure = self._life.ended()
        if failure is None:
            # One last step, here and now: a task that is being cancelled cannot wait for the pump.
            driver.finish(CloseClient())
        error = failure or ClientClosedError("the client was closed")
        self._appends.end(error)
        self._reads.end(error)
        self._by_ids.end(error)
        self._life.end()

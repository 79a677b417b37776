"""The public client for threads, log layer: feeds, appends with exact outcomes, no retries."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Literal, TypeVar

import waltz_trio as trio_front
from waltz_core.base.errors import LockConflictError, NotCommittedError
from waltz_core.client.calls import PartitionStatus
from waltz_sync.application import Application
from waltz_sync.blocks import Block
from waltz_sync.callers import check_timeout
from waltz_sync.feed import Feed, FeedBlock
from waltz_sync.held import Held
from waltz_sync.pending import Pending, PendingMany
from waltz_sync.portal import Portal
from waltz_trio.client.arguments import APPENDS, listed
from waltz_trio.client.values import Append, Receipt, Tail, Transaction
from waltz_trio.client.views import View

S = TypeVar("S")

_APPEND_LATE = (
    "the outcome is unknown: the append stays under way, and may commit. To learn the outcome, use "
    "pending = client.send(...) instead, and call pending.outcome(timeout=...) as often as needed"
)
_MANY_LATE = (
    "the outcomes are unknown: what was sent stays under way, and may commit. To learn the outcomes, use "
    "client.send(...) for each, and call pending.outcome(timeout=...) as often as needed"
)
_SEND_LATE = "nothing was appended: too much is under way (client.sendWindow)"
_FLUSH_LATE = "some appends have no outcome yet; they stay under way, and flush() may be called again"
_READY_LATE = "not every partition is mounted; `status` says why. Mounting goes on"
_READ_LATE = "not all of them could be read in time; ask for fewer, or give it more time"
_MARK_LATE = "no server could tell the committed mark; `status` says what the partition waits for"


class Client:
    """A connection to a cluster. Made by `open_client`; any number of threads may use it."""

    def __init__(self, portal: Portal, client: trio_front.Client, held: Held[trio_front.Client]) -> None:
        self.cluster = client.cluster
        self.client_id = client.client_id
        self.num_partitions = client.num_partitions
        self._portal = portal
        self._client = client
        self._held = held
        self._feeds: dict[int, Feed] = {}  # touched by the Trio thread alone

    # ---- reading -----------------------------------------------------------------------------------

    def feed(
        self,
        partition: int,
        *,
        after: int | Tail,
        prefetch: int = 64,
        select: Callable[[int], bool] | None = None,
        timeout: float | None = None,
    ) -> Block[Feed]:
        """Read a partition: `with client.feed(3, after=mark) as feed: for txn in feed: ...`.

        Args:
            partition: which one.
            after: the last transaction that is done with; -1 = from the start, `TAIL` = only what is new.
            prefetch: how many payloads are read ahead; 0 = none, `feed.fetch(txn)` reads one.
            select: given a header, whether the payload is wanted; the others are not read. Must not wait.
            timeout: seconds to wait for each transaction; then iterating raises TimeoutError, and may be continued.

        Raises:
            PartitionNotFoundError: no such partition.
            FeedBusyError: on entering: this client has a feed of this partition already.
        """
        check_timeout(timeout)
        manager = self._portal.look(self._client.feed, partition, after=after, prefetch=prefetch, select=select)
        return FeedBlock(self._portal, Held(self._portal, manager, self._held), self._feeds, timeout)

    def read(self, partition: int, first: int, last: int, *, timeout: float | None = None) -> list[Transaction]:
        """Transactions `first` to `last`, both included, with their payloads; no feed is needed, nor disturbed.

        Those that are not committed yet are left out: all that was acknowledged before this call is there. Servers
        that archive by themselves give out what is below the log start, too. Markers of the pipeline are passed over.

        Args:
            partition: which one.
            first: id of the first, from 0 on.
            last: id of the last. All of them are held in memory: read long logs in pieces, or by a feed.
            timeout: seconds to wait.

        Raises:
            TimeoutError: not all were read within `timeout` seconds.
            BeforeStartError: the log begins behind `first`, and no archive is read through.
            PartitionUnavailableError: the server refuses: no replica has a sound copy, or our role may not read.
            PartitionNotFoundError: no such partition.
            FeedBusyError: the server is of 0.13.2, which has no such reading, and a feed of the partition is open.
        """
        return self._portal.call(self._client.read, timeout, _READ_LATE, partition, first, last)

    def committed_mark(self, partition: int, *, timeout: float | None = None) -> int:
        """The server's committed mark: -1 for an empty log. Waits until a server answers.

        It covers every append that was acknowledged, to any client, before this call.

        Raises:
            PartitionUnavailableError: the server refuses: our role may not read.
            PartitionNotFoundError: no such partition.
            TimeoutError: no server answered within `timeout` seconds.
        """
        return self._portal.call(self._client.committed_mark, timeout, _MARK_LATE, partition)

    def status(self, partition: int) -> PartitionStatus:
        """What a partition is doing right now."""
        return self._portal.look(self._client.status, partition)

    def ready(self, partitions: Iterable[int] | None = None, *, timeout: float | None = None) -> None:
        """Wait until partitions (all by default) are mounted; mounts them if necessary.

        Raises:
            TimeoutError: not all are, within `timeout` seconds.
            ClientAheadError: the log ends before where one of them began.
            BeforeStartError: the log begins behind where one of them began.
        """
        self._portal.call(self._client.ready, timeout, _READY_LATE, partitions)

    # ---- writing -----------------------------------------------------------------------------------

    def append(
        self, partition: int, append: Append, *, based_on: int | None = None, timeout: float | None = None
    ) -> Receipt:
        """Append a transaction and wait for its outcome; no retries.

        Args:
            partition: which one.
            append: payload, header, locks.
            based_on: mark of the state that the decision was based on; default is that of the open feed.
                Needed for locks where no feed is open.
            timeout: seconds to wait.

        Returns:
            A receipt: the transaction id, and more.

        Raises:
            TimeoutError: the outcome is unknown to the caller; the append stays under way. Whoever must know uses
                `send`, and asks the `Pending` again.
            LockConflictError: a lock was taken behind `based_on`.
            NotCommittedError: lost; it is safe to append again.
            ClientAheadError: the log is behind this client.
            BeforeStartError: history was freed that this client has not seen; the outcome is unknown.
            ClientClosedError, ClientFailedError: the outcome is unknown.
            PartitionNotFoundError: no such partition.
        """

        async def run() -> Receipt:
            self._tell_mark(partition)
            return await self._client.append(partition, append, based_on=based_on)

        return self._portal.call(run, timeout, _APPEND_LATE)

    def append_many(
        self,
        partition: int,
        appends: Iterable[Append | bytes],
        *,
        based_on: int | None = None,
        timeout: float | None = None,
    ) -> list[Receipt | LockConflictError | NotCommittedError]:
        """Append many transactions and wait for all of them at once; no retries.

        They commit in their order, each for itself. If one cannot be sent at all, none is sent.

        Args:
            partition: which one.
            appends: payloads, headers, locks; bytes are one that has only a payload, and cost less.
            based_on: as of `append`, for all of them.
            timeout: seconds to wait for all of them.

        Returns:
            For each, in their order: a receipt, or the error that says why it is not in the log.

        Raises:
            TimeoutError: the outcome of some is unknown to the caller; what was sent stays under way.
            ClientAheadError: the log is behind this client.
            BeforeStartError: history was freed that this client has not seen; the outcome of some is unknown.
            ClientClosedError, ClientFailedError: the outcome of some is unknown.
            PartitionNotFoundError: no such partition.
            ValueError, TypeError: one cannot be sent; a note says which.
        """
        self._portal.check()
        wanted = listed(appends, APPENDS)  # a generator of them runs in the caller's thread

        async def run() -> list[Receipt | LockConflictError | NotCommittedError]:
            self._tell_mark(partition)
            return await self._client.append_many(partition, wanted, based_on=based_on)

        return self._portal.call(run, timeout, _MANY_LATE)

    def send(
        self, partition: int, append: Append, *, based_on: int | None = None, timeout: float | None = None
    ) -> Pending:
        """Queue an append and return; appends of a partition commit in the order of their sends, or not at all.

        Waits only while `client.sendWindow` bytes are under way. Arguments and errors as `append`; the
        outcome is that of the `Pending`. After a TimeoutError nothing was appended.
        """

        async def run() -> Pending:
            self._tell_mark(partition)
            return Pending(self._portal, await self._client.send(partition, append, based_on=based_on))

        return self._portal.call(run, timeout, _SEND_LATE)

    def send_many(
        self,
        partition: int,
        appends: Iterable[Append | bytes],
        *,
        based_on: int | None = None,
        timeout: float | None = None,
    ) -> PendingMany:
        """Queue many appends and return; as many calls of `send` would, at a fraction of their cost.

        Waits only while `client.sendWindow` bytes are under way. Arguments and errors as `append_many`; the outcomes
        are those of the `PendingMany`. After a TimeoutError some may have been sent.
        """
        self._portal.check()
        wanted = listed(appends, APPENDS)  # a generator of them runs in the caller's thread

        async def run() -> PendingMany:
            self._tell_mark(partition)
            return PendingMany(self._portal, await self._client.send_many(partition, wanted, based_on=based_on))

        return self._portal.call(run, timeout, _MANY_LATE)

    def flush(self, partition: int | None = None, *, timeout: float | None = None) -> None:
        """Wait until every earlier append of this client (to one partition or all) has an outcome.

        Raises:
            TimeoutError: some have none within `timeout` seconds.
        """
        self._portal.call(self._client.flush, timeout, _FLUSH_LATE, partition)

    def materialize(
        self,
        view: View[S],
        partitions: Iterable[int] | None = None,
        *,
        batch_limit: int = 1000,
        max_in_flight: int | None = None,
        on_poison: Literal["stop", "pause"] = "stop",
        catch_up: bool = True,
        timeout: float | None = None,
    ) -> Application[S]:
        """Keep a view up to date with partitions (all by default) and submit transactions based on it.

        A context manager, entered once the view has applied everything that was committed at entry. `apply` runs in
        a thread of the client.

        Args:
            view: `SqliteView`, `DictView` or your own.
            partitions: which ones.
            batch_limit: transactions per commit of the view at most.
            max_in_flight: submits of a partition under way at a time (`client.maxConcurrentTransactions`).
            on_poison: what a transaction does that cannot be applied: "stop" ends the application, whose block
                raises ApplyFailedError when it is left, "pause" stops its partition and leaves the others.
            catch_up: False enters at once, with the state that the view has.
            timeout: seconds to wait on entering.
        """
        check_timeout(timeout)
        app = self._portal.look(
            self._client.materialize,
            view,
            partitions,
            batch_limit=batch_limit,
            max_in_flight=max_in_flight,
            on_poison=on_poison,
            catch_up=catch_up,
        )
        return Application(self._portal, app, self._held, timeout)

    def partition_of(self, key: int | str) -> int:
        """The partition of a key, which never changes: an int modulo the count, a text by its CRC-32."""
        return self._client.partition_of(key)

    def _tell_mark(self, partition: int) -> None:
        """In the Trio thread: appends that name no mark are based on what the open feed's loop has done."""
        feed = self._feeds.get(partition) if isinstance(partition, Hashable) else None
        if feed is not None:
            feed._tell_mark()

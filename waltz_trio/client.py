"""The public client, log layer: feeds, appends with exact outcomes, no retries."""

from __future__ import annotations

import random
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, Literal, TypeVar, cast

import trio
from trio_util import RepeatedEvent

from waltz_core.base.edge import Level
from waltz_core.base.errors import (
    BeforeStartError,
    ClientAheadError,
    ClientClosedError,
    ClientError,
    ClientFailedError,
    FeedBusyError,
    LockConflictError,
    NotCommittedError,
    PartitionNotFoundError,
)
from waltz_core.base.lock import Lock
from waltz_core.base.log import PROBE_MARK
from waltz_core.base.record import record
from waltz_core.client.calls import (
    CloseClient,
    ClusterLost,
    Committed,
    Deliver,
    Failed,
    Fetch,
    Fetched,
    Flush,
    Flushed,
    Forget,
    ForgetMark,
    Joined,
    MarkRead,
    Open,
    PartitionStatus,
    Phase,
    ReadMark,
    Reason,
    StatusChanged,
    StopFeed,
    Submit,
)
from waltz_core.client.membership import Membership
from waltz_core.client.node import ClientNode
from waltz_core.client.settings import ClientSettings
from waltz_core.wire.client_messages import Conflict, LockKind
from waltz_core.wire.lock_names import NO_NAMES, UNTOLD, name_at
from waltz_trio.application import Application
from waltz_trio.arguments import as_payload, check_codec, not_an_append, whole
from waltz_trio.arguments import mark as mark_of
from waltz_trio.background import Background
from waltz_trio.blocks import Block
from waltz_trio.codecs import shown
from waltz_trio.feed import Feed
from waltz_trio.instrument import Instrument
from waltz_trio.log import reporter
from waltz_trio.process import NodeDriver
from waltz_trio.pump import now_ms
from waltz_trio.values import Append, Receipt, Tail, key_partition, lock_hashes
from waltz_trio.views import View

S = TypeVar("S")
T = TypeVar("T")

_CHECKPOINT_EVERY = 64  # sends; a task switch costs as much as handling one
_INT_31 = 1 << 31
_HOMES_KEPT = 10_000  # locks whose partition is remembered
_OUR_LOCKS = "waltz."  # locks of this package's own protocols, such as a sink's, are taken in every partition
_NO_LOCKS: tuple[int, ...] = ()


@record
class ClientLimits:
    """What an application may have under way; sizes in bytes."""

    max_in_flight: int = 5  # unresolved submits per partition
    send_window: int = 8 << 20  # unresolved payload above which `send` waits
    payload_size_max: int = 16 << 20
    locks_max: int = 10_000  # of one append


class Pending:
    """An append that was sent; its outcome is kept whether or not anybody waits."""

    __slots__ = ("_client", "_event", "_names", "_on_done", "_outcome", "_result", "_size", "_writes", "partition")

    def __init__(self, client: Client, partition: int, size: int, names: bytes, writes: int, result: Any) -> None:
        self.partition = partition
        self._result = result  # for the receipt
        self._names = names  # of its locks, the write locks first
        self._writes = writes  # how many those are
        self._client = client
        self._size = size
        self._outcome: int | Failed | None = None
        self._event: trio.Event | None = None
        self._on_done: Callable[[], object] | None = None

    @property
    def done(self) -> bool:
        """The outcome is known; `outcome` returns or raises at once."""
        return self._outcome is not None

    async def outcome(self) -> Receipt:
        """A receipt: the transaction id, and more.

        Raises:
            LockConflictError: refused because of a lock.
            NotCommittedError: lost; it is safe to append again.
            ClientAheadError: the log is behind this client; the outcome is unknown.
            ClientClosedError: the client was closed before the outcome was known.
            ClientFailedError: the client broke before the outcome was known.
        """
        if self._outcome is None:
            if self._event is None:
                self._event = trio.Event()
            await self._event.wait()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        return self._found()

    def _found(self) -> Receipt:
        """The outcome, once it is known; errors as `outcome`."""
        found = self._outcome
        assert found is not None
        if isinstance(found, Failed):
            raise self._client._error_of(found)
        return Receipt(self.partition, found, value=self._result)

    def _when_done(self, then: Callable[[], object]) -> None:
        """Call `then` once, when the outcome is known."""
        assert self._outcome is None
        self._event = trio.Event()
        self._on_done = then

    def _settle(self, outcome: int | Failed) -> None:
        self._outcome = outcome
        if self._event is not None:
            self._event.set()
            if self._on_done is not None:
                self._on_done()


def _conflict_of(failed: Failed) -> LockConflictError:
    """What the server says about a lock, in the words of the application."""
    why = failed.refusal
    if why is None or why.lock_kind not in (LockKind.WRITE, LockKind.READ):
        return LockConflictError(failed.partition, failed.blocking_id)
    pending = cast(Pending, failed.token)
    at = why.lock_index if why.lock_kind == LockKind.WRITE else pending._writes + why.lock_index
    named = name_at(pending._names, at)
    true = why.conflict == Conflict.TRUE
    return LockConflictError(
        failed.partition,
        failed.blocking_id,
        kind=LockKind(why.lock_kind).name.lower(),
        lock=Lock(*named) if named is not None else None,
        conflict=True if true else False if why.conflict == Conflict.FALSE else None,
        taken_by=why.blocking_id if true else None,
    )


class _Answer(Generic[T]):
    """One answer for one waiter."""

    def __init__(self) -> None:
        self._event = trio.Event()
        self._value: T | None = None
        self._error: ClientError | None = None

    def give(self, value: T) -> None:
        self._value = value
        self._event.set()

    def fail(self, error: ClientError) -> None:
        self._error = error
        self._event.set()

    async def wait(self) -> T:
        await self._event.wait()
        if self._error is not None:
            raise self._error
        return cast(T, self._value)


class _Slot:
    """Somebody waits for one payload."""

    def __init__(self) -> None:
        self.event = trio.Event()
        self.data: bytes | None = None

    def _on_payload(self, transaction_id: int, data: bytes) -> None:
        self.data = data
        self.event.set()


class Client:
    """A connection to a cluster. Made by `open_client`; everything is for tasks of one Trio run."""

    def __init__(
        self,
        membership: Membership,
        settings: ClientSettings,
        limits: ClientLimits,
        instrument: Instrument | None = None,
    ) -> None:
        self.cluster = ""
        self.client_id = 0
        self.num_partitions = 0
        self._settings = settings
        self._max_in_flight = limits.max_in_flight
        self._send_window = limits.send_window
        self._payload_size_max = limits.payload_size_max
        self._locks_max = limits.locks_max
        self._instrument = instrument
        self._report = reporter("client")
        self._node = ClientNode(membership, settings, random.Random())
        self._joined = trio.Event()
        self._look_closer: Callable[[], Awaitable[str]] | None = None  # why the cluster does not answer
        self._unjudged: set[Pending] = set()
        self._unjudged_size = 0
        self._room = RepeatedEvent()
        self._settled: trio.Event | None = None
        self._sends = 0
        self._unstarted = 0  # calls of `append`, `send` and `submit` that nobody has awaited
        self._homes: dict[bytes, int] | None = {}  # lock → its partition; None: somebody was warned already
        self._closing = False
        self._feeds: dict[int, Feed] = {}
        self._appended: set[int] = set()
        self._waiting: dict[tuple[int, int], list[Feed | _Slot]] = {}  # (partition, transaction id) → who wants it
        self._marks: set[_Answer[int]] = set()
        self._flushes: set[_Answer[None]] = set()
        self._phases: dict[int, Phase] = {}
        self._begins: dict[int, str] = {}  # what servers say of logs that do not go back far enough
        self._phase_changed = RepeatedEvent()
        self._tasks: Background | None = None
        self._post: Callable[[Any], None] = lambda event: None

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
            select: given a header, whether the payload is wanted; the others are not read.

        Raises:
            PartitionNotFoundError: no such partition.
            FeedBusyError: on entering: this client has a feed of this partition already.
        """
        partition = self._check_partition(partition)
        if not isinstance(after, Tail):
            after = mark_of(after, "after")
        prefetch = whole(prefetch, "prefetch")
        if prefetch < 0:
            raise ValueError(f"prefetch is at least 0, not {prefetch}")
        feed = Feed(self, partition, after, prefetch, select)
        return Block("async with client.feed(...) as feed:", feed)

    async def committed_mark(self, partition: int) -> int:
        """The server's committed mark: -1 for an empty log. Waits until a server can tell.

        It covers every append that was acknowledged, to any client, before this call.
        """
        partition = self._check_open(partition)
        answer: _Answer[int] = _Answer()
        self._marks.add(answer)
        self._post(ReadMark(partition, answer))
        try:
            return await answer.wait()
        finally:
            if answer in self._marks:
                self._marks.remove(answer)
                self._post(ForgetMark(partition, answer))

    def status(self, partition: int) -> PartitionStatus:
        """What a partition is doing right now."""
        return self._node.status(self._check_partition(partition), now_ms())

    async def ready(self, partitions: Iterable[int] | None = None) -> None:
        """Wait until partitions (all by default) are mounted; mounts them if nobody did.

        Raises:
            ClientAheadError: the log ends before where one of them began.
            BeforeStartError: the log begins behind where one of them began.
        """
        wanted = self._wanted(partitions)
        self._raise_if_ended()
        for partition in wanted:
            self._post(Open(partition, None, False))
        for partition in wanted:
            while self._phases.get(partition) is not Phase.MOUNTED:
                self._raise_if_ended()
                error = self._settled_error(partition, self._phases.get(partition))
                if error is not None:
                    raise error
                await self._phase_changed.wait()
        await trio.lowlevel.checkpoint_if_cancelled()

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
            ClientClosedError, ClientFailedError: the outcome is unknown.
            PartitionNotFoundError: no such partition.
        """
        self._unstarted += 1
        return self._append(partition, append, based_on)

    async def _append(self, partition: int, append: Append, based_on: int | None) -> Receipt:
        self._unstarted -= 1
        return await self._submit(partition, append, based_on).outcome()

    async def append_many(
        self, partition: int, appends: Iterable[Append], *, based_on: int | None = None
    ) -> list[Receipt | LockConflictError | NotCommittedError]:
        """Append many transactions and wait for all of them at once; no retries.

        They commit in their order, each for itself. If one cannot be sent at all, those before it stay under way.

        Args:
            partition: which one.
            appends: payloads, headers, locks.
            based_on: as of `append`, for all of them.

        Returns:
            For each, in their order: a receipt, or the error that says why it is not in the log.

        Raises:
            ClientAheadError: the log is behind this client.
            ClientClosedError, ClientFailedError: the outcome of some is unknown.
            PartitionNotFoundError: no such partition.
        """
        pendings = [await self.send(partition, append, based_on=based_on) for append in appends]
        left = [pending for pending in pendings if not pending.done]
        count, all_judged = len(left), trio.Event()

        def judged() -> None:
            nonlocal count
            count -= 1
            if not count:
                all_judged.set()

        for pending in left:
            pending._when_done(judged)
        if left:
            await all_judged.wait()
        outcomes: list[Receipt | LockConflictError | NotCommittedError] = []
        for pending in pendings:
            try:
                outcomes.append(await pending.outcome())
            except (LockConflictError, NotCommittedError) as error:
                outcomes.append(error)
        return outcomes

    def send(self, partition: int, append: Append, *, based_on: int | None = None) -> Coroutine[Any, Any, Pending]:
        """Queue an append and return; appends of a partition commit in the order of their sends, or not at all.

        Waits only while `client.sendWindow` bytes are under way. Arguments and errors as `append`; the
        outcome is that of the `Pending`.
        """
        self._unstarted += 1
        return self._send(partition, append, based_on)

    async def _send(self, partition: int, append: Append, based_on: int | None) -> Pending:
        self._unstarted -= 1
        while self._unjudged_size >= self._send_window:
            await self._room.wait()
        self._sends += 1
        if self._sends % _CHECKPOINT_EVERY == 0:
            await trio.lowlevel.checkpoint()
        return self._submit(partition, append, based_on)

    async def flush(self, partition: int | None = None) -> None:
        """Wait until every earlier append of this client (to one partition or all) has an outcome."""
        if partition is not None:
            partition = self._check_open(partition)
        answers = []
        for each in sorted(self._appended) if partition is None else [partition]:
            answer: _Answer[None] = _Answer()
            self._flushes.add(answer)
            answers.append(answer)
            self._post(Flush(each, answer))
        try:
            for answer in answers:
                await answer.wait()
        finally:
            self._flushes.difference_update(answers)
        await trio.lowlevel.checkpoint_if_cancelled()

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
        wanted = self._wanted(partitions)
        limit = self._max_in_flight if max_in_flight is None else max_in_flight
        return Application(self, view, wanted, batch_limit, limit, on_poison, catch_up)

    def partition_of(self, key: int | str) -> int:
        """The partition of a key, for ever the same: an int modulo the count, a text by its CRC-32."""
        return key_partition(key, self.num_partitions)

    # ---- appends: the hot path -----------------------------------------------------------------------

    def _submit(self, partition: int, append: Append, based_on: int | None) -> Pending:
        if type(partition) is not int or self._closing or not 0 <= partition < self.num_partitions:
            partition = self._check_open(partition)
        if type(append) is not Append and not isinstance(append, Append):
            raise not_an_append(append)
        data = self._payload(append)
        size = len(data)
        header = append.header if type(append.header) is int else whole(append.header, "a header")
        if not -_INT_31 <= header < _INT_31:
            raise ValueError(f"a header has 32 bits, from -2**31 to 2**31 - 1, found {header}")
        if based_on is not None and based_on is not PROBE_MARK and (type(based_on) is not int or based_on < -1):
            based_on = mark_of(based_on, "based_on")
        write = read = adds = _NO_LOCKS
        names = NO_NAMES
        if append.write or append.read or append.append:
            found: list[bytes] = []
            write, read, adds = self._hashes(append, found)
            if self._homes is not None:
                self._check_homes(partition, found)
            names = b"".join(found) if len(found) > 1 else found[0] if found else NO_NAMES
            if names == UNTOLD:
                names = NO_NAMES
            if based_on is None and (write or read):
                based_on = self._mark_for(partition)
        checksum = zlib.crc32(data)
        if checksum >= 1 << 31:
            checksum -= 1 << 32
        pending = Pending(self, partition, size, names, len(write), append.result)
        self._unjudged.add(pending)
        self._unjudged_size += size
        self._appended.add(partition)
        self._post(Submit(partition, pending, based_on, write, read, adds, header, data, checksum, names))
        return pending

    def _payload(self, append: Append) -> bytes:
        try:
            data = append.codec.dumps(append.value)
        except (TypeError, AttributeError):
            check_codec(append.codec)
            raise
        if type(data) is not bytes:
            data = as_payload(data, append.codec)
        if len(data) > self._payload_size_max:
            raise ValueError(
                f"payload of {len(data)} bytes, at most {self._payload_size_max} accepted (server.payloadSizeMax)"
            )
        return data

    def _hashes(self, append: Append, names: list[bytes]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Write, read and append locks as they travel; `names` gets all of their names, in this order."""
        limit = self._locks_max
        try:
            write = lock_hashes(append.write, names, limit) if append.write else _NO_LOCKS
            read = lock_hashes(append.read, names, limit - len(write)) if append.read else _NO_LOCKS
            adds = lock_hashes(append.append, names, limit - len(write) - len(read)) if append.append else _NO_LOCKS
        except ValueError:
            if len(names) <= limit:
                raise
            raise ValueError(f"more than {limit} locks in one append (server.locksMax)") from None
        return write, read, adds

    def _check_homes(self, partition: int, locks: list[bytes]) -> None:
        """Warn, once in the life of this client, of a lock that goes to two partitions and so protects nothing."""
        homes = self._homes
        assert homes is not None
        for lock in locks:
            home = homes.setdefault(lock, partition)
            if home != partition and lock != UNTOLD and not _is_ours(lock):
                self._homes = None
                self._report(
                    Level.WARNING,
                    f"lock {name_at(lock, 0)} is used in partitions {home} and {partition}, but a lock holds within "
                    "one partition: it protects neither from the other. Append what must not conflict to one "
                    "partition, such as partition_of(KEY). Said once for each client",
                )
                return
        while len(homes) > _HOMES_KEPT:
            del homes[next(iter(homes))]

    def _mark_for(self, partition: int) -> int:
        feed = self._feeds.get(partition)
        if feed is None or feed._mark is None:
            raise ValueError(
                "an append with locks needs based_on=MARK: the mark of the state that the decision was based on"
            )
        return feed._mark

    def _on_committed(self, effect: Committed) -> None:
        size = 0
        forget = self._unjudged.discard
        for token, transaction_id in effect.outcomes:
            pending = cast(Pending, token)
            if pending._event is None:
                pending._outcome = transaction_id
            else:
                pending._settle(transaction_id)
            size += pending._size
            forget(pending)
        self._judged(size)
        if self._instrument is not None:
            self._instrument.committed(effect.partition, len(effect.outcomes))

    def _on_failed(self, effect: Failed) -> None:
        pending = effect.token
        assert isinstance(pending, Pending)
        pending._settle(effect)
        self._unjudged.discard(pending)
        self._judged(pending._size)
        if self._instrument is not None:
            self._instrument.failed(effect.partition, effect.reason.name.lower())

    def _judged(self, size: int) -> None:
        self._unjudged_size -= size
        if self._unjudged_size * 2 <= self._send_window:
            self._room.set()
        if self._settled is not None and not self._unjudged:
            self._settled.set()

    def _error_of(self, failed: Failed) -> ClientError:
        match failed.reason:
            case Reason.LOCK:
                return _conflict_of(failed)
            case Reason.CLIENT_AHEAD:
                return self._ahead(failed.partition)
            case Reason.BEFORE_START:
                return BeforeStartError(failed.partition, self._begins.get(failed.partition, failed.reason.value))
            case Reason.CLOSED:
                return self._ended() or ClientClosedError("the client was closed: the outcome is unknown")
            case _:
                return NotCommittedError(failed.partition, failed.text or failed.reason.value)

    def _settled_error(self, partition: int, phase: Phase | None) -> ClientError | None:
        """What keeps a partition from being mounted for good."""
        if phase is Phase.CLIENT_AHEAD:
            return self._ahead(partition)
        if phase is Phase.BEFORE_START:
            return BeforeStartError(partition, self._begins.get(partition, phase.value))
        return None

    def _ahead(self, partition: int) -> ClientAheadError:
        status = self._node.status(partition, now_ms())
        return ClientAheadError(partition, max(status.seen_mark, status.delivered_mark), None)

    # ---- feeds and payloads ----------------------------------------------------------------------------

    def _start_feed(self, feed: Feed) -> None:
        self._check_open(feed.partition)
        if feed.partition in self._feeds:
            raise FeedBusyError(f"partition {feed.partition} has a feed in this client already")
        self._feeds[feed.partition] = feed
        self._post(Open(feed.partition, None if isinstance(feed._after, Tail) else feed._after, True))

    def _stop_feed(self, feed: Feed) -> None:
        del self._feeds[feed.partition]
        self._post(StopFeed(feed.partition))

    def _on_deliver(self, effect: Deliver) -> None:
        feed = self._feeds.get(effect.partition)
        if feed is not None:
            feed._on_run(effect.run)
            if self._instrument is not None:
                self._instrument.delivered(effect.partition, len(effect.run))

    def _ask_payloads(self, partition: int, transaction_ids: Iterable[int], who: Feed | _Slot) -> None:
        fresh = []
        for transaction_id in transaction_ids:
            waiting = self._waiting.setdefault((partition, transaction_id), [])
            if not waiting:
                fresh.append(transaction_id)
            waiting.append(who)
        if fresh:
            self._post(Fetch(partition, tuple(fresh)))

    def _forget(self, partition: int, transaction_ids: Iterable[int], who: Feed | _Slot) -> None:
        gone = []
        for transaction_id in transaction_ids:
            waiting = self._waiting.get((partition, transaction_id), [])
            if who in waiting:
                waiting.remove(who)
                if not waiting:
                    del self._waiting[partition, transaction_id]
                    gone.append(transaction_id)
        if gone:
            self._post(Forget(partition, tuple(gone)))

    def _on_fetched(self, effect: Fetched) -> None:
        for transaction_id, data in effect.payloads:
            for who in self._waiting.pop((effect.partition, transaction_id), ()):
                who._on_payload(transaction_id, data)

    async def _fetch_payload(self, partition: int, transaction_id: int) -> bytes:
        self._check_open(partition)
        slot = _Slot()
        self._ask_payloads(partition, [transaction_id], slot)
        try:
            await slot.event.wait()
        finally:
            if slot.data is None:
                self._forget(partition, [transaction_id], slot)
        self._raise_if_ended(unless=slot.data is not None)
        assert slot.data is not None
        return slot.data

    # ---- the other effects -------------------------------------------------------------------------------

    def _on_flushed(self, effect: Flushed) -> None:
        assert isinstance(effect.token, _Answer)
        self._flushes.discard(effect.token)
        effect.token.give(None)

    def _on_mark_read(self, effect: MarkRead) -> None:
        for token in effect.tokens:
            assert isinstance(token, _Answer)
            self._marks.discard(token)
            token.give(effect.mark)

    def _on_status_changed(self, effect: StatusChanged) -> None:
        self._phases[effect.partition] = effect.phase
        if effect.text:
            self._begins[effect.partition] = effect.text
        feed, error = self._feeds.get(effect.partition), self._settled_error(effect.partition, effect.phase)
        if feed is not None and error is not None:
            feed._fail(error)
        self._phase_changed.set()

    def _on_joined(self, effect: Joined) -> None:
        self.cluster, self.client_id = effect.cluster, effect.client_id
        self.num_partitions = effect.partition_count
        self._joined.set()

    def _on_cluster_lost(self, effect: ClusterLost) -> None:
        if self._tasks is not None:
            self._tasks.start_soon(self._lose, effect.reason)

    async def _lose(self, reason: str) -> None:
        """End, with what else can be found out where the cluster never answered."""
        if self._look_closer is not None and not self._joined.is_set():
            reason += await self._look_closer()
        raise ClientFailedError(reason)

    # ---- life ------------------------------------------------------------------------------------------

    def _check_partition(self, partition: int) -> int:
        number = whole(partition, "a partition")
        if not 0 <= number < self.num_partitions:
            raise PartitionNotFoundError(f"partition {number}: this cluster has 0 to {self.num_partitions - 1}")
        return number

    def _check_open(self, partition: int) -> int:
        self._raise_if_ended()
        return self._check_partition(partition)

    def _wanted(self, partitions: Iterable[int] | None) -> tuple[int, ...]:
        """Partitions that a caller names, all by default."""
        if partitions is None:
            return tuple(range(self.num_partitions))
        if isinstance(partitions, str) or not isinstance(partitions, Iterable):
            raise TypeError(f"expected a list of partitions, such as [0, 3], found {shown(partitions)}")
        return tuple(map(self._check_partition, partitions))

    def _raise_if_ended(self, *, unless: bool = False) -> None:
        if self._closing and not unless:
            raise self._ended() or ClientClosedError("the client was closed")

    def _ended(self) -> ClientFailedError | None:
        failure = self._tasks.failure if self._tasks is not None else None
        if failure is None:
            return None
        if isinstance(failure, ClientFailedError):
            return failure
        error = ClientFailedError(f"the client failed: {failure!r}")
        error.__cause__ = failure
        return error

    def _plugins(self) -> dict[type, Callable[[Any], None]]:
        return {
            Committed: self._on_committed,
            Failed: self._on_failed,
            Deliver: self._on_deliver,
            Fetched: self._on_fetched,
            Flushed: self._on_flushed,
            MarkRead: self._on_mark_read,
            StatusChanged: self._on_status_changed,
            Joined: self._on_joined,
            ClusterLost: self._on_cluster_lost,
        }

    async def _settle(self, patience: float) -> None:
        """Wait until nothing is under way, at most `patience` seconds."""
        if self._unjudged and patience > 0:
            self._settled = trio.Event()
            with trio.move_on_after(patience):
                await self._settled.wait()

    def _check_awaited(self) -> None:
        """See that every call was awaited.

        Raises:
            RuntimeError: it appended nothing.
        """
        if self._unstarted:
            raise RuntimeError(
                f"{self._unstarted} calls of append, send or submit were not awaited, and appended nothing; write: "
                "await client.append(...), await app.submit(...)"
            )

    def _end(self, driver: NodeDriver) -> None:
        """Let everybody who waits go; at once, without awaiting anything."""
        self._closing = True
        if self._unjudged:
            self._report(Level.WARNING, f"closed with {len(self._unjudged)} appends whose outcome is unknown")
        failure = self._ended()
        if failure is None:
            # One last step, here and now: a task that is being cancelled cannot wait for the pump.
            driver.post(CloseClient())
            driver.pump.run_once()
        for pending in list(self._unjudged):
            self._on_failed(Failed(pending.partition, pending, Reason.CLOSED))
        error = failure or ClientClosedError("the client was closed")
        for feed in self._feeds.values():
            feed._fail(error)
        for flush in self._flushes:
            flush.fail(error)
        for answer in self._marks:
            answer.fail(error)
        for waiting in self._waiting.values():
            for who in waiting:
                if isinstance(who, _Slot):
                    who.event.set()
        self._phase_changed.set()


def _is_ours(lock: bytes) -> bool:
    named = name_at(lock, 0)
    return named is not None and named[0].startswith(_OUR_LOCKS)

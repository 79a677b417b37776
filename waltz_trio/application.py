"""The application layer: a view kept up to date, and transactions decided on its state."""

from __future__ import annotations

import bisect
import inspect
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVarTuple

import trio

from waltz_core.edge import Level
from waltz_core.errors import (
    ApplyFailedError,
    LockConflictError,
    NotCommittedError,
    PartitionUnavailableError,
    RetriesExhaustedError,
)
from waltz_core.record import record
from waltz_trio.background import Background, background
from waltz_trio.values import Append, Batch, Receipt, Retry, lock_hashes
from waltz_trio.views import ApplyError, View

if TYPE_CHECKING:
    from waltz_trio.client import Client
    from waltz_trio.feed import Feed

Ts = TypeVarTuple("Ts")

_POISON = ("stop", "pause")
_VIEW_RETRY = Retry(base=0.01, cap=5.0)
_APPLY_ATTEMPTS = 3


@record
class ApplicationStatus:
    """What an application is doing with one partition."""

    partition: int
    applied_mark: int
    in_flight: int  # submits that hold a slot
    waiting: int  # submits that wait for a slot
    gated: int  # submits that wait behind another one that met the same lock
    view_down: str | None  # why the view does not take transactions right now
    paused: str | None  # the transaction that could not be applied, with on_poison="pause"


class _Part:
    """One partition of an application."""

    def __init__(self, partition: int, mark: int, max_in_flight: int) -> None:
        self.partition = partition
        self.mark = mark
        self.slots = trio.CapacityLimiter(max_in_flight)
        self.waiting = 0
        self.down: str | None = None
        self.paused: ApplyFailedError | None = None
        self._waiters: list[tuple[int, int, trio.Event]] = []  # sorted by mark

    def advance(self, mark: int) -> None:
        self.mark = max(self.mark, mark)
        ready = bisect.bisect_right(self._waiters, (self.mark, 1 << 62))
        for _, _, event in self._waiters[:ready]:
            event.set()
        del self._waiters[:ready]

    def pause(self, error: ApplyFailedError) -> None:
        self.paused = error
        for _, _, event in self._waiters:
            event.set()
        self._waiters.clear()

    async def reached(self, mark: int) -> None:
        """Wait until the view has applied `mark`.

        Raises:
            PartitionUnavailableError: the partition was paused.
        """
        if self.mark < mark and self.paused is None:
            event = trio.Event()
            entry = (mark, id(event), event)
            bisect.insort(self._waiters, entry)
            try:
                await event.wait()
            finally:
                if entry in self._waiters:
                    self._waiters.remove(entry)
        self.check()

    def check(self) -> None:
        if self.paused is not None:
            raise PartitionUnavailableError(self.partition, f"paused: {self.paused}") from self.paused


class _Gate:
    """First come first served among the submits of this process that met one of the same locks."""

    def __init__(self) -> None:
        self._locks: dict[tuple[int, int], tuple[trio.Lock, int]] = {}
        self.gated: dict[int, int] = {}

    @asynccontextmanager
    async def passing(self, partition: int, hashes: Iterable[int]) -> AsyncIterator[None]:
        """Hold the gate of every hash; taken in one order by all, so nobody waits in a circle."""
        keys = [(partition, value) for value in sorted(set(hashes))]
        async with AsyncExitStack() as stack:
            self.gated[partition] = self.gated.get(partition, 0) + 1
            try:
                for key in keys:
                    stack.callback(self._leave, key)
                    lock, users = self._locks.get(key) or (trio.Lock(), 0)
                    self._locks[key] = lock, users + 1
                    await stack.enter_async_context(lock)
            finally:
                self.gated[partition] -= 1
            yield

    def _leave(self, key: tuple[int, int]) -> None:
        lock, users = self._locks[key]
        if users == 1:
            del self._locks[key]
        else:
            self._locks[key] = lock, users - 1


class Application:
    """A view of some partitions, kept up to date while its block runs. Made by `Client.materialize`."""

    def __init__(self, client: Client, view: View, batch_limit: int, on_poison: str) -> None:
        self.view = view
        self._client = client
        self._batch_limit = batch_limit
        self._on_poison = on_poison
        self._parts: dict[int, _Part] = {}
        self._gate = _Gate()
        self._rng = random.Random()
        self._tasks: Background | None = None

    @classmethod
    @asynccontextmanager
    async def _open(
        cls,
        client: Client,
        view: View,
        partitions: tuple[int, ...],
        batch_limit: int,
        max_in_flight: int,
        on_poison: str,
    ) -> AsyncIterator[Application]:
        if on_poison not in _POISON:
            raise ValueError(f"on_poison is one of {', '.join(_POISON)}, not {on_poison!r}")
        if batch_limit < 1:
            raise ValueError(f"at least 1 transaction a batch, not {batch_limit}")
        if max_in_flight < 1:
            raise ValueError(f"at least 1 submit in flight, not {max_in_flight}")
        self = cls(client, view, batch_limit, on_poison)
        try:
            async with AsyncExitStack() as stack, background("the application") as tasks:
                self._tasks = tasks
                for partition in partitions:
                    mark = await self._in_view(view.load_mark, partition)
                    self._parts[partition] = _Part(partition, mark, max_in_flight)
                    feed = await stack.enter_async_context(client.feed(partition, after=mark, prefetch=batch_limit))
                    feed.markers = True  # views pass over them, but their marks must not skip an id
                    tasks.start_soon(self._follow, self._parts[partition], feed)
                yield self
        finally:
            view.close()

    # ---- deciding ------------------------------------------------------------------------------------

    async def submit(
        self,
        decide: Callable[[Any, *Ts], Append | Awaitable[Append | None] | None],
        *args: *Ts,
        partition: int,
        until: str = "committed",
        retry: Retry = Retry(),  # noqa: B008 - a value
    ) -> Receipt | None:
        """Decide on the state, append, and decide again where a lock was taken meanwhile.

        `decide(state, *args)` gets what the view reads with (a cursor, a dict) and returns an `Append`, or None
        to decline. It may run several times and must not have effects of its own. Cancelled after the
        append was sent, the outcome is unknown to the caller, and no retry follows.

        Args:
            decide: a function of the state; with views that are not threaded it may be `async def`.
            args: handed to `decide`.
            partition: whose state, and where to append.
            until: "committed", or "applied": also wait until this view has applied it.
            retry: pauses and limits.

        Returns:
            A receipt, or None when `decide` declined.

        Raises:
            RetriesExhaustedError: `retry` allows no further attempt; the cause is the last failure.
            ClientAheadError: the log is behind this client.
            ViewRegressedError: the stored mark of the view went back.
            PartitionUnavailableError: the partition is paused.
            ClientClosedError, ClientFailedError: the outcome is unknown.
        """
        if until not in ("committed", "applied"):
            raise ValueError(f"until is 'committed' or 'applied', not {until!r}")
        part = self._part(partition)
        gives_up_at = trio.current_time() + retry.give_up_after
        attempts = conflicts = losses = 0
        async with AsyncExitStack() as stack:
            gated: frozenset[int] = frozenset()
            while True:
                part.check()
                append, pending = await self._attempt(part, decide, args)
                if append is None or pending is None:
                    return None
                attempts += 1
                try:
                    transaction_id = await pending
                except LockConflictError as error:
                    conflicts += 1
                    self._check_retry(retry, attempts, gives_up_at, error)
                    if self._client._instrument is not None:
                        self._client._instrument.conflict(partition, error.blocking_id)
                    hashes = frozenset((*lock_hashes(append.write), *lock_hashes(append.read)))
                    if not hashes <= gated:
                        await stack.aclose()
                        gated |= hashes
                        await stack.enter_async_context(self._gate.passing(partition, gated))
                    await part.reached(error.blocking_id)
                except NotCommittedError as error:
                    losses += 1
                    self._check_retry(retry, attempts, gives_up_at, error)
                    await trio.sleep(retry.delay(losses, self._rng))
                else:
                    break
        if until == "applied":
            await part.reached(transaction_id)
        return Receipt(partition, transaction_id, attempts, conflicts)

    async def caught_up(self, partition: int | None = None, *, to: int | None = None) -> None:
        """Wait until the view has applied everything that was committed when this was called.

        Args:
            partition: one partition; None = all.
            to: a mark to wait for instead of the server's.

        Raises:
            PartitionUnavailableError: a partition was paused.
        """
        for each in self._parts if partition is None else (partition,):
            part = self._part(each)
            await part.reached(await self._client.committed_mark(each) if to is None else to)
        await trio.lowlevel.checkpoint_if_cancelled()

    def mark(self, partition: int) -> int:
        """The last transaction that the view has applied."""
        return self._part(partition).mark

    def status(self, partition: int) -> ApplicationStatus:
        """What this application is doing with a partition right now."""
        part = self._part(partition)
        return ApplicationStatus(
            partition,
            part.mark,
            part.slots.borrowed_tokens,
            part.waiting,
            self._gate.gated.get(partition, 0),
            part.down,
            None if part.paused is None else str(part.paused),
        )

    async def read(self, function: Callable[..., Any], *args: Any, partition: int) -> tuple[Any, int]:
        """`function(state, *args)` and the mark of the state that it saw."""
        return await self._read(self._part(partition), function, args)

    # ---- inside --------------------------------------------------------------------------------------

    def _part(self, partition: int) -> _Part:
        part = self._parts.get(partition)
        if part is None:
            raise ValueError(f"partition {partition} is not materialized here")
        return part

    async def _attempt(
        self, part: _Part, decide: Callable[..., Any], args: tuple[Any, ...]
    ) -> tuple[Append | None, Awaitable[int] | None]:
        """Decide and send while holding a slot; the slot is given back when the append has an outcome."""
        part.waiting += 1
        try:
            await part.slots.acquire_on_behalf_of(token := object())
        finally:
            part.waiting -= 1
        sent = False
        try:
            append, mark = await self._read(part, decide, args)
            if append is None:
                return None, None
            if not isinstance(append, Append):
                raise TypeError(f"decide must return an Append or None, not {append!r}")
            pending = self._client._submit(part.partition, append, mark)
            pending._when_done(lambda: part.slots.release_on_behalf_of(token))
            sent = True
        finally:
            if not sent:
                part.slots.release_on_behalf_of(token)
        return append, pending.outcome()

    def _check_retry(self, retry: Retry, attempts: int, gives_up_at: float, error: Exception) -> None:
        if attempts >= retry.attempts or trio.current_time() >= gives_up_at:
            raise RetriesExhaustedError(attempts) from error

    async def _read(self, part: _Part, decide: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
        failures = 0
        while True:
            try:
                if inspect.iscoroutinefunction(decide):
                    return await self._read_async(part, decide, args)
                found: tuple[Any, int] = await self._in_view(self.view.read, part.partition, decide, args)
                return found
            except Exception as error:
                if not self.view.is_transient(error):
                    raise
                failures += 1
                await trio.sleep(_VIEW_RETRY.delay(failures, self._rng))

    async def _read_async(self, part: _Part, decide: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
        if self.view.threaded:
            raise TypeError("decide must be a plain function with this view: it runs in a database transaction")
        # The mark is that of the start: what decide sees later is newer, which can only cause a conflict.
        found, mark = self.view.read(part.partition, lambda state: state, ())
        return await decide(found, *args), mark

    async def _in_view(self, method: Callable[..., Any], *args: Any) -> Any:
        if self.view.threaded:
            return await trio.to_thread.run_sync(method, *args)
        await trio.lowlevel.checkpoint_if_cancelled()
        return method(*args)

    async def _follow(self, part: _Part, feed: Feed) -> None:
        """Apply one partition's feed until the block ends, or a transaction cannot be applied."""
        async for batch in feed.batches(self._batch_limit):
            try:
                await self._apply(part, batch)
            except ApplyFailedError as error:
                if self._on_poison == "stop":
                    raise
                self._client._report(Level.ERROR, f"{error}: {error.__cause__!r}; the partition is paused")
                part.pause(error)
                return

    async def _apply(self, part: _Part, batch: Batch) -> None:
        failures = 0
        while True:
            began = trio.current_time()
            try:
                mark = await self._in_view(self.view.commit, batch)
            except ApplyError as error:
                failures += 1
                if failures >= _APPLY_ATTEMPTS:
                    await self._apply_up_to(part, batch, error)
                part.down = f"transaction {error.transaction.id} cannot be applied: {error.__cause__!r}"
            except Exception as error:
                if not self.view.is_transient(error):
                    raise
                failures += 1
                part.down = str(error)
            else:
                part.down = None
                part.advance(mark)
                if self._client._instrument is not None:
                    self._client._instrument.applied(part.partition, len(batch), trio.current_time() - began)
                return
            await trio.sleep(_VIEW_RETRY.delay(failures, self._rng))

    async def _apply_up_to(self, part: _Part, batch: Batch, error: ApplyError) -> None:
        """Keep what is good before the transaction that is not, then fail with it."""
        good = tuple(transaction for transaction in batch if transaction.id < error.transaction.id)
        if good:
            part.advance(await self._in_view(self.view.commit, Batch(batch.partition, good)))
        raise ApplyFailedError(part.partition, error.transaction.id) from error.__cause__

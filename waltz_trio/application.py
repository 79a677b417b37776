"""The application layer: a view kept up to date, and transactions decided on its state.

What a submit does next is decided by `waltz_core.client.submitter`; here are the tasks, the threads and the waiting.
"""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVarTuple, cast

import attrs
import trio

from waltz_core.base.contract import earliest
from waltz_core.base.edge import Level
from waltz_core.base.errors import (
    ApplyFailedError,
    ClientClosedError,
    KeyReusedError,
    PartitionUnavailableError,
    RetriesExhaustedError,
)
from waltz_core.base.ids import ReqId
from waltz_core.base.record import record
from waltz_core.client.calls import Failed, Reason
from waltz_core.client.keys import KeyEntry, check_key, key_lock, request_hash
from waltz_core.client.submitter import (
    AppendJudged,
    AppendSent,
    AskMark,
    Decide,
    DecisionDeclined,
    Effect,
    Event,
    GaveUp,
    KeyFound,
    KeyReused,
    MarkAnswered,
    MarkReached,
    MarkWanted,
    OutcomeUnknown,
    StateUnreadable,
    SubmitBegun,
    SubmitDone,
    Submitter,
    Verdict,
    ViewApplied,
    ViewPaused,
    Withdrawn,
)
from waltz_trio.arguments import whole
from waltz_trio.background import Background, background
from waltz_trio.codecs import Raw
from waltz_trio.pump import now_ms
from waltz_trio.values import Append, Batch, Key, Receipt, Retry, Transaction, lock_hashes
from waltz_trio.views import ApplyError, KeyedView, Keys, View

if TYPE_CHECKING:
    from waltz_trio.client import Client, Pending
    from waltz_trio.feed import Feed

Ts = TypeVarTuple("Ts")

_POISON = ("stop", "pause")
_RAW = Raw()
_NO_ID = ReqId(bytes(16))
_VIEW_RETRY = Retry(base=0.01, cap=5.0)
_APPLY_ATTEMPTS = 3
_PROGRESS_EVERY = 10.0  # seconds between two lines of the log while a view catches up


@record
class ApplicationStatus:
    """What an application is doing with one partition."""

    partition: int
    applied_mark: int
    committed_mark: int  # the highest that the server has told this application, -1 before it did
    in_flight: int  # submits that hold a slot
    waiting: int  # submits that wait for a slot
    gated: int  # submits that wait behind another one that met the same lock
    view_down: str | None  # why the view does not take transactions right now
    paused: str | None  # the transaction that could not be applied, with on_poison="pause"


class _KeyOfCall:
    """The key of a submit, and the view that knows who carries it."""

    __slots__ = ("hashed", "key", "keys", "partition", "view")

    def __init__(self, view: KeyedView, keys: Keys, partition: int, key: Key) -> None:
        self.view, self.keys, self.partition = view, keys, partition
        self.key = check_key(key.key)
        self.hashed = request_hash(key.request)

    def find(self, state: Any) -> KeyEntry | None:
        return self.view.find_key(state, self.partition, self.key)

    def look_first(self, state: Any, decide: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Who carries the key, or what `decide` says, from one snapshot."""
        return self.find(state) or decide(state, *args)

    def carried_by(self, append: Append, payload: bytes) -> Append:
        """The append with a lock on the key, if views will find the key in it.

        Raises:
            ValueError: they will not, or another request.
        """
        found = self.keys.of(Transaction(self.partition, -1, append.header, _NO_ID, payload))
        if found is None or found[0] != self.key:
            what = "no key" if found is None else f"key {found[0]!r}"
            raise ValueError(
                f"submit has key {self.key!r}, and key_of finds {what} in the append that decide made: put the key "
                "into the payload, and let key_of return Key(KEY, REQUEST)"
            )
        if found[1] != self.hashed:
            raise ValueError(
                f"submit has key {self.key!r}, and key_of finds another request beside it in the append that decide "
                "made. The request is what tells two requests apart: by default the arguments of submit, in their "
                "order, which key_of returns from the payload as Key(KEY, (ARGUMENT, ...)); or name it: "
                "submit(..., key=Key(KEY, REQUEST))"
            )
        return attrs.evolve(append, value=payload, codec=_RAW, write=(*append.write, key_lock(self.key)))


class _Call:
    """Somebody who waits for what the submitter says next."""

    __slots__ = ("_effect", "_event", "ended", "failure", "key", "pending", "result")

    def __init__(self, key: _KeyOfCall | None = None) -> None:
        self.key = key
        self.failure: Exception | None = None  # why the last try came to nothing
        self.pending: Pending | None = None  # of the last append
        self.result: object = None  # of the last append, for the receipt
        self.ended = False  # the submitter has forgotten it
        self._effect: Effect | None = None
        self._event: trio.Event | None = None

    def tell(self, effect: Effect) -> None:
        assert self._effect is None
        self._effect = effect
        self.ended = not isinstance(effect, Decide)
        if self._event is not None:
            self._event.set()

    async def next(self) -> Effect:
        if self._effect is None:
            self._event = trio.Event()
            await self._event.wait()
        effect, self._effect, self._event = self._effect, None, None
        assert effect is not None
        return effect


class _Part:
    """One partition of an application."""

    def __init__(self, partition: int, submitter: Submitter) -> None:
        self.partition = partition
        self.submitter = submitter
        self.down: str | None = None
        self.paused: ApplyFailedError | None = None


class Application(AbstractAsyncContextManager["Application"]):
    """A view of some partitions, kept up to date while its block runs. Made by `Client.materialize`.

    The block is entered when the view has caught up with the log as it was at entry; until then `status` tells how
    far it is, to other tasks.
    """

    def __init__(
        self,
        client: Client,
        view: View,
        partitions: tuple[int, ...],
        batch_limit: int,
        max_in_flight: int,
        on_poison: Literal["stop", "pause"],
        catch_up: bool,
    ) -> None:
        if on_poison not in _POISON:
            raise ValueError(f"on_poison is one of {', '.join(_POISON)}, not {on_poison!r}")
        if batch_limit < 1:
            raise ValueError(f"at least 1 transaction a batch, not {batch_limit}")
        if max_in_flight < 1:
            raise ValueError(f"at least 1 submit in flight, not {max_in_flight}")
        self.view = view
        self._client = client
        self._batch_limit = batch_limit
        self._on_poison = on_poison
        self._catch_up = catch_up
        self._rng = random.Random()
        self._parts = {partition: _Part(partition, Submitter(-1, max_in_flight, self._rng)) for partition in partitions}
        self._block: AbstractAsyncContextManager[None] | None = None
        self._tasks: Background | None = None  # while the block runs
        self._armed: int | None = None  # when the task that keeps time wakes up
        self._rearm = trio.Event()

    async def __aenter__(self) -> Application:
        if self._block is not None:
            raise RuntimeError("an application is entered once: call `client.materialize` again")
        self._block = self._run()
        await self._block.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._block is not None
        return await self._block.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        try:
            async with AsyncExitStack() as stack, background("the application") as tasks:
                self._tasks = tasks
                for part in self._parts.values():
                    mark = await self._patiently(part, self.view.load_mark, part.partition)
                    self._tell(part, ViewApplied(mark))
                    feed = await stack.enter_async_context(
                        self._client.feed(part.partition, after=mark, prefetch=self._batch_limit)
                    )
                    feed.markers = True  # views pass over them, but their marks must not skip an id
                    tasks.start_soon(self._follow, part, feed)
                tasks.start_soon(self._keep_time)
                if self._catch_up:
                    await self._reach_the_log(tasks)
                yield
        finally:
            self._tasks = None
            for part in self._parts.values():
                self._tell(part, ViewPaused())  # nobody is left waiting; appends under way keep their outcomes
            self.view.close()

    # ---- deciding ------------------------------------------------------------------------------------

    def submit(
        self,
        decide: Callable[[Any, *Ts], Append | Awaitable[Append | None] | None],
        *args: *Ts,
        partition: int,
        until: Literal["committed", "applied"] = "committed",
        decline: Literal["confirmed", "local"] = "confirmed",
        retry: Retry = Retry(),  # noqa: B008 - a value
        key: str | Key | None = None,
    ) -> Coroutine[Any, Any, Receipt | None]:
        """Decide on the state, append, and decide again where a lock was taken meanwhile.

        `decide(state, *args)` gets what the view reads with (a cursor, a dict), which it cannot change, and returns an
        `Append`, or None to decline. It may run several times and must not have effects of its own. Cancelled
        after the append was sent, the outcome is unknown to the caller, and no retry follows.

        Args:
            decide: a function of the state; with views that are not threaded it may be `async def`.
            args: handed to `decide`.
            partition: whose state, and where to append.
            until: "committed", or "applied": also wait until this view has applied it.
            decline: "confirmed": None is returned once `decide` declined on a state that holds everything that was
                committed when this was called, by a question to the server; "local": at once, on any state.
            retry: pauses and limits.
            key: an idempotency key, which `decide` puts into the payload. While the view remembers a transaction with
                this key, its receipt is the answer, and nothing is appended. A text stands for `Key(text, args)`.

        Returns:
            A receipt, or None when `decide` declined.

        Raises:
            KeyReusedError: a transaction carries `key` for another request.
            ValueError: the append of a submit with a key does not carry it, or the view remembers no keys.
            RetriesExhaustedError: `retry` allows no further attempt; the cause is the last failure.
            ClientAheadError: the log is behind this client.
            ViewRegressedError: the stored mark of the view went back.
            StateReadOnlyError: `decide` tried to change the state.
            PartitionUnavailableError: the partition is paused.
            ClientClosedError, ClientFailedError: the outcome is unknown.
        """
        self._client._unstarted += 1
        return self._submit(decide, args, partition, until, decline, retry, key)

    async def _submit(
        self,
        decide: Callable[..., Any],
        args: tuple[Any, ...],
        partition: int,
        until: str,
        decline: str,
        retry: Retry,
        key: str | Key | None,
    ) -> Receipt | None:
        self._client._unstarted -= 1
        if until not in ("committed", "applied"):
            raise ValueError(f"until is 'committed' or 'applied', not {until!r}")
        if decline not in ("confirmed", "local"):
            raise ValueError(f"decline is 'confirmed' or 'local', not {decline!r}")
        part = self._open_part(partition)
        of_call = None if key is None else self._key_of_call(part, args, decline, key)
        call = _Call(of_call)
        hashed = None if of_call is None else of_call.hashed
        self._tell(part, SubmitBegun(call, retry, decline == "confirmed", until == "applied", hashed))
        try:
            while True:
                match await call.next():
                    case Decide():
                        await self._decide(part, call, decide, args)
                    case SubmitDone(_, transaction_id, attempts, conflicts):
                        if transaction_id is None:
                            return None
                        return Receipt(part.partition, transaction_id, attempts, conflicts, call.result)
                    case GaveUp(_, attempts):
                        raise RetriesExhaustedError(attempts) from self._cause(part, call)
                    case KeyReused(_, transaction_id):
                        assert of_call is not None
                        raise KeyReusedError(part.partition, of_call.key, transaction_id)
                    case OutcomeUnknown():
                        assert call.pending is not None
                        await call.pending.outcome()
                    case _:
                        raise self._unavailable(part)
        finally:
            if not call.ended:
                self._tell(part, Withdrawn(call))

    def _key_of_call(self, part: _Part, args: tuple[Any, ...], decline: str, key: str | Key) -> _KeyOfCall:
        keys = getattr(self.view, "keys", None)
        if keys is None:
            raise ValueError(
                f"a submit with a key needs a view that remembers keys: {type(self.view).__name__}(..., keys=...)"
            )
        if decline != "confirmed":
            raise ValueError("a submit with a key confirms its declines: leave decline='local' out")
        whole_key = key if isinstance(key, Key) else Key(key, args)
        return _KeyOfCall(cast(KeyedView, self.view), keys, part.partition, whole_key)

    async def caught_up(self, partition: int | None = None, *, to: int | None = None) -> None:
        """Wait until the view has applied everything that was committed when this was called.

        Args:
            partition: one partition; None = all.
            to: a mark to wait for instead of the server's.

        Raises:
            PartitionUnavailableError: a partition was paused.
            ClientClosedError: the block of the application has ended.
        """
        calls = []
        try:
            for each in self._parts if partition is None else (partition,):
                part, call = self._open_part(each), _Call()
                calls.append((part, call))
                self._tell(part, MarkWanted(call, to))
            for part, call in calls:
                await self._reached(part, call)
        finally:
            for part, call in calls:
                self._tell(part, Withdrawn(call))
        await trio.lowlevel.checkpoint_if_cancelled()

    def mark(self, partition: int) -> int:
        """The last transaction that the view has applied."""
        return self._part(partition).submitter.applied_mark

    def status(self, partition: int) -> ApplicationStatus:
        """What this application is doing with a partition right now."""
        part = self._part(partition)
        submitter = part.submitter
        return ApplicationStatus(
            partition,
            submitter.applied_mark,
            submitter.committed_mark,
            submitter.in_flight,
            submitter.queued,
            submitter.gated,
            part.down,
            None if part.paused is None else str(part.paused),
        )

    async def read(
        self, function: Callable[..., Any], *args: Any, partition: int, fresh: bool = False
    ) -> tuple[Any, int]:
        """`function(state, *args)` and the mark of the state that it saw.

        Args:
            function: of the state, which it cannot change.
            args: handed to `function`.
            partition: whose state.
            fresh: the state holds everything that was committed when this was called (a linearizable read); costs
                a question to the server, which calls at the same time share.

        Raises:
            StateReadOnlyError: `function` tried to change the state.
            ViewRegressedError: the stored mark of the view went back.
            PartitionUnavailableError: with `fresh`: the partition is paused.
            ClientClosedError: the block of the application has ended.
        """
        part = self._open_part(partition)
        mark = await self._reach(part, None) if fresh else -1
        failures = 0
        while True:
            found: tuple[Any, int] = await self._patiently(part, self._read, part, function, args)
            if found[1] >= mark:
                return found
            failures += 1  # a snapshot older than what this process has applied: of a lagging database
            await trio.sleep(_VIEW_RETRY.delay(failures, self._rng))

    # ---- inside --------------------------------------------------------------------------------------

    def _part(self, partition: int) -> _Part:
        part = self._parts.get(whole(partition, "a partition"))
        if part is None:
            raise ValueError(f"partition {partition} is not materialized here")
        return part

    def _open_part(self, partition: int) -> _Part:
        part = self._part(partition)
        if self._tasks is None:
            if self._block is None:
                raise RuntimeError("the application is not open: use `async with client.materialize(...) as app`")
            raise self._unavailable(part)
        return part

    def _unavailable(self, part: _Part) -> Exception:
        """Why nothing can be waited for."""
        if part.paused is None:
            return ClientClosedError("the block of the application has ended")
        error = PartitionUnavailableError(part.partition, f"paused: {part.paused}")
        error.__cause__ = part.paused
        return error

    def _cause(self, part: _Part, call: _Call) -> Exception:
        """The last failure of a submit that gave up."""
        if call.failure is not None:
            return call.failure
        applied, committed = part.submitter.applied_mark, part.submitter.committed_mark
        if part.down is not None:
            reason = f"the view is down: {part.down}"
        elif committed > applied:
            reason = f"the view has applied {applied} of {committed}"
        else:
            reason = "the server did not tell its committed mark"
        return PartitionUnavailableError(part.partition, reason)

    def _tell(self, part: _Part, *events: Event) -> None:
        """Step the machine and hand out what it says."""
        out: list[Effect] = []
        part.submitter.step(now_ms(), events, out)
        for effect in out:
            if not isinstance(effect, AskMark):
                call = effect.token
                assert isinstance(call, _Call)
                call.tell(effect)
            elif self._tasks is not None:
                self._tasks.start_soon(self._ask, part)
        at = part.submitter.deadline()
        if at is not None and (self._armed is None or at < self._armed):
            self._rearm.set()

    async def _keep_time(self) -> None:
        """Step the machines when a pause or a limit ends."""
        parts = self._parts.values()
        while True:
            self._rearm = trio.Event()
            self._armed = at = earliest(*(part.submitter.deadline() for part in parts))
            with trio.CancelScope(deadline=float("inf") if at is None else at / 1000):
                await self._rearm.wait()
            now = now_ms()
            for part in parts:
                due = part.submitter.deadline()
                if due is not None and due <= now:
                    self._tell(part)

    async def _ask(self, part: _Part) -> None:
        mark = await self._client.committed_mark(part.partition)
        self._tell(part, MarkAnswered(mark))

    async def _reached(self, part: _Part, call: _Call) -> int:
        effect = await call.next()
        if isinstance(effect, MarkReached):
            return effect.mark
        raise self._unavailable(part)

    async def _reach(self, part: _Part, mark: int | None) -> int:
        call = _Call()
        self._tell(part, MarkWanted(call, mark))
        try:
            return await self._reached(part, call)
        finally:
            self._tell(part, Withdrawn(call))

    async def _reach_the_log(self, tasks: Background) -> None:
        """Catch up with the log as it is now; a partition that is paused on the way is left as it is."""
        entered = trio.Event()
        tasks.start_soon(self._tell_progress, entered)
        calls = [(part, _Call()) for part in self._parts.values()]
        for part, call in calls:
            self._tell(part, MarkWanted(call, None))
        for part, call in calls:
            with contextlib.suppress(PartitionUnavailableError):
                await self._reached(part, call)
        entered.set()

    async def _tell_progress(self, entered: trio.Event) -> None:
        while True:
            with trio.move_on_after(_PROGRESS_EVERY):
                await entered.wait()
                return
            for part in self._parts.values():
                applied, committed = part.submitter.applied_mark, part.submitter.committed_mark
                if applied < committed:
                    text = f"partition {part.partition}: the view catches up, it has applied {applied} of {committed}"
                    self._client._report(Level.INFO, text)

    async def _decide(self, part: _Part, call: _Call, decide: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            append, mark = await self._read(part, decide, args, call.key)
        except Exception as error:
            if not self.view.is_transient(error):
                raise
            call.failure = error
            self._tell(part, StateUnreadable(call))
            return
        if append is None:
            self._tell(part, DecisionDeclined(call, mark))
        elif isinstance(append, KeyEntry):
            self._tell(part, KeyFound(call, append))
        elif not isinstance(append, Append):
            raise TypeError(f"decide must return an Append or None, not {append!r}")
        else:
            if call.key is not None:
                append = call.key.carried_by(append, self._client._payload(append))
            call.pending = pending = self._client._submit(part.partition, append, mark)
            call.result = append.result
            self._tell(part, AppendSent(call))
            pending._when_done(partial(self._judged, part, call, append, pending))

    def _judged(self, part: _Part, call: _Call, append: Append, pending: Pending) -> None:
        outcome = pending._outcome
        assert outcome is not None
        if not isinstance(outcome, Failed):
            self._tell(part, AppendJudged(call, Verdict.COMMITTED, outcome))
            return
        call.failure = self._client._error_of(outcome)
        if outcome.reason is Reason.LOCK:
            if self._client._instrument is not None:
                self._client._instrument.conflict(part.partition, outcome.blocking_id)
            hashes = frozenset((*lock_hashes(append.write), *lock_hashes(append.read)))
            self._tell(part, AppendJudged(call, Verdict.CONFLICT, outcome.blocking_id, hashes))
        else:
            self._tell(part, AppendJudged(call, Verdict.LOST if outcome.reason.certain else Verdict.UNKNOWN))

    async def _read(
        self, part: _Part, decide: Callable[..., Any], args: tuple[Any, ...], key: _KeyOfCall | None = None
    ) -> tuple[Any, int]:
        if inspect.iscoroutinefunction(decide):
            return await self._read_async(part, decide, args, key)
        if key is not None:
            decide, args = key.look_first, (decide, args)
        found: tuple[Any, int] = await self._in_view(self.view.read, part.partition, decide, args)
        return found

    async def _read_async(
        self, part: _Part, decide: Callable[..., Any], args: tuple[Any, ...], key: _KeyOfCall | None
    ) -> tuple[Any, int]:
        if self.view.threaded:
            raise TypeError("decide must be a plain function with this view: it runs in a database transaction")
        # The mark is that of the start: what decide sees later is newer, which can only cause a conflict.
        found, mark = self.view.read(part.partition, lambda state: state, ())
        entry = None if key is None else key.find(found)
        return entry or await decide(found, *args), mark

    async def _patiently(self, part: _Part, method: Callable[..., Any], *args: Any) -> Any:
        """Call again, after pauses that grow, while the view says that this may help."""
        failures = 0
        while True:
            try:
                found = await (method(*args) if inspect.iscoroutinefunction(method) else self._in_view(method, *args))
            except Exception as error:
                if not self.view.is_transient(error):
                    raise
                failures += 1
                part.down = str(error)
            else:
                if failures:
                    part.down = None
                return found
            await trio.sleep(_VIEW_RETRY.delay(failures, self._rng))

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
                part.paused = error
                self._tell(part, ViewPaused())
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
                self._tell(part, ViewApplied(mark))
                if self._client._instrument is not None:
                    self._client._instrument.applied(part.partition, len(batch), trio.current_time() - began)
                return
            await trio.sleep(_VIEW_RETRY.delay(failures, self._rng))

    async def _apply_up_to(self, part: _Part, batch: Batch, error: ApplyError) -> None:
        """Keep what is good before the transaction that is not, then fail with it."""
        good = tuple(transaction for transaction in batch if transaction.id < error.transaction.id)
        if good:
            mark = await self._patiently(part, self.view.commit, Batch(batch.partition, good))
            self._tell(part, ViewApplied(mark))
        raise ApplyFailedError(part.partition, error.transaction.id) from error.__cause__

"""The application layer: a view kept up to date, and transactions decided on its state.

What a submit does next is decided by `waltz_core.client.submitter`; here are the tasks, the threads and the waiting.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, TypeVarTuple, cast

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
from waltz_core.base.record import record
from waltz_core.client import applier as applying
from waltz_core.client.applier import (
    Advanced,
    Applied,
    Applier,
    ApplyFailed,
    BatchArrived,
    Commit,
    Poisoned,
    TakeNext,
    ViewDown,
)
from waltz_core.client.calls import Failed, Reason
from waltz_core.client.keys import KeyEntry
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
from waltz_trio.calls import Call, KeyOfCall, Submission, Waiter, decide_together
from waltz_trio.pump import now_ms
from waltz_trio.values import Append, Batch, Key, Receipt, Retry, lock_hashes
from waltz_trio.views import ApplyError, KeyedView, View

if TYPE_CHECKING:
    from waltz_trio.client import Client, Pending
    from waltz_trio.feed import Feed

if TYPE_CHECKING:
    import typing_extensions  # type checkers know it; nothing needs it when a program runs

    S = typing_extensions.TypeVar("S", default=Any)  # a bare `Application` is one of any state
else:
    S = TypeVar("S")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_POISON = ("stop", "pause")
_DECIDE_AT_ONCE = 256  # in one snapshot, which must not grow old
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


@record
class _Options:
    """How to submit."""

    partition: int
    until: str
    decline: str
    retry: Retry

    def check(self) -> None:
        if self.until not in ("committed", "applied"):
            raise ValueError(f"until is 'committed' or 'applied', not {self.until!r}")
        if self.decline not in ("confirmed", "local"):
            raise ValueError(f"decline is 'confirmed' or 'local', not {self.decline!r}")

    def begun(self, call: Call) -> SubmitBegun:
        hashed = None if call.key is None else call.key.hashed
        return SubmitBegun(call, self.retry, self.decline == "confirmed", self.until == "applied", hashed)


def _itself(state: T) -> T:
    return state


class _Part:
    """One partition of an application."""

    def __init__(self, partition: int, submitter: Submitter, applier: Applier) -> None:
        self.partition = partition
        self.submitter = submitter
        self.applier = applier
        self.poison: BaseException | None = None  # what `apply` raised last
        self.down: str | None = None
        self.paused: ApplyFailedError | None = None
        self.undecided: dict[Call, None] = {}  # who waits to be decided, or just is
        self.woken: trio.Event | None = None
        self.deciding: list[Call] = []  # those whose `decide` the view runs right now
        self.decided = trio.Event()  # the view has run it


class Application(AbstractAsyncContextManager["Application[S]"], Generic[S]):
    """A view of some partitions, kept up to date while its block runs. Made by `Client.materialize`.

    The block is entered when the view has caught up with the log as it was at entry; until then `status` tells how
    far it is, to other tasks.
    """

    def __init__(
        self,
        client: Client,
        view: View[S],
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
        self._parts = {partition: self._make_part(partition, max_in_flight) for partition in partitions}
        self._block: AbstractAsyncContextManager[None] | None = None
        self._tasks: Background | None = None  # while the block runs
        self._armed: int | None = None  # when the task that keeps time wakes up
        self._rearm = trio.Event()

    async def __aenter__(self) -> Application[S]:
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
                    tasks.start_soon(self._decide_waiting, part)
                tasks.start_soon(self._keep_time)
                if self._catch_up:
                    await self._reach_the_log(tasks)
                yield
        finally:
            self._tasks = None
            for part in self._parts.values():
                self._tell(part, ViewPaused())  # nobody is left waiting; appends under way keep their outcomes
                self._unreadable(
                    part, list(part.undecided), ClientClosedError("the block of the application has ended")
                )
            self.view.close()

    # ---- deciding ------------------------------------------------------------------------------------

    def submit(
        self,
        decide: Callable[[S, *Ts], Append | Awaitable[Append | None] | None],
        *args: *Ts,
        partition: int,
        until: Literal["committed", "applied"] = "committed",
        decline: Literal["confirmed", "local"] = "confirmed",
        retry: Retry = Retry(),  # noqa: B008 - a value
        key: str | Key | None = None,
        submission: Submission | None = None,
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
            submission: a handle that keeps the outcome of the append when this call is cancelled.

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
        return self._submit(_Options(partition, until, decline, retry), decide, args, key, submission)

    async def _submit(
        self,
        options: _Options,
        decide: Callable[..., Any],
        args: tuple[Any, ...],
        key: str | Key | None,
        submission: Submission | None,
    ) -> Receipt | None:
        self._client._unstarted -= 1
        options.check()
        part, waiter = self._open_part(options.partition), Waiter()
        call = self._call(part, options, waiter, decide, args, key)
        if submission is not None:
            submission._call = call
        try:
            self._tell(part, options.begun(call))
            while not call.ended:
                if isinstance(call.effect, Decide) and call.awaits:
                    call.effect = None
                    await self._decide_alone(part, call)
                else:
                    await waiter.wait()
        finally:
            await self._leave(part, [call])
        return self._outcome(part, call)

    async def submit_many(
        self,
        decide: Callable[[S, *Ts], Append | None],
        arguments: Iterable[tuple[*Ts]],
        *,
        partition: int,
        until: Literal["committed", "applied"] = "committed",
        decline: Literal["confirmed", "local"] = "confirmed",
        retry: Retry = Retry(),  # noqa: B008 - a value
        keys: Iterable[str | Key] | None = None,
    ) -> list[Receipt | RetriesExhaustedError | KeyReusedError | None]:
        """Submit `decide` with each of `arguments`, and wait for all of them at once.

        Each commits or declines for itself, in any order; several are decided in one snapshot. How many are under way
        at a time is what `materialize(max_in_flight=...)` allows.

        Args:
            decide: a plain function of the state.
            arguments: for each submit, a tuple of what is handed to `decide`.
            partition: as of `submit`, for all of them.
            until: as of `submit`.
            decline: as of `submit`.
            retry: as of `submit`, for each of them.
            keys: one for each of `arguments`, as `key` of `submit`.

        Returns:
            For each, in their order: a receipt, None when `decide` declined, or why it gave up.

        Raises:
            ValueError: another number of keys than of arguments; else as `submit`. What was not sent yet is dropped,
                what was sent stays under way.
        """
        options = _Options(partition, until, decline, retry)
        options.check()
        if inspect.iscoroutinefunction(decide):
            raise TypeError("submit_many takes a plain function, found `async def`; use submit")
        part, waiter, wanted = self._open_part(partition), Waiter(), list(arguments)
        named: list[str | Key | None] = [None] * len(wanted) if keys is None else list(keys)
        if len(named) != len(wanted):
            raise ValueError(f"{len(wanted)} submits need as many keys, found {len(named)}")
        pairs = zip(wanted, named, strict=True)
        calls = [self._call(part, options, waiter, decide, tuple(args), key) for args, key in pairs]
        try:
            self._tell(part, *map(options.begun, calls))
            await waiter.wait()
        finally:
            await self._leave(part, calls)
        outcomes: list[Receipt | RetriesExhaustedError | KeyReusedError | None] = []
        for call in calls:
            try:
                outcomes.append(self._outcome(part, call))
            except (RetriesExhaustedError, KeyReusedError) as error:
                outcomes.append(error)
        await trio.lowlevel.checkpoint_if_cancelled()
        return outcomes

    def _call(
        self,
        part: _Part,
        options: _Options,
        waiter: Waiter,
        decide: Callable[..., Any],
        args: tuple[Any, ...],
        key: str | Key | None,
    ) -> Call:
        return Call(waiter, decide, args, None if key is None else self._key_of_call(part, args, options.decline, key))

    async def _leave(self, part: _Part, calls: Iterable[Call]) -> None:
        """Nobody waits for these any more; appends that were sent stay under way.

        A `decide` that runs is waited for: nothing goes on behind the back of a caller that was cancelled.
        """
        left = [call for call in calls if not call.ended]
        for call in left:
            call.ended = True
            part.undecided.pop(call, None)
        if left:
            self._tell(part, *map(Withdrawn, left))
            if not set(left).isdisjoint(part.deciding):
                with trio.CancelScope(shield=True):
                    await part.decided.wait()

    def _outcome(self, part: _Part, call: Call) -> Receipt | None:
        """What a call has come to; errors as `submit`."""
        match call.effect:
            case SubmitDone(_, transaction_id, attempts, conflicts):
                if transaction_id is None:
                    return None
                return Receipt(part.partition, transaction_id, attempts, conflicts, call.result)
            case GaveUp(_, attempts):
                raise RetriesExhaustedError(attempts) from self._cause(part, call)
            case KeyReused(_, transaction_id):
                assert call.key is not None
                raise KeyReusedError(part.partition, call.key.key, transaction_id)
            case OutcomeUnknown():
                assert call.pending is not None
                return call.pending._found()
            case _:
                raise self._unavailable(part)

    def _key_of_call(self, part: _Part, args: tuple[Any, ...], decline: str, key: str | Key) -> KeyOfCall:
        keys = getattr(self.view, "keys", None)
        if keys is None:
            raise ValueError(
                f"a submit with a key needs a view that remembers keys: {type(self.view).__name__}(..., keys=...)"
            )
        if decline != "confirmed":
            raise ValueError("a submit with a key confirms its declines: leave decline='local' out")
        whole_key = key if isinstance(key, Key) else Key(key, args)
        return KeyOfCall(cast(KeyedView[Any], self.view), keys, part.partition, whole_key)

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
                part, call = self._open_part(each), Call(Waiter())
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
        self, function: Callable[[S, *Ts], T | Awaitable[T]], *args: *Ts, partition: int, fresh: bool = False
    ) -> tuple[T, int]:
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
            found: tuple[T, int] = await self._patiently(part, self._read, part, function, args)
            if found[1] >= mark:
                return found
            failures += 1  # a snapshot older than what this process has applied: of a lagging database
            await trio.sleep(_VIEW_RETRY.delay(failures, self._rng))

    def _make_part(self, partition: int, max_in_flight: int) -> _Part:
        submitter = Submitter(-1, max_in_flight, self._rng)
        return _Part(partition, submitter, Applier(_VIEW_RETRY, _APPLY_ATTEMPTS, self._rng))

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

    def _cause(self, part: _Part, call: Call) -> Exception:
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
            if isinstance(effect, AskMark):
                if self._tasks is not None:
                    self._tasks.start_soon(self._ask, part)
                continue
            call = effect.token
            assert isinstance(call, Call)
            call.tell(effect)
            if isinstance(effect, Decide) and not call.awaits:
                part.undecided[call] = None
                if part.woken is not None:
                    part.woken.set()
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

    async def _reached(self, part: _Part, call: Call) -> int:
        await call.waiter.wait()
        if isinstance(call.effect, MarkReached):
            return call.effect.mark
        raise self._unavailable(part)

    async def _reach(self, part: _Part, mark: int | None) -> int:
        call = Call(Waiter())
        self._tell(part, MarkWanted(call, mark))
        try:
            return await self._reached(part, call)
        finally:
            self._tell(part, Withdrawn(call))

    async def _reach_the_log(self, tasks: Background) -> None:
        """Catch up with the log as it is now; a partition that is paused on the way is left as it is."""
        entered = trio.Event()
        tasks.start_soon(self._tell_progress, entered)
        calls = [(part, Call(Waiter())) for part in self._parts.values()]
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

    async def _decide_waiting(self, part: _Part) -> None:
        """Decide what waits to be decided, all of it in one snapshot and one hop to the view's thread."""
        while True:
            if not part.undecided:
                part.woken = trio.Event()
                await part.woken.wait()
            part.deciding = calls = list(itertools.islice(part.undecided, _DECIDE_AT_ONCE))
            part.decided = trio.Event()
            try:
                if len(calls) == 1:
                    await self._decide_alone(part, calls[0])
                else:
                    await self._decide_together(part, calls)
            finally:
                part.deciding = []
                part.decided.set()

    async def _decide_together(self, part: _Part, calls: list[Call]) -> None:
        try:
            results, mark = await self._in_view(self.view.read, part.partition, decide_together, (calls,))
        except Exception as error:
            if self.view.is_transient(error):
                self._unreadable(part, calls, error)
                return
            results, mark = [], -1
        events: list[Event] = []
        for call, result in zip(calls, results, strict=False):
            self._decided(part, call, result, mark, events)
        self._tell(part, *events)
        if len(results) < len(calls):
            await self._decide_alone(part, calls[len(results)])

    async def _decide_alone(self, part: _Part, call: Call) -> None:
        try:
            result, mark = await (self._read_async(part, call) if call.awaits else self._read(part, call.run, ()))
        except Exception as error:
            if self.view.is_transient(error):
                self._unreadable(part, [call], error)
            else:
                part.undecided.pop(call, None)
                call.waiter.failed(error)
            return
        events: list[Event] = []
        self._decided(part, call, result, mark, events)
        self._tell(part, *events)

    def _unreadable(self, part: _Part, calls: Iterable[Call], error: Exception) -> None:
        for call in calls:
            part.undecided.pop(call, None)
            call.failure = error
        self._tell(part, *map(StateUnreadable, calls))

    def _decided(self, part: _Part, call: Call, result: Any, mark: int, events: list[Event]) -> None:
        """Send what a call wants to append; `events` gets what the submitter must know."""
        part.undecided.pop(call, None)
        if call.ended:
            return  # its caller has left
        if result is None:
            events.append(DecisionDeclined(call, mark))
        elif isinstance(result, KeyEntry):
            call.result = None  # it lived with whoever appended it
            events.append(KeyFound(call, result))
        else:
            try:
                self._send(part, call, result, mark)
            except Exception as error:
                call.waiter.failed(error)
            else:
                events.append(AppendSent(call))

    def _send(self, part: _Part, call: Call, append: Any, mark: int) -> None:
        if not isinstance(append, Append):
            raise TypeError(f"decide must return an Append or None, not {append!r}")
        if call.key is not None:
            append = call.key.carried_by(append, self._client._payload(append))
        call.pending = pending = self._client._submit(part.partition, append, mark)
        call.result = append.result
        pending._when_done(partial(self._judged, part, call, append, pending))

    def _judged(self, part: _Part, call: Call, append: Append, pending: Pending) -> None:
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

    async def _read(self, part: _Part, function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
        found: tuple[Any, int]
        if not inspect.iscoroutinefunction(function):
            found = await self._in_view(self.view.read, part.partition, function, args)
            return found
        state, mark = self._state_of(part)
        return await function(state, *args), mark

    async def _read_async(self, part: _Part, call: Call) -> tuple[Any, int]:
        assert call.decide is not None
        state, mark = self._state_of(part)
        entry = None if call.key is None else call.key.find(state)
        return entry or await call.decide(state, *call.args), mark

    def _state_of(self, part: _Part) -> tuple[Any, int]:
        """For a function that awaits.

        The mark is that of the start: what it sees later is newer, which can only cause a conflict.
        """
        if self.view.threaded:
            raise TypeError("decide must be a plain function with this view: it runs in a database transaction")
        return self.view.read(part.partition, _itself, ())

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
        """Do with a batch what the machine says, until it wants the next one.

        Raises:
            ApplyFailedError: a transaction of the batch cannot be applied.
        """
        events: list[applying.Event] = [BatchArrived(batch.first_id, batch.last_id)]
        while True:
            effects: list[applying.Effect] = []
            part.applier.step(now_ms(), events, effects)
            events = []
            for effect in effects:
                match effect:
                    case Commit(last_id):
                        events.append(await self._commit(part, batch, last_id))
                    case Advanced(mark):
                        part.down = None
                        self._tell(part, ViewApplied(mark))
                    case Poisoned(transaction_id):
                        raise ApplyFailedError(part.partition, transaction_id) from part.poison
                    case TakeNext():
                        return
            wakes_at = part.applier.deadline()
            if not events and wakes_at is not None:
                await trio.sleep_until(wakes_at / 1000)

    async def _commit(self, part: _Part, batch: Batch, last_id: int) -> applying.Event:
        """Have the view apply a batch, up to a transaction."""
        if last_id < batch.last_id:
            batch = Batch(batch.partition, tuple(each for each in batch if each.id <= last_id))
        began = trio.current_time()
        try:
            mark = await self._in_view(self.view.commit, batch)
        except ApplyError as error:
            part.poison = error.__cause__
            part.down = f"transaction {error.transaction.id} cannot be applied: {error.__cause__!r}"
            return ApplyFailed(error.transaction.id)
        except Exception as error:
            if not self.view.is_transient(error):
                raise
            part.down = str(error)
            return ViewDown()
        if self._client._instrument is not None:
            self._client._instrument.applied(part.partition, len(batch), trio.current_time() - began)
        return Applied(mark)

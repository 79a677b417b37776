"""The application layer: a view kept up to date, and transactions decided on its state.

What a submit and a batch do next is decided by `waltz_core.client.materialized`; here are tasks, threads and waiting.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, TypeVarTuple, cast

import trio

from waltz_core.base.edge import Level
from waltz_core.base.errors import (
    ApplyFailedError,
    KeyReusedError,
    PartitionUnavailableError,
    RetriesExhaustedError,
)
from waltz_core.base.record import record
from waltz_core.client.materialized import VIEW_RETRY, MaterializedPartition
from waltz_core.client.submit_calls import (
    Decide,
    MarkReached,
    MarkWanted,
    SubmitBegun,
    ViewApplied,
    ViewPaused,
    Withdrawn,
)
from waltz_trio.base.background import Background, background
from waltz_trio.client.arguments import KEYS, at_least_1, check_decide, flag, listed, rows_of, whole
from waltz_trio.client.arguments import mark as mark_of
from waltz_trio.client.at_work import CALLS_NO_CLIENT, Works, inside
from waltz_trio.client.blocks import AsyncOnly
from waltz_trio.client.calls import Call, KeyOfCall, Submission, Waiter
from waltz_trio.client.codecs import shown
from waltz_trio.client.deciding import Decisions
from waltz_trio.client.engine import Engine
from waltz_trio.client.feed import Feed
from waltz_trio.client.parts import Part, end_of, ended, outcome_of, unavailable
from waltz_trio.client.stepping import Stepper
from waltz_trio.client.values import Append, Key, Receipt, Retry
from waltz_trio.client.view_access import ViewAccess
from waltz_trio.client.views import KeyedView, View, check_view

if TYPE_CHECKING:
    import typing_extensions  # type checkers know it; nothing needs it when a program runs

    S = typing_extensions.TypeVar("S", default=Any)  # a bare `Application` is one of any state
else:
    S = TypeVar("S")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_POISON = ("stop", "pause")
_GRACE = 5.0  # seconds that a cancelled submit may wait for its `decide` before a line of the log says so
_PROGRESS_EVERY = 10.0  # seconds between two lines of the log while a view catches up


@record
class ApplicationStatus:
    """What an application is doing with one partition."""

    partition: int
    applied_mark: int
    committed_mark: int  # the highest that the server has told this application, -1 before it did
    in_flight: int  # submits that hold a slot
    waiting: int  # submits that wait for a slot
    gated: int  # submits that wait behind another one that wants the same lock
    view_down: str | None  # why the view does not take transactions right now
    paused: str | None  # the transaction that could not be applied, with on_poison="pause"
    at_work: str | None  # the function that the view runs right now, and since when


@record
class _Options:
    """How to submit."""

    partition: int
    until: str
    decline: str
    retry: Retry

    def say(self, partition: int, until: str, decline: str, retry: Retry) -> bool:
        return (
            type(partition) is int
            and self.partition == partition
            and self.until == until
            and self.decline == decline
            and self.retry is retry
        )

    def check(self) -> None:
        if self.until not in ("committed", "applied"):
            raise ValueError(f"until is 'committed' or 'applied', not {self.until!r}")
        if self.decline not in ("confirmed", "local"):
            raise ValueError(f"decline is 'confirmed' or 'local', not {self.decline!r}")
        if not isinstance(self.retry, Retry):
            raise TypeError(f"expected a Retry, found {shown(self.retry)}; write retry=Retry(attempts=3)")

    def begun(self, call: Call) -> SubmitBegun:
        hashed = None if call.key is None else call.key.hashed
        return SubmitBegun(call, self.retry, self.decline == "confirmed", self.until == "applied", hashed)


_NO_OPTIONS = _Options(-1, "committed", "confirmed", Retry())


def _status(part: Part, works: Works) -> ApplicationStatus:
    submitter = part.submitter
    return ApplicationStatus(
        part.partition,
        submitter.applied_mark,
        submitter.committed_mark,
        submitter.in_flight,
        submitter.queued,
        submitter.gated,
        part.down,
        None if part.paused is None else str(part.paused),
        works.longest(part.partition),
    )


async def _decided(part: Part, works: Works, report: Callable[[Level, str], None]) -> None:
    """Wait until the view has run the `decide` that it runs now; a line of the log says so where that takes long."""
    with trio.move_on_after(_GRACE):
        await part.decided.wait()
        return
    work = works.longest(part.partition) or f"a decide of partition {part.partition}"
    report(Level.WARNING, f"a submit that was cancelled waits for its end: {work}")
    await part.decided.wait()


def _key_of_call(view: View[Any], part: Part, args: tuple[Any, ...], decline: str, key: str | Key) -> KeyOfCall:
    keys = getattr(view, "keys", None)
    if keys is None:
        raise ValueError(f"a submit with a key needs a view that remembers keys: {type(view).__name__}(..., keys=...)")
    if decline != "confirmed":
        raise ValueError("a submit with a key confirms its declines: leave decline='local' out")
    whole_key = key if isinstance(key, Key) else Key(key, args)
    return KeyOfCall(cast(KeyedView[Any], view), keys, part.partition, whole_key)


class Application(AsyncOnly, AbstractAsyncContextManager["Application[S]"], Generic[S]):
    """A view of some partitions, kept up to date while its block runs. Made by `Client.materialize`.

    The block is entered when the view has caught up with the log as it was at entry; until then `status` tells how
    far it is, to other tasks.
    """

    _line = "async with client.materialize(...) as app:"

    def __init__(
        self,
        engine: Engine,
        view: View[S],
        partitions: tuple[int, ...],
        batch_limit: int,
        max_in_flight: int,
        on_poison: Literal["stop", "pause"],
        catch_up: bool,
    ) -> None:
        check_view(view)
        if on_poison not in _POISON:
            raise ValueError(f"on_poison is one of {', '.join(_POISON)}, not {on_poison!r}")
        self.view = view
        self._engine, self._timed = engine, engine.timed
        self._batch_limit = at_least_1(batch_limit, "batch_limit")
        max_in_flight = at_least_1(max_in_flight, "max_in_flight")
        self._on_poison = on_poison
        self._catch_up = flag(catch_up, "catch_up")
        self._rng = engine.rng
        self._parts = {partition: self._make_part(partition, max_in_flight) for partition in partitions}
        self._stepper = Stepper(engine, self._parts.values())
        self._tell = self._stepper.tell
        self._access = ViewAccess(view, engine.rng, engine.instrument, lambda *line: engine.life.report(*line))
        self._decisions = Decisions(engine, view, self._access, self._tell)
        self._block: AbstractAsyncContextManager[None] | None = None
        self._last_options = _NO_OPTIONS  # most submits are alike

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
                stack.enter_context(self._access.works.watched())
                self._stepper.tasks = tasks
                for part in self._parts.values():
                    mark = await self._access.patiently(part, self.view.load_mark, part.partition)
                    self._tell(part, ViewApplied(mark))
                    feed = await stack.enter_async_context(
                        Feed(self._engine.reads, part.partition, mark, self._batch_limit, None)
                    )
                    feed.markers = True  # views pass over them, but their marks must not skip an id
                    tasks.start_soon(self._follow, part, feed)
                    tasks.start_soon(self._decisions.run, part)
                tasks.start_soon(self._stepper.keep_time)
                tasks.start_soon(self._stepper.take_along)
                if self._catch_up:
                    await self._reach_the_log(tasks)
                yield
        finally:
            self._stepper.tasks = None
            for part in self._parts.values():
                self._tell(part, ViewPaused())  # nobody is left waiting; appends under way keep their outcomes
                self._decisions.unreadable(part, list(part.undecided), ended())
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
        self._engine.appends.unstarted += 1
        options = self._last_options
        if not options.say(partition, until, decline, retry):
            options = _Options(partition, until, decline, retry)
        return self._submit(options, decide, args, key, submission)

    async def _submit(
        self,
        options: _Options,
        decide: Callable[..., Any],
        args: tuple[Any, ...],
        key: str | Key | None,
        submission: Submission | None,
    ) -> Receipt | None:
        self._engine.appends.unstarted -= 1
        if options is not self._last_options:
            options.check()
            self._last_options = options
        if not callable(decide):
            check_decide(decide)
        if submission is not None and not isinstance(submission, Submission):
            raise TypeError(f"expected a Submission, found {shown(submission)}; write submission=Submission()")
        part = self._open_part(options.partition)
        call = self._call(part, options, None, decide, args, key)
        if submission is not None:
            submission._call = call
        try:
            self._stepper.post(part, options.begun(call))
            while not call.ended:
                if isinstance(call.effect, Decide) and call.awaits:
                    call.effect = None
                    await self._decisions.alone(part, call)
                else:
                    await call.parked()
                if call.error is not None:
                    raise call.error
        finally:
            if not call.ended or self._timed is not None:
                await self._leave(part, [call])
        return outcome_of(part, call)

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
        check_decide(decide)
        if inspect.iscoroutinefunction(decide):
            raise TypeError("submit_many takes a plain function, found `async def`; use submit")
        part, waiter, wanted = self._open_part(partition), Waiter(), rows_of(arguments)
        named: list[str | Key | None] = [None] * len(wanted) if keys is None else listed(keys, KEYS)
        if len(named) != len(wanted):
            raise ValueError(f"{len(wanted)} submits need as many keys, found {len(named)}")
        pairs = zip(wanted, named, strict=True)
        calls = [self._call(part, options, waiter, decide, args, key) for args, key in pairs]
        try:
            self._tell(part, *map(options.begun, calls))
            await waiter.wait()
        finally:
            await self._leave(part, calls)
        outcomes: list[Receipt | RetriesExhaustedError | KeyReusedError | None] = []
        for call in calls:
            try:
                outcomes.append(outcome_of(part, call))
            except (RetriesExhaustedError, KeyReusedError) as error:
                outcomes.append(error)
        await trio.lowlevel.checkpoint_if_cancelled()
        return outcomes

    def _call(
        self,
        part: Part,
        options: _Options,
        together: Waiter | None,
        decide: Callable[..., Any],
        args: tuple[Any, ...],
        key: str | Key | None,
    ) -> Call:
        keyed = None if key is None else _key_of_call(self.view, part, args, options.decline, key)
        call = Call(decide, args, keyed, together)
        if self._timed is not None:
            call.timing = self._timed.submit_began(part.partition)
        return call

    async def _leave(self, part: Part, calls: Sequence[Call]) -> None:
        """Nobody waits for these any more; appends that were sent stay under way.

        A `decide` that runs is waited for: nothing goes on behind the back of a caller that was cancelled.
        """
        if self._timed is not None:
            for call in calls:
                self._timed.submit_ended(call.timing, *end_of(call))
        left = [call for call in calls if not call.ended]
        for call in left:
            call.ended = True
            part.undecided.pop(call, None)
        if left:
            self._tell(part, *map(Withdrawn, left))
            if not set(left).isdisjoint(part.deciding):
                with trio.CancelScope(shield=True):
                    await _decided(part, self._access.works, self._engine.life.report)

    async def caught_up(self, partition: int | None = None, *, to: int | None = None) -> None:
        """Wait until the view has applied everything that was committed when this was called.

        Args:
            partition: one partition; None = all.
            to: a mark to wait for instead of the server's.

        Raises:
            PartitionUnavailableError: a partition was paused.
            ClientClosedError: the block of the application has ended.
        """
        to = None if to is None else mark_of(to, "to")
        calls = []
        try:
            for each in self._parts if partition is None else (partition,):
                part, call = self._open_part(each), Call()
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
        return _status(self._part(partition), self._access.works)

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
        if not callable(function):
            raise TypeError(
                f"expected a function of the state, found {shown(function)}; write read(balance, 7, partition=3)"
            )
        part = self._open_part(partition)
        mark = await self._reach(part, None) if flag(fresh, "fresh") else -1
        failures = 0
        while True:
            found: tuple[T, int] = await self._access.patiently(part, self._access.read, part, function, args)
            if found[1] >= mark:
                return found
            failures += 1  # a snapshot older than what this process has applied: of a lagging database
            await trio.sleep(VIEW_RETRY.delay(failures, self._rng))

    def _make_part(self, partition: int, max_in_flight: int) -> Part:
        return Part(partition, MaterializedPartition(-1, max_in_flight, self._rng))

    # ---- inside --------------------------------------------------------------------------------------

    def _part(self, partition: int) -> Part:
        self._engine.life.check_thread()
        part = self._parts.get(whole(partition, "a partition"))
        if part is None:
            here = ", ".join(map(str, self._parts))
            text = f"partition {partition} is not materialized here, but {here}"
            raise ValueError(f"{text}: name it in client.materialize(view, [...])")
        return part

    def _open_part(self, partition: int) -> Part:
        part = self._part(partition)
        work = inside()
        if work is not None and work.view is self.view:
            raise RuntimeError(f"this call would wait for {work}, which waits for it: {CALLS_NO_CLIENT}")
        if self._stepper.tasks is None:
            if self._block is None:
                raise RuntimeError("the application is not open: use `async with client.materialize(...) as app`")
            raise unavailable(part)
        return part

    async def _reached(self, part: Part, call: Call) -> int:
        await call.wait()
        effect, call.effect = call.effect, None  # as `outcome_of` does
        if isinstance(effect, MarkReached):
            return effect.mark
        raise unavailable(part)

    async def _reach(self, part: Part, mark: int | None) -> int:
        call = Call()
        self._tell(part, MarkWanted(call, mark))
        try:
            return await self._reached(part, call)
        finally:
            self._tell(part, Withdrawn(call))

    async def _reach_the_log(self, tasks: Background) -> None:
        """Catch up with the log as it is now; a partition that is paused on the way is left as it is."""
        entered = trio.Event()
        tasks.start_soon(self._tell_progress, entered)
        calls = [(part, Call()) for part in self._parts.values()]
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
                    self._engine.life.report(Level.INFO, text)

    async def _follow(self, part: Part, feed: Feed) -> None:
        """Apply one partition's feed until the block ends, or a transaction cannot be applied."""
        async for batch in feed.batches(self._batch_limit):
            try:
                await self._access.apply(part, batch, self._tell)
            except ApplyFailedError as error:
                if self._on_poison == "stop":
                    raise
                self._engine.life.report(Level.ERROR, f"{error}: {error.__cause__!r}; the partition is paused")
                part.paused = error
                self._tell(part, ViewPaused())
                return

"""The application layer: a view kept up to date, and transactions decided on its state.

What a submit and a batch do next is decided by `waltz_core.client.materialized`; here are tasks, threads and waiting.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, TypeVarTuple

import trio

from waltz_core.base.edge import Level
from waltz_core.base.errors import (
    ApplyFailedError,
    KeyReusedError,
    RetriesExhaustedError,
)
from waltz_core.client.materialized import MaterializedPartition
from waltz_core.client.retry import ViewTries
from waltz_core.client.submit_calls import (
    ViewApplied,
    ViewPaused,
)
from waltz_trio.base.background import background
from waltz_trio.client.arguments import at_least_1, flag
from waltz_trio.client.blocks import AsyncOnly
from waltz_trio.client.calls import Submission
from waltz_trio.client.deciding import Decisions
from waltz_trio.client.engine import Engine
from waltz_trio.client.feed import Feed
from waltz_trio.client.marks import Marks
from waltz_trio.client.parts import ApplicationStatus, Part, Parts, ended, status_of
from waltz_trio.client.shown import shown
from waltz_trio.client.stepping import Stepper
from waltz_trio.client.submits import Options, Submits
from waltz_trio.client.values import Append, Key, LockLike, Receipt, Retry
from waltz_trio.client.view_access import ViewAccess
from waltz_trio.client.views import View, check_view

if TYPE_CHECKING:
    import typing_extensions  # type checkers know it; nothing needs it when a program runs

    S = typing_extensions.TypeVar("S", default=Any)  # a bare `Application` is one of any state
else:
    S = TypeVar("S")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_POISON = ("stop", "pause")


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
        self._engine = engine
        self._batch_limit = at_least_1(batch_limit, "batch_limit")
        max_in_flight = at_least_1(max_in_flight, "max_in_flight")
        self._catch_up = flag(catch_up, "catch_up")
        self._rng = engine.rng
        parts = []
        for partition in partitions:
            machine = MaterializedPartition(-1, max_in_flight, engine.rng, pauses=on_poison == "pause")
            parts.append(Part(partition, machine))
        self._parts = Parts(engine.life, view, parts)
        self._stepper = Stepper(engine, self._parts.values())
        self._tell = self._stepper.tell
        self._report: Callable[[Level, str], None] = lambda level, text: engine.life.report(level, text)
        self._access = ViewAccess(view, engine.rng, engine.instrument, self._report)
        self._decisions = Decisions(engine, view, self._access, self._tell)
        self._submits = Submits(engine, view, self._parts, self._stepper, self._decisions, self._access.works)
        self._marks = Marks(self._parts, self._tell, self._report)
        self._block: AbstractAsyncContextManager[None] | None = None

    async def __aenter__(self) -> Application[S]:
        if self._block is not None:
            raise RuntimeError("an application is entered once: call `client.materialize` again")
        self._block = self._run()
        self._parts.entered = True
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
                self._stepper.tasks, self._parts.running = tasks, True
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
                    await self._marks.reach_the_log(tasks)
                yield
        finally:
            self._stepper.tasks, self._parts.running = None, False
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
        expects: Iterable[LockLike] = (),
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
            expects: locks that the append will probably have in `write`. While others of this application want one of
                them it waits for its turn, and decides once, where it would decide to learn what it wants, and again. A
                wrong guess only costs waiting.

        Returns:
            A receipt, or None when `decide` declined.

        Raises:
            KeyReusedError: a transaction carries `key` for another request.
            ValueError: the append of a submit with a key does not carry it, or the view remembers no keys.
            RetriesExhaustedError: `retry` allows no further attempt, or the server refuses for good; the cause tells.
            ClientAheadError: the log is behind this client.
            BeforeStartError: history was freed that this client has not seen; the outcome is unknown.
            ViewRegressedError: the stored mark of the view went back.
            StateReadOnlyError: `decide` tried to change the state.
            PartitionUnavailableError: the partition is paused (the error says so where the append is in the log), or
                our role may not read what is committed, which a decline asks for.
            ClientClosedError, ClientFailedError: the outcome is unknown unless the error says that the append is in the
                log.
        """
        return self._submits.submit(decide, args, partition, until, decline, retry, key, submission, expects)

    def submit_many(
        self,
        decide: Callable[[S, *Ts], Append | None],
        arguments: Iterable[tuple[*Ts]],
        *,
        partition: int,
        until: Literal["committed", "applied"] = "committed",
        decline: Literal["confirmed", "local"] = "confirmed",
        retry: Retry = Retry(),  # noqa: B008 - a value
        keys: Iterable[str | Key] | None = None,
        expects: Iterable[Iterable[LockLike]] | None = None,
    ) -> Coroutine[Any, Any, list[Receipt | RetriesExhaustedError | KeyReusedError | None]]:
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
            expects: locks for each of `arguments`, as `expects` of `submit`.

        Returns:
            For each, in their order: a receipt, None when `decide` declined, or why it gave up.

        Raises:
            ValueError: another number of keys, or of lists of locks, than of arguments; else as `submit`. What was not
                sent yet is dropped, what was sent stays under way.
        """
        options = Options(partition, until, decline, retry)
        return self._submits.submit_many(decide, arguments, options, keys, expects)

    async def caught_up(self, partition: int | None = None, *, to: int | None = None) -> None:
        """Wait until the view has applied everything that was committed when this was called.

        Args:
            partition: one partition; None = all.
            to: a mark to wait for instead of the server's.

        Raises:
            PartitionUnavailableError: a partition was paused, or our role may not read what is committed.
            ClientClosedError: the block of the application has ended.
        """
        await self._marks.caught_up(partition, to)

    def mark(self, partition: int) -> int:
        """The last transaction that the view has applied."""
        return self._parts.known(partition).submitter.applied_mark

    def status(self, partition: int) -> ApplicationStatus:
        """What this application is doing with a partition right now."""
        return status_of(self._parts.known(partition), self._access.works)

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
            PartitionUnavailableError: with `fresh`: the partition is paused, or our role may not read what is
                committed.
            ClientClosedError: the block of the application has ended.
        """
        if not callable(function):
            raise TypeError(
                f"expected a function of the state, found {shown(function)}; write read(balance, 7, partition=3)"
            )
        part = self._parts.running_one(partition)
        mark = await self._marks.reach(part, None) if flag(fresh, "fresh") else -1
        tries = ViewTries(self._rng)
        while True:
            answer: tuple[T, int] = await self._access.patiently(part, self._access.read, part, function, args)
            pause = tries.shown(answer[1], mark)
            if pause is None:
                return answer
            await trio.sleep(pause)

    # ---- inside --------------------------------------------------------------------------------------

    async def _follow(self, part: Part, feed: Feed) -> None:
        """Apply one partition's feed until the block ends, or a transaction cannot be applied."""
        async for batch in feed.batches(self._batch_limit):
            try:
                await self._access.apply(part, batch, self._tell)
            except ApplyFailedError as error:
                if part.paused is None:
                    raise
                self._report(Level.ERROR, f"{error}; the partition is paused")
                return

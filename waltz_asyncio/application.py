"""The application layer for asyncio: a view kept up to date, and transactions decided on its state."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Generic, Literal, TypeVar, TypeVarTuple

import waltz_trio as trio_front
from waltz_asyncio.bridge import Awaited, Block, call, documented, enter, leave, look, must_be_awaited
from waltz_asyncio.pending import Submission
from waltz_core.base.errors import KeyReusedError, RetriesExhaustedError
from waltz_sync.held import Held
from waltz_sync.portal import Portal
from waltz_trio.client.arguments import Rows, kept
from waltz_trio.client.parts import ApplicationStatus
from waltz_trio.client.values import Append, Key, LockLike, Receipt, Retry
from waltz_trio.client.views import View

S = TypeVar("S")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Application(Block, Generic[S]):
    """A view of some partitions, kept up to date while its block runs. Made by `Client.materialize`.

    The block is entered when the view has caught up with the log as it was at entry; until then `status` tells how
    far it is, to other tasks. `apply` and `decide` are plain functions, and run in a thread of the client.
    """

    _line = "async with client.materialize(...) as app:"

    def __init__(
        self, portal: Portal, app: trio_front.Application[S], client: Held[trio_front.Client], awaited: Awaited
    ) -> None:
        self.view: View[S] = app.view
        self._portal = portal
        self._app = app
        self._held = Held(portal, app, client)
        self._awaited = awaited
        self._used = False

    async def __aenter__(self) -> Application[S]:
        self._used = True
        began = time.monotonic()
        try:
            await enter(self._held, self._portal)
        except asyncio.CancelledError as error:
            self._say_why(error, None, began)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._portal.forked:
            await leave(self._held, error)

    @must_be_awaited
    @documented(trio_front.Application.submit)
    async def submit(
        self,
        decide: Callable[[S, *Ts], Append | None],
        *args: *Ts,
        partition: int,
        until: Literal["committed", "applied"] = "committed",
        decline: Literal["confirmed", "local"] = "confirmed",
        retry: Retry = Retry(),  # noqa: B008 - a value
        key: str | Key | None = None,
        submission: Submission | None = None,
        expects: Iterable[LockLike] = (),
    ) -> Receipt | None:
        _check_plain(decide, "decide")
        self._check_entered()
        handle = Submission._on(self._portal, submission)
        inner, locks = handle._inner, kept(expects)
        run: Callable[..., Awaitable[Receipt | None]] = partial(self._app.submit, decide, *args, partition=partition)
        return await self._call(
            lambda: run(until=until, decline=decline, retry=retry, key=key, submission=inner, expects=locks),
            partition,
        )

    @must_be_awaited
    @documented(trio_front.Application.submit_many)
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
        expects: Iterable[Iterable[LockLike]] | None = None,
    ) -> list[Receipt | RetriesExhaustedError | KeyReusedError | None]:
        _check_plain(decide, "decide")
        self._check_entered()
        rows = Rows.of(arguments, keys, expects)
        run = rows.call(self._app.submit_many, decide, partition, until=until, decline=decline, retry=retry)
        return await self._call(run, partition)

    @documented(trio_front.Application.caught_up)
    async def caught_up(self, partition: int | None = None, *, to: int | None = None) -> None:
        self._check_entered()
        await self._call(lambda: self._app.caught_up(partition, to=to), partition)

    @documented(trio_front.Application.mark)
    def mark(self, partition: int) -> int:
        return look(self._portal, self._app.mark, partition)

    @documented(trio_front.Application.status)
    def status(self, partition: int) -> ApplicationStatus:
        return look(self._portal, self._app.status, partition)

    @documented(trio_front.Application.read)
    async def read(
        self, function: Callable[[S, *Ts], T], *args: *Ts, partition: int, fresh: bool = False
    ) -> tuple[T, int]:
        _check_plain(function, "function")

        async def read() -> tuple[T, int]:
            return await self._app.read(function, *args, partition=partition, fresh=fresh)

        self._check_entered()
        return await self._call(read, partition)

    async def _call(self, function: Callable[[], Awaitable[T]], partition: int | None) -> T:
        """Run an async function in the Trio thread; a cancellation says what it had to wait for there."""
        began = time.monotonic()
        try:
            return await call(self._portal, function)
        except asyncio.CancelledError as error:
            self._say_why(error, partition, began)
            raise

    def _say_why(self, error: asyncio.CancelledError, partition: int | None, began: float) -> None:
        for each in self._app._parts if partition is None else (partition,):
            work = self._app._access.works.named(each, began)
            if work:
                error.add_note(f"meanwhile: {work}")

    def _check_entered(self) -> None:
        if not self._used:
            raise RuntimeError(f"the application is not open; write: {self._line}")


def _check_plain(function: object, name: str) -> None:
    if inspect.iscoroutinefunction(function):
        raise TypeError(
            f"{name} is a plain function here, found `async def {function.__name__}`: it runs in a thread of the "
            "client, where asyncio does not"
        )

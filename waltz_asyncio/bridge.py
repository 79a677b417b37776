"""The way from asyncio into the Trio thread of `waltz_sync.portal`: it waits without blocking the loop.

A call that is cancelled cancels its task there, and waits until that has ended, as Trio does: nothing goes on behind
the caller's back. So `asyncio.timeout` and `TaskGroup` work as they do with everything else.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Concatenate, NoReturn, ParamSpec, Protocol, TypeVar

import trio

from waltz_sync.held import Held
from waltz_sync.portal import Portal
from waltz_trio.client.arguments import not_awaited
from waltz_trio.client.blocks import NotEntered

T = TypeVar("T")
F = TypeVar("F")
P = ParamSpec("P")


def check_loop() -> None:
    """See that a loop of asyncio runs here.

    Raises:
        RuntimeError: it does not.
    """
    if trio.lowlevel.in_trio_run():
        raise RuntimeError("Trio runs here: use waltz_trio, which has the same names")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "asyncio does not run here: write asyncio.run(main()), or use waltz_sync, which has the same names "
            "without `await`"
        ) from None


async def call(portal: Portal, function: Callable[P, Awaitable[T]], /, *args: P.args, **named: P.kwargs) -> T:
    """Run an async function in the Trio thread and wait for what it returns or raises.

    Raises:
        ClientClosedError: the thread has ended, or ends.
    """
    portal.check_own()
    check_loop()

    async def run() -> T:
        return await function(*args, **named)

    future, scope = portal.task(run)
    try:
        await settled(future)
    except asyncio.CancelledError:
        if portal.post(scope.cancel):
            await ended(future)
        raise
    return future.result()


def look(portal: Portal, function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> T:
    """Call a function that does not wait, in the Trio thread, which takes a moment."""
    portal.check_own()
    check_loop()

    async def run() -> T:
        return function(*args, **named)

    return portal.outcome(*portal.task(run))


async def enter(held: Held[T], portal: Portal) -> T:
    """Enter a block; if that fails, nothing is left behind."""
    portal.check_own()
    check_loop()
    future = held.begin()
    try:
        await settled(future)
        return future.result()
    except BaseException:
        if held.cancel():
            await ended(held.ended)
        raise


async def leave(held: Held[Any], error: BaseException | None) -> None:
    """Leave a block, by an exception of its body or normally; raises what the block raises instead of it."""
    trace = None if error is None else error.__traceback__
    held.let_go(error)
    try:
        await settled(held.ended)
    except asyncio.CancelledError:
        if held.cancel():
            await ended(held.ended)
        raise
    held.judge(error, trace, held.ended.result())


async def settled(future: Future[Any]) -> None:
    """Wait until a future is settled; being cancelled leaves it as it is."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def done(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop was closed while a call was waiting in it
            loop.call_soon_threadsafe(wake)

    future.add_done_callback(done)
    await waiter


async def ended(future: Future[Any]) -> None:
    """Wait until a future is settled, also when cancelled again meanwhile: the caller is being cancelled already."""
    while not future.done():
        with suppress(asyncio.CancelledError):
            await settled(future)


def documented(original: Callable[..., Any]) -> Callable[[F], F]:
    """The method says what that of `waltz_trio` says."""

    def document(method: F) -> F:
        method.__doc__ = original.__doc__
        return method

    return document


class Awaited:
    """Counts calls until somebody takes them: a forgotten `await` is an error when the client ends."""

    def __init__(self) -> None:
        self.left = 0

    def check(self) -> None:
        """See that every call was awaited.

        Raises:
            RuntimeError: it appended nothing.
        """
        if self.left:
            raise not_awaited(self.left)


class _Counted(Coroutine[Any, Any, T]):
    """A coroutine that counts until it is awaited, or thrown into: a task may be cancelled before its first step."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], awaited: Awaited) -> None:
        self._coroutine = coroutine
        self._awaited: Awaited | None = awaited
        awaited.left += 1

    def _taken(self) -> Coroutine[Any, Any, T]:
        if self._awaited is not None:
            self._awaited.left -= 1
            self._awaited = None
        return self._coroutine

    def __await__(self) -> Generator[Any, Any, T]:
        return self._taken().__await__()

    def send(self, value: Any, /) -> Any:
        return self._taken().send(value)

    def throw(self, *error: Any) -> Any:
        return self._taken().throw(*error)

    def close(self) -> None:
        self._taken().close()


class Counts(Protocol):
    """What has methods that must be awaited."""

    _awaited: Awaited


C = TypeVar("C", bound=Counts)


def must_be_awaited(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[C, P], Coroutine[Any, Any, T]]:
    """The method is counted by `Awaited`."""

    @functools.wraps(method)
    def call(self: C, /, *args: P.args, **named: P.kwargs) -> Coroutine[Any, Any, T]:
        return _Counted(method(self, *args, **named), self._awaited)

    return call


class Block(NotEntered):
    """What `async with` enters: `with` is an error that shows the right line."""

    _line = "async with open_client(...) as client:"

    def __enter__(self) -> NoReturn:
        raise TypeError(f"waltz_asyncio waits without blocking; write: {self._line}")

    def __exit__(self, *_: object) -> None:
        """Never reached; `with` looks for it before it enters."""

    def __await__(self) -> NoReturn:
        raise TypeError(f"this is a block, not something to await; write: {self._line}")

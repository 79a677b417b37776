"""Blocks that own background tasks and never change the exception of their body.

A nursery turns every exception of its body into a group and lets a child's failure replace it. In `background` the
tasks never raise into the nursery: the first failure is kept and ends the body; the body's own exception
leaves bare and unchanged; a cancellation from outside passes untouched.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from waltz_core.base.errors import ClientError, ClientFailedError


class Background:
    """The tasks of one block."""

    def __init__(self, nursery: trio.Nursery, body: trio.CancelScope) -> None:
        self._nursery = nursery
        self._body = body
        self.failure: Exception | None = None
        self.interruption: BaseException | None = None  # KeyboardInterrupt, SystemExit: for the whole program

    def start_soon(self, task: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run a task until the block is left."""
        self._nursery.start_soon(self._watch, task, args)

    def fail(self, failure: Exception) -> None:
        """End the body; the first failure is what the block raises."""
        if self.failure is None:
            self.failure = failure
        self._body.cancel()

    async def _watch(self, task: Callable[..., Awaitable[object]], args: tuple[object, ...]) -> None:
        try:
            await task(*args)
        except Exception as error:
            self.fail(only(error))
        except BaseException as error:
            if self.interruption is None:
                self.interruption = _interruption(error)
            raise


def _interruption(error: BaseException) -> BaseException | None:
    """What is no cancellation of it, such as KeyboardInterrupt or SystemExit."""
    if isinstance(error, BaseExceptionGroup):
        rest = error.split(trio.Cancelled)[1]
        return None if rest is None else first_of(rest)
    return None if isinstance(error, trio.Cancelled) else error


def only(error: BaseException) -> Exception:
    """The one exception inside nested groups of one, else the error itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error


def first_of(error: BaseException) -> BaseException:
    """The first exception inside nested groups, for messages that name one and not all.

    Raise it behind the `except*`, not inside: some releases of Python 3.11 put what is raised there into a group.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@asynccontextmanager
async def background(what: str) -> AsyncIterator[Background]:
    """Run tasks beside the body of the block; none is left when the block is.

    Raises:
        ClientError: a task failed with it while the body was fine.
        ClientFailedError: a task failed with anything else, which is the cause; `what` names the block.
        KeyboardInterrupt, SystemExit: a task raised it; it comes out bare.
    """
    raised: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            body = trio.CancelScope()
            tasks = Background(nursery, body)
            try:
                with body:
                    yield tasks
            except BaseException as error:
                raised = error
            finally:
                nursery.cancel_scope.cancel()
    except BaseException:
        # A cancellation from outside, or what interrupted a task.
        if raised is None and tasks.interruption is None:
            raise
    if tasks.interruption is not None:
        # The body was cancelled because of it; to raise that cancellation would end the program without a word.
        raised = tasks.interruption
    failure = tasks.failure
    if raised is not None:
        if failure is not None and not isinstance(raised, trio.Cancelled):
            raised.add_note(f"meanwhile {what} failed: {failure!r}")
        try:
            raise raised
        finally:
            raised = None  # breaks the cycle of exception and frame
    if failure is not None:
        if isinstance(failure, ClientError):
            raise failure
        raise ClientFailedError(f"{what} failed: {failure!r}") from failure


@asynccontextmanager
async def background_nursery() -> AsyncIterator[trio.Nursery]:
    """A nursery whose tasks are cancelled when the body ends.

    A plain nursery would wrap what the body raises in an exception group, so that callers of the context
    manager could not catch it by its type. Nor can they where somebody cancels them while the body's error is
    on its way out: the tasks' cancellations are left out beside it.
    """
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        failed = group.split(trio.Cancelled)[1] or group
        if len(failed.exceptions) == 1:
            raise failed.exceptions[0] from None
        raise

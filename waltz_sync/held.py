"""Async blocks of a client, held open in its Trio thread for those who enter and leave them from outside."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar

import trio

from waltz_core.base.errors import ClientClosedError, ClientFailedError
from waltz_sync.callers import after, check_timeout
from waltz_sync.portal import Portal
from waltz_trio.client.blocks import ENTERED_BEFORE

T = TypeVar("T")


class Held(Generic[T]):
    """An async block that a task of its own holds open, so that it is entered and left in the same task.

    It may end by itself: a block of this package does when one of its background tasks failed.
    """

    def __init__(self, portal: Portal, manager: AbstractAsyncContextManager[T], inside: Held[Any] | None) -> None:
        """`inside`: the block around this one, which ends this one when it is left."""
        self._portal = portal
        self._manager = manager
        self._inside = inside
        self._children: set[Held[Any]] = set()
        self._scope = trio.CancelScope()
        self._begun = False
        self._leave: trio.Event | None = None
        self._entered: Future[T] = Future()
        self._over: trio.Event | None = None
        self.ended: Future[BaseException | None] = Future()
        self._body: BaseException | None = None  # what the body raised
        self.ended.add_done_callback(self._on_ended)

    def enter(self, timeout: float | None, late: str | Callable[[], str]) -> T:
        """Enter the block; if that fails, nothing is left behind.

        Raises:
            TimeoutError: the time is over.
        """
        self._portal.check()
        seconds = check_timeout(timeout)
        entered = self.begin(seconds, after(timeout, late))
        try:
            return entered.result()
        except BaseException:
            if self.cancel():
                self._portal.patient_result(self.ended, 0)
            raise

    def begin(self, seconds: float = math.inf, late: Callable[[], str] = str) -> Future[T]:
        """Start the task that enters the block; the future is settled once it is entered, or will not be.

        Raises:
            RuntimeError: it was entered before.
        """
        if self._begun:
            raise RuntimeError(ENTERED_BEFORE)
        self._begun = True

        def too_late() -> None:
            if not self._entered.done():
                self._entered.set_exception(TimeoutError(late()))
                self._scope.cancel()

        async def run() -> None:
            if seconds != math.inf:
                self._portal.post(self._watch, seconds, too_late)
            await self._run()

        self._portal.begin(run, self.ended)
        return self._entered

    def cancel(self) -> bool:
        """End the task; False when the thread has ended before."""
        return self._portal.post(self._scope.cancel)

    def leave(self, error: BaseException | None) -> None:
        """Leave the block, by an exception of its body or normally; raises what the block raises instead of it."""
        trace = None if error is None else error.__traceback__
        try:
            self.let_go(error)
            raised = self.ended.result()
        except BaseException:
            if self.cancel():
                wait([self.ended])
            raise
        self.judge(error, trace, raised)

    def let_go(self, error: BaseException | None) -> None:
        """The body has ended, by an exception of its own or normally; `ended` says what the block makes of it."""
        self._portal.post(self._let_go, error)

    @staticmethod
    def judge(error: BaseException | None, trace: TracebackType | None, raised: BaseException | None) -> None:
        """Raise what the block raised, unless it is the body's own exception, or that one says it already."""
        if raised is error:
            if error is not None:
                error.__traceback__ = trace
            return
        if raised is None:
            return
        if error is None or isinstance(error, ClientClosedError | ClientFailedError):
            raise raised  # that of the body came of it
        error.add_note(f"meanwhile the block ended by {raised!r}")

    def _on_ended(self, ended: Future[BaseException | None]) -> None:
        if not self._entered.done():
            self._entered.set_exception(ended.exception() or ended.result() or self._portal.closed())

    def _watch(self, seconds: float, then: Callable[[], None]) -> None:
        async def sleep() -> None:
            with trio.move_on_after(seconds):
                assert self._over is not None
                await self._over.wait()
                return
            then()

        self._portal.start_soon(sleep)

    def _let_go(self, error: BaseException | None) -> None:
        self._body = error
        if self._leave is not None:
            self._leave.set()

    async def _run(self) -> None:
        self._leave, self._over = trio.Event(), trio.Event()
        if self._inside is not None:
            self._inside._children.add(self)
        raised: BaseException | None = None
        try:
            with self._scope:
                await self._hold(self._leave)
        except trio.Cancelled:
            raised = self._portal.closed()
            raise
        except BaseException as error:
            raised = error
        finally:
            if self._inside is None and raised is not self._body and isinstance(raised, Exception):
                self._portal.failure = raised
            self._over.set()
            if self._inside is not None:
                self._inside._children.discard(self)
            self._portal.forget(self.ended)
            self.ended.set_result(raised)

    async def _hold(self, leave: trio.Event) -> None:
        async with self._manager as found:
            if not self._entered.done():
                self._entered.set_result(found)
            try:
                await leave.wait()
            finally:
                with trio.CancelScope(shield=True):
                    for child in list(self._children):
                        child._scope.cancel()
                        assert child._over is not None
                        await child._over.wait()
            if self._body is not None:
                raise self._body

"""The Trio thread of one client, and the way into it: calls that wait, and blocks that a task holds open.

`waltz_asyncio` goes the same way, and waits without blocking its thread.

A call is a task in that thread. Whoever waits for it either gets its outcome or, by a time-out or a KeyboardInterrupt,
cancels it and waits until it has ended, so that nothing continues unseen.
"""

from __future__ import annotations

import contextvars
import math
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar

import trio

from waltz_core.base.edge import Level
from waltz_core.base.errors import ClientClosedError, ClientError, ClientFailedError, WrongProcessError
from waltz_trio.base.log import reporter
from waltz_trio.client.at_work import CALLS_NO_CLIENT, inside, of_run

T = TypeVar("T")
P = ParamSpec("P")

report = reporter("client")

_GRACE = 5.0  # seconds that a call may take to end, once its time is over, before a line of the log says so
_LONG = 1e6  # seconds from which on a wait counts as one without end
_SOMETHING = "a function of the application, or its database, has not returned"
_ADVICE = "nothing goes on behind the back of a caller. Let such functions end by themselves"


def check_plain_thread() -> None:
    """See that the caller may block its thread.

    Raises:
        RuntimeError: a task of Trio or asyncio runs here, and every other task would stand still meanwhile.
    """
    if trio.lowlevel.in_trio_run():
        raise RuntimeError(
            "waltz_sync blocks its thread, but Trio runs here: use waltz_trio (async with, await), or call from a "
            "thread: await trio.to_thread.run_sync(...)"
        )
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or asyncio._get_running_loop() is None or _in_notebook():
        return
    raise RuntimeError(
        "waltz_sync blocks its thread, but asyncio runs here, and its loop would stand still: call from a thread: "
        "await asyncio.to_thread(...)"
    )


def _in_notebook() -> bool:
    """A cell runs inside the kernel's loop, which waits for every cell anyway."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def check_timeout(timeout: float | None) -> float:
    """Seconds, without end for None.

    Raises:
        TypeError: not a number.
        ValueError: less than nothing.
    """
    if timeout is None:
        return math.inf
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout is a number of seconds, or None to wait without end, found {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"timeout is at least 0 seconds, found {timeout!r}")
    return float(timeout)


def after(timeout: float | None, late: str | Callable[[], str]) -> Callable[[], str]:
    """What a TimeoutError says, made when the time is over."""
    return lambda: f"after {timeout} s: {late if isinstance(late, str) else late()}"


class Portal:
    """A thread that runs Trio, for one client."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="waltz_sync", daemon=True)
        self._token: trio.lowlevel.TrioToken | None = None
        self._tasks: trio.Nursery | None = None
        self._up: Future[None] = Future()
        self._waiting: set[Future[Any]] = set()  # touched by the Trio thread alone
        self.failure: Exception | None = None  # of the client, once its block has ended by it

    @property
    def forked(self) -> bool:
        """This is a child of the process that made the portal: its thread is not here."""
        return os.getpid() != self._pid

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()
        self._up.result()

    def stop(self) -> None:
        """Cancel what still runs, and end the thread."""
        self.post(self._cancel)
        self._thread.join()

    def post(self, function: Callable[..., object], *args: object) -> bool:
        """Call a function in the Trio thread, soon; False when that has ended."""
        assert self._token is not None
        try:
            self._token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            return False
        return True

    def check(self) -> None:
        """See that the caller may wait for the Trio thread.

        Raises:
            RuntimeError: it may not, and why.
        """
        self.check_own()
        check_plain_thread()

    def check_own(self) -> None:
        """See that the Trio thread is another one, of this process.

        Raises:
            WrongProcessError: it is of the process that this one was forked from.
            RuntimeError: the caller is that thread.
        """
        if self.forked:
            raise WrongProcessError
        work = inside()
        if threading.current_thread() is self._thread or (work is not None and work.run is self._token):
            raise RuntimeError(f"this is the client's own thread, which would wait for itself: {CALLS_NO_CLIENT}")

    def call(
        self,
        function: Callable[P, Awaitable[T]],
        timeout: float | None,
        late: str | Callable[[], str],
        /,
        *args: P.args,
        **named: P.kwargs,
    ) -> T:
        """Run an async function in the Trio thread and wait for what it returns or raises.

        Args:
            function: what to run.
            timeout: seconds, or None.
            late: what to say when they are over; if it is a function, it is called then, in the Trio thread.
            args: handed to `function`.
            named: handed to `function`.

        Raises:
            TimeoutError: the time is over; the call was cancelled and has ended.
            ClientClosedError: the thread has ended, or ends.
        """
        self.check()
        seconds = check_timeout(timeout)
        scope, future = trio.CancelScope(), Future[T]()
        try:
            self._start(partial(function, *args, **named), scope, future, seconds, after(timeout, late))
            return self.patient_result(future, seconds)
        except BaseException:
            self._give_up(future, scope)
            raise

    def task(
        self,
        function: Callable[[], Awaitable[T]],
        seconds: float = math.inf,
        late: Callable[[], str] = str,
    ) -> tuple[Future[T], trio.CancelScope]:
        """Start an async function in the Trio thread; the future is settled once it has ended, cancelled or not."""
        scope, future = trio.CancelScope(), Future[T]()
        self._start(function, scope, future, seconds, late)
        return future, scope

    def _start(
        self,
        function: Callable[[], Awaitable[T]],
        scope: trio.CancelScope,
        future: Future[T],
        seconds: float,
        late: Callable[[], str],
    ) -> None:
        async def run() -> None:
            try:
                with scope, trio.move_on_after(seconds):
                    future.set_result(await function())
                    return
                error: BaseException = TimeoutError(late())
            except trio.Cancelled:
                future.set_exception(self.closed())
                raise
            except BaseException as raised:
                error = raised
            finally:
                self._waiting.discard(future)
            future.set_exception(error)

        self.begin(run, future)

    def look(self, function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> T:
        """Call a function that does not wait, in the Trio thread."""

        async def run() -> T:
            return function(*args, **named)

        return self.call(run, None, "")

    def begin(self, task: Callable[[], Awaitable[None]], future: Future[Any]) -> None:
        """Start a task that settles `future`, in the context of the caller."""
        context = contextvars.copy_context()

        def start() -> None:
            try:
                assert self._tasks is not None
                context.run(self._tasks.start_soon, task)
            except RuntimeError:  # the nursery is closed
                future.set_exception(self.closed())
            else:
                self._waiting.add(future)

        if not self.post(start):
            raise self.closed()

    def outcome(self, future: Future[T], scope: trio.CancelScope, seconds: float = math.inf) -> T:
        """Wait for a task. Whoever is interrupted meanwhile cancels it, and waits until it has ended."""
        try:
            return self.patient_result(future, seconds)
        except BaseException:
            self._give_up(future, scope)
            raise

    def _give_up(self, future: Future[Any], scope: trio.CancelScope) -> None:
        """Cancel a task, and wait until it has ended; an interrupt may have come before it was even started."""

        def cancel() -> None:
            scope.cancel()
            if future not in self._waiting and not future.done():
                future.set_exception(self.closed())

        if not future.done() and self.post(cancel):
            wait([future])

    def patient_result(self, future: Future[T], seconds: float) -> T:
        """The outcome of what has so many seconds. What does not end then is waited for, and said."""
        if seconds < _LONG:
            try:
                return future.result(seconds + _GRACE)
            except TimeoutError:
                if not future.done():
                    why = of_run(self._token) or _SOMETHING
                    report(Level.WARNING, f"a call goes on although its time is over: {why}; {_ADVICE}")
        return future.result()

    def closed(self) -> ClientError:
        """What a call comes to when the client is not there any more."""
        failure = self.failure
        if failure is None:
            return ClientClosedError("the client was closed; of an append under way the outcome is unknown")
        error = ClientFailedError(str(failure))
        error.__cause__ = failure
        return error

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            self.failure = self.failure or ClientFailedError(f"the client's thread failed: {error!r}")
        finally:
            for future in self._waiting:
                future.set_exception(self.closed())

    async def _main(self) -> None:
        async with trio.open_nursery() as self._tasks:
            self._token = trio.lowlevel.current_trio_token()
            self._up.set_result(None)
            await trio.sleep_forever()

    def _cancel(self) -> None:
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()


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
        """Start the task that enters the block; the future is settled once it is entered, or will not be."""

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

        tasks = self._portal._tasks
        assert tasks is not None
        tasks.start_soon(sleep)

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
            self._portal._waiting.discard(self.ended)
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


class Block(Generic[T]):
    """What `with` enters: every other use of it is an error that shows the right line."""

    _line = "with open_client(...) as client:"

    def __enter__(self) -> T:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> NoReturn:
        raise TypeError(f"waltz_sync is for plain threads, without `async`; write: {self._line}")

    async def __aexit__(self, *_: object) -> None:
        """Never reached; `async with` looks for it before it enters."""

    def __iter__(self) -> NoReturn:
        raise TypeError(f"this is entered first; write: {self._line}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked for by copy, inspect and the like
            raise AttributeError(name)
        raise AttributeError(f"{type(self).__name__} has no {name!r} before it is entered; write: {self._line}")

"""The Trio thread of one client, and the way into it: calls that wait.

`waltz_asyncio` goes the same way, and waits without blocking its thread. Blocks, which a task holds open, are in
`held.py`.

A call is a task in that thread. Whoever waits for it either gets its outcome or, by a time-out or a KeyboardInterrupt,
cancels it and waits until it has ended, so that nothing continues unseen.
"""

from __future__ import annotations

import contextvars
import math
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, ParamSpec, TypeVar

import trio

from waltz_core.base.edge import Level
from waltz_core.base.errors import ClientClosedError, ClientError, ClientFailedError, WrongProcessError
from waltz_sync.callers import after, check_plain_thread, check_timeout
from waltz_trio.base.log import reporter
from waltz_trio.client.at_work import CALLS_NO_CLIENT, inside, of_run

T = TypeVar("T")
P = ParamSpec("P")

report = reporter("client")

_GRACE = 5.0  # seconds that a call may take to end, once its time is over, before a line of the log says so
_LONG = 1e6  # seconds from which on a wait counts as one without end
_SOMETHING = "a function of the application, or its database, has not returned"
_ADVICE = "nothing goes on behind the back of a caller. Let such functions end by themselves"


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
                self.forget(future)
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

    def start_soon(self, task: Callable[[], Awaitable[None]]) -> None:
        """In the Trio thread: start a task that nobody waits for."""
        assert self._tasks is not None
        self._tasks.start_soon(task)

    def forget(self, future: Future[Any]) -> None:
        """In the Trio thread: a task that `begin` has started settles its future now."""
        self._waiting.discard(future)

    async def _main(self) -> None:
        async with trio.open_nursery() as self._tasks:
            self._token = trio.lowlevel.current_trio_token()
            self._up.set_result(None)
            await trio.sleep_forever()

    def _cancel(self) -> None:
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()

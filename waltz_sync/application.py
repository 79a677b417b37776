"""The application layer for threads: a view kept up to date, and transactions decided on its state."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Generic, Literal, TypeVar, TypeVarTuple

import waltz_trio as trio_front
from waltz_core.base.errors import KeyReusedError, RetriesExhaustedError
from waltz_sync.blocks import Block
from waltz_sync.held import Held
from waltz_sync.pending import Submission
from waltz_sync.portal import Portal
from waltz_trio.client.arguments import Rows, kept
from waltz_trio.client.parts import ApplicationStatus, held_up, in_the_log
from waltz_trio.client.values import Append, Key, LockLike, Receipt, Retry
from waltz_trio.client.views import View

S = TypeVar("S")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_SUBMIT_LATE = (
    "the submit has no outcome. If its append was sent, it may commit yet, and no retry follows. To submit again "
    "safely, give it an idempotency key, submit(..., key=KEY), and the same one again"
)
_MANY_LATE = (
    "some submits have no outcome. Those whose append was sent may commit yet; give them keys to repeat them safely"
)
_READ_LATE = "the state could not be read in time; nothing was changed"
_VIEW_LATE = "the view has not caught up; `status` says how far it is. It goes on, wait again"


class Application(Block["Application[S]"], Generic[S]):
    """A view of some partitions, kept up to date while its block runs. Made by `Client.materialize`.

    The block is entered when the view has caught up with the log as it was at entry; until then `status` tells how
    far it is, to other threads. Any number of threads may use it.
    """

    _line = "with client.materialize(...) as app:"

    def __init__(
        self, portal: Portal, app: trio_front.Application[S], client: Held[trio_front.Client], timeout: float | None
    ) -> None:
        self.view: View[S] = app.view
        self._portal = portal
        self._app = app
        self._timeout = timeout
        self._held = Held(portal, app, client)
        self._used = False

    def __enter__(self) -> Application[S]:
        self._used = True
        text = "the view has not caught up with the log; give it more time, or catch_up=False"
        self._held.enter(self._timeout, self._late(text))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._portal.forked:
            self._held.leave(error)

    def submit(
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
        timeout: float | None = None,
    ) -> Receipt | None:
        """Decide on the state, append, and decide again where a lock was taken meanwhile.

        `decide(state, *args)` gets what the view reads with (a cursor, a dict), which it cannot change, and returns an
        `Append`, or None to decline. It may run several times, must not have effects of its own, and runs in a thread
        of the client.

        Args:
            decide: a plain function of the state.
            args: handed to `decide`.
            partition: whose state, and where to append.
            until: "committed", or "applied": also wait until this view has applied it.
            decline: "confirmed": None is returned once `decide` declined on a state that holds everything that was
                committed when this was called, by a question to the server; "local": at once, on any state.
            retry: pauses and limits.
            key: an idempotency key, which `decide` puts into the payload. While the view remembers a transaction with
                this key, its receipt is the answer, and nothing is appended. A text means `Key(text, args)`.
            submission: a handle that keeps the outcome of the append after a TimeoutError.
            expects: locks that the append will probably have in `write`. While others of this application want one of
                them it waits for its turn, and decides once, where it would decide to learn what it wants, and again. A
                wrong guess only costs waiting.
            timeout: seconds to wait.

        Returns:
            A receipt, or None when `decide` declined.

        Raises:
            TimeoutError: the time is over; if the append was sent, its outcome is unknown unless the error says that it
                is in the log, and no retry follows.
            KeyReusedError: a transaction carries `key` for another request.
            ValueError: the append of a submit with a key does not carry it, or the view remembers no keys.
            RetriesExhaustedError: `retry` allows no further attempt, or the server refuses for good; the cause tells.
            ClientAheadError, BeforeStartError: as `append` of a client.
            ViewRegressedError: the stored mark of the view went back.
            StateReadOnlyError: `decide` tried to change the state.
            PartitionUnavailableError: it is paused (the error says if the append is in the log), or may not be read.
            ClientClosedError, ClientFailedError: the outcome is unknown unless the error says that the append is in the
                log.
        """
        _check_plain(decide, "decide")
        self._check_entered()
        inner, locks = Submission._on(self._portal, submission)._inner, kept(expects)
        run: Callable[..., Awaitable[Receipt | None]] = partial(self._app.submit, decide, *args, partition=partition)
        return self._portal.call(
            lambda: run(until=until, decline=decline, retry=retry, key=key, submission=inner, expects=locks),
            timeout,
            self._late(_submit_late(inner), partition),
        )

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
        timeout: float | None = None,
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
            expects: locks for each of `arguments`, as `expects` of `submit`.
            timeout: seconds to wait for all of them.

        Returns:
            For each, in their order: a receipt, None when `decide` declined, or why it gave up.

        Raises:
            TimeoutError: the time is over; what was not sent yet is dropped, what was sent stays under way.
            ValueError: another number of keys, or of lists of locks, than of arguments; else as `submit`.
        """
        _check_plain(decide, "decide")
        self._check_entered()
        rows = Rows.of(arguments, keys, expects)
        run = rows.call(self._app.submit_many, decide, partition, until=until, decline=decline, retry=retry)
        return self._portal.call(run, timeout, self._late(_MANY_LATE, partition))

    def caught_up(self, partition: int | None = None, *, to: int | None = None, timeout: float | None = None) -> None:
        """Wait until the view has applied everything that was committed when this was called.

        Args:
            partition: one partition; None = all.
            to: a mark to wait for instead of the server's.
            timeout: seconds to wait.

        Raises:
            TimeoutError: the time is over.
            PartitionUnavailableError: a partition was paused, or our role may not read what is committed.
            ClientClosedError: the block of the application has ended.
        """
        self._check_entered()
        self._portal.call(self._app.caught_up, timeout, self._late(_VIEW_LATE, partition), partition, to=to)

    def mark(self, partition: int) -> int:
        """The last transaction that the view has applied."""
        return self._portal.look(self._app.mark, partition)

    def status(self, partition: int) -> ApplicationStatus:
        """What this application is doing with a partition right now."""
        return self._portal.look(self._app.status, partition)

    def read(
        self,
        function: Callable[[S, *Ts], T],
        *args: *Ts,
        partition: int,
        fresh: bool = False,
        timeout: float | None = None,
    ) -> tuple[T, int]:
        """`function(state, *args)` and the mark of the state that it saw.

        Args:
            function: of the state, which it cannot change; runs in a thread of the client.
            args: handed to `function`.
            partition: whose state.
            fresh: the state holds everything that was committed when this was called (a linearizable read); costs
                a question to the server, which calls at the same time share.
            timeout: seconds to wait.

        Raises:
            TimeoutError: the time is over.
            StateReadOnlyError: `function` tried to change the state.
            ViewRegressedError: the stored mark of the view went back.
            PartitionUnavailableError: with `fresh`: the partition is paused, or our role may not read what is
                committed.
            ClientClosedError: the block of the application has ended.
        """
        _check_plain(function, "function")

        async def read() -> tuple[T, int]:
            return await self._app.read(function, *args, partition=partition, fresh=fresh)

        self._check_entered()
        return self._portal.call(read, timeout, self._late(_READ_LATE, partition))

    def _late(self, text: str | Callable[[], str], partition: int | None = None) -> Callable[[], str]:
        """What a call that begins now says once its time is over, in the Trio thread: also what it has waited for."""
        app, began = self._app, time.monotonic()

        def late() -> str:
            told = text if isinstance(text, str) else text()
            return told + held_up(app._parts.values(), partition, app._engine.life.status, app._access.works, began)

        return late

    def _check_entered(self) -> None:
        if not self._used:
            raise RuntimeError(f"the application is not open; write: {self._line}")


def _submit_late(submission: trio_front.Submission) -> Callable[[], str]:
    """What a submit with this handle says once its time is over: also that its append is committed by then."""
    before = submission._call  # of an earlier submit with the same handle

    def late() -> str:
        told = "" if submission._call is before else in_the_log(submission._call)
        return f"{told}. The view has not applied it in time" if told else _SUBMIT_LATE

    return late


def _check_plain(function: object, name: str) -> None:
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"{name} is a plain function here, found `async def {function.__name__}`")

"""The submits of one application: checked, handed to the machine of their partition, and waited for.

`Application.submit` and `submit_many` say what they mean. When a submit is decided, sent, and done is the machine's to
say; what is here is who waits, and what happens when one leaves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, cast

import trio

from waltz_core.base.edge import Level
from waltz_core.base.errors import KeyReusedError, RetriesExhaustedError
from waltz_core.base.record import record
from waltz_core.client.submit_calls import Decide, SubmitBegun, Withdrawn
from waltz_trio.client.arguments import EXPECTED, KEYS, check_decide, listed, rows_of
from waltz_trio.client.at_work import Works
from waltz_trio.client.calls import Call, KeyOfCall, Submission, Waiter
from waltz_trio.client.deciding import Decisions
from waltz_trio.client.engine import Engine
from waltz_trio.client.parts import Part, Parts, end_of, many_in_the_log, outcome_of
from waltz_trio.client.shown import shown
from waltz_trio.client.stepping import Stepper
from waltz_trio.client.values import Key, LockLike, Receipt, Retry
from waltz_trio.client.views import KeyedView, View

_NOTHING: tuple[int, ...] = ()
_GRACE = 5.0  # seconds that a cancelled submit may wait for its `decide` before a line of the log says so


@record
class Options:
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

    def begun(self, call: Call, expects: tuple[int, ...]) -> SubmitBegun:
        hashed = None if call.key is None else call.key.hashed
        return SubmitBegun(call, self.retry, self.decline == "confirmed", self.until == "applied", hashed, expects)


_NO_OPTIONS = Options(-1, "committed", "confirmed", Retry())


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


class Submits:
    """Those of one application."""

    def __init__(
        self, engine: Engine, view: View[Any], parts: Parts, stepper: Stepper, decisions: Decisions, works: Works
    ) -> None:
        self._engine, self._timed = engine, engine.timed
        self._view = view
        self._parts = parts
        self._stepper = stepper
        self._decisions = decisions
        self._works = works
        self._last_options = _NO_OPTIONS  # most submits are alike

    def submit(
        self,
        decide: Callable[..., Any],
        args: tuple[Any, ...],
        partition: int,
        until: str,
        decline: str,
        retry: Retry,
        key: str | Key | None,
        submission: Submission | None,
        expects: Iterable[LockLike],
    ) -> Coroutine[Any, Any, Receipt | None]:
        """See `Application.submit`."""
        self._engine.appends.unstarted += 1
        options = self._last_options
        if not options.say(partition, until, decline, retry):
            options = Options(partition, until, decline, retry)
        return self._submit(options, decide, args, key, submission, expects)

    async def _submit(
        self,
        options: Options,
        decide: Callable[..., Any],
        args: tuple[Any, ...],
        key: str | Key | None,
        submission: Submission | None,
        expects: Iterable[LockLike],
    ) -> Receipt | None:
        self._engine.appends.unstarted -= 1
        if options is not self._last_options:
            options.check()
            self._last_options = options
        if not callable(decide):
            check_decide(decide)
        if submission is not None and not isinstance(submission, Submission):
            raise TypeError(f"expected a Submission, found {shown(submission)}; write submission=Submission()")
        part = self._parts.running_one(options.partition)
        call = self._call(part, options, None, decide, args, key)
        wanted = _NOTHING if type(expects) is tuple and not expects else self._expected(call, expects)
        if submission is not None:
            submission._call = call
        if self._timed is not None:
            call.timing = self._timed.submit_began(part.partition)  # nothing is refused from here on
        try:
            self._stepper.post(part, options.begun(call, wanted))
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

    def submit_many(
        self,
        decide: Callable[..., Any],
        arguments: Iterable[tuple[Any, ...]],
        options: Options,
        keys: Iterable[str | Key] | None,
        expects: Iterable[Iterable[LockLike]] | None,
    ) -> Coroutine[Any, Any, list[Receipt | RetriesExhaustedError | KeyReusedError | None]]:
        """See `Application.submit_many`."""
        self._engine.appends.unstarted += 1
        return self._submit_many(decide, arguments, options, keys, expects)

    async def _submit_many(
        self,
        decide: Callable[..., Any],
        arguments: Iterable[tuple[Any, ...]],
        options: Options,
        keys: Iterable[str | Key] | None,
        expects: Iterable[Iterable[LockLike]] | None,
    ) -> list[Receipt | RetriesExhaustedError | KeyReusedError | None]:
        self._engine.appends.unstarted -= 1
        options.check()
        check_decide(decide)
        if inspect.iscoroutinefunction(decide):
            raise TypeError("submit_many takes a plain function, found `async def`; use submit")
        part, waiter, wanted = self._parts.running_one(options.partition), Waiter(), rows_of(arguments)
        named: list[str | Key | None] = [None] * len(wanted) if keys is None else listed(keys, KEYS)
        if len(named) != len(wanted):
            raise ValueError(f"{len(wanted)} submits need as many keys, found {len(named)}")
        likely: list[Iterable[LockLike]] | None = None if expects is None else listed(expects, EXPECTED)
        if likely is not None and len(likely) != len(wanted):
            raise ValueError(f"{len(wanted)} submits need as many lists of locks in expects, found {len(likely)}")
        pairs = zip(wanted, named, strict=True)
        calls = [self._call(part, options, waiter, decide, args, key) for args, key in pairs]
        locks = [_NOTHING] * len(calls) if likely is None else list(map(self._expected, calls, likely))
        outcomes: list[Receipt | RetriesExhaustedError | KeyReusedError | None] = []
        if self._timed is not None:
            for call in calls:
                call.timing = self._timed.submit_began(part.partition)
        try:
            try:
                self._stepper.tell(part, *map(options.begun, calls, locks))
                await waiter.wait()
            finally:
                await self._leave(part, calls)
            for call in calls:
                try:
                    outcomes.append(outcome_of(part, call))
                except (RetriesExhaustedError, KeyReusedError) as error:
                    outcomes.append(error)
        except Exception as error:
            if note := many_in_the_log(calls):
                error.add_note(note)
            raise
        await trio.lowlevel.checkpoint_if_cancelled()
        return outcomes

    def _expected(self, call: Call, locks: Iterable[LockLike]) -> tuple[int, ...]:
        return self._engine.appends.encoder.expected(locks, None if call.key is None else call.key.key)

    def _call(
        self,
        part: Part,
        options: Options,
        together: Waiter | None,
        decide: Callable[..., Any],
        args: tuple[Any, ...],
        key: str | Key | None,
    ) -> Call:
        keyed = None if key is None else _key_of_call(self._view, part, args, options.decline, key)
        return Call(decide, args, keyed, together)

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
            self._stepper.tell(part, *map(Withdrawn, left))
            if not set(left).isdisjoint(part.deciding):
                with trio.CancelScope(shield=True):
                    await _decided(part, self._works, self._engine.life.report)

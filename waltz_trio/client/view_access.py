"""How an application uses its view: in a thread where the view wants one, and again after failures that pass."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any, TypeVar

import trio

from waltz_core.base.edge import Level
from waltz_core.client.applier import Applied, ApplyFailed, BatchArrived, Commit, Poisoned, TakeNext, ViewDown
from waltz_core.client.retry import ViewTries
from waltz_trio.client.at_work import AtWork, Works, enter, named
from waltz_trio.client.calls import Call
from waltz_trio.client.instrument import Instrument
from waltz_trio.client.parts import Part, Tell
from waltz_trio.client.shown import shown
from waltz_trio.client.values import Batch
from waltz_trio.client.views import ApplyError, View

T = TypeVar("T")

# Threads of one application. Trio's own are for name look-ups too, and for whatever else runs in the process: a view
# that hangs must not hold them; nor must functions that read hold up what the view applies.
_READS_AT_ONCE = 24
_COMMITS_AT_ONCE = 16


def _itself(state: T) -> T:
    return state


def check_complete(result: object) -> None:
    """See that what a function read is all there: a cursor or a generator would go on reading behind the snapshot.

    Raises:
        TypeError: it is one of these.
    """
    if inspect.isgenerator(result) or callable(getattr(result, "fetchall", None)):
        raise TypeError(
            f"the function returned {shown(result)}, which would read on when its snapshot is gone: return what it "
            "gives, such as db.execute(...).fetchall() or list(...)"
        )


def exhausted(work: AtWork) -> RuntimeError:
    """What to raise in place of a StopIteration, which no coroutine can: Python would not say of which function."""
    return RuntimeError(
        f"{work}, raised StopIteration: next() found an iterator that has nothing left; write next(ITERATOR, None) "
        "and look at what it gives"
    )


class ViewAccess:
    """Reads from a view and commits to it."""

    def __init__(
        self,
        view: View[Any],
        rng: random.Random,
        instrument: Instrument | None,
        report: Callable[[Level, str], None],
    ) -> None:
        self._view = view
        self._rng = rng
        self._instrument = instrument
        self._report = report
        self._reads, self._commits = trio.CapacityLimiter(_READS_AT_ONCE), trio.CapacityLimiter(_COMMITS_AT_ONCE)
        self.works = Works(view, report)

    async def read(self, part: Part, function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
        answer: tuple[Any, int]
        if not inspect.iscoroutinefunction(function):
            answer = await self._in_view(part, self._view.read, part.partition, function, args)
            check_complete(answer[0])
            return answer
        state, mark = self._state_of(part)
        with self._awaited(part, function):
            return await function(state, *args), mark

    async def read_async(self, part: Part, call: Call) -> tuple[Any, int]:
        assert call.decide is not None
        state, mark = self._state_of(part)
        entry = None if call.key is None else call.key.find(state)
        if entry is not None:
            return entry, mark
        with self._awaited(part, call.run):
            return await call.decide(state, *call.args), mark

    def _state_of(self, part: Part) -> tuple[Any, int]:
        """For a function that awaits.

        The mark is that of the start: what it sees later is newer, which can only cause a conflict.
        """
        if self._view.threaded:
            raise TypeError("decide must be a plain function with this view: it runs in a database transaction")
        return self._view.read(part.partition, _itself, ())

    async def patiently(self, part: Part, method: Callable[..., Any], *args: Any) -> Any:
        """Call again, after pauses that grow, while the view says that this may help."""
        tries = ViewTries(self._rng)
        while True:
            try:
                answer = await (
                    method(*args) if inspect.iscoroutinefunction(method) else self._in_view(part, method, *args)
                )
            except Exception as error:
                pause = tries.failed(transient=self._view.is_transient(error))
                if pause is None:
                    raise
                self._is_down(part, error)
            else:
                if tries.count:
                    self._is_up(part)
                return answer
            await trio.sleep(pause)

    async def _in_view(self, part: Part, method: Callable[..., Any], *args: Any) -> Any:
        if self._view.threaded:
            places = self._commits if method == self._view.commit else self._reads
            return await trio.to_thread.run_sync(self._in_thread, part, method, args, limiter=places)
        await trio.lowlevel.checkpoint_if_cancelled()
        with self.works.doing(part.partition, method, args) as work:
            try:
                return method(*args)
            except StopIteration as error:
                raise exhausted(work) from error

    def _in_thread(self, part: Part, method: Callable[..., T], args: tuple[Any, ...]) -> T:
        with self.works.doing(part.partition, method, args) as work:
            enter(work)
            try:
                return method(*args)
            except StopIteration as error:
                raise exhausted(work) from error

    def _awaited(self, part: Part, function: Callable[..., Any]) -> AtWork:
        """Around a function that is awaited, outside of the view."""
        return self.works.doing(part.partition, self._view.read, (part.partition, function))

    async def apply(self, part: Part, batch: Batch, tell: Tell) -> None:
        """Do with a batch what the machine says, until it wants the next one.

        Raises:
            ApplyFailedError: a transaction of the batch cannot be applied.
        """
        tell(part, BatchArrived(batch.first_id, batch.last_id))
        while True:
            match await part.next_for_view():
                case Commit(last_id):
                    tell(part, await self._commit(part, batch, last_id))
                case Poisoned():
                    assert part.failure is not None
                    raise part.failure
                case TakeNext():
                    return

    async def _commit(self, part: Part, batch: Batch, last_id: int) -> Applied | ApplyFailed | ViewDown:
        """Have the view apply a batch, up to a transaction."""
        if last_id < batch.last_id:
            batch = Batch(batch.partition, tuple(each for each in batch if each.id <= last_id))
        began = trio.current_time()
        try:
            mark = await self._in_view(part, self._view.commit, batch)
        except ApplyError as error:
            part.poison = error.__cause__
            part.down = f"transaction {error.transaction.id} cannot be applied: {error.__cause__!r}"
            return ApplyFailed(error.transaction.id)
        except Exception as error:
            if not self._view.is_transient(error):
                raise
            self._is_down(part, error)
            return ViewDown()
        self._is_up(part)
        if self._instrument is not None:
            self._instrument.applied(part.partition, len(batch), trio.current_time() - began)
        return Applied(mark)

    def _is_down(self, part: Part, error: Exception) -> None:
        if part.down is None:
            text = f"the view cannot be reached, and is tried again until it can: {error} ({named(self._view)})"
            self._report(Level.WARNING, f"partition {part.partition}: {text}")
        part.down = str(error)

    def _is_up(self, part: Part) -> None:
        if part.down is not None:
            self._report(Level.INFO, f"partition {part.partition}: the view can be reached again ({named(self._view)})")
        part.down = None

"""Submits on their way: what each asks for, what it waits for, and deciding several of them in one snapshot."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import attrs
import trio

from waltz_core.base.ids import ReqId
from waltz_core.base.lock import key_lock
from waltz_core.client.columns import RowLocks
from waltz_core.client.keys import KeyEntry, check_key, request_hash
from waltz_core.client.submit_calls import Effect
from waltz_trio.client.codecs import Raw
from waltz_trio.client.values import Append, Key, Transaction
from waltz_trio.client.views import KeyedView, Keys

if TYPE_CHECKING:
    from waltz_trio.client.pending import Pending

_RAW = Raw()
_NO_ID = ReqId(bytes(16))


class EscapedError(Exception):
    """`decide` raised what is no `Exception`, such as SystemExit; `__cause__` is it, and is for its caller alone."""


class KeyOfCall:
    """The key of a submit, and the view that knows who carries it."""

    __slots__ = ("_keys", "_partition", "_view", "hashed", "key")

    def __init__(self, view: KeyedView[Any], keys: Keys, partition: int, key: Key) -> None:
        self._view, self._keys, self._partition = view, keys, partition
        self.key = check_key(key.key)
        self.hashed = request_hash(key.request)

    def find(self, state: Any) -> KeyEntry | None:
        """Who carries it, in a snapshot."""
        return self._view.find_key(state, self._partition, self.key)

    def carried_by(self, append: Append, payload: bytes) -> Append:
        """The append with a lock on the key, if views will find the key in it.

        Raises:
            ValueError: they will not, or another request.
        """
        named = self._keys.of(Transaction(self._partition, -1, append.header, _NO_ID, payload))
        if named is None or named[0] != self.key:
            what = "no key" if named is None else f"key {named[0]!r}"
            raise ValueError(
                f"submit has key {self.key!r}, and key_of finds {what} in the append that decide made: put the key "
                "into the payload, and let key_of return Key(KEY, REQUEST)"
            )
        if named[1] != self.hashed:
            raise ValueError(
                f"submit has key {self.key!r}, and key_of finds another request beside it in the append that decide "
                "made. The request is what tells two requests apart: by default the arguments of submit, in their "
                "order, which key_of returns from the payload as Key(KEY, (ARGUMENT, ...)); or name it: "
                "submit(..., key=Key(KEY, REQUEST))"
            )
        return attrs.evolve(append, value=payload, codec=_RAW, write=(*append.write, key_lock(self.key)))


class Waiter:
    """Lets one task wait for some calls at once: all have ended, or one has failed."""

    __slots__ = ("_task", "error", "left")

    def __init__(self) -> None:
        self.left = 0  # calls that have not ended; the last one that does wakes it
        self.error: BaseException | None = None  # what `decide` or the view raised
        self._task: trio.lowlevel.Task | None = None  # that waits; an event would cost more than the wait

    def failed(self, error: Exception) -> None:
        """One of them got an exception, which is for the caller."""
        if self.error is None:
            self.error = error.__cause__ if isinstance(error, EscapedError) else error
        self.wake()

    def wake(self) -> None:
        """Something is there."""
        task, self._task = self._task, None
        if task is not None and task.custom_sleep_data is self:  # else it was cancelled, or woken already
            trio.lowlevel.reschedule(task)

    def parked(self) -> Awaitable[None]:
        """Sleep until it is woken; awaited at once, by a task that sees nothing yet."""
        self._task = task = trio.lowlevel.current_task()
        task.custom_sleep_data = self
        # A coroutine of our own around it would live as long as the wait.
        return trio.lowlevel.wait_task_rescheduled(_cancelled)  # noqa: ASYNC105 - awaited by whoever called

    async def wait(self) -> None:
        """Until there is something to look at; raises the exception."""
        if self.left and self.error is None:
            await self.parked()
        if self.error is not None:
            raise self.error


def _cancelled(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.SUCCEEDED


def _is_async(decide: Callable[..., Any] | None) -> bool:
    """As `inspect` says, at once for an ordinary function."""
    if type(decide) is FunctionType and not decide.__dict__:
        return bool(decide.__code__.co_flags & inspect.CO_COROUTINE)
    return inspect.iscoroutinefunction(decide)


class Call(Waiter):
    """What somebody waits for of the submitter: alone, or with other calls by one waiter for all of them.

    Each lives as long as its submit, and there may be thousands: the fewer objects they are made of, the less Python's
    garbage collector has to look at again and again.
    """

    __slots__ = (
        "args",
        "awaits",
        "based_on",
        "decide",
        "effect",
        "ended",
        "failure",
        "key",
        "pending",
        "result",
        "row",
        "timing",
        "together",
    )

    def __init__(
        self,
        decide: Callable[..., Any] | None = None,
        args: tuple[Any, ...] = (),
        key: KeyOfCall | None = None,
        together: Waiter | None = None,
    ) -> None:
        # As `Waiter` does, of which a submit would feel the call.
        self.left, self.error, self._task = 1, None, None
        if together is not None:
            together.left += 1
        self.together, self.decide, self.args, self.key = together, decide, args, key
        self.awaits = _is_async(decide)  # its caller runs it
        self.effect: Effect | None = None  # what the submitter said last, to whoever calls
        self.ended = False  # the submitter has forgotten it
        self.failure: Exception | None = None  # why the last try came to nothing
        self.row: tuple[bytes, int, RowLocks] | None = None  # an append that is ready to be sent
        self.based_on = -1  # the state that it was decided on
        self.pending: Pending | None = None  # of the last append that was sent
        self.result: object = None  # of the last append, for the receipt
        self.timing: object = None  # what the instrument knows it by

    @property
    def waiter(self) -> Waiter:
        """Who waits for it."""
        return self if self.together is None else self.together

    def end(self, effect: Effect) -> None:
        """What the submitter says last."""
        self.effect = effect
        self.ended = True
        waiter = self if self.together is None else self.together
        waiter.left -= 1
        if not waiter.left:
            waiter.wake()

    def run(self, state: Any) -> Any:
        """Who carries the key, or what `decide` says."""
        assert self.decide is not None
        entry = None if self.key is None else self.key.find(state)
        try:
            return entry or self.decide(state, *self.args)
        except (Exception, trio.Cancelled):
            raise
        except BaseException as error:  # in the task that decides for everybody it would end them all
            raise EscapedError from error


class Together:
    """Some calls that are decided in one snapshot."""

    __slots__ = ("_calls", "current")

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self.current = calls[0]

    def run(self, state: Any) -> list[Any]:
        """What the calls say, up to the first one that fails."""
        results: list[Any] = []
        for call in self._calls:
            self.current = call
            try:
                results.append(call.run(state))
            except Exception:  # it is decided alone, so that the view sees the exception and knows what it means
                break
        return results


class Submission:
    """A handle to a `submit` whose caller may not wait for its end: `submit(..., submission=handle)`."""

    __slots__ = ("_call",)

    def __init__(self) -> None:
        self._call: Call | None = None

    @property
    def pending(self) -> Pending | None:
        """The last append that was sent; None: nothing was, and after a cancellation nothing will be."""
        return None if self._call is None else self._call.pending

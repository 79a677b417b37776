"""Views: application state kept up to date with the log, data and mark in one transaction."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from waltz_core.base.errors import ViewRegressedError
from waltz_core.base.log import MARKER_HEADER
from waltz_trio.arguments import mark as mark_of
from waltz_trio.arguments import whole
from waltz_trio.states import Journal, can_be_wrapped, wrapped
from waltz_trio.values import Batch, Transaction

S = TypeVar("S")


class View(Protocol):
    """State and mark of any number of partitions.

    All methods are synchronous; they run in a worker thread if `threaded`. `commit` and `read` may run
    at the same time, `commit` never twice at once for one partition.
    """

    threaded: bool

    def load_mark(self, partition: int) -> int:
        """The stored mark, -1 if there is none yet. Called once per partition, before anything else."""

    def commit(self, batch: Batch) -> int:
        """Apply a batch and move the mark from `first_id` - 1 to `last_id`, all or nothing; returns the stored mark.

        Another process may have applied a part of it already, or all. Transactions with the header
        `waltz_core.base.log.MARKER_HEADER` only move the mark: the pipeline's writers make them for themselves.

        Raises:
            ApplyError: a transaction cannot be applied.
            ViewRegressedError: the stored mark is below what this process has applied.
        """

    def read(self, partition: int, decide: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
        """`decide(state, *args)` and the mark of the state that it saw."""

    def is_transient(self, error: Exception) -> bool:
        """Trying again may help: a connection is gone, a lock is taken."""

    def close(self) -> None:
        """Give up what is open."""


class ApplyError(Exception):
    """A transaction cannot be applied; `__cause__` says why. Raised by views, seen as ApplyFailedError."""

    def __init__(self, transaction: Transaction) -> None:
        super().__init__(f"applying {transaction!r} failed")
        self.transaction = transaction


def check_apply(apply: Callable[..., Any]) -> None:
    """Refuse what would be called and do nothing.

    Raises:
        TypeError: `apply` is `async def` or a generator function.
    """
    if not callable(apply):
        raise TypeError(f"apply must be a function of a transaction and the state, not {apply!r}")
    inner = apply
    while isinstance(inner, functools.partial):
        inner = inner.func
    for function in (inner, getattr(type(inner), "__call__", None)):  # noqa: B004 - of the class, not whether
        if (
            inspect.iscoroutinefunction(function)
            or inspect.isasyncgenfunction(function)
            or inspect.isgeneratorfunction(function)
        ):
            raise TypeError(
                f"apply must be a plain function, and {name_of(apply)} is `async def` or a generator: "
                "calling it would change nothing. Views are changed inside one transaction, without awaiting"
            )


def call_apply(apply: Callable[..., Any], transaction: Transaction, state: Any) -> None:
    """Call it, and refuse a coroutine that it returns."""
    result = apply(transaction, state)
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(f"apply returned {result!r}, which nobody awaits: it must be a plain function")


def name_of(apply: Callable[..., Any]) -> str:
    """Module and name of a function, the same whether its module is run or imported."""
    while isinstance(apply, functools.partial):
        apply = apply.func
    named = apply if hasattr(apply, "__qualname__") else type(apply)
    module = named.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        module = spec.name if spec is not None else Path(getattr(main, "__file__", None) or "__main__").stem
    return f"{module}.{named.__qualname__}"


class DictView(Generic[S]):
    """State in memory: `apply(txn, state)` changes `state`, a dict unless given.

    Nothing is kept across restarts, so every partition is read from its start. `decide` functions get the state
    read-only. Where the state is a dict, a list or a set, a transaction that cannot be applied changes nothing of it.
    """

    threaded = False

    def __init__(self, apply: Callable[[Transaction, Any], None], state: Any = None) -> None:
        check_apply(apply)
        self.state: Any = {} if state is None else state
        self.marks: dict[int, int] = {}
        self._apply = apply
        self._torn: ApplyError | None = None  # what left the state half changed

    def seed(self, partition: int, mark: int) -> None:
        """Begin behind `mark`; the state must be that of this mark."""
        self.marks[whole(partition, "a partition")] = mark_of(mark, "mark")

    def load_mark(self, partition: int) -> int:
        """-1, or the seeded mark."""
        return self.marks.setdefault(partition, -1)

    def commit(self, batch: Batch) -> int:
        """Apply one transaction after the other, each as a whole or not at all; errors as `View.commit`."""
        mark = self.marks[batch.partition]
        journal = Journal()
        state = wrapped(self.state, journal)
        for transaction in batch:
            if transaction.id <= mark:
                continue
            if transaction.id != mark + 1:
                raise ViewRegressedError(batch.partition, mark, transaction.id - 1)
            self._check_whole()
            if transaction.header != MARKER_HEADER:
                self._apply_one(transaction, state, journal)
            mark = self.marks[batch.partition] = transaction.id
        return mark

    def read(self, partition: int, decide: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
        """`decide(state, *args)`; a dict, a list or a set cannot be changed by it."""
        self._check_whole()
        return decide(wrapped(self.state, None), *args), self.marks[partition]

    def is_transient(self, error: Exception) -> bool:
        """Never: there is nothing to wait for."""
        return False

    def close(self) -> None:
        """Nothing to give up."""

    def _apply_one(self, transaction: Transaction, state: Any, journal: Journal) -> None:
        try:
            call_apply(self._apply, transaction, state)
        except BaseException as error:
            failed = ApplyError(transaction)
            failed.__cause__ = error
            if not journal.take_back() or not can_be_wrapped(self.state):
                self._torn = failed
            if isinstance(error, Exception):
                raise failed from error
            raise
        journal.forget()

    def _check_whole(self) -> None:
        if self._torn is not None:
            error = ApplyError(self._torn.transaction)
            error.add_note(
                f"the state is half changed, and cannot be put back: {type(self.state).__name__} is no dict, list or "
                "set, or holds what cannot be copied"
            )
            raise error from self._torn.__cause__

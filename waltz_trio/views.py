"""Views: application state kept up to date with the log, data and mark in one transaction."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Protocol, TypeVar

from waltz_core.base.errors import ConfigError, ViewRegressedError
from waltz_core.base.log import MARKER_HEADER
from waltz_core.client.keys import KeyEntry, KeyTable, check_key, request_hash
from waltz_trio.arguments import mark as mark_of
from waltz_trio.arguments import whole
from waltz_trio.codecs import shown
from waltz_trio.states import Journal, can_be_wrapped, wrapped
from waltz_trio.values import Batch, Key, Transaction

S = TypeVar("S")
if TYPE_CHECKING:
    import typing_extensions  # type checkers know it; nothing needs it when a program runs

    S_co = typing_extensions.TypeVar("S_co", covariant=True, default=Any)  # a bare `View` is one of any state
else:
    S_co = TypeVar("S_co", covariant=True)


class View(Protocol[S_co]):
    """State and mark of any number of partitions; `S_co` is what `decide` functions get.

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

    def read(
        self,
        partition: int,
        decide: Callable[[S_co], Any] | Callable[Concatenate[S_co, ...], Any],
        args: tuple[Any, ...],
    ) -> tuple[Any, int]:
        """`decide(state, *args)` and the mark of the state that it saw."""

    def is_transient(self, error: Exception) -> bool:
        """Trying again may help: a connection is gone, a lock is taken."""

    def close(self) -> None:
        """Give up what is open."""


class KeyedView(View[S_co], Protocol[S_co]):
    """A view that remembers idempotency keys.

    `commit` stores the key of each transaction (`keys.of`), in the transaction that applies it; the first of several
    with one key counts, while it is in the window. `waltz_core.client.keys.KeyTable` is the same rule in memory.
    """

    keys: Keys | None
    """Where keys are; None: this view remembers none."""

    def find_key(self, state: Any, partition: int, key: str) -> KeyEntry | None:
        """The transaction that carries a key, in the snapshot that `read` has handed to `decide`."""


class Keys:
    """Where a view finds idempotency keys, and how long it remembers them.

    Args:
        key_of: given a transaction, its `Key`; None = it has none. Called for every transaction, before `apply`.
        window: a key is remembered until this many transactions have followed in its partition. Each costs a row
            of about 100 bytes.
    """

    def __init__(self, key_of: Callable[[Transaction], Key | None], *, window: int = 1_000_000) -> None:
        check_plain(key_of, "key_of", "a transaction")
        self.window = whole(window, "window")
        if self.window < 1:
            raise ValueError(f"a window is at least 1 transaction, not {window}")
        self._key_of = key_of

    def of(self, transaction: Transaction) -> tuple[str, bytes] | None:
        """Key and hash of the request of a transaction.

        Raises:
            TypeError: `key_of` gives no `Key`, or its request has no lasting form.
            ValueError: the key is empty or too long.
        """
        key = self._key_of(transaction)
        if key is None:
            return None
        if not isinstance(key, Key):
            raise TypeError(f"key_of gives a Key or None, found {shown(key)}; write return Key(KEY, REQUEST)")
        return check_key(key.key), request_hash(key.request)


class ApplyError(Exception):
    """A transaction cannot be applied; `__cause__` says why. Raised by views, seen as ApplyFailedError."""

    def __init__(self, transaction: Transaction) -> None:
        super().__init__(f"applying {transaction!r} failed")
        self.transaction = transaction


def check_apply(apply: Callable[..., Any]) -> None:
    """Refuse what would be called and do nothing; errors as `check_plain`."""
    check_plain(apply, "apply", "a transaction and the state")


def check_plain(function: Callable[..., Any], name: str, takes: str) -> None:
    """See that a function does its work when it is called.

    Raises:
        TypeError: it is `async def`, a generator function, or none at all.
    """
    if not callable(function):
        raise TypeError(f"{name} must be a function of {takes}, not {function!r}")
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    for code in (inner, getattr(type(inner), "__call__", None)):  # noqa: B004 - of the class, not whether
        if inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code) or inspect.isgeneratorfunction(code):
            raise TypeError(
                f"{name} must be a plain function, and {name_of(function)} is `async def` or a generator: "
                "calling it would change nothing. Views are changed inside one transaction, without awaiting"
            )


def checked_key(keys: Keys, transaction: Transaction) -> tuple[str, bytes] | None:
    """`Keys.of`, for a view that applies the transaction.

    Raises:
        ApplyError: it fails.
    """
    try:
        return keys.of(transaction)
    except Exception as error:
        raise ApplyError(transaction) from error


def check_seed(keys: Keys | None) -> None:
    """Refuse to seed a view that would not know the keys of what it is seeded with.

    Raises:
        ConfigError: it remembers keys.
    """
    if keys is not None:
        raise ConfigError(
            "a view with keys cannot be seeded: it would not know the keys of the transactions behind the seed, and a "
            "repeated submit could commit twice. Let it read the log from its start, or catch up from an archive"
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
    With `keys` it remembers idempotency keys.
    """

    threaded = False

    def __init__(
        self, apply: Callable[[Transaction, S], None], state: S | None = None, *, keys: Keys | None = None
    ) -> None:
        check_apply(apply)
        self.keys = keys
        self._tables: dict[int, KeyTable] = {}
        self.state: Any = {} if state is None else state
        self.marks: dict[int, int] = {}
        self._apply = apply
        self._torn: ApplyError | None = None  # what left the state half changed

    def seed(self, partition: int, mark: int) -> None:
        """Begin behind `mark`; the state must be that of this mark."""
        check_seed(self.keys)
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
            key = self._apply_one(transaction, state, journal) if transaction.header != MARKER_HEADER else None
            if self.keys is not None:
                self._table(batch.partition).apply(transaction.id, *(key or (None,)))
            mark = self.marks[batch.partition] = transaction.id
        return mark

    def read(
        self, partition: int, decide: Callable[Concatenate[S, ...], Any], args: tuple[Any, ...]
    ) -> tuple[Any, int]:
        """`decide(state, *args)`; a dict, a list or a set cannot be changed by it."""
        self._check_whole()
        return decide(wrapped(self.state, None), *args), self.marks[partition]

    def find_key(self, state: Any, partition: int, key: str) -> KeyEntry | None:
        """As `KeyedView.find_key`."""
        return self._table(partition).find(key, self.marks[partition])

    def is_transient(self, error: Exception) -> bool:
        """Never: there is nothing to wait for."""
        return False

    def close(self) -> None:
        """Nothing to give up."""

    def _table(self, partition: int) -> KeyTable:
        assert self.keys is not None
        table = self._tables.get(partition)
        if table is None:
            table = self._tables[partition] = KeyTable(self.keys.window)
        return table

    def _apply_one(self, transaction: Transaction, state: Any, journal: Journal) -> tuple[str, bytes] | None:
        """Apply it; gives its key."""
        key = None if self.keys is None else checked_key(self.keys, transaction)
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
        return key

    def _check_whole(self) -> None:
        if self._torn is not None:
            error = ApplyError(self._torn.transaction)
            error.add_note(
                f"the state is half changed, and cannot be put back: {type(self.state).__name__} is no dict, list or "
                "set, or holds what cannot be copied"
            )
            raise error from self._torn.__cause__

"""Views: application state kept up to date with the log, data and mark in one transaction."""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Protocol, TypeVar

from waltz_core.base.errors import ConfigError
from waltz_core.base.log import MARKER_HEADER
from waltz_core.client.keys import KeyEntry, check_key, request_hash
from waltz_trio.client.arguments import whole
from waltz_trio.client.shown import shown
from waltz_trio.client.values import Batch, Key, Transaction

_METHODS = ("load_mark", "commit", "read", "is_transient", "close")

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
            of about 300 bytes.
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


class TogetherError(Exception):
    """`apply_many` cannot apply several transactions; `__cause__` says why. `apply` may, one at a time."""

    def __init__(self, transactions: Sequence[Transaction]) -> None:
        super().__init__(f"applying {transactions[0]!r} to {transactions[-1].id} together failed")
        self.transactions = transactions


class ApplyError(Exception):
    """A transaction cannot be applied; `__cause__` says why. Raised by views, seen as ApplyFailedError."""

    def __init__(self, transaction: Transaction) -> None:
        super().__init__(f"applying {transaction!r} failed")
        self.transaction = transaction


_IN_ONE = "Views are changed inside one transaction, without awaiting"


def check_view(view: object) -> None:
    """See that a view is one, as far as its methods say.

    Raises:
        TypeError: it is a class, a function, or something without them.
    """
    line = "materialize(DictView(apply))"
    if isinstance(view, type):
        raise TypeError(
            f"expected a view, found the class {view.__name__}; make one of it: materialize({view.__name__}(...))"
        )
    missing = [name for name in _METHODS if not callable(getattr(view, name, None))]
    if missing:
        raise TypeError(
            f"expected a view, such as a SqliteView or DictView, found {shown(view)}, which has no {missing[0]}; write "
            f"{line}"
        )


def check_apply(apply: Callable[..., Any], apply_many: Callable[..., Any] | None = None) -> None:
    """Refuse what would be called and do nothing; errors as `check_plain`."""
    check_plain(apply, "apply", "a transaction and the state", count=2)
    if apply_many is not None:
        check_plain(apply_many, "apply_many", "transactions and the state", count=2)


def check_plain(
    function: Callable[..., Any],
    name: str,
    takes: str,
    why: str = "calling it would change nothing. " + _IN_ONE,
    *,
    count: int = 1,
) -> None:
    """See that a function does its work when it is called with `count` arguments, which are what it `takes`.

    Raises:
        TypeError: it is `async def`, a generator function, takes others, or is none at all.
    """
    if not callable(function):
        raise TypeError(f"{name} must be a function of {takes}, not {function!r}")
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    for code in (inner, getattr(type(inner), "__call__", None)):  # noqa: B004 - of the class, not whether
        if inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code) or inspect.isgeneratorfunction(code):
            raise TypeError(
                f"{name} must be a plain function, and {name_of(function)} is `async def` or a generator: {why}"
            )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # compiled code need not have one
    try:
        signature.bind(*[None] * count)
    except TypeError as error:
        raise TypeError(
            f"{name} is called with {takes}, and {name_of(function)}{signature} cannot be: {error}"
        ) from None


def checked_key(keys: Keys, transaction: Transaction) -> tuple[str, bytes] | None:
    """`Keys.of`, for a view that applies the transaction.

    Raises:
        ApplyError: it fails.
    """
    try:
        return keys.of(transaction)
    except Exception as error:
        raise ApplyError(transaction) from error


def check_keys(keys: object) -> None:
    """Check what a view was given to find keys with.

    Raises:
        TypeError: by something else than `Keys`.
    """
    if keys is not None and not isinstance(keys, Keys):
        raise TypeError(f"keys: expected Keys, found {shown(keys)}; write keys=Keys(key_of)")


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


def call_apply(apply: Callable[..., Any], transactions: Transaction | Sequence[Transaction], state: Any) -> None:
    """Call it, or an `apply_many`, and refuse a coroutine that it returns."""
    result = apply(transactions, state)
    if result is not None and inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(f"apply returned {result!r}, which nobody awaits: it must be a plain function")


def to_apply(batch: Batch, mark: int) -> list[Transaction]:
    """What is behind a mark and the application's own."""
    return [each for each in batch if each.id > mark and each.header != MARKER_HEADER]


def warn_together(error: TogetherError) -> None:
    """`apply_many` failed where `apply` did not: that costs time with every batch, and says that they differ."""
    first, last = error.transactions[0], error.transactions[-1]
    warnings.warn(
        f"partition {first.partition}: apply_many failed on transactions {first.id} to {last.id} with "
        f"{error.__cause__!r}, and apply took them one at a time. Both must do the same",
        RuntimeWarning,
        stacklevel=3,
    )


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

"""What callers hand in: each error says what was expected, what was found, and the line that does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import index
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

from waltz_core.base.lock import Lock
from waltz_core.client.retry import Retry
from waltz_trio.client.codecs import Codecs, refuse_class_as_codec
from waltz_trio.client.shown import shown

T = TypeVar("T")

_MANY = "submit_many(withdraw, [(7, 30), (8, 30)], partition=3)"
APPENDS = ("appends", "send_many(3, [Append(...), Append(...)])")
EXPECTED = ("lists of locks", 'expects=[[("account", 7)], [("account", 8)]]')
KEYS = ("keys", "keys=[KEY, KEY]")
_INT_64 = range(-(1 << 63), 1 << 63)
_MARK_MAX = (1 << 63) - 1
_LINE = '[("account", 7)]'


def whole(value: Any, what: str) -> int:
    """A whole number of any type: int, an IntEnum, one of numpy's.

    Raises:
        TypeError: it is something else.
    """
    if type(value) is int:
        return value
    try:
        if type(value) is not bool:
            return index(value)
    except TypeError:
        pass
    raise TypeError(f"{what} is a whole number, found {shown(value)}")


def flag(value: Any, what: str) -> bool:
    """True or False: anything else would count as one of them, and "no" as True.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{what} is True or False, found {shown(value)}")
    return value


def mark(value: Any, what: str) -> int:
    """A mark: a transaction id, or -1 for the start of a log.

    Raises:
        TypeError: no whole number.
        ValueError: less than -1, or more than 63 bits hold.
    """
    number = whole(value, what)
    if number < -1:
        raise ValueError(f"{what}: a mark is at least -1, not {number}")
    if number > _MARK_MAX:
        raise ValueError(f"{what}: a mark is at most 2**63 - 1, not {number}")
    return number


def at_least_1(value: Any, what: str) -> int:
    """A whole number that is a limit.

    Raises:
        TypeError: no whole number.
        ValueError: less than 1.
    """
    number = whole(value, what)
    if number < 1:
        raise ValueError(f"{what} is at least 1, not {number}")
    return number


def check_decide(decide: object) -> None:
    """See that what decides can be called.

    Raises:
        TypeError: it cannot, such as the outcome of a call.
    """
    if not callable(decide):
        raise TypeError(
            f"expected a function that gets the state and decides, found {shown(decide)}; name it and hand its "
            "arguments on: submit(withdraw, 7, 30, partition=3), not submit(withdraw(...))"
        )


def several(values: Any, kind: tuple[str, str]) -> Iterable[Any]:
    """What can be gone through; `kind` is what is in it, and how it is written.

    Raises:
        TypeError: it is no list of anything; text and bytes would be one of their characters.
    """
    if isinstance(values, str | bytes | bytearray) or not isinstance(values, Iterable):
        what, line = kind
        raise TypeError(f"expected a list of {what}, found {shown(values)}; write {line}")
    return values


def listed(values: Any, kind: tuple[str, str]) -> list[Any]:
    """All of `several`."""
    return list(several(values, kind))


def kept(locks: Iterable[T]) -> Iterable[T]:
    """The same, with nothing left of it that would run in another thread."""
    return tuple(locks) if isinstance(locks, Iterator) else locks


def rows_of(arguments: Iterable[Any]) -> list[tuple[Any, ...]]:
    """What `submit_many` hands to `decide`, for each submit.

    Raises:
        TypeError: no list, or something in it is no tuple of arguments.
    """
    rows = []
    for row in several(arguments, ("tuples of arguments", _MANY)):
        if isinstance(row, str | bytes) or not isinstance(row, Iterable):
            raise TypeError(
                f"expected a tuple of what is handed to decide, for each submit, found {shown(row)}; write {_MANY}, "
                "and [(7,), (8,)] for one argument each"
            )
        rows.append(tuple(row))
    return rows


class Rows(NamedTuple):
    """What `submit_many` was given, iterated: generators of it run in the thread of their caller, not in Trio's."""

    arguments: list[tuple[Any, ...]]
    keys: list[Any] | None
    expects: list[Iterable[Any]] | None

    @classmethod
    def of(cls, arguments: Iterable[Any], keys: Iterable[Any] | None, expects: Iterable[Any] | None) -> Rows:
        """See `rows_of` and `listed`, which say what they refuse."""
        return cls(
            rows_of(arguments),
            None if keys is None else listed(keys, KEYS),
            None if expects is None else [kept(locks) for locks in listed(expects, EXPECTED)],
        )

    def call(
        self,
        submit_many: Callable[..., T],
        decide: Callable[..., Any],
        partition: int,
        *,
        until: Literal["committed", "applied"],
        decline: Literal["confirmed", "local"],
        retry: Retry,
    ) -> Callable[[], T]:
        """`submit_many` with these rows, to be called in Trio's thread."""
        return partial(
            submit_many,
            decide,
            self.arguments,
            partition=partition,
            until=until,
            decline=decline,
            retry=retry,
            keys=self.keys,
            expects=self.expects,
        )


def not_an_append(value: object) -> TypeError:
    """What to raise where an `Append` belongs and something else was handed in."""
    codec = "" if isinstance(value, bytes) else ", Utf8()" if isinstance(value, str) else ", Json()"
    return TypeError(f"expected an Append, found {shown(value)}; write Append(VALUE{codec}, write={_LINE})")


def not_awaited(count: int) -> RuntimeError:
    """What to raise at the end of a client for calls that were made and not awaited."""
    return RuntimeError(
        f"{count} calls of append, send or submit, or of their _many, were not awaited, and appended nothing; write: "
        "await client.append(...), await app.submit(...)"
    )


def check_codec(codec: object, *, reads: bool = False) -> None:
    """See that a codec is one.

    Raises:
        TypeError: it is a class, a `Codecs` where something is written, or has not both methods.
    """
    if isinstance(codec, Codecs):
        if not reads:
            raise TypeError("Codecs chooses by header when a payload is read; an Append names one codec and its header")
    else:
        refuse_class_as_codec(codec)


def as_payload(data: Any, codec: object) -> bytes:
    """What `dumps` of a codec gave, as bytes.

    Raises:
        TypeError: it is not bytes-like.
    """
    try:
        return bytes(memoryview(data))
    except TypeError:
        raise TypeError(f"dumps of {codec!r} must give bytes, found {shown(data)}") from None


def explain_locks(locks: Any, error: Exception) -> NoReturn:
    """Raise what is wrong with locks that could not be hashed; `error` if nothing is."""
    if isinstance(locks, Lock | str) or not isinstance(locks, Iterable) or _is_lock(locks):
        raise TypeError(f"expected a list of locks, such as {_LINE}, found {shown(locks)}") from None
    if isinstance(locks, list | tuple | set | frozenset | dict):  # anything else may be used up
        for lock in locks:
            _check_lock(lock)
    if isinstance(error, TypeError | ValueError | AttributeError):
        raise TypeError(f"expected locks, each a Lock or (name, id), such as {_LINE}: {error}") from error
    raise error


def _is_lock(value: object) -> bool:
    """`("account", 7)` itself, where a list of such is expected."""
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and not _pairs(value)


def _pairs(value: tuple[Any, ...]) -> bool:
    return all(isinstance(part, Lock | tuple) for part in value)


def _check_lock(lock: Any) -> None:
    pair = (lock.name, lock.id) if isinstance(lock, Lock) else lock
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise TypeError(f"a lock is a Lock or (name, id), such as {_LINE[1:-1]}, found {shown(lock)}") from None
    name, number = pair
    if not isinstance(name, str):
        raise TypeError(f"the name of a lock is text, found {shown(name)} in {lock!r}") from None
    check_lock_id(number, lock)


def check_lock_id(number: Any, lock: object) -> int:
    """The id of a lock as an int.

    Raises:
        TypeError: no whole number.
        ValueError: it does not fit 64 bits.
    """
    try:
        lock_id = index(number)
    except TypeError:
        raise TypeError(f"the id of a lock is a whole number, found {shown(number)} in {lock!r}") from None
    if lock_id not in _INT_64:
        raise ValueError(f"the id of a lock has 64 bits, from -2**63 to 2**63 - 1, found {shown(number)} in {lock!r}")
    return lock_id

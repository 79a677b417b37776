"""Idempotency keys: which transaction carries a key, for how long that is remembered, and what counts as one request.

A key names a request of whoever calls: an order, a payment. The application puts it into the payload of the append, and
a view remembers, in the transaction that applies it, which transaction carries which key. A repeated submit finds it in
the snapshot that it would decide on, and appends nothing.

    no transaction carries the key in (mark - window, mark]  ──► decide; the append takes a WRITE lock on the key
    one does, for the same request                           ──► its receipt
    one does, for another request                            ──► an error

Two submits of one key that both see no transaction both append, based on the marks of their snapshots. The one that
commits first is behind the other's mark, so the lock refuses the other, which decides again and finds the first.

Everything follows from the log: a view that is built anew remembers the same keys. Of several transactions with one key
the first counts, as long as it is in the window.
"""

from __future__ import annotations

import datetime
import enum
import hashlib
import operator
import uuid
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, cast

import attrs

from waltz_core.base.record import record

KEY_SIZE_MAX = 255
"""Bytes of a key in UTF-8: what every database takes as a primary key."""


_DIGITS_WRITTEN = 4_300  # of a whole number: what Python writes
_DIGITS_CONVERTED = 20_000  # of a decimal; one with more, zeros at its end aside, is no ratio of such numbers
_TOO_LONG = f"a request holds numbers that can be written with {_DIGITS_WRITTEN} digits, as fractions too"


@record
class KeyEntry:
    """The transaction that carries a key."""

    transaction_id: int
    request_hash: bytes


def check_key(key: object) -> str:
    """See that a key is one.

    Raises:
        TypeError: it is no text.
        ValueError: it is empty, too long, or cannot be written as UTF-8.
    """
    if not isinstance(key, str):
        raise TypeError(f"a key is text, found {key!r}")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise ValueError(f"a key is text that UTF-8 can carry, found {key!r}") from None
    if "\0" in key:
        raise ValueError(f"a key holds no NUL, which not every database takes, found {key!r}")
    if not 1 <= size <= KEY_SIZE_MAX:
        raise ValueError(f"a key has 1 to {KEY_SIZE_MAX} bytes, found {size}")
    return key


def is_kept(transaction_id: int, mark: int, window: int) -> bool:
    """Whether a view at `mark` remembers the key of a transaction."""
    return transaction_id > mark - window


class KeyTable:
    """The keys of one partition, in memory."""

    __slots__ = ("_entries", "window")

    def __init__(self, window: int) -> None:
        assert window > 0
        self.window = window
        self._entries: dict[str, KeyEntry] = {}  # in the order of their transactions

    def __len__(self) -> int:
        return len(self._entries)

    def apply(self, transaction_id: int, key: str | None, request_hash: bytes = b"") -> None:
        """The view applies a transaction, which carries a key or none."""
        mark = transaction_id - 1
        while self._entries:
            oldest = next(iter(self._entries))
            if is_kept(self._entries[oldest].transaction_id, mark, self.window):
                break
            del self._entries[oldest]
        if key is not None:
            self._entries.setdefault(key, KeyEntry(transaction_id, request_hash))

    def find(self, key: str, mark: int) -> KeyEntry | None:
        """Who carries a key, for a view at `mark`."""
        entry = self._entries.get(key)
        return entry if entry is not None and is_kept(entry.transaction_id, mark, self.window) else None


# ---- what counts as one request ----------------------------------------------------------------------


def request_hash(request: object) -> bytes:
    """SHA-256 of a request; equal requests have equal hashes, in every process and release.

    Equal as in Python: 30 and 30.0 are, and so are a list and a tuple of equal items here, because most codecs make one
    of the other. An attrs class or a dataclass counts as the dict of its fields, an enum as its value.

    Raises:
        TypeError: something in it has no lasting form.
        ValueError: a number in it is too long.
    """
    digest = hashlib.sha256()
    _feed(request, digest.update)
    return digest.digest()


def _feed(value: Any, update: Any) -> None:
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None:
        update(b"n;")
    elif isinstance(value, str):
        _sized(b"s", value.encode(), update)
    elif isinstance(value, bytes | bytearray | memoryview):
        _sized(b"b", bytes(value), update)
    elif isinstance(value, float | Decimal):
        update(_number(*_ratio(value)))
    elif hasattr(type(value), "__index__"):
        update(_number(operator.index(value), 1))
    elif isinstance(value, list | tuple):
        update(b"l%d:" % len(value))
        for item in value:
            _feed(item, update)
    elif isinstance(value, dict):
        _feed_pairs(value.items(), update)
    elif isinstance(value, datetime.date | datetime.time | uuid.UUID):
        _sized(b"t", _moment(value).encode(), update)
    else:
        _feed_pairs(_fields(value), update)


def _sized(tag: bytes, data: bytes, update: Any) -> None:
    update(b"%s%d:" % (tag, len(data)))
    update(data)


def _number(numerator: int, denominator: int) -> bytes:
    try:
        return b"i%d/%d;" % (numerator, denominator)
    except ValueError:
        raise ValueError(_TOO_LONG) from None


def _check_size(value: Decimal) -> None:
    """Refuse what would be a ratio of numbers too long to write: making it can take hours, and all the memory."""
    if not value or not value.is_finite():
        return
    digits = value.as_tuple().digits
    many = len(digits) > _DIGITS_CONVERTED and len(bytes(digits).rstrip(b"\0")) > _DIGITS_CONVERTED
    if many or abs(value.adjusted()) > _DIGITS_WRITTEN:
        raise ValueError(_TOO_LONG)


def _ratio(value: float | Decimal) -> tuple[int, int]:
    if isinstance(value, Decimal):
        _check_size(value)
    try:
        return value.as_integer_ratio()
    except (OverflowError, ValueError):
        raise TypeError(f"a request cannot hold {value!r}, which equals nothing") from None


def _moment(value: datetime.date | datetime.time | uuid.UUID) -> str:
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = value.astimezone(datetime.UTC)
    return f"{type(value).__name__} {value.isoformat()}"


def _feed_pairs(pairs: Iterable[tuple[object, object]], update: Any) -> None:
    encoded = []
    for key, value in pairs:
        parts: list[bytes] = []
        _feed(key, parts.append)
        _feed(value, parts.append)
        encoded.append(b"".join(parts))
    update(b"d%d:" % len(encoded))
    for pair in sorted(encoded):
        update(pair)


def _fields(value: object) -> list[tuple[object, object]]:
    cls = type(value)
    if attrs.has(cls):
        names = [field.name for field in attrs.fields(cls)]
    elif hasattr(cls, "__dataclass_fields__"):
        names = list(cast(Any, cls).__dataclass_fields__)
    else:
        raise TypeError(
            f"a request is made of None, numbers, text, bytes, times, UUIDs, enums, lists, tuples, dicts, attrs "
            f"classes and dataclasses, found {cls.__name__}; name what it is: key=Key(KEY, REQUEST)"
        )
    return [(name, getattr(value, name)) for name in names]

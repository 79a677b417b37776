"""Events, queries and conditions, as the specification at dcb.events has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import attrs

from waltz_core.base.record import record
from waltz_trio import Codec, Json, Key, Keys, Transaction

HEADER = 0x444342  # "DCB": of transactions that hold events
EVENTS_MAX = 1024
"""Events of one append at most: a position is the id of its transaction times this, plus the place in it."""


def _texts(texts: Iterable[str], what: str) -> frozenset[str]:
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        example = [texts] if isinstance(texts, str) else ["..."]
        raise TypeError(f"{what} are a collection of texts, found {texts!r}; write {example}")
    whole = frozenset(texts)
    for text in whole:
        if not isinstance(text, str) or not text:
            raise TypeError(f"{what} are texts that are not empty, found {text!r}")
        _check_unicode(text, what)
    return whole


def _check_unicode(text: str, what: str) -> None:
    """Half of a surrogate pair has no bytes in UTF-8, in which events travel."""
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{what}: expected Unicode, found half of a surrogate pair in {text!r}")


def _tags(tags: Iterable[str]) -> frozenset[str]:
    return _texts(tags, "tags")


def _types(types: Iterable[str]) -> frozenset[str]:
    return _texts(types, "types")


def _type(value: str) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"the type of an event is a text that is not empty, found {value!r}")
    _check_unicode(value, "type")
    return value


def _data(value: bytes) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"the data of an event are bytes, found {value!r:.100}; write TEXT.encode(), or JSON as bytes")
    return value


ITEMS_MAX = 500
TAGS_MAX = 50
TEXTS_MAX = 5000
"""What a query may ask for: items, tags of one of them, types and tags in all. Every database takes as much."""
POSITION_MAX = (1 << 63) - 1
"""Whole numbers of databases end here."""


_NONE: frozenset[str] = frozenset()


@attrs.frozen
class Event:
    """What happened: a type, opaque data, and tags that say what it concerns, such as `course:c1`."""

    type: str = attrs.field(converter=_type)
    data: bytes = attrs.field(default=b"", converter=_data)
    tags: frozenset[str] = attrs.field(default=_NONE, converter=_tags)


@attrs.frozen
class SequencedEvent:
    """An event in the store, with its position: unique, growing, with gaps."""

    event: Event
    position: int


@attrs.frozen
class QueryItem:
    """Events of one of `types`, with all of `tags`; no types = any type, no tags = any tags."""

    types: frozenset[str] = attrs.field(default=_NONE, converter=_types)
    tags: frozenset[str] = attrs.field(default=_NONE, converter=_tags)

    def matches(self, event: Event) -> bool:
        """Whether an event is one of these."""
        return (not self.types or event.type in self.types) and self.tags <= event.tags


class Query:
    """Events that match one of some items, at least one; `Query.all()` matches every event."""

    __slots__ = ("items",)

    def __init__(self, *items: QueryItem) -> None:
        if not items:
            raise ValueError("a query has at least one item; Query.all() matches every event")
        for item in items:
            if not isinstance(item, QueryItem):
                raise TypeError(f"expected QueryItem(types=..., tags=...), found {item!r}")
        self.items: tuple[QueryItem, ...] = items

    @classmethod
    def all(cls) -> Query:
        """Every event."""
        return cls(QueryItem())

    def matches(self, event: Event) -> bool:
        """Whether an event matches one of the items."""
        return any(item.matches(event) for item in self.items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Query) and self.items == other.items

    def __hash__(self) -> int:
        return hash(self.items)

    def __repr__(self) -> str:
        return f"Query({', '.join(map(repr, self.items))})"


def _is_query(_: object, field: object, query: Any) -> None:
    if not isinstance(query, Query):
        raise TypeError(f"expected a Query, found {query!r}; write AppendCondition(Query(QueryItem(...)), after=HEAD)")
    check_size(query)


def check_size(query: Query) -> None:
    """See that every database can be asked for it.

    Raises:
        ValueError: it has too many items, tags or types.
    """
    items = query.items
    tags = max(len(item.tags) for item in items)
    texts = sum(len(item.types) + len(item.tags) for item in items)
    for count, limit, what in (
        (len(items), ITEMS_MAX, "items in a query"),
        (tags, TAGS_MAX, "tags in an item of a query"),
        (texts, TEXTS_MAX, "types and tags in a query"),
    ):
        if count > limit:
            raise ValueError(f"at most {limit:,} {what}, found {count:,}; ask for a part of it at a time, or for less")


def _is_position(_: object, field: object, after: Any) -> None:
    check_position(after)


def check_position(after: Any) -> None:
    """See that it is one, or None.

    Raises:
        TypeError: no whole number.
        ValueError: below -1, or beyond 63 bits.
    """
    if after is not None and (isinstance(after, bool) or not isinstance(after, int)):
        raise TypeError(f"after is a position, a whole number, or None, found {after!r}; write after=events.head")
    if after is not None and after < -1:
        raise ValueError(
            f"after is a position, -1 or higher (-1 is the head of an empty store), found {after}; write "
            "after=events.head"
        )
    if after is not None and after > POSITION_MAX:
        raise ValueError(f"after is a position, at most 2**63 - 1, found {after}; write after=events.head")


@attrs.frozen
class AppendCondition:
    """An append fails if an event behind `after` matches; `after` None = if any event does."""

    fail_if_events_match: Query = attrs.field(validator=_is_query)
    after: int | None = attrs.field(default=None, validator=_is_position)


class Events(Sequence[SequencedEvent]):
    """What `read` gives: events in their order, and how far the store was read."""

    def __init__(self, events: Sequence[SequencedEvent], head: int) -> None:
        self._events = tuple(events)
        self.head = head
        """The highest position that this read covers, for `AppendCondition.after`; -1 = of an empty store."""

    @overload
    def __getitem__(self, index: int) -> SequencedEvent: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[SequencedEvent]: ...

    def __getitem__(self, index: int | slice) -> SequencedEvent | Sequence[SequencedEvent]:
        return self._events[index]

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[SequencedEvent]:
        return iter(self._events)

    def __repr__(self) -> str:
        return f"Events({list(self._events)}, head={self.head})"


# ---- how events travel -------------------------------------------------------------------------------


@record
class _Written:
    type: str
    data: bytes
    tags: tuple[str, ...]


@record
class _Keyed:
    key: str
    events: list[_Written]


_PLAIN: Codec[list[_Written]] = Json(list[_Written])
_KEYED: Codec[_Keyed] = Json(_Keyed)


class _Payload:
    """A list of events; with an idempotency key an object, which programs that know no keys refuse to read."""

    def dumps(self, value: list[_Written] | _Keyed) -> bytes:
        return _KEYED.dumps(value) if isinstance(value, _Keyed) else _PLAIN.dumps(value)

    def loads(self, data: bytes) -> list[_Written]:
        return _KEYED.loads(data).events if data.startswith(b"{") else _PLAIN.loads(data)


PAYLOAD: Codec[Any] = _Payload()


def payload_of(events: Iterable[Event], key: str | None = None) -> list[_Written] | _Keyed:
    """Events of one append, as `PAYLOAD` writes them; equal events are equal bytes."""
    written = [_Written(event.type, event.data, tuple(sorted(event.tags))) for event in events]
    return written if key is None else _Keyed(key, written)


def key_of(events: Iterable[Event], key: str) -> Key:
    """What an append with an idempotency key asks for: its events, regardless of the condition."""
    return Key(key, payload_of(events))


def keys_of(window: int | None) -> Keys | None:
    """Where appends carry their keys, for a view that remembers them; None = it does not."""
    return None if window is None else Keys(_carried, window=window)


def _carried(transaction: Transaction) -> Key | None:
    if transaction.header != HEADER or not transaction.load().startswith(b"{"):
        return None
    keyed = transaction.load(_KEYED)
    return Key(keyed.key, keyed.events)


def events_of(transaction: Transaction) -> list[SequencedEvent]:
    """The events of a transaction; none if it is no append of a store."""
    if transaction.header != HEADER:
        return []
    first, appended = transaction.id * EVENTS_MAX, transaction.load(PAYLOAD)
    return [
        SequencedEvent(Event(written.type, written.data, written.tags), first + place)
        for place, written in enumerate(appended)
    ]


def head_of(mark: int) -> int:
    """The highest position of a log that ends with transaction `mark`."""
    return (mark + 1) * EVENTS_MAX - 1

"""The events of a store in memory, found by type and tag."""

from __future__ import annotations

import bisect
import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter

from waltz_dcb.events import Query, QueryItem, SequencedEvent, events_of, keys_of
from waltz_trio import DictView, Transaction

_position = attrgetter("position")


class MemoryEvents:
    """All events, in their order, and by what they can be asked for."""

    def __init__(self) -> None:
        self._all: list[SequencedEvent] = []
        self._by_type: defaultdict[str, list[SequencedEvent]] = defaultdict(list)
        self._by_tag: defaultdict[str, list[SequencedEvent]] = defaultdict(list)

    def add(self, transaction: Transaction) -> None:
        """Apply a transaction, as a whole or not at all: it is decoded first."""
        for sequenced in events_of(transaction):
            self._all.append(sequenced)
            self._by_type[sequenced.event.type].append(sequenced)
            for tag in sorted(sequenced.event.tags):
                self._by_tag[tag].append(sequenced)

    def find(self, query: Query, after: int, limit: int | None, backwards: bool) -> list[SequencedEvent]:
        """Events behind `after` that match, each once, in their order or backwards."""
        runs = [self._matching(item, after, backwards) for item in query.items]
        merged = heapq.merge(*runs, key=_position, reverse=backwards)
        return list(islice(_once(merged), limit))

    def count_of(self, tag: str) -> int:
        """How many events carry a tag."""
        return len(self._by_tag.get(tag, ()))

    def _matching(self, item: QueryItem, after: int, backwards: bool) -> Iterator[SequencedEvent]:
        """By one item, through the shortest list that holds all of its events."""
        lists = [self._by_tag.get(tag, []) for tag in sorted(item.tags)]
        if item.types:
            by_type: list[Sequence[SequencedEvent]] = [self._by_type.get(kind, []) for kind in sorted(item.types)]
            if not lists or sum(map(len, by_type)) < min(map(len, lists)):
                runs = [self._run(events, after, backwards) for events in by_type]
                return filter(
                    lambda each: item.matches(each.event), heapq.merge(*runs, key=_position, reverse=backwards)
                )
        candidates = min(lists, key=len) if lists else self._all
        return filter(lambda each: item.matches(each.event), self._run(candidates, after, backwards))

    def _run(self, events: Sequence[SequencedEvent], after: int, backwards: bool) -> Iterator[SequencedEvent]:
        start = bisect.bisect_right(events, after, key=_position)
        places = range(len(events) - 1, start - 1, -1) if backwards else range(start, len(events))
        return (events[place] for place in places)


def _once(events: Iterator[SequencedEvent]) -> Iterator[SequencedEvent]:
    last = -1
    for sequenced in events:
        if sequenced.position != last:
            last = sequenced.position
            yield sequenced


def _apply(transaction: Transaction, events: MemoryEvents) -> None:
    events.add(transaction)


def memory_view(*, key_window: int | None = 1_000_000) -> DictView[MemoryEvents]:
    """A view in memory, read from the start of the log with every start of its program.

    It remembers idempotency keys until `key_window` transactions have followed; None = it remembers none.
    """
    return DictView(_apply, MemoryEvents(), keys=keys_of(key_window))

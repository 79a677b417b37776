"""The store: reads from a view of the events, appends that the log itself decides.

An append with a condition is a submit. `decide` looks at the view, which is exact up to its mark: an event behind
`after` that matches is in the log, and the append fails. If there is none, locks hold from the mark on: whoever appends
a matching event meanwhile takes a lock that this append looks at, and the server refuses it. Then the view catches up
with what was in the way, and is looked at again. So a false conflict costs another attempt, never a wrong answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from waltz_core.base.errors import ClientError
from waltz_dcb.events import (
    EVENTS_MAX,
    HEADER,
    PAYLOAD,
    POSITION_MAX,
    AppendCondition,
    Event,
    Events,
    Query,
    SequencedEvent,
    check_position,
    check_size,
    head_of,
    key_of,
    payload_of,
)
from waltz_dcb.locks import locks_looked_at, locks_taken
from waltz_dcb.memory import memory_view
from waltz_trio import Append, Application, Client, Key, Receipt, Retry, View
from waltz_trio.client.encoding import LocksMaxError

if TYPE_CHECKING:
    import waltz_asyncio


class ConditionFailedError(ClientError):
    """An event matches the condition of an append: nothing was appended."""

    def __init__(self, match: SequencedEvent) -> None:
        super().__init__(f"an event matches the condition: {match.event.type} at position {match.position}")
        self.match = match  # the first


class Finder(Protocol):
    """The state of a view of events."""

    def find(self, query: Query, after: int, limit: int | None, backwards: bool) -> list[SequencedEvent]:
        """Events behind `after` that match."""

    def count_of(self, tag: str) -> int:
        """How many events carry a tag."""


def find(finder: Finder, query: Query, after: int, limit: int | None, backwards: bool) -> list[SequencedEvent]:
    """What a read of a store reads from the state of its view."""
    return finder.find(query, after, limit, backwards)


def question(
    query: Query, after: int | None, limit: int | None, backwards: bool
) -> tuple[Query, int, int | None, bool]:
    """What `find` is asked for a read.

    Raises:
        TypeError: something is not what it should be.
        ValueError: a position or a limit outside its range, or a query that asks for too much.
    """
    if not isinstance(query, Query):
        raise TypeError(f"expected a Query, found {query!r}; write Query(QueryItem(...)), or Query.all()")
    check_size(query)
    check_position(after)
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
        raise TypeError(f"limit is a whole number, or None for all that match, found {limit!r}")
    if limit is not None and limit < 0:
        raise ValueError(f"limit is 0 or higher, or None for all that match, found {limit}")
    if limit is not None and limit > POSITION_MAX:
        raise ValueError(f"limit is at most 2**63 - 1, or None for all that match, found {limit}")
    return query, -1 if after is None else after, limit, backwards


class Proposal:
    """An append that a store decides: its events, when not to append them, and what stands in the way.

    Raises:
        ValueError: there are no events, or too many.
        TypeError: something is no event, or no condition.
    """

    def __init__(
        self, events: Event | Iterable[Event], condition: AppendCondition | None = None, key: str | None = None
    ) -> None:
        self._events = (events,) if isinstance(events, Event) else tuple(events)
        if not 1 <= len(self._events) <= EVENTS_MAX:
            raise ValueError(f"an append has 1 to {EVENTS_MAX} events, found {len(self._events)}")
        for event in self._events:
            if not isinstance(event, Event):
                raise TypeError(f"expected Event(TYPE, DATA, TAGS), found {event!r}")
        if condition is not None and not isinstance(condition, AppendCondition):
            raise TypeError(f"expected AppendCondition(QUERY, after=HEAD), found {condition!r}")
        self._condition = condition
        self._key = key
        self._taken = locks_taken(self._events)
        self._match: SequencedEvent | None = None  # of the last decision

    @property
    def key(self) -> Key | None:
        """The idempotency key, which belongs to these events."""
        return None if self._key is None else key_of(self._events, self._key)

    @property
    def decline(self) -> Literal["confirmed", "local"]:
        """What a decline must be worth.

        A match that the view has is in the log: there is nothing to confirm. With a key the append may be in the log
        too, where the view has not seen it, and that counts first.
        """
        return "local" if self._key is None else "confirmed"

    def decide(self, finder: Finder) -> Append | None:
        """What is appended on the state of a view; None if an event matches the condition."""
        payload = payload_of(self._events, self._key)
        if self._condition is None:
            return Append(payload, PAYLOAD, HEADER, append=self._taken)
        query, after = self._condition.fail_if_events_match, self._condition.after
        self._match = next(iter(finder.find(query, -1 if after is None else after, 1, False)), None)
        if self._match is not None:
            return None
        looked_at = locks_looked_at(query, finder.count_of)
        return Append(payload, PAYLOAD, HEADER, read=looked_at, append=self._taken)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Where it is submitted: an error that counts locks says what they are."""
        try:
            yield
        except LocksMaxError as error:
            raise ValueError(
                f"{error}: these events take {len(self._taken)}, one for each of their types, their tags, and their "
                "types with each tag, and the condition takes more; append fewer events, or tags, at a time"
            ) from None

    def position(self, receipt: Receipt | None) -> int:
        """The position of the last event, once it was appended.

        Raises:
            ConditionFailedError: it was declined.
        """
        if receipt is None:
            assert self._match is not None
            raise ConditionFailedError(self._match)
        return receipt.transaction_id * EVENTS_MAX + len(self._events) - 1


class EventStore:
    """Events of one partition. Made by `open_store`.

    It awaits the calls of its application and nothing else, so one class serves Trio and asyncio.
    """

    def __init__(self, application: Application[Any] | waltz_asyncio.Application[Any], partition: int) -> None:
        self._application = application
        self._partition = partition

    async def read(
        self,
        query: Query,
        *,
        after: int | None = None,
        limit: int | None = None,
        backwards: bool = False,
        fresh: bool = True,
    ) -> Events:
        """Events that match, in their order.

        Args:
            query: which.
            after: only those behind this position.
            limit: at most so many.
            backwards: the newest first.
            fresh: everything that was committed when this was called is there (a question to the server); False
                reads what the view has.

        Raises:
            TypeError, ValueError: no query, position or limit, or one that is too large.
        """
        events, mark = await self._application.read(
            find, *question(query, after, limit, backwards), partition=self._partition, fresh=fresh
        )
        return Events(events, head_of(mark))

    async def append(
        self,
        events: Event | Iterable[Event],
        condition: AppendCondition | None = None,
        *,
        key: str | None = None,
        retry: Retry = Retry(),  # noqa: B008 - a value
    ) -> int:
        """Append events, all or none, unless an event matches `condition`.

        Args:
            events: one or several, at most 1,024, with as many types and tags as there may be locks in an append.
            condition: when not to.
            key: an idempotency key: if an append of the same events carries it already, the position of that one is
                returned, and nothing is appended. Takes a view that remembers keys.
            retry: pauses and limits of attempts that meet false conflicts or are lost.

        Returns:
            The position of the last of them.

        Raises:
            ConditionFailedError: an event matches; nothing was appended.
            KeyReusedError: the key was used for other events; nothing was appended.
            ValueError: no events, or too many, or too many of their types and tags.
            RetriesExhaustedError: `retry` allows no further attempt.
            ClientClosedError, ClientFailedError: the outcome is unknown.
        """
        proposal = Proposal(events, condition, key)
        with proposal.explained():
            receipt = await self._application.submit(
                proposal.decide, partition=self._partition, decline=proposal.decline, retry=retry, key=proposal.key
            )
        return proposal.position(receipt)


@asynccontextmanager
async def open_store(client: Client, partition: int = 0, view: View[Any] | None = None) -> AsyncIterator[EventStore]:
    """The store of a partition: `async with open_store(client) as store: ...`.

    Args:
        client: of `waltz_trio.open_client`.
        partition: which one; conditions hold within it.
        view: `memory_view()`, or one that need not read the log anew with every start: `sqlite_view(PATH)`,
            `postgres_view(CONNINFO)`, `mysql_view(WHERE)`.
    """
    async with client.materialize(memory_view() if view is None else view, [partition]) as application:
        yield EventStore(application, partition)

"""The event store for plain threads: `import waltz_dcb.sync as waltz_dcb`, with a client of `waltz_sync`.

The names of `waltz_dcb` without `async` and `await`, with `timeout=` on what waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from waltz_dcb.events import (
    AppendCondition,
    Event,
    Events,
    Query,
    QueryItem,
    SequencedEvent,
    head_of,
)
from waltz_dcb.memory import memory_view
from waltz_dcb.sql import mysql_view, postgres_view, sqlite_view
from waltz_dcb.store import ConditionFailedError, Proposal, find, question
from waltz_sync import Application, Client
from waltz_trio import Retry, View

__all__ = [
    "AppendCondition",
    "ConditionFailedError",
    "Event",
    "EventStore",
    "Events",
    "Query",
    "QueryItem",
    "SequencedEvent",
    "memory_view",
    "mysql_view",
    "open_store",
    "postgres_view",
    "sqlite_view",
]


class EventStore:
    """Events of one partition. Made by `open_store`."""

    def __init__(self, application: Application[Any], partition: int) -> None:
        self._application = application
        self._partition = partition

    def read(
        self,
        query: Query,
        *,
        after: int | None = None,
        limit: int | None = None,
        backwards: bool = False,
        fresh: bool = True,
        timeout: float | None = None,
    ) -> Events:
        """Events that match, in their order.

        Args:
            query: which.
            after: only those behind this position.
            limit: at most so many.
            backwards: the newest first.
            fresh: everything that was committed when this was called is there (a question to the server); False
                reads what the view has.
            timeout: seconds to wait.

        Raises:
            TypeError, ValueError: no query, position or limit, or one that is too large.
        """
        events, mark = self._application.read(
            find, *question(query, after, limit, backwards), partition=self._partition, fresh=fresh, timeout=timeout
        )
        return Events(events, head_of(mark))

    def append(
        self,
        events: Event | Iterable[Event],
        condition: AppendCondition | None = None,
        *,
        key: str | None = None,
        retry: Retry = Retry(),  # noqa: B008 - a value
        timeout: float | None = None,
    ) -> int:
        """Append events, all or none, unless an event matches `condition`.

        Args:
            events: one or several, at most 1,024, with as many types and tags as there may be locks in an append.
            condition: when not to.
            key: an idempotency key: if an append of the same events carries it already, the position of that one is
                returned, and nothing is appended. Takes a view that remembers keys.
            retry: pauses and limits of attempts that meet false conflicts or are lost.
            timeout: seconds to wait; afterwards the outcome is unknown, and the append may commit.

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
            receipt = self._application.submit(
                proposal.decide,
                partition=self._partition,
                decline=proposal.decline,
                retry=retry,
                timeout=timeout,
                key=proposal.key,
            )
        return proposal.position(receipt)


@contextmanager
def open_store(
    client: Client, partition: int = 0, view: View[Any] | None = None, *, timeout: float | None = None
) -> Iterator[EventStore]:
    """The store of a partition: `with open_store(client) as store: ...`.

    Args:
        client: of `waltz_sync.open_client`.
        partition: which one; conditions hold within it.
        view: `memory_view()`, or one that need not read the log anew with every start: `sqlite_view(PATH)`,
            `postgres_view(CONNINFO)`, `mysql_view(WHERE)`.
        timeout: seconds to wait until the view has caught up.
    """
    with client.materialize(memory_view() if view is None else view, [partition], timeout=timeout) as application:
        yield EventStore(application, partition)

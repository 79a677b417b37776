"""The event store for asyncio: `import waltz_dcb.aio as waltz_dcb`, with a client of `waltz_asyncio`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from waltz_asyncio import Client
from waltz_dcb.events import AppendCondition, Event, Events, Query, QueryItem, SequencedEvent
from waltz_dcb.memory import memory_view
from waltz_dcb.sql import mysql_view, postgres_view, sqlite_view
from waltz_dcb.store import ConditionFailedError, EventStore
from waltz_trio import View

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


@asynccontextmanager
async def open_store(client: Client, partition: int = 0, view: View[Any] | None = None) -> AsyncIterator[EventStore]:
    """The store of a partition: `async with open_store(client) as store: ...`.

    Args:
        client: of `waltz_asyncio.open_client`.
        partition: which one; conditions hold within it.
        view: `memory_view()`, or one that need not read the log anew with every start: `sqlite_view(PATH)`,
            `postgres_view(CONNINFO)`, `mysql_view(WHERE)`.
    """
    async with client.materialize(memory_view() if view is None else view, [partition]) as application:
        yield EventStore(application, partition)

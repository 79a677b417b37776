"""An event store with dynamic consistency boundaries (dcb.events), on one partition of a Waltz log.

`waltz_dcb.sync` and `waltz_dcb.aio` have the same for plain threads and for asyncio. `docs/howto/dcb.md` shows how; ADR
0019 says how a condition becomes locks.
"""

from waltz_dcb.events import AppendCondition, Event, Events, Query, QueryItem, SequencedEvent
from waltz_dcb.memory import memory_view
from waltz_dcb.sql import mysql_view, postgres_view, sqlite_view
from waltz_dcb.store import ConditionFailedError, EventStore, open_store

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

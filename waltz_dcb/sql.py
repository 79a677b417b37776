"""The events of a store in an SQL database, found by type and tag.

SQLite indexes types and tags as they are. The others limit what an index may hold, and PostgreSQL's texts hold no NUL:
there types and tags are found by their SHA-256, and texts are bytes in UTF-8. No event can be too long or too odd for
one database and not for another, or its view would stop in front of it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from waltz_core.base.record import record
from waltz_core.client.keys import KeyEntry
from waltz_dcb.events import Event, Query, QueryItem, SequencedEvent, events_of, keys_of
from waltz_trio import MySqlView, PostgresView, SqliteView, Transaction
from waltz_trio.client.sql_view import SqlView

C = TypeVar("C")

_SQLITE = """
CREATE TABLE IF NOT EXISTS dcb_event (position INTEGER PRIMARY KEY, type TEXT NOT NULL, data BLOB NOT NULL, tags TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS dcb_event_type ON dcb_event (type, position);
CREATE TABLE IF NOT EXISTS dcb_tag (tag TEXT NOT NULL, position INTEGER NOT NULL, PRIMARY KEY (tag, position)) WITHOUT ROWID
"""  # noqa: E501  # as it is read
_POSTGRES = """
CREATE TABLE IF NOT EXISTS dcb_event (position BIGINT PRIMARY KEY, type_hash BYTEA NOT NULL, type BYTEA NOT NULL, data BYTEA NOT NULL, tags BYTEA NOT NULL);
CREATE INDEX IF NOT EXISTS dcb_event_type ON dcb_event (type_hash, position);
CREATE TABLE IF NOT EXISTS dcb_tag (tag_hash BYTEA NOT NULL, position BIGINT NOT NULL, PRIMARY KEY (tag_hash, position))
"""  # noqa: E501  # as it is read
_MYSQL = """
CREATE TABLE IF NOT EXISTS dcb_event (position BIGINT PRIMARY KEY, type_hash BINARY(32) NOT NULL, type LONGBLOB NOT NULL, data LONGBLOB NOT NULL, tags LONGBLOB NOT NULL, INDEX (type_hash, position)) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS dcb_tag (tag_hash BINARY(32) NOT NULL, position BIGINT NOT NULL, PRIMARY KEY (tag_hash, position)) ENGINE = InnoDB
"""  # noqa: E501  # as it is read
_VALUES = ("type", "data", "tags")


@record
class Dialect:
    """How one kind of database keeps events."""

    schema: str
    parameter: str
    hashed: bool
    piece: int | None = None  # bytes of a value in one statement

    def indexed(self, text: str) -> str | bytes:
        """What a type or a tag is found by."""
        return hashlib.sha256(text.encode()).digest() if self.hashed else text

    def column(self, name: str) -> str:
        """Where that is."""
        return f"{name}_hash" if self.hashed else name

    def stored(self, text: str) -> str | bytes:
        """A text as it is kept."""
        return text.encode() if self.hashed else text

    def run(self, cursor: Any, statement: str, *values: object) -> Any:
        """A statement written with `?` for its values."""
        cursor.execute(statement.replace("?", self.parameter), values)
        return cursor

    def apply(self, transaction: Transaction, cursor: Any) -> None:
        """Keep the events of a transaction."""
        self.apply_many((transaction,), cursor)

    def apply_many(self, transactions: Sequence[Transaction], cursor: Any) -> None:
        """Keep the events of transactions."""
        events: list[tuple[Any, ...]] = []
        tags: list[tuple[str | bytes, int]] = []
        rest: list[tuple[str, Any, int]] = []
        for sequenced in itertools.chain.from_iterable(map(events_of, transactions)):
            event, position = sequenced.event, sequenced.position
            found_by = [self.indexed(event.type)] if self.hashed else []
            its_tags = sorted(event.tags)
            kept = (self.stored(event.type), event.data, self.stored(json.dumps(its_tags)))
            first = tuple(value[: self.piece] for value in kept)
            events.append((position, *found_by, *first))
            rest += [
                (column, value, position)
                for column, value, begun in zip(_VALUES, kept, first, strict=True)
                if len(begun) < len(value)
            ]
            tags += [(self.indexed(tag), position) for tag in its_tags]
        for table, rows in (("dcb_event", events), ("dcb_tag", tags)):
            if rows:
                places = ", ".join([self.parameter] * len(rows[0]))
                cursor.executemany(f"INSERT INTO {table} VALUES ({places})", rows)
        for column, value, position in rest:
            self._lengthen(cursor, column, value, position)

    def _lengthen(self, cursor: Any, column: str, value: bytes, position: int) -> None:
        """Add what is behind the first piece of a value.

        Raises:
            ValueError: the server does not make one of them.
        """
        assert self.piece is not None
        for at in range(self.piece, len(value), self.piece):
            longer = f"UPDATE dcb_event SET {column} = CONCAT({column}, UNHEX(?)) WHERE position = ?"
            self.run(cursor, longer, value[at : at + self.piece].hex(), position)
        (size,) = self.run(cursor, f"SELECT LENGTH({column}) FROM dcb_event WHERE position = ?", position).fetchone()
        if size != len(value):
            raise ValueError(
                f"the server keeps no {column} of {len(value)} bytes: its max_allowed_packet must be as large as the "
                "largest payload (server.payloadSizeMax)"
            )


SQLITE = Dialect(_SQLITE, "?", False)
POSTGRES = Dialect(_POSTGRES, "%s", True)
MYSQL = Dialect(_MYSQL, "%s", True, 1 << 20)  # a statement writes bytes as up to twice as many


class SqlEvents:
    """All events, as one snapshot of the database has them."""

    def __init__(self, cursor: Any, dialect: Dialect) -> None:
        self.cursor = cursor
        self._dialect = dialect

    def find(self, query: Query, after: int, limit: int | None, backwards: bool) -> list[SequencedEvent]:
        """As `MemoryEvents.find`."""
        parts, values = [], []
        for item in query.items:
            part, arguments = self._where(item)
            parts.append(part)
            values += arguments
        text = (
            f"SELECT position, type, data, tags FROM dcb_event WHERE position > ? AND ({' OR '.join(parts)}) "
            f"ORDER BY position {'DESC' if backwards else 'ASC'}"
        )
        if limit is not None:
            text += " LIMIT ?"
            values.append(limit)
        rows = self._dialect.run(self.cursor, text, after, *values).fetchall()
        return [
            SequencedEvent(Event(_text(kind), bytes(data), json.loads(_text(tags))), position)
            for position, kind, data, tags in rows
        ]

    def count_of(self, tag: str) -> int:
        """As `MemoryEvents.count_of`."""
        text = f"SELECT count(*) FROM dcb_tag WHERE {self._dialect.column('tag')} = ?"
        return int(self._dialect.run(self.cursor, text, self._dialect.indexed(tag)).fetchone()[0])

    def _where(self, item: QueryItem) -> tuple[str, list[Any]]:
        parts, values = [], []
        for tag in sorted(item.tags):
            parts.append(f"position IN (SELECT position FROM dcb_tag WHERE {self._dialect.column('tag')} = ?)")
            values.append(self._dialect.indexed(tag))
        if item.types:
            parts.append(f"{self._dialect.column('type')} IN ({', '.join('?' * len(item.types))})")
            values += [self._dialect.indexed(kind) for kind in sorted(item.types)]
        return f"({' AND '.join(parts) or '1 = 1'})", values


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else bytes(value).decode()


def _on_events(cursor: Any, dialect: Dialect, decide: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return decide(SqlEvents(cursor, dialect), *args)


class _Keeping(SqlView[C], ABC):
    """A view whose state is the events of its database."""

    _dialect: ClassVar[Dialect]

    def read(self, partition: int, decide: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
        return super().read(partition, _on_events, (self._dialect, decide, args))

    def find_key(self, state: Any, partition: int, key: str) -> KeyEntry | None:
        return super().find_key(state.cursor, partition, key)


class _InSqlite(_Keeping[Any], SqliteView):
    _dialect = SQLITE


class _InPostgres(_Keeping[Any], PostgresView):
    _dialect = POSTGRES


class _InMySql(_Keeping[Any], MySqlView):
    _dialect = MYSQL


def _options(dialect: Dialect, key_window: int | None, version: int, rebuild: bool) -> dict[str, Any]:
    keys = keys_of(key_window)
    options = {"schema": dialect.schema, "name": "waltz_dcb", "version": version, "rebuild": rebuild, "keys": keys}
    return {**options, "apply_many": dialect.apply_many}


def sqlite_view(
    path: str | Path, *, key_window: int | None = None, version: int = 1, rebuild: bool = False
) -> SqliteView:
    """A view that keeps the events in a SQLite database, and goes on where it stands.

    Args:
        path: its file.
        key_window: remember idempotency keys until so many transactions have followed; None = remember none.
        version: another `key_window` takes a higher one, and `rebuild`.
        rebuild: where the database holds an older version, make it anew from the start of the log.
    """
    return _InSqlite(path, SQLITE.apply, **_options(SQLITE, key_window, version, rebuild))


def postgres_view(
    conninfo: str, *, key_window: int | None = None, version: int = 1, rebuild: bool = False
) -> PostgresView:
    """The same in a PostgreSQL database: `conninfo` as `PostgresView` takes it; extra `postgres`."""
    return _InPostgres(conninfo, POSTGRES.apply, **_options(POSTGRES, key_window, version, rebuild))


def mysql_view(
    where: str | Mapping[str, Any], *, key_window: int | None = None, version: int = 1, rebuild: bool = False
) -> MySqlView:
    """The same in a database of MySQL or MariaDB: `where` as `MySqlView` takes it; extra `mysql`."""
    return _InMySql(where, MYSQL.apply, **_options(MYSQL, key_window, version, rebuild))

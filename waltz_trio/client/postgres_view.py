"""The view in a PostgreSQL database."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from waltz_core.base.errors import ConfigError
from waltz_trio.client.shown import shown
from waltz_trio.client.sql_identity import IDENTITIES
from waltz_trio.client.sql_view import TABLE, SqlView
from waltz_trio.client.values import Transaction
from waltz_trio.client.views import Keys

if TYPE_CHECKING:
    from waltz_trio.client.postgres_session import Cursor, PostgresSession

_CLAIM = 0x57414C545A  # of the advisory lock under which databases are claimed


class PostgresView(SqlView["Cursor"]):
    """State in a PostgreSQL database: `apply(txn, cursor)` changes it, inside the transaction that moves the mark.

    `apply` and `decide` get a cursor of psycopg 3 that can neither begin nor end transactions, and that of `decide`
    cannot change data either. A database may be shared by several processes, some of them of 0.13.2: each transaction
    is applied by one of them. The database remembers whose its marks are: a view of another name, or of another
    version, is refused. Needs the extra `postgres`.

    Args:
        conninfo: where, as libpq has it: `postgresql://user@host/database` or `host=... dbname=...`.
        apply: what a transaction does to the data.
        apply_many: does the same with several transactions in fewer statements.
        schema: SQL statements, run whenever a view opens its database: CREATE TABLE IF NOT EXISTS.
        table: where the marks are kept.
        busy_timeout: seconds to wait for a lock of another process before trying again later.
        name: of the view; that of the function `apply` and its module unless given.
        version: of what `apply` and `schema` mean; raise it when old data would be wrong.
        rebuild: where the database holds an older version, drop the tables and views of its schema and begin at the
            start of the log.
        keys: where transactions carry idempotency keys, and how long they are remembered.
    """

    _defers = True
    _lock_out = "LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"
    _add_mark = "INSERT INTO {table} (PARTITION_ID, HIGH_WATER_MARK) VALUES (?, -1) ON CONFLICT DO NOTHING"
    _put_mark = (
        "INSERT INTO {table} (PARTITION_ID, HIGH_WATER_MARK) VALUES (?, ?) "
        "ON CONFLICT (PARTITION_ID) DO UPDATE SET HIGH_WATER_MARK = excluded.HIGH_WATER_MARK"
    )
    _put_identity = (
        f"INSERT INTO {IDENTITIES} (MARK_TABLE, VIEW_NAME, VIEW_VERSION, SCHEMA_TABLES) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (MARK_TABLE) DO UPDATE SET VIEW_NAME = excluded.VIEW_NAME, "
        "VIEW_VERSION = excluded.VIEW_VERSION, SCHEMA_TABLES = excluded.SCHEMA_TABLES"
    )

    def __init__(
        self,
        conninfo: str,
        apply: Callable[[Transaction, Cursor], None],
        *,
        apply_many: Callable[[Sequence[Transaction], Cursor], None] | None = None,
        schema: str = "",
        table: str = TABLE,
        busy_timeout: float = 5.0,
        name: str | None = None,
        version: int = 1,
        rebuild: bool = False,
        keys: Keys | None = None,
    ) -> None:
        try:
            from waltz_trio.client import postgres_session
        except ImportError as error:
            raise ConfigError(f"PostgresView needs psycopg 3 ({error}): pip install 'waltz-log[postgres]'") from error
        self._driver = postgres_session
        if not isinstance(conninfo, str):
            raise TypeError(f"conninfo: expected a text, such as 'host=... dbname=...', found {shown(conninfo)}")
        self._conninfo = conninfo
        self._claimed = False
        super().__init__(
            "the PostgreSQL database",
            apply,
            postgres_session.ERRORS,
            schema=schema,
            table=table,
            busy_timeout=busy_timeout,
            name=name,
            version=version,
            rebuild=rebuild,
            keys=keys,
            apply_many=apply_many,
        )

    def _connect(self, reads: bool) -> PostgresSession:
        if reads and not self._claimed:
            self._writers.put_back(self._connect(False))
        session = self._driver.PostgresSession(
            self._conninfo, self._busy_timeout, self._table if reads else None, first=not self._claimed
        )
        try:
            if not self._claimed:
                with session.transaction() as cursor:
                    self._where = self._driver.place_of(cursor)
                    cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_CLAIM,))
                    self._create_tables(cursor)
                    replaced = self._identity.claim(cursor)
                    self._drop(cursor, replaced or ())
                    if self._schema.strip():
                        with self._running_schema(), session.foreign() as guarded:
                            guarded.execute(self._schema)
                self._claimed = True
        except BaseException:
            session.close()
            raise
        return session

    def _drop(self, cursor: Cursor, names: Iterable[str]) -> None:
        """Drop the tables and views of these names that there are; a view goes before what it was made of.

        Raises:
            ConfigError: what is not of the schema depends on one.
        """
        cursor.execute(
            "SELECT DISTINCT CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE 'TABLE' END, "
            "c.oid::regclass::text, c.oid FROM unnest(%s::text[]) AS name JOIN pg_class c ON c.oid = to_regclass(name) "
            "ORDER BY c.oid DESC",
            (list(names),),
        )
        found = sorted(cursor.fetchall(), key=lambda row: row[0] == "TABLE")
        try:
            for kind, rows in itertools.groupby(found, key=lambda row: row[0]):
                cursor.execute(f"DROP {kind} " + ", ".join(row[1] for row in rows))
        except self._errors as error:
            if self._driver.state_of(error) != "2BP01":
                raise
            raise ConfigError(
                f"{self._where}: rebuild=True drops the tables and views of schema=..., and something else depends on "
                f"them: {error}. Drop that first, and make it again afterwards, or have schema=... make it"
            ) from error

    def _create_tables(self, cursor: Cursor) -> None:
        """Make the tables of ours; who may not create tables can use those that somebody made."""
        names = [self._table, IDENTITIES, f"{self._table}_KEYS", f"{self._table}_KEY_MARKS"]
        cursor.execute("SELECT bool_and(to_regclass(name) IS NOT NULL) FROM unnest(%s::text[]) AS name", (names,))
        if cursor.fetchone() != (True,):
            super()._create_tables(cursor)

    def _check_open(self, cursor: Cursor) -> None:
        fault = self._driver.fault_of(cursor)
        if fault is not None:
            raise RuntimeError(fault)

    def _own(self, theirs: Any) -> AbstractContextManager[Cursor]:
        return nullcontext(self._driver.plain_cursor(theirs.connection))

    def _passes(self, error: Exception) -> bool:
        return self._driver.passes(error)

    def _refuses_change(self, error: Exception) -> bool:
        return self._driver.state_of(error) == "25006"

    def _loses_connections(self, error: Exception) -> bool:
        return self._driver.loses_connections(error)

    def _misses_table(self, error: Exception) -> bool:
        return self._driver.state_of(error) == "42P01" and self._names_ours(error)

"""An SQL database of views: what is different in each, the tables of ours in it, and its connections."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Generic, TypeVar

from waltz_core.base.errors import ConfigError, ViewRegressedError
from waltz_trio.client.key_tables import DEFINITIONS, PUT_KEY
from waltz_trio.client.sql_identity import IDENTITIES
from waltz_trio.client.sql_sessions import Session, Sessions, TransactionLostError
from waltz_trio.client.statements import tables_of

_DEFINITIONS = (
    "CREATE TABLE IF NOT EXISTS {table} (PARTITION_ID INTEGER NOT NULL PRIMARY KEY, HIGH_WATER_MARK BIGINT NOT NULL)",
    f"CREATE TABLE IF NOT EXISTS {IDENTITIES} (MARK_TABLE VARCHAR(255) NOT NULL PRIMARY KEY, "
    "VIEW_NAME VARCHAR(255) NOT NULL, VIEW_VERSION INTEGER NOT NULL, SCHEMA_TABLES TEXT NOT NULL)",
)

C = TypeVar("C")  # what the application's SQL runs on


class SqlDatabase(ABC, Generic[C]):
    """What `SqlView` needs of its database. Subclasses connect, and know their database's dialect."""

    _parameter: ClassVar[str] = "%s"
    _locked: ClassVar[str] = " FOR UPDATE"  # reads a row as it is now, and locks it
    _add_mark: ClassVar[str]  # -1 unless there is a mark
    _put_mark: ClassVar[str]
    _put_identity: ClassVar[str]
    _put_key: ClassVar[str] = PUT_KEY
    _key_text: ClassVar[str] = "VARCHAR(255)"  # compares byte by byte
    _table_options: ClassVar[str] = ""
    _atomic_definitions: ClassVar[bool] = True  # tables are made and dropped within a transaction
    _lock_out: ClassVar[str] = ""  # keeps everybody out until a rebuild is committed
    _defers: ClassVar[bool] = False  # sessions can send statements without waiting for each answer

    def __init__(
        self, where: str, errors: tuple[type[Exception], ...], schema: str, table: str, busy_timeout: float
    ) -> None:
        """`where` names the database in messages; `errors` are what its driver raises."""
        self._where = where
        self._errors = errors
        self._schema = schema
        self._table = table
        self._busy_timeout = busy_timeout
        self._writers: Sessions[C] = Sessions(lambda: self._connect(False), errors)
        self._readers: Sessions[C] = Sessions(lambda: self._connect(True), errors)

    def is_transient(self, error: Exception) -> bool:
        """The database is locked or cannot be reached right now."""
        return isinstance(error, TransactionLostError) or (isinstance(error, self._errors) and self._passes(error))

    def close(self) -> None:
        """Close every connection."""
        self._writers.close()
        self._readers.close()

    def _run(self, cursor: Any, statement: str, *values: object) -> Any:
        """A statement of ours, written with `?` for its values."""
        cursor.execute(statement.format(table=self._table).replace("?", self._parameter), values)
        return cursor

    # ---- tables --------------------------------------------------------------------------------------

    def _create_tables(self, cursor: C) -> None:
        """Make the tables of ours where they are missing."""
        for definition in (*_DEFINITIONS, *DEFINITIONS):
            self._run(cursor, definition.replace("KEY_TEXT", self._key_text) + self._table_options)

    def _tables(self) -> list[str]:
        """The tables and views that the schema makes."""
        return tables_of(self._schema)

    @contextmanager
    def _running_schema(self) -> Iterator[None]:
        """The statements of the application's schema run.

        Raises:
            ConfigError: the database refuses one of them.
        """
        try:
            yield
        except self._errors as error:
            if self.is_transient(error):
                raise
            raise ConfigError(
                f"{self._where}: the statements of schema=... fail: {error}. They run at every opening: "
                "write CREATE TABLE IF NOT EXISTS"
            ) from error

    # ---- connections ---------------------------------------------------------------------------------

    def _session(
        self, partition: int = -1, expected: int = -1, *, reads: bool = False
    ) -> AbstractContextManager[Session[C]]:
        """A connection for this thread alone, kept for later unless it fails."""

        def failed(error: Exception) -> None:
            if self._loses_connections(error):
                self.close()  # the idle ones are as dead, and each would cost an attempt
            if self._misses_table(error):
                raise ViewRegressedError(partition, None, expected) from error

        self._check_place(partition, expected)
        return (self._readers if reads else self._writers).lend(failed)

    def _check_place(self, partition: int, expected: int) -> None:
        """See that the database is the one that was opened, where that can be seen from outside."""

    @abstractmethod
    def _connect(self, reads: bool) -> Session[C]:
        """A new connection, to a database that is this view's."""

    @abstractmethod
    def _own(self, theirs: Any) -> AbstractContextManager[C]:
        """A cursor of ours beside one of the application's, which may make rows of another form."""

    @abstractmethod
    def _passes(self, error: Exception) -> bool:
        """Trying again may help against an error of the driver."""

    @abstractmethod
    def _refuses_change(self, error: Exception) -> bool:
        """The database refused to change data in a transaction that only reads."""

    def _loses_connections(self, error: Exception) -> bool:
        """The server went away, and every connection with it."""
        return False

    def _misses_table(self, error: Exception) -> bool:
        """A table of ours is gone."""
        return False

    def _names_ours(self, error: Exception) -> bool:
        """The text of an error names a table of ours."""
        text = str(error).lower()
        return self._table.lower() in text or IDENTITIES.lower() in text

"""Connections to MySQL and MariaDB on which only the view begins and ends transactions; needs PyMySQL.

Statements that end a transaction there, as every change of a table's definition does, are refused while the
application's code runs. Connections do not commit by themselves: when a deadlock has made the server roll a
transaction back and `apply` has caught the error, what it does next belongs to another transaction, and is not
committed. How statements of `apply` are sent to MariaDB without waiting is in `mysql_pipeline.py`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pymysql
import pymysql.cursors
from pymysql.constants import CLIENT

from waltz_core.base.errors import ConfigError, StateReadOnlyError
from waltz_trio.client.mysql_pipeline import Cursor, Pipelined
from waltz_trio.client.values import Receipt

ERRORS: tuple[type[Exception], ...] = (pymysql.err.Error,)

_FIRST = re.compile(
    r"(?:\s|--\s[^\n]*(?:\n|\Z)|#[^\n]*(?:\n|\Z)|/\*(?![!M]).*?\*/)*\(*\s*(/\*|@?\w+)?\s*(@?\w*)", re.DOTALL
)
_ALLOWED = frozenset(
    {"SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "VALUES", "TABLE", "CALL", "DO"}
    | {"SAVEPOINT", "RELEASE", "SHOW", "EXPLAIN", "DESCRIBE", "DESC"}
)
_ALLOWED_PAIRS = frozenset({("CREATE", "TEMPORARY"), ("DROP", "TEMPORARY"), ("LOAD", "DATA"), ("LOAD", "XML")})
_CHANGES = frozenset(["CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME", "GRANT", "REVOKE"])
_NEVER = (1044, 1045, 1049, 1698)  # of accounts, passwords and databases that are not there
_LOST = (2003, 2006, 2013, 2055, 1053, 1080, 1927, 0)
_TRANSIENT = frozenset(
    {
        *_LOST,
        1020,  # a record has changed since it was read
        1021,  # the disk is full
        1040,  # too many connections
        1114,  # a table is full
        1158,
        1159,
        1160,
        1161,  # packets that did not come or go
        1205,  # a lock was not to be had in time
        1213,  # deadlock
        1412,  # a table was made anew since the snapshot
        1290,  # read-only: a change of primaries is under way
        1317,  # interrupted by an administrator
        1836,
        1969,  # max_statement_time
        3024,  # max_execution_time
        3572,
    }
)


class _Connection(Pipelined):
    guarded = False
    reads = False
    size_max: int | None = None  # the server's max_allowed_packet

    def _execute_command(self, command: int, sql: Any) -> None:
        """Refuse what the server would: it closes the connection, often before anybody has read why."""
        if self.size_max is not None and len(sql) + 1 >= self.size_max:
            raise pymysql.err.OperationalError(
                1153,
                f"a statement of {len(sql)} bytes, and the server takes less than {self.size_max} "
                "(max_allowed_packet): write several, or raise it there",
            )
        super()._execute_command(command, sql)

    def query(self, sql: Any, unbuffered: bool = False) -> int:
        if self.guarded:
            self._check(sql)
        count: int = super().query(sql, unbuffered)
        return count

    def _check(self, sql: Any) -> None:
        text = sql.decode("utf-8", "replace") if isinstance(sql, bytes | bytearray) else str(sql)
        match = _FIRST.match(text)
        assert match is not None
        first, second = (word.upper() for word in match.groups(""))
        if first in _ALLOWED or (first, second) in _ALLOWED_PAIRS or (first == "SET" and second.startswith("@")):
            return
        if first == "ROLLBACK" and re.match(r"\s*ROLLBACK\s+(WORK\s+)?TO\s", text, re.IGNORECASE):
            return
        if first in _CHANGES and self.reads:
            raise StateReadOnlyError(
                f"SQL given to `decide` or `read` cannot change the view ({first} {second}): return an Append, and "
                "change the view in `apply`"
            )
        self._refuse(f"{first} {second}".strip())

    def _refuse(self, what: str) -> None:
        raise RuntimeError(
            f"{what}: only the view begins and ends its transactions and changes its session, and in MySQL and MariaDB "
            "a change of definitions ends them. Tables are made by schema=...; savepoints are yours"
        )

    def _allow(self, what: str) -> None:
        if self.guarded:
            self._refuse(what)

    def close(self) -> None:
        self._allow("close()")
        super().close()

    def begin(self) -> None:
        self._allow("begin()")
        super().begin()

    def commit(self) -> None:
        self._allow("commit()")
        super().commit()

    def rollback(self) -> None:
        self._allow("rollback()")
        super().rollback()

    def autocommit(self, value: Any) -> None:
        self._allow("autocommit()")
        super().autocommit(value)

    def ping(self, reconnect: Any = False) -> None:
        self._allow("ping()")
        super().ping(reconnect)

    def select_db(self, db: Any) -> None:
        self._allow("select_db()")
        super().select_db(db)


class MySqlSession:
    """One connection; with `claims` a short-lived one that runs a schema of many statements."""

    def __init__(
        self, options: Mapping[str, Any], lock_timeout: float, *, reads: bool = False, claims: bool = False
    ) -> None:
        """Connect.

        Raises:
            ConfigError: with `claims`: no server will ever accept this.
            pymysql.Error: not now.
        """
        given = {"charset": "utf8mb4", "connect_timeout": 10, "read_timeout": 120, "write_timeout": 120, **options}
        try:
            self._connection = _Connection(
                **given,
                autocommit=False,
                client_flag=CLIENT.MULTI_STATEMENTS if claims else 0,
                cursorclass=Cursor,
            )
        except pymysql.err.OperationalError as error:
            if claims and error.args and error.args[0] in _NEVER:
                raise ConfigError(f"the server does not accept this view: {error}") from error
            raise
        # PyMySQL looks up exact types, and takes any other for a text: that of a receipt is not its number.
        self._connection.encoders.setdefault(Receipt, lambda receipt, _=None: str(int(receipt)))
        self._reads = self._connection.reads = reads
        self._usable = True
        level = "REPEATABLE READ" if reads else "READ COMMITTED"
        with self._connection.cursor() as cursor:
            cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
            cursor.execute("SET SESSION innodb_lock_wait_timeout = %s", (max(1, round(lock_timeout)),))
            cursor.execute("SELECT @@max_allowed_packet")
            self._connection.size_max = cursor.fetchone()[0]

    @property
    def usable(self) -> bool:
        """It may serve another transaction."""
        return self._usable and self._connection.open

    def close(self) -> None:
        """Give the connection up."""
        self._usable = False
        with contextlib.suppress(pymysql.err.Error):
            self._connection.close()

    def run(self, statements: str) -> None:
        """Statements outside of a transaction."""
        with self._connection.cursor() as cursor:
            cursor.execute(statements)
            while cursor.nextset():
                pass

    @contextlib.contextmanager
    def transaction(self) -> Iterator[pymysql.cursors.Cursor]:
        """A transaction; one that reads sees one snapshot."""
        connection = self._connection
        begin = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY" if self._reads else "START TRANSACTION"
        try:
            connection.query(begin)
            with connection.cursor() as cursor:
                yield cursor
        except BaseException:
            try:
                connection.rollback()
            except pymysql.err.Error:
                self._usable = False
            raise
        if self._reads:
            connection.rollback()
        else:
            connection.commit()

    @contextlib.contextmanager
    def foreign(self, deferred: bool = False) -> Iterator[None]:
        """The application's code runs."""
        connection = self._connection
        connection.guarded = True
        try:
            with connection.deferred() if deferred and connection.can_defer else contextlib.nullcontext():
                yield
        finally:
            connection.guarded = False


def code_of(error: Exception) -> int:
    """The number of an error, 0 where the connection was closed already."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else -1


def passes(error: Exception) -> bool:
    """Trying again may help."""
    return isinstance(
        error, pymysql.err.OperationalError | pymysql.err.InterfaceError | pymysql.err.InternalError
    ) and (code_of(error) in _TRANSIENT)


def loses_connections(error: Exception) -> bool:
    """The server went away."""
    return code_of(error) in _LOST


def busy(text: str) -> Exception:
    """An error that passes."""
    return pymysql.err.OperationalError(1205, text)

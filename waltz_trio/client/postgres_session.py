"""Connections to PostgreSQL on which only the view begins and ends transactions; needs psycopg 3.

While the application's code runs, statements that would end the transaction or change the session are refused before
they are sent. Where its statements are deferred, psycopg's pipeline sends them without waiting for each answer; a
cursor that is asked for a result waits for it then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import psycopg
from psycopg import pq
from psycopg.rows import tuple_row

from waltz_core.base.errors import ConfigError
from waltz_trio.client.sql_sessions import CLOSED, TransactionLostError
from waltz_trio.client.statements import openings

ERRORS: tuple[type[Exception], ...] = (psycopg.Error,)

_ENDS = frozenset({"BEGIN", "START", "COMMIT", "END", "ABORT", "RESET", "DISCARD"})
_TRANSIENT = (
    "08",  # connection
    "40",  # deadlock, serialization
    "53",  # out of connections, memory, disk
    "58",  # input and output
    "57P",  # shutting down, starting
    "57014",  # cancelled by an administrator or a time-out
    "55P03",  # a lock was not to be had in time
    "25006",  # a writer on a server that only reads: a change of primaries is under way
)
_NEVER = ("password authentication failed", "no pg_hba.conf entry", "does not exist", "no password supplied")
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "waltz",
}


_TOGETHER = 32  # statements
_BYTES_TOGETHER = 64 << 10  # of their values
_CAN_GATHER = all(hasattr(psycopg.Pipeline, name) for name in ("_enqueue_sync", "_communicate_gen"))


class LostError(psycopg.OperationalError):
    """There is no connection, or none any more.

    What psycopg itself finds wrong with a call, such as too many parameters or a closed cursor, is of the same kinds
    of errors, and does not pass.
    """


class _Connection(psycopg.Connection[Any]):
    guarded = False
    pipelined: psycopg.Pipeline | None = None

    def wait(self, *args: Any, **options: Any) -> Any:
        """As psycopg's, which does everything in it that needs the server."""
        with self._telling_loss():
            return super().wait(*args, **options)

    def cursor(self, *args: Any, **options: Any) -> Any:
        with self._telling_loss():
            return super().cursor(*args, **options)

    @contextlib.contextmanager
    def _telling_loss(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            if error.sqlstate is None and self.closed:
                raise LostError(str(error)) from error
            raise

    def close(self) -> None:
        self._allow("close()")
        super().close()

    def commit(self) -> None:
        self._allow("commit()")
        super().commit()

    def rollback(self) -> None:
        self._allow("rollback()")
        super().rollback()

    def check(self, query: Any) -> None:
        """Refuse what would end the transaction or outlast it."""
        if self.guarded:
            text = query if isinstance(query, str) else _text(query, self)
            for words in openings(text):
                if _is_control(words):
                    self._refuse(" ".join(words))

    def settle(self) -> None:
        """Wait for the answers to what was sent."""
        if self.pipelined is not None:
            self.pipelined.sync()

    def _allow(self, what: str) -> None:
        if self.guarded:
            self._refuse(what)

    @staticmethod
    def _refuse(what: str) -> NoReturn:
        raise RuntimeError(
            f"{what}: only the view begins and ends its transactions and changes its session. Savepoints are yours "
            "(`with cursor.connection.transaction(): ...`), and so is SET LOCAL"
        )


class Cursor(psycopg.Cursor[Any]):
    """What `apply` and `decide` get: psycopg's cursor, in a transaction that it cannot end."""

    connection: _Connection

    def execute(self, query: Any, *args: Any, **options: Any) -> Cursor:
        """As psycopg's."""
        self.connection.check(query)
        super().execute(query, *args, **options)
        return self

    def executemany(self, query: Any, params_seq: Iterable[Any], *, returning: bool = False) -> None:
        """As psycopg's."""
        self.connection.check(query)
        super().executemany(query, params_seq, returning=returning)

    def stream(self, query: Any, *args: Any, **options: Any) -> Iterator[Any]:
        """As psycopg's."""
        self.connection.check(query)
        return super().stream(query, *args, **options)

    def copy(self, statement: Any, *args: Any, **options: Any) -> Any:
        """As psycopg's."""
        self.connection.check(statement)
        return super().copy(statement, *args, **options)

    @property
    def rowcount(self) -> int:
        """Rows of the last statement."""
        self.connection.settle()
        return super().rowcount

    @property
    def statusmessage(self) -> str | None:
        """What the server answered to the last statement."""
        self.connection.settle()
        return super().statusmessage

    @property
    def description(self) -> Any:
        """Columns of the last result."""
        self.connection.settle()
        return super().description


class _Gathered(psycopg.Pipeline):
    """Sends statements in groups.

    psycopg looks after each statement whether the connection takes more and has answers, which costs more than a small
    statement does. libpq keeps statements until there are 64 KiB of them, and answers can wait.
    """

    _count = 0  # statements since the last look
    _size = 0  # of their values
    _due = False

    def _enqueue_sync(self) -> None:
        super()._enqueue_sync()
        self._due = True

    def _communicate_gen(self) -> Any:
        while self.command_queue:
            command = self.command_queue.popleft()
            self._count += 1
            self._size += _size_of(command)
            command()
        if self._due or self._count >= _TOGETHER or self._size >= _BYTES_TOGETHER:
            self._count, self._size, self._due = 0, 0, False
            yield from super()._communicate_gen()


class PostgresSession:
    """One connection."""

    def __init__(self, conninfo: str, lock_timeout: float, marks: str | None, *, first: bool) -> None:
        """Connect; with `marks`, the table of marks, for transactions that only read.

        Raises:
            ConfigError: with `first`: no server will ever accept this.
            psycopg.Error: not now.
        """
        try:
            self._connection = _Connection.connect(
                psycopg.conninfo.make_conninfo(**{**_DEFAULTS, **psycopg.conninfo.conninfo_to_dict(conninfo)}),
                autocommit=True,
                cursor_factory=Cursor,
            )
        except psycopg.ProgrammingError as error:
            raise ConfigError(f"conninfo: {error}") from error
        except psycopg.OperationalError as error:
            if first and any(text in str(error) for text in _NEVER):
                raise ConfigError(f"PostgreSQL does not accept this view: {error}") from error
            raise LostError(str(error)) from error
        self._reads = marks is not None
        # A snapshot keeps no table that is dropped: a rebuild waits for this lock, which is there before the snapshot.
        self._begin = (
            f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; LOCK TABLE {marks} IN ACCESS SHARE MODE"
            if self._reads
            else "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
        )
        self._connection.execute(
            # A commit that is reported before it is on disk could be undone by a crash.
            "SELECT set_config('lock_timeout', %s, false), set_config('synchronous_commit', CASE "
            "WHEN current_setting('synchronous_commit') = 'off' THEN 'on' "
            "ELSE current_setting('synchronous_commit') END, false)",
            (str(max(1, int(lock_timeout * 1000))),),  # 0 would be no limit
        )

    @property
    def usable(self) -> bool:
        """It may serve another transaction."""
        return not self._connection.closed and self._connection.info.transaction_status is pq.TransactionStatus.IDLE

    def close(self) -> None:
        """Give the connection up."""
        with contextlib.suppress(psycopg.Error):
            self._connection.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Cursor]:
        """A transaction; one that reads keeps nothing, also no temporary table."""
        connection = self._connection
        connection.execute(self._begin)
        try:
            yield plain_cursor(connection)
        except BaseException:
            self._roll_back()
            raise
        if self._reads:
            self._roll_back()
        elif connection.execute("COMMIT").statusmessage != "COMMIT":
            raise TransactionLostError("PostgreSQL rolled the transaction back: an error in it was caught")

    def _roll_back(self) -> None:
        if self._connection.lock.locked():
            self.close()  # by a stream or a COPY that is half read: to wait for its end would be to wait for ever
        with contextlib.suppress(psycopg.Error):
            self._connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def foreign(self, deferred: bool = False) -> Iterator[Cursor]:
        """The application's code runs."""
        connection = self._connection
        theirs = plain_cursor(connection)
        try:
            if deferred and _CAN_GATHER:
                connection._pipeline = _Gathered(connection)  # which `pipeline` enters then
            with connection.pipeline() if deferred else contextlib.nullcontext() as connection.pipelined:
                connection.guarded = True
                yield theirs
        finally:
            connection.guarded, connection.pipelined = False, None
            connection.row_factory, connection.cursor_factory = tuple_row, Cursor


def plain_cursor(connection: _Connection) -> Cursor:
    """One whose rows are tuples."""
    with connection._telling_loss():
        return Cursor(connection, row_factory=tuple_row)


def _size_of(command: Any) -> int:
    """Bytes of the values of what psycopg sends; where that cannot be seen, as many as make a group."""
    try:
        return sum(len(value) for value in command.args[1] if value is not None)
    except (AttributeError, IndexError, TypeError):
        return _BYTES_TOGETHER


def fault_of(cursor: Cursor) -> str | None:
    """Why the view cannot go on with this transaction, None where it can."""
    connection = cursor.connection
    if connection.lock.locked():
        return "a stream or a COPY was not read to its end, and its transaction takes nothing before"
    if cursor.closed:
        return CLOSED
    if connection.info.transaction_status is pq.TransactionStatus.INERROR:
        return (
            "an error of PostgreSQL was caught, and the transaction takes nothing more: let it pass, or use a "
            "savepoint (`with cursor.connection.transaction(): ...`)"
        )
    return None


def state_of(error: Exception) -> str | None:
    """The SQLSTATE of an error, None where it is not of the server's."""
    assert isinstance(error, psycopg.Error)
    return error.sqlstate


def passes(error: Exception) -> bool:
    """Trying again may help."""
    return isinstance(error, LostError) or (state_of(error) or "").startswith(_TRANSIENT)


def loses_connections(error: Exception) -> bool:
    """The server went away."""
    return isinstance(error, LostError) or (state_of(error) or "").startswith(("08", "57P"))


def _is_control(words: tuple[str, ...]) -> bool:
    first, second = words[0], words[1] if len(words) > 1 else ""
    if first == "ROLLBACK":
        return "TO" not in words[1:]
    if first == "SET":
        return second not in ("LOCAL", "CONSTRAINTS")
    return first in _ENDS or (first == "PREPARE" and second == "TRANSACTION")


def _text(query: Any, connection: _Connection) -> str:
    if isinstance(query, bytes):
        return query.decode("utf-8", "replace")
    if isinstance(query, psycopg.sql.Composable):
        return query.as_string(connection)
    return "".join(getattr(query, "strings", ()))  # a template string


def place_of(cursor: Cursor) -> str:
    """The database, for messages; without a password."""
    info = cursor.connection.info
    row = cursor.execute("SELECT current_schema()").fetchone()
    schema = "" if row is None else f"schema {row[0]!r} of "
    return f"{schema}database {info.dbname!r} at {info.host or 'this machine'}:{info.port}"

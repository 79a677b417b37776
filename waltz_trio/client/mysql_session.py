"""Connections to MySQL and MariaDB on which only the view begins and ends transactions; needs PyMySQL.

Statements that end a transaction there, as every change of a table's definition does, are refused while the
application's code runs. Connections do not commit by themselves: when a deadlock has made the server roll a
transaction back and `apply` has caught the error, what it does next belongs to another transaction, and is not
committed. A savepoint tells which one it is: another member may have moved the mark meanwhile. It also tells of a
procedure that has ended the transaction, which no look at its CALL does. What such a procedure commits cannot be
undone: so before each CALL the marks are put to one that nobody takes, and to what they are to be when every call was
seen to have left the transaction alone. How statements of `apply` are sent to MariaDB without waiting is in
`mysql_pipeline.py`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pymysql
import pymysql.cursors
from pymysql.constants import CLIENT, SERVER_STATUS

from waltz_core.base.errors import ConfigError, StateReadOnlyError
from waltz_trio.client.mysql_pipeline import Cursor, Pipelined
from waltz_trio.client.sql_sessions import CLOSED, TransactionEndedError, TransactionLostError
from waltz_trio.client.values import Receipt

ERRORS: tuple[type[Exception], ...] = (pymysql.err.Error,)

_FIRST = re.compile(
    r"(?:\s|--\s[^\n]*(?:\n|\Z)|#[^\n]*(?:\n|\Z)|/\*(?![!M]).*?\*/)*\(*\s*(/\*|@?\w+)?\s*(@{0,2}\w*)", re.DOTALL
)
_WHOLE = "waltz_view_transaction"  # a savepoint: where it is, this is the transaction that was begun
_ENDED = (
    "a procedure that was called has ended the transaction: what was changed up to there may be committed, without the "
    "rest. Leave out COMMIT, ROLLBACK, START TRANSACTION and definitions of tables there, and build the view anew"
)
_OWN = re.compile(r"\s*@(?:[\w.$]+|\?)\s*:?=")  # an assignment to a variable of the application's
_IN_BRACKETS = re.compile(r"\([^()]*\)")
_LEFT_OPEN = re.compile(r"/\*|['\"`()]")  # also a comment that is run
_QUOTED = {
    escapes: re.compile(
        rf"""(?P<quoted>'(?:''|{escaped}[^'{but}])*'|"(?:""|{escaped}[^"{but}])*"|`[^`]*`)"""
        r"""|--\s[^\n]*|\#[^\n]*|/\*(?!M?!).*?\*/|(?P<open>['"`].*|/\*(?!M?!).*)""",
        re.DOTALL,
    )
    # No text can be read in two ways, nor from many places to its end: that would take years.
    for escapes, escaped, but in ((True, r"\\.|", r"\\"), (False, "", ""))
}
_ALLOWED = frozenset(
    {"SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "VALUES", "TABLE", "CALL", "DO"}
    | {"SAVEPOINT", "RELEASE", "SHOW", "EXPLAIN", "DESCRIBE", "DESC"}
)
_ALLOWED_PAIRS = frozenset({("CREATE", "TEMPORARY"), ("DROP", "TEMPORARY"), ("LOAD", "DATA"), ("LOAD", "XML")})
_CHANGES = frozenset(["CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME", "GRANT", "REVOKE"])
_NEVER = (1044, 1045, 1049, 1698)  # of accounts, passwords and databases that are not there
_LOST = (2003, 2006, 2013, 2055, 1053, 1080, 1927, 0)
_ENDING = frozenset({*_LOST, 1020, 1205, 1213})  # may roll the transaction back; 1205 where the server is set up so
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
    called = False  # a procedure, which can end the transaction
    gave_up = False  # the server, by an error that may end the transaction and passes
    before_calls: Sequence[str] = ()  # statements before each CALL
    after_calls: Sequence[str] = ()  # and when the application's code has run
    staked = False  # those of `before_calls` have run, and those of `after_calls` not yet
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
        return self._query(sql, unbuffered)

    def _query(self, sql: Any, unbuffered: bool = False) -> int:
        try:
            count: int = super().query(sql, unbuffered)
        except pymysql.err.Error as error:
            self.gave_up = self.gave_up or code_of(error) in _ENDING
            raise
        return count

    def _stake(self) -> None:
        """A procedure is about to be called: where it commits the transaction, let nobody take that for the whole.

        Before each call anew: behind a deadlock that `apply` has caught, this is not the transaction of the last one.
        """
        self.called = self.staked = True
        for statement in self.before_calls:
            self._query(statement)

    def redeem(self) -> None:
        """Every call has left the transaction alone."""
        if self.staked:
            self.staked = False
            for statement in self.after_calls:
                self._query(statement)

    def _check(self, sql: Any) -> None:
        text = sql.decode("utf-8", "replace") if isinstance(sql, bytes | bytearray) else str(sql)
        match = _FIRST.match(text)
        assert match is not None
        first, second = (word.upper() for word in match.groups(""))
        if first == "CALL":
            self._stake()
        if first in _ALLOWED or (first, second) in _ALLOWED_PAIRS:
            return
        escapes = not self.server_status & SERVER_STATUS.SERVER_STATUS_NO_BACKSLASH_ESCAPES
        if first == "SET" and _sets_own(text[match.end(1) :], escapes):
            return
        if first == "ROLLBACK" and re.match(r"\s*ROLLBACK\s+(WORK\s+)?TO\s", text, re.IGNORECASE):
            return
        if first in _CHANGES and self.reads:
            raise StateReadOnlyError(
                f"SQL given to `decide` or `read` cannot change the view ({first} {second}): return an Append, and "
                "change the view in `apply`"
            )
        self._refuse(f"{first} {second}".strip())

    def begin_whole(self) -> None:
        """Know this transaction again."""
        super().query(f"SAVEPOINT {_WHOLE}")

    def end_whole(self) -> bool:
        """Whether it is still the transaction of `begin_whole`."""
        try:
            super().query(f"RELEASE SAVEPOINT {_WHOLE}")
        except pymysql.err.Error as error:
            if code_of(error) != 1305:
                raise
            return False
        return True

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
        self._runs_apply = not reads and not claims
        self._usable = True
        level = "REPEATABLE READ, READ ONLY" if reads else "READ COMMITTED"
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
            if self._runs_apply:
                connection.called = connection.gave_up = connection.staked = False
                connection.begin_whole()
            with connection.cursor() as cursor:
                yield cursor
            if self._runs_apply and not connection.end_whole():
                raise TransactionLostError("the server gave the transaction up, and the error was caught: let it pass")
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

    def around_calls(self, before: Sequence[str], after: Sequence[str]) -> None:
        """Statements to run before each CALL of the application's code that runs next, and at the end of that code."""
        self._connection.before_calls, self._connection.after_calls = before, after

    @contextlib.contextmanager
    def foreign(self, deferred: bool = False) -> Iterator[pymysql.cursors.Cursor]:
        """The application's code runs."""
        connection = self._connection
        with plain_cursor(connection) as theirs:
            connection.guarded = True
            try:
                with connection.deferred() if deferred and connection.can_defer else contextlib.nullcontext():
                    yield theirs
                connection.redeem()
            finally:
                connection.guarded = False
                connection.before_calls = connection.after_calls = ()
                connection.cursorclass = Cursor


def plain_cursor(connection: Any) -> pymysql.cursors.Cursor:
    """One whose rows are tuples."""
    cursor: pymysql.cursors.Cursor = Cursor(connection)
    return cursor


def check_open(cursor: Any) -> None:
    """See that the transaction can go on.

    Raises:
        RuntimeError: the application has closed the cursor.
        TransactionEndedError: it has ended the transaction.
        TransactionLostError: the server gave it up.
    """
    connection = cursor.connection
    if connection is None:
        raise RuntimeError(CLOSED)
    if connection.called:
        if not connection.end_whole():
            raise TransactionLostError(_ENDED) if connection.gave_up else TransactionEndedError(_ENDED)
        connection.called = False
        connection.begin_whole()


def _sets_own(assignments: str, escapes: bool) -> bool:
    """SET gives values to variables of the application's own, @NAME, and to nothing else."""
    text = _QUOTED[escapes].sub(
        lambda piece: "?" if piece.group("quoted") else "'" if piece.group("open") else " ", assignments
    )
    flat = ""
    while flat != text:
        flat, text = text, _IN_BRACKETS.sub("", text)
    return not _LEFT_OPEN.search(flat) and all(map(_OWN.match, flat.split(",")))


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

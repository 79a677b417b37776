"""Statements sent to MariaDB without waiting for each answer; needs PyMySQL.

    execute(INSERT …) ──► sent later, with others ──► its answer is read ──► kept for whoever asks for its rows
                                                           └── an error ──► raised where somebody waits, and at the end

Who sends one statement and waits for its answer before the next lets client and server take turns, and each turn wakes
a process. Here statements that answer with nothing but a number of rows go out one after the other. The server runs
them in this order, each when the one before it has ended. Every other statement, and whatever is asked about one, waits
for all answers before it.

A statement that fails does not end the transaction in MySQL, and those behind it have been sent. So the first error is
kept: it is raised at the next wait and, whatever the application does with it there, by `settle` at the end. Whoever
runs this must roll back then, and may run the same again with an answer to each statement.

So few answers are ever owed that all of them fit into what the system buffers, and neither side waits for the other to
read.
"""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pymysql
import pymysql.cursors

_OWED_MAX = 128  # answers: an error has at most some 600 bytes
_SEND_FROM = 8 << 10  # bytes that are sent together
_SIZE_MAX = 1 << 20  # of a statement that is sent without waiting
_CHANGES_ROWS = re.compile(r"\s*(?:INSERT|UPDATE|DELETE|REPLACE)\b(?!.*\bRETURNING\b)", re.IGNORECASE | re.DOTALL)
_Connection: Any = pymysql.connections.Connection  # whose inner methods are meant here, which no stubs name
_Cursor: Any = pymysql.cursors.Cursor
_NEEDED = ("_execute_command", "_read_query_result", "_write_bytes")


@lru_cache(maxsize=256)
def _changes_rows(statement: str) -> bool:
    """It answers with a number of rows alone, and begins with no comment or parameter, which could hide another one."""
    return _CHANGES_ROWS.match(statement) is not None


class Rows:
    """The number of rows that a statement has changed: a number, for which its answer is waited for."""

    __slots__ = ("_connection", "error", "result")

    def __init__(self, connection: Pipelined) -> None:
        self._connection = connection
        self.result: Any = None  # of PyMySQL, once the answer is read
        self.error: Exception | None = None  # or this

    def answer(self) -> Any:
        """What PyMySQL says of the answer.

        Raises:
            pymysql.Error: the statement, or one that was sent before it, has failed.
        """
        if self.result is None:
            self._connection.settle()
        if self.error is not None:
            raise self.error
        return self.result

    def __int__(self) -> int:
        count: int = self.answer().affected_rows
        return count

    __index__ = __hash__ = __int__

    def __bool__(self) -> bool:
        return int(self) != 0

    def __eq__(self, other: object) -> bool:
        return int(self) == (int(other) if isinstance(other, Rows) else other)

    def __lt__(self, other: Any) -> bool:
        return int(self) < int(other)

    def __le__(self, other: Any) -> bool:
        return int(self) <= int(other)

    def __gt__(self, other: Any) -> bool:
        return int(self) > int(other)

    def __ge__(self, other: Any) -> bool:
        return int(self) >= int(other)

    def __add__(self, other: Any) -> int:
        return int(self) + int(other)

    __radd__ = __add__

    def __repr__(self) -> str:
        return str(int(self))

    def __format__(self, form: str) -> str:
        return format(int(self), form)


class Pipelined(_Connection):  # type: ignore[misc,unused-ignore]
    """A connection that can send statements without waiting, while it is `deferring`."""

    deferring = False
    _later: Rows | None = None  # the statement that is just being sent
    _failed: Exception | None = None  # the first error of those that were sent without waiting

    def __init__(self, *args: Any, **options: Any) -> None:
        self._owed: deque[Rows] = deque()  # whose answers were not read
        self._unsent = bytearray()
        super().__init__(*args, **options)

    @property
    def can_defer(self) -> bool:
        """Of what speaks the protocol, MariaDB is known to take statements that come early."""
        return "mariadb" in str(self.server_version).lower() and all(hasattr(type(self), name) for name in _NEEDED)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Statements need not wait for their answers.

        Raises:
            pymysql.Error: what the first of them failed with; the transaction must be rolled back.
        """
        self.deferring = True
        try:
            yield
            self.settle()
        finally:
            self.deferring = False
            self._failed = None
            if self.open:
                self._take_answers()  # of an application that has failed by itself
            self._forget()

    def defer(self, statement: str) -> Rows:
        """Send a statement that answers with a number of rows alone."""
        result = self._result
        if len(statement) > _SIZE_MAX or (result is not None and (result.has_next or result.unbuffered_active)):
            self.settle()
            self.query(statement)
            rows = Rows(self)
            rows.result = self._result
            return rows
        self._later = rows = Rows(self)
        try:
            super().query(statement)
        finally:
            self._later = None
        if len(self._owed) >= _OWED_MAX:
            self._take_answers(_OWED_MAX // 2)
        elif len(self._unsent) >= _SEND_FROM:
            self._send()
        return rows

    def settle(self) -> None:
        """Wait for every answer.

        Raises:
            pymysql.Error: the first that a statement failed with, again and again.
        """
        self._take_answers()
        if self._failed is not None:
            raise self._failed

    def query(self, sql: Any, unbuffered: bool = False) -> int:
        """As PyMySQL's."""
        if self.deferring:
            self.settle()
        count: int = super().query(sql, unbuffered)
        return count

    def insert_id(self) -> Any:
        """As PyMySQL's."""
        self.settle()
        return super().insert_id()

    def affected_rows(self) -> Any:
        """As PyMySQL's."""
        self.settle()
        return super().affected_rows()

    # ---- what PyMySQL calls ----------------------------------------------------------------------------

    def _execute_command(self, command: int, sql: Any) -> None:
        if self._later is None:
            self._take_answers()
        super()._execute_command(command, sql)

    def _write_bytes(self, data: bytes) -> None:
        if self._later is None:
            super()._write_bytes(data)
        else:
            self._unsent += data

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        if self._later is not None:
            self._owed.append(self._later)
            return 0
        return super()._read_query_result(unbuffered)

    def _force_close(self) -> None:
        self._forget()
        super()._force_close()

    # ---- answers ---------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._owed.clear()
        self._unsent.clear()

    def _send(self) -> None:
        if self._unsent:
            data = bytes(self._unsent)
            self._unsent.clear()
            super()._write_bytes(data)

    def _take_answers(self, leave: int = 0) -> None:
        """Read answers until so many are owed; errors of statements are kept."""
        if len(self._owed) <= leave:
            return
        self._send()
        while len(self._owed) > leave:
            rows = self._owed.popleft()
            self._next_seq_id = 1
            try:
                self._affected_rows = super()._read_query_result()
            except pymysql.err.Error as error:
                if not self.open:
                    raise
                rows.error = error
                self._failed = self._failed or error
            else:
                rows.result = self._result


def _of_last(name: str) -> Any:
    """What a cursor says of its last statement, for which its answer is waited for."""
    kept = f"_kept_{name}"

    def get(cursor: Cursor) -> Any:
        if cursor._rows_later is not None:
            cursor._hear()
        return getattr(cursor, kept)

    def put(cursor: Cursor, value: Any) -> None:
        if cursor._rows_later is not None:
            cursor._hear()  # what it says of its last statement, before the sum over many replaces that
        setattr(cursor, kept, value)

    return property(get, put)


class Cursor(_Cursor):  # type: ignore[misc,unused-ignore]
    """PyMySQL's, which sends a statement without waiting where its connection does that."""

    _rows_later: Rows | None = None
    rowcount = _of_last("rowcount")
    lastrowid = _of_last("lastrowid")
    warning_count = _of_last("warning_count")

    def execute(self, query: Any, args: Any = None) -> Any:
        """As PyMySQL's."""
        connection: Any = self.connection
        self._rows_later = None
        if connection is None or not connection.deferring or not isinstance(query, str) or not _changes_rows(query):
            return super().execute(query, args)
        self._clear_result()
        statement = query if args is None else self._mogrify(query, args)
        self._rows_later = rows = connection.defer(statement)
        self._executed = statement
        return rows

    def _hear(self) -> None:
        rows, self._rows_later = self._rows_later, None
        assert rows is not None
        result = rows.answer()
        self.rowcount, self.lastrowid = result.affected_rows, result.insert_id
        self.warning_count = result.warning_count

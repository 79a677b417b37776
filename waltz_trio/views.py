"""Views: application state kept up to date with the log, data and mark in one transaction."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from waltz_core.base.errors import ConfigError, StateReadOnlyError, ViewIdentityError, ViewRegressedError
from waltz_core.base.log import MARKER_HEADER
from waltz_trio.arguments import mark as mark_of
from waltz_trio.arguments import whole
from waltz_trio.states import Journal, can_be_wrapped, wrapped
from waltz_trio.values import Batch, Transaction

S = TypeVar("S")

TABLE = "CLIENT_HIGH_WATER_MARK"
"""Where marks are kept, as the original's JDBC callbacks lay it out: both can share a database."""

IDENTITIES = "WALTZ_VIEWS"
"""Whose the marks of a database are. The original knows nothing of this table."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?\Z")


class View(Protocol):
    """State and mark of any number of partitions.

    All methods are synchronous; they run in a worker thread if `threaded`. `commit` and `read` may run
    at the same time, `commit` never twice at once for one partition.
    """

    threaded: bool

    def load_mark(self, partition: int) -> int:
        """The stored mark, -1 if there is none yet. Called once per partition, before anything else."""

    def commit(self, batch: Batch) -> int:
        """Apply a batch and move the mark from `first_id` - 1 to `last_id`, all or nothing; returns the stored mark.

        Another process may have applied a part of it already, or all. Transactions with the header
        `waltz_core.base.log.MARKER_HEADER` only move the mark: the pipeline's writers make them for themselves.

        Raises:
            ApplyError: a transaction cannot be applied.
            ViewRegressedError: the stored mark is below what this process has applied.
        """

    def read(self, partition: int, decide: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
        """`decide(state, *args)` and the mark of the state that it saw."""

    def is_transient(self, error: Exception) -> bool:
        """Trying again may help: a connection is gone, a lock is taken."""

    def close(self) -> None:
        """Give up what is open."""


class ApplyError(Exception):
    """A transaction cannot be applied; `__cause__` says why. Raised by views, seen as ApplyFailedError."""

    def __init__(self, transaction: Transaction) -> None:
        super().__init__(f"applying {transaction!r} failed")
        self.transaction = transaction


def check_apply(apply: Callable[..., Any]) -> None:
    """Refuse what would be called and do nothing.

    Raises:
        TypeError: `apply` is `async def` or a generator function.
    """
    if not callable(apply):
        raise TypeError(f"apply must be a function of a transaction and the state, not {apply!r}")
    inner = apply
    while isinstance(inner, functools.partial):
        inner = inner.func
    for function in (inner, getattr(type(inner), "__call__", None)):  # noqa: B004 - of the class, not whether
        if (
            inspect.iscoroutinefunction(function)
            or inspect.isasyncgenfunction(function)
            or inspect.isgeneratorfunction(function)
        ):
            raise TypeError(
                f"apply must be a plain function, and {name_of(apply)} is `async def` or a generator: "
                "calling it would change nothing. Views are changed inside one transaction, without awaiting"
            )


def call_apply(apply: Callable[..., Any], transaction: Transaction, state: Any) -> None:
    """Call it, and refuse a coroutine that it returns."""
    result = apply(transaction, state)
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(f"apply returned {result!r}, which nobody awaits: it must be a plain function")


def name_of(apply: Callable[..., Any]) -> str:
    """Module and name of a function, the same whether its module is run or imported."""
    while isinstance(apply, functools.partial):
        apply = apply.func
    named = apply if hasattr(apply, "__qualname__") else type(apply)
    module = named.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        module = spec.name if spec is not None else Path(getattr(main, "__file__", None) or "__main__").stem
    return f"{module}.{named.__qualname__}"


class DictView(Generic[S]):
    """State in memory: `apply(txn, state)` changes `state`, a dict unless given.

    Nothing is kept across restarts, so every partition is read from its start. `decide` functions get the state
    read-only. Where the state is a dict, a list or a set, a transaction that cannot be applied changes nothing of it.
    """

    threaded = False

    def __init__(self, apply: Callable[[Transaction, Any], None], state: Any = None) -> None:
        check_apply(apply)
        self.state: Any = {} if state is None else state
        self.marks: dict[int, int] = {}
        self._apply = apply
        self._torn: ApplyError | None = None  # what left the state half changed

    def seed(self, partition: int, mark: int) -> None:
        """Begin behind `mark`; the state must be that of this mark."""
        self.marks[whole(partition, "a partition")] = mark_of(mark, "mark")

    def load_mark(self, partition: int) -> int:
        """-1, or the seeded mark."""
        return self.marks.setdefault(partition, -1)

    def commit(self, batch: Batch) -> int:
        """Apply one transaction after the other, each as a whole or not at all; errors as `View.commit`."""
        mark = self.marks[batch.partition]
        journal = Journal()
        state = wrapped(self.state, journal)
        for transaction in batch:
            if transaction.id <= mark:
                continue
            if transaction.id != mark + 1:
                raise ViewRegressedError(batch.partition, mark, transaction.id - 1)
            self._check_whole()
            if transaction.header != MARKER_HEADER:
                self._apply_one(transaction, state, journal)
            mark = self.marks[batch.partition] = transaction.id
        return mark

    def read(self, partition: int, decide: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
        """`decide(state, *args)`; a dict, a list or a set cannot be changed by it."""
        self._check_whole()
        return decide(wrapped(self.state, None), *args), self.marks[partition]

    def is_transient(self, error: Exception) -> bool:
        """Never: there is nothing to wait for."""
        return False

    def close(self) -> None:
        """Nothing to give up."""

    def _apply_one(self, transaction: Transaction, state: Any, journal: Journal) -> None:
        try:
            call_apply(self._apply, transaction, state)
        except BaseException as error:
            failed = ApplyError(transaction)
            failed.__cause__ = error
            if not journal.take_back() or not can_be_wrapped(self.state):
                self._torn = failed
            if isinstance(error, Exception):
                raise failed from error
            raise
        journal.forget()

    def _check_whole(self) -> None:
        if self._torn is not None:
            error = ApplyError(self._torn.transaction)
            error.add_note(
                f"the state is half changed, and cannot be put back: {type(self.state).__name__} is no dict, list or "
                "set, or holds what cannot be copied"
            )
            raise error from self._torn.__cause__


class SqliteView:
    """State in one SQLite file: `apply(txn, cursor)` changes it, inside the transaction that moves the mark.

    `apply` and `decide` get a cursor that can neither begin nor end transactions, and that of `decide` cannot change
    data either. A file may be shared by several processes: each transaction is applied by one of them. The file
    remembers whose its marks are: a view of another name, or of another version, is refused.

    Args:
        path: the database file; created if absent.
        apply: what a transaction does to the data.
        schema: SQL statements run once at the start, for tables that may not exist yet.
        table: where the marks are kept.
        busy_timeout: seconds to wait for another process before trying again later.
        name: of the view; that of the function `apply` and its module unless given.
        version: of what `apply` and `schema` mean; raise it when old data would be wrong.
        rebuild: where the file holds an older version, drop the tables of its schema and begin at the start of the log.
    """

    threaded = True

    def __init__(
        self,
        path: str | Path,
        apply: Callable[[Transaction, sqlite3.Cursor], None],
        *,
        schema: str = "",
        table: str = TABLE,
        busy_timeout: float = 5.0,
        name: str | None = None,
        version: int = 1,
        rebuild: bool = False,
    ) -> None:
        if not _NAME.match(table):
            raise ConfigError(f"{table!r} cannot be the name of a table")
        if str(path) in ("", ":memory:"):
            raise ConfigError(f"{str(path)!r} is another database for every connection: use a file, or DictView")
        if rebuild and not schema.strip():
            raise ConfigError("rebuild=True needs schema=...: it says which tables are made anew")
        check_apply(apply)
        self.path = str(path)
        self.name = name_of(apply) if name is None else name
        self.version = version
        self._rebuild = rebuild
        self._apply = apply
        self._schema = schema
        self._table = table
        self._busy_timeout = busy_timeout
        self._writers: list[_Session] = []
        self._readers: list[_Session] = []
        self._file: tuple[int, int] | None = None  # device and number of the file, once it was opened
        self._marks: dict[int, int] = {}  # what this process has seen stored

    def seed(self, partition: int, mark: int, load: Callable[[sqlite3.Cursor], None]) -> None:
        """Set data and mark together, so that a new view need not begin at the start of the log."""
        self.seed_all({partition: mark}, load)

    def seed_all(self, marks: Mapping[int, int], load: Callable[[sqlite3.Cursor], None]) -> None:
        """Set data and the marks of several partitions in one SQL transaction."""
        marks = {whole(partition, "a partition"): mark_of(mark, "mark") for partition, mark in marks.items()}
        with self._session() as session, session.transaction("IMMEDIATE") as cursor:
            self._check_identity(cursor)
            with session.foreign():
                load(cursor)
            self._set_marks(cursor, marks)

    def catch_up(self, cut: Mapping[int, int], read: Callable[[int, int], Iterable[Transaction]]) -> dict[int, int]:
        """Apply everything up to the marks of `cut` that is not applied yet, in one SQL transaction.

        Args:
            cut: a mark by partition.
            read: given a partition and a mark, every transaction behind it up to the cut, in order.

        Returns:
            The marks that were stored before, -1 where there was none.

        Raises:
            ApplyError: a transaction cannot be applied; nothing is changed.
            ViewRegressedError: `read` leaves a transaction out.
            ValueError: a partition is already beyond its cut.
        """
        found = {}
        with self._session() as session, session.transaction("IMMEDIATE") as cursor:
            self._check_identity(cursor)
            for partition, end in cut.items():
                stored = self._mark(cursor, partition)
                mark = found[partition] = -1 if stored is None else stored
                if mark > end:
                    raise ValueError(f"partition {partition} of {self.path} is at {mark} already, beyond the cut {end}")
                with session.foreign():
                    for transaction in read(partition, mark) if mark < end else ():
                        if transaction.id != mark + 1:
                            raise ViewRegressedError(partition, mark, transaction.id - 1)
                        if transaction.header != MARKER_HEADER:
                            self._apply_one(transaction, cursor)
                        mark = transaction.id
                if mark != end:
                    raise ViewRegressedError(partition, mark, end)
            self._set_marks(cursor, cut)
        return found

    def load_mark(self, partition: int) -> int:
        """The stored mark; a missing row is created with -1, in a transaction of its own."""
        with self._session() as session, session.transaction("IMMEDIATE") as cursor:
            self._check_identity(cursor)
            cursor.execute(
                f"INSERT INTO {self._table} (PARTITION_ID, HIGH_WATER_MARK) VALUES (?, -1) ON CONFLICT DO NOTHING",
                (partition,),
            )
            mark = self._mark(cursor, partition)
        assert mark is not None
        self._marks[partition] = mark
        return mark

    def commit(self, batch: Batch) -> int:
        """One SQL transaction: move the mark under the condition that it is where we think, then apply.

        Where the condition fails, another process has applied some or all of the batch, or the database was
        put back: then nothing is applied (0.13.2 would skip every later transaction without a word).
        """
        partition, expected = batch.partition, batch.first_id - 1
        with self._session(partition, expected) as session, session.transaction("IMMEDIATE") as cursor:
            self._check_identity(cursor, partition, expected)
            cursor.execute(
                f"UPDATE {self._table} SET HIGH_WATER_MARK = ? WHERE PARTITION_ID = ? AND HIGH_WATER_MARK = ?",
                (batch.last_id, partition, expected),
            )
            if cursor.rowcount != 1:
                stored = self._mark(cursor, partition)
                if stored is None or stored < expected:
                    raise ViewRegressedError(partition, stored, expected)
                if stored >= batch.last_id:
                    self._marks[partition] = stored
                    return stored
                expected = stored
                cursor.execute(
                    f"UPDATE {self._table} SET HIGH_WATER_MARK = ? WHERE PARTITION_ID = ?", (batch.last_id, partition)
                )
            with session.foreign():
                for transaction in batch:
                    if transaction.id > expected and transaction.header != MARKER_HEADER:
                        self._apply_one(transaction, cursor)
        self._marks[partition] = batch.last_id
        return batch.last_id

    def read(self, partition: int, decide: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
        """`decide(cursor, *args)` and the mark, from one snapshot of the database, which it cannot change.

        Raises:
            StateReadOnlyError: it tried to.
            ViewRegressedError: the mark went back, or the file is gone.
        """
        expected = self._marks.get(partition, -1)
        with self._session(partition, expected, reads=True) as session, session.transaction("DEFERRED") as cursor:
            mark = self._mark(cursor, partition)
            if mark is None or mark < expected:
                raise ViewRegressedError(partition, mark, expected)
            try:
                with session.foreign():
                    return decide(cursor, *args), mark
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_READONLY:
                    raise
                raise StateReadOnlyError(
                    f"SQL given to `decide` or `read` cannot change the view ({error}): return an Append, and change "
                    "the view in `apply`"
                ) from error

    def is_transient(self, error: Exception) -> bool:
        """The database is locked or cannot be reached right now."""
        return isinstance(error, sqlite3.OperationalError) and (
            (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _TRANSIENT or isinstance(error, _UnreachableError)
        )

    def close(self) -> None:
        """Close every connection."""
        for pool in (self._writers, self._readers):
            idle = pool[:]
            pool.clear()
            for session in idle:
                session.close()

    def _apply_one(self, transaction: Transaction, cursor: sqlite3.Cursor) -> None:
        try:
            call_apply(self._apply, transaction, cursor)
        except Exception as error:
            if self.is_transient(error):
                raise
            raise ApplyError(transaction) from error

    def _set_marks(self, cursor: sqlite3.Cursor, marks: Mapping[int, int]) -> None:
        cursor.executemany(
            f"INSERT INTO {self._table} (PARTITION_ID, HIGH_WATER_MARK) VALUES (?, ?) "
            "ON CONFLICT (PARTITION_ID) DO UPDATE SET HIGH_WATER_MARK = excluded.HIGH_WATER_MARK",
            marks.items(),
        )

    def _mark(self, cursor: sqlite3.Cursor, partition: int) -> int | None:
        row = cursor.execute(
            f"SELECT HIGH_WATER_MARK FROM {self._table} WHERE PARTITION_ID = ?", (partition,)
        ).fetchone()
        return None if row is None else int(row[0])

    # ---- whose the database is -----------------------------------------------------------------------

    @property
    def _identity(self) -> str:
        return f"view {self.name!r}, version {self.version}"

    def _stored_identity(self, cursor: sqlite3.Cursor) -> tuple[str, int, str] | None:
        """Name, version, and the tables of its schema."""
        row = cursor.execute(
            f"SELECT VIEW_NAME, VIEW_VERSION, SCHEMA_TABLES FROM {IDENTITIES} WHERE MARK_TABLE = ?",
            (self._table.lower(),),
        ).fetchone()
        return None if row is None else (row[0], row[1], row[2])

    def _check_identity(self, cursor: sqlite3.Cursor, partition: int = -1, expected: int = -1) -> None:
        """Another version may have rebuilt the database, or somebody have put it back, while this one is running."""
        stored = self._stored_identity(cursor)
        if stored is None:
            raise ViewRegressedError(partition, None, expected)
        if stored[:2] != (self.name, self.version):
            raise self._foreign(stored[0], stored[1], "it was rebuilt, or put back, while this view was running")

    def _foreign(self, name: str, version: int, advice: str) -> ViewIdentityError:
        return ViewIdentityError(self.path, f"view {name!r}, version {version}", self._identity, advice)

    def _claim(self, cursor: sqlite3.Cursor) -> None:
        """Make the tables of ours, and the database this view's, unless it belongs to another one.

        A database without an identity is adopted: it is new, or of a release that kept none.
        """
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {self._table} "
            "(PARTITION_ID INTEGER NOT NULL PRIMARY KEY, HIGH_WATER_MARK BIGINT NOT NULL)"
        )
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {IDENTITIES} (MARK_TABLE VARCHAR(255) NOT NULL PRIMARY KEY, "
            "VIEW_NAME VARCHAR(255) NOT NULL, VIEW_VERSION INTEGER NOT NULL, SCHEMA_TABLES TEXT NOT NULL)"
        )
        stored = self._stored_identity(cursor)
        if stored is not None:
            name, version, tables = stored
            if name != self.name:
                raise self._foreign(name, version, f"use another file, or name={name!r} if it was only renamed")
            if version > self.version:
                raise self._foreign(name, version, "a newer version is in use: run that one")
            if version == self.version:
                return
            if not self._rebuild:
                raise self._foreign(name, version, "rebuild=True makes it anew from the start of the log")
            for table in dict.fromkeys([*_tables_of(self._schema), *tables.splitlines()]):
                cursor.execute("DROP TABLE IF EXISTS " + _quoted(table))
            cursor.execute(f"UPDATE {self._table} SET HIGH_WATER_MARK = -1")
        cursor.execute(
            f"INSERT OR REPLACE INTO {IDENTITIES} VALUES (?, ?, ?, ?)",
            (self._table.lower(), self.name, self.version, "\n".join(_tables_of(self._schema))),
        )

    # ---- connections ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _session(self, partition: int = -1, expected: int = -1, *, reads: bool = False) -> Iterator[_Session]:
        """A connection for this thread alone, kept for later unless it fails."""
        if self._file is not None and _file_at(self.path) != self._file:
            raise ViewRegressedError(partition, None, expected)  # connections still have the file that was deleted
        pool = self._readers if reads else self._writers
        session = pool.pop() if pool else self._connect(reads)
        try:
            yield session
        except sqlite3.Error:
            session.close()
            raise
        except BaseException:
            pool.append(session)
            raise
        else:
            pool.append(session)

    def _connect(self, reads: bool) -> _Session:
        session = _Session(self.path, self._busy_timeout, create=self._file is None)
        try:
            if self._file is None:
                # Readers and the writer do not wait for each other; a commit still waits for the disk.
                session.connection.execute("PRAGMA journal_mode = WAL")
                with session.transaction("IMMEDIATE") as cursor:
                    self._claim(cursor)
                session.connection.executescript(self._schema)
                self._file = _file_at(self.path)
            session.connection.execute("PRAGMA synchronous = FULL")
            if reads:
                session.connection.execute(f"PRAGMA query_only = ON {_OURS}")
        except BaseException:
            session.close()
            raise
        return session


def _file_at(path: str) -> tuple[int, int] | None:
    """Device and number of a file; None if there is none."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _UnreachableError(f"{path} cannot be looked at: {error}") from error
    return status.st_dev, status.st_ino


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _tables_of(schema: str) -> list[str]:
    """The tables that a schema makes; none if it cannot run on an empty database."""
    connection = sqlite3.connect(":memory:")
    try:
        with contextlib.suppress(sqlite3.Error):
            connection.executescript(schema)
        rows = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
            "ORDER BY sql NOT LIKE 'CREATE VIRTUAL%', name"
        )
        return [row[0] for row in rows]
    finally:
        connection.close()


class _UnreachableError(sqlite3.OperationalError):
    """The file may be there again soon."""


_TRANSIENT = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
)

# The module caches prepared statements by their text, and only preparing asks the authorizer.
_OURS = "-- by the view"
_TRANSACTION_CONTROL = (sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
_GUARDS = ("query_only", "writable_schema", "schema_version")


class _Session:
    """One connection on which only we begin and end transactions."""

    def __init__(self, path: str, busy_timeout: float, create: bool) -> None:
        # A file that was deleted meanwhile must not come back empty.
        name = f"{Path(path).absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
        self.connection = sqlite3.connect(
            name, timeout=busy_timeout, isolation_level=None, check_same_thread=False, uri=True
        )
        self._guarded = False
        self.connection.set_authorizer(self._authorize)

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self.connection.close()

    @contextlib.contextmanager
    def transaction(self, mode: str) -> Iterator[sqlite3.Cursor]:
        self.connection.execute(f"BEGIN {mode} {_OURS}")
        try:
            yield self.connection.cursor()
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute(f"ROLLBACK {_OURS}")
            raise
        else:
            self.connection.execute(f"COMMIT {_OURS}")

    @contextlib.contextmanager
    def foreign(self) -> Iterator[None]:
        """The application's code runs: it may change data, not transactions."""
        self._guarded = True
        try:
            yield
        finally:
            self._guarded = False

    def _authorize(self, action: int, first: str | None, *details: object) -> int:
        denied = action in _TRANSACTION_CONTROL or (action == sqlite3.SQLITE_PRAGMA and first in _GUARDS)
        return sqlite3.SQLITE_DENY if self._guarded and denied else sqlite3.SQLITE_OK

"""Views: application state kept up to date with the log, data and mark in one transaction."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from waltz_core.errors import ConfigError, ViewRegressedError
from waltz_core.log import MARKER_HEADER
from waltz_trio.values import Batch, Transaction

S = TypeVar("S")

TABLE = "CLIENT_HIGH_WATER_MARK"
"""Where marks are kept, as the original's JDBC callbacks lay it out: both can share a database."""

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
        `waltz_core.log.MARKER_HEADER` only move the mark: the pipeline's writers make them for themselves.

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


class DictView(Generic[S]):
    """State in memory: `apply(txn, state)` changes `state`, a dict unless given.

    Nothing is kept across restarts, so every partition is read from its start. `decide` functions get the state.
    """

    threaded = False

    def __init__(self, apply: Callable[[Transaction, Any], None], state: Any = None) -> None:
        self.state: Any = {} if state is None else state
        self.marks: dict[int, int] = {}
        self._apply = apply

    def seed(self, partition: int, mark: int) -> None:
        """Begin behind `mark`; the state must be that of this mark."""
        self.marks[partition] = mark

    def load_mark(self, partition: int) -> int:
        """-1, or the seeded mark."""
        return self.marks.setdefault(partition, -1)

    def commit(self, batch: Batch) -> int:
        """Apply one transaction after the other; errors as `View.commit`."""
        mark = self.marks[batch.partition]
        for transaction in batch:
            if transaction.id <= mark:
                continue
            if transaction.id != mark + 1:
                raise ViewRegressedError(batch.partition, mark, transaction.id - 1)
            try:
                if transaction.header != MARKER_HEADER:
                    self._apply(transaction, self.state)
            except Exception as error:
                raise ApplyError(transaction) from error
            mark = self.marks[batch.partition] = transaction.id
        return mark

    def read(self, partition: int, decide: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
        """`decide(state, *args)`."""
        return decide(self.state, *args), self.marks[partition]

    def is_transient(self, error: Exception) -> bool:
        """Never: there is nothing to wait for."""
        return False

    def close(self) -> None:
        """Nothing to give up."""


class SqliteView:
    """State in one SQLite file: `apply(txn, cursor)` changes it, inside the transaction that moves the mark.

    `apply` and `decide` get a cursor that can neither begin nor end transactions. A file may be shared by
    several processes: each transaction is applied by one of them.

    Args:
        path: the database file; created if absent.
        apply: what a transaction does to the data.
        schema: SQL statements run once at the start, for tables that may not exist yet.
        table: where the marks are kept.
        busy_timeout: seconds to wait for another process before trying again later.
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
    ) -> None:
        if not _NAME.match(table):
            raise ConfigError(f"{table!r} cannot be the name of a table")
        self.path = str(path)
        self._apply = apply
        self._schema = schema
        self._table = table
        self._busy_timeout = busy_timeout
        self._idle: list[_Session] = []
        self._ready = False

    def seed(self, partition: int, mark: int, load: Callable[[sqlite3.Cursor], None]) -> None:
        """Set data and mark together, so that a new view need not begin at the start of the log."""
        self.seed_all({partition: mark}, load)

    def seed_all(self, marks: Mapping[int, int], load: Callable[[sqlite3.Cursor], None]) -> None:
        """Set data and the marks of several partitions in one SQL transaction."""
        with self._session() as session, session.transaction("IMMEDIATE") as cursor:
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
            cursor.execute(
                f"INSERT INTO {self._table} (PARTITION_ID, HIGH_WATER_MARK) VALUES (?, -1) ON CONFLICT DO NOTHING",
                (partition,),
            )
            mark = self._mark(cursor, partition)
        assert mark is not None
        return mark

    def commit(self, batch: Batch) -> int:
        """One SQL transaction: move the mark under the condition that it is where we think, then apply.

        Where the condition fails, another process has applied some or all of the batch, or the database was
        put back: then nothing is applied (0.13.2 would skip every later transaction without a word).
        """
        partition, expected = batch.partition, batch.first_id - 1
        with self._session() as session, session.transaction("IMMEDIATE") as cursor:
            cursor.execute(
                f"UPDATE {self._table} SET HIGH_WATER_MARK = ? WHERE PARTITION_ID = ? AND HIGH_WATER_MARK = ?",
                (batch.last_id, partition, expected),
            )
            if cursor.rowcount != 1:
                stored = self._mark(cursor, partition)
                if stored is None or stored < expected:
                    raise ViewRegressedError(partition, stored, expected)
                if stored >= batch.last_id:
                    return stored
                expected = stored
                cursor.execute(
                    f"UPDATE {self._table} SET HIGH_WATER_MARK = ? WHERE PARTITION_ID = ?", (batch.last_id, partition)
                )
            with session.foreign():
                for transaction in batch:
                    if transaction.id > expected and transaction.header != MARKER_HEADER:
                        self._apply_one(transaction, cursor)
        return batch.last_id

    def read(self, partition: int, decide: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
        """`decide(cursor, *args)` and the mark, from one snapshot of the database."""
        with self._session() as session, session.transaction("DEFERRED") as cursor:
            mark = self._mark(cursor, partition)
            with session.foreign():
                found = decide(cursor, *args)
        if mark is None:
            raise ViewRegressedError(partition, None, -1)
        return found, mark

    def is_transient(self, error: Exception) -> bool:
        """The database is locked or cannot be reached right now."""
        return isinstance(error, sqlite3.OperationalError) and any(
            word in str(error) for word in ("locked", "busy", "disk I/O", "unable to open")
        )

    def close(self) -> None:
        """Close every connection."""
        idle, self._idle = self._idle, []
        for session in idle:
            session.close()

    def _apply_one(self, transaction: Transaction, cursor: sqlite3.Cursor) -> None:
        try:
            self._apply(transaction, cursor)
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

    @contextlib.contextmanager
    def _session(self) -> Iterator[_Session]:
        """A connection for this thread alone, kept for later unless it fails."""
        session = self._idle.pop() if self._idle else self._connect()
        try:
            yield session
        except sqlite3.Error:
            session.close()
            raise
        except BaseException:
            self._idle.append(session)
            raise
        else:
            self._idle.append(session)

    def _connect(self) -> _Session:
        session = _Session(self.path, self._busy_timeout)
        if not self._ready:
            # Readers and the writer do not wait for each other; a commit still waits for the disk.
            session.connection.execute("PRAGMA journal_mode = WAL")
            session.connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self._table} "
                "(PARTITION_ID INTEGER NOT NULL PRIMARY KEY, HIGH_WATER_MARK BIGINT NOT NULL)"
            )
            session.connection.executescript(self._schema)
            self._ready = True
        session.connection.execute("PRAGMA synchronous = FULL")
        return session


# The module caches prepared statements by their text, and only preparing asks the authorizer.
_OURS = "-- by the view"
_TRANSACTION_CONTROL = (sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)


class _Session:
    """One connection on which only we begin and end transactions."""

    def __init__(self, path: str, busy_timeout: float) -> None:
        self.connection = sqlite3.connect(path, timeout=busy_timeout, isolation_level=None, check_same_thread=False)
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

    def _authorize(self, action: int, *details: object) -> int:
        return sqlite3.SQLITE_DENY if self._guarded and action in _TRANSACTION_CONTROL else sqlite3.SQLITE_OK

"""The view in one SQLite file."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from waltz_core.base.errors import ConfigError, ViewRegressedError
from waltz_trio.client.shown import shown
from waltz_trio.client.sql_identity import IDENTITIES
from waltz_trio.client.sql_sessions import CLOSED
from waltz_trio.client.sql_view import TABLE, SqlView
from waltz_trio.client.statements import pragmas_of
from waltz_trio.client.values import Transaction
from waltz_trio.client.views import Keys


class SqliteView(SqlView[sqlite3.Cursor]):
    """State in one SQLite file: `apply(txn, cursor)` changes it, inside the transaction that moves the mark.

    `apply` and `decide` get a cursor that can neither begin nor end transactions, and that of `decide` cannot change
    data either. A file may be shared by several processes: each transaction is applied by one of them. The file
    remembers whose its marks are: a view of another name, or of another version, is refused.

    Args:
        path: the database file; created if absent.
        apply: what a transaction does to the data.
        apply_many: does the same with several transactions in fewer statements.
        schema: SQL statements, run whenever a view opens its database: CREATE TABLE IF NOT EXISTS. Pragmas that set up
            a connection, such as PRAGMA foreign_keys = ON, are run on every connection.
        table: where the marks are kept.
        busy_timeout: seconds to wait for another process before trying again later.
        name: of the view; that of the function `apply` and its module unless given.
        version: of what `apply` and `schema` mean; raise it when old data would be wrong.
        rebuild: where the file holds an older version, drop the tables and views of its schema and begin at the
            start of the log.
        keys: where idempotency keys are, to be remembered beside the marks; another choice is another `version`.
    """

    _parameter = "?"
    _locked = ""  # whoever writes has the whole file
    _add_mark = "INSERT INTO {table} (PARTITION_ID, HIGH_WATER_MARK) VALUES (?, -1) ON CONFLICT DO NOTHING"
    _put_mark = (
        "INSERT INTO {table} (PARTITION_ID, HIGH_WATER_MARK) VALUES (?, ?) "
        "ON CONFLICT (PARTITION_ID) DO UPDATE SET HIGH_WATER_MARK = excluded.HIGH_WATER_MARK"
    )
    _put_identity = f"INSERT OR REPLACE INTO {IDENTITIES} VALUES (?, ?, ?, ?)"

    def __init__(
        self,
        path: str | Path,
        apply: Callable[[Transaction, sqlite3.Cursor], None],
        *,
        apply_many: Callable[[Sequence[Transaction], sqlite3.Cursor], None] | None = None,
        schema: str = "",
        table: str = TABLE,
        busy_timeout: float = 5.0,
        name: str | None = None,
        version: int = 1,
        rebuild: bool = False,
        keys: Keys | None = None,
    ) -> None:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(
                f"path: expected the path of a file, found {shown(path)}; write SqliteView('view.db', apply)"
            )
        if str(path) in ("", ":memory:"):
            raise ConfigError(f"{str(path)!r} is another database for every connection: use a file, or DictView")
        if _ADDRESS.match(str(path)):
            raise ConfigError(
                f"expected the path of a file, found the address {str(path)!r}: write SqliteView('view.db', apply); a "
                f"file of that name is './{path}'"
            )
        self.path = str(Path(path).absolute())  # for a program that changes its directory
        super().__init__(
            self.path,
            apply,
            (sqlite3.Error,),
            schema=schema,
            table=table,
            busy_timeout=busy_timeout,
            name=name,
            version=version,
            rebuild=rebuild,
            keys=keys,
            apply_many=apply_many,
        )
        self._pragmas = pragmas_of(schema)
        self._file: tuple[int, int] | None = None  # device and number of the file, once it was opened

    def _check_open(self, cursor: sqlite3.Cursor) -> None:
        if isinstance(cursor, _Cursor) and cursor.closed:
            raise RuntimeError(CLOSED)
        if not cursor.connection.in_transaction:
            raise RuntimeError(_GIVEN_UP)

    def _own(self, theirs: sqlite3.Cursor) -> AbstractContextManager[sqlite3.Cursor]:
        return _plain(theirs.connection)

    def _passes(self, error: Exception) -> bool:
        if not isinstance(error, sqlite3.OperationalError):
            return False
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_READONLY:
            # It could be written before: its file system has become read-only, as one does whose disk fails.
            return self._file is not None
        return code in _TRANSIENT or isinstance(error, _UnreachableError)

    def _refuses_change(self, error: Exception) -> bool:
        return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_READONLY

    def _tables(self) -> list[str]:
        return _tables_of(self._schema)

    def _check_place(self, partition: int, expected: int) -> None:
        if self._file is not None and _file_at(self.path) != self._file:
            raise ViewRegressedError(partition, None, expected)  # connections still have the file that was deleted

    def _open(self, reads: bool) -> _Session:
        path, new = Path(self.path), self._file is None
        if new:
            _check_new(path)
        try:
            return _Session(self.path, self._busy_timeout, reads, create=new)
        except sqlite3.OperationalError as error:
            if new and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_CANTOPEN and _takes_no_files(path.parent):
                raise _refused(path, errno.ENOENT) from error
            raise

    def _connect(self, reads: bool) -> _Session:
        if reads and self._file is None:
            self._writers.put_back(self._connect(False))
        session = self._open(reads)
        try:
            if self._file is None:
                # Readers and the writer do not wait for each other; a commit still waits for the disk.
                session.connection.execute("PRAGMA journal_mode = WAL")
                with session.transaction() as cursor:
                    self._create_tables(cursor)
                    _drop(cursor, self._identity.claim(cursor) or ())
            with self._running_schema():
                session.connection.executescript(self._schema if self._file is None else self._pragmas)
            self._file = self._file or _file_at(self.path)
            session.connection.execute("PRAGMA synchronous = FULL")
            if reads:
                session.connection.execute(f"PRAGMA query_only = ON {_OURS}")
        except BaseException as error:
            session.close()
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB:
                raise ConfigError(f"{self.path} is no SQLite database: name another file, or a new one") from error
            raise
        return session


def _check_new(path: Path) -> None:
    """See that SQLite can open the file, or make it, for it calls what lasts what may pass; nothing is made here.

    Raises:
        ConfigError: it cannot.
    """
    try:
        mode: int | None = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = None
    except OSError as error:
        if error.errno in _LASTING:
            raise _refused(path, error.errno) from None
        return
    if mode is None:
        if not path.parent.is_dir():
            raise ConfigError(f"{path}: there is no folder {path.parent}: make it first, or name a file elsewhere")
        place, rights = path.parent, os.W_OK | os.X_OK
    elif stat.S_ISDIR(mode):
        raise ConfigError(f"{path} is a folder: name a file in it, such as {path / 'view.db'}")
    elif not stat.S_ISREG(mode):
        raise ConfigError(f"{path} is no file that can hold a database: name a file elsewhere")
    else:
        place, rights = path, os.W_OK
    if not os.access(place, rights, effective_ids=True):
        read_only = os.statvfs(place).f_flag & os.ST_RDONLY
        raise _refused(path, errno.EROFS if read_only else errno.EACCES)


def _refused(path: Path, number: int) -> ConfigError:
    return ConfigError(f"{path} cannot be opened for writing: {os.strerror(number)}: name a file elsewhere")


def _takes_no_files(folder: Path) -> bool:
    """Whether a folder is of a file system without space and without files, such as /proc."""
    try:
        space = os.statvfs(folder)
    except OSError:
        return False
    return not space.f_blocks and not space.f_files


def _file_at(path: str) -> tuple[int, int] | None:
    """Device and number of a file; None if there is none."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _UnreachableError(f"{path} cannot be looked at: {error}") from error
    return status.st_dev, status.st_ino


def _drop(cursor: sqlite3.Cursor, names: Iterable[str]) -> None:
    """Drop the tables and views of these names that there are."""
    for name in names:
        kinds = "SELECT type FROM sqlite_master WHERE name = ? COLLATE NOCASE AND type IN ('table', 'view')"
        for (kind,) in cursor.execute(kinds, (name,)).fetchall():
            cursor.execute(f"DROP {kind} {_quoted(name)}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _tables_of(schema: str) -> list[str]:
    """The tables and views that a schema makes; none if it cannot run on an empty database."""
    connection = sqlite3.connect(":memory:")
    try:
        with contextlib.suppress(sqlite3.Error):
            connection.executescript(schema)
        rows = connection.execute(
            "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
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
    sqlite3.SQLITE_FULL,  # of the disk: somebody makes room
)

_LASTING = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL)
_ADDRESS = re.compile(r"(file:|[A-Za-z][\w+]*://)")

# The module caches prepared statements by their text, and only preparing asks the authorizer.
_OURS = "-- by the view"
_NOT_AUTHORIZED = "not authorized"  # all that SQLite says of what the authorizer denies
_WHY_NOT = (
    "the view begins and ends transactions by itself, so that data and mark change together; leave out what does "
    "(BEGIN, COMMIT, ROLLBACK, commit(), rollback(), executescript()), ATTACH, DETACH, "
    "and what lifts this protection (PRAGMA query_only)"
)
_GIVEN_UP = (
    "SQLite has rolled the transaction back (OR ROLLBACK, RAISE(ROLLBACK), a full disk), and the error was caught: let "
    "it pass, or use OR ABORT, OR FAIL or a savepoint"
)
# What Python begins where a statement that changes data would be a transaction of its own; that is denied.
_BY_ITSELF: Final = "DEFERRED"
_TRANSACTION_CONTROL = (sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
_GUARDS = ("query_only", "writable_schema", "schema_version")


class _Cursor(sqlite3.Cursor):
    """What `apply` and `decide` get."""

    connection: _Connection
    closed = False

    def execute(self, *args: Any) -> _Cursor:
        """As the module's."""
        self.connection.check_alive()
        super().execute(*args)
        return self

    def executemany(self, *args: Any) -> _Cursor:
        """As the module's."""
        self.connection.check_alive()
        super().executemany(*args)
        return self

    def close(self) -> None:
        self.closed = True
        super().close()


class _Connection(sqlite3.Connection):
    """Knows what reads from it."""

    guarded = False  # the application's code runs
    _lent: list[_Cursor]  # what the transaction was begun with, and what the application got; the others are few

    def __init__(self, *args: Any, **options: Any) -> None:
        self._reading: weakref.WeakSet[sqlite3.Cursor | sqlite3.Blob] = weakref.WeakSet()
        super().__init__(*args, **options)

    def check_alive(self) -> None:
        """See that the application's code still has the transaction that was begun for it.

        The authorizer sees that as well, but not with a statement that is prepared already. Python begins another
        transaction for those that begin with INSERT, UPDATE, DELETE or REPLACE, not for WITH … INSERT.

        Raises:
            sqlite3.OperationalError: what is changed now would be committed alone.
        """
        if self.guarded and not self.in_transaction:
            raise sqlite3.OperationalError(_GIVEN_UP)

    def cursor(self, factory: Any = _Cursor) -> Any:
        """As the module's."""
        cursor = super().cursor(factory)
        self._reading.add(cursor)
        return cursor

    def execute(self, *args: Any) -> sqlite3.Cursor:
        """As the module's, which may make the cursor without `cursor()`."""
        cursor: sqlite3.Cursor = self.cursor().execute(*args)
        return cursor

    def executemany(self, *args: Any) -> sqlite3.Cursor:
        """As the module's."""
        cursor: sqlite3.Cursor = self.cursor().executemany(*args)
        return cursor

    def blobopen(self, *args: Any, **options: Any) -> sqlite3.Blob:
        """As the module's."""
        self.check_alive()
        blob = super().blobopen(*args, **options)
        self._reading.add(blob)
        return blob

    def close(self) -> None:
        """As the module's."""
        if self.guarded:
            raise RuntimeError("close(): the view still needs its connection: close none but your own cursors")
        super().close()

    def begin(self, how: str) -> _Cursor:
        """Begin a transaction; gives a cursor for it."""
        super().execute(f"{how} {_OURS}")
        self._lent = []
        return self.lend()

    def lend(self) -> _Cursor:
        """A cursor until the end of the transaction."""
        cursor = super().cursor(_Cursor)
        self._lent.append(cursor)
        return cursor

    def end(self, how: str) -> None:
        """End a transaction, and what reads in it.

        A SELECT that is half read keeps its snapshot beyond COMMIT and ROLLBACK, and transactions that begin
        meanwhile have the same: its cursor may live on in a result, or in the traceback of an error.
        """
        for each in (*self._lent, *(self._reading or ())):
            with contextlib.suppress(sqlite3.Error):
                each.close()
        super().execute(f"{how} {_OURS}")


@contextlib.contextmanager
def _plain(connection: sqlite3.Connection) -> Iterator[sqlite3.Cursor]:
    """A cursor whose rows are tuples, and whose texts are texts."""
    text_factory, connection.text_factory = connection.text_factory, str
    cursor = sqlite3.Cursor(connection)
    try:
        yield cursor
    finally:
        cursor.close()
        connection.text_factory = text_factory


class _Session:
    """One connection on which only we begin and end transactions."""

    def __init__(self, path: str, busy_timeout: float, reads: bool, create: bool) -> None:
        # A file that was deleted meanwhile must not come back empty.
        name = f"{Path(path).as_uri()}?mode={'rwc' if create else 'rw'}"
        self.connection = sqlite3.connect(
            name,
            timeout=busy_timeout,
            isolation_level=_BY_ITSELF,
            check_same_thread=False,
            uri=True,
            factory=_Connection,
        )
        self._begin = "BEGIN DEFERRED" if reads else "BEGIN IMMEDIATE"
        self.connection.set_authorizer(self._authorize)

    @property
    def usable(self) -> bool:
        return True

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self.connection.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Cursor]:
        cursor = self.connection.begin(self._begin)
        try:
            yield cursor
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self.connection.end("ROLLBACK")
            raise
        else:
            self.connection.end("COMMIT")

    @contextlib.contextmanager
    def foreign(self, deferred: bool = False) -> Iterator[sqlite3.Cursor]:
        """The application's code runs: it may change data, not transactions."""
        theirs = self.connection.lend()
        self.connection.guarded = True
        try:
            yield theirs
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_AUTH and str(error) == _NOT_AUTHORIZED:
                raise sqlite3.DatabaseError(f"{error}: {_WHY_NOT}") from error
            raise
        finally:
            self.connection.guarded = False
            self.connection.isolation_level = _BY_ITSELF
            self.connection.row_factory, self.connection.text_factory = None, str

    def _authorize(self, action: int, first: str | None, *details: object) -> int:
        if not self.connection.guarded:
            return sqlite3.SQLITE_OK
        denied = action in _TRANSACTION_CONTROL or (action == sqlite3.SQLITE_PRAGMA and first in _GUARDS)
        # Where SQLite has rolled the transaction back, what comes next would be committed alone.
        return sqlite3.SQLITE_DENY if denied or not self.connection.in_transaction else sqlite3.SQLITE_OK

"""What views in SQL databases have in common: marks and data in one transaction, and whose the database is.

A database of views holds two tables of ours beside the application's:

| table | holds | known to 0.13.2 |
|---|---|---|
| CLIENT_HIGH_WATER_MARK | partition → the last transaction that is applied | yes: members of both may share it |
| WALTZ_VIEWS | mark table → name, version and tables of the view that it belongs to | no |

Two more are for idempotency keys, see `key_tables.py`.

A batch is one SQL transaction. It moves the mark under the condition that it is where this process left it, which also
locks the row: of several members, the one that comes second waits, and then sees what the first has done. Whose the
database is, is looked at behind that lock, so that a version that is being replaced cannot slip in a last batch.
Before the transaction is committed the mark is read once more: where a database gives up a transaction by itself (a
deadlock), an `apply` that swallowed the error must not go on in the next one.

What differs by database is in the sessions: how a transaction begins, how the application's code is kept from ending
it, which errors are worth another try.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Concatenate, Generic, Protocol, TypeVar

from waltz_core.base.errors import ConfigError, StateReadOnlyError, ViewIdentityError, ViewRegressedError
from waltz_core.base.log import MARKER_HEADER
from waltz_core.client.keys import KeyEntry
from waltz_trio.arguments import mark as mark_of
from waltz_trio.arguments import whole
from waltz_trio.key_tables import DEFINITIONS, PUT_KEY, KeyRow, KeyTables
from waltz_trio.values import Batch, Transaction
from waltz_trio.views import ApplyError, Keys, call_apply, check_apply, check_seed, checked_key, name_of

TABLE = "CLIENT_HIGH_WATER_MARK"
"""Where marks are kept, as the original's JDBC callbacks lay it out: both can share a database."""

IDENTITIES = "WALTZ_VIEWS"
"""Whose the marks of a database are. The original knows nothing of this table."""

C = TypeVar("C")  # what the application's SQL runs on
C_co = TypeVar("C_co", covariant=True)

_KEYS_AT_ONCE = 1000  # while a view catches up from an archive

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?\Z")


class Session(Protocol[C_co]):
    """One connection, on which only the view begins and ends transactions."""

    def transaction(self) -> AbstractContextManager[C_co]:
        """A transaction: committed at the end of the block, rolled back by an exception."""

    def foreign(self, deferred: bool = False) -> AbstractContextManager[None]:
        """The application's code runs: it may change data, not transactions.

        With `deferred` its statements may be sent without waiting for each one's answer.
        """

    @property
    def usable(self) -> bool:
        """It may serve another transaction."""

    def close(self) -> None:
        """Give the connection up."""


class TransactionLostError(Exception):
    """The database gave the transaction up, and `apply` went on as if nothing had happened."""


class SqlView(Generic[C]):
    """A view in an SQL database. Subclasses connect, and know their database's dialect."""

    threaded = True

    _parameter: ClassVar[str] = "%s"
    _locked: ClassVar[str] = " FOR UPDATE"  # reads a row as it is now, and locks it
    _add_mark: ClassVar[str]  # -1 unless there is a mark
    _put_mark: ClassVar[str]
    _put_identity: ClassVar[str]
    _put_key: ClassVar[str] = PUT_KEY
    _key_text: ClassVar[str] = "VARCHAR(255)"  # compares byte by byte
    _table_options: ClassVar[str] = ""
    _atomic_definitions: ClassVar[bool] = True  # tables are made and dropped within a transaction

    def __init__(
        self,
        where: str,
        apply: Callable[[Transaction, C], None],
        errors: tuple[type[Exception], ...],
        *,
        schema: str,
        table: str,
        name: str | None,
        version: int,
        rebuild: bool,
        keys: Keys | None = None,
    ) -> None:
        """`where` names the database in messages; `errors` are what its driver raises."""
        if not _NAME.match(table):
            raise ConfigError(f"{table!r} cannot be the name of a table")
        if rebuild and not schema.strip():
            raise ConfigError("rebuild=True needs schema=...: it says which tables are made anew")
        if whole(version, "version") < 0:
            raise ConfigError(f"version is at least 0, not {version}")
        check_apply(apply)
        self._errors = errors
        self.name = name_of(apply) if name is None else name
        self.version = version
        self.keys = keys
        self._key_tables = KeyTables(self, 0 if keys is None else keys.window, self._put_key)
        self._where = where
        self._rebuild = rebuild
        self._apply = apply
        self._schema = schema
        self._table = table
        self._writers: list[Session[C]] = []
        self._readers: list[Session[C]] = []
        self._marks: dict[int, int] = {}  # what this process has seen stored

    def seed(self, partition: int, mark: int, load: Callable[[C], None]) -> None:
        """Set data and mark together, so that a new view need not begin at the start of the log."""
        self.seed_all({partition: mark}, load)

    def seed_all(self, marks: Mapping[int, int], load: Callable[[C], None]) -> None:
        """Set data and the marks of several partitions in one SQL transaction."""
        check_seed(self.keys)
        marks = {whole(partition, "a partition"): mark_of(mark, "mark") for partition, mark in marks.items()}
        with self._session() as session, session.transaction() as cursor:
            self._set_marks(cursor, marks)
            self._check_identity(cursor)
            with session.foreign():
                load(cursor)
            self._check_marks(cursor, marks)

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
        before = {}
        with self._session() as session, session.transaction() as cursor:
            for partition in cut:
                self._run(cursor, self._add_mark, partition)
                stored = self._mark(cursor, partition, lock=True)
                before[partition] = -1 if stored is None else stored
            self._check_identity(cursor)
            for partition, end in cut.items():
                mark = before[partition]
                if mark > end:
                    raise ValueError(
                        f"partition {partition} of {self._where} is at {mark} already, beyond the cut {end}"
                    )
                rows: list[KeyRow] = []
                with session.foreign():
                    for transaction in read(partition, mark) if mark < end else ():
                        if transaction.id != mark + 1:
                            raise ViewRegressedError(partition, mark, transaction.id - 1)
                        if transaction.header != MARKER_HEADER:
                            self._apply_one(transaction, cursor, rows)
                        if len(rows) >= _KEYS_AT_ONCE:
                            self._key_tables.write(cursor, rows)
                        mark = transaction.id
                if mark != end:
                    raise ViewRegressedError(partition, mark, end)
                self._store_keys(cursor, partition, before[partition], end, rows)
            self._set_marks(cursor, cut)
            self._check_marks(cursor, cut)
        return before

    def load_mark(self, partition: int) -> int:
        """The stored mark; a missing row is created with -1, in a transaction of its own."""
        with self._session() as session, session.transaction() as cursor:
            self._run(cursor, self._add_mark, partition)
            self._check_identity(cursor)
            mark = self._mark(cursor, partition, lock=self.keys is not None)
            assert mark is not None
            if self.keys is not None and not self._key_tables.begin(cursor, partition, mark):
                raise self._without_keys(partition, mark)
        self._marks[partition] = mark
        return mark

    def commit(self, batch: Batch) -> int:
        """One SQL transaction: move the mark under the condition that it is where we think, then apply.

        Where the condition fails, another process has applied some or all of the batch, or the database was
        put back: then nothing is applied (0.13.2 would skip every later transaction without a word).
        """
        return self._commit(batch, deferred=False)

    def read(
        self, partition: int, decide: Callable[Concatenate[C, ...], Any], args: tuple[Any, ...]
    ) -> tuple[Any, int]:
        """`decide(cursor, *args)` and the mark, from one snapshot of the database, which it cannot change.

        Raises:
            StateReadOnlyError: it tried to.
            ViewRegressedError: the mark went back, or the database is gone.
        """
        expected = self._marks.get(partition, -1)
        with self._session(partition, expected, reads=True) as session, session.transaction() as cursor:
            mark = self._mark(cursor, partition)
            if mark is None or mark < expected:
                raise ViewRegressedError(partition, mark, expected)
            try:
                with session.foreign():
                    return decide(cursor, *args), mark
            except self._errors as error:
                if not self._refuses_change(error):
                    raise
                raise StateReadOnlyError(
                    f"SQL given to `decide` or `read` cannot change the view ({error}): return an Append, and change "
                    "the view in `apply`"
                ) from error

    def find_key(self, state: Any, partition: int, key: str) -> KeyEntry | None:
        """As `KeyedView.find_key`.

        Raises:
            ViewIdentityError: a program that remembers no keys has moved the mark.
        """
        mark, key_mark, entry = self._key_tables.find(state, partition, key)
        if mark != key_mark:
            raise self._without_keys(partition, mark)
        return entry

    def is_transient(self, error: Exception) -> bool:
        """The database is locked or cannot be reached right now."""
        return isinstance(error, TransactionLostError) or (isinstance(error, self._errors) and self._passes(error))

    def close(self) -> None:
        """Close every connection."""
        for pool in (self._writers, self._readers):
            idle = pool[:]
            pool.clear()
            for session in idle:
                session.close()

    # ---- a batch -------------------------------------------------------------------------------------

    def _commit(self, batch: Batch, deferred: bool) -> int:
        partition, expected = batch.partition, batch.first_id - 1
        with self._session(partition, expected) as session, session.transaction() as cursor:
            self._run(
                cursor,
                f"UPDATE {self._table} SET HIGH_WATER_MARK = ? WHERE PARTITION_ID = ? AND HIGH_WATER_MARK = ?",
                *(batch.last_id, partition, expected),
            )
            moved = self._count(cursor) == 1
            self._check_identity(cursor, partition, expected)
            if not moved:
                stored = self._mark(cursor, partition, lock=True)
                if stored is None or stored < expected:
                    raise ViewRegressedError(partition, stored, expected)
                if stored >= batch.last_id:
                    self._marks[partition] = stored
                    return stored
                expected = stored
                self._set_marks(cursor, {partition: batch.last_id})
            rows: list[KeyRow] = []
            with session.foreign(deferred):
                for transaction in batch:
                    if transaction.id > expected and transaction.header != MARKER_HEADER:
                        self._apply_one(transaction, cursor, rows)
            self._store_keys(cursor, partition, expected, batch.last_id, rows)
            self._check_marks(cursor, {partition: batch.last_id})
        self._marks[partition] = batch.last_id
        return batch.last_id

    def _apply_one(self, transaction: Transaction, cursor: C, rows: list[KeyRow]) -> None:
        """Apply it, and add its key to `rows`."""
        if self.keys is not None:
            key = checked_key(self.keys, transaction)
            if key is not None:
                rows.append((transaction.partition, key[0], transaction.id, key[1].hex()))
        try:
            call_apply(self._apply, transaction, cursor)
            self._check_open(cursor)
        except Exception as error:
            if self.is_transient(error):
                raise
            raise ApplyError(transaction) from error

    def _check_open(self, cursor: C) -> None:
        """See that the transaction can still be committed, where the driver knows."""

    # ---- marks ---------------------------------------------------------------------------------------

    def _run(self, cursor: Any, statement: str, *values: object) -> Any:
        """A statement of ours, written with `?` for its values."""
        cursor.execute(statement.format(table=self._table).replace("?", self._parameter), values)
        return cursor

    def _count(self, cursor: Any) -> int:
        count: int = cursor.rowcount
        return count

    def _set_marks(self, cursor: C, marks: Mapping[int, int]) -> None:
        for partition, mark in marks.items():
            self._run(cursor, self._put_mark, partition, mark)

    def _mark(self, cursor: C, partition: int, *, lock: bool = False) -> int | None:
        statement = f"SELECT HIGH_WATER_MARK FROM {self._table} WHERE PARTITION_ID = ?"
        row = self._run(cursor, statement + (self._locked if lock else ""), partition).fetchone()
        return None if row is None else int(row[0])

    def _check_marks(self, cursor: C, marks: Mapping[int, int]) -> None:
        """See that this is still the transaction that has moved them."""
        for partition, mark in marks.items():
            stored = self._mark(cursor, partition)
            if stored != mark:
                raise TransactionLostError(
                    f"partition {partition}: the database gave up the transaction in the middle, and `apply` or `load` "
                    "caught the error; nothing was committed. Let errors of the database pass"
                )

    # ---- keys ----------------------------------------------------------------------------------------

    def _store_keys(self, cursor: C, partition: int, expected: int, mark: int, rows: list[KeyRow]) -> None:
        if self.keys is not None and not self._key_tables.store(cursor, partition, expected, mark, rows):
            raise self._without_keys(partition, expected)

    def _without_keys(self, partition: int, mark: int) -> ViewIdentityError:
        assert self.keys is not None
        return ViewIdentityError(
            self._where,
            f"mark {mark} of partition {partition}, but not the keys of the last {self.keys.window} transactions",
            f"{self._identity}, which needs them",
            "a program that remembers no keys, or other ones, has applied transactions: stop it, and give this view a "
            "higher version and rebuild=True",
        )

    def _check_keyless(self, cursor: C) -> None:
        """A view without keys would leave gaps for those that remember them."""
        if self.keys is None and self._run(cursor, "SELECT COUNT(*) FROM {table}_KEY_MARKS").fetchone()[0]:
            raise self._foreign(
                self.name,
                self.version,
                "it remembers keys, and this view does not: give it the same keys=..., or a higher version and "
                "rebuild=True",
            )

    # ---- whose the database is -----------------------------------------------------------------------

    @property
    def _identity(self) -> str:
        return f"view {self.name!r}, version {self.version}"

    def _stored_identity(self, cursor: C) -> tuple[str, int, str] | None:
        """Name, version, and the tables of its schema."""
        row = self._run(
            cursor,
            f"SELECT VIEW_NAME, VIEW_VERSION, SCHEMA_TABLES FROM {IDENTITIES} WHERE MARK_TABLE = ?",
            self._table.lower(),
        ).fetchone()
        return None if row is None else (str(row[0]), int(row[1]), str(row[2]))

    def _check_identity(self, cursor: C, partition: int = -1, expected: int = -1) -> None:
        """Another version may have rebuilt the database, or somebody have put it back, while this one is running."""
        stored = self._stored_identity(cursor)
        if stored is None:
            raise ViewRegressedError(partition, None, expected)
        if stored[:2] != (self.name, self.version):
            raise self._foreign(stored[0], abs(stored[1]), "it was rebuilt, or put back, while this view was running")

    def _foreign(self, name: str, version: int, advice: str) -> ViewIdentityError:
        return ViewIdentityError(self._where, f"view {name!r}, version {version}", self._identity, advice)

    def _create_tables(self, cursor: C) -> None:
        """Make the tables of ours where they are missing."""
        self._run(
            cursor,
            f"CREATE TABLE IF NOT EXISTS {self._table} "
            f"(PARTITION_ID INTEGER NOT NULL PRIMARY KEY, HIGH_WATER_MARK BIGINT NOT NULL){self._table_options}",
        )
        self._run(
            cursor,
            f"CREATE TABLE IF NOT EXISTS {IDENTITIES} (MARK_TABLE VARCHAR(255) NOT NULL PRIMARY KEY, "
            "VIEW_NAME VARCHAR(255) NOT NULL, VIEW_VERSION INTEGER NOT NULL, SCHEMA_TABLES TEXT NOT NULL)"
            + self._table_options,
        )
        for definition in DEFINITIONS:
            self._run(cursor, definition.replace("KEY_TEXT", self._key_text) + self._table_options)

    def _claim(self, cursor: C) -> list[str] | None:
        """Make the database this view's, unless it belongs to another one.

        A database without an identity is adopted: it is new, or of a release that kept none.

        Returns:
            The tables that must go, because they are an older version's; the marks have been reset. None in the
            normal case.
        """
        self._check_shape(cursor)
        stored = self._stored_identity(cursor)
        if stored is None:
            self._write_identity(cursor, self._tables(), self.version)
            return None
        name, version, tables = stored
        unfinished, version = version < 0, abs(version)
        if name != self.name:
            raise self._foreign(name, version, f"use another one, or name={name!r} if it was only renamed")
        if version > self.version:
            raise self._foreign(name, version, "a newer version is in use: run that one")
        if version == self.version and not unfinished:
            self._check_keyless(cursor)
            return None
        if version < self.version and not self._rebuild:
            raise self._foreign(name, version, "rebuild=True makes it anew from the start of the log")
        replaced = list(dict.fromkeys([*self._tables(), *tables.splitlines()]))
        self._run(cursor, f"UPDATE {self._table} SET HIGH_WATER_MARK = -1")
        for table in ("KEYS", "KEY_MARKS"):
            self._run(cursor, f"DELETE FROM {{table}}_{table}")
        if self._atomic_definitions:
            self._write_identity(cursor, self._tables(), self.version)
        else:
            self._write_identity(cursor, replaced, -self.version)
        return replaced

    def _check_shape(self, cursor: C) -> None:
        for table, columns in (
            (self._table, "PARTITION_ID, HIGH_WATER_MARK"),
            (IDENTITIES, "MARK_TABLE, VIEW_NAME, VIEW_VERSION, SCHEMA_TABLES"),
        ):
            try:
                self._run(cursor, f"SELECT {columns} FROM {table} WHERE 1 = 0").fetchall()
            except self._errors as error:
                if self.is_transient(error):
                    raise
                raise ConfigError(
                    f"{self._where}: table {table} is not a view's: expected the columns {columns}, found {error}. Use "
                    "another database, or table=... for marks of another name"
                ) from error

    def _write_identity(self, cursor: C, tables: Iterable[str], version: int) -> None:
        self._run(cursor, self._put_identity, self._table.lower(), self.name, version, "\n".join(tables))

    def _tables(self) -> list[str]:
        """The tables that the schema makes."""
        raise NotImplementedError

    # ---- connections ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _session(self, partition: int = -1, expected: int = -1, *, reads: bool = False) -> Iterator[Session[C]]:
        """A connection for this thread alone, kept for later unless it fails."""
        self._check_place(partition, expected)
        pool = self._readers if reads else self._writers
        try:
            session = pool.pop()
        except IndexError:
            session = self._connect(reads)
        try:
            yield session
        except self._errors as error:
            session.close()
            if self._loses_connections(error):
                self.close()  # the idle ones are as dead, and each would cost an attempt
            if self._misses_table(error):
                raise ViewRegressedError(partition, None, expected) from error
            raise
        except BaseException:
            self._put_back(pool, session)
            raise
        else:
            self._put_back(pool, session)

    @staticmethod
    def _put_back(pool: list[Session[C]], session: Session[C]) -> None:
        if session.usable:
            pool.append(session)
        else:
            session.close()

    def _check_place(self, partition: int, expected: int) -> None:
        """See that the database is the one that was opened, where that can be seen from outside."""

    def _connect(self, reads: bool) -> Session[C]:
        """A new connection, to a database that is this view's."""
        raise NotImplementedError

    def _passes(self, error: Exception) -> bool:
        """Trying again may help against an error of the driver."""
        raise NotImplementedError

    def _refuses_change(self, error: Exception) -> bool:
        """The database refused to change data in a transaction that only reads."""
        raise NotImplementedError

    def _loses_connections(self, error: Exception) -> bool:
        """The server went away, and every connection with it."""
        return False

    def _misses_table(self, error: Exception) -> bool:
        """A table of ours is gone."""
        return False

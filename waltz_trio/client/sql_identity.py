"""Whose an SQL database of views is: a name, a version, and the tables of its schema, beside a table of marks.

    no identity ──▶ adopted                                  (the database is new, or of a release that kept none)
    the same name and version ──▶ used
    an older version ──rebuild=True──▶ emptied, marks at -1, ours         (without it: refused)
    another name, a newer version ──▶ refused

Where tables cannot be dropped in a transaction (MySQL), a version is written with a minus while it is being made, so
that whoever comes after a crash goes on making it. The identity is looked at behind the lock on the mark, in every
transaction that moves one, and together with the mark in every one that reads.

Where tables that are dropped are gone at once for transactions that have begun (PostgreSQL), whoever reads holds a lock
on the table of marks, and a rebuild waits for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Protocol

from waltz_core.base.errors import ConfigError, ViewIdentityError, ViewRegressedError
from waltz_trio.client.key_tables import Runs
from waltz_trio.client.views import Keys

IDENTITIES = "WALTZ_VIEWS"
"""Whose the marks of a database are. The original knows nothing of this table."""


class Claims(Runs, Protocol):
    """A view that wants a database for itself."""

    name: str
    version: int
    keys: Keys | None
    _where: str
    _rebuild: bool
    _errors: tuple[type[Exception], ...]
    _put_identity: ClassVar[str]
    _atomic_definitions: ClassVar[bool]
    _lock_out: ClassVar[str]

    def _tables(self) -> list[str]: ...

    def is_transient(self, error: Exception) -> bool: ...


class Identity:
    """What a view says of itself, and what its database says."""

    def __init__(self, view: Claims) -> None:
        self._view = view
        self._run = view._run

    @property
    def text(self) -> str:
        """For people."""
        return f"view {self._view.name!r}, version {self._view.version}"

    def _stored(self, cursor: Any) -> tuple[str, int, str] | None:
        """Name, version, and the tables and views of its schema."""
        row = self._run(
            cursor,
            f"SELECT VIEW_NAME, VIEW_VERSION, SCHEMA_TABLES FROM {IDENTITIES} WHERE MARK_TABLE = ?",
            self._view._table.lower(),
        ).fetchone()
        return None if row is None else (str(row[0]), int(row[1]), str(row[2]))

    def check(self, cursor: Any, partition: int = -1, expected: int = -1) -> None:
        """Another version may have rebuilt the database, or somebody have put it back, while this one is running."""
        stored = self._stored(cursor)
        if stored is None:
            raise ViewRegressedError(partition, None, expected)
        self._compare(stored[0], stored[1])

    def mark(self, cursor: Any, partition: int, expected: int) -> int | None:
        """The mark of a partition, None if there is none, together with what `check` looks at."""
        row = self._run(
            cursor,
            f"SELECT m.HIGH_WATER_MARK, v.VIEW_NAME, v.VIEW_VERSION FROM {{table}} m LEFT JOIN {IDENTITIES} v "
            "ON v.MARK_TABLE = ? WHERE m.PARTITION_ID = ?",
            *(self._view._table.lower(), partition),
        ).fetchone()
        if row is None:
            return None
        if row[1] is None:
            raise ViewRegressedError(partition, None, expected)
        self._compare(str(row[1]), int(row[2]))
        return int(row[0])

    def _compare(self, name: str, version: int) -> None:
        if (name, version) != (self._view.name, self._view.version):
            raise self._foreign(name, abs(version), "it was rebuilt, or put back, while this view was running")

    def _foreign(self, name: str, version: int, advice: str) -> ViewIdentityError:
        return ViewIdentityError(self._view._where, f"view {name!r}, version {version}", self.text, advice)

    def claim(self, cursor: Any) -> list[str] | None:
        """Make the database this view's, unless it belongs to another one.

        A database without an identity is adopted: it is new, or of a release that kept none.

        Returns:
            The tables and views that must go, because they are an older version's; the marks have been reset. None in
            the normal case.
        """
        self._check_shape(cursor)
        stored = self._stored(cursor)
        if stored is None:
            self.write(cursor, self._view._tables(), self._view.version)
            return None
        name, version, tables = stored
        unfinished, version = version < 0, abs(version)
        if name != self._view.name:
            raise self._foreign(name, version, f"use another one, or name={name!r} if it was only renamed")
        if version > self._view.version:
            raise self._foreign(name, version, "a newer version is in use: run that one")
        if version == self._view.version and not unfinished:
            self._check_keyless(cursor)
            return None
        if version < self._view.version and not self._view._rebuild:
            raise self._foreign(name, version, "rebuild=True makes it anew from the start of the log")
        replaced = list(dict.fromkeys([*self._view._tables(), *tables.splitlines()]))
        if self._view._lock_out:  # before a row is locked, or it would wait for one that waits for the row
            self._run(cursor, self._view._lock_out)
        self._run(cursor, f"UPDATE {self._view._table} SET HIGH_WATER_MARK = -1")
        for table in ("KEYS", "KEY_MARKS"):
            self._run(cursor, f"DELETE FROM {{table}}_{table}")
        if self._view._atomic_definitions:
            self.write(cursor, self._view._tables(), self._view.version)
        else:
            self.write(cursor, replaced, -self._view.version)
        return replaced

    def _check_shape(self, cursor: Any) -> None:
        for table, columns in (
            (self._view._table, "PARTITION_ID, HIGH_WATER_MARK"),
            (IDENTITIES, "MARK_TABLE, VIEW_NAME, VIEW_VERSION, SCHEMA_TABLES"),
        ):
            try:
                self._run(cursor, f"SELECT {columns} FROM {table} WHERE 1 = 0").fetchall()
            except self._view._errors as error:
                if self._view.is_transient(error):
                    raise
                raise ConfigError(
                    f"{self._view._where}: table {table} is not a view's: expected the columns {columns}, "
                    f"found {error}. Use another database, or table=... for marks of another name"
                ) from error

    def write(self, cursor: Any, tables: Iterable[str], version: int) -> None:
        """Say whose the database is; a version below 0 is one that is not finished."""
        self._run(
            cursor, self._view._put_identity, self._view._table.lower(), self._view.name, version, "\n".join(tables)
        )

    def _check_keyless(self, cursor: Any) -> None:
        """A view without keys would leave gaps for those that remember them."""
        if self._view.keys is None and self._run(cursor, "SELECT COUNT(*) FROM {table}_KEY_MARKS").fetchone()[0]:
            raise self._foreign(
                self._view.name,
                self._view.version,
                "it remembers keys, and this view does not: give it the same keys=..., or a higher version and "
                "rebuild=True",
            )

"""Idempotency keys in an SQL database, beside a table of marks, with the rule of `waltz_core.client.keys`.

| table | holds |
|---|---|
| MARKS_KEYS | partition, key → the transaction that carries it, and the hash of its request |
| MARKS_KEY_MARKS | partition → up to which mark the keys are complete, and the window |

Both are empty in a database of views without keys. The second mark tells whether somebody who keeps no keys has
applied transactions: one of 0.13.2 knows the table of marks only, and moves nothing but that.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from waltz_core.client.keys import KeyEntry, is_kept

KeyRow = tuple[int, str, int, str]
"""Partition, key, transaction id, and the hash of the request in hexadecimal."""


class Runs(Protocol):
    """Who runs statements of ours, written with `?` for their values and `{table}` for the table of marks."""

    _parameter: ClassVar[str]
    _table: str

    def _run(self, cursor: Any, statement: str, *values: object) -> Any: ...


DEFINITIONS = (
    "CREATE TABLE IF NOT EXISTS {table}_KEYS (PARTITION_ID INTEGER NOT NULL, REQUEST_KEY KEY_TEXT NOT NULL, "
    "TRANSACTION_ID BIGINT NOT NULL, REQUEST_HASH CHAR(64) NOT NULL, PRIMARY KEY (PARTITION_ID, TRANSACTION_ID), "
    "UNIQUE (PARTITION_ID, REQUEST_KEY))",
    "CREATE TABLE IF NOT EXISTS {table}_KEY_MARKS (PARTITION_ID INTEGER NOT NULL PRIMARY KEY, "
    "HIGH_WATER_MARK BIGINT NOT NULL, KEY_WINDOW BIGINT NOT NULL)",
)
"""The tables; KEY_TEXT is a type that compares texts of 255 bytes byte by byte."""

PUT_KEY = (
    "INSERT INTO {table}_KEYS AS k (PARTITION_ID, REQUEST_KEY, TRANSACTION_ID, REQUEST_HASH) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (PARTITION_ID, REQUEST_KEY) DO UPDATE SET "
    "TRANSACTION_ID = excluded.TRANSACTION_ID, REQUEST_HASH = excluded.REQUEST_HASH "
    "WHERE k.TRANSACTION_ID < excluded.TRANSACTION_ID - {window}"
)
"""Of several transactions with one key the first counts while it is in the window: SQLite and PostgreSQL."""

_FIND = (
    "SELECT m.HIGH_WATER_MARK, k.HIGH_WATER_MARK, k.KEY_WINDOW, r.TRANSACTION_ID, r.REQUEST_HASH "
    "FROM {table} m LEFT JOIN {table}_KEY_MARKS k ON k.PARTITION_ID = m.PARTITION_ID "
    "LEFT JOIN {table}_KEYS r ON r.PARTITION_ID = m.PARTITION_ID AND r.REQUEST_KEY = ? WHERE m.PARTITION_ID = ?"
)


class KeyTables:
    """What a view with keys asks of these tables."""

    def __init__(self, view: Runs, window: int, put_key: str) -> None:
        self._view = view
        self._run = view._run
        self._window = window
        self._put_key = put_key.replace("{window}", str(window))

    def begin(self, cursor: Any, partition: int, mark: int) -> bool:
        """Whether the keys are complete up to a mark; at the start of a log there are none."""
        statement = "SELECT HIGH_WATER_MARK, KEY_WINDOW FROM {table}_KEY_MARKS WHERE PARTITION_ID = ?"
        row = self._run(cursor, statement, partition).fetchone()
        if row is None and mark < 0:
            self._run(cursor, "INSERT INTO {table}_KEY_MARKS VALUES (?, ?, ?)", partition, mark, self._window)
            return True
        return row is not None and tuple(row) == (mark, self._window)

    def store(self, cursor: Any, partition: int, expected: int, mark: int, rows: list[KeyRow]) -> bool:
        """Add the keys of what lies between two marks; False if those before it are not complete."""
        if not self.begin(cursor, partition, expected):
            return False
        self._run(
            cursor,
            "UPDATE {table}_KEY_MARKS SET HIGH_WATER_MARK = ? WHERE PARTITION_ID = ?",
            *(mark, partition),
        )
        self.write(cursor, rows)
        self._run(
            cursor,
            "DELETE FROM {table}_KEYS WHERE PARTITION_ID = ? AND TRANSACTION_ID <= ?",
            *(partition, mark - self._window),
        )
        return True

    def write(self, cursor: Any, rows: list[KeyRow]) -> None:
        """Add keys, and empty `rows`."""
        if rows:
            statement = self._put_key.format(table=self._view._table).replace("?", self._view._parameter)
            cursor.executemany(statement, rows)
            rows.clear()

    def find(self, cursor: Any, partition: int, key: str) -> tuple[int, int | None, KeyEntry | None]:
        """The mark of the view, that of its keys, and who carries a key."""
        mark, key_mark, window, transaction_id, hashed = self._run(cursor, _FIND, key, partition).fetchone()
        kept = transaction_id is not None and is_kept(transaction_id, mark, self._window)
        entry = KeyEntry(transaction_id, bytes.fromhex(hashed)) if kept else None
        return mark, key_mark if window == self._window else None, entry

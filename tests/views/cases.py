"""The project's views, each as the conformance suite wants it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import waltz_trio as waltz
from tests.views.servers import MariaServer, PostgresServer
from waltz_testing import ViewCase

MARKS = "CLIENT_HIGH_WATER_MARK"
COLUMNS = "(number {serial}, partition_id INTEGER NOT NULL, id INTEGER NOT NULL)"


def note_sql(txn: waltz.Transaction, db: Any) -> None:
    db.execute("INSERT INTO seen (partition_id, id) VALUES (%s, %s)", (txn.partition, txn.id))


def noted_sql(db: Any, partition: int) -> list[int]:
    db.execute("SELECT id FROM seen WHERE partition_id = %s ORDER BY number", (partition,))
    return [row[0] for row in db.fetchall()]


def _put_mark(execute: Callable[[str], object]) -> Callable[[int, int | None], None]:
    def put(partition: int, mark: int | None) -> None:
        if mark is None:
            execute(f"DELETE FROM {MARKS} WHERE PARTITION_ID = {partition}")
        else:
            execute(f"UPDATE {MARKS} SET HIGH_WATER_MARK = {mark} WHERE PARTITION_ID = {partition}")

    return put


def sqlite_case(folder: Path) -> ViewCase:
    path = folder / "view.db"
    schema = "CREATE TABLE IF NOT EXISTS seen " + COLUMNS.format(serial="INTEGER PRIMARY KEY AUTOINCREMENT")

    def execute(statement: str) -> None:
        connection = sqlite3.connect(path)
        with connection:
            connection.execute(statement)
        connection.close()

    def note(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
        db.execute("INSERT INTO seen (partition_id, id) VALUES (?, ?)", (txn.partition, txn.id))

    def noted(db: sqlite3.Cursor, partition: int) -> list[int]:
        rows = db.execute("SELECT id FROM seen WHERE partition_id = ? ORDER BY number", (partition,))
        return [row[0] for row in rows]

    return ViewCase(
        lambda apply: waltz.SqliteView(path, apply, schema=schema, name="seen"), note, noted, _put_mark(execute)
    )


def dict_case() -> ViewCase:
    def note(txn: waltz.Transaction, state: Any) -> None:
        state.setdefault(txn.partition, []).append(txn.id)

    def noted(state: Any, partition: int) -> list[int]:
        return list(state.get(partition, []))

    return ViewCase(lambda apply: waltz.DictView(apply), note, noted, keeps=False)


POSTGRES_SCHEMA = "CREATE TABLE IF NOT EXISTS seen " + COLUMNS.format(serial="SERIAL PRIMARY KEY")
MYSQL_SCHEMA = "CREATE TABLE IF NOT EXISTS seen " + COLUMNS.format(serial="INTEGER AUTO_INCREMENT PRIMARY KEY")


def postgres_case(server: PostgresServer) -> ViewCase:
    database = server.new_database()
    return ViewCase(
        lambda apply: waltz.PostgresView(server.conninfo(database), apply, schema=POSTGRES_SCHEMA, name="seen"),
        note_sql,
        noted_sql,
        _put_mark(lambda statement: server.execute(database, statement)),
    )


def mysql_case(server: MariaServer) -> ViewCase:
    database = server.new_database()
    return ViewCase(
        lambda apply: waltz.MySqlView(server.options(database), apply, schema=MYSQL_SCHEMA, name="seen"),
        note_sql,
        noted_sql,
        _put_mark(lambda statement: server.execute(database, statement)),
    )

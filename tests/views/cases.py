"""The project's views, each as the conformance suite wants it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import waltz_trio as waltz
from tests.views.servers import MariaServer, PostgresServer
from waltz_testing import ViewCase

MARKS = "CLIENT_HIGH_WATER_MARK"
Apply = Callable[[waltz.Transaction, Any], None]
ApplyMany = Callable[[Sequence[waltz.Transaction], Any], None]
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


def _anew(view: Callable[..., waltz.KeyedView]) -> Callable[[Apply, waltz.Keys], waltz.KeyedView]:
    return lambda apply, keys: view(apply, keys, version=2, rebuild=True)


def _case(view: Callable[..., Any], note: Apply, noted: Callable[[Any, int], list[int]], **options: Any) -> ViewCase:
    def open_many(apply: Apply, apply_many: ApplyMany, keys: waltz.Keys | None) -> waltz.KeyedView:
        made: waltz.KeyedView = view(apply, keys, apply_many=apply_many)
        return made

    return ViewCase(view, note, noted, open_keyed=view, open_many=open_many, **options)


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

    def view(apply: Apply, keys: waltz.Keys | None = None, **options: Any) -> waltz.SqliteView:
        return waltz.SqliteView(path, apply, schema=schema, name="seen", keys=keys, **options)

    return _case(view, note, noted, put_mark=_put_mark(execute), rebuild_keyed=_anew(view))


def dict_case() -> ViewCase:
    def note(txn: waltz.Transaction, state: Any) -> None:
        state.setdefault(txn.partition, []).append(txn.id)

    def noted(state: Any, partition: int) -> list[int]:
        return list(state.get(partition, []))

    def view(apply: Apply, keys: waltz.Keys | None = None, **options: Any) -> waltz.DictView[Any]:
        return waltz.DictView(apply, keys=keys, **options)

    return _case(view, note, noted, keeps=False)


POSTGRES_SCHEMA = "CREATE TABLE IF NOT EXISTS seen " + COLUMNS.format(serial="SERIAL PRIMARY KEY")
MYSQL_SCHEMA = "CREATE TABLE IF NOT EXISTS seen " + COLUMNS.format(serial="INTEGER AUTO_INCREMENT PRIMARY KEY")


def postgres_case(server: PostgresServer) -> ViewCase:
    database = server.new_database()

    def view(apply: Apply, keys: waltz.Keys | None = None, **options: Any) -> waltz.PostgresView:
        return waltz.PostgresView(
            server.conninfo(database), apply, schema=POSTGRES_SCHEMA, name="seen", keys=keys, **options
        )

    put_mark = _put_mark(lambda statement: server.execute(database, statement))
    return _case(view, note_sql, noted_sql, put_mark=put_mark, rebuild_keyed=_anew(view))


def mysql_case(server: MariaServer) -> ViewCase:
    database = server.new_database()

    def view(apply: Apply, keys: waltz.Keys | None = None, **options: Any) -> waltz.MySqlView:
        return waltz.MySqlView(server.options(database), apply, schema=MYSQL_SCHEMA, name="seen", keys=keys, **options)

    put_mark = _put_mark(lambda statement: server.execute(database, statement))
    return _case(view, note_sql, noted_sql, put_mark=put_mark, rebuild_keyed=_anew(view))

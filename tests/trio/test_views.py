"""Views: data and mark move together, or not at all."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import waltz_trio as waltz
from waltz_core.base.ids import ReqId
from waltz_core.base.log import MARKER_HEADER
from waltz_trio.client.sql_sessions import TransactionLostError

REQ = ReqId(b"\0" * 16)
SCHEMA = "CREATE TABLE IF NOT EXISTS seen (partition_id INTEGER, id INTEGER, data BLOB)"


def batch(first: int, last: int, partition: int = 0) -> waltz.Batch:
    return waltz.Batch(
        partition, tuple(waltz.Transaction(partition, n, 0, REQ, b"%d" % n) for n in range(first, last + 1))
    )


def note(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
    db.execute("INSERT INTO seen VALUES (?, ?, ?)", (txn.partition, txn.id, txn.load()))


def sqlite_view(folder: Path, apply: Any = note, **options: Any) -> waltz.SqliteView:
    return waltz.SqliteView(folder / "view.db", apply, schema=SCHEMA, **options)


def ids(view: waltz.SqliteView, partition: int = 0) -> list[int]:
    def read(db: sqlite3.Cursor) -> list[int]:
        rows = db.execute("SELECT id FROM seen WHERE partition_id = ? ORDER BY rowid", (partition,))
        return [row[0] for row in rows]

    found: list[int] = view.read(partition, read, ())[0]
    return found


def set_mark(folder: Path, statement: str) -> None:
    connection = sqlite3.connect(folder / "view.db")
    connection.execute(statement)
    connection.commit()
    connection.close()


def with_marker() -> waltz.Batch:
    headers = (0, MARKER_HEADER, 0)
    return waltz.Batch(0, tuple(waltz.Transaction(0, n, header, REQ, b"%d" % n) for n, header in enumerate(headers)))


# ---- SQLite ------------------------------------------------------------------------------------


def test_markers_of_writers_only_move_the_mark(tmp_path: Path) -> None:
    view = sqlite_view(tmp_path)
    view.load_mark(0)
    assert view.commit(with_marker()) == 2
    assert ids(view) == [0, 2]
    view.close()
    memory: waltz.DictView[Any] = waltz.DictView(lambda txn, state: state.update({txn.id: txn.load()}))
    memory.load_mark(0)
    assert memory.commit(with_marker()) == 2
    assert memory.state == {0: b"0", 2: b"2"}


def test_a_batch_moves_data_and_mark_together(tmp_path: Path) -> None:
    view = sqlite_view(tmp_path)
    assert view.load_mark(0) == -1
    assert view.commit(batch(0, 2)) == 2
    assert view.commit(batch(3, 3)) == 3
    assert ids(view) == [0, 1, 2, 3]
    view.close()
    again = sqlite_view(tmp_path)
    assert again.load_mark(0) == 3
    assert again.load_mark(1) == -1
    again.close()


def test_what_cannot_be_applied_leaves_nothing_behind(tmp_path: Path) -> None:
    def picky(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
        note(txn, db)
        if txn.id == 2:
            raise ValueError("no")

    view = sqlite_view(tmp_path, picky)
    view.load_mark(0)
    with pytest.raises(waltz.ApplyError) as found:
        view.commit(batch(0, 3))
    assert found.value.transaction.id == 2
    assert isinstance(found.value.__cause__, ValueError)
    assert view.load_mark(0) == -1
    assert ids(view) == []
    view.close()


def test_an_interrupted_batch_leaves_nothing_behind_and_its_connection_serves_the_next(tmp_path: Path) -> None:
    def interrupted(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
        note(txn, db)
        if txn.id == 2:
            raise KeyboardInterrupt

    view = sqlite_view(tmp_path, interrupted)
    view.load_mark(0)
    with pytest.raises(KeyboardInterrupt):
        view.commit(batch(0, 3))
    assert ids(view) == []
    assert view.commit(batch(0, 1)) == 1
    assert ids(view) == [0, 1]
    view.close()


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT OR ROLLBACK INTO only VALUES (1)",
        "UPDATE only SET id = 7",  # a trigger's RAISE(ROLLBACK)
    ],
)
def test_behind_a_rollback_of_sqlites_that_apply_caught_nothing_is_committed(tmp_path: Path, statement: str) -> None:
    schema = f"""
    {SCHEMA}; CREATE TABLE IF NOT EXISTS only (id INTEGER PRIMARY KEY);
    CREATE TRIGGER IF NOT EXISTS fixed BEFORE UPDATE ON only BEGIN SELECT RAISE(ROLLBACK, 'fixed'); END
    """
    prepared = "WITH x AS (SELECT 1) INSERT INTO seen SELECT 1, ?, 'with' FROM x"
    refused: list[int] = []

    def apply(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
        if txn.id < 3:
            note(txn, db)
            db.execute("INSERT OR IGNORE INTO only VALUES (1)")
            db.execute(prepared, (txn.id,))
            return
        with contextlib.suppress(sqlite3.IntegrityError):
            db.execute(statement)
        for _ in range(2):
            for cursor in (db, db.connection.cursor()):
                with pytest.raises(sqlite3.DatabaseError, match="has rolled the transaction back"):  # prepared already
                    note(txn, cursor)
                with pytest.raises(sqlite3.DatabaseError, match="has rolled the transaction back"):
                    cursor.execute("WITH x AS (SELECT 1) INSERT INTO seen SELECT 0, 9, ''")
                with pytest.raises(sqlite3.DatabaseError, match="has rolled the transaction back"):
                    cursor.execute(prepared, (txn.id,))  # which begins no transaction in Python's eyes
                with pytest.raises(sqlite3.DatabaseError, match="has rolled the transaction back"):
                    cursor.executemany(prepared, [(txn.id,)])
            with pytest.raises(sqlite3.DatabaseError, match="has rolled the transaction back"):
                db.connection.execute(prepared, (txn.id,))
            with pytest.raises(sqlite3.DatabaseError, match="has rolled the transaction back"):
                db.connection.blobopen("seen", "data", 1)
            plain = db.connection.cursor(sqlite3.Cursor)
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                note(txn, plain)
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                plain.execute("WITH x AS (SELECT 2) INSERT INTO seen SELECT 0, 9, ''")
        refused.append(txn.id)
        with contextlib.suppress(sqlite3.DatabaseError):
            db.execute("CREATE TABLE other (id INTEGER)")

    view = waltz.SqliteView(tmp_path / "view.db", apply, schema=schema)
    view.load_mark(0)
    assert view.commit(batch(0, 2)) == 2
    with pytest.raises(waltz.ApplyError) as failed:
        view.commit(batch(3, 3))
    assert "SQLite has rolled the transaction back" in str(failed.value.__cause__)
    assert refused == [3]
    assert (view.load_mark(0), ids(view)) == (2, [0, 1, 2])
    with_text = "SELECT id FROM seen WHERE data = 'with' ORDER BY id"
    assert view.read(0, lambda db: db.execute(with_text).fetchall(), ())[0] == [(0,), (1,), (2,)]
    assert view.read(
        0, lambda db: db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'other'").fetchone(), ()
    )[0] == (0,)
    view.close()


def test_an_apply_that_lets_statements_commit_themselves_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    def apply(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
        note(txn, db)
        if txn.id == 1:
            db.connection.isolation_level = None

    view = sqlite_view(tmp_path, apply)
    view.load_mark(0)
    with pytest.raises(waltz.ApplyError):
        view.commit(batch(0, 1))
    session: Any
    with view._session() as session:
        assert session.connection.isolation_level == "DEFERRED"
    assert (view.load_mark(0), ids(view)) == (-1, [])
    view.close()


def test_a_constraint_that_fails_at_the_commit_names_its_transaction(tmp_path: Path) -> None:
    schema = """
    PRAGMA foreign_keys = ON; CREATE TABLE IF NOT EXISTS parent (id INTEGER PRIMARY KEY);
    CREATE TABLE IF NOT EXISTS child (id INTEGER, parent INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)
    """

    def apply(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
        db.execute("INSERT INTO child VALUES (?, ?)", (txn.id, 7 if txn.id == 2 else None))

    def apply_many(txns: Sequence[waltz.Transaction], db: sqlite3.Cursor) -> None:
        for txn in txns:
            apply(txn, db)

    for many in (None, apply_many):
        view = waltz.SqliteView(tmp_path / f"{many is None}.db", apply, apply_many=many, schema=schema)
        view.load_mark(0)
        with pytest.raises(waltz.ApplyError) as failed:
            view.commit(batch(0, 3))
        assert (failed.value.transaction.id, type(failed.value.__cause__)) == (2, sqlite3.IntegrityError)
        assert view.load_mark(0) == 1
        assert view.commit(batch(0, 1)) == 1
        assert view.read(0, lambda db: db.execute("SELECT id FROM child").fetchall(), ()) == ([(0,), (1,)], 1)
        view.close()


def test_what_the_application_makes_of_rows_and_texts_is_its_own(tmp_path: Path) -> None:
    """The view reads its marks, its identity and its keys on the same connection."""

    def by_name(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
        return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}

    def other_rows(db: sqlite3.Cursor) -> None:
        db.row_factory = by_name
        db.connection.row_factory = by_name
        db.connection.text_factory = bytes
        assert db.execute("SELECT 'a' AS b").fetchone() == {"b": b"a"}
        assert db.connection.execute("SELECT 'a' AS b").fetchone() == {"b": b"a"}

    def apply(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
        other_rows(db)
        note(txn, db)

    def decide(db: sqlite3.Cursor) -> Any:
        other_rows(db)
        entry = view.find_key(db, 0, "1")
        assert db.execute("SELECT 'a' AS b").fetchone() == {"b": b"a"}
        return entry

    keys = waltz.Keys(lambda txn: waltz.Key(str(txn.id), txn.id))
    view = sqlite_view(tmp_path, apply, keys=keys)
    assert view.load_mark(0) == -1
    assert view.commit(batch(0, 2)) == 2
    assert view.commit(batch(3, 3)) == 3
    for _ in range(2):
        entry, mark = view.read(0, decide, ())
        assert (entry.transaction_id, mark) == (1, 3)
    assert view.catch_up({0: 5}, lambda partition, mark: batch(mark + 1, 5)) == {0: 3}
    assert ids(view) == [0, 1, 2, 3, 4, 5]
    view.close()


def test_what_another_member_applied_is_not_applied_again(tmp_path: Path) -> None:
    one, other = sqlite_view(tmp_path), sqlite_view(tmp_path)
    one.load_mark(0)
    other.load_mark(0)
    assert one.commit(batch(0, 1)) == 1
    assert other.commit(batch(0, 3)) == 3
    assert one.commit(batch(2, 3)) == 3
    assert one.commit(batch(2, 2)) == 3
    assert ids(one) == [0, 1, 2, 3]
    set_mark(tmp_path, "UPDATE CLIENT_HIGH_WATER_MARK SET HIGH_WATER_MARK = 2")
    with pytest.raises(waltz.ViewRegressedError):
        ids(one)
    one.close()
    other.close()


def test_whose_the_database_is_is_looked_at_behind_the_lock_on_the_mark(tmp_path: Path) -> None:
    """Elsewhere than in SQLite it could be rebuilt by a newer version between the two."""
    said: list[str] = []
    view = sqlite_view(tmp_path)
    view.load_mark(0)
    with view._session() as session:
        session.connection.set_trace_callback(said.append)  # type: ignore[attr-defined]
    view.commit(batch(0, 0))
    order = [next(at for at, text in enumerate(said) if text.startswith(begin)) for begin in ("UPDATE", "SELECT VIEW")]
    assert order == sorted(order), said
    view.close()


def test_what_apply_goes_on_with_when_the_database_has_given_the_transaction_up_is_not_committed(
    tmp_path: Path,
) -> None:
    """As MySQL does in a deadlock: what follows is another transaction, in which the mark was not moved."""

    def swallows(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
        db.execute("UPDATE CLIENT_HIGH_WATER_MARK SET HIGH_WATER_MARK = -1")
        note(txn, db)

    view = sqlite_view(tmp_path, swallows)
    assert view.load_mark(0) == -1
    uses: tuple[Callable[[], object], ...] = (
        lambda: view.commit(batch(0, 2)),
        lambda: view.seed(0, 2, lambda db: swallows(next(iter(batch(2, 2))), db)),
        lambda: view.catch_up({0: 2}, lambda partition, mark: batch(0, 2)),
    )
    for use in uses:
        with pytest.raises(TransactionLostError, match="gave up the transaction") as found:
            use()
        assert view.is_transient(found.value)
        assert (view.load_mark(0), ids(view)) == (-1, [])
    view.close()


@pytest.mark.parametrize(
    ("change", "stored"),
    [
        ("UPDATE CLIENT_HIGH_WATER_MARK SET HIGH_WATER_MARK = 0", 0),
        ("DELETE FROM CLIENT_HIGH_WATER_MARK", None),
    ],
)
def test_a_mark_that_went_back_stops_the_view(tmp_path: Path, change: str, stored: int | None) -> None:
    view = sqlite_view(tmp_path)
    view.load_mark(0)
    view.commit(batch(0, 4))
    set_mark(tmp_path, change)
    for use in (lambda: view.commit(batch(5, 6)), lambda: view.read(0, lambda db: None, ())):
        with pytest.raises(waltz.ViewRegressedError) as found:
            use()
        assert (found.value.stored, found.value.expected) == (stored, 4)
    view.seed(0, 4, lambda db: None)
    assert ids(view) == [0, 1, 2, 3, 4]
    view.close()


def test_reading_gives_the_mark_of_the_same_snapshot(tmp_path: Path) -> None:
    view = sqlite_view(tmp_path)
    view.load_mark(0)
    view.commit(batch(0, 1))

    def read(db: sqlite3.Cursor, factor: int) -> int:
        before: int = db.execute("SELECT count(*) FROM seen").fetchone()[0]
        view.commit(batch(2, 4))  # another connection, in the middle
        assert db.execute("SELECT count(*) FROM seen").fetchone()[0] == before
        return before * factor

    assert view.read(0, read, (10,)) == (20, 1)
    with pytest.raises(waltz.ViewRegressedError):
        view.read(9, lambda db: None, ())
    view.close()


class RefusedError(Exception):
    """An application's own."""


def _first(rows: Any) -> None:
    for row in rows:
        raise RefusedError(row)


@pytest.mark.parametrize(
    "function",
    [
        lambda db: _first(db.execute("SELECT * FROM seen")),
        lambda db: _first(db.connection.cursor().execute("SELECT * FROM seen")),
        lambda db: _first(db.connection.execute("SELECT * FROM seen")),
        lambda db: {"rows": db.execute("SELECT * FROM seen")},
        lambda db: (
            db.connection.execute("SELECT * FROM seen"),
            db.connection.blobopen("seen", "data", 1, readonly=True),
        ),
    ],
)
def test_what_is_read_halfway_keeps_no_snapshot_for_those_who_read_next(
    tmp_path: Path, function: Callable[[sqlite3.Cursor], Any]
) -> None:
    view = sqlite_view(tmp_path)
    view.load_mark(0)
    view.commit(batch(0, 2))
    kept: list[Any] = []  # what may read on, as an error that is being handled does by its traceback
    try:
        kept.append(view.read(0, function, ())[0])
    except RefusedError as error:
        kept.append(error)
    view.commit(batch(3, 3))
    assert ids(view) == [0, 1, 2, 3]
    if isinstance(kept[0], dict):
        with pytest.raises(sqlite3.ProgrammingError, match="closed cursor"):
            kept[0]["rows"].fetchone()
    view.close()


def test_what_apply_has_read_halfway_keeps_neither_its_batch_from_being_committed_nor_its_snapshot(
    tmp_path: Path,
) -> None:
    kept = []

    def apply(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
        note(txn, db)
        if txn.id == 3:
            raise RefusedError
        kept.append(db.connection.execute("UPDATE seen SET data = data RETURNING id"))
        kept.append(db.connection.execute("SELECT id FROM seen"))

    view, other = sqlite_view(tmp_path, apply, name="seen"), sqlite_view(tmp_path, note, name="seen")
    view.load_mark(0)
    other.load_mark(0)
    assert view.commit(batch(0, 2)) == 2
    with pytest.raises(waltz.ApplyError) as failed:
        view.commit(batch(3, 3))
    assert isinstance(failed.value.__cause__, RefusedError)
    assert other.commit(batch(3, 4)) == 4
    assert view.commit(batch(3, 5)) == 5
    assert ids(view) == [0, 1, 2, 3, 4, 5]
    view.close()
    other.close()


@pytest.mark.parametrize(
    "act",
    [
        lambda db: db.execute("COMMIT"),
        lambda db: db.execute("ROLLBACK"),
        lambda db: db.execute("BEGIN"),
        lambda db: db.connection.commit(),
        lambda db: db.connection.rollback(),
        lambda db: db.executescript("SELECT 1"),
        lambda db: db.execute("ATTACH ':memory:' AS other"),
    ],
)
def test_the_application_cannot_end_the_transaction(tmp_path: Path, act: Any) -> None:
    view = sqlite_view(tmp_path, lambda txn, db: act(db))
    view.load_mark(0)
    with pytest.raises((waltz.ApplyError, sqlite3.DatabaseError)):
        view.commit(batch(0, 0))
    assert view.load_mark(0) == -1
    with pytest.raises(sqlite3.DatabaseError):
        view.read(0, lambda db: act(db), ())
    view.close()


def test_the_application_cannot_close_the_connection(tmp_path: Path) -> None:
    view = sqlite_view(tmp_path, lambda txn, db: db.connection.close())
    view.load_mark(0)
    with pytest.raises(waltz.ApplyError) as failed:
        view.commit(batch(0, 0))
    assert "close none but your own" in str(failed.value.__cause__)
    with pytest.raises(RuntimeError, match="close none but your own"):
        view.read(0, lambda db: db.connection.close(), ())
    assert ids(view) == []
    view.close()


def test_an_apply_that_closes_the_cursor_of_the_view_is_named(tmp_path: Path) -> None:
    view = sqlite_view(tmp_path, lambda txn, db: db.close())
    view.load_mark(0)
    with pytest.raises(waltz.ApplyError) as failed:
        view.commit(batch(0, 0))
    assert "close none but your own" in str(failed.value.__cause__)
    with pytest.raises(RuntimeError, match="close none but your own"):
        view.seed(0, 7, lambda db: db.close())
    assert view.load_mark(0) == -1
    view.close()


def test_savepoints_are_the_applications_own(tmp_path: Path) -> None:
    def careful(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
        db.execute("SAVEPOINT s")
        note(txn, db)
        db.execute("ROLLBACK TO s")
        db.execute("RELEASE s")

    view = sqlite_view(tmp_path, careful)
    view.load_mark(0)
    assert view.commit(batch(0, 1)) == 1
    assert ids(view) == []
    view.close()


def test_a_locked_database_is_worth_another_try(tmp_path: Path) -> None:
    view = sqlite_view(tmp_path, busy_timeout=0.0)
    view.load_mark(0)
    blocker = sqlite3.connect(tmp_path / "view.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError) as found:
        view.commit(batch(0, 0))
    assert view.is_transient(found.value)
    assert not view.is_transient(ValueError("x"))
    blocker.execute("ROLLBACK")
    blocker.close()
    assert view.commit(batch(0, 0)) == 0
    view.close()


def see(db: sqlite3.Cursor) -> None:
    db.execute("INSERT INTO seen VALUES (0, 41, NULL)")


def test_a_view_can_be_seeded(tmp_path: Path) -> None:
    view = sqlite_view(tmp_path)
    view.seed(0, 41, see)
    assert view.load_mark(0) == 41
    view.seed(0, 50, lambda db: None)
    assert view.commit(batch(51, 51)) == 51
    assert ids(view) == [41, 51]
    view.close()


def test_the_table_of_marks_has_the_originals_layout(tmp_path: Path) -> None:
    view = sqlite_view(tmp_path, table="marks")
    view.load_mark(7)
    view.close()
    connection = sqlite3.connect(tmp_path / "view.db")
    columns = connection.execute("PRAGMA table_info(marks)").fetchall()
    connection.close()
    assert [(name, kind, notnull, key) for _, name, kind, notnull, _, key in columns] == [
        ("PARTITION_ID", "INTEGER", 1, 1),
        ("HIGH_WATER_MARK", "BIGINT", 1, 0),
    ]


@pytest.mark.parametrize("name", ["a b", "x; DROP TABLE y", "", "1st", "a.b.c"])
def test_odd_table_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(waltz.ConfigError):
        sqlite_view(tmp_path, table=name)


# ---- SQLite: what decides cannot change -----------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO seen VALUES (0, 99, NULL)",
        "UPDATE seen SET id = 99",
        "DELETE FROM seen",
        "DROP TABLE seen",
        "CREATE TABLE other (x)",
        "CREATE TEMP TABLE other (x)",
        "UPDATE CLIENT_HIGH_WATER_MARK SET HIGH_WATER_MARK = 99",
        "PRAGMA user_version = 5",
    ],
)
def test_what_decides_cannot_change_the_view(tmp_path: Path, statement: str) -> None:
    view = sqlite_view(tmp_path)
    view.load_mark(0)
    view.commit(batch(0, 1))

    def decide(db: sqlite3.Cursor) -> None:
        db.execute(statement)

    for _ in range(2):  # also not when the statement was prepared before
        with pytest.raises(waltz.StateReadOnlyError, match="return an Append"):
            view.read(0, decide, ())
    assert (ids(view), view.load_mark(0)) == ([0, 1], 1)
    assert view.commit(batch(2, 2)) == 2
    view.close()


def test_what_apply_has_prepared_does_not_let_decide_write(tmp_path: Path) -> None:
    """The module keeps prepared statements by connection; what decides has its own."""
    statement = "INSERT INTO seen VALUES (0, 7, NULL)"
    view = sqlite_view(tmp_path, lambda txn, db: db.execute(statement) and None)
    view.load_mark(0)
    view.commit(batch(0, 0))
    with pytest.raises(waltz.StateReadOnlyError):
        view.read(0, lambda db: db.execute(statement), ())
    assert ids(view) == [7]
    view.close()


@pytest.mark.parametrize("value", ["= OFF", "= 0", ""])
def test_what_decides_cannot_lift_the_protection(tmp_path: Path, value: str) -> None:
    view = sqlite_view(tmp_path)
    view.load_mark(0)
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        view.read(0, lambda db: db.execute(f"PRAGMA query_only {value}"), ())
    view.close()


@pytest.mark.parametrize(
    "function",
    [
        lambda db: db.execute("COMMIT"),
        lambda db: db.connection.rollback(),
        lambda db: db.executescript("SELECT 1"),
        lambda db: db.execute("ATTACH ':memory:' AS other"),
    ],
)
def test_what_would_end_the_transaction_of_the_view_is_refused_with_the_reason(
    tmp_path: Path, function: Callable[[sqlite3.Cursor], object]
) -> None:
    """SQLite says no more than that it is not authorized."""
    view = sqlite_view(tmp_path)
    view.load_mark(0)
    with pytest.raises(sqlite3.DatabaseError, match="not authorized: the view begins and ends transactions by itself"):
        view.read(0, function, ())
    view.close()


# ---- SQLite: a file that is gone ------------------------------------------------------------------


def delete(folder: Path) -> None:
    for file in folder.glob("view.db*"):
        file.unlink()


def replace(folder: Path) -> None:
    delete(folder)
    other = sqlite_view(folder)
    other.load_mark(0)
    other.commit(batch(0, 9))
    other.close()


@pytest.mark.parametrize("happens", [delete, replace])
def test_a_file_that_was_deleted_stops_the_view(tmp_path: Path, happens: Any) -> None:
    view = sqlite_view(tmp_path)
    view.load_mark(0)
    view.commit(batch(0, 4))
    assert ids(view) == [0, 1, 2, 3, 4]
    happens(tmp_path)
    there = (tmp_path / "view.db").exists()
    with pytest.raises(waltz.ViewRegressedError) as found:
        view.commit(batch(5, 6))
    assert (found.value.stored, found.value.expected) == (None, 4)
    with pytest.raises(waltz.ViewRegressedError):
        ids(view)
    view.close()
    with pytest.raises(waltz.ViewRegressedError):
        view.load_mark(0)
    assert (tmp_path / "view.db").exists() == there, "nothing is created in its place"


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_a_database_that_every_connection_has_for_itself_is_refused(path: str) -> None:
    with pytest.raises(waltz.ConfigError, match="DictView"):
        waltz.SqliteView(path, note)


@contextmanager
def without_root() -> Iterator[None]:
    """Rights of files hold for this process, which root's do not."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o555, None), (0o777, 0o444), (0o666, None)])
def test_a_file_without_the_right_to_write_is_refused_and_none_is_made(folder_mode: int, file_mode: int | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if file_mode is not None:
            (folder / "view.db").touch(file_mode)
        folder.chmod(folder_mode)
        before = list(folder.iterdir())
        try:
            with without_root(), pytest.raises(waltz.ConfigError, match=r": Permission denied: name a file elsewhere$"):
                sqlite_view(folder).load_mark(0)
        finally:
            folder.chmod(0o700)
        assert list(folder.iterdir()) == before


# ---- SQLite: whose it is --------------------------------------------------------------------------


def note_all(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
    note(txn, db)
    db.execute("INSERT INTO more VALUES (?)", (txn.id,))


MORE = f"{SCHEMA}; CREATE TABLE IF NOT EXISTS more (id INTEGER); CREATE INDEX IF NOT EXISTS i ON more (id)"


def test_another_view_on_the_same_file_is_refused_and_both_are_named(tmp_path: Path) -> None:
    view = sqlite_view(tmp_path)
    view.load_mark(0)
    view.commit(batch(0, 2))
    other = waltz.SqliteView(tmp_path / "view.db", note_all, schema=MORE)
    with pytest.raises(waltz.ViewIdentityError) as found:
        other.load_mark(0)
    assert "test_views.note', version 1" in found.value.stored
    assert "test_views.note_all', version 1" in found.value.given
    assert "view.db" in found.value.database
    with pytest.raises(waltz.ViewIdentityError):
        other.seed(0, 3, lambda db: None)
    other.close()
    elsewhere = waltz.SqliteView(tmp_path / "view.db", note_all, schema=MORE, table="other_marks")
    assert elsewhere.load_mark(0) == -1, "with marks of its own it may share the file"
    elsewhere.close()
    renamed = waltz.SqliteView(tmp_path / "view.db", note_all, schema=MORE, name=view.name)
    assert renamed.load_mark(0) == 2
    renamed.close()
    view.close()


def test_the_identity_follows_the_function_not_how_it_is_wrapped_or_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Notes:
        def __call__(self, txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
            note(txn, db)

    names = [sqlite_view(tmp_path, apply).name for apply in (note, functools.partial(note), Notes())]
    assert names[0] == names[1] == f"{__name__}.note"
    assert names[2].endswith("Notes")
    monkeypatch.setattr(note, "__module__", "__main__")
    import __main__

    monkeypatch.setattr(__main__, "__spec__", None)
    monkeypatch.setattr(__main__, "__file__", "somewhere/bank.py", raising=False)
    assert sqlite_view(tmp_path).name == "bank.note"


def test_a_database_of_an_earlier_release_is_adopted_once(tmp_path: Path) -> None:
    set_mark(
        tmp_path,
        "CREATE TABLE CLIENT_HIGH_WATER_MARK (PARTITION_ID INTEGER NOT NULL PRIMARY KEY, HIGH_WATER_MARK BIGINT)",
    )
    set_mark(tmp_path, "INSERT INTO CLIENT_HIGH_WATER_MARK VALUES (0, 41)")
    view = sqlite_view(tmp_path)
    assert view.load_mark(0) == 41
    view.close()
    other = sqlite_view(tmp_path, note_all)
    with pytest.raises(waltz.ViewIdentityError):
        other.load_mark(0)
    other.close()


def test_a_new_version_is_refused_or_makes_the_view_anew(tmp_path: Path) -> None:
    old = sqlite_view(tmp_path)
    old.load_mark(0)
    old.commit(batch(0, 2))
    path = tmp_path / "view.db"
    refused = waltz.SqliteView(path, note_all, schema=MORE, name=old.name, version=2)
    with pytest.raises(waltz.ViewIdentityError, match="rebuild=True"):
        refused.load_mark(0)
    refused.close()
    new = waltz.SqliteView(path, note_all, schema=MORE, name=old.name, version=2, rebuild=True)
    assert new.load_mark(0) == -1
    assert ids(new) == []
    with pytest.raises(waltz.ViewIdentityError, match="while this view was running"):
        old.commit(batch(3, 3))
    with pytest.raises(waltz.ViewIdentityError):
        ids(old)
    assert new.commit(batch(0, 3)) == 3
    with pytest.raises(waltz.ViewIdentityError, match="while this view was running"):
        ids(old)
    old.close()
    new.close()
    again = waltz.SqliteView(path, note_all, schema=MORE, name=old.name, version=2, rebuild=True)
    assert again.load_mark(0) == 3, "it is rebuilt once"
    assert ids(again) == [0, 1, 2, 3]
    again.close()
    late = sqlite_view(tmp_path, rebuild=True)
    with pytest.raises(waltz.ViewIdentityError, match="a newer version is in use"):
        late.load_mark(0)
    late.close()
    with pytest.raises(waltz.ConfigError, match="schema"):
        waltz.SqliteView(path, note, version=2, rebuild=True)


def test_a_new_version_makes_views_anew_too(tmp_path: Path) -> None:
    """What was a view may be a table then, and the other way round."""

    def rebuilt(version: int, schema: str) -> list[Any]:
        schema = f"{SCHEMA}; {schema}"
        view = waltz.SqliteView(
            tmp_path / "view.db", note, schema=schema, name="seen", version=version, rebuild=version > 1
        )
        mark = view.load_mark(0)
        view.commit(batch(0, 2))
        row: list[Any] = view.read(0, lambda db: [mark, *db.execute("SELECT * FROM total").fetchone()], ())[0]
        view.close()
        return row

    whole = "CREATE VIEW IF NOT EXISTS total AS SELECT count(*) * %d FROM seen"
    assert rebuilt(1, whole % 1) == [-1, 3]
    assert rebuilt(2, whole % 100) == [-1, 300]
    named = (
        'CREATE TABLE IF NOT EXISTS total (n INTEGER); INSERT INTO total VALUES (7); CREATE VIEW "a ""b" AS SELECT 1'
    )
    assert rebuilt(3, named) == [-1, 7]
    assert rebuilt(4, whole % 5) == [-1, 15]
    rows = sqlite3.connect(tmp_path / "view.db").execute("SELECT name FROM sqlite_master WHERE type = 'view'")
    assert rows.fetchall() == [("total",)]


def test_every_connection_is_set_up_by_the_pragmas_of_the_schema(tmp_path: Path) -> None:
    schema = f"""
        -- PRAGMA recursive_triggers = ON;
        PRAGMA foreign_keys = ON; {SCHEMA};
        CREATE TRIGGER IF NOT EXISTS t AFTER INSERT ON seen BEGIN SELECT 'PRAGMA'; SELECT 1; END;
        /* for searches */ pragma case_sensitive_like = 'ON'
    """
    asked = ("foreign_keys", "recursive_triggers", "synchronous")

    def found(db: sqlite3.Cursor) -> list[int]:
        row = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in asked]
        return [*row, db.execute("SELECT 'a' LIKE 'A'").fetchone()[0]]

    kept = []

    def apply(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
        kept.append(found(db))

    view = waltz.SqliteView(tmp_path / "view.db", apply, schema=schema)
    view.load_mark(0)
    view.commit(batch(0, 0))
    with view._session():  # so that another one is opened
        view.commit(batch(1, 1))
        with view._session():
            view.commit(batch(2, 2))
    assert kept == [[1, 0, 2, 0]] * 3
    assert view.read(0, lambda db: [found(db), view.read(0, found, ())[0]], ())[0] == [[1, 0, 2, 0]] * 2
    view.close()


def test_a_new_reader_does_not_wait_for_a_writer_because_of_the_schema(tmp_path: Path) -> None:
    """Pragmas that write to the file need the lock that the writer has: they are for the first connection alone."""
    schema = f"""
        PRAGMA user_version = 2; pragma main . application_id(7); PRAGMA "optimize"; PRAGMA wal_checkpoint;
        PRAGMA main.foreign_keys = ON; PRAGMA journal_mode = WAL; PRAGMA `cache_size`(-777); {SCHEMA}
    """
    asked = ("user_version", "application_id", "foreign_keys", "cache_size")

    def found(db: sqlite3.Cursor) -> list[int]:
        return [db.execute(f"PRAGMA {name}").fetchone()[0] for name in asked]

    view = waltz.SqliteView(tmp_path / "view.db", note, schema=schema, busy_timeout=0)
    view.load_mark(0)
    view.commit(batch(0, 0))
    writer = sqlite3.connect(tmp_path / "view.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    assert view.read(0, found, ()) == ([2, 7, 1, -777], 0)
    writer.close()
    view.close()


def test_a_program_may_change_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    view = waltz.SqliteView("view.db", note, schema=SCHEMA)
    monkeypatch.chdir("elsewhere")
    view.load_mark(0)
    monkeypatch.chdir("..")
    view.commit(batch(0, 1))
    monkeypatch.chdir("elsewhere")
    with view._session():
        assert view.commit(batch(2, 2)) == 2
    assert (ids(view), view.path) == ([0, 1, 2], str(tmp_path / "view.db"))
    view.close()


def test_a_new_version_empties_the_tables_of_its_own_schema_too(tmp_path: Path) -> None:
    old = sqlite_view(tmp_path)
    old.load_mark(0)
    old.close()
    set_mark(tmp_path, "CREATE TABLE of_both AS SELECT 1 AS id")  # as a version before this one has left it
    schema = f"{SCHEMA}; CREATE TABLE IF NOT EXISTS of_both (id INTEGER)"
    new = waltz.SqliteView(tmp_path / "view.db", note, schema=schema, version=2, rebuild=True)
    assert new.load_mark(0) == -1
    assert new.read(0, lambda db: db.execute("SELECT id FROM of_both").fetchall(), ()) == ([], -1)
    new.close()


# ---- what is no function of a transaction ----------------------------------------------------------


async def asynchronous(txn: waltz.Transaction, state: Any) -> None:
    raise AssertionError


def generator(txn: waltz.Transaction, state: Any) -> Iterator[None]:
    yield


class Asynchronous:
    async def __call__(self, txn: waltz.Transaction, state: Any) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    "apply", [asynchronous, functools.partial(asynchronous), Asynchronous(), generator, None, "apply"]
)
def test_an_apply_that_would_do_nothing_is_refused_when_the_view_is_made(tmp_path: Path, apply: Any) -> None:
    for make in (waltz.DictView, functools.partial(waltz.SqliteView, tmp_path / "x.db")):
        with pytest.raises(TypeError, match="apply must be a"):
            make(apply)


def only_the_transaction(txn: waltz.Transaction) -> None: ...


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: waltz.DictView(only_the_transaction),  # type: ignore[arg-type]
            r"apply is called with a transaction and the state, and .*only_the",
        ),
        (lambda: waltz.DictView(noted, apply_many=only_the_transaction), "apply_many is called with transactions and"),  # type: ignore[arg-type]
        (lambda: waltz.SqliteView("x.db", lambda txn, db, more: None), r"missing a required argument: 'more'"),  # type: ignore[arg-type, misc]
        (lambda: waltz.Keys(lambda: None), "key_of is called with a transaction, and .* cannot be: too many"),  # type: ignore[arg-type, misc]
    ],
)
def test_a_function_that_cannot_be_called_as_it_will_be_is_refused_when_the_view_is_made(make: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        make()


def noted(txn: waltz.Transaction, state: Any, *, note: str = "") -> None: ...


def test_a_function_may_have_more_parameters_if_they_have_defaults() -> None:
    waltz.DictView(noted)
    waltz.DictView(functools.partial(noted, note="x"))
    waltz.DictView(lambda *both: None)


def test_a_coroutine_that_apply_returns_is_an_error(tmp_path: Path) -> None:
    view = sqlite_view(tmp_path, lambda txn, db: asynchronous(txn, db))
    view.load_mark(0)
    with pytest.raises(waltz.ApplyError) as found:
        view.commit(batch(0, 0))
    assert "plain function" in str(found.value.__cause__)
    view.close()


# ---- memory ------------------------------------------------------------------------------------


def test_a_value_that_apply_returns_means_nothing() -> None:
    view: waltz.DictView[Any] = waltz.DictView(lambda txn, state: state.setdefault(txn.id, "seen"))
    view.load_mark(0)
    assert view.commit(batch(0, 1)) == 1
    assert view.state == {0: "seen", 1: "seen"}


def test_a_dict_view_applies_in_order() -> None:
    view: waltz.DictView[Any] = waltz.DictView(lambda txn, state: state.update({txn.id: txn.load()}))
    assert view.load_mark(0) == -1
    assert view.commit(batch(0, 1)) == 1
    assert view.commit(batch(0, 2)) == 2
    assert view.state == {0: b"0", 1: b"1", 2: b"2"}
    assert view.read(0, lambda state, key: state[key], (1,)) == (b"1", 2)
    assert not view.is_transient(OSError())
    view.close()


def test_a_dict_view_stops_at_a_gap_and_at_what_it_cannot_apply() -> None:
    def picky(txn: waltz.Transaction, state: list[int]) -> None:
        state.append(10 // (2 - txn.id))

    view: waltz.DictView[list[int]] = waltz.DictView(picky, [])
    view.seed(0, -1)
    with pytest.raises(waltz.ViewRegressedError):
        view.commit(batch(1, 1))
    together: waltz.DictView[list[int]] = waltz.DictView(picky, [], apply_many=lambda txns, state: None)
    together.seed(0, -1)
    with pytest.raises(waltz.ViewRegressedError):
        together.commit(batch(1, 2))
    with pytest.raises(waltz.ApplyError) as found:
        view.commit(batch(0, 2))
    assert found.value.transaction.id == 2
    assert (view.state, view.load_mark(0)) == ([5, 10], 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.update(a=1),
        lambda state: state["deep"]["list"].append(1),
        lambda state: state["deep"].pop("list"),
        lambda state: state["deep"]["set"].add(1),
        lambda state: state["deep"]["list"].sort(),
        lambda state: state.clear(),
        lambda state: state.setdefault("new", 1),
    ],
)
def test_what_decides_cannot_change_a_dictionary(change: Any) -> None:
    view: waltz.DictView[Any] = waltz.DictView(lambda txn, state: None, {"deep": {"list": [2, 1], "set": {2}}})
    view.seed(0, 4)
    with pytest.raises(waltz.StateReadOnlyError, match="return an Append"):
        view.read(0, change, ())
    assert view.state == {"deep": {"list": [2, 1], "set": {2}}}


def test_a_transaction_changes_a_dictionary_as_a_whole_or_not_at_all() -> None:
    def half(txn: waltz.Transaction, state: Any) -> None:
        state["list"].append(txn.id)
        state.setdefault("more", {})["x"] = txn.id
        if txn.id == 2:
            raise ArithmeticError

    view: waltz.DictView[Any] = waltz.DictView(half, {"list": []})
    view.load_mark(0)
    for _ in range(3):
        with pytest.raises(waltz.ApplyError):
            view.commit(batch(0, 3))
        assert (view.state, view.marks) == ({"list": [0, 1], "more": {"x": 1}}, {0: 1})


def test_a_state_that_cannot_be_put_back_is_never_used_half_changed() -> None:
    class Account:
        seen = 0

    def half(txn: waltz.Transaction, state: Account) -> None:
        state.seen += 1
        raise ArithmeticError

    view: waltz.DictView[Any] = waltz.DictView(half, Account())
    view.load_mark(0)
    for _ in range(3):
        with pytest.raises(waltz.ApplyError) as found:
            view.commit(batch(0, 0))
        assert isinstance(found.value.__cause__, ArithmeticError)
    assert view.state.seen == 1
    with pytest.raises(waltz.ApplyError) as found:
        view.read(0, lambda state: state.seen, ())
    assert "half changed" in found.value.__notes__[0]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"path": None}, TypeError, "path: expected the path of a file, found None (NoneType); write SqliteView("),
        ({"path": 3}, TypeError, "path: expected the path of a file, found 3 (int)"),
        ({"schema": ["CREATE TABLE x (y)"]}, TypeError, "schema is a text, found ['CREATE TABLE x (y)'] (list)"),
        ({"name": 3}, TypeError, "name is a text, found 3 (int)"),
        ({"name": " "}, waltz.ConfigError, "name=' ' tells a view from no other"),
        ({"busy_timeout": "5"}, TypeError, "busy_timeout is a number of seconds, found '5' (str)"),
        ({"busy_timeout": -1}, ValueError, "busy_timeout is from 0 to 86400 seconds, not -1"),
        ({"busy_timeout": float("nan")}, ValueError, "busy_timeout is from 0 to 86400 seconds, not nan"),
        ({"keys": lambda txn: None}, TypeError, "write keys=Keys(key_of)"),
    ],
)
def test_what_makes_no_view_is_refused_when_it_is_made(
    options: dict[str, Any], error: type[Exception], text: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=re.escape(text)):
        waltz.SqliteView(**{"path": tmp_path / "view.db", "apply": lambda txn, db: None, **options})


def test_what_makes_no_view_in_memory_or_on_a_server_is_refused_when_it_is_made() -> None:
    def apply(txn: waltz.Transaction, state: Any) -> None: ...

    with pytest.raises(TypeError, match=r"keys: expected Keys, found"):
        waltz.DictView(apply, keys=apply)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"found the class dict; write dict\(\)"):
        waltz.DictView(apply, dict)
    with pytest.raises(waltz.ConfigError, match="expected mysql://user"):
        waltz.MySqlView("mysql:/database", apply)
    with pytest.raises(TypeError, match="where: expected mysql://user"):
        waltz.MySqlView(3, apply)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="conninfo: expected a text"):
        waltz.PostgresView(b"dbname=x", apply)  # type: ignore[arg-type]


def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "other.db")
    db.execute("PRAGMA max_page_count = 3")
    with pytest.raises(sqlite3.OperationalError, match="database or disk is full") as full:
        db.executescript("CREATE TABLE x (data); INSERT INTO x VALUES (zeroblob(100000))")
    db.close()
    assert waltz.SqliteView(tmp_path / "view.db", lambda txn, db: None).is_transient(full.value)


def test_a_file_system_that_has_become_read_only_is_waited_for(tmp_path: Path) -> None:
    """As one does whose disk fails, until it is mounted again; it ended the application."""
    view = waltz.SqliteView(tmp_path / "view.db", lambda txn, db: None)
    sqlite3.connect(tmp_path / "other.db").close()
    db = sqlite3.connect(f"file:{tmp_path / 'other.db'}?mode=ro", uri=True)
    with pytest.raises(sqlite3.OperationalError, match="attempt to write a readonly database") as refused:
        db.execute("CREATE TABLE x (data)")
    db.close()
    assert not view.is_transient(refused.value), "it never could be written"
    assert view.load_mark(0) == -1
    assert view.is_transient(refused.value)
    view.close()

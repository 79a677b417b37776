"""Views: data and mark move together, or not at all."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

import waltz_trio as waltz
from waltz_core.ids import ReqId
from waltz_core.log import MARKER_HEADER

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
    memory = waltz.DictView(lambda txn, state: state.update({txn.id: txn.load()}))
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


def test_what_another_member_applied_is_not_applied_again(tmp_path: Path) -> None:
    one, other = sqlite_view(tmp_path), sqlite_view(tmp_path)
    one.load_mark(0)
    other.load_mark(0)
    assert one.commit(batch(0, 1)) == 1
    assert other.commit(batch(0, 3)) == 3
    assert one.commit(batch(2, 3)) == 3
    assert one.commit(batch(2, 2)) == 3
    assert ids(one) == [0, 1, 2, 3]
    one.close()
    other.close()


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
    with pytest.raises(waltz.ViewRegressedError) as found:
        view.commit(batch(5, 6))
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


def test_a_view_can_be_seeded(tmp_path: Path) -> None:
    view = sqlite_view(tmp_path)
    view.seed(0, 41, lambda db: db.execute("INSERT INTO seen VALUES (0, 41, NULL)"))
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


# ---- memory ------------------------------------------------------------------------------------


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
    with pytest.raises(waltz.ApplyError) as found:
        view.commit(batch(0, 2))
    assert found.value.transaction.id == 2
    assert (view.state, view.load_mark(0)) == ([5, 10], 1)

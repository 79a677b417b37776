"""Statements of `apply` that are sent without waiting for each answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import psycopg
import pymysql
import pytest

import waltz_trio as waltz
from tests.views.cases import MYSQL_SCHEMA, note_sql
from tests.views.servers import MariaServer
from tests.views.test_databases import MORE, Place, ids
from tests.views.test_databases import place as place
from waltz_testing import transactions
from waltz_trio.client import mysql_pipeline, postgres_session


@pytest.fixture
def mariadb(maria: MariaServer) -> Place:
    """A place of kind "mysql"."""
    name = maria.new_database()
    return Place("mysql", maria, name, maria.options(name), MYSQL_SCHEMA)


def test_many_statements_go_out_in_groups_and_run_in_their_order(place: Place) -> None:
    waiting: list[int] = []

    def apply(txn: waltz.Transaction, db: Any) -> None:
        for number in range(100):
            db.execute("UPDATE more SET id = id * 3 %% 10007 + %s", (number,))
            connection = db.connection
            waiting.append(len(connection._owed) if place.kind == "mysql" else connection.pipelined._count)

    view = place.view(apply, schema=f"{place.schema}; {MORE}")
    view.load_mark(0)
    place.execute("INSERT INTO more VALUES (1)")
    assert view.commit(transactions(0, 9)) == 9
    value = 1
    for number in [*range(100)] * 10:
        value = value * 3 % 10007 + number
    assert place.execute("SELECT id FROM more") == [(value,)]
    assert len(waiting) == 1000, "one run"
    assert max(waiting) == (127 if place.kind == "mysql" else 31)
    view.close()


def test_large_values_are_not_gathered(place: Place) -> None:
    large, waiting = bytes(70_000), []

    def apply(txn: waltz.Transaction, db: Any) -> None:
        db.execute("DELETE FROM more WHERE %s = %s", (large, large[:-1]))
        connection = db.connection
        waiting.append(len(connection._unsent) if place.kind == "mysql" else connection.pipelined._size)

    view = place.view(apply, schema=f"{place.schema}; {MORE}")
    view.load_mark(0)
    assert view.commit(transactions(0, 9)) == 9
    assert waiting == [0] * 10
    view.close()


def test_the_drivers_that_are_installed_have_the_inner_methods_that_are_used() -> None:
    missing = [f"PyMySQL {pymysql.VERSION_STRING}"] * (not _has(mysql_pipeline.Pipelined, mysql_pipeline._NEEDED))
    missing += [f"psycopg {psycopg.__version__}"] * (not postgres_session._CAN_GATHER)
    assert missing == [], (
        "an inner method has gone or has another name: each statement now waits for its answer. See what replaces it "
        "(waltz_trio/client/mysql_pipeline.py, postgres_session.py), or lower the bound in pyproject.toml and "
        "docs/dependencies.md"
    )


def _has(kind: type, names: Iterable[str]) -> bool:
    return all(hasattr(kind, name) for name in names)


def test_a_driver_without_the_inner_methods_waits_for_each_answer(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_pipeline, "_NEEDED", ("of_another_version",))
    monkeypatch.setattr(postgres_session, "_CAN_GATHER", False)
    ahead: list[object] = []

    def apply(txn: waltz.Transaction, db: Any) -> None:
        connection = db.connection
        ahead.append(connection.deferring if place.kind == "mysql" else hasattr(connection.pipelined, "_count"))
        note_sql(txn, db)

    view = place.view(apply)
    view.load_mark(0)
    assert view.commit(transactions(0, 2)) == 2
    assert (ahead, ids(view)) == ([False] * 3, [0, 1, 2])
    view.close()


# ---- MariaDB ---------------------------------------------------------------------------------------------------------


def test_behind_what_was_sent_ahead_a_statement_gets_its_answer_at_once(mariadb: Place) -> None:
    """On the same connection: an error that came behind the commit would be nobody's."""
    caught: list[int] = []

    def apply(txn: waltz.Transaction, db: Any) -> None:
        note_sql(txn, db)
        if txn.id == 3:
            try:
                db.execute("INSERT INTO more VALUES (1), (1)")
            except pymysql.err.IntegrityError:
                caught.append(txn.id)

    view = mariadb.view(apply, schema=f"{mariadb.schema}; {MORE}")
    view.load_mark(0)
    assert view.commit(transactions(0, 2)) == 2
    assert view.commit(transactions(3, 3)) == 3
    assert (caught, ids(view)) == ([3], [0, 1, 2, 3])
    view.close()


def test_an_apply_that_catches_errors_gets_them_and_is_no_longer_sent_ahead(mariadb: Place) -> None:
    ahead: list[bool] = []

    def apply(txn: waltz.Transaction, db: Any) -> None:
        ahead.append(db.connection.deferring)
        try:
            db.execute("INSERT INTO more VALUES (%s)", (txn.id // 2,))
        except pymysql.err.IntegrityError:
            note_sql(txn, db)

    view = mariadb.view(apply, schema=f"{mariadb.schema}; {MORE}")
    view.load_mark(0)
    assert view.commit(transactions(0, 5)) == 5
    assert ids(view) == [1, 3, 5]
    assert ahead[0]
    ahead.clear()
    assert view.commit(transactions(6, 9)) == 9
    assert ids(view) == [1, 3, 5, 7, 9]
    assert ahead == [False] * 4
    view.close()


def test_an_error_that_apply_swallows_where_it_waits_commits_nothing_of_what_was_sent_ahead(mariadb: Place) -> None:

    def apply(txn: waltz.Transaction, db: Any) -> None:
        db.execute("INSERT INTO more VALUES (%s)", (txn.id,))
        with contextlib.suppress(pymysql.err.IntegrityError):
            db.execute("SELECT count(*) FROM more")
        note_sql(txn, db)

    view = mariadb.view(apply, schema=f"{mariadb.schema}; {MORE}")
    view.load_mark(0)
    mariadb.execute("INSERT INTO more VALUES (2)")
    with pytest.raises(waltz.ApplyError) as failed:
        view.commit(transactions(0, 3))
    assert failed.value.transaction.id == 2
    assert (view.load_mark(0), ids(view)) == (-1, [])
    view.close()


def test_the_rows_of_a_statement_are_a_number_whenever_they_are_asked_for(mariadb: Place) -> None:
    seen: list[object] = []

    def apply(txn: waltz.Transaction, db: Any) -> None:
        if txn.id:
            note_sql(txn, db)
            return
        assert db.connection.deferring
        inserted = db.execute("INSERT INTO more VALUES (1), (2)")
        updated = db.execute("UPDATE more SET id = id + 10")
        none = db.execute("DELETE FROM more WHERE id = 1")
        seen.extend([inserted == 2, inserted + updated, bool(none), f"{updated}:{none}", sum([inserted, none])])
        seen.extend([none < 1, inserted > 1, inserted >= updated, {inserted: 1}[2], [10, 20, 30][inserted]])
        db.execute("INSERT INTO more VALUES (40) RETURNING id")
        seen.append(db.fetchone())
        db.execute("INSERT INTO more VALUES (3), (13)")
        seen.extend([db.lastrowid, db.rowcount, db.connection.affected_rows(), db.fetchone()])
        db.execute("SELECT max(id) FROM more")
        seen.append(db.fetchone())

    view = mariadb.view(apply, schema=f"{mariadb.schema}; {MORE}")
    view.load_mark(0)
    assert view.commit(transactions(0, 1)) == 1
    assert seen[:5] == [True, 4, False, "2:0", 2]
    assert seen[5:10] == [True, True, True, 1, 30]
    assert seen[10:] == [(40,), 0, 2, 2, None, (40,)]
    view.close()


def test_many_rows_at_once_are_counted_together(mariadb: Place) -> None:
    seen: list[object] = []

    def apply(txn: waltz.Transaction, db: Any) -> None:
        assert db.connection.deferring == (txn.id < 4)
        db.execute("INSERT INTO more VALUES (%s)", (txn.id * 10,))
        total = db.executemany("UPDATE more SET id = id + 1 WHERE id = %s", [(txn.id * 10,), (txn.id * 10 + 1,), (7,)])
        seen.append((total, db.rowcount, db.lastrowid))

    view = mariadb.view(apply, schema=MORE)
    view.load_mark(0)
    assert view.commit(transactions(0, 3)) == 3
    assert view.commit(transactions(4, 4)) == 4
    assert seen == [(2, 2, 0)] * 5
    view.close()


def test_a_batch_whose_connection_broke_is_tried_with_an_answer_to_each_statement(mariadb: Place) -> None:
    ahead: list[bool] = []
    killed: list[int] = []

    def apply(txn: waltz.Transaction, db: Any) -> None:
        ahead.append(db.connection.deferring)
        note_sql(txn, db)
        if txn.id == 1 and not killed:
            killed.append(db.connection.thread_id())
            mariadb.execute(f"KILL {killed[0]}")

    view = mariadb.view(apply)
    view.load_mark(0)
    with pytest.raises(pymysql.err.OperationalError) as lost:
        view.commit(transactions(0, 2))
    assert view.is_transient(lost.value)
    ahead.clear()
    assert view.commit(transactions(0, 2)) == 2
    assert view.commit(transactions(3, 4)) == 4
    assert ahead == [False, False, False, True, True]
    assert ids(view) == [0, 1, 2, 3, 4]
    view.close()

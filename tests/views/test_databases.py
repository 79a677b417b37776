"""What is of PostgreSQL's, MySQL's and MariaDB's own: transactions that end by themselves, and whose the tables are."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import attrs
import psycopg
import pymysql
import pytest
import trio

import waltz_trio as waltz
from tests.trio.small_cluster import small_cluster
from tests.views.cases import MYSQL_SCHEMA, POSTGRES_SCHEMA, note_sql, noted_sql
from tests.views.servers import DatabaseServer, MariaServer, PostgresServer
from waltz_core.base.ids import ReqId
from waltz_core.client.keys import KeyEntry, KeyTable, request_hash
from waltz_testing import transactions
from waltz_trio.client.mysql_session import _sets_own
from waltz_trio.client.sql_sessions import TransactionLostError
from waltz_trio.client.sql_view import SqlView

MORE = "CREATE TABLE IF NOT EXISTS more (id INTEGER PRIMARY KEY)"
COUNTERS = "CREATE TABLE IF NOT EXISTS counters (id INTEGER PRIMARY KEY, n INTEGER)"


@attrs.frozen
class Place:
    """A database, and views in it."""

    kind: str
    server: DatabaseServer
    name: str
    where: Any
    schema: str

    def view(self, apply: Any = note_sql, **options: Any) -> Any:
        make = {"postgres": waltz.PostgresView, "mysql": waltz.MySqlView}[self.kind]
        return make(self.where, apply, **{"schema": self.schema, "name": "seen", **options})

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        return self.server.execute(self.name, statement)


@pytest.fixture(params=["postgres", "mysql"])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        name = server.new_database()
        return Place("postgres", server, name, server.conninfo(name), POSTGRES_SCHEMA)
    maria: MariaServer = request.getfixturevalue("maria")
    name = maria.new_database()
    return Place("mysql", maria, name, maria.options(name), MYSQL_SCHEMA)


def ids(view: Any) -> list[int]:
    found: list[int] = view.read(0, noted_sql, (0,))[0]
    return found


# ---- what is wrong with the application --------------------------------------------------------------------------


def _raising(rows: Any) -> None:
    for row in rows:
        raise ArithmeticError(row)


def _unbuffered(db: Any) -> Any:
    cursor = db.connection.cursor(pymysql.cursors.SSCursor)
    cursor.execute("SELECT * FROM seen")
    return cursor


def _selected(db: Any) -> Any:
    db.execute("SELECT * FROM seen")
    return db


HALF_READ: dict[str, list[Callable[[Any], Any]]] = {
    "postgres": [
        lambda db: _raising(_selected(db)),
        lambda db: _raising(db.stream("SELECT * FROM seen")),
        lambda db: (rows := db.stream("SELECT * FROM seen"), next(rows)),
        lambda db: (copy := db.copy("COPY seen TO STDOUT"), copy.__enter__()),
    ],
    "mysql": [
        lambda db: _raising(_selected(db)),
        lambda db: _raising(_unbuffered(db)),
        lambda db: {"rows": _unbuffered(db)},
    ],
}


@pytest.mark.filterwarnings("ignore:Previous unbuffered result:UserWarning")
def test_what_is_read_halfway_keeps_no_snapshot_for_those_who_read_next(place: Place) -> None:
    view = place.view()
    view.load_mark(0)
    view.commit(transactions(0, 2))
    kept: list[Any] = []  # what may read on, as an error that is being handled does by its traceback
    for mark, function in enumerate(HALF_READ[place.kind], 3):
        try:
            kept.append(view.read(0, function, ())[0])
        except ArithmeticError as error:
            kept.append(error)
        view.commit(transactions(mark, mark))
        assert ids(view) == list(range(mark + 1))
    view.close()


def _many_values(db: Any) -> None:
    db.execute(f"SELECT {', '.join(['%s'] * 70_000)}", [1] * 70_000)


def _long(db: Any) -> None:
    db.execute(f"INSERT INTO seen (partition_id, id) VALUES (0, 0) /* {'x' * (17 << 20)} */")


def _closing_cursor(db: Any) -> None:
    with db:
        _selected(db)
    _selected(db)


def _closing_connection(db: Any) -> None:
    db.connection.close()


WRONG: dict[str, dict[Callable[[Any], Any], type[Exception]]] = {
    "postgres": {
        _many_values: psycopg.OperationalError,
        _closing_cursor: psycopg.InterfaceError,
        _closing_connection: RuntimeError,
    },
    "mysql": {
        _long: pymysql.err.OperationalError,
        _closing_cursor: pymysql.err.ProgrammingError,
        _closing_connection: RuntimeError,
    },
}


def test_what_is_wrong_with_a_call_is_not_taken_for_a_lost_connection(place: Place) -> None:
    """Drivers find it themselves, without the server or as the end of the connection: tried again, it never ends."""
    for function, error in WRONG[place.kind].items():
        view = place.view(lambda txn, db, function=function: function(db))
        view.load_mark(0)
        for last in (1, 0):  # together, and alone
            with pytest.raises(waltz.ApplyError) as failed:
                view.commit(transactions(0, last))
            assert isinstance(failed.value.__cause__, error)
            assert not view.is_transient(failed.value.__cause__)
        with pytest.raises(error) as raised:
            view.read(0, function, ())
        assert not view.is_transient(raised.value)
        assert ids(view) == []
        view.close()


def test_an_apply_that_closes_the_cursor_of_the_view_is_named(place: Place) -> None:
    view = place.view(lambda txn, db: db.close())
    view.load_mark(0)
    for last in (0, 1):
        with pytest.raises(waltz.ApplyError) as failed:
            view.commit(transactions(0, last))
        assert "close none but your own" in str(failed.value.__cause__)
    with pytest.raises(RuntimeError, match="close none but your own"):
        view.seed(0, 7, lambda db: db.close())
    assert view.load_mark(0) == -1
    view.close()


def test_an_apply_that_leaves_a_stream_half_read_is_named(postgres: PostgresServer) -> None:
    """The view would wait for its end for ever."""
    kept = []

    def apply(txn: waltz.Transaction, db: Any) -> None:
        kept.append(db.stream("SELECT 1 UNION SELECT 2"))
        next(kept[-1])

    view = waltz.PostgresView(postgres.conninfo(postgres.new_database()), apply, schema=POSTGRES_SCHEMA)
    view.load_mark(0)
    with pytest.raises(waltz.ApplyError) as failed:
        view.commit(transactions(0, 0))
    assert "not read to its end" in str(failed.value.__cause__)
    assert (view.load_mark(0), ids(view)) == (-1, [])
    view.close()


def test_the_longest_statement_that_the_server_takes_is_sent(maria: MariaServer) -> None:
    name = maria.new_database()
    ((largest,),) = maria.execute(name, "SELECT @@max_allowed_packet")
    view = waltz.MySqlView(maria.options(name), note_sql, schema=MYSQL_SCHEMA)
    view.load_mark(0)
    start = "SELECT 1 /* "

    def decide(db: Any, size: int) -> Any:
        db.execute(start + "x" * (size - len(start) - 2) + "*/")
        return db.fetchone()

    assert view.read(0, decide, (largest - 2,))[0] == (1,)
    with pytest.raises(
        pymysql.err.OperationalError, match=r"takes less than \d+ \(max_allowed_packet\): write several"
    ):
        view.read(0, decide, (largest - 1,))
    assert ids(view) == []
    view.close()


def test_a_receipt_is_the_number_of_its_transaction_in_sql(place: Place) -> None:
    def apply(txn: waltz.Transaction, db: Any) -> None:
        db.execute("INSERT INTO seen (partition_id, id) VALUES (%s, %s)", (0, waltz.Receipt(0, txn.id, value="x")))

    def find(db: Any, receipt: waltz.Receipt) -> list[Any]:
        db.execute("SELECT id FROM seen WHERE id = %s", (receipt,))
        found = db.fetchall()
        if place.kind == "mysql":
            db.execute("SELECT id FROM seen WHERE id IN %(ids)s", {"ids": [receipt]})
            found += db.fetchall()
        return list(found)

    view = place.view(apply)
    view.load_mark(0)
    view.commit(transactions(0, 2))
    assert ids(view) == [0, 1, 2]
    assert set(view.read(0, find, (waltz.Receipt(0, 1, attempts=2),))[0]) == {(1,)}
    view.close()


# ---- transactions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "act",
    [
        lambda db: db.execute("COMMIT"),
        lambda db: db.execute("/* now */ commit"),
        lambda db: db.execute("ROLLBACK"),
        lambda db: db.execute("BEGIN"),
        lambda db: db.execute("START TRANSACTION"),
        lambda db: db.execute("SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE"),
        lambda db: db.execute("SELECT 1; COMMIT"),
        lambda db: db.connection.commit(),
        lambda db: db.connection.rollback(),
        lambda db: db.connection.cursor().execute("COMMIT"),
    ],
)
def test_the_application_cannot_end_the_transaction(place: Place, act: Callable[[Any], object]) -> None:
    def apply(txn: waltz.Transaction, db: Any) -> None:
        note_sql(txn, db)
        if txn.id == 1:
            act(db)

    view = place.view(apply)
    view.load_mark(0)
    with pytest.raises(waltz.ApplyError) as failed:
        view.commit(transactions(0, 2))
    assert failed.value.transaction.id == 1
    assert (view.load_mark(0), ids(view)) == (-1, [])
    with pytest.raises((RuntimeError, psycopg.Error, pymysql.err.Error)):
        view.read(0, lambda db: act(db), ())
    assert ids(view) == []
    view.close()


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE other (id INTEGER)", "ALTER TABLE seen ADD x INTEGER", "TRUNCATE seen"]
)
def test_a_change_of_definitions_never_commits_a_transaction_halfway(place: Place, statement: str) -> None:
    """PostgreSQL rolls it back; MySQL and MariaDB would commit, so it is refused there."""

    def apply(txn: waltz.Transaction, db: Any) -> None:
        note_sql(txn, db)
        if txn.id == 1:
            db.execute(statement)
            raise ArithmeticError

    view = place.view(apply)
    view.load_mark(0)
    with pytest.raises(waltz.ApplyError) as failed:
        view.commit(transactions(0, 2))
    assert isinstance(failed.value.__cause__, ArithmeticError if place.kind == "postgres" else RuntimeError)
    assert (view.load_mark(0), ids(view)) == (-1, [])
    view.close()


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO seen (partition_id, id) VALUES (0, 99)",
        "UPDATE seen SET id = 99",
        "DELETE FROM seen",
        "DROP TABLE seen",
        "CREATE TABLE other (x INTEGER)",
        "UPDATE CLIENT_HIGH_WATER_MARK SET HIGH_WATER_MARK = 99",
    ],
)
def test_what_decides_cannot_change_the_view(place: Place, statement: str) -> None:
    view = place.view()
    view.load_mark(0)
    view.commit(transactions(0, 1))
    for _ in range(2):
        with pytest.raises(waltz.StateReadOnlyError, match="return an Append"):
            view.read(0, lambda db: db.execute(statement), ())
    assert (ids(view), view.load_mark(0)) == ([0, 1], 1)
    view.close()


def test_what_decides_cannot_lift_the_protection(place: Place) -> None:
    attempts = {
        "postgres": [
            "SET LOCAL transaction_read_only = off",
            "SELECT set_config('transaction_read_only', 'off', true)",
        ],
        "mysql": ["SET SESSION TRANSACTION READ WRITE", "SET @@session.tx_read_only = 0", "/*!50000 COMMIT */"],
    }
    view = place.view()
    view.load_mark(0)

    def decide(db: Any, statement: str) -> None:
        db.execute(statement)
        db.execute("INSERT INTO seen (partition_id, id) VALUES (0, 99)")

    for statement in attempts[place.kind]:
        with pytest.raises((waltz.StateReadOnlyError, RuntimeError, psycopg.Error)):
            view.read(0, decide, (statement,))
    assert ids(view) == []
    view.close()


def test_savepoints_are_the_applications_own(place: Place) -> None:
    def apply(txn: waltz.Transaction, db: Any) -> None:
        note_sql(txn, db)
        db.execute("SAVEPOINT s")
        note_sql(txn, db)
        db.execute("ROLLBACK TO SAVEPOINT s")
        db.execute("RELEASE SAVEPOINT s")

    view = place.view(apply)
    view.load_mark(0)
    assert view.commit(transactions(0, 2)) == 2
    assert ids(view) == [0, 1, 2]
    view.close()


def test_an_error_that_apply_catches_never_commits_half_of_it(place: Place) -> None:
    """In PostgreSQL the whole transaction is lost with it, and COMMIT would say nothing; in the others it goes on."""

    def apply(txn: waltz.Transaction, db: Any) -> None:
        note_sql(txn, db)
        if txn.id == 2:
            try:
                db.execute("INSERT INTO more VALUES (1)")
                db.execute("INSERT INTO more VALUES (1)")
            except (psycopg.IntegrityError, pymysql.err.IntegrityError):
                pass

    view = place.view(apply, schema=f"{place.schema}; {MORE}")
    view.load_mark(0)
    if place.kind == "mysql":
        assert view.commit(transactions(0, 3)) == 3
        assert ids(view) == [0, 1, 2, 3]
    else:
        for count in (3, 2):  # sent at once, and, because the last one fails, one by one
            with pytest.raises(waltz.ApplyError) as failed:
                view.commit(transactions(0, count))
            assert (failed.value.transaction.id, "savepoint" in str(failed.value.__cause__)) == (2, True)
        assert (view.load_mark(0), ids(view)) == (-1, [])
    view.close()


def test_a_savepoint_keeps_the_transaction_from_a_caught_error(postgres: PostgresServer) -> None:
    def apply(txn: waltz.Transaction, db: Any) -> None:
        note_sql(txn, db)
        try:
            with db.connection.transaction():
                db.execute("INSERT INTO more VALUES (1)")
        except psycopg.errors.UniqueViolation:
            pass

    name = postgres.new_database()
    view = waltz.PostgresView(postgres.conninfo(name), apply, schema=f"{POSTGRES_SCHEMA}; {MORE}")
    view.load_mark(0)
    assert view.commit(transactions(0, 5)) == 5
    assert ids(view) == [0, 1, 2, 3, 4, 5]
    assert postgres.execute(name, "SELECT * FROM more") == [(1,)]
    view.close()


def test_a_deadlock_that_apply_catches_is_not_committed_halfway(place: Place) -> None:
    """The server rolls back everything up to it; what `apply` does afterwards would be a transaction of its own."""
    view = place.view(lambda txn, db: None, schema=f"{place.schema}; {COUNTERS}", busy_timeout=20.0)
    view.load_mark(0)
    place.execute("INSERT INTO counters VALUES (1, 0), (2, 0), " + ", ".join(f"({n}, 0)" for n in range(10, 500)))
    other = psycopg.connect(place.where) if place.kind == "postgres" else pymysql.connect(**place.where)
    theirs = other.cursor()
    # The more a transaction has changed, the less likely it is the one that MariaDB gives up.
    theirs.execute("UPDATE counters SET n = 1 WHERE id >= 10")
    theirs.execute("UPDATE counters SET n = 1 WHERE id = 1")
    threads: list[threading.Thread] = []
    caught = []

    def apply(txn: waltz.Transaction, db: Any) -> None:
        note_sql(txn, db)
        if txn.id == 1 and not threads:
            db.execute("UPDATE counters SET n = 2 WHERE id = 2")
            thread = threading.Thread(target=theirs.execute, args=("UPDATE counters SET n = 1 WHERE id = 2",))
            threads.append(thread)
            thread.start()
            try:
                db.execute("UPDATE counters SET n = 2 WHERE id = 1")
            except (psycopg.OperationalError, pymysql.err.OperationalError) as error:
                caught.append(error)

    view._apply = apply
    if place.kind == "postgres":
        place.server.execute(place.name, "ALTER ROLE waltz SET deadlock_timeout = '50ms'")
        theirs.execute("SET deadlock_timeout = '60s'")  # whose time-out is over first is the victim
        view.close()
    with pytest.raises((TransactionLostError, waltz.ApplyError)) as lost:
        view._commit(transactions(0, 2), together=False)
    for thread in threads:
        thread.join()
    other.rollback()
    other.close()
    assert caught, "no deadlock came about"
    assert view.is_transient(lost.value) == (place.kind == "mysql")
    assert (view.load_mark(0), ids(view)) == (-1, [])
    assert view.commit(transactions(0, 2)) == 2
    assert ids(view) == [0, 1, 2]
    view.close()


def test_a_deadlock_that_apply_catches_is_noticed_where_another_member_has_applied_the_batch(
    maria: MariaServer,
) -> None:
    """The mark is where this member had put it, and says nothing."""
    name = maria.new_database()
    place = Place("mysql", maria, name, maria.options(name), f"{MYSQL_SCHEMA}; {COUNTERS}")

    def count(txn: waltz.Transaction, db: Any) -> None:
        db.execute("UPDATE counters SET n = n + 1 WHERE id = 3")

    view, member = place.view(count, busy_timeout=20.0), place.view(count, busy_timeout=20.0)
    assert view.load_mark(0) == member.load_mark(0) == -1
    place.execute("INSERT INTO counters VALUES (1, 0), (2, 0), (3, 0), " + ", ".join(f"({n}, 0)" for n in range(9, 99)))
    other = pymysql.connect(**place.where)
    theirs = other.cursor()
    theirs.execute("UPDATE counters SET n = 1 WHERE id >= 9 OR id = 1")  # the smaller transaction is given up
    caught = []

    def apply(txn: waltz.Transaction, db: Any) -> None:
        db.execute("UPDATE counters SET n = 2 WHERE id = 2")
        thread = threading.Thread(target=theirs.execute, args=("UPDATE counters SET n = 1 WHERE id = 2",))
        until_waits(place, thread, threading.Event())
        try:
            db.execute("UPDATE counters SET n = 2 WHERE id = 1")
        except pymysql.err.OperationalError as error:
            caught.append(error.args[0])
        thread.join()
        other.rollback()
        assert member.commit(transactions(0, 0)) == 0
        count(txn, db)

    view._apply = apply
    with pytest.raises(TransactionLostError) as lost:
        view.commit(transactions(0, 0))
    assert (caught, view.is_transient(lost.value)) == ([1213], True)
    view._apply = count
    assert view.commit(transactions(0, 0)) == 0
    assert place.execute("SELECT n FROM counters WHERE id = 3") == [(1,)]
    for each in (other, view, member):
        each.close()


@pytest.mark.parametrize(
    "statement",
    [
        "SET @@autocommit = 1",
        "SET @@session.foreign_key_checks = 0",
        "SET @a = 1, autocommit = 1",
        "SET @a := f(1, 2), @b = 'it\\'s, 1', SESSION foreign_key_checks = 0",
        "SET @a = 1 /*!, autocommit = 1 */",
        "SET @a = 1 -- one\n, NAMES latin1",
    ],
)
def test_what_sets_variables_of_the_session_is_refused(maria: MariaServer, statement: str) -> None:
    name = maria.new_database()

    def apply(txn: waltz.Transaction, db: Any) -> None:
        db.execute(statement)

    view = waltz.MySqlView(maria.options(name), apply, schema=MYSQL_SCHEMA)
    view.load_mark(0)
    with pytest.raises(waltz.ApplyError) as failed:
        view.commit(transactions(0, 0))
    assert "only the view begins and ends its transactions and changes its session" in str(failed.value.__cause__)
    view.close()


@pytest.mark.parametrize("begin", [" @a = '", ' @a = "', " @a = `", " @a = /*"])
@pytest.mark.parametrize("piece", ["\\a", "\\'", '\\"', "\\`", "/*", "x"])
def test_what_is_left_open_in_a_statement_is_found_at_once(begin: str, piece: str) -> None:
    """It was read in every way there is, which is more than there is time for."""
    assert not _sets_own(begin + piece * 60_000, True)


@pytest.mark.parametrize(
    ("statement", "escapes", "own"),
    [
        (r" @a = '\', autocommit = '1'", True, False),
        (r" @a = '\', autocommit = 1'", True, True),
        (r" @a = '\', autocommit = '1'", False, False),
        (r" @a = '\', @b = '1'", False, True),
        (r" @a = '\\', autocommit = '1'", True, False),
        (r" @a = '\\', @b = 'it''s, x = 1'", True, True),
        (r""" @a = "\"", @b = 'x\', y = 1'""", True, True),
        (" @a = '", True, False),
        (" @a = '''", True, False),
        (r" @a = '\'", True, False),
        (" @a = 1 /* x = 1", True, False),
        (" @a = `", False, False),
    ],
)
def test_only_what_is_wholly_the_applications_own_is_set(statement: str, escapes: bool, own: bool) -> None:
    assert _sets_own(statement, escapes) is own


def test_variables_of_the_applications_own_are_its_own(maria: MariaServer) -> None:
    name = maria.new_database()
    seen = []

    def apply(txn: waltz.Transaction, db: Any) -> None:
        db.execute(
            "SET @a = %s, @`b c` := (SELECT concat(1, ',', 2)) /* , autocommit = 1 */, @d = %s", ("x', y = '1", 3)
        )
        db.execute("SELECT @a, @`b c`, @d")
        seen.append(db.fetchone())

    view = waltz.MySqlView(maria.options(name), apply, schema=MYSQL_SCHEMA)
    view.load_mark(0)
    view.commit(transactions(0, 0))
    assert seen == [("x', y = '1", "1,2", 3)]
    view.close()


def test_a_procedure_that_ends_the_transaction_is_named_and_not_passed_over(maria: MariaServer) -> None:
    """Its COMMIT may have committed the mark too, so that the next attempt finds nothing left to do."""
    name = maria.new_database()
    maria.execute(name, "CREATE PROCEDURE good(IN n INTEGER) BEGIN SELECT n; SELECT n + 1; END")
    maria.execute(name, "CREATE PROCEDURE bad() BEGIN COMMIT; SELECT 1; END")
    seen = []

    def apply(txn: waltz.Transaction, db: Any) -> None:
        note_sql(txn, db)
        db.callproc("good", (txn.id,))
        seen.append(db.fetchall())
        assert db.nextset()
        seen.append(db.fetchall())
        if txn.id == 5:
            db.execute("CALL bad()")

    view = waltz.MySqlView(maria.options(name), apply, schema=MYSQL_SCHEMA)
    view.load_mark(0)
    assert view.commit(transactions(0, 2)) == 2
    assert seen == [((n + m,),) for n in range(3) for m in range(2)]
    assert ids(view) == [0, 1, 2]
    with pytest.raises(waltz.ApplyError) as failed:
        view.commit(transactions(3, 6))
    assert failed.value.transaction.id == 5
    assert "a procedure that was called has ended the transaction" in str(failed.value.__cause__)
    assert isinstance(failed.value.__cause__, RuntimeError)
    refuses_half(view, 3)

    def change(db: Any) -> None:
        db.execute("CALL bad()")
        note_sql(transactions(9, 9).transactions[0], db)

    view.close()
    view = waltz.MySqlView(maria.options(name), note_sql, schema=MYSQL_SCHEMA, name=view.name, version=2, rebuild=True)
    assert (view.load_mark(0), ids(view)) == (-1, [])
    with pytest.raises(waltz.StateReadOnlyError, match="return an Append"):
        view.read(0, change, ())
    view.close()


def refuses_half(view: Any, mark: int) -> None:
    """Nobody takes for whole what holds a part of a transaction, now or later."""
    uses: tuple[Callable[[], object], ...] = (
        lambda: view.commit(transactions(mark, mark + 3)),
        lambda: view.commit(transactions(mark, mark)),
        lambda: view.load_mark(0),
        lambda: view.read(0, noted_sql, (0,)),
        lambda: view.catch_up({0: mark + 3}, lambda partition, mark: transactions(mark + 1, mark + 4)),
    )
    for use in uses:
        with pytest.raises(waltz.ViewIdentityError, match="which a procedure has committed by itself"):
            use()


TWICE = "CREATE PROCEDURE twice() BEGIN START TRANSACTION; INSERT INTO counters VALUES (1, 1); END"


@pytest.mark.parametrize("count", [1, 4])
def test_a_procedure_that_begins_a_transaction_and_fails_is_not_passed_over(maria: MariaServer, count: int) -> None:
    """Its START TRANSACTION has committed what was there."""
    name = maria.new_database()
    maria.execute(name, TWICE)

    def apply(txn: waltz.Transaction, db: Any) -> None:
        note_sql(txn, db)
        if txn.id == 3:
            db.execute("CALL twice()")

    view = waltz.MySqlView(maria.options(name), apply, schema=f"{MYSQL_SCHEMA}; {COUNTERS}")
    view.load_mark(0)
    maria.execute(name, "INSERT INTO counters VALUES (1, 1)")
    assert view.commit(transactions(0, 2)) == 2
    with pytest.raises(waltz.ApplyError if count == 1 else waltz.ViewIdentityError) as failed:
        view.commit(transactions(3, 2 + count))
    applied = failed.value if count == 1 else failed.value.__cause__
    assert isinstance(applied, waltz.ApplyError)
    assert (applied.transaction.id, isinstance(applied.__cause__, pymysql.err.IntegrityError)) == (3, True)
    refuses_half(view, 3)
    view.close()


def test_a_procedure_that_ends_the_transaction_behind_an_error_that_passes_is_not_passed_over(
    maria: MariaServer,
) -> None:
    name = maria.new_database()
    maria.execute(name, "CREATE PROCEDURE bad() BEGIN COMMIT; END")
    caught = []

    def apply(txn: waltz.Transaction, db: Any) -> None:
        note_sql(txn, db)
        try:
            db.execute("UPDATE counters SET n = 2 WHERE id = 1")
        except pymysql.err.OperationalError as error:
            caught.append(error.args[0])
        db.execute("CALL bad()")

    view = waltz.MySqlView(maria.options(name), apply, schema=f"{MYSQL_SCHEMA}; {COUNTERS}", busy_timeout=1.0)
    view.load_mark(0)
    maria.execute(name, "INSERT INTO counters VALUES (1, 1)")
    with pymysql.connect(**maria.options(name)) as other, other.cursor() as theirs:
        theirs.execute("UPDATE counters SET n = 3 WHERE id = 1")
        with pytest.raises((TransactionLostError, waltz.ApplyError)):
            view.commit(transactions(0, 0))
        assert caught == [1205]
    refuses_half(view, 0)
    view.close()


def test_a_procedure_that_rolls_back_fails_its_transaction_alone(maria: MariaServer) -> None:
    name = maria.new_database()
    maria.execute(name, "CREATE PROCEDURE bad() BEGIN ROLLBACK; INSERT INTO seen (partition_id, id) VALUES (0, 9); END")
    maria.execute(name, "CREATE PROCEDURE good(IN n INTEGER) INSERT INTO seen (partition_id, id) VALUES (0, n)")

    def apply(txn: waltz.Transaction, db: Any) -> None:
        db.execute("CALL bad()" if txn.id == 5 else f"CALL good({txn.id})")

    view = waltz.MySqlView(maria.options(name), apply, schema=MYSQL_SCHEMA)
    view.load_mark(0)
    for _ in range(2):
        with pytest.raises(waltz.ApplyError) as failed:
            view.commit(transactions(0, 6))
        assert failed.value.transaction.id == 5
    assert view.commit(transactions(0, 4)) == 4
    assert (view.load_mark(0), ids(view)) == (4, [0, 1, 2, 3, 4])
    view.close()


def test_a_seed_whose_procedure_ends_the_transaction_is_not_taken_for_whole(maria: MariaServer) -> None:
    name = maria.new_database()
    maria.execute(name, "CREATE PROCEDURE bad() BEGIN COMMIT; END")

    def load(db: Any) -> None:
        db.execute("CALL bad()")

    view = waltz.MySqlView(maria.options(name), note_sql, schema=MYSQL_SCHEMA)
    with pytest.raises(RuntimeError, match="has ended the transaction"):
        view.seed(0, 7, load)
    refuses_half(view, 0)
    view.close()


async def test_an_application_ends_where_a_procedure_has_ended_its_transaction(maria: MariaServer) -> None:
    name = maria.new_database()
    maria.execute(name, "CREATE PROCEDURE bad() BEGIN COMMIT; END")

    def apply(txn: waltz.Transaction, db: Any) -> None:
        note_sql(txn, db)
        if txn.id == 1:
            db.execute("CALL bad()")

    view = waltz.MySqlView(maria.options(name), apply, schema=MYSQL_SCHEMA)
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        for n in range(3):
            await client.append(0, waltz.Append(b"%d" % n))
        for _ in range(2):
            with trio.fail_after(30), pytest.raises(waltz.ViewIdentityError, match="has committed by itself"):
                async with client.materialize(view, [0]) as bank:
                    await bank.caught_up()
    view.close()


def test_a_constraint_that_fails_at_the_commit_names_its_transaction(postgres: PostgresServer) -> None:
    """Elsewhere than in PostgreSQL and SQLite none is looked at so late."""
    parent = "CREATE TABLE IF NOT EXISTS parent (id INTEGER PRIMARY KEY)"
    child = (
        "CREATE TABLE IF NOT EXISTS child (id INTEGER, parent INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)"
    )

    def apply(txn: waltz.Transaction, db: Any) -> None:
        db.execute("INSERT INTO child VALUES (%s, %s)", (txn.id, 7 if txn.id == 2 else None))

    name = postgres.new_database()
    view = waltz.PostgresView(postgres.conninfo(name), apply, schema=f"{parent}; {child}")
    view.load_mark(0)
    with pytest.raises(waltz.ApplyError) as failed:
        view.commit(transactions(0, 3))
    assert failed.value.transaction.id == 2
    assert isinstance(failed.value.__cause__, psycopg.errors.ForeignKeyViolation)
    assert view.load_mark(0) == 1
    assert postgres.execute(name, "SELECT id FROM child") == [(0,), (1,)]
    view.close()


# ---- statements that are sent without waiting ----------------------------------------------------------------------


def test_of_many_statements_the_one_that_fails_is_named(place: Place) -> None:
    view = place.view(lambda txn, db: db.execute("INSERT INTO more VALUES (%s)", (txn.id % 7,)) and None, schema=MORE)
    view.load_mark(0)
    with pytest.raises(waltz.ApplyError) as failed:
        view.commit(transactions(0, 20))
    assert failed.value.transaction.id == 7
    assert isinstance(failed.value.__cause__, psycopg.IntegrityError | pymysql.err.IntegrityError)
    assert view.commit(transactions(0, 6)) == 6
    view.close()


def test_apply_sees_the_result_of_each_of_its_statements(place: Place) -> None:
    seen: list[tuple[int, Any]] = []

    def apply(txn: waltz.Transaction, db: Any) -> None:
        note_sql(txn, db)
        inserted = db.rowcount
        db.execute("UPDATE seen SET partition_id = 0 WHERE id > %s", (1000,))
        updated = db.rowcount
        db.execute("SELECT count(*) FROM seen")
        assert db.description is not None
        seen.append((inserted + updated, db.fetchone()))

    view = place.view(apply)
    view.load_mark(0)
    view.commit(transactions(0, 4))
    assert seen == [(1, (n,)) for n in range(1, 6)]
    view.close()


# ---- whose the database is -----------------------------------------------------------------------------------------


def note_all(txn: waltz.Transaction, db: Any) -> None:
    note_sql(txn, db)
    db.execute("INSERT INTO more VALUES (%s)", (txn.id,))


def test_another_view_on_the_same_database_is_refused_and_both_are_named(place: Place) -> None:
    view = place.view()
    view.load_mark(0)
    other = place.view(note_all, name="other")
    with pytest.raises(waltz.ViewIdentityError) as refused:
        other.load_mark(0)
    assert "'seen', version 1" in refused.value.stored
    assert "'other', version 1" in refused.value.given
    assert place.name in refused.value.database
    other.close()
    apart = place.view(note_all, name="other", table="other_marks")
    assert apart.load_mark(0) == -1, "with marks of its own it may share the database"
    apart.close()
    view.close()


def test_a_new_version_is_refused_or_makes_the_view_anew(place: Place) -> None:
    old = place.view()
    old.load_mark(0)
    old.commit(transactions(0, 2))
    schema = f"{place.schema}; {MORE}"
    refused = place.view(note_all, schema=schema, version=2)
    with pytest.raises(waltz.ViewIdentityError, match="rebuild=True"):
        refused.load_mark(0)
    refused.close()
    new = place.view(note_all, schema=schema, version=2, rebuild=True)
    assert new.load_mark(0) == -1
    assert ids(new) == []
    with pytest.raises(waltz.ViewIdentityError, match="while this view was running"):
        old.commit(transactions(3, 3))
    with pytest.raises(waltz.ViewIdentityError):
        old.load_mark(1)
    with pytest.raises(waltz.ViewIdentityError):
        ids(old)
    assert new.commit(transactions(0, 3)) == 3
    with pytest.raises(waltz.ViewIdentityError, match="while this view was running"):
        ids(old)
    old.close()
    new.close()
    again = place.view(note_all, schema=schema, version=2, rebuild=True)
    assert (again.load_mark(0), ids(again)) == (3, [0, 1, 2, 3]), "it is rebuilt once"
    again.close()
    late = place.view(rebuild=True)
    with pytest.raises(waltz.ViewIdentityError, match="a newer version is in use"):
        late.load_mark(0)
    late.close()


def rebuilding(place: Place) -> tuple[Any, threading.Thread, threading.Event]:
    """A newer version, the thread that has it make the database anew, and what is set once it has."""
    new = place.view(note_all, schema=f"{place.schema}; {MORE}", version=2, rebuild=True, busy_timeout=60.0)
    done = threading.Event()

    def run() -> None:
        new.load_mark(0)
        done.set()

    return new, threading.Thread(target=run), done


def test_a_rebuild_never_shows_its_empty_tables_at_the_mark_of_before(place: Place) -> None:
    old = place.view()
    old.load_mark(0)
    old.commit(transactions(0, 2))
    new, thread, done = rebuilding(place)

    def decide(db: Any) -> list[int]:
        until_waits(place, thread, done)
        return noted_sql(db, 0)

    if place.kind == "postgres":
        assert old.read(0, decide, ()) == ([0, 1, 2], 2)
    else:
        with pytest.raises(pymysql.err.OperationalError, match="Table definition has changed") as changed:
            old.read(0, decide, ())
        assert old.is_transient(changed.value)
    thread.join()
    with pytest.raises(waltz.ViewIdentityError):
        ids(old)
    assert (new.load_mark(0), ids(new)) == (-1, [])
    old.close()
    new.close()


def test_who_reads_while_a_rebuild_goes_on_waits_for_it(postgres: PostgresServer) -> None:
    """Its snapshot is of behind the wait: the marks of before it would go with tables of behind it."""
    name = postgres.new_database()
    place = Place("postgres", postgres, name, postgres.conninfo(name), POSTGRES_SCHEMA)
    old = place.view(busy_timeout=60.0)
    old.load_mark(0)
    old.commit(transactions(0, 2))
    assert ids(old) == [0, 1, 2]
    read: list[Any] = []

    def run() -> None:
        try:
            read.append(ids(old))
        except waltz.ViewIdentityError as error:
            read.append(error)

    thread = threading.Thread(target=run)
    new = place.view(version=2, rebuild=True)
    drop = new._drop

    def drop_while_somebody_reads(cursor: Any, names: Any) -> None:
        drop(cursor, names)
        until_waits(place, thread, threading.Event())

    new._drop = drop_while_somebody_reads
    assert new.load_mark(0) == -1
    thread.join()
    assert [type(each) for each in read] == [waltz.ViewIdentityError]
    old.close()
    new.close()


def test_a_batch_of_a_member_that_is_behind_does_not_slip_in_behind_a_rebuild(place: Place) -> None:
    """The condition of its first statement matches no row, so that it holds no lock yet."""
    old, other = place.view(), place.view()
    assert old.load_mark(0) == other.load_mark(0) == -1
    other.commit(transactions(0, 4))
    other.close()
    new, thread, done = rebuilding(place)
    mark_of = old._mark

    def mark_after_a_rebuild(*args: Any, **options: Any) -> int | None:
        if thread.ident is None:
            until_waits(place, thread, done)
        mark: int | None = mark_of(*args, **options)
        return mark

    old._mark = mark_after_a_rebuild
    if place.kind == "postgres":  # the rebuild waits for its lock on the table
        assert old.commit(transactions(0, 2)) == 4
    else:
        with pytest.raises(waltz.ViewIdentityError, match="while this view was running"):
            old.commit(transactions(0, 2))
    thread.join()
    assert (new.load_mark(0), ids(new)) == (-1, [])
    old.close()
    new.close()


def test_a_new_version_makes_views_anew_too(place: Place) -> None:
    """What was a view may be a table then, and the other way round."""

    def rebuilt(version: int, schema: str) -> tuple[int, list[Any]]:
        view = place.view(schema=f"{place.schema}; {schema}", version=version, rebuild=True)
        mark = view.load_mark(0)
        view.commit(transactions(0, 2))
        row = [
            int(number)
            for (number,) in view.read(0, lambda db: (db.execute("SELECT * FROM total"), db.fetchall())[1], ())[0]
        ]
        view.close()
        return mark, row

    create = "CREATE OR REPLACE VIEW" if place.kind == "postgres" else "CREATE SQL SECURITY INVOKER VIEW IF NOT EXISTS"
    whole = f"{create} total AS SELECT count(*) * %d FROM seen; {create} more AS SELECT * FROM total"
    assert rebuilt(1, whole % 1) == (-1, [3])
    assert rebuilt(2, whole % 100) == (-1, [300])
    assert rebuilt(3, "CREATE TABLE IF NOT EXISTS total (n INTEGER)") == (-1, [])
    kind = "MATERIALIZED " if place.kind == "postgres" else ""
    assert rebuilt(4, f"CREATE {kind}VIEW IF NOT EXISTS total AS SELECT 5") == (-1, [5])
    assert rebuilt(5, whole % 2) == (-1, [6])


def test_a_rebuild_does_not_drop_what_is_somebody_elses(postgres: PostgresServer) -> None:
    name = postgres.new_database()
    place = Place("postgres", postgres, name, postgres.conninfo(name), POSTGRES_SCHEMA)
    old = place.view()
    old.load_mark(0)
    old.close()
    place.execute("CREATE VIEW report AS SELECT count(*) FROM seen")
    new = place.view(version=2, rebuild=True)
    with pytest.raises(waltz.ConfigError, match=r"(?s)something else depends on them.*view report.*Drop that first"):
        new.load_mark(0)
    assert place.execute("SELECT VIEW_VERSION FROM WALTZ_VIEWS") == [(1,)]
    place.execute("DROP VIEW report")
    assert new.load_mark(0) == -1
    new.close()


def test_a_rebuild_that_was_cut_off_is_finished_by_the_next_one(maria: MariaServer) -> None:
    """Tables are dropped outside of transactions there."""
    name = maria.new_database()
    place = Place("mysql", maria, name, maria.options(name), MYSQL_SCHEMA)
    old = place.view()
    old.load_mark(0)
    old.commit(transactions(0, 2))
    broken = place.view(schema=f"{MYSQL_SCHEMA}; CREATE TABLE broken (", version=2, rebuild=True)
    with pytest.raises(waltz.ConfigError, match="near"):
        broken.load_mark(0)
    broken.close()
    assert place.execute("SELECT VIEW_VERSION FROM WALTZ_VIEWS") == [(-2,)], "a rebuild has begun, and is not done"
    with pytest.raises(waltz.ViewIdentityError, match="while this view was running"):
        old.commit(transactions(3, 3))
    old.close()
    new = place.view(version=2)  # what was begun is finished, asked for or not
    assert (new.load_mark(0), ids(new)) == (-1, [])
    assert new.commit(transactions(0, 3)) == 3
    new.close()
    assert place.execute("SELECT VIEW_VERSION FROM WALTZ_VIEWS") == [(2,)]


def test_a_database_of_an_earlier_member_is_adopted_once(place: Place) -> None:
    """The table of marks as 0.13.2 lays it out, with a mark of its own."""
    place.execute(
        "CREATE TABLE CLIENT_HIGH_WATER_MARK (PARTITION_ID INTEGER NOT NULL, HIGH_WATER_MARK BIGINT NOT NULL, "
        "PRIMARY KEY (PARTITION_ID))"
    )
    place.execute("INSERT INTO CLIENT_HIGH_WATER_MARK VALUES (0, 41)")
    view = place.view()
    assert (view.load_mark(0), view.commit(transactions(42, 43))) == (41, 43)
    view.close()
    other = place.view(name="other")
    with pytest.raises(waltz.ViewIdentityError):
        other.load_mark(0)
    other.close()


def test_a_table_of_another_shape_is_no_table_of_marks(place: Place) -> None:
    place.execute("CREATE TABLE CLIENT_HIGH_WATER_MARK (id INTEGER)")
    view = place.view()
    with pytest.raises(waltz.ConfigError, match=r"CLIENT_HIGH_WATER_MARK is not a view's: expected the columns"):
        view.load_mark(0)
    view.close()


@pytest.mark.parametrize("table", ["CLIENT_HIGH_WATER_MARK", "WALTZ_VIEWS"])
def test_tables_that_were_dropped_stop_the_view(place: Place, table: str) -> None:
    view = place.view()
    view.load_mark(0)
    view.commit(transactions(0, 4))
    place.execute(f"DROP TABLE {table}")
    with pytest.raises(waltz.ViewRegressedError) as regressed:
        view.commit(transactions(5, 5))
    assert (regressed.value.stored, regressed.value.expected) == (None, 4)
    view.close()


def test_tables_without_transactions_are_refused(maria: MariaServer) -> None:
    name = maria.new_database()
    view = waltz.MySqlView(maria.options(name), note_sql, schema=f"{MYSQL_SCHEMA} ENGINE = MyISAM")
    with pytest.raises(waltz.ConfigError, match="seen is kept by MyISAM"):
        view.load_mark(0)
    view.close()


def test_a_view_can_be_seeded_and_caught_up(place: Place) -> None:
    view = place.view()
    view.seed(0, 41, lambda db: db.execute("INSERT INTO seen (partition_id, id) VALUES (0, 41)"))
    assert view.load_mark(0) == 41
    view.seed_all({0: 50, 1: 3}, lambda db: None)
    assert view.commit(transactions(51, 51)) == 51
    assert view.catch_up(
        {0: 53, 1: 4}, lambda partition, mark: transactions(mark + 1, mark + 2 - partition, partition)
    ) == {
        0: 51,
        1: 3,
    }
    assert (ids(view), view.load_mark(1)) == ([41, 51, 52, 53], 4)
    with pytest.raises(ValueError, match="beyond the cut"):
        view.catch_up({0: 10}, lambda partition, mark: ())
    view.close()


WAITING = {
    "postgres": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}


def until_waits(place: Place, thread: threading.Thread, goes_on: threading.Event) -> None:
    """Until the second member either waits for the first or goes on beside it."""
    thread.start()
    while not goes_on.is_set() and place.execute(WAITING[place.kind]) == [(0,)]:
        pass


def test_of_two_members_that_catch_up_at_once_the_second_waits_and_finds_everything_done(place: Place) -> None:
    first, second = place.view(busy_timeout=60.0), place.view(busy_timeout=60.0)
    assert first.load_mark(0) == second.load_mark(0) == -1
    goes_on = threading.Event()
    found: list[dict[int, int]] = []

    def read_too(partition: int, mark: int) -> waltz.Batch:
        goes_on.set()
        return transactions(mark + 1, 5)

    def read(partition: int, mark: int) -> waltz.Batch:
        until_waits(place, thread, goes_on)
        return transactions(mark + 1, 5)

    thread = threading.Thread(target=lambda: found.append(second.catch_up({0: 5}, read_too)))
    assert first.catch_up({0: 5}, read) == {0: -1}
    thread.join()
    assert found == [{0: 5}]
    assert (ids(first), second.load_mark(0)) == (list(range(6)), 5)
    first.close()
    second.close()


def test_a_member_that_catches_up_waits_for_one_that_has_only_looked_at_the_mark_by_now(place: Place) -> None:
    view = place.view(busy_timeout=60.0)
    assert view.load_mark(0) == -1
    other = psycopg.connect(place.where) if place.kind == "postgres" else pymysql.connect(**place.where)
    theirs = other.cursor()
    theirs.execute(f"SELECT HIGH_WATER_MARK FROM {view._table} WHERE PARTITION_ID = 0 FOR UPDATE")
    goes_on = threading.Event()
    found: list[dict[int, int]] = []

    def read(partition: int, mark: int) -> waltz.Batch:
        goes_on.set()
        return transactions(mark + 1, 5)

    thread = threading.Thread(target=lambda: found.append(view.catch_up({0: 5}, read)))
    until_waits(place, thread, goes_on)
    theirs.execute(f"UPDATE {view._table} SET HIGH_WATER_MARK = 5 WHERE PARTITION_ID = 0")
    other.commit()
    other.close()
    thread.join()
    assert found == [{0: 5}]
    assert ids(view) == [], "all of it was theirs to apply"
    view.close()


def test_of_two_members_that_are_behind_a_third_the_second_waits_and_applies_what_is_left(place: Place) -> None:
    """Neither has a batch that begins where the mark is, so both look where it is."""
    goes_on = threading.Event()

    def apply(txn: waltz.Transaction, db: Any) -> None:
        if txn.id == 3:
            until_waits(place, thread, goes_on)
        note_sql(txn, db)

    def apply_too(txn: waltz.Transaction, db: Any) -> None:
        goes_on.set()
        note_sql(txn, db)

    first, second = place.view(apply, busy_timeout=60.0), place.view(apply_too, busy_timeout=60.0)
    assert first.load_mark(0) == second.load_mark(0) == -1
    third = place.view()
    third.load_mark(0)
    assert third.commit(transactions(0, 2)) == 2
    thread = threading.Thread(target=second._commit, args=(transactions(0, 8), False))
    assert first._commit(transactions(0, 5), False) == 5
    thread.join()
    assert (ids(third), third.load_mark(0)) == (list(range(9)), 8)
    for view in (first, second, third):
        view.close()


# ---- idempotency keys ----------------------------------------------------------------------------------------------


def keyed(place: Place, window: int = 5, **options: Any) -> Any:
    def key_of(txn: waltz.Transaction) -> waltz.Key | None:
        text = txn.load().decode()
        return waltz.Key(text, text) if text else None

    return place.view(keys=waltz.Keys(key_of, window=window), **options)


def with_keys(first: int, keys: list[str]) -> waltz.Batch:
    made = (waltz.Transaction(0, first + at, 0, ReqId(bytes(16)), key.encode()) for at, key in enumerate(keys))
    return waltz.Batch(0, tuple(made))


def find(view: Any, key: str) -> KeyEntry | None:
    entry: KeyEntry | None = view.read(0, lambda state: view.find_key(state, 0, key), ())[0]
    return entry


def test_a_view_remembers_the_keys_that_the_table_of_the_core_does(place: Place) -> None:
    view, table = keyed(place), KeyTable(5)
    assert view.load_mark(0) == -1
    log = ["a", "", "a", "A", "a ", "", "a", "a", "ä", "", "a", "", "", "A", "a", "A", "A"]
    at = 0
    for count in (1, 3, 2, 7, 4):
        made = with_keys(at, log[at : at + count])
        view.commit(made)
        for transaction in made:
            text = transaction.load().decode()
            table.apply(transaction.id, text or None, request_hash(text) if text else b"")
        at += count
        for key in ("a", "A", "a ", "ä", "b"):
            assert find(view, key) == table.find(key, at - 1), (key, at)
    assert at == len(log)
    view.close()


def test_members_share_keys_and_who_keeps_none_is_refused_or_noticed(place: Place) -> None:
    one, other = keyed(place), keyed(place)
    for view in (one, other):
        view.load_mark(0)
    one.commit(with_keys(0, ["a", "b"]))
    assert other.commit(with_keys(0, ["a", "b", "c"])) == 2
    assert [entry and entry.transaction_id for entry in (find(one, "b"), find(one, "c"))] == [1, 2]
    keyless = place.view()
    with pytest.raises(waltz.ViewIdentityError, match="it remembers keys, and this view does not"):
        keyless.load_mark(0)
    keyless.close()
    place.execute("UPDATE CLIENT_HIGH_WATER_MARK SET HIGH_WATER_MARK = 3")  # a member of 0.13.2
    with pytest.raises(waltz.ViewIdentityError, match="not the keys of the last 5 transactions"):
        one.commit(with_keys(3, ["d", "e"]))
    one.close()
    other.close()
    rebuilt = keyed(place, version=2, rebuild=True)
    assert rebuilt.load_mark(0) == -1
    assert rebuilt.commit(with_keys(0, ["z", "b"])) == 1
    assert [entry and entry.transaction_id for entry in (find(rebuilt, "b"), find(rebuilt, "a"))] == [1, None]
    rebuilt.close()


@pytest.mark.parametrize(("seconds", "limit"), [(0, "1ms"), (0.0005, "1ms"), (0.25, "250ms")])
def test_no_patience_is_not_patience_without_end(postgres: PostgresServer, seconds: float, limit: str) -> None:
    """To PostgreSQL a limit of 0 is none."""
    view = waltz.PostgresView(postgres.conninfo(postgres.new_database()), note_sql, busy_timeout=seconds)
    view.load_mark(0)
    assert view.read(0, lambda db: db.execute("SHOW lock_timeout").fetchone(), ())[0] == (limit,)
    view.close()


def test_what_the_application_makes_of_rows_is_its_own(place: Place) -> None:
    """The view reads its marks, its identity and its keys on the same connection."""
    kinds: list[type] = []

    def other_rows(db: Any) -> None:
        connection = db.connection
        if place.kind == "postgres":
            db.row_factory = connection.row_factory = psycopg.rows.dict_row
        else:
            connection.cursorclass = pymysql.cursors.DictCursor
        cursor = connection.cursor()
        cursor.execute("SELECT 1 AS number")
        assert cursor.fetchone() == {"number": 1}
        plain = connection.cursor() if place.kind == "mysql" else db
        plain.execute("SELECT id FROM seen")
        kinds.extend(map(type, plain.fetchall()))

    def apply(txn: waltz.Transaction, db: Any) -> None:
        other_rows(db)
        note_sql(txn, db)

    def apply_many(txns: Any, db: Any) -> None:
        for txn in txns:
            apply(txn, db)

    def decide(db: Any) -> KeyEntry | None:
        other_rows(db)
        entry: KeyEntry | None = view.find_key(db, 0, "b")
        return entry

    for first, names, many in ((0, "abc", None), (4, "ab", apply_many)):
        view, last = keyed(place, apply=apply, apply_many=many), first + len(names) - 1
        view.load_mark(0)
        for _ in range(2):
            assert view.commit(with_keys(first, list(names))) == last
            entry = view.read(0, decide, ())[0]
            assert entry is not None
            assert entry.transaction_id == 1
        assert view.catch_up({0: last + 1}, lambda partition, mark: with_keys(mark + 1, ["d"])) == {0: last}
        assert ids(view) == list(range(last + 2))
        view.close()
    assert set(kinds) == {dict}


@pytest.mark.parametrize(("length", "lock"), [(52, "DATABASE()"), (53, "SHA1(DATABASE())")])
def test_the_lock_under_which_a_database_is_claimed_has_a_name_that_mysql_takes(
    maria: MariaServer, length: int, lock: str
) -> None:
    """Names that fit stay: members of another release wait for the same lock."""
    name = ("long" * 16)[:length]
    maria.execute("", f"CREATE DATABASE {name}")
    other = pymysql.connect(**maria.options(name))
    theirs = other.cursor()
    theirs.execute(f"SELECT GET_LOCK(CONCAT('waltz_views.', {lock}), 0)")
    view = waltz.MySqlView(maria.options(name), note_sql, schema=MYSQL_SCHEMA, busy_timeout=1)
    with pytest.raises(pymysql.err.OperationalError, match="another process makes the tables"):
        view.load_mark(0)
    other.close()
    assert view.load_mark(0) == -1
    view.close()


# ---- what cannot be used -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a b", "x; DROP TABLE y", "", "1st", "a.b.c"])
def test_odd_table_names_are_refused(place: Place, name: str) -> None:
    with pytest.raises(waltz.ConfigError):
        place.view(table=name)


@pytest.mark.parametrize(
    ("change", "text"),
    [(("CREATE TABLE", "CREAT TABLE"), "CREAT"), (("IF NOT EXISTS ", ""), "already exists.*write CREATE TABLE IF NOT")],
)
def test_a_schema_that_fails_is_a_mistake_and_says_what_to_write(
    place: Place, change: tuple[str, str], text: str
) -> None:
    first = place.view()
    first.load_mark(0)
    first.close()
    view = place.view(schema=place.schema.replace(*change))
    with pytest.raises(waltz.ConfigError, match=rf"(?s)the statements of schema=\.\.\. fail: .*{text}"):
        view.load_mark(0)
    view.close()


def test_a_database_that_is_not_there_is_a_mistake_and_a_server_that_is_down_is_not(
    postgres: PostgresServer, maria: MariaServer
) -> None:
    kinds: tuple[tuple[Callable[..., SqlView[Any]], Any, str], ...] = (
        (waltz.PostgresView, f"host={postgres.directory} user=waltz dbname=nobody", "host=127.0.0.1 port=1 dbname=x"),
        (waltz.MySqlView, maria.options("nobody"), "mysql://root@127.0.0.1:1/x"),
    )
    for make, wrong, down in kinds:
        view = make(wrong, note_sql)
        with pytest.raises(waltz.ConfigError, match="nobody"):
            view.load_mark(0)
        view.close()
        view = make(down, note_sql)
        with pytest.raises((psycopg.OperationalError, pymysql.err.OperationalError)) as refused:
            view.load_mark(0)
        assert view.is_transient(refused.value)
        view.close()


def test_of_a_server_that_was_lost_no_connection_is_tried_again(place: Place) -> None:
    """Each would fail a batch. What an error of no server says is looked at as well: a cut has no SQLSTATE."""
    view = place.view()
    view.load_mark(0)
    with view._session(), view._session():
        pass
    for session in view._writers._idle:
        wire = session._connection if place.kind == "postgres" else session._connection._sock
        with socket.socket(fileno=os.dup(wire.fileno())) as cut:
            cut.shutdown(socket.SHUT_RDWR)
    with pytest.raises(view._errors) as lost:
        view.commit(transactions(0, 1))
    assert view.is_transient(lost.value)
    assert view.commit(transactions(0, 1)) == 1
    view.close()


@pytest.mark.parametrize("where", ["postgresql://x/y", "mysql://host", {}, {"database": "x", "autocommit": True}])
def test_what_is_no_address_of_a_database_is_refused(where: Any) -> None:
    with pytest.raises(waltz.ConfigError, match="where: "):
        waltz.MySqlView(where, note_sql)


def test_a_url_says_all_that_a_mapping_can(maria: MariaServer) -> None:
    options = maria.options(maria.new_database())
    query = (
        "charset=utf8mb4&connect_timeout=5&read_timeout=7.5&write_timeout=30&max_allowed_packet=65536&use_unicode=yes"
        "&local_infile=false&ssl_disabled=0&ssl_verify_identity=no"
    )
    view = waltz.MySqlView(
        f"mysql://{options['user']}@{options['host']}:{options['port']}/{options['database']}?{query}", note_sql
    )
    assert view.load_mark(0) == -1
    session: Any
    with view._session() as session:
        connection = session._connection
        assert (connection.connect_timeout, connection._read_timeout, connection._write_timeout) == (5, 7.5, 30)
        assert connection.max_allowed_packet == 65536
        assert connection.ssl  # "0" and "false" are said, not counted as true
        assert not connection._local_infile
    view.close()


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("connect_timeout=soon", "connect_timeout: expected a number of seconds above 0, found 'soon'"),
        ("read_timeout=0", "read_timeout: expected a number of seconds above 0, found '0'"),
        ("write_timeout=nan", "write_timeout: expected a number of seconds above 0, found 'nan'"),
        ("connect_timeout", "connect_timeout: expected a number of seconds above 0, found ''"),
        ("max_allowed_packet=1.5", "max_allowed_packet: expected a whole number above 0, found '1.5'"),
        ("port=x", "port: expected a whole number above 0, found 'x'"),
        ("ssl_disabled=off", "ssl_disabled: expected true or false, found 'off'"),
        ("ssl_verify_cert=of+course", "ssl_verify_cert: expected true, false or optional, found 'of course'"),
        ("conv=x", "a URL has no option 'conv', only binary_prefix, bind_address, "),
        ("timeout=5", "a URL has no option 'timeout', only "),
        ("autocommit=1", "'autocommit' is for the view to set"),
    ],
)
def test_an_option_of_a_url_that_the_driver_cannot_use_is_refused(option: str, text: str) -> None:
    with pytest.raises(waltz.ConfigError, match=f"where: {re.escape(text)}"):
        waltz.MySqlView(f"mysql://root@127.0.0.1:1/x?{option}", note_sql)


@pytest.mark.parametrize(
    ("view", "extra", "driver"), [("PostgresView", "postgres", "psycopg"), ("MySqlView", "mysql", "pymysql")]
)
def test_a_missing_driver_is_named_with_its_extra(view: str, extra: str, driver: str) -> None:
    program = (
        f"import sys; sys.modules[{driver!r}] = None\nimport waltz_trio as w\nw.{view}('mysql://h/x', lambda t, d: 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert f"pip install 'waltz-log[{extra}]'" in done.stderr.splitlines()[-1]

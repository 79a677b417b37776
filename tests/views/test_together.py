"""Transactions that a view applies together: each check of the suite finds a view that is wrong in just that, and what
SQL views do beyond it.
"""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

import waltz_trio as waltz
from tests.docs.blocks import blocks_of
from tests.views.cases import MYSQL_SCHEMA, POSTGRES_SCHEMA, dict_case, mysql_case, note_sql, noted_sql, postgres_case
from waltz_testing import ViewCase, transactions
from waltz_testing.view_together import TOGETHER_CHECKS

DictView = waltz.DictView[Any]
CHECKS: dict[str, Callable[[ViewCase], None]] = {check.__name__: check for check in TOGETHER_CHECKS.of(None)}

# ---- views that are wrong ------------------------------------------------------------------------------------------


class WholeBatches(DictView):
    def _commit_together(self, batch: waltz.Batch, state: Any, journal: Any) -> None:
        assert self.apply_many is not None
        self.apply_many(batch.transactions, state)
        for transaction in batch:
            self._applied(transaction, None)


class NotTakenBack(DictView):
    def _take_back(self, journal: Any, transaction: waltz.Transaction, error: BaseException) -> waltz.ApplyError:
        journal.forget()
        return waltz.ApplyError(transaction)


class KeptOnInterruption(DictView):
    def _take_back(self, journal: Any, transaction: waltz.Transaction, error: BaseException) -> waltz.ApplyError:
        if not isinstance(error, Exception):
            journal.forget()
        return super()._take_back(journal, transaction, error)


class NeverAwaited(DictView):
    def __init__(self, apply: Any, *, apply_many: Any, **options: Any) -> None:
        super().__init__(apply, apply_many=lambda txns, state: apply_many(txns, state).close(), **options)


class KeysOfSingles(DictView):
    def _applied(self, transaction: waltz.Transaction, key: tuple[str, bytes] | None) -> None:
        super()._applied(transaction, key if transaction.id >= 4 else None)


WRONG: dict[str, type[DictView]] = {
    "what_is_applied_together_is_new_and_in_order": WholeBatches,
    "what_cannot_be_applied_together_is_applied_one_at_a_time": NotTakenBack,
    "an_interruption_of_what_is_applied_together_leaves_nothing_behind": KeptOnInterruption,
    "an_apply_many_that_would_change_nothing_is_refused": NeverAwaited,
    "keys_of_what_is_applied_together_are_remembered": KeysOfSingles,
}


def of_class(cls: type[DictView]) -> ViewCase:
    return attrs.evolve(
        dict_case(), open_many=lambda apply, apply_many, keys: cls(apply, apply_many=apply_many, keys=keys)
    )


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_wrong_view_is_found(name: str) -> None:
    with pytest.raises(AssertionError):
        CHECKS[name](of_class(WRONG[name]))


def test_every_check_has_a_planted_view() -> None:
    assert CHECKS.keys() == WRONG.keys()


# ---- what our views say and do --------------------------------------------------------------------------------------


def note_many(txns: Sequence[waltz.Transaction], db: Any) -> None:
    db.executemany("INSERT INTO seen (partition_id, id) VALUES (%s, %s)", [(txn.partition, txn.id) for txn in txns])


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """Makes views of one kind on one database."""
    if request.param == "sqlite":
        schema = "CREATE TABLE IF NOT EXISTS seen (number INTEGER PRIMARY KEY, partition_id INTEGER, id INTEGER)"

        def of_sqlite(apply: Any, apply_many: Any = None) -> Any:
            return waltz.SqliteView(
                tmp_path / "view.db",
                lambda txn, db: apply(txn, Dialect(db)),
                apply_many=apply_many and (lambda txns, db: apply_many(txns, Dialect(db))),
                schema=schema,
                name="seen",
            )

        return of_sqlite
    server = request.getfixturevalue("postgres" if request.param == "postgres" else "maria")
    database = server.new_database()

    def of_server(apply: Any, apply_many: Any = None) -> Any:
        options = {"apply_many": apply_many, "name": "seen"}
        if request.param == "postgres":
            return waltz.PostgresView(server.conninfo(database), apply, schema=POSTGRES_SCHEMA, **options)
        return waltz.MySqlView(server.options(database), apply, schema=MYSQL_SCHEMA, **options)

    return of_server


class Dialect:
    """SQLite's cursor, for statements written with %s."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def execute(self, statement: str, values: Any = ()) -> Any:
        return self._db.execute(statement.replace("%s", "?"), values)

    def executemany(self, statement: str, rows: Any) -> Any:
        return self._db.executemany(statement.replace("%s", "?"), rows)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._db)

    def fetchall(self) -> Any:
        return self._db.fetchall()


def ids(view: Any) -> list[int]:
    def read(db: Any) -> list[int]:
        return noted_sql(Dialect(db) if isinstance(db, sqlite3.Cursor) else db, 0)

    found: list[int] = view.read(0, read, ())[0]
    return found


def test_a_batch_is_one_call_and_a_single_transaction_is_applied_by_apply(make: Callable[..., Any]) -> None:
    runs, singles = [], []

    def apply(txn: waltz.Transaction, db: Any) -> None:
        singles.append(txn.id)
        note_sql(txn, db)

    def apply_many(txns: Sequence[waltz.Transaction], db: Any) -> None:
        runs.append([txn.id for txn in txns])
        note_many(txns, db)

    view = make(apply, apply_many)
    view.load_mark(0)
    view.commit(transactions(0, 4))
    view.commit(transactions(5, 5))
    assert (runs, singles, ids(view)) == ([[0, 1, 2, 3, 4]], [5], [0, 1, 2, 3, 4, 5])
    view.close()


def test_a_statement_that_fails_together_is_rolled_back_and_warned_of(make: Callable[..., Any]) -> None:
    """An `apply_many` that always fails costs time with every batch, so its author must hear of it."""

    def apply_many(txns: Sequence[waltz.Transaction], db: Any) -> None:
        note_many(txns, db)
        db.execute("INSERT INTO nowhere VALUES (1)")

    view = make(note_sql, apply_many)
    view.load_mark(0)
    with pytest.warns(RuntimeWarning, match="apply_many failed on transactions 0 to 4 with .*nowhere.*one at a time"):
        assert view.commit(transactions(0, 4)) == 4
    assert ids(view) == [0, 1, 2, 3, 4]
    view.close()


def test_a_caught_error_of_what_is_applied_together_commits_no_half_of_it(make: Callable[..., Any]) -> None:
    """PostgreSQL gives the transaction up, the others go on: in any case each transaction counts once."""

    def apply_many(txns: Sequence[waltz.Transaction], db: Any) -> None:
        try:
            db.execute("INSERT INTO nowhere VALUES (1)")
        except Exception:
            note_many(txns, db)

    view = make(note_sql, apply_many)
    view.load_mark(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert view.commit(transactions(0, 4)) == 4
    assert ids(view) == [0, 1, 2, 3, 4]
    view.close()


def test_a_view_catches_up_from_an_archive_together_or_one_at_a_time(make: Callable[..., Any]) -> None:
    runs: list[int] = []
    fails = False

    def apply_many(txns: Sequence[waltz.Transaction], db: Any) -> None:
        runs.append(len(txns))
        note_many(txns, db)
        if fails:
            raise ArithmeticError

    def behind(end: int) -> Callable[[int, int], Iterator[waltz.Transaction]]:
        return lambda partition, mark: iter(transactions(mark + 1, end, partition))

    view = make(note_sql, apply_many)
    assert view.catch_up({0: 1499}, behind(1499)) == {0: -1}
    assert runs == [1000, 500]
    fails = True
    with pytest.warns(RuntimeWarning, match="1500 to 1509"):
        assert view.catch_up({0: 1509}, behind(1509)) == {0: 1499}
    assert (ids(view), view.load_mark(0)) == (list(range(1510)), 1509)
    view.close()


def test_a_dictionary_that_could_not_be_put_back_takes_no_apply_many() -> None:
    with pytest.raises(TypeError, match="a dict, a list or a set, not object"):
        waltz.DictView(lambda txn, state: None, object(), apply_many=lambda txns, state: None)


# ---- what the page shows --------------------------------------------------------------------------------------------

PAGE = "docs/howto/many-at-once.md"


@pytest.mark.parametrize(("kind", "block"), [("postgres", 0), ("mysql", 1)])
def test_the_how_to_page_shows_what_works(kind: str, block: int, request: pytest.FixtureRequest) -> None:
    shown = [each for each in blocks_of(PAGE) if "checked-by" in each.marks][block]
    names: dict[str, Any] = {}
    exec(compile(shown.text, shown.where, "exec"), names)
    server = request.getfixturevalue("postgres" if kind == "postgres" else "maria")
    case = (postgres_case if kind == "postgres" else mysql_case)(server)
    assert case.open_many is not None
    view = case.open_many(lambda txn, db: pytest.fail("not together"), names["apply_many"], None)
    view.load_mark(0)
    view.commit(transactions(0, 99))
    assert case.ids(view) == list(range(100))
    view.close()

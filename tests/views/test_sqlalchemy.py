"""The line of docs/howto/sqlalchemy.md that runs a statement of SQLAlchemy Core, on real servers."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.mysql import pymysql
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.schema import CreateTable

import waltz_trio as waltz
from waltz_core.base.ids import make_req_id

BALANCE = sa.Table(
    "balance",
    sa.MetaData(),
    sa.Column("account", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("amount", sa.Integer, nullable=False),
)


@pytest.mark.parametrize("name", ["postgres", "maria"])
def test_statements_of_core_run_in_apply_and_decide(name: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue(name)
    database = server.new_database()
    dialect: Any = psycopg.dialect() if name == "postgres" else pymysql.dialect(paramstyle="pyformat")
    schema = str(CreateTable(BALANCE, if_not_exists=True).compile(dialect=dialect))

    def run(db: Any, statement: sa.ClauseElement) -> Any:
        compiled = statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
        db.execute(str(compiled), compiled.params)
        return db

    def apply(txn: waltz.Transaction, db: Any) -> None:
        run(db, sa.insert(BALANCE).values(account=txn.id, amount=txn.load(waltz.Json(int))))

    def rich(db: Any, least: int) -> list[tuple[int, ...]]:
        wanted = sa.select(BALANCE.c.account).where(BALANCE.c.account.in_([0, 1, 2]), BALANCE.c.amount >= least)
        return list(run(db, wanted.order_by(BALANCE.c.account)).fetchall())

    def change(db: Any) -> None:
        run(db, sa.delete(BALANCE))

    made: Any
    if name == "postgres":
        made = waltz.PostgresView(server.conninfo(database), apply, schema=schema)
    else:
        made = waltz.MySqlView(server.options(database), apply, schema=schema)
    try:
        ids = [make_req_id(1, 0, 0, number) for number in range(3)]
        batch = [waltz.Transaction(0, number, 0, req_id, b"%d" % (number * 10)) for number, req_id in enumerate(ids)]
        assert made.load_mark(0) == -1
        assert made.commit(waltz.Batch(0, tuple(batch))) == 2
        assert [tuple(row) for row in made.read(0, rich, (10,))[0]] == [(1,), (2,)]
        with pytest.raises(waltz.StateReadOnlyError):
            made.read(0, change, ())
    finally:
        made.close()

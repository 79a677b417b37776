"""Submits with an idempotency key: once, whoever repeats them, and whenever."""

# ruff: noqa: PT012, SIM117 - what leaves a block is exactly what is tested
from __future__ import annotations

import sqlite3
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import waltz_trio as waltz
import waltz_trio.client.sql_view
from tests.trio.small_cluster import SmallCluster, small_cluster
from tests.trio.test_application import Held, together
from tests.trio.test_views import REQ, set_mark
from waltz_core.client.keys import KeyEntry, KeyTable, request_hash

SCHEMA = "CREATE TABLE IF NOT EXISTS balance (account INTEGER PRIMARY KEY, amount INTEGER NOT NULL)"


@attrs.frozen
class Move:
    account: int
    amount: int
    order: str | None = None


MOVE = waltz.Json(Move)
MakeView = Callable[..., Any]


def key_of(txn: waltz.Transaction) -> waltz.Key | None:
    move = txn.load(MOVE)
    return None if move.order is None else waltz.Key(move.order, (move.account, move.amount, move.order))


def apply(txn: waltz.Transaction, state: dict[int, int]) -> None:
    move = txn.load(MOVE)
    state[move.account] = state.get(move.account, 0) + move.amount


def apply_sql(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
    move = txn.load(MOVE)
    db.execute(
        "INSERT INTO balance VALUES (?, ?) ON CONFLICT (account) DO UPDATE SET amount = amount + excluded.amount",
        (move.account, move.amount),
    )


def pay(state: Any, account: int, amount: int, order: str | None) -> waltz.Append:
    return waltz.Append(Move(account, amount, order), MOVE)


def never(state: Any, *args: Any) -> waltz.Append:
    raise AssertionError("the key was there before")


def dict_view(path: Path, **options: Any) -> waltz.DictView[Any]:
    return waltz.DictView(apply, keys=waltz.Keys(key_of, **options))


def sqlite_view(path: Path, *, window: int = 1000, **options: Any) -> waltz.SqliteView:
    return waltz.SqliteView(
        path / "view.db", apply_sql, schema=SCHEMA, keys=waltz.Keys(key_of, window=window), **options
    )


@pytest.fixture(params=[dict_view, sqlite_view])
def make_view(request: pytest.FixtureRequest, tmp_path: Path) -> MakeView:
    return lambda **options: request.param(tmp_path, **options)


def orders(cluster: SmallCluster, partition: int = 0) -> list[str | None]:
    return [MOVE.loads(made.data).order for made in cluster.logs[partition].records]


# ---- submit ------------------------------------------------------------------------------------------


async def test_a_repeated_submit_gives_the_first_receipt_and_appends_nothing(make_view: MakeView) -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(make_view(), [0]) as bank:
            first = await bank.submit(pay, 7, 30, "order-1", partition=0, key="order-1", until="applied")
            other = await bank.submit(pay, 7, 30, "order-2", partition=0, key="order-2", until="applied")
            again = await bank.submit(never, 7, 30, "order-1", partition=0, key="order-1")
            assert (first, other, again) == (0, 1, 0)
            assert again is not None
            assert again.attempts == 0
            assert orders(cluster) == ["order-1", "order-2"]
            assert (bank.status(0).in_flight, bank.status(0).waiting) == (0, 0)


async def test_callers_with_one_key_at_the_same_time_append_once(make_view: MakeView) -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(make_view(), [0]) as bank:
            call = lambda: bank.submit(pay, 7, 30, "order-1", partition=0, key="order-1")  # noqa: E731
            receipts = await together(*[call] * 8)
            assert {int(receipt) for receipt in receipts} == {0}
            assert orders(cluster) == ["order-1"]


async def test_two_clients_whose_views_have_not_seen_the_key_append_once() -> None:
    """Only the lock on the key stands between them."""
    view = Held(apply, keys=waltz.Keys(key_of))

    def pay(state: Any, account: int, amount: int, order: str) -> waltz.Append:
        return waltz.Append(Move(account, amount, order), MOVE, result="what was decided")

    async with small_cluster() as cluster, waltz.open_client(cluster.url) as one, waltz.open_client(cluster.url) as two:
        async with one.materialize(dict_view(Path()), [0]) as here, two.materialize(view, [0]) as there:
            view.held = True
            first = await here.submit(pay, 7, 30, "order-1", partition=0, key="order-1")
            results: list[waltz.Receipt | None] = []

            async def repeat() -> None:
                results.append(await there.submit(pay, 7, 30, "order-1", partition=0, key="order-1"))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(repeat)
                while there.status(0).view_down is None:
                    await trio.lowlevel.checkpoint()
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert not results
                view.held = False
            assert [int(receipt or 9) for receipt in results] == [first]
            assert [receipt.value for receipt in results if receipt is not None] == [None], "its own came to nothing"
            assert orders(cluster) == ["order-1"]


async def test_callers_with_one_key_append_once_although_they_take_other_locks() -> None:
    view = Held(apply, keys=waltz.Keys(key_of))
    tills: list[int] = []

    def pay(state: Any, account: int, amount: int, order: str) -> waltz.Append:
        tills.append(len(tills))
        return waltz.Append(Move(account, amount, order), MOVE, write=[("till", tills[-1])])

    async with small_cluster() as cluster, waltz.open_client(cluster.url) as one, waltz.open_client(cluster.url) as two:
        async with one.materialize(dict_view(Path()), [0]) as here, two.materialize(view, [0]) as there:
            view.held = True
            first = int(await here.submit(pay, 7, 30, "order-1", partition=0, key="order-1") or 0)
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def release() -> None:
                    while there.status(0).view_down is None or len(tills) < 2:
                        await trio.lowlevel.checkpoint()
                    view.held = False

                again = int(await there.submit(pay, 7, 30, "order-1", partition=0, key="order-1") or 0)
            assert (first, again) == (0, 0)
            assert tills == [0, 1]
            assert orders(cluster) == ["order-1"]


async def test_a_submit_whose_outcome_nobody_learnt_is_repeated_safely(tmp_path: Path) -> None:
    """The first caller dies with its append on the way; the second one is a new process on the same database."""
    async with small_cluster() as cluster:
        async with waltz.open_client(cluster.url) as client:
            async with client.materialize(sqlite_view(tmp_path), [0]) as bank:
                await client.ready([0])
                with trio.CancelScope() as scope:
                    cluster.nodes[0].muted = True

                    async def cut() -> None:
                        while not cluster.logs[0].records:
                            await trio.lowlevel.checkpoint()
                        scope.cancel()

                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(cut)
                        await bank.submit(pay, 7, 30, "order-1", partition=0, key="order-1")
                cluster.nodes[0].muted = False
        async with waltz.open_client(cluster.url) as client:
            async with client.materialize(sqlite_view(tmp_path), [0]) as bank:
                assert await bank.submit(never, 7, 30, "order-1", partition=0, key="order-1") == waltz.Receipt(0, 0, 0)
        assert orders(cluster) == ["order-1"]


async def test_a_key_that_comes_with_another_request_is_refused(make_view: MakeView) -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(make_view(), [0]) as bank:
            await bank.submit(pay, 7, 30, "order-1", partition=0, key="order-1", until="applied")
            with pytest.raises(waltz.KeyReusedError, match="'order-1' was used by transaction 0") as caught:
                await bank.submit(pay, 7, 31, "order-1", partition=0, key="order-1")
            assert (caught.value.partition, caught.value.key, caught.value.transaction_id) == (0, "order-1", 0)
            named = waltz.Key("order-1", [7, 30.0, "order-1"])
            assert await bank.submit(never, partition=0, key=named) == waltz.Receipt(0, 0, 0)


async def test_a_key_is_of_one_partition(make_view: MakeView) -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(make_view(), [0, 1]) as bank:
            for partition in (0, 1):
                receipt = await bank.submit(pay, 7, 30, "order-1", partition=partition, key="order-1")
                assert receipt == waltz.Receipt(partition, 0)
            assert orders(cluster, 1) == ["order-1"]


async def test_an_append_that_does_not_carry_the_key_is_refused_before_it_is_sent(make_view: MakeView) -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(make_view(), [0]) as bank:
            with pytest.raises(ValueError, match="key_of finds no key in the append"):
                await bank.submit(pay, 7, 30, None, partition=0, key="order-1")
            with pytest.raises(ValueError, match="key_of finds key 'order-2' in the append"):
                await bank.submit(pay, 7, 30, "order-2", partition=0, key="order-1")
            with pytest.raises(ValueError, match="another request beside it"):
                await bank.submit(pay, 7, 30, "order-1", partition=0, key=waltz.Key("order-1", "x"))
            wrong: list[tuple[Any, type[Exception]]] = [(7, TypeError), ("", ValueError), ("x" * 256, ValueError)]
            for key, error in wrong:
                with pytest.raises(error, match="a key"):
                    await bank.submit(pay, 7, 30, "x", partition=0, key=key)
            with pytest.raises(ValueError, match="leave decline='local' out"):
                await bank.submit(pay, 7, 30, "order-1", partition=0, key="order-1", decline="local")
            assert orders(cluster) == []
            assert bank.status(0).in_flight == 0


async def test_a_view_without_keys_says_so() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(waltz.DictView(apply), [0]) as bank:
            with pytest.raises(ValueError, match=r"a view that remembers keys: DictView\(\.\.\., keys=\.\.\.\)"):
                await bank.submit(pay, 7, 30, "order-1", partition=0, key="order-1")


async def test_an_async_decision_may_have_a_key() -> None:
    async def slowly(state: Any, order: str) -> waltz.Append:
        await trio.lowlevel.checkpoint()
        return waltz.Append(Move(1, 1, order), MOVE)

    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(dict_view(Path()), [0]) as bank:
            key = waltz.Key("a", (1, 1, "a"))
            for _ in range(2):
                assert int(await bank.submit(slowly, "a", partition=0, key=key, until="applied") or 9) == 0
            assert orders(cluster) == ["a"]


# ---- views -------------------------------------------------------------------------------------------


def batch(first: int, keys: list[str | None], partition: int = 0) -> waltz.Batch:
    return waltz.Batch(
        partition,
        tuple(
            waltz.Transaction(partition, first + at, 0, REQ, MOVE.dumps(Move(at, first, key)))
            for at, key in enumerate(keys)
        ),
    )


def find(view: Any, key: str, partition: int = 0) -> KeyEntry | None:
    entry: KeyEntry | None = view.read(partition, lambda state: view.find_key(state, partition, key), ())[0]
    return entry


def test_a_view_remembers_what_the_table_of_the_core_does(make_view: MakeView) -> None:
    view, table = make_view(window=5), KeyTable(5)
    assert view.load_mark(0) == -1
    log: list[str | None] = ["a", None, "a", "b", None, None, "a", "a", "c", None, "a", None, None, "b", "a", "b", "b"]
    at = 0
    for count in (1, 3, 2, 7, 4):
        made = batch(at, log[at : at + count])
        view.commit(made)
        for transaction in made:
            move = transaction.load(MOVE)
            table.apply(transaction.id, move.order, request_hash((move.account, move.amount, move.order)))
        at += count
        assert [find(view, key) for key in "abc"] == [table.find(key, at - 1) for key in "abc"]
    assert at == len(log)


def test_a_partition_forgets_no_keys_of_another_one(make_view: MakeView) -> None:
    view = make_view(window=5)
    assert [view.load_mark(partition) for partition in (0, 1)] == [-1, -1]
    view.commit(batch(0, ["a"]))
    view.commit(batch(0, ["a", *[None] * 20, "b"], partition=1))
    assert [find(view, "a"), find(view, "a", 1), find(view, "b", 1)] == [
        KeyEntry(0, request_hash((0, 0, "a"))), None, KeyEntry(21, request_hash((21, 0, "b"))),
    ]  # fmt: skip


def test_a_catch_up_holds_no_more_keys_than_it_applies_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waltz_trio.client.sql_view, "_AT_ONCE", 2)
    stored: list[int] = []

    def look(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
        stored.append(db.execute("SELECT COUNT(*) FROM CLIENT_HIGH_WATER_MARK_KEYS").fetchone()[0])

    view = waltz.SqliteView(tmp_path / "view.db", look, keys=waltz.Keys(key_of))
    view.catch_up({0: 4}, lambda partition, mark: batch(0, list("abcde")).transactions)
    assert stored == [0, 0, 2, 2, 4]
    assert [find(view, key) is not None for key in "abcdef"] == [True] * 5 + [False]
    view.close()


def test_keys_survive_a_restart_and_a_failed_batch_leaves_none(tmp_path: Path) -> None:
    def fails_later(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
        if txn.id == 2:
            raise RuntimeError("poison")

    view = waltz.SqliteView(tmp_path / "view.db", fails_later, keys=waltz.Keys(key_of))
    view.load_mark(0)
    view.commit(batch(0, ["a"]))
    with pytest.raises(waltz.ApplyError):
        view.commit(batch(1, ["b", "c"]))
    view.close()
    view = waltz.SqliteView(tmp_path / "view.db", fails_later, keys=waltz.Keys(key_of))
    assert view.load_mark(0) == 0
    assert find(view, "a") == KeyEntry(0, request_hash((0, 0, "a")))
    assert find(view, "b") is None
    view.close()


def test_a_transaction_whose_key_cannot_be_told_is_one_that_cannot_be_applied(make_view: MakeView) -> None:
    view = make_view()
    view.load_mark(0)
    with pytest.raises(waltz.ApplyError) as caught:
        view.commit(batch(0, ["x" * 300]))
    assert "1 to 255 bytes" in str(caught.value.__cause__)
    view.close()


def test_two_members_with_keys_share_one_database(tmp_path: Path) -> None:
    one, two = sqlite_view(tmp_path), sqlite_view(tmp_path)
    assert (one.load_mark(0), two.load_mark(0)) == (-1, -1)
    one.commit(batch(0, ["a", "b"]))
    assert two.commit(batch(0, ["a", "b", "c"])) == 2
    assert one.commit(batch(2, ["c"])) == 2
    assert [find(one, key) is not None for key in "abcd"] == [True, True, True, False]
    one.close()
    two.close()


def test_who_keeps_no_keys_may_not_share_the_database_of_those_who_do(tmp_path: Path) -> None:
    view = sqlite_view(tmp_path)
    view.load_mark(0)
    plain = waltz.SqliteView(tmp_path / "view.db", apply_sql, schema=SCHEMA)
    with pytest.raises(waltz.ViewIdentityError, match="it remembers keys, and this view does not"):
        plain.load_mark(0)
    other = sqlite_view(tmp_path, window=7)
    with pytest.raises(waltz.ViewIdentityError, match="but not the keys of the last 7"):
        other.load_mark(0)
    for each in (view, plain, other):
        each.close()


@pytest.mark.parametrize("how", ["read", "commit", "begin"])
def test_marks_that_a_member_without_keys_has_moved_are_noticed(tmp_path: Path, how: str) -> None:
    """One of 0.13.2, which knows only the table of marks."""
    view = sqlite_view(tmp_path)
    view.load_mark(0)
    view.commit(batch(0, ["a"]))
    set_mark(tmp_path, "UPDATE CLIENT_HIGH_WATER_MARK SET HIGH_WATER_MARK = 3")
    with pytest.raises(waltz.ViewIdentityError, match="has applied transactions: stop it"):
        if how == "read":
            find(view, "b")
        elif how == "commit":
            view.commit(batch(4, [None]))
        else:
            sqlite_view(tmp_path).load_mark(0)
    view.close()


def test_keys_are_taken_up_by_a_rebuild(tmp_path: Path) -> None:
    plain = waltz.SqliteView(tmp_path / "view.db", apply_sql, schema=SCHEMA)
    plain.load_mark(0)
    plain.commit(batch(0, ["a"]))
    plain.close()
    early = sqlite_view(tmp_path)
    with pytest.raises(waltz.ViewIdentityError, match="but not the keys"):
        early.load_mark(0)
    early.close()
    view = sqlite_view(tmp_path, version=2, rebuild=True)
    assert view.load_mark(0) == -1
    view.commit(batch(0, ["a"]))
    assert find(view, "a") is not None
    view.close()
    third = waltz.SqliteView(tmp_path / "view.db", apply_sql, schema=SCHEMA, version=3, rebuild=True)
    assert third.load_mark(0) == -1
    third.commit(batch(0, ["a"]))
    third.close()


def test_a_rebuild_forgets_the_keys_that_an_older_version_has_found(tmp_path: Path) -> None:
    """The new one may find others in the same transactions: the old ones would answer for requests that never were."""
    old = sqlite_view(tmp_path)
    old.load_mark(0)
    old.commit(batch(0, ["a", "b"]))
    old.close()
    keys = waltz.Keys(lambda txn: waltz.Key(f"new-{txn.load(MOVE).order}", ()), window=1000)
    new = waltz.SqliteView(
        tmp_path / "view.db", apply_sql, schema=SCHEMA, name=old.name, version=2, rebuild=True, keys=keys
    )
    assert new.load_mark(0) == -1
    new.commit(batch(0, ["a", "b"]))
    assert [find(new, key) is not None for key in ("a", "b", "new-a", "new-b")] == [False, False, True, True]
    new.close()


def test_a_view_with_keys_catches_up_from_an_archive_and_cannot_be_seeded(tmp_path: Path) -> None:
    view = sqlite_view(tmp_path)
    with pytest.raises(waltz.ConfigError, match="cannot be seeded"):
        view.seed(0, 5, lambda db: None)
    with pytest.raises(waltz.ConfigError, match="cannot be seeded"):
        dict_view(tmp_path).seed(0, 5)
    made = batch(0, ["a", "b", None, "a"])
    assert view.catch_up({0: 3}, lambda partition, mark: made) == {0: -1}
    assert view.load_mark(0) == 3
    assert find(view, "a") == KeyEntry(0, request_hash((0, 0, "a")))
    view.commit(batch(4, ["c"]))
    assert find(view, "c") is not None
    view.close()


def test_what_cannot_tell_keys_is_refused() -> None:
    async def later(txn: waltz.Transaction) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match="key_of must be a plain function"):
        waltz.Keys(later)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1 transaction"):
        waltz.Keys(key_of, window=0)
    with pytest.raises(TypeError, match="gives a Key or None, found 'a'"):
        waltz.Keys(lambda txn: "a").of(batch(0, ["a"]).transactions[0])  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_transaction_whose_request_is_too_long_to_be_hashed_is_named(tmp_path: Path, kind: str) -> None:
    """It came from somebody who did not ask this program first."""

    def huge(txn: waltz.Transaction) -> waltz.Key:
        return waltz.Key(f"order-{txn.id}", Decimal("1E+999999999") if txn.id == 1 else Decimal(1))

    keys = waltz.Keys(huge)
    view: Any
    if kind == "memory":
        view = waltz.DictView(lambda txn, state: None, keys=keys)
    else:
        view = waltz.SqliteView(tmp_path / "view.db", lambda txn, db: None, keys=keys)
    view.load_mark(0)
    with pytest.raises(waltz.ApplyError) as failed:
        view.commit(waltz.Batch(0, tuple(waltz.Transaction(0, n, 0, REQ, b"") for n in range(3))))
    assert failed.value.transaction.id == 1
    assert "can be written with 4300 digits" in str(failed.value.__cause__)
    view.close()

"""Many submits at once, decided together; and what a caller keeps of a submit that it does not wait for."""

# ruff: noqa: SIM117 - what leaves a block is exactly what is tested
from __future__ import annotations

import contextlib
import gc
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

import waltz_trio as waltz
from tests.trio.small_cluster import small_cluster
from tests.trio.test_application import (
    MOVE,
    SCHEMA,
    Move,
    apply,
    apply_sql,
    balances,
    deposit,
    sqlite_view,
    together,
    withdraw,
    withdraw_sql,
)
from tests.trio.test_keys import SCHEMA as KEYED_SCHEMA
from tests.trio.test_keys import dict_view as keyed_view
from tests.trio.test_keys import orders, pay
from waltz_core.client.calls import Failed, Reason
from waltz_trio.client.calls import Call
from waltz_trio.client.parts import many_in_the_log
from waltz_trio.client.pending import Pending


class Counted(waltz.SqliteView):
    """Counts the snapshots that are taken, and can be held."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, apply_sql, schema=SCHEMA)
        self.reads = 0
        self.fails = False

    def read(self, partition: int, decide: Any, args: tuple[Any, ...]) -> tuple[Any, int]:
        self.reads += 1
        if self.fails:
            raise sqlite3.OperationalError("disk I/O error")
        return super().read(partition, decide, args)

    def is_transient(self, error: Exception) -> bool:
        return "disk I/O" in str(error) or super().is_transient(error)


async def test_many_submits_get_an_outcome_each(tmp_path: Path) -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(sqlite_view(tmp_path / "x.db"), [0], max_in_flight=50) as bank:
            await bank.submit(deposit, 7, 100, partition=0, until="applied")
            arguments = [(7, 30)] * 5 + [(8, 1)]
            outcomes = await bank.submit_many(withdraw_sql, arguments, partition=0)
            assert [isinstance(each, waltz.Receipt) for each in outcomes].count(True) == 3
            assert outcomes[5] is None
            assert balances(cluster) == {7: 10}
            assert await bank.submit_many(withdraw_sql, [], partition=0) == []
            assert bank.status(0).in_flight == 0


async def test_submits_that_commit_together_get_each_its_own_transaction() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(waltz.DictView(apply), [0], max_in_flight=50) as bank:
            receipts = await bank.submit_many(deposit, [(account, 1) for account in range(20)], partition=0)
            receipts += await together(*[partial(bank.submit, deposit, 20 + n, 1, partition=0) for n in range(20)])
    made = {MOVE.loads(record.data).account: number for number, record in enumerate(cluster.logs[0].records)}
    assert receipts == [made[account] for account in range(40)]


async def test_calls_leave_nothing_to_the_garbage_collector() -> None:
    """A circle of objects behind each submit cost a client with a thousand callers a third of its time."""
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(waltz.DictView(apply), [0]) as bank:
            gc.collect()
            gc.disable()
            gc.set_debug(gc.DEBUG_SAVEALL)
            try:
                await bank.submit(deposit, 7, 100, partition=0)
                await bank.submit(deposit, 7, 100, partition=0, until="applied")
                await bank.submit_many(deposit, [(account, 1) for account in range(10)], partition=0)
                assert await bank.submit(withdraw, 7, 999, partition=0) is None
                await bank.read(len, partition=0, fresh=True)
                await bank.caught_up()
                gc.collect()
                collected = [each for each in gc.garbage if isinstance(each, Call | Pending)]
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()
    assert collected == []


async def test_what_waits_is_decided_in_one_snapshot(tmp_path: Path) -> None:
    view = Counted(tmp_path / "x.db")
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(view, [0], max_in_flight=1000) as bank:
            view.reads = 0
            await bank.submit_many(deposit, [(account, 1) for account in range(1000)], partition=0)
            assert view.reads <= 5, "a snapshot decides 256"
            view.reads = 0
            await together(*[lambda: bank.submit(deposit, 1, 1, partition=0)] * 100)
            assert view.reads <= 3
            assert len(cluster.logs[0].records) == 1100


async def test_a_decision_that_fails_stands_in_nobodys_way(tmp_path: Path) -> None:
    def picky(db: sqlite3.Cursor, account: int) -> waltz.Append:
        if account == 3:
            raise KeyError(account)
        if account == 4:
            db.execute("DELETE FROM balance")
        return deposit(db, account, 1)

    outcomes: dict[int, object] = {}
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(sqlite_view(tmp_path / "x.db"), [0], max_in_flight=50) as bank:

            async def submit(account: int) -> None:
                try:
                    outcomes[account] = await bank.submit(picky, account, partition=0)
                except Exception as error:
                    outcomes[account] = type(error)

            async with trio.open_nursery() as nursery:
                for account in range(8):
                    nursery.start_soon(submit, account)
            assert (outcomes.pop(3), outcomes.pop(4)) == (KeyError, waltz.StateReadOnlyError)
            assert all(isinstance(each, waltz.Receipt) for each in outcomes.values())
            with pytest.raises(KeyError):
                await bank.submit_many(picky, [(1,), (3,), (5,)], partition=0)
            await client.flush()
            status = bank.status(0)
            assert (status.in_flight, status.waiting) == (0, 0)


async def test_a_state_that_cannot_be_read_is_read_again_for_all(tmp_path: Path) -> None:
    view = Counted(tmp_path / "x.db")
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(view, [0], max_in_flight=50) as bank:
            view.fails = True
            given_up = await bank.submit_many(deposit, [(1, 1)] * 3, partition=0, retry=waltz.Retry(attempts=2))
            assert [type(each) for each in given_up] == [waltz.RetriesExhaustedError] * 3
            assert all(isinstance(getattr(each, "__cause__", None), sqlite3.OperationalError) for each in given_up)
            view.fails = False
            assert None not in await bank.submit_many(deposit, [(1, 1)] * 3, partition=0)
            assert balances(cluster) == {1: 3}


async def test_many_submits_have_a_key_each() -> None:
    assert KEYED_SCHEMA
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(keyed_view(Path()), [0], max_in_flight=50) as bank:
            for _ in range(2):
                outcomes = await bank.submit_many(
                    pay, [(1, 1, "a"), (1, 1, "b")], partition=0, keys=["a", "b"], until="applied"
                )
                assert sorted(map(str, orders(cluster))) == ["a", "b"]
                assert None not in outcomes
            (reused,) = await bank.submit_many(pay, [(1, 2, "a")], partition=0, keys=["a"])
            assert isinstance(reused, waltz.KeyReusedError)
            with pytest.raises(ValueError, match="2 submits need as many keys, found 1"):
                await bank.submit_many(pay, [(1, 2, "a")] * 2, partition=0, keys=["a"])


class Asked:
    """Decides to add to an account, and counts how often it was asked."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, state: Any, account: int) -> waltz.Append:
        self.count += 1
        return waltz.Append(Move(account, 1), MOVE, write=[("account", account)])


async def test_who_expects_its_lock_is_decided_once_however_many_want_it() -> None:
    expecting, others, lock = Asked(), Asked(), [("account", 7)]
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(waltz.DictView(apply), [0], max_in_flight=50) as bank:
            for decide, expects in ((expecting, lock), (others, ())):
                calls = [partial(bank.submit, decide, 7, partition=0, expects=expects) for _ in range(10)]
                receipts = await together(*calls)
                likely = [iter(expects) for _ in range(10)]
                receipts += await bank.submit_many(decide, [(7,)] * 10, partition=0, expects=likely)
                assert [receipt.attempts for receipt in receipts] == [1] * 20
            assert bank.status(0).gated == 0
    assert balances(cluster) == {7: 40}
    assert expecting.count == 20
    assert others.count > 30, "once to learn which lock they want, and once more"


async def test_who_expects_the_wrong_locks_gets_the_same_outcome() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(waltz.DictView(apply), [0], max_in_flight=50) as bank:
            await bank.submit(deposit, 7, 100, partition=0, until="applied")
            wrong: list[list[waltz.Lock | tuple[str, int]]] = [
                [("account", 8)],
                [("account", 9), ("account", 7)],
                [waltz.Lock("x", 0)],
                [],
                [("account", 7)],
            ]
            with trio.fail_after(20):
                outcomes = await bank.submit_many(withdraw, [(7, 30)] * 5, partition=0, expects=wrong)
                assert await bank.submit(withdraw, 7, 30, partition=0, expects=[("account", 8)]) is None
            assert [isinstance(each, waltz.Receipt) for each in outcomes].count(True) == 3
    assert balances(cluster) == {7: 10}


async def test_who_expects_its_lock_and_has_a_key_keeps_its_turn(tmp_path: Path) -> None:
    """The append takes a lock on the key, too, which is as good as expected."""
    asked = 0

    def once(state: Any, order: str) -> waltz.Append:
        nonlocal asked
        asked += 1
        append = pay(state, 1, 2, order)
        return waltz.Append(append.value, append.codec, write=[("account", 1)])

    names = [f"order-{number}" for number in range(10)]
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(keyed_view(tmp_path), [0], max_in_flight=50) as bank:
            keys = [waltz.Key(name, (1, 2, name)) for name in names]
            await bank.submit_many(
                once, [(name,) for name in names], partition=0, keys=keys, expects=[[("account", 1)]] * 10
            )
    assert sorted(filter(None, orders(cluster))) == sorted(names)
    assert asked == 10


async def test_what_submit_many_cannot_take_is_refused() -> None:
    async def later(state: Any, account: int) -> None:
        raise AssertionError

    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(waltz.DictView(apply), [0]) as bank:
            with pytest.raises(TypeError, match="takes a plain function"):
                await bank.submit_many(later, [(1,)], partition=0)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="until is"):
                await bank.submit_many(withdraw, [(1, 1)], partition=0, until="done")  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="2 submits need as many lists of locks in expects, found 1"):
                await bank.submit_many(withdraw, [(1, 1)] * 2, partition=0, expects=[[("account", 1)]])


async def test_many_that_are_cancelled_leave_nothing_behind() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(waltz.DictView(apply), [0], max_in_flight=3) as bank:
            await client.ready([0])
            cluster.nodes[0].deaf = True
            with trio.CancelScope() as scope:

                async def leave() -> None:
                    while bank.status(0).in_flight < 3 or client.status(0).in_flight < 3:
                        await trio.lowlevel.checkpoint()
                    scope.cancel()

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(leave)
                    await bank.submit_many(deposit, [(1, 1)] * 10, partition=0)
            status = bank.status(0)
            assert (status.in_flight, status.waiting) == (3, 0), "what was sent stays under way"
            client._appends.unjudged.clear()  # nothing is waited for


# ---- a handle to the outcome -----------------------------------------------------------------------------


async def test_a_cancelled_submit_leaves_a_handle_to_its_outcome() -> None:
    handle = waltz.Submission()
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(waltz.DictView(apply), [0]) as bank:
            await client.ready([0])
            cluster.nodes[0].held = True
            assert handle.pending is None
            with trio.CancelScope() as scope:

                async def leave() -> None:
                    while handle.pending is None:
                        await trio.lowlevel.checkpoint()
                    scope.cancel()

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(leave)
                    await bank.submit(deposit, 1, 5, partition=0, submission=handle)
            assert scope.cancelled_caught
            assert handle.pending is not None
            assert not handle.pending.done
            cluster.nodes[0].held = False
            cluster.wake()
            await client.flush()
            assert handle.pending.done
            assert await handle.pending.outcome() == waltz.Receipt(0, 0)


async def test_nothing_is_sent_for_a_caller_that_left_while_it_was_decided(tmp_path: Path) -> None:
    decided = Decided()
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(sqlite_view(tmp_path / "x.db"), [0]) as bank:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(decided.begun, scope.cancel)
                    nursery.start_soon(decided.release_soon, scope)
                    await bank.submit(decided.decide, partition=0)
            assert decided.left, "nothing goes on behind the back of a caller"
            await bank.submit(deposit, 1, 1, partition=0)
            assert [made.data for made in cluster.logs[0].records] == [MOVE.dumps(Move(1, 1))]
            assert bank.status(0).in_flight == 0


async def test_nothing_is_decided_for_a_caller_that_left_before(tmp_path: Path) -> None:
    """It waited for its turn behind a decision that was under way in the thread of the view."""
    decided, late = Decided(), list[int]()

    def decide(db: Any) -> None:
        late.append(1)

    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(sqlite_view(tmp_path / "x.db"), [0]) as bank, trio.open_nursery() as nursery:
            nursery.start_soon(lambda: bank.submit(decided.decide, partition=0))
            await decided.begun(lambda: None)
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as leaving:
                    leaving.start_soon(lambda: bank.submit(decide, partition=0))
                    while bank.status(0).in_flight < 2:
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
            assert scope.cancelled_caught
            decided.released.set()
            await bank.submit(deposit, 1, 1, partition=0)
            assert not late


async def test_who_submits_from_outside_hears_that_the_block_has_ended(tmp_path: Path) -> None:
    """One decision is under way in the thread of the view and others wait for it, when the block ends."""
    decided, raised = Decided(), 0

    async def submit(bank: Any, decide: Any) -> None:
        nonlocal raised
        with contextlib.suppress(waltz.ClientClosedError):
            await bank.submit(decide, partition=0)
            raised -= 1
        raised += 1

    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client, trio.open_nursery() as nursery:
        async with client.materialize(sqlite_view(tmp_path / "x.db"), [0]) as bank:
            nursery.start_soon(submit, bank, decided.decide)
            await decided.begun(lambda: None)
            for _ in range(2):
                nursery.start_soon(submit, bank, lambda db: waltz.Append(Move(1, 1), MOVE))
            while bank.status(0).in_flight < 3:
                await trio.lowlevel.checkpoint()
            nursery.start_soon(decided.release_soon, None)
    assert raised == 2


class Decided:
    """A decision that takes until it is released."""

    def __init__(self) -> None:
        self.entered, self.released, self.left = threading.Event(), threading.Event(), False

    def decide(self, db: Any) -> waltz.Append:
        self.entered.set()
        assert self.released.wait(30)
        self.left = True
        return waltz.Append(Move(9, 9), MOVE)

    async def begun(self, then: Callable[[], object]) -> None:
        while not self.entered.is_set():
            await trio.lowlevel.checkpoint()
        then()

    async def release_soon(self, cancelled: trio.CancelScope | None) -> None:
        with trio.CancelScope(shield=True):
            while cancelled is not None and not cancelled.cancel_called:
                await trio.lowlevel.checkpoint()
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            self.released.set()


def test_an_error_of_many_submits_names_what_is_in_the_log_and_what_may_be() -> None:
    outcomes = [
        7,
        None,
        Failed(0, "", Reason.CLIENT_AHEAD),
        Failed(0, "", Reason.BEFORE_START),
        Failed(0, "", Reason.CLOSED),
        Failed(0, "", Reason.LOCK),
    ]
    calls = [Call() for _ in range(7)]
    for call, outcome in zip(calls, outcomes, strict=False):
        call.pending = SimpleNamespace(_outcome=outcome)  # type: ignore[assignment]
    places = "are in the log: 0 as transaction 7; were sent and may commit yet: 1, 2, 3, 4"
    assert many_in_the_log(calls) == f"of 7 submits, counted from 0, {places}"

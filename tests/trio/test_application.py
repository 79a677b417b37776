"""Views kept up to date, and transactions decided on their state."""

# ruff: noqa: PT012, SIM117 - what leaves a block is exactly what is tested
from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import waltz_trio as waltz
from tests.trio.small_cluster import SmallCluster, small_cluster
from tests.trio.test_client import Watcher
from waltz_core.base.log import MARKER_HEADER
from waltz_core.wire.client_messages import HighWaterMarkRequest

SCHEMA = "CREATE TABLE IF NOT EXISTS balance (account INTEGER PRIMARY KEY, amount INTEGER NOT NULL)"


@attrs.frozen
class Move:
    account: int
    amount: int


MOVE = waltz.Json(Move)


def apply_sql(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
    move = txn.load(MOVE)
    db.execute(
        "INSERT INTO balance VALUES (?, ?) ON CONFLICT (account) DO UPDATE SET amount = amount + excluded.amount",
        (move.account, move.amount),
    )


def withdraw_sql(db: sqlite3.Cursor, account: int, amount: int) -> waltz.Append | None:
    row = db.execute("SELECT amount FROM balance WHERE account = ?", (account,)).fetchone()
    if row is None or row[0] < amount:
        return None
    return waltz.Append(Move(account, -amount), MOVE, write=[("account", account)])


def deposit(state: Any, account: int, amount: int) -> waltz.Append:
    return waltz.Append(Move(account, amount), MOVE, append=[("account", account)])


def apply(txn: waltz.Transaction, state: dict[int, int]) -> None:
    move = txn.load(MOVE)
    state[move.account] = state.get(move.account, 0) + move.amount


def withdraw(state: dict[int, int], account: int, amount: int) -> waltz.Append | None:
    if state.get(account, 0) < amount:
        return None
    return waltz.Append(Move(account, -amount), MOVE, write=[("account", account)])


def touch(state: Any) -> waltz.Append:
    return waltz.Append(Move(1, 1), MOVE, write=[("account", 1)])


def sqlite_view(path: Path) -> waltz.SqliteView:
    return waltz.SqliteView(path, apply_sql, schema=SCHEMA)


async def together(*calls: Callable[[], Awaitable[Any]]) -> list[Any]:
    results: list[Any] = [None] * len(calls)

    async def run(at: int) -> None:
        results[at] = await calls[at]()

    async with trio.open_nursery() as nursery:
        for at in range(len(calls)):
            nursery.start_soon(run, at)
    return results


def count_questions(cluster: SmallCluster) -> list[object]:
    """Every question for the committed mark from now on."""
    asked: list[object] = []
    server = cluster.nodes[0].server
    receive = server._on_message

    def watched(conn: Any, message: Any) -> None:
        if isinstance(message, HighWaterMarkRequest):
            asked.append(message)
        receive(conn, message)

    server._on_message = watched  # type: ignore[method-assign]
    return asked


def balances(cluster: SmallCluster, partition: int = 0) -> dict[int, int]:
    """What the log says, whatever the clients believe."""
    state: dict[int, int] = {}
    for made in cluster.logs[partition].records:
        move = MOVE.loads(made.data)
        state[move.account] = state.get(move.account, 0) + move.amount
        assert state[move.account] >= 0
    return state


# ---- submit ------------------------------------------------------------------------------------


async def test_withdrawals_never_overdraw(tmp_path: Path) -> None:
    watcher = Watcher()
    async with small_cluster() as cluster, waltz.open_client(cluster.url, instrument=watcher) as client:
        async with client.materialize(sqlite_view(tmp_path / "bank.db"), [0]) as bank:
            receipt = await bank.submit(deposit, 7, 100, partition=0, until="applied")
            assert receipt == waltz.Receipt(0, 0, 1, 0)
            assert bank.mark(0) == 0
            results = await together(*[lambda: bank.submit(withdraw_sql, 7, 30, partition=0)] * 8)
            assert sum(receipt is not None for receipt in results) == 3
            assert balances(cluster) == {7: 10}
            await bank.caught_up()
            rows, mark = await bank.read(lambda db: db.execute("SELECT * FROM balance").fetchall(), partition=0)
            assert (rows, mark) == ([(7, 10)], 3)
            assert not any(entry[0] == "conflict" for entry in watcher.told), "no other client wants the lock"
            assert any(entry[0] == "applied" for entry in watcher.told)


async def test_a_decision_hands_something_out_beside_its_append() -> None:
    def with_balance(state: dict[int, int], amount: int) -> waltz.Append:
        return attrs.evolve(deposit(state, 1, amount), result={"balance": state.get(1, 0) + amount})

    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(waltz.DictView(apply), [0]) as bank:
            await bank.submit(with_balance, 5, partition=0, until="applied")
            receipt = await bank.submit(with_balance, 5, partition=0)
            assert receipt is not None
            assert receipt.value == {"balance": 10}


async def test_two_members_share_one_database(tmp_path: Path) -> None:
    async with small_cluster() as cluster:
        async with waltz.open_client(cluster.url) as one, waltz.open_client(cluster.url) as two:
            path = tmp_path / "bank.db"
            async with (
                one.materialize(sqlite_view(path), [0]) as here,
                two.materialize(sqlite_view(path), [0]) as there,
            ):
                await here.submit(deposit, 7, 100, partition=0, until="applied")
                await there.caught_up(0)
                calls = [lambda who=who: who.submit(withdraw_sql, 7, 30, partition=0) for who in (here, there) * 4]
                results = await together(*calls)
                assert sum(receipt is not None for receipt in results) == 3
                assert balances(cluster) == {7: 10}


async def test_a_view_in_memory_decides_inline_and_may_await() -> None:
    async def slowly(state: dict[int, int], account: int) -> waltz.Append | None:
        await trio.lowlevel.checkpoint()
        return withdraw(state, account, 1)

    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(waltz.DictView(apply)) as bank:
            assert await bank.submit(withdraw, 1, 5, partition=1) is None
            await bank.submit(deposit, 1, 5, partition=1, until="applied")
            assert await bank.submit(slowly, 1, partition=1) == waltz.Receipt(1, 1, 1, 0)
            assert balances(cluster, 1) == {1: 4}


async def test_an_async_decision_on_a_database_is_refused(tmp_path: Path) -> None:
    async def decide(db: sqlite3.Cursor) -> None:
        raise AssertionError

    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(sqlite_view(tmp_path / "x.db"), [0]) as bank:
            with pytest.raises(TypeError, match="plain function"):
                await bank.submit(decide, partition=0)
            assert bank.status(0).in_flight == 0


async def test_a_lost_append_is_decided_and_sent_again() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(waltz.DictView(apply), [0]) as bank:
            lose = iter([True, False, False])
            await bank.caught_up()
            cluster.nodes[0].server.loses = lambda request: next(lose)
            first, second = await together(
                lambda: bank.submit(deposit, 1, 5, partition=0), lambda: bank.submit(deposit, 1, 5, partition=0)
            )
            assert {first.attempts, second.attempts} == {1, 2}
            assert balances(cluster) == {1: 10}


async def test_retries_end_where_they_are_told_to() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(waltz.DictView(apply), [0]) as bank:
            await bank.submit(deposit, 1, 1, partition=0, until="applied")

            def stale(state: dict[int, int]) -> waltz.Append:
                cluster.logs[0].locks[waltz.Lock("account", 1).wire()] = cluster.logs[0].mark
                cluster.commit(0, [MOVE.dumps(Move(1, 1))])
                cluster.logs[0].locks[waltz.Lock("account", 1).wire()] = cluster.logs[0].mark
                return waltz.Append(Move(1, 0), MOVE, write=[("account", 1)])

            with pytest.raises(waltz.RetriesExhaustedError, match="after 3 attempts") as found:
                await bank.submit(stale, partition=0, retry=waltz.Retry(attempts=3))
            assert isinstance(found.value.__cause__, waltz.LockConflictError)
            with pytest.raises(waltz.RetriesExhaustedError, match="after 1 attempt: partition 0: a lock was taken"):
                await bank.submit(stale, partition=0, retry=waltz.Retry(give_up_after=0))


async def test_submits_beyond_the_limit_wait_for_a_slot() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(waltz.DictView(apply), [0], max_in_flight=2) as bank:
            await client.ready([0])
            cluster.nodes[0].deaf = True
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(lambda: bank.submit(deposit, 1, 1, partition=0))
                await trio.testing.wait_all_tasks_blocked(0.05)
                status = bank.status(0)
                assert (status.in_flight, status.waiting, client.status(0).in_flight) == (2, 3, 2)
                nursery.cancel_scope.cancel()
            assert bank.status(0).waiting == 0
            assert client.status(0).in_flight == 2, "what was sent stays under way"
            client._appends.unjudged.clear()  # nothing is waited for


async def test_a_submit_waits_for_the_view_although_the_one_before_it_did_not() -> None:
    """They differ in nothing else."""
    view, returned = Held(apply), list[str]()
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(view, [0]) as bank, trio.open_nursery() as nursery:
            view.held = True
            await bank.submit(deposit, 1, 1, partition=0)

            @nursery.start_soon
            async def submit() -> None:
                await bank.submit(deposit, 1, 1, partition=0, until="applied")
                returned.append("applied")

            while cluster.logs[0].mark < 1:
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
            assert not returned
            view.held = False


async def test_nonsense_is_refused() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(waltz.DictView(apply), [0]) as bank:
            for _ in range(2):
                with pytest.raises(ValueError, match="until"):
                    await bank.submit(deposit, 1, 1, partition=0, until="done")  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="not materialized"):
                await bank.submit(deposit, 1, 1, partition=1)
            with pytest.raises(TypeError, match="Append or None"):
                await bank.submit(lambda state: 5, partition=0)  # type: ignore[arg-type,return-value]
            with pytest.raises(waltz.FeedBusyError):
                async with client.materialize(waltz.DictView(apply), [0]):
                    pass
        wrong: tuple[dict[str, Any], ...] = ({"on_poison": "ignore"}, {"batch_limit": 0}, {"max_in_flight": 0})
        for options in wrong:
            with pytest.raises(ValueError, match=r"on_poison is one of|is at least 1, not 0"):
                async with client.materialize(waltz.DictView(apply), [0], **options):
                    pass
        with pytest.raises(waltz.PartitionNotFoundError):
            client.materialize(waltz.DictView(apply), [5])


async def test_an_exception_of_decide_comes_out_and_the_slot_is_given_back() -> None:
    def broken(state: Any) -> waltz.Append:
        raise KeyError("x")

    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(waltz.DictView(apply), [0]) as bank:
            for _ in range(10):
                with pytest.raises(KeyError):
                    await bank.submit(broken, partition=0)
            assert await bank.submit(deposit, 1, 1, partition=0) is not None


@pytest.mark.parametrize("kind", ["dict", "sqlite"])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_what_is_no_ordinary_exception_of_decide_is_for_its_caller_alone(
    kind: str, error: BaseException, tmp_path: Path
) -> None:
    outcomes: list[object] = []

    async def main() -> None:
        def leaves(state: Any) -> waltz.Append:
            raise error

        sqlite = waltz.SqliteView(tmp_path / "bank.db", lambda txn, db: None)
        view: Any = sqlite if kind == "sqlite" else waltz.DictView(apply)
        async with (
            small_cluster() as cluster,
            waltz.open_client(cluster.url) as client,
            client.materialize(view, [0]) as bank,
        ):
            with trio.fail_after(20), pytest.raises(type(error)) as raised:
                await bank.submit(leaves, partition=0)
            assert raised.value is error

            async def submit(decide: Any) -> None:
                try:
                    outcomes.append(await bank.submit(decide, partition=0))
                except BaseException as caught:
                    outcomes.append(caught)

            with trio.fail_after(20):
                async with trio.open_nursery() as nursery:  # decided together
                    for decide in (leaves, lambda state: waltz.Append(b"1")):
                        nursery.start_soon(submit, decide)
            assert len(outcomes) == 2
            assert any(each is error for each in outcomes)
            assert any(isinstance(each, waltz.Receipt) for each in outcomes)

    trio.run(main)
    assert len(outcomes) == 2


def test_a_program_that_ends_itself_in_apply_ends_with_that() -> None:
    def leaves(txn: waltz.Transaction, state: Any) -> None:
        raise SystemExit(3)

    async def main() -> None:
        async with small_cluster() as cluster:
            cluster.commit(0, [b"x"])
            async with waltz.open_client(cluster.url) as client, client.materialize(waltz.DictView(leaves), [0]):
                await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as raised:  # of the nursery of the model cluster
        trio.run(main)
    (inner,) = raised.value.exceptions
    assert isinstance(inner, SystemExit)


# ---- declines and reads that know everything -----------------------------------------------------


class Held(waltz.DictView[Any]):
    """A view that takes nothing while it is held."""

    held = False

    def commit(self, batch: waltz.Batch) -> int:
        if self.held:
            raise ConnectionError("held")
        return super().commit(batch)

    def is_transient(self, error: Exception) -> bool:
        return isinstance(error, ConnectionError)


async def test_the_block_is_entered_when_the_view_has_caught_up() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        cluster.commit(0, [MOVE.dumps(Move(1, 1))] * 2500)
        async with client.materialize(waltz.DictView(apply), [0]) as bank:
            assert bank.mark(0) == 2499
            assert await bank.submit(withdraw, 1, 2500, partition=0, decline="local") is not None


async def test_progress_can_be_seen_from_outside_while_the_view_catches_up(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    view = Held(apply)
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        cluster.commit(0, [MOVE.dumps(Move(1, 1))] * 3)
        view.held = True
        bank = client.materialize(view, [0])
        entered = trio.Event()

        async def use() -> None:
            async with bank:
                assert bank.status(0).view_down is None
                entered.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(use)
            while bank.status(0).view_down is None or bank.status(0).committed_mark < 0:
                await trio.lowlevel.checkpoint()
            status = bank.status(0)
            assert (status.applied_mark, status.committed_mark, entered.is_set()) == (-1, 2, False)
            view.held = False
        assert entered.is_set()
        assert "partition 0: the view can be reached again" in caplog.text
        with pytest.raises(RuntimeError, match="entered once"):
            await bank.__aenter__()


class Late(Held):
    """Its mark cannot be read at first."""

    def load_mark(self, partition: int) -> int:
        self.held = not self.held
        if self.held:
            raise ConnectionError("late")
        return super().load_mark(partition)


async def test_a_view_that_was_down_is_up_again_although_there_is_nothing_to_apply(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(Late(apply), [0]) as bank:
            assert bank.status(0).view_down is None
    assert "partition 0: the view can be reached again" in caplog.text


async def test_catching_up_may_be_left_out() -> None:
    view = Held(apply)
    view.held = True
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        cluster.commit(0, [MOVE.dumps(Move(1, 1))])
        async with client.materialize(view, [0], catch_up=False) as bank:
            assert bank.mark(0) == -1
            assert await bank.submit(withdraw, 1, 1, partition=0, decline="local") is None


async def test_a_decline_on_a_view_that_lags_is_decided_again() -> None:
    """Somebody else's deposit was acknowledged before the call: the withdrawal must see it."""
    view, decided = Held(apply), trio.Event()

    def watched(state: dict[int, int]) -> waltz.Append | None:
        decided.set()
        return withdraw(state, 1, 5)

    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(view, [0]) as bank, waltz.open_client(cluster.url) as other:
            view.held = True
            await other.append(0, deposit(None, 1, 5))
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def release() -> None:
                    await decided.wait()
                    await trio.testing.wait_all_tasks_blocked()
                    view.held = False

                receipt = await bank.submit(watched, partition=0)
            assert receipt == waltz.Receipt(0, 1, 1, 0)
            assert balances(cluster) == {1: 0}


async def test_a_decline_that_is_right_is_confirmed_by_questions_that_calls_share() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(waltz.DictView(apply), [0]) as bank:
            asked = count_questions(cluster)
            results = await together(*[lambda: bank.submit(withdraw, 1, 5, partition=0)] * 100)
            assert results == [None] * 100
            assert 1 <= len(asked) <= 25, "five decide at a time, and share"


async def test_a_fresh_read_sees_what_was_acknowledged_before_it() -> None:
    view = Held(apply)
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(view, [0]) as bank:
            view.held = True
            await client.append(0, deposit(None, 1, 5))
            assert await bank.read(dict, partition=0) == ({}, -1)
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def release() -> None:
                    await trio.testing.wait_all_tasks_blocked()
                    view.held = False

                assert await bank.read(dict, partition=0, fresh=True) == ({1: 5}, 0)


async def test_a_fresh_read_of_a_database_that_lags_behind_its_writer_is_tried_again() -> None:
    class Lagging(waltz.DictView[dict[int, int]]):
        """Reads from another server than it writes to, which has nothing yet."""

        lags = 0

        def read(self, partition: int, decide: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
            self.lags -= 1
            return (decide({}, *args), -1) if self.lags >= 0 else super().read(partition, decide, args)

    view = Lagging(apply)
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(view, [0]) as bank:
            await bank.submit(deposit, 1, 5, partition=0, until="applied")
            view.lags = 2
            assert await bank.read(dict, partition=0, fresh=True) == ({1: 5}, 0)


async def test_a_server_that_does_not_answer_keeps_nobody_who_leaves() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(waltz.DictView(apply), [0]) as bank:
            cluster.nodes[0].deaf = True
            async with trio.open_nursery() as nursery:
                for call in (
                    lambda: bank.submit(withdraw, 1, 5, partition=0),
                    lambda: bank.caught_up(0),
                    lambda: bank.read(dict, partition=0, fresh=True),
                    lambda: client.committed_mark(1),
                ):
                    nursery.start_soon(call)
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            assert bank._parts[0].submitter.waiting == 0
        assert not client._reads._marks


async def test_whoever_still_waits_when_the_block_ends_is_told() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with trio.open_nursery() as nursery:
            async with client.materialize(waltz.DictView(apply), [0]) as bank:

                @nursery.start_soon
                async def wait() -> None:
                    with pytest.raises(waltz.ClientClosedError, match="block of the application has ended"):
                        await bank.caught_up(0, to=5)

                await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(waltz.ClientClosedError):
            await bank.submit(deposit, 1, 1, partition=0)
        with pytest.raises(waltz.ClientClosedError):
            await bank.read(dict, partition=0)
        with pytest.raises(RuntimeError, match="async with"):
            await client.materialize(waltz.DictView(apply), [0]).submit(deposit, 1, 1, partition=0)


# ---- following -----------------------------------------------------------------------------------


async def test_a_view_continues_where_it_was(tmp_path: Path) -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        cluster.commit(0, [MOVE.dumps(Move(1, 1))] * 2500)
        for _ in range(2):
            async with client.materialize(sqlite_view(tmp_path / "x.db"), [0]) as bank:
                await bank.caught_up(0)
                rows, _mark = await bank.read(lambda db: db.execute("SELECT * FROM balance").fetchall(), partition=0)
                assert rows == [(1, 2500)]
                await bank.caught_up(0, to=2499)


async def test_a_view_passes_over_markers_of_writers_and_its_mark_does_not(tmp_path: Path) -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(sqlite_view(tmp_path / "x.db"), [0]) as bank:
            for data, header in ((b"m", MARKER_HEADER), (MOVE.dumps(Move(1, 1)), 0), (b"m", MARKER_HEADER)):
                cluster.commit(0, [data], header=header)
                with trio.fail_after(60):
                    await bank.caught_up(0)
            assert bank.mark(0) == 2
            rows, mark = await bank.read(lambda db: db.execute("SELECT * FROM balance").fetchall(), partition=0)
            assert (rows, mark) == ([(1, 1)], 2)


async def test_a_mark_that_went_back_ends_the_application(tmp_path: Path) -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        path = tmp_path / "x.db"
        with pytest.raises(waltz.ViewRegressedError):
            async with client.materialize(sqlite_view(path), [0]) as bank:
                await bank.submit(deposit, 1, 1, partition=0, until="applied")
                restored = sqlite3.connect(path)
                restored.execute("UPDATE CLIENT_HIGH_WATER_MARK SET HIGH_WATER_MARK = -1")
                restored.commit()
                restored.close()
                await bank.submit(deposit, 1, 1, partition=0, until="applied")


def picky(txn: waltz.Transaction, state: dict[int, int]) -> None:
    if txn.load(MOVE).account == 13:
        raise ArithmeticError("unlucky")
    apply(txn, state)


async def test_a_transaction_that_cannot_be_applied_ends_the_application() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        view: waltz.DictView[Any] = waltz.DictView(picky)
        cluster.commit(0, [MOVE.dumps(Move(n, 1)) for n in (11, 12, 13, 14)])
        with pytest.raises(waltz.ApplyFailedError) as found:
            async with client.materialize(view, [0]):
                await trio.sleep_forever()
        assert (found.value.partition, found.value.transaction_id) == (0, 2)
        assert isinstance(found.value.__cause__, ArithmeticError)
        assert view.state == {11: 1, 12: 1}
        assert await client.append(1, waltz.Append(b"the client lives")) == 0


async def test_a_transaction_that_cannot_be_applied_may_pause_its_partition_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(waltz.DictView(picky), on_poison="pause") as bank:
            cluster.commit(0, [MOVE.dumps(Move(13, 1))])
            with pytest.raises(waltz.PartitionUnavailableError, match="paused"):
                await bank.caught_up(0)
            with pytest.raises(waltz.PartitionUnavailableError):
                await bank.submit(deposit, 1, 1, partition=0)
            assert bank.status(0).paused is not None
            assert await bank.submit(deposit, 1, 1, partition=1, until="applied") is not None
        assert "the partition is paused" in caplog.text
        assert caplog.text.count("unlucky") == 1


IN_THE_LOG = r"the append of this submit is in the log as transaction 0 of partition 0"
TWICE = ": to submit it again would append it a second time"


async def test_a_submit_that_the_view_cannot_apply_says_that_it_is_in_the_log() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(waltz.DictView(picky), on_poison="pause") as bank:
            with pytest.raises(waltz.PartitionUnavailableError, match=rf"{IN_THE_LOG}{TWICE}\. The view is paused: "):
                await bank.submit(deposit, 13, 1, partition=0, until="applied")
            assert len(cluster.logs[0].records) == 1
            with pytest.raises(waltz.PartitionUnavailableError, match=r"unavailable: paused") as nothing:
                await bank.submit(deposit, 14, 1, partition=0, until="applied")
            assert "in the log" not in str(nothing.value)
            with pytest.raises(waltz.PartitionUnavailableError) as many:
                await bank.submit_many(deposit, [(12, 1), (13, 1), (14, 1)], partition=1, until="applied")
            there = "of 3 submits, counted from 0, are in the log: 0 as transaction 0, 1 as transaction 1, 2 as "
            assert many.value.__notes__ == [f"{there}transaction 2"]
            with pytest.raises(waltz.PartitionUnavailableError) as none:
                await bank.submit_many(deposit, [(12, 1)], partition=1, until="applied")
            assert not hasattr(none.value, "__notes__")


async def test_a_submit_whose_block_ends_says_that_it_is_in_the_log() -> None:
    told: list[waltz.ClientClosedError] = []

    async def submit(bank: waltz.Application[Any]) -> None:
        with pytest.raises(waltz.ClientClosedError, match=IN_THE_LOG + TWICE) as found:
            await bank.submit(deposit, 13, 1, partition=0, until="applied")
        told.append(found.value)

    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client, trio.open_nursery() as nursery:
        with pytest.raises(waltz.ApplyFailedError):
            async with client.materialize(waltz.DictView(picky), [0]) as bank:
                nursery.start_soon(submit, bank)
                await trio.sleep_forever()
        with pytest.raises(waltz.ClientClosedError) as over:
            await bank.submit(deposit, 1, 1, partition=0)
        assert "in the log" not in str(over.value)
    assert len(told) == 1


@pytest.mark.parametrize(
    "lazy",
    [
        lambda db: db.execute("SELECT 1"),
        lambda db: (row for row in db.execute("SELECT 1")),
    ],
    ids=["cursor", "generator"],
)
async def test_a_read_that_would_go_on_behind_its_snapshot_is_refused(
    tmp_path: Path, lazy: Callable[[sqlite3.Cursor], Any]
) -> None:
    """Its rows came from whatever the view had become by then, and not from the state at the mark beside them."""
    view = waltz.SqliteView(tmp_path / "view.db", lambda txn, db: None)
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(view) as bank:
            with pytest.raises(TypeError, match=r"would read on when its snapshot is gone: return what it gives"):
                await bank.read(lazy, partition=0)
            assert await bank.read(lambda db: list(lazy(db)), partition=0) == ([(1,)], -1)


def first_row(state: Any, rows: list[int]) -> waltz.Append:
    return waltz.Append(bytes([next(iter(rows))]))


@pytest.mark.parametrize("threaded", [True, False])
async def test_an_iterator_that_has_nothing_left_is_told_as_what_it_is(tmp_path: Path, threaded: bool) -> None:
    """No coroutine can raise StopIteration: Python says "coroutine raised StopIteration", and not of which function."""
    view: waltz.View[Any] = waltz.DictView(lambda txn, state: None)
    if threaded:
        view = waltz.SqliteView(tmp_path / "view.db", lambda txn, db: None)
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(view) as bank:
            expected = r"decide .*first_row of .*, partition 0, raised StopIteration: .*write next\(ITERATOR, None\)"
            with pytest.raises(RuntimeError, match=expected) as failed:
                await bank.submit(first_row, [], partition=0)
            assert isinstance(failed.value.__cause__, StopIteration)
            with pytest.raises(RuntimeError, match=expected):
                await bank.submit_many(first_row, [([7],), ([],)], partition=0)
            with pytest.raises(RuntimeError, match=r"read .*first_row of .*, partition 0, raised StopIteration"):
                await bank.read(first_row, [], partition=0)


async def test_what_stands_before_a_transaction_that_cannot_be_applied_is_kept(tmp_path: Path) -> None:
    def seldom(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
        if txn.id == 2:
            raise ArithmeticError("poison")
        db.execute("INSERT INTO seen VALUES (?)", (txn.id,))

    view = waltz.SqliteView(tmp_path / "view.db", seldom, schema="CREATE TABLE IF NOT EXISTS seen (id INTEGER)")
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        cluster.commit(0, [b"a", b"b", b"c", b"d"])
        async with client.materialize(view, [0], on_poison="pause", catch_up=False) as app:
            with pytest.raises(waltz.PartitionUnavailableError, match="paused"):
                await app.caught_up(0)
            rows = await app.read(lambda db: db.execute("SELECT id FROM seen").fetchall(), partition=0)
    assert rows == ([(0,), (1,)], 1)


class Flaky(waltz.DictView[Any]):
    """A view whose database is away now and then."""

    def __init__(self) -> None:
        super().__init__(apply)
        self.away = 2
        self.unreadable = 2

    def commit(self, batch: waltz.Batch) -> int:
        if self.away:
            self.away -= 1
            raise ConnectionError("away")
        return super().commit(batch)

    def read(self, partition: int, decide: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
        if self.unreadable:
            self.unreadable -= 1
            raise ConnectionError("away")
        return super().read(partition, decide, args)

    def is_transient(self, error: Exception) -> bool:
        return isinstance(error, ConnectionError)


async def test_a_view_that_is_away_for_a_while_is_waited_for() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(Flaky(), [0]) as bank:
            await bank.submit(deposit, 1, 1, partition=0, until="applied")
            assert bank.status(0).view_down is None


async def test_the_limits_of_a_submit_hold_while_the_view_is_away(autojump_clock: trio.testing.MockClock) -> None:
    view = Flaky()
    view.away = view.unreadable = 0
    limits = {"attempts": waltz.Retry(attempts=3), "time": waltz.Retry(give_up_after=2.0)}
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(view, [0]) as bank:
            view.away = view.unreadable = 1 << 30
            for what, retry in limits.items():
                with trio.fail_after(60), pytest.raises(waltz.RetriesExhaustedError) as found:
                    await bank.submit(deposit, 1, 1, partition=0, retry=retry)
                assert isinstance(found.value.__cause__, ConnectionError)
                assert what != "attempts" or found.value.attempts == 3
            view.unreadable = 0
            await client.append(0, waltz.Append(MOVE.dumps(Move(1, 1)), append=[("account", 1)]))
            with trio.fail_after(60), pytest.raises(waltz.RetriesExhaustedError) as found:
                await bank.submit(touch, partition=0, retry=waltz.Retry(give_up_after=2.0))
            assert isinstance(found.value.__cause__, waltz.LockConflictError)
            with trio.fail_after(60), pytest.raises(waltz.RetriesExhaustedError) as found:
                await bank.submit(withdraw, 1, 1, partition=0, retry=waltz.Retry(give_up_after=2.0))
            assert "the view is down: away" in str(found.value.__cause__)
            assert bank.status(0).in_flight == bank.status(0).gated == 0


async def test_the_limits_of_a_submit_hold_in_every_partition(autojump_clock: trio.testing.MockClock) -> None:
    view = Flaky()
    view.away = view.unreadable = 0
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(view, [0, 1]) as bank:
            view.unreadable = 1 << 30
            for partition in (0, 1):
                with trio.fail_after(60), pytest.raises(waltz.RetriesExhaustedError):
                    await bank.submit(deposit, 1, 1, partition=partition, retry=waltz.Retry(give_up_after=2.0))


async def test_a_mark_that_cannot_be_loaded_right_now_is_waited_for() -> None:
    class Slow(Flaky):
        locked = 2

        def load_mark(self, partition: int) -> int:
            if self.locked:
                self.locked -= 1
                raise ConnectionError("locked")
            return super().load_mark(partition)

    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(Slow(), [0]) as bank:
            await bank.submit(deposit, 1, 1, partition=0, until="applied")
            assert bank.status(0).view_down is None


async def test_any_other_error_of_a_view_ends_the_application() -> None:
    class Broken(waltz.DictView[Any]):
        def commit(self, batch: waltz.Batch) -> int:
            raise MemoryError

    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        cluster.commit(0, [b"x"])
        with pytest.raises(waltz.ClientFailedError, match="the application failed") as found:
            async with client.materialize(Broken(apply), [0]):
                await trio.sleep_forever()
        assert isinstance(found.value.__cause__, MemoryError)


# ---- the gate ------------------------------------------------------------------------------------


async def test_many_submits_on_one_lock_commit_with_one_attempt_each() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(waltz.DictView(apply), [0]) as bank:
            receipts = await together(*[lambda: bank.submit(touch, partition=0)] * 60)
            assert balances(cluster) == {1: 60}
            assert [receipt.attempts for receipt in receipts] == [1] * 60


async def test_a_caller_that_goes_on_with_a_lock_waits_for_its_last_commit_in_the_view(tmp_path: Path) -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(sqlite_view(tmp_path / "bank.db"), [0]) as bank:
            for _ in range(20):
                receipt = await bank.submit(deposit, 1, 1, partition=0)
                assert receipt is not None
                assert (receipt.attempts, receipt.conflicts) == (1, 0)
            assert balances(cluster) == {1: 20}


async def test_locks_of_a_generator_are_kept_for_every_attempt() -> None:
    """Two clients, so that the server refuses some of them; what is decided together holds each lock once."""

    def decide(state: dict[int, int]) -> waltz.Append:
        return attrs.evolve(deposit(state, 1, 1), write=(("account", each) for each in (1, 2)))

    async with small_cluster() as cluster, contextlib.AsyncExitStack() as stack:
        banks = []
        for _ in range(2):
            client = await stack.enter_async_context(waltz.open_client(cluster.url))
            banks.append(await stack.enter_async_context(client.materialize(waltz.DictView(apply), [0])))
        receipts = await together(*[lambda bank=bank: bank.submit(decide, partition=0) for bank in banks * 20])
        assert balances(cluster) == {1: 40}
        assert sum(receipt.conflicts for receipt in receipts) > 0
        assert all(bank.status(0).gated == 0 for bank in banks)


async def test_an_append_that_was_sent_to_a_log_which_then_ends_before_the_client_is_not_tried_again() -> None:
    """Nobody knows whether it took place: deciding once more could do twice what was asked once."""
    ends: list[BaseException] = []
    decisions: list[int] = []

    def decide(state: Any) -> waltz.Append:
        decisions.append(len(state))
        return waltz.Append(b"1 1", write=[("account", 1)])

    async def submit(app: waltz.Application) -> None:
        try:
            await app.submit(decide, partition=0)
        except waltz.WaltzError as error:
            ends.append(error)

    async with small_cluster() as cluster:
        await cluster.start_server()
        cluster.commit(0, [b"1 5", b"1 5", b"1 5"])
        async with waltz.open_client(cluster.url) as client, trio.open_nursery() as nursery:
            with pytest.raises(waltz.ClientAheadError):
                async with client.materialize(waltz.DictView[Any](lambda txn, state: None), [0]) as app:
                    cluster.nodes[0].deaf = True
                    nursery.start_soon(submit, app)
                    while not client.status(0).in_flight:
                        await trio.testing.wait_all_tasks_blocked(0.01)
                    cluster.logs[0].records.clear()
                    cluster.give(0, 1)
                    await trio.sleep_forever()
        assert (decisions, cluster.logs[0].mark) == ([0], -1)
        assert [type(error) for error in ends] == [waltz.ClientAheadError]


async def test_a_server_that_tells_no_mark_says_so_to_those_who_need_it() -> None:
    def view() -> waltz.DictView[Any]:
        return waltz.DictView(lambda txn, state: None)

    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        server = cluster.nodes[0].server
        async with client.materialize(view(), [0]) as app:
            server.tells_no_marks = True
            with trio.fail_after(20):
                with pytest.raises(waltz.PartitionUnavailableError, match="may not read"):
                    await client.committed_mark(0)
                with pytest.raises(waltz.PartitionUnavailableError, match="may not read"):
                    await client.read(0, 0, 0)
                with pytest.raises(waltz.PartitionUnavailableError, match="may not read"):
                    await app.caught_up()
                with pytest.raises(waltz.PartitionUnavailableError, match="may not read"):
                    await app.read(dict, partition=0, fresh=True)
                with pytest.raises(waltz.PartitionUnavailableError, match="may not read"):
                    await app.submit(lambda state: None, partition=0)
                assert await app.submit(lambda state: None, partition=0, decline="local") is None
                await app.submit(lambda state: waltz.Append(b"x"), partition=0, until="applied")
                server.tells_no_marks = False
                await app.caught_up()
        server.tells_no_marks = True
        with trio.fail_after(20), pytest.raises(waltz.PartitionUnavailableError, match="may not read"):
            async with client.materialize(view(), [0]):
                pass

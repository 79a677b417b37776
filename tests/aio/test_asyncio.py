"""The client for asyncio on a real cluster: values, cancellation, time-outs, errors, and what is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest
import trio

import waltz_asyncio as waltz
from tests.sync.conftest import ClusterThread
from waltz_asyncio.bridge import enter, leave, look
from waltz_sync.held import Held
from waltz_sync.portal import Portal
from waltz_testing import running_cluster
from waltz_trio.client import at_work

TEXT = waltz.Utf8()
Body = Callable[[waltz.Client], Coroutine[Any, Any, None]]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "waltz_sync"]


def run(cluster: ClusterThread, body: Body) -> None:
    """A program of asyncio with a client; nothing is left of it."""

    async def main() -> None:
        async with waltz.open_client(cluster.url) as client:
            await body(client)
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    asyncio.run(main(), debug=True)
    assert threads() == []


def count(txn: waltz.Transaction, state: Any) -> None:
    state["applied"] = state.get("applied", 0) + 1


def add(state: Any, text: str) -> waltz.Append:
    return waltz.Append(text, TEXT, result=len(text))


def test_tasks_append_and_one_reads_all_of_it(cluster: ClusterThread) -> None:
    async def body(client: waltz.Client) -> None:
        before = await client.committed_mark(0)
        receipts = await asyncio.gather(*(client.append(0, waltz.Append(str(i), TEXT)) for i in range(50)))
        many = await client.append_many(0, (waltz.Append(str(i), TEXT) for i in range(50, 60)))
        committed = [each for each in many if isinstance(each, waltz.Receipt)]
        assert sorted([*receipts, *committed]) == list(range(before + 1, before + 61))
        pending = await client.send_many(1, (waltz.Append(str(i), TEXT) for i in range(5)))
        outcomes = await pending.outcomes()
        assert (len(pending), pending.done, pending.partition, outcomes.committed) == (5, True, 1, 5)
        texts = []
        async with client.feed(0, after=before) as feed:
            async for txn in feed:
                texts.append(txn.load(TEXT))
                if len(texts) == 30:
                    break
            assert feed.mark == before + 29, "the body for the last one did not end"
            async for batch in feed.batches(7):
                assert 1 <= len(batch) <= 7
                texts += [txn.load(TEXT) for txn in batch]
                if len(texts) == 60:
                    break
        assert sorted(texts, key=int) == [str(i) for i in range(60)]

    run(cluster, body)


def the_one(outcomes: Iterable[waltz.Receipt | Exception]) -> waltz.Receipt:
    (outcome,) = outcomes
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


async def by_append(client: waltz.Client, append: waltz.Append) -> waltz.Receipt:
    return await client.append(1, append)


async def by_append_many(client: waltz.Client, append: waltz.Append) -> waltz.Receipt:
    return the_one(await client.append_many(1, [append]))


async def by_send(client: waltz.Client, append: waltz.Append) -> waltz.Receipt:
    return await (await client.send(1, append)).outcome()


async def by_send_many(client: waltz.Client, append: waltz.Append) -> waltz.Receipt:
    return the_one(await (await client.send_many(1, [append])).outcomes())


@pytest.mark.parametrize("append", [by_append, by_append_many, by_send, by_send_many])
def test_an_append_in_the_loop_is_based_on_what_the_loop_has_done(
    append: Callable[[waltz.Client, waltz.Append], Coroutine[Any, Any, waltz.Receipt]], cluster: ClusterThread
) -> None:
    """Neither on what the feed has read ahead, nor on what it was asked for last."""
    way = append.__name__
    done, later = [waltz.Lock(f"done-{way}", 1)], [waltz.Lock(f"later-{way}", 1)]

    async def body(client: waltz.Client) -> None:
        first = await client.append(1, waltz.Append("a", TEXT, append=done))
        second = await client.append(1, waltz.Append("b", TEXT, append=later))
        async with client.feed(1, after=first - 1) as feed:
            assert (await anext(feed)).id == first
            with pytest.raises(waltz.LockConflictError) as caught:
                await append(client, waltz.Append("c", TEXT, write=later))
            assert caught.value.taken_by == second
            assert (await anext(feed)).id == second
            assert await append(client, waltz.Append("d", TEXT, write=done)) == second + 1

    run(cluster, body)


def test_payloads_are_fetched_when_they_are_asked_for(cluster: ClusterThread) -> None:
    async def body(client: waltz.Client) -> None:
        mark = await client.append(1, waltz.Append("late", TEXT))
        async with client.feed(1, after=mark - 1, prefetch=0) as feed:
            txn = await anext(feed)
            with pytest.raises(RuntimeError, match="fetch"):
                txn.load(TEXT)
            assert await txn.fetch() == b"late"
            assert txn.load(TEXT) == "late"

    run(cluster, body)


def test_tasks_that_expect_their_lock_are_decided_once_each(cluster: ClusterThread) -> None:
    asked: list[int] = []

    def touch(state: Any, number: int) -> waltz.Append:
        asked.append(number)
        return waltz.Append(str(number), TEXT, write=[("hot", 1)])

    async def body(client: waltz.Client) -> None:
        async with client.materialize(waltz.DictView(count), [1], max_in_flight=50) as app:
            lock = [("hot", 1)]
            await asyncio.gather(*(app.submit(touch, i, partition=1, expects=iter(lock)) for i in range(10)))
            await app.submit_many(touch, [(i,) for i in range(10, 20)], partition=1, expects=[lock] * 10)

    run(cluster, body)
    assert sorted(asked) == list(range(20))


def test_an_application_submits_reads_and_catches_up(cluster: ClusterThread) -> None:
    async def body(client: waltz.Client) -> None:
        async with client.materialize(waltz.DictView(count), [2]) as app:
            receipts = await asyncio.gather(*(app.submit(add, str(i), partition=2) for i in range(20)))
            assert {receipt.value for receipt in receipts if receipt is not None} == {1, 2}
            last = max(int(receipt or 0) for receipt in receipts)
            (applied, mark) = await app.read(lambda state: state["applied"], partition=2, fresh=True)
            assert mark == applied - 1 >= last
            await app.caught_up(2)
            assert app.mark(2) >= last
            assert app.status(2).in_flight == 0
            assert await app.submit(lambda state: None, partition=2) is None

    run(cluster, body)


def test_a_time_out_ends_the_call_and_the_client_goes_on(cluster: ClusterThread) -> None:
    async def body(client: waltz.Client) -> None:
        async with client.feed(3, after=waltz.TAIL) as feed:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(feed)
            assert len(client._portal._waiting) == 2, "the client and the feed; nothing of the call is left"
            await client.append(3, waltz.Append("now", TEXT))
            assert (await anext(feed)).load(TEXT) == "now"

    run(cluster, body)


def test_a_cancellation_that_meets_an_arrival_leaves_it_to_who_reads_on(cluster: ClusterThread) -> None:
    async def body(client: waltz.Client) -> None:
        before, portal = await client.committed_mark(3), client._portal
        async with client.feed(3, after=before) as feed:
            held = set(portal._waiting)
            reading = asyncio.ensure_future(anext(feed))
            await asyncio.sleep(0)
            # The loop stands still until the transaction is there, so that it hears of the cancellation first.
            appended, _ = portal.task(lambda: client._client.append(3, waltz.Append("met", TEXT)))
            assert appended.result() == before + 1
            while portal._waiting - held:
                pass
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert feed.mark == before
            await client.append(3, waltz.Append("next", TEXT))
            assert (await anext(feed)).load(TEXT) == "met"
            assert (await anext(feed)).load(TEXT) == "next"
            assert feed.mark == before + 1

    run(cluster, body)


def test_a_cancelled_task_waits_until_nothing_goes_on_behind_it_and_says_what_for(
    cluster: ClusterThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_work, "_NAMED_FROM", 0.0)
    ended: list[bool] = []

    async def body(client: waltz.Client) -> None:
        decide = threading.Event()

        def slow(txn: waltz.Transaction, db: Any) -> None:
            """Nothing can cancel a thread."""

        def deciding(state: Any) -> None:
            decide.set()
            resume.wait()
            ended.append(True)

        resume = threading.Event()
        async with client.materialize(waltz.SqliteView(tmp_path / "view.db", slow), [0]) as app:
            task = asyncio.ensure_future(app.submit(deciding, partition=0))
            await asyncio.to_thread(decide.wait)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
            resume.set()
            with pytest.raises(asyncio.CancelledError) as raised:
                await task
            assert ended == [True]
            (note,) = raised.value.__notes__
            assert note.startswith("meanwhile: decide tests.aio.test_asyncio.")
            assert "view.db, partition 0, ran for" in note

    run(cluster, body)


@pytest.mark.parametrize("way", ["entered", "left"])
def test_a_cancelled_task_waits_until_the_block_that_it_enters_or_leaves_has_ended(way: str) -> None:
    class Slow(contextlib.AbstractAsyncContextManager[None]):
        async def __aenter__(self) -> None:
            if way == "entered":
                await self._hold()

        async def __aexit__(self, *_: object) -> None:
            await self._hold()

        async def _hold(self) -> None:
            with trio.CancelScope(shield=True):
                await resume.wait()

    resume = trio.Event()

    async def main() -> None:
        portal = Portal()
        portal.start()
        try:
            held = Held(portal, Slow(), None)
            if way == "left":
                await enter(held, portal)
            task = asyncio.ensure_future(enter(held, portal) if way == "entered" else leave(held, None))
            await asyncio.sleep(0)
            for _ in range(3):
                task.cancel()
                await asyncio.sleep(0)
            assert not task.done()
            portal.post(resume.set)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert held.ended.done()
        finally:
            portal.post(resume.set)
            portal.stop()

    asyncio.run(main())


def test_an_exception_of_the_body_comes_out_as_it_is(cluster: ClusterThread) -> None:
    error = ValueError("mine")

    async def body(client: waltz.Client) -> None:
        async with client.feed(0, after=-1), client.materialize(waltz.DictView(count), [1]):
            raise error

    with pytest.raises(ValueError, match="mine") as caught:
        run(cluster, body)
    assert caught.value is error
    assert threads() == []


def test_a_cancelled_body_leaves_every_block(cluster: ClusterThread) -> None:
    async def body(client: waltz.Client) -> None:
        async with client.materialize(waltz.DictView(count), [1]):
            await asyncio.sleep(1000)

    async def main() -> None:
        async def hold() -> None:
            async with waltz.open_client(cluster.url) as client:
                entered.set()
                await body(client)

        entered = asyncio.Event()
        task = asyncio.create_task(hold())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert threads() == []


def test_a_client_whose_leaving_is_cancelled_leaves_nothing() -> None:
    async def main(cluster: ClusterThread) -> None:
        async def hold() -> None:
            async with waltz.open_client(cluster.url) as client:
                await client.ready([0])
                cluster.kill_server()
                await client.send(0, waltz.Append(b"x"))
                leaving.set()

        leaving = asyncio.Event()
        task = asyncio.create_task(hold())
        await leaving.wait()
        assert threads() == ["waltz_sync"], "it waits for an outcome that no server tells"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with running_cluster(partitions=1) as cluster:
        asyncio.run(main(cluster))
        assert threads() == []


def test_a_feed_that_is_left_is_forgotten(cluster: ClusterThread) -> None:
    async def body(client: waltz.Client) -> None:
        async with client.feed(3, after=-1):
            pass
        assert look(client._portal, dict, client._feeds) == {}

    run(cluster, body)


def test_an_application_that_cannot_go_on_says_so(cluster: ClusterThread) -> None:
    def poisoned(txn: waltz.Transaction, state: Any) -> None:
        if txn.data_is_poison:  # type: ignore[attr-defined]
            raise AssertionError

    async def body(client: waltz.Client) -> None:
        await client.append(1, waltz.Append("x", TEXT))
        with pytest.raises(waltz.ApplyFailedError) as caught:
            async with client.materialize(waltz.DictView(poisoned), [1], catch_up=False) as app:
                await app.caught_up(1)
        assert isinstance(caught.value.__cause__, AttributeError)
        assert int(await client.append(1, waltz.Append("the client goes on", TEXT))) >= 1

    run(cluster, body)


def test_nobody_at_the_address_is_an_error_and_leaves_nothing() -> None:
    async def main() -> None:
        with pytest.raises(waltz.ClientFailedError, match=r"127\.0\.0\.1:1"):
            async with waltz.open_client("waltz://127.0.0.1:1?verify=off"):
                raise AssertionError

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(bounded())
    assert threads() == []


def test_a_cancelled_opening_leaves_nothing() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), waltz.open_client("waltz://127.0.0.1:1?verify=off"):
                raise AssertionError

    asyncio.run(main())
    assert threads() == []


# ---- what is no use of it ------------------------------------------------------------------------------------------


def test_wrong_uses_say_what_to_write(cluster: ClusterThread) -> None:
    async def body(client: waltz.Client) -> None:
        with (
            pytest.raises(TypeError, match=r"write: async with open_client\(\.\.\.\) as client:"),
            waltz.open_client(cluster.url),
        ):
            pass
        with pytest.raises(TypeError, match="something to await"):
            await waltz.open_client(cluster.url)
        with pytest.raises(AttributeError, match=r"has no 'append' before it is entered; write: async with"):
            waltz.open_client(cluster.url).append  # noqa: B018
        app = client.materialize(waltz.DictView(count), [0])
        with pytest.raises(RuntimeError, match=r"not open; write: async with client\.materialize"):
            await app.caught_up()

        async def decide(state: Any) -> None:
            raise AssertionError

        async with client.materialize(waltz.DictView(count), [0]) as entered:
            with pytest.raises(TypeError, match="decide is a plain function here"):
                await entered.submit(decide, partition=0)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="function is a plain function here"):
                await entered.read(decide, partition=0)

    run(cluster, body)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_forgotten_await_is_an_error_when_the_block_is_left(cluster: ClusterThread) -> None:
    async def body(client: waltz.Client) -> None:
        async with client.materialize(waltz.DictView(count), [0]) as app:
            client.append(0, waltz.Append(b"x"))  # type: ignore[unused-coroutine]
            client.send(0, waltz.Append(b"x"))  # type: ignore[unused-coroutine]
            client.append_many(0, [waltz.Append(b"x")])  # type: ignore[unused-coroutine]
            client.send_many(0, [waltz.Append(b"x")])  # type: ignore[unused-coroutine]
            app.submit(add, "x", partition=0)  # type: ignore[unused-coroutine]
            app.submit_many(add, [("x",)], partition=0)  # type: ignore[unused-coroutine]
            await app.submit(add, "x", partition=0)
            await app.submit_many(add, [("x",)], partition=0)
        await (await client.send_many(0, [waltz.Append(b"x")])).outcomes()
        await client.append_many(0, [waltz.Append(b"x")])

    with pytest.raises(
        RuntimeError, match=r"6 calls of append, send or submit, or of their _many, .*await app\.submit"
    ):
        run(cluster, body)
    assert threads() == []


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_forgotten_await_does_not_hide_what_the_body_raised(cluster: ClusterThread) -> None:
    async def body(client: waltz.Client) -> None:
        client.append(0, waltz.Append(b"x"))  # type: ignore[unused-coroutine]
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        run(cluster, body)
    assert threads() == []


def test_a_task_that_is_cancelled_before_its_first_step_is_no_forgotten_await(cluster: ClusterThread) -> None:
    async def body(client: waltz.Client) -> None:
        before = await client.committed_mark(0)
        tasks = [
            asyncio.create_task(client.append(0, waltz.Append(b"x"))),
            asyncio.create_task(client.send(0, waltz.Append(b"x"))),
            asyncio.create_task(client.send_many(0, [waltz.Append(b"x")])),
        ]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        client.append(0, waltz.Append(b"x")).close()
        receipt = await asyncio.wait_for(client.append(0, waltz.Append(b"x")), 30)
        assert receipt.transaction_id == before + 1

    run(cluster, body)


def test_a_block_that_is_not_entered_shows_the_line(cluster: ClusterThread) -> None:
    async def body(client: waltz.Client) -> None:
        feed: Any = client.feed(0, after=-1)
        with pytest.raises(TypeError, match=r"entered first; write: async with client\.feed"):
            async for _ in feed:
                pass
        with pytest.raises(TypeError, match=r"entered first; write: async with client\.feed"):
            iter(feed)

    run(cluster, body)


async def test_trio_is_not_asyncio(cluster: ClusterThread) -> None:
    with pytest.raises(RuntimeError, match="Trio runs here: use waltz_trio"):
        async with waltz.open_client(cluster.url):
            pass


def test_without_a_loop_the_other_fronts_are_named(cluster: ClusterThread) -> None:
    made = waltz.open_client(cluster.url).__aenter__()
    with pytest.raises(RuntimeError, match="asyncio does not run here"):
        made.send(None)


def test_calls_after_the_block_say_that_it_is_over(cluster: ClusterThread) -> None:
    async def main() -> None:
        async with waltz.open_client(cluster.url) as client:
            pass
        with pytest.raises(waltz.ClientClosedError):
            await client.append(0, waltz.Append(b"late"))

    asyncio.run(main())


def test_outcomes_that_are_known_are_told_after_the_block(cluster: ClusterThread) -> None:
    async def main() -> None:
        async with waltz.open_client(cluster.url) as client:
            one = await client.send(0, waltz.Append(b"x"))
            many = await client.send_many(0, [waltz.Append(b"x")] * 2)
        assert (one.done, many.done) == (True, True), "the block has waited for them"
        first = await one.outcome()
        assert list((await many.outcomes()).runs()) == [(0, first + 1, 2)]

    asyncio.run(main())


FORK = """
import asyncio, os, sys, warnings
import waltz_asyncio as waltz

warnings.simplefilter("ignore", DeprecationWarning)

def in_the_child(client, app, pending):
    async def calls():
        for call in (
            lambda: client.append(0, waltz.Append(b"child")),
            lambda: app.submit(lambda state: None, partition=1),
            pending.outcome,
        ):
            try:
                await call()
            except waltz.WrongProcessError as error:
                assert "forked from it" in str(error) and "open_client in each process" in str(error), error
            else:
                return 1
        async with waltz.open_client(sys.argv[1]) as own:
            await own.append(0, waltz.Append(b"child"))
        return 0
    asyncio.events._set_running_loop(None)  # of the parent
    os._exit(asyncio.run(calls()))

async def main():
    async with waltz.open_client(sys.argv[1]) as client:
        pending = await client.send(0, waltz.Append(b"parent"))
        await pending.outcome()
        async with client.materialize(waltz.DictView(lambda txn, state: None), [1]) as app:
            child = os.fork()
            if not child:
                in_the_child(client, app, pending)
            assert os.waitpid(child, 0)[1] == 0
            await client.append(0, waltz.Append(b"the parent goes on"))
    print("done")

asyncio.run(main())
"""


def test_a_forked_process_is_refused_and_leaves_the_parent_alone(cluster: ClusterThread) -> None:
    command = [sys.executable, "-X", "dev", "-W", "ignore::ResourceWarning", "-c", textwrap.dedent(FORK), cluster.url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stdout + done.stderr

"""The client for threads on a real cluster: values, marks, time-outs, errors, and what is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import waltz_sync as waltz
from tests.sync.conftest import ClusterThread
from waltz_sync.held import Held
from waltz_sync.portal import Portal
from waltz_testing import running_cluster

TEXT = waltz.Utf8()
REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("REQUEST", default="none")


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "waltz_sync"]


@pytest.fixture
def client(cluster: ClusterThread) -> Iterator[waltz.Client]:
    with waltz.open_client(cluster.url) as client:
        yield client
    assert threads() == []


def texts(client: waltz.Client, partition: int, after: int, count: int) -> list[str]:
    found: list[str] = []
    with client.feed(partition, after=after) as feed:
        for txn in feed:
            found.append(txn.load(TEXT))
            if len(found) == count:
                break
    return found


def count(txn: waltz.Transaction, state: Any) -> None:
    state["applied"] = state.get("applied", 0) + 1


def add(state: Any, text: str) -> waltz.Append:
    return waltz.Append(text, TEXT, result=REQUEST.get())


def test_several_threads_append_and_one_reads_all_of_it(client: waltz.Client) -> None:
    before = client.committed_mark(0)

    def work(number: int) -> list[int]:
        return [int(client.append(0, waltz.Append(f"{number}-{i}", TEXT))) for i in range(20)]

    with ThreadPoolExecutor(4) as pool:
        ids = [found for each in pool.map(work, range(4)) for found in each]
    assert sorted(ids) == list(range(before + 1, before + 81))
    assert sorted(texts(client, 0, before, 80)) == sorted(f"{number}-{i}" for number in range(4) for i in range(20))
    assert client.committed_mark(0) == before + 80
    client.ready()
    assert client.status(0).phase is waltz.Phase.MOUNTED


def test_the_mark_moves_after_the_body(client: waltz.Client) -> None:
    before = client.committed_mark(1)
    many = client.append_many(1, [waltz.Append(str(i), TEXT) if i % 2 else b"%d" % i for i in range(200)])
    assert [int(found) for found in many if isinstance(found, waltz.Receipt)] == list(range(before + 1, before + 201))
    with client.feed(1, after=before) as feed:
        for txn in feed:
            assert feed.mark == txn.id - 1
            if txn.id == before + 100:
                break
        assert feed.mark == before + 99
        batch = next(feed.batches(5))
        assert (batch.first_id, feed.mark, len(batch) <= 5) == (before + 101, before + 100, True)


def test_many_are_sent_and_waited_for_later(client: waltz.Client) -> None:
    taken = client.append(1, waltz.Append("a", TEXT, append=[("sync-many", 1)]))
    appends = [waltz.Append(str(i), TEXT, write=[("sync-many", 1)] if i == 1 else ()) for i in range(3)]
    pending = client.send_many(1, iter(appends), based_on=taken - 1)
    assert (len(pending), pending.partition) == (3, 1)
    outcomes = pending.outcomes(timeout=30)
    assert pending.done
    assert list(outcomes.runs()) == [(0, taken + 1, 1), (2, taken + 2, 1)]
    refused = outcomes[1]
    assert isinstance(refused, waltz.LockConflictError)
    assert (refused.lock, refused.taken_by) == (waltz.Lock("sync-many", 1), taken)


def the_one(outcomes: Iterable[waltz.Receipt | Exception]) -> waltz.Receipt:
    (outcome,) = outcomes
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


WAYS: dict[str, Callable[[waltz.Client, waltz.Append], waltz.Receipt]] = {
    "append": lambda client, append: client.append(1, append),
    "append_many": lambda client, append: the_one(client.append_many(1, [append])),
    "send": lambda client, append: client.send(1, append).outcome(),
    "send_many": lambda client, append: the_one(client.send_many(1, [append]).outcomes()),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_append_in_the_loop_is_based_on_what_the_loop_has_done(way: str, client: waltz.Client) -> None:
    """Neither on what the feed has read ahead, nor on what it was asked for last."""
    append = WAYS[way]
    done, later = [waltz.Lock(f"done-{way}", 1)], [waltz.Lock(f"later-{way}", 1)]
    first = client.append(1, waltz.Append("a", TEXT, append=done))
    second = client.append(1, waltz.Append("b", TEXT, append=later))
    with client.feed(1, after=first - 1) as feed:
        assert next(feed).id == first
        with pytest.raises(waltz.LockConflictError) as caught:
            append(client, waltz.Append("c", TEXT, write=later))
        assert caught.value.taken_by == second
        assert next(feed).id == second
        assert append(client, waltz.Append("d", TEXT, write=done)) == second + 1


def test_a_payload_that_was_not_prefetched_is_fetched_through_the_feed(client: waltz.Client) -> None:
    receipt = client.append(1, waltz.Append("later", TEXT))
    with client.feed(1, after=receipt - 1, prefetch=0) as feed:
        txn = next(feed)
        with pytest.raises(TypeError, match=r"feed\.fetch\(txn\)"):
            txn.fetch()  # type: ignore[unused-coroutine]
        with pytest.raises(RuntimeError, match=r"was not fetched: use `feed\.fetch\(txn\)`, or prefetch"):
            txn.load(TEXT)
        assert (feed.fetch(txn), txn.load(TEXT)) == (b"later", "later")


def test_sends_flush_and_outcomes(client: waltz.Client) -> None:
    pendings = [client.send(1, waltz.Append(str(i), TEXT)) for i in range(3)]
    client.flush(1, timeout=60)
    assert all(pending.done for pending in pendings)
    first = int(pendings[0].outcome(timeout=0))
    assert [int(pending.outcome()) for pending in pendings] == [first, first + 1, first + 2]


# ---- applications ----------------------------------------------------------------------------------


def apply_sql(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
    db.execute("INSERT INTO entry VALUES (?, ?)", (txn.id, txn.load(TEXT)))


def once(db: sqlite3.Cursor, text: str) -> waltz.Append | None:
    if db.execute("SELECT 1 FROM entry WHERE text = ?", (text,)).fetchone():
        return None
    return waltz.Append(text, TEXT, write=[("entry", int(text))], result=REQUEST.get())


def total(db: sqlite3.Cursor) -> int:
    found: int = db.execute("SELECT count(*) FROM entry").fetchone()[0]
    return found


def test_threads_that_submit_the_same_commit_it_once(client: waltz.Client, tmp_path: Path) -> None:
    view = waltz.SqliteView(tmp_path / "view.db", apply_sql, schema="CREATE TABLE IF NOT EXISTS entry (id, text)")
    with client.materialize(view, [2]) as app, ThreadPoolExecutor(4) as pool:
        before, _ = app.read(total, partition=2)
        receipts = list(pool.map(lambda i: app.submit(once, str(i % 5), partition=2, until="applied"), range(20)))
        assert sum(receipt is not None for receipt in receipts) == 5
        assert app.read(total, partition=2, fresh=True) == (before + 5, app.mark(2))
        app.caught_up(timeout=60)
        assert app.status(2).applied_mark == app.mark(2)


def test_threads_that_expect_their_lock_are_decided_once_each(client: waltz.Client) -> None:
    asked: list[int] = []

    def touch(state: Any, number: int) -> waltz.Append:
        asked.append(number)
        return waltz.Append(str(number), TEXT, write=[("hot", 1)])

    def expected() -> Iterator[tuple[str, int]]:
        where.add(threading.current_thread().name)
        yield ("hot", 1)

    where: set[str] = set()
    with client.materialize(waltz.DictView(count), [2], max_in_flight=50) as app, ThreadPoolExecutor(4) as pool:
        receipts = list(pool.map(lambda i: app.submit(touch, i, partition=2, expects=expected()), range(20)))
        others = app.submit_many(
            touch, [(i,) for i in range(20, 40)], partition=2, expects=(expected() for _ in range(20))
        )
    assert len({receipt for receipt in (*receipts, *others) if isinstance(receipt, waltz.Receipt)}) == 40
    assert sorted(asked) == list(range(40))
    assert "waltz_sync" not in where, "a generator runs in the thread of its caller"


def test_decide_runs_in_the_context_of_its_caller(client: waltz.Client, tmp_path: Path) -> None:
    token = REQUEST.set("request 17")
    try:
        with client.materialize(waltz.DictView(count), [3]) as app:
            receipt = app.submit(add, "x", partition=3)
        assert receipt is not None
        assert receipt.value == "request 17"
    finally:
        REQUEST.reset(token)


def test_what_decide_raises_comes_out_as_it_is(client: waltz.Client) -> None:
    error = LookupError("mine")

    def decide(state: Any) -> waltz.Append:
        raise error

    async def wrong(state: Any) -> None: ...

    with client.materialize(waltz.DictView(count), [3]) as app:
        with pytest.raises(LookupError) as caught:
            app.submit(decide, partition=3)
        assert caught.value is error
        with pytest.raises(RuntimeError, match="must not call the client"):
            app.submit(lambda state: waltz.Append(str(client.append(3, waltz.Append("x", TEXT))), TEXT), partition=3)
        with pytest.raises(TypeError, match="plain function"):
            app.submit(wrong, partition=3)  # type: ignore[arg-type]


def test_a_view_that_cannot_go_on_ends_its_block_with_the_reason(client: waltz.Client) -> None:
    def apply(txn: waltz.Transaction, state: Any) -> None:
        raise ZeroDivisionError

    def wait_for_the_end(app: waltz.Application[Any]) -> None:
        while True:
            app.submit(add, "x", partition=3, until="applied")

    app = client.materialize(waltz.DictView(apply), [3], catch_up=False)
    with pytest.raises(RuntimeError, match=r"with client\.materialize"):
        app.caught_up()
    with pytest.raises(waltz.ApplyFailedError) as caught, app:
        wait_for_the_end(app)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert client.append(3, waltz.Append("the client stays", TEXT)) > 0


# ---- time-outs -------------------------------------------------------------------------------------


def test_after_a_time_out_the_outcome_can_be_had_from_a_pending(cluster: ClusterThread, client: waltz.Client) -> None:
    before = client.append(0, waltz.Append("before", TEXT))
    with client.materialize(waltz.DictView(count), [1]) as app:
        cluster.tell(cluster.cluster.kill_server, 0)
        try:
            pending = client.send(0, waltz.Append("meanwhile", TEXT), timeout=60)
            with pytest.raises(TimeoutError, match=r"outcome is unknown.*outcome\(\) again"):
                pending.outcome(timeout=0.01)
            with pytest.raises(TimeoutError, match=r"outcome is unknown.*client\.send"):
                client.append(0, waltz.Append("unknown", TEXT), timeout=0.01)
            with pytest.raises(TimeoutError, match="may commit yet"):
                app.submit(add, "unknown", partition=1, timeout=0.01)
            with pytest.raises(TimeoutError, match="no server"):
                client.committed_mark(3, timeout=0.01)
            with pytest.raises(TimeoutError, match="flush"):
                client.flush(timeout=0.01)
        finally:
            cluster.tell(cluster.cluster.restart_server, 0)
        try:
            receipt = pending.outcome(timeout=120)
        except waltz.NotCommittedError:  # the partition has a new generation: what is not in the log by then never is
            receipt = None
        client.flush(timeout=120)  # the other one is in the log, or is not; it has an outcome
        mark = client.committed_mark(0, timeout=120)
    found = texts(client, 0, before, mark - before) if mark > before else []
    assert found.count("meanwhile") == (receipt is not None)
    assert receipt is None or found[receipt - before - 1] == "meanwhile"


def test_whatever_waits_says_after_its_time_what_that_means() -> None:
    view = waltz.DictView[Any](count)
    with (
        running_cluster(partitions=2) as cluster,
        waltz.open_client(cluster.url) as client,
        client.materialize(view, [0], timeout=60) as app,
        client.feed(1, after=-1, prefetch=0) as feed,
    ):
        client.append(1, waltz.Append("x", TEXT))
        txn = next(feed)
        cluster.kill_server()
        while client.status(1).phase is waltz.Phase.MOUNTED:
            with pytest.raises(TimeoutError):
                client.committed_mark(1, timeout=0.01)
        append = waltz.Append("y", TEXT)
        now: dict[str, Any] = {"timeout": 0.01}
        many = client.send_many(1, [append])
        calls: list[tuple[Callable[[], object], str]] = [
            (lambda: client.ready(**now), "not every partition is mounted"),
            (lambda: client.read(1, 0, 0, **now), "not all of them could be read"),
            (lambda: client.append_many(1, [append], **now), "the outcomes are unknown"),
            (lambda: many.outcomes(**now), "some outcomes are unknown yet"),
            (lambda: next(feed.batches(5, **now)), "no further transaction has come"),
            (lambda: feed.fetch(txn, **now), "the payload has not come"),
            (lambda: app.caught_up(**now), "the view has not caught up"),
            (lambda: app.read(dict, partition=0, fresh=True, **now), "the state could not be read"),
            (lambda: app.submit_many(add, [("z",)], partition=0, **now), "some submits have no outcome"),
        ]
        for call, text in calls:
            with pytest.raises(TimeoutError, match=f"after 0.01 s: {text}"):
                call()
        client._client._appends._send_window = 1  # less than is under way
        for call, text in (
            (lambda: client.send(1, append, **now), "nothing was appended"),
            (lambda: client.send_many(1, [append], **now), "the outcomes are unknown"),
        ):
            with pytest.raises(TimeoutError, match=f"after 0.01 s: {text}"):
                call()
        cluster.restart_server()


def test_a_feed_goes_on_after_a_time_out(client: waltz.Client) -> None:
    mark = client.committed_mark(2)
    with client.feed(2, after=mark, timeout=0.01) as feed:
        with pytest.raises(TimeoutError, match="iterate again"):
            next(feed)
        client.append(2, waltz.Append("now", TEXT))
        found = None
        while found is None:
            try:
                found = next(feed)
            except TimeoutError:
                continue
        assert (found.load(TEXT), feed.mark) == ("now", mark)


def test_batches_have_the_time_out_of_their_feed_or_their_own_and_none_at_all_is_one(client: waltz.Client) -> None:
    late = threading.Timer(60, lambda: client.append(2, waltz.Append("so that nobody waits for ever", TEXT)))
    with client.feed(2, after=waltz.TAIL, timeout=0) as hurried:
        late.start()
        for feed in (hurried, hurried.batches(5), hurried.batches(5, timeout=0.01)):
            with pytest.raises(TimeoutError, match="no further transaction has come"):
                next(feed)
    late.cancel()
    with client.feed(2, after=waltz.TAIL) as patient:
        batches = patient.batches(5, timeout=0)
        with pytest.raises(TimeoutError, match="no further transaction has come"):
            next(batches)
        found = client.append(2, waltz.Append("x", TEXT))
        assert next(patient).id == found


def test_an_interrupt_that_meets_an_arrival_leaves_it_to_who_reads_on(
    client: waltz.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(future: Future[Any], seconds: float) -> None:
        future.result()
        raise KeyboardInterrupt

    first = client.append(2, waltz.Append("met", TEXT))
    with client.feed(2, after=first - 1) as feed:
        with monkeypatch.context() as patched:
            patched.setattr(client._portal, "patient_result", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(feed)
        assert feed.mark == first - 1
        client.append(2, waltz.Append("next", TEXT))
        assert next(feed).load(TEXT) == "met"
        assert next(feed).load(TEXT) == "next"


@pytest.mark.parametrize("timeout", [-1, float("nan"), True, "2"])
def test_a_time_out_is_a_number_of_seconds(client: waltz.Client, timeout: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="timeout is"):
        client.committed_mark(0, timeout=timeout)
    with client.feed(0, after=-1) as feed, pytest.raises((TypeError, ValueError), match="timeout is"):
        feed.batches(5, timeout=timeout)


def test_nobody_answers() -> None:
    with (
        pytest.raises(TimeoutError, match="has not answered"),
        waltz.open_client("waltz://127.0.0.1:9?verify=off", timeout=0.01),
    ):
        raise AssertionError
    with pytest.raises(waltz.ConfigError), waltz.open_client("waltz://nowhere"):
        raise AssertionError
    assert threads() == []


# ---- the end ---------------------------------------------------------------------------------------


def test_the_exception_of_the_body_comes_out_bare(cluster: ClusterThread) -> None:
    error = LookupError("mine")
    with (
        pytest.raises(LookupError) as caught,
        waltz.open_client(cluster.url) as client,
        client.materialize(waltz.DictView(count), [0]),
        client.feed(1, after=-1),
    ):
        raise error
    assert caught.value is error
    assert error.__cause__ is None
    assert not hasattr(error, "__notes__")
    assert threads() == []


def test_use_after_the_block_is_refused(cluster: ClusterThread) -> None:
    with waltz.open_client(cluster.url) as client:
        pending = client.send(0, waltz.Append("x", TEXT))
        receipt = pending.outcome()
        several = client.send_many(0, [waltz.Append("x", TEXT)] * 2)
        with client.materialize(waltz.DictView(count), [1]) as app:
            pass
        with pytest.raises(waltz.ClientClosedError):
            app.caught_up()
        with client.feed(0, after=receipt) as feed:
            pass
        with pytest.raises(waltz.ClientClosedError, match="not open"):
            next(feed)
    calls: list[Callable[[], object]] = [
        lambda: client.append(0, waltz.Append("x", TEXT)),
        lambda: client.status(0),
        lambda: client.feed(0, after=-1),
        lambda: client.materialize(waltz.DictView(count)),
        lambda: app.submit(add, "x", partition=1),
        client.flush,
    ]
    for call in calls:
        with pytest.raises(waltz.ClientClosedError):
            call()
    assert pending.outcome() == receipt
    assert list(several.outcomes(timeout=0).runs()) == [(0, receipt + 1, 2)], "the block has waited for them"


def test_a_block_that_is_entered_while_its_client_ends_says_that_it_was_closed() -> None:
    """The client waits for the blocks within it that it knows of when it is left; its thread then ends all the same."""
    portal = Portal()
    portal.start()
    held = Held(portal, contextlib.nullcontext("entered"), None)
    assert held.enter(None, "") == "entered"
    portal.stop()
    with pytest.raises(waltz.ClientClosedError):
        held.leave(None)


class Noted(contextlib.AbstractAsyncContextManager[str]):
    """A block of Trio that notes how it is left, and may fail then."""

    def __init__(self, name: str, left: list[Any], failure: Exception | None = None, *, slow: bool = False) -> None:
        self._name, self._left, self._failure, self._slow = name, left, failure, slow

    async def __aenter__(self) -> str:
        return self._name

    async def __aexit__(self, *raised: Any) -> None:
        if self._slow:
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
        self._left.append((self._name, raised[1]))
        if self._failure is not None:
            raise self._failure


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal()
    portal.start()
    yield portal
    portal.stop()


@pytest.mark.parametrize("error", [LookupError("mine"), KeyboardInterrupt(), None], ids=repr)
def test_a_block_is_left_in_its_thread_as_it_was_left_here(portal: Portal, error: BaseException | None) -> None:
    """A client that is left by an exception does not wait for appends under way."""
    left: list[Any] = []
    held = Held(portal, Noted("block", left), None)
    assert held.enter(None, "") == "block"
    held.leave(error)
    assert left == [("block", error)]


def test_a_client_is_left_behind_every_block_within_it(portal: Portal) -> None:
    left: list[Any] = []
    outer = Held(portal, Noted("client", left), None)
    outer.enter(None, "")
    inner = Held(portal, Noted("feed", left, slow=True), outer)
    inner.enter(None, "")
    outer.leave(None)
    assert [name for name, _ in left] == ["feed", "client"]


def test_a_client_that_fails_says_so_to_whoever_calls_it_later(portal: Portal) -> None:
    failure = ValueError("broke")
    held = Held(portal, Noted("client", [], failure), None)
    held.enter(None, "")
    with pytest.raises(ValueError, match="broke"):
        held.leave(None)
    portal.stop()
    with pytest.raises(waltz.ClientFailedError, match="broke") as failed:
        portal.look(len, "")
    assert failed.value.__cause__ is failure


def test_a_block_that_fails_is_no_failure_of_the_client_around_it(portal: Portal) -> None:
    client = Held(portal, Noted("client", []), None)
    client.enter(None, "")
    application = Held(portal, Noted("application", [], ValueError("broke")), client)
    application.enter(None, "")
    with pytest.raises(ValueError, match="broke"):
        application.leave(None)
    client.leave(None)
    assert isinstance(portal.closed(), waltz.ClientClosedError)


def test_an_exception_of_the_body_says_what_the_block_raised_meanwhile(portal: Portal) -> None:
    error = LookupError("mine")
    held = Held(portal, Noted("application", [], ValueError("broke")), None)
    held.enter(None, "")
    held.leave(error)  # the body's comes out of `with` by itself
    assert error.__notes__ == ["meanwhile the block ended by ValueError('broke')"]


@pytest.mark.parametrize("consequence", [waltz.ClientClosedError("x"), waltz.ClientFailedError("x")])
def test_an_exception_of_the_body_that_came_of_the_block_gives_way_to_its_reason(
    portal: Portal, consequence: Exception
) -> None:
    held = Held(portal, Noted("application", [], ValueError("broke")), None)
    held.enter(None, "")
    with pytest.raises(ValueError, match="broke"):
        held.leave(consequence)


def test_a_feed_that_is_left_is_forgotten(client: waltz.Client) -> None:
    with client.feed(3, after=-1):
        pass
    assert client._portal.look(dict, client._feeds) == {}


def test_a_feed_at_the_tail_has_no_mark_before_its_first_transaction(client: waltz.Client) -> None:
    with client.feed(3, after=waltz.TAIL) as feed:
        with pytest.raises(RuntimeError, match="no mark before its first transaction"):
            feed.mark  # noqa: B018
        found = client.append(3, waltz.Append("x", TEXT))
        assert next(feed).id == found


def test_whoever_still_waits_is_let_go_when_the_block_ends(cluster: ClusterThread) -> None:
    def read(client: waltz.Client, begun: threading.Event) -> None:
        with client.feed(3, after=waltz.TAIL) as feed:
            begun.set()
            for _ in feed:
                pass

    def hold(client: waltz.Client, begun: threading.Event) -> None:
        with client.materialize(waltz.DictView(count), [2]) as app:
            begun.set()
            app.caught_up(to=1 << 40)

    with ThreadPoolExecutor(2) as pool:
        with waltz.open_client(cluster.url) as client:
            both = []
            for work in (read, hold):
                begun = threading.Event()
                both.append(pool.submit(work, client, begun))
                begun.wait()
        for waiting in both:
            with pytest.raises(waltz.ClientClosedError):
                waiting.result()
    assert threads() == []


# ---- wrong places ----------------------------------------------------------------------------------


def test_it_is_refused_inside_trio_and_asyncio(cluster: ClusterThread, client: waltz.Client) -> None:
    async def use() -> None:
        with pytest.raises(RuntimeError, match=r"blocks its thread.*to_thread"):
            client.status(0)
        with pytest.raises(RuntimeError, match=r"blocks its thread.*to_thread"):
            waltz.open_client(cluster.url).__enter__()

    trio.run(use)
    asyncio.run(use())
    assert client.status(0).partition == 0


def test_the_right_line_is_shown(cluster: ClusterThread, client: waltz.Client) -> None:
    async def use() -> None:
        async with waltz.open_client(cluster.url):
            pass

    with pytest.raises(TypeError, match=r"write: with open_client"):
        trio.run(use)
    with pytest.raises(AttributeError, match=r"write: with open_client"):
        waltz.open_client(cluster.url).append  # noqa: B018
    with pytest.raises(AttributeError, match=r"write: with client.feed"):
        client.feed(0, after=-1).mark  # noqa: B018
    app = client.materialize(waltz.DictView(count), [0])
    for call in (lambda: app.submit(add, "x", partition=0), lambda: app.submit_many(add, [("x",)], partition=0)):
        with pytest.raises(RuntimeError, match=r"not open; write: with client\.materialize"):
            call()

"""The public client against the model cluster, over real sockets and TLS."""

# ruff: noqa: PT012, SIM117 - what leaves a block is exactly what is tested
from __future__ import annotations

import gc
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import waltz_trio as waltz
from tests.trio.small_cluster import SmallCluster, small_cluster
from waltz_core.base.edge import Received
from waltz_core.base.ids import ReqId, make_req_id
from waltz_core.base.log import MARKER_HEADER
from waltz_core.client.calls import Failed, Fetch, Forget, Reason
from waltz_core.client.columns import NO_LOCKS, Columns
from waltz_core.client.link import Kind
from waltz_core.client.node import ClientNode
from waltz_core.wire.client_messages import AppendRequest, FeedData
from waltz_trio.client import many
from waltz_trio.client.connect import parse_url, read_config, run_client
from waltz_trio.client.life import Life
from waltz_trio.client.values import lock_hashes

RAW = waltz.Append(b"raw")


class Watcher:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def committed(self, partition: int, count: int) -> None:
        self.told.append(("committed", partition, count))

    def failed(self, partition: int, reason: str) -> None:
        self.told.append(("failed", partition, reason))

    def delivered(self, partition: int, count: int) -> None:
        self.told.append(("delivered", partition, count))

    def applied(self, partition: int, count: int, seconds: float) -> None:
        self.told.append(("applied", partition, count))

    def conflict(self, partition: int, blocking_id: int) -> None:
        self.told.append(("conflict", partition, blocking_id))


# ---- appends -----------------------------------------------------------------------------------


async def test_an_append_is_committed_once_and_its_id_returned() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        assert (client.cluster, client.client_id, client.num_partitions) == ("small", 1, 2)
        assert await client.append(0, waltz.Append("text", waltz.Utf8(), header=3)) == 0
        assert await client.append(0, RAW) == 1
        assert [(made.data, made.header) for made in cluster.logs[0].records] == [(b"text", 3), (b"raw", 0)]


async def test_sends_commit_in_order_and_their_outcomes_are_kept() -> None:
    watcher = Watcher()
    async with small_cluster() as cluster, waltz.open_client(cluster.url, instrument=watcher) as client:
        pendings = [await client.send(1, waltz.Append(b"%d" % n)) for n in range(300)]
        await client.flush(1)
        assert all(pending.done for pending in pendings)
        assert [await pending.outcome() for pending in pendings] == list(range(300))
        assert [made.data for made in cluster.logs[1].records] == [b"%d" % n for n in range(300)]
        assert sum(entry[2] for entry in watcher.told if entry[0] == "committed") == 300
        await client.flush()
        await client.flush(0)


async def test_an_append_beside_no_other_is_sent_at_once_and_others_are_gathered() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        await client.append(0, RAW)
        pump = client._life.post_now.__self__  # type: ignore[attr-defined]
        steps = pump.steps
        pendings = [await client.send(0, RAW)]
        assert pump.steps == steps + 1
        pendings += [await client.send(0, RAW) for _ in range(3)]
        assert pump.steps == steps + 1
        for pending in pendings:
            await pending.outcome()

        steps = pump.steps
        await client.send(0, RAW)
        assert pump.steps == steps, "several were judged together: more may come beside this one"


async def test_an_append_gives_a_receipt_with_what_it_hands_out() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        assert await client.append(1, waltz.Append(b"a", result="A")) == waltz.Receipt(1, 0, value="A")
        pending = await client.send(1, waltz.Append(b"b", result=["B"]))
        receipt = await pending.outcome()
        assert (receipt.transaction_id, receipt.partition, receipt.attempts, receipt.value) == (1, 1, 1, ["B"])
        assert await client.append(1, waltz.Append(b"c", write=[("x", 1)]), based_on=receipt) == 2


async def test_many_appends_are_waited_for_at_once_and_judged_each_for_itself() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        await client.append(0, waltz.Append(b"taken", append=[("x", 1)]))
        appends = [waltz.Append(b"%d" % n, write=[("x", 1)] if n == 500 else [], result=n) for n in range(1000)]
        outcomes = await client.append_many(0, iter(appends), based_on=-1)
        refused = outcomes.pop(500)
        assert isinstance(refused, waltz.LockConflictError)
        assert outcomes == [waltz.Receipt(0, at + 1, value=at + (at >= 500)) for at in range(999)]
        assert [made.data for made in cluster.logs[0].records][1:3] == [b"0", b"1"]
        assert await client.append_many(0, []) == []
        assert not client._appends.unjudged


async def test_many_sends_have_one_waiter_and_outcomes_by_runs() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        await client.append(0, waltz.Append(b"taken", append=[("x", 1)]))
        appends = [waltz.Append(b"%d" % n, write=[("x", 1)] if n in (500, 501) else []) for n in range(1500)]
        pending = await client.send_many(0, iter(appends), based_on=-1)
        assert (len(pending), pending.partition) == (1500, 0)
        single = await client.send(0, waltz.Append(b"behind"))
        outcomes = await pending.outcomes()
        assert pending.done
        assert await pending.outcomes() == outcomes
        assert list(outcomes.runs()) == [(0, 1, 500), (502, 501, 998)]
        assert (len(outcomes), outcomes.committed, sorted(outcomes.errors)) == (1500, 1498, [500, 501])
        assert isinstance(outcomes[501], waltz.LockConflictError)
        assert outcomes[-2:] == [waltz.Receipt(0, 1497), waltz.Receipt(0, 1498)]
        assert outcomes == list(outcomes)
        assert repr(outcomes[:1]) == repr([waltz.Receipt(0, 1)])
        assert await single.outcome() == 1499
        assert not client._appends.under_way
        assert client._appends.unjudged_size == 0


async def test_many_sends_with_the_same_tuple_of_locks_have_each_of_them() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        await client.append(0, waltz.Append(b"taken", append=[("x", 1)]))
        free, taken, once = (("y", 2),), (("x", 1),), iter([("x", 1)])
        appends = [waltz.Append(b"%d" % n, read=taken if 300 <= n < 600 else free) for n in range(900)]
        appends += [waltz.Append(b"once", read=once), waltz.Append(b"again", read=once)]  # the second has no lock
        outcomes = await client.append_many(0, appends, based_on=-1)
        refused = [at for at, outcome in enumerate(outcomes) if isinstance(outcome, waltz.LockConflictError)]
        assert refused == [*range(300, 600), 900]
        assert [made.data for made in cluster.logs[0].records][-1] == b"again"


async def test_bytes_among_many_appends_are_payloads_without_header_and_locks() -> None:
    class Text(bytes):
        pass

    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        rows: list[waltz.Append | bytes] = [
            b"a",
            waltz.Append(b"b", header=2, append=[("x", 1)], result=7),
            b"",
            Text(b"c"),
            *[b"d"] * 600,
        ]
        for given in (rows, iter(rows)):
            outcomes = await client.append_many(0, given, based_on=-1)
            assert [outcome.value for outcome in outcomes if isinstance(outcome, waltz.Receipt)] == [None, 7] + [
                None
            ] * 602
        records = cluster.logs[0].records
        assert [(made.data, made.header) for made in records] == [
            (b"a", 0),
            (b"b", 2),
            (b"", 0),
            (b"c", 0),
            *[(b"d", 0)] * 600,
        ] * 2
        wrong: Any = [b"a", bytearray(b"b")]
        with pytest.raises(TypeError, match="expected an Append, found bytearray"):
            await client.send_many(0, wrong)
        with pytest.raises(ValueError, match="bytes"):
            await client.send_many(0, [b"a", bytes((16 << 20) + 1)])
        await client.flush()
        assert cluster.logs[0].mark == 1207


async def test_appends_and_reading_leave_nothing_to_the_garbage_collector() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        await client.append(0, RAW)
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            pending = await client.send(0, waltz.Append(b"x", append=[("x", 1)]))
            together = await client.send_many(0, [b"payload", RAW] * 20)
            assert (await together.outcomes()).committed == 40
            assert await pending.outcome() == 1
            async with client.feed(0, after=-1) as feed:
                async for batch in feed.batches(21):
                    if batch.last_id == 41:
                        break
            gc.collect()
            left = [
                each
                for each in gc.garbage
                if isinstance(each, waltz.Pending | waltz.PendingMany | waltz.Transaction | Columns)
            ]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert left == []


async def test_outcomes_by_runs_part_where_others_committed_in_between() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        first = await client.send_many(0, [waltz.Append(b"a"), waltz.Append(b"b")])
        await client.send(0, waltz.Append(b"alone"))
        second = await client.send_many(0, [waltz.Append(b"c")])
        assert list((await first.outcomes()).runs()) == [(0, 0, 2)]
        assert list((await second.outcomes()).runs()) == [(0, 3, 1)]
        assert list((await (await client.send_many(0, [])).outcomes()).runs()) == []
    found = many.Outcomes(0, [3, 4, 9, 10, 12], {}, {})
    assert list(found.runs()) == [(0, 3, 2), (2, 9, 2), (4, 12, 1)]


@pytest.mark.parametrize("made", [list, tuple, deque, lambda appends: dict(enumerate(appends)).values()])
@pytest.mark.parametrize("bad", [0, 2, 600, 1100])
async def test_nothing_is_sent_of_a_list_with_an_append_that_cannot_be_sent(
    made: Callable[[list[waltz.Append]], Iterable[waltz.Append]], bad: int
) -> None:
    appends = [waltz.Append(b"%d" % at, read=[("x", at)]) for at in range(1101)]
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        for call in (client.append_many, client.send_many):
            broken = [*appends]
            broken[bad] = waltz.Append(math.nan, waltz.Json())
            with pytest.raises(ValueError, match="NaN") as error:
                await call(0, made(broken), based_on=-1)
            assert error.value.__notes__ == [f"append {bad} of 1101, counted from 0, cannot be sent: none of them was"]
            await client.flush()
            assert not client._appends.under_way
            assert cluster.logs[0].mark == -1
        outcomes = await client.append_many(0, made(appends), based_on=-1)
        assert outcomes == [waltz.Receipt(0, at) for at in range(1101)]


async def test_results_of_a_list_are_those_of_each_append() -> None:
    appends = [waltz.Append(b"%d" % at, waltz.Raw() if at % 7 else waltz.Utf8(), result=at) for at in range(1101)]
    appends = [waltz.Append("x", waltz.Utf8(), result=at) if at % 7 == 0 else each for at, each in enumerate(appends)]
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        outcomes = await client.append_many(0, appends)
        assert [outcome.value for outcome in outcomes if isinstance(outcome, waltz.Receipt)] == [*range(1101)]


async def test_what_comes_out_of_an_iterator_before_an_append_that_cannot_be_sent_is_sent() -> None:
    def made() -> Iterator[waltz.Append]:
        yield RAW
        raise LookupError

    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        with pytest.raises(TypeError) as wrong:
            await client.send_many(0, iter([RAW, RAW, waltz.Append("text"), RAW]))
        assert wrong.value.__notes__ == ["append 2, counted from 0, cannot be sent: the 2 before it are under way"]
        await client.flush()
        with pytest.raises(TypeError) as late:
            await client.send_many(0, iter([*[RAW] * 600, waltz.Append("text")]))
        assert late.value.__notes__ == ["append 600, counted from 0, cannot be sent: the 600 before it are under way"]
        with pytest.raises(TypeError) as first:
            await client.send_many(0, iter([waltz.Append("text")]))
        assert first.value.__notes__ == ["append 0, counted from 0, cannot be sent: none was sent"]
        with pytest.raises(LookupError) as maker:
            await client.append_many(0, made())
        assert maker.value.__notes__ == ["append 1, counted from 0, cannot be made: the 1 before it are under way"]
        with pytest.raises(waltz.PartitionNotFoundError):
            await client.send_many(99, [RAW])
        with pytest.raises(ValueError, match="based_on"):
            await client.send_many(0, [RAW], based_on=-2)
        await client.flush()
        assert cluster.logs[0].mark == 602


async def test_many_sends_wait_while_too_many_bytes_are_under_way() -> None:
    async with small_cluster() as cluster:
        setup = read_config(cluster.url)
        narrow = attrs.evolve(setup, limits=attrs.evolve(setup.limits, send_window=1000))
        async with run_client(narrow) as client:
            pending = await client.send_many(0, [waltz.Append(b"x" * 400)] * 1200)
            assert len(pending) == 1200
            assert client._appends.unjudged_size <= 1 << 20
            assert (await pending.outcomes()).committed == 1200


async def test_many_sends_of_a_client_that_is_left_by_an_exception_have_an_unknown_outcome(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with small_cluster() as cluster:
        with pytest.raises(LookupError):
            async with waltz.open_client(cluster.url) as client:
                await client.ready([0])
                cluster.nodes[0].held = True
                pending = await client.send_many(0, [RAW] * 3)
                raise LookupError
        with pytest.raises(waltz.ClientClosedError, match="unknown"):
            await pending.outcomes()
        assert "3 appends whose outcome is unknown" in caplog.text
        assert not client._appends.under_way


def test_rows_whose_outcome_is_known_are_not_counted_as_unknown() -> None:
    """They would be failed once more when the client ends, and `outcomes` would then wait without end."""
    pending, columns = waltz.PendingMany(0), Columns()
    for data in (b"a", b"b", b"c"):
        columns.add(0, data, NO_LOCKS)
    rows = many.Rows(pending, 10, columns, 3, None)
    assert rows.unjudged() == [10, 11, 12]
    assert rows.committed([(10, 5)], 0) == 1
    rows.failed(12, waltz.NotCommittedError(0, "lost"), "lost")
    assert rows.unjudged() == [11]
    assert (rows.left, pending.done) == (1, False)
    assert rows.committed([(11, 6)], 0) == 1
    assert (rows.left, pending.done) == (0, True)


async def test_leaving_waits_for_many_sends_too() -> None:
    async with small_cluster() as cluster:
        async with waltz.open_client(cluster.url) as client:
            pending = await client.send_many(0, [RAW] * 2000)
        assert list((await pending.outcomes()).runs()) == [(0, 0, 2000)]


async def test_a_flush_that_is_cancelled_leaves_no_waiter() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        await client.ready([0])
        cluster.nodes[0].deaf = True
        await client.send(0, RAW)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.flush)
            await trio.testing.wait_all_tasks_blocked()
            assert client._appends._flushes
            nursery.cancel_scope.cancel()
        assert not client._appends._flushes
        cluster.nodes[0].deaf = False
        client._appends.unjudged.clear()


async def test_sends_wait_while_too_many_bytes_are_under_way() -> None:
    async with small_cluster() as cluster:
        setup = read_config(cluster.url)
        narrow = attrs.evolve(setup, limits=attrs.evolve(setup.limits, send_window=1000))
        async with run_client(narrow) as client:
            for _ in range(100):
                await client.send(0, waltz.Append(b"x" * 400))
                assert client._appends.unjudged_size < 1400
            await client.flush()
            assert cluster.logs[0].mark == 99


@asynccontextmanager
async def following(cluster: SmallCluster, client: waltz.Client) -> AsyncIterator[Callable[[], None]]:
    """A feed of partition 0 that goes on beside the body, which gets what takes the lock for somebody else."""
    (lock,) = lock_hashes([("x", 1)])

    def take_the_lock() -> None:
        log = cluster.logs[0]
        log.commit(AppendRequest(make_req_id(999, 1, 0, 1), log.mark, (lock,), (), (), 0, b"", 0))
        cluster.wake()

    async def follow(feed: waltz.Feed) -> None:
        async for _ in feed:
            pass

    async with client.feed(0, after=-1, prefetch=0) as feed, trio.open_nursery() as nursery:
        nursery.start_soon(follow, feed)
        yield take_the_lock
        nursery.cancel_scope.cancel()


Sends = Callable[[waltz.Client, list[waltz.Append]], Awaitable[object]]


async def _send_one(client: waltz.Client, appends: list[waltz.Append]) -> object:
    return await (await client.send(0, appends[0])).outcome()


@pytest.mark.parametrize(
    "send",
    [
        _send_one,
        lambda client, appends: client.append_many(0, appends),
        lambda client, appends: client.append_many(0, iter(appends)),
    ],
)
async def test_an_append_that_waits_for_room_is_based_on_what_its_caller_knew(send: Sends) -> None:
    async with small_cluster() as cluster, trio.open_nursery() as nursery:
        await cluster.start_server()
        cluster.give(1, 1)
        setup = read_config(cluster.url)
        narrow = attrs.evolve(setup, limits=attrs.evolve(setup.limits, send_window=100))
        async with run_client(narrow) as client, following(cluster, client) as take_the_lock:
            await client.append(0, RAW)
            while client._reads.mark_for(0) < 0:
                await trio.lowlevel.checkpoint()
            cluster.nodes[1].muted = True
            await client.send(1, waltz.Append(b"x" * 200))
            told: list[object] = []

            async def late() -> None:
                try:
                    told.append(await send(client, [waltz.Append(b"late", write=[("x", 1)])]))
                except waltz.LockConflictError as error:
                    told.append([error])

            nursery.start_soon(late)
            await trio.testing.wait_all_tasks_blocked(0.01)
            take_the_lock()
            with trio.fail_after(20):
                while client._reads.mark_for(0) < 1:
                    await trio.lowlevel.checkpoint()
                cluster.nodes[1].muted = False
                cluster.wake(1)
                while not told:
                    await trio.lowlevel.checkpoint()
            assert [[type(error) for error in each] for each in told] == [[waltz.LockConflictError]]  # type: ignore[attr-defined]


async def test_appends_of_an_iterator_are_based_on_what_was_known_when_they_came_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with following(cluster, client) as take_the_lock:
            sends = client._appends._may_send

            async def may_send() -> None:
                await sends()
                if client._reads.mark_for(0) < 0:
                    take_the_lock()
                    while client._reads.mark_for(0) < 0:
                        await trio.lowlevel.checkpoint()

            monkeypatch.setattr(client._appends, "_may_send", may_send)
            with trio.fail_after(20):
                some = (waltz.Append(b"%d" % place, write=[("x", 1)]) for place in range(2))
                told = await client.append_many(0, some)
            assert [type(each) for each in told] == [waltz.LockConflictError] * 2


class _Meanwhile(waltz.Raw):
    """While this one is encoded the feed goes on."""

    def __init__(self, act: Callable[[], None]) -> None:
        object.__setattr__(self, "act", act)

    def dumps(self, value: bytes) -> bytes:
        self.act()  # type: ignore[attr-defined]
        return value


async def test_appends_of_a_list_are_based_on_what_was_known_when_the_call_began() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with following(cluster, client) as take_the_lock, client.feed(1, after=-1):

            def go_on() -> None:
                take_the_lock()
                client._reads._feeds[0]._mark = 0

            some = [waltz.Append(b"%d" % place, header=place) for place in range(599)]
            some[3] = waltz.Append(b"", _Meanwhile(go_on))
            some.append(waltz.Append(b"last", write=[("x", 1)]))
            with trio.fail_after(20):
                told = await client.append_many(0, some)
            assert isinstance(told[-2], waltz.Receipt)
            assert isinstance(told[-1], waltz.LockConflictError)


async def test_a_send_that_would_wait_for_room_is_refused_at_once_where_no_mark_is_known() -> None:
    async with small_cluster() as cluster:
        await cluster.start_server()
        cluster.give(1, 1)
        setup = read_config(cluster.url)
        narrow = attrs.evolve(setup, limits=attrs.evolve(setup.limits, send_window=100))
        async with run_client(narrow) as client:
            await client.append(1, RAW)
            cluster.nodes[1].muted = True
            await client.send(1, waltz.Append(b"x" * 200))
            with trio.fail_after(20):
                with pytest.raises(ValueError, match="based_on"):
                    await client.send(0, waltz.Append(b"late", write=[("x", 1)]))
            cluster.nodes[1].muted = False
            cluster.wake(1)
            await client.flush()


@pytest.mark.parametrize("given", [list, iter])
async def test_many_appends_are_not_based_on_a_mark_that_was_not_known_when_they_came(
    given: Callable[[list[waltz.Append]], Iterable[waltz.Append]],
) -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        await client.append(0, RAW)
        async with client.feed(0, after=waltz.TAIL):

            def go_on() -> None:
                client._reads._feeds[0]._mark = 0

            some = [waltz.Append(b"", _Meanwhile(go_on)), waltz.Append(b"", write=[("x", 1)])]
            with trio.fail_after(20), pytest.raises(ValueError, match="based_on") as refused:
                await client.append_many(0, given(some))
            assert "append 1" in refused.value.__notes__[0]
            assert await client.append_many(0, given(some[1:])) == [2 if given is iter else 1]


async def test_a_flush_of_a_client_that_has_ended_says_so() -> None:
    async with small_cluster() as cluster:
        async with waltz.open_client(cluster.url) as client:
            await client.append(0, RAW)
        for partition in (None, 0):
            with trio.fail_after(20), pytest.raises(waltz.ClientClosedError):
                await client.flush(partition)


async def test_appends_that_are_refused_are_not_under_way_any_more() -> None:
    async with small_cluster() as cluster:
        setup = read_config(cluster.url)
        narrow = attrs.evolve(setup, limits=attrs.evolve(setup.limits, send_window=1000))
        taken = waltz.Append(b"x" * 400, write=[("x", 1)])
        async with run_client(narrow) as client:
            await client.append(0, waltz.Append(b"taken", append=[("x", 1)]))
            with trio.fail_after(60):
                for _ in range(10):
                    await client.send(0, taken, based_on=-1)
                    refused = await client.append_many(0, [taken] * 3, based_on=-1)
                    assert [type(each) for each in refused] == [waltz.LockConflictError] * 3
                await client.flush()
            assert client._appends.unjudged_size == 0


async def test_a_lock_that_was_taken_is_a_conflict_once_the_blocking_transaction_was_seen() -> None:
    watcher = Watcher()
    async with small_cluster() as cluster, waltz.open_client(cluster.url, instrument=watcher) as client:
        await client.append(0, waltz.Append(b"1", append=[("stock", 12)]))
        with pytest.raises(waltz.LockConflictError) as found:
            await client.append(0, waltz.Append(b"2", write=[("stock", 12)]), based_on=-1)
        assert found.value.blocking_id == 0
        assert ("failed", 0, "lock") in watcher.told
        assert await client.append(0, waltz.Append(b"2", write=[("stock", 12)], read=[("x", 1)]), based_on=0) == 1


@pytest.mark.parametrize("reason", [Reason.REFUSED, Reason.NOT_NOW, Reason.OTHER, Reason.OVERTAKEN, Reason.FLUSHED])
def test_what_a_server_would_refuse_again_is_told_from_what_another_one_may_take(reason: Reason) -> None:
    """A server that was succeeded and does not know it yet refuses the mark of its successor (OTHER)."""
    node: ClientNode = None  # type: ignore[assignment]  # not asked
    error = Life(node).error_of(Failed(0, object(), reason), NO_LOCKS)
    assert isinstance(error, waltz.NotCommittedError)
    assert error.refused is (reason is Reason.REFUSED)


async def test_locks_without_a_state_they_could_refer_to_are_refused() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        with pytest.raises(ValueError, match="based_on"):
            await client.append(0, waltz.Append(b"", write=[("a", 1)]))
        async with client.feed(0, after=waltz.TAIL) as feed:
            with pytest.raises(ValueError, match="based_on"):
                await client.append(0, waltz.Append(b"", read=[("a", 1)]))
            with pytest.raises(RuntimeError, match="no mark before"):
                _ = feed.mark
        async with client.feed(0, after=-1):
            assert await client.append(0, waltz.Append(b"", write=[("a", 1)])) == 0


async def test_impossible_appends_are_refused_before_they_are_sent() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        with pytest.raises(waltz.PartitionNotFoundError, match="0 to 1"):
            await client.append(2, RAW)
        with pytest.raises(waltz.PartitionNotFoundError):
            client.feed(-1, after=-1)
        with pytest.raises(ValueError, match=r"server\.payloadSizeMax"):
            await client.append(0, waltz.Append(bytes((16 << 20) + 1)))
        with pytest.raises(ValueError, match="32 bits"):
            await client.append(0, waltz.Append(b"", header=1 << 31))
        with pytest.raises(ValueError, match="at least -1"):
            client.feed(0, after=-2)
        with pytest.raises(ValueError, match="prefetch"):
            client.feed(0, after=-1, prefetch=-1)


async def test_a_lost_append_is_told_as_safe_to_repeat() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        await client.ready([0])
        server = cluster.nodes[0].server
        server.loses = lambda request: request.data == b"lost"
        pending = await client.send(0, waltz.Append(b"lost"))
        assert await client.append(0, waltz.Append(b"found")) == 0
        with pytest.raises(waltz.NotCommittedError, match="safe to send it again"):
            await pending.outcome()


async def test_cancelling_a_wait_does_not_lose_the_outcome_from_the_books() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        await client.ready([0])
        cluster.nodes[0].held = True
        with trio.move_on_after(0.05):
            await client.append(0, RAW)
        assert client.status(0).in_flight == 1
        cluster.nodes[0].held = False
        cluster.wake()
        await client.flush(0)
        assert client.status(0).in_flight == 0


# ---- feeds -------------------------------------------------------------------------------------


async def test_a_feed_gives_every_transaction_once_in_order() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        cluster.commit(0, [b"%d" % n for n in range(500)], header=4)
        seen = []
        async with client.feed(0, after=99) as feed:
            async for txn in feed:
                seen.append((txn.partition, txn.id, txn.header, txn.load()))
                if txn.id == 499:
                    break
        assert seen == [(0, n, 4, b"%d" % n) for n in range(100, 500)]
        assert feed.mark == 498, "the body of the last one did not end"


async def test_the_mark_moves_when_the_body_has_ended() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        cluster.commit(0, [b"a", b"b", b"c"])
        async with client.feed(0, after=-1) as feed:
            assert feed.mark == -1
            async for txn in feed:
                assert feed.mark == txn.id - 1
                if txn.id == 2:
                    break
        with pytest.raises(RuntimeError, match="not open"):
            await feed.__anext__()


async def test_batches_hold_what_has_arrived() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        cluster.commit(0, [b"%d" % n for n in range(250)])
        got: list[waltz.Batch] = []
        async with client.feed(0, after=-1, prefetch=16) as feed:
            async for batch in feed.batches(100):
                assert feed.mark == batch.first_id - 1
                got.append(batch)
                if batch.last_id == 249:
                    break
        assert [txn.load() for batch in got for txn in batch] == [b"%d" % n for n in range(250)]
        assert max(map(len, got)) <= 100
        assert len(got) < 50
        with pytest.raises(ValueError, match="at least 1"):
            feed.batches(0)


async def test_markers_of_writers_are_passed_over_and_move_the_mark() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        for data, header in ((b"m", MARKER_HEADER), (b"a", 1), (b"m", MARKER_HEADER), (b"m", MARKER_HEADER), (b"b", 2)):
            cluster.commit(0, [data], header=header)
        async with client.feed(0, after=-1) as feed:
            assert (await feed.__anext__()).load() == b"a"
            assert feed.mark == 0
            assert (await feed.__anext__()).load() == b"b"
            assert feed.mark == 3
        async with client.feed(0, after=-1, prefetch=4) as feed:
            batches = [await feed.batches(10).__anext__() for _ in range(2)]
            assert [(batch.first_id, batch.last_id) for batch in batches] == [(1, 1), (4, 4)]
        async with client.feed(0, after=-1) as feed:
            feed.markers = True
            assert [(await feed.__anext__()).load() for _ in range(5)] == [b"m", b"a", b"m", b"m", b"b"]
        assert client._reads._slots == {}


async def test_only_one_feed_of_a_partition_at_a_time() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.feed(0, after=-1), client.feed(1, after=-1):
            with pytest.raises(waltz.FeedBusyError):
                async with client.feed(0, after=-1):
                    pass
        async with client.feed(0, after=-1):
            pass


async def test_a_feed_at_the_tail_gives_only_what_is_new() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        cluster.commit(0, [b"old"] * 10)
        async with client.feed(0, after=waltz.TAIL) as feed:
            await client.append(0, waltz.Append(b"new"))
            txn = await feed.__anext__()
            assert (txn.id, txn.load()) == (10, b"new")


def unread(cluster: SmallCluster, client: waltz.Client) -> Received:
    """What a server that is muted has to say over the connection of feeds, as if the client had just read it."""
    ((number, conn),) = [(number, conn) for number, conn in cluster.nodes[0].conns.items() if conn.net_seq is not None]
    data = bytes(conn.out)
    conn.out.clear()
    assert data, number
    (mine,) = [conn for conn in range(-9, 0) if client._node.link_kind(conn) is Kind.STREAM]
    return Received(mine, data)


@pytest.mark.parametrize("appended", [False, True])
async def test_a_feed_that_is_entered_behind_another_gets_nothing_that_is_meant_for_that(appended: bool) -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        if appended:
            await client.append(0, RAW)
        cluster.commit(0, [b"x"] * 4)
        async with client.feed(0, after=-1, prefetch=0) as feed:
            assert [(await anext(feed)).id for _ in range(3)] == [0, 1, 2]
            await trio.testing.wait_all_tasks_blocked(0.01)
            cluster.nodes[0].muted = True
            cluster.commit(0, [b"y"])
            while not cluster.nodes[0].owes:
                await trio.lowlevel.checkpoint()
            cluster.nodes[0].muted = False
            client._life.post(unread(cluster, client))
        async with client.feed(0, after=1, prefetch=0) as feed:
            with trio.fail_after(20):
                assert [(await anext(feed)).id for _ in range(3)] == [2, 3, 4]


async def test_a_feed_that_is_entered_behind_another_does_not_fail_for_that() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        await client.append(0, RAW)
        cluster.nodes[0].muted = True
        async with client.feed(0, after=50):
            while not cluster.nodes[0].owes:
                await trio.lowlevel.checkpoint()
            cluster.nodes[0].muted = False
            client._life.post(unread(cluster, client))
        async with client.feed(0, after=-1) as feed:
            with trio.fail_after(20):
                assert (await anext(feed)).id == 0


async def test_payloads_can_be_left_out_and_fetched() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        cluster.commit(0, [b"a"], header=1)
        cluster.commit(0, [b"b"], header=2)
        async with client.feed(0, after=-1, prefetch=0) as feed:
            txn = await feed.__anext__()
            with pytest.raises(RuntimeError, match="not fetched"):
                txn.load()
            assert await txn.fetch() == b"a"
            assert txn.load() == b"a"
            assert await txn.fetch() == b"a"
        async with client.feed(0, after=-1, select=lambda header: header == 2) as feed:
            txn = await feed.__anext__()
            with pytest.raises(RuntimeError, match="not fetched"):
                txn.load()
            assert (await feed.__anext__()).load() == b"b"
        with trio.move_on_after(0.05):
            cluster.nodes[0].server.fails_reads = lambda transaction_id: True
            fresh = waltz.Transaction(0, 0, 1, txn.req_id, None, client._reads.fetch_payload)
            await fresh.fetch()
        assert client._reads._slots == {}


@pytest.mark.parametrize("prefetch", [2, 10])
async def test_payloads_that_are_given_up_before_they_are_read_end_who_waits_for_them(prefetch: int) -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        cluster.view.names = True
        server = cluster.nodes[0].server
        cluster.commit(0, [b"%d" % number for number in range(20)])
        with trio.fail_after(30):
            async with client.feed(0, after=-1, prefetch=0) as feed:
                bare = [await anext(feed) for _ in range(3)]
            read = []
            async with client.feed(0, after=-1, prefetch=prefetch) as feed:
                with pytest.raises(waltz.BeforeStartError, match="partition 0: begins at 18"):
                    async for txn in feed:
                        read.append(txn.load())
                        server.begins_at = 18
            assert read == [b"%d" % number for number in range(len(read))]
            assert len(read) < 18
            with pytest.raises(waltz.BeforeStartError, match="begins at 18"):
                await bare[1].fetch()
            assert client._reads._slots == {}
            async with client.feed(0, after=feed.mark) as feed:
                with pytest.raises(waltz.BeforeStartError, match="begins at 18"):
                    await anext(feed)


async def test_a_payload_that_a_feed_and_a_fetch_wait_for_is_given_up_with_the_last_of_them() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client, trio.open_nursery() as nursery:
        await client.ready([0])
        cluster.nodes[0].deaf = True
        given_up: list[object] = []
        post = client._life.post

        def watched(event: object) -> None:
            if isinstance(event, Forget):
                given_up.append(event)
            elif not isinstance(event, Fetch):  # there is no such transaction
                post(event)

        async with client.feed(0, after=-1) as feed:
            client._life.post = watched
            feed._on_run([FeedData(ReqId(bytes(16)), 0, 0)])
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as fetches:
                    fetches.start_soon(client._reads.fetch_payload, 0, 0)
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()
            assert given_up == [], "the feed waits for it"
            nursery.start_soon(client._reads.fetch_payload, 0, 0)
            await trio.testing.wait_all_tasks_blocked()
        assert given_up == [], "the fetch waits for it"
        nursery.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
    assert given_up == [Forget(0, (0,))]


async def test_awaiting_ones_own_append_inside_the_loop_is_fine() -> None:
    async with small_cluster(window=2) as cluster:
        setup = read_config(cluster.url)
        tight = attrs.evolve(setup, settings=attrs.evolve(setup.settings, feed_buffer_max=1))
        async with run_client(tight) as client:
            cluster.commit(0, [b"x"] * 20)
            async with client.feed(0, after=-1) as feed:
                async for txn in feed:
                    if txn.id < 5:
                        assert await client.append(0, RAW) == 20 + txn.id
                    if txn.id == 24:
                        break


async def test_a_feed_that_is_left_while_somebody_waits_says_so() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        feed = client.feed(0, after=-1)

        async def wait() -> None:
            with pytest.raises(waltz.ClientClosedError):
                await entered.__anext__()

        async with trio.open_nursery() as nursery:
            async with feed as entered:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked(0.01)


async def test_a_feed_is_waited_for_by_one_task_at_a_time() -> None:
    async with (
        small_cluster() as cluster,
        waltz.open_client(cluster.url) as client,
        client.feed(0, after=-1) as feed,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(feed.__anext__)
        await trio.testing.wait_all_tasks_blocked(0.01)
        for second in (feed, feed.batches(10)):
            with pytest.raises(RuntimeError, match="another task waits for this feed already"):
                await anext(aiter(second))
        await client.append(0, waltz.Append(b"x"))


async def test_a_feed_that_is_read_without_async_shows_the_line() -> None:
    async with (
        small_cluster() as cluster,
        waltz.open_client(cluster.url) as client,
        client.feed(0, after=-1) as feed,
    ):
        for wrong in (feed, feed.batches(3)):
            with pytest.raises(TypeError, match="`async` is missing before `for`; write: async for txn in feed:"):
                iter(wrong)


async def test_a_client_ahead_of_the_log_is_told() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.feed(0, after=50) as feed:
            with pytest.raises(waltz.ClientAheadError, match="applied up to 50"):
                await feed.__anext__()
            with pytest.raises(waltz.ClientAheadError):
                await client.append(0, RAW)
            with pytest.raises(waltz.ClientAheadError):
                await client.ready([0])


async def test_waiting_for_a_partition_goes_on_when_a_feed_that_opened_it_is_left() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client, trio.open_nursery() as nursery:
        cluster.nodes[0].held = True
        with trio.fail_after(20):
            async with client.feed(0, after=-1):
                nursery.start_soon(client.ready, [0])
                await trio.testing.wait_all_tasks_blocked(0.01)
            await trio.testing.wait_all_tasks_blocked(0.01)
            cluster.nodes[0].held = False
            cluster.wake()
            while nursery.child_tasks:
                await trio.lowlevel.checkpoint()
        assert client.status(0).phase is waltz.Phase.MOUNTED


# ---- the rest ----------------------------------------------------------------------------------


async def test_a_mark_read_beside_another_covers_what_was_committed_before_it() -> None:
    marks = {}
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client, trio.open_nursery() as nursery:

        async def read(name: str) -> None:
            marks[name] = await client.committed_mark(0)

        server = cluster.nodes[0]
        server.muted = True
        nursery.start_soon(read, "before")
        while not server.owes:
            await trio.lowlevel.checkpoint()
        cluster.commit(0, [b""])
        nursery.start_soon(read, "after")
        await trio.testing.wait_all_tasks_blocked()
        server.muted = False
        cluster.wake()
    assert marks == {"before": -1, "after": 0}


async def test_a_question_for_the_mark_that_nobody_waits_for_any_more_is_forgotten() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        assert await client.committed_mark(0) == -1
        cluster.nodes[0].muted = True
        for _ in range(3):
            with trio.move_on_after(0.05):
                await client.committed_mark(0)
        await trio.testing.wait_all_tasks_blocked()
        reads = client._node._partitions.reads_known(0)
        assert reads is not None
        assert not reads.marks._calls
        cluster.nodes[0].muted = False


async def test_marks_and_states_can_be_asked_for() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        assert await client.committed_mark(0) == -1
        cluster.commit(0, [b""] * 4)
        assert await client.committed_mark(0) == 3
        assert client.status(0).phase is waltz.Phase.CLOSED
        await client.ready()
        status = client.status(1)
        assert (status.phase, status.generation) == (waltz.Phase.MOUNTED, 1)


async def test_the_partition_of_a_key_is_fixed_for_ever() -> None:
    async with small_cluster(partitions=7) as cluster, waltz.open_client(cluster.url) as client:
        assert [client.partition_of(key) for key in (0, 6, 7, -1, 10**18)] == [0, 6, 0, 6, 1]
        assert [client.partition_of(key) for key in ("", "a", "æ", "N10156")] == [0, 4, 2, 5]


async def test_a_server_that_dies_is_replaced_without_losing_or_doubling_an_append() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        second = await cluster.start_server()
        cluster.view.changed()
        cluster.wake()
        assert await client.append(0, RAW) == 0
        cluster.nodes[0].held = True
        pendings = [await client.send(0, waltz.Append(b"%d" % n)) for n in range(10)]
        await trio.testing.wait_all_tasks_blocked(0.02)
        cluster.kill(0)
        cluster.view.servers.pop(0)
        cluster.nodes[0].server.disown(0, 3)
        cluster.nodes[1].server.own(0, 5)
        cluster.view.changed()
        cluster.wake(second)
        outcomes: list[int] = []
        for pending in pendings:
            try:
                outcomes.append(await pending.outcome())
            except waltz.NotCommittedError:
                outcomes.append(-1)
        committed = {made.data: at for at, made in enumerate(cluster.logs[0].records)}
        assert outcomes == [committed.get(b"%d" % n, -1) for n in range(10)]
        assert client.status(0).server == cluster.nodes[1].server.endpoint


async def test_an_instrument_hears_how_many_transactions_of_which_partition_a_feed_gets() -> None:
    watcher = Watcher()
    async with small_cluster() as cluster, waltz.open_client(cluster.url, instrument=watcher) as client:
        cluster.commit(1, [b"a", b"b", b"c"])
        async with client.feed(1, after=-1) as feed:
            assert [(await anext(feed)).id for _ in range(3)] == [0, 1, 2]
    told = [entry for entry in watcher.told if entry[0] == "delivered"]
    assert {entry[1] for entry in told} == {1}
    assert sum(entry[2] for entry in told) == 3


# ---- leaving the block ---------------------------------------------------------------------------


async def test_leaving_waits_for_what_is_under_way() -> None:
    async with small_cluster() as cluster:
        async with waltz.open_client(cluster.url) as client:
            pendings = [await client.send(0, RAW) for _ in range(50)]
        assert [await pending.outcome() for pending in pendings] == list(range(50))
        with pytest.raises(waltz.ClientClosedError):
            await client.append(0, RAW)
        with pytest.raises(waltz.ClientClosedError):
            await client.committed_mark(0)


async def test_leaving_goes_on_as_soon_as_nothing_is_under_way() -> None:
    """And not when the time for that is over."""
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        for send in (lambda: client.send(0, RAW), lambda: client.send_many(0, [RAW] * 50)):
            await send()
            assert client._appends.under_way
            with trio.fail_after(30):
                await client._appends.settle(math.inf)
            assert not client._appends.under_way


async def test_leaving_by_an_exception_does_not_wait_and_does_not_change_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with small_cluster() as cluster:
        raised = ValueError("mine")
        with pytest.raises(ValueError, match="mine") as found:
            async with waltz.open_client(cluster.url) as client:
                await client.ready([0])
                cluster.nodes[0].held = True
                pending = await client.send(0, RAW)
                raise raised
        assert found.value is raised
        with pytest.raises(waltz.ClientClosedError, match="unknown"):
            await pending.outcome()
        assert "1 appends whose outcome is unknown" in caplog.text


async def test_everybody_who_waits_is_let_go() -> None:
    ended = []

    async def wait(call: Any, *args: Any) -> None:
        with pytest.raises(waltz.ClientClosedError):
            await call(*args)
        ended.append(call)

    async with small_cluster() as cluster, trio.open_nursery() as nursery:
        async with waltz.open_client(cluster.url) as client:
            cluster.commit(0, [b"x"])
            await client.ready([0])
            cluster.nodes[0].deaf = True
            nursery.start_soon(wait, client.append, 0, RAW)
            nursery.start_soon(wait, client.ready, [1])
            nursery.start_soon(wait, client.committed_mark, 1)
            nursery.start_soon(wait, client._reads.fetch_payload, 0, 0)
            async with client.feed(1, after=-1) as feed:
                nursery.start_soon(wait, feed.__anext__)
                await trio.testing.wait_all_tasks_blocked(0.05)
            client._appends.unjudged.clear()  # nothing is waited for
    assert len(ended) == 5


async def test_a_failure_inside_the_client_is_told_to_the_body() -> None:
    async with small_cluster() as cluster:
        with pytest.raises(waltz.ClientFailedError, match="the client failed: ZeroDivisionError") as found:
            async with waltz.open_client(cluster.url) as client:
                client._node.step = lambda now, events, out: 1 / 0  # type: ignore[assignment,method-assign]
                many = await client.send_many(0, [RAW] * 2)
                pending = client._appends.submit(0, RAW, None)
                await pending.outcome()
        assert isinstance(found.value.__cause__, ZeroDivisionError)
        assert many.done
        with pytest.raises(waltz.ClientFailedError):
            await many.outcomes()


async def test_a_server_that_cannot_tell_its_cluster_ends_the_client_with_a_reason() -> None:
    async with small_cluster(versions=range(5)) as cluster:
        with pytest.raises(waltz.ClientFailedError, match="configure ZooKeeper"):
            async with waltz.open_client(cluster.url):
                pass


# ---- configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "endpoint", "ca", "verify", "verify_host"),
    [
        ("waltz://localhost:1234", "localhost:1234", None, None, True),
        ("waltz://h:1/?ca=/a%20b/ca.pem", "h:1", "/a b/ca.pem", None, True),
        ("waltz://h:1?verify=off", "h:1", None, False, False),
        ("waltz://h:1?ca=x&verify=on", "h:1", "x", None, True),
        ("waltz://h:1?ca=x&verify=ca", "h:1", "x", None, False),
    ],
)
def test_urls_are_read(url: str, endpoint: str, ca: str | None, verify: bool | None, verify_host: bool) -> None:
    found, tls = parse_url(url)
    assert (str(found), tls.ca, tls.verify, tls.pin_loopback) == (endpoint, ca, verify, True)
    assert tls.verify_host is verify_host


@pytest.mark.parametrize(
    "url",
    [
        "waltz://",
        "waltz://host",
        "waltz://h:1/path",
        "waltz://h:1?what=1",
        "waltz://h:1?verify=maybe",
        "waltz://h:1?verify=ca",  # of which authority?
        "waltz://u@h:1",
        "waltz://h:1?ca",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(waltz.ConfigError):
        parse_url(url)


async def test_a_mapping_with_an_unknown_key_is_refused_with_the_nearest() -> None:
    with pytest.raises(waltz.ConfigError, match=r"did you mean cluster\.root"):
        async with waltz.open_client({"cluster.roof": "/waltz"}):
            pass
    with pytest.raises(waltz.ConfigError, match=r"parameter not found: cluster\.root"):
        async with waltz.open_client({"zookeeper.connectString": "x:1"}):
            pass


async def test_a_file_configures_a_client(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "client.yml"
    path.write_text(
        "cluster.root: /waltz\nzookeeper: {connectString: 'localhost:1', sessionTimeout: 5000}\n"
        "client.longWaitThreshold: 7000\nodd.key: 1\n"
    )
    with caplog.at_level(logging.WARNING, "waltz"):
        setup = read_config(path)
    assert setup.settings.nudge_ms == 7000
    assert setup.zookeeper == ("localhost:1", 5000)
    assert "unknown key odd.key" in caplog.text
    assert "peers are not verified" in caplog.text


def test_a_mapping_verifies_its_peers() -> None:
    values = {"cluster.root": "/w", "zookeeper.connectString": "h:1", "zookeeper.sessionTimeout": 1000}
    setup = read_config(values)
    assert setup.tls.settings.pin_loopback
    assert read_config(setup.config).tls.settings.pin_loopback is False


# ---- reading by ids ------------------------------------------------------------------------------


@pytest.mark.parametrize("ranges", [True, False])
async def test_transactions_are_read_by_their_ids_beside_a_feed_or_without(ranges: bool) -> None:
    """A server without ranges is read by a feed, of which there is one for each partition."""
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        cluster.view.names = ranges
        with trio.fail_after(20):
            assert await client.read(0, 0, 10) == []
            for number in range(250):  # the model gives out 100 at a time
                await client.send(0, waltz.Append(b"%d" % number, header=MARKER_HEADER if number == 200 else number))
            await client.flush(0)
            read = await client.read(0, 3, 7)
            assert [(each.id, each.header, each.load()) for each in read] == [(n, n, b"%d" % n) for n in range(3, 8)]
            assert [each.id for each in await client.read(0, 0, 1 << 40)] == [n for n in range(250) if n != 200]
            assert [each.id for each in await client.read(0, 199, 200)] == [199]
            assert await client.read(0, 250, 300) == await client.read(0, 5, 4) == await client.read(1, 0, 0) == []
            async with client.feed(0, after=-1) as feed:
                assert (await anext(feed)).id == 0
                if ranges:
                    assert [each.id for each in await client.read(0, 8, 8)] == [8]
                else:
                    with pytest.raises(
                        waltz.FeedBusyError, match=r"server of 0\.13\.2, .* or read with another client"
                    ):
                        await client.read(0, 8, 8)
                assert (await anext(feed)).id == 1
        with pytest.raises(ValueError, match="transaction ids begin at 0, not -1"):
            await client.read(0, -1, 5)
        with pytest.raises(waltz.PartitionNotFoundError):
            await client.read(7, 0, 5)
        with pytest.raises(TypeError, match="last is a whole number, found 'x'"):
            await client.read(0, 0, "x")  # type: ignore[arg-type]


async def test_reads_by_ids_and_a_feed_that_is_entered_meanwhile_take_turns_where_servers_have_no_ranges() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        cluster.view.names = False
        read: dict[int, list[int]] = {}

        async def by_ids(first: int) -> None:
            read[first] = [each.id for each in await client.read(0, first, first + 4)]

        with trio.fail_after(20):
            for _ in range(20):
                await client.send(0, RAW)
            await client.flush(0)
            async with trio.open_nursery() as nursery:
                for first in range(8):
                    nursery.start_soon(by_ids, first)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(by_ids, 9)
                while not client._reads.by_ids:
                    await trio.lowlevel.checkpoint()
                async with client.feed(0, after=9) as feed:
                    assert (await anext(feed)).id == 10
        assert read == {first: list(range(first, first + 5)) for first in (*range(8), 9)}


async def test_a_feed_that_is_cancelled_while_it_is_entered_is_not_there() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        with trio.CancelScope() as scope:
            scope.cancel()
            async with client.feed(0, after=-1):
                pass
        assert scope.cancelled_caught
        await client.append(0, RAW)
        with trio.fail_after(20):
            async with client.feed(0, after=-1) as feed:
                assert (await anext(feed)).id == 0


async def test_a_read_that_is_refused_says_why_and_one_that_is_left_leaves_nothing() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        cluster.view.names = True
        await client.append(0, RAW)
        cluster.nodes[0].server.fails_reads = lambda transaction_id: True
        with trio.fail_after(20), pytest.raises(waltz.PartitionUnavailableError, match="not now"):
            await client.read(0, 0, 0)
        cluster.nodes[0].muted = True
        with trio.move_on_after(0.05):
            await client.read(0, 0, 0)
        assert not len(client._by_ids._answers)
        assert not len(client._reads._marks)
        cluster.nodes[0].muted = False
    with pytest.raises(waltz.ClientClosedError):
        await client.read(0, 0, 0)

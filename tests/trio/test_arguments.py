"""What callers hand in by mistake, and what they are told; numbers of every whole type."""

from __future__ import annotations

import enum
import itertools
import re
from pathlib import Path
from typing import Any, cast

import numpy
import pytest
import trio

import waltz_dcb
import waltz_trio as waltz
from tests.trio.small_cluster import small_cluster
from waltz_trio.client.values import lock_hashes
from waltz_trio.config.config import Config


class Header(enum.IntEnum):
    MOVE = 3
    LAST = (1 << 31) - 1


class Shard(enum.IntEnum):
    FIRST = 0
    SECOND = 1


@pytest.mark.parametrize("number", [int, Shard, numpy.int8, numpy.int64, numpy.uint32])
async def test_every_whole_number_will_do(number: Any) -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        one, zero = number(1), number(0)
        with trio.fail_after(20):
            assert await client.append(one, waltz.Append(b"a", header=one, write=[("x", one)]), based_on=-1) == 0
            pending = await client.send(one, waltz.Append(b"b", header=one, read=[("y", one)]), based_on=zero)
            assert await pending.outcome() == 1
            assert await client.committed_mark(one) == 1
            await client.ready([zero, one])
            await client.flush(one)
            assert client.status(one).partition == 1
            assert client.partition_of(one) == 1
            async with client.feed(one, after=-1, prefetch=one) as feed:
                async for txn in feed:
                    assert (txn.partition, txn.header) == (1, 1)
                    assert type(txn.header) is int
                    if txn.id == 1:
                        break
            async with client.materialize(waltz.DictView[Any](lambda txn, state: None), [one]) as app:
                await app.caught_up(one)
                assert app.mark(one) == 1
                receipt = await app.submit(lambda state: waltz.Append(b"c"), partition=one, until="applied")
                assert receipt is not None
                assert type(receipt.partition) is int


async def test_a_header_is_compared_and_not_looked_for() -> None:
    """With `in range(...)` an IntEnum walks through four thousand million numbers, and nothing can cancel it."""
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        with trio.fail_after(20):
            await client.append(0, waltz.Append(b"", header=Header.LAST))
        for header in (1 << 31, -(1 << 31) - 1, numpy.int64(1 << 31)):
            with pytest.raises(ValueError, match=r"a header has 32 bits, .* found -?21474836"):
                await client.append(0, made(b"", header=header))


def made(*arguments: Any, **named: Any) -> waltz.Append:
    """An append, of what its types do not allow."""
    return waltz.Append(*arguments, **named)


ACCOUNT = '[("account", 7)]'


@pytest.mark.parametrize(
    ("append", "error", "text"),
    [
        (
            {"amount": 3},
            TypeError,
            "expected an Append, found {'amount': 3} (dict); write Append(VALUE, Json(), write=",
        ),
        ("text", TypeError, "expected an Append, found 'text' (str); write Append(VALUE, Utf8(), write="),
        (None, TypeError, "expected an Append, found None (NoneType)"),
        (made("text"), TypeError, "write Append(value, Utf8(), ...)"),
        (made("text", waltz.Utf8), TypeError, "expected a codec, found the class Utf8; write Utf8()"),
        (made("x", waltz.Codecs({})), TypeError, "an Append names one codec and its header"),
        (made("x", 7), TypeError, "expected a codec, with dumps and loads, found 7 (int)"),
        (made(b"", header="3"), TypeError, "a header is a whole number, found '3' (str)"),
        (made(b"", header=3.0), TypeError, "a header is a whole number, found 3.0 (float)"),
        (
            made(b"", append=("account", 7)),
            TypeError,
            f"expected a list of locks, such as {ACCOUNT}, found ('acc",
        ),
        (
            made(b"", append="account"),
            TypeError,
            f"expected a list of locks, such as {ACCOUNT}, found 'account'",
        ),
        (made(b"", append=waltz.Lock("a", 1)), TypeError, "expected a list of locks"),
        (made(b"", append=7), TypeError, "expected a list of locks"),
        (made(b"", append=["account"]), TypeError, 'a lock is a Lock or (name, id), such as ("account", 7), f'),
        (made(b"", append=[("a", 1, 2)]), TypeError, "found ('a', 1, 2) (tuple)"),
        (made(b"", append=[(7, "a")]), TypeError, "the name of a lock is text, found 7 (int) in (7, 'a')"),
        (made(b"", append=[(b"a", 7)]), TypeError, "the name of a lock is text, found b'a' (bytes)"),
        (made(b"", append=[("a", "7")]), TypeError, "the id of a lock is a whole number, found '7' (str)"),
        (made(b"", append=[("a", 7.0)]), TypeError, "the id of a lock is a whole number, found 7.0 (float)"),
        (made(b"", append=[("a", 1 << 63)]), ValueError, "the id of a lock has 64 bits"),
        (made(b"", append=[waltz.Lock("a", -(1 << 63) - 1)]), ValueError, "the id of a lock has 64 bits"),
        (
            made(b"", append=zip(itertools.repeat("a"), itertools.count())),
            ValueError,
            "more than 10000 locks in",
        ),
        (
            made(b"", append=[("a", n) for n in range(10_001)]),
            ValueError,
            "locks in one append (server.locksMax)",
        ),
    ],
)
async def test_what_is_no_append_says_what_would_be_one(append: Any, error: type[Exception], text: str) -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        with pytest.raises(error, match=re.escape(text)):
            await client.append(0, append)
        with pytest.raises(error):
            await client.send(0, append)
        assert await client.committed_mark(0) == -1


async def test_the_limit_of_locks_counts_all_of_them() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        locks = [("a", number) for number in range(4000)]
        with pytest.raises(ValueError, match=r"more than 10000 locks in one append \(server.locksMax\)"):
            await client.append(0, waltz.Append(b"", write=locks, read=locks, append=locks), based_on=-1)
        with pytest.raises(ValueError, match="more than 10000 locks"):
            await client.append(0, waltz.Append(b"", write=locks, read=locks + locks), based_on=-1)
        assert await client.append(0, waltz.Append(b"", write=locks, read=locks), based_on=-1) == 0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda client: client.append("0", waltz.Append(b"")), "a partition is a whole number, found '0' (str)"),
        (lambda client: client.append(0.0, waltz.Append(b"")), "a partition is a whole number, found 0.0 (float)"),
        (lambda client: client.append(0, waltz.Append(b""), based_on="1"), "based_on is a whole number, found '1'"),
        (lambda client: client.committed_mark(None), "a partition is a whole number, found None (NoneType)"),
        (lambda client: client.feed(0, after="-1"), "after is a whole number, found '-1' (str)"),
        (lambda client: client.feed(0, after=0, prefetch=1.5), "prefetch is a whole number, found 1.5 (float)"),
        (lambda client: client.ready(0), "expected a list of partitions, such as [0, 3], found 0 (int)"),
        (lambda client: client.materialize(waltz.DictView(print), 0), "expected a list of partitions"),
        (lambda client: client.partition_of(7.5), "a key is a whole number or text, found 7.5 (float)"),
        (lambda client: client.partition_of(b"7"), "a key is a whole number or text, found b'7' (bytes)"),
    ],
)
async def test_numbers_that_are_none(call: Any, text: str) -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        with pytest.raises(TypeError, match=re.escape(text)):
            await call(client)


async def test_a_mark_is_at_least_minus_one() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        with pytest.raises(ValueError, match="based_on: a mark is at least -1, not -2"):
            await client.append(0, waltz.Append(b""), based_on=-2)


def test_a_codec_that_is_none_is_no_bad_payload() -> None:
    transaction = waltz.Transaction(0, 0, 0, waltz.Transaction, b"{}")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"found the class Json; write Json\(\)"):
        transaction.load(waltz.Json)  # type: ignore[call-overload]


class Text:
    """A codec that forgets to encode."""

    def dumps(self, value: object) -> Any:
        return str(value)

    def loads(self, data: bytes) -> object:
        return data


async def test_a_codec_that_gives_no_bytes_is_named() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        with pytest.raises(TypeError, match=r"dumps of .*Text.* must give bytes, found '7' \(str\)"):
            await client.append(0, waltz.Append(7, Text()))


def test_locks_that_can_be_read_once_only_are_explained_too() -> None:
    with pytest.raises(TypeError, match=r"expected locks, each a Lock or \(name, id\), such as"):
        lock_hashes(iter(["a"]))  # type: ignore[arg-type]


def test_ids_of_locks_may_be_of_any_whole_type() -> None:
    others: list[Any] = [("a", numpy.int64(-5)), ("a", Shard.SECOND)]
    assert lock_hashes(others) == lock_hashes([("a", -5), ("a", 1)])
    names: list[bytes] = []
    others = [("a", numpy.uint8(7))]
    lock_hashes(others, names)
    lock_hashes([("a", 7)], names)
    assert names[0] == names[1]


def test_marks_and_keys_may_be_of_any_whole_type(tmp_path: Path) -> None:
    view = waltz.SqliteView(tmp_path / "view.db", lambda txn, db: None)
    one, seven = cast(int, numpy.int8(1)), cast(int, numpy.int64(7))  # their types do not say so
    view.seed(Shard.SECOND, seven, lambda db: None)
    assert view.load_mark(1) == 7
    view.close()
    states: waltz.DictView[Any] = waltz.DictView(lambda txn, state: None)
    states.seed(one, seven)
    assert states.marks == {1: 7}
    with pytest.raises(TypeError, match="mark is a whole number, found '7'"):
        states.seed(0, "7")  # type: ignore[arg-type]
    assert Config({"client.sendWindow": numpy.int64(4096)}).number("client.sendWindow") == 4096
    with pytest.raises(waltz.ConfigError, match=r"expected a whole number, found 4096\.5"):
        Config({"client.sendWindow": 4096.5})


# ---- one lock in two partitions ------------------------------------------------------------------


async def test_a_lock_in_two_partitions_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        for number in range(20):  # one name with many ids in many partitions: how accounts are spread
            await client.append(number % 2, waltz.Append(b"", write=[("account", number)]), based_on=-1)
        assert caplog.messages == []
        await client.append(1, waltz.Append(b"", write=[("account", 4)]), based_on=-1)
        await client.append(0, waltz.Append(b"", read=[("account", 3)]), based_on=-1)
        (warning,) = caplog.messages
        assert "lock ('account', 4) is used in partitions 0 and 1" in warning
        assert "a lock holds within one partition" in warning


async def test_stores_of_two_partitions_are_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Each of their conditions is of one store; and a warning about them would be the only one of its client."""
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with waltz_dcb.open_store(client, 0) as first, waltz_dcb.open_store(client, 1) as second:
            for store in (first, second):
                await store.append(waltz_dcb.Event("A", b"", ["x:1"]))
            assert caplog.messages == []
        for partition in (0, 1):
            await client.append(partition, waltz.Append(b"", append=[("account", 7)]))
        (warning,) = caplog.messages
        assert "lock ('account', 7) is used in partitions 0 and 1" in warning


async def test_locks_that_are_remembered_are_bounded() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        for start in range(0, 30_000, 10_000):
            locks = [("account", number) for number in range(start, start + 10_000)]
            await client.append(0, waltz.Append(b"", append=locks))
        assert client._appends.encoder._homes is not None
        assert len(client._appends.encoder._homes) == 10_000


# ---- what ended a whole client, or said nothing that helps -------------------------------------------


async def test_a_mark_that_no_log_can_have_is_refused_before_it_is_sent() -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        for mark in (1 << 63, 1 << 70):
            with pytest.raises(ValueError, match=re.escape("a mark is at most 2**63 - 1")):
                await client.append(0, waltz.Append(b"", write=[("x", 1)]), based_on=mark)
            with pytest.raises(ValueError, match="after: a mark is at most"):
                client.feed(0, after=mark)
        with trio.fail_after(20):
            assert await client.append(0, waltz.Append(b"", write=[("x", 1)]), based_on=-1) == 0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda app: app.submit(make, partition=0, retry=3), "expected a Retry, found 3 (int); write retry=Retry("),
        (lambda app: app.submit(make, partition=0, retry=None), "expected a Retry, found None"),
        (lambda app: app.submit(None, partition=0), "expected a function that gets the state and decides, found None"),
        (lambda app: app.submit(make({}), partition=0), "not submit(withdraw(...))"),
        (lambda app: app.submit(make, partition=0, submission="x"), "write submission=Submission()"),
        (lambda app: app.submit(lambda state: later(state), partition=0), "hand in the `async def` function itself"),
        (lambda app: app.submit_many(make, [1, 2], partition=0), "and [(7,), (8,)] for one argument each"),
        (lambda app: app.submit_many(make, ["ab"], partition=0), "and [(7,), (8,)] for one argument each"),
        (lambda app: app.submit_many(make, 3, partition=0), "expected a list of tuples of arguments, found 3 (int)"),
        (lambda app: app.submit_many(None, [()], partition=0), "expected a function that gets the state and decides"),
        (lambda app: app.submit_many(make, [()], partition=0, keys=3), "expected a list of keys, found 3 (int)"),
        (lambda app: app.submit(make, partition=0, expects=("account", 7)), "expected a list of locks, such as"),
        (lambda app: app.submit(make, partition=0, expects=None), "expected a list of locks, such as"),
        (lambda app: app.submit(make, partition=0, expects=[("account", "7")]), "the id of a lock is a whole number"),
        (lambda app: app.submit_many(make, [()], partition=0, expects=[3]), "expected a list of locks, such as"),
        (lambda app: app.submit_many(make, [()], partition=0, expects=3), "expected a list of lists of locks, found 3"),
        (lambda app: app.caught_up(0, to="x"), "to is a whole number, found 'x' (str)"),
        (lambda app: app.read(None, partition=0), "expected a function of the state, found None"),
    ],
)
async def test_what_cannot_be_submitted_is_said_and_ends_nothing(call: Any, text: str) -> None:
    async with (
        small_cluster() as cluster,
        waltz.open_client(cluster.url) as client,
        client.materialize(waltz.DictView[Any](lambda txn, state: None), [0]) as app,
    ):
        with trio.fail_after(20):
            with pytest.raises(TypeError, match=re.escape(text)):
                await call(app)
            assert await app.submit(make, partition=0) == 0


def make(state: Any) -> waltz.Append:
    return waltz.Append(b"x")


async def later(state: Any) -> waltz.Append:
    return waltz.Append(b"x")


@pytest.mark.parametrize(
    ("view", "options", "text"),
    [
        (waltz.DictView, {}, "expected a view, found the class DictView; make one of it: materialize(DictView(...))"),
        (make, {}, "which has no load_mark; write materialize(DictView(apply))"),
        (None, {"batch_limit": "5"}, "batch_limit is a whole number, found '5' (str)"),
        (None, {"max_in_flight": 1.5}, "max_in_flight is a whole number, found 1.5 (float)"),
        (None, {"partitions": [0, 0]}, "partitions: expected at least one, each named once, found [0, 0]"),
        (None, {"partitions": []}, "partitions: expected at least one, each named once, found []"),
    ],
)
async def test_what_cannot_be_materialized_is_refused_where_it_is_written(view: Any, options: Any, text: str) -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        with pytest.raises((TypeError, ValueError), match=re.escape(text)):
            client.materialize(view or waltz.DictView(lambda txn, state: None), **{"partitions": [0], **options})


@pytest.mark.parametrize(
    ("instrument", "text"),
    [
        (object(), "expected an instrument, such as PrometheusInstrument(), found <object"),
        (waltz.PrometheusInstrument, "found the class PrometheusInstrument; write PrometheusInstrument()"),
        ("metrics", "which has no method committed"),
    ],
)
async def test_an_instrument_that_cannot_be_told_is_refused_when_the_client_is_opened(
    instrument: Any, text: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(text)):
        async with waltz.open_client("waltz://127.0.0.1:1", instrument=instrument):
            pass


async def test_an_application_that_is_not_entered_shows_the_line_that_does() -> None:
    line = re.escape("write: async with client.materialize(...) as app:")
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        app: Any = client.materialize(waltz.DictView(lambda txn, state: None), [0])
        with pytest.raises(TypeError, match="`async` is missing before `with`; " + line), app:
            pass
        with pytest.raises(TypeError, match="entered, not awaited; " + line):
            await app


@pytest.mark.parametrize("several", [waltz.Append(b"x"), None, 3, b"x", "x"])
async def test_appends_that_are_no_list_are_refused(several: Any) -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        for call in (client.append_many, client.send_many):
            with pytest.raises(TypeError, match=r"expected a list of appends, found .*; write send_many\(3, \["):
                await call(0, several)


async def test_what_select_raises_is_for_its_loop_and_ends_no_client() -> None:
    def select(header: int) -> bool:
        if header == 3:
            raise KeyError(header)
        return True

    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        for header in (1, 2):
            await client.append(0, waltz.Append(b"x", header=header))
        with trio.fail_after(20):
            async with client.feed(0, after=-1, select=select) as feed:
                assert [(await anext(feed)).id for _ in range(2)] == [0, 1]
                await client.append(0, waltz.Append(b"x", header=3))
                with pytest.raises(KeyError, match="3"):
                    await anext(feed)
            async with client.feed(0, after=1) as feed:
                assert (await anext(feed)).header == 3


async def test_what_came_before_the_transaction_at_which_select_fails_is_handed_out_first() -> None:
    def select(header: int) -> bool:
        if header == 3:
            raise KeyError(header)
        return True

    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        cluster.commit(0, [b"a", b"b"], header=1)
        cluster.commit(0, [b"c"], header=3)
        with trio.fail_after(20):
            async with client.feed(0, after=-1, select=select) as feed:
                assert [(await anext(feed)).load() for _ in range(2)] == [b"a", b"b"]
                with pytest.raises(KeyError, match="3"):
                    await anext(feed)
            async with client.feed(0, after=1, select=select) as feed:
                with pytest.raises(KeyError, match="3"):
                    await anext(feed)


@pytest.mark.parametrize("select", [3, "header", later])
async def test_a_select_that_cannot_choose_is_refused(select: Any) -> None:
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        with pytest.raises(TypeError, match=r"select must be a (plain )?function"):
            client.feed(0, after=-1, select=select)

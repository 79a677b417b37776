"""What people get wrong with views and clients, on every front: a typed error each, which says what to do next."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import waltz_asyncio
import waltz_sync
import waltz_trio
from tests.forks import exit_status_of_child
from waltz_sync import portal
from waltz_testing import RunningCluster, running_cluster
from waltz_trio.client import at_work

SCHEMA = "CREATE TABLE IF NOT EXISTS seen (id INTEGER)"
Use = Callable[[Any, Any], Any]  # of a client and an application; gives what may have to be awaited


def note(txn: waltz_trio.Transaction, db: sqlite3.Cursor) -> None:
    db.execute("INSERT INTO seen VALUES (?)", (txn.id,))


def something(state: Any) -> waltz_trio.Append:
    return waltz_trio.Append(b"x")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with running_cluster(partitions=2) as cluster:
        yield cluster


def in_trio(url: str, view: Any, use: Use) -> None:
    async def main() -> None:
        with trio.fail_after(60):
            async with waltz_trio.open_client(url) as client, client.materialize(view, [0]) as app:
                await use(client, app)

    trio.run(main)


def in_asyncio(url: str, view: Any, use: Use) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(60),
            waltz_asyncio.open_client(url) as client,
            client.materialize(view, [0]) as app,
        ):
            await use(client, app)

    asyncio.run(main())


def in_thread(url: str, view: Any, use: Use) -> None:
    with waltz_sync.open_client(url) as client, client.materialize(view, [0], timeout=60) as app:
        use(client, app)


@pytest.fixture(params=[in_trio, in_asyncio, in_thread], ids=["trio", "asyncio", "threads"])
def front(request: pytest.FixtureRequest, cluster: RunningCluster) -> Callable[[Any, Use], None]:
    """Runs something with a client and an application of a view, through one front."""
    return lambda view, use: request.param(cluster.url, view, use)


def fine(client: Any, app: Any) -> Any:
    return client.committed_mark(0)


def view_at(path: Path, apply: Any = note) -> waltz_trio.SqliteView:
    return waltz_trio.SqliteView(path, apply, schema=SCHEMA, name="seen")


@pytest.mark.parametrize(
    ("use", "error", "text"),
    [
        (lambda client, app: client.append(9, something(None)), waltz_trio.PartitionNotFoundError, "has 0 to 1"),
        (lambda client, app: app.submit(something, partition=1), ValueError, r"not materialized here, but 0: name it"),
        (lambda client, app: app.submit(lambda state: 5, partition=0), TypeError, "an Append or None, not 5"),
        (
            lambda client, app: app.submit(something, partition=0, retry=3),
            TypeError,
            r"expected a Retry, found 3 \(int\)",
        ),
        (
            lambda client, app: app.submit(something, partition=0, submission=5),
            TypeError,
            r"write submission=Submission\(\)",
        ),
        (lambda client, app: client.append([0], something(None)), TypeError, "a partition is a whole number, found"),
        (lambda client, app: app.submit_many(something, [1], partition=0), TypeError, "for one argument each"),
        (lambda client, app: client.append_many(0, something(None)), TypeError, "expected a list of appends, found"),
        (lambda client, app: app.submit(lambda state: state[7], partition=0), LookupError, "7"),
    ],
)
def test_a_call_that_cannot_work_says_why(
    front: Callable[[Any, Use], None], use: Use, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        front(waltz_trio.DictView(lambda txn, state: None), use)


OPTIONS: list[tuple[Use, type[Exception], str]] = [
    (lambda client, app: client.append(1, something(None), based_on=True), TypeError, "based_on is a whole"),
    (lambda client, app: client.send(1, something(None), based_on=True), TypeError, "based_on is a whole"),
    (lambda client, app: client.append_many(1, [something(None)], based_on=True), TypeError, "based_on is a whole"),
    (lambda client, app: client.send_many(1, [something(None)], based_on=True), TypeError, "based_on is a whole"),
    (lambda client, app: client.feed(1, after=-1, prefetch=-1), ValueError, "prefetch is at least 0"),
    (lambda client, app: client.feed(1, after=-1, select=5), TypeError, "select must be a function"),
    (lambda client, app: client.materialize(app.view, [1], batch_limit=0), ValueError, "batch_limit is at least 1"),
    (lambda client, app: client.materialize(app.view, [1], max_in_flight=0), ValueError, "max_in_flight is at"),
    (lambda client, app: client.materialize(app.view, [1], on_poison="no"), ValueError, "on_poison is one of"),
    (lambda client, app: client.materialize(app.view, [1], catch_up="no"), TypeError, "catch_up is True or False"),
    (lambda client, app: app.caught_up(0, to="1"), TypeError, "to is a whole number"),
    (lambda client, app: app.caught_up(1), ValueError, "not materialized here"),
    (lambda client, app: app.read(something, partition=0, fresh="no"), TypeError, "fresh is True or False"),
    (lambda client, app: client.flush(7), waltz_trio.PartitionNotFoundError, "7"),
    (lambda client, app: client.ready([7]), waltz_trio.PartitionNotFoundError, "7"),
    (lambda client, app: app.submit(something, partition=0, until="no"), ValueError, "until is 'committed'"),
    (lambda client, app: app.submit(something, partition=0, decline="no"), ValueError, "decline is 'confirmed'"),
    (lambda client, app: app.submit(something, partition=0, key="k"), ValueError, "a view that remembers keys"),
    (lambda client, app: app.submit(something, partition=0, expects=[5]), TypeError, r"a lock is a Lock or"),
    (lambda client, app: app.submit_many(something, [()], partition=0, until="no"), ValueError, "until is"),
    (lambda client, app: app.submit_many(something, [()], partition=0, decline="no"), ValueError, "decline is"),
    (lambda client, app: app.submit_many(something, [()], partition=0, retry=3), TypeError, "expected a Retry"),
    (lambda client, app: app.submit_many(something, [()], partition=0, keys=[]), ValueError, "need as many keys"),
    (lambda client, app: app.submit_many(something, [()], partition=0, expects=[]), ValueError, "as many lists"),
]


def test_every_option_reaches_what_it_is_for(front: Callable[[Any, Use], None]) -> None:
    """A wrong value of each is refused: a front that did not hand one on would take it, and go by the default."""

    def in_thread(client: Any, app: Any) -> None:
        for call, error, text in OPTIONS:
            with pytest.raises(error, match=text):
                call(client, app)

    async def in_task(client: Any, app: Any) -> None:
        for call, error, text in OPTIONS:
            with pytest.raises(error, match=text):
                await call(client, app)

    def use(client: Any, app: Any) -> Any:
        return (in_thread if isinstance(client, waltz_sync.Client) else in_task)(client, app)

    front(waltz_trio.DictView(lambda txn, state: None), use)


def test_a_client_says_which_cluster_it_is_of_and_who_it_is(front: Callable[[Any, Use], None]) -> None:
    ids = []

    def use(client: Any, app: Any) -> Any:
        assert (client.cluster, client.num_partitions) == ("waltz dev", 2)
        ids.append(client.client_id)
        return client.committed_mark(0)

    for _ in range(2):
        front(waltz_trio.DictView(lambda txn, state: None), use)
    assert 0 < ids[0] < ids[1]


def test_a_handle_to_a_submit_has_its_outcome(front: Callable[[Any, Use], None]) -> None:
    def in_thread(client: Any, app: Any) -> None:
        handle = waltz_sync.Submission()
        assert handle.pending is None
        receipt, pending = app.submit(something, partition=0, submission=handle), handle.pending
        assert isinstance(pending, waltz_sync.Pending)
        assert (pending.partition, pending.done, pending.outcome()) == (0, True, receipt)

    async def in_task(client: Any, app: Any) -> None:
        ours: Any = waltz_asyncio if isinstance(client, waltz_asyncio.Client) else waltz_trio
        handle = ours.Submission()
        assert handle.pending is None
        receipt, pending = await app.submit(something, partition=0, submission=handle), handle.pending
        assert isinstance(pending, ours.Pending)
        assert (pending.partition, pending.done, await pending.outcome()) == (0, True, receipt)

    def use(client: Any, app: Any) -> Any:
        return (in_thread if isinstance(client, waltz_sync.Client) else in_task)(client, app)

    front(waltz_trio.DictView(lambda txn, state: None), use)


def test_what_is_used_after_its_block_says_that_the_block_has_ended(front: Callable[[Any, Use], None]) -> None:
    kept: list[Any] = []

    def keep(client: Any, app: Any) -> Any:
        kept[:] = [client, app]
        return client.committed_mark(0)

    front(waltz_trio.DictView(lambda txn, state: None), keep)

    def use(client: Any, app: Any) -> Any:
        return kept[1].submit(something, partition=0)

    with pytest.raises((waltz_trio.ClientClosedError, waltz_trio.WrongThreadError), match=r"(ended|closed)"):
        front(waltz_trio.DictView(lambda txn, state: None), use)


def test_a_second_feed_of_a_partition_says_which_block_to_leave(front: Callable[[Any, Use], None]) -> None:
    def second(client: Any, app: Any) -> Any:
        block = client.materialize(waltz_trio.DictView(lambda txn, state: None), [0])
        return block.__enter__() if isinstance(client, waltz_sync.Client) else block.__aenter__()

    with pytest.raises(waltz_trio.FeedBusyError, match="leave that block first, or open another client"):
        front(waltz_trio.DictView(lambda txn, state: None), second)


@pytest.mark.parametrize(
    "again",
    [
        lambda client, app, feed: app,
        lambda client, app, feed: feed,
    ],
    ids=["application", "feed"],
)
def test_a_block_that_is_entered_again_is_refused_and_disturbs_nobody(
    front: Callable[[Any, Use], None], again: Callable[[Any, Any, Any], Any]
) -> None:
    """Both inside of it and behind it; it took the whole client down on two fronts."""

    def in_thread(client: waltz_sync.Client, app: Any) -> None:
        feed = client.feed(1, after=-1)
        block: Any = again(client, app, feed)
        with feed, pytest.raises(RuntimeError, match="entered once: call"):
            block.__enter__()
        with pytest.raises(RuntimeError, match="entered once: call"):
            block.__enter__()
        client.append(1, something(None), timeout=60)
        app.submit(something, partition=0, timeout=60)

    async def in_task(client: Any, app: Any) -> None:
        feed = client.feed(1, after=-1)
        block: Any = again(client, app, feed)
        async with feed:
            with pytest.raises(RuntimeError, match="entered once: call"):
                await block.__aenter__()
        with pytest.raises(RuntimeError, match="entered once: call"):
            await block.__aenter__()
        await client.append(1, something(None))
        await app.submit(something, partition=0)

    def use(client: Any, app: Any) -> Any:
        return (in_thread if isinstance(client, waltz_sync.Client) else in_task)(client, app)

    front(waltz_trio.DictView(lambda txn, state: None), use)


async def test_a_client_that_is_entered_again_is_refused(cluster: RunningCluster) -> None:
    block = waltz_trio.open_client(cluster.url)
    async with block as client:
        with pytest.raises(RuntimeError, match="entered once: call"):
            await block.__aenter__()
        await client.append(1, something(None))


def test_a_client_of_another_front_that_is_entered_again_is_refused_and_starts_no_thread(
    cluster: RunningCluster,
) -> None:
    def threads() -> int:
        return sum(thread.name == "waltz_sync" for thread in threading.enumerate())

    block = waltz_sync.open_client(cluster.url)
    with block as client:
        with pytest.raises(RuntimeError, match="entered once: call"):
            block.__enter__()
        assert threads() == 1
        client.append(1, something(None))

    async def main() -> None:
        block = waltz_asyncio.open_client(cluster.url)
        async with block as client:
            with pytest.raises(RuntimeError, match="entered once: call"):
                await block.__aenter__()
            assert threads() == 1
            await client.append(1, something(None))

    asyncio.run(main())
    assert threads() == 0


def make_nothing(path: Path) -> Path:
    return path / "no" / "view.db"


def make_folder(path: Path) -> Path:
    return path


def make_text(path: Path) -> Path:
    (path / "view.db").write_text("hello " * 1000)
    return path / "view.db"


def make_other_shape(path: Path) -> Path:
    with sqlite3.connect(path / "view.db") as db:
        db.execute("CREATE TABLE CLIENT_HIGH_WATER_MARK (SOMETHING INTEGER)")
    db.close()
    return path / "view.db"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (make_nothing, "there is no folder .*: make it first"),
        (make_folder, "is a folder: name a file in it"),
        (make_text, "is no SQLite database: name another file"),
        (make_other_shape, "expected the columns PARTITION_ID, HIGH_WATER_MARK"),
    ],
)
def test_a_file_that_can_hold_no_view_is_a_mistake_and_nothing_to_wait_for(
    front: Callable[[Any, Use], None], make: Callable[[Path], Path], text: str, tmp_path: Path
) -> None:
    with pytest.raises(waltz_trio.ConfigError, match=text):
        front(view_at(make(tmp_path)), fine)


def test_a_schema_that_fails_says_so_and_what_to_write(front: Callable[[Any, Use], None], tmp_path: Path) -> None:
    def with_schema(schema: str) -> waltz_trio.SqliteView:
        return waltz_trio.SqliteView(tmp_path / "view.db", note, schema=schema, name="seen")

    with pytest.raises(waltz_trio.ConfigError, match=r'schema=... fail: near "CREAT": syntax error'):
        front(with_schema("CREAT TABLE seen (id INTEGER)"), fine)
    front(with_schema("CREATE TABLE seen (id INTEGER)"), fine)
    with pytest.raises(waltz_trio.ConfigError, match=r"table seen already exists.*write CREATE TABLE IF NOT EXISTS"):
        front(with_schema("CREATE TABLE seen (id INTEGER)"), fine)


def test_a_view_that_is_ahead_of_the_log_is_refused(front: Callable[[Any, Use], None], tmp_path: Path) -> None:
    view = view_at(tmp_path / "view.db")
    view.seed(0, 1_000_000, lambda db: None)
    with pytest.raises(waltz_trio.ClientAheadError, match="is this the right cluster, or was the log restored"):
        front(view, lambda client, app: app.submit(something, partition=0))


def test_a_payload_that_cannot_be_decoded_ends_the_block_with_what_was_wrong(
    front: Callable[[Any, Use], None], tmp_path: Path
) -> None:
    def fails(txn: waltz_trio.Transaction, db: sqlite3.Cursor) -> None:
        txn.load(waltz_trio.Json(dict))

    def use(client: Any, app: Any) -> Any:
        return app.submit(something, partition=0, until="applied")

    with pytest.raises(waltz_trio.ApplyFailedError, match=r"PayloadInvalidError.*mend apply") as failed:
        front(waltz_trio.SqliteView(tmp_path / "view.db", fails, name="seen"), use)
    assert isinstance(failed.value.__cause__, waltz_trio.PayloadInvalidError)


def test_a_database_that_is_locked_at_the_start_is_waited_for_and_logged_once(
    front: Callable[[Any, Use], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "view.db"
    view_at(path).load_mark(0)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    locked = threading.Event()

    class Noticed(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "the view cannot be reached" in record.getMessage() and not locked.is_set():
                locked.set()
                other.execute("ROLLBACK")

    noticed = Noticed()
    logging.getLogger().addHandler(noticed)
    try:
        with caplog.at_level(logging.INFO):
            view = waltz_trio.SqliteView(path, note, schema=SCHEMA, name=view_at(path).name, busy_timeout=0.01)
            front(view, fine)
    finally:
        logging.getLogger().removeHandler(noticed)
        other.close()
    lines = [record.getMessage() for record in caplog.records if "partition 0: the view can" in record.getMessage()]
    assert len(lines) == 2, lines
    assert f"database is locked (SqliteView {path})" in lines[0]
    assert lines[1] == f"partition 0: the view can be reached again (SqliteView {path})"


def test_a_client_of_trio_is_for_one_thread(cluster: RunningCluster) -> None:
    calls: list[Callable[[Any, Any], Awaitable[Any]]] = [
        lambda client, app: client.append(0, something(None)),
        lambda client, app: client.send(0, something(None)),
        lambda client, app: client.send_many(0, [something(None)]),
        lambda client, app: client.flush(),
        lambda client, app: client.committed_mark(0),
        lambda client, app: app.submit(something, partition=0),
        lambda client, app: app.read(lambda state: None, partition=0),
    ]

    async def elsewhere(client: Any, app: Any) -> None:
        for call in calls:
            with pytest.raises(waltz_trio.WrongThreadError, match="use waltz_sync"):
                await trio.to_thread.run_sync(trio.run, call, client, app)

    in_trio(cluster.url, waltz_trio.DictView(lambda txn, state: None), elsewhere)


@pytest.mark.parametrize("path", ["", " ", "."])
def test_what_names_no_file_is_refused_with_the_forms_that_are_read(path: str) -> None:
    async def main() -> None:
        async with waltz_trio.open_client(path):
            raise AssertionError("it was opened")

    with pytest.raises(waltz_trio.ConfigError, match=r"expected the path of a file.*waltz://host:port"):
        trio.run(main)


@pytest.mark.parametrize("on_disk", [True, False], ids=["in a thread of its own", "in the client's thread"])
def test_a_function_of_the_view_that_calls_its_client_is_refused_and_waits_for_nobody(
    cluster: RunningCluster, tmp_path: Path, on_disk: bool
) -> None:
    in_memory: waltz_trio.DictView[Any] = waltz_trio.DictView(lambda txn, state: None)
    view: waltz_trio.View[Any] = view_at(tmp_path / "view.db") if on_disk else in_memory
    calls: list[Callable[[Any, Any], Any]] = [
        lambda client, app: app.submit(something, partition=0),  # its turn comes when this decide has ended
        lambda client, app: client.append(1, something(None)),
        lambda client, app: app.read(lambda state: None, partition=0),
    ]
    with waltz_sync.open_client(cluster.url) as client, client.materialize(view, [0], timeout=60) as app:
        for call in calls:

            def decide(state: Any, call: Callable[[Any, Any], Any] = call) -> None:
                call(client, app)

            with pytest.raises(RuntimeError, match="apply, decide, select and instruments must not call the client"):
                app.submit(decide, partition=0, timeout=60)
        assert app.submit(something, partition=0, timeout=60) is not None


def test_a_forked_child_is_refused_on_every_front_and_its_parent_goes_on(front: Callable[[Any, Use], None]) -> None:
    def use(client: Any, app: Any) -> Any:
        calls: list[Callable[[], Any]] = [
            lambda: client.append(0, something(None)),
            lambda: client.flush(),
            lambda: client.status(0),
            lambda: app.submit(something, partition=0),
            lambda: app.read(lambda state: None, partition=0),
        ]

        def in_child() -> int:
            return next((number for number, call in enumerate(calls, 1) if not refused(call)), 0)

        assert exit_status_of_child(in_child) == 0, "the number of the call that was not refused"
        return client.append(0, something(None))

    front(waltz_trio.DictView(lambda txn, state: None), use)


def refused(call: Callable[[], Any]) -> bool:
    """Whether it raises the error of a forked process, an awaitable in its first step."""
    try:
        given = call()
        if isinstance(given, Coroutine):
            given.send(None)
    except waltz_trio.WrongProcessError:
        return True
    except BaseException:
        return False
    return False


def test_a_function_that_does_not_return_is_said_in_the_log_once_the_time_of_its_caller_is_over(
    cluster: RunningCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portal, "_GRACE", 0.01)
    monkeypatch.setattr(at_work, "_NAMED_FROM", 0.0)
    said = threading.Event()

    class Noticed(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if re.search("goes on although its time is over: (decide|apply) tests.sync.test_m", record.getMessage()):
                said.set()

    def decide(state: Any) -> None:
        said.wait(60)

    def apply(txn: waltz_trio.Transaction, db: Any) -> None:
        said.wait(60)

    noticed = Noticed()
    logging.getLogger().addHandler(noticed)
    try:
        view = view_at(tmp_path / "view.db")
        with waltz_sync.open_client(cluster.url) as client, client.materialize(view, [0], timeout=60) as app:
            with pytest.raises(TimeoutError, match=r"the submit has no outcome.*; decide tests\.sync\..*, ran for "):
                app.submit(decide, partition=0, timeout=0.2)
            assert said.is_set()
            said.clear()
        late = waltz_trio.SqliteView(tmp_path / "other.db", apply, name="seen")
        with waltz_sync.open_client(cluster.url) as client:
            client.append(1, something(None))
            with pytest.raises(
                TimeoutError, match=r"not caught up with the log.*; apply tests\.sync.*not returned for"
            ):
                client.materialize(late, [1], timeout=0.5).__enter__()
            assert said.is_set()
    finally:
        logging.getLogger().removeHandler(noticed)


def test_a_time_out_says_what_was_waited_for(cluster: RunningCluster, tmp_path: Path) -> None:
    path = tmp_path / "view.db"
    view_at(path).load_mark(0)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    view = waltz_trio.SqliteView(path, note, schema=SCHEMA, name="seen", busy_timeout=0.01)
    try:
        with (
            waltz_sync.open_client(cluster.url) as client,
            pytest.raises(TimeoutError, match=r"; partition 0: its view: database is locked"),
        ):
            client.materialize(view, [0], timeout=1).__enter__()
    finally:
        other.close()


def test_a_time_out_of_a_submit_says_that_the_server_is_away(tmp_path: Path) -> None:
    with (
        running_cluster(partitions=1) as cluster,
        waltz_sync.open_client(cluster.url) as client,
        client.materialize(waltz_trio.DictView[Any](lambda txn, state: None), timeout=60) as app,
    ):
        cluster.kill_server()
        while client.status(0).phase is waltz_trio.Phase.MOUNTED:
            with pytest.raises(TimeoutError):
                client.committed_mark(0, timeout=0.01)
        with pytest.raises(
            TimeoutError, match=r"the submit has no outcome.*; partition 0: no connection to its server"
        ):
            app.submit(something, partition=0, timeout=0.01)
        cluster.restart_server()
        assert app.submit(something, partition=0, timeout=60) is not None


def test_a_time_out_of_a_submit_says_that_its_append_is_in_the_log(cluster: RunningCluster, tmp_path: Path) -> None:
    path = tmp_path / "view.db"
    submission = waltz_sync.Submission()
    view = waltz_trio.SqliteView(path, note, schema=SCHEMA, name="seen", busy_timeout=0.01)
    with (
        waltz_sync.open_client(cluster.url) as client,
        client.materialize(view, [0], timeout=60) as app,
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        assert app.submit(something, partition=0, submission=submission, timeout=60) is not None
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TimeoutError, match="the submit has no outcome"):  # not that of the submit before
            app.submit(something, partition=0, timeout=0, submission=submission)
        with pytest.raises(TimeoutError, match=r"the append of this submit is in the log as .* not applied it in time"):
            app.submit(something, partition=0, timeout=3, until="applied", submission=submission)

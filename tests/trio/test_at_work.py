"""Functions of the application that a view runs: calls from inside, and those that do not return."""

# ruff: noqa: SIM117 - what leaves a block is exactly what is tested
from __future__ import annotations

import functools
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import waltz_trio as waltz
from tests.trio.small_cluster import small_cluster
from waltz_trio.client import at_work, submits


def note(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
    pass


def nothing(db: sqlite3.Cursor) -> None:
    pass


@contextmanager
def noticed(*texts: str) -> Iterator[threading.Event]:
    """Set once a line of the log holds all of these texts."""
    said = threading.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if all(text in record.getMessage() for text in texts):
                said.set()

    logger, handler = logging.getLogger("waltz.client"), Handler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


async def test_a_function_of_the_view_that_waits_for_its_view_is_refused(tmp_path: Path) -> None:
    view = waltz.SqliteView(tmp_path / "view.db", note)
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client, trio.open_nursery() as nursery:
        async with client.materialize(view, [0]) as app:
            calls: list[Callable[[], Any]] = [
                functools.partial(app.submit, nothing, partition=0),
                functools.partial(app.submit_many, nothing, [()], partition=0),
                functools.partial(app.read, nothing, partition=0),
                functools.partial(app.caught_up, 0),
            ]

            def decide(db: sqlite3.Cursor, call: Callable[[], Any]) -> None:
                trio.from_thread.run(call)

            name = r"decide tests\.trio\.test_at_work\..*decide of SqliteView .*view\.db, partition 0"
            for call in calls:
                with pytest.raises(RuntimeError, match=rf"would wait for {name}, which waits for it.*must not call"):
                    await app.submit(decide, call, partition=0)

            returned, done = trio.Event(), trio.Event()

            async def later() -> None:
                await returned.wait()
                assert await app.submit(nothing, partition=0) is None
                done.set()

            def starts(db: sqlite3.Cursor) -> None:
                trio.from_thread.run_sync(nursery.start_soon, later)

            await app.submit(starts, partition=0)
            returned.set()
            await done.wait()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_work, "SLOW_AFTER", 0.01)
    monkeypatch.setattr(submits, "_GRACE", 0.01)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("threaded", [True, False])
async def test_a_decide_that_does_not_return_is_said_in_the_log(tmp_path: Path, threaded: bool) -> None:
    view: Any = waltz.SqliteView(tmp_path / "view.db", note) if threaded else waltz.DictView(lambda txn, state: None)
    name = f"decide tests.trio.test_at_work.waits_for of {type(view).__name__}"
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        with noticed(name, ", partition 1, has not returned for ") as said, noticed(name, "has returned after") as over:
            async with client.materialize(view, [0, 1]) as app:
                await app.submit(waits_for, said, partition=1)
                assert over.is_set()
                assert app.status(1).at_work is None


def waits_for(state: Any, said: threading.Event) -> None:
    assert said.wait(60)


@pytest.mark.usefixtures("soon")
async def test_an_apply_that_does_not_return_is_said_in_the_log_and_in_the_status(tmp_path: Path) -> None:
    status: list[str | None] = []

    def slow(txn: waltz.Transaction, db: sqlite3.Cursor) -> None:
        assert said.wait(60)
        status.append(trio.from_thread.run_sync(lambda: app.status(0).at_work))

    name = "apply tests.trio.test_at_work."
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        with noticed(name, "slow of SqliteView ", "view.db, partition 0, has not returned for ") as said:
            async with client.materialize(waltz.SqliteView(tmp_path / "view.db", slow), [0]) as app:
                await client.append(0, waltz.Append(b"x"))
                await app.caught_up()
    assert status[0] is not None
    assert status[0].startswith(name)


@pytest.mark.usefixtures("soon")
async def test_a_cancelled_submit_that_waits_for_its_decide_says_so(tmp_path: Path) -> None:
    begun = threading.Event()

    def slow(db: sqlite3.Cursor) -> None:
        begun.set()
        assert said.wait(60)

    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        with noticed("a submit that was cancelled waits for its end: decide tests.trio.test_at_work.") as said:
            async with client.materialize(waltz.SqliteView(tmp_path / "view.db", note), [0]) as app:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(functools.partial(app.submit, slow, partition=0))
                    await trio.to_thread.run_sync(begun.wait)
                    nursery.cancel_scope.cancel()
    assert said.is_set()


async def test_functions_that_hang_hold_up_neither_name_look_ups_nor_what_is_applied(tmp_path: Path) -> None:
    over = threading.Event()

    def hang(db: sqlite3.Cursor) -> None:
        over.wait(60)

    view = waltz.SqliteView(tmp_path / "view.db", note)
    async with small_cluster() as cluster, waltz.open_client(cluster.url) as client:
        async with client.materialize(view, [0]) as app, trio.open_nursery() as nursery:
            try:
                for _ in range(int(trio.to_thread.current_default_thread_limiter().total_tokens) + 10):
                    nursery.start_soon(functools.partial(app.read, hang, partition=0))
                await trio.testing.wait_all_tasks_blocked(0.1)
                with trio.fail_after(20):
                    await trio.socket.getaddrinfo("localhost", 80)
                    receipt = await client.append(0, waltz.Append(b"x"))
                    await app.caught_up(0, to=receipt.transaction_id)
            finally:
                over.set()

"""Stores of every kind: all views through all fronts, which look like Trio's to the tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import waltz_asyncio
import waltz_dcb
import waltz_dcb.aio
import waltz_dcb.sync
import waltz_sync
import waltz_trio
from tests.views.conftest import maria as maria
from tests.views.conftest import postgres as postgres
from waltz_testing import running_cluster
from waltz_trio import View

MakeView = Callable[..., View[Any]]
VIEWS = ("memory", "sqlite", "postgres", "mysql")
FRONTS = ("trio", "sync", "asyncio")
_LOGS_AT_ONCE = 32


def view_maker(kind: str, request: pytest.FixtureRequest, folder: Path) -> MakeView:
    """Makes views of one kind, all on one empty database."""
    if kind == "memory":
        return lambda **options: waltz_dcb.memory_view(**options)
    if kind == "sqlite":
        return partial(waltz_dcb.sqlite_view, folder / "events.db")
    if kind == "postgres":
        server = request.getfixturevalue("postgres")
        return partial(waltz_dcb.postgres_view, server.conninfo(server.new_database()))
    server = request.getfixturevalue("maria")
    return partial(waltz_dcb.mysql_view, server.options(server.new_database()))


class OfThreads:
    """A store of `waltz_dcb.sync`, whose calls wait in a thread."""

    def __init__(self, store: waltz_dcb.sync.EventStore) -> None:
        self._store = store

    async def read(self, *args: Any, **options: Any) -> Any:
        return await trio.to_thread.run_sync(partial(self._store.read, *args, **options))

    async def append(self, *args: Any, **options: Any) -> Any:
        return await trio.to_thread.run_sync(partial(self._store.append, *args, **options))


class OfLoop:
    """A store of `waltz_dcb.aio`, whose calls run in the loop of another thread."""

    def __init__(self, store: waltz_dcb.aio.EventStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop

    async def read(self, *args: Any, **options: Any) -> Any:
        return await in_loop(self._loop, self._store.read(*args, **options))

    async def append(self, *args: Any, **options: Any) -> Any:
        return await in_loop(self._loop, self._store.append(*args, **options))


async def in_loop(loop: asyncio.AbstractEventLoop, coroutine: Any) -> Any:
    return await trio.to_thread.run_sync(asyncio.run_coroutine_threadsafe(coroutine, loop).result)


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@asynccontextmanager
async def opened(front: str, url: str, partition: int, view: View[Any]) -> AsyncIterator[Any]:
    """A store of a front."""
    if front == "trio":
        async with waltz_trio.open_client(url) as client, waltz_dcb.open_store(client, partition, view) as store:
            yield store
    elif front == "sync":
        outer = waltz_sync.open_client(url)
        entered = await trio.to_thread.run_sync(outer.__enter__)
        try:
            block = waltz_dcb.sync.open_store(entered, partition, view, timeout=60)
            store_of_threads = await trio.to_thread.run_sync(block.__enter__)
            try:
                yield OfThreads(store_of_threads)
            finally:
                await trio.to_thread.run_sync(block.__exit__, None, None, None)
        finally:
            await trio.to_thread.run_sync(outer.__exit__, None, None, None)
    else:
        with running_loop() as loop:
            stop = asyncio.Event()
            ready: list[waltz_dcb.aio.EventStore] = []
            told = threading.Event()

            async def live() -> None:
                async with (
                    waltz_asyncio.open_client(url) as client,
                    waltz_dcb.aio.open_store(client, partition, view) as it,
                ):
                    ready.append(it)
                    told.set()
                    await stop.wait()

            lives = asyncio.run_coroutine_threadsafe(live(), loop)
            lives.add_done_callback(lambda _: told.set())
            await trio.to_thread.run_sync(told.wait)
            try:
                if not ready:
                    lives.result()
                yield OfLoop(ready[0], loop)
            finally:
                loop.call_soon_threadsafe(stop.set)
                await trio.to_thread.run_sync(lives.result)


@pytest.fixture(scope="session")
def empty_log() -> Iterator[Callable[[], tuple[str, int]]]:
    """Gives the address of a cluster and a partition that nobody has used."""
    unused: list[tuple[str, int]] = []
    with ExitStack() as clusters:

        def take() -> tuple[str, int]:
            if not unused:
                clusters.close()
                cluster = clusters.enter_context(running_cluster(partitions=_LOGS_AT_ONCE))
                unused.extend((cluster.url, partition) for partition in range(_LOGS_AT_ONCE))
            return unused.pop()

        yield take


def stores() -> Iterator[Any]:
    """Every front and every view, in the quick half of the tests each with one of the others only."""
    for front in FRONTS:
        for view in VIEWS:
            slow = front != "trio" and (front, view) not in (("sync", "sqlite"), ("asyncio", "postgres"))
            yield pytest.param(f"{front} {view}", marks=[pytest.mark.slow] if slow else [])


@pytest.fixture(params=stores())
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, empty_log: Callable[[], tuple[str, int]]
) -> AsyncIterator[Any]:
    """A store on an empty log."""
    front, kind = request.param.split()
    make_view = view_maker(kind, request, tmp_path)
    url, partition = await trio.to_thread.run_sync(empty_log)
    async with opened(front, url, partition, make_view()) as opened_store:
        yield opened_store

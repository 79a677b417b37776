"""What a call of a store is given reaches its application, through every front; and what it does by default."""

# ruff: noqa: SIM117 - what leaves a block is exactly what is tested
from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
import trio

import waltz_dcb
import waltz_dcb.aio
import waltz_dcb.sync
import waltz_sync
import waltz_trio
from tests.dcb.conftest import FRONTS, opened
from tests.trio.small_cluster import small_cluster
from waltz_dcb import AppendCondition, Event, Query, memory_view, open_store


@pytest.mark.parametrize("front", FRONTS)
async def test_what_a_call_is_given_reaches_the_application(
    front: str, empty_log: Callable[[], tuple[str, int]]
) -> None:
    url, partition = await trio.to_thread.run_sync(empty_log)
    async with opened(front, url, partition, memory_view()) as store:
        with pytest.raises(TypeError, match="expected a Retry, found 3"):
            await store.append(Event("A"), retry=3)
        with pytest.raises(TypeError, match="fresh is True or False, found 'no'"):
            await store.read(Query.all(), fresh="no")
        if front == "sync":
            for call in (store.read(Query.all(), timeout=-1), store.append(Event("A"), timeout=-1)):
                with pytest.raises(ValueError, match="timeout is at least 0 seconds"):
                    await call
        assert len(await store.read(Query.all())) == 0


@pytest.mark.parametrize("front", [waltz_dcb.sync, waltz_dcb.aio])
def test_the_fronts_have_the_same_defaults(front: Any) -> None:
    for name in ("EventStore.read", "EventStore.append", "open_store"):
        theirs, ours = (inspect.signature(attrgetter(name)(each)).parameters for each in (waltz_dcb, front))
        for parameter in theirs.values():
            same = ours[parameter.name]
            assert (same.kind, same.default) == (parameter.kind, parameter.default), f"{name}: {parameter.name}"


def test_a_store_for_threads_waits_as_long_as_it_is_told_until_its_view_has_caught_up(
    empty_log: Callable[[], tuple[str, int]],
) -> None:
    with waltz_sync.open_client(empty_log()[0]) as client:
        store = waltz_dcb.sync.open_store(client, timeout=-1)
        with pytest.raises(ValueError, match="timeout is at least 0 seconds"):
            store.__enter__()


async def test_by_default_a_store_is_that_of_partition_0_in_memory_and_remembers_keys() -> None:
    async with small_cluster() as cluster, waltz_trio.open_client(cluster.url) as client, open_store(client) as store:
        assert await store.append(Event("A"), key="a") == await store.append(Event("A"), key="a") == 0
        assert [len(log.records) for log in cluster.logs.values()] == [1, 0]


async def test_by_default_a_read_waits_for_what_was_committed_before_it() -> None:
    view = memory_view()
    commit: Callable[[waltz_trio.Batch], int] = view.commit
    held = True

    def hold(batch: waltz_trio.Batch) -> int:
        if held:
            raise ConnectionError("held")
        return commit(batch)

    view.commit = hold  # type: ignore[method-assign]
    view.is_transient = lambda error: isinstance(error, ConnectionError)  # type: ignore[method-assign]
    async with small_cluster() as cluster, waltz_trio.open_client(cluster.url) as client:
        async with open_store(client, view=view) as store:
            await store.append(Event("A"))
            assert len(await store.read(Query.all(), fresh=False)) == 0
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def release() -> None:
                    nonlocal held
                    await trio.testing.wait_all_tasks_blocked()
                    held = False

                assert len(await store.read(Query.all())) == 1


async def test_the_head_is_behind_the_last_event_of_the_largest_append() -> None:
    async with small_cluster() as cluster, waltz_trio.open_client(cluster.url) as client, open_store(client) as store:
        assert (await store.read(Query.all())).head == -1
        last = await store.append([Event("A")] * 1024)
        head = (await store.read(Query.all())).head
        assert head == last
        assert await store.append(Event("A"), AppendCondition(Query.all(), after=head)) == head + 1

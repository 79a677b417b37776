"""Appends with an idempotency key, on every view; and the names of the fronts."""

# ruff: noqa: SIM117 - what leaves a block is exactly what is tested
from __future__ import annotations

import inspect
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import trio

import waltz_dcb
import waltz_dcb.aio
import waltz_dcb.sync
import waltz_trio
from tests.dcb.conftest import VIEWS, MakeView, view_maker
from tests.trio.small_cluster import small_cluster
from waltz_core.base.errors import KeyReusedError, ViewIdentityError
from waltz_core.base.ids import ReqId
from waltz_dcb import AppendCondition, ConditionFailedError, Event, Query, QueryItem, open_store
from waltz_dcb.events import HEADER, PAYLOAD, payload_of

PAID = Event("Paid", b"30", ["account:7"])
NOT_PAID = AppendCondition(Query(QueryItem(["Paid"], ["account:7"])))


@pytest.fixture(params=VIEWS)
def make_view(request: pytest.FixtureRequest, tmp_path: Path) -> MakeView:
    return view_maker(request.param, request, tmp_path)


async def test_a_repeated_append_gives_the_first_position_and_appends_nothing(make_view: MakeView) -> None:
    async with small_cluster() as cluster, waltz_trio.open_client(cluster.url) as client:
        async with open_store(client, view=make_view(key_window=100)) as store:
            first = await store.append([PAID, Event("Noted")], NOT_PAID, key="order-1")
            await store.append(Event("Other"))
            again = await store.append([PAID, Event("Noted")], NOT_PAID, key="order-1")
            assert again == first == 1
            assert len(cluster.logs[0].records) == 2
            assert [each.event for each in await store.read(Query.all())] == [PAID, Event("Noted"), Event("Other")]
            with pytest.raises(ConditionFailedError):
                await store.append(PAID, NOT_PAID, key="order-2")
            with pytest.raises(KeyReusedError, match="order-1"):
                await store.append(Event("Refunded"), key="order-1")


async def test_callers_with_one_key_at_the_same_time_append_once(make_view: MakeView) -> None:
    positions = []
    async with small_cluster() as cluster, waltz_trio.open_client(cluster.url) as client:
        async with open_store(client, view=make_view(key_window=100)) as store:

            async def append() -> None:
                positions.append(await store.append(PAID, NOT_PAID, key="order-1"))

            async with trio.open_nursery() as nursery:
                for _ in range(8):
                    nursery.start_soon(append)
            assert positions == [0] * 8
            assert len(cluster.logs[0].records) == 1


@pytest.mark.parametrize("kind", VIEWS[1:])
async def test_keys_are_remembered_by_a_view_that_is_opened_again_or_made_anew(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    make_view = view_maker(kind, request, tmp_path)
    async with small_cluster() as cluster:

        async def pay(**options: Any) -> int:
            async with waltz_trio.open_client(cluster.url) as client:
                async with open_store(client, view=make_view(**options)) as store:
                    return await store.append(PAID, key="order-1")

        assert [await pay(key_window=100), await pay(key_window=100)] == [0, 0]
        with pytest.raises(ViewIdentityError):
            await pay(key_window=200)
        assert await pay(key_window=200, version=2, rebuild=True) == 0
        assert len(cluster.logs[0].records) == 1


def test_a_payload_without_a_key_is_what_it_was_before_there_were_keys() -> None:
    assert PAYLOAD.dumps(payload_of([PAID])) == b'[{"type":"Paid","data":"MzA=","tags":["account:7"]}]'
    assert HEADER == 0x444342, "all that is in the log of a store has it"
    keyed = PAYLOAD.dumps(payload_of([PAID], "order-1"))
    assert PAYLOAD.loads(keyed) == PAYLOAD.loads(PAYLOAD.dumps(payload_of([PAID])))


def test_equal_events_are_equal_bytes_in_every_process() -> None:
    """Or a repeated append would be one of other events: the order of a set differs from process to process."""
    data = PAYLOAD.dumps(payload_of([Event("A", tags=list("fedcba"))]))
    assert data == b'[{"type":"A","data":"","tags":["a","b","c","d","e","f"]}]'


@pytest.mark.parametrize("view", [waltz_dcb.sqlite_view, waltz_dcb.postgres_view, waltz_dcb.mysql_view])
def test_databases_keep_what_no_index_and_no_text_of_theirs_can_hold(
    view: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A long tag, a NUL, capitals: or the view would stop in front of the event, or take one tag for another."""
    kind = view.__name__.removesuffix("_view")
    kept = view_maker(kind, request, tmp_path)()
    tags = ["x" * 5000 + "y", "x" * 5000 + "z", "nul\0", "Tag", "tag", "t\u00e4g"]
    events = [Event(f"type of {tag}", b"\0\xff", [tag]) for tag in tags]
    data = PAYLOAD.dumps(payload_of(events))
    try:
        kept.load_mark(0)
        kept.commit(waltz_trio.Batch(0, (waltz_trio.Transaction(0, 0, HEADER, ReqId(bytes(16)), data),)))
        for event in events:
            for item in (QueryItem(tags=event.tags), QueryItem(types=[event.type])):
                found, _ = kept.read(0, lambda state, item=item: state.find(Query(item), -1, None, False), ())
                assert [each.event for each in found] == [event]
    finally:
        kept.close()


@pytest.mark.parametrize("front", [waltz_dcb.sync, waltz_dcb.aio])
def test_the_fronts_have_the_same_names_and_parameters(front: Any) -> None:
    assert front.__all__ == waltz_dcb.__all__
    own = {name for name in front.__all__ if getattr(front, name) is not getattr(waltz_dcb, name)}
    assert own == ({"EventStore", "open_store"} if front is waltz_dcb.sync else {"open_store"})
    timed = ["timeout"] if front is waltz_dcb.sync else []
    for name in ("EventStore.read", "EventStore.append", "open_store"):
        theirs, ours = (attrgetter(name)(each) for each in (waltz_dcb, front))
        assert list(inspect.signature(ours).parameters) == [*inspect.signature(theirs).parameters, *timed], name

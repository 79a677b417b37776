"""What a store takes at most, the same on every view."""

# ruff: noqa: SIM117 - what leaves a block is exactly what is tested
from __future__ import annotations

import random
from pathlib import Path

import pytest

import waltz_dcb
import waltz_trio
from tests.dcb.conftest import VIEWS, view_maker
from tests.trio.small_cluster import small_cluster
from waltz_core.base.ids import ReqId
from waltz_dcb import AppendCondition, ConditionFailedError, Event, EventStore, Query, QueryItem
from waltz_dcb.events import HEADER, PAYLOAD, payload_of


def many(count: int, name: str) -> list[str]:
    return [f"{name}{at}" for at in range(count)]


LARGEST = (
    Query(*[QueryItem(types=many(9, f"t{at}-"), tags=[f"tag{at}"]) for at in range(499)], QueryItem(["EventType1"])),
    Query(*[QueryItem(tags=many(50, "tag")) for at in range(99)], QueryItem(["EventType1"], many(49, "tag"))),
    Query(QueryItem(types=[*many(4999, "t"), "EventType1"])),
)


@pytest.mark.parametrize("kind", VIEWS)
async def test_the_largest_queries_are_answered_by_every_view(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    event = Event("EventType1", b"", many(50, "tag"))
    longest = (1 << 63) - 1
    view = view_maker(kind, request, tmp_path)()
    async with small_cluster() as cluster, waltz_trio.open_client(cluster.url) as client:
        async with waltz_dcb.open_store(client, 0, view) as store:
            await store.append([event, Event("Other")])
            for query in LARGEST:
                assert [each.event for each in await store.read(query, limit=longest)] == [event]
                with pytest.raises(ConditionFailedError):
                    await store.append(Event("Other"), AppendCondition(query))
                assert await store.append(Event("Other"), AppendCondition(query, after=longest)) > 0


@pytest.mark.parametrize(
    ("query", "text"),
    [
        (Query(*[QueryItem(tags=[f"tag{at}"]) for at in range(501)]), "at most 500 items in a query, found 501; ask "),
        (Query(QueryItem(tags=many(51, "tag"))), "at most 50 tags in an item of a query, found 51"),
        (Query(QueryItem(types=many(5001, "t"))), "at most 5,000 types and tags in a query, found 5,001"),
    ],
)
async def test_a_query_that_not_every_view_could_answer_is_refused_by_all(
    store: EventStore, query: Query, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        await store.read(query)
    with pytest.raises(ValueError, match=text):
        AppendCondition(query)


async def test_events_with_more_types_and_tags_than_an_append_has_locks_are_refused(store: EventStore) -> None:
    events = [Event("T", b"", [f"{at}:{place}" for place in range(5)]) for at in range(1000)]
    with pytest.raises(ValueError, match=r"more than 10000 locks in one append .*: these events take 10002, one for"):
        await store.append(events)
    assert await store.append(events[:999]) == 998


@pytest.mark.parametrize("kind", VIEWS)
def test_the_largest_payload_is_kept_by_every_view(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """MySQL's statements write bytes as up to twice as many, and none is larger than `max_allowed_packet`."""
    large = Event("A", bytes(6 << 20) + random.Random(1).randbytes((6 << 20) - 100), ["a", "b"])
    others = [Event("B" * (3 << 20), b"b" * (3 << 20), ["c" * (3 << 20)]), Event("C", b"c", ["c"])]
    payloads = [PAYLOAD.dumps(payload_of(events)) for events in ([large], others)]
    assert (16 << 20) - 1000 < len(payloads[0]) <= 16 << 20
    view = view_maker(kind, request, tmp_path)()
    view.load_mark(0)
    made = (waltz_trio.Transaction(0, at, HEADER, ReqId(bytes(16)), data) for at, data in enumerate(payloads))
    assert view.commit(waltz_trio.Batch(0, tuple(made))) == 1
    kept, _ = view.read(0, lambda events: events.find(Query.all(), -1, None, False), ())
    assert [each.event for each in kept] == [large, *others]
    view.close()

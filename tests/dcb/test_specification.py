"""Every MUST and SHOULD of the specification at dcb.events (as of 2026), one test each.

Each runs on every view through every front; `conftest.py` makes the stores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import trio

from waltz_dcb import (
    AppendCondition,
    ConditionFailedError,
    Event,
    EventStore,
    Query,
    QueryItem,
)


async def positions(store: EventStore, query: Query, **options: Any) -> list[int]:
    return [sequenced.position for sequenced in await store.read(query, **options)]


# ---- reading -----------------------------------------------------------------------------------------

E1 = Event("EventType1")
E2 = Event("EventType2", tags=["tag1"])
E12 = Event("Other", tags=["tag1", "tag2"])
E3 = Event("EventType3", tags=["tag1", "tag3", "tag4"])
E4 = Event("EventType4", tags=["tag1", "tag3"])
EXAMPLE = Query(
    QueryItem(types=["EventType1", "EventType2"]),
    QueryItem(tags=["tag1", "tag2"]),
    QueryItem(types=["EventType2", "EventType3"], tags=["tag1", "tag3"]),
)


async def test_must_filter_events_by_type_and_or_tag(store: EventStore) -> None:
    await store.append([E1, E2, E12, E3, E4])

    async def found(query: Query) -> list[str]:
        return [sequenced.event.type for sequenced in await store.read(query)]

    assert await found(Query(QueryItem(types=["EventType2"]))) == ["EventType2"]
    assert await found(Query(QueryItem(tags=["tag3"]))) == ["EventType3", "EventType4"]
    assert await found(Query(QueryItem(types=["EventType4"], tags=["tag3"]))) == ["EventType4"]
    assert await found(EXAMPLE) == ["EventType1", "EventType2", "Other", "EventType3"], "the example of the page"


async def test_should_read_from_a_starting_position(store: EventStore) -> None:
    for event in (E1, E2, E1):
        await store.append(event)
    first, second, third = await positions(store, Query.all())
    assert await positions(store, Query.all(), after=first) == [second, third]
    assert await positions(store, Query(QueryItem(types=["EventType1"])), after=first) == [third]


async def test_may_limit_and_order(store: EventStore) -> None:
    await store.append([E1, E2, E1])
    every = await positions(store, Query.all())
    assert await positions(store, Query.all(), limit=2) == every[:2]
    assert await positions(store, Query.all(), limit=2, backwards=True) == [every[2], every[1]]


async def test_a_read_says_what_it_takes(store: EventStore) -> None:
    await store.append([E1, E2])
    assert await positions(store, Query.all(), limit=0) == []
    for wrong, text in (
        ({"limit": "2"}, "limit is a whole number, or None for all that match, found '2'"),
        ({"limit": True}, "limit is a whole number, or None for all that match, found True"),
        ({"limit": -1}, "limit is 0 or higher, or None for all that match, found -1"),
        ({"limit": 1 << 63}, "limit is at most 2\\*\\*63 - 1, or None for all that match, found 9223372036854775808"),
        ({"after": -2}, "after is a position, -1 or higher"),
        ({"after": 1 << 63}, "after is a position, at most 2\\*\\*63 - 1, found 9223372036854775808"),
        ({"after": "0"}, "after is a position, a whole number, or None, found '0'"),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            await store.read(Query.all(), **cast(Any, wrong))
    with pytest.raises(TypeError, match=r"expected a Query, found QueryItem.*; write Query\(QueryItem"):
        await store.read(cast(Any, QueryItem(types=["EventType1"])))


# ---- writing -----------------------------------------------------------------------------------------


async def test_must_persist_one_or_more_events_atomically(store: EventStore) -> None:
    await store.append(E1)
    with pytest.raises(ConditionFailedError):
        await store.append([E2, E12, E3], AppendCondition(Query(QueryItem(types=["EventType1"]))))
    assert len(await store.read(Query.all())) == 1, "none of them"
    await store.append([E2, E12, E3], AppendCondition(Query(QueryItem(types=["EventType9"]))))
    assert [sequenced.event for sequenced in await store.read(Query.all())] == [E1, E2, E12, E3], "all of them"


async def test_must_fail_if_an_event_matches_the_condition(store: EventStore) -> None:
    last = await store.append([E1, E12])
    for query in (EXAMPLE, Query.all(), Query(QueryItem(tags=["tag2", "tag1"]))):
        with pytest.raises(ConditionFailedError, match="an event matches the condition: "):
            await store.append(E3, AppendCondition(query))
    with pytest.raises(ConditionFailedError) as failed:
        await store.append(E3, AppendCondition(Query(QueryItem(tags=["tag1", "tag2"]))))
    assert failed.value.match.position == last
    assert failed.value.match.event == E12


async def test_must_fail_for_all_but_one_of_those_who_append_at_the_same_time(store: EventStore) -> None:
    claim, won, lost = Event("Claimed", tags=["name:ann"]), [], []
    condition = AppendCondition(Query(QueryItem(["Claimed"], ["name:ann"])))

    async def try_it() -> None:
        try:
            won.append(await store.append(claim, condition))
        except ConditionFailedError:
            lost.append(1)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(try_it)
    assert (len(won), len(lost)) == (1, 19)


# ---- query -------------------------------------------------------------------------------------------


async def test_a_query_must_have_an_item_or_match_all_events(store: EventStore) -> None:
    with pytest.raises(ValueError, match="at least one item"):
        Query()
    await store.append([E1, E2, E12])
    assert len(await store.read(Query.all())) == 3


async def test_items_are_combined_with_or_and_give_each_event_once(store: EventStore) -> None:
    await store.append([E1, E2])
    both = Query(QueryItem(types=["EventType2"]), QueryItem(tags=["tag1"]), QueryItem(types=["EventType1"]))
    assert len(await store.read(both)) == 2


async def test_the_type_must_be_one_of_the_types_of_an_item(store: EventStore) -> None:
    await store.append([E1, E2, E3])
    found = await store.read(Query(QueryItem(types=["EventType1", "EventType3"])))
    assert [sequenced.event.type for sequenced in found] == ["EventType1", "EventType3"]


async def test_the_tags_must_contain_all_tags_of_an_item(store: EventStore) -> None:
    await store.append([E2, E12, E3])
    found = await store.read(Query(QueryItem(tags=["tag3", "tag1"])))
    assert [sequenced.event for sequenced in found] == [E3]


# ---- sequenced events and positions ------------------------------------------------------------------


async def test_a_sequenced_event_must_contain_position_and_event(store: EventStore) -> None:
    position = await store.append(E12)
    (sequenced,) = await store.read(Query.all())
    assert (sequenced.position, sequenced.event) == (position, E12)


async def test_a_position_must_be_unique(store: EventStore) -> None:
    for events in ([E1, E1, E1], [E1], [E1, E2]):
        await store.append(events)
    found = await positions(store, Query.all())
    assert len(set(found)) == 6
    assert found == sorted(found), "and they grow"


# ---- events ------------------------------------------------------------------------------------------


async def test_events_must_not_be_empty(store: EventStore) -> None:
    with pytest.raises(ValueError, match="1 to 1024 events, found 0"):
        await store.append([])
    with pytest.raises(ValueError, match="1 to 1024 events, found 1025"):
        await store.append([E1] * 1025)
    assert await store.append([E1] * 1024) == 1023


async def test_events_must_be_iterable(store: EventStore) -> None:
    await store.append(event for event in (E1, E2))
    assert len(await store.read(Query.all())) == 2
    with pytest.raises(TypeError, match="expected Event"):
        await store.append(["EventType1"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Event(""), "the type of an event"),
        (lambda: Event("A", cast(bytes, "abcd")), "the data of an event are bytes, found 'abcd'"),
        (lambda: Event("A", tags="course:c1"), r"tags are a collection of texts.*write \['course:c1'\]"),
        (lambda: Event("A", tags=[cast(str, 1)]), "tags are texts"),
        (lambda: QueryItem(types="A"), "types are a collection"),
        (lambda: Query(cast(QueryItem, "A")), "expected QueryItem"),
        (lambda: AppendCondition(cast(Query, "A")), "expected a Query"),
        (lambda: AppendCondition(Query.all(), cast(int, "0")), "after is a position"),
        (lambda: AppendCondition(Query.all(), True), "after is a position"),
    ],
)
def test_what_is_no_event_or_query_is_refused(make: Callable[[], object], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        make()


def test_a_condition_behind_a_position_that_no_store_has_is_refused() -> None:
    """It was taken for the start of the store: whatever was meant is another place."""
    assert AppendCondition(Query.all(), after=-1).after == -1
    with pytest.raises(ValueError, match=r"after is a position, -1 or higher .*, found -5; write after=events.head"):
        AppendCondition(Query.all(), after=-5)
    assert AppendCondition(Query.all(), after=(1 << 63) - 1).after == (1 << 63) - 1
    with pytest.raises(ValueError, match=r"after is a position, at most 2\*\*63 - 1, found 9223372036854775808"):
        AppendCondition(Query.all(), after=1 << 63)


async def test_an_event_must_contain_type_data_and_tags(store: EventStore) -> None:
    events = [Event("A", b"\0\xff", ["x", "y"]), Event("B")]
    await store.append(events)
    assert [sequenced.event for sequenced in await store.read(Query.all())] == events
    assert events[1].tags == frozenset(), "which may be none"


async def test_tags_should_not_contain_one_twice(store: EventStore) -> None:
    await store.append(Event("A", tags=["x", "x"]))
    (sequenced,) = await store.read(Query(QueryItem(tags=["x"])))
    assert sorted(sequenced.event.tags) == ["x"]


# ---- append condition --------------------------------------------------------------------------------


def test_a_condition_must_contain_a_query() -> None:
    with pytest.raises(TypeError):
        AppendCondition()  # type: ignore[call-arg]


async def test_events_up_to_after_must_be_ignored(store: EventStore) -> None:
    first = await store.append(E1)
    second = await store.append(E1)
    query = Query(QueryItem(types=["EventType1"]))
    with pytest.raises(ConditionFailedError) as failed:
        await store.append(E2, AppendCondition(query, after=first))
    assert failed.value.match.position == second
    await store.append(E2, AppendCondition(query, after=second))


async def test_after_may_be_higher_than_the_last_match(store: EventStore) -> None:
    await store.append(E1)
    await store.append(E2)
    seen = await store.read(Query(QueryItem(types=["EventType1"])))
    assert seen.head > seen[-1].position
    await store.append(E1, AppendCondition(Query(QueryItem(types=["EventType1"])), after=seen.head))


async def test_without_after_no_event_is_ignored(store: EventStore) -> None:
    query = Query(QueryItem(types=["EventType1"]))
    await store.append(E1, AppendCondition(query))
    with pytest.raises(ConditionFailedError):
        await store.append(E1, AppendCondition(query))


async def test_a_condition_is_no_query(store: EventStore) -> None:
    with pytest.raises(TypeError, match=r"expected AppendCondition\(QUERY, after=HEAD\), found Query"):
        await store.append(E1, cast(Any, Query.all()))
    assert await positions(store, Query.all()) == []


def test_texts_are_unicode() -> None:
    half = "\ud800"
    for wrong in (lambda: Event(half), lambda: Event("T", tags=[half]), lambda: QueryItem(types=[half])):
        with pytest.raises(ValueError, match="expected Unicode, found half of a surrogate pair in"):
            wrong()
    assert Event("T\ue000", tags=["\U0001f600"]).tags == {"\U0001f600"}

"""Whatever matches a condition takes a lock that the condition looks at; both views find what matches."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_core.base.ids import ReqId
from waltz_core.base.lock import Lock
from waltz_dcb import Event, Query, QueryItem
from waltz_dcb.events import HEADER, PAYLOAD, payload_of
from waltz_dcb.locks import locks_looked_at, locks_taken
from waltz_dcb.memory import MemoryEvents
from waltz_dcb.sql import SQLITE, SqlEvents
from waltz_trio import PayloadInvalidError, Transaction

NAMES = st.sampled_from(["a", "b", "c", "a\0b"])
EVENTS = st.builds(Event, NAMES, tags=st.sets(NAMES))
QUERIES = st.builds(
    lambda items: Query(*items), st.lists(st.builds(QueryItem, st.sets(NAMES), st.sets(NAMES)), min_size=1, max_size=3)
)


@given(st.lists(EVENTS, min_size=1, max_size=3), QUERIES, st.dictionaries(NAMES, st.integers(0, 5)))
def test_a_match_takes_a_lock_that_the_condition_looks_at(
    events: list[Event], query: Query, counts: dict[str, int]
) -> None:
    looked_at = locks_looked_at(query, lambda tag: counts.get(tag, 0))
    if any(map(query.matches, events)):
        assert not set(looked_at).isdisjoint(locks_taken(events))


@pytest.mark.parametrize("tags", [[], ["x"], ["x", "y"]])
def test_each_type_of_each_item_is_looked_at(tags: list[str]) -> None:
    query = Query(QueryItem(["A", "B", "C"], tags), QueryItem(["D", "E"], tags))
    looked_at = locks_looked_at(query, lambda tag: 0)
    for kind in "ABCDE":
        assert not set(looked_at).isdisjoint(locks_taken([Event(kind, tags=tags)])), kind


def test_of_several_tags_the_rarest_is_looked_at() -> None:
    query, counts = Query(QueryItem(tags=["course:c1", "student:s1"])), {"course:c1": 1000, "student:s1": 3}
    (lock,) = locks_looked_at(query, counts.__getitem__)
    assert lock in locks_taken([Event("X", tags=["student:s1"])])
    assert lock not in locks_taken([Event("X", tags=["course:c1"])])


def test_what_has_nothing_in_common_does_not_conflict() -> None:
    looked_at = locks_looked_at(Query(QueryItem(["Subscribed"], ["course:c1"])), lambda tag: 0)
    for other in (Event("Subscribed", tags=["course:c2"]), Event("Renamed", tags=["course:c1"]), Event("Subscribed")):
        assert set(looked_at).isdisjoint(locks_taken([other])), other


def test_every_program_and_version_takes_the_same_locks() -> None:
    """Or two that append to one log at the same time would not see each other."""
    event, of_all = Event("Subscribed", tags=["student:s1", "course:c1"]), Lock("dcb.all", 0)
    of_type, of_tag = Lock("dcb.type", 2721433652020866132), Lock("dcb.tag", 4156114811405375787)
    of_both = Lock("dcb.type+tag", -6003633969191225663)
    others = [Lock("dcb.tag", -3777047473036296417), Lock("dcb.type+tag", -1117401605647166842)]
    assert locks_taken([event]) == [of_all, of_type, of_tag, of_both, *others]
    for query, looked_at in (
        (Query.all(), of_all),
        (Query(QueryItem(["Subscribed"])), of_type),
        (Query(QueryItem(tags=["course:c1"])), of_tag),
        (Query(QueryItem(["Subscribed"], ["course:c1"])), of_both),
    ):
        assert locks_looked_at(query, lambda tag: 0) == [looked_at]


def test_the_locks_of_an_event_have_one_order() -> None:
    tags = [f"tag {number}" for number in range(9)]
    assert locks_taken([Event("A", tags=tags)])[2::2] == [
        lock for tag in tags for lock in locks_looked_at(Query(QueryItem(tags=[tag])), lambda tag: 0)
    ]


def test_queries_are_equal_where_their_items_are() -> None:
    item, other = QueryItem(["A"], ["x"]), QueryItem(["A"], ["y"])
    assert Query(item, other) == Query(QueryItem(["A"], ["x"]), other)
    assert hash(Query(item)) == hash(Query(QueryItem(["A"], ["x"])))
    assert Query(item) != Query(other)
    assert Query(item) != item


def transactions(appends: list[list[Event]]) -> Iterator[Transaction]:
    for number, events in enumerate(appends):
        yield Transaction(0, number, HEADER, ReqId(bytes(16)), PAYLOAD.dumps(payload_of(events)))


@given(
    st.lists(st.lists(EVENTS, min_size=1, max_size=3), max_size=5),
    QUERIES,
    st.integers(-1, 5000),
    st.one_of(st.none(), st.integers(0, 3)),
    st.booleans(),
)
def test_both_views_find_what_matches(
    appends: list[list[Event]], query: Query, after: int, limit: int | None, backwards: bool
) -> None:
    memory, connection = MemoryEvents(), sqlite3.connect(":memory:")
    connection.executescript(SQLITE.schema)
    cursor = connection.cursor()
    every = []
    for transaction in transactions(appends):
        memory.add(transaction)
        SQLITE.apply(transaction, cursor)
        every += [(event, transaction.id * 1024 + place) for place, event in enumerate(appends[transaction.id])]
    expected = [each for each in every if each[1] > after and query.matches(each[0])]
    expected = (expected[::-1] if backwards else expected)[:limit]
    for view in (memory, SqlEvents(cursor, SQLITE)):
        assert [(each.event, each.position) for each in view.find(query, after, limit, backwards)] == expected
        assert view.count_of("a") == sum("a" in event.tags for event, _ in every)
    connection.close()


def test_transactions_of_others_are_no_events() -> None:
    memory = MemoryEvents()
    memory.add(Transaction(0, 0, 7, ReqId(bytes(16)), b"anything"))
    assert memory.find(Query.all(), -1, None, False) == []
    with pytest.raises(PayloadInvalidError):
        memory.add(Transaction(0, 1, HEADER, ReqId(bytes(16)), b"anything"))

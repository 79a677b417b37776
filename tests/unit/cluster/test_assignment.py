"""The assignment policy: complete, even, and generations that rise exactly where the server changes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.twin_0132.cluster import IncompleteAssignmentError, assign_0132
from waltz_core.cluster.assignment import (
    FewerPartitionsError,
    Member,
    assign,
    legacy_assignment_fails,
)
from waltz_core.zookeeper.znodes import EMPTY_ASSIGNMENT, PartitionAssignment, ServerPartitions

small = st.integers(-1, 12)
members_of_any_kind = st.lists(
    st.builds(Member, st.integers(1, 9), st.lists(small, max_size=6).map(tuple)),
    min_size=1,
    max_size=6,
    unique_by=lambda member: member.server_id,
)


def sound(num_partitions: int, owners: list[int], generations: list[int]) -> PartitionAssignment:
    """An assignment that holds every partition once."""
    owned: dict[int, list[tuple[int, int]]] = {}
    for partition in range(num_partitions):
        owned.setdefault(owners[partition % len(owners)], []).append(
            (partition, generations[partition % len(generations)])
        )
    servers = tuple(ServerPartitions(server, tuple(pairs)) for server, pairs in owned.items())
    return PartitionAssignment(1, num_partitions, servers)


sound_assignments = st.builds(
    sound,
    st.integers(0, 12),
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.lists(st.integers(1, 50), min_size=1, max_size=12),
)
broken_assignments = st.builds(
    PartitionAssignment,
    st.just(1),
    st.integers(0, 12),
    st.lists(
        st.builds(ServerPartitions, st.integers(1, 9), st.lists(st.tuples(small, st.integers(0, 50))).map(tuple)),
        max_size=4,
        unique_by=lambda server: server.server_id,
    ).map(tuple),
)


def holders(assignment: PartitionAssignment) -> dict[int, tuple[int, int]]:
    """Partition → (server, generation); an id that occurs twice fails."""
    found: dict[int, tuple[int, int]] = {}
    for server in assignment.servers:
        for partition, generation in server.partitions:
            assert partition not in found
            found[partition] = server.server_id, generation
    return found


@given(sound_assignments | broken_assignments, st.integers(0, 4), members_of_any_kind, st.integers())
def test_every_partition_has_exactly_one_owner_whatever_is_stored_and_claimed(
    old: PartitionAssignment, more: int, members: list[Member], seed: int
) -> None:
    count = old.num_partitions + more
    new = assign(old, count, members, 7, random.Random(seed))
    assert (new.cversion, new.num_partitions) == (7, count)
    assert set(holders(new)) == set(range(count))
    assert [server.server_id for server in new.servers] == [member.server_id for member in members]


@given(sound_assignments, st.integers(0, 4), members_of_any_kind)
def test_the_generation_rises_by_one_exactly_where_the_server_changes(
    old: PartitionAssignment, more: int, members: list[Member]
) -> None:
    before = holders(old)
    for partition, (server, generation) in holders(assign(old, old.num_partitions + more, members, 7)).items():
        last_server, last = before.get(partition, (None, 0))
        assert generation == (last if server == last_server else last + 1)


@given(sound_assignments, st.integers(0, 4), members_of_any_kind)
def test_shares_are_even_but_for_claims(old: PartitionAssignment, more: int, members: list[Member]) -> None:
    count = old.num_partitions + more
    new = assign(old, count, [Member(member.server_id) for member in members], 7)
    sizes = sorted(len(server.partitions) for server in new.servers)
    assert sizes[-1] - sizes[0] <= 1
    claimed = assign(old, count, members, 7)
    claims = {partition for member in members for partition in member.preferred_partitions}
    for server in claimed.servers:
        if not {partition for partition, _ in server.partitions} <= claims:
            assert len(server.partitions) <= -(-count // len(members))


@given(sound_assignments, members_of_any_kind)
def test_the_first_claimant_gets_what_it_claims(old: PartitionAssignment, members: list[Member]) -> None:
    new = holders(assign(old, old.num_partitions, members, 7))
    for partition in range(old.num_partitions):
        claimants = [member.server_id for member in members if partition in member.preferred_partitions]
        if claimants:
            assert new[partition][0] == claimants[0]


@given(sound_assignments, st.integers(0, 4), members_of_any_kind)
def test_nothing_moves_the_second_time(old: PartitionAssignment, more: int, members: list[Member]) -> None:
    once = assign(old, old.num_partitions + more, members, 7)
    assert holders(assign(once, once.num_partitions, members, 8)) == holders(once)


@given(sound_assignments, st.integers(0, 4), members_of_any_kind)
def test_the_original_fails_exactly_where_it_is_predicted(
    old: PartitionAssignment, more: int, members: list[Member]
) -> None:
    count = old.num_partitions + more
    failed = False
    try:
        assign_0132(old, count, members, 7)
    except IncompleteAssignmentError:
        failed = True
    assert legacy_assignment_fails(count, members) == failed


def test_the_smallest_cluster_that_the_original_freezes() -> None:
    """Two servers, three partitions, one claim."""
    members = [Member(1), Member(2, (2,))]
    assert legacy_assignment_fails(3, members)
    assert not legacy_assignment_fails(4, members)
    with pytest.raises(IncompleteAssignmentError):
        assign_0132(EMPTY_ASSIGNMENT, 3, members, 1)
    assert len(holders(assign(EMPTY_ASSIGNMENT, 3, members, 1))) == 3


def test_the_number_of_partitions_never_falls() -> None:
    with pytest.raises(FewerPartitionsError):
        assign(sound(3, [1], [1]), 2, [Member(1)], 1)


def test_nobody_owns_anything_when_nobody_is_there() -> None:
    assert assign(sound(3, [1], [1]), 3, [], 5) == PartitionAssignment(5, 3, ())


def test_a_lost_partition_starts_above_every_known_generation() -> None:
    """A generation below the stored partition metadata would keep it out of service."""
    old = PartitionAssignment(1, 3, (ServerPartitions(1, ((0, 9), (1, 4))),))
    assert holders(assign(old, 3, [Member(1)], 2)) == {0: (1, 9), 1: (1, 4), 2: (1, 10)}


def test_of_two_stored_owners_the_higher_generation_holds() -> None:
    old = PartitionAssignment(1, 2, (ServerPartitions(1, ((0, 1), (1, 1))), ServerPartitions(2, ((0, 4),))))
    assert holders(assign(old, 2, [Member(1), Member(2)], 2)) == {0: (2, 4), 1: (1, 1)}


def test_the_shuffle_changes_the_order_only() -> None:
    old = sound(8, [1], [1])
    plain, shuffled = (assign(old, 8, [Member(1)], 1, rng) for rng in (None, random.Random(1)))
    assert plain != shuffled
    assert holders(plain) == holders(shuffled)

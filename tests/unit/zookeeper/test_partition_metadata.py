"""Metadata of a partition: which replicas a session names."""

from __future__ import annotations

from tests.model.recovery_world import PARTITION, state
from waltz_core.zookeeper.partition_metadata import last_session, recovered_metadata, same_metadata, states_by_storage
from waltz_core.zookeeper.znodes import UNRESOLVED, PartitionMetadata


def test_each_assigned_replica_is_named_taking_part_or_good_up_to_a_mark() -> None:
    """One replica of each kind; the one that is not assigned any more is forgotten."""
    old = PartitionMetadata(
        2,
        5,
        (
            state("part", 4, UNRESOLVED),
            state("absent", 4, UNRESOLVED),
            state("older", 2, 7),
            state("gone", 4, UNRESOLVED),
            state("again", 5, UNRESOLVED),
        ),
    )

    new = recovered_metadata(
        old,
        partition_id=PARTITION,
        generation=2,
        session_id=5,
        assigned=("part", "absent", "older", "again", "new", "newer"),
        taking_part={"part", "newer"},
        resolved=12,
    )

    assert new == PartitionMetadata(
        2,
        5,
        (
            state("part", 5, UNRESOLVED),
            state("absent", 4, 12),
            state("older", 2, 7),
            state("again", 5, UNRESOLVED),
            state("new", -1, 12),
            state("newer", 5, UNRESOLVED),
        ),
    )
    assert last_session(states_by_storage(new)) == 5


def test_the_order_of_states_is_of_no_meaning() -> None:
    """0.13.2 writes them in the order of a hash map."""
    one, other = state("a", 1, 2), state("b", 1, 2)
    assert same_metadata(PartitionMetadata(1, 2, (one, other)), PartitionMetadata(1, 2, (other, one)))
    assert not same_metadata(PartitionMetadata(1, 2, (one, other)), PartitionMetadata(1, 2, (one,)))
    assert not same_metadata(PartitionMetadata(1, 2, ()), PartitionMetadata(1, 3, ()))


def test_no_session_is_before_the_first() -> None:
    """No states: nobody ever took part."""
    assert last_session({}) == -1

"""The admin operations: what they change, and that a refusal changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_core.zookeeper.java_order import filled_table_size, table_order, text_hash
from waltz_core.zookeeper.store_metadata import (
    EMPTY_STORE,
    StoreArgumentError,
    StoreChange,
    StoreMaps,
    StoreOperationError,
    StoreStateError,
    add_storage_node,
    assign_partitions,
    auto_assign,
    full_store,
    remove_storage_node,
    set_admin_port,
    unassign_partitions,
)
from waltz_core.zookeeper.znodes import ConnectionMetadata, GroupDescriptor, ReplicaAssignments

STORAGES = ("a:1", "b:1", "c:1", "d:1")
PARTITIONS = 6


def store(**replicas: tuple[int, ...]) -> StoreMaps:
    """Nodes a:1, b:1 … with these partitions, all in group 0."""
    entries = tuple((f"{name}:1", partitions) for name, partitions in replicas.items())
    return StoreMaps(
        GroupDescriptor(tuple((name, 0) for name, _ in entries)),
        ReplicaAssignments(entries),
        ConnectionMetadata(tuple((name, 9) for name, _ in entries)),
    )


operations = st.one_of(
    st.builds(
        lambda name, group: lambda maps: add_storage_node(maps, name, group, 9),
        st.sampled_from(STORAGES),
        st.integers(0, 1),
    ),
    st.builds(lambda name: lambda maps: remove_storage_node(maps, name), st.sampled_from(STORAGES)),
    st.builds(lambda name: lambda maps: set_admin_port(maps, name, 10), st.sampled_from(STORAGES)),
    st.builds(
        lambda ids, name: lambda maps: assign_partitions(maps, PARTITIONS, ids, name),
        st.lists(st.integers(-1, PARTITIONS), max_size=4),
        st.sampled_from(STORAGES),
    ),
    st.builds(
        lambda ids, name: lambda maps: unassign_partitions(maps, ids, name),
        st.lists(st.integers(0, PARTITIONS), max_size=3),
        st.sampled_from(STORAGES),
    ),
    st.builds(lambda group: lambda maps: auto_assign(maps, PARTITIONS, group), st.integers(0, 1)),
)


@given(st.lists(operations, max_size=25))
def test_the_three_maps_always_name_the_same_nodes_and_groups_stay_full(
    steps: list[Callable[[StoreMaps], StoreChange]],
) -> None:
    maps = EMPTY_STORE
    for step in steps:
        before_full = full_groups(maps)
        try:
            change = step(maps)
        except StoreOperationError:
            continue
        maps = change.after
        names = sorted(name for name, _ in maps.groups.groups)
        assert sorted(name for name, _ in maps.replicas.replicas) == names
        assert sorted(name for name, _ in maps.connections.connections) == names
        for _, partitions in maps.replicas.replicas:
            assert list(partitions) == sorted(set(partitions) & set(range(PARTITIONS)))
        assert before_full <= full_groups(maps)


def full_groups(maps: StoreMaps) -> set[int]:
    """Groups that hold every partition."""
    replicas = dict(maps.replicas.replicas)
    held: dict[int, set[int]] = {}
    for name, group in maps.groups.groups:
        held.setdefault(group, set()).update(replicas[name])
    return {group for group, partitions in held.items() if len(partitions) == PARTITIONS}


@given(st.integers(0, 30), st.integers(1, 8))
def test_auto_assign_gives_a_group_every_partition_once(count: int, nodes: int) -> None:
    maps = store(**{f"n{number}": () for number in range(nodes)})
    after = auto_assign(maps, count, 0).after
    held = sorted(partition for _, partitions in after.replicas.replicas for partition in partitions)
    assert held == list(range(count))
    sizes = [len(partitions) for _, partitions in after.replicas.replicas]
    assert max(sizes) - min(sizes) <= 1


def test_a_node_that_is_in_some_maps_only_is_repaired_by_removing_it() -> None:
    """0.13.2 writes the maps one after the other and may stop in between (zk-D13)."""
    half = StoreMaps(GroupDescriptor((("a:1", 0),)), ReplicaAssignments(()), ConnectionMetadata(()))
    with pytest.raises(StoreStateError, match="already exists"):
        add_storage_node(half, "a:1", 0, 9)
    change = remove_storage_node(half, "a:1")
    assert change.after == EMPTY_STORE
    assert change.written == ("assignment", "group", "connection")
    with pytest.raises(StoreArgumentError, match="does not exist"):
        assign_partitions(half, 1, [0], "a:1")
    with pytest.raises(StoreArgumentError, match="does not exist"):
        unassign_partitions(half, [0], "a:1")


def test_a_node_with_partitions_that_lacks_its_admin_port_is_completed_in_place() -> None:
    """It cannot be removed, and the last one of its group does not give its partitions up."""
    half = StoreMaps(GroupDescriptor(()), ReplicaAssignments((("a:1", (0,)),)), ConnectionMetadata(()))
    after = add_storage_node(half, "a:1", 0, 9).after
    assert after.groups == GroupDescriptor((("a:1", 0),))
    assert after.replicas == half.replicas
    assert after.connections == ConnectionMetadata((("a:1", 9),))
    with pytest.raises(StoreStateError, match="already exists"):
        add_storage_node(after, "a:1", 0, 9)
    elsewhere = StoreMaps(GroupDescriptor((("a:1", 1),)), half.replicas, half.connections)
    with pytest.raises(StoreStateError, match="already exists"):
        add_storage_node(elsewhere, "a:1", 0, 9)


def test_a_wrong_admin_port_is_corrected_and_nothing_else_changes() -> None:
    before = store(a=(0,), b=(0,))
    change = set_admin_port(before, "a:1", 77)
    assert change.written == ("connection",)
    assert change.after == StoreMaps(before.groups, before.replicas, ConnectionMetadata((("a:1", 77), ("b:1", 9))))


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (lambda: set_admin_port(store(a=(1,)), "b:1", 9), "does not exist"),
        (lambda: remove_storage_node(store(a=(1,)), "b:1"), "does not exist"),
        (lambda: remove_storage_node(store(a=(1,)), "a:1"), "containing partitions"),
        (lambda: assign_partitions(store(a=()), 4, [], "a:1"), "empty"),
        (lambda: assign_partitions(store(a=()), 4, [9, 2, -3], "a:1"), r"\[-3, 9\] does not belong"),
        (lambda: assign_partitions(store(a=(2,)), 4, [3, 2], "a:1"), "Partition 2 already exists"),
        (lambda: unassign_partitions(store(a=(1,)), [], "a:1"), "empty"),
        (lambda: unassign_partitions(store(a=(1,)), [1], "b:1"), "not part of any of the storage groups"),
        (lambda: unassign_partitions(store(a=(1,)), [2], "a:1"), "Partition 2 does not exist"),
        (lambda: unassign_partitions(store(a=(1,), b=()), [1], "a:1"), "full partitions after removing 1"),
        (lambda: auto_assign(store(a=()), 4, 1), "No storage node found"),
        (lambda: auto_assign(store(a=(1,)), 4, 0), "Found storage node with assignment"),
    ],
)
def test_refusals_carry_the_text_of_the_original(operation: Callable[[], StoreChange], text: str) -> None:
    with pytest.raises(StoreOperationError, match=text):
        operation()


def test_partitions_are_taken_from_a_node_while_its_group_holds_them_elsewhere() -> None:
    change = unassign_partitions(store(a=(0, 1, 2), b=(1, 2)), [2, 1], "a:1")
    assert change.after.replicas.replicas == (("a:1", (0,)), ("b:1", (1, 2)))
    assert change.written == ("assignment",)


def test_a_store_made_with_its_nodes_gives_every_partition_to_each() -> None:
    maps = full_store(3, [("a:1", 0), ("b:1", 1)], [("a:1", 7), ("b:1", 8)])
    assert maps.replicas.replicas == (("a:1", (0, 1, 2)), ("b:1", (0, 1, 2)))


def test_hash_tables_are_those_of_java() -> None:
    assert text_hash("") == 0
    assert text_hash("Aa") == text_hash("BB") == 2112
    assert text_hash("Cluster Manager") == -1259834553 & 0xFFFFFFFF
    assert [filled_table_size(count) for count in (0, 12, 13, 24, 25)] == [16, 16, 32, 32, 64]
    assert table_order([1, 16, 17, 65536], [1, 16, 17, 65536], 16) == [16, 1, 17, 65536]

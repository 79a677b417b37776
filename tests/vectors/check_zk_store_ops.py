"""The admin operations on groups, replica assignments and connections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.vectors.reading import Fields, Unit, lines
from tests.vectors.znode_fields import Json, decode, encode, from_fields
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
    unassign_partitions,
)

ERRORS: dict[str, type[StoreOperationError]] = {
    "IllegalStateException": StoreStateError,
    "IllegalArgumentException": StoreArgumentError,
}


def units(path: Path) -> Iterator[Unit]:
    for name, line in lines(path):
        yield Unit(name, [line], lambda line=line: _check(line))  # type: ignore[misc]


def maps_of(fields: Json) -> StoreMaps:
    return StoreMaps(
        from_fields("GroupDescriptor", {"groups": fields["groups"]}),
        from_fields("ReplicaAssignments", {"replicas": fields["replicas"]}),
        from_fields("ConnectionMetadata", {"connections": fields["connections"]}),
    )


def sorted_maps(maps: StoreMaps) -> dict[str, Any]:
    """The maps without an order of entries, as the vectors record them."""
    return {
        "groups": dict(maps.groups.groups),
        "replicas": dict(maps.replicas.replicas),
        "connections": dict(maps.connections.connections),
    }


def run_operation(before: StoreMaps, num_partitions: int, operation: str, args: Json) -> StoreChange:
    match operation:
        case "add-storage-node":
            return add_storage_node(before, args["storage"], args["group"], args["admin_port"])
        case "remove-storage-node":
            return remove_storage_node(before, args["storage"])
        case "assign-partition":
            return assign_partitions(before, num_partitions, args["partitions"], args["storage"])
        case "unassign-partition":
            return unassign_partitions(before, args["partitions"], args["storage"])
        case "auto-assign":
            return auto_assign(before, num_partitions, args["group"])
    raise AssertionError(f"unknown operation {operation}")


def _check(line: Fields) -> frozenset[str]:
    line.ignore("case")
    assert line["type"] == "store_op"
    operation, args, num_partitions = line["op"], line["args"].all(), line["num_partitions"]
    if operation == "create":
        after = full_store(num_partitions, tuple(args["groups"].items()), tuple(args["connections"].items()))
        assert args["groups"] or after == EMPTY_STORE
        assert sorted_maps(after) == sorted_maps(maps_of(line["after"].all()))
        return frozenset()
    before = maps_of(line["before"].all())
    problem, change = None, None
    try:
        change = run_operation(before, num_partitions, operation, args)
    except StoreOperationError as raised:
        problem = raised
    if change is None:
        assert type(problem) is ERRORS[line["error"]]
        assert str(problem) == line["error_message"]
        return frozenset()
    assert sorted_maps(change.after) == sorted_maps(maps_of(line["after"].all()))
    assert list(change.written) == line["written"]
    for kind, record in (
        ("GroupDescriptor", change.after.groups),
        ("ReplicaAssignments", change.after.replicas),
        ("ConnectionMetadata", change.after.connections),
    ):
        assert decode(kind, encode(kind, record)) == record
    return frozenset()

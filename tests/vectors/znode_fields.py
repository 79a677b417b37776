"""The JSON form of znodes in the vectors ↔ our records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from waltz_core.base.ids import Endpoint, ReplicaId
from waltz_core.zookeeper import znodes

Json = dict[str, Any]


def _state(fields: Json) -> znodes.ReplicaState:
    replica_id = ReplicaId(fields["partition_id"], fields["storage"])
    return znodes.ReplicaState(replica_id, fields["session_id"], fields["closing_high_water_mark"])


def _state_fields(state: znodes.ReplicaState) -> Json:
    return {
        "partition_id": state.replica_id.partition_id,
        "storage": state.replica_id.storage,
        "session_id": state.session_id,
        "closing_high_water_mark": state.closing_mark,
    }


def _pairs(entries: list[Any]) -> tuple[Any, ...]:
    return tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in entries)


def _lists(entries: tuple[Any, ...]) -> list[Any]:
    return [[key, list(value) if isinstance(value, tuple) else value] for key, value in entries]


def assignment(fields: Json) -> znodes.PartitionAssignment:
    return znodes.PartitionAssignment(
        fields["cversion"],
        fields["num_partitions"],
        tuple(
            znodes.ServerPartitions(server["server_id"], tuple(map(tuple, server["partitions"])))
            for server in fields["servers"]
        ),
    )


def assignment_fields(record: znodes.PartitionAssignment) -> Json:
    servers = [
        {"server_id": server.server_id, "partitions": [list(pair) for pair in server.partitions]}
        for server in record.servers
    ]
    return {"cversion": record.cversion, "num_partitions": record.num_partitions, "servers": servers}


_KINDS: dict[
    str, tuple[Callable[[Json], Any], Callable[[Any], Json], Callable[[Any], bytes], Callable[[bytes], Any]]
] = {
    "Integer": (
        lambda f: f["value"],
        lambda r: {"value": r},
        znodes.encode_id_counter,
        znodes.decode_id_counter,
    ),
    "ClusterParams": (
        lambda f: znodes.ClusterParams(f["name"], f["num_partitions"]),
        lambda r: {"name": r.name, "num_partitions": r.num_partitions},
        znodes.encode_cluster_params,
        znodes.decode_cluster_params,
    ),
    "ServerDescriptor": (
        lambda f: znodes.ServerDescriptor(
            f["server_id"], Endpoint(f["host"], f["port"]), tuple(f["preferred_partitions"])
        ),
        lambda r: {
            "server_id": r.server_id,
            "host": r.endpoint.host,
            "port": r.endpoint.port,
            "preferred_partitions": list(r.preferred_partitions),
        },
        znodes.encode_server_descriptor,
        znodes.decode_server_descriptor,
    ),
    "PartitionAssignment": (
        assignment,
        assignment_fields,
        znodes.encode_partition_assignment,
        znodes.decode_partition_assignment,
    ),
    "StoreParams": (
        lambda f: znodes.StoreParams(UUID(f["key"]).bytes, f["num_partitions"]),
        lambda r: {"key": r.key_text(), "num_partitions": r.num_partitions},
        znodes.encode_store_params,
        znodes.decode_store_params,
    ),
    "GroupDescriptor": (
        lambda f: znodes.GroupDescriptor(_pairs(f["groups"])),
        lambda r: {"groups": _lists(r.groups)},
        znodes.encode_group_descriptor,
        znodes.decode_group_descriptor,
    ),
    "ConnectionMetadata": (
        lambda f: znodes.ConnectionMetadata(_pairs(f["connections"])),
        lambda r: {"connections": _lists(r.connections)},
        znodes.encode_connection_metadata,
        znodes.decode_connection_metadata,
    ),
    "ReplicaAssignments": (
        lambda f: znodes.ReplicaAssignments(_pairs(f["replicas"])),
        lambda r: {"replicas": _lists(r.replicas)},
        znodes.encode_replica_assignments,
        znodes.decode_replica_assignments,
    ),
    "ReplicaId": (
        lambda f: ReplicaId(f["partition_id"], f["storage"]),
        lambda r: {"partition_id": r.partition_id, "storage": r.storage},
        znodes.encode_replica_id,
        znodes.decode_replica_id,
    ),
    "ReplicaState": (_state, _state_fields, znodes.encode_replica_state, znodes.decode_replica_state),
    "PartitionMetadata": (
        lambda f: znodes.PartitionMetadata(
            f["generation"], f["session_id"], tuple(_state(state) for state in f["replica_states"])
        ),
        lambda r: {
            "generation": r.generation,
            "session_id": r.session_id,
            "replica_states": [_state_fields(state) for state in r.replica_states],
        },
        znodes.encode_partition_metadata,
        znodes.decode_partition_metadata,
    ),
}


def from_fields(kind: str, fields: Json) -> Any:
    """The record of a type named as in the vectors."""
    return _KINDS[kind][0](fields)


def to_fields(kind: str, record: Any) -> Json:
    """The JSON form of a record."""
    return _KINDS[kind][1](record)


def encode(kind: str, record: Any) -> bytes:
    """The data of a record."""
    return _KINDS[kind][2](record)


def decode(kind: str, data: bytes) -> Any:
    """The record in some data."""
    return _KINDS[kind][3](data)


def wire_keys(kind: str, fields: Json) -> list[str]:
    """The keys of the map inside, in the order of the wire."""
    if kind == "PartitionMetadata":
        return [state["storage"] for state in fields["replica_states"]]
    (entries,) = fields.values()
    return [entry[0] for entry in entries]

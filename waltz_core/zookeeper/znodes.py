"""What Waltz keeps in ZooKeeper: one record, one encoder and one decoder per kind of znode.

Every value is written as Java's `DataOutput` does: big-endian, no padding, no checksum. Decoders ignore
trailing bytes, as the original does; map entries keep the order of the wire, a repeated key keeps its
first place and takes its last value. Bad input raises ProtocolError and nothing else; a count is compared
with the bytes that are left before anything is allocated for it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from struct import Struct
from typing import Final
from uuid import UUID

from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import Endpoint, ReplicaId
from waltz_core.base.record import record
from waltz_core.zookeeper.modified_utf8 import decode_modified_utf8, encode_modified_utf8

UNRESOLVED: Final = -(2**63)
"""Closing mark of a replica whose store session has not been closed by a recovery."""

CLUSTER_PARAMS_MAGIC: Final = -1259834553  # Java: "Cluster Manager".hashCode()
_ASSIGNMENT_VERSION: Final = 3
_VERSION: Final = 1

_BYTE = Struct(">b")
_SHORT = Struct(">H")
_INT = Struct(">i")
_LONG = Struct(">q")


# ---- records ---------------------------------------------------------------------------------


@record
class ClusterParams:
    """The root znode."""

    name: str
    num_partitions: int


@record
class ServerDescriptor:
    """One ephemeral child of `serverDescriptors`: a running server."""

    server_id: int
    endpoint: Endpoint
    preferred_partitions: tuple[int, ...] = ()  # in order, duplicates kept
    extension: bytes = b""  # behind the original's fields; readers of 0.13.2 ignore it


@record
class ServerPartitions:
    """What one server owns, in the order of the wire (random on purpose)."""

    server_id: int
    partitions: tuple[tuple[int, int], ...]  # (partition id, generation)


@record
class PartitionAssignment:
    """Data of `serverDescriptors`: who owns what, and for which membership it was computed."""

    cversion: int  # cversion of the znode this was computed for
    num_partitions: int
    servers: tuple[ServerPartitions, ...]

    def of_server(self, server_id: int) -> tuple[tuple[int, int], ...]:
        """(partition id, generation) of one server, sorted by partition id."""
        return tuple(
            sorted(pair for server in self.servers if server.server_id == server_id for pair in server.partitions)
        )


@record
class StoreParams:
    """The `store` znode: the key that every storage file of this cluster carries."""

    key: bytes  # 16 bytes of a UUID, in the order of its text
    num_partitions: int

    def key_text(self) -> str:
        """The key as people write it."""
        return str(UUID(bytes=self.key))


@record
class GroupDescriptor:
    """Storage nodes and their groups; each group is meant to hold one full copy."""

    groups: tuple[tuple[str, int], ...]  # (connect string, group id)


@record
class ConnectionMetadata:
    """Storage nodes and their admin ports."""

    connections: tuple[tuple[str, int], ...]  # (connect string, admin port)


@record
class ReplicaAssignments:
    """Which storage node is to hold which partitions."""

    replicas: tuple[tuple[str, tuple[int, ...]], ...]  # (connect string, partition ids)

    def storages_of(self, partition_id: int) -> tuple[str, ...]:
        """Connect strings of the nodes that hold a partition, in the order of the wire."""
        return tuple(storage for storage, partitions in self.replicas if partition_id in partitions)

    def by_partition(self) -> dict[int, tuple[str, ...]]:
        """The same for every partition that some node holds, in one pass."""
        holders: dict[int, tuple[str, ...]] = {}
        for storage, partitions in self.replicas:
            for partition_id in dict.fromkeys(partitions):
                holders[partition_id] = (*holders.get(partition_id, ()), storage)
        return holders


@record
class ReplicaState:
    """What the metadata knows of one replica of a partition."""

    replica_id: ReplicaId
    session_id: int
    closing_mark: int  # last transaction id of that session on this replica, or UNRESOLVED


@record
class PartitionMetadata:
    """The `store/partition/<p>` znode."""

    generation: int
    session_id: int
    replica_states: tuple[ReplicaState, ...]


EMPTY_METADATA: Final = PartitionMetadata(-1, -1, ())
"""What the first server of a partition creates."""

EMPTY_ASSIGNMENT: Final = PartitionAssignment(-1, 0, ())
"""What the creation of a cluster writes to `serverDescriptors`."""


# ---- reading and writing ---------------------------------------------------------------------


class _Negative(enum.Enum):
    """What a negative count means; the original differs from type to type."""

    EMPTY = "empty"
    ERROR = "error"


class _Reader:
    """A cursor over the data of one znode."""

    __slots__ = ("_at", "_data", "_what")

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._at = 0
        self._what = what

    def error(self, text: str) -> ProtocolError:
        return ProtocolError(f"{self._what} of {len(self._data)} bytes: {text}")

    def _number(self, form: Struct) -> int:
        if self._at + form.size > len(self._data):
            raise self.error(f"{form.size} bytes expected at {self._at}, the data ends there")
        value = int(form.unpack_from(self._data, self._at)[0])
        self._at += form.size
        return value

    def int32(self) -> int:
        return self._number(_INT)

    def int64(self) -> int:
        return self._number(_LONG)

    def version(self, expected: int) -> None:
        found = self._number(_BYTE)
        if found != expected:
            raise self.error(f"version {expected} expected at {self._at - 1}, found {found}")

    def raw(self, size: int) -> bytes:
        if self._at + size > len(self._data):
            raise self.error(f"{size} bytes expected at {self._at}, the data ends before")
        value = self._data[self._at : self._at + size]
        self._at += size
        return value

    def text(self) -> str:
        size = self._number(_SHORT)
        start = self._at
        try:
            return decode_modified_utf8(self.raw(size))
        except ProtocolError as problem:
            raise self.error(f"{problem} (text at {start})") from None

    def count(self, entry_size: int, negative: _Negative) -> int:
        """A count of entries of at least `entry_size` bytes each."""
        count = self._number(_INT)
        if count < 0:
            if negative is _Negative.EMPTY:
                return 0
            raise self.error(f"count {count} at {self._at - 4}")
        left = len(self._data) - self._at
        if count * entry_size > left:
            raise self.error(f"{count} entries announced, {left} bytes are left for them")
        return count

    def rest(self) -> bytes:
        return self._data[self._at :]


def _number(form: Struct, value: int) -> bytes:
    bound = 1 << form.size * 8 - 1
    if not -bound <= value < bound:
        raise ProtocolError(f"{value} does not fit {form.size} bytes")
    return form.pack(value)


def _int(value: int) -> bytes:
    return _number(_INT, value)


def _text(text: str) -> bytes:
    encoded = encode_modified_utf8(text)
    return _SHORT.pack(len(encoded)) + encoded


def _ints(values: Sequence[int]) -> bytes:
    return _int(len(values)) + b"".join(map(_int, values))


_V1 = b"\x01"


# ---- one pair of functions per kind ----------------------------------------------------------


def encode_id_counter(value: int) -> bytes:
    """Data of `ids/client` and `ids/server`."""
    return _int(value)


def decode_id_counter(data: bytes) -> int:
    """The last id taken.

    Raises:
        ProtocolError: fewer than four bytes.
    """
    return _Reader(data, "id counter").int32()


def encode_cluster_params(params: ClusterParams) -> bytes:
    """Data of the cluster root."""
    return _int(CLUSTER_PARAMS_MAGIC) + _V1 + _text(params.name) + _int(params.num_partitions)


def decode_cluster_params(data: bytes) -> ClusterParams:
    """Read the data of the cluster root.

    Raises:
        ProtocolError: other magic, other version, or too short.
    """
    reader = _Reader(data, "cluster parameters")
    magic = reader.int32()
    if magic != CLUSTER_PARAMS_MAGIC:
        raise reader.error(f"magic {CLUSTER_PARAMS_MAGIC & 0xFFFFFFFF:08x} expected, found {magic & 0xFFFFFFFF:08x}")
    reader.version(_VERSION)
    return ClusterParams(reader.text(), reader.int32())


def encode_server_descriptor(descriptor: ServerDescriptor) -> bytes:
    """Data of a child of `serverDescriptors`."""
    return b"".join(
        (
            _V1,
            _int(descriptor.server_id),
            _text(descriptor.endpoint.host),
            _int(descriptor.endpoint.port),
            _ints(descriptor.preferred_partitions),
            descriptor.extension,
        )
    )


def decode_server_descriptor(data: bytes) -> ServerDescriptor:
    """Read a child of `serverDescriptors`; nothing is range checked, as in the original.

    Raises:
        ProtocolError: other version, negative count, or too short.
    """
    reader = _Reader(data, "server descriptor")
    reader.version(_VERSION)
    server_id, host, port = reader.int32(), reader.text(), reader.int32()
    preferred = tuple(reader.int32() for _ in range(reader.count(4, _Negative.ERROR)))
    return ServerDescriptor(server_id, Endpoint(host, port), preferred, reader.rest())


def encode_partition_assignment(assignment: PartitionAssignment) -> bytes:
    """Data of `serverDescriptors`."""
    pieces = [
        _BYTE.pack(_ASSIGNMENT_VERSION),
        _int(assignment.cversion),
        _int(assignment.num_partitions),
        _int(len(assignment.servers)),
    ]
    for server in assignment.servers:
        pieces += _int(server.server_id), _int(len(server.partitions))
        pieces += [_int(partition_id) + _int(generation) for partition_id, generation in server.partitions]
    return b"".join(pieces)


def decode_partition_assignment(data: bytes) -> PartitionAssignment:
    """Read the data of `serverDescriptors`.

    Raises:
        ProtocolError: other version, negative count, or too short.
    """
    reader = _Reader(data, "partition assignment")
    reader.version(_ASSIGNMENT_VERSION)
    cversion, num_partitions = reader.int32(), reader.int32()
    servers: dict[int, tuple[tuple[int, int], ...]] = {}
    for _ in range(reader.count(8, _Negative.ERROR)):
        server_id = reader.int32()
        owned = [(reader.int32(), reader.int32()) for _ in range(reader.count(8, _Negative.ERROR))]
        servers[server_id] = tuple(owned)
    return PartitionAssignment(cversion, num_partitions, tuple(ServerPartitions(*entry) for entry in servers.items()))


def encode_store_params(params: StoreParams) -> bytes:
    """Data of `store`."""
    if len(params.key) != 16:
        raise ProtocolError(f"a cluster key has 16 bytes, found {len(params.key)}")
    return _V1 + params.key + _int(params.num_partitions)


def decode_store_params(data: bytes) -> StoreParams:
    """Read the data of `store`.

    Raises:
        ProtocolError: other version, or too short.
    """
    reader = _Reader(data, "store parameters")
    reader.version(_VERSION)
    return StoreParams(reader.raw(16), reader.int32())


def _encode_text_to_int(entries: Sequence[tuple[str, int]]) -> bytes:
    return _V1 + _int(len(entries)) + b"".join(_text(text) + _int(value) for text, value in entries)


def _decode_text_to_int(data: bytes, what: str) -> tuple[tuple[str, int], ...]:
    reader = _Reader(data, what)
    reader.version(_VERSION)
    entries: dict[str, int] = {}
    for _ in range(reader.count(6, _Negative.EMPTY)):
        text = reader.text()
        entries[text] = reader.int32()
    return tuple(entries.items())


def encode_group_descriptor(descriptor: GroupDescriptor) -> bytes:
    """Data of `store/group`."""
    return _encode_text_to_int(descriptor.groups)


def decode_group_descriptor(data: bytes) -> GroupDescriptor:
    """Read the data of `store/group`; a negative count reads as empty.

    Raises:
        ProtocolError: other version, malformed text, or too short.
    """
    return GroupDescriptor(_decode_text_to_int(data, "group descriptor"))


def encode_connection_metadata(metadata: ConnectionMetadata) -> bytes:
    """Data of `store/connection`."""
    return _encode_text_to_int(metadata.connections)


def decode_connection_metadata(data: bytes) -> ConnectionMetadata:
    """Read the data of `store/connection`; a negative count reads as empty.

    Raises:
        ProtocolError: other version, malformed text, or too short.
    """
    return ConnectionMetadata(_decode_text_to_int(data, "connection metadata"))


def encode_replica_assignments(assignments: ReplicaAssignments) -> bytes:
    """Data of `store/assignment`."""
    pieces = [_text(storage) + _ints(partitions) for storage, partitions in assignments.replicas]
    return _V1 + _int(len(pieces)) + b"".join(pieces)


def decode_replica_assignments(data: bytes) -> ReplicaAssignments:
    """Read the data of `store/assignment`; a negative outer count reads as empty.

    Raises:
        ProtocolError: other version, malformed text, negative inner count, or too short.
    """
    reader = _Reader(data, "replica assignments")
    reader.version(_VERSION)
    entries: dict[str, tuple[int, ...]] = {}
    for _ in range(reader.count(6, _Negative.EMPTY)):
        storage = reader.text()
        entries[storage] = tuple(reader.int32() for _ in range(reader.count(4, _Negative.ERROR)))
    return ReplicaAssignments(tuple(entries.items()))


def encode_replica_id(replica_id: ReplicaId) -> bytes:
    """A replica id as it stands inside a replica state."""
    return _V1 + _int(replica_id.partition_id) + _text(replica_id.storage)


def _replica_id(reader: _Reader) -> ReplicaId:
    reader.version(_VERSION)
    return ReplicaId(reader.int32(), reader.text())


def decode_replica_id(data: bytes) -> ReplicaId:
    """Read a replica id.

    Raises:
        ProtocolError: other version, malformed text, or too short.
    """
    return _replica_id(_Reader(data, "replica id"))


def encode_replica_state(state: ReplicaState) -> bytes:
    """A replica state as it stands inside partition metadata."""
    return b"".join(
        (_V1, encode_replica_id(state.replica_id), _number(_LONG, state.session_id), _number(_LONG, state.closing_mark))
    )


def _replica_state(reader: _Reader) -> ReplicaState:
    reader.version(_VERSION)
    return ReplicaState(_replica_id(reader), reader.int64(), reader.int64())


def decode_replica_state(data: bytes) -> ReplicaState:
    """Read a replica state.

    Raises:
        ProtocolError: other version (its own or its replica id's), malformed text, or too short.
    """
    return _replica_state(_Reader(data, "replica state"))


def encode_partition_metadata(metadata: PartitionMetadata) -> bytes:
    """Data of `store/partition/<p>`."""
    head = _V1 + _int(metadata.generation) + _number(_LONG, metadata.session_id) + _int(len(metadata.replica_states))
    return head + b"".join(map(encode_replica_state, metadata.replica_states))


_REPLICA_STATE_SIZE_MIN = 1 + 1 + 4 + 2 + 8 + 8


def decode_partition_metadata(data: bytes) -> PartitionMetadata:
    """Read the data of `store/partition/<p>`; a negative count reads as empty.

    The partition id inside each replica id is not compared with the name of the znode, as in the original.

    Raises:
        ProtocolError: other version, malformed text, or too short.
    """
    reader = _Reader(data, "partition metadata")
    reader.version(_VERSION)
    generation, session_id = reader.int32(), reader.int64()
    states: dict[ReplicaId, ReplicaState] = {}
    for _ in range(reader.count(_REPLICA_STATE_SIZE_MIN, _Negative.EMPTY)):
        state = _replica_state(reader)
        states[state.replica_id] = state
    return PartitionMetadata(generation, session_id, tuple(states.values()))

"""What a cluster keeps in ZooKeeper as one JSON object, and the znodes that bring it back.

The object is what `waltz zookeeper list --json` prints. Of one that was written by hand `name`, `num_partitions`,
`key` and `storage` suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from uuid import UUID

from waltz_core.base.errors import ClusterError, ProtocolError
from waltz_core.base.ids import ReplicaId
from waltz_core.base.record import record
from waltz_core.zookeeper import znodes
from waltz_core.zookeeper.paths import ClusterPaths
from waltz_core.zookeeper.store_metadata import StoreMaps
from waltz_core.zookeeper.znodes import (
    UNRESOLVED,
    ClusterParams,
    ConnectionMetadata,
    GroupDescriptor,
    PartitionAssignment,
    PartitionMetadata,
    ReplicaAssignments,
    ReplicaState,
    ServerPartitions,
    StoreParams,
)

IDS_GAP = 1_000_000  # ids of clients and servers that may have been given out since the backup
GENERATIONS_GAP = 1_000  # changes of owner that a partition may have seen since

_NOBODY = -1  # no server has this id
_INT_MIN, _INT_MAX, _LONG_MAX = -(2**31), 2**31 - 1, 2**63 - 1

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""What a JSON text says."""


@record
class ClusterBackup:
    """Everything below the root of a cluster but the servers that were registered."""

    params: ClusterParams
    store: StoreParams
    maps: StoreMaps
    assignment: PartitionAssignment
    partitions: tuple[PartitionMetadata | None, ...]  # by partition id
    last_client_id: int | None  # handed out; None: unknown
    last_server_id: int | None

    def raised(self) -> ClusterBackup:
        """The same for a cluster that ran on after the backup: no id and no generation is used twice.

        Partitions count as owned by an absent server, so the server that takes over does so at a higher generation.
        """
        highest = {number: found.generation for number, found in enumerate(self.partitions) if found is not None}
        for owner in self.assignment.servers:
            for number, generation in owner.partitions:
                highest[number] = max(generation, highest.get(number, generation))
        owned = tuple((number, generation + GENERATIONS_GAP) for number, generation in sorted(highest.items()))
        servers = (ServerPartitions(_NOBODY, owned),) if owned else ()
        return ClusterBackup(
            self.params,
            self.store,
            self.maps,
            # No membership has this cversion: the first server that comes computes the assignment anew.
            PartitionAssignment(-1, self.params.num_partitions if servers else 0, servers),
            self.partitions,
            None if self.last_client_id is None else self.last_client_id + IDS_GAP,
            None if self.last_server_id is None else self.last_server_id + IDS_GAP,
        )


@record
class Znode:
    """A znode that a cluster cannot do without."""

    path: str
    data: bytes | None  # None where it holds nothing, and where the backup does not say
    check: Callable[[bytes], object] | None  # raises ProtocolError on what it cannot hold; None: it holds nothing
    live: bool = False  # running servers do without it, and take new content as it comes
    in_two_steps: bool = False  # 0.13.2 creates it with null data and sets that: at version 1 ever after


def cluster_znodes(backup: ClusterBackup, paths: ClusterPaths) -> tuple[Znode, ...]:
    """All of them, parents first."""
    groups = znodes.encode_group_descriptor(backup.maps.groups)
    replicas = znodes.encode_replica_assignments(backup.maps.replicas)
    connections = znodes.encode_connection_metadata(backup.maps.connections)
    assignment = znodes.encode_partition_assignment(backup.assignment)
    params = znodes.encode_cluster_params(backup.params)
    store = znodes.encode_store_params(backup.store)
    client_id, server_id = (
        None if last is None else znodes.encode_id_counter(last)
        for last in (backup.last_client_id, backup.last_server_id)
    )
    nodes = [
        Znode(paths.root, params, znodes.decode_cluster_params, in_two_steps=True),
        Znode(paths.servers, assignment, znodes.decode_partition_assignment),
        Znode(paths.ids, None, None),
        Znode(paths.client_ids, client_id, znodes.decode_id_counter),
        Znode(paths.server_ids, server_id, znodes.decode_id_counter),
        Znode(paths.store, store, znodes.decode_store_params, in_two_steps=True),
        Znode(paths.partitions, None, None),
        Znode(paths.groups, groups, znodes.decode_group_descriptor, live=True, in_two_steps=True),
        Znode(paths.assignment, replicas, znodes.decode_replica_assignments, live=True, in_two_steps=True),
        Znode(paths.connections, connections, znodes.decode_connection_metadata, live=True, in_two_steps=True),
    ]
    for partition_id, metadata in enumerate(backup.partitions):
        if metadata is not None:
            data = znodes.encode_partition_metadata(metadata)
            nodes.append(Znode(paths.partition(partition_id), data, znodes.decode_partition_metadata))
    return tuple(nodes)


@record
class Restoration:
    """What brings back what is missing or cannot be read."""

    lines: tuple[str, ...]  # a znode each: what is done with it, and why
    created: tuple[Znode, ...]  # parents first
    written: tuple[Znode, ...]

    @property
    def stop(self) -> bool:
        """Servers must not run meanwhile."""
        return any(not znode.live for znode in (*self.created, *self.written))


def restoration(backup: ClusterBackup, paths: ClusterPaths, held: Mapping[str, bytes | None]) -> Restoration:
    """The znodes to write, of all that a cluster must have; sound ones stay as they are.

    Args:
        held: what the znodes that exist hold.

    Raises:
        ClusterError: another cluster is at that root, or the backup does not know what is needed.
    """
    lines: list[str] = []
    created: list[Znode] = []
    written: list[Znode] = []
    for znode in cluster_znodes(backup.raised(), paths):
        if znode.path not in held:
            lines.append(f"{znode.path} does not exist: it is created")
            created.append(znode)
        else:
            problem = _wrong_with(znode, held[znode.path], backup, paths)
            if not problem:
                continue
            lines.append(f"{znode.path} cannot be used ({problem}): it is written anew")
            written.append(znode)
        if znode.check is not None and znode.data is None:
            raise ClusterError(f"the backup does not tell what {znode.path} held: take one of a time when it was sound")
    return Restoration(tuple(lines), tuple(created), tuple(written))


def _wrong_with(znode: Znode, data: bytes | None, backup: ClusterBackup, paths: ClusterPaths) -> str:
    if znode.check is None:
        return ""
    try:
        content = znode.check(data or b"")
    except ProtocolError as problem:
        return str(problem)
    if isinstance(content, StoreParams) and content != backup.store:
        raise ClusterError(
            f"the cluster at {paths.root} has the key {content.key_text()} and {content.num_partitions} partitions, "
            f"the backup is of {backup.store.key_text()} with {backup.store.num_partitions}: nothing was changed; "
            "find the backup of this cluster"
        )
    if isinstance(content, ClusterParams) and content.num_partitions != backup.params.num_partitions:
        return f"it says {content.num_partitions} partitions, the backup {backup.params.num_partitions}"
    return ""


# ---- JSON ------------------------------------------------------------------------------------


def backup_json(backup: ClusterBackup) -> dict[str, Any]:
    """The object."""
    maps = backup.maps
    groups, replicas = dict(maps.groups.groups), dict(maps.replicas.replicas)
    ports = dict(maps.connections.connections)
    return {
        "name": backup.params.name,
        "num_partitions": backup.params.num_partitions,
        "key": backup.store.key_text(),
        "ids": {"client": backup.last_client_id, "server": backup.last_server_id},
        "assignment": {
            "cversion": backup.assignment.cversion,
            "partitions": [
                {"partition": partition_id, "server": owner.server_id, "generation": generation}
                for owner in backup.assignment.servers
                for partition_id, generation in owner.partitions
            ],
        },
        "storage": [
            {
                "storage": storage,
                "partitions": list(replicas.get(storage, ())),
                "group": groups.get(storage),
                "admin_port": ports.get(storage),
            }
            for storage in sorted({*groups, *replicas, *ports})
        ],
        "partitions": [None if metadata is None else _metadata_json(metadata) for metadata in backup.partitions],
    }


def _metadata_json(metadata: PartitionMetadata) -> dict[str, Any]:
    return {
        "generation": metadata.generation,
        "session_id": metadata.session_id,
        "replica_states": [
            {
                "storage": state.replica_id.storage,
                "session_id": state.session_id,
                "closing_mark": None if state.closing_mark == UNRESOLVED else state.closing_mark,
            }
            for state in metadata.replica_states
        ],
    }


def parse_backup(document: Json) -> ClusterBackup:
    """Read the object.

    Raises:
        ClusterError: something is missing, of another kind or out of range; says where.
    """
    top = _Object(document, "")
    count = top.number("num_partitions", 0)
    text = top.text("key")
    try:
        key = UUID(text).bytes
    except ValueError:
        raise ClusterError(f"key: expected a UUID as `show-cluster-key` prints it, found {text!r}") from None
    groups, replicas, ports = [], [], []
    for node in top.objects("storage"):
        name, group, port = node.text("storage"), node.optional("group"), node.optional("admin_port", 1, 65535)
        replicas.append((name, node.numbers("partitions", count)))
        if group is not None:
            groups.append((name, group))
        if port is not None:
            ports.append((name, port))
    maps = StoreMaps(
        GroupDescriptor(tuple(groups)), ReplicaAssignments(tuple(replicas)), ConnectionMetadata(tuple(ports))
    )
    ids = top.inner("ids")
    states = top.items("partitions", optional=True)
    if len(states) > count:
        raise ClusterError(f"partitions: expected at most num_partitions = {count}, found {len(states)}")
    return ClusterBackup(
        ClusterParams(top.text("name"), count),
        StoreParams(key, count),
        maps,
        _assignment(top.inner("assignment"), count),
        tuple(_metadata(number, state) for number, state in enumerate(states)),
        ids.optional("client", -1, _INT_MAX - IDS_GAP, default=-1),
        ids.optional("server", -1, _INT_MAX - IDS_GAP, default=-1),
    )


def _assignment(document: _Object, count: int) -> PartitionAssignment:
    owned: dict[int, list[tuple[int, int]]] = {}
    for entry in document.objects("partitions", optional=True):
        generation = entry.number("generation", -1, _INT_MAX - GENERATIONS_GAP)
        owned.setdefault(entry.number("server"), []).append((entry.number("partition", 0, count - 1), generation))
    servers = tuple(ServerPartitions(server_id, tuple(partitions)) for server_id, partitions in owned.items())
    return PartitionAssignment(document.number("cversion", default=-1), count, servers)


def _metadata(partition_id: int, document: Json) -> PartitionMetadata | None:
    if document is None:
        return None
    fields = _Object(document, f"partitions[{partition_id}]")
    states = []
    for state in fields.objects("replica_states"):
        mark = state.optional("closing_mark", -1, _LONG_MAX)
        replica_id = ReplicaId(partition_id, state.text("storage"))
        session_id = state.number("session_id", -1, _LONG_MAX)
        states.append(ReplicaState(replica_id, session_id, UNRESOLVED if mark is None else mark))
    generation = fields.number("generation", -1, _INT_MAX - GENERATIONS_GAP)
    return PartitionMetadata(generation, fields.number("session_id", -1, _LONG_MAX), tuple(states))


class _Object:
    """A JSON object and where it stands."""

    def __init__(self, document: Json, where: str) -> None:
        if not isinstance(document, Mapping):
            raise ClusterError(f"{where or 'the whole'}: expected an object, found {_shown(document)}")
        self._document = document
        self._where = f"{where}." if where else ""

    def _take(self, name: str, kinds: Mapping[type, str]) -> Any:
        if name not in self._document:
            raise ClusterError(f"{self._where}{name} is missing")
        value = self._document[name]
        if type(value) not in kinds:
            raise ClusterError(f"{self._where}{name}: expected {' or '.join(kinds.values())}, found {_shown(value)}")
        return value

    def text(self, name: str) -> str:
        found: str = self._take(name, {str: "a text"})
        return found

    def objects(self, name: str, *, optional: bool = False) -> list[_Object]:
        """The objects of a list."""
        return [
            _Object(one, f"{self._where}{name}[{at}]") for at, one in enumerate(self.items(name, optional=optional))
        ]

    def items(self, name: str, *, optional: bool = False) -> list[Json]:
        if optional and name not in self._document:
            return []
        found: list[Json] = self._take(name, {list: "a list"})
        return found

    def inner(self, name: str) -> _Object:
        """An object, empty if there is none."""
        return _Object(self._document.get(name, {}), f"{self._where}{name}")

    def number(self, name: str, least: int = _INT_MIN, most: int = _INT_MAX, default: int | None = None) -> int:
        """A number in a range, both ends included."""
        if default is not None and name not in self._document:
            return default
        return self._ranged(name, self._take(name, {int: "a whole number"}), least, most)

    def optional(
        self, name: str, least: int = _INT_MIN, most: int = _INT_MAX, default: int | None = None
    ) -> int | None:
        """A number in a range, or null."""
        if default is not None and name not in self._document:
            return default
        found = self._take(name, {int: "a whole number", type(None): "null"})
        return None if found is None else self._ranged(name, found, least, most)

    def numbers(self, name: str, count: int) -> tuple[int, ...]:
        """A list of numbers below `count`."""
        each = _Object({f"[{at}]": one for at, one in enumerate(self.items(name))}, "")
        each._where = f"{self._where}{name}"
        return tuple(each.number(at, 0, count - 1) for at in each._document)

    def _ranged(self, name: str, value: int, least: int, most: int) -> int:
        if not least <= value <= most:
            raise ClusterError(f"{self._where}{name}: expected {least}..{most}, found {value}")
        return value


def _shown(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

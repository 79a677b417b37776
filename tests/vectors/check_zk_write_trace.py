"""Every write of a live cluster, replayed against our model of a znode tree and against our rules.

The trace is one story: it is replayed once, in order, and each line is a unit of its own. Each tree recorded
in the same run is compared with the replayed tree as it stood at that moment.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.twin_0132.cluster import assign_0132
from tests.vectors.check_zk_store_ops import run_operation
from tests.vectors.check_zk_trees import is_sequential, znode_type
from tests.vectors.deviations import assignment_rule
from tests.vectors.reading import Fields, Unit, lines, plain
from tests.vectors.znode_fields import decode, encode, to_fields
from waltz_core.base.edge import ZkCreate, ZkDelete, ZkDone, ZkError, ZkFailed, ZkRequest, ZkSet
from waltz_core.base.ids import ReplicaId
from waltz_core.cluster.assignment import Member, assign
from waltz_core.zookeeper import znodes
from waltz_core.zookeeper.java_order import filled_table_size, table_order
from waltz_core.zookeeper.paths import ClusterPaths, cluster_paths
from waltz_core.zookeeper.store_metadata import StoreMaps
from waltz_core.zookeeper.znode_tree import StoredTree, Znode, ZnodeTree
from waltz_core.zookeeper.znodes import UNRESOLVED, PartitionMetadata, ReplicaState

_SERVERS = "/serverDescriptors"
_ERRORS = {-110: ZkError.NODE_EXISTS, -101: ZkError.NO_NODE, -103: ZkError.BAD_VERSION, -111: ZkError.NOT_EMPTY}


def units(path: Path) -> Iterator[Unit]:
    replay = _Replay()
    replay.find_root([plain(line) for _, line in lines(path)])
    for name, line in lines(path):
        if line.get("type") == "legend":
            yield Unit(name, [line], partial(_check_legend, line))
        else:
            # Replayed at once, judged when asked: units are independent of each other's order.
            yield Unit(name, [line], partial(_outcome, *replay.apply(line)))
    trees = path.with_name("zk_trees.jsonl")
    if trees.exists():
        for name, line in lines(trees):
            if line.get("type") == "znode_tree" and replay.made(plain(line)):
                yield Unit(f"{path.name} at {name}", [], partial(replay.compare, plain(line)))


def _check_legend(line: Fields) -> frozenset[str]:
    line.ignore("of")
    assert {"seq", "op", "new_version"} <= set(line["fields"].all())
    return frozenset()


def _outcome(problem: Exception | None, rules: frozenset[str]) -> frozenset[str]:
    if problem is not None:
        raise problem
    return rules


class _Replay:
    """The tree as the trace builds it, who has which sessions, and what stood in it at each moment."""

    def __init__(self) -> None:
        self.tree = ZnodeTree()
        self.sessions: dict[str, list[int]] = {}
        self.snapshots: dict[int, dict[str, Znode]] = {}
        self.paths: ClusterPaths | None = None
        self.keys: set[bytes] = set()
        self.memberships: dict[int, dict[str, znodes.ServerDescriptor]] = {}

    def find_root(self, trace: list[dict[str, Any]]) -> None:
        """The cluster is where the servers register; znodes above it may be older than the trace."""
        created = [line["path"] for line in trace if line.get("op") == "create"]
        root = next((path.removesuffix(_SERVERS) for path in created if path.endswith(_SERVERS)), None)
        assert root, f"no {_SERVERS[1:]} is created: there is nothing to compare"
        self.paths = cluster_paths(root)
        above = [root[:at] for at, letter in enumerate(root) if letter == "/" and at]
        older = [path for path in above if path not in created]
        nodes = [Znode(path, None, 0, int(path != older[-1]), int(path != older[-1]), 0, 0, 0, 0) for path in older]
        before = min(line["seq"] for line in trace if "seq" in line) - 1
        self.tree = ZnodeTree(StoredTree(before, tuple(nodes)))

    def apply(self, line: Fields) -> tuple[Exception | None, frozenset[str]]:
        try:
            return None, self._apply(line)
        except Exception as problem:
            return problem, frozenset()

    def _apply(self, line: Fields) -> frozenset[str]:
        assert line["type"] == "zk_write"
        actor, operation, seq = line["actor"], line["op"], line["seq"]
        line.ignore("step")
        rules: frozenset[str] = frozenset()
        match operation:
            case "create_session":
                line.ignore("timeout_ms")
                self.sessions.setdefault(actor, []).append(self.tree.open_session())
            case "close_session":
                self._close(actor, line["deletes"])
            case "create":
                self._create(self._session(actor), line)
            case "set":
                rules = self._set(actor, line)
            case "delete":
                answer = self.tree.apply(self._session(actor), ZkDelete(1, line["path"]))
                assert answer == ZkDone(1)
            case "error":
                self._error(self._session(actor), line["error"])
            case _:
                raise AssertionError(f"unknown operation {operation}")
        nodes = {node.path: node for node in self.tree.describe()}
        self.snapshots[seq] = nodes
        assert self.tree.stored().zxid == seq  # every write takes one transaction id, refused ones too
        if self.paths is not None and self.paths.servers in nodes:
            self.memberships[nodes[self.paths.servers].cversion] = self._descriptors(nodes)
        return rules

    # ---- operations --------------------------------------------------------------------------

    def _session(self, actor: str) -> int:
        return self.sessions[actor][-1]

    def _close(self, actor: str, deletes: list[str]) -> None:
        """Of several sessions of one actor, the one that owned what was deleted."""
        owned: dict[int, list[str]] = {session: [] for session in self.sessions[actor]}
        for node in self.tree.describe():
            if node.ephemeral_owner in owned:
                owned[node.ephemeral_owner].append(node.path)
        session = next(session for session, nodes in owned.items() if sorted(nodes) == sorted(deletes))
        self.sessions[actor].remove(session)
        assert sorted(self.tree.close_session(session)) == sorted(deletes)

    def _create(self, session: int, line: Fields) -> None:
        path, data = line["path"], _bytes(line["data"])
        assert self.paths is not None
        sequential = is_sequential(self.paths, path)
        request = ZkCreate(1, path[:-10] if sequential else path, data, line["ephemeral"], sequential)
        answer = self.tree.apply(session, request)
        assert isinstance(answer, ZkDone)
        assert answer.path == path
        parent = path.rpartition("/")[0]
        created = {node.path: node.created for node in self.tree.describe()}
        assert created.get(parent, line["parent_cversion"]) == line["parent_cversion"]
        kind = znode_type(self.paths, path)
        if data is None:
            assert kind is None or path in (
                self.paths.root,
                self.paths.store,
                self.paths.groups,
                self.paths.assignment,
                self.paths.connections,
            )
            return
        self._check_data(kind, data, line)
        match kind:
            case "PartitionMetadata":
                assert decode(kind, data) == znodes.EMPTY_METADATA
            case "PartitionAssignment":
                assert decode(kind, data) == znodes.EMPTY_ASSIGNMENT
            case "Integer":
                assert decode(kind, data) == 0
            case _:
                assert kind == "ServerDescriptor"
                assert line["ephemeral"]

    def _check_data(self, kind: str | None, data: bytes, line: Fields) -> None:
        assert kind is not None
        assert kind == line["data_type"]
        record = decode(kind, data)
        assert to_fields(kind, record) == line["fields"].all()
        assert encode(kind, record) == data

    def _error(self, session: int, code: int) -> None:
        """The trace does not say what was refused; a request that must be refused the same way stands for it."""
        assert self.paths is not None
        root, missing = self.paths.root, f"{self.paths.root}/missing"
        requests: dict[ZkError, ZkRequest] = {
            ZkError.NODE_EXISTS: ZkCreate(1, root, None),
            ZkError.NO_NODE: ZkSet(1, missing, None, -1),
            ZkError.BAD_VERSION: ZkSet(1, root, None, 10**6),
            ZkError.NOT_EMPTY: ZkDelete(1, root),
        }
        before = self.tree.describe()
        assert self.tree.apply(session, requests[_ERRORS[code]]) == ZkFailed(1, _ERRORS[code])
        assert self.tree.describe() == before

    def _set(self, actor: str, line: Fields) -> frozenset[str]:
        assert self.paths is not None
        path, data, version = line["path"], _bytes(line["data"]), line["new_version"]
        nodes = {node.path: node for node in self.tree.describe()}
        session = self._session(actor)
        answer = self.tree.apply(session, ZkSet(1, path, data, version - 1))
        assert isinstance(answer, ZkDone)
        assert answer.stat is not None
        assert answer.stat.version == version
        kind = znode_type(self.paths, path)
        assert data is not None
        self._check_data(kind, data, line)
        assert kind is not None
        before: Any = None if nodes[path].data is None else decode(kind, nodes[path].data or b"")
        after: Any = decode(kind, data)
        match kind:
            case "PartitionMetadata":
                partition = int(path.rpartition("/")[2])
                _check_successor(partition, before, after, self._assigned(nodes, partition))
            case "PartitionAssignment":
                return self._check_assignment(actor, nodes, before, after)
            case "Integer":
                assert after == before + 1
            case "ServerDescriptor":
                assert (after.server_id, after.endpoint) == (before.server_id, before.endpoint)
                assert nodes[path].ephemeral_owner == session
            case "ClusterParams":
                assert before is None
            case _:
                # The maps and the store parameters change under the admin lock only.
                assert nodes[self.paths.admin_lock].ephemeral_owner == session
                if kind == "StoreParams":
                    self.keys.add(after.key)
                    assert before is None
                elif before is None:
                    assert encode(kind, after) == b"\x01" + bytes(4)
                else:
                    self._check_store_operation(kind, nodes, after, line.get("step"))
        return frozenset()

    # ---- our rules on what was written -------------------------------------------------------

    def _assigned(self, nodes: dict[str, Znode], partition: int) -> set[str]:
        assert self.paths is not None
        assignments = znodes.decode_replica_assignments(nodes[self.paths.assignment].data or b"")
        return set(assignments.storages_of(partition))

    def _descriptors(self, nodes: dict[str, Znode]) -> dict[str, znodes.ServerDescriptor]:
        assert self.paths is not None
        return {
            path: znodes.decode_server_descriptor(node.data or b"")
            for path, node in nodes.items()
            if path.startswith(self.paths.servers + "/")
        }

    def _check_assignment(
        self,
        actor: str,
        nodes: dict[str, Znode],
        before: znodes.PartitionAssignment,
        after: znodes.PartitionAssignment,
    ) -> frozenset[str]:
        """What was written is what our policy finds for that membership, and its writer was entitled to it."""
        assert self.paths is not None
        now = self._descriptors(nodes)
        membership = {path: now.get(path, found) for path, found in self.memberships[after.cversion].items()}
        preferred = {found.server_id: found.preferred_partitions for _, found in sorted(membership.items())}
        mine = {found.server_id for path, found in now.items() if nodes[path].ephemeral_owner == self._session(actor)}
        assert min(preferred) in mine or (after.cversion == before.cversion and mine)
        params = znodes.decode_cluster_params(nodes[self.paths.root].data or b"")
        ids = list(preferred)
        order = table_order(ids, ids, filled_table_size(len(ids)))
        members = [Member(server_id, preferred[server_id]) for server_id in order]
        found = assign_0132(before, params.num_partitions, members, after.cversion)
        assert _unordered(found) == _unordered(after)
        touched = assignment_rule(before, params.num_partitions, members)
        safe = assign(before, params.num_partitions, members, after.cversion)
        if touched:
            partitions = sorted(pair[0] for server in safe.servers for pair in server.partitions)
            assert partitions == list(range(params.num_partitions))
        else:
            assert _unordered(safe) == _unordered(after)
        return touched

    def _check_store_operation(self, kind: str, nodes: dict[str, Znode], after: Any, step: str) -> None:
        """If the command is known, its result is ours; the three maps are three writes, so compare this one."""
        assert self.paths is not None
        command = _parse_command(step)
        if command is None:
            return
        operation, args = command
        num_partitions = znodes.decode_store_params(nodes[self.paths.store].data or b"").num_partitions
        # The maps as they were when the lock was taken: writes of this section are taken back.
        section = nodes[self.paths.admin_lock].czxid
        old = self.snapshots[section]
        before = StoreMaps(
            znodes.decode_group_descriptor(old[self.paths.groups].data or b""),
            znodes.decode_replica_assignments(old[self.paths.assignment].data or b""),
            znodes.decode_connection_metadata(old[self.paths.connections].data or b""),
        )
        known = {storage for storage, _ in (*before.groups.groups, *after_entries(after))}
        if "storage" in args and args["storage"] not in known:
            return  # ports differ between what the step says and what was run
        change = run_operation(before, num_partitions, operation, args)
        name, wanted = {
            "GroupDescriptor": ("group", dict(change.after.groups.groups)),
            "ReplicaAssignments": ("assignment", dict(change.after.replicas.replicas)),
            "ConnectionMetadata": ("connection", dict(change.after.connections.connections)),
        }[kind]
        assert name in change.written
        assert wanted == dict(after_entries(after))

    # ---- the recorded trees ------------------------------------------------------------------

    def made(self, tree: dict[str, Any]) -> bool:
        """Whether a recorded tree belongs to this run: it carries the cluster key that was written here."""
        for node in tree["znodes"]:
            if node["type"] == "StoreParams" and node["data"] is not None:
                return znodes.decode_store_params(bytes.fromhex(node["data"])).key in self.keys
        return False

    def compare(self, tree: dict[str, Any]) -> frozenset[str]:
        seq = max(node[key] for node in tree["znodes"] for key in ("czxid", "mzxid", "pzxid"))
        replayed = self.snapshots[seq]
        recorded = {node["path"]: node for node in tree["znodes"]}
        assert list(replayed) == list(recorded)
        for path, node in recorded.items():
            ours = replayed[path]
            assert ours.data == _bytes(node["data"]), path
            keys = ("version", "cversion", "num_children", "czxid", "mzxid", "pzxid")
            assert {key: getattr(ours, key) for key in keys} == {key: node[key] for key in keys}, path
            assert (ours.ephemeral_owner != 0) == node["ephemeral"]
        return frozenset()


def after_entries(record: Any) -> tuple[tuple[str, Any], ...]:
    """The entries of one of the three maps."""
    match record:
        case znodes.GroupDescriptor(groups=entries):
            return entries
        case znodes.ReplicaAssignments(replicas=entries):
            return entries
    assert isinstance(record, znodes.ConnectionMetadata)
    return record.connections


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def _unordered(assignment: znodes.PartitionAssignment) -> tuple[int, int, dict[int, list[tuple[int, int]]]]:
    servers = {server.server_id: sorted(server.partitions) for server in assignment.servers}
    return assignment.cversion, assignment.num_partitions, servers


def _parse_command(step: str) -> tuple[str, dict[str, Any]] | None:
    """Operation and arguments of a step like `ZooKeeperCli add-storage-node -s host:1 -a 2 -g 0`."""
    words = shlex.split(step)
    if len(words) < 2 or words[0] != "ZooKeeperCli":
        return None
    options = dict(zip(words[2::2], words[3::2], strict=False))
    names = {"-s": "storage", "-a": "admin_port", "-g": "group", "-p": "partitions"}
    args: dict[str, Any] = {names[key]: value for key, value in options.items() if key in names}
    for key in ("admin_port", "group"):
        if key in args:
            args[key] = int(args[key])
    if "partitions" in args:
        ranges = re.findall(r"(\d+)(?:-(\d+))?", args["partitions"])
        args["partitions"] = [number for low, high in ranges for number in range(int(low), int(high or low) + 1)]
    if words[1] in ("add-storage-node", "remove-storage-node", "assign-partition", "unassign-partition", "auto-assign"):
        return words[1], args
    return None


def _check_successor(partition: int, before: PartitionMetadata, after: PartitionMetadata, assigned: set[str]) -> None:
    """Partition metadata changes in two ways: a new store session, or replica states of the same session."""
    if after.session_id != before.session_id:
        assert after.session_id == before.session_id + 1
        assert after.generation >= before.generation
        assert after.replica_states == before.replica_states
        return
    assert after.generation == before.generation
    old = {state.replica_id: state for state in before.replica_states}
    new = {state.replica_id: state for state in after.replica_states}
    assert new != old
    assert set(new) == {ReplicaId(partition, storage) for storage in assigned}
    for replica_id, state in new.items():
        assert state in _next_states(after.session_id, replica_id, old.get(replica_id), state.closing_mark)


def _next_states(session: int, replica_id: ReplicaId, old: ReplicaState | None, mark: int) -> list[ReplicaState]:
    """What a replica's state may become while `session` lasts; `mark` is the mark its recovery resolved."""
    states = [ReplicaState(replica_id, session, UNRESOLVED)]
    if old is None:
        states.append(ReplicaState(replica_id, -1, mark))
    elif old.session_id < session and old.closing_mark == UNRESOLVED:
        states.append(ReplicaState(replica_id, old.session_id, mark))
    else:
        states.append(old)
    return states

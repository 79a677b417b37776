"""Whole znode trees of a live cluster: bytes, versions, and what our machine makes of them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.twin_0132.cluster import Coordinator0132, IncompleteAssignmentError, assign_0132
from tests.vectors.reading import Fields, Unit, lines
from tests.vectors.znode_fields import decode, encode, from_fields, to_fields
from waltz_core.base.contract import Tickets
from waltz_core.base.edge import Report, ZkCreate, ZkDone, ZkEvent, ZkFailed, ZkSet, ZkState, ZkStateChanged
from waltz_core.cluster.assignment import Member, assign
from waltz_core.cluster.coordinator import Coordinator
from waltz_core.cluster.notifications import EndpointsChanged, Joined, ManagedServer, Owned, ReplicasChanged
from waltz_core.zookeeper import znodes
from waltz_core.zookeeper.paths import ClusterPaths, cluster_paths
from waltz_core.zookeeper.znode_tree import StoredTree, Znode, ZnodeTree

_TYPES = (
    (r"", "ClusterParams"),
    (r"/ids", None),
    (r"/ids/(client|server)", "Integer"),
    (r"/serverDescriptors", "PartitionAssignment"),
    (r"/serverDescriptors/s_\d{10}", "ServerDescriptor"),
    (r"/store", "StoreParams"),
    (r"/store/group", "GroupDescriptor"),
    (r"/store/assignment", "ReplicaAssignments"),
    (r"/store/connection", "ConnectionMetadata"),
    (r"/store/partition", None),
    (r"/store/partition/\d+", "PartitionMetadata"),
    (r"/store/adminLock", None),
)


def znode_type(paths: ClusterPaths, path: str) -> str | None:
    """What a znode holds, told from its place; None for null data."""
    for pattern, kind in _TYPES:
        if re.fullmatch(re.escape(paths.root) + pattern, path):
            return kind
    assert paths.root.startswith(path + "/"), f"unexpected znode {path}"
    return None


def is_sequential(paths: ClusterPaths, path: str) -> bool:
    return znode_type(paths, path) == "ServerDescriptor"


def units(path: Path) -> Iterator[Unit]:
    for name, line in lines(path):
        run = _check_legend if line.get("type") == "legend" else _check
        yield Unit(name, [line], lambda line=line, run=run: run(line))  # type: ignore[misc]


def _check_legend(line: Fields) -> frozenset[str]:
    line.ignore("of")
    known = set(line["fields"].all())
    assert {"path", "data", "version", "cversion"} <= known
    return frozenset()


def _check(line: Fields) -> frozenset[str]:
    line.ignore("run", "point", "explanation")
    assert line["type"] == "znode_tree"
    paths = cluster_paths(line["root"])
    found = {node["path"]: node.all() for node in line["znodes"]}
    assert paths.root in found, f"no znode {paths.root}: there is nothing to compare"
    _check_nodes(paths, found)
    _check_storages(paths, found, line["storages"].all())
    watches = line["watches"].all()
    if paths.servers in found and found[paths.root]["data"] is not None:
        rules = _check_assignment(paths, found)
        _check_machine(paths, found, watches)
        return rules
    return frozenset()


# ---- node by node ----------------------------------------------------------------------------


def _check_nodes(paths: ClusterPaths, found: dict[str, Any]) -> None:
    assert list(found) == sorted(found, key=lambda path: path.split("/"))
    children: dict[str, list[str]] = {}
    for path in found:
        children.setdefault(path.rpartition("/")[0], []).append(path)
    for path, node in found.items():
        below = children.get(path, [])
        assert node["num_children"] == len(below)
        created, odd = divmod(node["cversion"] + len(below), 2)
        assert odd == 0
        assert created >= len(below)
        assert node["aversion"] == 0
        assert node["acl"] == [[31, "world", "anyone"]]
        assert node["ephemeral"] == (node["owner"] != 0)
        assert node["sequential"] == is_sequential(paths, path)
        assert node["mzxid"] == node["czxid"] if node["version"] == 0 else node["mzxid"] > node["czxid"]
        assert node["pzxid"] >= max([node["czxid"], *(found[child]["czxid"] for child in below)])
        for child in below:
            if found[child]["sequential"]:
                assert int(child[-10:]) < created
        _check_data(paths, path, node)
    tree = ZnodeTree(stored_tree(found))
    for znode in tree.describe():
        node = found[znode.path]
        assert (znode.version, znode.czxid, znode.mzxid, znode.pzxid) == tuple(
            node[key] for key in ("version", "czxid", "mzxid", "pzxid")
        )


def _check_data(paths: ClusterPaths, path: str, node: dict[str, Any]) -> None:
    kind = znode_type(paths, path)
    if node["data"] is None:  # null, not empty: a value that was never set
        assert node["data_length"] == 0
        assert node["type"] in (None, kind)
        assert kind is None or node["version"] == 0
        assert "fields" not in node
        return
    data = bytes.fromhex(node["data"])
    assert node["type"] == kind
    assert kind is not None
    assert node["data_length"] == len(data)
    record = decode(kind, data)
    assert to_fields(kind, record) == node["fields"]
    assert from_fields(kind, node["fields"]) == record
    assert encode(kind, record) == data


def _check_storages(paths: ClusterPaths, found: dict[str, Any], storages: dict[str, Any]) -> None:
    """Storage nodes of the run that are registered have the admin port they were started with."""
    node = found.get(paths.connections)
    ports = dict(node["fields"]["connections"]) if node and node["data"] is not None else {}
    for storage in storages.values():
        assert ports.get(storage["address"], storage["admin_port"]) == storage["admin_port"]


def stored_tree(found: dict[str, Any]) -> StoredTree:
    """A tree of our model with the persistent nodes of a recorded one, as before its ephemeral ones were made."""
    ephemerals = [path.rpartition("/")[0] for path, node in found.items() if node["ephemeral"]]
    persistent = {path: node for path, node in found.items() if not node["ephemeral"]}
    highest = max((node[key] for node in found.values() for key in ("czxid", "mzxid", "pzxid")), default=0)
    stored = tuple(
        Znode(
            path,
            None if node["data"] is None else bytes.fromhex(node["data"]),
            node["version"],
            (node["cversion"] + node["num_children"]) // 2 - ephemerals.count(path),
            node["num_children"],
            0,
            node["czxid"],
            node["mzxid"],
            node["pzxid"],
        )
        for path, node in persistent.items()
    )
    return StoredTree(highest, stored)


# ---- the assignment --------------------------------------------------------------------------


def _descriptors(paths: ClusterPaths, found: dict[str, Any]) -> dict[str, znodes.ServerDescriptor]:
    return {
        path: znodes.decode_server_descriptor(bytes.fromhex(node["data"]))
        for path, node in found.items()
        if path.startswith(paths.servers + "/")
    }


def _check_assignment(paths: ClusterPaths, found: dict[str, Any]) -> frozenset[str]:
    node = found[paths.servers]
    assignment = znodes.decode_partition_assignment(bytes.fromhex(node["data"]))
    num_partitions = found[paths.root]["fields"]["num_partitions"]
    descriptors = sorted(_descriptors(paths, found).values(), key=lambda found: found.server_id)
    assert assignment.cversion <= node["cversion"]
    if assignment.cversion != node["cversion"]:
        if not descriptors or assignment.cversion == -1:
            return frozenset()
        # Stuck or not yet written: our coordinator must find a complete one where 0.13.2 may not.
        members = [Member(found.server_id, found.preferred_partitions) for found in descriptors]
        wanted = assign(assignment, num_partitions, members, node["cversion"])
        _assert_complete(wanted, num_partitions, descriptors)
        stuck = False
        try:
            assign_0132(assignment, num_partitions, members, node["cversion"])
        except IncompleteAssignmentError:
            stuck = True
        return frozenset({"assignment_complete"}) if stuck else frozenset()
    _assert_complete(assignment, num_partitions, descriptors)
    return frozenset()


def _assert_complete(
    assignment: znodes.PartitionAssignment, num_partitions: int, descriptors: list[znodes.ServerDescriptor]
) -> None:
    assert assignment.num_partitions == num_partitions
    assert {server.server_id for server in assignment.servers} == {found.server_id for found in descriptors}
    pairs = [pair for server in assignment.servers for pair in server.partitions]
    assert sorted(partition for partition, _ in pairs) == list(range(num_partitions))
    assert all(generation >= 1 for _, generation in pairs)


# ---- what our machine reads there ------------------------------------------------------------


def _check_machine(paths: ClusterPaths, found: dict[str, Any], watches: dict[str, list[str]]) -> None:
    """A client and each registered server read the tree: same view, same watches as the original's."""
    tree = ZnodeTree(stored_tree(found))
    owners: dict[str, int] = {}
    descriptors = _descriptors(paths, found)
    for path, node in found.items():
        if node["ephemeral"]:
            session = owners.setdefault(node["owner"], tree.open_session())
            _put_ephemeral(tree, session, path, node)
    assignment = znodes.decode_partition_assignment(bytes.fromhex(found[paths.servers]["data"]))
    consistent = assignment.cversion == found[paths.servers]["cversion"]

    client = Coordinator0132(paths.root, tickets=Tickets(), rng=random.Random(1))
    session = tree.open_session()
    seen, watched = _run(tree, session, client)
    expected = [
        (descriptor.endpoint, assignment.of_server(descriptor.server_id)) for descriptor in descriptors.values()
    ]
    (endpoints,) = [item for item in seen if isinstance(item, EndpointsChanged)]
    assert sorted(endpoints.endpoints, key=str) == sorted(expected, key=str)
    params = found[paths.root]["fields"]
    assert seen[0] == Joined(params["name"], params["num_partitions"], b"", None, None)
    view = {paths.servers, *descriptors}
    assert watched == view

    registered = {found[path]["owner"] for path in descriptors}
    named = {path: set(who) for path, who in watches.items()}
    for who in sorted({name for names in named.values() for name in names}):
        mine = {path for path, names in named.items() if who in names}
        # A client, a server, and a command that waits for the lock; who has registered is a server, whatever its name.
        kinds = [view | {paths.assignment}] if who in registered else [view, view | {paths.assignment}]
        assert mine in (kinds if mine & view else [{paths.admin_lock}]), (who, mine)

    for owner, session in owners.items():
        own = [path for path in descriptors if found[path]["owner"] == owner]
        if len(own) == 1 and consistent:
            _check_server(paths, found, tree, session, descriptors[own[0]], assignment)


def _check_server(
    paths: ClusterPaths,
    found: dict[str, Any],
    tree: ZnodeTree,
    session: int,
    descriptor: znodes.ServerDescriptor,
    assignment: znodes.PartitionAssignment,
) -> None:
    """A server that comes back to its session finds itself registered and writes nothing but its id."""
    # The counter is put back so that the machine takes the number that this server has.
    tree.apply(session, ZkSet(0, paths.server_ids, znodes.encode_id_counter(descriptor.server_id - 1), -1))
    before = [node for node in tree.describe() if node.path != paths.server_ids]
    manages = ManagedServer(descriptor.endpoint, descriptor.preferred_partitions)
    server = Coordinator0132(paths.root, tickets=Tickets(), rng=random.Random(1), manages=manages)
    seen, watched = _run(tree, session, server)
    assert [node for node in tree.describe() if node.path != paths.server_ids] == before
    key = znodes.decode_store_params(bytes.fromhex(found[paths.store]["data"])).key
    params = found[paths.root]["fields"]
    assert seen[0] == Joined(params["name"], params["num_partitions"], key, descriptor.server_id, None)
    assert Owned(assignment.of_server(descriptor.server_id)) in seen
    replicas = znodes.decode_replica_assignments(bytes.fromhex(found[paths.assignment]["data"]))
    assert ReplicasChanged(replicas) in seen
    assert watched >= {paths.servers, paths.assignment}
    assert not [item for item in seen if isinstance(item, Report)]


def _put_ephemeral(tree: ZnodeTree, session: int, path: str, node: dict[str, Any]) -> None:
    """Create an ephemeral node again; its creation is not counted in the saved tree."""
    data = None if node["data"] is None else bytes.fromhex(node["data"])
    assert isinstance(tree.apply(session, ZkCreate(0, path, data, ephemeral=True)), ZkDone)
    for version in range(node["version"]):
        assert isinstance(tree.apply(session, ZkSet(0, path, data, version)), ZkDone)


def _run(tree: ZnodeTree, session: int, machine: Coordinator) -> tuple[list[object], set[str]]:
    """Everything a machine says until it has nothing more to do, and the paths that it watches then."""
    events: list[ZkEvent] = [ZkStateChanged(ZkState.CONNECTED, session)]
    said: list[object] = []
    watched: set[str] = set()
    for _ in range(100):
        out: list[Any] = []
        machine.step(0, events, out)
        requests = [item for item in out if hasattr(item, "ticket")]
        said += [item for item in out if not hasattr(item, "ticket")]
        if not requests:
            return said, watched
        watched |= {request.path for request in requests if getattr(request, "watch", False)}
        events = [tree.apply(session, request) for request in requests]
        assert not [event for event in events if isinstance(event, ZkFailed)]
    raise AssertionError("the machine does not come to rest")

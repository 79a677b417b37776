"""What the doctor says of names of storage nodes in ZooKeeper that are none, or second ones of a node."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import combinations

from waltz_core.base.errors import ConfigError
from waltz_core.base.ids import parse_endpoint
from waltz_core.operations import findings
from waltz_core.operations.findings import Finding, ranges_text
from waltz_core.operations.view import ClusterView


def unreadable_names(view: ClusterView) -> Iterator[Finding]:
    """Nothing reaches such a node; one that 0.13.2, or a hand, has written."""
    for node in view.storages:
        if readable(node.name):
            continue
        yield Finding(
            "unreadable-storage-node",
            f"the name of a storage node in ZooKeeper cannot be read: expected host:port, found {node.name!r}",
            _taken_out(view, node.name),
            about=(findings.storage(node.name),),
        )


def same_nodes(view: ClusterView) -> Iterator[Finding]:
    """A node that counts as two makes a majority with itself."""
    holds = {name: len(partitions) for name, partitions in view.maps.replicas.replicas}
    for first, second in combinations(view.storages, 2):
        if first.is_same_node(second):
            fewer = holds.get(first.name, 0) < holds.get(second.name, 0)
            surplus, other = (first, second) if fewer else (second, first)
            yield Finding(
                "same-node",
                f"{first.name} and {second.name} are one storage node under two names: what both hold has one copy "
                "there, and counts as two",
                _taken_out(view, surplus.name, other.name),
                about=(findings.storage(surplus.name),),
            )


def _taken_out(view: ClusterView, storage: str, other: str = "") -> str:
    """How a name of a storage node leaves ZooKeeper.

    What it alone has goes to `other`, which is the same node; but the last replica of a group can only go once another
    node of that group has it.
    """
    groups, replicas = dict(view.maps.groups.groups), dict(view.maps.replicas.replicas)
    holds, group = set(replicas.get(storage, ())), groups.get(storage)
    own = holds.difference(replicas.get(other, ())) if other else set[int]()
    peers = {
        partition_id
        for name, partitions in replicas.items()
        if name != storage and groups.get(name) == group
        for partition_id in partitions
    }
    if other and groups.get(other) == group:
        peers |= own
    last = holds - peers if group is not None else set[int]()
    commands = []
    if own - last:
        commands.append(
            f"waltz zookeeper assign-partition -c CONFIG -s {shlex.quote(other)} -p {ranges_text(sorted(own - last))}"
        )
    if last:
        commands.append(
            f"start one more storage node, for group {group}; "
            f"waltz storage add-node -c CONFIG -s HOST:PORT -a ADMIN_PORT -g {group} -p {ranges_text(sorted(last))}"
        )
    name = shlex.quote(storage)
    if holds:  # such a node cannot be removed
        listed = ranges_text(sorted(holds))
        commands.append(f"waltz zookeeper unassign-partition -c CONFIG -s {name} -p {listed}")
    return "; ".join((*commands, f"waltz zookeeper remove-storage-node -c CONFIG -s {name}"))


def readable(name: str) -> bool:
    """Whether a name is one that anything can be reached by."""
    try:
        parse_endpoint(name)
    except ConfigError:
        return False
    return True

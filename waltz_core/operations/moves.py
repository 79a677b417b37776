"""Moving partitions between storage nodes: which steps are left, from what the cluster looks like now.

Each view gives a new plan, which continues where an interrupted one ended. While the old node
answers, the new one is added and brought level before the old one goes; a dead node is replaced in one change, so
that the replicas that are left are a quorum at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from waltz_core.base.errors import ClusterError
from waltz_core.base.record import record
from waltz_core.operations.view import ClusterView
from waltz_core.zookeeper import store_metadata
from waltz_core.zookeeper.store_metadata import StoreChange, StoreMaps


@record
class AddNode:
    """Enter a storage node into ZooKeeper, without partitions."""

    storage: str
    admin_port: int
    group: int


@record
class Take:
    """Tell a node that it holds a partition."""

    storage: str
    partition_id: int


@record
class Assign:
    """Add a node to the replicas of a partition, in ZooKeeper."""

    storage: str
    partition_id: int


@record
class Swap:
    """Put one node in the place of another among the replicas of a partition, in ZooKeeper."""

    source: str
    target: str
    partition_id: int


@record
class AwaitLevel:
    """Wait until a replica holds the log and takes part in the session."""

    storage: str
    partition_id: int


@record
class Unassign:
    """Take a node from the replicas of a partition, in ZooKeeper."""

    storage: str
    partition_id: int


@record
class AwaitWithout:
    """Wait until a session runs that does not know a node any more."""

    storage: str
    partition_id: int


@record
class Release:
    """Tell a node that it does not hold a partition any more; its files stay unless they are to go."""

    storage: str
    partition_id: int


@record
class RemoveNode:
    """Take a storage node without partitions out of ZooKeeper."""

    storage: str


Step: TypeAlias = AddNode | Take | Assign | Swap | AwaitLevel | Unassign | AwaitWithout | Release | RemoveNode


def describe(step: Step) -> str:
    """One line for people."""
    match step:
        case AddNode(storage, admin_port, group):
            return f"enter storage node {storage}, admin port {admin_port}, group {group}, into ZooKeeper"
        case Take(storage, partition_id):
            return f"{storage}: take partition {partition_id}"
        case Assign(storage, partition_id):
            return f"ZooKeeper: partition {partition_id} is to be on {storage} too"
        case Swap(source, target, partition_id):
            return f"ZooKeeper: partition {partition_id} is to be on {target} instead of {source}"
        case AwaitLevel(storage, partition_id):
            return f"wait until {storage} holds the log of partition {partition_id}"
        case Unassign(storage, partition_id):
            return f"ZooKeeper: partition {partition_id} is not to be on {storage} any more"
        case AwaitWithout(storage, partition_id):
            return f"wait until partition {partition_id} is served without {storage}"
        case Release(storage, partition_id):
            return f"{storage}: give partition {partition_id} up"
        case RemoveNode(storage):
            return f"take storage node {storage} out of ZooKeeper"


# ---- plans -----------------------------------------------------------------------------------


def move(view: ClusterView, partitions: Sequence[int], source: str, target: str) -> tuple[Step, ...]:
    """Steps that are left to have partitions on `target` instead of `source`.

    Raises:
        ClusterError: a node is unknown, the two are in different groups, the target does not answer, a partition is on
            neither of them, the target is one of its replicas under another name, or too few of those are there to do
            without the source.
    """
    _check_pair(view, source, target)
    steps: list[Step] = []
    for partition_id in partitions:
        _check_partition(view, partition_id)
        assigned = view.replicas_of(partition_id)
        if source not in assigned and target not in assigned:
            raise ClusterError(f"partition {partition_id} is neither on {source} nor on {target}")
        steps += _move_one(view, partition_id, source, target)
    return tuple(steps)


def _move_one(view: ClusterView, partition_id: int, source: str, target: str) -> Iterator[Step]:
    assigned = view.replicas_of(partition_id)
    held = _held(view, source)
    _check_new_copy(view, partition_id, target)
    if partition_id not in (_held(view, target) or ()):
        yield Take(target, partition_id)
    if target not in assigned and held is None:
        yield from _settle(view, partition_id, source, target)
        yield Swap(source, target, partition_id)
        yield AwaitLevel(target, partition_id)
        return
    if target not in assigned:
        yield Assign(target, partition_id)
    if target not in assigned or not view.is_level(partition_id, target):
        yield AwaitLevel(target, partition_id)
    if source in assigned:
        yield from _settle(view, partition_id, source, target)
        yield Unassign(source, partition_id)
    yield from _given_up(view, partition_id, source)


def _given_up(view: ClusterView, partition_id: int, source: str) -> Iterator[Step]:
    """How a node gives up what it holds, if it is not to hold it under another name."""
    others = view.names_of(source) - {source}
    if partition_id in (_held(view, source) or ()) and others.isdisjoint(view.replicas_of(partition_id)):
        yield AwaitWithout(source, partition_id)
        yield Release(source, partition_id)


def _settle(view: ClusterView, partition_id: int, source: str, target: str) -> Iterator[Step]:
    """What has to come before a replica is taken away.

    Where the log ends is decided among the replicas of the last session that ZooKeeper names: while no majority of
    them is both assigned and available, no session can decide it.

    Raises:
        ClusterError: nothing that could be waited for would leave such a majority.
    """
    assigned = set(view.replicas_of(partition_id))
    named = view.named_in(partition_id)
    swapped = target not in assigned and _held(view, source) is None
    if not swapped and not view.is_level(partition_id, target):
        named = {*assigned, target}  # the session that is waited for before
    stay, awaited = {*assigned, target} - {source}, set[str]()
    if len(named & stay) <= len(named) // 2:
        late, gone = sorted(stay - named - {target}), sorted(named - assigned - {target})
        waits: list[Step] = [AwaitLevel(one, partition_id) for one in late]
        awaited = {one for one in late if _held(view, one) is not None}  # until it is one that votes
        waits = waits or [AwaitWithout(one, partition_id) for one in gone]
        yield from waits
        named = assigned if waits else named
    there = {one for one in named & stay if one == target or one in awaited or _votes(view, one, partition_id)}
    if len(there) > len(named) // 2 or not named:
        return
    away = ", ".join(sorted((named & stay) - there))
    help_ = f"not there: {away}; bring it back, or replace it, first" if away else "add a replica first"
    raise ClusterError(
        f"partition {partition_id} cannot do without {source} now: a majority of the replicas that know where its log "
        f"ends ({', '.join(sorted(named))}) has to stay; {help_}; `waltz doctor` says what else is wrong"
    )


def _votes(view: ClusterView, storage: str, partition_id: int) -> bool:
    """Whether a replica can say where the log ends: its node answers, and it is neither in limbo nor taken out."""
    node = view.storage(storage)
    replica = (node.replicas or {}).get(partition_id) if node is not None and not node.data_problem else None
    return replica is not None and replica.state in (None, "open") and replica.available


def drain(view: ClusterView, source: str) -> tuple[Step, ...]:
    """Steps that are left to empty a node: its partitions go to the least loaded others of its group.

    Raises:
        ClusterError: the node is unknown, no node can take a partition, or too few of its replicas are
            there to do without the node.
    """
    groups = dict(view.maps.groups.groups)
    _check_node(view, source)
    loads = {
        name: len(partitions)
        for name, partitions in view.maps.replicas.replicas
        if name != source and groups.get(name) == groups[source] and _held(view, name) is not None
    }
    steps: list[Step] = []
    for partition_id in dict(view.maps.replicas.replicas).get(source, ()):
        assigned = view.replicas_of(partition_id)
        others = [name for name in loads if not any(_is_alias(view, name, holder) for holder in assigned)]
        begun = [name for name in others if name in assigned]
        free = begun or sorted(others, key=lambda name: (loads[name], name))
        if not free:
            raise ClusterError(
                f"no other storage node of group {groups[source]} answers and has no copy of its own: partition "
                f"{partition_id} has nowhere to go; add a node to the group first: waltz storage add-node"
            )
        loads[free[0]] += free[0] not in begun
        steps += _move_one(view, partition_id, source, free[0])
    steps += _leftovers(view, source)
    return tuple(steps)


def _leftovers(view: ClusterView, source: str) -> Iterator[Step]:
    """What a node still holds though ZooKeeper has it elsewhere already."""
    for partition_id in sorted(_held(view, source) or ()):
        if source not in view.replicas_of(partition_id):
            yield from _given_up(view, partition_id, source)


def replace(view: ClusterView, source: str, target: str, admin_port: int | None) -> tuple[Step, ...]:
    """Steps that are left to have `target` in the place of `source`, which then leaves the cluster.

    Raises:
        ClusterError: as `move`, or the admin port of a new target is not given.
    """
    groups = dict(view.maps.groups.groups)
    if source not in groups:
        if target in groups:
            return ()
        raise ClusterError(f"storage node {source} is not known; known are {', '.join(sorted(groups)) or 'none'}")
    if target == source:
        raise ClusterError(f"{source} is both source and target")
    if target not in groups and admin_port is None:
        raise ClusterError(f"{target} is not in ZooKeeper yet: give its admin port with --storage-admin-port")
    partitions = dict(view.maps.replicas.replicas).get(source, ())
    if target in groups:
        steps = move(view, partitions, source, target)
    else:
        assert admin_port is not None
        moved = [step for partition_id in partitions for step in _move_one(view, partition_id, source, target)]
        steps = (AddNode(target, admin_port, groups[source]), *moved)
    return (*steps, *_leftovers(view, source), RemoveNode(source))


def add(view: ClusterView, storage: str, admin_port: int, group: int, partitions: Sequence[int]) -> tuple[Step, ...]:
    """Steps that are left to have a new node hold partitions, as one more replica of each.

    Raises:
        ClusterError: the node is known with another group or admin port, it holds a partition under another name, or a
            partition does not exist.
    """
    known = dict(view.maps.groups.groups).get(storage)
    known_as = known, dict(view.maps.connections.connections).get(storage)
    steps: list[Step] = []
    if known is None:
        steps.append(AddNode(storage, admin_port, group))
    elif known_as != (group, admin_port):
        raise ClusterError(f"{storage} is known with group {known_as[0]} and admin port {known_as[1]}")
    elif partitions and _held(view, storage) is None:
        node = view.storage(storage)
        raise ClusterError(f"{storage} does not answer: {node.admin_problem if node else 'unknown'}")
    for partition_id in partitions:
        _check_partition(view, partition_id)
        _check_new_copy(view, partition_id, storage)
        assigned = storage in view.replicas_of(partition_id)
        if partition_id not in (_held(view, storage) or ()):
            steps.append(Take(storage, partition_id))
        if not assigned:
            steps.append(Assign(storage, partition_id))
        if not assigned or not view.is_level(partition_id, storage):
            steps.append(AwaitLevel(storage, partition_id))
    return tuple(steps)


def change_of(step: AddNode | Assign | Swap | Unassign | RemoveNode) -> Callable[[StoreMaps, int], StoreChange]:
    """What a step does to the maps in ZooKeeper, given them and the number of partitions."""
    match step:
        case AddNode(storage, port, group):
            return lambda maps, _: store_metadata.add_storage_node(maps, storage, group, port)
        case Assign(storage, partition_id):
            return lambda maps, count: store_metadata.assign_partitions(maps, count, [partition_id], storage)
        case Swap(source, target, partition_id):
            return lambda maps, count: store_metadata.replace_replica(maps, count, partition_id, source, target)
        case Unassign(storage, partition_id):
            return lambda maps, _: store_metadata.unassign_partitions(maps, [partition_id], storage)
        case RemoveNode(storage):
            return lambda maps, _: store_metadata.remove_storage_node(maps, storage)


# ---- looking ---------------------------------------------------------------------------------


def is_without(view: ClusterView, partition_id: int, storage: str) -> bool:
    """Whether the session of a partition does not know a node, and is served.

    Nor may it know the node under another name that is not assigned any more: its files are given up for all names.
    """
    metadata = view.partitions[partition_id]
    names = {storage, *view.names_of(storage).difference(view.replicas_of(partition_id))}
    served = any((server.health or {}).get(partition_id) for server in view.servers)
    return (
        served
        and metadata is not None
        and all(state.replica_id.storage not in names for state in metadata.replica_states)
    )


def _held(view: ClusterView, storage: str) -> frozenset[int] | None:
    node = view.storage(storage)
    return None if node is None or node.replicas is None else frozenset(node.replicas)


def _check_node(view: ClusterView, storage: str) -> None:
    known = sorted(dict(view.maps.groups.groups))
    if storage not in known:
        raise ClusterError(f"storage node {storage} is not known; known are {', '.join(known) or 'none'}")


def _check_pair(view: ClusterView, source: str, target: str) -> None:
    _check_node(view, source)
    _check_node(view, target)
    if source == target:
        raise ClusterError(f"{source} is both source and target")
    check_other_node(view, source, target)
    groups = dict(view.maps.groups.groups)
    if groups[source] != groups[target]:
        raise ClusterError(
            f"{source} is in group {groups[source]}, {target} in group {groups[target]}: each group holds a copy of "
            "its own, choose a target of the same group"
        )
    node = view.storage(target)
    if node is None or node.replicas is None:
        raise ClusterError(f"{target} does not answer: {node.admin_problem if node else 'unknown'}")


def check_other_node(view: ClusterView, first: str, second: str) -> None:
    """See that two names are of two nodes: what one is told to give up, the other would be told to have.

    Raises:
        ClusterError: they are one node.
    """
    if _is_alias(view, first, second):
        raise ClusterError(
            f"{first} and {second} are one storage node under two names (the same port of the same host): it would "
            "count as two copies, and lose its files; name another node"
        )


def _check_new_copy(view: ClusterView, partition_id: int, target: str) -> None:
    """See that a node is no replica of a partition under another name: what it has would count as two copies.

    Raises:
        ClusterError: it is one.
    """
    for holder in view.replicas_of(partition_id):
        check_other_node(view, holder, target)


def _is_alias(view: ClusterView, first: str, second: str) -> bool:
    return first != second and second in view.names_of(first)


def _check_partition(view: ClusterView, partition_id: int) -> None:
    if not 0 <= partition_id < view.num_partitions:
        raise ClusterError(f"partition {partition_id} does not exist: the cluster has {view.num_partitions}")

"""The checks of `waltz cluster verify`, named and worded as the original's."""

from __future__ import annotations

from collections.abc import Iterator

from waltz_core.base.errors import ClusterError
from waltz_core.base.record import record
from waltz_core.operations.view import ClusterView, ServerView


@record
class Failure:
    """One check that one partition failed."""

    partition_id: int
    check: str
    text: str


_NO_SERVER = "No Server Endpoint found."


def verify(view: ClusterView, partition_id: int) -> tuple[Failure, ...]:
    """Failures of one partition, in the order of the checks.

    Raises:
        ClusterError: there is no such partition.
    """
    if not 0 <= partition_id < view.num_partitions:
        raise ClusterError(f"Partition {partition_id} is not valid.")
    owners = view.owners_of(partition_id)
    owner = view.server(owners[0]) if len(owners) == 1 else None
    checks = {
        "PARTITION_ASSIGNMENT_ZK_VALIDITY": _assignment(view, partition_id, owners),
        "PARTITION_ASSIGNMENT_ZK_SERVER_CONSISTENCY": _served(view, partition_id, owner),
        "SERVER_STORAGE_CONNECTIVITY": _connectivity(view, partition_id, owner),
        "PARTITION_ASSIGNMENT_ZK_STORAGE_CONSISTENCY": _storage_assignment(view, partition_id),
        "PARTITION_QUORUM_STATUS": _quorum(view, partition_id),
        "REPLICA_RECOVERY_STATUS": _recovery(view, partition_id),
        "SERVER_PARTITION_HEALTH_CHECK": _health(partition_id, owner),
    }
    failures = []
    for check, problems in checks.items():
        text = "\n".join(problems)
        if text:
            failures.append(Failure(partition_id, check, text))
    return tuple(failures)


def _assignment(view: ClusterView, partition_id: int, owners: tuple[int, ...]) -> Iterator[str]:
    known = [view.server(owner) for owner in owners]
    if not owners:
        yield f"Error: Partition {partition_id} not handled by any server"
    elif len(owners) > 1:
        names = " and ".join(
            str(owner) if server is None else server.name for owner, server in zip(owners, known, strict=True)
        )
        yield f"Error: Partition handled by more than one server: {names}"
    elif known[0] is None:
        yield f"Error: Partition {partition_id} is assigned to server {owners[0]}, which is not registered"


def _served(view: ClusterView, partition_id: int, owner: ServerView | None) -> Iterator[str]:
    if owner is None:
        yield _NO_SERVER
    elif owner.partitions is None:
        yield owner.problem
    elif partition_id not in owner.partitions:
        yield f"Partition {partition_id} not matching in zk and server: ONLY_IN_ZOOKEEPER"
    for server in view.servers:
        if server is not owner and partition_id in (server.partitions or ()):
            yield f"Partition {partition_id} not matching in zk and server: ONLY_IN_SERVER, {server.name}"


def _connectivity(view: ClusterView, partition_id: int, owner: ServerView | None) -> Iterator[str]:
    if owner is None:
        yield _NO_SERVER
    elif owner.connectivity is None:
        yield f"Server {owner.name}, no connectivity statuses response"
    else:
        for replica in view.replicas_of(partition_id):
            if replica not in owner.connectivity:
                yield f"Server {owner.name}, storage replica {replica} missing in connectivity statuses"
            elif not owner.connectivity[replica]:
                yield f"Server {owner.name}, storage connectivity check for storage replica {replica} failed"


def _storage_assignment(view: ClusterView, partition_id: int) -> Iterator[str]:
    assigned = set(view.replicas_of(partition_id))
    own = {node.name for node in view.storages if node.replicas is not None and partition_id in node.replicas}
    if assigned != own:
        yield "Error: ZooKeeper and StorageNode Partition Assignment mismatch"
        for name in sorted(assigned - own):
            node = view.storage(name)
            yield f"{name} does not hold it: {(node.admin_problem if node else '') or 'it was never asked to'}"
        for name in sorted(own - assigned):
            yield f"{name} holds it, and ZooKeeper does not say so"


def _quorum(view: ClusterView, partition_id: int) -> Iterator[str]:
    replicas = view.replicas_of(partition_id)
    nodes = [view.storage(name) for name in replicas]
    ready = sum(
        node is not None
        and node.replicas is not None
        and partition_id in node.replicas
        and node.replicas[partition_id].available
        for node in nodes
    )
    if ready <= len(replicas) // 2:
        yield "Error: Quorum is not achieved"
        yield f"{ready} of {len(replicas)} replicas are available"


def _recovery(view: ClusterView, partition_id: int) -> Iterator[str]:
    metadata = view.partitions[partition_id]
    if metadata is None or not metadata.replica_states:
        yield "Cannot obtain replica states"
        return
    assigned = set(view.replicas_of(partition_id))
    states = {state.replica_id.storage for state in metadata.replica_states}
    for name in sorted(states - assigned):
        yield f"Storage {name} replica info missing in replica assignments"
    for name in sorted(assigned - states):
        yield f"Storage {name} replica info missing in replica states"
    for name in sorted(assigned & states):
        if not view.is_level(partition_id, name):
            yield f"Storage {name} recovery not completed"


def _health(partition_id: int, owner: ServerView | None) -> Iterator[str]:
    if owner is None:
        yield _NO_SERVER
    elif owner.health is None:
        yield owner.problem
    elif not owner.health.get(partition_id, False):
        yield f"Partition {partition_id} belonging to server {owner.name} is not healthy"

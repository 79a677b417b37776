"""What is wrong with a cluster, why, and which command mends it: the rules of `waltz doctor`.

Each rule looks at one `ClusterView`. A cause is told where it lies: what merely follows from it (a partition
without quorum because its nodes are down) is told as well, behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from waltz_core.cluster.paths import cluster_paths
from waltz_core.cluster.view import ClusterView, ReplicaView, StorageView
from waltz_core.record import record
from waltz_core.store.metadata import is_unknown, states_by_storage
from waltz_core.wire.client_messages import ServedState

LAG_MAX = 100_000  # transactions that a replica may be behind the best one before it is told
CLOCK_MAX_MS = 5_000  # difference of clocks that is told: log times, certificates and sessions suffer from it
CERTIFICATE_SOON_MS = 14 * 86_400_000  # an end so near is told
_DAY_MS = 86_400_000


@record
class Finding:
    """One thing that is wrong."""

    cause: str  # a fixed word, for programs
    evidence: str
    command: str  # that mends it, or the next step towards that


def diagnose(view: ClusterView) -> tuple[Finding, ...]:
    """Everything that is wrong, roots first; empty if nothing is."""
    found: dict[Finding, None] = {}
    for rule in _RULES:
        found.update(dict.fromkeys(rule(view)))
    return tuple(found)


# ---- nodes -----------------------------------------------------------------------------------


def _storage_nodes(view: ClusterView) -> Iterator[Finding]:
    refusing = [node for node in view.storages if node.foreign_key]
    for node in refusing:
        yield Finding(
            "two-clusters" if len(refusing) == len(view.storages) > 1 else "wrong-key",
            f"storage node {node.name} holds data of another cluster: it refuses the key of {view.root} "
            f"({node.admin_problem or node.data_problem})",
            f"check storage.directory and cluster.root in the node's configuration; if the node is of another "
            f"cluster: waltz zookeeper remove-storage-node -c CONFIG -s {node.name}",
        )
    for node in view.storages:
        if node.foreign_key:
            continue
        if not node.admin:
            yield Finding(
                "half-added-storage-node",
                f"storage node {node.name} is in the groups or the assignment, its admin port is not in ZooKeeper",
                f"waltz zookeeper remove-storage-node -c CONFIG -s {node.name}, then add-storage-node again",
            )
        elif node.admin_problem and node.data_problem:
            yield Finding(
                "storage-down",
                f"storage node {node.name} does not answer: {node.data_problem}",
                f"start it: waltz storage run CONFIG.yml on {node.name.rpartition(':')[0]}; if it is lost for good: "
                f"waltz storage replace-node -c CONFIG --from {node.name} --to NEW",
            )
        elif node.admin_problem or node.data_problem:
            port, problem = ("data", node.data_problem) if node.data_problem else ("admin", node.admin_problem)
            yield Finding(
                "port-unreachable",
                f"the {port} port of storage node {node.name} does not answer, the other one does: {problem}",
                "check firewall, port and TLS settings of the node's configuration, then restart it",
            )


def _servers(view: ClusterView) -> Iterator[Finding]:
    if not view.servers:
        yield Finding("no-server", f"no server is registered below {view.root}", "waltz server run CONFIG.yml")
    registered = {server.descriptor.server_id for server in view.servers}
    for owner in view.assignment.servers:
        if owner.partitions and owner.server_id not in registered:
            listed = ", ".join(str(partition) for partition, _ in sorted(owner.partitions))
            yield Finding(
                "owner-gone",
                f"partitions {listed} are assigned to server {owner.server_id}, which is not registered",
                "start a server: waltz server run CONFIG.yml; the servers assign the partitions anew",
            )
    for server in view.servers:
        if server.problem and server.partitions is None:
            yield Finding(
                "server-down",
                f"server {server.name} (id {server.descriptor.server_id}) is registered and does not answer: "
                f"{server.problem}",
                "look at its log; restart it: waltz server run CONFIG.yml",
            )
        if server.key is not None and server.key != view.key:
            yield Finding(
                "two-clusters",
                f"server {server.name} works with another cluster key than the one below {view.root}",
                "stop it, correct cluster.root and zookeeper.connectString in its configuration, start it again",
            )
    endpoints = [server.name for server in view.servers]
    for name in sorted({name for name in endpoints if endpoints.count(name) > 1}):
        yield Finding(
            "two-clusters",
            f"{endpoints.count(name)} servers are registered with the endpoint {name}",
            "stop all but one, or give each its own server.advertisedEndpoint",
        )
    for child in view.undecodable:
        yield Finding(
            "undecodable-server",
            f"{view.root}/…/{child} is no server descriptor",
            "find out who wrote it; end that process, its znode goes with it",
        )


def _certificates(view: ClusterView) -> Iterator[Finding]:
    for certificate in view.certificates:
        left = certificate.not_after_ms - view.now_ms
        if left <= CERTIFICATE_SOON_MS:
            ends = "ended" if left <= 0 else f"ends in {left / _DAY_MS:.0f} days"
            yield Finding(
                "certificate-expired" if left <= 0 else "certificate-ends-soon",
                f"the certificate of {certificate.port} ({certificate.subject}) {ends}",
                "give the node a new certificate (*.ssl.certificate or *.ssl.keyStore.location) and restart it",
            )


def _clocks(view: ClusterView) -> Iterator[Finding]:
    clocks = [(f"server {server.name}", server.clock_ms) for server in view.servers]
    clocks += [(f"storage node {node.name}", node.clock_ms) for node in view.storages]
    for name, off in clocks:
        if off is not None and abs(off) > CLOCK_MAX_MS:
            direction = "ahead of" if off > 0 else "behind"
            yield Finding(
                "clock-off",
                f"the clock of {name} is {abs(off) / 1000:.1f} s {direction} this machine's",
                "synchronise the clocks of all machines: timedatectl set-ntp true",
            )


def _disks(view: ClusterView) -> Iterator[Finding]:
    for node in view.storages:
        if node.disk_free is not None and node.disk_free <= (node.disk_reserve or 0):
            yield Finding(
                "disk-full",
                f"storage node {node.name} has {node.disk_free:,} bytes left and refuses appends "
                f"(it keeps {node.disk_reserve or 0:,} in reserve)",
                "free space or enlarge the file system of its storage.directory; it goes on by itself",
            )


# ---- partitions ------------------------------------------------------------------------------


def _replicas(view: ClusterView) -> Iterator[Finding]:
    for node in view.storages:
        for replica in (node.replicas or {}).values():
            yield from _replica(node, replica)


def _replica(node: StorageView, replica: ReplicaView) -> Iterator[Finding]:
    name, number = f"partition {replica.partition_id} on storage node {node.name}", replica.partition_id
    if replica.state == "limbo":
        yield Finding(
            "limbo",
            f"{name} is in limbo: {replica.reason}",
            f"waltz storage repair -c CONFIG -s {node.admin} -p {number}; if that does not mend it: "
            f"waltz storage accept-limbo -c CONFIG -s {node.admin} -p {number}",
        )
    elif replica.state == "stopped":
        yield Finding(
            "disk-error",
            f"{name} has stopped: {replica.reason}",
            f"check disk, room and file system; then waltz storage repair -c CONFIG -s {node.admin} -p {number}, or "
            "restart the node: it fetches what is missing",
        )
    elif replica.damaged:
        yield Finding(
            "damaged-records",
            f"{name} has {replica.damaged} damaged records",
            f"waltz storage repair -c CONFIG -s {node.admin} -p {number}",
        )
    if not replica.available:
        yield Finding(
            "offline",
            f"{name} was taken out of service",
            f"waltz storage availability -c CONFIG -s {node.admin} -p {number} -o true",
        )


def _assignments(view: ClusterView) -> Iterator[Finding]:
    for partition_id in range(view.num_partitions):
        assigned = set(view.replicas_of(partition_id))
        if not assigned:
            yield Finding(
                "no-replica",
                f"partition {partition_id} is assigned to no storage node",
                f"waltz zookeeper assign-partition -c CONFIG -p {partition_id} -s HOST:PORT",
            )
        for node in view.storages:
            if node.replicas is None or (node.name in assigned) == (partition_id in node.replicas):
                continue
            if node.name in assigned:
                yield Finding(
                    "mismatched-assignment",
                    f"ZooKeeper assigns partition {partition_id} to storage node {node.name}, which does not hold it",
                    f"waltz storage add-partition -c CONFIG -s {node.admin} -p {partition_id}",
                )
            else:
                yield Finding(
                    "mismatched-assignment",
                    f"storage node {node.name} holds partition {partition_id}, which ZooKeeper does not assign to it",
                    f"waltz zookeeper assign-partition -c CONFIG -p {partition_id} -s {node.name}, or "
                    f"waltz storage remove-partition -c CONFIG -s {node.admin} -p {partition_id}",
                )


def _metadata(view: ClusterView) -> Iterator[Finding]:
    unreadable = dict(view.unreadable)
    for partition_id in range(view.num_partitions):
        path = cluster_paths(view.root).partition(partition_id)
        if path in unreadable:
            yield Finding(
                "unreadable-metadata",
                f"znode {path} is not the metadata of a partition: {unreadable.pop(path)}",
                f"waltz storage confirm-metadata -c CONFIG -p {partition_id}",
            )
            continue
        metadata = view.partitions[partition_id]
        sessions = {node.name: replica.session_id for node, replica in _copies(view, partition_id)}
        if metadata is not None and metadata.session_id >= 0:
            newest = max(sessions, key=sessions.__getitem__, default="")
            if newest and sessions[newest] > metadata.session_id:
                yield Finding(
                    "metadata-set-back",
                    f"the metadata of partition {partition_id} in ZooKeeper is of session {metadata.session_id}, "
                    f"{newest} has been in session {sessions[newest]}: was ZooKeeper restored from an older state?",
                    f"waltz storage confirm-metadata -c CONFIG -p {partition_id}",
                )
            continue
        if any(session_id >= 0 for session_id in sessions.values()):
            told = ", ".join(f"{name}: session {session_id}" for name, session_id in sorted(sessions.items()))
            yield Finding(
                "missing-metadata",
                f"the metadata of partition {partition_id} in ZooKeeper is gone, its replicas are written ({told})",
                f"waltz storage confirm-metadata -c CONFIG -p {partition_id}",
            )
    for path, problem in unreadable.items():
        yield Finding(
            "damaged-cluster",
            f"znode {path} cannot be read: {problem}",
            "stop the servers; waltz zookeeper restore -c CONFIG -i FILE, where FILE is what "
            "`waltz zookeeper list --json` prints, now or, better, before",
        )


def _owners(view: ClusterView) -> Iterator[Finding]:
    for partition_id in range(view.num_partitions):
        owners = view.owners_of(partition_id)
        if not owners and view.servers:
            yield Finding(
                "no-owner",
                f"partition {partition_id} is assigned to no server",
                "restart one of the servers: they compute the assignment anew",
            )
        elif len(owners) > 1:
            yield Finding(
                "two-owners",
                f"partition {partition_id} is assigned to the servers {', '.join(map(str, owners))}",
                "restart one of these servers: they compute the assignment anew",
            )


def _quorums(view: ClusterView) -> Iterator[Finding]:
    for partition_id in range(view.num_partitions):
        replicas = view.replicas_of(partition_id)
        ready = {
            node.name
            for node, replica in _copies(view, partition_id)
            if replica.available and replica.state in (None, "open", "opening") and node.name in replicas
        }
        if replicas and len(ready) <= len(replicas) // 2:
            missing = ", ".join(sorted(set(replicas) - ready))
            yield Finding(
                "no-quorum",
                f"partition {partition_id} has {len(ready)} of {len(replicas)} replicas, it needs "
                f"{len(replicas) // 2 + 1}: missing are {missing}",
                "bring these storage nodes back; the findings about each of them say how",
            )


def _recoveries(view: ClusterView) -> Iterator[Finding]:
    for server in view.servers:
        stuck = set()
        for status in server.status or ():
            if status.state == ServedState.STUCK:
                stuck.add(status.partition_id)
                yield Finding(
                    "recovery-stuck",
                    f"server {server.name} cannot open partition {status.partition_id} "
                    f"since {status.since_ms / 1000:.0f} s: {status.reason}",
                    f"waltz storage confirm-metadata -c CONFIG -p {status.partition_id}"
                    if _forgotten(view, status.partition_id)
                    else f"bring back the storage nodes that are named; if they are lost for good: "
                    f"waltz storage unsafe-recover -c CONFIG -p {status.partition_id} --accept-data-loss",
                )
        reasons = {status.partition_id: f": {status.reason}" for status in server.status or () if status.reason}
        for partition_id, healthy in sorted((server.health or {}).items()):
            if not healthy and partition_id not in stuck:
                yield Finding(
                    "unhealthy",
                    f"server {server.name} cannot commit in partition {partition_id}{reasons.get(partition_id, '')}",
                    f"waltz cluster verify -c CONFIG -p {partition_id}; look at the log of {server.name}",
                )
        for partition_id in server.partitions or ():
            if server.descriptor.server_id not in view.owners_of(partition_id):
                yield Finding(
                    "mismatched-assignment",
                    f"server {server.name} serves partition {partition_id}, which ZooKeeper does not assign to it",
                    f"restart {server.name} if this does not end within the ZooKeeper session time-out",
                )


def _forgotten(view: ClusterView, partition_id: int) -> bool:
    """Whether the metadata of a partition do not know what its replicas hold."""
    metadata = view.partitions[partition_id]
    states = {} if metadata is None else states_by_storage(metadata)
    return any(
        replica.session_id >= 0
        and (
            not states
            or (
                is_unknown(states, node.name, replica.session_id)
                and replica.max_id is not None
                and replica.max_id > replica.low_water_mark
            )
        )
        for node, replica in _copies(view, partition_id)
    )


def _connectivity(view: ClusterView) -> Iterator[Finding]:
    for server in view.servers:
        for name, reached in sorted((server.connectivity or {}).items()):
            node = view.storage(name)
            if not reached and node is not None and not node.data_problem:
                yield Finding(
                    "partitioned-network",
                    f"server {server.name} does not reach storage node {name}, this machine does",
                    "check network, firewall and the server's TLS settings for storage (server.ssl.*)",
                )


def _lags(view: ClusterView) -> Iterator[Finding]:
    for partition_id in range(view.num_partitions):
        copies = [(node, replica.max_id) for node, replica in _copies(view, partition_id)]
        best = max((max_id for _, max_id in copies if max_id is not None), default=-1)
        metadata = view.partitions[partition_id]
        named = set() if metadata is None else {state.replica_id.storage for state in metadata.replica_states}
        source = next((node.admin for node, max_id in copies if max_id == best), "")
        for node, max_id in copies:
            if max_id is None:
                continue
            outside = node.name in named and not view.is_level(partition_id, node.name)
            behind = best - max_id
            if behind > LAG_MAX or (outside and behind > 0):
                here = f"-s {node.admin} -p {partition_id}"
                yield Finding(
                    "lagging-replica",
                    f"partition {partition_id} on storage node {node.name} ends at {max_id}, {behind:,} behind",
                    f"it catches up by itself; if it does not: waltz storage availability -c CONFIG {here} -o false; "
                    f"waltz storage recover-partition -c CONFIG -s {source} -d {node.admin} "
                    f"-dp {node.name.rpartition(':')[2]} -p {partition_id} -b 1000; "
                    f"waltz storage availability -c CONFIG {here} -o true",
                )


def _copies(view: ClusterView, partition_id: int) -> Iterator[tuple[StorageView, ReplicaView]]:
    for node in view.storages:
        if node.replicas is not None and partition_id in node.replicas:
            yield node, node.replicas[partition_id]


_RULES: tuple[Callable[[ClusterView], Iterator[Finding]], ...] = (
    _certificates,
    _storage_nodes,
    _servers,
    _clocks,
    _disks,
    _replicas,
    _assignments,
    _metadata,
    _owners,
    _recoveries,
    _connectivity,
    _lags,
    _quorums,
)

"""What is wrong with a cluster, why, and which command mends it: the rules of `waltz doctor`.

Each rule looks at one `ClusterView` and yields findings. Rules stand in the order of causes before consequences;
`findings.fold` then puts what merely follows (a partition without quorum because its nodes are down) below its cause.

Two kinds of advice are held back. What a running cluster mends by itself within seconds (a server redials a storage
node that has just come back) carries `settles`, and the command looks again before it calls it wrong. What gives data
up is advised only when a recovery has waited for `LAST_RESORT_AFTER_MS`, longer than any restart takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from waltz_core.base.quorum import majority
from waltz_core.operations import findings
from waltz_core.operations.archives import archives, uncovered
from waltz_core.operations.doors import gateways
from waltz_core.operations.findings import Finding, fold, ranges_text
from waltz_core.operations.names import readable, same_nodes, unreadable_names
from waltz_core.operations.regions import proxies
from waltz_core.operations.replicas import lags, replicas
from waltz_core.operations.view import ClusterView, ServerView, StorageView
from waltz_core.wire.client_messages import PartitionStatus, ServedState
from waltz_core.wire.shared import LOST_DATA, AccessLevel, Trouble
from waltz_core.zookeeper.partition_metadata import is_unknown, states_by_storage
from waltz_core.zookeeper.paths import cluster_paths

CLOCK_MAX_MS = 5_000  # difference of clocks that is reported: log times, certificates and sessions suffer from it
CERTIFICATE_SOON_MS = 14 * 86_400_000  # an end so near is reported
# A ZooKeeper session time-out (30 s) and what follows it: until then the znodes of a killed process are there, and
# recoveries and assignments may end by themselves.
SETTLE_MS = 45_000
LAST_RESORT_AFTER_MS = 300_000  # longer than any restart: until then no advice gives data up
_DAY_MS = 86_400_000
_JOURNAL = "the decision journal cannot be written"  # how the reason begins where a server's own disk is the cause


def diagnose(view: ClusterView) -> tuple[Finding, ...]:
    """Everything that is wrong, each cause with what follows from it; empty if nothing is."""
    rules = _RULES if view.proxy_of is None else _RULES_OF_PROXIES
    return fold(chain((finding for rule in rules for finding in rule(view)), gateways(view.gateways)))


def notices(view: ClusterView) -> tuple[Finding, ...]:
    """What is not wrong, but should be a decision of the operator."""
    kind = "server" if view.proxy_of is None else "proxy"
    served = [(f"{kind} {server.name}", server.access_level) for server in view.servers]
    served += [(f"storage node {storage.name}", storage.access_level) for storage in view.storages]
    findings = []
    for level, cause, what in (
        (
            AccessLevel.EVERYBODY,
            "open-to-everybody",
            "ask nobody for a certificate: who reaches them may do everything",
        ),
        (AccessLevel.CERTIFICATES, "no-roles", "have no roles: every certificate of their authority may do everything"),
    ):
        names = [name for name, known in served if known == level]
        if names:
            command = "waltz certificates makes certificates, roles and the keys of each configuration"
            findings.append(Finding(cause, f"{', '.join(names)} {what}", command))
    return (*findings, *uncovered(view))


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
            about=(findings.storage(node.name),),
        )
    for node in view.storages:
        if node.foreign_key or not readable(node.name):
            continue
        if not node.admin:
            group = dict(view.maps.groups.groups).get(node.name, "GROUP")
            add = f"waltz zookeeper add-storage-node -c CONFIG -s {node.name} -a ADMIN_PORT -g {group}"
            holds = dict(view.maps.replicas.replicas).get(node.name)  # such a node cannot be removed
            yield Finding(
                "half-added-storage-node",
                f"storage node {node.name} is in the groups or the assignment, its admin port is not in ZooKeeper",
                add if holds else f"waltz zookeeper remove-storage-node -c CONFIG -s {node.name}; {add}",
                about=(findings.storage(node.name),),
            )
        elif node.admin_problem and node.data_problem and node.untrusted:
            yield Finding(
                "untrusted-storage-node",
                f"storage node {node.name} is there, and this machine does not trust it: {node.data_problem}",
                "give it a certificate that names its host and is of the cluster's authority: storage.ssl.certificate "
                "or storage.ssl.keyStore.location in its configuration; if that is right, correct ssl.ca or "
                "ssl.trustStore.location in the configuration of this command",
                about=(findings.storage(node.name),),
                because=(findings.port(node.name),),
            )
        elif node.admin_problem and node.data_problem:
            yield Finding(
                "storage-down",
                f"storage node {node.name} does not answer: {node.data_problem}",
                f"start it: waltz storage run CONFIG.yml on {node.name.rpartition(':')[0]}; if it is lost for good: "
                f"waltz storage replace-node -c CONFIG --from {node.name} --to HOST:PORT -a ADMIN_PORT",
                about=(findings.storage(node.name),),
                because=(findings.port(node.name),),
            )
        elif node.admin_problem or node.data_problem:
            port, problem = ("data", node.data_problem) if node.data_problem else ("admin", node.admin_problem)
            advice = "check firewall, port and TLS settings of the node's configuration, then restart it"
            if node.admin_problem:
                advice += (
                    f"; if ZooKeeper has another admin port than the node ({node.admin.rpartition(':')[2]}): "
                    f"waltz zookeeper set-admin-port -c CONFIG -s {node.name} -a ADMIN_PORT"
                )
            yield Finding(
                "port-unreachable",
                f"the {port} port of storage node {node.name} does not answer, the other one does: {problem}",
                advice,
                about=(findings.storage(node.name),) if node.data_problem else (),
                because=(findings.port(node.name),),
            )


def _servers(view: ClusterView) -> Iterator[Finding]:
    if not view.servers:
        yield Finding(
            "no-server",
            f"no server is registered below {view.root}",
            "waltz server run CONFIG.yml",
            about=(findings.SERVERS,),
        )
    registered = {server.descriptor.server_id for server in view.servers}
    for owner in view.assignment.servers:
        if owner.partitions and owner.server_id not in registered:
            listed = ", ".join(str(partition) for partition, _ in sorted(owner.partitions))
            yield Finding(
                "owner-gone",
                f"partitions {listed} are assigned to server {owner.server_id}, which is not registered",
                "start a server: waltz server run CONFIG.yml; the servers assign the partitions anew",
                about=tuple(findings.partition(partition_id) for partition_id, _ in owner.partitions),
                because=(findings.SERVERS,),
                settles=bool(view.servers),
            )
    for server in view.servers:
        yield from _mute(view, server)
        if server.key is not None and server.key != view.key:
            yield Finding(
                "two-clusters",
                f"server {server.name} works with another cluster key than the one below {view.root}",
                "stop it, correct cluster.root and zookeeper.connectString in its configuration, start it again",
                about=(findings.server(server.name),),
            )
    endpoints = [server.name for server in view.servers]
    for name in sorted({name for name in endpoints if endpoints.count(name) > 1}):
        yield Finding(
            "two-clusters",
            f"{endpoints.count(name)} servers are registered with the endpoint {name}",
            "stop all but one, or give each its own server.advertisedEndpoint",
            about=(findings.server(name),),
            settles=True,  # one that was killed and started again is registered twice until its old session ends
        )
    for child in view.undecodable:
        yield Finding(
            "undecodable-server",
            f"{view.root}/…/{child} is no server descriptor",
            "find out who wrote it; end that process, its znode goes with it",
        )


def _mute(view: ClusterView, server: ServerView) -> Iterator[Finding]:
    """It answers nothing, or some questions and then no more."""
    if server.problem and server.partitions is None:
        yield Finding(
            "server-down",
            f"server {server.name} (id {server.descriptor.server_id}) is registered and does not answer: "
            f"{server.problem}",
            "look at its log; restart it: waltz server run CONFIG.yml",
            about=(findings.server(server.name),),
            because=(findings.port(server.name),),
        )
    elif server.problem and not server.unusable:  # else the storage node for which it waits is named
        yield Finding(
            "server-silent",
            f"server {server.name} (id {server.descriptor.server_id}) answers some questions, and then no more: "
            f"{server.problem}",
            "look at its log; restart it if this does not end: waltz server run CONFIG.yml",
            about=(findings.server(server.name),),
            because=(findings.port(server.name), *(findings.storage(node.name) for node in view.storages)),
            settles=True,  # one that ends just now
        )


def _certificates(view: ClusterView) -> Iterator[Finding]:
    for certificate in view.certificates:
        left = certificate.not_after_ms - view.now_ms
        if left <= CERTIFICATE_SOON_MS:
            ends = "ended" if left <= 0 else f"ends in {left / _DAY_MS:.0f} days"
            yield Finding(
                "certificate-expired" if left <= 0 else "certificate-ends-soon",
                f"the certificate of {certificate.port} ({certificate.subject}) {ends}",
                "replace certificate and key in the files of the node (*.ssl.certificate or *.ssl.keyStore.location)",
                about=(findings.port(certificate.port),) if left <= 0 else (),
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
                "free space or enlarge the file system of its storage.directory; it resumes by itself",
                about=(findings.storage(node.name),),
            )


# ---- partitions ------------------------------------------------------------------------------


def _assignments(view: ClusterView) -> Iterator[Finding]:
    for partition_id in range(view.num_partitions):
        assigned = set(view.replicas_of(partition_id))
        if not assigned:
            holders = [node.name for node, _ in view.copies_of(partition_id)] or ["HOST:PORT"]
            yield Finding(
                "no-replica",
                f"partition {partition_id} is assigned to no storage node",
                "; ".join(
                    f"waltz zookeeper assign-partition -c CONFIG -p {partition_id} -s {name}" for name in holders
                ),
                about=(findings.partition(partition_id), findings.unassigned(partition_id)),
            )
        for node in view.storages:
            if node.replicas is None or (node.name in assigned) == (partition_id in node.replicas):
                continue
            if node.name in assigned:
                yield Finding(
                    "mismatched-assignment",
                    f"ZooKeeper assigns partition {partition_id} to storage node {node.name}, which does not hold it",
                    f"waltz storage add-partition -c CONFIG -s {node.admin} -p {partition_id}",
                    about=(findings.replica(partition_id, node.name),),
                )
            elif not any(other.name in assigned and other.is_same_node(node) for other in view.storages):
                yield Finding(
                    "mismatched-assignment",
                    f"storage node {node.name} holds partition {partition_id}, which ZooKeeper does not assign to it",
                    f"waltz zookeeper assign-partition -c CONFIG -p {partition_id} -s {node.name}"
                    # It may be the only copy: nothing is removed while no other one counts.
                    + f", or waltz storage remove-partition -c CONFIG -s {node.admin} -p {partition_id}"
                    * bool(assigned),
                    because=(findings.unassigned(partition_id),),
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
                about=(findings.partition(partition_id),),
            )
            continue
        metadata = view.partitions[partition_id]
        sessions = {node.name: replica.session_id for node, replica in view.copies_of(partition_id)}
        if metadata is not None and metadata.session_id >= 0:
            newest = max(sessions, key=sessions.__getitem__, default="")
            if newest and sessions[newest] > metadata.session_id:
                yield Finding(
                    "metadata-set-back",
                    f"the metadata of partition {partition_id} in ZooKeeper is of session {metadata.session_id}, "
                    f"{newest} has been in session {sessions[newest]}: was ZooKeeper restored from an older state?",
                    f"waltz storage confirm-metadata -c CONFIG -p {partition_id}",
                    about=(findings.partition(partition_id),),
                    # A session that opened between our looks at ZooKeeper and at the node is ahead in the same way.
                    settles=True,
                )
            continue
        if any(session_id >= 0 for session_id in sessions.values()):
            known = ", ".join(f"{name}: session {session_id}" for name, session_id in sorted(sessions.items()))
            yield Finding(
                "missing-metadata",
                f"the metadata of partition {partition_id} in ZooKeeper is gone, its replicas are written ({known})",
                f"waltz storage confirm-metadata -c CONFIG -p {partition_id}",
                about=(findings.partition(partition_id),),
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
                about=(findings.partition(partition_id),),
                settles=True,
            )
        elif len(owners) > 1:
            yield Finding(
                "two-owners",
                f"partition {partition_id} is assigned to the servers {', '.join(map(str, owners))}",
                "restart one of these servers: they compute the assignment anew",
                about=(findings.partition(partition_id),),
                settles=True,
            )


def _quorums(view: ClusterView) -> Iterator[Finding]:
    """Partitions that lack replicas; those that lack the same ones are one finding."""
    alike: dict[tuple[int, tuple[str, ...]], list[int]] = {}
    for partition_id in range(view.num_partitions):
        replicas = view.replicas_of(partition_id)
        ready = {
            node.name
            for node, replica in view.copies_of(partition_id)
            if replica.available and replica.state in (None, "open", "opening") and node.name in replicas
        }
        ready |= {
            node.name for node in view.storages if node.name in replicas and _served_unseen(view, node, partition_id)
        }
        missing = tuple(sorted(set(replicas) - ready))
        if missing:
            alike.setdefault((len(replicas), missing), []).append(partition_id)
    for (count, missing), partitions in alike.items():
        ready_count, needed, plural = count - len(missing), majority(count), len(partitions) > 1
        names = f"partition{'s' if plural else ''} {ranges_text(partitions)} {'have' if plural else 'has'}"
        because = [findings.storage(name) for name in missing]
        because += [findings.replica(partition_id, name) for partition_id in partitions for name in missing]
        if ready_count < needed:
            yield Finding(
                "no-quorum",
                f"{names} {ready_count} of {count} replicas, needed are {needed}: missing are {', '.join(missing)}",
                "bring these storage nodes back; the findings about each of them say how",
                about=tuple(map(findings.partition, partitions)),
                because=tuple(because),
            )
        elif ready_count == needed:
            yield Finding(
                "no-spare-replica",
                f"{names} {ready_count} of {count} replicas: the next loss stops commits there",
                f"bring {', '.join(missing)} back before any other storage node is stopped",
                because=tuple(because),
            )


def _served_unseen(view: ClusterView, node: StorageView, partition_id: int) -> bool:
    """A node that does not say what it holds, on its admin port, may still serve a replica on the other one."""
    silent = node.replicas is None and not node.data_problem and not node.foreign_key
    return silent and view.is_level(partition_id, node.name)


def _recoveries(view: ClusterView) -> Iterator[Finding]:
    for server in view.servers:
        here = findings.server(server.name)
        stuck = set()
        for status in server.status or ():
            if status.state == ServedState.STUCK:
                stuck.add(status.partition_id)
                yield Finding(
                    "recovery-stuck",
                    f"server {server.name} cannot open partition {status.partition_id} "
                    f"since {status.since_ms / 1000:.0f} s: {status.reason}"
                    + _awaits(view, server, status.partition_id),
                    _way_out(view, status),
                    because=(findings.partition(status.partition_id), here),
                    settles=status.since_ms < SETTLE_MS and not _forgotten(view, status.partition_id),
                )
        reasons = {status.partition_id: f": {status.reason}" for status in server.status or () if status.reason}
        for partition_id, healthy in sorted((server.health or {}).items()):
            if not healthy and partition_id not in stuck:
                yield Finding(
                    "unhealthy",
                    f"server {server.name} cannot commit in partition {partition_id}{reasons.get(partition_id, '')}"
                    + _awaits(view, server, partition_id),
                    _healed_by(server, partition_id, reasons.get(partition_id, "")),
                    because=(findings.partition(partition_id), here),
                    settles=True,
                )
        for partition_id in server.partitions or ():
            if server.descriptor.server_id not in view.owners_of(partition_id):
                yield Finding(
                    "mismatched-assignment",
                    f"server {server.name} serves partition {partition_id}, which ZooKeeper does not assign to it",
                    f"restart {server.name} if this does not end within the ZooKeeper session time-out",
                    because=(findings.partition(partition_id), here),
                    settles=True,
                )


def _healed_by(server: ServerView, partition_id: int, reason: str) -> str:
    verify = f"waltz cluster verify -c CONFIG -p {partition_id}"
    if _JOURNAL in reason:
        return (
            f"check disk, room and rights of server.journal.directory of {server.name}; it resumes by itself, which "
            f"{verify} shows"
        )
    if LOST_DATA in reason:
        given_up = f"if unsafe-recover has given those transactions up: restart {server.name}"
        return f"restore the replicas; {given_up}; {verify}"
    return f"{verify}; look at the log of {server.name}"


def _awaits(view: ClusterView, server: ServerView, partition_id: int) -> str:
    """What the server waits for in a partition, and what its storage nodes wait for there."""
    own = server.awaits(partition_id)
    waits = [f"it waits for {own}"] if own else []
    for name in view.replicas_of(partition_id):
        node = view.storage(name)
        under_way = node.awaits(partition_id) if node is not None else ""
        if under_way:
            waits.append(f"storage node {name} has under way: {under_way}")
    return f" ({'; '.join(waits)})" if waits else ""


def _way_out(view: ClusterView, status: PartitionStatus) -> str:
    """The command that ends the wait of a recovery; giving data up only after a long wait."""
    number = status.partition_id
    if _forgotten(view, number):
        return f"waltz storage confirm-metadata -c CONFIG -p {number}"
    if status.since_ms < LAST_RESORT_AFTER_MS:
        return "bring back the storage nodes that are named; the partition then opens by itself"
    ends = ", ".join(
        f"{node.name} ends at {replica.max_id}"
        for node, replica in view.copies_of(number)
        if replica.max_id is not None
    )
    return (
        f"bring back the storage nodes that are named. Only if they are lost for good: "
        f"waltz storage unsafe-recover -c CONFIG -p {number} --accept-data-loss; "
        f"it keeps what can be reached ({ends or 'nothing: no replica answers'}), and every transaction that was "
        "committed above that is lost"
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
        for node, replica in view.copies_of(partition_id)
    )


def _connectivity(view: ClusterView) -> Iterator[Finding]:
    for server in view.servers:
        reaches = server.connectivity
        if reaches is None:
            reaches = dict.fromkeys(server.unusable, False)  # it waits for a node that is silent, and does not answer
        missed = {name for name, reached in reaches.items() if not reached}
        cut = tuple(findings.partition(number) for number in server.partitions or () if _is_cut(view, number, missed))
        for name in sorted(missed):
            node = view.storage(name)
            if node is not None and not node.data_problem:
                reason = server.unusable.get(name, "")
                yield Finding(
                    "partitioned-network",
                    f"server {server.name} does not reach storage node {name}, this machine does"
                    + (f": {reason}" if reason else ""),
                    _reach(server.troubles.get(name)),
                    about=(*cut, *(findings.replica(number, name) for number in server.partitions or ())),
                    because=(findings.storage(name), findings.server(server.name)),
                    settles=True,
                )


def _is_cut(view: ClusterView, partition_id: int, missed: set[str]) -> bool:
    """Whether a server that misses these storage nodes has no quorum in a partition."""
    replicas = view.replicas_of(partition_id)
    return len(replicas) - len(missed.intersection(replicas)) < majority(len(replicas))


def _reach(trouble: Trouble | None) -> str:
    """What to look at when a server cannot use a storage node that others can."""
    match trouble:
        case Trouble.TRUST:
            return (
                "make the server trust the node's certificate (server.ssl.trustStore, server.ssl.verify), and the node "
                "the server's (storage.ssl.trustStore); then restart the one that was changed"
            )
        case Trouble.REFUSAL:
            return "check cluster.root and zookeeper.connectString of the server: it shows another cluster's key"
        case Trouble.VERSION:
            return "run versions of server and storage node that speak a common codec"
        case _:
            return "check network, firewall and the server's TLS settings for storage (server.ssl.*)"


_RULES: tuple[Callable[[ClusterView], Iterator[Finding]], ...] = (
    _certificates,
    unreadable_names,
    same_nodes,
    _storage_nodes,
    _servers,
    _clocks,
    _disks,
    replicas,
    _assignments,
    _metadata,
    _owners,
    _connectivity,
    _quorums,
    _recoveries,
    lags,
    archives,
)
_RULES_OF_PROXIES: tuple[Callable[[ClusterView], Iterator[Finding]], ...] = (_certificates, proxies, _clocks)

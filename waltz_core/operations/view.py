"""A whole cluster as an operator's tool saw it: ZooKeeper, every server, every storage node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from waltz_core.base.record import record
from waltz_core.operations.doors import GatewayView
from waltz_core.wire.client_messages import PartitionStatus
from waltz_core.wire.shared import ARCHIVE_TROUBLE, AWAITED, Trouble
from waltz_core.zookeeper.store_metadata import StoreMaps
from waltz_core.zookeeper.znodes import UNRESOLVED, PartitionAssignment, PartitionMetadata, ServerDescriptor


@record
class CertificateView:
    """The certificate that a port showed."""

    port: str  # host:port
    subject: str
    not_after_ms: int  # since 1970


@record
class ArchiveView:
    """What a server says of the archive of one partition."""

    end: int  # behind the last id that is archived
    lag: int  # committed records that are not
    files_due: int  # whole files that they would fill
    log_start: int  # of the storage nodes
    first: int | None  # that the archive holds; None: not known
    trouble: str = ""  # why it is not archived, freed, or read through


@record
class ServerView:
    """One registered server and its answers; None where it gave none (`problem` says why)."""

    descriptor: ServerDescriptor
    problem: str = ""
    partitions: tuple[int, ...] | None = None
    health: Mapping[int, bool] | None = None
    connectivity: Mapping[str, bool] | None = None  # storage node → reached
    unusable: Mapping[str, str] = {}  # storage node → why the server cannot use it, if it says so
    troubles: Mapping[str, Trouble] = {}  # the same by kind
    status: tuple[PartitionStatus, ...] | None = None  # None of servers of 0.13.2
    key: bytes | None = None  # cluster key it works with; None of servers of 0.13.2
    clock_ms: int | None = None  # its clock minus ours
    access_level: int | None = None  # whom it serves, an `AccessLevel`; None if unknown
    figures: Mapping[tuple[str, int], float] = {}  # statistics by name and partition (-1: of the process)

    @property
    def name(self) -> str:
        """Its endpoint as registered."""
        return str(self.descriptor.endpoint)

    def archive(self, partition_id: int) -> ArchiveView | None:
        """Of a partition that it archives."""
        figures = self.figures
        up_to = figures.get(("archived-up-to", partition_id))
        if up_to is None:
            return None
        lag, due, start, first = (
            int(figures.get((name, partition_id), -1))
            for name in ("archive-lag", "archive-files-due", "log-start", "archive-first")
        )
        reasons = (name for name, owner in figures if owner == partition_id and name.startswith(ARCHIVE_TROUBLE))
        trouble = "; ".join(sorted(name.removeprefix(ARCHIVE_TROUBLE) for name in reasons))
        return ArchiveView(
            int(up_to) + 1, max(0, lag), max(0, due), max(0, start), first if first >= 0 else None, trouble
        )

    def awaits(self, partition_id: int) -> str:
        """What it waits for in a partition, in words; empty if nothing, or if it does not say."""
        return _awaited(self.figures, partition_id)


def _awaited(figures: Mapping[tuple[str, int], float], partition_id: int) -> str:
    waits = [
        (name.removeprefix(AWAITED), int(count))
        for (name, owner), count in sorted(figures.items())
        if owner == partition_id and name.startswith(AWAITED)
    ]
    return "; ".join(f"{text} ({count})" if count > 1 else text for text, count in waits)


@record
class ReplicaView:
    """One assigned partition of a storage node, by the node's own account."""

    partition_id: int
    available: bool
    session_id: int = -1
    low_water_mark: int = -1
    local_low_water_mark: int = -1
    max_id: int | None = None  # None of nodes of 0.13.2, as `state`
    state: str | None = None
    reason: str = ""
    suspects: tuple[tuple[int, int], ...] = ()  # first and last ids of records that are damaged

    @property
    def damaged(self) -> int:
        """How many records are."""
        return sum(last - first + 1 for first, last in self.suspects)

    def has_whole(self, first: int, last: int) -> bool:
        """Whether it may give out all of these records."""
        reaches = self.max_id is None or last <= self.max_id
        return self.state in (None, "open") and reaches and all(b < first or last < a for a, b in self.suspects)


@record
class StorageView:
    """One storage node and its answers."""

    name: str  # host:port of its data port, as in ZooKeeper
    admin: str = ""  # host:port of its admin port, empty if ZooKeeper does not know it
    data_problem: str = ""  # why its data port could not be used, empty if it could
    admin_problem: str = ""
    foreign_key: bool = False  # it refuses the key of this cluster
    untrusted: bool = False  # it is there, and TLS with it failed: its certificate is not accepted, for one
    replicas: Mapping[int, ReplicaView] | None = None  # assigned ones; None: no answer
    disk_free: int | None = None  # bytes
    disk_reserve: int | None = None  # bytes below which it refuses appends
    clock_ms: int | None = None  # its clock minus ours
    access_level: int | None = None  # as of a server
    process: str = ""  # which process it is: another one after a restart; empty if it does not say
    addresses: frozenset[str] = frozenset()  # of its host, as names resolve here
    figures: Mapping[tuple[str, int], float] = {}  # statistics by name and partition (-1: of the process)

    def is_same_node(self, other: StorageView) -> bool:
        """Whether both names are of one node: the same port of the same host, and not two processes."""
        if self.process and other.process and self.process != other.process:
            return False
        same_port = self.name.rpartition(":")[2] == other.name.rpartition(":")[2]
        return same_port and bool(self.addresses & other.addresses)

    def awaits(self, partition_id: int) -> str:
        """What is under way on it in a partition, in words; empty if nothing, or if it does not say.

        Work of its disk, a repair, a change that waits for its turn.
        """
        return _awaited(self.figures, partition_id)


@record
class ClusterView:
    """Everything."""

    root: str
    name: str
    key: bytes
    num_partitions: int
    assignment: PartitionAssignment
    assignment_cversion: int  # of the znode: the assignment is in force if it carries this one
    undecodable: tuple[str, ...]  # children of `serverDescriptors` that are no descriptors
    maps: StoreMaps
    partitions: tuple[PartitionMetadata | None, ...]  # by partition id
    servers: tuple[ServerView, ...]
    storages: tuple[StorageView, ...]
    unreadable: Mapping[str, str] = {}  # znodes that hold something else than they must, and what is wrong with each
    certificates: tuple[CertificateView, ...] = ()
    proxy_of: str | None = None  # name of the cluster, in a root that is a proxy's: its servers are proxies
    gateways: tuple[GatewayView, ...] = ()  # those that `tools.gateways` names
    now_ms: int = 0  # since 1970

    def replicas_of(self, partition_id: int) -> tuple[str, ...]:
        """Storage nodes that ZooKeeper assigns a partition to, sorted."""
        found = (storage for storage, partitions in self.maps.replicas.replicas if partition_id in partitions)
        return tuple(sorted(found))

    def named_in(self, partition_id: int) -> set[str]:
        """Storage nodes of the last session of a partition; none where its metadata cannot be read."""
        metadata = self.partitions[partition_id]
        return set() if metadata is None else {state.replica_id.storage for state in metadata.replica_states}

    def owners_of(self, partition_id: int) -> tuple[int, ...]:
        """Ids of servers that the assignment gives a partition to."""
        return tuple(
            server.server_id
            for server in self.assignment.servers
            if any(owned == partition_id for owned, _ in server.partitions)
        )

    def is_level(self, partition_id: int, storage: str) -> bool:
        """Whether a replica takes part in the session of a partition: what is committed from now on may be on it."""
        metadata = self.partitions[partition_id]
        return metadata is not None and any(
            state.replica_id.storage == storage
            and state.session_id == metadata.session_id >= 0
            and state.closing_mark == UNRESOLVED
            for state in metadata.replica_states
        )

    def copies_of(self, partition_id: int) -> Iterator[tuple[StorageView, ReplicaView]]:
        """Replicas of a partition on the storage nodes that answer."""
        for node in self.storages:
            if node.replicas is not None and partition_id in node.replicas:
                yield node, node.replicas[partition_id]

    def server(self, server_id: int) -> ServerView | None:
        """A registered server."""
        return next((server for server in self.servers if server.descriptor.server_id == server_id), None)

    def storage(self, name: str) -> StorageView | None:
        """A storage node."""
        return next((storage for storage in self.storages if storage.name == name), None)

    def names_of(self, name: str) -> frozenset[str]:
        """The names in ZooKeeper of the one storage node that a name is of, this one among them."""
        node = self.storage(name)
        others = () if node is None else (other.name for other in self.storages if other.is_same_node(node))
        return frozenset((name, *others))

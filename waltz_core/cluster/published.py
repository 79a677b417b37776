"""What a process last heard of its cluster, so that it gets changes only.

The coordinator reads everything again whenever something may have changed. Each reading passes through here, and what
equals the last notification of its kind goes no further. In doubt about the session `OwnershipDoubtful` is sent once,
and the next reading confirms. It is a memory, not a source: ZooKeeper owns all of it.
"""

from __future__ import annotations

from waltz_core.base.edge import Level, Report, ZkDone, ZkError, ZkStat
from waltz_core.base.errors import ProtocolError
from waltz_core.base.ids import Endpoint
from waltz_core.cluster.notifications import (
    CoordinatorEffect,
    EndpointsChanged,
    NeighborsChanged,
    Owned,
    OwnershipConfirmed,
    OwnershipDoubtful,
    ReplicasChanged,
)
from waltz_core.cluster.view import endpoints_of
from waltz_core.zookeeper.paths import ClusterPaths
from waltz_core.zookeeper.znodes import (
    PartitionAssignment,
    ReplicaAssignments,
    ServerDescriptor,
    decode_replica_assignments,
)

REPORTED_MAX = 1_000


class Published:
    """The last notification of each kind, and the texts that were reported."""

    __slots__ = ("_doubtful", "_endpoints", "_neighbors", "_owned", "_paths", "_replicas", "_reported")

    def __init__(self, paths: ClusterPaths) -> None:
        self._paths = paths
        self._owned: tuple[tuple[int, int], ...] | None = None
        self._endpoints: EndpointsChanged | None = None
        self._neighbors: tuple[tuple[str, Endpoint], ...] = ()
        self._replicas: ReplicaAssignments | None = None
        self._doubtful = False
        self._reported: set[str] = set()

    @property
    def knows_endpoints(self) -> bool:
        """Whether an assignment was ever read."""
        return self._endpoints is not None

    def report_once(self, level: Level, text: str, out: list[CoordinatorEffect]) -> None:
        """Report a text to people, unless it was reported before."""
        if text not in self._reported:
            if len(self._reported) >= REPORTED_MAX:
                self._reported.clear()
            self._reported.add(text)
            out.append(Report(level, text))

    def refused(self, path: str, error: ZkError, out: list[CoordinatorEffect]) -> None:
        """ZooKeeper refused to read or write a znode, and will until somebody changes something."""
        if error is ZkError.REFUSED:
            text = f"ZooKeeper refuses this process the znode {path}: check zookeeper.acl.auth or zookeeper.sasl.* here"
            self.report_once(Level.ERROR, f"{text}, and the ACL of the znode; it is tried again", out)

    def doubt(self, out: list[CoordinatorEffect]) -> None:
        """Another server may own our partitions by now."""
        if self._owned is not None and not self._doubtful:
            self._doubtful = True
            out.append(OwnershipDoubtful())

    def replicas(self, answer: ZkDone, out: list[CoordinatorEffect]) -> None:
        """The assignment of replicas was read."""
        try:
            replicas = decode_replica_assignments(answer.data or b"")
        except ProtocolError as problem:
            text = f"znode {self._paths.assignment} does not hold replica assignments: {problem}"
            self.report_once(Level.ERROR, f"{text}; staying on the last ones", out)
            return
        if replicas != self._replicas:
            self._replicas = replicas
            out.append(ReplicasChanged(replicas))

    def neighbors(self, servers: tuple[tuple[str, Endpoint], ...], out: list[CoordinatorEffect]) -> None:
        """The other servers of our kind."""
        if servers != self._neighbors:
            self._neighbors = servers
            out.append(NeighborsChanged(servers))

    def spoilt(self, problems: list[tuple[str, ProtocolError]], out: list[CoordinatorEffect]) -> None:
        """Some children of the servers' znode are no descriptors."""
        for name, problem in problems:
            self.report_once(
                Level.ERROR,
                f"znode {self._paths.servers}/{name} is no server descriptor ({problem}): servers and clients of "
                "Waltz 0.13.2 stop following the cluster until it is deleted",
                out,
            )

    def view(
        self,
        assignment: PartitionAssignment,
        stat: ZkStat,
        members: dict[int, ServerDescriptor],
        server_id: int | None,
        *,
        registered: bool,
        out: list[CoordinatorEffect],
    ) -> None:
        """What a view says, if it is consistent: computed for exactly these members.

        Args:
            server_id: of the server that this process registers.
            registered: whether a descriptor of this session is there; without it our server owns nothing.
        """
        consistent = assignment.cversion == stat.cversion
        if server_id is not None and consistent:
            owned = assignment.of_server(server_id) if registered else ()
            if owned != self._owned and (registered or self._owned is not None):
                self._owned = owned
                out.append(Owned(owned))
            if self._doubtful and registered:
                self._doubtful = False
                out.append(OwnershipConfirmed())
        # A first look at an assignment that lags behind is still the best guess where partitions are.
        if consistent or not members or self._endpoints is None:
            endpoints = endpoints_of(assignment, members, stat.version)
            if endpoints != self._endpoints:
                self._endpoints = endpoints
                out.append(endpoints)

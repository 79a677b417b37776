"""What our server wants ZooKeeper to hold: its descriptor, and an assignment that fits the members.

It compares a view with that and says what to write, each write on condition of the version that was read. First comes
the descriptor: exactly one, with our present preferences. When it is written for the first time, those that an earlier
process left at our address are deleted: it ended, or we could not listen there, and the others need not wait for its
session to time out. Only then, since two servers that got one address by mistake would otherwise delete each other's
descriptors without end. Then, if our server has the smallest id, an assignment for
exactly the present members; and once, whether it coordinates or not, one that heeds its own new preferences.

The policy of 0.13.2 throws for some numbers of servers and preferred partitions (zk-D1), and then assigns nothing any
more. The descriptor of a server shows whether it runs our policy: `OUR_MARK` stands behind it, where 0.13.2 ignores it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from waltz_core.base.contract import Rng
from waltz_core.base.edge import Level, ZkCreate, ZkDelete, ZkDone, ZkSet, ZkStat
from waltz_core.base.errors import ClusterError
from waltz_core.base.ids import Endpoint
from waltz_core.base.record import record
from waltz_core.cluster.assignment import (
    Member,
    assign,
    legacy_assignment_fails,
)
from waltz_core.cluster.notifications import CoordinatorEffect, ManagedServer, PreferencesRegistered
from waltz_core.cluster.published import Published
from waltz_core.cluster.view import owners
from waltz_core.zookeeper.paths import ClusterPaths
from waltz_core.zookeeper.znodes import (
    PartitionAssignment,
    ServerDescriptor,
    encode_partition_assignment,
    encode_server_descriptor,
)

OUR_MARK = b"waltz-log"
"""Behind our descriptors, where 0.13.2 ignores it: this server's policy is always complete (zk-D1)."""


@record
class View:
    """One consistent reading, decoded."""

    num_partitions: int
    server_id: int  # ours
    coordinates: bool  # ours has the smallest id of all
    members: dict[int, ServerDescriptor]
    own: dict[str, ZkDone]  # descriptors that our session wrote, by the name of the znode
    others: dict[str, ServerDescriptor]  # that other sessions wrote, by the sorted names of the znodes
    assignment: PartitionAssignment | None  # None where it cannot be read
    stat: ZkStat  # of the assignment's znode


class Registration:
    """One server's descriptor, preferences and part in assigning."""

    extension: ClassVar[bytes] = OUR_MARK
    """What descriptors carry behind the fields of the original."""

    __slots__ = (
        "_announcing",
        "_gone",
        "_manages",
        "_paths",
        "_preferred",
        "_published",
        "_reassign",
        "_registered",
        "_rng",
    )

    def __init__(self, paths: ClusterPaths, manages: ManagedServer, published: Published, rng: Rng) -> None:
        self._paths = paths
        self._manages = manages
        self._published = published
        self._rng = rng
        self._preferred = manages.preferred_partitions
        self._reassign = False  # our preferences changed, and the assignment does not heed them yet
        self._announcing = False  # `PreferencesRegistered` is due
        self._registered = False  # a descriptor of ours was seen
        self._gone: set[str] = set()  # znodes of servers that have ended before their sessions

    @property
    def endpoint(self) -> Endpoint:
        """Where our server listens."""
        return self._manages.endpoint

    def prefer(self, partitions: Sequence[int]) -> None:
        """Other preferred partitions from now on."""
        self._preferred = tuple(partitions)
        self._reassign = self._announcing = True

    def gone(self, name: str) -> None:
        """The server that wrote this znode has ended: delete it, rather than wait for its session to time out.

        No safety rests on it, as on no other line of the view: who may append is settled by store sessions, and a
        server that finds its descriptor gone writes a new one.
        """
        self._gone.add(name)

    def writes(self, view: View, out: list[CoordinatorEffect]) -> list[ZkCreate | ZkSet | ZkDelete]:
        """The writes that lead from the view to what ZooKeeper should hold, without tickets; none if it does."""
        neighbors = self._neighbors(view)
        if self.extension == OUR_MARK:
            self._published.neighbors(neighbors, out)
        self._gone.intersection_update(name for name, _ in neighbors)
        if self._gone:
            return list(deletions(self._paths, sorted(self._gone)))
        self._registered = self._registered or bool(view.own)
        if not view.own and not self._may_join(view, out):
            return []
        writes = self._descriptor_writes(view)
        if writes:
            return writes
        assignment = self._assignment(view, out)
        if self._announcing and not self._reassign:
            self._announcing = False
            out.append(PreferencesRegistered())
        if assignment is None:
            return []
        return [ZkSet(0, self._paths.servers, encode_partition_assignment(assignment), view.stat.version)]

    def _neighbors(self, view: View) -> tuple[tuple[str, Endpoint], ...]:
        """The servers elsewhere that run our policy, by the names of their znodes."""
        return tuple(
            (name, other.endpoint)
            for name, other in view.others.items()
            if other.extension == OUR_MARK and other.endpoint != self.endpoint
        )

    def _may_join(self, view: View, out: list[CoordinatorEffect]) -> bool:
        """Not while our joining would make a coordinator of 0.13.2 throw (zk-D1)."""
        reason = _reason_to_wait(view, self._preferred)
        if reason is not None:
            self._published.report_once(Level.WARNING, reason, out)
        return reason is None

    def _descriptor_writes(self, view: View) -> list[ZkCreate | ZkSet | ZkDelete]:
        descriptor = encode_server_descriptor(
            ServerDescriptor(view.server_id, self._manages.endpoint, self._preferred, self._mark())
        )
        names = sorted(view.own)
        if not names:
            left = () if self._registered else self._left_behind(view)
            create = ZkCreate(0, self._paths.server_prefix, descriptor, ephemeral=True, sequential=True)
            return [*deletions(self._paths, left), create]
        if len(names) > 1:
            # A create whose reply was lost was repeated and both were carried out (zk-D5).
            return list(deletions(self._paths, names[1:]))
        answer = view.own[names[0]]
        if answer.data == descriptor:
            return []
        assert answer.stat is not None
        return [ZkSet(0, f"{self._paths.servers}/{names[0]}", descriptor, answer.stat.version)]

    def _mark(self) -> bytes:
        """What stands behind the fields of the original in our descriptor."""
        return self.extension

    def _left_behind(self, view: View) -> tuple[str, ...]:
        """Descriptors of processes that listened where we listen now."""
        return tuple(name for name, other in view.others.items() if other.endpoint == self.endpoint)

    def _assignment(self, view: View, out: list[CoordinatorEffect]) -> PartitionAssignment | None:
        """The assignment if we have to write it: an outdated one as coordinator, or for new preferences."""
        if view.assignment is None:
            return None
        outdated = view.assignment.cversion != view.stat.cversion
        if not (view.coordinates if outdated else self._reassign):
            return None
        try:
            wanted = self._wanted(view, view.assignment)
        except ClusterError as problem:
            self._reassign = False
            self._published.report_once(
                Level.ERROR,
                f"cannot assign {view.num_partitions} partitions to servers {sorted(view.members)}: "
                f"{problem} (cversion {view.stat.cversion}, version {view.stat.version})",
                out,
            )
            return None
        if not outdated and owners(wanted) == owners(view.assignment):
            self._reassign = False
            return None
        return wanted

    def _wanted(self, view: View, old: PartitionAssignment) -> PartitionAssignment:
        members = [Member(number, server.preferred_partitions) for number, server in sorted(view.members.items())]
        return assign(old, view.num_partitions, members, view.stat.cversion, self._rng)


def deletions(paths: ClusterPaths, names: Sequence[str]) -> list[ZkDelete]:
    """Of descriptors, tickets left out."""
    return [ZkDelete(0, f"{paths.servers}/{name}") for name in names]


# ---- beside coordinators of 0.13.2 ---------------------------------------------------------------


def preference_problem(
    num_partitions: int, others: Mapping[int, ServerDescriptor], server_id: int, partitions: Sequence[int]
) -> str | None:
    """Why these preferred partitions of our server must be refused, or None.

    While a server of 0.13.2 may become coordinator, claims that make its policy throw would freeze the cluster.
    """
    if all(descriptor.extension == OUR_MARK for descriptor in others.values()):
        return None
    if not legacy_assignment_fails(num_partitions, _with(others, server_id, partitions)):
        return None
    return (
        f"{len(others) + 1} servers, {num_partitions} partitions and these preferences stop a coordinator of "
        "Waltz 0.13.2, which is in this cluster: choose fewer or more, or stop that server first"
    )


def _reason_to_wait(view: View, preferred: Sequence[int]) -> str | None:
    """Why our server must not join yet: a coordinator of 0.13.2 would throw."""
    members = view.members
    if not members:
        return None
    coordinator = members[min(members)]
    if coordinator.extension == OUR_MARK:
        return None
    if not legacy_assignment_fails(view.num_partitions, _with(members, view.server_id, preferred)):
        return None
    return (
        f"this server waits to join: with {len(members) + 1} servers and the preferred partitions in force "
        f"the coordinator, server {coordinator.server_id} of Waltz 0.13.2, would stop assigning partitions; remove "
        "preferred partitions, or restart that server"
    )


def _with(others: Mapping[int, ServerDescriptor], server_id: int, preferred: Sequence[int]) -> list[Member]:
    members = {other: descriptor.preferred_partitions for other, descriptor in others.items()}
    members[server_id] = tuple(preferred)
    return [Member(other, wanted) for other, wanted in sorted(members.items())]

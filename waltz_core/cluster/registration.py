"""What our server wants to stand in ZooKeeper: its descriptor, and an assignment that fits the members.

It compares a view with that and says what to write; each write is on condition that nobody wrote since. First comes
the descriptor: exactly one, with our present preferences. Then, if our server has the smallest id, an assignment for
exactly the members that are there; and once, whoever coordinates, one that heeds new preferences of ours.

The policy of 0.13.2 throws for some numbers of servers and preferred partitions (zk-D1), and then assigns nothing any
more. Whether a server runs our policy shows in its descriptor: `OUR_MARK` stands behind it, where 0.13.2 ignores it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from waltz_core.base.contract import Rng
from waltz_core.base.edge import Level, ZkCreate, ZkDelete, ZkDone, ZkSet, ZkStat
from waltz_core.base.record import record
from waltz_core.base.rules import SafetyRules
from waltz_core.cluster.assignment import (
    FewerPartitionsError,
    IncompleteAssignmentError,
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
    assignment: PartitionAssignment | None  # None where it cannot be read
    stat: ZkStat  # of the assignment's znode


class Registration:
    """One server's descriptor, preferences and part in assigning."""

    __slots__ = ("_announcing", "_manages", "_paths", "_preferred", "_published", "_reassign", "_rng", "_rules")

    def __init__(
        self, paths: ClusterPaths, manages: ManagedServer, published: Published, rng: Rng, rules: SafetyRules
    ) -> None:
        self._paths = paths
        self._manages = manages
        self._published = published
        self._rng = rng
        self._rules = rules
        self._preferred = manages.preferred_partitions
        self._reassign = False  # our preferences changed: the assignment is to heed them
        self._announcing = False  # `PreferencesRegistered` is due

    def prefer(self, partitions: Sequence[int]) -> None:
        """Other preferred partitions from now on."""
        self._preferred = tuple(partitions)
        self._reassign = self._announcing = True

    def writes(self, view: View, out: list[CoordinatorEffect]) -> list[ZkCreate | ZkSet | ZkDelete]:
        """What leads from the view to what should stand there, tickets left out; nothing where that is so."""
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

    def _may_join(self, view: View, out: list[CoordinatorEffect]) -> bool:
        """Not while our joining would make a coordinator of 0.13.2 throw (zk-D1)."""
        reason = _reason_to_wait(view, self._preferred, self._rules)
        if reason is not None:
            self._published.report_once(Level.WARNING, reason, out)
        return reason is None

    def _descriptor_writes(self, view: View) -> list[ZkCreate | ZkSet | ZkDelete]:
        mark = OUR_MARK if self._rules.assignment_complete else b""
        descriptor = encode_server_descriptor(
            ServerDescriptor(view.server_id, self._manages.endpoint, self._preferred, mark)
        )
        names = sorted(view.own)
        if not names:
            return [ZkCreate(0, self._paths.server_prefix, descriptor, ephemeral=True, sequential=True)]
        if len(names) > 1:
            # A create whose reply was lost was repeated and both were carried out (zk-D5).
            return list(deletions(self._paths, names[1:]))
        answer = view.own[names[0]]
        if answer.data == descriptor:
            return []
        assert answer.stat is not None
        return [ZkSet(0, f"{self._paths.servers}/{names[0]}", descriptor, answer.stat.version)]

    def _assignment(self, view: View, out: list[CoordinatorEffect]) -> PartitionAssignment | None:
        """The assignment if it is ours to write: an outdated one as coordinator, or for new preferences."""
        if view.assignment is None:
            return None
        outdated = view.assignment.cversion != view.stat.cversion
        if not (view.coordinates if outdated else self._reassign):
            return None
        members = [Member(number, server.preferred_partitions) for number, server in sorted(view.members.items())]
        try:
            wanted = assign(view.assignment, view.num_partitions, members, view.stat.cversion, self._rng, self._rules)
        except (FewerPartitionsError, IncompleteAssignmentError) as problem:
            self._reassign = False
            self._published.report_once(
                Level.ERROR,
                f"cannot assign {view.num_partitions} partitions to servers {[m.server_id for m in members]}: "
                f"{problem} (cversion {view.stat.cversion}, version {view.stat.version})",
                out,
            )
            return None
        if not outdated and owners(wanted) == owners(view.assignment):
            self._reassign = False
            return None
        return wanted


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


def _reason_to_wait(view: View, preferred: Sequence[int], rules: SafetyRules) -> str | None:
    """Why our server must not join yet: a coordinator of 0.13.2 would throw."""
    members = view.members
    if not members:
        return None
    coordinator = members[min(members)]
    if coordinator.extension == OUR_MARK or not rules.assignment_complete:
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

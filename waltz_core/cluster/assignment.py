"""Which server owns which partition: the policy of the coordinator.

Shares are as even as possible; claims (preferred partitions) come first and may exceed the fair share; a
partition stays where it is if it can. The generation of a partition rises by one exactly when it goes to
another server id. Free of any notion of ZooKeeper or sessions.
"""

from __future__ import annotations

from collections.abc import Sequence

from waltz_core.base.contract import Rng
from waltz_core.base.errors import ClusterError
from waltz_core.base.record import record
from waltz_core.base.rules import LEGACY, SAFE, SafetyRules
from waltz_core.zookeeper.znodes import PartitionAssignment, ServerPartitions


@record
class Member:
    """A server that takes part."""

    server_id: int
    preferred_partitions: tuple[int, ...] = ()


class IncompleteAssignmentError(ClusterError):
    """The policy of 0.13.2 left partitions without an owner; nothing may be written."""


class FewerPartitionsError(ClusterError):
    """The cluster announces fewer partitions than the stored assignment."""


@record
class _Holder:
    """Who had a partition before, and at which generation."""

    server_id: int | None
    generation: int


def assign(
    old: PartitionAssignment,
    num_partitions: int,
    members: Sequence[Member],
    cversion: int,
    rng: Rng | None = None,
    rules: SafetyRules = SAFE,
) -> PartitionAssignment:
    """The assignment that follows `old` for these members.

    Args:
        old: What is stored now; the order of each server's partitions decides what it keeps.
        num_partitions: Of the cluster, not of `old`.
        members: In the order in which they choose; of two claimants the first wins.
        cversion: Recorded in the result: the membership it was computed for.
        rng: Shuffles each list, so that the victims of the next change are random; None leaves them in order.
        rules: With `assignment_complete` the result always holds every partition once, whatever `old` looks like.

    Raises:
        FewerPartitionsError: `num_partitions` is below that of `old`.
        IncompleteAssignmentError: only with the rule off: 0.13.2 would throw here and leave everything as it is.
    """
    if num_partitions < old.num_partitions:
        raise FewerPartitionsError("decreasing the number of partitions is not allowed")
    if not members:
        return PartitionAssignment(cversion, num_partitions, ())
    dealing = _Dealing(old, num_partitions, members, rules)
    dealing.claim()
    dealing.keep()
    dealing.fill()
    lists = dealing.lists
    if sorted(partition_id for owned in lists.values() for partition_id, _ in owned) != list(range(num_partitions)):
        # Java: "incomplete partition assignment"; with the rule on this cannot happen.
        assert not rules.assignment_complete
        raise IncompleteAssignmentError("incomplete partition assignment")
    if rng is not None:
        for owned in lists.values():
            rng.shuffle(owned)
    return PartitionAssignment(
        cversion, num_partitions, tuple(ServerPartitions(server_id, tuple(owned)) for server_id, owned in lists.items())
    )


class _Dealing:
    """One computation: the pool of partitions still to give, and what each member has got."""

    def __init__(
        self, old: PartitionAssignment, num_partitions: int, members: Sequence[Member], rules: SafetyRules
    ) -> None:
        self._members = members
        self._complete = rules.assignment_complete
        self._old = {server.server_id: server.partitions for server in old.servers}
        self._pool = _pool(old, num_partitions, rules)
        self._share, self._extra = divmod(num_partitions, len(members))
        self.lists: dict[int, list[tuple[int, int]]] = {member.server_id: [] for member in members}

    def _room(self, owned: list[tuple[int, int]]) -> bool:
        """Whether one more fits the fair share; the last one of the larger shares is spent by this."""
        if len(owned) < self._share:
            return True
        if len(owned) == self._share and self._extra > 0:
            self._extra -= 1
            return True
        return False

    def claim(self) -> None:
        """Give every claimed partition to its first claimant."""
        for member in self._members:
            owned = self.lists[member.server_id]
            for partition_id in member.preferred_partitions:
                holder = self._pool.pop(partition_id, None)
                if holder is None:
                    continue
                same = holder.server_id == member.server_id
                owned.append((partition_id, holder.generation if same else _next(holder.generation)))
                # Java: counts an extra as spent already at the floor, which can leave a partition to nobody (zk-D1).
                if len(owned) > self._share or (len(owned) == self._share and not self._complete):
                    self._extra -= 1

    def keep(self) -> None:
        """Leave partitions where they are, in stored order, as far as the fair share reaches."""
        for member in self._members:
            owned = self.lists[member.server_id]
            for partition_id, generation in self._old.get(member.server_id, ()):
                holder = self._pool.get(partition_id)
                if holder is None or (self._complete and holder != _Holder(member.server_id, generation)):
                    continue
                if not self._room(owned):
                    break
                del self._pool[partition_id]
                owned.append((partition_id, generation))

    def fill(self) -> None:
        """Deal what is left."""
        left = iter(sorted(self._pool.items()))
        entry = next(left, None)
        for member in self._members:
            owned = self.lists[member.server_id]
            while entry is not None and self._room(owned):
                partition_id, holder = entry
                owned.append((partition_id, _next(holder.generation)))
                entry = next(left, None)


def _pool(old: PartitionAssignment, num_partitions: int, rules: SafetyRules) -> dict[int, _Holder]:
    """Every partition with its previous holder."""
    complete = rules.assignment_complete
    first = 0 if complete else old.num_partitions
    pool = {partition_id: _Holder(None, 0) for partition_id in range(first, num_partitions)}
    highest = 0
    for server in old.servers:
        for partition_id, generation in server.partitions:
            highest = max(highest, generation)
            if complete:
                # A stored id twice or out of range is somebody's mistake: the higher generation holds.
                known = pool.get(partition_id)
                if known is None or (known.server_id is not None and known.generation >= generation):
                    continue
            pool[partition_id] = _Holder(server.server_id, generation)
    if complete:
        # A partition that the old assignment has lost may have had any generation; a lower one than the
        # stored partition metadata would keep it out of service, so it starts above all that are known.
        for partition_id in range(old.num_partitions):
            if pool[partition_id].server_id is None:
                pool[partition_id] = _Holder(None, highest)
    return pool


def _next(generation: int) -> int:
    """One more, as a 32-bit number."""
    return (generation + 1 + 2**31) % 2**32 - 2**31


def legacy_assignment_fails(num_partitions: int, members: Sequence[Member]) -> bool:
    """Whether 0.13.2 as coordinator would throw for these claims, and so freeze the cluster (zk-D1).

    Derived from counts alone, with every partition in place: it does not depend on who holds what.
    """
    everything = PartitionAssignment(0, num_partitions, (_all_of_nobody(num_partitions),))
    try:
        assign(everything, num_partitions, members, 0, None, LEGACY)
    except IncompleteAssignmentError:
        return True
    return False


def _all_of_nobody(num_partitions: int) -> ServerPartitions:
    """Every partition held by a server that is gone; ids start at 1, so -1 is nobody."""
    return ServerPartitions(-1, tuple((partition_id, 0) for partition_id in range(num_partitions)))

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
from waltz_core.zookeeper.znodes import PartitionAssignment, ServerPartitions


@record
class Member:
    """A server that takes part."""

    server_id: int
    preferred_partitions: tuple[int, ...] = ()


class FewerPartitionsError(ClusterError):
    """The cluster announces fewer partitions than the stored assignment."""


@record
class _Holder:
    """The previous owner of a partition, and its generation."""

    server_id: int | None
    generation: int


def assign(
    old: PartitionAssignment,
    num_partitions: int,
    members: Sequence[Member],
    cversion: int,
    rng: Rng | None = None,
) -> PartitionAssignment:
    """The assignment that follows `old` for these members: every partition once, even if `old` is malformed.

    Args:
        old: What is stored now; the order of each server's partitions decides what it keeps.
        num_partitions: Of the cluster, not of `old`.
        members: In the order in which they choose; of two claimants the first wins.
        cversion: Recorded in the result: the membership it was computed for.
        rng: Shuffles each list, so that the victims of the next change are random; None leaves them in order.

    Raises:
        FewerPartitionsError: `num_partitions` is below that of `old`.
    """
    if num_partitions < old.num_partitions:
        raise FewerPartitionsError("decreasing the number of partitions is not allowed")
    if not members:
        return PartitionAssignment(cversion, num_partitions, ())
    dealing = _Dealing(old, num_partitions, members)
    dealing.claim()
    dealing.keep()
    dealing.fill()
    lists = dealing.lists
    assert sorted(number for owned in lists.values() for number, _ in owned) == list(range(num_partitions))
    if rng is not None:
        for owned in lists.values():
            rng.shuffle(owned)
    return PartitionAssignment(
        cversion, num_partitions, tuple(ServerPartitions(server_id, tuple(owned)) for server_id, owned in lists.items())
    )


class _Dealing:
    """One computation: the pool of unassigned partitions, and the partitions of each member."""

    def __init__(self, old: PartitionAssignment, num_partitions: int, members: Sequence[Member]) -> None:
        self._members = members
        self._old = {server.server_id: server.partitions for server in old.servers}
        self._pool = _pool(old, num_partitions)
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
                if len(owned) > self._share:
                    self._extra -= 1

    def keep(self) -> None:
        """Leave partitions with their owners, in stored order, up to the fair share."""
        for member in self._members:
            owned = self.lists[member.server_id]
            for partition_id, generation in self._old.get(member.server_id, ()):
                if self._pool.get(partition_id) != _Holder(member.server_id, generation):
                    continue
                if not self._room(owned):
                    break
                del self._pool[partition_id]
                owned.append((partition_id, generation))

    def fill(self) -> None:
        """Distribute the rest."""
        left = iter(sorted(self._pool.items()))
        entry = next(left, None)
        for member in self._members:
            owned = self.lists[member.server_id]
            while entry is not None and self._room(owned):
                partition_id, holder = entry
                owned.append((partition_id, _next(holder.generation)))
                entry = next(left, None)


def _pool(old: PartitionAssignment, num_partitions: int) -> dict[int, _Holder]:
    """Every partition with its previous owner."""
    pool = {partition_id: _Holder(None, 0) for partition_id in range(num_partitions)}
    highest = 0
    for server in old.servers:
        for partition_id, generation in server.partitions:
            highest = max(highest, generation)
            # A stored id that is out of range or occurs twice is a mistake: the higher generation counts.
            known = pool.get(partition_id)
            if known is None or (known.server_id is not None and known.generation >= generation):
                continue
            pool[partition_id] = _Holder(server.server_id, generation)
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

    It counts a claim that only reaches the fair share as one of the larger shares already, and where those are used
    up too early, partitions have no owner. With every partition in place it does not matter who owns what.
    """
    share, extra = divmod(num_partitions, len(members))
    free = set(range(num_partitions))
    claimed = []
    for member in members:
        claims = free.intersection(member.preferred_partitions)
        free -= claims
        claimed.append(len(claims))
        extra -= max(0, len(claims) - max(1, share) + 1)
    room = sum(max(0, share - count) for count in claimed)
    larger = sum(count <= share for count in claimed)
    return room + min(larger, max(0, extra)) < len(free)

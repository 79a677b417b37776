"""Membership and assignment of 0.13.2.

Defects: claims can leave a partition to nobody, and the coordinator then throws on every change
(`assignment_complete`); one descriptor that cannot be read ends the handling of every later change
(`bad_children_skipped`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from waltz_core.base.contract import Rng
from waltz_core.base.errors import ClusterError
from waltz_core.cluster.assignment import FewerPartitionsError, Member
from waltz_core.cluster.coordinator import Coordinator
from waltz_core.cluster.notifications import CoordinatorEffect
from waltz_core.cluster.registration import Registration, View
from waltz_core.cluster.view import Round, descriptors_of
from waltz_core.zookeeper.znodes import PartitionAssignment, ServerDescriptor, ServerPartitions


class IncompleteAssignmentError(ClusterError):
    """Some partition is left to nobody; nothing is written."""


def assign_0132(
    old: PartitionAssignment, num_partitions: int, members: Sequence[Member], cversion: int, rng: Rng | None = None
) -> PartitionAssignment:
    """The assignment that follows `old`.

    Raises:
        FewerPartitionsError: `num_partitions` is below that of `old`.
        IncompleteAssignmentError: the claims used up the larger shares.
    """
    if num_partitions < old.num_partitions:
        raise FewerPartitionsError("decreasing the number of partitions is not allowed")
    if not members:
        return PartitionAssignment(cversion, num_partitions, ())
    # Partition id → server that had it, and the generation.
    pool: dict[int, tuple[int | None, int]] = dict.fromkeys(range(old.num_partitions, num_partitions), (None, 0))
    pool |= {
        number: (server.server_id, generation) for server in old.servers for number, generation in server.partitions
    }
    dealing = _Dealing(pool, num_partitions, members)
    lists = dealing.lists
    for member in members:
        dealing.claim(member)
    stored = {server.server_id: server for server in old.servers}
    for member in members:
        if member.server_id in stored:
            dealing.keep(stored[member.server_id])
    dealing.fill()
    if sorted(number for owned in lists.values() for number, _ in owned) != list(range(num_partitions)):
        raise IncompleteAssignmentError("incomplete partition assignment")
    if rng is not None:
        for owned in lists.values():
            rng.shuffle(owned)
    return PartitionAssignment(
        cversion, num_partitions, tuple(ServerPartitions(server_id, tuple(owned)) for server_id, owned in lists.items())
    )


class _Dealing:
    def __init__(self, pool: dict[int, tuple[int | None, int]], num_partitions: int, members: Sequence[Member]) -> None:
        self.lists: dict[int, list[tuple[int, int]]] = {member.server_id: [] for member in members}
        self._pool = pool
        self._share, self._extra = divmod(num_partitions, len(members))

    def claim(self, member: Member) -> None:
        owned = self.lists[member.server_id]
        for number in member.preferred_partitions:
            if number in self._pool:
                server_id, generation = self._pool.pop(number)
                owned.append((number, generation if server_id == member.server_id else _next(generation)))
                if len(owned) >= self._share:  # one too early: this is not an extra yet (zk-D1)
                    self._extra -= 1

    def keep(self, server: ServerPartitions) -> None:
        owned = self.lists[server.server_id]
        for number, generation in server.partitions:
            if number in self._pool:
                if not self._room(owned):
                    return
                del self._pool[number]
                owned.append((number, generation))

    def fill(self) -> None:
        left: Iterator[tuple[int, tuple[int | None, int]]] = iter(sorted(self._pool.items()))
        entry = next(left, None)
        for owned in self.lists.values():
            while entry is not None and self._room(owned):
                number, (_, generation) = entry
                owned.append((number, _next(generation)))
                entry = next(left, None)

    def _room(self, owned: list[tuple[int, int]]) -> bool:
        if len(owned) < self._share:
            return True
        if len(owned) == self._share and self._extra > 0:
            self._extra -= 1
            return True
        return False


def _next(generation: int) -> int:
    return (generation + 1 + 2**31) % 2**32 - 2**31


class Registration0132(Registration):
    """Joins at once, says nothing of itself, and assigns by that policy."""

    __slots__ = ()

    extension = b""

    def _may_join(self, view: View, out: list[CoordinatorEffect]) -> bool:
        return True

    def _left_behind(self, view: View) -> tuple[str, ...]:
        return ()

    def _wanted(self, view: View, old: PartitionAssignment) -> PartitionAssignment:
        members = [Member(number, server.preferred_partitions) for number, server in sorted(view.members.items())]
        return assign_0132(old, view.num_partitions, members, view.stat.cversion, self._rng)


class _UnreadableChildError(Exception):
    pass


class Coordinator0132(Coordinator):
    """Stops looking where a descriptor cannot be read."""

    make_registration = Registration0132

    def _read_descriptors(self, reading: Round, out: list[CoordinatorEffect]) -> dict[str, ServerDescriptor]:
        descriptors = super()._read_descriptors(reading, out)
        if descriptors_of(reading)[1]:
            raise _UnreadableChildError
        return descriptors

    def _evaluate(self, now: int, reading: Round, out: list[CoordinatorEffect]) -> None:
        # The exception ends the handling of this and of every later change (zk-D4).
        with contextlib.suppress(_UnreadableChildError):
            super()._evaluate(now, reading, out)

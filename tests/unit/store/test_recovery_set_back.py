"""Metadata that were set back: in every order of events, what is committed stays on a majority of the disks.

Or on as many as it was, where those were fewer.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from tests.model.recovery_world import PARTITION, Storage, World, make_record, state, writer_of
from waltz_core.store import recovery_events as rec
from waltz_core.store.recovery import Recovery
from waltz_core.zookeeper.znodes import UNRESOLVED, PartitionMetadata

_SESSION = 8
_CASES = 1500


class _Past:
    """Session 4 has begun the log, 6 committed more, 7 may have marked some, and opened; ZooKeeper says 4 again."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.names = chance.choice(["abc", "abc", "abcde"])
        self.quorum = len(self.names) // 2 + 1
        begun = chance.choice([0, 0, 1, 3])
        self.committed = [4] * begun + [6] * chance.randint(1, 4)
        end = len(self.committed)
        self._holders = chance.sample(self.names, chance.randint(self.quorum, len(self.names)))
        self.replicas: dict[str, tuple[int, int, list[int]]] = {}  # session, own mark, writers of the log
        for name in self.names:
            if name in self._holders:
                self.replicas[name] = (6, begun - 1, self.committed + [6] * chance.choice([0, 0, 0, 1, 3]))
            elif chance.random() < 0.5:
                self.replicas[name] = (6, begun - 1, self.committed[: chance.randint(begun, end)])
            else:
                self.replicas[name] = (4, -1, self.committed[: chance.randint(0, begun)])
        if chance.random() < 0.6:
            self._session_7()

    def _session_7(self) -> None:
        chance = self._chance
        marked = chance.sample(self._holders, chance.randint(1, len(self._holders)))
        decided = min((self.replicas[name][2] for name in marked), key=len)
        if chance.random() < 0.7:
            decided = self.committed
        opened = len(marked) >= self.quorum and chance.random() < 0.5
        for name in marked:
            own = [7] * chance.randint(0, 2) if opened else []
            self.replicas[name] = (7, len(decided) - 1, decided + own)
        if opened:
            self.committed = sorted((self.replicas[name][2] for name in marked), key=len)[-self.quorum]

    def world(self) -> World:
        """The recovery of a session that finds what session 3 or 4 left in ZooKeeper."""
        voters = self._chance.sample(self.names, self._chance.randint(self.quorum, len(self.names)))
        states = (
            state(name, 4, UNRESOLVED) if name in voters else state(name, self._chance.choice([-1, 3]), -1)
            for name in self.names
        )
        storages = {}
        for name, (session, low, writers) in self.replicas.items():
            log = [make_record(number, writer) for number, writer in enumerate(writers)]
            storages[name] = Storage(session, low, low, log, floor=True)
        return World(
            storages,
            PartitionMetadata(1, _SESSION, tuple(states)),
            lambda metadata, version: Recovery(
                PARTITION, _SESSION, 1, metadata, version, tuple(self.names), copy_count_max=2
            ),
        )

    def holders(self, world: World) -> list[int]:
        """On how many disks each committed transaction is, with all before it."""
        logs = [[writer_of(record) for record in storage.log] for storage in world.storages.values()]
        return [sum(log[:end] == self.committed[:end] for log in logs) for end in range(1, len(self.committed) + 1)]


def _cut_in_part(calls: Sequence[object]) -> set[str]:
    """Replicas that lost their own tail, and were compared again with what they kept."""
    cut: set[str] = set()
    again: set[str] = set()
    for call in calls:
        if isinstance(call, rec.Truncate):
            cut.add(call.replica)
        elif isinstance(call, rec.ReadRecords) and call.source == call.target and call.target in cut:
            again.add(call.target)
    return again


def test_a_recovery_leaves_what_is_committed_on_a_majority_of_disks() -> None:
    """Some replicas may come later, or only once the others wait for them; it opens, or waits for an operator."""
    seen: Counter[str] = Counter()
    for seed in range(_CASES):
        chance = random.Random(seed)
        past = _Past(chance)
        world = past.world()
        before = past.holders(world)
        late = chance.sample(past.names, chance.choice([0, 0, 1, 1, past.quorum - 1]))
        due = [name for name in past.names if name not in late]
        chance.shuffle(due)
        while due or world.pending:
            if due and (not world.pending or chance.random() < 0.3):
                world.arrive(due.pop())
            else:
                world.run(chance.choice(world.pending))
            for held, had in zip(past.holders(world), before, strict=True):
                assert held >= min(past.quorum, had), seed
        for name in late:
            world.arrive(name)
            world.settle()
        decided = world.recovery.resolved
        assert decided is None or decided + 1 >= len(past.committed), seed
        assert not world.recovery.failed, seed
        seen["opened" if world.opened else "waits"] += 1
        seen["cut in part"] += bool(_cut_in_part(world.calls))
    assert min(seen[what] for what in ("opened", "waits", "cut in part")) > _CASES / 100, seen

"""Metadata that were set back: in every order of events, what is committed stays on a majority of the disks.

Or on as many as it was, where those were fewer. And what a session that opened has decided to be lost does not come
back.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.model.recovery_world import PARTITION, Storage, World, make_record, state, writer_of
from waltz_core.store import recovery_events as rec
from waltz_core.store.recovery import Recovery
from waltz_core.zookeeper.znodes import UNRESOLVED, PartitionMetadata

_SESSION = 8
_CASES = 1500


class _Past:
    """Session 4 has begun the log, 6 committed more, 7 may have marked some, and opened; ZooKeeper forgot it.

    It says 4 again; where session 7 was quiet, 4 or 6.
    """

    def __init__(self, chance: random.Random, *, quiet: bool = False) -> None:
        """Draw one; a `quiet` session 7 has opened, and committed nothing."""
        self._chance = chance
        self._quiet = quiet
        self._last = chance.choice([4, 6, 6]) if quiet else 4  # of the states
        self.names = chance.choice(["abc", "abc", "abcde"])
        self.quorum = len(self.names) // 2 + 1
        begun = chance.choice([0, 0, 1, 3])
        self.committed = [4] * begun + [6] * chance.randint(1, 4)
        end = len(self.committed)
        self._holders = chance.sample(self.names, chance.randint(self.quorum, len(self.names)))
        self.replicas: dict[str, tuple[int, int, list[int]]] = {}  # session, own mark, writers of the log
        self.settled = 0  # from here on nothing of session 6 is in the log, if 7 opened: its clients have been told
        for name in self.names:
            if name in self._holders:
                self.replicas[name] = (6, begun - 1, self.committed + [6] * chance.choice([0, 0, 0, 1, 3]))
            elif chance.random() < 0.5:
                self.replicas[name] = (6, begun - 1, self.committed[: chance.randint(begun, end)])
            else:
                self.replicas[name] = (4, -1, self.committed[: chance.randint(0, begun)])
        if quiet:
            self._session_7(chance.sample(self._holders, self.quorum), own_on=chance.choice([0, 1]), opened=True)
        elif chance.random() < 0.6:
            marked = chance.sample(self._holders, chance.randint(1, len(self._holders)))
            opened = len(marked) >= self.quorum and chance.random() < 0.5
            self._session_7(marked, own_on=len(marked), opened=opened)

    def _session_7(self, marked: Sequence[str], *, own_on: int, opened: bool) -> None:
        chance = self._chance
        decided = min((self.replicas[name][2] for name in marked), key=len)
        if chance.random() < 0.7:
            decided = self.committed
        for number, name in enumerate(marked):
            own = [7] * chance.randint(0, 2) if opened and number < own_on else []
            self.replicas[name] = (7, len(decided) - 1, decided + own)
        if opened:
            self.settled = len(decided)
            self.committed = sorted((self.replicas[name][2] for name in marked), key=len)[-self.quorum]

    def world(self) -> World:
        """The recovery of a session that finds what an older one left in ZooKeeper."""
        voters = self._chance.sample(self.names, self._chance.randint(self.quorum, len(self.names)))
        if self._quiet:
            voters = [name for name in self.names if self.replicas[name][0] >= self._last]
        states = (
            state(name, self._last, UNRESOLVED) if name in voters else state(name, self._chance.choice([-1, 3]), -1)
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


def _ready(world: World) -> list[str]:
    return [effect.replica for effect in world.told if isinstance(effect, rec.ReplicaReady)]


def _recover(past: _Past, chance: random.Random, seed: int) -> World:
    """In some order; some replicas may come later, or only once the others wait for them."""
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
    assert not world.recovery.failed, seed
    return world


def test_a_recovery_leaves_what_is_committed_on_a_majority_of_disks() -> None:
    """It opens, or waits for an operator."""
    seen: Counter[str] = Counter()
    for seed in range(_CASES):
        chance = random.Random(seed)
        past = _Past(chance)
        world = _recover(past, chance, seed)
        decided = world.recovery.resolved
        assert decided is None or decided + 1 >= len(past.committed), seed
        seen["opened" if world.opened else "waits"] += 1
        seen["cut in part"] += bool(_cut_in_part(world.calls))
    assert min(seen[what] for what in ("opened", "waits", "cut in part")) > _CASES / 100, seen


def test_what_a_session_has_decided_to_be_lost_does_not_come_back() -> None:
    """Session 7 told the clients of 6 that what is above its marks is lost; then it was forgotten."""
    seen: Counter[str] = Counter()
    for seed in range(_CASES):
        chance = random.Random(seed)
        past = _Past(chance, quiet=True)
        world = _recover(past, chance, seed)
        seen["opened" if world.opened else "waits"] += 1
        if not world.opened:
            continue
        assert world.recovery.resolved is not None
        end = world.recovery.resolved + 1
        logs = [[writer_of(record) for record in world.storages[name].log] for name in _ready(world)]
        assert all(6 not in log[past.settled : end] for log in logs), seed
        seen["lost"] += any(6 in writers[past.settled :] for _, _, writers in past.replicas.values())
    assert min(seen[what] for what in ("opened", "lost")) > _CASES / 100, seen


def _world(*, unnamed: str = "", **replicas: tuple[int, int, list[int]]) -> World:
    """Session, own mark, writers of the log, of each; ZooKeeper says that all but `unnamed` took part in session 4."""
    storages = {
        name: Storage(
            session, own, min(own, len(writers) - 1), [make_record(*pair) for pair in enumerate(writers)], floor=True
        )
        for name, (session, own, writers) in replicas.items()
    }
    return World(
        storages,
        PartitionMetadata(1, _SESSION, tuple(state(name, 4, UNRESOLVED) for name in replicas if name != unnamed)),
        lambda metadata, version: Recovery(PARTITION, _SESSION, 1, metadata, version, tuple(replicas)),
    )


@pytest.mark.parametrize("order", ["bc", "cb"])
def test_a_mark_since_the_last_session_ends_older_logs(order: str) -> None:
    """Session 6 decided on 1 with a, which is away, and b: c's record 2 was not committed, and clients may know."""
    world = _world(a=(6, 1, [4, 4]), b=(6, 1, [4, 4]), c=(4, 0, [4, 4, 4]))
    for name in order:
        world.arrive(name)
        world.settle()
    assert world.recovery.resolved == 1
    assert world.opened
    assert [len(world.storages[name].log) for name in "bc"] == [2, 2]
    assert not any(isinstance(call, rec.WriteRecords) for call in world.calls)


def test_waiting_does_not_count_what_a_later_mark_ended() -> None:
    """Two of five are there: c may not hold more of the log than b was marked at."""
    world = _world(a=(6, 1, [4, 4]), b=(6, 1, [4, 4]), c=(4, 0, [4, 4, 4]), d=(4, 0, [4]), e=(4, 0, [4]))
    for name in "bc":
        world.arrive(name)
    world.settle()
    world.now += 5_000
    world.tell(rec.Tick())
    stuck = world.told[-1]
    assert isinstance(stuck, rec.RecoveryStuck)
    assert "b ends at 1, c ends at 1" in stuck.reason


def test_of_several_marks_since_the_last_session_the_newest_ends_older_logs() -> None:
    """Session 5 had decided on 1; 6 went for what c held, and marked b at 2, before it came to nothing."""
    world = _world(a=(5, 1, [4, 4]), b=(6, 2, [4, 4, 4]), c=(4, 0, [4, 4, 4, 4]))
    for name in "cab":
        world.arrive(name)
    world.settle()
    assert world.recovery.resolved == 2
    assert world.opened


def test_a_mark_ends_no_log_below_its_own() -> None:
    """Session 6 could decide on 0 without a, which was marked at 1 by 5: a replica is not given up for that."""
    world = _world(a=(5, 1, [4, 4]), b=(6, 0, [4]), c=(4, 0, [4]))
    for name in "abc":
        world.arrive(name)
    world.settle()
    assert world.recovery.resolved == 1
    assert world.recovery.phase("a") is rec.ReplicaPhase.READY


def test_the_mark_of_a_replica_that_was_copied_to_since_ends_nothing() -> None:
    """A recovery after session 6 went for record 2 of c: b holds it, too, above its mark. It may have been decided."""
    world = _world(a=(6, 1, [4, 4]), b=(6, 1, [4, 4, 4]), c=(4, 0, [4, 4, 4]))
    for name in "bc":
        world.arrive(name)
    world.settle()
    assert world.recovery.resolved == 2


def test_who_was_marked_before_it_had_everything_ends_older_logs_too() -> None:
    """b lacks record 1, which session 6 had decided on; it gets that from c, and no more."""
    world = _world(a=(6, 1, [4, 4]), b=(6, 1, [4]), c=(4, 0, [4, 4, 4]))
    for name in "bc":
        world.arrive(name)
    world.settle()
    assert world.recovery.resolved == 1
    assert [len(world.storages[name].log) for name in "bc"] == [2, 2]


def test_the_mark_of_a_replica_that_is_not_named_ends_nothing() -> None:
    """It may be from another life: two of three hold record 2, so it was committed."""
    world = _world(unnamed="d", a=(4, 0, [4]), b=(4, 0, [4, 4, 4]), c=(4, 0, [4, 4, 4]), d=(6, 1, [4, 4]))
    for name in "dbc":
        world.arrive(name)
    world.settle()
    assert world.recovery.resolved == 2


def test_who_arrives_behind_the_decision_is_copied_to_whatever_it_was_marked_at() -> None:
    """Session 5 decided 0 with a and b, and marked a alone. Without a, session 7 decides 1, as b and c hold that.

    The states name three and four are assigned, of which d is away: without a no quorum is level.
    """
    world = _world(unnamed="d", a=(5, 0, [4]), b=(4, -1, [4]), c=(4, -1, [4, 4]), d=(-1, -1, []))
    for name in "bc":
        world.arrive(name)
        world.settle()
    assert world.recovery.resolved == 1
    world.arrive("a")
    world.settle()
    assert world.opened
    assert [len(world.storages[name].log) for name in "abc"] == [2, 2, 2]

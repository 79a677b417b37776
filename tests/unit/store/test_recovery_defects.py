"""Every rule of recovery: a schedule that does harm with the recovery of 0.13.2, and none with ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.model.recovery_world import PARTITION, Pending, Storage, World, make_record, state, writer_of
from tests.twin_0132.recovery import Recovery0132
from waltz_core.store import recovery_events as rec
from waltz_core.store.recovery import Recovery
from waltz_core.zookeeper.znodes import UNRESOLVED, PartitionMetadata, ReplicaState

_SESSION = 6


def log(*writers: int) -> list[int]:
    """Sessions that wrote records 0, 1, …"""
    return list(writers)


def storage(session: int, low: int, writers: Sequence[int], local: int | None = None) -> Storage:
    """A replica that session `session` marked at `low`."""
    records = [make_record(number, writer) for number, writer in enumerate(writers)]
    return Storage(session, low, low if local is None else local, records)


def world_of(kind: Any, storages: Mapping[str, Storage], *states: ReplicaState, session: int = _SESSION) -> World:
    """A recovery that has just announced its session; every storage is assigned."""
    return World(
        dict(storages),
        PartitionMetadata(1, session, states),
        lambda metadata, version: kind(PARTITION, session, 1, metadata, version, tuple(storages), copy_count_max=20),
    )


def unresolved(*replicas: str, session: int = 5) -> tuple[ReplicaState, ...]:
    """Replicas of the last session."""
    return tuple(state(replica, session, UNRESOLVED) for replica in replicas)


def writers(world: World, replica: str) -> list[int]:
    """Contents of a replica's log."""
    return [writer_of(record) for record in world.storages[replica].log]


def arrive_all(world: World, *replicas: str) -> None:
    """One after the other, each with all that follows."""
    for replica in replicas:
        world.arrive(replica)
        world.settle()


both = pytest.mark.parametrize("on", [False, True], ids=["0.13.2", "ours"])


def kind_of(ours: bool) -> Any:
    """Whose recovery runs."""
    return Recovery if ours else Recovery0132


@both
def test_no_append_before_the_states_are_written(on: bool) -> None:
    """server-D1: another session announces itself before the states are in ZooKeeper."""
    world = world_of(kind_of(on), three_level(), *unresolved(*"abc"))
    arrive_all(world, "a")
    world.arrive("b")
    world.settle(lambda effect: isinstance(effect, rec.CasMetadata))
    world.announce()
    world.settle()
    assert bool(world.told_of(rec.ReplicaReady)) is not on
    assert bool(world.told_of(rec.SessionRecovered)) is not on
    assert len(world.told_of(rec.RecoveryFailed)) == 1


def three_level() -> dict[str, Storage]:
    """Three replicas of session 5 that hold the same."""
    return {name: storage(5, 2, log(5, 5, 5)) for name in "abc"}


@both
def test_what_an_unnamed_session_appended_is_cut(on: bool) -> None:
    """server-D1, E5': b holds a record of session 6, which never got its states written; a holds another one."""
    storages = {"a": storage(5, 1, log(5, 5, 5)), "b": storage(6, 1, log(5, 5, 6)), "c": storage(5, 1, log(5, 5))}
    world = world_of(kind_of(on), storages, *unresolved(*"abc"), session=7)
    arrive_all(world, "a", "b", "c")
    assert (writers(world, "a") == writers(world, "b")) is on


@both
def test_a_replica_that_was_added_again_loses_its_stale_tail(on: bool) -> None:
    """server-D2: d was removed with a dirty tail, added again while it was down, and comes back later."""
    good = log(0, 0, 5, 5)
    storages = {"a": storage(5, 3, good), "b": storage(5, 3, good), "d": storage(2, 0, log(0, 2, 2, 2))}
    world = world_of(kind_of(on), storages, *unresolved("a", "b"), state("d", -1, 3))
    arrive_all(world, "a", "b", "d")
    assert world.recovery.phase("d") is rec.ReplicaPhase.READY
    assert (writers(world, "d") == good) is on


@both
def test_a_replica_that_was_set_back_hides_no_commit(on: bool) -> None:
    """server-D4: b and c committed 12; b is absent, c lost its files and comes with an older state."""
    storages = {
        "a": storage(5, 10, [5] * 12),
        "b": storage(5, 10, [5] * 13),
        "c": storage(3, 5, [5] * 6),
    }
    world = world_of(kind_of(on), storages, *unresolved(*"abc"))
    arrive_all(world, "a", "c")
    assert (world.recovery.resolved is None) is on
    arrive_all(world, "b")
    assert world.recovery.resolved == (12 if on else 11)


@both
def test_a_replica_that_holds_less_than_it_was_marked_with_counts_as_absent(on: bool) -> None:
    """server-D4: its control file is as it was, its log is not."""
    storages = {
        "a": storage(5, 10, [5] * 12),
        "b": storage(5, 10, [5] * 13),
        "c": storage(5, 10, [5] * 6),
    }
    world = world_of(kind_of(on), storages, *unresolved(*"abc"))
    arrive_all(world, "a", "c")
    assert world.recovery.resolved == (None if on else 11)


@both
def test_lost_metadata_wipes_no_log(on: bool) -> None:
    """server-D5: the states are gone, the replicas are full."""
    storages = {name: storage(5, 10, [5] * 13) for name in "abc"}
    world = world_of(kind_of(on), storages)
    arrive_all(world, "a", "b")
    assert [storages[name].max for name in "ab"] == ([12, 12] if on else [-1, 12])
    assert world.told_of(rec.SessionRecovered) == []


@both
def test_a_first_session_leaves_old_data_alone(on: bool) -> None:
    """server-D5: two new replicas, and one with the records of some other life."""
    storages = {"a": storage(-1, -1, ()), "b": storage(-1, -1, ()), "c": storage(5, 10, [5] * 13)}
    world = world_of(kind_of(on), storages)
    arrive_all(world, "c", "a", "b")
    assert (storages["c"].max == 12) is on
    assert world.told_of(rec.SessionRecovered) == []


@both
def test_a_lagging_source_is_not_asked_for_what_it_lacks(on: bool) -> None:
    """server-D7: d follows c, which is itself behind the mark that is decided meanwhile."""
    storages = {
        "a": storage(5, 8, [5] * 10),
        "b": storage(5, 8, [5] * 10),
        "c": storage(5, 8, [5] * 5, local=4),
        "d": storage(4, 2, [5] * 3),
        "e": storage(5, 8, [5] * 10),
    }
    states = (*unresolved(*"abce"), state("d", 4, 2))
    world = world_of(kind_of(on), storages, *states)

    for replica in "cdabe":
        world.arrive(replica)
        world.settle(lambda effect: isinstance(effect, rec.ReadRecords))
    assert world.recovery.resolved == 9

    def held(effect: Pending) -> bool:
        return isinstance(effect, rec.ReadRecords) and effect.target == "c"

    if on:
        world.settle(held)
        assert storages["d"].max == 9
    else:
        with pytest.raises(AssertionError, match="does not come to rest"):
            world.settle(held, limit=500)
    assert bool(world.beyond) is not on


@both
def test_one_late_failure_does_not_bar_the_others(on: bool) -> None:
    """server-D8: d fails while it catches up with an open session; e comes after it."""
    storages = three_level() | {name: storage(4, 0, log(4, 4)) for name in "de"}
    world = world_of(kind_of(on), storages, *unresolved(*"abc"), state("d", 4, 1), state("e", 4, 1))
    arrive_all(world, *"abc")
    assert world.opened
    world.arrive("d")
    world.settle(lambda effect: isinstance(effect, rec.ReadRecords))
    world.fail("d")
    arrive_all(world, "e")
    assert world.recovery.phase("d") is rec.ReplicaPhase.FAILED
    assert (world.recovery.phase("e") is rec.ReplicaPhase.READY) is on


@both
def test_nobody_is_decided_below_its_low_water_mark(on: bool) -> None:
    """server-D23: an aborted recovery marked a at 12, the others hold less: every recovery with a would abort."""
    storages = {"a": storage(6, 12, [5] * 13), "b": storage(5, 10, [5] * 12), "c": storage(5, 10, [5] * 12)}
    world = world_of(kind_of(on), storages, *unresolved(*"abc"), session=7)
    world.arrive("a")
    world.settle(lambda effect: isinstance(effect, rec.Truncate))  # it was asked for its highest id
    for replica in "bc":
        world.arrive(replica)
    world.settle()
    assert world.recovery.failed is not on
    assert world.recovery.resolved == (12 if on else 11)


@both
def test_a_replica_with_a_higher_low_water_mark_stays_out_alone(on: bool) -> None:
    """server-D23: b and c decided 11 without a, which a recovery that was aborted before had marked at 12."""
    storages = {"a": storage(5, 12, [5] * 13), "b": storage(6, 11, [5] * 12), "c": storage(6, 11, [5] * 12)}
    states = (state("a", 4, 11), *unresolved("b", "c", session=6))
    world = world_of(kind_of(on), storages, *states, session=7)
    for replica in "abc":
        world.arrive(replica)
    world.settle()
    assert world.opened is on
    assert bool(world.told_of(rec.ReplicaRefused)) is on


@both
def test_states_name_only_replicas_that_were_marked(on: bool) -> None:
    """Ruling R3: c is clean, but its mark hangs; with 0.13.2 it is named all the same, and is E1 next time."""
    storages = {"a": storage(5, 2, log(5, 5, 5)), "b": storage(5, 2, log(5, 5, 5)), "c": storage(4, 1, log(4, 4, 4))}
    world = world_of(kind_of(on), storages, *unresolved("a", "b"), state("c", 4, 2))
    for replica in "cab":
        world.arrive(replica)
    world.settle(lambda effect: effect == rec.SetLowWaterMark("c", 2))
    assert world.opened
    named = {item.replica_id.storage: item.session_id for item in world.metadata.replica_states}
    assert named == {"a": 6, "b": 6, "c": 4 if on else 6}


@both
def test_records_kept_by_a_new_replica_are_those_of_the_log(on: bool) -> None:
    """c was marked at 1 by a recovery that came to nothing, removed, and is added again with record 1 of session 2."""
    good = log(0, 3, 3)
    storages = {"a": storage(5, 2, good), "b": storage(5, 2, good), "c": storage(2, 1, log(0, 2))}
    world = world_of(kind_of(on), storages, *unresolved("a", "b"))
    arrive_all(world, *"abc")
    if on:
        assert world.recovery.phase("c") is rec.ReplicaPhase.REFUSED
        assert writers(world, "c") == log(0, 2)
    else:
        assert world.recovery.phase("c") is rec.ReplicaPhase.READY
        assert writers(world, "c") != good


@both
def test_a_hanging_copy_delays_no_decision(on: bool) -> None:
    """b and c hang in a copy; once d is there, three of five hold record 11 and 12 cannot have been committed."""
    storages = {
        "a": storage(5, 10, [5] * 13),
        "b": storage(5, 10, [5] * 12),
        "c": storage(5, 10, [5] * 12),
        "d": storage(4, 2, [4] * 3),
        "e": storage(5, 10, [5] * 12),
    }
    states = (*unresolved(*"abce"), state("d", 4, 2))
    world = world_of(kind_of(on), storages, *states)
    for replica in "abcd":
        world.arrive(replica)
        world.settle(lambda effect: isinstance(effect, rec.ReadRecords))
    assert world.recovery.resolved == (11 if on else None)


@both
def test_a_voter_that_lags_stays_a_voter_when_the_recovery_is_aborted(on: bool) -> None:
    """recovery L1: session 6 decided 1, marked a and b, of which b lacks it, and died; so did a, for good."""
    storages = {"a": storage(5, 0, log(5, 5)), "b": storage(5, 0, log(5)), "c": storage(4, 0, log(5))}
    states = (*unresolved("a", "b"), state("c", 4, 0))
    first = world_of(kind_of(on), storages, *states)
    for replica in "acb":
        first.arrive(replica)
        first.settle(lambda effect: effect == rec.SetLowWaterMark("c", 1) or getattr(effect, "target", "") == "b")
    assert first.recovery.resolved == 1
    assert storages["a"].low == 1
    world = world_of(kind_of(on), storages, *states, session=7)
    arrive_all(world, "b", "c")
    assert world.opened is on


@both
def test_metadata_that_was_set_back_stops_recovery(on: bool) -> None:
    """Ruling R6: b has answered session 9, the metadata says 6."""
    world = world_of(kind_of(on), three_level(), *unresolved(*"abc"))
    arrive_all(world, "a")
    world.arrive("b", fence=9)
    world.settle()
    failures = world.told_of(rec.RecoveryFailed)
    assert bool(failures) is on
    assert world.opened is not on
    if on:
        assert isinstance(failures[0], rec.RecoveryFailed)
        assert failures[0].fence == 9


def test_a_session_that_only_fenced_costs_nothing() -> None:
    """Ruling R1: session 5 commits 3..5 above its mark, session 6 greets all replicas and dies."""
    storages = {name: storage(5, 2, [5] * 6) for name in "abc"}
    first = world_of(Recovery, storages, *unresolved(*"abc"))
    for replica in "abc":
        first.arrive(replica)
    world = world_of(Recovery, storages, *unresolved(*"abc"), session=7)
    arrive_all(world, *"abc")
    assert world.recovery.resolved == 5
    assert world.opened


def suspect_world(logs: dict[str, int]) -> World:
    """Session 5 marked all at -1, the states name a and c for it: b is suspected; each holds ids up to its number."""
    storages = {name: storage(5, -1, [5] * (last + 1)) for name, last in logs.items()}
    return world_of(Recovery, storages, *unresolved("a", "c"), state("b", 4, -1))


def test_a_suspect_whose_session_lives_on_in_a_quorum_is_let_in() -> None:
    """b was copied 0 and 1 by a recovery that then decided 0, cut a, and was aborted."""
    world = suspect_world({"a": 0, "b": 1, "c": 0})
    arrive_all(world, *"abc")
    assert world.recovery.resolved == 0
    assert world.opened


def test_what_was_decided_before_needs_no_suspect() -> None:
    """Of five, a later session had decided 0 and marked d."""
    storages = {name: storage(5, -1, [5] * (1 + (name == "b"))) for name in "abc"}
    storages |= {"d": storage(6, 0, [5]), "e": storage(-1, -1, [])}
    states = (*unresolved(*"acd"), state("b", 4, -1), state("e", -1, -1))
    world = world_of(Recovery, storages, *states, session=7)
    arrive_all(world, *"abcde")
    assert world.recovery.resolved == 0
    assert world.opened


def test_what_was_decided_before_is_not_cut_from_a_suspect_that_holds_it_too() -> None:
    """Session 6 committed 0..2 on a and b; the next one marked a, but not b; the states were set back before both.

    Cut and copied to again, b would leave what is committed on one disk meanwhile.
    """
    storages = {"a": storage(7, 2, [6, 6, 6]), "b": storage(6, -1, [6, 6, 6]), "c": storage(4, -1, [])}
    world = world_of(Recovery, storages, *unresolved("a", "c", session=4), state("b", 4, -1), session=8)
    world.arrive("a")
    world.arrive("b")
    while world.pending:
        world.run(world.pending[0])
        assert writers(world, "b") == [6, 6, 6]
    assert world.recovery.resolved == 2
    assert world.opened


def test_a_suspect_that_differs_from_what_was_decided_is_cut() -> None:
    """The same, but that b holds what nobody else does."""
    storages = {"a": storage(7, 2, [6, 6, 6]), "b": storage(5, -1, [5, 5, 5]), "c": storage(4, -1, [])}
    world = world_of(Recovery, storages, *unresolved("a", "c", session=4), state("b", 4, -1), session=8)
    world.arrive("a")
    world.arrive("b")
    world.settle()
    assert world.recovery.resolved == 2
    assert writers(world, "b") == [6, 6, 6]
    assert world.opened


def suspect_with_a_tail(tail: list[int], other: list[int]) -> World:
    """a and c committed 0..2 in session 6 and go on with `other` on a; an unknown session 8 wrote `tail` to b."""
    storages = {
        "a": storage(7, 2, [6, 6, 6, *other]),
        "b": storage(8, -1, [6, 6, 6, *tail]),
        "c": storage(7, 2, [6, 6, 6]),
    }
    world = world_of(Recovery, storages, *unresolved("a", "c", session=7), state("b", 4, -1), session=9)
    for replica in "abc":
        world.arrive(replica)
    return world


@pytest.mark.parametrize("tail", [[8], [8, 8, 8, 8]], ids=["one", "many"])
@pytest.mark.parametrize("other", [[], [7], [7, 7, 7]], ids=["nothing else", "one other", "many others"])
def test_a_suspect_keeps_what_a_member_holds_before_its_own_tail(tail: list[int], other: list[int]) -> None:
    """What both hold is on one disk less while it is cut and copied to again."""
    world = suspect_with_a_tail(tail, other)
    while world.pending:
        world.run(world.pending[0])
        assert writers(world, "b")[:3] == [6, 6, 6]
    assert world.opened
    assert writers(world, "b") == writers(world, "a")


def test_where_a_suspect_differs_is_found_by_halving() -> None:
    """1,000 records in common, 500 that differ: some ten comparisons with each of the others, of two reads each."""
    same = [6] * 1000
    storages = {
        "a": storage(7, 999, [*same, *[7] * 500]),
        "b": storage(8, -1, [*same, *[8] * 500]),
        "c": storage(7, 999, same),
    }
    world = world_of(Recovery, storages, *unresolved("a", "c", session=7), state("b", 4, -1), session=9)
    for replica in "abc":
        world.arrive(replica)
    while world.pending:
        world.run(world.pending[0])
        assert writers(world, "b")[:1000] == same
    assert world.opened
    assert writers(world, "b") == writers(world, "a") == same
    reads = [call for call in world.calls if isinstance(call, rec.ReadRecords) and call.target == "b"]
    assert sum(read.count == 1 for read in reads) <= 2 * 2 * 11 + 2


def test_a_suspect_keeps_what_is_before_a_record_that_no_member_can_read() -> None:
    """Record 1 of a and c is damaged: b is cut behind record 0, which they have in common, and no further."""
    world = suspect_with_a_tail([8], [])
    shortest = 4
    while world.pending:
        effect = world.pending[0]
        if isinstance(effect, rec.ReadRecords) and effect.target == "b" and effect.source != "b" and effect.first > 0:
            world.pending.remove(effect)
            world.tell(rec.RecordsDenied(effect.source, "b", effect.first))
        else:
            world.run(effect)
        shortest = min(shortest, len(writers(world, "b")))
    assert shortest == 1
    assert world.opened


@pytest.mark.parametrize("silent", ["ac", "b"])
def test_a_suspect_that_cannot_be_compared_holds_up_nobody(silent: str) -> None:
    """Its own record cannot be read, or not those of the members: then it is cut, and copied to later."""
    world = suspect_with_a_tail([8], [])
    denied = 0
    while world.pending:
        effect = world.pending[0]
        if isinstance(effect, rec.ReadRecords) and effect.source in silent and writers(world, "b"):
            world.pending.remove(effect)
            world.tell(rec.RecordsDenied(effect.source, "b", effect.first))
            denied += 1
        else:
            world.run(effect)
    assert denied == (1 if silent == "b" else 4), "by halving, two records of each"
    assert world.opened
    world.now += 10_000
    world.tell(rec.Tick())
    world.settle()
    assert writers(world, "b") == [6, 6, 6]
    assert world.recovery.phase("b") is rec.ReplicaPhase.READY


@pytest.mark.parametrize("tail", [[], [8]], ids=["the same", "more"])
def test_a_decision_does_not_wait_for_a_suspect_that_nobody_needs(tail: list[int]) -> None:
    """b answers no read; a and c hold what was committed."""
    world = suspect_with_a_tail(tail, [])
    world.settle(lambda effect: isinstance(effect, rec.ReadRecords) and effect.target == "b")
    assert world.opened
    world.settle()
    assert writers(world, "b") == [6, 6, 6]


def test_a_suspect_that_was_proven_is_cut_to_a_lower_end() -> None:
    """b holds the tail of a, too, by a copy; it is proven in the moment in which a lower end is decided."""
    storages = {
        "a": storage(7, 2, [6, 6, 6, 7, 7]),
        "b": storage(8, 0, [6, 6, 6, 7, 7]),
        "c": storage(7, 2, [6, 6, 6]),
        "d": storage(7, 2, [6, 6, 6]),
    }
    world = world_of(Recovery, storages, *unresolved("a", "c", "d", session=7), session=9)
    world.arrive("a")
    world.arrive("b")
    for _ in range(3):  # their highest ids, its own last record
        world.run(world.pending[0])
    for replica in "cd":
        world.arrive(replica)
    world.settle(lambda effect: isinstance(effect, rec.ReadRecords))
    world.settle()
    assert world.recovery.resolved == 2
    assert world.opened
    assert {replica: writers(world, replica) for replica in "abcd"} == {replica: [6, 6, 6] for replica in "abcd"}


@pytest.mark.parametrize("other", [0, -1])
def test_a_suspect_that_may_be_needed_is_waited_for(other: int) -> None:
    """1 may be committed on a, which is absent, and on b, if the states were set back; a then proves it."""
    world = suspect_world({"a": 1, "b": 1, "c": other})
    arrive_all(world, *"bc")
    assert world.recovery.resolved is None
    assert writers(world, "b") == [5, 5], "nothing is cut from it meanwhile"
    arrive_all(world, "a")
    assert world.recovery.resolved == 1
    assert world.opened


@pytest.mark.parametrize("readable", [True, False])
def test_a_suspect_that_was_let_in_is_still_a_witness_of_what_it_held(readable: bool) -> None:
    """1 is committed on a, d and e; the states set back to a, b, c. a proves d; b and c get no copy yet.

    e may not be comparable, as it does not read its own record now.
    """
    logs = {"a": 1, "b": 0, "c": 0, "d": 1, "e": 1}
    storages = {name: storage(5, 0, [5] * (last + 1)) for name, last in logs.items()}
    world = world_of(Recovery, storages, *unresolved(*"abc"), state("d", 4, 0), state("e", 4, 0))
    arrive_all(world, "a", "d")
    for replica in "bce":
        world.arrive(replica)
    if not readable:
        world.settle(lambda effect: getattr(effect, "target", "") in ("b", "c", "e"))
        (read,) = [effect for effect in world.pending if getattr(effect, "target", "") == "e"]
        world.pending.remove(read)
        world.tell(rec.RecordsDenied("e", "e", 1))
        assert [effect for effect in world.pending if getattr(effect, "target", "") == "e"] == [], "not again at once"
        world.now += 10_000
        world.tell(rec.Tick())
    world.settle(lambda effect: getattr(effect, "target", "") in ("b", "c"))
    assert writers(world, "e") == [5, 5]
    world.settle()
    assert world.recovery.resolved == 1
    assert world.opened
    assert {len(replica.log) for replica in world.storages.values()} == {2}

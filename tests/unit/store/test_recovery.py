"""The recovery machine step by step: order of calls, stale answers, waiting, operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.model.recovery_world import PARTITION, Pending, Storage, World, make_record, state
from tests.twin_0132.recovery import Recovery0132
from waltz_core.base.log import SessionInfo
from waltz_core.store import recovery_events as rec
from waltz_core.store.recovery import Recovery
from waltz_core.zookeeper.znodes import UNRESOLVED, PartitionMetadata, ReplicaState

_SESSION = 6
_LATER = 5_000


def storage(session: int, low: int, top: int, local: int | None = None) -> Storage:
    """A replica marked at `low` by `session`, with records 0..top."""
    return Storage(session, low, low if local is None else local, [make_record(n, 1) for n in range(top + 1)])


def world_of(
    storages: Mapping[str, Storage],
    *states: ReplicaState,
    assigned: str = "",
    kind: Any = Recovery,
    copy_count_max: int = 20,
) -> World:
    """A recovery that has just announced its session."""
    return World(
        dict(storages),
        PartitionMetadata(1, _SESSION, states),
        lambda metadata, version: kind(
            PARTITION,
            _SESSION,
            1,
            metadata,
            version,
            tuple(assigned or storages),
            copy_count_max=copy_count_max,
        ),
    )


def unresolved(replicas: str) -> tuple[ReplicaState, ...]:
    """Replicas of the last session."""
    return tuple(state(replica, 5, UNRESOLVED) for replica in replicas)


def level(replicas: str = "abc") -> dict[str, Storage]:
    """Replicas of session 5 that hold 0..2."""
    return {name: storage(5, 1, 2) for name in replicas}


def arrive_all(world: World, replicas: str) -> None:
    """One after the other, each with all that follows."""
    for replica in replicas:
        world.arrive(replica)
        world.settle()


def copying(effect: Pending) -> bool:
    """Reads and writes of records hang."""
    return isinstance(effect, rec.ReadRecords | rec.WriteRecords)


def stuck_reason(world: World) -> str:
    """What recovery waits for, once it has waited for some time."""
    world.now += _LATER
    world.tell(rec.Tick())
    last = world.told[-1]
    assert isinstance(last, rec.RecoveryStuck), world.told
    return last.reason


# ---- the ordinary course -----------------------------------------------------------------------


def test_a_session_opens_once_a_quorum_is_named() -> None:
    """Every effect of an ordinary recovery, in order."""
    world = world_of(level(), *unresolved("abc"))
    arrive_all(world, "ab")
    states = (state("a", 6, UNRESOLVED), state("b", 6, UNRESOLVED), state("c", 5, 2))
    assert world.calls == [
        rec.AskMax("a"),
        rec.AskMax("b"),
        rec.SetLowWaterMark("a", 2),
        rec.SetLowWaterMark("b", 2),
        rec.CasMetadata(PartitionMetadata(1, 6, states), 0),
    ]
    assert world.told == [rec.ReplicaReady("a", 3), rec.ReplicaReady("b", 3), rec.SessionRecovered(2)]


def test_a_late_replica_is_cut_marked_named_and_ready() -> None:
    """It comes when the session is open; its tail of session 5 was never committed."""
    world = world_of(level("ab") | {"c": storage(5, 1, 4)}, *unresolved("abc"))
    arrive_all(world, "ab")
    world.calls.clear()
    arrive_all(world, "c")
    assert [type(call) for call in world.calls] == [rec.Truncate, rec.SetLowWaterMark, rec.CasMetadata]
    assert world.told[-1] == rec.ReplicaReady("c", 3)
    assert world.metadata.replica_states == tuple(state(name, 6, UNRESOLVED) for name in "abc")


def test_a_tail_above_the_decision_is_cut_before_the_mark() -> None:
    """Two of three hold 2, so 3 and 4 were never committed."""
    world = world_of(level("ab") | {"c": storage(5, 1, 4)}, *unresolved("abc"))
    for replica in "cab":
        world.arrive(replica)
    world.settle()
    for_c = [call for call in world.calls if getattr(call, "replica", None) == "c"]
    assert for_c == [rec.AskMax("c"), rec.Truncate("c", 2), rec.SetLowWaterMark("c", 2)]


def test_a_replica_that_lags_is_marked_and_then_copied_to_in_steps() -> None:
    """Six records, two at a time; the last session had marked it while it lagged."""
    storages = {"a": storage(5, 7, 8), "b": storage(5, 7, 8), "c": storage(5, 7, 2, local=2)}
    world = world_of(storages, *unresolved("abc"), copy_count_max=2)
    arrive_all(world, "abc")
    reads = [(call.first, call.count) for call in world.calls if isinstance(call, rec.ReadRecords)]
    assert reads == [(3, 2), (5, 2), (7, 2)]
    assert storages["c"].log == storages["a"].log
    assert world.recovery.phase("c") is rec.ReplicaPhase.READY


def test_a_replica_that_would_refuse_the_mark_is_copied_to_first() -> None:
    """c holds less than it was once marked with; it is filled, then marked."""
    storages = level("ab") | {"c": storage(4, 1, 0, local=1)}
    world = world_of(storages, *unresolved("ab"), state("c", 4, 1))
    arrive_all(world, "abc")
    calls = [type(call) for call in world.calls if getattr(call, "target", getattr(call, "replica", "")) == "c"]
    assert calls == [rec.Truncate, rec.ReadRecords, rec.WriteRecords, rec.SetLowWaterMark]
    assert world.recovery.phase("c") is rec.ReplicaPhase.READY


def test_what_is_read_above_the_decided_mark_is_not_written() -> None:
    """The read was answered before a was cut; meanwhile 2 was decided."""
    storages = {"a": storage(5, 1, 4), "b": storage(5, 1, 2), "c": storage(5, 1, 2), "d": storage(4, 0, 0)}
    world = world_of(storages, *unresolved("abc"), state("d", 4, 0), state("e", 4, 0))
    world.arrive("a")
    world.settle()
    world.arrive("d")
    world.settle(copying)
    (read,) = world.take_reads()
    assert (read.first, read.count) == (1, 4)
    records = tuple(storages["a"].log[1:])
    for replica in "bc":
        world.arrive(replica)
        world.settle(copying)
    assert world.recovery.resolved == 2
    world.tell(rec.RecordsRead("a", "d", records))
    write = next(effect for effect in world.pending if isinstance(effect, rec.WriteRecords))
    assert [record.transaction_id for record in write.records] == [1, 2]


@pytest.mark.parametrize("cut", [True, False], ids=["cut before the answer", "cut after it"])
def test_nothing_is_written_when_the_target_needs_nothing_any_more(cut: bool) -> None:
    """b was to follow a, then its own mark was decided; that a held more for a while is nothing against b."""

    def hang(effect: Pending) -> bool:
        return copying(effect) or (isinstance(effect, rec.Truncate) and not cut)

    storages = {"a": storage(5, 1, 4), "b": storage(5, 1, 2), "c": storage(5, 1, 2)}
    world = world_of(storages, *unresolved("abc"))
    for replica in "abc":
        world.arrive(replica)
        world.settle(hang)
    assert world.recovery.resolved == 2
    (read,) = world.take_reads()
    world.tell(rec.RecordsRead("a", read.target, tuple(make_record(n, 1) for n in (3, 4))))
    world.settle()
    assert not any(isinstance(call, rec.WriteRecords) for call in world.calls)
    assert all(world.recovery.phase(name) is rec.ReplicaPhase.READY for name in "abc")


def test_who_has_not_said_what_it_holds_has_no_say_in_where_the_log_ends() -> None:
    """a alone took part in session 5 and may have committed 2..4; d, which is new, is asked and has not answered."""
    storages = {"a": storage(5, 1, 4), "b": storage(4, 1, 1), "c": storage(4, 1, 1), "d": storage(-1, -1, -1)}
    world = world_of(storages, *unresolved("a"), state("b", 4, 1), state("c", 4, 1))

    def hang(effect: Pending) -> bool:
        return copying(effect) or getattr(effect, "replica", "") == "d"

    for replica in "dabc":
        world.arrive(replica)
        world.settle(hang)
    assert world.recovery.resolved is None
    world.settle()
    assert world.recovery.resolved == 4
    assert all(len(each.log) == 5 for each in storages.values())


def test_the_first_session_needs_a_quorum_of_new_replicas() -> None:
    """One new replica alone decides nothing: the other two may hold a log whose metadata was lost."""
    world = world_of({name: storage(-1, -1, -1) for name in "abc"})
    arrive_all(world, "a")
    assert world.recovery.resolved is None
    arrive_all(world, "b")
    assert world.told[-1] == rec.SessionRecovered(-1)
    arrive_all(world, "c")
    assert world.told_of(rec.ReplicaReady)[-1] == rec.ReplicaReady("c", 0)


def test_a_first_recovery_that_was_aborted_is_no_lost_metadata() -> None:
    """The replicas have a session, but no transaction."""
    world = world_of({name: storage(2, -1, -1) for name in "abc"})
    arrive_all(world, "ab")
    assert world.opened


# ---- answers out of place ----------------------------------------------------------------------


def test_events_out_of_place_are_ignored() -> None:
    """Of unknown replicas, in the wrong phase, twice."""
    world = world_of(level(), *unresolved("abc"))
    info = SessionInfo(5, 1, 1)
    world.tell(
        rec.ReplicaUp("x", info),
        rec.RecordsWritten("x", 1),
        rec.MaxKnown("a", 2),
        rec.Marked("a"),
        rec.RecordsRead("b", "a", ()),
        rec.RecordsWritten("a", 1),
        rec.ReplicaFailed("a", "never connected"),
        rec.CasDone(9),
        rec.CasLost(PartitionMetadata(9, 9, ()), 9),
    )
    assert (world.calls, world.told) == ([], [])
    world.tell(rec.ReplicaUp("a", info), rec.ReplicaUp("a", info))
    assert world.calls == [rec.AskMax("a")]


def test_answers_after_the_end_are_ignored() -> None:
    """The replica that failed and the ones that were still at work."""
    world = world_of(level("ab") | {"c": storage(5, 1, 1)}, *unresolved("abc"))
    world.arrive("a")
    world.settle()
    world.arrive("c")
    world.fail("a", "gone")
    assert world.told == [rec.RecoveryFailed("replica a failed: gone")]
    world.calls.clear()
    world.tell(rec.MaxKnown("c", 1), rec.ReplicaFailed("a", "again"), rec.CasDone(1))
    world.arrive("b")
    world.now += _LATER
    world.tell(rec.ReplicaFailed("b", "late"), rec.Tick())
    assert (world.calls, len(world.told)) == ([], 1)


def test_nothing_is_done_about_what_came_in_the_step_that_ended_it() -> None:
    """c would be copied to, b cut: neither is any business of a session that is over."""
    storages = level("a") | {"b": storage(5, 1, 4), "c": storage(4, 1, 1)}
    world = world_of(storages, *unresolved("ab"), state("c", 4, 1))
    for replica in "abc":
        world.arrive(replica)
    world.calls.clear()
    failed = rec.ReplicaFailed("a", "gone")
    world.tell(failed, rec.MaxKnown("b", 4), rec.MaxKnown("c", 1), rec.ReplicaUp("b", SessionInfo(5, 1, 1)))
    assert (world.calls, world.told) == ([], [rec.RecoveryFailed("replica a failed: gone")])
    assert world.recovery.failed
    assert {world.recovery.phase(name) for name in "abc"} == {rec.ReplicaPhase.FAILED}


def test_a_source_that_gives_nothing_is_not_asked_again() -> None:
    """b follows a until somebody else is ahead."""
    storages = {"a": storage(5, 1, 4), "b": storage(5, 1, 2), "c": storage(5, 1, 4)}
    world = world_of(storages, *unresolved("abcde"))
    for replica in "ab":
        world.arrive(replica)
        world.settle(copying)
    (read,) = world.pending
    world.pending.clear()
    world.tell(rec.RecordsRead("a", "b", ()))
    assert (read, world.pending) == (rec.ReadRecords("a", "b", 3, 2), [])
    world.arrive("c")
    world.settle(copying)
    assert world.pending == [rec.ReadRecords("c", "b", 3, 2)]


def test_a_replica_that_nobody_serves_stays_out() -> None:
    """The mark is decided, so a source that gives nothing will not do better later."""
    world = world_of(level("ab") | {"c": storage(5, 1, 1)}, *unresolved("abc"))
    arrive_all(world, "ab")
    world.arrive("c")
    world.settle(copying)
    (read,) = world.pending
    assert isinstance(read, rec.ReadRecords)
    world.tell(rec.RecordsRead(read.source, "c", (make_record(7),)))
    assert world.told[-1] == rec.ReplicaRefused("c", f"{read.source} does not give out record 2")


# ---- late failures -----------------------------------------------------------------------------


def test_a_late_replica_takes_another_source_when_its_own_is_lost() -> None:
    """Before the read was answered, and between two steps."""
    storages = {name: storage(5, 1, 6) for name in "abcd"} | {"e": storage(4, 0, 0)}
    world = world_of(storages, *unresolved("abcd"), state("e", 4, 0), copy_count_max=2)
    arrive_all(world, "abcd")
    world.arrive("e")
    world.settle(copying)
    (read,) = world.pending
    assert read == rec.ReadRecords("a", "e", 1, 2)
    world.fail("a")
    assert world.pending == [rec.ReadRecords("b", "e", 1, 2)]
    world.run(world.pending[0])  # the write is under way when b is lost
    world.fail("b")
    world.run(world.pending[0])
    assert world.pending == [rec.ReadRecords("c", "e", 3, 2)]
    world.settle()
    assert world.recovery.phase("e") is rec.ReplicaPhase.READY


def test_a_write_of_the_states_that_lost_its_race_is_built_again() -> None:
    """The outcome was unknown; read again, it turns out to be written."""
    world = world_of(level(), *unresolved("abc"))
    for replica in "ab":
        world.arrive(replica)
    world.settle(lambda effect: isinstance(effect, rec.CasMetadata))
    (cas,) = world.pending
    assert isinstance(cas, rec.CasMetadata)
    world.pending.clear()
    world.tell(rec.CasLost(cas.metadata, 1))
    assert world.told[-1] == rec.SessionRecovered(2)
    assert world.pending == []


def test_a_write_of_the_states_that_was_not_done_is_done_again() -> None:
    """The znode still holds what it held, in a later version."""
    world = world_of(level(), *unresolved("abc"))
    for replica in "ab":
        world.arrive(replica)
    world.version += 1
    world.settle()
    assert [call.expected_version for call in world.calls if isinstance(call, rec.CasMetadata)] == [0, 1]
    assert world.opened


def test_a_superseded_session_ends_even_when_it_is_open() -> None:
    """The states of a late replica cannot be written any more."""
    world = world_of(level(), *unresolved("abc"))
    arrive_all(world, "ab")
    world.announce()
    arrive_all(world, "c")
    assert world.told[-1] == rec.RecoveryFailed("session 7 took over from session 6")
    assert rec.ReplicaReady("c", 3) not in world.told


def test_a_replica_that_answers_a_later_session_ends_this_one() -> None:
    """It refuses the greeting."""
    storages = level()
    storages["a"].fence = 8
    world = world_of(storages, *unresolved("abc"))
    world.arrive("a")
    (failed,) = world.told
    assert isinstance(failed, rec.RecoveryFailed)
    assert failed.fence == 8


# ---- replicas that stay out --------------------------------------------------------------------


def test_a_replica_in_limbo_is_left_alone_and_counts_as_absent() -> None:
    """Its log may end too early."""
    world = world_of(level("ab") | {"c": storage(5, 1, 1)}, *unresolved("abc"))
    world.arrive("c", limbo=True)
    arrive_all(world, "a")
    assert world.recovery.resolved is None
    assert "c (stays out)" in stuck_reason(world)
    assert rec.AskMax("c") not in world.calls
    arrive_all(world, "b")
    assert world.opened


def test_a_closing_mark_below_the_own_mark_keeps_a_replica_out() -> None:
    """The states contradict the replica."""
    world = world_of(level("ab") | {"c": storage(4, 3, 4)}, *unresolved("ab"), state("c", 4, 1))
    arrive_all(world, "cab")
    refused = world.told_of(rec.ReplicaRefused)
    assert refused == [
        rec.ReplicaRefused("c", "its log is good up to 1, but its low-water mark is 3; its copy must be replaced")
    ]
    assert world.opened


def test_a_replica_with_a_higher_mark_that_comes_after_the_decision_stays_out() -> None:
    """An aborted recovery marked a at 3; b and c have just decided 2."""
    storages = {"a": storage(5, 3, 3), "b": storage(4, 1, 2), "c": storage(4, 1, 2)}
    world = world_of(storages, *(state(name, 4, UNRESOLVED) for name in "abc"))
    for replica in "bc":
        world.arrive(replica)
    world.settle(lambda effect: isinstance(effect, rec.CasMetadata))
    world.arrive("a")
    world.settle()
    reason = "its low-water mark 3 is above the decided 2; its copy must be replaced"
    assert world.told_of(rec.ReplicaRefused) == [rec.ReplicaRefused("a", reason)]
    assert world.opened


def test_a_replica_marked_by_the_last_session_keeps_what_that_one_decided() -> None:
    """c was lost between its mark and the write that would have named it; 2 was copied to it from a or b."""
    world = world_of(level("ab") | {"c": storage(5, 1, 2, local=0)}, *unresolved("ab"), state("c", 3, 0))
    world.arrive("c")
    assert world.calls == [rec.AskMax("c")]
    arrive_all(world, "ab")
    assert not any(isinstance(call, rec.Truncate) and call.replica == "c" for call in world.calls)
    assert world.recovery.phase("c") is rec.ReplicaPhase.READY
    assert world.storages["c"].log == world.storages["a"].log


@pytest.mark.parametrize("same", [True, False])
def test_a_replica_marked_by_a_session_in_between_is_compared(same: bool) -> None:
    """Session 4 was open, or was aborted and decided other than session 5."""
    records = [make_record(n, 1) for n in range(2)] if same else [make_record(0, 1), make_record(1, 4)]
    storages = level("ab") | {"c": Storage(4, 1, 1, records)}
    world = world_of(storages, *unresolved("ab"), state("c", 3, 0))
    for replica in "cab":
        world.arrive(replica)
    world.settle()
    assert world.recovery.phase("c") is (rec.ReplicaPhase.READY if same else rec.ReplicaPhase.REFUSED)


def test_a_replica_marked_by_an_aborted_recovery_votes_though_it_took_no_part() -> None:
    """c was made good up to 2 by session 5, which never wrote its states; a lost its files since."""
    storages = {"a": storage(-1, -1, -1), "b": storage(4, 1, 1), "c": storage(5, 2, 2)}
    states = (state("a", 4, UNRESOLVED), state("b", 4, UNRESOLVED), state("c", 3, 0))
    world = world_of(storages, *states)
    for replica in "abc":
        world.arrive(replica)
    world.settle()
    assert world.recovery.resolved == 2
    assert world.opened


# ---- records kept by replicas nobody vouches for -------------------------------------------------


def newcomer(records: list[int], low: int) -> dict[str, Storage]:
    """Two members that hold 0..4, and a replica without an entry that was marked once."""
    return {name: storage(5, 1, 4) for name in "ab"} | {"n": Storage(2, low, low, [make_record(n) for n in records])}


def test_a_new_replica_whose_last_record_is_the_same_keeps_its_records() -> None:
    """Only what it lacks is copied."""
    storages = newcomer([], -1)
    storages["n"] = storage(2, 1, 3)
    world = world_of(storages, *unresolved("ab"))
    arrive_all(world, "abn")
    reads = [call for call in world.calls if isinstance(call, rec.ReadRecords)]
    assert reads == [rec.ReadRecords("n", "n", 1, 1), rec.ReadRecords("a", "n", 1, 1), rec.ReadRecords("a", "n", 2, 3)]
    assert world.recovery.phase("n") is rec.ReplicaPhase.READY


def test_a_comparison_with_an_undecided_record_is_made_again() -> None:
    """The record of a is not decided yet; once it is, the difference counts."""
    storages = newcomer([0, 1], 1)
    world = world_of(storages, *unresolved("ab"))
    for replica in "an":
        world.arrive(replica)
        world.settle()
    assert world.recovery.phase("n") is rec.ReplicaPhase.IDLE
    assert world.told == []
    arrive_all(world, "b")
    assert world.told_of(rec.ReplicaRefused) == [
        rec.ReplicaRefused("n", "its record 1 is not the one of a; its copy must be replaced")
    ]


def test_a_new_replica_that_cannot_read_its_own_record_stays_out() -> None:
    """There is nothing to compare."""
    world = world_of(newcomer([0, 1], 1), *unresolved("ab"))
    arrive_all(world, "ab")
    world.arrive("n")
    world.run(world.pending[0])
    world.pending.clear()
    world.tell(rec.RecordsRead("n", "n", ()))
    assert world.told[-1] == rec.ReplicaRefused("n", "it does not give out its own record 1")


def test_a_member_that_cannot_read_the_record_to_compare_with_keeps_a_new_replica_out() -> None:
    """Nobody can tell whether it is good."""
    world = world_of(newcomer([0, 1], 1), *unresolved("ab"))
    arrive_all(world, "ab")
    world.arrive("n")
    world.run(world.pending[0])
    world.run(world.pending[0])
    world.pending.clear()
    world.tell(rec.RecordsRead("a", "n", ()))
    assert world.told[-1] == rec.ReplicaRefused("n", "a does not give out record 1")


def test_a_comparison_goes_to_another_member_when_one_is_lost() -> None:
    """While it is asked, and before it is asked."""
    storages = {name: storage(5, 1, 4) for name in "abcd"} | {"n": storage(2, 1, 3)}
    world = world_of(storages, *unresolved("abcd"))
    arrive_all(world, "abcd")
    world.arrive("n")
    world.run(world.pending[0])
    assert world.pending == [rec.ReadRecords("n", "n", 1, 1)]
    world.fail("a")
    assert world.pending == [rec.ReadRecords("n", "n", 1, 1)]
    world.run(world.pending[0])
    assert world.pending == [rec.ReadRecords("n", "n", 1, 1)]
    world.run(world.pending[0])
    assert world.pending == [rec.ReadRecords("b", "n", 1, 1)]
    world.fail("b")
    assert world.pending == [rec.ReadRecords("n", "n", 1, 1)]
    world.settle()
    assert world.recovery.phase("n") is rec.ReplicaPhase.READY


# ---- waiting -----------------------------------------------------------------------------------


def test_waiting_is_reported_when_it_takes_long_and_taken_back_when_it_ends() -> None:
    """First for anybody, then for the one whose copy may hold what was committed."""
    storages = {"a": storage(5, 1, 4), "b": storage(5, 1, 3), "c": storage(5, 1, 3)}
    world = world_of(storages, *unresolved("abcx"), assigned="abc")
    assert world.recovery.deadline() is None
    world.tell(rec.Tick())
    assert world.recovery.deadline() == 1000
    world.now = 999
    world.tell(rec.Tick())
    assert world.told == []
    world.now = 1000
    world.tell(rec.Tick())
    away = "(not connected, or out of service)"
    nobody = f"waits for a replica of the last session: a {away}, b {away}, c {away}, "
    left = "x (not assigned any more; `waltz zookeeper assign-partition` assigns it again)"
    assert world.told == [rec.RecoveryStuck(nobody + left)]
    assert world.recovery.deadline() is None
    world.arrive("a")
    assert world.told[-1] == rec.RecoveryUnstuck()
    world.settle()
    reason = f"transactions 2..4 may be committed or not, and more may be: a ends at 4; waits for b {away}, "
    assert stuck_reason(world) == reason + f"c {away}, " + left
    arrive_all(world, "b")
    assert stuck_reason(world).startswith("transactions 2..4 may be committed or not, and more may be: a ends at 4, b")
    arrive_all(world, "c")
    assert world.opened
    assert world.recovery.deadline() is None


def test_waiting_names_a_copy_that_does_not_count() -> None:
    """c is older than the states say."""
    world = world_of(level("ab") | {"c": storage(3, 0, 0)}, *unresolved("abc"))
    arrive_all(world, "ac")
    assert "c (its copy is older than it should be, and does not count)" in stuck_reason(world)


def test_waiting_with_an_empty_tail_says_that_more_may_be_committed() -> None:
    """a ends at its own mark."""
    world = world_of({"a": storage(5, 2, 2)} | level("bc"), *unresolved("abc"))
    arrive_all(world, "a")
    assert stuck_reason(world).startswith("later transactions than 2 may be committed: a ends at 2; waits for b")


def test_waiting_for_a_quorum_after_the_decision_is_reported() -> None:
    """One old replica decided; two new ones are to come."""
    world = world_of(level("a") | {name: storage(-1, -1, -1) for name in "de"}, *unresolved("a"))
    arrive_all(world, "a")
    assert world.recovery.resolved == 2
    assert stuck_reason(world) == "1 of 2 replicas needed are there; waits for d, e"


def test_waiting_for_the_first_quorum_is_reported() -> None:
    """One new replica of three."""
    world = world_of({name: storage(-1, -1, -1) for name in "abc"})
    arrive_all(world, "a")
    assert stuck_reason(world) == "1 of 2 replicas needed are there; waits for b, c"


# ---- operators ---------------------------------------------------------------------------------


def test_transactions_without_metadata_wait_for_an_operator() -> None:
    """The reason names who has them, and of which session."""
    world = world_of({"a": storage(3, 1, 2), "b": storage(5, 3, 6), "c": storage(-1, -1, -1)})
    arrive_all(world, "abc")
    assert "there are transactions on a (session 3, mark 1), b (session 5, mark 3)" in stuck_reason(world)


def test_records_without_a_mark_count_as_lost_metadata_too() -> None:
    """A partition whose only session never moved its mark."""
    world = world_of({name: storage(0, -1, 4) for name in "abc"})
    arrive_all(world, "ab")
    assert {world.recovery.phase(name) for name in "ab"} == {rec.ReplicaPhase.HELD}
    stuck_reason(world)


def test_an_empty_start_waits_when_a_third_replica_holds_another_life() -> None:
    """Two new replicas were about to start an empty partition."""
    world = world_of({"a": storage(-1, -1, -1), "b": storage(-1, -1, -1), "c": storage(5, 3, 6)})
    for replica in "ab":
        world.arrive(replica)
    world.settle(lambda effect: isinstance(effect, rec.SetLowWaterMark))
    world.arrive("c")
    world.settle()
    assert not world.opened
    assert stuck_reason(world).startswith("the partition is about to start empty, but there are transactions on c")
    assert world.storages["c"].max == 6


def test_waiting_that_ends_with_a_failure_is_not_taken_back() -> None:
    """The failure says enough."""
    world = world_of(level(), *unresolved("abc"))
    arrive_all(world, "a")
    stuck_reason(world)
    world.fail("a")
    assert [type(effect) for effect in world.told] == [rec.RecoveryStuck, rec.RecoveryFailed]


# ---- as 0.13.2 ---------------------------------------------------------------------------------


def test_as_0_13_2_copies_run_on_after_an_abort() -> None:
    """server-D7: an abort is noticed between the steps of the loop only."""
    storages = {"a": storage(5, 1, 4), "b": storage(5, 1, 2), "c": storage(5, 1, 2)}
    world = world_of(storages, *unresolved("abcde"), kind=Recovery0132, copy_count_max=1)
    for replica in "abc":
        world.arrive(replica)
        world.settle(copying)
    world.fail("c")
    assert world.told == [rec.RecoveryFailed("replica c failed: injected")]
    assert world.recovery.phase("b") is rec.ReplicaPhase.COPYING
    world.run(world.pending[0])
    world.run(world.pending[0])
    assert storages["b"].max == 3
    world.fail("b")
    assert world.recovery.phase("b") is rec.ReplicaPhase.FAILED
    assert len(world.told) == 1


def test_as_0_13_2_a_mark_under_way_is_still_set_after_an_abort() -> None:
    """Then its replica fails like the others."""
    world = world_of(level(), *unresolved("abc"), kind=Recovery0132)
    for replica in "ab":
        world.arrive(replica)
    world.run(world.pending[0])
    world.run(world.pending[0])
    assert {world.recovery.phase(name) for name in "ab"} == {rec.ReplicaPhase.MARKING}
    world.fail("b")
    world.settle()
    assert world.recovery.phase("a") is rec.ReplicaPhase.FAILED
    assert world.storages["a"].session == _SESSION


def test_as_0_13_2_a_late_failure_is_silent_and_final() -> None:
    """server-D8: whoever arrives later fails at once."""
    world = world_of(level("abcde"), *unresolved("abcde"), kind=Recovery0132)
    arrive_all(world, "abc")
    world.arrive("d")
    world.fail("d")
    arrive_all(world, "e")
    assert world.recovery.failed
    assert world.told_of(rec.RecoveryFailed) == []
    assert world.recovery.phase("e") is rec.ReplicaPhase.FAILED


@pytest.mark.parametrize("on", [False, True])
def test_closing_marks_are_believed_only_up_to_the_own_mark(on: bool) -> None:
    """E3': c was marked at 1 by session 5 and is listed with session 4 and closing mark 2."""
    storages = level("ab") | {"c": storage(5, 1, 2)}
    states = (*(state(name, 6, UNRESOLVED) for name in "ab"), state("c", 4, 2))
    world = world_of(storages, *states, kind=Recovery if on else Recovery0132)
    world.arrive("c")
    assert world.calls == [rec.Truncate("c", 1 if on else 2)]


def test_a_replica_that_began_where_the_log_does_is_not_cut_below_that() -> None:
    """It was told where to begin, and not marked before that session ended: its own mark is lower (seed 95302684)."""
    metadata = PartitionMetadata(1, _SESSION, unresolved("ab"))
    machine = Recovery(PARTITION, _SESSION, 1, metadata, 1, ("a", "b", "c"))
    out: list[rec.Effect] = []
    machine.step(0, [rec.ReplicaUp("c", SessionInfo(-1, -1, -1), log_start=6, movable=True)], out)
    assert out == [rec.Truncate("c", 5)]


def test_a_session_number_that_was_given_out_before_is_not_used_again() -> None:
    """The metadata was set back to before session 6, which had marked a (seed 97000149)."""
    metadata = PartitionMetadata(1, _SESSION, ())
    machine = Recovery(PARTITION, _SESSION, 1, metadata, 1, ("a", "b", "c"))
    out: list[rec.Effect] = []
    machine.step(0, [rec.ReplicaUp("b", SessionInfo(-1, -1, -1), fence=_SESSION)], out)
    assert out == [rec.AskMax("b")]
    machine.step(0, [rec.ReplicaUp("a", SessionInfo(_SESSION, -1, -1), fence=_SESSION)], out)
    (failed,) = out[1:]
    assert isinstance(failed, rec.RecoveryFailed)
    assert failed == rec.RecoveryFailed(
        "replica a was marked by another session 6: the metadata was set back", fence=_SESSION
    )


# ---- a source that cannot give out a record -------------------------------------------------------


def test_a_source_that_is_damaged_is_put_aside_for_that_record_and_another_one_asked() -> None:
    """It stays a member; once there is progress it may be asked again."""
    world = world_of(level("ab") | {"c": storage(5, 0, 0)}, *unresolved("ab"), state("c", 5, 0), assigned="abc")
    arrive_all(world, "ab")
    world.arrive("c")
    world.settle(held=copying)
    (read,) = (effect for effect in world.pending if isinstance(effect, rec.ReadRecords))
    other = {"a": "b", "b": "a"}[read.source]
    world.deny_reads()
    (again,) = (effect for effect in world.pending if isinstance(effect, rec.ReadRecords))
    assert (again.source, again.first) == (other, read.first)
    world.settle()
    assert world.told[-1] == rec.ReplicaReady("c", 3)
    assert not world.recovery.failed


def test_a_replica_that_was_copied_to_is_a_source_itself() -> None:
    storages = level("abc") | {"d": storage(5, 0, 0), "e": storage(5, 0, 0)}
    world = world_of(storages, *unresolved("abc"), state("d", 5, 0), state("e", 5, 0), assigned="abcde")
    arrive_all(world, "abcd")
    world.arrive("e")
    sources = []
    for _ in range(4):
        world.settle(held=copying)
        sources += [effect.source for effect in world.pending if isinstance(effect, rec.ReadRecords)]
        world.deny_reads()
    assert sorted(sources) == ["a", "b", "c", "d"]


def test_a_record_that_no_source_gives_out_is_said_once_and_asked_for_again() -> None:
    """The others go on, and the replica comes in when one of them can read it again."""
    world = world_of(level("ab") | {"c": storage(5, 0, 0)}, *unresolved("ab"), state("c", 5, 0), assigned="abc")
    arrive_all(world, "ab")
    world.arrive("c")
    for _ in range(3):
        world.settle(held=copying)
        world.deny_reads()
        world.settle(held=copying)
        world.deny_reads()
        assert not world.pending
        due = world.recovery.deadline()
        assert due is not None
        world.now = due
        world.tell(rec.Tick())
    assert world.told_of(rec.CopyBlocked) == [rec.CopyBlocked("c", "transaction 1 cannot be read from a, b")]
    world.settle()
    assert world.told[-1] == rec.ReplicaReady("c", 3)


def test_a_record_that_no_source_gives_out_for_a_comparison_is_said_once_and_asked_for_again() -> None:
    """Whose log nobody vouches for stays outside meanwhile, and its operator is told why."""
    storages = newcomer([], -1)
    storages["n"] = storage(2, 1, 3)
    world = world_of(storages, *unresolved("ab"))
    arrive_all(world, "ab")
    world.arrive("n")

    def deny() -> None:
        """The reads of a and b that hang are refused; n reads its own."""
        world.settle(held=lambda effect: isinstance(effect, rec.ReadRecords) and effect.source != "n")
        world.deny_reads()

    for _ in range(2):
        deny()
        deny()
        deny()
        assert not world.pending
        due = world.recovery.deadline()
        assert due is not None
        world.now = due
        world.tell(rec.Tick())
    assert world.told_of(rec.CopyBlocked) == [rec.CopyBlocked("n", "transaction 1 cannot be read from a, b")]
    world.settle()
    assert world.told[-1] == rec.ReplicaReady("n", 5)


def test_sources_that_are_damaged_in_different_records_serve_together_without_a_pause() -> None:
    """A source that is put aside for one record is asked for the next one."""
    world = world_of(level("ab") | {"c": storage(5, 0, 0)}, *unresolved("ab"), state("c", 5, 0), assigned="abc")
    arrive_all(world, "ab")
    world.arrive("c")
    damaged = {"a": 1, "b": 2}
    while not world.told_of(rec.ReplicaReady)[2:]:
        world.settle(held=lambda effect: isinstance(effect, rec.ReadRecords))
        for read in world.take_reads():
            if damaged[read.source] == read.first:
                world.tell(rec.RecordsDenied(read.source, "c", read.first))
            else:  # one, as more would end with a damaged one or the end
                world.tell(rec.RecordsRead(read.source, "c", (make_record(read.first, 1),)))
        assert world.pending or world.told_of(rec.ReplicaReady)[2:], "it waits"
    assert world.told_of(rec.CopyBlocked) == []


def test_a_node_of_0_13_2_that_needs_what_was_given_up_is_kept_out_and_its_operator_told_what_to_do() -> None:
    """It cannot begin where the others do; the session opens without it."""
    world = world_of(level("ab") | {"c": storage(5, -1, -1)}, *unresolved("ab"), state("c", 5, -1), assigned="abc")
    for replica in "ab":
        world.arrive(replica, log_start=2, movable=True)
        world.settle()
    world.arrive("c")
    world.settle()
    reason = "the log of the others begins at 2, and a node of 0.13.2 cannot begin there"
    assert world.told_of(rec.ReplicaRefused) == [
        rec.ReplicaRefused("c", f"{reason}; assign a storage node that can in its place")
    ]
    assert world.opened

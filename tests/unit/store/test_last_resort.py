"""What an operator's word makes of metadata, and that the next recovery acts on it as he was told."""

from __future__ import annotations

import pytest

from tests.storage_desk import some
from waltz_core.base.errors import StorageError
from waltz_core.base.ids import ReplicaId
from waltz_core.base.log import SessionInfo
from waltz_core.store import recovery_events as rec
from waltz_core.store.last_resort import Plan, ReplicaReport, confirm_metadata, unsafe_recovery
from waltz_core.store.recovery import Recovery
from waltz_core.zookeeper.znodes import EMPTY_METADATA, UNRESOLVED, PartitionMetadata, ReplicaState

REPLICAS = ("a:1", "b:1", "c:1")


def state(name: str, session: int, mark: int = UNRESOLVED) -> ReplicaState:
    return ReplicaState(ReplicaId(0, name), session, mark)


def witness(name: str, session: int, mark: int, end: int, *, sound: bool = True, fence: int = -1) -> ReplicaReport:
    return ReplicaReport(name, SessionInfo(session, mark, mark), fence, end, sound)


def recovered(plan: Plan, assigned: tuple[str, ...], ends: dict[str, ReplicaReport]) -> int | None:
    """Where the next session lets the log end, if the replicas are as the witnesses said."""
    metadata = PartitionMetadata(7, plan.metadata.session_id + 1, plan.metadata.replica_states)
    machine = Recovery(0, metadata.session_id, 7, metadata, 1, assigned)
    mark_of = {name: one.max_id for name, one in ends.items()}
    events: list[rec.Event] = [rec.ReplicaUp(name, one.info) for name, one in ends.items()]
    for _ in range(200):
        out: list[rec.Effect] = []
        machine.step(0, events, out)
        events = []
        for effect in out:
            match effect:
                case rec.AskMax(name):
                    events.append(rec.MaxKnown(name, mark_of[name]))
                case rec.Truncate(name, mark):
                    mark_of[name] = min(mark_of[name], mark)
                    events.append(rec.MaxKnown(name, mark_of[name]))
                case rec.SetLowWaterMark(name, _):
                    events.append(rec.Marked(name))
                case rec.SessionRecovered(mark):
                    return mark
                case rec.CasMetadata():
                    events.append(rec.CasDone(2))
                case rec.ReadRecords(source, target, first, count):
                    events.append(rec.RecordsRead(source, target, some(first, count)))
                case rec.WriteRecords(target, records):
                    mark_of[target] = records[-1].transaction_id
                    events.append(rec.RecordsWritten(target, len(records)))
        if not events:
            break
    return machine.resolved


def test_lost_metadata_is_rebuilt_so_that_a_quorum_decides_as_ever() -> None:
    ends = {
        "a:1": witness("a:1", 5, 90, 105),
        "b:1": witness("b:1", 5, 90, 103),
        "c:1": witness("c:1", 4, 80, 85),
    }
    plan = confirm_metadata(0, EMPTY_METADATA, REPLICAS, list(ends.values()))
    assert plan.metadata.session_id == 6
    assert plan.metadata.replica_states == tuple(state(name, 5) for name in REPLICAS)
    assert recovered(plan, REPLICAS, ends) in (103, 105)


def test_metadata_that_was_set_back_is_brought_up_to_the_highest_fence() -> None:
    old = PartitionMetadata(3, 4, tuple(state(name, 4) for name in REPLICAS))
    present = [witness("a:1", 9, 90, 105, fence=11), witness("b:1", 9, 90, 103)]
    plan = confirm_metadata(0, old, REPLICAS, present)
    assert (plan.metadata.generation, plan.metadata.session_id) == (3, 12)
    assert {one.session_id for one in plan.metadata.replica_states} == {9}


def test_a_session_that_ended_while_it_brought_a_replica_level_does_not_count_as_the_last() -> None:
    """Transaction 130 was committed on b and c; the session after theirs marked a, which lags, and b: c keeps it."""
    old = PartitionMetadata(3, 7, tuple(state(name, 0) for name in REPLICAS))
    lagging = ReplicaReport("a:1", SessionInfo(11, 130, 124), 11, 124, True)
    ends = {"a:1": lagging, "b:1": witness("b:1", 11, 130, 130), "c:1": witness("c:1", 10, 129, 130)}
    plan = confirm_metadata(0, old, REPLICAS, list(ends.values()))
    assert plan.metadata.session_id == 12
    assert {one.session_id for one in plan.metadata.replica_states} == {10}
    assert "session 11 marked a:1, b:1, but ended before a majority held what it had decided" in plan.lines
    assert recovered(plan, REPLICAS, ends) == 130
    for one in ("a:1", "b:1"):
        assert recovered(plan, REPLICAS, {name: ends[name] for name in (one, "c:1")}) == 130


def test_it_counts_where_it_appended_or_where_the_one_who_is_silent_may_have_completed_it() -> None:
    lagging = ReplicaReport("a:1", SessionInfo(11, 130, 124), 11, 124, True)
    older = witness("c:1", 10, 129, 130)
    for reports in (
        [lagging, witness("b:1", 11, 130, 131), older],
        [lagging, witness("b:1", 11, 130, 130)],
        [lagging, witness("b:1", 11, 130, 130), ReplicaReport("c:1", SessionInfo(11, 130, 124), 11, 124, True)],
    ):
        plan = confirm_metadata(0, EMPTY_METADATA, REPLICAS, reports)
        assert {one.session_id for one in plan.metadata.replica_states} == {11}


def test_it_counts_where_a_majority_is_just_level_though_an_older_tail_is_longer() -> None:
    """c missed session 11, which decided 130 and appended nothing yet: its tail of session 10 is nobody's."""
    ends = {name: witness(name, 11, 130, 130) for name in ("a:1", "b:1")} | {"c:1": witness("c:1", 10, 129, 135)}
    plan = confirm_metadata(0, EMPTY_METADATA, REPLICAS, list(ends.values()))
    assert {one.session_id for one in plan.metadata.replica_states} == {11}
    assert recovered(plan, REPLICAS, ends) == 130


def test_it_counts_where_the_one_who_is_silent_may_be_level_though_an_older_session_had_a_majority() -> None:
    lagging = ReplicaReport("c:1", SessionInfo(11, 130, 124), 11, 124, True)
    reports = [witness("a:1", 11, 130, 130), witness("b:1", 11, 130, 130), lagging, witness("d:1", 10, 129, 135)]
    plan = confirm_metadata(0, EMPTY_METADATA, (*REPLICAS, "d:1", "e:1"), reports)
    assert {one.session_id for one in plan.metadata.replica_states} == {11}


def test_of_sessions_that_all_ended_before_a_majority_was_level_the_newest_counts() -> None:
    lagging = [ReplicaReport(name, SessionInfo(11, 130, 124), 11, 124, True) for name in ("a:1", "b:1")]
    older = ReplicaReport("c:1", SessionInfo(10, 128, 120), 10, 120, True)
    plan = confirm_metadata(0, EMPTY_METADATA, REPLICAS, [*lagging, older])
    assert {one.session_id for one in plan.metadata.replica_states} == {11}
    assert not any("session 11 marked" in line for line in plan.lines)


def test_metadata_that_was_set_back_is_seen_when_the_session_number_was_given_out_again() -> None:
    """Set back from session 9 to 8, the next server announced 9 once more."""
    old = PartitionMetadata(3, 9, tuple(state(name, 8) for name in REPLICAS))
    ends = {name: witness(name, 9, 90, end, fence=9) for name, end in (("a:1", 105), ("b:1", 103))}
    plan = confirm_metadata(0, old, REPLICAS, list(ends.values()))
    assert plan.metadata.session_id == 10
    assert {one.session_id for one in plan.metadata.replica_states} == {9}
    assert recovered(plan, REPLICAS, ends) in (103, 105)


def test_a_session_that_marked_and_came_to_nothing_is_no_reason_to_confirm() -> None:
    old = PartitionMetadata(3, 9, tuple(state(name, 8) for name in REPLICAS))
    with pytest.raises(StorageError, match="nothing to confirm: the metadata names session 9"):
        confirm_metadata(0, old, REPLICAS, [witness(name, 9, 90, 90, fence=9) for name in REPLICAS])


def test_metadata_that_is_sound_is_not_confirmed() -> None:
    good = PartitionMetadata(3, 9, tuple(state(name, 9) for name in REPLICAS))
    with pytest.raises(StorageError, match="nothing to confirm"):
        confirm_metadata(0, good, REPLICAS, [witness("a:1", 9, 90, 105), witness("b:1", 9, 90, 103)])


def test_one_replica_of_three_does_not_know_what_the_last_session_was() -> None:
    with pytest.raises(StorageError, match="a majority is needed; not: b:1, c:1"):
        confirm_metadata(0, EMPTY_METADATA, REPLICAS, [witness("a:1", 5, 90, 105)])


def test_the_longest_log_that_is_left_becomes_the_log_and_what_is_given_up_is_listed() -> None:
    metadata = PartitionMetadata(3, 6, tuple(state(name, 5) for name in REPLICAS))
    a = witness("a:1", 5, 90, 102)
    limbo = witness("b:1", 5, 90, 105, sound=False)
    plan = unsafe_recovery(0, metadata, REPLICAS, [a, limbo])
    assert plan.metadata.replica_states == (state("a:1", 5),)
    assert plan.metadata.session_id == 7
    text = "\n".join(plan.lines)
    assert "given up: transactions 103, 104, 105" in text
    assert "every transaction after 102 that only b:1, c:1 may hold" in text
    fresh = witness("d:1", -1, -1, -1)
    assert recovered(plan, ("a:1", "d:1", "e:1"), {"a:1": a, "d:1": fresh}) == 102


def test_nothing_is_given_up_of_a_session_that_is_open_and_has_its_quorum() -> None:
    """Its server goes on committing with b and c; named alone, a would have cut all that from the log."""
    states = tuple(state(name, 5) for name in REPLICAS)
    reports = [witness("a:1", 5, 90, 102), witness("b:1", 5, 90, 102)]
    with pytest.raises(StorageError, match=r"session 5 was opened, no recovery waits, and 2 of its 3 replicas are"):
        unsafe_recovery(0, PartitionMetadata(3, 5, states), REPLICAS, reports)
    unsafe_recovery(0, PartitionMetadata(3, 5, states), REPLICAS, reports[:1])
    unsafe_recovery(0, PartitionMetadata(3, 6, states), REPLICAS, reports)


def test_a_replica_that_was_marked_later_counts_up_to_its_mark_only() -> None:
    metadata = PartitionMetadata(3, 6, tuple(state(name, 5) for name in REPLICAS))
    a, b = witness("a:1", 5, 90, 102), witness("b:1", 6, 101, 110)
    plan = unsafe_recovery(0, metadata, REPLICAS, [a, b])
    assert plan.metadata.replica_states == (state("a:1", 5),)
    assert "given up: transactions 103" in "\n".join(plan.lines)


def test_an_older_replica_is_taken_if_nobody_of_the_last_session_is_left() -> None:
    metadata = PartitionMetadata(3, 6, (state("a:1", 5), state("b:1", 5), state("c:1", 3, 80)))
    c = witness("c:1", 3, 50, 85)
    plan = unsafe_recovery(0, metadata, REPLICAS, [c])
    assert plan.metadata.replica_states == (state("c:1", 3),)
    assert recovered(plan, ("c:1",), {"c:1": c}) == 85


def test_a_longer_log_of_who_took_no_part_in_the_last_session_is_not_the_log() -> None:
    """c was closed at 80: what it holds above that was never committed, and a holds what was committed in its place."""
    metadata = PartitionMetadata(3, 6, (state("a:1", 5), state("b:1", 5), state("c:1", 3, 80)))
    plan = unsafe_recovery(0, metadata, REPLICAS, [witness("a:1", 5, 90, 95), witness("c:1", 3, 50, 120)])
    assert plan.metadata.replica_states == (state("a:1", 5),)
    # The same where the metadata name nobody, and cannot be confirmed as b does not answer.
    plan = unsafe_recovery(0, EMPTY_METADATA, REPLICAS, [witness("a:1", 5, 95, 95), witness("c:1", 3, 50, 120)])
    assert plan.metadata.replica_states == (state("a:1", 5),)


def test_a_replica_that_was_set_back_is_taken_as_what_it_is_if_nobody_else_is_left() -> None:
    metadata = PartitionMetadata(3, 6, tuple(state(name, 5) for name in REPLICAS))
    c = witness("c:1", 3, 50, 85)
    plan = unsafe_recovery(0, metadata, REPLICAS, [c])
    assert plan.metadata.replica_states == (state("c:1", 3),)
    assert recovered(plan, ("c:1",), {"c:1": c}) == 85


def test_nothing_is_recovered_from_nobody() -> None:
    metadata = PartitionMetadata(3, 6, tuple(state(name, 5) for name in REPLICAS))
    with pytest.raises(StorageError, match="no replica of the last session is in service"):
        unsafe_recovery(0, metadata, REPLICAS, [witness("a:1", 5, 90, 102, sound=False)])
    both = [witness("a:1", 5, 90, 102), witness("b:1", 5, 90, 103)]
    with pytest.raises(StorageError, match="confirm-metadata` comes first"):
        unsafe_recovery(0, EMPTY_METADATA, REPLICAS, both)


def test_a_recovery_that_came_to_nothing_is_not_the_last_session() -> None:
    """Only a:1 was marked by it; the others would be cut to their marks and not count (seed 95001946)."""
    ends = {"a:1": witness("a:1", 2, 6, 6), "b:1": witness("b:1", 0, -1, 6), "c:1": witness("c:1", 0, -1, 6)}
    plan = confirm_metadata(0, EMPTY_METADATA, REPLICAS, list(ends.values()))
    assert plan.metadata.replica_states == tuple(state(name, 0) for name in REPLICAS)
    assert plan.metadata.session_id == 3
    assert "session 2 is known to a:1 alone and appended nothing there: it came to nothing" in plan.lines
    assert recovered(plan, REPLICAS, ends) == 6


def test_what_a_session_appended_counts_although_nobody_else_knows_it() -> None:
    """b:1 was in session 9 too, and was wiped, or its limbo accepted (seed 95210245)."""
    ends = {"a:1": witness("a:1", 9, 115, 146), "b:1": witness("b:1", -1, 7, 7), "c:1": witness("c:1", 8, 80, 115)}
    plan = confirm_metadata(0, EMPTY_METADATA, REPLICAS, list(ends.values()))
    assert {one.session_id for one in plan.metadata.replica_states} == {9}
    assert recovered(plan, REPLICAS, ends) is None  # c:1 cannot tell, so an operator must
    plan = unsafe_recovery(0, plan.metadata, REPLICAS, list(ends.values()))
    assert plan.metadata.replica_states == (state("a:1", 9),)
    assert recovered(plan, REPLICAS, ends) == 146


def test_who_can_tell_whether_a_session_appended_is_named() -> None:
    a, c = witness("a:1", 5, 100, 50), witness("c:1", 3, 40, 100)
    with pytest.raises(StorageError, match=r"session 5 is known to a:1; whether .*, only b:1 can tell"):
        confirm_metadata(0, EMPTY_METADATA, REPLICAS, [a, c])
    # If it is gone for good: a:1 was marked and not copied to, so it does not hold what it was marked with.
    plan = unsafe_recovery(0, EMPTY_METADATA, REPLICAS, [a, c])
    assert plan.metadata.replica_states == (state("c:1", 3),)
    assert recovered(plan, ("c:1",), {"c:1": c}) == 100


def test_a_node_that_gave_the_partition_away_knows_of_a_later_session() -> None:
    """d:1 took c:1's place, and session 5 was one of a:1 and c:1."""
    now = ("a:1", "b:1", "d:1")
    old = [witness("a:1", 5, 90, 105), witness("b:1", 4, 80, 90), witness("d:1", -1, -1, -1)]
    with pytest.raises(StorageError, match=r"session 5 is known to a:1, c:1; .* only c:1 can tell: .* assign them"):
        confirm_metadata(0, EMPTY_METADATA, now, [*old, witness("c:1", 5, 90, 105)])

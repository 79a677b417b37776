"""The way of a partition to its store session, by ZooKeeper alone."""

from __future__ import annotations

import pytest

from tests.unit.server.test_partition import NODE, PATH, Bench, append
from waltz_core.base.edge import Level, Report, ZkCreate, ZkDone, ZkError, ZkFailed, ZkGet, ZkSet, ZkStat
from waltz_core.base.ids import ReplicaId
from waltz_core.base.log import SessionInfo
from waltz_core.server.context import PartitionAlarm, PartitionDue
from waltz_core.server.ownership import OwnershipPhase
from waltz_core.store.calls import LinkDown, LinkUnwanted, LinkUp, LinkWanted, StorageCall
from waltz_core.wire import storage_messages as storage
from waltz_core.zookeeper.znodes import (
    EMPTY_METADATA,
    UNRESOLVED,
    PartitionMetadata,
    ReplicaState,
    encode_partition_metadata,
)

RETRY = PartitionAlarm(0, PartitionDue.RETRY)
LOOK = PartitionAlarm(0, PartitionDue.LOOK)


def waiting() -> Bench:
    """ZooKeeper did not answer: the metadata is to be read again later."""
    bench = Bench()
    bench.answer_zk(ZkFailed(bench.assign().ticket, ZkError.UNAVAILABLE))
    out, clients, nodes = bench.work()
    assert (out, clients, nodes) == ([], [], [])  # that ZooKeeper is away is said once for the whole process
    assert bench.partition.phase is OwnershipPhase.WAITING
    return bench


def test_after_a_pause_the_metadata_is_read_again() -> None:
    bench = waiting()
    due = bench.context.alarms.at(RETRY)
    assert due is not None
    bench.ring(due)
    assert bench.work() == ([ZkGet(2, PATH)], [], [])
    assert bench.context.alarms.at(RETRY) is None


def test_metadata_that_cannot_be_used_is_read_ever_more_rarely_and_reported_once() -> None:
    """Before, every attempt had a line of its own."""
    bench = Bench()
    bench.assign()
    now, lines = 0, []
    for ticket in range(1, 12):
        bench.now = now
        bench.answer_zk(ZkFailed(ticket, ZkError.REFUSED))
        assert bench.partition.phase is OwnershipPhase.WAITING
        due = bench.context.alarms.at(RETRY)
        assert due is not None
        pause, now = due - now, due
        bench.ring(now)
        lines += [effect for effect in bench.work()[0] if isinstance(effect, Report)]
    assert 10_000 <= pause <= 20_000
    assert lines == [Report(Level.WARNING, f"partition 0: ZooKeeper, {PATH}: refused")]


def test_a_storage_node_that_answers_again_ends_the_back_off() -> None:
    bench = waiting()
    bench.partition.link_up(1, LinkUp("s0:1"))
    assert bench.work() == ([ZkGet(2, PATH)], [], [])
    assert bench.context.alarms.at(RETRY) is None


def test_a_partition_that_was_closed_reads_nothing_any_more() -> None:
    """Before, the pause that was under way ended with a read, and the partition came back to life."""
    bench = waiting()
    bench.partition.close(1)
    out, _, _ = bench.work()
    assert out == []
    assert bench.context.alarms.next() is None
    assert bench.partition.phase is OwnershipPhase.CLOSED


def test_metadata_that_is_not_there_is_created_and_then_read() -> None:
    bench = Bench()
    bench.answer_zk(ZkFailed(bench.assign().ticket, ZkError.NO_NODE))
    assert bench.work() == ([ZkCreate(2, PATH, encode_partition_metadata(EMPTY_METADATA))], [], [])
    bench.answer_zk(ZkFailed(2, ZkError.NODE_EXISTS))
    assert bench.work() == ([ZkGet(3, PATH)], [], [])


def test_a_session_is_announced_on_the_version_that_was_read_and_made_when_that_is_written() -> None:
    bench = Bench()
    stored = PartitionMetadata(2, 5, ())
    bench.answer_zk(ZkDone(bench.assign().ticket, ZkStat(17, 0), encode_partition_metadata(stored)))
    announced = encode_partition_metadata(PartitionMetadata(3, 6, ()))
    assert bench.work() == ([ZkSet(2, PATH, announced, 17)], [], [])
    assert bench.partition.session is None
    bench.answer_zk(ZkDone(2, ZkStat(18, 0)))
    assert bench.work() == ([], [], [LinkWanted("s0:1")])
    assert bench.partition.phase is OwnershipPhase.RECOVERING


def test_whoever_loses_the_announcement_reads_again() -> None:
    bench = Bench()
    bench.answer_zk(ZkDone(bench.assign().ticket, ZkStat(0, 0), encode_partition_metadata(EMPTY_METADATA)))
    bench.work()
    bench.answer_zk(ZkFailed(2, ZkError.BAD_VERSION))
    assert bench.work() == ([ZkGet(3, PATH)], [], [])


@pytest.mark.parametrize("data", [b"?", encode_partition_metadata(PartitionMetadata(4, 0, ()))])
def test_metadata_of_a_newer_owner_and_rubbish_are_left_alone(data: bytes) -> None:
    bench = Bench()
    bench.answer_zk(ZkDone(bench.assign().ticket, ZkStat(0, 0), data))
    out, clients, nodes = bench.work()
    assert [type(effect) for effect in out] == [Report]
    assert (clients, nodes) == ([], [])
    assert bench.context.alarms.at(RETRY) is not None


def test_behind_the_last_session_id_that_there_is_none_is_announced() -> None:
    """The server ended, and so did each one that took the partition over."""
    bench = Bench()
    bench.assign()
    stored = encode_partition_metadata(PartitionMetadata(1, 2**63 - 1, ()))
    bench.answer_zk(ZkDone(1, ZkStat(1, 0), stored))
    effects, _, _ = bench.work()
    assert not [effect for effect in effects if isinstance(effect, ZkSet)]
    assert bench.partition.phase is OwnershipPhase.WAITING


def test_while_recovery_is_stuck_the_metadata_is_looked_at_once_at_a_time() -> None:
    bench = Bench()
    bench.announce()
    bench.partition.ownership.stuck_changed(0, "no quorum")
    bench.work()
    bench.ring(2_000)
    out, _, _ = bench.work()
    looks = [effect for effect in out if isinstance(effect, ZkGet)]
    assert len(looks) == 1
    bench.ring(4_000)
    assert not [effect for effect in bench.work()[0] if isinstance(effect, ZkGet)]
    theirs = encode_partition_metadata(PartitionMetadata(3, 9, ()))
    bench.answer_zk(ZkDone(looks[0].ticket, ZkStat(2, 0), theirs))
    out, _, _ = bench.work()
    assert "the metadata in ZooKeeper is of session 9 now" in out[0].text


def test_a_look_that_fails_is_not_the_last_one_and_none_follows_the_end_of_the_session() -> None:
    bench = Bench()
    bench.announce()
    bench.partition.ownership.stuck_changed(0, "no quorum")
    bench.work()
    for now in (2_000, 4_000):
        bench.ring(now)
        (look,) = [effect for effect in bench.work()[0] if isinstance(effect, ZkGet)]
        bench.answer_zk(ZkFailed(look.ticket, ZkError.UNAVAILABLE))
    bench.partition.set_generation(4_000, 4)
    bench.work()
    assert bench.context.alarms.at(LOOK) is None


def test_states_that_the_session_wrote_itself_do_not_end_it() -> None:
    bench = Bench()
    bench.open()
    bench.partition.ownership.look_due(0)
    (look,) = [effect for effect in bench.work()[0] if isinstance(effect, ZkGet)]
    session_id = bench.partition.ownership.session_id
    ours = PartitionMetadata(3, session_id, (ReplicaState(ReplicaId(0, NODE), session_id, UNRESOLVED),))
    bench.answer_zk(ZkDone(look.ticket, ZkStat(2, 0), encode_partition_metadata(ours)))
    bench.work()
    assert bench.partition.phase is OwnershipPhase.OPEN


def test_a_session_that_was_announced_for_an_older_generation_is_not_begun() -> None:
    bench = Bench()
    bench.answer_zk(ZkDone(bench.assign().ticket, ZkStat(0, 0), encode_partition_metadata(EMPTY_METADATA)))
    bench.work()
    bench.partition.set_generation(0, 4)
    bench.answer_zk(ZkDone(2, ZkStat(1, 0)))
    assert bench.work() == ([ZkGet(3, PATH)], [], [])
    assert bench.partition.session is None


def writing_states() -> tuple[Bench, ZkSet]:
    """The only replica is level, and ZooKeeper is to name it."""
    bench = Bench()
    bench.announce()
    bench.partition.link_up(0, LinkUp(NODE))
    while True:
        out, _, nodes = bench.work()
        for effect in out:
            if isinstance(effect, ZkSet):
                return bench, effect
        for call in nodes:
            assert isinstance(call, StorageCall)
            bench.answer_node(call.ticket, bench._answer(call.message))


@pytest.mark.parametrize("read_again", [False, True])
def test_an_answer_about_the_states_of_a_session_is_not_taken_for_one_to_the_next(read_again: bool) -> None:
    bench, write = writing_states()
    ticket = write.ticket
    if read_again:
        bench.answer_zk(ZkFailed(ticket, ZkError.BAD_VERSION))
        (again,) = bench.work()[0]
        assert isinstance(again, ZkGet)
        ticket = again.ticket
    bench.partition.set_generation(0, 4)
    bench.work()
    assert bench.context.pending.take(ticket) is None


def in_flight_when_the_session_ended() -> tuple[Bench, ZkGet]:
    """Transaction 0 is committed, 1 is in flight; the metadata is read again."""
    bench = Bench()
    bench.open()
    peer = bench.mount()
    bench.work()
    bench.commit(peer, 2)
    bench.now = 5_000
    bench.partition.received(bench.now, peer, [append(3)])
    bench.work()
    bench.partition.link_down(bench.now, LinkDown(NODE, "gone"))
    return bench, next_read(bench)


def next_read(bench: Bench) -> ZkGet:
    out = bench.work()[0]
    if not any(isinstance(effect, ZkGet) for effect in out):
        due = bench.context.alarms.at(RETRY)
        assert due is not None
        bench.now = due
        bench.ring(due)
        out = bench.work()[0]
    (read,) = (effect for effect in out if isinstance(effect, ZkGet))
    return read


def announcing(bench: Bench, read: ZkGet, session_id: int, version: int) -> ZkSet:
    """What the server announces where it reads this session."""
    states = (ReplicaState(ReplicaId(0, NODE), 6, UNRESOLVED),)
    data = encode_partition_metadata(PartitionMetadata(3, session_id, states))
    bench.answer_zk(ZkDone(read.ticket, ZkStat(version, 0), data))
    (write,) = (effect for effect in bench.work()[0] if isinstance(effect, ZkSet))
    return write


@pytest.mark.parametrize("outcome", ["unknown", "aborted"])
def test_what_somebody_else_wrote_is_not_forgotten_over_announcements_of_our_own(outcome: str) -> None:
    """The next attempt found its own announcement there, and took the log of the other one for what was in flight."""
    bench, read = in_flight_when_the_session_ended()
    write = announcing(bench, read, 7, 10)  # ours was 6
    assert bench.partition.ownership.foreign
    if outcome == "unknown":
        bench.answer_zk(ZkFailed(write.ticket, ZkError.OUTCOME_UNKNOWN))
    else:
        bench.answer_zk(ZkDone(write.ticket, ZkStat(11, 0)))
        bench.work()
        bench.partition.link_up(bench.now, LinkUp(NODE, 0))
        (greeting,) = (call for call in bench.work()[2] if isinstance(call, StorageCall))
        bench.answer_node(greeting.ticket, storage.LastSessionInfoResponse(8, 0, 0, SessionInfo(6, -1, -1)))
        bench.work()
        bench.partition.link_down(bench.now, LinkDown(NODE, "gone"))
    announcing(bench, next_read(bench), 8, 11)
    assert bench.partition.ownership.foreign


def test_a_storage_node_that_holds_the_partition_no_more_is_not_wanted_any_more() -> None:
    bench = Bench()
    bench.open()
    bench.partition.set_replicas(1, ["s1:1"])
    assert LinkUnwanted(NODE) in bench.work()[2]


def test_no_session_is_announced_below_one_that_a_replica_has_answered() -> None:
    """The metadata was set back: every session under a smaller number would be refused there."""
    bench = Bench()
    bench.announce()
    bench.partition.link_up(0, LinkUp(NODE))
    _, _, (greeting,) = bench.work()
    assert isinstance(greeting, StorageCall)
    ids = greeting.message.session_id, 0, 0
    bench.answer_node(greeting.ticket, storage.FailureResponse(*ids, "session id has changed to 9"))
    bench.work()
    due = bench.context.alarms.at(RETRY)
    assert due is not None
    bench.ring(due)
    (read,) = [effect for effect in bench.work()[0] if isinstance(effect, ZkGet)]
    stored = encode_partition_metadata(PartitionMetadata(3, 1, ()))
    bench.answer_zk(ZkDone(read.ticket, ZkStat(1, 0), stored))
    (report,), _, _ = bench.work()
    assert isinstance(report, Report)
    assert "a replica answered session 9" in report.text

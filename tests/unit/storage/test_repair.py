"""Damaged records come back from other replicas, in place, and only if it is certain what they were."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage_desk import KEY, Desk, Nodes, codec_1, replica, some, text_of
from waltz_core.base.edge import Port
from waltz_core.base.log import SessionInfo
from waltz_core.storage import evidence, replica_repair, segment_opening
from waltz_core.storage import repair as repairing
from waltz_core.storage.effects import DiskRead, FaultKind, SyncFile, WriteAt
from waltz_core.storage.node import StorageNode
from waltz_core.storage.replica import State
from waltz_core.storage.segment import decode_header, encode_header
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.admin_messages import RepairOutcome
from waltz_core.wire.shared import Condition, IdRange
from waltz_testing.simulation.disk import SimDisk

SEGMENTS = {0: 0, 4: 4, 8: 8}
LAST = "0/0000000000000000008.seg"


def place(transaction_id: int) -> tuple[str, int]:
    """File and offset of a record of `Nodes`: 100 bytes each, four to a segment."""
    first = transaction_id // 4 * 4
    return f"0/{first:019d}.seg", 128 + 100 * (transaction_id - first)


def damage(nodes: Nodes, number: int, *ids: int, byte: int = 50) -> None:
    for one in ids:
        path, offset = place(one)
        nodes.desks[number].disk.flip(path, offset + byte)


def find(nodes: Nodes, number: int, *ids: int) -> None:
    """Restart a node and let it notice what is damaged; below the durable mark that takes a read."""
    nodes.restart(number)
    for one in ids:
        assert isinstance(nodes.desks[number].read(0, one), str)


def data_files(nodes: Nodes, number: int) -> dict[str, bytes]:
    return {name: data for name, data in nodes.desks[number].disk.files().items() if name.endswith(".seg")}


def log_of(nodes: Nodes, number: int, count: int = 12) -> list[Any]:
    return [nodes.desks[number].read(0, one) for one in range(count)]


def outcomes(answer: Any) -> list[tuple[int, int, int]]:
    assert isinstance(answer, admin.RepairResponse), answer
    return [(one.first_id, one.last_id, RepairOutcome(one.outcome)) for one in answer.ranges]


@pytest.mark.parametrize("byte", [0, 30, 50, 99])  # the id, the length, the data, the checksum
@pytest.mark.parametrize("ids", [(9, 11), (11,), (8, 9, 10, 11), (2, 11), (10, 11)])
def test_a_partition_in_limbo_is_repaired_to_the_byte_and_serves_again(ids: tuple[int, ...], byte: int) -> None:
    nodes = Nodes()
    before = data_files(nodes, 0)
    damage(nodes, 0, *ids, byte=byte)
    assert replica(nodes.restart(0)).state is State.LIMBO
    for one in ids:
        nodes.desks[0].read(0, one)
    answer = nodes.repair(0, 1)
    assert {outcome for _, _, outcome in outcomes(answer)} == {RepairOutcome.REPAIRED}
    assert replica(nodes.desks[0]).state is State.OPEN
    assert data_files(nodes, 0) == before
    assert replica(nodes.restart(0)).state is State.OPEN


def test_damage_found_by_a_read_is_repaired_while_the_partition_serves() -> None:
    nodes = Nodes()
    before = data_files(nodes, 0)
    damage(nodes, 0, 1, 2, 5)
    assert isinstance(nodes.desks[0].read(0, 2), str)
    assert replica(nodes.desks[0]).files.condition() is Condition.SUSPECT
    assert outcomes(nodes.repair(0, 1, 2)) == [(1, 2, RepairOutcome.REPAIRED)]
    assert isinstance(nodes.desks[0].read(0, 5), str)
    assert outcomes(nodes.repair(0, 1, 2)) == [(5, 5, RepairOutcome.REPAIRED)]
    assert replica(nodes.desks[0]).files.condition() is Condition.SOUND
    assert data_files(nodes, 0) == before


@pytest.mark.parametrize("wanted", [(1, 1), (0, 1), (3, 3), (3, 7), (2, 2), (0, 11)])
def test_a_range_that_is_asked_for_is_repaired_where_it_touches_damage(wanted: tuple[int, int]) -> None:
    """By one record, at either end of what is damaged."""
    nodes = Nodes()
    before = data_files(nodes, 0)
    damage(nodes, 0, 1, 2, 3)
    find(nodes, 0, 1, 2, 3)
    assert outcomes(nodes.repair(0, 1, 2, ranges=(IdRange(*wanted),))) == [(1, 3, RepairOutcome.REPAIRED)]
    assert data_files(nodes, 0) == before


def test_a_repair_is_listed_until_it_has_ended() -> None:
    nodes = Nodes()
    damage(nodes, 0, 9)
    node = nodes.restart(0)
    tool = codec_1(node, Port.ADMIN)
    tool.ask(admin.RepairRequest(1, 0, (nodes.endpoint(1),), ()))
    assert node.node.awaited() == ["repair from other storage nodes of partition 0"]
    node.now += 60_000  # nobody is there
    node.step()
    assert node.node.awaited() == []


def test_every_record_may_come_from_another_node() -> None:
    nodes = Nodes()
    before = data_files(nodes, 0)
    damage(nodes, 0, 8, 9, 10, 11)
    damage(nodes, 1, 8, 10)
    damage(nodes, 2, 9, 11)
    for number in range(3):
        nodes.restart(number)
    nodes.repair(0, 1, 2)
    assert data_files(nodes, 0) == before


def test_what_is_damaged_everywhere_stays_refused_and_is_said() -> None:
    nodes = Nodes()
    for number in range(3):
        damage(nodes, number, 9, 11)
    damage(nodes, 0, 10)
    for number in range(3):
        find(nodes, number, 9)
    answer = nodes.repair(0, 1, 2)
    assert outcomes(answer) == [(9, 9, RepairOutcome.NO_SOURCE)]
    assert replica(nodes.desks[0]).state is State.LIMBO
    assert isinstance(nodes.desks[0].read(0, 9), str)


def test_a_source_that_cannot_be_reached_is_named() -> None:
    nodes = Nodes()
    damage(nodes, 0, 9)
    find(nodes, 0, 9)
    nodes.unreachable = {1}
    answer = nodes.repair(0, 1)
    assert outcomes(answer) == [(9, 9, RepairOutcome.NO_SOURCE)]
    assert "node1:1: connection refused" in str(answer.message)
    assert outcomes(nodes.repair(0, 1, 2)) == [(9, 9, RepairOutcome.REPAIRED)]


def test_one_node_of_0_13_2_is_not_believed_but_two_that_agree_are() -> None:
    nodes = Nodes(legacy=(1, 2))
    damage(nodes, 0, 9)
    find(nodes, 0, 9)
    assert outcomes(nodes.repair(0, 1)) == [(9, 9, RepairOutcome.NO_SOURCE)]
    assert outcomes(nodes.repair(0, 1, 2)) == [(9, 9, RepairOutcome.REPAIRED)]


def test_two_nodes_of_0_13_2_that_disagree_are_not_believed() -> None:
    nodes = Nodes(legacy=(1, 2))
    damage(nodes, 0, 9)
    damage(nodes, 1, 9, byte=12)  # in the request id, which 0.13.2 does not notice
    find(nodes, 0, 9)
    assert outcomes(nodes.repair(0, 1, 2)) == [(9, 9, RepairOutcome.SOURCES_DISAGREE)]
    assert isinstance(nodes.desks[0].read(0, 9), str)


def test_a_node_of_another_session_gives_only_what_is_decided() -> None:
    nodes = Nodes()
    damage(nodes, 0, 9)
    find(nodes, 0, 9)
    other = nodes.desks[1]
    other.storage(wire.TruncateRequest(6, 1, 0, 8, False))
    other.storage(wire.SetLowWaterMarkRequest(6, 1, 0, 8, False))
    other.storage(wire.AppendRequest(6, 1, 0, some(9, 3, salt=1), False))
    assert outcomes(nodes.repair(0, 1)) == [(9, 9, RepairOutcome.NO_SOURCE)]
    assert outcomes(nodes.repair(0, 2)) == [(9, 9, RepairOutcome.REPAIRED)]
    assert nodes.desks[0].read(0, 9) == some(9, 1)[0]


def test_a_log_that_lost_its_end_gets_it_back() -> None:
    nodes = Nodes()
    before = data_files(nodes, 0)
    disk = nodes.desks[0].disk
    disk.put(LAST, before[LAST][: 128 + 120])
    assert replica(nodes.restart(0)).state is State.LIMBO
    nodes.repair(0, 1)
    assert (replica(nodes.desks[0]).state, data_files(nodes, 0)) == (State.OPEN, before)


@pytest.mark.parametrize("first", [0, 4])
def test_a_segment_that_is_gone_is_filled_in_again(first: int) -> None:
    nodes = Nodes()
    nodes.desks[0].disk.remove(f"0/{first:019d}.seg")
    assert replica(nodes.restart(0)).state is State.LIMBO
    nodes.repair(0, 1)
    assert replica(nodes.desks[0]).state is State.OPEN
    assert log_of(nodes, 0) == list(some(0, 12))
    assert replica(nodes.restart(0)).state is State.OPEN


@pytest.mark.parametrize("field", ["key", "partition_id", "first_id"])
@pytest.mark.parametrize("first", [0, 4, 8])
def test_one_wrong_field_of_a_header_is_written_again(first: int, field: str) -> None:
    nodes = Nodes()
    path = f"0/{first:019d}.seg"
    before = data_files(nodes, 0)
    data = before[path]
    right = decode_header(data[:128])
    assert right is not None
    wrong: Any = {"key": bytes(16), "partition_id": 9, "first_id": 77}[field]
    nodes.desks[0].disk.put(path, encode_header(attrs.evolve(right, **{field: wrong})) + data[128:])
    assert replica(nodes.restart(0)).state is State.LIMBO
    nodes.repair(0, 1)
    assert replica(nodes.desks[0]).state is State.OPEN
    assert data_files(nodes, 0) == before, "the time at which the segment was made included"


@pytest.mark.parametrize("last", [9, 10])
@pytest.mark.parametrize("size", [59, 61])
def test_a_record_of_another_size_is_never_written_over_its_neighbours(last: int, size: int) -> None:
    """A source may have another record under an id whose own is unreadable: its length has to fit the place."""
    nodes = Nodes()
    damage(nodes, 0, last)
    before = data_files(nodes, 0)
    find(nodes, 0, last)
    source = nodes.desks[1]
    source.storage(wire.TruncateRequest(5, 1, 0, last - 1, False))
    source.storage(wire.AppendRequest(5, 1, 0, some(last, 1, size), False))
    answer = nodes.repair(0, 1)
    assert outcomes(answer) == [(last, last, RepairOutcome.WRITE_FAILED)]
    assert "do not fit into the 100 at offset" in str(answer.message)
    assert data_files(nodes, 0) == before


def test_a_disk_that_refuses_the_repair_leaves_the_range_refused() -> None:
    nodes = Nodes()
    damage(nodes, 0, 9)
    find(nodes, 0, 9)
    full = FaultKind.FULL
    nodes.desks[0].disk.fault = lambda effect: full if isinstance(effect, WriteAt) and effect.path == LAST else None
    answer = nodes.repair(0, 1)
    assert outcomes(answer) == [(9, 9, RepairOutcome.WRITE_FAILED)]
    assert replica(nodes.desks[0]).files.condition() is Condition.SUSPECT
    nodes.desks[0].disk.fault = None
    assert outcomes(nodes.repair(0, 1)) == [(9, 9, RepairOutcome.REPAIRED)]


def test_a_record_that_cannot_be_read_is_suspect_and_rewritten() -> None:
    nodes = Nodes()
    disk = nodes.desks[0].disk
    written: list[int] = []

    def bad_sector(effect: Any) -> FaultKind | None:
        """Reading record 5 fails until it is written."""
        path, offset = place(5)
        if getattr(effect, "path", None) != path or not hasattr(effect, "offset"):
            return None
        size = effect.length if isinstance(effect, DiskRead) else len(effect.data)
        hit = effect.offset < offset + 100 and offset < effect.offset + size
        if hit and isinstance(effect, WriteAt):
            written.append(5)
        return FaultKind.IO if hit and isinstance(effect, DiskRead) and not written else None

    disk.fault = bad_sector
    port = codec_1(nodes.desks[0], Port.ADMIN)
    assert len(port.ask(admin.RecordListRequest(1, 0, 0, 12)).records) >= 1
    assert isinstance(nodes.desks[0].read(0, 5), str)
    assert replica(nodes.desks[0]).files.condition() is Condition.SUSPECT
    assert {outcome for _, _, outcome in outcomes(nodes.repair(0, 1))} == {RepairOutcome.REPAIRED}
    assert replica(nodes.desks[0]).files.condition() is Condition.SOUND
    assert log_of(nodes, 0) == list(some(0, 12))


def test_a_record_that_can_be_read_again_is_no_longer_suspect() -> None:
    nodes = Nodes()
    nodes.desks[0].disk.fault = lambda effect: FaultKind.IO if isinstance(effect, DiskRead) else None
    assert isinstance(nodes.desks[0].read(0, 5), str)
    nodes.desks[0].disk.fault = None
    assert outcomes(nodes.repair(0, 1)) == []
    assert replica(nodes.desks[0]).files.condition() is Condition.SOUND


def test_a_partition_that_stopped_is_opened_again_by_a_repair() -> None:
    nodes = Nodes()
    nodes.desks[0].disk.fault = lambda effect: FaultKind.IO if isinstance(effect, WriteAt) else None
    nodes.desks[0].storage(wire.AppendRequest(5, 1, 0, some(12, 1), False))
    assert replica(nodes.desks[0]).state is State.STOPPED
    nodes.desks[0].disk.fault = lambda effect: FaultKind.IO
    assert outcomes(still := nodes.repair(0, 1)) == []
    assert still.message.startswith("it is still out of service: the disk failed: ")
    nodes.desks[0].disk.fault = None
    assert outcomes(nodes.repair(0, 1)) == []
    assert replica(nodes.desks[0]).state is State.OPEN


def test_ranges_that_are_not_suspect_are_left_alone() -> None:
    nodes = Nodes()
    answer = nodes.repair(0, 1, ranges=(IdRange(3, 4),))
    assert outcomes(answer) == [(3, 4, RepairOutcome.NOT_SUSPECT)]


def test_a_server_is_told_when_a_replica_becomes_suspect_and_when_it_is_sound_again() -> None:
    nodes = Nodes()
    port = codec_1(nodes.desks[0], Port.STORAGE)
    info = port.ask(wire.LastSessionInfoRequest(6, 1, 0, False))
    assert info.condition == Condition.SOUND
    damage(nodes, 0, 2)
    nodes.desks[0].read(0, 2)
    (report,) = port.messages
    assert (report.session_id, report.seq_num, report.condition) == (6, -1, Condition.SUSPECT)
    assert [(one.first_id, one.last_id) for one in report.suspects] == [(2, 2)]
    port.messages.clear()
    nodes.repair(0, 1)
    (report,) = port.messages
    assert (report.condition, report.suspects) == (Condition.SOUND, ())


def test_a_source_that_says_nothing_is_given_up_after_a_while() -> None:
    nodes = Nodes()
    damage(nodes, 0, 9)
    find(nodes, 0, 9)
    nodes.silent = {1}
    answer = nodes.repair(0, 1, 2)
    assert outcomes(answer) == [(9, 9, RepairOutcome.REPAIRED)]
    damage(nodes, 0, 9)
    find(nodes, 0, 9)
    answer = nodes.repair(0, 1)
    assert outcomes(answer) == [(9, 9, RepairOutcome.NO_SOURCE)]
    assert "node1:1: it did not answer within 10000 ms" in str(answer.message)


def test_a_node_without_the_partition_is_no_source_and_is_named() -> None:
    nodes = Nodes()
    damage(nodes, 0, 9)
    find(nodes, 0, 9)
    nodes.desks[1].admin(admin.PartitionAssignmentRequest(1, (0,), False, False))
    answer = nodes.repair(0, 1)
    assert outcomes(answer) == [(9, 9, RepairOutcome.NO_SOURCE)]
    assert "node1:1: java.lang.Exception: Partition:0 is not assigned." in str(answer.message)


def test_a_source_that_has_the_same_record_damaged_gives_nothing() -> None:
    nodes = Nodes()
    damage(nodes, 0, 9)
    damage(nodes, 1, 9)
    find(nodes, 0, 9)
    assert outcomes(nodes.repair(0, 1)) == [(9, 9, RepairOutcome.NO_SOURCE)]


def test_a_record_of_another_size_is_not_squeezed_in() -> None:
    nodes = Nodes()
    damage(nodes, 0, 9)
    find(nodes, 0, 9)
    other = nodes.desks[1]
    other.storage(wire.TruncateRequest(5, 1, 0, 8, False))
    other.storage(wire.AppendRequest(5, 1, 0, some(9, 1, size=61), False))
    before = data_files(nodes, 0)
    answer = nodes.repair(0, 1)
    assert outcomes(answer) == [(9, 9, RepairOutcome.WRITE_FAILED)]
    assert "101 bytes do not fit into the 100" in str(answer.message)
    assert data_files(nodes, 0) == before


def test_a_disk_that_does_not_keep_what_it_is_given_is_not_believed() -> None:
    nodes = Nodes()
    damage(nodes, 0, 9)
    find(nodes, 0, 9)
    disk = nodes.desks[0].disk

    def spoil(effect: Any) -> None:
        if isinstance(effect, SyncFile) and effect.path == LAST:
            damage(nodes, 0, 9)

    disk.fault = spoil
    answer = nodes.repair(0, 1)
    assert outcomes(answer) == [(9, 9, RepairOutcome.WRITE_FAILED)]
    assert "reads back differently" in str(answer.message)
    assert replica(nodes.desks[0]).files.condition() is Condition.SUSPECT


def test_a_second_repair_waits_for_the_first_and_a_strange_partition_has_none() -> None:
    nodes = Nodes()
    port = codec_1(nodes.desks[0], Port.ADMIN)
    assert port.ask(admin.RepairRequest(1, 0, (nodes.endpoint(1),), ())) is None
    assert "is being repaired already" in text_of(port.ask(admin.RepairRequest(2, 0, (), ())))
    assert "is not assigned" in text_of(port.ask(admin.RepairRequest(3, 1, (), ())))
    assert "is not assigned" in text_of(port.ask(admin.AcceptLimboRequest(4, 1, 0)))


# ---- the operator's word -------------------------------------------------------------------------


def accept(nodes: Nodes, number: int, max_id: int) -> Any:
    return nodes.desks[number].admin(admin.AssignedPartitionStatusRequest(1)) and codec_1(
        nodes.desks[number], Port.ADMIN
    ).ask(admin.AcceptLimboRequest(1, 0, max_id))


def state_of(nodes: Nodes, number: int) -> Any:
    return codec_1(nodes.desks[number], Port.ADMIN).ask(admin.ReplicaStateRequest(1, 0))


@pytest.mark.parametrize("ids", [(9, 11), (2, 11), (0, 11), (11,)])
def test_an_accepted_loss_ends_the_log_before_the_damage_and_puts_the_rest_aside(ids: tuple[int, ...]) -> None:
    nodes = Nodes()
    damage(nodes, 0, *ids)
    before = data_files(nodes, 0)
    nodes.restart(0)
    for one in ids:
        nodes.desks[0].read(0, one)
    end = state_of(nodes, 0).max_transaction_id
    assert end == min(ids) - 1
    assert "is good up to" in text_of(accept(nodes, 0, end + 1))
    assert accept(nodes, 0, end) == admin.AdminSuccessResponse(1)
    assert (replica(nodes.desks[0]).state, replica(nodes.desks[0]).max_id) == (State.OPEN, end)
    assert log_of(nodes, 0) == [*some(0, end + 1), *[None] * (11 - end)]
    after = nodes.desks[0].disk.files()
    for path, data in before.items():
        kept = after.get(path, b"")
        assert kept + after.get(f"{path}.given-up", b"") == data
    again = nodes.restart(0)
    assert (replica(again).state, replica(again).max_id) == (State.OPEN, end)


def test_nothing_is_accepted_of_a_partition_that_is_not_in_limbo() -> None:
    nodes = Nodes()
    assert "not in limbo" in text_of(accept(nodes, 0, 11))


def test_a_loss_below_the_marks_lowers_them_so_that_sessions_can_mark_the_log_again() -> None:
    """And it forgets its session, which would give it a vote; older sessions stay out."""
    nodes = Nodes()
    nodes.desks[0].storage(wire.SetLowWaterMarkRequest(6, 1, 0, 11, False))
    nodes.settle()
    damage(nodes, 0, 11)
    nodes.restart(0)
    assert accept(nodes, 0, 10) == admin.AdminSuccessResponse(1)
    assert replica(nodes.desks[0]).session_info() == SessionInfo(-1, 10, 10)
    node = nodes.restart(0)
    assert (replica(node).session_info(), replica(node).fence) == (SessionInfo(-1, 10, 10), 6)
    assert node.storage(wire.SetLowWaterMarkRequest(7, 1, 0, 10, False)) == wire.SuccessResponse(7, 1, 0)
    assert node.storage(wire.AppendRequest(7, 1, 0, some(11, 1), False)) == wire.SuccessResponse(7, 1, 0)


def test_of_a_partition_without_files_nothing_can_be_accepted() -> None:
    nodes = Nodes()
    for first in (0, 4, 8):
        nodes.desks[0].disk.remove(f"0/{first:019d}.seg")
        nodes.desks[0].disk.remove(f"0/{first:019d}.idx")
    assert replica(nodes.restart(0)).state is State.LIMBO
    assert "data files are gone; assign it anew" in text_of(accept(nodes, 0, -1))
    assert outcomes(nodes.repair(0, 1)) == []


def test_a_log_without_its_beginning_cannot_be_accepted() -> None:
    nodes = Nodes()
    nodes.desks[0].disk.remove("0/0000000000000000000.seg")
    nodes.restart(0)
    assert "nothing of its log can be kept" in text_of(accept(nodes, 0, -1))


# ---- what may be believed ------------------------------------------------------------------------


@given(
    own=st.builds(SessionInfo, st.integers(0, 3), st.integers(-1, 5), st.integers(-1, 5)),
    source=st.builds(SessionInfo, st.integers(-1, 3), st.integers(-1, 5), st.integers(-1, 5)),
    one=st.integers(0, 6),
)
def test_nothing_undecided_is_taken_from_another_session(own: SessionInfo, source: SessionInfo, one: int) -> None:
    taken = repairing.admissible(own, source, one)
    if own.session_id != source.session_id and one > max(own.low_water_mark, source.low_water_mark):
        assert not taken
    if source.session_id < own.session_id and one > min(own.low_water_mark, source.local_low_water_mark):
        assert not taken


# ---- the work of a repair ------------------------------------------------------------------------


class LargeNodes(Nodes):
    """Files of many records."""

    def node(self, disk: SimDisk, kind: type[StorageNode] = StorageNode) -> Desk:
        return Desk(disk, KEY, 2, threshold=100 * self.per_file, kind=kind)

    def __init__(self, per_file: int) -> None:
        self.per_file = per_file
        super().__init__(2, 0)
        for desk in self.desks:
            for first in range(0, 3 * per_file, 50):
                desk.storage(wire.AppendRequest(5, 1, 0, some(first, 50), False))
        self.settle()


def read_by_a_repair_of_a_lost_file(per_file: int) -> int:
    """Bytes that a node reads that has lost a file of so many records in the middle of its log."""
    nodes = LargeNodes(per_file)
    whole = {name: data for name, data in data_files(nodes, 1).items() if name != "0/waltz.mark"}
    disk = nodes.desks[0].disk
    name = sorted(data_files(nodes, 0))[1]
    disk.remove(name)
    disk.remove(name.replace(".seg", ".idx"))
    damaged = nodes.restart(0)
    assert replica(damaged).state is State.LIMBO
    count = 0

    def watch(effect: Any) -> None:
        nonlocal count
        if isinstance(effect, DiskRead):
            count += effect.length

    disk.fault = watch
    assert nodes.repair(0, 1).message is None
    assert replica(damaged).state is State.OPEN
    kept = b"".join(data[128:] for _, data in sorted(data_files(nodes, 0).items()))
    assert kept == b"".join(data[128:] for _, data in sorted(whole.items()))
    return count


def test_a_lost_file_is_repaired_in_proportion_to_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each round of some missing records all that were mended before were read again."""
    for module in (evidence, segment_opening, replica_repair):
        monkeypatch.setattr(module, "MISSING_MAX", 10)
    assert read_by_a_repair_of_a_lost_file(800) < 2.5 * read_by_a_repair_of_a_lost_file(400)


def test_what_no_source_has_of_a_lost_file_stays_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (evidence, segment_opening, replica_repair):
        monkeypatch.setattr(module, "MISSING_MAX", 10)
    nodes = LargeNodes(100)
    name, second = sorted(data_files(nodes, 0))[1], sorted(data_files(nodes, 0))[2]
    first, end = (int(one[2:-4]) for one in (name, second))
    nodes.desks[1].disk.flip(name, 128 + 100 * 50 + 50)
    for path in (name, name.replace(".seg", ".idx")):
        nodes.desks[0].disk.remove(path)
    damaged = nodes.restart(0)
    answer = nodes.repair(0, 1)
    assert [(one.first_id, one.outcome) for one in answer.ranges][-1] == (first + 50, RepairOutcome.NO_SOURCE)
    assert replica(damaged).state is State.LIMBO
    assert min(replica(damaged).faults) == first + 50
    assert max(replica(damaged).faults) < end
    assert replica(damaged).files.usable_end == first + 49

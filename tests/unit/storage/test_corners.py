"""Corners of the storage node that no story leads to."""

from __future__ import annotations

from typing import Any

import pytest

from tests.storage_desk import (
    DATA,
    INDEX,
    KEY,
    Desk,
    Slow,
    append,
    desk,
    fail,
    filled,
    flush_marks,
    mark,
    reopen,
    replica,
    some,
    text_of,
)
from tests.twin_0132.storage import StorageFailed0132, StorageNode0132
from waltz_core.base.edge import Port
from waltz_core.storage import control, side
from waltz_core.storage.effects import DiskList, DiskRead, FaultKind, Stop, StorageStopped, SyncDirectory
from waltz_core.storage.record_codec import encode_record
from waltz_core.storage.replica import State
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.shared import Condition
from waltz_testing.simulation.disk import SimDisk


def test_a_stopped_partition_says_so() -> None:
    node = filled(3)
    fail(node, FaultKind.IO, lambda effect: effect.path == DATA)
    append(node, 3, 1)
    assert replica(node).files.condition() is Condition.STOPPED
    assert "stopped" in str(node.node.gauges()["waltz-storage.partition-0.state"])
    fail(node, FaultKind.IO, lambda effect: isinstance(effect, SyncDirectory))
    text_of(node.admin(admin.PartitionAssignmentRequest(1, (0,), True, False)))
    assert replica(node).state is State.STOPPED


def test_low_water_marks_never_fall() -> None:
    node = filled(3)
    assert "is lower than the max" in text_of(mark(node, 1))
    assert mark(node, 10) == wire.SuccessResponse(5, 1, 0)
    assert "less than current low watermark 10" in text_of(mark(node, 9))
    node.admin(admin.PartitionAvailableRequest(1, (0,), False))
    offline = node.storage(wire.SetLowWaterMarkRequest(5, 1, 0, 12, True))
    assert offline == wire.SuccessResponse(5, 1, 0)
    assert "but request context contains 4" in text_of(node.storage(wire.SetLowWaterMarkRequest(4, 1, 0, 12, True)))
    assert node.storage(wire.TruncateRequest(5, 1, 0, 12, True)).transaction_id == 2


def test_marks_of_the_original_may_stand_above_the_log() -> None:
    """0.13.2 truncates below its marks; the local one then refuses every mark until the log is long enough again."""
    java = filled(6, kind=StorageNode0132)
    mark(java, 5)
    assert java.storage(wire.TruncateRequest(5, 1, 0, 2, False)).transaction_id == 2
    node = reopen(java)
    assert (replica(node).state, replica(node).max_id) == (State.OPEN, 2)
    assert "local low watermark" in text_of(mark(node, 9))
    assert append(node, 3, 3) == wire.SuccessResponse(5, 1, 0)
    assert mark(node, 9) == wire.SuccessResponse(5, 1, 0)


def test_a_partition_whose_flag_is_not_set_yet_is_not_assigned() -> None:
    slow = Slow(desk(assigned=()))
    slow.send(admin.PartitionAssignmentRequest(1, (0,), True, False), to=slow.admin)
    slow.send(wire.MaxTransactionIdRequest(1, 1, 0, False))
    slow.send(admin.RecordListRequest(2, 0, 0, 1), to=slow.admin)
    while slow.held:
        slow.release(1)
    assert [type(one).__name__ for one in slow.answers()] == ["FailureResponse"] or replica(slow.made).max_id == -1


def test_flags_of_a_partition_that_is_not_ours() -> None:
    node = desk(assigned=())
    assert node.admin(admin.PartitionAvailableRequest(1, (1,), False)) == admin.AdminSuccessResponse(1)
    assert not replica(reopen(node), 1).entry.current.available


def test_a_mark_is_put_off_while_a_segment_is_begun_and_while_one_is_written() -> None:
    slow = Slow(filled(4))
    slow.send(wire.AppendRequest(5, 1, 0, some(4, 1), False))
    replica(slow.made).write_mark()
    assert slow.made.node.deadline() == 1000
    slow.release()
    slow.send(wire.AppendRequest(5, 1, 0, some(5, 1), False))
    slow.release()
    slow.now = 5000
    slow.step()
    assert slow.held
    replica(slow.made).write_mark()
    assert slow.made.node.deadline() == 6000
    slow.send(wire.TruncateRequest(5, 1, 0, 1, False))  # waits for the mark
    replica(slow.made).write_mark()
    slow.release()
    assert replica(slow.made).max_id == 1


def test_a_fault_that_cannot_be_noted_stays_in_memory() -> None:
    node = filled(12)
    node.disk.flip(DATA, 128 + 150)
    again = reopen(node)
    fail(again, FaultKind.FULL, lambda effect: effect.path.endswith("faults"))
    assert isinstance(again.read(0, 1), str)
    assert (replica(again).faults, replica(again).state) == ({1}, State.OPEN)
    assert isinstance(again.read(0, 1), str)


def test_availability_and_unassignment_of_what_the_disk_refuses() -> None:
    node = filled(3)
    fail(node, FaultKind.IO, lambda effect: effect.path == control.NAME)
    assert text_of(node.admin(admin.PartitionAssignmentRequest(1, (0,), False, False))).startswith("java.io")
    assert replica(node).state is State.STOPPED
    assert node.admin(admin.PartitionAssignmentRequest(1, (0,), False, False)) == admin.AdminSuccessResponse(1)


def test_a_partition_whose_directory_is_gone_is_unassigned_with_its_files_and_assigned_anew() -> None:
    node = filled(3)
    node.disk.remove_directory("0")
    node = reopen(node)
    assert replica(node).state is State.LIMBO
    assert node.admin(admin.PartitionAssignmentRequest(1, (0,), False, True)) == admin.AdminSuccessResponse(1)
    assert node.admin(admin.PartitionAssignmentRequest(1, (0,), True, False)) == admin.AdminSuccessResponse(1)
    assert (replica(node).state, replica(node).max_id) == (State.OPEN, -1)
    assert append(node, 0, 1) == wire.SuccessResponse(5, 1, 0)


def test_a_disk_error_while_listing_for_a_deletion() -> None:
    node = filled(3)
    node.disk.fault = lambda effect: FaultKind.IO if isinstance(effect, DiskList) else None
    assert text_of(node.admin(admin.PartitionAssignmentRequest(1, (0,), False, True))).startswith("java.io")


def test_stop_is_another_word_for_shutdown() -> None:
    node = filled(1)
    node.step(Stop())
    assert StorageStopped() in node.emitted


def test_an_unfinished_record_header_behind_the_last_record() -> None:
    node = filled(3)
    node.disk.remove("0/waltz.mark")
    good = node.disk.content(DATA)
    node.disk.put(DATA, good + encode_record(some(3, 1)[0])[:20])
    assert replica(reopen(node)).max_id == 2
    assert node.disk.content(DATA) == good


def test_damage_near_the_end_of_a_file_with_and_without_an_index() -> None:
    node = filled(3)
    node.disk.remove("0/waltz.mark")
    damaged = bytearray(node.disk.content(DATA))
    damaged[128 + 28 : 128 + 32] = (2**31 - 1).to_bytes(4)
    node.disk.put(DATA, bytes(damaged))
    again = reopen(node)
    assert (replica(again).state, replica(again).faults) == (State.LIMBO, {0})
    node.disk.remove(INDEX)
    blind = reopen(node)
    assert replica(blind).state is State.LIMBO
    assert replica(blind).max_id == -1  # nothing leads to what stands behind


def test_a_hole_in_the_ids_of_a_damaged_log_ends_a_list() -> None:
    node = filled(12)
    for suffix in ("seg", "idx"):
        node.disk.remove(f"0/0000000000000000004.{suffix}")
    again = reopen(node)
    listed = again.admin(admin.RecordListRequest(1, 0, 2, 9))
    assert [one.transaction_id for one in listed.records] == [2, 3]


def test_an_index_that_cannot_be_believed_in_the_middle_of_a_list() -> None:
    node = filled(12)
    again = reopen(node)
    right = node.disk.content(INDEX)
    node.disk.put(INDEX, right[:144] + (5).to_bytes(8) + right[152:])
    listed = again.admin(admin.RecordListRequest(1, 0, 0, 4))
    assert [one.transaction_id for one in listed.records][:1] == [0]
    assert again.read(0, 2) == some(2, 1)[0]
    assert node.disk.content(INDEX) == right


def test_the_index_of_the_segment_written_to_is_distrusted_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waltz_core.storage.log_files.WINDOW", 50)
    monkeypatch.setattr("waltz_core.storage.segment_opening.WINDOW", 50)
    node = desk(threshold=1 << 30)
    append(node, 0, 200, size=0)
    flush_marks(node)
    again = reopen(node, threshold=1 << 30)
    right = node.disk.content(INDEX)
    node.disk.put(INDEX, right[:128] + bytes(64) + right[192:])
    assert again.read(0, 3) == some(3, 1, 0)[0]
    node.disk.flip(DATA, 128 + 3 * 40 + 20)
    assert isinstance(again.read(0, 3), str)
    assert isinstance(again.read(0, 5), str)  # nothing leads to it any more


def test_the_copy_of_the_control_struct_is_not_taken_when_it_is_older() -> None:
    node = filled(2)
    java = desk(node.disk, kind=StorageNode0132, codecs=(0,))
    assert java.storage(wire.SetLowWaterMarkRequest(7, 1, 0, 1, False)) == wire.SuccessResponse(7, 1, 0)
    assert replica(reopen(node)).entry.current.session_id == 7


def test_the_original_extends_a_short_control_file() -> None:
    node = desk(kind=StorageNode0132)
    node.disk.put(control.NAME, node.disk.content(control.NAME)[:220])
    failed = Desk(node.disk, KEY, 2, kind=StorageNode0132)
    assert isinstance(failed.failure, StorageFailed0132)
    assert failed.failure.chain[0].endswith("partition info corrupted")
    assert len(node.disk.content(control.NAME)) == 280
    node.disk.put(control.NAME, b"short")
    assert Desk(node.disk, KEY, 2, kind=StorageNode0132).failure is None


def test_a_side_file_that_cannot_be_read_stops_the_partition() -> None:
    node = filled(2)
    node.disk.fault = lambda effect: (
        FaultKind.IO if isinstance(effect, DiskRead) and effect.path.endswith("fence") else None
    )
    again = reopen(node)
    assert (replica(again).state, "the disk failed" in replica(again).reason) == (State.STOPPED, True)


def test_ranges_of_faults_are_merged_across_the_smallest_gaps() -> None:
    belongs = side.Belongs(1, 1, 0)
    faults = {one * 3 for one in range(side.RANGES_MAX)} | {10_000, 20_000}
    ranges = side.decode_faults(side.newest_slot(side.encode_faults(faults, belongs, 1)))
    assert len(ranges) == side.RANGES_MAX
    assert ranges[-2:] == [(10_000, 10_000), (20_000, 20_000)]


def test_a_dead_connection_is_not_asked_again() -> None:
    node = filled(2)
    one = node.dial(Port.ADMIN)
    out = bytearray()
    for message in (admin.AdminSuccessResponse(1), admin.AssignedPartitionStatusRequest(2)):
        one.connection.encode(message, out)
    one.send(bytes(out))
    assert one.closed
    assert one.messages == []


@pytest.mark.parametrize("count", [0, 1])
def test_what_follows_a_change_on_the_same_connection_waits_for_it(count: int) -> None:
    slow = Slow(filled(3))
    slow.send(
        admin.PartitionAvailableRequest(1, (0,) * count, False), admin.AssignedPartitionStatusRequest(2), to=slow.admin
    )
    slow.release()
    assert slow.admin.messages[-1].partition_status == ((0, count == 0),)


def test_an_empty_disk_is_not_read() -> None:
    disk = SimDisk()
    reads: list[Any] = []
    disk.fault = lambda effect: reads.append(effect) if isinstance(effect, DiskRead) else None
    desk(disk)
    assert reads == []

"""What a node makes of files that crashed, rotted or were tampered with."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import Any

import attrs
import pytest

from tests.storage_desk import (
    DATA,
    INDEX,
    KEY,
    WALL_MS,
    append,
    desk,
    filled,
    flush_marks,
    mark,
    reopen,
    replica,
    some,
    text_of,
)
from tests.twin_0132.storage import StorageNode0132
from waltz_core.base.edge import Level, Report
from waltz_core.storage import control, log_files, side
from waltz_core.storage.config import StorageConfig
from waltz_core.storage.effects import DiskBatch, DiskList, DiskRead, FaultKind, SyncFile
from waltz_core.storage.node import StorageNode
from waltz_core.storage.record_codec import encode_record
from waltz_core.storage.replica import State
from waltz_core.storage.segment import SECTOR, SegmentHeader, encode_header
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire
from waltz_testing.simulation.disk import SimDisk

SEGMENTS = [0, 4, 8]  # of `filled()`: records of 100 bytes, segments of 500
FIRST = "0/0000000000000000000"
LAST = "0/0000000000000000008"


def served(node: Any, count: int = 12) -> list[int]:
    """Ids that can be read, each checked against what was written."""
    found = []
    for one in range(count):
        record = node.read(0, one)
        if not isinstance(record, str) and record is not None:
            assert record == some(one, 1)[0]
            found.append(one)
    return found


def opened(disk: SimDisk, **settings: Any) -> Any:
    return desk(disk, **settings)


def test_an_intact_directory_is_opened_without_changing_a_byte() -> None:
    node = filled()
    flush_marks(node)
    before = node.disk.files()
    again = reopen(node)
    assert again.disk.files() == before
    assert replica(again).max_id == 11
    assert served(again) == list(range(12))
    assert not [one for one in again.emitted if isinstance(one, Report)]


def test_a_torn_tail_is_cut_and_the_log_goes_on() -> None:
    node = filled()
    mark_free = node.disk.clone()
    data = mark_free.content(f"{LAST}.seg")
    mark_free.put(f"{LAST}.seg", data + encode_record(some(12, 1)[0])[:-3])
    again = opened(mark_free)
    assert replica(again).state is State.OPEN
    assert mark_free.content(f"{LAST}.seg") == data
    assert any("cut 97 bytes" in one.text for one in again.emitted if isinstance(one, Report))
    assert append(again, 12, 1) == wire.SuccessResponse(5, 1, 0)


def test_a_bad_record_at_or_below_the_durable_mark_is_never_cut() -> None:
    node = filled()
    flush_marks(node)
    node.disk.flip(f"{LAST}.seg", len(node.disk.content(f"{LAST}.seg")) - 1)
    before = node.disk.content(f"{LAST}.seg")
    again = reopen(node)
    assert replica(again).state is State.LIMBO
    assert "transaction 11 at offset 428 is damaged" in replica(again).reason
    assert node.disk.content(f"{LAST}.seg") == before
    assert served(again) == list(range(11))
    assert text_of(again.admin(admin.RecordListRequest(1, 0, 11, 1))).endswith("damaged on this storage node")


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_rot_in_the_last_record_is_no_torn_write_though_no_mark_covers_it(mask: int) -> None:
    """It may have been acknowledged a moment before the process ended; simulator, seed 1795316278691."""
    node = desk(threshold=10_000)
    append(node, 0, 3)
    flush_marks(node)
    append(node, 3, 1)
    size = len(node.disk.content(DATA))
    for at in range(size - 100, size):
        disk = node.disk.clone()
        disk.flip(DATA, at, mask)
        before = disk.content(DATA)
        again = opened(disk, threshold=10_000)
        assert (replica(again).state, at) == (State.LIMBO, at)
        assert disk.content(DATA) == before


def test_whatever_sectors_and_size_a_power_failure_leaves_of_the_last_write_it_is_cut() -> None:
    node = desk(threshold=10_000)
    append(node, 0, 3)
    flush_marks(node)
    before = node.disk.content(DATA)
    append(node, 3, 3, size=300)
    after = node.disk.content(DATA)
    sectors = range(len(before) // SECTOR, -(-len(after) // SECTOR))
    for size in (*range(len(before), len(after), 11), *range(len(after) - 50, len(after) + 1)):
        for written in range(1 << len(sectors)):
            content = bytearray(before.ljust(size, b"\0"))
            for number, sector in enumerate(sectors):
                if written >> number & 1:
                    part = slice(sector * SECTOR, min((sector + 1) * SECTOR, size))
                    content[part] = after[part]
            disk = node.disk.clone()
            disk.put(DATA, bytes(content))
            again = opened(disk, threshold=10_000)
            assert (replica(again).state, size, written) == (State.OPEN, size, written)
            assert 2 <= replica(again).max_id <= 5


def test_without_a_mark_a_bad_last_record_is_a_torn_write() -> None:
    node = filled()
    node.disk.flip(f"{LAST}.seg", len(node.disk.content(f"{LAST}.seg")) - 1)
    for name in ("waltz.mark", "waltz.fence", "waltz.faults"):
        node.disk.remove(f"0/{name}")
    again = reopen(node)
    assert (replica(again).state, replica(again).max_id) == (State.OPEN, 10)


def test_a_bad_record_with_good_ones_behind_it_is_never_cut() -> None:
    node = filled()
    node.disk.remove("0/waltz.mark")
    node.disk.flip(f"{LAST}.seg", 128 + 50)
    again = reopen(node)
    assert replica(again).state is State.LIMBO
    assert served(again) == [*range(8), 9, 10, 11]
    assert replica(again).max_id == 11


def test_a_record_whose_length_is_damaged_does_not_hide_those_behind_it() -> None:
    node = filled()
    node.disk.remove("0/waltz.mark")
    node.disk.flip(f"{LAST}.seg", 128 + 30)
    again = reopen(node)
    assert replica(again).state is State.LIMBO
    assert served(again) == [*range(8), 9, 10, 11]


def test_records_that_only_look_like_records_are_not_served() -> None:
    """The data of a damaged record holds a copy of a record: it must not stand in for the real one."""
    node = desk(threshold=10_000)
    fake = encode_record(attrs.evolve(some(1, 1)[0], data=b"forged"))
    carrier = attrs.evolve(some(0, 1)[0], data=fake + b"z" * 20)
    assert node.storage(wire.AppendRequest(5, 1, 0, (carrier, *some(1, 2)), False)) == wire.SuccessResponse(5, 1, 0)
    node.disk.flip(DATA, 128 + 30)  # the length
    again = reopen(node)
    assert replica(again).state is State.LIMBO
    assert again.read(0, 1) == some(1, 1)[0]
    node.disk.remove(INDEX)
    blind = reopen(node)
    assert replica(blind).state is State.LIMBO
    assert blind.read(0, 1) in (None, some(1, 1)[0]) or isinstance(blind.read(0, 1), str)


def test_a_hole_left_by_a_power_failure_in_the_last_write_is_cut() -> None:
    node = desk(threshold=100_000)
    append(node, 0, 2)
    flush_marks(node)
    good = len(node.disk.content(DATA))
    append(node, 2, 30)
    data = bytearray(node.disk.content(DATA))
    data[512:1024] = bytes(512)
    node.disk.put(DATA, bytes(data))
    again = reopen(node)
    assert replica(again).state is State.OPEN
    assert 1 <= replica(again).max_id < 10
    assert len(node.disk.content(DATA)) >= good


def test_such_a_hole_before_the_mark_is_damage_and_nothing_is_cut() -> None:
    node = desk(threshold=100_000)
    append(node, 0, 30)
    flush_marks(node)
    data = bytearray(node.disk.content(DATA))
    data[512:1024] = bytes(512)
    node.disk.put(DATA, bytes(data))
    again = reopen(node)
    assert node.disk.content(DATA) == data
    assert replica(again).max_id == 29
    assert served(again, 30) == [0, 1, 2, *range(9, 30)]
    node.disk.remove(INDEX)
    assert replica(reopen(node)).state is State.LIMBO


def test_damage_in_a_sealed_segment_is_found_when_it_is_read() -> None:
    node = filled()
    node.disk.flip(DATA, 128 + 150)
    again = reopen(node)
    assert replica(again).state is State.OPEN
    assert served(again) == [0, *range(2, 12)]
    assert replica(again).faults == {1}
    listed = again.storage(wire.RecordListRequest(5, 1, 0, 0, 100))
    assert [one.transaction_id for one in listed.records] == [0]
    assert "damaged" in text_of(again.storage(wire.RecordRequest(5, 1, 0, 1)))
    remembered = reopen(again)
    assert replica(remembered).faults == {1}
    node.disk.flip(DATA, 128 + 150)
    assert replica(reopen(again)).faults == set()


@pytest.mark.parametrize("at", [128 + 399, 128 + 330])
def test_damage_at_the_end_of_a_sealed_segment_is_found_at_once(at: int) -> None:
    node = filled()
    node.disk.flip(DATA, at)
    again = reopen(node)
    assert replica(again).state is State.LIMBO
    assert served(again) == [0, 1, 2, *range(4, 12)]


def test_a_sealed_segment_that_lost_its_end() -> None:
    node = filled()
    node.disk.put(DATA, node.disk.content(DATA)[:-150])
    again = reopen(node)
    assert replica(again).state is State.LIMBO
    assert replica(again).faults == {2, 3}
    assert served(again) == [0, 1, *range(4, 12)]


def test_a_sealed_segment_that_goes_on_behind_the_next_one() -> None:
    node = filled()
    node.disk.put(DATA, node.disk.content(DATA) + encode_record(some(4, 1, salt=3)[0]))
    again = reopen(node)
    assert replica(again).state is State.LIMBO
    assert "beyond 3" in replica(again).reason
    assert served(again) == list(range(12))


def test_bytes_without_meaning_behind_a_sealed_segment_are_ignored() -> None:
    node = filled()
    node.disk.put(DATA, node.disk.content(DATA) + b"garbage")
    assert replica(reopen(node)).state is State.OPEN


# ---- indexes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["0/0000000000000000000.idx", "0/0000000000000000004.idx", f"{LAST}.idx"])
@pytest.mark.parametrize("damage", ["gone", "empty", "short", "header", "zero", "first", "long", "entry"])
def test_an_index_is_rebuilt_from_the_data(name: str, damage: str) -> None:
    node = filled()
    flush_marks(node)
    right = node.disk.content(name)
    match damage:
        case "gone":
            node.disk.remove(name)
        case "empty":
            node.disk.put(name, b"")
        case "short":
            node.disk.put(name, right[:-8])
        case "header":
            node.disk.flip(name, 14)
        case "zero":
            node.disk.put(name, right[:128] + bytes(len(right) - 128))
        case "first":
            node.disk.put(name, right[:128] + bytes(8) + right[136:])
        case "long":
            node.disk.put(name, right + bytes(24))
        case "entry":
            node.disk.put(name, right[:136] + bytes(8) + right[144:])
    again = reopen(node)
    assert replica(again).state is State.OPEN
    assert served(again) == list(range(12))
    assert append(again, 12, 9) == wire.SuccessResponse(5, 1, 0)
    third = reopen(again)
    assert served(third, 21) == list(range(21))
    assert node.disk.content(name)[128:160] == right[128:160]


@pytest.mark.parametrize("damage", ["gone", "header", "short", "implausible"])
def test_an_index_of_more_records_than_are_kept_in_memory_is_rebuilt(
    damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a segment with many records only the places of the newest are in memory."""
    monkeypatch.setattr(log_files, "WINDOW", 4)
    node = desk(threshold=100_000)
    append(node, 0, 50)
    flush_marks(node)
    right = node.disk.content(INDEX)
    assert len(right) == 128 + 50 * 8
    match damage:
        case "gone":
            node.disk.remove(INDEX)
        case "header":
            node.disk.flip(INDEX, 14)
        case "short":
            node.disk.put(INDEX, right[: 128 + 10 * 8])
        case "implausible":
            node.disk.put(INDEX, right[:-8] + bytes(8))
    again = reopen(node, threshold=100_000)
    assert replica(again).state is State.OPEN
    assert again.disk.content(INDEX)[128:] == right[128:]
    assert served(again, 50) == list(range(50))


def test_an_index_without_data_is_no_obstacle_to_a_roll() -> None:
    node = filled(4)
    header = SegmentHeader(1, KEY.bytes, 0, 4)
    node.disk.put("0/0000000000000000004.idx", encode_header(header))
    again = reopen(node)
    assert append(again, 4, 6) == wire.SuccessResponse(5, 1, 0)
    assert replica(reopen(again)).max_id == 9


def test_an_index_whose_data_file_is_gone_tells_of_a_loss() -> None:
    node = filled()
    node.disk.remove(f"{LAST}.seg")
    node.disk.remove("0/waltz.mark")
    again = reopen(node)
    assert replica(again).state is State.LIMBO
    assert "is gone" in replica(again).reason
    assert served(again) == list(range(8))


# ---- files ---------------------------------------------------------------------------------------


def test_a_log_shorter_than_its_durable_mark_is_damage() -> None:
    node = filled()
    flush_marks(node)
    node.disk.put(f"{LAST}.seg", node.disk.content(f"{LAST}.seg")[:-100])
    node.disk.put(f"{LAST}.idx", node.disk.content(f"{LAST}.idx")[:-8])
    again = reopen(node)
    assert replica(again).state is State.LIMBO
    assert "11 was on disk" in replica(again).reason
    assert served(again) == list(range(11))


def test_a_missing_segment_is_damage() -> None:
    node = filled()
    for suffix in ("seg", "idx"):
        node.disk.remove(f"0/0000000000000000004.{suffix}")
    again = reopen(node)
    assert replica(again).state is State.LIMBO
    assert "4..7 are missing" in replica(again).reason
    assert served(again) == [*range(4), *range(8, 12)]
    assert isinstance(again.read(0, 5), str)


def test_the_newest_segment_gone_with_its_index_is_damage() -> None:
    """No name is left that would tell; the durable mark does."""
    node = filled()
    flush_marks(node)
    for suffix in ("seg", "idx"):
        node.disk.remove(f"{LAST}.{suffix}")
    again = reopen(node)
    assert replica(again).state is State.LIMBO
    assert "0000000000000000008.seg is gone: transaction 11 was on disk" in replica(again).reason
    assert served(again) == list(range(8))
    assert replica(again).faults == {8, 9, 10, 11}


def test_segments_that_overlap_are_damage() -> None:
    node = filled()
    node.disk.put("0/0000000000000000010.seg", encode_header(SegmentHeader(1, KEY.bytes, 0, 10)))
    again = reopen(node)
    assert replica(again).state is State.LIMBO


def test_a_segment_begun_and_not_finished_is_removed() -> None:
    node = filled(4)
    for content in (b"", bytes(128), bytes(60)):
        node.disk.put("0/0000000000000000004.seg", content)
        again = reopen(node)
        assert replica(again).state is State.OPEN
        assert "0/0000000000000000004.seg" not in node.disk.files()
    assert append(again, 4, 2) == wire.SuccessResponse(5, 1, 0)


@pytest.mark.parametrize(("at", "word"), [(12, "cluster key"), (28, "partition"), (39, "first transaction id")])
def test_a_damaged_segment_header_names_file_and_field(at: int, word: str) -> None:
    node = filled()
    node.disk.flip(f"{LAST}.seg", at)
    again = reopen(node)
    assert replica(again).state is State.LIMBO
    assert f"{LAST}.seg" in replica(again).reason
    assert word in replica(again).reason
    assert served(again) == list(range(12))


@pytest.mark.parametrize("name", [DATA, "0/0000000000000000004.seg"])
def test_a_data_file_without_a_whole_header_is_damage(name: str) -> None:
    node = filled()
    node.disk.put(name, b"short")
    assert replica(reopen(node)).state is State.LIMBO


def test_a_data_file_with_a_strange_name_is_damage() -> None:
    node = filled()
    node.disk.put("0/copy.seg", node.disk.content(DATA))
    assert "19 digits" in replica(reopen(node)).reason


def test_a_directory_without_data_files_is_damage() -> None:
    node = filled()
    for name in list(node.disk.files()):
        if name.startswith("0/"):
            node.disk.remove(name)
    again = reopen(node)
    assert replica(again).state is State.LIMBO
    assert "are gone" in replica(again).reason
    assert isinstance(again.read(0, 0), str)
    refused = again.storage(wire.LastSessionInfoRequest(9, 1, 0, False))
    assert "out of service" in text_of(refused)


def test_other_partitions_go_on() -> None:
    node = desk(assigned=(0, 1))
    append(node, 0, 8)
    append(node, 0, 8, partition=1)
    node.disk.flip(DATA, 128 + 399)
    again = reopen(node)
    assert [one.state for one in again.node.replicas] == [State.LIMBO, State.OPEN]
    assert not again.node.healthy
    assert [row[1] for row in again.node.conditions()] == [State.LIMBO, State.OPEN]
    assert append(again, 8, 2, partition=1) == wire.SuccessResponse(5, 1, 1)
    status = again.admin(admin.AssignedPartitionStatusRequest(1))
    assert status.partition_status == ((0, False), (1, True))


@pytest.mark.parametrize("again_by", ["restart", "assignment"])
def test_a_partition_in_limbo_stays_there_when_an_operator_forbids_and_allows_it(again_by: str) -> None:
    """Each change of the control struct made its mark look like one left by 0.13.2: the end of the log was cut."""
    node = filled()
    flush_marks(node)
    size = len(node.disk.content(f"{LAST}.seg"))
    for end in (size - 1, size - 101):
        node.disk.flip(f"{LAST}.seg", end)
    again = reopen(node)
    assert replica(again).state is State.LIMBO
    for allowed in (False, True):
        answer = again.admin(admin.PartitionAvailableRequest(1, (0,), allowed))
        assert answer == admin.AdminSuccessResponse(1)
    if again_by == "restart":
        again = reopen(again)
    else:
        assert "cannot be opened" in text_of(again.admin(admin.PartitionAssignmentRequest(1, (0,), True, False)))
    assert replica(again).state is State.LIMBO
    assert len(again.disk.content(f"{LAST}.seg")) == size


def test_so_does_one_that_stopped_and_was_written_to_before() -> None:
    node, last = filled(), "0/0000000000000000012.seg"
    flush_marks(node)
    append(node, 12, 1)
    flush_marks(node)
    node.disk.fault = lambda effect: FaultKind.IO if isinstance(effect, SyncFile) and effect.path == last else None
    append(node, 13, 1)
    assert replica(node).state is State.STOPPED
    node.disk.fault = None
    for allowed in (False, True):
        node.admin(admin.PartitionAvailableRequest(1, (0,), allowed))
    node.disk.flip(last, len(node.disk.content(last)) - 1)
    assert "transaction 12 at offset 128 is damaged" in text_of(
        node.admin(admin.PartitionAssignmentRequest(1, (0,), True, False))
    )
    assert replica(node).state is State.LIMBO


def test_a_partition_in_limbo_can_be_repaired_and_assigned_again() -> None:
    node = filled()
    node.disk.flip(DATA, 128 + 399)
    again = reopen(node)
    request = admin.PartitionAssignmentRequest(1, (0,), True, False)
    assert "cannot be opened" in text_of(again.admin(request))
    assert replica(again).state is State.LIMBO
    node.disk.flip(DATA, 128 + 399)
    assert again.admin(request) == admin.AdminSuccessResponse(1)
    assert replica(again).state is State.OPEN
    assert append(again, 12, 1) == wire.SuccessResponse(5, 1, 0)


# ---- control file --------------------------------------------------------------------------------


def structs_of(node: Any) -> list[int]:
    return [control.struct_place(0, slot) for slot in (0, 1)]


def test_a_lost_control_struct_is_restored_from_its_third_copy() -> None:
    node = filled()
    mark(node, 11, session=7)
    before = replica(node).entry.current
    for places in ([structs_of(node)[0]], [structs_of(node)[1]], structs_of(node)):
        damaged = node.disk.clone()
        for place in places:
            damaged.flip(control.NAME, place + 3)
        again = opened(damaged)
        assert (replica(again).state, replica(again).entry.current) == (State.OPEN, before)
        third = opened(damaged)
        assert replica(third).entry.current == before


def test_without_the_copy_a_partition_whose_control_structs_are_lost_is_in_limbo() -> None:
    node = filled()
    node.disk.remove("0/waltz.fence")
    for place in structs_of(node):
        node.disk.flip(control.NAME, place)
    again = reopen(node)
    assert replica(again).state is State.LIMBO
    assert "partition info corrupted" in replica(again).reason
    assert "corrupted" in text_of(again.admin(admin.PartitionAvailableRequest(1, (0,), False)))
    assert again.admin(admin.PartitionAssignmentRequest(1, (0,), False, False)) == admin.AdminSuccessResponse(1)
    assert again.admin(admin.PartitionAssignmentRequest(1, (0,), True, False)) == admin.AdminSuccessResponse(1)
    assert served(again) == list(range(12))


def test_the_fence_outlives_a_run_of_the_original_in_between() -> None:
    node = filled()
    assert isinstance(node.storage(wire.LastSessionInfoRequest(9, 1, 0, False)), wire.LastSessionInfoResponse)
    flush_marks(node)
    java = desk(node.disk, kind=StorageNode0132, codecs=(0,))
    assert java.storage(wire.AppendRequest(7, 1, 0, some(12, 2), False)) == wire.SuccessResponse(7, 1, 0)
    assert java.storage(wire.SetLowWaterMarkRequest(7, 1, 0, 13, False)) == wire.SuccessResponse(7, 1, 0)
    again = reopen(node)
    assert (replica(again).state, replica(again).max_id, replica(again).fence) == (State.OPEN, 13, 9)
    assert "session id has changed to 9" in text_of(append(again, 14, 1, session=8))
    assert append(again, 14, 1, session=9) == wire.SuccessResponse(9, 1, 0)


def test_the_original_may_truncate_below_our_mark_and_we_take_it() -> None:
    node = filled()
    flush_marks(node)
    java = desk(node.disk, kind=StorageNode0132, codecs=(0,))
    assert java.storage(wire.TruncateRequest(7, 1, 0, 5, False)).transaction_id == 5
    assert java.storage(wire.SetLowWaterMarkRequest(7, 1, 0, 5, False)) == wire.SuccessResponse(7, 1, 0)
    again = reopen(node)
    assert (replica(again).state, replica(again).max_id) == (State.OPEN, 5)
    assert served(again) == list(range(6))


# ---- failing disks -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FaultKind.IO, FaultKind.FULL])
def test_a_disk_that_fails_at_opening_stops_the_partition_until_it_is_opened_again(kind: FaultKind) -> None:
    node = filled()
    node.disk.fault = lambda effect: kind if not isinstance(effect, DiskList) and "/" in effect.path else None
    again = reopen(node)
    assert replica(again).state is State.STOPPED
    assert "the disk failed" in replica(again).reason
    node.disk.fault = None
    assert again.admin(admin.PartitionAssignmentRequest(1, (0,), True, False)) == admin.AdminSuccessResponse(1)
    assert replica(again).state is State.OPEN
    assert served(again) == list(range(12))


def test_a_directory_that_cannot_be_listed_ends_the_process() -> None:
    disk = SimDisk()
    disk.fault = lambda effect: FaultKind.IO if isinstance(effect, DiskList) else None
    node = desk(disk)
    assert node.failure is not None
    assert "cannot be read" in node.failure.reason


def test_a_long_log_is_opened_from_its_mark() -> None:
    """Nothing before the durable mark is read again but the index."""
    node = desk(threshold=1 << 30)
    append(node, 0, 3000, size=10)
    flush_marks(node)
    reads: list[DiskRead] = []

    def watch(effect: Any) -> None:
        if isinstance(effect, DiskRead) and effect.path == DATA:
            reads.append(effect)

    node.disk.fault = watch
    again = reopen(node, threshold=1 << 30)
    assert replica(again).max_id == 2999
    assert sum(min(one.length, 4096) for one in reads) < 20_000


def test_what_is_read_of_many_segments_is_asked_for_together() -> None:
    """A start waits for the disk some times for 128 segments, not for each of them."""
    node = desk(threshold=500)
    for first in range(0, 4 * 600, 200):
        append(node, first, 200)
    flush_marks(node)
    disk = node.disk
    machine = StorageNode(StorageConfig(KEY.bytes, 2, 500, wall_clock_offset_ms=WALL_MS))
    asked: list[Any] = []
    machine.step(0, [], asked)
    waits, reads = 0, Counter[tuple[str, int]]()
    while effects := [each for each in asked if isinstance(each, DiskBatch | DiskRead | DiskList)]:
        waits += 1
        reads.update((each.path, each.offset) for each in effects if isinstance(each, DiskRead))
        asked = []
        machine.step(0, [disk.perform(each) for each in reversed(effects)], asked)
    assert len(machine.replicas[0].files.opened_log.segments) == 600
    assert machine.replicas[0].max_id == 2399
    assert waits < 50
    assert max(count for (path, _), count in reads.items() if path.endswith(".seg")) <= 2  # the end of the last one


@pytest.mark.parametrize(("kind", "state"), [(FaultKind.MISSING, State.STOPPED), (FaultKind.IO, State.LIMBO)])
def test_a_file_that_cannot_be_read_among_many_stops_the_partition_alone(kind: FaultKind, state: State) -> None:
    node = filled()
    disk = node.disk.clone()
    disk.fault = lambda effect: kind if isinstance(effect, DiskRead) and effect.path == f"{FIRST}.seg" else None
    again = opened(disk)
    assert replica(again).state is state
    assert replica(again).faults == (set(range(4)) if state is State.LIMBO else set())
    disk.fault = None
    assert served(reopen(again)) == list(range(12))


def test_an_index_that_was_mended_is_not_read_from_what_was_read_before() -> None:
    node = filled()
    flush_marks(node)
    disk = node.disk.clone()
    entries = disk.content(f"{FIRST}.idx")
    disk.put(f"{FIRST}.idx", entries[:-8] + bytes(8))
    again = opened(disk)
    assert replica(again).state is State.OPEN
    assert disk.content(f"{FIRST}.idx") == entries
    assert served(again) == list(range(12))


def test_records_longer_than_a_chunk() -> None:
    node = desk(threshold=1 << 30)
    for first in range(3):
        assert append(node, first, 1, size=1_200_000) == wire.SuccessResponse(5, 1, 0)
    for name in ("0/waltz.mark", INDEX):
        node.disk.remove(name)
    again = reopen(node, threshold=1 << 30)
    assert (replica(again).state, replica(again).max_id) == (State.OPEN, 2)
    assert again.read(0, 2) == some(2, 1, 1_200_000)[0]
    java = desk(node.disk, kind=StorageNode0132, threshold=1 << 30)
    assert replica(java).max_id == 2


def test_faults_of_a_whole_range_are_checked_again() -> None:
    node = filled()
    belongs = side.Belongs(replica(node).entry.current.sequence, -1, 8)
    node.disk.put("0/waltz.faults", side.encode_faults({2, 3, 90}, belongs, 9).ljust(8192, b"\0"))
    assert replica(reopen(node)).faults == set()


def test_a_sector_that_still_cannot_be_read_is_one_damaged_record() -> None:
    """The whole replica stopped at each opening, so that nobody could mend the record."""
    node = filled()
    belongs = side.Belongs(replica(node).entry.current.sequence, -1, 8)
    node.disk.put("0/waltz.faults", side.encode_faults({1}, belongs, 9).ljust(8192, b"\0"))
    disk = node.disk.clone()

    def unreadable(effect: Any) -> FaultKind | None:
        here = isinstance(effect, DiskRead) and effect.path == f"{FIRST}.seg" and effect.offset == 228
        return FaultKind.IO if here else None

    disk.fault = unreadable
    again = opened(disk)
    assert replica(again).state is State.OPEN
    assert replica(again).faults == {1}


class DiedError(Exception):
    """The process is gone."""


def test_a_crash_while_opening_for_the_first_time_leaves_a_directory_that_can_be_opened() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        disk = SimDisk(rng)
        left = rng.randrange(30)

        def die(effect: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise DiedError

        disk.fault = die
        with contextlib.suppress(DiedError):
            desk(disk, assigned=(0,))
        disk.fault = None
        disk.crash(rng)
        node = desk(disk)
        assert node.failure is None, node.failure
        assert node.admin(admin.PartitionAssignmentRequest(1, (0,), True, False)) == admin.AdminSuccessResponse(1)
        assert append(node, 0, 3) == wire.SuccessResponse(5, 1, 0)
        assert Level.ERROR not in [one.level for one in node.emitted if isinstance(one, Report)]

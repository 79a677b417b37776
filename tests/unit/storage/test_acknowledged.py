"""What was acknowledged is still there after failures of the disk that the node itself outlives."""

from __future__ import annotations

from typing import Any

import pytest

from tests.storage_desk import (
    DATA,
    Desk,
    Slow,
    append,
    codec_1,
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
from waltz_core.base.edge import Port
from waltz_core.storage import control, log_files, segment_opening
from waltz_core.storage.effects import Create, Cut, FaultKind, StorageStopped, SyncDirectory, SyncFile, WriteAt
from waltz_core.storage.replica import State
from waltz_core.storage.segment import SECTOR
from waltz_core.wire import admin_messages as admin
from waltz_core.wire import storage_messages as wire

LAST = "0/0000000000000000008.seg"  # of `filled()`: four records of 100 bytes to a file


def assign_again(node: Desk) -> Any:
    """Open a partition that has stopped."""
    return node.admin(admin.PartitionAssignmentRequest(1, (0,), True, False))


# ---- a sync that failed --------------------------------------------------------------------------


@pytest.mark.parametrize("count", [5, 40])
def test_what_a_failed_sync_left_in_the_page_cache_is_written_again(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more records behind the mark than places are kept in memory it was trusted, and gone at a power failure."""
    monkeypatch.setattr(log_files, "WINDOW", 8)
    monkeypatch.setattr(segment_opening, "WINDOW", 8)
    node = desk(threshold=1 << 30)
    append(node, 0, 20)
    flush_marks(node)

    def fault(effect: Any) -> FaultKind | None:
        fails = isinstance(effect, SyncFile | Cut) and effect.path == DATA
        return FaultKind.IO if fails else None

    node.disk.fault = fault
    text_of(append(node, 20, count, size=2000))
    assert replica(node).state is State.STOPPED
    node.disk.fault = None
    assign_again(node)
    assert (replica(node).state, replica(node).max_id) == (State.OPEN, 20 + count - 1)
    node.disk.lose_unsynced()
    again = reopen(node, threshold=1 << 30)
    assert (replica(again).state, replica(again).max_id) == (State.OPEN, 20 + count - 1)


# ---- the durable mark ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "beside",
    [
        wire.SetLogStartRequest(5, 1, 0, 4),
        wire.TruncateRequest(5, 1, 0, 99, False),  # cuts nothing
        wire.TruncateRequest(5, 1, 0, 3, False),  # refused
        admin.RepairRequest(1, 0, (), ()),
    ],
)
def test_a_mark_that_falls_due_while_something_runs_alone_is_written_afterwards(beside: Any) -> None:
    """It was dropped: the end of the log could get lost unnoticed until something was appended again."""
    node = desk(threshold=1 << 20)
    append(node, 0, 12)
    mark(node, 11)
    flush_marks(node)
    port = codec_1(node, Port.ADMIN if isinstance(beside, admin.RepairRequest) else Port.STORAGE)
    slow = Slow(node)
    slow.send(wire.AppendRequest(5, 1, 0, some(12, 8), False))
    slow.release()
    slow.send(wire.RecordRequest(5, 1, 0, 0))  # a read is under way, so what runs alone waits
    slow.send(beside, to=port)
    slow.now += 1500
    slow.step()
    slow.release()
    slow.now += 1500
    slow.step()
    slow.release()
    files = replica(node).files
    assert files.durable.mark_beside(files.belongs()) == 19
    node.disk.put(DATA, node.disk.content(DATA)[:-300])
    assert replica(reopen(node, threshold=1 << 20)).state is State.LIMBO


def begin_in_vain(node: Desk, kind: FaultKind, full: range) -> list[Any]:
    """A segment is begun and taken back; returns the writes of the mark, of which those at these places fail."""
    marks: list[Any] = []

    def fault(effect: Any) -> FaultKind | None:
        if isinstance(effect, WriteAt) and effect.path == "0/waltz.mark":
            marks.append(effect)
            return FaultKind.FULL if len(marks) - 1 in full else None
        fails = isinstance(effect, WriteAt) and effect.path.endswith("12.seg") and effect.offset >= 128
        return kind if fails else None

    node.disk.fault = fault
    text_of(append(node, 12, 1))
    return marks


@pytest.mark.parametrize(
    ("kind", "mark_fails"), [(FaultKind.FULL, False), (FaultKind.FULL, True), (FaultKind.IO, False)]
)
def test_a_mark_counts_though_the_segment_that_it_named_was_taken_back(kind: FaultKind, mark_fails: bool) -> None:
    """A disk was full when a segment was begun: the next opening took a damaged end of the log for a torn write."""
    node = filled(12)
    flush_marks(node)
    marks = begin_in_vain(node, kind, range(1, 2 if mark_fails else 1))
    node.disk.fault = None
    assert replica(node).state is (State.OPEN if kind is FaultKind.FULL else State.STOPPED)
    flush_marks(node)
    node.stop()
    assert len(marks) >= 2
    node.disk.flip(LAST, len(node.disk.content(LAST)) - 1)  # what was acknowledged rots
    assert replica(reopen(node)).state is State.LIMBO


@pytest.mark.parametrize("fails", [2, 3, 5])
def test_a_mark_is_tried_again_for_as_long_as_the_disk_is_full(fails: int) -> None:
    """It was given up at the second attempt, and named a segment that was taken back until the next append."""
    node = filled(12)
    flush_marks(node)
    marks = begin_in_vain(node, FaultKind.FULL, range(1, 1 + fails))
    for _ in range(fails):
        flush_marks(node)
    assert (replica(node).state, replica(node).files.mark_planned, len(marks)) == (State.OPEN, False, fails + 2)
    node.disk.flip(LAST, len(node.disk.content(LAST)) - 1)  # what was acknowledged rots
    assert replica(reopen(node)).state is State.LIMBO


def test_a_process_ends_though_a_full_disk_cannot_take_the_mark() -> None:
    node = desk(threshold=1 << 20)
    append(node, 0, 3)
    assert replica(node).files.mark_planned
    fail(node, FaultKind.FULL, lambda effect: effect.path == "0/waltz.mark", times=1 << 30)
    node.stop()
    assert any(isinstance(effect, StorageStopped) for effect in node.emitted)
    assert replica(node).state is State.OPEN


# ---- the control file ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "failing"),
    [
        (admin.PartitionAvailableRequest(1, (0,), False), 1),
        (admin.PartitionAssignmentRequest(1, (0,), False, False), 1),
        (admin.PartitionAssignmentRequest(1, (0,), False, False), 2),
        (wire.SetLowWaterMarkRequest(6, 1, 0, 15, False), 1),
    ],
)
def test_a_change_that_was_answered_as_failed_does_not_come_back(change: Any, failing: int) -> None:
    """What its failed sync left in the control file counted at the next start, over all that was done in between."""
    node = filled(12)
    mark(node, 11)
    append(node, 12, 4)
    flush_marks(node)
    syncs = 0

    def fault(effect: Any) -> FaultKind | None:
        nonlocal syncs
        if not isinstance(effect, SyncFile) or effect.path != control.NAME:
            return None
        syncs += 1
        return FaultKind.IO if syncs == failing else None

    node.disk.fault = fault
    answer = node.storage(change) if isinstance(change, wire.SetLowWaterMarkRequest) else node.admin(change)
    node.disk.fault = None
    text_of(answer)
    assert replica(node).state is State.STOPPED
    codec_1(node, Port.ADMIN).ask(admin.RepairRequest(2, 0, (), ()))
    assert (replica(node).state, replica(node).max_id) == (State.OPEN, 15)
    before = replica(node).entry.current
    assert (before.session_id, before.flags, before.local_low_water_mark) == (5, 5, 11)
    crashed = node.disk.clone()
    crashed.lose_unsynced()
    for disk in (crashed, node.disk):
        again = desk(disk)
        assert replica(again).entry.current == before
        assert replica(again).state is State.OPEN
    node = again
    assert isinstance(mark(node, 15, 7), wire.SuccessResponse)  # and the next change counts
    assert replica(reopen(node)).entry.current == replica(node).entry.current
    assert replica(node).session_info().session_id == 7


@pytest.mark.parametrize("change", ["forbid", "unassign"])
def test_the_durable_mark_counts_after_a_change_that_failed(change: str) -> None:
    """The present control struct is written again under its number, as the mark names it."""
    node = filled(12)
    flush_marks(node)
    syncs = 0

    def fault(effect: Any) -> FaultKind | None:
        nonlocal syncs
        syncs += isinstance(effect, SyncFile) and effect.path == control.NAME
        return FaultKind.IO if syncs == (1 if change == "forbid" else 2) else None

    node.disk.fault = fault
    if change == "forbid":
        text_of(node.admin(admin.PartitionAvailableRequest(1, (0,), False)))
    else:
        text_of(node.admin(admin.PartitionAssignmentRequest(1, (0,), False, False)))
    node.disk.fault = None
    node.disk.flip(LAST, len(node.disk.content(LAST)) - 1)
    text_of(assign_again(node))
    assert replica(node).state is State.LIMBO
    again = reopen(node)
    assert replica(again).state is State.LIMBO
    assert replica(again).entry.current == replica(node).entry.current


# ---- side files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [Create, WriteAt, SyncFile, SyncDirectory])
def test_side_files_that_could_not_be_made_are_made_later(operation: type[Any]) -> None:
    """They counted as made: a replica in limbo answered no session until it was opened again."""
    node = filled(12)
    for name in ("fence", "mark", "faults"):
        node.disk.remove(f"0/waltz.{name}")
    node.disk.flip("0/0000000000000000004.seg", 128 + 399)
    again = reopen(node)
    assert replica(again).state is State.LIMBO
    fail(again, FaultKind.FULL, lambda effect: isinstance(effect, operation) and effect.path.startswith("0"))
    port = codec_1(again, Port.STORAGE)
    text_of(port.ask(wire.LastSessionInfoRequest(9, 1, 0, False)))
    assert isinstance(port.ask(wire.LastSessionInfoRequest(9, 1, 0, False)), wire.LastSessionInfoResponse)
    fail(again, FaultKind.IO, lambda effect: isinstance(effect, Create))  # none is made twice
    assert isinstance(port.ask(wire.LastSessionInfoRequest(10, 1, 0, False)), wire.LastSessionInfoResponse)
    again.disk.lose_unsynced()
    again.disk.fault = None
    assert replica(reopen(again)).fence == 10


def test_a_fence_that_stands_is_not_emptied_to_make_another_side_file() -> None:
    """No file is made anew into which something was written."""
    node = filled(12)
    text_of(append(node, 99, 1, session=7))  # fences
    node.disk.remove("0/waltz.faults")
    again = reopen(node)
    made: list[str] = []

    def watch(effect: Any) -> None:
        if isinstance(effect, Create):
            made.append(effect.path)

    again.disk.fault = watch
    again.disk.flip("0/0000000000000000004.seg", 128 + 50)
    text_of(again.storage(wire.RecordHeaderRequest(7, 1, 0, 4)))
    text_of(append(again, 99, 1, session=8))
    assert made == ["0/waltz.faults"]
    assert replica(reopen(again)).fence == 8


# ---- one write -----------------------------------------------------------------------------------


def test_no_more_is_written_at_once_than_a_torn_write_may_be_long() -> None:
    """A second large append was taken into the write of the first."""
    node = desk(threshold=1 << 20, write_bytes_max=1000)
    slow = Slow(node)
    slow.send(wire.AppendRequest(5, 1, 0, some(0, 1), False))
    for first, count in ((1, 9), (10, 9), (19, 30), (49, 1), (50, 1)):
        slow.send(wire.AppendRequest(5, 1, 0, some(first, count), False))
    sizes: list[int] = []
    while slow.held:
        for batch in slow.batches():
            sizes += [len(one.data) for one in batch.operations if isinstance(one, WriteAt) and one.path == DATA]
        slow.release(1)
    assert sizes == [1000, 900, 3000, 200]
    assert replica(node).max_id == 50


@pytest.mark.parametrize("sizes", [(20, 20), (1, 63)])
def test_a_write_of_the_largest_payloads_that_was_cut_short_is_cut(sizes: tuple[int, int]) -> None:
    """The replica was in limbo after a mere power failure."""
    node = desk(threshold=1 << 30)
    append(node, 0, 5)
    flush_marks(node)
    base = len(node.disk.content(DATA))
    records = [some(5 + at, 1, size << 20)[0] for at, size in enumerate(sizes)]
    assert isinstance(node.storage(wire.AppendRequest(5, 1, 0, tuple(records), False)), wire.SuccessResponse)
    data = bytearray(node.disk.content(DATA))
    lost = base // SECTOR * SECTOR + SECTOR
    data[lost : lost + SECTOR] = bytes(SECTOR)
    node.disk.put(DATA, bytes(data))
    again = reopen(node, threshold=1 << 30)
    assert (replica(again).state, replica(again).max_id) == (State.OPEN, 4)

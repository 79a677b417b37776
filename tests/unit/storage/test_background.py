"""What a storage node does by itself: verify all records slowly, and keep a reserve of its disk."""

from __future__ import annotations

from typing import Any

from tests.storage_desk import append, desk, filled, flush_marks, mark, replica, text_of
from waltz_core.base.edge import Level, Report
from waltz_core.storage.effects import DiskRead, DiskSpace, FaultKind, Stop, StorageStopped
from waltz_core.wire import storage_messages as wire
from waltz_core.wire.shared import Condition

SCRUB: dict[str, Any] = {"scrub_bytes_per_s": 100_000, "scrub_first_ms": 1000, "scrub_pause_ms": 60_000}


def run_for(node: Any, duration: int) -> int:
    """Let time pass as deadlines come; how many steps that took."""
    end, steps = node.now + duration, 0
    while (due := node.node.deadline()) is not None and due <= end:
        assert due >= node.now
        node.now = due
        node.step()
        steps += 1
        assert steps < 10_000, "deadlines do not move on"
    node.now = end
    return steps


def test_every_record_is_verified_in_each_pass_and_damage_is_found_without_a_reader() -> None:
    node = filled(**SCRUB)
    append(node, 0, 0)
    node.disk.flip("0/0000000000000000004.seg", 128 + 150)
    run_for(node, 30_000)
    assert replica(node).faults == {5}
    assert replica(node).files.condition() is Condition.SUSPECT
    assert replica(node).counters["scrubbed-records"] == 12
    assert replica(node).counters["scrub-passes"] == 1
    run_for(node, 60_000)
    assert replica(node).counters["scrub-passes"] == 2
    assert node.node.gauges()["waltz-storage.scrub-pass-count"] == 2


def test_a_partition_whose_files_change_just_now_is_verified_later() -> None:
    node = filled(**SCRUB)
    replica(node).lane.alone = True
    run_for(node, 1_500)
    assert replica(node).counters["scrubbed-records"] == 0
    replica(node).lane.alone = False
    run_for(node, 30_000)
    assert replica(node).counters["scrub-passes"] == 1


def test_scrubbing_keeps_to_its_rate() -> None:
    node = desk(threshold=10_000_000, scrub_bytes_per_s=1_000_000, scrub_first_ms=1, scrub_pause_ms=10**9)
    append(node, 0, 3000, size=960)
    flush_marks(node)
    run_for(node, 2000)
    assert 1_000_000 < replica(node).counters["scrubbed-records"] * 1000 < 2_600_000
    run_for(node, 3000)
    assert replica(node).counters["scrubbed-records"] == 3000


def test_a_file_that_cannot_be_read_is_reported_and_does_not_end_the_pass() -> None:
    node = filled(**SCRUB)
    flush_marks(node)
    bad = "0/0000000000000000004.seg"
    node.disk.fault = lambda effect: FaultKind.IO if isinstance(effect, DiskRead) and effect.path == bad else None
    run_for(node, 70_000)
    assert replica(node).faults == {4, 5, 6, 7}
    assert replica(node).counters["scrub-passes"] == 2
    assert any(
        one.level is Level.ERROR and "cannot be read" in one.text for one in node.emitted if isinstance(one, Report)
    )


def test_a_node_that_is_told_to_stop_does_not_wait_for_the_pass() -> None:
    node = filled(**SCRUB)
    run_for(node, 1000)
    node.step(Stop())
    assert StorageStopped() in node.emitted
    assert run_for(node, 100_000) == 0 or node.node.deadline() is None or replica(node).lane.idle


def test_without_a_rate_nothing_is_scrubbed() -> None:
    node = filled()
    flush_marks(node)
    assert node.node.deadline() is None


def test_below_the_reserve_appends_are_refused_and_everything_else_goes_on() -> None:
    node = filled(reserve_bytes=1000)
    node.step(DiskSpace(999))
    assert "999 bytes are free, 1000 are kept in reserve" in text_of(append(node, 12, 1))
    assert node.read(0, 5) is not None
    assert mark(node, 11) == wire.SuccessResponse(5, 1, 0)
    assert isinstance(node.storage(wire.LastSessionInfoRequest(6, 1, 0, False)), wire.LastSessionInfoResponse)
    node.step(DiskSpace(1001))
    assert isinstance(append(node, 12, 1, session=6), wire.FailureResponse)
    node.step(DiskSpace(1200))
    assert append(node, 12, 1, session=6) == wire.SuccessResponse(6, 1, 0)
    assert replica(node).max_id == 12


def test_the_reserve_is_reported_once() -> None:
    node = filled(reserve_bytes=1000)
    for free in (10, 20, 30):
        node.step(DiskSpace(free))
    assert len([one for one in node.emitted if isinstance(one, Report) and one.level is Level.ERROR]) == 1

"""What was acknowledged is still there after failures of the disk that the node itself outlives."""

from __future__ import annotations

from typing import Any

import pytest

from tests.storage_desk import (
    DATA,
    Desk,
    append,
    desk,
    flush_marks,
    reopen,
    replica,
    text_of,
)
from waltz_core.storage import log_files, segment_opening
from waltz_core.storage.effects import Cut, FaultKind, SyncFile
from waltz_core.storage.replica import State
from waltz_core.wire import admin_messages as admin

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
